//! Allocations in the form that users see.

use crate::v1;
use lattice_model::dependency::SINGLETON;
use lattice_model::scaling::{Amount, Reading, ScaleChange, ScalingState};
use lattice_model::time::Timestamp;
use lattice_model::{Allocation, AllocationId, AllocationState, Attempt, Constraints, EndReason, Entrypoint, Parent, TaskGroup, hostlist};
use thiserror::Error;

/// Every state, in the order of an allocation's life.
pub const STATES: [AllocationState; 7] = [
    AllocationState::Pending,
    AllocationState::Staging,
    AllocationState::Running,
    AllocationState::Suspended,
    AllocationState::Completed,
    AllocationState::Failed,
    AllocationState::Cancelled,
];

/// How many runs of a task group's indices a list shows.
const RUNS_LISTED_MAX: usize = 8;

/// The text is not the name of a state.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no state {0:?}; the states are Pending, Staging, Running, Suspended, Completed, Failed and Cancelled")]
pub struct UnknownState(pub String);

/// The features that nodes must have, as an expression.
fn features(constraints: &Constraints) -> String {
    let choice = constraints.choice.as_ref().map(ToString::to_string);
    constraints.features.iter().cloned().chain(choice).collect::<Vec<_>>().join("&")
}

/// Encodes an allocation for the API. `exit_code` is set after its end, if the program's own code is
/// known; `reason` is why it ended, or why it is in the queue again.
pub fn to_proto(allocation: &Allocation) -> v1::Allocation {
    let ms = |time: Option<Timestamp>| time.map_or(0, |t| t.0);
    let claimed = u32::try_from(allocation.shares.len()).unwrap_or(u32::MAX);
    // If its ranks are spread: its form on the claimed nodes.
    let form = allocation.spec.spread.filter(|_| claimed > 0).map(|_| allocation.spec.spread_over(claimed));
    let spec = form.as_ref().unwrap_or(&allocation.spec);
    let (uenv, uenv_sha256) =
        spec.uenv.as_ref().map_or_else(Default::default, |image| (image.path.to_string_lossy().into_owned(), image.sha256.clone()));
    let ended = allocation.reason.as_ref().filter(|_| allocation.state.is_terminal());
    v1::Allocation {
        age_ms: None,
        id: allocation.id.to_string(),
        name: spec.name.clone(),
        state: allocation.shown_state().to_string(),
        reason: allocation.reason.as_ref().map(ToString::to_string).unwrap_or_default(),
        owner: allocation.owner.name.clone(),
        nodes: allocation.nodes().map(ToString::to_string).collect(),
        nodes_requested: spec.nodes,
        nodes_requested_max: spec.nodes_max.unwrap_or_default(),
        ranks: spec.launch.ranks,
        topology: crate::spec::topology_name(&spec.constraints),
        tasks_per_node: spec.tasks_per_node,
        exit_code: ended.and_then(|reason| reason.exit_code()),
        requeue_count: allocation.requeue_count,
        walltime_seconds: spec.walltime.map_or(0, |time| time.as_secs()),
        submitted_at_ms: allocation.submitted_at.0,
        claimed_at_ms: ms(allocation.claimed_at),
        started_at_ms: ms(allocation.started_at),
        ended_at_ms: ms(allocation.ended_at),
        tenant: spec.tenant.clone(),
        vcluster: spec.vcluster.clone(),
        uenv,
        uenv_sha256,
        epoch: allocation.epoch.0,
        share: spec.share.as_ref().map(crate::spec::amount),
        entry_exit_code: None,
        connectivity: crate::spec::connectivity::from_model(&spec.connectivity),
        vni: allocation.vni,
        network_note: String::new(),
        on_isolation: spec.on_isolation.name().to_owned(),
        isolation_note: String::new(),
        checkpoint: allocation.checkpoint.as_ref().map(|c| v1::CheckpointRef {
            id: c.id.to_string(),
            epoch: c.epoch.0,
            step: c.step,
            bytes: c.bytes,
        }),
        preempted_count: allocation.preempted_count,
        preemption: allocation.preemption.as_ref().map(ToString::to_string).unwrap_or_default(),
        held: allocation.held,
        telemetry: allocation.telemetry.as_ref().map(ToString::to_string).unwrap_or_default(),
        abort_reason: ended.and_then(EndReason::abort_reason).unwrap_or_default(),
        status_message: String::new(),
        queue_position: 0,
        expected_start_ms: None,
        class_in_queue: None,
        preemption_class: Some(spec.preemption_class.into()),
        score: None,
        usage_nodes: allocation.usage.as_deref().map_or(0, |usage| usage.nodes),
        memory_peak_bytes: allocation.usage.as_deref().and_then(|usage| usage.memory_peak_bytes),
        cpu_ms: allocation.usage.as_deref().and_then(|usage| usage.cpu_ms),
        dependencies: Vec::new(),
        dag: allocation.dag.as_deref().map(|of| of.dag.to_string()).unwrap_or_default(),
        dag_step: allocation.dag.as_deref().map(|of| of.name.clone()).unwrap_or_default(),
        project: spec.project.clone(),
        version: allocation.version(),
        tags: spec.tags.clone().into_iter().collect(),
        task_group: group(allocation).map(listed_tasks).unwrap_or_default(),
        tasks: None,
        lane_of: allocation.lane.map(|lane| lane.group.to_string()).unwrap_or_default(),
        lane_number: allocation.lane.map_or(0, |lane| lane.number),
        replica_of: allocation.replica.as_deref().map(|replica| replica.service.to_string()).unwrap_or_default(),
        replica_number: allocation.replica.as_deref().map_or(0, |replica| replica.number),
        scaling: spec.scaling.as_deref().filter(|_| allocation.is_scaled_service()).map(crate::spec::scaling_to_proto),
        scaling_state: allocation.scaling.as_deref().map(scaling_state),
        command: Vec::new(),
        working_dir: String::new(),
        script: String::new(),
        attempts: allocation.attempts.iter().map(attempt).collect(),
        attempt: allocation.attempt_number(),
        number: allocation.number,
        comment: spec.comment.clone(),
        nice: spec.nice,
        timing: spec.timing.as_deref().map(crate::spec::timing_to_proto),
        nodelist: hostlist::fold(&spec.constraints.nodes),
        exclude: hostlist::fold(&spec.constraints.excluded),
        features: features(&spec.constraints),
        output_files: None,
        submit_dir: String::new(),
        mail: None,
        reservation: spec.reservation.clone().unwrap_or_default(),
    }
}

fn scaling_state(state: &ScalingState) -> v1::ScalingState {
    let ScalingState { wanted, waiting, running, serving: _, leaving, reading, change, alternations, early_ends } = state;
    v1::ScalingState {
        wanted: *wanted,
        waiting: *waiting,
        running: *running,
        leaving: *leaving,
        reading: reading.as_ref().map(|reading| {
            let Reading { look, since, value, why, missing } = reading;
            let value = value.map(Amount::as_f64);
            v1::MetricReading { look: look.to_string(), since_ms: since.0, value, why: why.clone(), missing: *missing }
        }),
        change: change.as_ref().map(|change| {
            let ScaleChange { at, from, to, by, value } = change;
            let by = by.clone().unwrap_or_default();
            v1::ScaleChange { at_ms: at.0, from: *from, to: *to, by, value: value.map(Amount::as_f64) }
        }),
        alternations: *alternations,
        early_ends: *early_ends,
    }
}

/// Its tasks, if it is a task group.
fn group(allocation: &Allocation) -> Option<&TaskGroup> {
    allocation.spec.tasks.as_deref().filter(|_| allocation.is_task_group())
}

/// A task group in a list: the first runs of its indices, and the number of tasks if it has more runs.
fn listed_tasks(group: &TaskGroup) -> String {
    match group.indices.runs().get(..RUNS_LISTED_MAX) {
        Some(first) if first.len() < group.indices.runs().len() => {
            let first: Vec<String> = first.iter().map(ToString::to_string).collect();
            format!("{},... ({} tasks)", first.join(","), group.indices.count())
        }
        Some(_) | None => group.to_string(),
    }
}

fn attempt(attempt: &Attempt) -> v1::Attempt {
    v1::Attempt {
        number: attempt.number,
        epoch: attempt.epoch.0,
        nodes: attempt.nodes.clone(),
        claimed_at_ms: attempt.claimed_at.map_or(0, |at| at.0),
        started_at_ms: attempt.started_at.map_or(0, |at| at.0),
        ended_at_ms: attempt.ended_at.0,
        reason: attempt.reason.to_string(),
        by: attempt.by.clone(),
    }
}

/// Adds to an allocation as [`to_proto`] shows it its program, directories, files of output, mail, dependencies and all
/// indices of its tasks, which are too long for lists. A dependency has no state there until its allocation has ended.
pub fn add_details(shown: &mut v1::Allocation, allocation: &Allocation) {
    shown.task_group = group(allocation).map(TaskGroup::to_string).unwrap_or_default();
    shown.working_dir = allocation.spec.working_dir.to_string_lossy().into_owned();
    let spec = &allocation.spec;
    shown.submit_dir = spec.submit_dir.as_ref().unwrap_or(&spec.working_dir).to_string_lossy().into_owned();
    shown.output_files = spec.output_files.as_deref().map(crate::spec::output_files::from_model);
    shown.mail = allocation.spec.mail.as_deref().map(crate::spec::mail_to_proto);
    let predecessor = allocation.dependencies.as_ref().and_then(|all| all.predecessor).filter(|_| !allocation.state.is_terminal());
    let parents = allocation.dependencies.iter().flat_map(|all| &all.parents).map(dependency);
    shown.dependencies = parents.chain(predecessor.map(|on| of_singleton(on, &allocation.spec.name))).collect();
    match &allocation.spec.entrypoint {
        Entrypoint::Script { text, args } => {
            shown.script = text.to_string();
            shown.command.clone_from(args);
        }
        Entrypoint::Command { argv } => shown.command.clone_from(argv),
    }
}

fn dependency(parent: &Parent) -> v1::DependencyStatus {
    v1::DependencyStatus {
        id: parent.on.to_string(),
        name: parent.name.clone(),
        condition: parent.condition.to_string(),
        state: parent.state.ended().map(|state| state.to_string()).unwrap_or_default(),
        met: parent.is_met(),
    }
}

/// What a singleton waits for.
fn of_singleton(predecessor: AllocationId, name: &str) -> v1::DependencyStatus {
    let (id, name, condition) = (predecessor.to_string(), name.to_owned(), SINGLETON.to_owned());
    v1::DependencyStatus { id, name, condition, state: String::new(), met: false }
}

/// The state with this name, in upper or lower case: `Running`, `running`.
///
/// # Errors
/// [`UnknownState`] lists the valid names.
pub fn state_from_name(name: &str) -> Result<AllocationState, UnknownState> {
    let known = STATES.into_iter().find(|state| state.name().eq_ignore_ascii_case(name));
    known.ok_or_else(|| UnknownState(name.chars().take(40).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::scaling::Look;
    use lattice_model::{
        AllocationSpec, Dependencies, DependencyCondition, Drain, Epoch, LaneOf, MemoryKill, ParentState, Principal, ReplicaOf, Revision,
        Scaling,
    };

    fn allocation(state: AllocationState, reason: Option<EndReason>) -> Allocation {
        let spec = v1::AllocationSpec {
            name: "a".into(),
            resources: Some(v1::ResourceRequest { nodes: 2, ..Default::default() }),
            lifecycle: Some(v1::Lifecycle { walltime_seconds: 60, ..Default::default() }),
            entrypoint: Some(v1::Entrypoint {
                what: Some(v1::entrypoint::What::Command(v1::entrypoint::Command { argv: vec!["true".into()] })),
            }),
            working_dir: "/".into(),
            ..Default::default()
        };
        let id = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        let owner = Principal { name: "ada".into(), uid: 1000, gid: 1000, groups: vec![] };
        Allocation {
            state,
            reason,
            started_at: Some(Timestamp(7)),
            epoch: Epoch(3),
            requeue_count: 1,
            revision: Revision(9),
            ..Allocation::submitted(id, crate::spec::to_model(&spec).unwrap(), owner, Timestamp(5))
        }
    }

    fn in_full(allocation: &Allocation) -> v1::Allocation {
        let mut shown = to_proto(allocation);
        add_details(&mut shown, allocation);
        shown
    }

    #[test]
    fn an_exit_code_is_shown_only_after_the_end() {
        let failed = to_proto(&allocation(AllocationState::Failed, Some(EndReason::Exited { code: 7 })));
        assert_eq!((failed.state.as_str(), failed.reason.as_str(), failed.exit_code), ("Failed", "exit_code 7", Some(7)));
        let requeued = to_proto(&allocation(AllocationState::Pending, Some(EndReason::Exited { code: 7 })));
        assert_eq!((requeued.reason.as_str(), requeued.exit_code), ("exit_code 7", None));
        let over = to_proto(&allocation(AllocationState::Failed, Some(EndReason::WalltimeExceeded)));
        assert_eq!((over.reason.as_str(), over.exit_code), ("walltime_exceeded", None));
        let full = in_full(&allocation(AllocationState::Running, None));
        assert_eq!((full.command, full.working_dir.as_str(), full.script.as_str()), (vec!["true".to_owned()], "/", ""));
        assert_eq!((full.submit_dir.as_str(), full.output_files), ("/", None));
        assert_eq!((failed.submitted_at_ms, failed.claimed_at_ms, failed.started_at_ms, failed.nodes_requested), (5, 0, 7, 2));
    }

    #[test]
    fn why_a_launch_was_ended_is_shown_as_its_head_reported_it() {
        let shown = |state, reason| to_proto(&allocation(state, Some(reason))).abort_reason;
        let aborted = || EndReason::LaunchAborted { code: 139, why: "rank 3 on n2 was killed by signal 11".into() };
        assert_eq!(shown(AllocationState::Failed, aborted()), "rank 3 on n2 was killed by signal 11");
        assert_eq!(shown(AllocationState::Pending, aborted()), "", "it begins again");
        let kill = |launch| MemoryKill { launch, whole: true, had_bytes: None, limit_bytes: Some(1 << 20) };
        let killed = |launch| shown(AllocationState::Failed, EndReason::OutOfMemory { node: "n2".parse().unwrap(), kill: kill(launch) });
        assert_eq!(killed(1), "out of memory on n2: launch 1 was killed: it wanted more memory, the allocation's limit is 1 MiB");
        assert_eq!((killed(0), shown(AllocationState::Failed, EndReason::Exited { code: 3 })), Default::default());
    }

    #[test]
    fn each_dependency_is_shown_with_what_is_known_of_it() {
        let parent = |number: u128, condition, state| Parent {
            on: lattice_model::AllocationId(uuid::Uuid::from_u128(number)),
            condition,
            name: format!("job{number}"),
            asked_for_it: false,
            output: None,
            state,
        };
        let parents = vec![
            parent(1, DependencyCondition::Success, ParentState::Ended(AllocationState::Completed)),
            parent(2, DependencyCondition::Mutex, ParentState::HasNodes),
            parent(3, DependencyCondition::AfterDelay { seconds: 90 }, ParentState::Delayed { until: Timestamp(8), begun: true }),
        ];
        let mut waits = allocation(AllocationState::Pending, None);
        waits.dependencies = Some(Box::new(Dependencies::new(parents, Timestamp(7))));
        let shown = |number: u128, condition: &str, state: &str, met| v1::DependencyStatus {
            id: uuid::Uuid::from_u128(number).to_string(),
            name: format!("job{number}"),
            condition: condition.into(),
            state: state.into(),
            met,
        };
        let wanted = [shown(1, "success", "Completed", true), shown(2, "mutex", "", false), shown(3, "after+90s", "", false)];
        assert_eq!(in_full(&waits).dependencies, wanted);
        assert_eq!(to_proto(&waits).dependencies, []);
    }

    #[test]
    fn a_task_group_runs_from_its_first_lane_on_and_a_lane_names_its_group() {
        let of = |text: &str, started_at| {
            let mut group = allocation(AllocationState::Pending, None);
            let spec = AllocationSpec { tasks: Some(Box::new(TaskGroup::parse(text).unwrap())), ..AllocationSpec::clone(&group.spec) };
            (group.spec, group.started_at) = (spec.into(), started_at);
            group
        };
        let shown = |group: &Allocation| (to_proto(group).state, to_proto(group).task_group);
        assert_eq!(shown(&of("0-99%20", None)), ("Pending".to_owned(), "0-99%20".to_owned()));
        let mut runs = of("0-99%20", Some(Timestamp(7)));
        assert_eq!(shown(&runs), ("Running".to_owned(), "0-99%20".to_owned()));
        assert_eq!(shown(&allocation(AllocationState::Running, None)), ("Running".to_owned(), String::new()));
        let sparse = of("0,2,5,9,14,20,27,35,44-46%3", None);
        assert_eq!(to_proto(&sparse).task_group, "0,2,5,9,14,20,27,35,... (11 tasks)");
        assert_eq!(in_full(&sparse).task_group, "0,2,5,9,14,20,27,35,44-46%3");
        let group = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e99";
        runs.lane = Some(LaneOf { group: group.parse().unwrap(), number: 3, queued_at: Timestamp(5), revocations: 1 });
        let lane = to_proto(&runs);
        assert_eq!((lane.state.as_str(), lane.task_group.as_str()), ("Pending", ""), "its own state");
        assert_eq!((lane.lane_of.as_str(), lane.lane_number), (group, 3));
    }

    #[test]
    fn a_service_shows_how_it_scales_and_a_replica_names_its_service() {
        let mut service = allocation(AllocationState::Pending, None);
        let scaling = Scaling { replicas_min: 2, replicas_max: 6, policy: None, drain: Drain::default() };
        service.spec = AllocationSpec { scaling: Some(Box::new(scaling)), ..AllocationSpec::clone(&service.spec) }.into();
        let reading = Reading { look: Look::Above, since: Timestamp(7), value: Some(Amount(910_000)), why: String::new(), missing: 0 };
        let change = ScaleChange { at: Timestamp(6), from: 2, to: 3, by: Some("ada".into()), value: None };
        let (reading, change) = (Some(reading), Some(change));
        service.scaling = Some(Box::new(ScalingState { wanted: 3, running: 2, waiting: 1, reading, change, ..ScalingState::default() }));
        let shown = to_proto(&service);
        assert_eq!((shown.state.as_str(), shown.scaling.map(|s| (s.replicas_min, s.replicas_max))), ("Running", Some((2, 6))));
        let state = shown.scaling_state.unwrap();
        assert_eq!((state.wanted, state.running, state.waiting, state.leaving), (3, 2, 1, 0));
        let reading = state.reading.unwrap();
        assert_eq!((reading.look.as_str(), reading.value, reading.since_ms), ("above", Some(0.91), 7));
        assert_eq!(state.change, Some(v1::ScaleChange { at_ms: 6, from: 2, to: 3, by: "ada".into(), value: None }));
        let of = ReplicaOf { service: service.id, number: 3 };
        let replica = to_proto(&Allocation { replica: Some(Box::new(of)), scaling: None, ..service.clone() });
        assert_eq!((replica.replica_of, replica.replica_number, replica.state.as_str()), (service.id.to_string(), 3, "Pending"));
        assert_eq!((replica.scaling, replica.scaling_state), (None, None));
    }

    #[test]
    fn states_are_found_by_name() {
        for state in STATES {
            assert_eq!(state_from_name(&state.to_string().to_uppercase()), Ok(state));
            assert_eq!(state.to_string(), state.name());
        }
        assert!(state_from_name("runing").is_err());
    }
}
