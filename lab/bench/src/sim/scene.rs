//! The parameters of a simulation, and the targets.

/// The figures that gossip has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// 10,000 agents, 30 minutes: a dead one known to 99 % within 10 s, a change within 3 s, under 10 KB/s and 20 MB
    /// per agent
    Size,
    /// 1,000 agents, 24 hours, 5 % of the datagrams lost, 1 % of the agents starved: at most one healthy one declared
    /// dead
    Loss,
}

/// The parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// Number of agents.
    pub nodes: usize,
    /// Virtual minutes after the nodes have joined.
    pub minutes: u64,
    /// How many of a million datagrams are lost.
    pub loss_per_million: u64,
    /// Number of agents that stop for a while again and again.
    pub starved: usize,
    /// Interval between two deaths.
    pub death_every_ms: u64,
    /// Interval between two changes of a node's state.
    pub change_every_ms: u64,
    /// The seed of all random choices.
    pub seed: u64,
}
