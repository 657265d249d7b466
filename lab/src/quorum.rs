//! The quorum without agents, as processes: started, broken, and used through its own client; nodes are simulated
//! sessions.

pub mod agent_process;
pub mod agents;
pub mod hosts;
pub mod members;
