//! The shim's own log.

use std::io::Write;

/// A line in `shim.log`. On a full disk it is lost, and nothing else is (`eprintln!` would panic).
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
