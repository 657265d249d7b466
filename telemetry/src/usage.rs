//! The measured values of one allocation's work on a node, and their sources.

use crate::catalogue::{Family, allocation as family};
use crate::histogram::Counts;
use std::fmt;

/// One measured value of an allocation's work.
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
    BlockRead,
    BlockWritten,
    SwitchesVoluntary,
    SwitchesInvoluntary,
    NetworkReceived,
    NetworkSent,
    PacketsReceived,
    PacketsSent,
    TcpRetransmits,
    TcpConnects,
    TcpAccepts,
    AcceptQueue,
    ProcessesStarted,
    ProcessesExited,
    EnergyCpu,
    EnergyGpu,
}

impl Measure {
    /// All measures, in the order of their numbers.
    pub const ALL: [Self; 32] = [
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
        Self::BlockRead,
        Self::BlockWritten,
        Self::SwitchesVoluntary,
        Self::SwitchesInvoluntary,
        Self::NetworkReceived,
        Self::NetworkSent,
        Self::PacketsReceived,
        Self::PacketsSent,
        Self::TcpRetransmits,
        Self::TcpConnects,
        Self::TcpAccepts,
        Self::AcceptQueue,
        Self::ProcessesStarted,
        Self::ProcessesExited,
        Self::EnergyCpu,
        Self::EnergyGpu,
    ];

    /// Its metric, and that metric's labels after the allocation.
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
            Self::BlockRead => (&family::BLOCK_BYTES, &["read"]),
            Self::BlockWritten => (&family::BLOCK_BYTES, &["write"]),
            Self::SwitchesVoluntary => (&family::CONTEXT_SWITCHES, &["voluntary"]),
            Self::SwitchesInvoluntary => (&family::CONTEXT_SWITCHES, &["involuntary"]),
            Self::NetworkReceived => (&family::NETWORK_RECEIVED, &[]),
            Self::NetworkSent => (&family::NETWORK_SENT, &[]),
            Self::PacketsReceived => (&family::NETWORK_PACKETS, &["received"]),
            Self::PacketsSent => (&family::NETWORK_PACKETS, &["sent"]),
            Self::TcpRetransmits => (&family::TCP_RETRANSMITS, &[]),
            Self::TcpConnects => (&family::TCP_CONNECTS, &[]),
            Self::TcpAccepts => (&family::TCP_ACCEPTS, &[]),
            Self::AcceptQueue => (&family::ACCEPT_QUEUE, &[]),
            Self::ProcessesStarted => (&family::PROCESSES_STARTED, &[]),
            Self::ProcessesExited => (&family::PROCESSES_EXITED, &[]),
            Self::EnergyCpu => (&family::ENERGY, &["cpu"]),
            Self::EnergyGpu => (&family::ENERGY, &["gpu"]),
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
            Self::BlockRead => "block_read_bytes",
            Self::BlockWritten => "block_write_bytes",
            Self::SwitchesVoluntary => "switches_voluntary",
            Self::SwitchesInvoluntary => "switches_involuntary",
            Self::NetworkReceived => "network_received",
            Self::NetworkSent => "network_sent",
            Self::PacketsReceived => "packets_received",
            Self::PacketsSent => "packets_sent",
            Self::TcpRetransmits => "tcp_retransmits",
            Self::TcpConnects => "tcp_connects",
            Self::TcpAccepts => "tcp_accepts",
            Self::AcceptQueue => "accept_queue",
            Self::ProcessesStarted => "processes_started",
            Self::ProcessesExited => "processes_exited",
            Self::EnergyCpu => "energy_cpu",
            Self::EnergyGpu => "energy_gpu",
        }
    }
}

/// Distributions of durations in the allocation's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distribution {
    /// Time slices on a processor, each until another task ran.
    OnCpu,
    /// Waiting for a processor, before each time slice.
    RunQueue,
    /// Requests to block devices, from submission to the device's completion.
    BlockRead,
    BlockWrite,
}

impl Distribution {
    /// All distributions, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::OnCpu, Self::RunQueue, Self::BlockRead, Self::BlockWrite];

    /// Its metric, and that metric's labels after the allocation.
    pub fn family(self) -> (&'static Family, &'static [&'static str]) {
        match self {
            Self::OnCpu => (&family::ON_CPU, &[]),
            Self::RunQueue => (&family::RUN_QUEUE, &[]),
            Self::BlockRead => (&family::BLOCK_IO, &["read"]),
            Self::BlockWrite => (&family::BLOCK_IO, &["write"]),
        }
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnCpu => "on_cpu",
            Self::RunQueue => "run_queue",
            Self::BlockRead => "block_read",
            Self::BlockWrite => "block_write",
        }
    }
}

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    CgroupV2,
    CgroupV1,
    /// Our programs in the kernel, which count by cgroup.
    Ebpf,
    /// The allocation's processes one by one, from the cgroup's list.
    Procfs,
    /// The kernel's list of the node's sockets, by cgroup (sock_diag(7)).
    SockDiag,
    /// The processors' energy meters, counted entirely for the work.
    Rapl,
    /// A share of the processors' energy by processor time: an estimate.
    RaplShare,
    /// The drivers of the GPUs that the work has.
    Gpu,
}

impl Source {
    /// Its name in labels and in `lattice top`.
    pub fn name(self) -> &'static str {
        match self {
            Self::CgroupV2 => "cgroup2",
            Self::CgroupV1 => "cgroup1",
            Self::Ebpf => "ebpf",
            Self::Procfs => "procfs",
            Self::SockDiag => "sock_diag",
            Self::Rapl => "rapl",
            Self::RaplShare => "rapl_share",
            Self::Gpu => "gpu",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Label for devices that are not listed separately.
pub const OTHER_DEVICES: &str = "other";

/// The requests of the allocation's work itself to one block device; each pair is reading, then writing. Only from
/// eBPF.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceIo {
    /// The kernel's name.
    pub name: String,
    pub bytes: [u64; 2],
    pub requests: [u64; 2],
    /// Total duration of the requests, each from submission to completion.
    pub seconds: [f64; 2],
}

/// The values of one measurement. Counters start with the work or, from procfs, with the agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    numbers: [Option<(f64, Source)>; Measure::ALL.len()],
    distributions: [Option<(Counts, Source)>; Distribution::ALL.len()],
    /// A few devices, each once.
    pub devices: Vec<DeviceIo>,
}

impl Usage {
    /// A value and its source.
    pub fn get(&self, measure: Measure) -> Option<(f64, Source)> {
        self.numbers[measure as usize]
    }

    /// Whether no reader has this number yet.
    pub fn lacks(&self, measure: Measure) -> bool {
        self.numbers[measure as usize].is_none()
    }

    /// Sets a value, unless a better source has it: readers run in order of preference.
    pub fn offer(&mut self, measure: Measure, value: Option<f64>, source: Source) {
        let place = &mut self.numbers[measure as usize];
        if let (None, Some(value)) = (&place, value) {
            *place = Some((value, source));
        }
    }

    /// The distribution and its source.
    pub fn distribution(&self, of: Distribution) -> Option<(&Counts, Source)> {
        self.distributions[of as usize].as_ref().map(|(counts, source)| (counts, *source))
    }

    /// The same as [`Usage::offer`].
    pub fn offer_distribution(&mut self, of: Distribution, counts: Counts, source: Source) {
        self.distributions[of as usize].get_or_insert((counts, source));
    }

    /// All distributions of this measurement.
    pub fn distributions(&self) -> impl Iterator<Item = (Distribution, &Counts, Source)> {
        Distribution::ALL
            .into_iter()
            .filter_map(|of| self.distributions[of as usize].as_ref().map(|(counts, source)| (of, counts, *source)))
    }

    /// The names of all values, with their sources.
    pub fn sources(&self) -> impl Iterator<Item = (&'static str, Source)> {
        let numbers = self.all().map(|(measure, _, source)| (measure.name(), source));
        numbers.chain(self.distributions().map(|(of, _, source)| (of.name(), source)))
    }

    /// Replaces the values of this source by those of `newer`.
    pub fn take_newer(&mut self, newer: &Self, source: Source) {
        if source == Source::Ebpf {
            self.devices.clone_from(&newer.devices);
        }
        for (place, newer) in self.numbers.iter_mut().zip(&newer.numbers) {
            if [*place, *newer].iter().all(|number| number.is_some_and(|(_, from)| from == source)) {
                *place = *newer;
            }
        }
        for (place, newer) in self.distributions.iter_mut().zip(&newer.distributions) {
            if [place.as_ref(), newer.as_ref()].iter().all(|counts| counts.is_some_and(|(_, from)| *from == source)) {
                place.clone_from(newer);
            }
        }
    }

    /// Processor time in user mode and kernel.
    pub fn cpu_seconds(&self) -> Option<(f64, Source)> {
        let ((user, source), (system, _)) = (self.get(Measure::CpuUser)?, self.get(Measure::CpuSystem)?);
        Some((user + system, source))
    }

    /// All values.
    pub fn all(&self) -> impl Iterator<Item = (Measure, f64, Source)> {
        Measure::ALL.into_iter().filter_map(|measure| self.get(measure).map(|(value, source)| (measure, value, source)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_source_of_a_value_counts_and_every_measure_has_its_metric() {
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
        for (number, of) in Distribution::ALL.into_iter().enumerate() {
            assert_eq!(of as usize, number);
            let (family, labels) = of.family();
            assert_eq!((family.labels.len(), family.kind), (labels.len() + 1, crate::catalogue::Kind::Histogram), "{}", family.name);
        }
        let counts = |sum| Counts { bounds: &[], buckets: vec![1], sum };
        usage.offer_distribution(Distribution::OnCpu, counts(1.0), Source::Ebpf);
        usage.offer_distribution(Distribution::OnCpu, counts(2.0), Source::Procfs);
        assert_eq!(usage.distribution(Distribution::OnCpu), Some((&counts(1.0), Source::Ebpf)));
        let mut newer = Usage::default();
        newer.offer(Measure::Memory, Some(7.0), Source::Ebpf);
        newer.offer_distribution(Distribution::OnCpu, counts(3.0), Source::Ebpf);
        usage.take_newer(&newer, Source::Ebpf);
        assert_eq!(usage.distribution(Distribution::OnCpu), Some((&counts(3.0), Source::Ebpf)));
        assert_eq!(usage.get(Measure::Memory), Some((5.0, Source::CgroupV1)), "of another source");
        assert_eq!(usage.sources().collect::<Vec<_>>(), [("memory", Source::CgroupV1), ("on_cpu", Source::Ebpf)]);
    }
}
