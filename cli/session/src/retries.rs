//! How long a broken connection is retried.

use crate::failure::{Exit, Failure};
use crate::session::Session;
use lattice_api::client::Client;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How long an agent may be unavailable before following is given up.
const AGENT_UNAVAILABLE_MAX: Duration = Duration::from_secs(60);
/// Pause between two tries to connect.
const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The retry state of a command that follows something.
#[derive(Debug, Default)]
pub struct Retries {
    progressed: Cell<bool>,
    failing_since: Cell<Option<Instant>>,
}

impl Retries {
    /// For a process inside an allocation: the agent of its node exists, or is restarting.
    pub fn within_allocation() -> Self {
        let retries = Self::default();
        retries.record_progress();
        retries
    }

    /// Connects; within an allocation it retries for as long as that may help.
    pub async fn connect(&self, session: &Session) -> Result<Client, Failure> {
        match session.connect().await {
            Err(failure) if self.has_progressed() && self.should_retry(&failure) => self.reconnect(session, failure).await,
            connected => connected,
        }
    }

    /// Records that the agent has sent something.
    pub fn record_progress(&self) {
        self.progressed.set(true);
        self.failing_since.set(None);
    }

    /// Whether anything ever arrived.
    pub fn has_progressed(&self) -> bool {
        self.progressed.get()
    }

    /// Whether a new connection may help: the connection broke, an agent that had answered has lost its quorum, or the
    /// token has expired.
    pub fn should_retry(&self, failure: &Failure) -> bool {
        let may_pass = failure.exit() == Exit::Unavailable as u8 || failure.is_refused_token();
        failure.is_lost_connection() || (self.progressed.get() && may_pass)
    }

    /// Connects again, with a new token if the login has one. Returns `failure` if that has failed for too long, or if the
    /// agent would refuse the same token again. If the login has ended meanwhile, the user reads that at once.
    pub async fn reconnect(&self, session: &Session, failure: Failure) -> Result<Client, Failure> {
        if failure.is_refused_token() && (self.failing_since.get().is_some() || !session.renews_tokens()) {
            return Err(failure);
        }
        let since = match self.failing_since.get() {
            Some(since) => since,
            None => {
                let why = if failure.is_lost_connection() { "the connection to the agent broke".to_owned() } else { failure.what() };
                session.note(&format!("{why}; trying again"));
                Instant::now()
            }
        };
        self.failing_since.set(Some(since));
        let deadline = since + AGENT_UNAVAILABLE_MAX;
        while Instant::now() < deadline {
            sleep(CONNECT_RETRY_DELAY).await;
            match timeout_at(deadline, session.connect()).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(refused)) if is_final(&refused) => return Err(refused),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        Err(failure)
    }
}

/// Whether a failure to connect stays: nobody but the user can log in again.
fn is_final(failure: &Failure) -> bool {
    failure.exit() == Exit::Refused as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    #[test]
    fn only_failures_that_may_pass_are_retried() {
        let retries = Retries::default();
        let broken = Failure::from(Status::from_error(Box::new(std::io::Error::other("reset"))));
        let no_quorum = Failure::from(Status::unavailable("no quorum"));
        assert!(retries.should_retry(&broken));
        assert!(!retries.should_retry(&no_quorum));
        retries.record_progress();
        assert!(retries.should_retry(&no_quorum));
        assert!(!retries.should_retry(&Failure::from(Status::permission_denied("no"))));
        assert!(Retries::within_allocation().should_retry(&no_quorum));
        let expired = Failure::from(Status::unauthenticated("the token has expired"));
        assert!(retries.should_retry(&expired));
        assert!(!Retries::default().should_retry(&expired), "a token that was never accepted");
        assert!(is_final(&Failure::new(Exit::Refused, "the login has ended")));
        assert!(!is_final(&Failure::new(Exit::Unavailable, "no agent answers")) && !is_final(&no_quorum));
    }
}
