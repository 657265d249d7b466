//! Tenants: their hard quotas, shares, budgets, and the highest class of their work.
//!
//! A quota counts allocations that have nodes, from the claim to the end of the allocation. It is
//! checked at the claim. Waiting allocations do not count: a submission is refused only if it would
//! exceed a quota even if the tenant had nothing else (decision 0068).

use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::config::nearest;
use lattice_model::count::counted;
use lattice_model::preemption::CLASS_MAX;
use lattice_model::tenant::{BUDGET_HOURS_MAX, BURST_PERCENT_MAX, BURST_PERCENT_MIN, Demand, Excess, WHOLE_CLUSTER_PPM};
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
    #[serde(default, skip_serializing_if = "SoftLimitsChange::is_none")]
    pub soft: SoftLimitsChange,
    /// The change is refused unless the settings have this version (the revision of their latest change), or are already
    /// so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<u64>,
}

/// A change of a tenant's share and budgets, and of the highest class of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftLimitsChange {
    /// See [`Tenant::fair_share_target_ppm`].
    pub fair_share_target_ppm: QuotaChange,
    /// See [`Tenant::burst_allowance_percent`].
    pub burst_allowance_percent: QuotaChange,
    /// See [`Tenant::gpu_hours_budget`].
    pub gpu_hours_budget: QuotaChange<u64>,
    /// See [`Tenant::node_hours_budget`].
    pub node_hours_budget: QuotaChange<u64>,
    /// See [`Tenant::class_max`].
    pub class_max: QuotaChange<u8>,
}

impl SoftLimitsChange {
    /// Whether it changes nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that no number is outside of its range.
    fn check(&self) -> Result<(), Refusal> {
        let malformed = |why: String| Err(Refusal::Malformed { why });
        if let QuotaChange::AtMost(ppm) = self.fair_share_target_ppm
            && ppm > WHOLE_CLUSTER_PPM
        {
            return malformed("a fair share is 0 to 1: the part of the cluster that is meant for the tenant".to_owned());
        }
        if let QuotaChange::AtMost(percent) = self.burst_allowance_percent
            && !(BURST_PERCENT_MIN..=BURST_PERCENT_MAX).contains(&percent)
        {
            return malformed(format!("a burst allowance is 1 to {} times the share", BURST_PERCENT_MAX / 100));
        }
        for budget in [self.gpu_hours_budget, self.node_hours_budget] {
            if let QuotaChange::AtMost(hours) = budget
                && hours > BUDGET_HOURS_MAX
            {
                return malformed(format!("a budget is at most {BUDGET_HOURS_MAX} hours"));
            }
        }
        match self.class_max {
            QuotaChange::AtMost(class) if class > CLASS_MAX => malformed(format!("preemption classes are 0 to {CLASS_MAX}")),
            QuotaChange::AtMost(_) | QuotaChange::Keep | QuotaChange::Unlimited => Ok(()),
        }
    }
}

/// A change of one quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaChange<T = u32> {
    /// Unchanged; a new tenant has no limit.
    #[default]
    Keep,
    /// No limit.
    Unlimited,
    /// This limit.
    AtMost(T),
}

impl<T> QuotaChange<T> {
    pub(super) fn over(self, before: Option<T>) -> Option<T> {
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

    /// The tenant whose admins may act on the allocation: its own, unless the allocation ended before that
    /// tenant was created. Empty: none.
    pub fn administered_tenant<'a>(&self, allocation: &'a Allocation) -> &'a str {
        let tenant = allocation.spec.tenant.as_str();
        let since = self.tenants.get(tenant).map(|tenant| tenant.since);
        let is_former = allocation.ended_at.zip(since).is_some_and(|(ended_at, since)| ended_at <= since);
        if is_former { "" } else { tenant }
    }

    pub(super) fn set_tenant(&mut self, context: &mut ApplyContext, change: &TenantChange, by: &str) -> Result<Outcome, Refusal> {
        let name = &change.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let why = format!("a tenant's name has 1 to {NAME_BYTES_MAX} bytes without control characters");
            return Err(Refusal::Malformed { why });
        }
        change.soft.check()?;
        let before = self.tenants.get(name);
        let known = before.map_or_else(Tenant::default, |tenant| Tenant::clone(tenant));
        let next = Tenant {
            name: name.clone(),
            max_nodes: change.max_nodes.over(known.max_nodes),
            max_concurrent_allocations: change.max_concurrent_allocations.over(known.max_concurrent_allocations),
            fair_share_target_ppm: change.soft.fair_share_target_ppm.over(known.fair_share_target_ppm),
            burst_allowance_percent: change.soft.burst_allowance_percent.over(known.burst_allowance_percent),
            gpu_hours_budget: change.soft.gpu_hours_budget.over(known.gpu_hours_budget),
            node_hours_budget: change.soft.node_hours_budget.over(known.node_hours_budget),
            class_max: change.soft.class_max.over(known.class_max),
            since: if before.is_some() { known.since } else { context.at },
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
            Some(now) => Refusal::of_other_version(|| format!("tenant {name:?}"), change.expected_version, now.revision)?,
            None => {}
        }
        let (detail, is_new) = (tenant_text(&next), before.is_none());
        context.changed.tenants.insert(name.clone());
        self.tenants.insert(name.clone(), Arc::new(next));
        if is_new {
            self.keep_usage_of_tenant(context, name, true);
        }
        self.record(context, by, AuditAction::TenantSet, Subject::default(), detail);
        self.check_budgets_of(context, name);
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
        self.budget_marks.remove(name);
        let (members, admins) = (self.tenant_members.count_of(name), self.revoke_admins_of(name));
        self.tenant_members.remove_tenant(name);
        self.projects.remove_tenant(name);
        self.keep_usage_of_tenant(context, name, false);
        context.changed.tenants.insert(name.to_owned());
        let detail = match (members, admins) {
            (0, 0) => name.to_owned(),
            _ => format!("{name}, with {} and {}", counted(members, "member"), counted(admins, "admin")),
        };
        self.record(context, by, AuditAction::TenantDeleted, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    /// Refuses a submission whose tenant is unknown although tenants are set up, or may not use its
    /// class, or has quotas that would never allow it to run.
    pub(super) fn admits_to_tenant(&self, spec: &AllocationSpec) -> Result<(), Refusal> {
        let name = &spec.tenant;
        if !self.tenants.contains_key(name) {
            // If no tenant is set up, the tenant is only a label.
            return if name.is_empty() || self.tenants.is_empty() { Ok(()) } else { Err(self.no_such_tenant(name)) };
        }
        self.admits_class(spec)?;
        self.admits_nodes(spec)
    }

    /// Refuses work that its tenant's quotas would never allow to run.
    pub(super) fn admits_nodes(&self, spec: &AllocationSpec) -> Result<(), Refusal> {
        let Some(tenant) = self.tenants.get(&spec.tenant) else { return Ok(()) };
        // Each replica of a service is on a node of its own.
        let more_nodes = spec.scaling.as_ref().map_or(spec.nodes, |scaling| scaling.replicas_min);
        match tenant.excess(Demand { nodes: 0, more_nodes, allocations: 0 }) {
            Some(excess) => Err(Refusal::Quota(excess)),
            None => Ok(()),
        }
    }

    /// Refuses a higher class than the tenant may use.
    pub(super) fn admits_class(&self, spec: &AllocationSpec) -> Result<(), Refusal> {
        let (class, class_max) = (spec.preemption_class, self.tenants.get(&spec.tenant).and_then(|tenant| tenant.class_max));
        match class_max.filter(|most| class > *most) {
            Some(most) => Err(Refusal::ClassTooHigh { tenant: spec.tenant.clone(), class, most }),
            None => Ok(()),
        }
    }

    pub(super) fn no_such_tenant(&self, name: &str) -> Refusal {
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

/// A tenant for the audit log, without unset soft limits.
fn tenant_text(tenant: &Tenant) -> String {
    let quota = |limit: Option<u32>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let mut text = format!(
        "{}: max_nodes {}, max_concurrent_allocations {}",
        tenant.name,
        quota(tenant.max_nodes),
        quota(tenant.max_concurrent_allocations)
    );
    let soft = [
        ("fair_share_target_ppm", tenant.fair_share_target_ppm.map(u64::from)),
        ("burst_allowance_percent", tenant.burst_allowance_percent.map(u64::from)),
        ("gpu_hours_budget", tenant.gpu_hours_budget),
        ("node_hours_budget", tenant.node_hours_budget),
        ("class_max", tenant.class_max.map(u64::from)),
    ];
    for (name, value) in soft {
        text += &value.map_or_else(String::new, |value| format!(", {name} {value}"));
    }
    text
}
