//! What is simulated, and what it has to meet.

/// The figures that gossip has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// 10,000 agents, 30 minutes: a dead one known to 99 % within 10 s, a change within 3 s, under 10 KB/s and 20 MB per agent
    Size,
    /// 1,000 agents, 24 hours, 5 % of the datagrams lost, 1 % of the agents starved: at most one healthy one declared dead
    Loss,
}

/// What is simulated, all of it given.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// Agents.
    pub nodes: usize,
    /// Virtual minutes after the nodes have joined.
    pub minutes: u64,
    /// Of a million datagrams so many are lost.
    pub loss_per_million: u64,
    /// So many agents stand still again and again.
    pub starved: usize,
    /// Between two deaths.
    pub death_every_ms: u64,
    /// Between two changes of a node's state.
    pub change_every_ms: u64,
    /// Decides everything that is drawn.
    pub seed: u64,
}
