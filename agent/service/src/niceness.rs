//! Who may put work before equal work of its queue, by a `nice` below 0: operators.

use super::Api;
use super::caller::Caller;
use lattice_model::access::Relation;
use tonic::Status;

/// Operators may call it on the work of others.
const METHOD: &str = "AllocationService/Update";

/// Whether this caller may have work before equal work.
pub(super) async fn may_precede(api: &Api, caller: &Caller) -> Result<bool, Status> {
    Ok(api.standing(caller).await?.roles.may(METHOD, Relation::Foreign))
}

/// Refuses a `nice` below 0 of somebody who is no operator here.
pub(super) async fn check(api: &Api, caller: &Caller, nice: i32) -> Result<(), Status> {
    if nice >= 0 || may_precede(api, caller).await? {
        return Ok(());
    }
    let text = format!("nice: {nice} is below 0, and only operators put work before equal work\nhint: give 0 or more, or ask an operator");
    Err(Status::permission_denied(text))
}
