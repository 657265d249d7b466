//! The disk with the node's state is full: running work can be ended, the agent stays, and reports the problem.

use crate::harness::{Folder, Group, JOB, World, binaries};
use crate::tty::Tty;
use lattice_lab::lattice::text;
use lattice_lab::up::Options;
use lattice_lab::{down, faults, process};
use libtest_mimic::Trial;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

static FULL_DISK: Group = Group::small("full_disk");
/// Without a log store, and with little space for the output of ended work.
static OUTPUT: Group = Group { theme: "full_disk", name: "full-disk-output", nodes: 3, quorum: 1, tweak: little_space };
/// Its state is on its own small file system.
const NODE: &str = "n3";

pub fn trials() -> Vec<Trial> {
    vec![
        FULL_DISK.test("running_work_can_be_ended_and_the_node_recovers_with_free_space", &[], story),
        FULL_DISK.test("work_that_a_full_disk_refused_runs_when_there_is_space_again", &[], refused_for_a_while),
        FULL_DISK.test("a_lane_that_cannot_write_an_end_pauses_and_repeats_no_task", &[], lane),
        OUTPUT.test("written_output_stays_and_missing_output_is_marked", &[], output),
    ]
}

fn little_space(options: &mut Options) {
    "logs: {store: {url: \"\"}, ring_bytes: 1048576, spool_max_bytes: 8388608}".clone_into(&mut options.log_lines);
}

/// A small file system for the node's state, removed on drop.
pub struct SmallDisk<'a> {
    w: &'a World,
    node: &'static str,
    /// The node's `state_dir`.
    pub at: PathBuf,
}

impl<'a> SmallDisk<'a> {
    /// `size`: in tmpfs's notation, such as `24m`.
    pub fn under(w: &'a World, node: &'static str, size: &str) -> Self {
        let at = w.cluster().run_dir.join(node).join("state");
        faults::kill_node(&w.dir, node).unwrap();
        mount(None::<&str>, &at, Some("tmpfs"), MsFlags::empty(), Some(format!("size={size}").as_str())).unwrap();
        let disk = Self { w, node, at };
        faults::start_node(&w.dir, node).unwrap();
        disk
    }

    /// Fills it to the last byte.
    pub fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.at.join("fill")).unwrap();
        for piece in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
        let free = nix::sys::statvfs::statvfs(&self.at).unwrap().blocks_available();
        assert_eq!(free, 0);
    }

    fn make_space(&self) {
        fs::remove_file(self.at.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = faults::kill_node(&self.w.dir, self.node);
        process::until(JOB, || umount2(&self.at, MntFlags::MNT_DETACH).is_ok());
        let _ = faults::start_node(&self.w.dir, self.node);
    }
}

/// Checks that nothing is left except the file system itself.
fn nothing_left(w: &World, disk: &SmallDisk<'_>) {
    let cluster = w.cluster();
    let left = || down::leftovers(&cluster).into_iter().filter(|l| *l != format!("mount {}", disk.at.display())).collect::<Vec<_>>();
    let mut last = Vec::new();
    process::until(JOB, || {
        last = left();
        last.is_empty()
    });
    assert_eq!(last, Vec::<String>::new());
}

fn degraded(w: &World) -> String {
    w.at(NODE).json(&["node", "status"]).unwrap()["degraded"].to_string()
}

fn ready(w: &World) {
    w.wait("the node to be back", || lattice_lab::up::wait_ready(&w.cluster(), JOB).is_ok());
}

fn story(w: &World) {
    let disk = SmallDisk::under(w, NODE, "24m");
    ready(w);
    let pid = |w: &World| w.cluster().node(NODE).unwrap().daemon.process.as_ref().unwrap().pid;
    let agent = pid(w);

    let id = w.submit(&["--nodes", "3", "--", "/bin/sh", "-c", "echo up; sleep 300"]);
    w.wait_log(&id, "up\nup\nup\n");
    disk.fill();
    assert!(degraded(w).contains("disk: "), "{}", degraded(w));
    let config = w.dir.join(NODE).join("agent.yaml");
    let doctor = process::run(Command::new(binaries().agent()).arg("doctor").arg("--config").arg(config), JOB).unwrap();
    assert!(doctor.code() == 1 && doctor.out().contains("cannot be written and synced"), "{}", doctor.out());
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    nothing_left(w, &disk);

    // The node refuses new work, with the reason: the last work freed some space, which is filled as well.
    disk.fill();
    let id = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    let explain = || w.run(&["explain", &id]).out();
    assert!(process::until(JOB, || explain().contains("No space left")), "{}", explain());
    w.ok(&["cancel", &id]);
    w.ended(&id);
    nothing_left(w, &disk);

    disk.make_space();
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    let id = w.submit(&["--nodes", "3", "--walltime", "4s", "--", "/bin/sh", "-c", stubborn]);
    w.wait_log(&id, "up\nup\nup\n");
    disk.fill();
    let ended = w.ended(&id);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "reason").as_str()), ("Failed", "walltime_exceeded"), "{ended}");
    nothing_left(w, &disk);
    assert_eq!(pid(w), agent, "the same agent all the time");
    assert!(w.cluster().node(NODE).unwrap().daemon.alive());

    disk.make_space();
    let id = w.submit(&["--nodes", "3", "--", "/bin/sh", "-c", "echo up; sleep 300"]);
    w.wait_log(&id, "up\nup\nup\n");
    disk.fill();
    faults::kill_node(&w.dir, NODE).unwrap();
    faults::start_node(&w.dir, NODE).unwrap();
    assert_eq!(w.at(NODE).json(&["node", "status"]).unwrap()["allocations"][0]["phase"], "Running", "adopted on a full disk");
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    nothing_left(w, &disk);

    disk.make_space();
    assert!(!degraded(w).contains("disk: "), "{}", degraded(w));
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    drop(disk);
    ready(w);
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

/// The job needs all nodes: it waits for the one with the full disk, and begins once that has space.
fn refused_for_a_while(w: &World) {
    let disk = SmallDisk::under(w, NODE, "24m");
    ready(w);
    disk.fill();
    let id = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    let mut explanation = String::new();
    w.wait("the reason to name the node and the time", || {
        explanation = w.ok(&["explain", &id]);
        explanation.contains("No space left") && explanation.contains(&format!("it waits for {NODE}, where it could not begin, until 20"))
    });
    assert!(explanation.contains("is excluded until 20") && explanation.contains("once its checks are ok again"), "{explanation}");
    // The work behind it does not wait.
    w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    disk.make_space();
    assert_eq!(text(&w.completed(&id), "requeue_count"), "0");
    nothing_left(w, &disk);
    drop(disk);
    ready(w);
}

/// The members of the quorum are stopped while this lives.
struct StoppedQuorum<'a>(&'a World, Vec<u64>);

impl<'a> StoppedQuorum<'a> {
    fn stop(w: &'a World) -> Self {
        let members: Vec<u64> = w.cluster().members.iter().map(|member| member.id).collect();
        for member in &members {
            faults::stop_member(&w.dir, *member).unwrap();
        }
        Self(w, members)
    }
}

impl Drop for StoppedQuorum<'_> {
    fn drop(&mut self) {
        for member in &self.1 {
            let _ = faults::cont_member(&self.0.dir, *member);
        }
    }
}

/// The shim reserves space for some 1,500 ends. Beyond that, an end must be written or confirmed by the quorum before
/// the next task begins.
fn lane(w: &World) {
    /// More than the reserved space has ends.
    const TASKS: u32 = 4000;
    /// Tasks that begin while the file of ends does not grow: the space is used up.
    const UNWRITTEN: usize = 5;
    let disk = SmallDisk::under(w, NODE, "24m");
    ready(w);
    let others = hold_others(w);
    let folder = Folder::new("paused-lane");
    let begun_file = folder.0.join("begun");
    let indices = format!("--task-group=0-{}%1", TASKS - 1);
    let task = format!("echo $LATTICE_TASK_INDEX >> {}", begun_file.display());
    let group = w.submit(&[&indices, "--walltime=10m", "--", "/bin/sh", "-c", &task]);
    let begun = || fs::read_to_string(&begun_file).unwrap_or_default().lines().count();
    w.wait("the first tasks", || begun() > 10);
    disk.fill();
    let ends_bytes = || {
        let dirs = fs::read_dir(disk.at.join("alloc")).into_iter().flatten().flatten();
        dirs.filter_map(|dir| fs::metadata(dir.path().join("exits")).ok()).map(|file| file.len()).sum::<u64>()
    };
    let mut seen = (0, 0);
    w.wait("tasks whose ends are not on the disk", || {
        let (tasks, bytes) = (begun(), ends_bytes());
        if bytes != seen.0 {
            seen = (bytes, begun());
            return false;
        }
        bytes > 0 && tasks >= seen.1 + UNWRITTEN
    });

    let quorum = StoppedQuorum::stop(w);
    let status = || w.at(NODE).json(&["node", "status"]).map(|status| status.to_string()).unwrap_or_default();
    // The agent may have freed a few blocks, which are used first.
    w.wait("the lane to pause, and to begin no task", || {
        let before = begun();
        std::thread::sleep(std::time::Duration::from_secs(1));
        status().contains("the lane begins no task: the end of task") && begun() == before
    });
    let paused = begun();
    // With space again the lane continues, although the quorum confirms nothing yet.
    disk.make_space();
    w.wait("the lane to go on", || begun() > paused);
    drop(quorum);
    assert_eq!(text(&w.ended(&group), "state"), "Completed");
    let mut indices: Vec<u32> = fs::read_to_string(&begun_file).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..TASKS).collect::<Vec<_>>(), "each task ran once");
    w.ok(&["cancel", &others]);
    w.ended(&others);
    nothing_left(w, &disk);
    drop(disk);
    ready(w);
}

/// Other work holds the other nodes, so that a submission gets the one with the small disk.
fn output(w: &World) {
    let disk = SmallDisk::under(w, NODE, "24m");
    ready(w);
    let others = hold_others(w);
    let go = w.dir.join("go-on");

    // Output is kept from before the disk was full, and from when there is space again.
    let lines = "i=0; while :; do i=$((i+1)); printf '%0999d\\n' $i; sleep 0.02; done 2>/dev/null";
    let id = w.submit(&["--", "/bin/sh", "-c", lines]);
    w.wait_log(&id, "00009\n");
    disk.fill();
    let mut before = w.ok(&["logs", &id]);
    w.wait("the log to grow no more", || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let now = w.ok(&["logs", &id]);
        std::mem::replace(&mut before, now) == before
    });
    // The full disk may have truncated the last line.
    let whole: Vec<&str> = before.lines().collect();
    for (line, number) in whole[..whole.len() - 1].iter().zip(1..) {
        assert_eq!(*line, format!("{number:0999}"));
    }
    disk.make_space();
    w.wait("more lines", || w.ok(&["logs", &id]).len() > before.len() + 4000);
    assert!(w.ok(&["logs", &id]).starts_with(&before));
    disk.fill();
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    assert!(w.ok(&["logs", &id]).starts_with(&before), "its end removes nothing");
    disk.make_space();

    // The shim writes a terminal's log: it marks what is missing.
    let shows = "i=0; while :; do i=$((i+1)); printf '%0999d\\n' $i; sleep 0.01; done";
    let mut tty = Tty::start(w.lattice.command(&["launch", "--pty", "/bin/sh", "-c", shows]));
    tty.sees("00009");
    disk.fill();
    std::thread::sleep(std::time::Duration::from_secs(1));
    disk.make_space();
    tty.sees("bytes that were shown here are missing: the node's disk was full]");
    tty.sees("0\r\n");
    tty.types("\x03");
    tty.ended_with(130);

    // Two ended allocations, together more than the spool's limit; while there is space, both stay. Then the older one
    // is removed, and marked as removed.
    let five_mb = "head -c 5000000 /dev/zero | tr '\\0' x";
    let (first, second) = (w.submit(&["--", "/bin/sh", "-c", five_mb]), w.submit(&["--", "/bin/sh", "-c", five_mb]));
    for id in [&first, &second] {
        w.completed(id);
        assert_eq!(w.ok(&["logs", id]).len(), 5_000_000);
    }
    let third = w.submit(&["--", "/bin/sh", "-c", &format!("echo up; until [ -e {} ]; do sleep 0.02; done", go.display())]);
    w.wait_log(&third, "up");
    disk.fill();
    fs::write(&go, "").unwrap();
    w.completed(&third);
    let missing = "5000000 bytes of rank 0's stdout are missing here: the node had no room for them";
    w.wait("the oldest output to be removed", || w.run(&["logs", &first]).err().contains(missing));
    let read = w.run(&["logs", &first]);
    assert_eq!((read.code(), read.out().as_str()), (0, ""), "{}", read.err());
    assert_eq!(w.ok(&["logs", &second]).len(), 5_000_000);
    assert_eq!(w.log(&third), "up\n");

    disk.make_space();
    w.ok(&["cancel", &others]);
    w.ended(&others);
    nothing_left(w, &disk);
    drop(disk);
    ready(w);
}

fn hold_others(w: &World) -> String {
    let id = w.submit(&["--nodes", "2", "--", "/bin/sleep", "600"]);
    w.running(&id);
    let nodes = w.status(&id)["nodes"].to_string();
    assert!(!nodes.contains(NODE), "the first nodes are claimed first: {nodes}");
    id
}
