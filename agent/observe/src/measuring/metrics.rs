//! Exports the measured numbers as metrics.

use super::histories::{Exported, write_window};
use super::{Measuring, Tracked, disks};
use crate::kernel_counts::coarser;
use lattice_telemetry::catalogue::{alert as of_alerts, allocation as family, node as of_node_family};
use lattice_telemetry::sample::{Collect, Samples, Whose};
use lattice_telemetry::usage::Source;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl Tracked {
    pub(super) fn write_metrics(&self, exported: Exported, samples: &mut Samples) {
        let id = self.share.allocation.to_string();
        let spec = &self.share.spec;
        samples.add(&family::INFO, &[&id, &self.share.owner.name, &spec.tenant, &spec.project, &spec.vcluster], 1);
        for (measure, value, _) in self.usage.all() {
            let (metric, more) = measure.family();
            let labels: Vec<&str> = std::iter::once(id.as_str()).chain(more.iter().copied()).collect();
            samples.add(metric, &labels, value);
        }
        for (of, counts, _) in self.usage.distributions() {
            let (metric, more) = of.family();
            let labels: Vec<&str> = std::iter::once(id.as_str()).chain(more.iter().copied()).collect();
            samples.histogram(metric, &labels, coarser(counts));
        }
        disks::write_metrics(&id, &self.usage.devices, samples);
        self.histories.write_metrics(&id, exported, samples);
        for (metric, history) in self.devices.windows() {
            if let Some(window) = exported.of(history.whole()) {
                write_window(samples, metric, &id, &window);
            }
        }
        for gpu in self.devices.ids() {
            samples.add(&family::GPU_INFO, &[&id, gpu], 1);
        }
        self.alerts.write_metrics(&id, samples);
    }
}

impl Collect for Measuring {
    fn collect(&self, samples: &mut Samples, whose: Whose) {
        let known = self.known();
        let sources: BTreeSet<(&str, Source)> = known.running.values().flat_map(|of| of.usage.sources()).collect();
        for (measure, source) in sources {
            samples.add(&family::SOURCE, &[measure, source.name()], 1);
        }
        self.0.kernel.collect(samples);
        for rule in &self.0.alerts.rules {
            let measured = known.running.values().any(|of| of.alerts.measures(rule));
            samples.add(&of_alerts::MEASURED, &[&rule.name], u32::from(measured));
        }
        for (alert, count) in &known.raised {
            samples.count(&of_alerts::RAISED, &[alert], *count);
        }
        samples.count(&family::LEFT_OUT, &[], self.0.left_out.load(Ordering::Relaxed));
        samples.histogram(&family::PASS_SECONDS, &[], self.0.seconds.counts());
        if whose == Whose::Everybodys {
            // The kernel shows energy only to root, because it reveals what others compute.
            for (domain, joules) in known.node_energy.domains() {
                samples.add(&of_node_family::ENERGY, &[domain], joules);
            }
            for (of, ended_at) in known.all() {
                of.write_metrics(Exported { smoothing: self.0.smoothing, ended: ended_at.map(|at| at.elapsed()) }, samples);
            }
        }
    }
}
