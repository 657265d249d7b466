//! A full disk during a checkpoint: the node's, filled by the work itself or by others, or the store's. The checkpoint
//! fails with the reason, the previous one stays, and the space of the failed one is freed.

use crate::checkpoint::{Chain, last};
use crate::harness::{Folder, Group, JOB, Need, World, binaries, fresh_dir};
use lattice_lab::lattice::text;
use lattice_lab::{configs, faults, process};
use libtest_mimic::Trial;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::sys::statvfs::statvfs;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

static FULL: Group = Group { theme: "checkpoint_full", name: "ckptfull", nodes: 2, quorum: 1, tweak: |_| {} };
/// The node with the small disk for checkpoints.
const NODE: &str = "n2";

pub fn trials() -> Vec<Trial> {
    vec![
        FULL.test("a_program_that_fills_its_disk_makes_no_checkpoint_and_its_space_is_freed", &[], filled),
        FULL.test("a_request_and_an_answer_that_cannot_be_stored_are_reported", &[], no_space),
        FULL.test("a_directory_on_a_network_file_system_is_refused", &[Need::Fuse], shared),
        FULL.test("a_full_store_makes_no_checkpoint_and_its_space_is_freed", &[], full_store),
    ]
}

/// A small file system, removed on drop.
struct SmallDisk {
    at: PathBuf,
    fill: PathBuf,
}

impl SmallDisk {
    fn at(at: PathBuf, mode: u32, megabytes: u64) -> Self {
        fs::create_dir_all(&at).unwrap();
        let options = format!("size={megabytes}m,mode={mode:o}");
        mount(None::<&str>, &at, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
        Self { fill: at.join("fill"), at }
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(&self.fill).unwrap();
        for piece in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
        assert_eq!(self.free(), 0);
    }

    fn make_space(&self) {
        fs::remove_file(&self.fill).unwrap();
    }

    fn free(&self) -> u64 {
        let about = statvfs(&self.at).unwrap();
        about.blocks_available() * about.fragment_size()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        process::until(JOB, || umount2(&self.at, MntFlags::MNT_DETACH).is_ok());
    }
}

/// Mounts a small file system for the node's checkpoints, and restarts its agent on it.
fn under_work(w: &World) -> SmallDisk {
    faults::kill_node(&w.dir, NODE).unwrap();
    let disk = SmallDisk::at(w.cluster().run_dir.join(NODE).join("state/checkpoints"), 0o711, 8);
    faults::start_node(&w.dir, NODE).unwrap();
    w.wait("the node to be back", || lattice_lab::up::wait_ready(&w.cluster(), JOB).is_ok());
    disk
}

/// A network file system whose server does not answer.
fn shared(w: &World) {
    let folder = Folder::new("shared");
    let device = open("/dev/fuse", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("server:/home"), &folder.0, Some("fuse.sshfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(options.as_str())).unwrap();
    let config = fs::read_to_string(w.dir.join(NODE).join("agent.yaml")).unwrap();
    let shared = format!("checkpoint: {{dir: {:?}}}", folder.0.join("checkpoints").display().to_string());
    let config = w.script("shared.yaml", &configs::merged(&config, &shared).unwrap());
    faults::kill_node(&w.dir, NODE).unwrap();
    let run = |args: &[&str]| process::run(Command::new(binaries().agent()).args(args).args(["--config", &config]), JOB).unwrap();
    let is_explained =
        |text: &str| text.contains("is on fuse.sshfs, which other nodes may share") && text.contains("checkpoint.store.url: file://");
    let refused = run(&[]);
    let doctor = run(&["doctor"]);
    drop(device);
    umount2(&folder.0, MntFlags::MNT_DETACH).unwrap();
    assert!(!refused.timed_out && refused.code() != 0 && is_explained(&refused.err()), "{} {}", refused.code(), refused.err());
    let is_reported = |line: &str| line.starts_with("missing ") && line.contains(" checkpoints ") && is_explained(line);
    assert!(doctor.out().lines().any(is_reported), "{}", doctor.out());
    faults::start_node(&w.dir, NODE).unwrap();
    w.wait("the node to be back", || lattice_lab::up::wait_ready(&w.cluster(), JOB).is_ok());
}

/// Makes all work run on the node with the small disk.
fn only_there(w: &World) {
    w.ok(&["node", "cordon", "n1", "--reason", "the test's"]);
}

/// The pid of the node's agent, which must not report a full disk.
fn agent(w: &World) -> i32 {
    let status = w.at(NODE).json(&["node", "status"]).unwrap();
    assert!(!status["degraded"].to_string().contains("disk: "), "{status}");
    w.cluster().node(NODE).unwrap().daemon.process.as_ref().unwrap().pid
}

/// Counts, and saves as much as the file `$GO.behave` says.
const BULKY: &str = r#"#!/bin/sh
n=0 ask=
save() {
  read -r token < "$LATTICE_CHECKPOINT_DIR/request"; at=$LATTICE_CHECKPOINT_DIR/$token
  read -r behave < "$GO.behave"
  case $behave in
    careful) head -c 100000000 /dev/zero > "$at/bulk" || { rm "$at/bulk"; echo "bulk has no room" > "$at.failed"; return; };;
    careless) head -c 100000000 /dev/zero > "$at/bulk";;
    small) echo $n > "$at/bulk";;
  esac
  echo step=$n > "$at.done"
}
trap 'ask=1' USR1
while [ ! -e "$GO" ]; do
  n=$(($n + 1))
  echo "step $n"
  if [ "$ask" ]; then ask=; save; fi
  sleep 0.02
done
"#;

/// Runs the CLI: it must succeed. On a busy machine a checkpoint takes longer than other commands.
fn succeed(w: &World, args: &[&str]) {
    let done = w.run(args);
    assert_eq!(done.code(), 0, "`lattice {}`: {}", args.join(" "), done.err());
}

fn filled(w: &World) {
    only_there(w);
    let disk = under_work(w);
    let (program, go) = (w.script("bulky.sh", BULKY), fresh_dir("full-go"));
    let behaves = |how: &str| fs::write(go.with_extension("behave"), format!("{how}\n")).unwrap();
    let id = w.submit(&["--checkpoint=signal", "--env", &format!("GO={}", go.display()), "--", "/bin/sh", &program]);
    w.wait_log(&id, "step 3\n");
    let (before, room) = (agent(w), disk.free());
    behaves("small");
    succeed(w, &["checkpoint", "create", &id, "--deadline", "20s"]);
    let first = last(w, &id);
    for (how, expected) in
        [("careful", "bulk has no room"), ("careless", "the disk is full, and the application did not report how much it saved")]
    {
        behaves(how);
        let failed = w.run(&["checkpoint", "create", &id, "--deadline", "20s"]);
        assert!(failed.code() == 1 && failed.err().contains(expected), "{how}: {}\n{}", failed.err(), w.log(&id));
        assert_eq!(last(w, &id), first);
        succeed(w, &["checkpoint", "verify", &id, &first]);
        w.wait("its space to be free again", || disk.free() + (1 << 20) > room);
    }
    assert_eq!(w.lattice.json(&["checkpoint", "list", &id]).unwrap().as_array().unwrap().len(), 1);
    behaves("small");
    succeed(w, &["checkpoint", "create", &id, "--deadline", "20s"]);
    assert_ne!(last(w, &id), first);
    fs::write(&go, "").unwrap();
    w.completed(&id);
    assert_eq!(agent(w), before);
    let _ = (fs::remove_file(&go), fs::remove_file(go.with_extension("behave")));
    w.assert_nothing_left_but(&disk.at);
    drop(disk);
    w.ok(&["node", "uncordon", "n1"]);
}

/// Waits in a call, and repeats its answer until it is accepted.
const ANSWERS: &str = r#"
while [ ! -e "$GO" ]; do
  "$LATTICE" checkpoint await > "$GO.asked" || exit 7
  read -r token dir < "$GO.asked"
  echo 1 > "$dir/n" || echo "not saved"
  echo "saved"
  while [ -e "$GO.hold" ]; do sleep 0.02; done
  until "$LATTICE" checkpoint done "$token" --bytes 2; do sleep 0.1; done
  echo "taken"
done
"#;

fn no_space(w: &World) {
    only_there(w);
    let disk = under_work(w);
    let before = agent(w);
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--cores", "1"]);
    let done = chain.create(w);
    assert_eq!(done.code(), 0, "{}", done.err());
    let first = last(w, &chain.id);
    disk.fill();
    let done = chain.create(w);
    // The agent first removes the remains of the previous checkpoint, so there may be a free block for the request, but
    // none for the saved files.
    let reasons = ["No space left on device", "the disk is full"];
    assert!(done.code() == 1 && reasons.iter().any(|why| done.err().contains(why)), "{}", done.err());
    assert_eq!(last(w, &chain.id), first);
    disk.make_space();
    let done = chain.create(w);
    assert_eq!(done.code(), 0, "{}", done.err());
    chain.end(w);
    // An answer in a call is not accepted while it cannot be stored; once there is space it is.
    let (lattice, go) = (format!("LATTICE={}", w.dir.join("bin/lattice").display()), fresh_dir("full-go"));
    let hold = go.with_extension("hold");
    fs::write(&hold, "").unwrap();
    let go_variable = format!("GO={}", go.display());
    let id = w.submit(&["--checkpoint=grpc", "--env", &lattice, "--env", &go_variable, "--", "/bin/sh", "-c", ANSWERS]);
    w.running(&id);
    let asked = {
        let (lattice, id) = (w.lattice.clone(), id.clone());
        std::thread::spawn(move || lattice.run(&["checkpoint", "create", &id, "--deadline", "30s"], JOB).unwrap())
    };
    w.wait_log(&id, "saved");
    disk.fill();
    fs::remove_file(&hold).unwrap();
    w.wait_log(&id, "the answer is refused");
    let log = w.log(&id);
    assert!(log.contains("No space left on device") && !log.contains("\ntaken"), "{log}");
    disk.make_space();
    w.wait_log(&id, "taken");
    let done = asked.join().unwrap();
    assert_eq!(done.code(), 0, "{}", done.err());
    succeed(w, &["checkpoint", "verify", &id]);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    let _ = fs::remove_file(go.with_extension("asked"));
    assert_eq!(agent(w), before);
    w.assert_nothing_left_but(&disk.at);
    drop(disk);
    w.ok(&["node", "uncordon", "n1"]);
}

fn full_store(w: &World) {
    let disk = SmallDisk::at(w.dir.join("objects"), 0o700, 16);
    let before = agent(w);
    let chain = Chain::submit(w, &["BULK=5000000"], &["--nodes", "1"]);
    let done = chain.create(w);
    assert_eq!(done.code(), 0, "{}", done.err());
    let (first, room) = (last(w, &chain.id), disk.free());
    fs::write(&disk.fill, vec![1; usize::try_from(room - (3 << 20)).unwrap()]).unwrap();
    let done = chain.create(w);
    assert!(done.code() == 1 && done.err().contains("No space left on device"), "{}", done.err());
    assert_eq!(last(w, &chain.id), first);
    w.ok(&["checkpoint", "verify", &chain.id, &first]);
    w.wait("the uploaded parts to be removed", || disk.free() > 2 << 20);
    disk.make_space();
    let done = chain.create(w);
    assert_eq!(done.code(), 0, "{}", done.err());
    let created: serde_json::Value = serde_json::from_str(&done.out()).unwrap();
    assert_eq!(text(&created, "id"), last(w, &chain.id));
    w.ok(&["checkpoint", "verify", &chain.id]);
    chain.end(w);
    assert_eq!(agent(w), before);
    w.assert_nothing_left_but(&disk.at);
}
