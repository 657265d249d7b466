//! A quorum without agents: its members are processes that can be started and broken, and nodes are simulated sessions
//! of the quorum's own client.

pub mod agent_process;
pub mod agents;
pub mod hosts;
pub mod members;
