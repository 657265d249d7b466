//! `lattice quorum add`, `remove`, `replace`, `transfer-leader`: repeat the request until the change is done.

use lattice_api::v1;
use lattice_api::v1::change_members_request::Change;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::args::quorum::{AddMember, MemberId, ReplaceMember, Transfer};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the quorum may be unavailable: a change may cause an election.
const UNAVAILABLE_MAX: Duration = Duration::from_secs(30);
/// Pause before a retry.
const RETRY_DELAY: Duration = Duration::from_millis(300);

fn member(args: AddMember) -> v1::AddMember {
    v1::AddMember { id: args.id, service: args.service, raft: args.raft }
}

pub async fn add(session: &Session, args: AddMember) -> Result<(), Failure> {
    change(session, Change::Add(member(args))).await
}

pub async fn remove(session: &Session, args: MemberId) -> Result<(), Failure> {
    change(session, Change::Remove(v1::RemoveMember { id: args.id })).await
}

pub async fn replace(session: &Session, args: ReplaceMember) -> Result<(), Failure> {
    change(session, Change::Replace(v1::ReplaceMember { old: args.old, replacement: Some(member(args.new)) })).await
}

pub async fn transfer(session: &Session, args: Transfer) -> Result<(), Failure> {
    change(session, Change::Transfer(v1::TransferLeader { to: args.to })).await
}

async fn change(session: &Session, change: Change) -> Result<(), Failure> {
    let client = session.connect().await?;
    let mut noted = String::new();
    let mut unavailable_since: Option<Instant> = None;
    loop {
        let request = v1::ChangeMembersRequest { change: Some(change.clone()) };
        match answer(client.admin().change_members(request)).await {
            Ok(now) if now.done => {
                return match session.format() {
                    Format::Table => print(&format!("{}\n", now.text)),
                    Format::Data(notation) => notation.print(&serde_json::json!({ "done": true, "text": now.text })),
                    Format::Name => print_names([now.text.as_str()]),
                };
            }
            Ok(now) => {
                unavailable_since = None;
                if noted != now.text {
                    session.note(&now.text);
                    noted = now.text;
                }
            }
            Err(failure) if failure.exit() == Exit::Unavailable as u8 && !failure.is_lost_connection() => {
                if unavailable_since.get_or_insert_with(Instant::now).elapsed() > UNAVAILABLE_MAX {
                    return Err(failure.hint("the change is not undone: the same command continues it"));
                }
                sleep(RETRY_DELAY).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}
