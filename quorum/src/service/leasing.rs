//! Leases, as far as they are the leader's memory: renewals, and how long each still lives.

use crate::core::Core;
use crate::proposer::unserved;
use lattice_ledger::held;
use lattice_model::{NodeId, Principal};
use lattice_quorum_client::wire::{Answer, LeaseStanding, Refusal};
use std::time::Instant;

/// An agent's role that another agent has: said without a command, by a member that has made sure that it leads.
pub(super) fn held_by_another(core: &Core, name: &str, holder: &NodeId) -> Result<(), Refusal> {
    let ledger = core.agreed.ledger();
    match ledger.leases().find(|(n, _)| *n == name) {
        Some((_, lease)) if lease.holder != *holder => Err(held(name, lease)),
        Some(_) | None => Ok(()),
    }
}

/// Sets the lease's clock anew. Only the leader can.
pub(super) async fn renew(core: &Core, name: &str, token: u64, holder: &NodeId, user: Option<&Principal>) -> Result<Answer, Refusal> {
    core.reads.pass().await.map_err(unserved)?;
    let lease = core.agreed.ledger().renewable(name, token, holder, user)?.clone();
    let mut clocks = core.lease_clocks.lock();
    // Where they have not begun yet, this lease's clock begins later than now.
    if clocks.as_mut().is_some_and(|clocks| !clocks.renew(name, &lease, Instant::now())) {
        return Err(Refusal::StaleLease { name: name.to_owned(), token });
    }
    Ok(Answer::Lease { token, ttl_ms: lease.ttl_ms })
}

/// All leases, for a caller that has made sure that this member leads.
pub(super) fn list(core: &Core) -> Vec<LeaseStanding> {
    let now = Instant::now();
    let ledger = core.agreed.ledger();
    let clocks = core.lease_clocks.lock();
    let standing = ledger.leases().map(|(name, lease)| LeaseStanding {
        name: name.to_owned(),
        holder: lease.holder.clone(),
        user: lease.user.as_ref().map(|u| u.name.clone()),
        token: lease.token,
        ttl_ms: lease.ttl_ms,
        left_ms: clocks.as_ref().and_then(|c| c.left(name, lease, now)).and_then(|left| u64::try_from(left.as_millis()).ok()),
        bad: ledger.bad_holder(&lease.holder),
    });
    standing.collect()
}
