//! Simulated agents: each has its own certificate and connections, and a session that registers a node.
//!
//! ```text
//!   Conduct::Heartbeats   register ─▶ heartbeats                                          a lost session is a failure
//!   Conduct::Whole        register ─▶ heartbeats, reports about the shares in its list    ─▶ lost ─▶ register again
//!                                  └▶ the watch of its role; role api: also requests for the scheduler's lease
//! ```
//!
//! No agent runs work, gossips, or keeps what its watch delivers.

mod counts;
mod following;
mod session;
mod shares;

pub use counts::{Counts, Marked, Progress, Totals, monotonic_ns};
pub use session::{SIZE, Session};

use super::members::{Members, certificate, client_of};
use crate::cluster::Cluster;
use anyhow::{Result, bail, ensure};
use lattice_model::{Backoff, Incarnation, NodeId};
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Down, NodeHealth, Up};
use session::{Life, keys};
use shares::Shares;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The largest number of agents that register, or read the first list of their watch, at the same time.
pub const OPENING_MAX: usize = 32;
/// Pauses between two sessions, as those of agents.
const SESSION_PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// How long a heartbeat may be unacknowledged until the agent gives its session up, as agents do.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the agents do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// They hold their sessions and send heartbeats, each at its own moment of the interval.
    Heartbeats,
    /// They do what agents do with the quorum. The first heartbeat follows the registration at once.
    Whole {
        /// This many, the first ones, have role `api` and the agent roles `api` and `scheduler` (an agent's default):
        /// they follow all nodes and allocations. The others have role `node`, and follow their own node and the
        /// allocations on it.
        followers: usize,
    },
}

/// A number of agents.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// The number of the first one: it is in its name.
    pub first: usize,
    /// How many there are.
    pub count: usize,
    /// The interval of heartbeats.
    pub interval: Duration,
    /// What they do.
    pub conduct: Conduct,
}

/// The name of the simulated node with this number.
pub fn name_of(number: usize) -> String {
    format!("s{number:05}")
}

/// Agents with certificates and without connections.
pub struct Prepared {
    agents: Vec<Agent>,
    counts: Arc<Counts>,
}

impl Prepared {
    /// Issues the certificates.
    pub fn new(cluster: &Cluster, crowd: Crowd) -> Result<Self> {
        let counts = Arc::new(Counts::new(crowd.count));
        let agent = |index: usize| {
            let name = name_of(crowd.first + index);
            let (role, phase) = match crowd.conduct {
                Conduct::Heartbeats => (Role::Node, crowd.interval.mul_f64(index as f64 / crowd.count as f64)),
                Conduct::Whole { followers } => (if index < followers { Role::Api } else { Role::Node }, Duration::ZERO),
            };
            let client = client_of(cluster, certificate(cluster, &name, role)?)?;
            let (interval, conduct, counts) = (crowd.interval, crowd.conduct, Arc::clone(&counts));
            anyhow::Ok(Agent { index, node: name.parse()?, client, interval, phase, conduct, counts })
        };
        let agents = (0..crowd.count).map(agent).collect::<Result<_>>()?;
        Ok(Self { agents, counts })
    }

    /// Lets all of them register.
    pub fn open(self) -> Agents {
        let stop = CancellationToken::new();
        let opening = Arc::new(Semaphore::new(OPENING_MAX));
        let (registered, all) = mpsc::channel(self.agents.len().max(1));
        let mut tasks = JoinSet::new();
        for agent in self.agents {
            let (opening, registered, stop) = (Arc::clone(&opening), registered.clone(), stop.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => Ok(()),
                    ended = agent.run(opening, registered) => ended.map(|never| match never {}),
                }
            });
        }
        Agents { _stop: stop.drop_guard(), tasks, registered: all, counts: self.counts }
    }
}

/// Agents that hold their sessions until dropped.
pub struct Agents {
    _stop: DropGuard,
    tasks: JoinSet<Result<()>>,
    registered: mpsc::Receiver<()>,
    counts: Arc<Counts>,
}

impl Agents {
    /// Registers this many nodes and sends heartbeats, each at its own moment of the interval.
    pub async fn open(members: &Members, count: usize, interval: Duration) -> Result<Self> {
        let crowd = Crowd { first: 0, count, interval, conduct: Conduct::Heartbeats };
        let mut agents = Prepared::new(&members.cluster, crowd)?.open();
        for done in 0..count {
            if agents.registered.recv().await.is_none() {
                let ended = agents.tasks.join_next().await;
                bail!("only {done} of {count} agents could register: {ended:?}");
            }
        }
        Ok(agents)
    }

    /// Heartbeats acknowledged so far, over all agents.
    pub fn acknowledged(&self) -> u64 {
        self.counts.totals().acknowledged_heartbeats
    }

    /// What the agents received and did so far.
    pub fn totals(&self) -> Totals {
        self.counts.totals()
    }

    /// The course of their shares, sessions and watches.
    pub fn progress(&self) -> Progress {
        self.counts.progress()
    }

    /// Fails when an agent has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => bail!("an agent's session ended: {ended:?}"),
        }
    }
}

struct Agent {
    index: usize,
    node: NodeId,
    client: QuorumClient,
    interval: Duration,
    phase: Duration,
    conduct: Conduct,
    counts: Arc<Counts>,
}

impl Agent {
    async fn run(&self, opening: Arc<Semaphore>, registered: mpsc::Sender<()>) -> Result<Infallible> {
        let permit = opening.acquire_owned().await?;
        let session = Session::open(&self.client, self.node.as_str()).await?;
        self.counts.count_registered();
        registered.send(()).await?;
        drop(registered);
        match self.conduct {
            Conduct::Heartbeats => {
                drop(permit);
                self.live(session).await
            }
            Conduct::Whole { .. } => tokio::select! {
                ended = self.live(session) => ended,
                never = self.follow(permit) => match never {},
            },
        }
    }

    /// Follows the watch and, if the role has it, requests the scheduler's lease.
    async fn follow(&self, permit: OwnedSemaphorePermit) -> Infallible {
        let watch = following::follow(&self.client, &self.counts, self.index, permit);
        match self.client.role() {
            Role::Api => tokio::select! {
                never = watch => never,
                never = following::ask_for_lease(&self.client, self.node.clone(), &self.counts) => never,
            },
            Role::Node | Role::Quorum | Role::Operator | Role::Service => watch.await,
        }
    }

    /// Serves one session after the other.
    async fn live(&self, mut session: Session) -> Result<Infallible> {
        let mut shares = Shares::new(self.node.clone(), session.incarnation);
        let mut pauses = SESSION_PAUSES;
        loop {
            let began = Instant::now();
            self.counts.count_session();
            self.counts.add_reports(shares.begin_session(session.report_seq));
            let Err(ended) = self.serve(&mut session, &mut shares).await;
            match self.conduct {
                Conduct::Heartbeats => return Err(ended.context(format!("the session of {}", self.node))),
                Conduct::Whole { .. } => self.counts.count_lost_session(),
            }
            if began.elapsed() > HEARTBEAT_TIMEOUT {
                pauses.reset();
            }
            let life = Life { incarnation: session.incarnation, is_new: false };
            session = loop {
                tokio::time::sleep(pauses.next_pause().mul_f64(rand::random_range(0.5..1.0))).await;
                // Why a registration failed does not matter: the number of lost sessions is in the report.
                if let Ok(session) = Session::register(&self.client, &self.node, life).await {
                    break session;
                }
            };
            let (before, now) = (life.incarnation, session.incarnation);
            ensure!(before == now, "{} registered again as incarnation {now:?} instead of {before:?}", self.node);
        }
    }

    /// One session, from its registration to its end.
    async fn serve(&self, session: &mut Session, shares: &mut Shares) -> Result<Infallible> {
        let mut seq = 0;
        let mut next = tokio::time::Instant::now() + self.phase;
        let mut unanswered = None;
        let mut counted = 0;
        loop {
            let timeout = unanswered.map_or(next + self.interval, |since| since + HEARTBEAT_TIMEOUT);
            tokio::select! {
                () = tokio::time::sleep_until(next) => {
                    seq += 1;
                    next += self.interval;
                    unanswered.get_or_insert(tokio::time::Instant::now());
                    session.send(self.heartbeat(session.incarnation, seq, shares)).await?;
                }
                () = tokio::time::sleep_until(timeout), if unanswered.is_some() && self.conduct != Conduct::Heartbeats => {
                    self.client.leave(session.down.member());
                    bail!("heartbeats are not acknowledged");
                }
                message = session.down.next() => {
                    self.counts.add_received(self.index, session.down.received_bytes() - counted);
                    counted = session.down.received_bytes();
                    match message? {
                        Down::HeartbeatAck { .. } => {
                            self.counts.count_heartbeat();
                            unanswered = None;
                        }
                        ended @ (Down::Close { .. } | Down::Removed { .. } | Down::RegisterAgain { .. } | Down::Move) => {
                            self.client.leave(session.down.member());
                            bail!("it was sent away: {ended:?}");
                        }
                        message => self.handle(message, session, shares).await?,
                    }
                }
            }
        }
    }

    async fn handle(&self, message: Down, session: &Session, shares: &mut Shares) -> Result<()> {
        match message {
            Down::Desired(list) if self.conduct != Conduct::Heartbeats => {
                self.counts.add_shares(shares.take(&list));
                for report in shares.send_next() {
                    session.send(Up::Report(report)).await?;
                }
            }
            Down::Acked { incarnation, seq, .. } if incarnation == session.incarnation => {
                self.counts.add_reports(shares.acknowledge(seq));
            }
            Down::Desired(_)
            | Down::Acked { .. }
            | Down::HeartbeatAck { .. }
            | Down::Close { .. }
            | Down::Removed { .. }
            | Down::Move
            | Down::RegisterAgain { .. }
            | Down::Registered { .. }
            | Down::Members(_)
            | Down::Keyring { .. }
            | Down::Revoked { .. }
            | Down::QueryGossip { .. } => {}
        }
        Ok(())
    }

    fn heartbeat(&self, incarnation: Incarnation, seq: u64, shares: &Shares) -> Up {
        let running = match self.conduct {
            Conduct::Heartbeats => Some(0),
            Conduct::Whole { .. } => shares.running(),
        };
        Up::Heartbeat { incarnation, seq, keys: Some(keys()), health: Some(NodeHealth::Well), conformance: None, stale: false, running }
    }
}
