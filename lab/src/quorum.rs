//! The quorum alone, as processes: started, broken, and spoken to with its own client; nodes are simulated sessions.

pub mod agents;
pub mod hosts;
pub mod members;
