//! Standard input of launches: to one rank or all, through a tree of agents that are killed meanwhile.

use crate::harness::{Group, JOB, NOBODY, World};
use crate::tree;
use lattice_lab::faults;
use lattice_lab::process;
use libtest_mimic::Trial;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

static INPUT: Group = Group { theme: "input", name: "tree", nodes: 7, quorum: 1, tweak: tree::narrow };

/// Several times the window.
const INPUT_BYTES: usize = 6_000_000;
/// Bytes that are read at most if no rank reads: the window, the read-ahead, and a pipe.
const HELD_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Capacity of a pipe.
const PIPE_BYTES: usize = 64 * 1024;
/// Memory limit of the CLI, in KiB.
const CLI_KIB_MAX: usize = 48 * 1024;

pub fn trials() -> Vec<Trial> {
    vec![
        INPUT.test("it_goes_to_the_first_rank_to_another_to_all_or_to_none", &[], readers),
        INPUT.test("megabytes_come_whole_to_every_rank_while_agents_are_killed", &[], killed),
        INPUT.test("ranks_a_whole_window_ahead_of_others_continue_after_their_head_is_killed", &[], ahead),
        INPUT.test("a_rank_that_does_not_read_holds_up_the_input_and_nothing_else", &[], silent),
        INPUT.test("ranks_that_end_or_close_it_are_not_waited_for", &[], closed),
    ]
}

fn held(w: &World) -> (String, Vec<String>) {
    let id = w.submit(&["--nodes", "7", "--", "/bin/sleep", "300"]);
    w.running(&id);
    let nodes = w.status(&id)["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    (id, nodes)
}

fn bytes(count: usize) -> Vec<u8> {
    (0..u32::try_from(count).unwrap()).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// A running command, and its output so far.
struct Fed {
    child: Child,
    out: JoinHandle<String>,
    err: JoinHandle<String>,
}

/// Its output and its exit code.
struct Outcome {
    code: Option<i32>,
    out: String,
    err: String,
}

fn reader(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text
    })
}

impl Fed {
    fn begin(mut command: Command) -> (Self, ChildStdin) {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdin, out, err) = (child.stdin.take().unwrap(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
        (Self { child, out: reader(out), err: reader(err) }, stdin)
    }

    fn ended(mut self) -> Outcome {
        let done = process::until(JOB, || self.child.try_wait().unwrap().is_some());
        if !done {
            self.child.kill().unwrap();
        }
        let code = self.child.wait().unwrap().code();
        let (out, err) = (self.out.join().unwrap(), self.err.join().unwrap());
        assert!(done, "it hangs; so far: {out}{err}");
        Outcome { code, out, err }
    }

    /// Its peak memory, in KiB.
    fn kib_max(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok()).unwrap()
    }
}

fn fed(command: Command, input: &[u8]) -> Outcome {
    let (fed, mut stdin) = Fed::begin(command);
    // A program that does not read closes its input.
    let _ = stdin.write_all(input);
    drop(stdin);
    fed.ended()
}

/// Writes for as long as somebody reads; counts the bytes.
fn endless(mut stdin: ChildStdin) -> (Arc<AtomicUsize>, JoinHandle<()>) {
    let count = Arc::new(AtomicUsize::new(0));
    let written = Arc::clone(&count);
    let writer = std::thread::spawn(move || {
        while stdin.write_all(&[b'y'; 4096]).is_ok() {
            written.fetch_add(4096, Ordering::Relaxed);
        }
    });
    (count, writer)
}

fn sorted(outcome: &Outcome) -> Vec<&str> {
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.err);
    let mut lines: Vec<&str> = outcome.out.lines().collect();
    lines.sort_unstable();
    lines
}

fn readers(w: &World) {
    let (id, _) = held(w);
    let launch = |args: &[&str]| w.at("n2").command(&[&["launch", "--label", "--alloc", &id, "-n", "7"], args].concat());
    let what = ["sh", "-c", "cat; echo over"];
    let over = |with: &[&str]| {
        let mut lines: Vec<String> = (0..7).map(|rank| format!("{rank}: over")).chain(with.iter().map(|l| (*l).to_owned())).collect();
        lines.sort_unstable();
        lines
    };
    for (args, with) in [
        (&[][..], &["0: a", "0: b"][..]),
        (&["--stdin=0"], &["0: a", "0: b"]),
        (&["-i", "5"], &["5: a", "5: b"]),
        (&["--input", "none"], &[]),
    ] {
        assert_eq!(sorted(&fed(launch(&[args, &what].concat()), b"a\nb\n")), over(with), "{args:?}");
    }
    let all: Vec<String> = (0..7).flat_map(|rank| [format!("{rank}: a"), format!("{rank}: b")]).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(sorted(&fed(launch(&[&["--stdin=all"][..], &what].concat()), b"a\nb\n")), over(&all));
    // Only an end of input; and /dev/null counts as no input.
    assert_eq!(sorted(&fed(launch(&what), b"")), over(&[]));
    let null = w.run(&["launch", "--alloc", &id, "-n", "2", "readlink", "/proc/self/fd/0"]);
    assert_eq!(null.out(), "/dev/null\n/dev/null\n", "{}", null.err());
    for (args, why) in [(&["--stdin=7"][..], "the launch has 7 ranks"), (&["--stdin=some"], "all, none or a rank's number")] {
        let refused = fed(launch(&[args, &["true"]].concat()), b"");
        assert!(refused.code != Some(0) && refused.err.contains(why), "{:?} {}", refused.code, refused.err);
    }
    w.ok(&["cancel", &id]);
    w.ended(&id);
    // A launch with an allocation of its own. Submitted work gets no input.
    let job = |args: &[&str]| w.at("n3").command(&[&["launch", "--label", "-N", "3", "-n", "3"], args].concat());
    assert_eq!(
        fed(job(&["sh", "-c", "cat; echo over"]), b"a\n").out.lines().filter(|line| line.ends_with(": a")).collect::<Vec<_>>(),
        ["0: a"]
    );
    assert_eq!(sorted(&fed(job(&["--stdin=all", "cat"]), b"a\n")), ["0: a", "1: a", "2: a"]);
    // The user may open the pipe by its path.
    let home = w.dir.join(format!("home-{NOBODY}"));
    let mut command = w.lattice.clone().with_program(&w.dir.join("bin/lattice")).command(&["launch", "cat", "/dev/stdin"]);
    command.uid(NOBODY).gid(NOBODY).current_dir(&home).env("HOME", &home).env_remove("XDG_STATE_HOME");
    assert_eq!(sorted(&fed(command, b"a\n")), ["a"]);
    let refused = fed(job(&["--stdin=3", "cat"]), b"a\n");
    assert!(refused.code != Some(0) && refused.err.contains("the launch has 3 ranks"), "{}", refused.err);
    // Work that may be requeued gets no input, because the input could not be given to it again.
    let twice = fed(job(&["--requeue=always", "--stdin=all", "cat"]), b"a\n");
    assert_eq!(twice.code, Some(2), "{}", twice.err);
    assert!(twice.err.contains("a later attempt could not read standard input again"), "{}", twice.err);
    assert_eq!(sorted(&fed(job(&["--requeue=always", "sh", "-c", "cat; echo over"]), b"a\n")), ["0: over", "1: over", "2: over"]);
    let submitted = fed(w.lattice.command(&["submit", "-o", "name", "--", "/bin/readlink", "/proc/self/fd/0"]), b"a\n").out;
    w.completed(submitted.trim());
    assert_eq!(w.log(submitted.trim()), "/dev/null\n");
    w.assert_nothing_left();
}

fn killed(w: &World) {
    let input = bytes(INPUT_BYTES);
    let hash = fed(Command::new("sha256sum"), &input).out;
    let (id, nodes) = held(w);
    let (to, parts) = std::sync::mpsc::channel::<Vec<u8>>();
    let (job, mut stdin) = Fed::begin(w.at(&nodes[3]).command(&["launch", "--alloc", &id, "-n", "14", "--stdin=all", "sha256sum"]));
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let writer = std::thread::spawn(move || {
        for piece in parts.iter().flat_map(|part| part.chunks(PIPE_BYTES).map(<[u8]>::to_vec).collect::<Vec<_>>()) {
            stdin.write_all(&piece).unwrap();
            count.fetch_add(piece.len(), Ordering::Relaxed);
        }
    });
    // The user's own agent, an inner one, a leaf, and the head: each is killed while input is in transit and more than
    // the window waits.
    for (part, node) in input.chunks(INPUT_BYTES / 4).zip([&nodes[3], &nodes[1], &nodes[6], &nodes[0]]) {
        to.send(part.to_vec()).unwrap();
        // Nothing is read before the launch has begun.
        w.wait("input to be read", || written.load(Ordering::Relaxed) > PIPE_BYTES);
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
    }
    drop(to);
    writer.join().unwrap();
    let outcome = job.ended();
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert_eq!(outcome.out, hash.repeat(14), "{}", outcome.err);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}

fn ahead(w: &World) {
    let input = bytes(INPUT_BYTES);
    let hash = fed(Command::new("sha256sum"), &input).out;
    let (id, nodes) = held(w);
    let (go, copy) = (w.dir.join("input-ahead"), w.dir.join("input-copy"));
    // Two leaves below one node: one has the whole window, the other nothing, when everything is sent again.
    let script = format!(
        "case $LATTICE_NODE in {}) tee {copy} | sha256sum;; {}) until [ -e {go} ]; do sleep 0.05; done; exec sha256sum;; *) exec sha256sum;; esac",
        nodes[5],
        nodes[6],
        copy = copy.display(),
        go = go.display(),
    );
    let command = w.at(&nodes[3]).command(&["launch", "--alloc", &id, "-n", "7", "--stdin=all", "sh", "-c", &script]);
    let (job, mut stdin) = Fed::begin(command);
    let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
    let copied = || std::fs::metadata(&copy).map_or(0, |about| about.len());
    // The last piece of the window leaves less space than another one could need.
    w.wait("a whole window to be read", || copied() + 2 * PIPE_BYTES as u64 > lattice_model::input::WINDOW_BYTES as u64);
    faults::kill_node(&w.dir, &nodes[0]).unwrap();
    faults::start_node(&w.dir, &nodes[0]).unwrap();
    std::fs::write(&go, "").unwrap();
    writer.join().unwrap();
    let outcome = job.ended();
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), hash.repeat(7).as_str()), "{}", outcome.err);
    std::fs::remove_file(&go).unwrap();
    std::fs::remove_file(&copy).unwrap();
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}

fn silent(w: &World) {
    let (id, _) = held(w);
    let go = w.dir.join("input-silent");
    let script = format!("[ $LATTICE_RANK != 1 ] || exec cat > /dev/null; until [ -e {} ]; do sleep 0.05; done", go.display());
    let (job, stdin) = Fed::begin(w.lattice.command(&["launch", "--alloc", &id, "-n", "2", "--stdin=all", "sh", "-c", &script]));
    let (written, writer) = endless(stdin);
    w.wait("the window to be full", || written.load(Ordering::Relaxed) >= lattice_model::input::WINDOW_BYTES);
    // Meanwhile the allocation works as usual.
    for _ in 0..3 {
        assert_eq!(w.run(&["launch", "--alloc", &id, "-n", "7", "echo", "well"]).out(), "well\n".repeat(7));
    }
    let (held, kib) = (written.load(Ordering::Relaxed), job.kib_max());
    assert!(held < HELD_BYTES_MAX && kib < CLI_KIB_MAX, "{held} bytes were read that nobody reads, {kib} KiB are in use");
    std::fs::write(&go, "").unwrap();
    // The other rank continues to read after this one has ended, and is then ended too.
    w.wait("the input to go on", || written.load(Ordering::Relaxed) > HELD_BYTES_MAX);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(job.child.id().cast_signed()), nix::sys::signal::Signal::SIGINT).unwrap();
    let outcome = job.ended();
    assert_eq!(outcome.code, Some(130), "{}", outcome.err);
    writer.join().unwrap();
    std::fs::remove_file(&go).unwrap();
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}

fn closed(w: &World) {
    let (id, _) = held(w);
    let script = "case $LATTICE_RANK in 0) exit 0;; 1) exec <&-; wait;; 2) head -c 10 > /dev/null;; *) exec wc -c;; esac";
    let launch = |args: &[&str]| w.lattice.command(&[&["launch", "--alloc", &id, "--stdin=all"], args].concat());
    assert_eq!(fed(launch(&["-n", "4", "sh", "-c", script]), &bytes(INPUT_BYTES)).out.trim(), INPUT_BYTES.to_string());
    // Nobody reads any more: no more input is read, and the launch continues to its end.
    let go = w.dir.join("input-closed");
    let script = format!("exec <&-; until [ -e {} ]; do sleep 0.05; done; echo over", go.display());
    let (job, stdin) = Fed::begin(launch(&["-n", "2", "sh", "-c", &script]));
    let (written, writer) = endless(stdin);
    for _ in 0..3 {
        assert_eq!(w.run(&["launch", "--alloc", &id, "-n", "7", "echo", "well"]).out(), "well\n".repeat(7));
    }
    std::fs::write(&go, "").unwrap();
    let outcome = job.ended();
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "over\nover\n"), "{}", outcome.err);
    writer.join().unwrap();
    assert!(written.load(Ordering::Relaxed) < HELD_BYTES_MAX);
    std::fs::remove_file(&go).unwrap();
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}
