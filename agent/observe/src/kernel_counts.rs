//! What Lattice's programs in the kernel count for each allocation.
//!
//! ```text
//!   new scope  ──▶ track ──▶ counted from 0 ── each look ──▶ Reader ──▶ Usage (plus the counts of earlier runs)
//!                                                └──▶ kernel-counts, a file in the state folder, written first
//! ```
//!
//! The programs and their sums belong to this process and end with it, however it ends: nothing is
//! left in the kernel. The counts of each look are written to a file before they are shown, so that
//! no counter of an allocation decreases when the agent restarts. What happens while no agent runs
//! is not counted. The file is not synced, because no work survives a crash of the machine either.

mod disks;
mod overhead;

use disks::Names;
use lattice_ebpf::layout::{
    BLOCK_READ, BLOCK_READ_BYTES, BLOCK_WRITE, BLOCK_WRITTEN_BYTES, DEVICE, DEVICE_WORDS, DEVICES, DEVICES_OTHER, HISTOGRAM_WORDS, ON_CPU,
    OOM_KILLS, PROCESSES_EXITED, PROCESSES_STARTED, RANGE_SHIFT, RANGES, RECEIVED_BYTES, RECEIVED_PACKETS, RUN_QUEUE, SENT_BYTES,
    SENT_PACKETS, SWITCHES_INVOLUNTARY, SWITCHES_VOLUNTARY, TCP_ACCEPTS, TCP_CONNECTS, TCP_RETRANSMITS, WORDS,
};
use lattice_ebpf::{Auditing, Clocked, Counts, LoadError, Probe, Probes, processors};
use lattice_model::{AllocationId, Epoch, with_causes};
use lattice_runtime::cgroup::Slice;
use lattice_telemetry::catalogue::{allocation as family, node as of_node};
use lattice_telemetry::histogram;
use lattice_telemetry::readers::{Group, Reader, Signs, Text};
use lattice_telemetry::sample::Samples;
use lattice_telemetry::usage::{Distribution, Measure, Source, Usage};
use overhead::Overhead;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use thiserror::Error;
use uuid::Uuid;

/// The file with the counts.
const FILE: &str = "kernel-counts";
/// The file's first bytes; the last of them is the version of the layout of the words.
const MAGIC: [u8; 8] = *b"lattkc\0\x04";
const RECORD_BYTES: usize = 16 + 8 + 8 + WORDS * 8 + 4;
/// Largest number of records that are read: more than a node runs at once.
const RECORDS_MAX: usize = 4096;

/// Upper bounds of the kernel's ranges in seconds, and of the exported ranges. Only every second
/// bound is exported: otherwise the four histograms of each allocation would be a hundred series.
static FINE_SECONDS: [f64; RANGES - 1] = bounds(1);
static EXPORTED_SECONDS: [f64; RANGES / 2] = bounds(2);

const fn bounds<const N: usize>(step: usize) -> [f64; N] {
    let mut bounds = [0.0; N];
    let mut n = 0;
    while n < N {
        bounds[n] = (1u64 << (RANGE_SHIFT as usize + n * step)) as f64 / 1e9;
        n += 1;
    }
    bounds
}

/// The program that each counter needs, the counter's index, and its measure.
const COUNTERS: [(&str, usize, Measure); 14] = [
    ("sched_switch", SWITCHES_VOLUNTARY, Measure::SwitchesVoluntary),
    ("sched_switch", SWITCHES_INVOLUNTARY, Measure::SwitchesInvoluntary),
    ("block_rq_complete", BLOCK_READ_BYTES, Measure::BlockRead),
    ("block_rq_complete", BLOCK_WRITTEN_BYTES, Measure::BlockWritten),
    ("packets_received", RECEIVED_BYTES, Measure::NetworkReceived),
    ("packets_received", RECEIVED_PACKETS, Measure::PacketsReceived),
    ("packets_sent", SENT_BYTES, Measure::NetworkSent),
    ("packets_sent", SENT_PACKETS, Measure::PacketsSent),
    ("tcp_retransmit_skb", TCP_RETRANSMITS, Measure::TcpRetransmits),
    ("inet_sock_set_state", TCP_CONNECTS, Measure::TcpConnects),
    ("inet_sock_set_state", TCP_ACCEPTS, Measure::TcpAccepts),
    ("mark_victim", OOM_KILLS, Measure::OomKills),
    ("sched_process_fork", PROCESSES_STARTED, Measure::ProcessesStarted),
    ("sched_process_exit", PROCESSES_EXITED, Measure::ProcessesExited),
];
const HISTOGRAMS: [(&str, usize, Distribution); 4] = [
    ("sched_switch", ON_CPU, Distribution::OnCpu),
    ("run_queue", RUN_QUEUE, Distribution::RunQueue),
    ("block_rq_complete", BLOCK_READ, Distribution::BlockRead),
    ("block_rq_complete", BLOCK_WRITE, Distribution::BlockWrite),
];

/// An allocation's work on this node under one claim.
pub type Key = (AllocationId, Epoch);

/// Why nothing is counted in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotCounting {
    #[error("the programs are being loaded")]
    Loading,
    #[error("{why}")]
    Off { why: String },
}

/// Why the kernel cannot report which files work opens and where it connects to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoAudits {
    #[error(transparent)]
    NotCounting(#[from] NotCounting),
    #[error("there is no program for it")]
    NoProgram,
    #[error("{program}: {why}")]
    Unfit { program: &'static str, why: String },
}

/// Why the programs are not loaded.
#[derive(Debug, Error)]
enum ProbesError {
    #[error("allocations have no cgroups here")]
    NoCgroups,
    #[error("{}: {source}", .path.display())]
    MakeSlice { path: PathBuf, source: io::Error },
    #[error("{}", first_line(.0))]
    Load(#[source] LoadError),
}

/// The error without the many lines of the kernel's verifier.
fn first_line(error: &LoadError) -> String {
    with_causes(error).lines().next().unwrap_or_default().to_owned()
}

/// A handle on the counts; all clones share them.
#[derive(Clone, Default)]
pub struct KernelCounts(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    #[default]
    NotYet,
    Off(String),
    Counting(Box<Counting>),
}

struct Counting {
    probes: Probes,
    /// `None`: nothing is stored, because there is no restart (doctor).
    file: Option<PathBuf>,
    kept: BTreeMap<Key, AllocationCounts>,
    /// The content of the file.
    written: Vec<u8>,
    /// Whether the counts may differ from the file.
    differs: bool,
    /// Whether the problem was logged already.
    cannot_write: bool,
    cannot_track: bool,
    names: Names,
    overhead: Overhead<Clocked>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct AllocationCounts {
    /// The inode of the cgroup directory that contains all work of the allocation.
    cgroup: u64,
    /// Counts of earlier runs of the agent.
    before: Counts,
    /// Counts of all runs of the agent, at the last look.
    total: Counts,
    /// Whether this run of the agent counts it.
    is_tracked: bool,
}

impl KernelCounts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Loads the programs, which takes a tenth of a second. `state_dir`: where counts are stored.
    /// [`KernelCounts::probes`] reports which programs are missing.
    pub fn begin(&self, slice: Option<&Slice>, state_dir: Option<&Path>) {
        limit_free_memory();
        let state = match load(slice) {
            Ok(probes) => {
                for probe in probes.probes() {
                    if let Some(why) = &probe.why_not {
                        tracing::warn!(probe = probe.name, "a program in the kernel does not count: {why}");
                    }
                }
                let file = state_dir.map(|dir| dir.join(FILE));
                let kept = file.as_deref().zip(slice).map(|(file, slice)| kept_of(file, slice)).unwrap_or_default();
                State::Counting(Box::new(Counting {
                    probes,
                    file,
                    kept,
                    written: Vec::new(),
                    differs: true,
                    cannot_write: false,
                    cannot_track: false,
                    names: Names::default(),
                    overhead: Overhead::default(),
                }))
            }
            Err(why) => {
                tracing::warn!("nothing of allocations is counted in the kernel: {why}");
                State::Off(why.to_string())
            }
        };
        *self.state() = state;
        return_free_memory();
    }

    /// Records why nothing is counted.
    pub fn off(&self, why: &str) {
        *self.state() = State::Off(why.to_owned());
    }

    /// Counts an allocation's work from now on. `work`: the cgroup directory that contains all of
    /// it.
    pub fn track(&self, key: Key, work: &Path) {
        let Ok(cgroup) = fs::metadata(work).map(|work| work.ino()) else { return };
        if let State::Counting(counting) = &mut *self.state() {
            counting.track(key, cgroup);
        }
    }

    /// A reader of this allocation's counts.
    pub fn reader(&self, key: Key) -> Box<dyn Reader> {
        Box::new(KernelReader { counts: self.clone(), key, counted: None })
    }

    /// The allocations that are counted now.
    pub fn tracked(&self) -> Vec<Key> {
        let State::Counting(counting) = &*self.state() else { return Vec::new() };
        counting.kept.iter().filter(|(_, kept)| kept.is_tracked).map(|(key, _)| *key).collect()
    }

    /// Stops counting these allocations; returns the last numbers of each.
    pub fn end(&self, ended: Vec<Key>) -> Vec<(Key, Usage)> {
        let State::Counting(counting) = &mut *self.state() else { return Vec::new() };
        let mut out = Vec::new();
        for key in ended {
            let mut usage = Usage::default();
            if counting.count(key).is_some() {
                counting.add_counts(key, &mut usage);
            }
            if let Some(kept) = counting.kept.remove(&key) {
                counting.differs = true;
                counting.probes.forget(kept.cgroup);
                out.push((key, usage));
            }
        }
        out
    }

    /// Stores the counts of a look; call it before they are shown. The file is written without the
    /// lock, so that a new scope does not wait for the disk.
    pub fn store(&self) {
        let changed = match &mut *self.state() {
            State::Counting(counting) => counting.changed(),
            State::NotYet | State::Off(_) => None,
        };
        let Some((file, bytes)) = changed else { return };
        let result = write(&file, &bytes);
        let State::Counting(counting) = &mut *self.state() else { return };
        match result {
            Ok(()) => (counting.written, counting.cannot_write) = (bytes, false),
            Err(error) => {
                if !counting.cannot_write {
                    tracing::warn!("{}: {error}: counters of allocations start from 0 again when the agent is restarted", file.display());
                }
                (counting.cannot_write, counting.differs) = (true, true);
            }
        }
    }

    /// Whether the kernel can report which files work opens and where it connects to.
    pub fn audits(&self) -> Result<(), NoAudits> {
        match &*self.state() {
            State::NotYet => Err(NotCounting::Loading.into()),
            State::Off(why) => Err(NotCounting::Off { why: why.clone() }.into()),
            State::Counting(counting) => {
                let part = counting.probes.audit_parts().first().ok_or(NoAudits::NoProgram)?;
                part.why_not.clone().map_or(Ok(()), |why| Err(NoAudits::Unfit { program: part.name, why }))
            }
        }
    }

    /// Which parts of audits are missing, and why. The first part is not among them: without it
    /// there are no audits ([`Self::audits`]).
    pub fn audit_lacks(&self) -> Vec<String> {
        let State::Counting(counting) = &*self.state() else { return Vec::new() };
        let parts = counting.probes.audit_parts().iter().skip(1);
        parts.filter_map(|part| part.why_not.as_ref().map(|why| format!("{}: {why}", part.name))).collect()
    }

    /// Calls `of` with the interface for audits; an error says why there is none.
    pub fn audit<T>(&self, of: impl FnOnce(&mut Auditing<'_>) -> T) -> Result<T, NotCounting> {
        match &mut *self.state() {
            State::NotYet => Err(NotCounting::Loading),
            State::Off(why) => Err(NotCounting::Off { why: why.clone() }),
            State::Counting(counting) => Ok(of(&mut counting.probes.audit())),
        }
    }

    /// Each program and whether it counts; an error says why none does.
    pub fn probes(&self) -> Result<Vec<Probe>, NotCounting> {
        match &*self.state() {
            State::NotYet => Err(NotCounting::Loading),
            State::Off(why) => Err(NotCounting::Off { why: why.clone() }),
            State::Counting(counting) => Ok(counting.probes.probes().to_vec()),
        }
    }

    /// Turns the accounting of the programs' cost on or off; call it with each look.
    pub fn account(&self, now: Instant) {
        if let State::Counting(counting) = &mut *self.state() {
            let Counting { probes, overhead, .. } = &mut **counting;
            overhead.look(now, processors, Clocked::begin, || probes.run_time());
        }
    }

    /// The metrics that are served without a token.
    pub fn collect(&self, samples: &mut Samples) {
        let state = self.state();
        let State::Counting(counting) = &*state else {
            return Probes::names().for_each(|name| samples.add(&family::PROBE, &[name], 0));
        };
        for probe in counting.probes.probes() {
            samples.add(&family::PROBE, &[probe.name], if probe.why_not.is_none() { 1 } else { 0 });
        }
        if let Some(percent) = counting.overhead.percent() {
            samples.add(&family::OVERHEAD, &[], percent);
        }
        if counting.probes.has("block_rq_complete") {
            if let Some((read, written)) = counting.probes.of_no_allocation() {
                samples.count(&of_node::BLOCK_UNATTRIBUTED, &["read"], read);
                samples.count(&of_node::BLOCK_UNATTRIBUTED, &["write"], written);
            }
            if let Some(unfit) = counting.probes.unfit() {
                samples.count(&family::REQUESTS_LEFT_OUT, &[], unfit);
            }
        }
    }
}

/// Sets fixed limits for the free memory that the allocator keeps. Reading the kernel's types takes
/// tens of megabytes for a moment. By default the allocator adapts its limits to the largest freed
/// buffer, and would keep megabytes free in each thread's heap from then on.
fn limit_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets limits, and changes no memory in use.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 10);
    }
}

/// Returns free memory between used blocks to the kernel.
fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it returns free pages, and changes no memory in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn load(slice: Option<&Slice>) -> Result<Probes, ProbesError> {
    let slice = slice.ok_or(ProbesError::NoCgroups)?.path();
    // Packets are counted at the slice, which otherwise exists only with the first scope.
    fs::create_dir_all(&slice).map_err(|source| ProbesError::MakeSlice { path: slice.clone(), source })?;
    Probes::load(&slice).map_err(ProbesError::Load)
}

impl Counting {
    fn track(&mut self, key: Key, cgroup: u64) {
        match self.kept.get(&key) {
            Some(kept) if kept.cgroup == cgroup && kept.is_tracked => return,
            // The scope was removed and created again: its work begins again.
            Some(kept) if kept.cgroup != cgroup && kept.is_tracked => self.probes.forget(kept.cgroup),
            _ => {}
        }
        if let Err(error) = self.probes.track(cgroup) {
            if !self.cannot_track {
                tracing::warn!(allocation = %key.0.short(), "the allocation is not counted in the kernel: {error}");
            }
            self.cannot_track = true;
            return;
        }
        self.cannot_track = false;
        let before = self.kept.get(&key).map_or([0; WORDS], |kept| kept.total);
        self.kept.insert(key, AllocationCounts { cgroup, before, total: before, is_tracked: true });
        self.differs = true;
    }

    /// Reads the current counts; `None`: the allocation is not counted.
    fn count(&mut self, key: Key) -> Option<&Counts> {
        let kept = self.kept.get_mut(&key).filter(|kept| kept.is_tracked)?;
        let total = self.probes.counts(kept.cgroup, &kept.before)?;
        self.differs |= kept.total != total;
        kept.total = total;
        // A slot that was shown for one device is never used for another one.
        for slot in (DEVICES..DEVICES_OTHER).step_by(DEVICE_WORDS) {
            kept.before[slot + DEVICE] = kept.total[slot + DEVICE];
        }
        Some(&kept.total)
    }

    /// Adds the last counts to `usage`.
    fn add_counts(&mut self, key: Key, usage: &mut Usage) {
        let Some(kept) = self.kept.get(&key) else { return };
        let names = &mut self.names;
        offer(&kept.total, |probe| self.probes.has(probe), |id| names.of(id), usage);
    }

    /// A number that changes whenever a process of the work ran, started or ended; `None`: not all
    /// of these are counted.
    fn events(&self, total: &Counts) -> Option<u64> {
        let counted = ["sched_switch", "sched_process_fork", "sched_process_exit"].iter().all(|probe| self.probes.has(probe));
        let counters = [SWITCHES_VOLUNTARY, SWITCHES_INVOLUNTARY, PROCESSES_STARTED, PROCESSES_EXITED];
        counted.then(|| counters.iter().fold(0, |sum: u64, counter| sum.wrapping_add(total[*counter])))
    }

    /// The new content of the file, if it differs. Clears `differs`: the caller must write the
    /// file, and set `differs` again if that fails.
    fn changed(&mut self) -> Option<(PathBuf, Vec<u8>)> {
        let file = self.file.as_ref()?;
        if !std::mem::take(&mut self.differs) {
            return None;
        }
        let bytes = encoded(&self.kept);
        (bytes != self.written).then(|| (file.clone(), bytes))
    }
}

struct KernelReader {
    counts: KernelCounts,
    key: Key,
    /// The cgroup whose counts were read last.
    counted: Option<u64>,
}

impl KernelReader {
    fn count(&mut self, group: &Group, signs: &mut Signs) {
        self.counted = None;
        let Some(cgroup) = group.inode() else { return };
        if let State::Counting(counting) = &mut *self.counts.state() {
            // The scope may have existed before the programs were loaded.
            counting.track(self.key, cgroup);
            if let Some(total) = counting.count(self.key).copied() {
                self.counted = Some(cgroup);
                signs.events = counting.events(&total);
            }
        }
    }
}

impl Reader for KernelReader {
    fn source(&self) -> Source {
        Source::Ebpf
    }

    fn signs(&mut self, group: &Group, _text: &mut Text, signs: &mut Signs) {
        self.count(group, signs);
    }

    fn read(&mut self, group: &Group, _text: &mut Text, usage: &mut Usage) {
        if self.counted != group.inode() {
            // The scope was created again since then.
            self.count(group, &mut Signs::default());
        }
        if self.counted.is_some()
            && let State::Counting(counting) = &mut *self.counts.state()
        {
            counting.add_counts(self.key, usage);
        }
    }
}

fn offer(total: &Counts, has: impl Fn(&str) -> bool, name: impl FnMut(u64) -> String, usage: &mut Usage) {
    if has("block_devices") {
        usage.devices = disks::of(total, name);
    }
    for (probe, word, measure) in COUNTERS {
        usage.offer(measure, has(probe).then_some(total[word] as f64), Source::Ebpf);
    }
    for (probe, at, of) in HISTOGRAMS {
        if has(probe) {
            let words = &total[at..at + HISTOGRAM_WORDS];
            let counts = histogram::Counts { bounds: &FINE_SECONDS, buckets: words[1..].to_vec(), sum: words[0] as f64 / 1e9 };
            usage.offer_distribution(of, counts, Source::Ebpf);
        }
    }
}

/// Combines the kernel's ranges to the exported ones.
pub fn coarser(fine: &histogram::Counts) -> histogram::Counts {
    let mut buckets = vec![0; EXPORTED_SECONDS.len() + 1];
    for (n, count) in fine.buckets.iter().enumerate() {
        buckets[n.div_ceil(2).min(EXPORTED_SECONDS.len())] += count;
    }
    histogram::Counts { bounds: &EXPORTED_SECONDS, buckets, sum: fine.sum }
}

fn encoded(kept: &BTreeMap<Key, AllocationCounts>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for ((allocation, epoch), kept) in kept {
        let from = bytes.len();
        bytes.extend(allocation.0.as_bytes());
        bytes.extend(epoch.0.to_le_bytes());
        bytes.extend(kept.cgroup.to_le_bytes());
        kept.total.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        let sum = crc32fast::hash(&bytes[from..]);
        bytes.extend(sum.to_le_bytes());
    }
    bytes
}

/// The intact records; those of another version, and damaged ones, are left out.
fn decoded(bytes: &[u8]) -> BTreeMap<Key, AllocationCounts> {
    let records = bytes.strip_prefix(&MAGIC).unwrap_or_default().chunks_exact(RECORD_BYTES);
    let record = |record: &[u8]| {
        let (body, sum) = record.split_last_chunk::<4>()?;
        let (id, rest) = body.split_first_chunk::<16>()?;
        let words: Vec<u64> = rest.chunks_exact(8).map_while(|word| word.try_into().ok().map(u64::from_le_bytes)).collect();
        let ([epoch, cgroup], words) = words.split_first_chunk::<2>()?;
        let total: Counts = words.try_into().ok()?;
        let kept = AllocationCounts { cgroup: *cgroup, before: total, total, is_tracked: false };
        (crc32fast::hash(body) == u32::from_le_bytes(*sum)).then_some(((AllocationId(Uuid::from_bytes(*id)), Epoch(*epoch)), kept))
    };
    records.filter_map(record).collect()
}

/// The counts of earlier runs for the scopes that exist.
fn kept_of(file: &Path, slice: &Slice) -> BTreeMap<Key, AllocationCounts> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take((RECORDS_MAX * RECORD_BYTES) as u64).read_to_end(&mut bytes));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return BTreeMap::new(),
        Err(error) => {
            tracing::warn!("{}: {error}: counters of allocations start from 0 again", file.display());
            return BTreeMap::new();
        }
    }
    if !bytes.starts_with(&MAGIC) {
        tracing::warn!("{} is of another version: counters of allocations start from 0 again", file.display());
    }
    let mut kept = decoded(&bytes);
    kept.retain(|(allocation, _), kept| fs::metadata(slice.scope(*allocation).work().path()).is_ok_and(|work| work.ino() == kept.cgroup));
    kept
}

/// Writes a file so that it appears complete. Only root may read it, because others need a token to
/// read anything about allocations.
pub fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = file.with_extension("new");
    // A file left by a killed agent may have another mode.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?.write_all(bytes)?;
    fs::rename(&beside, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_telemetry::sample::Value;

    fn kept(word: u64) -> AllocationCounts {
        let total = std::array::from_fn(|n| word + n as u64);
        AllocationCounts { cgroup: word, before: total, total, is_tracked: false }
    }

    #[test]
    fn stored_counts_are_read_back_and_damaged_records_are_left_out() {
        let key = |n: u128, epoch| (AllocationId(Uuid::from_u128(n)), Epoch(epoch));
        let all: BTreeMap<Key, AllocationCounts> = [(key(1, 1), kept(7)), (key(2, 9), kept(u64::MAX - 1000))].into();
        let bytes = encoded(&all);
        assert_eq!(decoded(&bytes), all);
        for at in MAGIC.len()..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decoded(&damaged).len(), 1, "byte {at}");
        }
        assert_eq!((decoded(&bytes[..bytes.len() - 1]).len(), decoded(b"").len(), decoded(b"other").len()), (1, 0, 0));
    }

    #[test]
    fn the_file_is_for_root_alone_whatever_a_killed_agent_left() {
        let dir = std::env::temp_dir().join(format!("lattice-kernel-counts-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join(FILE);
        fs::write(file.with_extension("new"), "half of one").unwrap();
        for bytes in [&b"first"[..], b"second"] {
            write(&file, bytes).unwrap();
            assert_eq!((fs::read(&file).unwrap(), fs::metadata(&file).unwrap().mode() & 0o777), (bytes.to_vec(), 0o600));
        }
        assert!(!file.with_extension("new").exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn programs_that_are_not_loaded_are_reported_as_not_counting() {
        let counts = KernelCounts::default();
        counts.off("measuring.kernel_probes: false");
        let mut samples = Samples::default();
        counts.collect(&mut samples);
        let (_, probes) = samples.families().find(|(of, _)| of.name == family::PROBE.name).unwrap();
        assert_eq!(probes.len(), Probes::names().count());
        assert!(probes.iter().any(|one| one.labels == ["sched_switch"]) && probes.iter().any(|one| one.labels == ["run_queue"]));
        assert!(probes.iter().all(|one| one.value == Value::Number(0.0)), "{probes:?}");
    }

    #[test]
    fn ranges_are_powers_of_two_and_every_second_one_is_exported() {
        assert_eq!(
            (FINE_SECONDS[0], FINE_SECONDS[24], EXPORTED_SECONDS[0], EXPORTED_SECONDS[12]),
            (1.024e-6, 17.179_869_184, 1.024e-6, 17.179_869_184)
        );
        let mut total = [0u64; WORDS];
        total[RUN_QUEUE] = 2_000_000_000;
        for range in 0..RANGES {
            total[RUN_QUEUE + 1 + range] = 1;
        }
        let mut usage = Usage::default();
        offer(&total, |probe| probe == "run_queue", |_| String::new(), &mut usage);
        assert_eq!((usage.all().count(), usage.distributions().count()), (0, 1));
        let (fine, _) = usage.distribution(Distribution::RunQueue).unwrap();
        let exported = coarser(fine);
        assert_eq!((fine.count(), exported.count(), exported.sum), (26, 26, 2.0));
        // The number of values up to a bound is the same in both.
        for (bound, count) in exported.cumulative() {
            assert_eq!(fine.cumulative().find(|(of, _)| *of == bound), Some((bound, count)));
        }
    }
}
