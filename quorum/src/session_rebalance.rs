//! Moves agents' sessions from the leader to the other members.
//!
//! All commands go through the leader, and heartbeats of thousands of agents would be an additional
//! load. A session goes to the leader only if no other member can be reached, and a member that
//! becomes the leader moves its sessions to others. It moves a limited number a second, because
//! each one registers again.
//!
//! Ten thousand agents send a thousand heartbeats a second. A third of them cost the leader of
//! three members 7.6 % of a core, on the member that handles every command. The price is one more
//! message between members before a node gets its list. The leader accepts a session if the agent
//! says that no other member did.

use lattice_quorum_client::wire::MayMove;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How long after an election sessions are moved: one election is often followed by another.
pub const ELECTION_DELAY: Duration = Duration::from_secs(10);
/// How often sessions are moved.
pub const REBALANCE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of sessions moved each time.
pub const MOVED_SESSIONS_MAX: usize = 50;
/// How long a session that no other member accepted stays before another attempt.
const RETRY_DELAY: Duration = Duration::from_secs(300);

/// Limits how many of a member's sessions are moved.
#[derive(Debug)]
pub struct SessionRebalance(Semaphore);

impl Default for SessionRebalance {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl SessionRebalance {
    /// Allows this number of sessions to move from now on, replacing any earlier allowance.
    pub fn allow(&self, sessions: usize) {
        self.0.forget_permits(usize::MAX);
        self.0.add_permits(sessions);
    }

    /// Returns when this session should move.
    pub async fn wait_to_move(&self, may_move: MayMove) {
        match may_move {
            MayMove::Later => tokio::time::sleep(RETRY_DELAY).await,
            MayMove::Now => {}
        }
        match self.0.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn only_the_last_allowed_number_of_sessions_moves() {
        let rebalance = SessionRebalance::default();
        assert_eq!(rebalance.wait_to_move(MayMove::Now).now_or_never(), None, "none was allowed to move");
        rebalance.allow(5);
        rebalance.allow(2);
        assert_eq!(rebalance.wait_to_move(MayMove::Later).now_or_never(), None);
        for _ in 0..2 {
            assert_eq!(rebalance.wait_to_move(MayMove::Now).now_or_never(), Some(()));
        }
        assert_eq!(rebalance.wait_to_move(MayMove::Now).now_or_never(), None, "two were allowed");
        rebalance.allow(2);
        rebalance.allow(0);
        assert_eq!(rebalance.wait_to_move(MayMove::Now).now_or_never(), None, "this member is no longer the leader");
    }
}
