//! Launches headed by this node: a task each, at the root of a tree.
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
//! Each edge is a stream that its parent opens, and opens again when it breaks; after each connect everything below tells all that
//! it knows, so a head that was restarted, or an agent that was away, misses nothing. A silent node is no reason to abort.

mod branch;
mod line;
mod seek;
mod serve;
mod times;
mod told;

pub use serve::{Parents, serve};

use crate::context::Shared;
use crate::mesh::call::WireCall;
use crate::mesh::input::WirePiece;
use crate::mesh::launch::{ToHead, ToPart};
use crate::node_environment;
use branch::{Branch, Heard};
use lattice_model::input::Taken;
use lattice_model::{AllocationId, Call, DesiredShare, Entrypoint, LaunchId, LaunchSpec, MemoryKill, NodeRanks};
use lattice_node::{LaunchEnd, LaunchHead, PartEvent};
use lattice_pmi::{Subtree, fanout_for};
use line::Around;
use parking_lot::Mutex;
use seek::Seek;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use times::{FORGET_AFTER, LOOK};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use told::Told;

/// Ended launches of one allocation whose end is remembered for a caller that comes back.
const ENDED_REMEMBERED: usize = 256;
/// Pieces of standard input that wait for a head: who sends keeps to the window.
const PIECES: usize = 4;

/// The launches of this head, by id. Cloneable; all clones are one.
#[derive(Clone, Default)]
pub struct Launches(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    entries: BTreeMap<LaunchId, Entry>,
    /// The last number given in each allocation that was asked for one.
    numbers: BTreeMap<AllocationId, u32>,
}

struct Entry {
    spec: Arc<LaunchSpec>,
    ended: watch::Receiver<Option<LaunchEnd>>,
    forget: CancellationToken,
    stop: CancellationToken,
    abort: mpsc::Sender<Abort>,
    input: InputPort,
    /// Whether somebody who asked for it was told its end.
    told: bool,
}

/// Why a user brings a launch down.
struct Abort {
    code: i32,
    why: String,
}

/// A launch as a caller sees it.
#[derive(Clone)]
pub struct LaunchView {
    pub spec: Arc<LaunchSpec>,
    pub ended: watch::Receiver<Option<LaunchEnd>>,
    pub input: InputPort,
}

/// The way to a launch's standard input. Both ends close with its head.
#[derive(Clone)]
pub struct InputPort {
    pub pieces: mpsc::Sender<WirePiece>,
    /// `None` until every node has told.
    pub taken: watch::Receiver<Option<Taken>>,
}

/// How much of standard input is taken, when it is next told. `None`: the head is gone.
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
    /// Begins a launch, unless it was: gives its end, when it comes. Ends without one when the allocation goes.
    pub fn begin(&self, context: &Shared, share: &Arc<DesiredShare>, spec: LaunchSpec) -> watch::Receiver<Option<LaunchEnd>> {
        begin_in(&mut self.registry().entries, context, share, spec).ended
    }

    /// A launch of this head.
    pub fn get(&self, id: LaunchId) -> Option<LaunchView> {
        self.registry().entries.get(&id).map(Entry::view)
    }

    /// Begins a launch under the allocation's next number, unless one of this id was begun. Numbers begin at 1; the
    /// inline command of an allocation has 1. A number whose log files are there is never used again.
    pub async fn begin_next(&self, context: &Shared, share: &Arc<DesiredShare>, mut spec: LaunchSpec) -> Result<LaunchView, String> {
        let allocation = spec.allocation;
        let asked_before = self.registry().numbers.contains_key(&allocation);
        if !asked_before && let Some(worker) = context.workers.get(allocation) {
            // A former life of this agent may have given some.
            let on_disk = tokio::task::spawn_blocking(move || worker.highest_launch_number()).await.map_err(|e| e.to_string())?;
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
        Ok(begin_in(&mut registry.entries, context, share, spec))
    }

    /// Brings a launch down for its user. One that has ended stays as it is; `false`: there is none of this id.
    pub fn abort(&self, id: LaunchId, code: i32, why: String) -> bool {
        // A queue that is full has an abort in it already; one that is closed is a launch that has ended.
        self.registry().entries.get(&id).map(|entry| drop(entry.abort.try_send(Abort { code, why }))).is_some()
    }

    /// The end of this launch was told to who asked for it: its nodes may forget it, and of the allocation's ended
    /// launches only the newest are remembered here.
    pub fn told(&self, id: LaunchId) {
        let map = &mut self.registry().entries;
        let Some(entry) = map.get_mut(&id) else { return };
        entry.told = true;
        let allocation = entry.spec.allocation;
        let forget = entry.forget.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = forget.cancelled() => {}
                () = tokio::time::sleep(FORGET_AFTER) => forget.cancel(),
            }
        });
        let mut over: Vec<(u32, LaunchId)> =
            map.values().filter(|e| e.spec.allocation == allocation && e.told).map(|e| (e.spec.number, e.spec.id)).collect();
        over.sort_unstable();
        let surplus = over.len().saturating_sub(ENDED_REMEMBERED);
        for (_, id) in over.into_iter().take(surplus) {
            if let Some(entry) = map.remove(&id) {
                entry.forget.cancel();
            }
        }
    }

    /// The allocation is being ended: its launches need no head any more.
    pub fn drop_of(&self, allocation: AllocationId) {
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
        self.0.lock()
    }
}

impl Entry {
    fn view(&self) -> LaunchView {
        LaunchView { spec: Arc::clone(&self.spec), ended: self.ended.clone(), input: self.input.clone() }
    }
}

fn begin_in(map: &mut BTreeMap<LaunchId, Entry>, context: &Shared, share: &Arc<DesiredShare>, mut spec: LaunchSpec) -> LaunchView {
    if let Some(entry) = map.get(&spec.id) {
        return entry.view();
    }
    node_environment::of_fabric(&mut spec.env, share, context);
    let (ended, view) = watch::channel(None);
    let (abort, aborts) = mpsc::channel(1);
    let (forget, stop) = (CancellationToken::new(), CancellationToken::new());
    let (pieces, queue) = mpsc::channel(PIECES);
    let (taken, taken_view) = watch::channel(None);
    let input = InputPort { pieces, taken: taken_view };
    let spec = Arc::new(spec);
    let entry = Entry { spec: Arc::clone(&spec), ended: view, forget: forget.clone(), stop: stop.clone(), abort, input, told: false };
    let view = entry.view();
    map.insert(spec.id, entry);
    tokio::spawn(head(Arc::clone(context), Arc::clone(share), spec, Signals { ended, aborts, pieces: queue, taken, forget, stop }));
    view
}

/// How the registry and a head's task speak.
struct Signals {
    ended: watch::Sender<Option<LaunchEnd>>,
    aborts: mpsc::Receiver<Abort>,
    pieces: mpsc::Receiver<WirePiece>,
    taken: watch::Sender<Option<Taken>>,
    forget: CancellationToken,
    stop: CancellationToken,
}

async fn head(context: Shared, share: Arc<DesiredShare>, spec: Arc<LaunchSpec>, signals: Signals) {
    let Signals { ended, mut aborts, mut pieces, taken, forget, stop } = signals;
    let parts = u32::try_from(spec.nodes.len()).unwrap_or(u32::MAX);
    let fanout = context.launch_fanout.unwrap_or_else(|| fanout_for(parts));
    let whole = Subtree::whole(parts);
    let lines = stop.child_token();
    // They end with this task, also where it is not told to stop.
    let _ends = lines.clone().drop_guard();
    let around = Around { context: Arc::clone(&context), share, spec: Arc::clone(&spec), fanout, stop: lines };
    let mut state = Head {
        launch: LaunchHead::new(LaunchSpec::clone(&spec)),
        branch: Branch::new(around, whole),
        seek: Seek::default(),
        ended_ranks: vec![0; spec.nodes.len()],
        waiting_since: None,
        asked: None,
    };
    // This node's shim is the launch's memory: the others begin once it has it, so that a head that is killed in between
    // leaves no ranks that nobody knows of.
    let mut waits_for_own = spec.nodes.first().is_some_and(|ranks| ranks.node == context.me);
    if waits_for_own {
        state.branch.serve(Subtree::single(0));
    } else {
        state.branch.serve(whole);
    }
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while state.launch.end().is_none() {
        tokio::select! {
            () = stop.cancelled() => return,
            // A node may have the heads of hundreds, which wait for nothing most of the time.
            _ = look.tick(), if !state.branch.is_at_rest() => {
                // What this node itself does not reach nobody else is asked for.
                let _unreached = state.branch.look(Instant::now());
                state.look_at_fence(context.fence_timeout);
            }
            Some(Abort { code, why }) = aborts.recv() => {
                let abort = state.launch.abort(code, why);
                state.spread(abort);
            }
            Some(piece) = pieces.recv(), if state.branch.has_room() => state.feed(piece),
            part = state.seek.reached() => state.branch.take_over(part),
            Some((line, news)) = state.branch.news() => {
                let heard = state.branch.hear(line, news);
                let now = state.branch.taken();
                taken.send_if_modified(|told| now.is_some() && std::mem::replace(told, now) != now);
                let Some(heard) = heard else { continue };
                if std::mem::take(&mut waits_for_own) {
                    for child in whole.children(fanout) {
                        state.branch.serve(child);
                    }
                }
                state.heard(heard).await;
            }
        }
    }
    ended.send_replace(state.launch.end());
    drop((pieces, taken));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = forget.cancelled() => break,
            // Parts that reconnect after the end have nothing to say that matters, but that they are there.
            Some((line, news)) = state.branch.news() => drop(state.branch.hear(line, news)),
        }
    }
    if let Some(forget) = told(ToPart::Forget) {
        state.branch.tell(&forget);
        state.branch.carried().await;
    }
}

/// For all below. What cannot be written is too long for a frame: none of these is.
fn told(message: ToPart) -> Option<Arc<Told>> {
    Told::new(message).inspect_err(|error| tracing::error!(%error, "a launch's message cannot be sent")).ok()
}

/// Nodes, and ranks of each, that are named where all of them would be too many.
const NAMED: usize = 16;
/// How long the nodes that a fence waits for may take to say which of their ranks have not come.
const ANSWER: Duration = Duration::from_secs(3);

/// The nodes that a fence has waited for too long were asked who has not come.
struct Asked {
    fence: u32,
    at: Instant,
    /// By node's part.
    ranks: BTreeMap<usize, Vec<u32>>,
}

impl Asked {
    /// Who has not come, for people.
    fn told(&self, missing: &[usize], nodes: &[NodeRanks]) -> String {
        let one = |part: &usize| {
            let NodeRanks { node, count, .. } = &nodes[*part];
            match self.ranks.get(part).map(Vec::as_slice) {
                None | Some([]) => format!("node {node} (which of its {count} ranks it does not say)"),
                Some([rank]) => format!("rank {rank} on node {node}"),
                Some(ranks) => format!("ranks {} on node {node}", listed(ranks.iter().map(u32::to_string), ranks.len(), "")),
            }
        };
        listed(missing.iter().map(one), missing.len(), " nodes")
    }
}

/// The first of them, and how many more there are.
fn listed(all: impl Iterator<Item = String>, count: usize, of: &str) -> String {
    let more = (count > NAMED).then(|| format!("{} more{of}", count - NAMED));
    all.take(NAMED).chain(more).collect::<Vec<_>>().join(", ")
}

struct Head {
    launch: LaunchHead,
    branch: Branch,
    seek: Seek,
    ended_ranks: Vec<u32>,
    waiting_since: Option<(u32, Instant)>,
    asked: Option<Asked>,
}

impl Head {
    async fn heard(&mut self, heard: Heard) {
        let abort = match heard {
            Heard::Said { part, said } => self.said(part as usize, said),
            Heard::Whole(merged) => {
                self.waiting_since = None;
                let number = merged.number;
                match Told::fence_done(merged).await {
                    Ok(done) => {
                        self.branch.tell(&done);
                        None
                    }
                    Err(error) => self.launch.abort(1, format!("fence {number} is done and cannot be told: {error}")),
                }
            }
            Heard::Refused(why) => self.launch.abort(1, format!("{}: {why}", self.branch.around.context.me)),
            Heard::Unreached { part } => {
                self.seek.begin(&self.branch.around, part);
                None
            }
            // The line breaks, and is made again: what took it is no parent of this head's.
            Heard::Replaced => None,
        };
        self.spread(abort);
    }

    fn said(&mut self, part: usize, said: ToHead) -> Option<(i32, String)> {
        let event = match said {
            ToHead::RankEnded { rank, outcome } => {
                if let Some(ended) = self.ended_ranks.get_mut(part) {
                    *ended += 1;
                }
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
                if let Some(asked) = &mut self.asked {
                    asked.ranks.insert(part, ranks);
                }
                return None;
            }
            ToHead::Call(call) => {
                self.carry(part, *call);
                return None;
            }
            // Told by lines as a fence and as who is away; that it has begun is heard where it matters.
            ToHead::Begun | ToHead::Fence { .. } | ToHead::Synced | ToHead::Input { .. } => return None,
        };
        self.launch.handle(part, event)
    }

    /// A call goes to its part. What is lost on the way its asker says again.
    fn carry(&mut self, part: usize, call: WireCall) {
        let parts = self.launch.spec().nodes.len();
        let Some(call) = Call::try_from(call).ok().filter(|call| call.from as usize == part && (call.to as usize) < parts) else {
            tracing::warn!(launch = %self.launch.spec().id, part, "a call that cannot be is not carried");
            return;
        };
        if let Some(told) = told(ToPart::Call(Box::new(call.into()))) {
            self.branch.tell(&told);
        }
    }

    /// What does not follow what came, or is too long, is not passed on: who sends it so waits in vain.
    fn feed(&mut self, piece: WirePiece) {
        let Some(told) = told(ToPart::Input(Box::new(piece))) else { return };
        if let ToPart::Input(piece) = &told.message
            && let Err(error) = self.branch.feed(piece, &told)
        {
            tracing::debug!(launch = %self.launch.spec().id, %error, "standard input that does not follow what came before is not passed on");
        }
    }

    fn spread(&mut self, abort: Option<(i32, String)>) {
        let Some((code, why)) = abort else { return };
        tracing::info!(launch = %self.launch.spec().id, code, %why, "a launch is brought down");
        if let Some(abort) = told(ToPart::Abort { code, why }) {
            self.branch.tell(&abort);
        }
    }

    /// A fence that waits for a node whose ranks ended waits for ever; one that waits too long while every node is
    /// connected has failed. While a node is away, the clock stands. An empty one has no clock: `MPI_Finalize` is such a fence in
    /// MPICH and in Open MPI, and ranks may come to it hours apart.
    fn look_at_fence(&mut self, timeout: Duration) {
        let waiting = self.branch.waiting_for().filter(|_| self.branch.away().is_empty());
        let Some((fence, missing)) = waiting else {
            (self.waiting_since, self.asked) = (None, None);
            return;
        };
        let since = match self.waiting_since {
            Some((number, since)) if number == fence => since,
            Some(_) | None => Instant::now(),
        };
        self.waiting_since = Some((fence, since));
        let nodes = &self.launch.spec().nodes;
        let missing: Vec<usize> = missing.into_iter().map(|part| part as usize).filter(|part| *part < nodes.len()).collect();
        let gone = missing.iter().find(|part| self.ended_ranks[**part] > 0);
        let why = if let Some(part) = gone {
            format!("fence {fence} waits for node {}, where a rank ended without coming to it", nodes[*part].node)
        } else if since.elapsed() > timeout && self.branch.carries(fence) {
            let Some(asked) = self.asked.as_ref().filter(|asked| asked.fence == fence) else {
                self.asked = Some(Asked { fence, at: Instant::now(), ranks: BTreeMap::new() });
                told(ToPart::NameAbsent).iter().for_each(|question| self.branch.tell(question));
                return;
            };
            if asked.at.elapsed() < ANSWER && !missing.iter().all(|part| asked.ranks.contains_key(part)) {
                return;
            }
            format!("PMI fence timeout: after {} s fence {fence} still waits for {}", timeout.as_secs(), asked.told(&missing, nodes))
        } else {
            return;
        };
        let abort = self.launch.abort(1, why);
        self.spread(abort);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_waits_names_ranks_and_nodes_and_not_too_many_of_them() {
        let nodes: Vec<NodeRanks> =
            (0..40).map(|i| NodeRanks { node: format!("n{i}").parse().unwrap(), first: i * 20, count: 20 }).collect();
        let ranks = BTreeMap::from([(1, vec![21]), (2, (40..60).collect())]);
        let asked = Asked { fence: 1, at: Instant::now(), ranks };
        let told = asked.told(&[1, 2, 3], &nodes);
        let expected = "rank 21 on node n1, ranks 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 4 more on node n2, \
                        node n3 (which of its 20 ranks it does not say)";
        assert_eq!(told, expected);
        assert!(asked.told(&(0..40).collect::<Vec<_>>(), &nodes).ends_with(", 24 more nodes"));
    }
}
