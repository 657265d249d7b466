//! Processes that were seen to catch their allocation's signal before anybody asked for it: one look is enough for them when somebody
//! does.
//!
//! ```text
//!   every few seconds: who is new, or did not catch it ──▶ sightings ◀── first look of a request
//!                                                              └──▶ its second look: the same process, a moment ago
//! ```
//!
//! Nothing of it outlives the agent: its next life looks anew.

use super::catching::{self, MOMENT, Program};
use crate::allocation::{AllocationHandle, Standing};
use crate::context::Shared;
use lattice_model::{AllocationId, AskBy, AskSignal};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Between two looks.
const LOOKS: Duration = Duration::from_secs(3);
/// Processes of one allocation that are remembered, and that are looked at each time. The rest are looked at when they are asked.
const PROCESSES_MAX: usize = 4096;

/// Of all allocations of this node. Cloneable; all clones are one.
#[derive(Clone, Default)]
pub struct Sightings(Arc<Mutex<BTreeMap<AllocationId, BTreeMap<i32, Sighting>>>>);

struct Sighting {
    program: Program,
    at: Instant,
}

impl Sightings {
    fn all(&self) -> MutexGuard<'_, BTreeMap<AllocationId, BTreeMap<i32, Sighting>>> {
        self.0.lock()
    }

    /// A process was seen to catch the signal. Gives when this very program of it was first seen to.
    pub(super) fn saw(&self, allocation: AllocationId, pid: i32, program: &Program) -> Instant {
        let now = Instant::now();
        let mut all = self.all();
        let seen = all.entry(allocation).or_default();
        match seen.get(&pid) {
            Some(before) if before.program == *program => before.at,
            known => {
                if known.is_some() || seen.len() < PROCESSES_MAX {
                    seen.insert(pid, Sighting { program: *program, at: now });
                }
                now
            }
        }
    }

    /// A process is there and does not catch it, or does not any more.
    pub(super) fn is_deaf(&self, allocation: AllocationId, pid: i32) {
        if let Some(seen) = self.all().get_mut(&allocation) {
            seen.remove(&pid);
        }
    }

    /// Which of these were not seen to catch it. Others that were are not there any more.
    fn unseen(&self, allocation: AllocationId, there: &BTreeSet<i32>) -> Vec<i32> {
        let mut all = self.all();
        let Some(seen) = all.get_mut(&allocation) else { return there.iter().copied().take(PROCESSES_MAX).collect() };
        seen.retain(|pid, _| there.contains(pid));
        there.iter().copied().filter(|pid| !seen.contains_key(pid)).take(PROCESSES_MAX).collect()
    }

    /// The allocation is over here.
    pub(super) fn forget(&self, allocation: AllocationId) {
        self.all().remove(&allocation);
    }

    fn forget_all_but(&self, running: &BTreeSet<AllocationId>) {
        self.all().retain(|allocation, _| running.contains(allocation));
    }
}

/// Looks until `stop`.
pub async fn run(context: Shared, stop: CancellationToken) {
    let mut looks = tokio::time::interval(LOOKS);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let asked: Vec<(AllocationHandle, AskSignal)> = context.workers.all().into_iter().filter_map(asked_by_signal).collect();
        context.checkpoints.sightings().forget_all_but(&asked.iter().map(|(worker, _)| worker.share.allocation).collect());
        if asked.is_empty() {
            continue;
        }
        let shared = Arc::clone(&context);
        let looked = tokio::task::spawn_blocking(move || {
            for (worker, signal) in asked {
                if let Err(error) = look(&shared, &worker, signal) {
                    tracing::debug!(allocation = %worker.share.allocation, %error, "what runs there cannot be looked at");
                }
            }
        });
        if let Err(broke) = looked.await {
            tracing::warn!(%broke, "looking at what catches a signal broke");
        }
    }
}

fn asked_by_signal(worker: AllocationHandle) -> Option<(AllocationHandle, AskSignal)> {
    let policy = worker.share.spec.checkpoint?;
    let runs = *worker.standing.borrow() == Standing::Running;
    (runs && policy.by == AskBy::Signal).then_some((worker, policy.signal))
}

fn look(context: &Shared, worker: &AllocationHandle, signal: AskSignal) -> io::Result<()> {
    let (allocation, sightings) = (worker.share.allocation, context.checkpoints.sightings());
    let shim = worker.detail.borrow().shim_pid;
    for pid in sightings.unseen(allocation, &catching::of_work(context, allocation, shim)?) {
        if let Some(catching::Look::Catches(program)) = catching::look_at(pid, signal)? {
            sightings.saw(allocation, pid, &program);
        }
    }
    Ok(())
}

/// How long a process that was first seen to catch it then must still be waited for, before it counts as one that does.
pub(super) fn unsure_for(first_seen: Instant) -> Duration {
    MOMENT.saturating_sub(first_seen.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> AllocationId {
        "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap()
    }

    fn program(start_ticks: u64, inode: u64) -> Program {
        Program { start_ticks, device: (8, 1), inode }
    }

    #[test]
    fn who_was_seen_long_enough_ago_is_not_waited_for_unless_it_is_another_by_now() {
        let sightings = Sightings::default();
        let first = sightings.saw(id(), 7, &program(1, 1));
        assert!(unsure_for(first) > Duration::ZERO);
        std::thread::sleep(MOMENT);
        assert_eq!(unsure_for(sightings.saw(id(), 7, &program(1, 1))), Duration::ZERO);
        for other in [program(2, 1), program(2, 2)] {
            assert!(unsure_for(sightings.saw(id(), 7, &other)) > Duration::ZERO, "{other:?}");
        }
        std::thread::sleep(MOMENT);
        sightings.is_deaf(id(), 7);
        assert!(unsure_for(sightings.saw(id(), 7, &program(2, 2))) > Duration::ZERO);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_goes_with_its_processes() {
        let sightings = Sightings::default();
        let many: BTreeSet<i32> = (1..=i32::try_from(PROCESSES_MAX).unwrap() + 9).collect();
        assert_eq!(sightings.unseen(id(), &many).len(), PROCESSES_MAX);
        for pid in &many {
            sightings.saw(id(), *pid, &program(1, 1));
        }
        assert_eq!(sightings.unseen(id(), &many).len(), 9);
        assert_eq!(sightings.unseen(id(), &[3, 99_999].into()), [99_999]);
        assert_eq!(sightings.unseen(id(), &[3, 4].into()), [4]);
        sightings.forget_all_but(&BTreeSet::new());
        assert_eq!(sightings.unseen(id(), &[3].into()), [3]);
    }
}
