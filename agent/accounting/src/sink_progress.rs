//! The progress of a sink.

/// The position of a sink, which is in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SinkPosition {
    /// The sequence number up to which it has accepted all records.
    pub(crate) delivered: u64,
    /// The last number of the batch that is being delivered, so that the same batch is sent again after a crash. If it is
    /// not larger than `delivered`, no batch is being delivered.
    pub(crate) sending: u64,
}

/// A sink, as people see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkStatus {
    /// `http` or `file`.
    pub kind: String,
    /// The URL without a query, or the file.
    pub target: String,
    /// The sequence number up to which it has accepted all records.
    pub delivered: u64,
    /// How many records of the store it does not have yet; right after a recovery from a backup, more are counted.
    pub waiting: u64,
    /// The age of the oldest waiting record, in milliseconds since its work ended (of a correction: since the agent found
    /// it); 0: none waits.
    pub lag_ms: u64,
    /// Why the latest delivery failed; empty: it succeeded.
    pub problem: String,
}
