//! Launches headed by this node: a task each, in the middle of a star.
//!
//! ```text
//!                    ┌───────── head task ─────────┐
//!   part task 0 ─────┤ LaunchHead   how ranks end  ├───── part task 1 ── mesh ── agent of node 1
//!   (this node)      │ FenceHub     fences merged  │
//!                    └─────────────────────────────┘
//! ```
//!
//! A part task keeps the line to its node and makes it anew when it breaks; after each connect the node tells all that
//! it knows, so a head that was restarted, or a part that was away, misses nothing. A silent node is no reason to abort.

use crate::allocation::AllocationHandle;
use crate::context::Shared;
use crate::mesh::frame::{self, Open, ToHead, ToPart, WireLaunch};
use lattice_model::{AllocationId, DesiredShare, Entrypoint, LaunchId, LaunchSpec, MemoryKill, NodeId};
use lattice_node::{LaunchEnd, LaunchHead, PartEvent};
use lattice_pmi::FenceHub;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Messages waiting for a head, and for one part.
const QUEUE: usize = 256;
/// Ended launches of one allocation whose end is remembered for a caller that comes back.
const ENDED_REMEMBERED: usize = 256;
/// How long after its end was told a launch is still known to its nodes: for a caller whose connection broke before
/// it heard the end.
const FORGET_AFTER: Duration = Duration::from_secs(20);
/// How often a waiting fence is looked at.
const FENCE_LOOK: Duration = Duration::from_millis(250);

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

    fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn view(&self) -> LaunchView {
        LaunchView { spec: Arc::clone(&self.spec), ended: self.ended.clone() }
    }
}

fn begin_in(map: &mut BTreeMap<LaunchId, Entry>, context: &Shared, share: &Arc<DesiredShare>, spec: LaunchSpec) -> LaunchView {
    if let Some(entry) = map.get(&spec.id) {
        return entry.view();
    }
    let (ended, view) = watch::channel(None);
    let (abort, aborts) = mpsc::channel(1);
    let (forget, stop) = (CancellationToken::new(), CancellationToken::new());
    let spec = Arc::new(spec);
    let entry = Entry { spec: Arc::clone(&spec), ended: view, forget: forget.clone(), stop: stop.clone(), abort, told: false };
    let view = entry.view();
    map.insert(spec.id, entry);
    tokio::spawn(head(Arc::clone(context), Arc::clone(share), spec, Signals { ended, aborts, forget, stop }));
    view
}

/// How the registry and a head's task speak.
struct Signals {
    ended: watch::Sender<Option<LaunchEnd>>,
    aborts: mpsc::Receiver<Abort>,
    forget: CancellationToken,
    stop: CancellationToken,
}

/// What a part task tells the head.
enum FromPart {
    Connected,
    Disconnected,
    Said(ToHead),
}

async fn head(context: Shared, share: Arc<DesiredShare>, spec: Arc<LaunchSpec>, signals: Signals) {
    let Signals { ended, mut aborts, forget, stop } = signals;
    let (said, mut heard) = mpsc::channel(QUEUE);
    let (parts, queues): (Vec<_>, Vec<_>) = spec.nodes.iter().map(|_| mpsc::channel(QUEUE)).unzip();
    let mut queues: Vec<Option<mpsc::Receiver<ToPart>>> = queues.into_iter().map(Some).collect();
    let mut begin = |which: &dyn Fn(&NodeId) -> bool| {
        for (index, ranks) in spec.nodes.iter().enumerate().filter(|(_, ranks)| which(&ranks.node)) {
            let Some(queue) = queues[index].take() else { continue };
            let (context, share, spec) = (Arc::clone(&context), Arc::clone(&share), Arc::clone(&spec));
            let part = PartTask { context, share, spec, node: ranks.node.clone(), index };
            tokio::spawn(part.run(queue, said.clone(), stop.clone()));
        }
    };
    // This node's shim is the launch's memory: the others begin once it has it, so that a head that is killed in between
    // leaves no ranks that nobody knows of.
    let here = spec.part(&context.me).is_some();
    begin(&|node| !here || node == &context.me);
    let mut state = Head {
        launch: LaunchHead::new(LaunchSpec::clone(&spec)),
        hub: FenceHub::new(spec.nodes.len()),
        connected: vec![false; spec.nodes.len()],
        ended_ranks: vec![0; spec.nodes.len()],
        parts,
        waiting_since: None,
    };
    let mut look = tokio::time::interval(FENCE_LOOK);
    while state.launch.end().is_none() {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = look.tick() => state.look_at_fence(context.fence_timeout).await,
            Some(Abort { code, why }) = aborts.recv() => {
                let abort = state.launch.abort(code, why);
                state.spread(abort).await;
            }
            message = heard.recv() => {
                let Some((part, message)) = message else { return };
                if matches!(message, FromPart::Said(_)) && !matches!(message, FromPart::Said(ToHead::Synced)) {
                    begin(&|_| true);
                }
                state.heard(part, message).await;
            }
        }
    }
    ended.send_replace(state.launch.end());
    tokio::select! {
        () = stop.cancelled() => return,
        () = forget.cancelled() => {}
        // Parts that reconnect after the end have nothing to say that matters; their queue must not fill.
        () = async { while heard.recv().await.is_some() {} } => {}
    }
    for part in &state.parts {
        let _ = part.send(ToPart::Forget).await;
    }
}

struct Head {
    launch: LaunchHead,
    hub: FenceHub,
    connected: Vec<bool>,
    ended_ranks: Vec<u32>,
    parts: Vec<mpsc::Sender<ToPart>>,
    waiting_since: Option<(u32, Instant)>,
}

impl Head {
    async fn heard(&mut self, part: usize, message: FromPart) {
        let abort = match message {
            FromPart::Connected => {
                self.connected[part] = true;
                None
            }
            FromPart::Disconnected => {
                self.connected[part] = false;
                self.waiting_since = None;
                None
            }
            FromPart::Said(ToHead::Begun) => None,
            FromPart::Said(ToHead::RankEnded { rank, outcome }) => {
                self.ended_ranks[part] += 1;
                self.launch.handle(part, PartEvent::RankEnded { rank, outcome: outcome.into() })
            }
            FromPart::Said(ToHead::Aborted { code, why }) => self.launch.handle(part, PartEvent::Aborted { code, why }),
            FromPart::Said(ToHead::OutOfMemory { launch, whole, had_bytes, limit_bytes }) => {
                let kill = MemoryKill { launch, whole, had_bytes, limit_bytes };
                self.launch.handle(part, PartEvent::OutOfMemory { kill })
            }
            FromPart::Said(ToHead::WalltimeOver) => self.launch.handle(part, PartEvent::WalltimeOver),
            FromPart::Said(ToHead::Lost { why }) => self.launch.handle(part, PartEvent::Lost { why }),
            FromPart::Said(ToHead::Fence { number, blob }) => match self.hub.contribute(part, number, blob) {
                Ok(Some(merged)) => {
                    self.waiting_since = None;
                    for to_part in &self.parts {
                        let _ = to_part.send(ToPart::FenceDone { number: merged.number, blob: merged.blob.to_vec() }).await;
                    }
                    None
                }
                Ok(None) => None,
                Err(refused) => self.launch.abort(1, refused.to_string()),
            },
            FromPart::Said(ToHead::Synced) => {
                if let Some((code, why)) = self.launch.aborted() {
                    let _ = self.parts[part].send(ToPart::Abort { code: *code, why: why.clone() }).await;
                } else if let Some(merged) = self.hub.resume(part) {
                    let _ = self.parts[part].send(ToPart::FenceDone { number: merged.number, blob: merged.blob.to_vec() }).await;
                }
                None
            }
        };
        self.spread(abort).await;
    }

    async fn spread(&mut self, abort: Option<(i32, String)>) {
        let Some((code, why)) = abort else { return };
        tracing::info!(launch = %self.launch.spec().id, code, %why, "a launch is brought down");
        for part in &self.parts {
            let _ = part.send(ToPart::Abort { code, why: why.clone() }).await;
        }
    }

    /// A fence that waits for a node whose ranks ended waits for ever; one that waits too long while every node is
    /// connected has failed. While a node is away, the clock stands.
    async fn look_at_fence(&mut self, timeout: Duration) {
        let Some((number, missing)) = self.hub.waiting_for() else {
            self.waiting_since = None;
            return;
        };
        if !self.connected.iter().all(|c| *c) {
            self.waiting_since = None;
            return;
        }
        let since = match self.waiting_since {
            Some((n, since)) if n == number => since,
            Some(_) | None => Instant::now(),
        };
        self.waiting_since = Some((number, since));
        let nodes = &self.launch.spec().nodes;
        let gone = missing.iter().find(|p| self.ended_ranks[**p] > 0).map(|p| nodes[*p].node.clone());
        let abort = if let Some(node) = gone {
            self.launch.abort(1, format!("fence {number} waits for node {node}, where a rank ended without coming to it"))
        } else if since.elapsed() > timeout {
            let names: Vec<String> = missing.iter().map(|p| nodes[*p].node.to_string()).collect();
            self.launch
                .abort(1, format!("PMI fence timeout: after {} s fence {number} still waits for {}", timeout.as_secs(), names.join(", ")))
        } else {
            None
        };
        self.spread(abort).await;
    }
}

/// Keeps the line to one node of the launch.
struct PartTask {
    context: Shared,
    share: Arc<DesiredShare>,
    spec: Arc<LaunchSpec>,
    node: NodeId,
    index: usize,
}

impl PartTask {
    async fn run(self, mut queue: mpsc::Receiver<ToPart>, said: mpsc::Sender<(usize, FromPart)>, stop: CancellationToken) {
        let mut pause = Duration::from_millis(50);
        loop {
            let connected = tokio::select! {
                () = stop.cancelled() => return,
                connected = self.connect() => connected,
            };
            if let Some(mut line) = connected {
                if said.send((self.index, FromPart::Connected)).await.is_err() {
                    return;
                }
                pause = Duration::from_millis(50);
                loop {
                    tokio::select! {
                        () = stop.cancelled() => return,
                        message = queue.recv() => {
                            let Some(message) = message else { return };
                            if !line.send(message).await {
                                break;
                            }
                        }
                        message = line.next() => {
                            let Some(message) = message else { break };
                            if said.send((self.index, FromPart::Said(message))).await.is_err() {
                                return;
                            }
                        }
                    }
                }
                if said.send((self.index, FromPart::Disconnected)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    async fn connect(&self) -> Option<Line> {
        if self.node == self.context.me {
            let handle = self.context.workers.of_epoch(self.spec.allocation, self.spec.epoch)?;
            let heard = handle.attach(&self.context.me, LaunchSpec::clone(&self.spec)).await;
            return Some(Line::Here { launch: self.spec.id, handle, heard });
        }
        let address = self.context.mesh_address(&self.share, &self.node)?;
        let opened = self.context.mesh.open(&self.node, &address).await;
        let (mut send, recv) = match opened {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(node = %self.node, %error, "a part of a launch cannot be reached now");
                return None;
            }
        };
        frame::write(&mut send, &Open::Part(WireLaunch::from(&*self.spec))).await.ok()?;
        // Reading a frame is not safe to abandon half-way: a task of its own does it.
        let (to_line, heard) = mpsc::channel(QUEUE);
        tokio::spawn(read_frames(recv, to_line));
        Some(Line::There { send, heard })
    }
}

async fn read_frames(mut recv: quinn::RecvStream, to_line: mpsc::Sender<ToHead>) {
    while let Ok(message) = frame::read::<ToHead, _>(&mut recv).await {
        if to_line.send(message).await.is_err() {
            return;
        }
    }
}

/// The way to a part, on this node or another.
enum Line {
    Here { launch: LaunchId, handle: AllocationHandle, heard: mpsc::Receiver<ToHead> },
    There { send: quinn::SendStream, heard: mpsc::Receiver<ToHead> },
}

impl Line {
    async fn send(&mut self, message: ToPart) -> bool {
        match self {
            Self::Here { launch, handle, .. } => {
                handle.pass_on(*launch, message).await;
                true
            }
            Self::There { send, .. } => frame::write(send, &message).await.is_ok(),
        }
    }

    async fn next(&mut self) -> Option<ToHead> {
        match self {
            Self::Here { heard, .. } | Self::There { heard, .. } => heard.recv().await,
        }
    }
}
