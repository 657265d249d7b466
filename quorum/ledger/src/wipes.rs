//! Wipes: a node that carried what nobody else may see is claimed by nobody until the site's hook on it says that nothing is left.
//!
//! ```text
//!   asked for ──▶ hold ──last share gone──▶ the agent runs the hook ──▶ 0: the hold is lifted
//!                  ▲                                      └─▶ else: quarantine beside it, with what the hook said
//!                  └───────────── asked for again with force ◀────────────┘
//!
//!   called back, while a share is left: the hold is lifted, and nothing was wiped
//! ```
//!
//! The order has a number, so that a word about an earlier one is not taken for the present one's. From the order
//! on nothing but the node's own word lifts the hold.

use super::holds::Ends;
use super::refusal::Refusal;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_model::{AuditAction, HoldKind, NodeId, Wipe};

/// Who quarantines a node whose wipe failed.
const ACTOR: &str = "wipe";
/// How its reason begins.
const FAILED: &str = "wipe failed: ";
/// Bytes of what went wrong.
const WHY_BYTES_MAX: usize = 220;

impl Ledger {
    /// The order that the node is to carry out now.
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
        if !known.wipes {
            return Err(Refusal::NoWipeHook { node: id.clone() });
        }
        let failed = known.wipe.as_ref().and_then(|wipe| wipe.failed.clone());
        let again = failed.is_some();
        match failed {
            Some(why) if !force => return Err(Refusal::WipeFailed { node: id.clone(), why }),
            // It is under way, or waits for what is left there.
            None if known.wipe.is_some() => {
                return self.set_hold(context, id, HoldKind::Wipe, by, reason, Ends::default());
            }
            Some(_) | None => {}
        }
        match self.set_hold(context, id, HoldKind::Wipe, by, reason, Ends::default()) {
            // It was tried for more reasons than there is room for.
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

    /// While anything is left on the node nothing was wiped yet.
    pub(super) fn call_wipe_back(&mut self, context: &mut ApplyContext, id: &NodeId, by: &str) -> Result<Outcome, Refusal> {
        let begun = |wipe: &Wipe| wipe.failed.is_some() || self.holdings(id).is_empty();
        if self.node(id).and_then(|known| known.wipe.as_ref()).is_some_and(begun) {
            let why = format!("node {id} is being wiped, or was in vain: its own word alone ends that");
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
        // Said before: its answer was lost, or it is about an order that another one followed.
        if known.wipe.as_ref().is_none_or(|wipe| wipe.order != order || wipe.failed.is_some()) {
            return Ok(Outcome::Done);
        }
        let actor = format!("node:{id}");
        let about = || Subject { allocation: None, node: Some(id) };
        context.changed.desired.insert(id.clone());
        let Some(why) = failed else {
            // Whoever quarantined it for another reason since is asked first.
            let ours = |reason: &str| reason.starts_with(FAILED);
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
        match self.set_hold(context, id, HoldKind::Quarantine, ACTOR, &format!("{FAILED}{why}"), Ends::default()) {
            // It is under quarantine for more reasons than there is room for.
            Err(Refusal::TooMany { .. }) => Ok(Outcome::Done),
            other => other,
        }
    }
}

/// As a part of a reason may be.
fn bounded(text: &str) -> String {
    let mut text = text.replace(|c: char| c.is_control(), " ").replace("; ", ", ");
    let end = (0..=text.len().min(WHY_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    text
}
