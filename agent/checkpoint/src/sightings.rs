//! Remembers processes that were seen to catch their allocation's signal before any request, so
//! that one more look is enough when a request comes.
//!
//! ```text
//!   every few seconds: who is new, or did not catch it ──▶ sightings ◀── first look of a request
//!                                                              └──▶ its second look: the same process, a moment ago
//! ```
//!
//! None of this outlives the agent: after a restart it looks at all processes again.
//!
//! A child between fork and exec shows its parent's handlers, so a process must be seen twice with
//! the same program. The first look need not be part of a request: every three seconds the agent
//! looks at the processes that it has not yet seen catch the signal ([`super::lookout`]).

use lattice_model::AllocationId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many processes of one allocation are remembered, and examined by one look. The rest are
/// examined when a request comes.
const PROCESSES_MAX: usize = 4096;

/// Least time between two looks at a process: longer than from fork to exec.
const LOOK_GAP_MIN: Duration = Duration::from_millis(20);

/// The program that a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub start_ticks: u64,
    /// Device and inode of its executable.
    pub device: (u32, u32),
    pub inode: u64,
}

/// The sightings of all allocations on this node. All clones share them.
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

    /// Records that a process catches the signal. Returns when this process was first seen catching
    /// it with this program.
    pub(super) fn record(&self, allocation: AllocationId, pid: i32, program: &Program) -> Instant {
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

    /// Records that a process does not catch the signal, or no longer does.
    pub(super) fn is_deaf(&self, allocation: AllocationId, pid: i32) {
        if let Some(seen) = self.all().get_mut(&allocation) {
            seen.remove(&pid);
        }
    }

    /// Which of the processes `present` were not seen catching the signal. Forgets processes that are
    /// gone.
    pub(super) fn unseen(&self, allocation: AllocationId, present: &BTreeSet<i32>) -> Vec<i32> {
        let mut all = self.all();
        let Some(seen) = all.get_mut(&allocation) else { return present.iter().copied().take(PROCESSES_MAX).collect() };
        seen.retain(|pid, _| present.contains(pid));
        present.iter().copied().filter(|pid| !seen.contains_key(pid)).take(PROCESSES_MAX).collect()
    }

    /// Forgets an allocation that has ended here.
    pub(super) fn forget(&self, allocation: AllocationId) {
        self.all().remove(&allocation);
    }

    pub(super) fn forget_all_but(&self, running: &BTreeSet<AllocationId>) {
        self.all().retain(|allocation, _| running.contains(allocation));
    }
}

/// How long to wait until a process that was first seen at `first_seen` counts as catching the
/// signal.
pub(super) fn unsure_for(first_seen: Instant) -> Duration {
    LOOK_GAP_MIN.saturating_sub(first_seen.elapsed())
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
    fn a_process_seen_before_is_not_waited_for_unless_it_was_replaced() {
        let sightings = Sightings::default();
        let first = sightings.record(id(), 7, &program(1, 1));
        assert!(unsure_for(first) > Duration::ZERO);
        std::thread::sleep(LOOK_GAP_MIN);
        assert_eq!(unsure_for(sightings.record(id(), 7, &program(1, 1))), Duration::ZERO);
        for other in [program(2, 1), program(2, 2)] {
            assert!(unsure_for(sightings.record(id(), 7, &other)) > Duration::ZERO, "{other:?}");
        }
        std::thread::sleep(LOOK_GAP_MIN);
        sightings.is_deaf(id(), 7);
        assert!(unsure_for(sightings.record(id(), 7, &program(2, 2))) > Duration::ZERO);
    }

    #[test]
    fn sightings_are_bounded_and_removed_with_their_processes() {
        let sightings = Sightings::default();
        let many: BTreeSet<i32> = (1..=i32::try_from(PROCESSES_MAX).unwrap() + 9).collect();
        assert_eq!(sightings.unseen(id(), &many).len(), PROCESSES_MAX);
        for pid in &many {
            sightings.record(id(), *pid, &program(1, 1));
        }
        assert_eq!(sightings.unseen(id(), &many).len(), 9);
        assert_eq!(sightings.unseen(id(), &[3, 99_999].into()), [99_999]);
        assert_eq!(sightings.unseen(id(), &[3, 4].into()), [4]);
        sightings.forget_all_but(&BTreeSet::new());
        assert_eq!(sightings.unseen(id(), &[3].into()), [3]);
    }
}
