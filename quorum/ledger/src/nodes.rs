//! Nodes: registration and state. Every change of a node's state goes through
//! [`lattice_model::lifecycle`] here.

use super::admission::growth;
use super::{Action, ApplyContext, Ledger, NODES_MAX, NodeStateChange, Outcome, Registration, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_ledger_state::user_usage::holds_nodes;
use lattice_model::constraint::{FEATURES_MAX, is_feature};
use lattice_model::fact::{TOPOLOGY_GROUP_BYTES_MAX, is_topology_group};
use lattice_model::lifecycle::{self, Event, Facts, Illegal};
use lattice_model::locality::{DOMAINS_MAX, LINKED_GPUS_MAX};
use lattice_model::{
    AllocationId, AuditAction, EndReason, Epoch, HoldKind, Incarnation, Node, NodeId, NodeState, Resources, Timestamp, UNWELL, conformance,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Largest size of an address, in bytes.
const ADDRESS_BYTES_MAX: usize = 300;
/// Prefix of a Ready node's reason if its capacity grew at its latest registration.
const GREW_PREFIX: &str = "its capacity grew when it registered: ";
/// Largest number of unsupported controllers that a node may report, and size of their names in
/// bytes.
const UNLIMITED_MAX: usize = 16;
const UNLIMITED_BYTES_MAX: usize = 32;

impl Ledger {
    pub(super) fn register(&mut self, context: &mut ApplyContext, new: &Registration) -> Result<Outcome, Refusal> {
        if new.size == Resources::default() {
            return Err(Refusal::Malformed { why: format!("node {} registers with nothing", new.node) });
        }
        if new.addresses.mesh.len() > ADDRESS_BYTES_MAX || new.addresses.gossip.len() > ADDRESS_BYTES_MAX {
            return Err(Refusal::Malformed { why: format!("an address has at most {ADDRESS_BYTES_MAX} bytes") });
        }
        if new.unenforced_limits.len() > UNLIMITED_MAX || new.unenforced_limits.iter().any(|name| name.len() > UNLIMITED_BYTES_MAX) {
            return Err(Refusal::Malformed { why: format!("at most {UNLIMITED_MAX} controllers of {UNLIMITED_BYTES_MAX} bytes") });
        }
        if new.features.len() > FEATURES_MAX || !new.features.iter().all(|feature| is_feature(feature)) {
            return Err(Refusal::Malformed { why: format!("at most {FEATURES_MAX} features, each a word or a word with a value") });
        }
        if new.topology_group.as_ref().is_some_and(|group| !is_topology_group(group)) {
            return Err(Refusal::Malformed {
                why: format!("a topology group has 1 to {TOPOLOGY_GROUP_BYTES_MAX} bytes, none of them control characters"),
            });
        }
        if !new.locality.is_valid() {
            return Err(Refusal::Malformed {
                why: format!("at most {DOMAINS_MAX} memory domains, and links of {LINKED_GPUS_MAX} GPUs of at most 100 percent"),
            });
        }
        if new.incarnation.0 == u64::MAX {
            return Err(Refusal::Malformed { why: "an incarnation that nothing can follow".to_owned() });
        }
        self.may_register(new)?;
        if let Some(components) = &new.conformance {
            conformance::check(components).map_err(|bad| Refusal::Malformed { why: bad.to_string() })?;
        }
        let (incarnation, report_seq) = match self.nodes.get(&new.node) {
            None if self.nodes.len() >= NODES_MAX => {
                return Err(Refusal::TooLarge {
                    what: "the list of nodes".to_owned(),
                    bytes: NODES_MAX as u64 + 1,
                    most: NODES_MAX as u64,
                });
            }
            None => (self.register_first(context, new), 0),
            Some(known) => {
                let known = Arc::clone(known);
                replaces_present_life(new, &known)?;
                self.register_again(context, new, &known)
            }
        };
        self.revocations.registered(&new.node);
        // In the same command, so that nobody sees the node Ready with its earlier conformance group.
        if let Some(components) = &new.conformance {
            self.conforms(context, &new.node, incarnation, components)?;
        }
        Ok(Outcome::Registered { incarnation, report_seq })
    }

    fn register_first(&mut self, context: &mut ApplyContext, new: &Registration) -> Incarnation {
        // The incarnation must be higher than those of a removed node of this name.
        let last = self.removed.get(&new.node).map_or(Incarnation(0), |removal| removal.incarnation);
        let incarnation = Incarnation(new.incarnation.max(last).0.saturating_add(1));
        // The node is new, so it has no holds.
        let facts = Facts { draining: false, empty: true, disabled: false };
        let (state, unwell) = state_at_registration(new, facts.at_work(), facts);
        let node = Node {
            id: new.node.clone(),
            size: new.size,
            addresses: new.addresses.clone(),
            schedulable: new.schedulable,
            boot: new.boot,
            incarnation,
            state,
            state_reason: unwell.clone().unwrap_or_default(),
            state_since: context.at,
            unenforced_limits: new.unenforced_limits.clone(),
            features: new.features.clone(),
            topology_group: new.topology_group.clone(),
            locality: new.locality.clone(),
            holds: Vec::new(),
            leaving: Vec::new(),
            relay_node: new.relay_node.clone(),
            home: String::new(),
            conformance: None,
            has_wipe_hook: new.has_wipe_hook,
            wipe: None,
            drain_requested_at: None,
            hold_revision: context.revision,
            report_seq: 0,
            revision: context.revision,
        };
        self.await_unknown_node(context, new);
        self.nodes.insert(new.node.clone(), Arc::new(node));
        self.use_admission(&new.node);
        context.changed.nodes.insert(new.node.clone());
        context.changed.desired.insert(new.node.clone());
        self.record_registration(context, new, incarnation);
        if let Some(unwell) = unwell {
            let about = Subject { allocation: None, node: Some(&new.node) };
            self.record(
                context,
                &format!("node:{}", new.node),
                AuditAction::NodeStateChanged,
                about,
                format!("{state} from its registration on: {unwell}"),
            );
        }
        incarnation
    }

    fn register_again(&mut self, context: &mut ApplyContext, new: &Registration, known: &Node) -> (Incarnation, u64) {
        let rebooted = known.boot != new.boot;
        let resized = known.size != new.size;
        let growth = growth(&known.size, &new.size);
        // After a recovery, reports are numbered from the start: the ledger does not know which ones
        // the lost quorum acknowledged.
        let same_life = !self.awaits(&new.node) && !new.new_life && !rebooted && new.incarnation == known.incarnation;
        let incarnation =
            if same_life { known.incarnation } else { Incarnation(known.incarnation.0.max(new.incarnation.0).saturating_add(1)) };
        let report_seq = if same_life { known.report_seq } else { 0 };
        if rebooted {
            self.lose_all_but(context, &new.node, &[], "it came back under another boot id");
        } else if let Some(found) = self.found(new) {
            self.lose_all_but(context, &new.node, &found, "its agent lost its memory, and found nothing of this work there");
        }
        let leaving = self.nodes.get(&new.node).map(|n| n.leaving.clone()).unwrap_or_default();
        let facts = self.facts(known);
        // Registering is possible in every state.
        let state = lifecycle::next(known.state, Event::Registered { rebooted }, facts).unwrap_or(known.state);
        let (state, unwell) = state_at_registration(new, state, facts);
        let moved_on = state != known.state;
        let stands = Node {
            leaving,
            relay_node: new.relay_node.clone(),
            size: new.size,
            addresses: new.addresses.clone(),
            schedulable: new.schedulable,
            unenforced_limits: new.unenforced_limits.clone(),
            features: new.features.clone(),
            topology_group: new.topology_group.clone(),
            locality: new.locality.clone(),
            has_wipe_hook: new.has_wipe_hook,
            boot: new.boot,
            incarnation,
            state,
            state_reason: match &unwell {
                Some(unwell) => unwell.clone(),
                None if growth.is_some() && state == NodeState::Ready => format!("{GREW_PREFIX}{}", growth.as_deref().unwrap_or_default()),
                None if moved_on => String::new(),
                None => known.state_reason.clone(),
            },
            state_since: if moved_on { context.at } else { known.state_since },
            report_seq,
            ..known.clone()
        };
        if stands != *known {
            let offers_the_same = stands.size == known.size
                && stands.schedulable == known.schedulable
                && stands.features == known.features
                && stands.topology_group == known.topology_group
                && stands.locality == known.locality;
            let claim_matters = moved_on || !offers_the_same;
            let revision = context.revision;
            if let Some(node) = self.node_mut(context, &new.node) {
                *node = Node { revision, hold_revision: if claim_matters { revision } else { known.hold_revision }, ..stands };
            }
        }
        if rebooted || (moved_on && known.is_unwell() && state == NodeState::Ready) {
            self.end_exclusions(context, &new.node);
        }
        context.changed.desired.insert(new.node.clone());
        if !same_life || resized {
            self.record_registration(context, new, incarnation);
        }
        if let Some(growth) = &growth {
            self.record_growth(context, &new.node, growth);
        }
        if moved_on {
            let about = Subject { allocation: None, node: Some(&new.node) };
            let unwell = unwell.map(|unwell| format!(", {unwell}")).unwrap_or_default();
            let detail = format!("{} -> {state}: it registered{unwell}", known.state);
            self.record(context, &format!("node:{}", new.node), AuditAction::NodeStateChanged, about, detail);
        }
        (incarnation, report_seq)
    }

    fn record_registration(&mut self, context: &mut ApplyContext, new: &Registration, incarnation: Incarnation) {
        let about = Subject { allocation: None, node: Some(&new.node) };
        let gpus = if new.size.gpus > 0 { format!(", {} GPUs", new.size.gpus) } else { String::new() };
        let detail = format!("incarnation {incarnation}, boot {}, {} cores{gpus}", new.boot.short(), new.size.cores);
        self.record(context, &format!("node:{}", new.node), AuditAction::NodeRegistered, about, detail);
    }

    /// The work found by an agent that lost its state; `None` for an agent that has its state.
    fn found(&self, new: &Registration) -> Option<Vec<(AllocationId, Epoch)>> {
        let live = || {
            let held = self.holdings(&new.node).iter();
            held.filter(|h| self.is_live(h.allocation, h.epoch)).map(|h| (h.allocation, h.epoch)).collect()
        };
        // An agent that does not report what it found has ended only the work that it had to end.
        let unreported = || (new.incarnation == Incarnation(0)).then(live);
        if new.new_life { new.found.clone().or_else(unreported) } else { None }
    }

    /// Of all shares that the quorum records for the node, only those in `found` exist.
    pub(super) fn lose_all_but(&mut self, context: &mut ApplyContext, node: &NodeId, found: &[(AllocationId, Epoch)], why: &str) {
        for held in self.retain_holdings(context, node, |h| found.contains(&(h.allocation, h.epoch))) {
            let live = self.is_live(held.allocation, held.epoch);
            self.mark_released(context, held.allocation, held.epoch, node);
            if live {
                let reason = EndReason::NodeLost { node: node.clone(), why: why.to_owned() };
                if self.awaits(node) {
                    // The state comes from a backup, so the work may have completed since.
                    self.end_for_good(context, held.allocation, reason, "quorum");
                } else {
                    self.end(context, held.allocation, reason, "quorum");
                }
            }
        }
        self.show_leaving(context, node);
    }

    /// Whether this is the allocation's current claim.
    pub(super) fn is_live(&self, id: AllocationId, epoch: lattice_model::Epoch) -> bool {
        self.allocations.get(&id).is_some_and(|a| a.epoch == epoch && holds_nodes(a.state))
    }

    /// Applies the states proposed by the leader's clocks. A node that has registered meanwhile is
    /// not changed, nor is one for which the transition is no longer possible.
    pub(super) fn node_states(&mut self, context: &mut ApplyContext, state_changes: &[NodeStateChange]) -> Result<Outcome, Refusal> {
        for state_change in state_changes {
            let Some(known) = self.nodes.get(&state_change.node) else { continue };
            if known.incarnation != state_change.incarnation {
                continue;
            }
            let takes_reason = match known.state {
                NodeState::Degraded | NodeState::Draining | NodeState::Drained => true,
                NodeState::Ready | NodeState::Down | NodeState::Booting | NodeState::Failed => false,
            };
            if takes_reason && known.state == state_change.state {
                self.set_state_reason(context, &state_change.node, &state_change.reason);
                continue;
            }
            let event = match state_change.state {
                NodeState::Ready => Event::Heard,
                NodeState::Degraded => Event::Silent,
                NodeState::Down => Event::GraceOver,
                NodeState::Failed => Event::BootOver,
                // No clock proposes these states.
                NodeState::Booting | NodeState::Draining | NodeState::Drained => continue,
            };
            self.apply_event_if_possible(context, &state_change.node, event, &state_change.reason);
        }
        Ok(Outcome::Done)
    }

    /// The node keeps its state, but the reason changes.
    fn set_state_reason(&mut self, context: &mut ApplyContext, id: &NodeId, reason: &str) {
        let Some(state) = self.nodes.get(id).filter(|known| known.state_reason != reason).map(|known| known.state) else { return };
        if let Some(node) = self.node_mut(context, id) {
            reason.clone_into(&mut node.state_reason);
        }
        let about = Subject { allocation: None, node: Some(id) };
        self.record(
            context,
            "quorum",
            AuditAction::NodeStateChanged,
            about,
            format!("{state} as before: {}", if reason.is_empty() { "well again" } else { reason }),
        );
    }

    /// A node is being booted, as stated by an operator or the provisioning system.
    pub(super) fn boot_node(&mut self, context: &mut ApplyContext, id: &NodeId, by: &str, reason: &str) -> Result<Outcome, Refusal> {
        super::holds::reason_is_well_formed(reason)?;
        if self.node(id).is_none() {
            return Err(Refusal::NoSuchNode { node: id.clone() });
        }
        self.apply_requested_event(context, id, Event::BootBegun, by, &format!("booted by {by}: {reason}"))?;
        Ok(Outcome::Done)
    }

    /// The commands due at `now` according to the leader's clock; a boot times out after `boot_ms`.
    /// The times were set by the same kind of clock: if it jumps, a hold or a boot may end early,
    /// and an operator must repeat it.
    pub fn nodes_due(&self, now: Timestamp, boot_ms: u64) -> Vec<Action> {
        let mut due = Vec::new();
        let mut late = Vec::new();
        let over = self.node_index.hold_ends.iter().take_while(|(end, _)| *end <= now);
        let booted = self.node_index.booting.iter().take_while(|(since, _)| now.since_ms(*since) >= boot_ms);
        let ids: BTreeSet<&NodeId> = over.chain(booted).map(|(_, id)| id).collect();
        for node in ids.into_iter().filter_map(|id| self.nodes.get(id)) {
            for hold in &node.holds {
                if let Some(until) = hold.until.filter(|until| *until <= now) {
                    due.push(Action::LiftHold { node: node.id.clone(), kind: hold.kind, by: "quorum".to_owned(), until: Some(until) });
                }
            }
            if let Some(deadline) = node.hold(HoldKind::Drain).and_then(|hold| hold.deadline)
                && super::holds::drain_is_over(node, now)
                && self.holdings(&node.id).iter().any(|h| self.is_live(h.allocation, h.epoch))
            {
                due.push(Action::EndDrained { node: node.id.clone(), deadline });
            }
            if node.state == NodeState::Booting && now.since_ms(node.state_since) >= boot_ms {
                let reason = format!("it did not register under another boot id within {} s", boot_ms / 1000);
                late.push(NodeStateChange { node: node.id.clone(), incarnation: node.incarnation, state: NodeState::Failed, reason });
            }
        }
        due.extend((!late.is_empty()).then_some(Action::NodeStates(late)));
        due
    }

    fn facts(&self, node: &Node) -> Facts {
        Facts {
            draining: node.hold(HoldKind::Drain).is_some(),
            empty: self.holdings(&node.id).is_empty(),
            disabled: node.out_of_service().is_some(),
        }
    }

    pub(super) fn state_after(&self, id: &NodeId, event: Event) -> Result<NodeState, Illegal> {
        // The caller has checked that the node exists.
        let Some(node) = self.nodes.get(id) else { return Err(Illegal { state: NodeState::Down, event }) };
        lifecycle::next(node.state, event, self.facts(node))
    }

    /// Refuses an event that is not possible in the node's state.
    pub(super) fn may_happen(&self, id: &NodeId, event: Event) -> Result<(), Refusal> {
        self.state_after(id, event).map(drop).map_err(|illegal| Refusal::NodeState { node: id.clone(), illegal })
    }

    /// Applies an event that somebody requested.
    pub(super) fn apply_requested_event(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        event: Event,
        by: &str,
        reason: &str,
    ) -> Result<(), Refusal> {
        let next = self.state_after(id, event).map_err(|illegal| Refusal::NodeState { node: id.clone(), illegal })?;
        self.set_state(context, id, next, by, reason);
        // It stays Down, but the reason changes.
        if event == Event::Enabled
            && let Some(node) = self.node_mut(context, id)
        {
            node.state_reason = node.out_of_service().map_or_else(|| reason.to_owned(), ToString::to_string);
        }
        Ok(())
    }

    /// Applies an event that follows automatically, or that was proposed for an older state; does
    /// nothing if it is no longer possible.
    pub(super) fn apply_event_if_possible(&mut self, context: &mut ApplyContext, id: &NodeId, event: Event, reason: &str) {
        if let Ok(next) = self.state_after(id, event) {
            self.set_state(context, id, next, "quorum", reason);
        }
    }

    fn set_state(&mut self, context: &mut ApplyContext, id: &NodeId, next: NodeState, by: &str, reason: &str) {
        let Some(known) = self.nodes.get(id).filter(|known| known.state != next) else { return };
        let is_well_again = known.is_unwell() && next == NodeState::Ready;
        let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        let detail = format!("{} -> {next}{why}", known.state);
        let (at, revision): (Timestamp, _) = (context.at, context.revision);
        if let Some(node) = self.node_mut(context, id) {
            node.state = next;
            node.state_reason = match next {
                // In these states the hold contains the reason.
                NodeState::Ready | NodeState::Draining | NodeState::Drained => String::new(),
                NodeState::Booting | NodeState::Degraded | NodeState::Down | NodeState::Failed => reason.to_owned(),
            };
            node.state_since = at;
            node.hold_revision = revision;
        }
        self.record(context, by, AuditAction::NodeStateChanged, Subject { allocation: None, node: Some(id) }, detail);
        if is_well_again {
            self.end_exclusions(context, id);
        }
    }
}

/// Refuses a registration that would take work from an incarnation that its agent does not know: the registration was
/// delayed, for example in a stopped member, and the node has registered again since.
fn replaces_present_life(new: &Registration, known: &Node) -> Result<(), Refusal> {
    let takes_work = new.boot != known.boot || (new.new_life && new.found.is_some());
    if takes_work && new.replaces != Some(known.incarnation) {
        return Err(Refusal::OtherIncarnation { node: new.node.clone(), now: known.incarnation });
    }
    Ok(())
}

/// The state of a registering node that would otherwise be in `state`. A node that is unwell, and
/// not kept off work by a drain, is Degraded at once, with this reason, so that nothing is placed
/// on it before the clocks act.
fn state_at_registration(new: &Registration, state: NodeState, facts: Facts) -> (NodeState, Option<String>) {
    match &new.unwell {
        Some(why) if state == NodeState::Ready => {
            // An unwell node gets the same state as a silent one; becoming silent is possible in
            // every state.
            (lifecycle::next(state, Event::Silent, facts).unwrap_or(state), Some(format!("{UNWELL}{why}")))
        }
        Some(_) | None => (state, None),
    }
}
