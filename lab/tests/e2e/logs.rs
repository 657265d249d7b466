//! Output and its upload to the log store: nothing is lost or repeated, and its size on the node is limited, whichever
//! daemon is killed meanwhile.

use crate::harness::{Group, JOB, Need, World, lab_program};
use crate::moto;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process::{self, Finished};
use lattice_lab::up::Options;
use libtest_mimic::Trial;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Flushed every second, a ring of 1 MiB, at most 8 MiB while the store is down.
pub static LOGS: Group = Group { theme: "logs", name: "logs", nodes: 2, quorum: 1, tweak: in_a_directory };
static S3: Group = Group { theme: "logs_in_s3", name: "logs-s3", nodes: 1, quorum: 1, tweak: in_s3 };

const KIB: u64 = 1024;
const LIMITS: &str = "logs: {flush_seconds: 1, ring_bytes: 1048576, spool_max_bytes: 8388608}";

pub fn trials() -> Vec<Trial> {
    vec![
        LOGS.test("chunks_lie_in_the_documented_places_and_are_read_when_the_node_has_them_no_more", &[], archived),
        LOGS.test("numbered_lines_over_three_restarts_are_read_once_each", &[], three_restarts),
        LOGS.test("an_agent_killed_again_and_again_while_it_flushes_loses_and_doubles_nothing", &[], killed_while_flushing),
        LOGS.test("the_ring_is_punched_while_it_is_read", &[], ring),
        LOGS.test("while_the_store_is_unreachable_the_oldest_lines_are_removed_and_reported_missing", &[], store_unreachable),
        LOGS.test("a_program_that_truncates_its_own_log_begins_a_segment", &[], truncating),
        LOGS.test("a_lease_on_a_log_file_makes_no_reader_wait", &[], leased),
        LOGS.test("a_node_that_is_gone_is_read_from_the_store_and_what_is_missing_is_said", &[], node_gone),
        LOGS.test("eleven_streams_are_one_too_many", &[], too_many_streams),
        LOGS.test("each_attempt_is_read_with_the_reason_of_its_end", &[], attempts),
        LOGS.test("steps_are_in_the_store_beside_the_output", &[], stored_steps),
        LOGS.test("following_waiting_work_shows_what_it_waits_for", &[], following_what_waits),
        S3.test("a_job_is_flushed_killed_under_and_read_back", &[Need::Moto], s3),
        S3.test("a_trace_of_the_cluster_is_put_beside_the_output", &[Need::Moto], trace_in_s3),
    ]
}

fn in_s3(options: &mut Options) {
    moto::begin(options, LIMITS);
}

fn in_a_directory(options: &mut Options) {
    LIMITS.clone_into(&mut options.log_lines);
}

pub fn alloc_dir(w: &World, node: &str, id: &str) -> PathBuf {
    let all = w.cluster().run_dir.join(node).join("state/alloc");
    let found = std::fs::read_dir(&all).unwrap().flatten().find(|e| e.file_name().to_string_lossy().starts_with(id));
    found.unwrap_or_else(|| panic!("{id} has no directory in {}", all.display())).path()
}

pub fn node_of(w: &World, id: &str) -> String {
    w.status(id)["nodes"][0].as_str().unwrap().to_owned()
}

/// Bytes of an allocation's log files on the disk.
fn on_disk(dir: &Path) -> u64 {
    let Ok(files) = std::fs::read_dir(dir.join("logs")) else { return 0 };
    files.flatten().filter_map(|e| e.metadata().ok()).map(|m| m.blocks() * 512).sum()
}

/// Waits until the node's part is complete in the store; returns its directory, which may be removed already.
pub fn all_flushed(w: &World, node: &str, id: &str) -> PathBuf {
    let dir = alloc_dir(w, node, id);
    flushed(w, &dir);
    dir
}

fn flushed(w: &World, dir: &Path) {
    w.wait("all output to be in the store", || dir.join("flushed").exists() || !dir.exists());
}

/// Removes the node's copy.
pub fn remove(dir: &Path) {
    if dir.exists() {
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// `lattice logs` with these arguments: it must succeed.
pub fn logs(w: &World, args: &[&str]) -> Finished {
    let finished = w.run(&[&["logs"], args].concat());
    assert_eq!(finished.code(), 0, "{}", finished.err());
    finished
}

/// Lines `000000001`, `000000002`, … in batches with a pause in between: 10 bytes a line.
fn numbers(batches: u32, lines: u32, pause: &str) -> String {
    format!("i=0; while [ $i -lt {batches} ]; do seq -f %09.0f $((i*{lines}+1)) $(((i+1)*{lines})); i=$((i+1)); sleep {pause}; done")
}

/// Panics unless the text consists of exactly these lines.
fn assert_numbers(text: &str, lines: u32) {
    let mut next = 1;
    for line in text.lines() {
        assert_eq!(line, format!("{next:09}"), "line {next} of {lines}");
        next += 1;
    }
    assert_eq!(next, lines + 1, "that many lines and no more");
}

fn objects(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(dir).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

fn archived(w: &World) {
    let program = "echo out $LATTICE_RANK; echo more $LATTICE_RANK; echo err $LATTICE_RANK >&2";
    let id = w.submit(&["--nodes", "2", "--", "/bin/sh", "-c", program]);
    let ended = w.completed(&id);
    let epoch = text(&ended, "epoch");
    let nodes: Vec<String> = ended["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    let dirs: Vec<PathBuf> = nodes.iter().map(|n| all_flushed(w, n, &id)).collect();
    let base = w.dir.join("objects");
    let tenant_project = objects(&base).into_iter().find(|k| k.contains(&id)).unwrap();
    let logs_dir = base.join(tenant_project.split(&id).next().unwrap()).join(&id).join("logs");
    let found = objects(&logs_dir);
    let mut expected = vec!["metadata.json".to_owned()];
    for (rank, node) in nodes.iter().enumerate() {
        expected.push(format!("metadata/{epoch}/{node}.json"));
        for stream in ["stdout", "stderr"] {
            expected.push(format!("{stream}/{node}/{epoch}-1-{rank}-0-000000000000.log.zst"));
        }
    }
    expected.sort();
    assert_eq!(found, expected);
    let metadata: serde_json::Value = serde_json::from_slice(&std::fs::read(logs_dir.join("metadata.json")).unwrap()).unwrap();
    assert_eq!((text(&metadata, "allocation"), text(&metadata, "epoch"), text(&metadata, "owner")), (id.clone(), epoch, "root".into()));
    assert_eq!(metadata["nodes"], ended["nodes"]);
    let before = logs(w, &[&id]);
    for dir in dirs {
        remove(&dir);
    }
    let after = logs(w, &[&id]);
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(after.out()), ["more 0", "more 1", "out 0", "out 1"]);
    assert_eq!((sorted(after.out()), sorted(after.err())), (sorted(before.out()), sorted(before.err())), "and nothing is reported missing");
    assert_eq!(logs(w, &["--rank", "1", "--stderr", &id]).err(), "err 1\n");
    assert_eq!(logs(w, &["--node", &nodes[0], "--stdout", "--tail", "1", &id]).out(), "more 0\n");
}

fn follow(w: &World, node: &str, args: &[&str]) -> Child {
    let mut command = w.at(node).command(&[&["logs", "-f"], args].concat());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for a follower; returns its output, its messages and its code.
fn followed(w: &World, mut child: Child) -> (Vec<u8>, String, Option<i32>) {
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    let err = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut status = None;
    w.wait("logs -f to end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    (out.join().unwrap().unwrap(), err.join().unwrap().unwrap(), status.and_then(|s| s.code()))
}

fn three_restarts(w: &World) {
    let program = "i=1; while [ $i -le 120 ]; do echo $LATTICE_RANK line $i; i=$((i+1)); sleep 0.08; done";
    let id = w.submit(&["--nodes", "2", "--", "/bin/sh", "-c", program]);
    w.running(&id);
    // One reader through an agent that is restarted meanwhile, one through the other.
    let mut readers: Vec<Child> = ["n1", "n2"].iter().map(|node| follow(w, node, &[&id])).collect();
    let mut first = BufReader::new(readers[0].stdout.take().unwrap());
    let mut head = Vec::new();
    for (at, restart) in [(20, "n1"), (80, "n2"), (140, "n1")] {
        while head.iter().filter(|b| **b == b'\n').count() < at {
            assert!(first.read_until(b'\n', &mut head).unwrap() > 0, "it ended early: {}", String::from_utf8_lossy(&head));
        }
        if restart == "n2" {
            faults::restart_node(&w.dir, restart).unwrap();
        } else {
            faults::kill_node(&w.dir, restart).unwrap();
            faults::start_node(&w.dir, restart).unwrap();
        }
    }
    let expected = |rank: u32| (1..=120).map(|i| format!("{rank} line {i}")).collect::<Vec<_>>();
    let check = |bytes: Vec<u8>, which: &str| {
        let text = String::from_utf8(bytes).unwrap();
        for rank in 0..2 {
            let got: Vec<&str> = text.lines().filter(|l| l.starts_with(&format!("{rank} "))).collect();
            assert_eq!(got, expected(rank), "{which}");
        }
        assert_eq!(text.lines().count(), 240, "{which}");
    };
    first.read_to_end(&mut head).unwrap();
    check(head, "through the restarted agent");
    let (bytes, stderr, code) = followed(w, readers.pop().unwrap());
    assert_eq!(code, Some(0), "{stderr}");
    check(bytes, "through the other agent");
    assert!(readers.pop().unwrap().wait().unwrap().success());
    w.completed(&id);
    check(logs(w, &[&id]).out().into_bytes(), "afterwards");
    w.assert_nothing_left();
}

fn killed_while_flushing(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", &numbers(30, 25_000, "0.2")]);
    w.running(&id);
    let node = node_of(w, &id);
    let dir = alloc_dir(w, &node, &id);
    // Less than the spool's limit in total, because an agent that is always down uploads nothing. It is killed in any
    // phase: cutting, uploading, recording, notifying the shim.
    let begun = Instant::now();
    let mut kills = 0;
    while begun.elapsed() < JOB && text(&w.status(&id), "state") == "Running" {
        std::thread::sleep(Duration::from_millis(400 + kills * 137 % 900));
        faults::kill_node(&w.dir, &node).unwrap();
        faults::start_node(&w.dir, &node).unwrap();
        kills += 1;
    }
    assert!(kills >= 3, "killed {kills} times");
    w.completed(&id);
    flushed(w, &dir);
    for gone in [false, true] {
        if gone {
            remove(&dir);
        }
        let read = logs(w, &[&id]);
        assert_eq!(read.err(), "", "the files are gone: {gone}");
        assert_numbers(&read.out(), 750_000);
    }
}

fn ring(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", &numbers(20, 150_000, "0.25")]);
    w.running(&id);
    let node = node_of(w, &id);
    let reader = follow(w, "n2", &[&id]);
    let dir = alloc_dir(w, &node, &id);
    let log = dir.join("logs/1/0.out");
    let most = Mutex::new(0);
    w.wait("30 MB to be written", || {
        let mut most = most.lock().unwrap();
        *most = on_disk(&dir).max(*most);
        std::fs::metadata(&log).is_ok_and(|m| m.len() >= 30_000_000)
    });
    let most = most.into_inner().unwrap();
    assert!(most < 26_000_000, "a part of it was made room of while it ran: {most} bytes at once");
    let (bytes, stderr, code) = followed(w, reader);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stderr, "", "nothing is missing");
    assert_numbers(std::str::from_utf8(&bytes).unwrap(), 3_000_000);
    w.completed(&id);
    let after = logs(w, &[&id]);
    assert_numbers(&after.out(), 3_000_000);
    assert_eq!(after.err(), "");
    assert_eq!(logs(w, &["--tail", "200000", &id]).out().lines().next(), Some("002800001"));
}

fn exchange(one: &Path, other: &Path) {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).unwrap();
}

fn store_unreachable(w: &World) {
    let pause = w.dir.join("go-on");
    let more = "seq -f %09.0f 100001 3000000; echo last";
    let program = format!("seq -f %09.0f 1 100000; while [ ! -e {} ]; do sleep 0.1; done; {more}; sleep 4", pause.display());
    let id = w.submit(&["--", "/bin/sh", "-c", &program]);
    w.running(&id);
    let node = node_of(w, &id);
    let dir = alloc_dir(w, &node, &id);
    let index = dir.join("spool.json");
    // The stored form of a stream of which one chunk has everything is a list: rank, stderr, length, open.
    let forms = ["\"end\":1000000,", ",0,false,1000000,false,"];
    w.wait("the first part to be flushed", || std::fs::read_to_string(&index).is_ok_and(|t| forms.iter().any(|form| t.contains(form))));
    // No directory can be made below a file.
    let (store, aside) = (w.dir.join("objects"), w.dir.join("objects.aside"));
    // Atomically: otherwise the agent would make the directory again in between.
    std::fs::write(&aside, "").unwrap();
    exchange(&store, &aside);
    std::fs::write(&pause, "").unwrap();
    w.wait("its end to be written", || logs(w, &["--tail", "1", &id]).out() == "last\n");
    let status = || w.at(&node).ok(&["node", "status"]).unwrap();
    w.wait("the store to be missed", || status().contains("log store: unreachable"));
    w.wait("the oldest to go", || on_disk(&dir) < 9000 * KIB);
    exchange(&store, &aside);
    std::fs::remove_file(&aside).unwrap();
    w.completed(&id);
    w.wait("the store to be back", || !status().contains("log store: unreachable"));
    flushed(w, &dir);
    let check = |finished: Finished| {
        let (out, err) = (finished.out(), finished.err());
        assert!(
            err.contains("bytes of rank 0's stdout are missing here: the node had no room for them (its disk, or logs.spool_max_bytes)"),
            "{err}"
        );
        let lines: Vec<&str> = out.lines().collect();
        assert_numbers(&lines[..100_000].join("\n"), 100_000);
        assert_eq!(lines[lines.len() - 2..], ["003000000", "last"]);
        let missing: usize = err.split(" bytes of").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!(out.len() + missing, 30_000_005, "exactly the missing bytes are reported");
    };
    check(logs(w, &[&id]));
    remove(&dir);
    check(logs(w, &[&id]));
}

fn truncating(w: &World) {
    let program = "echo one; sleep 3; echo two > /dev/stdout; sleep 3; echo three";
    let id = w.submit(&["--", "/bin/sh", "-c", program]);
    w.running(&id);
    let reader = follow(w, "n1", &[&id]);
    let (bytes, stderr, code) = followed(w, reader);
    assert_eq!((String::from_utf8(bytes).unwrap().as_str(), code), ("one\ntwo\nthree\n", Some(0)), "{stderr}");
    assert_eq!(stderr.matches("rank 0 truncated its own stdout").count(), 1, "{stderr}");
    let dir = all_flushed(w, &node_of(w, &id), &id);
    for (what, gone) in [("with its files", false), ("from the store", true)] {
        if gone {
            remove(&dir);
        }
        let after = logs(w, &[&id]);
        assert_eq!(after.out(), "one\ntwo\nthree\n", "{what}: what was flushed before stays");
        assert_eq!(after.err().matches("rank 0 truncated its own stdout").count(), 1, "{what}");
    }
}

/// Alone has its log file open, and gets a lease on it.
const LEASED: &str = r#"
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
print("written", flush=True)
log = os.open("/proc/self/fd/1", os.O_RDWR)
os.close(1)
while True:
    try:
        fcntl.fcntl(log, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        break
    except OSError:
        # The agent reads it just now.
        time.sleep(0.01)
open(sys.argv[1], "w").close()
time.sleep(300)
"#;

/// The kernel makes other opens wait for 45 s.
fn leased(w: &World) {
    let marker = w.dir.join("leased");
    let id = w.submit(&["--", "python3", "-c", LEASED, &marker.display().to_string()]);
    w.wait("the lease", || marker.exists());
    let begun = Instant::now();
    let read = w.run(&["logs", &id]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}: {}", begun.elapsed(), read.err());
    assert!(read.err().contains("a program has a lease (F_SETLEASE) on this log file"), "{}{}", read.out(), read.err());
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

fn node_gone(w: &World) {
    let program = "echo kept by $LATTICE_NODE; sleep 60";
    let id = w.submit(&["--nodes", "2", "--", "/bin/sh", "-c", program]);
    w.wait_log(&id, "kept by n2");
    let dir = alloc_dir(w, "n2", &id);
    // A short stream is stored as a list that begins with launch, rank and stderr.
    let flushed = |t: &str| t.contains("\"end\":") || (0..2).any(|rank| t.contains(&format!("[1,{rank},false,")));
    w.wait("it to be flushed", || std::fs::read_to_string(dir.join("spool.json")).is_ok_and(|t| flushed(&t)));
    // The index goes into the store after the one on the node.
    let is_stored = || objects(&w.dir.join("objects")).iter().any(|k| k.contains(&id) && k.ends_with("n2.json"));
    w.wait("the store to know of it", is_stored);
    faults::kill_node(&w.dir, "n2").unwrap();
    let read = logs(w, &[&id]);
    assert!(read.out().contains("kept by n1\n") && read.out().contains("kept by n2\n"), "{}", read.out());
    assert!(read.err().contains("n2: the node does not answer"), "{}", read.err());
    faults::start_node(&w.dir, "n2").unwrap();
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

fn too_many_streams(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", "echo here; sleep 60"]);
    w.wait_log(&id, "here");
    let mut readers: Vec<Child> = (0..10).map(|_| follow(w, "n1", &[&id])).collect();
    for reader in &mut readers {
        let mut line = [0; 5];
        reader.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"here\n");
    }
    let refused = w.run(&["logs", &id]);
    assert_eq!(refused.code(), 4, "{}", refused.err());
    assert!(refused.err().contains("you have 10 log streams open"), "{}", refused.err());
    let refused = w.run(&["logs", "-f", &id]);
    assert_eq!(refused.code(), 125, "what gives a program's code keeps its own failures apart: {}", refused.err());
    assert!(refused.err().contains("you have 10 log streams open"), "{}", refused.err());
    assert!(w.at("n2").ok(&["logs", &id]).unwrap().contains("here"), "the limit is each agent's");
    // An own job waits for a free stream, without harm.
    let mut job = w.at("n1").command(&["launch", "--", "/bin/echo", "its turn"]);
    let mut job = job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(job.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("log streams"), "{line}");
    let mut one = readers.pop().unwrap();
    one.kill().unwrap();
    one.wait().unwrap();
    let output = job.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"its turn\n"[..]));
    w.wait("its place to be free", || w.run(&["logs", &id]).code() == 0);
    w.ok(&["cancel", &id]);
    for mut reader in readers {
        let _ = reader.kill();
        reader.wait().unwrap();
    }
    w.ended(&id);
}

fn s3(w: &World) {
    // No more than the node keeps: a slow store causes no loss.
    let id = w.submit(&["--", "/bin/sh", "-c", &numbers(10, 60_000, "0.3")]);
    w.running(&id);
    let dir = alloc_dir(w, "n1", &id);
    w.wait("something to be in the bucket", || moto::http("GET", "/lattice?list-type=2").contains(&id));
    faults::kill_node(&w.dir, "n1").unwrap();
    faults::start_node(&w.dir, "n1").unwrap();
    w.completed(&id);
    flushed(w, &dir);
    remove(&dir);
    let read = logs(w, &[&id]);
    assert_eq!(read.err(), "");
    assert_numbers(&read.out(), 600_000);
    let listed = moto::http("GET", "/lattice?list-type=2");
    for piece in ["logs/metadata.json", "logs/metadata/", "logs/stdout/n1/", "-1-0-0-000000000000.log.zst"] {
        assert!(listed.contains("some/prefix/") && listed.contains(piece), "{piece} in {listed}");
    }
    let doctor = process::run(
        Command::new(w.cluster().binaries.join("lattice-agent")).args(["doctor", "--config"]).arg(w.dir.join("n1/agent.yaml")),
        JOB,
    );
    let report = doctor.unwrap().out();
    assert!(report.lines().any(|l| l.starts_with("ok") && l.contains("s3://lattice/some/prefix")), "{report}");
}

fn trace_in_s3(w: &World) {
    w.completed(&w.submit(&["--", "/bin/true"]));
    let url = w.ok(&["admin", "trace", "capture", "--days", "1", "--store", "-o", "name"]);
    let key = url.trim().strip_prefix("s3://lattice/").unwrap_or_else(|| panic!("{url}"));
    assert!(key.starts_with("some/prefix/traces/lattice-trace-") && key.ends_with("-n1.jsonl"), "{url}");
    let stored = moto::http("GET", &format!("/lattice/{key}"));
    assert!(stored.starts_with("HTTP/1.1 200") && stored.contains("lattice-trace/1"), "{stored}");
    let uploads = moto::http("GET", "/lattice?uploads");
    assert!(!uploads.contains(key), "the upload is complete: {uploads}");
}

fn attempts(w: &World) {
    let again = w.dir.join("again");
    let again = again.display();
    let job = format!("if [ ! -e {again} ]; then touch {again}; echo first; echo oops >&2; exit 3; fi; echo second");
    let id = w.submit(&["--requeue=always", "--", "/bin/sh", "-c", &job]);
    w.completed(&id);
    let ended = w.status(&id);
    let first = &ended["attempts"][0];
    let (node, by) = (first["nodes"][0].as_str().unwrap().to_owned(), text(first, "by"));
    assert_eq!((text(first, "number"), text(first, "reason"), by.clone()), ("1".into(), "exit_code 3".into(), format!("node:{node}")));
    // The last attempt's output, and a note that there was an earlier one.
    let now = logs(w, &[&id]);
    assert_eq!(now.out(), "second\n");
    assert!(now.err().contains("attempt 1 on") && now.err().contains("exit_code 3") && now.err().contains("--attempt 1"), "{}", now.err());
    for how in [&["--previous"][..], &["--attempt", "1"], &["--attempt", "1", "--node", &node]] {
        let before = logs(w, &[how, &[&id[..]]].concat());
        assert_eq!(before.out(), "first\n", "{how:?}");
        assert!(before.err().contains("oops\n") && before.err().contains(&format!("by {by}")), "{}", before.err());
    }
    assert_eq!(logs(w, &["--attempt", "2", &id]).out(), "second\n");
    let none = w.run(&["logs", "--attempt", "7", &id]);
    assert!(none.code() == 3 && none.err().contains("no attempt 7") && none.err().contains("1, 2"), "{}", none.err());
    assert_eq!(w.run(&["logs", "-f", "--previous", &id]).code(), 2);
    for what in ["status", "explain"] {
        let shown = w.ok(&[what, &id]);
        assert!(shown.contains("this is attempt 2") && shown.contains("exit_code 3") && shown.contains(&by), "{what}: {shown}");
    }
    let once = w.submit(&["--", "/bin/true"]);
    w.completed(&once);
    let no_other = w.run(&["logs", "--previous", &once]);
    assert!(no_other.code() == 4 && no_other.err().contains("no earlier attempt"), "{}", no_other.err());
    // Only from the store.
    flushed(w, &alloc_dir(w, &node, &id));
    for name in ["n1", "n2"] {
        let all = w.cluster().run_dir.join(name).join("state/alloc");
        let of_it = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().starts_with(&id);
        let dirs: Vec<PathBuf> = std::fs::read_dir(all).into_iter().flatten().flatten().filter(of_it).map(|e| e.path()).collect();
        for dir in dirs {
            flushed(w, &dir);
            remove(&dir);
        }
    }
    assert_eq!(logs(w, &["--previous", &id]).out(), "first\n");
}

fn stored_steps(w: &World) {
    let lattice = lab_program().with_file_name("lattice").display().to_string();
    let launches = format!("#!/bin/sh\n{lattice} launch -n 2 -- true\n{lattice} launch -n 1 -- /bin/sh -c 'exit 4'\nexit 0\n");
    let id = w.submit(&[&w.script("stored-steps.sh", &launches)]);
    w.completed(&id);
    let listed = || w.lattice.json(&["status", &id, "--steps"]).unwrap();
    let on_node = listed();
    let codes: Vec<_> = on_node["steps"].as_array().unwrap().iter().map(|step| (text(step, "step"), step["exit_code"].as_i64())).collect();
    assert_eq!(codes, [("batch".to_owned(), Some(0)), ("0".to_owned(), Some(0)), ("1".to_owned(), Some(4))], "{on_node}");
    remove(&all_flushed(w, &node_of(w, &id), &id));
    assert_eq!(listed(), on_node, "from the store");
}

fn following_what_waits(w: &World) {
    let holder = w.submit(&["--nodes", "2", "--", "/bin/sleep", "600"]);
    w.running(&holder);
    let id = w.submit(&["--nodes", "2", "--", "/bin/sh", "-c", "echo ran"]);
    let stderr_file = w.dir.join("waiting.err");
    let mut command = w.at("n1").command(&["logs", "-f", &id]);
    let out = Stdio::piped();
    let mut child = command.stdin(Stdio::null()).stdout(out).stderr(std::fs::File::create(&stderr_file).unwrap()).spawn().unwrap();
    let stderr = || std::fs::read_to_string(&stderr_file).unwrap();
    w.wait("it to say what it waits for", || stderr().contains("is Pending: wants 2 nodes, 0 are free"));
    w.ok(&["cancel", &holder]);
    w.wait("logs -f to end", || child.try_wait().unwrap().is_some());
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success() && String::from_utf8_lossy(&done.stdout) == "ran\nran\n", "{done:?} {}", stderr());
    assert_eq!(stderr().matches("wants 2 nodes, 0 are free").count(), 1, "once: {}", stderr());
}
