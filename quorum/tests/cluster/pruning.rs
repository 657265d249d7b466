//! Audit records that members delete once they are in the archive.

use crate::auditing::walk;
use crate::lab::{Lab, PATIENCE, submit};
use lattice_ledger::{Action, AuditHead, Command, Ledger, MembersStep};
use lattice_model::{AuditFilter, AuditRecord, MemberId, Principal, Revision, Timestamp};
use lattice_pki::identity::Role;
use lattice_quorum::audit::walk::step;
use lattice_quorum::backup;
use lattice_quorum::backup::recover::{self, Present};
use lattice_quorum::config::QuorumConfig;
use lattice_quorum::member::Member;
use lattice_quorum_client::wire::{Answer, AuditWalk, Request};
use lattice_store::audit::{AuditChain, SEGMENT_RECORDS, begin_after, path_of};
use lattice_store::directory::Directory;
use lattice_store::raft::{LogId, Peer, SnapshotMeta, StoredMembership, Vote};
use lattice_store::snapshot_file::{self, About};
use openraft::{CommittedLeaderId, Membership};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::time::{Duration, Instant};

const N: u64 = SEGMENT_RECORDS;
/// The number of records of the members that run.
const RECORDS: u64 = 2 * N + 10;
/// The number of records of the member that is away.
const AWAY_RECORDS: u64 = 5000;

/// A ledger with one audit record for each entry, and the records.
fn history(entries: u64) -> (Ledger, Vec<AuditRecord>) {
    let root = Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] };
    let (mut ledger, mut records) = (Ledger::default(), Vec::new());
    for index in 1..=entries {
        let action = match index {
            1 => Action::Bootstrap { cluster: "test".into() },
            _ => Action::Members { by: root.clone(), step: MembersStep::Forget { id: index } },
        };
        records.extend(ledger.apply(Revision(index), &Command { at: Timestamp(index), action }).audit);
    }
    (ledger, records)
}

/// Fills a member's folder with the first entries of a history, as if it had stopped then.
async fn fill(lab: &Lab, id: u64, (ledger, records): &(Ledger, Vec<AuditRecord>)) {
    let config = lab.config(id);
    let (directory, released) = Directory::open(&config.data_dir, &config.cluster, config.id).unwrap();
    let mut chain = AuditChain::open(&config.data_dir.join("audit")).unwrap();
    chain.append(records).unwrap();
    let checked = chain.checkpoint().unwrap().run().unwrap();
    chain.checked(checked);
    let voters: BTreeSet<u64> = config.members.iter().map(|m| m.id).collect();
    let peer = |raft: &str, service: &str| Peer { raft: raft.to_owned(), service: service.to_owned() };
    let peers: BTreeMap<u64, Peer> = config.members.iter().map(|m| (m.id, peer(&m.raft, &m.service))).collect();
    let last = LogId::new(CommittedLeaderId::new(1, 1), ledger.revision().0);
    let first = LogId::new(CommittedLeaderId::new(1, 1), 1);
    let meta = SnapshotMeta {
        last_log_id: Some(last),
        last_membership: StoredMembership::new(Some(first), Membership::new(vec![voters], peers)),
        snapshot_id: format!("history-{}", last.index),
    };
    snapshot_file::write(&config.data_dir, &About::of(meta, ledger, Timestamp(1)), ledger).unwrap();
    lattice_store::log::begin_at(&directory, last, Vote::new(1, id)).unwrap();
    drop(directory);
    released.await.unwrap();
}

/// As [`crate::lab::eventually`], with a longer timeout: tens of thousands of records are read.
async fn slowly<T: std::fmt::Debug>(what: &str, mut ask: impl AsyncFnMut() -> T, holds: impl Fn(&T) -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let last = ask().await;
        if holds(&last) {
            return;
        }
        assert!(Instant::now() < end, "{what}: {last:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn segments(config: &QuorumConfig) -> Vec<u64> {
    let dir = config.data_dir.join("audit");
    (0..8).map(|number| number * N + 1).filter(|first| path_of(&dir, *first).exists()).collect()
}

/// The end of the chain on a member's disk, with every link verified, and its first record.
fn verified(member: &Member) -> (u64, AuditHead) {
    let mut walk = AuditWalk::new(MemberId(0));
    while !walk.done {
        walk = step(walk, member.agreed()).unwrap();
    }
    (walk.begins, walk.head)
}

/// Follows every record in a generation's folder of the archive, from the first one on.
fn archived(lab: &Lab, generation: u64) -> AuditHead {
    let folder = lab.scratch.0.join(format!("archive/audit/test/{generation}"));
    let mut objects: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    objects.sort();
    let mut head = AuditHead::default();
    for path in objects {
        let mut text = String::new();
        zstd::Decoder::new(std::fs::File::open(path).unwrap()).unwrap().read_to_string(&mut text).unwrap();
        for line in text.lines() {
            head.follow(&serde_json::from_str(line).unwrap()).unwrap();
        }
    }
    head
}

/// The settings of members that keep one complete segment; snapshots are made often.
fn keep_one_segment(config: &mut QuorumConfig) {
    let scratch = config.data_dir.parent().unwrap();
    config.audit_archive = format!("file://{}", scratch.join("archive").display());
    config.audit_archive_seconds = 1;
    config.audit_kept_segments = 1;
    config.snapshot_entries = 20;
}

/// The last record of the checkpoint that a member knows.
fn checkpoint(member: &Member) -> u64 {
    member.agreed().ledger().audit_checkpoint().map_or(0, |checkpoint| checkpoint.signed.seq)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_deleted_unless_the_archive_is_read_back_and_seen() {
    let mut lab = Lab::new(3, keep_one_segment);
    let whole = history(RECORDS);
    for id in 1..=3 {
        fill(&lab, id, &whole).await;
    }
    // The archive has a wrong object under the name of the first segment.
    let folder = lab.scratch.0.join("archive/audit/test/1");
    std::fs::create_dir_all(&folder).unwrap();
    let object = folder.join(format!("{:020}-{N:020}.jsonl.zst", 1));
    std::fs::write(&object, zstd::encode_all(&b"{}\n"[..], 3).unwrap()).unwrap();
    let mut members = Vec::new();
    for id in 1..=3 {
        members.push(lab.start(id, false).await);
    }
    tokio::time::timeout(PATIENCE, members[0].ready()).await.unwrap();
    let client = lab.api(&[1, 2, 3]);
    let all_kept = || (1..=3).all(|id| segments(lab.config(id)) == [1, N + 1, 2 * N + 1]);
    let second = folder.join(format!("{:020}-{:020}.jsonl.zst", N + 1, 2 * N));
    slowly("the second segment is archived", async || second.exists(), |there| *there).await;
    // Causes newer snapshots, and gives the members time to look at the archive.
    let submit_entries = async |entries| {
        for _ in 0..entries {
            submit(&client, 1).await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    };
    submit_entries(200).await;
    assert!(members.iter().all(|member| checkpoint(member) == 0), "a damaged archive is no checkpoint");
    assert!(all_kept());

    std::fs::remove_file(&object).unwrap();
    slowly(
        "the archive is confirmed",
        async || members.iter().map(checkpoint).collect::<Vec<_>>(),
        |all| all.iter().all(|seq| *seq == 2 * N),
    )
    .await;
    // Then the members have two snapshots with the checkpoint, and earlier ones.
    submit_entries(50).await;
    assert!(all_kept(), "a member may start with a snapshot that does not have the checkpoint");
    // Somebody moves a segment away.
    let elsewhere = lab.scratch.0.join("elsewhere");
    std::fs::rename(&object, &elsewhere).unwrap();
    submit_entries(200).await;
    assert!(all_kept(), "no member sees the first segment in the archive");

    std::fs::rename(&elsewhere, &object).unwrap();
    submit_entries(200).await;
    slowly(
        "all prune",
        async || (1..=3).map(|id| segments(lab.config(id))).collect::<Vec<_>>(),
        |all| all.iter().all(|there| *there == [N + 1, 2 * N + 1]),
    )
    .await;
    for member in members {
        member.stop().await;
    }
    assert!(archived(&lab, 1).seq >= 2 * N);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_is_pruned_and_members_that_are_away_or_new_begin_at_the_checkpoint() {
    prune_and_join(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_crashed_when_it_began_at_the_checkpoint_gets_the_records_after_it() {
    prune_and_join(true).await;
}

/// `crashed`: the member that was away has written where its chain begins, and nothing else.
async fn prune_and_join(crashed: bool) {
    let mut lab = Lab::new(5, |config| {
        keep_one_segment(config);
        let scratch = config.data_dir.parent().unwrap();
        config.backup = format!("file://{}", scratch.join("backups").display());
        config.backup_seconds = 604_800;
    });
    let whole = history(RECORDS);
    for id in 1..=3 {
        fill(&lab, id, &whole).await;
    }
    fill(&lab, 4, &history(AWAY_RECORDS)).await;
    let mut members = Vec::new();
    for id in 1..=3 {
        members.push(lab.start(id, false).await);
    }
    tokio::time::timeout(PATIENCE, members[0].ready()).await.unwrap();
    let client = lab.api(&[1, 2, 3]);
    slowly("the archive is confirmed", async || checkpoint(&members[0]), |seq| *seq == 2 * N).await;
    for _ in 0..200 {
        submit(&client, 1).await;
    }
    let bases = async || members.iter().map(|m| m.agreed().audit_base().seq).collect::<Vec<_>>();
    slowly("all prune", bases, |bases| bases.iter().all(|base| *base == N)).await;
    let config = lab.config(1).clone();
    slowly("the files are gone", async || segments(&config), |there| *there == [N + 1, 2 * N + 1]).await;

    // Readers learn where the records are, and get the rest.
    let query = Request::QueryAudit { filter: AuditFilter::default(), after: 0, limit: 2, by: None };
    let Answer::Audit(page) = client.call(&lab.as_operator("anna", query), PATIENCE).await.unwrap() else { panic!("no page") };
    assert_eq!(page.records.iter().map(|r| r.seq).collect::<Vec<_>>(), [N + 1, N + 2]);
    assert_eq!((page.begins, page.archive.as_str()), (N + 1, config.audit_archive.as_str()));
    let export = Request::ExportAudit { filter: AuditFilter::default(), after: 0, end: 0 };
    let Answer::AuditExported(page) = client.call(&lab.as_operator("anna", export), PATIENCE).await.unwrap() else { panic!("no page") };
    let body: serde_json::Value = serde_json::from_str(&page.body).unwrap();
    assert_eq!((body["begins"].as_u64(), body["after"].as_u64()), (Some(N + 1), Some(N)));
    assert_eq!(walk(&client).await.unwrap().begins, N + 1);

    // One member has a part of the deleted records, and another has none.
    if crashed {
        begin_after(&lab.config(4).data_dir.join("audit"), &members[0].agreed().audit_base()).unwrap();
    }
    for id in [4, 5] {
        let member = lab.start(id, false).await;
        let want = members[0].agreed().ledger().audit_head().clone();
        slowly("it catches up", async || member.agreed().audit_head().seq, |seq| *seq >= want.seq).await;
        let (begins, head) = verified(&member);
        assert_eq!((begins, &head), (N + 1, &want), "member {id}");
        members.push(member);
    }
    // Until all of its snapshots are newer.
    for _ in 0..200 {
        submit(&client, 1).await;
    }
    let away = lab.config(4).clone();
    slowly("what it had before is deleted", async || segments(&away), |there| *there == [N + 1, 2 * N + 1]).await;

    // A backup has the same beginning, and can be verified.
    let operator = lab.client(&[1, 2, 3], "member-2", Role::Quorum);
    let made = operator.call(&Request::Backup, PATIENCE).await;
    assert!(matches!(&made, Ok(Answer::Backup { .. })), "{made:?}");
    let store = backup::store(&config).unwrap();
    let text = recover::verify(&config, &store, None).await.unwrap();
    assert!(text.contains("every link holds"), "{text}");

    // After a restart everything is as before, and the archive has the whole chain.
    let want = members[0].agreed().ledger().audit_head().clone();
    for member in members {
        member.stop().await;
    }
    let one = lab.start(1, false).await;
    assert_eq!(one.agreed().audit_base().seq, N);
    one.stop().await;
    let head = archived(&lab, 1);
    assert!(head.seq >= 2 * N && head.seq <= want.seq, "{head:?}");

    // All members are lost. One is recovered from the backup, the others begin where it does, and the
    // whole chain is archived in a new folder, although none of them has its beginning.
    for id in 1..=3 {
        std::fs::remove_dir_all(&lab.config(id).data_dir).unwrap();
    }
    recover::prepare(&config, &store, None, Present::Lost).await.unwrap().put_in_place(&config).unwrap();
    let mut members = Vec::new();
    for id in 1..=3 {
        members.push(lab.start(id, false).await);
    }
    tokio::time::timeout(PATIENCE, members[0].ready()).await.unwrap();
    let recovered = members[0].agreed().ledger().generation();
    assert!(recovered.0 > 1, "{recovered}");
    let confirmed = |member: &Member| member.agreed().ledger().audit_checkpoint().map(|known| known.generation);
    slowly(
        "the new folder is confirmed",
        async || members.iter().map(confirmed).collect::<Vec<_>>(),
        |all| all.iter().all(|generation| *generation == Some(recovered)),
    )
    .await;
    for member in members {
        assert_eq!(member.agreed().audit_base().seq, N);
        member.stop().await;
    }
    assert!(archived(&lab, recovered.0).seq >= 2 * N);
}
