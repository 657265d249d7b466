//! Accesses to somebody's work that the audit log has before they happen: where that cannot be committed, they do not.
//!
//! | access | written down |
//! |---|---|
//! | an attached terminal | by whomever; its end as well |
//! | output; a launch, its keyboard and its end | where the caller is not the owner |
//! | an export of the audit log | always |

use super::Api;
use super::allocations::ANSWER;
use super::refusal::{status, unexpected};
use lattice_model::{AllocationId, NodeId, Principal};
use lattice_quorum::client::CallError;
use lattice_quorum::ledger::access::DETAIL_BYTES_MAX;
use lattice_quorum::ledger::{Access, AccessKind};
use lattice_quorum::wire::{Answer, Request as Ask};
use std::time::Duration;
use tonic::Status;
use uuid::Uuid;

/// How long the end of a session waits for the quorum.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// Whose work is looked into, and where.
pub(super) struct Whose<'a> {
    pub allocation: AllocationId,
    pub owner: &'a Principal,
    pub node: Option<&'a NodeId>,
}

impl Api {
    /// Writes an access down.
    pub(super) async fn written_down(&self, access: Access) -> Result<(), Status> {
        match self.quorum.call(&Ask::RecordAccess(access), ANSWER).await {
            Ok(Answer::Done { .. }) => Ok(()),
            Ok(other) => Err(unexpected(&other)),
            Err(error @ CallError::Unavailable { .. }) => {
                Err(Status::unavailable(format!("the audit log must have this before it happens, and cannot now: {error}")))
            }
            Err(error) => Err(status(&error)),
        }
    }

    /// Writes down what somebody who is not the owner is about to do; nothing where it is the owner.
    pub(super) async fn not_unseen(&self, id: Uuid, by: &Principal, kind: AccessKind, whose: &Whose<'_>, what: &str) -> Result<(), Status> {
        if by.owns(whose.owner) {
            return Ok(());
        }
        self.written_down(self.access(id, by, kind, whose, what)).await
    }

    /// That the audit log is exported.
    pub(super) fn export_access(&self, by: Principal, filter: &str) -> Access {
        let detail = bounded(format!("at {}: {filter}", self.context.me));
        Access { id: Uuid::new_v4(), by, kind: AccessKind::AuditExported, allocation: None, node: None, detail }
    }

    pub(super) fn access(&self, id: Uuid, by: &Principal, kind: AccessKind, whose: &Whose<'_>, what: &str) -> Access {
        let detail = bounded(format!("at {}: {what}", self.context.me));
        Access { id, by: by.clone(), kind, allocation: Some(whose.allocation), node: whose.node.cloned(), detail }
    }

    /// Writes down how a session ended, as soon as the quorum takes it.
    pub(super) async fn ended(&self, start: &Access, how: &str) {
        let detail = bounded(format!("at {}: session {}: {how}", self.context.me, start.id.simple()));
        let end = Access { id: Uuid::new_v4(), kind: AccessKind::AttachEnded, detail, ..start.clone() };
        let (by, allocation) = (end.by.name.clone(), end.allocation);
        if let Err(error) = self.quorum.call(&Ask::RecordAccess(end), END_PATIENCE).await {
            tracing::warn!(%error, by, ?allocation, session = %start.id, "the end of an attached terminal is not in the audit log");
        }
    }
}

fn bounded(mut text: String) -> String {
    let mut end = text.len().min(DETAIL_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// A command line as people read it.
pub(super) fn shown(argv: &[String]) -> String {
    if argv.is_empty() { "a shell".to_owned() } else { argv.join(" ") }
}
