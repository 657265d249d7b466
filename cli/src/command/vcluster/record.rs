//! One vCluster, or all of them, as the agent answers.

use crate::failure::{Exit, Failure};
use crate::session::answer;
use crate::shown::{filled, time};
use lattice_api::client::Client;
use lattice_api::v1;

/// All of them: `default` first, then by name.
pub async fn all(client: &Client) -> Result<Vec<v1::VCluster>, Failure> {
    Ok(answer(client.vclusters().list(v1::ListVClustersRequest {})).await?.vclusters)
}

/// The vCluster with this name; `hint` says what to do if there is none.
pub async fn find(client: &Client, name: &str, hint: &str) -> Result<v1::VCluster, Failure> {
    let found = all(client).await?.into_iter().find(|v| v.name == name);
    found.ok_or_else(|| Failure::new(Exit::NotFound, format!("vCluster {name:?} not found")).hint(hint))
}

/// One for people's programs.
pub fn json(v: &v1::VCluster) -> serde_json::Value {
    let weights: serde_json::Map<String, serde_json::Value> = v.weights.iter().map(|w| (w.factor.clone(), w.weight.into())).collect();
    serde_json::json!({
        "name": v.name, "scheduler": v.scheduler, "tenant": filled(&v.tenant), "nodes": v.nodes, "pending": v.pending,
        "running": v.running, "served_by": filled(&v.served_by), "created_by": filled(&v.created_by), "created_at": time(v.created_at_ms),
        "cycle_interval_ms": v.cycle_interval_ms, "borrows": v.borrows, "lend_ms": Some(v.lend_ms).filter(|ms| *ms > 0),
        "weights": weights, "weights_set": v.weights_set,
    })
}
