//! Accesses to somebody's work that are written down before they happen: where this is not committed, they do not.

use super::refusal::Refusal;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_model::{AllocationId, AuditAction, NodeId, Principal};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Bytes of what is said of an access.
pub const DETAIL_BYTES_MAX: usize = 1024;
/// Bytes of what the agent says of an access: the rest names the agent ([`told_by`]).
pub const TEXT_BYTES_MAX: usize = DETAIL_BYTES_MAX - 128;
/// Accesses that are remembered, so that one which is sent again is recorded once.
const REMEMBERED_MAX: usize = 1024;

/// An access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Made by who asks: the idempotency key of the record.
    pub id: Uuid,
    /// Who.
    pub by: Principal,
    /// What.
    pub kind: AccessKind,
    /// To which allocation's work.
    pub allocation: Option<AllocationId>,
    /// On which node.
    pub node: Option<NodeId>,
    /// What a reader should know besides. An agent says at most [`TEXT_BYTES_MAX`] of it, without control characters;
    /// the member that it asks puts before that which agent it was.
    pub detail: String,
}

/// What an agent says of an access, with the agent's name from its certificate.
pub fn told_by(agent: &str, text: &str) -> String {
    format!("at {agent}: {text}")
}

/// What kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessKind {
    AttachStarted,
    AttachEnded,
    LogsRead,
    LaunchStarted,
    LaunchAborted,
    AuditExported,
    MeasurementsRead,
    WorkSignalled,
}

impl AccessKind {
    fn action(self) -> AuditAction {
        match self {
            Self::AttachStarted => AuditAction::AttachStarted,
            Self::AttachEnded => AuditAction::AttachEnded,
            Self::LogsRead => AuditAction::LogsRead,
            Self::LaunchStarted => AuditAction::LaunchStarted,
            Self::LaunchAborted => AuditAction::LaunchAborted,
            Self::AuditExported => AuditAction::AuditExported,
            Self::MeasurementsRead => AuditAction::MeasurementsRead,
            Self::WorkSignalled => AuditAction::WorkSignalled,
        }
    }
}

impl Ledger {
    pub(super) fn record_access(&mut self, context: &mut ApplyContext, access: &Access) -> Result<Outcome, Refusal> {
        if access.detail.len() > DETAIL_BYTES_MAX {
            let (bytes, most) = (access.detail.len() as u64, DETAIL_BYTES_MAX as u64);
            return Err(Refusal::TooLarge { what: "what is said of an access".to_owned(), bytes, most });
        }
        if self.accesses.contains(&access.id) {
            return Ok(Outcome::Done);
        }
        self.accesses.push_back(access.id);
        if self.accesses.len() > REMEMBERED_MAX {
            self.accesses.pop_front();
        }
        let about = Subject { allocation: access.allocation, node: access.node.as_ref() };
        self.record(context, &access.by.name, access.kind.action(), about, access.detail.clone());
        Ok(Outcome::Done)
    }
}
