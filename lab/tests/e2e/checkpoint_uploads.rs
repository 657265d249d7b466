//! An agent that is killed while it brings a checkpoint into the store does not bring again what is there: files in a store that is a
//! directory.

use crate::checkpoint::{last, objects};
use crate::harness::{Group, World, fresh_dir};
use lattice_lab::faults;
use libtest_mimic::Trial;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

static UPLOADS: Group = Group { theme: "checkpoint_uploads", name: "checkpoint", nodes: 3, quorum: 1, tweak: |_| {} };
/// Files of the checkpoint.
const FILES: usize = 60;

pub fn trials() -> Vec<Trial> {
    vec![UPLOADS.test("of_many_files_go_on_where_the_agent_was_killed", &[], many_files)]
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

/// The objects that are whole, each with the file that it is.
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
    // One that was whole when the agent died, and not written down as that, is brought again: as many as are brought at once.
    let again = before.iter().filter(|(name, file)| after.get(*name) != Some(file)).count();
    assert!(after.len() == FILES && again <= 4, "{again} of {} were brought again", before.len());
    assert_eq!(w.log(&id).matches("asked ").count(), 1);
    let verified = w.run_for(&["checkpoint", "verify", &id, &last(w, &id)], Duration::from_secs(60));
    assert_eq!(verified.code(), 0, "{}", verified.err());
    fs::write(&go, "").unwrap();
    w.completed(&id);
    let _ = fs::remove_file(&go);
    w.ok(&["node", "uncordon", "n1,n3"]);
    w.assert_nothing_left();
}
