//! Work that is measured in debug mode: each look at it is kept (see [`crate::traces`]), and how many were is among its numbers.

use super::{Known, Measuring, Number};
use crate::kernel_counts::Key;
use crate::mesh::usage::Shown;
use crate::traces::{Kept, Recorder, Traces};
use lattice_model::{AllocationId, TelemetryMode};
use std::time::Duration;

/// Looks that were kept in this life of the agent, and that were not, or went before the store had them.
const POINTS: &str = "debug_points";
const POINTS_LOST: &str = "debug_points_lost";
/// The same of events in audit mode.
const EVENTS: &str = "audit_events";
const EVENTS_LOST: &str = "audit_events_lost";

/// The newest look at all of the work and at each of its GPUs, and how long ago it was.
struct Raw {
    ago: Duration,
    shown: Vec<Shown>,
    gpus: Vec<(String, Vec<Shown>)>,
}

impl Number<'_> {
    /// With mean and maximum over a time.
    pub(super) fn shown(self, over: Option<(f64, f64)>) -> Shown {
        let Self { name, unit, now, source, .. } = self;
        let (mean, max) = (over.map(|(mean, _)| mean), over.map(|(_, max)| max));
        Shown { name: name.to_owned(), unit: unit.to_owned(), source: source.to_owned(), now, mean, max }
    }
}

/// What `lattice top` says of work in debug mode, and of work in audit mode.
pub(super) fn shown(kept: Option<Kept>, audited: Option<Kept>) -> impl Iterator<Item = Shown> {
    let counts = kept.into_iter().flat_map(|kept| [(POINTS, kept.points), (POINTS_LOST, kept.lost)]);
    let counts = counts.chain(audited.into_iter().flat_map(|kept| [(EVENTS, kept.points), (EVENTS_LOST, kept.lost)]));
    counts.map(|(name, count)| Number { name, unit: "count", now: count as f64, source: "agent", history: None }.shown(None))
}

impl Measuring {
    /// Has the look of this moment kept, where that is asked for.
    pub(super) fn record(&self, recorder: &mut Recorder, audits: &Traces, key: Key, at_ms: u64) {
        if recorder.wants(key) {
            let raw = self.known().raw(key.0, at_ms);
            match raw {
                // It took too long to say anything of rates.
                None => recorder.missed(key, 1),
                // There are no rates before the second one.
                Some(Raw { shown, .. }) if shown.is_empty() => {}
                Some(Raw { ago, shown, gpus }) => {
                    let ago_ms = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
                    recorder.take(key, crate::clock::now().0.saturating_sub(ago_ms), &shown, &gpus);
                }
            }
        }
        let (kept, audited) = (recorder.kept(key), audits.kept_of(TelemetryMode::Audit, key));
        if let Some(of) = self.known().running.get_mut(&key.0) {
            (of.kept, of.audited) = (kept, audited);
        }
    }
}

impl Known {
    /// The newest look, where it is the one of this moment: one that took long tells no rates, and the first one has no numbers.
    fn raw(&self, allocation: AllocationId, at_ms: u64) -> Option<Raw> {
        let of = self.running.get(&allocation).filter(|of| of.at_ms == at_ms)?;
        let (at, _) = of.last.as_ref()?;
        let shown: Vec<Shown> = of.numbers(self.network_errors, |_| true).into_iter().map(|number| number.shown(None)).collect();
        Some(Raw { ago: at.elapsed(), shown, gpus: of.devices.each() })
    }
}
