//! The log store: the object store (a directory, S3, Google, Azure) that `logs.store` names. It has
//! the output even after the node has removed its files.
//!
//! ```text
//!   <store>/<tenant>/<project>/<allocation>/logs/
//!     metadata.json                                  by the head: the owner, the nodes
//!     metadata/<epoch>/<node>.json                   by each node: its streams' chunks, and times
//!     steps/<epoch>.jsonl                            by the head, at the end: its launches
//!     stdout/<node>/<epoch>-<launch>-<rank>-<segment>-<start>.log.zst
//!     stderr/<node>/…
//!   <store>/<tenant>/<project>/<allocation>/telemetry/
//!     <node>/<epoch>-<time>-<unique>.jsonl.zst       raw measurements of debug mode, records of audit mode
//!                                                    (lattice_observe::traces)
//!   <store>/traces/
//!     lattice-trace-<time>-<node>.jsonl              traces of the cluster, by the agent that was asked
//! ```
//!
//! All keys of an allocation except `metadata.json` contain the epoch, so an agent that still
//! writes under a superseded epoch overwrites no newer object. A head does not replace
//! `metadata.json` of a later epoch.

mod cluster_trace;

pub use cluster_trace::ClusterTraceUpload;

use crate::output_index::{Cut, Index, VERSION};
use crate::steps;
use futures::TryStreamExt;
use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::config::logs::{LOGS_STORE, StoreSettings};
use lattice_model::{AllocationId, Epoch, JobSteps, NodeId};
use lattice_objects::{Objects, ObjectsError};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Largest size of an index that is read, in bytes.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Folder of raw measurements and audit records below an allocation's keys.
const TRACES: &str = "telemetry";
/// Largest number of files in it that are listed for one node.
pub const TRACES_MAX: usize = 100_000;
/// Largest size of a file in it that is read, in bytes, compressed and uncompressed.
const TRACE_BYTES_MAX: u64 = 16 << 20;

/// Why an operation on the store failed.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the log store: {0}")]
    Store(#[from] object_store::Error),
    #[error("{key} in the log store cannot be read: {why}")]
    Damaged { key: String, why: String },
    #[error("there are more than {most} files below {key} in the log store")]
    TooMany { key: String, most: usize },
}

/// A cloneable handle on the store.
#[derive(Clone, Debug)]
pub struct LogStore {
    objects: Objects,
}

/// An allocation under one epoch: what the keys of all its nodes have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub tenant: String,
    pub project: String,
    pub allocation: AllocationId,
    pub epoch: Epoch,
}

impl Place {
    /// The place of the output that an index describes.
    pub fn of(index: &Index) -> Self {
        let (tenant, project) = (index.tenant.clone(), index.project.clone());
        Self { tenant, project, allocation: index.allocation, epoch: index.epoch }
    }

    /// The beginning of all keys of an allocation.
    fn key_prefix(&self) -> [String; 3] {
        let named = |name: &str| if name.is_empty() { "default".to_owned() } else { name.to_owned() };
        [named(&self.tenant), named(&self.project), self.allocation.to_string()]
    }

    /// The folder of raw measurements and audit records in the store, for people.
    pub fn of_traces(&self) -> String {
        format!("{}/{TRACES}/", self.key_prefix().join("/"))
    }
}

/// A file of raw measurements or audit records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub node: String,
    name: String,
    key: Key,
    bytes: u64,
}

impl Trace {
    /// When the node began to write it, from its name `<epoch>-<time>-<unique>`.
    fn time(&self) -> &str {
        self.name.split('-').nth(1).unwrap_or_default()
    }
}

/// `metadata.json`.
#[derive(Serialize)]
struct Metadata<'a> {
    version: u32,
    allocation: AllocationId,
    epoch: Epoch,
    owner: &'a str,
    owner_uid: u32,
    tenant: &'a str,
    project: &'a str,
    nodes: &'a [NodeId],
    /// Keys of each node's index, with times and byte offsets.
    indexes: Vec<String>,
}

/// The attempt that wrote a [`Metadata`].
#[derive(Deserialize)]
struct WrittenUnder {
    epoch: Epoch,
}

impl LogStore {
    /// Creates the client without contacting the store.
    pub fn open(store: &StoreSettings) -> Result<Self, ObjectsError> {
        store.open(LOGS_STORE).map(|objects| Self { objects })
    }

    /// The configured store, if there is one.
    pub fn configured(config: &AgentConfig) -> Result<Option<Self>, ObjectsError> {
        let store = &config.logs.store;
        if store.is_configured() { Self::open(store).map(Some) } else { Ok(None) }
    }

    /// The configured URL, without secrets.
    pub fn url(&self) -> &str {
        &self.objects.url
    }

    fn key(&self, place: &Place, parts: &[&str]) -> Key {
        self.key_of(place, "logs", parts)
    }

    fn key_of(&self, place: &Place, kind: &str, parts: &[&str]) -> Key {
        let prefix = place.key_prefix().into_iter().chain([kind.to_owned()]);
        self.objects.key(prefix.chain(parts.iter().map(|p| (*p).to_owned())))
    }

    /// Stores a file of raw measurements or audit records of a node. Idempotent.
    pub async fn put_trace(&self, place: &Place, node: &NodeId, name: &str, compressed: Vec<u8>) -> Result<(), StoreError> {
        let key = self.key_of(place, TRACES, &[node.as_str(), name]);
        self.objects.store.put(&key, PutPayload::from(compressed)).await?;
        Ok(())
    }

    /// The nodes that have stored such measurements or records of an allocation, under any of its
    /// claims.
    pub async fn traced(&self, place: &Place) -> Result<Vec<String>, StoreError> {
        let listed = self.objects.store.list_with_delimiter(Some(&self.key_of(place, TRACES, &[]))).await?;
        let mut nodes: Vec<String> = listed.common_prefixes.iter().filter_map(|below| below.filename()).map(str::to_owned).collect();
        nodes.sort();
        Ok(nodes)
    }

    /// These files of one node, ordered by time; an error if there are more than `most`.
    pub async fn traces(&self, place: &Place, node: &str, most: usize) -> Result<Vec<Trace>, StoreError> {
        let prefix = self.key_of(place, TRACES, &[node]);
        let mut listed = self.objects.store.list(Some(&prefix));
        let mut all = Vec::new();
        while let Some(meta) = listed.try_next().await? {
            let mut parts = meta.location.parts().skip(prefix.parts().count());
            let (Some(name), None) = (parts.next(), parts.next()) else { continue };
            if !name.as_ref().ends_with(".jsonl.zst") {
                continue;
            }
            if all.len() == most {
                return Err(StoreError::TooMany { key: prefix.to_string(), most });
            }
            let (node, name, bytes) = (node.to_owned(), name.as_ref().to_owned(), meta.size);
            all.push(Trace { node, name, key: meta.location, bytes });
        }
        all.sort_by(|a, b| (a.time(), &a.name).cmp(&(b.time(), &b.name)));
        Ok(all)
    }

    /// The lines of one file.
    pub async fn trace(&self, trace: &Trace) -> Result<Vec<u8>, StoreError> {
        let damaged = |why: String| StoreError::Damaged { key: trace.key.to_string(), why };
        if trace.bytes > TRACE_BYTES_MAX {
            return Err(damaged(format!("{} bytes, {TRACE_BYTES_MAX} are read", trace.bytes)));
        }
        let compressed = match self.objects.store.get(&trace.key).await {
            Ok(found) => found.bytes().await?,
            // A lifecycle rule may remove it after it was listed.
            Err(object_store::Error::NotFound { .. }) => return Err(damaged("it is gone".to_owned())),
            Err(error) => return Err(error.into()),
        };
        let most = usize::try_from(TRACE_BYTES_MAX).unwrap_or(usize::MAX);
        let decoded = tokio::task::spawn_blocking(move || zstd::bulk::decompress(&compressed, most)).await;
        decoded.map_err(|e| damaged(e.to_string()))?.map_err(|e| damaged(e.to_string()))
    }

    fn index_key(&self, place: &Place, node: &NodeId) -> Key {
        self.key(place, &["metadata", &place.epoch.to_string(), &format!("{node}.json")])
    }

    fn chunk_key(&self, place: &Place, node: &NodeId, cut: &Cut) -> Key {
        let s = cut.stream;
        let name = format!("{}-{}-{}-{}-{:012}.log.zst", place.epoch, s.launch, s.rank, cut.segment, cut.chunk.start);
        self.key(place, &[s.name(), node.as_str(), &name])
    }

    /// Stores a chunk's compressed bytes. Idempotent.
    pub async fn put_chunk(&self, place: &Place, node: &NodeId, cut: &Cut, compressed: Vec<u8>) -> Result<(), StoreError> {
        self.objects.store.put(&self.chunk_key(place, node, cut), PutPayload::from(compressed)).await?;
        Ok(())
    }

    /// A chunk's bytes. They may be more than `cut` states, because an open chunk grows; fewer are
    /// an error.
    pub async fn chunk(&self, place: &Place, node: &NodeId, cut: &Cut) -> Result<Vec<u8>, StoreError> {
        let key = self.chunk_key(place, node, cut);
        let compressed = self.objects.store.get(&key).await?.bytes().await?;
        let most = usize::try_from(crate::output_index::CHUNK_BYTES_MAX).unwrap_or(usize::MAX);
        let decoded = tokio::task::spawn_blocking(move || zstd::bulk::decompress(&compressed, most)).await;
        let damaged = |why: String| StoreError::Damaged { key: key.to_string(), why };
        let data = decoded.map_err(|e| damaged(e.to_string()))?.map_err(|e| damaged(e.to_string()))?;
        if (data.len() as u64) < cut.chunk.end - cut.chunk.start {
            return Err(damaged(format!("it has {} bytes, {} were put", data.len(), cut.chunk.end - cut.chunk.start)));
        }
        Ok(data)
    }

    /// Stores a node's index. The head also writes `metadata.json`, unless that is of a later
    /// epoch.
    pub async fn put_index(&self, index: &Index) -> Result<(), StoreError> {
        let place = Place::of(index);
        let json = |value: Result<Vec<u8>, serde_json::Error>, key: &Key| {
            value.map_err(|e| StoreError::Damaged { key: key.to_string(), why: e.to_string() })
        };
        let key = self.index_key(&place, &index.node);
        self.objects.store.put(&key, PutPayload::from(json(serde_json::to_vec(index), &key)?)).await?;
        if index.nodes.first() != Some(&index.node) {
            return Ok(());
        }
        let key = self.key(&place, &["metadata.json"]);
        if let Some(epoch) = self.epoch_of(&key).await?
            && epoch > index.epoch.0
        {
            return Ok(());
        }
        let metadata = Metadata {
            version: VERSION,
            allocation: index.allocation,
            epoch: index.epoch,
            owner: &index.owner,
            owner_uid: index.owner_uid,
            tenant: &index.tenant,
            project: &index.project,
            nodes: &index.nodes,
            indexes: index.nodes.iter().map(|node| format!("metadata/{}/{node}.json", index.epoch)).collect(),
        };
        self.objects.store.put(&key, PutPayload::from(json(serde_json::to_vec_pretty(&metadata), &key)?)).await?;
        Ok(())
    }

    /// The epoch of the existing `metadata.json`.
    async fn epoch_of(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        let Some(bytes) = self.get_bounded(key).await? else { return Ok(None) };
        Ok(serde_json::from_slice::<WrittenUnder>(&bytes).ok().map(|known| known.epoch.0))
    }

    /// A node's index, if it stored one.
    pub async fn index(&self, place: &Place, node: &NodeId) -> Result<Option<Index>, StoreError> {
        let key = self.index_key(place, node);
        let Some(bytes) = self.get_bounded(&key).await? else { return Ok(None) };
        let damaged = |why: String| StoreError::Damaged { key: key.to_string(), why };
        let index: Index = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if index.version != VERSION || index.streams.iter().any(|s| s.segments.is_empty()) {
            return Err(damaged(format!("version {}, this agent reads {VERSION}", index.version)));
        }
        Ok(Some(index))
    }

    fn steps_key(&self, place: &Place) -> Key {
        self.key(place, &["steps", &format!("{}.jsonl", place.epoch)])
    }

    /// Stores the steps of an allocation. Idempotent.
    pub async fn put_steps(&self, place: &Place, steps: &JobSteps) -> Result<(), StoreError> {
        let key = self.steps_key(place);
        let lines = steps::encode(steps).map_err(|e| StoreError::Damaged { key: key.to_string(), why: e.to_string() })?;
        self.objects.store.put(&key, PutPayload::from(lines)).await?;
        Ok(())
    }

    /// The steps of an allocation, if its head stored any.
    pub async fn steps(&self, place: &Place) -> Result<Option<JobSteps>, StoreError> {
        Ok(self.get_bounded(&self.steps_key(place)).await?.map(|lines| steps::decode(&lines)))
    }

    async fn get_bounded(&self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        match self.objects.store.get(key).await {
            Ok(found) if found.meta.size > INDEX_BYTES_MAX => {
                Err(StoreError::Damaged { key: key.to_string(), why: format!("{} bytes", found.meta.size) })
            }
            Ok(found) => Ok(Some(found.bytes().await?.to_vec())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes and reads a small object, for `doctor`.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let name = format!(".lattice-doctor-{}", uuid::Uuid::new_v4());
        let key = self.objects.key([name]);
        self.objects.store.put(&key, PutPayload::from_static(b"ok")).await?;
        self.objects.store.get(&key).await?.bytes().await?;
        self.objects.store.delete(&key).await?;
        Ok(())
    }
}
