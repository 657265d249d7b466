//! The constant load at one size of the cluster.
//!
//! ```text
//!   started (crowd.rs) ─▶ load, not measured ─▶ load, measured
//! ```

use super::crowd::{Crowd, Plan, Started, start};
use super::load::{self, Load};
use super::sockets;
use crate::bench::quorum::commits::Room;
use anyhow::{Context, Result};
use lattice_lab::machine;
use lattice_lab::quorum::agent_process::Answer;
use lattice_lab::quorum::agents::{Totals, name_of};
use lattice_lab::quorum::members::Members;
use lattice_quorum_client::QuorumClient;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Simulated nodes that get work; all others are at rest. In a small cluster, half of the nodes get work.
pub const WORKING_MAX: usize = 50;
/// Load that is not measured: connections are opened, and the members' first pages are written.
const WARM_UP: Duration = Duration::from_secs(3);
/// Interval between two looks at the members' memory.
const MEMORY_INTERVAL: Duration = Duration::from_millis(500);
/// Clients that submit and claim.
const CLIENTS: usize = 8;

/// The measurements of one size.
#[derive(Debug, Default)]
pub struct Measured {
    /// Simulated agents.
    pub agents: usize,
    /// Processor time of all members together, and of the simulated agents, in cores.
    pub members_cores: f64,
    pub agents_cores: f64,
    /// The largest resident memory of each member while it was measured, in MB.
    pub member_mb: Vec<f64>,
    /// Received by each agent at rest, in KB/s, as encoded messages: those with role `api`, and the others.
    pub followers_kb_s: Vec<f64>,
    pub others_kb_s: Vec<f64>,
    /// Received by a simulated agent in KB/s as TCP counts it, the average over all; `None`: not known.
    pub tcp_kb_s: Option<f64>,
    /// The same of each real agent.
    pub real_tcp_kb_s: Vec<f64>,
    /// Processor time of each real agent, percent of a core.
    pub real_percent: Vec<f64>,
    /// Memory of one simulated agent, in KB.
    pub agent_kb: f64,
    /// Until all were Ready, and until each watch had delivered its first list, in seconds.
    pub ready_s: f64,
    pub listed_s: f64,
    /// Submissions and claims.
    pub load: Load,
    /// Commits a second: submissions, claims and reports.
    pub changes_per_s: f64,
    /// Sessions and watches that were lost, and requests for a lease that nobody answered, while it was measured.
    pub lost: [u64; 3],
}

/// Measures a cluster with this many simulated agents in `dir`.
pub async fn measure(dir: &Path, agents: usize, plan: &Plan) -> Result<Measured> {
    let Started { members, mut crowd, token, ready_s, listed_s } = start(dir, agents, plan).await?;
    // The last ones, because the first ones are the followers.
    let working: BTreeSet<String> = (agents - working_count(agents)..agents).map(name_of).collect();
    let room = Arc::new(Room::with(&members.client()?, token, |node| working.contains(node.id.as_str())).await?);
    let clients = (0..CLIENTS).map(|_| members.client()).collect::<Result<Vec<_>>>()?;
    load::run(&clients, &room, plan.changes, WARM_UP).await?;
    let measured = window(&members, &mut crowd, &clients, &room, plan).await?;
    Ok(Measured { ready_s, listed_s, ..measured })
}

fn working_count(agents: usize) -> usize {
    (agents / 2).clamp(1, WORKING_MAX)
}

/// What is read before and after the measured time.
struct Reading {
    at: Instant,
    members: Duration,
    agents: Duration,
    real: Vec<Duration>,
    answers: Vec<Answer>,
}

impl Reading {
    fn totals(&self, of: fn(&Totals) -> u64) -> u64 {
        self.answers.iter().map(|answer| of(&answer.totals)).sum()
    }

    /// The bytes that each simulated agent has received, in the order of their numbers.
    fn received(&self) -> impl Iterator<Item = u64> + '_ {
        self.answers.iter().flat_map(|answer| answer.totals.received.iter().copied())
    }
}

/// The processes that are read.
struct Processes {
    members: Vec<i32>,
    real: Vec<i32>,
    agents: Vec<i32>,
    /// The members' ports for agents.
    ports: Vec<u16>,
}

impl Processes {
    fn of(members: &Members, crowd: &Crowd) -> Result<Self> {
        let cluster = &members.cluster;
        let real = cluster.nodes.iter().filter_map(|n| n.daemon.process.as_ref()).map(|p| p.pid).collect();
        let port = |service: &String| service.rsplit(':').next().and_then(|port| port.parse().ok()).context("a member's port");
        let ports = cluster.members.iter().map(|m| port(&m.service)).collect::<Result<_>>()?;
        Ok(Self { members: members.pids(), real, agents: crowd.pids(), ports })
    }

    fn read(&self, crowd: &mut Crowd) -> Result<Reading> {
        let time = |pids: &[i32]| pids.iter().map(|pid| machine::processor_time(*pid)).collect::<Result<Vec<_>>>();
        let (members, agents) = (time(&self.members)?.iter().sum(), time(&self.agents)?.iter().sum());
        Ok(Reading { at: Instant::now(), members, agents, real: time(&self.real)?, answers: crowd.answers()? })
    }

    /// When it was read, and the bytes that each simulated or real agent has received; `None` without `ss`.
    fn read_tcp(&self) -> Result<Option<(Instant, BTreeMap<i32, u64>)>> {
        let Some(ss) = sockets::program() else { return Ok(None) };
        let pids: Vec<i32> = self.agents.iter().chain(&self.real).copied().collect();
        Ok(Some((Instant::now(), sockets::received(&ss, &pids, &self.ports)?)))
    }
}

async fn window(members: &Members, crowd: &mut Crowd, clients: &[QuorumClient], room: &Arc<Room>, plan: &Plan) -> Result<Measured> {
    let processes = Processes::of(members, crowd)?;
    let mut member_mb = vec![0.0; processes.members.len()];
    // Listing all sockets takes long: it is outside the measured time.
    let tcp_before = processes.read_tcp()?;
    let before = processes.read(crowd)?;
    let load = tokio::select! {
        load = load::run(clients, room, plan.changes, plan.lasts) => load?,
        never = sample_memory(&processes.members, &mut member_mb) => match never {},
    };
    let after = processes.read(crowd)?;
    let tcp_after = processes.read_tcp()?;
    let mut measured = difference(crowd, &before, &after, load);
    measured.member_mb = member_mb;
    if let (Some((began, before)), Some((ended, after))) = (tcp_before, tcp_after) {
        let seconds = (ended - began).as_secs_f64();
        let received =
            |pid: &i32| after.get(pid).copied().unwrap_or(0).saturating_sub(before.get(pid).copied().unwrap_or(0)) as f64 / 1e3 / seconds;
        measured.real_tcp_kb_s = processes.real.iter().map(received).collect();
        // The count of a connection is lost when the connection ends.
        let is_complete = measured.lost[..2] == [0, 0];
        measured.tcp_kb_s = is_complete.then(|| processes.agents.iter().map(received).sum::<f64>() / crowd.agents as f64);
    }
    Ok(measured)
}

/// Keeps the largest resident memory of each process, in MB, for ever.
async fn sample_memory(pids: &[i32], largest: &mut [f64]) -> Infallible {
    loop {
        for (pid, largest) in pids.iter().zip(largest.iter_mut()) {
            let (resident, _shared) = machine::memory_of(*pid).unwrap_or_default();
            *largest = largest.max(resident as f64 / 1e6);
        }
        tokio::time::sleep(MEMORY_INTERVAL).await;
    }
}

fn difference(crowd: &Crowd, before: &Reading, after: &Reading, load: Load) -> Measured {
    let seconds = (after.at - before.at).as_secs_f64();
    let cores = |after: Duration, before: Duration| (after - before).as_secs_f64() / seconds;
    let since = |of: fn(&Totals) -> u64| after.totals(of).saturating_sub(before.totals(of));
    let at_rest = crowd.agents - working_count(crowd.agents);
    let mut kb_s: Vec<f64> =
        after.received().zip(before.received()).map(|(after, before)| (after - before) as f64 / 1e3 / seconds).collect();
    kb_s.truncate(at_rest);
    let others_kb_s = kb_s.split_off(crowd.followers.min(at_rest));
    let grown: u64 = after.answers.iter().map(|answer| answer.resident.saturating_sub(answer.resident_before)).sum();
    let commits = load.latencies_ms.len() - load.failed;
    Measured {
        agents: crowd.agents,
        members_cores: cores(after.members, before.members),
        agents_cores: cores(after.agents, before.agents),
        followers_kb_s: kb_s,
        others_kb_s,
        real_percent: after.real.iter().zip(&before.real).map(|(after, before)| cores(*after, *before) * 100.0).collect(),
        agent_kb: grown as f64 / 1e3 / crowd.agents as f64,
        changes_per_s: (commits as u64 + since(|t| t.acknowledged_reports)) as f64 / seconds,
        lost: [since(|t| t.lost_sessions), since(|t| t.lost_watches), since(|t| t.unanswered_leases)],
        load,
        ..Measured::default()
    }
}
