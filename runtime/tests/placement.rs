//! Where processes may run, against the real kernel. What this machine has not counts as ignored, or fails with
//! `LATTICE_TEST_REQUIRE_ALL=1`.

use lattice_model::RankOutcome;
use lattice_runtime::binding::{Binding, Memory};
use lattice_runtime::process::{self, NotStarted, Program};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

fn main() {
    let arguments = Arguments::from_args();
    let numa = (!Path::new("/proc/self/numa_maps").exists()).then_some("this kernel knows no NUMA");
    let trials = vec![
        trial("a_program_runs_on_its_processors_alone", None, processors),
        trial("a_program_takes_memory_by_its_policy", numa, memory),
        trial("processors_that_are_not_there_are_no_start", None, nowhere),
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

/// Runs a program bound so to its end: how it ended and what it wrote.
fn run(argv: &[&str], binding: &Binding) -> Result<(RankOutcome, String), NotStarted> {
    let path = std::env::temp_dir().join(format!("lattice-placement-{}-{:?}", std::process::id(), std::thread::current().id()));
    let out = File::options().create(true).append(true).open(&path).unwrap();
    let null = File::open("/dev/null").unwrap();
    let argv: Vec<String> = argv.iter().map(|a| (*a).to_owned()).collect();
    let (pid, pidfd) = process::spawn_loaded(&Program {
        argv: &argv,
        env: &[],
        working_dir: Path::new("/"),
        user: None,
        stdin: null.as_fd(),
        stdout: out.as_fd(),
        stderr: out.as_fd(),
        inherit: &[],
        cgroup: None,
        v1_groups: &[],
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

/// Those on which this process may run.
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
