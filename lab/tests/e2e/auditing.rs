//! The audit log from outside: records of access to others' work, signatures, and verification without any of our code.

use crate::harness::{DAEMON, Folder, Group, JOB, NOBODY, Need, World, lab_program};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process;
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

static AUDIT: Group = Group::large("audit");
/// Verifies bundles and archives without our code.
const VERIFIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/verify-audit-export.py");

pub fn trials() -> Vec<Trial> {
    vec![
        AUDIT.test("records_who_accessed_whose_work", &[], found),
        AUDIT.test("access_that_cannot_be_recorded_is_refused", &[], refused),
        AUDIT.test("heads_are_signed_and_an_export_is_verified_by_another_program", &[Need::Python], exported),
        AUDIT.test("the_archive_outlives_the_cluster_and_is_verified", &[Need::Python, Need::Zstd], archived),
    ]
}

fn nobodys(w: &World) -> String {
    let done = w.run_as(NOBODY, &["submit", "-o", "name", "--", "/bin/sh", "-c", "echo secret; exec sleep 600"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let id = done.out().trim().to_owned();
    w.running(&id);
    id
}

fn query(w: &World, args: &[&str]) -> Vec<Value> {
    let answer = w.lattice.json(&[&["audit", "query"], args].concat()).unwrap_or_else(|e| panic!("{e:#}"));
    answer.as_array().unwrap().clone()
}

fn actions(records: &[Value]) -> Vec<String> {
    records.iter().map(|r| text(r, "action")).collect()
}

fn found(w: &World) {
    w.wait("a key on record", || !query(w, &["--type", "signing-key-set"]).is_empty());
    let id = nobodys(w);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let begun = w.run_as(NOBODY, &["attach", &id, "--", "/bin/echo", "mine"]);
    assert_eq!(begun.code(), 0, "{}", begun.err());
    w.wait("its log", || w.run_as(NOBODY, &["logs", &id]).out().contains("secret"));
    w.ok(&["logs", &id]);
    // Access to measurements: each command is recorded once an hour, and the owner's never.
    for args in [&["top"][..], &["top", "--per-node"], &["diag"], &["diag", "--storage"]] {
        w.wait("it to be measured", || w.run(&[args, &[&id]].concat()).code() == 0);
    }
    assert_eq!(w.run_as(NOBODY, &["top", &id]).code(), 0);
    let looks: Vec<(String, String)> =
        query(w, &["--alloc", &id, "--type", "measurements-read"]).iter().map(|r| (text(r, "actor"), text(r, "detail"))).collect();
    let ways: Vec<&str> = looks.iter().filter_map(|(by, detail)| Some(detail.split_once(": ")?.1).filter(|_| by == "root")).collect();
    assert_eq!((ways, looks.len()), (vec!["top", "diag"], 2), "{looks:?}");
    let attached = w.at(&node).run(&["attach", &id, "--", "/bin/echo", "looked"], JOB).unwrap();
    assert_eq!((attached.code(), attached.out().as_str()), (0, "looked\n"), "{}", attached.err());
    // From a directory that the owner can enter as well.
    let launched = process::run(w.lattice.command(&["launch", "--alloc", &id, "/bin/true"]).current_dir("/"), JOB).unwrap();
    assert_eq!(launched.code(), 0, "{}", launched.err());
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();

    // The ends of terminals are recorded later.
    w.wait("both ends", || query(w, &["--alloc", &id, "--type", "attach-ended"]).len() == 2);
    let all = query(w, &["--alloc", &id[..8]]);
    let of_root: Vec<Value> = all.iter().filter(|r| ["root", "root@n1"].contains(&text(r, "actor").as_str())).cloned().collect();
    let want = ["LogsRead", "AttachStarted", "AttachEnded", "LaunchStarted", "CancelRequested", "AllocationEnded"];
    let mut got = actions(&of_root);
    got.retain(|a| want.contains(&a.as_str()));
    let order: Vec<&str> = got.iter().map(String::as_str).filter(|a| *a != "AttachEnded").collect();
    // The last access reads the last line of standard error, which `status` shows for ended work.
    let all_of_it = ["LogsRead", "AttachStarted", "LaunchStarted", "CancelRequested", "AllocationEnded", "LogsRead"];
    assert_eq!(order, all_of_it, "{all:?}");
    let seen = |action: &str, actor: &str, piece: &str| {
        let one = all.iter().find(|r| text(r, "action") == action && text(r, "actor") == actor);
        let one = one.unwrap_or_else(|| panic!("no {action} by {actor}: {all:?}"));
        assert!(text(one, "owner") == "nobody" && text(one, "detail").contains(piece), "{one}");
    };
    seen("AttachStarted", "nobody", "/bin/echo mine");
    seen("AttachStarted", "root", &format!("at {node}: session "));
    seen("AttachEnded", "root", "its program ended with 0");
    seen("LaunchStarted", "root", "/bin/true");
    seen("CancelRequested", "root@n1", "while Running");
    // Every query that matches this record finds it.
    let one = all.iter().find(|r| text(r, "action") == "AttachStarted" && text(r, "actor") == "root").unwrap();
    let since = text(&w.status(&id), "submitted_at");
    for args in [
        &["--user", "root", "--type", "AttachStarted"][..],
        &["--user", "nobody", "--node", &node, "--since", "10m"],
        &["--node", &node, "--since", &since],
    ] {
        assert!(query(w, args).contains(one), "{args:?}");
    }
    assert_eq!(query(w, &["--alloc", &id, "--until", &since]), Vec::<Value>::new());
    let page = w.run(&["audit", "query", "--limit", "2", "-o", "name"]);
    assert!(page.out() == "1\n2\n" && page.err().contains("--after 2"), "{}{}", page.out(), page.err());
    assert_eq!(w.ok(&["audit", "query", "--limit", "1", "--after", "2", "-o", "name", "-q"]), "3\n");
    let wrong = w.run(&["audit", "query", "--type", "atach"]);
    assert!(wrong.code() == 2 && wrong.err().contains("AttachStarted"), "{} {}", wrong.code(), wrong.err());
    // Only operators may verify and export the log.
    for what in ["verify", "export"] {
        let done = w.run_as(DAEMON, &["audit", what]);
        assert!(
            done.code() == 4 && done.out().is_empty() && done.err().contains("or an operator's credential"),
            "{what}: {}{}",
            done.out(),
            done.err()
        );
    }
    // Everybody may query, but sees no records of others.
    let done = w.run_as(DAEMON, &["audit", "query", "-o", "json"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let seen: Vec<Value> = serde_json::from_str(&done.out()).unwrap();
    let of_others = seen.iter().find(|record| text(record, "owner") != "daemon" && text(record, "actor") != "daemon");
    assert_eq!(of_others, None);
}

fn refused(w: &World) {
    let id = nobodys(w);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    for member in w.cluster().members.iter().filter(|m| m.daemon.alive()) {
        faults::kill_member(&w.dir, member.id).unwrap();
    }
    // The node has the allocation and could open a terminal.
    let root = w.at(&node).run(&["attach", &id, "--", "/bin/echo", "looked"], JOB).unwrap();
    assert!(root.code() == 125 && root.out().is_empty() && root.err().contains("audit log"), "{}{}", root.out(), root.err());
    let launched = w.at(&node).run(&["launch", "--alloc", &id, "/bin/echo", "looked"], JOB).unwrap();
    assert!(launched.code() == 125 && launched.out().is_empty() && launched.err().contains("audit log"), "{}", launched.err());
    for what in ["logs", "top", "diag"] {
        let read = w.at(&node).run(&[what, &id], JOB).unwrap();
        // Without members the allocation cannot even be looked up.
        assert!(read.code() == 5 && read.out().is_empty(), "{what}: {}{}", read.out(), read.err());
    }
    faults::heal(&w.dir, JOB).unwrap();
    w.wait("the quorum to answer", || w.lattice.leader().is_ok_and(|l| l.is_some()) && w.lattice.nodes().is_ok());
    let root = w.at(&node).run(&["attach", &id, "--", "/bin/echo", "looked"], JOB).unwrap();
    assert_eq!(root.out(), "looked\n", "{}", root.err());
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}

/// Verifies a bundle with a program that has none of our code.
pub fn outside(bundle: &Value, dir: &Path, keys: &[&str]) -> (bool, String) {
    let file = dir.join("bundle.json");
    std::fs::write(&file, serde_json::to_vec(bundle).unwrap()).unwrap();
    let done = process::run(Command::new("python3").arg(VERIFIER).arg(&file).args(keys), JOB).unwrap();
    (done.code() == 0, done.out() + &done.err())
}

fn exported(w: &World) {
    let id = nobodys(w);
    w.ok(&["logs", &id]);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    let program = lab_program().to_string_lossy().into_owned();
    w.completed(&w.submit(&["--name", "é \"quoted\"", "--", &program, "--version"]));
    let mut verified = Value::Null;
    w.wait("all of it to be signed", || {
        verified = w.lattice.json(&["audit", "verify"]).unwrap();
        verified["signatures"].as_u64() > Some(0) && verified["signed"].as_u64().unwrap() + 8 > verified["records"].as_u64().unwrap()
    });
    let keys: Vec<&str> = verified["keys"].as_array().unwrap().iter().map(|k| k["key"].as_str().unwrap()).collect();
    let trusted: Vec<&str> = keys.iter().flat_map(|key| ["--key", key]).collect();
    assert_eq!(w.run(&[&["audit", "verify"], &trusted[..]].concat()).code(), 0);
    let stranger = w.run(&["audit", "verify", "--key", &"0".repeat(64)]);
    assert!(stranger.code() == 1 && stranger.err().contains(keys[0]), "{}", stranger.err());

    let folder = Folder::new("audit");
    let file = folder.0.join("report.json");
    w.ok(&["audit", "export", "--file", &file.to_string_lossy()]);
    let whole: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    // The present leader signs the pages, even if it has not signed a head yet.
    let signer = whole["pages"][0]["key"].as_str().unwrap().to_owned();
    let keys: Vec<&str> = keys.iter().copied().chain([signer.as_str()]).collect();
    let (holds, output) = outside(&whole, &folder.0, &keys);
    assert!(holds && output.contains("signed head"), "{output}");
    let some: Value = serde_json::from_str(&w.ok(&["audit", "export", "--alloc", &id, "--type", "logs-read"])).unwrap();
    let (holds, output) = outside(&some, &folder.0, &keys);
    // One access by `logs`, one by `status` of ended work.
    assert!(holds && output.contains("2 records"), "{output}");
    assert!(!query(w, &["--type", "audit-exported", "--user", "root"]).is_empty());

    // A bundle that was changed, shortened, or signed with another key fails.
    let body = whole["pages"][0]["body"].as_str().unwrap();
    let mut forged = whole.clone();
    forged["pages"][0]["body"] = body.replace("nobody", "nowhom").into();
    let mut cut = whole.clone();
    cut["pages"].as_array_mut().unwrap().clear();
    for (bundle, keys, why) in
        [(&whole, &[&"0".repeat(64)[..]][..], "not trusted"), (&forged, &keys, "signature"), (&cut, &keys, "no pages")]
    {
        let (holds, output) = outside(bundle, &folder.0, keys);
        assert!(!holds && output.contains(why), "{output}");
    }
}

/// The archive's files, in order. A file that is being written has another name.
fn archive_files(w: &World) -> Vec<PathBuf> {
    let dir = w.dir.join("audit-archive/audit/lab/1");
    let mut files: Vec<_> = std::fs::read_dir(&dir).into_iter().flatten().flatten().map(|f| f.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "zst"));
    files.sort();
    files
}

/// The verifier's result for the archive. A file may be closed under another name during the reading: then verification
/// fails for now.
pub fn archive(w: &World, keys: &[&str]) -> (bool, String) {
    let files = archive_files(w);
    let Ok(mut zstd) = Command::new("zstd").args(["-dcq"]).args(&files).stdout(Stdio::piped()).spawn() else { panic!("zstd is there") };
    let text = zstd.stdout.take().unwrap();
    let done = Command::new("python3").arg(VERIFIER).arg("-").args(keys).stdin(text).output().unwrap();
    let is_read = zstd.wait().unwrap().success();
    let output = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (is_read && done.status.success(), output)
}

fn archived(w: &World) {
    let id = nobodys(w);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    let records = w.lattice.json(&["audit", "verify"]).unwrap()["records"].as_u64().unwrap();
    let keys = |w: &World| -> Vec<String> {
        let verified = w.lattice.json(&["audit", "verify"]).unwrap();
        verified["keys"].as_array().unwrap().iter().map(|k| text(k, "key")).collect()
    };
    let all_there = |output: &str| {
        let count = output.split_whitespace().find_map(|word| word.parse::<u64>().ok());
        count.is_some_and(|count| count >= records)
    };
    let mut output = String::new();
    w.wait("the archive to have it", || {
        let keys = keys(w);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let (holds, text) = archive(w, &keys);
        output = text;
        holds && all_there(&output)
    });
    assert!(output.contains("The archive holds") && output.contains("cluster lab"), "{output}");
    // A new leader continues it.
    let leader = w.lattice.leader().unwrap().unwrap();
    faults::kill_member(&w.dir, leader).unwrap();
    w.wait("another leader", || w.lattice.leader().is_ok_and(|l| l.is_some_and(|l| l != leader)));
    let id = nobodys(w);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.wait("the archive to have this as well", || {
        let keys = keys(w);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        archive(w, &keys).0 && archive_has(w, &id)
    });
    let (holds, output) = archive(w, &[&"0".repeat(64)]);
    assert!(!holds && output.contains("not trusted"), "{output}");
}

fn archive_has(w: &World, id: &str) -> bool {
    let done = Command::new("zstd").args(["-dcq"]).args(archive_files(w)).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    text.lines().any(|line| line.contains(id) && line.contains("AllocationEnded"))
}
