//! Follows a launch inside an allocation to its end.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::launch_event::{RankExit, What};
use lattice_api::v1::launch_input_request::Start;
use lattice_cli_session::exits::ExitTable;
use lattice_cli_session::failure::{BROKEN_PIPE, Exit, Failure};
use lattice_cli_session::feeder::Feeder;
use lattice_cli_session::follow::{Screen, program_code, report_why_ended};
use lattice_cli_session::interrupts::Interrupts;
use lattice_cli_session::message::{write_message, write_message_line};
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_session::typist::{EndSignals, Typist};
use lattice_slurm::task_exits;
use std::cell::Cell;
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A shell's exit code for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// A shell's exit code for a program that SIGTERM ended.
const TERMINATED: u8 = 143;

/// Where a launch's output goes.
pub struct LaunchOutput {
    pub screen: Screen,
    pub table: Option<ExitTable>,
    /// For `srun`: how its ranks ended. Failures are reported.
    pub tasks: Option<Vec<RankExit>>,
}

/// When this process exits after a signal. The signal also ends the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAfterSignal {
    /// As soon as the agent has accepted the end: the terminal's owner is gone, or waits for us.
    AtOnce,
    /// When the launch has ended.
    AtLaunchEnd,
}

/// How a launch may be ended from here.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    pub exit_after_signal: ExitAfterSignal,
    /// The time after which the launch is ended.
    pub limit: Option<Duration>,
}

/// Follows a launch to its end. After a broken connection the request is repeated; its id makes
/// this safe. The first Ctrl-C or termination signal ends the launch; `ending` says when this
/// process then exits. A second signal makes it exit at once. After its time limit the launch is
/// ended too. If the reader of our output is gone, the launch is ended, and this process exits at
/// once.
pub async fn follow_launch(
    session: &Session,
    mut client: Client,
    request: &v1::LaunchRequest,
    mut shown: LaunchOutput,
    feeder: Option<Feeder>,
    ending: Ending,
    retries: Retries,
) -> Result<u8, Failure> {
    let (mut interrupts, mut end_signals) = (Interrupts::listen()?, EndSignals::listen()?);
    // A shell's exit code for the signal that ends the launch, and whether we exit at once.
    let mut ended_by: Option<(u8, bool)> = None;
    let Ending { exit_after_signal, limit } = ending;
    let began_at = Cell::new(None);
    // From here on the terminal is raw, and Ctrl-C is an ordinary key.
    let mut input_source = match feeder {
        Some(feeder) => InputSource::Feeder(feeder),
        None if request.pty.is_some() => InputSource::Typist(Typist::begin()?),
        None => InputSource::Nobody,
    };
    loop {
        let once = {
            let (begins, mut begun) = watch::channel(false);
            let once = launch_once(session, &client, request, &mut shown, &retries, begins);
            tokio::pin!(once);
            let (mut has_begun, known) = (begun.clone(), begun.clone());
            let ending = async {
                // A launch that has not begun cannot be ended.
                let _ = has_begun.wait_for(|begun| *begun).await;
                abort_launch(&client, request).await
            };
            tokio::pin!(ending);
            let mut is_end_accepted = false;
            let feeding = input_source.feed(&client, request, &mut begun);
            tokio::pin!(feeding);
            let time_over = wait_for_time_limit(limit, &began_at, known.clone());
            tokio::pin!(time_over);
            loop {
                let (code, at_once) = tokio::select! {
                    done = &mut once => break done,
                    never = &mut feeding => match never {},
                    accepted = &mut ending, if ended_by.is_some() && !is_end_accepted => {
                        match accepted {
                            Err(failure) if retries.should_retry(&failure) => break Err(failure),
                            other => other?,
                        };
                        is_end_accepted = true;
                        match ended_by {
                            Some((code, true)) => return Ok(code),
                            Some((_, false)) | None => continue,
                        }
                    }
                    () = &mut time_over, if ended_by.is_none() => {
                        write_message_line("the time limit of the step is over");
                        (TERMINATED, false)
                    }
                    () = interrupts.pressed() => (INTERRUPTED, false),
                    code = end_signals.recv() => (code, exit_after_signal == ExitAfterSignal::AtOnce),
                };
                if ended_by.is_some() {
                    if !is_end_accepted {
                        let may = if *known.borrow() { "continue" } else { "still begin" };
                        write_message_line(format_args!(
                            "it is not known whether the launch was ended: it may {may}; `lattice cancel` ends its allocation"
                        ));
                    }
                    return Ok(code);
                }
                if !at_once {
                    let again = if code == INTERRUPTED { "; Ctrl-C again stops waiting for that" } else { "" };
                    write_message_line(format_args!("ending the launch{again}"));
                }
                ended_by = Some((code, at_once));
            }
        };
        match once {
            Err(failure) if retries.should_retry(&failure) => {
                client = tokio::select! {
                    connected = retries.reconnect(session, failure) => connected?,
                    code = end_signals.recv() => {
                        write_message_line("no agent answers: the launch continues; `lattice cancel` ends its allocation");
                        return Ok(code);
                    }
                };
            }
            // A launch that has output has begun, so it can be ended.
            Err(Failure::ReaderGone) => {
                if ended_by.is_none() {
                    write_message_line("the reader of the output is gone: ending the launch");
                }
                let refused = [Exit::Refused as u8, Exit::NotFound as u8];
                // A refused request means that the launch has ended meanwhile.
                if let Some(failure) = abort_launch(&client, request).await.err().filter(|failure| !refused.contains(&failure.exit())) {
                    write_message(failure.text());
                    write_message_line("the launch may continue; `lattice cancel` ends its allocation");
                }
                return Ok(ended_by.map_or(BROKEN_PIPE, |(signalled, _)| signalled));
            }
            done => {
                match shown.screen.finish() {
                    // The exit code is known: a lost last line must not replace it.
                    Ok(()) | Err(Failure::ReaderGone) => {}
                    Err(failure) => return Err(failure),
                }
                return done.map(|code| ended_by.map_or(code, |(signalled, _)| signalled));
            }
        }
    }
}

/// Waits until the launch has used up its time limit; without a limit, forever.
async fn wait_for_time_limit(limit: Option<Duration>, began_at: &Cell<Option<Instant>>, mut begun: watch::Receiver<bool>) {
    let Some(limit) = limit else { return pending().await };
    if begun.wait_for(|begun| *begun).await.is_err() {
        return pending().await;
    }
    // The time runs on while the connection is lost.
    let since = began_at.get().unwrap_or_else(Instant::now);
    began_at.set(Some(since));
    sleep_until(since + limit).await;
}

/// Ends a launch that has begun.
async fn abort_launch(client: &Client, request: &v1::LaunchRequest) -> Result<v1::AbortLaunchResponse, Failure> {
    let abort = v1::AbortLaunchRequest { id: request.id.clone(), allocation: request.allocation.clone() };
    answer(client.allocations().abort_launch(abort)).await
}

/// The source of a launch's input.
enum InputSource {
    Typist(Typist),
    Feeder(Feeder),
    Nobody,
}

impl InputSource {
    async fn feed(&mut self, client: &Client, request: &v1::LaunchRequest, begun: &mut watch::Receiver<bool>) -> Infallible {
        let start = Start { id: request.id.clone(), allocation: request.allocation.clone(), standard: false };
        match self {
            Self::Typist(typist) => typist.send_input(client, &start, begun).await,
            Self::Feeder(feeder) => feeder.feed(client, &start, begun).await,
            Self::Nobody => pending().await,
        }
    }
}

async fn launch_once(
    session: &Session,
    client: &Client,
    request: &v1::LaunchRequest,
    shown: &mut LaunchOutput,
    retries: &Retries,
    begins: watch::Sender<bool>,
) -> Result<u8, Failure> {
    let request = v1::LaunchRequest { received: shown.screen.positions(), ..request.clone() };
    let id = request.id.clone();
    let mut events = client.allocations().launch(request).await?.into_inner();
    while let Some(event) = events.message().await? {
        retries.record_progress();
        match event.what {
            Some(What::Output(chunk)) => shown.screen.show(session, &chunk)?,
            Some(What::Exits(piece)) => {
                shown.table.iter_mut().for_each(|table| table.add(piece.exits.clone()));
                record_exits(shown, piece.exits)?;
            }
            Some(What::Ended(ended)) => {
                report_why_ended(&ended.aborted);
                for line in shown.tasks.iter().flat_map(|exits| task_exits::lines(exits)) {
                    write_message_line(format_args!("error: {line}"));
                }
                shown.table.as_ref().map_or(Ok(()), ExitTable::write)?;
                return Ok(program_code(ended.code));
            }
            Some(What::Started(started)) => {
                if let Some(redirection) = shown.screen.redirection_mut() {
                    redirection.set_launch(started.number);
                    redirection.job_mut().nodes = started.nodes;
                }
                begins.send_replace(true);
            }
            None => {}
        }
    }
    Err(Failure::new(Exit::Unavailable, format!("the agent stopped following launch {} before it ended", short(&id))))
}

/// For `srun`: records how ranks ended, and creates the files of ranks that wrote nothing. A piece
/// with rank 0 starts the list again, as in an exit table.
fn record_exits(shown: &mut LaunchOutput, exits: Vec<RankExit>) -> Result<(), Failure> {
    let Some(tasks) = &mut shown.tasks else { return Ok(()) };
    if exits.first().is_some_and(|exit| exit.rank == 0) {
        tasks.clear();
    }
    if let Some(redirection) = shown.screen.redirection_mut() {
        exits.iter().try_for_each(|exit| redirection.touch(exit.rank, &exit.node))?;
    }
    tasks.extend(exits);
    Ok(())
}
