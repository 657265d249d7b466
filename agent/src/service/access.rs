//! Accesses to somebody's work that the audit log has before they happen: where that cannot be committed, they do not.
//!
//! | access | written down |
//! |---|---|
//! | an attached terminal | by whomever; its end as well |
//! | output; a launch, its keyboard and its end; a signal | where the caller is not the owner |
//! | what is measured of it | where the caller is not the owner, once an hour for each way of looking |
//! | an export of the audit log | always |

use super::Api;
use super::allocations::ANSWER;
use super::refusal::{status, unexpected};
use lattice_model::{Allocation, AllocationId, NodeId, Principal};
use lattice_quorum::client::CallError;
use lattice_quorum::ledger::access::TEXT_BYTES_MAX;
use lattice_quorum::ledger::{Access, AccessKind};
use lattice_quorum::wire::{Answer, Refusal, Request as Ask};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Status;
use uuid::Uuid;

/// How long the end of a session waits for the quorum.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// How long a look at what was measured stands for those that follow.
const LOOK_STANDS: Duration = Duration::from_secs(3600);
/// Looks that are remembered; of more, the oldest are written down again when they are repeated.
const LOOKS_MAX: usize = 4096;

/// Who looked at what is measured of somebody else's work within the last hour: whose uid, at which allocation, how. Cloneable; all clones
/// are one.
#[derive(Clone, Default)]
pub struct Looks(Arc<Mutex<BTreeMap<Look, Instant>>>);

type Look = (u32, AllocationId, &'static str);

impl Looks {
    fn stands(&self, look: &Look, now: Instant) -> bool {
        let mut looks = self.0.lock();
        looks.retain(|_, at| now.saturating_duration_since(*at) < LOOK_STANDS);
        looks.contains_key(look)
    }

    fn remember(&self, look: Look, now: Instant) {
        let mut looks = self.0.lock();
        looks.insert(look, now);
        while looks.len() > LOOKS_MAX
            && let Some(oldest) = looks.iter().min_by_key(|(_, at)| **at).map(|(look, _)| *look)
        {
            looks.remove(&oldest);
        }
    }
}

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
            Status::unavailable(format!("the audit log must have this before it happens, and cannot now: {error}"))
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

    #[test]
    fn a_look_stands_for_an_hour_for_who_took_it_and_that_way_alone() {
        let (looks, began, id) = (Looks::default(), Instant::now(), AllocationId(Uuid::from_u128(1)));
        let after = |seconds| began + Duration::from_secs(seconds);
        looks.remember((0, id, "top"), began);
        assert!(looks.stands(&(0, id, "top"), after(3599)));
        for other in [(1, id, "top"), (0, id, "diag"), (0, AllocationId(Uuid::from_u128(2)), "top")] {
            assert!(!looks.stands(&other, after(1)), "{other:?}");
        }
        assert!(!looks.stands(&(0, id, "top"), after(3600)));
        for n in 0..=LOOKS_MAX as u64 {
            looks.remember((7, AllocationId(Uuid::from_u128(u128::from(n) + 10)), "top"), after(3600 + n));
        }
        assert_eq!(looks.0.lock().len(), LOOKS_MAX);
    }
}
