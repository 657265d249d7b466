//! What tenants, projects and users have used. Everybody sees the use of tenants, as they see how
//! many nodes a tenant has now. A user's use is visible to those who see the user's allocations.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::refusal::{status, unexpected};
use lattice_api::v1;
use lattice_ledger::{BudgetReport, ReachedMark, UsageOf, UsageReport};
use lattice_model::Budget;
use lattice_quorum_client::wire::{Answer, Request as Ask};
use tonic::{Request, Status};

/// A larger part of a budget is shown as this: a budget of nothing is exceeded without bound.
const SHOWN_PERCENT_MAX: u64 = 1000;

impl Api {
    pub(super) async fn tenant_usage(&self, request: Request<v1::GetTenantUsageRequest>) -> Result<v1::Usage, Status> {
        self.user(&request).await?;
        let v1::GetTenantUsageRequest { tenant, project, days } = request.into_inner();
        if project.is_empty() {
            let report = self.usage(UsageOf::Tenant(tenant.clone()), days).await?;
            return Ok(to_proto(tenant, project, report));
        }
        let report = self.usage(UsageOf::Project { tenant: tenant.clone(), project: project.clone() }, days).await?;
        Ok(to_proto(tenant, project, report))
    }

    pub(super) async fn user_usage(&self, request: Request<v1::GetUserUsageRequest>) -> Result<v1::Usage, Status> {
        let me = self.user(&request).await?.name;
        let caller = self.caller(&request).await?;
        let v1::GetUserUsageRequest { user, days } = request.into_inner();
        let user = if user.is_empty() { me.clone() } else { user };
        if user != me && !self.known_viewer(&caller).await?.sees_all() {
            return Err(Status::permission_denied("the use of other users is private here: operators see it"));
        }
        let report = self.usage(UsageOf::User(user.clone()), days).await?;
        Ok(to_proto(user, String::new(), report))
    }

    async fn usage(&self, of: UsageOf, days: u32) -> Result<UsageReport, Status> {
        let ask = Ask::GetUsage { of, days: (days > 0).then_some(days) };
        match self.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Usage(report) => Ok(*report),
            other => Err(unexpected(&other)),
        }
    }
}

fn to_proto(name: String, project: String, report: UsageReport) -> v1::Usage {
    let UsageReport { used, days, budget, period } = report;
    let budget = budget.as_ref();
    v1::Usage {
        name,
        project,
        days,
        node_ms: used.node_ms,
        gpu_ms: used.gpu_ms,
        budget_period_days: period.days(),
        gpu_hours_budget: budget.and_then(|budget| budget.tenant.gpu_hours_budget),
        node_hours_budget: budget.and_then(|budget| budget.tenant.node_hours_budget),
        budget_percent: budget.and_then(|budget| budget.tenant.budget_percent(budget.used)).map(|percent| percent.min(SHOWN_PERCENT_MAX)),
        budget_marks: budget.map(marks_to_proto).unwrap_or_default(),
    }
}

fn marks_to_proto(report: &BudgetReport) -> Vec<v1::BudgetMark> {
    let to_proto = |(budget, reached): (&Budget, &ReachedMark)| v1::BudgetMark {
        budget: budget.name().to_owned(),
        percent: reached.mark.percent(),
        since_ms: reached.since.0,
    };
    report.marks.iter().map(to_proto).collect()
}
