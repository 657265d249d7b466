//! What the GPUs do that an allocation has: together among its numbers, and one by one for `lattice top --per-gpu`.

use super::moving::Moved;
use super::{Known, Measuring, Number, UsageError, WINDOWS_MAX, may_know};
use crate::context::Context;
use crate::gpu_loads::Looked;
use crate::kernel_counts::Key;
use crate::mesh::UnansweredNode;
use crate::mesh::frame::{self, FrameError};
use crate::mesh::gpu_usage::{GpuTold, GpusAnswer, GpusTold};
use crate::mesh::open::{Open, vouched};
use crate::mesh::usage::{Shown, UsageOpen};
use lattice_model::gpu_load::GpuLoad;
use lattice_model::gpu_look::gpu_key;
use lattice_model::{AllocationId, Epoch, NodeId};
use lattice_quorum::identity::Caller;
use lattice_telemetry::catalogue::{Family, allocation as family};
use lattice_telemetry::window::smoothing::Smoothing;
use lattice_telemetry::window::{History, PROD_MS};
use quinn::SendStream;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long another agent may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A GPU that is less busy does nothing: so little is what asking it costs.
const IDLE_UTILIZATION: f64 = 0.01;

/// What was read of an allocation's GPUs at once.
#[derive(Clone, Debug)]
pub struct Mine {
    pub at: Instant,
    pub gpus: Vec<Gpu>,
    /// How many it had then: of some nothing may have been read.
    pub held: usize,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub id: String,
    pub source: &'static str,
    pub load: GpuLoad,
}

/// Of a look at all GPUs those that this allocation had then.
pub fn mine(looked: &Looked, allocation: AllocationId) -> Option<Mine> {
    let ids: Vec<&String> = looked.holders.iter().filter(|(_, holder)| **holder == allocation).map(|(id, _)| id).collect();
    let held = ids.len();
    let gpus = ids.into_iter().filter_map(|id| {
        let load = looked.loads.gpus.get(id)?.clone();
        Some(Gpu { id: id.clone(), source: looked.loads.sources.get(id).copied().unwrap_or("gpu"), load })
    });
    let gpus: Vec<Gpu> = gpus.collect();
    (!gpus.is_empty()).then_some(Mine { at: looked.at, gpus, held })
}

/// What is known of an allocation's GPUs.
pub(super) struct Devices {
    newest: Option<Mine>,
    utilization: History,
    memory: History,
    power: History,
    /// The busiest at any look since launches were looked at, and whether one was silent at any of them.
    busiest: Option<f64>,
    silent: bool,
}

impl Devices {
    pub(super) fn new() -> Self {
        let history = || History::new(PROD_MS, WINDOWS_MAX);
        Self { newest: None, utilization: history(), memory: history(), power: history(), busiest: None, silent: false }
    }

    /// Takes the newest look; `None`: there is none of now, and what was told before is not told any more.
    fn take(&mut self, mine: Option<Mine>, at_ms: u64) {
        let is_new = mine.as_ref().map(|mine| mine.at) != self.newest.as_ref().map(|mine| mine.at);
        self.newest = mine;
        let told = self.all(|load| load.utilization);
        self.silent |= self.newest.as_ref().is_none_or(|mine| told.len() < mine.held);
        if !is_new {
            return;
        }
        self.busiest = told.into_iter().chain(self.busiest).reduce(f64::max);
        let values = [(self.mean_utilization()), self.memory_used(), self.power_drawn()];
        for (history, value) in [&mut self.utilization, &mut self.memory, &mut self.power].into_iter().zip(values) {
            if let Some(value) = value {
                history.push(at_ms, value);
            }
        }
    }

    /// Nothing more comes.
    pub(super) fn end(&mut self, smoothing: Smoothing) {
        self.newest = None;
        [&mut self.utilization, &mut self.memory, &mut self.power].into_iter().for_each(|history| history.close(smoothing));
    }

    fn all<T>(&self, of: impl Fn(&GpuLoad) -> Option<T>) -> Vec<T> {
        self.newest.iter().flat_map(|mine| &mine.gpus).filter_map(|gpu| of(&gpu.load)).collect()
    }

    /// Whether a GPU did something since this was asked last, of work that has some. Of those that are silent nobody knows.
    pub(super) fn moved(&mut self, has_some: bool) -> Option<Moved> {
        let (busiest, silent) = (self.busiest.take(), std::mem::take(&mut self.silent));
        let moved = match busiest {
            Some(busiest) if busiest > IDLE_UTILIZATION => Some(true),
            Some(_) if !silent => Some(false),
            Some(_) | None => None,
        };
        (has_some || busiest.is_some()).then_some(("gpu", moved))
    }

    fn mean_utilization(&self) -> Option<f64> {
        let all = self.all(|load| load.utilization);
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    fn memory_used(&self) -> Option<f64> {
        let all = self.all(|load| load.memory_used_bytes);
        (!all.is_empty()).then(|| all.iter().map(|bytes| *bytes as f64).sum())
    }

    fn power_drawn(&self) -> Option<f64> {
        let all = self.all(|load| load.power_watts);
        (!all.is_empty()).then(|| all.iter().sum())
    }

    /// Among what `lattice top` shows, and what rules are about.
    pub(super) fn numbers(&self) -> Vec<Number<'_>> {
        let source = self.newest.iter().flat_map(|mine| &mine.gpus).next().map_or("gpu", |gpu| gpu.source);
        let number = |name, unit, now: Option<f64>, history| now.map(|now| Number { name, unit, now, source, history });
        let least = self.all(|load| load.utilization).into_iter().reduce(f64::min);
        let fullest = self.all(GpuLoad::memory_ratio).into_iter().reduce(f64::max);
        let hottest = self.all(|load| load.temperature_celsius).into_iter().reduce(f64::max);
        let numbers = [
            number("gpu_utilization", "ratio", self.mean_utilization(), Some(&self.utilization)),
            number("gpu_utilization_min", "ratio", least, None),
            number("gpu_memory_used", "bytes", self.memory_used(), Some(&self.memory)),
            number("gpu_memory_ratio", "ratio", fullest, None),
            number("gpu_power_draw", "W", self.power_drawn(), Some(&self.power)),
            number("gpu_temperature_max", "°C", hottest, None),
        ];
        numbers.into_iter().flatten().collect()
    }

    /// What is kept over time, with its metrics.
    pub(super) fn windows(&self) -> [(&'static Family, &History); 3] {
        [(&family::GPU_UTILIZATION, &self.utilization), (&family::GPU_MEMORY_USED, &self.memory), (&family::GPU_POWER, &self.power)]
    }

    /// The numbers of each, by id.
    pub(super) fn each(&self) -> Vec<(String, Vec<Shown>)> {
        self.newest.iter().flat_map(|mine| &mine.gpus).map(|gpu| (gpu.id.clone(), shown(gpu))).collect()
    }

    /// Which GPUs were read.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.newest.iter().flat_map(|mine| &mine.gpus).map(|gpu| gpu.id.as_str())
    }
}

impl Known {
    /// Takes what was read of an allocation's GPUs, behind what was read of the rest of it.
    pub(super) fn take_devices(&mut self, allocation: AllocationId, mine: Option<Mine>, at_ms: u64) {
        if let Some(of) = self.running.get_mut(&allocation) {
            of.devices.take(mine, at_ms);
        }
    }
}

impl Measuring {
    /// The newest of each GPU that an allocation has here.
    fn gpus_told(&self, context: &Context, (allocation, epoch): Key) -> GpusTold {
        let assigned: Vec<String> = {
            let view = context.view.borrow();
            let of = view.locals.iter().find(|local| local.share.allocation == allocation && local.share.epoch == epoch);
            of.and_then(|local| local.assignment.as_ref()).map(|a| a.gpus.iter().cloned().collect()).unwrap_or_default()
        };
        let newest = self.known().running.get(&allocation).filter(|of| of.share.epoch == epoch).and_then(|of| of.devices.newest.clone());
        let age_ms = newest.as_ref().map_or(0, |mine| u64::try_from(mine.at.elapsed().as_millis()).unwrap_or(u64::MAX));
        let topology = context.topology();
        let gpus = assigned.into_iter().map(|id| {
            let device = topology.gpu.by_id(&id);
            let model = device.map(|gpu| gpu.model.clone()).unwrap_or_default();
            match newest.iter().flat_map(|mine| &mine.gpus).find(|gpu| gpu.id == id) {
                Some(gpu) => {
                    let throttled = gpu.load.throttled.clone().unwrap_or_default();
                    GpuTold { id, model, silent: String::new(), shown: shown(gpu), throttled }
                }
                None => {
                    // One that is lost is not asked at all: what is the matter with it says more.
                    let why = device.map(|gpu| context.gpus.borrow().why(gpu_key(gpu))).unwrap_or_default();
                    let silent = if why.is_empty() { context.gpu_readings.why_silent(&id, device.map(|gpu| gpu.vendor)) } else { why };
                    GpuTold { id, model, silent, shown: Vec::new(), throttled: Vec::new() }
                }
            }
        });
        GpusTold { age_ms, gpus: gpus.collect() }
    }
}

/// The numbers of one GPU, by the names of `lattice top`.
fn shown(gpu: &Gpu) -> Vec<Shown> {
    let load = &gpu.load;
    let bytes = |n: Option<u64>| n.map(|n| n as f64);
    let all = [
        ("gpu_utilization", "ratio", load.utilization),
        ("gpu_memory_used", "bytes", bytes(load.memory_used_bytes)),
        ("gpu_memory_ratio", "ratio", load.memory_ratio()),
        ("gpu_power_draw", "W", load.power_watts),
        ("gpu_temperature", "°C", load.temperature_celsius),
        ("gpu_sm_clock", "Hz", load.sm_clock_hertz),
        ("gpu_energy", "J", load.energy_joules),
        ("gpu_ecc_uncorrected", "count", bytes(load.ecc_uncorrected)),
    ];
    let one = |(name, unit, now): (&str, &str, Option<f64>)| {
        let source = gpu.source.to_owned();
        now.map(|now| Shown { name: name.to_owned(), unit: unit.to_owned(), source, now, mean: None, max: None })
    };
    all.into_iter().filter_map(one).collect()
}

/// What the GPUs of an allocation do on `node`, for a user who may know.
pub async fn gpus_of_node(context: &Context, node: &NodeId, address: Option<String>, open: UsageOpen) -> Result<GpusTold, UsageError> {
    let key = (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    if *node == context.me {
        if context.workers.of_epoch(key.0, key.1).is_none() {
            return Err(UsageError::NotHere { allocation: key.0 });
        }
        return context.measuring.gpus_told(context, key).checked().map_err(|_| UsageError::OddGpuReadings);
    }
    let address = address.ok_or(UnansweredNode::NoAddress)?;
    let conversation = async {
        let (mut send, mut recv) = context.mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::UsageGpus(Box::new(open))).await.map_err(UnansweredNode::Ask)?;
        frame::read::<GpusAnswer, _>(&mut recv).await.map_err(UnansweredNode::reading)
    };
    let answer = tokio::time::timeout(ANSWER, conversation).await.map_err(|_| UnansweredNode::Timeout)??;
    match answer {
        GpusAnswer::Told(told) => Ok(told.checked().map_err(|_| UnansweredNode::UnknownForm)?),
        GpusAnswer::Refused { why } => {
            let why = why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect();
            Err(UnansweredNode::Refused { why }.into())
        }
    }
}

/// Answers another agent.
pub async fn answer_gpus(context: &Context, peer: &Caller, open: &UsageOpen, send: &mut SendStream) -> Result<(), FrameError> {
    let key = (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    let worker = context.workers.of_epoch(key.0, key.1);
    let worker = worker.ok_or(UsageError::NotHere { allocation: key.0 });
    let answer = match worker.and_then(|worker| Ok(may_know(peer, &worker.share, &vouched(open.uid, &open.user))?)) {
        Ok(()) => GpusAnswer::Told(context.measuring.gpus_told(context, key)),
        Err(error) => GpusAnswer::Refused { why: error.to_string() },
    };
    frame::write(send, &answer).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::gpu_load::GpuLoads;

    fn gpu(id: &str, utilization: f64, used: u64, watts: f64) -> Gpu {
        let load = GpuLoad {
            utilization: Some(utilization),
            memory_used_bytes: Some(used),
            memory_total_bytes: Some(100),
            power_watts: Some(watts),
            ..GpuLoad::default()
        };
        Gpu { id: id.to_owned(), source: "nvml", load }
    }

    #[test]
    fn an_allocation_has_the_numbers_of_its_own_gpus_alone() {
        let (a, b) = (AllocationId(Uuid::from_u128(1)), AllocationId(Uuid::from_u128(2)));
        let all = ["A", "B", "C"];
        let mut loads = GpuLoads::default();
        for id in all {
            loads.gpus.insert(id.to_owned(), gpu(id, 0.5, 10, 100.0).load);
            loads.sources.insert(id.to_owned(), "nvml");
        }
        let holders = [("A".to_owned(), a), ("B".to_owned(), b), ("gone".to_owned(), a)].into();
        let looked = Looked::of(loads, holders);
        let ids = |of| mine(&looked, of).map(|mine| mine.gpus.into_iter().map(|gpu| gpu.id).collect::<Vec<_>>());
        assert_eq!(ids(a), Some(vec!["A".to_owned()]));
        assert_eq!(ids(b), Some(vec!["B".to_owned()]));
        assert_eq!(ids(AllocationId(Uuid::from_u128(3))), None);
    }

    #[test]
    fn gpus_are_told_together_and_a_driver_that_is_silent_is_told_no_more() {
        let mut devices = Devices::new();
        assert!(devices.numbers().is_empty());
        let at = Instant::now();
        let both = Mine { at, gpus: vec![gpu("A", 0.9, 20, 300.0), gpu("B", 0.1, 95, 100.0)], held: 2 };
        devices.take(Some(both.clone()), 1000);
        // The same look again is no second value.
        devices.take(Some(both), 2000);
        let numbers: Vec<_> = devices.numbers().iter().map(|number| (number.name, number.now)).collect();
        let expected = [
            ("gpu_utilization", 0.5),
            ("gpu_utilization_min", 0.1),
            ("gpu_memory_used", 115.0),
            ("gpu_memory_ratio", 0.95),
            ("gpu_power_draw", 400.0),
        ];
        assert_eq!(numbers, expected);
        assert_eq!(devices.utilization.since(0), Some((0.5, 0.5)));
        devices.take(None, 3000);
        assert!(devices.numbers().is_empty() && devices.ids().next().is_none());
        devices.end(Smoothing::None);
        let windows = devices.windows().into_iter().filter_map(|(metric, history)| {
            history.whole().exported(Smoothing::None, None).map(|window| (metric.name, window.count, window.mean))
        });
        let windows: Vec<_> = windows.collect();
        assert_eq!(windows[0], ("lattice_allocation_gpu_utilization_ratio", 1, 0.5));
        assert_eq!(windows.len(), 3);
    }

    #[test]
    fn one_busy_gpu_at_one_look_moves_its_work_and_of_a_silent_one_nobody_knows() {
        let (mut devices, begun) = (Devices::new(), Instant::now());
        let look = |devices: &mut Devices, second, busy: &[f64]| {
            let gpus = busy.iter().map(|busy| gpu("A", *busy, 0, 0.0)).collect();
            devices.take(Some(Mine { at: begun + Duration::from_secs(second), gpus, held: 2 }), second * 1000);
        };
        assert_eq!((devices.moved(false), devices.moved(true)), (None, Some(("gpu", None))));
        for (second, busy) in [(1, [0.0, 0.0]), (2, [0.0, 0.6]), (3, [0.0, 0.0])] {
            look(&mut devices, second, &busy);
        }
        assert_eq!(devices.moved(true), Some(("gpu", Some(true))));
        look(&mut devices, 4, &[0.0, 0.01]);
        assert_eq!(devices.moved(true), Some(("gpu", Some(false))));
        look(&mut devices, 5, &[0.0]);
        assert_eq!(devices.moved(true), Some(("gpu", None)));
        look(&mut devices, 6, &[0.5]);
        assert_eq!(devices.moved(true), Some(("gpu", Some(true))));
        devices.take(None, 7000);
        assert_eq!(devices.moved(true), Some(("gpu", None)));
    }
}
