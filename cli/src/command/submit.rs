//! `lattice submit`.

use super::{dry_run, wait};
use crate::failure::Failure;
use crate::output::{Format, print};
use crate::progress::Progress;
use crate::request::{self, Program, STDIN, Surroundings};
use crate::session::{Session, answer};
use crate::shown::short;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_syntax::args::submit::Submit;
use lattice_cli_syntax::directives::{self, Directives};

pub async fn run(session: &Session, args: Submit) -> Result<u8, Failure> {
    let piped = args.script.is_none() && args.rest.is_empty() && request::is_piped();
    let (flags, tasks, scaling, program) = match args.script.or_else(|| piped.then(|| STDIN.into())) {
        Some(script) => {
            let program = request::read_script(&script, [args.args, args.rest].concat())?;
            let Program::Script { name, text, .. } = &program else { unreachable!("a script was read") };
            let parsed = directives::read(name, text)?.under(args.flags, args.tasks, args.scaling);
            for warning in &parsed.warnings {
                session.warn(warning);
            }
            let Directives { flags, tasks, scaling, .. } = parsed;
            (flags, tasks, scaling, program)
        }
        None if args.rest.is_empty() => return Err(request::nothing_to_run()),
        None => (args.flags, args.tasks, args.scaling, Program::Command(args.rest)),
    };
    let around = Surroundings::read(flags.export)?;
    let (hold, task_group) = (args.hold, tasks.to_message()?);
    let mut spec = v1::AllocationSpec { hold, task_group, ..request::build_specification(&flags, program, &session.settings, around)? };
    request::apply_scaling(&mut spec, &flags, &scaling)?;
    let client = session.connect().await?;
    if args.dry_run {
        let submission = v1::SubmitRequest {
            id: uuid::Uuid::new_v4().to_string(),
            spec: Some(spec),
            wait_for_nodes: flags.wait_for_nodes,
            dry_run: true,
        };
        let checked = Box::pin(answer(client.allocations().submit(submission))).await?;
        if !checked.warning.is_empty() {
            session.warn(&checked.warning);
        }
        return dry_run::show(session, &checked.checked.unwrap_or_default()).map(|()| 0);
    }
    let id = Box::pin(submit(session, &client, spec, flags.wait_for_nodes)).await?;
    match session.format() {
        Format::Table if args.hold => {
            print(&format!("Submitted allocation {}, held until `lattice resume {0}`\n", short(&id)))?;
        }
        // With --wait there is one answer: the end.
        Format::Data(_) if args.wait => {}
        Format::Table | Format::Name | Format::Data(_) => print_submitted(session, &id)?,
    }
    if args.wait { wait::until_ended(session, &id).await } else { Ok(0) }
}

/// Prints the id of what was submitted.
pub fn print_submitted(session: &Session, id: &str) -> Result<(), Failure> {
    match session.format() {
        Format::Table => print(&format!("Submitted allocation {}\n", short(id))),
        Format::Name => print(&format!("{id}\n")),
        Format::Data(notation) => notation.print(&serde_json::json!({ "id": id })),
    }
}

/// Submits under a new id and remembers it as `@last`.
pub async fn submit(session: &Session, client: &Client, spec: v1::AllocationSpec, wait_for_nodes: bool) -> Result<String, Failure> {
    let id = uuid::Uuid::new_v4().to_string();
    let request = v1::SubmitRequest { id: id.clone(), spec: Some(spec), wait_for_nodes, dry_run: false };
    let has_image = request.spec.as_ref().is_some_and(|spec| !spec.uenv.is_empty());
    let text = if has_image { "waiting for the agent, which reads a new image as a whole" } else { "waiting for the agent" };
    let submitted = Progress::new(session).during(text, Box::pin(answer(client.allocations().submit(request)))).await?;
    if !submitted.warning.is_empty() {
        session.warn(&submitted.warning);
    }
    session.remember(&submitted.id);
    Ok(submitted.id)
}
