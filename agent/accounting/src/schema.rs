//! The tables, and how an older database becomes one of this version: numbered steps, each taken once.

/// What each version adds to the previous one, in the SQL that both databases have in common.
///
/// `ended_work.account` is the user: the word `user` has a meaning of its own in PostgreSQL. Times are milliseconds since
/// 1970; tags are a JSON object.
pub(crate) static STEPS: [&[&str]; 3] = [FIRST, JOB_NUMBERS, SINKS];

static FIRST: &[&str] = &[
    "CREATE TABLE ended_work (
        sequence BIGINT NOT NULL PRIMARY KEY,
        allocation TEXT NOT NULL,
        name TEXT NOT NULL,
        tenant TEXT NOT NULL,
        project TEXT NOT NULL,
        vcluster TEXT NOT NULL,
        account TEXT NOT NULL,
        uid BIGINT NOT NULL,
        tags TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        exit_code BIGINT,
        nodes TEXT NOT NULL,
        node_count BIGINT NOT NULL,
        submitted_at BIGINT NOT NULL,
        claimed_at BIGINT,
        started_at BIGINT,
        ended_at BIGINT NOT NULL,
        requeue_count BIGINT NOT NULL,
        preempted_count BIGINT NOT NULL,
        node_ms BIGINT NOT NULL,
        gpu_ms BIGINT NOT NULL,
        core_ms BIGINT NOT NULL,
        part_of TEXT
    )",
    "CREATE INDEX ended_work_by_end ON ended_work (ended_at, sequence)",
    "CREATE INDEX ended_work_by_account ON ended_work (account, ended_at, sequence)",
    "CREATE INDEX ended_work_by_tenant ON ended_work (tenant, ended_at, sequence)",
];

/// Work that ended under an earlier version has job number 0.
static JOB_NUMBERS: &[&str] =
    &["ALTER TABLE ended_work ADD COLUMN job BIGINT NOT NULL DEFAULT 0", "CREATE INDEX ended_work_by_job ON ended_work (job)"];

/// The positions of the sinks, see [`crate::sink_progress::SinkPosition`]. Column `changed`: the number of a record's latest
/// correction, or else its own. Sinks get records in this order. The index finds the parts of a group or a service.
static SINKS: &[&str] = &[
    "CREATE TABLE accounting_sink (
        sink TEXT NOT NULL PRIMARY KEY,
        delivered_until BIGINT NOT NULL,
        sending_until BIGINT NOT NULL
    )",
    "ALTER TABLE ended_work ADD COLUMN changed BIGINT NOT NULL DEFAULT 0",
    "UPDATE ended_work SET changed = sequence",
    "CREATE INDEX ended_work_by_change ON ended_work (changed)",
    "CREATE INDEX ended_work_by_whole ON ended_work (part_of) WHERE part_of IS NOT NULL",
];

/// The table with one row about the store itself. It exists before the first step.
pub(crate) const STORE_TABLE: &str = "CREATE TABLE IF NOT EXISTS accounting_store (
    row_number BIGINT NOT NULL PRIMARY KEY,
    store TEXT NOT NULL,
    version BIGINT NOT NULL,
    stored_until BIGINT NOT NULL
)";

/// This program's version of the tables.
pub(crate) fn version() -> i64 {
    i64::try_from(STEPS.len()).unwrap_or(i64::MAX)
}
