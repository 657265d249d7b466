//! Work in audit mode: the files that it opens and its connections, as the kernel reports them.

use crate::harness::{Group, Need, World};
use lattice_lab::faults;
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

static OPENS: Group =
    Group { theme: "opens", name: "opens", nodes: 1, quorum: 1, tweak: |o| o.log_lines = "logs: {flush_seconds: 1}".to_owned() };

pub fn trials() -> Vec<Trial> {
    vec![OPENS.test(
        "opened_files_and_connections_of_audited_work_are_recorded_and_of_other_work_not",
        &[Need::Python, Need::KernelProbes],
        reports_opens,
    )]
}

const PYTHON: &str = "/usr/bin/python3";
const NODE: &str = "n1";

/// Work that opens the same files and connections in each round. Between rounds it opens nothing.
struct Work {
    id: String,
    dir: PathBuf,
}

impl Work {
    fn begin(w: &World, name: &str, open_port: u16, closed_port: u16) -> Self {
        let dir = w.dir.join(name);
        fs::create_dir_all(&dir).unwrap();
        let program = format!(
            "import os, socket, time\n\
             n = 0\n\
             while True:\n\
             \x20   if not os.path.exists(f'{d}/go-{{n}}'):\n        time.sleep(0.02); continue\n\
             \x20   os.close(os.open(f'{d}/present-{{n}}', os.O_WRONLY | os.O_CREAT, 0o600))\n\
             \x20   try: os.open(f'{d}/missing-{{n}}', os.O_RDONLY)\n    except OSError: pass\n\
             \x20   for port in ({open_port}, {closed_port}):\n\
             \x20       s = socket.socket()\n        try: s.connect(('127.0.0.1', port))\n        except OSError: pass\n        s.close()\n\
             \x20   mine = socket.socket(); mine.bind(('127.0.0.1', 0)); mine.listen()\n\
             \x20   c = socket.socket(); c.connect(mine.getsockname()); mine.accept()[0].close(); c.close(); mine.close()\n\
             \x20   os.mkdir(f'{d}/done-{{n}}')\n\
             \x20   n += 1\n",
            d = dir.display()
        );
        let path = dir.join("work.py");
        fs::write(&path, program).unwrap();
        let id = w.submit(&["--cores", "1", "--", PYTHON, &path.to_string_lossy()]);
        w.running(&id);
        Self { id, dir }
    }

    /// Starts a round, and waits for its end.
    fn round(&self, w: &World, n: u32) {
        fs::write(self.dir.join(format!("go-{n}")), "").unwrap();
        w.wait("the round to be over", || self.dir.join(format!("done-{n}")).exists());
    }

    fn read(&self, w: &World) -> Vec<Value> {
        let read = w.ok(&["telemetry", "--alloc", &self.id, "--read"]);
        read.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    fn is_audited(&self, w: &World) -> bool {
        let Ok(top) = w.lattice.json(&["top", &self.id]) else { return false };
        top["nodes"][0]["measured"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "audit_events"))
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

fn opened<'a>(lines: &'a [Value], path: &str) -> Option<&'a Value> {
    lines.iter().find(|line| line["event"] == "open" && line["path"] == path)
}

/// The tracepoints to which the node's agent has attached a program.
fn attached(w: &World) -> Vec<String> {
    let pid = w.cluster().node(NODE).unwrap().daemon.process.as_ref().unwrap().pid;
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten().filter_map(|info| fs::read_to_string(info.path()).ok());
    infos.filter_map(|info| info.lines().find_map(|line| line.strip_prefix("tp_name:").map(|name| name.trim().to_owned()))).collect()
}

fn reports_opens(w: &World) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let open_port = listener.local_addr().unwrap().port();
    let closed_port = {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        closed.local_addr().unwrap().port()
    };
    let audited = Work::begin(w, "audited", open_port, closed_port);
    let other = Work::begin(w, "other", open_port, closed_port);
    let at_calls = |w: &World| attached(w).iter().any(|name| name == "sys_exit");
    assert!(!at_calls(w) && attached(w).iter().any(|name| name == "sched_switch"), "{:?}", attached(w));
    let answer = w.ok(&["telemetry", "--alloc", &audited.id, "--mode=audit"]);
    assert!(answer.contains("until its work ends") && answer.contains(&format!("{}/telemetry/", audited.id)), "{answer}");
    assert!(w.ok(&["telemetry", "--alloc", &audited.id]).contains("audit until its work ends, asked for by root"));
    w.wait("the programs to be attached", || audited.is_audited(w) && at_calls(w));
    assert!(!other.is_audited(w));
    audited.round(w, 0);
    other.round(w, 0);
    let mut lines = Vec::new();
    w.wait("the round in the store", || {
        lines = audited.read(w);
        opened(&lines, &audited.path("missing-0")).is_some() && lines.iter().any(|line| line["event"] == "accept")
    });
    let header = &lines[0];
    assert_eq!((&header["mode"], &header["allocation"], &header["by"]), (&"audit".into(), &audited.id.as_str().into(), &"root".into()));
    assert!(header["about"].as_str().is_some_and(|about| about.contains("io_uring")), "{header}");
    let present = opened(&lines, &audited.path("present-0")).unwrap();
    assert!(present["result"].as_i64().is_some_and(|fd| fd > 2) && present["flags"] == "O_WRONLY|O_CREAT|O_CLOEXEC", "{present}");
    assert_eq!((&present["user"], &present["uid"], &present["call"]), (&"root".into(), &0.into(), &"openat".into()), "{present}");
    assert!(present["command"] == "python3" && present["pid"].as_u64().is_some_and(|pid| pid > 1), "{present}");
    assert_eq!(opened(&lines, &audited.path("missing-0")).unwrap()["error"], "ENOENT");
    let connects: BTreeMap<u64, &Value> = lines
        .iter()
        .filter(|line| line["event"] == "connect" && line["address"] == "127.0.0.1")
        .map(|line| (line["port"].as_u64().unwrap(), line))
        .collect();
    let [open, closed] = [open_port, closed_port].map(|port| connects[&u64::from(port)]);
    assert_eq!((&open["result"], &open["protocol"], &open["family"]), (&0.into(), &"tcp".into(), &"inet".into()), "{open}");
    assert_eq!(closed["error"], "ECONNREFUSED", "{closed}");
    let accept = lines.iter().find(|line| line["event"] == "accept").unwrap();
    let its_port = accept["local_port"].as_u64().unwrap();
    assert!(accept["address"] == "127.0.0.1" && accept["port"].as_u64().is_some_and(|port| port > 0), "{accept}");
    assert!(connects.contains_key(&its_port), "it accepts only its own connection: {accept}");
    let mentions = |lines: &[Value], what: &Path| lines.iter().any(|line| line.to_string().contains(&what.display().to_string()));
    assert!(!mentions(&lines, &other.dir), "other work on the node is not recorded");
    assert!(other.read(w).is_empty());

    // The agent is killed: events meanwhile are not recorded, and the gap is marked.
    faults::kill_node(&w.dir, NODE).unwrap();
    audited.round(w, 1);
    faults::start_node(&w.dir, NODE).unwrap();
    w.wait("auditing to continue", || at_calls(w) && audited.is_audited(w));
    audited.round(w, 2);
    w.wait("the events of round 2", || {
        lines = audited.read(w);
        opened(&lines, &audited.path("present-2")).is_some()
    });
    assert!(opened(&lines, &audited.path("present-0")).is_some() && opened(&lines, &audited.path("present-1")).is_none());
    let gap = lines.iter().find(|line| line["event"] == "gap").unwrap();
    let (from, to) = (gap["from_ms"].as_u64().unwrap(), gap["to_ms"].as_u64().unwrap());
    let at = |name: &str| opened(&lines, &audited.path(name)).unwrap()["at_ms"].as_u64().unwrap();
    assert!(at("present-0") < to && from < to && to <= at("present-2"), "{gap}");

    w.ok(&["telemetry", "--alloc", &audited.id, "--mode=prod"]);
    w.wait("the programs to be detached", || !at_calls(w));
    audited.round(w, 3);
    let state = w.cluster().run_dir.join(NODE).join("state/traces");
    w.wait("all events to be in the store", || fs::read_dir(&state).is_ok_and(|mut left| left.next().is_none()));
    lines = audited.read(w);
    assert!(opened(&lines, &audited.path("present-3")).is_none());
    assert_eq!(lines.iter().filter(|line| line["event"] == "ended").count(), 1, "a killed agent records no end");
    let audit = w.ok(&["audit", "query", "--alloc", &audited.id]);
    assert!(audit.matches("TelemetryModeSet").count() == 2 && audit.contains("audit until its work ends"), "{audit}");
    for work in [audited, other] {
        w.ok(&["cancel", &work.id]);
        w.ended(&work.id);
    }
}
