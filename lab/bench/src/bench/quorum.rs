//! `bench quorum`: three members on loopback with TLS and fdatasync, compared with etcd in the same setup and run.
//!
//! ```text
//!   agents register (10,000 sessions) ─▶ their heartbeats ─▶ rounds: puts, claims, submissions, interleaved
//!      ─▶ leaders killed ─▶ the state filled ─▶ a snapshot under commits ─▶ all members started again
//! ```

pub(super) mod commits;
mod etcd;
mod load;
mod state;
mod targets;

use super::figures::{Figure, Report, Samples, Target};
use anyhow::{Context, Result};
use commits::{Claimer, Room, Submitted, Submitter};
use etcd::Etcd;
use lattice_lab::binaries::Binaries;
use lattice_lab::down::{self, Guard};
use lattice_lab::interrupt;
use lattice_lab::machine::{self, Machine};
use lattice_lab::quorum::agents::Agents;
use lattice_lab::quorum::members::{Members, Timers};
use load::{Client, Load};
use nix::sys::signal::Signal;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use targets::{MANY, at_most, lattice_timers, need, one};

/// etcd's defaults, given to both.
const EQUAL: Timers = Timers { heartbeat_ms: 100, election_ms: 1000 };
/// How long one system is loaded in one round.
const ROUND: Duration = Duration::from_millis(1500);
/// Allocations that wait to be claimed before a round: more than are claimed in one.
const WAITING: usize = 25_000;
/// Simulated agents, and their heartbeat interval.
const AGENTS: usize = 10_000;
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long the leader's processor time is measured.
const WATCHED: Duration = Duration::from_secs(10);
/// Leaders that are killed in each system.
const FAILOVERS: usize = 3;
/// Allocations in the state whose size is measured.
const ALLOCATIONS: usize = 100_000;

const ONE_CLAIM_RATIO: f64 = 1.0;
const MANY_RATE_RATIO: f64 = 1.2;
const MANY_WORK_RATIO: f64 = 1.5;
const FAILOVER_RATIO: f64 = 1.0;
const FAILOVER_MS: f64 = 1000.0;
const HEARTBEATS_PERCENT: f64 = 1.0;
const SUBMISSIONS: f64 = 5000.0;

const ETCD_ONE: &str = "etcd put, at its leader";
const ETCD_MANY: &str = "etcd put, 64 clients";
const ETCD_FAILOVER: &str = "etcd, the same timers";

/// Starts the systems, measures, and removes them again.
pub fn run(dir: Option<&Path>, options: &super::options::Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let mut notes = Vec::new();
    let guard = Guard::new(dir);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime")?;
    let measured = runtime.block_on(measure(dir, options.rounds(), &mut notes));
    drop(runtime);
    let report = guard.down(Duration::ZERO)?;
    down::require_gone(&report)?;
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    Ok(Report { bench: "quorum", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures: measured?, notes })
}

async fn measure(dir: &Path, rounds: usize, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    eprintln!("bench: starting three members");
    let mut members = Members::start_as(Members::options(dir, EQUAL, "").with_audit_as_documented()).await?;
    let mut figures = vec![heartbeats(&members).await?];
    let etcd = match machine::find("etcd") {
        Some(program) => {
            eprintln!("bench: starting etcd");
            Some(Etcd::start(program, &members.cluster, members.tls.clone(), EQUAL).await?)
        }
        None => {
            notes.push("etcd is not installed: not compared with it".to_owned());
            None
        }
    };
    figures.extend(commits(&members, etcd.as_ref(), rounds).await?);
    figures.extend(failovers(&mut members, etcd).await?);
    figures.extend(state::measure(&mut members, ALLOCATIONS).await?);
    Ok(figures)
}

/// Registers the nodes, and measures the leader's cost of their heartbeats.
async fn heartbeats(members: &Members) -> Result<Figure> {
    let leader = members.leader().await?;
    let idle = processor_percent(members.pid(leader)?, WATCHED / 2).await?;
    eprintln!("bench: {AGENTS} agents register");
    let mut agents = Agents::open(members, AGENTS, HEARTBEAT).await?;
    // The first round of heartbeats makes them Ready, which is committed.
    tokio::time::sleep(HEARTBEAT + Duration::from_secs(2)).await;
    let (before, began) = (agents.acknowledged(), Instant::now());
    let busy = processor_percent(members.pid(leader)?, WATCHED).await?;
    agents.check()?;
    let rate = (agents.acknowledged() - before) as f64 / began.elapsed().as_secs_f64();
    eprintln!("bench: {rate:.0} heartbeats acknowledged a second, {idle:.2} % of a core without them and {busy:.2} % with them");
    let name = format!("heartbeats of {AGENTS} agents every {} s: the leader's processor", HEARTBEAT.as_secs());
    let samples = one((busy - idle).max(0.0))?;
    Ok(Figure::new(&name, "%", samples, vec![("without them", Some(one(idle)?))], Some(at_most(HEARTBEATS_PERCENT, "of one core"))))
}

async fn processor_percent(pid: i32, during: Duration) -> Result<f64> {
    let (began, used) = (Instant::now(), machine::processor_time(pid)?);
    tokio::time::sleep(during).await;
    interrupt::check()?;
    Ok((machine::processor_time(pid)? - used).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

/// The measurements of one kind of command.
#[derive(Default)]
struct Measured {
    p50_ms: Vec<f64>,
    rate: Vec<f64>,
    /// Commands for each second of the members' processor time.
    work: Vec<f64>,
}

impl Measured {
    fn add(&mut self, load: &Load, processor: Duration) {
        self.p50_ms.push(load.quantile(0.5));
        self.rate.push(load.rate());
        self.work.push(load.latencies_ms.len() as f64 / processor.as_secs_f64().max(1e-3));
    }
}

async fn round<C: Client>(pids: &[i32], clients: &mut Vec<C>, into: Option<&mut Measured>) -> Result<()> {
    interrupt::check()?;
    let used = || pids.iter().map(|p| machine::processor_time(*p)).sum::<Result<Duration>>();
    let before = used()?;
    let load = load::run(clients, ROUND).await?;
    let processor = used()? - before;
    if let Some(into) = into {
        into.add(&load, processor);
    }
    Ok(())
}

async fn commits(members: &Members, etcd: Option<&Etcd>, rounds: usize) -> Result<Vec<Figure>> {
    let (submitted, claimed) = (Submitted::default(), Submitted::default());
    let room = Arc::new(Room::new(&members.client()?).await?);
    let clients = (0..MANY).map(|_| members.client()).collect::<Result<Vec<_>>>()?;
    let mut submitters: Vec<_> = clients.iter().map(|c| Submitter::new(c.clone(), &submitted)).collect();
    let mut claimers: Vec<_> = clients.iter().map(|c| Claimer::new(c.clone(), &room, &submitted, &claimed)).collect();
    let mut claimer = vec![Claimer::new(members.client()?, &room, &submitted, &claimed)];
    let (mut putter, mut putters) = (Vec::new(), Vec::new());
    if let Some(etcd) = etcd {
        putter.push(etcd.client(etcd.leader().await?, MANY)?);
        putters = (0..MANY).map(|i| etcd.client(i % etcd.len(), i)).collect::<Result<_>>()?;
    }
    let (ours, theirs) = (members.pids(), etcd.map(Etcd::pids).unwrap_or_default());
    let [mut one_claim, mut claims, mut submissions, mut one_put, mut puts] = std::array::from_fn(|_| Measured::default());
    for number in 0..=rounds {
        // Claims are faster than submissions, and a claimer must always find an allocation to claim.
        while submitted.lock().unwrap_or_else(PoisonError::into_inner).len() < WAITING {
            round(&ours, &mut submitters, None).await?;
        }
        // The first round warms connections up and does not count.
        let counts = |m| (number > 0).then_some(m);
        round(&ours, &mut submitters, counts(&mut submissions)).await?;
        if etcd.is_some() {
            round(&theirs, &mut putters, counts(&mut puts)).await?;
        }
        round(&ours, &mut claimers, counts(&mut claims)).await?;
        if etcd.is_some() {
            round(&theirs, &mut putter, counts(&mut one_put)).await?;
        }
        round(&ours, &mut claimer, counts(&mut one_claim)).await?;
        commits::end_all(&clients, &claimed).await?;
        let last = |m: &Measured| (m.p50_ms.last().copied().unwrap_or(0.0), m.rate.last().copied().unwrap_or(0.0));
        eprintln!(
            "bench: round {number} of {rounds}: one claim {:.2} ms, one put {:.2} ms; 64 clients: {:.0} claims, {:.0} submissions, {:.0} puts a second",
            last(&one_claim).0,
            last(&one_put).0,
            last(&claims).1,
            last(&submissions).1,
            last(&puts).1
        );
    }
    let peer = |values: &[f64]| Samples::of(values.to_vec(), 0);
    Ok(vec![
        Figure::new(
            "one claim with one client, median",
            "ms",
            need(one_claim.p50_ms)?,
            vec![(ETCD_ONE, peer(&one_put.p50_ms))],
            Some(Target::RatioTo { peer: ETCD_ONE.to_owned(), at_most: ONE_CLAIM_RATIO }),
        ),
        Figure::new(
            "claims with 64 clients",
            "/s",
            need(claims.rate)?,
            vec![(ETCD_MANY, peer(&puts.rate))],
            Some(Target::RatioAtLeast { peer: ETCD_MANY.to_owned(), at_least: MANY_RATE_RATIO }),
        ),
        Figure::new(
            "claims with 64 clients, for a second of the members' processors",
            "/s",
            need(claims.work)?,
            vec![(ETCD_MANY, peer(&puts.work))],
            Some(Target::RatioAtLeast { peer: ETCD_MANY.to_owned(), at_least: MANY_WORK_RATIO }),
        ),
        Figure::new(
            "durable submissions with 64 clients",
            "/s",
            need(submissions.rate)?,
            vec![(ETCD_MANY, peer(&puts.rate))],
            Some(Target::AtLeast { value: SUBMISSIONS, why: "Slurm on such a machine: 282".to_owned() }),
        ),
    ])
}

/// From SIGKILL of the leader until the surviving members commit the next command.
async fn failovers(members: &mut Members, mut etcd: Option<Etcd>) -> Result<Vec<Figure>> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for number in 1..=FAILOVERS {
        ours.push(one_failover(members).await?);
        if let Some(etcd) = &mut etcd {
            let leader = etcd.leader().await?;
            let survivors: Vec<usize> = (0..etcd.len()).filter(|at| *at != leader).collect();
            let clients = survivors.iter().map(|at| etcd.client(*at, *at)).collect::<Result<Vec<_>>>()?;
            theirs.push(next_commit(clients, || etcd.kill(leader)).await?);
            etcd.restart(leader).await?;
        }
        interrupt::check()?;
        let last = |v: &[f64]| v.last().copied().unwrap_or(0.0);
        eprintln!("bench: failover {number} of {FAILOVERS}: {:.0} ms, etcd {:.0} ms", last(&ours), last(&theirs));
    }
    drop(etcd);
    members.restart(lattice_timers(), "")?;
    let mut with_defaults = Vec::new();
    for _ in 0..FAILOVERS {
        with_defaults.push(one_failover(members).await?);
    }
    let target = Target::RatioTo { peer: ETCD_FAILOVER.to_owned(), at_most: FAILOVER_RATIO };
    Ok(vec![
        Figure::new(
            "the leader killed, until the next commit, etcd's timers",
            "ms",
            need(ours)?,
            vec![(ETCD_FAILOVER, Samples::of(theirs, 0))],
            Some(target),
        ),
        Figure::new("the same with Lattice's own timers", "ms", need(with_defaults)?, vec![], Some(at_most(FAILOVER_MS, "one second"))),
    ])
}

async fn one_failover(members: &mut Members) -> Result<f64> {
    let leader = members.leader().await?;
    let survivors = members.cluster.members.iter().filter(|m| m.id != leader);
    let clients = survivors.map(|m| Ok(Submitter::new(members.client_at(m.id)?, &Submitted::default()))).collect::<Result<Vec<_>>>()?;
    let took = next_commit(clients, || members.signal(leader, Signal::SIGKILL)).await?;
    members.start_again(leader)?;
    members.caught_up().await?;
    Ok(took)
}

/// Milliseconds from the fault until one of the clients has committed; each retries every few milliseconds.
async fn next_commit<C: Client + Clone>(mut clients: Vec<C>, fault: impl FnOnce() -> Result<()>) -> Result<f64> {
    for client in &mut clients {
        client.commit().await.context("a survivor before the fault")?;
    }
    let (done, mut first) = tokio::sync::mpsc::channel(1);
    let began = Instant::now();
    fault()?;
    let trying = tokio::spawn(async move {
        loop {
            for client in &clients {
                let (mut client, done) = (client.clone(), done.clone());
                tokio::spawn(async move {
                    if client.commit().await.is_ok() {
                        // Only the first result counts.
                        let _later = done.try_send(began.elapsed());
                    }
                });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let took = tokio::time::timeout(Duration::from_secs(20), first.recv()).await;
    trying.abort();
    let took = took.ok().flatten().context("nothing was committed within 20 s of the leader's end")?;
    Ok(took.as_secs_f64() * 1e3)
}
