//! `lattice audit`.

mod export;
mod filter;
mod part;
mod query;
mod verify;

pub(super) use export::Out;
pub(super) use part::next_part;
pub(super) use query::archived;

use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::audit::{Audit, AuditCommand};

pub async fn run(session: &Session, args: Audit) -> Result<(), Failure> {
    match args.command {
        AuditCommand::Query(args) => query::run(session, args).await,
        AuditCommand::Verify(args) => verify::run(session, args).await,
        AuditCommand::Export(args) => export::run(session, args).await,
    }
}
