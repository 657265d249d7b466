//! A certificate alone does not make a node. A caller whose certificate has a name that nobody admitted gets no work. A
//! node that registers with more capacity than before is reported.

use crate::harness::{Group, JOB, NOBODY, World};
use crate::telemetry::get;
use lattice_lab::lattice::text;
use lattice_lab::quorum::members::certificate;
use lattice_lab::up;
use lattice_model::{Boot, Incarnation, Locality, NodeAddresses, Resources};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_quorum_client::wire::{Down, HeldKeys, NodeHealth, Up};
use lattice_quorum_client::{DownStream, QuorumClient};
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use uuid::Uuid;

/// The lab admits its nodes when all of them wait for admission.
static ADMISSION: Group = Group { theme: "admission", name: "admission", nodes: 2, quorum: 3, tweak: |o| o.node_admission = up::LISTED };

/// The name of a certificate that was stolen, or issued too early.
const THIEF: &str = "n9";

pub fn trials() -> Vec<Trial> {
    vec![
        ADMISSION.test("waiting_agents_log_why_and_register_without_a_restart", &[], waited),
        ADMISSION.test("a_certificate_of_an_unknown_name_gets_no_work_before_it_is_admitted_and_growth_is_reported", &[], thief),
    ]
}

fn waited(w: &World) {
    for node in &w.cluster().nodes {
        let log = std::fs::read_to_string(&node.daemon.log).unwrap();
        let refused = log.find("the quorum does not register this node").unwrap_or_else(|| panic!("{log}"));
        assert!(log.contains(&format!("`lattice node admit {}`", node.id)), "{log}");
        assert!(log[refused..].contains("registered"), "the same process: {log}");
    }
    w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    let listed = admissions(w);
    assert_eq!((listed["waiting"].as_array().unwrap().len(), listed["admitted"].as_array().unwrap().len()), (0, 0), "{listed}");
}

fn admissions(w: &World) -> Value {
    w.lattice.json(&["node", "admit", "--list"]).unwrap()
}

/// The record of a list whose `key` is `name`.
fn of(list: &Value, key: &str, name: &str) -> Option<Value> {
    list.as_array().unwrap().iter().find(|record| text(record, key) == name).cloned()
}

fn node(w: &World) -> Option<Value> {
    of(&w.lattice.json(&["node", "list"]).unwrap(), "id", THIEF)
}

fn registration(gpus: u32, incarnation: Incarnation) -> Up {
    Up::Register {
        node: THIEF.parse().unwrap(),
        boot: Boot(Uuid::from_u128(1)),
        size: Resources { cores: 8, memory_bytes: 8 << 30, gpus },
        addresses: NodeAddresses { mesh: "127.0.0.1:1".to_owned(), gossip: "127.0.0.1:2".to_owned() },
        schedulable: true,
        incarnation,
        new_life: incarnation == Incarnation(0),
        replaces: None,
        unenforced_limits: vec![],
        features: vec![],
        topology_group: None,
        locality: Locality::default(),
        found: None,
        keys: HeldKeys { seals: 0, opens: vec![0] },
        relay_node: None,
        has_wipe_hook: false,
        health: NodeHealth::Well,
        conformance: None,
    }
}

type Session = (mpsc::Sender<Up>, DownStream);

/// Registers, and returns the incarnation and the session, or the refusal.
async fn register(client: &QuorumClient, gpus: u32, incarnation: Incarnation) -> Result<(Incarnation, Session), String> {
    let end = Instant::now() + JOB;
    loop {
        let (up, mut down) = client.session(registration(gpus, incarnation)).await.map_err(|error| error.to_string())?;
        let why = match down.next().await {
            Ok(Down::Registered { incarnation, .. }) => return Ok((incarnation, (up, down))),
            Ok(Down::Move) => {
                client.leave(down.member());
                "another member serves this node".to_owned()
            }
            Ok(Down::Close { why } | Down::Removed { why }) => return Err(why),
            other => format!("{other:?}"),
        };
        assert!(Instant::now() < end, "no answer to a registration: {why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn thief(w: &World) {
    let cluster = w.cluster();
    let services = || cluster.members.iter().map(|member| member.service.clone()).collect();
    let tls = certificate(&cluster, THIEF, Role::Node).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _inside = runtime.enter();
    let client = QuorumClient::new(services(), Credentials::new(tls).unwrap()).unwrap();
    let register = |gpus, incarnation| runtime.block_on(register(&client, gpus, incarnation));

    // The refusal names the remedy. The caller is no node, and is listed as waiting.
    let is_refused = || {
        let why = register(8, Incarnation(0)).map(drop).unwrap_err();
        assert!(why.contains("node n9 is not admitted") && why.contains("`lattice node admit n9`"), "{why}");
        assert!(node(w).is_none(), "{:?}", node(w));
    };
    is_refused();
    let waits = of(&admissions(w)["waiting"], "node", THIEF).unwrap();
    assert!(waits["from"] == "127.0.0.1" && waits["gpus"] == 8 && waits["last_attempt"].is_string(), "{waits}");
    let work = w.run(&["submit", "--gpus", "1", "--", "/bin/true"]);
    assert_ne!(work.code(), 0, "no node has GPUs: {}", work.out());

    // Users cannot admit nodes, and cannot see the waiting ones.
    for args in [&["node", "admit", THIEF][..], &["node", "admit", "--withdraw", THIEF], &["node", "admit", "--list"]] {
        let done = w.run_as(NOBODY, args);
        assert!(done.code() == 4 && done.err().contains("operator"), "{args:?}: {} {}", done.code(), done.err());
    }
    is_refused();

    // A withdrawn admission has no effect.
    w.ok(&["node", "admit", THIEF, "--reason", "rack 4"]);
    let listed = admissions(w);
    assert!(of(&listed["waiting"], "node", THIEF).is_none(), "{listed}");
    assert_eq!(of(&listed["admitted"], "node", THIEF).map(|admitted| text(&admitted, "reason")), Some("rack 4".to_owned()));
    w.ok(&["node", "admit", "--withdraw", THIEF]);
    is_refused();

    // Once admitted, it is a node until an operator disables it.
    w.ok(&["node", "admit", THIEF, "--reason", "rack 4"]);
    let (life, session) = register(8, Incarnation(0)).unwrap();
    let shown = node(w).unwrap();
    assert!(text(&shown, "state") == "Ready" && shown["gpus"] == 8, "{shown}");
    assert!(of(&admissions(w)["admitted"], "node", THIEF).is_none());
    let withdrawn = w.run(&["node", "admit", "--withdraw", THIEF]);
    assert!(withdrawn.code() == 4 && withdrawn.err().contains("lattice node disable n9"), "{}", withdrawn.err());

    // A registration with more GPUs than before is accepted and reported.
    let grown = || -> f64 {
        let of = |address: &str| {
            let (_, page) = get(address, "/metrics", "");
            let mut lines = page.lines().filter(|line| line.starts_with("lattice_node_capacity_grown_total"));
            lines.next().map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
        };
        cluster.members.iter().map(|member| of(&member.metrics)).sum()
    };
    assert_eq!(grown(), 0.0);
    drop(session);
    let (_, session) = register(16, life).unwrap();
    let shown = node(w).unwrap();
    assert!(shown["gpus"] == 16 && shown["reason"].to_string().contains("GPUs 8 to 16"), "{shown}");
    // A page of metrics is up to a second old.
    w.wait("the metric to count it", || grown() == 1.0);
    let history = w.lattice.json(&["node", "history", THIEF]).unwrap();
    let history = history.as_array().unwrap();
    let count =
        |action: &str, detail: &str| history.iter().filter(|r| text(r, "action") == action && text(r, "detail").contains(detail)).count();
    assert_eq!((count("NodeAdmitted", "rack 4"), count("AdmissionWithdrawn", "rack 4")), (2, 1), "{history:?}");
    assert_eq!((count("NodeRegistered", "8 GPUs"), count("CapacityGrew", "GPUs 8 to 16")), (1, 1), "{history:?}");
    let by = history.iter().find(|r| text(r, "action") == "NodeAdmitted").map(|r| text(r, "actor"));
    assert!(by.as_ref().is_some_and(|by| by.ends_with("@n1")), "by the operator: {by:?}");
    drop(session);
    w.ok(&["node", "disable", THIEF, "--reason", "stolen", "--yes"]);
}
