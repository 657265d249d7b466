//! `lattice submit`.

use crate::args::submit::Submit;
use crate::directives;
use crate::failure::Failure;
use crate::output::{Format, print};
use crate::request::{self, Program, Surroundings};
use crate::session::{Session, answer};
use crate::shown::short;
use lattice_api::client::Client;
use lattice_api::v1;

pub async fn run(session: &Session, args: Submit) -> Result<(), Failure> {
    let (flags, program) = match args.script {
        Some(script) => {
            let program = request::read_script(&script, [args.args, args.rest].concat())?;
            let Program::Script { name, text, .. } = &program else { unreachable!("a script was read") };
            let said = directives::read(name, text)?;
            for warning in &said.warnings {
                session.warn(warning);
            }
            (args.flags.over(said.flags), program)
        }
        None if args.rest.is_empty() => {
            return Err(Failure::usage("nothing to run")
                .hint("`lattice submit SCRIPT`, or `lattice submit -- COMMAND ARGS...`; `lattice submit --help` has examples"));
        }
        None => (args.flags, Program::Command(args.rest)),
    };
    let around = Surroundings::look(flags.export)?;
    let spec = request::specification(&flags, program, &session.settings, around)?;
    let client = session.connect().await?;
    let id = Box::pin(submit(session, &client, spec, flags.wait_for_nodes)).await?;
    match session.format() {
        Format::Table => print(&format!("Submitted allocation {}\n", short(&id))),
        Format::Name => print(&format!("{id}\n")),
        Format::Data(notation) => notation.print(&serde_json::json!({ "id": id })),
    }
}

/// Submits under a fresh id and remembers it as `@last`.
pub async fn submit(session: &Session, client: &Client, spec: v1::AllocationSpec, wait_for_nodes: bool) -> Result<String, Failure> {
    let id = uuid::Uuid::new_v4().to_string();
    let request = v1::SubmitRequest { id: id.clone(), spec: Some(spec), wait_for_nodes };
    let submitted = answer(client.allocations().submit(request)).await?;
    if !submitted.warning.is_empty() {
        session.warn(&submitted.warning);
    }
    session.remember(&submitted.id);
    Ok(submitted.id)
}
