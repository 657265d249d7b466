//! Watches the node's GPUs while the agent runs, and adapts what the node offers.
//!
//! ```text
//!   bus, kernel log (every 5 s) ─┐                          ┌─▶ Offer: the session registers anew
//!   drivers (health.period) ─────┴─▶ device_health (pure) ──┼─▶ Brain: ends work if its GPU is lost, or had an error
//!   both after each allocation                              │   that stops programs; withholds GPUs that are not well
//!                                                           └─▶ Health, `lattice node status`
//! ```
//!
//! Drivers are queried on their own thread: one that hangs delays no look at the bus. If
//! allocations follow each other quickly, drivers are queried every 5 s. A GPU that appears after
//! other work has begun is offered once that work is denied access to it.

use lattice_agent_common::clock::now;
use lattice_agent_common::config::AgentConfig;
use lattice_machine::devices;
use lattice_machine::features;
use lattice_machine::gpu_statuses::{GpuStatuses, Offer};
use lattice_machine::hardware as machine;
use lattice_machine::health::Finds;
use lattice_meshd::context::{Context, Shared};
use lattice_model::gpu_look::{GpuEvent, GpuLook, GpuReads, gpu_key};
use lattice_model::{Locality, NodeTopology, Resources};
use lattice_node::device_health::{Gpus, Policy, Response};
use lattice_node::health::Finding;
use lattice_node::{Event, GpusNow, Local};
use lattice_registry::AllocationHandle;
use lattice_runtime::topology::{Files, GpuWatch, SimulatedGpu, read_gpus};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

/// The interval between two looks at the bus: a change is registered well within one heartbeat.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How many counters of GPU errors there may be, one for each GPU and error number.
const XIDS_MAX: usize = 512;
/// How long drivers may take before that becomes a finding.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The drivers' answers, and the node's topology if that was read again.
type Read = (GpuReads, Option<NodeTopology>);

/// The task that watches the GPUs.
pub struct GpuWatching {
    simulated: Vec<SimulatedGpu>,
    /// `None` while a look is under way.
    watch: Option<GpuWatch>,
    gpus: Gpus,
    on_bus: BTreeSet<String>,
    /// GPUs that appeared after other work had begun, and how often that work has since been denied
    /// them.
    newcomers: BTreeMap<String, u32>,
    /// Why `newcomers` are not offered yet.
    unfiltered: String,
    /// How often each error was reported of each GPU.
    xids: BTreeMap<(String, u32), u64>,
    reading: Option<(Instant, JoinHandle<Read>)>,
    looked_at: Instant,
    read_at: Instant,
    published: Option<GpusNow>,
    topology: watch::Sender<Arc<NodeTopology>>,
    statuses: watch::Sender<Arc<GpuStatuses>>,
}

fn machine_files() -> Files {
    Files::below(Path::new("/"))
}

impl GpuWatching {
    /// Makes the first look. Blocks for as long as the drivers take.
    pub fn begin(found: &NodeTopology, simulated: Vec<SimulatedGpu>, policy: Policy) -> Self {
        let mut watching = Self {
            watch: Some(GpuWatch::new(machine_files(), &simulated)),
            simulated,
            gpus: Gpus::new(policy),
            on_bus: BTreeSet::new(),
            newcomers: BTreeMap::new(),
            unfiltered: String::new(),
            xids: BTreeMap::new(),
            reading: None,
            looked_at: Instant::now(),
            read_at: Instant::now(),
            published: None,
            topology: watch::Sender::new(Arc::new(found.clone())),
            statuses: watch::Sender::default(),
        };
        if let Some(look) = watching.watch.as_mut().map(GpuWatch::look) {
            watching.looked(&look);
        }
        watching.read(read_gpus(&machine_files(), &watching.simulated, &watching.on_bus));
        watching.update_statuses();
        watching
    }

    /// The node's topology.
    pub fn topology(&self) -> watch::Receiver<Arc<NodeTopology>> {
        self.topology.subscribe()
    }

    /// The state of the GPUs.
    pub fn statuses(&self) -> watch::Receiver<Arc<GpuStatuses>> {
        self.statuses.subscribe()
    }

    fn looked(&mut self, look: &GpuLook) {
        self.on_bus.clone_from(&look.on_bus);
        for (key, event) in &look.events {
            let GpuEvent::Xid { number, .. } = event else { continue };
            let kind = (key.clone(), *number);
            // Beyond the limit, existing counters still count.
            if let Some(count) = self.xids.get_mut(&kind) {
                *count += 1;
            } else if self.xids.len() < XIDS_MAX {
                self.xids.insert(kind, 1);
            }
        }
        self.gpus.looked(now(), look);
    }

    fn read(&mut self, mut reads: GpuReads) {
        if let Some(why) = self.watch.as_ref().and_then(GpuWatch::log_missing) {
            reads.unsupported.push(format!("errors (XID) are not seen: {why}"));
        }
        self.gpus.read(now(), &reads);
        self.read_at = Instant::now();
    }

    fn update_statuses(&self) {
        let unknown = self.unknown().into_iter().map(|key| (key, "no driver identifies it (`lattice doctor`)".to_owned()));
        let newcomers = self.newcomers.keys().map(|key| (key.clone(), self.unfiltered.clone()));
        let statuses = GpuStatuses {
            policy: self.gpus.policy().shown(),
            gpus: self.gpus.statuses(now()),
            waits: unknown.chain(newcomers).collect(),
            xids: self.xids.clone(),
        };
        self.statuses.send_if_modified(|known| {
            let differs = **known != statuses;
            if differs {
                *known = Arc::new(statuses);
            }
            differs
        });
    }

    /// GPUs on the bus that no driver has ever reported.
    fn unknown(&self) -> Vec<String> {
        let topology = self.topology.borrow();
        let is_known = |key: &&String| topology.gpu.gpus.iter().any(|gpu| gpu_key(gpu) == *key);
        self.on_bus.iter().filter(|key| !is_known(key)).cloned().collect()
    }

    /// Watches until `stop`.
    pub async fn run(mut self, context: Shared, offering: Offering, finds: Finds, stop: CancellationToken) {
        let period = Duration::from_secs(offering.config.health.period_seconds);
        let between = LOOK_INTERVAL.min(period);
        let mut ended = context.machine.checks.asked();
        let (mut checked, mut asked, mut news) = (false, false, true);
        loop {
            self.publish(&context, &offering).await;
            // The first round of checks is reported only when it is complete.
            if checked && news {
                finds.found(self.findings(offering.config.health.expect.gpus));
            }
            news = true;
            let due = self.due(between, asked);
            tokio::select! {
                () = stop.cancelled() => return,
                () = context.machine.checks.wait_for_first_look(), if !checked => checked = true,
                // Without a driver to ask, the next look at the bus is soon enough.
                Ok(()) = ended.changed(), if !asked => (asked, news) = (!self.on_bus.is_empty(), false),
                read = answered(&mut self.reading) => self.take(read),
                () = tokio::time::sleep_until(due.into()) => {
                    // Each look is reported once, with the drivers' answers to it, so two good
                    // findings are of two examinations.
                    let asks = self.look(&context, period, asked).await;
                    (asked, news) = (asked && !asks, !asks);
                }
            }
        }
    }

    /// When to look next; `asked`: a query of the drivers is requested.
    fn due(&self, between: Duration, asked: bool) -> Instant {
        let next = self.looked_at + between;
        if asked && self.reading.is_none() && !self.on_bus.is_empty() { next.min(self.read_at + between) } else { next }
    }

    /// Takes in the drivers' answers.
    fn take(&mut self, read: Result<Read, JoinError>) {
        match read {
            Ok((reads, found)) => {
                self.read(reads);
                if let Some(found) = found {
                    self.found(found);
                }
            }
            Err(broke) => tracing::error!(%broke, "reading the GPUs' drivers panicked"),
        }
    }

    /// Looks at the bus and the kernel log, and queries the drivers if that is due or `asked`.
    /// Returns whether it queries them.
    async fn look(&mut self, context: &Shared, period: Duration, asked: bool) -> bool {
        self.looked_at = Instant::now();
        let Some(mut watch) = self.watch.take() else { return false };
        let looked = tokio::task::spawn_blocking(move || (watch.look(), watch)).await;
        let (look, watch) = match looked {
            Ok((look, watch)) => (Some(look), watch),
            Err(broke) => {
                tracing::error!(%broke, "reading the GPUs panicked");
                (None, GpuWatch::new(machine_files(), &self.simulated))
            }
        };
        self.watch = Some(watch);
        let mut urgent = asked;
        if let Some(look) = look {
            urgent |= look.on_bus != self.on_bus || !look.events.is_empty();
            self.looked(&look);
            self.end_work_with_error(context, &look).await;
        }
        let asks = self.reading.is_none() && !self.on_bus.is_empty() && (urgent || self.read_at.elapsed() >= period);
        if asks {
            let (on_bus, unknown, simulated) = (self.on_bus.clone(), !self.unknown().is_empty(), self.simulated.clone());
            let reading = tokio::task::spawn_blocking(move || {
                let found = unknown.then(|| machine::look(&simulated).topology);
                (read_gpus(&machine_files(), &simulated, &on_bus), found)
            });
            self.reading = Some((Instant::now(), reading));
        }
        self.admit(context).await;
        asks
    }

    /// Ends work whose GPU reported an error after which the program must be restarted. The work
    /// fails, and is requeued if its owner wants that; the GPU is offered as before.
    async fn end_work_with_error(&self, context: &Shared, look: &GpuLook) {
        let topology = Arc::clone(&self.topology.borrow());
        for (key, event) in &look.events {
            let GpuEvent::Xid { number, ago_ms } = event else { continue };
            let (Response::RestartApplication, what) = self.gpus.policy().xid(*number) else { continue };
            let mut devices = topology.gpu.gpus.iter().filter(|gpu| gpu_key(gpu) == key);
            // On a partitioned GPU it is not known which instance was meant, so no work is ended.
            let (Some(gpu), None) = (devices.next(), devices.next()) else { continue };
            let at = now().0.saturating_sub(*ago_ms);
            let view = context.work.view.borrow().clone();
            let has = |local: &&Local| local.assignment.as_ref().is_some_and(|had| had.gpus.contains(&gpu.id));
            let Some(Local { share, .. }) = view.locals.iter().find(has) else { continue };
            // Only work that ran when the error occurred is ended.
            let had = |worker: AllocationHandle| worker.since.0 <= at;
            if context.work.allocations.of_epoch(share.allocation, share.epoch).is_some_and(had) {
                let why = format!("its GPU {key} reported XID {number} ({what}): the program must start again, the GPU itself is well");
                tracing::warn!(allocation = %share.allocation, %why, "work is ended for an error of its GPU");
                context.work.driver.send(Event::Hit { allocation: share.allocation, epoch: share.epoch, why }).await;
            }
        }
    }

    fn found(&mut self, found: NodeTopology) {
        let before = Arc::clone(&self.topology.borrow());
        let new = found.gpu.gpus.iter().filter(|gpu| before.gpu.by_id(&gpu.id).is_none());
        self.newcomers.extend(new.map(|gpu| (gpu_key(gpu).to_owned(), 0)));
        "running work has to be denied access to it first".clone_into(&mut self.unfiltered);
        self.topology.send_replace(Arc::new(machine::with_lost(found, &before)));
    }

    /// Offers new GPUs once all running work is denied access to them.
    async fn admit(&mut self, context: &Shared) {
        if self.newcomers.is_empty() {
            return;
        }
        let (machine, view) = (Arc::clone(&context.machine), context.work.view.clone());
        let denied = tokio::task::spawn_blocking(move || {
            let locals = view.borrow().locals.clone();
            devices::keep_from_newcomers(&locals, &machine.device_filter, machine.slice.as_ref(), &machine.topology().gpu)
        })
        .await;
        match denied {
            // Twice, because the first time may have missed work that was being prepared.
            Ok(Ok(())) => self.newcomers.retain(|_, times| {
                *times += 1;
                *times < 2
            }),
            Ok(Err(error)) => self.unfiltered = error.to_string(),
            Err(broke) => self.unfiltered = broke.to_string(),
        }
    }

    /// The findings for the node's checks.
    fn findings(&self, expected: u64) -> Vec<(String, Finding)> {
        let mut findings = self.gpus.findings(now(), expected, &self.topology.borrow().gpu.gpus);
        if self.reading.as_ref().is_some_and(|(began, _)| began.elapsed() > READ_TIMEOUT) {
            let why = format!("their driver does not answer within {} s", READ_TIMEOUT.as_secs());
            findings.retain(|(name, _)| name != "gpus");
            findings.push(("gpus".to_owned(), Finding::Critical(why)));
        }
        findings
    }

    /// Informs the brain and the session of a change. The first call is before the driver begins,
    /// so that no share gets an unhealthy GPU.
    pub async fn publish(&mut self, context: &Shared, offering: &Offering) {
        self.update_statuses();
        let (topology, statuses) = (Arc::clone(&self.topology.borrow()), Arc::clone(&self.statuses.borrow()));
        let mut gpus = GpusNow { topology: (*topology).clone(), lost: BTreeMap::new(), withheld: BTreeSet::new() };
        for gpu in &topology.gpu.gpus {
            let key = gpu_key(gpu);
            if let Some(why) = statuses.gpus.get(key).and_then(|s| s.lost.as_ref()) {
                let called = if key == gpu.id { key.to_owned() } else { format!("{key} ({})", gpu.id) };
                gpus.lost.insert(gpu.id.clone(), format!("its GPU {called} is lost: {why}"));
            }
            if !statuses.is_allocatable(key) {
                gpus.withheld.insert(gpu.id.clone());
            }
        }
        if self.published.as_ref() == Some(&gpus) {
            return;
        }
        let offer = offering.of(context, &topology, &gpus.withheld);
        // Changed before work with a lost GPU is ended: when it releases its share, the quorum must
        // not claim the lost GPU again.
        offering.offer.send_if_modified(|known| {
            let differs = *known != offer;
            if differs {
                tracing::warn!(gpus = offer.size.gpus, before = known.size.gpus, "the node offers another number of GPUs");
                *known = offer;
            }
            differs
        });
        for why in gpus.lost.values() {
            tracing::warn!(%why, "a GPU is lost");
        }
        self.published = Some(gpus.clone());
        context.work.driver.send(Event::Gpus(Box::new(gpus))).await;
    }
}

/// Waits for the drivers' answers, if a query is under way.
async fn answered(reading: &mut Option<(Instant, JoinHandle<Read>)>) -> Result<Read, JoinError> {
    let Some((_, answer)) = reading else { return std::future::pending().await };
    let read = answer.await;
    *reading = None;
    read
}

/// Derives what the node offers from what it has.
pub struct Offering {
    config: AgentConfig,
    /// The node's size with every GPU found at the start.
    size: Resources,
    offer: watch::Sender<Offer>,
}

impl Offering {
    /// The offer of a node of this size, with what `watching` found at first.
    pub fn begin(watching: &GpuWatching, size: Resources, config: &AgentConfig, context: &Context) -> Self {
        let nothing = Offer { size, features: Vec::new(), locality: Locality::default() };
        let offering = Self { config: config.clone(), size, offer: watch::Sender::new(nothing) };
        let (topology, statuses) = (watching.topology.borrow().clone(), watching.statuses.borrow().clone());
        let withheld = topology.gpu.gpus.iter().filter(|gpu| !statuses.is_allocatable(gpu_key(gpu))).map(|gpu| gpu.id.clone());
        offering.offer.send_replace(offering.of(context, &topology, &withheld.collect()));
        offering
    }

    /// What the node offers, now and later.
    pub fn offer(&self) -> watch::Receiver<Offer> {
        self.offer.subscribe()
    }

    fn of(&self, context: &Context, topology: &NodeTopology, withheld: &BTreeSet<String>) -> Offer {
        let mut offered = topology.clone();
        offered.gpu.gpus.retain(|gpu| !withheld.contains(&gpu.id));
        let gpus = u32::try_from(offered.gpu.gpus.len()).unwrap_or(u32::MAX);
        let scopes = context.machine.slice.is_some();
        let groups = scopes || context.machine.bounds.controllers.has_v1();
        let audits = context.work.measuring.kernel().audits().is_ok();
        Offer {
            size: Resources { gpus, ..self.size },
            features: features::of(&self.config, &context.machine.data, &offered, (scopes, groups, audits)),
            locality: lattice_node::locality(&offered),
        }
    }
}
