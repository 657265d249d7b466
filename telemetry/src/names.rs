//! Names of measures: ours, and those of the requirement with the same meaning.

use crate::catalogue::{Family, allocation};
use lattice_model::config::nearest;
use thiserror::Error;

/// Metric names of the requirement that are exported in the same unit, with our names.
pub const ALSO: &[(&str, &str)] =
    &[("network_tx_bytes", "network_sent_bytes"), ("network_rx_bytes", "network_received_bytes"), ("gpu_util", "gpu_utilization")];
/// Metric names of the requirement that are exported in another unit: their name, our name, our unit.
const OTHERWISE: &[(&str, &str, &str)] = &[("cpu_utilization", "cpu_cores", "cores that are busy, not a percentage of a node's")];

/// One of the ten numbers that the requirement promises to users.
#[derive(Debug)]
pub struct Promised {
    /// The requirement's name and unit.
    pub theirs: &'static str,
    pub their_unit: &'static str,
    /// The name in `lattice top`, `watch` and `compare`, and its unit there.
    pub ours: &'static str,
    pub unit: &'static str,
    /// How theirs is computed from ours; empty: it is the same.
    pub made: &'static str,
    /// The pushed metric, and which of its series.
    pub family: &'static Family,
    pub stat: &'static str,
}

const fn promised(
    (theirs, their_unit): (&'static str, &'static str),
    (ours, unit): (&'static str, &'static str),
    made: &'static str,
    (family, stat): (&'static Family, &'static str),
) -> Promised {
    Promised { theirs, their_unit, ours, unit, made, family, stat }
}

/// All of them, in the requirement's order.
pub static PROMISED: [Promised; 10] = [
    promised(("gpu_utilization", "%"), ("gpu_utilization", "ratio"), "× 100", (&allocation::GPU_UTILIZATION, "mean")),
    promised(("gpu_memory_used", "bytes"), ("gpu_memory_used", "bytes"), "", (&allocation::GPU_MEMORY_USED, "mean")),
    promised(("gpu_power_draw", "watts"), ("gpu_power_draw", "W"), "", (&allocation::GPU_POWER, "mean")),
    promised(("cpu_utilization", "%"), ("cpu_cores", "cores"), "÷ the node's processors × 100", (&allocation::CPU_CORES, "mean")),
    promised(("memory_used", "bytes"), ("memory_used", "bytes"), "", (&allocation::MEMORY_USED, "mean")),
    promised(("network_tx_bytes", "bytes/s"), ("network_sent_bytes", "bytes/s"), "", (&allocation::NETWORK_SENT_RATE, "mean")),
    promised(("network_rx_bytes", "bytes/s"), ("network_received_bytes", "bytes/s"), "", (&allocation::NETWORK_RECEIVED_RATE, "mean")),
    promised(("io_read_bytes", "bytes/s"), ("io_read_bytes", "bytes/s"), "", (&allocation::IO_READ_RATE, "mean")),
    promised(("io_write_bytes", "bytes/s"), ("io_write_bytes", "bytes/s"), "", (&allocation::IO_WRITE_RATE, "mean")),
    promised(("io_latency_p99", "microseconds"), ("io_latency_p99", "seconds"), "× 1,000,000", (&allocation::IO_LATENCY, "p99")),
];

/// A name that none of the known measures has; the text has the name to use instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OtherName {
    /// The requirement's name of a measure that is exported in another unit.
    #[error("{ours:?} measures it, in {unit}")]
    OtherUnit { ours: &'static str, unit: &'static str },
    #[error("did you mean {0:?}?")]
    Similar(&'static str),
    #[error("there are {}", .known.join(", "))]
    Unknown { known: Vec<&'static str> },
}

/// The name among `known` that a name means; the name may be ours or the requirement's.
pub fn meant(name: &str, known: impl Iterator<Item = &'static str> + Clone) -> Result<&'static str, OtherName> {
    let ours = ALSO.iter().find(|(theirs, _)| *theirs == name).map_or(name, |(_, ours)| ours);
    if let Some(found) = known.clone().find(|known| *known == ours) {
        return Ok(found);
    }
    if let Some((_, ours, unit)) = OTHERWISE.iter().find(|(theirs, ..)| *theirs == name) {
        return Err(OtherName::OtherUnit { ours, unit });
    }
    Err(nearest(name, known.clone()).map_or_else(|| OtherName::Unknown { known: known.collect() }, OtherName::Similar))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alert::rules::MEASURES;

    #[test]
    fn the_requirements_names_mean_ours_if_the_units_agree() {
        let of = |name| meant(name, MEASURES.iter().map(|(name, _)| *name));
        assert_eq!(of("cpu_cores"), Ok("cpu_cores"));
        assert_eq!(of("network_tx_bytes"), Ok("network_sent_bytes"));
        assert!(of("cpu_utilization").is_err_and(|why| why.to_string().starts_with("\"cpu_cores\" measures it, in cores")));
        assert_eq!(of("cpu_core"), Err(OtherName::Similar("cpu_cores")));
        assert!(of("zzz").is_err_and(|why| why.to_string().starts_with("there are cpu_cores, ")));
        for (theirs, ours) in ALSO {
            assert_eq!(of(theirs), Ok(*ours));
        }
        for one in &PROMISED {
            assert!(MEASURES.contains(&(one.ours, one.unit)) && one.family.labels.contains(&"stat"), "{one:?}");
            // A query by the requirement's name is answered, or refused with the name to use.
            assert!(of(one.theirs) == Ok(one.ours) || of(one.theirs).is_err_and(|why| why.to_string().contains(one.ours)), "{one:?}");
        }
        for (theirs, ours, _) in OTHERWISE {
            assert!(of(theirs).is_err() && of(ours).is_ok(), "{theirs}");
        }
    }
}
