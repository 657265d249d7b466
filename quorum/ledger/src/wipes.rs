//! Wipes: a node that processed confidential data cannot be claimed until the site's hook on it
//! confirms that nothing is left.
//!
//! ```text
//!   requested ──▶ hold ──last share gone──▶ the agent runs the hook ──▶ 0: the hold is lifted
//!                  ▲                                      └─▶ else: also a quarantine hold, with the hook's output
//!                  └───────────── requested again with force ◀───────────┘
//!
//!   cancelled while a share is left: the hold is lifted, and nothing was wiped
//! ```
//!
//! Each order has a number, so that a report about an earlier order is not mistaken for one about
//! the current order. Once the agent runs the hook, only its report lifts the hold.

use super::holds::Ends;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::{AuditAction, HoldKind, NodeId, Wipe};

/// The actor that quarantines a node whose wipe failed.
const ACTOR: &str = "wipe";
/// Prefix of the quarantine's reason.
const FAILED_PREFIX: &str = "wipe failed: ";
/// Largest size of the failure's description, in bytes.
const WHY_BYTES_MAX: usize = 220;

impl Ledger {
    /// The order that the node must carry out now.
    pub(super) fn wipe_due(&self, id: &NodeId) -> Option<u64> {
        let wipe = self.nodes.get(id)?.wipe.as_ref()?;
        (wipe.failed.is_none() && self.holdings(id).is_empty()).then_some(wipe.order)
    }

    pub(super) fn wipe(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        by: &str,
        reason: &str,
        force: bool,
    ) -> Result<Outcome, Refusal> {
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        if !known.has_wipe_hook {
            return Err(Refusal::NoWipeHook { node: id.clone() });
        }
        let failed = known.wipe.as_ref().and_then(|wipe| wipe.failed.clone());
        let again = failed.is_some();
        match failed {
            Some(why) if !force => return Err(Refusal::WipeFailed { node: id.clone(), why }),
            // The wipe is in progress, or waits until the node is empty.
            None if known.wipe.is_some() => {
                return self.set_hold(context, id, HoldKind::Wipe, by, reason, Ends::default());
            }
            Some(_) | None => {}
        }
        match self.set_hold(context, id, HoldKind::Wipe, by, reason, Ends::default()) {
            // The hold already has the maximum number of reasons.
            Ok(_) | Err(Refusal::TooMany { .. }) => {}
            Err(refusal) => return Err(refusal),
        }
        if again {
            self.record(
                context,
                by,
                AuditAction::HoldSet,
                Subject { allocation: None, node: Some(id) },
                format!("wipe: tried again: {reason}"),
            );
        }
        let order = context.revision.0;
        if let Some(node) = self.node_mut(context, id) {
            node.wipe = Some(Wipe { order, failed: None });
        }
        context.changed.desired.insert(id.clone());
        Ok(Outcome::Done)
    }

    /// Cancels a wipe. Possible while anything is left on the node, because nothing has been wiped
    /// yet.
    pub(super) fn call_wipe_back(&mut self, context: &mut ApplyContext, id: &NodeId, by: &str) -> Result<Outcome, Refusal> {
        let begun = |wipe: &Wipe| wipe.failed.is_some() || self.holdings(id).is_empty();
        if self.node(id).and_then(|known| known.wipe.as_ref()).is_some_and(begun) {
            let why = format!("the wipe of node {id} has begun or has failed: only the node's own report ends it");
            return Err(Refusal::Malformed { why });
        }
        let lifted = self.lift_hold(context, id, HoldKind::Wipe, by, None)?;
        if let Some(node) = self.node_mut(context, id) {
            node.wipe = None;
        }
        context.changed.desired.insert(id.clone());
        Ok(lifted)
    }

    pub(super) fn wiped(&mut self, context: &mut ApplyContext, id: &NodeId, order: u64, failed: Option<&str>) -> Result<Outcome, Refusal> {
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        // A repetition, or a report about an earlier order.
        if known.wipe.as_ref().is_none_or(|wipe| wipe.order != order || wipe.failed.is_some()) {
            return Ok(Outcome::Done);
        }
        let actor = format!("node:{id}");
        let about = || Subject { allocation: None, node: Some(id) };
        context.changed.desired.insert(id.clone());
        let Some(why) = failed else {
            // If somebody has quarantined the node for another reason since, that hold stays.
            let ours = |reason: &str| reason.starts_with(FAILED_PREFIX);
            let by_us = known.hold(HoldKind::Quarantine).is_some_and(|hold| hold.by == ACTOR && hold.reasons().split("; ").all(ours));
            if let Some(node) = self.node_mut(context, id) {
                node.wipe = None;
            }
            self.record(context, &actor, AuditAction::NodeWiped, about(), format!("order {order}"));
            self.lift_hold(context, id, HoldKind::Wipe, &actor, None)?;
            if by_us {
                self.lift_hold(context, id, HoldKind::Quarantine, ACTOR, None)?;
            }
            return Ok(Outcome::Done);
        };
        let why = bounded(why);
        self.record(context, &actor, AuditAction::WipeFailed, about(), format!("order {order}: {why}"));
        if let Some(node) = self.node_mut(context, id) {
            node.wipe = Some(Wipe { order, failed: Some(why.clone()) });
        }
        match self.set_hold(context, id, HoldKind::Quarantine, ACTOR, &format!("{FAILED_PREFIX}{why}"), Ends::default()) {
            // The quarantine hold already has the maximum number of reasons.
            Err(Refusal::TooMany { .. }) => Ok(Outcome::Done),
            other => other,
        }
    }
}

/// The text, cut to the size of a reason's part.
fn bounded(text: &str) -> String {
    let mut text = text.replace(|c: char| c.is_control(), " ").replace("; ", ", ");
    let end = (0..=text.len().min(WHY_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    text
}
