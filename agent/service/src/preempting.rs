//! Preemption and resumption of work, by its owner or by operators.

use super::Api;
use super::groups::{refuse_group, refuse_part};
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_model::checkpoint::DEADLINE_MS;
use lattice_model::ids::IdError;
use lattice_model::{AllocationState, CheckpointId, EndReason, PreemptCause, Preemption};
use lattice_quorum_client::wire::Request as Ask;
use tonic::{Request, Status};

pub(super) async fn preempt(api: &Api, request: Request<v1::PreemptRequest>) -> Result<v1::PreemptResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::PreemptRequest { key, id, deadline_ms, reason, hold, kill } = request.into_inner();
    let id: CheckpointId = id.parse().map_err(|e: IdError| Status::invalid_argument(e.to_string()))?;
    let deadline_ms = if deadline_ms == 0 { api.context.work.checkpoint.checkpoints.settings().timeout_ms() } else { deadline_ms };
    let (least, most) = DEADLINE_MS;
    if !(least..=most).contains(&deadline_ms) {
        return Err(Status::invalid_argument(format!("deadline: {deadline_ms} ms; 1 s to 24 h are possible")));
    }
    let allocation = api.allocation(&caller, &key).await?;
    api.check(&caller, &allocation).await?;
    refuse_group(&allocation)?;
    if hold {
        refuse_part(&allocation, "be held")?;
    }
    let short = allocation.id.short();
    match allocation.state {
        AllocationState::Staging | AllocationState::Running | AllocationState::Suspended => {}
        AllocationState::Pending => {
            let text = format!("allocation {short} is Pending: it has no nodes to give back\nhint: `lattice cancel {short}` ends it");
            return Err(Status::failed_precondition(text));
        }
        AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled => {
            return Err(Status::failed_precondition(format!("allocation {short} is {}: it has no nodes to give back", allocation.state)));
        }
    }
    let (by, cause) = (caller.principal, PreemptCause::Request);
    let order = Preemption { id, by: by.name.clone(), reason, cause, deadline_ms, hold, failed: None };
    api.done(&Ask::from(Action::Preempt { allocation: allocation.id, epoch: allocation.epoch, by, order, kill })).await?;
    Ok(v1::PreemptResponse { id: allocation.id.to_string(), state: allocation.state.to_string() })
}

pub(super) async fn hold(api: &Api, request: Request<v1::HoldAllocationRequest>) -> Result<v1::HoldAllocationResponse, Status> {
    let caller = api.caller(&request).await?;
    let allocation = api.allocation(&caller, &request.into_inner().key).await?;
    api.check(&caller, &allocation).await?;
    refuse_part(&allocation, "be held")?;
    if !allocation.state.is_without_nodes() {
        let short = allocation.id.short();
        let hint = if allocation.state.is_terminal() {
            "only what waits for nodes can be held".to_owned()
        } else {
            format!("`lattice preempt --hold {short}` has it save itself and end, and then stay Suspended")
        };
        return Err(Status::failed_precondition(format!("allocation {short} is {}: it cannot be held\nhint: {hint}", allocation.state)));
    }
    api.done(&Ask::from(Action::HoldAllocation { allocation: allocation.id, by: caller.principal })).await?;
    Ok(v1::HoldAllocationResponse { id: allocation.id.to_string(), state: allocation.shown_state().to_string() })
}

pub(super) async fn resume(api: &Api, request: Request<v1::ResumeRequest>) -> Result<v1::ResumeResponse, Status> {
    let caller = api.caller(&request).await?;
    let allocation = api.allocation(&caller, &request.into_inner().key).await?;
    api.check(&caller, &allocation).await?;
    let short = allocation.id.short();
    // It may have been resumed before, with the answer lost: the quorum then confirms that again,
    // whatever the state is by now.
    let resumed = allocation.checkpoint.is_some() && !allocation.state.is_terminal();
    // Work that was held before it began is Pending, also after a lost answer.
    let waits = allocation.state.is_without_nodes();
    if !waits && !resumed {
        let text = format!("allocation {short} is {}, and not held: there is nothing to resume", allocation.state);
        return Err(Status::failed_precondition(text));
    }
    api.done(&Ask::from(Action::Resume { allocation: allocation.id, by: caller.principal })).await?;
    if allocation.held && matches!(allocation.reason, Some(EndReason::Preempted { .. })) {
        api.context.work.checkpoint.checkpoints.counts().requeued();
    }
    Ok(v1::ResumeResponse { id: allocation.id.to_string() })
}
