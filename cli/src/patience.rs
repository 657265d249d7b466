//! How long a broken connection is retried.

use crate::failure::{Exit, Failure};
use crate::session::Session;
use lattice_api::client::Client;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How long an agent may be unavailable before following is given up.
const AGENT_AWAY_MAX: Duration = Duration::from_secs(60);
/// Pause between two tries to connect.
const CONNECT_AGAIN: Duration = Duration::from_millis(200);

/// The retry state of a command that follows something.
#[derive(Debug, Default)]
pub struct Patience {
    progressed: Cell<bool>,
    failing_since: Cell<Option<Instant>>,
}

impl Patience {
    /// For a process inside an allocation: the agent of its node exists, or is restarting.
    pub fn within_allocation() -> Self {
        let patience = Self::default();
        patience.progress();
        patience
    }

    /// Connects; within an allocation it retries for as long as that may help.
    pub async fn connect(&self, session: &Session) -> Result<Client, Failure> {
        match session.connect().await {
            Err(failure) if self.progressed() && self.bears(&failure) => self.connect_again(session, failure).await,
            connected => connected,
        }
    }

    /// Records that the agent has sent something.
    pub fn progress(&self) {
        self.progressed.set(true);
        self.failing_since.set(None);
    }

    /// Whether anything ever arrived.
    pub fn progressed(&self) -> bool {
        self.progressed.get()
    }

    /// Whether a new connection may help: the connection broke, or an agent that had answered has lost its quorum.
    pub fn bears(&self, failure: &Failure) -> bool {
        failure.is_lost_connection() || (self.progressed.get() && failure.exit() == Exit::Unavailable as u8)
    }

    /// Connects again. Returns `failure` if that has failed for too long.
    pub async fn connect_again(&self, session: &Session, failure: Failure) -> Result<Client, Failure> {
        let since = match self.failing_since.get() {
            Some(since) => since,
            None => {
                let why = if failure.is_lost_connection() { "the connection to the agent broke".to_owned() } else { failure.what() };
                session.note(&format!("{why}; trying again"));
                Instant::now()
            }
        };
        self.failing_since.set(Some(since));
        let deadline = since + AGENT_AWAY_MAX;
        while Instant::now() < deadline {
            sleep(CONNECT_AGAIN).await;
            if let Ok(Ok(client)) = timeout_at(deadline, session.connect()).await {
                return Ok(client);
            }
        }
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    #[test]
    fn only_failures_that_may_pass_are_retried() {
        let patience = Patience::default();
        let broken = Failure::from(Status::from_error(Box::new(std::io::Error::other("reset"))));
        let no_quorum = Failure::from(Status::unavailable("no quorum"));
        assert!(patience.bears(&broken));
        assert!(!patience.bears(&no_quorum));
        patience.progress();
        assert!(patience.bears(&no_quorum));
        assert!(!patience.bears(&Failure::from(Status::permission_denied("no"))));
        assert!(Patience::within_allocation().bears(&no_quorum));
    }
}
