//! Context switches: their number, the length of each stint on a processor, and the wait before each stint.
//!
//! All of it is counted when a task leaves its processor: only then its cgroup is known without a search. The state at
//! the task's arrival is stored for each processor. The kernel sums in each task how long it has waited for processors;
//! the difference between two readings is the wait before this stint, so no program is needed at wakeups. A wait on
//! another processor, from which the task was moved, is already in the first reading and is not counted.

use crate::cgroup::{of_current, read};
use crate::counts::Counts;
use crate::counts::layout::{NO_OFFSET, ON_CPU, RUN_QUEUE, SWITCHES_INVOLUNTARY, SWITCHES_VOLUNTARY};
use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::{map, raw_tracepoint};
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::RawTracePointContext;

/// `task_struct.sched_info.run_delay`: nanoseconds for which it waited for processors.
#[unsafe(no_mangle)]
static TASK_RUN_DELAY: Global<u32> = Global::new(NO_OFFSET);

/// The task that has a processor now, and the state when it got the processor.
#[repr(C)]
struct Stint {
    task: u64,
    since_ns: u64,
    waited_ns: u64,
}

#[map]
static STINT: PerCpuArray<Stint> = PerCpuArray::with_max_entries(1, 0);

/// `sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)`
#[raw_tracepoint(tracepoint = "sched_switch")]
pub fn sched_switch(ctx: RawTracePointContext) -> i32 {
    let (preempted, leaves, comes, state): (u64, u64, u64, u64) = (ctx.arg(0), ctx.arg(1), ctx.arg(2), ctx.arg(3));
    let Some(stint) = STINT.get_ptr_mut(0) else { return 0 };
    // SAFETY: only this processor uses it, and nothing interrupts: interrupts are off while tasks are switched.
    let stint = unsafe { &mut *stint };
    // SAFETY: a helper without pointers.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if let Some(counts) = Counts::of(of_current()) {
        // The kernel's own rule for nvcsw and nivcsw.
        let voluntary = preempted as u8 == 0 && state as u32 != 0;
        counts.add_alone(if voluntary { SWITCHES_VOLUNTARY } else { SWITCHES_INVOLUNTARY }, 1);
        // The task got its processor after this program was attached.
        if stint.task == leaves {
            counts.took_alone(ON_CPU, now_ns.saturating_sub(stint.since_ns));
            if let Some(waited_ns) = waited(leaves) {
                counts.took_alone(RUN_QUEUE, waited_ns.saturating_sub(stint.waited_ns));
            }
        }
    }
    stint.task = comes;
    stint.since_ns = now_ns;
    stint.waited_ns = waited(comes).unwrap_or(0);
    0
}

#[inline(always)]
fn waited(task: u64) -> Option<u64> {
    let offset = TASK_RUN_DELAY.load();
    if offset == NO_OFFSET { None } else { read(task, offset) }
}
