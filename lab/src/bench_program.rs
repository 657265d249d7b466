//! The program that measures and simulates: a package of its own (`lab/bench`), for which the demo does not wait.

use crate::binaries::Binaries;
use anyhow::{Context, Result};
use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this process by `lattice-lab-bench SUBCOMMAND ARGUMENTS`, under the name of this program. The other program is
/// built first, unless the arguments have `--no-build`, or ask for help of a program that exists. `bench`, which starts
/// daemons, gets `--no-build` too.
///
/// # Errors
///
/// The program cannot be built or started.
pub fn replace_by(subcommand: &str, arguments: &[OsString]) -> Result<Infallible> {
    let binaries = Binaries::beside_lab()?;
    let is_no_build = |argument: &&OsString| *argument == "--no-build";
    let program = binaries.bench();
    let asks_for_help = arguments.iter().any(|argument| argument == "--help" || argument == "-h");
    let is_used_as_it_is = arguments.iter().any(|argument| is_no_build(&argument)) || (asks_for_help && program.is_file());
    if !is_used_as_it_is {
        binaries.build_bench()?;
    }
    let passed = arguments.iter().filter(|argument| subcommand == "bench" || !is_no_build(argument));
    let error = Command::new(&program).arg0("lattice-lab").arg(subcommand).args(passed).exec();
    Err(error).with_context(|| {
        format!("cannot run {}: build it with `cargo build -p lattice-lab-bench`, or leave --no-build out", program.display())
    })
}
