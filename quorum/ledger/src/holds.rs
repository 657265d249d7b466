//! Holds: set by operators, or requested by a node's own checks, to keep new work off a node.
//! Current work continues, with these exceptions: `disable` and a passed drain deadline end it; on
//! a node with a hardware failure, work that must not run twice is ended.
//!
//! If a person sets a hold again, the new reason replaces that person's earlier one; reasons of
//! others stay. The later end counts (no end is the latest), so that nobody can shorten a hold of
//! somebody else; the latest deadline request counts.

use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::lifecycle::Event;
use lattice_model::{
    Allocation, AuditAction, EndReason, Hold, HoldKind, Incarnation, Node, NodeId, NodeState, OnIsolation, Timestamp, When,
};

/// Largest size of one reason, and of all reasons of one hold, in bytes.
const REASON_BYTES_MAX: usize = 256;
const REASONS_BYTES_MAX: usize = 1024;

/// When a hold ends by itself, and the deadline of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    pub until: Option<When>,
    pub deadline: Option<When>,
}

impl Ledger {
    pub(super) fn set_hold(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        kind: HoldKind,
        by: &str,
        reason: &str,
        ends: Ends,
    ) -> Result<Outcome, Refusal> {
        reason_is_well_formed(reason)?;
        let (at, revision) = (context.at, context.revision);
        if ends.until.is_some() && !kind.may_end() {
            return Err(Refusal::Malformed { why: format!("a {kind} cannot have an end: `{}` lifts it", kind.exit()) });
        }
        if ends.deadline.is_some() && kind != HoldKind::Drain {
            return Err(Refusal::Malformed { why: format!("a {kind} has no deadline: only a drain has one") });
        }
        let (until, deadline) = (ends.until.map(|when| when.from(at)), ends.deadline.map(|when| when.from(at)));
        if let Some(past) = until.filter(|until| *until <= at) {
            return Err(Refusal::Malformed { why: format!("the {kind} would end at {past}, which is past: it is {at} now") });
        }
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        let before = known.hold(kind);
        let mut next = match before {
            Some(hold) => Hold {
                // The later end counts.
                until: hold.until.and_then(|was| until.map(|until| until.max(was))),
                deadline: deadline.or(hold.deadline),
                ..hold.clone()
            },
            None => Hold { until, deadline, ..Hold::new(kind, by, reason, at) },
        };
        next.restate(by, reason);
        if next.reasons().len() > REASONS_BYTES_MAX {
            return Err(Refusal::TooMany { what: format!("bytes of reasons of the {kind} of node {id}"), most: REASONS_BYTES_MAX as u64 });
        }
        // A repetition whose first answer was lost, or an equal request.
        if before == Some(&next) {
            return Ok(Outcome::Done);
        }
        if let Some(past) = deadline.filter(|deadline| *deadline <= at) {
            let why = format!("the deadline {past} is past: it is {at}; to end the work now, `--deadline 1s`");
            return Err(Refusal::Malformed { why });
        }
        let is_new = before.is_none();
        let times = [("until", next.until), ("deadline", next.deadline)];
        let times: String = times.into_iter().filter_map(|(what, time)| Some(format!(", {what} {}", time?))).collect();
        if let Some(node) = self.node_mut(context, id) {
            match node.holds.iter_mut().find(|h| h.kind == kind) {
                Some(hold) => *hold = next,
                None => node.holds.push(next),
            }
            if is_new {
                node.hold_revision = revision;
            }
        }
        let about = Subject { allocation: None, node: Some(id) };
        self.record(context, by, AuditAction::HoldSet, about, format!("{kind}: {reason}{times}"));
        if is_new {
            self.apply_hold_effects(context, id, kind, by, reason)?;
        }
        Ok(Outcome::Done)
    }

    /// As [`Self::set_hold`], for an operator's request: a wipe hold can only be set by ordering a
    /// wipe.
    pub(super) fn set_requested_hold(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        kind: HoldKind,
        by: &str,
        reason: &str,
        ends: Ends,
    ) -> Result<Outcome, Refusal> {
        if kind == HoldKind::Wipe {
            return Err(Refusal::Malformed { why: "`lattice node wipe` requests a wipe".to_owned() });
        }
        self.set_hold(context, id, kind, by, reason, ends)
    }

    /// A node's own checks request a drain. Each request is granted once, so that an operator who
    /// lifts the drain is not overruled.
    pub(super) fn ask_drain(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        (incarnation, asked): (Incarnation, Timestamp),
        reason: &str,
    ) -> Result<Outcome, Refusal> {
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        if known.incarnation != incarnation || known.drain_requested_at == Some(asked) {
            return Ok(Outcome::Done);
        }
        match self.set_hold(context, id, HoldKind::Drain, &format!("node:{id}"), reason, Ends::default()) {
            // The drain hold already has the maximum number of reasons.
            Ok(_) | Err(Refusal::TooMany { .. }) => {}
            Err(refusal) => return Err(refusal),
        }
        if let Some(node) = self.node_mut(context, id) {
            node.drain_requested_at = Some(asked);
        }
        Ok(Outcome::Done)
    }

    /// The effects of a new hold besides keeping work off.
    fn apply_hold_effects(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        kind: HoldKind,
        by: &str,
        reason: &str,
    ) -> Result<(), Refusal> {
        match kind {
            HoldKind::Cordon | HoldKind::Quarantine | HoldKind::Maintenance | HoldKind::Wipe => Ok(()),
            HoldKind::Drain => self.apply_requested_event(context, id, Event::DrainSet, by, ""),
            HoldKind::Disable => {
                let why = format!("disabled by {by}: {reason}");
                self.apply_requested_event(context, id, Event::Disabled, by, &why)?;
                let lost = EndReason::NodeLost { node: id.clone(), why };
                self.end_all(context, id, &lost, by);
                Ok(())
            }
            HoldKind::Failure => {
                let why = format!("its hardware failed, says {by}: {reason}");
                self.apply_requested_event(context, id, Event::HardwareFailed, by, &why)?;
                // Work with a run lease cannot run twice, so it may be started elsewhere now. Other
                // work waits for evidence, as on any node that is Down.
                let lost = EndReason::NodeLost { node: id.clone(), why };
                self.end_live(context, id, &lost, by, |a| a.spec.on_isolation == OnIsolation::Stop);
                Ok(())
            }
        }
    }

    /// Lifts a hold; if `until` is given, only a hold with that end.
    pub(super) fn lift_hold(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        kind: HoldKind,
        by: &str,
        until: Option<Timestamp>,
    ) -> Result<Outcome, Refusal> {
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        let Some(hold) = known.hold(kind) else { return Ok(Outcome::Done) };
        if until.is_some_and(|until| hold.until != Some(until) || until > context.at) {
            return Ok(Outcome::Done);
        }
        // A refusal must change nothing, so check the state machine first.
        let event = match kind {
            HoldKind::Cordon | HoldKind::Quarantine | HoldKind::Maintenance | HoldKind::Wipe => None,
            HoldKind::Drain => Some((Event::DrainLifted, format!("undrained by {by}"))),
            HoldKind::Disable => Some((Event::Enabled, format!("enabled by {by}, and not heard since"))),
            HoldKind::Failure => Some((Event::Enabled, format!("repaired, says {by}, and not heard since"))),
        };
        if let Some((event, _)) = &event {
            self.may_happen(id, *event)?;
        }
        let unwell = Some(known.state_reason.clone()).filter(|_| known.is_unwell());
        let revision = context.revision;
        if let Some(node) = self.node_mut(context, id) {
            node.holds.retain(|h| h.kind != kind);
            node.hold_revision = revision;
        }
        let detail = until.map_or_else(|| kind.to_string(), |until| format!("{kind}: it was until {until}"));
        self.record(context, by, AuditAction::HoldLifted, Subject { allocation: None, node: Some(id) }, detail);
        if until.is_none() {
            // Somebody states that the node is usable again.
            self.end_exclusions(context, id);
        }
        if let Some((event, reason)) = event {
            self.apply_requested_event(context, id, event, by, &reason)?;
        }
        // An unwell node becomes Degraded in the same command, so that nothing is placed on it
        // before the clocks are evaluated again.
        if let Some(why) = unwell.filter(|_| kind == HoldKind::Drain) {
            self.apply_event_if_possible(context, id, Event::Silent, &why);
        }
        Ok(Outcome::Done)
    }

    /// As [`Self::lift_hold`], for a request of an operator or the leader's clock: a wipe hold is
    /// lifted by cancelling its order.
    pub(super) fn lift_requested_hold(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        kind: HoldKind,
        by: &str,
        until: Option<Timestamp>,
    ) -> Result<Outcome, Refusal> {
        if kind == HoldKind::Wipe {
            return self.call_wipe_back(context, id, by);
        }
        self.lift_hold(context, id, kind, by, until)
    }

    /// The deadline of a drain has passed: ends the work that still runs on the node, unless the
    /// node is silent: nobody knows whether its work would end, and work must not run twice.
    pub(super) fn end_drained(&mut self, context: &mut ApplyContext, id: &NodeId, deadline: Timestamp) -> Outcome {
        let has_deadline = |node: &Node| node.hold(HoldKind::Drain).is_some_and(|hold| hold.deadline == Some(deadline));
        if self.node(id).is_some_and(|node| has_deadline(node) && drain_is_over(node, context.at)) {
            self.end_all(context, id, &EndReason::DrainDeadline { node: id.clone() }, "quorum");
        }
        Outcome::Done
    }

    /// Ends every current claim of the node for this reason.
    fn end_all(&mut self, context: &mut ApplyContext, id: &NodeId, reason: &EndReason, actor: &str) {
        self.end_live(context, id, reason, actor, |_| true);
    }

    /// Ends the current claims of the node that `wanted` selects.
    fn end_live(&mut self, context: &mut ApplyContext, id: &NodeId, reason: &EndReason, actor: &str, wanted: impl Fn(&Allocation) -> bool) {
        let live = self.holdings(id).iter().filter(|h| self.is_live(h.allocation, h.epoch)).map(|h| h.allocation);
        let live: Vec<_> = live.filter(|id| self.allocations.get(id).is_some_and(|a| wanted(a))).collect();
        for allocation in live {
            self.end(context, allocation, reason.clone(), actor);
        }
    }
}

pub(super) fn reason_is_well_formed(reason: &str) -> Result<(), Refusal> {
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control) {
        let why = format!("a reason has 1 to {REASON_BYTES_MAX} bytes without control characters");
        return Err(Refusal::Malformed { why });
    }
    Ok(())
}

/// Whether the deadline for work on the node has passed at `now`.
pub(super) fn drain_is_over(node: &Node, now: Timestamp) -> bool {
    let over = node.hold(HoldKind::Drain).and_then(|hold| hold.deadline).is_some_and(|deadline| deadline <= now);
    over && node.state == NodeState::Draining
}
