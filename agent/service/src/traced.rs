//! Work for traces, for operators: `AdminService.ListTracedWork`.

use super::Api;
use super::allocations::{LIST_MAX, next_page_token, place};
use super::refusal::unexpected;
use lattice_api::v1;
use lattice_quorum_client::wire::{Answer, ListFilter, Request as Ask};
use tonic::{Request, Status};

/// Allocations of a page if the caller does not say how many.
const PAGE_LEN_DEFAULT: u32 = 100;

pub(super) async fn list(api: &Api, request: Request<v1::ListTracedWorkRequest>) -> Result<v1::ListTracedWorkResponse, Status> {
    api.operator(&request).await?;
    let v1::ListTracedWorkRequest { limit, page_token } = request.into_inner();
    let limit = if limit == 0 { PAGE_LEN_DEFAULT } else { limit.min(LIST_MAX) };
    let before = place(&page_token)?;
    let filter = ListFilter { user: None, name: None, vcluster: None, tenant: None, node: None };
    let question = Ask::ListAllocations { uid: None, states: Vec::new(), limit, before, filter };
    let (all, more) = match api.ask(question, false).await? {
        (Answer::AllocationPage { allocations, more }, _) => (allocations, more),
        (other, _) => return Err(unexpected(&other)),
    };
    Ok(v1::ListTracedWorkResponse {
        next_page_token: next_page_token(&all, more),
        work: all.iter().map(lattice_api::trace::to_proto).collect(),
        checkpoint_bytes_per_second: api.cluster.borrow().checkpoint_bytes_per_second,
    })
}
