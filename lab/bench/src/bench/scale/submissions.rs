//! The light load of other users while members are killed and restarted: each submits an allocation and cancels it.

use crate::bench::quorum::commits::{owner, spec};
use anyhow::{Context, Result};
use lattice_ledger::Action;
use lattice_model::AllocationId;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::Request;
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A submission is due this often.
pub const INTERVAL: Duration = Duration::from_millis(20);
/// How long one commit is tried.
pub const COMMIT_MAX: Duration = Duration::from_secs(10);
/// Submissions in flight: beyond that, none is begun.
const IN_FLIGHT_MAX: usize = 1024;

/// One command, from its sending to its answer.
#[derive(Clone, Debug)]
pub struct Commit {
    /// When it was sent.
    pub sent: Instant,
    /// How long its answer took.
    pub took: Duration,
    /// Why it was not committed.
    pub failed: Option<String>,
}

/// A running load.
pub struct LightLoad {
    stop: CancellationToken,
    task: JoinHandle<Vec<Commit>>,
}

impl LightLoad {
    /// Begins to submit through these clients in turn.
    pub fn begin(clients: Vec<QuorumClient>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(submit_until(stop.clone(), clients));
        Self { stop, task }
    }

    /// Ends the load; returns its commits once all are answered.
    pub async fn end(self) -> Result<Vec<Commit>> {
        self.stop.cancel();
        self.task.await.context("the load's task")
    }
}

async fn submit_until(stop: CancellationToken, clients: Vec<QuorumClient>) -> Vec<Commit> {
    let mut tick = tokio::time::interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut running = JoinSet::new();
    let mut commits = Vec::new();
    for client in clients.iter().cycle() {
        tokio::select! {
            () = stop.cancelled() => break,
            _at = tick.tick() => {}
        }
        while let Some(Ok(done)) = running.try_join_next() {
            commits.extend(done);
        }
        if running.len() < IN_FLIGHT_MAX {
            running.spawn(submit_and_cancel(client.clone()));
        }
    }
    commits.extend(running.join_all().await.into_iter().flatten());
    commits
}

async fn submit_and_cancel(client: QuorumClient) -> Vec<Commit> {
    let (id, by) = (AllocationId(Uuid::new_v4()), owner());
    let submission = Request::Submit { id, spec: Box::new(spec()), owner: by.clone(), claim: None, life: None, login_tenants: [].into() };
    let mut commits = Vec::new();
    for request in [submission, Request::from(Action::Cancel { id, by })] {
        let sent = Instant::now();
        let answer = client.call(&request, COMMIT_MAX).await;
        let failed = answer.err().map(|error| error.to_string());
        let is_over = failed.is_some();
        commits.push(Commit { sent, took: sent.elapsed(), failed });
        if is_over {
            break;
        }
    }
    commits
}

/// The latencies of the commands that were sent since then, in milliseconds and ascending, and how many of them failed. A
/// failed one counts with the time for which it was tried.
pub fn latencies_ms(commits: &[Commit], since: Instant) -> (Vec<f64>, usize) {
    let counted: Vec<&Commit> = commits.iter().filter(|commit| commit.sent >= since).collect();
    let mut latencies: Vec<f64> = counted.iter().map(|commit| commit.took.as_secs_f64() * 1e3).collect();
    latencies.sort_by(f64::total_cmp);
    (latencies, counted.iter().filter(|commit| commit.failed.is_some()).count())
}

/// The longest time between `began` and `ended` in which nothing was committed.
pub fn longest_pause(commits: &[Commit], began: Instant, ended: Instant) -> Duration {
    let done = commits.iter().filter(|commit| commit.failed.is_none()).map(|commit| commit.sent + commit.took);
    let mut moments: Vec<Instant> = done.filter(|at| (began..ended).contains(at)).chain([began, ended]).collect();
    moments.sort_unstable();
    moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(began: Instant, sent_ms: u64, took_ms: u64, failed: Option<&str>) -> Commit {
        let ms = Duration::from_millis;
        Commit { sent: began + ms(sent_ms), took: ms(took_ms), failed: failed.map(str::to_owned) }
    }

    #[test]
    fn only_what_is_sent_later_counts_and_failures_count_with_their_time() {
        let began = Instant::now();
        let commits = [commit(began, 0, 900, None), commit(began, 100, 10_000, Some("no leader")), commit(began, 120, 4, None)];
        let (latencies, failed) = latencies_ms(&commits, began + Duration::from_millis(100));
        assert_eq!((latencies, failed), (vec![4.0, 10_000.0], 1));
        assert_eq!(latencies_ms(&commits, began + Duration::from_secs(1)), (vec![], 0));
    }

    #[test]
    fn the_longest_pause_is_between_two_commits_or_at_an_end() {
        let began = Instant::now();
        let (ms, ended) = (Duration::from_millis, began + Duration::from_millis(1000));
        assert_eq!(longest_pause(&[], began, ended), ms(1000));
        let mut commits = vec![commit(began, 10, 10, None), commit(began, 30, 670, None), commit(began, 900, 20, None)];
        assert_eq!(longest_pause(&commits, began, ended), ms(680));
        // A failure ends no pause, and what is committed later does not count.
        commits.push(commit(began, 300, 100, Some("refused")));
        commits.push(commit(began, 500, 700, None));
        assert_eq!(longest_pause(&commits, began, ended), ms(680));
        assert_eq!(longest_pause(&commits, began + ms(650), ended), ms(220));
    }
}
