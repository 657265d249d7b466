//! Following an allocation: its output and its state, side by side, until it has ended.
//!
//! ```text
//!   Logs (follow) ─▶ Screen ─▶ stdout, stderr      connection lost ─▶ connect again, and go on where it was
//!   Watch ─────────▶ the last state ─▶ exit code   Ctrl-C, where asked for ─▶ Cancel, and follow on to the end
//! ```

use crate::failure::{Exit, Failure};
use crate::label::{Labeller, Source};
use crate::patience::Patience;
use crate::received::Received;
use crate::session::{Session, answer};
use crate::shown::short;
use lattice_api::allocation::state_from_name;
use lattice_api::client::Client;
use lattice_api::v1;
use std::cell::RefCell;
use std::future::pending;
use std::io::Write;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

/// How long a submission may wait for its nodes before the user is told that it does.
const WAITING_TOLD_AFTER: Duration = Duration::from_secs(2);
/// Between two tries to open a log stream where the user has too many.
const PLACE_AGAIN: Duration = Duration::from_secs(2);

/// Where ranks' output goes: their stdout to ours, their stderr to ours.
#[derive(Debug)]
pub struct Screen {
    labeller: Option<Labeller>,
    received: Received,
}

impl Screen {
    /// With `label`, each line begins with its rank.
    pub fn new(label: bool) -> Self {
        Self { labeller: label.then(Labeller::default), received: Received::default() }
    }

    /// Shows a chunk.
    pub fn show(&mut self, session: &Session, chunk: &v1::LogChunk) -> Result<(), Failure> {
        if !chunk.notice.is_empty() {
            session.note(&if chunk.node.is_empty() { chunk.notice.clone() } else { format!("{}: {}", chunk.node, chunk.notice) });
        }
        let source = Source { launch: chunk.launch, rank: chunk.rank, stderr: chunk.stderr };
        self.received.note(chunk);
        match &mut self.labeller {
            Some(labeller) => write(chunk.stderr, &labeller.feed(&source, &chunk.data)),
            None => write(chunk.stderr, &chunk.data),
        }
    }

    /// What was shown already, for a request on a new connection.
    pub fn so_far(&self) -> Vec<v1::Received> {
        self.received.so_far()
    }

    /// The request for a new connection: on from what was shown. Its tail was of the beginning.
    pub fn go_on(&self, request: &v1::LogsRequest) -> v1::LogsRequest {
        let tail = request.tail.filter(|_| self.received.is_empty());
        v1::LogsRequest { received: self.so_far(), tail, ..request.clone() }
    }

    /// Shows the lines that never ended.
    pub fn finish(&mut self) -> Result<(), Failure> {
        let Some(labeller) = &mut self.labeller else { return Ok(()) };
        let (stdout, stderr) = labeller.finish();
        write(false, &stdout)?;
        write(true, &stderr)
    }
}

fn write(stderr: bool, bytes: &[u8]) -> Result<(), Failure> {
    if bytes.is_empty() {
        return Ok(());
    }
    if stderr {
        return Ok(std::io::stderr().write_all(bytes)?);
    }
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Presses of Ctrl-C. While one of these lives, Ctrl-C does not end this process.
pub struct Interrupts(Signal);

impl Interrupts {
    /// Takes Ctrl-C from here on.
    pub fn take() -> Result<Self, Failure> {
        signal(SignalKind::interrupt()).map(Self).map_err(|error| Failure::other(format!("cannot take Ctrl-C: {error}")))
    }

    /// Waits for the next one; without `interrupts`, for ever.
    pub async fn pressed(interrupts: &mut Option<Self>) {
        match interrupts {
            Some(interrupts) => drop(interrupts.0.recv().await),
            None => pending().await,
        }
    }
}

/// How following ended.
#[derive(Debug)]
pub enum End {
    /// The allocation ended; this is its last state.
    Ended(Box<v1::Allocation>),
    /// The user pressed Ctrl-C twice.
    Left,
}

/// Follows an allocation to its end and shows its output. With `interrupts`, the first Ctrl-C cancels it and a second one
/// leaves it. Tells whether it was cancelled here.
pub async fn follow(
    session: &Session,
    mut client: Client,
    request: &v1::LogsRequest,
    screen: Screen,
    mut interrupts: Option<Interrupts>,
) -> Result<(End, bool), Failure> {
    let following = Following { session, request, screen: RefCell::new(screen), patience: Patience::default() };
    let mut cancelled = false;
    loop {
        let failure = match following.once(&client, &mut interrupts, &mut cancelled).await {
            Ok(end) => {
                following.screen.borrow_mut().finish()?;
                return Ok((end, cancelled));
            }
            // A job of its own is under way: its output waits for its turn.
            Err(failure) if interrupts.is_some() && failure.is_no_place() => {
                session.note(&failure.text().trim_start_matches("error: ").trim_end().replace('\n', "; "));
                tokio::select! {
                    () = sleep(PLACE_AGAIN) => {}
                    () = Interrupts::pressed(&mut interrupts) => return Ok((End::Left, cancelled)),
                }
                continue;
            }
            Err(failure) if following.patience.bears(&failure) => failure,
            Err(failure) => return Err(failure),
        };
        tokio::select! {
            connected = following.patience.connect_again(session, failure) => client = connected?,
            () = Interrupts::pressed(&mut interrupts) => {
                eprintln!("lattice: no agent to tell: allocation {} goes on; `lattice cancel` ends it later", short(&request.key));
                return Ok((End::Left, cancelled));
            }
        }
    }
}

/// What stays the same over connections.
struct Following<'a> {
    session: &'a Session,
    request: &'a v1::LogsRequest,
    screen: RefCell<Screen>,
    patience: Patience,
}

impl Following<'_> {
    /// Follows on one connection.
    async fn once(&self, client: &Client, interrupts: &mut Option<Interrupts>, cancelled: &mut bool) -> Result<End, Failure> {
        let key = &self.request.key;
        let last: RefCell<Option<v1::Allocation>> = RefCell::new(None);
        let mut waiting_told = interrupts.is_none();
        let both = async { tokio::try_join!(self.logs(client), self.watch(client, &last)) };
        tokio::pin!(both);
        let waiting = sleep(WAITING_TOLD_AFTER);
        tokio::pin!(waiting);
        loop {
            tokio::select! {
                done = &mut both => {
                    done?;
                    break;
                }
                () = &mut waiting, if !waiting_told => {
                    waiting_told = true;
                    if last.borrow().as_ref().is_none_or(|a| a.state == "Pending") {
                        self.session.note(&format!("waiting for nodes (`lattice explain {}` tells why)", short(key)));
                    }
                }
                () = Interrupts::pressed(interrupts) => {
                    if *cancelled {
                        return Ok(End::Left);
                    }
                    eprintln!("lattice: cancelling allocation {}; Ctrl-C again leaves it to end by itself", short(key));
                    answer(client.allocations().cancel(v1::CancelRequest { key: key.clone() })).await?;
                    *cancelled = true;
                }
            }
        }
        let seen = last.borrow_mut().take();
        match seen {
            Some(allocation) if state_from_name(&allocation.state).is_ok_and(|state| state.is_terminal()) => {
                Ok(End::Ended(Box::new(allocation)))
            }
            // An agent that is being stopped ends its streams in good order.
            _ => Err(Failure::new(Exit::Unavailable, format!("the agent stopped following allocation {} before it ended", short(key)))),
        }
    }

    async fn logs(&self, client: &Client) -> Result<(), Failure> {
        let request = self.screen.borrow().go_on(self.request);
        let mut stream = client.allocations().logs(request).await?.into_inner();
        while let Some(chunk) = stream.message().await? {
            self.patience.progress();
            self.screen.borrow_mut().show(self.session, &chunk)?;
        }
        Ok(())
    }

    async fn watch(&self, client: &Client, last: &RefCell<Option<v1::Allocation>>) -> Result<(), Failure> {
        let request = v1::WatchAllocationRequest { key: self.request.key.clone() };
        let mut stream = client.allocations().watch(request).await?.into_inner();
        while let Some(allocation) = stream.message().await? {
            self.patience.progress();
            last.replace(Some(allocation));
        }
        Ok(())
    }
}

/// What a command that followed an allocation to its end gives back: the program's code where it has one.
pub fn exit_of(end: &End, cancelled_here: bool) -> Result<u8, Failure> {
    let a = match end {
        End::Ended(allocation) => allocation,
        End::Left => return Ok(130),
    };
    if let Some(code) = a.exit_code {
        return Ok(program_code(code));
    }
    if a.state == "Completed" {
        return Ok(0);
    }
    if a.state == "Cancelled" && cancelled_here {
        return Ok(130);
    }
    Err(Failure::other(format!("allocation {} is {} without an exit code of its program: {}", short(&a.id), a.state, a.reason))
        .hint(format!("`lattice explain {}` tells more", short(&a.id))))
}

/// A program's code as an exit code of ours: what does not fit in it stays a failure.
pub fn program_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(255)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(state: &str, exit_code: Option<i32>) -> End {
        End::Ended(Box::new(v1::Allocation { id: "1f0c9a4e-x".into(), state: state.into(), exit_code, ..Default::default() }))
    }

    #[test]
    fn the_programs_code_is_given() {
        let code = |end: &End, here| exit_of(end, here).map_err(|failure| failure.beside_a_program().exit());
        assert_eq!(code(&ended("Completed", Some(0)), false), Ok(0));
        assert_eq!(code(&ended("Failed", Some(7)), false), Ok(7));
        assert_eq!(code(&ended("Failed", Some(137)), false), Ok(137));
        assert_eq!(code(&ended("Failed", Some(512)), false), Ok(255));
        assert_eq!(code(&ended("Failed", None), false), Err(125));
        assert_eq!(code(&ended("Cancelled", None), true), Ok(130));
        assert_eq!(code(&ended("Cancelled", None), false), Err(125));
        assert_eq!(code(&End::Left, true), Ok(130));
    }
}
