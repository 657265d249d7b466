//! The agent: the I/O around the node's brain, and the roles that its configuration switches on.
//!
//! ```text
//!              ┌───────────────────────────── driver (a thread; owns Brain and journal) ◀── Event, bounded 1024
//!   session ───┤  reports, node view (watch)            │ Command, bounded 256 each
//!   (quorum)   └────────────────────────────────────────▼
//!                                    allocation tasks, one each ── Unix socket ── shims
//!   membership (UDP), facts (what it says)  ▲ ToHead / ToPart
//!   cluster (watch on the quorum)    launch heads and their part tasks ── mesh (QUIC) ── other agents
//!   placing (scheduler's role)       meshd: parts, output and launches for others
//!   health, gpus (looks at the machine): what keeps work off, what is offered
//!   gpu_loads (a thread): how busy the GPUs are
//!   measuring (a thread, with programs in the kernel), metrics (/metrics, push), hangs: what work uses, whether it stands still, how the agent is
//!   checkpoint: sightings (who catches a signal); where the default queue's lease is, broker and retention
//!   audit: what work in audit mode opens and whom it connects to, from the kernel's buffer
//!   traces: that, and every look at work in debug mode, on their way into the log store
//!   service (lattice.v1 on the agent's socket)
//! ```
//!
//! Every queue is bounded; what is the latest value travels in a `watch`. Stopping, in order: the API, the roles, the
//! session and the mesh, then the driver, which writes a last checkpoint. Work and shims stay.

mod adapters;
mod adoption;
mod alerting;
mod allocation;
mod audit;
mod bounds;
mod checkpoint;
mod clock;
mod cluster;
pub mod config;
pub mod conformance;
mod context;
mod data_plane;
pub mod dev;
mod devices;
mod diagnosis;
mod disk;
pub mod doctor;
mod driver;
mod entry;
mod environment;
mod fabric;
mod facts;
mod features;
mod file_system;
pub mod footprint;
mod gossip_keys;
mod gpu_loads;
mod gpus;
mod growth;
mod hangs;
mod hatch;
pub mod health;
mod hooks;
mod hwloc;
mod image_cache;
mod job_mapping;
mod journal;
mod kernel_counts;
mod latencies;
mod launch;
pub mod limits;
pub mod log_store;
mod logs;
mod machine;
mod measuring;
mod membership;
pub mod mesh;
mod meshd;
mod metrics;
mod monitoring;
mod mounts;
mod node_environment;
mod node_view;
mod output_index;
pub mod own_memory;
mod peers;
mod places;
mod placing;
mod pmix;
mod preemption;
mod quorum_list;
mod readiness;
pub mod recovery;
mod relay;
mod revocations;
mod service;
mod session;
mod session_state;
mod signalling;
mod spool;
mod supervisor;
mod sweep;
mod terminal;
mod traces;
mod troubles;
mod unheard;
mod unsupported;
mod user_shares;
mod wipe;
mod words;

pub use checkpoint::packers;

use crate::adoption::Adoption;
use crate::allocation::Workers;
use crate::bounds::Bounds;
use crate::checkpoint::Checkpoints;
use crate::cluster::Cluster;
use crate::config::{AgentConfig, Role};
use crate::conformance::Conforming;
use crate::context::Context;
use crate::data_plane::DataPlane;
use crate::devices::DeviceFilter;
use crate::diagnosis::Diagnosing;
use crate::driver::Outputs;
use crate::fabric::Fabric;
use crate::facts::Facts;
use crate::gossip_keys::GossipKeys;
use crate::gpu_loads::GpuReadings;
use crate::gpus::{GpuWatching, Offering};
use crate::growth::Growth;
use crate::health::Checking;
use crate::hooks::Hooks;
use crate::image_cache::ImageCache;
use crate::journal::{Opened, StateDir};
use crate::latencies::Latencies;
use crate::launch::{Launches, Parents};
use crate::log_store::LogStore;
use crate::measuring::Measuring;
use crate::membership::{Ask, Membership};
use crate::mesh::Mesh;
use crate::node_view::NodeView;
use crate::peers::Peers;
use crate::places::Places;
use crate::placing::{Placing, Rounds};
use crate::recovery::Unusable;
use crate::relay::Carried;
use crate::revocations::Revocations;
use crate::session::Registration;
use crate::session_state::SessionState;
use crate::spool::Spools;
use crate::traces::Traces;
use crate::troubles::Troubles;
use crate::wipe::Wiping;
use anyhow::{Context as _, anyhow, bail};
use lattice_gossip::{Core, Identity, Key, Keyring};
use lattice_model::fact::NodeFact;
use lattice_model::{NodeAddresses, NodeState};
use lattice_quorum::client::QuorumClient;
use lattice_quorum::credentials::Credentials;
use lattice_quorum::identity::Role as CertificateRole;
use lattice_quorum::wire::NodeHealth;
use lattice_runtime::cgroup::Slice;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::identity;
use lattice_runtime::shim::LogRoom;
use lattice_telemetry::sample::Collect;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Images read at once for submissions.
const DIGESTS: usize = 4;
/// How many of them may be one user's.
const DIGESTS_OF_ONE_USER: usize = 2;
/// Events waiting for the driver.
const EVENTS: usize = 1024;
/// How long the service manager waits for shims that do not answer before it hears that the agent is ready.
const ADOPTION_MAX: Duration = Duration::from_secs(10);
/// When the start is over, first connections and looks at the machine included.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// Runs the agent until `stop`, or until it cannot go on. `unusable`: what to do with a state of a newer version or of
/// another node. `memory_bytes_max`: how much memory this process may have, where it lies in a cgroup of its own.
pub async fn run(config: AgentConfig, unusable: Unusable, memory_bytes_max: Option<u64>, stop: CancellationToken) -> anyhow::Result<()> {
    config.validate()?;
    let me = config.node()?;
    let credentials = Credentials::open(&config.tls, &config.certificate_file()).context("tls")?;
    let own = credentials.material().borrow().own.clone();
    if own.name != me.as_str() {
        bail!("tls.cert is the certificate of {:?}, the configured node_id is {me}: issue one for this node", own.name);
    }
    if own.role == CertificateRole::Node && !config.roles.is_empty() {
        bail!(
            "tls.cert is of role node, which suffices to run work and for none of the configured roles: set `roles: []`, or issue a certificate of role api"
        );
    }
    let mut degraded = Vec::new();
    arm_failpoint(&config, &mut degraded)?;
    let key = gossip_key(&config)?;
    std::fs::create_dir_all(&config.state_dir).with_context(|| format!("state_dir {}", config.state_dir.display()))?;
    std::fs::set_permissions(&config.state_dir, std::fs::Permissions::from_mode(0o711))?;
    supervisor::status("reading the node's state");
    let boot = identity::boot_id().context("the kernel's boot id")?;
    let state = StateDir::take(&config.state_dir, &config.state_file())?;
    let opened = recovery::open(&state, &config.state_dir, &me, boot, unusable, &mut degraded)?;
    let Opened { journal, mut brain, same_boot, torn_bytes } = opened;
    if torn_bytes > 0 {
        tracing::warn!(
            torn_bytes,
            "the end of the journal is not whole: an append was cut short by a crash, or the machine went down before it was on the disk; nothing that \
             was told is lost"
        );
    }
    if !same_boot {
        tracing::warn!("the machine was restarted: what ran before is lost and reported so");
    }
    let slice = usable_slice(&config, &mut degraded);
    let simulated = config.simulated_gpus.clone();
    let policy = config.health.gpu_policy.clone();
    let (machine, mut gpus) = tokio::task::spawn_blocking(move || {
        let machine = machine::look(&simulated);
        let gpus = GpuWatching::begin(&machine.topology, simulated, policy);
        (machine, gpus)
    })
    .await?;
    for lacking in &machine.lacking {
        tracing::warn!(%lacking, "GPUs");
    }
    degraded.extend(doctor::gpu_shortcoming(&machine));
    degraded.extend(doctor::gpu_memory(&machine.topology).map(|why| format!("GPU memory: {why}")));
    brain.knows(machine.topology.clone());
    let topology = Arc::new(machine.topology);
    let hwloc = hwloc::Export::new(&config.state_dir);
    if config.hwloc_xml {
        let export = hwloc.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = export.write() {
                tracing::info!(%error, "no topology for hwloc: ranks read the machine themselves (`lattice-agent doctor`)");
            }
        });
    }
    let (controllers, unlimited) = bounds::controllers(&config, slice.as_ref());
    for why in &unlimited {
        tracing::warn!("{why}");
    }
    degraded.extend(unlimited);
    own_memory::limit(memory_bytes_max, &controllers, &mut degraded);
    if let Err(why) = hatch::install(&config.state_dir) {
        tracing::warn!("{why}");
        degraded.push(why);
    }
    let device_filter = DeviceFilter::find(slice.as_ref(), &controllers);
    degraded.extend(device_filter.shortcoming(&topology.gpu));
    let size = machine::size(&topology, machine::memory_bytes(config.memory_reserved_bytes)?)?;
    let data = DataPlane::of(&config, size.memory_bytes, &mut degraded);

    let quorum = QuorumClient::new(config.quorum.clone(), credentials.clone())?;
    let tasks = TaskTracker::new();
    let (mesh, incoming) = Mesh::listen(config.mesh_listen().parse()?, &credentials, stop.child_token())?;
    let troubles = Troubles::default();
    let fabric = Fabric::open(&config, troubles.clone())?;
    let revocations = Revocations::open(&config.state_dir, credentials.revoked().clone(), troubles.clone(), &mut degraded);
    let keys = GossipKeys::open(&config.state_dir, key, troubles.clone(), &mut degraded);
    let peers = Peers::open(&config.state_dir);
    let membership = gossip(&config, &peers, keys.keyring(), journal.life(), &tasks, stop.child_token()).await?;
    let listener = service::bind(&config.socket).with_context(|| format!("socket {}", config.socket.display()))?;

    tasks.spawn(credentials.clone().tend(quorum.authority(), stop.child_token()));
    let checkpoints = Checkpoints::open(&config, credentials.material())?;
    let log_store = LogStore::configured(&config)?;
    let of_output = spool::Settings {
        state_dir: config.state_dir.clone(),
        flush: Duration::from_secs(config.log_flush_seconds),
        bytes_max: config.log_spool_max_bytes,
    };
    let traces = Traces::open(&config.state_dir, log_store.clone(), of_output.flush);
    let spools = Spools::new(log_store, of_output, tasks.clone(), stop.child_token());
    let images = ImageCache::new(&config.state_dir, config.image_cache_max_bytes);
    let (checking, checks) = Checking::new(config.health.clone(), &me, &config.state_dir, images.clone());
    let finds = checking.finds();
    tasks.spawn(checking.run(stop.child_token()));
    let own = NodeFact {
        node: me.clone(),
        state: NodeState::Booting,
        reason: String::new(),
        holds: Vec::new(),
        schedulable: config.schedulable,
        cores: size.cores,
        memory_bytes: size.memory_bytes,
        gpus: BTreeMap::new(),
        topology_group: Some(config.topology_group.clone()).filter(|group| !group.is_empty()),
        features: Vec::new(),
        fingerprint: None,
        images: Vec::new(),
        images_all: 0,
    };
    let (conforming, conformance) = Conforming::new(config.conformance.clone(), &me);
    tasks.spawn(conforming.run(stop.child_token()));
    let (events, queue) = mpsc::channel(EVENTS);
    let (beats, acknowledged) = watch::channel(None);
    let (cluster_out, cluster_view) = watch::channel(Arc::new(Cluster::default()));
    let (view, mut node_view) = watch::channel(Arc::new(NodeView::default()));
    let lost = SessionState::Lost { since: Instant::now(), why: "not connected yet".to_owned() };
    let (session_state, session_view) = watch::channel(lost);
    let context = Arc::new(Context {
        me: me.clone(),
        state_dir: config.state_dir.clone(),
        shim: config.shim_program()?,
        socket: config.socket.clone(),
        slice,
        bounds: Bounds::new(&config, controllers, size).map_err(anyhow::Error::msg)?,
        device_filter,
        topology: gpus.topology(),
        hwloc,
        allow_root: config.allow_root,
        work_may_gain_privileges: config.work_may_gain_privileges,
        user_images: config.user_images,
        grace: Duration::from_secs(config.grace_seconds),
        fence_timeout: Duration::from_secs(config.fence_timeout_seconds),
        launch_fanout: (config.launch_fanout > 0).then_some(config.launch_fanout),
        spools: spools.clone(),
        log_room: LogRoom { ring_bytes: config.log_ring_bytes, spool_bytes_max: config.log_spool_max_bytes },
        hooks: Hooks::of(&config),
        images,
        data,
        checkpoints,
        fabric: fabric.clone(),
        troubles,
        checks: checks.clone(),
        gpus: gpus.standings(),
        gpu_readings: GpuReadings::default(),
        facts: Facts::new(own),
        conformance,
        latencies: Latencies::default(),
        diagnosing: Diagnosing::default(),
        measuring: Measuring::new(config.alerts.clone(), config.window_smoothing),
        traces: traces.clone(),
        mesh: mesh.clone(),
        peers: peers.clone(),
        carried: Carried::new(config.relay_max, session_view.clone()),
        acknowledged,
        workers: Workers::default(),
        adoption: Adoption::default(),
        growth: Growth::start().context("inotify")?,
        launches: Launches::default(),
        parents: Parents::default(),
        attached: Places::default(),
        attach_max_concurrent: config.attach_max_concurrent,
        cluster: cluster_view.clone(),
        view: node_view.clone(),
        events: events.clone(),
    });
    supervisor::status("taking up the node's work");
    let (sweeper, loader, in_kernel) = (Arc::clone(&context), Arc::clone(&context), config.kernel_probes);
    let loading = tokio::task::spawn_blocking(move || loader.measuring.load(&loader, in_kernel));
    let brain = tokio::task::spawn_blocking(move || {
        let mut brain = brain;
        let alive = sweep::strays(&sweeper, &brain);
        if !alive.is_empty() {
            let ids: Vec<String> = alive.iter().map(lattice_model::AllocationId::short).collect();
            let text =
                format!("something of allocation {} does not end: its room stays held; end it, and start the agent again", ids.join(", "));
            sweeper.troubles.say("work of a former life", text);
        }
        brain.could_not_end(alive);
        brain
    })
    .await?;
    loading.await?;
    failpoint::pass(Point::StraysSwept);
    tasks.spawn(fabric.revoke(stop.child_token()));

    let offering = Offering::begin(&gpus, size, &config, &context);
    let offer = offering.offer();
    let registration = Registration {
        boot,
        offer: offer.clone(),
        addresses: NodeAddresses { mesh: config.mesh_advertise().to_owned(), gossip: config.gossip_advertise().to_owned() },
        schedulable: config.schedulable,
        unlimited: bounds::unlimited(&context.bounds.controllers).into_iter().chain(context.data.unlimited()).collect(),
        previous: brain.incarnation(),
        found: brain.found(),
        wipes: !config.wipe_hook.as_os_str().is_empty(),
    };
    let (wiping, wipes) = Wiping::new(&config, &me, node_view.clone());
    tasks.spawn(wiping.run(stop.child_token()));
    let (reports, reports_view) = watch::channel(Arc::new(Vec::new()));
    let outputs = Outputs { reports, view };
    gpus.tell(&context, &offering).await;
    let journal_counts = journal.counts();
    let driver_stop = CancellationToken::new();
    let for_stop = driver_stop.clone();
    let for_driver = Arc::clone(&context);
    let runtime = tokio::runtime::Handle::current();
    let driver = std::thread::Builder::new().name("driver".to_owned()).spawn(move || {
        let _entered = runtime.enter();
        driver::run(brain, journal, same_boot, &for_driver, queue, &outputs, &for_stop)
    })?;

    // Nobody is answered before every allocation of the journal has its task: "not here" would be taken as evidence.
    if node_view.changed().await.is_err() {
        driver.join().map_err(|_| anyhow!("the driver broke"))??;
        bail!("the driver ended before it began");
    }
    tasks.spawn_blocking(move || {
        spools.resume();
        spools.trim();
    });
    let session_stop = stop.child_token();
    let (heard, heard_view) = watch::channel(NodeHealth::Well);
    tasks.spawn(unheard::run(Arc::clone(&context), session_view.clone(), heard_view, reports_view.clone(), stop.child_token()));
    tasks.spawn(session::run(
        Arc::clone(&context),
        quorum.clone(),
        registration,
        (keys, revocations, membership.clone(), wipes),
        (reports_view, node_view.clone()),
        (session_state, beats, heard),
        session_stop,
    ));
    if !config.gpu_job_mapping_dir.as_os_str().is_empty() {
        tasks.spawn(job_mapping::run(Arc::clone(&context), config.gpu_job_mapping_dir.clone(), stop.child_token()));
    }
    tasks.spawn(gpus.run(Arc::clone(&context), offering, finds, stop.child_token()));
    tasks.spawn(meshd::serve(Arc::clone(&context), incoming, stop.child_token()));
    tasks.spawn(checkpoint::sightings::run(Arc::clone(&context), stop.child_token()));
    tasks.spawn(cluster::follow(quorum.clone(), membership.clone(), cluster_out, stop.child_token()));
    tasks.spawn(peers.keep(me.clone(), membership.clone(), cluster_view.clone(), stop.child_token()));
    tasks.spawn(facts::follow(Arc::clone(&context), offer, membership.clone(), stop.child_token()));
    let (held, leases) = watch::channel(placing::Leases::new());
    let (rounds, requests) = (Rounds::default(), service::Requests::default());
    let placing = Placing { leases, cluster: cluster_view.clone(), membership: membership.clone(), rounds: rounds.clone() };
    if config.has(Role::Scheduler) {
        tasks.spawn(placing::run(me.clone(), quorum.clone(), placing.clone(), config.scheduler_lease_ms, held, stop.child_token()));
        tasks.spawn(checkpoint::broker::run(Arc::clone(&context), quorum.clone(), placing.clone(), stop.child_token()));
    }
    tasks.spawn(audit::run(Arc::clone(&context), stop.child_token()));
    tasks.spawn(traces.flush(context.troubles.clone(), stop.child_token()));
    let for_metrics = (&tasks, &stop);
    let counted: Vec<Box<dyn Collect>> = vec![Box::new(rounds), Box::new(requests.clone())];
    metrics::begin(&config, &context, &membership, &session_view, (journal_counts, counted), &mut degraded, for_metrics).await;
    let (ready_session, ready_view, ready_stop) = (session_view.clone(), node_view.clone(), stop.child_token());
    let api = service::Api {
        context: Arc::clone(&context),
        credentials,
        quorum,
        cluster: cluster_view,
        membership,
        session: session_view,
        placing,
        vouches: config.has(Role::Api),
        work_may: config.work_may,
        private: config.private,
        degraded: Arc::new(degraded),
        started_at: clock::now(),
        digests: Arc::new(Semaphore::new(DIGESTS)),
        own_digests: user_shares::UserShares::new(DIGESTS_OF_ONE_USER),
        submitted: service::Submitted::default(),
        heads: service::Heads::default(),
        watches: Places::default(),
        looks: service::Looks::default(),
        past: Arc::new(service::past(&config)),
        stored_tail: service::stored_tail(&config),
        log_streams: Places::default(),
        log_streams_max: config.logs_max_concurrent,
        tasks: tasks.clone(),
    };
    let serving = tasks.spawn(service::serve(api, requests, listener, stop.child_token()));
    tracing::info!(node = %me, socket = %config.socket.display(), mesh = config.mesh_advertise(), "ready");

    let for_ready = Arc::clone(&context);
    tasks.spawn(async move {
        let adopted = for_ready.adoption.over(ADOPTION_MAX).await;
        supervisor::ready(adopted);
        if adopted.all > 0 {
            tracing::info!(?adopted, "the node's work is taken up again");
        }
        supervisor::follow(ready_session, ready_view, ready_stop).await;
    });
    let settled_stop = stop.clone();
    tasks.spawn(async move {
        if settled_stop.run_until_cancelled(tokio::time::sleep(SETTLED_AFTER)).await.is_some()
            && let Err(error) = footprint::unmap_program()
        {
            tracing::debug!(%error, "the pages that only the start needed stay mapped");
        }
    });

    let driver_over = tokio::task::spawn_blocking(move || driver.join());
    tokio::pin!(driver_over);
    let early = tokio::select! {
        () = stop.cancelled() => None,
        over = &mut driver_over => Some(over),
    };
    stop.cancel();
    supervisor::stopping();
    let _ = tokio::time::timeout(Duration::from_secs(2), serving).await;
    tasks.close();
    let _ = tokio::time::timeout(Duration::from_secs(3), tasks.wait()).await;
    mesh.close().await;
    driver_stop.cancel();
    let over = match early {
        Some(over) => Some(over),
        None => tokio::time::timeout(Duration::from_secs(2), driver_over).await.ok(),
    };
    let _ = std::fs::remove_file(&config.socket);
    match over {
        Some(Ok(Ok(Err(error)))) => Err(error).context("the node's state cannot be written: the agent stops, its work goes on"),
        Some(Ok(Ok(Ok(())))) | None => Ok(()),
        Some(Ok(Err(_)) | Err(_)) => bail!("the driver broke: the agent stops, its work goes on"),
    }
}

/// For the crash test alone: no configuration of a site lets work run as root.
fn arm_failpoint(config: &AgentConfig, degraded: &mut Vec<String>) -> anyhow::Result<()> {
    let Ok(name) = std::env::var(failpoint::VARIABLE) else { return Ok(()) };
    if !config.allow_root {
        bail!("{} is set: it is for tests, with allow_root; unset it", failpoint::VARIABLE);
    }
    let point: Point = name.parse().with_context(|| failpoint::VARIABLE)?;
    tracing::warn!(%point, "this agent kills itself when it comes to this point: {} is set", failpoint::VARIABLE);
    degraded.push(format!("failpoint {point}: this agent kills itself there; unset {} and start it again", failpoint::VARIABLE));
    failpoint::arm(point);
    Ok(())
}

fn gossip_key(config: &AgentConfig) -> anyhow::Result<Key> {
    let path = &config.gossip_key_file;
    let text = std::fs::read_to_string(path).with_context(|| format!("gossip_key_file {}", path.display()))?;
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!("gossip_key_file {}: others can read it (mode {:o}); chmod 600", path.display(), mode & 0o777);
    }
    Key::from_hex(text.trim()).with_context(|| format!("gossip_key_file {}: 64 hexadecimal digits are needed", path.display()))
}

/// The slice for scopes, where this machine lets us have one; what is missing otherwise.
fn usable_slice(config: &AgentConfig, degraded: &mut Vec<String>) -> Option<Slice> {
    match doctor::probe_slice(&config.cgroup_root) {
        Ok(slice) => Some(slice),
        Err(why) => {
            tracing::warn!(%why, "no scopes: processes that leave their parents are not found again");
            degraded.push(format!("cgroup scopes: {why}"));
            None
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
    let listen = config.gossip_listen();
    let socket = UdpSocket::bind(listen).await.with_context(|| format!("gossip_listen {listen}"))?;
    let incarnation = membership::first_life(&config.state_dir, life);
    let identity = Identity { node: config.node()?, addr: config.gossip_advertise().parse()?, incarnation };
    let core = Core::new(identity, config.gossip.clone(), keys, &config.cluster, rand::random());
    let membership = Membership::start(core, socket, &config.state_dir, tasks, stop);
    for seed in &config.gossip_seeds {
        let address = tokio::net::lookup_host(seed).await.ok().and_then(|mut a| a.next());
        match address {
            Some(address) => membership.ask(Ask::Join(address)).await,
            None => tracing::warn!(%seed, "a gossip seed's address cannot be resolved"),
        }
    }
    for address in peers.gossip().iter().filter_map(|address| address.parse().ok()) {
        membership.ask(Ask::Join(address)).await;
    }
    Ok(membership)
}
