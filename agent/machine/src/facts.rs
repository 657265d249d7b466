//! What this node publishes about itself: ten bytes to everybody by gossip, and the whole fact to
//! an agent that asks over the mesh.
//!
//! ```text
//!   the quorum's watch: state, holds ─┐
//!   own checks: unwell ───────────────┼─▶ NodeFact (1 KB) ── state, held, digest ──▶ gossip
//!   configuration, machine, images ───┘       └─ beside a NodePulse ──▶ the agent that asks (`Open::Fact`)
//! ```
//!
//! A change of the node's health is published at once, before the quorum knows of it. While the
//! quorum is unreachable, the state that it last reported stays. Facts of other nodes are cached as
//! long as gossip shows the same digest in the same life of the node; then they are not sent again.

use crate::conformance::Conformity;
use crate::gpu_statuses::{GpuStatuses, Offer};
use crate::health::Checks;
use crate::image_cache::ImageCache;
use lattice_agent_common::node_view::NodeView;
use lattice_gossip::{Fact, Member};
use lattice_membership::cluster::Cluster;
use lattice_membership::directory::Directory;
use lattice_membership::{Ask, Membership};
use lattice_mesh::fact::{FactAnswer, FactOpen, WireFact, WirePulse};
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::Open;
use lattice_mesh::{Mesh, UnansweredNode};
use lattice_model::conformance::fingerprint;
use lattice_model::fact::{Gpus, IMAGES_MAX, NodeFact, NodePulse, Pressure, RUNNING_MAX};
use lattice_model::{Hold, NodeId, NodeState, NodeTopology, UNWELL};
use lattice_node::Phase;
use lattice_node::health::Health;
use parking_lot::Mutex;
use quinn::SendStream;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Facts of other nodes in the cache: half a megabyte.
const FACTS_MAX: usize = 512;
/// Timeout of another agent's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of the looks at the image cache.
const IMAGES_LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Time between the two readings of an energy counter.
const ENERGY_READ_GAP: Duration = Duration::from_millis(100);
/// How long a reading of the machine is reused for further requests, and how long a request waits
/// for a new one.
const READING_AGE_MAX: Duration = Duration::from_secs(1);

/// The sources of this node's fact, and the handles for asking other nodes for theirs.
pub struct Handles {
    /// This node's id.
    pub me: NodeId,
    pub mesh: Mesh,
    /// The nodes as the quorum knows them.
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// The addresses of other nodes.
    pub directory: Directory,
    /// The driver's view of this node.
    pub view: watch::Receiver<Arc<NodeView>>,
    pub checks: Checks,
    pub conformance: Conformity,
    pub topology: watch::Receiver<Arc<NodeTopology>>,
    pub gpus: watch::Receiver<Arc<GpuStatuses>>,
    pub images: ImageCache,
}

/// Full facts of nodes. All clones share them.
#[derive(Clone)]
pub struct Facts {
    handles: Arc<Handles>,
    own: watch::Sender<Arc<NodeFact>>,
    kept: Arc<Mutex<FactCache>>,
    readings: Readings,
}

/// Cached facts of other nodes.
#[derive(Default)]
struct FactCache {
    by_node: BTreeMap<NodeId, Known>,
    /// Counts uses: the fact used longest ago is removed first.
    uses: u64,
}

struct Known {
    incarnation: u64,
    digest: u64,
    fact: Arc<NodeFact>,
    used: u64,
}

/// The newest fact of a node that could be obtained.
pub struct FactReport {
    pub fact: Option<Arc<NodeFact>>,
    /// Absent if the node was not reached.
    pub pulse: Option<NodePulse>,
    /// Why the node was not reached. `fact` is then cached, if gossip still shows the same digest.
    pub error: Option<String>,
}

impl FactCache {
    fn get(&mut self, member: &Member) -> Option<(u64, Arc<NodeFact>)> {
        self.uses += 1;
        let known = self.by_node.get_mut(&member.node).filter(|known| known.incarnation == member.incarnation)?;
        known.used = self.uses;
        Some((known.digest, Arc::clone(&known.fact)))
    }

    fn put(&mut self, member: &Member, digest: u64, fact: Arc<NodeFact>) {
        self.uses += 1;
        if self.by_node.len() >= FACTS_MAX && !self.by_node.contains_key(&member.node) {
            let oldest = self.by_node.iter().min_by_key(|(_, known)| known.used).map(|(node, _)| node.clone());
            oldest.and_then(|node| self.by_node.remove(&node));
        }
        self.by_node.insert(member.node.clone(), Known { incarnation: member.incarnation, digest, fact, used: self.uses });
    }
}

/// Why another node's fact could not be fetched.
#[derive(Debug, Error)]
enum PullError {
    #[error(transparent)]
    Node(#[from] UnansweredNode),
    #[error("its answer lacks the fact")]
    FactMissing,
    #[error("its description has a format that this version does not know")]
    UnknownForm,
}

impl Facts {
    /// `own`: the constant part of this node's fact.
    pub fn new(own: NodeFact, handles: Handles) -> Self {
        Self { handles: Arc::new(handles), own: watch::Sender::new(Arc::new(own)), kept: Arc::default(), readings: Readings::new() }
    }

    /// This node's fact, as it is published.
    pub fn own(&self) -> Arc<NodeFact> {
        Arc::clone(&self.own.borrow())
    }

    /// A node's fact now. `member`: the node as gossip has it.
    pub async fn of(&self, node: &NodeId, member: Option<&Member>) -> FactReport {
        if *node == self.handles.me {
            return FactReport { fact: Some(self.own()), pulse: Some(self.pulse().await), error: None };
        }
        let known = member.and_then(|member| self.kept().get(member));
        match self.pull(node, known.as_ref().map(|(digest, _)| *digest)).await {
            Ok((digest, fact, pulse)) => {
                let fact = fact.map(Arc::new).or(known.map(|(_, fact)| fact));
                if let (Some(member), Some(fact)) = (member, &fact) {
                    self.kept().put(member, digest, Arc::clone(fact));
                }
                FactReport { fact, pulse: Some(pulse), error: None }
            }
            Err(error) => {
                let gossiped = member.and_then(|member| member.fact).map(|fact| fact.digest);
                let still = known.filter(|(digest, _)| gossiped == Some(*digest));
                FactReport { fact: still.map(|(_, fact)| fact), pulse: None, error: Some(error.to_string()) }
            }
        }
    }

    async fn pull(&self, node: &NodeId, known: Option<u64>) -> Result<(u64, Option<NodeFact>, NodePulse), PullError> {
        let address = self.handles.directory.mesh(node).await.ok_or(UnansweredNode::NoAddress)?;
        let conversation = async {
            let (mut send, mut recv) = self.handles.mesh.open(node, &address).await?;
            frame::write(&mut send, &Open::Fact(FactOpen { known })).await.map_err(UnansweredNode::Ask)?;
            frame::read::<FactAnswer, _>(&mut recv).await.map_err(UnansweredNode::reading)
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, conversation).await.map_err(|_| UnansweredNode::Timeout)??;
        if answer.fact.is_none() && known != Some(answer.digest) {
            return Err(PullError::FactMissing);
        }
        let fact = answer.fact.map(|fact| fact.of(node)).transpose();
        let fact = fact.map_err(|_| PullError::UnknownForm)?;
        Ok((answer.digest, fact, answer.pulse.into()))
    }

    async fn pulse(&self) -> NodePulse {
        let runs = |phase: Phase| match phase {
            Phase::Preparing | Phase::Prepared | Phase::Running => true,
            Phase::Stopping | Phase::Undoing => false,
        };
        let view = self.handles.view.borrow().clone();
        let running = || view.locals.iter().filter(|local| runs(local.phase)).map(|local| local.share.allocation);
        let Reading { pressure, power_watts } = self.readings.present(read).await;
        NodePulse {
            running: running().take(RUNNING_MAX).collect(),
            running_count: u32::try_from(running().count()).unwrap_or(u32::MAX),
            pressure,
            power_watts,
        }
    }

    fn kept(&self) -> parking_lot::MutexGuard<'_, FactCache> {
        self.kept.lock()
    }
}

/// Answers another agent.
pub async fn answer(facts: &Facts, open: FactOpen, send: &mut SendStream) -> Result<(), FrameError> {
    let fact = facts.own();
    let digest = fact.digest();
    let wire_fact = (open.known != Some(digest)).then(|| WireFact::from(&*fact));
    let pulse = WirePulse::from(&facts.pulse().await);
    frame::write(send, &FactAnswer { digest, fact: wire_fact, pulse }).await
}

/// GPUs by model; a lost one counts neither as healthy nor as allocatable.
fn gpus(statuses: &GpuStatuses, topology: &NodeTopology) -> BTreeMap<String, Gpus> {
    let statuses = statuses.shown();
    let mut by_model: BTreeMap<String, Gpus> = BTreeMap::new();
    for gpu in &topology.gpu.gpus {
        let gpus = by_model.entry(gpu.model.chars().filter(|c| !c.is_control()).take(64).collect()).or_default();
        let known = statuses.iter().find(|s| s.bus == gpu.id || Some(&s.bus) == gpu.pci_address.as_ref());
        gpus.healthy += u32::from(known.is_none_or(|s| s.healthy));
        gpus.allocatable += u32::from(known.is_none_or(|s| s.allocatable));
    }
    by_model
}

/// Keeps this node's fact current, and gossips it, until `stop`.
pub async fn follow(facts: Facts, mut offer: watch::Receiver<Offer>, membership: Membership, stop: CancellationToken) {
    let Handles { me, topology, .. } = &*facts.handles;
    let mut statuses = facts.handles.gpus.clone();
    let mut cluster = facts.handles.cluster.clone();
    let mut checks = facts.handles.checks.watch();
    let mut conformance = facts.handles.conformance.watch();
    let mut look = tokio::time::interval(IMAGES_LOOK_INTERVAL);
    let images = facts.handles.images.dir().to_owned();
    let mut published = None;
    let mut fact = (*facts.own()).clone();
    let mut known = of_me(&cluster.borrow_and_update(), me);
    loop {
        let (state, reason, holds) =
            known.clone().unwrap_or((NodeState::Booting, "the quorum has not registered it yet".to_owned(), Vec::new()));
        (fact.state, fact.reason) = corrected_state(state, reason, &checks.borrow_and_update());
        fact.holds = holds;
        fact.fingerprint = conformance.borrow_and_update().components.as_ref().map(fingerprint);
        fact.gpus = gpus(&statuses.borrow_and_update(), &topology.borrow());
        {
            let offered = offer.borrow_and_update();
            (fact.cores, fact.memory_bytes, fact.features) = (offered.size.cores, offered.size.memory_bytes, offered.features.clone());
        }
        let gossiped = Fact { state: fact.state, held: !fact.holds.is_empty(), schedulable: fact.schedulable, digest: fact.digest() };
        if published != Some(gossiped) {
            // The fact must be in place before gossip announces it.
            facts.own.send_replace(Arc::new(fact.clone()));
            membership.ask(Ask::SetFact(gossiped)).await;
            published = Some(gossiped);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            now = wait_for_change(&mut cluster, me, &known) => known = now,
            Ok(()) = checks.changed() => {}
            Ok(()) = statuses.changed() => {}
            Ok(()) = conformance.changed() => {}
            Ok(()) = offer.changed() => {}
            _ = look.tick() => {
                let folder = images.clone();
                if let Ok(found) = tokio::task::spawn_blocking(move || cached(&folder)).await {
                    (fact.images, fact.images_count) = found;
                }
            }
        }
    }
}

/// This node's state in the quorum, its reason, and its holds.
type OfMe = Option<(NodeState, String, Vec<Hold>)>;

fn of_me(cluster: &Cluster, me: &NodeId) -> OfMe {
    cluster.nodes.get(me).map(|node| (node.state, node.state_reason.clone(), node.holds.clone()))
}

/// Waits until the quorum's view of this node differs from `known`. A large cluster changes all the
/// time, but the view of one node rarely does.
async fn wait_for_change(cluster: &mut watch::Receiver<Arc<Cluster>>, me: &NodeId, known: &OfMe) -> OfMe {
    while cluster.changed().await.is_ok() {
        let view = cluster.borrow_and_update();
        let same = match (known, view.nodes.get(me)) {
            (Some((state, reason, holds)), Some(node)) => (*state, reason, holds) == (node.state, &node.state_reason, &node.holds),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !same {
            return of_me(&view, me);
        }
    }
    // The watch has closed: the agent stops.
    std::future::pending().await
}

/// The quorum's state of this node, corrected by the node's own checks.
fn corrected_state(state: NodeState, reason: String, health: &Health) -> (NodeState, String) {
    let is_checked = health.checks().next().is_some();
    match (state, health.unwell()) {
        (NodeState::Ready, Some(why)) => (NodeState::Degraded, format!("{UNWELL}{why}")),
        (NodeState::Draining | NodeState::Drained, Some(why)) => (state, format!("{UNWELL}{why}")),
        (NodeState::Draining | NodeState::Drained, None) if is_checked && reason.starts_with(UNWELL) => (state, String::new()),
        // The quorum does not know yet that the node is well again.
        (NodeState::Degraded, None) if is_checked && reason.starts_with(UNWELL) => (NodeState::Ready, String::new()),
        (state, _) => (state, reason),
    }
}

/// Digests of some cached images, and the number of all.
fn cached(folder: &Path) -> (Vec<String>, u32) {
    // The folder does not exist before the first image.
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let digest = |name: std::ffi::OsString| Some(name.to_str()?.strip_prefix("sha256-")?.strip_suffix(".sqfs")?.to_owned());
    let mut digests: Vec<String> = names.filter_map(digest).filter(|digest| digest.len() == 64).collect();
    let all = u32::try_from(digests.len()).unwrap_or(u32::MAX);
    digests.sort_unstable();
    digests.truncate(IMAGES_MAX);
    (digests, all)
}

/// A reading of the machine's sensors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    pressure: Pressure,
    power_watts: Option<f64>,
}

/// The last reading, or the one in progress.
type Latest = watch::Receiver<Option<(Instant, Reading)>>;

/// Readings of the machine, shared by all requests, one at a time. All clones share them.
#[derive(Clone)]
struct Readings(Arc<Mutex<Latest>>);

impl Readings {
    /// No reading yet.
    fn new() -> Self {
        Self(Arc::new(Mutex::new(watch::channel(None).1)))
    }

    /// The last reading if it is recent enough, else a new one; an empty one if that takes too
    /// long.
    async fn present(&self, read: impl FnOnce() -> Reading + Send + 'static) -> Reading {
        let mut seen = {
            let mut last = self.0.lock();
            let is_over = match &*last.borrow() {
                Some((at, _)) => at.elapsed() >= READING_AGE_MAX,
                // A reading is in progress, unless its thread is gone.
                None => last.has_changed().is_err(),
            };
            if is_over {
                let (tx, rx) = watch::channel(None);
                // Drivers may be slow.
                tokio::task::spawn_blocking(move || {
                    let reading = read();
                    tx.send_replace(Some((Instant::now(), reading)));
                });
                *last = rx;
            }
            last.clone()
        };
        let result = tokio::time::timeout(READING_AGE_MAX, seen.wait_for(Option::is_some)).await;
        result.ok().and_then(|result| result.ok().and_then(|reading| *reading)).map(|(_, reading)| reading).unwrap_or_default()
    }
}

/// Reads the sensors. Blocks, for a tenth of a second if there are energy counters.
fn read() -> Reading {
    let (counters, began) = (energy_uj(Path::new("/sys/class/powercap")), Instant::now());
    let power_watts = if counters.is_empty() {
        metered(Path::new("/sys/class/hwmon"))
    } else {
        std::thread::sleep(ENERGY_READ_GAP);
        watts(&counters, &energy_uj(Path::new("/sys/class/powercap")), began.elapsed())
    };
    Reading { pressure: Pressure { cpu: pressure("cpu"), memory: pressure("memory"), io: pressure("io") }, power_watts }
}

fn pressure(of: &str) -> Option<f64> {
    avg10(&fs::read_to_string(Path::new("/proc/pressure").join(of)).ok()?)
}

fn avg10(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

/// Energy used by each package in microjoules, from RAPL. The value of a package includes its
/// parts.
fn energy_uj(powercap: &Path) -> BTreeMap<String, u64> {
    let zones = fs::read_dir(powercap).into_iter().flatten().flatten();
    let package = zones.filter_map(|zone| {
        let name = zone.file_name().into_string().ok()?;
        let is_whole = name.strip_prefix("intel-rapl:").is_some_and(|number| !number.contains(':'));
        let label = fs::read_to_string(zone.path().join("name")).ok().filter(|label| is_whole && label.starts_with("package-"))?;
        let used = fs::read_to_string(zone.path().join("energy_uj")).ok()?.trim().parse().ok()?;
        Some((label.trim().to_owned(), used))
    });
    package.collect()
}

/// The mean power in watts; `None` if a counter was reset in between, or disappeared.
fn watts(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, passed: Duration) -> Option<f64> {
    let used: Option<Vec<u64>> = before.iter().map(|(package, was)| after.get(package)?.checked_sub(*was)).collect();
    Some(used?.iter().sum::<u64>() as f64 / 1e6 / passed.as_secs_f64())
}

/// The machine's own power meter (ACPI), in watts.
fn metered(hwmon: &Path) -> Option<f64> {
    let meters = fs::read_dir(hwmon).ok()?.flatten().map(|entry| entry.path());
    let is_meter = |path: &Path| fs::read_to_string(path.join("name")).is_ok_and(|name| name.trim() == "power_meter");
    let mut meters = meters.filter(|path| is_meter(path));
    let microwatts: f64 = fs::read_to_string(meters.next()?.join("power1_average")).ok()?.trim().parse().ok()?;
    Some(microwatts / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_gossip::Liveness;
    use lattice_model::Timestamp;
    use lattice_node::health::Finding;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn member(node: &str, incarnation: u64) -> Member {
        let addr = "127.0.0.1:1".parse().unwrap();
        Member {
            node: node.parse().unwrap(),
            addr,
            mesh: addr,
            incarnation,
            liveness: Liveness::Alive,
            since_ms: 0,
            accusers: 0,
            fact: None,
            contradicted_since_ms: None,
        }
    }

    fn fact(node: &str) -> NodeFact {
        NodeFact {
            node: node.parse().unwrap(),
            state: NodeState::Ready,
            reason: String::new(),
            holds: vec![],
            schedulable: true,
            cores: 1,
            memory_bytes: 1,
            gpus: BTreeMap::new(),
            topology_group: None,
            features: vec![],
            fingerprint: None,
            images: vec![],
            images_count: 0,
        }
    }

    fn health(finding: Finding) -> Health {
        let mut health = Health::default();
        health.found(Timestamp(1), "disk", finding);
        health
    }

    #[test]
    fn an_unwell_ready_node_is_degraded_and_a_draining_one_names_the_reason() {
        let (well, unwell) = (health(Finding::Ok), health(Finding::Critical("full".to_owned())));
        for state in NodeState::ALL {
            let corrected_state = |health: &Health| corrected_state(state, "as was said".to_owned(), health);
            assert_eq!(corrected_state(&well), (state, "as was said".to_owned()));
            assert_eq!(corrected_state(&unwell).0, if state == NodeState::Ready { NodeState::Degraded } else { state });
            let is_stated = matches!(state, NodeState::Ready | NodeState::Draining | NodeState::Drained);
            assert_eq!(corrected_state(&unwell).1.starts_with(UNWELL), is_stated);
        }
    }

    #[test]
    fn a_recovered_node_is_ready_before_the_quorum_reports_it() {
        let corrected_state = |reason: String, health: &Health| corrected_state(NodeState::Degraded, reason, health);
        let was_unwell = || format!("{UNWELL}disk: full");
        assert_eq!(corrected_state(was_unwell(), &health(Finding::Ok)), (NodeState::Ready, String::new()));
        assert_eq!(corrected_state(was_unwell(), &health(Finding::Critical("full".to_owned()))).0, NodeState::Degraded);
        assert_eq!(corrected_state(was_unwell(), &Health::default()).0, NodeState::Degraded, "nothing was looked at yet");
        assert_eq!(corrected_state("silent for 31 s".to_owned(), &health(Finding::Ok)).0, NodeState::Degraded, "that is another matter");
    }

    #[tokio::test]
    async fn concurrent_readers_share_one_reading_and_a_failed_reading_is_repeated() {
        let readings = Readings::new();
        let count = Arc::new(AtomicU32::new(0));
        let ask = || {
            let count = Arc::clone(&count);
            readings.present(move || {
                std::thread::sleep(Duration::from_millis(20));
                Reading { power_watts: Some(f64::from(count.fetch_add(1, Ordering::Relaxed))), ..Reading::default() }
            })
        };
        assert_eq!(readings.present(|| panic!("a driver's file says nonsense")).await, Reading::default());
        let began = Instant::now();
        futures::future::join_all((0..8).map(|_| ask())).await;
        // On a busy machine a reading may take longer than its readers wait, and they repeat it.
        let first = read_in_the_end(&ask).await;
        assert!(first <= began.elapsed().div_duration_f64(READING_AGE_MAX).floor(), "{first}");
        tokio::time::sleep(READING_AGE_MAX).await;
        assert!(read_in_the_end(&ask).await > first);
    }

    /// The power of the first reading that arrives in time.
    async fn read_in_the_end<F: Future<Output = Reading>>(ask: impl Fn() -> F) -> f64 {
        let began = Instant::now();
        loop {
            if let Some(watts) = ask().await.power_watts {
                return watts;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "no reading arrives");
        }
    }

    #[test]
    fn a_cached_fact_lasts_for_one_life_of_its_node_and_the_longest_unused_is_removed_first() {
        let mut kept = FactCache::default();
        kept.put(&member("n0", 1), 7, Arc::new(fact("n0")));
        assert!(kept.get(&member("n0", 1)).is_some_and(|(digest, _)| digest == 7));
        assert!(kept.get(&member("n0", 2)).is_none(), "another life says it anew");
        for n in 1..=FACTS_MAX {
            kept.put(&member(&format!("n{n}"), 1), 7, Arc::new(fact("n1")));
            assert!(kept.get(&member("n0", 1)).is_some());
        }
        assert_eq!(kept.by_node.len(), FACTS_MAX);
        assert!(kept.get(&member("n1", 1)).is_none());
    }

    #[test]
    fn pressure_and_power_are_read_and_never_made_up() {
        let text = "some avg10=1.25 avg60=0.00 avg300=0.00 total=1\nfull avg10=9.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!((avg10(text), avg10("full avg10=9.00\n"), avg10("")), (Some(1.25), None, None));
        let sys = std::env::temp_dir().join(format!("lattice-power-{}", std::process::id()));
        let _ = fs::remove_dir_all(&sys);
        let zone = |name: &str, label: &str, used: &str| {
            fs::create_dir_all(sys.join(name)).unwrap();
            fs::write(sys.join(name).join("name"), label).unwrap();
            fs::write(sys.join(name).join("energy_uj"), used).unwrap();
        };
        zone("intel-rapl:0", "package-0\n", "1000000\n");
        zone("intel-rapl:1", "package-1\n", "5000000\n");
        zone("intel-rapl:0:0", "core\n", "9\n");
        let before = energy_uj(&sys);
        assert_eq!(before.len(), 2);
        zone("intel-rapl:0", "package-0\n", "21000000\n");
        zone("intel-rapl:1", "package-1\n", "15000000\n");
        assert_eq!(watts(&before, &energy_uj(&sys), Duration::from_millis(100)), Some(300.0));
        zone("intel-rapl:1", "package-1\n", "0\n");
        assert_eq!(watts(&before, &energy_uj(&sys), Duration::from_millis(100)), None, "it began anew");
        assert_eq!((energy_uj(&sys.join("none")).len(), metered(&sys)), (0, None));
        fs::remove_dir_all(&sys).unwrap();
    }
}
