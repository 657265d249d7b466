//! Slurm's commands: `lattice` behaves as one of them if it is called by that command's name.

mod arguments;
mod cluster;
mod command_line;
mod compat;
mod jobs;
mod local_time;
mod sacct;
mod sacctmgr;
mod salloc;
mod sattach;
mod sbatch;
mod sbcast;
mod scancel;
mod scontrol;
mod sinfo;
mod sprio;
mod squeue;
mod srun;
mod sshare;
mod sstat;
mod steps;
mod submitting;
mod surroundings;

use lattice_cli_session::failure::Failure;
use lattice_cli_session::message;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::Global;
pub use lattice_slurm::commands::COMMANDS;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The command as which this process was called, by the name of its program.
pub fn called_as() -> Option<&'static str> {
    let program = std::env::args_os().next()?;
    let name = Path::new(&program).file_name()?.to_str()?.to_owned();
    COMMANDS.into_iter().find(|command| *command == name)
}

/// The whole program, called as one of [`COMMANDS`].
pub fn main(command: &'static str) -> ExitCode {
    message::speak_as(command);
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = Session::new(&Global::default()).and_then(|session| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::other(format!("cannot start: {error}")))?;
        runtime.block_on(run(&session, command, &args))
    });
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => ExitCode::from(report(command, &failure)),
    }
}

/// Reports a failure as Slurm does, and returns the exit code of Slurm's commands: 1, or what `SLURM_EXIT_ERROR` says.
fn report(command: &str, failure: &Failure) -> u8 {
    let Failure::Reported { what, hint, .. } = failure else { return 0 };
    message::write_message(failure_text(command, what, hint.as_deref()));
    std::env::var("SLURM_EXIT_ERROR").ok().and_then(|code| code.parse().ok()).unwrap_or(1)
}

fn failure_text(command: &str, what: &str, hint: Option<&str>) -> String {
    let hint = hint.map(|hint| format!("{command}: hint: {hint}\n")).unwrap_or_default();
    message::harmless(&format!("{command}: error: {what}\n{hint}"))
}

/// Runs one of [`COMMANDS`] with its arguments, without its name. Returns its exit code.
pub async fn run(session: &Session, command: &str, args: &[OsString]) -> Result<u8, Failure> {
    match command {
        "sbatch" => Box::pin(sbatch::run(session, args)).await,
        "srun" => Box::pin(srun::run(session, args)).await,
        "salloc" => Box::pin(salloc::run(session, args)).await,
        "squeue" => Box::pin(squeue::run(session, args)).await,
        "scancel" => Box::pin(scancel::run(session, args)).await,
        "sinfo" => Box::pin(sinfo::run(session, args)).await,
        "scontrol" => Box::pin(scontrol::run(session, args)).await,
        "sacct" => Box::pin(sacct::run(session, args)).await,
        "sstat" => Box::pin(sstat::run(session, args)).await,
        "sprio" => Box::pin(sprio::run(session, args)).await,
        "sshare" => Box::pin(sshare::run(session, args)).await,
        "sattach" => Box::pin(sattach::run(session, args)).await,
        "sbcast" => Box::pin(sbcast::run(session, args)).await,
        "sacctmgr" => Box::pin(sacctmgr::run(session, args)).await,
        other => unreachable!("{other} is none of the commands"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_commands_name_and_a_remedy() {
        assert_eq!(failure_text("srun", "no", None), "srun: error: no\n");
        assert_eq!(failure_text("srun", "no", Some("do that")), "srun: error: no\nsrun: hint: do that\n");
    }
}
