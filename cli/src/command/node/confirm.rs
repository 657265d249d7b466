//! Confirmation before an irreversible operation.

use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::message::write_message;
use std::io::{self, BufRead, IsTerminal};

/// Returns if `--yes` was given, or if the person at the terminal confirms. Refuses if there is no terminal.
///
/// # Errors
/// It was not confirmed.
pub fn require_confirmation(yes: bool, what: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(
            Failure::usage(format!("{what}: this needs your confirmation, and there is no terminal to ask at")).hint("--yes confirms it")
        );
    }
    write_message(format_args!("{what}. Go on? [y/N] "));
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    match read {
        Ok(_) if matches!(line.trim(), "y" | "Y" | "yes") => Ok(()),
        Ok(_) => Err(Failure::new(Exit::Refused, "not confirmed: nothing was done")),
        Err(error) => Err(Failure::other(format!("the answer cannot be read: {error}"))),
    }
}
