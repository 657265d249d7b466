//! Work for a trace: what the scheduler decides by, and when it ran; and the format of a trace.

mod format;

pub use format::{
    Amount, Complete, FORMAT, Header, Line, Moment, NodeLine, NotATime, Request, Span, Submit, TRACE_BYTES_MAX, TenantLine, VClusterLine,
    Wanted,
};

use crate::spec;
use crate::v1;
use lattice_model::{Allocation, AllocationSpec, SpecError};

/// The name of the specification that is made from a message. The message has none.
const NAME: &str = "traced";

/// Encodes an allocation for a trace, without the names of its owner, its program and its environment.
pub fn to_proto(allocation: &Allocation) -> v1::TracedWork {
    // What it asked for, and not what its present claim gave it.
    let asked = allocation.asked_walltime.map(|asked| AllocationSpec { walltime: Some(asked), ..AllocationSpec::clone(&allocation.spec) });
    let v1::AllocationSpec { resources, lifecycle, requeue, tenant, vcluster, nice, timing, .. } =
        spec::from_model(asked.as_ref().unwrap_or(&allocation.spec));
    let timing = timing.map(|timing| v1::Timing { begin_ms: 0, ..timing }).filter(|timing| *timing != v1::Timing::default());
    let ended = allocation.reason.as_ref().filter(|_| allocation.state.is_terminal());
    let never_queued = allocation.dependencies.as_ref().is_some_and(|all| all.eligible_at.is_none());
    v1::TracedWork {
        id: allocation.id.to_string(),
        uid: allocation.owner.uid,
        tenant,
        vcluster,
        resources,
        // A replica of a service is placed and runs as a service does.
        lifecycle: lifecycle.map(spec::lifecycle::without_scaling),
        requeue,
        checkpoint: allocation.spec.checkpoint.is_some(),
        // A lane has its group's place in the queue, and comes only when one before it makes room.
        submitted_at_ms: allocation.lane.map_or_else(|| allocation.queued_at(), |_| allocation.submitted_at).0,
        ended_at_ms: allocation.ended_at.map_or(0, |at| at.0),
        ran_ms: ran_ms(allocation),
        exit_code: ended.and_then(|reason| reason.exit_code()),
        tasks_per_node: allocation.spec.tasks_per_node,
        gpus_per_task: allocation.spec.binding.gpus_per_task,
        cpus_per_task: allocation.spec.launch.shape.cpus_per_task,
        held: allocation.spec.hold || allocation.held || never_queued,
        nice,
        timing,
    }
}

/// See [`v1::TracedWork`].
fn ran_ms(allocation: &Allocation) -> Option<u64> {
    let ended_at = allocation.ended_at?;
    // If it ended while it waited, its attempts are all closed.
    let last_ms = allocation.started_at.map(|started| ended_at.since_ms(started));
    let closed_ms = allocation.attempts.iter().filter_map(|attempt| Some(attempt.ended_at.since_ms(attempt.started_at?)));
    let all_ms = closed_ms.chain(last_ms);
    // Work that saves itself continues where its attempt before ended. Other work begins anew.
    if allocation.spec.checkpoint.is_some() { all_ms.reduce(u64::saturating_add) } else { all_ms.last() }
}

/// The request of traced work, by which the scheduler decides; `user`: the number of its user.
///
/// # Errors
/// As [`spec::to_model`].
pub fn request(work: &v1::TracedWork, user: u32) -> Result<Request, SpecError> {
    let command = v1::entrypoint::Command { argv: vec!["true".to_owned()] };
    let checkpoint = work.checkpoint.then(|| v1::Checkpoint { strategy: "signal".to_owned(), ..v1::Checkpoint::default() });
    let spec = spec::to_model(&v1::AllocationSpec {
        name: NAME.to_owned(),
        tenant: work.tenant.clone(),
        vcluster: work.vcluster.clone(),
        resources: work.resources.clone(),
        lifecycle: work.lifecycle.clone(),
        requeue: work.requeue.clone(),
        nice: work.nice,
        timing: work.timing,
        checkpoint,
        tasks_per_node: work.tasks_per_node,
        binding: Some(v1::RankBinding { gpus_per_task: work.gpus_per_task, ..v1::RankBinding::default() }),
        launch: Some(v1::LaunchShape { cpus_per_task: work.cpus_per_task, ..v1::LaunchShape::default() }),
        entrypoint: Some(v1::Entrypoint { what: Some(v1::entrypoint::What::Command(command)) }),
        working_dir: "/".to_owned(),
        ..v1::AllocationSpec::default()
    })?;
    Ok(Request::of(&spec, user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{
        AllocationState, Attempt, Dependencies, DependencyCondition, Drain, EndReason, Epoch, LaneOf, Parent, ParentState, Principal,
        ReplicaOf, Scaling, TaskGroup, Timestamp, Timing,
    };
    use std::path::Path;
    use std::time::Duration;

    fn allocation() -> Allocation {
        let entrypoint = lattice_model::Entrypoint::Command { argv: vec!["secret-program".to_owned()] };
        let mut spec = AllocationSpec::new("secret-name", entrypoint, Path::new("/secret-dir"));
        spec.env.insert("SECRET".to_owned(), "secret-value".to_owned());
        (spec.nodes, spec.tenant, spec.preemption_class) = (3, "physics".to_owned(), 2);
        (spec.tasks_per_node, spec.binding.gpus_per_task, spec.launch.shape.cpus_per_task) = (4, 2, 8);
        let owner = Principal { name: "secret-user".to_owned(), uid: 1007, gid: 1, groups: vec![] };
        let id = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        Allocation::submitted(id, spec, owner, Timestamp(1000))
    }

    #[test]
    fn work_is_traced_without_the_names_of_its_user_and_program() {
        let work = to_proto(&allocation());
        assert!(!format!("{work:?}").contains("secret"), "{work:?}");
        let traced = request(&work, 1).unwrap();
        assert_eq!(traced, Request::of(&allocation().spec, 1));
        assert_eq!((traced.nodes, traced.priority, traced.walltime, traced.user), (3, 2, Some(Span(60)), 1));
        assert_eq!((traced.tasks_per_node, traced.gpus_per_task, traced.cpus_per_task), (4, 2, 8));
        assert_eq!((work.ended_at_ms, work.ran_ms, work.exit_code, work.held), (0, None, None, false));
    }

    #[test]
    fn nice_the_deadline_and_the_least_walltime_are_those_that_were_asked_for() {
        let mut work = allocation();
        let timing =
            Timing { begin: Some(Timestamp(5)), deadline: Some(Timestamp(9_000_000)), walltime_min: Some(Duration::from_secs(30)) };
        let asked = AllocationSpec { nice: 7, timing: timing.unless_empty(), ..AllocationSpec::clone(&work.spec) };
        work.asked_walltime = asked.walltime;
        work.spec = AllocationSpec { walltime: Some(Duration::from_secs(40)), ..asked.clone() }.into();
        let traced = request(&to_proto(&work), 1).unwrap();
        assert_eq!(traced, Request::of(&asked, 1));
        assert_eq!((traced.nice, traced.walltime, traced.walltime_min), (7, Some(Span(60)), Some(Span(30))));
    }

    #[test]
    fn work_is_held_if_it_is_or_was_submitted_so() {
        let mut held = allocation();
        held.held = true;
        assert!(to_proto(&held).held);
        let spec = AllocationSpec { hold: true, ..AllocationSpec::clone(&held.spec) };
        (held.held, held.spec) = (false, spec.into());
        assert!(to_proto(&held).held, "it was resumed");
    }

    #[test]
    fn a_lane_is_work_like_other_work_and_comes_when_it_was_created() {
        let mut work = allocation();
        let tasks = Some(Box::new(TaskGroup::parse("0-99").unwrap()));
        work.spec = AllocationSpec { tasks, ..AllocationSpec::clone(&work.spec) }.into();
        work.lane = Some(LaneOf { group: work.id, number: 0, queued_at: Timestamp(400), revocations: 0 });
        let lane = to_proto(&work);
        assert_eq!((lane.held, lane.submitted_at_ms), (false, 1000));
        assert_eq!(request(&lane, 1).unwrap(), Request::of(&allocation().spec, 1));
    }

    #[test]
    fn a_replica_is_work_like_any_service() {
        let mut work = allocation();
        let scaling = Scaling { replicas_min: 1, replicas_max: 4, policy: None, drain: Drain::default() };
        let service = AllocationSpec { walltime: None, nodes: 1, ..AllocationSpec::clone(&work.spec) };
        work.spec = AllocationSpec { scaling: Some(Box::new(scaling)), ..service.clone() }.into();
        work.replica = Some(Box::new(ReplicaOf { service: work.id, number: 0 }));
        assert_eq!(request(&to_proto(&work), 1).unwrap(), Request::of(&service, 1));
    }

    #[test]
    fn work_that_depends_on_other_work_is_submitted_when_it_comes_into_its_queue() {
        let on = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e99".parse().unwrap();
        let (condition, state) = (DependencyCondition::Any, ParentState::Unended);
        let parent = Parent { on, condition, name: "secret-parent".to_owned(), asked_for_it: false, output: None, state };
        let mut work = allocation();
        work.dependencies = Some(Box::new(Dependencies::new(vec![parent], Timestamp(1000))));
        assert!(to_proto(&work).held, "when it could begin is not known");
        let ended = ParentState::Ended(AllocationState::Failed);
        work.dependencies.as_mut().unwrap().set_state(on, ended, Timestamp(5000));
        let traced = to_proto(&work);
        assert_eq!((traced.held, traced.submitted_at_ms), (false, 5000));
        assert!(!format!("{traced:?}").contains("secret"), "{traced:?}");
    }

    #[test]
    fn only_attempts_that_were_continued_count_as_the_time_that_it_ran() {
        let mut ended = allocation();
        (ended.state, ended.reason) = (AllocationState::Failed, Some(EndReason::Exited { code: 7 }));
        (ended.started_at, ended.ended_at) = (Some(Timestamp(50_000)), Some(Timestamp(80_000)));
        let node = "n1".parse().unwrap();
        ended.attempts = vec![Attempt {
            number: 1,
            epoch: Epoch(1),
            head: node,
            nodes: "n1".to_owned(),
            claimed_at: None,
            started_at: Some(Timestamp(2000)),
            ended_at: Timestamp(12_000),
            reason: EndReason::Exited { code: 1 },
            by: "node:n1".to_owned(),
        }];
        let work = to_proto(&ended);
        assert_eq!((work.ran_ms, work.exit_code), (Some(30_000), Some(7)));
        let mut spec = AllocationSpec::clone(&ended.spec);
        spec.checkpoint = Some(lattice_model::CheckpointPolicy::default());
        ended.spec = spec.into();
        assert_eq!(to_proto(&ended).ran_ms, Some(40_000));
    }

    #[test]
    fn work_that_ended_while_it_waited_ran_in_the_attempts_before() {
        let closed = |number, started_at, ended_at| Attempt {
            number,
            epoch: Epoch(number.into()),
            head: "n1".parse().unwrap(),
            nodes: "n1".to_owned(),
            claimed_at: None,
            started_at,
            ended_at: Timestamp(ended_at),
            reason: EndReason::Exited { code: 1 },
            by: "node:n1".to_owned(),
        };
        let mut waited = allocation();
        (waited.state, waited.ended_at) = (AllocationState::Cancelled, Some(Timestamp(90_000)));
        waited.attempts = vec![closed(1, None, 5000)];
        assert_eq!(to_proto(&waited).ran_ms, None, "no attempt began");
        waited.attempts.extend([
            closed(2, Some(Timestamp(6000)), 16_000),
            closed(3, Some(Timestamp(20_000)), 25_000),
            closed(4, None, 30_000),
        ]);
        assert_eq!(to_proto(&waited).ran_ms, Some(5000), "each attempt began anew");
        let spec = AllocationSpec { checkpoint: Some(lattice_model::CheckpointPolicy::default()), ..AllocationSpec::clone(&waited.spec) };
        waited.spec = spec.into();
        assert_eq!(to_proto(&waited).ran_ms, Some(15_000), "each attempt continued");
    }
}
