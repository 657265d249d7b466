//! The use of nodes: recorded when an attempt gives its nodes back, and read for budgets and shares.
//!
//! ```text
//!   claim ──▶ started_at ──────────────▶ end, requeue, preemption, node lost, adoption
//!                └─ nodes × time ─▶ tenant, project, user; a tenant's use goes to its watchers
//! ```
//!
//! Work that runs is not recorded yet: readers add its use up to their own time. The cost of a record
//! grows with the attempt's nodes and with the days that it ran, at most those of the budget period, but
//! not with the number of allocations or users. A report about a user reads the records of that name and
//! the user's work with nodes; one about a tenant reads its running work; one about a project reads all
//! work with nodes.

use super::{ApplyContext, Ledger, Refusal};
use lattice_ledger_state::budget_marks::ReachedMark;
use lattice_ledger_state::usage_records::{Consumer, Span};
use lattice_ledger_state::user_usage::holds_nodes;
use lattice_model::usage::BudgetPeriod;
use lattice_model::{Allocation, AllocationId, Budget, DailyUse, NodeUse, Tenant, Timestamp, Used, millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Largest size of the records that may be dropped, in bytes: about 30,000 users who
/// work every day. Tests of this crate fill a smaller one.
pub(super) const USAGE_BYTES_MAX: usize = if cfg!(test) { 64 * 1024 } else { 128 * 1024 * 1024 };

/// Whose use is requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UsageOf {
    /// A tenant's.
    Tenant(String),
    /// A project's within a tenant.
    Project { tenant: String, project: String },
    /// The use of all users with this name.
    User(String),
}

/// What was used, running work included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// In the last `days` days.
    pub used: Used,
    /// The requested number of days, or that of the budget period.
    pub days: u32,
    /// The tenant's use within the budget period, and its record; `None`: it has no record, or the use
    /// of no tenant was requested.
    pub budget: Option<BudgetReport>,
    /// The budget period.
    pub period: BudgetPeriod,
}

/// How much of its budgets a tenant has used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetReport {
    pub tenant: Tenant,
    /// Within the budget period.
    pub used: Used,
    /// The marks that it has reached, as recorded.
    pub marks: BTreeMap<Budget, ReachedMark>,
}

impl UsageOf {
    fn is_of(&self, allocation: &Allocation) -> bool {
        let spec = &allocation.spec;
        match self {
            Self::Tenant(name) => spec.tenant == *name,
            Self::Project { tenant, project } => spec.tenant == *tenant && spec.project == *project,
            Self::User(name) => allocation.owner.name == *name,
        }
    }
}

impl Ledger {
    /// The recorded use of a tenant that exists, without running work.
    pub fn tenant_use(&self, name: &str) -> Option<&DailyUse> {
        let record = self.usage_records.get(&Consumer::Tenant(name.to_owned()))?;
        self.tenants.contains_key(name).then_some(&record.days)
    }

    /// What was used in the last `days` days (`None`: the budget period), up to now.
    ///
    /// # Errors
    /// [`Refusal::Malformed`]: no days, or more than are recorded; or no tenant is named.
    /// [`Refusal::NoSuchTenant`]: nothing is known of the tenant, and there are others.
    pub fn usage_report(&self, of: &UsageOf, days: Option<u32>, now: Timestamp) -> Result<UsageReport, Refusal> {
        let (now, period) = (now.max(self.time), self.limits.budget_period);
        let days = days.unwrap_or(period.days());
        if !(1..=period.days()).contains(&days) {
            let why = format!("the use of {days} days was asked for; the ledger has 1 to {period} days (limit budget_period_days)");
            return Err(Refusal::Malformed { why });
        }
        self.knows(of)?;
        let budget = match of {
            UsageOf::Tenant(name) => self.tenants.get(name).map(|tenant| BudgetReport {
                tenant: Tenant::clone(tenant),
                used: self.used_by(of, period.days(), now),
                marks: self.budget_marks(name),
            }),
            UsageOf::Project { .. } | UsageOf::User(_) => None,
        };
        Ok(UsageReport { used: self.used_by(of, days, now), days, budget, period })
    }

    fn knows(&self, of: &UsageOf) -> Result<(), Refusal> {
        let tenant = match of {
            UsageOf::Tenant(name) if name.is_empty() => return Err(Refusal::Malformed { why: "the tenant has no name".to_owned() }),
            UsageOf::Tenant(tenant) | UsageOf::Project { tenant, .. } => tenant,
            UsageOf::User(_) => return Ok(()),
        };
        let is_known = self.tenants.contains_key(tenant) || self.usage_records.get(&Consumer::Tenant(tenant.clone())).is_some();
        if tenant.is_empty() || self.tenants.is_empty() || is_known { Ok(()) } else { Err(self.no_such_tenant(tenant)) }
    }

    /// What was used in the last `days` days, running work included.
    pub(super) fn used_by(&self, of: &UsageOf, days: u32, now: Timestamp) -> Used {
        let recorded = |consumer: Consumer| self.usage_records.get(&consumer).map(|record| record.days.within(now, days));
        let ended = match of {
            UsageOf::Tenant(name) => recorded(Consumer::Tenant(name.clone())).unwrap_or_default(),
            UsageOf::Project { tenant, project } => {
                recorded(Consumer::Project { tenant: tenant.clone(), project: project.clone() }).unwrap_or_default()
            }
            UsageOf::User(name) => {
                let named = self.usage_records.of_users(name);
                named.fold(Used::default(), |sum, record| sum.plus(record.days.within(now, days)))
            }
        };
        let add = |sum: Used, allocation: &Arc<Allocation>| match self.span_of(allocation, now) {
            Some(Span { node_use, from, to }) => sum.plus(node_use.within((from, to), now, days)),
            None => sum,
        };
        let with_nodes = |user| self.allocation_index.with_nodes(user).filter_map(|id| self.allocations.get(&id));
        match of {
            UsageOf::Tenant(name) => self.charged_to(name).fold(ended, add),
            UsageOf::Project { .. } => with_nodes(None).filter(|allocation| of.is_of(allocation)).fold(ended, add),
            UsageOf::User(name) => with_nodes(Some(name.as_str())).filter(|allocation| of.is_of(allocation)).fold(ended, add),
        }
    }

    /// The running work of a tenant.
    fn charged_to(&self, tenant: &str) -> impl Iterator<Item = &Arc<Allocation>> {
        let first = (tenant.to_owned(), AllocationId(Uuid::nil()));
        let charged = self.allocation_index.charged.range(first..).take_while(move |(of, _)| of == tenant);
        charged.filter_map(move |(_, id)| self.allocations.get(id))
    }

    /// What the current claim has used until now; `None`: it has no nodes, or has not begun.
    fn span_of(&self, allocation: &Allocation, now: Timestamp) -> Option<Span> {
        let from = allocation.started_at.filter(|_| holds_nodes(allocation.state))?;
        let node_use = NodeUse::of(allocation, |node| self.nodes.get(node).map(|node| node.size));
        // Work runs no longer than its walltime: after that, its end is reported late.
        let until = allocation.spec.walltime.map_or(u64::MAX, |walltime| from.0.saturating_add(millis(walltime)));
        Some(Span { node_use, from, to: now.min(Timestamp(until)) })
    }

    /// The allocation is about to give its nodes back. The same use is summed for accounting.
    pub(super) fn record_usage(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let Some(allocation) = self.allocations.get(&id).cloned() else { return };
        let span = self.span_of(&allocation, context.at);
        self.sum_claim(&allocation, span);
        let Some(span) = span else { return };
        let (recorded, spec) = (self.limits.budget_period.kept(), &allocation.spec);
        self.usage_records.add(Consumer::User(allocation.owner.uid), &allocation.owner.name, span, recorded, false, USAGE_BYTES_MAX);
        if !spec.project.is_empty() {
            let project = Consumer::Project { tenant: spec.tenant.clone(), project: spec.project.clone() };
            self.usage_records.add(project, "", span, recorded, false, USAGE_BYTES_MAX);
        }
        if spec.tenant.is_empty() {
            return;
        }
        let exists = self.tenants.contains_key(&spec.tenant);
        let first_day = self.usage_records.add(Consumer::Tenant(spec.tenant.clone()), "", span, recorded, exists, USAGE_BYTES_MAX);
        if let Some(first_day) = first_day.filter(|_| exists) {
            context.changed.use_of(&spec.tenant, first_day);
        }
    }

    /// The tenant was created or deleted: its use is always kept from now on, or may be dropped like
    /// that of a user.
    pub(super) fn keep_usage_of_tenant(&mut self, context: &mut ApplyContext, name: &str, exists: bool) {
        self.usage_records.set_droppable(&Consumer::Tenant(name.to_owned()), !exists, USAGE_BYTES_MAX);
        if exists && self.tenant_use(name).is_some() {
            context.changed.use_of(name, 0);
        }
    }
}
