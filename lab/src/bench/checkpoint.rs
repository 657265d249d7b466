//! `bench checkpoint`: how long work takes to notice that it is asked to save itself, how fast what it saves is in the store, and how
//! soon preempted nodes are free.
//!
//! ```text
//!   n1 … n4   one allocation of 64 processes, which is preempted and resumed
//!   n5, n6    one allocation for each way of being asked, and one that saves a large file
//! ```
//!
//! A request's time is taken directly before the call, on a channel that is open; that of the notice by the program itself
//! ([`crate::asked`]). Both have one clock: all of it is one machine.

mod bulk;

use super::figures::{Figure, Report, Target};
use super::options::Options;
use super::subject::{self, Subject};
use super::surroundings::wait_running;
use crate::asked::{self, Mode, Told};
use crate::binaries::Binaries;
use crate::cluster::Cluster;
use crate::down::{self, Guard};
use crate::interrupt;
use crate::lattice::{Lattice, text};
use crate::machine::{self, Machine};
use crate::process::until;
use crate::up::{self, Options as UpOptions};
use anyhow::{Context, Result, ensure};
use bulk::Bulk;
use lattice_api::client::Client;
use lattice_api::v1;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use uuid::Uuid;

/// From the request until the program notices, in milliseconds.
const SHMEM_MS: f64 = 1.0;
const SIGNAL_MS: f64 = 2.0;
const GRPC_MS: f64 = 5.0;
/// What may be added where another agent is asked than the one that runs it.
const ELSEWHERE_MS: f64 = 10.0;
/// What cp and zstd take one after the other, in parts of which a checkpoint may take: 80 % of their rate.
const BULK_RATIO: f64 = 1.0 / 0.8;
/// From a preemption until its nodes are free, in milliseconds.
const FREED_MS: f64 = 500.0;
/// The allocation that is preempted.
const WIDE_NODES: u32 = 4;
const WIDE_TASKS: usize = 16;
/// Those for the rest.
const MORE_NODES: u32 = 2;
/// Bytes of the large file, in millions, where nobody says how many.
const MEGABYTES: u32 = 1000;
/// What takes milliseconds is measured so much more often than what takes seconds.
const QUICK: usize = 4;
/// What is asked for is over by then, or fails.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two looks at whether nodes are free.
const LOOK: Duration = Duration::from_millis(2);

/// Starts what is needed, measures, and takes it away again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    ensure!(machine.root, "bench checkpoint makes scopes, by which callers are known: run it as root");
    let zstd = machine::find("zstd").context("zstd (Debian's package zstd) is not installed, and it is what is compared with")?;
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-checkpoint-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let nodes = WIDE_NODES + MORE_NODES;
    let guard = Guard::new(dir);
    eprintln!("bench: starting a member and {nodes} agents");
    let cluster = up::up(&UpOptions { build: false, grace_seconds: 2, ..UpOptions::new(nodes, 1, dir) }.with_audit_as_documented())?;
    let megabytes = options.megabytes.unwrap_or(MEGABYTES);
    let mut notes = vec![
        "zstd at level 3, one thread, from a file to a file, as the agent compresses; the agent also hashes all of it (BLAKE3), as the peer \
         of that name does alone. Everything is on one file system, what was written before is on its disk when one begins, and what is made \
         last when it ends, as the agent has it"
            .to_owned(),
    ];
    let measured = measure(&cluster, &zstd, megabytes, options, &mut notes);
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    Ok(Report { bench: "checkpoint", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures: measured?, notes })
}

fn measure(cluster: &Cluster, zstd: &Path, megabytes: u32, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asker = |mode| Asked::begin(cluster, &runtime, mode, &["--nodes", "1", "--cores", "1"], 1);
    // First: it takes whole nodes.
    let tasks = WIDE_TASKS.to_string();
    let shape = ["--nodes".to_owned(), WIDE_NODES.to_string(), "--tasks-per-node".to_owned(), tasks];
    let wide = Asked::begin(
        cluster,
        &runtime,
        Mode::Signal,
        &shape.iter().map(String::as_str).collect::<Vec<_>>(),
        WIDE_NODES as usize * WIDE_TASKS,
    )?;
    let (shmem, signal, grpc) = (asker(Mode::Shmem)?, asker(Mode::Signal)?, asker(Mode::Grpc)?);
    // Before there is anything large, which is on its way to the disk for long after it was written.
    let mut quick = vec![
        Subject::new("shmem", || shmem.noticed(&shmem.here)),
        Subject::new("signal", || signal.noticed(&signal.here)),
        Subject::new("grpc", || grpc.noticed(&grpc.here)),
        Subject::new("shmem elsewhere", || shmem.noticed(&shmem.elsewhere)),
        Subject::new("signal elsewhere", || signal.noticed(&signal.elsewhere)),
        Subject::new("grpc elsewhere", || grpc.noticed(&grpc.elsewhere)),
        Subject::new("preempt", || wide.freed()),
    ];
    subject::rounds(&mut quick, options.rounds * QUICK)?;
    let bulk = Bulk::new(cluster, zstd, megabytes, asker(Mode::Shmem)?)?;
    let mut large = vec![
        Subject::new("random", || bulk.saved(bulk.random())),
        Subject::new("random cp", || bulk.copied(bulk.random())),
        Subject::new("random zstd", || bulk.compressed(bulk.random())),
        Subject::new("random both", || bulk.both(bulk.random())),
        Subject::new("zeros", || bulk.saved(bulk.zeros())),
        Subject::new("zeros cp", || bulk.copied(bulk.zeros())),
        Subject::new("zeros zstd", || bulk.compressed(bulk.zeros())),
        Subject::new("zeros both", || bulk.both(bulk.zeros())),
        Subject::new("hashed", || bulk.hashed(bulk.random())),
    ];
    subject::rounds(&mut large, options.rounds)?;
    let subjects: Vec<Subject> = quick.into_iter().chain(large).collect();
    notes.extend(subject::failures(&subjects));
    figures(&subjects, megabytes, notes)
}

fn figures(subjects: &[Subject], megabytes: u32, notes: &[String]) -> Result<Vec<Figure>> {
    let of = |name: &str| subject::samples(subjects, name);
    let need = |name: &str| of(name).with_context(|| format!("{name}: every try failed: {}", notes.join("; ")));
    let at_most = |value, why: &str| Some(Target::AtMost { value, why: why.to_owned() });
    let mut figures = Vec::new();
    for (way, here, elsewhere, ms) in [
        ("shared memory", "shmem", "shmem elsewhere", SHMEM_MS),
        ("a signal", "signal", "signal elsewhere", SIGNAL_MS),
        ("a call", "grpc", "grpc elsewhere", GRPC_MS),
    ] {
        let name = format!("asked by {way}, until the program notices");
        figures.push(Figure::new(&name, "ms", need(here)?, vec![], at_most(ms, "the request is at its own agent")));
        let name = format!("the same through another agent, by {way}");
        let peers = vec![("at its own agent", of(here))];
        figures.push(Figure::new(&name, "ms", need(elsewhere)?, peers, at_most(ms + ELSEWHERE_MS, "10 ms more")));
    }
    let both = "cp, and zstd of the copy";
    for (what, subject) in [("that nothing packs", "random"), ("seven eighths zeros", "zeros")] {
        let peer = |name: &str| of(&format!("{subject} {name}"));
        let mut peers = vec![(both, peer("both")), ("cp alone", peer("cp")), ("zstd alone", peer("zstd"))];
        if subject == "random" {
            peers.push(("BLAKE3 alone", of("hashed")));
        }
        let name = format!("{megabytes} MB, {what}, from saved until complete");
        let target = Target::RatioTo { peer: both.to_owned(), at_most: BULK_RATIO };
        figures.push(Figure::new(&name, "ms", need(subject)?, peers, Some(target)));
    }
    let name = format!("preempted until its nodes are free, {} processes on {WIDE_NODES} nodes", WIDE_NODES as usize * WIDE_TASKS);
    figures.push(Figure::new(&name, "ms", need("preempt")?, vec![], at_most(FREED_MS, "they save themselves at once")));
    Ok(figures)
}

/// An allocation that is asked, and the ways to it.
struct Asked<'a> {
    id: String,
    /// Where its processes tell.
    dir: PathBuf,
    processes: usize,
    lattice: Lattice,
    runtime: &'a Runtime,
    /// To the agent of its first node, and to one that has no part of it.
    here: Client,
    elsewhere: Client,
}

impl<'a> Asked<'a> {
    /// Until all its processes hear.
    fn begin(cluster: &Cluster, runtime: &'a Runtime, mode: Mode, shape: &[&str], processes: usize) -> Result<Self> {
        let dir = cluster.dir.join(format!("asked-{}", Uuid::new_v4()));
        fs::create_dir(&dir)?;
        let asks = format!("--checkpoint={}", mode.name());
        let (program, at) = (cluster.binaries.join("lattice-lab"), dir.to_string_lossy());
        let program = program.to_string_lossy();
        let lattice = Lattice::to(cluster, "n1")?;
        let fixed = ["submit", "-o", "name", "--name", mode.name(), "--walltime", "4h", &asks];
        let id = lattice
            .ok(&[&fixed[..], shape, &["--", &program, "asked", "--mode", mode.name(), "--dir", &at][..]].concat())?
            .trim()
            .to_owned();
        wait_running(&lattice, &id)?;
        let now = lattice.allocation(&id)?;
        let nodes: Vec<String> =
            now["nodes"].as_array().context("its nodes")?.iter().filter_map(|n| n.as_str()).map(str::to_owned).collect();
        let head = nodes.first().context("it has no node")?;
        let other = cluster.nodes.iter().find(|node| !nodes.contains(&node.id)).context("every node has a part of it")?;
        let connect = |node: &str| -> Result<Client> {
            let endpoint = format!("unix:{}", cluster.node(node)?.socket.display());
            Ok(runtime.block_on(Client::connect(&endpoint))?)
        };
        let (here, elsewhere) = (connect(head)?, connect(&other.id)?);
        let asked = Self { id, dir, processes, lattice, runtime, here, elsewhere };
        asked.ready(processes)?;
        Ok(asked)
    }

    /// Until so many processes, of all its lives together, have said that they hear.
    fn ready(&self, processes: usize) -> Result<()> {
        let ready = until(PATIENCE, || interrupt::came().is_some() || asked::told(&self.dir).is_ok_and(|(ready, _)| ready >= processes));
        interrupt::check()?;
        ensure!(ready, "of allocation {} {} processes hear, of {processes}", self.id, asked::told(&self.dir)?.0);
        Ok(())
    }

    /// Asks, until the checkpoint is complete. Gives its id, when it was asked for and when it was complete, and what the program says.
    fn complete(&self, through: &Client) -> Result<Complete> {
        let before = asked::told(&self.dir)?.1;
        let id = Uuid::new_v4().to_string();
        let request = v1::CheckpointRequest { id: id.clone(), allocation: self.id.clone(), deadline_ms: 0 };
        let mut client = through.allocations();
        let (asked_ns, over_ns) = self.runtime.block_on(async {
            let asking = async {
                let asked_ns = asked::now_ns();
                let mut events = client.checkpoint(request).await?.into_inner();
                while let Some(event) = events.message().await? {
                    if event.over {
                        let over_ns = asked::now_ns();
                        ensure!(event.complete && event.id == id, "checkpoint {}: {} {}", event.id, event.state, event.detail);
                        return Ok((asked_ns, over_ns));
                    }
                }
                anyhow::bail!("nothing more was told of the checkpoint")
            };
            tokio::time::timeout(PATIENCE, asking).await.context("no checkpoint came about")?
        })?;
        let told = asked::told(&self.dir)?.1.filter(|told| Some(*told) != before).context("the program has not noticed")?;
        Ok(Complete { id, asked_ns, over_ns, told })
    }

    /// From asking until the program notices.
    fn noticed(&self, through: &Client) -> Result<Duration> {
        let done = self.complete(through)?;
        let took = done.told.noticed_ns.checked_sub(done.asked_ns).context("it noticed before it was asked: the clock was set")?;
        Ok(Duration::from_nanos(took))
    }

    /// From preempting it until the quorum has nothing of it on its nodes any more. It is resumed behind that.
    fn freed(&self) -> Result<Duration> {
        let now = self.lattice.allocation(&self.id)?;
        let nodes: Vec<String> =
            now["nodes"].as_array().context("its nodes")?.iter().filter_map(|n| n.as_str()).map(str::to_owned).collect();
        ensure!(nodes.len() == WIDE_NODES as usize, "it does not run: {now}");
        let id = Uuid::new_v4().to_string();
        let order = v1::PreemptRequest {
            key: self.id.clone(),
            id: id.clone(),
            deadline_ms: 60_000,
            reason: "the bench's".to_owned(),
            hold: true,
            kill: false,
        };
        let (mut client, mut listing) = (self.here.allocations(), self.here.nodes());
        let took = self.runtime.block_on(async {
            let freed = async {
                let began = Instant::now();
                client.preempt(order).await?;
                // What is on nodes and what is on its way off them are of two moments in a list: seen twice, nothing is.
                let mut free_at = None;
                loop {
                    let listed = listing.list(v1::ListNodesRequest::default()).await?.into_inner().nodes;
                    let held = listed.iter().filter(|n| nodes.contains(&n.id)).any(|n| n.committed.as_ref().is_some_and(|c| c.cores > 0));
                    match free_at {
                        _ if held => free_at = None,
                        None => free_at = Some(began.elapsed()),
                        Some(took) => return anyhow::Ok(took),
                    }
                    tokio::time::sleep(LOOK).await;
                }
            };
            tokio::time::timeout(PATIENCE, freed).await.context("its nodes do not come free")?
        })?;
        let now = self.lattice.allocation(&self.id)?;
        ensure!(text(&now, "state") == "Suspended" && text(&now["checkpoint"], "id") == id, "it did not save itself: {now}");
        let (ready, _) = asked::told(&self.dir)?;
        self.lattice.ok(&["resume", self.id.as_str()])?;
        wait_running(&self.lattice, &self.id)?;
        self.ready(ready + self.processes)?;
        Ok(took)
    }
}

/// A checkpoint, as it went.
struct Complete {
    id: String,
    asked_ns: u64,
    over_ns: u64,
    told: Told,
}
