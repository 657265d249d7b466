//! Accesses to somebody's work that the audit log has before they happen: where that cannot be committed, they do not.
//!
//! | access | written down |
//! |---|---|
//! | an attached terminal | by whomever; its end as well |
//! | output; a launch, its keyboard and its end; a signal | where the caller is not the owner |
//! | what is measured of it | where the caller is not the owner, once an hour for each way of looking |
//! | an export of the audit log | always |

use super::Api;
use super::api::ANSWER;
use super::refusal::{status, unexpected};
use lattice_ledger::access::TEXT_BYTES_MAX;
use lattice_ledger::{Access, AccessKind};
use lattice_model::{Allocation, AllocationId, NodeId, Principal};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, Refusal, Request as Ask};
use std::time::{Duration, Instant};
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
            Err(error) => Err(not_written(&error)),
        }
    }

    /// Writes down what somebody who is not the owner is about to do; nothing where it is the owner.
    pub(super) async fn not_unseen(&self, id: Uuid, by: &Principal, kind: AccessKind, whose: &Whose<'_>, what: &str) -> Result<(), Status> {
        if by.owns(whose.owner) {
            return Ok(());
        }
        self.written_down(self.access(id, by, kind, whose, what)).await
    }

    /// Writes down that somebody who is not the owner is about to look at what is measured, by this command; once an hour.
    pub(super) async fn looked_at(&self, by: &Principal, allocation: &Allocation, command: &'static str) -> Result<(), Status> {
        let (look, now) = ((by.uid, allocation.id, command), Instant::now());
        if by.owns(&allocation.owner) || self.looks.stands(&look, now) {
            return Ok(());
        }
        let whose = Whose { allocation: allocation.id, owner: &allocation.owner, node: None };
        self.written_down(self.access(Uuid::new_v4(), by, AccessKind::MeasurementsRead, &whose, command)).await?;
        self.looks.remember(look, now);
        Ok(())
    }

    /// That the audit log is exported.
    pub(super) fn export_access(&self, by: Principal, filter: &str) -> Access {
        Access { id: Uuid::new_v4(), by, kind: AccessKind::AuditExported, allocation: None, node: None, detail: recordable(filter) }
    }

    pub(super) fn access(&self, id: Uuid, by: &Principal, kind: AccessKind, whose: &Whose<'_>, what: &str) -> Access {
        let detail = recordable(what);
        Access { id, by: by.clone(), kind, allocation: Some(whose.allocation), node: whose.node.cloned(), detail }
    }

    /// Writes down how a session ended, as soon as the quorum takes it.
    pub(super) async fn ended(&self, start: &Access, how: &str) {
        let detail = recordable(&format!("session {}: {how}", start.id.simple()));
        let end = Access { id: Uuid::new_v4(), kind: AccessKind::AttachEnded, detail, ..start.clone() };
        let (by, allocation) = (end.by.name.clone(), end.allocation);
        if let Err(error) = self.quorum.call(&Ask::RecordAccess(end), END_PATIENCE).await {
            tracing::warn!(%error, by, ?allocation, session = %start.id, "the end of an attached terminal is not in the audit log");
        }
    }
}

fn not_written(error: &CallError) -> Status {
    match error {
        CallError::Unavailable { .. } | CallError::Refused(Refusal::DiskFull { .. }) => {
            Status::unavailable(format!("this must be in the audit log before it happens, and the log cannot be written now: {error}"))
        }
        CallError::Refused(_) => status(error),
    }
}

/// As the audit log takes it: control characters escaped, and no longer than it may be. Which agent says it, the quorum adds.
fn recordable(text: &str) -> String {
    let mut recorded = String::new();
    for character in text.chars() {
        let before = recorded.len();
        if character.is_control() {
            recorded.extend(character.escape_default());
        } else {
            recorded.push(character);
        }
        if recorded.len() > TEXT_BYTES_MAX {
            recorded.truncate(before);
            break;
        }
    }
    recorded
}

/// A command line as people read it.
pub(super) fn shown(argv: &[String]) -> String {
    if argv.is_empty() { "a shell".to_owned() } else { argv.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_one_line_of_bounded_length() {
        assert_eq!(recordable("sh -c 'a\nb'\u{7f} é"), "sh -c 'a\\nb'\\u{7f} é");
        for long in ["\n".repeat(2000), "é".repeat(2000)] {
            let bytes = recordable(&long).len();
            assert!(bytes <= TEXT_BYTES_MAX && bytes > TEXT_BYTES_MAX - 4, "{bytes}");
        }
    }
}
