//! `lattice-lab-bench`: see the library.

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use lattice_lab::interrupt;
use lattice_lab_bench::{bench, replay, sim};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure Lattice, and simulate its parts in virtual time
#[derive(Parser)]
#[command(name = "lattice-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure Lattice, compared with other programs or lower bounds in the same run; exit code 3 when a target is
    /// missed
    Bench(Bench),
    /// Simulate thousands of agents in virtual time; exit code 1 when a target is missed
    #[command(subcommand)]
    Sim(Sim),
    /// Run the scheduler in virtual time on a trace or on generated jobs, under several weights, or beside reference
    /// schedulers on the same jobs
    Replay(replay::Options),
    /// Run what `bench telemetry` measures
    #[command(hide = true)]
    PingPong(bench::PingPong),
    /// Run one of the loads whose counts `bench telemetry` compares
    #[command(hide = true)]
    Load(bench::Load),
}

#[derive(Subcommand)]
enum Sim {
    /// Gossip: how soon agents learn of changes, and how many bytes that takes
    Gossip(sim::Options),
    /// One fence of a launch: how long it takes, and what each agent receives and sends
    Fence(sim::fence::Options),
}

#[derive(Args)]
struct Bench {
    /// What to measure
    #[arg(value_enum)]
    name: bench::Name,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// The cluster's folder, removed afterwards [default: a temporary folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    options: bench::Options,
}

fn main() -> ExitCode {
    match act(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lattice-lab: {error:#}");
            interrupt::exit_code()
        }
    }
}

/// Exit code 3: a target of a bench or a replay was missed.
fn act(command: Command) -> Result<ExitCode> {
    let missed = |code: u8, met: bool| if met { ExitCode::SUCCESS } else { ExitCode::from(code) };
    Ok(match command {
        Command::Bench(b) => missed(3, bench::run(b.name, b.dir.as_deref(), &b.options, b.json)?),
        Command::Sim(Sim::Gossip(options)) => missed(1, sim::gossip(&options)?),
        Command::Sim(Sim::Fence(options)) => missed(1, sim::fence::run(&options)?),
        Command::Replay(options) => missed(3, replay::run(&options)?),
        Command::PingPong(options) => {
            options.run()?;
            ExitCode::SUCCESS
        }
        Command::Load(options) => {
            options.run()?;
            ExitCode::SUCCESS
        }
    })
}
