//! A submission that was checked, and not made.

use super::scaling::ScalingJson;
use super::task::index_run;
use super::values::{text, time};
use crate::spec::is_singleton;
use crate::v1;
use crate::v1::entrypoint::What;
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What would be submitted.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = DryRun)]
pub struct DryRunJson {
    name: String,
    script: Option<String>,
    /// The program and its arguments; of a script, its arguments.
    command: Option<Vec<String>>,
    working_dir: String,
    nodes: u32,
    /// If it asks for a range of numbers, the largest.
    nodes_max: Option<u32>,
    /// Its ranks are spread over the fewest nodes that hold them: what each node has is that on the least number of nodes.
    spread: bool,
    topology: Option<String>,
    /// How long it waits for such nodes; then it takes any. Null: as long as it takes.
    topology_wait_seconds: Option<u64>,
    nodelist: Vec<String>,
    /// Nodes that it does not get.
    exclude: Vec<String>,
    /// Only work of the same user is beside its shares.
    exclusive_user: bool,
    tasks_per_node: u32,
    /// All ranks; null: not known before it begins.
    tasks: Option<u64>,
    /// Of each node; null, like the next two: whole nodes.
    cores: Option<u32>,
    memory_bytes: Option<u64>,
    gpus: Option<u32>,
    constraints: BTreeMap<String, String>,
    /// Further features, as an expression.
    features: Option<String>,
    walltime_seconds: Option<u64>,
    tenant: Option<String>,
    tags: BTreeMap<String, String>,
    vcluster: Option<String>,
    uenv: Option<String>,
    uenv_sha256: Option<String>,
    task_group: Option<DryRunTasksJson>,
    scaling: Option<ScalingJson>,
    held: bool,
    depends_on: Vec<DryRunDependencyJson>,
    /// When it would begin if it came into its queue now; null: not known.
    expected_start: Option<String>,
    /// The nodes that it would get then.
    expected_nodes: Vec<String>,
}

/// The tasks that would be submitted.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = DryRunTasks)]
pub struct DryRunTasksJson {
    tasks: u64,
    indices: Vec<IndexRunJson>,
    /// The most that run at the same time.
    concurrency: Option<u32>,
    max_failures: Option<u32>,
}

/// The indices `first`, `first + step`, … up to `last`.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = IndexRun)]
pub struct IndexRunJson {
    first: u32,
    last: u32,
    step: u32,
}

/// A dependency that would be submitted.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = DryRunDependency)]
pub struct DryRunDependencyJson {
    /// Absent: it names no allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    condition: String,
}

impl From<&v1::Dependency> for DryRunDependencyJson {
    fn from(dependency: &v1::Dependency) -> Self {
        let id = (!is_singleton(dependency)).then(|| dependency.r#ref.clone());
        Self { id, condition: dependency.condition.clone() }
    }
}

impl From<&v1::TaskGroup> for DryRunTasksJson {
    fn from(group: &v1::TaskGroup) -> Self {
        let run = |run: &v1::IndexRun| IndexRunJson { first: run.first, last: run.last, step: run.step.max(1) };
        Self {
            tasks: group.indices.iter().map(|run| u64::from(index_run(run).count())).sum(),
            indices: group.indices.iter().map(run).collect(),
            concurrency: (group.concurrency > 0).then_some(group.concurrency),
            max_failures: group.max_failures,
        }
    }
}

impl From<&v1::AllocationSpec> for DryRunJson {
    fn from(spec: &v1::AllocationSpec) -> Self {
        let resources = spec.resources.clone().unwrap_or_default();
        let lifecycle = spec.lifecycle.clone().unwrap_or_default();
        let (environment, tasks_per_node) = (spec.environment.as_ref(), spec.tasks_per_node.max(1));
        let everywhere = || u64::from(resources.nodes) * u64::from(tasks_per_node);
        let tasks = match spec.launch.as_ref().map_or(0, |launch| launch.ranks) {
            0 => (resources.nodes_max <= resources.nodes).then(everywhere),
            ranks => Some(u64::from(ranks)),
        };
        let memory_bytes = if resources.memory_bytes > 0 { resources.memory_bytes } else { resources.memory_gb << 30 };
        let (script, command) = match spec.entrypoint.as_ref().and_then(|entry| entry.what.as_ref()) {
            Some(What::Script(script)) => (Some(script.text.clone()), Some(script.args.clone())),
            Some(What::Command(command)) => (None, Some(command.argv.clone())),
            None => (None, None),
        };
        Self {
            name: spec.name.clone(),
            script,
            command,
            working_dir: spec.working_dir.clone(),
            nodes: resources.nodes,
            nodes_max: Some(resources.nodes_max).filter(|most| *most > resources.nodes),
            spread: resources.spread.is_some(),
            topology: text(&resources.topology),
            topology_wait_seconds: Some(resources.topology_wait_seconds).filter(|seconds| *seconds > 0),
            nodelist: resources.nodelist,
            exclude: resources.exclude,
            exclusive_user: resources.exclusive_user,
            tasks_per_node,
            tasks,
            cores: (resources.cpus > 0).then_some(resources.cpus),
            memory_bytes: Some(memory_bytes).filter(|bytes| *bytes > 0),
            gpus: (resources.gpus > 0).then_some(resources.gpus),
            constraints: resources.constraints.into_iter().collect(),
            features: text(&resources.features),
            walltime_seconds: Some(lifecycle.walltime_seconds).filter(|seconds| *seconds > 0),
            tenant: text(&spec.tenant),
            tags: spec.tags.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            vcluster: text(&spec.vcluster),
            uenv: environment.and_then(|environment| text(&environment.uenv)),
            uenv_sha256: environment.and_then(|environment| text(&environment.sha256)),
            task_group: spec.task_group.as_ref().map(DryRunTasksJson::from),
            scaling: ScalingJson::of(lifecycle.scaling.as_ref()),
            held: spec.hold,
            depends_on: spec.depends_on.iter().map(DryRunDependencyJson::from).collect(),
            expected_start: None,
            expected_nodes: Vec::new(),
        }
    }
}

impl DryRunJson {
    /// With the start that the agent expects.
    #[must_use]
    pub fn expected(self, expected: Option<&v1::ExpectedStart>) -> Self {
        let Some(v1::ExpectedStart { start_ms, nodes, .. }) = expected else { return self };
        Self { expected_start: time(*start_ms), expected_nodes: nodes.clone(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_has_its_amounts_and_its_tasks() {
        let indices = vec![v1::IndexRun { first: 0, last: 99, step: 0 }];
        let spec = v1::AllocationSpec {
            name: "sweep".into(),
            resources: Some(v1::ResourceRequest { nodes: 2, memory_gb: 4, ..Default::default() }),
            tasks_per_node: 3,
            task_group: Some(v1::TaskGroup { indices, concurrency: 20, max_failures: None }),
            depends_on: vec![
                v1::Dependency { r#ref: "1f".into(), condition: "any".into() },
                v1::Dependency { r#ref: String::new(), condition: "singleton".into() },
            ],
            ..Default::default()
        };
        let json = serde_json::to_value(DryRunJson::from(&spec)).unwrap();
        assert_eq!((&json["tasks"], &json["memory_bytes"], &json["cores"]), (&6.into(), &(4_u64 << 30).into(), &serde_json::Value::Null));
        assert_eq!(
            json["task_group"],
            serde_json::json!({"tasks": 100, "indices": [{"first": 0, "last": 99, "step": 1}], "concurrency": 20, "max_failures": null})
        );
        assert_eq!(json["depends_on"], serde_json::json!([{"id": "1f", "condition": "any"}, {"condition": "singleton"}]));
        assert_eq!((&json["spread"], &json["exclusive_user"], &json["expected_start"]), (&false.into(), &false.into(), &().into()));
    }

    #[test]
    fn what_a_submission_asks_of_its_nodes_and_when_it_would_begin_is_shown() {
        let spread = Some(v1::Amount { cores: 1, memory_bytes: 0, gpus: 0 });
        let resources = v1::ResourceRequest { nodes: 1, spread, exclusive_user: true, topology_wait_seconds: 60, ..Default::default() };
        let spec = v1::AllocationSpec { resources: Some(resources), ..Default::default() };
        let expected = v1::ExpectedStart { start_ms: 1_772_704_812_034, nodes: vec!["n2".into()], ..Default::default() };
        let json = serde_json::to_value(DryRunJson::from(&spec).expected(Some(&expected))).unwrap();
        assert_eq!((&json["spread"], &json["exclusive_user"], &json["topology_wait_seconds"]), (&true.into(), &true.into(), &60.into()));
        assert_eq!((&json["expected_start"], &json["expected_nodes"][0]), (&"2026-03-05T10:00:12.034Z".into(), &"n2".into()));
    }
}
