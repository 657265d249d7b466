//! Attempts with one member after another: why each failed, and the pauses between rounds.

use crate::wire::Refusal;
use lattice_model::Backoff;
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, sleep};

/// Pauses between rounds over all members; a random part of up to half is subtracted.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
pub(super) const NO_ANSWER: &str = "no answer in time";

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The quorum refused the request; a retry would not help.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No member could answer in time. A command may still have been committed.
    #[error("the quorum cannot be reached: {why}")]
    Unavailable {
        /// The latest error of each member.
        why: String,
    },
}

/// The latest error of each member: so the answer of a member that is alive is not hidden by those
/// that are down.
#[derive(Default)]
pub(super) struct Failures(BTreeMap<String, String>);

impl Failures {
    pub(super) fn add(&mut self, address: &str, why: String) {
        self.0.insert(address.to_owned(), why);
    }
}

impl From<Failures> for CallError {
    fn from(Failures(failures): Failures) -> Self {
        if failures.is_empty() {
            return Self::Unavailable { why: "no members are configured".to_owned() };
        }
        let each: Vec<_> = failures.iter().map(|(member, why)| format!("{member}: {why}")).collect();
        Self::Unavailable { why: each.join("; ") }
    }
}

/// Growing pauses with jitter, until the deadline.
pub(super) struct Rounds {
    end: Instant,
    pauses: Backoff,
}

impl Rounds {
    pub(super) fn new(end: Instant) -> Self {
        Self { end, pauses: PAUSES }
    }

    /// Waits; returns false when the deadline has passed.
    pub(super) async fn pause(&mut self) -> bool {
        let pause = self.pauses.next_pause().mul_f64(rand::random_range(0.5..1.0));
        if Instant::now() + pause >= self.end {
            return false;
        }
        sleep(pause).await;
        true
    }
}

/// Transport-level errors that every other member would also return, as refusals.
pub(super) fn refusal_of(status: &tonic::Status) -> Option<Refusal> {
    match status.code() {
        tonic::Code::InvalidArgument | tonic::Code::OutOfRange => Some(Refusal::Malformed { why: status.message().to_owned() }),
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => {
            Some(Refusal::CertificateRefused { why: status.message().to_owned() })
        }
        _ => None,
    }
}
