//! The agent: the work on its node, its journal, its mesh, its session.

use super::family::families;

const DRIVER: &str = "the agent's driver";
const JOURNAL: &str = "the agent's journal";
const MESH: &str = "the agent's mesh";
const PREEMPTIONS_OF: &str = "heads of work that is to give its nodes back";
const CHECKPOINTS_OF: &str = "heads of work that saves itself";
const DEBUG: &str = "work that is measured in debug mode";
const AUDITED: &str = "work that is measured in audit mode";
const BROKER: &str = "the checkpoint broker, where this agent is it";
const SESSION: &str = "the session with the quorum";

families! {
    ALLOCATIONS = Gauge "lattice_agent_allocations", Count, ["phase"], Agent, DRIVER,
        "Allocations on this node, by the phase that the agent has them in.";
    REPORTS_PENDING = Gauge "lattice_agent_reports_pending", Count, [], Agent, DRIVER,
        "Reports that wait for the quorum's acknowledgement.";
    INCARNATION = Gauge "lattice_agent_incarnation", Count, [], Agent, DRIVER,
        "The agent's life, as the quorum issued it.";
    NODE_STATE = Gauge "lattice_agent_node_state", Truth, ["state"], Agent, "what this node gossips of itself",
        "The state that this node says it is in: 1 for that one, 0 for the others.";
    HOLDS = Gauge "lattice_agent_node_holds", Count, [], Agent, "the quorum, as last heard",
        "Holds that keep new work off this node.";
    CONNECTED = Gauge "lattice_agent_quorum_connected", Truth, [], Agent, SESSION,
        "Whether there is a session with the quorum.";
    LAST_HEARTBEAT = Gauge "lattice_agent_last_heartbeat_timestamp", Timestamp, [], Agent, SESSION,
        "When the newest heartbeat was sent that the leader acknowledged; absent before the first one.";
    JOURNAL_APPENDS = Counter "lattice_journal_appends_total", Count, [], Agent, JOURNAL,
        "Batches of records that were appended to the journal.";
    JOURNAL_RECORDS = Counter "lattice_journal_records_total", Count, [], Agent, JOURNAL,
        "Records in them.";
    JOURNAL_WRITTEN = Counter "lattice_journal_written_bytes_total", Bytes, [], Agent, JOURNAL,
        "Their bytes.";
    JOURNAL_SYNCS = Counter "lattice_journal_syncs_total", Count, [], Agent, JOURNAL,
        "Batches that had to be on the disk before anything was told.";
    JOURNAL_CHECKPOINTS = Counter "lattice_journal_checkpoints_total", Count, [], Agent, JOURNAL,
        "Checkpoints written.";
    JOURNAL_SIZE = Gauge "lattice_journal_size_bytes", Bytes, [], Agent, JOURNAL,
        "How long the journal is now.";
    JOURNAL_SECONDS = Histogram "lattice_journal_append_seconds", Seconds, [], Agent, JOURNAL,
        "How long an append took, with its sync where it had one.";
    PREEMPTIONS = Counter "lattice_preemptions_total", Count, ["vcluster", "reason"], Agent, PREEMPTIONS_OF,
        "Allocations headed here that were ended to give their nodes back, by what for: request, drain.";
    SCHEDULING_PREEMPTIONS = Counter "lattice_scheduling_preemptions_total", Count, ["vcluster", "reason"], Agent, PREEMPTIONS_OF,
        "The same as lattice_preemptions_total, which has two names in the documents.";
    PREEMPTION_SECONDS = Histogram "lattice_preemption_checkpoint_duration_seconds", Seconds, [], Agent, PREEMPTIONS_OF,
        "From the request to the checkpoint that the quorum has, where there was one.";
    PREEMPTION_REQUEUES = Counter "lattice_preemption_victim_requeue_total", Count, [], Agent, PREEMPTIONS_OF,
        "Those that wait for nodes again: saved, to go on from there (held ones when they are resumed, by the agent that was asked), or ended unsaved, to begin anew.";
    PREEMPTION_UNSAVED = Counter "lattice_preemption_failed_checkpoint_total", Count, [], Agent, PREEMPTIONS_OF,
        "Those that were asked to save themselves and did not: no answer in time, or an answer that came to nothing.";
    CHECKPOINT_WALLTIME = Counter "lattice_checkpoint_walltime_conflict_total", Count, [], Agent, PREEMPTIONS_OF,
        "Allocations headed here whose walltime was over while a checkpoint was under way.";
    CHECKPOINT_SECONDS = Histogram "lattice_checkpoint_duration_seconds", Seconds, [], Agent, CHECKPOINTS_OF,
        "From the request to the checkpoint that the quorum has, of those that came to be.";
    CHECKPOINTS = Counter "lattice_checkpoints_total", Count, ["end"], Agent, CHECKPOINTS_OF,
        "Checkpoints headed here that are over, by how: complete, failed, timed_out.";
    DEBUG_ALLOCATIONS = Gauge "lattice_debug_allocations", Count, [], Agent, DEBUG,
        "Allocations whose work here is measured in debug mode.";
    DEBUG_POINTS = Counter "lattice_debug_points_total", Count, [], Agent, DEBUG,
        "Looks at such work that were written down for the object store, in this life of the agent.";
    DEBUG_POINTS_LOST = Counter "lattice_debug_points_lost_total", Count, [], Agent, DEBUG,
        "Looks that were not, or that went because too many waited for the store.";
    AUDIT_ALLOCATIONS = Gauge "lattice_audit_allocations", Count, [], Agent, AUDITED,
        "Allocations of whose work here it is kept which files it opens and whom it connects to.";
    AUDIT_EVENTS = Counter "lattice_audit_events_total", Count, [], Agent, AUDITED,
        "Events of such work that were written down for the object store, in this life of the agent.";
    AUDIT_EVENTS_LOST = Counter "lattice_audit_events_lost_total", Count, [], Agent, AUDITED,
        "Events that were not: they did not fit into the kernel's buffer, could not be written, or went because too many waited for the store.";
    BROKER_LEADS = Gauge "lattice_checkpoint_broker_leads", Truth, [], Agent, BROKER,
        "Whether this agent is the checkpoint broker.";
    BROKER_STORAGE_AWAY = Gauge "lattice_checkpoint_storage_unavailable", Truth, [], Agent, BROKER,
        "Whether the store of checkpoints takes nothing, and no work is asked to save itself by the broker until it does.";
    BROKER_WAITS = Gauge "lattice_checkpoint_broker_waiting", Count, [], Agent, BROKER,
        "Allocations that are due and wait until the store has room for them, as of the last round.";
    BROKER_ROUNDS = Counter "lattice_checkpoint_broker_rounds_total", Count, [], Agent, BROKER,
        "Rounds in which it looked at all running work.";
    BROKER_ASKED = Counter "lattice_checkpoint_broker_asked_total", Count, ["end"], Agent, BROKER,
        "Checkpoints that the broker asked for and that are over, by how: complete, failed.";
    MESH_CONNECTIONS = Gauge "lattice_mesh_connections", Count, [], Agent, MESH,
        "Connections to other agents that stand, opened from here.";
    MESH_STREAMS = Counter "lattice_mesh_streams_total", Count, ["opened_by"], Agent, MESH,
        "Streams of the mesh that began: opened by us, opened by peers.";
    MESH_FAILURES = Counter "lattice_mesh_dial_failures_total", Count, [], Agent, MESH,
        "Streams that could not be opened: the node does not answer, or is not who it should be.";
    MESH_REFUSED = Counter "lattice_mesh_frames_refused_total", Count, ["reason"], Agent, MESH,
        "Frames that were not taken, by reason.";
}
