//! Checkpoints of an allocation.

use super::values::{text, time};
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Checkpoint)]
pub struct CheckpointJson {
    id: String,
    allocation: String,
    epoch: u64,
    /// The checkpoint before it.
    parent: Option<String>,
    /// As the application reported it.
    step: Option<u64>,
    /// The simulated time, as the application reported it; not in a list.
    time_seconds: Option<f64>,
    created_at: Option<String>,
    files: u64,
    bytes: u64,
    /// The allocation begins from it when it runs again.
    last: bool,
    /// Of ended work: not removed before this time.
    expires_at: Option<String>,
    /// Why its manifest cannot be read.
    damaged: Option<String>,
    nodes: Vec<CheckpointNodeJson>,
}

/// What a node saved.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = CheckpointNode)]
pub struct CheckpointNodeJson {
    node: String,
    files: u64,
    bytes: u64,
    /// Not in a list of checkpoints.
    list: Vec<CheckpointFileJson>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = CheckpointFile)]
pub struct CheckpointFileJson {
    path: String,
    bytes: u64,
    blake3: String,
}

impl From<&v1::checkpoint_info::File> for CheckpointFileJson {
    fn from(f: &v1::checkpoint_info::File) -> Self {
        Self { path: f.path.clone(), bytes: f.bytes, blake3: f.blake3.clone() }
    }
}

impl From<&v1::checkpoint_info::Node> for CheckpointNodeJson {
    fn from(n: &v1::checkpoint_info::Node) -> Self {
        Self { node: n.node.clone(), files: n.files, bytes: n.bytes, list: n.list.iter().map(CheckpointFileJson::from).collect() }
    }
}

impl From<&v1::CheckpointInfo> for CheckpointJson {
    fn from(c: &v1::CheckpointInfo) -> Self {
        Self {
            id: c.id.clone(),
            allocation: c.allocation.clone(),
            epoch: c.epoch,
            parent: text(&c.parent),
            step: c.step,
            time_seconds: c.time_seconds,
            created_at: time(c.created_at_ms),
            files: c.files,
            bytes: c.bytes,
            last: c.last,
            expires_at: c.expires_at_ms.and_then(time),
            damaged: text(&c.damaged),
            nodes: c.nodes.iter().map(CheckpointNodeJson::from).collect(),
        }
    }
}
