//! Leases: one holder at a time, fenced by a token that rises. Time is the leader's: a lease ends by a command.

use super::{Ledger, Outcome, Step, Subject};
use crate::wire::Refusal;
use lattice_model::{AuditAction, NodeId, Revision};
use serde::{Deserialize, Serialize};

/// Leases at most.
const LEASES_MAX: usize = 1024;
/// The shortest and longest time to live, in milliseconds.
const TTL_MS: std::ops::RangeInclusive<u64> = 500..=3_600_000;

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Who holds it.
    pub holder: NodeId,
    /// The fencing token; what is done under an older one is refused.
    pub token: u64,
    /// How long it lives after each renewal, in milliseconds, by the leader's monotonic clock.
    pub ttl_ms: u64,
    /// The revision of its grant or last renewal.
    pub renewed: Revision,
}

impl Ledger {
    pub(super) fn acquire_lease(&mut self, step: &mut Step, name: &str, holder: &NodeId, ttl_ms: u64) -> Result<Outcome, Refusal> {
        if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
            return Err(Refusal::Malformed { why: "a lease's name has 1 to 128 bytes without control characters".to_owned() });
        }
        if !TTL_MS.contains(&ttl_ms) {
            return Err(Refusal::Malformed { why: format!("a lease lives {} to {} ms", TTL_MS.start(), TTL_MS.end()) });
        }
        if let Some(lease) = self.leases.get_mut(name) {
            if lease.holder != *holder {
                return Err(Refusal::LeaseHeld { name: name.to_owned(), holder: lease.holder.clone() });
            }
            lease.ttl_ms = ttl_ms;
            lease.renewed = step.revision;
            return Ok(Outcome::Leased { token: lease.token });
        }
        if self.leases.len() >= LEASES_MAX {
            return Err(Refusal::TooLarge { what: "the list of leases".to_owned(), bytes: LEASES_MAX as u64 + 1, most: LEASES_MAX as u64 });
        }
        self.lease_token += 1;
        let token = self.lease_token;
        let lease = Lease { holder: holder.clone(), token, ttl_ms, renewed: step.revision };
        self.leases.insert(name.to_owned(), lease);
        let about = Subject { allocation: None, node: Some(holder) };
        self.record(step, &format!("node:{holder}"), AuditAction::LeaseGranted, about, format!("{name}, token {token}"));
        Ok(Outcome::Leased { token })
    }

    pub(super) fn release_lease(&mut self, step: &mut Step, name: &str, token: u64) -> Result<Outcome, Refusal> {
        match self.leases.get(name) {
            Some(lease) if lease.token == token => {
                let actor = format!("node:{}", lease.holder);
                self.drop_lease(step, name, &actor, "given back");
                Ok(Outcome::Done)
            }
            // Given back before: the answer was lost on its way.
            None if token <= self.lease_token => Ok(Outcome::Done),
            Some(_) | None => Err(Refusal::StaleLease { name: name.to_owned(), token }),
        }
    }

    pub(super) fn expire_lease(&mut self, step: &mut Step, name: &str, token: u64, renewed: Revision) -> Result<Outcome, Refusal> {
        if self.leases.get(name).is_some_and(|l| l.token == token && l.renewed == renewed) {
            self.drop_lease(step, name, "quorum", "not renewed in time");
        }
        Ok(Outcome::Done)
    }

    fn drop_lease(&mut self, step: &mut Step, name: &str, actor: &str, why: &str) {
        let Some(lease) = self.leases.remove(name) else { return };
        let about = Subject { allocation: None, node: Some(&lease.holder) };
        self.record(step, actor, AuditAction::LeaseReleased, about, format!("{name}, token {}: {why}", lease.token));
    }

    /// All leases.
    pub fn leases(&self) -> impl Iterator<Item = (&str, &Lease)> {
        self.leases.iter().map(|(name, lease)| (name.as_str(), lease))
    }
}
