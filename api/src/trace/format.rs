//! The trace of a cluster: what was submitted, when it ended, and on which nodes it could run. A file of JSON, an object
//! on each line.
//!
//! ```text
//!   header ─▶ tenant, vcluster, node … ─▶ submit and complete, in the order of time
//! ```
//!
//! It has what the scheduler decides by, and nothing else: no names of users, programs or environments. `lattice admin
//! trace capture` writes it, and `lattice-lab replay` reads it. The names of events and fields are those of the
//! documents ("Performance Tuning Guide").

use lattice_model::duration::{self, BareNumber, DurationError};
use lattice_model::feature_choice::FeatureChoice;
use lattice_model::layout::{EntryLaunch, LaunchShape};
use lattice_model::{
    AllocationId, AllocationSpec, CheckpointPolicy, Constraints, Entrypoint, Locality, NodeId, RankBinding, RequeuePolicy, Resources,
    Timestamp, Timing, Topology,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// The largest trace, in bytes.
pub const TRACE_BYTES_MAX: u64 = 1 << 30;
/// The name and version of the format, which the header has.
pub const FORMAT: &str = "lattice-trace/1";

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line {
    /// The first line.
    Header(Header),
    /// A tenant.
    Tenant(TenantLine),
    /// A vCluster.
    Vcluster(VClusterLine),
    /// A node.
    Node(NodeLine),
    /// Work was submitted.
    Submit(Submit),
    /// Work ended.
    Complete(Complete),
}

/// What the trace covers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// It has work that was submitted from this time on.
    pub from: Moment,
    /// When it was written.
    pub until: Moment,
    /// From this time on, no work is missing because the quorum has forgotten it.
    pub complete_from: Moment,
    /// Whose shares a node holds at a time: the name of a [`lattice_model::SharePolicy`]. Absent: everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_policy: Option<String>,
    /// How many days the budgets of tenants look back; absent: as many as a new cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_period_days: Option<u32>,
    /// The bandwidth of the checkpoint store, in bytes per second; absent: it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_bytes_per_second: Option<f64>,
}

/// A tenant as the scheduler sees it: the fields of [`lattice_model::Tenant`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantLine {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share_target_ppm: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_allowance_percent: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent_allocations: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hours_budget: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_hours_budget: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_max: Option<u8>,
}

/// A vCluster. Its nodes are those whose lines name it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VClusterLine {
    pub name: String,
    /// The name of its scheduler, such as `hpc-backfill`.
    pub scheduler: String,
    /// The weights of its score by the names of [`lattice_model::Factor`]; empty: those of its scheduler.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, f64>,
    /// Whether it uses idle nodes that other vClusters lend.
    #[serde(default, skip_serializing_if = "is_not")]
    pub borrows: bool,
    /// The longest walltime of others' work on its idle nodes; absent: it lends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lends: Option<Span>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLine {
    pub node: NodeId,
    pub cores: u32,
    pub memory_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gpus: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_group: Option<String>,
    /// The same text for nodes with the same software and firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conformance_group: Option<String>,
    /// The vCluster that it belongs to; absent: the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcluster: Option<String>,
    #[serde(default, skip_serializing_if = "Locality::is_unknown")]
    pub locality: Locality,
}

/// Work was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submit {
    pub ts: Moment,
    pub alloc_id: AllocationId,
    pub alloc: Request,
}

/// Work ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Complete {
    pub ts: Moment,
    pub alloc_id: AllocationId,
    /// How long it ran; absent: it never ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Span>,
    /// The exit code of its program; absent: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
}

/// What the scheduler decides by. Absent fields have the defaults of a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub nodes: u32,
    /// The most nodes that it takes; absent: exactly `nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_max: Option<u32>,
    /// The amount of each node; absent: whole nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Amount>,
    /// Ranks on each node. A whole node must have the GPUs and cores of all of them.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub tasks_per_node: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gpus_per_task: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpus_per_task: u32,
    #[serde(default, skip_serializing_if = "Wanted::is_nothing")]
    pub constraints: Wanted,
    /// Absent: it has none, and runs until it is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walltime: Option<Span>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vcluster: String,
    /// The same number for all work of a user, and no other meaning.
    pub user: u32,
    /// The preemption class, 0 to 10.
    pub priority: u8,
    /// Whether it can save itself.
    #[serde(default, skip_serializing_if = "is_not")]
    pub checkpoint: bool,
    /// How many times it may begin anew after a preemption; 0: never.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub requeues: u32,
    /// How much later in its queue it is than equal work.
    #[serde(default, skip_serializing_if = "is_zero_nice")]
    pub nice: i32,
    /// When it must have ended; absent: at no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Moment>,
    /// The least walltime with which it begins; absent: all of its walltime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walltime_min: Option<Span>,
}

/// An amount of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cores: u32,
    #[serde(default, skip_serializing_if = "is_zero_bytes")]
    pub memory_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gpus: u32,
}

/// What each node must have: the fields of [`Constraints`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wanted {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub features: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Box<FeatureChoice>>,
    #[serde(skip_serializing_if = "is_zero")]
    pub cores: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub sockets: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub gpus: u32,
    #[serde(skip_serializing_if = "is_zero_bytes")]
    pub memory_bytes: u64,
    #[serde(skip_serializing_if = "is_not")]
    pub conformance: bool,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub nodes: BTreeSet<NodeId>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<NodeId>,
    /// Whether its nodes must be in as few topology groups as possible.
    #[serde(skip_serializing_if = "is_not")]
    pub tight: bool,
    /// Of how many topology groups its nodes may be at most; 0: of any number.
    #[serde(skip_serializing_if = "is_zero")]
    pub groups_max: u32,
    #[serde(skip_serializing_if = "is_not")]
    pub same_numa: bool,
    #[serde(skip_serializing_if = "is_not")]
    pub cxl_memory: bool,
}

/// A time in RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Moment(pub Timestamp);

/// The text is not a time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a time such as 2026-03-01T00:00:01Z")]
pub struct NotATime(String);

/// Seconds, written as a duration such as `72h` or `90s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub u64);

impl TryFrom<String> for Moment {
    type Error = NotATime;

    fn try_from(text: String) -> Result<Self, NotATime> {
        Timestamp::from_rfc_3339(&text).map(Self).ok_or_else(|| NotATime(text.chars().take(40).collect()))
    }
}

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.0.to_string()
    }
}

impl TryFrom<String> for Span {
    type Error = DurationError;

    fn try_from(text: String) -> Result<Self, DurationError> {
        duration::parse(&text, BareNumber::Seconds).map(|long| Self(long.as_secs()))
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        format!("{}s", span.0)
    }
}

impl Wanted {
    fn of(constraints: &Constraints) -> Self {
        let Constraints {
            features,
            choice,
            cores,
            sockets,
            gpus,
            memory_bytes,
            conformance,
            nodes,
            excluded,
            topology,
            same_numa,
            cxl_memory,
        } = constraints.clone();
        let (tight, groups_max) = match topology {
            // That nodes follow each other is not traced.
            Topology::Any | Topology::Contiguous => (false, 0),
            Topology::Tight => (true, 0),
            Topology::AtMost(groups) => (false, groups),
        };
        Self {
            features,
            choice,
            cores,
            sockets,
            gpus,
            memory_bytes,
            conformance,
            nodes,
            excluded,
            tight,
            groups_max,
            same_numa,
            cxl_memory,
        }
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Request {
    /// What the scheduler decides by in this specification, of the user with this number.
    pub fn of(spec: &AllocationSpec, user: u32) -> Self {
        // A new field must say here whether it decides. Work that is held is left out of a trace, and work that depends on
        // other work, or begins later, is submitted when it came into its queue. Not traced: `on_isolation` and the method of a
        // checkpoint, which exclude machines without cgroup v2; `exclusive_user`; how long work waits for topology groups; and
        // the reservation: a replay places such work as if it had none.
        let AllocationSpec {
            name: _,
            tenant,
            project: _,
            vcluster,
            tags: _,
            nodes,
            nodes_max,
            // Traced as its form on the fewest nodes.
            spread,
            share,
            memory_unit: _,
            cpus_per_gpu: _,
            ntasks_per_gpu: _,
            topology_wait: _,
            exclusive_user: _,
            constraints,
            tasks_per_node,
            binding,
            launch,
            walltime,
            entrypoint: _,
            uenv: _,
            working_dir: _,
            submit_dir: _,
            submit_host: _,
            env: _,
            requeue,
            requeues_max,
            preemption_class,
            data: _,
            liveness_probe: _,
            pty: _,
            session: _,
            connectivity: _,
            sensitive: _,
            on_isolation: _,
            checkpoint,
            hold: _,
            depends_on: _,
            singleton: _,
            // Of a task group its lanes are traced.
            tasks: _,
            scaling: _,
            output_files: _,
            timing,
            end_warning: _,
            mail: _,
            comment: _,
            nice,
            reservation: _,
        } = spec;
        let Timing { begin: _, deadline, walltime_min } = timing.as_deref().cloned().unwrap_or_default();
        let requeues = match requeue {
            RequeuePolicy::Always => *requeues_max,
            RequeuePolicy::Never | RequeuePolicy::OnNodeFailure => 0,
        };
        Self {
            nodes: *nodes,
            nodes_max: nodes_max.filter(|_| spread.is_none()),
            share: share.map(|Resources { cores, memory_bytes, gpus }| Amount { cores, memory_bytes, gpus }),
            tasks_per_node: *tasks_per_node,
            gpus_per_task: binding.gpus_per_task,
            cpus_per_task: launch.shape.cpus_per_task,
            constraints: Wanted::of(constraints),
            walltime: walltime.map(|long| Span(long.as_secs())),
            tenant: tenant.clone(),
            vcluster: vcluster.clone(),
            user,
            priority: *preemption_class,
            checkpoint: checkpoint.is_some(),
            requeues,
            nice: *nice,
            deadline: deadline.map(Moment),
            walltime_min: walltime_min.map(|least| Span(least.as_secs())),
        }
    }

    /// A specification for which the scheduler decides the same. It is not validated.
    pub fn spec(&self) -> AllocationSpec {
        let Wanted {
            features,
            choice,
            cores,
            sockets,
            gpus,
            memory_bytes,
            conformance,
            nodes,
            excluded,
            tight,
            groups_max,
            same_numa,
            cxl_memory,
        } = self.constraints.clone();
        let topology = match (tight, groups_max) {
            (true, _) => Topology::Tight,
            (false, 0) => Topology::Any,
            (false, groups) => Topology::AtMost(groups),
        };
        let requeue = if self.requeues > 0 { RequeuePolicy::Always } else { RequeuePolicy::Never };
        let entrypoint = Entrypoint::Command { argv: vec!["true".to_owned()] };
        let shape = LaunchShape { cpus_per_task: self.cpus_per_task, ..LaunchShape::default() };
        let walltime_min = self.walltime_min.map(|span| Duration::from_secs(span.0));
        let timing = Timing { begin: None, deadline: self.deadline.map(|moment| moment.0), walltime_min };
        let constraints = Constraints {
            features,
            choice,
            cores,
            sockets,
            gpus,
            memory_bytes,
            conformance,
            nodes,
            excluded,
            topology,
            same_numa,
            cxl_memory,
        };
        AllocationSpec {
            nodes: self.nodes,
            nodes_max: self.nodes_max,
            share: self.share.map(|Amount { cores, memory_bytes, gpus }| Resources { cores, memory_bytes, gpus }),
            constraints,
            tasks_per_node: self.tasks_per_node,
            binding: RankBinding { gpus_per_task: self.gpus_per_task, ..RankBinding::default() },
            launch: EntryLaunch { shape, ..EntryLaunch::default() },
            walltime: self.walltime.map(|span| Duration::from_secs(span.0)),
            tenant: self.tenant.clone(),
            vcluster: self.vcluster.clone(),
            preemption_class: self.priority,
            checkpoint: self.checkpoint.then(CheckpointPolicy::default),
            requeue,
            requeues_max: self.requeues,
            nice: self.nice,
            timing: timing.unless_empty(),
            ..AllocationSpec::new("traced", entrypoint, Path::new("/"))
        }
    }
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_zero_nice(nice: &i32) -> bool {
    *nice == 0
}

fn is_zero_bytes(count: &u64) -> bool {
    *count == 0
}

fn is_not(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests() -> impl Strategy<Value = Request> {
        let amount = (0..9_u32, any::<u64>(), 0..9_u32).prop_map(|(cores, memory_bytes, gpus)| Amount { cores, memory_bytes, gpus });
        let wanted = (proptest::collection::btree_set("[a-z=]{1,9}", 0..3), 0..9_u32, any::<u64>(), any::<[bool; 4]>());
        let wanted = wanted.prop_map(|(features, gpus, memory_bytes, [conformance, tight, same_numa, cxl_memory])| {
            let nodes = ["n1", "n2"].into_iter().map(|name| name.parse().unwrap()).collect();
            let excluded = ["n3"].into_iter().map(|name| name.parse().unwrap()).collect();
            let choice =
                lattice_model::feature_expression::parse(if tight { "(a|b)&[c|d]" } else { "a*1&(b&c)*2" }).unwrap().choice.map(Box::new);
            let groups_max = if tight { 0 } else { gpus };
            let (cores, sockets) = (gpus / 2, gpus / 3);
            Wanted {
                features,
                choice,
                cores,
                sockets,
                gpus,
                memory_bytes,
                conformance,
                nodes,
                excluded,
                tight,
                groups_max,
                same_numa,
                cxl_memory,
            }
        });
        let nodes = (1..9_u32, proptest::option::of(9..20_u32), proptest::option::of(amount), prop_oneof![Just(Wanted::default()), wanted]);
        let tasks = (1..9_u32, 0..9_u32, 0..9_u32);
        let more = (proptest::option::of(any::<u32>()), "[a-z]{0,9}", "[a-z]{0,9}", any::<u32>(), 0..=10_u8, any::<bool>(), 0..9_u32);
        let times = (-9..9_i32, proptest::option::of(0..4_000_000_000_000_u64), proptest::option::of(any::<u32>()));
        (nodes, tasks, more, times).prop_map(
            |(
                (nodes, nodes_max, share, constraints),
                (tasks_per_node, gpus_per_task, cpus_per_task),
                (walltime, tenant, vcluster, user, priority, checkpoint, requeues),
                (nice, deadline, walltime_min),
            )| {
                let walltime = walltime.map(|seconds| Span(seconds.into()));
                Request {
                    nodes,
                    nodes_max,
                    share,
                    tasks_per_node,
                    gpus_per_task,
                    cpus_per_task,
                    constraints,
                    walltime,
                    tenant,
                    vcluster,
                    user,
                    priority,
                    checkpoint,
                    requeues,
                    nice,
                    deadline: deadline.map(|ms| Moment(Timestamp(ms))),
                    walltime_min: walltime_min.map(|seconds| Span(seconds.into())),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written_and_says_all_that_decides(request in requests(), at in 0..4_000_000_000_000_u64) {
            prop_assert_eq!(&Request::of(&request.spec(), request.user), &request);
            let line = Line::Submit(Submit { ts: Moment(Timestamp(at)), alloc_id: AllocationId(uuid::Uuid::from_u128(7)), alloc: request });
            let text = serde_json::to_string(&line).unwrap();
            prop_assert!(!text.contains('\n'), "{}", text);
            prop_assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        }
    }

    #[test]
    fn lines_have_the_names_of_the_documents() {
        let alloc_id: AllocationId = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        let complete = Complete { ts: Moment(Timestamp(0)), alloc_id, duration: Some(Span(244_800)), exit: Some(0) };
        let text = serde_json::to_string(&Line::Complete(complete.clone())).unwrap();
        let want = concat!(
            r#"{"type":"complete","ts":"1970-01-01T00:00:00.000Z","#,
            r#""alloc_id":"1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88","duration":"244800s","exit":0}"#
        );
        assert_eq!(text, want);
        let as_documented = want.replace("244800s", "68h").replace(".000Z", "Z");
        assert_eq!(serde_json::from_str::<Line>(&as_documented).unwrap(), Line::Complete(complete));
    }

    #[test]
    fn what_the_format_does_not_have_is_refused() {
        let error = |text: &str| serde_json::from_str::<Line>(text).unwrap_err().to_string();
        assert!(error(r#"{"type":"restart"}"#).contains("unknown variant `restart`"));
        let submit = concat!(
            r#"{"type":"submit","ts":"2026-03-01T00:00:01Z","alloc_id":"1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88","#,
            r#""alloc":{"nodes":1,"user":1,"priority":5}}"#
        );
        assert!(serde_json::from_str::<Line>(submit).is_ok());
        assert!(error(&submit.replace("\"user\":1", "\"user\":1,\"name\":\"ada\"")).contains("unknown field `name`"));
        assert!(error(&submit.replace("2026-03-01T00:00:01Z", "yesterday")).contains("is not a time"));
    }
}
