//! Runs the checkpoint of an allocation whose head is here: drives [`Checkpointing`], writes its
//! states to disk, and asks the nodes.

use super::handles::Shared;
use super::heads::Head;
use super::part;
use super::parts::Ends;
use super::store::{Manifest, StoreError};
use super::{Checkpoints, late, owner_of, wall_ms};
use lattice_agent_common::config::checkpoint::CheckpointsUnavailable;
use lattice_agent_common::files;
use lattice_agent_common::tasks::Tasks;
use lattice_mesh::checkpoint::{CheckpointItem, CheckpointOpen, FromSaver, PartOpen, ToSaver};
use lattice_mesh::open::{Open, vouched};
use lattice_mesh::{UnreachedNode, frame};
use lattice_model::checkpoint::DEADLINE_MS;
use lattice_model::{AllocationId, CheckpointId, CheckpointRef, DesiredShare, Epoch, NodeId, with_causes};
use lattice_node::{CheckpointEnd, CheckpointEvent, CheckpointPhase, CheckpointStep, Checkpointing, Event, Progress, Saved};
use lattice_registry::{NotRunning, RunState};
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{ShimDir, boottime_ms};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

/// Capacity of the queue of the checkpoint's events.
const EVENTS_QUEUE_LEN: usize = 256;
/// Pause between retries of a node or the store.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long to wait for the quorum's answer once the allocation ends.
const COMMIT_ANSWER_WAIT: Duration = Duration::from_secs(10);
/// How long the store may take to say whether an id was used.
const STORE_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the head waits until reachable nodes know that a round is over.
const STOP_DELIVERY_MAX: Duration = Duration::from_secs(2);

/// Why no checkpoint of an allocation begins here.
#[derive(Debug, Error)]
pub enum BeginError {
    #[error("allocation {} is not running on this node", .allocation.short())]
    NotHere { allocation: AllocationId },
    #[error("allocation {} belongs to {owner}", .allocation.short())]
    NotTheOwner { allocation: AllocationId, owner: String },
    #[error("allocation {} was submitted without --checkpoint, so it cannot be asked to save itself", .allocation.short())]
    NoPolicy { allocation: AllocationId },
    #[error(transparent)]
    Unavailable(#[from] CheckpointsUnavailable),
    #[error("{node} is not the head of allocation {}", .allocation.short())]
    NotTheHead { node: NodeId, allocation: AllocationId },
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error(
        "checkpoint {id} was made before, under epoch {epoch}, and a newer one may have replaced it: `lattice checkpoint list` shows all; \
         `lattice checkpoint create` makes a new one"
    )]
    MadeBefore { id: CheckpointId, epoch: Epoch },
    #[error("checkpoint {id} exists already, and cannot be read: {source}")]
    MadeBeforeAndDamaged { id: CheckpointId, source: StoreError },
}

/// The head's order to the nodes of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Wait,
    Go,
    Stop,
}

/// Begins a checkpoint of a user's allocation whose head is here, or follows the one under way. Its
/// progress arrives at the receiver.
pub async fn begin(context: &Shared, open: &CheckpointOpen) -> Result<mpsc::Receiver<CheckpointItem>, BeginError> {
    let (id, allocation, epoch) =
        (CheckpointId(Uuid::from_bytes(open.id)), AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    let handle = context.allocations.of_epoch(allocation, epoch).ok_or(BeginError::NotHere { allocation })?;
    let share = Arc::clone(&handle.share);
    if !vouched(open.uid, &open.user).may_act_for(&share.owner) {
        return Err(BeginError::NotTheOwner { allocation, owner: share.owner.name.clone() });
    }
    if share.spec.checkpoint.is_none() {
        return Err(BeginError::NoPolicy { allocation });
    }
    context.checkpoints.store()?;
    if share.nodes.first() != Some(&context.me) {
        return Err(BeginError::NotTheHead { node: context.me.clone(), allocation });
    }
    handle.wait_until_running().await?;
    let checkpoints = context.checkpoints.clone();
    let one = checkpoints.0.begins.of(allocation).await;
    // After a restart, the state file knows of a checkpoint under way.
    checkpoints.resume(context, &share, handle.dir()).await;
    let known = checkpoints.head_of(allocation, epoch);
    let joined = known.as_ref().filter(|head| {
        let now = head.view.borrow();
        now.id == id || now.end().is_none()
    });
    let view = match joined {
        Some(head) => head.view.clone(),
        None => {
            let committed = context.cluster.borrow().allocations.get(&allocation).and_then(|a| a.checkpoint.clone());
            // The id was used under the earlier claim, and the allocation has run again since.
            if let Some(made) = committed.as_ref().filter(|made| made.id == id) {
                return Ok(answered(completed_item(made)));
            }
            let last = known.and_then(|head| complete(&head.view.borrow()).map(|done| done.id));
            let parent = last.or_else(|| committed.as_deref().or(share.restore.as_ref()).map(|before| before.id));
            let nodes = share.nodes.to_vec();
            let length_ms = open.length_ms.clamp(DEADLINE_MS.0, DEADLINE_MS.1);
            let state = Checkpointing::begin(id, epoch, parent, nodes, length_ms, checkpoints.settings().deferral_ms_max(), boottime_ms());
            // The task examines the nodes meanwhile; it asks them only once the id is known to be
            // unused.
            let (new, is_new) = oneshot::channel();
            let view = checkpoints.drive(context, &share, handle.dir(), state, Some(is_new));
            match unused(context, &share, id).await {
                Ok(known) => {
                    failpoint::pass(Point::SaveBegun);
                    let _ = new.send(known);
                }
                Err(why) => {
                    // The task ends as well, and a later request for another checkpoint must not
                    // join this one.
                    checkpoints.never_begun(allocation, &view);
                    return Err(why);
                }
            }
            view
        }
    };
    drop(one);
    let (out, items) = mpsc::channel(4);
    context.tasks.spawn(send_items(view, out));
    Ok(items)
}

/// Refuses an id that a checkpoint already has. Returns whether the id is known to be unused:
/// `false` if the store is unreachable. Then writing the manifest refuses a used id, and nothing
/// that is stored under the id may be removed.
async fn unused(context: &Shared, share: &DesiredShare, id: CheckpointId) -> Result<bool, BeginError> {
    let (store, owner) = (context.checkpoints.store()?, owner_of(share));
    let Ok(found) = tokio::time::timeout(STORE_ANSWER_TIMEOUT, store.manifest(&owner, id)).await else { return Ok(false) };
    match found {
        Ok(made) => Err(BeginError::MadeBefore { id, epoch: made.epoch }),
        Err(source @ StoreError::Damaged { .. }) => Err(BeginError::MadeBeforeAndDamaged { id, source }),
        Err(StoreError::NoSuch(_)) => Ok(true),
        Err(
            StoreError::Store(_)
            | StoreError::Unavailable(_)
            | StoreError::Directory(_)
            | StoreError::Place(_)
            | StoreError::Unfit(_)
            | StoreError::Io { .. },
        ) => Ok(false),
    }
}

/// The last item about a checkpoint that the quorum has recorded.
fn completed_item(made: &CheckpointRef) -> CheckpointItem {
    let (id, state) = (*made.id.0.as_bytes(), "complete".to_owned());
    CheckpointItem::Ended { id, state, why: String::new(), complete: true, step: made.step, bytes: made.bytes }
}

fn answered(item: CheckpointItem) -> mpsc::Receiver<CheckpointItem> {
    let (out, items) = mpsc::channel(1);
    let _ = out.try_send(item);
    items
}

fn complete(state: &Checkpointing) -> Option<CheckpointRef> {
    match state.end() {
        Some(CheckpointEnd::Complete { checkpoint }) => Some(checkpoint.clone()),
        Some(CheckpointEnd::Failed { .. } | CheckpointEnd::TimedOut { .. }) | None => None,
    }
}

async fn send_items(mut view: watch::Receiver<Checkpointing>, out: mpsc::Sender<CheckpointItem>) {
    loop {
        let item = item(&view.borrow_and_update());
        let over = matches!(item, CheckpointItem::Ended { .. });
        if out.send(item).await.is_err() || over {
            return;
        }
        tokio::select! {
            () = out.closed() => return,
            changed = view.changed() => if changed.is_err() { return },
        }
    }
}

fn item(state: &Checkpointing) -> CheckpointItem {
    let (id, phase) = (*state.id.0.as_bytes(), state.text().to_owned());
    let ended = |why: String, checkpoint: Option<&CheckpointRef>| CheckpointItem::Ended {
        id,
        state: phase.clone(),
        why,
        complete: checkpoint.is_some(),
        step: checkpoint.and_then(|c| c.step),
        bytes: checkpoint.map_or(0, |c| c.bytes),
    };
    match &state.phase {
        CheckpointPhase::Ended(CheckpointEnd::Complete { checkpoint }) => ended(String::new(), Some(checkpoint)),
        CheckpointPhase::Ended(CheckpointEnd::Failed { why }) => ended(why.clone(), None),
        CheckpointPhase::Ended(CheckpointEnd::TimedOut { waited_for }) => {
            let seconds = state.length_ms / 1000;
            let names: Vec<&str> = waited_for.iter().map(NodeId::as_str).collect();
            let whom = if names.is_empty() { "the store".to_owned() } else { names.join(", ") };
            ended(format!("{whom} did not answer within {seconds} s and one extension by half of that"), None)
        }
        CheckpointPhase::Asking { deadline, .. } | CheckpointPhase::Saving { deadline, .. } => {
            let describe = |node: &NodeId| match state.progress.get(node) {
                Some(Progress { percent: Some(percent), left_ms: Some(left) }) => {
                    format!("{node} ({percent} %, {} s left)", left.div_ceil(1000))
                }
                Some(Progress { percent: Some(percent), left_ms: None }) => format!("{node} ({percent} %)"),
                Some(Progress { percent: None, left_ms: Some(left) }) => format!("{node} ({} s left)", left.div_ceil(1000)),
                Some(Progress { percent: None, left_ms: None }) | None => node.to_string(),
            };
            let awaited: Vec<String> = state.nodes.iter().filter(|node| state.awaits(node)).map(describe).collect();
            let extended = if deadline.extended { "; its time was extended" } else { "" };
            let saved = saved_text(state.nodes.len() - awaited.len(), state.nodes.len());
            CheckpointItem::Progress { id, state: phase, detail: format!("waits for {}{saved}{extended}", awaited.join(", ")) }
        }
        CheckpointPhase::Deferred { .. } => {
            CheckpointItem::Progress { id, state: phase, detail: "the application asked to save itself later".to_owned() }
        }
        CheckpointPhase::Verifying { .. } => CheckpointItem::Progress { id, state: phase, detail: "writing the manifest".to_owned() },
        CheckpointPhase::Committing { .. } => CheckpointItem::Progress { id, state: phase, detail: "waits for the quorum".to_owned() },
    }
}

/// How many of several nodes have saved; empty: of one.
fn saved_text(saved: usize, nodes: usize) -> String {
    if nodes < 2 {
        return String::new();
    }
    format!("; {saved} of {nodes} nodes ({} %) have saved", saved * 100 / nodes)
}

/// Writes the state for the next start of the agent. It need not survive a crash of the machine,
/// because that ends the work, too. `then` runs on the same thread after the write; this does not
/// wait for it.
async fn write_state(tasks: &Tasks, dir: &ShimDir, state: &Checkpointing, then: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (path, json) = (dir.checkpoint(), serde_json::to_vec(state).map_err(io::Error::other)?);
    let (done, written) = oneshot::channel();
    tasks.spawn_blocking(move || {
        let result = files::replace_for_boot(&path, &json);
        let is_there = result.is_ok();
        if done.send(result).is_ok() && is_there {
            then();
        }
    });
    written.await.map_err(io::Error::other)?
}

/// The stored state, if it belongs to this claim.
async fn read_state(dir: &ShimDir, epoch: Epoch) -> Option<Checkpointing> {
    let path = dir.checkpoint();
    let bytes = tokio::task::spawn_blocking(move || std::fs::read(path)).await.ok()?.ok()?;
    match serde_json::from_slice::<Checkpointing>(&bytes) {
        Ok(state) => Some(state).filter(|state| state.epoch == epoch),
        Err(error) => {
            tracing::warn!(path = %dir.checkpoint().display(), %error, "the state of a checkpoint cannot be read, so it is given up");
            None
        }
    }
}

impl Checkpoints {
    /// Resumes a checkpoint that an earlier run of the agent began, on the head of a running
    /// allocation. Idempotent.
    pub async fn resume(&self, context: &Shared, share: &Arc<DesiredShare>, dir: &ShimDir) {
        if share.spec.checkpoint.is_none() || self.head_of(share.allocation, share.epoch).is_some() {
            return;
        }
        if let Some(mut state) = read_state(dir, share.epoch).await {
            // The earlier run may have reported to the quorum without being able to record that.
            state.may_be_recorded |= matches!(state.phase, CheckpointPhase::Verifying { .. } | CheckpointPhase::Committing { .. });
            tracing::info!(allocation = %share.allocation, checkpoint = %state.id, phase = state.text(), "a checkpoint of an earlier run of this agent is resumed");
            self.drive(context, share, dir, state, None);
        }
    }

    /// Starts the checkpoint's task unless it runs. `is_new` reports whether the id is known to be
    /// unused; `None`: the checkpoint was begun by an earlier run.
    fn drive(
        &self,
        context: &Shared,
        share: &Arc<DesiredShare>,
        dir: &ShimDir,
        state: Checkpointing,
        is_new: Option<oneshot::Receiver<bool>>,
    ) -> watch::Receiver<Checkpointing> {
        let mut heads = self.0.heads.lock();
        if let Some(there) = heads.get(&share.allocation)
            && there.epoch == share.epoch
            && there.view.borrow().id == state.id
        {
            return there.view.clone();
        }
        let (id, reported, over) = (state.id, state.may_be_recorded, state.end().is_some());
        let has_failed = over && complete(&state).is_none();
        let (out, view) = watch::channel(state.clone());
        heads.insert(share.allocation, Head { epoch: share.epoch, view: view.clone() });
        if !over {
            let (events, queue) = mpsc::channel(EVENTS_QUEUE_LEN);
            let driver = Driver {
                context: Arc::clone(context),
                share: Arc::clone(share),
                dir: dir.clone(),
                state,
                out,
                is_new,
                events,
                asked: JoinSet::new(),
                work: JoinSet::new(),
                order: watch::channel(Order::Wait).0,
            };
            context.tasks.spawn(driver.run(queue));
        } else if has_failed {
            // The agent may have stopped before it removed the failed checkpoint's files.
            let (tasks, context, share) = (&context.tasks, Arc::clone(context), Arc::clone(share));
            tasks.spawn(async move { late::discard(&context, &share, id, reported).await });
        }
        view
    }

    /// Forgets a checkpoint as if it had never begun.
    fn never_begun(&self, allocation: AllocationId, view: &watch::Receiver<Checkpointing>) {
        let mut heads = self.0.heads.lock();
        // It may have begun again since, with the same id.
        if heads.get(&allocation).is_some_and(|head| head.view.same_channel(view)) {
            heads.remove(&allocation);
        }
    }
}

struct Driver {
    context: Shared,
    share: Arc<DesiredShare>,
    dir: ShimDir,
    state: Checkpointing,
    out: watch::Sender<Checkpointing>,
    /// Receives whether the id is known to be unused; `None` after that. Closed without a value: the
    /// id is used, or the caller is gone.
    is_new: Option<oneshot::Receiver<bool>>,
    events: mpsc::Sender<CheckpointEvent>,
    /// Tasks of the present state; aborted with it.
    work: JoinSet<()>,
    /// Tasks that ask the nodes in the present round.
    asked: JoinSet<()>,
    /// The present order to the nodes.
    order: watch::Sender<Order>,
}

impl Driver {
    async fn run(mut self, mut queue: mpsc::Receiver<CheckpointEvent>) {
        let allocation = self.share.allocation;
        let run_state = self.context.allocations.of_epoch(allocation, self.share.epoch).map(|handle| handle.run_state);
        let (mut over_at, begun) = (None, Instant::now());
        let (context, share) = (Arc::clone(&self.context), Arc::clone(&self.share));
        let mut superseded = Box::pin(late::superseded(&context, &share));
        // A checkpoint that no node was asked to save has nothing in the store.
        let mut may_be_in_store = self.is_new.is_none();
        let mut steps = self.state.resume();
        loop {
            for step in steps {
                self.take(step);
            }
            if let Some(end) = self.state.end() {
                self.context.checkpoints.counts().checkpoint(end, begun.elapsed());
                tracing::info!(%allocation, checkpoint = %self.state.id, end = self.state.text(), "a checkpoint is over");
                self.wait_for_stopped_nodes().await;
                if may_be_in_store && complete(&self.state).is_none() {
                    late::discard(&self.context, &self.share, self.state.id, self.state.may_be_recorded).await;
                }
                return;
            }
            let wakes = self.state.wakes_ms().map(|at| Duration::from_millis(at.saturating_sub(boottime_ms()) + 1));
            let event = tokio::select! {
                Some(event) = queue.recv() => event,
                () = sleep(wakes) => CheckpointEvent::Clock,
                known = id_answer(&mut self.is_new) => {
                    if !self.accept_id(known) {
                        return self.wait_for_stopped_nodes().await;
                    }
                    steps = Vec::new();
                    continue;
                }
                Some(_) = self.asked.join_next() => {
                    steps = Vec::new();
                    continue;
                }
                Some(_) = self.work.join_next() => {
                    steps = Vec::new();
                    continue;
                }
                () = ending(run_state.clone()), if over_at.is_none() => {
                    let wait = if matches!(self.state.phase, CheckpointPhase::Committing { .. }) { COMMIT_ANSWER_WAIT } else { Duration::ZERO };
                    over_at = Some(Instant::now() + wait);
                    steps = Vec::new();
                    continue;
                }
                () = tokio::time::sleep_until(over_at.unwrap_or_else(Instant::now)), if over_at.is_some() => {
                    self.committed().unwrap_or(CheckpointEvent::AllocationOver)
                }
                why = &mut superseded => self.committed().unwrap_or(CheckpointEvent::Superseded { why }),
            };
            let before = self.state.clone();
            let only_progress = matches!(event, CheckpointEvent::Progressed { .. });
            steps = self.state.handle(boottime_ms(), event);
            // This phase is not stored, because it has changed nothing: if the agent ends here, the
            // caller asks again.
            if only_progress || matches!(self.state.phase, CheckpointPhase::Asking { .. }) {
                self.out.send_replace(self.state.clone());
            } else if self.state != before {
                if self.is_new.is_some() {
                    let known = id_answer(&mut self.is_new).await;
                    if !self.accept_id(known) {
                        return self.wait_for_stopped_nodes().await;
                    }
                }
                self.save_state().await;
                may_be_in_store |= matches!(self.state.phase, CheckpointPhase::Saving { .. });
                // A state that could not be written ends the checkpoint: its steps are not taken.
                if self.state.end().is_some() {
                    steps = self.state.resume();
                }
            }
        }
    }

    /// Handles the store's answer about the id. `false`: the checkpoint must not be made, and is
    /// forgotten.
    fn accept_id(&mut self, known: Option<bool>) -> bool {
        self.is_new = None;
        match known {
            Some(known) => self.state.may_be_recorded |= !known,
            None => {
                self.order.send_replace(Order::Stop);
                self.context.checkpoints.never_begun(self.share.allocation, &self.out.subscribe());
            }
        }
        known.is_some()
    }

    /// The event for a checkpoint that the quorum already has. It counts even if the same update of
    /// the watch also says that the claim is over.
    fn committed(&self) -> Option<CheckpointEvent> {
        let CheckpointPhase::Committing { checkpoint } = &self.state.phase else { return None };
        let cluster = self.context.cluster.borrow();
        let last = cluster.allocations.get(&self.share.allocation)?.checkpoint.as_deref();
        (last == Some(checkpoint)).then_some(CheckpointEvent::Committed { id: checkpoint.id })
    }

    /// Waits until the reachable nodes have learned that the round is over.
    async fn wait_for_stopped_nodes(&mut self) {
        let all_ended = async { while self.asked.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(STOP_DELIVERY_MAX, all_ended).await;
    }

    /// Writes the state before anything is done in it. If that fails, the checkpoint is given up,
    /// unless it is complete and only its report to the quorum is outstanding.
    async fn save_state(&mut self) {
        pass(&self.state, false);
        let (context, allocation, state) = (Arc::clone(&self.context), self.share.allocation, self.state.clone());
        // The thread that wrote the state asks this node's own work. The other nodes get the order
        // meanwhile.
        let then = move || {
            if matches!(state.phase, CheckpointPhase::Saving { .. }) {
                pass(&state, true);
                context.checkpoints.0.parts.act(allocation, (state.epoch, state.id, state.round));
            }
        };
        let written = write_state(&self.context.tasks, &self.dir, &self.state, then).await;
        if let Err(error) = &written
            && self.state.end().is_none()
            && !matches!(self.state.phase, CheckpointPhase::Committing { .. })
        {
            let why = format!("its state cannot be written on {}: {error}", self.context.me);
            self.state.phase = CheckpointPhase::Ended(CheckpointEnd::Failed { why });
        }
        if let Err(error) = written {
            tracing::warn!(allocation = %self.share.allocation, %error, "the state of a checkpoint could not be saved");
            if self.state.end().is_some() && complete(&self.state).is_none() {
                self.forget().await;
            }
        }
        pass(&self.state, true);
        self.out.send_replace(self.state.clone());
    }

    /// Removes the stored state, which works on a full disk, too: a restarted agent must not resume a
    /// checkpoint that was reported to the user as failed.
    async fn forget(&self) {
        // The state of an earlier checkpoint stays.
        if read_state(&self.dir, self.state.epoch).await.is_none_or(|there| there.id != self.state.id) {
            return;
        }
        if let Err(error) = tokio::fs::remove_file(self.dir.checkpoint()).await {
            tracing::warn!(allocation = %self.share.allocation, %error, "the state of a failed checkpoint could not be removed");
        }
    }

    fn take(&mut self, step: CheckpointStep) {
        match step {
            CheckpointStep::Ask { round } => {
                self.work.abort_all();
                self.asked.abort_all();
                self.order = watch::channel(Order::Wait).0;
                let open = PartOpen {
                    id: *self.state.id.0.as_bytes(),
                    allocation: *self.share.allocation.0.as_bytes(),
                    epoch: self.share.epoch.0,
                    round,
                    deadline_ms: wall_ms() + self.state.wakes_ms().map_or(0, |at| at.saturating_sub(boottime_ms())),
                };
                for node in self.state.nodes.clone() {
                    let asking = Asking {
                        context: Arc::clone(&self.context),
                        share: Arc::clone(&self.share),
                        node,
                        open: open.clone(),
                        events: self.events.clone(),
                        order: self.order.subscribe(),
                    };
                    self.asked.spawn(asking.run());
                }
            }
            CheckpointStep::Go { .. } => drop(self.order.send_replace(Order::Go)),
            CheckpointStep::Write { .. } => {
                let (context, share, state) = (Arc::clone(&self.context), Arc::clone(&self.share), self.state.clone());
                let events = self.events.clone();
                self.work.spawn(async move { drop(events.send(write_manifest(&context, &share, &state).await).await) });
            }
            CheckpointStep::Commit { checkpoint } => {
                let (context, share, events) = (Arc::clone(&self.context), Arc::clone(&self.share), self.events.clone());
                self.work.spawn(async move {
                    let (id, wanted) = (checkpoint.id, checkpoint.clone());
                    context.driver.send(Event::Checkpointed { allocation: share.allocation, epoch: share.epoch, checkpoint }).await;
                    let mut cluster = context.cluster.clone();
                    let has = |a: &lattice_model::Allocation| a.checkpoint.as_deref() == Some(&wanted);
                    if cluster.wait_for(|cluster| cluster.allocations.get(&share.allocation).is_some_and(has)).await.is_ok() {
                        let _ = events.send(CheckpointEvent::Committed { id }).await;
                    }
                });
            }
            CheckpointStep::Forget => {
                self.work.abort_all();
                self.order.send_replace(Order::Stop);
            }
        }
    }
}

async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Waits for the store's answer about the id; `None`: no answer will come. Pending for ever if the
/// answer was taken before.
async fn id_answer(is_new: &mut Option<oneshot::Receiver<bool>>) -> Option<bool> {
    match is_new {
        Some(is_new) => is_new.await.ok(),
        None => std::future::pending().await,
    }
}

/// Waits until the allocation is being ended.
async fn ending(run_state: Option<watch::Receiver<RunState>>) {
    if let Some(mut run_state) = run_state {
        let _ = run_state.wait_for(|run_state| *run_state == RunState::Ending).await;
    }
}

/// Points at which a test may kill the agent.
fn pass(state: &Checkpointing, written: bool) {
    let [before, behind] = match &state.phase {
        CheckpointPhase::Asking { .. } => return,
        CheckpointPhase::Saving { .. } => [Point::SaveSavingUnwritten, Point::SaveSavingWritten],
        CheckpointPhase::Deferred { .. } => [Point::SaveDeferredUnwritten, Point::SaveDeferredWritten],
        CheckpointPhase::Verifying { .. } => [Point::SaveVerifyingUnwritten, Point::SaveVerifyingWritten],
        CheckpointPhase::Committing { .. } => [Point::SaveCommittingUnwritten, Point::SaveCommittingWritten],
        CheckpointPhase::Ended(_) => [Point::SaveEndUnwritten, Point::SaveEndWritten],
    };
    failpoint::pass(if written { behind } else { before });
}

/// Writes the manifest, retrying as long as necessary.
async fn write_manifest(context: &Shared, share: &DesiredShare, state: &Checkpointing) -> CheckpointEvent {
    let CheckpointPhase::Verifying { saved, .. } = &state.phase else { return CheckpointEvent::Clock };
    let owner = owner_of(share);
    let mut manifest = Manifest::made(owner.allocation, state, saved, (&share.owner.name, share.owner.uid), wall_ms());
    manifest.took_ms = state.round_ms(boottime_ms());
    loop {
        let store = match context.checkpoints.store() {
            Ok(store) => store,
            Err(error) => return CheckpointEvent::NotWritten { why: error.to_string() },
        };
        match store.put_manifest(&owner, &manifest).await {
            Ok(()) => return CheckpointEvent::Written,
            Err(error @ StoreError::Store(_)) if !error.is_full() => {
                tracing::warn!(allocation = %share.allocation, error = with_causes(&error), "a checkpoint's manifest waits for its store");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => return CheckpointEvent::NotWritten { why: with_causes(&error) },
        }
    }
}

/// Asks one node for its part of a round, until its last report.
struct Asking {
    context: Shared,
    share: Arc<DesiredShare>,
    node: NodeId,
    open: PartOpen,
    events: mpsc::Sender<CheckpointEvent>,
    order: watch::Receiver<Order>,
}

impl Asking {
    /// Runs until the order is to stop, and the node has received that order.
    async fn run(self) {
        while *self.order.borrow() != Order::Stop {
            if self.node == self.context.me {
                self.ask_local_part().await;
            } else if let Err(error) = self.ask_remote_part().await {
                tracing::debug!(node = %self.node, allocation = %self.share.allocation, %error, "a node is asked for its part again");
            }
            tokio::select! {
                () = self.wait_for_order(Order::Stop) => return,
                () = tokio::time::sleep(RETRY_PAUSE) => {}
            }
        }
    }

    async fn wait_for_order(&self, order: Order) {
        if self.order.clone().wait_for(|now| *now == order || *now == Order::Stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn handle(&self, report: FromSaver) {
        let (node, round) = (self.node.clone(), self.open.round);
        let event = match report {
            FromSaver::Able { idle } => CheckpointEvent::Able { node, round, idle },
            FromSaver::Saving => return,
            FromSaver::Failed { why } => CheckpointEvent::NodeFailed { node, round, why },
            FromSaver::Saved { files, bytes, step, manifest } => {
                CheckpointEvent::NodeSaved { node, round, saved: Saved { files, bytes, step, manifest } }
            }
            FromSaver::Deferred { for_ms } => CheckpointEvent::Deferred { node, round, for_ms },
            FromSaver::Progressed { percent, left_ms } => {
                CheckpointEvent::Progressed { node, round, progress: Progress { percent, left_ms } }
            }
        };
        let _ = self.events.send(event).await;
    }

    async fn ask_local_part(&self) {
        let Ends { go, mut last_report, .. } = part::attach(&self.context, &self.share, &self.open);
        let sending = async {
            self.wait_for_order(Order::Go).await;
            if *self.order.borrow() == Order::Go {
                go.send_replace(true);
            }
            self.wait_for_order(Order::Stop).await;
            self.context.checkpoints.0.parts.give_up(&self.open);
        };
        let receiving = async {
            loop {
                let report = last_report.borrow_and_update().clone();
                if let Some(report) = report {
                    self.handle(report).await;
                }
                if last_report.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! { () = sending => {}, () = receiving => {} }
    }

    async fn ask_remote_part(&self) -> Result<(), UnreachedNode> {
        let address = self.context.directory.mesh(&self.node).await.ok_or(UnreachedNode::NoAddress)?;
        let (mut send, mut recv) = self.context.mesh.open(&self.node, &address).await?;
        frame::write(&mut send, &Open::CheckpointPart(Box::new(self.open.clone()))).await?;
        let sending = async {
            self.wait_for_order(Order::Go).await;
            if *self.order.borrow() == Order::Go {
                frame::write(&mut send, &ToSaver::Go).await?;
            }
            self.wait_for_order(Order::Stop).await;
            frame::write(&mut send, &ToSaver::Stop).await?;
            // Wait until the other end has read it.
            let _ = send.finish();
            let _ = send.stopped().await;
            Ok(())
        };
        let receiving = async {
            loop {
                let report = frame::read::<FromSaver, _>(&mut recv).await?;
                self.handle(report).await;
            }
        };
        tokio::select! { ended = sending => ended, ended = receiving => ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_nodes_those_that_have_saved_are_counted() {
        assert_eq!([saved_text(0, 1), saved_text(1, 1)], ["", ""]);
        assert_eq!(saved_text(1, 4), "; 1 of 4 nodes (25 %) have saved");
    }
}
