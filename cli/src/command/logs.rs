//! `lattice logs`.
//!
//! The log of a script is the script's own output: its `lattice launch` prints the output of its ranks, as `srun` does,
//! so that it can be piped. Showing the ranks' files as well would show every line twice. The log of an inline command
//! is the output of the ranks of its one launch.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::follow::{Screen, exit_code_of_end, follow, program_code};
use lattice_cli_session::label::Marks;
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::{Session, now};
use lattice_cli_session::shown::Task;
use lattice_cli_session::tasks::{Numbered, fetch_task, find_numbered};
use lattice_cli_syntax::args::allocations::Logs;
use lattice_cli_syntax::tasks::OneTarget;
use lattice_cli_syntax::time::parse_past;
use std::time::Duration;
use tokio::time::sleep;

/// Interval of checks of a task that has no output to follow yet, because it waits for a lane.
const TASK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub async fn run(session: &Session, args: Logs) -> Result<u8, Failure> {
    let stream = if args.stdout {
        "stdout"
    } else if args.stderr {
        "stderr"
    } else {
        ""
    };
    let OneTarget { key, task } = args.id;
    if task.is_some() && args.task.is_some() {
        return Err(Failure::usage("the task is named twice, in the id and by --task").hint("leave one of them out"));
    }
    let since_ms = args.since.as_deref().map(|text| parse_past("--since", text, now())).transpose()?;
    let until_ms = args.until.as_deref().map(|text| parse_past("--until", text, now())).transpose()?;
    let key = session.resolve_key(&key)?;
    let client = session.connect().await?;
    let (key, task) = match task {
        None => (key, None),
        Some(index) => match find_numbered(&client, key, index, false).await? {
            Numbered::Task { key, index } => (key, Some(index)),
            Numbered::Replica { key } => (key, None),
        },
    };
    if task.is_some() && args.rank.is_some() {
        return Err(Failure::usage("a task has no ranks of its own: --rank is for other work").hint("leave --rank out"));
    }
    if args.label && (task.is_some() || args.task.is_some()) {
        return Err(Failure::usage("a task has one output: --label is for ranks").hint("leave --label out"));
    }
    let request = v1::LogsRequest {
        key,
        follow: args.follow,
        stream: stream.to_owned(),
        rank: args.rank,
        node: args.node.unwrap_or_default(),
        received: Vec::new(),
        tail: args.tail,
        since_ms,
        until_ms,
        being_submitted: false,
        attempt: args.attempt,
        previous: args.previous,
        timestamps: args.timestamps,
        task: task.or(args.task),
        launch: None,
    };
    let mut screen = Screen::new(Marks { time: args.timestamps, rank: args.label });
    if let Some(index) = request.task.filter(|_| args.follow) {
        return Box::pin(follow_task(session, client, &request, screen, index)).await;
    }
    if args.follow {
        let (end, cancelled) = follow(session, client, &request, screen, None, None).await?;
        return exit_code_of_end(&end, cancelled);
    }
    let mut stream = client.allocations().logs(request).await?.into_inner();
    while let Some(chunk) = stream.message().await? {
        screen.show(session, &chunk)?;
    }
    screen.finish()?;
    Ok(0)
}

/// Follows the output of one task until it has ended, also over broken connections, and returns its exit code.
async fn follow_task(
    session: &Session,
    mut client: Client,
    request: &v1::LogsRequest,
    mut screen: Screen,
    index: u32,
) -> Result<u8, Failure> {
    let retries = Retries::default();
    loop {
        let once = async {
            let mut stream = client.allocations().logs(screen.continued_request(request)).await?.into_inner();
            while let Some(chunk) = stream.message().await? {
                retries.record_progress();
                screen.show(session, &chunk)?;
            }
            fetch_task(&client, &request.key, index, false).await
        };
        match once.await {
            Ok(task) if task.has_ended() => {
                screen.finish()?;
                return exit_code_of_task(&task);
            }
            Ok(_) => {
                retries.record_progress();
                sleep(TASK_CHECK_INTERVAL).await;
            }
            Err(failure) if retries.should_retry(&failure) => client = retries.reconnect(session, failure).await?,
            Err(failure) => return Err(failure),
        }
    }
}

fn exit_code_of_task(task: &Task) -> Result<u8, Failure> {
    let v1::TaskRange { state, reason, exit_code, .. } = &task.known;
    match exit_code {
        Some(code) => Ok(program_code(*code)),
        None if state == "Completed" => Ok(0),
        None => Err(Failure::other(format!("task {} is {state} without an exit code of its program: {reason}", task.name()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_gives_the_code_of_its_program() {
        let code = |state: &str, exit_code, reason: &str| {
            let known = v1::TaskRange { state: state.into(), exit_code, reason: reason.into(), ..Default::default() };
            exit_code_of_task(&Task { group: "1f0c".into(), index: 7, known })
        };
        assert_eq!(code("Completed", Some(0), "completed").ok(), Some(0));
        assert_eq!(code("Failed", Some(137), "exit_code 137").ok(), Some(137));
        let lost = code("Failed", None, "node_lost").unwrap_err();
        assert_eq!(lost.what(), "task 1f0c[7] is Failed without an exit code of its program: node_lost");
    }
}
