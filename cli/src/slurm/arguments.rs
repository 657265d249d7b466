//! The command lines of Slurm's commands.

use clap::Parser;
use clap::error::ErrorKind;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::print;
use lattice_slurm::commands::version_line;
use std::ffi::OsString;

/// The arguments as text.
pub fn texts(args: &[OsString]) -> Result<Vec<String>, Failure> {
    let text = |arg: &OsString| arg.to_str().map(str::to_owned).ok_or_else(|| Failure::usage(format!("{} is not UTF-8", arg.display())));
    args.iter().map(text).collect()
}

/// Parses the arguments of a command that Lattice's own parser can read. `None`: the help or the version was printed.
pub fn parse<T: Parser>(command: &str, args: &[OsString]) -> Result<Option<T>, Failure> {
    if args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "-V" || arg == "--version") {
        print(&version_line(env!("CARGO_PKG_VERSION")))?;
        return Ok(None);
    }
    let line = std::iter::once(OsString::from(command)).chain(args.iter().cloned());
    match T::try_parse_from(line) {
        Ok(parsed) => Ok(Some(parsed)),
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            print(&error.to_string())?;
            Ok(None)
        }
        Err(error) => {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").replace('\n', " ");
            Err(Failure::usage(first).hint(format!("Try \"{command} --help\" for more information")))
        }
    }
}
