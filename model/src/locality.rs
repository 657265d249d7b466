//! What a node registers of its wiring, so that the scheduler can compare nodes: a summary. The
//! topology itself, [`crate::NodeTopology`], stays with the agent, which assigns the devices
//! (decision 0082).

use crate::count::counted;
use crate::resources::{Resources, bytes_text};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Largest number of memory domains that a node registers. A node with more registers none.
pub const DOMAINS_MAX: usize = 64;
/// Largest number of GPUs of which a node registers the links. A node with more registers none.
pub const LINKED_GPUS_MAX: usize = 16;
/// A link as fast as the node's fastest, in percent.
const FASTEST_PERCENT: u8 = 100;

/// The wiring of a node in numbers. The default: nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Locality {
    /// Its memory domains that have processors; at most [`DOMAINS_MAX`].
    pub domains: Vec<LocalDomain>,
    /// Its sockets that have processors which work may use; 0: not known.
    pub sockets: u32,
    /// Its memory behind CXL in bytes, which is not part of its size.
    pub cxl_memory_bytes: u64,
    /// For 2, 3, … GPUs: the slowest link within the best-connected set of that size, in percent of
    /// the node's fastest link. Empty: its drivers report no bandwidth.
    pub gpu_links: Vec<u8>,
}

/// A memory domain with processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LocalDomain {
    /// Its logical processors that work may use.
    pub cores: u32,
    /// The GPUs near it that work may use.
    pub gpus: u32,
}

impl Locality {
    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it keeps to the limits of a registration.
    pub fn is_valid(&self) -> bool {
        self.domains.len() <= DOMAINS_MAX
            && self.gpu_links.len() < LINKED_GPUS_MAX
            && self.gpu_links.iter().all(|percent| *percent <= FASTEST_PERCENT)
    }

    /// Whether one domain has the cores and GPUs of this amount.
    pub fn has_in_one_domain(&self, amount: &Resources) -> bool {
        self.domains.iter().any(|domain| domain.cores >= amount.cores && domain.gpus >= amount.gpus)
    }

    /// The largest part of the cores and GPUs of this amount that one domain has, from 0 to 1.
    /// `None`: no domain is known, or the amount has neither.
    pub fn part_in_one_domain(&self, amount: &Resources) -> Option<f64> {
        let all = u64::from(amount.cores) + u64::from(amount.gpus);
        let within = |domain: &LocalDomain| u64::from(domain.cores.min(amount.cores)) + u64::from(domain.gpus.min(amount.gpus));
        let most = self.domains.iter().map(within).max().filter(|_| all > 0)?;
        Some(most as f64 / all as f64)
    }

    /// The slowest link within the best-connected set of `gpus` GPUs, in percent of the node's
    /// fastest. `None`: it is not known, or `gpus` is less than 2.
    pub fn gpu_link_percent(&self, gpus: u32) -> Option<u8> {
        let at = usize::try_from(gpus).ok()?.checked_sub(2)?;
        self.gpu_links.get(at).copied()
    }
}

/// For people: `2 × 32 cores, 4 GPUs; 512.0 GiB behind CXL`. Empty: nothing is known.
impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = self.domains.chunk_by(|one, next| one == next);
        let mut parts: Vec<String> = same.filter_map(|alike| Some(format!("{} × {}", alike.len(), alike.first()?))).collect();
        // In most machines each socket is one domain.
        if self.sockets > 0 && self.sockets as usize != self.domains.len() {
            parts.push(counted(self.sockets, "socket"));
        }
        if self.cxl_memory_bytes > 0 {
            parts.push(format!("{} behind CXL", bytes_text(self.cxl_memory_bytes)));
        }
        f.pad(&parts.join("; "))
    }
}

/// `32 cores, 4 GPUs`; without GPUs, the cores alone.
impl fmt::Display for LocalDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", counted(self.cores, "core"))?;
        if self.gpus == 0 { Ok(()) } else { write!(f, ", {}", counted(self.gpus, "GPU")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn amount(cores: u32, gpus: u32) -> Resources {
        Resources { cores, memory_bytes: 0, gpus }
    }

    fn of(domains: &[(u32, u32)]) -> Locality {
        let domains = domains.iter().map(|(cores, gpus)| LocalDomain { cores: *cores, gpus: *gpus }).collect();
        Locality { domains, ..Locality::default() }
    }

    #[test]
    fn one_domain_must_have_both_cores_and_gpus() {
        let uneven = of(&[(32, 0), (8, 4)]);
        for (cores, gpus, fits) in [(32, 0, true), (8, 4, true), (9, 1, false), (33, 0, false), (1, 5, false)] {
            assert_eq!(uneven.has_in_one_domain(&amount(cores, gpus)), fits, "{cores} cores, {gpus} GPUs");
        }
        assert_eq!(uneven.part_in_one_domain(&amount(12, 4)), Some(0.75));
        assert_eq!(uneven.part_in_one_domain(&amount(40, 0)), Some(0.8));
        assert_eq!(uneven.part_in_one_domain(&amount(0, 0)), None);
        assert_eq!(of(&[]).part_in_one_domain(&amount(1, 0)), None);
        assert!(!of(&[]).has_in_one_domain(&amount(1, 0)));
    }

    #[test]
    fn links_are_counted_from_two_gpus() {
        let linked = Locality { gpu_links: vec![100, 10], ..Locality::default() };
        assert_eq!([0, 1, 2, 3, 4].map(|gpus| linked.gpu_link_percent(gpus)), [None, None, Some(100), Some(10), None]);
    }

    #[test]
    fn a_registration_has_limits() {
        let links = |gpu_links| Locality { gpu_links, ..Locality::default() };
        assert!(of(&[(1, 0); DOMAINS_MAX]).is_valid() && links(vec![100; LINKED_GPUS_MAX - 1]).is_valid());
        assert!(!of(&[(1, 0); DOMAINS_MAX + 1]).is_valid());
        assert!(!links(vec![100; LINKED_GPUS_MAX]).is_valid());
        assert!(!links(vec![101]).is_valid());
        assert!(Locality::default().is_unknown() && !links(vec![0]).is_unknown());
    }

    #[test]
    fn people_see_it_in_few_words() {
        let far = |locality| Locality { cxl_memory_bytes: 512 << 30, ..locality };
        for (locality, text) in [
            (of(&[]), ""),
            (of(&[(1, 1)]), "1 × 1 core, 1 GPU"),
            (far(of(&[(32, 4), (32, 4)])), "2 × 32 cores, 4 GPUs; 512.0 GiB behind CXL"),
            (of(&[(32, 0), (32, 0), (16, 2)]), "2 × 32 cores; 1 × 16 cores, 2 GPUs"),
            (far(of(&[])), "512.0 GiB behind CXL"),
        ] {
            assert_eq!(locality.to_string(), text);
        }
    }

    proptest! {
        /// The part is 1 if the amount fits into one domain, and only then.
        #[test]
        fn the_part_is_whole_exactly_where_all_of_it_fits(
            domains in prop::collection::vec((0..9_u32, 0..4_u32), 1..5), cores in 0..9_u32, gpus in 0..4_u32,
        ) {
            let (locality, wanted) = (of(&domains), amount(cores, gpus));
            let part = locality.part_in_one_domain(&wanted);
            prop_assert!(part.is_none_or(|part| (0.0..=1.0).contains(&part)));
            prop_assert_eq!(part.is_none_or(|part| part >= 1.0), locality.has_in_one_domain(&wanted));
        }
    }
}
