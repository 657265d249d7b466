//! Queries to a real store: of ended work, of times before the agents' memory, smoothed values, and after an overflow
//! of the buffer.

use crate::harness::{NOBODY, Need, World, configure, counts_in_kernel, ended, ms};
use crate::telemetry::{PYTHON, Page, Store, TELEMETRY, WINDOW, buffered, file, get, measured, now_ms};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process::until;
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// From the beginning of work to the third window that is smoothed and busy: the first two have no windows before them,
/// each needs two after it, and one in three is busy.
const SMOOTHED: Duration = Duration::from_secs(360);

pub fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::VictoriaMetrics, Need::PrometheusClient];
    vec![
        TELEMETRY.test("top_shows_ended_work_and_older_values_from_the_store", NEEDS, ended_and_long_ago),
        TELEMETRY.test("a_full_buffer_loses_its_oldest_and_nothing_else", NEEDS, ran_over),
        TELEMETRY.test("what_is_exported_can_be_smoothed", NEEDS, smoothed),
    ]
}

fn fresh(name: &str) -> PathBuf {
    let data = file(name);
    let _ = fs::remove_dir_all(&data);
    data
}

fn summary<'a>(usage: &'a Value, name: &str) -> &'a Value {
    let all = usage["summary"].as_array().unwrap_or_else(|| panic!("{usage:#}"));
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}: {usage:#}"))
}

fn ended_and_long_ago(w: &World) {
    let data = fresh("victoria-metrics-top");
    let runs = w.submit(&["--cores", "1", "--", "sh", "-c", "while :; do :; done"]);
    w.running(&runs);
    // The store is down: the agents' own numbers are shown, and a note says that there are no others.
    w.wait("numbers", || w.run(&["top", &runs, "--duration=6h"]).code() == 0);
    let part = w.run(&["top", &runs, "--duration=6h", "-o", "json"]);
    let usage: Value = serde_json::from_str(&part.out()).unwrap();
    assert!(part.err().contains("the store does not answer") && part.err().contains("at most the last hour"), "{}", part.err());
    assert_eq!((&usage["duration_ms"], &summary(&usage, "cpu_cores")["sources"]), (&3_600_000.into(), &serde_json::json!(["cgroup2"])));
    let store = Store::start(&data);
    // Two nodes, a known processor time, datagrams, and a file written past the page cache.
    let (path, direct) = (w.dir.join("known.py"), w.dir.join("known.direct"));
    let program = format!(
        "import os, socket, mmap, time\nwhile time.process_time() < 1: pass\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); s.connect(s.getsockname())\n\
         until = time.time() + 3\n\
         while time.time() < until:\n    s.send(b'x' * 1000); s.recv(2000); time.sleep(0.001)\n\
         try:\n    fd = os.open({direct:?} + os.environ['LATTICE_RANK'], os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)\n    page = mmap.mmap(-1, 1 << 16)\n    \
         for _ in range(40): os.write(fd, page); time.sleep(0.05)\n\
         except OSError: pass\n"
    );
    fs::write(&path, program).unwrap();
    let over = w.submit(&["-N", "2", "--cores", "1", "--", PYTHON, &path.to_string_lossy()]);
    assert!(until(WINDOW, || ended(&w.status(&over))), "{}", w.status(&over));
    // The last window is in the store within seconds of the end, with the datagrams and the writes. Samples that arrive
    // between two queries are only in the second one's answer.
    let writes = Page::agent(w, "n1").find("lattice_agent_kernel_probe", &[("probe", "block_rq_complete")]) == Some(1.0)
        && direct.with_extension("direct0").exists();
    let last: &[(&str, f64)] = match (counts_in_kernel(), writes) {
        (true, true) => &[("cpu_cores", 0.0), ("network_sent_bytes", 100_000.0), ("io_latency_p99", 0.0)],
        (true, false) => &[("cpu_cores", 0.0), ("network_sent_bytes", 100_000.0)],
        (false, _) => &[("cpu_cores", 0.0)],
    };
    let is_beyond = |usage: &Value, (name, least): &(&str, f64)| {
        let one = usage["summary"].as_array().into_iter().flatten().find(|one| one["name"] == *name);
        one.is_some_and(|one| one["max"].as_f64().is_some_and(|max| max > *least) && one["nodes"] == 2)
    };
    let mut usage = Value::Null;
    let came = until(WINDOW, || {
        usage = w.lattice.json(&["top", &over]).unwrap_or(Value::Null);
        let nodes = usage["nodes"].as_array();
        let both = nodes.is_some_and(|nodes| nodes.len() == 2 && nodes.iter().all(|node| node["error"].is_null()));
        both && last.iter().all(|one| is_beyond(&usage, one))
    });
    assert!(came, "{usage:#}");
    let cpu = summary(&usage, "cpu_cores");
    assert_eq!((&cpu["sources"], cpu["nodes"].as_u64()), (&serde_json::json!(["store"]), Some(2)), "{usage:#}");
    let (mean, max) = (cpu["mean"].as_f64().unwrap(), cpu["max"].as_f64().unwrap());
    assert!(mean > 0.0 && max >= mean && max < 2.5, "a second of a core on each of two nodes: {usage:#}");
    assert!(cpu["age_ms"].as_u64().unwrap() > 0, "{usage:#}");
    assert!(summary(&usage, "memory_used")["max"].as_f64().unwrap() > 1e6, "{usage:#}");
    let (stored, status) = (&usage["stored"], w.status(&over));
    assert_eq!((&stored["ended"], &stored["from_ms"]), (&Value::Bool(true), &ms(&status, "started_at").into()), "{usage:#}");
    let table = w.run(&["top", &over, "--per-node"]);
    assert!(["n1", "n2"].iter().all(|node| table.out().lines().any(|l| l.starts_with(node) && l.contains("store"))), "{}", table.out());
    assert!(table.err().contains("has ended: these numbers are from the store at http://127.0.0.1:"), "{}", table.err());
    let gpus = w.run(&["top", &over, "--per-gpu"]);
    assert!(gpus.code() == 4 && gpus.err().contains("this work has ended"), "{}", gpus.err());
    // For another user's work it is refused, without a query to the store.
    let own = w.run_as(NOBODY, &["submit", "-o", "name", "--cores", "1", "--", "sleep", "1"]);
    let own = own.out().trim().to_owned();
    w.completed(&own);
    assert!(until(WINDOW, || w.run_as(NOBODY, &["top", &own]).code() == 0), "{}", w.run_as(NOBODY, &["top", &own]).err());
    let refused = w.run_as(NOBODY, &["top", &over]);
    assert_eq!((refused.code(), refused.out().as_str()), (4, ""), "{}", refused.err());
    assert!(refused.err().contains("belongs to"), "{}", refused.err());
    // Longer than agents remember: the present value is theirs, means and maxima are the store's.
    let long = || w.lattice.json(&["top", &runs, "--duration=6h"]).unwrap();
    let came =
        until(WINDOW, || long()["summary"].as_array().unwrap().iter().any(|one| one["name"] == "cpu_cores" && one["mean"].is_number()));
    let usage = long();
    assert!(came, "{usage:#}");
    let cpu = summary(&usage, "cpu_cores");
    assert_eq!((&cpu["sources"], &usage["duration_ms"]), (&serde_json::json!(["cgroup2", "store"]), &21_600_000.into()), "{usage:#}");
    assert!(text(&usage["stored"], "url").starts_with("http://127.0.0.1:") && usage["stored"]["ended"] == false, "{usage:#}");
    assert!(summary(&usage, "processes")["mean"] == 1.0 && summary(&usage, "oom_kills")["mean"].is_null(), "{usage:#}");
    w.ok(&["cancel", &runs]);
    w.ended(&runs);
    store.stop();
    let nothing = w.run(&["top", &over]);
    assert_eq!(nothing.code(), 5, "{}", nothing.err());
    assert!(nothing.err().contains("its agents no longer measure it, and the store does not answer"), "{}", nothing.err());
    fs::remove_dir_all(&data).unwrap();
}

/// An agent's configuration with further settings, until it is dropped.
struct Configured<'a> {
    w: &'a World,
    node: &'static str,
    before: String,
}

impl<'a> Configured<'a> {
    fn new(w: &'a World, node: &'static str, more: &str) -> Self {
        faults::kill_node(&w.dir, node).unwrap();
        let before = configure(&w.dir, node, more);
        faults::start_node(&w.dir, node).unwrap();
        Self { w, node, before }
    }
}

impl Drop for Configured<'_> {
    fn drop(&mut self) {
        let _ = faults::kill_node(&self.w.dir, self.node);
        let _ = fs::write(self.w.dir.join(self.node).join("agent.yaml"), &self.before);
        let _ = faults::start_node(&self.w.dir, self.node);
    }
}

/// The least buffer size.
const BUFFER: u64 = 64 << 10;

fn ran_over(w: &World) {
    const UP: &str = r#"lattice_build_info{node_id="n1",job="lattice-agents"}"#;
    let data = fresh("victoria-metrics-ran-over");
    let configured = Configured::new(w, "n1", &format!("telemetry: {{tsdb_buffer_bytes_max: {BUFFER}}}"));
    let page = || get(&w.cluster().node("n1").unwrap().metrics, "/metrics", "").1;
    let of = |page: &str, series: &str| page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok());
    let dropped = || of(&page(), "lattice_push_batches_total{node_id=\"n1\",result=\"dropped\"} ").unwrap_or(0.0);
    // If the buffer was larger before, the surplus is dropped and counted at the start: a whole buffer of this process
    // comes on top.
    w.wait("a batch to wait", || !buffered(w).is_empty());
    let (first, at_first) = (buffered(w), dropped());
    w.wait("a buffer to run over", || dropped() >= at_first + first.len() as f64 + 5.0);
    let metrics = page();
    let bytes = of(&metrics, "lattice_push_buffered_bytes{node_id=\"n1\"} ").unwrap();
    assert!(bytes > 0.0 && bytes <= BUFFER as f64, "{bytes}");
    faults::kill_node(&w.dir, "n1").unwrap();
    let dead_ms = now_ms();
    let left = buffered(w);
    // The oldest were dropped one after the other: the newest are left, without a gap.
    assert!(left[0] > *first.last().unwrap(), "{first:?} waited first, and {left:?} is left");
    assert_eq!(left, (left[0]..=*left.last().unwrap()).collect::<Vec<_>>());
    let store = Store::start(&data);
    // The next process has space for its own batches besides these, however long the store is down.
    drop(configured);
    w.wait("what waited to be stored", || buffered(w).first().is_none_or(|oldest| *oldest > *left.last().unwrap()));
    w.wait("samples of the next life", || store.times(UP).last().is_some_and(|at| *at > dead_ms));
    let mut times = store.times(UP);
    times.retain(|at| *at <= dead_ms);
    times.dedup();
    // Each batch has one sample of each series: all that were left arrived, and none of the dropped ones.
    assert_eq!(times.len(), left.len(), "{left:?} were left: {times:?}");
    let stored = of(&page(), "lattice_push_batches_total{node_id=\"n1\",result=\"stored\"} ").unwrap();
    assert!(stored >= left.len() as f64 && dropped() == 0.0, "{}", page());
    store.stop();
    fs::remove_dir_all(&data).unwrap();
}

/// The windows of mode prod.
const WINDOW_MS: u64 = 30_000;

/// Processor time of an allocation on a node, at each time that the store has.
struct Used(Vec<(u64, f64)>);

impl Used {
    fn of(store: &Store, id: &str, node: &str) -> Self {
        let mode = |mode: &str| {
            let labels = format!(r#"allocation="{id}",node_id="{node}",mode="{mode}",job="lattice-agents""#);
            store.samples(&format!("lattice_allocation_cpu_seconds_total{{{labels}}}"))
        };
        let system: BTreeMap<u64, f64> = mode("system").into_iter().collect();
        Self(mode("user").into_iter().filter_map(|(at, user)| Some((at, user + system.get(&at)?))).collect())
    }

    /// `None`: it is not known yet, or no longer.
    fn at(&self, at: u64) -> Option<f64> {
        let after = self.0.partition_point(|(known, _)| *known < at);
        let ((before, was), (next, is)) = (*self.0.get(after.checked_sub(1)?)?, *self.0.get(after)?);
        Some(was + (is - was) * (at - before) as f64 / (next - before).max(1) as f64)
    }

    /// Cores in a window and the two on each side.
    fn around(&self, from: u64) -> Option<[f64; 5]> {
        let mut cores = [0.0; 5];
        for (n, one) in cores.iter_mut().enumerate() {
            let begin = from + n as u64 * WINDOW_MS - 2 * WINDOW_MS;
            *one = (self.at(begin + WINDOW_MS)? - self.at(begin)?) / (WINDOW_MS as f64 / 1e3);
        }
        Some(cores)
    }
}

fn smoothed(w: &World) {
    let data = fresh("victoria-metrics-smoothed");
    let store = Store::start(&data);
    let configured = Configured::new(w, "n2", "measuring: {window_smoothing: cubic}");
    // Busy in one of three windows, on both nodes.
    let path = w.dir.join("thirds.py");
    fs::write(&path, "import time\nwhile True:\n    if int(time.time() / 30) % 3 == 0: pass\n    else: time.sleep(0.01)\n").unwrap();
    let id = w.submit(&["-N", "2", "--cores", "1", "--", PYTHON, &path.to_string_lossy()]);
    w.running(&id);
    let of = |node: &str| {
        store.samples(&format!(r#"lattice_allocation_cpu_cores{{allocation="{id}",node_id="{node}",stat="mean",job="lattice-agents"}}"#))
    };
    w.wait("a window of n1", || !of("n1").is_empty());
    assert!(of("n2").is_empty(), "a window is exported after two more have passed");
    // The exported value of a window, read in the middle of a later one, and the value from the counters of processor
    // time.
    let exported = |node: &str, later: u64| -> Vec<(f64, [f64; 5])> {
        let used = Used::of(&store, &id, node);
        let middles = of(node).into_iter().filter(|(at, _)| (12_000..24_000).contains(&(at % WINDOW_MS)));
        middles.filter_map(|(at, mean)| Some((mean, used.around(at - at % WINDOW_MS - (1 + later) * WINDOW_MS)?))).collect()
    };
    let cubic = |five: &[f64; 5]| five.iter().zip([-3.0, 12.0, 17.0, 12.0, -3.0]).map(|(value, weight)| value * weight / 35.0).sum::<f64>();
    let most = |five: &[f64; 5]| five.iter().copied().fold(0.0, f64::max);
    // The agent measures at most once a second, and the test knows only whole seconds.
    let is_about = |mean: f64, five: &[f64; 5], known: f64| (mean - known.clamp(0.0, most(five))).abs() < 0.15 * most(five) + 0.02;
    let differs = |(_, five): &(f64, [f64; 5])| (cubic(five) - five[2]).abs() > 0.4 * most(five) && most(five) > 0.1;
    let came = until(SMOOTHED, || exported("n2", 2).iter().any(differs));
    let (n1, n2) = (exported("n1", 0), exported("n2", 2));
    assert!(came, "n2: {n2:?}, n1: {n1:?}");
    for (mean, five) in n2.iter().filter(|one| differs(one)) {
        assert!(is_about(*mean, five, cubic(five)), "{mean} of {five:?}, which is about {}", cubic(five));
    }
    for (mean, five) in n1.iter().filter(|one| differs(one)) {
        assert!(is_about(*mean, five, five[2]), "{mean} of {five:?}");
    }
    // A user sees the same values.
    let now = w.lattice.json(&["top", &id, "--per-node", "--duration=10m"]).unwrap();
    let n2_now = now["nodes"].as_array().unwrap().iter().find(|node| node["node"] == "n2").unwrap();
    let greatest = measured(n2_now, "cpu_cores")["max"].as_f64().unwrap();
    assert!(n2.iter().all(|(mean, _)| *mean < greatest), "{now:#}");
    w.ok(&["cancel", &id]);
    w.ended(&id);
    drop(configured);
    store.stop();
    fs::remove_dir_all(&data).unwrap();
}
