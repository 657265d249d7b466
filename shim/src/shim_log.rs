//! The shim's own log.

use std::io::Write;

/// Writes a line to `shim.log`. On a full disk only the line is lost (`eprintln!` would panic).
pub fn log_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
