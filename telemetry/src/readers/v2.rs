//! Cgroup version 2. Every group has processor time and pressure; other values need the tree's controllers.

use super::devices::Devices;
use super::polled_file::{CachedFile, PolledFile};
use super::{Group, Reader, Signs, Text};
use crate::procfs::{field, pressure_totals};
use crate::usage::{Measure, Source, Usage};
use std::path::{Path, PathBuf};

pub struct V2 {
    cpu: PolledFile,
    /// Processor time in user and kernel mode, in microseconds, read together with the signs.
    used: Option<[Option<u64>; 2]>,
    memory: PolledFile,
    memory_peak: PolledFile,
    /// Page faults: all, and major ones.
    memory_stat: CachedFile<[Option<u64>; 2]>,
    memory_events: PolledFile,
    io: PolledFile,
    devices: Devices,
    threads: CachedFile<f64>,
    pressure: [Pressure; 3],
}

/// How long some, or all, of the work waited for one resource.
struct Pressure {
    file: CachedFile<[Option<u64>; 2]>,
    some: Measure,
    full: Option<Measure>,
    /// The values of the read before the last one.
    before: Option<[Option<u64>; 2]>,
    /// Pressure of the processor, which is always read: a process that waits for a processor shows no sign of it.
    is_of_cpu: bool,
}

impl Pressure {
    fn new(path: PathBuf, some: Measure, full: Option<Measure>) -> Self {
        Self { file: CachedFile::new(path), some, full, before: None, is_of_cpu: some == Measure::PressureCpuSome }
    }

    /// A process begins to wait for memory or a disk while it runs. So no process waits if none has run and the last
    /// two reads gave the same time: then the file is not read.
    fn read(&mut self, is_idle: bool, text: &mut Text) -> Option<[Option<u64>; 2]> {
        let nobody_waits = is_idle && !self.is_of_cpu && self.before.is_some() && self.before == self.file.last();
        if !nobody_waits {
            self.before = self.file.last();
        }
        self.file.read(nobody_waits, text, |psi| Some(pressure_totals(psi).into()))
    }
}

impl V2 {
    /// `work`: the directory with all of an allocation's work.
    pub fn new(work: &Path) -> Self {
        let file = |name: &str| PolledFile::new(work.join(name));
        Self {
            cpu: file("cpu.stat"),
            used: None,
            memory: file("memory.current"),
            memory_peak: file("memory.peak"),
            memory_stat: CachedFile::new(work.join("memory.stat")),
            memory_events: file("memory.events"),
            io: file("io.stat"),
            devices: Devices::default(),
            threads: CachedFile::new(work.join("pids.current")),
            pressure: [
                // "All" for processors is 0 by definition: if all processes of a group wait, none of it runs.
                Pressure::new(work.join("cpu.pressure"), Measure::PressureCpuSome, None),
                Pressure::new(work.join("memory.pressure"), Measure::PressureMemorySome, Some(Measure::PressureMemoryFull)),
                Pressure::new(work.join("io.pressure"), Measure::PressureIoSome, Some(Measure::PressureIoFull)),
            ],
        }
    }
}

impl Reader for V2 {
    fn source(&self) -> Source {
        Source::CgroupV2
    }

    fn signs(&mut self, _group: &Group, text: &mut Text, signs: &mut Signs) {
        let openings = self.cpu.openings();
        let stat = self.cpu.read(text);
        self.used = stat.map(|stat| [field(stat, "user_usec"), field(stat, "system_usec")]);
        let cpu_us = stat.and_then(|stat| field(stat, "usage_usec"));
        // A file that was just opened may belong to another group with the same name.
        signs.cpu_us = cpu_us.filter(|_| self.cpu.openings() == openings);
    }

    fn read(&mut self, group: &Group, text: &mut Text, usage: &mut Usage) {
        let is_idle = group.is_idle();
        let mut offer = |measure, value| usage.offer(measure, value, Source::CgroupV2);
        let seconds = |micros: Option<u64>| micros.map(|micros| micros as f64 / 1e6);
        if let Some([user, system]) = self.used.take() {
            offer(Measure::CpuUser, seconds(user));
            offer(Measure::CpuSystem, seconds(system));
        }
        for (file, measure) in [(&mut self.memory, Measure::Memory), (&mut self.memory_peak, Measure::MemoryPeak)] {
            offer(measure, file.read(text).and_then(number));
        }
        offer(Measure::Threads, self.threads.read(is_idle, text, number));
        let faults = self.memory_stat.read(is_idle, text, |stat| Some([field(stat, "pgfault"), field(stat, "pgmajfault")]));
        if let Some([all, major]) = faults {
            // The kernel counts major faults in both.
            offer(Measure::FaultsMinor, all.map(|all| all.saturating_sub(major.unwrap_or(0)) as f64));
            offer(Measure::FaultsMajor, major.map(|major| major as f64));
        }
        if let Some(events) = self.memory_events.read(text) {
            offer(Measure::OomKills, field(events, "oom_kill").map(|kills| kills as f64));
        }
        if let Some(stat) = self.io.read(text) {
            offer(Measure::IoRead, Some(of_whole_devices(stat, "rbytes=", &mut self.devices)));
            offer(Measure::IoWritten, Some(of_whole_devices(stat, "wbytes=", &mut self.devices)));
        }
        for pressure in &mut self.pressure {
            if let Some([some_us, full_us]) = pressure.read(is_idle, text) {
                offer(pressure.some, seconds(some_us));
                if let Some(full) = pressure.full {
                    offer(full, seconds(full_us));
                }
            }
        }
        if group.paths().v2.is_some() {
            offer(Measure::Processes, group.processes().map(|pids| pids.len() as f64));
        }
    }
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse::<u64>().ok().map(|number| number as f64)
}

/// Lines are `MAJOR:MINOR KEY=NUMBER …`; the sum over the devices that are not stacked on others.
pub(super) fn of_whole_devices(stat: &str, key: &str, devices: &mut Devices) -> f64 {
    let mut sum = 0u64;
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        if words.next().is_some_and(|device| !devices.is_stacked(device)) {
            let values = words.filter_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
            sum = values.fold(sum, u64::saturating_add);
        }
    }
    sum as f64
}
