//! `AllocationService.Update`: changes the walltime of submitted work. The quorum checks it.

use super::Api;
use lattice_api::operator::METADATA;
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_quorum_client::wire::Request as Ask;
use std::time::Duration;
use tonic::{Request, Status};

pub(super) async fn update(api: &Api, request: Request<v1::UpdateAllocationRequest>) -> Result<v1::UpdateAllocationResponse, Status> {
    let caller = api.caller(&request).await?;
    let operator = if request.metadata().contains_key(METADATA) { Some(api.operator(&request).await?) } else { None };
    let v1::UpdateAllocationRequest { key, walltime_seconds } = request.into_inner();
    if walltime_seconds == 0 {
        return Err(Status::invalid_argument("walltime_seconds: at least 1 is needed"));
    }
    let allocation = api.allocation(&key).await?;
    if operator.is_none() {
        caller.check(allocation.id, &allocation.owner)?;
    }
    let walltime = Duration::from_secs(walltime_seconds);
    let ask = Ask::from(Action::SetWalltime { allocation: allocation.id, by: caller.principal, walltime, as_operator: operator.is_some() });
    let ask = match operator {
        Some(operator) => operator.asks(ask),
        None => ask,
    };
    api.done(&ask).await?;
    Ok(v1::UpdateAllocationResponse { id: allocation.id.to_string(), state: allocation.state.to_string() })
}
