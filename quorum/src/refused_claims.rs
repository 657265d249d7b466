//! The reasons of refused claims, in the leader's memory, to explain why an allocation waits. A
//! refusal changes nothing, so the log does not contain it.

use lattice_ledger::Action;
use lattice_model::{AllocationId, Timestamp};
use lattice_quorum_client::wire::{Refusal, RefusedClaim};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;

/// Largest number of claims remembered; the oldest are dropped.
const KEPT_MAX: usize = 256;

/// The latest refused claim of each allocation, oldest first.
#[derive(Debug, Default)]
pub struct RefusedClaims(Mutex<VecDeque<RefusedClaim>>);

impl RefusedClaims {
    /// The allocation that a command claims nodes for.
    pub fn claimed(action: &Action) -> Option<AllocationId> {
        match action {
            Action::Claim(claim) => Some(claim.allocation),
            _ => None,
        }
    }

    /// Records that a claim for `allocation` was granted or refused.
    pub fn record<T>(&self, allocation: AllocationId, outcome: &Result<T, Refusal>, at: Timestamp) {
        // `WaitsAhead` says nothing about nodes, so an earlier reason stays.
        if matches!(outcome, Err(Refusal::WaitsAhead { .. })) {
            return;
        }
        let mut kept = self.kept();
        kept.retain(|claim| claim.allocation != allocation);
        if let Err(Refusal::Conflict { conflicts }) = outcome {
            if kept.len() == KEPT_MAX {
                kept.pop_front();
            }
            kept.push_back(RefusedClaim { allocation, at, conflicts: conflicts.clone() });
        }
    }

    /// The latest claim for `allocation`, if it was refused.
    pub fn of(&self, allocation: AllocationId) -> Option<RefusedClaim> {
        self.kept().iter().find(|claim| claim.allocation == allocation).cloned()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<RefusedClaim>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_quorum_client::wire::Conflict;

    #[test]
    fn the_latest_refusal_stays_until_a_claim_is_granted_and_the_oldest_is_dropped() {
        let claims = RefusedClaims::default();
        let id = |number: u128| AllocationId(uuid::Uuid::from_u128(number));
        let refused = |why: &str| {
            let conflicts = vec![Conflict { node: "n1".parse().unwrap(), holder: None, why: why.to_owned() }];
            Err::<(), _>(Refusal::Conflict { conflicts })
        };
        claims.record(id(1), &refused("first"), Timestamp(1));
        claims.record(id(1), &refused("second"), Timestamp(2));
        let last = claims.of(id(1)).unwrap();
        assert_eq!((last.at, last.conflicts[0].why.as_str()), (Timestamp(2), "second"));
        claims.record(id(1), &Err::<(), _>(Refusal::WaitsAhead { id: id(1), ahead: id(2) }), Timestamp(3));
        assert!(claims.of(id(1)).is_some());
        claims.record(id(1), &Ok(()), Timestamp(3));
        assert_eq!(claims.of(id(1)), None);
        for number in 0..=KEPT_MAX as u128 {
            claims.record(id(number), &refused("full"), Timestamp(4));
        }
        assert_eq!(claims.of(id(0)), None);
        assert!(claims.of(id(1)).is_some() && claims.kept().len() == KEPT_MAX);
    }
}
