//! `salloc`: gets nodes, and runs a command on this machine while it has them.
//!
//! ```text
//!   submit a session ─▶ wait for its nodes ─▶ run the command here, with SLURM_... variables ─▶ give the nodes back
//!                       └ a signal or --immediate: cancel ┘
//! ```

mod variables;

use super::arguments::texts;
use super::compat;
use super::submitting::{self, Information};
use crate::command::session::{cancel_abandoned, end_unless_interrupted, open_session};
use crate::command::submit::{specify, submit_numbered};
use lattice_api::allocation::state_from_name;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::follow::program_code;
use lattice_cli_session::interrupts::Interrupts;
use lattice_cli_session::message::{write_message, write_message_line};
use lattice_cli_session::output::print;
use lattice_cli_session::request::Program;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::typist::EndSignals;
use lattice_cli_syntax::directives::{self, Directives};
use lattice_cli_syntax::slurm::{self, Arguments, OwnOptions, Translated};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

const USAGE: &str = "Usage: salloc [OPTIONS...] [COMMAND [ARGUMENTS...]]

Gets nodes, and runs the command, or your shell, on this machine. `srun` in it
runs on the nodes. When it ends, the nodes are given back.

The options are those of Slurm's salloc(1). What becomes of each is in the
guide, docs/reference/slurm-options.md.
";
/// A shell's exit code for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// How long nodes may take before the user is notified that the job waits.
const SOON: Duration = Duration::from_secs(1);
/// The longest wait without --immediate: in effect for ever.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);
/// The shell of a user who has set none.
const SHELL: &str = "/bin/sh";

pub async fn run(_session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let args = texts(args)?;
    let (command, environment) = (slurm::Command::Salloc, submitting::variables());
    let Arguments { given, .. } = slurm::read_arguments(command, "", &args)?;
    if let Some(information) = Information::of(&given) {
        return print(&information.text(USAGE)).map(|()| 0);
    }
    let compat = compat::read()?;
    let Translated { words, notes, own, rest, .. } = slurm::translate_with(command, &args, &environment, &compat)?;
    if rest.first().is_some_and(|word| word == ":") {
        return Err(Failure::usage("heterogeneous jobs are not supported, and the job would be different without it")
            .hint(slurm::NOT_HETEROGENEOUS));
    }
    let session = submitting::session(own.quiet > 0)?;
    notes.iter().for_each(|note| session.note(note));
    let mut flags = directives::parse_words(command.name(), &words)?;
    flags.layout.slurm_env = true;
    if flags.vcluster.is_none() {
        flags.vcluster = compat.default_partition.as_deref().map(|partition| compat.vcluster_of(partition).to_owned());
    }
    if flags.walltime.is_none() {
        session.note("no --time is given: the nodes are given back after one hour in any case");
    }
    flags.name.get_or_insert_with(|| rest.first().map_or("interactive", |program| file_name(program)).to_owned());
    let asked = Directives { flags, ..Directives::default() };
    let mut client = session.connect().await?;
    // Before anything is submitted, so that an early signal leaves no allocation behind.
    let mut signals = Signals { interrupts: Interrupts::listen()?, end: EndSignals::listen()? };
    let spec = specify(&session, &asked, Program::Session, own.hold)?;
    let submitted = Box::pin(submit_numbered(&session, &client, spec, asked.flags.wait_for_nodes)).await?;
    let job = Job { id: submitted.id, number: submitted.number };
    let request = v1::CreateSessionRequest { id: uuid::Uuid::new_v4().to_string(), allocation: job.id.clone() };
    let limit = own.immediate_seconds.map_or(FOR_EVER, Duration::from_secs);
    let granted = tokio::select! {
        granted = timeout(limit, Box::pin(grant(&session, &mut client, &request, job.number))) => Ok(granted),
        () = signals.interrupts.pressed() => Err(INTERRUPTED),
        code = signals.end.recv() => Err(code),
    };
    let open = match granted {
        Ok(Ok(Ok(open))) => open,
        Ok(Ok(Err(failure))) => return Err(cancel_abandoned(&client, job.id, failure).await),
        Ok(Err(_)) => {
            let busy =
                Failure::other("Unable to allocate resources: Requested nodes are busy").hint("leave --immediate out to wait for nodes");
            return immediate_code(&environment, cancel_abandoned(&client, job.id, busy).await);
        }
        Err(code) => {
            let cancelled = answer(session.connect().await?.allocations().cancel(v1::CancelRequest { key: job.id })).await;
            return cancelled.map(|_| code);
        }
    };
    session.note(&format!("Granted job allocation {}", job.number));
    let known = answer(client.allocations().get(v1::GetAllocationRequest { key: job.id.clone(), stale: false })).await;
    let allocation = match known {
        Ok(allocation) => allocation,
        Err(failure) => return Err(cancel_abandoned(&client, job.id, failure).await),
    };
    session.note(&format!("Nodes {} are ready for job", variables::node_list(&allocation)));
    if own.bell {
        write_message("\x07");
    }
    if own.no_shell {
        return Ok(0);
    }
    let argv = if rest.is_empty() { vec![environment.get("SHELL").cloned().unwrap_or_else(|| SHELL.to_owned())] } else { rest };
    let variables = variables::of_job(&allocation, job.number, &asked.flags, &given, &compat);
    let code = run_command(&client, &job, &argv, variables, &own, &mut signals).await;
    session.note(&format!("Relinquishing job allocation {}", job.number));
    let interrupted_by = Box::pin(end_unless_interrupted(&session, client, &open.id)).await?;
    Ok(interrupted_by.unwrap_or(code?))
}

/// The allocation.
struct Job {
    id: String,
    number: u64,
}

/// The signals that may end this process.
struct Signals {
    interrupts: Interrupts,
    end: EndSignals,
}

fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Waits for the nodes and registers the session. Notifies the user if the job waits for long.
async fn grant(
    session: &Session,
    client: &mut Client,
    request: &v1::CreateSessionRequest,
    number: u64,
) -> Result<v1::InteractiveSession, Failure> {
    let opened = open_session(session, client, request);
    tokio::pin!(opened);
    tokio::select! {
        opened = &mut opened => return opened,
        () = sleep(SOON) => {
            session.note(&format!("Pending job allocation {number}"));
            session.note(&format!("job {number} queued and waiting for resources"));
        }
    }
    let opened = opened.await?;
    session.note(&format!("job {number} has been allocated resources"));
    Ok(opened)
}

/// The exit code that `SLURM_EXIT_IMMEDIATE` asks for if there were no nodes at once; the failure otherwise.
fn immediate_code(environment: &BTreeMap<String, String>, failure: Failure) -> Result<u8, Failure> {
    match environment.get("SLURM_EXIT_IMMEDIATE").and_then(|code| code.parse().ok()) {
        Some(code) => {
            write_message_line(failure.what());
            Ok(code)
        }
        None => Err(failure),
    }
}

/// Runs the command here, and returns its exit code. Ctrl-C is for the command alone; other signals to end are passed on.
async fn run_command(
    client: &Client,
    job: &Job,
    argv: &[String],
    variables: Vec<(String, String)>,
    own: &OwnOptions,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let Some((program, args)) = argv.split_first() else { return Ok(0) };
    let mut command = Command::new(program);
    command.args(args).envs(variables);
    if let Some(dir) = &own.chdir {
        command.current_dir(dir);
    }
    let cannot = |error: std::io::Error| Failure::other(format!("Unable to run {program}: {error}"));
    let mut child = command.spawn().map_err(cannot)?;
    let mut has_ended = false;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(exit_code(status.map_err(cannot)?)),
            () = signals.interrupts.pressed() => {}
            _ = signals.end.recv() => pass_on(&child, Signal::SIGTERM),
            () = ended(client, &job.id), if !has_ended => {
                has_ended = true;
                write_message_line(format_args!("Job allocation {} has been revoked.", job.number));
                if let Some(name) = &own.kill_command {
                    pass_on(&child, kill_signal(name)?);
                }
            }
        }
    }
}

/// The exit code of a shell.
fn exit_code(status: ExitStatus) -> u8 {
    program_code(status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255))
}

/// The signal of `--kill-command`.
fn kill_signal(name: &str) -> Result<Signal, Failure> {
    if name.is_empty() {
        return Ok(Signal::SIGTERM);
    }
    let wrong = || Failure::usage(format!("--kill-command={name}: there is no such signal")).hint("write a name such as TERM, or a number");
    match name.parse::<i32>() {
        Ok(signal) => Signal::try_from(signal).map_err(|_| wrong()),
        Err(_) => {
            let upper = name.to_ascii_uppercase();
            let whole = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
            whole.parse().map_err(|_| wrong())
        }
    }
}

fn pass_on(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        let _ = signal::kill(Pid::from_raw(pid), signal);
    }
}

/// Returns when the allocation has ended; never, if that cannot be followed.
async fn ended(client: &Client, id: &str) {
    let request = v1::WatchAllocationRequest { key: id.to_owned(), entry: false, being_submitted: false };
    if let Ok(stream) = client.allocations().watch(request).await {
        let mut stream = stream.into_inner();
        while let Ok(Some(now)) = stream.message().await {
            if state_from_name(&now.state).is_ok_and(|state| state.is_terminal()) {
                return;
            }
        }
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signal_of_the_command_has_a_name_or_a_number() {
        let signal = |name: &str| kill_signal(name).ok();
        assert_eq!(
            [signal(""), signal("USR1"), signal("sigint"), signal("9")].map(|signal| signal.map(|s| s as i32)),
            [Some(15), Some(10), Some(2), Some(9)]
        );
        assert_eq!((signal("nothing"), signal("99")), (None, None));
        assert_eq!((file_name("/bin/hostname"), file_name("hostname")), ("hostname", "hostname"));
    }
}
