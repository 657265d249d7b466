//! `lattice submit --dry-run`: the submission, as the agent and the quorum have checked it.

use lattice_api::json::DryRunJson;
use lattice_api::spec::is_singleton;
use lattice_api::v1;
use lattice_api::v1::entrypoint::What;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print};
use lattice_cli_session::session::Session;
use lattice_cli_session::shown::{command_line, counts, filled, group_rows, rows_of_spec, short, time};
use lattice_cli_session::table::block;
use lattice_model::duration::clock_text;
use lattice_model::resources::bytes_text;
use lattice_model::{NodeId, hostlist};
use std::collections::BTreeSet;
use std::time::Duration;

pub fn show(session: &Session, checked: &v1::SubmitResponse) -> Result<(), Failure> {
    let (spec, expected) = (checked.checked.clone().unwrap_or_default(), checked.expected.as_ref());
    match session.format() {
        Format::Table => {
            let start = expected.map_or_else(String::new, start_text);
            print(&format!("Nothing was submitted; this would be submitted:\n{}{start}", text(&spec)))
        }
        Format::Name => print(&format!("{}\n", spec.name)),
        Format::Data(notation) => notation.print(&DryRunJson::from(&spec).expected(expected)),
    }
}

/// The expected start, or why it is unknown.
fn start_text(expected: &v1::ExpectedStart) -> String {
    match time(expected.start_ms) {
        Some(start) if expected.nodes.is_empty() => format!("It is expected to begin at {start}.\n"),
        Some(start) => {
            let nodes: BTreeSet<NodeId> = expected.nodes.iter().filter_map(|node| node.parse().ok()).collect();
            format!("It is expected to begin at {start} on {}.\n", hostlist::fold(&nodes))
        }
        None => format!("When it would begin is not known: {}.\n", expected.reason),
    }
}

/// The meaning of `--spread` for the other rows.
const SPREAD: &str = "over the fewest nodes that hold the ranks; amounts per node are for that number";

fn parts(spec: &v1::AllocationSpec) -> (v1::ResourceRequest, v1::Lifecycle, u32) {
    let ranks = spec.launch.as_ref().map_or(0, |launch| launch.ranks);
    (spec.resources.clone().unwrap_or_default(), spec.lifecycle.clone().unwrap_or_default(), ranks)
}

/// The number of nodes if it is known before it begins.
fn fixed_nodes(resources: &v1::ResourceRequest) -> Option<u64> {
    (resources.nodes_max <= resources.nodes).then_some(resources.nodes.into())
}

fn memory_bytes(resources: &v1::ResourceRequest) -> u64 {
    if resources.memory_bytes > 0 { resources.memory_bytes } else { resources.memory_gb << 30 }
}

/// The requested amounts of each node; empty: whole nodes.
fn share(resources: &v1::ResourceRequest) -> Vec<String> {
    let amounts = [
        (resources.cpus > 0).then(|| format!("{} cores", resources.cpus)),
        (memory_bytes(resources) > 0).then(|| bytes_text(memory_bytes(resources))),
        (resources.gpus > 0).then(|| format!("{} GPUs", resources.gpus)),
    ];
    amounts.into_iter().flatten().collect()
}

fn topology(resources: &v1::ResourceRequest) -> String {
    match resources.topology_wait_seconds {
        0 => resources.topology.clone(),
        seconds => format!("{} for {}, then any", resources.topology, clock_text(Duration::from_secs(seconds))),
    }
}

fn constraints(resources: &v1::ResourceRequest) -> Vec<String> {
    let mut all: Vec<String> = resources.constraints.iter().map(|(name, value)| format!("{name}={value}")).collect();
    all.sort_unstable();
    all.extend(filled(&resources.features).map(str::to_owned));
    all
}

fn tags(spec: &v1::AllocationSpec) -> Vec<String> {
    let mut all: Vec<String> = spec.tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    all.sort_unstable();
    all
}

fn depends_on(spec: &v1::AllocationSpec) -> Vec<String> {
    let shown = |dependency: &v1::Dependency| match is_singleton(dependency) {
        true => dependency.condition.clone(),
        false => format!("{} ({})", short(&dependency.r#ref), dependency.condition),
    };
    spec.depends_on.iter().map(shown).collect()
}

fn text(spec: &v1::AllocationSpec) -> String {
    let (resources, lifecycle, ranks) = parts(spec);
    let named = if resources.nodelist.is_empty() { String::new() } else { format!(" ({})", resources.nodelist.join(",")) };
    let share = share(&resources);
    let walltime = match lifecycle.walltime_seconds {
        0 => "none: a service".to_owned(),
        seconds => clock_text(Duration::from_secs(seconds)),
    };
    let (script, command) = match spec.entrypoint.as_ref().and_then(|entry| entry.what.as_ref()) {
        Some(What::Script(script)) => {
            let args = if script.args.is_empty() { String::new() } else { format!(" {}", command_line(&script.args)) };
            (format!("{}{args} ({} lines)", spec.name, script.text.lines().count()), String::new())
        }
        Some(What::Command(command)) => (String::new(), command_line(&command.argv)),
        None => (String::new(), String::new()),
    };
    let ranks_text = counts::tasks(spec.tasks_per_node.max(1), ranks, fixed_nodes(&resources));
    // Nodes, ranks and walltime of a group are those of each of its tasks.
    let (each, ranks_label) = if spec.task_group.is_some() { (" for each task", "Ranks") } else { ("", "Tasks") };
    let environment = spec.environment.clone().unwrap_or_default();
    let uenv = filled(&environment.uenv).map(|uenv| format!("{uenv} (sha256 {})", environment.sha256)).unwrap_or_default();
    let is_scaled = lifecycle.scaling.is_some();
    let (nodes, ranks_text) = if is_scaled {
        (String::new(), counts::tasks(spec.tasks_per_node.max(1), ranks, None))
    } else {
        (format!("{}{named}{each}", counts::range(resources.nodes, resources.nodes_max)), format!("{ranks_text}{each}"))
    };
    let mut rows = vec![("Name", spec.name.clone()), ("Script", script), ("Command", command), ("Directory", spec.working_dir.clone())];
    rows.extend(spec.task_group.iter().flat_map(group_rows));
    rows.extend(rows_of_spec(lifecycle.scaling.as_ref()));
    rows.extend([
        ("Nodes", nodes),
        ("Share", if share.is_empty() { "whole nodes".to_owned() } else { format!("{} of each node", share.join(", ")) }),
        ("Spread", if resources.spread.is_some() { SPREAD.to_owned() } else { String::new() }),
        (ranks_label, ranks_text),
        ("Topology", topology(&resources)),
        ("Beside", if resources.exclusive_user { "only work of the same user".to_owned() } else { String::new() }),
        ("Excluded", resources.exclude.join(",")),
        ("Constraints", constraints(&resources).join(", ")),
        ("Walltime", format!("{walltime}{each}")),
        ("Begin", spec.timing.as_ref().and_then(|timing| time(timing.begin_ms)).unwrap_or_default()),
        ("Deadline", spec.timing.as_ref().and_then(|timing| time(timing.deadline_ms)).unwrap_or_default()),
        ("Nice", if spec.nice == 0 { String::new() } else { spec.nice.to_string() }),
        ("Reservation", spec.reservation.clone()),
        ("Comment", spec.comment.clone()),
        ("Mail", spec.mail.as_ref().map(|mail| mail.events.join(", ")).unwrap_or_default()),
        ("Tenant", spec.tenant.clone()),
        ("Tags", tags(spec).join(", ")),
        ("vCluster", spec.vcluster.clone()),
        ("Uenv", uenv),
        ("Held", if spec.hold { "until `lattice resume`".to_owned() } else { String::new() }),
        ("Depends on", depends_on(spec).join(", ")),
    ]);
    block(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(task_group: Option<v1::TaskGroup>) -> v1::AllocationSpec {
        let what = Some(What::Command(v1::entrypoint::Command { argv: vec!["./sim".into()] }));
        v1::AllocationSpec {
            name: "sweep".into(),
            resources: Some(v1::ResourceRequest { nodes: 2, ..Default::default() }),
            lifecycle: Some(v1::Lifecycle { walltime_seconds: 5400, ..Default::default() }),
            entrypoint: Some(v1::Entrypoint { what }),
            tasks_per_node: 3,
            task_group,
            ..Default::default()
        }
    }

    #[test]
    fn a_group_is_shown_with_its_tasks_and_what_each_of_them_gets() {
        let indices = vec![v1::IndexRun { first: 0, last: 99, step: 1 }, v1::IndexRun { first: 200, last: 208, step: 4 }];
        let group = v1::TaskGroup { indices, concurrency: 20, max_failures: Some(3) };
        let want = "\
Name:           sweep
Command:        ./sim
Tasks:          103, with indices 0-99,200-208:4
At a time:      at most 20 tasks
Failures:       when more than 3 tasks have failed, no other begins
Nodes:          2 for each task
Share:          whole nodes
Ranks:          3 on each node, 6 in all for each task
Walltime:       01:30:00 for each task
";
        let squeezed = |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
        assert_eq!(squeezed(&text(&spec(Some(group.clone())))), squeezed(want));
        let json = |spec: &v1::AllocationSpec| serde_json::json!(DryRunJson::from(spec));
        assert_eq!(json(&spec(Some(group)))["task_group"]["tasks"], 103);
        let single = text(&spec(None));
        assert!(!single.contains("Tags"), "{single}");
        let tags = [("b", "2"), ("a", "1")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let tagged = v1::AllocationSpec { tags, ..spec(None) };
        assert!(text(&tagged).lines().any(|line| line.split_whitespace().eq(["Tags:", "a=1,", "b=2"])), "{}", text(&tagged));
        assert_eq!(json(&tagged)["tags"], serde_json::json!({ "a": "1", "b": "2" }));
        assert!(single.contains("3 on each node, 6 in all\n") && !single.contains("for each task"), "{single}");
    }

    #[test]
    fn the_expected_start_is_shown() {
        let nodes = vec!["n2".to_owned(), "n1".to_owned()];
        let expected = v1::ExpectedStart { start_ms: 1_772_704_812_034, nodes, cores: 4, reason: "wants 2 nodes".into() };
        assert_eq!(start_text(&expected), "It is expected to begin at 2026-03-05T10:00:12.034Z on n[1-2].\n");
        let unknown = v1::ExpectedStart { start_ms: 0, nodes: Vec::new(), ..expected };
        assert_eq!(start_text(&unknown), "When it would begin is not known: wants 2 nodes.\n");
    }
}
