//! What users, tenants and projects have used.

use crate::v1;
use lattice_model::Timestamp;
use lattice_model::usage::HOUR_MS;
use serde::Serialize;
use utoipa::ToSchema;

/// Whose use it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum UsageOf {
    /// Of a user.
    User,
    /// Of a tenant.
    Tenant,
    /// Of a project of a tenant.
    Project,
}

impl UsageOf {
    /// The name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Tenant => "tenant",
            Self::Project => "project",
        }
    }
}

/// What a user, a tenant or a project has used. Work that runs counts up to now.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct UsageJson {
    of: UsageOf,
    /// Of the user or the tenant.
    name: String,
    project: Option<String>,
    /// The last days (UTC), today included.
    days: u32,
    node_hours: f64,
    gpu_hours: f64,
    budget_period_days: u32,
    node_hours_budget: Option<u64>,
    gpu_hours_budget: Option<u64>,
    /// Used of the budget in its period; of two budgets, the more used one.
    budget_percent: Option<u64>,
    budget_marks: Vec<BudgetMarkJson>,
}

/// A mark that the use of a tenant's budget has reached.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = BudgetMark)]
pub struct BudgetMarkJson {
    /// `gpu_hours` or `node_hours`.
    budget: String,
    percent: u64,
    since: String,
}

impl UsageJson {
    /// An answer, and what it is about.
    pub fn of(of: UsageOf, usage: &v1::Usage) -> Self {
        let hours = |ms: u64| ms as f64 / HOUR_MS as f64;
        let mark = |mark: &v1::BudgetMark| BudgetMarkJson {
            budget: mark.budget.clone(),
            percent: mark.percent,
            since: Timestamp(mark.since_ms).to_string(),
        };
        Self {
            of,
            name: usage.name.clone(),
            project: (of == UsageOf::Project).then(|| usage.project.clone()),
            days: usage.days,
            node_hours: hours(usage.node_ms),
            gpu_hours: hours(usage.gpu_ms),
            budget_period_days: usage.budget_period_days,
            node_hours_budget: usage.node_hours_budget,
            gpu_hours_budget: usage.gpu_hours_budget,
            budget_percent: usage.budget_percent,
            budget_marks: usage.budget_marks.iter().map(mark).collect(),
        }
    }
}
