//! What measures are called: our names, and those of the documents that mean the same.

use lattice_model::config::nearest;

/// The documents' names of what is told in the unit that they have, with ours.
pub const ALSO: &[(&str, &str)] =
    &[("network_tx_bytes", "network_sent_bytes"), ("network_rx_bytes", "network_received_bytes"), ("gpu_util", "gpu_utilization")];
/// Those of what is told in another unit: theirs, ours and ours' unit.
const OTHERWISE: &[(&str, &str, &str)] = &[("cpu_utilization", "cpu_cores", "cores that are busy, not a percentage of a node's")];

/// Which of `known` is meant by a name, ours or the documents'.
///
/// # Errors
/// Where it is none: what to say instead.
pub fn meant(name: &str, known: impl Iterator<Item = &'static str> + Clone) -> Result<&'static str, String> {
    let ours = ALSO.iter().find(|(theirs, _)| *theirs == name).map_or(name, |(_, ours)| ours);
    if let Some(found) = known.clone().find(|known| *known == ours) {
        return Ok(found);
    }
    if let Some((_, ours, unit)) = OTHERWISE.iter().find(|(theirs, ..)| *theirs == name) {
        return Err(format!("{ours:?} tells it, in {unit}"));
    }
    let all = known.clone().collect::<Vec<_>>().join(", ");
    Err(nearest(name, known).map_or_else(|| format!("there are {all}"), |meant| format!("did you mean {meant:?}?")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alert::rules::MEASURES;

    #[test]
    fn the_documents_names_mean_ours_where_the_units_agree() {
        let of = |name| meant(name, MEASURES.iter().map(|(name, _)| *name));
        assert_eq!(of("cpu_cores"), Ok("cpu_cores"));
        assert_eq!(of("network_tx_bytes"), Ok("network_sent_bytes"));
        assert!(of("cpu_utilization").is_err_and(|why| why.starts_with("\"cpu_cores\" tells it, in cores")));
        assert_eq!(of("cpu_core"), Err("did you mean \"cpu_cores\"?".to_owned()));
        assert!(of("zzz").is_err_and(|why| why.starts_with("there are cpu_cores, ")));
        for (theirs, ours) in ALSO {
            assert_eq!(of(theirs), Ok(*ours));
        }
        for (theirs, ours, _) in OTHERWISE {
            assert!(of(theirs).is_err() && of(ours).is_ok(), "{theirs}");
        }
    }
}
