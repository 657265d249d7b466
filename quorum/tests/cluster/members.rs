//! Members that stop, start and lag behind.

use crate::auditing::walk;
use crate::lab::{Lab, PATIENCE, eventually, lease, status, submit};
use lattice_ledger::AuditHead;
use lattice_model::MemberId;
use lattice_pki::identity::Role;
use lattice_quorum::audit::walk::step;
use lattice_quorum::config::QuorumConfig;
use lattice_quorum::member::{Listeners, Member, MemberError};
use lattice_quorum_client::wire::{Answer, AuditWalk, Request};
use lattice_store::StoreError;

/// A snapshot after 20 entries, and no signatures: each would be an entry at an arbitrary moment,
/// perhaps after the test has copied a state for comparison.
fn entries_of_the_test_alone(config: &mut QuorumConfig) {
    config.snapshot_entries = 20;
    config.audit_sign_seconds = 3600;
}

/// A snapshot that is being written when another is requested contains only what was applied
/// before, and the request triggers no second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_made_while_an_older_snapshot_is_being_written() {
    let mut lab = Lab::new(1, |config| {
        entries_of_the_test_alone(config);
        config.backup = format!("file://{}", config.data_dir.with_file_name("backups").display());
        config.backup_seconds = 3600;
    });
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let (client, operator) = (lab.api(&[1]), lab.client(&[1], "member-2", Role::Quorum));
    for _ in 0..30 {
        futures::future::join_all((0..25).map(|_| submit(&client, 1))).await;
        let applied = member.agreed().ledger().revision();
        let made = operator.call(&Request::Backup, PATIENCE).await;
        assert!(matches!(&made, Ok(Answer::Backup { revision, .. }) if *revision >= applied), "{made:?}");
    }
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_all_members_restart_state_and_audit_chain_are_the_same() {
    let mut lab = Lab::new(3, entries_of_the_test_alone);
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    for member in &members {
        tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    }
    let client = lab.api(&[1, 2, 3]);
    lease(&client, "n1").await;
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.push(submit(&client, 1).await);
    }
    assert_eq!(status(&client).await.members.len(), 3);
    // The leader has applied what it answered.
    let revision = members.iter().map(|m| m.agreed().ledger().revision()).max().unwrap();
    let chain = async |client: &lattice_quorum_client::QuorumClient| walk(client).await.unwrap().head;
    let all_have = async |members: &[Member], revision| {
        eventually(
            "all apply it",
            async || members.iter().map(|m| (m.agreed().ledger().revision(), has_written(m))).collect::<Vec<_>>(),
            |all| all.iter().all(|(r, written)| *r >= revision && *written),
        )
        .await;
    };
    all_have(&members, revision).await;
    let ledger = members[0].agreed().ledger().clone();
    for member in &members {
        assert!(*member.agreed().ledger() == ledger, "replicas differ");
    }
    let head = chain(&client).await;
    for member in members {
        member.stop().await;
    }

    let members = [lab.start(1, false).await, lab.start(2, false).await, lab.start(3, false).await];
    let client = lab.api(&[1, 2, 3]);
    for id in &ids {
        let answer = client.call(&Request::GetAllocation { key: id.to_string() }, PATIENCE).await;
        assert!(matches!(&answer, Ok(Answer::Allocation(a)) if a.id == *id), "{answer:?}");
    }
    all_have(&members, revision).await;
    for (at, member) in (1u64..).zip(&members) {
        assert!(*member.agreed().ledger() == ledger, "member {at} has another state");
        assert_eq!(chain(&lab.api(&[at])).await, head, "member {at}");
    }
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lagged_behind_the_log_gets_a_snapshot_with_the_whole_chain() {
    let mut lab = Lab::new(3, entries_of_the_test_alone);
    let one = lab.start(1, true).await;
    let two = lab.start(2, false).await;
    tokio::time::timeout(PATIENCE, one.ready()).await.unwrap();
    let client = lab.api(&[1, 2]);
    for _ in 0..120 {
        submit(&client, 1).await;
    }
    // Wait until so much is purged that the third member cannot be served from the log.
    let purged = async || std::fs::read(lab.config(1).data_dir.join("purged")).is_ok();
    eventually("the log is cut off", purged, |there| *there).await;
    let three = lab.start(3, false).await;
    let want = one.agreed().ledger().clone();
    eventually("it catches up", async || three.agreed().ledger().revision(), |r| *r >= want.revision()).await;
    assert!(*three.agreed().ledger() == want, "the state that was sent differs");
    assert_eq!(verified_head(&three).await, *want.audit_head());
    // It continues from there, also after a restart.
    three.stop().await;
    let three = lab.start(3, false).await;
    submit(&client, 1).await;
    let want = one.agreed().ledger().clone();
    eventually("it follows", async || three.agreed().ledger().revision(), |r| *r >= want.revision()).await;
    assert_eq!(verified_head(&three).await, *want.audit_head());
    // Its audit segments are lost: they are fetched again before it starts.
    eventually("it has a snapshot", async || has_snapshot(&lab.config(3).data_dir), |there| *there).await;
    three.stop().await;
    std::fs::remove_dir_all(lab.config(3).data_dir.join("audit")).unwrap();
    let three = lab.start(3, false).await;
    eventually("it follows", async || three.agreed().ledger().revision(), |r| *r >= want.revision()).await;
    assert_eq!(verified_head(&three).await, *want.audit_head());
    for member in [one, two, three] {
        member.stop().await;
    }
}

/// Whether all audit records of the member's ledger are on its disk: they are written after the
/// ledger has them.
fn has_written(member: &Member) -> bool {
    let applied = member.agreed().ledger().audit_head().seq;
    member.agreed().audit_head().seq >= applied
}

/// The end of the audit chain on a member's disk, with every hash and signature verified.
async fn verified_head(member: &Member) -> AuditHead {
    eventually("its audit records are written", async || has_written(member), |written| *written).await;
    let mut walk = AuditWalk::new(MemberId(0));
    while !walk.done {
        walk = step(walk, member.agreed()).unwrap();
    }
    walk.head
}

fn snapshots(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path());
    let mut found: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "snapshot")).collect();
    found.sort_unstable();
    found
}

fn has_snapshot(dir: &std::path::Path) -> bool {
    !snapshots(dir).is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_falls_back_to_the_one_before_it_and_loses_nothing() {
    let mut lab = Lab::new(1, |c| {
        entries_of_the_test_alone(c);
        c.snapshot_entries = 10;
    });
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let client = lab.api(&[1]);
    let dir = lab.config(1).data_dir.clone();
    let mut rounds = 0;
    while snapshots(&dir).len() < 5 || rounds < 150 {
        submit(&client, 1).await;
        rounds += 1;
    }
    let want = member.agreed().ledger().clone();
    member.stop().await;
    assert_eq!(snapshots(&dir).len(), 5, "so many are kept");
    let newest = snapshots(&dir).pop().unwrap();
    let whole = std::fs::read(&newest).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&newest, &damaged).unwrap();
    let member = lab.start(1, false).await;
    let read = client.call(&Request::ListNodes, PATIENCE).await;
    assert!(read.is_ok(), "{read:?}");
    let got = member.agreed().ledger().clone();
    assert!(got == want, "nothing is lost: revision {} after {}", got.revision(), want.revision());
    assert_eq!(verified_head(&member).await, *want.audit_head());
    member.stop().await;
    assert!(newest.with_extension("snapshot-damaged").exists());
    // Two damaged snapshots are more than the log can replace: it refuses to start, and names the
    // file.
    for path in snapshots(&dir) {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 1);
        std::fs::write(&path, bytes).unwrap();
    }
    let config = lab.config(1).clone();
    let listeners = Listeners::bind(&config).await.unwrap();
    let Err(error) = Member::start(config, false, listeners).await else { panic!("it must not start") };
    assert!(matches!(&error, MemberError::Store(StoreError::Corrupt { path, .. }) if snapshots(&dir).contains(path)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_member_without_its_audit_segments_refuses_to_start_and_says_what_to_do() {
    let mut lab = Lab::new(1, |c| c.snapshot_entries = 20);
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let client = lab.api(&[1]);
    for _ in 0..30 {
        submit(&client, 1).await;
    }
    let config = lab.config(1).clone();
    eventually("a snapshot", async || has_snapshot(&config.data_dir), |there| *there).await;
    member.stop().await;
    std::fs::remove_dir_all(config.data_dir.join("audit")).unwrap();
    let listeners = Listeners::bind(&config).await.unwrap();
    let Err(error) = Member::start(config, false, listeners).await else { panic!("it must not start") };
    assert!(matches!(&error, MemberError::Store(StoreError::AuditMissing { first: 1, .. })), "{error}");
    assert!(error.to_string().contains("recover from a backup"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_is_bootstrapped_once_and_belongs_to_one_member() {
    // Whoever waits for an election in this test waits longer than the test does.
    let mut lab = Lab::new(1, |config| config.election_ms = 100_000);
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let config = lab.config(1).clone();
    let elsewhere = || {
        let mut config = config.clone();
        (config.service_listen, config.raft_listen) = (Some(([127, 0, 0, 1], 0).into()), Some(([127, 0, 0, 1], 0).into()));
        config
    };
    let start = async |config: lattice_quorum::config::QuorumConfig, bootstrap| {
        let listeners = Listeners::bind(&config).await.unwrap();
        match Member::start(config, bootstrap, listeners).await {
            Ok(_) => panic!("it must not start"),
            Err(error) => error,
        }
    };
    let error = start(elsewhere(), false).await;
    assert!(matches!(error, MemberError::Store(StoreError::Locked { .. })), "{error}");
    member.stop().await;
    let error = start(elsewhere(), true).await;
    assert!(matches!(error, MemberError::Bootstrapped { .. }), "{error}");
    let mut other = elsewhere();
    other.cluster = "another".to_owned();
    let error = start(other, false).await;
    assert!(matches!(error, MemberError::Store(StoreError::Foreign { .. })), "{error}");
    // It is available again without that wait, because there is nobody else.
    let member = lab.start(1, false).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    member.stop().await;
}
