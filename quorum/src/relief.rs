//! Sessions that a leader leaves to the other members.
//!
//! Everybody's commands go through the leader; heartbeats of thousands of agents would be a load beside them. A session
//! goes to the leader only when no other member can be reached, and a member that comes to lead sends its sessions on, so
//! many a second, because each is registered anew.
//!
//! Ten thousand agents send a thousand heartbeats a second. A third of them cost the leader of
//! three members 7.6 % of a core, on the member that every command passes. A follower adds one
//! message to the way of a node's list. The leader takes a session when the agent says that no
//! other member did.

use lattice_quorum_client::wire::MayMove;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How long a member leads before its sessions go: an election is often followed by another.
pub const AFTER: Duration = Duration::from_secs(10);
/// How often sessions go.
pub const EVERY: Duration = Duration::from_secs(1);
/// Sessions that go each time.
pub const AT_ONCE: usize = 50;
/// How long a session that no other member took stays before it is tried again.
const STAYS: Duration = Duration::from_secs(300);

/// The turns of a member's sessions.
#[derive(Debug)]
pub struct Relief(Semaphore);

impl Default for Relief {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Relief {
    /// So many sessions may go from now on, whatever was allowed before.
    pub fn allow(&self, sessions: usize) {
        self.0.forget_permits(usize::MAX);
        self.0.add_permits(sessions);
    }

    /// Returns when it is the session's turn to go.
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
