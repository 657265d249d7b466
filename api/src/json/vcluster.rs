//! vClusters.

use super::values::{text, time};
use crate::v1;
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A queue with its own scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = VCluster)]
pub struct VClusterJson {
    name: String,
    scheduler: String,
    /// It accepts only work of this tenant; null: of all.
    tenant: Option<String>,
    /// Its own nodes; empty: its work runs on the nodes of the default vCluster.
    nodes: Vec<String>,
    pending: u32,
    running: u32,
    /// The node whose agent schedules its queue; null: none at present.
    served_by: Option<String>,
    created_by: Option<String>,
    created_at: Option<String>,
    cycle_interval_ms: u64,
    borrows: bool,
    /// The longest walltime of others' work on its idle nodes; null: it lends none.
    lend_ms: Option<u64>,
    weights: BTreeMap<String, f64>,
    /// Whether somebody set the weights; otherwise they are those of its scheduler.
    weights_set: bool,
}

impl From<&v1::VCluster> for VClusterJson {
    fn from(v: &v1::VCluster) -> Self {
        Self {
            name: v.name.clone(),
            scheduler: v.scheduler.clone(),
            tenant: text(&v.tenant),
            nodes: v.nodes.clone(),
            pending: v.pending,
            running: v.running,
            served_by: text(&v.served_by),
            created_by: text(&v.created_by),
            created_at: time(v.created_at_ms),
            cycle_interval_ms: v.cycle_interval_ms,
            borrows: v.borrows,
            lend_ms: Some(v.lend_ms).filter(|ms| *ms > 0),
            weights: v.weights.iter().map(|w| (w.factor.clone(), w.weight)).collect(),
            weights_set: v.weights_set,
        }
    }
}
