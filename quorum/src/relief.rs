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
pub const AFTER: Duration = Duration::from_secs(10);
/// How often sessions are moved.
pub const EVERY: Duration = Duration::from_secs(1);
/// Number of sessions moved each time.
pub const AT_ONCE: usize = 50;
/// How long a session that no other member accepted stays before another attempt.
const STAYS: Duration = Duration::from_secs(300);

/// Limits how many of a member's sessions are moved.
#[derive(Debug)]
pub struct Relief(Semaphore);

impl Default for Relief {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Relief {
    /// Allows this number of sessions to move from now on, replacing any earlier allowance.
    pub fn allow(&self, sessions: usize) {
        self.0.forget_permits(usize::MAX);
        self.0.add_permits(sessions);
    }

    /// Returns when this session should move.
    pub async fn turn(&self, may_move: MayMove) {
        match may_move {
            MayMove::Later => tokio::time::sleep(STAYS).await,
            MayMove::Now => {}
        }
        match self.0.acquire().await {
            Ok(turn) => turn.forget(),
            Err(_closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn so_many_go_as_were_allowed_last_and_others_stay() {
        let relief = Relief::default();
        assert_eq!(relief.turn(MayMove::Now).now_or_never(), None, "nobody was allowed to go");
        relief.allow(5);
        relief.allow(2);
        assert_eq!(relief.turn(MayMove::Later).now_or_never(), None);
        for _ in 0..2 {
            assert_eq!(relief.turn(MayMove::Now).now_or_never(), Some(()));
        }
        assert_eq!(relief.turn(MayMove::Now).now_or_never(), None, "two were allowed");
        relief.allow(2);
        relief.allow(0);
        assert_eq!(relief.turn(MayMove::Now).now_or_never(), None, "this member leads no more");
    }
}
