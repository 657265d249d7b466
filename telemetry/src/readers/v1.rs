//! Cgroup version 1: each hierarchy has the values of its controllers.

use super::devices::Devices;
use super::polled_file::{CachedFile, PolledFile};
use super::{Group, Reader, Text};
use crate::procfs::{TICKS_PER_SECOND, field};
use crate::usage::{Measure, Source, Usage};
use std::path::PathBuf;

pub struct V1 {
    groups: Vec<Files>,
    devices: Devices,
}

/// The files of one directory. It has only those of its hierarchy's controllers.
struct Files {
    cpu: PolledFile,
    memory: PolledFile,
    memory_peak: PolledFile,
    /// Page faults: all, and major ones.
    memory_stat: CachedFile<[Option<u64>; 2]>,
    memory_kills: PolledFile,
    io: PolledFile,
    threads: CachedFile<f64>,
}

impl V1 {
    /// `groups`: an allocation's directories.
    pub fn new(groups: &[PathBuf]) -> Self {
        let files = groups.iter().map(|group| {
            let file = |name: &str| PolledFile::new(group.join(name));
            Files {
                cpu: file("cpuacct.stat"),
                memory: file("memory.usage_in_bytes"),
                memory_peak: file("memory.max_usage_in_bytes"),
                memory_stat: CachedFile::new(group.join("memory.stat")),
                memory_kills: file("memory.oom_control"),
                io: file("blkio.throttle.io_service_bytes_recursive"),
                threads: CachedFile::new(group.join("pids.current")),
            }
        });
        Self { groups: files.collect(), devices: Devices::default() }
    }
}

impl Reader for V1 {
    fn source(&self) -> Source {
        Source::CgroupV1
    }

    fn read(&mut self, group: &Group, text: &mut Text, usage: &mut Usage) {
        for files in &mut self.groups {
            files.read(group.is_idle(), text, usage, &mut self.devices);
        }
        // Every process joins every hierarchy, so the first one lists all.
        usage.offer(Measure::Processes, group.processes().map(|pids| pids.len() as f64), Source::CgroupV1);
    }
}

impl Files {
    /// `is_idle`: no process of the work has run since the last measurement.
    fn read(&mut self, is_idle: bool, text: &mut Text, usage: &mut Usage, devices: &mut Devices) {
        let number = |text: &str| text.trim().parse::<u64>().ok().map(|number| number as f64);
        // A file is opened only if its values are needed: most directories have few of them.
        if usage.lacks(Measure::CpuUser)
            && let Some(stat) = self.cpu.read(text)
        {
            let seconds = |name| field(stat, name).map(|ticks| ticks as f64 / TICKS_PER_SECOND);
            usage.offer(Measure::CpuUser, seconds("user"), Source::CgroupV1);
            usage.offer(Measure::CpuSystem, seconds("system"), Source::CgroupV1);
        }
        for (file, measure) in [(&mut self.memory, Measure::Memory), (&mut self.memory_peak, Measure::MemoryPeak)] {
            if usage.lacks(measure) {
                usage.offer(measure, file.read(text).and_then(number), Source::CgroupV1);
            }
        }
        if usage.lacks(Measure::Threads) {
            usage.offer(Measure::Threads, self.threads.read(is_idle, text, number), Source::CgroupV1);
        }
        let of_stat = |stat: &str| Some([field(stat, "total_pgfault"), field(stat, "total_pgmajfault")]);
        if usage.lacks(Measure::FaultsMinor)
            && let Some([all, major]) = self.memory_stat.read(is_idle, text, of_stat)
        {
            usage.offer(Measure::FaultsMinor, all.map(|all| all.saturating_sub(major.unwrap_or(0)) as f64), Source::CgroupV1);
            usage.offer(Measure::FaultsMajor, major.map(|major| major as f64), Source::CgroupV1);
        }
        if usage.lacks(Measure::OomKills)
            && let Some(control) = self.memory_kills.read(text)
        {
            usage.offer(Measure::OomKills, field(control, "oom_kill").map(|kills| kills as f64), Source::CgroupV1);
        }
        if usage.lacks(Measure::IoRead)
            && let Some(served) = self.io.read(text)
        {
            usage.offer(Measure::IoRead, Some(served_bytes(served, "Read", devices)), Source::CgroupV1);
            usage.offer(Measure::IoWritten, Some(served_bytes(served, "Write", devices)), Source::CgroupV1);
        }
    }
}

/// Lines are `MAJOR:MINOR OPERATION BYTES`, and a total at the end; the sum over the devices that are not stacked on
/// others.
pub(super) fn served_bytes(text: &str, operation: &str, devices: &mut Devices) -> f64 {
    let of_operation = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let device = words.next()?;
        if words.next()? == operation && !devices.is_stacked(device) { words.next()?.parse::<u64>().ok() } else { None }
    });
    of_operation.fold(0, u64::saturating_add) as f64
}
