//! The common part of task groups and scaled services. Neither gets nodes itself: the *lanes* of a group, and the
//! *replicas* of a service, are allocations that do.

use lattice_membership::cluster::Cluster;
use lattice_model::{Allocation, AllocationId, LaneOf, ReplicaOf};
use std::collections::{BTreeMap, BTreeSet};
use tonic::Status;

/// Refuses an operation on a task group or a scaled service that needs nodes.
pub(super) fn refuse_group(allocation: &Allocation) -> Result<(), Status> {
    let short = allocation.id.short();
    let text = if allocation.is_task_group() {
        format!(
            "allocation {short} is a task group, and has no nodes itself\nhint: name one of its lanes, which have nodes: \
             `lattice status {short} --tasks` lists its tasks, `lattice status '{short}[INDEX]'` shows the lane of one"
        )
    } else if allocation.is_scaled_service() {
        format!(
            "allocation {short} is a scaled service, and has no nodes itself\nhint: name one of its replicas, which have nodes, \
             as in '{short}[N]': `lattice status {short} --replicas` lists them"
        )
    } else {
        return Ok(());
    };
    Err(Status::failed_precondition(text))
}

/// Refuses an operation on a lane or a replica that concerns the whole group or service. `what`: such as "be held".
pub(super) fn refuse_part(allocation: &Allocation, what: &str) -> Result<(), Status> {
    let short = allocation.id.short();
    let text = match (&allocation.lane, &allocation.replica) {
        (Some(LaneOf { group, number, .. }), _) => {
            let group = group.short();
            format!(
                "allocation {short} is lane {number} of task group {group}, and cannot {what} alone\nhint: do it to the group, {group}; \
                 `lattice cancel {short}` ends this lane, and its tasks run in another one"
            )
        }
        (None, Some(replica)) => {
            let (number, service) = (replica.number, replica.service.short());
            format!(
                "allocation {short} is replica {number} of service {service}, and cannot {what} alone\nhint: do it to the service, \
                 {service}; `lattice cancel {short}` ends this replica, and another one takes its place"
            )
        }
        (None, None) => return Ok(()),
    };
    Err(Status::failed_precondition(text))
}

/// Its group or service, and its number there, if it is a lane or a replica.
fn part_of(allocation: &Allocation) -> Option<(AllocationId, u32)> {
    let of_group = allocation.lane.map(|lane| (lane.group, lane.number));
    of_group.or_else(|| allocation.replica.as_deref().map(|replica| (replica.service, replica.number)))
}

/// For each of these groups and services: the first of its lanes or replicas to begin, among those that this agent
/// knows to wait.
pub(super) fn first_waiting<'a>(cluster: &'a Cluster, groups: &BTreeSet<AllocationId>) -> BTreeMap<AllocationId, &'a Allocation> {
    let mut first: BTreeMap<AllocationId, (u32, &Allocation)> = BTreeMap::new();
    for allocation in cluster.allocations.values() {
        let wanted = part_of(allocation).filter(|(group, _)| groups.contains(group) && allocation.waits());
        let Some((group, number)) = wanted else { continue };
        let known = first.entry(group).or_insert((number, allocation));
        if number < known.0 {
            *known = (number, allocation);
        }
    }
    first.into_iter().map(|(group, (_, part))| (group, part)).collect()
}

/// What a list of work calls an allocation: a lane by its group, a replica by its service.
pub(super) fn work_name(name: &str, lane: Option<LaneOf>, replica: Option<ReplicaOf>) -> String {
    match (lane, replica) {
        (Some(LaneOf { group, number, .. }), _) => format!("{name} (lane {number} of {})", group.short()),
        (None, Some(ReplicaOf { service, number })) => format!("{name} (replica {number} of {})", service.short()),
        (None, None) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{AllocationState, Drain, Scaling, TaskGroup, Timestamp, test_builders};

    fn id(number: u128) -> AllocationId {
        AllocationId(uuid::Uuid::from_u128(number << 96))
    }

    fn group() -> Allocation {
        let mut group = test_builders::allocation(id(1));
        test_builders::spec_of(&mut group).tasks = Some(Box::new(TaskGroup::parse("0-18:2%4").unwrap()));
        group
    }

    fn lane() -> Allocation {
        Allocation { id: id(2), lane: Some(LaneOf { group: id(1), number: 3, queued_at: Timestamp(0), revocations: 0 }), ..group() }
    }

    fn service() -> Allocation {
        let mut service = test_builders::allocation(id(3));
        let scaling = Scaling { replicas_min: 1, replicas_max: 4, policy: None, drain: Drain::default() };
        test_builders::spec_of(&mut service).scaling = Some(Box::new(scaling));
        service
    }

    fn replica() -> Allocation {
        Allocation { id: id(4), replica: Some(Box::new(ReplicaOf { service: id(3), number: 5 })), ..service() }
    }

    fn refused<T: std::fmt::Debug>(result: Result<T, Status>) -> String {
        result.unwrap_err().message().to_owned()
    }

    #[test]
    fn a_group_has_no_nodes_and_a_lane_no_life_of_its_own() {
        let plain = test_builders::allocation(id(1));
        assert!(refuse_group(&plain).is_ok() && refuse_group(&lane()).is_ok());
        assert_eq!(
            refused(refuse_group(&group())),
            "allocation 00000001 is a task group, and has no nodes itself\nhint: name one of its lanes, which have nodes: \
             `lattice status 00000001 --tasks` lists its tasks, `lattice status '00000001[INDEX]'` shows the lane of one"
        );
        assert!(refuse_part(&plain, "be held").is_ok() && refuse_part(&group(), "be held").is_ok());
        assert_eq!(
            refused(refuse_part(&lane(), "be held")),
            "allocation 00000002 is lane 3 of task group 00000001, and cannot be held alone\nhint: do it to the group, 00000001; \
             `lattice cancel 00000002` ends this lane, and its tasks run in another one"
        );
        assert_eq!(work_name("sweep", lane().lane, None), "sweep (lane 3 of 00000001)");
        assert_eq!(work_name("sweep", None, None), "sweep");
    }

    #[test]
    fn a_service_that_scales_has_no_nodes_and_a_replica_no_life_of_its_own() {
        assert!(refuse_group(&replica()).is_ok() && refuse_part(&service(), "be held").is_ok());
        assert_eq!(
            refused(refuse_group(&service())),
            "allocation 00000003 is a scaled service, and has no nodes itself\nhint: name one of its replicas, which have nodes, \
             as in '00000003[N]': `lattice status 00000003 --replicas` lists them"
        );
        assert_eq!(
            refused(refuse_part(&replica(), "be held")),
            "allocation 00000004 is replica 5 of service 00000003, and cannot be held alone\nhint: do it to the service, 00000003; \
             `lattice cancel 00000004` ends this replica, and another one takes its place"
        );
        assert_eq!(work_name("serve", None, replica().replica.as_deref().copied()), "serve (replica 5 of 00000003)");
    }

    #[test]
    fn the_first_part_is_the_waiting_one_with_the_lowest_number() {
        let lane = |at: u128, group: u128, number: u32, state| {
            let lane = Some(LaneOf { group: id(group), number, queued_at: Timestamp(0), revocations: 0 });
            Allocation { lane, state, ..test_builders::allocation(id(at)) }
        };
        let replica = |at: u128, number: u32| Allocation {
            replica: Some(Box::new(ReplicaOf { service: id(3), number })),
            ..test_builders::allocation(id(at))
        };
        let (waits, runs) = (AllocationState::Pending, AllocationState::Running);
        let plain = test_builders::allocation(id(5));
        let lanes = [lane(8, 1, 5, waits), lane(9, 1, 4, waits), lane(7, 1, 3, runs), lane(6, 2, 0, waits), plain];
        let all = lanes.into_iter().chain([replica(10, 7), replica(11, 6)]);
        let cluster = Cluster { allocations: all.map(|a| (a.id, a)).collect(), ..Cluster::default() };
        let found = first_waiting(&cluster, &[id(1), id(3), id(12)].into());
        assert_eq!(found.into_iter().map(|(group, part)| (group, part.id)).collect::<Vec<_>>(), [(id(1), id(9)), (id(3), id(11))]);
    }
}
