//! The sockets: quorum, mesh, gossip, and the API's.

use super::network_api::NetworkApi;
use anyhow::Context as _;
use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_gossip::{Core, Identity, Key, Keyring};
use lattice_machine::fabric::Fabric;
use lattice_membership as membership;
use lattice_membership::gossip_keys::GossipKeys;
use lattice_membership::peers::Peers;
use lattice_membership::revocations::Revocations;
use lattice_membership::{Ask, Membership};
use lattice_mesh::{Incoming, Mesh};
use lattice_model::Backoff;
use lattice_pki::credentials::Credentials;
use lattice_quorum_client::QuorumClient;
use lattice_service as service;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::net::{UdpSocket, UnixListener};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The shortest and longest pause before a seed's name is resolved again.
const SEED_PAUSE: Duration = Duration::from_secs(1);
const SEED_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The connections from this agent to others, and from others to it.
pub struct Connections {
    pub quorum: QuorumClient,
    pub mesh: Mesh,
    pub incoming: mpsc::Receiver<Incoming>,
    pub problems: NodeProblems,
    pub fabric: Fabric,
    pub revocations: Revocations,
    /// The keys that seal gossip.
    pub keys: GossipKeys,
    pub peers: Peers,
    pub membership: Membership,
    /// The API on the network, if this agent serves it.
    pub network_api: Option<NetworkApi>,
    /// The API's socket.
    pub listener: UnixListener,
}

impl Connections {
    /// Opens the sockets. `life`: the journal's number of this run of the agent.
    pub async fn open(
        config: &AgentConfig,
        credentials: &Credentials,
        gossip_key: Key,
        life: u64,
        tasks: &TaskTracker,
        stop: &CancellationToken,
        degraded: &mut Vec<String>,
    ) -> anyhow::Result<Self> {
        let quorum = QuorumClient::new(config.quorum.clone(), credentials.clone())?;
        let (mesh, incoming) = Mesh::listen(config.mesh.listen().parse()?, credentials, stop.child_token())?;
        let problems = NodeProblems::default();
        let fabric = Fabric::open(config, problems.clone())?;
        let revocations = Revocations::open(&config.state_dir, credentials.revoked().clone(), problems.clone(), degraded);
        let keys = GossipKeys::open(&config.state_dir, gossip_key, problems.clone(), degraded);
        let peers = Peers::open(&config.state_dir);
        let membership = gossip(config, &peers, keys.keyring(), life, tasks, stop.child_token()).await?;
        let network_api = NetworkApi::open(config, credentials, &quorum).await?;
        let listener = service::bind(&config.socket).with_context(|| format!("socket {}", config.socket.display()))?;
        Ok(Self { quorum, mesh, incoming, problems, fabric, revocations, keys, peers, membership, network_api, listener })
    }
}

/// Joins gossip at the seeds, as soon as their names can be resolved: a name service that does not
/// answer delays no start, and holds one thread at most.
async fn join(mut seeds: Vec<String>, membership: Membership) {
    let mut pauses = Backoff::new(SEED_PAUSE, SEED_PAUSE_MAX);
    let mut reported = BTreeSet::new();
    while !seeds.is_empty() {
        let mut unresolved = Vec::new();
        for seed in seeds {
            match tokio::net::lookup_host(&seed).await.map(|mut addresses| addresses.next()) {
                Ok(Some(address)) => membership.ask(Ask::Join(address)).await,
                failed => {
                    let why = failed.map_or_else(|error| error.to_string(), |_| "it has no address".to_owned());
                    if reported.insert(seed.clone()) {
                        tracing::warn!(%seed, %why, "a gossip seed's name cannot be resolved; it is tried again");
                    }
                    unresolved.push(seed);
                }
            }
        }
        seeds = unresolved;
        if !seeds.is_empty() {
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }
}

async fn gossip(
    config: &AgentConfig,
    peers: &Peers,
    keys: &Keyring,
    life: u64,
    tasks: &TaskTracker,
    stop: CancellationToken,
) -> anyhow::Result<Membership> {
    let listen = config.gossip.listen();
    let socket = UdpSocket::bind(listen).await.with_context(|| format!("gossip.listen {listen}"))?;
    let incarnation = membership::first_life(&config.state_dir, life);
    let identity =
        Identity { node: config.node()?, addr: config.gossip.advertise().parse()?, mesh: config.mesh.advertise().parse()?, incarnation };
    let core = Core::new(identity, config.gossip.timers.clone(), keys, &config.cluster, rand::random());
    let joining = stop.clone();
    let membership = Membership::start(core, socket, &config.state_dir, tasks, stop);
    let (seeds, joined) = (config.gossip.seeds.clone(), membership.clone());
    tasks.spawn(async move { joining.run_until_cancelled(join(seeds, joined)).await });
    for address in peers.gossip().iter().filter_map(|address| address.parse().ok()) {
        membership.ask(Ask::Join(address)).await;
    }
    Ok(membership)
}
