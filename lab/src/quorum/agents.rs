//! Simulated agents: each is a session with its own certificate that registers a node and sends heartbeats.

use super::members::{Members, certificate};
use anyhow::{Context, Result, bail, ensure};
use lattice_model::{Boot, Incarnation, NodeAddresses, Resources};
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Down, HeldKeys, NodeHealth, Up};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

/// The resources of each node. Its cores are claimed one by one.
pub const SIZE: Resources = Resources { cores: 64, memory_bytes: 256 << 30, gpus: 0 };
/// The largest number of simultaneous handshakes.
const OPENING_MAX: usize = 32;
/// How long one agent may take to register.
const REGISTER_MAX: Duration = Duration::from_secs(60);

/// Agents that hold their sessions until dropped.
pub struct Agents {
    _stop: DropGuard,
    tasks: JoinSet<Result<()>>,
    acknowledged: Arc<AtomicU64>,
}

impl Agents {
    /// Registers this many nodes and sends heartbeats, each at its own moment of the interval.
    pub async fn open(members: &Members, count: usize, interval: Duration) -> Result<Self> {
        let stop = CancellationToken::new();
        let acknowledged = Arc::new(AtomicU64::new(0));
        let opening = Arc::new(Semaphore::new(OPENING_MAX));
        let (registered, mut all) = tokio::sync::mpsc::channel(count);
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let name = format!("s{number:05}");
            let client = members.client_as(certificate(&members.cluster, &name, Role::Node)?)?;
            let agent = Agent { name, client, interval, phase: interval.mul_f64(number as f64 / count as f64) };
            let (opening, registered, stop, acknowledged) =
                (Arc::clone(&opening), registered.clone(), stop.clone(), Arc::clone(&acknowledged));
            tasks.spawn(async move {
                let permit = opening.acquire_owned().await?;
                let session = agent.register().await?;
                drop(permit);
                registered.send(()).await?;
                drop(registered);
                tokio::select! {
                    () = stop.cancelled() => Ok(()),
                    ended = agent.live(session, &acknowledged) => ended,
                }
            });
        }
        drop(registered);
        for done in 0..count {
            if all.recv().await.is_none() {
                let ended = tasks.join_next().await;
                bail!("only {done} of {count} agents could register: {ended:?}");
            }
        }
        Ok(Self { _stop: stop.drop_guard(), tasks, acknowledged })
    }

    /// Heartbeats acknowledged so far, over all agents.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Fails when an agent lost its session.
    pub fn check(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => bail!("an agent's session ended: {ended:?}"),
        }
    }
}

struct Agent {
    name: String,
    client: QuorumClient,
    interval: Duration,
    phase: Duration,
}

/// A node's session.
pub struct Session {
    up: tokio::sync::mpsc::Sender<Up>,
    /// The member's messages.
    pub down: lattice_quorum_client::DownStream,
    incarnation: Incarnation,
}

impl Session {
    /// Registers a node with one of the members that `client` knows.
    pub async fn open(client: &QuorumClient, name: &str) -> Result<Self> {
        let registration = Up::Register {
            node: name.parse()?,
            boot: Boot(Uuid::nil()),
            size: SIZE,
            addresses: NodeAddresses { mesh: format!("{name}:9401"), gossip: format!("{name}:9402") },
            schedulable: true,
            incarnation: Incarnation(0),
            new_life: true,
            unlimited: vec![],
            features: Default::default(),
            found: None,
            keys: keys(),
            through: None,
            wipes: false,
            health: NodeHealth::Well,
            conformance: None,
        };
        let end = Instant::now() + REGISTER_MAX;
        loop {
            let why = match client.session(registration.clone()).await {
                Ok((up, mut down)) => match down.next().await {
                    Ok(Down::Registered { incarnation, .. }) => return Ok(Self { up, down, incarnation }),
                    other => format!("{other:?}"),
                },
                Err(error) => error.to_string(),
            };
            ensure!(Instant::now() < end, "{name} cannot register: {why}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the member ends this session; returns its text.
    pub async fn sent_away(&mut self) -> Result<String> {
        loop {
            if let Down::Close { why } | Down::Removed { why } = self.down.next().await? {
                return Ok(why);
            }
        }
    }
}

/// The report of an agent that seals its gossip with the key of its configuration.
fn keys() -> HeldKeys {
    HeldKeys { opens: vec![0], seals: 0 }
}

impl Agent {
    async fn register(&self) -> Result<Session> {
        Session::open(&self.client, &self.name).await
    }

    async fn live(&self, mut session: Session, acknowledged: &AtomicU64) -> Result<()> {
        let mut seq = 0;
        let mut next = tokio::time::Instant::now() + self.phase;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => {
                    seq += 1;
                    next += self.interval;
                    let beat = Up::Heartbeat { incarnation: session.incarnation, seq, keys: Some(keys()), health: Some(NodeHealth::Well), conformance: None, stale: false, running: Some(0) };
                    session.up.send(beat).await.context("the session is over")?;
                }
                message = session.down.next() => match message? {
                    Down::HeartbeatAck { .. } => {
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                    Down::Close { why } | Down::Removed { why } => bail!("{} was sent away: {why}", self.name),
                    Down::Move => bail!("{} was sent to another member", self.name),
                    Down::Registered { .. } | Down::Desired(_) | Down::Acked { .. } | Down::Members(_) | Down::Keyring { .. } | Down::Revoked { .. } | Down::Hear { .. } => {}
                },
            }
        }
    }
}
