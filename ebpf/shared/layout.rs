// What the programs in the kernel write and the agent reads: included by both, so that there is one of it.
//
// The numbers of one allocation are one array of words: all are counters, and those of all processors are added up word by word.

/// Ranges of a histogram: the first is of at most 2^`RANGE_SHIFT` nanoseconds (1 µs), each further one of twice as much (the last
/// bound is 17 s), and the last has no end.
pub const RANGES: usize = 26;
pub const RANGE_SHIFT: u32 = 10;
/// A histogram: the sum in nanoseconds, then its ranges.
pub const HISTOGRAM_WORDS: usize = 1 + RANGES;

/// Where each histogram begins: of stints on a processor, of waiting for one, of block requests that read, of those that wrote.
pub const ON_CPU: usize = 0;
pub const RUN_QUEUE: usize = HISTOGRAM_WORDS;
pub const BLOCK_READ: usize = 2 * HISTOGRAM_WORDS;
pub const BLOCK_WRITE: usize = 3 * HISTOGRAM_WORDS;
const SINGLE: usize = 4 * HISTOGRAM_WORDS;

/// Where each counter lies.
pub const SWITCHES_VOLUNTARY: usize = SINGLE;
pub const SWITCHES_INVOLUNTARY: usize = SINGLE + 1;
pub const BLOCK_READ_BYTES: usize = SINGLE + 2;
pub const BLOCK_WRITTEN_BYTES: usize = SINGLE + 3;
pub const RECEIVED_BYTES: usize = SINGLE + 4;
pub const RECEIVED_PACKETS: usize = SINGLE + 5;
pub const SENT_BYTES: usize = SINGLE + 6;
pub const SENT_PACKETS: usize = SINGLE + 7;
pub const TCP_RETRANSMITS: usize = SINGLE + 8;
pub const TCP_CONNECTS: usize = SINGLE + 9;
pub const OOM_KILLS: usize = SINGLE + 10;
pub const PROCESSES_STARTED: usize = SINGLE + 11;
pub const PROCESSES_EXITED: usize = SINGLE + 12;
pub const WORDS: usize = SINGLE + 13;

/// The numbers of one allocation on one processor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Words(pub [u64; WORDS]);

/// What belongs to no allocation, by its index: bytes of block requests, and requests that did not fit into the map of those under way.
pub const NODE_READ_BYTES: u32 = 0;
pub const NODE_WRITTEN_BYTES: u32 = 1;
pub const NODE_UNFIT: u32 = 2;
pub const NODE_WORDS: u32 = 3;

/// Allocations that are counted, with some that have just ended.
pub const ALLOCATIONS_MAX: u32 = 1024;
/// Block requests under way.
pub const REQUESTS_MAX: u32 = 8192;

/// An offset that this kernel does not have.
pub const NO_OFFSET: u32 = u32::MAX;
