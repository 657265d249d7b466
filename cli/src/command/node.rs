//! `lattice node …`.

mod admit;
mod confirm;
mod confirm_dead;
mod drain;
mod each;
mod fact;
mod fingerprint;
mod history;
mod hold;
mod remove;
mod status;
mod waits;

use super::nodes;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::node::NodeCommand;

/// Runs the command and returns its exit code.
pub async fn run(session: &Session, what: NodeCommand) -> Result<u8, Failure> {
    match what {
        NodeCommand::Status(args) => status::run(session, args).await.map(|()| 0),
        NodeCommand::List(args) => nodes::run(session, args).await.map(|()| 0),
        NodeCommand::Admit(args) => admit::run(session, &args).await,
        NodeCommand::Remove(args) => remove::run(session, &args).await,
        NodeCommand::History(args) => history::run(session, args).await,
        NodeCommand::Cordon(args) => hold::cordon(session, args).await,
        NodeCommand::Uncordon(args) => hold::uncordon(session, &args).await,
        NodeCommand::Drain(args) => drain::run(session, args).await,
        NodeCommand::Undrain(args) => hold::undrain(session, &args).await,
        NodeCommand::Quarantine(args) => hold::quarantine(session, &args).await,
        NodeCommand::Release(args) => hold::release(session, &args).await,
        NodeCommand::Disable(args) => hold::disable(session, &args).await,
        NodeCommand::Enable(args) => hold::enable(session, &args).await,
        NodeCommand::Fail(args) => hold::fail(session, &args).await,
        NodeCommand::Repaired(args) => hold::repaired(session, &args).await,
        NodeCommand::Boot(args) => hold::boot(session, &args).await,
        NodeCommand::Wipe(args) => hold::wipe(session, &args).await,
        NodeCommand::Unwipe(args) => hold::unwipe(session, &args).await,
        NodeCommand::Fingerprint(args) => fingerprint::run(session, &args).await,
        NodeCommand::AcceptDrift(args) => hold::accept_drift(session, &args).await,
        NodeCommand::ConfirmDead(args) => confirm_dead::run(session, &args).await,
    }
}
