//! Preemption on the head: work that must give its nodes back is asked to save itself, and the
//! driver gets the result.
//!
//! ```text
//!   the quorum's list ──▶ driver ──Preempt──▶ [task] ──▶ checkpoint, under the request's own id
//!                           ▲                    │
//!                           └──────Saved─────────┘   then the driver ends the work, or lets it go on
//! ```
//!
//! Nothing is written here: the list has the request until the claim ends, and the checkpoint has
//! its own state file. A restarted agent asks for the same checkpoint again, and gets the existing
//! one.
//!
//! A replica that its service no longer needs leaves in the same way. If it has not saved itself, it
//! then has some time to end by itself ([`crate::draining`]).
//!
//! Work is ended if its store has not answered for 20 s: a store that is busy for seconds is not
//! down, and an operator who needs the nodes should not wait longer. Of two requests the shorter
//! deadline counts.

use crate::draining;
use crate::handles::Shared;
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_checkpoint::{BeginError, broker};
use lattice_agent_common::node_view::NodeView;
use lattice_mesh::checkpoint::{CheckpointItem, CheckpointOpen};
use lattice_model::end_reason::NotSaved;
use lattice_model::{AllocationId, CheckpointId, DesiredShare, Epoch, PreemptCause, Preemption};
use lattice_node::Event;
use lattice_registry::{NotRunning, RunState};
use lattice_runtime::failpoint::{self, Point};
use lattice_scheduler::broker::Storage;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use uuid::Uuid;

/// [`lattice_node::Checkpointing::text`] of a checkpoint that waits only for the quorum.
const COMMITTING: &str = "committing";
/// The pause between two tries to follow the checkpoint.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How long the store may be silent, whatever the deadline is: without a store nothing can be
/// saved. Longer than a busy store takes for a small request.
const STORE_SILENCE_MAX: Duration = Duration::from_secs(20);
/// The interval at which the store is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Why work that must give its nodes back has no checkpoint.
#[derive(Debug, Error)]
enum SaveError {
    #[error("it was submitted without --checkpoint")]
    NoPolicy,
    #[error("it had {} s to leave, and did not end by itself", .grace_ms.div_ceil(1000))]
    StillHere { grace_ms: u64 },
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error(transparent)]
    Begin(#[from] BeginError),
    #[error("{why}")]
    Failed { why: String },
    #[error("no report about its checkpoint came for {after_s} s")]
    NoReport { after_s: u64 },
    #[error("the store of checkpoints has taken nothing for {} s: {why}", STORE_SILENCE_MAX.as_secs())]
    StoreUnreachable { why: String },
    #[error("it had not saved itself after {after_s} s, deferrals included")]
    TooLong { after_s: u64 },
}

/// Begins the preemption, from the driver's thread. May be called again for the same request: the
/// driver accepts only one result.
pub fn begin(context: &Shared, share: DesiredShare) {
    context.tasks.spawn(run(Arc::clone(context), share));
}

async fn run(context: Shared, share: DesiredShare) {
    let Some(order) = share.preempt.clone() else { return };
    failpoint::pass(Point::PreemptBegun);
    tracing::info!(allocation = %share.allocation, by = %order.by, cause = %order.cause, reason = %order.reason, "work must give its nodes back: it is asked to save itself, or to leave");
    let begun = Instant::now();
    let Some(saved) = saved(&context, &share, &order).await else { return };
    context.checkpoint.checkpoints.counts().preempted(&share, &order, saved.is_ok(), begun.elapsed());
    if let Err(why) = &saved {
        tracing::warn!(allocation = %share.allocation, %why, "the preempted work has not saved itself");
    }
    failpoint::pass(Point::PreemptSaved);
    let (allocation, epoch, request) = (share.allocation, share.epoch, order.id);
    let saved = saved.map_err(|why| NotSaved(why.to_string()));
    context.driver.send(Event::Saved { allocation, epoch, request, saved }).await;
}

/// The checkpoint that the work made, or why it made none; `None`: the work is being ended for
/// another reason. If a replica that its service no longer needs has not saved itself, this first
/// waits until its time to leave is over.
async fn saved(context: &Shared, share: &DesiredShare, order: &Preemption) -> Option<Result<CheckpointId, SaveError>> {
    let why = match checkpointed(context, share, order).await? {
        Ok(id) => return Some(Ok(id)),
        Err(why) => why,
    };
    match order.cause {
        PreemptCause::Request | PreemptCause::Drain | PreemptCause::Priority | PreemptCause::Reclaim => Some(Err(why)),
        PreemptCause::ScaleDown => {
            let grace_ms = draining::wait_until_over(context, share, order).await?;
            let has_policy = share.spec.checkpoint.is_some();
            Some(Err(if has_policy { why } else { SaveError::StillHere { grace_ms } }))
        }
    }
}

/// As `saved`, without the time to leave.
async fn checkpointed(context: &Shared, share: &DesiredShare, order: &Preemption) -> Option<Result<CheckpointId, SaveError>> {
    if share.spec.checkpoint.is_none() {
        return Some(Err(SaveError::NoPolicy));
    }
    let begun = Instant::now();
    let mut limit = Limit::of(context, share, order);
    let open = CheckpointOpen {
        id: *order.id.0.as_bytes(),
        allocation: *share.allocation.0.as_bytes(),
        epoch: share.epoch.0,
        length_ms: order.deadline_ms,
        uid: share.owner.uid,
        user: share.owner.name.clone(),
    };
    let unreachable = store_unreachable(context);
    tokio::pin!(unreachable);
    loop {
        let handle = context.allocations.of_epoch(share.allocation, share.epoch)?;
        // After a start of the agent, the shim must first report everything.
        while let Err(why) = handle.wait_until_running().await {
            if *handle.run_state.borrow() == RunState::Ending {
                return None;
            }
            if limit.is_over() {
                return Some(Err(why.into()));
            }
        }
        let ended = {
            let mut over = pin!(limit.wait_until_over());
            // A store that hangs also delays the beginning. A checkpoint that already exists is
            // followed first.
            let begun = tokio::select! {
                biased;
                begun = checkpoint::begin(&context.checkpoint, &open) => Ok(begun),
                () = &mut over => Err(Followed::TooLong),
                why = &mut unreachable => Err(Followed::StoreUnreachable(why)),
            };
            match begun {
                Ok(Ok(items)) => follow(items, over, &mut unreachable).await,
                Ok(Err(why)) => return Some(Err(why.into())),
                Err(ended) => ended,
            }
        };
        match ended {
            Followed::Whole(id) => return Some(Ok(id)),
            Followed::Failed { of, why } if of == order.id => return Some(Err(SaveError::Failed { why })),
            // Another checkpoint was under way and failed: now begin this one.
            Followed::Failed { .. } | Followed::Lost if !limit.is_over() => {}
            Followed::Failed { .. } | Followed::Lost => {
                return Some(Err(SaveError::NoReport { after_s: begun.elapsed().as_secs() }));
            }
            Followed::StoreUnreachable(why) => {
                return Some(Err(SaveError::StoreUnreachable { why }));
            }
            Followed::TooLong => {
                return Some(Err(SaveError::TooLong { after_s: begun.elapsed().as_secs() }));
            }
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// The time limit for all rounds together: even a checkpoint that is deferred again and again ends.
/// A later request with a shorter deadline shortens it.
struct Limit {
    view: watch::Receiver<Arc<NodeView>>,
    allocation: AllocationId,
    epoch: Epoch,
    order: CheckpointId,
    deadline_ms: u64,
    at: Instant,
}

impl Limit {
    fn of(context: &Shared, share: &DesiredShare, order: &Preemption) -> Self {
        let deferred = Duration::from_millis(context.checkpoint.checkpoints.settings().deferral_ms_max());
        Self {
            view: context.view.clone(),
            allocation: share.allocation,
            epoch: share.epoch,
            order: order.id,
            deadline_ms: order.deadline_ms,
            at: Instant::now() + extended(order.deadline_ms) + deferred,
        }
    }

    /// Whether the limit has passed. First shortens it if the quorum's list has a shorter deadline.
    fn is_over(&mut self) -> bool {
        let view = self.view.borrow_and_update();
        let local = view.locals.iter().find(|local| (local.share.allocation, local.share.epoch) == (self.allocation, self.epoch));
        let order = local.and_then(|local| local.share.preempt.as_ref()).filter(|order| order.id == self.order);
        if let Some(order) = order.filter(|order| order.deadline_ms < self.deadline_ms) {
            self.deadline_ms = order.deadline_ms;
            self.at = self.at.min(Instant::now() + extended(order.deadline_ms));
        }
        Instant::now() >= self.at
    }

    async fn wait_until_over(&mut self) {
        while !self.is_over() {
            tokio::select! {
                () = tokio::time::sleep_until(self.at) => {}
                // When the driver has ended, this branch is disabled: the list changes no more.
                Ok(()) = self.view.changed() => {}
            }
        }
    }
}

/// One and a half times the deadline.
fn extended(deadline_ms: u64) -> Duration {
    Duration::from_millis(deadline_ms.saturating_add(deadline_ms / 2))
}

/// How following a checkpoint ended.
enum Followed {
    /// The checkpoint is whole, and the quorum has it.
    Whole(CheckpointId),
    /// The checkpoint failed.
    Failed { of: CheckpointId, why: String },
    /// No further reports about it will come.
    Lost,
    /// The checkpoint did not end in time.
    TooLong,
    /// The store does not answer.
    StoreUnreachable(String),
}

/// Waits until the store has not answered for [`STORE_SILENCE_MAX`], and gives the reason.
async fn store_unreachable(context: &Shared) -> String {
    // Without a configured store, `checkpoint::begin` refuses.
    let Ok(store) = context.checkpoint.checkpoints.store() else { return std::future::pending().await };
    let mut since = None;
    loop {
        match broker::probe(store).await {
            Storage::Reachable => since = None,
            Storage::Unreachable { why } if since.get_or_insert_with(Instant::now).elapsed() >= STORE_SILENCE_MAX => return why,
            Storage::Unreachable { .. } => {}
        }
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}

async fn follow(
    mut items: mpsc::Receiver<CheckpointItem>,
    mut over: impl Future<Output = ()> + Unpin,
    mut unreachable: impl Future<Output = String> + Unpin,
) -> Followed {
    let mut committing = false;
    loop {
        let item = tokio::select! {
            item = items.recv() => item,
            // A checkpoint that is whole in the store waits for the quorum without a limit, as the
            // report of the work's end would.
            () = &mut over, if !committing => return Followed::TooLong,
            why = &mut unreachable, if !committing => return Followed::StoreUnreachable(why),
        };
        match item {
            None => return Followed::Lost,
            Some(CheckpointItem::Progress { state, .. }) => committing = state == COMMITTING,
            Some(CheckpointItem::Refused { .. }) => return Followed::Lost,
            Some(CheckpointItem::Ended { id, complete, why, state, .. }) => {
                let of = CheckpointId(Uuid::from_bytes(id));
                let why = if why.is_empty() { state } else { why };
                return if complete { Followed::Whole(of) } else { Followed::Failed { of, why } };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::Bench;
    use lattice_model::{CheckpointPolicy, test_builders};
    use lattice_node::{Local, Phase};
    use std::future::{pending, ready};
    use tokio::sync::oneshot;

    fn ended(id: CheckpointId, complete: bool) -> CheckpointItem {
        let (state, why) = ("failed".to_owned(), String::new());
        CheckpointItem::Ended { id: *id.0.as_bytes(), state, why, complete, step: None, bytes: 0 }
    }

    fn progress(state: &str) -> CheckpointItem {
        CheckpointItem::Progress { id: [0; 16], state: state.to_owned(), detail: String::new() }
    }

    #[tokio::test]
    async fn a_late_checkpoint_is_given_up_unless_it_only_waits_for_the_quorum() {
        let id = CheckpointId(Uuid::from_u128(7));
        let after = |ms| Box::pin(tokio::time::sleep(Duration::from_millis(ms)));
        let (send, items) = mpsc::channel(4);
        send.send(progress("requested")).await.unwrap();
        assert!(matches!(follow(items, after(20), pending()).await, Followed::TooLong));
        let (send, items) = mpsc::channel(4);
        send.send(progress("requested")).await.unwrap();
        let followed = follow(items, after(60_000), ready("no answer".to_owned())).await;
        assert!(matches!(followed, Followed::StoreUnreachable(why) if why == "no answer"));
        drop(send);
        let (send, items) = mpsc::channel(4);
        let (late, is_late) = oneshot::channel::<()>();
        let (away, is_away) = oneshot::channel::<()>();
        let over = async move {
            is_late.await.unwrap();
        };
        let unreachable = async move {
            is_away.await.unwrap();
            "no answer".to_owned()
        };
        send.send(progress(COMMITTING)).await.unwrap();
        let following = tokio::spawn(follow(items, Box::pin(over), Box::pin(unreachable)));
        while send.capacity() < send.max_capacity() {
            tokio::task::yield_now().await;
        }
        // The store is no longer needed.
        late.send(()).unwrap();
        away.send(()).unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        send.send(ended(id, true)).await.unwrap();
        assert!(matches!(following.await.unwrap(), Followed::Whole(made) if made == id));
        let (send, items) = mpsc::channel(4);
        send.send(ended(id, false)).await.unwrap();
        assert!(matches!(follow(items, after(60_000), pending()).await, Followed::Failed { of, why } if of == id && why == "failed"));
    }

    #[tokio::test]
    async fn a_later_request_may_only_shorten_the_time_and_only_under_the_same_id() {
        let bench = Bench::new();
        let (id, other) = (CheckpointId(Uuid::from_u128(7)), CheckpointId(Uuid::from_u128(8)));
        let share = test_builders::desired_share(AllocationId(Uuid::from_u128(1)));
        let order = |id, deadline_ms| {
            let (by, reason) = ("ada".to_owned(), String::new());
            Preemption { id, by, reason, cause: PreemptCause::Request, deadline_ms, hold: false, failed: None }
        };
        let mut limit = Limit::of(&bench.handles, &share, &order(id, 60_000));
        let at = limit.at;
        let listed = |epoch, order| {
            let share = DesiredShare { epoch: Epoch(epoch), preempt: Some(order), ..share.clone() };
            let local = Local { share, phase: Phase::Running, assignment: None };
            bench.view.send_replace(Arc::new(NodeView { locals: vec![local], ..NodeView::default() }));
        };
        for (epoch, order) in [(1, order(id, 60_000)), (1, order(id, 90_000)), (1, order(other, 10)), (2, order(id, 10))] {
            listed(epoch, order.clone());
            assert!(!limit.is_over() && limit.at == at, "{epoch} {order:?}");
        }
        let began = Instant::now();
        listed(1, order(id, 10_000));
        assert!(!limit.is_over());
        assert!((began + Duration::from_millis(15_000)..=Instant::now() + Duration::from_millis(15_000)).contains(&limit.at));
        // A later, longer deadline does not extend the limit again.
        let at = limit.at;
        listed(1, order(id, 20_000));
        assert!(!limit.is_over() && limit.at == at);
        listed(1, order(id, 0));
        assert!(limit.is_over());
        assert_eq!(extended(u64::MAX), Duration::from_millis(u64::MAX));
    }

    #[tokio::test]
    async fn work_without_a_checkpoint_policy_is_refused_at_once() {
        let mut bench = Bench::new();
        let mut share = test_builders::desired_share(AllocationId(Uuid::from_u128(1)));
        let id = CheckpointId(Uuid::from_u128(7));
        let (by, reason) = ("ada".to_owned(), String::new());
        share.preempt = Some(Preemption { id, by, reason, cause: PreemptCause::Request, deadline_ms: 1, hold: false, failed: None });
        let (allocation, epoch) = (share.allocation, share.epoch);
        run(Arc::clone(&bench.handles), share.clone()).await;
        let saved = Err(NotSaved("it was submitted without --checkpoint".to_owned()));
        assert_eq!(bench.events.try_recv(), Ok(Event::Saved { allocation, epoch, request: id, saved }));
        // Work that has left this node meanwhile has nothing to report.
        share.spec.checkpoint = Some(CheckpointPolicy::default());
        run(Arc::clone(&bench.handles), share).await;
        assert!(bench.events.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_replica_that_stays_for_its_whole_time_has_not_saved_itself() {
        let mut bench = Bench::new();
        let mut share = test_builders::desired_share(AllocationId(Uuid::from_u128(1)));
        let id = CheckpointId(Uuid::from_u128(7));
        let (by, reason) = ("scaling".to_owned(), String::new());
        share.preempt = Some(Preemption { id, by, reason, cause: PreemptCause::ScaleDown, deadline_ms: 1, hold: false, failed: None });
        run(Arc::clone(&bench.handles), share.clone()).await;
        assert!(bench.events.try_recv().is_err(), "it is not here any more");
        let mut ends = None;
        let handle = bench.handles.allocations.ensure(&bench.handles.setup.state_dir, &share, |made| ends = Some(made));
        std::fs::create_dir_all(&handle.dir().0).unwrap();
        ends.as_ref().unwrap().senders.run_state.send_replace(RunState::Running);
        run(Arc::clone(&bench.handles), share.clone()).await;
        let (allocation, epoch) = (share.allocation, share.epoch);
        let saved = Err(NotSaved("it had 1 s to leave, and did not end by itself".to_owned()));
        assert_eq!(bench.events.try_recv(), Ok(Event::Saved { allocation, epoch, request: id, saved }));
        // A replica that could save itself and has not also gets its time to leave.
        std::fs::remove_file(handle.dir().drain()).unwrap();
        share.spec.checkpoint = Some(CheckpointPolicy::default());
        run(Arc::clone(&bench.handles), share).await;
        assert!(matches!(bench.events.try_recv(), Ok(Event::Saved { saved: Err(NotSaved(why)), .. }) if !why.contains("to leave")));
        assert!(handle.dir().drain().exists(), "its time had begun");
    }
}
