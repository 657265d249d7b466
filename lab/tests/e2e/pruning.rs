//! Audit records that members delete after the leader has read them back from the archive.

use crate::auditing::{archive, outside};
use crate::harness::{Folder, Group, JOB, Need, World};
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
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Runtime;
use uuid::Uuid;

static PRUNING: Group = Group { theme: "pruning", name: "pruning", nodes: 1, quorum: 3, tweak: keep_one_segment };

/// Number of records in a complete segment of the audit log.
const SEGMENT_RECORDS: u64 = 32_768;
/// More than two segments: the oldest one may be deleted.
const RECORDS: u64 = 2 * SEGMENT_RECORDS + 100;
/// How many records are asked for at the same time.
const CONCURRENT: usize = 1024;
/// All records are archived, read back, and in all retained snapshots.
const PRUNED_MAX: Duration = Duration::from_secs(300);

pub fn trials() -> Vec<Trial> {
    vec![PRUNING.test("archived_records_leave_the_members_and_the_archive_still_proves_all", &[Need::Python, Need::Zstd], pruned)]
}

fn keep_one_segment(options: &mut Options) {
    "audit_kept_segments: 1\nsnapshot_entries: 50\n".clone_into(&mut options.member_lines);
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

    /// Makes so many, with this number of requests at the same time.
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

/// The first segment of a member's audit log.
fn first_segment(w: &World, id: u64) -> PathBuf {
    let member = w.cluster().member(id).unwrap().daemon.name.clone();
    w.dir.join(member).join("data/audit").join(format!("{:020}.audit", 1))
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

fn pruned(w: &World) {
    let recorder = Recorder::new(w);
    recorder.record(SEGMENT_RECORDS, CONCURRENT);
    assert!(all_have_first(w), "the newest complete segment is kept");
    let mut keys = signing_keys(&verified(w));
    recorder.record(RECORDS - SEGMENT_RECORDS, CONCURRENT);
    keys.extend(signing_keys(&verified(w)));
    // One after the other: each is an entry, and snapshots are made after fifty of them.
    let pruned = process::until(PRUNED_MAX, || {
        recorder.record(10, 1);
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

    // The same after all members have started anew, and work goes on.
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
