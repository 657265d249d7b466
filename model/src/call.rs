//! Calls between the servers of a launch's ranks; one server runs on each node of the launch.
//!
//! ```text
//!   server of part 3 ─ asks ─▶ agents of the tree ─▶ head ─▶ agents ─▶ server of part 0
//!                    ◀─ answers ─────────────────────────────────────
//! ```
//!
//! Agents on the path store no call. The calling server keeps each call until it is answered, and
//! repeats it from time to time; the answering server executes no call twice. Both servers live in
//! shims, which survive a restart of their agent.

use serde::{Deserialize, Serialize};

/// Largest size of a call's body, in bytes.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One call or answer. A part is a node's index in the launch's node list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub from: u32,
    pub to: u32,
    pub service: Service,
    pub kind: CallKind,
    /// Counted by the calling part for each service. An answer carries the number of its call.
    pub number: u64,
    /// Encoded by the service. `None` in an answer: the answering part does not run that service.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
}

/// The service that a call belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Service {
    /// Names that ranks publish by PMI.
    Names,
    /// Data that ranks publish by PMIx.
    Published,
    /// What a single rank has put by PMIx, requested before any fence.
    Modex,
    /// Which ranks died, for ranks that registered for such PMIx events.
    Deaths,
}

/// Whether it is a call or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallKind {
    Request,
    Reply,
}

impl Call {
    /// The answer to this call.
    pub fn answer(&self, body: Vec<u8>) -> Self {
        Self { from: self.to, to: self.from, service: self.service, kind: CallKind::Reply, number: self.number, body }
    }

    /// The answer if this part does not run the service; `None` if this is itself an answer.
    pub fn unserved(&self) -> Option<Self> {
        (self.kind == CallKind::Request).then(|| self.answer(Vec::new()))
    }
}
