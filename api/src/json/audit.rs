//! Records of the audit log.

use lattice_model::AuditRecord;
use serde::Serialize;
use utoipa::ToSchema;

/// A record, with its place in the chain of hashes (docs/audit.md). Its time is in milliseconds since 1970: the hash is
/// over this very text.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = AuditRecord)]
pub struct AuditRecordJson {
    seq: u64,
    revision: u64,
    at: u64,
    actor: String,
    /// The id of the token of the cluster with which it was requested over the network. Absent: there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    action: String,
    allocation: Option<String>,
    /// Absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    node: Option<String>,
    detail: String,
    previous: String,
    hash: String,
}

impl From<&AuditRecord> for AuditRecordJson {
    fn from(record: &AuditRecord) -> Self {
        Self {
            seq: record.seq,
            revision: record.revision.0,
            at: record.at.0,
            actor: record.actor.clone(),
            token: record.token.clone(),
            action: record.action.name().to_owned(),
            allocation: record.allocation.map(|id| id.to_string()),
            owner: record.owner.clone(),
            node: record.node.as_ref().map(ToString::to_string),
            detail: record.detail.clone(),
            previous: record.previous.clone(),
            hash: record.hash.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::time::Timestamp;
    use lattice_model::{AllocationId, AuditAction, Revision};

    #[test]
    fn a_record_is_written_as_its_hash_was_computed() {
        let record = AuditRecord {
            seq: 12,
            revision: Revision(7),
            at: Timestamp(1_772_704_812_034),
            actor: "root".into(),
            token: None,
            action: AuditAction::AttachStarted,
            allocation: Some(AllocationId(uuid::Uuid::from_u128(1))),
            owner: None,
            node: Some("n1".parse().unwrap()),
            detail: "by way of n1".into(),
            previous: "0".repeat(64),
            hash: "1".repeat(64),
        };
        let json = serde_json::to_string(&AuditRecordJson::from(&record)).unwrap();
        assert_eq!(json, serde_json::to_string(&record).unwrap());
        let owned =
            AuditRecord { owner: Some("alice".into()), token: Some("00000000000000ab".into()), allocation: None, node: None, ..record };
        assert_eq!(serde_json::to_string(&AuditRecordJson::from(&owned)).unwrap(), serde_json::to_string(&owned).unwrap());
    }
}
