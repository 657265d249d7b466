//! Changes at a constant rate: short allocations on a few nodes, whose simulated agents report their progress.
//!
//! ```text
//!   submit ─▶ claim ─▶ prepared ─▶ ended ─▶ released      five changes; the first two are measured here
//! ```

use crate::bench::quorum::commits::{PATIENCE, Room, owner, spec};
use anyhow::{Context, Result};
use lattice_lab::interrupt;
use lattice_ledger::Action;
use lattice_model::AllocationId;
use lattice_quorum_client::wire::{Answer, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

/// The changes of one allocation, each a commit.
pub const CHANGES_PER_ALLOCATION: u32 = 5;
/// Allocations that are being submitted or claimed at the same time: beyond that, none is begun.
const IN_FLIGHT_MAX: usize = 256;

/// The result.
#[derive(Debug, Default)]
pub struct Load {
    /// The latencies of submissions and claims, in milliseconds.
    pub latencies_ms: Vec<f64>,
    /// Submissions and claims that failed, and why the last one did.
    pub failed: usize,
    pub why: Option<String>,
    /// Allocations that were due and not begun, because too many were in flight.
    pub skipped: usize,
}

impl Load {
    /// The latency that this fraction (0 to 1) of the commits stayed below, in milliseconds.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.latencies_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * part) as usize).copied().unwrap_or(0.0)
    }

    fn add(&mut self, commits: Commits) {
        self.latencies_ms.extend(commits.latencies_ms);
        if let Some(why) = commits.failed {
            self.failed += 1;
            self.why = Some(why);
        }
    }
}

/// Submits allocations for the time `lasts`, at `changes` changes a second, and waits until each is claimed.
pub async fn run(clients: &[QuorumClient], room: &Arc<Room>, changes: u32, lasts: Duration) -> Result<Load> {
    let mut tick = tokio::time::interval(Duration::from_secs(1) * CHANGES_PER_ALLOCATION / changes);
    // Allocations that could not begin in time begin later, as submissions of users would.
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut load = Load::default();
    let mut running = JoinSet::new();
    let began = Instant::now();
    for client in clients.iter().cycle() {
        tick.tick().await;
        if began.elapsed() >= lasts {
            break;
        }
        interrupt::check()?;
        while let Some(done) = running.try_join_next() {
            load.add(done.context("an allocation's task")?);
        }
        if running.len() < IN_FLIGHT_MAX {
            running.spawn(submit_and_claim(client.clone(), Arc::clone(room)));
        } else {
            load.skipped += 1;
        }
    }
    while let Some(done) = running.join_next().await {
        load.add(done.context("an allocation's task")?);
    }
    Ok(load)
}

/// The commits of one allocation.
#[derive(Default)]
struct Commits {
    latencies_ms: Vec<f64>,
    failed: Option<String>,
}

async fn submit_and_claim(client: QuorumClient, room: Arc<Room>) -> Commits {
    let (id, by) = (AllocationId(Uuid::new_v4()), owner());
    let mut commits = Commits::default();
    let submission = Request::Submit { id, spec: Box::new(spec()), owner: by.clone(), claim: None, life: None, login_tenants: [].into() };
    for request in [submission, Request::Claims(vec![room.claim(id)])] {
        let sent = Instant::now();
        let answer = client.call(&request, PATIENCE).await;
        commits.latencies_ms.push(sent.elapsed().as_secs_f64() * 1e3);
        match answer {
            Ok(Answer::Submitted { .. } | Answer::Done { .. }) => {}
            Ok(Answer::Claims(outcomes)) if outcomes.iter().all(Result::is_ok) => {}
            other => {
                commits.failed = Some(describe(other));
                // Nobody else places it: it would wait for ever.
                let _may_not_exist = client.call(&Request::from(Action::Cancel { id, by }), PATIENCE).await;
                break;
            }
        }
    }
    commits
}

fn describe(answer: Result<Answer, CallError>) -> String {
    match answer {
        Ok(other) => format!("the quorum answered something else: {other:?}"),
        Err(error) => error.to_string(),
    }
}
