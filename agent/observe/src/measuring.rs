//! Measures once a second, on a thread of its own, what each allocation's work uses of this node.
//!
//! ```text
//!   for each allocation a Meter ──▶ Usage ──▶ rates ──▶ windows ─┐
//!   GPUs' drivers (lattice_machine::gpu_loads), RAPL ────────────┤
//!                                                                ├──▶ /metrics and push (Collect)
//!                                                                ├──▶ `lattice top`, everywhere (Open::Usage)
//!                                                                └──▶ alerts (crate::alerting) ──▶ `lattice watch`
//! ```
//!
//! The kernel's files answer at once, but a machine under pressure may be slow: only requests for
//! numbers wait for this thread, and only with a timeout. While no work runs, the thread only
//! checks whether some does. Looking takes at most a twentieth of a processor: if looks take long,
//! there are fewer of them (`looks`). Work that is put in debug mode is nevertheless looked at soon
//! (`early_looks`).
//!
//! The last numbers of ended work are exported for two more intervals of remote write, so that they
//! reach the store.

pub mod alerts;
mod debug;
pub mod devices;
pub mod disks;
mod early_looks;
pub mod energy;
mod gpu_numbers;
mod handles;
mod histories;
mod looks;
mod metrics;
mod moving;
mod numbers;

use crate::alerting::Alerts;
use crate::alerting::saved::Key;
use crate::kernel_counts::KernelCounts;
use crate::traces::TraceCounts;
use gpu_numbers::Devices;
pub use handles::Handles;
use histories::Histories;
pub use histories::export_delay;
use lattice_mesh::UnansweredNode;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::Open;
use lattice_mesh::usage::{UsageAnswer, UsageOpen, WireUsage};
use lattice_model::{AllocationId, DesiredShare, Epoch, NodeId, millis};
use lattice_telemetry::alert::AlertSettings;
use lattice_telemetry::alert::idle::Verdict;
use lattice_telemetry::catalogue::LATENCY_SECONDS;
use lattice_telemetry::energy::NodeMeter;
use lattice_telemetry::histogram::Histogram;
use lattice_telemetry::readers::Look;
use lattice_telemetry::usage::{Distribution, Measure, Source, Usage};
use lattice_telemetry::window::smoothing::Smoothing;
use moving::Moving;
use numbers::{Number, trace_counts};
use parking_lot::{Mutex, MutexGuard};
use quinn::SendStream;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::watch;
use uuid::Uuid;

/// Interval between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A look at one allocation gives no rates if it took longer than this share of the time since the
/// look before it: its numbers are not of one moment.
const BLUR_MAX: f64 = 0.1;
/// Most allocations that are measured, and most ended ones whose numbers are still exported. A
/// metric counts the allocations that are not measured.
const ALLOCATIONS_MAX: usize = 512;
/// How far back this agent's own numbers go, for `lattice top`.
pub const DURATION_MAX: Duration = Duration::from_secs(3600);
/// How long a request waits for numbers of work that has just begun.
const FIRST_WAIT: Duration = Duration::from_secs(4);
/// Timeout of another agent's answer: longer than that agent waits itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The measured numbers. Cloneable; all clones share them.
#[derive(Clone)]
pub struct Measuring(Arc<Inner>);

struct Inner {
    handles: Handles,
    alerts: AlertSettings,
    /// Only for exported windows.
    smoothing: Smoothing,
    known: Mutex<Known>,
    left_out: AtomicU64,
    seconds: Histogram,
    kernel: KernelCounts,
    /// Counts the looks.
    looked: watch::Sender<u64>,
}

/// All allocations with numbers.
#[derive(Default)]
struct Known {
    running: BTreeMap<AllocationId, Tracked>,
    /// Ended allocations, and when they ended; none that runs again.
    ended: BTreeMap<AllocationId, (Instant, Tracked)>,
    /// Time of the newest pass, on the clock of the windows.
    now_ms: u64,
    /// Verdicts about launches since the last pass.
    verdicts: Vec<(Key, u32, Verdict)>,
    /// How often each alert was raised in this run of the agent.
    raised: BTreeMap<String, u64>,
    /// Share of errors among the packets of this node's interfaces.
    network_errors: Option<f64>,
    /// Energy of this node's processors and memory.
    node_energy: NodeMeter,
}

/// One allocation's numbers.
struct Tracked {
    share: Arc<DesiredShare>,
    /// From the newest look.
    usage: Arc<Usage>,
    /// The two newest looks whose numbers are each of one moment: rates are computed from them.
    last: Option<(Instant, Arc<Usage>)>,
    before: Option<(Instant, Arc<Usage>)>,
    /// Time of `last`, on the clock of the windows.
    at_ms: u64,
    histories: Histories,
    /// Its GPUs here.
    devices: Devices,
    alerts: Alerts,
    /// Its activity at the last check of launches.
    moving: Moving,
    /// Counts of debug mode and of audit mode, while it is in that mode.
    kept: Option<TraceCounts>,
    audited: Option<TraceCounts>,
}

impl Measuring {
    /// Measures with the site's alert rules.
    pub fn new(alerts: AlertSettings, smoothing: Smoothing, handles: Handles) -> Self {
        let (known, left_out, kernel) = (Mutex::default(), AtomicU64::new(0), KernelCounts::default());
        let seconds = Histogram::new(LATENCY_SECONDS);
        Self(Arc::new(Inner { handles, alerts, smoothing, known, left_out, seconds, kernel, looked: watch::Sender::new(0) }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock()
    }

    /// Loads the programs in the kernel if they are wanted, which takes a tenth of a second. Call
    /// it before the node reports its abilities.
    pub fn load(&self, in_kernel: bool) {
        if in_kernel {
            let Handles { slice, state_dir, .. } = &self.0.handles;
            self.0.kernel.begin(slice.as_ref(), Some(state_dir));
        } else {
            self.0.kernel.off("measuring.kernel_probes: false");
        }
    }

    /// The programs in the kernel.
    pub fn kernel(&self) -> &KernelCounts {
        &self.0.kernel
    }

    /// Begins to count an allocation's work in the kernel, before its first process.
    pub fn track(&self, share: &DesiredShare, work: &Path) {
        self.0.kernel.track((share.allocation, share.epoch), work);
    }

    /// What an allocation's work uses here; waits up to `FIRST_WAIT` if it has just begun. An error
    /// says why there are no numbers.
    async fn wait_for_usage(&self, allocation: AllocationId, epoch: Epoch, duration: Duration) -> Result<WireUsage, UsageError> {
        let mut looked = self.0.looked.subscribe();
        let until = tokio::time::Instant::now() + FIRST_WAIT;
        loop {
            if self.0.handles.allocations.of_epoch(allocation, epoch).is_none() {
                return Err(UsageError::NotHere { allocation });
            }
            if let Some(usage) = self.newest((allocation, epoch), duration) {
                return Ok(usage);
            }
            let next = tokio::time::timeout_at(until, looked.changed()).await;
            if !matches!(next, Ok(Ok(()))) {
                return Err(UsageError::NotMeasured { allocation });
            }
        }
    }
}

impl Known {
    fn take(&mut self, share: &Arc<DesiredShare>, look: Look, at_ms: u64) {
        // The series belong to the new run now.
        self.ended.remove(&share.allocation);
        let of = self.running.entry(share.allocation).or_insert_with(|| Tracked::new(Arc::clone(share)));
        if of.share.epoch != share.epoch {
            *of = Tracked::new(Arc::clone(share));
        }
        of.take(look, at_ms);
    }

    /// When this allocation was looked at last.
    fn looked(&self, (allocation, epoch): &Key) -> Option<Instant> {
        let of = self.running.get(allocation).filter(|of| of.share.epoch == *epoch)?;
        of.last.as_ref().map(|(at, _)| *at)
    }

    /// Takes the last numbers of ended work, which the kernel still had after its processes were
    /// gone.
    fn last_of_kernel(&mut self, (allocation, epoch): Key, last: &Usage) {
        let Some(of) = self.running.get_mut(&allocation).filter(|of| of.share.epoch == epoch) else { return };
        Arc::make_mut(&mut of.usage).take_newer(last, Source::Ebpf);
    }

    /// Ends allocations that no longer run. Removes ended ones after `ended_for`, or the oldest if
    /// there are too many.
    fn retain_recent(&mut self, now: Instant, (ended_for, smoothing): (Duration, Smoothing), runs: impl Fn(&Tracked) -> bool) {
        for (id, mut tracked) in self.running.extract_if(.., |_, tracked| !runs(tracked)) {
            tracked.end(smoothing);
            self.ended.insert(id, (now, tracked));
        }
        self.ended.retain(|_, (at, _)| now.saturating_duration_since(*at) <= ended_for);
        while self.ended.len() > ALLOCATIONS_MAX
            && let Some(first) = self.ended.iter().min_by_key(|(_, (at, _))| *at).map(|(id, _)| *id)
        {
            self.ended.remove(&first);
        }
    }

    /// All allocations, each with when it ended.
    fn all(&self) -> impl Iterator<Item = (&Tracked, Option<Instant>)> {
        let running = self.running.values().map(|tracked| (tracked, None));
        running.chain(self.ended.values().map(|(at, tracked)| (tracked, Some(*at))))
    }
}

impl Tracked {
    fn new(share: Arc<DesiredShare>) -> Self {
        let (devices, alerts, histories) = (Devices::new(), Alerts::default(), Histories::new());
        let (usage, last, before, at_ms, kept, audited) = (Arc::default(), None, None, 0, None, None);
        let moving = Moving::default();
        Self { share, usage, last, before, at_ms, histories, devices, alerts, moving, kept, audited }
    }

    fn take(&mut self, Look { usage, at, took }: Look, at_ms: u64) {
        self.usage = Arc::new(usage);
        if let Some((bytes, _)) = self.usage.get(Measure::Memory) {
            self.histories.memory.push(at_ms, bytes);
        }
        // The first look may take as long as one that follows another after a second.
        let since = self.last.as_ref().map_or(LOOK_INTERVAL, |(last, _)| at.saturating_duration_since(*last));
        if took > since.mul_f64(BLUR_MAX) {
            return;
        }
        self.before = self.last.replace((at, Arc::clone(&self.usage)));
        self.at_ms = at_ms;
        let rates = [Measure::IoRead, Measure::IoWritten, Measure::NetworkReceived, Measure::NetworkSent, Measure::TcpAccepts];
        let rates = rates.map(|measure| self.rate(measure));
        self.histories.take(at_ms, self.cpu_rate(), rates, &self.usage);
    }

    /// Closes the windows: nothing more follows.
    fn end(&mut self, smoothing: Smoothing) {
        self.histories.close(smoothing);
        self.devices.end(smoothing);
        self.alerts.end();
    }

    fn per_second(&self, of: impl Fn(&Usage) -> Option<(f64, Source)>) -> Option<(f64, Source)> {
        let ((then, before), (at, usage)) = (self.before.as_ref()?, self.last.as_ref()?);
        let ((was, from), (is, source)) = (of(before)?, of(usage)?);
        let seconds = at.saturating_duration_since(*then).as_secs_f64();
        // Counts of different sources are not comparable.
        (seconds > 0.0 && from == source && is >= was).then(|| ((is - was) / seconds, source))
    }

    fn rate(&self, measure: Measure) -> Option<(f64, Source)> {
        self.per_second(|usage| usage.get(measure))
    }

    /// A bound that `percent` of the requests between the two newest looks do not exceed.
    fn percentile_of_rate(&self, of: Distribution, percent: u64) -> Option<(f64, Source)> {
        let ((_, before), (_, usage)) = (self.before.as_ref()?, self.last.as_ref()?);
        let ((was, from), (is, source)) = (before.distribution(of)?, usage.distribution(of)?);
        if from != source {
            return None;
        }
        Some((is.since(was)?.percentile(percent)?, source))
    }

    fn cpu_rate(&self) -> Option<(f64, Source)> {
        self.per_second(Usage::cpu_seconds)
    }

    /// The present numbers that are `wanted`, by the names of `lattice top` and of alert rules;
    /// none before there are rates. `network_errors`: the node's.
    fn numbers(&self, network_errors: Option<f64>, wanted: impl Fn(&str) -> bool) -> Vec<Number<'_>> {
        type Value = Option<(f64, Source)>;
        let (mut numbers, histories) = (Vec::new(), &self.histories);
        if self.last.is_none() || self.before.is_none() {
            return numbers;
        }
        let mut add = |name, unit, value: &dyn Fn() -> Value, history| {
            let value = if wanted(name) { value() } else { None };
            numbers.extend(value.map(|(now, source)| Number { name, unit, now, source: source.name(), history }));
        };
        let get = |measure| move || self.usage.get(measure);
        let rate = |measure| move || self.rate(measure);
        let p99 = |of| move || self.percentile_of_rate(of, 99);
        add("cpu_cores", "cores", &|| self.cpu_rate(), Some(&histories.cpu_cores));
        add("memory_used", "bytes", &get(Measure::Memory), Some(&histories.memory));
        add("memory_peak", "bytes", &get(Measure::MemoryPeak), None);
        add("io_read_bytes", "bytes/s", &rate(Measure::IoRead), Some(&histories.io_read));
        add("io_write_bytes", "bytes/s", &rate(Measure::IoWritten), Some(&histories.io_written));
        add("processes", "count", &get(Measure::Processes), None);
        add("threads", "count", &get(Measure::Threads), None);
        add("page_faults_minor", "1/s", &rate(Measure::FaultsMinor), None);
        add("page_faults_major", "1/s", &rate(Measure::FaultsMajor), None);
        // Seconds of waiting a second.
        add("pressure_cpu", "ratio", &rate(Measure::PressureCpuSome), None);
        add("pressure_memory", "ratio", &rate(Measure::PressureMemorySome), None);
        add("pressure_io", "ratio", &rate(Measure::PressureIoSome), None);
        add("oom_kills", "count", &get(Measure::OomKills), None);
        add("network_received_bytes", "bytes/s", &rate(Measure::NetworkReceived), Some(&histories.received));
        add("network_sent_bytes", "bytes/s", &rate(Measure::NetworkSent), Some(&histories.sent));
        add("tcp_retransmits", "1/s", &rate(Measure::TcpRetransmits), None);
        add("connections_accepted", "1/s", &rate(Measure::TcpAccepts), Some(&histories.connections_accepted));
        add("accept_queue", "count", &get(Measure::AcceptQueue), Some(&histories.accept_queue));
        add("switches_voluntary", "1/s", &rate(Measure::SwitchesVoluntary), None);
        add("switches_involuntary", "1/s", &rate(Measure::SwitchesInvoluntary), None);
        add("run_queue_p99", "seconds", &p99(Distribution::RunQueue), None);
        add("block_read_p99", "seconds", &p99(Distribution::BlockRead), None);
        add("block_write_p99", "seconds", &p99(Distribution::BlockWrite), None);
        // The slower of reads and writes.
        let slower = || {
            [Distribution::BlockRead, Distribution::BlockWrite].into_iter().filter_map(|of| p99(of)()).max_by(|a, b| a.0.total_cmp(&b.0))
        };
        add("io_latency_p99", "seconds", &slower, None);
        add("cpu_power_draw", "W", &rate(Measure::EnergyCpu), None);
        add("cpu_energy", "J", &get(Measure::EnergyCpu), None);
        add("gpu_energy", "J", &get(Measure::EnergyGpu), None);
        let of_node = |now| Number { name: "network_error_ratio", unit: "ratio", now, source: "node", history: None };
        let more = self.devices.numbers().into_iter().chain(network_errors.map(of_node));
        numbers.extend(more.filter(|number| wanted(number.name)));
        numbers
    }

    /// The numbers for `lattice top`; `None` before there are rates.
    fn wire_usage(&self, duration: Duration, network_errors: Option<f64>) -> Option<WireUsage> {
        let (Some((at, _)), Some(_)) = (&self.last, &self.before) else { return None };
        let since_ms = self.at_ms.saturating_sub(millis(duration.min(DURATION_MAX)));
        let shown = self.numbers(network_errors, |_| true).into_iter().map(|number| {
            let over = number.history.and_then(|history| history.since(since_ms));
            number.shown(over)
        });
        let age_ms = millis(at.elapsed());
        Some(WireUsage { age_ms, shown: shown.chain(self.disks()).chain(trace_counts(self.kept, self.audited)).collect() })
    }
}

/// Why it is unknown what an allocation's work uses of a node.
#[derive(Debug, Error)]
pub enum UsageError {
    #[error("allocation {} is not running on this node", .allocation.short())]
    NotHere { allocation: AllocationId },
    #[error(
        "allocation {} was not measured on this node yet: it is still being prepared, or there is no cgroup for it",
        .allocation.short()
    )]
    NotMeasured { allocation: AllocationId },
    #[error("its drivers report what cannot be shown")]
    OddGpuReadings,
    #[error(transparent)]
    Node(#[from] UnansweredNode),
}

/// What an allocation's work uses of `node`, for a user who may see it.
pub async fn of_node(measuring: &Measuring, node: &NodeId, address: Option<String>, open: UsageOpen) -> Result<WireUsage, UsageError> {
    let (allocation, epoch) = (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    if *node == measuring.0.handles.me {
        return measuring.wait_for_usage(allocation, epoch, Duration::from_millis(open.duration_ms)).await;
    }
    let address = address.ok_or(UnansweredNode::NoAddress)?;
    let conversation = async {
        let (mut send, mut recv) = measuring.0.handles.mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::Usage(open)).await.map_err(UnansweredNode::Ask)?;
        frame::read::<UsageAnswer, _>(&mut recv).await.map_err(UnansweredNode::reading)
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, conversation).await.map_err(|_| UnansweredNode::Timeout)??;
    match answer {
        UsageAnswer::Answered(usage) => Ok(usage.checked().map_err(|_| UnansweredNode::UnknownForm)?),
        UsageAnswer::Refused { why } => {
            let why = why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect();
            Err(UnansweredNode::Refused { why }.into())
        }
    }
}

/// Answers another agent.
pub async fn answer(measuring: &Measuring, open: &UsageOpen, send: &mut SendStream) -> Result<(), FrameError> {
    let (allocation, epoch) = (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    let answer = match measuring.wait_for_usage(allocation, epoch, Duration::from_millis(open.duration_ms)).await {
        Ok(usage) => UsageAnswer::Answered(usage),
        Err(error) => UsageAnswer::Refused { why: error.to_string() },
    };
    frame::write(send, &answer).await
}

#[cfg(test)]
pub mod tests;
