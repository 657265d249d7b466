//! The promises of the README, checked by its own command.

use crate::harness::{Folder, NOBODY, Need, alone, binaries, close, fresh_dir, lab, lab_program};
use lattice_lab::down::Guard;
use lattice_lab::process;
use libtest_mimic::Trial;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub fn trials() -> Vec<Trial> {
    vec![
        alone("demo::it_is_as_promised_within_60_s", &[Need::Mounts], demo),
        alone("demo::without_root_it_runs_visibly_degraded", &[], without_root),
        alone("demo::interrupted_it_cleans_up", &[], interrupted),
        alone("demo::the_launch_bench_prints_its_figures", &[], || bench("launch", &["--no-slurm"], 4)),
        alone("demo::the_checkpoint_bench_prints_its_figures", &[Need::Mounts], || bench("checkpoint", &["--megabytes", "8"], 9)),
        alone("demo::the_runtime_bench_prints_its_figures", &[Need::Mounts], || bench("runtime", &[], 11)),
        alone("demo::the_scale_bench_prints_its_figures", &[], scale),
    ]
}

fn demo() {
    close();
    binaries();
    let began = Instant::now();
    let done = lab(&["demo", "--no-build"], Duration::from_secs(120));
    assert_eq!(done.code(), 0, "{}\n{}", done.out(), done.err());
    assert!(done.out().contains("All of it as promised"), "{}", done.out());
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());
}

/// An ordinary user's account: no mount, no scope, no other user, and messages that say so.
fn without_root() {
    close();
    let folder = Folder::new("nobody");
    let dir = &folder.0;
    for name in ["lattice", "lattice-agent", "lattice-quorum", "lattice-shim", "lattice-pmix", "lattice-lab"] {
        std::fs::copy(binaries().dir.join(name), dir.join(name)).unwrap();
    }
    std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = Command::new(dir.join("lattice-lab"));
    command.args(["demo", "--no-build", "--dir"]).arg(dir.join("d")).uid(NOBODY).gid(NOBODY).current_dir(dir).env("HOME", dir);
    let done = process::run(&mut command, Duration::from_secs(120)).unwrap();
    assert_eq!(done.code(), 0, "{}\n{}", done.out(), done.err());
    assert!(done.out().contains("DEGRADED here: not root") && done.out().contains("left out"), "{}", done.out());
    assert_eq!(process::ours_under(&[dir]), vec![]);
}

/// Ctrl-C while the demo's job runs.
fn interrupted() {
    close();
    binaries();
    let dir = fresh_dir("interrupted");
    let _guard = Guard::new(&dir);
    let mut child = Command::new(lab_program())
        .args(["demo", "--no-build", "--dir", &dir.to_string_lossy()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let shims = || process::ours_under(&[&dir]).iter().filter(|(_, name)| name == "lattice-shim").count();
    assert!(process::until(Duration::from_secs(30), || shims() == 3), "its job never ran");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()), nix::sys::signal::Signal::SIGINT).unwrap();
    let ended = process::until(Duration::from_secs(30), || child.try_wait().is_ok_and(|s| s.is_some()));
    let _ = child.kill();
    let status = child.wait().unwrap();
    assert!(ended && status.code() == Some(130), "{status}");
    assert!(!dir.exists(), "its folder is left");
    assert_eq!(process::ours_under(&[&dir]), vec![]);
    assert_eq!(lattice_lab::sweep::mounts_under(&[&dir]), Vec::<std::path::PathBuf>::new());
    assert_eq!(lattice_lab::sweep::loops_under(&[&dir]), vec![]);
}

/// Two sizes, with and without followers among the agents, and their curves.
fn scale() {
    let folder = Folder::new("scale-curves");
    let svg = folder.0.join("svg");
    let sizes = ["--nodes", "6,12", "--followers", "4", "--changes", "20", "--seconds", "3", "--svg", &svg.to_string_lossy()];
    bench("scale", &sizes, 19);
    for name in ["processors", "memory", "received", "commits", "ready"] {
        let curves = std::fs::read_to_string(svg.join(format!("scale-{name}.svg"))).unwrap();
        assert!(curves.matches("<circle").count() >= 2, "{curves}");
    }
    let wrong = lab(&["bench", "scale", "--no-build", "--nodes", "12,6"], Duration::from_secs(20));
    assert!(wrong.code() == 1 && wrong.err().contains("the sizes must grow"), "{}", wrong.err());
}

/// Whether targets are met is left to the bench; this tests that it measures.
fn bench(name: &str, options: &[&str], expected: usize) {
    close();
    binaries();
    let arguments = [&["bench", name, "--json", "--no-build", "--rounds", "3"], options].concat();
    let done = lab(&arguments, Duration::from_secs(300));
    assert!([0, 3].contains(&done.code()), "{}\n{}", done.out(), done.err());
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), expected, "{report}");
    assert!(figures.iter().all(|f| f["samples"]["median"].as_f64().is_some_and(|m| m >= 0.0)), "{report}");
    assert_eq!(done.code() == 3, figures.iter().any(|f| f["verdict"] == "missed"));
}
