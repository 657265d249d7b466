//! Removal of nodes (decommissioning). The ledger forgets the node, and refuses its name until an
//! operator admits it again and it registers as a new node.
//!
//! ```text
//!   a node: Drained, or Down ──RemoveNode──▶ removed ──Register──▶ refused
//!                                               ╰──Admit, Register──▶ a new node
//! ```
//!
//! Without the list of removed names, a site that admits every node would register the node again
//! at once, because its agent tries that every second.
//!
//! Nothing may run on the node any more: it has no holdings, or all of them are fenced because
//! somebody confirmed that it is dead. After the removal, its agent reports no fenced holding as
//! released, so in the same boot nobody would know what is left of them. Such a node can register
//! only under another boot.
//!
//! The records of allocations keep the node's name.

use super::holds::reason_is_well_formed;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::{Refusal, RemovalRefusal};
use lattice_ledger_state::removals::Removal;
use lattice_model::{AllocationId, AuditAction, Node, NodeId, NodeState};

/// Largest number of allocations named in a refusal.
const NAMED_MAX: usize = 4;

impl Ledger {
    /// The removal of a node that has not registered since.
    pub fn removal(&self, node: &NodeId) -> Option<&Removal> {
        self.removed.get(node).filter(|_| !self.nodes.contains_key(node))
    }

    /// The refusal for a request of a node that is not registered.
    pub fn not_registered(&self, node: &NodeId) -> Refusal {
        match self.removal(node) {
            Some(removal) => removed(node, removal),
            None => Refusal::NoSuchNode { node: node.clone() },
        }
    }

    /// A repetition is a success.
    pub(super) fn remove_node(&mut self, context: &mut ApplyContext, id: &NodeId, by: &str, reason: &str) -> Result<Outcome, Refusal> {
        reason_is_well_formed(reason)?;
        let Some(node) = self.nodes.get(id).cloned() else {
            return if self.admitted.contains_key(id) {
                Err(Refusal::NotRemovable { node: id.clone(), why: RemovalRefusal::Admitted })
            } else if self.removed.get(id).is_some() {
                Ok(Outcome::Done)
            } else {
                Err(Refusal::NoSuchNode { node: id.clone() })
            };
        };
        self.may_be_removed(&node).map_err(|why| Refusal::NotRemovable { node: id.clone(), why })?;
        let is_unreported = !self.holdings(id).is_empty() || self.awaits(id);
        self.lose_all_but(context, id, &[], "its node was removed");
        self.end_exclusions(context, id);
        self.drop_leases_of(context, id, by, "its node is removed");
        self.leave_vcluster(context, &node.home);
        self.note_node(context, id);
        self.nodes.remove(id);
        self.stop_awaiting(id);
        context.changed.nodes.insert(id.clone());
        // Its sessions end.
        context.changed.desired.insert(id.clone());
        let removal = Removal {
            by: by.to_owned(),
            at: context.at,
            reason: reason.to_owned(),
            revision: context.revision,
            incarnation: node.incarnation,
            unreported: is_unreported.then_some(node.boot),
        };
        let forgotten = self.removed.insert(id.clone(), removal);
        let about = Subject { allocation: None, node: Some(id) };
        self.record(context, by, AuditAction::NodeRemoved, about, detail(&node, reason, forgotten.as_ref()));
        Ok(Outcome::Done)
    }

    /// Refuses a node that may get work or may still run some.
    fn may_be_removed(&self, node: &Node) -> Result<(), RemovalRefusal> {
        match node.state {
            NodeState::Drained | NodeState::Down => {}
            NodeState::Ready | NodeState::Degraded | NodeState::Draining | NodeState::Booting | NodeState::Failed => {
                return Err(RemovalRefusal::InService { state: node.state });
            }
        }
        let all = self.unfenced(&node.id).count() as u64;
        if all == 0 {
            return Ok(());
        }
        let some: Vec<AllocationId> = self.unfenced(&node.id).take(NAMED_MAX).collect();
        Err(RemovalRefusal::HasWork { some, all })
    }
}

/// The refusal of a removed node.
pub(super) fn removed(node: &NodeId, removal: &Removal) -> Refusal {
    Refusal::NodeRemoved { node: node.clone(), by: removal.by.clone(), at: removal.at, reason: removal.reason.clone() }
}

/// The text of a removal's audit record: the ledger keeps nothing else of the node.
fn detail(node: &Node, reason: &str, forgotten: Option<&NodeId>) -> String {
    let mut detail = format!("{reason}; it was {}", node.state);
    if !node.holds.is_empty() {
        let holds: Vec<String> = node.holds.iter().map(|hold| hold.kind.to_string()).collect();
        detail += &format!(", under {}", holds.join(", "));
    }
    if !node.home.is_empty() {
        detail += &format!(", of vCluster {}", node.home);
    }
    if let Some(forgotten) = forgotten {
        detail += &format!("; the removal of {forgotten}, the oldest, is forgotten");
    }
    detail
}
