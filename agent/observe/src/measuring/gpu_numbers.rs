//! The numbers of an allocation's GPUs together, and their histories.

use super::histories::WINDOWS_MAX;
use super::moving::Moved;
use super::numbers::Number;
use lattice_machine::gpu_loads::Looked;
use lattice_mesh::usage::Shown;
use lattice_model::AllocationId;
use lattice_model::gpu_load::GpuLoad;
use lattice_telemetry::catalogue::{Family, allocation as family};
use lattice_telemetry::window::smoothing::Smoothing;
use lattice_telemetry::window::{History, PROD_MS};
use std::time::Instant;

/// Utilization below which a GPU counts as idle: the query itself causes this much.
const IDLE_UTILIZATION: f64 = 0.01;

/// One reading of an allocation's GPUs.
#[derive(Clone, Debug)]
pub struct Mine {
    pub at: Instant,
    pub gpus: Vec<Gpu>,
    /// How many GPUs it had then; some of them may have no reading.
    pub held: usize,
}

/// The reading of one GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub id: String,
    pub source: &'static str,
    pub load: GpuLoad,
}

/// From a reading of all GPUs, those that this allocation had then.
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
    /// The highest utilization since the last check of launches, and whether a GPU was silent at
    /// any time since.
    busiest: Option<f64>,
    silent: bool,
}

impl Devices {
    pub(super) fn new() -> Self {
        let history = || History::new(PROD_MS, WINDOWS_MAX);
        Self { newest: None, utilization: history(), memory: history(), power: history(), busiest: None, silent: false }
    }

    /// Takes the newest measurement; `None`: there is none now, and the previous one is no longer
    /// exported.
    pub(super) fn take(&mut self, mine: Option<Mine>, at_ms: u64) {
        let is_new = mine.as_ref().map(|mine| mine.at) != self.newest.as_ref().map(|mine| mine.at);
        self.newest = mine;
        let utilizations = self.all(|load| load.utilization);
        self.silent |= self.newest.as_ref().is_none_or(|mine| utilizations.len() < mine.held);
        if !is_new {
            return;
        }
        self.busiest = utilizations.into_iter().chain(self.busiest).reduce(f64::max);
        let values = [(self.mean_utilization()), self.memory_used(), self.power_drawn()];
        for (history, value) in [&mut self.utilization, &mut self.memory, &mut self.power].into_iter().zip(values) {
            if let Some(value) = value {
                history.push(at_ms, value);
            }
        }
    }

    /// Closes the histories: nothing more follows.
    pub(super) fn end(&mut self, smoothing: Smoothing) {
        self.newest = None;
        [&mut self.utilization, &mut self.memory, &mut self.power].into_iter().for_each(|history| history.close(smoothing));
    }

    /// The newest reading.
    pub(super) fn newest(&self) -> Option<&Mine> {
        self.newest.as_ref()
    }

    fn all<T>(&self, of: impl Fn(&GpuLoad) -> Option<T>) -> Vec<T> {
        self.newest.iter().flat_map(|mine| &mine.gpus).filter_map(|gpu| of(&gpu.load)).collect()
    }

    /// Whether a GPU did something since the last call, for work that has GPUs. Unknown if a GPU
    /// was silent.
    pub(super) fn moved(&mut self, has_some: bool) -> Option<Moved> {
        let (busiest, silent) = (self.busiest.take(), std::mem::take(&mut self.silent));
        let moved = match busiest {
            Some(busiest) if busiest > IDLE_UTILIZATION => Some(true),
            Some(_) if !silent => Some(false),
            Some(_) | None => None,
        };
        (has_some || busiest.is_some()).then_some(("gpu", moved))
    }

    /// `None` also if one of its GPUs is silent: services scale by this, and the mean of the others
    /// may be far off.
    fn mean_utilization(&self) -> Option<f64> {
        let (all, held) = (self.all(|load| load.utilization), self.newest.as_ref()?.held);
        (held > 0 && all.len() == held).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    fn memory_used(&self) -> Option<f64> {
        let all = self.all(|load| load.memory_used_bytes);
        (!all.is_empty()).then(|| all.iter().map(|bytes| *bytes as f64).sum())
    }

    fn power_drawn(&self) -> Option<f64> {
        let all = self.all(|load| load.power_watts);
        (!all.is_empty()).then(|| all.iter().sum())
    }

    /// The numbers for `lattice top` and for rules.
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

    /// The histories and their metrics.
    pub(super) fn windows(&self) -> [(&'static Family, &History); 3] {
        [(&family::GPU_UTILIZATION, &self.utilization), (&family::GPU_MEMORY_USED, &self.memory), (&family::GPU_POWER, &self.power)]
    }

    /// The numbers of each GPU, by id.
    pub(super) fn each(&self) -> Vec<(String, Vec<Shown>)> {
        self.newest.iter().flat_map(|mine| &mine.gpus).map(|gpu| (gpu.id.clone(), shown(gpu))).collect()
    }

    /// The GPUs in the newest reading.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.newest.iter().flat_map(|mine| &mine.gpus).map(|gpu| gpu.id.as_str())
    }
}

/// The numbers of one GPU, by the names of `lattice top`.
pub(super) fn shown(gpu: &Gpu) -> Vec<Shown> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::gpu_load::GpuLoads;
    use std::collections::BTreeMap;
    use std::time::Duration;
    use uuid::Uuid;

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
        let looked = Looked::new(Instant::now(), Instant::now(), loads, holders, BTreeMap::new());
        let ids = |of| mine(&looked, of).map(|mine| mine.gpus.into_iter().map(|gpu| gpu.id).collect::<Vec<_>>());
        assert_eq!(ids(a), Some(vec!["A".to_owned()]));
        assert_eq!(ids(b), Some(vec!["B".to_owned()]));
        assert_eq!(ids(AllocationId(Uuid::from_u128(3))), None);
    }

    #[test]
    fn gpus_are_reported_together_and_a_silent_driver_is_left_out() {
        let mut devices = Devices::new();
        assert!(devices.numbers().is_empty());
        let at = Instant::now();
        let both = Mine { at, gpus: vec![gpu("A", 0.9, 20, 300.0), gpu("B", 0.1, 95, 100.0)], held: 2 };
        devices.take(Some(both.clone()), 1000);
        // The same reading again is no second value.
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
        let partly = Mine { at: at + Duration::from_secs(1), gpus: vec![gpu("A", 0.9, 20, 300.0)], held: 2 };
        devices.take(Some(partly), 2500);
        let names: Vec<_> = devices.numbers().iter().map(|number| number.name).collect();
        assert_eq!(names, ["gpu_utilization_min", "gpu_memory_used", "gpu_memory_ratio", "gpu_power_draw"], "one of two does not answer");
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
    fn one_busy_gpu_at_one_look_moves_its_work_and_a_silent_gpu_makes_that_unknown() {
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
