//! Work that is asked for a checkpoint at its own port: it defers, reports progress, completes, and continues from
//! there, also when its agent was killed meanwhile. A foreign listener on that port gets nothing.

use crate::harness::{DAEMON, Folder, Group, JOB, NOBODY, World, fresh_dir, lab_program};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::ports::Ports;
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

static PORT: Group = Group { theme: "checkpoint_port", name: "ckptmodes", nodes: 2, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        PORT.test("it_is_asked_there_defers_reports_progress_and_resumes_from_its_checkpoint", &[], served),
        PORT.test("an_agent_killed_while_it_is_asked_asks_again", &[], killed),
        PORT.test("where_nobody_listens_or_somebody_else_does_nothing_is_sent", &[], foreign),
    ]
}

fn port() -> u16 {
    Ports::new(u64::from(std::process::id()) * 7).take().unwrap()
}

/// A program that serves a port, run by an ordinary user.
struct Served {
    id: String,
    hold: PathBuf,
    until: PathBuf,
    _folder: Folder,
}

impl Served {
    fn submit(w: &World, port: u16, more: &[&str], options: &[&str]) -> Self {
        let (folder, hold, until) = (Folder::new("port"), fresh_dir("port-hold"), fresh_dir("port-until"));
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        let program = folder.0.join("endpoint");
        fs::copy(lab_program(), &program).unwrap();
        let (program, port) = (program.display().to_string(), format!("--checkpoint-port={port}"));
        let (held, ends) = (hold.display().to_string(), until.display().to_string());
        let mut args = vec!["submit", "-o", "name", "--checkpoint=grpc", &port, "--requeue=never", "--nodes=1"];
        args.extend(more);
        // It counts for as long as the test takes, on any machine.
        args.extend(["--", &program, "endpoint", "--steps=1000000", "--hold", &held, "--until", &ends]);
        args.extend(options);
        let done = w.run_as(NOBODY, &args);
        assert_eq!(done.code(), 0, "{}", done.err());
        let id = done.out().trim().to_owned();
        w.running(&id);
        w.wait_log(&id, "step 3\n");
        Self { id, hold, until, _folder: folder }
    }

    fn release(&self) {
        fs::write(&self.hold, "").unwrap();
    }

    /// Checks that the preempted program continued at the step after the saved one, and counted until it was ended.
    fn goes_on(&self, w: &World) {
        w.wait("it to go on", || w.log(&self.id).contains("restored "));
        let step = w.status(&self.id)["checkpoint"]["step"].as_u64().unwrap();
        let restored = format!("restored {step}\n");
        let counts = |log: &str| log.split_once(&restored).is_some_and(|(_, after)| after.contains(&format!("step {}\n", step + 9)));
        w.wait("it to count on", || counts(&w.log(&self.id)));
        fs::write(&self.until, "").unwrap();
        let over = w.completed(&self.id);
        assert_eq!(over["preempted_count"], 1, "{over}");
        let log = w.log(&self.id);
        let (_, after) = log.split_once(&restored).unwrap_or_else(|| panic!("step {step}: {log}"));
        let numbers_after = |prefix: &str| after.lines().filter_map(|l| l.strip_prefix(prefix)?.parse().ok()).collect::<Vec<u64>>();
        let last = numbers_after("final ");
        assert_eq!((numbers_after("step "), last.len()), ((step + 1..=last[0]).collect(), 1), "{log}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for file in [&self.hold, &self.until] {
            let _ = fs::remove_file(file);
        }
    }
}

fn served(w: &World) {
    let served = Served::submit(w, port(), &[], &["--defer"]);
    let id = &served.id;
    let output_file = fresh_dir("port-said");
    let mut create = w.lattice.command(&["checkpoint", "create", id, "--deadline", "30s"]);
    let mut asking = create.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&output_file).unwrap()).spawn().unwrap();
    let output = || fs::read_to_string(&output_file).unwrap();
    w.wait("how far it is to be shown", || output().contains("(40 %, 9 s left)"));
    assert!(output().contains("deferred"), "{}", output());
    let log = w.log(id);
    let asked: Vec<&str> = log.lines().filter_map(|l| l.strip_prefix("asked ")).collect();
    let deferred = log.lines().find_map(|l| l.strip_prefix("deferred ")).unwrap();
    assert!(asked.len() == 2 && asked[0] == deferred && asked[1] != deferred, "{log}");
    served.release();
    let ended = asking.wait().unwrap();
    assert!(ended.success(), "{}", output());
    let _ = fs::remove_file(&output_file);
    let shown = w.lattice.json(&["checkpoint", "show", id]).unwrap();
    assert_eq!((text(&shown["nodes"][0]["list"][0], "path").as_str(), shown["files"].as_u64()), ("n", Some(1)), "{shown}");
    w.ok(&["checkpoint", "verify", id]);
    w.ok(&["preempt", id]);
    served.goes_on(w);
    w.assert_nothing_left();
}

fn killed(w: &World) {
    let served = Served::submit(w, port(), &[], &[]);
    let id = &served.id;
    w.ok(&["preempt", id, "--deadline", "60s"]);
    w.wait_log(id, "asked ");
    let node = w.status(id)["nodes"][0].as_str().unwrap().to_owned();
    faults::kill_node(&w.dir, &node).unwrap();
    faults::start_node(&w.dir, &node).unwrap();
    w.wait("its next life to ask", || w.log(id).matches("asked ").count() == 2);
    let log = w.log(id);
    let asked: Vec<&str> = log.lines().filter_map(|l| l.strip_prefix("asked ")).collect();
    assert_eq!(asked[0], asked[1], "it is one request");
    served.release();
    served.goes_on(w);
    w.assert_nothing_left();
}

/// A process of another user that listens at the port, outside of every allocation, and records what it receives.
struct Stranger {
    child: Child,
    got: PathBuf,
}

impl Stranger {
    fn listens(w: &World, port: u16) -> Self {
        let got = w.dir.join(format!("home-{DAEMON}/got-{port}"));
        let program = "import socket, sys
s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen()
out = open(sys.argv[2], 'wb', 0); out.write(b'listens\\n')
while True:
    c, _ = s.accept(); out.write(b'accepted\\n'); out.write(c.recv(100)); c.close()";
        let mut command = Command::new("python3");
        command.args(["-c", program, &port.to_string()]).arg(&got).uid(DAEMON).gid(DAEMON).current_dir("/");
        let stranger = Self { child: command.stdin(Stdio::null()).spawn().unwrap(), got };
        w.wait("it to listen", || stranger.got() == "listens\n");
        stranger
    }

    fn got(&self) -> String {
        fs::read_to_string(&self.got).unwrap_or_default()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.got);
    }
}

fn foreign(w: &World) {
    let at = port();
    let port_flag = format!("--checkpoint-port={at}");
    // All work runs on one node.
    w.ok(&["node", "cordon", "n2", "--reason", "the test's"]);
    let silent = w.submit(&["--checkpoint=grpc", &port_flag, "--nodes=1", "--cores=1", "--", "/bin/sleep", "600"]);
    w.running(&silent);
    let refused = |expected: &str| {
        let done = w.run_for(&["checkpoint", "create", &silent, "--deadline", "60s"], Duration::from_secs(20));
        assert!(done.code() == 1 && done.err().contains(expected), "{expected}: {}", done.err());
        assert_eq!(text(&w.status(&silent), "state"), "Running");
    };
    refused(&format!("nothing listens at 127.0.0.1:{at}, so no request was made"));
    let stranger = Stranger::listens(w, at);
    refused(&format!("the listener at 127.0.0.1:{at} belongs to uid {DAEMON} and not to allocation {}", &silent[..8]));
    assert_eq!(stranger.got(), "listens\n", "nothing is sent to it, nor is it connected to");
    drop(stranger);
    // Another allocation serves the port, and is asked there only for its own checkpoint.
    let other = Served::submit(w, at, &["--cores=1"], &[]);
    refused(&format!("the listener at 127.0.0.1:{at} belongs to uid {NOBODY} and not to allocation {}", &silent[..8]));
    assert!(!w.log(&other.id).contains("asked "), "{}", w.log(&other.id));
    other.release();
    w.ok(&["checkpoint", "create", &other.id, "--deadline", "20s"]);
    assert_eq!(w.log(&other.id).matches("asked ").count(), 1);
    w.ok(&["cancel", &other.id]);
    w.lattice.ended_within(&other.id, JOB).unwrap();
    // Work with a port is asked at its port, and must not wait for requests in calls.
    let lattice = w.dir.join("bin/lattice").display().to_string();
    let calls = w.submit(&["--checkpoint=grpc", &port_flag, "--cores=1", "--", &lattice, "checkpoint", "await"]);
    assert_eq!(text(&w.ended(&calls), "state"), "Failed");
    let log = w.log(&calls);
    assert!(log.contains(&format!("has --checkpoint-port {at}")), "{log}");
    w.ok(&["cancel", &silent]);
    w.lattice.ended_within(&silent, JOB).unwrap();
    w.ok(&["node", "uncordon", "n2"]);
    w.assert_nothing_left();
}
