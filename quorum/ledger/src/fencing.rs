//! Fencing: when work on a silent node may be started elsewhere.
//!
//! ```text
//!                     ┌─ Fence: silent for lease + margin ──▶ `stop` ─┐ (`continue` stays)
//!   Down, has work ───┤                                               ├─▶ ended as lost, requeued by its policy;
//!                     └─ ConfirmDead: confirmed by somebody ──▶ all ──┘   fenced until the node reports Released
//! ```
//!
//! A node that would be Down but is still reached by other nodes is fenced like a node that is
//! Down: run leases do not depend on what other nodes report.
//!
//! Work with `--on-isolation=stop` is claimed again only when all its earlier attempts are released
//! or fenced, so it never runs twice. A node that returns with a fenced holding gets new work only
//! after it has reported that nothing of it is left.

use super::claims::CONFLICTS_MAX;
use super::{ApplyContext, Holding, Ledger, Outcome, Subject};
use crate::node_use::NodeUse;
use lattice_ledger_state::refusal::{Conflict, Refusal};
use lattice_model::lifecycle::Event;
use lattice_model::run_lease::over_after_ms;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AuditAction, EndReason, Incarnation, Node, NodeId, NodeState, OnIsolation, hostlist,
};
use std::collections::BTreeMap;

/// Largest size of an operator's reason, in bytes.
const REASON_BYTES_MAX: usize = 256;

impl Ledger {
    /// The length of run leases for new claims, in milliseconds; 0: not set yet.
    pub fn run_lease_ms(&self) -> u64 {
        self.run_lease_ms
    }

    pub(super) fn set_run_lease(&mut self, context: &mut ApplyContext, ms: u64) -> Result<Outcome, Refusal> {
        if ms == 0 {
            return Err(Refusal::Malformed { why: "a run lease lasts at least a millisecond".to_owned() });
        }
        if ms != self.run_lease_ms {
            let detail = format!("{} ms -> {ms} ms; claims that stand keep theirs", self.run_lease_ms);
            self.run_lease_ms = ms;
            self.record(context, "quorum", AuditAction::RunLeaseSet, Subject::default(), detail);
        }
        Ok(Outcome::Done)
    }

    /// The length of the run lease for a claim of this work, if it uses one.
    pub(super) fn run_lease_of(&self, spec: &AllocationSpec) -> Result<Option<u64>, Refusal> {
        match spec.on_isolation {
            OnIsolation::Continue => Ok(None),
            OnIsolation::Stop if self.run_lease_ms == 0 => {
                Err(Refusal::Unavailable { why: "the leader has not set yet how long run leases are".to_owned() })
            }
            OnIsolation::Stop => Ok(Some(self.run_lease_ms)),
        }
    }

    /// Refuses a claim for work that must not run twice while an earlier attempt may still run.
    pub(super) fn not_while_it_may_run(&self, allocation: &Allocation) -> Result<(), Refusal> {
        if allocation.spec.on_isolation != OnIsolation::Stop || allocation.epoch.0 == 0 {
            return Ok(());
        }
        let conflicts: Vec<Conflict> = self
            .unfenced_shares(allocation)
            .into_iter()
            .map(|(node, h)| Conflict {
                node: node.clone(),
                holder: Some(h.allocation),
                why: format!(
                    "its attempt under epoch {} may still run there: that node has not reported that nothing of it is left",
                    h.epoch
                ),
            })
            .collect();
        if conflicts.is_empty() { Ok(()) } else { Err(Refusal::Conflict { conflicts }) }
    }

    /// The holdings of this allocation that are not fenced, with their nodes, at most
    /// [`CONFLICTS_MAX`]. Searches all nodes only if the latest attempts do not name those nodes, as
    /// after a recovery.
    fn unfenced_shares(&self, allocation: &Allocation) -> Vec<(&NodeId, &Holding)> {
        let wanted = self.holdings.unfenced_of(allocation.id).min(CONFLICTS_MAX);
        let is_it = |holding: &&Holding| holding.allocation == allocation.id && !holding.fenced;
        let mut found: BTreeMap<&NodeId, Vec<&Holding>> = BTreeMap::new();
        for attempt in allocation.attempts.iter().rev() {
            if found.values().map(Vec::len).sum::<usize>() >= wanted {
                break;
            }
            for node in hostlist::expand(&attempt.nodes).unwrap_or_default() {
                if let Some((node, _)) = self.nodes.get_key_value(&node) {
                    found.entry(node).or_insert_with(|| self.holdings(node).iter().filter(is_it).collect());
                }
            }
        }
        if found.values().map(Vec::len).sum::<usize>() < wanted {
            found = self.holdings.iter().map(|(node, held)| (node, held.iter().filter(is_it).collect())).collect();
        }
        found.into_iter().flat_map(|(node, held)| held.into_iter().map(move |holding| (node, holding))).take(CONFLICTS_MAX).collect()
    }

    /// The silence of the node, in milliseconds, after which some of its work is known to have
    /// ended.
    pub fn fenced_after_ms(&self, node: &NodeId) -> Option<u64> {
        self.holdings(node).iter().filter(|h| !h.fenced).filter_map(|h| h.run_lease_ms).map(over_after_ms).min()
    }

    /// The use of the node, which decides how long its silence is tolerated. Work that was started
    /// before the node moved to another vCluster counts as borrowing it, too.
    pub fn use_of(&self, node: &Node) -> NodeUse {
        let held = self.holdings(&node.id).iter().filter(|h| self.is_live(h.allocation, h.epoch));
        let work: Vec<&AllocationSpec> = held.filter_map(|h| self.allocations.get(&h.allocation)).map(|a| &*a.spec).collect();
        if work.iter().any(|spec| spec.sensitive) {
            NodeUse::Sensitive
        } else if work.iter().any(|spec| self.foreign(node, &spec.vcluster).is_some()) {
            NodeUse::Borrowed
        } else {
            NodeUse::Own
        }
    }

    /// The work that may run on the node, or may still run there without a lease.
    pub fn unfenced(&self, node: &NodeId) -> impl Iterator<Item = AllocationId> {
        self.holdings(node).iter().filter(|h| !h.fenced).map(|h| h.allocation)
    }

    /// The leader has not heard the node for this long. Ignored if the node has registered since.
    pub(super) fn fence(
        &mut self,
        context: &mut ApplyContext,
        node: &NodeId,
        incarnation: Incarnation,
        silent_ms: u64,
    ) -> Result<Outcome, Refusal> {
        let Some(known) = self.nodes.get(node) else { return Err(Refusal::NoSuchNode { node: node.clone() }) };
        let is_silent = match known.state {
            NodeState::Down => true,
            NodeState::Degraded => !known.is_unwell(),
            NodeState::Ready | NodeState::Draining | NodeState::Drained | NodeState::Booting | NodeState::Failed => false,
        };
        if !is_silent || known.incarnation != incarnation {
            return Ok(Outcome::Done);
        }
        let why = format!("not heard for {} s, and its run lease lapsed", silent_ms / 1000);
        self.fence_those(context, node, "quorum", &why, |lease| lease.is_some_and(|ms| over_after_ms(ms) <= silent_ms));
        Ok(Outcome::Done)
    }

    /// Somebody confirms that nothing runs on the node any more.
    pub(super) fn confirm_dead(&mut self, context: &mut ApplyContext, node: &NodeId, by: &str, reason: &str) -> Result<Outcome, Refusal> {
        if reason.is_empty() || reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control) {
            let why = format!("the reason has 1 to {REASON_BYTES_MAX} bytes without control characters");
            return Err(Refusal::Malformed { why });
        }
        let Some(known) = self.nodes.get(node) else { return Err(Refusal::NoSuchNode { node: node.clone() }) };
        match known.state {
            NodeState::Ready | NodeState::Draining | NodeState::Drained => {
                return Err(Refusal::NodeHeard { node: node.clone(), state: known.state });
            }
            // It sends heartbeats and reports that it is not well.
            NodeState::Degraded if known.is_unwell() => {
                return Err(Refusal::NodeHeard { node: node.clone(), state: known.state });
            }
            NodeState::Down if self.holdings(node).iter().all(|h| h.fenced) => return Ok(Outcome::Done),
            NodeState::Degraded | NodeState::Down | NodeState::Booting | NodeState::Failed => {}
        }
        let about = Subject { allocation: None, node: Some(node) };
        let detail = format!("{reason}; {} of its allocations are taken from it", self.unfenced(node).count());
        self.record(context, by, AuditAction::NodeConfirmedDead, about, detail);
        let why = format!("confirmed dead by {by}: {reason}");
        self.apply_requested_event(context, node, Event::ConfirmedDead, by, &why)?;
        // It may have been Down already, for another reason.
        if let Some(known) = self.node_mut(context, node) {
            known.state_reason.clone_from(&why);
        }
        self.fence_those(context, node, by, &why, |_| true);
        Ok(Outcome::Done)
    }

    /// Fences the work on the node whose lease satisfies `over`.
    fn fence_those(&mut self, context: &mut ApplyContext, node: &NodeId, actor: &str, why: &str, over: impl Fn(Option<u64>) -> bool) {
        for held in self.holdings(node) {
            self.note_before(context, held.allocation);
        }
        let taken = self.holdings.fence(node, |held| over(held.run_lease_ms));
        for (id, epoch) in taken {
            let reason = EndReason::NodeLost { node: node.clone(), why: why.to_owned() };
            if self.is_live(id, epoch) && self.awaits(node) {
                // The state comes from a backup, so the work may have completed since.
                self.end_for_good(context, id, reason, actor);
            } else if self.is_live(id, epoch) {
                self.end(context, id, reason, actor);
            } else if self.allocations.get(&id).is_some_and(|a| !a.state.is_terminal()) {
                // Fewer reasons now prevent a claim for it: schedulers must look again.
                context.changed.record(id);
            }
        }
        self.show_leaving(context, node);
    }
}
