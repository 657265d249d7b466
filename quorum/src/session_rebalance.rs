//! Moves agents' sessions from the leader to the other members.
//!
//! All commands go through the leader, and heartbeats of thousands of agents would be an additional
//! load. A session goes to the leader only if no other member can be reached, and a member that
//! becomes the leader moves its sessions to others. It moves a limited number a second, because
//! each one registers again.
//!
//! Ten thousand agents send a thousand heartbeats a second. A third of them cost the leader of
//! three members 7.6 % of a core, on the member that handles every command. Without sessions at the
//! leader, a node gets its list after one more message between members. The leader accepts a session
//! if the agent says that no other member did.

use std::time::Duration;

/// How long after an election sessions are moved: one election is often followed by another.
pub const ELECTION_DELAY: Duration = Duration::from_secs(10);
/// How often sessions are moved.
pub const REBALANCE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of sessions moved each time.
pub const MOVED_SESSIONS_MAX: usize = 50;
