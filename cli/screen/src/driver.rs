//! The terminal, the signals and the clock of the screen.

use super::asking::{Explanation, answer_requests};
use super::draw::draw;
use super::events::{Action, Change, Request};
use super::keys::KeyParser;
use super::model::Screen;
use super::refreshing::{Refreshing, View};
use lattice_cli_session::colour;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::keyboard::{self, Key as Input};
use lattice_cli_session::session::{Session, now};
use lattice_cli_session::terminal::FullScreen;
use lattice_model::millis;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use std::io::{self, Stdout};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

/// Reports and answers that wait for the screen; their senders wait when there are more.
const CHANGES_LEN_MAX: usize = 16;
/// Pieces of typed input that wait.
const INPUTS_LEN_MAX: usize = 16;
/// Requests of the user that wait.
const REQUESTS_LEN_MAX: usize = 4;
/// How often ages and remaining times are drawn anew.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);
/// A shell adds this to the number of a signal that ended a program.
const SIGNAL_EXIT_BASE: i32 = 128;

/// Shows the screen until it ends; returns the exit code.
pub async fn run(session: &Session, interval: Duration, explanation: Explanation) -> Result<u8, Failure> {
    // Without any agent there is nothing to show, and the usual message is better.
    let client = session.connect().await?;
    let (changes_to, changes) = mpsc::channel(CHANGES_LEN_MAX);
    let (requests_to, requests) = mpsc::channel(REQUESTS_LEN_MAX);
    let (view_to, view) = watch::channel(View { all_users: true, changes: 0 });
    let refreshing = Refreshing::new(session, interval, client.clone(), view, changes_to.clone());
    let answering = answer_requests(session, Some(client), explanation, requests, changes_to);
    let driver = Driver {
        screen: Screen::new(now(), millis(interval)),
        terminal: None,
        full_screen: None,
        is_coloured: colour::is_on(),
        requests: requests_to,
        view: view_to,
    };
    tokio::select! {
        ended = Box::pin(driver.run(changes)) => ended,
        never = Box::pin(refreshing.run()) => match never {},
        never = Box::pin(answering) => match never {},
    }
}

/// Fields are dropped in this order: the terminal is restored after its last use.
struct Driver {
    screen: Screen,
    terminal: Option<Terminal<CrosstermBackend<Stdout>>>,
    full_screen: Option<FullScreen>,
    is_coloured: bool,
    requests: mpsc::Sender<Request>,
    view: watch::Sender<View>,
}

/// The signals that matter to a screen.
struct Signals {
    hangup: Signal,
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    stop: Signal,
    resized: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            stop: signal(SignalKind::from_raw(libc::SIGTSTP))?,
            resized: signal(SignalKind::window_change())?,
        })
    }
}

impl Driver {
    async fn run(mut self, mut changes: mpsc::Receiver<Change>) -> Result<u8, Failure> {
        let mut signals = Signals::listen().map_err(|error| Failure::other(format!("cannot handle signals: {error}")))?;
        let entered = FullScreen::enter().map_err(|error| Failure::other(format!("cannot set up the terminal: {error}")))?;
        self.full_screen = entered;
        self.terminal = Some(Terminal::new(CrosstermBackend::new(io::stdout()))?);
        let (inputs_to, mut inputs) = mpsc::channel(INPUTS_LEN_MAX);
        keyboard::read(inputs_to, |input| input);
        let mut parser = KeyParser::default();
        let mut clock = tokio::time::interval(CLOCK_INTERVAL);
        clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            self.draw()?;
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(Input::Bytes(bytes)) => {
                        for key in parser.feed(&bytes) {
                            for action in self.screen.handle(key) {
                                if let Some(code) = self.perform(action)? {
                                    return Ok(code);
                                }
                            }
                        }
                    }
                    // The terminal is gone.
                    Some(Input::End | Input::Broken(_)) | None => return Ok(exit_of_signal(libc::SIGHUP)),
                },
                Some(change) = changes.recv() => {
                    let is_done = matches!(&change, Change::Done { result: Ok(_), .. });
                    self.screen.apply(change);
                    if is_done {
                        self.view.send_modify(|view| view.changes += 1);
                    }
                }
                _ = clock.tick() => self.screen.apply(Change::Tick(now())),
                _ = signals.resized.recv() => {}
                _ = signals.stop.recv() => self.suspend()?,
                _ = signals.hangup.recv() => return Ok(exit_of_signal(libc::SIGHUP)),
                _ = signals.interrupt.recv() => return Ok(exit_of_signal(libc::SIGINT)),
                _ = signals.quit.recv() => return Ok(exit_of_signal(libc::SIGQUIT)),
                _ = signals.terminate.recv() => return Ok(exit_of_signal(libc::SIGTERM)),
            }
        }
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let Some(terminal) = &mut self.terminal else { return Ok(()) };
        let size = terminal.size()?;
        self.screen.apply(Change::Size { columns: size.width, rows: size.height });
        terminal.draw(|frame| draw(&self.screen, self.is_coloured, frame))?;
        Ok(())
    }

    /// `Some`: the screen ends, with this exit code.
    fn perform(&mut self, action: Action) -> Result<Option<u8>, Failure> {
        match action {
            Action::Quit => return Ok(Some(0)),
            Action::Suspend => self.suspend()?,
            Action::Redraw => self.redraw()?,
            Action::ShowUsers { all } => self.view.send_modify(|view| view.all_users = all),
            Action::Ask(request) => {
                if let Err(refused) = self.requests.try_send(request) {
                    let result = Err("too many requests wait for the agent: try again when it answers".to_owned());
                    self.screen.apply(Change::Done { request: refused.into_inner(), result });
                }
            }
        }
        Ok(None)
    }

    fn suspend(&mut self) -> Result<(), Failure> {
        if let Some(full_screen) = &self.full_screen {
            full_screen.stop_process().map_err(|error| Failure::other(format!("cannot stop as the terminal asks: {error}")))?;
        }
        self.screen.apply(Change::Tick(now()));
        self.redraw()
    }

    /// Draws all of it at the next time. `Terminal::clear` would ask the terminal where the cursor is, and the keyboard
    /// would read the answer.
    fn redraw(&mut self) -> Result<(), Failure> {
        if let Some(terminal) = &mut self.terminal {
            let size = terminal.size()?;
            terminal.resize(size.into())?;
        }
        Ok(())
    }
}

fn exit_of_signal(signal: i32) -> u8 {
    u8::try_from(SIGNAL_EXIT_BASE + signal).unwrap_or(u8::MAX)
}
