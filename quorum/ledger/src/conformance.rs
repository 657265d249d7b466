//! Conformance of nodes: their software and firmware, and what happens when they differ from the
//! expected state.
//!
//! ```text
//!   1st report ──▶ as expected ──difference──▶ drifted ──time over──▶ drifted, quarantined
//!                     ▲                           │ sensitive work there: a drain at once
//!                     └─ reported again, accepted ┘
//! ```
//!
//! Work on a drifted node continues. The end of the drift lifts neither hold: an operator must
//! check the node first.
//!
//! Changed components are committed, because the time limit for a drift is hours, and a new leader
//! must not lose it. A registration also contains them, so a node becomes Ready with its current
//! fingerprint. A drifted node is quarantined but not Down: it gets no new work, and its current
//! work continues. A component that cannot be read is different from an absent one: while an
//! examination fails, the agent reports nothing new.

use super::holds::{Ends, reason_is_well_formed};
use super::{Action, ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::{Conflict, Refusal};
use lattice_model::claim::Claim;
use lattice_model::conformance::{self, Components, Conformance, short};
use lattice_model::{Allocation, AuditAction, HoldKind, Incarnation, NodeId, Timestamp};

/// The actor that sets the holds.
const ACTOR: &str = "quorum";
/// Largest size of a hold's reason that lists changes, in bytes.
const CHANGES_BYTES_MAX: usize = 180;

/// How long drifted nodes may stay in service, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriftLimits {
    /// For nodes without sensitive work.
    pub ordinary_ms: u64,
    /// For nodes that had sensitive work since the drift began.
    pub sensitive_ms: u64,
}

impl Ledger {
    /// A node's agent reports its components.
    pub(super) fn conforms(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        incarnation: Incarnation,
        components: &Components,
    ) -> Result<Outcome, Refusal> {
        conformance::check(components).map_err(|bad| Refusal::Malformed { why: bad.to_string() })?;
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        if known.incarnation != incarnation {
            return Err(Refusal::StaleIncarnation { node: id.clone(), seen: incarnation, now: known.incarnation });
        }
        let before = known.conformance.clone();
        if before.as_ref().is_some_and(|before| before.components == *components) {
            return Ok(Outcome::Done);
        }
        let sensitive = self.is_sensitive(id);
        let now = match &before {
            None => Conformance::first(components.clone()),
            Some(before) => before.then(components.clone(), context.at, sensitive),
        };
        let change = before.as_ref().map_or_else(|| "first told".to_owned(), |b| conformance::changes(&b.components, components));
        let standing = match &now.drift {
            None => "as expected".to_owned(),
            Some(drift) => format!("drifted, {} is expected", short(&conformance::fingerprint(&drift.expected))),
        };
        let detail = format!("{}, {standing}: {change}", short(&now.fingerprint));
        let drains = now.drift.is_some() && sensitive && known.hold(HoldKind::Drain).is_none();
        let reason = reason("configuration drift", &now);
        self.set_conformance(context, id, now);
        let about = Subject { allocation: None, node: Some(id) };
        self.record(context, &format!("node:{id}"), AuditAction::ConformanceChanged, about, detail);
        if drains {
            self.set_hold(context, id, HoldKind::Drain, ACTOR, &reason, Ends::default())?;
        }
        Ok(Outcome::Done)
    }

    /// A node's agent reports whether it has been unable to examine its components for too long.
    pub(super) fn conformance_stale(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        incarnation: Incarnation,
        stale: bool,
    ) -> Result<Outcome, Refusal> {
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        if known.incarnation != incarnation {
            return Err(Refusal::StaleIncarnation { node: id.clone(), seen: incarnation, now: known.incarnation });
        }
        let Some(now) = known.conformance.clone().filter(|known| known.stale != stale) else { return Ok(Outcome::Done) };
        let change = if stale { "told too long ago: a group of its own" } else { "told anew" };
        let detail = format!("{}, {change}", short(&now.fingerprint));
        self.set_conformance(context, id, Conformance { stale, ..now });
        let about = Subject { allocation: None, node: Some(id) };
        self.record(context, &format!("node:{id}"), AuditAction::ConformanceChanged, about, detail);
        Ok(Outcome::Done)
    }

    /// Accepts the node's current components as the expected ones.
    pub(super) fn accept_drift(&mut self, context: &mut ApplyContext, id: &NodeId, by: &str, reason: &str) -> Result<Outcome, Refusal> {
        reason_is_well_formed(reason)?;
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        let Some(conformance) = &known.conformance else { return Err(Refusal::NoFingerprint { node: id.clone() }) };
        let Some(changes) = conformance.drifted() else { return Ok(Outcome::Done) };
        let detail = format!("{}: {reason}: {changes}", short(&conformance.fingerprint));
        let now = Conformance { drift: None, ..conformance.clone() };
        self.set_conformance(context, id, now);
        self.record(context, by, AuditAction::ConformanceAccepted, Subject { allocation: None, node: Some(id) }, detail);
        Ok(Outcome::Done)
    }

    /// The time limit of this drift has passed. It takes effect once, so that it does not override
    /// an operator who releases the node.
    pub(super) fn drift_over(&mut self, context: &mut ApplyContext, id: &NodeId, since: Timestamp) -> Result<Outcome, Refusal> {
        let Some(mut now) = self.node(id).and_then(|node| node.conformance.clone()) else { return Ok(Outcome::Done) };
        let Some(drift) = now.drift.as_mut().filter(|drift| drift.since == since && !drift.overdue) else { return Ok(Outcome::Done) };
        drift.overdue = true;
        let reason = reason(&format!("configuration drift since {since}"), &now);
        match self.set_hold(context, id, HoldKind::Quarantine, ACTOR, &reason, Ends::default()) {
            // The quarantine hold already has the maximum number of reasons.
            Ok(_) | Err(Refusal::TooMany { .. }) => {}
            Err(refusal) => return Err(refusal),
        }
        self.set_conformance(context, id, now);
        Ok(Outcome::Done)
    }

    fn set_conformance(&mut self, context: &mut ApplyContext, id: &NodeId, now: Conformance) {
        let revision = context.revision;
        if let Some(node) = self.node_mut(context, id) {
            node.conformance = Some(now);
            // Invalidates proposed claims: a claim for several nodes may depend on their
            // components.
            node.hold_revision = revision;
        }
    }

    /// The commands due at `now` according to the leader's clock.
    pub fn drifts_due(&self, now: Timestamp, limits: DriftLimits) -> Vec<Action> {
        let index = &self.node_index;
        let ordinary = index.drifts.iter().take_while(|(since, _)| now.since_ms(*since) >= limits.ordinary_ms);
        let sensitive = index.sensitive_drifts.iter().take_while(|(since, _)| now.since_ms(*since) >= limits.sensitive_ms);
        let mut due: Vec<&(Timestamp, NodeId)> = ordinary.chain(sensitive).collect();
        due.sort_unstable_by_key(|(_, node)| node);
        due.into_iter().map(|(since, node)| Action::DriftOver { node: node.clone(), since: *since }).collect()
    }

    /// If all nodes of a claim must be in one conformance group: the nodes that are not in the group of
    /// the first one.
    pub(super) fn of_other_groups(&self, allocation: &Allocation, claim: &Claim) -> Vec<Conflict> {
        if !allocation.spec.constraints.conformance {
            return Vec::new();
        }
        let Some(first) = claim.shares.first().map(|share| &share.node) else { return Vec::new() };
        let wanted = self.group(first);
        let others = claim.shares.iter().map(|share| &share.node).filter(|id| wanted.is_none() || self.group(id) != wanted);
        let against = |id: &NodeId| {
            let why = match (self.group(id), wanted) {
                (Some(own), Some(wanted)) => format!("is of conformance group {}, and {first} of {}", short(own), short(wanted)),
                (Some(own), None) => format!("is of conformance group {}, and {first} has not reported its own", short(own)),
                (None, _) => "has not reported the fingerprint of its configuration, or too long ago".to_owned(),
            };
            Conflict { node: id.clone(), holder: None, why }
        };
        others.map(against).take(super::claims::CONFLICTS_MAX).collect()
    }

    /// The conformance group of a node, if it has reported one.
    fn group(&self, id: &NodeId) -> Option<&str> {
        self.node(id)?.conformance.as_ref().and_then(Conformance::group)
    }
}

/// A hold's reason, with as many of the changes as fit.
fn reason(what: &str, now: &Conformance) -> String {
    let mut changes = now.drifted().unwrap_or_default();
    let end = (0..=changes.len().min(CHANGES_BYTES_MAX)).rev().find(|end| changes.is_char_boundary(*end));
    changes.truncate(end.unwrap_or_default());
    // The text distinguishes the reasons of one hold.
    format!("{what} ({})", changes.replace("; ", ", "))
}
