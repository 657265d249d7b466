//! Lines of audits that wait in memory while the disk does not take them, for example because it is
//! full. They are bounded; what does not fit is counted as lost, and the record says so once it can
//! be written (`waiting`).

/// Bytes of events that wait, of all allocations together.
pub const PENDING_BYTES_MAX: usize = 1 << 20;
/// Additional bytes for marks: the lines that say when an audit began, paused and ended.
pub const MARKS_BYTES_MAX: usize = 64 << 10;

/// Lines that wait, and how many events they have.
#[derive(Debug, Default)]
pub struct Pending {
    pub lines: Vec<u8>,
    pub events: u64,
}

impl Pending {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}
