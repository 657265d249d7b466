//! A cluster of one size.
//!
//! ```text
//!   members, real agents ─▶ simulated agents register ─▶ all Ready ─▶ all have their first list
//! ```

use crate::bench::quorum::commits::take_lease;
use anyhow::{Result, ensure};
use lattice_lab::binaries::Binaries;
use lattice_lab::interrupt;
use lattice_lab::quorum::agent_process::{self, AgentProcess, Answer};
use lattice_lab::quorum::agents::Progress;
use lattice_lab::quorum::members::{Members, Timers};
use lattice_lab::up::Options as UpOptions;
use lattice_model::NodeState;
use std::path::Path;
use std::time::{Duration, Instant};

/// Real agents beside the simulated ones. They have the role `api`, not `scheduler`: they follow the whole cluster, and
/// the bench places the work.
pub const REAL_AGENTS: u32 = 2;
/// The largest number of simulated agents in one process: each has up to three connections.
pub const PROCESS_AGENTS_MAX: usize = 5000;
/// The documented timers of agents, in milliseconds.
pub const HEARTBEAT_MS: u64 = 10_000;
const DEGRADED_AFTER_MS: u64 = 30_000;
/// How long it may take until all nodes are Ready and all watches have their first list.
const OPEN_MAX: Duration = Duration::from_secs(600);
/// How long nodes may take to be Ready again before something else is measured.
const READY_AGAIN_MAX: Duration = Duration::from_secs(30);
/// Interval between two looks at nodes that are not Ready yet.
const READY_INTERVAL: Duration = Duration::from_millis(100);

/// What is measured at each size.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Simulated agents with role `api`, at most.
    pub followers: usize,
    /// Changes a second of the constant load.
    pub changes: u32,
    /// How long the constant load is measured.
    pub lasts: Duration,
    /// The timers of the members.
    pub timers: Timers,
}

/// A cluster whose nodes are all Ready.
pub struct Started {
    /// The members.
    pub members: Members,
    /// The simulated agents.
    pub crowd: Crowd,
    /// The token of the scheduler's lease, which the bench has.
    pub token: u64,
    /// Until all were Ready, and until each watch had delivered its first list, in seconds.
    pub ready_s: f64,
    pub listed_s: f64,
}

/// Starts a cluster with this many simulated agents in `dir`.
pub async fn start(dir: &Path, agents: usize, plan: &Plan) -> Result<Started> {
    let options = UpOptions {
        nodes: REAL_AGENTS,
        heartbeat_ms: HEARTBEAT_MS,
        degraded_after_ms: DEGRADED_AFTER_MS,
        agent_lines: "roles: [api]\n".to_owned(),
        ..Members::options(dir, plan.timers, "").with_audit_as_documented()
    };
    eprintln!("bench: starting three members and {REAL_AGENTS} agents");
    let members = Members::start_as(options).await?;
    // The bench takes the lease before the followers can, because they place no work.
    let token = take_lease(&members.client()?).await?;
    let mut crowd = Crowd::start(dir, agents, plan.followers.min(agents))?;
    let (ready_s, listed_s) = crowd.open(&members).await?;
    eprintln!("bench: {agents} simulated agents are Ready after {ready_s:.1} s and have their lists after {listed_s:.1} s");
    Ok(Started { members, crowd, token, ready_s, listed_s })
}

/// The processes with simulated agents.
pub struct Crowd {
    /// Simulated agents.
    pub agents: usize,
    /// How many of them, the first ones, have role `api`.
    pub followers: usize,
    processes: Vec<AgentProcess>,
}

impl Crowd {
    fn start(dir: &Path, agents: usize, followers: usize) -> Result<Self> {
        let lab = Binaries::beside_lab()?.lab();
        let mut processes = Vec::new();
        for first in (0..agents).step_by(PROCESS_AGENTS_MAX) {
            interrupt::check()?;
            let count = PROCESS_AGENTS_MAX.min(agents - first);
            let followers = followers.saturating_sub(first).min(count);
            let options = agent_process::Options { dir: dir.to_owned(), first, count, followers, heartbeat_ms: HEARTBEAT_MS };
            processes.push(AgentProcess::start(&lab, &options)?);
        }
        Ok(Self { agents, followers, processes })
    }

    /// Registers all; returns after how many seconds all nodes were Ready, and all watches had their first list.
    async fn open(&mut self, members: &Members) -> Result<(f64, f64)> {
        let began = Instant::now();
        self.processes.iter_mut().try_for_each(AgentProcess::open)?;
        let (mut ready_s, mut listed_s) = (None, None);
        let all_ready = self.agents + REAL_AGENTS as usize;
        loop {
            interrupt::check()?;
            let totals = self.answers()?;
            let listed: usize = totals.iter().map(|a| a.totals.listed).sum();
            let ready = ready(members).await.unwrap_or_default();
            let after = began.elapsed();
            if ready >= all_ready {
                ready_s.get_or_insert(after.as_secs_f64());
            }
            if listed == self.agents {
                listed_s.get_or_insert(after.as_secs_f64());
            }
            if let (Some(ready_s), Some(listed_s)) = (ready_s, listed_s) {
                return Ok((ready_s, listed_s));
            }
            let (all, s) = (self.agents, OPEN_MAX.as_secs());
            ensure!(
                after < OPEN_MAX,
                "after {s} s {ready} of {all_ready} nodes are Ready, and {listed} of {all} watches have their first list"
            );
            tokio::time::sleep(READY_INTERVAL).await;
        }
    }

    /// Waits until all nodes are Ready again; returns how many are, unless all are in time.
    pub async fn missing_ready(&self, members: &Members) -> Result<Option<String>> {
        let (began, all) = (Instant::now(), self.agents + REAL_AGENTS as usize);
        loop {
            interrupt::check()?;
            let ready = ready(members).await.unwrap_or_default();
            if ready >= all {
                return Ok(None);
            }
            if began.elapsed() >= READY_AGAIN_MAX {
                return Ok(Some(format!("not begun: after {} s {ready} of {all} nodes were Ready", READY_AGAIN_MAX.as_secs())));
            }
            tokio::time::sleep(READY_INTERVAL).await;
        }
    }

    /// The counts of each process.
    pub fn answers(&mut self) -> Result<Vec<Answer>> {
        self.processes.iter_mut().map(AgentProcess::totals).collect()
    }

    /// The progress of all agents together.
    pub fn progress(&mut self) -> Result<Progress> {
        self.processes.iter_mut().try_fold(Progress::default(), |sum, process| Ok(sum.plus(process.progress()?)))
    }

    /// The processes' ids.
    pub fn pids(&self) -> Vec<i32> {
        self.processes.iter().map(AgentProcess::pid).collect()
    }
}

async fn ready(members: &Members) -> Result<usize> {
    let status = members.status(1).await?;
    Ok(status.nodes.iter().filter(|(state, _)| *state == NodeState::Ready).map(|(_, count)| *count as usize).sum())
}
