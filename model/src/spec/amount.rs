//! How much of a node work gets.

use super::AllocationSpec;
use crate::resources::Resources;

impl AllocationSpec {
    /// How much of a node of this size it gets.
    pub fn amount_of(&self, size: &Resources) -> Resources {
        self.share.as_ref().map_or(*size, |asked| share_of(asked, size))
    }
}

/// The share of a node of this size that a request amounts to. Cores and memory that were not
/// requested (0) are derived in proportion to the rest, so that every share is limited: the largest
/// requested fraction decides, with cores rounded up and memory rounded down. GPUs are never
/// derived. The result may exceed the node.
pub fn share_of(asked: &Resources, size: &Resources) -> Resources {
    let asked_of_size = [
        (u64::from(asked.cores), u64::from(size.cores)),
        (asked.memory_bytes, size.memory_bytes),
        (u64::from(asked.gpus), u64::from(size.gpus)),
    ];
    // Fractions requested/size, compared by cross-multiplication; a resource that the node lacks
    // gives no fraction.
    let larger = |a: (u64, u64), b: (u64, u64)| u128::from(a.0) * u128::from(b.1) >= u128::from(b.0) * u128::from(a.1);
    let (part, whole) =
        asked_of_size.into_iter().filter(|(_, whole)| *whole > 0).fold((0, 1), |most, next| if larger(most, next) { most } else { next });
    let (part, whole) = (u128::from(part.min(whole)), u128::from(whole));
    let cores = (u128::from(size.cores) * part).div_ceil(whole).max(1);
    let memory = u128::from(size.memory_bytes) * part / whole;
    Resources {
        cores: if asked.cores > 0 { asked.cores } else { u32::try_from(cores).unwrap_or(u32::MAX) },
        memory_bytes: if asked.memory_bytes > 0 { asked.memory_bytes } else { u64::try_from(memory).unwrap_or(u64::MAX) },
        gpus: asked.gpus,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::spec;

    #[test]
    fn unrequested_resources_are_derived_in_proportion() {
        let size = Resources { cores: 64, memory_bytes: 512 << 30, gpus: 4 };
        let of = |cores, gib: u64, gpus| {
            let got = share_of(&Resources { cores, memory_bytes: gib << 30, gpus }, &size);
            (got.cores, got.memory_bytes >> 30, got.gpus)
        };
        assert_eq!(of(16, 0, 0), (16, 128, 0));
        assert_eq!(of(0, 256, 0), (32, 256, 0));
        assert_eq!(of(0, 0, 1), (16, 128, 1));
        assert_eq!(of(1, 0, 2), (1, 256, 2));
        assert_eq!(of(8, 1, 1), (8, 1, 1));
        assert_eq!(of(0, 1, 0), (1, 1, 0));
        // More than the node has stays more, so it fits on no node; a node without GPUs has no
        // fraction of them.
        assert_eq!(of(100, 0, 0), (100, 512, 0));
        let plain = Resources { cores: 2, memory_bytes: 100, gpus: 0 };
        let asked = Resources { gpus: 1, ..Resources::default() };
        assert!(!plain.holds(&share_of(&asked, &plain)));
        assert_eq!(share_of(&Resources { cores: 1, ..Resources::default() }, &Resources::default()).cores, 1);
        let whole = AllocationSpec { share: None, ..spec() };
        assert_eq!(whole.amount_of(&size), size);
    }
}
