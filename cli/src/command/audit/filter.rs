//! The filter of audit queries.

use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::{self, Session};
use lattice_cli_syntax::args::audit::AuditFilterArgs;
use lattice_cli_syntax::time::parse_past;

/// The filter as a message; the agent checks it.
pub(super) fn filter(session: &Session, args: AuditFilterArgs) -> Result<v1::AuditFilter, Failure> {
    let now = session::now();
    let time = |flag, text: Option<String>| text.map(|text| parse_past(flag, &text, now)).transpose();
    Ok(v1::AuditFilter {
        user: args.user.unwrap_or_default(),
        job: args.job.unwrap_or_default(),
        allocation: args.alloc.map(|typed| session.resolve_key(&typed)).transpose()?.unwrap_or_default(),
        node: args.node.unwrap_or_default(),
        types: args.types,
        since_ms: time("--since", args.since)?,
        until_ms: time("--until", args.until)?,
        token: args.token.map(|id| id.to_string()).unwrap_or_default(),
    })
}
