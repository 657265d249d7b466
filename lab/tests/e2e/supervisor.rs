//! Messages to the service manager: ready only after the work was adopted, alive only while the driver works.

use crate::harness::{Folder, Group, Need, World, alone, binaries, close, fresh_dir};
use lattice_lab::cluster::Cluster;
use lattice_lab::lattice::text;
use lattice_lab::process::Identity;
use lattice_lab::{faults, process};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

static SUPERVISOR: Group = Group::small("supervisor");

pub fn trials() -> Vec<Trial> {
    vec![
        SUPERVISOR.test("ready_comes_after_adoption_then_status_pulse_and_stopping", &[], story),
        SUPERVISOR.test("a_shim_that_hangs_is_waited_for_and_then_not", &[], hanging),
        SUPERVISOR.test("a_shim_that_hangs_is_killed_with_its_work_some_time_after_that_is_cancelled", &[], hung),
        alone("supervisor::a_hundred_allocations_are_taken_up_again_at_once", &[], hundred),
        SUPERVISOR.test("a_driver_that_hangs_is_silent", &[], silent_driver),
        SUPERVISOR.test("a_member_serves_with_the_capabilities_that_its_unit_leaves_it", &[], bare_member),
        SUPERVISOR.test("an_agents_limit_of_its_own_memory_is_an_amount_and_one_that_cannot_be_set_is_shown", &[], own_memory),
        alone("supervisor::systemd_finds_nothing_wrong_with_the_units", &[Need::SystemdAnalyze], units),
    ]
}

/// A socket like systemd's.
struct Manager {
    socket: UnixDatagram,
    path: String,
}

/// One datagram, and when it arrived.
struct Message {
    at: Instant,
    text: String,
}

impl Manager {
    fn new(w: &World, name: &str) -> Self {
        let path = w.dir.join(name).to_string_lossy().into_owned();
        let socket = UnixDatagram::bind(&path).unwrap();
        Self { socket, path }
    }

    fn restart(&self, w: &World, node: &str) {
        if w.cluster().node(node).unwrap().daemon.alive() {
            faults::kill_node(&w.dir, node).unwrap();
        }
        // 900 ms: the agent reports in every third of this that it is alive.
        let env = [("NOTIFY_SOCKET", self.path.as_str()), ("WATCHDOG_USEC", "900000")];
        faults::begin_node(&w.dir, node, &[], &env).unwrap();
    }

    fn next(&self, within: Duration) -> Option<Message> {
        self.socket.set_read_timeout(Some(within)).unwrap();
        let mut bytes = [0; 4096];
        let n = self.socket.recv(&mut bytes).ok()?;
        Some(Message { at: Instant::now(), text: String::from_utf8_lossy(&bytes[..n]).into_owned() })
    }

    /// All messages up to one that contains this text.
    fn until(&self, piece: &str) -> Vec<Message> {
        let mut messages = Vec::new();
        while !messages.last().is_some_and(|h: &Message| h.text.contains(piece)) {
            let next = self.next(Duration::from_secs(20));
            messages.push(
                next.unwrap_or_else(|| panic!("{piece} does not come; so far {:?}", messages.iter().map(|h| &h.text).collect::<Vec<_>>())),
            );
        }
        messages
    }
}

fn job(w: &World) -> (String, String) {
    let id = w.submit(&["--", "/bin/sh", "-c", "sleep 60"]);
    w.running(&id);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    (id, node)
}

fn end(w: &World, id: &str, node: &str) {
    w.ok(&["cancel", id]);
    assert_eq!(text(&w.ended(id), "state"), "Cancelled");
    faults::restart_node(&w.dir, node).unwrap();
    w.assert_nothing_left();
}

fn story(w: &World) {
    let (id, node) = job(w);
    let manager = Manager::new(w, "notify-story");
    manager.restart(w, &node);
    let messages = manager.until("READY=1");
    let texts: Vec<&str> = messages.iter().map(|h| h.text.as_str()).collect();
    assert!(texts[0].starts_with("STATUS=reading the node's state"), "{texts:?}");
    assert!(texts.last().unwrap().contains("STATUS=1 allocation(s) taken up again, 0 of them lost, 0 not answering"), "{texts:?}");
    manager.until("STATUS=1 allocation(s) here, 0 report(s) unsent; session with");
    let pulses: Vec<Instant> = (0..4).map(|_| manager.until("WATCHDOG=1").last().unwrap().at).collect();
    assert!(pulses[3] - pulses[0] >= Duration::from_millis(600), "it reports too often: {:?}", pulses[3] - pulses[0]);
    let cluster = w.cluster();
    cluster.node(&node).unwrap().daemon.process.as_ref().unwrap().signal(Signal::SIGTERM).unwrap();
    manager.until("STOPPING=1");
    w.wait("it to end", || !w.cluster().node(&node).unwrap().daemon.alive());
    faults::start_node(&w.dir, &node).unwrap();
    end(w, &id, &node);
}

fn hanging(w: &World) {
    let (id, node) = job(w);
    let status = w.at(&node).json(&["node", "status"]).unwrap();
    let shim = Pid::from_raw(i32::try_from(status["allocations"][0]["shim_pid"].as_i64().unwrap()).unwrap());
    kill(shim, Signal::SIGSTOP).unwrap();
    let manager = Manager::new(w, "notify-hanging");
    manager.restart(w, &node);
    let began = Instant::now();
    // Nothing else waits for it: the API answers meanwhile.
    w.wait("the agent to answer", || w.at(&node).ok(&["node", "status"]).is_ok());
    let ready = manager.until("READY=1");
    kill(shim, Signal::SIGCONT).unwrap();
    assert!(began.elapsed() >= Duration::from_secs(8), "it came after {:?}", began.elapsed());
    assert!(ready.last().unwrap().text.contains("1 not answering"), "{}", ready.last().unwrap().text);
    end(w, &id, &node);
}

/// How long a shim that hangs has to end its work, after the grace of this cluster (2 s) and the
/// time for killing (3 s).
const SHIM_MARGIN: Duration = Duration::from_secs(30);

fn hung(w: &World) {
    let id = w.submit(&["--", "/bin/sleep", "600"]);
    w.running(&id);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let agent = w.at(&node);
    let shown = || {
        let status = agent.json(&["node", "status"]).unwrap();
        status["allocations"].as_array().unwrap().iter().find(|a| a["id"] == id.as_str()).cloned()
    };
    let shim = Identity::of(i32::try_from(shown().unwrap()["shim_pid"].as_i64().unwrap()).unwrap()).unwrap();
    assert!(shim.signal(Signal::SIGSTOP).unwrap());
    let cancelled = Instant::now();
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    // The node shows what is left, and keeps the allocation until nothing is left.
    let next = w.submit(&["-w", &node, "--", "/bin/true"]);
    let names_what_is_left = |local: &Value| text(local, "detail").contains("killed processes are still there");
    w.wait("the node to show what is left", || shown().as_ref().is_some_and(names_what_is_left));
    assert_eq!((text(&w.status(&next), "state").as_str(), shim.alive()), ("Pending", true));
    w.wait("the node to have nothing of it", || shown().is_none());
    let took = cancelled.elapsed();
    assert!(took > SHIM_MARGIN, "its shim had only {took:?}");
    assert!(!shim.alive(), "its shim lives on");
    let log = std::fs::read_to_string(&w.cluster().node(&node).unwrap().daemon.log).unwrap();
    assert!(log.contains("the shim does not end the work: it is killed with its scope"), "{log}");
    w.completed(&next);
    w.assert_nothing_left();
}

/// One thread of a process, stopped until this is dropped.
struct StoppedThread(i32);

impl StoppedThread {
    fn of(pid: i32, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let named = |t: &std::fs::DirEntry| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|c| c.trim() == name);
        let tid: i32 = tasks.into_iter().find(named).unwrap().file_name().to_str().unwrap().parse().unwrap();
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: these requests take no memory of ours; the tracer is this thread until the drop.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, tid, none, none), 0, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, tid, none, none), 0, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL), tid);
        }
        Self(tid)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: as above; a thread that is gone is an error that changes nothing.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}

/// A generous limit, for unoptimised binaries on a busy machine: the benchmark has the real figure.
fn hundred() {
    close();
    binaries();
    let took = lattice_lab_bench::bench::adoption(&fresh_dir("adoption"), 100, 3).unwrap_or_else(|e| panic!("{e:#}"));
    eprintln!("100 allocations adopted in {took:.0?} ms");
    assert!(took.iter().all(|ms| *ms < 10_000.0), "{took:?} ms");
}

fn silent_driver(w: &World) {
    let manager = Manager::new(w, "notify-silent");
    manager.restart(w, "n3");
    manager.until("READY=1");
    let pid = w.cluster().node("n3").unwrap().daemon.process.as_ref().unwrap().pid;
    let stopped = StoppedThread::of(pid, "driver");
    while manager.next(Duration::from_millis(50)).is_some() {}
    // Everything else in the agent continues, its timers too.
    w.at("n3").ok(&["node", "status"]).unwrap();
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        let message = manager.next(Duration::from_millis(100));
        assert!(message.is_none_or(|h| !h.text.contains("WATCHDOG=1")), "it says that it lives");
    }
    drop(stopped);
    manager.until("WATCHDOG=1");
    faults::restart_node(&w.dir, "n3").unwrap();
    assert!(process::until(Duration::from_secs(20), || lattice_lab::up::wait_ready(&w.cluster(), Duration::from_secs(1)).is_ok()));
}

/// A member works with only the rights that `CapabilityBoundingSet=` and `NoNewPrivileges=yes` leave it.
fn bare_member(w: &World) {
    let unit = std::fs::read_to_string(units_dir().join("lattice-quorum.service")).unwrap();
    assert!(unit.contains("\nCapabilityBoundingSet=\n") && unit.contains("\nNoNewPrivileges=yes\n"), "{unit}");
    let real = w.cluster().members[0].daemon.program.clone();
    let bare = w.dir.join("bare-member");
    let text = format!("#!/bin/sh\nexec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs {} \"$@\"\n", real.display());
    std::fs::write(&bare, text).unwrap();
    std::fs::set_permissions(&bare, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    restart_member_as(w, &bare);
    let pid = w.cluster().members[0].daemon.process.as_ref().unwrap().pid;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("CapEff:\t0000000000000000") && status.contains("NoNewPrivs:\t1"), "{status}");
    let (id, _node) = job(w);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    assert_eq!(w.run(&["audit", "verify"]).code(), 0);
    restart_member_as(w, &real);
}

fn restart_member_as(w: &World, program: &std::path::Path) {
    faults::kill_member(&w.dir, 1).unwrap();
    {
        let _lock = Cluster::lock(&w.dir).unwrap();
        let mut cluster = w.cluster();
        program.clone_into(&mut cluster.daemon_mut("member-1").unwrap().program);
        cluster.save().unwrap();
    }
    faults::start_member(&w.dir, 1).unwrap();
    w.leader();
}

/// The limit itself is tested in the guest (`lab/tests/guest/out-of-memory.sh`): here no agent has its own cgroup.
fn own_memory(w: &World) {
    let (folder, variable) = (Folder::new("own-memory"), "LATTICE_AGENT_MEMORY_MAX");
    let config = folder.0.join("agent.yaml");
    std::fs::write(&config, "").unwrap();
    let run = |value: &str| {
        let mut command = std::process::Command::new(binaries().agent());
        process::run(command.arg("--config").arg(&config).env(variable, value), Duration::from_secs(60)).unwrap()
    };
    for (value, why) in [("lots", "\"lots\" is not an amount of bytes"), ("1M", "an agent needs 64M at least")] {
        let refused = run(value);
        let stderr = refused.err();
        assert!(refused.code() == 1 && stderr.contains(variable) && stderr.contains(why), "{stderr}");
    }
    let mut command = std::process::Command::new(binaries().agent());
    let help = process::run(command.arg("--help"), Duration::from_secs(60)).unwrap().out();
    assert!(help.contains(variable), "{help}");
    faults::kill_node(&w.dir, "n3").unwrap();
    faults::begin_node(&w.dir, "n3", &[], &[(variable, "2G")]).unwrap();
    let shown = || {
        w.at("n3")
            .ok(&["node", "status"])
            .is_ok_and(|status| status.contains(&format!("{variable}: the agent's own memory is not limited")))
    };
    assert!(process::until(Duration::from_secs(30), shown), "node status does not say that the agent has no limit");
    faults::restart_node(&w.dir, "n3").unwrap();
    assert!(process::until(Duration::from_secs(20), || lattice_lab::up::wait_ready(&w.cluster(), Duration::from_secs(1)).is_ok()));
}

fn units_dir() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/systemd")
}

/// The greatest exposure that `systemd-analyze security` may report, in tenths. The agent's is far from strict: see its
/// unit.
const EXPOSURE_MAX: [(&str, u32); 2] = [("lattice-agent", 95), ("lattice-quorum", 25)];
/// The first version that examines units which are not installed.
const OFFLINE_VERSION: u32 = 250;

fn systemd_version() -> u32 {
    let output = process::run(std::process::Command::new("systemd-analyze").arg("--version"), Duration::from_secs(60)).unwrap().out();
    output.split_whitespace().nth(1).and_then(|version| version.parse().ok()).unwrap_or_else(|| panic!("{output}"))
}

/// The units unchanged, except for the programs, which are not installed here.
fn units() {
    let folder = Folder::new("units");
    let (agent, quorum) = (binaries().agent(), binaries().quorum());
    for (name, program, bound) in
        [("lattice-agent", agent, "Environment=LATTICE_AGENT_MEMORY_MAX="), ("lattice-quorum", quorum, "MemoryMax=")]
    {
        let unit = units_dir().join(format!("{name}.service"));
        let text = std::fs::read_to_string(unit).unwrap();
        assert!(text.lines().any(|line| line.starts_with(bound)), "{name} has no bound of its memory: {text}");
        let installed = format!("/usr/bin/{name}");
        assert!(text.contains(&installed), "{text}");
        let here = folder.0.join(format!("{name}.service"));
        std::fs::write(&here, text.replace(&installed, &program.to_string_lossy())).unwrap();
        let verified =
            process::run(std::process::Command::new("systemd-analyze").arg("verify").arg(&here), Duration::from_secs(60)).unwrap();
        let output = verified.out() + &verified.err();
        // Options that are new in systemd 254, as the unit says.
        let wrong: Vec<&str> =
            output.lines().filter(|line| line.contains(name) && !line.contains("Unknown key 'DelegateSubgroup'")).collect();
        assert!(verified.code() == 0 && wrong.is_empty(), "{name}: {output}");
    }
    if systemd_version() < OFFLINE_VERSION {
        return eprintln!("systemd-analyze is older than {OFFLINE_VERSION}: the exposure of the units is not checked");
    }
    for (name, most) in EXPOSURE_MAX {
        let mut analyze = std::process::Command::new("systemd-analyze");
        analyze.args(["security", "--offline=true", "--no-pager", &format!("--threshold={most}")]);
        let found = process::run(analyze.arg(folder.0.join(format!("{name}.service"))), Duration::from_secs(60)).unwrap();
        assert_eq!(found.code(), 0, "{name} is exposed by more than {most}: {}{}", found.out(), found.err());
    }
}
