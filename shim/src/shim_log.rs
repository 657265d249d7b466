//! The shim's own log.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a shim writes to its log, in bytes: a task group may have a failure for each of a million tasks, and the log
/// counts in no limit of output.
const BYTES_MAX: u64 = 1 << 20;
const LEFT_OUT: &str = "the log is full: further lines are left out";

static WRITTEN_BYTES: AtomicU64 = AtomicU64::new(0);

/// Writes a line to `shim.log`. On a full disk only the line is lost (`eprintln!` would panic).
pub fn log_line(line: &str) {
    let line = printable(line);
    let before = WRITTEN_BYTES.fetch_add(line_bytes(&line), Ordering::Relaxed);
    if let Some(line) = admitted(&line, before) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// One line without control codes: it may have a path that its user chose.
fn printable(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for character in line.chars() {
        if character.is_control() { text.extend(character.escape_default()) } else { text.push(character) }
    }
    text
}

fn line_bytes(line: &str) -> u64 {
    line.len() as u64 + 1
}

/// What is written instead of a line when `before` bytes were written or left out; `None`: nothing.
fn admitted(line: &str, before: u64) -> Option<&str> {
    match before.saturating_add(line_bytes(line)) {
        after if after <= BYTES_MAX => Some(line),
        // Once.
        _ if before <= BYTES_MAX => Some(LEFT_OUT),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_user_begins_no_line_and_controls_no_terminal() {
        assert_eq!(printable("/home/é\nforged\u{1b}[2J\u{9b}"), "/home/é\\nforged\\u{1b}[2J\\u{9b}");
    }

    #[test]
    fn the_log_is_bounded_and_its_last_line_says_so() {
        let (line, mut before, mut written) = ("a task could not write to its file", 0, Vec::new());
        for _ in 0..100_000 {
            written.extend(admitted(line, before));
            before += line_bytes(line);
        }
        let (last, others) = written.split_last().unwrap();
        assert!(*last == LEFT_OUT && others.iter().all(|one| *one == line), "{last}");
        assert_eq!(others.len() as u64, BYTES_MAX / line_bytes(line));
    }
}
