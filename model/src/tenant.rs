//! Tenants: the accounts for work, how much of the cluster each may use at a time, and which share
//! of it each should get over time.

use crate::budget::Budget;
use crate::ids::Revision;
use crate::time::Timestamp;
use crate::usage::{HOUR_MS, Used};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The whole cluster, in the unit of [`Tenant::fair_share_target_ppm`].
pub const WHOLE_CLUSTER_PPM: u32 = 1_000_000;
/// The smallest burst allowance, in percent: the share itself.
pub const BURST_PERCENT_MIN: u32 = 100;
/// The largest burst allowance, in percent.
pub const BURST_PERCENT_MAX: u32 = 100_000;
/// The largest budget, in hours: its milliseconds fit into 64 bits.
pub const BUDGET_HOURS_MAX: u64 = u64::MAX / HOUR_MS;

/// A tenant with its quotas, share and budgets.
///
/// The quotas are hard: the quorum refuses a command that would exceed them, in the same commit that
/// counts usage. Shares and budgets are soft: the scheduler orders work by them, and refuses none.
/// All are integers, so that every member computes the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// The name used in specifications.
    pub name: String,
    /// Largest number of nodes of its running allocations together; a node shared by several counts
    /// once. `None`: no limit.
    pub max_nodes: Option<u32>,
    /// Largest number of its allocations that have nodes at a time. `None`: no limit.
    pub max_concurrent_allocations: Option<u32>,
    /// The part of the cluster that is meant for it, in millionths (0.15 is 150,000). `None`: no
    /// part in particular.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share_target_ppm: Option<u32>,
    /// How much of its share it may have used before its work is the first to be preempted, in percent
    /// of the share (1.5 is 150). `None`: [`BURST_PERCENT_MIN`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_allowance_percent: Option<u32>,
    /// GPU-hours that its work may use in the budget period. `None`: no budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hours_budget: Option<u64>,
    /// Node-hours that its work may use in the budget period. `None`: no budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_hours_budget: Option<u64>,
    /// The highest preemption class that its work may have. `None`: any, but a class above the usual
    /// one counts as the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_max: Option<u8>,
    /// When it was created. Work under its name that had ended by then belongs to a former tenant, or to
    /// none: it does not concern the admins of this one.
    #[serde(default)]
    pub since: Timestamp,
    /// The revision of its latest change.
    pub revision: Revision,
}

/// A hard quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quota {
    /// [`Tenant::max_nodes`].
    MaxNodes,
    /// [`Tenant::max_concurrent_allocations`].
    MaxConcurrentAllocations,
    /// Cluster-wide number of nodes claimed for sensitive work; belongs to no tenant.
    SensitivePoolSize,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxNodes => "max_nodes",
            Self::MaxConcurrentAllocations => "max_concurrent_allocations",
            Self::SensitivePoolSize => "sensitive_pool_size",
        })
    }
}

/// A tenant's current usage, and what one more allocation would add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Nodes that it uses.
    pub nodes: u32,
    /// Nodes that would be added.
    pub more_nodes: u32,
    /// Its allocations that have nodes; one would be added.
    pub allocations: u32,
}

/// A quota that would be exceeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excess {
    /// Empty if the quota belongs to no tenant.
    pub tenant: String,
    pub quota: Quota,
    pub current: u32,
    pub requested: u32,
    pub limit: u32,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, quota, current, requested, limit } = self;
        // The limit was lowered below the current usage; running work continues.
        let verb = if current > limit { "exceeds" } else { "would exceed" };
        match quota {
            Quota::MaxNodes | Quota::MaxConcurrentAllocations => write!(f, "tenant {tenant:?}")?,
            Quota::SensitivePoolSize => f.write_str("sensitive work")?,
        }
        write!(f, " {verb} {quota} quota (current: {current}, requested: {requested}, limit: {limit})")
    }
}

impl Tenant {
    /// How much of its budget this is, in percent, rounded down. Of two budgets, the one with the
    /// higher percentage decides. `None`: it has no budget.
    pub fn budget_percent(&self, used: Used) -> Option<u64> {
        Budget::ALL.into_iter().filter_map(|budget| self.percent_of_budget(budget, used)).max()
    }

    /// How much of this budget is used, in percent, rounded down. `None`: the tenant does not have it.
    pub fn percent_of_budget(&self, budget: Budget, used: Used) -> Option<u64> {
        let used_ms = budget.used_ms(used);
        let budget_ms = u128::from(self.budget_hours(budget)?) * u128::from(HOUR_MS);
        // A budget of nothing is exceeded by the first use.
        let of_nothing = if used_ms == 0 { 0 } else { u128::MAX };
        let percent = (u128::from(used_ms) * 100).checked_div(budget_ms).unwrap_or(of_nothing);
        Some(u64::try_from(percent).unwrap_or(u64::MAX))
    }

    /// A budget in hours. `None`: the tenant does not have it.
    pub fn budget_hours(&self, budget: Budget) -> Option<u64> {
        match budget {
            Budget::GpuHours => self.gpu_hours_budget,
            Budget::NodeHours => self.node_hours_budget,
        }
    }

    /// Whether it has a budget.
    pub fn has_budget(&self) -> bool {
        Budget::ALL.into_iter().any(|budget| self.budget_hours(budget).is_some())
    }

    /// The quota that this demand would exceed; `None`: none.
    pub fn excess(&self, demand: Demand) -> Option<Excess> {
        let over = |quota, current: u32, requested: u32, limit: Option<u32>| {
            let limit = limit.filter(|limit| current.saturating_add(requested) > *limit)?;
            Some(Excess { tenant: self.name.clone(), quota, current, requested, limit })
        };
        over(Quota::MaxNodes, demand.nodes, demand.more_nodes, self.max_nodes)
            .filter(|_| demand.more_nodes > 0)
            .or_else(|| over(Quota::MaxConcurrentAllocations, demand.allocations, 1, self.max_concurrent_allocations))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn physics(max_nodes: Option<u32>, max_concurrent_allocations: Option<u32>) -> Tenant {
        Tenant { name: "physics".into(), max_nodes, max_concurrent_allocations, ..Tenant::default() }
    }

    #[test]
    fn the_budget_with_the_higher_percentage_decides() {
        let percent = |gpu_hours_budget, node_hours_budget| {
            let tenant = Tenant { gpu_hours_budget, node_hours_budget, ..physics(None, None) };
            tenant.budget_percent(Used { node_ms: 5 * HOUR_MS, gpu_ms: 9 * HOUR_MS })
        };
        assert_eq!(percent(None, None), None);
        assert_eq!([percent(Some(10), None), percent(Some(10), Some(50)), percent(Some(10), Some(4))], [Some(90), Some(90), Some(125)]);
        assert_eq!([percent(Some(0), None), percent(Some(BUDGET_HOURS_MAX), None)], [Some(u64::MAX), Some(0)]);
        let cpu_only = Tenant { gpu_hours_budget: Some(0), ..physics(None, None) };
        assert_eq!(cpu_only.budget_percent(Used { node_ms: HOUR_MS, gpu_ms: 0 }), Some(0));
        let all = Used { node_ms: u64::MAX, gpu_ms: u64::MAX };
        let tenant = Tenant { gpu_hours_budget: Some(1), ..physics(None, None) };
        assert_eq!(tenant.budget_percent(all), Some(512_409_557_603_043), "no overflow");
    }

    #[test]
    fn an_exceeded_quota_is_described_in_the_documents_words() {
        let excess_text = |tenant: &Tenant, demand| tenant.excess(demand).map(|e| e.to_string());
        let demand = Demand { nodes: 195, more_nodes: 10, allocations: 7 };
        let want = "tenant \"physics\" would exceed max_nodes quota (current: 195, requested: 10, limit: 200)";
        assert_eq!(excess_text(&physics(Some(200), None), demand).as_deref(), Some(want));
        assert_eq!(excess_text(&physics(Some(205), Some(8)), demand), None);
        let want = "tenant \"physics\" would exceed max_concurrent_allocations quota (current: 7, requested: 1, limit: 7)";
        assert_eq!(excess_text(&physics(Some(205), Some(7)), demand).as_deref(), Some(want));
        let want = "tenant \"physics\" exceeds max_nodes quota (current: 195, requested: 10, limit: 100)";
        assert_eq!(excess_text(&physics(Some(100), None), demand).as_deref(), Some(want));
        // An allocation that adds no node is not refused because of nodes, even if the limit was
        // lowered below the usage.
        assert_eq!(excess_text(&physics(Some(100), None), Demand { more_nodes: 0, ..demand }), None);
    }
}
