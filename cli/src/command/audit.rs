//! `lattice audit`.

mod export;
mod query;
mod verify;

use crate::args::audit::{Audit, AuditCommand, AuditFilterArgs};
use crate::failure::{Exit, Failure};
use crate::session::{self, Session};
use crate::time::moment;
use lattice_api::v1;
use std::future::Future;
use std::time::Duration;
use tonic::Status;

/// How long the next part of a long answer may take.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

pub async fn run(session: &Session, args: Audit) -> Result<(), Failure> {
    match args.what {
        AuditCommand::Query(args) => query::run(session, args).await,
        AuditCommand::Verify(args) => verify::run(session, args).await,
        AuditCommand::Export(args) => export::run(session, args).await,
    }
}

/// The filter as the agent takes it, which checks it.
fn filter(session: &Session, args: AuditFilterArgs) -> Result<v1::AuditFilter, Failure> {
    let now = session::now();
    let time = |flag, text: Option<String>| text.map(|text| moment(flag, &text, now)).transpose();
    Ok(v1::AuditFilter {
        user: args.user.unwrap_or_default(),
        allocation: args.alloc.map(|typed| session.key(&typed)).transpose()?.unwrap_or_default(),
        node: args.node.unwrap_or_default(),
        types: args.types,
        since_ms: time("--since", args.since)?,
        until_ms: time("--until", args.until)?,
    })
}

/// The next part of a long answer.
async fn part<T>(next: impl Future<Output = Result<Option<T>, Status>>) -> Result<Option<T>, Failure> {
    match tokio::time::timeout(PART_TIMEOUT, next).await {
        Ok(part) => Ok(part?),
        Err(_) => Err(Failure::new(Exit::Unavailable, format!("the agent said nothing for {} s", PART_TIMEOUT.as_secs()))),
    }
}
