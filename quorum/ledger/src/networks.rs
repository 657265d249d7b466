//! Network domains and their numbers (VNIs) from the pool.
//!
//! ```text
//!   none ──first claim: lowest free VNI──▶ active ──last one leaves──▶ grace ──time is over, nodes are free──▶ none
//!                                            ▲───────next claim───────┘
//! ```
//!
//! A VNI is assigned in the commit that assigns the nodes: running work has one, waiting work uses
//! none. A command of the leader frees it, so that all watchers see the same free VNIs. As long as
//! a node may still run work with a VNI, no other domain gets it.
//!
//! A VNI is not assigned at submission, because a day's queue would use up the pool. The leader
//! proposes the release: if a domain simply counted as free after its grace period, each scheduler
//! would decide that by its own clock, and claims would be refused because of the difference. A
//! holding outlives its claim and includes the VNI: a domain is not released while a node may still
//! use its VNI. The requirements ask for a private domain for every allocation of several nodes.
//! Lattice does not create these: where the network does not enforce VNIs, they would have no
//! effect, and an exhausted pool would keep work waiting.

use super::{ApplyContext, Domain, DomainKey, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::{Conflict, Refusal};
use lattice_model::network::DomainState;
use lattice_model::{Allocation, AllocationId, AllocationSpec, AuditAction, NodeId, Timestamp, VniPool};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The domain that an allocation's specification names.
pub fn domain_of(spec: &AllocationSpec) -> Option<DomainKey> {
    let name = &spec.connectivity.network_domain;
    (!name.is_empty()).then(|| (spec.tenant.clone(), name.clone()))
}

/// A change of the VNI pool; unset fields stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VniPoolChange {
    /// See [`lattice_model::VniPool::start`].
    pub start: Option<u32>,
    /// See [`lattice_model::VniPool::end`].
    pub end: Option<u32>,
    /// See [`lattice_model::VniPool::grace_ms`].
    pub grace_ms: Option<u64>,
}

/// The VNI pool and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VniPoolStatus {
    pub pool: VniPool,
    /// Number of domains with a VNI from the pool.
    pub used: u32,
    /// Number of domains with a VNI from an earlier range of the pool.
    pub outside: u32,
}

/// A network domain as seen by the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStatus {
    pub tenant: String,
    pub name: String,
    pub vni: u32,
    /// Its allocations that have nodes.
    pub members: Vec<AllocationId>,
    pub state: DomainState,
    /// How long it keeps its VNI without work, in milliseconds.
    pub grace_ms: u64,
    /// If no allocation has nodes: the nodes that have not yet reported that all its work is gone.
    pub nodes: Vec<NodeId>,
}

impl Ledger {
    /// The VNI pool.
    pub fn vni_pool(&self) -> VniPool {
        self.vni_pool
    }

    /// One domain.
    pub fn domain(&self, key: &DomainKey) -> Option<&Arc<Domain>> {
        self.domains.get(key)
    }

    /// All domains that have a VNI.
    pub fn domains(&self) -> impl Iterator<Item = (&DomainKey, &Arc<Domain>)> {
        self.domains.iter()
    }

    /// The pool and its usage.
    pub fn vni_pool_status(&self) -> VniPoolStatus {
        let (inside, outside): (Vec<u32>, Vec<u32>) =
            self.domains.values().map(|d| d.vni).partition(|vni| self.vni_pool.numbers().contains(vni));
        VniPoolStatus { pool: self.vni_pool, used: count(inside.len()), outside: count(outside.len()) }
    }

    /// The domains of these tenants (`None`: all) with this name (`None`: any), as of `now`.
    pub fn domain_statuses(&self, tenants: Option<&[String]>, name: Option<&str>, now: Timestamp) -> Vec<DomainStatus> {
        let wanted = |(key, _): &(&DomainKey, &Arc<Domain>)| tenants.is_none_or(|t| t.contains(&key.0)) && name.is_none_or(|n| *n == key.1);
        let status = |(key, domain): (&DomainKey, &Arc<Domain>)| DomainStatus {
            tenant: key.0.clone(),
            name: key.1.clone(),
            vni: domain.vni,
            grace_ms: self.grace_ms(domain),
            members: domain.members.iter().copied().collect(),
            state: match domain.idle_since {
                None => DomainState::Active,
                Some(since) => match self.grace_ms(domain).saturating_sub(now.since_ms(since)) {
                    0 => DomainState::Leaving,
                    left_ms => DomainState::Grace { left_ms },
                },
            },
            nodes: if domain.members.is_empty() { self.nodes_that_hold(domain.vni) } else { Vec::new() },
        };
        self.domains.iter().filter(wanted).map(status).collect()
    }

    pub(super) fn set_vni_pool(&mut self, context: &mut ApplyContext, change: &VniPoolChange, by: &str) -> Result<Outcome, Refusal> {
        let now = self.vni_pool;
        let next = VniPool {
            start: change.start.unwrap_or(now.start),
            end: change.end.unwrap_or(now.end),
            grace_ms: change.grace_ms.unwrap_or(now.grace_ms),
        };
        next.validate().map_err(|error| Refusal::Malformed { why: error.to_string() })?;
        if next == now {
            return Ok(Outcome::Done);
        }
        self.vni_pool = next;
        context.changed.vni_pool = true;
        let detail = format!("VNIs {} to {}, grace {} ms", next.start, next.end, next.grace_ms);
        self.record(context, by, AuditAction::VniPoolSet, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    pub(super) fn set_domain_grace(
        &mut self,
        context: &mut ApplyContext,
        key: &DomainKey,
        grace_ms: u64,
        by: &str,
    ) -> Result<Outcome, Refusal> {
        VniPool { grace_ms, ..self.vni_pool }.validate().map_err(|error| Refusal::Malformed { why: error.to_string() })?;
        self.note_domain(context, key);
        let Some(domain) = self.domains.get_mut(key) else { return Err(Refusal::NoSuchDomain { name: key.1.clone() }) };
        if domain.grace_ms == Some(grace_ms) {
            return Ok(Outcome::Done);
        }
        let detail = format!("{}, grace {grace_ms} ms", describe(key, domain.vni));
        Arc::make_mut(domain).grace_ms = Some(grace_ms);
        self.record(context, by, AuditAction::VniPoolSet, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    fn grace_ms(&self, domain: &Domain) -> u64 {
        domain.grace_ms.unwrap_or(self.vni_pool.grace_ms)
    }

    /// The VNI that the allocation's domain has or would get; `None`: it names no domain.
    pub(super) fn vni_for(&self, allocation: &Allocation) -> Result<Option<u32>, Refusal> {
        let Some(key) = domain_of(&allocation.spec) else { return Ok(None) };
        if let Some(domain) = self.domains.get(&key) {
            return Ok(Some(domain.vni));
        }
        // Nodes that have not reported their work yet may use any VNI.
        if let Some(node) = self.node_index.waited_for.get_min().cloned() {
            let why = "may use any VNI: the quorum was recovered from a backup, and this node has not reported yet what it has".to_owned();
            return Err(Refusal::Conflict { conflicts: vec![Conflict { node, holder: None, why }] });
        }
        let vnis = &self.holdings.vnis;
        // No tenant has more than a small number of domains.
        let of_tenant = self.domains.range((key.0.clone(), String::new())..).take_while(|((tenant, _), _)| *tenant == key.0).count();
        if let Some(obstacle) = self.vni_pool.obstacle(&key.1, vnis.used_of(&self.vni_pool), count(of_tenant)) {
            return Err(Refusal::NoVni(obstacle));
        }
        Ok(vnis.lowest_free(&self.vni_pool))
    }

    /// The allocation gets nodes, and with them this VNI.
    pub(super) fn join_domain(&mut self, context: &mut ApplyContext, id: AllocationId, vni: u32) {
        let Some(key) = self.allocations.get(&id).and_then(|a| domain_of(&a.spec)) else { return };
        self.note_domain(context, &key);
        if let Some(domain) = self.domains.get_mut(&key) {
            let domain = Arc::make_mut(domain);
            domain.members.insert(id);
            domain.idle_since = None;
            return;
        }
        context.changed.domains.insert(key.clone());
        let detail = describe(&key, vni);
        self.holdings.vnis.assign(vni);
        self.domains.insert(key, Arc::new(Domain { vni, members: BTreeSet::from([id]), idle_since: None, grace_ms: None }));
        self.record(context, "quorum", AuditAction::NetworkDomainCreated, Subject { allocation: Some(id), node: None }, detail);
    }

    /// After a recovery, a node reports that the allocation runs there with this VNI. Contradicting
    /// entries of the backup about the VNI or the domain are removed: the lost quorum did not
    /// assign either twice.
    pub(super) fn adopt_vni(&mut self, context: &mut ApplyContext, id: AllocationId, vni: u32) {
        let Some(key) = self.allocations.get(&id).and_then(|a| domain_of(&a.spec)) else { return };
        let is_unreported = |m: &AllocationId| self.allocations.get(m).is_none_or(|a| a.nodes().any(|node| self.awaits(node)));
        let against = self.domains.iter().filter(|(k, d)| (**k == key) != (d.vni == vni));
        let against: Vec<(DomainKey, bool)> =
            against.map(|(k, d)| (k.clone(), d.members.iter().all(|m| *m == id || is_unreported(m)))).collect();
        if against.iter().any(|(_, believed)| !believed) {
            // Another node has reported otherwise. The allocation keeps running with its VNI, and
            // no domain gets that VNI meanwhile.
            return;
        }
        for (key, _) in against {
            self.release_domain(context, &key);
        }
        self.join_domain(context, id, vni);
    }

    /// The allocation loses its nodes.
    pub(super) fn leave_domain(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let Some(key) = self.allocations.get(&id).and_then(|a| domain_of(&a.spec)) else { return };
        self.note_domain(context, &key);
        let Some(domain) = self.domains.get_mut(&key).filter(|d| d.members.contains(&id)) else { return };
        let domain = Arc::make_mut(domain);
        domain.members.remove(&id);
        if domain.members.is_empty() {
            domain.idle_since = Some(context.at);
        }
    }

    /// Domains whose grace period is over at `now` and whose VNI no node may still use.
    pub fn domains_due(&self, now: Timestamp) -> Vec<DomainKey> {
        let index = &self.domain_index;
        let common = index.idle_since.iter().take_while(|(since, _)| now.since_ms(*since) >= self.vni_pool.grace_ms);
        let own = index.grace_ends.iter().take_while(|(end, _)| *end <= now);
        let is_held = |key: &DomainKey| self.domains.get(key).is_some_and(|domain| self.holdings.vnis.is_held(domain.vni));
        let mut due: Vec<DomainKey> = common.chain(own).map(|(_, key)| key).filter(|key| !is_held(key)).cloned().collect();
        due.sort_unstable();
        due
    }

    pub(super) fn release_domains(&mut self, context: &mut ApplyContext) -> Result<Outcome, Refusal> {
        for key in self.domains_due(context.at) {
            self.release_domain(context, &key);
        }
        Ok(Outcome::Done)
    }

    fn release_domain(&mut self, context: &mut ApplyContext, key: &DomainKey) {
        self.note_domain(context, key);
        let Some(domain) = self.domains.remove(key) else { return };
        self.holdings.vnis.free(domain.vni);
        context.changed.domains.insert(key.clone());
        self.record(context, "quorum", AuditAction::NetworkDomainReleased, Subject::default(), describe(key, domain.vni));
    }

    fn nodes_that_hold(&self, vni: u32) -> Vec<NodeId> {
        if !self.holdings.vnis.is_held(vni) {
            return Vec::new();
        }
        self.holdings.iter().filter(|(_, held)| held.iter().any(|h| h.vni == Some(vni))).map(|(node, _)| node.clone()).collect()
    }
}

fn describe((tenant, name): &DomainKey, vni: u32) -> String {
    format!("{name:?} of tenant {tenant:?}, VNI {vni}")
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
