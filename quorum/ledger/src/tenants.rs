//! Tenants and their hard quotas.
//!
//! A quota counts allocations that have nodes, from the claim to the end of the allocation. It is
//! checked at the claim. Waiting allocations do not count: a submission is refused only if it would
//! exceed a quota even if the tenant had nothing else (decision 0068).

use super::refusal::Refusal;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_model::config::nearest;
use lattice_model::tenant::{Demand, Excess};
use lattice_model::{Allocation, AllocationSpec, AuditAction, Claim, Revision, Tenant};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Largest number of tenants.
const TENANTS_MAX: usize = 10_000;
/// Largest size of a tenant's name, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// A change of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantChange {
    /// Its name.
    pub name: String,
    /// Whether to create it.
    pub create: bool,
    /// See [`Tenant::max_nodes`].
    pub max_nodes: QuotaChange,
    /// See [`Tenant::max_concurrent_allocations`].
    pub max_concurrent_allocations: QuotaChange,
}

/// A change of one quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaChange {
    /// Unchanged; a new tenant has no limit.
    #[default]
    Keep,
    /// No limit.
    Unlimited,
    /// This limit.
    AtMost(u32),
}

impl QuotaChange {
    pub(super) fn over(self, before: Option<u32>) -> Option<u32> {
        match self {
            Self::Keep => before,
            Self::Unlimited => None,
            Self::AtMost(limit) => Some(limit),
        }
    }
}

/// The known name with the longest common prefix, if that is more than half of the given name.
fn begins_alike<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let common = |known: &str| given.bytes().zip(known.bytes()).take_while(|(a, b)| a == b).count();
    known.filter(|known| common(known) * 2 > given.len()).max_by_key(|known| common(known))
}

/// A tenant and its current usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantStatus {
    pub tenant: Tenant,
    /// Number of nodes of its allocations.
    pub nodes: u32,
    /// Number of its allocations that have nodes.
    pub allocations: u32,
}

impl Ledger {
    /// All tenants, by name.
    pub fn tenants(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.tenants.values()
    }

    /// One tenant.
    pub fn tenant(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.tenants.get(name)
    }

    /// All tenants and their usage, by name.
    pub fn tenant_statuses(&self) -> Vec<TenantStatus> {
        let status = |tenant: &Arc<Tenant>| {
            let used = self.usage.tenants.get(&tenant.name);
            TenantStatus {
                tenant: Tenant::clone(tenant),
                nodes: used.map_or(0, |u| u32::try_from(u.nodes.len()).unwrap_or(u32::MAX)),
                allocations: used.map_or(0, |u| u.allocations),
            }
        };
        self.tenants.values().map(status).collect()
    }

    pub(super) fn set_tenant(&mut self, context: &mut ApplyContext, change: &TenantChange, by: &str) -> Result<Outcome, Refusal> {
        let name = &change.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let why = format!("a tenant's name has 1 to {NAME_BYTES_MAX} bytes without control characters");
            return Err(Refusal::Malformed { why });
        }
        let before = self.tenants.get(name);
        let limit = |change: QuotaChange, of: fn(&Tenant) -> Option<u32>| change.over(before.and_then(|t| of(t)));
        let next = Tenant {
            name: name.clone(),
            max_nodes: limit(change.max_nodes, |t| t.max_nodes),
            max_concurrent_allocations: limit(change.max_concurrent_allocations, |t| t.max_concurrent_allocations),
            revision: context.revision,
        };
        match before {
            None if !change.create => return Err(self.no_such_tenant(name)),
            None if self.tenants.len() >= TENANTS_MAX => {
                return Err(Refusal::TooMany { what: "tenants".to_owned(), most: TENANTS_MAX as u64 });
            }
            // A repetition whose first answer was lost.
            Some(now) if (Tenant { revision: Revision(0), ..Tenant::clone(now) }) == (Tenant { revision: Revision(0), ..next.clone() }) => {
                return Ok(Outcome::Done);
            }
            Some(_) if change.create => return Err(Refusal::TenantExists { name: name.clone() }),
            Some(_) | None => {}
        }
        let shown = |limit: Option<u32>| limit.map_or_else(|| "unlimited".to_owned(), |l| l.to_string());
        let detail =
            format!("{name}: max_nodes {}, max_concurrent_allocations {}", shown(next.max_nodes), shown(next.max_concurrent_allocations));
        context.changed.tenants.insert(name.clone());
        self.tenants.insert(name.clone(), Arc::new(next));
        self.record(context, by, AuditAction::TenantSet, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    pub(super) fn delete_tenant(&mut self, context: &mut ApplyContext, name: &str, by: &str) -> Result<Outcome, Refusal> {
        if !self.tenants.contains_key(name) {
            return Err(self.no_such_tenant(name));
        }
        if let Some(live) = self.allocation_index.live_of_tenant.get(name) {
            return Err(Refusal::TenantHasWork { name: name.to_owned(), live: u64::from(*live) });
        }
        self.tenants.remove(name);
        context.changed.tenants.insert(name.to_owned());
        self.record(context, by, AuditAction::TenantDeleted, Subject::default(), name.to_owned());
        Ok(Outcome::Done)
    }

    /// Refuses a submission of an unknown tenant, if any tenants are set up, and one that its
    /// tenant's quotas would never allow to run.
    pub(super) fn admits_to_tenant(&self, spec: &AllocationSpec) -> Result<(), Refusal> {
        let name = &spec.tenant;
        let Some(tenant) = self.tenants.get(name).map(Arc::clone) else {
            // If no tenant is set up, the tenant is only a label.
            return if name.is_empty() || self.tenants.is_empty() { Ok(()) } else { Err(self.no_such_tenant(name)) };
        };
        match tenant.excess(Demand { nodes: 0, more_nodes: spec.nodes, allocations: 0 }) {
            Some(excess) => Err(Refusal::Quota(excess)),
            None => Ok(()),
        }
    }

    fn no_such_tenant(&self, name: &str) -> Refusal {
        let known = || self.tenants.keys().map(String::as_str);
        let meant = nearest(name, known()).or_else(|| begins_alike(name, known())).map(str::to_owned);
        Refusal::NoSuchTenant { name: name.to_owned(), meant }
    }

    /// The quota that a claim would exceed.
    pub(super) fn excess_of_claim(&self, allocation: &Allocation, claim: &Claim) -> Option<Excess> {
        let tenant = Arc::clone(self.tenants.get(&allocation.spec.tenant)?);
        let used = self.usage.tenants.get(&allocation.spec.tenant);
        let more = claim.shares.iter().filter(|s| used.is_none_or(|used| !used.nodes.contains_key(&s.node))).count();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (nodes, allocations) = used.map_or((0, 0), |used| (count(used.nodes.len()), used.allocations));
        tenant.excess(Demand { nodes, more_nodes: count(more), allocations })
    }
}
