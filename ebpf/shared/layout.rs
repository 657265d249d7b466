// The layout of what the programs in the kernel write and the agent reads; both include this file.
//
// The counters of one allocation are one array of words. The agent sums the arrays of all processors word by word.

/// Number of ranges of a histogram: the first has the bound 2^`RANGE_SHIFT` nanoseconds (1 µs), each further one twice
/// the previous bound (the last bound is 17 s), and the last range has none.
pub const RANGES: usize = 26;
pub const RANGE_SHIFT: u32 = 10;
/// Words of a histogram: the sum in nanoseconds, then its ranges.
pub const HISTOGRAM_WORDS: usize = 1 + RANGES;

/// The first word of each histogram: stints on a processor, waits for one, block requests that read, and that write.
pub const ON_CPU: usize = 0;
pub const RUN_QUEUE: usize = HISTOGRAM_WORDS;
pub const BLOCK_READ: usize = 2 * HISTOGRAM_WORDS;
pub const BLOCK_WRITE: usize = 3 * HISTOGRAM_WORDS;
const SINGLE: usize = 4 * HISTOGRAM_WORDS;

/// The word of each counter.
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
pub const TCP_ACCEPTS: usize = SINGLE + 10;
pub const OOM_KILLS: usize = SINGLE + 11;
pub const PROCESSES_STARTED: usize = SINGLE + 12;
pub const PROCESSES_EXITED: usize = SINGLE + 13;

/// Requests by device: a slot for each of the first devices that a processor sees of an allocation, one for the rest.
pub const DEVICES: usize = SINGLE + 14;
pub const DEVICES_MAX: usize = 8;
/// The words of a slot: [`device_id`], which is 0 in a free slot, and the device's counters.
pub const DEVICE: usize = 0;
pub const DEVICE_READ_BYTES: usize = 1;
pub const DEVICE_WRITTEN_BYTES: usize = 2;
pub const DEVICE_READS: usize = 3;
pub const DEVICE_WRITES: usize = 4;
pub const DEVICE_READ_NS: usize = 5;
pub const DEVICE_WRITE_NS: usize = 6;
pub const DEVICE_WORDS: usize = 7;
/// The first word of the slot of all other devices.
pub const DEVICES_OTHER: usize = DEVICES + DEVICES_MAX * DEVICE_WORDS;

pub const WORDS: usize = DEVICES_OTHER + DEVICE_WORDS;

/// A device's numbers as one word, which is never 0.
pub const fn device_id(major: u32, minor: u32) -> u64 {
    1 << 63 | (major as u64) << 32 | minor as u64
}

/// The counters of one allocation on one processor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Words(pub [u64; WORDS]);

/// Indices of what belongs to no allocation: bytes of block requests, and requests that did not fit into their map.
pub const NODE_READ_BYTES: u32 = 0;
pub const NODE_WRITTEN_BYTES: u32 = 1;
pub const NODE_UNFIT: u32 = 2;
pub const NODE_WORDS: u32 = 3;

/// Limit of the counted allocations, including some that have just ended.
pub const ALLOCATIONS_MAX: u32 = 1024;
/// Limit of the block requests in progress.
pub const REQUESTS_MAX: u32 = 8192;

/// An offset that this kernel does not have.
pub const NO_OFFSET: u32 = u32::MAX;

/// One call of audited work: its arguments as the process gave them, and its result. `data` has `data_bytes` bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    pub cgroup: u64,
    /// Nanoseconds since boot.
    pub at_ns: u64,
    /// The process's id in the upper half, the thread's in the lower.
    pub pid_tid: u64,
    /// The group's id in the upper half, the user's in the lower.
    pub gid_uid: u64,
    pub result: i64,
    /// `O_…`
    pub flags: u64,
    /// `CALL_…`
    pub kind: u32,
    /// The call's number, or io_uring's operation.
    pub number: u32,
    /// The descriptor that the call was given.
    pub descriptor: i32,
    pub data_bytes: u32,
    /// The socket's `AF_…`, `SOCK_…` and `IPPROTO_…`; 0: not known.
    pub family: u16,
    pub socket_type: u16,
    pub protocol: u16,
    /// In network byte order.
    pub remote_port: u16,
    pub local_port: u16,
    /// Not 0: the memory that the process pointed to could not be read.
    pub unread: u16,
    /// The address of an accepted connection's other end; IPv4 in the first four bytes.
    pub remote: [u8; 16],
    pub command: [u8; 16],
    pub padding: u32,
    /// A path, with a 0 at its end, or an address as the process gave it.
    pub data: [u8; EVENT_DATA_BYTES],
}

/// The longest path that the kernel accepts, in bytes.
pub const EVENT_DATA_BYTES: usize = 4096;
/// Bytes of an event without its data.
pub const EVENT_BYTES: usize = core::mem::size_of::<Event>() - EVENT_DATA_BYTES;
/// Size of the buffer of events in bytes, and how many waiting bytes wake the agent.
pub const EVENTS_BYTES: u32 = 1 << 20;
pub const EVENTS_WAKE_BYTES: u64 = EVENTS_BYTES as u64 / 4;

/// Kinds of calls: the agent puts this kernel's number of each call into a map, with its kind.
pub const CALL_OPEN: u32 = 1;
pub const CALL_OPENAT: u32 = 2;
pub const CALL_OPENAT2: u32 = 3;
pub const CALL_CREAT: u32 = 4;
pub const CALL_CONNECT: u32 = 5;
pub const CALL_ACCEPT: u32 = 6;
/// A call of a 32-bit program, whose arguments are elsewhere: only the call is recorded, not its arguments.
pub const CALL_COMPAT: u32 = 7;
/// A request of io_uring, for which no call is seen: the request is recorded, not its result.
pub const CALL_URING: u32 = 8;
/// Flag in a call's number: the call of a 32-bit program.
pub const COMPAT: u32 = 1 << 31;
/// Limit of the call numbers in the map, including those of 32-bit programs.
pub const CALLS_MAX: u32 = 64;

/// io_uring's operations that are recorded (`IORING_OP_…`).
pub const URING_ACCEPT: u32 = 13;
pub const URING_CONNECT: u32 = 16;
pub const URING_OPENAT: u32 = 18;
pub const URING_OPENAT2: u32 = 28;
