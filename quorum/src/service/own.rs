//! Limits the holder of a node's certificate to reading and recording about the node's own
//! allocations. The leader decides whether an allocation belongs to the node, so that a member that
//! lags behind refuses nothing about work that has just started. Exception: the member that answers
//! a stale read of an allocation decides by itself.

use crate::core::{AskLeader, Core};
use crate::permission::{self, Call, is_of_node};
use lattice_model::{Allocation, AllocationState, NodeId};
use lattice_pki::identity::Caller;
use lattice_quorum_client::wire::{Answer, ListCursor, ListFilter, Refusal, Request, WantedLanes};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The answer about an allocation if it belongs to the node. Otherwise the same refusal as for an
/// unknown id, so that the answer does not reveal which ids exist.
pub(super) fn allocation(caller: &Caller, answer: Result<Answer, Refusal>) -> Result<Answer, Refusal> {
    let refused = || permission::refused(Call::GetAllocation, caller);
    let inner = match &answer {
        Ok(Answer::Stale { answer, .. }) => &**answer,
        Ok(answer) => answer,
        Err(Refusal::NoSuchAllocation { .. } | Refusal::AmbiguousAllocation { .. } | Refusal::NumberOrId { .. }) => return Err(refused()),
        Err(_) => return answer,
    };
    match inner {
        Answer::Allocation(found) if is_of_node(found, &caller.name) => answer,
        _ => Err(refused()),
    }
}

/// As [`allocation`], for each outcome of [`Request::GetAllocations`].
pub(super) fn allocations(caller: &Caller, answer: Result<Answer, Refusal>) -> Result<Answer, Refusal> {
    let refused = || permission::refused(Call::GetAllocations, caller);
    match answer? {
        Answer::Allocations(found) => {
            let own = |outcome: Result<Arc<Allocation>, Refusal>| match outcome {
                Ok(found) if is_of_node(&found, &caller.name) => Ok(found),
                Ok(_) | Err(Refusal::NoSuchAllocation { .. } | Refusal::AmbiguousAllocation { .. } | Refusal::NumberOrId { .. }) => {
                    Err(refused())
                }
                Err(refusal) => Err(refusal),
            };
            Ok(Answer::Allocations(found.into_iter().map(own).collect()))
        }
        Answer::Stale { age_ms, answer } => Ok(Answer::Stale { age_ms, answer: Box::new(allocations(caller, Ok(*answer))?) }),
        _ => Err(refused()),
    }
}

/// Reads of several allocations, restricted to those of this node: the leader must not count the size
/// of other records, because the length of the answer would reveal them.
pub(super) fn of_node(request: Request, name: &str) -> Request {
    match request {
        Request::GetAllocations { keys, node: _ } => Request::GetAllocations { keys, node: Some(name.to_owned()) },
        Request::Stale(inner) => Request::Stale(Box::new(of_node(*inner, name))),
        other => other,
    }
}

/// The outcome of a read restricted to this node: an allocation of other nodes is unknown.
pub(super) fn restricted(found: Result<Arc<Allocation>, Refusal>, key: &str, node: &str) -> Result<Arc<Allocation>, Refusal> {
    match found {
        Ok(found) if !is_of_node(&found, node) => Err(Refusal::NoSuchAllocation { key: key.chars().take(64).collect(), forgotten: None }),
        found => found,
    }
}

/// The tenants whose work is on the node now.
pub(super) async fn tenants(core: &Arc<Core>, caller: &Caller, ask_leader: AskLeader) -> Result<BTreeSet<String>, Refusal> {
    let node: NodeId = caller.name.parse().map_err(|_| permission::refused(Call::ListServices, caller))?;
    let filter = ListFilter { node: Some(node), lanes: WantedLanes::All, ..ListFilter::default() };
    let states = vec![AllocationState::Staging, AllocationState::Running];
    let mut tenants = BTreeSet::new();
    let mut before = None;
    loop {
        let question = Request::ListAllocations { uid: None, states: states.clone(), limit: 0, before, filter: filter.clone() };
        let (page, more) = match ask_leader(Arc::clone(core), question).await? {
            Answer::AllocationPage { allocations, more } => (allocations, more),
            _ => return Err(Refusal::Unavailable { why: "the leader answered something else".to_owned() }),
        };
        tenants.extend(page.iter().map(|allocation| allocation.spec.tenant.clone()));
        match page.last().filter(|_| more) {
            Some(last) => before = Some(ListCursor { submitted_at: last.submitted_at, id: last.id }),
            None => return Ok(tenants),
        }
    }
}

/// A query about services, restricted to these tenants.
pub(super) fn narrowed(request: Request, own: &BTreeSet<String>) -> Request {
    let among = |asked: Option<Vec<String>>| {
        let asked = asked.unwrap_or_else(|| own.iter().cloned().collect());
        Some(asked.into_iter().filter(|tenant| own.contains(tenant)).collect())
    };
    match request {
        Request::ListServices { tenants } => Request::ListServices { tenants: among(tenants) },
        Request::LookupService { name, tenants } => Request::LookupService { name, tenants: among(tenants) },
        Request::Stale(inner) => Request::Stale(Box::new(narrowed(*inner, own))),
        other => other,
    }
}

/// Checks whether a node may record this access: to one of its own allocations, by the allocation's
/// owner or root.
pub(super) async fn access(core: &Arc<Core>, caller: &Caller, request: &Request, ask_leader: AskLeader) -> Result<(), Refusal> {
    let refused = || permission::refused(Call::RecordAccess, caller);
    let Request::RecordAccess(access) = request else { return Err(refused()) };
    let id = access.allocation.ok_or_else(refused)?;
    match ask_leader(Arc::clone(core), Request::GetAllocation { key: id.to_string() }).await {
        Ok(Answer::Allocation(found)) if is_of_node(&found, &caller.name) => permission::check_actor(&access.by, &found),
        Ok(_) | Err(Refusal::NoSuchAllocation { .. }) => Err(refused()),
        Err(refusal) => Err(refusal),
    }
}
