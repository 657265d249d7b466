//! The counters of an adapter's port.

use crate::catalogue::Family;
use crate::sample::Samples;
use std::path::Path;

/// Limit on the ports of each kind that are exported, and on the entries of one directory that are read.
pub const PORTS_MAX: usize = 32;

/// The counters of one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The labels that identify it.
    pub(super) labels: Vec<String>,
    pub(super) counts: Vec<Count>,
}

/// A series, the value of its label besides the port's if it has one, and its count.
pub(super) type Count = (&'static Family, Option<&'static str>, u64);

impl Port {
    /// Exports the values.
    pub fn write_metrics(&self, samples: &mut Samples) {
        for (metric, label, count) in &self.counts {
            let labels: Vec<&str> = self.labels.iter().map(String::as_str).chain(*label).collect();
            samples.count(metric, &labels, *count);
        }
    }

    /// The values of one series, by its last label.
    pub fn of(&self, metric: &Family) -> impl Iterator<Item = (&'static str, u64)> {
        let name = metric.name;
        self.counts.iter().filter(move |(of, ..)| of.name == name).map(|(_, label, count)| (label.unwrap_or_default(), *count))
    }
}

/// The first [`PORTS_MAX`] entries of a directory, by name.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names.truncate(PORTS_MAX);
    names
}
