//! Looks every few seconds which processes catch their allocation's signal, before any request;
//! [`super::sightings`] remembers them.

use super::catching;
use super::handles::Shared;
use lattice_model::{AskBy, AskSignal};
use lattice_registry::{AllocationHandle, Standing};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval of the looks.
const LOOKS: Duration = Duration::from_secs(3);

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
                    tracing::debug!(allocation = %worker.share.allocation, %error, "its processes cannot be examined");
                }
            }
        });
        if let Err(broke) = looked.await {
            tracing::warn!(%broke, "the look for processes that catch a signal panicked");
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
