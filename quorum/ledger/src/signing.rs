//! Signatures of the audit chain: the members' keys, and how far the chain is signed. Keys and
//! signatures are records of the chain itself: they are replicated, archived and exported with it,
//! and a replaced key still verifies what it signed.
//!
//! The leader makes the signature over [`SignedHead::message`] outside the ledger (`apply` has no
//! secrets). Records that are committed meanwhile are covered by the next signature.

pub use lattice_ledger_state::signed_head::SignedHead;

use super::state::Signing;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::{AuditAction, AuditRecord, MemberId};
use serde::{Deserialize, Serialize};

/// Number of hexadecimal digits of a public key.
const KEY_DIGITS: usize = 64;
const SIGNATURE_DIGITS: usize = 128;

/// The detail of a record of [`AuditAction::SigningKeySet`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySet {
    /// The member.
    pub member: MemberId,
    /// The public key, 64 hexadecimal digits.
    pub key: String,
    /// The member's previous key, which signs nothing after this record.
    pub replaces: Option<String>,
}

impl KeySet {
    /// Parses a record of [`AuditAction::SigningKeySet`]; `None` for any other record or content.
    pub fn of(record: &AuditRecord) -> Option<Self> {
        (record.action == AuditAction::SigningKeySet).then(|| serde_json::from_str(&record.detail).ok()).flatten()
    }
}

impl Ledger {
    /// The members' keys, and how far the chain is signed.
    pub fn signing(&self) -> &Signing {
        &self.signing
    }

    pub(super) fn set_signing_key(&mut self, context: &mut ApplyContext, member: MemberId, key: &str) -> Result<Outcome, Refusal> {
        check_hex("key", key, KEY_DIGITS)?;
        let replaces = self.signing.keys.get(&member).cloned();
        if replaces.as_deref() == Some(key) {
            return Ok(Outcome::Done);
        }
        self.signing.keys.insert(member, key.to_owned());
        let detail = json(&KeySet { member, key: key.to_owned(), replaces });
        self.record(context, &format!("member:{member}"), AuditAction::SigningKeySet, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    /// Checks a signed head, except the signature itself.
    pub(super) fn check_signed_head(&self, signed: &SignedHead) -> Result<(), Refusal> {
        check_hex("signature", &signed.signature, SIGNATURE_DIGITS)?;
        if self.signing.keys.get(&signed.member) != Some(&signed.key) {
            return Err(Refusal::Malformed { why: format!("member {} signs with a key that is not on record", signed.member) });
        }
        if signed.seq > self.audit.seq {
            return Err(Refusal::Malformed { why: format!("record {} is signed; there are {}", signed.seq, self.audit.seq) });
        }
        Ok(())
    }

    pub(super) fn sign_head(&mut self, context: &mut ApplyContext, signed: &SignedHead) -> Result<Outcome, Refusal> {
        self.check_signed_head(signed)?;
        if signed.seq <= self.signing.upto {
            return Ok(Outcome::Done);
        }
        self.record(context, &format!("member:{}", signed.member), AuditAction::HeadSigned, Subject::default(), json(signed));
        self.signing.upto = signed.seq;
        self.signing.last = self.audit.seq;
        Ok(Outcome::Done)
    }
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers and strings always serialise")
}

fn check_hex(what: &str, text: &str, digits: usize) -> Result<(), Refusal> {
    if text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(());
    }
    Err(Refusal::Malformed { why: format!("a {what} has {digits} hexadecimal digits") })
}
