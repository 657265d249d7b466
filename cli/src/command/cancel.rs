//! `lattice cancel`.

use crate::failure::Failure;
use crate::listing;
use crate::output::{Format, print, print_names};
use crate::session::{Session, answer};
use crate::shown::short;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_syntax::args::allocations::Cancel;
use lattice_model::AllocationState;

/// The states of work that has not ended.
const UNENDED_STATES: [AllocationState; 4] =
    [AllocationState::Pending, AllocationState::Staging, AllocationState::Running, AllocationState::Suspended];

/// After a failure it continues with the next allocation; the exit code is that of the first failure.
pub async fn run(session: &Session, args: Cancel) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let keys = if args.all_mine { list_own(&client, &args.state).await? } else { args.ids };
    let mut cancelled = Vec::new();
    let mut exit = 0;
    for typed in keys {
        let done = match session.resolve_key(&typed) {
            Ok(key) => answer(client.allocations().cancel(v1::CancelRequest { key })).await,
            Err(failure) => Err(failure),
        };
        match done {
            Ok(response) => cancelled.push(response),
            Err(failure) => {
                let code = failure.exit();
                failure.report();
                exit = if exit == 0 { code } else { exit };
            }
        }
    }
    match session.format() {
        Format::Table => print(&cancelled.iter().map(line).collect::<String>())?,
        Format::Name => print_names(cancelled.iter().map(|c| c.id.as_str()))?,
        Format::Data(notation) => {
            let list = cancelled.iter().map(|c| serde_json::json!({ "id": c.id, "state": c.state }));
            notation.print(&list.collect::<Vec<_>>())?;
        }
    }
    Ok(exit)
}

async fn list_own(client: &Client, states: &[AllocationState]) -> Result<Vec<String>, Failure> {
    let states = if states.is_empty() { &UNENDED_STATES } else { states };
    let request = v1::ListAllocationsRequest { states: states.iter().map(ToString::to_string).collect(), ..Default::default() };
    let found = listing::fetch_all(client, request, usize::MAX).await?;
    Ok(found.allocations.into_iter().map(|a| a.id).collect())
}

/// If the allocation had ended before, `state` is the state in which it ended.
fn line(cancelled: &v1::CancelResponse) -> String {
    let id = short(&cancelled.id);
    if cancelled.state == AllocationState::Cancelled.to_string() {
        format!("Allocation {id} is cancelled\n")
    } else {
        format!("Allocation {id} had ended before: it is {}\n", cancelled.state)
    }
}
