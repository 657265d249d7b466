//! Requests to block devices: their bytes, and the time from the request to the device's answer.
//!
//! A request belongs to the cgroup of the task that makes it. Tasks make the requests of direct I/O and of uncached
//! reads themselves. Cached data are written back later by the kernel's own threads, and count for no allocation here.

use crate::cgroup::{of_current, read};
use crate::counts::layout::{
    BLOCK_READ, BLOCK_READ_BYTES, BLOCK_WRITE, BLOCK_WRITTEN_BYTES, DEVICE_READ_BYTES, DEVICE_READ_NS, DEVICE_READS, DEVICE_WRITE_NS,
    DEVICE_WRITES, DEVICE_WRITTEN_BYTES, NO_OFFSET, NODE_READ_BYTES, NODE_UNFIT, NODE_WRITTEN_BYTES, REQUESTS_MAX, device_id,
};
use crate::counts::{Counts, node};
use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::{map, raw_tracepoint};
use aya_ebpf::maps::HashMap;
use aya_ebpf::programs::RawTracePointContext;

/// `request.cmd_flags`
#[unsafe(no_mangle)]
static REQUEST_FLAGS: Global<u32> = Global::new(NO_OFFSET);

/// `request.__data_len`: bytes that are not completed yet.
#[unsafe(no_mangle)]
static REQUEST_LENGTH: Global<u32> = Global::new(NO_OFFSET);

/// `request.q`
#[unsafe(no_mangle)]
static REQUEST_QUEUE: Global<u32> = Global::new(NO_OFFSET);

/// `request_queue.disk`
#[unsafe(no_mangle)]
static QUEUE_DISK: Global<u32> = Global::new(NO_OFFSET);

/// `gendisk.major`, with `first_minor` behind it.
#[unsafe(no_mangle)]
static DISK_NUMBERS: Global<u32> = Global::new(NO_OFFSET);

/// The operation in a request's flags, `REQ_OP_…`.
const OPERATION: u32 = 0xff;
const READ: u32 = 0;
const WRITE: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Began {
    cgroup: u64,
    at_ns: u64,
}

/// Requests in progress, by their addresses.
#[map]
static REQUESTS: HashMap<u64, Began> = HashMap::with_max_entries(REQUESTS_MAX, 0);

/// `block_io_start(struct request *rq)`
#[raw_tracepoint(tracepoint = "block_io_start")]
pub fn block_io_start(ctx: RawTracePointContext) -> i32 {
    let request: u64 = ctx.arg(0);
    // SAFETY: a helper without pointers.
    let began = Began { cgroup: of_current(), at_ns: unsafe { bpf_ktime_get_ns() } };
    if REQUESTS.insert(&request, &began, 0).is_err() {
        node(NODE_UNFIT, 1);
    }
    0
}

/// `block_rq_complete(struct request *rq, blk_status_t error, unsigned int nr_bytes)`. A device may complete a request
/// in parts; the last part ends its duration.
#[raw_tracepoint(tracepoint = "block_rq_complete")]
pub fn block_rq_complete(ctx: RawTracePointContext) -> i32 {
    let (request, bytes): (u64, u64) = (ctx.arg(0), ctx.arg(2));
    let bytes = bytes & 0xffff_ffff;
    // SAFETY: only this program removes a request's entry, and no two processors complete one request at the same time.
    let Some(began) = (unsafe { REQUESTS.get(&request) }).copied() else {
        return 0;
    };
    // The kernel subtracts the completed bytes only after this tracepoint.
    let is_last = read::<u32>(request, REQUEST_LENGTH.load()).is_none_or(|left| bytes >= left as u64);
    if is_last {
        let _ = REQUESTS.remove(&request);
    }
    let Some(flags) = read::<u32>(request, REQUEST_FLAGS.load()) else {
        return 0;
    };
    let (histogram, word, of_nobody, of_device) = match flags & OPERATION {
        READ => (BLOCK_READ, BLOCK_READ_BYTES, NODE_READ_BYTES, [DEVICE_READ_BYTES, DEVICE_READS, DEVICE_READ_NS]),
        WRITE => (BLOCK_WRITE, BLOCK_WRITTEN_BYTES, NODE_WRITTEN_BYTES, [DEVICE_WRITTEN_BYTES, DEVICE_WRITES, DEVICE_WRITE_NS]),
        _ => return 0,
    };
    let Some(counts) = Counts::of(began.cgroup) else {
        node(of_nobody, bytes);
        return 0;
    };
    // SAFETY: a helper without pointers.
    let took_ns = unsafe { bpf_ktime_get_ns() }.saturating_sub(began.at_ns);
    counts.add(word, bytes);
    if is_last {
        counts.took(histogram, took_ns);
    }
    if DISK_NUMBERS.load() != NO_OFFSET {
        let place = counts.device(device(request));
        let [bytes_at, requests_at, ns_at] = of_device;
        counts.add(place + bytes_at, bytes);
        if is_last {
            counts.add(place + requests_at, 1);
            counts.add(place + ns_at, took_ns);
        }
    }
    0
}

/// The whole disk that a request is for.
#[inline(always)]
fn device(request: u64) -> Option<u64> {
    let queue: u64 = read(request, REQUEST_QUEUE.load())?;
    let disk: u64 = read(queue, QUEUE_DISK.load())?;
    let [major, minor] = read::<[u32; 2]>(disk, DISK_NUMBERS.load())?;
    Some(device_id(major, minor))
}
