//! Metrics of agents and members: pages in a real parser, known loads, and a real store.

use crate::harness::{DAEMON, Group, JOB, NOBODY, Need, World, counts_in_kernel, ended};
use crate::hung::HungMount;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::ports::Ports;
use lattice_lab::process::{self, until, until_asked};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Debian's Python, which has the parser of Prometheus's own client.
pub const PYTHON: &str = "/usr/bin/python3";
/// Processor time that an allocation may use besides its program's loop: start, the surrounding shell, a tick.
const BESIDES_SECONDS: f64 = 0.6;

pub static TELEMETRY: Group = Group {
    theme: "telemetry",
    name: "telemetry",
    nodes: 2,
    quorum: 1,
    tweak: |options| {
        let token = file("metrics-token");
        fs::write(&token, TOKEN).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        options.telemetry_lines = format!(
            "  metrics_token_file: {:?}\n  tsdb_endpoint: \"http://{}\"\n  prod_interval_seconds: 1\n",
            token.to_string_lossy(),
            store_address()
        );
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        // First, because an unreachable store is retried after a minute at the latest.
        TELEMETRY.test("a_store_that_was_down_has_no_gap", &[Need::VictoriaMetrics], stored),
        TELEMETRY.test("pages_are_read_by_a_real_parser_and_their_counters_move", &[Need::PrometheusClient], pages),
        TELEMETRY.test("known_loads_of_two_allocations_are_measured_separately", &[Need::PrometheusClient], loads),
        TELEMETRY.test("top_collects_from_the_allocations_agents_and_is_for_its_owner_alone", &[], top),
        TELEMETRY.test("a_mount_that_hangs_is_reported_and_stops_no_other_measurement", &[Need::Fuse], hung_mount),
        TELEMETRY.test("metrics_continue_after_the_agent_was_killed", &[Need::PrometheusClient], killed),
        TELEMETRY.test(
            "runs_are_compared_from_their_own_starts_and_by_the_agents_while_the_store_is_down",
            &[Need::VictoriaMetrics],
            compared,
        ),
    ]
}

pub fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn store_address() -> &'static str {
    static ADDRESS: OnceLock<String> = OnceLock::new();
    ADDRESS.get_or_init(|| format!("127.0.0.1:{}", Ports::new(u64::from(std::process::id()) + 7).take().unwrap()))
}

/// Sends a GET request. Returns the status line with the headers, and the body.
pub fn get(address: &str, path: &str, more: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
    stream.set_read_timeout(Some(JOB)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{more}Connection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (head.to_owned(), body.to_owned())
}

/// A page, parsed by Prometheus's client for Python: name and labels → value.
pub struct Page(pub BTreeMap<(String, BTreeMap<String, String>), f64>);

impl Page {
    pub fn of(address: &str, token: Option<&str>) -> Self {
        let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let (head, body) = get(address, "/metrics", &authorization);
        assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
        let program = "import sys, json\nfrom prometheus_client.parser import text_string_to_metric_families as read\n\
                       print(json.dumps([[s.name, s.labels, s.value] for f in read(sys.stdin.read()) for s in f.samples]))";
        let mut parser = Command::new(PYTHON).args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        parser.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let parsed = parser.wait_with_output().unwrap();
        assert!(parsed.status.success(), "the parser refuses the page:\n{body}");
        let samples: Vec<(String, BTreeMap<String, String>, f64)> = serde_json::from_slice(&parsed.stdout).unwrap();
        let page: BTreeMap<_, _> = samples.iter().map(|(name, labels, value)| ((name.clone(), labels.clone()), *value)).collect();
        assert_eq!(page.len(), samples.len(), "a series appears twice:\n{body}");
        Self(page)
    }

    pub fn agent(w: &World, node: &str) -> Self {
        Self::of(&w.cluster().node(node).unwrap().metrics, Some(TOKEN))
    }

    pub fn member(w: &World) -> Self {
        Self::of(&w.cluster().members[0].metrics, None)
    }

    /// The only series with this name whose labels include these.
    pub fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |all: &BTreeMap<String, String>| labels.iter().all(|(key, value)| all.get(*key).is_some_and(|v| v == value));
        let found: Vec<f64> = self.0.iter().filter(|((n, all), _)| n == name && has(all)).map(|(_, value)| *value).collect();
        assert!(found.len() < 2, "{name} {labels:?} is {} series", found.len());
        found.first().copied()
    }

    /// The sum of all series with this name whose labels include these.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |all: &BTreeMap<String, String>| labels.iter().all(|(key, value)| all.get(*key).is_some_and(|v| v == value));
        self.0.iter().filter(|((n, all), _)| n == name && has(all)).map(|(_, value)| *value).sum()
    }

    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).unwrap_or_else(|| panic!("{name} {labels:?} is not on the page"))
    }

    /// Processor seconds of an allocation.
    pub fn cpu_seconds(&self, id: &str) -> f64 {
        let mode = |mode| self.find("lattice_allocation_cpu_seconds_total", &[("allocation", id), ("mode", mode)]).unwrap_or(0.0);
        mode("user") + mode("system")
    }

    fn has_series_of(&self, id: &str) -> bool {
        self.0.keys().any(|(_, labels)| labels.get("allocation").is_some_and(|v| v == id))
    }
}

fn pages(w: &World) {
    let (agent, before, member) = (Page::agent(w, "n1"), Page::agent(w, "n2"), Page::member(w));
    assert_eq!(agent.value("lattice_build_info", &[("process", "agent"), ("node_id", "n1")]), 1.0);
    assert_eq!(agent.value("lattice_gossip_members", &[("state", "alive")]), 2.0, "n1 and n2");
    assert_eq!(agent.value("lattice_agent_node_state", &[("state", "Ready")]), 1.0);
    assert_eq!(agent.value("lattice_agent_quorum_connected", &[]), 1.0);
    if counts_in_kernel() {
        // The kernel's accounting of its programs is on for one second of each minute, starting with the first.
        let overhead = || Page::agent(w, "n1").find("lattice_agent_ebpf_overhead_percent", &[]);
        w.wait("the cost of the programs in the kernel", || overhead().is_some());
        assert!(overhead().is_some_and(|percent| percent > 0.0 && percent < 50.0), "{:?}", overhead());
        let pid = w.cluster().node("n1").unwrap().daemon.process.as_ref().unwrap().pid;
        let counts = || {
            let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
            links.into_iter().any(|link| link.to_string_lossy().contains("bpf-stats"))
        };
        w.wait("the accounting to be off", || !counts());
    }
    assert_eq!(member.value("lattice_raft_leader", &[("member_id", "1")]), 1.0);
    assert_eq!(member.value("lattice_nodes_total", &[("state", "Ready")]), 2.0);
    assert!(member.value("lattice_raft_term", &[]) >= 1.0);
    for of_accounting in ["lattice_accounting_events_buffered", "lattice_accounting_events_dropped_total"] {
        assert_eq!(member.value(of_accounting, &[]), 0.0, "no agent stores ended work");
    }
    assert!(member.value("lattice_raft_data_bytes", &[("part", "log")]) > 0.0);
    // Every name is in the reference page, with the right process.
    let reference = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
    let documented = |name: &str| {
        let stem = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        [Some(name), stem].into_iter().flatten().any(|name| reference.contains(&format!("| `{name}` |")))
    };
    for (name, labels) in agent.0.keys().chain(member.0.keys()) {
        assert!(documented(name), "{name} {labels:?} is not in docs/metrics.md");
    }
    let id = w.submit(&["-N", "2", "--cores", "1", "--", "true"]);
    w.completed(&id);
    // A page is cached for a second.
    let moving = [
        "lattice_journal_appends_total",
        "lattice_journal_records_total",
        "lattice_journal_written_bytes_total",
        "lattice_journal_append_seconds_count",
        "lattice_gossip_datagrams_received_total",
        "lattice_gossip_datagrams_sent_total",
        "process_cpu_seconds_total",
        "lattice_node_context_switches_total",
    ];
    w.wait("the agent's counters to move", || {
        let after = Page::agent(w, "n1");
        moving.iter().all(|name| after.value(name, &[]) > agent.value(name, &[]))
    });
    let moving = [
        ("lattice_raft_proposals_total", &[("result", "accepted")][..]),
        ("lattice_raft_entries_proposed_total", &[]),
        ("lattice_raft_commit_latency_seconds_count", &[]),
        ("lattice_raft_commit_latency_seconds_sum", &[]),
        ("lattice_raft_apply_seconds_count", &[]),
        ("lattice_raft_applied_index", &[]),
        ("lattice_allocations_total", &[("state", "Completed")]),
        ("lattice_audit_records_total", &[]),
    ];
    w.wait("the member's counters to move", || {
        let after = Page::member(w);
        moving.iter().all(|(name, labels)| after.find(name, labels) > Some(member.find(name, labels).unwrap_or(0.0)))
    });
    served(w, [&before, &agent]);
    let (n1, cluster) = (w.cluster().node("n1").unwrap().metrics.clone(), w.cluster());
    assert!(get(&n1, "/metrics", "Authorization: Bearer wrong\r\n").0.contains(" 401 "));
    assert!(get(&n1, "/", "").0.contains(" 404 "));
    let config = cluster.dir.join("n1/agent.yaml");
    let agent = cluster.binaries.join("lattice-agent");
    let doctor = process::run(Command::new(agent).arg("doctor").arg("--config").arg(config), JOB).unwrap().out();
    assert!(doctor.lines().any(|l| l.contains("measures") && l.contains("by cgroup2: ")), "{doctor}");
    let probes = doctor.lines().find(|l| l.contains("kernel probes")).unwrap_or_else(|| panic!("{doctor}"));
    if counts_in_kernel() {
        assert!(doctor.contains("by ebpf: "), "{doctor}");
        assert!(probes.contains("counting: sched_switch, ") && probes.contains("packets_sent"), "{probes}");
    }
    assert!(doctor.contains("is served by this node's agent"), "{doctor}");
}

/// Checks that nodes with and without work report as many allocations in each heartbeat as the ledger has for them.
fn counted_alike(w: &World) {
    let acknowledged = || ["n1", "n2"].map(|node| Page::agent(w, node).value("lattice_agent_heartbeat_latency_seconds_count", &[]));
    let before = acknowledged();
    w.wait("more heartbeats than a miscount needs", || acknowledged().iter().zip(before).all(|(now, before)| *now > before + 4.0));
    assert_eq!(Page::member(w).value("lattice_node_heartbeats_miscounted_total", &[]), 0.0);
}

/// Checks the counters of n1's API and of the scheduler since these earlier pages of n2 and n1: one submission was
/// placed.
fn served(w: &World, before: [&Page; 2]) {
    let submit = [("method", "AllocationService/Submit"), ("status", "ok")];
    let accepted = [("vcluster", "default"), ("result", "accepted")];
    let moving = [
        ("lattice_api_requests_total", &submit[..]),
        ("lattice_api_request_duration_seconds_count", &submit[..1]),
        ("lattice_scheduling_proposals_total", &accepted[..]),
        ("lattice_scheduling_placements_total", &accepted[..1]),
        ("lattice_scheduling_cycle_duration_seconds_count", &[]),
        ("lattice_agent_heartbeat_latency_seconds_count", &[]),
        ("lattice_agent_allocation_startup_seconds_count", &[]),
    ];
    w.wait("the submission and its placement to be counted", || {
        let after = [Page::agent(w, "n2"), Page::agent(w, "n1")];
        let sum = |pages: [&Page; 2], name, labels| pages.iter().map(|page| page.sum(name, labels)).sum::<f64>();
        moving.iter().all(|(name, labels)| sum([&after[0], &after[1]], name, labels) > sum(before, name, labels))
    });
    // Exactly one agent exports the queue, which is empty.
    w.wait("one agent to export the queue", || {
        let depths = ["n1", "n2"].map(|node| Page::agent(w, node).find("lattice_scheduling_queue_depth", &accepted[..1]));
        depths.iter().flatten().copied().eq([0.0])
    });
    // A stream counts as open while a client reads it.
    let id = w.submit(&["--cores", "1", "--", "sleep", "600"]);
    w.running(&id);
    counted_alike(w);
    let open = || Page::agent(w, "n1").value("lattice_api_active_streams", &[("stream_type", "logs")]);
    let at_rest = open();
    let mut reads = w.lattice.command(&["logs", "--follow", &id]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    w.wait("the stream to be open", || open() > at_rest);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    assert!(until(JOB, || reads.try_wait().unwrap().is_some()), "the log does not end");
    w.wait("the stream to be closed", || open() <= at_rest);
    let vnis = ["total", "available"].map(|what| Page::member(w).value(&format!("lattice_network_vni_pool_{what}"), &[]));
    assert!(vnis[0] > 0.0 && vnis[1] <= vnis[0], "{vnis:?}");
}

/// A program that uses this many seconds of a processor and this many MiB, prints `burnt`, and sleeps.
fn burner(w: &World, name: &str, seconds: f64, mebibytes: u32) -> String {
    let path = w.dir.join(format!("{name}.py"));
    let program = format!(
        "import time\nkept = bytearray({mebibytes} << 20)\nfor at in range(0, len(kept), 4096): kept[at] = 1\n\
         while time.process_time() < {seconds}: pass\nprint('burnt', flush=True)\ntime.sleep(600)\n"
    );
    fs::write(&path, program).unwrap();
    w.submit(&["--cores", "1", "--", PYTHON, &path.to_string_lossy()])
}

/// The single node of an allocation.
pub fn node_of(w: &World, id: &str) -> String {
    let now = w.status(id);
    let nodes = now["nodes"].as_array().unwrap_or_else(|| panic!("{now}"));
    assert_eq!(nodes.len(), 1, "{now}");
    nodes[0].as_str().unwrap().to_owned()
}

fn hung_mount(w: &World) {
    let hung = HungMount::silent(&w.dir.join("silent"));
    // An agent reads its mounts every half minute, and at its start.
    faults::kill_node(&w.dir, "n1").unwrap();
    faults::start_node(&w.dir, "n1").unwrap();
    let page = || get(&w.cluster().node("n1").unwrap().metrics, "/metrics", &format!("Authorization: Bearer {TOKEN}\r\n")).1;
    let answers = |page: &str, mount: &str| {
        let mut lines = page.lines().filter(|line| line.starts_with("lattice_node_mount_answers{"));
        lines.find(|line| line.contains(&format!("mount=\"{mount}\"")))?.rsplit(' ').next()?.parse::<u32>().ok()
    };
    let silent = hung.dir.to_string_lossy().into_owned();
    w.wait("the mount that hangs", || answers(&page(), &silent) == Some(0));
    let now = page();
    assert_eq!(answers(&now, "/"), Some(1), "{now}");
    assert!(!now.lines().any(|line| line.starts_with("lattice_node_mount_size_bytes{") && line.contains(&silent)), "{now}");
    // Work is measured, and its network and processes are exported as usual.
    w.ok(&["node", "cordon", "n2", "--reason", "the work must run on n1"]);
    let id = w.submit(&["--cores", "1", "--", "sh", "-c", "while :; do :; done"]);
    w.running(&id);
    let cores = || {
        let usage = w.lattice.json(&["top", &id]).ok()?;
        usage["summary"].as_array()?.iter().find(|one| one["name"] == "cpu_cores")?["now"].as_f64()
    };
    w.wait("its processor time", || cores() > Some(0.05));
    let diagnosis = w.lattice.json(&["diag", &id]).unwrap();
    let findings = diagnosis["nodes"][0]["findings"].as_array().unwrap();
    let of = findings.iter().find(|f| text(f, "subject").starts_with(&silent)).unwrap_or_else(|| panic!("{diagnosis:#}"));
    assert!(of["problem"] == true && findings.iter().any(|f| text(f, "subject").starts_with("TCP")), "{diagnosis:#}");
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.ok(&["node", "uncordon", "n2"]);
}

fn loads(w: &World) {
    let known = [(burner(w, "much", 3.0, 200), 3.0, 200), (burner(w, "little", 1.0, 20), 1.0, 20)];
    for (id, ..) in &known {
        w.wait_log(id, "burnt");
    }
    for (id, seconds, mebibytes) in &known {
        let node = node_of(w, id);
        let at = || Page::agent(w, &node);
        w.wait(&format!("the processor time of {id}"), || at().cpu_seconds(id) >= *seconds);
        let page = at();
        let counted = page.cpu_seconds(id);
        assert!(counted <= seconds + BESIDES_SECONDS, "{id} used {seconds} s, and {counted} s are reported");
        let memory = page.value("lattice_allocation_memory_bytes", &[("allocation", id)]);
        let (least, most) = (f64::from(*mebibytes) * 1_048_576.0, f64::from(mebibytes + 60) * 1_048_576.0);
        assert!(memory > least && memory < most, "{id} has {mebibytes} MiB, and {memory} bytes are reported");
        let faults = page.value("lattice_allocation_page_faults_total", &[("allocation", id), ("kind", "minor")]);
        assert!(faults > 0.0);
        assert_eq!(page.value("lattice_allocation_processes", &[("allocation", id)]), 1.0);
        assert_eq!(page.value("lattice_allocation_info", &[("allocation", id), ("user", "root")]), 1.0);
        assert_eq!(page.value("lattice_allocation_measure_source_info", &[("measure", "cpu_user"), ("source", "cgroup2")]), 1.0);
    }
    // A scraper without the token sees no series of allocations.
    let id = &known[0].0;
    for node in ["n1", "n2"] {
        let open = Page::of(&w.cluster().node(node).unwrap().metrics, None);
        assert!(!open.has_series_of(id) && open.find("lattice_node_memory_total_bytes", &[]).is_some());
    }
    for (id, ..) in &known {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
    // The series are exported for two more intervals of the push.
    w.wait("their series to go", || ["n1", "n2"].iter().all(|node| !Page::agent(w, node).has_series_of(id)));
}

pub fn measured<'a>(node: &'a Value, name: &str) -> &'a Value {
    let all = node["measured"].as_array().unwrap_or_else(|| panic!("{node}"));
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name} in {node}"))
}

fn top(w: &World) {
    // A shell might start a program of Open MPI: without `--pmi=none` a PMIx server would run beside it.
    let id = w.submit(&["-N", "2", "--cores", "1", "--pmi=none", "--", "sh", "-c", "while :; do :; done"]);
    w.running(&id);
    let usage = w.lattice.json(&["top", &id, "--duration=1m"]).unwrap();
    assert_eq!(usage["allocation"], id.as_str());
    let nodes = usage["nodes"].as_array().unwrap();
    assert_eq!(nodes.iter().map(|n| text(n, "node")).collect::<std::collections::BTreeSet<_>>().len(), 2, "{usage}");
    for node in nodes {
        let cpu = measured(node, "cpu_cores");
        // A measurement that takes longer than a tenth of its interval gives no rates, so no rate is over a tenth too high.
        let (mean, max) = (cpu["mean"].as_f64().unwrap(), cpu["max"].as_f64().unwrap());
        assert!(mean > 0.0 && max < 1.2, "one loop on one core: {usage}");
        assert!(max >= mean, "{usage}");
        assert_eq!(cpu["source"], "cgroup2");
        assert!(node["age_ms"].as_u64().unwrap() < 5000, "{usage}");
        assert!(measured(node, "memory_used")["now"].as_f64().unwrap() > 0.0);
        assert_eq!(measured(node, "processes")["now"], 1.0);
    }
    let sum: f64 = nodes.iter().map(|node| measured(node, "cpu_cores")["now"].as_f64().unwrap()).sum();
    let summary = usage["summary"].as_array().unwrap().iter().find(|one| one["name"] == "cpu_cores").unwrap();
    assert!((summary["now"].as_f64().unwrap() - sum).abs() < 1e-9 && summary["nodes"] == 2, "{usage}");
    let table = w.ok(&["top", &id]);
    assert!(table.starts_with("METRIC") && table.lines().any(|l| l.starts_with("cpu_cores") && l.contains("cgroup2")), "{table}");
    let per_node = w.ok(&["top", &id, "--per-node"]);
    assert!(["n1", "n2"].iter().all(|node| per_node.lines().any(|l| l.starts_with(node) && l.contains("cpu_cores"))), "{per_node}");
    // Any agent refuses `top` for another user's work.
    let own = w.run_as(NOBODY, &["submit", "-o", "name", "--cores", "1", "--", "sleep", "600"]);
    assert_eq!(own.code(), 0, "{}", own.err());
    let own = own.out().trim().to_owned();
    w.running(&own);
    assert_eq!(w.run_as(NOBODY, &["top", &own]).code(), 0);
    for (who, what) in [(NOBODY, &id), (DAEMON, &own)] {
        let refused = w.run_as(who, &["top", what]);
        assert_eq!((refused.code(), refused.out().as_str()), (4, ""), "{}", refused.err());
        assert!(refused.err().contains("belongs to"), "{}", refused.err());
    }
    // The missing agent is reported, and the numbers of the other one are shown.
    faults::kill_node(&w.dir, "n2").unwrap();
    let part = w.run(&["top", &id, "-o", "json"]);
    assert_eq!(part.code(), 0, "{}", part.err());
    assert!(part.err().contains("n2 is not in these numbers"), "{}", part.err());
    let usage: Value = serde_json::from_str(&part.out()).unwrap();
    let n2 = usage["nodes"].as_array().unwrap().iter().find(|node| node["node"] == "n2").unwrap();
    assert!(n2["error"].is_string() && n2["age_ms"].is_null(), "{usage}");
    faults::start_node(&w.dir, "n2").unwrap();
    for id in [&id, &own] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
    // Ended work is only in the store, which is down.
    let over = w.run(&["top", &id]);
    assert_eq!(over.code(), 5, "{}", over.err());
    assert!(over.err().contains("is Cancelled") && over.err().contains("the store does not answer"), "{}", over.err());
    assert_eq!(w.run(&["top", "--duration=91d", &id]).code(), 2);
}

fn killed(w: &World) {
    let id = w.submit(&["--cores", "1", "--", "sh", "-c", "while :; do :; done"]);
    w.running(&id);
    let node = node_of(w, &id);
    let node = node.as_str();
    w.wait("a second of processor time", || Page::agent(w, node).cpu_seconds(&id) > 1.0);
    let before = Page::agent(w, node).cpu_seconds(&id);
    faults::kill_node(&w.dir, node).unwrap();
    assert!(TcpStream::connect(&w.cluster().node(node).unwrap().metrics).is_err(), "nobody listens");
    faults::start_node(&w.dir, node).unwrap();
    w.wait("its series to be back", || Page::agent(w, node).cpu_seconds(&id) > before);
    assert!(!ended(&w.status(&id)));
    assert_eq!(w.lattice.json(&["top", &id]).unwrap()["nodes"][0]["node"], node);
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

/// A running VictoriaMetrics with its data in a directory. It is killed on drop.
pub struct Store(Child);

impl Store {
    pub fn start(data: &Path) -> Self {
        let child = Command::new("victoria-metrics")
            .args([format!("-storageDataPath={}", data.display()), format!("-httpListenAddr={}", store_address())])
            .args(["-retentionPeriod=1", "-loggerLevel=ERROR", "-search.latencyOffset=1s"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let store = Self(child);
        assert!(until(JOB, || TcpStream::connect(store_address()).is_ok()), "the store does not listen");
        store
    }

    /// Stops it normally: everything that it accepted is on its disk.
    pub fn stop(mut self) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), Signal::SIGTERM).unwrap();
        self.0.wait().unwrap();
    }

    /// The times of [`Self::samples`], in milliseconds.
    pub fn times(&self, selector: &str) -> Vec<u64> {
        self.samples(selector).into_iter().map(|(at, _)| at).collect()
    }

    /// Times and values of the series that the selector selects, ascending by time; a `null` becomes NaN.
    pub fn samples(&self, selector: &str) -> Vec<(u64, f64)> {
        get(store_address(), "/internal/force_flush", "");
        let quoted: String = selector.bytes().map(|b| format!("%{b:02x}")).collect();
        let (head, body) = get(store_address(), &format!("/api/v1/export?match%5B%5D={quoted}"), "");
        assert!(head.contains(" 200 "), "{head}{body}");
        let mut samples: Vec<(u64, f64)> = Vec::new();
        for line in body.lines().filter(|line| !line.trim().is_empty()) {
            let series: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            let values = series["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap_or(f64::NAN));
            samples.extend(series["timestamps"].as_array().unwrap().iter().filter_map(Value::as_u64).zip(values));
        }
        samples.sort_unstable_by_key(|(at, _)| *at);
        samples
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Numbers of the batches that wait on n1, ascending.
pub fn buffered(w: &World) -> Vec<u64> {
    let entries = fs::read_dir(w.cluster().run_dir.join("n1/state/telemetry")).unwrap();
    let paths = entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "batch"));
    let mut numbers: Vec<u64> = paths.map(|path| path.file_stem().unwrap().to_str().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

fn stored(w: &World) {
    const UP: &str = r#"lattice_build_info{node_id="n1",job="lattice-agents"}"#;
    let data = file("victoria-metrics");
    let _ = fs::remove_dir_all(&data);
    w.ok(&["admin", "tenant", "create", "--name=measured", "--max-nodes=5"]);
    let id = w.submit(&["--cores", "1", "--", "sleep", "600"]);
    w.running(&id);
    // Nothing was sent yet, so the oldest batch that waits is the first one.
    w.wait("a batch to wait", || !buffered(w).is_empty());
    let first = buffered(w)[0];
    let store = Store::start(&data);
    w.wait("the first samples", || store.times(UP).len() >= 3);
    let of_work = format!(r#"lattice_allocation_processes{{allocation="{id}"}}"#);
    w.wait("those of work", || !store.times(&of_work).is_empty());
    let of_member = r#"lattice_raft_term{member_id="1",job="lattice-quorum",instance="member-1"}"#;
    w.wait("those of the member", || !store.times(of_member).is_empty());
    // The names that the requirements give.
    let job = r#"job="lattice-agents""#;
    for selector in [
        r#"lattice_api_requests_total{method="AllocationService/Submit",status="ok",node_id="n1""#,
        r#"lattice_api_request_duration_seconds_count{method="AllocationService/Submit",node_id="n1""#,
        r#"lattice_api_active_streams{stream_type="logs",node_id="n1""#,
        r#"lattice_scheduling_queue_depth{vcluster="default""#,
        r#"lattice_scheduling_proposals_total{vcluster="default",result="accepted""#,
        r#"lattice_scheduling_placements_total{vcluster="default""#,
        r#"lattice_scheduling_cycle_duration_seconds_count{node_id="n1""#,
        r#"lattice_agent_heartbeat_latency_seconds_count{node_id="n1""#,
        r#"lattice_agent_allocation_startup_seconds_count{node_id="n1""#,
    ] {
        w.wait(selector, || !store.times(&format!("{selector},{job}}}")).is_empty());
    }
    for selector in [
        "lattice_network_vni_pool_total{",
        r#"lattice_quota_max_nodes{tenant="measured","#,
        r#"lattice_quota_used_nodes{tenant="measured","#,
    ] {
        w.wait(selector, || !store.times(&format!(r#"{selector}member_id="1"}}"#)).is_empty());
    }
    w.ok(&["admin", "tenant", "delete", "measured"]);
    store.stop();
    // The store is down for LATTICE_TEST_SECONDS, with one batch each second; then the agent that stores the batches is
    // killed.
    let away = std::env::var("LATTICE_TEST_SECONDS").map_or(5, |seconds| seconds.parse::<usize>().unwrap().max(5));
    assert!(until(JOB + Duration::from_secs(2 * away as u64), || buffered(w).len() >= away), "{:?} wait", buffered(w));
    faults::kill_node(&w.dir, "n1").unwrap();
    let waiting = buffered(w);
    let last = *waiting.last().unwrap();
    // A batch is written directly after its time was read, and the restarted agent makes its batches after the start
    // below.
    let dead_ms = now_ms();
    faults::start_node(&w.dir, "n1").unwrap();
    let store = Store::start(&data);
    w.wait("the batches that waited to be stored", || buffered(w).first().is_none_or(|oldest| *oldest > last));
    // Each batch has one sample of each series, and its file is removed when the store has it. A sample may arrive
    // twice if the store died before it answered.
    w.wait("samples of the restarted agent", || store.times(UP).last().is_some_and(|at| *at > dead_ms));
    let mut times = store.times(UP);
    times.dedup();
    let of_first_run = times.iter().filter(|at| **at <= dead_ms).count() as u64;
    assert_eq!(of_first_run, last + 1 - first, "batches {first} to {last} were written, of which {waiting:?} waited: {times:?}");
    // The restarted agent, which counts from its own start, dropped no batch.
    let (_, page) = get(&w.cluster().node("n1").unwrap().metrics, "/metrics", "");
    assert!(page.contains("lattice_push_batches_total{node_id=\"n1\",result=\"dropped\"} 0\n"), "{page}");
    store.stop();
    w.ok(&["cancel", &id]);
    w.ended(&id);
    fs::remove_dir_all(&data).unwrap();
}

/// How long it may take until the first complete window of 30 s is in the store, on a busy machine.
pub const WINDOW: Duration = Duration::from_secs(150);

fn compared(w: &World) {
    let data = file("victoria-metrics-compared");
    let _ = fs::remove_dir_all(&data);
    let busy = w.submit(&["--cores", "1", "--", "sh", "-c", "while :; do :; done"]);
    w.running(&busy);
    let idle = w.submit(&["--cores", "1", "--", "sleep", "600"]);
    w.running(&idle);
    let compare = || w.lattice.json(&["compare", &busy, &idle, "--metric=cpu_cores"]).unwrap();
    w.wait("both to be measured", || compare()["allocations"].as_array().unwrap().iter().all(|one| one["source"] == "agents"));
    let by_agents = compare();
    for one in by_agents["allocations"].as_array().unwrap() {
        assert!(text(one, "note").contains("the store does not answer") && one["points"] == serde_json::json!([]), "{by_agents:#}");
        assert!(one["age_ms"].as_u64().unwrap() < 30_000, "{by_agents:#}");
    }
    let store = Store::start(&data);
    let came = until_asked(WINDOW, || compare()["allocations"].as_array().unwrap().iter().all(|one| one["source"] == "store"));
    let comparison = compare();
    assert!(came, "{comparison:#}");
    let (a, b) = (&comparison["allocations"][0], &comparison["allocations"][1]);
    // How much of a core a loop gets depends on the machine.
    assert!(a["mean"].as_f64().unwrap() > 3.0 * b["mean"].as_f64().unwrap(), "{comparison:#}");
    assert_eq!((text(a, "allocation"), comparison["step_ms"].as_u64()), (busy.clone(), Some(30_000)), "{comparison:#}");
    for point in a["points"].as_array().unwrap().iter().chain(b["points"].as_array().unwrap()) {
        assert_eq!(point["at_ms"].as_u64().unwrap() % 30_000, 0, "times count from the start: {comparison:#}");
    }
    assert!(a["age_ms"].as_u64().unwrap() < 60_000, "{comparison:#}");
    // The requirements' names of metrics are accepted if they have the same units.
    if counts_in_kernel() {
        let sent = || w.lattice.json(&["compare", &busy, &idle, "--metric=network_tx_bytes"]).unwrap();
        let came = until_asked(WINDOW, || sent()["allocations"].as_array().unwrap().iter().all(|one| one["source"] == "store"));
        let comparison = sent();
        assert!(came && comparison["metric"] == "network_sent_bytes" && comparison["allocations"][0]["mean"] == 0.0, "{comparison:#}");
        let latency = w.run(&["compare", &busy, &idle, "--metric=io_latency_p99", "-o", "json"]);
        assert!(latency.out().contains("\"unit\": \"seconds\""), "{}{}", latency.out(), latency.err());
    }
    let percent = w.run(&["compare", &busy, &idle, "--metric=cpu_utilization"]);
    assert!(percent.code() == 2 && percent.err().contains("\"cpu_cores\" measures it, in cores"), "{}", percent.err());
    let table = w.ok(&["compare", &busy, &idle]);
    assert!(table.contains("FROM START") && table.contains("store"), "{table}");
    // Both allocations must be the user's own.
    let own = w.run_as(NOBODY, &["submit", "-o", "name", "--cores", "1", "--", "true"]);
    let own = own.out().trim().to_owned();
    w.ended(&own);
    let refused = w.run_as(NOBODY, &["compare", &own, &busy]);
    assert_eq!((refused.code(), refused.out().as_str()), (4, ""), "{}", refused.err());
    let unknown = w.run(&["compare", &busy, &idle, "--metric=cpu_core"]);
    assert!(unknown.code() == 2 && unknown.err().contains("did you mean \"cpu_cores\""), "{}", unknown.err());
    for id in [&busy, &idle] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
    // Ended work is only in the store.
    assert_eq!(w.lattice.json(&["compare", &busy, &idle]).unwrap()["allocations"][0]["source"], "store");
    store.stop();
    let nothing = w.run(&["compare", &busy, &idle]);
    assert_eq!(nothing.code(), 5, "{}", nothing.err());
    assert!(nothing.err().contains("its agents no longer measure it"), "{}", nothing.err());
    fs::remove_dir_all(&data).unwrap();
}
