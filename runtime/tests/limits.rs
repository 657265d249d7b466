//! Limits on the real kernel: they hold for real processes. The same program runs on a hybrid machine, and in a guest
//! with all controllers in the v2 tree (`lab/guest`). A test without its controller counts as ignored, or fails with
//! `LATTICE_TEST_REQUIRE_ALL=1`; memory under version 1 is excepted, because other software may use it.

use lattice_model::{AllocationId, RankOutcome};
use lattice_runtime::cgroup::controllers::{Controller, Controllers, V1Group, open_v1_procs};
use lattice_runtime::cgroup::limits::{IndexSet, IoLimit, LimitError, Limits};
use lattice_runtime::cgroup::place::Place;
use lattice_runtime::cgroup::{Cgroup, Scope, Slice};
use lattice_runtime::process::{self, Program};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn main() {
    // Set by `hog` below: this program is then the work that uses memory.
    if let Some(mebibytes) = std::env::var_os("LATTICE_TEST_HOG").and_then(|m| m.to_str()?.parse::<usize>().ok()) {
        hog(mebibytes);
        return;
    }
    let arguments = Arguments::from_args();
    let root = (!nix::unistd::geteuid().is_root()).then_some("needs root");
    let bed = root.is_none().then(Bed::new);
    let needs = |controller: Controller| match &bed {
        None => root,
        Some(bed) if bed.controllers.place(controller).is_some() => None,
        Some(_) => Some("no such controller here"),
    };
    let mut trials = vec![
        trial("cpu_quota_holds", needs(Controller::Cpu), cpu_quota),
        trial("cpuset_holds", needs(Controller::Cpuset), cpuset),
        trial("pids_limit_stops_a_fork_bomb", needs(Controller::Pids), fork_bomb),
        trial("io_limit_is_taken", needs(Controller::Io), io_limit),
        trial("disk_weight_is_taken", needs(Controller::Io), io_weight),
        trial("what_cannot_be_is_refused", needs(Controller::Cpuset), refused),
        trial("what_is_not_there_is_refused_by_name", root, unavailable),
        trial("all_of_it_is_removed_again", needs(Controller::Pids), removed),
    ];
    let memory = needs(Controller::Memory);
    // Not a failure: memory under version 1 is not touched, and these tests run in the guest.
    let memory_left_alone = memory.is_some() && Path::new("/sys/fs/cgroup/memory").exists();
    let name = "memory_limit_kills_the_launch_whole";
    trials.push(if memory_left_alone {
        Trial::test(name, memory_limit).with_kind("memory under version 1 is left alone here; the guest has it").with_ignored_flag(true)
    } else {
        trial(name, memory, memory_limit)
    });
    drop(bed);
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(name: &str, missing: Option<&'static str>, test: fn() -> Result<(), Failed>) -> Trial {
    match missing {
        None => Trial::test(name, test),
        Some(why) if std::env::var_os("LATTICE_TEST_REQUIRE_ALL").is_some() => Trial::test(name, move || Err(why.into())),
        Some(why) => Trial::test(name, test).with_kind(why).with_ignored_flag(true),
    }
}

/// The controllers of a machine that is all ours.
struct Bed {
    slice: Slice,
    controllers: Controllers,
    root: PathBuf,
}

impl Bed {
    fn new() -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self::at(format!("lattice-limits-{}-{count}/work.slice", std::process::id()).into())
    }

    fn at(root: PathBuf) -> Self {
        let slice = Slice::find(&root).unwrap();
        // Memory only if no other software uses it: a whole v2 tree, or a guest.
        let mut v1 = BTreeSet::from([Controller::Cpu, Controller::Cpuset, Controller::Pids, Controller::Io]);
        if std::env::var_os("LATTICE_TEST_V1_MEMORY").is_some() {
            v1.insert(Controller::Memory);
        }
        let controllers = Controllers::find(&root, Some(&slice), Path::new("/"), &v1);
        Self { slice, controllers, root }
    }

    fn work(&self, limits: &Limits) -> Result<Work, LimitError> {
        let id = AllocationId(uuid::Uuid::new_v4());
        let scope = self.slice.create_scope(id).unwrap();
        let groups = self.controllers.set(id, Some(&scope), limits)?;
        scope.launch(1).create().unwrap();
        scope.launch(1).kill_whole_on_oom().unwrap();
        let groups = groups.iter().map(|g| open_v1_procs(g).unwrap()).collect();
        Ok(Work { id, scope, groups })
    }

    fn is_v2(&self, controller: Controller) -> bool {
        self.controllers.place(controller) == Some(&Place::V2)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for (id, scope) in self.slice.scopes().unwrap_or_default() {
            let _ = scope.whole().kill();
            let _ = scope.whole().wait_empty(Duration::from_secs(60));
            let _ = scope.whole().remove();
            let _ = self.controllers.remove(id, Duration::from_secs(60));
        }
        self.controllers.remove_roots();
        let _ = self.slice.remove();
        let top = self.root.parent().unwrap();
        let _ = Slice::find(top).and_then(|s| s.remove());
        for tree in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let _ = fs::remove_dir(tree.path().join(top));
        }
    }
}

/// A program that runs.
struct Started {
    pid: i32,
    pidfd: OwnedFd,
}

struct Work {
    id: AllocationId,
    scope: Scope,
    groups: Vec<OwnedFd>,
}

impl Work {
    fn start(&self, argv: &[&str], env: &[(&str, &str)], out: &File) -> Started {
        self.start_in(&self.scope.launch(1), argv, env, out)
    }

    fn start_in(&self, group: &Cgroup, argv: &[&str], env: &[(&str, &str)], out: &File) -> Started {
        let (null, dir) = (File::open("/dev/null").unwrap(), group.open_dir().unwrap());
        let argv: Vec<String> = argv.iter().map(|a| (*a).to_owned()).collect();
        let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let groups: Vec<_> = self.groups.iter().map(AsFd::as_fd).collect();
        let (pid, pidfd) = process::spawn_loaded(&Program {
            argv: &argv,
            env: &env,
            pid_variable: None,
            shared_env: None,
            working_dir: Path::new("/"),
            user: None,
            stdin: null.as_fd(),
            stdout: out.as_fd(),
            stderr: out.as_fd(),
            inherit: &[],
            cgroup: Some(dir.as_fd()),
            v1_groups: &groups,
            open_files: None,
            binding: None,
            terminal: false,
        })
        .unwrap();
        Started { pid, pidfd }
    }

    /// Runs a program to its end: how it ended, and what it wrote.
    fn run(&self, argv: &[&str], env: &[(&str, &str)]) -> (RankOutcome, String) {
        let path = std::env::temp_dir().join(format!("lattice-limits-out-{}", self.id));
        let child = self.start(argv, env, &File::create(&path).unwrap());
        wait(&child);
        let outcome = process::reap(child.pid).unwrap().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        (outcome, text)
    }
}

fn wait(child: &Started) {
    let mut fds = [nix::poll::PollFd::new(child.pidfd.as_fd(), nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE).unwrap();
}

/// Milliseconds of processor time that the work used: the v2 tree counts them, with or without controllers.
fn used_ms(work: &Work) -> u64 {
    let stat = fs::read_to_string(work.scope.work().path().join("cpu.stat")).unwrap();
    stat.lines().find_map(|l| l.strip_prefix("usage_usec ")?.parse::<u64>().ok()).unwrap() / 1000
}

/// A quota of half a processor holds for any number of processes.
fn cpu_quota() -> Result<(), Failed> {
    let bed = Bed::new();
    let work = bed.work(&Limits { cpu_quota: Some(500), cpu_weight: Some(50), ..Limits::default() })?;
    let begun = Instant::now();
    let null = File::options().write(true).open("/dev/null")?;
    let spin = "i=0; while :; do i=$((i+1)); done";
    let children: Vec<_> = (0..3).map(|_| work.start(&["sh", "-c", spin], &[("PATH", "/usr/bin:/bin")], &null)).collect();
    // At first the work may use one period of 100 ms more than its quota. While a host has stopped a processor of a
    // virtual machine, that time is charged to the process there; the next periods give it back.
    let most = |wall: u64| wall / 2 + 150;
    let (mut used, mut wall) = (0, 0);
    while wall < 2000 || (used > most(wall) && wall < 20_000) {
        std::thread::sleep(Duration::from_millis(100));
        (used, wall) = (used_ms(&work), u64::try_from(begun.elapsed().as_millis())?);
    }
    work.scope.work().kill()?;
    for child in &children {
        wait(child);
        process::reap(child.pid)?;
    }
    assert!(used <= most(wall), "{used} ms of processor time in {wall} ms under a quota of one half");
    // A busy machine gives less.
    assert!(used >= wall / 20, "{used} ms of processor time in {wall} ms: it hardly ran");
    Ok(())
}

/// Work with one processor runs on that one.
fn cpuset() -> Result<(), Failed> {
    let bed = Bed::new();
    let all: IndexSet = allowed("Cpus_allowed_list", "self").parse()?;
    let last: IndexSet = all.0.iter().last().copied().into_iter().collect();
    let work = bed.work(&Limits { cpus: Some(last.clone()), memory_nodes: Some("0".parse()?), ..Limits::default() })?;
    let (outcome, text) = work.run(&["grep", "-h", "_allowed_list", "/proc/self/status"], &[("PATH", "/usr/bin:/bin")]);
    assert_eq!(outcome, RankOutcome::Exited { code: 0 });
    assert_eq!(text, format!("Cpus_allowed_list:\t{last}\nMems_allowed_list:\t0\n"));
    assert_eq!(allowed("Cpus_allowed_list", "self").parse(), Ok(all), "we are where we were");
    Ok(())
}

fn allowed(key: &str, pid: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(":\t")).unwrap().to_owned()
}

/// A program that forks for ever reaches its limit, does not disturb the machine, and is ended by one
/// kill.
fn fork_bomb() -> Result<(), Failed> {
    let bed = Bed::new();
    let work = bed.work(&Limits { pids: Some(40), ..Limits::default() })?;
    let null = File::options().write(true).open("/dev/null")?;
    let child = work.start(&["sh", "-c", "b() { b | b & }; b; b; sleep 1000"], &[("PATH", "/usr/bin:/bin")], &null);
    let refusals = || {
        let groups = bed.controllers.v1_groups(work.id);
        let v1 = groups.iter().find(|g| g.controller() == Controller::Pids).map(|g| g.path());
        let events = fs::read_to_string(v1.unwrap_or_else(|| work.scope.work().path().to_owned()).join("pids.events"));
        // If the kernel does not count refusals, the full group is the evidence.
        events.map_or_else(
            |_| u64::from(work.scope.work().processes().len() >= 40),
            |t| t.trim().trim_start_matches("max ").parse().unwrap_or(0),
        )
    };
    let until = Instant::now() + Duration::from_secs(60);
    while refusals() == 0 {
        assert!(Instant::now() < until, "it never came to its limit: {} processes", work.scope.work().processes().len());
        assert!(work.scope.work().processes().len() <= 40);
        std::thread::sleep(Duration::from_millis(5));
    }
    // We can still make processes.
    assert!(std::process::Command::new("true").status()?.success());
    work.scope.work().kill()?;
    assert!(work.scope.work().wait_empty(Duration::from_secs(60))?);
    wait(&child);
    process::reap(child.pid)?;
    Ok(())
}

/// The kernel has the device and the rate that were asked for.
fn io_limit() -> Result<(), Failed> {
    let bed = Bed::new();
    let device = fs::read_dir("/dev")?.flatten().find_map(|e| {
        let about = e.metadata().ok().filter(|m| m.file_type().is_block_device())?;
        // Only whole devices have limits.
        let device = (libc::major(about.rdev()), libc::minor(about.rdev()));
        let whole = format!("/sys/dev/block/{}:{}", device.0, device.1);
        (Path::new(&whole).exists() && !Path::new(&whole).join("partition").exists()).then_some(device)
    });
    let device = device.ok_or("no block device to try it on")?;
    let limit = IoLimit { device, read_bytes_per_second: Some(10 << 20), write_bytes_per_second: Some(5 << 20) };
    bed.work(&Limits { io: vec![limit], ..Limits::default() })?;
    let nowhere = IoLimit { device: (4095, 0), ..limit };
    assert!(matches!(bed.work(&Limits { io: vec![nowhere], ..Limits::default() }), Err(LimitError::Refused { .. })));
    Ok(())
}

fn io_weight() -> Result<(), Failed> {
    let bed = Bed::new();
    let limits = Limits { io_weight: Some(2500), ..Limits::default() };
    let weights = bed.controllers.io_weights();
    if weights.is_empty() {
        // The missing controller is reported, and a request for it is refused.
        assert!(matches!(bed.work(&limits), Err(LimitError::Unavailable { controller: Controller::Io, .. })));
        return Ok(());
    }
    let work = bed.work(&limits)?;
    let group = match bed.controllers.v1_groups(work.id).into_iter().find(|g| g.controller() == Controller::Io) {
        Some(group) => group.path(),
        None => work.scope.work().path().to_owned(),
    };
    for weight in weights {
        let got = fs::read_to_string(group.join(weight.file))?;
        assert!(got.split_whitespace().any(|part| part == weight.value(2500).to_string()), "{}: {got}", weight.file);
    }
    Ok(())
}

/// A limit that the kernel does not accept is an error.
fn refused() -> Result<(), Failed> {
    let bed = Bed::new();
    let none = Limits { cpus: Some("60000".parse()?), ..Limits::default() };
    match bed.work(&none) {
        Err(LimitError::Refused { wanted, .. } | LimitError::NotTaken { wanted, .. }) => assert_eq!(wanted, "60000"),
        Ok(_) => return Err("a processor that is not there was taken".into()),
        Err(other) => return Err(other.to_string().into()),
    }
    Ok(())
}

/// Without a controller, a limit is refused and says what is missing.
fn unavailable() -> Result<(), Failed> {
    let root = PathBuf::from(format!("lattice-none-{}.slice", std::process::id()));
    let controllers = Controllers::find(&root, None, Path::new(""), &BTreeSet::new());
    let limits = Limits { pids: Some(10), ..Limits::default() };
    let id = AllocationId(uuid::Uuid::new_v4());
    match controllers.set(id, None, &limits) {
        Err(LimitError::Unavailable { controller: Controller::Pids, why }) => assert!(!why.is_empty()),
        other => return Err(format!("{other:?}").into()),
    }
    assert_eq!(controllers.set(id, None, &Limits::default())?, Vec::<PathBuf>::new());
    Ok(())
}

/// Living processes are killed, and nothing is left of the allocation in any tree.
fn removed() -> Result<(), Failed> {
    let bed = Bed::new();
    let work = bed.work(&Limits { pids: Some(40), cpu_weight: Some(100), ..Limits::default() })?;
    let null = File::options().write(true).open("/dev/null")?;
    let child = work.start(&["sleep", "1000"], &[("PATH", "/usr/bin:/bin")], &null);
    let limited = |group: &V1Group| matches!(group.controller(), Controller::Cpu | Controller::Pids);
    let (groups, others): (Vec<_>, Vec<_>) = bed.controllers.v1_groups(work.id).into_iter().partition(limited);
    assert!(others.iter().all(|g| !g.path().exists()), "what is not limited costs nothing");
    for group in &groups {
        let there = fs::read_to_string(group.path().join("cgroup.procs"))?;
        assert_eq!(there.trim(), child.pid.to_string(), "it joined {} before its program began", group.path().display());
    }
    assert!(groups.is_empty() || bed.controllers.v1_allocations().contains(&work.id));
    let (scope, pid) = (work.scope.clone(), child.pid);
    let reaper = std::thread::spawn(move || {
        wait(&child);
        process::reap(pid).unwrap();
    });
    // Groups of version 1 end the work alone, as for an agent without a v2 tree.
    if groups.is_empty() {
        scope.whole().kill()?;
    }
    bed.controllers.remove(work.id, Duration::from_secs(60))?;
    assert!(scope.whole().wait_empty(Duration::from_secs(60))?);
    scope.whole().remove()?;
    reaper.join().unwrap();
    assert!(groups.iter().all(|g| !g.path().exists()));
    assert!(!bed.controllers.v1_allocations().contains(&work.id));
    bed.controllers.remove(work.id, Duration::ZERO)?;
    Ok(())
}

/// Memory beyond the limit ends the launch with all its processes (v2), or the process that took it (v1).
fn memory_limit() -> Result<(), Failed> {
    let bed = Bed::new();
    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    let own = std::env::current_exe()?.display().to_string();
    let within = bed.work(&limits)?;
    assert_eq!(within.run(&[&own], &[("LATTICE_TEST_HOG", "16")]).0, RankOutcome::Exited { code: 0 });
    let beyond = bed.work(&limits)?;
    let null = File::options().write(true).open("/dev/null")?;
    let bystander = beyond.start(&["sleep", "1000"], &[("PATH", "/usr/bin:/bin")], &null);
    assert_eq!(beyond.run(&[&own], &[("LATTICE_TEST_HOG", "512")]).0, RankOutcome::Signalled { signal: 9 });
    if bed.is_v2(Controller::Memory) {
        wait(&bystander);
        assert_eq!(process::reap(bystander.pid)?, Some(RankOutcome::Signalled { signal: 9 }));
        // A process beside the work, as its shim is, gets no more memory than the work.
        let beside = bed.work(&limits)?;
        let hog = beside.start_in(&beside.scope.shim(), &[&own], &[("LATTICE_TEST_HOG", "512")], &null);
        wait(&hog);
        assert_eq!(process::reap(hog.pid)?, Some(RankOutcome::Signalled { signal: 9 }));
        let events = fs::read_to_string(beyond.scope.launch(1).path().join("memory.events"))?;
        assert!(events.contains("oom_group_kill 1"), "{events}");
    } else {
        assert_eq!(process::reap(bystander.pid)?, None);
        beyond.scope.work().kill()?;
        wait(&bystander);
        process::reap(bystander.pid)?;
    }
    Ok(())
}

/// Takes memory and uses it.
fn hog(mebibytes: usize) {
    let mut held: Vec<Vec<u8>> = Vec::new();
    for i in 0..mebibytes {
        held.push((0..1 << 20).map(|b: usize| b.wrapping_add(i).to_le_bytes()[0] | 1).collect());
    }
    assert_eq!(held.len(), mebibytes);
}
