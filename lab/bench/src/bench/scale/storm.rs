//! Kills and restarts members while all sessions are open and other clients submit.
//!
//! ```text
//!   SIGKILL to all members ─▶ started again ─▶ a leader answers ─▶ all sessions are back ─▶ a rest ─▶ next part
//!                                              └ the commits of others from here on
//!   one member after the other: SIGTERM ─▶ its end ─▶ started again ─▶ it has what the others have
//! ```

use super::crowd::{Crowd, Plan};
use super::memory;
use super::reached::{Reached, seconds_between};
use super::submissions::{Commit, LightLoad, latencies_ms, longest_pause};
use anyhow::{Context, Result};
use lattice_lab::interrupt;
use lattice_lab::machine;
use lattice_lab::quorum::agents::{Progress, monotonic_ns};
use lattice_lab::quorum::members::Members;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Time limits for a leader, and then for the return of all sessions.
const LEADER_MAX: Duration = Duration::from_secs(20);
const BACK_MAX: Duration = Duration::from_secs(45);
/// The least time for which the commits of other clients are measured, from the first leader on.
const COMMITS_LAST: Duration = Duration::from_secs(10);
/// How long one member may take to end, and to be started and have what the others have.
const STOP_MAX: Duration = Duration::from_secs(15);
const CAUGHT_UP_MAX: Duration = Duration::from_secs(15);
/// The load before the members are killed.
const WARM_UP: Duration = Duration::from_secs(2);
/// Intervals between two looks: at sessions, and at members that may lead.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const LEADER_INTERVAL: Duration = Duration::from_millis(10);
/// How long one question to a member may take.
const QUESTION_MAX: Duration = Duration::from_secs(1);
/// Clients of the light load.
const CLIENTS: usize = 8;

/// The measurements.
#[derive(Debug)]
pub struct Storm {
    /// All members killed at once.
    pub killed: Killed,
    /// One member after the other restarted.
    pub rolling: Rolling,
}

/// All members killed at once and started again.
#[derive(Debug)]
pub struct Killed {
    /// From the moment when all members were started again until one of them answers as leader.
    pub leader: Reached,
    /// From then until all sessions are back, and all watches.
    pub sessions: Reached,
    pub watches: Reached,
    /// The largest member's memory, in MB.
    pub member_mb: f64,
    /// The latencies of others' commits once there was a leader, in milliseconds and ascending, and how many failed.
    pub commits_ms: Vec<f64>,
    pub failed_commits: usize,
    /// Processor time of all members and of all simulated agents meanwhile, in seconds.
    pub members_s: f64,
    pub agents_s: f64,
}

/// The restart of one member after the other.
#[derive(Debug)]
pub struct Rolling {
    /// Until the last one had what the others have.
    pub over: Reached,
    /// The longest time in which nothing was committed, in seconds.
    pub refused_s: f64,
    /// Submissions and cancellations that failed, and why the last one did.
    pub failed: usize,
    pub why: Option<String>,
    /// From the end of the last restart until all sessions were open again.
    pub sessions: Reached,
}

/// Measures both kinds of restart.
pub async fn measure(members: &mut Members, crowd: &mut Crowd, plan: &Plan) -> Result<Storm> {
    let killed = kill_all(members, crowd, plan).await?;
    let agents = crowd.agents;
    eprintln!(
        "bench: {agents} agents: all members killed: leader {:?}, sessions {:?}, largest member {:.0} MB",
        killed.leader, killed.sessions, killed.member_mb
    );
    let rolling = restart_each(members, crowd).await?;
    eprintln!("bench: {agents} agents: one member after the other: {rolling:?}");
    Ok(Storm { killed, rolling })
}

async fn kill_all(members: &mut Members, crowd: &mut Crowd, plan: &Plan) -> Result<Killed> {
    let load = begin_load(members)?;
    tokio::time::sleep(WARM_UP).await;
    let (before, agents_before) = (crowd.progress()?, processor_time(&crowd.pids())?);
    let ids: Vec<u64> = members.cluster.members.iter().map(|member| member.id).collect();
    ids.iter().try_for_each(|id| members.signal(*id, Signal::SIGKILL))?;
    members.restart(plan.timers, "")?;
    let started = Instant::now();
    let leader = match timeout(LEADER_MAX, first_leader(members)).await {
        Ok(led) => led.map(|()| Reached::After(started.elapsed().as_secs_f64()))?,
        Err(_elapsed) => Reached::not_in(LEADER_MAX),
    };
    let (led_at, led_ns) = (Instant::now(), monotonic_ns());
    let (sessions, watches) = match &leader {
        Reached::After(_) => all_back(crowd, &before, led_ns).await?,
        Reached::Not(_) => (leader.clone(), leader.clone()),
    };
    tokio::time::sleep(COMMITS_LAST.saturating_sub(led_at.elapsed())).await;
    let (members_s, agents_s) = (processor_time(&members.pids())?, processor_time(&crowd.pids())? - agents_before);
    let (commits_ms, failed_commits) = latencies_ms(&load.end().await?, led_at);
    let member_mb = memory::peak_mb(&members.pids())?;
    Ok(Killed { leader, sessions, watches, member_mb, commits_ms, failed_commits, members_s, agents_s })
}

fn begin_load(members: &Members) -> Result<LightLoad> {
    Ok(LightLoad::begin((0..CLIENTS).map(|_| members.client()).collect::<Result<_>>()?))
}

fn processor_time(pids: &[i32]) -> Result<f64> {
    Ok(pids.iter().map(|pid| machine::processor_time(*pid)).sum::<Result<Duration>>()?.as_secs_f64())
}

/// Waits until one of the members answers as leader.
async fn first_leader(members: &Members) -> Result<()> {
    let clients = members.cluster.members.iter().map(|member| members.client_at(member.id)).collect::<Result<Vec<_>>>()?;
    futures::future::select_all(clients.into_iter().map(|client| Box::pin(leads(client)))).await;
    Ok(())
}

async fn leads(client: QuorumClient) {
    loop {
        if let Ok(Answer::Status(status)) = client.call(&Request::Status, QUESTION_MAX).await
            && status.leader == Some(status.member)
            // A leader answers this only after a majority has confirmed it.
            && client.call(&Request::ListLeases, QUESTION_MAX).await.is_ok()
        {
            return;
        }
        tokio::time::sleep(LEADER_INTERVAL).await;
    }
}

/// Waits until all sessions and watches are open again; returns after how many seconds each was.
async fn all_back(crowd: &mut Crowd, before: &Progress, led_ns: u64) -> Result<(Reached, Reached)> {
    let began = Instant::now();
    let (mut sessions, mut watches) = (None, None);
    loop {
        interrupt::check()?;
        let now = crowd.progress()?;
        let [has_sessions, has_watches] = are_back(before, &now, crowd.agents as u64);
        if has_sessions {
            sessions.get_or_insert(seconds_between(led_ns, now.sessions.last_ns));
        }
        if has_watches {
            watches.get_or_insert(seconds_between(led_ns, now.watches.last_ns));
        }
        if began.elapsed() >= BACK_MAX || (sessions.is_some() && watches.is_some()) {
            let reached = |seconds: Option<f64>, open| seconds.map_or_else(|| not_back(open, crowd.agents), Reached::After);
            return Ok((reached(sessions, now.sessions.count), reached(watches, now.watches.count)));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn not_back(open: u64, agents: usize) -> Reached {
    Reached::Not(format!("not reached in {} s: then {open} of {agents} were open", BACK_MAX.as_secs()))
}

/// Whether all agents have sessions again, and whether they have watches. Neither is true before each agent has noticed
/// that it lost its earlier session.
fn are_back(before: &Progress, now: &Progress, agents: u64) -> [bool; 2] {
    let all_lost = now.lost_sessions - before.lost_sessions >= agents;
    [now.sessions.count, now.watches.count].map(|open| all_lost && open >= agents)
}

/// Restarts one member after the other under the light load.
async fn restart_each(members: &mut Members, crowd: &mut Crowd) -> Result<Rolling> {
    let load = begin_load(members)?;
    tokio::time::sleep(WARM_UP).await;
    let began = Instant::now();
    let ids: Vec<u64> = members.cluster.members.iter().map(|member| member.id).collect();
    let mut over = None;
    for id in ids {
        if let Some(late) = restart(members, id).await? {
            over.get_or_insert(late);
        }
    }
    let ended = Instant::now();
    let sessions = sessions_open(crowd).await?;
    let commits = load.end().await?;
    let failures: Vec<&String> = commits.iter().filter_map(|commit: &Commit| commit.failed.as_ref()).collect();
    Ok(Rolling {
        over: over.unwrap_or_else(|| Reached::After((ended - began).as_secs_f64())),
        refused_s: longest_pause(&commits, began, ended).as_secs_f64(),
        failed: failures.len(),
        why: failures.last().map(|why| (*why).clone()),
        sessions,
    })
}

/// Restarts one member; returns what took too long, if anything did.
async fn restart(members: &mut Members, id: u64) -> Result<Option<Reached>> {
    interrupt::check()?;
    let process = members.cluster.member(id)?.daemon.process.clone().context("it was never started")?;
    members.signal(id, Signal::SIGTERM)?;
    let has_ended = timeout(STOP_MAX, async {
        while process.alive() {
            tokio::time::sleep(LEADER_INTERVAL).await;
        }
    });
    let has_ended = has_ended.await.is_ok();
    // This kills the member if it has not ended.
    members.start_again(id)?;
    let others: Vec<u64> = members.cluster.members.iter().map(|member| member.id).filter(|other| *other != id).collect();
    let has_caught_up = timeout(CAUGHT_UP_MAX, caught_up(members, id, &others)).await;
    Ok(match has_caught_up {
        Ok(done) => {
            done?;
            (!has_ended).then(|| Reached::Not(format!("member {id} did not end in {} s and was killed", STOP_MAX.as_secs())))
        }
        Err(_elapsed) => Some(Reached::Not(format!("member {id} did not have what the others have in {} s", CAUGHT_UP_MAX.as_secs()))),
    })
}

/// Waits until the member knows the leader and has applied what another member had applied before.
async fn caught_up(members: &Members, id: u64, others: &[u64]) -> Result<()> {
    let mut wanted = None;
    while wanted.is_none() {
        for other in others {
            wanted = wanted.max(members.status(*other).await.ok().map(|status| status.revision));
        }
    }
    loop {
        if members.status(id).await.is_ok_and(|status| status.leader.is_some() && Some(status.revision) >= wanted) {
            return Ok(());
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Waits until all sessions are open.
async fn sessions_open(crowd: &mut Crowd) -> Result<Reached> {
    let (began, began_ns) = (Instant::now(), monotonic_ns());
    loop {
        interrupt::check()?;
        let now = crowd.progress()?;
        if now.sessions.count >= crowd.agents as u64 {
            return Ok(Reached::After(seconds_between(began_ns, now.sessions.last_ns)));
        }
        if began.elapsed() >= BACK_MAX {
            return Ok(not_back(now.sessions.count, crowd.agents));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_lab::quorum::agents::Marked;

    fn progress(sessions: u64, lost_sessions: u64, watches: u64) -> Progress {
        let marked = |count| Marked { count, last_ns: 1 };
        Progress { sessions: marked(sessions), lost_sessions, watches: marked(watches), ..Progress::default() }
    }

    #[test]
    fn sessions_that_are_not_yet_known_to_be_lost_are_not_back() {
        let before = progress(100, 7, 100);
        assert_eq!(are_back(&before, &progress(100, 7, 100), 100), [false, false]);
        assert_eq!(are_back(&before, &progress(40, 67, 40), 100), [false, false]);
        assert_eq!(are_back(&before, &progress(99, 107, 100), 100), [false, true]);
        assert_eq!(are_back(&before, &progress(100, 107, 99), 100), [true, false]);
        assert_eq!(are_back(&before, &progress(100, 120, 100), 100), [true, true]);
    }
}
