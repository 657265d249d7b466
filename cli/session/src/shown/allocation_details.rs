//! Everything about one allocation, as `status ID` shows it.

use super::amounts::amount;
use super::counts::{nodes_wanted, tasks_of};
use super::network::{domain, exposed};
use super::program::{command, script};
use super::scaling::{is_scaled, scaling_rows};
use super::state::reason;
use super::tasks::group_list;
use super::values::{folded, queue, short, time};
use super::walltime::{elapsed, walltime};
use crate::last_stderr::LastStderr;
use crate::table::block;
use lattice_api::json::LastStderrLine;
use lattice_api::v1;
use lattice_model::count::counted;
use lattice_model::duration::clock_text;
use lattice_model::resources::bytes_text;
use lattice_model::spec::PREEMPTION_CLASS_DEFAULT;
use lattice_model::time::Timestamp;
use std::time::Duration;

/// Everything about one allocation.
pub fn allocation_block(a: &v1::Allocation, stderr: &LastStderr, now: Timestamp) -> String {
    let nodes = if is_scaled(a) {
        String::new()
    } else if a.nodes.is_empty() {
        format!("{} wanted", nodes_wanted(a))
    } else {
        format!("{} ({})", folded(&a.nodes), a.nodes.len())
    };
    let uenv = if a.uenv.is_empty() { String::new() } else { format!("{} (sha256 {})", a.uenv, a.uenv_sha256) };
    let ended = last_stderr(stderr);
    let head = [
        ("ID", a.id.clone()),
        ("Job", job_numbers(a)),
        ("Name", a.name.clone()),
        ("Project", a.project.clone()),
        ("Tags", tags(a)),
        ("Owner", a.owner.clone()),
        ("State", a.state.clone()),
        ("Message", status_message(a)),
        ("Reason", reason(a)),
    ];
    let rows = [
        ("Exit code", a.exit_code.map(|code| code.to_string()).unwrap_or_default()),
        ("Last stderr", ended.first().cloned().unwrap_or_default()),
        ("", ended.get(1).cloned().unwrap_or_default()),
        ("Memory peak", a.memory_peak_bytes.map(|bytes| used(a, bytes_text(bytes), "on one node")).unwrap_or_default()),
        ("Processor time", a.cpu_ms.map(|ms| used(a, format!("{:.1} s", ms as f64 / 1e3), "in all")).unwrap_or_default()),
        ("Script", script(a)),
        ("Command", command(a)),
        ("Directory", a.working_dir.clone()),
        ("Files", files(a)),
        ("Nodes", nodes),
        ("Share", a.share.as_ref().map(|s| format!("{} of each node", amount(s))).unwrap_or_default()),
        ("Topology", a.topology.clone()),
        ("Tasks", if has_one_rank(a) { String::new() } else { tasks_of(a) }),
        (
            "Replica",
            if a.replica_of.is_empty() { String::new() } else { format!("{} of service {}", a.replica_number, short(&a.replica_of)) },
        ),
        ("Task group", group_list(a)),
        ("Lane", if a.lane_of.is_empty() { String::new() } else { format!("{} of task group {}", a.lane_number, short(&a.lane_of)) }),
        ("Walltime", if a.task_group.is_empty() { walltime(a) } else { format!("{} for each task", walltime(a)) }),
        ("Least walltime", least_walltime(a)),
        ("Class", unusual_class(a)),
        ("Nice", if a.nice == 0 { String::new() } else { a.nice.to_string() }),
        ("Begin", a.timing.as_ref().and_then(|timing| time(timing.begin_ms)).unwrap_or_default()),
        ("Deadline", a.timing.as_ref().and_then(|timing| time(timing.deadline_ms)).unwrap_or_default()),
        ("Reservation", a.reservation.clone()),
        ("Comment", a.comment.clone()),
        ("Mail", a.mail.as_ref().map(mail).unwrap_or_default()),
        ("Elapsed", elapsed(a, now).unwrap_or_default()),
        ("Expected start", a.expected_start_ms.and_then(time).unwrap_or_default()),
        ("Submitted", time(a.submitted_at_ms).unwrap_or_default()),
        ("Claimed", time(a.claimed_at_ms).unwrap_or_default()),
        ("Started", time(a.started_at_ms).unwrap_or_default()),
        ("Ended", time(a.ended_at_ms).unwrap_or_default()),
        ("On isolation", if a.on_isolation == "stop" { "stop: its work ends on a node that is cut off".to_owned() } else { String::new() }),
        ("Isolated", a.isolation_note.clone()),
        ("Requeued", if a.requeue_count == 0 { String::new() } else { counted(a.requeue_count, "time") }),
        ("Preempted", if a.preempted_count == 0 { String::new() } else { counted(a.preempted_count, "time") }),
        ("Held", if a.held { format!("until `lattice resume {}`", short(&a.id)) } else { String::new() }),
        ("Telemetry", a.telemetry.clone()),
        ("Checkpoint", a.checkpoint.as_ref().map(checkpoint).unwrap_or_default()),
        ("Tenant", a.tenant.clone()),
        ("vCluster", queue(&a.vcluster).to_owned()),
        ("uenv", uenv),
        (
            "Network",
            domain(a).map(|name| format!("{name}{}", a.vni.map(|vni| format!(" (VNI {vni})")).unwrap_or_default())).unwrap_or_default(),
        ),
        ("DAG", if a.dag.is_empty() { String::new() } else { format!("{}, step {}", short(&a.dag), a.dag_step) }),
        ("Not enforced", a.network_note.clone()),
        ("Offers", exposed(a).iter().map(|e| format!("{}:{}/{}", e.name, e.port, e.protocol)).collect::<Vec<_>>().join(", ")),
    ];
    block(&[&head[..], &scaling_rows(a)[..], &rows[..], &dependencies(a)[..]].concat())
}

/// Its job number, or those of a task group; empty: it has none.
fn job_numbers(a: &v1::Allocation) -> String {
    let count = a.tasks.as_ref().map_or(1, |tasks| u64::from(tasks.total.max(1)));
    match (a.number, count) {
        (0, _) => String::new(),
        (number, 1) => number.to_string(),
        (number, count) => format!("{number} (its tasks: {number} to {})", number + count - 1),
    }
}

/// The files of its user that its output is also written to.
fn files(a: &v1::Allocation) -> String {
    let Some(v1::OutputFiles { stdout, stderr, stdin, append: _ }) = &a.output_files else { return String::new() };
    let named = [("output", stdout), ("error", stderr), ("input", stdin)].into_iter().filter(|(_, name)| !name.is_empty());
    named.map(|(what, name)| format!("{what} {name}")).collect::<Vec<_>>().join(", ")
}

/// The least walltime with which it may begin.
fn least_walltime(a: &v1::Allocation) -> String {
    let least = a.timing.as_ref().map_or(0, |timing| timing.walltime_min_seconds);
    if least == 0 { String::new() } else { clock_text(Duration::from_secs(least)) }
}

/// The events of which somebody gets mail.
fn mail(mail: &v1::Mail) -> String {
    let to = if mail.user.is_empty() { String::new() } else { format!(" to {}", mail.user) };
    mail.events.join(", ") + &to
}

/// Its tags, by their names.
fn tags(a: &v1::Allocation) -> String {
    let mut all: Vec<String> = a.tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    all.sort_unstable();
    all.join(", ")
}

/// Whether each task of a task group, or each replica of a service, is one process: a number of ranks would look like the
/// number of tasks or replicas.
fn has_one_rank(a: &v1::Allocation) -> bool {
    let nodes = a.nodes_requested.max(a.nodes_requested_max);
    (!a.task_group.is_empty() || is_scaled(a)) && a.ranks == 0 && nodes <= 1 && a.tasks_per_node <= 1
}

/// A line for each allocation that it depends on.
fn dependencies(a: &v1::Allocation) -> Vec<(&'static str, String)> {
    let labels = std::iter::once("Depends on").chain(std::iter::repeat(""));
    let shown = |d: &v1::DependencyStatus| {
        let state = if d.state.is_empty() { "not ended" } else { d.state.as_str() };
        format!("{} of {} ({}): {state}", d.condition, short(&d.id), d.name)
    };
    labels.zip(a.dependencies.iter().map(shown)).collect()
}

/// Its preemption class, if that is not the usual one.
fn unusual_class(a: &v1::Allocation) -> String {
    let class = a.preemption_class.filter(|class| *class != u32::from(PREEMPTION_CLASS_DEFAULT));
    class.map(|class| class.to_string()).unwrap_or_default()
}

/// Its status message, and its position in the queue.
fn status_message(a: &v1::Allocation) -> String {
    match a.queue_position {
        0 => a.status_message.clone(),
        place => format!("{} (place {place} in the queue)", a.status_message),
    }
}

/// The amount used, and for how many nodes it is known if not for all.
fn used(a: &v1::Allocation, amount: String, of: &str) -> String {
    let nodes = a.nodes.len();
    // Work that waits for its next attempt has no nodes: the amount is that of the last attempt.
    let known = match nodes {
        0 => " (last attempt)".to_owned(),
        _ if a.usage_nodes as usize == nodes => String::new(),
        _ => format!(" ({} of {nodes} nodes reported it so far)", a.usage_nodes),
    };
    if nodes > 1 { format!("{amount} {of}{known}") } else { format!("{amount}{known}") }
}

/// At most two lines: the last lines, with rank and launch if they are of a launch, and why others were not read.
fn last_stderr(stderr: &LastStderr) -> Vec<String> {
    let line = |last: &LastStderrLine| match last.launch {
        0 => last.line.clone(),
        launch => format!("{} (rank {} of launch {launch})", last.line, last.rank),
    };
    let unread = stderr.unread.iter().map(|why| format!("not read: {why}"));
    stderr.lines.iter().map(line).chain(unread).take(2).collect()
}

fn checkpoint(c: &v1::CheckpointRef) -> String {
    let step = c.step.map_or_else(String::new, |step| format!(", step {step}"));
    format!("{} ({}{step})", short(&c.id), bytes_text(c.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::test_builders::{NOW, running, service};

    #[test]
    fn one_allocation_in_full() {
        let want = "\
ID:         1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88
Name:       training-run
Owner:      ada
State:      Running
Nodes:      n[1-3] (3)
Tasks:      2 on each node, 6 in all
Walltime:   72:00:00
Elapsed:    14:23:01
Submitted:  2026-03-05T10:00:00.000Z
Claimed:    2026-03-05T10:00:01.000Z
Started:    2026-03-05T10:00:12.000Z
vCluster:   ml-training
";
        assert_eq!(allocation_block(&running(), &LastStderr::default(), NOW), want);
    }

    #[test]
    fn a_task_group_has_a_job_number_for_each_task() {
        let plain = v1::Allocation { number: 12, ..running() };
        assert_eq!((job_numbers(&plain), job_numbers(&running())), ("12".to_owned(), String::new()));
        let tasks = |total| Some(v1::TaskCounts { total, ..Default::default() });
        assert_eq!(job_numbers(&v1::Allocation { tasks: tasks(100), ..plain.clone() }), "12 (its tasks: 12 to 111)");
        assert_eq!(job_numbers(&v1::Allocation { tasks: tasks(1), ..plain }), "12");
    }

    #[test]
    fn a_task_group_and_its_lanes_name_each_other() {
        let shown = |a: &v1::Allocation| allocation_block(a, &LastStderr::default(), NOW);
        let group = shown(&v1::Allocation { task_group: "0-99%20".into(), ..running() });
        assert!(group.contains("Task group:  0-99%20\n") && group.contains("Walltime:    72:00:00 for each task\n"), "{group}");
        assert!(group.contains("Tasks:       2 on each node, 6 in all\n"), "{group}");
        let one = v1::Allocation { nodes: vec![], nodes_requested: 1, tasks_per_node: 1, task_group: "0-99".into(), ..running() };
        assert!(!shown(&one).contains("Tasks:"), "{}", shown(&one));
        let lane = shown(&v1::Allocation { lane_of: "2f0c9a4e-5b7d".into(), lane_number: 3, ..running() });
        assert!(lane.contains("Lane:       3 of task group 2f0c9a4e\n") && lane.contains("Walltime:   72:00:00\n"), "{lane}");
    }

    #[test]
    fn a_service_that_scales_is_shown_by_its_replicas() {
        let want = "\
ID:           1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88
Name:         serve
Owner:        ada
State:        Running
Message:      3 of 4 replicas
Replicas:     3 have nodes, 1 waits for a node, 2 leave; 4 wanted (2 to 6)
Scales by:    cpu_utilization: more above 0.8, fewer below 0.4
Metric:       above 0.8 since 2026-03-05T10:00:12.000Z (first value 0.91)
Last change:  3 to 4 at 2026-03-05T10:00:11.000Z (the metric was 0.93)
Walltime:     service
Elapsed:      14:23:01
Submitted:    2026-03-05T10:00:00.000Z
Claimed:      2026-03-05T10:00:01.000Z
Started:      2026-03-05T10:00:12.000Z
vCluster:     ml-training
";
        let service = v1::Allocation { status_message: "3 of 4 replicas".into(), ..service() };
        assert_eq!(allocation_block(&service, &LastStderr::default(), NOW), want);
        let replica = v1::Allocation { replica_of: "2f0c9a4e-5b7d".into(), replica_number: 3, ..running() };
        let shown = allocation_block(&replica, &LastStderr::default(), NOW);
        assert!(shown.contains("Replica:    3 of service 2f0c9a4e\n") && shown.contains("Nodes:      n[1-3] (3)\n"), "{shown}");
    }

    #[test]
    fn each_dependency_has_a_line() {
        let dependency = |id: &str, condition: &str, state: &str| v1::DependencyStatus {
            id: id.into(),
            name: "prep".into(),
            condition: condition.into(),
            state: state.into(),
            met: false,
        };
        let dependencies = vec![dependency("2f0c9a4e-5b7d", "success", "Completed"), dependency("3f0c9a4e-5b7d", "any", "")];
        let shown = allocation_block(&v1::Allocation { dependencies, ..running() }, &LastStderr::default(), NOW);
        let rows = "Depends on:  success of 2f0c9a4e (prep): Completed\n             any of 3f0c9a4e (prep): not ended\n";
        assert!(shown.ends_with(rows), "{shown}");
    }

    #[test]
    fn an_ended_allocation_has_a_summary() {
        let ended = v1::Allocation {
            state: "Failed".into(),
            reason: "exit_code 3".into(),
            exit_code: Some(3),
            ended_at_ms: 1_772_704_813_000,
            usage_nodes: 2,
            memory_peak_bytes: Some(3 << 30),
            cpu_ms: Some(61_250),
            command: vec!["./run it".into(), "a'b".into(), "-n=3".into()],
            working_dir: "/home/ada".into(),
            script: "#!/bin/sh\nexit 3\n".into(),
            preemption_class: Some(0),
            ..running()
        };
        let line = |launch, line: &str| LastStderrLine { launch, rank: 1, line: line.into() };
        let stderr = LastStderr { lines: vec![line(0, "no such file"), line(2, "segfault")], unread: None };
        let shown = allocation_block(&ended, &stderr, NOW);
        for want in [
            "Last stderr:     no such file\n",
            "                 segfault (rank 1 of launch 2)\n",
            "Memory peak:     3.0 GiB on one node (2 of 3 nodes reported it so far)\n",
            "Processor time:  61.2 s in all (2 of 3 nodes reported it so far)\n",
            "Script:          training-run (2 lines; -o json has them)\n",
            "Command:         './run it' 'a'\\''b' -n=3\n",
            "Directory:       /home/ada\n",
            "Class:           0\n",
        ] {
            assert!(shown.contains(want), "{want}\n{shown}");
        }
        let unread = LastStderr { lines: vec![], unread: Some("the node is unreachable".into()) };
        assert!(allocation_block(&ended, &unread, NOW).contains("Last stderr:     not read: the node is unreachable\n"));
        let waits_again = v1::Allocation { nodes: vec![], state: "Suspended".into(), ..ended };
        let shown = allocation_block(&waits_again, &LastStderr::default(), NOW);
        assert!(shown.contains("Memory peak:     3.0 GiB (last attempt)\n"), "{shown}");
    }
}
