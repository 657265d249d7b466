//! Asking before something that cannot be taken back.

use crate::failure::{Exit, Failure};
use std::io::{self, BufRead, IsTerminal};

/// Goes on where `--yes` was given, or somebody at the terminal says so. Where nobody can be asked it is refused.
///
/// # Errors
/// It was not confirmed.
pub fn confirmed(yes: bool, what: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(
            Failure::usage(format!("{what}: this needs your confirmation, and there is no terminal to ask at")).hint("--yes confirms it")
        );
    }
    eprint!("{what}. Go on? [y/N] ");
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    match read {
        Ok(_) if matches!(line.trim(), "y" | "Y" | "yes") => Ok(()),
        Ok(_) => Err(Failure::new(Exit::Refused, "not confirmed: nothing was done")),
        Err(error) => Err(Failure::other(format!("the answer cannot be read: {error}"))),
    }
}
