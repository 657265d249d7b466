//! Unreachable members. All callers share the result of a failed attempt: the longer a member is
//! unreachable, the less often a connection is tried, however many callers there are.

use crate::status_text;
use parking_lot::{Mutex, MutexGuard};
use std::time::Duration;
use thiserror::Error;
use tokio::time::Instant;
use tonic::Status;

/// A connection is tried again after this fraction (1/8) of the time that the member has been
/// unreachable, but at most this long.
const RETRY_PART: u32 = 8;
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Whether one member is unreachable.
#[derive(Debug, Default)]
pub(super) struct Reachability(Mutex<Option<Since>>);

#[derive(Debug)]
struct Since {
    /// The first of the consecutive failed attempts.
    first: Instant,
    /// When the next attempt is allowed.
    next: Instant,
    status: Status,
}

/// The error of the last attempt.
#[derive(Debug, Error)]
#[error("{}", status_text(.0))]
pub(super) struct Unreachable(Status);

impl Reachability {
    fn state(&self) -> MutexGuard<'_, Option<Since>> {
        self.0.lock()
    }

    /// Permits an attempt. The error says why the member must not be tried now. After each permission
    /// to try an unreachable member, all callers must wait for a pause.
    pub(super) fn permit_attempt(&self, now: Instant) -> Result<(), Unreachable> {
        match &mut *self.state() {
            Some(since) if now < since.next => Err(Unreachable(since.status.clone())),
            Some(since) => {
                since.next = now + retry_pause(since.first, now);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Records the result of an attempt.
    pub(super) fn record_result<T>(&self, answer: &Result<T, Status>, now: Instant) {
        // Only errors made on this side have a source; any error that a member sent is an answer.
        let failed = answer.as_ref().err().filter(|status| std::error::Error::source(*status).is_some());
        let mut state = self.state();
        *state = failed.map(|status| {
            let first = state.as_ref().map_or(now, |since| since.first);
            Since { first, next: now + retry_pause(first, now), status: status.clone() }
        });
    }
}

fn retry_pause(first: Instant, now: Instant) -> Duration {
    (now.saturating_duration_since(first) / RETRY_PART).min(RETRY_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_longer_a_member_is_unreachable_the_less_often_it_is_tried() {
        let (reachability, began) = (Reachability::default(), Instant::now());
        let refused = || Err::<(), _>(Status::from_error(Box::new(io::Error::from(io::ErrorKind::ConnectionRefused))));
        let mut tries = Vec::new();
        // Many callers, each retrying every few milliseconds.
        for ms in 0..60_000 {
            let now = began + Duration::from_millis(ms);
            if reachability.permit_attempt(now).is_ok() {
                tries.push(ms);
                reachability.record_result(&refused(), now);
            }
        }
        let between = |from, to| tries.iter().filter(|at| (from..to).contains(*at)).count();
        assert!(between(0, 200) >= 20, "at first at once: {tries:?}");
        assert!(between(0, 10_000) < 100 && (48..=50).contains(&between(10_000, 60_000)), "{tries:?}");
        let later = began + Duration::from_secs(61);
        assert!(
            reachability.permit_attempt(later).is_ok()
                && reachability.permit_attempt(later).is_err_and(|error| error.to_string().contains("refused")),
            "one for all"
        );
        // A refusal is an answer, too.
        reachability.record_result(&Err::<(), _>(Status::unavailable("no leader")), later);
        assert!(reachability.permit_attempt(later).is_ok() && reachability.permit_attempt(later).is_ok());
    }
}
