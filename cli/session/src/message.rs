//! Messages on stderr. If stderr is closed or its terminal is gone, the command continues: `eprintln!` would panic
//! before the command could cancel the work that it follows.

use crate::terminal;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Whether `-v` was given. Calls are made everywhere, so this is one fact of the whole process.
static IS_VERBOSE: AtomicBool = AtomicBool::new(false);

/// Whether a line of [`show_progress`] is on the terminal.
static HAS_PROGRESS: AtomicBool = AtomicBool::new(false);

/// Removes the text of a terminal's line, and returns to its beginning.
const CLEAR_LINE: &str = "\r\u{1b}[K";

/// From now on, [`write_detail`] writes.
pub fn set_verbose() {
    IS_VERBOSE.store(true, Ordering::Relaxed);
}

/// Writes a line `lattice: TEXT` to stderr if `-v` was given.
pub fn write_detail(text: impl Display) {
    if IS_VERBOSE.load(Ordering::Relaxed) {
        write_message_line(text);
    }
}

/// Replaces the last line of the terminal on stderr by this text, without a line end.
pub fn show_progress(text: &str) {
    HAS_PROGRESS.store(true, Ordering::Relaxed);
    write_to(&mut io::stderr(), &format!("{CLEAR_LINE}{text}"));
}

/// Removes the line of [`show_progress`], if there is one.
pub fn clear_progress() {
    if HAS_PROGRESS.swap(false, Ordering::Relaxed) {
        write_to(&mut io::stderr(), CLEAR_LINE);
    }
}

/// A text of a server without control characters other than line ends: they would change the user's terminal.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

/// Writes a text as it is to stderr, if that is possible. While a terminal shows a full screen, nothing is written to
/// it: the text would stand among the rows.
pub fn write_message(text: impl Display) {
    if terminal::is_full_screen() && io::stderr().is_terminal() {
        return;
    }
    clear_progress();
    write_to(&mut io::stderr(), &text.to_string());
}

/// Writes a line `lattice: TEXT` to stderr, if that is possible; `srun: TEXT` as Slurm's `srun`.
pub fn write_message_line(text: impl Display) {
    let text = harmless(&text.to_string());
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

    #[test]
    fn a_message_cannot_change_the_terminal() {
        assert_eq!(harmless("\u{1b}[2Jn1 is held:\r\nfan\u{9b}0m\n"), " [2Jn1 is held: \nfan 0m\n");
    }
}
