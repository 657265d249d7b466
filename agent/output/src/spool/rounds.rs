//! Looks in rounds at output that does not grow at present: one task and one thread wake up for all
//! allocations together.
//!
//! ```text
//!   look ──▶ waiting ─ the time between two rounds ─▶ one after the other ──▶ each gets its own result
//! ```
//!
//! A spool that arrives while others wait shares their round, so it waits for less than the
//! interval: after one round all spools have the same rhythm.

use super::Spool;
use crate::output_index::Seen;
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The result of a look, and how long it took.
pub(super) type Looked = (io::Result<Vec<Seen>>, Duration);

/// Spools that wait for a look, and where its result goes.
type Waiting = Vec<(Arc<Spool>, oneshot::Sender<Looked>)>;

/// The spools that wait for the next round.
pub(super) struct Rounds {
    every: Duration,
    waiting: Mutex<Waiting>,
}

impl Rounds {
    /// `every`: time between two rounds.
    pub(super) fn new(every: Duration) -> Arc<Self> {
        Arc::new(Self { every, waiting: Mutex::default() })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }

    /// Waits for the next round, which begins within the time between two rounds, and returns its
    /// result for this spool. `None`: the agent stops.
    pub(super) async fn look(self: &Arc<Self>, spool: &Arc<Spool>, tasks: &TaskTracker, stop: &CancellationToken) -> Option<Looked> {
        let (reply, answer) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting();
            waiting.push((Arc::clone(spool), reply));
            waiting.len() == 1
        };
        if is_first {
            let (rounds, stop) = (Arc::clone(self), stop.clone());
            tasks.spawn(async move {
                let waited = stop.run_until_cancelled(tokio::time::sleep(rounds.every)).await;
                let waiting = std::mem::take(&mut *rounds.waiting());
                // An agent that stops does not wait for a disk.
                if waited.is_some() {
                    let _ = tokio::task::spawn_blocking(move || all(waiting)).await;
                }
            });
        }
        answer.await.ok()
    }
}

/// Looks at each spool whose caller still waits. Blocks.
fn all(waiting: Waiting) {
    for (spool, reply) in waiting {
        if !reply.is_closed() {
            let begun = Instant::now();
            let seen = spool.look(None);
            // If the caller has gone meanwhile, nobody needs the result.
            let _ = reply.send((seen, begun.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output_index::{Index, VERSION};
    use lattice_model::Epoch;
    use lattice_runtime::shim::ShimDir;
    use std::path::Path;

    fn spool(dir: &Path) -> Arc<Spool> {
        let index = Index {
            version: VERSION,
            allocation: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
            epoch: Epoch(1),
            node: "n1".parse().unwrap(),
            nodes: Vec::new(),
            tenant: String::new(),
            project: String::new(),
            owner_uid: 0,
            owner: String::new(),
            complete: false,
            streams: Vec::new(),
        };
        Spool::new(ShimDir(dir.to_owned()), index)
    }

    #[tokio::test]
    async fn one_round_answers_every_waiting_spool_and_skips_those_that_left() {
        let top = std::env::temp_dir().join(format!("lattice-rounds-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&top);
        let [there, not_there, gone] = ["there", "not-there", "gone"].map(|name| spool(&top.join(name)));
        std::fs::create_dir_all(there.dir.logs()).unwrap();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let rounds = Rounds::new(Duration::from_millis(100));
        let began = Instant::now();
        let leaves = async { tokio::time::timeout(Duration::ZERO, rounds.look(&gone, &tasks, &stop)).await };
        let (left, seen, none) = tokio::join!(leaves, rounds.look(&there, &tasks, &stop), rounds.look(&not_there, &tasks, &stop));
        assert!(left.is_err() && began.elapsed() >= rounds.every);
        assert_eq!(seen.unwrap().0.unwrap().len(), 0);
        assert_eq!(none.unwrap().0.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(rounds.waiting().is_empty());
        stop.cancel();
        assert!(rounds.look(&there, &tasks, &stop).await.is_none(), "the agent stops");
        std::fs::remove_dir_all(&top).unwrap();
    }
}
