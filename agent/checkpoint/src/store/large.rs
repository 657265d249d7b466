//! Multipart objects. Parts that were stored before a restart of the agent, or before the store was
//! unreachable, are not stored again if the store can resume an upload. A store that is a directory
//! cannot.
//!
//! ```text
//!   parts, in order ──▶ has the recorded part of this number the same BLAKE3? ── yes ──▶ its recorded id
//!                                                                             └── no ───▶ put, record
//!   the whole file was read and had not changed ──▶ complete: the object exists
//! ```
//!
//! The whole file is read and compressed again, which costs the store nothing. A part that comes
//! out differently, for example because the agent was updated, replaces the old one.

use super::uploads::{KnownPart, Stamp, Uploads};
use super::{CheckpointStore, StoreError};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use lattice_objects::Multipart;
use object_store::multipart::PartId;
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload, WriteMultipart};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// Parts of one object in flight at once; one less in a store that cannot resume an upload.
const PARTS_AT_ONCE: usize = 3;

/// An object to store.
pub(super) struct Object<'a> {
    pub key: &'a Key,
    pub name: &'a str,
    /// Identifies the version of the file that it is made from.
    pub stamp: Stamp,
    pub uploads: &'a Uploads,
}

/// An object that only needs to be completed: until then it does not exist.
pub(super) enum PendingObject {
    /// One part, not stored yet.
    Small(Bytes),
    /// For a store that cannot resume an upload.
    Written { upload: WriteMultipart, bytes: u64 },
    /// All parts are stored.
    Parts { upload: String, parts: Vec<PartId>, bytes: u64 },
}

impl CheckpointStore {
    /// Stores all parts that arrive; all but the last have `part_bytes`. `None`: no part arrived.
    pub(super) async fn store_parts(
        &self,
        object: &Object<'_>,
        part_bytes: usize,
        parts: &mut mpsc::Receiver<Bytes>,
    ) -> Result<Option<PendingObject>, StoreError> {
        let Some(first) = parts.recv().await else { return Ok(None) };
        if first.len() < part_bytes {
            return Ok(Some(PendingObject::Small(first)));
        }
        let pending = match &self.objects.multipart {
            Some(store) => self.put_parts(store, object, first, parts).await?,
            None => self.write_parts(object, part_bytes, first, parts).await?,
        };
        Ok(Some(pending))
    }

    async fn put_parts(
        &self,
        store: &Multipart,
        object: &Object<'_>,
        first: Bytes,
        rest: &mut mpsc::Receiver<Bytes>,
    ) -> Result<PendingObject, StoreError> {
        let (upload, known) = match object.uploads.begun(object.name, &object.stamp) {
            Some(begun) => begun,
            None => {
                let upload = store.0.create_multipart(object.key).await?;
                object.uploads.record_begun(object.name, object.key.as_ref(), object.stamp, &upload);
                (upload, BTreeMap::new())
            }
        };
        let put = put_all(store, object, (&upload, &known), first, rest).await;
        let put = put.inspect_err(|error| forget_what_is_gone(object, error))?;
        let bytes = put.iter().map(|(bytes, _)| bytes).sum();
        Ok(PendingObject::Parts { upload, parts: put.into_iter().map(|(_, id)| id).collect(), bytes })
    }

    async fn write_parts(
        &self,
        object: &Object<'_>,
        part_bytes: usize,
        first: Bytes,
        rest: &mut mpsc::Receiver<Bytes>,
    ) -> Result<PendingObject, StoreError> {
        let mut bytes = first.len() as u64;
        let mut upload = WriteMultipart::new_with_chunk_size(self.objects.store.put_multipart(object.key).await?, part_bytes);
        upload.put(first);
        while let Some(next) = rest.recv().await {
            if let Err(error) = upload.wait_for_capacity(PARTS_AT_ONCE).await {
                let _ = upload.abort().await;
                return Err(error.into());
            }
            bytes += next.len() as u64;
            upload.put(next);
        }
        Ok(PendingObject::Written { upload, bytes })
    }

    /// Completes the object: from here on it exists. Returns its size.
    pub(super) async fn complete(&self, object: &Object<'_>, pending: PendingObject) -> Result<u64, StoreError> {
        match (pending, &self.objects.multipart) {
            (PendingObject::Small(part), _) => {
                let bytes = part.len() as u64;
                self.objects.store.put(object.key, PutPayload::from(part)).await?;
                Ok(bytes)
            }
            (PendingObject::Written { upload, bytes }, _) => {
                upload.finish().await?;
                Ok(bytes)
            }
            (PendingObject::Parts { upload, parts, bytes }, Some(store)) => {
                match store.0.complete_multipart(object.key, &upload, parts).await {
                    Ok(_) => {}
                    // The object was completed before, and the answer or the record of that was lost.
                    // Nothing else is ever stored under this key.
                    Err(object_store::Error::NotFound { .. }) if self.is_there(object.key, bytes).await? => {}
                    Err(error) => {
                        forget_what_is_gone(object, &error);
                        return Err(error.into());
                    }
                }
                Ok(bytes)
            }
            (PendingObject::Parts { .. }, None) => Err(StoreError::Unfit("the store cannot resume an upload".to_owned())),
        }
    }

    /// Aborts an upload that is not wanted any more.
    pub(super) async fn give_up(&self, object: &Object<'_>, pending: PendingObject) {
        match pending {
            PendingObject::Small(_) => {}
            PendingObject::Written { upload, .. } => drop(upload.abort().await),
            PendingObject::Parts { .. } => {
                object.uploads.record_abandoned(object.name);
                self.remove_left_over(object.uploads).await;
            }
        }
    }

    /// Removes the parts of abandoned uploads. What cannot be removed is left to the store: such
    /// parts take space but belong to no object.
    pub(super) async fn remove_left_over(&self, uploads: &Uploads) {
        let Some(store) = &self.objects.multipart else { return };
        for (key, upload) in uploads.left_over() {
            if let Err(error) = store.0.abort_multipart(&Key::from(key.as_str()), &upload).await {
                tracing::debug!(%key, %error, "parts of an abandoned upload stay in the store");
            }
        }
    }

    async fn is_there(&self, key: &Key, bytes: u64) -> Result<bool, StoreError> {
        match self.objects.store.head(key).await {
            Ok(meta) => Ok(meta.size == bytes),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Stores all parts that arrive, several at once. Returns the total size and the part ids in order.
async fn put_all(
    store: &Multipart,
    object: &Object<'_>,
    begun: (&str, &BTreeMap<usize, KnownPart>),
    first: Bytes,
    rest: &mut mpsc::Receiver<Bytes>,
) -> Result<Vec<(u64, PartId)>, object_store::Error> {
    let (mut going, mut put, mut number, mut more) = (FuturesOrdered::new(), Vec::new(), 1, true);
    going.push_back(put_one(store, object, begun, 0, first));
    loop {
        tokio::select! {
            Some(one) = going.next(), if !going.is_empty() => put.push(one?),
            part = rest.recv(), if more && going.len() < PARTS_AT_ONCE => match part {
                Some(part) => {
                    going.push_back(put_one(store, object, begun, number, part));
                    number += 1;
                }
                None => more = false,
            },
            else => return Ok(put),
        }
    }
}

/// Stores one part, unless the store has it already.
async fn put_one(
    store: &Multipart,
    object: &Object<'_>,
    (upload, known): (&str, &BTreeMap<usize, KnownPart>),
    number: usize,
    part: Bytes,
) -> Result<(u64, PartId), object_store::Error> {
    let (bytes, hash) = (part.len() as u64, blake3::hash(&part).to_hex().to_string());
    if let Some(there) = known.get(&number).filter(|there| there.blake3 == hash) {
        return Ok((bytes, PartId { content_id: there.id.clone() }));
    }
    let put = store.0.put_part(object.key, &upload.to_owned(), number, PutPayload::from(part)).await?;
    object.uploads.record_part(object.name, number, &hash, &put.content_id);
    Ok((bytes, put))
}

/// If the store no longer knows an upload, the next attempt begins a new one.
fn forget_what_is_gone(object: &Object<'_>, error: &object_store::Error) {
    if matches!(error, object_store::Error::NotFound { .. }) {
        object.uploads.record_abandoned(object.name);
    }
}
