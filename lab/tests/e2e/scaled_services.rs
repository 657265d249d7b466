//! Scaled services: replicas come and go as a metric or a user asks for, and no request fails meanwhile.
//!
//! Every daemon has a network of its own (`up --netns`), so each replica listens at the same port of another address:
//! that of its node, which is also the one in the service registry. Replicas that do not listen expose a port of UDP,
//! which is listed without a check. Clients and the metrics store are in the networks'
//! hub, which reaches all nodes. Windows and intervals are as short as they may be.

use crate::broker::holder;
use crate::harness::{Folder, Group, JOB, NOBODY, Need, World, ended, lab_program};
use crate::telemetry::get;
use lattice_lab::faults;
use lattice_lab::http_load::{Demand, Load};
use lattice_lab::lattice::text;
use lattice_lab::networks::Networks;
use lattice_lab::process::{until, until_asked};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Six nodes, because no two replicas of a service are on one node.
static SCALED: Group = Group {
    theme: "scaled_services",
    name: "scaled-services",
    nodes: 6,
    quorum: 1,
    tweak: |options| {
        options.netns = true;
        options.agent_lines = format!("measuring: {{query_url: \"http://{STORE}\"}}");
    },
};

/// The address of the metrics store: the hub's in the network of n1.
const STORE: &str = "10.77.1.1:8428";
/// The shortest interval, windows and cooldown.
const SOON: [&str; 4] = ["--scale-interval=1s", "--scale-up-window=1s", "--scale-down-window=2s", "--scale-cooldown=1s"];
/// A demand of eight clients that loads five replicas far above the target of [`under_load`].
const BUSY: Demand = Demand { burn_ms: 20, pause: Duration::from_millis(200) };
/// A demand of eight clients that loads two replicas far below the target.
const QUIET: Demand = Demand { burn_ms: 0, pause: Duration::from_millis(400) };
/// How many requests there are at least while a service grows from two replicas to six and shrinks again.
const REQUESTS_MIN: u64 = 200;

pub fn trials() -> Vec<Trial> {
    const HOSTS: &[Need] = &[Need::Hosts];
    const STORED: &[Need] = &[Need::Hosts, Need::VictoriaMetrics];
    vec![
        SCALED.test("from_two_to_six_and_back_under_load_no_request_fails", HOSTS, under_load),
        SCALED.test("by_hand_within_its_bounds_and_the_registry_follows", HOSTS, by_hand),
        SCALED.test("other_bounds_hold_at_once_and_the_replicas_follow", HOSTS, other_bounds),
        SCALED.test("a_killed_replica_and_one_of_a_lost_node_are_replaced", HOSTS, killed),
        SCALED.test("whose_program_fails_at_once_fails_with_its_reason", HOSTS, fails),
        SCALED.test("a_metric_that_is_gone_changes_nothing_and_others_series_do_not_count", STORED, by_stored_metric),
        SCALED.test("another_scheduler_goes_on_where_the_first_one_was", HOSTS, scheduler_killed),
    ]
}

/// Submits a scaled service, each of whose replicas has one core.
fn submit(w: &World, least: u32, most: u32, more: &[&str]) -> String {
    let (least, most) = (format!("--min-nodes={least}"), format!("--max-nodes={most}"));
    w.submit(&[&["--reactive", &least, &most, "--cores=1", "--pmi=none"], more].concat())
}

/// The replica with this number, as the CLI takes it: `ID[NUMBER]`.
fn replica(id: &str, number: usize) -> String {
    format!("{id}[{number}]")
}

/// What the quorum knows of the service's replicas and its metric.
fn scaling(now: &Value) -> &Value {
    let state = &now["scaling_state"];
    assert!(state.is_object(), "no scaling_state in {now}");
    state
}

/// One of the numbers of a service, such as `running` or `wanted`.
fn count(now: &Value, key: &str) -> u64 {
    scaling(now)[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {now}"))
}

/// An endpoint in the registry: the allocation and its node.
type Registered = (String, String);

fn registered(w: &World, name: &str) -> BTreeSet<Registered> {
    let found = w.run(&["service", "lookup", name, "-o", "json"]);
    if found.code() == 3 {
        return BTreeSet::new();
    }
    let found: Value = serde_json::from_str(&found.out()).unwrap_or_else(|e| panic!("{e}: {}{}", found.out(), found.err()));
    found.as_array().unwrap().iter().map(|endpoint| (text(endpoint, "allocation"), text(endpoint, "node"))).collect()
}

/// Waits until so many replicas run and are in the registry, and no other one is about to leave.
fn wait_replicas(w: &World, id: &str, name: &str, replicas: usize) -> BTreeSet<Registered> {
    let (mut now, mut there) = (Value::Null, BTreeSet::new());
    let done = until_asked(JOB, || {
        now = w.status(id);
        assert!(!ended(&now), "the service has ended: {now}");
        there = registered(w, name);
        let running = count(&now, "running") == replicas as u64 && count(&now, "leaving") == 0 && count(&now, "waiting") == 0;
        running && there.len() == replicas
    });
    assert!(done, "{replicas} replicas are not there in time: {there:?}, {}\n{}", scaling(&now), w.run(&["explain", id]).out());
    let nodes: BTreeSet<&String> = there.iter().map(|(_, node)| node).collect();
    assert_eq!(nodes.len(), replicas, "no two replicas are on one node: {there:?}");
    there
}

/// Follows how many replicas are wanted until it is this number, which is reached without a step back.
fn wait_wanted(w: &World, id: &str, wanted: u64) {
    let mut seen = vec![count(&w.status(id), "wanted")];
    let done = until_asked(JOB, || {
        let now = count(&w.status(id), "wanted");
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        now == wanted
    });
    let state = w.status(id);
    assert!(done, "{wanted} replicas are not wanted in time, but {seen:?}: {}\n{}", scaling(&state), w.run(&["explain", id]).out());
    assert!(seen.is_sorted() || seen.iter().rev().is_sorted(), "up or down, and not both: {seen:?}");
}

fn under_load(w: &World) {
    let server = lab_program().to_string_lossy().into_owned();
    let leave = ["--drain-signal=USR1", "--drain-grace=30s", "--expose=web:8080/http"];
    let metric = ["--scale-metric=cpu_utilization", "--scale-target=0.03"];
    let serve = ["--", &server, "http-server", "--port=8080", "--quiet-ms=2000"];
    let id = submit(w, 2, 6, &[&leave[..], &metric, &SOON, &serve].concat());
    wait_replicas(w, &id, "web", 2);
    let networks = w.cluster().networks;
    let load = Load::start(networks.as_ref(), w.lattice.socket(), "web", 8, BUSY).unwrap();
    wait_wanted(w, &id, 6);
    wait_replicas(w, &id, "web", 6);
    let everybody = |load: &Load| (0..6).all(|number| load.report().replicas.contains_key(&format!("replica {number}")));
    w.wait("each of the six replicas to have answered", || everybody(&load));
    load.change(QUIET);
    wait_wanted(w, &id, 2);
    wait_replicas(w, &id, "web", 2);
    let report = load.stop();
    let ms = |part| report.latency(part).as_millis();
    println!("{} requests, half of them within {} ms, 99 % within {} ms", report.answered, ms(0.5), ms(0.99));
    assert!(report.failed == 0, "{} of {} requests failed: {:#?}", report.failed, report.failed + report.answered, report.failures);
    assert_eq!(report.not_yet, 0, "each replica is listed once it listens: {report:?}");
    assert!(report.answered >= REQUESTS_MIN, "{report:?}");
    // The last one that came was the first one to leave: by itself, when nobody asked it any more.
    let last = replica(&id, 5);
    assert_eq!(text(&w.status(&last), "state"), "Cancelled");
    w.wait_log(&last, "left after ");
    assert!(w.log(&last).contains("asked to leave\n"), "{}", w.log(&last));
    assert_eq!(count(&w.status(&id), "alternations"), 0, "four times up, then four times down");
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    assert_eq!(registered(w, "web"), BTreeSet::new());
    w.assert_nothing_left();
}

/// A replica that says who it is, and leaves at SIGUSR1.
const LEAVES: &str = "#!/bin/sh
trap 'echo leaving; exit 0' USR1
echo replica $LATTICE_REPLICA of $LATTICE_SERVICE_ID
while :; do sleep 0.1; done
";

/// The command must be refused with this exit code, and its message must contain this phrase.
fn refused(w: &World, args: &[&str], code: i32, phrase: &str) {
    let done = w.run(args);
    assert!(done.code() == code && done.err().contains(phrase), "{args:?}: {code} {phrase:?} wanted: {} {}", done.code(), done.err());
}

/// Another user is refused in the same words whether the service has such a replica or not, and nothing changes.
fn closed_to_others(w: &World, id: &str) {
    for command in [&["cancel"][..], &["status"], &["explain"], &["logs"], &["top"], &["signal"]] {
        let err = [0, 9].map(|number| {
            let of = replica(id, number);
            let done = w.run_as(NOBODY, &[command, &[of.as_str()]].concat());
            assert_eq!(done.code(), 4, "{command:?} {of}: {}", done.err());
            done.err()
        });
        let phrase = format!("allocation {} belongs to root", &id[..8]);
        assert!(err[0] == err[1] && err[0].contains(&phrase), "{command:?}: {phrase:?} wanted twice: {err:?}");
    }
    assert_eq!(text(&w.status(&replica(id, 0)), "state"), "Running");
    let none = format!("allocation {} has no replica 9", &id[..8]);
    refused(w, &["explain", &replica(id, 9)], 3, &none);
}

/// What is refused for the service with three replicas.
fn refusals(w: &World, id: &str) {
    let (short, first) = (&id[..8], replica(id, 0));
    let no_nodes = format!("allocation {short} is a scaled service, and has no nodes itself");
    refused(w, &["logs", id], 4, &format!("allocation {short} is a scaled service: each replica has an output of its own"));
    refused(w, &["launch", "--alloc", id, "--", "/bin/true"], 125, &no_nodes);
    refused(w, &["top", id], 4, &no_nodes);
    refused(w, &["scale", &first, "2"], 4, &format!("is replica 0 of scaled service {short}"));
    for outside in ["0", "4"] {
        refused(w, &["scale", id, outside], 4, &format!("has 1 to 3 replicas, and {outside} were asked for"));
    }
    refused(w, &["update", id, "--walltime=1h"], 4, "a scaled service has no walltime");
    let reactive = |option| ["submit", "--reactive", "--min-nodes=1", "--max-nodes=3", option, "--", "/bin/true"];
    refused(w, &reactive("--walltime=1h"), 2, "a scaled service has no walltime: leave out --walltime or --reactive");
    refused(w, &reactive("--service"), 2, "--service is one allocation, --reactive has replicas");
    refused(w, &reactive("--scale-metric=request_rate"), 2, "Name connection_rate");
    let script = w.script("both.sh", "#!/bin/sh\n#LATTICE service\n#LATTICE reactive\ntrue\n");
    refused(w, &["submit", &script], 2, "lines 2 and 3: #LATTICE: --service is one allocation, --reactive has replicas");
}

fn by_hand(w: &World) {
    let script = w.script("leaves.sh", LEAVES);
    let id = submit(w, 1, 3, &["--drain-signal=USR1", "--drain-grace=30s", "--expose=hand:9000/udp", &script]);
    wait_replicas(w, &id, "hand", 1);
    w.wait_log(&replica(&id, 0), &format!("replica 0 of {id}\n"));
    w.ok(&["scale", &id, "3"]);
    let three = wait_replicas(w, &id, "hand", 3);
    let change = scaling(&w.status(&id))["change"].clone();
    assert_eq!((&change["from"], &change["to"], text(&change, "by").as_str()), (&1.into(), &3.into(), "root"), "{change}");
    w.ok(&["scale", &id, "3"]);
    assert_eq!(scaling(&w.status(&id))["change"], change, "it was so already");

    // Each replica is an allocation that has the service's id and a number for a name.
    let replicas: Vec<Value> = (0..3).map(|number| w.status(&replica(&id, number))).collect();
    for (number, replica) in replicas.iter().enumerate() {
        assert_eq!((text(replica, "replica_of"), replica["replica_number"].as_u64()), (id.clone(), Some(number as u64)), "{replica}");
    }
    let ids: BTreeSet<String> = replicas.iter().map(|replica| text(replica, "id")).collect();
    let of_three: BTreeSet<String> = three.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids, of_three);
    let shown: BTreeSet<String> = w.ok(&["status", &id, "--replicas", "-o", "name"]).lines().map(str::to_owned).collect();
    assert_eq!(shown, ids);
    let listed: BTreeSet<String> = w.lattice.allocations().unwrap().iter().map(|a| text(a, "id")).collect();
    assert!(listed.contains(&id) && listed.is_disjoint(&ids), "{listed:?} {ids:?}");
    let inside = w.ok(&["launch", "--alloc", &replica(&id, 2), "--", "/bin/sh", "-c", "echo $LATTICE_ALLOC_ID"]);
    assert_eq!(inside.trim(), text(&replicas[2], "id"));
    assert!(w.ok(&["explain", &replica(&id, 1)]).contains("Running"));
    let by_prefix = w.status(&replica(&id[..8], 1));
    assert_eq!(text(&by_prefix, "id"), text(&replicas[1], "id"));
    refusals(w, &id);
    closed_to_others(w, &id);
    let other = w.submit(&["--cores=1", "--walltime=5m", "--", "/bin/sleep", "300"]);
    refused(w, &["scale", &other, "2"], 4, &format!("allocation {other} is no scaled service"));
    let of_nobody = w.run_as(NOBODY, &["scale", &id, "2"]);
    assert!(of_nobody.code() == 4 && of_nobody.err().contains("belongs to"), "{}", of_nobody.err());
    assert_eq!(count(&w.status(&id), "wanted"), 3);

    // The registry has no replica that was asked to leave.
    w.ok(&["scale", &id, "1"]);
    let first = text(&replicas[0], "id");
    assert_eq!(registered(w, "hand").into_iter().map(|(id, _)| id).collect::<Vec<_>>(), std::slice::from_ref(&first));
    wait_replicas(w, &id, "hand", 1);
    for number in [1, 2] {
        assert_eq!(text(&w.ended(&replica(&id, number)), "state"), "Cancelled");
        w.wait_log(&replica(&id, number), "leaving\n");
    }
    // One that somebody cancels is replaced by a new one.
    w.ok(&["cancel", &replica(&id, 0)]);
    w.wait("another replica in its place", || registered(w, "hand").iter().any(|(id, _)| *id != first));
    wait_replicas(w, &id, "hand", 1);
    assert_eq!(text(&w.status(&replica(&id, 3)), "state"), "Running");
    w.ok(&["cancel", &id, &other]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    refused(w, &["scale", &id, "2"], 4, "stays as it is: it is Cancelled");
    w.assert_nothing_left();
}

fn other_bounds(w: &World) {
    let script = w.script("bounds.sh", LEAVES);
    let id = submit(w, 1, 2, &["--drain-signal=USR1", "--drain-grace=30s", "--expose=bounds:9000/udp", &script]);
    wait_replicas(w, &id, "bounds", 1);
    w.ok(&["update", &id, "--min-nodes=3", "--max-nodes=4"]);
    wait_replicas(w, &id, "bounds", 3);
    let now = w.status(&id);
    assert_eq!((&now["scaling"]["replicas_min"], &now["scaling"]["replicas_max"]), (&3.into(), &4.into()), "{now}");
    let change = &scaling(&now)["change"];
    assert_eq!((&change["from"], &change["to"], text(change, "by").as_str()), (&1.into(), &3.into(), "root@n1"), "{change}");
    refused(w, &["scale", &id, "2"], 4, "has 3 to 4 replicas, and 2 were asked for");
    refused(w, &["scale", &id, "2"], 4, &format!("`lattice update {} --min-nodes N --max-nodes M`", &id[..8]));
    refused(w, &["update", &id, "--max-nodes=2"], 2, "the least comes first");
    refused(w, &["update", &id, "--scale-target=0.5"], 4, "it scales by no metric");
    let other = w.submit(&["--cores=1", "--walltime=5m", "--", "/bin/sleep", "300"]);
    refused(w, &["update", &other, "--max-nodes=2"], 4, &format!("allocation {other} is no scaled service"));
    let of_nobody = w.run_as(NOBODY, &["update", &id, "--max-nodes=6"]);
    assert!(of_nobody.code() == 4 && of_nobody.err().contains("belongs to"), "{}", of_nobody.err());
    assert_eq!(count(&w.status(&id), "wanted"), 3);

    // The latest ones leave, and the first one never ended. A script that has not begun yet knows no signal.
    for number in 0..3 {
        w.wait_log(&replica(&id, number), &format!("replica {number} of {id}\n"));
    }
    let first = text(&w.status(&replica(&id, 0)), "id");
    w.ok(&["update", &id, "--min-nodes=1", "--max-nodes=1"]);
    let left = wait_replicas(w, &id, "bounds", 1);
    assert_eq!(left.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [first]);
    w.wait_log(&replica(&id, 2), "leaving\n");
    other_metric(w, &id);
    w.ok(&["cancel", &id, &other]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    w.ended(&other);
    w.assert_nothing_left();
}

/// A service that was sized by hand gets a metric, and then another one: the loop follows the new values at once.
fn other_metric(w: &World, id: &str) {
    refused(w, &["update", id, "--scale-cooldown=1s"], 4, "it scales by no metric");
    refused(w, &["update", id, "--scale-metric=cpu_utilization"], 4, "another metric needs a target of its own");
    refused(w, &["update", id, "--scale-metric=sum(q)"], 2, "queue_depth");
    w.ok(&["update", id, "--max-nodes=2"]);
    w.ok(&["scale", id, "2"]);
    wait_replicas(w, id, "bounds", 2);
    // The replicas do not listen, so nothing says how many connections wait, and their number stays.
    w.ok(&[&["update", id, "--scale-metric=queue_depth", "--scale-target=7"][..], &SOON].concat());
    w.wait("a look at the connections that wait", || scaling(&w.status(id))["reading"]["look"] == "missing");
    let explained = w.ok(&["explain", id]);
    assert!(explained.contains("queue_depth is looked at every 1 second: above 7 for 1 second, a replica is added"), "{explained}");
    refused(w, &["update", id, "--scale-metric=cpu_utilization"], 4, "another metric needs a target of its own");
    refused(w, &["update", id, "--scale-down-threshold=1.5"], 2, "scale-down-threshold");
    assert_eq!(count(&w.status(id), "wanted"), 2);
    // No replica ever uses so many cores.
    let done = w.ok(&["update", id, "--scale-metric=cpu_utilization", "--scale-target=1000", "--scale-cooldown=2s"]);
    assert!(done.contains("the metric cpu_utilization, the target 1000, a cooldown of 2 seconds"), "{done}");
    let policy = w.status(id)["scaling"]["policy"].clone();
    assert_eq!((text(&policy, "metric").as_str(), &policy["cooldown_ms"]), ("cpu_utilization", &2000.into()), "{policy}");
    let explained = w.ok(&["explain", id]);
    assert!(explained.contains("cpu_utilization is looked at every 1 second: above 1000 for 1 second"), "{explained}");
    assert!(explained.contains("below 500 for 2 seconds, one leaves; 2 seconds lie between two changes"), "{explained}");
    wait_wanted(w, id, 1);
    wait_replicas(w, id, "bounds", 1);
    let change = scaling(&w.status(id))["change"].clone();
    assert_eq!((&change["from"], &change["to"]), (&2.into(), &1.into()), "{change}");
    let audit = w.ok(&["audit", "query", "--type", "allocation-changed", "-o", "json"]);
    assert!(audit.contains("scale metric cpu_utilization instead of queue_depth"), "{audit}");
}

/// The processes of replicas that live, as they have written their numbers into this folder.
fn living(folder: &Path) -> BTreeSet<i32> {
    let files = fs::read_dir(folder).unwrap().flatten();
    let numbers = files.filter_map(|file| fs::read_to_string(file.path()).ok()?.trim().parse::<i32>().ok());
    numbers.filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect()
}

fn killed(w: &World) {
    let folder = Folder::new("replicas");
    let script = w.script("living.sh", &format!("#!/bin/sh\necho $$ > {}/$LATTICE_ALLOC_ID\nexec sleep 600\n", folder.0.display()));
    // Without requeues, so that a replica that ends is replaced at once.
    let id = submit(w, 2, 3, &["--requeue=never", "--drain-grace=1s", "--expose=living:9000/udp", &script]);
    wait_replicas(w, &id, "living", 2);
    w.wait("the processes of both", || living(&folder.0).len() == 2);
    let first = text(&w.status(&replica(&id, 0)), "id");
    let dead: i32 = fs::read_to_string(folder.0.join(&first)).unwrap().trim().parse().unwrap();
    kill(Pid::from_raw(dead), Signal::SIGKILL).unwrap();
    w.wait("two processes again", || living(&folder.0).len() == 2 && !living(&folder.0).contains(&dead));
    let there = wait_replicas(w, &id, "living", 2);
    let state = |number| text(&w.status(&replica(&id, number)), "state");
    assert_eq!([state(0), state(1), state(2)], ["Failed", "Running", "Running"]);
    assert_eq!(count(&w.status(&id), "early_ends"), 1);

    // A machine is lost: the number is there again on others once that is known.
    let lost = there.into_iter().map(|(_, node)| node).find(|node| node != "n1").unwrap();
    faults::lose_node(&w.dir, &lost).unwrap();
    let confirm = ["node", "confirm-dead", &lost, "--yes", "--reason", "its rack has no power"];
    // It is refused while heartbeats of the node are recent.
    w.wait("its death to be confirmed", || w.run(&confirm).code() == 0);
    let there = wait_replicas(w, &id, "living", 2);
    assert!(!there.iter().any(|(_, node)| *node == lost), "{there:?} without {lost}");
    assert_eq!(state(3), "Running", "the lost one has a new one in its place");
    w.wait("two processes again", || living(&folder.0).len() == 2);
    faults::start_node(&w.dir, &lost).unwrap();

    // An agent alone is killed: its replica goes on, and nothing else begins.
    let before = living(&folder.0);
    let orphaned = there.iter().map(|(_, node)| node).find(|node| *node != "n1").unwrap();
    let incarnation = || w.at(orphaned).json(&["node", "status"]).ok().and_then(|status| status["incarnation"].as_u64());
    let incarnation_before = incarnation().unwrap();
    faults::kill_node(&w.dir, orphaned).unwrap();
    faults::start_node(&w.dir, orphaned).unwrap();
    w.wait("the new agent to be registered", || incarnation().is_some_and(|now| now > incarnation_before));
    w.wait("its node to be Ready", || w.lattice.nodes().is_ok_and(|nodes| nodes.iter().all(|(_, state)| state == "Ready")));
    assert_eq!((wait_replicas(w, &id, "living", 2), living(&folder.0)), (there, before));
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}

fn fails(w: &World) {
    let began = Instant::now();
    let id = submit(w, 2, 3, &["--requeue=never", "--expose=failing:9000", "--", "/bin/sh", "-c", "exit 3"]);
    let now = w.ended(&id);
    assert_eq!((text(&now, "state").as_str(), text(&now, "reason").as_str()), ("Failed", "exit_code 3"), "{now}");
    assert_eq!(count(&now, "early_ends"), 3, "{now}");
    let replicas = w.ok(&["status", &id, "--replicas", "-o", "name"]).lines().count();
    assert!((3..=5).contains(&replicas), "{replicas} replicas were tried, in {:?}", began.elapsed());
    assert_eq!(registered(w, "failing"), BTreeSet::new());
    w.assert_nothing_left();
}

/// A metrics store in the hub of the networks. It is killed when it is dropped.
struct Store<'a> {
    networks: &'a Networks,
    child: Child,
}

impl<'a> Store<'a> {
    fn start(networks: &'a Networks, data: &Path) -> Self {
        let mut command = Command::new("victoria-metrics");
        command.args([format!("-storageDataPath={}", data.display()), format!("-httpListenAddr={STORE}")]);
        command.args(["-retentionPeriod=1", "-loggerLevel=ERROR", "-search.latencyOffset=1s"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let store = Self { networks, child: networks.within(move || command.spawn()).unwrap().unwrap() };
        assert!(until(JOB, || store.within(|| TcpStream::connect(STORE).is_ok())), "the store does not listen");
        store
    }

    fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        self.networks.within(act).unwrap()
    }

    /// Stores a present sample of `waiting_jobs{queue="new"}` for each of these allocations.
    fn push(&self, samples: &[(&str, u32)]) {
        let line = |(id, value): &(&str, u32)| format!("waiting_jobs{{queue=\"new\",allocation=\"{id}\"}} {value}\n");
        let body: String = samples.iter().map(line).collect();
        let answer = self.within(|| {
            let mut stream = TcpStream::connect(STORE).unwrap();
            stream.set_read_timeout(Some(JOB)).unwrap();
            let head = format!("POST /api/v1/import/prometheus HTTP/1.0\r\nHost: {STORE}\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            get(STORE, "/internal/force_flush", "");
            answer
        });
        assert!(answer.lines().next().is_some_and(|status| status.contains(" 204 ")), "{answer}");
    }
}

impl Drop for Store<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn by_stored_metric(w: &World) {
    let folder = Folder::new("scaling-store");
    let networks = w.cluster().networks.unwrap();
    let store = Store::start(&networks, &folder.0);
    let other = w.submit(&["--cores=1", "--tenant=chemistry", "--walltime=5m", "--", "/bin/sleep", "300"]);
    let metric = ["--scale-metric=waiting_jobs{queue=\"new\"}", "--scale-target=10"];
    let more = ["--tenant=physics", "--drain-grace=1s", "--expose=jobs:9000/udp", "--", "/bin/sleep", "600"];
    let id = submit(w, 1, 2, &[&metric[..], &SOON, &more].concat());
    wait_replicas(w, &id, "jobs", 1);
    let first = text(&w.status(&replica(&id, 0)), "id");
    let reading = || scaling(&w.status(&id))["reading"].clone();

    // A thousand jobs of another tenant are not this service's: its own metric is within.
    w.wait("the service's own value", || {
        store.push(&[(first.as_str(), 6), (other.as_str(), 1000)]);
        reading()["look"] == "within"
    });
    assert_eq!((reading()["value"].as_f64(), count(&w.status(&id), "wanted")), (Some(6.0), 1));
    w.wait("a second replica", || {
        store.push(&[(first.as_str(), 50), (other.as_str(), 0)]);
        count(&w.status(&id), "wanted") == 2
    });
    w.wait("the value to be within again", || {
        store.push(&[(first.as_str(), 6), (other.as_str(), 0)]);
        reading()["look"] == "within"
    });
    wait_replicas(w, &id, "jobs", 2);

    // Without a value nothing changes by itself, and people are shown why.
    drop(store);
    w.wait("three looks without a value", || reading()["missing"] == 3);
    let now = w.status(&id);
    let why = text(&scaling(&now)["reading"], "why");
    assert!(!why.is_empty() && scaling(&now)["reading"]["look"] == "missing", "{now}");
    assert_eq!((count(&now, "wanted"), count(&now, "running")), (2, 2), "{now}");
    for command in ["status", "explain"] {
        let shown = w.ok(&[command, &id]);
        assert!(shown.contains(&why), "`lattice {command}` should say {why:?}: {shown}");
    }
    // By hand it changes all the same; a replica that does not leave by itself is ended when its time is over.
    w.ok(&["scale", &id, "1"]);
    wait_replicas(w, &id, "jobs", 1);
    assert_eq!(text(&w.ended(&replica(&id, 1)), "state"), "Cancelled");
    w.ok(&["cancel", &id, &other]);
    w.ended(&id);
}

fn scheduler_killed(w: &World) {
    // A replica uses far more than the target: the service grows until it has as many as it may have.
    let metric = ["--scale-metric=cpu_utilization", "--scale-target=0.0001", "--drain-grace=1s", "--expose=grows:9000/udp"];
    let id = submit(w, 1, 4, &[&metric[..], &SOON, &["--", "/bin/sh", "-c", "while :; do sleep 0.02; done"]].concat());
    w.wait("a second replica to be wanted", || count(&w.status(&id), "wanted") >= 2);
    let first = holder(&w.lattice).expect("an agent places work");
    let there = w.at(if first == "n1" { "n2" } else { "n1" });
    faults::kill_node(&w.dir, &first).unwrap();
    let is_another = || holder(&there).is_some_and(|now| !now.is_empty() && now != first);
    w.wait("another agent to place work", is_another);
    // A replica whose agent is away has no value, and then the metric of the service has none.
    faults::start_node(&w.dir, &first).unwrap();
    wait_wanted(w, &id, 4);
    wait_replicas(w, &id, "grows", 4);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}
