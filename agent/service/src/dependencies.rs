//! The dependencies of a submission: finds the ids of those that its user typed, and their present states.

use super::Api;
use super::finding::{names_a_task, task_named};
use super::privacy::Viewer;
use super::refusal::status;
use futures::{StreamExt, TryStreamExt, stream};
use lattice_api::spec::is_singleton;
use lattice_api::v1;
use lattice_ledger::DependencyRefusal;
use lattice_membership::cluster::Cluster;
use lattice_model::AllocationId;
use lattice_model::dependency::DEPENDENCIES_MAX;
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::Refusal;
use tonic::Status;

/// Requests to the quorum at once.
const LOOKUPS_AT_ONCE: usize = 16;

/// Replaces job numbers and prefixes of ids by the whole ids. What the submitter may not see does not exist for them. A
/// singleton names no allocation.
pub(super) async fn look_up(api: &Api, viewer: &Viewer, named: &mut [v1::Dependency]) -> Result<(), Status> {
    // The conversion refuses so many.
    if named.len() > DEPENDENCIES_MAX {
        return Ok(());
    }
    let named: Vec<&mut v1::Dependency> = named.iter_mut().filter(|dependency| !is_singleton(dependency)).collect();
    let asked: Vec<_> = named.iter().map(|dependency| whole_id(api, viewer, dependency.r#ref.clone())).collect();
    let ids: Vec<AllocationId> = stream::iter(asked).buffered(LOOKUPS_AT_ONCE).try_collect().await?;
    for (dependency, id) in named.into_iter().zip(ids) {
        dependency.r#ref = id.to_string();
    }
    Ok(())
}

pub(super) async fn whole_id(api: &Api, viewer: &Viewer, key: String) -> Result<AllocationId, Status> {
    let unknown = |on: String| status(&CallError::Refused(Refusal::Dependency { on, why: DependencyRefusal::Unknown }));
    match api.quorum.find_allocation(key.clone()).await {
        Ok(allocation) if viewer.sees_allocation(&allocation) => match task_named(&allocation, &key) {
            None => Ok(allocation.id),
            // A dependency on one task must not become one on all of them.
            Some(index) => Err(names_a_task(&allocation, &key, index)),
        },
        Ok(_) | Err(CallError::Refused(Refusal::NoSuchAllocation { .. })) => Err(unknown(key.chars().take(64).collect())),
        Err(error) => Err(status(&error)),
    }
}

/// Adds the states of dependencies that have not ended, as far as this agent knows them.
pub(super) fn add_states(dependencies: &mut [v1::DependencyStatus], cluster: &Cluster) {
    for dependency in dependencies.iter_mut().filter(|dependency| dependency.state.is_empty()) {
        let Ok(id) = dependency.id.parse::<AllocationId>() else { continue };
        if let Some(allocation) = cluster.allocations.get(&id) {
            dependency.state = allocation.shown_state().to_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{Allocation, AllocationState, TaskGroup, Timestamp, test_builders};

    #[test]
    fn what_has_not_ended_has_the_state_that_the_agent_sees() {
        let id = |number: u128| AllocationId(uuid::Uuid::from_u128(number));
        let runs = Allocation { state: AllocationState::Running, ..test_builders::allocation(id(1)) };
        let mut group = Allocation { started_at: Some(Timestamp(1)), ..test_builders::allocation(id(3)) };
        test_builders::spec_of(&mut group).tasks = Some(Box::new(TaskGroup::parse("0-9").unwrap()));
        let cluster = Cluster { allocations: [(runs.id, runs), (group.id, group)].into_iter().collect(), ..Cluster::default() };
        let shown = |number: u128, state: &str| {
            let (id, state) = (id(number).to_string(), state.to_owned());
            v1::DependencyStatus { id, state, ..Default::default() }
        };
        let mut dependencies = [shown(1, ""), shown(2, ""), shown(1, "Failed"), shown(3, "")];
        add_states(&mut dependencies, &cluster);
        assert_eq!(dependencies, [shown(1, "Running"), shown(2, ""), shown(1, "Failed"), shown(3, "Running")]);
    }
}
