//! `lattice preempt`, `lattice hold` and `lattice resume`. Each continues after a failure; the exit code is that of the
//! first failure.

use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_syntax::args::preempt::{Hold, Preempt, Resume};
use lattice_model::{AllocationState, millis};
use uuid::Uuid;

pub async fn preempt(session: &Session, args: Preempt) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let deadline_ms = args.deadline.map_or(0, millis);
    let (mut done, mut exit) = (Vec::new(), 0);
    for typed in args.ids {
        let asked = match session.resolve_key(&typed) {
            Ok(key) => {
                let (id, reason) = (Uuid::new_v4().to_string(), args.reason.clone());
                let (hold, kill) = (args.hold, args.kill);
                answer(client.allocations().preempt(v1::PreemptRequest { key, id, deadline_ms, reason, hold, kill })).await
            }
            Err(failure) => Err(failure),
        };
        match asked {
            Ok(response) => done.push((response.id, response.state)),
            Err(failure) => exit = report_failure(failure, exit),
        }
    }
    // An allocation without nodes has nothing to preempt.
    let suspended = if args.hold { "stays Suspended until it is resumed" } else { "is Suspended already" };
    let line = |(id, state): &(String, String)| match *state == AllocationState::Suspended.to_string() {
        true => format!("Allocation {} {suspended}\n", short(id)),
        false => format!("Preempting allocation {}, which is {state} now\n", short(id)),
    };
    print_done(session, &done, line)?;
    Ok(exit)
}

pub async fn hold(session: &Session, args: Hold) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let (mut done, mut exit) = (Vec::new(), 0);
    for typed in args.ids {
        let asked = match session.resolve_key(&typed) {
            Ok(key) => answer(client.allocations().hold(v1::HoldAllocationRequest { key })).await,
            Err(failure) => Err(failure),
        };
        match asked {
            Ok(response) => done.push((response.id, response.state)),
            Err(failure) => exit = report_failure(failure, exit),
        }
    }
    print_done(session, &done, |(id, _)| format!("Allocation {} is held until `lattice resume {0}`\n", short(id)))?;
    Ok(exit)
}

pub async fn resume(session: &Session, args: Resume) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let (mut done, mut exit) = (Vec::new(), 0);
    for typed in args.ids {
        let asked = match session.resolve_key(&typed) {
            Ok(key) => answer(client.allocations().resume(v1::ResumeRequest { key })).await,
            Err(failure) => Err(failure),
        };
        match asked {
            Ok(response) => done.push((response.id, "Suspended".to_owned())),
            Err(failure) => exit = report_failure(failure, exit),
        }
    }
    print_done(session, &done, |(id, _)| format!("Allocation {} waits for nodes again\n", short(id)))?;
    Ok(exit)
}

/// Reports a failure, and returns the exit code of the first one.
pub(super) fn report_failure(failure: Failure, exit: u8) -> u8 {
    let code = failure.exit();
    failure.report();
    if exit == 0 { code } else { exit }
}

pub(super) fn print_done(session: &Session, done: &[(String, String)], line: impl Fn(&(String, String)) -> String) -> Result<(), Failure> {
    match session.format() {
        Format::Table => print(&done.iter().map(line).collect::<String>()),
        Format::Name => print_names(done.iter().map(|(id, _)| id.as_str())),
        Format::Data(notation) => {
            let list = done.iter().map(|(id, state)| serde_json::json!({ "id": id, "state": state }));
            notation.print(&list.collect::<Vec<_>>())
        }
    }
}
