//! Which allocations have checkpoints in the store, and when they ended.
//!
//! ```text
//!   <store>/.kept/<allocation>.json     written before its first manifest, removed after its last checkpoint
//! ```
//!
//! The sweep for expired checkpoints reads these files instead of the whole store, which holds
//! output and checkpoints of everything that ever ran. The quorum forgets ended allocations after a
//! while, so the end is recorded here. The cluster is recorded too, because clusters may share a
//! store.

use super::store::{CheckpointStore, Ours, Owner, StoreError};
use futures::{Stream, StreamExt};
use lattice_model::AllocationId;
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

/// A folder of the store, beside those of the tenants.
const FOLDER: &str = ".kept";
const VERSION: u32 = 1;
/// Largest object that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A cluster's identity, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ClusterIdentity {
    name: String,
    /// BLAKE3 of the authorities' certificates, in hexadecimal. During a change of authority both
    /// are listed.
    authorities: Vec<String>,
}

impl ClusterIdentity {
    fn of(name: &str, ca_pem: &str) -> Self {
        let certificates = CertificateDer::pem_slice_iter(ca_pem.as_bytes()).flatten();
        let mut authorities: Vec<String> = certificates.map(|der| blake3::hash(&der).to_hex().to_string()).collect();
        authorities.sort();
        Self { name: name.to_owned(), authorities }
    }

    /// Two records are of the same cluster if the name is equal and they share an authority.
    fn matches(&self, other: &Self) -> bool {
        self.name == other.name && self.authorities.iter().any(|one| other.authorities.contains(one))
    }
}

/// The record of one allocation, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationRecord {
    version: u32,
    tenant: String,
    project: String,
    allocation: AllocationId,
    cluster: ClusterIdentity,
    /// When the allocation ended, as the quorum has it, in milliseconds since 1970. `None`: no agent
    /// has seen that it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_seen_at_ms: Option<u64>,
}

impl AllocationRecord {
    fn of(owner: &Owner) -> Self {
        let (tenant, project) = (owner.tenant.clone(), owner.project.clone());
        Self { version: VERSION, tenant, project, allocation: owner.allocation, cluster: ClusterIdentity::default(), end_seen_at_ms: None }
    }

    /// The same record with this end.
    pub fn ended(self, ended_at_ms: Option<u64>) -> Self {
        Self { end_seen_at_ms: ended_at_ms, ..self }
    }

    /// The allocation's place in the store.
    pub fn owner(&self) -> Owner {
        Owner { tenant: self.tenant.clone(), project: self.project.clone(), allocation: self.allocation }
    }
}

impl CheckpointStore {
    fn record_key(&self, allocation: AllocationId) -> Key {
        self.objects.key([FOLDER.to_owned(), format!("{allocation}.json")])
    }

    /// Records that an allocation has something in the store. Idempotent.
    pub(super) async fn record_allocation(&self, owner: &Owner) -> Result<(), StoreError> {
        self.put_record(&AllocationRecord::of(owner)).await
    }

    fn cluster_identity(&self) -> ClusterIdentity {
        let of = |ours: &Ours| ClusterIdentity::of(&ours.name, &ours.material.borrow().pem.ca);
        self.ours.as_ref().map(of).unwrap_or_default()
    }

    /// Whether the record is of this cluster. A record without an identity belongs to no cluster.
    pub fn is_ours(&self, record: &AllocationRecord) -> bool {
        record.cluster.matches(&self.cluster_identity())
    }

    /// Whether this cluster's identity has changed since the record was written, for example by a
    /// new authority.
    pub fn has_changed_identity(&self, record: &AllocationRecord) -> bool {
        record.cluster != self.cluster_identity()
    }

    /// Writes the record with this cluster's present identity.
    pub async fn put_record(&self, record: &AllocationRecord) -> Result<(), StoreError> {
        let record = &AllocationRecord { cluster: self.cluster_identity(), ..record.clone() };
        let json = serde_json::to_vec(record).map_err(|e| StoreError::Unfit(e.to_string()))?;
        self.objects.store.put(&self.record_key(record.allocation), PutPayload::from(json)).await?;
        Ok(())
    }

    /// The allocations that have checkpoints, as the store lists them page by page.
    pub fn recorded_allocations(&self) -> impl Stream<Item = Result<AllocationId, StoreError>> + Send + '_ {
        let folder = self.objects.key([FOLDER.to_owned()]);
        let listed = self.objects.store.list(Some(&folder));
        listed.filter_map(|meta| async move {
            match meta {
                Ok(meta) => meta.location.filename()?.strip_suffix(".json")?.parse().ok().map(Ok),
                Err(error) => Some(Err(error.into())),
            }
        })
    }

    /// The record of an allocation, and when it was written by the store's clock, in milliseconds
    /// since 1970; `None`: no record.
    pub async fn record(&self, allocation: AllocationId) -> Result<Option<(AllocationRecord, u64)>, StoreError> {
        let found = match self.objects.store.get(&self.record_key(allocation)).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let damaged = |why: String| StoreError::Damaged { what: format!("{FOLDER}/{allocation}.json"), why };
        if found.meta.size > FILE_BYTES_MAX {
            return Err(damaged(format!("{} bytes", found.meta.size)));
        }
        let written_ms = modified_ms(&found.meta);
        let bytes = found.bytes().await?;
        let record: AllocationRecord = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        match (record.version, record.allocation == allocation) {
            (VERSION, true) => Ok(Some((record, written_ms))),
            (VERSION, false) => Err(damaged("it belongs to another allocation".to_owned())),
            (version, _) => Err(damaged(format!("version {version}, this agent reads {VERSION}"))),
        }
    }

    /// Removes the record of an allocation that has nothing in the store any more.
    pub async fn remove_record(&self, allocation: AllocationId) -> Result<(), StoreError> {
        match self.objects.store.delete(&self.record_key(allocation)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a small object to see whether the store accepts writes.
    pub async fn probe(&self) -> Result<(), StoreError> {
        self.objects
            .store
            .put(&self.probe_key(), PutPayload::from_static(b"written by the checkpoint broker to see whether the store answers\n"))
            .await?;
        Ok(())
    }

    fn probe_key(&self) -> Key {
        self.objects.key([FOLDER.to_owned(), "probe".to_owned()])
    }

    /// The store's clock, in milliseconds since 1970: the time that it gives to an object just
    /// written.
    pub async fn clock_ms(&self) -> Result<u64, StoreError> {
        self.probe().await?;
        Ok(modified_ms(&self.objects.store.head(&self.probe_key()).await?))
    }
}

fn modified_ms(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_known_by_its_name_and_a_shared_authority() {
        let identity = |name: &str, authorities: &[&str]| ClusterIdentity {
            name: name.to_owned(),
            authorities: authorities.iter().map(|a| (*a).to_owned()).collect(),
        };
        let ours = identity("alps", &["old", "new"]);
        assert!(ours.matches(&identity("alps", &["old"])) && ours.matches(&identity("alps", &["new", "next"])));
        assert!(!ours.matches(&identity("alps", &["other"])) && !ours.matches(&identity("test", &["old"])));
        // Records without an identity never match, not even each other.
        assert!(!ours.matches(&ClusterIdentity::default()) && !ClusterIdentity::default().matches(&ClusterIdentity::default()));
        assert_eq!(ClusterIdentity::of("alps", "no certificate").authorities, [""; 0]);
    }
}
