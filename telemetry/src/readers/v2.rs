//! Cgroup version 2. Processor time and pressure are there for every group; the rest where the tree has the controller.

use super::devices::Devices;
use super::kept::Kept;
use super::{Group, Reader, Text};
use crate::procfs::{field, pressure_totals};
use crate::usage::{Measure, Source, Usage};
use std::path::Path;

pub struct V2 {
    cpu: Kept,
    memory: Kept,
    memory_peak: Kept,
    memory_stat: Kept,
    memory_events: Kept,
    io: Kept,
    devices: Devices,
    threads: Kept,
    pressure: [(Kept, Measure, Option<Measure>); 3],
}

impl V2 {
    /// `work`: the directory of all of an allocation's work.
    pub fn new(work: &Path) -> Self {
        let file = |name: &str| Kept::new(work.join(name));
        Self {
            cpu: file("cpu.stat"),
            memory: file("memory.current"),
            memory_peak: file("memory.peak"),
            memory_stat: file("memory.stat"),
            memory_events: file("memory.events"),
            io: file("io.stat"),
            devices: Devices::default(),
            threads: file("pids.current"),
            pressure: [
                // That all of a group waits for processors is 0 by definition where nothing else of it could run.
                (file("cpu.pressure"), Measure::PressureCpuSome, None),
                (file("memory.pressure"), Measure::PressureMemorySome, Some(Measure::PressureMemoryFull)),
                (file("io.pressure"), Measure::PressureIoSome, Some(Measure::PressureIoFull)),
            ],
        }
    }
}

impl Reader for V2 {
    fn source(&self) -> Source {
        Source::CgroupV2
    }

    fn read(&mut self, group: &Group, text: &mut Text, usage: &mut Usage) {
        let mut offer = |measure, value| usage.offer(measure, value, Source::CgroupV2);
        let seconds = |micros: Option<u64>| micros.map(|micros| micros as f64 / 1e6);
        if let Some(stat) = self.cpu.read(text) {
            offer(Measure::CpuUser, seconds(field(stat, "user_usec")));
            offer(Measure::CpuSystem, seconds(field(stat, "system_usec")));
        }
        for (kept, measure) in
            [(&mut self.memory, Measure::Memory), (&mut self.memory_peak, Measure::MemoryPeak), (&mut self.threads, Measure::Threads)]
        {
            offer(measure, kept.read(text).and_then(number));
        }
        if let Some(stat) = self.memory_stat.read(text) {
            let (all, major) = (field(stat, "pgfault"), field(stat, "pgmajfault"));
            // The kernel counts major ones in both.
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
        for (kept, some, full) in &mut self.pressure {
            if let Some(psi) = kept.read(text) {
                let (some_us, full_us) = pressure_totals(psi);
                offer(*some, seconds(some_us));
                if let Some(full) = full {
                    offer(*full, seconds(full_us));
                }
            }
        }
        if group.places().v2.is_some() {
            offer(Measure::Processes, group.processes().map(|pids| pids.len() as f64));
        }
    }
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse::<u64>().ok().map(|number| number as f64)
}

/// Lines are `MAJOR:MINOR KEY=NUMBER …`; the sum over the devices that lie on no other.
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
