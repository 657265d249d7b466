//! Work in debug mode: each look at it is recorded (see [`crate::traces`]). The number of records is
//! one of the numbers that are shown for it.

use super::{Known, Measuring};
use crate::kernel_counts::Key;
use crate::traces::{Recorder, Traces};
use lattice_mesh::usage::Shown;
use lattice_model::{AllocationId, TelemetryMode, millis};
use std::time::Duration;

/// The newest look at the work and at each of its GPUs, and how long ago it was.
struct Raw {
    ago: Duration,
    shown: Vec<Shown>,
    gpus: Vec<(String, Vec<Shown>)>,
}

impl Measuring {
    /// Records the look at `at_ms`, if that is requested.
    pub(super) fn record(&self, recorder: &mut Recorder, audits: &Traces, key: Key, at_ms: u64) {
        if recorder.is_recording(key) {
            let raw = self.known().raw(key.0, at_ms);
            match raw {
                // The look took too long to give rates.
                None => recorder.count_lost(key, 1),
                // There are no rates before the second look.
                Some(Raw { shown, .. }) if shown.is_empty() => {}
                Some(Raw { ago, shown, gpus }) => {
                    let ago_ms = millis(ago);
                    recorder.take(key, lattice_agent_common::clock::now().0.saturating_sub(ago_ms), &shown, &gpus);
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
    /// The newest look with rates, if it is the one at `at_ms`: a look that took too long gives none.
    /// The first look has no numbers.
    fn raw(&self, allocation: AllocationId, at_ms: u64) -> Option<Raw> {
        let of = self.running.get(&allocation).filter(|of| of.at_ms == at_ms)?;
        let (at, _) = of.last.as_ref()?;
        let shown: Vec<Shown> = of.numbers(self.network_errors, |_| true).into_iter().map(|number| number.shown(None)).collect();
        Some(Raw { ago: at.elapsed(), shown, gpus: of.devices.each() })
    }
}
