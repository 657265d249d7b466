//! Joules of the node and of each allocation, from counters that wrap or restart. Pure: the caller gives the readings
//! and stores the result.
//!
//! ```text
//!   RAPL's counters, which wrap ──▶ NodeMeter: energy of processors and memory, never falling ─┐
//!   GPUs' counters, from the driver's start ───────────────────────────────────────────────────┼──▶ each Account
//!   the allocation's processor time ───────────────────────────────────────────────────────────┘
//! ```
//!
//! Work that has the whole node gets all energy of processors and memory. On a shared node each allocation gets its
//! share of all processors' time; idle energy belongs to no allocation. That share is an estimate, and is labelled as
//! one.
//!
//! All counts are on the disk: energy used while no agent measured is counted at the next measurement.
//!
//! Rejected: shares by busy time would charge a whole node's idling to a single thread; shares by cores would charge
//! work that waits. Only root may read RAPL's counters (CVE-2020-8694), so the public page shows no energy of the node.

use crate::readers::Domain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Limit of the stored domains, and of the stored GPUs.
const METERS_MAX: usize = 128;

/// The energy of the node's processors and memory since the first measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMeter {
    domains: BTreeMap<String, Counted>,
}

/// One domain, in millionths of a joule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Counted {
    total: u64,
    last: u64,
    adds: bool,
}

impl NodeMeter {
    /// Adds a reading. A counter that is lower than before has restarted once; if it restarted more often between two
    /// readings, the result is too low.
    pub fn take(&mut self, read: &[Domain]) {
        for domain in read.iter().take(METERS_MAX) {
            let now = domain.microjoules;
            let counted = self.domains.entry(domain.name.clone()).or_insert(Counted { total: 0, last: now, adds: domain.adds });
            let more = match now.checked_sub(counted.last) {
                Some(more) => more,
                // From the last value to the range's end, and from 0 to the present one. A counter without a known
                // range was reset.
                None if domain.range_microjoules >= counted.last => domain.range_microjoules - counted.last + now,
                None => now,
            };
            *counted = Counted { total: counted.total.saturating_add(more), last: now, adds: domain.adds };
        }
    }

    /// Each domain and its joules.
    pub fn domains(&self) -> impl Iterator<Item = (&str, f64)> {
        self.domains.iter().map(|(name, counted)| (name.as_str(), joules(counted.total)))
    }

    /// Packages and memory together, in millionths of a joule; `None`: there is no meter.
    pub fn microjoules(&self) -> Option<u64> {
        let adds = self.domains.values().filter(|counted| counted.adds).map(|counted| counted.total);
        adds.reduce(u64::saturating_add)
    }
}

fn joules(microjoules: u64) -> f64 {
    microjoules as f64 / 1e6
}

/// The energy of one allocation on this node. In whole millionths of a joule, so that the stored number is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    cpu_microjoules: u64,
    gpu_microjoules: u64,
    last: Option<Mark>,
}

/// The readings at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// On the clock since boot.
    pub at_ms: u64,
    /// [`NodeMeter::microjoules`].
    pub node_microjoules: Option<u64>,
    /// Processor time of the allocation's work.
    pub cpu_us: Option<u64>,
    /// The counters of its GPUs.
    pub gpu_microjoules: BTreeMap<String, u64>,
}

impl Account {
    /// Adds the readings. `processors`: how many the node has; `whole`: whether the allocation has all of it.
    pub fn take(&mut self, mut mark: Mark, processors: u32, whole: bool) {
        let Some(last) = self.last.take() else {
            self.last = Some(mark);
            return;
        };
        for (gpu, now) in &mark.gpu_microjoules {
            // A counter restarts at 0 when its driver is reloaded.
            let more = last.gpu_microjoules.get(gpu).map_or(0, |was| now.checked_sub(*was).unwrap_or(*now));
            self.gpu_microjoules = self.gpu_microjoules.saturating_add(more);
        }
        // A GPU without an answer this time continues from its last value.
        for (gpu, was) in last.gpu_microjoules.into_iter().take(METERS_MAX) {
            mark.gpu_microjoules.entry(gpu).or_insert(was);
        }
        let meters = mark.node_microjoules.zip(last.node_microjoules);
        let used = mark.cpu_us.zip(last.cpu_us);
        match (meters, used) {
            (Some((now, was)), _) if whole => self.cpu_microjoules = self.cpu_microjoules.saturating_add(now.saturating_sub(was)),
            (Some((now, was)), Some((used_now, used_before))) => {
                let had_us = mark.at_ms.saturating_sub(last.at_ms) as f64 * 1e3 * f64::from(processors.max(1));
                let used_us = used_now.saturating_sub(used_before) as f64;
                let part = if had_us > 0.0 { (used_us / had_us).min(1.0) } else { 0.0 };
                self.cpu_microjoules = self.cpu_microjoules.saturating_add((now.saturating_sub(was) as f64 * part) as u64);
            }
            // A meter without an answer this time continues from its last value; one that was never read starts now.
            (None, _) if last.node_microjoules.is_some() => {
                (mark.node_microjoules, mark.cpu_us, mark.at_ms) = (last.node_microjoules, last.cpu_us, last.at_ms);
            }
            (Some(_), None) if last.cpu_us.is_some() => {
                (mark.node_microjoules, mark.cpu_us, mark.at_ms) = (last.node_microjoules, last.cpu_us, last.at_ms);
            }
            (_, _) => {}
        }
        self.last = Some(mark);
    }

    /// Energy of processors and memory; `None`: there is no meter.
    pub fn cpu_joules(&self) -> Option<f64> {
        self.last.as_ref().and_then(|last| last.node_microjoules).map(|_| joules(self.cpu_microjoules))
    }

    /// Energy of its GPUs; `None`: none of them has a counter.
    pub fn gpu_joules(&self) -> Option<f64> {
        self.last.as_ref().filter(|last| !last.gpu_microjoules.is_empty()).map(|_| joules(self.gpu_microjoules))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn package(microjoules: u64) -> Domain {
        Domain { name: "package-0".to_owned(), microjoules, range_microjoules: 1_000, adds: true }
    }

    fn mark(at_ms: u64, node_joules: u64, cpu_seconds: u64, gpu_joules: &[(&str, u64)]) -> Mark {
        let gpu_microjoules = gpu_joules.iter().map(|(id, joules)| ((*id).to_owned(), *joules * 1_000_000)).collect();
        Mark { at_ms, node_microjoules: Some(node_joules * 1_000_000), cpu_us: Some(cpu_seconds * 1_000_000), gpu_microjoules }
    }

    #[test]
    fn a_meter_that_restarts_continues() {
        let mut meter = NodeMeter::default();
        assert_eq!(meter.microjoules(), None);
        for (now, total) in [(900, 0), (990, 90), (5, 105), (5, 105), (4, 1_104)] {
            meter.take(&[package(now)]);
            assert_eq!(meter.microjoules(), Some(total), "at {now}");
        }
        // Parts of a package are exported and not added.
        meter.take(&[package(4), Domain { name: "package-0/core".to_owned(), adds: false, ..package(7) }]);
        assert_eq!((meter.microjoules(), meter.domains().count()), (Some(1_104), 2));
        // A counter without a known range was reset.
        let mut meter = NodeMeter::default();
        for now in [100, 10] {
            meter.take(&[Domain { range_microjoules: 0, ..package(now) }]);
        }
        assert_eq!(meter.microjoules(), Some(10));
    }

    #[test]
    fn work_gets_its_part_and_whole_nodes_get_all() {
        let (mut whole, mut part) = (Account::default(), Account::default());
        assert_eq!((whole.cpu_joules(), whole.gpu_joules()), (None, None));
        for (account, is_whole) in [(&mut whole, true), (&mut part, false)] {
            account.take(mark(0, 100, 5, &[("A", 1000)]), 4, is_whole);
            // Two of four processors for a second.
            account.take(mark(1000, 180, 7, &[("A", 1300)]), 4, is_whole);
        }
        assert_eq!((whole.cpu_joules(), whole.gpu_joules()), (Some(80.0), Some(300.0)));
        assert_eq!((part.cpu_joules(), part.gpu_joules()), (Some(40.0), Some(300.0)));
        // A GPU that fails to answer once, and one with a reloaded driver.
        part.take(mark(2000, 180, 7, &[]), 4, false);
        part.take(mark(3000, 180, 7, &[("A", 1310)]), 4, false);
        assert_eq!(part.gpu_joules(), Some(310.0));
        part.take(mark(4000, 180, 7, &[("A", 4)]), 4, false);
        assert_eq!(part.gpu_joules(), Some(314.0));
        // A meter that fails to answer once: four of eight processor seconds, of 80 J.
        part.take(Mark { node_microjoules: None, ..mark(5000, 0, 9, &[]) }, 4, false);
        part.take(mark(6000, 260, 11, &[]), 4, false);
        assert_eq!(part.cpu_joules(), Some(80.0));
    }

    #[test]
    fn stored_numbers_are_the_same_when_read_again() {
        let (mut account, mut meter) = (Account::default(), NodeMeter::default());
        account.take(mark(0, 100, 5, &[("A", 1)]), 3, false);
        account.take(mark(1000, 181, 6, &[("A", 4)]), 3, false);
        meter.take(&[package(7)]);
        let again: (Account, NodeMeter) = serde_json::from_str(&serde_json::to_string(&(&account, &meter)).unwrap()).unwrap();
        assert_eq!(again, (account, meter));
    }

    proptest! {
        #[test]
        fn no_counter_falls_and_no_energy_is_counted_twice(
            steps in proptest::collection::vec((0..3000u64, 0..1000u64, 0..20_000_000u64, 0..50u64, any::<bool>()), 1..100),
        ) {
            let (mut meter, mut account) = (NodeMeter::default(), Account::default());
            let (mut at, mut cpu, mut previous) = (0, 0, (0.0, 0.0));
            for (step, raw, used, gpu, answers) in steps {
                at += step;
                cpu += used;
                meter.take(&[package(raw)]);
                let node_microjoules = meter.microjoules().filter(|_| answers);
                let gpu_microjoules = if answers { [("A".to_owned(), gpu)].into() } else { BTreeMap::new() };
                account.take(Mark { at_ms: at, node_microjoules, cpu_us: Some(cpu), gpu_microjoules }, 8, false);
                let now = (account.cpu_joules().unwrap_or(previous.0), account.gpu_joules().unwrap_or(previous.1));
                prop_assert!(now.0 >= previous.0 && now.1 >= previous.1);
                prop_assert!(now.0 <= joules(meter.microjoules().unwrap_or(0)));
                previous = now;
            }
        }
    }
}
