//! `lattice gossip …`.

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct Gossip {
    #[command(subcommand)]
    pub what: GossipCommand,
}

#[derive(Subcommand)]
pub enum GossipCommand {
    /// Every member that this agent's gossip knows, and who is suspected, since when and by how many; warns of those of which
    /// other nodes received a life or a state that they never published
    Members(GossipMembers),
    /// What changes, as this agent sees it, one line each until interrupted: who joins, is suspected, refutes, is down, changes its state
    Watch,
    /// The keys that gossip is sealed with, and how far a rotation is
    Keys(GossipKeys),
}

#[derive(Args)]
pub struct GossipMembers {
    /// Only those that are suspected
    #[arg(long)]
    pub suspected: bool,
    /// What this agent's gossip has counted: traffic, refusals by reason, suspicions, refutations, its own health (0 is well)
    #[arg(long, conflicts_with = "suspected")]
    pub counters: bool,
}

#[derive(Args)]
pub struct GossipKeys {
    #[command(subcommand)]
    pub what: Option<GossipKeysCommand>,
}

#[derive(Subcommand)]
pub enum GossipKeysCommand {
    /// Bring in a new key, seal with it once every node that is not Down has it, and forget the old one; waits until that is done.
    /// Given again it goes on with a rotation that is under way
    Rotate(RotateKeys),
}

#[derive(Args)]
pub struct RotateKeys {
    /// Begin it and leave it to the quorum: `lattice gossip keys` shows how far it is
    #[arg(long)]
    pub no_wait: bool,
}
