//! How much memory records take, in bytes.
//!
//! ```text
//!   a record = a constant for its fixed part + its texts and lists, each field by name
//! ```
//!
//! Every function takes its record apart field by field: a new field does not compile before
//! somebody decides how it counts.
//!
//! The sizes of ended allocations decide which records are dropped, and every member must decide the
//! same. So the fixed parts are constants and not `size_of`, which differs between compilers and
//! processors. A test compares the constants with the real sizes. Changing a constant is a change of
//! what commands do, and needs a cluster level.

use lattice_model::attempt::Attempt;
use lattice_model::conformance::{Components, Conformance, Drift};
use lattice_model::dependency::{Dependencies, Dependency, OutputPlace, Parent};
use lattice_model::end_reason::NotSaved;
use lattice_model::ended_work::EndedWork;
use lattice_model::feature_choice::{FeatureChoice, FeatureSet};
use lattice_model::layout::{Distribution, LaunchShape};
use lattice_model::node::{Hold, HoldReason, Leaving, Wipe, WorkOwner};
use lattice_model::probe::{LivenessProbe, ProbeCheck};
use lattice_model::scaling::{Reading, ScaleChange};
use lattice_model::{
    Allocation, AllocationSpec, CheckpointRef, Connectivity, Dag, DayUse, Drain, EndReason, EntryLaunch, Entrypoint, Exclusion, Image,
    Locality, Mail, Node, NodeAddresses, NodeId, OutputFiles, PhasesChange, Preemption, Principal, ReplicaOf, Reservation, ScaleMetric,
    ScalePolicy, Scaling, ScalingState, Step, StepOf, SubmittedPlace, SubmittedValues, TaskGroup, TelemetryOrder, Tenant, VCluster,
    WorkUsage,
};
use std::path::Path;

/// An allocation with its spec, the `Arc`s around both, and its entries in the indexes of
/// allocations.
const ALLOCATION_BYTES: usize = 1912;
/// A share with the name of its node. Not counted one by one: there may be 10,000 of them, and a
/// change of one must not cost the number of all.
const SHARE_BYTES: usize = 144;
/// A finished claim.
const ATTEMPT_BYTES: usize = 320;
/// A node excluded for an allocation.
const EXCLUSION_BYTES: usize = 96;
/// A checkpoint, with its block.
const CHECKPOINT_BYTES: usize = 80;
/// A preemption order, with its block.
const PREEMPTION_BYTES: usize = 144;
/// The dependencies of an allocation, with their block and that of the list.
const DEPENDENCIES_BYTES: usize = 112;
/// An allocation that another depends on: its place in the list, and its entry in the index of dependents.
const PARENT_BYTES: usize = 144;
/// Where the output directory of an allocation is, with its block.
const OUTPUT_PLACE_BYTES: usize = 96;
/// A dependency in a specification.
const DEPENDENCY_BYTES: usize = 32;
/// The task group of a specification, with its block and those of the lists of indices.
const TASK_GROUP_BYTES: usize = 128;
/// A run of indices, with the ordinal of its first one.
const INDEX_RUN_BYTES: usize = 16;
/// The tasks of a group, the `Arc` around them, and their entry in the map.
pub const GROUP_TASKS_BYTES: usize = 448;
/// Why something ended, with its block.
pub const REASON_BYTES: usize = 128;
/// A set of tasks in a map, without its ranges.
pub const TASK_SET_BYTES: usize = 80;
/// A range of tasks in a set, a third of whose places are empty.
pub const TASK_RANGE_BYTES: usize = 16;
/// A range of tasks with the lane that leased it.
pub const TASK_PLACE_BYTES: usize = 24;
/// The scaling of a specification, with its block.
const SCALING_BYTES: usize = 160;
/// A matcher of a metric's labels, with the blocks of its two texts, in a list a part of whose places is empty.
const MATCHER_BYTES: usize = 160;
/// The place of a replica in its service, with its block.
const REPLICA_BYTES: usize = 48;
/// The state of a scaled service, with its block; its replicas, the `Arc` around them, and their entry
/// in the map.
const SCALED_SERVICE_BYTES: usize = 352;
/// An order to measure in more detail, with its block.
const TELEMETRY_ORDER_BYTES: usize = 96;
/// The submitted values of changed fields, with their block.
const SUBMITTED_BYTES: usize = 136;
/// The submitted bounds in time, `nice`, the comment and the reservation, with their block.
const SUBMITTED_PLACE_BYTES: usize = 88;
/// The place of a step in its DAG, with its block.
const STEP_OF_BYTES: usize = 64;
/// A DAG, the `Arc` around it, and its entry in the map.
const DAG_BYTES: usize = 256;
/// A step in the record of its DAG.
const STEP_BYTES: usize = 72;
/// The usage of work, with its block.
const USAGE_BYTES: usize = 64;
/// A record of use, the `Arc` around it, and its entries in the map and in the order.
pub const USAGE_RECORD_BYTES: usize = 320;
/// The use of one day.
pub const USAGE_DAY_BYTES: usize = 40;
/// A software environment, with its block.
const IMAGE_BYTES: usize = 64;
/// A check of the work's health, with its block.
const PROBE_BYTES: usize = 96;
/// The patterns of files, without their texts.
const OUTPUT_FILES_BYTES: usize = 96;
/// Bounds in time.
const TIMING_BYTES: usize = 80;
/// The signal before the end.
const END_WARNING_BYTES: usize = 48;
/// What the mail hook reports, without the events and the name.
const MAIL_BYTES: usize = 80;
/// Alternatives and numbers of nodes with features, with their block.
const FEATURE_CHOICE_BYTES: usize = 112;
/// A set of features in a list, with its number of nodes and the block of the first features.
const FEATURE_SET_BYTES: usize = 336;
/// A change of share phases, with the owner and the list of nodes.
pub const PHASES_CHANGE_BYTES: usize = 176;
/// Consecutive shares in the same phase.
const PHASE_RUN_BYTES: usize = 12;
/// A node and the `Arc` around it.
const NODE_BYTES: usize = 712;
/// A hold of a node.
const HOLD_BYTES: usize = 160;
/// A share that a node has not released.
const LEAVING_BYTES: usize = 96;
/// A memory domain that a node registers.
const LOCAL_DOMAIN_BYTES: usize = 12;
/// A tenant in a change set, with the `Arc` around it.
const TENANT_BYTES: usize = 384;
/// A vCluster, lease or domain in a change set, with the `Arc` around it.
pub const SMALL_RECORD_BYTES: usize = 208;
/// Ended work that waits for accounting, the `Arc` around it, and its entry in the map, half of whose places
/// are empty.
const ENDED_WORK_BYTES: usize = 456;
/// What the allocator adds to a block.
pub const BLOCK_BYTES: usize = 16;
/// A text in a list: the block and the text's place in the list.
const LISTED_BYTES: usize = BLOCK_BYTES + 24;
/// A pair of texts in a map, a third of whose places are empty: two blocks, and the places.
const PAIR_BYTES: usize = 2 * BLOCK_BYTES + 3 * 24;

/// Memory of an allocation with its script.
pub fn allocation_bytes(allocation: &Allocation) -> usize {
    ended_bytes(allocation) + allocation.spec.script().map_or(0, |text| text.len() + BLOCK_BYTES)
}

/// Memory of an allocation without its script, which several may share.
pub fn ended_bytes(allocation: &Allocation) -> usize {
    let Allocation {
        id: _,
        spec,
        submitted_values,
        owner,
        state: _,
        reason,
        submitted_at: _,
        submission: _,
        number: _,
        claimed_at: _,
        started_at: _,
        ended_at: _,
        epoch: _,
        shares,
        vni: _,
        asked_walltime: _,
        mailed_percent: _,
        requeue_count: _,
        quick_requeues: _,
        waits_until: _,
        attempts,
        excluded,
        checkpoint,
        preemption,
        preempted_by: _,
        preempted_count: _,
        held: _,
        dependencies,
        lane: _,
        replica,
        scaling,
        dag,
        telemetry,
        usage,
        revision: _,
    } = allocation;
    let attempts: usize = attempts.iter().map(attempt_bytes).sum();
    let excluded: usize = excluded.iter().map(exclusion_bytes).sum();
    let orders = preemption.as_deref().map_or(0, preemption_bytes) + telemetry.as_deref().map_or(0, order_bytes);
    let checkpoint = checkpoint.as_deref().map_or(0, |_: &CheckpointRef| CHECKPOINT_BYTES);
    let usage = usage.as_deref().map_or(0, |_: &WorkUsage| USAGE_BYTES);
    let reason = reason.as_ref().map_or(0, reason_bytes);
    let submitted = submitted_values.as_deref().map_or(0, submitted_bytes);
    let dependencies = dependencies.as_deref().map_or(0, dependencies_bytes);
    let dag = dag.as_deref().map_or(0, |StepOf { dag: _, number: _, name }| STEP_OF_BYTES + text_bytes(name));
    let replica = replica.as_deref().map_or(0, |ReplicaOf { service: _, number: _ }| REPLICA_BYTES);
    let parts = dag + replica + scaling.as_deref().map_or(0, scaling_state_bytes);
    let lists = shares.len() * SHARE_BYTES + attempts + excluded + dependencies;
    ALLOCATION_BYTES + spec_bytes(spec) + submitted + principal_bytes(owner) + reason + lists + orders + checkpoint + usage + parts
}

/// Memory of ended work that waits for accounting.
pub fn ended_work_bytes(work: &EndedWork) -> usize {
    let EndedWork {
        sequence: _,
        allocation: _,
        job: _,
        name,
        tenant,
        project,
        vcluster,
        user,
        uid: _,
        tags,
        state: _,
        reason,
        exit_code: _,
        nodes,
        node_count: _,
        submitted_at: _,
        claimed_at: _,
        started_at: _,
        ended_at: _,
        requeue_count: _,
        preempted_count: _,
        used: _,
        core_ms: _,
        part_of: _,
        corrects: _,
    } = work;
    let texts = [name, tenant, project, vcluster, user, reason, nodes].into_iter().map(|text| text_bytes(text));
    ENDED_WORK_BYTES + texts.sum::<usize>() + pairs_bytes(tags)
}

/// Memory of the state of a scaled service, without the numbers of its replicas: they go once it has
/// ended.
fn scaling_state_bytes(state: &ScalingState) -> usize {
    let ScalingState { wanted: _, waiting: _, running: _, serving: _, leaving: _, reading, change, alternations: _, early_ends: _ } = state;
    let found = |Reading { look: _, since: _, value: _, why, missing: _ }: &Reading| text_bytes(why);
    let changed = |ScaleChange { at: _, from: _, to: _, by, value: _ }: &ScaleChange| by.as_deref().map_or(0, text_bytes);
    SCALED_SERVICE_BYTES + reading.as_ref().map_or(0, found) + change.as_ref().map_or(0, changed)
}

/// Memory of the record of a DAG. The ends of its steps do not change it.
pub fn dag_bytes(dag: &Dag) -> usize {
    let Dag { id: _, name, owner, submitted_at: _, digest: _, steps, records: _ } = dag;
    let step = |Step { name, allocation: _, depends_on, is_caught: _, end: _ }: &Step| {
        STEP_BYTES + text_bytes(name) + list_bytes(depends_on.len() * DEPENDENCY_BYTES)
    };
    DAG_BYTES + text_bytes(name) + principal_bytes(owner) + steps.iter().map(step).sum::<usize>()
}

/// Memory of a change of share phases.
pub fn phases_bytes(change: &PhasesChange) -> usize {
    let PhasesChange { id: _, epoch: _, state: _, previous_revision: _, revision: _, phases, usage: _ } = change;
    PHASES_CHANGE_BYTES + phases.len() * PHASE_RUN_BYTES
}

/// Memory of a node.
pub fn node_bytes(node: &Node) -> usize {
    let Node {
        id,
        size: _,
        addresses: NodeAddresses { mesh, gossip },
        schedulable: _,
        boot: _,
        incarnation: _,
        state: _,
        state_reason,
        state_since: _,
        unenforced_limits,
        features,
        topology_group,
        locality: Locality { domains, sockets: _, cxl_memory_bytes: _, gpu_links },
        holds,
        leaving,
        relay_node,
        home,
        conformance,
        has_wipe_hook: _,
        wipe,
        drain_requested_at: _,
        hold_revision: _,
        report_seq: _,
        revision: _,
    } = node;
    let relay_node = relay_node.as_ref().map_or(0, |relay_node| text_bytes(relay_node.as_str()));
    let failed = wipe.as_ref().and_then(|Wipe { order: _, failed }| failed.as_deref()).map_or(0, text_bytes);
    let topology_group = topology_group.as_deref().unwrap_or_default();
    let texts =
        [id.as_str(), mesh, gossip, state_reason, home, topology_group].into_iter().map(text_bytes).sum::<usize>() + relay_node + failed;
    let holds: usize = holds.iter().map(hold_bytes).sum();
    let conformance = conformance.as_ref().map_or(0, conformance_bytes);
    let wiring = list_bytes(domains.len() * LOCAL_DOMAIN_BYTES) + list_bytes(gpu_links.len());
    NODE_BYTES
        + texts
        + texts_bytes(unenforced_limits)
        + texts_bytes(features)
        + holds
        + leaving.iter().map(leaving_bytes).sum::<usize>()
        + conformance
        + wiring
}

fn leaving_bytes(leaving: &Leaving) -> usize {
    let Leaving { allocation: _, epoch: _, resources: _, fenced: _, owner } = leaving;
    LEAVING_BYTES + owner.as_ref().map_or(0, |WorkOwner { uid: _, tenant, is_exclusive: _ }| text_bytes(tenant))
}

/// Memory of a list's content; an empty list has no block.
fn list_bytes(content: usize) -> usize {
    if content == 0 { 0 } else { BLOCK_BYTES + content }
}

/// Memory of a node's removal.
pub fn removed_node_bytes(id: &NodeId) -> usize {
    LISTED_BYTES + id.as_str().len()
}

/// Memory of changed days of a tenant's use.
pub fn tenant_use_bytes(name: &str, days: &[DayUse]) -> usize {
    SMALL_RECORD_BYTES + text_bytes(name) + days.len() * USAGE_DAY_BYTES
}

/// Memory of a tenant's change; `None`: it was deleted.
pub fn tenant_bytes(name: &str, tenant: Option<&Tenant>) -> usize {
    let inner = |tenant: &Tenant| {
        let Tenant {
            name,
            max_nodes: _,
            max_concurrent_allocations: _,
            fair_share_target_ppm: _,
            burst_allowance_percent: _,
            gpu_hours_budget: _,
            node_hours_budget: _,
            class_max: _,
            since: _,
            revision: _,
        } = tenant;
        text_bytes(name)
    };
    TENANT_BYTES + text_bytes(name) + tenant.map_or(0, inner)
}

/// Memory of a vCluster's change; `None`: it was deleted.
pub fn vcluster_bytes(name: &str, vcluster: Option<&VCluster>) -> usize {
    let inner = |vcluster: &VCluster| {
        let VCluster {
            name,
            scheduler: _,
            tenant,
            nodes: _,
            weights: _,
            cycle_interval_ms: _,
            borrows: _,
            lend_ms: _,
            created_by,
            created_at: _,
            revision: _,
        } = vcluster;
        text_bytes(name) + text_bytes(tenant) + text_bytes(created_by)
    };
    SMALL_RECORD_BYTES + text_bytes(name) + vcluster.map_or(0, inner)
}

/// Memory of a reservation's change; `None`: it was deleted.
pub fn reservation_bytes(name: &str, reservation: Option<&Reservation>) -> usize {
    let inner = |reservation: &Reservation| {
        let Reservation { name, nodes, start: _, end: _, tenants, users, maintenance: _, comment, created_by, created_at: _, revision: _ } =
            reservation;
        let listed = nodes.iter().map(NodeId::as_str).chain(tenants.iter().chain(users.keys()).map(String::as_str));
        let listed: usize = listed.map(|name| name.len() + 2 * LISTED_BYTES).sum();
        text_bytes(name) + listed + text_bytes(comment) + text_bytes(created_by)
    };
    SMALL_RECORD_BYTES + text_bytes(name) + reservation.map_or(0, inner)
}

/// Memory of a text.
pub fn text_bytes(text: &str) -> usize {
    if text.is_empty() { 0 } else { text.len() + BLOCK_BYTES }
}

fn path_bytes(path: &Path) -> usize {
    path.as_os_str().len() + BLOCK_BYTES
}

fn texts_bytes(texts: &[String]) -> usize {
    texts.iter().map(|text| text.len() + LISTED_BYTES).sum()
}

fn pairs_bytes<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> usize {
    pairs.into_iter().map(|(key, value)| key.len() + value.len() + PAIR_BYTES).sum()
}

/// Memory that a user's name and groups take beside the record that has them.
pub fn principal_bytes(Principal { name, uid: _, gid: _, groups }: &Principal) -> usize {
    text_bytes(name) + groups.len() * 4 + BLOCK_BYTES
}

/// Memory that a reason takes beside itself.
pub fn reason_bytes(reason: &EndReason) -> usize {
    match reason {
        EndReason::Exited { code: _ }
        | EndReason::WalltimeExceeded
        | EndReason::WalltimeSaved { checkpoint: _ }
        | EndReason::DeadlineMissed { deadline: _ }
        | EndReason::TasksFailed { failed: _, tasks: _ } => 0,
        EndReason::Cancelled { by } => text_bytes(by),
        EndReason::PrologueFailed { node, why } | EndReason::NodeLost { node, why } | EndReason::ProbeFailed { node, why } => {
            text_bytes(node.as_str()) + text_bytes(why)
        }
        EndReason::LaunchAborted { code: _, why } => text_bytes(why),
        EndReason::OutOfMemory { node, kill: _ } | EndReason::DrainDeadline { node } | EndReason::RunLeaseLapsed { node } => {
            text_bytes(node.as_str())
        }
        EndReason::Preempted { by, why, saved } => {
            let not_saved = saved.as_ref().err().map_or(0, |NotSaved(why)| text_bytes(why));
            text_bytes(by) + text_bytes(why) + not_saved
        }
        EndReason::Requeued { by, why } => text_bytes(by) + text_bytes(why),
        EndReason::DependencyUnmet { on: _, name, condition: _, state: _ } => text_bytes(name),
    }
}

fn dependencies_bytes(Dependencies { parents, predecessor: _, begin: _, eligible_at: _ }: &Dependencies) -> usize {
    let place = |OutputPlace { name, tenant, project }: &OutputPlace| {
        OUTPUT_PLACE_BYTES + [name, tenant, project].into_iter().map(|text| text_bytes(text)).sum::<usize>()
    };
    let parent = |Parent { on: _, condition: _, name, asked_for_it: _, output, state: _ }: &Parent| {
        PARENT_BYTES + text_bytes(name) + output.as_deref().map_or(0, place)
    };
    DEPENDENCIES_BYTES + parents.iter().map(parent).sum::<usize>()
}

fn submitted_bytes(values: &SubmittedValues) -> usize {
    let SubmittedValues { name, walltime: _, preemption_class: _, project, tags, scaling, changes: _, place } = values;
    let place = place.as_deref().map_or(0, |SubmittedPlace { timing, nice: _, comment, reservation }| {
        SUBMITTED_PLACE_BYTES
            + timing.as_ref().map_or(0, |_| TIMING_BYTES)
            + text_bytes(comment)
            + reservation.as_deref().map_or(0, text_bytes)
    });
    SUBMITTED_BYTES + text_bytes(name) + text_bytes(project) + pairs_bytes(tags) + scaling.as_deref().map_or(0, scaling_bytes) + place
}

fn attempt_bytes(attempt: &Attempt) -> usize {
    let Attempt { number: _, epoch: _, head, nodes, claimed_at: _, started_at: _, ended_at: _, reason, by } = attempt;
    ATTEMPT_BYTES + text_bytes(head.as_str()) + text_bytes(nodes) + reason_bytes(reason) + text_bytes(by)
}

fn exclusion_bytes(Exclusion { node, why, failures: _, until: _ }: &Exclusion) -> usize {
    EXCLUSION_BYTES + text_bytes(node.as_str()) + text_bytes(why)
}

fn preemption_bytes(order: &Preemption) -> usize {
    let Preemption { id: _, by, reason, cause: _, deadline_ms: _, hold: _, failed } = order;
    PREEMPTION_BYTES + text_bytes(by) + text_bytes(reason) + failed.as_deref().map_or(0, text_bytes)
}

fn order_bytes(TelemetryOrder { id: _, mode: _, by, since: _, until: _ }: &TelemetryOrder) -> usize {
    TELEMETRY_ORDER_BYTES + text_bytes(by)
}

fn hold_bytes(Hold { kind: _, by, reason, more_reasons, since: _, until: _, deadline: _ }: &Hold) -> usize {
    let more: usize = more_reasons.iter().map(|HoldReason { by, reason }| by.len() + reason.len() + 2 * LISTED_BYTES).sum();
    HOLD_BYTES + text_bytes(by) + text_bytes(reason) + more
}

fn conformance_bytes(Conformance { components, fingerprint, drift, stale: _ }: &Conformance) -> usize {
    let components_bytes = |components: &Components| pairs_bytes(components);
    let expected = |Drift { since: _, expected, sensitive: _, overdue: _ }: &Drift| components_bytes(expected);
    components_bytes(components) + text_bytes(fingerprint) + drift.as_ref().map_or(0, expected)
}

/// Memory that a spec takes beside itself, without the script's text.
fn spec_bytes(spec: &AllocationSpec) -> usize {
    let AllocationSpec {
        name,
        tenant,
        project,
        vcluster,
        tags,
        nodes: _,
        nodes_max: _,
        spread: _,
        share: _,
        memory_unit: _,
        cpus_per_gpu: _,
        ntasks_per_gpu: _,
        topology_wait: _,
        exclusive_user: _,
        constraints,
        tasks_per_node: _,
        binding: _,
        launch: EntryLaunch { shape, ranks: _, keeps_on_bad_exit: _ },
        walltime: _,
        entrypoint,
        uenv,
        working_dir,
        submit_dir,
        submit_host,
        env,
        requeue: _,
        requeues_max: _,
        preemption_class: _,
        data,
        liveness_probe,
        pty: _,
        session: _,
        connectivity,
        sensitive: _,
        on_isolation: _,
        checkpoint: _,
        hold: _,
        depends_on,
        singleton: _,
        tasks,
        scaling,
        output_files,
        timing,
        end_warning,
        mail,
        comment,
        nice: _,
        reservation,
    } = spec;
    let names: usize = [name, tenant, project, vcluster].into_iter().map(|name| text_bytes(name)).sum();
    let named = constraints.nodes.iter().chain(&constraints.excluded).map(|node| node.as_str().len());
    let wanted = constraints.features.iter().map(String::len).chain(named);
    let wanted = wanted.map(|len| len + 2 * LISTED_BYTES).sum::<usize>() + constraints.choice.as_deref().map_or(0, choice_bytes);
    let program = match entrypoint {
        Entrypoint::Script { text: _, args } => texts_bytes(args),
        Entrypoint::Command { argv } => texts_bytes(argv),
    };
    let image = uenv.as_deref().map_or(0, |Image { path, sha256 }| IMAGE_BYTES + path_bytes(path) + text_bytes(sha256));
    let places = path_bytes(working_dir) + submit_dir.as_deref().map_or(0, path_bytes) + text_bytes(submit_host);
    let mounts: usize = data.mounts.iter().map(|mount| path_bytes(&mount.source) + path_bytes(&mount.target) + 2 * LISTED_BYTES).sum();
    let path_of = |LivenessProbe { check, .. }: &LivenessProbe| match check {
        ProbeCheck::Tcp => 0,
        ProbeCheck::Http { path } => text_bytes(path),
    };
    let probe = liveness_probe.as_deref().map_or(0, |probe| PROBE_BYTES + path_of(probe));
    let Connectivity { network_domain, expose } = connectivity;
    let exposed: usize = expose.iter().map(|port| port.name.len() + port.protocol.len() + 2 * LISTED_BYTES).sum();
    let network = text_bytes(network_domain) + exposed;
    let dependencies = list_bytes(depends_on.iter().map(|Dependency { on: _, condition: _ }| DEPENDENCY_BYTES).sum());
    let tasks = tasks.as_deref().map_or(0, task_group_bytes) + scaling.as_deref().map_or(0, scaling_bytes);
    let pairs = pairs_bytes(tags) + pairs_bytes(env);
    let files = output_files.as_deref().map_or(0, |OutputFiles { stdout, stderr, stdin, append: _ }| {
        OUTPUT_FILES_BYTES + [stdout, stderr, stdin].into_iter().map(|name| text_bytes(name)).sum::<usize>()
    });
    let bounds = timing.as_ref().map_or(0, |_| TIMING_BYTES) + end_warning.as_ref().map_or(0, |_| END_WARNING_BYTES);
    let mail = mail.as_deref().map_or(0, |Mail { events, user }| MAIL_BYTES + events.len() * LISTED_BYTES + text_bytes(user));
    let pairs = pairs + files + bounds + mail + text_bytes(comment) + reservation.as_deref().map_or(0, text_bytes);
    names + pairs + wanted + shape_bytes(shape) + program + image + places + mounts + probe + network + dependencies + tasks
}

fn choice_bytes(choice: &FeatureChoice) -> usize {
    let set = |set: &FeatureSet| FEATURE_SET_BYTES + set.iter().map(|feature| feature.len() + 2 * LISTED_BYTES).sum::<usize>();
    FEATURE_CHOICE_BYTES + choice.sets().map(set).sum::<usize>()
}

fn task_group_bytes(TaskGroup { indices, concurrent_max: _, failures_max: _ }: &TaskGroup) -> usize {
    TASK_GROUP_BYTES + indices.runs().len() * INDEX_RUN_BYTES
}

fn scaling_bytes(Scaling { replicas_min: _, replicas_max: _, policy, drain: Drain { signal: _, grace_ms: _ } }: &Scaling) -> usize {
    let of_metric = |metric: &ScaleMetric| match metric {
        ScaleMetric::GpuUtilization | ScaleMetric::CpuUtilization | ScaleMetric::ConnectionRate | ScaleMetric::QueueDepth => 0,
        ScaleMetric::Stored(selector) => {
            let text = selector.to_string();
            // There is a comma between two matchers; there may be others in their values.
            text_bytes(&text) + (text.matches(',').count() + 1) * MATCHER_BYTES
        }
    };
    let of_policy = |policy: &ScalePolicy| {
        let ScalePolicy { metric, target: _, interval_ms: _, up_window_ms: _, down_window_ms: _, down_threshold: _, cooldown_ms: _ } =
            policy;
        of_metric(metric)
    };
    SCALING_BYTES + policy.as_ref().map_or(0, of_policy)
}

fn shape_bytes(LaunchShape { distribution, programs, cpus_per_task: _, slurm_env: _ }: &LaunchShape) -> usize {
    let listed = match distribution {
        Distribution::Block | Distribution::Cyclic | Distribution::Plane(_) => 0,
        Distribution::Explicit(runs) => runs.len() * 8 + BLOCK_BYTES,
    };
    let programs: usize = programs.iter().map(|program| texts_bytes(&program.argv) + LISTED_BYTES).sum();
    listed + programs
}

#[cfg(test)]
mod tests;
