//! `lattice dev` and `lattice doctor` for ordinary users: everything possible works, and the rest is named.

use crate::harness::{Folder, NOBODY, alone, binaries, close, counts_in_kernel};
use lattice_lab::process;
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

pub fn trials() -> Vec<Trial> {
    vec![
        alone("unprivileged::dev_runs_what_it_can_and_names_what_it_cannot", &[], dev),
        alone("unprivileged::doctor_says_each_thing_with_its_remedy", &[], doctor),
    ]
}

/// Copies of the binaries that everybody may run, in a directory that nobody may write to.
fn for_everybody() -> Folder {
    let folder = Folder::new("unprivileged");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["lattice", "lattice-agent", "lattice-shim"] {
        fs::copy(binaries().dir.join(name), folder.0.join(name)).unwrap();
    }
    let home = folder.0.join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    folder
}

fn as_nobody(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).current_dir(home).env("HOME", home).env_remove("XDG_STATE_HOME").env_remove("LATTICE_ENDPOINT");
    command
}

fn dev() {
    close();
    let folder = for_everybody();
    let (lattice, home) = (folder.0.join("lattice"), folder.0.join("home"));
    let log = folder.0.join("log");
    let out = fs::File::create(&log).unwrap();
    let mut dev = as_nobody(&lattice, &home);
    let dir = home.join("dev");
    dev.arg("dev").arg("--dir").arg(&dir).stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
    let mut dev = dev.spawn().unwrap();
    let outcome = std::panic::catch_unwind(|| {
        let socket = dir.join("agent.sock");
        let run = |args: &[&str]| {
            let mut command = as_nobody(&lattice, &home);
            command.args(args).env("LATTICE_ENDPOINT", format!("unix:{}", socket.display()));
            process::run(&mut command, LIMIT).unwrap()
        };
        let mut last = None;
        process::until(LIMIT, || {
            last = socket.exists().then(|| run(&["launch", "--", "/bin/sh", "-c", "id -u; exit 6"]));
            last.as_ref().is_some_and(|l| l.code() == 6)
        });
        let output = process::tail(&log, 400);
        let last = last.unwrap_or_else(|| panic!("no socket: {output}"));
        assert_eq!((last.code(), last.out()), (6, format!("{NOBODY}\n")), "{}{output}", last.err());
        for named in ["privilege", "cgroup scopes", "mount namespaces"] {
            assert!(
                output.lines().any(|l| l.contains(named) && (l.starts_with("missing") || l.starts_with("degraded"))),
                "{named}: {output}"
            );
        }
        // A daemonised program is still ended with its allocation.
        let done = run(&["submit", "-o", "name", "--", "/bin/sh", "-c", "setsid sleep 4711 & sleep 4711"]);
        let id = done.out().trim().to_owned();
        assert!(process::until(LIMIT, || run(&["status", &id]).out().contains("Running")), "{}", run(&["status", &id]).out());
        assert_eq!(run(&["cancel", &id]).code(), 0);
        let sleeping = || {
            fs::read_dir("/proc").unwrap().flatten().any(|p| fs::read(p.path().join("cmdline")).is_ok_and(|c| c == b"sleep\x004711\x00"))
        };
        assert!(process::until(LIMIT, || !sleeping()), "what it started lives");
        // The agent cannot tell ranks from other processes here: work whose signal is for ranks alone is not placed.
        for signal in ["ranks:USR2", "group:USR2"] {
            let done = run(&["submit", "-o", "name", "--checkpoint=signal", "--checkpoint-signal", signal, "--", "/bin/sleep", "1"]);
            let id = done.out().trim().to_owned();
            let explained = || run(&["explain", &id]).out();
            assert!(process::until(LIMIT, || explained().contains("cannot tell its ranks")), "{}{}", done.err(), explained());
            run(&["cancel", &id]);
        }
        // An image is not possible here: the submission is refused with the reason, not run without the image.
        let image = home.join("env.sqfs");
        lattice_lab::image::write(&image, Path::new("/bin/true")).unwrap();
        fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();
        let image = image.to_string_lossy().into_owned();
        let id = run(&["submit", "-o", "name", "--uenv", &image, "--", "/bin/true"]).out().trim().to_owned();
        assert!(process::until(LIMIT, || run(&["explain", &id]).out().contains("CAP_SYS_ADMIN")), "{}", run(&["explain", &id]).out());
        run(&["cancel", &id]);
    });
    let pid = nix::unistd::Pid::from_raw(i32::try_from(dev.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let gone = process::until(Duration::from_secs(10), || dev.try_wait().unwrap().is_some());
    let _ = dev.kill();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    assert!(gone, "dev does not end: {}", process::tail(&log, 20));
}

/// Subject, health and text of each line of a report.
fn subjects(json: &str) -> Vec<(String, String, String)> {
    let rows: serde_json::Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json}"));
    let field = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.as_array().unwrap().iter().map(|r| (field(r, "subject"), field(r, "health"), field(r, "text"))).collect()
}

/// Without CAP_NET_ADMIN the kernel refuses only the programs that count packets.
fn one_refused(lattice: &Path) {
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set", "-net_admin,-sys_admin", "--inh-caps", "-all"]).arg(lattice).args(["doctor", "-o", "json"]);
    let rows = subjects(&process::run(&mut limited, LIMIT).unwrap().out());
    let row = |subject: &str| rows.iter().find(|(s, ..)| s == subject).unwrap_or_else(|| panic!("no {subject}: {rows:?}"));
    let (counting, refused) = row("kernel probes").2.split_once("; ").unwrap_or_else(|| panic!("{rows:?}"));
    assert!(row("kernel probes").1 == "degraded" && counting.starts_with("counting: sched_switch, "), "{rows:?}");
    for name in ["packets_sent", "packets_received"] {
        assert!(!counting.contains(name) && refused.contains(&format!("{name} does not count: ")), "{rows:?}");
    }
    let (by, lacking) = row("measures").2.split_once("not available here: ").unwrap_or_else(|| panic!("{rows:?}"));
    let by_ebpf = by.split("by ebpf: ").nth(1).unwrap_or_else(|| panic!("{rows:?}"));
    assert!(by_ebpf.contains("switches_voluntary") && lacking.contains("network_sent"), "{rows:?}");
}

fn doctor() {
    close();
    let folder = for_everybody();
    let (lattice, home) = (folder.0.join("lattice"), folder.0.join("home"));
    let done = process::run(Command::new(&lattice).args(["doctor", "-o", "json"]), LIMIT).unwrap();
    let root = subjects(&done.out());
    assert_eq!(done.code() == 1, root.iter().any(|(_, health, _)| health == "missing"), "{root:?}");
    for subject in [
        "privilege",
        "kernel",
        "cgroup scopes",
        "cgroup limits",
        "mount namespaces",
        "mount attributes",
        "scratch",
        "other namespaces",
        "loop devices",
        "squashfs",
        "BPF",
        "tracefs",
        "shim",
        "MPI",
        "GPUs",
        "clock",
        "disk",
        "open files",
        "boot id",
        "CSIG",
        "CUPTI",
    ] {
        assert!(root.iter().any(|(s, _, _)| s == subject), "{subject} is missing: {root:?}");
    }
    assert!(root.iter().all(|(_, _, text)| !text.is_empty()));
    for subject in ["CSIG", "CUPTI"] {
        assert!(root.iter().any(|(s, health, _)| s == subject && health == "unsupported"), "{root:?}");
    }
    let table = process::run(Command::new(&lattice).arg("doctor"), LIMIT).unwrap().out();
    assert_eq!(table.lines().count(), root.len(), "{table}");
    // Root without the capability to load programs: each program is reported missing, and cgroups provide what they
    // can.
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set", "-bpf,-perfmon,-sys_admin", "--inh-caps", "-all"]).arg(&lattice).args(["doctor", "-o", "json"]);
    let limited = subjects(&process::run(&mut limited, LIMIT).unwrap().out());
    let row = |subject: &str| limited.iter().find(|(s, ..)| s == subject).unwrap_or_else(|| panic!("no {subject}: {limited:?}"));
    assert!(row("kernel probes").1 == "degraded" && row("kernel probes").2.contains("CAP_BPF"), "{limited:?}");
    assert!(row("measures").2.contains("by cgroup2: cpu_user") && row("measures").2.contains("network_sent"), "{limited:?}");
    if counts_in_kernel() {
        one_refused(&lattice);
    }
    let done = process::run(as_nobody(&lattice, &home).args(["doctor", "-o", "json"]), LIMIT).unwrap();
    let nobody = subjects(&done.out());
    assert_eq!(done.code(), 1, "work cannot be started as other users");
    let health = |subject: &str| nobody.iter().find(|(s, _, _)| s == subject).map(|(_, h, _)| h.as_str());
    assert_eq!((health("privilege"), health("mount namespaces")), (Some("missing"), Some("missing")), "{nobody:?}");
    assert_eq!(health("kernel probes"), Some("degraded"), "{nobody:?}");
    assert_eq!((health("cgroup scopes"), health("loop devices"), health("BPF")), (Some("degraded"), Some("degraded"), Some("degraded")));
}
