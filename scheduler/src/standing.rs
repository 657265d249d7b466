//! How tenants stand: how far each is below its share, and how much of its budget is used.
//!
//! A tenant's share is compared with its part of what all tenants have used, each day by its age
//! ([`HALF_LIFE`]), so that the tenants that use the cluster settle at the ratio of their shares
//! however much of it stands idle. Work that runs counts up to now.

use crate::view::View;
use lattice_model::tenant::WHOLE_CLUSTER_PPM;
use lattice_model::usage::{HALF_LIFE, NodeUse, Used};
use lattice_model::{Allocation, Tenant, Timestamp};
use std::collections::BTreeMap;

/// Of a budget, in percent: up to here nothing changes.
const BUDGET_FREE_PERCENT: u64 = 80;
/// The factor of a budget that is used up to the last hour.
const BUDGET_FACTOR_MIN: f64 = 0.1;
/// The factor of a budget that is exceeded: its work comes after all other work of its class.
const BUDGET_EXCEEDED: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Standing {
    share_deficit: f64,
    budget_factor: f64,
}

/// See the module documentation. Work without a tenant, or whose tenant has no record, has no share
/// and no budget.
pub struct Standings<'a>(BTreeMap<&'a str, Standing>);

impl<'a> Standings<'a> {
    pub fn of(view: &'a View, now: Timestamp) -> Self {
        let running = running(view, now);
        let decayed = |tenant: &Tenant| {
            let past = view.usage.get(&tenant.name).map_or(0, |usage| usage.decayed(now, HALF_LIFE));
            past.saturating_add(running.get(tenant.name.as_str()).map_or(0, |used| used.node_ms)) as f64
        };
        let used: Vec<(&Tenant, f64)> = view.tenants.values().map(|tenant| (tenant, decayed(tenant))).collect();
        let used_by_all: f64 = used.iter().map(|(_, used)| used).sum();
        let standing = |(tenant, used): (&'a Tenant, f64)| {
            let part = if used_by_all > 0.0 { used / used_by_all } else { 0.0 };
            let past = view.usage.get(&tenant.name).map(|usage| usage.within(now, view.budget_period.days())).unwrap_or_default();
            let in_period = past.plus(running.get(tenant.name.as_str()).copied().unwrap_or_default());
            let share_deficit = share_deficit(tenant.fair_share_target_ppm, part);
            (tenant.name.as_str(), Standing { share_deficit, budget_factor: budget_factor(tenant.budget_percent(in_period)) })
        };
        Self(used.into_iter().map(standing).collect())
    }

    /// f₃ of the specification: 1 for a tenant that has used nothing, 0 for one that has used its
    /// share or has none.
    pub fn share_deficit(&self, allocation: &Allocation) -> f64 {
        self.0.get(allocation.spec.tenant.as_str()).map_or(0.0, |standing| standing.share_deficit)
    }

    /// By what its score is multiplied because of the budget of its tenant: 0 to 1.
    pub fn budget_factor(&self, allocation: &Allocation) -> f64 {
        self.0.get(allocation.spec.tenant.as_str()).map_or(1.0, |standing| standing.budget_factor)
    }
}

/// What the running work of each tenant with a record has used up to now.
fn running(view: &View, now: Timestamp) -> BTreeMap<&str, Used> {
    let mut running: BTreeMap<&str, Used> = BTreeMap::new();
    for allocation in view.allocations.values().filter(|a| !a.state.is_without_nodes() && !a.state.is_terminal()) {
        let (tenant, Some(started)) = (allocation.spec.tenant.as_str(), allocation.started_at) else { continue };
        if view.tenants.contains_key(tenant) {
            let per_ms = NodeUse::of(allocation, |node| view.nodes.get(node).map(|node| node.size));
            let used = running.entry(tenant).or_default();
            *used = used.plus(per_ms.for_ms(now.since_ms(started)));
        }
    }
    running
}

/// `used`: the tenant's part of what all have used.
fn share_deficit(target_ppm: Option<u32>, used: f64) -> f64 {
    let target = f64::from(target_ppm.unwrap_or(0)) / f64::from(WHOLE_CLUSTER_PPM);
    if target > 0.0 { (target - used).max(0.0) / target } else { 0.0 }
}

fn budget_factor(used_percent: Option<u64>) -> f64 {
    match used_percent {
        None | Some(0..=BUDGET_FREE_PERCENT) => 1.0,
        Some(percent @ ..=100) => {
            1.0 - (1.0 - BUDGET_FACTOR_MIN) * (percent - BUDGET_FREE_PERCENT) as f64 / (100 - BUDGET_FREE_PERCENT) as f64
        }
        Some(_) => BUDGET_EXCEEDED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_ahead_until_it_has_used_its_share() {
        let deficits = [0.0, 0.1, 0.2, 0.3].map(|used| share_deficit(Some(200_000), used));
        assert_eq!(deficits, [1.0, 0.5, 0.0, 0.0]);
        assert_eq!([share_deficit(None, 0.0), share_deficit(Some(0), 0.0)], [0.0, 0.0]);
    }

    #[test]
    fn a_budget_matters_from_four_fifths_on() {
        assert_eq!([None, Some(0), Some(80)].map(budget_factor), [1.0; 3]);
        let [some, more, all] = [Some(85), Some(95), Some(100)].map(budget_factor);
        assert!(1.0 > some && some > more && more > all && (all - BUDGET_FACTOR_MIN).abs() < 1e-9);
        assert_eq!([Some(101), Some(u64::MAX)].map(budget_factor), [BUDGET_EXCEEDED; 2]);
    }
}
