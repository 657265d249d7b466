//! Messages on stderr. If stderr is closed or its terminal is gone, the command continues: `eprintln!` would panic
//! before the command could cancel the work that it follows.

use crate::terminal;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;

/// The command of Slurm as which this process was called.
static SLURM_COMMAND: OnceLock<&str> = OnceLock::new();

/// From now on, messages begin with the name of this command of Slurm.
pub fn speak_as(command: &'static str) {
    let _ = SLURM_COMMAND.set(command);
}

/// The command of Slurm as which this process was called, if it was.
pub fn slurm_command() -> Option<&'static str> {
    SLURM_COMMAND.get().copied()
}

/// Writes a text as it is to stderr, if that is possible.
pub fn write_message(text: impl Display) {
    write_to(&mut io::stderr(), &text.to_string());
}

/// Writes a line `lattice: TEXT` to stderr, if that is possible; `srun: TEXT` as Slurm's `srun`.
pub fn write_message_line(text: impl Display) {
    write_message(format_args!("{}: {text}{}", slurm_command().unwrap_or("lattice"), terminal::line_end()));
}

fn write_to(out: &mut impl Write, text: &str) {
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_gone_changes_nothing() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        assert_eq!(writer.write_all(b"x").map_err(|error| error.kind()), Err(io::ErrorKind::BrokenPipe));
        write_to(&mut writer, "x\n");
    }
}
