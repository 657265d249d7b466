//! Reads the work's processes one by one, for values that no cgroup here has.
//!
//! When a process ends, its usage is added to the parent that waits for it. If the parent belongs to the work, the
//! parent's counter therefore includes it. If not (a rank, whose parent is the shim), its last seen values are kept
//! here. A process that a measurement misses, or a zombie, still lives: it has ended when `/proc` no longer has it. A
//! process that ends between two measurements, and for which no process of the work waits, is not seen: these counters
//! are lower bounds.

use super::polled_file::PolledFile;
use super::{Group, Reader, Text};
use crate::procfs::{Stat, TICKS_PER_SECOND, field, page_bytes};
use crate::usage::{Measure, Source, Usage};
use nix::errno::Errno;
use std::collections::HashMap;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;

/// How many processes of an allocation have files that are held open: the first ones.
const HELD_MAX: usize = 64;

/// Counters of processes that include the children that they waited for.
const COUNTERS: [Measure; 6] =
    [Measure::CpuUser, Measure::CpuSystem, Measure::FaultsMinor, Measure::FaultsMajor, Measure::IoRead, Measure::IoWritten];

type Counted = [f64; COUNTERS.len()];

#[derive(Default)]
pub struct Procfs {
    living: HashMap<i32, Process>,
    /// The counts of processes that are gone and for which no process of the work waited.
    gone: Counted,
    /// The last reported values: no counter may fall.
    reported: Counted,
    held: HashMap<i32, Files>,
    path: String,
    /// The values of the last reading.
    last: Option<Sums>,
}

/// The sums over all processes.
#[derive(Clone, Copy)]
struct Sums {
    resident_pages: u64,
    threads: u64,
    /// `None`: their I/O was not requested; else whether it could be read of each.
    io: Option<bool>,
}

/// The files of a process.
struct Files {
    stat: PolledFile,
    io: PolledFile,
    seen: bool,
}

#[derive(Clone, Copy)]
struct Process {
    /// Distinguishes it from another process with the same number.
    started_ticks: u64,
    parent: i32,
    counted: Counted,
    seen: bool,
}

impl Reader for Procfs {
    fn source(&self) -> Source {
        Source::Procfs
    }

    fn read(&mut self, group: &Group, text: &mut Text, usage: &mut Usage) {
        let wants = |usage: &Usage, measures: &[Measure]| measures.iter().any(|measure| usage.lacks(*measure));
        let wants_io = wants(usage, &[Measure::IoRead, Measure::IoWritten]);
        let of_stat = [Measure::CpuUser, Measure::CpuSystem, Measure::Memory, Measure::FaultsMinor, Measure::FaultsMajor, Measure::Threads];
        if !wants_io && !wants(usage, &of_stat) {
            self.last = None;
            return;
        }
        let Some(pids) = group.processes() else {
            self.last = None;
            return;
        };
        let sums = match self.last.filter(|last| group.is_idle() && last.io.is_some() == wants_io) {
            Some(last) => last,
            None => self.processes(pids, wants_io, text),
        };
        self.last = Some(sums);
        usage.offer(Measure::Memory, Some((sums.resident_pages * page_bytes()) as f64), Source::Procfs);
        usage.offer(Measure::Threads, Some(sums.threads as f64), Source::Procfs);
        for (measure, value) in COUNTERS.into_iter().zip(self.reported) {
            let is_io = matches!(measure, Measure::IoRead | Measure::IoWritten);
            if !is_io || sums.io.is_some_and(|readable| readable || value > 0.0) {
                usage.offer(measure, Some(value), Source::Procfs);
            }
        }
    }
}

impl Procfs {
    /// Reads each process and adds up.
    fn processes(&mut self, pids: &[i32], wants_io: bool, text: &mut Text) -> Sums {
        let (mut resident_pages, mut threads, mut io_readable) = (0, 0, true);
        for pid in pids {
            let Some(stat) = self.stat(*pid, text) else { continue };
            resident_pages += stat.resident_pages;
            threads += stat.threads;
            let mut counted = of_stat_line(&stat);
            if wants_io {
                match self.io(*pid, text) {
                    Some([read, written]) => (counted[4], counted[5]) = (read as f64, written as f64),
                    // It has just ended; or we may not read it.
                    None => io_readable = false,
                }
            }
            self.saw(*pid, Process { started_ticks: stat.started_ticks, parent: stat.parent, counted, seen: true });
        }
        self.held.retain(|_, files| std::mem::take(&mut files.seen));
        let mut path = std::mem::take(&mut self.path);
        self.settle(|pid, started_ticks| is_alive(text, &mut path, pid, started_ticks));
        self.path = path;
        Sums { resident_pages, threads, io: wants_io.then_some(io_readable) }
    }

    /// A process's open file refers to that process only: it cannot be read any more when its number is reused.
    fn stat(&mut self, pid: i32, text: &mut Text) -> Option<Stat> {
        if !self.held.contains_key(&pid) {
            if self.held.len() >= HELD_MAX {
                return text.bytes_of(path_in(&mut self.path, pid, "stat")).ok().and_then(Stat::parse);
            }
            let mut file = |name: &str| PolledFile::new(path_in(&mut self.path, pid, name).to_owned());
            let files = Files { stat: file("stat"), io: file("io"), seen: false };
            self.held.insert(pid, files);
        }
        let files = self.held.get_mut(&pid)?;
        files.seen = true;
        files.stat.bytes(text).and_then(Stat::parse)
    }

    /// Bytes read and written.
    fn io(&mut self, pid: i32, text: &mut Text) -> Option<[u64; 2]> {
        let io = match self.held.get_mut(&pid) {
            Some(files) => files.io.read(text)?,
            None => text.of(path_in(&mut self.path, pid, "io")).ok()?,
        };
        Some(["read_bytes", "write_bytes"].map(|name| field(io, name).unwrap_or(0)))
    }

    fn saw(&mut self, pid: i32, now: Process) {
        match self.living.get_mut(&pid) {
            Some(known) if known.started_ticks == now.started_ticks => {
                // A value that cannot be read for a moment has not become less.
                let counted = std::array::from_fn(|n| known.counted[n].max(now.counted[n]));
                *known = Process { counted, ..now };
            }
            _ => {
                if let Some(before) = self.living.insert(pid, now) {
                    self.over(&before);
                }
            }
        }
    }

    /// Removes processes that were not seen and do not live, and adds up. `lives`: whether a process with this number
    /// and start time exists.
    fn settle(&mut self, mut lives: impl FnMut(i32, u64) -> bool) {
        let missed = self.living.iter().filter(|(_, process)| !process.seen);
        let ended: Vec<i32> = missed.filter(|(pid, process)| !lives(**pid, process.started_ticks)).map(|(pid, _)| *pid).collect();
        let ended: Vec<Process> = ended.iter().filter_map(|pid| self.living.remove(pid)).collect();
        for process in &ended {
            self.over(process);
        }
        let mut sum = self.gone;
        for process in self.living.values_mut() {
            process.seen = false;
            add(&mut sum, &process.counted);
        }
        for (reported, now) in self.reported.iter_mut().zip(sum) {
            *reported = reported.max(now);
        }
    }

    fn over(&mut self, process: &Process) {
        if !self.living.contains_key(&process.parent) {
            add(&mut self.gone, &process.counted);
        }
    }
}

fn path_in<'a>(path: &'a mut String, pid: i32, file: &str) -> &'a Path {
    path.clear();
    // Writing to a String cannot fail.
    let _ = write!(path, "/proc/{pid}/{file}");
    Path::new(path)
}

/// Only a missing process counts as ended; other read errors prove nothing.
fn is_alive(text: &mut Text, path: &mut String, pid: i32, started_ticks: u64) -> bool {
    match text.bytes_of(path_in(path, pid, "stat")) {
        Ok(line) => Stat::parse(line).is_none_or(|stat| stat.started_ticks == started_ticks),
        Err(error) => error.kind() != ErrorKind::NotFound && error.raw_os_error() != Some(Errno::ESRCH as i32),
    }
}

fn add(sum: &mut Counted, more: &Counted) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

fn of_stat_line(stat: &Stat) -> Counted {
    let seconds = |ticks: u64| ticks as f64 / TICKS_PER_SECOND;
    [
        seconds(stat.user_ticks + stat.children_user_ticks),
        seconds(stat.system_ticks + stat.children_system_ticks),
        (stat.minor_faults + stat.children_minor_faults) as f64,
        (stat.major_faults + stat.children_major_faults) as f64,
        0.0,
        0.0,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(parent: i32, faults: f64) -> Process {
        let mut counted = Counted::default();
        counted[2] = faults;
        Process { started_ticks: 1, parent, counted, seen: true }
    }

    #[test]
    fn an_ended_process_is_counted_once_whoever_waited_for_it() {
        let mut reader = Procfs::default();
        // A rank, child of the shim, with a child of its own.
        reader.saw(10, process(1, 5.0));
        reader.saw(11, process(10, 7.0));
        reader.settle(|_, _| false);
        assert_eq!(reader.reported[2], 12.0);
        // The child ended, and the rank waited for it: the rank's counter includes it now.
        reader.saw(10, process(1, 5.0 + 8.0));
        reader.settle(|_, _| false);
        assert_eq!(reader.reported[2], 13.0);
        // The rank ended; the shim waited for it.
        reader.settle(|_, _| false);
        assert_eq!(reader.reported[2], 13.0);
        // Its number is reused.
        reader.saw(10, Process { started_ticks: 2, ..process(1, 1.0) });
        reader.settle(|_, _| false);
        assert_eq!(reader.reported[2], 14.0);
        assert_eq!(reader.living.len(), 1, "who is gone is forgotten");
    }

    #[test]
    fn a_living_process_that_was_missed_is_not_counted_twice() {
        let mut reader = Procfs::default();
        reader.saw(10, process(1, 5.0));
        reader.settle(|_, _| false);
        reader.settle(|pid, started| (pid, started) == (10, 1));
        reader.saw(10, process(1, 6.0));
        reader.settle(|_, _| false);
        assert_eq!((reader.reported[2], reader.living.len()), (6.0, 1));
        // This process lives; one with its number and another start time does not.
        let (mut text, mut path) = (Text::default(), String::new());
        let me = i32::try_from(std::process::id()).unwrap();
        let started = Stat::parse(&std::fs::read("/proc/self/stat").unwrap()).unwrap().started_ticks;
        assert!(is_alive(&mut text, &mut path, me, started) && !is_alive(&mut text, &mut path, me, started + 1));
        assert!(!is_alive(&mut text, &mut path, i32::MAX, 1));
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_process() {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"\xff) R \xfe");
        let link = std::env::temp_dir().join(format!("lattice-name-{}", std::process::id())).join(name);
        let _ = std::fs::remove_dir_all(link.parent().unwrap());
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        // The kernel takes the process name from the path.
        std::fs::copy("/bin/sleep", &link).unwrap();
        let mut child = std::process::Command::new(&link).arg("60").spawn().unwrap();
        let line = std::fs::read(format!("/proc/{}/stat", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(link.parent().unwrap()).unwrap();
        assert!(std::str::from_utf8(&line).is_err() && Stat::parse(&line).is_some(), "{line:?}");
    }

    proptest! {
        #[test]
        fn no_counter_ever_falls(steps in proptest::collection::vec((1..6i32, 0..6i32, 0..50u32, any::<bool>()), 1..200)) {
            let mut reader = Procfs::default();
            let mut last = 0.0;
            for (pid, parent, faults, settles) in steps {
                reader.saw(pid, process(parent, f64::from(faults)));
                if settles {
                    reader.settle(|_, _| false);
                    prop_assert!(reader.reported[2] >= last);
                    last = reader.reported[2];
                }
            }
        }
    }
}
