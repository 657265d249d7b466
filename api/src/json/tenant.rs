//! Tenants, their members and their projects.

use crate::v1;
use lattice_model::tenant::WHOLE_CLUSTER_PPM;
use serde::Serialize;
use utoipa::ToSchema;

/// A tenant: its quotas and what it has now. Null: no limit.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Tenant)]
pub struct TenantJson {
    name: String,
    max_nodes: Option<u32>,
    max_concurrent_allocations: Option<u32>,
    /// The nodes that its allocations have now, each counted once.
    nodes: u32,
    /// The allocations that have nodes now.
    allocations: u32,
    /// A part of the cluster: 0 to 1.
    fair_share_target: Option<f64>,
    /// A multiple of the share, 1 or more.
    burst_allowance: Option<f64>,
    gpu_hours_budget: Option<u64>,
    node_hours_budget: Option<u64>,
    /// The highest preemption class of its work.
    class_max: Option<u32>,
}

impl From<&v1::Tenant> for TenantJson {
    fn from(t: &v1::Tenant) -> Self {
        Self {
            name: t.name.clone(),
            max_nodes: t.max_nodes,
            max_concurrent_allocations: t.max_concurrent_allocations,
            nodes: t.nodes,
            allocations: t.allocations,
            fair_share_target: t.fair_share_target_ppm.map(|ppm| f64::from(ppm) / f64::from(WHOLE_CLUSTER_PPM)),
            burst_allowance: t.burst_allowance_percent.map(|percent| f64::from(percent) / 100.0),
            gpu_hours_budget: t.gpu_hours_budget,
            node_hours_budget: t.node_hours_budget,
            class_max: t.class_max,
        }
    }
}

/// A member of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = TenantMember)]
pub struct TenantMemberJson {
    /// `user:NAME` or `group:NAME`.
    subject: String,
    /// Its user id or group id.
    id: u32,
    /// Whether its work that names no tenant is of this one; null: not known.
    default: Option<bool>,
}

impl From<&v1::TenantMember> for TenantMemberJson {
    fn from(member: &v1::TenantMember) -> Self {
        Self { subject: member.subject.clone(), id: member.id, default: Some(member.is_default) }
    }
}

impl TenantMemberJson {
    /// The answer to a request to add a member. Whether the tenant is its default is known only if that was requested: an
    /// earlier default stays.
    pub fn added(member: &v1::TenantMember) -> Self {
        Self { default: member.is_default.then_some(true), ..Self::from(member) }
    }
}

/// A registered project of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Project)]
pub struct ProjectJson {
    name: String,
    /// Whether it takes work of its members alone.
    closed: bool,
    /// `user:NAME` each.
    members: Vec<String>,
}

impl From<&v1::Project> for ProjectJson {
    fn from(project: &v1::Project) -> Self {
        Self { name: project.name.clone(), closed: project.closed, members: project.members.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_fractions_and_a_missing_limit_is_null() {
        let tenant = v1::Tenant { fair_share_target_ppm: Some(150_000), burst_allowance_percent: Some(150), ..Default::default() };
        let json = serde_json::to_value(TenantJson::from(&tenant)).unwrap();
        assert_eq!((&json["fair_share_target"], &json["burst_allowance"]), (&serde_json::json!(0.15), &serde_json::json!(1.5)));
        assert!(json["max_nodes"].is_null());
    }

    #[test]
    fn whether_a_tenant_is_the_default_is_null_while_it_is_not_known() {
        let member = |is_default| v1::TenantMember { subject: "user:root".into(), id: 0, is_default };
        let shown = |default: Option<bool>| serde_json::json!({ "subject": "user:root", "id": 0, "default": default });
        assert_eq!(serde_json::to_value(TenantMemberJson::from(&member(false))).unwrap(), shown(Some(false)));
        assert_eq!(serde_json::to_value(TenantMemberJson::added(&member(true))).unwrap(), shown(Some(true)));
        assert_eq!(serde_json::to_value(TenantMemberJson::added(&member(false))).unwrap(), shown(None));
    }
}
