//! The marks of budgets. When the use of a budget reaches a mark, the ledger makes an audit record,
//! and the leader sends notifications of it.
//!
//! ```text
//!   use, running work included ──80 %──▶ recorded ──100 %──▶ recorded
//!                                ◀── below again: days leave the period, or the budget is changed
//! ```
//!
//! The ledger keeps the recorded marks, so no leader records one twice. After a change of a budget or of
//! the period, the ledger compares at once; otherwise, the leader's clock starts the comparison. An end
//! of work changes no sum, because running work counts up to now. A comparison reads the running work
//! and the days of the tenants that have budgets.

use super::signing::json;
use super::usage::UsageOf;
use super::{Action, ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::budget_marks::ReachedMark;
use lattice_model::{AuditAction, AuditRecord, Budget, BudgetMark, Tenant, Timestamp, Used};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Largest number of tenants in one [`Action::CheckBudgets`]; the next one has the others.
const CHECKED_TENANTS_MAX: usize = 1000;

/// The detail of a record of [`AuditAction::BudgetMarkReached`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetNotice {
    pub tenant: String,
    pub budget: Budget,
    /// The highest mark reached, in percent.
    pub percent: u64,
    /// Use in the budget period, running work included, in milliseconds.
    pub used_ms: u64,
    pub budget_hours: u64,
    pub period_days: u32,
}

impl BudgetNotice {
    /// Parses a record of [`AuditAction::BudgetMarkReached`]; `None` for any other record or content.
    pub fn of(record: &AuditRecord) -> Option<Self> {
        (record.action == AuditAction::BudgetMarkReached).then(|| serde_json::from_str(&record.detail).ok()).flatten()
    }
}

impl Ledger {
    /// The marks that the use of the tenant's budgets has reached.
    pub fn budget_marks(&self, tenant: &str) -> BTreeMap<Budget, ReachedMark> {
        self.budget_marks.of_tenant(tenant).cloned().unwrap_or_default()
    }

    /// For the leader's clock: the tenants that have reached a mark of a budget, or are below one again,
    /// without a record of that; `None`: there are none.
    pub fn budgets_due(&self, now: Timestamp) -> Option<Action> {
        let now = now.max(self.time);
        let is_due = |tenant: &Tenant| {
            let used = self.used_in_period(tenant, now);
            Budget::ALL.into_iter().any(|budget| mark_of(tenant, budget, used) != self.recorded_mark(tenant, budget))
        };
        let due = self.tenants.values().filter(|tenant| is_due(tenant));
        let tenants: Vec<String> = due.take(CHECKED_TENANTS_MAX).map(|tenant| tenant.name.clone()).collect();
        (!tenants.is_empty()).then_some(Action::CheckBudgets { tenants })
    }

    pub(super) fn check_budgets(&mut self, context: &mut ApplyContext, tenants: &[String]) -> Outcome {
        for name in tenants {
            self.check_budgets_of(context, name);
        }
        Outcome::Done
    }

    /// The budget period was changed.
    pub(super) fn check_all_budgets(&mut self, context: &mut ApplyContext) {
        for name in self.tenants.keys().cloned().collect::<Vec<_>>() {
            self.check_budgets_of(context, &name);
        }
    }

    /// Compares the tenant's use with the marks of its budgets.
    pub(super) fn check_budgets_of(&mut self, context: &mut ApplyContext, name: &str) {
        let Some(tenant) = self.tenants.get(name).map(Arc::clone) else { return };
        let used = self.used_in_period(&tenant, context.at);
        for budget in Budget::ALL {
            let (mark, recorded) = (mark_of(&tenant, budget, used), self.recorded_mark(&tenant, budget));
            if mark == recorded {
                continue;
            }
            if let Some((mark, budget_hours)) = mark.filter(|_| mark > recorded).zip(tenant.budget_hours(budget)) {
                let notice = BudgetNotice {
                    tenant: tenant.name.clone(),
                    budget,
                    percent: mark.percent(),
                    used_ms: budget.used_ms(used),
                    budget_hours,
                    period_days: self.limits.budget_period.days(),
                };
                self.record(context, "quorum", AuditAction::BudgetMarkReached, Subject::default(), json(&notice));
            }
            self.budget_marks.set(name, budget, mark.map(|mark| ReachedMark { mark, since: context.at }));
        }
    }

    fn recorded_mark(&self, tenant: &Tenant, budget: Budget) -> Option<BudgetMark> {
        self.budget_marks.get(&tenant.name, budget).map(|reached| reached.mark)
    }

    /// The tenant's use in the budget period; not computed for a tenant without budgets.
    fn used_in_period(&self, tenant: &Tenant, now: Timestamp) -> Used {
        if !tenant.has_budget() {
            return Used::default();
        }
        self.used_by(&UsageOf::Tenant(tenant.name.clone()), self.limits.budget_period.days(), now)
    }
}

/// The highest mark that this use of the budget reaches.
fn mark_of(tenant: &Tenant, budget: Budget, used: Used) -> Option<BudgetMark> {
    tenant.percent_of_budget(budget, used).and_then(BudgetMark::reached_at)
}
