//! Names whose certificates count no more: those that were issued before the revocation.
//!
//! Whoever stole a key can do nothing with it from then on, and cannot have its certificate renewed either; what the authority
//! issues to the same name afterwards counts. When a certificate was issued is in its serial number ([`lattice_pki::identity::Shown`]).
//! A machine whose certificate was stolen has the gossip key as well: the leader replaces that, once for all names that were revoked
//! since the last new key (`rotation`).

use super::refusal::Refusal;
use super::{ApplyContext, Ledger, Outcome, Revocation, Subject};
use lattice_model::{AuditAction, NodeId, Timestamp};

/// Names that are revoked, at most.
pub const REVOCATIONS_MAX: usize = 4096;
/// Bytes of a reason, at most.
const REASON_BYTES_MAX: usize = 512;

impl Ledger {
    /// Names whose certificates of before count no more, in their order.
    pub fn revocations(&self) -> impl Iterator<Item = (&str, &Revocation)> {
        self.revocations.names.iter().map(|(name, revocation)| (name.as_str(), revocation))
    }

    /// When a certificate is issued that is signed in this state: no revocation of before refuses it, each one of behind does.
    pub fn issue_time(&self) -> Timestamp {
        self.time.max(self.revocations.newest())
    }

    /// Whether a new gossip key is due: a machine that was revoked has the present one.
    pub fn needs_gossip_key(&self) -> bool {
        self.revocations.rekey
    }

    /// Whether this node has not registered since its name was revoked. Then no rotation of the gossip key waits for it.
    pub fn is_revoked(&self, node: &NodeId) -> bool {
        let life = self.revocations.names.get(node.as_str()).and_then(|revocation| revocation.life);
        life.is_some_and(|life| self.nodes.get(node).is_some_and(|node| node.incarnation == life))
    }

    pub(super) fn revoke(&mut self, context: &mut ApplyContext, name: &str, by: &str, reason: &str) -> Result<Outcome, Refusal> {
        // Nodes, members and operators are called alike.
        let node: NodeId = name.parse().map_err(|_| Refusal::Malformed { why: format!("{name:?} is no certificate's name") })?;
        if reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control) {
            let why = format!("a reason has at most {REASON_BYTES_MAX} bytes, none of them a control character");
            return Err(Refusal::Malformed { why });
        }
        if self.revocations.names.len() >= REVOCATIONS_MAX && !self.revocations.names.contains_key(name) {
            return Err(Refusal::TooMany { what: "revoked names".to_owned(), most: REVOCATIONS_MAX as u64 });
        }
        // Behind all that was signed in the state of before.
        let before = Timestamp(self.issue_time().0.saturating_add(1));
        let life = self.nodes.get(&node).map(|known| known.incarnation);
        let revocation = Revocation { before, by: by.to_owned(), reason: reason.to_owned(), revision: context.revision, life };
        self.revocations.names.insert(name.to_owned(), revocation);
        self.revocations.rekey = true;
        context.changed.revocations = true;
        let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        let subject = Subject { node: self.nodes.contains_key(&node).then_some(&node), allocation: None };
        self.record(context, by, AuditAction::CertificatesRevoked, subject, format!("those of {name} issued before {before}{why}"));
        Ok(Outcome::Done)
    }
}
