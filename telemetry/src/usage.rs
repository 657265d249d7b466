//! What is measured of one allocation's work on a node, and where each number comes from.

use crate::catalogue::{Family, allocation as family};
use std::fmt;

/// One number of an allocation's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    CpuUser,
    CpuSystem,
    Memory,
    MemoryPeak,
    FaultsMinor,
    FaultsMajor,
    IoRead,
    IoWritten,
    Processes,
    Threads,
    PressureCpuSome,
    PressureMemorySome,
    PressureMemoryFull,
    PressureIoSome,
    PressureIoFull,
    OomKills,
}

impl Measure {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 16] = [
        Self::CpuUser,
        Self::CpuSystem,
        Self::Memory,
        Self::MemoryPeak,
        Self::FaultsMinor,
        Self::FaultsMajor,
        Self::IoRead,
        Self::IoWritten,
        Self::Processes,
        Self::Threads,
        Self::PressureCpuSome,
        Self::PressureMemorySome,
        Self::PressureMemoryFull,
        Self::PressureIoSome,
        Self::PressureIoFull,
        Self::OomKills,
    ];

    /// The metric that it is, and that metric's labels behind the allocation.
    pub fn family(self) -> (&'static Family, &'static [&'static str]) {
        match self {
            Self::CpuUser => (&family::CPU_SECONDS, &["user"]),
            Self::CpuSystem => (&family::CPU_SECONDS, &["system"]),
            Self::Memory => (&family::MEMORY, &[]),
            Self::MemoryPeak => (&family::MEMORY_PEAK, &[]),
            Self::FaultsMinor => (&family::PAGE_FAULTS, &["minor"]),
            Self::FaultsMajor => (&family::PAGE_FAULTS, &["major"]),
            Self::IoRead => (&family::IO_READ, &[]),
            Self::IoWritten => (&family::IO_WRITTEN, &[]),
            Self::Processes => (&family::PROCESSES, &[]),
            Self::Threads => (&family::THREADS, &[]),
            Self::PressureCpuSome => (&family::PRESSURE, &["cpu", "some"]),
            Self::PressureMemorySome => (&family::PRESSURE, &["memory", "some"]),
            Self::PressureMemoryFull => (&family::PRESSURE, &["memory", "full"]),
            Self::PressureIoSome => (&family::PRESSURE, &["io", "some"]),
            Self::PressureIoFull => (&family::PRESSURE, &["io", "full"]),
            Self::OomKills => (&family::OOM_KILLS, &[]),
        }
    }

    /// Its name for people and for `lattice top`.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuUser => "cpu_user",
            Self::CpuSystem => "cpu_system",
            Self::Memory => "memory",
            Self::MemoryPeak => "memory_peak",
            Self::FaultsMinor => "faults_minor",
            Self::FaultsMajor => "faults_major",
            Self::IoRead => "io_read",
            Self::IoWritten => "io_written",
            Self::Processes => "processes",
            Self::Threads => "threads",
            Self::PressureCpuSome => "pressure_cpu_some",
            Self::PressureMemorySome => "pressure_memory_some",
            Self::PressureMemoryFull => "pressure_memory_full",
            Self::PressureIoSome => "pressure_io_some",
            Self::PressureIoFull => "pressure_io_full",
            Self::OomKills => "oom_kills",
        }
    }
}

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    CgroupV2,
    CgroupV1,
    /// The allocation's processes one by one, as the cgroup lists them.
    Procfs,
}

impl Source {
    /// As labels and `lattice top` say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::CgroupV2 => "cgroup2",
            Self::CgroupV1 => "cgroup1",
            Self::Procfs => "procfs",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The numbers of one look. Counters are since the work began, or, by procfs, since the agent did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage([Option<(f64, Source)>; Measure::ALL.len()]);

impl Usage {
    /// What was measured.
    pub fn get(&self, measure: Measure) -> Option<(f64, Source)> {
        self.0[measure as usize]
    }

    /// Whether nobody has said this yet.
    pub fn lacks(&self, measure: Measure) -> bool {
        self.0[measure as usize].is_none()
    }

    /// Says it, unless a better source has: readers come in the order of preference.
    pub fn offer(&mut self, measure: Measure, value: Option<f64>, source: Source) {
        let place = &mut self.0[measure as usize];
        if let (None, Some(value)) = (&place, value) {
            *place = Some((value, source));
        }
    }

    /// Processor time in both modes.
    pub fn cpu_seconds(&self) -> Option<(f64, Source)> {
        let ((user, source), (system, _)) = (self.get(Measure::CpuUser)?, self.get(Measure::CpuSystem)?);
        Some((user + system, source))
    }

    /// All that was measured.
    pub fn all(&self) -> impl Iterator<Item = (Measure, f64, Source)> {
        Measure::ALL.into_iter().filter_map(|measure| self.get(measure).map(|(value, source)| (measure, value, source)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_to_say_a_number_is_believed_and_every_measure_has_its_metric() {
        let mut usage = Usage::default();
        usage.offer(Measure::Memory, None, Source::CgroupV2);
        usage.offer(Measure::Memory, Some(5.0), Source::CgroupV1);
        usage.offer(Measure::Memory, Some(9.0), Source::Procfs);
        assert_eq!(usage.all().collect::<Vec<_>>(), [(Measure::Memory, 5.0, Source::CgroupV1)]);
        for (number, measure) in Measure::ALL.into_iter().enumerate() {
            assert_eq!(measure as usize, number);
            let (family, labels) = measure.family();
            assert_eq!(family.labels.len(), labels.len() + 1, "{}", family.name);
        }
    }
}
