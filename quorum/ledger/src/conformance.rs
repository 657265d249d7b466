//! What nodes' software and firmware are, and what follows where that is not what is expected.
//!
//! ```text
//!   told first ──▶ as expected ──told another──▶ drifted ──time over──▶ drifted, quarantined
//!                     ▲                             │ sensitive work there: a drain at once
//!                     └── told as before, accepted ─┘
//! ```
//!
//! What runs on a node that drifted goes on. Neither hold is lifted with the end of the drift: an operator looks first.
//!
//! Components are committed when they change, because drift has a time limit of hours, and a new
//! leader must not lose it. A registration has them too, so a node becomes Ready with the
//! fingerprint of what it is now. A drifted node is quarantined and not Down: it gets no work, and
//! what runs there goes on. A component that cannot be read is not an absent one: while a look
//! fails nothing new is reported.

use super::holds::{Ends, reason_is_well_formed};
use super::refusal::{Conflict, Refusal};
use super::{Action, ApplyContext, Ledger, Outcome, Subject};
use lattice_model::claim::Claim;
use lattice_model::conformance::{self, Components, Conformance, Drift, short};
use lattice_model::{Allocation, AuditAction, HoldKind, Incarnation, NodeId, Timestamp};

/// Who sets holds for it.
const ACTOR: &str = "quorum";
/// Bytes of a reason that is made of changes.
const CHANGES_BYTES_MAX: usize = 180;

/// How long nodes that drifted may stay in service, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriftLimits {
    /// Ordinary ones.
    pub ordinary_ms: u64,
    /// Those that had sensitive work since.
    pub sensitive_ms: u64,
}

impl DriftLimits {
    fn of(&self, drift: &Drift) -> u64 {
        if drift.sensitive { self.sensitive_ms } else { self.ordinary_ms }
    }
}

impl Ledger {
    /// The node's agent says what it is made of.
    pub(super) fn conforms(
        &mut self,
        context: &mut ApplyContext,
        id: &NodeId,
        incarnation: Incarnation,
        components: &Components,
    ) -> Result<Outcome, Refusal> {
        conformance::check(components).map_err(|why| Refusal::Malformed { why })?;
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        if known.incarnation != incarnation {
            return Err(Refusal::StaleIncarnation { node: id.clone(), seen: incarnation, now: known.incarnation });
        }
        let before = known.conformance.clone();
        if before.as_ref().is_some_and(|before| before.components == *components) {
            return Ok(Outcome::Done);
        }
        let sensitive = self.sensitive_nodes().contains(id);
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

    /// The node's agent says whether it could not look for too long at what it is made of.
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

    /// What the node is now is what is expected of it.
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

    /// The time to mend this drift is over: once, so that whoever releases the node is not overruled.
    pub(super) fn drift_over(&mut self, context: &mut ApplyContext, id: &NodeId, since: Timestamp) -> Result<Outcome, Refusal> {
        let Some(mut now) = self.node(id).and_then(|node| node.conformance.clone()) else { return Ok(Outcome::Done) };
        let Some(drift) = now.drift.as_mut().filter(|drift| drift.since == since && !drift.over) else { return Ok(Outcome::Done) };
        drift.over = true;
        let reason = reason(&format!("configuration drift since {since}"), &now);
        match self.set_hold(context, id, HoldKind::Quarantine, ACTOR, &reason, Ends::default()) {
            // It is under quarantine for more reasons than there is room for.
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
            // Who claims several nodes chose them by what they were.
            node.hold_revision = revision;
        }
    }

    /// What the leader's clock says is due at `now`.
    pub fn drifts_due(&self, now: Timestamp, limits: DriftLimits) -> Vec<Action> {
        let due = self.nodes.values().filter_map(|node| {
            let drift = node.conformance.as_ref()?.drift.as_ref().filter(|drift| !drift.over)?;
            (now.since_ms(drift.since) >= limits.of(drift)).then(|| Action::DriftOver { node: node.id.clone(), since: drift.since })
        });
        due.collect()
    }

    /// Shares of a claim that are of another conformance group than its first, where all are to be of one.
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
                (Some(own), None) => format!("is of conformance group {}, and {first} has not told its own", short(own)),
                (None, _) => "has not told the fingerprint of its configuration, or too long ago".to_owned(),
            };
            Conflict { node: id.clone(), holder: None, why }
        };
        others.map(against).take(super::claims::CONFLICTS_MAX).collect()
    }

    /// The conformance group of a node, where it told one.
    fn group(&self, id: &NodeId) -> Option<&str> {
        self.node(id)?.conformance.as_ref().and_then(Conformance::group)
    }
}

/// A hold's reason, with as much of the changes as it has room for.
fn reason(what: &str, now: &Conformance) -> String {
    let mut changes = now.drifted().unwrap_or_default();
    let end = (0..=changes.len().min(CHANGES_BYTES_MAX)).rev().find(|end| changes.is_char_boundary(*end));
    changes.truncate(end.unwrap_or_default());
    // Reasons of one hold are told apart by this.
    format!("{what} ({})", changes.replace("; ", ", "))
}
