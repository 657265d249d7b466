//! The standing of tenants: how far each is below its share, and how much of its budget is used.
//!
//! A tenant's share is compared with its part of the use of all tenants, in which each day counts by its
//! age ([`HALF_LIFE`]). So the tenants that use the cluster settle at the ratio of their shares, however
//! much of the cluster is idle. Work that runs counts up to now.

use crate::draft::Draft;
use lattice_model::tenant::{BURST_PERCENT_MIN, WHOLE_CLUSTER_PPM};
use lattice_model::usage::{DailyUse, HALF_LIFE, NodeUse};
use lattice_model::{Allocation, Tenant, Timestamp};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Up to this part of a budget, in percent, the budget changes no score.
const BUDGET_FREE_PERCENT: u64 = 80;
/// The factor of a budget that is just used up.
const BUDGET_FACTOR_MIN: f64 = 0.1;
/// The factor of an exceeded budget: its tenant's work comes after all other work of its class.
pub const BUDGET_EXCEEDED: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Standing {
    share_deficit: f64,
    is_over_burst: bool,
    budget_factor: f64,
}

/// See the module documentation. Work without a tenant, or whose tenant has no record, has no share
/// and no budget.
pub struct Standings<'a>(BTreeMap<&'a str, Standing>);

impl<'a> Standings<'a> {
    pub fn of(state: &Draft<'a>) -> Self {
        let (view, now) = (state.view, Timestamp(state.now_ms));
        let use_of_tenants = with_running(state, now);
        let decayed = |tenant: &Tenant| use_of_tenants.get(tenant.name.as_str()).map_or(0, |days| days.decayed(now, HALF_LIFE)) as f64;
        let used: Vec<(&Tenant, f64)> = view.tenants.values().map(|tenant| (tenant, decayed(tenant))).collect();
        let used_by_all: f64 = used.iter().map(|(_, used)| used).sum();
        let standing = |(tenant, used): (&'a Tenant, f64)| {
            let part = if used_by_all > 0.0 { used / used_by_all } else { 0.0 };
            let days = use_of_tenants.get(tenant.name.as_str());
            let in_period = days.map(|days| days.within(now, view.budget_period.days())).unwrap_or_default();
            let standing = Standing {
                share_deficit: share_deficit(tenant.fair_share_target_ppm, part),
                is_over_burst: is_over_burst(tenant, part),
                budget_factor: budget_factor(tenant.budget_percent(in_period)),
            };
            (tenant.name.as_str(), standing)
        };
        Self(used.into_iter().map(standing).collect())
    }

    /// f₃ of the specification: 1 for a tenant that has used nothing, 0 for one that has used its
    /// share or has none.
    pub fn share_deficit(&self, allocation: &Allocation) -> f64 {
        self.0.get(allocation.spec.tenant.as_str()).map_or(0.0, |standing| standing.share_deficit)
    }

    /// Whether its tenant has used more than its share allows even while others leave nodes free.
    pub fn is_over_burst(&self, allocation: &Allocation) -> bool {
        self.0.get(allocation.spec.tenant.as_str()).is_some_and(|standing| standing.is_over_burst)
    }

    /// The factor of its score for the budget of its tenant: 0 to 1.
    pub fn budget_factor(&self, allocation: &Allocation) -> f64 {
        self.0.get(allocation.spec.tenant.as_str()).map_or(1.0, |standing| standing.budget_factor)
    }
}

/// The use of each tenant with a record, by days: the recorded use, and its running work up to now.
fn with_running<'a>(state: &Draft<'a>, now: Timestamp) -> BTreeMap<&'a str, Cow<'a, DailyUse>> {
    let view = state.view;
    let recorded = view.usage.iter().filter(|(tenant, _)| view.tenants.contains_key(*tenant));
    let mut all: BTreeMap<&str, Cow<'_, DailyUse>> = recorded.map(|(tenant, days)| (tenant.as_str(), Cow::Borrowed(&**days))).collect();
    if view.tenants.is_empty() {
        return all;
    }
    for allocation in state.kept.holders.values().filter(|a| !a.state.is_terminal()) {
        let (tenant, Some(started)) = (allocation.spec.tenant.as_str(), allocation.started_at) else { continue };
        if view.tenants.contains_key(tenant) {
            let node_use = NodeUse::of(allocation, |node| view.nodes.get(node).map(|node| node.size));
            let days = all.entry(tenant).or_insert_with(|| Cow::Owned(DailyUse::default()));
            days.to_mut().add(node_use, started, now, view.budget_period.kept());
        }
    }
    all
}

/// `used`: the tenant's part of the use of all.
fn share_deficit(target_ppm: Option<u32>, used: f64) -> f64 {
    let target = f64::from(target_ppm.unwrap_or(0)) / f64::from(WHOLE_CLUSTER_PPM);
    if target > 0.0 { (target - used).max(0.0) / target } else { 0.0 }
}

/// `used`: the tenant's part of the use of all.
fn is_over_burst(tenant: &Tenant, used: f64) -> bool {
    let allowed = f64::from(tenant.burst_allowance_percent.unwrap_or(BURST_PERCENT_MIN)) / 100.0;
    tenant.fair_share_target_ppm.is_some_and(|target_ppm| used > f64::from(target_ppm) / f64::from(WHOLE_CLUSTER_PPM) * allowed)
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
    fn a_burst_is_over_where_the_share_times_its_allowance_is_used() {
        let tenant = |target, allowance| Tenant { fair_share_target_ppm: target, burst_allowance_percent: allowance, ..Tenant::default() };
        let over = |target, allowance| [0.2, 0.21, 0.31].map(|used| is_over_burst(&tenant(target, allowance), used));
        assert_eq!(over(Some(200_000), None), [false, true, true]);
        assert_eq!(over(Some(200_000), Some(150)), [false, false, true]);
        assert_eq!(over(None, Some(150)), [false; 3]);
    }

    #[test]
    fn a_budget_matters_from_four_fifths_on() {
        assert_eq!([None, Some(0), Some(80)].map(budget_factor), [1.0; 3]);
        let [some, more, all] = [Some(85), Some(95), Some(100)].map(budget_factor);
        assert!(1.0 > some && some > more && more > all && (all - BUDGET_FACTOR_MIN).abs() < 1e-9);
        assert_eq!([Some(101), Some(u64::MAX)].map(budget_factor), [BUDGET_EXCEEDED; 2]);
    }
}
