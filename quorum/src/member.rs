//! One member: its disk, its Raft, its two listeners and its tasks.
//!
//! ```text
//!   proposer      commands ──▶ entries
//!   reads         one leadership check for many queries
//!   leader_watch  whether this member has a leader
//!   duties        leader: clocks ──▶ NodeStates, ExpireLease, steps of gossip keys; follower: heartbeats ──▶ leader
//!   servers       service (agents), raft (members)
//! ```
//!
//! Order of stopping: tasks and streams (by the token), then the servers, then Raft; when
//! [`Member::stop`] returns, the data directory is free.
//!
//! Functions that other crates await return a [`BoxFuture`]: an `async fn` would be compiled again in
//! each of those crates, together with Raft and the servers.

mod duties;
mod leader_watch;

use crate::audit::signer::{Signer, SignerError};
use crate::audit::user_queries::UserQueries;
use crate::audit_archive::Archive;
use crate::audit_checks;
use crate::audit_pruning;
use crate::certificate_ends::CertificateEnds;
use crate::chain::{self, ChainFetch};
use crate::clock::now;
use crate::config::{InvalidConfig, QuorumConfig};
use crate::core::{Core, Counts, Disks, Identity, Leading, Status};
use crate::gathered::Gathered;
use crate::heartbeats::Heartbeats;
use crate::levels::Levels;
use crate::network::{Network, Peers};
use crate::notify::NotifyError;
use crate::notify_state::Notify;
use crate::pace::Pace;
use crate::proposer::Proposer;
use crate::reads::ReadGate;
use crate::refused_claims::RefusedClaims;
use crate::rotation::KeysHeld;
use crate::shortages::Shortages;
use crate::timekeeper::Timekeeper;
use crate::waiting_nodes::WaitingNodes;
use crate::{backup, certify, membership, metrics, service, snapshot_stagger};
use duties::duties;
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_model::MemberId;
use lattice_objects::ObjectsError;
use lattice_pki::ca::{Authority, CaError};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_pki::tls::TlsError;
use lattice_store::StoreError;
use lattice_store::directory::Directory;
use lattice_store::disk_reserve::DiskReserve;
use lattice_store::log::Log;
use lattice_store::machine::{Agreed, Machine};
use lattice_store::raft::{Peer, Raft};
use lattice_store::retained_snapshots::RetainedSnapshots;
use leader_watch::watch_leader;
use openraft::SnapshotPolicy;
use openraft::error::{Fatal, InitializeError, RaftError};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Timeout for stopping each part.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a member cannot start, or stopped.
#[derive(Debug, Error)]
pub enum MemberError {
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(
        "{} is the certificate of {name:?} (role {role}); this is member {id}: issue one with --name member-{id} --role quorum",
        path.display()
    )]
    Certificate { path: PathBuf, name: String, role: Role, id: u64 },
    #[error("ca_key")]
    Authority(#[from] CaError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Signer(#[from] SignerError),
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    #[error(transparent)]
    Notify(#[from] NotifyError),
    #[error("{address}: cannot listen there; set {field} to an address of this machine, or to 0.0.0.0:PORT for all of them")]
    Listen {
        field: &'static str,
        address: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{address} is {found} on this machine, where nobody else reaches it; set {field} to an address on the cluster's network")]
    ListenLoopback { field: &'static str, address: String, found: SocketAddr },
    #[error("{} holds a member's state already: start without --bootstrap", path.display())]
    Bootstrapped { path: PathBuf },
    #[error(
        "{} is the folder of a member that was removed from its cluster: this member serves nobody. To let it join again, move the folder away, start it without --bootstrap, then `lattice quorum add`",
        path.display()
    )]
    Removed { path: PathBuf },
    #[error("the cluster cannot be initialised: {why}")]
    Initialise { why: String },
    #[error("Raft has stopped: {why}")]
    Raft { why: String },
    #[error("serving has stopped: {why}")]
    Serve { why: String },
}

impl From<Fatal<u64>> for MemberError {
    fn from(fatal: Fatal<u64>) -> Self {
        Self::Raft { why: fatal.to_string() }
    }
}

/// A member's listening sockets, bound before it starts.
#[derive(Debug)]
pub struct Listeners {
    /// For agents.
    pub service: TcpListener,
    /// For members.
    pub raft: TcpListener,
}

impl Listeners {
    /// Binds the configured addresses.
    pub async fn bind(config: &QuorumConfig) -> Result<Self, MemberError> {
        let bind = async |field, address: String| {
            let listener = match TcpListener::bind(&address).await {
                Ok(listener) => listener,
                Err(source) => return Err(MemberError::Listen { field, address, source }),
            };
            // Debian's /etc/hosts maps a machine's own name to a loopback address.
            let is_name = address.parse::<SocketAddr>().is_err() && !address.starts_with("localhost:");
            match listener.local_addr() {
                Ok(found) if is_name && found.ip().is_loopback() => Err(MemberError::ListenLoopback { field, address, found }),
                Ok(_) => Ok(listener),
                Err(source) => Err(MemberError::Listen { field, address, source }),
            }
        };
        let (service, raft) = config.listens();
        Ok(Self { service: bind("service_listen", service).await?, raft: bind("raft_listen", raft).await? })
    }
}

/// A running member.
pub struct Member {
    core: Arc<Core>,
    tasks: Vec<JoinHandle<()>>,
    servers: Vec<JoinHandle<()>>,
    /// Why a server ended by itself.
    failures: watch::Receiver<Option<String>>,
    released: oneshot::Receiver<()>,
}

/// Runs a member until `shutdown`, or until it cannot continue.
pub async fn run(config: QuorumConfig, bootstrap: bool, shutdown: CancellationToken) -> Result<(), MemberError> {
    let listeners = Listeners::bind(&config).await?;
    let member = Member::start(config, bootstrap, listeners).await?;
    let ended = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        error = member.failed() => Err(error),
    };
    member.stop().await;
    ended
}

impl Member {
    /// Starts a member on bound sockets. With `bootstrap`, creates the cluster of all configured
    /// members.
    pub fn start(config: QuorumConfig, bootstrap: bool, listeners: Listeners) -> BoxFuture<'static, Result<Self, MemberError>> {
        Self::begin(config, bootstrap, listeners).boxed()
    }

    async fn begin(config: QuorumConfig, bootstrap: bool, listeners: Listeners) -> Result<Self, MemberError> {
        config.validate()?;
        let (credentials, authority) = identity(&config)?;
        let peers = Peers::new(credentials.clone());
        if membership::was_removed(&config.data_dir) {
            return Err(MemberError::Removed { path: config.data_dir });
        }
        let (directory, released) = Directory::open(&config.data_dir, &config.cluster, config.id)?;
        let archive = Archive::open(&config)?;
        let (notify, notifying) = Notify::open(&config)?;
        let signer = Signer::open(&config.audit_signing_key_path, directory.path(), MemberId(config.id))?;
        let stop = CancellationToken::new();
        // If the start fails, tasks that wait for disk space must give up.
        let give_up = stop.clone().drop_guard();
        let reserve = DiskReserve::open(directory.path(), config.disk_reserve_bytes, stop.clone())?;
        let retained = RetainedSnapshots::default();
        let log = Log::open(&directory, config.id, retained.clone(), reserve.clone())?;
        let machine = Machine::open(&directory, retained, &(log.first_index()..=log.last_index()), log.synced(), reserve.clone(), now)?;
        let pristine = log.is_empty() && machine.is_empty();
        let held = log.last_index();
        drop(directory);
        if bootstrap && !pristine {
            // A user who is told to start again without the option must find the directory free.
            drop((log, machine));
            let _free = tokio::time::timeout(STOP_TIMEOUT, released).await;
            return Err(MemberError::Bootstrapped { path: config.data_dir.clone() });
        }
        let agreed = machine.agreed();
        agreed.changes.keep((config.watch_history_mib as usize) << 20);
        let first: BTreeMap<u64, Peer> = config.members.iter().map(|m| (m.id, m.peer())).collect();
        for known in [&agreed.roster().members, &first] {
            peers.introduce(config.id, known.iter().map(|(id, peer)| (*id, peer)));
        }
        chain::complete(&agreed, &peers).await?;
        let shortages = Arc::new(Shortages::default());
        let network =
            Network { peers: peers.clone(), agreed: Arc::clone(&agreed), synced: log.synced(), shortages: Arc::clone(&shortages) };
        let raft = Raft::new(config.id, Arc::new(raft_config(&config)?), network, log, machine).await?;
        begin_raft(&raft, &config, bootstrap, pristine).await?;

        let stop = give_up.disarm();
        let gate = watch::Sender::new(true);
        let timekeeper = Arc::new(Timekeeper::new(config.id, raft.clone(), Arc::clone(&agreed), peers.clone()));
        let tasks_of_calls = TaskTracker::new();
        let (proposer, proposing) =
            Proposer::start(raft.clone(), Arc::clone(&timekeeper), gate.subscribe(), stop.clone(), tasks_of_calls.clone());
        let (reads, reading) = ReadGate::start(raft.clone(), held, gate.subscribe(), stop.clone());
        let (led_tx, led) = watch::channel(true);
        let chain = Arc::new(ChainFetch::new(Arc::clone(&agreed), peers.clone(), stop.clone()));
        let core = Arc::new(Core {
            config,
            raft,
            agreed,
            proposer,
            gathered: Gathered::default(),
            timekeeper,
            reads,
            user_queries: UserQueries::default(),
            peers,
            chain,
            notify,
            stop,
            tasks: tasks_of_calls,
            leading: Leading {
                heartbeats: Heartbeats::default(),
                witnesses: Arc::default(),
                silent: watch::Sender::new(Vec::new()),
                waiting_nodes: WaitingNodes::default(),
                moving: Pace::default(),
                certificate_ends: CertificateEnds::default(),
                refused_claims: RefusedClaims::default(),
                lease_clocks: Mutex::default(),
                levels: Levels::default(),
                keys_held: KeysHeld::default(),
            },
            counts: Counts { held_back: AtomicU64::new(0), miscounted: AtomicU64::new(0), capacity_grown: AtomicU64::new(0) },
            identity: Identity { credentials, authority, signer },
            disk: Disks { reserve, shortages },
            status: Status {
                gate,
                changing: Arc::default(),
                removed: watch::Sender::new(false),
                contact: Mutex::new(Instant::now()),
                led,
                closing: Pace::default(),
            },
        });
        let mut tasks = vec![proposing, reading];
        // Before any connection is accepted: revocations apply from the first one on.
        tasks.extend(begin_tasks(&core, led_tx));
        let (service, raft) = core.config.listens();
        let (servers, failures) = service::serve(&core, listeners.service, listeners.raft);
        tracing::info!(member = core.config.id, cluster = core.config.cluster, service, raft, "serving");
        tasks.extend(notifying.into_iter().map(|way| tokio::spawn(way.run(Arc::clone(&core)))));
        tasks.extend(metrics::begin(&core).await);
        if let Some(archive) = archive.map(Arc::new) {
            tasks.push(tokio::spawn(audit_pruning::prune(Arc::clone(&core), Arc::clone(&archive))));
            tasks.push(tokio::spawn(archive.run(Arc::clone(&core))));
        }
        Ok(Self { core, tasks, servers, failures, released })
    }

    /// Returns once the cluster is formed and has a leader, and this member can serve. Does not
    /// return while there is no majority.
    pub fn ready(&self) -> BoxFuture<'_, ()> {
        self.wait_for_leader().boxed()
    }

    async fn wait_for_leader(&self) {
        let mut metrics = self.core.raft.metrics();
        loop {
            let leads = metrics.borrow().current_leader.is_some();
            if leads && !self.core.agreed.ledger().cluster().is_empty() {
                return;
            }
            // Metrics change with every applied entry and every election. `failed` reports the end
            // of Raft.
            if metrics.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the reason when the member cannot continue.
    pub fn failed(&self) -> BoxFuture<'_, MemberError> {
        self.wait_for_failure().boxed()
    }

    async fn wait_for_failure(&self) -> MemberError {
        let mut failures = self.failures.clone();
        let raft = async {
            let mut metrics = self.core.raft.metrics();
            loop {
                if let Err(fatal) = &metrics.borrow().running_state {
                    return MemberError::from(fatal.clone());
                }
                if metrics.changed().await.is_err() {
                    return MemberError::Raft { why: "its task has ended".to_owned() };
                }
            }
        };
        let removed = async {
            if self.core.status.removed.subscribe().wait_for(|removed| *removed).await.is_ok() {
                return MemberError::Removed { path: self.core.config.data_dir.clone() };
            }
            std::future::pending().await
        };
        let servers = async {
            if let Ok(failure) = failures.wait_for(Option::is_some).await {
                return MemberError::Serve { why: failure.clone().unwrap_or_default() };
            }
            std::future::pending().await
        };
        tokio::select! {
            error = raft => error,
            error = servers => error,
            error = removed => error,
        }
    }

    /// This member's applied state.
    pub fn agreed(&self) -> &Arc<Agreed> {
        &self.core.agreed
    }

    /// The leader, as far as this member knows.
    pub fn leader(&self) -> Option<u64> {
        self.core.leader()
    }

    /// Stops everything and returns when the data directory is free.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        self.end().boxed()
    }

    async fn end(self) {
        self.core.stop.cancel();
        for server in self.servers {
            let abort = server.abort_handle();
            if tokio::time::timeout(STOP_TIMEOUT, server).await.is_err() {
                tracing::warn!("connections did not end in time");
                abort.abort();
            }
        }
        for task in self.tasks {
            // A task that panicked has already logged the panic.
            let _ended = task.await;
        }
        // Only Raft's parts lock the directory: nothing else may write into it once that lock is
        // released.
        if tokio::time::timeout(STOP_TIMEOUT, self.core.chain.stopped()).await.is_err() {
            tracing::warn!("audit records are still being written");
        }
        if let Err(error) = self.core.raft.shutdown().await {
            tracing::warn!(%error, "Raft did not stop cleanly");
        }
        self.core.tasks.close();
        if tokio::time::timeout(STOP_TIMEOUT, self.core.tasks.wait()).await.is_err() {
            tracing::warn!(left = self.core.tasks.len(), "sessions and watches did not end in time");
        }
        drop(self.core);
        if tokio::time::timeout(STOP_TIMEOUT, self.released).await.is_err() {
            tracing::warn!("the data folder is still in use");
        }
    }
}

/// Opens the member's credentials, which must be its own, and the authority if its key is configured.
fn identity(config: &QuorumConfig) -> Result<(Credentials, Option<Authority>), MemberError> {
    let credentials = Credentials::open(&config.tls, &config.data_dir.join(certify::RENEWED_FILE))?;
    let present = Arc::clone(&credentials.material().borrow());
    if present.own.member() != Some(config.id) {
        let (path, own) = (config.tls.cert.clone(), present.own.clone());
        return Err(MemberError::Certificate { path, name: own.name, role: own.role, id: config.id });
    }
    let has_key = !config.ca_key.as_os_str().is_empty();
    let authority = has_key.then(|| Authority::open(&config.ca_key, &present.pem.ca)).transpose()?;
    Ok((credentials, authority))
}

/// openraft starts an election after a lease (the longest election timeout) and a random timeout. Both are derived from
/// `election_ms`, so that the sum is 1 to 1.2 times `election_ms`. openraft checks only every one and a half
/// heartbeats, which spreads elections further: two members that miss a leader seldom start one at the same time.
fn raft_config(config: &QuorumConfig) -> Result<openraft::Config, MemberError> {
    let raft = openraft::Config {
        cluster_name: config.cluster.clone(),
        heartbeat_interval: config.heartbeat_ms,
        election_timeout_min: config.election_ms * 4 / 10,
        election_timeout_max: config.election_ms * 6 / 10,
        install_snapshot_timeout: 30_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_entries),
        max_in_snapshot_log_to_keep: config.snapshot_entries.min(1000),
        replication_lag_threshold: config.snapshot_entries + 1000,
        ..openraft::Config::default()
    };
    raft.validate().map_err(|error| MemberError::Initialise { why: error.to_string() })
}

/// Adds the revocations of the applied state to this member's list of revoked certificates.
fn learn_revocations(core: &Core) {
    let ledger = core.agreed.ledger();
    core.identity.credentials.revoked().learn(ledger.revocations().map(|(name, revocation)| (name.to_owned(), revocation.before)));
}

/// Creates the cluster with `bootstrap`. A single voter starts its election at once.
async fn begin_raft(raft: &Raft, config: &QuorumConfig, bootstrap: bool, pristine: bool) -> Result<(), MemberError> {
    if bootstrap {
        initialise(raft, config).await?;
    } else if !pristine {
        let votes = raft.with_raft_state(|state| state.membership_state.effective().membership().get_joint_config().clone()).await?;
        if votes == [BTreeSet::from([config.id])] {
            // There are no other voters to wait for.
            raft.trigger().elect().await?;
        }
    }
    Ok(())
}

/// Starts the tasks that every member has.
fn begin_tasks(core: &Arc<Core>, led: watch::Sender<bool>) -> Vec<JoinHandle<()>> {
    let leader_watch = tokio::spawn(watch_leader(Arc::clone(core), led));
    let duties = tokio::spawn(duties(Arc::clone(core)));
    let disk_reserve = tokio::spawn(core.disk.reserve.clone().monitor());
    let membership = tokio::spawn(membership::watch(Arc::clone(core)));
    let credentials =
        tokio::spawn(core.identity.credentials.clone().keep_current(certify::own(core, service::ask_leader), core.stop.clone()));
    let backups = tokio::spawn(backup::run_periodic(Arc::clone(core)));
    let snapshot_stagger = tokio::spawn(snapshot_stagger::run(Arc::clone(core)));
    let checking = tokio::spawn(audit_checks::check_sealed(Arc::clone(core)));
    let mut revocations = core.agreed.changes.revocations();
    learn_revocations(core);
    let revoking = tokio::spawn({
        let core = Arc::clone(core);
        async move {
            while let Some(Ok(())) = core.stop.run_until_cancelled(revocations.changed()).await {
                learn_revocations(&core);
            }
        }
    });
    vec![leader_watch, duties, disk_reserve, membership, credentials, revoking, backups, snapshot_stagger, checking]
}

async fn initialise(raft: &Raft, config: &QuorumConfig) -> Result<(), MemberError> {
    let members: BTreeMap<u64, Peer> = config.members.iter().map(|m| (m.id, m.peer())).collect();
    match raft.initialize(members).await {
        Ok(()) => Ok(()),
        Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Err(MemberError::Bootstrapped { path: config.data_dir.clone() }),
        Err(error) => Err(MemberError::Initialise { why: error.to_string() }),
    }
}
