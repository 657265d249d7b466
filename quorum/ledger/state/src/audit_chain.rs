//! The audit log's hash chain.
//!
//! A record's hash is SHA-256 over its JSON text (compact, fields in the order of [`AuditRecord`],
//! without `hash`), which contains the hash of the previous record. A few lines of code verify the
//! chain; see `docs/audit.md`.

use lattice_model::access_token::TokenId;
use lattice_model::{AllocationId, AuditAction, AuditRecord, NodeId, Revision, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// The end of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditHead {
    /// The sequence number of the last record; 0 before the first record.
    pub seq: u64,
    /// Its hash, 64 hexadecimal digits.
    pub hash: String,
}

/// A break in the chain.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("audit record {seq}: {why}")]
pub struct AuditFault {
    /// The record that does not follow from the previous one.
    pub seq: u64,
    /// What is wrong.
    pub why: &'static str,
}

#[derive(Serialize)]
struct Hashed<'a> {
    seq: u64,
    revision: Revision,
    at: Timestamp,
    actor: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    action: AuditAction,
    allocation: Option<AllocationId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    node: Option<&'a NodeId>,
    detail: &'a str,
    previous: &'a str,
}

impl Hashed<'_> {
    fn hash(&self) -> String {
        let text = serde_json::to_vec(self).expect("numbers, strings and unit variants always serialise");
        // This runs several times per command, and formatting byte by byte took as long as the
        // digest.
        let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
        Sha256::digest(&text).iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }
}

impl Default for AuditHead {
    fn default() -> Self {
        Self { seq: 0, hash: "0".repeat(64) }
    }
}

impl AuditHead {
    /// Creates the next record and moves the head to it.
    #[expect(clippy::too_many_arguments, reason = "the fields of a record, each of its own type")]
    pub fn link(
        &mut self,
        revision: Revision,
        at: Timestamp,
        actor: &str,
        token: Option<TokenId>,
        action: AuditAction,
        allocation: Option<AllocationId>,
        owner: Option<&str>,
        node: Option<&NodeId>,
        detail: String,
    ) -> AuditRecord {
        let (seq, token) = (self.seq + 1, token.map(|token| token.to_string()));
        let previous = &self.hash;
        let hashed =
            Hashed { seq, revision, at, actor, token: token.as_deref(), action, allocation, owner, node, detail: &detail, previous };
        let hash = hashed.hash();
        let previous = std::mem::replace(&mut self.hash, hash.clone());
        self.seq = seq;
        let (actor, owner) = (actor.to_owned(), owner.map(str::to_owned));
        AuditRecord { seq, revision, at, actor, token, action, allocation, owner, node: node.cloned(), detail, previous, hash }
    }

    /// Checks that `record` is the next one, and moves the head to it.
    pub fn follow(&mut self, record: &AuditRecord) -> Result<(), AuditFault> {
        let fault = |why| Err(AuditFault { seq: self.seq + 1, why });
        if record.seq != self.seq + 1 {
            return fault("its number is not the next one");
        }
        if record.previous != self.hash {
            return fault("its `previous` is not the hash of the record before it");
        }
        let hashed = Hashed {
            seq: record.seq,
            revision: record.revision,
            at: record.at,
            actor: &record.actor,
            token: record.token.as_deref(),
            action: record.action,
            allocation: record.allocation,
            owner: record.owner.as_deref(),
            node: record.node.as_ref(),
            detail: &record.detail,
            previous: &record.previous,
        };
        if hashed.hash() != record.hash {
            return fault("its hash does not match its content");
        }
        self.seq = record.seq;
        self.hash.clone_from(&record.hash);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records without a token have the text that they had before tokens were recorded, so their hashes stay.
    #[test]
    fn a_token_is_part_of_the_hashed_text_and_without_one_the_text_is_as_it_was() {
        let link = |token: Option<TokenId>| {
            let mut head = AuditHead::default();
            head.link(Revision(2), Timestamp(3), "ada", token, AuditAction::LeaseGranted, None, None, None, "x".to_owned())
        };
        let plain = link(None);
        let previous = "0".repeat(64);
        let text = format!(
            r#"{{"seq":1,"revision":2,"at":3,"actor":"ada","action":"LeaseGranted","allocation":null,"node":null,"detail":"x","previous":"{previous}"}}"#
        );
        let digest: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(plain.hash, digest);
        let by_token = link(Some(TokenId(0xab)));
        assert_eq!((by_token.token.as_deref(), by_token.hash == digest), (Some("00000000000000ab"), false));
        for record in [&plain, &by_token] {
            assert_eq!(AuditHead::default().follow(record), Ok(()));
        }
        let changed = AuditRecord { token: Some("00000000000000ac".to_owned()), ..by_token };
        assert!(
            AuditHead::default().follow(&changed).is_err() && AuditHead::default().follow(&AuditRecord { token: None, ..changed }).is_err()
        );
    }
}
