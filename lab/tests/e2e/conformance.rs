//! Conformance of nodes: drift, its effects and how it ends; and nodes that are wiped.

use crate::harness::{Group, Need, World};
use crate::telemetry;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

static CONFORMANCE: Group = Group {
    theme: "conformance",
    name: "conformance",
    nodes: 3,
    quorum: 1,
    tweak: |o| {
        let hook = hook();
        for left in ["fails", "orders"] {
            let _ = fs::remove_file(beside(left));
        }
        fs::write(&hook, HOOK).unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        o.agent_lines = format!(
            "topology_group: row-7\nconformance:\n  period_seconds: 1\n  components: [{{name: bmc firmware, file: \"{{run}}/bmc\"}}]\nhooks: {{wipe: {{program: {:?}}}}}\n",
            hook.to_string_lossy()
        );
        o.simulated_gpus = 1;
        "drift_remediation_seconds: 5\n".clone_into(&mut o.member_lines);
    },
};

/// Nodes that check themselves at the default interval, which is longer than the test.
static LOOKS: Group = Group {
    theme: "conformance",
    name: "looks",
    nodes: 3,
    quorum: 1,
    tweak: |o| {
        "conformance:\n  components: [{name: bmc firmware, file: \"{run}/bmc\"}]\n".clone_into(&mut o.agent_lines);
    },
};

/// Nodes with a short `stale_seconds`. The test makes the component unreadable by a directory in place of its file.
static STALE: Group = Group {
    theme: "conformance",
    name: "stale",
    nodes: 3,
    quorum: 1,
    tweak: |o| {
        "conformance:\n  period_seconds: 1\n  stale_seconds: 3\n  components: [{name: bmc firmware, file: \"{run}/bmc\"}]\n"
            .clone_into(&mut o.agent_lines);
    },
};

/// The wipe hook: fails while the file `.fails` is beside it; otherwise appends its environment to `.orders`.
const HOOK: &str = "#!/bin/sh
if [ -e \"$0.fails\" ]; then echo looking; echo secure erase timed out; exit 5; fi
echo \"$LATTICE_HOOK $LATTICE_NODE $LATTICE_WIPE_ORDER\" >> \"$0.orders\"
";

fn hook() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("wipe-hook")
}

fn beside(name: &str) -> PathBuf {
    hook().with_extension(name)
}

pub fn trials() -> Vec<Trial> {
    vec![
        CONFORMANCE.test("any_agent_returns_all_facts_of_another_node", &[Need::Mounts], facts_of_another_node),
        CONFORMANCE.test("a_wipe_is_called_back_while_something_still_runs", &[], unwipe),
        CONFORMANCE.test("a_node_that_drifts_is_reported_gets_its_group_and_is_quarantined_in_time", &[], drift),
        CONFORMANCE.test("a_node_is_wiped_when_its_job_has_gone_and_kept_until_that_succeeds", &[], wipe),
        LOOKS.test("a_node_registers_with_its_conformance", &[], from_the_start),
        LOOKS.test("any_agent_can_make_any_node_examine_itself_again", &[], looks),
        STALE.test("a_node_that_cannot_examine_itself_is_a_group_of_its_own_until_it_can", &[], stale),
    ]
}

fn node(w: &World, name: &str) -> Value {
    w.lattice.json(&["nodes", name]).unwrap()
}

fn holds(w: &World, name: &str) -> String {
    node(w, name)["holds"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; ")
}

/// Sets the site's component of a node.
fn set_firmware(w: &World, name: &str, firmware: &str) {
    let run = w.cluster().run_dir.join(name);
    fs::write(run.join("bmc.next"), format!("{firmware}\n")).unwrap();
    fs::rename(run.join("bmc.next"), run.join("bmc")).unwrap();
}

pub fn drifted(w: &World, name: &str) -> bool {
    !node(w, name)["conformance"]["drifted_since"].is_null()
}

fn nodes_of(job: &Value) -> Vec<&str> {
    job["nodes"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

/// An agent returns all documented facts about a node that is not its own.
fn facts_of_another_node(w: &World) {
    let (image, go) = (w.image().to_string_lossy().into_owned(), w.dir.join("told.end"));
    let script = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let job = w.submit(&["--nodes", "3", "--uenv", &image, "--", "/bin/sh", "-c", &script]);
    w.running(&job);
    let mut n3 = Value::Null;
    w.wait("n1 to have all facts of n3", || {
        n3 = w.lattice.json(&["node", "status", "n3"]).unwrap();
        let (fact, now) = (&n3["fact"]["reported"], &n3["fact"]["now"]);
        fact["images_count"] == 1 && fact["fingerprint"].is_string() && now["running"].to_string().contains(&job)
    });
    let (fact, now) = (&n3["fact"]["reported"], &n3["fact"]["now"]);
    assert_eq!((&fact["state"], &fact["cores"], &fact["memory_bytes"]), (&"Ready".into(), &n3["cores"], &n3["memory_bytes"]), "{n3}");
    assert_eq!((&fact["gpus"][0]["healthy"], &fact["gpus"][0]["allocatable"]), (&1.into(), &1.into()), "{n3}");
    assert!(fact["holds"] == serde_json::json!([]) && fact["features"].is_array() && fact["schedulable"] == true, "{n3}");
    assert_eq!(text(fact, "topology_group"), "row-7");
    assert_eq!(
        (text(fact, "fingerprint"), fact["images"].as_array().map(Vec::len)),
        (text(&n3["conformance"], "fingerprint"), Some(1)),
        "{n3}"
    );
    // Counters that this machine does not have are absent.
    assert_eq!(now["pressure"]["cpu"].is_number(), fs::read("/proc/pressure/cpu").is_ok(), "{n3}");
    if !Path::new("/sys/class/powercap").exists() && !Path::new("/sys/class/hwmon").exists() {
        assert!(now["power_watts"].is_null(), "{n3}");
    }
    let shown = w.ok(&["node", "status", "n3"]);
    for line in ["Itself: ", "Gives: ", "GPUs: ", "Group: ", "Fingerprint: ", "Images: ", "Runs: "] {
        assert!(shown.lines().any(|l| l.starts_with(line)), "{line}: {shown}");
    }
    assert!(shown.contains("1 healthy, 1 for work") && shown.contains("1 cached") && shown.contains(&job[..8]), "{shown}");
    fs::write(&go, "").unwrap();
    w.completed(&job);
}

fn unwipe(w: &World) {
    let end = w.dir.join("unwipe.end");
    let job = w.submit(&["--", "/bin/sh", "-c", &format!("until [ -e {} ]; do sleep 0.05; done", end.display())]);
    w.running(&job);
    let name = nodes_of(&w.status(&job))[0].to_owned();
    w.wait("the wipe to be accepted", || w.run(&["node", "wipe", &name, "--reason", "patient data", "--yes"]).code() == 0);
    assert!(holds(w, &name).contains("wipe by root") && !node(w, &name)["wipe"].is_null(), "{}", node(w, &name));
    w.ok(&["node", "unwipe", &name]);
    assert_eq!((holds(w, &name).as_str(), &node(w, &name)["wipe"]), ("", &Value::Null));
    assert_eq!(text(&w.status(&job), "state"), "Running");
    fs::write(&end, "").unwrap();
    w.completed(&job);
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    assert!(!beside("orders").exists(), "it was wiped all the same");
    let history = w.ok(&["node", "history", &name]);
    assert!(history.contains("wipe: patient data") && !history.contains("NodeWiped"), "{history}");
}

fn drift(w: &World) {
    w.wait("all nodes to have reported their components", || {
        ["n1", "n2", "n3"].iter().all(|n| node(w, n)["conformance"]["group_nodes"] == 3)
    });
    let status = || w.at("n2").ok(&["node", "status"]).unwrap();
    w.wait("n2 to know it", || status().contains("with 2 others, as expected"));
    assert!(status().contains("kernel: "), "{}", status());
    assert!(!w.ok(&["node", "list"]).contains("CONFORMANCE"), "where all are alike it says nothing");
    let wide = w.ok(&["nodes", "-o", "wide"]);
    let group = text(&node(w, "n2")["conformance"], "fingerprint");
    assert_eq!(wide.matches(&format!("  {}(3)  ", &group[..8])).count(), 3, "{wide}");
    assert!(["VCLUSTER", "FEATURES", "SINCE", "MESH", "REASON"].iter().all(|column| wide.contains(column)), "{wide}");
    let yaml: Value = lattice_model::config::parse("stdout", &w.ok(&["nodes", "n2", "-o", "yaml"])).unwrap();
    assert_eq!((text(&yaml, "id"), text(&yaml["conformance"], "fingerprint")), ("n2".to_owned(), group));
    set_firmware(w, "n2", "2.81");
    w.wait("n2 to have drifted", || drifted(w, "n2"));
    assert_eq!(text(&node(w, "n2")["conformance"], "drift"), "bmc firmware: absent -> 2.81");
    // The largest group is used first, and work that names a group is not mixed.
    let two = w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    assert_eq!(nodes_of(&two), ["n1", "n3"]);
    let three = w.submit(&["--nodes", "3", "--constraint", "require_conformance", "--", "/bin/true"]);
    let why = w.ok(&["explain", &three]);
    assert!(why.contains("3 nodes of one conformance group; this cluster has 2"), "{why}");
    w.wait("n2 to be quarantined", || holds(w, "n2").contains("quarantine by quorum"));
    w.wait("the member to count it", || counted(w, "lattice_nodes_drift_overdue", 1));
    assert!(holds(w, "n2").contains("bmc firmware: absent -> 2.81"), "{}", holds(w, "n2"));
    let status = w.ok(&["node", "status", "n2"]);
    assert!(status.contains("has drifted since") && status.contains("accept-drift n2"), "{status}");
    let listed = w.ok(&["node", "list"]);
    assert!(listed.contains("CONFORMANCE") && listed.contains(" drifted"), "{listed}");
    // An intended change is accepted for one node, and the others follow.
    w.ok(&["node", "accept-drift", "n2", "--reason", "the new firmware"]);
    w.ok(&["node", "release", "n2"]);
    for name in ["n1", "n3"] {
        set_firmware(w, name, "2.81");
        // On request, sooner than the node's own interval.
        let found = w.at(name).ok(&["node", "fingerprint"]).unwrap();
        assert!(found.contains("bmc firmware: 2.81") && found.contains("absent: "), "{found}");
        w.wait("it to be known", || drifted(w, name));
        w.ok(&["node", "accept-drift", name, "--reason", "the new firmware"]);
        // On a slow machine the node may have been quarantined before its drift was accepted.
        w.ok(&["node", "release", name]);
    }
    w.completed(&three);
    let history = w.ok(&["node", "history", "n2"]);
    for expected in ["ConformanceChanged", "ConformanceAccepted", "the new firmware"] {
        assert!(history.contains(expected), "{expected}: {history}");
    }
}

/// A change while an agent is down is reported with its registration: one command makes both records.
fn from_the_start(w: &World) {
    w.wait("all nodes to have reported their components", || {
        ["n1", "n2", "n3"].iter().all(|n| node(w, n)["conformance"]["group_nodes"] == 3)
    });
    let history = || w.lattice.json(&["node", "history", "n3"]).unwrap().as_array().cloned().unwrap();
    let registrations = || history().iter().filter(|r| text(r, "action") == "NodeRegistered").count();
    let again = |change: &dyn Fn()| {
        let before = registrations();
        faults::kill_node(&w.dir, "n3").unwrap();
        change();
        faults::start_node(&w.dir, "n3").unwrap();
        w.wait("n3 to register", || registrations() > before);
        let records = history();
        let at = records.iter().rposition(|r| text(r, "action") == "NodeRegistered").unwrap();
        let record = records[at..].iter().find(|r| text(r, "action") == "ConformanceChanged");
        let record = record.unwrap_or_else(|| panic!("it registered, and did not say what it is made of: {records:?}"));
        assert_eq!(record["at"], records[at]["at"], "{records:?}");
        w.ok(&["node", "accept-drift", "n3", "--reason", "as is meant"]);
        text(record, "detail")
    };
    let detail = again(&|| set_firmware(w, "n3", "2.79"));
    assert!(detail.ends_with("bmc firmware: absent -> 2.79"), "{detail}");
    let detail = again(&|| fs::remove_file(w.cluster().run_dir.join("n3/bmc")).unwrap());
    assert!(detail.ends_with("bmc firmware: 2.79 -> absent"), "{detail}");
}

fn looks(w: &World) {
    w.wait("all nodes to have reported their components", || {
        ["n1", "n2", "n3"].iter().all(|n| node(w, n)["conformance"]["group_nodes"] == 3)
    });
    for name in ["n1", "n2", "n3"] {
        set_firmware(w, name, &format!("4.{name}"));
    }
    // One agent asks all of them. The quorum then knows the results, before the nodes' own intervals have passed.
    let found = w.lattice.json(&["node", "fingerprint", "n[1-3]"]).unwrap();
    let found: Vec<_> = found.as_array().unwrap().iter().map(|one| (text(one, "node"), text(&one["components"], "bmc firmware"))).collect();
    assert_eq!(found, ["n1", "n2", "n3"].map(|name| (name.to_owned(), format!("4.{name}"))));
    w.wait("that to be known", || ["n1", "n2", "n3"].iter().all(|name| drifted(w, name)));
    let shown = w.ok(&["node", "fingerprint", "n3"]);
    assert!(shown.contains("n3") && shown.contains("bmc firmware: 4.n3"), "{shown}");
    // A node that cannot be reached is reported, and the others are examined all the same.
    faults::kill_node(&w.dir, "n2").unwrap();
    set_firmware(w, "n3", "5");
    let some = w.run(&["node", "fingerprint", "n2,n3"]);
    assert!(some.code() == 5 && some.err().contains("node n2: no fingerprint could be taken"), "{} {}", some.code(), some.err());
    assert!(some.out().contains("bmc firmware: 5") && !some.out().contains("4.n2"), "{}", some.out());
    // A file whose read would never end.
    let bmc = w.cluster().run_dir.join("n3/bmc");
    fs::remove_file(&bmc).unwrap();
    nix::unistd::mkfifo(&bmc, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let pipe = w.run(&["node", "fingerprint", "n3"]);
    assert!((pipe.out() + &pipe.err()).contains("n3/bmc: it is not a regular file"), "{} {}", pipe.out(), pipe.err());
    fs::remove_file(&bmc).unwrap();
    let unknown = w.run(&["node", "fingerprint", "n9"]);
    assert!(
        unknown.code() == 5 && unknown.err().contains("node n9: ") && unknown.err().contains("mesh address is unknown"),
        "{}",
        unknown.err()
    );
}

fn stale(w: &World) {
    let all_reported = || ["n1", "n2", "n3"].iter().all(|n| node(w, n)["conformance"]["group_nodes"] == 3);
    w.wait("all nodes to have reported their components", all_reported);
    let bmc = w.cluster().run_dir.join("n3").join("bmc");
    fs::create_dir(&bmc).unwrap();
    w.wait("the report of n3 to be too old", || node(w, "n3")["conformance"]["stale"] == true);
    assert_eq!(node(w, "n1")["conformance"]["group_nodes"], 2);
    assert!(w.ok(&["node", "status", "n3"]).contains("it is a conformance group of its own"), "{}", w.ok(&["node", "status", "n3"]));
    let three = w.submit(&["--nodes", "3", "--constraint", "require_conformance", "--", "/bin/true"]);
    let why = w.ok(&["explain", &three]);
    assert!(why.contains("3 nodes of one conformance group; this cluster has 2"), "{why}");
    // Other work may still use it.
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    fs::remove_dir(&bmc).unwrap();
    w.completed(&three);
    w.wait("it to be of their group again", all_reported);
    let history = w.ok(&["node", "history", "n3"]);
    assert!(history.contains("told too long ago") && history.contains("told anew"), "{history}");
}

/// Whether the member's `/metrics` counts this many nodes.
fn counted(w: &World, series: &str, nodes: u32) -> bool {
    let (_, page) = telemetry::get(&w.cluster().members[0].metrics, "/metrics", "");
    page.lines().any(|line| line.starts_with(series) && line.ends_with(&format!(" {nodes}")))
}

fn wipe(w: &World) {
    fs::write(beside("fails"), "").unwrap();
    let end = w.dir.join("wipe.end");
    let job = w.submit(&["--", "/bin/sh", "-c", &format!("until [ -e {} ]; do sleep 0.05; done", end.display())]);
    w.running(&job);
    let name = nodes_of(&w.status(&job))[0].to_owned();
    let order = |more: &[&str]| w.run(&[&["node", "wipe", &name, "--reason", "patient data"], more].concat());
    assert_eq!(order(&[]).code(), 2, "nobody is there to be asked");
    // The quorum may learn of the hook only with the next heartbeat.
    w.wait("the wipe to be accepted", || order(&["--yes"]).code() == 0);
    assert_eq!(text(&w.status(&job), "state"), "Running", "what runs goes on");
    assert!(text(&node(w, &name), "wipe").contains("not confirmed"), "{}", node(w, &name));
    let lifted = w.run(&["node", "release", &name]);
    assert_eq!(lifted.code(), 0, "{}", lifted.err());
    fs::write(&end, "").unwrap();
    w.completed(&job);
    w.wait("the wipe to fail", || holds(w, &name).contains("wipe failed: secure erase timed out"));
    w.wait("the member to count it", || counted(w, "lattice_nodes_wipe_failed", 1));
    let again = order(&["--yes"]);
    assert!(again.code() == 4 && again.err().contains("secure erase timed out") && again.err().contains("--force"), "{}", again.err());
    let waits = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    assert!(w.ok(&["explain", &waits]).contains("wipe by root"), "{}", w.ok(&["explain", &waits]));
    fs::remove_file(beside("fails")).unwrap();
    // The documented form of the command.
    w.ok(&["admin", "node", "wipe", &name, "--force", "--yes"]);
    // In service again, without any hold.
    w.completed(&waits);
    assert_eq!((holds(w, &name).as_str(), &node(w, &name)["wipe"]), ("", &Value::Null));
    w.wait("the member to count it", || counted(w, "lattice_nodes_wipe_failed", 0));
    let orders = fs::read_to_string(beside("orders")).unwrap();
    assert!(orders.lines().count() == 1 && orders.starts_with(&format!("wipe {name} ")), "{orders}");
    let history = w.ok(&["node", "history", &name]);
    assert!(history.contains("WipeFailed") && history.contains("NodeWiped"), "{history}");
    fs::remove_file(beside("orders")).unwrap();
}
