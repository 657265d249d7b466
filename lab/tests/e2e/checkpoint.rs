//! Checkpoints of a real program that checks its restored state: it saves itself, ignores the request, reports wrong
//! data, dies or defers. Agents are killed in each state; stored files are damaged; and it runs again from its
//! checkpoint.

use crate::harness::{Group, JOB, World, fresh_dir, in_lanes};
use crate::watches::Watching;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_lab::faults;
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::process::{self, Finished};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

static CHECKPOINT: Group = Group { theme: "checkpoint", name: "checkpoint", nodes: 3, quorum: 1, tweak: |_| {} };

/// Nodes for two jobs of two nodes at once, and one for the caller.
static LANES: Group = Group { theme: "checkpoint", name: "checkpoint-lanes", nodes: 5, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        CHECKPOINT.test("of_one_node_is_complete_and_tampered_files_are_named", &[], one_node),
        CHECKPOINT.test("of_two_nodes_is_complete_when_both_parts_are", &[], two_nodes),
        CHECKPOINT.test("a_program_that_would_die_of_the_signal_gets_none", &[], deaf),
        CHECKPOINT.test("one_that_ignores_it_gets_half_as_long_again_and_the_old_one_stays", &[], ignores),
        CHECKPOINT.test("one_that_takes_longer_than_its_time_has_half_as_long_again", &[], delays),
        CHECKPOINT.test("one_that_dies_or_lies_makes_none", &[], dies_and_lies),
        CHECKPOINT.test("one_that_defers_it_is_asked_again", &[], defers),
        CHECKPOINT.test("two_requests_at_once_are_one", &[], two_requests),
        CHECKPOINT.test("an_id_that_was_used_is_refused_and_nobody_is_asked", &[], used_before),
        CHECKPOINT.test("what_runs_again_begins_from_it_on_each_node", &[], restored),
        CHECKPOINT.test("an_agent_killed_while_it_restores_does_it_again", &[], restored_after_all),
        CHECKPOINT.test("a_damaged_one_is_named_and_not_started_from", &[], damaged),
        LANES.test("agents_killed_in_each_state_of_it_finish_it", &[], every_point),
    ]
}

/// Counts, with each step hashed with all steps before it. When it is restarted it checks the restored state before it
/// continues.
pub const CHAIN: &str = r#"#!/bin/sh
n=0 h=0 ask= deferred= told=
next() { n=$(($n + 1)); h=$(((h * 31 + n) % 1000003)); }
if [ -n "$LATTICE_RESTORE_FROM" ]; then
  read -r want hash < "$LATTICE_RESTORE_FROM/state/chain" || exit 21
  while [ $n -lt $want ]; do next; done
  [ "$h" = "$hash" ] || exit 22
  [ "$(stat -c %a "$LATTICE_RESTORE_FROM/state/chain")" = 640 ] || exit 23
  echo "restored $n"
fi
token() { read -r token < "$LATTICE_CHECKPOINT_DIR/request"; at=$LATTICE_CHECKPOINT_DIR/$token; }
save() {
  token
  # It may be asked twice for one token: one that was answered is over.
  [ ! -e "$at.done" ] || return
  behave=
  [ ! -e "$GO.behave" ] || read -r behave < "$GO.behave"
  case $behave in
    ignore) return;;
    die) mkdir -p "$at"; echo half > "$at/half"; exit 3;;
    lie) echo x > "$at/x"; echo files=7 > "$at.done"; return;;
    lie-once) rm "$GO.behave"; echo x > "$at/x"; echo files=7 > "$at.done"; return;;
    empty) : > "$at.done"; return;;
    forge) echo x > "$at/x"; echo "file=2 $(printf %064d 7) x" > "$at.done"; return;;
    link) ln -s /etc/passwd "$at/x"; : > "$at.done"; return;;
    wait) trap 'told=1; echo "told to end"' TERM; echo "asked $n"; while [ ! -e "$GO.release" ]; do sleep 0.02; done;;
    half) [ "$LATTICE_NODE_INDEX" = 0 ] || { echo "asked $n"; while [ ! -e "$GO.release" ]; do sleep 0.02; done; };;
    defer) [ "$deferred" ] || { deferred=1; echo early > "$at/early"; echo 0.2 > "$at.deferred"; return; };;
  esac
  mkdir -p "$at/state"
  echo "$n $h" > "$at/state/chain"
  chmod 640 "$at/state/chain"
  [ -z "$BULK" ] || head -c $BULK /dev/urandom > "$at/bulk"
  step=
  [ "$STEPLESS" ] || step="step=$n"
  printf "$step\ntime=$n.25\n" > "$at.done"
  trap - TERM
  [ ! "$told" ] || exit 0
}
trap 'ask=1' ${SIGNAL:-USR1}
echo "begun $LATTICE_REQUEUE_COUNT"
while [ ! -e "$GO" ]; do
  next
  echo "step $LATTICE_REQUEUE_COUNT $n"
  if [ "$ask" ]; then ask=; save; fi
  sleep 0.05
done
echo "final $n"
"#;

/// A job that runs [`CHAIN`].
pub struct Chain {
    pub id: String,
    go: PathBuf,
}

impl Chain {
    pub fn submit(w: &World, env: &[&str], more: &[&str]) -> Self {
        let (program, go) = (w.script("chain.sh", CHAIN), fresh_dir("chain-go"));
        let go_variable = format!("GO={}", go.display());
        let mut args = vec!["--checkpoint=signal", "--env", &go_variable];
        env.iter().for_each(|variable| args.extend(["--env", variable]));
        args.extend(more);
        args.extend(["--", "/bin/sh", &program]);
        let id = w.submit(&args);
        w.running(&id);
        // Every rank has set its trap.
        let ranks = if more.contains(&"2") { 2 } else { 1 };
        w.wait("every rank to count", || w.log(&id).matches("step 0 3\n").count() == ranks);
        Self { id, go }
    }

    /// Sets its behaviour from the next request on.
    pub fn behaves(&self, how: &str) {
        fs::write(behaviour(&self.go), format!("{how}\n")).unwrap();
    }

    /// Whether the program was asked and showed the set behaviour; for a behaviour that it shows once.
    pub fn behaved(&self) -> bool {
        !behaviour(&self.go).exists()
    }

    /// Checks that one request made no checkpoint, and that the earlier one is unchanged.
    fn keeps(&self, w: &World, first: &str) {
        assert_eq!((last(w, &self.id), list(w, &self.id).len()), (first.to_owned(), 1));
        w.ok(&["checkpoint", "verify", &self.id, first]);
    }

    pub fn create(&self, w: &World) -> Finished {
        w.run(&["checkpoint", "create", &self.id, "--deadline", "20s", "-o", "json"])
    }

    /// A checkpoint that must be complete: its id, and the reported step.
    fn created(&self, w: &World) -> (String, Option<u64>) {
        let done = self.create(w);
        assert_eq!(done.code(), 0, "{}\n{}", done.err(), w.log(&self.id));
        let answer: Value = serde_json::from_str(&done.out()).unwrap();
        assert_eq!(text(&answer, "state"), "complete");
        (text(&answer, "id"), answer["step"].as_u64())
    }

    /// Ends the wait of a program that waits before it saves itself.
    pub fn release(&self) {
        fs::write(self.go.with_extension("release"), "").unwrap();
    }

    pub fn end(&self, w: &World) {
        fs::write(&self.go, "").unwrap();
        w.completed(&self.id);
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.go);
        let _ = fs::remove_file(behaviour(&self.go));
        let _ = fs::remove_file(self.go.with_extension("release"));
    }
}

/// The file that sets the behaviour of a program that ends with this file.
pub fn behaviour(go: &Path) -> PathBuf {
    go.with_extension("behave")
}

pub fn last(w: &World, id: &str) -> String {
    text(&w.status(id)["checkpoint"], "id")
}

fn list(w: &World, id: &str) -> Vec<Value> {
    w.lattice.json(&["checkpoint", "list", id]).unwrap().as_array().unwrap().clone()
}

/// The directory of the checkpoint's objects.
pub fn objects(w: &World, allocation: &str, checkpoint: &str) -> PathBuf {
    w.dir.join("objects/default/default").join(allocation).join("checkpoints").join(checkpoint)
}

fn find(below: &Path, name: &str) -> PathBuf {
    let all = fs::read_dir(below).unwrap().flatten().map(|e| e.path());
    let mut found = all.filter_map(|path| {
        if path.is_dir() { Some(find(&path, name)).filter(|p| p.exists()) } else { (path.file_name()? == name).then_some(path) }
    });
    found.next().unwrap_or_default()
}

fn one_node(w: &World) {
    let chain = Chain::submit(w, &["BULK=20000000"], &["--nodes", "1"]);
    let id = &chain.id;
    let (first, step) = chain.created(w);
    assert_eq!((last(w, id), list(w, id).len()), (first.clone(), 1));
    let shown = w.at("n2").json(&["checkpoint", "show", id]).unwrap();
    assert_eq!((text(&shown, "id"), shown["step"].as_u64(), shown["files"].as_u64()), (first.clone(), step, Some(2)), "{shown}");
    assert_eq!(shown["time_seconds"].as_f64(), step.map(|step| step as f64 + 0.25));
    let details = w.ok(&["checkpoint", "show", id]);
    assert!(details.contains(&format!("Time:     {}.25 s, simulated\n", step.unwrap())), "{details}");
    let paths: Vec<String> = shown["nodes"][0]["list"].as_array().unwrap().iter().map(|f| text(f, "path")).collect();
    assert_eq!(paths, ["bulk", "state/chain"]);
    let audit = w.ok(&["audit", "query", "--alloc", id, "--type", "checkpoint-committed"]);
    assert!(audit.contains(&first), "{audit}");
    w.ok(&["checkpoint", "verify", id]);
    let kept = w.run(&["checkpoint", "rm", id, &first]);
    assert!(kept.code() == 4 && kept.err().contains("would continue from this checkpoint"), "{}", kept.err());
    // A checkpoint without a manifest may be in progress.
    let unknown = w.run(&["checkpoint", "rm", id, "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88"]);
    assert!(unknown.code() == 4 && unknown.err().contains("may be under way"), "{}", unknown.err());
    // So may a checkpoint in the store that is newer than the quorum's.
    let newer = "2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";
    let manifest = fs::read_to_string(objects(w, id, &first).join("manifest.json")).unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    manifest["id"] = newer.into();
    manifest["created_at_ms"] = (manifest["created_at_ms"].as_u64().unwrap() + 1).into();
    fs::create_dir(objects(w, id, newer)).unwrap();
    fs::write(objects(w, id, newer).join("manifest.json"), manifest.to_string()).unwrap();
    let refused = w.run(&["checkpoint", "rm", id, newer]);
    assert!(refused.code() == 4 && refused.err().contains("newer than the last one"), "{}", refused.err());
    // A checkpoint with an unreadable manifest is listed as damaged, and may be removed.
    fs::write(objects(w, id, newer).join("manifest.json"), "{").unwrap();
    let listed = list(w, id);
    assert!(listed.len() == 2 && listed.iter().any(|c| text(c, "id") == newer && c["damaged"].is_string()), "{listed:?}");
    w.ok(&["checkpoint", "rm", id, newer]);
    let (second, later) = chain.created(w);
    assert!(later > step && second != first);
    // The first checkpoint's files are gone from the node: they took space.
    let node = w.status(id)["nodes"][0].as_str().unwrap().to_owned();
    let there = fs::read_dir(w.cluster().run_dir.join(node).join("state/checkpoints").join(id)).unwrap();
    let tokens: Vec<String> = there.flatten().filter(|e| e.path().is_dir()).map(|e| e.file_name().into_string().unwrap()).collect();
    assert_eq!(tokens, [format!("{}-1", second.replace('-', ""))]);
    assert_eq!(text(&w.lattice.json(&["checkpoint", "show", id]).unwrap(), "parent"), first);
    // One byte of the first checkpoint's object is changed; the second one is unchanged.
    let object = find(&objects(w, id, &first), "00000000.zst");
    let mut bytes = fs::read(&object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&object, bytes).unwrap();
    let damaged = w.run(&["checkpoint", "verify", id, &first[..8]]);
    assert!(
        damaged.code() == 4 && damaged.out().contains("bulk") && !damaged.out().contains("chain"),
        "{} {}",
        damaged.out(),
        damaged.err()
    );
    w.ok(&["checkpoint", "verify", id, &second]);
    w.ok(&["checkpoint", "rm", id, &first]);
    assert!(list(w, id).len() == 1 && !object.exists());
    let gone = w.run(&["checkpoint", "show", id, &first]);
    assert_eq!(gone.code(), 3, "{}", gone.err());
    let other = w.run_as(crate::harness::NOBODY, &["checkpoint", "list", id]);
    assert_eq!(other.code(), 4, "{}", other.err());
    chain.end(w);
    w.ok(&["checkpoint", "verify", id]);
    w.assert_nothing_left();
}

/// Only the agents can read what users saved.
fn private(w: &World) {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(w.dir.join("objects")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

fn two_nodes(w: &World) {
    private(w);
    // Without steps: these two nodes count independently, and different steps would mean that they saved different
    // moments.
    let chain = Chain::submit(w, &["STEPLESS=1", "SIGNAL=USR2"], &["--nodes", "2", "--checkpoint-signal=usr2"]);
    // Also through an agent that has no part of the job.
    let done = w.at("n3").run(&["checkpoint", "create", &chain.id, "--deadline", "20s", "-o", "name"], JOB).unwrap();
    assert_eq!(done.code(), 0, "{}", done.err());
    let shown = w.lattice.json(&["checkpoint", "show", &chain.id]).unwrap();
    assert_eq!(text(&shown, "id"), done.out().trim());
    let files: Vec<u64> = shown["nodes"].as_array().unwrap().iter().map(|n| n["files"].as_u64().unwrap()).collect();
    assert_eq!(files, [1, 1], "{shown}");
    chain.end(w);
}

fn deaf(w: &World) {
    let id = w.submit(&["--checkpoint=signal", "--", "/bin/sleep", "600"]);
    w.running(&id);
    let done = w.run(&["checkpoint", "create", &id]);
    assert!(done.code() == 1 && done.err().contains("does not catch SIGUSR1") && done.err().contains("nothing was sent"), "{}", done.err());
    assert_eq!(text(&w.status(&id), "state"), "Running");
    assert!(list(w, &id).is_empty());
    w.ok(&["cancel", &id]);
    let without = w.submit(&["--", "/bin/sleep", "600"]);
    w.running(&without);
    let done = w.run(&["checkpoint", "create", &without]);
    assert!(done.code() == 4 && done.err().contains("--checkpoint"), "{}", done.err());
    w.ok(&["cancel", &without]);
}

fn ignores(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1"]);
    let (first, _) = chain.created(w);
    chain.behaves("ignore");
    let begun = Instant::now();
    let done = w.run(&["checkpoint", "create", &chain.id, "--deadline", "1s"]);
    assert!(done.code() == 1 && done.err().contains("timed out") && done.err().contains("its time was extended"), "{}", done.err());
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!(text(&w.status(&chain.id), "state"), "Running");
    chain.keeps(w, &first);
    chain.end(w);
}

fn delays(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1"]);
    chain.behaves("wait");
    let begun = Instant::now();
    let done = std::thread::scope(|scope| {
        let asked = scope.spawn(|| w.run(&["checkpoint", "create", &chain.id, "--deadline", "8s", "-o", "json"]));
        w.wait_log(&chain.id, "asked ");
        // After its walltime, and well before the end of the extension.
        std::thread::sleep(Duration::from_secs(9).saturating_sub(begun.elapsed()));
        assert!(!asked.is_finished(), "it was given up");
        chain.release();
        asked.join().unwrap()
    });
    assert_eq!(done.code(), 0, "{}", done.err());
    assert!(begun.elapsed() > Duration::from_secs(8), "{:?}", begun.elapsed());
    w.ok(&["checkpoint", "verify", &chain.id]);
    chain.end(w);
}

fn dies_and_lies(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1"]);
    let (first, _) = chain.created(w);
    let lies = [
        ("lie", "the application says that it saved 7 files, and 1 are there"),
        // As many bytes as it reports, but different ones.
        ("forge", "which is not the one that the application reported"),
        ("empty", "the application reported that it had saved, but there is no file in"),
        ("link", "x is a symbolic link: save only files and directories"),
    ];
    for (behave, expected) in lies {
        chain.behaves(behave);
        let done = chain.create(w);
        assert!(done.code() == 1 && done.err().contains(expected), "{behave}: {}", done.err());
        chain.keeps(w, &first);
    }
    chain.behaves("die");
    let done = chain.create(w);
    assert!([1, 4].contains(&done.code()), "{}", done.err());
    assert_eq!(text(&w.ended(&chain.id), "exit_code"), "3");
    chain.keeps(w, &first);
}

fn defers(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1"]);
    chain.behaves("defer");
    chain.created(w);
    let shown = w.lattice.json(&["checkpoint", "show", &chain.id]).unwrap();
    let paths: Vec<String> = shown["nodes"][0]["list"].as_array().unwrap().iter().map(|f| text(f, "path")).collect();
    assert_eq!(paths, ["state/chain"], "what lay there before the deferral is of another moment");
    chain.end(w);
}

fn two_requests(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1"]);
    chain.behaves("wait");
    let create = ["checkpoint", "create", &chain.id, "--deadline", "20s", "-o", "name"];
    let n2 = w.at("n2");
    let mut asked: Vec<Watching> = (0..3).map(|n| Watching::begin_at(w, &n2, &format!("asked-{n}"), &create, None)).collect();
    // The program saves itself only once each of them follows a checkpoint.
    w.wait("each request to follow a checkpoint", || asked.iter().all(|one| one.err().contains("checkpoint ")));
    chain.release();
    for one in &mut asked {
        assert_eq!(one.ended(), Some(0), "{}", one.err());
    }
    let ids: BTreeSet<String> = asked.iter().map(|one| one.out().trim().to_owned()).collect();
    assert_eq!((ids.len(), list(w, &chain.id).len()), (1, 1), "{ids:?}");
    // A request after its end makes a new one.
    let (later, _) = chain.created(w);
    assert!(!ids.contains(&later) && list(w, &chain.id).len() == 2, "{ids:?}, then {later}");
    chain.end(w);
}

fn used_before(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1"]);
    let (first, second) = (chain.created(w).0, chain.created(w).0);
    // A behaviour that the program shows once reveals whether it was asked.
    chain.behaves("lie-once");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(async {
        let client = Client::connect(&format!("unix:{}", w.lattice.socket().display())).await.unwrap();
        let request = v1::CheckpointRequest { id: first.clone(), allocation: chain.id.clone(), deadline_ms: 20_000 };
        let mut events = client.allocations().checkpoint(request).await.unwrap().into_inner();
        loop {
            match events.message().await {
                Ok(Some(event)) => assert!(!event.done, "{event:?}"),
                Ok(None) => panic!("no last line"),
                Err(status) => return status,
            }
        }
    });
    assert!(refused.message().contains(&format!("checkpoint {first} was made before")), "{refused}");
    assert!(!chain.behaved(), "it was asked");
    assert_eq!((last(w, &chain.id), list(w, &chain.id).len()), (second, 2));
    // The refused request does not block later ones.
    assert_ne!(chain.create(w).code(), 0);
    assert!(chain.behaved());
    chain.created(w);
    chain.end(w);
}

/// The failpoints of a checkpoint, as the agent lists them.
fn points() -> Vec<String> {
    let listed = process::run(Command::new(crate::harness::binaries().agent()).arg("failpoints"), JOB).unwrap().out();
    let found: Vec<String> = listed.lines().filter_map(|l| l.strip_prefix("Save\tAny\t").map(str::to_owned)).collect();
    assert!(found.len() >= 12, "{listed}");
    found
}

/// On two pairs of nodes at once, whose agents are killed; the caller uses the agent of n5.
fn every_point(w: &World) {
    let caller = w.at("n5");
    let program = w.script("chain.sh", CHAIN);
    in_lanes(&["n1,n2", "n3,n4"], points(), |nodes, point| killed_at(w, &caller, &program, nodes, &point));
    w.assert_nothing_left();
}

/// A job on two nodes, both of whose agents are killed when one comes to this point.
fn killed_at(w: &World, caller: &Lattice, program: &str, nodes: &str, point: &str) {
    let go = fresh_dir("chain-go");
    // Each rank defers once.
    if point.starts_with("save-deferred") {
        fs::write(behaviour(&go), "defer\n").unwrap();
    }
    let go_variable = format!("GO={}", go.display());
    let job = ["-w", nodes, "--checkpoint=signal", "--env", "STEPLESS=1", "--env", &go_variable, "--", "/bin/sh", program];
    let id = caller.ok(&[&["submit", "-o", "name"][..], &job].concat()).unwrap();
    let id = id.trim();
    let log = || caller.run(&["logs", id], JOB).unwrap().out();
    w.wait(&format!("{point}: it to count"), || log().matches("step 0 3\n").count() == 2);
    let victims: Vec<&str> = nodes.split(',').collect();
    for node in &victims {
        faults::kill_node(&w.dir, node).unwrap();
        faults::begin_node(&w.dir, node, &[], &[("LATTICE_FAILPOINT", point)]).unwrap();
    }
    let asking = {
        let (caller, id) = (caller.clone(), id.to_owned());
        std::thread::spawn(move || {
            caller.run(&["checkpoint", "create", &id, "--deadline", "20s", "-o", "name"], Duration::from_secs(60)).unwrap()
        })
    };
    let is_alive = |node: &str| w.cluster().node(node).unwrap().daemon.alive();
    w.wait(&format!("an agent to come to {point}"), || victims.iter().any(|node| !is_alive(node)));
    for node in &victims {
        // The other agent is killed in whatever state it is.
        if is_alive(node) {
            let _ = faults::kill_node(&w.dir, node);
        }
        faults::start_node(&w.dir, node).unwrap();
    }
    let done = asking.join().unwrap();
    assert_eq!(done.code(), 0, "{point}: {}", done.err());
    let made = done.out().trim().to_owned();
    let now = caller.allocation(id).unwrap();
    assert_eq!((text(&now["checkpoint"], "id"), text(&now, "requeue_count")), (made.clone(), "0".to_owned()), "{point}: {now}");
    caller.ok(&["checkpoint", "verify", id, &made]).unwrap_or_else(|e| panic!("{point}: {e:#}"));
    assert_eq!(caller.json(&["checkpoint", "list", id]).unwrap().as_array().unwrap().len(), 1, "{point}");
    fs::write(&go, "").unwrap();
    let over = caller.ended_within(id, JOB).unwrap();
    assert_eq!(text(&over, "state"), "Completed", "{point}: {over}");
    let _ = fs::remove_file(&go);
    let _ = fs::remove_file(behaviour(&go));
}

fn restored(w: &World) {
    let chain = Chain::submit(w, &["STEPLESS=1"], &["--nodes", "2", "--requeue"]);
    let id = &chain.id;
    chain.created(w);
    let before = w.status(id);
    let saved: Vec<u64> = {
        // Each node saved the step that its own log had reached; the restored program prints it.
        let log = w.log(id);
        assert!(!log.contains("restored"), "{log}");
        w.lattice.json(&["checkpoint", "show", id]).unwrap()["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n["files"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(saved, [1, 1]);
    let lost = before["nodes"][1].as_str().unwrap().to_owned();
    w.ok(&["node", "disable", &lost, "--yes", "--reason", "it burns"]);
    w.wait("it to run again", || text(&w.status(id), "requeue_count") == "1" && w.log(id).matches("begun 1").count() == 2);
    let now = w.status(id);
    assert!(!now["nodes"].as_array().unwrap().iter().any(|n| *n == lost.as_str()), "{now}");
    assert_eq!(now["submitted_at"], before["submitted_at"]);
    w.wait("it to count on", || {
        let log = w.log(id);
        let begins: Vec<u64> = log.lines().filter_map(|l| l.strip_prefix("restored ")?.parse().ok()).collect();
        begins.len() == 2 && begins.iter().all(|from| log.contains(&format!("step 1 {}\n", from + 1)))
    });
    let log = w.log(id);
    // No saved step is repeated in the second attempt: each node continues after its checkpoint.
    let least = log.lines().filter_map(|l| l.strip_prefix("restored ")?.parse::<u64>().ok()).min().unwrap();
    let counted = log.lines().filter_map(|l| l.strip_prefix("step 1 ")?.parse::<u64>().ok()).min().unwrap();
    assert_eq!(counted, least + 1, "{log}");
    // It is saved again under the new claim, with the old checkpoint as parent.
    let first = last(w, id);
    let (second, _) = chain.created(w);
    let shown = w.lattice.json(&["checkpoint", "show", id]).unwrap();
    assert_eq!((text(&shown, "parent"), text(&shown, "id")), (first, second), "{shown}");
    chain.end(w);
    w.ok(&["node", "enable", &lost]);
    w.wait("the node to be back", || {
        let nodes = w.lattice.json(&["nodes"]).unwrap();
        nodes.as_array().unwrap().iter().all(|n| text(n, "state") == "Ready")
    });
    w.assert_nothing_left();
}

/// Kills the shim of the node's first allocation, so the node can prove that it lost the work.
fn kill_shim(w: &World, node: &str) {
    let status = w.at(node).json(&["node", "status"]).unwrap();
    let shim = i32::try_from(status["allocations"][0]["shim_pid"].as_i64().unwrap()).unwrap();
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
}

fn restored_after_all(w: &World) {
    // Only n2 accepts work, so work that it loses is restarted there.
    w.ok(&["node", "cordon", "n1,n3", "--reason", "the test's"]);
    for point in ["restore-begun", "restored"] {
        let chain = Chain::submit(w, &[], &["--nodes", "1", "--requeue"]);
        let (_, step) = chain.created(w);
        faults::kill_node(&w.dir, "n2").unwrap();
        faults::begin_node(&w.dir, "n2", &[], &[("LATTICE_FAILPOINT", point)]).unwrap();
        w.wait("the agent to answer", || w.at("n2").json(&["node", "status"]).is_ok_and(|s| s["allocations"][0]["shim_pid"].is_i64()));
        kill_shim(w, "n2");
        w.wait(&format!("the agent to come to {point}"), || !w.cluster().node("n2").unwrap().daemon.alive());
        faults::start_node(&w.dir, "n2").unwrap();
        w.wait_log(&chain.id, &format!("restored {}\n", step.unwrap()));
        w.wait_log(&chain.id, &format!("step 1 {}\n", step.unwrap() + 1));
        chain.end(w);
    }
    w.ok(&["node", "uncordon", "n1,n3"]);
    w.assert_nothing_left();
}

fn damaged(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--requeue"]);
    let (made, _) = chain.created(w);
    let object = find(&objects(w, &chain.id, &made), "00000001.zst");
    fs::write(&object, "not what was put there").unwrap();
    let node = w.status(&chain.id)["nodes"][0].as_str().unwrap().to_owned();
    kill_shim(w, &node);
    let over = w.ended(&chain.id);
    assert_eq!(text(&over, "state"), "Failed", "{over}");
    let reason = text(&over, "reason");
    assert!(reason.contains("state/chain") && reason.contains(&made[..8]), "{reason}");
    assert!(!w.log(&chain.id).contains("begun 1"), "it never begins from its beginning instead");
}
