//! Tenants: the accounts for work, and how much of the cluster each may use at a time.

use crate::ids::Revision;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A tenant with its hard quotas. The quorum refuses a command that would exceed them, in the same
/// commit that counts usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// The name used in specifications.
    pub name: String,
    /// Largest number of nodes of its running allocations together; a node shared by several counts
    /// once. `None`: no limit.
    pub max_nodes: Option<u32>,
    /// Largest number of its allocations that have nodes at a time. `None`: no limit.
    pub max_concurrent_allocations: Option<u32>,
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
        Tenant { name: "physics".into(), max_nodes, max_concurrent_allocations, revision: Revision(1) }
    }

    #[test]
    fn a_quota_is_told_in_the_documents_words() {
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
