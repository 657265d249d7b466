//! Processes that start, end, and are killed because memory is short.

use crate::cgroup::{of_current, of_task, read};
use crate::counts::Counts;
use crate::counts::layout::{NO_OFFSET, OOM_KILLS, PROCESSES_EXITED, PROCESSES_STARTED};
use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;

/// `task_struct.pid`, with `tgid` behind it.
#[unsafe(no_mangle)]
static TASK_PID: Global<u32> = Global::new(NO_OFFSET);

/// `sched_process_fork(struct task_struct *parent, struct task_struct *child)`. A child may start in another cgroup.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn sched_process_fork(ctx: RawTracePointContext) -> i32 {
    let child: u64 = ctx.arg(1);
    if let Some([pid, tgid]) = read::<[i32; 2]>(child, TASK_PID.load())
        && pid == tgid
        && let Some(counts) = of_task(child).and_then(Counts::of)
    {
        counts.add(PROCESSES_STARTED, 1);
    }
    0
}

/// `sched_process_exit(struct task_struct *p, …)`, in the ending thread. Only a process's first thread counts.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn sched_process_exit(_ctx: RawTracePointContext) -> i32 {
    let both = bpf_get_current_pid_tgid();
    if (both >> 32) as u32 == both as u32
        && let Some(counts) = Counts::of(of_current())
    {
        counts.add(PROCESSES_EXITED, 1);
    }
    0
}

/// `mark_victim(struct task_struct *task, uid_t uid)`
#[raw_tracepoint(tracepoint = "mark_victim")]
pub fn mark_victim(ctx: RawTracePointContext) -> i32 {
    if let Some(counts) = of_task(ctx.arg(0)).and_then(Counts::of) {
        counts.add(OOM_KILLS, 1);
    }
    0
}
