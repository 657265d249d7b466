//! Revocations: names whose certificates are invalid if they were issued before the revocation.
//!
//! A stolen key is useless from then on, and its certificate cannot be renewed either. Certificates
//! issued to the same name later are valid. The time of issue is part of a certificate's serial
//! number ([`lattice_pki::identity::Shown`]). A thief of a machine's certificate probably also has
//! the gossip key, so the leader replaces that key, once for all names revoked since the last new
//! key (`rotation` in `lattice-quorum`).

use super::{ApplyContext, Ledger, Outcome, Revocation, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::{AuditAction, NodeId, Timestamp};

/// Largest number of revoked names.
pub const REVOCATIONS_MAX: usize = 4096;
/// Largest size of a reason, in bytes.
const REASON_BYTES_MAX: usize = 512;

impl Ledger {
    /// The revocations in the order of names.
    pub fn revocations(&self) -> impl Iterator<Item = (&str, &Revocation)> {
        self.revocations.names.iter().map(|(name, revocation)| (name.as_str(), revocation))
    }

    /// The time of issue for a certificate signed in this state: not before any revocation so far,
    /// and before every later one.
    pub fn issue_time(&self) -> Timestamp {
        self.time.max(self.revocations.newest())
    }

    /// Whether a new gossip key is needed because a revoked machine may have the current one.
    pub fn needs_gossip_key(&self) -> bool {
        self.revocations.rekey
    }

    /// Whether this node has not registered since its name was revoked. A rotation of the gossip
    /// key does not wait for such a node.
    pub fn is_revoked(&self, node: &NodeId) -> bool {
        let life = self.revocations.names.get(node.as_str()).and_then(|revocation| revocation.life);
        life.is_some_and(|life| self.nodes.get(node).is_some_and(|node| node.incarnation == life))
    }

    pub(super) fn revoke(&mut self, context: &mut ApplyContext, name: &str, by: &str, reason: &str) -> Result<Outcome, Refusal> {
        // Nodes, members and operators have names of the same form.
        let node: NodeId = name.parse().map_err(|_| Refusal::Malformed { why: format!("{name:?} is not a valid certificate name") })?;
        if reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control) {
            let why = format!("a reason has at most {REASON_BYTES_MAX} bytes, none of them a control character");
            return Err(Refusal::Malformed { why });
        }
        if self.revocations.names.len() >= REVOCATIONS_MAX && !self.revocations.names.contains_key(name) {
            return Err(Refusal::TooMany { what: "revoked names".to_owned(), most: REVOCATIONS_MAX as u64 });
        }
        // Later than every certificate signed before this command.
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
