//! The audit log: what is recorded, found, signed, rotated and exported.

use crate::lab::{Lab, PATIENCE, eventually, submit};
use lattice_ledger::{Access, AccessKind, Action};
use lattice_model::{AllocationId, AuditAction, AuditFilter, AuditRecord, MemberId, Principal};
use lattice_pki::identity::Role;
use lattice_quorum_client::wire::{Answer, AuditWalk, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use uuid::Uuid;

pub async fn walk(client: &QuorumClient) -> Result<AuditWalk, CallError> {
    let mut from = None;
    loop {
        match client.call(&Request::VerifyAudit { from: from.take() }, PATIENCE).await? {
            Answer::AuditVerified(walk) if walk.done => return Ok(*walk),
            Answer::AuditVerified(walk) => from = Some(walk),
            other => panic!("{other:?}"),
        }
    }
}

pub async fn find(lab: &Lab, client: &QuorumClient, filter: AuditFilter) -> Vec<AuditRecord> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let query = Request::QueryAudit { filter: filter.clone(), after, limit: 3, by: None };
        match client.call(&lab.as_operator("anna", query), PATIENCE).await.unwrap() {
            Answer::Audit(page) => {
                found.extend(page.records);
                after = page.upto;
                if after == page.end {
                    return found;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn root() -> Principal {
    Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] }
}

fn reading(allocation: AllocationId, node: &str) -> Access {
    let node = Some(node.parse().unwrap());
    Access { id: Uuid::new_v4(), by: root(), kind: AccessKind::LogsRead, allocation: Some(allocation), node, detail: "xé\u{a0}\"".into() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_access_is_recorded_once_with_its_owner_and_is_found() {
    let mut lab = Lab::new(1, |c| c.audit_sign_seconds = 1);
    let member = lab.start(1, true).await;
    let client = lab.api(&[1]);
    submit(&client, 1).await;
    eventually("a key is on record", async || walk(&client).await.unwrap(), |w| !w.keys.is_empty()).await;
    let (first, second) = (submit(&client, 1).await, submit(&client, 1).await);
    let access = reading(first, "n1");
    for _ in 0..2 {
        client.call(&Request::RecordAccess(access.clone()), PATIENCE).await.unwrap();
    }
    client.call(&Request::from(Action::Cancel { id: second, by: root() }), PATIENCE).await.unwrap();
    let seqs = |records: &[AuditRecord]| records.iter().map(|r| r.action).collect::<Vec<_>>();
    let of_first = find(&lab, &client, AuditFilter { allocation: Some(first.short().parse().unwrap()), ..AuditFilter::default() }).await;
    assert_eq!(seqs(&of_first), [AuditAction::AllocationSubmitted, AuditAction::LogsRead]);
    assert_eq!((of_first[1].actor.as_str(), of_first[1].owner.as_deref()), ("root", Some("alice")));
    let of_alice = find(&lab, &client, AuditFilter { user: Some("alice".into()), ..AuditFilter::default() }).await;
    assert_eq!(of_alice.len(), 6, "her submissions, and the actions on them: {of_alice:?}");
    let cancelled = AuditFilter { user: Some("root".into()), actions: vec![AuditAction::CancelRequested], ..AuditFilter::default() };
    let cancelled = find(&lab, &client, cancelled).await;
    assert!(cancelled.len() == 1 && cancelled[0].owner.as_deref() == Some("alice"), "{cancelled:?}");
    assert_eq!(find(&lab, &client, AuditFilter { since: Some(lattice_model::Timestamp(u64::MAX)), ..AuditFilter::default() }).await, []);

    // A node's agent records access to work on its own node only, and reads nothing.
    let node = lab.client(&[1], "n2", Role::Node);
    for request in
        [Request::RecordAccess(reading(first, "n1")), Request::RecordAccess(reading(first, "n2")), Request::VerifyAudit { from: None }]
    {
        let refused = node.call(&request, PATIENCE).await;
        assert!(matches!(refused, Err(CallError::Refused(Refusal::Role { .. }))), "{refused:?}");
    }
    let long = Access { detail: "x".repeat(2000), ..reading(first, "n1") };
    let refused = client.call(&Request::RecordAccess(long), PATIENCE).await;
    assert!(matches!(refused, Err(CallError::Refused(Refusal::TooLarge { .. }))), "{refused:?}");
    let elsewhere = Request::VerifyAudit { from: Some(Box::new(AuditWalk::new(MemberId(7)))) };
    let refused = client.call(&elsewhere, PATIENCE).await;
    assert!(matches!(refused, Err(CallError::Refused(Refusal::OtherMember { .. }))), "{refused:?}");
    member.stop().await;
}

fn key(path: &Path) {
    let pem = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem();
    std::fs::write(path, pem).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_are_signed_a_rotated_key_still_verifies_and_a_forged_signature_does_not() {
    let mut lab = Lab::new(1, |c| c.audit_sign_seconds = 1);
    let path = lab.scratch.0.join("signing.pem");
    key(&path);
    lab.configs[0].audit_signing_key_path = path.clone();
    let client = lab.api(&[1]);
    let mut keys = Vec::new();
    for round in 1..=2usize {
        let member = lab.start(1, round == 1).await;
        submit(&client, 1).await;
        let signed = |w: &AuditWalk| w.signatures == round as u64;
        let whole = eventually("it is signed", async || walk(&client).await.unwrap(), signed).await;
        keys = whole.keys;
        // Nothing is signed if there are no new records.
        tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
        let later = walk(&client).await.unwrap();
        assert_eq!(later.head, whole.head);
        member.stop().await;
        key(&path);
    }
    assert_eq!(keys[0].until, Some(keys[1].since));
    assert_eq!(keys[1].until, None);
    assert_ne!(keys[0].key, keys[1].key);

    let member = lab.start(1, false).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let ledger = member.agreed().ledger().clone();
    let records: Vec<AuditRecord> = member.agreed().audit_records(0, u64::MAX).map(Result::unwrap).collect();
    let signed = records.iter().find_map(lattice_ledger::signing::SignedHead::of).unwrap();
    let message = lattice_ledger::signing::SignedHead::message(ledger.cluster(), signed.seq, &signed.hash);
    let verifies = lattice_quorum::audit::signer::verifies;
    assert!(verifies(&signed.key, message.as_bytes(), &signed.signature));
    assert!(!verifies(&keys[1].key, message.as_bytes(), &signed.signature), "only the key of that time verifies it");
    member.stop().await;
}
