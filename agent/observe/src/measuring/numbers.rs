//! The numbers of an allocation's work, by the names of `lattice top` and of alert rules.

use crate::traces::TraceCounts;
use lattice_mesh::usage::Shown;
use lattice_telemetry::window::History;

/// Looks recorded in this run of the agent, and looks lost before the store had them.
const POINTS: &str = "debug_points";
const POINTS_LOST: &str = "debug_points_lost";
/// The same for events in audit mode.
const EVENTS: &str = "audit_events";
const EVENTS_LOST: &str = "audit_events_lost";

/// One number of an allocation's work here.
pub(super) struct Number<'a> {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) now: f64,
    pub(super) source: &'static str,
    /// Its history, if there is one.
    pub(super) history: Option<&'a History>,
}

impl Number<'_> {
    /// With mean and maximum over a time.
    pub(super) fn shown(self, over: Option<(f64, f64)>) -> Shown {
        let Self { name, unit, now, source, .. } = self;
        let (mean, max) = (over.map(|(mean, _)| mean), over.map(|(_, max)| max));
        Shown { name: name.to_owned(), unit: unit.to_owned(), source: source.to_owned(), now, mean, max }
    }
}

/// The numbers of `lattice top` about work in debug mode and in audit mode.
pub(super) fn trace_counts(kept: Option<TraceCounts>, audited: Option<TraceCounts>) -> impl Iterator<Item = Shown> {
    let counts = kept.into_iter().flat_map(|kept| [(POINTS, kept.points), (POINTS_LOST, kept.lost)]);
    let counts = counts.chain(audited.into_iter().flat_map(|kept| [(EVENTS, kept.points), (EVENTS_LOST, kept.lost)]));
    counts.map(|(name, count)| Number { name, unit: "count", now: count as f64, source: "agent", history: None }.shown(None))
}
