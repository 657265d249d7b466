//! Compares the estimates with real sizes.

use super::*;
use crate::correspondence::Correspondence;
use crate::ended_place::EndedPlace;
use crate::scaled_services::ServiceReplicas;
use crate::task_groups::{GroupTasks, TaskPlaces};
use lattice_model::claim::{Share, SharePhase};
use lattice_model::data::DataMount;
use lattice_model::layout::Program;
use lattice_model::node::{HoldKind, Leaving, WorkOwner};
use lattice_model::scaling::Look;
use lattice_model::shares::PhaseRun;
use lattice_model::task_group::IndexRun;
use lattice_model::telemetry::TelemetryMode;
use lattice_model::{
    AllocationId, AllocationState, Amount, CheckpointId, DayUse, DependencyCondition, Epoch, Exposed, LocalDomain, NodeId, NodeState,
    ParentState, PreemptCause, Profile, Resources, Revision, SchedulerKind, TaskIndices, TaskOutcome, TaskSet, Timestamp, Used,
    test_builders,
};
use serde::Serialize;
use std::mem::size_of;
use std::time::Duration;
use uuid::Uuid;

/// Longer than everything that a fixed part could cover.
const LONG: usize = 4000;

fn long() -> String {
    "x".repeat(LONG)
}

fn long_name() -> NodeId {
    "n".repeat(63).parse().unwrap()
}

fn serialized(record: &impl Serialize) -> usize {
    rmp_serde::to_vec(record).unwrap().len()
}

#[test]
fn the_constants_are_not_below_the_real_sizes() {
    let arc = 2 * size_of::<usize>();
    // The entries in the maps of allocations and job numbers, and in three sets of ended allocations, half of them
    // empty.
    let numbered = size_of::<(u64, AllocationId)>();
    let entries = 2 * (size_of::<AllocationId>() + size_of::<usize>() + numbered + 3 * size_of::<EndedPlace>());
    for (what, estimate, real) in [
        ("allocation", ALLOCATION_BYTES, size_of::<Allocation>() + size_of::<AllocationSpec>() + 2 * arc + entries),
        ("checkpoint", CHECKPOINT_BYTES, size_of::<CheckpointRef>() + BLOCK_BYTES),
        ("preemption", PREEMPTION_BYTES, size_of::<Preemption>() + BLOCK_BYTES),
        ("telemetry order", TELEMETRY_ORDER_BYTES, size_of::<TelemetryOrder>() + BLOCK_BYTES),
        ("submitted values", SUBMITTED_BYTES, size_of::<SubmittedValues>() + BLOCK_BYTES),
        ("submitted place", SUBMITTED_PLACE_BYTES, size_of::<SubmittedPlace>() + BLOCK_BYTES),
        ("bounds in time", TIMING_BYTES, size_of::<lattice_model::Timing>() + BLOCK_BYTES),
        ("mail", MAIL_BYTES, size_of::<Mail>() + BLOCK_BYTES),
        ("usage", USAGE_BYTES, size_of::<WorkUsage>() + BLOCK_BYTES),
        ("step of a DAG", STEP_OF_BYTES, size_of::<StepOf>() + BLOCK_BYTES),
        ("DAG", DAG_BYTES, size_of::<Dag>() + arc + 2 * (size_of::<lattice_model::DagId>() + size_of::<usize>())),
        ("step", STEP_BYTES, size_of::<Step>()),
        ("dependencies", DEPENDENCIES_BYTES, size_of::<Dependencies>() + 2 * BLOCK_BYTES),
        // Half of the entries in the index of dependents are empty.
        ("parent", PARENT_BYTES, size_of::<Parent>() + 2 * size_of::<(AllocationId, AllocationId)>()),
        ("output place", OUTPUT_PLACE_BYTES, size_of::<OutputPlace>() + BLOCK_BYTES),
        ("dependency", DEPENDENCY_BYTES, size_of::<Dependency>()),
        ("task group", TASK_GROUP_BYTES, size_of::<TaskGroup>() + 3 * BLOCK_BYTES),
        ("tasks of a group", GROUP_TASKS_BYTES, size_of::<GroupTasks>() + arc + 2 * size_of::<(AllocationId, usize)>()),
        ("scaling", SCALING_BYTES, size_of::<Scaling>() + BLOCK_BYTES),
        ("replica", REPLICA_BYTES, size_of::<ReplicaOf>() + BLOCK_BYTES),
        (
            "scaled service",
            SCALED_SERVICE_BYTES,
            size_of::<ScalingState>() + BLOCK_BYTES + size_of::<ServiceReplicas>() + arc + 2 * size_of::<(AllocationId, usize)>(),
        ),
        ("reason", REASON_BYTES, size_of::<EndReason>() + BLOCK_BYTES),
        ("run of indices", INDEX_RUN_BYTES, size_of::<IndexRun>() + size_of::<u32>()),
        ("uenv", IMAGE_BYTES, size_of::<Image>() + BLOCK_BYTES),
        ("probe", PROBE_BYTES, size_of::<LivenessProbe>() + BLOCK_BYTES),
        ("removed node", LISTED_BYTES, size_of::<NodeId>() + BLOCK_BYTES),
        // With its place in the index by name.
        ("share", SHARE_BYTES, size_of::<(NodeId, Resources)>() + size_of::<u32>() + 63 + BLOCK_BYTES),
        ("ended work", ENDED_WORK_BYTES, size_of::<EndedWork>() + arc + 2 * size_of::<(u64, usize)>()),
        ("run of phases", PHASE_RUN_BYTES, size_of::<PhaseRun>()),
        ("attempt", ATTEMPT_BYTES, size_of::<Attempt>()),
        ("exclusion", EXCLUSION_BYTES, size_of::<Exclusion>()),
        ("node", NODE_BYTES, size_of::<Node>() + arc),
        ("hold", HOLD_BYTES, size_of::<Hold>()),
        ("leaving", LEAVING_BYTES, size_of::<Leaving>()),
        ("memory domain", LOCAL_DOMAIN_BYTES, size_of::<LocalDomain>()),
        ("tenant", SMALL_RECORD_BYTES, size_of::<(String, usize)>() + size_of::<Tenant>() + arc),
        ("vCluster", SMALL_RECORD_BYTES, size_of::<(String, usize)>() + size_of::<VCluster>() + arc),
    ] {
        assert!(estimate >= real, "{what}: {estimate} bytes are estimated, it has {real}");
        assert!(estimate <= real + real / 2 + 128, "{what}: {estimate} bytes are estimated, it only has {real}");
    }
}

fn unmet(name: String) -> EndReason {
    let (on, condition) = (AllocationId(Uuid::from_u128(4)), DependencyCondition::Success);
    EndReason::DependencyUnmet { on, name, condition, state: AllocationState::Failed }
}

/// A long text or list in each place that has one.
fn long_allocations() -> Vec<(&'static str, Allocation)> {
    let plain = || test_builders::allocation(AllocationId(Uuid::from_u128(1)));
    let mut all: Vec<(&'static str, Allocation)> = Vec::new();
    let mut with = |what, change: &dyn Fn(&mut Allocation)| {
        let mut allocation = plain();
        change(&mut allocation);
        all.push((what, allocation));
    };
    with("owner", &|a| a.owner.name = long());
    with("groups", &|a| a.owner.groups = vec![7; LONG]);
    let tags = (0..500).map(|number| (format!("name{number}"), "1".to_owned())).collect();
    let submitted = SubmittedValues {
        name: long(),
        walltime: Some(Duration::from_secs(1)),
        preemption_class: 5,
        project: long(),
        tags,
        scaling: None,
        changes: u64::MAX,
        place: None,
    };
    with("submitted name and tags", &|a| a.submitted_values = Some(Box::new(submitted.clone())));
    let resources = Resources { cores: 1, memory_bytes: 1 << 40, gpus: 1 };
    let share = |number: usize| Share { node: format!("{number:063}").parse().unwrap(), resources, phase: SharePhase::Prepared };
    with("shares", &|a| a.shares = (0..200).map(share).collect());
    let order = |by: String, reason: String, failed| Preemption {
        id: CheckpointId(Uuid::from_u128(2)),
        by,
        reason,
        cause: PreemptCause::Request,
        deadline_ms: 1,
        hold: false,
        failed,
    };
    with("preemption, by", &|a| a.preemption = Some(Box::new(order(long(), String::new(), None))));
    with("preemption, reason", &|a| a.preemption = Some(Box::new(order(String::new(), long(), None))));
    with("preemption, failed", &|a| a.preemption = Some(Box::new(order(String::new(), String::new(), Some(long())))));
    let parent = |number| Parent {
        on: AllocationId(Uuid::from_u128(number)),
        condition: DependencyCondition::Mutex,
        name: "x".repeat(40),
        asked_for_it: true,
        output: Some(Box::new(OutputPlace { name: "x".repeat(40), tenant: "x".repeat(40), project: "x".repeat(40) })),
        state: ParentState::Leaving(AllocationState::Completed),
    };
    with("dependencies", &|a| a.dependencies = Some(Box::new(Dependencies::new((0..256).map(parent).collect(), Timestamp(1)))));
    let place = StepOf { dag: lattice_model::DagId(Uuid::from_u128(5)), number: 0, name: long() };
    with("step of a DAG", &|a| a.dag = Some(Box::new(place.clone())));
    let found = Reading { look: Look::Missing, since: Timestamp(1), value: None, why: long(), missing: 3 };
    with("scaling, why", &|a| a.scaling = Some(Box::new(ScalingState { reading: Some(found.clone()), ..ScalingState::default() })));
    let change = ScaleChange { at: Timestamp(1), from: 1, to: 2, by: Some(long()), value: None };
    with("scaling, by", &|a| a.scaling = Some(Box::new(ScalingState { change: Some(change.clone()), ..ScalingState::default() })));
    let telemetry =
        TelemetryOrder { id: Uuid::from_u128(3), mode: TelemetryMode::Debug, by: long(), since: Timestamp(1), until: Some(Timestamp(2)) };
    with("telemetry", &|a| a.telemetry = Some(Box::new(telemetry.clone())));
    with("excluded", &|a| {
        a.excluded = vec![Exclusion { node: long_name(), why: long(), failures: 1, until: None }];
    });
    let node = long_name;
    for (what, reason) in [
        ("cancelled", EndReason::Cancelled { by: long() }),
        ("prologue", EndReason::PrologueFailed { node: node(), why: long() }),
        ("lost", EndReason::NodeLost { node: node(), why: long() }),
        ("aborted", EndReason::LaunchAborted { code: 1, why: long() }),
        ("probe", EndReason::ProbeFailed { node: node(), why: long() }),
        ("preempted, why", EndReason::Preempted { by: long(), why: long(), saved: Err(NotSaved(long())) }),
        ("requeued", EndReason::Requeued { by: long(), why: long() }),
        ("dependency", unmet(long())),
    ] {
        with(what, &|a| a.reason = Some(reason.clone()));
        let attempt = Attempt {
            number: 1,
            epoch: Epoch(1),
            head: node(),
            nodes: long(),
            claimed_at: Some(Timestamp(1)),
            started_at: Some(Timestamp(1)),
            ended_at: Timestamp(2),
            reason: reason.clone(),
            by: long(),
        };
        with("attempts", &|a| a.attempts = vec![attempt.clone(); 8]);
    }
    all.extend(long_specs().into_iter().map(|(what, spec)| (what, Allocation::submitted(plain().id, spec, plain().owner, Timestamp(1)))));
    all
}

fn long_specs() -> Vec<(&'static str, AllocationSpec)> {
    let mut all: Vec<(&'static str, AllocationSpec)> = Vec::new();
    let mut with = |what, change: &dyn Fn(&mut AllocationSpec)| {
        let mut spec = test_builders::spec();
        change(&mut spec);
        all.push((what, spec));
    };
    let many = || (0..500).map(|number| format!("name{number}"));
    with("name", &|s| s.name = long());
    with("tenant", &|s| s.tenant = long());
    with("project", &|s| s.project = long());
    with("vcluster", &|s| s.vcluster = long());
    with("tags", &|s| s.tags = many().map(|name| (name, "1".to_owned())).collect());
    with("env", &|s| s.env = many().map(|name| (name, long())).collect());
    with("features", &|s| s.constraints.features = many().collect());
    with("nodes", &|s| s.constraints.nodes = many().map(|name| name.parse().unwrap()).collect());
    with("argv", &|s| s.entrypoint = Entrypoint::Command { argv: many().collect() });
    with("args", &|s| s.entrypoint = Entrypoint::Script { text: "#!".into(), args: many().collect() });
    with("script", &|s| s.entrypoint = Entrypoint::Script { text: long().into(), args: vec![] });
    with("uenv", &|s| s.uenv = Some(Box::new(Image { path: long().into(), sha256: long() })));
    with("working_dir", &|s| s.working_dir = long().into());
    with("submit_dir", &|s| s.submit_dir = Some(long().into()));
    with("submit_host", &|s| s.submit_host = long());
    with("reservation", &|s| s.reservation = Some(long()));
    with("mounts", &|s| s.data.mounts = vec![DataMount { source: long().into(), target: long().into(), read_only: true }; 64]);
    let second = Duration::from_secs(1);
    let probe = LivenessProbe {
        check: ProbeCheck::Http { path: long() },
        port: 1,
        initial_delay: second,
        period: second,
        timeout: second,
        failures_max: 1,
    };
    with("probe", &|s| s.liveness_probe = Some(Box::new(probe.clone())));
    with("domain", &|s| s.connectivity.network_domain = long());
    let on = |number| Dependency { on: AllocationId(Uuid::from_u128(number)), condition: DependencyCondition::Success };
    with("depends_on", &|s| s.depends_on = (0..256).map(on).collect());
    with("tasks", &|s| {
        let runs = (0..500).map(|number| IndexRun { first: number * 9, last: number * 9 + 4, step: 1 });
        let indices = TaskIndices::new(runs).unwrap();
        s.tasks = Some(Box::new(TaskGroup { indices, concurrent_max: Some(1), failures_max: Some(1) }));
    });
    with("exposed", &|s| s.connectivity.expose = vec![Exposed { name: long(), port: 1, protocol: long() }; 9]);
    with("distribution", &|s| s.launch.shape.distribution = Distribution::Explicit(vec![(1, 1); LONG]));
    with("programs", &|s| s.launch.shape.programs = vec![Program { ranks: 1, argv: many().collect() }; 3]);
    all
}

/// A serialised record has every field, also one that is added later. Without the names of the
/// fields, and with small numbers, it is smaller than the record in memory.
#[test]
fn no_text_and_no_list_of_an_allocation_is_left_out() {
    let plain = test_builders::allocation(AllocationId(Uuid::from_u128(1)));
    assert!(allocation_bytes(&plain) >= serialized(&plain));
    for (what, allocation) in long_allocations() {
        let (estimate, real) = (allocation_bytes(&allocation), serialized(&allocation));
        assert!(real > serialized(&plain) + LONG / 2, "{what}: it is not long");
        assert!(estimate >= real, "{what}: {estimate} bytes are estimated, it has {real} in a message");
        // Texts and places take at most 20 times the bytes that short ones have in a message.
        assert!(estimate <= ALLOCATION_BYTES + 20 * real, "{what}: {estimate} bytes are estimated, it has {real} in a message");
    }
}

/// A metric is shorter than the long texts of the test above.
#[test]
fn each_matcher_of_a_metric_is_counted() {
    let service = |metric: &str| {
        let policy = ScalePolicy::new(metric.parse().unwrap(), Amount(1));
        let scaling = Scaling { replicas_min: 1, replicas_max: 2, policy: Some(policy), drain: Drain::default() };
        let spec = AllocationSpec { scaling: Some(Box::new(scaling)), ..test_builders::spec() };
        let plain = submitted_bytes(&SubmittedValues::of(&test_builders::spec()));
        assert_eq!(submitted_bytes(&SubmittedValues::of(&spec)) - plain, spec_bytes(&spec) - spec_bytes(&test_builders::spec()));
        spec_bytes(&spec)
    };
    let matchers: Vec<String> = (0..50).map(|number| format!("l{number}=\"v\"")).collect();
    let real = 50 * (size_of::<(String, &str, String)>() + 2 * BLOCK_BYTES + 4);
    let counted = service(&format!("q{{{}}}", matchers.join(","))) - service("q");
    assert!((real..3 * real).contains(&counted), "{counted} bytes are estimated, it has {real}");
    assert!(service("q") > service("queue_depth"));
}

#[test]
fn no_text_and_no_list_of_a_node_is_left_out() {
    let plain = || test_builders::node("n1", NodeState::Ready);
    assert!(node_bytes(&plain()) >= serialized(&plain()));
    let components = || -> Components { (0..32).map(|number| (format!("component{number}"), "x".repeat(160))).collect() };
    let conforms = Conformance::first(components());
    let hold = Hold::new(HoldKind::Drain, &long(), &long(), Timestamp(1));
    let more_reasons = vec![HoldReason { by: long(), reason: long() }; 5];
    let leaving = Leaving {
        allocation: AllocationId(Uuid::from_u128(1)),
        epoch: Epoch(u64::MAX),
        resources: Resources { cores: u32::MAX, memory_bytes: u64::MAX, gpus: u32::MAX },
        fenced: true,
        owner: Some(WorkOwner { uid: u32::MAX, tenant: long(), is_exclusive: true }),
    };
    let drift = Drift { since: Timestamp(1), expected: components(), sensitive: true, overdue: false };
    let domain = LocalDomain { cores: u32::MAX, gpus: u32::MAX };
    let addresses = |mesh, gossip| NodeAddresses { mesh, gossip };
    for (what, node) in [
        ("id", Node { id: long_name(), ..plain() }),
        ("mesh", Node { addresses: addresses(long(), String::new()), ..plain() }),
        ("gossip", Node { addresses: addresses(String::new(), long()), ..plain() }),
        ("reason", Node { state_reason: long(), ..plain() }),
        ("unenforced_limits", Node { unenforced_limits: vec![long(); 3], ..plain() }),
        ("features", Node { features: vec!["x".to_owned(); LONG], ..plain() }),
        ("domains", Node { locality: Locality { domains: vec![domain; 64], ..Locality::default() }, ..plain() }),
        ("gpu_links", Node { locality: Locality { gpu_links: vec![100; LONG], ..Locality::default() }, ..plain() }),
        ("holds", Node { holds: vec![Hold { more_reasons, ..hold }], ..plain() }),
        ("leaving", Node { leaving: vec![leaving; 300], ..plain() }),
        ("relay_node", Node { relay_node: Some(long_name()), ..plain() }),
        ("home", Node { home: long(), ..plain() }),
        ("components", Node { conformance: Some(conforms.clone()), ..plain() }),
        ("expected components", Node { conformance: Some(Conformance { drift: Some(drift), ..conforms }), ..plain() }),
        ("wipe", Node { wipe: Some(Wipe { order: 1, failed: Some(long()) }), ..plain() }),
    ] {
        let (estimate, more) = (node_bytes(&node), serialized(&node) - serialized(&plain()));
        // A long text has up to four bytes of length in a message.
        assert!(
            more > 50 && estimate + 4 >= node_bytes(&plain()) + more,
            "{what}: {estimate} bytes are estimated, {more} more are in a message"
        );
    }
}

#[test]
fn no_range_of_tasks_is_left_out() {
    let ranges = |many: u32| TaskSet::from((0..many).map(|number| (number * 3, number * 3 + 1)).collect::<Vec<_>>());
    let places: Vec<(u32, u32, u32)> = (0..800).map(|number| (number * 3, number * 3 + 1, number)).collect();
    let plain = serialized(&GroupTasks::default());
    let awaiting = |tasks: &TaskSet| {
        let mut all = Correspondence::default();
        all.await_tasks(AllocationId(Uuid::from_u128(1)), tasks, tasks);
        all
    };
    for (what, tasks) in [
        ("ended", GroupTasks { ended: [(TaskOutcome::Exited(1), ranges(900))].into(), ..GroupTasks::default() }),
        ("waiting", GroupTasks { waiting: ranges(900), ..GroupTasks::default() }),
        ("restarted", GroupTasks { restarted: [(1, ranges(900))].into(), ..GroupTasks::default() }),
        ("placed", GroupTasks { placed: TaskPlaces::from(places), ..GroupTasks::default() }),
        ("earlier", GroupTasks { earlier: (0..900).map(|lane| (lane, ranges(1))).collect(), ..GroupTasks::default() }),
        ("stopped", GroupTasks { stopped: Some(Box::new(unmet(long()))), ..GroupTasks::default() }),
        ("awaited", GroupTasks { correspondence: Some(Box::new(awaiting(&ranges(900)))), ..GroupTasks::default() }),
        ("cancelled_by", GroupTasks { cancelled_by: Some(long()), ..GroupTasks::default() }),
    ] {
        let (estimate, real) = (tasks.bytes(), serialized(&tasks));
        assert!(real > plain + LONG / 2, "{what}: it is not long");
        assert!(estimate >= real, "{what}: {estimate} bytes are estimated, it has {real} in a message");
    }
}

#[test]
fn no_text_of_a_small_record_is_left_out() {
    let tenant = Tenant {
        name: long(),
        max_nodes: Some(u32::MAX),
        max_concurrent_allocations: Some(u32::MAX),
        fair_share_target_ppm: Some(u32::MAX),
        burst_allowance_percent: Some(u32::MAX),
        gpu_hours_budget: Some(u64::MAX),
        node_hours_budget: Some(u64::MAX),
        class_max: Some(u8::MAX),
        since: Timestamp(u64::MAX),
        revision: Revision(u64::MAX),
    };
    let used = Used { node_ms: u64::MAX, gpu_ms: u64::MAX };
    let days: Vec<DayUse> = (0..366).map(|day| DayUse { day: u32::MAX - day, used }).collect();
    let vcluster = VCluster {
        name: long(),
        scheduler: SchedulerKind::InteractiveFifo,
        tenant: long(),
        nodes: 1,
        weights: Some(Profile::HpcBatch.weights()),
        cycle_interval_ms: 1,
        borrows: false,
        lend_ms: None,
        created_by: long(),
        created_at: Timestamp(1),
        revision: Revision(1),
    };
    let name = long();
    let depends_on = vec![Dependency { on: AllocationId(Uuid::from_u128(1)), condition: DependencyCondition::Success }; 256];
    let step = Step { name: long(), allocation: AllocationId(Uuid::from_u128(2)), depends_on, is_caught: false, end: None };
    let dag = Dag {
        id: lattice_model::DagId(Uuid::from_u128(3)),
        name: long(),
        owner: Principal { name: long(), uid: 1, gid: 1, groups: vec![7; 64] },
        submitted_at: Timestamp(1),
        digest: [255; 32],
        steps: vec![step; 3],
        records: 3,
    };
    for (what, estimate, real) in [
        ("DAG", dag_bytes(&dag), serialized(&dag)),
        ("tenant", tenant_bytes(&name, Some(&tenant)), serialized(&(&name, &tenant))),
        ("vCluster", vcluster_bytes(&name, Some(&vcluster)), serialized(&(&name, &vcluster))),
        ("a tenant's use", tenant_use_bytes(&name, &days), serialized(&(&name, &days))),
        ("a deleted tenant", tenant_bytes(&name, None), serialized(&name)),
        ("a deleted vCluster", vcluster_bytes(&name, None), serialized(&name)),
    ] {
        assert!(estimate >= real, "{what}: {estimate} bytes are estimated, it has {real} in a message");
    }
}

#[test]
fn no_text_of_ended_work_is_left_out() {
    let plain = EndedWork {
        sequence: u64::MAX,
        allocation: AllocationId(Uuid::from_u128(1)),
        job: u64::MAX,
        name: String::new(),
        tenant: String::new(),
        project: String::new(),
        vcluster: String::new(),
        user: String::new(),
        uid: u32::MAX,
        tags: [].into(),
        state: AllocationState::Completed,
        reason: String::new(),
        exit_code: Some(i32::MIN),
        nodes: String::new(),
        node_count: u32::MAX,
        submitted_at: Timestamp(u64::MAX),
        claimed_at: Some(Timestamp(u64::MAX)),
        started_at: Some(Timestamp(u64::MAX)),
        ended_at: Timestamp(u64::MAX),
        requeue_count: u32::MAX,
        preempted_count: u32::MAX,
        used: Used { node_ms: u64::MAX, gpu_ms: u64::MAX },
        core_ms: u64::MAX,
        part_of: Some(Uuid::from_u128(2)),
        corrects: Some(u64::MAX),
    };
    assert!(ended_work_bytes(&plain) >= serialized(&plain));
    let tags = (0..500).map(|number| (format!("name{number}"), "1".to_owned())).collect();
    for (what, work) in [
        ("name", EndedWork { name: long(), ..plain.clone() }),
        ("tenant", EndedWork { tenant: long(), ..plain.clone() }),
        ("project", EndedWork { project: long(), ..plain.clone() }),
        ("vcluster", EndedWork { vcluster: long(), ..plain.clone() }),
        ("user", EndedWork { user: long(), ..plain.clone() }),
        ("reason", EndedWork { reason: long(), ..plain.clone() }),
        ("nodes", EndedWork { nodes: long(), ..plain.clone() }),
        ("tags", EndedWork { tags, ..plain.clone() }),
    ] {
        let (estimate, real) = (ended_work_bytes(&work), serialized(&work));
        assert!(real > serialized(&plain) + LONG / 2, "{what}: it is not long");
        assert!(estimate >= real, "{what}: {estimate} bytes are estimated, it has {real} in a message");
    }
}
