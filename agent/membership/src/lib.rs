//! The tokio shell around gossip's core: a UDP socket, timers, and a published list of members.
//!
//! Whenever gossip raises this node's life number during a run, the new one is stored in
//! `gossip-life.json`, so that the next start begins above it.

pub mod cluster;
pub mod directory;
pub mod gossip_keys;
mod nodes_asked;
pub mod peers;
pub mod quorum_clock;
pub mod quorum_list;
pub mod relay;
pub mod revocations;

use lattice_agent_common::{clock, files};
use lattice_gossip::{Core, Counters, Event, Fact, Keyring, Liveness, Member, News, Output, Refusals, Token};
use lattice_model::duration::clock_text;
use lattice_model::{NodeId, Timestamp, millis};
use lattice_scheduler::Gossiped;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::UdpSocket;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Requests to the gossip task.
#[derive(Debug)]
pub enum Ask {
    /// Join through this address.
    Join(SocketAddr),
    /// Publish this fact about this node.
    SetFact(Fact),
    /// Leave gossip until [`Ask::Return`].
    Leave,
    /// Return to gossip, after [`Ask::Leave`].
    Return,
    /// Use these keys, and answer when they are in use.
    Rekey(Box<Keyring>, oneshot::Sender<()>),
}

/// Changes queued for one follower; beyond this, the oldest are dropped and the follower is
/// notified of that.
const CHANGES_MAX: usize = 1_024;

/// Gossip's counters, and its estimate of how slow this node is.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// See [`Counters`].
    pub counters: Counters,
    /// See [`Core::health`].
    pub health: u32,
}

/// One change of the list of members.
#[derive(Clone, Debug)]
pub struct Change {
    /// The kind of change.
    pub news: News,
    /// The node after the change; `None`: it was forgotten, or the change is [`News::Rejoined`].
    pub member: Option<Member>,
}

/// A cloneable handle on the gossip task.
#[derive(Clone)]
pub struct Membership {
    asks: mpsc::Sender<Ask>,
    members: watch::Receiver<Arc<Vec<Member>>>,
    counted: watch::Receiver<Counted>,
    changes: broadcast::Sender<Change>,
    began: Instant,
}

impl Membership {
    /// Starts gossip over `socket` as a task of `tasks`.
    ///
    /// If gossip raises this node's life number, the new one is stored in `state_dir`.
    pub fn start(core: Core, socket: UdpSocket, state_dir: &Path, tasks: &TaskTracker, stop: CancellationToken) -> Self {
        let (asks, queue) = mpsc::channel(64);
        let (view, members) = watch::channel(Arc::new(Vec::new()));
        let (counts, counted) = watch::channel(Counted::default());
        let (changes, _) = broadcast::channel(CHANGES_MAX);
        let began = Instant::now();
        let (life_file, timers) = (life_file(state_dir), BinaryHeap::new());
        let (changes_out, of_task) = (changes.clone(), tasks.clone());
        let task = Task { core, socket, timers, began, order: 0, view, counts, changes: changes_out, life_file, tasks: of_task };
        tasks.spawn(task.run(queue, stop));
        Self { asks, members, counted, changes, began }
    }

    /// Sends a request; waits while the task's queue is full.
    pub async fn ask(&self, ask: Ask) {
        let _ = self.asks.send(ask).await;
    }

    /// All members that gossip lists, ordered by node.
    pub fn members(&self) -> Arc<Vec<Member>> {
        Arc::clone(&self.members.borrow())
    }

    /// Replaces the keys; returns once the new ones are in use.
    pub async fn rekey(&self, keys: Keyring) {
        let (done, in_use) = oneshot::channel();
        self.ask(Ask::Rekey(Box::new(keys), done)).await;
        // An error means that gossip has stopped together with the agent.
        let _ended = in_use.await;
    }

    /// Datagrams refused, by reason.
    pub fn refused(&self) -> Refusals {
        self.counted.borrow().counters.refused
    }

    /// A snapshot of the counters.
    pub fn counted(&self) -> Counted {
        self.counted.borrow().clone()
    }

    /// How long, in milliseconds, a member has been in its present state.
    pub fn for_ms(&self, member: &Member) -> u64 {
        self.ago_ms(member.since_ms)
    }

    /// Milliseconds since the time `since_ms` on gossip's clock.
    pub fn ago_ms(&self, since_ms: u64) -> u64 {
        millis(self.began.elapsed()).saturating_sub(since_ms)
    }

    /// A warning if other members contradict what this node, `me`, says of itself.
    pub fn contradiction(&self, me: &NodeId) -> Option<String> {
        let members = self.members();
        let since_ms = members.iter().find(|member| member.node == *me)?.contradicted_since_ms?;
        let since = clock_text(Duration::from_secs(self.ago_ms(since_ms) / 1_000));
        Some(format!(
            "for {since} other nodes have received an incarnation or a state of this node that it never published. Either another \
             agent runs under its name, or somebody has the gossip key: replace that with `lattice gossip keys rotate`"
        ))
    }

    /// A stream of all changes from now on.
    pub fn follow(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// A watch on the list of members.
    pub fn watch(&self) -> watch::Receiver<Arc<Vec<Member>>> {
        self.members.clone()
    }

    /// What gossip shows of the nodes, for the scheduler.
    pub fn gossiped(&self) -> Gossiped {
        let now = clock::now();
        let before = |ms| Timestamp(now.0.saturating_sub(ms));
        let (mut alive, mut silent_since) = (BTreeSet::new(), BTreeMap::new());
        for member in self.members().iter() {
            match member.liveness {
                Liveness::Alive => drop(alive.insert(member.node.clone())),
                Liveness::Suspect | Liveness::Down => drop(silent_since.insert(member.node.clone(), before(self.for_ms(member)))),
            }
        }
        Gossiped { alive, silent_since, gossips_since: before(self.ago_ms(0)) }
    }

    /// The nodes that gossip sees alive.
    pub fn alive(&self) -> BTreeSet<NodeId> {
        let alive = |m: &&Member| m.liveness == Liveness::Alive;
        self.members.borrow().iter().filter(alive).map(|m| m.node.clone()).collect()
    }
}

struct Task {
    core: Core,
    socket: UdpSocket,
    timers: BinaryHeap<Reverse<(Instant, u64, TimerToken)>>,
    began: Instant,
    order: u64,
    view: watch::Sender<Arc<Vec<Member>>>,
    counts: watch::Sender<Counted>,
    changes: broadcast::Sender<Change>,
    life_file: PathBuf,
    tasks: TaskTracker,
}

/// Compares equal to all tokens, so that it never decides the order of timers.
struct TimerToken(Token);

impl PartialEq for TimerToken {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for TimerToken {}
impl PartialOrd for TimerToken {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for TimerToken {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Task {
    async fn run(mut self, mut asks: mpsc::Receiver<Ask>, stop: CancellationToken) {
        let mut buffer = vec![0u8; 65_536];
        self.publish();
        loop {
            let next = self.timers.peek().map(|Reverse((at, ..))| *at);
            tokio::select! {
                () = stop.cancelled() => {
                    self.handle(Event::Leave);
                    return;
                }
                received = self.socket.recv_from(&mut buffer) => {
                    // An error concerns an earlier datagram of ours, whose receiver is unreachable.
                    if let Ok((n, from)) = received {
                        self.handle(Event::Datagram { from, bytes: &buffer[..n] });
                    }
                }
                ask = asks.recv() => match ask {
                    Some(Ask::Join(address)) => self.handle(Event::Join(address)) ,
                    Some(Ask::SetFact(fact)) => {
                        self.handle(Event::SetFact(fact));
                        // This node's own fact is no news.
                        self.publish();
                    }
                    Some(Ask::Leave) => self.handle(Event::Leave),
                    Some(Ask::Return) => self.handle(Event::Return),
                    Some(Ask::Rekey(keys, done)) => {
                        self.handle(Event::SetKeys(&keys));
                        let _nobody_waits = done.send(());
                    }
                    None => return,
                },
                () = sleep_until(next) => {
                    if let Some(Reverse((_, _, TimerToken(token)))) = self.timers.pop() {
                        self.handle(Event::Timer(token));
                    }
                }
            }
        }
    }

    fn now_ms(&self) -> u64 {
        millis(self.began.elapsed())
    }

    fn handle(&mut self, event: Event<'_>) {
        let mut out = Vec::new();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis);
        self.core.set_clock(self.now_ms(), unix);
        self.core.handle(self.now_ms(), event, &mut out);
        if self.carry_out(out) {
            self.publish();
        }
        self.counts.send_replace(Counted { counters: self.core.counters().clone(), health: self.core.health() });
    }

    fn carry_out(&mut self, out: Vec<Output>) -> bool {
        let mut news = false;
        for output in out {
            match output {
                Output::Datagram { to, bytes } => {
                    // Gossip tolerates lost datagrams; one that the socket's full buffer refuses is
                    // just another one.
                    let _ = self.socket.try_send_to(&bytes, to);
                }
                Output::Timer { after_ms, token } => {
                    self.order += 1;
                    let at = Instant::now() + Duration::from_millis(after_ms);
                    self.timers.push(Reverse((at, self.order, TimerToken(token))));
                }
                Output::News(what) => {
                    tracing::debug!(?what, "gossip");
                    news = true;
                    if what == News::Rejoined {
                        self.store_life();
                    }
                    if self.changes.receiver_count() > 0 {
                        let member = what.node().and_then(|node| self.core.member(node));
                        let _nobody_follows_any_more = self.changes.send(Change { news: what, member });
                    }
                }
            }
        }
        news
    }

    /// Stores the life number in the background. If that fails or comes too late, the next start
    /// learns the number from other members.
    fn store_life(&self) {
        let (path, life) = (self.life_file.clone(), self.core.life());
        self.tasks.spawn_blocking(move || {
            if let Err(error) = files::replace(&path, serde_json::json!({ "life": life }).to_string().as_bytes()) {
                tracing::warn!(%error, path = %path.display(), "this node's life number in gossip could not be saved");
            }
        });
    }

    fn publish(&self) {
        self.view.send_replace(Arc::new(self.core.members().collect()));
    }
}

fn life_file(state_dir: &Path) -> PathBuf {
    state_dir.join("gossip-life.json")
}

/// The life number to start with, above all earlier ones of this node. `life` is above those of all
/// earlier starts; the stored one may be higher.
pub fn first_life(state_dir: &Path, life: u64) -> u64 {
    let read = || {
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(life_file(state_dir)).ok()?).ok()?;
        json["life"].as_u64()
    };
    life.max(read().map_or(0, |kept| kept.saturating_add(1)))
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
