//! `lattice top` without an allocation: the cluster, live, on one screen.
//!
//! ```text
//!   keyboard ─▶ keys ──▶ ┌────────┐ ─▶ draw ─▶ terminal
//!   refreshing ────────▶ │ Screen │
//!   asking ◀── actions ──└────────┘     driver: signals, the clock, and the loop over all of it
//!      └───── answers ──────▲
//! ```
//!
//! [`model::Screen`] and [`draw`] are pure: they know neither the terminal nor the agent.

mod alerts;
mod asking;
mod columns;
mod draw;
mod driver;
mod events;
mod filter;
mod keys;
mod lists;
mod model;
mod node_details;
mod plain;
mod refreshing;
mod snapshot;
#[cfg(test)]
mod tests;
mod texts;
mod usage_list;

use asking::Explanation;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::Format;
use lattice_cli_session::session::Session;
use std::io::IsTerminal;
use std::time::Duration;

/// The time between two refreshes.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(2);

/// Shows the cluster until the user quits; returns the exit code.
///
/// # Errors
/// There is no terminal, the format is not for people, or no agent answers.
pub async fn run(session: &Session, interval: Option<Duration>, explanation: Explanation) -> Result<u8, Failure> {
    let other_ways = "`lattice status` and `lattice nodes` list what programs read, `lattice top ID` shows one allocation";
    if session.format() != Format::Table {
        return Err(Failure::usage("the cluster's screen is for people: it has no format for programs").hint(other_ways));
    }
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::usage("the cluster's screen needs a terminal, and there is none").hint(other_ways));
    }
    Box::pin(driver::run(session, interval.unwrap_or(INTERVAL_DEFAULT), explanation)).await
}
