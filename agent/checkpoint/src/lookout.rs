//! Looks every few seconds which processes catch their allocation's signal, before any request;
//! [`super::sightings`] remembers them.

use super::catching;
use super::handles::Shared;
use lattice_model::{CheckpointMethod, CheckpointSignal};
use lattice_registry::{AllocationHandle, RunState};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval of the looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(3);

/// Looks until `stop`.
pub async fn run(context: Shared, stop: CancellationToken) {
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let asked: Vec<(AllocationHandle, CheckpointSignal)> = context.allocations.all().into_iter().filter_map(asked_by_signal).collect();
        context.checkpoints.sightings().forget_all_but(&asked.iter().map(|(handle, _)| handle.share.allocation).collect());
        if asked.is_empty() {
            continue;
        }
        let shared = Arc::clone(&context);
        let looked = tokio::task::spawn_blocking(move || {
            for (handle, signal) in asked {
                if let Err(error) = look(&shared, &handle, signal) {
                    tracing::debug!(allocation = %handle.share.allocation, %error, "its processes cannot be examined");
                }
            }
        });
        if let Err(broke) = looked.await {
            tracing::warn!(%broke, "the look for processes that catch a signal panicked");
        }
    }
}

fn asked_by_signal(handle: AllocationHandle) -> Option<(AllocationHandle, CheckpointSignal)> {
    let policy = handle.share.spec.checkpoint?;
    let runs = *handle.run_state.borrow() == RunState::Running;
    (runs && policy.method == CheckpointMethod::Signal).then_some((handle, policy.signal))
}

fn look(context: &Shared, handle: &AllocationHandle, signal: CheckpointSignal) -> io::Result<()> {
    let (allocation, sightings) = (handle.share.allocation, context.checkpoints.sightings());
    let shim = handle.detail.borrow().shim_pid;
    for pid in sightings.unseen(allocation, &catching::of_work(context, allocation, shim)?) {
        if let Some(catching::Look::Catches(program)) = catching::look_at(pid, signal)? {
            sightings.record(allocation, pid, &program);
        }
    }
    Ok(())
}
