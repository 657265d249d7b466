//! Checkpoints in the object store.
//!
//! ```text
//!   <store>/<tenant>/<project>/<allocation>/checkpoints/<id>/
//!     manifest.json                              by the head, last: without it there is no checkpoint
//!     <epoch>.<round>/<index>-<node>/node.json   by each node: its files
//!     <epoch>.<round>/<index>-<node>/<n>.zst     a file, compressed
//! ```
//!
//! `manifest.json` holds the BLAKE3 of each `node.json`, which holds the BLAKE3 of each file. So a
//! reader that trusts the manifest can verify everything.

mod files;
mod large;
mod manifest;
mod packing;
mod source;
mod uploads;

pub use manifest::{FileEntry, Manifest, NodeEntry, NodeManifest};
pub use source::Source;
pub use uploads::Uploads;

use super::directory::{DirectoryError, PlaceError};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use lattice_agent_common::config::checkpoint::CheckpointsUnavailable;
use lattice_agent_common::config::logs::StoreSettings;
use lattice_model::{AllocationId, CheckpointId, CheckpointRef, Epoch, NodeId};
use lattice_objects::{Objects, ObjectsError, SettingNames};
use lattice_pki::credentials::Material;
use manifest::{MANIFEST_BYTES_MAX, VERSION};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::io;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::watch;

/// How many ancestors of a checkpoint are searched for another one.
const LINEAGE_MAX: usize = 1000;

/// What went wrong with a checkpoint in the store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The store refused or failed; a retry may succeed.
    #[error("the checkpoint store: {0}")]
    Store(#[from] object_store::Error),
    /// The content differs from what was stored.
    #[error("{what}: {why}")]
    Damaged { what: String, why: String },
    #[error(transparent)]
    Unavailable(#[from] CheckpointsUnavailable),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The work's files cannot be saved.
    #[error("{0}")]
    Unfit(String),
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("there is no checkpoint {0}: `lattice checkpoint list` shows them")]
    NoSuch(String),
}

impl StoreError {
    /// Whether the store has no space left: that is reported at once, because waiting does not
    /// help.
    pub fn is_full(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(now) = cause {
            let kind = now.downcast_ref::<io::Error>().map(io::Error::kind);
            if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
                return true;
            }
            cause = now.source();
        }
        false
    }
}

/// The owner of checkpoints: the part of the key that all of them share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub tenant: String,
    pub project: String,
    pub allocation: AllocationId,
}

/// An agent's cluster: its name, and the authorities that it trusts now.
#[derive(Clone, Debug)]
pub(super) struct Ours {
    pub name: String,
    pub material: watch::Receiver<Arc<Material>>,
}

/// A cloneable handle on the store.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    pub(super) objects: Objects,
    /// The cluster that is recorded with each allocation; `None`: no cluster is recorded.
    pub(super) ours: Option<Ours>,
}

/// One node's part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub owner: Owner,
    pub id: CheckpointId,
    /// Epoch and round are in the keys, so attempts with the same checkpoint id never share a key.
    pub epoch: Epoch,
    pub round: u32,
    /// The node's index in rank order.
    pub index: usize,
    pub node: NodeId,
}

impl CheckpointStore {
    /// Creates the client without contacting the store. `names`: the names of its settings in the
    /// configuration, for errors.
    pub fn open(names: SettingNames, store: &StoreSettings) -> Result<Self, ObjectsError> {
        store.open(names).map(|objects| Self { objects, ours: None })
    }

    /// The same store, for an agent of this cluster.
    pub fn of_cluster(self, name: String, material: watch::Receiver<Arc<Material>>) -> Self {
        Self { ours: Some(Ours { name, material }), ..self }
    }

    fn key(&self, owner: &Owner, parts: &[&str]) -> Key {
        let named = |name: &str| if name.is_empty() { "default".to_owned() } else { name.to_owned() };
        let whose = [named(&owner.tenant), named(&owner.project), owner.allocation.to_string(), "checkpoints".to_owned()];
        self.objects.key(whose.into_iter().chain(parts.iter().map(|p| (*p).to_owned())))
    }

    fn manifest_key(&self, owner: &Owner, id: CheckpointId) -> Key {
        self.key(owner, &[&id.to_string(), "manifest.json"])
    }

    fn part_key(&self, part: &Part, name: &str) -> Key {
        let place = format!("{}-{}", part.index, part.node);
        self.key(&part.owner, &[&part.id.to_string(), &format!("{}.{}", part.epoch, part.round), &place, name])
    }

    /// Writes the manifest after all nodes have saved: from here on the checkpoint exists. A
    /// manifest that another attempt wrote stays.
    pub async fn put_manifest(&self, owner: &Owner, manifest: &Manifest) -> Result<(), StoreError> {
        match self.manifest(owner, manifest.id).await {
            Ok(there) if (there.epoch, there.round, &there.nodes) == (manifest.epoch, manifest.round, &manifest.nodes) => return Ok(()),
            Ok(there) => {
                return Err(StoreError::Unfit(format!("checkpoint {} exists already, made under epoch {}", manifest.id, there.epoch)));
            }
            Err(StoreError::NoSuch(_)) => {}
            Err(error) => return Err(error),
        }
        let json = serde_json::to_vec_pretty(manifest).map_err(|e| StoreError::Unfit(e.to_string()))?;
        // The nodes may have saved nothing, and then recorded nothing either.
        self.record_allocation(owner).await?;
        self.objects.store.put(&self.manifest_key(owner, manifest.id), PutPayload::from(json)).await?;
        Ok(())
    }

    /// The manifests of an allocation's checkpoints, oldest first, and what is wrong with
    /// unreadable ones. Without a manifest there is no checkpoint.
    pub async fn list(&self, owner: &Owner) -> Result<(Vec<Manifest>, Vec<(CheckpointId, String)>), StoreError> {
        let (mut found, mut broken) = (Vec::new(), Vec::new());
        for id in self.ids(owner).await? {
            match self.manifest(owner, id).await {
                Ok(manifest) => found.push(manifest),
                Err(StoreError::NoSuch(_)) => {}
                Err(error @ StoreError::Damaged { .. }) => broken.push((id, error.to_string())),
                Err(error) => return Err(error),
            }
        }
        found.sort_by_key(|m| (m.created_at_ms, m.id));
        Ok((found, broken))
    }

    /// Ids of everything that an allocation's checkpoints left in the store, complete or not.
    pub async fn ids(&self, owner: &Owner) -> Result<Vec<CheckpointId>, StoreError> {
        let listed = self.objects.store.list_with_delimiter(Some(&self.key(owner, &[]))).await?;
        Ok(listed.common_prefixes.iter().filter_map(|key| key.parts().next_back()?.as_ref().parse().ok()).collect())
    }

    /// The manifest of one checkpoint.
    pub async fn manifest(&self, owner: &Owner, id: CheckpointId) -> Result<Manifest, StoreError> {
        let key = self.manifest_key(owner, id);
        let bytes = self.get_bounded(&key).await?.ok_or_else(|| StoreError::NoSuch(id.to_string()))?;
        let damaged = |why: String| StoreError::Damaged { what: "manifest.json".to_owned(), why };
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if manifest.version != VERSION {
            return Err(damaged(format!("version {}, this agent reads {VERSION}", manifest.version)));
        }
        if (manifest.id, manifest.allocation) != (id, owner.allocation) {
            return Err(damaged("it belongs to another checkpoint".to_owned()));
        }
        Ok(manifest)
    }

    /// One node's file list, verified against the manifest.
    pub async fn node_manifest(&self, part: &Part, entry: &NodeEntry) -> Result<Option<NodeManifest>, StoreError> {
        let Some(wanted) = &entry.manifest else { return Ok(None) };
        let damaged = |why: String| StoreError::Damaged { what: format!("{}: node.json", entry.node), why };
        let bytes = self.get_bounded(&self.part_key(part, "node.json")).await?.ok_or_else(|| damaged("it is missing".to_owned()))?;
        let hash = blake3::hash(&bytes).to_hex();
        if hash.as_str() != wanted {
            return Err(damaged(format!("its BLAKE3 is {hash}, the manifest has {wanted}")));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|e| damaged(e.to_string()))
    }

    /// Removes a checkpoint, the manifest first, so that a half-removed one never looks complete.
    pub async fn remove(&self, owner: &Owner, id: CheckpointId) -> Result<(), StoreError> {
        match self.objects.store.delete(&self.manifest_key(owner, id)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let prefix = self.key(owner, &[&id.to_string()]);
        let all = self.objects.store.list(Some(&prefix)).map_ok(|meta| meta.location).boxed();
        self.objects.store.delete_stream(all).try_for_each(|_| async { Ok(()) }).await?;
        Ok(())
    }

    /// Removes what one claim left of a failed checkpoint: its manifest, if it wrote one, then its
    /// parts. What another claim made under the same id stays.
    pub async fn discard(&self, owner: &Owner, id: CheckpointId, epoch: Epoch) -> Result<(), StoreError> {
        match self.manifest(owner, id).await {
            Ok(made) if made.epoch == epoch => self.objects.store.delete(&self.manifest_key(owner, id)).await?,
            Ok(_) | Err(StoreError::NoSuch(_) | StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        let listed = self.objects.store.list_with_delimiter(Some(&self.key(owner, &[&id.to_string()]))).await?;
        let of_claim = format!("{epoch}.");
        let is_of_claim = |key: &&Key| key.parts().next_back().is_some_and(|last| last.as_ref().starts_with(&of_claim));
        for prefix in listed.common_prefixes.iter().filter(is_of_claim) {
            let all = self.objects.store.list(Some(prefix)).map_ok(|meta| meta.location).boxed();
            self.objects.store.delete_stream(all).try_for_each(|_| async { Ok(()) }).await?;
        }
        Ok(())
    }

    /// Whether a checkpoint is `last` or an ancestor of it, searching claim by claim back to this
    /// epoch. `None`: unknown.
    pub async fn leads_to(
        &self,
        owner: &Owner,
        (id, epoch): (CheckpointId, Epoch),
        last: &CheckpointRef,
    ) -> Result<Option<bool>, StoreError> {
        let (mut now, mut of) = (last.id, last.epoch);
        for _ in 0..LINEAGE_MAX {
            if now == id {
                return Ok(Some(true));
            }
            if of < epoch {
                return Ok(Some(false));
            }
            let parent = match self.manifest(owner, now).await {
                Ok(made) => made.parent,
                Err(StoreError::NoSuch(_) | StoreError::Damaged { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            let Some(parent) = parent else { return Ok(Some(false)) };
            of = match self.manifest(owner, parent).await {
                Ok(made) => made.epoch,
                Err(StoreError::NoSuch(_) | StoreError::Damaged { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            now = parent;
        }
        Ok(None)
    }

    pub(super) async fn get_bounded(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        match self.objects.store.get(key).await {
            Ok(found) if found.meta.size > MANIFEST_BYTES_MAX => {
                Err(StoreError::Damaged { what: key.to_string(), why: format!("{} bytes", found.meta.size) })
            }
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
