//! The session of a simulated node.

use anyhow::{Context, Result, bail, ensure};
use lattice_model::{Boot, Incarnation, Locality, NodeAddresses, NodeId, Resources};
use lattice_quorum_client::wire::{Down, HeldKeys, NodeHealth, Up};
use lattice_quorum_client::{DownStream, QuorumClient};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use uuid::Uuid;

/// The resources of each node. Its cores are claimed one by one.
pub const SIZE: Resources = Resources { cores: 64, memory_bytes: 256 << 30, gpus: 0 };
/// How long one agent may take to register.
const REGISTER_MAX: Duration = Duration::from_secs(60);

/// A registration's part that differs between the sessions of one agent.
#[derive(Clone, Copy)]
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    pub(super) is_new: bool,
}

/// A node's session.
pub struct Session {
    up: mpsc::Sender<Up>,
    /// The member's messages.
    pub down: DownStream,
    pub(super) incarnation: Incarnation,
    /// The last report that the quorum has of this incarnation.
    pub(super) report_seq: u64,
}

impl Session {
    /// Registers a node with one of the members that `client` knows.
    pub async fn open(client: &QuorumClient, name: &str) -> Result<Self> {
        let (node, life) = (name.parse()?, Life { incarnation: Incarnation(0), is_new: true });
        let end = Instant::now() + REGISTER_MAX;
        loop {
            match Self::register(client, &node, life).await {
                Ok(session) => return Ok(session),
                Err(why) => ensure!(Instant::now() < end, "{name} cannot register: {why:#}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) async fn register(client: &QuorumClient, node: &NodeId, life: Life) -> Result<Self> {
        let registration = Up::Register {
            node: node.clone(),
            boot: Boot(Uuid::nil()),
            size: SIZE,
            addresses: NodeAddresses { mesh: format!("{node}:9401"), gossip: format!("{node}:9402") },
            schedulable: true,
            incarnation: life.incarnation,
            new_life: life.is_new,
            replaces: None,
            unenforced_limits: vec![],
            features: Default::default(),
            topology_group: None,
            locality: Locality::default(),
            found: None,
            keys: keys(),
            relay_node: None,
            has_wipe_hook: false,
            health: NodeHealth::Well,
            conformance: None,
        };
        let (up, mut down) = client.session(registration).await?;
        match down.next().await? {
            Down::Registered { incarnation, report_seq, .. } => Ok(Self { up, down, incarnation, report_seq }),
            other => {
                client.leave(down.member());
                bail!("{other:?}")
            }
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

    pub(super) async fn send(&self, up: Up) -> Result<()> {
        self.up.send(up).await.context("the session is over")
    }
}

/// The report of an agent that seals its gossip with the key of its configuration.
pub(super) fn keys() -> HeldKeys {
    HeldKeys { opens: vec![0], seals: 0 }
}
