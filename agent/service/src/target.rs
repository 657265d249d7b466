//! Finds the running allocation that a call refers to.

use super::Api;
use super::access::AccessTarget;
use super::caller::Caller;
use super::groups::refuse_group;
use lattice_model::{Allocation, AllocationId, AllocationState, Epoch, NodeId, Principal};
use thiserror::Error;
use tonic::Status;

/// The allocation on which a call acts.
pub(super) struct Target {
    pub allocation: AllocationId,
    pub epoch: Epoch,
    pub head: NodeId,
    pub nodes: Vec<NodeId>,
    pub owner: Principal,
    pub tenant: String,
    pub project: String,
}

impl Target {
    pub(super) fn access_target(&self) -> AccessTarget<'_> {
        AccessTarget { allocation: self.allocation, owner: &self.owner, node: Some(&self.head) }
    }
}

/// The allocation with this `key`, or, if it is empty, the one in which the caller runs, if the caller
/// may call its method on it.
pub(super) async fn target(api: &Api, caller: &Caller, key: &str) -> Result<Target, Status> {
    let target = match (key, caller.within) {
        ("", None) => return Err(Status::invalid_argument("no allocation is given: use --alloc ID, or run this inside an allocation")),
        ("", Some(within)) => find(api, caller, &within.to_string()).await?,
        (key, _) => find(api, caller, key).await?,
    };
    api.check_work(caller, target.allocation, &target.owner, &target.tenant).await?;
    Ok(target)
}

async fn find(api: &Api, caller: &Caller, key: &str) -> Result<Target, Status> {
    // For an allocation of this node, no quorum is needed.
    if let Some(handle) = key.parse().ok().and_then(|id| api.context.work.allocations.get(id))
        && let Some(head) = handle.share.nodes.first()
    {
        let share = &handle.share;
        return Ok(Target {
            allocation: share.allocation,
            epoch: share.epoch,
            head: head.clone(),
            nodes: share.nodes.to_vec(),
            owner: share.owner.clone(),
            tenant: share.spec.tenant.clone(),
            project: share.spec.project.clone(),
        });
    }
    let allocation = api.allocation(caller, key).await?;
    refuse_group(&allocation)?;
    if allocation.state != AllocationState::Running {
        return Err(Status::failed_precondition(format!("allocation {} is {}, not Running", allocation.id.short(), allocation.state)));
    }
    let head = allocation.head().cloned().ok_or_else(|| Status::internal("a running allocation without nodes"))?;
    let nodes = allocation.nodes().cloned().collect();
    let (tenant, project) = (allocation.spec.tenant.clone(), allocation.stored_project().to_owned());
    Ok(Target { allocation: allocation.id, epoch: allocation.epoch, head, nodes, owner: allocation.owner, tenant, project })
}

/// Why a launch or a checkpoint is not retried.
#[derive(Debug, Error)]
pub(super) enum LaunchOver {
    #[error("its allocation has ended")]
    Forgotten,
    #[error("its allocation {} has ended", .allocation.short())]
    NotHere { allocation: AllocationId },
    #[error("its allocation {} was requeued: this was for an earlier attempt", .allocation.short())]
    Requeued { allocation: AllocationId },
    #[error("its allocation {} is {state}", .allocation.short())]
    Ended { allocation: AllocationId, state: AllocationState },
    #[error("its caller is gone")]
    CallerGone,
}

/// Whether a launch or a checkpoint of this epoch can still run, by the quorum's state of its
/// allocation.
pub(super) fn can_still_run(allocation: Option<&Allocation>, epoch: Epoch) -> Result<(), LaunchOver> {
    match allocation {
        None => Err(LaunchOver::Forgotten),
        Some(a) if a.epoch != epoch || a.state.is_without_nodes() => Err(LaunchOver::Requeued { allocation: a.id }),
        Some(a) if a.state.is_terminal() => Err(LaunchOver::Ended { allocation: a.id, state: a.state }),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(state: AllocationState, epoch: u64) -> Allocation {
        let id = "00000000-0000-4000-8000-000000000009".parse().unwrap();
        Allocation { state, epoch: Epoch(epoch), ..lattice_model::test_builders::allocation(id) }
    }

    #[test]
    fn a_launch_is_retried_only_while_its_own_attempt_runs() {
        use AllocationState::{Cancelled, Completed, Failed, Pending, Running, Staging};
        let of = |state, epoch| can_still_run(Some(&allocation(state, epoch)), Epoch(2));
        of(Running, 2).unwrap();
        for (state, epoch) in [(Running, 3), (Staging, 3), (Pending, 2)] {
            assert!(of(state, epoch).unwrap_err().to_string().contains("requeued"), "{state} {epoch}");
        }
        for state in [Completed, Failed, Cancelled] {
            assert!(of(state, 2).is_err(), "{state}");
        }
        assert!(can_still_run(None, Epoch(2)).is_err());
    }
}
