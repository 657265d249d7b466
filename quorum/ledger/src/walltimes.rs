//! Changes of an allocation's walltime after the submission.
//!
//! | the allocation | its owner may set | an operator may set |
//! |---|---|---|
//! | waits for nodes, or is held | any walltime that a submission may have | the same |
//! | has nodes | a shorter one, with at least a minute left | the same, or a longer one |
//!
//! The specification contains the current walltime, which its nodes, the scheduler and its next
//! claims use. The submitted walltime is stored beside it, so that a repeated submission is still
//! recognised as the same.

use super::refusal::{Refusal, WalltimeRefusal};
use super::state::user_usage::holds_nodes;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_model::duration::clock_text;
use lattice_model::{AllocationId, AllocationSpec, AuditAction, DesiredShare, NodeId, Principal, WalltimeChange};
use std::sync::Arc;
use std::time::Duration;

/// An allocation with nodes keeps at least this much of its remaining walltime.
const LEFT_MIN: Duration = Duration::from_secs(60);

impl Ledger {
    pub(super) fn set_walltime(
        &mut self,
        context: &mut ApplyContext,
        id: AllocationId,
        by: &Principal,
        walltime: Duration,
        as_operator: bool,
    ) -> Result<Outcome, Refusal> {
        let allocation = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        if !as_operator && !by.owns(&allocation.owner) {
            return Err(Refusal::NotYours { id, owner: allocation.owner.name.clone() });
        }
        let refused = |why| Err(Refusal::Walltime { id, why });
        let (before, state) = (allocation.spec.walltime, allocation.state);
        if state.is_terminal() {
            return refused(WalltimeRefusal::HasEnded { state });
        }
        // A repetition whose first answer was lost.
        if before == Some(walltime) {
            return Ok(Outcome::Done);
        }
        let spec = AllocationSpec { walltime: Some(walltime), ..AllocationSpec::clone(&allocation.spec) };
        spec.validate().map_err(|error| Refusal::Malformed { why: error.to_string() })?;
        if holds_nodes(state) {
            let ran = allocation.started_at.map_or(Duration::ZERO, |at| Duration::from_millis(context.at.since_ms(at)));
            let least = Duration::from_secs((ran + LEFT_MIN).as_secs() + 1);
            let is_longer = before.is_some_and(|before| walltime > before);
            if before.is_some_and(|before| before <= ran) {
                return refused(WalltimeRefusal::IsOver);
            }
            if is_longer && !as_operator {
                return refused(WalltimeRefusal::HasNodes { state });
            }
            if !is_longer && walltime < ran + LEFT_MIN {
                return refused(WalltimeRefusal::TooShort { ran, least });
            }
        }
        let detail = format!("{} instead of {} while {state}", clock_text(walltime), text(before));
        self.record(context, &by.name, AuditAction::WalltimeChanged, Subject { allocation: Some(id), node: None }, detail);
        self.change_walltime(context, id, Some(walltime));
        Ok(Outcome::Done)
    }

    /// After a recovery: work on a node may have been granted a longer walltime after the backup.
    /// It is not ended early.
    pub(super) fn adopt_walltime(&mut self, context: &mut ApplyContext, node: &NodeId, share: &DesiredShare) {
        let (id, reported) = (share.allocation, share.spec.walltime);
        let Some(before) = self.allocations.get(&id).map(|a| a.spec.walltime) else { return };
        let is_longer = before.is_some_and(|before| reported.is_none_or(|reported| reported > before));
        if is_longer && self.is_live(id, share.epoch) {
            let detail = format!("{} instead of {}; node {node} had it before the recovery", text(reported), text(before));
            self.record(context, "quorum", AuditAction::WalltimeChanged, Subject { allocation: Some(id), node: None }, detail);
            self.change_walltime(context, id, reported);
        }
    }

    fn change_walltime(&mut self, context: &mut ApplyContext, id: AllocationId, walltime: Option<Duration>) {
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        let before = std::mem::replace(&mut Arc::make_mut(&mut allocation.spec).walltime, walltime);
        allocation.walltime_change.get_or_insert(WalltimeChange { submitted: before });
        if holds_nodes(allocation.state) {
            let nodes: Vec<NodeId> = allocation.nodes().cloned().collect();
            context.changed.desired.extend(nodes);
        }
    }
}

fn text(walltime: Option<Duration>) -> String {
    walltime.map_or_else(|| "none".to_owned(), clock_text)
}
