//! Ranks are held before each of their messages to their process manager, in PMI-1, PMI-2 and PMIx; agents and ranks
//! are killed there.

use crate::harness::{Folder, Group, JOB, Need, World, ended, ms};
use crate::{mpi, pmix};
use lattice_lab::lattice::text;
use lattice_lab::{faults, process};
use libtest_mimic::Trial;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Instant, SystemTime};

static WIREUP: Group = Group::large("wireup");

pub fn trials() -> Vec<Trial> {
    vec![
        WIREUP.test("agents_are_killed_between_any_two_messages_of_pmi_1", &[Need::Mpich], between_pmi_1),
        WIREUP.test("agents_are_killed_between_any_two_messages_of_pmi_2", &[Need::Pmi2], between_pmi_2),
        WIREUP.test("agents_are_killed_between_any_two_messages_of_pmix", &[Need::OpenMpi], between_pmix),
        WIREUP.test("a_rank_killed_in_its_init_of_pmi_1_brings_its_launch_down", &[Need::Mpich], killed_pmi_1),
        WIREUP.test("a_rank_killed_in_its_init_of_pmi_2_brings_its_launch_down", &[Need::Pmi2], killed_pmi_2),
        WIREUP.test("a_rank_killed_in_its_init_of_pmix_brings_its_launch_down", &[Need::OpenMpi], killed_pmix),
    ]
}

/// A rank that is held.
#[derive(Debug)]
struct Held {
    rank: u32,
    pid: Pid,
    /// The beginning of its message.
    message: String,
}

/// The place where ranks with `gate.c` loaded wait. On drop they all continue.
struct Gate {
    folder: Folder,
    listener: UnixListener,
    ranks: Vec<(Option<u32>, BufReader<UnixStream>)>,
}

impl Gate {
    fn new() -> Self {
        let folder = Folder::new("gate");
        let source = folder.0.join("gate.c");
        std::fs::write(&source, include_str!("wireup/gate.c")).unwrap();
        let done = process::run(Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).args([&library(&folder), &source]), JOB);
        let done = done.unwrap();
        assert_eq!(done.code(), 0, "{}", done.err());
        let listener = UnixListener::bind(socket(&folder)).unwrap();
        Self { folder, listener, ranks: Vec::new() }
    }

    /// The options of `submit` that make a program wait at the gate.
    fn options(&self) -> [String; 4] {
        let preload = format!("LD_PRELOAD={}", library(&self.folder).display());
        ["--env".to_owned(), preload, "--env".to_owned(), format!("RANK_GATE={}", socket(&self.folder).display())]
    }

    /// The next held rank, or `None` when the allocation has ended.
    fn next(&mut self, w: &World, id: &str) -> Option<Held> {
        let began = Instant::now();
        loop {
            let connections = self.ranks.iter().map(|(_, stream)| stream.get_ref().as_fd());
            let mut watched: Vec<PollFd> =
                std::iter::once(self.listener.as_fd()).chain(connections).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            poll(&mut watched, PollTimeout::from(500u16)).unwrap();
            let ready: Vec<bool> = watched.iter().map(|fd| fd.any().unwrap()).collect();
            if ready[0] {
                let stream = self.listener.accept().unwrap().0;
                stream.set_read_timeout(Some(JOB)).unwrap();
                self.ranks.push((None, BufReader::new(stream)));
            }
            if let Some(at) = ready[1..].iter().position(|ready| *ready) {
                let mut line = String::new();
                if self.ranks[at].1.read_line(&mut line).unwrap_or(0) == 0 {
                    self.ranks.remove(at);
                    continue;
                }
                let mut parts = line.trim_end().splitn(3, ' ');
                let mut number = || parts.next().unwrap().parse().unwrap();
                let (rank, pid) = (number(), number());
                let rank = u32::try_from(rank).unwrap();
                self.ranks[at].0 = Some(rank);
                return Some(Held { rank, pid: Pid::from_raw(pid), message: parts.next().unwrap_or_default().to_owned() });
            }
            if !ready.contains(&true) && ended(&w.status(id)) {
                return None;
            }
            assert!(began.elapsed() < JOB, "no rank comes, and there is no end: {}\n{}", w.status(id), w.log(id));
        }
    }

    /// Lets the rank send its message.
    fn let_go(&mut self, rank: u32) {
        let (_, stream) = self.ranks.iter_mut().find(|(known, _)| *known == Some(rank)).expect("it is held");
        stream.get_mut().write_all(b"x").unwrap();
    }
}

fn library(folder: &Folder) -> PathBuf {
    folder.0.join("gate.so")
}

fn socket(folder: &Folder) -> PathBuf {
    folder.0.join("gate")
}

/// Runs this program on two nodes, as an allocation's one launch.
fn submit(w: &World, gate: &Gate, options: &[&str], rank: &[String]) -> String {
    let held = gate.options();
    let args = ["--nodes", "2"].into_iter().chain(options.iter().copied()).chain(held.iter().map(String::as_str)).chain(["--"]);
    w.submit(&args.chain(rank.iter().map(String::as_str)).collect::<Vec<_>>())
}

/// The program for PMI-1: all of `MPI_Init`, a few lines, `MPI_Finalize`.
fn ring(w: &World) -> Vec<String> {
    vec![w.ring().program().to_string_lossy().into_owned(), "2".to_owned(), "0".to_owned()]
}

fn exchange(w: &World) -> Vec<String> {
    vec![mpi::pmi_2_program(w), "exchange".to_owned(), "2".to_owned()]
}

fn world(w: &World) -> Vec<String> {
    pmix::rank(w, "world").to_vec()
}

/// Before each message of each rank, while other ranks may wait for it, every agent of the launch is killed and
/// restarted. Returns the messages of each rank.
fn between(w: &World, options: &[&str], rank: &[String]) -> BTreeMap<u32, Vec<String>> {
    let mut gate = Gate::new();
    let id = submit(w, &gate, options, rank);
    let mut messages: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    while let Some(held) = gate.next(w, &id) {
        let nodes: Vec<String> = w.status(&id)["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
        for node in &nodes {
            faults::kill_node(&w.dir, node).unwrap();
        }
        faults::start_nodes(&w.dir, &nodes).unwrap();
        messages.entry(held.rank).or_default().push(held.message);
        gate.let_go(held.rank);
    }
    w.completed(&id);
    assert_eq!(text(&w.status(&id), "requeue_count"), "0");
    w.assert_nothing_left();
    messages
}

/// Checks that every rank was held before each of these messages, when the agents were killed.
fn assert_held_before(messages: &BTreeMap<u32, Vec<String>>, ranks: usize, expected: &[&str]) {
    assert_eq!(messages.len(), ranks, "{messages:?}");
    for (rank, lines) in messages {
        for prefix in expected {
            assert!(lines.iter().any(|line| line.contains(prefix)), "rank {rank} was not held before {prefix:?}: {lines:?}");
        }
    }
}

fn between_pmi_1(w: &World) {
    let messages = between(w, &["--tasks-per-node", "1"], &ring(w));
    assert_held_before(&messages, 2, &["cmd=init", "cmd=put ", "cmd=barrier_in", "cmd=get ", "cmd=finalize"]);
}

fn between_pmi_2(w: &World) {
    let messages = between(w, &["--tasks-per-node", "2"], &exchange(w));
    assert_held_before(
        &messages,
        4,
        &["cmd=init", "cmd=fullinit", "cmd=kvs-put", "cmd=kvs-fence", "cmd=ring", "cmd=kvs-get", "cmd=finalize"],
    );
}

fn between_pmix(w: &World) {
    let messages = between(w, &["--tasks-per-node", "1", "--pmi=pmix"], &world(w));
    // The messages are binary except for the first, which says which launch's rank it is; there are more than a single
    // rank would send.
    assert_held_before(&messages, 2, &["lattice_"]);
    assert!(messages.values().all(|lines| lines.len() >= 10), "{messages:?}");
}

/// The last of four ranks is killed before its first message that contains `beginning`, not counting messages before
/// number `from`. The others wait for it.
fn killed(w: &World, options: &[&str], rank: &[String], from: usize, beginning: &str) {
    let mut gate = Gate::new();
    let id = submit(w, &gate, &[&["--tasks-per-node", "2"], options].concat(), rank);
    let mut count = 0;
    let at = loop {
        let held = gate.next(w, &id).unwrap_or_else(|| panic!("it ended: {}\n{}", w.status(&id), w.log(&id)));
        if held.rank == 3 {
            count += 1;
            if count >= from && held.message.contains(beginning) {
                let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
                kill(held.pid, Signal::SIGKILL).unwrap();
                break at;
            }
        }
        gate.let_go(held.rank);
    };
    drop(gate);
    let now = w.ended(&id);
    let took = ms(&now, "ended_at").saturating_sub(u64::try_from(at.as_millis()).unwrap());
    assert!(took <= 2_000, "ended {took} ms after the death, which is more than 2 s");
    assert_eq!((text(&now, "state").as_str(), text(&now, "exit_code").as_str()), ("Failed", "137"), "{now}");
    let (reason, node) = (text(&now, "reason"), now["nodes"][1].as_str().unwrap());
    assert!(reason.contains("rank 3 ") && reason.contains(node), "it names rank and node: {now}");
    w.assert_nothing_left();
}

/// With this option the exit code has no effect, so PMI must notice the death.
const BY_PMI: &str = "--no-kill-on-bad-exit";

fn killed_pmi_1(w: &World) {
    let rank = ring(w);
    killed(w, &[], &rank, 1, "cmd=init");
    for beginning in ["cmd=get_maxes", "cmd=put ", "cmd=barrier_in"] {
        killed(w, &[BY_PMI], &rank, 1, beginning);
    }
    // And before a later one of its fences.
    killed(w, &[BY_PMI], &rank, 10, "cmd=barrier_in");
}

fn killed_pmi_2(w: &World) {
    let rank = exchange(w);
    killed(w, &[], &rank, 1, "cmd=init");
    for beginning in ["cmd=fullinit", "cmd=kvs-put", "cmd=kvs-fence"] {
        killed(w, &[BY_PMI], &rank, 1, beginning);
    }
}

fn killed_pmix(w: &World) {
    let rank = world(w);
    killed(w, &["--pmi=pmix"], &rank, 1, "");
    // After it was accepted, and before the fence of its MPI_Init.
    for from in [2, 5, 8] {
        killed(w, &["--pmi=pmix", BY_PMI], &rank, from, "");
    }
}
