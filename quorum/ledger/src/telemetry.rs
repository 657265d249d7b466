//! The level of detail of measurements: requested by users, sent in the lists of all nodes of an
//! allocation, and ended by the leader's clock.
//!
//! The quorum does not store measurements. It stores the request, so that every node receives it,
//! even if its agent is down now, and so that it ends on all nodes.

use super::{Action, ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_ledger_state::user_usage::holds_nodes;
use lattice_model::constraint::{TELEMETRY_AUDIT, TELEMETRY_DEBUG, has};
use lattice_model::telemetry::CLOSELY_MS;
use lattice_model::{AllocationId, AuditAction, NodeId, Principal, TelemetryMode, TelemetryOrder, Timestamp};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Largest number of nodes named in a refusal.
const NAMED_MAX: usize = 8;

impl Ledger {
    pub(super) fn set_telemetry(
        &mut self,
        context: &mut ApplyContext,
        id: AllocationId,
        by: &Principal,
        order: (Uuid, TelemetryMode, u64),
    ) -> Result<Outcome, Refusal> {
        let (key, mode, duration_ms) = order;
        let allocation = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        if !self.may("AllocationService/SetTelemetry", by, &allocation.owner, &allocation.spec.tenant) {
            return Err(Refusal::NotYours { id, owner: allocation.owner.name.clone() });
        }
        let known = allocation.telemetry.as_deref();
        // A repetition whose first answer was lost.
        if known.is_some_and(|known| known.id == key) {
            return Ok(Outcome::Done);
        }
        let (next, detail) = match mode {
            TelemetryMode::Prod => {
                let Some(known) = known else { return Ok(Outcome::Done) };
                (None, format!("{mode}; it was {known}"))
            }
            TelemetryMode::Debug | TelemetryMode::Audit => {
                let (least, most) = CLOSELY_MS;
                // An audit may last as long as the claim.
                let endless = mode == TelemetryMode::Audit && duration_ms == 0;
                if !endless && !(least..=most).contains(&duration_ms) {
                    return Err(Refusal::Malformed {
                        why: format!("a duration of {duration_ms} ms: {least} ms to {most} ms are possible"),
                    });
                }
                if !holds_nodes(allocation.state) {
                    return Err(Refusal::NotRunning { id, state: allocation.state });
                }
                let (feature, what) = match mode {
                    TelemetryMode::Audit => (TELEMETRY_AUDIT, "cannot see which files work opens and whom it connects to"),
                    TelemetryMode::Debug | TelemetryMode::Prod => (TELEMETRY_DEBUG, "cannot keep what is measured"),
                };
                let keeps = |node: &&NodeId| self.nodes.get(*node).is_some_and(|node| has(&node.features, feature));
                let lacking: Vec<&str> = allocation.nodes().filter(|node| !keeps(node)).map(NodeId::as_str).collect();
                if !lacking.is_empty() {
                    let more = lacking.len().saturating_sub(NAMED_MAX);
                    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
                    let why = format!("{}{more} {what}", lacking[..lacking.len().min(NAMED_MAX)].join(", "));
                    return Err(Refusal::TelemetryMode { id, why });
                }
                let until = (!endless).then(|| Timestamp(context.at.0.saturating_add(duration_ms)));
                let order = TelemetryOrder { id: key, mode, by: by.name.clone(), since: context.at, until };
                let detail = until.map_or_else(|| format!("{mode} until its work ends"), |until| format!("{mode} until {until}"));
                (Some(order), detail)
            }
        };
        self.record(context, &by.name, AuditAction::TelemetryModeSet, Subject { allocation: Some(id), node: None }, detail);
        self.measure(context, id, next);
        Ok(Outcome::Done)
    }

    /// By the leader's clock: the time of this order is over.
    pub(super) fn end_telemetry(&mut self, context: &mut ApplyContext, id: AllocationId, order: Uuid) -> Outcome {
        let Some(known) = self.allocations.get(&id).and_then(|a| a.telemetry.as_ref()).filter(|known| known.id == order) else {
            return Outcome::Done;
        };
        let detail = format!("prod; it was {known}");
        self.record(context, "quorum", AuditAction::TelemetryModeEnded, Subject { allocation: Some(id), node: None }, detail);
        self.measure(context, id, None);
        Outcome::Done
    }

    /// After a recovery: a node reports an earlier order. The order is sent to all nodes of the
    /// allocation again, so it is checked like a new request.
    pub(super) fn adopt_telemetry(&mut self, context: &mut ApplyContext, node: &NodeId, id: AllocationId, order: &TelemetryOrder) {
        let (least, most) = CLOSELY_MS;
        let is_timed = |until: Timestamp| {
            (least..=most).contains(&until.since_ms(order.since)) && until > context.at && until.since_ms(context.at) <= most
        };
        let may_be = match (order.mode, order.until) {
            (TelemetryMode::Prod, _) | (TelemetryMode::Debug, None) => false,
            (TelemetryMode::Audit, None) => true,
            (TelemetryMode::Debug | TelemetryMode::Audit, Some(until)) => is_timed(until),
        };
        if may_be && self.allocations.get(&id).is_some_and(|a| a.telemetry.is_none()) {
            let detail = format!("{order}; node {node} had it before the recovery");
            self.record(context, "quorum", AuditAction::TelemetryModeSet, Subject { allocation: Some(id), node: None }, detail);
            self.measure(context, id, Some(order.clone()));
        }
    }

    fn measure(&mut self, context: &mut ApplyContext, id: AllocationId, order: Option<TelemetryOrder>) {
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        allocation.telemetry = order.map(Box::new);
        let nodes: Vec<NodeId> = allocation.nodes().cloned().collect();
        context.changed.desired.extend(nodes);
    }

    /// The orders that are over at `now`, by the clock that stamped them: if it jumps, an order may
    /// end early, and its owner must repeat it.
    pub fn telemetry_due(&self, now: Timestamp) -> Vec<Action> {
        let over = self.allocation_index.telemetry_ends.iter().take_while(|(end, _)| *end <= now).map(|(_, id)| *id);
        let over: BTreeSet<AllocationId> = over.collect();
        let orders = over.into_iter().filter_map(|id| Some((id, self.allocations.get(&id)?.telemetry.as_ref()?.id)));
        orders.map(|(allocation, order)| Action::EndTelemetry { allocation, order }).collect()
    }
}
