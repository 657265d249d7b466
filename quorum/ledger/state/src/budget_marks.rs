//! The recorded marks that the use of tenants' budgets has reached.

use lattice_model::{Budget, BudgetMark, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A mark that the use of a budget has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedMark {
    /// The highest mark reached.
    pub mark: BudgetMark,
    /// When it became the highest one.
    pub since: Timestamp,
}

/// By tenant and budget. Budgets whose use has reached no mark are absent, and so are their tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BudgetMarks(BTreeMap<String, BTreeMap<Budget, ReachedMark>>);

impl BudgetMarks {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The marks of a tenant.
    pub fn of_tenant(&self, tenant: &str) -> Option<&BTreeMap<Budget, ReachedMark>> {
        self.0.get(tenant)
    }

    /// The mark of one budget.
    pub fn get(&self, tenant: &str, budget: Budget) -> Option<ReachedMark> {
        self.of_tenant(tenant)?.get(&budget).copied()
    }

    /// Sets the mark of one budget; `None`: the use is below all marks.
    pub fn set(&mut self, tenant: &str, budget: Budget, reached: Option<ReachedMark>) {
        match reached {
            Some(reached) => {
                self.0.entry(tenant.to_owned()).or_default().insert(budget, reached);
            }
            None => {
                let Some(marks) = self.0.get_mut(tenant) else { return };
                marks.remove(&budget);
                if marks.is_empty() {
                    self.0.remove(tenant);
                }
            }
        }
    }

    /// The tenant exists no longer.
    pub fn remove(&mut self, tenant: &str) {
        self.0.remove(tenant);
    }
}
