//! A member of the quorum.

use super::family::families;

const RAFT: &str = "Raft";
const LEDGER: &str = "the ledger, as this member has applied it";
const DISK: &str = "the member's disk";

families! {
    LEADER = Gauge "lattice_raft_leader", Truth, [], Quorum, RAFT,
        "Whether this member leads.";
    HAS_LEADER = Gauge "lattice_raft_has_leader", Truth, [], Quorum, RAFT,
        "Whether this member recently heard from a leader.";
    TERM = Gauge "lattice_raft_term", Count, [], Quorum, RAFT,
        "The Raft term.";
    LAST_LOG = Gauge "lattice_raft_last_log_index", Count, [], Quorum, RAFT,
        "The last entry of this member's log.";
    COMMITTED = Gauge "lattice_raft_applied_index", Count, [], Quorum, RAFT,
        "The last entry that is committed and applied here.";
    SNAPSHOT_INDEX = Gauge "lattice_raft_snapshot_index", Count, [], Quorum, RAFT,
        "The last entry in this member's newest snapshot.";
    LOG_ENTRIES = Gauge "lattice_raft_log_entries", Count, [], Quorum, RAFT,
        "Entries in this member's log.";
    MEMBERS = Gauge "lattice_raft_members", Count, ["role"], Quorum, RAFT,
        "Members by role: voter, learner.";
    PROPOSALS = Counter "lattice_raft_proposals_total", Count, ["result"], Quorum, "the member's proposer",
        "Commands proposed here, by result: accepted; refused by the ledger; unserved, because this member did not lead or lost its majority.";
    ENTRIES = Counter "lattice_raft_entries_proposed_total", Count, [], Quorum, "the member's proposer",
        "Log entries in which the proposed commands were batched.";
    COMMIT_SECONDS = Histogram "lattice_raft_commit_latency_seconds", Seconds, [], Quorum, "the member's proposer",
        "From an entry's proposal here until it is committed and applied.";
    APPLY_SECONDS = Histogram "lattice_raft_apply_seconds", Seconds, [], Quorum, "the state machine",
        "How long it took to apply one entry.";
    SNAPSHOT_SECONDS = Histogram "lattice_raft_snapshot_duration_seconds", Seconds, [], Quorum, "the state machine",
        "How long it took to make a snapshot.";
    SNAPSHOT_BYTES = Gauge "lattice_raft_snapshot_size_bytes", Bytes, [], Quorum, DISK,
        "The size of the newest snapshot here.";
    DATA_BYTES = Gauge "lattice_raft_data_bytes", Bytes, ["part"], Quorum, DISK,
        "Bytes in this member's data_dir, by part: log, snapshots, audit, reserve, telemetry (samples that wait to be pushed).";
    DISK_USED = Gauge "lattice_raft_disk_used_bytes", Bytes, [], Quorum, DISK,
        "Used bytes of the disk of data_dir.";
    DISK_TOTAL = Gauge "lattice_raft_disk_total_bytes", Bytes, [], Quorum, DISK,
        "The size of that disk.";
    NODES = Gauge "lattice_nodes_total", Count, ["state"], Quorum, LEDGER,
        "Nodes by state.";
    NODES_HELD_BACK = Gauge "lattice_nodes_silent_together", Count, [], Quorum, "the leader's clocks",
        "Nodes that fell silent together, more than a fifth of all, so that none of them is declared Down until an operator decides; 0 otherwise, and 0 if this member does not lead.";
    CLOCKS_WRONG = Gauge "lattice_quorum_clocks_wrong", Truth, [], Quorum, "the members' clocks",
        "Whether the members' clocks differ by more than 5 s, or the ledger's time differs from theirs, as far as this member knows; `lattice quorum status` shows which.";
    WIPES_FAILED = Gauge "lattice_nodes_wipe_failed", Count, [], Quorum, LEDGER,
        "Nodes whose wipe failed: they are out of service until a wipe succeeds.";
    DRIFTS_OVER = Gauge "lattice_nodes_drift_overdue", Count, [], Quorum, LEDGER,
        "Nodes whose software or firmware has drifted from what is expected for longer than the time to correct it.";
    MISCOUNTED = Counter "lattice_node_heartbeats_miscounted_total", Count, [], Quorum, "heartbeats to this member",
        "Heartbeats that report more or less work on a node than the ledger has there, if three heartbeats in a row report the same: a message was lost.";
    CAPACITY_GROWN = Counter "lattice_node_capacity_grown_total", Count, [], Quorum, "registrations at this member",
        "Registrations of known nodes with more cores, memory or GPUs than the ledger had for them; `lattice node history` shows which.";
    ALLOCATIONS = Gauge "lattice_allocations_total", Count, ["state"], Quorum, LEDGER,
        "Allocations in the ledger, by state; ended ones are removed after a time.";
    ENDED_BYTES = Gauge "lattice_ended_allocations_bytes", Bytes, [], Quorum, LEDGER,
        "The size of the records of ended allocations in this member's memory.";
    ENDED_BYTES_MAX = Gauge "lattice_ended_allocations_limit_bytes", Bytes, [], Quorum, LEDGER,
        "The limit ended_memory: the largest size of the records of ended allocations.";
    ENDED_OLDEST = Gauge "lattice_ended_allocations_oldest_seconds", Seconds, [], Quorum, LEDGER,
        "How long ago the oldest ended allocation in the ledger ended; 0 if there is none.";
    ENDED_CUT_SHORT = Gauge "lattice_ended_allocations_cut_short", Truth, [], Quorum, LEDGER,
        "Whether work was forgotten that ended less than the limit ended_kept ago, because the memory for it was full.";
    ENDS_WAITING = Gauge "lattice_accounting_events_buffered", Count, [], Quorum, LEDGER,
        "Ended allocations that wait in the ledger until the accounting store has them; 0 before there is a store.";
    ENDS_DROPPED = Counter "lattice_accounting_events_dropped_total", Count, [], Quorum, LEDGER,
        "Ended allocations that were dropped before the accounting store had them, because too many waited.";
    ACTIVE = Gauge "lattice_allocations_active", Count, [], Quorum, LEDGER,
        "Allocations that run.";
    REVISION = Gauge "lattice_ledger_revision", Count, [], Quorum, LEDGER,
        "The ledger's revision.";
    VNIS = Gauge "lattice_network_vni_pool_total", Count, [], Quorum, LEDGER,
        "VNIs in the pool for network domains.";
    VNIS_FREE = Gauge "lattice_network_vni_pool_available", Count, [], Quorum, LEDGER,
        "VNIs of the pool that no domain has.";
    QUOTA_USED = Gauge "lattice_quota_used_nodes", Count, ["tenant"], Quorum, LEDGER,
        "Nodes that a tenant's allocations have, for each tenant with a record; shown only with the token.";
    QUOTA_MAX = Gauge "lattice_quota_max_nodes", Count, ["tenant"], Quorum, LEDGER,
        "How many nodes it may have, if that is limited; shown only with the token.";
    AUDIT_RECORDS = Counter "lattice_audit_records_total", Count, [], Quorum, LEDGER,
        "Records of the audit log since the cluster was created.";
    AUDIT_DAMAGED = Gauge "lattice_audit_segments_damaged", Count, [], Quorum, DISK,
        "Sealed segments of the audit log on this disk that the check after the start found damaged: nothing is read from them.";
}
