//! Which nodes may register: those that the ledger knows, and names that an operator admitted.
//!
//! ```text
//!   Admit ──▶ admitted ──Register──▶ a node, known for good
//!                 ╰──WithdrawAdmission──▶ nothing
//! ```
//!
//! A certificate alone makes no node: one that was stolen, or issued for a name that is not used yet, would invent
//! capacity and be given work. The leader says with each registration whether its site admits all nodes, so that members
//! agree whatever their own files say.
//!
//! Certificates are issued before machines come, stay behind when they go, and are on disks that
//! are taken out, so a certificate alone makes no node. The leader's `node_admission` counts, and a
//! refused node gets no entry in the log. A join token would be a second secret beside the
//! certificate. Admissions of a backup do not count after it is restored: they may have been
//! withdrawn since. Capacity that grows counts at once and is reported; what a node says of its
//! hardware cannot be verified from elsewhere.

use super::refusal::Refusal;
use super::{Admission, ApplyContext, Ledger, Outcome, Registration, Subject};
use lattice_model::resources::bytes_text;
use lattice_model::{AuditAction, NodeId, Resources};

/// Admitted names under which no node has registered yet, at most.
const ADMITTED_LEN_MAX: usize = 20_000;
/// Memory has grown when it is larger by more than this part of what it was: kernels reserve more or less at each boot.
const MEMORY_GROWTH_PART: u64 = 64;

impl Ledger {
    /// Whether a node of this name may register where the site lists its nodes.
    ///
    /// # Errors
    /// [`Refusal::NotAdmitted`]
    pub fn may_register(&self, node: &NodeId) -> Result<(), Refusal> {
        if self.nodes.contains_key(node) || self.admitted.contains_key(node) {
            return Ok(());
        }
        Err(Refusal::NotAdmitted { node: node.clone() })
    }

    /// Admissions that were not used yet.
    pub fn admitted(&self) -> impl Iterator<Item = (&NodeId, &Admission)> {
        self.admitted.iter()
    }

    /// Refuses a node that is neither known nor admitted.
    pub(super) fn check_admission(&self, new: &Registration) -> Result<(), Refusal> {
        if new.automatic { Ok(()) } else { self.may_register(&new.node) }
    }

    /// The node has registered.
    pub(super) fn use_admission(&mut self, node: &NodeId) {
        self.admitted.remove(node);
    }

    /// What was admitted when the backup was made may have been withdrawn since.
    pub(super) fn forget_admissions(&mut self) {
        self.admitted.clear();
    }

    /// The same again is the same success, and so is a node that is known.
    pub(super) fn admit(&mut self, context: &mut ApplyContext, node: &NodeId, by: &str, reason: &str) -> Result<Outcome, Refusal> {
        super::holds::reason_is_well_formed(reason)?;
        if self.may_register(node).is_ok() {
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

    /// The same again is the same success.
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

    /// Records that a known node registers with more than it had. It counts at once: a repair, other firmware and other
    /// partitions of GPUs do the same, and people look at it.
    pub(super) fn record_growth(&mut self, context: &mut ApplyContext, node: &NodeId, growth: &str) {
        let about = Subject { allocation: None, node: Some(node) };
        self.record(context, &format!("node:{node}"), AuditAction::CapacityGrew, about, growth.to_owned());
    }
}

/// What of a node is more than it was: `cores 64 to 128, GPUs 0 to 8`. `None`: nothing.
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
