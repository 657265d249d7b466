//! `lattice submit`.

use super::{dry_run, wait};
use crate::compat;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print};
use lattice_cli_session::progress::Progress;
use lattice_cli_session::request::{self, Program, STDIN, Surroundings};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_syntax::args::submit::Submit;
use lattice_cli_syntax::directives::{self, Directives};

pub async fn run(session: &Session, args: Submit) -> Result<u8, Failure> {
    let piped = args.script.is_none() && args.rest.is_empty() && request::is_piped();
    let (given, program) = match args.script.or_else(|| piped.then(|| STDIN.into())) {
        Some(script) => {
            let program = request::read_script(&script, [args.args, args.rest].concat())?;
            let Program::Script { name, text, .. } = &program else { unreachable!("a script was read") };
            let parsed = directives::read(name, text, &compat::of_script(text)?)?.under(args.flags, args.tasks, args.scaling);
            for warning in &parsed.warnings {
                session.warn(warning);
            }
            (parsed, program)
        }
        None if args.rest.is_empty() => return Err(request::nothing_to_run()),
        None => {
            let given = Directives { flags: args.flags, tasks: args.tasks, scaling: args.scaling, ..Directives::default() };
            (given, Program::Command(args.rest))
        }
    };
    let spec = specify(session, &given, program, args.hold)?;
    let flags = given.flags;
    let client = session.connect().await?;
    if args.dry_run {
        let checked = Box::pin(check(session, &client, spec, flags.wait_for_nodes)).await?;
        return dry_run::show(session, &checked).map(|()| 0);
    }
    let submitted = Box::pin(submit_numbered(session, &client, spec, flags.wait_for_nodes)).await?;
    match session.format() {
        Format::Table if args.hold => {
            let (short, job) = (short(&submitted.id), job_suffix(submitted.number));
            print(&format!("Submitted allocation {short}{job}, held until `lattice resume {short}`\n"))?;
        }
        // With --wait there is one answer: the end.
        Format::Data(_) if args.wait => {}
        Format::Table | Format::Name | Format::Data(_) => print_submitted(session, &submitted)?,
    }
    let id = submitted.id;
    if args.wait { wait::until_ended(session, &id).await } else { Ok(0) }
}

/// The specification of a submission with these options.
pub fn specify(session: &Session, given: &Directives, program: Program, hold: bool) -> Result<v1::AllocationSpec, Failure> {
    let Directives { flags, tasks, scaling, .. } = given;
    let around = Surroundings::read(flags.export)?;
    let (task_group, output_files) = (tasks.to_message()?, tasks.files.to_message());
    let mut spec =
        v1::AllocationSpec { hold, task_group, output_files, ..request::build_specification(flags, program, &session.settings, around)? };
    request::apply_scaling(&mut spec, flags, scaling)?;
    Ok(spec)
}

/// Has the agent and the quorum check a submission; submits nothing.
pub async fn check(
    session: &Session,
    client: &Client,
    spec: v1::AllocationSpec,
    wait_for_nodes: bool,
) -> Result<v1::SubmitResponse, Failure> {
    let id = uuid::Uuid::new_v4().to_string();
    let request = v1::SubmitRequest { id, spec: Some(spec), wait_for_nodes, dry_run: true };
    let checked = Box::pin(answer(client.allocations().submit(request))).await?;
    if !checked.warning.is_empty() {
        session.warn(&checked.warning);
    }
    Ok(checked)
}

/// Prints the id and the job number of what was submitted.
pub fn print_submitted(session: &Session, submitted: &v1::SubmitResponse) -> Result<(), Failure> {
    let v1::SubmitResponse { id, number, .. } = submitted;
    match session.format() {
        Format::Table => print(&format!("Submitted allocation {}{}\n", short(id), job_suffix(*number))),
        Format::Name => print(&format!("{id}\n")),
        Format::Data(notation) => {
            let job = Some(*number).filter(|number| *number > 0);
            notation.print(&serde_json::json!({ "id": id, "job": job }))
        }
    }
}

/// The job number, such as ` (job 12)`; empty: the agent knows none.
fn job_suffix(number: u64) -> String {
    if number > 0 { format!(" (job {number})") } else { String::new() }
}

/// Submits under a new id and remembers it as `@last`. Returns the id.
pub async fn submit(session: &Session, client: &Client, spec: v1::AllocationSpec, wait_for_nodes: bool) -> Result<String, Failure> {
    Box::pin(submit_numbered(session, client, spec, wait_for_nodes)).await.map(|submitted| submitted.id)
}

/// As [`submit`]. The answer also has the job number.
pub async fn submit_numbered(
    session: &Session,
    client: &Client,
    spec: v1::AllocationSpec,
    wait_for_nodes: bool,
) -> Result<v1::SubmitResponse, Failure> {
    let id = uuid::Uuid::new_v4().to_string();
    let request = v1::SubmitRequest { id: id.clone(), spec: Some(spec), wait_for_nodes, dry_run: false };
    let has_image =
        request.spec.as_ref().and_then(|spec| spec.environment.as_ref()).is_some_and(|environment| !environment.uenv.is_empty());
    let text = if has_image { "waiting for the agent, which reads a new image as a whole" } else { "waiting for the agent" };
    let submitted = Progress::new(session).during(text, Box::pin(answer(client.allocations().submit(request)))).await?;
    if !submitted.warning.is_empty() {
        session.warn(&submitted.warning);
    }
    session.remember(&submitted.id);
    Ok(submitted)
}
