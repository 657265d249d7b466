//! Certificates in operation: short-lived ones are renewed while work runs, foreign ones are refused, new files are read,
//! and one is only for the first start.

use crate::harness::{Group, JOB, NOBODY, World, binaries, configure};
use crate::watches::Watching;
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::quorum::members::certificate;
use lattice_lab::{faults, process};
use lattice_ledger::{Access, AccessKind};
use lattice_model::{AllocationId, Principal};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_quorum_client::wire::{Answer, Change, Refusal, Request, WatchAllocations, WatchMessage, WatchRequest};
use lattice_quorum_client::{CallError, QuorumClient};
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
        LONG.test("the_authority_refuses_impossible_certificates", &[], authority),
        LONG.test("role_node_suffices_for_a_compute_node", &[], compute_node),
        LONG.test("a_stolen_node_certificate_gives_access_to_its_own_node_alone", &[], stolen),
    ]
}

/// The file with an agent's renewed certificate.
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
    // Every daemon has got a third certificate, so its first two have expired or are about to.
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
    // All new connections need renewed certificates: between members, from agents to members, between agents.
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

/// Restarts n2's agent with these options.
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
    let detail = || w.at("n2").json(&["node", "status"]).map(|s| s["quorum_detail"].to_string()).unwrap_or_default();
    w.wait("n2 to say why it has no session", || detail().contains("does not accept the certificate of n2: another authority issued it"));
    let counted = refused_of_the_quorum(w);
    assert!(counted["certificates of another authority"].as_u64().unwrap() > 0, "{counted}");
    assert!(count_in(&w.cluster().member(1).unwrap().daemon.log, "refused cause=Authority") > 0);
    // The configured files are still valid.
    let doctor =
        process::run(Command::new(binaries().agent()).arg("doctor").arg("--config").arg(w.dir.join("n2/agent.yaml")), JOB).unwrap();
    let holds =
        |l: &str| l.starts_with("ok") && l.split_once("n2 (role api) holds for ").is_some_and(|(_, days)| days.starts_with(['8', '9']));
    assert!(doctor.out().lines().any(holds), "{}", doctor.out());

    // An agent that trusts another authority refuses the member, counts and logs that.
    begin(w, &issued(&w.dir.join("ca"), "n2", &w.dir.join("distrustful"), &other.join("ca.crt")));
    w.wait("n2 to say whom it refuses", || {
        w.at("n2").json(&["node", "status"]).is_ok_and(|s| s["refused"]["certificates of another authority"].as_u64() > Some(0))
    });

    // The certificate of another node: the agent does not start.
    let log = w.cluster().node("n2").unwrap().daemon.log.clone();
    begin(w, &issued(&w.dir.join("ca"), "n7", &w.dir.join("named"), &ours));
    w.wait("the agent to end", || !w.cluster().node("n2").unwrap().daemon.alive());
    let log_end = process::tail(&log, 3);
    assert!(log_end.contains("the certificate of \"n7\", the configured node_id is n2"), "{log_end}");
    // Two of the three options are not enough.
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
        let taken = count_in(&daemon.log, "a new certificate is in use");
        let file = |end: &str| w.dir.join(&daemon.name).join(format!("{}.{end}", daemon.name)).to_string_lossy().into_owned();
        let before = std::fs::read(file("crt")).unwrap();
        // An invalid file first: it is logged, and the present certificate stays.
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
        w.wait("the new certificate to be in use", || count_in(&daemon.log, "a new certificate is in use") > taken);
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
    let as_it_was = configure(&w.dir, "n2", "tls: {ca: \"\", cert: \"\", key: \"\"}");
    let options = issued(&w.dir.join("ca"), "n2", &w.dir.join("first"), &w.dir.join("ca/ca.crt"));
    begin(w, &options);
    w.wait("n2 to have a session", || node_status_of_n2(w).is_some_and(|s| s["quorum_connected"] == true));
    // From the environment as well.
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
    for (more, expected) in [
        (["--name", "n3", "--role", "api", "--host", "quorum.lattice"], "is reserved for members of the quorum"),
        (["--name", "member-9", "--role", "api", "--host", "h"], "reserved for the quorum"),
        (["--name", "n3", "--role", "king", "--host", "h"], "is not a role"),
        (["--name", "n3", "--role", "api", "--lifetime", "1s"], "seconds are possible"),
        (["--name", "n3", "--role", "api", "--lifetime", "long"], "is not a duration"),
    ] {
        let done = issue(&more);
        assert!(done.code() != 0 && done.err().contains(expected), "{more:?}: {} {}", done.code(), done.err());
    }
    assert!(!w.dir.join("refused/n3.crt").exists());
    let again = ca(&["init", "--dir", &dir]);
    assert!(again.code() == 1 && again.err().contains("nothing is overwritten"), "{}", again.err());
}

/// Work that stays on this node until it is cancelled, with a secret in its environment.
fn stays(w: &World, node: &str) -> String {
    let secret = format!("TOKEN=of-{node}");
    let done =
        w.run_as(NOBODY, &["submit", "-o", "name", "-w", node, "--env", &secret, "--", "/bin/sh", "-c", "echo told; exec sleep 600"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let id = done.out().trim().to_owned();
    w.running(&id);
    id
}

fn accesses(w: &World) -> Vec<Value> {
    let answer = w.lattice.json(&["audit", "query", "--node", "n2", "--since", "1h"]).unwrap();
    let access = |record: &&Value| ["LogsRead", "AttachStarted", "AttachEnded"].contains(&text(record, "action").as_str());
    answer.as_array().unwrap().iter().filter(access).cloned().collect()
}

/// An agent with a certificate of role `node`, and no configured roles.
fn compute_node(w: &World) {
    let config = w.dir.join("n2/agent.yaml");
    let out = w.dir.join("as-node");
    let ca_dir = w.dir.join("ca");
    let (dir, to) = (ca_dir.to_string_lossy(), out.to_string_lossy());
    ca_ok(&["issue", "--dir", &dir, "--name", "n2", "--role", "node", "--host", "127.0.0.1", "--out", &to]);
    let file = |end: &str| out.join(format!("n2.{end}")).to_string_lossy().into_owned();
    // Roles that such a certificate does not have: the agent reports that and does not start.
    let as_it_was = configure(&w.dir, "n2", &format!("tls: {{cert: {:?}, key: {:?}}}", file("crt"), file("key")));
    begin(w, &[]);
    w.wait("the agent to end", || !w.cluster().node("n2").unwrap().daemon.alive());
    let log_end = process::tail(&w.cluster().node("n2").unwrap().daemon.log, 5);
    assert!(log_end.contains("tls.cert is of role node") && log_end.contains("roles: []"), "{log_end}");
    configure(&w.dir, "n2", "roles: []");
    // The agent asks the quorum for the others' addresses.
    configure(&w.dir, "n2", "gossip: {seeds: []}");
    let peers = w.cluster().run_dir.join("n2/state/peers.json");
    let _unwritten = std::fs::remove_file(&peers);
    faults::start_node(&w.dir, "n2").unwrap();
    w.wait("n2 to have a session", || node_status_of_n2(w).is_some_and(|s| s["quorum_connected"] == true));
    w.wait("n2 to be ready", || w.lattice.nodes().is_ok_and(|all| all.contains(&("n2".to_owned(), "Ready".to_owned()))));

    // Work on both nodes, a launch from a script on its node, its output read elsewhere.
    let id = w.submit(&["--nodes", "2", "--", "/bin/sh", "-c", "echo rank $LATTICE_RANK"]);
    w.completed(&id);
    let log = w.ok(&["logs", &id]);
    assert!(log.contains("rank 0\n") && log.contains("rank 1\n"), "{log}");
    let script = format!("#!/bin/sh\n{}/lattice launch -n 2 /bin/echo launched\n", w.dir.join("bin").display());
    let id = w.submit(&["-w", "n2", &w.script("compute.sh", &script)]);
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]).matches("launched").count(), 2);

    // A person on the node is served for the node's own allocations; the audit log names the person and the machine.
    let mine = stays(w, "n2");
    let at_node = w.at("n2");
    w.wait("its output at its node", || at_node.run(&["logs", &mine], JOB).is_ok_and(|done| done.out() == "told\n"));
    let attached = at_node.run(&["attach", &mine, "--", "/bin/echo", "looked\nhere"], JOB).unwrap();
    assert_eq!((attached.code(), attached.out().as_str()), (0, "looked\nhere\n"), "{}", attached.err());
    w.wait("its end in the audit log", || accesses(w).iter().any(|r| text(r, "action") == "AttachEnded"));
    let recorded = accesses(w);
    for action in ["LogsRead", "AttachStarted", "AttachEnded"] {
        let one = recorded.iter().find(|r| text(r, "action") == action && text(r, "allocation") == mine);
        let one = one.unwrap_or_else(|| panic!("no {action}: {recorded:?}"));
        assert!(text(one, "actor") == "root" && text(one, "detail").starts_with("at n2: "), "{one}");
    }
    assert!(recorded.iter().any(|r| text(r, "detail").contains("/bin/echo looked\\nhere")), "one line, escaped: {recorded:?}");
    // For other allocations the request is refused, with the place to ask.
    let theirs = stays(w, "n1");
    let refused = at_node.run(&["status", &theirs], JOB).unwrap();
    assert!(refused.code() != 0 && refused.err().contains("ask on a machine whose agent has"), "{} {}", refused.out(), refused.err());
    let nodes = at_node.json(&["nodes"]).unwrap();
    let committed = |id: &str| nodes.as_array().unwrap().iter().find(|n| text(n, "id") == id).unwrap()["committed"].clone();
    assert!(committed("n1").is_null() && committed("n2")["cores"].as_u64() > Some(0), "{nodes}");
    served_and_refused(w, &at_node, &mine);
    for id in [mine, theirs] {
        w.ok(&["cancel", &id]);
        w.ended(&id);
    }
    // It reaches the other node with the quorum, and without.
    let reaches_n1 = || {
        let n1 = at_node.json(&["node", "status", "n1"]).unwrap();
        assert!(text(&n1, "state") == "Ready" && n1["fact"]["error"].is_null() && !n1["fact"]["now"].is_null(), "{n1}");
    };
    reaches_n1();
    w.wait("it to keep where n1 is", || std::fs::read_to_string(&peers).is_ok_and(|kept| kept.contains("\"n1\"")));
    faults::kill_member(&w.dir, 1).unwrap();
    reaches_n1();
    let listed = at_node.json(&["nodes"]).unwrap();
    let states: Vec<_> = listed.as_array().unwrap().iter().map(|n| (text(n, "id"), text(n, "state"))).collect();
    assert_eq!(states, ["n1", "n2"].map(|node| (node.to_owned(), "Ready".to_owned())));
    faults::start_member(&w.dir, 1).unwrap();
    w.wait("the quorum to answer", || w.lattice.nodes().is_ok());
    faults::kill_node(&w.dir, "n2").unwrap();
    std::fs::write(&config, as_it_was).unwrap();
    faults::start_node(&w.dir, "n2").unwrap();
}

/// What the agent of a compute node does for people, as docs/reference/certificate-roles.md has it:
/// it reads its own work and launches in it, and refuses what needs an agent of role `api`.
/// `mine` runs there, and is cancelled.
fn served_and_refused(w: &World, at_node: &Lattice, mine: &str) {
    let refused = |args: &[&str], code: i32, why: &str| {
        let done = at_node.run(args, JOB).unwrap();
        assert_eq!((done.code(), done.out().as_str()), (code, ""), "{args:?}: {}", done.err());
        assert!(done.err().contains(why), "{args:?}: {}", done.err());
    };
    let of_users = "this agent does not serve users (its roles lack api): use an agent that does";
    refused(&["submit", "--", "/bin/true"], 4, of_users);
    refused(&["launch", "--", "/bin/true"], 125, of_users);
    refused(&["status"], 4, of_users);
    refused(&["status", "--watch"], 4, of_users);
    refused(&["cancel", mine], 4, "this needs the certificate role api; the caller's is node");
    refused(&["nodes", "--watch"], 4, "ask an agent whose certificate has the role api");

    assert_eq!(text(&at_node.allocation(mine).unwrap(), "state"), "Running");
    let explained = at_node.ok(&["explain", mine]).unwrap();
    assert!(explained.starts_with(&mine[..8]) && explained.contains(" is Running\n"), "{explained}");
    assert_eq!(at_node.ok(&["nodes", "-o", "name"]).unwrap(), "n1\nn2\n");
    // From a directory that the owner can enter as well.
    let mut launch = at_node.command(&["launch", "--alloc", mine, "--", "/bin/echo", "launched"]);
    let launched = process::run(launch.current_dir("/"), JOB).unwrap();
    assert_eq!((launched.code(), launched.out().as_str()), (0, "launched\n"), "{}", launched.err());
    let mut watch = Watching::begin_at(w, at_node, "compute-node", &["status", mine, "--watch", "-o", "json"], None);
    w.wait("the watch to show it", || watch.lines().iter().any(|line| text(line, "state") == "Running"));
    w.ok(&["cancel", mine]);
    assert_eq!(watch.ended(), Some(0), "{}", watch.err());
    let last = watch.lines().pop().unwrap();
    assert_eq!((text(&last, "id").as_str(), text(&last, "state").as_str()), (mine, "Cancelled"));
}

fn stolen(w: &World) {
    let (mine, theirs) = (stays(w, "n2"), stays(w, "n1"));
    let id = |text: &str| text.parse::<AllocationId>().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = w.cluster();
        let credentials = Credentials::new(certificate(&cluster, "n2", Role::Node).unwrap()).unwrap();
        let thief = QuorumClient::new(cluster.members.iter().map(|m| m.service.clone()).collect(), credentials).unwrap();
        let refused = async |request: Request| {
            let answer = thief.call(&request, JOB).await;
            assert!(matches!(answer, Err(CallError::Refused(Refusal::Role { .. } | Refusal::Malformed { .. }))), "{request:?}: {answer:?}");
        };
        refused(Request::GetAllocation { key: theirs.clone() }).await;
        refused(Request::Stale(Box::new(Request::GetAllocation { key: theirs.clone() }))).await;
        let Ok(Answer::Allocation(own)) = thief.call(&Request::GetAllocation { key: mine.clone() }, JOB).await else { panic!("its own") };
        let live = WatchRequest { nodes: true, allocations: WatchAllocations::Live, ..WatchRequest::nothing() };
        let mut watch = thief.watch(&live).await.unwrap();
        let (mut seen, mut complete) = (Vec::new(), false);
        while !complete {
            if let WatchMessage::Changes { changes, complete: last, .. } = watch.next().await.unwrap() {
                seen.extend(
                    changes.into_iter().filter_map(|c| if let Change::Allocation(allocation) = c { Some(allocation.id) } else { None }),
                );
                complete = last;
            }
        }
        assert_eq!(seen, [id(&mine)]);
        for wanted in [WatchRequest { leases: true, ..live.clone() }, WatchRequest { tenants: true, ..live }] {
            let opened = thief.watch(&wanted).await;
            assert!(opened.is_err_and(|e| e.to_string().contains("needs the certificate role api")));
        }
        let person = |name: &str, uid| Principal { name: name.into(), uid, gid: 0, groups: vec![] };
        let access = Access {
            id: uuid::Uuid::new_v4(),
            by: own.owner.clone(),
            kind: AccessKind::LogsRead,
            allocation: Some(own.id),
            node: None,
            detail: "forged".into(),
        };
        for forged in [
            Access { by: person("mallory", 1000), ..access.clone() },
            Access { by: person("mallory", 0), ..access.clone() },
            Access { allocation: Some(id(&theirs)), ..access.clone() },
            Access { node: Some("n1".parse().unwrap()), ..access.clone() },
            Access { detail: "forged\nat n1: forged".into(), ..access.clone() },
            Access { kind: AccessKind::AuditExported, ..access.clone() },
        ] {
            refused(Request::RecordAccess(forged)).await;
        }
        for by in ["x".repeat(3 << 20), "two\nlines".to_owned()] {
            refused(Request::RecordAccess(Access { by: person(&by, 0), ..access.clone() })).await;
        }
    });
    let all = w.lattice.json(&["audit", "query", "--since", "1h"]).unwrap();
    assert!(!all.to_string().contains("forged") && !all.to_string().contains("mallory"), "{all}");
    for id in [mine, theirs] {
        w.ok(&["cancel", &id]);
        w.ended(&id);
    }
}
