//! Preemption: work is to save itself and to give its nodes back.

use crate::ids::CheckpointId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The highest preemption class: what has it is preempted for nobody.
pub const CLASS_MAX: u8 = 10;

/// That an allocation is to give its nodes back, as the quorum has it, for as long as the claim stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// Made by who asks: the key under which it may be asked twice, and the id of the checkpoint that is asked for because of it.
    pub id: CheckpointId,
    /// Who asks.
    pub by: String,
    /// Why, for people.
    pub reason: String,
    /// What for.
    pub cause: PreemptCause,
    /// How long it has to save itself, in milliseconds: extended once by half of it.
    pub deadline_ms: u64,
    /// Whether it then stays Suspended until somebody resumes it, instead of waiting for nodes.
    pub hold: bool,
    /// Why it could not save itself, where it was not ended for that: it goes on, and is asked no more because of this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// What work is preempted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreemptCause {
    /// Its owner or an operator asked for it.
    Request,
    /// One of its nodes is drained urgently.
    Drain,
}

impl PreemptCause {
    /// Whether what cannot save itself is ended all the same. Work on a node that drains may go on until it ends, or until the
    /// drain's deadline.
    pub fn ends_unsaved(self) -> bool {
        match self {
            Self::Request => true,
            Self::Drain => false,
        }
    }
}

impl fmt::Display for PreemptCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Request => "request",
            Self::Drain => "drain",
        })
    }
}

impl Preemption {
    /// Whether it is under way.
    pub fn stands(&self) -> bool {
        self.failed.is_none()
    }

    /// Two requests at once are one: the first one's checkpoint stays, the shorter deadline counts, and what either wants more is done.
    pub fn join(&mut self, other: &Self) {
        if other.cause.ends_unsaved() && !self.cause.ends_unsaved() {
            (self.cause, self.by, self.reason) = (other.cause, other.by.clone(), other.reason.clone());
        }
        self.deadline_ms = self.deadline_ms.min(other.deadline_ms);
        self.hold |= other.hold;
    }
}

impl fmt::Display for Preemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failed {
            None => write!(f, "being preempted by {}: {}; saves itself as checkpoint {}", self.by, self.reason, self.id.short()),
            Some(why) => write!(f, "goes on, since it could not save itself when {} asked ({}): {why}", self.by, self.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn asked(number: u128, cause: PreemptCause, hold: bool) -> Preemption {
        let id = CheckpointId(Uuid::from_u128(number));
        Preemption { id, by: format!("user {number}"), reason: "x".into(), cause, deadline_ms: 1000, hold, failed: None }
    }

    #[test]
    fn the_first_requests_checkpoint_is_the_one_and_the_harder_request_wins() {
        let mut first = asked(1, PreemptCause::Drain, false);
        first.join(&asked(2, PreemptCause::Request, true));
        assert_eq!((first.id, first.by.as_str(), first.hold), (asked(1, PreemptCause::Drain, false).id, "user 2", true));
        assert!(first.cause.ends_unsaved());
        let before = first.clone();
        first.join(&asked(3, PreemptCause::Drain, false));
        assert_eq!(first, before);
        first.join(&Preemption { deadline_ms: 5, ..asked(4, PreemptCause::Request, false) });
        first.join(&Preemption { deadline_ms: 5000, ..asked(5, PreemptCause::Request, false) });
        assert_eq!((first.id, first.deadline_ms), (before.id, 5));
    }
}
