//! Follows an allocation until it has ended: its output and its state, in parallel.
//!
//! ```text
//!   Submit, for an own job: sent together with the requests below, which the agent delays until the job exists
//!   Logs (follow) ─▶ Screen ─▶ stdout, stderr      connection lost ─▶ connect again, and continue at the same position
//!   Watch ─────────▶ the last state ─▶ exit code   Ctrl-C, for an own job ─▶ Cancel, and follow on to the end
//!     for an own job, the head's report that its command has ended is enough: we do not wait for the quorum
//!   LaunchInput ◀── keys or standard input, while it runs, if it has a terminal or reads input
//! ```

use crate::failure::{BROKEN_PIPE, Exit, Failure};
use crate::feeder::Feeder;
use crate::interrupts::Interrupts;
use crate::label::{Labeller, Marks, Source};
use crate::message::{write_message, write_message_line};
use crate::rank_files::RankFiles;
use crate::received::Received;
use crate::retries::Retries;
use crate::session::{Session, answer};
use crate::shown::short;
use crate::typist::{EndSignals, Typist};
use crate::waiting::WaitReporter;
use lattice_api::allocation::state_from_name;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::launch_input_request::Start;
use lattice_model::Timestamp;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::{Response, Status};

/// How long a submission may wait for its nodes before the user is notified.
const WAITING_NOTE_AFTER: Duration = Duration::from_secs(2);
/// A shell's exit code for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// Pause between two tries to open a log stream when the user has too many open.
const STREAM_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Where ranks' output goes: stdout to stdout and stderr to stderr, or each to its own files.
#[derive(Debug)]
pub struct Screen {
    marks: Marks,
    labeller: Option<Labeller>,
    files: Option<RankFiles>,
    received: Received,
}

impl Screen {
    /// Each line begins with these marks.
    pub fn new(marks: Marks) -> Self {
        let labeller = (marks != Marks::default()).then(|| Labeller::new(marks));
        Self { marks, labeller, files: None, received: Received::default() }
    }

    /// Each rank's output goes to its own files.
    pub fn per_rank(files: RankFiles) -> Self {
        Self { marks: Marks::default(), labeller: None, files: Some(files), received: Received::default() }
    }

    /// Shows a chunk.
    pub fn show(&mut self, session: &Session, chunk: &v1::LogChunk) -> Result<(), Failure> {
        if !chunk.notice.is_empty() {
            session.note(&if chunk.node.is_empty() { chunk.notice.clone() } else { format!("{}: {}", chunk.node, chunk.notice) });
        }
        let source = Source { launch: chunk.launch, rank: chunk.rank, stderr: chunk.stderr };
        self.received.record(chunk);
        if let Some(files) = &mut self.files {
            return if chunk.data.is_empty() { Ok(()) } else { files.write(&source, &chunk.data) };
        }
        if self.marks.time && !chunk.data.is_empty() && chunk.written_ms == 0 {
            let text = format!("node {} does not report when its output was written: its agent is older than this program", chunk.node);
            return Err(Failure::other(text).hint("leave --timestamps out, or upgrade that agent"));
        }
        match &mut self.labeller {
            Some(labeller) => write(chunk.stderr, &labeller.feed(&source, Timestamp(chunk.written_ms), &chunk.data)),
            None => write(chunk.stderr, &chunk.data),
        }
    }

    /// The positions up to which output was shown, for a request on a new connection.
    pub fn positions(&self) -> Vec<v1::Received> {
        self.received.positions()
    }

    /// The request for a new connection: it continues after what was shown. `tail` is only for the first request.
    pub fn continued_request(&self, request: &v1::LogsRequest) -> v1::LogsRequest {
        let tail = request.tail.filter(|_| self.received.is_empty());
        v1::LogsRequest { received: self.positions(), tail, ..request.clone() }
    }

    /// Shows the incomplete last lines.
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
        let mut err = io::stderr();
        return err.write_all(bytes).map_err(|error| write_failure(err.as_fd(), error));
    }
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| write_failure(out.as_fd(), error))
}

/// Why output could not be written. A terminal that was closed fails with EIO: its reader is gone. A file's EIO is an
/// error of its disk.
fn write_failure(to: BorrowedFd<'_>, error: io::Error) -> Failure {
    let is_device = || to.try_clone_to_owned().and_then(|fd| File::from(fd).metadata()).is_ok_and(|m| m.file_type().is_char_device());
    if error.raw_os_error() == Some(libc::EIO) && is_device() { Failure::ReaderGone } else { error.into() }
}

/// The result of following.
#[derive(Debug)]
pub enum End {
    /// The allocation ended; this is its last state.
    Ended(Box<v1::Allocation>),
    /// The head reports that its command ended by itself with this code, and so will the allocation.
    Reported(i32),
    /// We stopped following the allocation after a signal; the value is the exit code of a shell for that signal.
    Left(u8),
}

/// The user's own job that is followed. The first Ctrl-C, SIGTERM or SIGHUP cancels it; a second one stops following
/// it. If the job has a terminal, keys go to that terminal while the job runs, and SIGTERM or SIGHUP cancels the job
/// and stops following it at once. The same happens if the reader of our output is gone.
pub struct OwnJob {
    interrupts: Interrupts,
    end_signals: EndSignals,
    input: JobInput,
}

/// The user's input for the job while it runs.
pub enum JobInput {
    Nothing,
    Input(Feeder),
    /// `None` until the job first runs.
    Terminal(Option<Typist>),
}

impl OwnJob {
    /// Handles signals from now on.
    pub fn new(input: JobInput) -> Result<Self, Failure> {
        Ok(Self { interrupts: Interrupts::listen()?, end_signals: EndSignals::listen()?, input })
    }

    /// Restores the terminal.
    fn restore_terminal(&mut self) {
        if let JobInput::Terminal(Some(typist)) = &mut self.input {
            typist.restore_terminal();
        }
    }
}

/// A signal that arrives while the job is followed.
#[derive(Clone, Copy)]
enum EndSignal {
    Interrupt,
    /// SIGTERM or SIGHUP; the value is the exit code of a shell for that signal.
    Terminate(u8),
}

/// Passes the user's input to the job while it runs, and waits for a signal. Without an own job it waits for ever.
async fn feed_until_signal(
    own: &mut Option<OwnJob>,
    client: &Client,
    start: &Start,
    mut runs: watch::Receiver<bool>,
) -> Result<EndSignal, Failure> {
    let Some(OwnJob { interrupts, end_signals, input }) = own else { return pending().await };
    let giving = async {
        match input {
            JobInput::Nothing => pending().await,
            JobInput::Input(feeder) => match feeder.feed(client, start, &mut runs).await {},
            JobInput::Terminal(typist) => type_while_running(typist, client, start, runs).await.map(|never| match never {}),
        }
    };
    tokio::select! {
        failed = giving => failed,
        () = interrupts.pressed() => Ok(EndSignal::Interrupt),
        code = end_signals.recv() => Ok(EndSignal::Terminate(code)),
    }
}

/// Types at the job's terminal while it runs.
async fn type_while_running(
    typist: &mut Option<Typist>,
    client: &Client,
    start: &Start,
    mut runs: watch::Receiver<bool>,
) -> Result<Infallible, Failure> {
    loop {
        if runs.wait_for(|runs| *runs).await.is_err() {
            return pending().await;
        }
        let typist = match &mut *typist {
            Some(typist) => typist,
            none => none.insert(Typist::begin()?),
        };
        typist.resume()?;
        let mut begun = runs.clone();
        tokio::select! {
            never = typist.send_input(client, start, &mut begun) => match never {},
            _ = runs.wait_for(|runs| !*runs) => typist.restore_terminal(),
        }
    }
}

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
    let following = Following { session, request, screen, retries, cancellation, submission, submitted, waiting };
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

/// Waits for a signal while no agent can be reached or no log stream is free; it stops the following. Returns the exit
/// code of a shell for the signal.
async fn wait_for_any_signal(own: &mut Option<OwnJob>) -> u8 {
    let Some(OwnJob { interrupts, end_signals, .. }) = own else { return pending().await };
    tokio::select! {
        () = interrupts.pressed() => INTERRUPTED,
        code = end_signals.recv() => code,
    }
}

/// Waits for Ctrl-C alone.
async fn wait_for_ctrl_c(own: &mut Option<OwnJob>) {
    match own {
        Some(own) => own.interrupts.pressed().await,
        None => pending().await,
    }
}

/// The progress of cancelling the own job, because of a signal or because the reader of our output is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancellation {
    No,
    /// The request is sent on each connection until an agent accepts it. `code`: the exit code of a shell for the
    /// signal.
    /// `stops`: stop following as soon as it is accepted.
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
                        () = &mut waiting, if !waiting_noted => {
                            waiting_noted = true;
                            if last.borrow().as_ref().is_none_or(|a| a.state == "Pending") {
                                self.session.note(&format!("waiting for nodes (`lattice explain {}` shows why)", short(key)));
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

    /// Submits the job, unless that was done, and remembers it as `@last`.
    async fn submit(&self, client: &Client) -> Result<(), Failure> {
        if let Some(request) = self.submission.as_ref().filter(|_| !self.is_submitted()) {
            let submitted = Box::pin(answer(client.allocations().submit(request.clone()))).await?;
            self.submitted.send_replace(true);
            if !submitted.warning.is_empty() {
                self.session.warn(&submitted.warning);
            }
            self.session.remember(&submitted.id);
        }
        Ok(())
    }

    /// The opened stream. If it could not be opened, waits for the answer to the submission first, because a refused
    /// submission has the better reason.
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
            last.replace(Some(allocation));
            if has_ended {
                break;
            }
        }
        Ok(())
    }
}

/// Reports why a launch was ended, if it was.
pub fn report_why_ended(why: &str) {
    if !why.is_empty() {
        write_message_line(format_args!("the launch was ended: {why}"));
    }
}

/// The exit code of a command that followed an allocation to its end: the program's code if it has one.
pub fn exit_code_of_end(end: &End, cancelled_here: Option<u8>) -> Result<u8, Failure> {
    let a = match end {
        End::Ended(allocation) => allocation,
        End::Reported(code) => return Ok(program_code(*code)),
        End::Left(code) => return Ok(*code),
    };
    if let Some(code) = a.exit_code {
        return Ok(program_code(code));
    }
    if a.state == "Completed" {
        return Ok(0);
    }
    if let Some(code) = cancelled_here.filter(|_| a.state == "Cancelled") {
        return Ok(code);
    }
    Err(Failure::other(format!("allocation {} is {} without an exit code of its program: {}", short(&a.id), a.state, a.reason))
        .hint(format!("`lattice explain {}` shows more", short(&a.id))))
}

/// A program's code as our exit code: a code out of range stays a failure.
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
        let code = |end: &End, here| exit_code_of_end(end, here).map_err(|failure| failure.beside_a_program().exit());
        assert_eq!(code(&ended("Completed", Some(0)), None), Ok(0));
        assert_eq!(code(&ended("Failed", Some(7)), None), Ok(7));
        assert_eq!(code(&ended("Failed", Some(137)), None), Ok(137));
        assert_eq!(code(&ended("Failed", Some(512)), None), Ok(255));
        assert_eq!(code(&ended("Failed", None), None), Err(125));
        assert_eq!(code(&ended("Cancelled", None), Some(143)), Ok(143));
        assert_eq!(code(&ended("Cancelled", None), None), Err(125));
        assert_eq!(code(&End::Left(143), Some(143)), Ok(143));
        assert_eq!(code(&End::Reported(3), None), Ok(3));
    }

    #[test]
    fn only_a_closed_terminal_or_pipe_is_a_reader_that_is_gone() {
        let (device, file) = (File::open("/dev/null").unwrap(), File::open("/proc/self/status").unwrap());
        let is_gone = |to: &File, errno| matches!(write_failure(to.as_fd(), io::Error::from_raw_os_error(errno)), Failure::ReaderGone);
        assert!(is_gone(&device, libc::EIO) && is_gone(&file, libc::EPIPE));
        assert!(!is_gone(&file, libc::EIO) && !is_gone(&device, libc::ENOSPC));
    }
}
