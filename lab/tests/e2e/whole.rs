//! The lab itself, and clusters that are started and removed completely.

use crate::harness::{Folder, alone, binaries, close, fresh_dir, lab};
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::lattice::Lattice;
use lattice_lab::process;
use libtest_mimic::Trial;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

pub fn trials() -> Vec<Trial> {
    vec![
        alone("whole::up_env_status_down_leaves_nothing", &[], up_and_down),
        alone("whole::a_folder_too_long_for_sockets_works", &[], long_folder),
        alone("whole::up_refuses_what_it_cannot_own", &[], refusals),
        alone("whole::down_sweeps_what_lives", &[], sweeps),
        alone("whole::down_after_kill_9_of_everything", &[], after_massacre),
        alone("whole::an_up_that_fails_says_why_and_leaves_nothing", &[], failing_up),
        alone("whole::dev_is_a_cluster_in_one_process", &[], dev),
    ]
}

/// A small cluster through the command line.
fn up(name: &str) -> (Guard, String) {
    close();
    binaries();
    let dir = fresh_dir(name);
    let guard = Guard::new(&dir);
    let dir = dir.to_string_lossy().into_owned();
    let done = lab(&["up", "--no-build", "--nodes", "1", "--quorum", "1", "--grace", "1", "--dir", &dir], LIMIT);
    assert_eq!(done.code(), 0, "{}", done.err());
    (guard, dir)
}

fn assert_down(dir: &str, swept: bool) {
    let cluster = Cluster::load(dir.as_ref()).unwrap();
    let done = lab(&["down", "--dir", dir], LIMIT);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert_eq!(done.out().contains("swept"), swept, "{}", done.out());
    assert!(!std::path::Path::new(dir).exists());
    assert!(!cluster.run_dir.exists());
    assert_eq!(down::leftovers(&cluster), Vec::<String>::new());
    assert!(cluster.daemons().all(|d| !d.alive()));
    assert_eq!(process::ours_under(&cluster.folders()), vec![]);
    assert!(lattice_lab::sweep::scopes_root(&cluster.cgroup_root).is_none(), "its cgroups are gone");
}

fn up_and_down() {
    let (_guard, dir) = up("whole");
    let shell = format!(". {dir}/env && lattice launch -- /bin/echo from a shell && test \"$LATTICE_LAB_DIR\" = {dir}");
    let done = process::run(Command::new("sh").args(["-c", &shell]), LIMIT).unwrap();
    assert_eq!((done.code(), done.out().as_str()), (0, "from a shell\n"), "{}", done.err());
    let status = lab(&["status", "--dir", &dir], LIMIT);
    assert!(status.out().contains("n1 Ready") && status.out().contains("member-1   runs"), "{}", status.out());
    assert_eq!(lab(&["node", "kill", "n1", "--dir", &dir], LIMIT).code(), 0);
    assert_ne!(lab(&["node", "kill", "n1", "--dir", &dir], LIMIT).code(), 0, "it is dead already");
    assert_eq!(lab(&["node", "start", "n1", "--dir", &dir], LIMIT).code(), 0);
    assert_ne!(lab(&["node", "start", "n1", "--dir", &dir], LIMIT).code(), 0, "it runs already");
    assert_eq!(lab(&["node", "restart", "n1", "--dir", &dir], LIMIT).code(), 0);
    assert_eq!(lab(&["quorum", "kill", "--all", "--dir", &dir], LIMIT).code(), 0);
    assert_eq!(lab(&["quorum", "start", "1", "--dir", &dir], LIMIT).code(), 0);
    assert_ne!(lab(&["node", "kill", "n7", "--dir", &dir], LIMIT).code(), 0);
    assert_down(&dir, false);
}

fn long_folder() {
    let (_guard, dir) = up(&format!("long-{}", "x".repeat(120)));
    let cluster = Cluster::load(dir.as_ref()).unwrap();
    let lattice = Lattice::to(&cluster, "n1").unwrap();
    let done = lattice.run(&["launch", "--", "/bin/echo", "far"], LIMIT).unwrap();
    assert_eq!((done.code(), done.out().as_str()), (0, "far\n"), "{}", done.err());
    assert_down(&dir, false);
}

fn refusals() {
    let folder = Folder::new("taken");
    let dir = &folder.0;
    std::fs::write(dir.join("mine"), "precious").unwrap();
    let text = dir.to_string_lossy().into_owned();
    let done = lab(&["up", "--no-build", "--dir", &text], LIMIT);
    assert!(done.code() != 0 && done.err().contains("not empty"), "{}", done.err());
    let done = lab(&["down", "--dir", &text], LIMIT);
    assert!(done.code() != 0 && done.err().contains("no lab cluster"), "{}", done.err());
    assert!(dir.join("mine").exists());
    std::fs::remove_dir_all(dir).unwrap();
    for (args, expected) in [(["--nodes", "0"], "'--nodes <NODES>'"), (["--quorum", "2"], "--quorum 2")] {
        let done = lab(&["up", "--no-build", args[0], args[1], "--dir", &text], LIMIT);
        assert!(done.code() != 0 && done.err().contains(expected), "{}", done.err());
        assert!(!dir.exists());
    }
}

fn sweeps() {
    let (_guard, dir) = up("sweeps");
    let cluster = Cluster::load(dir.as_ref()).unwrap();
    let lattice = Lattice::to(&cluster, "n1").unwrap();
    let id = lattice.ok(&["submit", "-o", "name", "--", "/bin/sh", "-c", "setsid sleep 300 & sleep 300"]).unwrap();
    let running = || lattice.allocation(id.trim()).is_ok_and(|a| a["state"] == "Running");
    assert!(process::until(LIMIT, running));
    let done = lab(&["down", "--dir", &dir], LIMIT);
    assert!(done.code() == 0 && done.out().contains("cancelled") && !done.out().contains("swept"), "{}{}", done.out(), done.err());
    assert_eq!(down::leftovers(&cluster), Vec::<String>::new());
}

fn after_massacre() {
    let (_guard, dir) = up("massacre");
    let cluster = Cluster::load(dir.as_ref()).unwrap();
    let lattice = Lattice::to(&cluster, "n1").unwrap();
    let id = lattice.ok(&["submit", "-o", "name", "--", "/bin/sleep", "300"]).unwrap();
    let running = || lattice.allocation(id.trim()).is_ok_and(|a| a["state"] == "Running");
    assert!(process::until(LIMIT, running));
    for daemon in cluster.daemons() {
        daemon.process.as_ref().unwrap().kill().unwrap();
    }
    assert!(!down::leftovers(&cluster).is_empty(), "the work outlives them");
    assert_down(&dir, true);
}

fn failing_up() {
    close();
    binaries();
    // A copy of the binaries in which the agent is another program.
    let folder = Folder::new("broken-bin");
    let broken = &folder.0;
    for name in ["lattice", "lattice-quorum", "lattice-shim", "lattice-pmix", "lattice-lab"] {
        let from = binaries().dir.join(name);
        if std::fs::hard_link(&from, broken.join(name)).is_err() {
            std::fs::copy(&from, broken.join(name)).unwrap();
        }
    }
    let agent = broken.join("lattice-agent");
    std::fs::write(&agent, "#!/bin/sh\necho this agent is broken on purpose >&2\nexit 1\n").unwrap();
    std::os::unix::fs::chown(&agent, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(&agent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let dir = fresh_dir("failing");
    let _guard = Guard::new(&dir);
    let text = dir.to_string_lossy().into_owned();
    let up = ["up", "--no-build", "--nodes", "1", "--quorum", "1", "--dir", &text];
    let done = process::run(Command::new(broken.join("lattice-lab")).args(up), LIMIT).unwrap();
    assert!(done.code() != 0 && done.err().contains("broken on purpose"), "{}", done.err());
    let cluster = Cluster::load(&dir).unwrap();
    assert!(cluster.daemons().all(|d| !d.alive()), "nothing is left running");
    assert_eq!(lab(&["down", "--dir", &text], LIMIT).code(), 0);
}

fn dev() {
    close();
    let folder = Folder::new("dev");
    let dir = &folder.0;
    let log = dir.join("log");
    let args = ["dev".to_owned(), "--dir".to_owned(), dir.join("d").to_string_lossy().into_owned()];
    let process = process::spawn_detached(&binaries().lattice(), &args, &[], &log).unwrap();
    let outcome = std::panic::catch_unwind(|| {
        let find_socket = || {
            let text = process::tail(&log, 100);
            text.split(|c: char| c.is_whitespace() || "'\"=,()`".contains(c)).find_map(|word| {
                let path = word.strip_prefix("unix:").unwrap_or(word);
                (path.ends_with(".sock") && std::path::Path::new(path).exists()).then(|| path.to_owned())
            })
        };
        assert!(process::until(LIMIT, || find_socket().is_some()), "it names no socket: {}", process::tail(&log, 30));
        let socket = find_socket().unwrap();
        let launch = || {
            let mut command = Command::new(binaries().lattice());
            command.args(["launch", "--", "/bin/echo", "from dev"]).env("LATTICE_ENDPOINT", format!("unix:{socket}"));
            process::run(&mut command, LIMIT).unwrap()
        };
        let mut last = launch();
        process::until(LIMIT, || {
            last = launch();
            last.code() == 0
        });
        assert_eq!((last.code(), last.out().as_str()), (0, "from dev\n"), "{}\n{}", last.err(), process::tail(&log, 30));
    });
    process.signal(nix::sys::signal::Signal::SIGTERM).unwrap();
    let gone = process.gone_within(Duration::from_secs(10));
    let _ = process.kill();
    let log_end = process::tail(&log, 30);
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    assert!(gone, "dev does not end within 10 s of SIGTERM: {log_end}");
}
