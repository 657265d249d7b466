//! Uploads and downloads of a node's files.

use super::large::Object;
use super::manifest::{MANIFEST_BYTES_MAX, VERSION};
use super::packing::{Expanding, Fed, compress, expand, part_bytes, pipe, stopping};
use super::uploads::{Stamp, Uploads};
use super::{CheckpointStore, FileEntry, NodeManifest, Part, Source, StoreError};
use crate::directory::{Claims, Found};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use lattice_node::Saved;
use lattice_runtime::failpoint::{self, Point};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::collections::BTreeMap;
use std::fs::File;
use tokio::sync::mpsc;

/// Limit of the parts of one file that wait for the store, or for the disk.
const PARTS_WAITING_MAX: usize = 2;
/// Limit of the files that are uploaded at once.
const FILES_AT_ONCE: usize = 4;

impl CheckpointStore {
    /// Uploads one node's part: the files, then the node's manifest. Idempotent. Returns what the
    /// node reports to the head.
    pub async fn put_part(
        &self,
        part: &Part,
        claims: &Claims,
        source: &Source,
        found: Vec<Found>,
        uploads: &Uploads,
    ) -> Result<Saved, StoreError> {
        // The allocation is recorded first: if the checkpoint fails and its objects stay, the sweep
        // finds and removes them after the end of the allocation.
        self.record_allocation(&part.owner).await?;
        self.remove_left_over(uploads).await;
        // A file counts as stored by an earlier run only if its object is in the store.
        let there = if uploads.is_empty() { BTreeMap::new() } else { self.objects_of(part).await? };
        let there = &there;
        let puts = found.into_iter().enumerate().map(|(number, found)| {
            let source = source.clone();
            async move { self.put_file(part, number, found, source, (uploads, there)).await }
        });
        let files: Vec<FileEntry> = futures::stream::iter(puts).buffered(FILES_AT_ONCE).try_collect().await?;
        let other = |f: &&FileEntry| {
            let claimed = claims.listed.get(&f.path).and_then(|listed| listed.blake3.as_ref());
            claimed.is_some() && claimed != f.blake3.as_ref()
        };
        if let Some(file) = files.iter().find(other) {
            let there = file.blake3.as_deref().unwrap_or_default();
            return Err(StoreError::Unfit(format!(
                "{}: its BLAKE3 is {there}, which is not the one that the application reported",
                file.path
            )));
        }
        let bytes = files.iter().filter_map(|f| f.size).fold(0, u64::saturating_add);
        let count = files.iter().filter(|f| f.size.is_some()).count() as u64;
        let (id, allocation, epoch, node) = (part.id, part.owner.allocation, part.epoch, part.node.clone());
        let manifest = NodeManifest { version: VERSION, id, allocation, epoch, node, step: claims.step, time_seconds: claims.time, files };
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
        source: Source,
        (uploads, there): (&Uploads, &BTreeMap<String, u64>),
    ) -> Result<FileEntry, StoreError> {
        let Found { path, mode, size } = found.clone();
        let Some(size) = size else { return Ok(FileEntry { path, mode, size: None, blake3: None, object: None }) };
        let object = format!("{number:08}.zst");
        let key = self.part_key(part, &object);
        let stamp = {
            let (source, found) = (source.clone(), found.clone());
            let looked = tokio::task::spawn_blocking(move || {
                let about = source.open(&found)?.metadata();
                about.map(|about| Stamp::of(&about)).map_err(|source| StoreError::Io { what: found.path, source })
            });
            looked.await.map_err(|e| StoreError::Unfit(format!("{path}: {e}")))??
        };
        if let Some((bytes, entry)) = uploads.whole(&object, &path, &stamp)
            && there.get(&object) == Some(&bytes)
        {
            return Ok(FileEntry { mode, ..entry });
        }
        let (parts, mut compressed) = mpsc::channel::<Bytes>(PARTS_WAITING_MAX);
        let permit = pipe().await?;
        let (stop, _given_up) = stopping();
        let part_bytes = part_bytes(size);
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            compress(&source, &found, size, (parts, part_bytes), &stop)
        });
        let target = Object { key: &key, name: &object, stamp, uploads };
        let pending = self.store_parts(&target, part_bytes, &mut compressed).await;
        // After a failed upload nobody takes the remaining parts.
        drop(compressed);
        let pending = pending?;
        let read = reading.await.map_err(|e| StoreError::Unfit(format!("{path}: {e}"))).flatten();
        let (hash, bytes) = match (read, pending) {
            (Ok(hash), Some(pending)) => (hash, self.complete(&target, pending).await?),
            (Ok(_), None) => return Err(StoreError::Unfit(format!("{path}: nothing of it was read"))),
            (Err(why), pending) => {
                if let Some(pending) = pending {
                    self.give_up(&target, pending).await;
                }
                return Err(why);
            }
        };
        let entry = FileEntry { path, mode, size: Some(size), blake3: Some(hash), object: Some(object) };
        uploads.record_whole(stamp, bytes, &entry);
        failpoint::pass(Point::SaveFilePut);
        Ok(entry)
    }

    /// The existing objects of a node's part, by name, and their sizes.
    pub(super) async fn objects_of(&self, part: &Part) -> Result<BTreeMap<String, u64>, StoreError> {
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

    /// Downloads one file and verifies it. Writes it to `to`, if that is given. After each piece, `set_read` gets about
    /// how many of the file's bytes were read: the share of its compressed object that has arrived.
    pub async fn download(
        &self,
        part: &Part,
        entry: &FileEntry,
        to: Option<File>,
        set_read: &(dyn Fn(u64) + Sync),
    ) -> Result<(), StoreError> {
        let (Some(object), Some(size), Some(hash)) = (&entry.object, entry.size, &entry.blake3) else { return Ok(()) };
        let what = format!("{}: {}", part.node, entry.path);
        let damaged = |why: String| StoreError::Damaged { what: what.clone(), why };
        let (mut pieces, object_bytes) = match self.objects.store.get(&self.part_key(part, object)).await {
            Ok(found) => {
                let object_bytes = found.meta.size;
                (found.into_stream(), object_bytes)
            }
            Err(object_store::Error::NotFound { .. }) => return Err(damaged(format!("its object {object} is missing"))),
            Err(error) => return Err(error.into()),
        };
        let (feed, compressed) = mpsc::channel::<Bytes>(PARTS_WAITING_MAX);
        let wanted = (size, hash.clone());
        let permit = pipe().await?;
        let (stop, _given_up) = stopping();
        let writing = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            expand(Fed::of(compressed), &wanted, to, &stop)
        });
        let (mut broke, mut arrived) = (None, 0_u64);
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) => {
                    arrived += piece.len() as u64;
                    // If the thread has stopped, it returns the error below.
                    if feed.send(piece).await.is_err() {
                        break;
                    }
                    set_read(part_of(size, arrived, object_bytes));
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
}

/// How many bytes of a file of `size` bytes were read, if `done` of the `total` bytes of its object were.
fn part_of(size: u64, done: u64, total: u64) -> u64 {
    let part = u128::from(size) * u128::from(done.min(total)) / u128::from(total.max(1));
    u64::try_from(part).unwrap_or(size)
}

fn to_json(manifest: &NodeManifest) -> Result<Vec<u8>, StoreError> {
    let json = serde_json::to_vec(manifest).map_err(|e| StoreError::Unfit(e.to_string()))?;
    if json.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(StoreError::Unfit("the list of its files is too long: pack the files, for example with tar".to_owned()));
    }
    Ok(json)
}
