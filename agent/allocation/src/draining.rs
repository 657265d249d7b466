//! How a replica leaves when its service needs fewer replicas: it gets the signal that its owner
//! chose, and then a limited time to end by itself.
//!
//! ```text
//!   order ──▶ its time begins (a note on the disk) ──▶ signal, if there is one ──▶ it ends by itself
//!                                                                               ╰─▶ its time is over
//! ```
//!
//! The signal goes to the ranks of its launches, or, if it has none, to its script. A restarted
//! agent continues with the noted time. It sends the signal again only if it was killed before it
//! had noted the shim's answer, so work may get the signal twice. If somebody else needs its node
//! sooner, the quorum's list has a shorter time for the same order, and the shorter time counts.

use crate::handles::Shared;
use lattice_agent_common::files;
use lattice_agent_common::node_view::NodeView;
use lattice_model::{DesiredShare, PreemptCause, Preemption};
use lattice_registry::{AllocationHandle, RunState, SignalError};
use lattice_runtime::shim::{ShimDir, SignalTarget, boottime_ms};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The pause between two tries to send the signal.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// What is known about a replica that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    /// When its time began, in milliseconds since boot.
    began_ms: u64,
    /// Whether it got the signal.
    is_signalled: bool,
}

impl Note {
    /// The note about this order; `None`: there is none.
    async fn read(share: &DesiredShare, order: &Preemption, dir: &ShimDir) -> Option<Self> {
        let path = dir.drain();
        let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await.ok()?.ok()?;
        let (began_ms, rest) = text.split_once(' ')?;
        let (is_signalled, rest) = rest.split_once(' ')?;
        let note = Self { began_ms: began_ms.parse().ok()?, is_signalled: is_signalled.parse().ok()? };
        (rest == name(share, order)).then_some(note)
    }

    async fn write(self, share: &DesiredShare, order: &Preemption, dir: &ShimDir) {
        let Self { began_ms, is_signalled } = self;
        let (path, text) = (dir.drain(), format!("{began_ms} {is_signalled} {}", name(share, order)));
        let written = tokio::task::spawn_blocking(move || files::replace_for_boot(&path, text.as_bytes())).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(allocation = %share.allocation, %error, "the time in which a replica must leave could not be saved: it begins anew if the agent is restarted");
        }
    }

    /// How much of its time is left.
    fn left(self, time_ms: u64) -> Duration {
        let used_ms = boottime_ms().saturating_sub(self.began_ms);
        Duration::from_millis(time_ms.saturating_sub(used_ms))
    }
}

/// Identifies an order for one claim.
fn name(share: &DesiredShare, order: &Preemption) -> String {
    format!("{} {}", share.epoch, order.id)
}

/// The order about this claim in a list of the quorum.
fn listed<'a>(view: &'a NodeView, share: &DesiredShare) -> Option<&'a Preemption> {
    let local = view.locals.iter().find(|local| (local.share.allocation, local.share.epoch) == (share.allocation, share.epoch))?;
    local.share.preempt.as_ref()
}

/// Whether the replica was asked to leave, by the quorum's newest list.
pub(super) fn is_leaving(context: &Shared, share: &DesiredShare) -> bool {
    listed(&context.view.borrow(), share).is_some_and(|order| order.cause == PreemptCause::ScaleDown)
}

/// Waits until the replica's time is over, and returns that time in milliseconds. A shorter time in the list
/// counts.
async fn wait_for_time(mut view: watch::Receiver<Arc<NodeView>>, share: &DesiredShare, order: &Preemption, note: Note) -> u64 {
    let mut time_ms = order.deadline_ms;
    loop {
        let newest_ms = listed(&view.borrow_and_update(), share).filter(|newest| newest.id == order.id).map(|newest| newest.deadline_ms);
        time_ms = newest_ms.map_or(time_ms, |newest_ms| newest_ms.min(time_ms));
        let left = note.left(time_ms);
        if left.is_zero() {
            return time_ms;
        }
        tokio::select! {
            () = tokio::time::sleep(left) => {}
            // When the driver has ended, this branch is disabled: the list changes no more.
            Ok(()) = view.changed() => {}
        }
    }
}

/// Waits until the replica's time is over, and returns that time in milliseconds. `None`: the replica ends
/// for another reason, or by itself.
pub(super) async fn wait_until_over(context: &Shared, share: &DesiredShare, order: &Preemption) -> Option<u64> {
    let handle = context.allocations.of_epoch(share.allocation, share.epoch)?;
    let note = match Note::read(share, order, handle.dir()).await {
        Some(note) => note,
        None => {
            let note = Note { began_ms: boottime_ms(), is_signalled: false };
            note.write(share, order, handle.dir()).await;
            note
        }
    };
    let mut run_state = handle.run_state.clone();
    // An error means that the allocation's task has ended.
    let ending = async {
        let _ = run_state.wait_for(|state| *state == RunState::Ending).await;
    };
    let signal = share.spec.scaling.as_ref().and_then(|scaling| scaling.drain.signal).filter(|_| !note.is_signalled);
    let signalling = async {
        if let Some(signal) = signal {
            send(&handle, i32::from(signal)).await;
            Note { is_signalled: true, ..note }.write(share, order, handle.dir()).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        time_ms = wait_for_time(context.view.clone(), share, order, note) => Some(time_ms),
        () = ending => None,
        () = signalling => None,
    }
}

/// Sends the signal once, as soon as the replica's shim can be reached.
async fn send(handle: &AllocationHandle, signal: i32) {
    let allocation = handle.share.allocation;
    for to in [SignalTarget::Ranks, SignalTarget::Script] {
        let sent = loop {
            match handle.signal(signal, to).await {
                Err(SignalError::NotRunning(_) | SignalError::ShimLost) => tokio::time::sleep(RETRY_INTERVAL).await,
                sent => break sent,
            }
        };
        match sent {
            Ok(0) => {}
            Ok(processes) => {
                tracing::info!(%allocation, signal, processes, "a replica that must leave got its signal");
                return;
            }
            // The replica may still get the signal: the shim has the message.
            Err(why) => {
                tracing::warn!(%allocation, signal, %why, "whether a replica that must leave got its signal is not known");
                return;
            }
        }
    }
    tracing::warn!(%allocation, signal, "a replica that must leave has neither ranks nor a script that could get its signal");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::Bench;
    use lattice_model::test_builders::desired_share;
    use lattice_model::{AllocationId, CheckpointId, Drain, Epoch, Scaling};
    use lattice_node::{Local, Phase};
    use lattice_registry::{Command, SendSignal, TaskEnds};
    use uuid::Uuid;

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn order(deadline_ms: u64) -> Preemption {
        let id = CheckpointId(Uuid::from_u128(7));
        let (by, reason) = ("scaling".to_owned(), String::new());
        Preemption { id, by, reason, cause: PreemptCause::ScaleDown, deadline_ms, hold: false, failed: None }
    }

    fn replica(signal: Option<u8>) -> DesiredShare {
        let mut share = desired_share(AllocationId(Uuid::from_u128(1)));
        let drain = Drain { signal, grace_ms: 60_000 };
        share.spec.scaling = Some(Box::new(Scaling { replicas_min: 1, replicas_max: 2, policy: None, drain }));
        share
    }

    /// A running replica, and its task's ends of the channels.
    fn running(bench: &Bench, share: &DesiredShare) -> (AllocationHandle, TaskEnds) {
        let mut ends = None;
        let handle = bench.handles.allocations.ensure(&bench.handles.setup.state_dir, share, |made| ends = Some(made));
        std::fs::create_dir_all(&handle.dir().0).unwrap();
        let ends = ends.unwrap();
        ends.senders.run_state.send_replace(RunState::Running);
        (handle, ends)
    }

    /// The next signal that the task is to send; it reaches this many processes.
    async fn answer(ends: &mut TaskEnds, processes: u32) -> (i32, SignalTarget) {
        let command = tokio::time::timeout(PATIENCE, ends.queue.recv()).await.unwrap().unwrap();
        let Command::Signal(SendSignal { signal, to, answer }) = command else { panic!("{command:?}") };
        let _ = answer.send(processes);
        (signal, to)
    }

    #[tokio::test]
    async fn a_replica_gets_its_signal_once_and_keeps_its_time_when_the_agent_is_restarted() {
        let (bench, share) = (Bench::new(), replica(Some(10)));
        let (handle, mut ends) = running(&bench, &share);
        let long = order(3_600_000);
        let began_ms = boottime_ms();
        let (context, drained, ordered) = (Arc::clone(&bench.handles), share.clone(), long.clone());
        let over = tokio::spawn(async move { wait_until_over(&context, &drained, &ordered).await });
        assert_eq!(answer(&mut ends, 0).await, (10, SignalTarget::Ranks));
        assert_eq!(answer(&mut ends, 1).await, (10, SignalTarget::Script), "it has no ranks");
        let noted = async {
            loop {
                match Note::read(&share, &long, handle.dir()).await {
                    Some(note) if note.is_signalled => break note,
                    Some(_) | None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let note = tokio::time::timeout(PATIENCE, noted).await.unwrap();
        assert!(note.began_ms >= began_ms && !over.is_finished());
        over.abort();
        // After a restart of the agent: its time is over, and it has got its signal already.
        let short = order(1);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(tokio::time::timeout(PATIENCE, wait_until_over(&bench.handles, &share, &short)).await.unwrap(), Some(1));
        assert_eq!(Note::read(&share, &short, handle.dir()).await, Some(note));
        assert!(ends.queue.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_replica_that_ends_by_itself_is_not_waited_for() {
        let (bench, share) = (Bench::new(), replica(None));
        let (_handle, ends) = running(&bench, &share);
        let order = order(3_600_000);
        let (context, drained) = (Arc::clone(&bench.handles), share.clone());
        let over = tokio::spawn(async move { wait_until_over(&context, &drained, &order).await });
        ends.senders.run_state.send_replace(RunState::Ending);
        assert_eq!(tokio::time::timeout(PATIENCE, over).await.unwrap().unwrap(), None);
    }

    #[tokio::test]
    async fn a_shorter_time_in_the_list_counts_from_when_it_comes() {
        let (bench, share) = (Bench::new(), replica(None));
        let (_handle, _ends) = running(&bench, &share);
        let long = order(3_600_000);
        let (context, drained, ordered) = (Arc::clone(&bench.handles), share.clone(), long.clone());
        let over = tokio::spawn(async move { wait_until_over(&context, &drained, &ordered).await });
        let listed = |order: Preemption| {
            let share = DesiredShare { preempt: Some(order), ..share.clone() };
            let local = Local { share, phase: Phase::Running, assignment: None };
            bench.view.send_replace(Arc::new(NodeView { locals: vec![local], ..NodeView::default() }));
        };
        // Another order, and a longer time.
        listed(Preemption { id: CheckpointId(Uuid::from_u128(8)), ..order(1) });
        listed(order(7_200_000));
        tokio::task::yield_now().await;
        assert!(!over.is_finished());
        listed(order(1));
        assert_eq!(tokio::time::timeout(PATIENCE, over).await.unwrap().unwrap(), Some(1));
    }

    #[tokio::test]
    async fn a_note_is_of_one_order_for_one_claim() {
        let (bench, share) = (Bench::new(), replica(None));
        let (handle, _ends) = running(&bench, &share);
        let (order, note) = (order(60_000), Note { began_ms: 5, is_signalled: true });
        assert_eq!(Note::read(&share, &order, handle.dir()).await, None);
        note.write(&share, &order, handle.dir()).await;
        assert_eq!(Note::read(&share, &order, handle.dir()).await, Some(note));
        let next = DesiredShare { epoch: Epoch(2), ..share.clone() };
        assert_eq!(Note::read(&next, &order, handle.dir()).await, None);
        let other = Preemption { id: CheckpointId(Uuid::from_u128(8)), ..order.clone() };
        assert_eq!(Note::read(&share, &other, handle.dir()).await, None);
        for torn in ["", "5", "5 true", "x true 1 a"] {
            std::fs::write(handle.dir().drain(), torn).unwrap();
            assert_eq!(Note::read(&share, &order, handle.dir()).await, None, "{torn:?}");
        }
    }

    #[tokio::test]
    async fn a_replica_leaves_once_the_list_says_so() {
        let (bench, share) = (Bench::new(), replica(None));
        assert!(!is_leaving(&bench.handles, &share));
        let listed = |cause| {
            let share = DesiredShare { preempt: Some(Preemption { cause, ..order(1) }), ..share.clone() };
            let local = Local { share, phase: Phase::Running, assignment: None };
            bench.view.send_replace(Arc::new(NodeView { locals: vec![local], ..NodeView::default() }));
        };
        listed(PreemptCause::Drain);
        assert!(!is_leaving(&bench.handles, &share));
        listed(PreemptCause::ScaleDown);
        assert!(is_leaving(&bench.handles, &share));
        let next = DesiredShare { epoch: Epoch(2), ..share.clone() };
        assert!(!is_leaving(&bench.handles, &next));
    }
}
