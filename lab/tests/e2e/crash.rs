//! The agent is killed between every two steps of a start, of recovery, and of an end. Each time the job runs once,
//! ends as expected, and nothing of it is left.

use crate::attach::piped;
use crate::harness::{Folder, JOB, Need, alone, binaries, close, configure, fresh_dir};
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::up::{Options, up};
use lattice_lab::{faults, image, process};
use libtest_mimic::Trial;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// The largest number of clusters that run in parallel.
const PARALLEL_CLUSTERS_MAX: usize = 3;
/// The smallest number of jobs for which a further cluster is started.
const CLUSTER_ROUNDS_MIN: usize = 4;
/// How long an agent may take to reach its failpoint.
const FAILPOINT_TIMEOUT: Duration = Duration::from_secs(30);

pub fn trials() -> Vec<Trial> {
    vec![
        alone("crash::of_a_script_between_every_two_steps", &[], || every_point(&SCRIPT)),
        alone("crash::of_an_inline_command_on_two_nodes_between_every_two_steps", &[], || every_point(&COMMAND)),
        alone("crash::a_failpoint_is_refused_where_work_may_not_be_root", &[], refused),
        alone("crash::of_a_job_with_an_image", &[Need::Mounts], || every_point(&IMAGE)),
        alone("crash::of_an_attached_terminal_between_every_two_steps", &[], every_point_of_a_terminal),
        alone("crash::of_output_on_its_way_into_the_store_between_every_two_steps", &[], every_point_of_a_flush),
    ]
}

/// A kind of work, and the failpoints that it passes.
struct Kind {
    name: &'static str,
    nodes: u32,
    script: bool,
    image: bool,
    /// As in the second column of `lattice-agent failpoints`.
    passes: &'static [&'static str],
}

const SCRIPT: Kind = Kind { name: "script", nodes: 1, script: true, image: false, passes: &["Any", "Script"] };
const COMMAND: Kind = Kind { name: "command", nodes: 2, script: false, image: false, passes: &["Any", "Command"] };
const IMAGE: Kind = Kind { name: "image", nodes: 1, script: false, image: true, passes: &["Image"] };

/// The failpoints of one job: its agents are killed at each.
#[derive(Clone, Debug, Default)]
struct Round {
    start: Option<String>,
    adopt: Option<String>,
    end: Option<String>,
}

fn every_point(kind: &'static Kind) {
    close();
    let rounds = rounds(kind);
    let clusters = (rounds.len() / CLUSTER_ROUNDS_MIN).clamp(1, PARALLEL_CLUSTERS_MAX);
    let rounds = Mutex::new(rounds);
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..clusters)
            .map(|_| {
                scope.spawn(|| {
                    let lane = Lane::new(kind);
                    loop {
                        let next = rounds.lock().unwrap().pop_front();
                        let Some(round) = next else { return };
                        lane.run(&round);
                    }
                })
            })
            .collect();
        let broken = lanes.into_iter().filter_map(|lane| lane.join().err()).next();
        if let Some(panic) = broken {
            std::panic::resume_unwind(panic);
        }
    });
}

/// The failpoints of one part that this kind of work passes, as the agent lists them.
fn points(part: &str, kind: &Kind) -> Vec<String> {
    let listed = process::run(Command::new(binaries().agent()).arg("failpoints"), JOB).unwrap().out();
    let fields = listed.lines().map(|l| l.split('\t').collect::<Vec<_>>());
    let found: Vec<String> = fields.filter(|f| f[0] == part && kind.passes.contains(&f[1])).map(|f| f[2].to_owned()).collect();
    assert!(!found.is_empty() || kind.image, "the agent lists no point of {part}: {listed}");
    found
}

/// Every failpoint of a job's life, up to three for each job.
fn rounds(kind: &Kind) -> VecDeque<Round> {
    let of = |part| points(part, kind).into_iter();
    let (mut start, mut adopt, mut end) = (of("Start"), of("Adopt"), of("End"));
    let mut rounds = VecDeque::new();
    loop {
        let round = Round { start: start.next(), adopt: adopt.next(), end: end.next() };
        if round.start.is_none() && round.adopt.is_none() && round.end.is_none() {
            return rounds;
        }
        rounds.push_back(round);
    }
}

/// A cluster with one more node for the caller: no work runs there, and its agent is not killed.
struct Lane {
    kind: &'static Kind,
    guard: Option<Guard>,
    dir: PathBuf,
    lattice: Lattice,
    victims: Vec<String>,
}

impl Lane {
    fn new(kind: &'static Kind) -> Self {
        Self::with_log_lines(kind, "")
    }

    fn with_log_lines(kind: &'static Kind, log_lines: &str) -> Self {
        binaries();
        let dir = fresh_dir(&format!("crash-{}", kind.name));
        let guard = Guard::new(&dir);
        let victims: Vec<String> = (1..=kind.nodes).map(|number| format!("n{number}")).collect();
        let caller = format!("n{}", kind.nodes + 1);
        let mut node_lines: Vec<_> = victims.iter().map(|victim| (victim.clone(), "roles: [api]".to_owned())).collect();
        node_lines.push((caller.clone(), "schedulable: false".to_owned()));
        let log_lines = log_lines.to_owned();
        let options = Options { build: false, grace_seconds: 2, log_lines, node_lines, ..Options::new(kind.nodes + 1, 1, &dir) };
        let cluster = up(&options).unwrap_or_else(|e| panic!("{e:#}"));
        let lattice = Lattice::to(&cluster, &caller).unwrap();
        Self { kind, guard: Some(guard), dir, lattice, victims }
    }

    fn cluster(&self) -> Cluster {
        Cluster::load(&self.dir).unwrap()
    }

    fn alive(&self) -> usize {
        self.cluster().nodes.iter().filter(|n| self.victims.contains(&n.id) && n.daemon.alive()).count()
    }

    fn kill(&self) {
        for node in self.cluster().nodes.iter().filter(|n| self.victims.contains(&n.id) && n.daemon.alive()) {
            // An agent may have died at its failpoint already.
            let _ = faults::kill_node(&self.dir, &node.id);
        }
    }

    /// Starts the victims' agents. They die at this failpoint, if there is one.
    fn start(&self, point: Option<&String>) {
        let env: Vec<(&str, &str)> = point.iter().map(|p| ("LATTICE_FAILPOINT", p.as_str())).collect();
        for node in &self.victims {
            faults::begin_node(&self.dir, node, &[], &env).unwrap_or_else(|e| panic!("{e:#}"));
        }
    }

    /// Waits until one agent has died at its failpoint, and kills the others in whatever state they are.
    fn dies(&self, point: &str, what: &str) {
        let died = process::until(FAILPOINT_TIMEOUT, || self.alive() < self.victims.len());
        assert!(died, "no agent reached {point} ({what})\n{}", self.logs());
        let expected = format!("failpoint {point}: this process kills itself");
        assert!(self.logs().contains(&expected), "an agent died, and not at {point}\n{}", self.logs());
        self.kill();
    }

    fn run(&self, round: &Round) {
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.killed_three_times(round))) {
            eprintln!("in {round:?} of a {}:\n{}", self.kind.name, self.logs());
            std::panic::resume_unwind(panic);
        }
    }

    fn killed_three_times(&self, round: &Round) {
        let folder = Folder::new("crash-job");
        std::fs::set_permissions(&folder.0, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let (ran, go) = (folder.0.join("ran"), folder.0.join("go"));
        let body = format!(
            "echo $LATTICE_NODE $LATTICE_REQUEUE_COUNT >> {}; while [ ! -e {} ]; do sleep 0.02; done; exit 7",
            ran.display(),
            go.display()
        );
        self.kill();
        self.start(round.start.as_ref());
        let id = self.submit(&folder.0, &body);
        if let Some(point) = &round.start {
            self.dies(point, &id);
            self.start(None);
        }
        self.wait("every rank to run", || lines(&ran).len() >= self.kind.nodes as usize);
        if let Some(point) = &round.adopt {
            self.kill();
            self.start(Some(point));
            self.dies(point, &id);
            self.start(None);
        }
        if let Some(point) = &round.end {
            self.kill();
            self.start(Some(point));
            std::fs::write(&go, "").unwrap();
            self.dies(point, &id);
            self.start(None);
        }
        std::fs::write(&go, "").unwrap();
        self.ends_as_expected(&id, &ran);
    }

    fn submit(&self, folder: &Path, body: &str) -> String {
        let nodes = self.kind.nodes.to_string();
        let mut args: Vec<String> = ["submit", "-o", "name", "--nodes", &nodes].map(str::to_owned).into();
        if self.kind.image {
            let path = folder.join("env.sqfs");
            image::write(&path, Path::new("/bin/true")).unwrap();
            // Another digest each time, so that it is copied each time.
            let mut file = std::fs::File::options().append(true).open(&path).unwrap();
            std::io::Write::write_all(&mut file, folder.to_string_lossy().as_bytes()).unwrap();
            args.extend(["--uenv".to_owned(), path.to_string_lossy().into_owned()]);
        }
        if self.kind.script {
            let path = folder.join("job.sh");
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            args.push(path.to_string_lossy().into_owned());
        } else {
            args.extend(["--", "/bin/sh", "-c", body].map(str::to_owned));
        }
        self.lattice.ok(&args).unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
    }

    fn ends_as_expected(&self, id: &str, ran: &Path) {
        let over = self.lattice.ended_within(id, JOB).unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!((text(&over, "state").as_str(), text(&over, "exit_code").as_str()), ("Failed", "7"), "{over}");
        assert_eq!(text(&over, "requeue_count"), "0", "{over}");
        let runs = lines(ran);
        assert_eq!(runs.len(), self.kind.nodes as usize, "each rank runs once: {runs:?}");
        let cluster = self.cluster();
        assert_eq!(down::leftovers_within(&cluster, Duration::from_secs(10)), Vec::<String>::new());
        for node in &self.victims {
            let agent = Lattice::to(&cluster, node).unwrap();
            self.wait("the node to have no allocation and no pending report", || {
                let status = agent.json(&["node", "status"]);
                status.is_ok_and(|s| s["allocations"] == serde_json::json!([]) && s["reports_pending"] == 0)
            });
        }
        let holds = self.lattice.json(&["nodes"]).unwrap().to_string();
        assert!(!holds.contains(id), "its shares are free again: {holds}");
    }

    fn wait(&self, what: &str, mut seen: impl FnMut() -> bool) {
        let done = process::until(JOB, || {
            assert!(lattice_lab::interrupt::came().is_none(), "interrupted");
            seen()
        });
        assert!(done, "waited {} s in vain for {what}", JOB.as_secs());
    }

    fn logs(&self) -> String {
        let cluster = self.cluster();
        let of = |d: &lattice_lab::cluster::Daemon| format!("--- the end of {}'s log\n{}\n", d.name, process::tail(&d.log, 20));
        cluster.daemons().map(of).collect()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(Err(e)) = self.guard.take().map(|g| g.kill(Duration::ZERO)) {
            eprintln!("a cluster of the crash test: {e:#}");
        }
    }
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// On a machine whose agent may not run work as root, failpoints cannot be armed.
fn refused() {
    close();
    let lane = Lane::new(&SCRIPT);
    let node = &lane.victims[0];
    configure(&lane.dir, node, "work: {allow_root: false}");
    lane.kill();
    lane.start(Some(&"gone-written".to_owned()));
    lane.wait("the agent to refuse to start", || lane.alive() == 0);
    assert!(lane.logs().contains("LATTICE_FAILPOINT is set: it is for tests"), "{}", lane.logs());
    configure(&lane.dir, node, "work: {allow_root: true}");
    lane.start(Some(&"nowhere".to_owned()));
    lane.wait("the agent to refuse an unknown failpoint", || lane.alive() == 0);
    assert!(lane.logs().contains("is no failpoint"), "{}", lane.logs());
}

/// The agent that holds a terminal is killed at each step: its caller gets an error, its programs get SIGHUP, and the
/// next terminal works.
fn every_point_of_a_terminal() {
    close();
    let lane = Lane::new(&SCRIPT);
    let folder = Folder::new("crash-terminal");
    std::fs::set_permissions(&folder.0, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let (ran, go) = (folder.0.join("ran"), folder.0.join("go"));
    let body = format!("echo run >> {}; while [ ! -e {} ]; do sleep 0.02; done; exit 7", ran.display(), go.display());
    let id = lane.submit(&folder.0, &body);
    lane.wait("it to run", || lines(&ran).len() == 1);
    let attach = || piped(lane.lattice.command(&["attach", &id, "--", "sh", "-c", "read x; echo got $x; exit 4"]), "it\n");
    let whole = (Some(4), "got it\n".to_owned(), String::new());
    for point in points("Terminal", &SCRIPT) {
        lane.kill();
        lane.start(Some(&point));
        let mut last = None;
        // The agent does not die at once: it first recovers its work, and its peers must see it again.
        let died = process::until(FAILPOINT_TIMEOUT, || {
            let outcome = attach();
            let dead = lane.alive() == 0;
            last = Some(outcome);
            dead
        });
        assert!(died, "no agent reached {point}: {last:?}\n{}", lane.logs());
        let (code, _, err) = last.unwrap();
        // At the last failpoint the caller may have received the end already.
        let is_reported = matches!(code, Some(5 | 125)) && err.contains("error: ");
        assert!(is_reported || (point == "terminal-closed" && code == Some(4)), "{point}: {code:?} {err}");
        lane.dies(&point, &id);
        lane.start(None);
        lane.wait("a terminal to work again", || attach() == whole);
        let left = || process_ids_in(&format!("alloc-{id}.scope/work/attach-"));
        lane.wait("the programs of the first terminal to end", || left().is_empty());
        assert_eq!(text(&lane.lattice.allocation(&id).unwrap(), "state"), "Running", "{point}");
    }
    std::fs::write(&go, "").unwrap();
    lane.ends_as_expected(&id, &ran);
}

/// The processes with this text in their cgroup's path.
fn process_ids_in(cgroup: &str) -> Vec<i32> {
    let within = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default().contains(cgroup);
    let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| within(*pid)).collect()
}

/// The agent is killed at each step of a flush, while output is written and after its end: each line is read once, from
/// the node and from the store.
fn every_point_of_a_flush() {
    close();
    let lane = Lane::with_log_lines(&SCRIPT, "logs: {flush_seconds: 1}");
    for point in points("Flush", &SCRIPT) {
        let folder = Folder::new("crash-flush");
        std::fs::set_permissions(&folder.0, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let ran = folder.0.join("ran");
        let body = format!(
            "echo run >> {}; for i in 0 1 2 3 4 5; do seq -f %09.0f $((i*20000+1)) $((i*20000+20000)); sleep 0.7; done; exit 7",
            ran.display()
        );
        lane.kill();
        lane.start(Some(&point));
        let id = lane.submit(&folder.0, &body);
        lane.dies(&point, &id);
        lane.start(None);
        lane.ends_as_expected(&id, &ran);
        let all = lane.cluster().run_dir.join(&lane.victims[0]).join("state/alloc");
        let entry = std::fs::read_dir(&all).unwrap().flatten().find(|e| e.file_name().to_string_lossy().starts_with(&id));
        let dir = entry.unwrap_or_else(|| panic!("{id} has no directory in {}", all.display())).path();
        lane.wait("all output to be in the store", || dir.join("flushed").exists());
        for from in ["the node", "the store"] {
            let read = lane.lattice.run(&["logs", &id], JOB).unwrap();
            let out = read.out();
            let wrong = out.lines().zip(1u32..).find(|(line, n)| *line != format!("{n:09}"));
            assert_eq!((wrong, out.lines().count(), read.err().as_str()), (None, 120_000, ""), "{point}, from {from}");
            if from == "the node" {
                std::fs::remove_dir_all(&dir).unwrap();
            }
        }
    }
}
