//! Certificates as a site lives with them: short ones renewed under work, a foreign one refused, new files taken, and the one
//! for the first start.

use crate::harness::{Group, JOB, World, binaries};
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::{faults, process};
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the certificates of this cluster live.
const LIFE: Duration = Duration::from_secs(15);

static SHORT: Group =
    Group { theme: "certificates", name: "certificates-short", nodes: 2, quorum: 3, tweak: |o| o.certificate_seconds = LIFE.as_secs() };
static LONG: Group = Group { theme: "certificates", name: "certificates", nodes: 2, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        SHORT.test("a_cluster_outlives_its_certificates_under_a_running_job", &[], outlived),
        LONG.test("a_foreign_certificate_is_refused_with_its_reason_and_counted", &[], foreign),
        LONG.test("new_files_are_taken_without_closing_the_session", &[], swapped),
        LONG.test("the_bootstrap_certificate_is_for_the_first_start", &[], bootstrap),
        LONG.test("the_authority_refuses_what_cannot_be", &[], authority),
    ]
}

/// Where an agent keeps what was renewed.
fn kept_by(w: &World, node: &str) -> PathBuf {
    w.cluster().run_dir.join(node).join("state/certificate.json")
}

fn count_in(log: &Path, piece: &str) -> usize {
    std::fs::read_to_string(log).unwrap().matches(piece).count()
}

fn node_status(lattice: &Lattice) -> Value {
    lattice.json(&["node", "status"]).unwrap()
}

fn refused_of_the_quorum(w: &World) -> Value {
    w.lattice.json(&["quorum", "status"]).unwrap()["refused"].clone()
}

fn outlived(w: &World) {
    let began = Instant::now();
    let cluster = w.cluster();
    let flag = w.dir.join("enough");
    let script = format!("while ! test -e {}; do sleep 0.1; done; echo done", flag.display());
    let id = w.submit(&["--nodes", "2", "--", "/bin/sh", "-c", &script]);
    w.running(&id);
    let registered = || -> usize { cluster.nodes.iter().map(|n| count_in(&n.daemon.log, "registered")).sum() };
    let sessions = registered();
    let mut kept: Vec<PathBuf> = cluster.members.iter().map(|m| cluster.dir.join(&m.daemon.name).join("data/certificate.json")).collect();
    kept.extend(cluster.nodes.iter().map(|n| kept_by(w, &n.id)));
    let mut seen: Vec<BTreeSet<Vec<u8>>> = vec![BTreeSet::new(); kept.len()];
    // Every daemon has had a third certificate of its own, so that its first two are over or about to be.
    while seen.iter().any(|certificates| certificates.len() < 3) {
        assert!(began.elapsed() < LIFE * 6, "renewals seen: {:?}\n{}", seen.iter().map(BTreeSet::len).collect::<Vec<_>>(), w.log(&id));
        for (path, seen) in kept.iter().zip(&mut seen) {
            seen.extend(std::fs::read(path).ok());
        }
        for node in &cluster.nodes {
            let lattice = w.at(&node.id);
            assert_eq!(text(&lattice.allocation(&id).unwrap(), "state"), "Running");
            let status = node_status(&lattice);
            assert_eq!(status["degraded"].as_array().map(|d| d.iter().filter(|d| d.to_string().contains("certificate")).count()), Some(0));
            assert_eq!(status["quorum_connected"], true, "{status}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(began.elapsed() > LIFE, "the first certificates are over");
    assert_eq!(registered(), sessions, "a session was closed");
    assert_eq!(refused_of_the_quorum(w), serde_json::json!({}));
    // Whatever is dialled from now on rests on renewed certificates: between members, from agents to members, between agents.
    faults::kill_member(&w.dir, 1).unwrap();
    faults::start_member(&w.dir, 1).unwrap();
    faults::kill_node(&w.dir, "n2").unwrap();
    faults::start_node(&w.dir, "n2").unwrap();
    w.wait("n2 to have a session", || node_status(&w.at("n2"))["quorum_connected"] == true);
    std::fs::write(&flag, "").unwrap();
    w.completed(&id);
    assert_eq!(w.log(&id).matches("done").count(), 2, "{}", w.log(&id));
    let doctor =
        process::run(Command::new(binaries().agent()).arg("doctor").arg("--config").arg(w.dir.join("n1/agent.yaml")), JOB).unwrap();
    let line = doctor.out().lines().find(|l| l.split_whitespace().nth(1) == Some("certificate")).map(str::to_owned).unwrap_or_default();
    let members = w.lattice.json(&["quorum", "members"]).unwrap();
    assert!(members.as_array().unwrap().iter().all(|m| m["certificate_until"].is_string()), "{members}");
    assert!(line.starts_with("ok") && line.contains("n1 (role api) holds for") && line.contains("seconds"), "{line}");
}

/// `lattice quorum ca …`, which needs no agent.
fn ca(args: &[&str]) -> process::Finished {
    process::run(Command::new(binaries().lattice()).args(["quorum", "ca"]).args(args), JOB).unwrap()
}

fn ca_ok(args: &[&str]) {
    let done = ca(args);
    assert_eq!(done.code(), 0, "{}", done.err());
}

/// A certificate of the authority in `ca_dir`, as the options of a first start.
fn issued(ca_dir: &Path, name: &str, out: &Path, trusts: &Path) -> Vec<String> {
    let (dir, to) = (ca_dir.to_string_lossy(), out.to_string_lossy());
    ca_ok(&["issue", "--dir", &dir, "--name", name, "--role", "api", "--host", "127.0.0.1", "--out", &to]);
    let file = |end: &str| out.join(format!("{name}.{end}")).to_string_lossy().into_owned();
    let flags = [("--bootstrap-cert", file("crt")), ("--bootstrap-key", file("key")), ("--bootstrap-ca", trusts.display().to_string())];
    flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
}

/// Starts n2's agent with these options in the place of the one that runs.
fn begin(w: &World, options: &[String]) {
    let _was_alive = faults::kill_node(&w.dir, "n2");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    faults::begin_node(&w.dir, "n2", &options, &[]).unwrap();
}

fn foreign(w: &World) {
    let ours = w.dir.join("ca/ca.crt");
    let other = w.dir.join("other-ca");
    ca_ok(&["init", "--dir", &other.to_string_lossy()]);
    begin(w, &issued(&other, "n2", &w.dir.join("foreign"), &ours));
    let told = || w.at("n2").json(&["node", "status"]).map(|s| s["quorum_detail"].to_string()).unwrap_or_default();
    w.wait("n2 to say why it has no session", || told().contains("does not take the certificate of n2: it is of another authority"));
    let counted = refused_of_the_quorum(w);
    assert!(counted["certificates of another authority"].as_u64().unwrap() > 0, "{counted}");
    assert!(count_in(&w.cluster().member(1).unwrap().daemon.log, "refused cause=Authority") > 0);
    // What is configured is as good as it was.
    let doctor =
        process::run(Command::new(binaries().agent()).arg("doctor").arg("--config").arg(w.dir.join("n2/agent.yaml")), JOB).unwrap();
    let holds =
        |l: &str| l.starts_with("ok") && l.split_once("n2 (role api) holds for ").is_some_and(|(_, days)| days.starts_with(['8', '9']));
    assert!(doctor.out().lines().any(holds), "{}", doctor.out());

    // One that trusts another authority refuses the member, counts that, and says so.
    begin(w, &issued(&w.dir.join("ca"), "n2", &w.dir.join("distrustful"), &other.join("ca.crt")));
    w.wait("n2 to say whom it refuses", || {
        w.at("n2").json(&["node", "status"]).is_ok_and(|s| s["refused"]["certificates of another authority"].as_u64() > Some(0))
    });

    // The name of another node: the agent does not begin.
    let log = w.cluster().node("n2").unwrap().daemon.log.clone();
    begin(w, &issued(&w.dir.join("ca"), "n7", &w.dir.join("named"), &ours));
    w.wait("the agent to end", || !w.cluster().node("n2").unwrap().daemon.alive());
    let said = process::tail(&log, 3);
    assert!(said.contains("the certificate of \"n7\", the configured node_id is n2"), "{said}");
    // Two of the three options are none.
    begin(w, &issued(&w.dir.join("ca"), "n2", &w.dir.join("partly"), &ours)[..4]);
    w.wait("the agent to end", || !w.cluster().node("n2").unwrap().daemon.alive());
    assert!(process::tail(&log, 3).contains("belong together: give all three"));
    faults::start_node(&w.dir, "n2").unwrap();
}

fn swapped(w: &World) {
    let cluster = w.cluster();
    let id = w.submit(&["--", "/bin/sh", "-c", "sleep 60"]);
    w.running(&id);
    let dir = w.dir.join("ca");
    for daemon in [&cluster.node("n1").unwrap().daemon, &cluster.member(1).unwrap().daemon] {
        let registered = count_in(&cluster.node("n1").unwrap().daemon.log, "registered");
        let taken = count_in(&daemon.log, "a new certificate is in force");
        let file = |end: &str| w.dir.join(&daemon.name).join(format!("{}.{end}", daemon.name)).to_string_lossy().into_owned();
        let before = std::fs::read(file("crt")).unwrap();
        // Something that is no certificate at first: it is said, and the present one stays.
        std::fs::write(file("crt"), "nothing").unwrap();
        w.wait("the bad file to be refused", || count_in(&daemon.log, "the files of `tls` are not used") > 0);
        if daemon.name == "n1" {
            let degraded = node_status(&w.lattice)["degraded"].to_string();
            assert!(degraded.contains("certificate: the files of `tls` are not used: the certificate cannot be used"), "{degraded}");
        }
        std::fs::write(file("crt"), &before).unwrap();
        w.wait("all to be well again", || !node_status(&w.lattice)["degraded"].to_string().contains("certificate"));
        ca_ok(&["renew", "--dir", &dir.to_string_lossy(), "--cert", &file("crt"), "--key", &file("key"), "--lifetime", "400d"]);
        assert_ne!(std::fs::read(file("crt")).unwrap(), before);
        w.wait("the new certificate to be taken", || count_in(&daemon.log, "a new certificate is in force") > taken);
        w.ok(&["node", "status"]);
        assert_eq!(count_in(&cluster.node("n1").unwrap().daemon.log, "registered"), registered, "the session was closed");
    }
    let degraded = node_status(&w.lattice)["degraded"].to_string();
    assert!(!degraded.contains("certificate"), "{degraded}");
    assert_eq!(text(&w.status(&id), "state"), "Running");
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

fn bootstrap(w: &World) {
    let config = w.dir.join("n2/agent.yaml");
    let as_it_was = std::fs::read_to_string(&config).unwrap();
    let without: String = as_it_was.lines().filter(|l| !l.starts_with("tls:")).flat_map(|l| [l, "\n"]).collect();
    std::fs::write(&config, without).unwrap();
    let options = issued(&w.dir.join("ca"), "n2", &w.dir.join("first"), &w.dir.join("ca/ca.crt"));
    begin(w, &options);
    w.wait("n2 to have a session", || node_status_of_n2(w).is_some_and(|s| s["quorum_connected"] == true));
    // By the environment as well.
    faults::kill_node(&w.dir, "n2").unwrap();
    let env = [("LATTICE_BOOTSTRAP_CERT", 1), ("LATTICE_BOOTSTRAP_KEY", 3), ("LATTICE_BOOTSTRAP_CA", 5)];
    let env = env.map(|(name, at)| (name, options[at].as_str()));
    faults::begin_node(&w.dir, "n2", &[], &env).unwrap();
    w.wait("n2 to have a session", || node_status_of_n2(w).is_some_and(|s| s["quorum_connected"] == true));
    faults::kill_node(&w.dir, "n2").unwrap();
    std::fs::write(&config, as_it_was).unwrap();
    faults::start_node(&w.dir, "n2").unwrap();
}

fn node_status_of_n2(w: &World) -> Option<Value> {
    w.at("n2").json(&["node", "status"]).ok()
}

fn authority(w: &World) {
    let dir = w.dir.join("ca");
    let (dir, out) = (dir.to_string_lossy(), w.dir.join("refused"));
    let out = out.to_string_lossy();
    let issue = |more: &[&str]| ca(&[&["issue", "--dir", &dir, "--out", &out][..], more].concat());
    for (more, said) in [
        (["--name", "n3", "--role", "api", "--host", "quorum.lattice"], "is a name of the quorum's members"),
        (["--name", "member-9", "--role", "api", "--host", "h"], "kept for the quorum"),
        (["--name", "n3", "--role", "king", "--host", "h"], "is not a role"),
        (["--name", "n3", "--role", "api", "--lifetime", "1s"], "seconds are possible"),
        (["--name", "n3", "--role", "api", "--lifetime", "long"], "is not a duration"),
    ] {
        let done = issue(&more);
        assert!(done.code() != 0 && done.err().contains(said), "{more:?}: {} {}", done.code(), done.err());
    }
    assert!(!w.dir.join("refused/n3.crt").exists());
    let again = ca(&["init", "--dir", &dir]);
    assert!(again.code() == 1 && again.err().contains("nothing is overwritten"), "{}", again.err());
}
