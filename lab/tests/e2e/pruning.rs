//! Audit records that members delete after the leader has read them back from the archive; and
//! complete segments of such records that are damaged, in a backup and on a member's disk.

use crate::auditing::{archive, outside};
use crate::backups::{flip, folder, kill_all, quorum, start_all};
use crate::harness::{Folder, Group, JOB, Need, World};
use crate::telemetry::get;
use futures::StreamExt;
use lattice_lab::lattice::text;
use lattice_lab::quorum::members::{certificate, client_of};
use lattice_lab::up::Options;
use lattice_lab::{faults, process};
use lattice_ledger::access::{Access, AccessKind};
use lattice_model::Principal;
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::Request;
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Runtime;
use uuid::Uuid;

static PRUNING: Group = Group { theme: "pruning", name: "pruning", nodes: 1, quorum: 3, tweak: members };

/// Number of records in a complete segment of the audit log.
const SEGMENT_RECORDS: u64 = 32_768;
/// More than two segments: the oldest one may be deleted.
const RECORDS: u64 = 2 * SEGMENT_RECORDS + 100;
/// How many records are asked for at the same time.
const CONCURRENT: usize = 1024;
/// Entries after which a member makes a snapshot.
const SNAPSHOT_ENTRIES: u64 = 50;
/// How often the leader archives, in seconds. It writes the whole open segment each time, so once a
/// second would keep it busy.
const ARCHIVE_SECONDS: u64 = 5;
/// How long the leader may take to archive two segments and to read them back.
const CONFIRMED_MAX: Duration = Duration::from_secs(300);
/// How long all members may take until their snapshots have the checkpoint and the segment is gone.
const PRUNED_MAX: Duration = Duration::from_secs(300);
/// A byte of the first records of a segment.
const DAMAGED_BYTE: usize = 4096;

pub fn trials() -> Vec<Trial> {
    vec![
        PRUNING.test("archived_records_leave_the_members_and_the_archive_still_proves_all", &[Need::Python, Need::Zstd], pruned),
        PRUNING.test("a_backup_with_a_damaged_segment_is_refused_by_name_and_changes_nothing", &[], damaged_backup),
        PRUNING.test("the_other_members_answer_while_ones_segment_is_damaged", &[], damaged_member),
    ]
}

/// Members that keep one complete segment, and make backups.
fn members(options: &mut Options) {
    options.member_lines = format!("audit_kept_segments: 1\nsnapshot_entries: {SNAPSHOT_ENTRIES}\nbackup: \"file://{{dir}}/backups\"\n");
    options.audit_archive_seconds = ARCHIVE_SECONDS;
}

/// Makes audit records.
struct Recorder {
    runtime: Runtime,
    client: QuorumClient,
}

impl Recorder {
    fn new(w: &World) -> Self {
        let cluster = w.cluster();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = {
            let _entered = runtime.enter();
            client_of(&cluster, certificate(&cluster, "recorder", Role::Api).unwrap()).unwrap()
        };
        Self { runtime, client }
    }

    /// Makes `count` records, with `concurrent` requests at the same time.
    fn record(&self, count: u64, concurrent: usize) {
        let by = Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] };
        let access = || Access {
            id: Uuid::new_v4(),
            by: by.clone(),
            kind: AccessKind::MeasurementsRead,
            allocation: None,
            node: None,
            detail: "a test".to_owned(),
        };
        self.runtime.block_on(async {
            let recorded = futures::stream::iter(0..count).map(async |_| self.client.call(&Request::RecordAccess(access()), JOB).await);
            recorded.buffer_unordered(concurrent).for_each(async |answer| drop(answer.unwrap())).await;
        });
    }
}

/// The segment of a member's audit log that begins with this record.
fn segment(w: &World, id: u64, first: u64) -> PathBuf {
    folder(w, id).join("data/audit").join(format!("{first:020}.audit"))
}

fn first_segment(w: &World, id: u64) -> PathBuf {
    segment(w, id, 1)
}

fn all_have_first(w: &World) -> bool {
    (1..=3).all(|id| first_segment(w, id).exists())
}

fn none_has_first(w: &World) -> bool {
    (1..=3).all(|id| !first_segment(w, id).exists())
}

fn verified(w: &World) -> Value {
    w.lattice.json(&["audit", "verify"]).unwrap_or_else(|e| panic!("{e:#}"))
}

/// The keys in the result of a verification.
fn signing_keys(verified: &Value) -> BTreeSet<String> {
    verified["keys"].as_array().unwrap().iter().map(|key| text(key, "key")).collect()
}

/// Whether the leader has read back the archive up to this record, and committed that.
fn is_confirmed(w: &World, upto: u64) -> bool {
    let upto = format!("upto={upto}");
    let is_noted = |line: &str| line.contains("the audit archive was read back") && line.contains(&upto);
    w.cluster().members.iter().any(|member| fs::read_to_string(&member.daemon.log).unwrap().lines().any(is_noted))
}

fn pruned(w: &World) {
    let recorder = Recorder::new(w);
    recorder.record(SEGMENT_RECORDS, CONCURRENT);
    assert!(all_have_first(w), "the newest complete segment is kept");
    let mut keys = signing_keys(&verified(w));
    recorder.record(RECORDS - SEGMENT_RECORDS, CONCURRENT);
    keys.extend(signing_keys(&verified(w)));
    let confirmed = process::until(CONFIRMED_MAX, || is_confirmed(w, 2 * SEGMENT_RECORDS));
    assert!(confirmed, "the leader has not read both segments back from the archive");
    // One after the other, so that each is an entry: both snapshots of a member must have the checkpoint.
    recorder.record(3 * SNAPSHOT_ENTRIES, 1);
    let pruned = process::until(PRUNED_MAX, || {
        // A member may have been making a snapshot all the time: the next one needs another entry.
        recorder.record(1, 1);
        none_has_first(w)
    });
    assert!(pruned, "the members still have the first segment: {:?}", (1..=3).map(|id| first_segment(w, id)).collect::<Vec<_>>());

    // Readers learn what is only in the archive, and get the rest.
    let begins = SEGMENT_RECORDS + 1;
    let page = w.run(&["audit", "query", "--limit", "1", "-o", "name"]);
    assert_eq!(page.out(), format!("{begins}\n"), "{}", page.err());
    let note = format!("records 1 to {SEGMENT_RECORDS} are only in the archive, file://");
    assert!(page.err().contains(&note), "{}", page.err());
    let whole = verified(w);
    assert_eq!(whole["begins"].as_u64(), Some(begins), "{whole}");
    keys.extend(signing_keys(&whole));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();

    // The archive proves all records from the first one on, without our code.
    let mut output = String::new();
    w.wait("the archive to be verified", || {
        let (holds, text) = archive(w, &keys);
        let records = text.split_whitespace().find_map(|word| word.parse::<u64>().ok());
        output = text;
        holds && records.is_some_and(|records| records >= RECORDS)
    });
    // An export has the rest.
    let folder = Folder::new("pruned");
    let file = folder.0.join("report.json");
    let done = w.run(&["audit", "export", "--file", &file.to_string_lossy()]);
    assert!(done.code() == 0 && done.err().contains("are only in the archive"), "{}", done.err());
    let bundle: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let signer = text(&bundle["pages"][0], "key");
    let (holds, output) = outside(&bundle, &folder.0, &[&keys[..], &[signer.as_str()]].concat());
    assert!(holds && output.contains(&format!("It begins with record {begins}")), "{output}");

    // The same after all members were restarted; work continues.
    let before = whole["records"].as_u64().unwrap();
    for id in 1..=3 {
        faults::kill_member(&w.dir, id).unwrap();
    }
    faults::heal(&w.dir, JOB).unwrap();
    w.wait("the quorum to answer", || w.lattice.leader().is_ok_and(|l| l.is_some()) && w.lattice.nodes().is_ok());
    w.completed(&w.submit(&["--", "/bin/true"]));
    let after = verified(w);
    assert!(after["begins"].as_u64() == Some(begins) && after["records"].as_u64() > Some(before), "{before} records, then {after}");
}

/// Makes records until the second segment is complete and in a snapshot, unless that was done.
fn fill_two_segments(w: &World) {
    let records = w.lattice.json(&["quorum", "status"]).unwrap()["audit_records"].as_u64().unwrap();
    if records < RECORDS {
        let recorder = Recorder::new(w);
        recorder.record(RECORDS - records, CONCURRENT);
        recorder.record(2 * SNAPSHOT_ENTRIES, 1);
    }
}

fn damaged_backup(w: &World) {
    fill_two_segments(w);
    let (code, made) = quorum(w, 1, &["backup"]);
    assert_eq!(code, 0, "{made}");
    let name = made.lines().next().unwrap().to_owned();
    // Backups share complete segments.
    let stored = fs::read_dir(w.dir.join("backups/audit")).unwrap().map(|file| file.unwrap().path()).max().unwrap();
    flip(&stored, DAMAGED_BYTE);
    let object = stored.file_name().unwrap().to_string_lossy().into_owned();
    let refused = |(code, output): (i32, String)| {
        assert_eq!(code, 1, "{output}");
        let expected = [format!("backup {name} is damaged"), object.clone(), "Take another one (--backup NAME)".to_owned()];
        assert!(expected.iter().all(|piece| output.contains(piece)), "{expected:?}: {output}");
    };
    refused(quorum(w, 2, &["verify", "--backup", &name]));
    // The damaged backup is not used to recover a member without files.
    kill_all(w);
    let (data, aside) = (folder(w, 1).join("data"), folder(w, 1).join("aside"));
    fs::rename(&data, &aside).unwrap();
    let recovered = quorum(w, 1, &["recover", "--backup", &name, "--yes"]);
    let left: BTreeSet<String> = fs::read_dir(folder(w, 1)).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.starts_with("data")), "{left:?}: {}", recovered.1);
    refused(recovered);
    fs::rename(&aside, &data).unwrap();
    flip(&stored, DAMAGED_BYTE);
    start_all(w);
    w.completed(&w.submit(&["--", "/bin/true"]));
}

fn damaged_member(w: &World) {
    fill_two_segments(w);
    let damaged = (1..=3).find(|id| *id != w.leader()).unwrap();
    let segment = segment(w, damaged, SEGMENT_RECORDS + 1);
    w.wait("the segment to be complete on its disk", || segment.with_extension("index").exists());
    faults::kill_member(&w.dir, damaged).unwrap();
    flip(&segment, DAMAGED_BYTE);
    faults::start_member(&w.dir, damaged).unwrap();
    let member = w.cluster().member(damaged).unwrap().clone();
    let logged = "a segment of the audit log is damaged; nothing is read from it";
    w.wait("the member to find the damage", || fs::read_to_string(&member.daemon.log).unwrap().contains(logged));
    let is_counted = |line: &str| line.starts_with("lattice_audit_segments_damaged") && line.ends_with(" 1");
    w.wait("its metric to count it", || get(&member.metrics, "/metrics", "").1.lines().any(is_counted));

    // The leader returns the first record of that segment, and verifies the whole chain.
    let (before, first) = (SEGMENT_RECORDS.to_string(), format!("{}\n", SEGMENT_RECORDS + 1));
    let query = ["audit", "query", "--after", &before, "--limit", "1", "-o", "name"];
    w.wait("the others to answer", || {
        if w.leader() == damaged {
            let _another = w.run(&["quorum", "transfer-leader"]);
            return false;
        }
        let found = w.run(&query).out();
        let verified = w.lattice.json(&["audit", "verify"]);
        found == first && verified.is_ok_and(|verified| verified["member"].as_u64().is_some_and(|id| id != damaged))
    });
    // While it leads, it says which record it cannot read, and serves everything else.
    let (id, mut refused) = (damaged.to_string(), String::new());
    w.wait("the damaged member to lead", || {
        let _it_may_lead = w.run(&["quorum", "transfer-leader", &id]);
        let done = w.run(&query);
        refused = done.err();
        done.code() == 1
    });
    assert!(refused.contains(&format!("the audit chain is broken at record {}", SEGMENT_RECORDS + 1)), "{refused}");
    w.completed(&w.submit(&["--", "/bin/true"]));
    w.wait("another member to lead and to answer", || {
        let _another = w.run(&["quorum", "transfer-leader"]);
        w.run(&query).out() == first
    });
}
