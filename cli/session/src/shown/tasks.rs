//! Task groups: how many tasks are in each state, the states of all tasks, one task, and the lanes.

use super::state::reason;
use super::values::{filled, folded, short};
use super::walltime::elapsed;
use crate::output::{TableSize, Width};
use crate::table::{Fit, Table, block, shortened};
use lattice_api::allocation::state_from_name;
use lattice_api::json::{index_run, lanes_of_task, task_end_reason};
use lattice_api::v1;
use lattice_model::AllocationState;
use lattice_model::count::counted;
use lattice_model::task_group::IndexRun;
use lattice_model::time::Timestamp;

/// Characters of a list of indices that are shown beside other values; the JSON has the whole list.
const LIST_CHARS_MAX: usize = 60;

/// How tables of tasks and lanes are made narrower.
const TASKS_FIT: Fit<'_> = Fit { left_out: &[], shortened: &[], wrapped: &[("INDICES", 24)], left_out_last: &[] };
const LANES_FIT: Fit<'_> = Fit { left_out: &["ELAPSED"], shortened: &[], wrapped: &[("NODES", 8), ("REASON", 16)], left_out_last: &[] };

/// One task of a group.
#[derive(Debug)]
pub struct Task {
    /// The whole id of its group.
    pub group: String,
    /// Its index.
    pub index: u32,
    /// Its state and the values that the agent knows.
    pub known: v1::TaskRange,
}

impl Task {
    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        state_from_name(&self.known.state).is_ok_and(|state| state.is_terminal())
    }

    /// The group's id and the index, as a user types them.
    pub fn name(&self) -> String {
        format!("{}[{}]", self.group, self.index)
    }
}

/// The indices and the limit of a task group in few characters; empty for other work.
pub fn group_list(a: &v1::Allocation) -> String {
    shortened(&a.task_group, LIST_CHARS_MAX)
}

/// The tasks of a specification, in rows with labels; an empty row is not shown.
pub fn group_rows(group: &v1::TaskGroup) -> [(&'static str, String); 3] {
    let runs: Vec<IndexRun> = group.indices.iter().map(index_run).collect();
    let tasks: u64 = runs.iter().map(|run| u64::from(run.count())).sum();
    let list = runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let (noun, limit) = (if tasks == 1 { "index" } else { "indices" }, group.concurrency);
    let limit = if limit == 0 { String::new() } else { format!("at most {}", counted(limit, "task")) };
    let failures = group.max_failures.map_or_else(String::new, |most| match most {
        0 => "when a task has failed, no other begins".to_owned(),
        1 => "when more than 1 task has failed, no other begins".to_owned(),
        most => format!("when more than {most} tasks have failed, no other begins"),
    });
    [("Tasks", format!("{tasks}, with {noun} {}", shortened(&list, LIST_CHARS_MAX))), ("At a time", limit), ("Failures", failures)]
}

fn run_of(range: &v1::TaskRange) -> IndexRun {
    index_run(&range.indices.unwrap_or_default())
}

/// How many tasks of a task group are in each state, below a heading that says how to see more; empty for other work.
pub fn group_text(a: &v1::Allocation) -> String {
    let Some(counts) = a.tasks.as_ref().filter(|_| !a.task_group.is_empty()) else { return String::new() };
    let mut table = Table::new(&["WAITING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "RESTARTS", "LANES"]);
    let lanes = match counts.lanes_waiting {
        0 => counts.lanes_running.to_string(),
        waiting => format!("{} ({waiting} wait)", counts.lanes_running),
    };
    let numbers = [counts.waiting, counts.running, counts.completed, counts.failed, counts.cancelled, counts.restarts];
    table.row(numbers.map(|number| number.to_string()).into_iter().chain([lanes]).collect());
    let total = counted(counts.total, "task");
    format!("\n{total}; `lattice status {} --tasks` and `--lanes` show more:\n{}", short(&a.id), table.text(&[]))
}

/// The state of tasks, with the exit code or the reason if they failed.
fn state_text(range: &v1::TaskRange) -> String {
    match (range.exit_code, task_end_reason(range)) {
        (Some(0), _) | (None, None) => range.state.clone(),
        (Some(code), _) => format!("{} ({code})", range.state),
        (None, Some(reason)) => format!("{} ({reason})", range.state),
    }
}

/// Tasks in the same state, as a line of the table.
struct StateLine {
    state: String,
    tasks: u64,
    indices: Vec<String>,
}

/// The tasks of a group: a line for each state and exit code, or if wide for each range of indices. `truncated`:
/// there are more ranges, so a state may have more tasks.
pub fn tasks_table(ranges: &[v1::TaskRange], truncated: bool, size: TableSize) -> String {
    if size.width == Width::Wide {
        let mut table = Table::new(&["INDICES", "TASKS", "STATE", "EXIT CODE", "REASON"]);
        for range in ranges {
            let (run, code) = (run_of(range), range.exit_code.map(|code| code.to_string()).unwrap_or_default());
            let reason = task_end_reason(range).unwrap_or_default().to_owned();
            table.row(vec![run.to_string(), run.count().to_string(), range.state.clone(), code, reason]);
        }
        return table.text(&[]);
    }
    let mut lines: Vec<StateLine> = Vec::new();
    for range in ranges {
        let (state, run) = (state_text(range), run_of(range));
        let (tasks, indices) = (u64::from(run.count()), run.to_string().replace(',', ", "));
        match lines.iter_mut().find(|line| line.state == state) {
            Some(line) => {
                line.tasks += tasks;
                line.indices.push(indices);
            }
            None => lines.push(StateLine { state, tasks, indices: vec![indices] }),
        }
    }
    let mut table = Table::new(&["STATE", "TASKS", "INDICES"]);
    for line in lines {
        let (least, more) = if truncated { ("at least ", ", …") } else { ("", "") };
        table.row(vec![line.state, format!("{least}{}", line.tasks), line.indices.join(", ") + more]);
    }
    table.on_screen(&[], &TASKS_FIT, size)
}

/// A range as a user types it, after the group's id.
pub fn range_name(group: &str, range: &v1::TaskRange) -> String {
    format!("{group}[{}]", run_of(range))
}

fn place_text((lane, node): (&str, Option<&str>)) -> String {
    let on = node.map_or_else(String::new, |node| format!(" on {node}"));
    format!("{}{on}", short(lane))
}

/// Everything about one task.
pub fn task_block(task: &Task) -> String {
    let known = &task.known;
    let rows = [
        ("Task", task.name()),
        ("State", known.state.clone()),
        ("Reason", task_end_reason(known).unwrap_or_default().to_owned()),
        ("Exit code", known.exit_code.map(|code| code.to_string()).unwrap_or_default()),
        ("Restarts", if known.restarts == 0 { String::new() } else { known.restarts.to_string() }),
    ];
    let labels = std::iter::once("Lanes").chain(std::iter::repeat(""));
    let lanes: Vec<(&str, String)> = labels.zip(lanes_of_task(known).map(place_text)).collect();
    block(&[&rows[..], &lanes[..]].concat())
}

/// Why one task waits, where it runs, or how it ended.
pub fn task_text(task: &Task) -> String {
    let known = &task.known;
    let place = lanes_of_task(known).next_back().map(place_text);
    let reason = task_end_reason(known).map(str::to_owned);
    let why = match state_from_name(&known.state) {
        Ok(AllocationState::Pending) => Some(match place {
            Some(place) => format!("it waits for another lane; the last one was {place}"),
            None => "it waits for a lane of its task group".to_owned(),
        }),
        Ok(AllocationState::Running) => place.map(|place| format!("in lane {place}, where it runs or is next in line")),
        Ok(AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled) => {
            let parts: Vec<String> = reason.into_iter().chain(place.map(|place| format!("it ran in lane {place}"))).collect();
            Some(parts.join("; ")).filter(|why| !why.is_empty())
        }
        Ok(AllocationState::Staging | AllocationState::Suspended) | Err(_) => reason,
    };
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    let restarts = match known.restarts {
        0 => String::new(),
        restarts => format!("It was begun again {}, because its lane was lost or ended early.\n", counted(restarts, "time")),
    };
    format!("{}[{}] is {}{why}\n{restarts}", short(&task.group), task.index, known.state)
}

/// The lanes of a task group.
pub fn lanes_table(lanes: &[v1::Allocation], now: Timestamp, size: TableSize) -> String {
    let mut table = Table::new(&["LANE", "ID", "STATE", "ELAPSED", "NODES", "REASON"]);
    for lane in lanes {
        table.row(vec![
            lane.lane_number.to_string(),
            short(&lane.id).to_owned(),
            lane.state.clone(),
            elapsed(lane, now).unwrap_or_default(),
            folded(&lane.nodes),
            filled(&lane.status_message).map_or_else(|| reason(lane), str::to_owned),
        ]);
    }
    table.on_screen(&["REASON"], &LANES_FIT, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::json::{TaskJson, TasksJson};
    use lattice_api::test_builders::{NOW, pending, running};

    const ID: &str = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";
    const TERSE: TableSize = TableSize { width: Width::Terse, columns: None };

    fn range(first: u32, last: u32, state: &str, exit_code: Option<i32>, reason: &str) -> v1::TaskRange {
        let indices = Some(v1::IndexRun { first, last, step: 1 });
        v1::TaskRange { indices, state: state.into(), exit_code, reason: reason.into(), ..Default::default() }
    }

    fn ranges() -> Vec<v1::TaskRange> {
        vec![
            range(0, 41, "Completed", Some(0), "completed"),
            range(42, 42, "Failed", Some(1), "exit_code 1"),
            range(43, 62, "Running", None, ""),
            range(63, 63, "Completed", Some(0), "completed"),
            range(64, 64, "Failed", None, "walltime_exceeded"),
            range(65, 69, "Cancelled", None, "cancelled"),
            range(70, 99, "Pending", None, ""),
        ]
    }

    fn task(state: &str, lanes: &[(&str, &str)], restarts: u32, exit_code: Option<i32>, reason: &str) -> Task {
        let (lanes, nodes): (Vec<String>, Vec<String>) = lanes.iter().map(|(lane, node)| ((*lane).to_owned(), (*node).to_owned())).unzip();
        Task { group: ID.into(), index: 7, known: v1::TaskRange { lanes, nodes, restarts, ..range(7, 7, state, exit_code, reason) } }
    }

    #[test]
    fn tasks_have_a_line_for_each_state_and_exit_code() {
        let want = "\
STATE                       TASKS  INDICES
Completed                   43     0-41, 63
Failed (1)                  1      42
Running                     20     43-62
Failed (walltime_exceeded)  1      64
Cancelled                   5      65-69
Pending                     30     70-99
";
        assert_eq!(tasks_table(&ranges(), false, TERSE), want);
        assert_eq!(tasks_table(&[], false, TERSE), "STATE  TASKS  INDICES\n");
        let want = "\
STATE       TASKS        INDICES
Completed   at least 42  0-41, …
Failed (1)  at least 1   42, …
";
        assert_eq!(tasks_table(&ranges()[..2], true, TERSE), want);
        let scattered: Vec<_> = (0..20).map(|at| range(at * 10, at * 10, "Completed", Some(0), "")).collect();
        let want = "\
STATE      TASKS  INDICES
Completed  20     0, 10, 20, 30, 40, 50,
                  60, 70, 80, 90, 100,
                  110, 120, 130, 140, 150,
                  160, 170, 180, 190
";
        assert_eq!(tasks_table(&scattered, false, TableSize { width: Width::Terse, columns: Some(42) }), want);
    }

    #[test]
    fn wide_and_json_have_a_record_for_each_range() {
        let want = "\
INDICES  TASKS  STATE      EXIT CODE  REASON
0-41     42     Completed  0          —
42       1      Failed     1          exit_code 1
43-62    20     Running    —          —
";
        assert_eq!(tasks_table(&ranges()[..3], false, TableSize { width: Width::Wide, columns: Some(20) }), want);
        let counts = Some(v1::TaskCounts { total: 3, completed: 2, failed: 1, lanes_running: 2, ..Default::default() });
        let mut odd = range(0, 8, "Completed", Some(0), "completed");
        odd.indices = Some(v1::IndexRun { first: 0, last: 8, step: 2 });
        let failed = range(42, 42, "Failed", Some(1), "exit_code 1");
        let answer = v1::GetTasksResponse { id: ID.into(), counts, ranges: vec![odd, failed], truncated: true };
        assert_eq!(
            serde_json::to_value(TasksJson::from(&answer)).unwrap(),
            serde_json::json!({
                "id": ID,
                "counts": {
                    "total": 3, "waiting": 0, "running": 0, "completed": 2, "failed": 1, "cancelled": 0, "restarts": 0,
                    "lanes_running": 2, "lanes_waiting": 0,
                },
                "ranges": [
                    {"first": 0, "last": 8, "step": 2, "state": "Completed", "reason": null, "exit_code": 0},
                    {"first": 42, "last": 42, "step": 1, "state": "Failed", "reason": "exit_code 1", "exit_code": 1},
                ],
                "truncated": true,
            })
        );
        assert_eq!(range_name(ID, &answer.ranges[0]), format!("{ID}[0-8:2]"));
    }

    #[test]
    fn numbers_of_an_agent_that_make_no_sense_are_shown_without_harm() {
        let mut wrong = range(9, 3, "Running", None, "");
        assert_eq!(range_name("a", &wrong), "a[9]");
        wrong.indices = Some(v1::IndexRun { first: 0, last: u32::MAX, step: 0 });
        assert_eq!(range_name("a", &wrong), "a[0-2147483647]");
        wrong.indices = None;
        assert_eq!(range_name("a", &wrong), "a[0]");
    }

    #[test]
    fn a_task_group_has_its_numbers_in_eighty_columns() {
        let counts =
            v1::TaskCounts { total: 100, waiting: 37, running: 20, completed: 42, failed: 1, lanes_running: 20, ..Default::default() };
        let group = v1::Allocation { task_group: "0-99%20".into(), tasks: Some(counts), ..running() };
        let want = "
100 tasks; `lattice status 1f0c9a4e --tasks` and `--lanes` show more:
WAITING  RUNNING  COMPLETED  FAILED  CANCELLED  RESTARTS  LANES
37       20       42         1       0          0         20
";
        assert_eq!(group_text(&group), want);
        let million = v1::TaskCounts { total: 1_000_000, lanes_running: 1000, lanes_waiting: 32, restarts: 3, ..counts };
        let shown = group_text(&v1::Allocation { tasks: Some(million), ..group.clone() });
        assert!(shown.contains("3         1000 (32 wait)\n") && shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        assert_eq!((group_text(&running()), group_list(&running())), (String::new(), String::new()));
        let long = v1::Allocation { task_group: "1,3,".repeat(100), ..group };
        assert_eq!(group_list(&long).chars().count(), LIST_CHARS_MAX);
    }

    #[test]
    fn a_specification_names_its_tasks() {
        let runs = vec![v1::IndexRun { first: 0, last: 99, step: 1 }, v1::IndexRun { first: 200, last: 208, step: 4 }];
        let group = v1::TaskGroup { indices: runs, concurrency: 20, max_failures: Some(3) };
        let rows = |group: &v1::TaskGroup| group_rows(group).map(|(_, text)| text);
        let failures = "when more than 3 tasks have failed, no other begins";
        assert_eq!(rows(&group), ["103, with indices 0-99,200-208:4", "at most 20 tasks", failures]);
        let one = v1::TaskGroup { indices: vec![v1::IndexRun { first: 7, last: 7, step: 0 }], ..Default::default() };
        assert_eq!(rows(&one), ["1, with index 7", "", ""]);
    }

    #[test]
    fn one_task_is_shown_with_the_lanes_that_ran_it() {
        let failed = task("Failed", &[("2f0c9a4e-5b7d", ""), ("77ab01cd-5b7d", "n2")], 1, Some(3), "exit_code 3");
        let want = "\
Task:       1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88[7]
State:      Failed
Reason:     exit_code 3
Exit code:  3
Restarts:   1
Lanes:      2f0c9a4e
            77ab01cd on n2
";
        assert_eq!(task_block(&failed), want);
        assert_eq!(
            serde_json::to_value(TaskJson::of(&failed.group, failed.index, &failed.known)).unwrap(),
            serde_json::json!({
                "id": ID, "index": 7, "state": "Failed", "reason": "exit_code 3", "exit_code": 3, "restarts": 1,
                "lanes": [{"id": "2f0c9a4e-5b7d", "node": null}, {"id": "77ab01cd-5b7d", "node": "n2"}],
            })
        );
        assert_eq!(task_block(&task("Pending", &[], 0, None, "")), format!("Task:   {ID}[7]\nState:  Pending\n"));
    }

    #[test]
    fn a_task_says_why_it_waits_where_it_runs_and_how_it_ended() {
        for (task, want) in [
            (task("Pending", &[], 0, None, ""), "1f0c9a4e[7] is Pending: it waits for a lane of its task group\n"),
            (
                task("Pending", &[("2f0c9a4e-5b7d", "n1")], 1, None, ""),
                "1f0c9a4e[7] is Pending: it waits for another lane; the last one was 2f0c9a4e on n1\n\
                 It was begun again 1 time, because its lane was lost or ended early.\n",
            ),
            (
                task("Running", &[("2f0c9a4e-5b7d", "n1"), ("77ab01cd-5b7d", "n2")], 0, None, ""),
                "1f0c9a4e[7] is Running: in lane 77ab01cd on n2, where it runs or is next in line\n",
            ),
            (
                task("Failed", &[("77ab01cd-5b7d", "n2")], 0, Some(3), "exit_code 3"),
                "1f0c9a4e[7] is Failed: exit_code 3; it ran in lane 77ab01cd on n2\n",
            ),
            (
                task("Completed", &[("77ab01cd-5b7d", "n2")], 0, Some(0), "completed"),
                "1f0c9a4e[7] is Completed: it ran in lane 77ab01cd on n2\n",
            ),
            (task("Cancelled", &[], 0, None, "cancelled"), "1f0c9a4e[7] is Cancelled\n"),
        ] {
            assert_eq!(task_text(&task), want);
        }
    }

    #[test]
    fn lanes_are_listed_with_their_nodes() {
        let first = v1::Allocation { lane_of: ID.into(), lane_number: 0, ..running() };
        let second = v1::Allocation { lane_of: ID.into(), lane_number: 12, ..pending() };
        let want = "\
LANE  ID        STATE    ELAPSED   NODES   REASON
0     1f0c9a4e  Running  14:23:01  n[1-3]  —
12    20000000  Pending  —         —       next: wants 4 nodes, 2 are free
";
        assert_eq!(lanes_table(&[first, second], NOW, TERSE), want);
        assert_eq!(lanes_table(&[], NOW, TERSE), "LANE  ID  STATE  ELAPSED  NODES\n");
    }
}
