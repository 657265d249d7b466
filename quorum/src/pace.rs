//! Lets a limited number of a member's sessions do something at a time.

use tokio::sync::Semaphore;

/// The number of sessions that may still do it.
#[derive(Debug)]
pub struct Pace(Semaphore);

impl Default for Pace {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Pace {
    /// Allows this number of sessions from now on, replacing any earlier allowance.
    pub fn allow(&self, sessions: usize) {
        self.0.forget_permits(usize::MAX);
        self.0.add_permits(sessions);
    }

    /// Returns when it is this session's turn.
    pub async fn turn(&self) {
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
    async fn only_the_last_allowed_number_of_sessions_has_a_turn() {
        let pace = Pace::default();
        assert_eq!(pace.turn().now_or_never(), None, "none was allowed");
        pace.allow(5);
        pace.allow(2);
        for _ in 0..2 {
            assert_eq!(pace.turn().now_or_never(), Some(()));
        }
        assert_eq!(pace.turn().now_or_never(), None, "two were allowed");
        pace.allow(2);
        pace.allow(0);
        assert_eq!(pace.turn().now_or_never(), None);
    }
}
