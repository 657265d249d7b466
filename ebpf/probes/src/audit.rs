//! Records the files that audited work opens and the connections that it makes, one event each.
//!
//! Each call is recorded when it returns. Then its arguments are still in the registers, the pages that they point to
//! are in memory because the kernel has just read them, and the result is known. No state is kept during a call: a call
//! that began before the program was attached is recorded, and no entry is left behind. Changes that another thread
//! makes to the arguments meanwhile are not seen; a program at the beginning of the call would not see them either.
//!
//! These programs are attached only while work on the node is audited, because they slow every system call on the node.

use crate::cgroup::{of_current, read};
use crate::counts::add_at;
use crate::counts::layout::{
    ALLOCATIONS_MAX, CALL_ACCEPT, CALL_CONNECT, CALL_CREAT, CALL_OPEN, CALL_OPENAT, CALL_OPENAT2, CALL_URING, CALLS_MAX, COMPAT,
    EVENT_BYTES, EVENT_DATA_BYTES, EVENTS_BYTES, EVENTS_WAKE_BYTES, Event, NO_OFFSET, URING_ACCEPT, URING_CONNECT, URING_OPENAT,
    URING_OPENAT2,
};
use aya_ebpf::Global;
use aya_ebpf::helpers::generated::{
    bpf_get_current_comm, bpf_get_current_task, bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str, bpf_probe_read_user,
    bpf_probe_read_user_str, bpf_ringbuf_output,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_uid_gid, bpf_probe_read_user as read_user};
use aya_ebpf::macros::{map, raw_tracepoint};
use aya_ebpf::maps::{HashMap, PerCpuArray, RingBuf};
use aya_ebpf::programs::RawTracePointContext;
use core::hint::black_box;

macro_rules! offsets {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[unsafe(no_mangle)] static $name: Global<u32> = Global::new(NO_OFFSET);)*
    };
}

offsets! {
    /// The call's number in its registers, and its first three arguments.
    REGS_NUMBER;
    REGS_FIRST;
    REGS_SECOND;
    REGS_THIRD;
    /// The flags word that marks a task as inside a 32-bit call.
    TASK_COMPAT;
    /// From a descriptor to its socket: `task_struct.files`, `files_struct.fdt`, `fdtable.fd`, `file.private_data`,
    /// `socket.sk`. From the socket back to its file: `socket.file`.
    TASK_FILES;
    FILES_TABLE;
    TABLE_FILES;
    FILE_PRIVATE;
    SOCKET_FILE;
    SOCKET_SOCK;
    /// `sock_common.skc_family`, `.skc_daddr`, `.skc_v6_daddr`, `.skc_dport` with `skc_num` behind it.
    SOCK_FAMILY;
    SOCK_REMOTE4;
    SOCK_REMOTE6;
    SOCK_PORTS;
    /// `sock.sk_protocol`, `.sk_type`: which of the two is first depends on the kernel.
    SOCK_PROTOCOL;
    SOCK_TYPE;
    /// `io_kiocb.opcode`; `io_kiocb.cmd`, an `io_open` if a file is opened; `io_open.filename`, `filename.name`
    URING_OPERATION;
    URING_COMMAND;
    OPEN_FILENAME;
    FILENAME_NAME;
}

/// The bit in `TASK_COMPAT`'s word.
#[unsafe(no_mangle)]
static COMPAT_MASK: Global<u32> = Global::new(0);

const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_RB_NO_WAKEUP: u64 = 1;
const BPF_RB_FORCE_WAKEUP: u64 = 2;
const BPF_RB_AVAIL_DATA: u64 = 0;
const AF_INET6: u16 = 10;
/// Largest size of a socket address in bytes: Unix sockets have the longest ones.
const ADDRESS_BYTES: usize = 128;

/// Cgroup id → number of events that did not fit. Only the agent inserts and removes entries.
#[map]
static AUDITED: HashMap<u64, u64> = HashMap::with_max_entries(ALLOCATIONS_MAX, BPF_F_NO_PREALLOC);

/// A call's number → its kind.
#[map]
static CALLS: HashMap<u32, u32> = HashMap::with_max_entries(CALLS_MAX, 0);

#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(EVENTS_BYTES, 0);

/// Buffers in which events are built, one for each program.
#[map]
static EVENT: PerCpuArray<Event> = PerCpuArray::with_max_entries(2, 0);
const OF_CALLS: u32 = 0;
const OF_URING: u32 = 1;

/// `sys_exit(struct pt_regs *regs, long ret)`
#[raw_tracepoint(tracepoint = "sys_exit")]
pub fn sys_exit(ctx: RawTracePointContext) -> i32 {
    let cgroup = of_current();
    let Some(lost) = AUDITED.get_ptr_mut(&cgroup) else {
        return 0;
    };
    let (regs, result): (u64, i64) = (ctx.arg(0), ctx.arg(1));
    let Some(number) = read::<u32>(regs, REGS_NUMBER.load()) else {
        return 0;
    };
    let compat = if is_compat() { COMPAT } else { 0 };
    // SAFETY: only the agent writes the map, before this program is attached.
    let Some(&kind) = (unsafe { CALLS.get(&(number | compat)) }) else {
        return 0;
    };
    // No connection arrived: a server that polls causes no events.
    if kind == CALL_ACCEPT && result < 0 {
        return 0;
    }
    let Some(event) = begin(OF_CALLS, cgroup, (kind, number), result) else {
        return 0;
    };
    let (Some(first), Some(second), Some(third)) =
        (read::<u64>(regs, REGS_FIRST.load()), read::<u64>(regs, REGS_SECOND.load()), read::<u64>(regs, REGS_THIRD.load()))
    else {
        return 0;
    };
    match kind {
        CALL_OPEN | CALL_CREAT => {
            event.flags = if kind == CALL_OPEN { second } else { 0 };
            path(event, first);
        }
        CALL_OPENAT | CALL_OPENAT2 => {
            event.descriptor = first as i32;
            // The first member of `struct open_how` is its flags.
            // SAFETY: the helper reads the memory, or fails.
            event.flags = if kind == CALL_OPENAT { third } else { unsafe { read_user(third as *const u64) }.unwrap_or(0) };
            path(event, second);
        }
        CALL_CONNECT => {
            event.descriptor = first as i32;
            address(event, second, third as u32 as usize);
            let _not_a_socket = socket(event, first as i32);
        }
        CALL_ACCEPT => {
            event.descriptor = first as i32;
            let _closed_meanwhile = socket(event, result as i32).and_then(|sock| ends(event, sock));
        }
        _ => {}
    }
    send(event, lost);
    0
}

/// `io_uring_submit_req(struct io_kiocb *req)`: the request is prepared.
#[raw_tracepoint(tracepoint = "io_uring_submit_req")]
pub fn io_uring_submit_req(ctx: RawTracePointContext) -> i32 {
    let cgroup = of_current();
    let Some(lost) = AUDITED.get_ptr_mut(&cgroup) else {
        return 0;
    };
    let request: u64 = ctx.arg(0);
    let Some(operation) = read::<u8>(request, URING_OPERATION.load()).map(u32::from) else {
        return 0;
    };
    if !matches!(operation, URING_ACCEPT | URING_CONNECT | URING_OPENAT | URING_OPENAT2) {
        return 0;
    }
    let Some(event) = begin(OF_URING, cgroup, (CALL_URING, operation), 0) else {
        return 0;
    };
    if matches!(operation, URING_OPENAT | URING_OPENAT2) {
        let command = request + u64::from(URING_COMMAND.load());
        let name = read::<u64>(command, OPEN_FILENAME.load()).and_then(|filename| read::<u64>(filename, FILENAME_NAME.load()));
        // SAFETY: the helper writes at most as many bytes as there are, and fails where nothing can be read.
        let bytes =
            unsafe { bpf_probe_read_kernel_str(event.data.as_mut_ptr().cast(), EVENT_DATA_BYTES as u32, name.unwrap_or(0) as *const _) };
        has(event, bytes);
    }
    send(event, lost);
    0
}

/// Whether this is a 32-bit call: the same numbers mean other calls there.
#[inline(always)]
fn is_compat() -> bool {
    // SAFETY: a helper without pointers.
    let task = unsafe { bpf_get_current_task() };
    read::<u32>(task, TASK_COMPAT.load()).is_some_and(|flags| flags & COMPAT_MASK.load() != 0)
}

#[inline(always)]
fn begin(place: u32, cgroup: u64, (kind, number): (u32, u32), result: i64) -> Option<&'static mut Event> {
    // SAFETY: each processor and program has its own buffer, and a program is not started while it runs on a processor.
    let event = unsafe { &mut *EVENT.get_ptr_mut(place)? };
    event.cgroup = cgroup;
    // SAFETY: a helper without pointers.
    event.at_ns = unsafe { bpf_ktime_get_boot_ns() };
    event.pid_tid = bpf_get_current_pid_tgid();
    event.gid_uid = bpf_get_current_uid_gid();
    (event.result, event.flags) = (result, 0);
    (event.kind, event.number, event.descriptor, event.data_bytes) = (kind, number, 0, 0);
    (event.family, event.socket_type, event.protocol, event.remote_port, event.local_port, event.unread) = (0, 0, 0, 0, 0, 0);
    event.remote = [0; 16];
    // SAFETY: the helper writes all 16 bytes.
    let _ = unsafe { bpf_get_current_comm(event.command.as_mut_ptr().cast(), 16) };
    Some(event)
}

/// Copies a path from the process's memory.
#[inline(always)]
fn path(event: &mut Event, at: u64) {
    // SAFETY: the helper writes at most as many bytes as there are, and fails where nothing can be read.
    let bytes = unsafe { bpf_probe_read_user_str(event.data.as_mut_ptr().cast(), EVENT_DATA_BYTES as u32, at as *const _) };
    has(event, bytes);
}

#[inline(always)]
fn has(event: &mut Event, bytes: i64) {
    match bytes {
        0.. => event.data_bytes = bytes as u32,
        _ => event.unread = 1,
    }
}

/// Copies a socket address from the process's memory.
#[inline(always)]
fn address(event: &mut Event, at: u64, bytes: usize) {
    // The verifier must see the bound on the same value that the helper gets.
    let bytes = black_box(if bytes > ADDRESS_BYTES { ADDRESS_BYTES } else { bytes });
    if bytes > ADDRESS_BYTES {
        return;
    }
    // SAFETY: `data` has space for so many bytes, and the helper fails if the memory cannot be read.
    match unsafe { bpf_probe_read_user(event.data.as_mut_ptr().cast(), bytes as u32, at as *const _) } {
        0 => event.data_bytes = bytes as u32,
        _ => event.unread = 1,
    }
}

/// Records a descriptor's kind of socket; returns the socket's address. Another thread may have opened another file as
/// this descriptor, whose private data must not be recorded: a socket refers to its file, so that it can be checked.
#[inline(always)]
fn socket(event: &mut Event, descriptor: i32) -> Option<u64> {
    if descriptor < 0 {
        return None;
    }
    // SAFETY: a helper without pointers.
    let task = unsafe { bpf_get_current_task() };
    let files: u64 = read(task, TASK_FILES.load())?;
    let table: u64 = read(files, FILES_TABLE.load())?;
    let all: u64 = read(table, TABLE_FILES.load())?;
    let file: u64 = read(all + 8 * descriptor as u64, 0)?;
    let socket: u64 = read(file, FILE_PRIVATE.load())?;
    if read::<u64>(socket, SOCKET_FILE.load())? != file {
        return None;
    }
    let sock: u64 = read(socket, SOCKET_SOCK.load())?;
    event.family = read(sock, SOCK_FAMILY.load())?;
    event.protocol = read(sock, SOCK_PROTOCOL.load())?;
    event.socket_type = read(sock, SOCK_TYPE.load())?;
    Some(sock)
}

/// Records the other end of a connection, and our port.
#[inline(always)]
fn ends(event: &mut Event, sock: u64) -> Option<()> {
    [event.remote_port, event.local_port] = read(sock, SOCK_PORTS.load())?;
    if event.family == AF_INET6 {
        event.remote = read(sock, SOCK_REMOTE6.load())?;
    } else {
        let [a, b, c, d] = read::<[u8; 4]>(sock, SOCK_REMOTE4.load())?;
        (event.remote[0], event.remote[1], event.remote[2], event.remote[3]) = (a, b, c, d);
    }
    Some(())
}

/// Gives the event to the agent, which polls several times a second and is woken only when many events wait.
#[inline(always)]
fn send(event: &mut Event, lost: *mut u64) {
    let flags = if EVENTS.query(BPF_RB_AVAIL_DATA) >= EVENTS_WAKE_BYTES { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    let bytes = black_box(EVENT_BYTES as u64 + u64::from(event.data_bytes));
    if bytes > (EVENT_BYTES + EVENT_DATA_BYTES) as u64 {
        return;
    }
    let event: *mut Event = event;
    // SAFETY: the event has at least this many bytes; the map is a ring buffer.
    let sent = unsafe { bpf_ringbuf_output((&raw const EVENTS).cast_mut().cast(), event.cast(), bytes, flags) };
    if sent != 0 {
        // SAFETY: a word of a map's value.
        unsafe { add_at(lost, 1) };
    }
}
