//! Monitoring of running work by its users: alerts, hangs, `lattice watch`, `lattice diag`.

use crate::harness::{DAEMON, Group, JOB, NOBODY, Need, World};
use crate::telemetry;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process::{self, until};
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

const TOKEN: &str = "fedcba9876543210fedcba9876543210";
/// How long a hang may take to be reported: 10 s idle, rounds of a few seconds, and a busy machine.
pub const HANG: Duration = Duration::from_secs(120);

static MONITORING: Group = Group {
    theme: "monitoring",
    name: "monitoring",
    nodes: 2,
    quorum: 1,
    tweak: |options| {
        let token = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("monitoring-token");
        fs::write(&token, TOKEN).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        options.telemetry_lines = format!("  metrics_token_file: {:?}\n", token.to_string_lossy());
        options.agent_lines = "alerts:\n  hang_seconds: 10\n  rules:\n    \
                               - {name: busy, measure: cpu_cores, above: 0.05, cleared_at: 0.02, for_seconds: 1, severity: critical}\n    \
                               - {name: io_latency, measure: io_latency_p99, above: 0.000001, for_seconds: 2}\n"
            .to_owned();
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        MONITORING.test("alerts_come_and_go_in_the_stream_and_in_the_metrics", &[], alerts),
        MONITORING.test("requests_to_disks_that_take_long_are_an_alert", &[Need::KernelProbes, Need::BlockDevice], slow_disk),
        MONITORING.test("a_launch_hangs_where_all_its_ranks_do_and_goes_on_doing_so_over_a_killed_agent", &[], hangs),
        MONITORING.test("a_watch_outlives_an_agent_and_is_its_owners_alone", &[], watched),
        MONITORING.test("diag_says_what_ranks_wait_for", &[Need::Hosts], diagnosed),
        MONITORING.test("top_per_rank_tells_which_rank_spins_while_the_others_sleep", &[], per_rank),
        MONITORING.test("bad_alert_rules_are_refused_with_their_line", &[], bad_rules),
    ]
}

/// `lattice watch -o json` in the background.
pub struct Watching {
    child: Child,
    out: PathBuf,
}

impl Watching {
    pub fn begin(w: &World, name: &str, args: &[&str]) -> Self {
        let out = w.dir.join(format!("watch-{name}.jsonl"));
        let all: Vec<&str> = ["watch", "-o", "json"].into_iter().chain(args.iter().copied()).collect();
        let mut command = w.lattice.command(&all);
        let child = command.stdin(Stdio::null()).stdout(File::create(&out).unwrap()).stderr(Stdio::inherit()).spawn().unwrap();
        Self { child, out }
    }

    /// All complete lines so far.
    pub fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.out).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    fn wait(&self, what: &str, seen: impl Fn(&Value) -> bool) {
        self.wait_within(JOB, what, seen);
    }

    pub fn wait_within(&self, limit: Duration, what: &str, seen: impl Fn(&Value) -> bool) {
        let came = until(limit, || self.events().iter().any(&seen));
        assert!(came, "{what} was never reported: {:#?}", self.events());
    }

    fn ended(mut self) -> (ExitStatus, Vec<Value>) {
        let over = until(JOB, || self.child.try_wait().unwrap().is_some());
        assert!(over, "the watch does not end");
        let events = self.events();
        (self.child.wait().unwrap(), events)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn is_alert(event: &Value, alert: &str, raised: bool) -> bool {
    event["event"] == "alert" && event["alert"] == alert && event["raised"] == raised
}

/// The value of the single series of an agent's page that contains these texts.
fn series(w: &World, node: &str, pieces: &[&str]) -> Option<f64> {
    let (_, page) = telemetry::get(&w.cluster().node(node).unwrap().metrics, "/metrics", &format!("Authorization: Bearer {TOKEN}\r\n"));
    let line = page.lines().find(|line| !line.starts_with('#') && pieces.iter().all(|piece| line.contains(piece)))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn nodes_of(w: &World, id: &str) -> Vec<String> {
    let now = w.status(id);
    now["nodes"].as_array().unwrap_or_else(|| panic!("{now}")).iter().map(|node| node.as_str().unwrap().to_owned()).collect()
}

fn alerts(w: &World) {
    let calm = w.dir.join("calm");
    let program = format!("while [ ! -e {} ]; do :; done; sleep 600", calm.display());
    let id = w.submit(&["-N", "2", "--cores", "1", "--", "sh", "-c", &program]);
    w.running(&id);
    let all = Watching::begin(w, "all", &[&id, "--interval=1s", "--metrics=cpu_cores,memory_used,network_tx_bytes"]);
    let only = Watching::begin(w, "only", &[&id, "--alerts-only"]);
    for node in ["n1", "n2"] {
        all.wait("numbers of each node", |event| event["event"] == "metrics" && event["node"] == node);
        only.wait("busy", |event| is_alert(event, "busy", true) && event["node"] == node);
        w.wait("the metric", || series(w, node, &["lattice_alert_active{", &id, "alert=\"busy\"", "severity=\"critical\""]) == Some(1.0));
        assert!(series(w, node, &["lattice_alerts_raised_total{", "alert=\"busy\""]).unwrap() >= 1.0);
        // A rule whose measure this node lacks is marked as such.
        assert_eq!(series(w, node, &["lattice_alert_rule_measured{", "alert=\"gpu_idle\""]), Some(0.0));
        assert_eq!(series(w, node, &["lattice_alert_rule_measured{", "alert=\"busy\""]), Some(1.0));
    }
    // A later watcher gets the alerts that are raised.
    let later = Watching::begin(w, "later", &[&id, "--alerts-only"]);
    later.wait("what is raised", |event| is_alert(event, "busy", true) && text(event, "text").contains("cpu_cores is above 0.05"));
    assert!(!only.events().iter().any(|event| is_alert(event, "busy", false)), "{:?}", only.events());
    File::create(&calm).unwrap();
    for node in ["n1", "n2"] {
        only.wait("that it is calm", |event| is_alert(event, "busy", false) && event["node"] == node);
        w.wait("the metric", || series(w, node, &["lattice_alert_active{", &id, "alert=\"busy\""]) == Some(0.0));
    }
    w.ok(&["cancel", &id]);
    w.ended(&id);
    for (watch, numbers) in [(all, true), (only, false)] {
        let (status, events) = watch.ended();
        assert_eq!(status.code(), Some(0));
        let last = events.last().unwrap();
        assert_eq!((&last["event"], &last["state"], &last["node"]), (&"end".into(), &"Cancelled".into(), &Value::Null));
        let number_events: Vec<&Value> = events.iter().filter(|event| event["event"] == "metrics").collect();
        assert_eq!(!number_events.is_empty(), numbers);
        for event in number_events {
            for one in event["measured"].as_array().unwrap() {
                let wanted = match text(one, "name").as_str() {
                    "cpu_cores" | "memory_used" => ["cgroup2", "procfs"].contains(&text(one, "source").as_str()),
                    "network_sent_bytes" => one["source"] == "ebpf",
                    _ => false,
                };
                assert!(wanted, "{one}");
            }
            assert!(event["age_ms"].as_u64().unwrap() < 30_000, "{event}");
        }
    }
}

/// No disk answers within a microsecond.
fn slow_disk(w: &World) {
    let (path, go, file) = (w.dir.join("writes.py"), w.dir.join("write"), w.dir.join("written"));
    let program = format!(
        "import mmap, os, time\npage = mmap.mmap(-1, 4096)\nfd = os.open({file:?}, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)\n\
         while not os.path.exists({go:?}): time.sleep(0.1)\n\
         while True: os.pwrite(fd, page, 0); time.sleep(0.02)\n"
    );
    fs::write(&path, program).unwrap();
    let id = w.submit(&["--cores", "1", "--", "/usr/bin/python3", &path.to_string_lossy()]);
    w.running(&id);
    let node = nodes_of(w, &id)[0].clone();
    let watch = Watching::begin(w, "disk", &[&id, "--alerts-only"]);
    let active = || series(w, &node, &["lattice_alert_active{", &id, "alert=\"io_latency\""]);
    // It has not used a disk yet.
    w.wait("two measurements of it", || series(w, &node, &["lattice_allocation_cpu_seconds_total{", &id, "mode=\"user\""]).is_some());
    assert!(active().is_none_or(|raised| raised == 0.0), "{:?}", active());
    File::create(&go).unwrap();
    watch.wait("that its disk is slow", |event| is_alert(event, "io_latency", true) && event["node"] == node.as_str());
    let alert = watch.events().into_iter().find(|event| is_alert(event, "io_latency", true)).unwrap();
    assert!(text(&alert, "text").contains("io_latency_p99 is above") && alert["severity"] == "warning", "{alert}");
    w.wait("the metric", || active() == Some(1.0));
    assert_eq!(series(w, &node, &["lattice_alert_rule_measured{", "alert=\"io_latency\""]), Some(1.0));
    w.ok(&["cancel", &id]);
    w.ended(&id);
    assert_eq!(watch.ended().0.code(), Some(0));
}

fn hangs(w: &World) {
    let go = w.dir.join("go-on");
    let hung = format!("while [ ! -e {} ]; do sleep 2; done; while :; do :; done", go.display());
    let id = w.submit(&["-N", "2", "--cores", "1", "--", "sh", "-c", &hung]);
    // One of its ranks works, so it does not hang.
    let one_works = "if [ $LATTICE_RANK = 1 ]; then while :; do :; done; else sleep 600; fi";
    let works = w.submit(&["-N", "2", "--cores", "1", "--", "sh", "-c", one_works]);
    for id in [&id, &works] {
        w.running(id);
    }
    let (head, other) = (nodes_of(w, &id)[0].clone(), nodes_of(w, &id)[1].clone());
    let watch = Watching::begin(w, "hang", &[&id, "--alerts-only"]);
    watch.wait_within(HANG, "the hang", |event| is_alert(event, "hang", true) && event["node"] == head.as_str());
    let alert = watch.events().into_iter().find(|event| is_alert(event, "hang", true)).unwrap();
    assert!(alert["launch"] == 1 && text(&alert, "text").contains("looked at: cpu"), "{alert}");
    let active = |id: &str| series(w, &head, &["lattice_alert_active{", id, "alert=\"hang\""]);
    let head_of_works = nodes_of(w, &works)[0].clone();
    w.wait("its metric", || active(&id) == Some(1.0));
    w.wait("how long the other one's first rank does nothing", || {
        series(w, &head_of_works, &["lattice_allocation_launch_idle_seconds{", &works, "launch=\"1\""]) >= Some(15.0)
    });
    assert_eq!(series(w, &head_of_works, &["lattice_alert_active{", &works, "alert=\"hang\""]), None);
    // Neither the restart of a head nor of another agent clears it.
    for node in [&head, &other] {
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
        w.wait("it to be reported as before", || active(&id) == Some(1.0));
    }
    let again = Watching::begin(w, "hang-again", &[&id, "--alerts-only"]);
    again.wait("what is raised", |event| is_alert(event, "hang", true));
    let since = again.events().into_iter().find(|event| is_alert(event, "hang", true)).unwrap();
    assert!(since["for_ms"].as_u64().unwrap() > 0, "{since}");
    // Several rounds pass, and nothing is cleared.
    let rounds = || series(w, &other, &["lattice_allocation_launch_idle_seconds{", &id, "launch=\"1\""]);
    w.wait("the other node to look", || rounds().is_some());
    let before = rounds();
    w.wait("two more measurements", || rounds() >= before.map(|seconds| seconds + 10.0));
    assert_eq!(active(&id), Some(1.0));
    assert_eq!(series(w, &head_of_works, &["lattice_alert_active{", &works, "alert=\"hang\""]), None);
    assert!(!again.events().iter().any(|event| is_alert(event, "hang", false)), "{:?}", again.events());
    File::create(&go).unwrap();
    again.wait_within(HANG, "that it moves", |event| is_alert(event, "hang", false) && text(event, "text").contains("moves again"));
    w.wait("its metric", || active(&id) == Some(0.0));
    for id in [&id, &works] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
}

fn watched(w: &World) {
    let id = w.submit(&["-N", "2", "--cores", "1", "--", "sleep", "600"]);
    w.running(&id);
    let watch = Watching::begin(w, "away", &[&id, "--interval=1s"]);
    for node in ["n1", "n2"] {
        watch.wait("metrics", |event| event["event"] == "metrics" && event["node"] == node);
    }
    faults::kill_node(&w.dir, "n2").unwrap();
    watch.wait("that n2 is unreachable", |event| {
        event["event"] == "unreachable" && event["node"] == "n2" && !text(event, "reason").is_empty()
    });
    let gone = watch.events().len();
    faults::start_node(&w.dir, "n2").unwrap();
    let back = until(JOB, || watch.events()[gone..].iter().any(|event| event["event"] == "metrics" && event["node"] == "n2"));
    assert!(back, "{:#?}", &watch.events()[gone..]);
    assert!(watch.events()[gone..].iter().any(|event| event["event"] == "note" && event["node"] == "n2"));
    // The agent that answers `watch` is killed, too.
    let asked = watch.events().len();
    faults::kill_node(&w.dir, "n1").unwrap();
    faults::start_node(&w.dir, "n1").unwrap();
    let back = until(JOB, || {
        let news = watch.events();
        ["n1", "n2"].iter().all(|node| news[asked..].iter().any(|event| event["event"] == "metrics" && event["node"] == *node))
    });
    assert!(back, "{:#?}", &watch.events()[asked..]);
    // `watch` is refused for another user's work.
    let own = w.run_as(NOBODY, &["submit", "-o", "name", "--cores", "1", "--", "sleep", "600"]);
    assert_eq!(own.code(), 0, "{}", own.err());
    let own = own.out().trim().to_owned();
    w.running(&own);
    for (who, what) in [(NOBODY, &id), (DAEMON, &own)] {
        for verb in ["watch", "diag"] {
            let refused = w.run_as(who, &[verb, what]);
            assert_eq!((refused.code(), refused.out().as_str()), (4, ""), "{verb}: {}", refused.err());
            assert!(refused.err().contains("belongs to"), "{}", refused.err());
        }
    }
    assert_eq!(w.run_as(NOBODY, &["diag", &own]).code(), 0);
    let unknown = w.run(&["watch", &id, "--metrics=cpu_core"]);
    assert_eq!(unknown.code(), 2, "{}", unknown.err());
    assert!(unknown.err().contains("did you mean \"cpu_cores\""), "{}", unknown.err());
    assert_eq!(w.run(&["watch", &id, "--interval=1ms"]).code(), 2);
    for id in [&id, &own] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
    assert_eq!(watch.ended().0.code(), Some(0));
    for verb in ["watch", "diag"] {
        let over = w.run(&[verb, &id]);
        assert_eq!(over.code(), 4, "{}", over.err());
        assert!(over.err().contains("is Cancelled"), "{}", over.err());
    }
}

fn diagnosed(w: &World) {
    // A parent in vfork waits like a process that waits for a disk: uninterruptibly, except for SIGKILL.
    let source = w.dir.join("waits.c");
    fs::write(&source, "#include <unistd.h>\nint main() { if (!vfork()) { sleep(600); _exit(0); } return 0; }\n").unwrap();
    let waits = w.dir.join("waits");
    assert_eq!(process::run(Command::new("cc").arg("-w").arg("-o").arg(&waits).arg(&source), JOB).unwrap().code(), 0);
    let program = format!(
        "if [ $LATTICE_RANK = 0 ]; then exec {}; fi; ulimit -n 11; for n in 3 4 5 6 7 8 9; do eval \"exec $n</dev/null\"; done; echo open; \
         while :; do sleep 1; done",
        waits.display()
    );
    let id = w.submit(&["-N", "2", "--cores", "1", "--", "bash", "-c", &program]);
    w.running(&id);
    w.wait_log(&id, "open");
    // The other rank gets its state a moment after its launch.
    let mut diagnosis = Value::Null;
    w.wait("a rank that waits uninterruptibly", || {
        diagnosis = w.lattice.json(&["diag", &id, "--stacks"]).unwrap();
        let nodes = diagnosis["nodes"].as_array().into_iter().flatten();
        let mut processes = nodes.flat_map(|node| node["processes"].as_array().into_iter().flatten());
        processes.any(|process| process["rank"] == 0 && process["state"] == "D")
    });
    let nodes = diagnosis["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2, "{diagnosis:#}");
    let processes = || nodes.iter().flat_map(|node| node["processes"].as_array().unwrap());
    let rank = |rank: u64| processes().filter(move |process| process["rank"] == rank && process["launch"] == 1);
    let waiting = rank(0).find(|process| process["state"] == "D").unwrap_or_else(|| panic!("none in D: {diagnosis:#}"));
    assert!(!text(waiting, "wchan").is_empty(), "{waiting}");
    assert!(!waiting["stack"].as_array().unwrap().is_empty(), "{waiting}");
    assert!(waiting["stack"].as_array().unwrap().iter().all(|call| !call.as_str().unwrap().contains(['+', '/', '['])), "{waiting}");
    assert!(waiting["notes"].to_string().contains("waits uninterruptibly"), "{waiting}");
    assert!(waiting["off_cpu_ms"].is_u64(), "{waiting}");
    let full = rank(1).find(|process| process["name"] == "bash").unwrap_or_else(|| panic!("{diagnosis:#}"));
    assert!(full["notes"].to_string().contains("of 11 open files: raise"), "{full}");
    let about = |part: &str| {
        let findings = || nodes.iter().flat_map(|node| node["findings"].as_array().unwrap());
        findings().filter(|finding| finding["part"] == part).map(|finding| text(finding, "subject")).collect::<Vec<_>>()
    };
    assert!(about("network").iter().any(|about| about.starts_with("TCP")), "{diagnosis:#}");
    assert!(about("storage").iter().any(|about| about.starts_with("/ ")), "{diagnosis:#}");
    assert!(about("work").iter().any(|about| about == "pressure cpu"), "{diagnosis:#}");
    let table = w.ok(&["diag", &id]);
    assert!(table.starts_with("NODE") && table.lines().any(|line| line.starts_with("! ")), "{table}");
    let storage = w.ok(&["diag", &id, "--storage"]);
    assert!(storage.contains("statvfs") && !storage.contains("TCP") && !storage.contains("RANK"), "{storage}");
    assert!(storage.lines().next().is_some_and(|head| head.trim_end().ends_with("AGE")), "{storage}");
    let network = w.ok(&["diag", &id, "--network"]);
    assert!(network.contains("TCP") && !network.contains("statvfs"), "{network}");
    // A value that no node can measure is not a gap.
    assert!(network.lines().any(|line| line.contains("CSIG") && line.contains("unsupported: ")), "{network}");
    let findings = || nodes.iter().flat_map(|node| node["findings"].as_array().unwrap());
    for about in ["CSIG", "CUPTI"] {
        assert!(
            findings().any(|f| f["subject"] == about && text(f, "text").starts_with("unsupported: ") && f["problem"] == false),
            "{diagnosis:#}"
        );
    }
    assert!(findings().all(|finding| finding["age_ms"].as_u64().is_some_and(|age| age < 20_000)), "{diagnosis:#}");
    // A missing node is reported, and the other one answers.
    faults::kill_node(&w.dir, "n2").unwrap();
    let part = w.run(&["diag", &id, "-o", "json"]);
    assert_eq!(part.code(), 0, "{}", part.err());
    assert!(part.err().contains("n2 reports nothing"), "{}", part.err());
    let part = w.run(&["top", &id, "--per-rank", "-o", "json"]);
    assert_eq!(part.code(), 0, "{}", part.err());
    assert!(part.err().contains("n2 does not report its ranks"), "{}", part.err());
    let usage: Value = serde_json::from_str(&part.out()).unwrap();
    assert!(usage["ranks"].as_array().unwrap().iter().all(|rank| rank["node"] == "n1"), "{usage:#}");
    faults::start_node(&w.dir, "n2").unwrap();
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

fn per_rank(w: &World) {
    let program = "if [ $LATTICE_RANK = 2 ]; then while :; do :; done; fi; exec sleep 600";
    let id = w.submit(&["-N", "2", "--tasks-per-node", "2", "--cores", "1", "--", "sh", "-c", program]);
    w.running(&id);
    let mut usage = Value::Null;
    // On a busy machine the rank that spins may not run in every second.
    w.wait("the one that spins", || {
        usage = w.at("n2").json(&["top", &id, "--per-rank"]).unwrap();
        let launch = &usage["launches"][0];
        let cores = |which: &str| launch[which]["cpu_cores"].as_f64();
        launch["ranks"] == 4 && cores("busiest") > Some(0.1) && cores("least_busy") < Some(0.05)
    });
    let launch = &usage["launches"][0];
    assert_eq!((&launch["launch"], &launch["busiest"]["rank"]), (&1.into(), &2.into()), "{usage:#}");
    assert_eq!((&launch["states"]["running"], &launch["states"]["sleeping"]), (&1.into(), &3.into()), "{usage:#}");
    let ranks = usage["ranks"].as_array().unwrap();
    let nodes = nodes_of(w, &id);
    for (number, rank) in ranks.iter().enumerate() {
        // Blocks of two on each node.
        assert!(rank["rank"] == number && rank["node"] == nodes[number / 2].as_str(), "{usage:#}");
        assert!(rank["window_ms"].as_u64() >= Some(1000) && rank["memory_bytes"].as_u64() > Some(0) && rank["threads"] == 1, "{rank}");
        let (name, state) = if number == 2 { ("sh", "running") } else { ("sleep", "sleeping") };
        assert!(rank["name"] == name && rank["state"] == state, "{rank}");
        let pid = rank["pid"].as_i64().unwrap();
        let environ = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        assert!(environ.split('\0').any(|one| one == format!("LATTICE_RANK={number}")), "{rank}");
    }
    let table = w.ok(&["top", &id, "--per-rank"]);
    assert!(table.starts_with("LAUNCH  RANK  NODE") && table.contains("launch 1: 4 ranks"), "{table}");
    // `metrics` is a documented name of `top`, and with --stream of `watch`.
    assert!(w.ok(&["metrics", &id]).starts_with("METRIC"));
    // Without `--per-rank`, ranks are not measured.
    assert_eq!(w.lattice.json(&["top", &id]).unwrap()["ranks"], Value::Null);
    let refused = w.run_as(NOBODY, &["top", &id, "--per-rank"]);
    assert_eq!((refused.code(), refused.out().as_str()), (4, ""), "{}", refused.err());
    w.ok(&["cancel", &id]);
    w.ended(&id);
    let over = w.run(&["top", &id, "--per-rank"]);
    assert_eq!(over.code(), 4, "{}", over.err());
    let over = w.run(&["metrics", &id, "--stream"]);
    assert!(over.code() == 4 && over.err().contains("is Cancelled"), "{}", over.err());
}

fn bad_rules(w: &World) {
    let cluster = w.cluster();
    let bad = w.script("bad-agent.yaml", "node_id: n1\nalerts:\n  rules:\n  - {name: busy, measure: cpu_core, above: 0.05}\n");
    let refused = process::run(Command::new(cluster.binaries.join("lattice-agent")).arg("--config").arg(&bad), JOB).unwrap();
    assert_ne!(refused.code(), 0);
    let message = refused.err();
    assert!(message.contains("did you mean \"cpu_cores\"") && message.contains("line 4"), "{message}");
}
