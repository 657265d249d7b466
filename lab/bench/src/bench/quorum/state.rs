//! A large state: its memory, whether a snapshot of it delays commits, and how soon all members serve it again after a
//! kill.

use super::commits::{Submitted, Submitter};
use super::load::{self, Client};
use super::targets::{MANY, RESTART_MS, STALL_MS, STATE_MB, at_most, lattice_timers, need};
use crate::bench::figures::Figure;
use crate::bench::subject::memory_figure;
use anyhow::{Context, Result, ensure};
use lattice_lab::interrupt;
use lattice_lab::quorum::members::Members;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Commits between snapshots while their effect is measured.
const SNAPSHOT_ENTRIES: u64 = 2000;
/// Snapshots to wait for.
const SNAPSHOTS: usize = 3;
/// Timeout of the snapshots.
const SNAPSHOT_MAX: Duration = Duration::from_secs(60);
/// How often all members are killed and started.
const RESTARTS: usize = 3;

/// Fills the state and measures it.
pub async fn measure(members: &mut Members, allocations: usize) -> Result<Vec<Figure>> {
    let submitted = Submitted::default();
    let clients = (0..MANY).map(|_| members.client()).collect::<Result<Vec<_>>>()?;
    let mut submitters: Vec<_> = clients.into_iter().map(|c| Submitter::new(c, &submitted)).collect();
    let (nodes, mut there) = members.counts().await?;
    while there < allocations {
        interrupt::check()?;
        eprintln!("bench: {there} of {allocations} allocations");
        load::run(&mut submitters, Duration::from_secs(1)).await?;
        there = members.counts().await?.1;
    }
    drop(submitters);
    let mut restarts = Vec::new();
    for _ in 0..RESTARTS {
        interrupt::check()?;
        let began = Instant::now();
        members.restart(lattice_timers(), &format!("snapshot_entries: {SNAPSHOT_ENTRIES}\n"))?;
        let started = Instant::now();
        let mut submitter = Submitter::new(members.client()?, &submitted);
        submitter.commit().await.context("after all members were killed")?;
        restarts.push(started.elapsed().as_secs_f64() * 1e3);
        eprintln!("bench: all members killed and started, {:.1} s with their end", began.elapsed().as_secs_f64());
        ensure!(members.counts().await?.1 > there, "allocations are missing after the restart");
    }
    let name = |what: &str| format!("{nodes} nodes and {there} allocations: {what}");
    let pids = members.pids();
    let stalls = snapshots(members, &submitted).await?;
    let mut figures = vec![
        Figure::new(
            &name("all members killed, from their start to the next commit"),
            "ms",
            need(restarts)?,
            vec![],
            Some(at_most(RESTART_MS, "three seconds")),
        ),
        Figure::new(&name("the longest commit around a snapshot"), "ms", need(stalls)?, vec![], Some(at_most(STALL_MS, "nobody notices"))),
    ];
    figures.extend(memory_figure(&name("a member's memory, without sessions"), &pids, Some(at_most(STATE_MB, "small"))));
    Ok(figures)
}

/// Commits one after the other while members make snapshots; returns the longest commit around each.
async fn snapshots(members: &Members, submitted: &Submitted) -> Result<Vec<f64>> {
    let leader = members.leader().await?;
    let dir = members.data_dir(leader);
    let mut client = vec![Submitter::new(members.client()?, submitted)];
    let mut known = snapshot_files(&dir)?;
    let mut stalls = Vec::new();
    let mut longest = 0.0f64;
    let end = Instant::now() + SNAPSHOT_MAX;
    while stalls.len() < SNAPSHOTS {
        interrupt::check()?;
        ensure!(Instant::now() < end, "member {leader} made {} of {SNAPSHOTS} snapshots in {} s", stalls.len(), SNAPSHOT_MAX.as_secs());
        let load = load::run(&mut client, Duration::from_millis(200)).await?;
        longest = load.latencies_ms.iter().copied().fold(longest, f64::max);
        let now = snapshot_files(&dir)?;
        if now.iter().any(|file| !known.contains(file)) {
            stalls.push(std::mem::take(&mut longest));
        }
        known = now;
    }
    Ok(stalls)
}

fn snapshot_files(dir: &PathBuf) -> Result<BTreeSet<PathBuf>> {
    let files = std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    Ok(files.flatten().map(|f| f.path()).filter(|p| p.extension().is_some_and(|e| e == "snapshot")).collect())
}
