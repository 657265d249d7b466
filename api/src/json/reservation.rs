//! Reservations of nodes.

use super::values::{text, time};
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// Nodes that are set aside for a time.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Reservation)]
pub struct ReservationJson {
    name: String,
    /// `Pending`, `Open` or `Over`.
    state: String,
    /// A hostlist.
    nodes: String,
    node_count: u32,
    start: Option<String>,
    end: Option<String>,
    /// Whose work may use it.
    tenants: Vec<String>,
    /// Accounts whose work may use it.
    users: Vec<String>,
    /// Nobody's work begins on its nodes.
    maintenance: bool,
    comment: Option<String>,
    created_by: String,
    created_at: Option<String>,
    /// Allocations that wait for it.
    waiting: u32,
    /// Allocations that name it and have nodes.
    running: u32,
}

impl From<&v1::Reservation> for ReservationJson {
    fn from(r: &v1::Reservation) -> Self {
        Self {
            name: r.name.clone(),
            state: r.state.clone(),
            nodes: r.nodes.clone(),
            node_count: r.node_count,
            start: time(r.start_ms),
            end: time(r.end_ms),
            tenants: r.tenants.clone(),
            users: r.users.clone(),
            maintenance: r.maintenance,
            comment: text(&r.comment),
            created_by: r.created_by.clone(),
            created_at: time(r.created_at_ms),
            waiting: r.waiting,
            running: r.running,
        }
    }
}
