//! One member: its disk, its Raft, its two listeners and its tasks.
//!
//! ```text
//!   proposer   commands ──▶ entries            reads      one check of leadership for many questions
//!   standing   has this member a leader?       duties     while leading: clocks ──▶ NodeStates, ExpireLease, steps of gossip keys;
//!   2 servers  service (agents), raft (members)           while following: heartbeats ──▶ leader
//! ```
//!
//! Stopping: tasks and streams end with the token, then the servers, then Raft; when [`Member::stop`] returns the
//! folder is free.

use crate::audit::archive::Archive;
use crate::audit::duty::SigningDuty;
use crate::audit::signer::{Signer, SignerError};
use crate::backup;
use crate::ca::{Authority, CaError};
use crate::certify::{self, CertificateEnds};
use crate::chain::{self, ChainFetch};
use crate::clocks::Clocks;
use crate::config::{InvalidConfig, QuorumConfig};
use crate::credentials::Credentials;
use crate::fencing_hook::FencingHook;
use crate::hearts::{Heard, Hearts, Told};
use crate::identity::Role;
use crate::lease_clocks::LeaseClocks;
use crate::ledger::{Action, Outcome, Urgency};
use crate::levels::Levels;
use crate::membership;
use crate::metrics;
use crate::network::{Network, Peers};
use crate::notify::{Notify, NotifyError};
use crate::objects::ObjectsError;
use crate::pack::with_causes;
use crate::proposer::{Proposer, Unserved, now, reply};
use crate::raft::{Peer, Raft};
use crate::reads::ReadGate;
use crate::refused_claims::RefusedClaims;
use crate::relief::{self, Relief};
use crate::roster::Roster;
use crate::rotation::{KeysHeld, Rotation};
use crate::service;
use crate::shortages::{Shortages, is_majority_without};
use crate::store::StoreError;
use crate::store::directory::Directory;
use crate::store::kept::Kept;
use crate::store::log::Log;
use crate::store::machine::{Agreed, Machine};
use crate::store::room::{Lack, Room, Shortage};
use crate::tls::TlsError;
use crate::turns;
use crate::wire::{HeartbeatSummary, HeldKeys, MemberList, NodeHealth, Refusal, SummaryAnswer};
use crate::witnesses::Witnesses;
use lattice_model::{MemberId, Node, NodeId, Revision};
use openraft::SnapshotPolicy;
use openraft::error::{Fatal, InitializeError, RaftError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataValue};

/// A member that was without a leader for so long closes its sessions.
pub const LEADERLESS_MAX: Duration = Duration::from_secs(2);
/// How often it is looked whether there is a leader.
const STANDING_TICK: Duration = Duration::from_millis(100);
/// How often heartbeats are folded and clocks are read.
const DUTIES_TICK: Duration = Duration::from_secs(1);
const JUST_BEHIND: Duration = Duration::from_millis(5);
/// The cluster level that fencing needs.
const FENCING_LEVEL: u32 = 6;
/// How long the parts may take to stop.
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
    #[error("{address}: cannot listen there")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
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

/// A member's sockets, bound before it starts.
#[derive(Debug)]
pub struct Listeners {
    /// For agents.
    pub service: TcpListener,
    /// For members.
    pub raft: TcpListener,
}

impl Listeners {
    /// Binds what the configuration says.
    pub async fn bind(config: &QuorumConfig) -> Result<Self, MemberError> {
        let bind = async |address: SocketAddr| TcpListener::bind(address).await.map_err(|source| MemberError::Listen { address, source });
        Ok(Self { service: bind(config.service_listen).await?, raft: bind(config.raft_listen).await? })
    }
}

/// What the tasks and services of a member share.
pub(crate) struct Core {
    pub config: QuorumConfig,
    pub raft: Raft,
    pub agreed: Arc<Agreed>,
    pub proposer: Proposer,
    pub reads: ReadGate,
    pub peers: Peers,
    pub chain: Arc<ChainFetch>,
    pub hearts: Hearts,
    /// What agents say of nodes that are silent here.
    pub witnesses: Arc<Witnesses>,
    /// While this member leads: the nodes that agents are asked about.
    pub silent: watch::Sender<Vec<NodeId>>,
    pub relief: Relief,
    /// Closed while the leadership is handed over: commands and questions wait.
    pub gate: watch::Sender<bool>,
    /// Held by the step of a change of the members that is under way.
    pub changing: Arc<tokio::sync::Mutex<()>>,
    /// Whether this member was taken out of the cluster.
    pub removed: watch::Sender<bool>,
    /// What this member shows of itself, and what it refused to others for theirs.
    pub credentials: Credentials,
    /// While this member leads: when the others' certificates end.
    pub certificate_ends: CertificateEnds,
    /// The authority, where its key is here.
    pub authority: Option<Authority>,
    /// When Raft's leader was last heard.
    contact: Mutex<Instant>,
    /// Signs the audit log.
    pub signer: Signer,
    /// While this member leads: what stood against claims.
    pub refused_claims: RefusedClaims,
    /// While this member leads: when each lease runs out.
    pub lease_clocks: Mutex<Option<LeaseClocks>>,
    pub levels: Levels,
    /// While this member leads: which gossip keys agents have.
    pub keys_held: KeysHeld,
    /// On the disk.
    pub room: Room,
    /// Of the members' disks.
    pub shortages: Arc<Shortages>,
    /// While this member leads: what keeps others from being told.
    pub notify: Notify,
    /// Whether this member had a leader within the last two seconds.
    pub led: watch::Receiver<bool>,
    pub stop: CancellationToken,
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

/// Runs a member until `shutdown`, or until it cannot go on.
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
    /// Starts a member on sockets that are bound already. With `bootstrap`, makes the cluster of all configured members.
    pub async fn start(config: QuorumConfig, bootstrap: bool, listeners: Listeners) -> Result<Self, MemberError> {
        config.validate()?;
        let credentials = Credentials::open(&config.tls, &config.data_dir.join(certify::KEPT))?;
        let present = Arc::clone(&credentials.material().borrow());
        if present.own.member() != Some(config.id) {
            let (path, own) = (config.tls.cert, present.own.clone());
            return Err(MemberError::Certificate { path, name: own.name, role: own.role, id: config.id });
        }
        let has_key = !config.ca_key.as_os_str().is_empty();
        let authority = has_key.then(|| Authority::open(&config.ca_key, &present.pem.ca)).transpose()?;
        let peers = Peers::new(credentials.clone());
        if membership::was_removed(&config.data_dir) {
            return Err(MemberError::Removed { path: config.data_dir });
        }
        let (directory, released) = Directory::open(&config.data_dir, &config.cluster, config.id)?;
        let archive = Archive::open(&config)?;
        let (notify, notifying) = Notify::open(&config)?;
        let signer = Signer::open(&config.audit_signing_key_path, directory.path(), MemberId(config.id))?;
        let stop = CancellationToken::new();
        // Who waits for room when the start fails gives up.
        let give_up = stop.clone().drop_guard();
        let room = Room::open(directory.path(), config.disk_reserve_bytes, stop.clone())?;
        let kept = Kept::default();
        let log = Log::open(&directory, config.id, kept.clone(), room.clone())?;
        let machine = Machine::open(&directory, kept, &(log.first_index()..=log.last_index()), log.synced(), room.clone())?;
        let pristine = log.is_empty() && machine.is_empty();
        let held = log.last_index();
        drop(directory);
        if bootstrap && !pristine {
            // Who is told to start again without it finds the folder free.
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
        if bootstrap {
            initialise(&raft, &config).await?;
        } else if !pristine {
            let votes = raft.with_raft_state(|state| state.membership_state.effective().membership().get_joint_config().clone()).await?;
            if votes == [BTreeSet::from([config.id])] {
                // There is nobody to wait for.
                raft.trigger().elect().await?;
            }
        }

        let stop = give_up.disarm();
        let gate = watch::Sender::new(true);
        let (proposer, proposing) = Proposer::start(raft.clone(), Arc::clone(&agreed.counts), gate.subscribe(), stop.clone());
        let (reads, reading) = ReadGate::start(raft.clone(), held, gate.subscribe(), stop.clone());
        let (led_tx, led) = watch::channel(true);
        let chain = Arc::new(ChainFetch::new(Arc::clone(&agreed), peers.clone(), stop.clone()));
        let core = Arc::new(Core {
            config,
            raft,
            agreed,
            proposer,
            reads,
            peers,
            chain,
            hearts: Hearts::default(),
            witnesses: Arc::default(),
            silent: watch::Sender::new(Vec::new()),
            relief: Relief::default(),
            signer,
            gate,
            changing: Arc::default(),
            removed: watch::Sender::new(false),
            credentials,
            certificate_ends: CertificateEnds::default(),
            authority,
            contact: Mutex::new(Instant::now()),
            refused_claims: RefusedClaims::default(),
            lease_clocks: Mutex::default(),
            levels: Levels::default(),
            keys_held: KeysHeld::default(),
            room,
            shortages,
            notify,
            led,
            stop,
        });
        let standing = tokio::spawn(watch_standing(Arc::clone(&core), led_tx));
        let duties = tokio::spawn(duties(Arc::clone(&core)));
        let room = tokio::spawn(core.room.clone().tend());
        let membership = tokio::spawn(membership::watch(Arc::clone(&core)));
        let credentials = tokio::spawn(core.credentials.clone().tend(certify::own(&core), core.stop.clone()));
        let copies = tokio::spawn(backup::copies(Arc::clone(&core)));
        let turns = tokio::spawn(turns::take(Arc::clone(&core)));
        let (servers, failures) = service::serve(&core, listeners);
        tracing::info!(
            member = core.config.id,
            cluster = core.config.cluster,
            service = %core.config.service_listen,
            raft = %core.config.raft_listen,
            "serving"
        );
        let mut tasks = vec![proposing, reading, standing, duties, room, membership, credentials, copies, turns];
        tasks.extend(notifying.into_iter().map(|way| tokio::spawn(way.run(Arc::clone(&core)))));
        tasks.extend(metrics::begin(&core).await);
        tasks.extend(archive.map(|archive| tokio::spawn(archive.run(Arc::clone(&core)))));
        Ok(Self { core, tasks, servers, failures, released })
    }

    /// Returns once the cluster is formed, has a leader, and this member can serve. Never, while there is no majority.
    pub async fn ready(&self) {
        let mut metrics = self.core.raft.metrics();
        loop {
            let leads = metrics.borrow().current_leader.is_some();
            if leads && !self.core.agreed.ledger().cluster().is_empty() {
                return;
            }
            // Metrics change with every applied entry and every election. When Raft ends, `failed` tells.
            if metrics.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns when the member cannot go on, with the reason.
    pub async fn failed(&self) -> MemberError {
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
            match self.core.removed.subscribe().wait_for(|removed| *removed).await {
                Ok(_) => MemberError::Removed { path: self.core.config.data_dir.clone() },
                Err(_) => std::future::pending().await,
            }
        };
        let servers = async {
            match failures.wait_for(Option::is_some).await {
                Ok(failure) => MemberError::Serve { why: failure.clone().unwrap_or_default() },
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            error = raft => error,
            error = servers => error,
            error = removed => error,
        }
    }

    /// The agreed state as this member has applied it.
    pub fn agreed(&self) -> &Arc<Agreed> {
        &self.core.agreed
    }

    /// The member that leads, as this one knows.
    pub fn leader(&self) -> Option<u64> {
        self.core.leader()
    }

    /// Stops everything and returns when the folder is free.
    pub async fn stop(self) {
        self.core.stop.cancel();
        for server in self.servers {
            let abort = server.abort_handle();
            if tokio::time::timeout(STOP_TIMEOUT, server).await.is_err() {
                tracing::warn!("connections did not end in time");
                abort.abort();
            }
        }
        for task in self.tasks {
            // A task that panicked has said so.
            let _ended = task.await;
        }
        if let Err(error) = self.core.raft.shutdown().await {
            tracing::warn!(%error, "Raft did not stop cleanly");
        }
        drop(self.core);
        if tokio::time::timeout(STOP_TIMEOUT, self.released).await.is_err() {
            tracing::warn!("the data folder is still in use");
        }
    }
}

/// openraft elects after a lease of the longest election timeout and a random one on top; both are derived from
/// `election_ms`, so that the whole lies between it and 1.2 times it. Ticks (one and a half heartbeats) spread it further: two members
/// that miss a leader seldom stand up together.
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

async fn initialise(raft: &Raft, config: &QuorumConfig) -> Result<(), MemberError> {
    let members: BTreeMap<u64, Peer> = config.members.iter().map(|m| (m.id, m.peer())).collect();
    match raft.initialize(members).await {
        Ok(()) => Ok(()),
        Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Err(MemberError::Bootstrapped { path: config.data_dir.clone() }),
        Err(error) => Err(MemberError::Initialise { why: error.to_string() }),
    }
}

impl Core {
    /// Whether this member leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.leader() == Some(self.config.id)
    }

    /// Who leads, as far as this member knows.
    pub fn leader(&self) -> Option<u64> {
        self.raft.metrics().borrow().current_leader
    }

    /// The membership in force here, committed or not.
    pub fn roster(&self) -> Roster {
        Roster::of(&self.raft.metrics().borrow().membership_config)
    }

    /// The members for agents: what is committed.
    pub fn member_list(&self) -> MemberList {
        let roster = self.agreed.roster();
        MemberList { generation: self.agreed.ledger().generation(), since: roster.index(), services: roster.services() }
    }

    /// A leader's message was taken.
    pub fn heard_leader(&self) {
        *self.contact.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether there is a leader now: this member with a majority behind it, or one that is heard.
    pub fn has_leader(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.current_leader.is_some() && self.silence_by(&metrics) < Duration::from_millis(self.config.election_ms)
    }

    /// For how long this member has been in touch with no leader, or as leader with no majority.
    pub fn silence(&self) -> Duration {
        self.silence_by(&self.raft.metrics().borrow())
    }

    fn silence_by(&self, metrics: &openraft::RaftMetrics<u64, Peer>) -> Duration {
        if metrics.current_leader == Some(self.config.id) {
            metrics.millis_since_quorum_ack.map_or(Duration::ZERO, Duration::from_millis)
        } else {
            self.contact.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
        }
    }

    /// Where that member serves agents, as a header has it.
    pub fn service_of(&self, id: u64) -> Option<MetadataValue<Ascii>> {
        self.roster().members.get(&id)?.service.parse().ok()
    }

    /// What the members' disks lack, as far as this member knows.
    pub fn shortages(&self) -> BTreeMap<u64, Shortage> {
        let mut all = self.shortages.all();
        all.remove(&self.config.id);
        all.extend(self.room.look().map(|shortage| (self.config.id, shortage)));
        all
    }

    /// Why a leader does not propose this now: there is no room for it here, or at so many others that they are no majority.
    pub fn no_room_for(&self, urgency: Urgency) -> Option<Refusal> {
        let mut short = self.shortages();
        short.retain(|_, shortage| match urgency {
            Urgency::New => true,
            Urgency::Keeps => shortage.lack == Lack::All,
            Urgency::Mends => false,
        });
        let here = short.contains_key(&self.config.id);
        if short.is_empty() || !here && is_majority_without(&self.roster(), &short.keys().copied().collect()) {
            return None;
        }
        Some(Refusal::DiskFull { short: short.into_iter().map(|(id, shortage)| (MemberId(id), shortage)).collect() })
    }

    /// Proposes commands here, in this order, and waits for all. Only the leader can.
    /// None of them is proposed where there is no room for one of them, or where one needs a higher cluster level: members of an
    /// older version could not read the entry.
    pub async fn propose_here(&self, actions: Vec<Action>) -> Result<Vec<Result<(Outcome, Revision), Refusal>>, Unserved> {
        if !*self.led.borrow() {
            // It may lead for itself alone: what it took now would be waited for in vain, while another member may well lead.
            return Err(Unserved::NotLeader(None));
        }
        let needed = actions.iter().map(Action::level).max().unwrap_or_default();
        if self.agreed.ledger().level() < needed {
            // A new leader may not have applied the raise yet.
            self.reads.pass().await?;
            if let Err(refusal) = self.agreed.ledger().admits(needed) {
                return Ok(vec![Err(refusal); actions.len()]);
            }
        }
        if self.leads()
            && let Some(refusal) = actions.iter().map(Action::urgency).min().and_then(|least| self.no_room_for(least))
        {
            return Ok(vec![Err(refusal); actions.len()]);
        }
        let propose = |action| (RefusedClaims::claimed(&action), self.proposer.propose(action));
        let receivers: Vec<_> = actions.into_iter().map(propose).collect();
        let mut results = Vec::with_capacity(receivers.len());
        let mut led = self.led.clone();
        for (claimed, receiver) in receivers {
            let (result, revision) = tokio::select! {
                replied = reply(receiver) => replied?,
                Ok(_) = led.wait_for(|led| !led) => {
                    return Err(Unserved::Unavailable("this member leads no majority any more; it may have been committed".to_owned()));
                }
            };
            if let Some(allocation) = claimed {
                self.refused_claims.told(allocation, &result, now());
            }
            results.push(result.map(|outcome| (outcome, revision)));
        }
        Ok(results)
    }

    /// Waits, at most so long, until this member has applied that revision.
    pub async fn applied(&self, revision: Revision, limit: Duration) -> bool {
        self.raft.wait(Some(limit)).applied_index_at_least(Some(revision.0), "a forwarded command").await.is_ok()
    }
}

/// Keeps `led` true while there is a leader, or was one lately.
async fn watch_standing(core: Arc<Core>, led: watch::Sender<bool>) {
    let mut tick = tokio::time::interval(STANDING_TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_led = Instant::now();
    let mut known = (None, 0);
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let metrics = core.raft.metrics();
        {
            let metrics = metrics.borrow();
            let now = (metrics.current_leader, metrics.current_term);
            if known != now {
                known = now;
                match now {
                    (Some(leader), term) => tracing::info!(leader, term, "this member has a leader"),
                    (None, term) => tracing::warn!(term, "this member has no leader"),
                }
            }
        }
        if core.has_leader() {
            last_led = Instant::now();
        }
        let is_led = last_led.elapsed() < LEADERLESS_MAX;
        led.send_if_modified(|was| std::mem::replace(was, is_led) != is_led);
    }
}

/// One term of this member's leadership.
struct Leading {
    term: u64,
    since: Instant,
    /// When sessions were last sent on.
    relieved: Instant,
    clocks: Clocks,
    signing: SigningDuty,
    rotation: Rotation,
    fencing_hook: FencingHook,
}

/// What a member owes to its role: the leader reads its clocks, a follower tells it what it heard.
async fn duties(core: Arc<Core>) {
    let limits = core.config.limits();
    // A quarter of the shortest time that is measured, where that is shorter.
    let mut tick = tokio::time::interval(DUTIES_TICK.min(limits.shortest() / 4).max(Duration::from_millis(20)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let sign_every = Duration::from_secs(core.config.audit_sign_seconds);
    let mut leading: Option<Leading> = None;
    // When a silent node is due, where that is before the next tick.
    let mut due: Option<Instant> = None;
    let mut told = (Told::default(), Told::default());
    // Elections are not waited for by the clock.
    let mut roles = core.raft.server_metrics();
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            _ = tick.tick() => {}
            () = passed(due) => {}
            changed = roles.changed() => if changed.is_err() {
                return;
            }
        }
        let (leader, term) = {
            let metrics = core.raft.metrics();
            let metrics = metrics.borrow();
            (metrics.current_leader, metrics.current_term)
        };
        if leader != Some(core.config.id) {
            (leading, due) = (None, None);
            core.relief.allow(0);
            core.silent.send_if_modified(|silent| !std::mem::take(silent).is_empty());
            *core.lease_clocks.lock().unwrap_or_else(PoisonError::into_inner) = None;
            if let Some(leader) = leader {
                // One that lies behind would wait in it, and a member that stops slowly misses its leader.
                core.stop.run_until_cancelled(tell_leader(&core, leader, term, &mut told)).await;
            }
            continue;
        }
        if leading.as_ref().is_none_or(|l| l.term != term) {
            // Not before everything that is committed is applied here: an older state would be judged.
            let caught_up = tokio::select! {
                () = core.stop.cancelled() => return,
                passed = core.reads.pass() => passed.is_ok(),
            };
            if !caught_up {
                continue;
            }
            leading = Some(Leading {
                term,
                since: Instant::now(),
                relieved: Instant::now(),
                clocks: Clocks::new(limits),
                signing: SigningDuty::new(sign_every, Instant::now()),
                rotation: Rotation::default(),
                fencing_hook: FencingHook::new(&core.config),
            });
            *core.lease_clocks.lock().unwrap_or_else(PoisonError::into_inner) = Some(LeaseClocks::default());
            core.levels.forget();
            core.keys_held.forget();
            core.shortages.forget();
        }
        if let Some(leading) = &mut leading {
            if leading.since.elapsed() >= relief::AFTER && leading.relieved.elapsed() >= relief::EVERY {
                leading.relieved = Instant::now();
                // Elsewhere each registers anew: none goes where there is no room for that.
                core.relief.allow(if core.no_room_for(Urgency::Keeps).is_some() { 0 } else { relief::AT_ONCE });
            }
            lead(&core, leading).await;
            // What is silent for longer than it may be is due just behind that moment.
            due = leading.clocks.due().map(|due| leading.since + due + JUST_BEHIND).filter(|due| *due > Instant::now());
        }
    }
}

async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// Tells the leader of this term what was heard here, and of keys and health what it does not know.
async fn tell_leader(core: &Core, leader: u64, term: u64, (keys_told, health_told): &mut (Told<HeldKeys>, Told<NodeHealth>)) {
    let until = Instant::now();
    let fresh = core.hearts.take();
    let ago = |at: Instant| u64::try_from(until.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
    let heard = fresh.iter().map(|(node, heard)| (node.clone(), heard.incarnation, ago(heard.at))).collect();
    let keys = keys_told.news(term, &fresh, |heard| heard.keys.as_ref());
    let health = health_told.news(term, &fresh, |heard| heard.health.as_ref());
    let certificate_until = Some(core.credentials.until());
    let (from, shortage) = (MemberId(core.config.id), core.room.look());
    let words = core.witnesses.take();
    let level = core.config.level_max;
    let summary = HeartbeatSummary { from, heard, keys, health, level, certificate_until, shortage, words, asks: true };
    let told = match core.roster().members.get(&leader) {
        Some(peer) => core.peers.heartbeats(leader, peer, &summary, DUTIES_TICK).await,
        None => None,
    };
    if let Some((SummaryAnswer { shortages, silent }, revision)) = told {
        core.shortages.are(shortages);
        core.witnesses.ask(&silent);
        // An agent that hears of its acknowledgement has been sent by then whatever became of it before: not a list from before it
        // was taken for lost, under which it would begin work that is begun elsewhere.
        if core.applied(revision, DUTIES_TICK).await {
            core.hearts.leader_knows(until);
        }
        keys_told.told(&fresh, summary.keys);
        health_told.told(&fresh, summary.health);
    } else {
        // Told with the next summary, to whoever leads then.
        for (node, heard) in fresh {
            core.hearts.heard(node, heard);
        }
    }
}

async fn lead(core: &Core, Leading { since, clocks, signing, rotation, fencing_hook, .. }: &mut Leading) {
    let since = *since;
    let now = since.elapsed();
    let until = Instant::now();
    for (node, Heard { incarnation, at, keys, health }) in core.hearts.take() {
        if let Some(keys) = keys {
            core.keys_held.told(node.clone(), incarnation, keys);
        }
        if let Some(health) = health {
            clocks.said(node.clone(), incarnation, health);
        }
        clocks.heard(node, incarnation, at.saturating_duration_since(since));
    }
    // Heartbeats extend run leases: they are not acknowledged by one that may have been deposed meanwhile, whose successor's
    // clocks began before. A majority that still follows is proof that none had begun when these were heard.
    let passed = core.stop.run_until_cancelled(tokio::time::timeout(DUTIES_TICK, core.reads.pass())).await;
    if matches!(passed, Some(Ok(Ok(())))) {
        core.hearts.leader_knows(until);
    }
    for (node, by) in core.witnesses.take() {
        clocks.witnessed(&node, by, now);
    }
    let mass_silence_before = clocks.mass_silence;
    let mut actions = Vec::new();
    {
        let ledger = core.agreed.ledger();
        if ledger.cluster().is_empty() {
            actions.push(Action::Bootstrap { cluster: core.config.cluster.clone() });
        }
        let standings = clocks.standings(now, ledger.nodes().map(|n| -> &Node { n }), |node| ledger.use_of(node));
        // Members of the level before take no other reason for the same state: nobody is asked there.
        let silent = if ledger.admits(FENCING_LEVEL).is_ok() { Witnesses::choose(clocks.asked().iter()) } else { Vec::new() };
        core.witnesses.ask(&silent);
        core.silent.send_replace(silent);
        if !standings.is_empty() {
            actions.push(Action::NodeStates(standings));
        }
        if ledger.admits(FENCING_LEVEL).is_ok() {
            let ms = core.config.run_lease_ms();
            actions.extend((ledger.run_lease_ms() != ms).then_some(Action::SetRunLease { ms }));
            actions.extend(clocks.fences(now, &ledger));
            actions.extend(clocks.failures(now, ledger.nodes().map(|n| -> &Node { n })));
            actions.extend(fencing_hook.look(&ledger, |node| clocks.is_heard(now, node), until));
        }
        actions.extend(signing.due(until, &ledger, &core.signer));
        if let Some(clocks) = &mut *core.lease_clocks.lock().unwrap_or_else(PoisonError::into_inner) {
            actions.extend(clocks.expiries(ledger.leases(), until));
        }
        actions.extend(rotation.due(&ledger, &core.keys_held, until));
        // By the clock that stamped their last use: what is released has no work, so a jump of it harms nobody.
        if !ledger.domains_due(crate::proposer::now()).is_empty() {
            actions.push(Action::ReleaseDomains);
        }
        actions.extend(ledger.nodes_due(crate::proposer::now(), core.config.node_boot_ms));
        actions.extend(ledger.telemetry_due(crate::proposer::now()));
        actions.extend(ledger.drifts_due(crate::proposer::now(), core.config.drift_limits()));
        core.levels.told(core.config.id, core.config.level_max);
        let metrics = core.raft.metrics();
        let members: Vec<u64> = metrics.borrow().membership_config.nodes().map(|(id, _)| *id).collect();
        actions.extend(core.levels.raise(members, ledger.level()));
    }
    if clocks.mass_silence && !mass_silence_before {
        tracing::error!("many nodes fell silent at once: none of them is declared Down, an operator must decide");
    }
    // What there is no room for is proposed by a later tick.
    actions.retain(|action| core.no_room_for(action.urgency()).is_none());
    if actions.is_empty() {
        return;
    }
    match tokio::time::timeout(DUTIES_TICK * 5, core.propose_here(actions)).await {
        Ok(Ok(results)) => {
            for refusal in results.into_iter().filter_map(Result::err) {
                tracing::warn!(error = %with_causes(&refusal), "a command of the leader was refused");
            }
        }
        // The next tick, or the next leader, proposes again.
        Ok(Err(error)) => tracing::debug!(?error, "the leader's commands were not taken"),
        Err(_) => tracing::debug!("the leader's commands are not committed yet"),
    }
}
