//! `lattice-lab demo`: shows what the README promises.
//!
//! A job runs on three nodes. An agent is killed and started again, the leader of the quorum is killed, and the job
//! ends as if nothing had happened, with every line of its log. The demo fails if anything differs from the promise.

mod lines;

use crate::cluster::Cluster;
use crate::down::{self, Guard};
use crate::image::{self, Ring};
use crate::lattice::{ANSWER_LIMIT, Lattice, text};
use crate::machine::Machine;
use crate::process::until;
use crate::up::{self, Options};
use crate::{faults, interrupt};
use anyhow::{Context, Result, bail, ensure};
pub use lines::Lines;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const NODES: u32 = 3;
const TASKS_PER_NODE: u32 = 2;
const LINES: u32 = 100;
const INTERVAL_MS: u32 = 100;
/// With a majority, submitting must work again within this time after the leader's end.
const SUBMIT_AGAIN_LIMIT: Duration = Duration::from_secs(3);

/// Prints what happens, with the seconds since the start.
struct Story {
    began: Instant,
}

impl Story {
    fn print(&self, text: &str) {
        println!("[{:5.1} s] {text}", self.began.elapsed().as_secs_f64());
    }

    fn show(&self, text: &str) {
        for line in text.lines() {
            println!("          | {line}");
        }
    }
}

/// Runs the demo in `dir`, or in a temporary directory that is removed again.
pub fn run(dir: Option<PathBuf>, build: bool) -> Result<()> {
    let machine = Machine::look();
    println!("Lattice in one demo: a job on three nodes survives the loss of an agent and of the quorum's leader.");
    println!(
        "Three agents and three members run on this machine ({} cores, Linux {}), as if each had its own.",
        machine.cores, machine.kernel
    );
    for lack in machine.lacks() {
        println!("  DEGRADED here: {lack}");
    }
    let binaries = crate::binaries::Binaries::beside_lab()?;
    if build {
        binaries.build()?;
    }
    let dir = dir.unwrap_or_else(|| std::env::temp_dir().join(format!("lattice-demo-{}", std::process::id())));
    interrupt::watch();
    let story = Story { began: Instant::now() };
    let options = Options { build: false, grace_seconds: 5, ..Options::new(NODES, 3, &dir) };
    let guard = Guard::new(&options.dir);
    let done = act(&story, &machine, &options);
    if interrupt::came().is_some() {
        story.print("Interrupted. Removing the cluster.");
    } else if done.is_err() {
        story.print("Not as promised. Removing the cluster.");
        print_logs(&story, &dir);
    }
    let report = if dir.join("cluster.json").exists() { guard.down(Duration::from_secs(10)) } else { Ok(down::Report::default()) };
    done?;
    let report = report?;
    down::require_gone(&report)?;
    ensure!(
        report.clean(),
        "the cluster did not clean up completely; the demo removed: {}",
        [report.killed, report.swept].concat().join("; ")
    );
    story.print("The cluster is gone: no process, mount, loop device or scope is left.");
    println!("All of it as promised, in {:.0} s.", story.began.elapsed().as_secs_f64());
    if !machine.lacks().is_empty() {
        println!("Steps that this machine cannot run were left out: see DEGRADED above.");
    }
    Ok(())
}

fn act(story: &Story, machine: &Machine, options: &Options) -> Result<()> {
    story.print("Starting three members of the quorum and three agents, with certificates of their own CA.");
    let cluster = up::up(options)?;
    let dir = &cluster.dir;
    let lattice = Lattice::to(&cluster, "n1")?;
    story.print(&format!("All {NODES} nodes are Ready. `. {}/env` lets your own shell talk to them.", dir.display()));

    let ring = Ring::make(machine, dir)?;
    let uenv = if machine.can_mount() {
        let image = dir.join("env.sqfs");
        image::write(&image, ring.program())?;
        let kib = std::fs::metadata(&image)?.len() / 1024;
        story.print(&format!("Made a software environment, {kib} KiB of SquashFS, with {} in it.", ring.describe()));
        Some(image)
    } else {
        story.print(&format!("No image can be mounted here, so {} runs from its own path.", ring.describe()));
        None
    };
    let job = submit_ring(&lattice, &ring, uenv.as_deref())?;
    let short = job.get(..8).unwrap_or(&job);
    let ranks = NODES * TASKS_PER_NODE;
    story.print(&format!(
        "Submitted job {short}: {NODES} nodes × {TASKS_PER_NODE} tasks = {ranks} ranks in one world, without mpirun or ssh."
    ));

    let follower = Follower::start(&lattice, &job)?;
    follower.wait_for(&lattice, &job, (ranks * 10) as usize)?;
    story.print("Its log comes in, each line with its rank:");
    story.show(&follower.first(4));

    story.print("kill -9 to the agent of n2, in the middle of the job. The ranks belong to their shim, not to the agent.");
    faults::kill_node(dir, "n2")?;
    let before = follower.count();
    follower
        .wait_for(&lattice, &job, before + (ranks * 5) as usize)
        .context("the log of the other nodes stopped while n2's agent was down")?;
    let pid = faults::start_node(dir, "n2")?;
    story.print(&format!(
        "The agent of n2 is back as process {pid}; it found its shim and adopted the job. {} lines so far.",
        follower.count()
    ));

    let second = kill_leader(story, &cluster, &lattice)?;

    story.print("Waiting for the job to end.");
    let ended = lattice.ended_within(&job, Duration::from_secs(40))?;
    let (state, code) = (text(&ended, "state"), text(&ended, "exit_code"));
    ensure!(
        state == "Completed" && code == "0",
        "job {short} ended as {state}, exit code {code:?}, {}: it should have completed",
        text(&ended, "reason")
    );
    let followed = follower.finish(Duration::from_secs(10))?;
    followed.complete(ranks, LINES).context("the followed log")?;
    let mut whole = Lines::default();
    lattice.ok(&["logs", "--label", &job])?.lines().for_each(|l| whole.take(l));
    whole.complete(ranks, LINES).context("`lattice logs` after the end")?;
    story.print(&format!(
        "It completed with exit code 0. Counted: {} of {} lines, followed and read again, none missing, doubled or out of order.",
        whole.count(),
        ranks * LINES
    ));
    let after = lattice.ended_within(&second, Duration::from_secs(20))?;
    ensure!(text(&after, "state") == "Completed", "the job submitted without the old leader ended as {}", text(&after, "state"));
    story.print("The job that was submitted meanwhile ran as well, as soon as a node was free.");
    for command in [&["status", "--all"][..], &["nodes"], &["audit", "verify"]] {
        story.print(&format!("lattice {}", command.join(" ")));
        let shown = lattice.run(command, ANSWER_LIMIT)?;
        ensure!(shown.code() == 0, "`lattice {}` ended with {}: {}", command.join(" "), shown.code(), shown.err().trim());
        story.show(&(shown.out() + &shown.err()));
    }
    let left = down::leftovers_within(&cluster, Duration::from_secs(5));
    ensure!(left.is_empty(), "the jobs ended, but this is left of them: {}", left.join("; "));
    Ok(())
}

fn submit_ring(lattice: &Lattice, ring: &Ring, uenv: Option<&Path>) -> Result<String> {
    let (nodes, tasks) = (NODES.to_string(), TASKS_PER_NODE.to_string());
    let mut args: Vec<String> =
        ["submit", "-o", "name", "--name", "ring", "--nodes", &nodes, "--tasks-per-node", &tasks, "--walltime", "2m"]
            .map(str::to_owned)
            .into();
    if let Some(image) = uenv {
        args.extend(["--uenv".to_owned(), image.to_string_lossy().into_owned()]);
    }
    args.push("--".to_owned());
    args.extend(ring.argv(LINES, INTERVAL_MS, uenv.is_some()));
    Ok(lattice.ok(&args)?.trim().to_owned())
}

/// Kills the leader and submits a job as soon as that works again; returns the job's id.
fn kill_leader(story: &Story, cluster: &Cluster, lattice: &Lattice) -> Result<String> {
    let mut leader = None;
    until(Duration::from_secs(5), || {
        leader = lattice.leader().ok().flatten();
        leader.is_some()
    });
    let leader = leader.context("`lattice quorum status` names no leader")?;
    story.print(&format!("kill -9 to member {leader}, the leader of the quorum. Two of three are a majority."));
    faults::kill_member(&cluster.dir, leader)?;
    let killed = Instant::now();
    let mut refused = 0;
    let submitted = loop {
        interrupt::check()?;
        let tried = lattice.run(&["submit", "-o", "name", "--name", "meanwhile", "--", "/bin/true"], SUBMIT_AGAIN_LIMIT)?;
        if tried.code() == 0 {
            break tried.out().trim().to_owned();
        }
        refused += 1;
        if killed.elapsed() > SUBMIT_AGAIN_LIMIT {
            bail!("{} s after the leader's end submitting still fails: {}", SUBMIT_AGAIN_LIMIT.as_secs(), tried.err().trim());
        }
    };
    let took = killed.elapsed();
    ensure!(took <= SUBMIT_AGAIN_LIMIT, "submitting worked again only {:.1} s after the leader's end", took.as_secs_f64());
    story.print(&format!(
        "A new leader accepted a submission {:.1} s later{}. The running job noticed nothing.",
        took.as_secs_f64(),
        if refused > 0 { format!(" ({refused} refused before, never lost)") } else { String::new() }
    ));
    Ok(submitted)
}

fn print_logs(story: &Story, dir: &Path) {
    let Ok(cluster) = Cluster::load(dir) else { return };
    for daemon in cluster.daemons().filter(|d| d.log.exists()) {
        story.print(&format!("the end of {}'s log:", daemon.name));
        story.show(&crate::process::tail(&daemon.log, 6));
    }
}

/// `lattice logs -f --label`, read while it runs.
struct Follower {
    child: Child,
    lines: Arc<Mutex<Lines>>,
    reader: Option<std::thread::JoinHandle<()>>,
    errors: Option<std::thread::JoinHandle<String>>,
}

impl Follower {
    fn start(lattice: &Lattice, job: &str) -> Result<Self> {
        let mut child =
            lattice.command(&["logs", "-f", "--label", job]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let lines = Arc::new(Mutex::new(Lines::default()));
        let shared = Arc::clone(&lines);
        let out = child.stdout.take().context("no pipe")?;
        let mut err = child.stderr.take().context("no pipe")?;
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Ok(mut lines) = shared.lock() {
                    lines.take(&line);
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        Ok(Self { child, lines, reader: Some(reader), errors: Some(errors) })
    }

    fn count(&self) -> usize {
        self.lines.lock().map_or(0, |l| l.count())
    }

    fn first(&self, n: usize) -> String {
        self.lines.lock().map(|l| l.first(n)).unwrap_or_default()
    }

    /// Waits until this many lines have arrived; fails as soon as the job has ended without them.
    fn wait_for(&self, lattice: &Lattice, job: &str, lines: usize) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.count() < lines {
            interrupt::check()?;
            let now = lattice.allocation(job)?;
            let state = text(&now, "state");
            if matches!(state.as_str(), "Completed" | "Failed" | "Cancelled") {
                let log = lattice.run(&["logs", job], ANSWER_LIMIT)?;
                bail!(
                    "the job is {state} already ({}), after {} lines; its log: {}",
                    text(&now, "reason"),
                    self.count(),
                    (log.out() + &log.err()).trim()
                );
            }
            if Instant::now() > deadline {
                bail!("after 20 s only {} lines have arrived, the job is {state} ({})", self.count(), text(&now, "reason"));
            }
            until(Duration::from_millis(200), || self.count() >= lines);
        }
        Ok(())
    }

    /// Waits for the follower's end: it ends by itself when the job has ended and all lines were sent.
    fn finish(mut self, limit: Duration) -> Result<Lines> {
        let mut status = None;
        until(limit, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        let Some(status) = status else { bail!("`lattice logs -f` still runs {} s after the end of the job", limit.as_secs()) };
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let stderr = self.errors.take().and_then(|e| e.join().ok()).unwrap_or_default();
        ensure!(status.success(), "`lattice logs -f` ended with {status}: {}", stderr.trim());
        let lines = self.lines.lock().map(|l| l.clone()).unwrap_or_default();
        Ok(lines)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
