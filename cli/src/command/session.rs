//! `lattice session`: an allocation with an interactive terminal.
//!
//! ```text
//!   submit ─▶ wait for its nodes ─▶ register session ─▶ terminal ─▶ its shell ends ─▶ session and allocation end
//!             └── a signal: cancel ─────┘               └ connection lost, or a signal ends us: both continue
//! ```

use super::attach::{self, Closed};
use super::submit::submit;
use lattice_api::allocation::state_from_name;
use lattice_api::client::Client;
use lattice_api::json::SessionJson;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::interrupts::Interrupts;
use lattice_cli_session::message::{write_message, write_message_line};
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::request::{self, Program, Surroundings};
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{short, time};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_session::typist::EndSignals;
use lattice_cli_syntax::args::session::{InteractiveSession, SessionCommand};
use lattice_cli_syntax::flags::SubmitFlags;
use lattice_model::AllocationState;

/// A shell's exit code for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

pub async fn run(session: &Session, args: InteractiveSession) -> Result<u8, Failure> {
    match args.command {
        None => Box::pin(begin(session, args.flags)).await,
        Some(SessionCommand::List(args)) => list(session, args.all).await.map(|()| 0),
        Some(SessionCommand::Delete(args)) => delete(session, &args.id).await.map(|()| 0),
    }
}

/// Refuses options without a walltime: a session that nobody closes would keep its nodes for ever.
pub fn check_walltime(flags: &SubmitFlags) -> Result<(), Failure> {
    if flags.walltime.is_some() {
        return Ok(());
    }
    Err(Failure::usage("a session needs --walltime: after that time its nodes are given back in any case").hint("such as --walltime=2h"))
}

async fn begin(session: &Session, flags: SubmitFlags) -> Result<u8, Failure> {
    check_walltime(&flags)?;
    let around = Surroundings::read(flags.export)?;
    let spec = request::build_specification(&flags, Program::Session, &session.settings, around)?;
    let mut client = session.connect().await?;
    // Before anything is submitted, so that an early signal leaves no allocation behind.
    let (mut interrupts, mut end_signals) = (Interrupts::listen()?, EndSignals::listen()?);
    let id = Box::pin(submit(session, &client, spec, flags.wait_for_nodes)).await?;
    session.note(&format!("allocation {0} waits for its nodes; `lattice explain {0}` shows why, Ctrl-C cancels it", short(&id)));
    let request = v1::CreateSessionRequest { id: uuid::Uuid::new_v4().to_string(), allocation: id.clone() };
    let opened = tokio::select! {
        opened = open_session(session, &mut client, &request) => Ok(opened),
        () = interrupts.pressed() => Err(INTERRUPTED),
        code = end_signals.recv() => Err(code),
    };
    let open = match opened {
        Ok(Ok(open)) => open,
        Ok(Err(failure)) => return Err(cancel_abandoned(&client, id, failure).await),
        Err(code) => {
            let hint = cancel_hint(&id);
            let cancelled = answer(session.connect().await?.allocations().cancel(v1::CancelRequest { key: id })).await;
            return cancelled.map(|_| code).map_err(|failure| failure.hint(hint));
        }
    };
    session.note(&format!("allocation {} is yours; the terminal is on {}", short(&id), open.node));
    // Waiting for nodes may have taken longer than a token lives.
    if session.renews_tokens() {
        client = Box::pin(session.connect()).await.unwrap_or(client);
    }
    match attach::open(&client, id.clone(), open.node, Vec::new()).await {
        Ok(Closed::Program(code)) => {
            end_unless_interrupted(session, client, &open.id).await.map(|interrupted_by| interrupted_by.unwrap_or(code))
        }
        Ok(Closed::Signal(code)) => {
            session.note(&continues_text(&id));
            Ok(code)
        }
        Ok(Closed::Lost(failure)) => {
            write_message(failure.text());
            session.note(&continues_text(&id));
            Ok(Exit::Unavailable as u8)
        }
        // Without a terminal there is no reason to keep the nodes.
        Err(failure) => match end_unless_interrupted(session, client, &open.id).await {
            Ok(None) => Err(failure),
            Ok(Some(code)) => {
                write_message(failure.text());
                Ok(code)
            }
            Err(more) => {
                write_message(more.text());
                Err(failure)
            }
        },
    }
}

fn cancel_hint(id: &str) -> String {
    format!("`lattice cancel {}` cancels the allocation", short(id))
}

/// Cancels an allocation that nobody waits for any more. If that fails as well, adds a hint how to cancel it.
pub async fn cancel_abandoned(client: &Client, id: String, failure: Failure) -> Failure {
    let hint = cancel_hint(&id);
    match answer(client.allocations().cancel(v1::CancelRequest { key: id })).await {
        Ok(_) => failure,
        Err(_) => failure.hint(hint),
    }
}

fn continues_text(id: &str) -> String {
    let id = short(id);
    format!(
        "allocation {id} continues until its walltime is over: `lattice attach {id}` opens a new shell, `lattice session delete {id}` ends it"
    )
}

/// Waits until the allocation runs, and registers its session.
pub async fn open_session(
    session: &Session,
    client: &mut Client,
    request: &v1::CreateSessionRequest,
) -> Result<v1::InteractiveSession, Failure> {
    wait_until_running(session, client, &request.allocation).await?;
    create_session(session, client, request).await
}

/// Waits until the allocation runs. Fails if the allocation ends before.
async fn wait_until_running(session: &Session, client: &mut Client, id: &str) -> Result<(), Failure> {
    let retries = Retries::default();
    loop {
        match watch_until_running(client, id, &retries).await {
            Err(failure) if retries.should_retry(&failure) => *client = retries.reconnect(session, failure).await?,
            done => return done,
        }
    }
}

async fn watch_until_running(client: &Client, id: &str, retries: &Retries) -> Result<(), Failure> {
    let request = v1::WatchAllocationRequest { key: id.to_owned(), entry: false, being_submitted: false };
    let mut watch = client.allocations().watch(request).await?.into_inner();
    while let Some(now) = watch.message().await? {
        retries.record_progress();
        match state_from_name(&now.state).map_err(|e| Failure::other(e.to_string()))? {
            AllocationState::Pending | AllocationState::Suspended | AllocationState::Staging => {}
            AllocationState::Running => return Ok(()),
            AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled => {
                let failure = Failure::other(format!("allocation {} ended before its terminal was opened: {}", short(id), now.reason));
                return Err(failure.hint(format!("`lattice explain {}` shows more", short(id))));
            }
        }
    }
    Err(Failure::new(Exit::Unavailable, "the agent stopped sending changes").hint("`lattice node status` shows whether it runs"))
}

/// The id makes the request safe to repeat after a lost connection to the agent or the quorum.
async fn create_session(
    session: &Session,
    client: &mut Client,
    request: &v1::CreateSessionRequest,
) -> Result<v1::InteractiveSession, Failure> {
    let retries = Retries::default();
    retries.record_progress();
    loop {
        match answer(client.sessions().create(request.clone())).await {
            Err(failure) if retries.should_retry(&failure) => *client = retries.reconnect(session, failure).await?,
            done => return done,
        }
    }
}

/// Ends a session as [`end_session`]. After a signal it stops waiting, and returns the exit code of a shell for that
/// signal.
pub async fn end_unless_interrupted(session: &Session, client: Client, id: &str) -> Result<Option<u8>, Failure> {
    // Only now: signals while the terminal was open were for the terminal.
    let (mut interrupts, mut end_signals) = (Interrupts::listen()?, EndSignals::listen()?);
    let code = tokio::select! {
        ended = end_session(session, client, id) => return ended.map(|()| None),
        () = interrupts.pressed() => INTERRUPTED,
        code = end_signals.recv() => code,
    };
    write_message_line(format_args!(
        "it is not known whether the session was ended: it may keep its nodes until its walltime is over; `lattice session delete {id}` ends it"
    ));
    Ok(Some(code))
}

/// Ends a session after the end of its shell; repeats that if the connection to the agent breaks.
async fn end_session(session: &Session, mut client: Client, id: &str) -> Result<(), Failure> {
    let retries = Retries::default();
    // The terminal worked before: a lost quorum is expected to return.
    retries.record_progress();
    loop {
        let request = v1::DeleteSessionRequest { key: id.to_owned() };
        match answer(client.sessions().delete(request)).await {
            Ok(_) => return Ok(()),
            // It has ended already: by its walltime, or by somebody else's request.
            Err(failure) if failure.exit() == Exit::NotFound as u8 => return Ok(()),
            Err(failure) if retries.should_retry(&failure) => client = retries.reconnect(session, failure).await?,
            Err(failure) => {
                let hint = format!("it keeps its nodes until its walltime is over: `lattice session delete {id}` ends it");
                return Err(Failure::new(Exit::Other, format!("the session could not be ended: {}", failure.what())).hint(hint));
            }
        }
    }
}

async fn list(session: &Session, all_users: bool) -> Result<(), Failure> {
    let client = session.connect().await?;
    let sessions = answer(client.sessions().list(v1::ListSessionsRequest { all_users })).await?.sessions;
    match session.format() {
        Format::Table => print(&table(&sessions, session.table_size())),
        Format::Data(notation) => notation.print(&sessions.iter().map(SessionJson::from).collect::<Vec<_>>()),
        Format::Name => print_names(sessions.iter().map(|s| s.id.as_str())),
    }
}

async fn delete(session: &Session, typed: &str) -> Result<(), Failure> {
    let client = session.connect().await?;
    let ended = answer(client.sessions().delete(v1::DeleteSessionRequest { key: session.resolve_key(typed)? })).await?;
    match session.format() {
        Format::Table => print(&format!("Ended session {} and its allocation {}\n", short(&ended.id), short(&ended.allocation))),
        Format::Data(notation) => notation.print(&SessionJson::from(&ended)),
        Format::Name => print_names([ended.id.as_str()]),
    }
}

/// How the list is made narrower.
const FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("SINCE", 17), ("NODE", 12), ("USER", 8)], wrapped: &[], left_out_last: &[] };

fn table(sessions: &[v1::InteractiveSession], size: TableSize) -> String {
    let mut table = Table::new(&["SESSION", "ALLOCATION", "USER", "NODE", "SINCE"]);
    for s in sessions {
        let since = time(s.since_ms).unwrap_or_default();
        table.row(vec![short(&s.id).to_owned(), short(&s.allocation).to_owned(), s.user.clone(), s.node.clone(), since]);
    }
    table.on_screen(&[], &FIT, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_with_their_allocations() {
        let session = v1::InteractiveSession {
            id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            allocation: "20000000-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            user: "ada".into(),
            node: "n7".into(),
            since_ms: 1_772_704_800_000,
        };
        let want = "\
SESSION   ALLOCATION  USER  NODE  SINCE
1f0c9a4e  20000000    ada   n7    2026-03-05T10:00:00.000Z
";
        assert_eq!(table(std::slice::from_ref(&session), TableSize::default()), want);
        let wide = v1::InteractiveSession { user: "u".repeat(64), node: "n".repeat(64), ..session };
        lattice_cli_session::table::assert_fits(&table(&[wide], lattice_cli_session::table::NARROW));
    }
}
