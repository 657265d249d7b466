//! `lattice gossip …`.

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct Gossip {
    #[command(subcommand)]
    pub command: GossipCommand,
}

#[derive(Subcommand)]
pub enum GossipCommand {
    /// List the nodes that this agent knows by gossip, and which are suspected, since when and by how many. Warns about
    /// each node of which others received a state that it never published
    Members(GossipMembers),
    /// Print a line for each change that this agent sees, until interrupted: a node joins, is suspected, refutes that,
    /// is Down, or changes its state
    Watch,
    /// Show the keys that encrypt gossip, and the progress of their rotation
    Keys(GossipKeys),
}

#[derive(Args)]
pub struct GossipMembers {
    /// Show only nodes that are suspected
    #[arg(long)]
    pub suspected: bool,
    /// Show this agent's counters: traffic, refusals by reason, suspicions, refutations, and its own health (0 is best)
    #[arg(long, conflicts_with = "suspected")]
    pub counters: bool,
}

#[derive(Args)]
pub struct GossipKeys {
    #[command(subcommand)]
    pub command: Option<GossipKeysCommand>,
}

#[derive(Subcommand)]
pub enum GossipKeysCommand {
    /// Replace the key: distribute a new one, encrypt with it once every node that is not Down has it, and remove the
    /// old one. Waits until that is done. If a rotation is under way, no other one begins: the command waits for it
    Rotate(RotateKeys),
}

#[derive(Args)]
pub struct RotateKeys {
    /// Do not wait: the quorum continues the rotation, and `lattice gossip keys` shows its progress
    #[arg(long)]
    pub no_wait: bool,
}
