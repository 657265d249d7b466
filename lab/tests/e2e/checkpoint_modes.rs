//! Checkpoint requests through shared memory and through calls. The examples of the client libraries survive
//! preemption. Programs ignore the request, defer, die, report wrong data, shorten the page and fill it with garbage.
//! Agents are killed during a request. Answers for other work are refused.

use crate::harness::{Folder, Group, JOB, NOBODY, Need, World, binaries, fresh_dir};
use lattice_lab::lattice::text;
use lattice_lab::process::{self, Finished};
use lattice_lab::{faults, image};
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

static MODES: Group = Group { theme: "checkpoint_modes", name: "ckptmodes", nodes: 2, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        MODES.test("the_libraries_examples_survive_preemption", &[], examples),
        MODES.test("in_shared_memory_a_program_that_ignores_dies_or_lies_makes_no_checkpoint", &[], memory_misbehaves),
        MODES.test("a_page_that_is_shortened_or_full_of_garbage_harms_no_agent", &[], memory_hostile),
        MODES.test("in_shared_memory_a_request_survives_the_kill_of_its_agent", &[], memory_killed),
        MODES.test("in_shared_memory_an_agent_killed_between_its_writes_repeats_the_request", &[], memory_killed_between),
        MODES.test("work_in_an_image_is_asked_through_the_same_page", &[Need::Mounts], memory_in_an_image),
        MODES.test("in_calls_a_checkpoint_of_two_nodes_is_complete_and_restored", &[], calls),
        MODES.test("in_calls_a_program_that_ignores_dies_or_lies_makes_no_checkpoint", &[], calls_misbehave),
        MODES.test("in_calls_a_checkpoint_can_be_deferred_but_not_for_ever", &[], calls_deferred),
        MODES.test("in_calls_a_request_survives_the_kill_of_its_agent", &[], calls_killed),
        MODES.test("in_calls_work_answers_only_its_own_requests", &[], calls_foreign),
        MODES.test("without_a_listener_a_request_is_refused", &[], deaf),
    ]
}

/// The directory of the libraries for applications.
fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk").canonicalize().unwrap()
}

/// Counts, and listens through the Python module.
const MEMORY: &str = r#"
import os, sys, time
sys.path.insert(0, os.environ["MODULE"])
from lattice_checkpoint import Listener, restore_from

go, page = os.environ["GO"], os.environ["LATTICE_CHECKPOINT_SHM"]
def behaviour():
    try:
        return open(go + ".behave").read().strip()
    except FileNotFoundError:
        return ""
def held():
    while not os.path.exists(go + ".release"):
        time.sleep(0.02)

n, deferred = 0, False
if restore_from():
    n = int(open(os.path.join(restore_from(), "n")).read())
    print("restored", n, flush=True)
with Listener() as listener:
    while not os.path.exists(go):
        n += 1
        print("step", n, flush=True)
        behave = behaviour()
        request = None if behave == "deaf" else listener.asked()
        if request:
            while behave == "slow":
                time.sleep(0.02)
                behave = behaviour()
            if behave == "fail":
                try:
                    with request:
                        raise OSError("the disk is gone")
                except OSError:
                    pass
            elif behave == "defer" and not deferred:
                deferred = True
                request.defer(1)
            elif behave == "die":
                open(os.path.join(request.directory, "half"), "w").write("half")
                os._exit(3)
            elif behave == "shorten":
                os.truncate(page, 100)
                held()
                os._exit(4)
            elif behave == "rubbish":
                with open(page, "r+b", buffering=0) as file:
                    file.write(b"\xff" * 4096)
            elif behave == "ignore":
                print("ignored", n, flush=True)
            else:
                if behave == "wait":
                    request.progress(40, left_seconds=9)
                    with open(go + ".asked", "a") as file:
                        file.write("asked\n")
                    print("asked", n, flush=True)
                    held()
                with request:
                    with open(os.path.join(request.directory, "n"), "w") as file:
                        file.write(str(n))
                    request.time = n / 4
                    # A step of a wrong type: the request fails, and the program runs on.
                    request.step, request.files = n + 0.5 if behave == "odd" else n, 7 if behave == "lie" else 1
        time.sleep(0.02)
print("final", n)
"#;

/// Counts, and hashes each step with all earlier ones; waits in a call. After a restart it checks the restored state
/// before it continues.
const CALLS: &str = r#"#!/bin/sh
n=0 h=0
next() { n=$(($n + 1)); h=$(((h * 31 + n) % 1000003)); }
if [ -n "$LATTICE_RESTORE_FROM" ]; then
  read -r want hash < "$LATTICE_RESTORE_FROM/n" || exit 21
  while [ $n -lt $want ]; do next; done
  [ "$h" = "$hash" ] || exit 22
  echo "restored $n"
fi
T=$GO.$LATTICE_NODE_INDEX.$$
waits() { "$LATTICE" checkpoint await > "$T.new" && mv "$T.new" "$T"; }
save() {
  behave=
  [ ! -e "$GO.behave" ] || read -r behave < "$GO.behave"
  case $behave in
    ignore) return;;
    die) echo half > "$dir/half"; exit 3;;
    lie) echo x > "$dir/x"; "$LATTICE" checkpoint done "$token" --file 7:x; return;;
    unnamed) echo x > "$dir/x"; echo y > "$dir/y"; "$LATTICE" checkpoint done "$token" --file 2:x; return;;
    fail) "$LATTICE" checkpoint fail "$token" "the disk is gone"; return;;
    defer) "$LATTICE" checkpoint defer "$token" 1s; return;;
    once) rm "$GO.behave"; echo early > "$dir/early"; "$LATTICE" checkpoint defer "$token" 1s; return;;
    wait) "$LATTICE" checkpoint progress "$token" 40 --left 9s; echo asked >> "$GO.asked"; echo "asked $token"; while [ ! -e "$GO.release" ]; do sleep 0.02; done;;
  esac
  echo "$n $h" > "$dir/n"
  step=
  [ "$STEPLESS" ] || step="--step $n --time $n.5"
  "$LATTICE" checkpoint done "$token" $step --file "$(stat -c %s "$dir/n"):n" || echo "not accepted"
}
waits & waiter=$!
while [ ! -e "$GO" ]; do
  next
  echo "step $n"
  if [ -e "$T" ]; then
    read -r token dir < "$T"; rm "$T"
    save
    waits & waiter=$!
  fi
  sleep 0.05
done
kill $waiter
echo "final $n"
"#;

/// A job that counts.
struct Counting {
    id: String,
    go: PathBuf,
}

impl Counting {
    fn memory(w: &World) -> Self {
        let module = format!("MODULE={}", sdk().join("python").display());
        let program = w.script("memory.py", MEMORY);
        Self::submit(w, 0, "shmem", &[&module], &["--nodes", "1"], &["python3", &program])
    }

    fn calls(w: &World, env: &[&str], more: &[&str]) -> Self {
        Self::calls_of(w, 0, env, more)
    }

    fn calls_of(w: &World, uid: u32, env: &[&str], more: &[&str]) -> Self {
        let lattice = format!("LATTICE={}", w.dir.join("bin/lattice").display());
        let program = w.script("calls.sh", CALLS);
        Self::submit(w, uid, "grpc", &[&[lattice.as_str()], env].concat(), more, &["/bin/sh", &program])
    }

    fn submit(w: &World, uid: u32, mode: &str, env: &[&str], more: &[&str], program: &[&str]) -> Self {
        let go = fresh_dir("modes-go");
        let (asks, go_variable) = (format!("--checkpoint={mode}"), format!("GO={}", go.display()));
        let mut args = vec![asks.as_str(), "--env", &go_variable];
        env.iter().for_each(|variable| args.extend(["--env", variable]));
        args.extend(more);
        args.push("--");
        args.extend(program);
        let id = submitted(w, uid, &args);
        w.running(&id);
        w.wait_log(&id, "step 3\n");
        Self { id, go }
    }

    fn behaves(&self, how: &str) {
        // The program may be reading it.
        let new = self.go.with_extension("behave-new");
        fs::write(&new, format!("{how}\n")).unwrap();
        fs::rename(new, self.go.with_extension("behave")).unwrap();
    }

    fn behaves_well(&self) {
        let _ = fs::remove_file(self.go.with_extension("behave"));
    }

    fn release(&self) {
        fs::write(self.go.with_extension("release"), "").unwrap();
    }

    fn create(&self, w: &World, deadline: &str) -> Finished {
        w.run_for(&["checkpoint", "create", &self.id, "--deadline", deadline, "-o", "json"], Duration::from_secs(90))
    }

    fn created(&self, w: &World) -> (String, u64) {
        let done = self.create(w, "20s");
        assert_eq!(done.code(), 0, "{}\n{}", done.err(), w.log(&self.id));
        let created: Value = serde_json::from_str(&done.out()).unwrap();
        (text(&created, "id"), created["step"].as_u64().unwrap())
    }

    /// Checks that a request failed for this reason, and that the earlier checkpoint is unchanged.
    fn fails(&self, w: &World, expected: &str, deadline: &str, first: &str) {
        let done = self.create(w, deadline);
        assert!(done.code() == 1 && done.err().contains(expected), "{expected}: {}\n{}", done.err(), w.log(&self.id));
        self.is_unchanged(w, first);
    }

    fn is_unchanged(&self, w: &World, first: &str) {
        assert_eq!(text(&w.status(&self.id)["checkpoint"], "id"), first);
        w.ok(&["checkpoint", "verify", &self.id, first]);
    }

    fn end(&self, w: &World) {
        fs::write(&self.go, "").unwrap();
        w.completed(&self.id);
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.go);
        for extension in ["behave", "release", "asked"] {
            let _ = fs::remove_file(self.go.with_extension(extension));
        }
    }
}

/// Submits as this user. An ordinary user meets errors that root's rights would hide.
fn submitted(w: &World, uid: u32, args: &[&str]) -> String {
    if uid == 0 {
        return w.submit(args);
    }
    let done = w.run_as(uid, &[&["submit", "-o", "name"], args].concat());
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().to_owned()
}

/// Runs a command that builds a program; the test fails with the command's errors.
fn made(command: &mut Command) {
    let done = process::run(command, Duration::from_secs(300)).unwrap();
    assert_eq!(done.code(), 0, "{}", done.err());
}

fn rust_example() -> String {
    let manifest = sdk().join("../Cargo.toml");
    let dir = &binaries().dir;
    let profile = if binaries().profile() == "debug" { "dev".to_owned() } else { binaries().profile() };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "-p", "lattice-checkpoint", "--lib", "--example", "train", "--profile", &profile, "--manifest-path"]);
    made(cargo.arg(manifest).arg("--target-dir").arg(dir.parent().unwrap()));
    dir.join("examples/train").display().to_string()
}

fn c_example(folder: &Path) -> String {
    let program = folder.join("train-c");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I"]).arg(sdk().join("include"));
    cc.arg(sdk().join("examples/train.c")).arg(binaries().dir.join("liblattice_checkpoint.a"));
    made(cc.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program));
    program.display().to_string()
}

fn examples(w: &World) {
    let folder = Folder::new("modes-c");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    for (from, to) in [("examples/train.py", "examples"), ("python/lattice_checkpoint.py", "python")] {
        fs::create_dir(folder.0.join(to)).unwrap();
        fs::copy(sdk().join(from), folder.0.join(from)).unwrap();
    }
    let python = vec!["python3".to_owned(), folder.0.join("examples/train.py").display().to_string()];
    for (uid, program) in [(0, vec![rust_example()]), (NOBODY, vec![c_example(&folder.0)]), (NOBODY, python)] {
        let mut args = vec!["--checkpoint=shmem", "--requeue=never", "--"];
        args.extend(program.iter().map(String::as_str));
        args.push("600");
        let id = submitted(w, uid, &args);
        survives(w, &id, &program);
    }
    w.assert_nothing_left();
}

/// Checks that an example, which counts to 600, continues where it was when it was preempted.
fn survives(w: &World, id: &str, program: &[String]) {
    w.running(id);
    w.wait_log(id, "step 3\n");
    w.ok(&["preempt", id]);
    w.wait("it to be restored", || w.log(id).contains("restored "));
    let step = w.status(id)["checkpoint"]["step"].as_u64().unwrap();
    let over = w.completed(id);
    assert_eq!(over["preempted_count"], 1, "{over}");
    let log = w.log(id);
    let (_, after) = log.split_once(&format!("restored {step}\n")).unwrap_or_else(|| panic!("{program:?} step {step}: {log}"));
    let counted: Vec<u64> = after.lines().filter_map(|l| l.strip_prefix("step ")?.parse().ok()).collect();
    assert_eq!(counted, (step + 1..=600).collect::<Vec<_>>(), "{program:?}");
    assert!(after.contains("final 600 "), "{program:?}: {after}");
}

fn memory_misbehaves(w: &World) {
    let counting = Counting::memory(w);
    let (first, _) = counting.created(w);
    counting.behaves("lie");
    counting.fails(w, "the application says that it saved 7 files, and 1 are there", "20s", &first);
    counting.behaves("fail");
    counting.fails(w, "OSError: the disk is gone", "20s", &first);
    counting.behaves("ignore");
    counting.fails(w, "timed out", "1s", &first);
    // An abandoned request is withdrawn: a program that looks later does not see it.
    w.wait("the request to be withdrawn", || {
        let log = w.log(&counting.id);
        log.contains("ignored ") && log.lines().rev().take(3).all(|line| line.starts_with("step "))
    });
    counting.behaves("odd");
    counting.fails(w, "step is ", "20s", &first);
    shows_acknowledgement(w, &counting);
    let first = text(&w.status(&counting.id)["checkpoint"], "id");
    counting.behaves("defer");
    let (second, _) = counting.created(w);
    assert_ne!(first, second);
    counting.behaves("die");
    let done = counting.create(w, "20s");
    assert!([1, 4].contains(&done.code()), "{}", done.err());
    assert_eq!(text(&w.ended(&counting.id), "exit_code"), "3");
    counting.is_unchanged(w, &second);
    w.assert_nothing_left();
}

/// A request for a checkpoint, and its progress output.
struct Asking {
    child: Child,
    /// Its output.
    output: PathBuf,
}

impl Asking {
    fn begin(w: &World, id: &str) -> Self {
        let output = fresh_dir("modes-output");
        let (out, err) = (Stdio::null(), fs::File::create(&output).unwrap());
        let mut command = w.lattice.command(&["checkpoint", "create", id, "--deadline", "30s"]);
        Self { child: command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap(), output }
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits for the command's end: the checkpoint must be complete.
    fn complete(mut self) {
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "{ended}: {}", self.output());
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.output);
    }
}

/// A program that has not seen the request, and one that works on it, are shown differently.
fn shows_acknowledgement(w: &World, counting: &Counting) {
    counting.behaves("deaf");
    let asking = Asking::begin(w, &counting.id);
    w.wait("the request to be sent", || asking.output().contains(": requested, waits for n"));
    counting.behaves("slow");
    w.wait("the request to be acknowledged", || asking.output().contains(": acknowledged, waits for n"));
    counting.behaves("wait");
    w.wait("its progress to be shown", || asking.output().contains("(40 %, 9 s left)"));
    let output = asking.output();
    let at = |state: &str| output.find(&format!(": {state}, ")).unwrap_or_else(|| panic!("never {state}: {output}"));
    assert!(at("requested") < at("acknowledged") && at("acknowledged") < at("writing"), "{output}");
    counting.release();
    asking.complete();
}

fn memory_hostile(w: &World) {
    let counting = Counting::memory(w);
    let (first, _) = counting.created(w);
    counting.behaves("rubbish");
    let done = counting.create(w, "1s");
    assert_eq!(done.code(), 1, "{}", done.err());
    counting.is_unchanged(w, &first);
    counting.behaves_well();
    let (second, _) = counting.created(w);
    counting.behaves("shorten");
    counting.fails(w, "the application made it shorter than 4096 bytes", "20s", &second);
    counting.fails(w, "the application made it shorter than 4096 bytes", "20s", &second);
    counting.release();
    assert_eq!(text(&w.ended(&counting.id), "exit_code"), "4");
    assert!(w.cluster().nodes.iter().all(|node| node.daemon.alive()), "an agent died");
    w.assert_nothing_left();
}

/// Kills the node's agent while it waits for the answer. The job is preempted and continues from the saved state.
fn killed(w: &World, counting: &Counting) {
    let id = &counting.id;
    counting.behaves("wait");
    w.ok(&["preempt", id, "--deadline", "60s"]);
    w.wait("the job to be asked", || w.log(id).contains("asked "));
    let node = w.status(id)["nodes"][0].as_str().unwrap().to_owned();
    let request = w.cluster().run_dir.join(&node).join("state/checkpoints").join(id).join("request");
    let asked = || fs::metadata(&request).map(|about| (about.ino(), about.ctime(), about.ctime_nsec())).ok();
    let before = asked().unwrap();
    faults::kill_node(&w.dir, &node).unwrap();
    faults::start_node(&w.dir, &node).unwrap();
    // The restarted agent writes the request for the same checkpoint again.
    w.wait("the request to be repeated", || asked().is_some_and(|now| now != before));
    // The behaviour is still `wait`: a request with another number would add a line to the file `.asked`.
    counting.release();
    w.wait("the job to run again", || {
        let now = w.status(id);
        text(&now, "state") == "Running" && now["preempted_count"] == 1
    });
    // The file is from both runs, the log only from the second.
    assert_eq!(fs::read_to_string(counting.go.with_extension("asked")).unwrap(), "asked\n");
    let step = w.status(id)["checkpoint"]["step"].as_u64().unwrap();
    w.wait_log(id, &format!("restored {step}\nstep {}\n", step + 1));
    counting.end(w);
    w.assert_nothing_left();
}

fn memory_killed(w: &World) {
    killed(w, &Counting::memory(w));
}

/// Kills the agent at each point between its writes to the page. The program finds one request, and answers it.
fn memory_killed_between(w: &World) {
    let listed = process::run(Command::new(binaries().agent()).arg("failpoints"), JOB).unwrap().out();
    let points: Vec<&str> = listed.lines().filter_map(|l| l.strip_prefix("Page\tAny\t")).collect();
    assert_eq!(points.len(), 3, "{listed}");
    for point in points {
        let counting = Counting::memory(w);
        let node = w.status(&counting.id)["nodes"][0].as_str().unwrap().to_owned();
        faults::kill_node(&w.dir, &node).unwrap();
        faults::begin_node(&w.dir, &node, &[], &[("LATTICE_FAILPOINT", point)]).unwrap();
        let other = w.at(if node == "n1" { "n2" } else { "n1" });
        let asking = {
            let id = counting.id.clone();
            std::thread::spawn(move || other.run(&["checkpoint", "create", &id, "--deadline", "20s", "-o", "json"], JOB).unwrap())
        };
        w.wait(&format!("its agent to reach {point}"), || !w.cluster().node(&node).unwrap().daemon.alive());
        faults::start_node(&w.dir, &node).unwrap();
        let done = asking.join().unwrap();
        assert_eq!(done.code(), 0, "{point}: {}", done.err());
        let created: Value = serde_json::from_str(&done.out()).unwrap();
        assert_eq!(text(&w.status(&counting.id)["checkpoint"], "id"), text(&created, "id"), "{point}");
        w.ok(&["checkpoint", "verify", &counting.id]);
        // Afterwards it is asked as usual.
        counting.created(w);
        counting.end(w);
    }
    w.assert_nothing_left();
}

/// Work in an image, in its own mount namespace, is asked through the same page.
fn memory_in_an_image(w: &World) {
    let folder = Folder::new("modes-image");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let packed = folder.0.join("train.sqfs");
    image::write(&packed, Path::new(&c_example(&folder.0))).unwrap();
    let (packed, program) = (packed.display().to_string(), format!("{}/bin/ring", image::MOUNT_POINT));
    let id = submitted(w, 0, &["--checkpoint=shmem", "--requeue=never", "--uenv", &packed, "--", &program, "600"]);
    survives(w, &id, &[program]);
    w.assert_nothing_left();
}

fn calls_killed(w: &World) {
    killed(w, &Counting::calls(w, &[], &["--nodes", "1"]));
}

fn calls(w: &World) {
    let counting = Counting::calls_of(w, NOBODY, &["STEPLESS=1"], &["--nodes", "2"]);
    let id = &counting.id;
    counting.behaves("wait");
    let asking = Asking::begin(w, id);
    w.wait("both ranks to be asked", || w.log(id).matches("asked ").count() == 2);
    w.wait("their progress to be shown", || asking.output().contains("(40 %, 9 s left)"));
    counting.behaves_well();
    counting.release();
    asking.complete();
    let shown = w.lattice.json(&["checkpoint", "show", id]).unwrap();
    let files: Vec<String> =
        shown["nodes"].as_array().unwrap().iter().flat_map(|n| n["list"].as_array().unwrap()).map(|f| text(f, "path")).collect();
    assert_eq!(files, ["n", "n"], "{shown}");
    w.ok(&["preempt", id]);
    w.wait("both ranks to be restored", || w.log(id).matches("restored ").count() == 2);
    assert_eq!(w.status(id)["preempted_count"], 1);
    counting.end(w);
    w.assert_nothing_left();
}

fn calls_misbehave(w: &World) {
    let counting = Counting::calls(w, &[], &["--nodes", "1"]);
    let (first, _) = counting.created(w);
    counting.behaves("lie");
    counting.fails(w, "the application says that it saved 7 bytes in x, and 2 are there", "20s", &first);
    counting.behaves("unnamed");
    counting.fails(w, "y is there, and not among the files that the application says it saved", "20s", &first);
    counting.behaves("fail");
    counting.fails(w, "the disk is gone", "20s", &first);
    counting.behaves("ignore");
    counting.fails(w, "timed out", "1s", &first);
    counting.behaves_well();
    let (second, _) = counting.created(w);
    counting.behaves("die");
    let done = counting.create(w, "20s");
    assert!([1, 4].contains(&done.code()), "{}", done.err());
    assert_eq!(text(&w.ended(&counting.id), "exit_code"), "3");
    counting.is_unchanged(w, &second);
    w.assert_nothing_left();
}

fn calls_deferred(w: &World) {
    let counting = Counting::calls(w, &[], &["--nodes", "1"]);
    counting.behaves("once");
    let (first, _) = counting.created(w);
    let shown = w.lattice.json(&["checkpoint", "show", &counting.id]).unwrap();
    let paths: Vec<String> = shown["nodes"][0]["list"].as_array().unwrap().iter().map(|f| text(f, "path")).collect();
    assert_eq!(paths, ["n"], "files from before the deferral are not part of it");
    // It defers until its allowance is used up: then it gets no more time than others.
    counting.behaves("defer");
    counting.fails(w, "timed out", "1s", &first);
    counting.end(w);
    w.assert_nothing_left();
}

fn calls_foreign(w: &World) {
    let counting = Counting::calls(w, &[], &["--nodes", "1", "--cores", "1"]);
    counting.behaves("wait");
    let asking = {
        let (lattice, id) = (w.lattice.clone(), counting.id.clone());
        std::thread::spawn(move || lattice.run(&["checkpoint", "create", &id, "--deadline", "30s"], JOB).unwrap())
    };
    w.wait_log(&counting.id, "asked ");
    let log = w.log(&counting.id);
    let token = log.lines().find_map(|l| l.strip_prefix("asked ")).unwrap().to_owned();
    let node = w.status(&counting.id)["nodes"][0].as_str().unwrap().to_owned();
    // A process outside of all allocations is refused, even root's.
    for args in [&["checkpoint", "done", &token][..], &["checkpoint", "await"]] {
        let outside = w.at(&node).run(args, JOB).unwrap();
        assert!(outside.code() == 4 && outside.err().contains("belongs to no allocation"), "{}", outside.err());
    }
    // So is the work of another allocation of the same user on the same node, with or without calls of its own.
    w.ok(&["node", "cordon", if node == "n1" { "n2" } else { "n1" }, "--reason", "the test's"]);
    let lattice = format!("LATTICE={}", binaries().lattice().display());
    let asks = format!("\"$LATTICE\" checkpoint done {token}; echo code $?");
    for (more, expected) in [(vec!["--checkpoint=grpc"], "there is no request"), (vec![], "submitted without --checkpoint=grpc")] {
        let mut args = vec!["--env", &lattice, "--cores", "1", "--nodes", "1"];
        args.extend(more);
        args.extend(["--", "/bin/sh", "-c", &asks]);
        let other = w.submit(&args);
        w.completed(&other);
        let log = w.log(&other);
        assert!(log.contains("code 4") && log.contains(expected), "{log}");
    }
    w.ok(&["node", "uncordon", if node == "n1" { "n2" } else { "n1" }]);
    counting.release();
    assert_eq!(asking.join().unwrap().code(), 0);
    counting.end(w);
    w.assert_nothing_left();
}

fn deaf(w: &World) {
    for (mode, expected) in [("shmem", "no process listens on the page"), ("grpc", "no process of the work waits in a call")] {
        let id = w.submit(&[&format!("--checkpoint={mode}"), "--", "/bin/sleep", "600"]);
        w.running(&id);
        let done = w.run(&["checkpoint", "create", &id]);
        assert!(done.code() == 1 && done.err().contains(expected) && done.err().contains("no request was made"), "{}", done.err());
        assert_eq!(text(&w.status(&id), "state"), "Running");
        w.ok(&["cancel", &id]);
        w.ended(&id);
    }
    for (args, expected) in [
        (&["--checkpoint=shmem", "--checkpoint-port=9999"][..], "a port is only for --checkpoint=grpc"),
        (&["--checkpoint-port=9999"], "a port is only for --checkpoint=grpc"),
        (&["--checkpoint=shmem", "--checkpoint-signal=USR2"], "a signal is only for --checkpoint=signal"),
    ] {
        let refused = w.run(&[&["submit"], args, &["--", "/bin/true"]].concat());
        assert!([2, 4].contains(&refused.code()) && refused.err().contains(expected), "{}", refused.err());
    }
}
