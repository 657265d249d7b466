//! Cluster-wide limits.

use super::{ApplyContext, ClusterLimits, EndedLimitsChange, EndedStatus, Ledger, Outcome, QuotaChange, Subject, UserLimitsChange};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::access::RootMay;
use lattice_model::tenant::Excess;
use lattice_model::{Allocation, AuditAction, BudgetPeriod, Claim, DagSize, NodeId, Quota, SharePolicy, Timestamp};
use serde::{Deserialize, Serialize};

/// The cluster-wide limits, and the current usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsStatus {
    pub limits: ClusterLimits,
    /// Number of nodes claimed for sensitive work.
    pub sensitive_nodes: u32,
    /// How much ended work is kept.
    pub ended: EndedStatus,
}

impl Ledger {
    /// The limits and the current usage. `at`: the time now.
    pub fn limits(&self, at: Timestamp) -> LimitsStatus {
        LimitsStatus { limits: self.limits, sensitive_nodes: count(self.usage.sensitive.len()), ended: self.ended_status(at) }
    }

    /// The limits only.
    pub fn cluster_limits(&self) -> ClusterLimits {
        self.limits
    }

    pub(super) fn set_limits(
        &mut self,
        context: &mut ApplyContext,
        (sensitive_pool_size, users, ended): (QuotaChange, &UserLimitsChange, EndedLimitsChange),
        (budget_period_days, share_policy, dag_size, root_may): (Option<u32>, Option<SharePolicy>, Option<u32>, Option<RootMay>),
        by: &str,
    ) -> Result<Outcome, Refusal> {
        let (users, mut changes_text) = users.over(self.limits.users);
        let budget_period = match budget_period_days.map(BudgetPeriod::of_days) {
            None => self.limits.budget_period,
            Some(Ok(period)) => period,
            Some(Err(invalid)) => return Err(Refusal::Malformed { why: invalid.to_string() }),
        };
        if budget_period != self.limits.budget_period {
            changes_text += &format!(", budget_period_days {budget_period}");
        }
        let share_policy = share_policy.unwrap_or(self.limits.share_policy);
        if share_policy != self.limits.share_policy {
            changes_text += &format!(", share_policy {}", share_policy.name());
        }
        let (ended, ended_text) = ended.over(self.limits.ended)?;
        changes_text += &ended_text;
        let dag_size = match dag_size.map(DagSize::of_steps) {
            None => self.limits.dag_size,
            Some(Ok(size)) => size,
            Some(Err(invalid)) => return Err(Refusal::Malformed { why: invalid.to_string() }),
        };
        if dag_size != self.limits.dag_size {
            changes_text += &format!(", dag_size {}", dag_size.steps());
        }
        let root_may = root_may.unwrap_or(self.limits.root_may);
        if root_may != self.limits.root_may {
            changes_text += &format!(", root_acts_for {}", root_may.name());
        }
        let sensitive_pool_size = sensitive_pool_size.over(self.limits.sensitive_pool_size);
        let next = ClusterLimits { sensitive_pool_size, users, budget_period, share_policy, ended, dag_size, root_may };
        if next == self.limits {
            return Ok(Outcome::Done);
        }
        let is_other_period = next.budget_period != self.limits.budget_period;
        self.limits = next;
        context.changed.limits = true;
        let shown = next.sensitive_pool_size.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        self.record(context, by, AuditAction::LimitsSet, Subject::default(), format!("sensitive_pool_size {shown}{changes_text}"));
        if is_other_period {
            self.check_all_budgets(context);
        }
        Ok(Outcome::Done)
    }

    /// The limit that a claim of nodes for sensitive work would exceed.
    pub(super) fn excess_of_sensitive(&self, allocation: &Allocation, claim: &Claim) -> Option<Excess> {
        let limit = self.limits.sensitive_pool_size.filter(|_| allocation.spec.sensitive)?;
        let nodes = &self.usage.sensitive;
        let current = count(nodes.len());
        let requested = count(claim.shares.iter().filter(|s| !nodes.contains_key(&s.node)).count());
        let over = requested > 0 && current.saturating_add(requested) > limit;
        over.then(|| Excess { tenant: String::new(), quota: Quota::SensitivePoolSize, current, requested, limit })
    }

    /// Whether the node is claimed for sensitive work.
    pub(super) fn is_sensitive(&self, node: &NodeId) -> bool {
        self.usage.sensitive.contains_key(node)
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
