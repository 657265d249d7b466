//! `lattice wait`, and the wait of `lattice submit --wait`.

use lattice_api::allocation::state_from_name;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::follow::{End, exit_code_of_end};
use lattice_cli_session::output::{Format, print_names};
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::Session;
use lattice_cli_session::shown::{AllocationJson, short};
use lattice_cli_syntax::args::allocations::Wait;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The same code as `timeout` of coreutils.
const EXIT_TIMED_OUT: u8 = 124;
/// For work that ended without an exit code of its program.
const EXIT_WITHOUT_CODE: u8 = Exit::BesideProgram as u8;

pub async fn run(session: &Session, args: Wait) -> Result<u8, Failure> {
    let keys = args.ids.iter().map(|typed| session.resolve_key(typed)).collect::<Result<Vec<_>, _>>()?;
    wait(session, &keys, args.timeout).await
}

/// Waits until all of these have ended, and returns the highest of their codes; 124 if the time is over first.
pub async fn wait(session: &Session, keys: &[String], at_most: Option<Duration>) -> Result<u8, Failure> {
    // A time that the clock cannot express counts as no limit.
    let deadline = at_most.and_then(|time| Instant::now().checked_add(time));
    let mut ended = Vec::new();
    let mut code = 0;
    for key in keys {
        let end = wait_for_end(session, key);
        let waited = match deadline {
            Some(deadline) => timeout_at(deadline, end).await.ok(),
            None => Some(end.await),
        };
        let Some(allocation) = waited.transpose()? else {
            session.note(&format!("{key} has not ended within {} s", at_most.unwrap_or_default().as_secs()));
            code = EXIT_TIMED_OUT;
            break;
        };
        code = code.max(exit_code(session, &allocation));
        ended.push(allocation);
    }
    match session.format() {
        Format::Table => {}
        Format::Data(notation) => notation.print(&ended.iter().map(AllocationJson::from).collect::<Vec<_>>())?,
        Format::Name => print_names(ended.iter().map(|a| a.id.as_str()))?,
    }
    Ok(code)
}

/// Waits until a new submission has ended, and returns its code.
pub async fn until_ended(session: &Session, id: &str) -> Result<u8, Failure> {
    let ended = wait_for_end(session, id).await?;
    if let Format::Data(notation) = session.format() {
        notation.print(&AllocationJson::from(&ended))?;
    }
    Ok(exit_code(session, &ended))
}

/// The exit code for an ended allocation. Reports on stderr if it did not complete.
fn exit_code(session: &Session, allocation: &v1::Allocation) -> u8 {
    if allocation.state != "Completed" {
        session.note(&format!("allocation {} is {}: {}", short(&allocation.id), allocation.state, allocation.reason));
    }
    exit_code_of_end(&End::Ended(Box::new(allocation.clone())), None).unwrap_or(EXIT_WITHOUT_CODE)
}

/// Waits for an allocation's end, also over broken connections, and returns its last state.
async fn wait_for_end(session: &Session, key: &str) -> Result<v1::Allocation, Failure> {
    let retries = Retries::default();
    let mut client = session.connect().await?;
    loop {
        let once = async {
            let request = v1::WatchAllocationRequest { key: key.to_owned(), ..Default::default() };
            let mut stream = client.allocations().watch(request).await?.into_inner();
            while let Some(allocation) = stream.message().await? {
                retries.record_progress();
                if state_from_name(&allocation.state).is_ok_and(|state| state.is_terminal()) {
                    return Ok(allocation);
                }
            }
            // An agent that stops closes its streams without an error.
            Err(Failure::new(Exit::Unavailable, format!("the agent stopped following allocation {key} before it ended")))
        };
        match once.await {
            Ok(allocation) => return Ok(allocation),
            Err(failure) if retries.should_retry(&failure) => client = retries.reconnect(session, failure).await?,
            Err(failure) => return Err(failure),
        }
    }
}
