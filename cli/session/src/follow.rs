//! Follows an allocation until it has ended: its output and its state, in parallel.
//!
//! ```text
//!   Submit, for an own job: sent together with the requests below, which the agent delays until the job exists
//!   Logs (follow) ─▶ Screen ─▶ stdout, stderr      connection lost ─▶ connect again, and continue at the same position
//!   Watch ─────────▶ the last state ─▶ exit code   Ctrl-C, for an own job ─▶ Cancel, and follow it to its end
//!     for an own job, the head's report that its command has ended is enough: we do not wait for the quorum
//!   LaunchInput ◀── keys or standard input, while it runs, if it has a terminal or reads input
//! ```

mod end;
mod own_job;
mod screen;

pub use end::{End, exit_code_of_end, program_code, report_why_ended};
pub use own_job::{JobInput, OwnJob};
pub use screen::Screen;

use crate::failure::{BROKEN_PIPE, Exit, Failure};
use crate::message::{write_message, write_message_line};
use crate::retries::Retries;
use crate::session::{Session, answer};
use crate::shown::short;
use crate::waiting::WaitReporter;
use lattice_api::allocation::state_from_name;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::launch_input_request::Start;
use own_job::{EndSignal, INTERRUPTED, feed_until_signal, wait_for_any_signal, wait_for_ctrl_c};
use std::cell::{Cell, RefCell};
use std::future::pending;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::{Response, Status};

/// How long a submission may wait for its nodes before the user is notified.
const WAITING_NOTE_AFTER: Duration = Duration::from_secs(2);
/// Pause between two tries to open a log stream when the user has too many open.
const STREAM_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Follows an allocation to its end and shows its output. Also returns the exit code of a shell for the signal that
/// cancelled it here, if any. `own`: see [`OwnJob`]. `submission` is sent over the same connection, and not retried.
pub async fn follow(
    session: &Session,
    mut client: Client,
    request: &v1::LogsRequest,
    screen: Screen,
    mut own: Option<OwnJob>,
    submission: Option<v1::SubmitRequest>,
) -> Result<(End, Option<u8>), Failure> {
    let cancellation = Cell::new(Cancellation::No);
    let submitted = watch::Sender::new(submission.is_none());
    let (screen, retries) = (RefCell::new(screen), Retries::default());
    let waiting = WaitReporter::default();
    let srun = own.as_ref().is_some_and(|own| own.reports_as_srun).then(SrunReports::default);
    let placed = watch::Sender::new(false);
    let following = Following { session, request, screen, retries, cancellation, submission, submitted, waiting, srun, placed };
    loop {
        let along = !following.is_submitted();
        let once = following.follow_once(&client, &mut own).await;
        own.iter_mut().for_each(OwnJob::restore_terminal);
        let failure = match once {
            Ok(end) => {
                match following.screen.borrow_mut().finish() {
                    // The exit code is known: a lost last line must not replace it.
                    Ok(()) | Err(Failure::ReaderGone) => return Ok((end, following.cancelled_by())),
                    Err(failure) => return Err(failure),
                }
            }
            // This also holds before the submission is answered: a job that has output exists.
            Err(Failure::ReaderGone) if own.is_some() => {
                if following.cancelled_by().is_none() {
                    let key = short(&request.key);
                    write_message_line(format_args!("the reader of the output is gone: cancelling allocation {key}"));
                    following.cancellation.set(Cancellation::Wanted { code: BROKEN_PIPE, stops: true });
                }
                let left = following.cancel(&client, &mut own).await?;
                let code = following.cancelled_by().unwrap_or(BROKEN_PIPE);
                return Ok((left.unwrap_or(End::Left(code)), Some(code)));
            }
            Err(failure) if !following.is_submitted() => return Err(failure),
            // The other requests reached the agent too long before the submission: repeat them.
            Err(failure) if along && failure.exit() == Exit::NotFound as u8 => continue,
            // The job is submitted already: wait until a stream is free for its output.
            Err(failure) if own.is_some() && failure.is_stream_limit() => {
                session.note(&failure.text().trim_start_matches("error: ").trim_end().replace('\n', "; "));
                tokio::select! {
                    () = sleep(STREAM_RETRY_DELAY) => {}
                    code = wait_for_any_signal(&mut own) => {
                        if following.cancelled_by().is_some() {
                            return Ok((End::Left(code), following.cancelled_by()));
                        }
                        // The next attempt sends the cancellation first.
                        following.request_cancellation(code, code != INTERRUPTED);
                    }
                }
                continue;
            }
            Err(failure) if following.retries.should_retry(&failure) => failure,
            Err(failure) => {
                following.report_if_it_continues();
                return Err(failure);
            }
        };
        tokio::select! {
            connected = following.retries.reconnect(session, failure) => {
                client = connected.inspect_err(|_| following.report_if_it_continues())?;
            }
            code = wait_for_any_signal(&mut own) => {
                write_message_line(format_args!("no agent answers: allocation {} continues; `lattice cancel` ends it later", short(&request.key)));
                return Ok((End::Left(code), following.cancelled_by()));
            }
        }
    }
}

/// The progress of cancelling the own job, because of a signal or because the reader of our output is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancellation {
    No,
    /// The request is sent on each connection until an agent accepts it. `code`: the exit code of a shell for the
    /// signal. `stops`: stop following as soon as it is accepted.
    Wanted {
        code: u8,
        stops: bool,
    },
    /// An agent has accepted the request. The quorum decides how the job ends.
    Accepted {
        code: u8,
    },
}

/// State that outlives a connection.
struct Following<'a> {
    session: &'a Session,
    request: &'a v1::LogsRequest,
    screen: RefCell<Screen>,
    retries: Retries,
    cancellation: Cell<Cancellation>,
    submission: Option<v1::SubmitRequest>,
    /// Whether the submission is committed.
    submitted: watch::Sender<bool>,
    /// Reports what the allocation waits for, if it was submitted elsewhere or earlier.
    waiting: WaitReporter,
    /// The state of reports in the form of Slurm's `srun`; `None`: reports have Lattice's own form.
    srun: Option<SrunReports>,
    /// Whether the nodes of the own job are known.
    placed: watch::Sender<bool>,
}

/// The reports of `srun` about its job.
#[derive(Debug, Default)]
struct SrunReports {
    /// The job's number, once it is submitted.
    number: Cell<u64>,
    /// Whether it was reported as waiting, and not yet as begun.
    queued: Cell<bool>,
}

impl Following<'_> {
    /// Follows on one connection.
    async fn follow_once(&self, client: &Client, own: &mut Option<OwnJob>) -> Result<End, Failure> {
        let key = &self.request.key;
        let last: RefCell<Option<v1::Allocation>> = RefCell::new(None);
        if let Some(left) = self.cancel(client, own).await? {
            return Ok(left);
        }
        let ours = own.is_some();
        let mut waiting_noted = !ours;
        let (runs, running) = watch::channel(false);
        let start = Start { allocation: key.clone(), ..Start::default() };
        let mut both = Box::pin(async { tokio::try_join!(self.submit(client), self.logs(client), self.watch(client, ours, &last, &runs)) });
        let waiting = async {
            self.wait_for_submission().await;
            sleep(WAITING_NOTE_AFTER).await;
        };
        tokio::pin!(waiting);
        let patience = own.as_ref().and_then(|own| own.give_up_after);
        let giving_up = async {
            let Some(patience) = patience else { return pending().await };
            self.wait_for_submission().await;
            sleep(patience).await;
        };
        tokio::pin!(giving_up);
        let mut gave_up = false;
        let mut reporting = Box::pin(self.waiting.report(self.session, client, &last));
        loop {
            let signal = {
                let feeding = async {
                    // A job that does not exist yet cannot be cancelled.
                    self.wait_for_submission().await;
                    feed_until_signal(own, client, &start, running.clone()).await
                };
                tokio::pin!(feeding);
                loop {
                    tokio::select! {
                        done = &mut both => {
                            done?;
                            break None;
                        }
                        signal = &mut feeding => break Some(signal?),
                        never = &mut reporting, if !ours => match never {},
                        () = &mut giving_up, if !gave_up => {
                            gave_up = true;
                            if last.borrow().as_ref().is_none_or(|a| a.state == "Pending") {
                                write_message_line("error: Unable to allocate resources: Requested nodes are busy");
                                break Some(EndSignal::Terminate(Exit::Other as u8));
                            }
                        }
                        () = &mut waiting, if !waiting_noted => {
                            waiting_noted = true;
                            if last.borrow().as_ref().is_none_or(|a| a.state == "Pending") {
                                self.report_waiting(key);
                            }
                        }
                    }
                }
            };
            let Some(signal) = signal else { break };
            own.iter_mut().for_each(OwnJob::restore_terminal);
            let (code, stops) = match signal {
                EndSignal::Interrupt => (INTERRUPTED, false),
                EndSignal::Terminate(code) => (code, matches!(own, Some(OwnJob { input: JobInput::Terminal(_), .. }))),
            };
            if self.cancelled_by().is_some() {
                return Ok(End::Left(code));
            }
            self.request_cancellation(code, stops);
            if let Some(left) = self.cancel(client, own).await? {
                return Ok(left);
            }
        }
        let seen = last.borrow_mut().take();
        match seen {
            Some(v1::Allocation { entry_exit_code: Some(code), .. }) if self.cancelled_by().is_none() => Ok(End::Reported(code)),
            Some(allocation) if state_from_name(&allocation.state).is_ok_and(|state| state.is_terminal()) => {
                Ok(End::Ended(Box::new(allocation)))
            }
            // An agent that stops closes its streams without an error.
            _ => Err(Failure::new(Exit::Unavailable, format!("the agent stopped following allocation {} before it ended", short(key)))),
        }
    }

    fn report_waiting(&self, key: &str) {
        match &self.srun {
            Some(reports) => {
                reports.queued.set(true);
                self.session.note(&format!("job {} queued and waiting for resources", reports.number.get()));
            }
            None => self.session.note(&format!("waiting for nodes (`lattice explain {}` shows why)", short(key))),
        }
    }

    /// Reports, as `srun` does, that the job does not wait any more, and records its nodes for the names of files.
    fn record_nodes(&self, allocation: &v1::Allocation) {
        if allocation.state == "Pending" || allocation.nodes.is_empty() {
            return;
        }
        if let Some(reports) = self.srun.as_ref().filter(|reports| reports.queued.take()) {
            self.session.note(&format!("job {} has been allocated resources", reports.number.get()));
        }
        if let Some(redirection) = self.screen.borrow_mut().redirection_mut() {
            redirection.job_mut().nodes.clone_from(&allocation.nodes);
        }
        self.placed.send_replace(true);
    }

    /// Waits until all values in the names of files are known.
    async fn wait_for_names(&self) {
        if self.screen.borrow().lacks_number() {
            self.wait_for_submission().await;
        }
        if self.screen.borrow().lacks_nodes() {
            let _ = self.placed.subscribe().wait_for(|placed| *placed).await;
        }
    }

    /// The exit code of a shell for the signal that cancels the job, if there was one.
    fn cancelled_by(&self) -> Option<u8> {
        match self.cancellation.get() {
            Cancellation::No => None,
            Cancellation::Wanted { code, .. } | Cancellation::Accepted { code } => Some(code),
        }
    }

    fn request_cancellation(&self, code: u8, stops: bool) {
        let again = if code == INTERRUPTED { "; Ctrl-C again stops waiting for that" } else { "" };
        write_message_line(format_args!("cancelling allocation {}{again}", short(&self.request.key)));
        self.cancellation.set(Cancellation::Wanted { code, stops });
    }

    /// Reports that the job continues, if we stop following before an agent has accepted the cancellation.
    fn report_if_it_continues(&self) {
        if let Cancellation::Wanted { .. } = self.cancellation.get() {
            write_message_line(format_args!("allocation {} continues; `lattice cancel` ends it later", short(&self.request.key)));
        }
    }

    /// Sends the cancellation if it is wanted and not accepted yet; `Some` means: stop following. After a failure it is
    /// still wanted. While it waits for the answer, only Ctrl-C stops it: a closing terminal sends SIGHUP twice, and
    /// the second one must not prevent the cancellation.
    async fn cancel(&self, client: &Client, own: &mut Option<OwnJob>) -> Result<Option<End>, Failure> {
        let Cancellation::Wanted { code, stops } = self.cancellation.get() else { return Ok(None) };
        let mut allocations = client.allocations();
        let answered = tokio::select! {
            answered = answer(allocations.cancel(v1::CancelRequest { key: self.request.key.clone() })) => answered,
            () = wait_for_ctrl_c(own) => {
                write_message_line(format_args!("no answer yet: allocation {0} may continue; `lattice cancel {0}` ends it", short(&self.request.key)));
                return Ok(Some(End::Left(INTERRUPTED)));
            }
        };
        match answered {
            Ok(_) => {
                self.cancellation.set(Cancellation::Accepted { code });
                Ok(stops.then_some(End::Left(code)))
            }
            Err(failure) if code == INTERRUPTED => Err(failure),
            // SIGTERM and SIGHUP end us at once, even if no agent can be reached.
            Err(failure) => {
                write_message(failure.text());
                self.report_if_it_continues();
                Ok(Some(End::Left(code)))
            }
        }
    }

    fn is_submitted(&self) -> bool {
        *self.submitted.borrow()
    }

    async fn wait_for_submission(&self) {
        if self.submitted.subscribe().wait_for(|submitted| *submitted).await.is_err() {
            pending::<()>().await;
        }
    }

    /// Submits the job, unless it was submitted already, and remembers it as `@last`.
    async fn submit(&self, client: &Client) -> Result<(), Failure> {
        if let Some(request) = self.submission.as_ref().filter(|_| !self.is_submitted()) {
            let submitted = Box::pin(answer(client.allocations().submit(request.clone()))).await?;
            self.srun.iter().for_each(|reports| reports.number.set(submitted.number));
            if let Some(redirection) = self.screen.borrow_mut().redirection_mut() {
                let job = redirection.job_mut();
                (job.number, job.group) = (submitted.number, submitted.number);
            }
            self.submitted.send_replace(true);
            if !submitted.warning.is_empty() {
                self.session.warn(&submitted.warning);
            }
            self.session.remember(&submitted.id);
        }
        Ok(())
    }

    /// The opened stream. If it could not be opened, waits for the answer to the submission first, because a refused
    /// submission has the more useful error.
    async fn open_stream<T>(&self, answered: Result<Response<T>, Status>) -> Result<T, Failure> {
        if answered.is_err() {
            self.wait_for_submission().await;
        }
        Ok(answered?.into_inner())
    }

    async fn logs(&self, client: &Client) -> Result<(), Failure> {
        let request = v1::LogsRequest { being_submitted: !self.is_submitted(), ..self.screen.borrow().continued_request(self.request) };
        let mut stream = self.open_stream(client.allocations().logs(request).await).await?;
        while let Some(chunk) = stream.message().await? {
            self.retries.record_progress();
            self.wait_for_names().await;
            self.screen.borrow_mut().show(self.session, &chunk)?;
        }
        Ok(())
    }

    async fn watch(
        &self,
        client: &Client,
        ours: bool,
        last: &RefCell<Option<v1::Allocation>>,
        runs: &watch::Sender<bool>,
    ) -> Result<(), Failure> {
        let request = v1::WatchAllocationRequest { key: self.request.key.clone(), entry: ours, being_submitted: !self.is_submitted() };
        let mut stream = self.open_stream(client.allocations().watch(request).await).await?;
        while let Some(allocation) = stream.message().await? {
            self.retries.record_progress();
            let has_ended = allocation.entry_exit_code.is_some() && self.cancelled_by().is_none();
            runs.send_replace(allocation.state == "Running" && !has_ended);
            self.record_nodes(&allocation);
            last.replace(Some(allocation));
            if has_ended {
                break;
            }
        }
        Ok(())
    }
}
