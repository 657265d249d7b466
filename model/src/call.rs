//! What the servers of a launch's ranks, one on each of its nodes, ask each other.
//!
//! ```text
//!   server of part 3 ─ asks ─▶ agents of the tree ─▶ head ─▶ agents ─▶ server of part 0
//!                    ◀─ answers ─────────────────────────────────────
//! ```
//!
//! Nobody on the way keeps a call. Who asks keeps what is not answered, and asks again from time to time; who answers does nothing
//! twice: both live in shims, which outlive agents.

use serde::{Deserialize, Serialize};

/// Bytes of a call's body at most.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One of them. Parts are nodes by their place in the launch's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub from: u32,
    pub to: u32,
    pub service: Service,
    pub leg: Leg,
    /// Which of the asking part's at this service. An answer has that of what it answers.
    pub number: u64,
    /// The service's own. An answer without one: there is no such service at that part.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
}

/// Whose affair it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Service {
    /// Names that ranks publish by PMI.
    Names,
    /// What ranks publish by PMIx.
    Published,
    /// What one rank has put by PMIx, before any fence.
    Modex,
    /// Which ranks died, for those that are told so by PMIx.
    Deaths,
}

/// Which way it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leg {
    Asks,
    Answers,
}

impl Call {
    /// The answer to it.
    pub fn answer(&self, body: Vec<u8>) -> Self {
        Self { from: self.to, to: self.from, service: self.service, leg: Leg::Answers, number: self.number, body }
    }

    /// The answer to it where the service is not there; none to an answer.
    pub fn unserved(&self) -> Option<Self> {
        (self.leg == Leg::Asks).then(|| self.answer(Vec::new()))
    }
}
