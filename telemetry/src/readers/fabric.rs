//! Adapters of fabrics, and what each of their ports has counted.
//!
//! Each of these files is a question to the adapter, some to its firmware, and one that hangs does not answer for a minute or more: who
//! asks does it beside everything else, each adapter for itself.

mod cxi;
mod infiniband;

use super::Text;
use crate::catalogue::Family;
use crate::sample::Samples;
use std::path::{Path, PathBuf};

/// Ports of each kind that are told.
pub const PORTS_MAX: usize = 32;

/// Whose driver tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// InfiniBand and RoCE.
    Infiniband,
    /// HPE Slingshot's Cassini.
    Cxi,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Infiniband, Self::Cxi];

    /// Where the kernel has its adapters, below this root.
    pub fn class(self, root: &Path) -> PathBuf {
        root.join(match self {
            Self::Infiniband => "sys/class/infiniband",
            Self::Cxi => "sys/class/cxi",
        })
    }

    /// The adapters that there are, by name, at most [`PORTS_MAX`].
    pub fn adapters(self, root: &Path) -> Vec<String> {
        names(&self.class(root))
    }

    /// Asks one adapter for all its ports. It may wait for long.
    pub fn ports(self, root: &Path, adapter: &str, text: &mut Text) -> Vec<Port> {
        let adapter_dir = self.class(root).join(adapter);
        match self {
            Self::Infiniband => infiniband::ports(&adapter_dir, adapter, text),
            Self::Cxi => vec![cxi::port(&adapter_dir, adapter, text)],
        }
    }
}

/// What one port has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Which it is.
    labels: Vec<String>,
    counts: Vec<Count>,
}

/// A series, its last label where it has one besides the port's, and its number.
type Count = (&'static Family, Option<&'static str>, u64);

impl Port {
    /// Tells what was read.
    pub fn tell(&self, samples: &mut Samples) {
        for (metric, label, count) in &self.counts {
            let labels: Vec<&str> = self.labels.iter().map(String::as_str).chain(*label).collect();
            samples.count(metric, &labels, *count);
        }
    }

    /// What there is of one series, by its last label.
    pub fn of(&self, metric: &Family) -> impl Iterator<Item = (&'static str, u64)> {
        let name = metric.name;
        self.counts.iter().filter(move |(of, ..)| of.name == name).map(|(_, label, count)| (label.unwrap_or_default(), *count))
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names.truncate(PORTS_MAX);
    names
}
