//! `lattice telemetry`.

use super::ttl::{BoundedTimeError, parse_bounded};
use clap::Args;
use lattice_model::TelemetryMode;
use lattice_model::telemetry::CLOSELY_MS;
use std::time::Duration;

const TELEMETRY_HELP: &str = "Examples:
  lattice telemetry --alloc 1f0c9a4e --mode debug
      for half an hour its nodes keep every measurement, one a second, in the
      object store, as lines of JSON
  lattice telemetry --alloc 1f0c9a4e --mode debug --duration 2h
  lattice telemetry --alloc 1f0c9a4e --mode audit
      until it ends, its nodes keep which files it opens and which connections
      it makes and accepts, by user
  lattice telemetry --alloc 1f0c9a4e --mode prod
      back to normal; what was kept stays
  lattice telemetry --alloc 1f0c9a4e
      show the mode that it has now
  lattice telemetry --alloc 1f0c9a4e --read > samples.jsonl
      read what its nodes have put into the store so far

The nodes change the mode within a second or two. It ends by itself after its
duration, even if the agent is restarted or the quorum does not answer. An
allocation that is requeued is measured as usual. `lattice top` shows, since the
agent was started, debug_points (measurements kept) and debug_points_lost
(measurements that took too long, could not be written, or were dropped for lack
of space before the store had them); audit_events and audit_events_lost are the
same for mode audit.

An audit records the arguments of open, openat, openat2, creat, connect and
accept as the process gave them, and the results: paths are not resolved, and a
connection that is made without waiting has the result EINPROGRESS. Requests of
io_uring are recorded without a result; of 32-bit programs only that they made
a call. Not recorded: datagrams that are sent without a connection, descriptors
that are inherited or passed on, and what happens while the agent is
unreachable (the record says when). An audit keeps no measurements: one mode at
a time.

For the owner, admins of its tenant and operators.";

#[derive(Args)]
#[command(after_help = TELEMETRY_HELP)]
pub struct Telemetry {
    /// The allocation: its id, the beginning of it, or @last
    #[arg(long, value_name = "ID")]
    pub alloc: String,
    /// prod: windows of 30 s; debug: every single measurement as well; audit: files opened and connections [default:
    /// show the mode]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<TelemetryMode>,
    /// How long it lasts, such as 90s or 2h, at most a day; a bare number is seconds [default: debug 30m, audit until
    /// it ends]
    #[arg(long, value_name = "TIME", requires = "mode", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Print the recorded measurements that are in the store, as lines of JSON
    #[arg(long, conflicts_with = "mode")]
    pub read: bool,
    /// With --read: only those of this node [default: all nodes]
    #[arg(long, value_name = "NODE", requires = "read")]
    pub node: Option<String>,
}

fn parse_duration(text: &str) -> Result<Duration, BoundedTimeError> {
    parse_bounded(text, Duration::from_millis(CLOSELY_MS.0)..=Duration::from_millis(CLOSELY_MS.1), "1s to 24h")
}
