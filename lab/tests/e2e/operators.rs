//! Operators: everybody with a credential, from any account; never on an agent's statement alone, unless a role was granted.

use crate::harness::{DAEMON, Group, JOB, NOBODY, World, binaries};
use lattice_api::operator::Credential;
use lattice_lab::lattice::text;
use lattice_lab::process::{self, Finished};
use lattice_lab::quorum::members::certificate;
use lattice_ledger::Action;
use lattice_ledger::keyring::Secret;
use lattice_model::{AuditFilter, HoldKind, NodeId, OperatorToken, Principal, Timestamp};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_quorum_client::wire::{Answer, MembersChange, MembersOrder, Proof, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use libtest_mimic::Trial;
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

static OPERATORS: Group = Group { theme: "operators", name: "operators", nodes: 2, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        OPERATORS.test("an_agents_certificate_does_not_stand_for_an_operator", &[], stolen),
        OPERATORS.test("an_operator_acts_from_any_account_and_is_named_with_the_machine", &[], anna),
        OPERATORS.test("root_without_a_credential_is_no_operator", &[], root),
        OPERATORS.test("a_credential_that_others_may_read_or_that_is_anothers_clusters_is_refused", &[], unusable),
    ]
}

/// Issues a credential to this name, owned by `uid`.
pub fn issue(ca: &Path, name: &str, file: &Path, uid: u32) {
    let mut command = Command::new(binaries().lattice());
    command.args(["quorum", "ca", "operator", "--dir"]).arg(ca).args(["--name", name, "--out"]).arg(file);
    let done = process::run(&mut command, JOB).unwrap();
    assert!(done.code() == 0 && done.out().trim() == file.display().to_string(), "{} {}", done.out(), done.err());
    chown(file, Some(uid), Some(uid)).unwrap();
}

pub fn run_with(w: &World, uid: u32, credential: &Path, args: &[&str]) -> Finished {
    let home = w.dir.join(format!("home-{uid}"));
    let mut command = w.lattice.clone().with_program(&w.dir.join("bin/lattice")).command(args);
    command.uid(uid).current_dir(&home).env("HOME", &home).env("LATTICE_OPERATOR", credential).env_remove("XDG_STATE_HOME");
    process::run(&mut command, JOB).unwrap()
}

/// The holds of n2, as `nodes` shows them.
fn holds(w: &World) -> Vec<String> {
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    let n2 = nodes.as_array().unwrap().iter().find(|node| text(node, "id") == "n2").unwrap();
    n2["holds"].as_array().unwrap().iter().map(|hold| hold.as_str().unwrap().to_owned()).collect()
}

pub fn own(w: &World, name: &str) -> PathBuf {
    w.dir.join(format!("home-{NOBODY}")).join(format!("{name}.pem"))
}

/// With the certificate of an agent of role `api`, like an intruder on such a machine.
fn stolen(w: &World) {
    let cluster = w.cluster();
    let file = own(w, "bert");
    issue(&w.dir.join("ca"), "bert", &file, 0);
    let now = Timestamp(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis().try_into().unwrap());
    let token = Credential::read(&file).unwrap().sign("NodeService/SetHold", now).unwrap();
    let tls = certificate(&cluster, "n9", Role::Api).unwrap();
    let service = cluster.members.iter().map(|m| m.service.clone()).collect();
    let (n2, by): (NodeId, String) = ("n2".parse().unwrap(), "root".to_owned());
    let root = Principal { name: by.clone(), uid: 0, gid: 0, groups: vec![] };
    let hold = Request::from(Action::SetHold {
        node: n2,
        kind: HoldKind::Cordon,
        by: by.clone(),
        reason: "x".into(),
        until: None,
        deadline: None,
    });
    let as_operator = |proof: Proof, request: Request| Request::AsOperator { proof, request: Box::new(request) };
    let with = |token: OperatorToken, request: Request| as_operator(Proof::Token(token), request);
    // An agent's statement about an account counts only for granted roles, and none was granted.
    let vouched = |method: &str, request: Request| as_operator(Proof::Account { by: root.clone(), method: method.to_owned() }, request);
    let members = Request::ChangeMembers(MembersOrder { by: root.clone(), change: MembersChange::Remove { id: 1 } });
    let audit = || Request::QueryAudit { filter: AuditFilter::default(), after: 0, limit: 1, by: None };
    let rotate = Request::from(Action::AddKey { secret: Secret([7; 32]), by });
    let old = OperatorToken { signed_at: Timestamp(now.0 - 3_600_000), ..token.clone() };
    let tries = [
        ("without a token", hold.clone()),
        ("an account without a role", vouched("NodeService/SetHold", hold.clone())),
        ("the audit log for an account without a role", vouched("AdminService/QueryAudit", audit())),
        ("the audit log without a token", audit()),
        ("its export without a token", Request::ExportAudit { filter: AuditFilter::default(), after: 0, end: 0 }),
        ("the audit log with a token for another call", with(token.clone(), audit())),
        ("members without a token", members.clone()),
        ("another call than was signed", with(token.clone(), members)),
        ("another call than was signed", with(token.clone(), rotate)),
        ("another time than was signed", with(old, hold.clone())),
        ("a signature of nobody", with(OperatorToken { signature: vec![0; 70], ..token.clone() }, hold.clone())),
        ("no certificate", with(OperatorToken { certificate: vec![1; 400], ..token.clone() }, hold.clone())),
        ("within another request", with(token.clone(), with(token.clone(), hold.clone()))),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = QuorumClient::new(service, Credentials::new(tls).unwrap()).unwrap();
        for (what, request) in tries {
            let answer = client.call(&request, JOB).await;
            let refused = matches!(&answer, Err(CallError::Refused(Refusal::NotOperator { .. } | Refusal::Malformed { .. })));
            assert!(refused, "{what}: {answer:?}");
        }
        assert!(holds(w).is_empty() && w.lattice.json(&["quorum", "members"]).unwrap().as_array().is_some_and(|m| m.len() == 1));
        // A signed request is executed, in the name of its signer.
        assert!(matches!(client.call(&with(token, hold), JOB).await, Ok(Answer::Done { .. })));
    });
    let held = holds(w);
    assert!(held.len() == 1 && held[0].starts_with("cordon by bert@n9 since "), "{held:?}");
    w.ok(&["node", "uncordon", "n2"]);
}

fn anna(w: &World) {
    let file = own(w, "anna");
    issue(&w.dir.join("ca"), "anna", &file, NOBODY);
    let act = |args: &[&str]| {
        let done = run_with(w, NOBODY, &file, args);
        assert_eq!(done.code(), 0, "{args:?}: {}", done.err());
        done.out()
    };
    act(&["node", "cordon", "n2", "--reason", "fan"]);
    let held = holds(w);
    assert!(held.len() == 1 && held[0].starts_with("cordon by anna@n1 since ") && held[0].ends_with(": fan"), "{held:?}");
    act(&["admin", "tenant", "create", "--name", "physics", "--max-nodes", "1"]);
    act(&["node", "uncordon", "n2"]);
    let seen = act(&["audit", "query", "--user", "anna", "-o", "json"]);
    let seen: Vec<Value> = serde_json::from_str(&seen).unwrap();
    assert!(seen.len() == 3 && seen.iter().all(|record| text(record, "actor") == "anna@n1"), "{seen:?}");
    // If a machine's root ends another user's work, the record names root.
    let submitted = w.run_as(DAEMON, &["submit", "-o", "name", "--", "/bin/sleep", "600"]);
    let id = submitted.out().trim().to_owned();
    w.running(&id);
    w.at("n2").ok(&["cancel", &id]).unwrap();
    w.ended(&id);
    assert!(w.ok(&["status", &id]).contains("cancelled by root@n2"), "{}", w.ok(&["status", &id]));
    // With her credential she is an operator, without it a user.
    let done = w.run_as(NOBODY, &["node", "cordon", "n2", "--reason", "fan"]);
    assert!(done.code() == 4 && done.err().contains("or an operator's credential: nobody shows none"), "{}", done.err());
    assert!(done.err().contains("lattice quorum ca operator"), "with what to do: {}", done.err());
}

fn root(w: &World) {
    let cluster = w.cluster();
    let beside = cluster.nodes[0].socket.with_file_name("operator.pem");
    let away = beside.with_extension("away");
    std::fs::rename(&beside, &away).unwrap();
    let home = w.dir.join(format!("home-{DAEMON}"));
    let refused: Vec<_> = [
        &["node", "cordon", "n2", "--reason", "x"][..],
        &["quorum", "remove", "1"],
        &["gossip", "keys", "rotate"],
        &["admin", "tenant", "create", "--name", "mine"],
        &["audit", "export"],
    ]
    .map(|args| process::run(w.lattice.command(args).env("HOME", &home).env_remove("XDG_CONFIG_HOME"), JOB).unwrap())
    .into();
    std::fs::rename(&away, &beside).unwrap();
    for done in refused {
        assert!(done.code() == 4 && done.err().contains("or an operator's credential: root shows none"), "{}", done.err());
    }
    assert!(holds(w).is_empty());
}

fn unusable(w: &World) {
    let file = own(w, "carl");
    issue(&w.dir.join("ca"), "carl", &file, NOBODY);
    let cordon = ["node", "cordon", "n2", "--reason", "x"];
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = run_with(w, NOBODY, &file, &cordon);
    assert!(open.code() == 2 && open.err().contains("may be read by others (mode 644): run chmod 600"), "{}", open.err());
    std::fs::write(&file, "no credential").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let damaged = run_with(w, NOBODY, &file, &cordon);
    assert!(damaged.code() == 2 && damaged.err().contains("is not an operator's credential"), "{}", damaged.err());
    let missing = run_with(w, NOBODY, Path::new("/nowhere/operator.pem"), &cordon);
    assert!(missing.code() == 2 && missing.err().contains("cannot be read"), "{}", missing.err());
    // A credential of another authority.
    let other = w.dir.join("other-ca");
    let made = process::run(Command::new(binaries().lattice()).args(["quorum", "ca", "init", "--dir"]).arg(&other), JOB).unwrap();
    assert_eq!(made.code(), 0, "{}", made.err());
    let foreign = own(w, "foreign");
    issue(&other, "anna", &foreign, NOBODY);
    let done = run_with(w, NOBODY, &foreign, &cordon);
    assert!(done.code() == 4 && done.err().contains("the certificate in it is not valid"), "{}", done.err());
    assert!(holds(w).is_empty());
}
