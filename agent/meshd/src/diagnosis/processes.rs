//! The work's processes: the state of each, and what it waits for.

use super::fact::{fact, text_of};
use lattice_machine::questions::{Asked, OF_RANKS};
use lattice_mesh::diagnosis::{PROCESSES_MAX, STACK_MAX, WireFact, WireProcess, plain};
use nix::libc;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many processes of an allocation are listed, and how many of its cgroup directories are read.
const LISTED_MAX: usize = 16_384;
const GROUPS_MAX: usize = 1024;
/// How many threads of a process are searched for one in uninterruptible sleep.
const THREADS_MAX: usize = 128;
/// How long to wait for an earlier read of the ranks, and then for this one.
const RANKS_WITHIN: Duration = Duration::from_millis(500);
/// How often to check whether the earlier read has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Open files are reported as short from this share of their limit.
const FILES_SHORT: f64 = 0.9;

/// A process, and the launch of its cgroup; `None`: it belongs to a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub pid: i32,
    pub launch: Option<u32>,
}

/// All processes of the work, in order of launches.
pub fn list(work: &Path) -> Vec<Listed> {
    let mut listed = Vec::new();
    let mut groups: Vec<_> = vec![(work.to_owned(), None)];
    let mut seen = 0;
    while let Some((group, launch)) = groups.pop() {
        seen += 1;
        if seen > GROUPS_MAX || listed.len() >= LISTED_MAX {
            break;
        }
        let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let pids = procs.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0);
        listed.extend(pids.map(|pid| Listed { pid, launch }));
        for entry in fs::read_dir(&group).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let own = entry.file_name().to_str().and_then(|name| name.strip_prefix("launch-")?.parse().ok());
                groups.push((entry.path(), launch.or(own)));
            }
        }
    }
    listed.truncate(LISTED_MAX);
    listed.sort_by_key(|one| (one.launch.is_none(), one.launch, one.pid));
    listed
}

/// What each process of this work does, and how many more processes there are.
pub fn read(work: &Path, listed: &[Listed], stacks: bool) -> (Vec<WireProcess>, u32) {
    let shown = &listed[..listed.len().min(PROCESSES_MAX)];
    let ranks = ranks(work, shown);
    let processes = shown.iter().zip(ranks).filter_map(|(one, rank)| {
        let mut process = process(one.pid, stacks)?;
        process.launch = one.launch;
        match rank {
            Ok(rank) => process.rank = rank,
            Err(why) => process.notes.push(why.to_owned()),
        }
        Some(process)
    });
    (processes.collect(), u32::try_from(listed.len() - shown.len()).unwrap_or(u32::MAX))
}

/// The processes' ranks, from their environments. Reading one waits for the process's memory lock,
/// which a thread that waits for a disk may hold.
pub fn ranks(work: &Path, listed: &[Listed]) -> Vec<Result<Option<u32>, &'static str>> {
    let waits = "its rank is unknown: an earlier read of the ranks still waits";
    let Some(question) = Question::begin(work, RANKS_WITHIN) else { return listed.iter().map(|_| Err(waits)).collect() };
    let pids: Vec<i32> = listed.iter().map(|one| one.pid).collect();
    let (out, ranks) = std::sync::mpsc::channel();
    let asked = OF_RANKS.ask(RANKS_WITHIN, move || {
        let _question = question;
        for pid in pids {
            let environ = text_of(&format!("/proc/{pid}/environ"));
            let rank = environ.and_then(|text| text.split('\0').find_map(|v| v.strip_prefix("LATTICE_RANK=")?.parse().ok()));
            if out.send(rank).is_err() {
                return;
            }
        }
    });
    let unknown = match asked {
        Asked::Answered(()) => "it has ended",
        Asked::Silent => "its rank is unknown: its memory cannot be read now",
        Asked::TooMany => "its rank is unknown: too many reads on this node still wait",
    };
    let mut known = ranks.try_iter();
    listed.iter().map(|_| known.next().ok_or(unknown)).collect()
}

/// The work whose ranks a helper thread is reading now. With one reader for each work, repeated
/// requests leave at most one blocked thread.
static ASKED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// An entry of [`ASKED`], until it is dropped.
struct Question(PathBuf);

impl Question {
    /// Waits for the previous read, at most `within`; `None`: that read has not ended.
    fn begin(work: &Path, within: Duration) -> Option<Self> {
        let until = Instant::now() + within;
        while !ASKED.lock().insert(work.to_owned()) {
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Some(Self(work.to_owned()))
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        ASKED.lock().remove(&self.0);
    }
}

fn process(pid: i32, stacks: bool) -> Option<WireProcess> {
    let stat = text_of(&format!("/proc/{pid}/stat"))?;
    let (name, fields) = stat_fields(&stat)?;
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let (of, state) = waiting_thread(pid, fields.first()?);
    let (wchan, kernel, mut notes) = waits(pid, of, stacks);
    if state == "D" {
        notes.push(blocked_on(pid, of).unwrap_or_else(|| "waits uninterruptibly; the file is unknown".to_owned()));
    }
    let (open_files, open_files_max) = files(pid);
    if let (Some(open), Some(most)) = (open_files, open_files_max)
        && open as f64 >= most as f64 * FILES_SHORT
    {
        notes.push(format!("{open} of {most} open files: raise `ulimit -n`, or close some"));
    }
    Some(WireProcess {
        pid,
        launch: None,
        rank: None,
        name: plain(name),
        state: plain(&state),
        threads: fields.get(17).and_then(|text| text.parse().ok()).unwrap_or(1),
        wchan: plain(&wchan),
        off_cpu_ms: if state == "R" { None } else { off_cpu_ms(pid, of) },
        // User and system time.
        cpu_seconds: (ticks(11) + ticks(12)) / lattice_telemetry::procfs::TICKS_PER_SECOND,
        memory_bytes: resident_bytes(pid),
        open_files,
        open_files_max,
        stack: kernel,
        notes: notes.iter().map(|note| plain(note)).collect(),
    })
}

/// The name, and the fields from the state on. The name may contain any character.
pub fn stat_fields(stat: &str) -> Option<(&str, Vec<&str>)> {
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    Some((stat.get(open + 1..close)?, stat.get(close + 1..)?.split_ascii_whitespace().collect()))
}

/// The thread to examine and its state: one in uninterruptible sleep, or else the first.
fn waiting_thread(pid: i32, state: &str) -> (i32, String) {
    if state == "D" {
        return (pid, state.to_owned());
    }
    let waiting = states(pid).find(|(_, state)| state == "D");
    waiting.unwrap_or_else(|| (pid, state.to_owned()))
}

/// The states of a process's threads, as the kernel's letters.
pub fn threads(pid: i32) -> impl Iterator<Item = String> {
    states(pid).map(|(_, state)| state)
}

fn states(pid: i32) -> impl Iterator<Item = (i32, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(THREADS_MAX);
    threads.filter_map(move |entry| {
        let thread = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let stat = text_of(&format!("/proc/{pid}/task/{thread}/stat"))?;
        Some((thread, (*stat_fields(&stat)?.1.first()?).to_owned()))
    })
}

/// The resident memory in bytes.
pub fn resident_bytes(pid: i32) -> u64 {
    let status = text_of(&format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// The kernel function in which a thread waits, its kernel stack, and notes about what cannot be
/// read.
fn waits(pid: i32, thread: i32, stacks: bool) -> (String, Vec<String>, Vec<String>) {
    let mut notes = Vec::new();
    let wchan = fs::read_to_string(format!("/proc/{pid}/task/{thread}/wchan"));
    let wchan = wchan.ok().filter(|name| name != "0").unwrap_or_default();
    if !stacks {
        return (wchan, Vec::new(), notes);
    }
    match fs::read_to_string(format!("/proc/{pid}/task/{thread}/stack")) {
        Ok(stack) => (wchan, names(&stack), notes),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            notes.push("only root can read its kernel stack, and this agent is not root".to_owned());
            (wchan, Vec::new(), notes)
        }
        Err(error) => {
            notes.push(format!("its kernel stack cannot be read: {error}"));
            (wchan, Vec::new(), notes)
        }
    }
}

/// `[<0>] do_wait+0x62/0x200 [module]` → `do_wait`.
fn names(stack: &str) -> Vec<String> {
    let name = |line: &str| {
        let call = line.trim().split_once("] ").map_or(line.trim(), |(_, call)| call);
        let name = call.split(['+', ' ']).next().unwrap_or_default();
        // For a call without a name the kernel prints the address.
        let plain_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        plain_name.then(|| plain(name))
    };
    stack.lines().filter_map(name).take(STACK_MAX).collect()
}

/// How long ago a thread last ran, if the kernel reports it. The scheduler's clock stops while an
/// interrupt or another virtual machine has the processor, so over a machine's life it falls days
/// behind. Therefore the time is taken relative to this thread, which runs now; clocks of different
/// processors differ a little.
fn off_cpu_ms(pid: i32, thread: i32) -> Option<u64> {
    let ran_ms = |of: &str| -> Option<f64> {
        let sched = text_of(&format!("/proc/{of}/sched"))?;
        let line = sched.lines().find_map(|line| line.strip_prefix("se.exec_start"))?;
        line.split(':').nth(1)?.trim().parse().ok()
    };
    let then_ms = ran_ms(&format!("{pid}/task/{thread}"))?;
    Some((ran_ms("thread-self")? - then_ms).max(0.0) as u64)
}

/// The number of open files, and its limit.
fn files(pid: i32) -> (Option<u64>, Option<u64>) {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|entries| entries.count() as u64);
    let limits = text_of(&format!("/proc/{pid}/limits")).unwrap_or_default();
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_ascii_whitespace().next()?.parse().ok());
    (open, most)
}

/// System calls whose first argument is a descriptor.
const ON_A_FILE: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_getdents64,
    libc::SYS_flock,
    libc::SYS_close,
];

/// The file and the mount that a thread waits for. Reads only kernel data, and does not touch the
/// file or the mount.
fn blocked_on(pid: i32, thread: i32) -> Option<String> {
    let syscall = text_of(&format!("/proc/{pid}/task/{thread}/syscall"))?;
    let descriptor = descriptor(&syscall)?;
    let file = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    let mounts = text_of(&format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let mount = mount_of(&mounts, &file).map(|mount| format!(" on {mount}")).unwrap_or_default();
    Some(format!("waits uninterruptibly for {}{mount}", file.display()))
}

fn descriptor(syscall: &str) -> Option<u32> {
    let mut words = syscall.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let first = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    ON_A_FILE.contains(&number).then(|| u32::try_from(first).ok()).flatten()
}

/// The innermost mount of a path, with its type.
fn mount_of(mountinfo: &str, file: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (before, behind) = line.split_once(" - ")?;
        let at = lattice_runtime::cgroup::unescape(before.split(' ').nth(4)?);
        let kind = behind.split(' ').next()?.to_owned();
        file.starts_with(&at).then_some((at, kind))
    };
    // Of several mounts at one path, only the last is visible.
    let (at, kind) = mountinfo.lines().filter_map(mount).max_by_key(|(at, _)| at.len())?;
    Some(format!("{at} ({kind})"))
}

/// The pressure (PSI) on the work, as the kernel averages it.
pub fn pressure(work: &Path) -> Vec<WireFact> {
    let of = |resource: &str| {
        let text = text_of(&work.join(format!("{resource}.pressure")).to_string_lossy())?;
        let some = text.lines().find(|line| line.starts_with("some "))?;
        let average = |name: &str| some.split(' ').find_map(|word| word.strip_prefix(name)?.parse::<f64>().ok());
        let (ten, sixty) = (average("avg10=")?, average("avg60=")?);
        let text = format!("some thread waited for {resource} in {ten:.1} % of the last 10 s, {sixty:.1} % of the last minute");
        Some(fact("work", &format!("pressure {resource}"), "cgroup2", text, ten > 50.0))
    };
    ["cpu", "memory", "io"].into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_consists_of_function_names() {
        let stack =
            "[<0>] do_wait+0x62/0x200\n[<0>] nfs_wait_bit_killable+0x1c/0x80 [nfs]\n[<0>] 0xffffffffc0de\n[<0>] do_syscall_64+0x3d\n";
        assert_eq!(names(stack), ["do_wait", "nfs_wait_bit_killable", "do_syscall_64"]);
        assert_eq!(names(&"[<0>] a+0x1/0x2\n".repeat(100)).len(), STACK_MAX);
    }

    #[test]
    fn a_process_name_may_contain_any_character() {
        let stat = "12 (a) R b (x)) D 1 12 12 0 -1 0 5 0 0 0 150 50 0 0 20 0 3 0";
        let (name, fields) = stat_fields(stat).unwrap();
        assert_eq!((name, fields[0], fields[11], fields[12], fields[17]), ("a) R b (x)", "D", "150", "50", "3"));
        assert_eq!(stat_fields("12 a"), None);
    }

    #[test]
    fn the_awaited_file_and_its_mount_are_found() {
        let read = libc::SYS_read;
        assert_eq!(descriptor(&format!("{read} 0x3 0x7f00 0x10 0x0 0x0 0x0 0x7f 0x55")), Some(3));
        assert_eq!(descriptor("running"), None);
        assert_eq!(descriptor(&format!("{} 0x3 0x0", libc::SYS_openat)), None);
        let mounts =
            "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:5 / /data\\040x rw - nfs4 s:/x rw\n23 22 0:6 / /data\\040x/in rw - fuse f rw\n";
        let on = |path: &str| mount_of(mounts, Path::new(path));
        assert_eq!(on("/data x/file").as_deref(), Some("/data x (nfs4)"));
        assert_eq!(on("/data x/in/file").as_deref(), Some("/data x/in (fuse)"));
        assert_eq!(on("/data xy").as_deref(), Some("/ (ext4)"));
        assert_eq!(on("socket:[5]"), None);
    }

    #[test]
    fn a_work_has_one_reader_at_a_time() {
        let (work, other) = (Path::new("/sys/fs/cgroup/one/work"), Path::new("/sys/fs/cgroup/other/work"));
        let first = Question::begin(work, Duration::ZERO).unwrap();
        assert!(Question::begin(work, Duration::from_millis(20)).is_none() && Question::begin(other, Duration::ZERO).is_some());
        drop(first);
        assert!(Question::begin(work, Duration::ZERO).is_some());
    }

    #[test]
    fn this_process_is_described() {
        let me = i32::try_from(std::process::id()).unwrap();
        let process = process(me, false).unwrap();
        assert!(process.memory_bytes > 0 && process.threads >= 1 && process.open_files.unwrap() > 0, "{process:?}");
        assert!(process.open_files_max.is_some());
    }

    /// A directory that looks like a work's cgroup.
    struct Work(PathBuf);

    impl Work {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let path = std::env::temp_dir().join(format!("lattice-diag-{name}-{}", std::process::id()));
            let _old = fs::remove_dir_all(&path);
            for (file, text) in files {
                let file = path.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Self(path)
        }
    }

    impl Drop for Work {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn processes_are_listed_by_launch_and_those_of_terminals_last() {
        let work = Work::new(
            "list",
            &[
                ("cgroup.procs", "30\n0\nx\n"),
                ("launch-10/cgroup.procs", "12\n"),
                ("launch-2/rank-0/cgroup.procs", "21\n20\n"),
                ("launch-2/launch-7/cgroup.procs", "22\n"),
                ("attach-5/cgroup.procs", "5\n"),
                ("launch-x/cgroup.procs", "6\n"),
            ],
        );
        let of = |launch, pids: &[i32]| pids.iter().map(move |pid| Listed { pid: *pid, launch }).collect::<Vec<_>>();
        assert_eq!(list(&work.0), [of(Some(2), &[20, 21, 22]), of(Some(10), &[12]), of(None, &[5, 6, 30])].concat());
        assert_eq!(list(&work.0.join("gone")), []);
    }

    #[test]
    fn processes_beyond_the_limit_of_an_answer_are_counted() {
        let procs: String = (1..=LISTED_MAX + 5).map(|pid| format!("{pid}\n")).collect();
        let work = Work::new("many", &[("cgroup.procs", &procs)]);
        let listed = list(&work.0);
        assert_eq!(listed.len(), LISTED_MAX);
        // No process has such a number, so none is described.
        let listed: Vec<_> = listed.into_iter().map(|one| Listed { pid: i32::MAX, ..one }).collect();
        let (processes, omitted) = read(&work.0, &listed, false);
        assert_eq!((processes, omitted as usize), (vec![], LISTED_MAX - PROCESSES_MAX));
    }

    #[test]
    fn pressure_is_reported_for_each_resource_that_the_kernel_averages() {
        let psi = |ten: &str| format!("some avg10={ten} avg60=1.25 avg300=0.00 total=1\nfull avg10=9.00 avg60=9.00 avg300=0.00 total=1\n");
        let work =
            Work::new("psi", &[("cpu.pressure", &psi("50.00")), ("io.pressure", &psi("50.01")), ("memory.pressure", "some avg10=x\n")]);
        let facts: Vec<_> = pressure(&work.0).into_iter().map(|fact| (fact.subject, fact.text, fact.problem)).collect();
        let text = |resource| format!("some thread waited for {resource} in 50.0 % of the last 10 s, 1.2 % of the last minute");
        assert_eq!(facts, [("pressure cpu".to_owned(), text("cpu"), false), ("pressure io".to_owned(), text("io"), true)]);
    }
}
