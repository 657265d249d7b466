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

/// Requests by device: for the first devices that a processor saw of an allocation a place each, and one for all others.
pub const DEVICES: usize = SINGLE + 13;
pub const DEVICES_MAX: usize = 8;
/// In a place: [`device_id`], 0 where it is free, and what was counted of that device.
pub const DEVICE: usize = 0;
pub const DEVICE_READ_BYTES: usize = 1;
pub const DEVICE_WRITTEN_BYTES: usize = 2;
pub const DEVICE_READS: usize = 3;
pub const DEVICE_WRITES: usize = 4;
pub const DEVICE_READ_NS: usize = 5;
pub const DEVICE_WRITE_NS: usize = 6;
pub const DEVICE_WORDS: usize = 7;
/// Where the place of all other devices begins.
pub const DEVICES_OTHER: usize = DEVICES + DEVICES_MAX * DEVICE_WORDS;

pub const WORDS: usize = DEVICES_OTHER + DEVICE_WORDS;

/// A device's numbers as one word, which is never 0.
pub const fn device_id(major: u32, minor: u32) -> u64 {
    1 << 63 | (major as u64) << 32 | minor as u64
}

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

/// What work that is audited did: the arguments of one call as its process gave them, and the result. Of `data` only `data_bytes` follow.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    pub cgroup: u64,
    /// By the clock since the boot.
    pub at_ns: u64,
    /// The process's number in the upper half, the thread's in the lower.
    pub pid_tid: u64,
    /// The group in the upper half, the user in the lower.
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
    /// Of the socket, 0 where that is not known: `AF_…`, `SOCK_…`, `IPPROTO_…`
    pub family: u16,
    pub socket_type: u16,
    pub protocol: u16,
    /// As the network has it.
    pub remote_port: u16,
    pub local_port: u16,
    /// Not 0: what the process pointed to could not be read.
    pub unread: u16,
    /// An accepted connection's other end; of version 4 in the first four bytes.
    pub remote: [u8; 16],
    pub command: [u8; 16],
    pub padding: u32,
    /// A path, with a 0 at its end, or an address as the process gave it.
    pub data: [u8; EVENT_DATA_BYTES],
}

/// The longest path that the kernel takes.
pub const EVENT_DATA_BYTES: usize = 4096;
/// Without its data.
pub const EVENT_BYTES: usize = core::mem::size_of::<Event>() - EVENT_DATA_BYTES;
/// Bytes of events that wait for the agent, and how many wake it.
pub const EVENTS_BYTES: u32 = 1 << 20;
pub const EVENTS_WAKE_BYTES: u64 = EVENTS_BYTES as u64 / 4;

/// What kind of call one is: the agent puts the numbers that this machine's kernel has for them into a map.
pub const CALL_OPEN: u32 = 1;
pub const CALL_OPENAT: u32 = 2;
pub const CALL_OPENAT2: u32 = 3;
pub const CALL_CREAT: u32 = 4;
pub const CALL_CONNECT: u32 = 5;
pub const CALL_ACCEPT: u32 = 6;
/// Of a program for 32 bits, whose arguments lie elsewhere: that it called is told, and not what.
pub const CALL_COMPAT: u32 = 7;
/// By io_uring, where no call is seen: what was asked for is told, and not what came of it.
pub const CALL_URING: u32 = 8;
/// Beside a call's number: it is one of a program for 32 bits.
pub const COMPAT: u32 = 1 << 31;
/// Kinds of calls, with those of programs for 32 bits.
pub const CALLS_MAX: u32 = 64;

/// io_uring's operations that are told (`IORING_OP_…`).
pub const URING_ACCEPT: u32 = 13;
pub const URING_CONNECT: u32 = 16;
pub const URING_OPENAT: u32 = 18;
pub const URING_OPENAT2: u32 = 28;
