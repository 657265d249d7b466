//! The agent: the work on its node, its journal, its mesh, its session.

use super::family::families;

const DRIVER: &str = "the agent's driver";
const JOURNAL: &str = "the agent's journal";
const MESH: &str = "the agent's mesh";
const PREEMPTIONS_OF: &str = "heads of work that is preempted";
const CHECKPOINTS_OF: &str = "heads of work with checkpoints";
const DEBUG: &str = "work that is measured in debug mode";
const AUDITED: &str = "work that is measured in audit mode";
const BROKER: &str = "the checkpoint broker, if this agent is it";
const SESSION: &str = "the session with the quorum";

families! {
    ALLOCATIONS = Gauge "lattice_agent_allocations", Count, ["phase"], Agent, DRIVER,
        "Allocations on this node, by the phase that the agent has them in.";
    REPORTS_PENDING = Gauge "lattice_agent_reports_pending", Count, [], Agent, DRIVER,
        "Reports that wait for the quorum's acknowledgement.";
    INCARNATION = Gauge "lattice_agent_incarnation", Count, [], Agent, DRIVER,
        "The agent's life, as the quorum issued it.";
    NODE_STATE = Gauge "lattice_agent_node_state", Truth, ["state"], Agent, "what this node gossips of itself",
        "This node's own state: 1 for that one, 0 for the others.";
    HOLDS = Gauge "lattice_agent_node_holds", Count, [], Agent, "the quorum, as last received",
        "Holds that keep new work off this node.";
    CONNECTED = Gauge "lattice_agent_quorum_connected", Truth, [], Agent, SESSION,
        "Whether there is a session with the quorum.";
    LAST_HEARTBEAT = Gauge "lattice_agent_last_heartbeat_timestamp", Timestamp, [], Agent, SESSION,
        "When the newest heartbeat was sent that the leader acknowledged; absent before the first one.";
    JOURNAL_APPENDS = Counter "lattice_journal_appends_total", Count, [], Agent, JOURNAL,
        "Batches of records appended to the journal.";
    JOURNAL_RECORDS = Counter "lattice_journal_records_total", Count, [], Agent, JOURNAL,
        "Records appended to the journal.";
    JOURNAL_WRITTEN = Counter "lattice_journal_written_bytes_total", Bytes, [], Agent, JOURNAL,
        "Bytes appended to the journal.";
    JOURNAL_SYNCS = Counter "lattice_journal_syncs_total", Count, [], Agent, JOURNAL,
        "Batches that had to be on the disk before anything was reported.";
    JOURNAL_CHECKPOINTS = Counter "lattice_journal_checkpoints_total", Count, [], Agent, JOURNAL,
        "Checkpoints written.";
    JOURNAL_SIZE = Gauge "lattice_journal_size_bytes", Bytes, [], Agent, JOURNAL,
        "The length of the journal.";
    JOURNAL_SECONDS = Histogram "lattice_journal_append_seconds", Seconds, [], Agent, JOURNAL,
        "How long an append took, with its sync if it had one.";
    PREEMPTIONS = Counter "lattice_preemptions_total", Count, ["vcluster", "reason"], Agent, PREEMPTIONS_OF,
        "Allocations headed here that were preempted, by reason: request, drain, priority, reclaim.";
    SCHEDULING_PREEMPTIONS = Counter "lattice_scheduling_preemptions_total", Count, ["vcluster", "reason"], Agent, PREEMPTIONS_OF,
        "The same as lattice_preemptions_total: the requirement has two names for it.";
    PREEMPTION_SECONDS = Histogram "lattice_preemption_checkpoint_duration_seconds", Seconds, [], Agent, PREEMPTIONS_OF,
        "From the request until the quorum had the checkpoint, for preemptions with a checkpoint.";
    PREEMPTION_REQUEUES = Counter "lattice_preemption_victim_requeue_total", Count, [], Agent, PREEMPTIONS_OF,
        "Preempted allocations that were requeued: saved, to continue from there, or unsaved, to begin anew. A held one counts when it is resumed, at the agent that was asked.";
    PREEMPTION_UNSAVED = Counter "lattice_preemption_failed_checkpoint_total", Count, [], Agent, PREEMPTIONS_OF,
        "Preempted allocations whose checkpoint failed: no answer in time, or a failed save.";
    CHECKPOINT_WALLTIME = Counter "lattice_checkpoint_walltime_conflict_total", Count, [], Agent, PREEMPTIONS_OF,
        "Allocations headed here whose walltime ended during a checkpoint.";
    CHECKPOINT_SECONDS = Histogram "lattice_checkpoint_duration_seconds", Seconds, [], Agent, CHECKPOINTS_OF,
        "From the request until the quorum had the checkpoint, for complete checkpoints.";
    CHECKPOINTS = Counter "lattice_checkpoints_total", Count, ["end"], Agent, CHECKPOINTS_OF,
        "Checkpoints headed here that have ended, by result: complete, failed, timed_out.";
    DEBUG_ALLOCATIONS = Gauge "lattice_debug_allocations", Count, [], Agent, DEBUG,
        "Allocations whose work here is measured in debug mode.";
    DEBUG_POINTS = Counter "lattice_debug_points_total", Count, [], Agent, DEBUG,
        "Samples of work in debug mode written for the object store, in this life of the agent.";
    DEBUG_POINTS_LOST = Counter "lattice_debug_points_lost_total", Count, [], Agent, DEBUG,
        "Samples of work in debug mode that could not be written, or were dropped because too many waited for the store.";
    AUDIT_ALLOCATIONS = Gauge "lattice_audit_allocations", Count, [], Agent, AUDITED,
        "Audited allocations: opened files and connections of their work here are recorded.";
    AUDIT_EVENTS = Counter "lattice_audit_events_total", Count, [], Agent, AUDITED,
        "Events of audited work written for the object store, in this life of the agent.";
    AUDIT_EVENTS_LOST = Counter "lattice_audit_events_lost_total", Count, [], Agent, AUDITED,
        "Events of audited work that did not fit into the kernel's buffer, could not be written, or were dropped because too many waited for the store.";
    BROKER_LEADS = Gauge "lattice_checkpoint_broker_leads", Truth, [], Agent, BROKER,
        "Whether this agent is the checkpoint broker.";
    BROKER_STORAGE_UNAVAILABLE = Gauge "lattice_checkpoint_storage_unavailable", Truth, [], Agent, BROKER,
        "Whether the checkpoint store does not answer. Until it does, the broker asks no work to save itself.";
    BROKER_WAITS = Gauge "lattice_checkpoint_broker_waiting", Count, [], Agent, BROKER,
        "Allocations that are due and wait for bandwidth of the store, as of the last round.";
    BROKER_ROUNDS = Counter "lattice_checkpoint_broker_rounds_total", Count, [], Agent, BROKER,
        "Rounds in which the broker considered all running work.";
    BROKER_ASKED = Counter "lattice_checkpoint_broker_requests_total", Count, ["end"], Agent, BROKER,
        "Checkpoints that the broker requested and that have ended, by result: complete, failed.";
    MESH_CONNECTIONS = Gauge "lattice_mesh_connections", Count, [], Agent, MESH,
        "Open connections to other agents, opened from here.";
    MESH_STREAMS = Counter "lattice_mesh_streams_total", Count, ["opened_by"], Agent, MESH,
        "Streams of the mesh that began: opened by us, opened by peers.";
    MESH_FAILURES = Counter "lattice_mesh_dial_failures_total", Count, [], Agent, MESH,
        "Streams that could not be opened: the node does not answer, or is not who it should be.";
    MESH_REFUSED = Counter "lattice_mesh_frames_refused_total", Count, ["reason"], Agent, MESH,
        "Refused frames, by reason.";
}
