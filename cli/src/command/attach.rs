//! `lattice attach`: a terminal in a running allocation.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::attach_event::What as Shown;
use lattice_api::v1::attach_request::{EndOfInput, Start, What as Typed};
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::follow::program_code;
use lattice_cli_session::keyboard::{self, Key};
use lattice_cli_session::message::{write_message, write_message_line};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_session::terminal::{self, RawMode};
use lattice_cli_syntax::args::attach::Attach;
use std::io::{IsTerminal, Write};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Pieces of input that may wait for the agent.
const INPUT_QUEUE_LEN_MAX: usize = 16;
/// The byte that a terminal turns into SIGINT.
const CTRL_C: u8 = 3;

/// Why a terminal was closed.
pub enum Closed {
    /// Its program ended with this code.
    Program(u8),
    /// A signal from outside ended this command, so the terminal's programs get SIGHUP. The value is the exit code of a
    /// shell for that signal.
    Signal(u8),
    /// The agent or the node was lost.
    Lost(Failure),
}

pub async fn run(session: &Session, args: Attach) -> Result<u8, Failure> {
    let argv = match args.command_line {
        Some(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        None => args.command,
    };
    let client = session.connect().await?;
    match open(&client, session.resolve_key(&args.id)?, args.node.unwrap_or_default(), argv).await? {
        Closed::Program(code) | Closed::Signal(code) => Ok(code),
        Closed::Lost(failure) => {
            write_message(failure.text());
            Ok(Exit::Unavailable as u8)
        }
    }
}

/// Opens a terminal in an allocation and shows it here until it closes. An error means that the terminal could not be
/// opened, or that this side failed later.
pub async fn open(client: &Client, key: String, node: String, argv: Vec<String>) -> Result<Closed, Failure> {
    let (input_is_terminal, output_is_terminal) = (std::io::stdin().is_terminal(), std::io::stdout().is_terminal());
    let start = Start {
        key: key.clone(),
        node,
        argv,
        term: if output_is_terminal { std::env::var("TERM").unwrap_or_default() } else { String::new() },
        size: size(),
        input_is_terminal,
        output_is_terminal,
    };
    let (requests, stream) = mpsc::channel(INPUT_QUEUE_LEN_MAX);
    requests.try_send(request(Typed::Start(start))).map_err(|_| Failure::other("cannot send the request to the agent"))?;
    let mut events = answer(client.allocations().attach(ReceiverStream::new(stream))).await?;
    let Some(first) = events.message().await? else { return Err(Failure::other("the agent did not answer")) };
    let mut screen = Screen { notice: None };
    if let Some(code) = screen.show(first)? {
        screen.print_notice();
        return Ok(Closed::Program(code));
    }
    let closed = {
        let mut signals = Signals::listen()?;
        let raw = RawMode::enter().map_err(|error| Failure::other(format!("cannot set this terminal to raw mode: {error}")))?;
        // Text typed before this belongs to the calling shell; from here on it goes to the other terminal.
        keyboard::read(requests.clone(), |key| match key {
            Key::Bytes(bytes) => request(Typed::Input(bytes)),
            Key::End | Key::Broken(_) => request(Typed::End(EndOfInput {})),
        });
        connect_terminals(&mut events, &requests, &mut screen, &mut signals, raw.as_ref()).await
    };
    // `raw` was dropped, so the terminal is restored.
    screen.print_notice();
    closed.or_else(|failure| lost(failure, &key).map(Closed::Lost))
}

fn request(what: Typed) -> v1::AttachRequest {
    v1::AttachRequest { what: Some(what) }
}

fn size() -> Option<v1::TerminalSize> {
    terminal::size().map(|(rows, columns)| v1::TerminalSize { rows, columns })
}

/// What is reported when the other terminal is lost because of this failure. `Err`: this side failed.
fn lost(failure: Failure, id: &str) -> Result<Failure, Failure> {
    let (why, when) = if failure.is_lost_connection() {
        ("the connection to the agent is lost", " when the agent is back")
    } else if failure.is_refused_token() {
        ("the token has expired", "")
    } else if failure.exit() == Exit::Unavailable as u8 {
        return Ok(failure);
    } else {
        return Err(failure);
    };
    let hint = format!("the allocation continues; `lattice attach {}` opens a new terminal{when}", short(id));
    Ok(Failure::new(Exit::Unavailable, format!("{why}: the terminal is closed, and its programs were hung up")).hint(hint))
}

/// Transfers keys and output until the program has ended, or something else closes the terminal.
async fn connect_terminals(
    events: &mut Streaming<v1::AttachEvent>,
    requests: &mpsc::Sender<v1::AttachRequest>,
    screen: &mut Screen,
    signals: &mut Signals,
    raw: Option<&RawMode>,
) -> Result<Closed, Failure> {
    // The size may have changed since the start message.
    let mut resized = true;
    loop {
        tokio::select! {
            event = events.message() => {
                let Some(event) = event? else {
                    return Err(Failure::new(Exit::Unavailable, "the agent is being stopped: the terminal is closed"));
                };
                if let Some(code) = screen.show(event)? {
                    return Ok(Closed::Program(code));
                }
            }
            _ = signals.resized.recv() => resized = true,
            permit = requests.reserve(), if resized => {
                resized = false;
                if let (Ok(permit), Some(size)) = (permit, size()) {
                    permit.send(request(Typed::Size(size)));
                }
            }
            _ = signals.interrupt.recv() => {
                if raw.is_some() {
                    return Ok(Closed::Signal(exit_code_of_signal(SignalKind::interrupt())));
                }
                // Without raw mode, Ctrl-C arrives here as SIGINT and not as a byte of the input: send the byte.
                let _ = requests.try_send(request(Typed::Input(vec![CTRL_C])));
            }
            _ = signals.terminate.recv() => return Ok(Closed::Signal(exit_code_of_signal(SignalKind::terminate()))),
            _ = signals.hangup.recv() => return Ok(Closed::Signal(exit_code_of_signal(SignalKind::hangup()))),
            _ = signals.quit.recv() => return Ok(Closed::Signal(exit_code_of_signal(SignalKind::quit()))),
            _ = signals.stop.recv() => {
                match raw {
                    Some(raw) => raw.stop_process().map_err(|e| Failure::other(format!("cannot set this terminal to raw mode: {e}")))?,
                    None => drop(nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP)),
                }
                resized = true;
            }
        }
    }
}

fn exit_code_of_signal(signal: SignalKind) -> u8 {
    128 + u8::try_from(signal.as_raw_value()).unwrap_or(0)
}

/// The output of the other terminal.
struct Screen {
    /// A message to print when the terminal is restored.
    notice: Option<String>,
}

impl Screen {
    /// Shows an event. Returns the program's exit code when the program has ended.
    fn show(&mut self, event: v1::AttachEvent) -> Result<Option<u8>, Failure> {
        match event.what {
            Some(Shown::Output(bytes)) => {
                let mut out = std::io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Some(Shown::Notice(text)) => self.notice = Some(text),
            Some(Shown::Ended(ended)) => return Ok(Some(program_code(ended.code))),
            Some(Shown::Started(_)) | None => {}
        }
        Ok(None)
    }

    fn print_notice(&self) {
        if let Some(notice) = &self.notice {
            write_message_line(notice);
        }
    }
}

/// The signals to this process while the terminal is connected.
struct Signals {
    resized: Signal,
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    stop: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let take = |kind| signal(kind).map_err(|error| Failure::other(format!("cannot handle signals: {error}")));
        Ok(Self {
            resized: take(SignalKind::window_change())?,
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: take(SignalKind::hangup())?,
            quit: take(SignalKind::quit())?,
            stop: take(SignalKind::from_raw(libc::SIGTSTP))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    #[test]
    fn a_terminal_that_is_lost_says_why_and_that_the_allocation_continues() {
        let text = |status: Status| lost(status.into(), "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88").map(|failure| failure.text()).ok();
        let closed = "the terminal is closed, and its programs were hung up\n\
                      hint: the allocation continues; `lattice attach 1f0c9a4e` opens";
        let broken = format!("error: the connection to the agent is lost: {closed} a new terminal when the agent is back\n");
        assert_eq!(text(Status::from_error(Box::new(std::io::Error::other("reset")))), Some(broken));
        let expired = format!("error: the token has expired: {closed} a new terminal\n");
        assert_eq!(text(Status::unauthenticated("the token has expired")), Some(expired));
        assert_eq!(text(Status::unavailable("the node is away\nhint: wait")).as_deref(), Some("error: the node is away\nhint: wait\n"));
        assert_eq!(text(Status::internal("no memory")), None, "a failure of this side");
    }
}
