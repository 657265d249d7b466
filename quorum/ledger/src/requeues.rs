//! Requeues on request: the claim of an allocation ends, and the work starts again when it gets new
//! nodes.
//!
//! The same rules apply as to automatic requeues: `--requeue=never` forbids it, and it counts
//! against `--max-requeues` if the work had begun.

use super::holds::reason_is_well_formed;
use super::preemptions::may_have_begun;
use super::waits::Requeue;
use super::{ApplyContext, Ledger, Outcome};
use lattice_ledger_state::refusal::Refusal;
use lattice_ledger_state::scaled_services::is_asked_to_leave;
use lattice_model::{AllocationId, AllocationState, EndReason, Epoch, Principal, RequeuePolicy};

impl Ledger {
    pub(super) fn requeue(
        &mut self,
        context: &mut ApplyContext,
        (id, epoch): (AllocationId, Epoch),
        by: &Principal,
        reason: &str,
    ) -> Result<Outcome, Refusal> {
        reason_is_well_formed(reason)?;
        let allocation = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        if !self.may("AllocationService/Requeue", by, &allocation.owner, &allocation.spec.tenant) {
            return Err(Refusal::NotYours { id, owner: allocation.owner.name.clone() });
        }
        let state = allocation.state;
        let has_nodes = match state {
            AllocationState::Staging | AllocationState::Running => true,
            AllocationState::Pending
            | AllocationState::Suspended
            | AllocationState::Completed
            | AllocationState::Failed
            | AllocationState::Cancelled => false,
        };
        if !has_nodes || allocation.epoch != epoch {
            // The claim that the request names is over: this is a repetition whose first answer was
            // lost.
            let is_over = allocation.attempts.iter().any(|attempt| attempt.epoch == epoch);
            return if is_over { Ok(Outcome::Done) } else { Err(Refusal::NotRunning { id, state }) };
        }
        if is_asked_to_leave(allocation) {
            return Err(Refusal::NotRequeueable { id, why: "it is being ended, because its service needs fewer replicas".to_owned() });
        }
        let ended = EndReason::Requeued { by: by.name.clone(), why: reason.to_owned() };
        if Requeue::of(allocation, &ended, may_have_begun(allocation), context.at).is_none() {
            let why = match allocation.spec.requeue {
                RequeuePolicy::Never => "it was submitted with --requeue=never".to_owned(),
                RequeuePolicy::OnNodeFailure | RequeuePolicy::Always => {
                    let most = allocation.spec.requeues_max;
                    format!("it was requeued {} times, and --max-requeues allows {most}", allocation.requeue_count)
                }
            };
            return Err(Refusal::NotRequeueable { id, why });
        }
        self.end(context, id, ended, &by.name);
        Ok(Outcome::Done)
    }
}
