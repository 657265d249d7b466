//! `lattice update`. After a failure it continues with the next allocation; the exit code is that of the first failure.

use super::preempt::{print_done, report_failure};
use crate::failure::Failure;
use crate::session::{Session, answer};
use crate::shown::short;
use lattice_api::v1;
use lattice_cli_syntax::args::update::Update;
use lattice_model::duration::clock_text;

pub async fn run(session: &Session, args: Update) -> Result<u8, Failure> {
    let walltime_seconds = args.walltime.as_secs();
    if walltime_seconds == 0 {
        return Err(Failure::usage("--walltime: at least a second is needed"));
    }
    let client = session.connect().await?;
    let (mut done, mut exit) = (Vec::new(), 0);
    for typed in args.ids {
        let asked = match session.resolve_key(&typed) {
            Ok(key) => answer(client.allocations().update(v1::UpdateAllocationRequest { key, walltime_seconds })).await,
            Err(failure) => Err(failure),
        };
        match asked {
            Ok(response) => done.push((response.id, response.state)),
            Err(failure) => exit = report_failure(failure, exit),
        }
    }
    let walltime = clock_text(args.walltime);
    print_done(session, &done, |(id, _)| format!("Allocation {} has a walltime of {walltime}\n", short(id)))?;
    Ok(exit)
}
