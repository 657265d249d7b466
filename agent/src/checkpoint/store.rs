//! Checkpoints in the object store.
//!
//! ```text
//!   <store>/<tenant>/<project>/<allocation>/checkpoints/<id>/
//!     manifest.json                              by the head, last: without it there is no checkpoint
//!     <epoch>.<round>/<index>-<node>/node.json   by each node: its files
//!     <epoch>.<round>/<index>-<node>/<n>.zst     a file, compressed
//! ```
//!
//! `manifest.json` has the BLAKE3 of each `node.json`, and that the BLAKE3 of each file: who trusts the one trusts all.

use super::kept::Ours;
use super::uploads::{Stamp, Uploads};
use crate::checkpoint::directory::{Claims, Found, Place as Directory};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use lattice_model::{AllocationId, CheckpointId, CheckpointRef, Epoch, NodeId};
use lattice_node::{Checkpointing, Saved};
use lattice_quorum::credentials::Material;
use lattice_quorum::objects::{Objects, ObjectsError};
use lattice_runtime::failpoint::{self, Point};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Of manifests; another one is refused.
const VERSION: u32 = 1;
/// The longest manifest that is read, in bytes.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a part of a large object. S3 wants 5 MiB at least.
const PART_BYTES: usize = 8 << 20;
/// Bytes read of a file at once.
const READ_BYTES: usize = 1 << 20;
/// Parts of one file that wait for the store or its disk.
const PARTS_WAITING: usize = 2;
/// Checkpoints that are looked at, each one's parent, for whether one is among them.
const LINEAGE_MAX: usize = 1000;
/// Files that are brought at once.
const FILES_AT_ONCE: usize = 4;
/// Files that are compressed or expanded at once in this process: each holds a thread of those that may block, and a store that is
/// a directory needs others of them to go on.
static PIPES: Semaphore = Semaphore::const_new(8);

/// One of [`PIPES`].
async fn pipe() -> Result<SemaphorePermit<'static>, StoreError> {
    PIPES.acquire().await.map_err(|closed| StoreError::Unfit(closed.to_string()))
}

/// What went wrong with a checkpoint in the store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The store did not do it. It may later.
    #[error("the checkpoint store: {0}")]
    Store(#[from] object_store::Error),
    /// What is there is not what was put there.
    #[error("{what}: {why}")]
    Damaged { what: String, why: String },
    /// What is to be saved cannot be.
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
    /// It has no room: that does not pass by itself, and is said instead of waited for.
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

/// Whose checkpoints: the part of a key that all of them share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub tenant: String,
    pub project: String,
    pub allocation: AllocationId,
}

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
    pub made_at_ms: u64,
    /// How long its round took until all of it was in the store, in milliseconds; older heads do not say it.
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
    /// BLAKE3 of its `node.json`; absent: nothing of the allocation ran there.
    pub manifest: Option<String>,
}

impl Manifest {
    /// Its files, and their bytes.
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
    pub files: Vec<FileEntry>,
}

/// A file or directory in a [`NodeManifest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub path: String,
    pub mode: u32,
    /// Absent of directories, with the two below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    /// Its object beside the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

/// A cloneable handle.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    pub(super) objects: Objects,
    /// Whose what is written is; `None`: nobody's.
    pub(super) ours: Option<Ours>,
}

/// One node's part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub owner: Owner,
    pub id: CheckpointId,
    /// Attempts that ask by the same id never share a key.
    pub epoch: Epoch,
    pub round: u32,
    /// The node's place in rank order.
    pub index: usize,
    pub node: NodeId,
}

impl CheckpointStore {
    /// Makes the client. Asks the store nothing yet. `setting` names the key in the configuration file.
    pub fn open(setting: &'static str, url: &str, options: &BTreeMap<String, String>, credentials: &Path) -> Result<Self, ObjectsError> {
        Objects::open(setting, url, options, credentials).map(|objects| Self { objects, ours: None })
    }

    /// The same, by an agent of this cluster.
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

    /// Puts one node's part: the files, then the node's manifest. Putting it again is harmless. Gives what the head is told.
    pub async fn put_part(
        &self,
        part: &Part,
        claims: &Claims,
        directory: Arc<Directory>,
        token: &str,
        found: Vec<Found>,
        uploads: &Uploads,
    ) -> Result<Saved, StoreError> {
        // First: what comes of no checkpoint, and whose removal is missed, goes with the others when the allocation has ended.
        self.note_kept(&part.owner).await?;
        // What an earlier life brought counts where it is there.
        let there = if uploads.is_empty() { BTreeMap::new() } else { self.objects_of(part).await? };
        let there = &there;
        let puts = found.into_iter().enumerate().map(|(number, found)| {
            let (directory, token) = (Arc::clone(&directory), token.to_owned());
            async move { self.put_file(part, number, found, directory, token, (uploads, there)).await }
        });
        let files: Vec<FileEntry> = futures::stream::iter(puts).buffered(FILES_AT_ONCE).try_collect().await?;
        let other = |f: &&FileEntry| {
            let said = claims.listed.get(&f.path).and_then(|listed| listed.blake3.as_ref());
            said.is_some() && said != f.blake3.as_ref()
        };
        if let Some(file) = files.iter().find(other) {
            let there = file.blake3.as_deref().unwrap_or_default();
            return Err(StoreError::Unfit(format!("{}: its BLAKE3 is {there}, the application says that it saved another", file.path)));
        }
        let bytes = files.iter().filter_map(|f| f.size).fold(0, u64::saturating_add);
        let count = files.iter().filter(|f| f.size.is_some()).count() as u64;
        let (id, allocation, epoch, node) = (part.id, part.owner.allocation, part.epoch, part.node.clone());
        let manifest = NodeManifest { version: VERSION, id, allocation, epoch, node, step: claims.step, files };
        let json = to_json(&manifest)?;
        let hash = blake3::hash(&json).to_hex().to_string();
        self.objects.store.put(&self.part_key(part, "node.json"), PutPayload::from(json)).await?;
        Ok(Saved { files: count, bytes, step: claims.step, manifest: Some(hash) })
    }

    async fn put_file(
        &self,
        part: &Part,
        number: usize,
        found: Found,
        directory: Arc<Directory>,
        token: String,
        (uploads, there): (&Uploads, &BTreeMap<String, u64>),
    ) -> Result<FileEntry, StoreError> {
        let Found { path, mode, size } = found.clone();
        let Some(size) = size else { return Ok(FileEntry { path, mode, size: None, blake3: None, object: None }) };
        let object = format!("{number:08}.zst");
        let key = self.part_key(part, &object);
        let stamp = {
            let (directory, token, found) = (Arc::clone(&directory), token.clone(), found.clone());
            let looked = tokio::task::spawn_blocking(move || {
                let about = directory.file(&token, &found).map_err(StoreError::Unfit)?.metadata();
                about.map(|about| Stamp::of(&about)).map_err(|source| StoreError::Io { what: found.path, source })
            });
            looked.await.map_err(|e| StoreError::Unfit(format!("{path}: {e}")))??
        };
        if let Some((bytes, entry)) = uploads.whole(&object, &path, &stamp)
            && there.get(&object) == Some(&bytes)
        {
            return Ok(FileEntry { mode, ..entry });
        }
        let (parts, mut compressed) = mpsc::channel::<Bytes>(PARTS_WAITING);
        let permit = pipe().await?;
        let (stop, _given_up) = stopping();
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            compress(&directory, &token, &found, size, parts, &stop)
        });
        let put = async {
            let Some(first) = compressed.recv().await else { return Ok(0) };
            let mut bytes = first.len() as u64;
            if first.len() < PART_BYTES {
                return self.objects.store.put(&key, PutPayload::from(first)).await.map(|_| bytes);
            }
            let mut upload = WriteMultipart::new_with_chunk_size(self.objects.store.put_multipart(&key).await?, PART_BYTES);
            upload.put(first);
            while let Some(next) = compressed.recv().await {
                if let Err(error) = upload.wait_for_capacity(PARTS_WAITING).await {
                    let _ = upload.abort().await;
                    return Err(error);
                }
                bytes += next.len() as u64;
                upload.put(next);
            }
            upload.finish().await.map(|_| bytes)
        };
        let put = put.await;
        // Nobody takes the rest any more where it could not be put.
        drop(compressed);
        let bytes = put?;
        let hash = reading.await.map_err(|e| StoreError::Unfit(format!("{path}: {e}")))??;
        let entry = FileEntry { path, mode, size: Some(size), blake3: Some(hash), object: Some(object) };
        uploads.is_whole(stamp, bytes, &entry);
        failpoint::pass(Point::SaveFilePut);
        Ok(entry)
    }

    /// What lies there of a node's part, and how many bytes each object has.
    async fn objects_of(&self, part: &Part) -> Result<BTreeMap<String, u64>, StoreError> {
        let above = self.part_key(part, "x");
        let above = Key::from_iter(above.parts().take(above.parts().count().saturating_sub(1)));
        let (mut listed, mut found) = (self.objects.store.list(Some(&above)), BTreeMap::new());
        while let Some(meta) = listed.try_next().await? {
            if let Some(name) = meta.location.filename() {
                found.insert(name.to_owned(), meta.size);
            }
        }
        Ok(found)
    }

    /// Writes the manifest of a checkpoint whose nodes all saved: from here on it exists. One that another attempt wrote stays.
    pub async fn put_manifest(&self, owner: &Owner, manifest: &Manifest) -> Result<(), StoreError> {
        match self.manifest(owner, manifest.id).await {
            Ok(there) if (there.epoch, there.round, &there.nodes) == (manifest.epoch, manifest.round, &manifest.nodes) => return Ok(()),
            Ok(there) => {
                return Err(StoreError::Unfit(format!("checkpoint {} was made before, under epoch {}", manifest.id, there.epoch)));
            }
            Err(StoreError::NoSuch(_)) => {}
            Err(error) => return Err(error),
        }
        let json = serde_json::to_vec_pretty(manifest).map_err(|e| StoreError::Unfit(e.to_string()))?;
        // Its nodes may have nothing of it, or be of an older version, which leaves it to the head.
        self.note_kept(owner).await?;
        self.objects.store.put(&self.manifest_key(owner, manifest.id), PutPayload::from(json)).await?;
        Ok(())
    }

    /// What the head writes of what the nodes saved.
    pub fn manifest_of(owner: &Owner, made: &Checkpointing, saved: &BTreeMap<NodeId, Saved>, user: (&str, u32), at_ms: u64) -> Manifest {
        let entry = |node: &NodeId| {
            let saved = saved.get(node).cloned().unwrap_or_default();
            NodeEntry { node: node.clone(), files: saved.files, bytes: saved.bytes, manifest: saved.manifest }
        };
        Manifest {
            version: VERSION,
            id: made.id,
            allocation: owner.allocation,
            epoch: made.epoch,
            parent: made.parent,
            round: made.round,
            step: saved.values().find_map(|saved| saved.step),
            made_at_ms: at_ms,
            took_ms: None,
            owner: user.0.to_owned(),
            owner_uid: user.1,
            nodes: made.nodes.iter().map(entry).collect(),
        }
    }

    /// The manifests of an allocation's checkpoints, the oldest first, and what is wrong with those that cannot be read. What has
    /// no manifest is no checkpoint.
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
        found.sort_by_key(|m| (m.made_at_ms, m.id));
        Ok((found, broken))
    }

    /// Whatever lies there of an allocation's checkpoints, whole or not.
    pub async fn ids(&self, owner: &Owner) -> Result<Vec<CheckpointId>, StoreError> {
        let listed = self.objects.store.list_with_delimiter(Some(&self.key(owner, &[]))).await?;
        Ok(listed.common_prefixes.iter().filter_map(|key| key.parts().next_back()?.as_ref().parse().ok()).collect())
    }

    /// One checkpoint's.
    pub async fn manifest(&self, owner: &Owner, id: CheckpointId) -> Result<Manifest, StoreError> {
        let key = self.manifest_key(owner, id);
        let bytes = self.get_bounded(&key).await?.ok_or_else(|| StoreError::NoSuch(id.to_string()))?;
        let damaged = |why: String| StoreError::Damaged { what: "manifest.json".to_owned(), why };
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if manifest.version != VERSION {
            return Err(damaged(format!("version {}, this agent reads {VERSION}", manifest.version)));
        }
        if (manifest.id, manifest.allocation) != (id, owner.allocation) {
            return Err(damaged("it is another checkpoint's".to_owned()));
        }
        Ok(manifest)
    }

    /// One node's files, as the manifest vouches for them.
    pub async fn node_manifest(&self, part: &Part, entry: &NodeEntry) -> Result<Option<NodeManifest>, StoreError> {
        let Some(wanted) = &entry.manifest else { return Ok(None) };
        let damaged = |why: String| StoreError::Damaged { what: format!("{}: node.json", entry.node), why };
        let bytes = self.get_bounded(&self.part_key(part, "node.json")).await?.ok_or_else(|| damaged("it is not there".to_owned()))?;
        let hash = blake3::hash(&bytes).to_hex();
        if hash.as_str() != wanted {
            return Err(damaged(format!("its BLAKE3 is {hash}, the manifest has {wanted}")));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|e| damaged(e.to_string()))
    }

    /// Brings one file and compares it with its entry; into `to`, where that is given.
    pub async fn bring(&self, part: &Part, entry: &FileEntry, to: Option<std::fs::File>) -> Result<(), StoreError> {
        let (Some(object), Some(size), Some(hash)) = (&entry.object, entry.size, &entry.blake3) else { return Ok(()) };
        let what = format!("{}: {}", part.node, entry.path);
        let damaged = |why: String| StoreError::Damaged { what: what.clone(), why };
        let mut pieces = match self.objects.store.get(&self.part_key(part, object)).await {
            Ok(found) => found.into_stream(),
            Err(object_store::Error::NotFound { .. }) => return Err(damaged(format!("its object {object} is not there"))),
            Err(error) => return Err(error.into()),
        };
        let (feed, compressed) = mpsc::channel::<Bytes>(PARTS_WAITING);
        let wanted = (size, hash.clone());
        let permit = pipe().await?;
        let (stop, _given_up) = stopping();
        let writing = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            expand(Fed { compressed, now: Bytes::new() }, &wanted, to, &stop)
        });
        let mut broke = None;
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) => {
                    // Who takes no more says why.
                    if feed.send(piece).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    broke = Some(error);
                    break;
                }
            }
        }
        drop(feed);
        let written = writing.await.map_err(|e| damaged(e.to_string()))?;
        match (broke, written) {
            (Some(error), _) => Err(error.into()),
            (None, Err(Expanding::Damaged(why))) => Err(damaged(why)),
            (None, Err(Expanding::Io(source))) => Err(StoreError::Io { what, source }),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Removes a checkpoint: the manifest first, so that no half one is taken for whole.
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

    /// Removes what one claim left of a checkpoint that came to nothing: its manifest, where it wrote one, then its parts. What another
    /// claim made by the same id stays.
    pub async fn discard(&self, owner: &Owner, id: CheckpointId, epoch: Epoch) -> Result<(), StoreError> {
        match self.manifest(owner, id).await {
            Ok(made) if made.epoch == epoch => self.objects.store.delete(&self.manifest_key(owner, id)).await?,
            Ok(_) | Err(StoreError::NoSuch(_) | StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        let listed = self.objects.store.list_with_delimiter(Some(&self.key(owner, &[&id.to_string()]))).await?;
        let of_claim = format!("{epoch}.");
        let is_its = |key: &&Key| key.parts().next_back().is_some_and(|last| last.as_ref().starts_with(&of_claim));
        for prefix in listed.common_prefixes.iter().filter(is_its) {
            let all = self.objects.store.list(Some(prefix)).map_ok(|meta| meta.location).boxed();
            self.objects.store.delete_stream(all).try_for_each(|_| async { Ok(()) }).await?;
        }
        Ok(())
    }

    /// Whether a checkpoint is `last`, or one that `last` was made from, claim by claim, back to this epoch. `None`: that cannot be told.
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

fn to_json(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let json = serde_json::to_vec(value).map_err(|e| StoreError::Unfit(e.to_string()))?;
    if json.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(StoreError::Unfit("the names of its files are too many: pack them, with tar".to_owned()));
    }
    Ok(json)
}

/// What tells a thread that nobody waits for it any more: cancelled when the guard goes.
fn stopping() -> (CancellationToken, DropGuard) {
    let stop = CancellationToken::new();
    (stop.clone(), stop.drop_guard())
}

/// Reads, hashes and compresses a file, which must not change meanwhile. Gives its BLAKE3.
fn compress(
    directory: &Directory,
    token: &str,
    found: &Found,
    size: u64,
    parts: mpsc::Sender<Bytes>,
    stop: &CancellationToken,
) -> Result<String, StoreError> {
    let failed = |source| StoreError::Io { what: found.path.clone(), source };
    let changed = || StoreError::Unfit(format!("{} changed while it was read, though it was said to be saved", found.path));
    let mut file = directory.file(token, found).map_err(StoreError::Unfit)?;
    let before = file.metadata().map_err(failed)?;
    let mut encoder = zstd::stream::write::Encoder::new(Parts { parts, now: Vec::new() }, 0).map_err(failed)?;
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0u8; READ_BYTES];
    let mut left = size;
    loop {
        // A file of holes passes nothing on for as long as it is read.
        if stop.is_cancelled() {
            return Err(StoreError::Unfit("given up".to_owned()));
        }
        let read = match file.read(&mut piece) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        if read as u64 > left {
            return Err(changed());
        }
        if read == 0 {
            break;
        }
        left -= read as u64;
        hasher.update(&piece[..read]);
        encoder.write_all(&piece[..read]).map_err(failed)?;
    }
    let after = file.metadata().map_err(failed)?;
    if left > 0 || after.modified().ok() != before.modified().ok() || after.len() != size {
        return Err(changed());
    }
    encoder.finish().and_then(Parts::finish).map_err(failed)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Passes on what is written to it, in parts.
struct Parts {
    parts: mpsc::Sender<Bytes>,
    now: Vec<u8>,
}

impl Parts {
    /// `next`: what the next one is written to.
    fn pass(&mut self, next: Vec<u8>) -> io::Result<()> {
        let part = std::mem::replace(&mut self.now, next);
        self.parts.blocking_send(part.into()).map_err(|_| io::Error::other("the store does not take it"))
    }

    fn finish(mut self) -> io::Result<()> {
        if self.now.is_empty() { Ok(()) } else { self.pass(Vec::new()) }
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PART_BYTES - self.now.len());
        self.now.extend_from_slice(&bytes[..taken]);
        if self.now.len() == PART_BYTES {
            // There was a whole one: the next one may be as large, and need not grow to that.
            self.pass(Vec::with_capacity(PART_BYTES))?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What comes from the store.
struct Fed {
    compressed: mpsc::Receiver<Bytes>,
    now: Bytes,
}

impl Read for Fed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.compressed.blocking_recv() {
                Some(next) => self.now = next,
                None => return Ok(0),
            }
        }
        let taken = into.len().min(self.now.len());
        into[..taken].copy_from_slice(&self.now.split_to(taken));
        Ok(taken)
    }
}

enum Expanding {
    Damaged(String),
    Io(io::Error),
}

/// Expands, hashes and writes; never more than the entry says.
fn expand(fed: Fed, (size, hash): &(u64, String), mut to: Option<std::fs::File>, stop: &CancellationToken) -> Result<(), Expanding> {
    let damaged = |e: io::Error| Expanding::Damaged(format!("it cannot be expanded: {e}"));
    let mut decoder = zstd::stream::read::Decoder::new(fed).map_err(damaged)?;
    let mut hasher = blake3::Hasher::new();
    let (mut piece, mut got) = (vec![0u8; READ_BYTES], 0u64);
    loop {
        if stop.is_cancelled() {
            return Err(Expanding::Io(io::Error::other("given up")));
        }
        let read = decoder.read(&mut piece).map_err(damaged)?;
        if read == 0 {
            break;
        }
        got += read as u64;
        if got > *size {
            return Err(Expanding::Damaged(format!("it has more than the {size} bytes that were saved")));
        }
        hasher.update(&piece[..read]);
        if let Some(to) = &mut to {
            to.write_all(&piece[..read]).map_err(Expanding::Io)?;
        }
    }
    let now = hasher.finalize().to_hex();
    if got != *size || now.as_str() != hash {
        return Err(Expanding::Damaged(format!("it has {got} bytes of BLAKE3 {now}; {size} bytes of BLAKE3 {hash} were saved")));
    }
    to.map_or(Ok(()), |to| to.sync_all().map_err(Expanding::Io))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
