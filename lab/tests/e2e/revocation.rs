//! A revoked certificate is refused everywhere within seconds, and its owner continues with another one.

use crate::harness::{Group, JOB, NOBODY, World, binaries};
use crate::operators::{issue, own, run_with};
use lattice_lab::lattice::text;
use lattice_lab::process;
use lattice_lab::quorum::members::certificate;
use lattice_lab::up::Options;
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_quorum_client::wire::{Answer, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use libtest_mimic::Trial;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

static REVOCATION: Group = Group { theme: "revocation", name: "revocation", nodes: 3, quorum: 3, tweak };

fn tweak(options: &mut Options) {
    options.down_after_ms = 3_000;
}

/// "Within seconds", on a busy machine.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

pub fn trials() -> Vec<Trial> {
    vec![
        REVOCATION.test("a_stolen_nodes_certificate_is_refused_everywhere_and_the_node_comes_back_with_another_one", &[], stolen),
        REVOCATION.test("an_operators_credential_is_revoked", &[], operator),
        REVOCATION.test("members_and_no_names_are_refused_and_users_may_not", &[], refused),
    ]
}

fn revoke(w: &World, name: &str) -> Instant {
    let output = w.ok(&["quorum", "ca", "revoke", name, "--reason", "stolen laptop"]);
    assert!(output.contains(&format!("Certificates of {name} that were issued before ")) && output.contains("gossip key"), "{output}");
    Instant::now()
}

fn state(w: &World, node: &str) -> String {
    text(&w.lattice.json(&["nodes", node]).unwrap(), "state")
}

/// The ids of the keys, the newest last.
fn keys(w: &World) -> Vec<u64> {
    let now = w.lattice.json(&["gossip", "keys"]).unwrap();
    now["keys"].as_array().unwrap().iter().map(|key| key["id"].as_u64().unwrap()).collect()
}

fn is_alive(w: &World, node: &str) -> bool {
    let seen = w.lattice.json(&["gossip", "members"]).unwrap();
    seen.as_array().unwrap().iter().any(|m| text(m, "node") == node && text(m, "liveness") == "alive")
}

fn stolen(w: &World) {
    let cluster = w.cluster();
    w.wait("n3 to be heard", || is_alive(w, "n3"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tls = certificate(&cluster, "n3", Role::Node).unwrap();
    let service = cluster.members.iter().map(|m| m.service.clone()).collect();
    let _runtime = runtime.enter();
    let thief = QuorumClient::new(service, Credentials::new(tls).unwrap()).unwrap();
    let ask = |request: &Request| runtime.block_on(thief.call(request, JOB));
    assert!(matches!(ask(&Request::ListNodes), Ok(Answer::Nodes(_))));
    let before = keys(w);

    let since = revoke(w, "n3");
    let is_refused =
        |answer: Result<Answer, CallError>| matches!(&answer, Err(CallError::Refused(r)) if r.to_string().contains("n3 is revoked"));
    w.wait("the thief to be refused", || is_refused(ask(&Request::ListNodes)));
    assert!(since.elapsed() < REFUSED_WITHIN, "{:?}", since.elapsed());
    for _ in 0..9 {
        assert!(is_refused(ask(&Request::RenewCertificate { request: vec![1] })), "by whichever member is asked");
    }
    // Its agent has no session any more, logs the reason, and answers nobody.
    w.wait("n3 not to be Ready", || state(w, "n3") != "Ready");
    let doctor = w.at("n3").run(&["nodes"], JOB).unwrap();
    assert!(doctor.code() != 0 && doctor.err().contains("the certificate of n3 is revoked"), "{} {}", doctor.code(), doctor.err());
    let recorded = w.lattice.json(&["audit", "query", "--type", "certificates-revoked"]).unwrap();
    let record = &recorded.as_array().unwrap()[0];
    assert!(text(record, "actor") == "root@n1" && text(record, "node") == "n3", "{record}");
    assert!(text(record, "detail").ends_with(": stolen laptop"), "{record}");
    let listed = w.lattice.json(&["quorum", "ca", "revoked"]).unwrap();
    assert_eq!(listed.as_array().unwrap().iter().map(|r| text(r, "name")).collect::<Vec<_>>(), ["n3"]);
    // Its copy of the gossip key is worthless.
    w.wait("another gossip key alone", || keys(w).iter().all(|key| !before.contains(key)));
    w.wait("n3 to be silent", || !is_alive(w, "n3"));

    // With a new certificate in place of the revoked one, the agent continues; the thief does not.
    let file = |end: &str| w.dir.join(format!("n3/n3.{end}")).to_string_lossy().into_owned();
    let mut renew = Command::new(binaries().lattice());
    let (ca, cert, key) = (w.dir.join("ca"), file("crt"), file("key"));
    renew.args(["quorum", "ca", "renew", "--dir"]).arg(ca).args(["--cert", &cert, "--key", &key]);
    let renewed = process::run(&mut renew, JOB).unwrap();
    assert_eq!(renewed.code(), 0, "{}", renewed.err());
    w.wait("n3 to be back", || state(w, "n3") == "Ready" && is_alive(w, "n3"));
    // It answers its users once it follows the quorum again, a moment after it has a session.
    w.wait("n3 to answer its users", || w.at("n3").ok(&["nodes"]).is_ok());
    let id = w.submit(&["-w", "n3", "--", "/bin/true"]);
    assert_eq!(text(&w.ended(&id), "state"), "Completed");
    assert!(is_refused(ask(&Request::ListNodes)));
}

fn operator(w: &World) {
    let file = own(w, "dora");
    issue(&w.dir.join("ca"), "dora", &file, NOBODY);
    let drain = ["node", "cordon", "n2", "--reason", "fan"];
    assert_eq!(run_with(w, NOBODY, &file, &drain).code(), 0);
    w.ok(&["node", "uncordon", "n2"]);
    revoke(w, "dora");
    w.wait("her credential to be refused", || {
        let done = run_with(w, NOBODY, &file, &drain);
        done.code() == 4 && done.err().contains("the certificate of dora is revoked")
    });
    // Commands that do not reach the quorum are refused as well.
    let audit = run_with(w, NOBODY, &file, &["audit", "query"]);
    assert!(audit.code() == 4 && audit.err().contains("the certificate of dora is revoked"), "{}", audit.err());
    std::fs::remove_file(&file).unwrap();
    issue(&w.dir.join("ca"), "dora", &file, NOBODY);
    let done = run_with(w, NOBODY, &file, &drain);
    assert_eq!(done.code(), 0, "{}", done.err());
    w.ok(&["node", "uncordon", "n2"]);
}

fn refused(w: &World) {
    let member = w.run(&["quorum", "ca", "revoke", "member-2"]);
    assert!(member.code() == 4 && member.err().contains("member-2 is a member of the quorum"), "{} {}", member.code(), member.err());
    let nobody = w.run(&["quorum", "ca", "revoke", "a b"]);
    assert!(nobody.code() != 0 && nobody.err().contains("is not a valid certificate name"), "{}", nobody.err());
    let user = w.run_as(NOBODY, &["quorum", "ca", "revoke", "n2"]);
    assert!(user.code() == 4 && user.err().contains("or an operator's credential"), "{}", user.err());
    let listed: Value = w.lattice.json(&["quorum", "ca", "revoked"]).unwrap();
    assert!(listed.as_array().unwrap().iter().all(|r| !["member-2", "n2"].contains(&text(r, "name").as_str())), "{listed}");
    assert_eq!(state(w, "n2"), "Ready");
}
