//! Every metric that a process of ours has: its name, type, unit, labels, source and meaning, in one place.
//!
//! What is not in here cannot be exposed: [`crate::sample::Samples`] takes a [`Family`], not a name. `docs/metrics.md` is made of
//! this list, and a test fails where the two differ.
//!
//! Names are the documents' where they have one, else `lattice_<part>_<what>_<unit>` with base units (seconds, bytes), and
//! `_total` for counters. `process_…` are the names that every Prometheus client library has.

pub mod agent;
pub mod alert;
pub mod allocation;
pub mod gossip;
pub mod gpu;
pub mod node;
pub mod process;
pub mod push;
pub mod quorum;
pub mod serving;

use std::fmt;

/// What kind of number it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises, until the process (or the allocation) begins anew.
    Counter,
    /// It rises and falls.
    Gauge,
    /// How often values were in which range, with their sum.
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// Base units alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Bytes,
    BytesPerSecond,
    /// Processors that are busy: 1 is one whole one.
    Cores,
    /// How many there are, or how often it happened.
    Count,
    /// A part of a whole, 0 to 1.
    Ratio,
    /// The same, 0 to 100: where the documents' name says so.
    Percent,
    Watts,
    Joules,
    Celsius,
    Hertz,
    /// Seconds since 1970.
    Timestamp,
    /// 1 where it is so, 0 where it is not; or always 1, where the labels are what is said.
    Truth,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes/s",
            Self::Cores => "cores",
            Self::Count => "count",
            Self::Ratio => "0 to 1",
            Self::Percent => "0 to 100",
            Self::Watts => "watts",
            Self::Joules => "joules",
            Self::Celsius => "°C",
            Self::Hertz => "hertz",
            Self::Timestamp => "seconds since 1970",
            Self::Truth => "0 or 1",
        })
    }
}

/// Which processes have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Agent,
    Quorum,
    Both,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    /// Their values are given in this order.
    pub labels: &'static [&'static str],
    pub of: Of,
    /// Where the numbers come from.
    pub source: &'static str,
    /// One sentence.
    pub help: &'static str,
}

/// The upper ends of the ranges of every histogram of latencies here, in seconds: from a tenth of a millisecond to half a minute.
pub const LATENCY_SECONDS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// All of them, by part.
pub fn all() -> impl Iterator<Item = &'static Family> {
    let parts =
        [process::ALL, node::ALL, gpu::ALL, allocation::ALL, alert::ALL, agent::ALL, serving::ALL, gossip::ALL, push::ALL, quorum::ALL];
    parts.into_iter().flatten().copied()
}

/// Declares families, and the list of them.
macro_rules! families {
    ($($id:ident = $kind:ident $name:literal, $unit:ident, [$($label:literal),*], $of:ident, $source:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $id: $crate::catalogue::Family = $crate::catalogue::Family {
                name: $name,
                kind: $crate::catalogue::Kind::$kind,
                unit: $crate::catalogue::Unit::$unit,
                labels: &[$($label),*],
                of: $crate::catalogue::Of::$of,
                source: $source,
                help: $help,
            };
        )*
        /// All of this part, in the order of the page.
        pub static ALL: &[&$crate::catalogue::Family] = &[$(&$id),*];
    };
}
pub(crate) use families;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_as_prometheus_wants_them_and_each_is_there_once() {
        let mut seen = BTreeSet::new();
        for family in all() {
            let name = family.name;
            assert!(seen.insert(name), "{name} is there twice");
            let plain = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            assert!(plain(name) && family.labels.iter().all(|label| plain(label)), "{name}");
            assert!(name.starts_with("lattice_") || name.starts_with("process_"), "{name}");
            // The documents say _total of some numbers of now, and so do we.
            let of_the_documents = ["lattice_nodes_total", "lattice_allocations_total", "lattice_network_vni_pool_total"].contains(&name);
            assert_eq!(name.ends_with("_total") && !of_the_documents, family.kind == Kind::Counter, "{name}");
            let stem = name.trim_end_matches("_total");
            match family.unit {
                Unit::Seconds => assert!(stem.ends_with("_seconds"), "{name}"),
                Unit::Bytes => assert!(stem.ends_with("_bytes"), "{name}"),
                Unit::BytesPerSecond => assert!(stem.ends_with("_bytes_per_second"), "{name}"),
                Unit::Cores => assert!(stem.ends_with("_cores"), "{name}"),
                Unit::Percent => assert!(stem.ends_with("_percent"), "{name}"),
                Unit::Ratio => assert!(stem.ends_with("_ratio"), "{name}"),
                Unit::Watts => assert!(stem.ends_with("_watts"), "{name}"),
                Unit::Joules => assert!(stem.ends_with("_joules"), "{name}"),
                Unit::Celsius => assert!(stem.ends_with("_celsius"), "{name}"),
                Unit::Hertz => assert!(stem.ends_with("_hertz"), "{name}"),
                Unit::Count | Unit::Timestamp | Unit::Truth => assert!(!stem.ends_with("_bytes"), "{name}"),
            }
            assert!(family.help.ends_with('.') && !family.source.is_empty(), "{name}");
            assert!(!family.labels.contains(&"node_id") && !family.labels.contains(&"member_id"), "{name}: every series has it already");
        }
    }
}
