//! Launches whose head is this node: one task each, at the root of a tree of agents.
//!
//! ```text
//!                       head task (LaunchHead: how ranks end)
//!                           │
//!                        Branch ── this node's part
//!                    ╭──────┴──────╮
//!                 Branch         Branch        in the agents of other nodes: launch::serve
//!                 ╭──┴──╮        ╭──┴──╮
//! ```
//!
//! Each edge is a stream that the parent opens, and reopens when it breaks. After each connect the
//! agents below report everything again, so a restarted head or agent misses nothing. A silent node
//! is no reason to abort.
//!
//! | task | ends | queues |
//! |---|---|---|
//! | a head, one per launch | when its nodes may forget the launch, or with the allocation | input 4, aborts 1, line events 256 |
//! | a line, one per edge | with its branch, once its queue is empty | messages 256 |
//! | a search, at most 64 per head | with the head | its result |
//! | one that reads a parent's stream, one per served subtree | with [`serve()`] | messages 16 |
//! | one that lets an ended launch be forgotten | after `FORGET_AFTER` | |
//!
//! Heads, lines and the last kind are in [`Handles::tasks`].

mod branch;
mod down_frame;
mod handles;
mod line;
mod seek;
mod serve;
mod step;
mod times;

pub use handles::Handles;
pub use serve::{Parents, serve};

use branch::{Branch, BranchEvent};
use down_frame::DownFrame;
use lattice_mesh::call::WireCall;
use lattice_mesh::input::WireInputChunk;
use lattice_mesh::launch::{ToHead, ToPart};
use lattice_model::input::Taken;
use lattice_model::{AllocationId, Call, DesiredShare, Entrypoint, LaunchId, LaunchSpec, MemoryKill, millis};
use lattice_node::fence::{FenceAction, FenceEvent, FenceWatch};
use lattice_node::{LaunchEnd, LaunchHead, PartEvent};
use lattice_pmi::{FenceMerged, Subtree, fanout_for};
use line::Around;
use parking_lot::Mutex;
use seek::Seek;
use std::collections::BTreeMap;
use std::sync::Arc;
use step::StepRecorder;
use times::{CHECK_INTERVAL, FORGET_AFTER};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How many ended launches of one allocation are remembered for callers that reconnect.
const ENDED_REMEMBERED: usize = 256;
/// Length of a head's queue for pieces of standard input.
const PIECES_QUEUE_LEN: usize = 4;

/// The launches whose head is here, by id. All clones share one registry.
#[derive(Clone)]
pub struct Launches(Arc<Inner>);

struct Inner {
    handles: Arc<Handles>,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    entries: BTreeMap<LaunchId, Entry>,
    /// The last launch number assigned, for each allocation that has requested one.
    numbers: BTreeMap<AllocationId, u32>,
}

struct Entry {
    spec: Arc<LaunchSpec>,
    ended: watch::Receiver<Option<LaunchEnd>>,
    forget: CancellationToken,
    stop: CancellationToken,
    abort: mpsc::Sender<Abort>,
    input: InputPort,
    /// Whether the end was reported to a caller.
    acknowledged: bool,
}

/// A user's order to end a launch.
struct Abort {
    code: i32,
    by: String,
}

/// A launch as a caller sees it.
#[derive(Clone)]
pub struct LaunchView {
    pub spec: Arc<LaunchSpec>,
    pub ended: watch::Receiver<Option<LaunchEnd>>,
    pub input: InputPort,
}

/// The channels of a launch's standard input. Both close with its head.
#[derive(Clone)]
pub struct InputPort {
    pub pieces: mpsc::Sender<WireInputChunk>,
    /// How much of the input is taken; `None` until every part has reported.
    pub taken: watch::Receiver<Option<Taken>>,
}

/// Waits for the next report of how much standard input was taken. `None`: the head is gone.
pub async fn next_taken(taken: &mut watch::Receiver<Option<Taken>>) -> Option<Taken> {
    loop {
        taken.changed().await.ok()?;
        let now = *taken.borrow_and_update();
        if now.is_some() {
            return now;
        }
    }
}

impl Launches {
    /// An empty registry.
    pub fn new(handles: Handles) -> Self {
        Self(Arc::new(Inner { handles: Arc::new(handles), registry: Mutex::default() }))
    }

    /// The parts of the agent that launches use.
    pub fn handles(&self) -> &Arc<Handles> {
        &self.0.handles
    }

    /// Starts a launch unless it has been started. The receiver gets its end; it closes without one
    /// if the allocation ends first.
    pub fn begin(&self, share: &Arc<DesiredShare>, spec: LaunchSpec) -> watch::Receiver<Option<LaunchEnd>> {
        begin_in(&mut self.registry().entries, &self.0.handles, share, spec).ended
    }

    /// A launch whose head is here.
    pub fn get(&self, id: LaunchId) -> Option<LaunchView> {
        self.registry().entries.get(&id).map(Entry::view)
    }

    /// Starts a launch under the allocation's next number, unless one with this id has been
    /// started. Numbers begin at 1; the inline command of an allocation has 1. A number that has
    /// log files on disk is never used again.
    pub async fn begin_next(&self, share: &Arc<DesiredShare>, mut spec: LaunchSpec) -> Result<LaunchView, JoinError> {
        let allocation = spec.allocation;
        let is_known = self.registry().numbers.contains_key(&allocation);
        if !is_known && let Some(handle) = self.0.handles.allocations.get(allocation) {
            // An earlier run of this agent may have assigned numbers.
            let on_disk = tokio::task::spawn_blocking(move || handle.highest_launch_number()).await?;
            self.registry().numbers.entry(allocation).or_insert(on_disk);
        }
        let entry = match share.spec.entrypoint {
            Entrypoint::Command { .. } => 1,
            Entrypoint::Script { .. } => 0,
        };
        let mut registry = self.registry();
        if let Some(entry) = registry.entries.get(&spec.id) {
            return Ok(entry.view());
        }
        let last = registry.numbers.entry(allocation).or_default();
        *last = entry.max(*last) + 1;
        spec.number = *last;
        Ok(begin_in(&mut registry.entries, &self.0.handles, share, spec))
    }

    /// Aborts a launch for a user, `by`. A launch that has ended stays as it is; `false`: there is none
    /// with this id.
    pub fn abort(&self, id: LaunchId, code: i32, by: String) -> bool {
        // If the queue is full, it already holds an abort; if it is closed, the launch has ended.
        self.registry().entries.get(&id).map(|entry| drop(entry.abort.try_send(Abort { code, by }))).is_some()
    }

    /// Notes that the caller has received this launch's end: its nodes may forget it after
    /// `FORGET_AFTER`. The registry remembers only the newest `ENDED_REMEMBERED` launches of the
    /// allocation whose ends callers have received.
    pub fn acknowledge_end(&self, id: LaunchId) {
        let map = &mut self.registry().entries;
        let Some(entry) = map.get_mut(&id) else { return };
        entry.acknowledged = true;
        let allocation = entry.spec.allocation;
        let forget = entry.forget.clone();
        self.0.handles.tasks.spawn(async move {
            tokio::select! {
                () = forget.cancelled() => {}
                () = tokio::time::sleep(FORGET_AFTER) => forget.cancel(),
            }
        });
        let mut acknowledged: Vec<(u32, LaunchId)> =
            map.values().filter(|e| e.spec.allocation == allocation && e.acknowledged).map(|e| (e.spec.number, e.spec.id)).collect();
        acknowledged.sort_unstable();
        let surplus = acknowledged.len().saturating_sub(ENDED_REMEMBERED);
        for (_, id) in acknowledged.into_iter().take(surplus) {
            if let Some(entry) = map.remove(&id) {
                entry.forget.cancel();
            }
        }
    }

    /// The allocation is being ended: stops the heads of its launches and forgets them.
    pub fn drop_launches(&self, allocation: AllocationId) {
        let mut registry = self.registry();
        registry.numbers.remove(&allocation);
        registry.entries.retain(|_, entry| {
            if entry.spec.allocation == allocation {
                entry.stop.cancel();
            }
            entry.spec.allocation != allocation
        });
    }

    fn registry(&self) -> parking_lot::MutexGuard<'_, Registry> {
        self.0.registry.lock()
    }
}

impl Entry {
    fn view(&self) -> LaunchView {
        LaunchView { spec: Arc::clone(&self.spec), ended: self.ended.clone(), input: self.input.clone() }
    }
}

fn begin_in(map: &mut BTreeMap<LaunchId, Entry>, handles: &Arc<Handles>, share: &Arc<DesiredShare>, mut spec: LaunchSpec) -> LaunchView {
    if let Some(entry) = map.get(&spec.id) {
        return entry.view();
    }
    handles.fabric.add_key(&mut spec.env, share);
    let (ended, view) = watch::channel(None);
    let (abort, aborts) = mpsc::channel(1);
    let (forget, stop) = (CancellationToken::new(), CancellationToken::new());
    let (pieces, queue) = mpsc::channel(PIECES_QUEUE_LEN);
    let (taken, taken_view) = watch::channel(None);
    let input = InputPort { pieces, taken: taken_view };
    let spec = Arc::new(spec);
    let entry =
        Entry { spec: Arc::clone(&spec), ended: view, forget: forget.clone(), stop: stop.clone(), abort, input, acknowledged: false };
    let view = entry.view();
    map.insert(spec.id, entry);
    handles.tasks.spawn(head(Arc::clone(handles), spec, Signals { ended, aborts, pieces: queue, taken, forget, stop }));
    view
}

/// The task's ends of the channels between a head's task and the registry.
struct Signals {
    ended: watch::Sender<Option<LaunchEnd>>,
    aborts: mpsc::Receiver<Abort>,
    pieces: mpsc::Receiver<WireInputChunk>,
    taken: watch::Sender<Option<Taken>>,
    forget: CancellationToken,
    stop: CancellationToken,
}

async fn head(handles: Arc<Handles>, spec: Arc<LaunchSpec>, signals: Signals) {
    let Signals { ended, mut aborts, mut pieces, taken, forget, stop } = signals;
    let parts = u32::try_from(spec.nodes.len()).unwrap_or(u32::MAX);
    let fanout = handles.fanout.unwrap_or_else(|| fanout_for(parts));
    let whole = Subtree::whole(parts);
    let lines = stop.child_token();
    // The lines end with this task, even if nobody cancels `stop`.
    let _ends = lines.clone().drop_guard();
    let around = Around { handles: Arc::clone(&handles), spec: Arc::clone(&spec), fanout, stop: lines };
    let mut state = Head {
        launch: LaunchHead::new(LaunchSpec::clone(&spec)),
        branch: Branch::new(around, whole),
        seek: Seek::default(),
        fence: FenceWatch::new(spec.nodes.len(), millis(handles.fence_timeout)),
    };
    // Other nodes start only once this node's shim has the launch: after a crash of this agent the
    // shim still has it, so no other node has ranks of an unknown launch.
    let mut waits_for_own = spec.nodes.first().is_some_and(|ranks| ranks.node == handles.me);
    if waits_for_own {
        state.branch.serve(Subtree::single(0));
    } else {
        state.branch.serve(whole);
    }
    let mut recorder = StepRecorder::begin(&handles, &spec);
    let mut look = tokio::time::interval(CHECK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while state.launch.end().is_none() {
        tokio::select! {
            () = stop.cancelled() => {
                if let Some(recorder) = recorder {
                    recorder.end_with_allocation().await;
                }
                return;
            }
            // A node may have hundreds of heads, and most of them have nothing to check.
            _ = look.tick(), if !state.branch.is_at_rest() => {
                // Nobody is above the head to whom unreachable parts could be reported.
                let _unreached = state.branch.check();
                let open = state.branch.open_fence();
                state.handle_fence(FenceEvent::Looked { open });
            }
            Some(Abort { code, by }) = aborts.recv() => {
                let abort = state.launch.abort(code, format!("interrupted by {by}"));
                if let Some(recorder) = recorder.as_mut().filter(|_| abort.is_some()) {
                    recorder.cancelled(by);
                }
                state.send_abort(abort);
            }
            Some(piece) = pieces.recv(), if state.branch.has_room() => state.feed(piece),
            part = state.seek.reached() => state.branch.take_over(part),
            Some((line, event)) = state.branch.next_event() => {
                let event = state.branch.handle(line, event);
                let now = state.branch.taken();
                taken.send_if_modified(|last| now.is_some() && std::mem::replace(last, now) != now);
                let Some(event) = event else { continue };
                if std::mem::take(&mut waits_for_own) {
                    for child in whole.children(fanout) {
                        state.branch.serve(child);
                    }
                }
                state.handle(event);
            }
        }
    }
    let end = state.launch.end();
    if let (Some(recorder), Some(end)) = (recorder, &end) {
        recorder.end(end).await;
    }
    ended.send_replace(end);
    drop((pieces, taken));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = forget.cancelled() => break,
            // After the end only the fact that a part reconnects matters, not what it reports.
            Some((line, event)) = state.branch.next_event() => drop(state.branch.handle(line, event)),
        }
    }
    state.branch.send(&DownFrame::new(ToPart::Forget));
    state.branch.flush().await;
}

struct Head {
    launch: LaunchHead,
    branch: Branch,
    seek: Seek,
    fence: FenceWatch,
}

impl Head {
    fn handle(&mut self, event: BranchEvent) {
        let abort = match event {
            BranchEvent::FromPart { part, message } => self.handle_message(part as usize, message),
            BranchEvent::Whole(FenceMerged { number, blob }) => {
                self.handle_fence(FenceEvent::Done);
                self.branch.send(&DownFrame::new(ToPart::FenceDone { number, blob }));
                None
            }
            BranchEvent::Refused(why) => self.launch.abort(1, format!("{}: {why}", self.branch.around.handles.me)),
            BranchEvent::Unreached { part } => {
                self.seek.begin(&self.branch.around, part);
                None
            }
            // The line breaks and connects again: the agent that replaced this head as the parent is
            // not an agent of its tree.
            BranchEvent::Replaced => None,
        };
        self.send_abort(abort);
    }

    fn handle_message(&mut self, part: usize, message: ToHead) -> Option<(i32, String)> {
        let event = match message {
            ToHead::RankEnded { rank, outcome } => {
                self.handle_fence(FenceEvent::RankEnded { part });
                PartEvent::RankEnded { rank, outcome: outcome.into() }
            }
            ToHead::Aborted { code, why } => {
                let node = self.launch.spec().nodes.get(part).map(|ranks| ranks.node.to_string()).unwrap_or_default();
                PartEvent::Aborted { code, why: format!("{node}: {why}") }
            }
            ToHead::OutOfMemory { launch, whole, had_bytes, limit_bytes } => {
                PartEvent::OutOfMemory { kill: MemoryKill { launch, whole, had_bytes, limit_bytes } }
            }
            ToHead::WalltimeOver => PartEvent::WalltimeOver,
            ToHead::Lost { why } => PartEvent::Lost { why },
            ToHead::Absent { ranks } => {
                self.handle_fence(FenceEvent::Absent { part, ranks });
                return None;
            }
            ToHead::Call(call) => {
                self.forward_call(part, *call);
                return None;
            }
            // A line turns these into other messages, except `Begun`, which the branch has handled.
            ToHead::Begun | ToHead::Fence { .. } | ToHead::Synced | ToHead::Input { .. } => return None,
        };
        self.launch.handle(part, event)
    }

    /// Passes a call on to its part. The caller repeats a call that is lost.
    fn forward_call(&mut self, part: usize, call: WireCall) {
        let parts = self.launch.spec().nodes.len();
        let Some(call) = Call::try_from(call).ok().filter(|call| call.from as usize == part && (call.to as usize) < parts) else {
            tracing::warn!(launch = %self.launch.spec().id, part, "an invalid call is dropped");
            return;
        };
        self.branch.send(&DownFrame::new(ToPart::Call(Box::new(call.into()))));
    }

    /// Passes a piece of input on. A piece that leaves a gap or is too long is dropped, and nothing
    /// reports that to its sender.
    fn feed(&mut self, piece: WireInputChunk) {
        let down_frame = DownFrame::new(ToPart::Input(Box::new(piece)));
        if let ToPart::Input(piece) = &down_frame.message
            && let Err(error) = self.branch.feed(piece, &down_frame)
        {
            tracing::debug!(launch = %self.launch.spec().id, %error, "an invalid piece of standard input is dropped");
        }
    }

    fn send_abort(&mut self, abort: Option<(i32, String)>) {
        let Some((code, why)) = abort else { return };
        tracing::info!(launch = %self.launch.spec().id, code, %why, "a launch is aborted");
        self.branch.send(&DownFrame::new(ToPart::Abort { code, why }));
    }

    fn handle_fence(&mut self, event: FenceEvent) {
        let mut actions = Vec::new();
        self.fence.handle(self.branch.now_ms(), event, &mut actions);
        for action in actions {
            match action {
                FenceAction::AskWhoIsAbsent => self.branch.send(&DownFrame::new(ToPart::NameAbsent)),
                FenceAction::Fail(failure) => {
                    let why = failure.describe(&self.launch.spec().nodes);
                    let abort = self.launch.abort(1, why);
                    self.send_abort(abort);
                }
            }
        }
    }
}
