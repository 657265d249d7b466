//! Accesses to a user's work that must be in the audit log before they happen: if the record cannot
//! be committed, the access is refused. (Denied calls are recorded afterwards: `denials`.)
//!
//! | access | recorded |
//! |---|---|
//! | an attached terminal | always; its end as well |
//! | output; a launch, its keyboard and its end; a signal | if the caller is not the owner |
//! | measurements of the work | if the caller is not the owner, once an hour for each command |
//! | the request and the removal of a checkpoint | if the caller is not the owner |
//! | an export of the audit log | always |

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::refusal::{status, unexpected};
use lattice_ledger::access::TEXT_BYTES_MAX;
use lattice_ledger::{Access, AccessKind};
use lattice_model::{Allocation, AllocationId, NodeId, Principal};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, Refusal, Request as Ask};
use std::time::{Duration, Instant};
use tonic::Status;
use uuid::Uuid;

/// How long recording the end of a session waits for the quorum.
const END_RECORD_TIMEOUT: Duration = Duration::from_secs(60);

/// The work that is accessed, its owner, and the node.
pub(super) struct AccessTarget<'a> {
    pub allocation: AllocationId,
    pub owner: &'a Principal,
    pub node: Option<&'a NodeId>,
}

impl Api {
    /// Records an access in the audit log.
    pub(super) async fn record_access(&self, access: Access) -> Result<(), Status> {
        match self.quorum.call(&Ask::RecordAccess(access), QUORUM_TIMEOUT).await {
            Ok(Answer::Done { .. }) => Ok(()),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(not_written(&error)),
        }
    }

    /// Records an access that is about to happen, unless the caller is the owner.
    pub(super) async fn audit_unless_owner(
        &self,
        id: Uuid,
        by: &Principal,
        kind: AccessKind,
        whose: &AccessTarget<'_>,
        what: &str,
    ) -> Result<(), Status> {
        if by.owns(whose.owner) {
            return Ok(());
        }
        self.record_access(self.access(id, by, kind, whose, what)).await
    }

    /// Records, once an hour, that a caller who is not the owner is about to read measurements by
    /// this command.
    pub(super) async fn audit_measurements_read(
        &self,
        by: &Principal,
        allocation: &Allocation,
        command: &'static str,
    ) -> Result<(), Status> {
        let (look, now) = ((by.uid, allocation.id, command), Instant::now());
        if by.owns(&allocation.owner) || self.limits.measurement_reads.is_recorded(&look, now) {
            return Ok(());
        }
        let accessed = AccessTarget { allocation: allocation.id, owner: &allocation.owner, node: None };
        self.record_access(self.access(Uuid::new_v4(), by, AccessKind::MeasurementsRead, &accessed, command)).await?;
        self.limits.measurement_reads.remember(look, now);
        Ok(())
    }

    /// The record of an export of the audit log.
    pub(super) fn export_access(&self, by: Principal, filter: &str) -> Access {
        Access { id: Uuid::new_v4(), by, kind: AccessKind::AuditExported, allocation: None, node: None, detail: recordable(filter) }
    }

    pub(super) fn access(&self, id: Uuid, by: &Principal, kind: AccessKind, whose: &AccessTarget<'_>, what: &str) -> Access {
        let detail = recordable(what);
        Access { id, by: by.clone(), kind, allocation: Some(whose.allocation), node: whose.node.cloned(), detail }
    }

    /// Records how a session ended, as soon as the quorum accepts it.
    pub(super) async fn ended(&self, start: &Access, how: &str) {
        let detail = recordable(&format!("session {}: {how}", start.id.simple()));
        let end = Access { id: Uuid::new_v4(), kind: AccessKind::AttachEnded, detail, ..start.clone() };
        let (by, allocation) = (end.by.name.clone(), end.allocation);
        if let Err(error) = self.quorum.call(&Ask::RecordAccess(end), END_RECORD_TIMEOUT).await {
            tracing::warn!(%error, by, ?allocation, session = %start.id, "the end of an attached terminal is not in the audit log");
        }
    }
}

fn not_written(error: &CallError) -> Status {
    match error {
        CallError::Unavailable { .. } | CallError::Refused(Refusal::DiskFull { .. }) => Status::unavailable(format!(
            "access to work must be recorded in the audit log first, and the log cannot be written now: {error}"
        )),
        CallError::Refused(_) => status(error),
    }
}

/// The text in the form of the audit log: control characters escaped, and cut to its maximum. The
/// quorum adds the name of the agent.
pub(super) fn recordable(text: &str) -> String {
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

/// A command line for people.
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
