//! The descriptions of a checkpoint: the head writes `manifest.json`, each node its `node.json`.

use crate::simulated::SimulatedTime;
use lattice_model::{AllocationId, CheckpointId, Epoch, NodeId};
use lattice_node::{Checkpointing, Saved};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of both manifests; others are refused.
pub(super) const VERSION: u32 = 1;
/// Largest size of a manifest that is read, in bytes.
pub(super) const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    pub id: CheckpointId,
    pub allocation: AllocationId,
    pub epoch: Epoch,
    pub parent: Option<CheckpointId>,
    pub round: u32,
    pub step: Option<u64>,
    /// Milliseconds since 1970.
    pub created_at_ms: u64,
    /// How long the round took until everything was in the store, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    pub owner: String,
    pub owner_uid: u32,
    /// In rank order.
    pub nodes: Vec<NodeEntry>,
}

/// One node in a [`Manifest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    pub node: NodeId,
    pub files: u64,
    pub bytes: u64,
    /// The BLAKE3 hash of its `node.json`; absent: nothing of the allocation ran on the node.
    pub manifest: Option<String>,
}

impl Manifest {
    /// The head's manifest of what the nodes saved. The caller sets `took_ms`.
    pub fn made(allocation: AllocationId, made: &Checkpointing, saved: &BTreeMap<NodeId, Saved>, user: (&str, u32), at_ms: u64) -> Self {
        let entry = |node: &NodeId| {
            let saved = saved.get(node).cloned().unwrap_or_default();
            NodeEntry { node: node.clone(), files: saved.files, bytes: saved.bytes, manifest: saved.manifest }
        };
        Self {
            version: VERSION,
            id: made.id,
            allocation,
            epoch: made.epoch,
            parent: made.parent,
            round: made.round,
            step: saved.values().find_map(|saved| saved.step),
            created_at_ms: at_ms,
            took_ms: None,
            owner: user.0.to_owned(),
            owner_uid: user.1,
            nodes: made.nodes.iter().map(entry).collect(),
        }
    }

    /// The number of files, and their total size in bytes.
    pub fn size(&self) -> (u64, u64) {
        self.nodes.iter().fold((0, 0), |(files, bytes), n| (files.saturating_add(n.files), bytes.saturating_add(n.bytes)))
    }
}

/// `node.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeManifest {
    pub version: u32,
    pub id: CheckpointId,
    pub allocation: AllocationId,
    pub epoch: Epoch,
    pub node: NodeId,
    pub step: Option<u64>,
    /// The simulated time, if the application reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_seconds: Option<SimulatedTime>,
    pub files: Vec<FileEntry>,
}

/// A file or directory in a [`NodeManifest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub path: String,
    pub mode: u32,
    /// Absent for directories, as are the next two fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    /// Name of its object, in the folder of this `node.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}
