//! The entry point: a script or a command.

use crate::v1;
use crate::v1::entrypoint::What;
use lattice_model::SpecError;
use lattice_model::session::HOLDER;
use lattice_model::spec::Entrypoint;

pub(super) fn to_model(entrypoint: Option<&v1::Entrypoint>, session: bool) -> Result<Entrypoint, SpecError> {
    let what = entrypoint.and_then(|e| e.what.as_ref());
    if session {
        return match what {
            None => Ok(Entrypoint::Script { text: HOLDER.into(), args: Vec::new() }),
            Some(_) => {
                Err(SpecError::Invalid { field: "entrypoint", why: "a session has no entry point: it runs its user's terminal".to_owned() })
            }
        };
    }
    match what {
        Some(What::Script(script)) => Ok(Entrypoint::Script { text: script.text.as_str().into(), args: script.args.clone() }),
        Some(What::Command(command)) => Ok(Entrypoint::Command { argv: command.argv.clone() }),
        None => Err(SpecError::Invalid { field: "entrypoint", why: "nothing to run: a script or a command is needed".to_owned() }),
    }
}

pub(super) fn from_model(entrypoint: &Entrypoint) -> v1::Entrypoint {
    let what = match entrypoint {
        Entrypoint::Script { text, args } => What::Script(v1::entrypoint::Script { text: text.to_string(), args: args.clone() }),
        Entrypoint::Command { argv } => What::Command(v1::entrypoint::Command { argv: argv.clone() }),
    };
    v1::Entrypoint { what: Some(what) }
}
