//! Admission of nodes: a node may register if the ledger knows it, or if an operator has admitted
//! its name.
//!
//! ```text
//!   Admit ──▶ admitted ──Register──▶ a node, known until it is removed
//!                 ╰──WithdrawAdmission──▶ nothing
//! ```
//!
//! A certificate alone is not sufficient: with a stolen one, or one issued for an unused name, an
//! intruder could invent capacity and receive work. Each registration contains whether the leader's
//! site admits all nodes, so that members agree even if their configuration files differ.
//!
//! Certificates are issued before machines arrive, remain when machines leave, and are on disks
//! that are removed. The leader's `node_admission` decides, and a refused registration is not
//! written to the log. A join token would be a second secret besides the certificate. Admissions in
//! a backup are dropped when it is restored, because they may have been withdrawn since. Grown
//! capacity is accepted at once and recorded, because a node's report of its hardware cannot be
//! verified from elsewhere.

use super::removal::removed;
use super::{Admission, ApplyContext, Ledger, Outcome, Registration, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::resources::bytes_text;
use lattice_model::{AuditAction, NodeId, Resources};

/// Largest number of unused admissions.
const ADMITTED_LEN_MAX: usize = 20_000;
/// Memory counts as grown if it is larger by more than this fraction (1/64) of the earlier size:
/// kernels reserve different amounts at each boot.
const MEMORY_GROWTH_PART: u64 = 64;

impl Ledger {
    /// Whether the node is known, or an operator has admitted its name.
    pub fn is_admitted(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node) || self.admitted.contains_key(node)
    }

    /// Checks whether this node may register.
    ///
    /// # Errors
    /// [`Refusal::NotAdmitted`], [`Refusal::NodeRemoved`], [`Refusal::NeedsBoot`]
    pub fn may_register(&self, new: &Registration) -> Result<(), Refusal> {
        match self.removal(&new.node) {
            Some(removal) if !self.is_admitted(&new.node) => Err(removed(&new.node, removal)),
            Some(removal) if removal.unreported == Some(new.boot) => Err(Refusal::NeedsBoot { node: new.node.clone() }),
            None if !new.automatic && !self.is_admitted(&new.node) => Err(Refusal::NotAdmitted { node: new.node.clone() }),
            Some(_) | None => Ok(()),
        }
    }

    /// The unused admissions.
    pub fn admitted(&self) -> impl Iterator<Item = (&NodeId, &Admission)> {
        self.admitted.iter()
    }

    /// Removes the admission of a node that has registered, and its removal.
    pub(super) fn use_admission(&mut self, node: &NodeId) {
        self.admitted.remove(node);
        self.removed.remove(node);
    }

    /// After a recovery: admissions in the backup may have been withdrawn since.
    pub(super) fn forget_admissions(&mut self) {
        self.admitted.clear();
    }

    /// A repetition, or the admission of a known node, is a success.
    pub(super) fn admit(&mut self, context: &mut ApplyContext, node: &NodeId, by: &str, reason: &str) -> Result<Outcome, Refusal> {
        super::holds::reason_is_well_formed(reason)?;
        if self.is_admitted(node) {
            return Ok(Outcome::Done);
        }
        if self.admitted.len() >= ADMITTED_LEN_MAX {
            let what = "admitted nodes that have not registered".to_owned();
            return Err(Refusal::TooMany { what, most: ADMITTED_LEN_MAX as u64 });
        }
        let admission = Admission { by: by.to_owned(), at: context.at, reason: reason.to_owned() };
        self.admitted.insert(node.clone(), admission);
        let about = Subject { allocation: None, node: Some(node) };
        self.record(context, by, AuditAction::NodeAdmitted, about, reason.to_owned());
        Ok(Outcome::Done)
    }

    /// A repetition is a success.
    pub(super) fn withdraw_admission(&mut self, context: &mut ApplyContext, node: &NodeId, by: &str) -> Result<Outcome, Refusal> {
        if self.nodes.contains_key(node) {
            return Err(Refusal::HasRegistered { node: node.clone() });
        }
        if let Some(admission) = self.admitted.remove(node) {
            let about = Subject { allocation: None, node: Some(node) };
            let detail = format!("admitted by {}: {}", admission.by, admission.reason);
            self.record(context, by, AuditAction::AdmissionWithdrawn, about, detail);
        }
        Ok(Outcome::Done)
    }

    /// Records that a known node registered with more capacity. The new capacity counts at once:
    /// repairs, firmware changes and different GPU partitions have this effect too, and people
    /// review the record.
    pub(super) fn record_growth(&mut self, context: &mut ApplyContext, node: &NodeId, growth: &str) {
        let about = Subject { allocation: None, node: Some(node) };
        self.record(context, &format!("node:{node}"), AuditAction::CapacityGrew, about, growth.to_owned());
    }
}

/// What has grown: `cores 64 to 128, GPUs 0 to 8`. `None`: nothing.
pub fn growth(was: &Resources, now: &Resources) -> Option<String> {
    let mut grown = Vec::new();
    if now.cores > was.cores {
        grown.push(format!("cores {} to {}", was.cores, now.cores));
    }
    if now.memory_bytes.saturating_sub(was.memory_bytes) > was.memory_bytes / MEMORY_GROWTH_PART {
        grown.push(format!("memory {} to {}", bytes_text(was.memory_bytes), bytes_text(now.memory_bytes)));
    }
    if now.gpus > was.gpus {
        grown.push(format!("GPUs {} to {}", was.gpus, now.gpus));
    }
    (!grown.is_empty()).then(|| grown.join(", "))
}
