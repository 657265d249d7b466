//! Leases.

use super::values::text;
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// A lease, as a watch has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Lease)]
pub struct LeaseJson {
    name: String,
    /// Null: the caller may not see it.
    token: Option<u64>,
    /// The node of its holder.
    holder: String,
    /// Null: its holder is an agent.
    user: Option<String>,
    ttl_ms: u64,
}

/// A lease of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ListedLease)]
pub struct ListedLeaseJson {
    #[serde(flatten)]
    lease: LeaseJson,
    left_ms: Option<u64>,
    /// Of its holder.
    problem: Option<String>,
}

impl From<&v1::Lease> for LeaseJson {
    fn from(l: &v1::Lease) -> Self {
        Self { name: l.name.clone(), token: l.token, holder: l.holder.clone(), user: text(&l.user), ttl_ms: l.ttl_ms }
    }
}

impl From<&v1::Lease> for ListedLeaseJson {
    fn from(l: &v1::Lease) -> Self {
        Self { lease: LeaseJson::from(l), left_ms: l.left_ms, problem: text(&l.problem) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_null() {
        let lease = v1::Lease { name: "scheduler/default".into(), holder: "n1".into(), ttl_ms: 30_000, ..Default::default() };
        let watched = serde_json::json!({ "name": "scheduler/default", "token": null, "holder": "n1", "user": null, "ttl_ms": 30_000 });
        assert_eq!(serde_json::to_value(LeaseJson::from(&lease)).unwrap(), watched);
        let listed = serde_json::to_value(ListedLeaseJson::from(&lease)).unwrap();
        assert_eq!((&listed["name"], &listed["left_ms"], &listed["problem"]), (&watched["name"], &watched["user"], &watched["user"]));
        assert_eq!(listed.as_object().map(serde_json::Map::len), Some(7));
    }
}
