//! The targets for the quorum's figures, and the common parameters of both systems.

use crate::bench::figures::{Samples, Target};
use anyhow::{Context, Result};
use lattice_lab::quorum::members::Timers;

/// Clients at once.
pub(super) const MANY: usize = 64;

pub(super) const STATE_MB: f64 = 300.0;
pub(super) const STALL_MS: f64 = 50.0;
pub(super) const RESTART_MS: f64 = 3000.0;

pub(super) fn lattice_timers() -> Timers {
    let defaults = lattice_quorum::config::QuorumConfig::default();
    Timers { heartbeat_ms: defaults.heartbeat_ms, election_ms: defaults.election_ms }
}

pub(super) fn need(values: Vec<f64>) -> Result<Samples> {
    Samples::of(values, 0).context("nothing was measured")
}

pub(super) fn one(value: f64) -> Result<Samples> {
    need(vec![value])
}

pub(super) fn at_most(value: f64, why: &str) -> Target {
    Target::AtMost { value, why: why.to_owned() }
}
