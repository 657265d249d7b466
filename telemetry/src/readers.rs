//! The readers of an allocation's work, and their order of preference.
//!
//! ```text
//!   Group (its directories, its processes) ──▶ cgroup v2 ──▶ cgroup v1 ──▶ eBPF ──▶ procfs ──▶ Usage with sources
//! ```
//!
//! First each reader gives the signs that some process of the work has run (`rest`). If none has, the values that only
//! its own processes change are unchanged, and are not read again.
//!
//! A reader adds the values that no earlier reader had. Counting by eBPF needs programs in the kernel, which belong to
//! the agent: the agent provides that [`Reader`]. All values are in the kernel's memory, so no reader waits for a disk
//! or a network. Only ports of adapters (`fabric`) may wait, for the adapter's firmware: they are read separately. The
//! listening sockets of the node (`listeners`) are listed once for all work.

mod devices;
pub mod fabric;
mod group;
mod host;
mod launches;
mod listeners;
mod parts;
mod polled_file;
mod procfs;
mod rapl;
mod reader;
mod reclaim;
mod rest;
mod v1;
mod v2;

pub use group::{CgroupPaths, Group, PROCESSES_MAX};
pub use host::Host;
pub use launches::{LAUNCHES_MAX, Part, Parts};
pub use listeners::{AcceptQueues, Listeners};
pub use polled_file::Text;
pub use rapl::{Domain, Rapl};
pub use reader::Reader;
pub use reclaim::Reclaim;
pub use rest::Signs;

use crate::usage::{Measure, Source, Usage};
use rest::Rest;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The result of one measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    pub usage: Usage,
    /// When it began.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
}

/// One pass over all work of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Processes that may still be listed.
    pub processes_left: usize,
    /// See [`Reclaim::scanned`].
    pub scanned: Option<u64>,
}

/// All readers of one allocation's work.
pub struct Meter {
    group: Group,
    rest: Rest,
    readers: Vec<Box<dyn Reader>>,
}

impl Meter {
    /// For work in these cgroups. `counted`: the reader of the counts of kernel programs.
    pub fn new(paths: CgroupPaths, counted: Option<Box<dyn Reader>>) -> Self {
        let mut readers: Vec<Box<dyn Reader>> = Vec::new();
        readers.extend(paths.v2.as_deref().map(|work| Box::new(v2::V2::new(work)) as Box<dyn Reader>));
        if !paths.v1.is_empty() {
            readers.push(Box::new(v1::V1::new(&paths.v1)));
        }
        // The cgroup's own counts started with the cgroup.
        readers.extend(counted);
        readers.push(Box::new(procfs::Procfs::default()));
        Self { group: Group::new(paths), rest: Rest::default(), readers }
    }

    /// Reads once; `None`: the work does not exist (any more).
    pub fn read(&mut self, text: &mut Text) -> Option<Usage> {
        self.look(text, &mut Pass { processes_left: PROCESSES_MAX, scanned: None }).map(|look| look.usage)
    }

    /// The same as a part of a pass, which lists a limited number of processes: this work's count against the limit. If
    /// too few are left for it, values from processes are absent.
    pub fn look(&mut self, text: &mut Text, pass: &mut Pass) -> Option<Look> {
        if !self.group.is_there() {
            return None;
        }
        let at = Instant::now();
        let mut signs = Signs { scanned: pass.scanned, ..Signs::default() };
        for reader in &mut self.readers {
            reader.signs(&self.group, text, &mut signs);
        }
        // Processes that were not all listed are listed again.
        let signs = self.group.processes().map_or_else(Signs::default, |_| signs);
        if self.rest.look(at, signs) {
            self.group.mark_idle();
        } else {
            if !self.group.refresh(text, pass.processes_left) {
                return None;
            }
            pass.processes_left = pass.processes_left.saturating_sub(self.group.listed());
        }
        let mut usage = Usage::default();
        for reader in &mut self.readers {
            reader.read(&self.group, text, &mut usage);
        }
        Some(Look { usage, at, took: at.elapsed() })
    }

    /// Adds the ids of the cgroups of the work, as far as they were known at the last measurement.
    pub fn add_cgroups(&self, to: &mut BTreeSet<u64>) {
        self.group.add_cgroups(to);
    }

    /// Adds how many connections wait to be accepted by the work. Nothing, if the work does not listen in the node's
    /// network.
    pub fn add_accept_queue(&self, queues: Option<&AcceptQueues>, usage: &mut Usage) {
        let waiting = queues.and_then(|queues| self.group.sum_of_cgroups(|cgroup| queues.of(cgroup)));
        usage.offer(Measure::AcceptQueue, waiting.map(|waiting| waiting as f64), Source::SockDiag);
    }

    /// The use of each launch's ranks, at the last measurement or later. `None`: it cannot be read now, or not on this
    /// machine.
    pub fn parts(&mut self, text: &mut Text) -> Option<&Parts> {
        self.group.parts(text)
    }

    /// Its sources, in order of preference.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        self.readers.iter().map(|reader| reader.source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lattice-readers-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const PSI: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n";

    #[test]
    fn each_version_gives_its_values_and_procfs_the_rest() {
        let tree = Tree::new("both");
        let me = std::process::id();
        tree.put("v2/cpu.stat", "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n");
        tree.put("v2/io.pressure", PSI);
        tree.put("v2/cgroup.procs", "");
        tree.put("v2/launch-1/cgroup.procs", &format!("{me}\n"));
        tree.put("pids/pids.current", "12\n");
        tree.put("blkio/blkio.throttle.io_service_bytes_recursive", "8:0 Read 10\n8:0 Write 20\n8:16 Read 5\n8:16 Write 0\nTotal 35\n");
        let paths = CgroupPaths { v2: Some(tree.0.join("v2")), v1: vec![tree.0.join("pids"), tree.0.join("blkio")] };
        let mut meter = Meter::new(paths, None);
        let usage = meter.read(&mut Text::default()).unwrap();
        let source = |measure| usage.get(measure);
        assert_eq!(source(Measure::CpuUser), Some((2.0, Source::CgroupV2)));
        assert_eq!(source(Measure::CpuSystem), Some((1.0, Source::CgroupV2)));
        assert_eq!(source(Measure::PressureIoFull), Some((1.0, Source::CgroupV2)));
        assert_eq!(source(Measure::PressureMemorySome), None);
        assert_eq!(source(Measure::Threads), Some((12.0, Source::CgroupV1)));
        assert_eq!((source(Measure::IoRead), source(Measure::IoWritten)), (Some((15.0, Source::CgroupV1)), Some((20.0, Source::CgroupV1))));
        assert_eq!(source(Measure::Processes), Some((1.0, Source::CgroupV2)));
        assert!(source(Measure::Memory).is_some_and(|(bytes, from)| bytes > 1e5 && from == Source::Procfs));
        assert!(source(Measure::FaultsMinor).is_some_and(|(faults, from)| faults > 10.0 && from == Source::Procfs));
        assert_eq!(source(Measure::MemoryPeak), None, "nobody has it here");
        fs::remove_dir_all(tree.0.join("v2")).unwrap();
        assert_eq!(meter.read(&mut Text::default()), None);
    }

    #[test]
    fn missing_files_are_read_once_they_exist() {
        let tree = Tree::new("later");
        let mut meter = Meter::new(CgroupPaths { v2: Some(tree.0.join("work")), v1: Vec::new() }, None);
        let mut text = Text::default();
        assert_eq!(meter.read(&mut text), None);
        tree.put("work/cgroup.procs", "");
        assert_eq!(
            meter.read(&mut text).unwrap().get(Measure::Memory),
            Some((0.0, Source::Procfs)),
            "by its processes, of which there are none"
        );
        tree.put("work/memory.current", "4096\n");
        tree.put("work/memory.stat", "anon 1\npgfault 30\npgmajfault 2\n");
        tree.put("work/io.stat", "8:0 rbytes=100 wbytes=7 rios=1 wios=1 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=1\n");
        tree.put("work/memory.events", "low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\n");
        let usage = meter.read(&mut text).unwrap();
        let expected = [(Measure::Memory, 4096.0), (Measure::FaultsMinor, 28.0), (Measure::FaultsMajor, 2.0), (Measure::IoRead, 101.0)];
        for (measure, value) in expected.into_iter().chain([(Measure::IoWritten, 8.0), (Measure::OomKills, 1.0)]) {
            assert_eq!(usage.get(measure), Some((value, Source::CgroupV2)), "{measure:?}");
        }
    }

    #[test]
    fn connections_that_wait_are_those_of_all_directories_of_the_work() {
        let tree = Tree::new("accepts");
        tree.put("work/cgroup.procs", "");
        tree.put("work/launch-1/cgroup.procs", "");
        tree.put("other/cgroup.procs", "");
        let mut meter = Meter::new(CgroupPaths { v2: Some(tree.0.join("work")), v1: Vec::new() }, None);
        let queued = |meter: &Meter, queues: Option<&AcceptQueues>| {
            let mut usage = Usage::default();
            meter.add_accept_queue(queues, &mut usage);
            usage.get(Measure::AcceptQueue)
        };
        let inode = |path: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(tree.0.join(path)).unwrap());
        let queues = AcceptQueues::for_test([(inode("work"), 2), (inode("work/launch-1"), 3), (inode("other"), 7)]);
        assert_eq!(queued(&meter, Some(&queues)), None, "its directories are not known yet");
        meter.read(&mut Text::default()).unwrap();
        assert_eq!(queued(&meter, Some(&queues)), Some((5.0, Source::SockDiag)));
        assert_eq!(queued(&meter, Some(&AcceptQueues::default())), None, "it does not listen");
        let silent = AcceptQueues::for_test([(inode("work/launch-1"), 0), (inode("other"), 7)]);
        assert_eq!(queued(&meter, Some(&silent)), Some((0.0, Source::SockDiag)));
        let mut cgroups = BTreeSet::new();
        meter.add_cgroups(&mut cgroups);
        assert_eq!(cgroups, ["work", "work/launch-1"].map(inode).into());
        assert_eq!(queued(&meter, None), None, "this kernel does not say");
    }

    #[test]
    fn the_rest_of_a_pass_bounds_the_processes_that_are_read() {
        let tree = Tree::new("left");
        tree.put("work/cgroup.procs", &format!("{}\n", std::process::id()));
        let mut meter = Meter::new(CgroupPaths { v2: Some(tree.0.join("work")), v1: Vec::new() }, None);
        let (mut text, mut left) = (Text::default(), Pass { processes_left: 1, scanned: None });
        assert!(meter.look(&mut text, &mut left).unwrap().usage.get(Measure::Memory).is_some());
        assert_eq!(left.processes_left, 0);
        let none = meter.look(&mut text, &mut left).unwrap().usage;
        assert_eq!((none.get(Measure::Memory), none.get(Measure::Processes)), (None, None));
    }

    /// The counts of kernel programs.
    struct Counted(Arc<AtomicU64>);

    impl Reader for Counted {
        fn source(&self) -> Source {
            Source::Ebpf
        }

        fn signs(&mut self, _group: &Group, _text: &mut Text, signs: &mut Signs) {
            signs.events = Some(self.0.load(Ordering::Relaxed));
        }

        fn read(&mut self, _group: &Group, _text: &mut Text, _usage: &mut Usage) {}
    }

    #[test]
    fn of_idle_work_only_values_that_change_by_themselves_are_read() {
        let tree = Tree::new("rests");
        let waited = |us: u64| tree.put("work/io.pressure", &format!("some total={us}\nfull total={us}\n"));
        // The same number for all values, except the signs.
        let all = |n: u64| {
            tree.put("work/cgroup.procs", &format!("{}\n", std::process::id()).repeat(n as usize));
            tree.put("work/pids.current", &format!("{n}\n"));
            tree.put("work/memory.stat", &format!("pgfault {n}\npgmajfault 0\n"));
            tree.put("work/memory.current", &format!("{n}\n"));
            tree.put("work/memory.events", &format!("oom_kill {n}\n"));
            tree.put("work/io.stat", &format!("8:0 rbytes={n} wbytes={n}\n"));
            tree.put("work/cpu.pressure", &format!("some total={n}000000\n"));
        };
        tree.put("work/cpu.stat", "usage_usec 5\nuser_usec 2\nsystem_usec 3\n");
        all(1);
        waited(0);
        let events = Arc::new(AtomicU64::new(1));
        let paths = CgroupPaths { v2: Some(tree.0.join("work")), v1: Vec::new() };
        let mut meter = Meter::new(paths, Some(Box::new(Counted(Arc::clone(&events)))));
        let mut text = Text::default();
        let mut look = |scanned| {
            let usage = meter.look(&mut text, &mut Pass { processes_left: 100, scanned: Some(scanned) }).unwrap().usage;
            move |measures: &[Measure]| measures.iter().map(|measure| usage.get(*measure).unwrap().0).collect::<Vec<f64>>()
        };
        let stands = [Measure::Processes, Measure::Threads, Measure::FaultsMinor];
        let moves = [Measure::Memory, Measure::OomKills, Measure::IoRead, Measure::IoWritten, Measure::PressureCpuSome];
        // The signs are known from the second measurement on, and must be the same twice.
        for _ in 0..4 {
            let _ = look(0);
        }
        all(2);
        waited(7_000_000);
        let resting = look(0);
        assert_eq!((resting(&stands), resting(&moves)), (vec![1.0; 3], vec![2.0; 5]));
        assert_eq!(resting(&[Measure::PressureIoSome]), [0.0], "nobody ran into it");
        events.store(2, Ordering::Relaxed);
        assert_eq!(look(0)(&stands), [2.0; 3], "something ran");
        // From then on it waits for a disk, and does not run.
        for second in 8..20 {
            waited(second * 1_000_000);
            assert_eq!(look(0)(&[Measure::PressureIoSome, Measure::PressureIoFull]), [second as f64; 2]);
        }
        all(3);
        assert_eq!(look(0)(&stands), [2.0; 3]);
        assert_eq!(look(32)(&stands), [3.0; 3], "memory was looked at to be taken back");
        for _ in 0..3 {
            let _ = look(32);
        }
        all(4);
        tree.put("work/cpu.stat", "usage_usec 6\nuser_usec 2\nsystem_usec 4\n");
        assert_eq!(look(32)(&stands), [4.0; 3], "it computed, and was not switched");
        fs::remove_dir_all(tree.0.join("work")).unwrap();
        assert!(meter.look(&mut text, &mut Pass { processes_left: 100, scanned: Some(32) }).is_none());
    }

    #[test]
    fn too_many_processes_are_not_read_one_by_one() {
        let tree = Tree::new("many");
        let pids: String = (1..=PROCESSES_MAX + 1).map(|pid| format!("{}\n", pid + 1_000_000)).collect();
        tree.put("work/cgroup.procs", &pids);
        tree.put("work/cpu.stat", "user_usec 1\nsystem_usec 1\n");
        let mut meter = Meter::new(CgroupPaths { v2: Some(tree.0.join("work")), v1: Vec::new() }, None);
        let usage = meter.read(&mut Text::default()).unwrap();
        assert!(usage.get(Measure::CpuUser).is_some());
        assert_eq!((usage.get(Measure::Memory), usage.get(Measure::Processes)), (None, None));
    }
}
