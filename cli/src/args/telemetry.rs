//! `lattice telemetry`.

use clap::Args;
use lattice_model::TelemetryMode;
use lattice_model::duration::{self, BareNumber};
use lattice_model::telemetry::CLOSELY_MS;
use std::time::Duration;

const TELEMETRY_HELP: &str = "Examples:
  lattice telemetry --alloc 1f0c9a4e --mode debug
      for half an hour each of its nodes keeps every look at it, one a second, in the object store, as lines of JSON
  lattice telemetry --alloc 1f0c9a4e --mode debug --duration 2h
  lattice telemetry --alloc 1f0c9a4e --mode audit
      until its work ends each of its nodes keeps which files it opens and which connections it makes and takes, by user
  lattice telemetry --alloc 1f0c9a4e --mode prod
      no more; what was kept stays
  lattice telemetry --alloc 1f0c9a4e
      how it is measured now
  lattice telemetry --alloc 1f0c9a4e --read > looks.jsonl
      what its nodes have put into the store so far

Its nodes look within a second of hearing of it, or at their next look where one is under way, and end by themselves, also where an agent is started again or the quorum is
away; the programs in the kernel are not loaded anew. With the nodes it is given up as well: an allocation that is requeued is measured as
usual. `lattice top` shows debug_points, the looks that a node has kept since its agent was started, and debug_points_lost: those that took
too long to say anything, could not be written, or went for want of room before the store had them; audit_events and audit_events_lost are
the same of mode audit. For its owner, and for operators.

An audit has the arguments of open, openat, openat2, creat, connect and accept as the process gave them, and what came of them: a path is
not resolved, a connection that is begun without waiting ends with EINPROGRESS. Files and connections of io_uring are told as asked for,
without a result; of programs for 32 bits only that they called. Not told: datagrams that are sent without a connection, descriptors that are inherited or passed
on, and what happened while the node's agent was away, which the record says. One mode at a time: an audit keeps no looks.";

#[derive(Args)]
#[command(after_help = TELEMETRY_HELP)]
pub struct Telemetry {
    /// The allocation: an id, the beginning of one, or @last
    #[arg(long, value_name = "ID")]
    pub alloc: String,
    /// prod: windows of 30 s; debug: beside them every single look; audit: files opened and connections. Nothing: say how it is
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub mode: Option<TelemetryMode>,
    /// How long it lasts: 90s, 2h, at most a day; a bare number is seconds [default: debug 30m, audit until its work ends]
    #[arg(long, value_name = "TIME", requires = "mode", value_parser = lasting)]
    pub duration: Option<Duration>,
    /// Print what was kept and is in the store, as lines of JSON
    #[arg(long, conflicts_with = "mode")]
    pub read: bool,
    /// With --read: of this node alone
    #[arg(long, value_name = "NODE", requires = "read")]
    pub node: Option<String>,
}

fn mode(text: &str) -> Result<TelemetryMode, String> {
    text.parse().map_err(|error: lattice_model::telemetry::NoMode| error.to_string())
}

fn lasting(text: &str) -> Result<Duration, String> {
    let lasting = duration::parse(text, BareNumber::Seconds).map_err(|e| e.to_string())?;
    let bounds = Duration::from_millis(CLOSELY_MS.0)..=Duration::from_millis(CLOSELY_MS.1);
    if bounds.contains(&lasting) { Ok(lasting) } else { Err("1s to 24h are possible".to_owned()) }
}
