//! Nodes: registration and standing.

use super::{Ledger, NODES_MAX, NodeStanding, Outcome, Registration, Step, Subject};
use crate::wire::Refusal;
use lattice_model::constraint::{FEATURES_MAX, is_feature};
use lattice_model::{AllocationId, AuditAction, EndReason, Epoch, Incarnation, Node, NodeId, NodeState, Resources, Timestamp};
use std::sync::Arc;

/// Bytes of an address at most.
const ADDRESS_BYTES_MAX: usize = 300;
/// Controllers that a node may say it lacks, and bytes of their names.
const UNLIMITED_MAX: usize = 16;
const UNLIMITED_BYTES_MAX: usize = 32;

impl Ledger {
    pub(super) fn register(&mut self, step: &mut Step, new: &Registration) -> Result<Outcome, Refusal> {
        if new.size == Resources::default() {
            return Err(Refusal::Malformed { why: format!("node {} registers with nothing", new.node) });
        }
        if new.addresses.mesh.len() > ADDRESS_BYTES_MAX || new.addresses.gossip.len() > ADDRESS_BYTES_MAX {
            return Err(Refusal::Malformed { why: format!("an address has at most {ADDRESS_BYTES_MAX} bytes") });
        }
        if new.unlimited.len() > UNLIMITED_MAX || new.unlimited.iter().any(|name| name.len() > UNLIMITED_BYTES_MAX) {
            return Err(Refusal::Malformed { why: format!("at most {UNLIMITED_MAX} controllers of {UNLIMITED_BYTES_MAX} bytes") });
        }
        if new.features.len() > FEATURES_MAX || !new.features.iter().all(|feature| is_feature(feature)) {
            return Err(Refusal::Malformed { why: format!("at most {FEATURES_MAX} features, each a word or a word with a value") });
        }
        if new.incarnation.0 == u64::MAX {
            return Err(Refusal::Malformed { why: "an incarnation that nothing can follow".to_owned() });
        }
        match self.nodes.get(&new.node) {
            None if self.nodes.len() >= NODES_MAX => {
                Err(Refusal::TooLarge { what: "the list of nodes".to_owned(), bytes: NODES_MAX as u64 + 1, most: NODES_MAX as u64 })
            }
            None => Ok(self.register_first(step, new)),
            Some(known) => {
                let known = Arc::clone(known);
                Ok(self.register_again(step, new, &known))
            }
        }
    }

    fn register_first(&mut self, step: &mut Step, new: &Registration) -> Outcome {
        let incarnation = Incarnation(new.incarnation.0 + 1);
        let node = Node {
            id: new.node.clone(),
            size: new.size,
            addresses: new.addresses.clone(),
            schedulable: new.schedulable,
            boot: new.boot,
            incarnation,
            state: NodeState::Ready,
            state_reason: String::new(),
            state_since: step.at,
            unlimited: new.unlimited.clone(),
            features: new.features.clone(),
            holds: Vec::new(),
            leaving: Vec::new(),
            home: String::new(),
            hold_revision: step.revision,
            report_seq: 0,
            revision: step.revision,
        };
        self.nodes.insert(new.node.clone(), Arc::new(node));
        self.await_stranger(new);
        step.changed.nodes.insert(new.node.clone());
        step.changed.desired.insert(new.node.clone());
        self.record_registration(step, new, incarnation);
        Outcome::Registered { incarnation, report_seq: 0 }
    }

    fn register_again(&mut self, step: &mut Step, new: &Registration, known: &Node) -> Outcome {
        let rebooted = known.boot != new.boot;
        // After a recovery its reports are counted anew: what was acknowledged since the backup is not known here.
        let same_life = !self.awaits(&new.node) && !new.new_life && !rebooted && new.incarnation == known.incarnation;
        let incarnation =
            if same_life { known.incarnation } else { Incarnation(known.incarnation.0.max(new.incarnation.0).saturating_add(1)) };
        let report_seq = if same_life { known.report_seq } else { 0 };
        if rebooted {
            self.lose_all_but(step, &new.node, &[], "it came back under another boot id");
        } else if let Some(found) = self.found(new) {
            self.lose_all_but(step, &new.node, &found, "its agent lost its memory, and found nothing of this work there");
        }
        let leaving = self.nodes.get(&new.node).map(|n| n.leaving.clone()).unwrap_or_default();
        let stands = Node {
            leaving,
            size: new.size,
            addresses: new.addresses.clone(),
            schedulable: new.schedulable,
            unlimited: new.unlimited.clone(),
            features: new.features.clone(),
            boot: new.boot,
            incarnation,
            state: NodeState::Ready,
            state_reason: String::new(),
            state_since: if known.state == NodeState::Ready { known.state_since } else { step.at },
            report_seq,
            ..known.clone()
        };
        if stands != *known {
            let claim_matters = stands.state != known.state
                || stands.features != known.features
                || stands.size != known.size
                || stands.schedulable != known.schedulable;
            let moved = stands.addresses.mesh != known.addresses.mesh;
            let revision = step.revision;
            if let Some(node) = self.node_mut(step, &new.node) {
                *node = Node { revision, hold_revision: if claim_matters { revision } else { known.hold_revision }, ..stands };
            }
            if moved {
                self.tell_peers(step, &new.node);
            }
        }
        step.changed.desired.insert(new.node.clone());
        if !same_life {
            self.record_registration(step, new, incarnation);
        }
        Outcome::Registered { incarnation, report_seq }
    }

    fn record_registration(&mut self, step: &mut Step, new: &Registration, incarnation: Incarnation) {
        let about = Subject { allocation: None, node: Some(&new.node) };
        let detail = format!("incarnation {incarnation}, boot {}, {} cores", new.boot.short(), new.size.cores);
        self.record(step, &format!("node:{}", new.node), AuditAction::NodeRegistered, about, detail);
    }

    /// What an agent without memory has of its work; `None` for one that remembers.
    fn found(&self, new: &Registration) -> Option<Vec<(AllocationId, Epoch)>> {
        let live = || {
            let held = self.holdings.get(&new.node).into_iter().flatten();
            held.filter(|h| self.is_live(h.allocation, h.epoch)).map(|h| (h.allocation, h.epoch)).collect()
        };
        // An agent that does not say what it found sweeps what it was to end, and keeps what stands.
        let unsaid = || (new.incarnation == Incarnation(0)).then(live);
        if new.new_life { new.found.clone().or_else(unsaid) } else { None }
    }

    /// Of all that the quorum believes on the node, only `found` is there.
    fn lose_all_but(&mut self, step: &mut Step, node: &NodeId, found: &[(AllocationId, Epoch)], why: &str) {
        let held = self.holdings.remove(node).unwrap_or_default();
        let (there, lost): (Vec<_>, Vec<_>) = held.into_iter().partition(|h| found.contains(&(h.allocation, h.epoch)));
        if !there.is_empty() {
            self.holdings.insert(node.clone(), there);
        }
        for held in lost {
            let live = self.is_live(held.allocation, held.epoch);
            self.mark_released(step, held.allocation, held.epoch, node);
            if live {
                let reason = EndReason::NodeLost { node: node.clone(), why: why.to_owned() };
                if self.awaits(node) {
                    // The state is that of a backup: it may have done all that it was to do since.
                    self.end_for_good(step, held.allocation, reason, "quorum");
                } else {
                    self.end(step, held.allocation, reason, "quorum");
                }
            }
        }
        self.show_leaving(step, node);
    }

    /// Nodes that work together with `node` must learn its new address.
    fn tell_peers(&self, step: &mut Step, node: &NodeId) {
        for held in self.holdings.get(node).into_iter().flatten() {
            if self.is_live(held.allocation, held.epoch)
                && let Some(allocation) = self.allocations.get(&held.allocation)
            {
                step.changed.desired.extend(allocation.nodes().cloned());
            }
        }
    }

    /// Whether this claim is the allocation's present one.
    pub(super) fn is_live(&self, id: AllocationId, epoch: lattice_model::Epoch) -> bool {
        self.allocations.get(&id).is_some_and(|a| a.epoch == epoch && super::views::holds_nodes(a.state))
    }

    pub(super) fn node_states(&mut self, step: &mut Step, standings: &[NodeStanding]) -> Result<Outcome, Refusal> {
        for standing in standings {
            let Some(known) = self.nodes.get(&standing.node) else { continue };
            if known.incarnation != standing.incarnation || known.state == standing.state {
                continue;
            }
            let detail = format!("{} -> {}: {}", known.state, standing.state, standing.reason);
            let (at, revision): (Timestamp, _) = (step.at, step.revision);
            if let Some(node) = self.node_mut(step, &standing.node) {
                node.state = standing.state;
                node.state_reason = if standing.state == NodeState::Ready { String::new() } else { standing.reason.clone() };
                node.state_since = at;
                node.hold_revision = revision;
            }
            let about = Subject { allocation: None, node: Some(&standing.node) };
            self.record(step, "quorum", AuditAction::NodeStateChanged, about, detail);
            self.placing_may_go_on(step);
        }
        Ok(Outcome::Done)
    }
}
