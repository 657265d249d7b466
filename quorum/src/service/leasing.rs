//! The parts of leases in the leader's memory: renewals and remaining times.

use crate::core::Core;
use crate::proposer::unserved;
use lattice_ledger::held;
use lattice_model::{NodeId, Principal};
use lattice_quorum_client::wire::{Answer, LeaseStatus, Refusal};
use std::time::Instant;

/// Refuses a request for a role lease that another agent holds, so that it needs no command. The
/// caller has confirmed that this member is the leader.
pub(super) fn held_by_another(core: &Core, name: &str, holder: &NodeId) -> Result<(), Refusal> {
    let ledger = core.agreed.ledger();
    match ledger.leases().find(|(n, _)| *n == name) {
        Some((_, lease)) if lease.holder != *holder => Err(held(name, lease)),
        Some(_) | None => Ok(()),
    }
}

/// Restarts the lease's clock. Only possible on the leader.
pub(super) async fn renew(core: &Core, name: &str, token: u64, holder: &NodeId, user: Option<&Principal>) -> Result<Answer, Refusal> {
    core.reads.pass().await.map_err(unserved)?;
    let lease = core.agreed.ledger().renewable(name, token, holder, user)?.clone();
    let mut clocks = core.leading.lease_clocks.lock();
    // If the clocks have not started yet, this lease's clock will start later than now.
    if clocks.as_mut().is_some_and(|clocks| !clocks.renew(name, &lease, Instant::now())) {
        return Err(Refusal::StaleLease { name: name.to_owned(), token });
    }
    Ok(Answer::Lease { token, ttl_ms: lease.ttl_ms })
}

/// All leases. The caller has confirmed that this member is the leader.
pub(super) fn list(core: &Core) -> Vec<LeaseStatus> {
    let now = Instant::now();
    let ledger = core.agreed.ledger();
    let clocks = core.leading.lease_clocks.lock();
    let status = ledger.leases().map(|(name, lease)| LeaseStatus {
        name: name.to_owned(),
        holder: lease.holder.clone(),
        user: lease.user.as_ref().map(|u| u.name.clone()),
        token: lease.token,
        ttl_ms: lease.ttl_ms,
        left_ms: clocks.as_ref().and_then(|c| c.left(name, lease, now)).and_then(|left| u64::try_from(left.as_millis()).ok()),
        problem: ledger.bad_holder(&lease.holder),
    });
    status.collect()
}
