//! Which allocations have checkpoints in the store, and since when they have ended.
//!
//! ```text
//!   <store>/.kept/<allocation>.json     written before its first manifest, removed after its last checkpoint
//! ```
//!
//! Whoever looks for checkpoints that are to go reads this and not the whole store, where output and checkpoints of all that ever ran lie.
//! The quorum forgets ended allocations after a while: since when one is known to have ended is written down here.

use super::store::{CheckpointStore, Owner, StoreError};
use futures::{Stream, StreamExt};
use lattice_model::AllocationId;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};

/// A folder of the store, beside those of the tenants.
const FOLDER: &str = ".kept";
const VERSION: u32 = 1;

/// One such object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    version: u32,
    tenant: String,
    project: String,
    allocation: AllocationId,
    /// When it ended, or when it was first found that the quorum does not know it; milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
}

impl Kept {
    fn of(owner: &Owner) -> Self {
        let (tenant, project) = (owner.tenant.clone(), owner.project.clone());
        Self { version: VERSION, tenant, project, allocation: owner.allocation, ended_at_ms: None }
    }

    /// The same, of an allocation that ended then, or has not.
    pub fn ended(self, ended_at_ms: Option<u64>) -> Self {
        Self { ended_at_ms, ..self }
    }

    /// Whose checkpoints it tells of.
    pub fn owner(&self) -> Owner {
        Owner { tenant: self.tenant.clone(), project: self.project.clone(), allocation: self.allocation }
    }
}

impl CheckpointStore {
    fn kept_key(&self, allocation: AllocationId) -> Key {
        self.objects.key([FOLDER.to_owned(), format!("{allocation}.json")])
    }

    /// Writes down that an allocation has checkpoints. May be done again.
    pub(super) async fn note_kept(&self, owner: &Owner) -> Result<(), StoreError> {
        self.put_kept(&Kept::of(owner)).await
    }

    /// Writes it as it is now.
    pub async fn put_kept(&self, kept: &Kept) -> Result<(), StoreError> {
        let json = serde_json::to_vec(kept).map_err(|e| StoreError::Unfit(e.to_string()))?;
        self.objects.store.put(&self.kept_key(kept.allocation), PutPayload::from(json)).await?;
        Ok(())
    }

    /// The allocations that have checkpoints, as the store tells them, some at a time.
    pub fn all_kept(&self) -> impl Stream<Item = Result<AllocationId, StoreError>> + Send + '_ {
        let folder = self.objects.key([FOLDER.to_owned()]);
        let listed = self.objects.store.list(Some(&folder));
        listed.filter_map(|meta| async move {
            match meta {
                Ok(meta) => meta.location.filename()?.strip_suffix(".json")?.parse().ok().map(Ok),
                Err(error) => Some(Err(error.into())),
            }
        })
    }

    /// What is written down of one; `None`: nothing.
    pub async fn kept(&self, allocation: AllocationId) -> Result<Option<Kept>, StoreError> {
        let Some(bytes) = self.get_bounded(&self.kept_key(allocation)).await? else { return Ok(None) };
        let damaged = |why: String| StoreError::Damaged { what: format!("{FOLDER}/{allocation}.json"), why };
        let kept: Kept = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        match (kept.version, kept.allocation == allocation) {
            (VERSION, true) => Ok(Some(kept)),
            (VERSION, false) => Err(damaged("it is another allocation's".to_owned())),
            (version, _) => Err(damaged(format!("version {version}, this agent reads {VERSION}"))),
        }
    }

    /// That nothing of it is in the store any more.
    pub async fn forget_kept(&self, allocation: AllocationId) -> Result<(), StoreError> {
        match self.objects.store.delete(&self.kept_key(allocation)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes something small, to see whether the store takes it.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let key = self.objects.key([FOLDER.to_owned(), "probe".to_owned()]);
        self.objects
            .store
            .put(&key, PutPayload::from_static(b"written by the checkpoint broker to see whether the store answers\n"))
            .await?;
        Ok(())
    }
}
