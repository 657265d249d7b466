//! `lattice cancel`.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::listing;
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_session::tasks::{has_replicas, replica_key};
use lattice_cli_syntax::args::allocations::Cancel;
use lattice_cli_syntax::tasks::{Target, index_runs};
use lattice_model::count::counted;
use lattice_model::scaling::REPLICAS_MAX;
use lattice_model::{AllocationState, TaskIndices};

/// The states of work that has not ended.
const UNENDED_STATES: [AllocationState; 4] =
    [AllocationState::Pending, AllocationState::Staging, AllocationState::Running, AllocationState::Suspended];

/// After a failure it continues with the next allocation; the exit code is that of the first failure.
pub async fn run(session: &Session, args: Cancel) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let targets = if args.all_mine { list_own(&client, &args.state).await? } else { args.ids };
    let mut cancelled = Vec::new();
    let mut exit = 0;
    for Target { key, tasks } in targets {
        let done = match session.resolve_key(&key) {
            Ok(key) => cancel(&client, key, tasks).await,
            Err(failure) => vec![Err(failure)],
        };
        for done in done {
            match done {
                Ok(done) => cancelled.push(done),
                Err(failure) => {
                    let code = failure.exit();
                    failure.report();
                    exit = if exit == 0 { code } else { exit };
                }
            }
        }
    }
    match session.format() {
        Format::Table => print(&cancelled.iter().map(line).collect::<String>())?,
        Format::Name => {
            let names: Vec<String> = cancelled.iter().map(name).collect();
            print_names(names.iter().map(String::as_str))?;
        }
        Format::Data(notation) => notation.print(&cancelled.iter().map(json).collect::<Vec<_>>())?,
    }
    Ok(exit)
}

/// What was cancelled.
enum Cancelled {
    Allocation(v1::CancelResponse),
    /// Tasks of a task group.
    Tasks {
        tasks: TaskIndices,
        response: v1::CancelTasksResponse,
    },
}

/// What was cancelled, or why not: several results for several replicas of a service.
async fn cancel(client: &Client, key: String, numbers: Option<TaskIndices>) -> Vec<Result<Cancelled, Failure>> {
    let Some(numbers) = numbers else { return vec![cancel_one(client, key).await] };
    match has_replicas(client, &key, false).await {
        Ok(true) => cancel_replicas(client, &key, &numbers).await,
        Ok(false) => vec![cancel_tasks(client, key, numbers).await],
        Err(failure) => vec![Err(failure)],
    }
}

async fn cancel_one(client: &Client, key: String) -> Result<Cancelled, Failure> {
    answer(client.allocations().cancel(v1::CancelRequest { key })).await.map(Cancelled::Allocation)
}

async fn cancel_tasks(client: &Client, key: String, tasks: TaskIndices) -> Result<Cancelled, Failure> {
    let request = v1::CancelTasksRequest { key, indices: index_runs(&tasks) };
    let response = answer(client.allocations().cancel_tasks(request)).await?;
    Ok(Cancelled::Tasks { tasks, response })
}

/// Cancels replicas of a service, one by one; new ones replace them.
async fn cancel_replicas(client: &Client, service: &str, numbers: &TaskIndices) -> Vec<Result<Cancelled, Failure>> {
    if numbers.count() > REPLICAS_MAX {
        let what = format!("{service}[{numbers}]: no service has more than {REPLICAS_MAX} replicas");
        return vec![Err(Failure::usage(what).hint(format!("`lattice cancel {service}` ends the whole service")))];
    }
    let mut done = Vec::new();
    for number in numbers.runs().iter().flat_map(|run| (run.first..=run.last).step_by(run.step as usize)) {
        done.push(cancel_one(client, replica_key(service, number)).await);
    }
    done
}

async fn list_own(client: &Client, states: &[AllocationState]) -> Result<Vec<Target>, Failure> {
    let states = if states.is_empty() { &UNENDED_STATES } else { states };
    let request = v1::ListAllocationsRequest { states: states.iter().map(ToString::to_string).collect(), ..Default::default() };
    let found = listing::fetch_all(client, request, usize::MAX).await?;
    Ok(found.allocations.into_iter().map(|a| Target { key: a.id, tasks: None }).collect())
}

/// If the allocation had ended before, `state` is the state in which it ended.
fn line(cancelled: &Cancelled) -> String {
    match cancelled {
        // The job number of a task was named.
        Cancelled::Allocation(v1::CancelResponse { id, state }) if id.contains('[') => {
            let (group, task) = id.split_once('[').unwrap_or((id, ""));
            let what = format!("Task {} of task group {}", task.trim_end_matches(']'), short(group));
            if *state == AllocationState::Cancelled.to_string() {
                format!("{what} is cancelled\n")
            } else {
                format!("{what} had ended before: it is {state}\n")
            }
        }
        Cancelled::Allocation(v1::CancelResponse { id, state }) if *state == AllocationState::Cancelled.to_string() => {
            format!("Allocation {} is cancelled\n", short(id))
        }
        Cancelled::Allocation(v1::CancelResponse { id, state }) => {
            format!("Allocation {} had ended before: it is {state}\n", short(id))
        }
        Cancelled::Tasks { response, .. } => {
            let ended = match response.ended {
                0 => String::new(),
                ended => format!("; {ended} had ended before"),
            };
            format!("Cancelled {} of task group {}{ended}\n", counted(response.cancelled, "task"), short(&response.id))
        }
    }
}

fn name(cancelled: &Cancelled) -> String {
    match cancelled {
        Cancelled::Allocation(response) => response.id.clone(),
        Cancelled::Tasks { tasks, response } => format!("{}[{tasks}]", response.id),
    }
}

fn json(cancelled: &Cancelled) -> serde_json::Value {
    match cancelled {
        Cancelled::Allocation(response) => serde_json::json!({ "id": response.id, "state": response.state }),
        Cancelled::Tasks { tasks, response } => {
            serde_json::json!({ "id": response.id, "tasks": tasks.to_string(), "cancelled": response.cancelled, "ended": response.ended })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_was_cancelled_or_had_ended_before() {
        let allocation = |state: &str| Cancelled::Allocation(v1::CancelResponse { id: "1f0c9a4e-5b7d".into(), state: state.into() });
        assert_eq!(line(&allocation("Cancelled")), "Allocation 1f0c9a4e is cancelled\n");
        assert_eq!(line(&allocation("Failed")), "Allocation 1f0c9a4e had ended before: it is Failed\n");
        let task = |state: &str| Cancelled::Allocation(v1::CancelResponse { id: "1f0c9a4e-5b7d[7]".into(), state: state.into() });
        assert_eq!(line(&task("Cancelled")), "Task 7 of task group 1f0c9a4e is cancelled\n");
        assert_eq!(line(&task("Completed")), "Task 7 of task group 1f0c9a4e had ended before: it is Completed\n");
        let tasks = |cancelled, ended| Cancelled::Tasks {
            tasks: TaskIndices::parse("10-20,30").unwrap(),
            response: v1::CancelTasksResponse { id: "1f0c9a4e-5b7d".into(), cancelled, ended },
        };
        assert_eq!(line(&tasks(12, 0)), "Cancelled 12 tasks of task group 1f0c9a4e\n");
        assert_eq!(line(&tasks(1, 11)), "Cancelled 1 task of task group 1f0c9a4e; 11 had ended before\n");
        assert_eq!(line(&tasks(0, 12)), "Cancelled 0 tasks of task group 1f0c9a4e; 12 had ended before\n");
        assert_eq!(name(&tasks(12, 0)), "1f0c9a4e-5b7d[10-20,30]");
        let want = serde_json::json!({"id": "1f0c9a4e-5b7d", "tasks": "10-20,30", "cancelled": 1, "ended": 11});
        assert_eq!(json(&tasks(1, 11)), want);
    }
}
