//! `lattice`: the command line for users. It depends only on its syntax, the API and the model.
//!
//! ```text
//!   lattice_cli_syntax ─▶ command/* ─▶ lattice_api::client ─▶ any agent
//!                           ▲
//!                           └ settings (flags > environment > ~/.config/lattice/config.yaml)
//! ```
//!
//! Data goes to stdout, messages to stderr; the exit codes are in [`failure::Exit`].

// `eprintln!` panics when stderr is closed: see `message`.
#![deny(clippy::print_stderr)]

mod command;
mod compat;
#[cfg(test)]
mod documented;
mod handover;
#[cfg(test)]
mod reference;
mod slurm;

use clap::{Parser, ValueEnum};
use command::{completion, mpi_launcher};
use handover::{AGENT, QUORUM};
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::dag::{Dag, DagCommand};
use lattice_cli_syntax::args::output::Output;
use lattice_cli_syntax::args::{Cli, Command, Global};
use lattice_cli_syntax::later::Later;
use lattice_cli_syntax::mistyped;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    if mpi_launcher::is_called() {
        return mpi_launcher::main();
    }
    if let Some(command) = slurm::called_as() {
        return slurm::main(command);
    }
    if let Some(code) = completion::answer_shell() {
        return code;
    }
    let typed: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&typed) {
        Ok(cli) => cli,
        Err(error) => match mistyped::explain(&error, &typed) {
            Some(error) => return Failure::from(error).report(),
            None => mistyped::remove_wrong_tips(error).exit(),
        },
    };
    // Some commands belong to other programs, which need no agent and read their own configuration.
    let done = match &cli.command {
        command if reads_no_settings(command) && names_settings(&cli.global) => {
            Err(Failure::usage("this command reads no settings: --config and --tenant before it have no meaning")
                .hint("leave them out, or write the command's own options after its name"))
        }
        Command::Dev(rest) => Err(handover::exec(AGENT, "dev", &rest.args)),
        Command::Doctor(rest) => Err(handover::exec(AGENT, "doctor", &with_output(&rest.args, cli.global.output))),
        Command::Quorum(quorum) => match quorum.0.command.member_program_call() {
            Some((verb, rest)) => Err(handover::exec(QUORUM, verb, rest)),
            None => run_with_agent(cli),
        },
        _ => run_with_agent(cli),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

/// Whether another program executes the command.
fn reads_no_settings(command: &Command) -> bool {
    match command {
        Command::Dev(_) | Command::Doctor(_) => true,
        Command::Quorum(quorum) => quorum.0.command.member_program_call().is_some(),
        _ => false,
    }
}

fn names_settings(global: &Global) -> bool {
    global.config.is_some() || global.tenant.is_some()
}

/// `-o` was parsed as an option of every command, so it is added to the arguments again.
fn with_output(args: &[OsString], output: Option<Output>) -> Vec<OsString> {
    let name = output.and_then(|o| o.to_possible_value()).map(|v| v.get_name().to_owned());
    let output = name.map(|name| [OsString::from("--output"), name.into()]);
    args.iter().cloned().chain(output.into_iter().flatten()).collect()
}

fn run_with_agent(mut cli: Cli) -> Result<u8, Failure> {
    if let Some(Output::PerRank) = cli.global.output {
        match &mut cli.command {
            Command::Launch(launch) => launch.0.per_rank = true,
            _ => {
                return Err(Failure::usage("-o per-rank is only for `lattice launch`; `lattice logs --rank N` shows one rank's output"));
            }
        }
    }
    if let Some(Output::Dot) = cli.global.output {
        match &mut cli.command {
            Command::Dag(Later(Dag { command: DagCommand::Show(show) })) => show.dot = true,
            _ => return Err(Failure::usage("-o dot is only for `lattice dag show`")),
        }
    }
    if let Some(tenant) = &cli.global.tenant {
        cli.command.set_tenant(tenant)?;
    }
    let follows = cli.command.exits_with_program_code();
    let done = Session::new(&cli.global).and_then(|session| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::other(format!("cannot start: {error}")))?;
        runtime.block_on(command::run(&session, cli.command))
    });
    // Such a command returns the program's own exit code, so a failure of Lattice needs a code that programs rarely
    // use.
    done.map_err(|failure| if follows { failure.beside_a_program() } else { failure })
}
