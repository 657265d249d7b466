//! Alerts of measured work: evaluates their rules, and answers queries about them.

use super::{ALLOCATIONS_MAX, Known, Measuring, Number, Tracked};
use crate::alerting::saved::{Key, Saved};
use crate::alerting::{Alerts, Change};
use lattice_mesh::usage::WireUsage;
use lattice_model::{AllocationId, DesiredShare};
use lattice_telemetry::alert::AlertSettings;
use lattice_telemetry::alert::idle::{IdleReport, Verdict};
use lattice_telemetry::readers::{LAUNCHES_MAX, Parts};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A launch that may hang, or that has a hang alert.
pub struct Suspect {
    pub share: Arc<DesiredShare>,
    pub launch: u32,
    /// This node's report about its own ranks.
    pub report: IdleReport,
}

/// Changes of an allocation's alerts, for a follower.
pub struct AlertChanges {
    pub changes: Vec<Change>,
    /// Whether `changes` lists all raised alerts, because the follower missed changes or knew none.
    pub anew: bool,
    /// The value of `known` for the follower's next call of [`Measuring::alerts`].
    pub count: u64,
    /// The present time, on the clock of the changes.
    pub now_ms: u64,
}

impl Measuring {
    /// How long a launch may be idle before it is suspected to hang; `None`: hangs are not
    /// reported.
    pub fn hang_ms(&self) -> Option<u64> {
        self.0.alerts.hang_ms
    }

    /// Changes after each regular look at all allocations.
    pub fn looked(&self) -> watch::Receiver<u64> {
        self.0.looked.subscribe()
    }

    /// The changes of an allocation's alerts after the first `known` ones; all raised alerts if
    /// `known` is `None` or too old. `None`: this node does not measure the allocation under this
    /// epoch, or not yet.
    pub fn alerts(&self, (allocation, epoch): Key, known: Option<u64>) -> Option<AlertChanges> {
        let all = self.known();
        let alerts = all.running.get(&allocation).filter(|of| of.share.epoch == epoch).map(|of| &of.alerts)?;
        let (count, now_ms) = (alerts.count(), all.now_ms);
        Some(match known.and_then(|known| alerts.since(known)) {
            Some(changes) => AlertChanges { changes, anew: false, count, now_ms },
            None => AlertChanges { changes: alerts.raised(&self.0.alerts), anew: true, count, now_ms },
        })
    }

    /// The newest numbers of an allocation, if there are any, with a summary of each number's
    /// history over `duration`.
    pub fn newest(&self, (allocation, epoch): Key, duration: Duration) -> Option<WireUsage> {
        let known = self.known();
        known.running.get(&allocation).filter(|of| of.share.epoch == epoch).and_then(|of| of.wire_usage(duration, known.network_errors))
    }

    /// This node's report about its ranks of a launch.
    pub fn report(&self, (allocation, epoch): Key, launch: u32) -> IdleReport {
        let known = self.known();
        match known.running.get(&allocation).filter(|of| of.share.epoch == epoch) {
            Some(of) => of.alerts.report(launch),
            None => IdleReport::Unknown,
        }
    }

    /// Launches that may hang, or that have a hang alert. Sessions are left out, because they wait
    /// for their user; so is work with a liveness probe, which shows whether it is alive.
    pub fn suspects(&self) -> Vec<Suspect> {
        let Some(limit_ms) = self.0.alerts.hang_ms else { return Vec::new() };
        let known = self.known();
        let waits = |share: &DesiredShare| share.spec.session || share.spec.liveness_probe.is_some();
        let of = |of: &Tracked| {
            let launches = of.alerts.suspects(limit_ms);
            let suspect = |launch| Suspect { share: Arc::clone(&of.share), launch, report: of.alerts.report(launch) };
            launches.into_iter().map(suspect).collect::<Vec<_>>()
        };
        known.running.values().filter(|of| !waits(&of.share)).flat_map(of).collect()
    }

    /// Queues the verdict about a launch, which is based on the reports of all its nodes.
    pub fn decide(&self, key: Key, launch: u32, verdict: Verdict) {
        let mut known = self.known();
        // The measuring thread applies the verdicts at each look, normally once a second. Beyond
        // one for each launch, further verdicts are dropped.
        if known.verdicts.len() < ALLOCATIONS_MAX * LAUNCHES_MAX {
            known.verdicts.push((key, launch, verdict));
        }
    }
}

impl Known {
    /// Evaluates the alert rules for an allocation that was just measured. `restored`: its alerts
    /// as stored by the agent's earlier run.
    pub(super) fn alert(
        &mut self,
        settings: &AlertSettings,
        allocation: AllocationId,
        now_ms: u64,
        parts: Option<&Parts>,
        restored: Option<Saved>,
    ) {
        self.now_ms = self.now_ms.max(now_ms);
        let Some(of) = self.running.get_mut(&allocation) else { return };
        if let Some(restored) = restored {
            let severity_of = |name: &str| settings.rules.iter().find(|rule| rule.name == name).map(|rule| rule.severity);
            of.alerts = Alerts::restored(restored, now_ms, settings.hang_ms.is_some(), severity_of);
        }
        // If this look was too imprecise for rates, the rates of an earlier look must not count
        // again: they are measured, but have no value now.
        let blurred = of.at_ms != now_ms;
        let is_rate = |number: &Number<'_>| !matches!(number.unit, "bytes" | "count") && number.source != "node";
        let value = |number: &Number<'_>| if blurred && is_rate(number) { f64::NAN } else { number.now };
        // Compute only the numbers that rules use.
        let wanted = |name: &str| settings.rules.iter().any(|rule| rule.measure == name);
        let values: Vec<(&str, f64)> = of.numbers(self.network_errors, wanted).iter().map(|number| (number.name, value(number))).collect();
        let value_of = |measure: &str| values.iter().find(|(name, _)| *name == measure).map(|(_, now)| *now);
        let before = of.alerts.count();
        of.alerts.look(settings, now_ms, value_of);
        if let Some(parts) = parts {
            let mut moved: Vec<_> = of.moving.look(&of.usage).collect();
            moved.extend(of.devices.moved(of.share.resources.gpus > 0));
            of.alerts.look_at_launches(now_ms, parts, &moved);
        }
        self.raised_since(allocation, before);
    }

    /// Applies the verdicts about launches, and returns the state of all alerts to store.
    pub(super) fn decided(&mut self, settings: &AlertSettings) -> impl Iterator<Item = Saved> {
        let limit_ms = settings.hang_ms.unwrap_or(u64::MAX);
        for ((allocation, epoch), launch, verdict) in std::mem::take(&mut self.verdicts) {
            let now_ms = self.now_ms;
            if let Some(of) = self.running.get_mut(&allocation).filter(|of| of.share.epoch == epoch) {
                let before = of.alerts.count();
                of.alerts.decide(launch, verdict, now_ms, limit_ms);
                self.raised_since(allocation, before);
            }
        }
        // An idle launch is stored once it has been idle for half of the limit.
        let of = |of: &Tracked| of.alerts.saved((of.share.allocation, of.share.epoch), limit_ms / 2);
        self.running.values().filter_map(of).collect::<Vec<_>>().into_iter()
    }

    fn raised_since(&mut self, allocation: AllocationId, before: u64) {
        let Some(of) = self.running.get(&allocation) else { return };
        for change in of.alerts.since(before).unwrap_or_default().into_iter().filter(|change| change.raised) {
            tracing::info!(%allocation, alert = change.alert, severity = %change.severity, "alert: {}", change.text);
            *self.raised.entry(change.alert).or_default() += 1;
        }
    }
}
