//! Every metric of our processes: its name, type, unit, labels, source and meaning, in one place.
//!
//! A metric that is not listed here cannot be exposed: [`crate::sample::Samples`] takes a [`Family`], not a name.
//! `docs/metrics.md` is generated from this list, and a test fails where the two differ.
//!
//! Names are those of the requirement if it has one, else `lattice_<part>_<what>_<unit>` with base units (seconds,
//! bytes), and `_total` for counters. `process_…` are the names that every Prometheus client library uses.

pub mod agent;
pub mod alert;
pub mod allocation;
mod family;
pub mod gossip;
pub mod gpu;
pub mod node;
pub mod process;
pub mod push;
pub mod quorum;
pub mod serving;

pub use family::{Family, Kind, LATENCY_SECONDS, Of, Unit};

/// All metrics, by part.
pub fn all() -> impl Iterator<Item = &'static Family> {
    let parts =
        [process::ALL, node::ALL, gpu::ALL, allocation::ALL, alert::ALL, agent::ALL, serving::ALL, gossip::ALL, push::ALL, quorum::ALL];
    parts.into_iter().flatten().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_as_prometheus_wants_them_and_each_is_there_once() {
        let mut seen = BTreeSet::new();
        for family in all() {
            let name = family.name;
            assert!(seen.insert(name), "{name} is defined twice");
            let plain = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            assert!(plain(name) && family.labels.iter().all(|label| plain(label)), "{name}");
            assert!(name.starts_with("lattice_") || name.starts_with("process_"), "{name}");
            // In the requirement some gauges end in _total: these keep their names.
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
