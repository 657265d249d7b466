//! How busy the node's GPUs are. A separate thread asks their drivers, so a driver that hangs
//! blocks nothing else. The last answer is shown only while it is current.
//!
//! ```text
//!   thread: drivers (lattice_runtime) ──▶ newest look ──▶ /metrics and push: each GPU
//!                                                   └───▶ measuring: each allocation, of the GPUs that it has
//! ```
//!
//! While work has GPUs, the drivers are asked once a second. Otherwise they are asked rarely, and
//! closed after each look, because a GPU that a process holds open cannot be reset. A GPU that is
//! withheld and that no allocation has is closed at once and not asked.
//!
//! The holder of a GPU follows from the node's assignment, not from the processes on it: the
//! assignment is exact, and exists before the first process. An instance of a partitioned GPU has
//! memory and processes of its own; power, clocks and temperature are those of the whole GPU,
//! because no meter separates them.

use crate::gpu_statuses::GpuStatuses;
use lattice_agent_common::node_view::NodeView;
use lattice_model::gpu_load::{GpuLoad, GpuLoads, THROTTLED};
use lattice_model::gpu_look::gpu_key;
use lattice_model::topology::{GpuDevice, GpuVendor};
use lattice_model::{AllocationId, NodeTopology};
use lattice_runtime::cgroup::Slice;
use lattice_runtime::topology::{Files, GpuLoadReader, SimulatedGpu};
use lattice_telemetry::catalogue::{Family, gpu as family};
use lattice_telemetry::sample::{Collect, Samples, Whose};
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Interval between two looks while work has GPUs.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two looks while no work has GPUs.
const IDLE_LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a look is at least this many times the processor time that the look took.
const PAUSE_TIMES: u32 = 20;
/// The last look is shown until the next one is this much late.
const LATE_MAX: Duration = Duration::from_secs(5);

/// What decides which GPUs are asked, and who holds them.
pub struct Handles {
    pub slice: Option<Slice>,
    pub topology: watch::Receiver<Arc<NodeTopology>>,
    pub gpus: watch::Receiver<Arc<GpuStatuses>>,
    /// The driver's view of this node.
    pub view: watch::Receiver<Arc<NodeView>>,
}

/// The readings. All clones share them.
#[derive(Clone, Default)]
pub struct GpuReadings(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    newest: Option<Arc<Looked>>,
    /// When the drivers were asked; `None`: no answer is pending.
    asked: Option<Instant>,
}

/// The result of one look.
#[derive(Debug)]
pub struct Looked {
    pub at: Instant,
    /// Until when the result counts as current.
    fresh_until: Instant,
    pub loads: GpuLoads,
    /// The allocation that had each GPU at that time.
    pub holders: BTreeMap<String, AllocationId>,
    /// Number of processes on each GPU: of its holder, of other allocations, of no allocation.
    processes: BTreeMap<String, [u64; 3]>,
}

impl Looked {
    /// A result from the time `at`; the next look is due at `next`. `processes`: their number on
    /// each GPU, of its holder, of other allocations, of no allocation.
    pub fn new(
        at: Instant,
        next: Instant,
        loads: GpuLoads,
        holders: BTreeMap<String, AllocationId>,
        processes: BTreeMap<String, [u64; 3]>,
    ) -> Self {
        Self { at, fresh_until: next + LATE_MAX, loads, holders, processes }
    }
}

impl GpuReadings {
    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Asks the drivers on a separate thread until `stop`.
    pub fn begin(&self, handles: Arc<Handles>, simulated: Vec<SimulatedGpu>, stop: CancellationToken) -> io::Result<()> {
        let readings = self.clone();
        let run = move || readings.run(&handles, &simulated, &stop);
        std::thread::Builder::new().name("gpu-loads".to_owned()).spawn(run).map(drop)
    }

    /// The newest result, while it is current.
    pub fn newest(&self) -> Option<Arc<Looked>> {
        self.state().newest.as_ref().filter(|looked| Instant::now() < looked.fresh_until).cloned()
    }

    /// How long ago the drivers last answered; `None`: never.
    pub fn age(&self) -> Option<Duration> {
        self.state().newest.as_ref().map(|looked| looked.at.elapsed())
    }

    /// Why there are no numbers of a GPU now, for people.
    pub fn why_silent(&self, gpu: &str, vendor: Option<GpuVendor>) -> String {
        let state = self.state();
        if let Some(asked) = state.asked.filter(|asked| asked.elapsed() > LATE_MAX) {
            return format!("the GPUs' driver has not answered for {} s", asked.elapsed().as_secs());
        }
        let lacking = state.newest.as_ref().and_then(|looked| looked.loads.why_lacking(gpu, vendor));
        lacking.map(str::to_owned).unwrap_or_else(|| "it was not measured yet, or its driver does not report it".to_owned())
    }

    fn run(&self, handles: &Handles, simulated: &[SimulatedGpu], stop: &CancellationToken) {
        let mut reader = GpuLoadReader::new(Files::below(Path::new("/")), simulated);
        let (mut next, mut had) = (Instant::now(), false);
        let mut logged: BTreeSet<String> = BTreeSet::new();
        let mut open: BTreeSet<String> = BTreeSet::new();
        while !stop.is_cancelled() {
            let holders = holders(handles);
            let devices = devices_to_ask(handles, &holders);
            let ids: BTreeSet<String> = devices.iter().map(|device| device.id.clone()).collect();
            if !open.is_subset(&ids) {
                // GPUs that are no longer asked must not be held open.
                reader.rest();
                open.clear();
            }
            let has = !holders.is_empty();
            let now = Instant::now();
            if devices.is_empty() || (now < next && has == had) {
                let pause = if devices.is_empty() { LOOK_INTERVAL } else { next.saturating_duration_since(now) };
                std::thread::sleep(pause.min(LOOK_INTERVAL));
                continue;
            }
            had = has;
            self.state().asked = Some(now);
            let before = processor_time();
            let loads = reader.read(&devices);
            open = ids;
            if !has {
                reader.rest();
                open.clear();
            }
            let processes = processes(handles, &devices, &loads, &holders);
            let lacking: BTreeSet<String> = loads.lacking.iter().map(|lacking| lacking.why.clone()).collect();
            for why in lacking.difference(&logged) {
                tracing::warn!("a GPU's load is not measured: {why}");
            }
            logged = lacking;
            let pause = processor_time().saturating_sub(before).saturating_mul(PAUSE_TIMES);
            next = (now + if has { LOOK_INTERVAL } else { IDLE_LOOK_INTERVAL }).max(Instant::now() + pause);
            let looked = Looked::new(now, next, loads, holders, processes);
            *self.state() = State { newest: Some(Arc::new(looked)), asked: None };
        }
    }
}

/// The GPUs on the bus, except lost ones and withheld ones that no allocation has. A library that
/// finds a GPU lost has to be opened again, and a withheld GPU may wait for a reset.
fn devices_to_ask(handles: &Handles, holders: &BTreeMap<String, AllocationId>) -> Vec<GpuDevice> {
    let (statuses, topology) = (handles.gpus.borrow().clone(), handles.topology.borrow().clone());
    let is_asked = |gpu: &&GpuDevice| {
        let key = gpu_key(gpu);
        // All instances of one GPU are opened together.
        let is_held = || topology.gpu.gpus.iter().any(|of| gpu_key(of) == key && holders.contains_key(&of.id));
        statuses.is_present(key) && (statuses.is_allocatable(key) || is_held())
    };
    topology.gpu.gpus.iter().filter(is_asked).cloned().collect()
}

/// The allocation that has each GPU.
fn holders(handles: &Handles) -> BTreeMap<String, AllocationId> {
    let view = handles.view.borrow();
    let of = view.locals.iter().filter_map(|local| Some((local.share.allocation, local.assignment.as_ref()?)));
    of.flat_map(|(allocation, assignment)| assignment.gpus.iter().map(move |gpu| (gpu.clone(), allocation))).collect()
}

fn processes(
    handles: &Handles,
    devices: &[GpuDevice],
    loads: &GpuLoads,
    holders: &BTreeMap<String, AllocationId>,
) -> BTreeMap<String, [u64; 3]> {
    let Some(slice) = &handles.slice else { return BTreeMap::new() };
    let of = |id: &String, pids: &[u32]| {
        let mut counts = [0; 3];
        for pid in pids {
            // A process that has ended meanwhile is not counted.
            let Some(scope) = i32::try_from(*pid).ok().and_then(|pid| slice.scope_of_pid(pid).ok()) else { continue };
            let place = match (scope, holders.get(id)) {
                (Some(scope), Some(holder)) if scope == *holder => 0,
                (Some(_), _) => 1,
                (None, _) => 2,
            };
            counts[place] += 1;
        }
        counts
    };
    let reported = devices.iter().filter_map(|device| Some((&device.id, loads.gpus.get(&device.id)?.processes.as_ref()?)));
    reported.map(|(id, pids)| (id.clone(), of(id, pids))).collect()
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The node's GPUs, for `/metrics`.
pub struct OfNode {
    pub handles: Arc<Handles>,
    pub readings: GpuReadings,
}

impl Collect for OfNode {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let topology = self.handles.topology.borrow().clone();
        for ((key, xid), count) in &self.handles.gpus.borrow().xids {
            let mut of_key = topology.gpu.gpus.iter().filter(|gpu| gpu_key(gpu) == key && !gpu.partitioned);
            let id = of_key.next().map_or(key.as_str(), |gpu| gpu.id.as_str());
            samples.count(&family::XID_ERRORS, &[id, &xid.to_string()], *count);
        }
        if let Some(age) = self.readings.age() {
            samples.add(&family::AGE, &[], age.as_secs_f64());
        }
        let Some(looked) = self.readings.newest() else { return };
        for (id, load) in &looked.loads.gpus {
            let source = looked.loads.sources.get(id).copied().unwrap_or_default();
            let device = topology.gpu.gpus.iter().find(|gpu| gpu.id == *id);
            let text = |of: &dyn Fn(&GpuDevice) -> String| device.map(of).unwrap_or_default();
            let vendor = text(&|device| device.vendor.to_string().to_lowercase());
            let (model, address) = (text(&|device| device.model.clone()), text(&|device| device.pci_address.clone().unwrap_or_default()));
            samples.add(&family::INFO, &[id, &vendor, &model, &address, source], 1);
            write_metrics(id, load, samples);
            if let Some(counts) = looked.processes.get(id) {
                for (of, count) in ["holder", "other_allocation", "none"].into_iter().zip(counts) {
                    samples.count(&family::PROCESSES, &[id, of], *count);
                }
            }
        }
    }
}

fn write_metrics(id: &str, load: &GpuLoad, samples: &mut Samples) {
    let plain: [(&'static Family, Option<f64>); 8] = [
        (&family::UTILIZATION, load.utilization),
        (&family::MEMORY_BUSY, load.memory_busy),
        (&family::MEMORY_USED, load.memory_used_bytes.map(|bytes| bytes as f64)),
        (&family::MEMORY_TOTAL, load.memory_total_bytes.map(|bytes| bytes as f64)),
        (&family::POWER, load.power_watts),
        (&family::POWER_LIMIT, load.power_limit_watts),
        (&family::ENERGY, load.energy_joules),
        (&family::TEMPERATURE, load.temperature_celsius),
    ];
    for (metric, value) in plain {
        if let Some(value) = value {
            samples.add(metric, &[id], value);
        }
    }
    for (domain, hertz) in [("sm", load.sm_clock_hertz), ("memory", load.memory_clock_hertz)] {
        if let Some(hertz) = hertz {
            samples.add(&family::CLOCK, &[id, domain], hertz);
        }
    }
    if let Some(reasons) = &load.throttled {
        for reason in THROTTLED {
            samples.count(&family::THROTTLED, &[id, reason], u64::from(reasons.iter().any(|now| now == reason)));
        }
    }
    let pairs: [(&'static Family, &str, Option<u64>); 6] = [
        (&family::ECC_ERRORS, "corrected", load.ecc_corrected),
        (&family::ECC_ERRORS, "uncorrected", load.ecc_uncorrected),
        (&family::PCIE, "sent", load.pcie_sent_bytes),
        (&family::PCIE, "received", load.pcie_received_bytes),
        (&family::NVLINK, "sent", load.nvlink_sent_bytes),
        (&family::NVLINK, "received", load.nvlink_received_bytes),
    ];
    for (metric, label, count) in pairs {
        if let Some(count) = count {
            samples.count(metric, &[id, label], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::gpu_load::Lacking;
    use lattice_telemetry::exposition::page;

    #[test]
    fn reported_values_are_exported_and_missing_ones_are_absent() {
        let load = GpuLoad {
            utilization: Some(0.5),
            energy_joules: Some(12.5),
            throttled: Some(vec!["power_cap".to_owned()]),
            ecc_corrected: Some(3),
            sm_clock_hertz: Some(1.5e9),
            ..GpuLoad::default()
        };
        let mut samples = Samples::default();
        write_metrics("GPU-1", &load, &mut samples);
        let page = page(&samples);
        for line in [
            "lattice_gpu_utilization_ratio{gpu=\"GPU-1\"} 0.5\n",
            "lattice_gpu_energy_joules_total{gpu=\"GPU-1\"} 12.5\n",
            "lattice_gpu_throttled{gpu=\"GPU-1\",reason=\"power_cap\"} 1\n",
            "lattice_gpu_throttled{gpu=\"GPU-1\",reason=\"sync_boost\"} 0\n",
            "lattice_gpu_ecc_errors_total{gpu=\"GPU-1\",kind=\"corrected\"} 3\n",
            "lattice_gpu_clock_hertz{gpu=\"GPU-1\",domain=\"sm\"} 1500000000\n",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
        for absent in ["lattice_gpu_power_watts", "lattice_gpu_nvlink", "lattice_gpu_memory_used", "kind=\"uncorrected\""] {
            assert!(!page.contains(absent), "{absent} is in\n{page}");
        }
    }

    #[test]
    fn a_driver_that_does_not_answer_is_named_and_its_old_values_are_not_shown() {
        let (readings, now) = (GpuReadings::default(), Instant::now());
        assert!(readings.newest().is_none() && readings.age().is_none());
        let looked = |fresh_until| Looked {
            at: now,
            fresh_until,
            loads: GpuLoads {
                lacking: vec![
                    Lacking { vendor: GpuVendor::Nvidia, gpu: Some("A1".to_owned()), why: "GPU A1: NVML: lost".to_owned() },
                    Lacking { vendor: GpuVendor::Nvidia, gpu: None, why: "NVML cannot begin".to_owned() },
                ],
                ..GpuLoads::default()
            },
            holders: BTreeMap::new(),
            processes: BTreeMap::new(),
        };
        readings.state().newest = Some(Arc::new(looked(now + Duration::from_secs(60))));
        let why = |gpu: &str, vendor| readings.why_silent(gpu, Some(vendor));
        assert!(readings.newest().is_some() && why("A1", GpuVendor::Nvidia).contains("lost"));
        // Not the text about A1, but the text about all GPUs.
        assert_eq!(why("A", GpuVendor::Nvidia), "NVML cannot begin");
        assert!(why("A", GpuVendor::Amd).contains("not measured yet"));
        readings.state().newest = Some(Arc::new(looked(now)));
        assert!(readings.newest().is_none() && readings.age().is_some());
        readings.state().asked = now.checked_sub(Duration::from_secs(7));
        let text = why("A", GpuVendor::Nvidia);
        assert!(text.contains("has not answered for 7 s"), "{text}");
    }
}
