//! Interactive sessions: which user has the terminal of an allocation that was submitted for a
//! session. Sessions survive restarts of agents and members, and end with the claim under which
//! they were opened.
//!
//! An allocation has at most one session. The documents require this only for sensitive work.

use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::{AllocationId, AllocationState, AuditAction, EndReason, InteractiveSession, Principal};
use uuid::Uuid;

/// Largest number of sessions.
pub const SESSIONS_MAX: usize = 10_000;

impl Ledger {
    /// All sessions, by allocation.
    pub fn sessions(&self) -> impl Iterator<Item = &InteractiveSession> {
        self.sessions.values()
    }

    /// Records a session. A repetition with the same id succeeds.
    pub(super) fn create_session(
        &mut self,
        context: &mut ApplyContext,
        id: Uuid,
        of: AllocationId,
        by: &Principal,
    ) -> Result<Outcome, Refusal> {
        let Some(allocation) = self.allocations.get(&of) else {
            return Err(self.no_such_allocation(of));
        };
        if !by.owns(&allocation.owner) {
            return Err(Refusal::NotYours { id: of, owner: allocation.owner.name.clone() });
        }
        if !allocation.spec.session {
            return Err(Refusal::NotASession { id: of });
        }
        match self.sessions.get(&of) {
            Some(there) if there.id == id => return Ok(Outcome::Done),
            Some(there) => return Err(Refusal::SessionExists { id: of, session: there.id, node: there.node.clone() }),
            None if self.sessions.len() >= SESSIONS_MAX => {
                return Err(Refusal::TooMany { what: "sessions".to_owned(), most: SESSIONS_MAX as u64 });
            }
            None => {}
        }
        let node = allocation.nodes().next().filter(|_| allocation.state == AllocationState::Running).cloned();
        let Some(node) = node else { return Err(Refusal::NotRunning { id: of, state: allocation.state }) };
        let session = InteractiveSession { id, allocation: of, user: by.name.clone(), uid: by.uid, node: node.clone(), since: context.at };
        self.sessions.insert(of, session);
        let about = Subject { allocation: Some(of), node: Some(&node) };
        self.record(context, &by.name, AuditAction::SessionCreated, about, format!("session {}", id.simple()));
        Ok(Outcome::Done)
    }

    /// Ends the session and its allocation.
    pub(super) fn delete_session(
        &mut self,
        context: &mut ApplyContext,
        id: Uuid,
        of: AllocationId,
        by: &Principal,
    ) -> Result<Outcome, Refusal> {
        let Some(allocation) = self.allocations.get(&of) else {
            return Err(self.no_such_allocation(of));
        };
        if !self.may("SessionService/Delete", by, &allocation.owner, &allocation.spec.tenant) {
            return Err(Refusal::NotYours { id: of, owner: allocation.owner.name.clone() });
        }
        // The session has already ended: the first answer was lost, or its walltime ran out before.
        if allocation.state.is_terminal() {
            return Ok(Outcome::Done);
        }
        if self.sessions.get(&of).is_none_or(|there| there.id != id) {
            return Err(Refusal::NoSuchSession { id });
        }
        self.drop_session(context, of, &by.name);
        self.end_for_good(context, of, EndReason::Exited { code: 0 }, &by.name);
        Ok(Outcome::Done)
    }

    /// Removes the session of an allocation, if there is one.
    pub(super) fn drop_session(&mut self, context: &mut ApplyContext, of: AllocationId, actor: &str) {
        if let Some(session) = self.sessions.remove(&of) {
            let about = Subject { allocation: Some(of), node: Some(&session.node) };
            self.record(context, actor, AuditAction::SessionDeleted, about, format!("session {}", session.id.simple()));
        }
    }
}
