//! Where processes may run and what they may open, on the real kernel. A test that this machine cannot run counts as
//! ignored, or fails with `LATTICE_TEST_REQUIRE_ALL=1`.

use lattice_model::{AllocationId, RankOutcome};
use lattice_runtime::binding::{Binding, Memory};
use lattice_runtime::cgroup::controllers::{Controller, Controllers, open_v1_procs};
use lattice_runtime::cgroup::limits::Limits;
use lattice_runtime::cgroup::{Scope, Slice, devices};
use lattice_runtime::process::{self, NotStarted, Program};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn main() {
    let arguments = Arguments::from_args();
    let numa = (!Path::new("/proc/self/numa_maps").exists()).then_some("this kernel knows no NUMA");
    let root = (!nix::unistd::geteuid().is_root()).then_some("needs root");
    let filter = root.or_else(|| Slice::find(Path::new("lattice-test")).is_err().then_some("needs a cgroup v2 tree"));
    if let Some(group) = std::env::var_os(MAKER) {
        // Runs in a second process of this program, which installs the filter and exits.
        devices::keep_out(&Scope::at(group.into()).work(), &[(MAJOR, 1)].into()).unwrap();
        return;
    }
    let trials = vec![
        trial("a_program_runs_on_its_processors_alone", None, processors),
        trial("a_program_takes_memory_by_its_policy", numa, memory),
        trial("processors_that_are_not_there_are_no_start", None, nowhere),
        trial("a_filtered_device_is_opened_outside_and_not_inside", filter, filtered),
        trial("a_filter_outlives_its_maker", filter, outlives),
        trial("version_1_keeps_devices_away_too", root.or_else(no_v1_devices), version_1),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(name: &str, missing: Option<&'static str>, test: fn() -> Result<(), Failed>) -> Trial {
    match missing {
        None => Trial::test(name, test),
        Some(why) if std::env::var_os("LATTICE_TEST_REQUIRE_ALL").is_some() => Trial::test(name, move || Err(why.into())),
        Some(why) => Trial::test(name, test).with_kind(why).with_ignored_flag(true),
    }
}

/// Runs a program with this binding to its end: how it ended and what it wrote.
fn run(argv: &[&str], binding: &Binding) -> Result<(RankOutcome, String), NotStarted> {
    run_in(argv, binding, None)
}

fn run_in(argv: &[&str], binding: &Binding, cgroup: Option<&OwnedFd>) -> Result<(RankOutcome, String), NotStarted> {
    run_with(argv, binding, cgroup, &[])
}

fn run_with(argv: &[&str], binding: &Binding, cgroup: Option<&OwnedFd>, v1: &[OwnedFd]) -> Result<(RankOutcome, String), NotStarted> {
    let path = std::env::temp_dir().join(format!("lattice-placement-{}-{:?}", std::process::id(), std::thread::current().id()));
    let out = File::options().create(true).append(true).open(&path).unwrap();
    let null = File::open("/dev/null").unwrap();
    let argv: Vec<String> = argv.iter().map(|a| (*a).to_owned()).collect();
    let (pid, pidfd) = process::spawn_loaded(&Program {
        argv: &argv,
        env: &[],
        pid_variable: None,
        shared_env: None,
        working_dir: Path::new("/"),
        user: None,
        stdin: null.as_fd(),
        stdout: out.as_fd(),
        stderr: out.as_fd(),
        inherit: &[],
        cgroup: cgroup.map(AsFd::as_fd),
        v1_groups: &v1.iter().map(AsFd::as_fd).collect::<Vec<_>>(),
        open_files: None,
        binding: Some(binding),
        terminal: false,
    })?;
    let outcome = loop {
        nix::poll::poll(&mut [nix::poll::PollFd::new(pidfd.as_fd(), nix::poll::PollFlags::POLLIN)], nix::poll::PollTimeout::NONE).unwrap();
        if let Some(outcome) = process::reap(pid).unwrap() {
            break outcome;
        }
    };
    let text = fs::read_to_string(&path).unwrap();
    let _ = fs::remove_file(&path);
    Ok((outcome, text))
}

/// The processors on which this process may run.
fn ours() -> BTreeSet<u32> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    (0u32..).take(nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu as usize).unwrap_or(false)).collect()
}

fn processors() -> Result<(), Failed> {
    for cpu in ours().into_iter().take(4) {
        let binding = Binding::new(&BTreeSet::from([cpu]), None);
        let (outcome, text) = run(&["grep", "Cpus_allowed_list", "/proc/self/status"], &binding)?;
        assert_eq!((outcome, text.as_str()), (RankOutcome::Exited { code: 0 }, format!("Cpus_allowed_list:\t{cpu}\n").as_str()));
    }
    Ok(())
}

fn memory() -> Result<(), Failed> {
    let node = BTreeSet::from([0]);
    for (memory, shown) in
        [(Memory::Bind(node.clone()), "bind"), (Memory::Interleave(node), "interleave"), (Memory::Preferred(0), "prefer")]
    {
        let binding = Binding::new(&BTreeSet::new(), Some(&memory));
        let (_, text) = run(&["cat", "/proc/self/numa_maps"], &binding)?;
        assert!(text.lines().any(|line| line.split(' ').nth(1).is_some_and(|p| p.starts_with(shown))), "{shown}: {text}");
    }
    Ok(())
}

fn nowhere() -> Result<(), Failed> {
    match run(&["true"], &Binding::new(&BTreeSet::from([65_000]), None)) {
        Err(NotStarted { code: 126, why }) if why.contains("processors") => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

/// Set for the process that only makes a filter.
const MAKER: &str = "LATTICE_TEST_MAKES_FILTER";
/// A number for local and experimental use, without a driver.
const MAJOR: u32 = 240;

/// Two devices without a driver, in a directory and with their own cgroup; all removed on drop.
struct Devices {
    folder: PathBuf,
    slice: Slice,
    scope: Scope,
}

impl Devices {
    fn new(name: &str) -> Self {
        let name = format!("lattice-placement-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(&folder).unwrap();
        for minor in [1, 2] {
            let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
            let device = nix::sys::stat::makedev(MAJOR.into(), minor);
            nix::sys::stat::mknod(&folder.join(minor.to_string()), nix::sys::stat::SFlag::S_IFCHR, mode, device).unwrap();
        }
        let slice = Slice::find(Path::new(&name)).unwrap();
        let scope = Scope::at(slice.path().join("scope"));
        scope.launch(1).create().unwrap();
        Self { folder, slice, scope }
    }

    /// The result of opening a device, by a process born in the cgroup below the filter, or outside.
    fn open(&self, minor: u32, inside: bool) -> String {
        let path = self.folder.join(minor.to_string());
        let directory = inside.then(|| self.scope.launch(1).open_dir().unwrap());
        let (_, text) = run_in(&["dd", &format!("if={}", path.display()), "count=0"], &Binding::default(), directory.as_ref()).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        let _ = self.scope.whole().remove();
        let _ = self.slice.remove();
    }
}

const ALLOWED: &str = "No such device or address";
const DENIED: &str = "Operation not permitted";

fn filtered() -> Result<(), Failed> {
    let devices = Devices::new("filter");
    assert!(devices.open(1, true).contains(ALLOWED), "{}", devices.open(1, true));
    assert_eq!(devices::attached(&devices.scope.work())?, 0);
    devices::keep_out(&devices.scope.work(), &[(MAJOR, 1)].into())?;
    for (minor, inside, expected) in [(1, true, DENIED), (2, true, ALLOWED), (1, false, ALLOWED), (2, false, ALLOWED)] {
        assert!(devices.open(minor, inside).contains(expected), "{minor} {inside}: {}", devices.open(minor, inside));
    }
    // A new list replaces the first one.
    devices::keep_out(&devices.scope.work(), &[(MAJOR, 2)].into())?;
    assert!(devices.open(1, true).contains(ALLOWED) && devices.open(2, true).contains(DENIED));
    assert_eq!(devices::attached(&devices.scope.work())?, 1);
    // The device cannot be made inside either.
    let made = devices.folder.join("made");
    let directory = devices.scope.work().open_dir()?;
    let (outcome, text) = run_in(&["mknod", &made.display().to_string(), "c", "240", "2"], &Binding::default(), Some(&directory))?;
    assert!(outcome != RankOutcome::Exited { code: 0 } && text.contains(DENIED), "{text}");
    Ok(())
}

fn no_v1_devices() -> Option<&'static str> {
    let there = fs::read_to_string("/proc/self/cgroup").is_ok_and(|t| t.lines().any(|l| l.split(':').nth(1) == Some("devices")));
    (!there).then_some("needs the devices hierarchy of cgroup version 1")
}

fn version_1() -> Result<(), Failed> {
    let devices = Devices::new("v1");
    let root = PathBuf::from(devices.folder.file_name().unwrap());
    let controllers = Controllers::find(&root, None, Path::new(""), &[Controller::Devices].into());
    let allocation = AllocationId(uuid::Uuid::new_v4());
    let limits = Limits { denied_devices: [(MAJOR, 1)].into(), ..Limits::default() };
    let groups = controllers.set(allocation, None, &limits)?;
    let output = |minor: u32| -> Result<String, Failed> {
        let procs = groups.iter().map(|g| open_v1_procs(g)).collect::<Result<Vec<_>, _>>()?;
        let path = devices.folder.join(minor.to_string());
        Ok(run_with(&["dd", &format!("if={}", path.display()), "count=0"], &Binding::default(), None, &procs)?.1)
    };
    let (denied, allowed) = (output(1), output(2));
    controllers.remove(allocation, Duration::from_secs(60))?;
    controllers.remove_roots();
    let (denied, allowed) = (denied?, allowed?);
    assert!(denied.contains(DENIED) && allowed.contains(ALLOWED), "{denied} {allowed}");
    Ok(())
}

fn outlives() -> Result<(), Failed> {
    let devices = Devices::new("outlives");
    let maker = std::process::Command::new(std::env::current_exe()?).env(MAKER, devices.scope.path()).status()?;
    assert!(maker.success());
    assert!(devices.open(1, true).contains(DENIED) && devices.open(1, false).contains(ALLOWED));
    Ok(())
}
