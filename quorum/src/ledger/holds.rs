//! Holds: what operators set beside a node's state to keep new work off it. What runs there goes on.

use super::{Ledger, Outcome, Step, Subject};
use crate::wire::Refusal;
use lattice_model::{AuditAction, Hold, HoldKind, NodeId};

/// Bytes of one reason, and of all reasons of one hold.
const REASON_BYTES_MAX: usize = 256;
const REASONS_BYTES_MAX: usize = 1024;

impl Ledger {
    pub(super) fn set_hold(&mut self, step: &mut Step, id: &NodeId, kind: HoldKind, by: &str, reason: &str) -> Result<Outcome, Refusal> {
        if reason.is_empty() || reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control) {
            let why = format!("a hold's reason has 1 to {REASON_BYTES_MAX} bytes without control characters");
            return Err(Refusal::Malformed { why });
        }
        let (at, revision) = (step.at, step.revision);
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        let appended = match known.holds.iter().find(|h| h.kind == kind) {
            // Said before: the answer was lost on its way, or somebody says the same.
            Some(hold) if hold.reason.split("; ").any(|r| r == reason) => return Ok(Outcome::Done),
            Some(hold) if hold.reason.len() + 2 + reason.len() > REASONS_BYTES_MAX => {
                return Err(Refusal::TooMany { what: format!("reasons of the {kind} of node {id}"), most: REASONS_BYTES_MAX as u64 });
            }
            Some(_) => true,
            None => false,
        };
        if let Some(node) = self.node_mut(step, id) {
            match node.holds.iter_mut().find(|h| h.kind == kind) {
                // The first reason stays in front.
                Some(hold) => hold.reason = format!("{}; {reason}", hold.reason),
                None => node.holds.push(Hold { kind, by: by.to_owned(), reason: reason.to_owned(), since: at }),
            }
            if !appended {
                node.hold_revision = revision;
            }
        }
        let about = Subject { allocation: None, node: Some(id) };
        self.record(step, by, AuditAction::HoldSet, about, format!("{kind}: {reason}"));
        Ok(Outcome::Done)
    }

    pub(super) fn lift_hold(&mut self, step: &mut Step, id: &NodeId, kind: HoldKind, by: &str) -> Result<Outcome, Refusal> {
        let Some(known) = self.node(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
        if !known.holds.iter().any(|h| h.kind == kind) {
            return Ok(Outcome::Done);
        }
        let revision = step.revision;
        if let Some(node) = self.node_mut(step, id) {
            node.holds.retain(|h| h.kind != kind);
            node.hold_revision = revision;
        }
        self.record(step, by, AuditAction::HoldLifted, Subject { allocation: None, node: Some(id) }, kind.to_string());
        Ok(Outcome::Done)
    }
}
