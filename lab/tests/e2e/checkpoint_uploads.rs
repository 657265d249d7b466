//! An agent that is killed during the upload of a checkpoint does not upload again what is in the store: files in a store
//! that is a directory, and parts of a large file in an S3 server, which is also stopped meanwhile.

use crate::checkpoint::{Chain, last, objects};
use crate::harness::{Group, Need, World, fresh_dir};
use crate::moto;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process;
use libtest_mimic::Trial;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

static UPLOADS: Group = Group { theme: "checkpoint_uploads", name: "checkpoint", nodes: 3, quorum: 1, tweak: |_| {} };
static S3: Group = Group { theme: "checkpoint_uploads_in_s3", name: "checkpoint-s3", nodes: 1, quorum: 1, tweak: |o| moto::begin(o, "") };
/// Files of the checkpoint.
const FILES: usize = 60;

pub fn trials() -> Vec<Trial> {
    vec![
        UPLOADS.test("of_many_files_go_on_where_the_agent_was_killed", &[], many_files),
        S3.test("work_saves_itself_there_though_it_stands_still_meanwhile", &[Need::Moto], stands_still),
        S3.test("work_saves_itself_there_and_begins_from_it_though_its_process_is_stopped_meanwhile", &[Need::Moto], started_again),
        S3.test("of_a_large_file_no_part_is_put_again_after_the_agent_was_killed", &[Need::Moto], one_large_file),
    ]
}

/// Saves many files.
const MANY: &str = r#"#!/bin/sh
ask=
trap 'ask=1' USR1
echo begun
while [ ! -e "$GO" ]; do
  if [ "$ask" ]; then
    ask=
    read -r token < "$LATTICE_CHECKPOINT_DIR/request"; at=$LATTICE_CHECKPOINT_DIR/$token
    echo "asked $token"
    i=0; while [ $i -lt $FILES ]; do i=$(($i + 1)); head -c 1000000 /dev/urandom > "$at/f$i"; done
    echo files=$FILES > "$at.done"
  fi
  sleep 0.02
done
"#;

/// The complete objects, each with its file's inode.
fn whole(below: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![below.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "zst")
                && let Ok(about) = entry.metadata()
            {
                found.insert(entry.file_name().into_string().unwrap(), about.ino());
            }
        }
    }
    found
}

fn many_files(w: &World) {
    w.ok(&["node", "cordon", "n1,n3", "--reason", "the test's"]);
    let (program, go) = (w.script("many.sh", MANY), fresh_dir("many-go"));
    let (go_variable, files) = (format!("GO={}", go.display()), format!("FILES={FILES}"));
    let id = w.submit(&["--checkpoint=signal", "--env", &go_variable, "--env", &files, "--", "/bin/sh", &program]);
    w.wait_log(&id, "begun");
    let asking = {
        let (lattice, id) = (w.lattice.clone(), id.clone());
        std::thread::spawn(move || lattice.run(&["checkpoint", "create", &id, "--deadline", "120s"], Duration::from_secs(100)).unwrap())
    };
    let all = objects(w, &id, "");
    w.wait("some of it to be in the store", || whole(&all).len() >= 10);
    faults::kill_node(&w.dir, "n2").unwrap();
    let before = whole(&all);
    assert!(before.len() < FILES, "it was too late for this test");
    faults::start_node(&w.dir, "n2").unwrap();
    let done = asking.join().unwrap();
    assert_eq!(done.code(), 0, "{}\n{}", done.err(), w.log(&id));
    let after = whole(&all);
    // A file that was complete when the agent died but not recorded as such is uploaded again: as many as are uploaded
    // in parallel.
    let again = before.iter().filter(|(name, file)| after.get(*name) != Some(file)).count();
    assert!(after.len() == FILES && again <= 4, "{again} of {} were uploaded again", before.len());
    assert_eq!(w.log(&id).matches("asked ").count(), 1);
    let verified = w.run_for(&["checkpoint", "verify", &id, &last(w, &id)], Duration::from_secs(60));
    assert_eq!(verified.code(), 0, "{}", verified.err());
    fs::write(&go, "").unwrap();
    w.completed(&id);
    let _ = fs::remove_file(&go);
    w.ok(&["node", "uncordon", "n1,n3"]);
    w.assert_nothing_left();
}

fn stands_still(w: &World) {
    let chain = Chain::submit(w, &["BULK=12000000"], &["--nodes", "1"]);
    chain.behaves("wait");
    let done = std::thread::scope(|scope| {
        let asked = scope.spawn(|| chain.create(w));
        w.wait_log(&chain.id, "asked ");
        moto::stop();
        chain.release();
        // It has reported that everything is written, and continues to count.
        let saved_step = steps(w, &chain.id);
        w.wait("it to count on", || steps(w, &chain.id) > saved_step + 10);
        let too_early = asked.is_finished();
        moto::go_on();
        assert!(!too_early, "nothing is whole that is not in the store");
        asked.join().unwrap()
    });
    assert_eq!(done.code(), 0, "{}", done.err());
    let made: serde_json::Value = serde_json::from_str(&done.out()).unwrap();
    w.ok(&["checkpoint", "verify", &chain.id, &text(&made, "id")]);
    assert!(moto::http("GET", "/lattice?list-type=2").contains("/checkpoints/"));
    chain.end(w);
}

/// Ends the server's process. Nothing is uploaded meanwhile.
fn server_killed(w: &World) -> moto::Gone {
    faults::stop_node(&w.dir, "n1").unwrap();
    let gone = moto::kill_server();
    faults::cont_node(&w.dir, "n1").unwrap();
    gone
}

/// Starts the server again with all earlier objects, before anybody requests them.
fn server_started(w: &World, gone: moto::Gone) {
    faults::stop_node(&w.dir, "n1").unwrap();
    gone.start();
    faults::cont_node(&w.dir, "n1").unwrap();
}

fn started_again(w: &World) {
    let chain = Chain::submit(w, &["BULK=2000000"], &["--nodes", "1", "--requeue=never"]);
    let id = &chain.id;
    chain.behaves("wait");
    w.ok(&["preempt", id, "--hold", "--deadline", "60s"]);
    w.wait_log(id, "asked ");
    let gone = server_killed(w);
    chain.release();
    let directory = w.cluster().run_dir.join("n1/state/checkpoints").join(id);
    let is_saved = || fs::read_dir(&directory).unwrap().flatten().any(|e| e.path().extension().is_some_and(|e| e == "done"));
    w.wait("it to report that it is saved", is_saved);
    assert_eq!(text(&w.status(id), "state"), "Running", "it is not in the store");
    server_started(w, gone);
    w.wait("it to be suspended", || text(&w.status(id), "state") == "Suspended");
    w.ok(&["checkpoint", "verify", id]);
    let step = w.status(id)["checkpoint"]["step"].as_u64().unwrap();
    w.wait("what it wrote to be in the store", || w.run(&["logs", id]).out().contains("asked "));
    let gone = server_killed(w);
    w.ok(&["resume", id]);
    let status = || w.lattice.json(&["node", "status"]).unwrap().to_string();
    w.wait("it to wait for the store", || status().contains("its checkpoint waits for the checkpoint store"));
    server_started(w, gone);
    w.wait_log(id, &format!("restored {step}\nbegun 0\nstep 0 {}\n", step + 1));
    chain.end(w);
    w.assert_nothing_left();
}

fn steps(w: &World, id: &str) -> usize {
    w.log(id).matches("step 0 ").count()
}

/// The numbers of the parts that the server accepted, with repetitions.
fn parts_taken() -> Vec<u32> {
    let number = |line: String| {
        let taken = line.contains("\"PUT /lattice/") && line.contains("\" 200 ");
        let (_, number) = line.split_once("partNumber=").filter(|_| taken)?;
        number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    moto::requests().into_iter().filter_map(number).collect()
}

fn one_large_file(w: &World) {
    // 12 parts and a smaller one, from data that cannot be compressed.
    let chain = Chain::submit(w, &["BULK=104000000"], &["--nodes", "1"]);
    let before = parts_taken().len();
    let taken = || parts_taken().split_off(before);
    let done = std::thread::scope(|scope| {
        let asked = scope.spawn(|| w.run_for(&["checkpoint", "create", &chain.id, "--deadline", "90s"], Duration::from_secs(120)));
        // Written, read, compressed and sent, on a machine that may be busy.
        assert!(process::until(Duration::from_secs(80), || taken().len() >= 4), "no parts are in the store");
        // Uploads in progress fail, or are complete: at most three.
        moto::stop();
        faults::kill_node(&w.dir, "n1").unwrap();
        moto::go_on();
        let first = taken().len();
        assert!(first < 10, "it was too late for this test");
        faults::start_node(&w.dir, "n1").unwrap();
        asked.join().unwrap()
    });
    assert_eq!(done.code(), 0, "{}\n{}", done.err(), w.log(&chain.id));
    let (all, distinct) = (taken(), taken().into_iter().collect::<BTreeSet<_>>());
    assert_eq!(distinct, (1..=13).collect(), "{all:?}");
    assert!(all.len() - distinct.len() <= 3, "parts that were there were put again: {all:?}");
    let verified = w.run_for(&["checkpoint", "verify", &chain.id], Duration::from_secs(60));
    assert_eq!(verified.code(), 0, "{}", verified.err());
    // Nothing of an upload is left.
    let left = moto::http("GET", "/lattice?uploads");
    assert!(left.starts_with("HTTP/1.1 200") && !left.contains("<UploadId>"), "{left}");
    chain.end(w);
    w.assert_nothing_left();
}
