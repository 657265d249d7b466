//! The claims of one round, in requests to the quorum.
//!
//! ```text
//!   claims of the plan ─▶ request: each waits for the one before it in its queue ─▶ outcomes
//!             ▲                                                                      │
//!             └── again: claims that waited for one that a limit refused ◀───────────┘
//! ```

use crate::ClaimResult;
use lattice_model::tenant::Quota;
use lattice_model::{Allocation, AllocationId, Claim, Revision};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{CLAIMS_MAX, Claimed, Refusal};
use lattice_scheduler::View;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many nodes the claims of one request have together, unless it is one claim.
const REQUEST_NODES_MAX: usize = 16_384;

/// See the module documentation.
pub struct Claiming<'v> {
    view: &'v View,
    left: VecDeque<Claim>,
    /// The queues whose lease is another agent's.
    pub lost: BTreeSet<String>,
    /// The queues for which the view is outdated.
    pub refused: BTreeSet<String>,
    /// Whether the quorum answered.
    pub is_answered: bool,
    /// The revision of the last claim that was granted.
    pub granted: Revision,
}

impl<'v> Claiming<'v> {
    /// These claims for allocations of the view, each queue's in its order.
    pub fn of(view: &'v View, claims: Vec<Claim>) -> Self {
        Self { view, left: claims.into(), lost: BTreeSet::new(), refused: BTreeSet::new(), is_answered: true, granted: Revision(0) }
    }

    fn queue_of(&self, claim: &Claim) -> &'v str {
        self.view.allocations.get(&claim.allocation).map_or("", |allocation| self.view.queue_of(allocation))
    }

    /// The next claims, as many as fit in one request. Each waits for the one before it in its queue.
    /// `None`: nothing is left to claim.
    pub fn next_request(&mut self) -> Option<Vec<Claim>> {
        let (mut request, mut nodes, mut last): (Vec<Claim>, usize, BTreeMap<&str, AllocationId>) = (Vec::new(), 0, BTreeMap::new());
        while self.is_answered && request.len() < CLAIMS_MAX {
            let fits = |claim: &Claim| request.is_empty() || nodes + claim.shares.len() <= REQUEST_NODES_MAX;
            if !self.left.front().is_some_and(fits) {
                break;
            }
            let Some(claim) = self.left.pop_front() else { break };
            nodes += claim.shares.len();
            let after = last.insert(self.queue_of(&claim), claim.allocation);
            request.push(Claim { after, ..claim });
        }
        Some(request).filter(|request| !request.is_empty())
    }

    /// Takes the outcomes of a request. Returns the result of each claim with its queue, except for claims
    /// that will be made again. If outcomes are missing, nothing more is claimed for the queues of these claims.
    pub fn take(&mut self, request: Vec<Claim>, outcomes: Vec<Result<Claimed, CallError>>) -> Vec<(&'v str, ClaimResult)> {
        let (mut results, mut again, mut limits) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut outcomes = outcomes.into_iter();
        for claim in request {
            let queue = self.queue_of(&claim);
            let Some(outcome) = outcomes.next() else {
                self.refused.insert(queue.to_owned());
                continue;
            };
            log(claim.allocation, queue, &outcome);
            let result = match outcome {
                Ok(Claimed { revision, .. }) => {
                    self.granted = revision.max(self.granted);
                    ClaimResult::Accepted
                }
                Err(CallError::Unavailable { .. }) => {
                    self.is_answered = false;
                    ClaimResult::Unanswered
                }
                Err(CallError::Refused(Refusal::WaitsAhead { .. })) => {
                    again.push(claim);
                    continue;
                }
                // Only this claim waits for others now; its queue is not blocked.
                Err(CallError::Refused(Refusal::AwaitsOthers { .. })) => ClaimResult::Rejected,
                Err(CallError::Refused(Refusal::StaleLease { .. })) => {
                    self.lost.insert(queue.to_owned());
                    ClaimResult::Rejected
                }
                Err(CallError::Refused(refusal)) => {
                    match self.view.allocations.get(&claim.allocation).and_then(|allocation| Limit::of(&refusal, allocation)) {
                        Some(limit) => drop(limits.insert(limit)),
                        None => drop(self.refused.insert(queue.to_owned())),
                    }
                    ClaimResult::Rejected
                }
            };
            if result == ClaimResult::Unanswered {
                self.refused.insert(queue.to_owned());
            }
            results.push((queue, result));
        }
        let left = std::mem::take(&mut self.left);
        self.left = again.into_iter().chain(left).filter(|claim| self.is_still_made(claim, &limits)).collect();
        results
    }

    /// Whether a claim is still made: its queue is neither lost nor refused, and it has none of these limits.
    fn is_still_made(&self, claim: &Claim, limits: &BTreeSet<Limit>) -> bool {
        let queue = self.queue_of(claim);
        let allocation = self.view.allocations.get(&claim.allocation);
        let is_limited = allocation.is_some_and(|allocation| limits.iter().any(|limit| limit.is_of(allocation)));
        !self.lost.contains(queue) && !self.refused.contains(queue) && !is_limited
    }
}

/// A limit that a claim would exceed. Other work under the same limit waits too, and takes no nodes; it
/// does not block the queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Limit {
    User(u32),
    Tenant(String),
    SensitiveWork,
    /// The VNIs for the network domain with this tenant and name.
    Domain(String, String),
}

impl Limit {
    /// The limit that a refused claim for this allocation would exceed. `None`: the refusal has another reason.
    fn of(refusal: &Refusal, allocation: &Allocation) -> Option<Self> {
        match refusal {
            Refusal::OverUserLimit { .. } => Some(Self::User(allocation.owner.uid)),
            Refusal::NoVni(_) => Some(Self::Domain(allocation.spec.tenant.clone(), allocation.spec.connectivity.network_domain.clone())),
            Refusal::Quota(excess) => Some(match excess.quota {
                Quota::SensitivePoolSize => Self::SensitiveWork,
                Quota::MaxNodes | Quota::MaxConcurrentAllocations => Self::Tenant(allocation.spec.tenant.clone()),
            }),
            _ => None,
        }
    }

    fn is_of(&self, allocation: &Allocation) -> bool {
        let spec = &allocation.spec;
        match self {
            Self::User(uid) => allocation.owner.uid == *uid,
            Self::Tenant(tenant) => spec.tenant == *tenant,
            Self::SensitiveWork => spec.sensitive,
            Self::Domain(tenant, name) => spec.tenant == *tenant && spec.connectivity.network_domain == *name,
        }
    }
}

fn log(allocation: AllocationId, queue: &str, outcome: &Result<Claimed, CallError>) {
    match outcome {
        Ok(_) => tracing::info!(%allocation, queue, "claimed"),
        Err(CallError::Refused(Refusal::StaleLease { .. } | Refusal::WaitsAhead { .. })) => {}
        Err(error @ CallError::Unavailable { .. }) => tracing::info!(%allocation, queue, %error, "claims had no answer"),
        Err(error @ CallError::Refused(_)) => tracing::info!(%allocation, queue, %error, "a claim was refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{OTHER, cluster, id, pending};
    use lattice_ledger::UserLimit;
    use lattice_model::claim::ClaimShare;
    use lattice_model::network::NoVni;
    use lattice_model::{Epoch, Resources};

    fn claim(n: u64, nodes: usize) -> Claim {
        let share = ClaimShare { node: "n1".parse().unwrap(), resources: Resources::default(), hold_revision: Revision(1) };
        Claim { allocation: id(n), requeue_count: 0, lease_token: 7, shares: vec![share; nodes], after: None, by: None, walltime: None }
    }

    fn claims(view: &View, nodes: usize) -> Claiming<'_> {
        Claiming::of(view, view.allocations.values().map(|a| Claim { allocation: a.id, ..claim(1, nodes) }).collect())
    }

    /// Pending work of this user.
    fn of_user(n: u64, uid: u32, label: &str) -> Allocation {
        let mut allocation = pending(n, label);
        allocation.owner.uid = uid;
        allocation
    }

    fn conflict() -> Refusal {
        Refusal::Conflict { conflicts: vec![] }
    }

    fn user_limit() -> Refusal {
        Refusal::OverUserLimit { limit: UserLimit::Running, whose: "u".into(), current: 1, requested: 1, most: 1, retry_ms: None }
    }

    /// Makes all claims with a quorum that refuses these, and what waits behind them. Returns what is claimed, and how
    /// many requests that takes.
    fn made(claiming: &mut Claiming<'_>, refuses: impl Fn(AllocationId) -> Option<Refusal>) -> (Vec<AllocationId>, usize) {
        let (mut claimed, mut requests) = (Vec::new(), 0);
        while let Some(request) = claiming.next_request() {
            requests += 1;
            assert!(requests < 100, "it does not end");
            let outcomes = request.iter().map(|claim| {
                let ahead = claim.after.filter(|ahead| !claimed.contains(ahead));
                let refusal = ahead.map(|ahead| Refusal::WaitsAhead { id: claim.allocation, ahead }).or_else(|| refuses(claim.allocation));
                match refusal {
                    Some(refusal) => Err(refusal.into()),
                    None => {
                        claimed.push(claim.allocation);
                        Ok(Claimed { epoch: Epoch(1), revision: Revision(1) })
                    }
                }
            });
            let outcomes = outcomes.collect();
            claiming.take(request, outcomes);
        }
        (claimed, requests)
    }

    #[test]
    fn each_claim_of_a_request_waits_for_the_one_before_it_in_its_queue() {
        let view = cluster(vec![pending(1, ""), pending(2, OTHER), pending(3, ""), pending(4, ""), pending(5, "")]);
        let sized = [(1, 1), (2, 1), (3, 1), (4, REQUEST_NODES_MAX), (5, REQUEST_NODES_MAX + 1)];
        let mut claiming = Claiming::of(&view, sized.map(|(n, nodes)| claim(n, nodes)).into());
        let mut next = || claiming.next_request().map(|request| request.iter().map(|c| (c.allocation, c.after)).collect::<Vec<_>>());
        assert_eq!(next(), Some(vec![(id(1), None), (id(2), None), (id(3), Some(id(1)))]));
        assert_eq!(next(), Some(vec![(id(4), None)]), "so many nodes fit in no request with others");
        assert_eq!(next(), Some(vec![(id(5), None)]), "a single claim may have any number");
        assert_eq!(next(), None);
        let view = cluster((0..300).map(|n| pending(n, "")).collect());
        let mut many = claims(&view, 1);
        assert_eq!(many.next_request().map(|request| request.len()), Some(CLAIMS_MAX));
        assert_eq!(many.next_request().map(|request| request.len()), Some(300 - CLAIMS_MAX));
    }

    #[test]
    fn a_refused_claim_ends_its_queue_and_no_other() {
        let view = cluster(vec![pending(1, ""), pending(2, ""), pending(3, OTHER), pending(4, ""), pending(5, OTHER)]);
        let mut claiming = claims(&view, 1);
        let (claimed, requests) = made(&mut claiming, |allocation| (allocation == id(2)).then(conflict));
        assert_eq!((claimed, requests), (vec![id(1), id(3), id(5)], 1));
        assert_eq!((claiming.refused.len(), claiming.lost.is_empty(), claiming.is_answered), (1, true, true));
        let stale = || Refusal::StaleLease { name: "scheduler/default".into(), token: 7 };
        let mut claiming = claims(&view, 1);
        let (claimed, _) = made(&mut claiming, |allocation| (allocation == id(1)).then(stale));
        assert_eq!((claimed, claiming.lost.len(), claiming.refused.len()), (vec![id(3), id(5)], 1, 0));
    }

    #[test]
    fn work_over_a_limit_does_not_block_its_queue_and_nothing_else_under_that_limit_is_claimed() {
        let view = cluster((0..400).map(|n| of_user(n, if n % 2 == 0 { 1 } else { 2 }, "")).collect());
        let mut claiming = claims(&view, 1);
        // The first ten of user 1 may run.
        let refuses = |allocation: AllocationId| (view.allocations[&allocation].owner.uid == 1 && allocation >= id(20)).then(user_limit);
        let (claimed, requests) = made(&mut claiming, refuses);
        assert_eq!((claimed.len(), requests), (10 + 200, 2));
        assert!(claiming.refused.is_empty());
        let vni = || Refusal::NoVni(NoVni::Exhausted { domain: "d".into(), used: 1, size: 1 });
        assert_eq!(Limit::of(&vni(), &pending(1, "")), Some(Limit::Domain(String::new(), String::new())));
        assert_eq!(Limit::of(&conflict(), &pending(1, "")), None);
    }

    #[test]
    fn work_that_waits_for_other_work_does_not_block_its_queue() {
        let view = cluster(vec![pending(1, ""), pending(2, ""), pending(3, "")]);
        let mut claiming = claims(&view, 1);
        let awaits = || Refusal::AwaitsOthers { id: id(1), what: "waits for 2 (x) to leave its nodes".into() };
        let (claimed, requests) = made(&mut claiming, |allocation| (allocation == id(1)).then(awaits));
        assert_eq!((claimed, requests), (vec![id(2), id(3)], 2));
        assert!(claiming.refused.is_empty() && claiming.lost.is_empty());
    }

    #[test]
    fn a_claim_without_an_answer_ends_the_round_and_a_missing_outcome_its_queue() {
        let view = cluster(vec![pending(1, ""), pending(2, ""), pending(3, OTHER)]);
        let unanswered = Err(CallError::Unavailable { why: "no answer in time".into() });
        for (outcomes, is_answered) in [(vec![unanswered], false), (vec![], true)] {
            let mut claiming = claims(&view, 1);
            let request = claiming.next_request().unwrap();
            let results = claiming.take(request, outcomes);
            assert!(results.len() < 2 && claiming.is_answered == is_answered, "{results:?}");
            assert_eq!(claiming.refused.len(), 2);
            assert_eq!(claiming.next_request(), None);
        }
    }
}
