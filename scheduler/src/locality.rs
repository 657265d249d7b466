//! How well the wiring of a node suits work: the part of f₄ within a node, from the specification's
//! "GPU topology" and "memory topology".
//!
//! ```text
//!   within = β · links + (1 − β) · memory
//!     links    the slowest link of as many best-connected GPUs as it gets / the fastest link of the node
//!     memory   the largest part of its cores and GPUs that one memory domain has
//! ```

use lattice_model::{Locality, Resources};

/// β for work with many GPUs for its cores.
const LINKS_WEIGHT_MANY_GPUS: f64 = 0.7;
/// β for work with many cores for its GPUs.
const LINKS_WEIGHT_MANY_CORES: f64 = 0.3;
/// β for work without a known number of cores.
const LINKS_WEIGHT: f64 = 0.5;
/// Work with at most this many cores for each GPU has many GPUs for its cores.
const CORES_PER_GPU_MAX: u32 = 8;

/// How well a node suits work that gets this amount of it, from 0 to 1. If only links or only memory is
/// known, it counts alone; fewer than two GPUs have no links. `None`: neither is known.
pub fn fitness(locality: &Locality, amount: &Resources) -> Option<f64> {
    let links = locality.gpu_link_percent(amount.gpus).map(|percent| f64::from(percent) / 100.0);
    let memory = locality.part_in_one_domain(amount);
    match (links, memory) {
        (Some(links), Some(memory)) => {
            let weight = links_weight(amount);
            Some(weight * links + (1.0 - weight) * memory)
        }
        (known, None) | (None, known) => known,
    }
}

fn links_weight(amount: &Resources) -> f64 {
    match amount.cores {
        0 => LINKS_WEIGHT,
        cores if cores <= amount.gpus.saturating_mul(CORES_PER_GPU_MAX) => LINKS_WEIGHT_MANY_GPUS,
        _ => LINKS_WEIGHT_MANY_CORES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{NOW, id, pending, placed, running_on, shared, view};
    use crate::{View, explain};
    use lattice_model::test_builders::spec_of;
    use lattice_model::{Allocation, Factor, LocalDomain, NodeId};

    fn wired(domains: &[(u32, u32)], gpu_links: &[u8]) -> Locality {
        let domains = domains.iter().map(|(cores, gpus)| LocalDomain { cores: *cores, gpus: *gpus }).collect();
        Locality { domains, gpu_links: gpu_links.to_vec(), ..Locality::default() }
    }

    fn amount(cores: u32, gpus: u32) -> Resources {
        Resources { cores, memory_bytes: 1 << 20, gpus }
    }

    /// The view with nodes of this size, each with its wiring.
    fn with(mut view: View, size: Resources, wirings: &[Locality]) -> View {
        for (node, locality) in view.nodes.values_mut().zip(wirings) {
            (node.size, node.locality) = (Resources { memory_bytes: 1 << 30, ..size }, locality.clone());
        }
        view
    }

    fn asking(n: u64, nodes: u32, asked: Resources, same_numa: bool) -> Allocation {
        let mut allocation = pending(n, nodes, 10);
        let spec = spec_of(&mut allocation);
        (spec.share, spec.constraints.same_numa) = (Some(asked), same_numa);
        allocation
    }

    fn topology(view: &View, n: u64) -> Option<f64> {
        let score = explain(view, &view.allocations[&id(n)], NOW).score.unwrap();
        score.terms.iter().find(|term| term.factor == Factor::Topology && term.is_known).map(|term| term.value)
    }

    fn is_near(value: Option<f64>, wanted: f64) -> bool {
        value.is_some_and(|value| (value - wanted).abs() < 1e-9)
    }

    #[test]
    fn links_count_more_the_more_gpus_there_are_for_each_core() {
        let two = wired(&[(32, 2), (32, 2)], &[100, 10, 10]);
        for (cores, gpus, wanted) in [
            (16, 2, 0.7 + 0.3),
            (17, 2, 0.3 + 0.7),
            (16, 4, 0.7 * 0.1 + 0.3 * 18.0 / 20.0),
            (64, 4, 0.3 * 0.1 + 0.7 * 34.0 / 68.0),
            (0, 4, 0.5 * 0.1 + 0.5 * 0.5),
            (64, 0, 0.5),
            (33, 1, 33.0 / 34.0),
        ] {
            let value = fitness(&two, &amount(cores, gpus));
            assert!(is_near(value, wanted), "{cores} cores, {gpus} GPUs: {value:?}");
        }
    }

    #[test]
    fn what_is_not_known_does_not_count() {
        assert_eq!(fitness(&Locality::default(), &amount(4, 2)), None);
        assert_eq!(fitness(&wired(&[], &[40]), &amount(4, 2)), Some(0.4));
        assert_eq!(fitness(&wired(&[(4, 2)], &[]), &amount(4, 2)), Some(1.0));
        assert_eq!(fitness(&wired(&[], &[40]), &amount(4, 1)), None);
    }

    #[test]
    fn the_score_counts_the_wiring_of_the_best_node() {
        let waiting = || vec![asking(1, 1, amount(4, 2), false), asking(2, 2, amount(4, 2), false), pending(3, 1, 10)];
        let wirings = [wired(&[(4, 1), (4, 1)], &[50]), wired(&[(4, 2), (4, 0)], &[100]), Locality::default()];
        let mut v = with(view(3, waiting()), amount(8, 2), &wirings);
        assert!(is_near(topology(&v, 1), 1.0), "{:?}", topology(&v, 1));
        assert!(is_near(topology(&v, 2), 1.0), "{:?}", topology(&v, 2));
        // Of the eight cores and two GPUs of the second node, one domain has four cores and both GPUs.
        assert!(is_near(topology(&v, 3), 0.7 + 0.3 * 0.6), "{:?}", topology(&v, 3));
        // Between nodes, two of three groups are needed.
        for (node, group) in v.nodes.values_mut().zip(["a", "b", "c"]) {
            node.topology_group = Some(group.to_owned());
        }
        assert!(is_near(topology(&v, 1), 1.0), "of one node only the wiring counts: {:?}", topology(&v, 1));
        assert!(is_near(topology(&v, 2), 0.7 / 3.0 + 0.3), "{:?}", topology(&v, 2));
        // Where no wiring is known, only the groups count.
        let v = with(v, amount(8, 2), &[Locality::default(), Locality::default(), Locality::default()]);
        assert!(is_near(topology(&v, 1), 2.0 / 3.0) && is_near(topology(&v, 2), 1.0 / 3.0));
    }

    #[test]
    fn only_nodes_that_could_serve_it_count() {
        let good = wired(&[(8, 2)], &[100]);
        let poor = wired(&[(4, 1), (4, 1)], &[50]);
        let named = |n, nodes: &[&str]| {
            let mut allocation = asking(n, 1, amount(4, 2), false);
            let nodes = nodes.iter().map(|node| node.parse::<NodeId>().unwrap());
            spec_of(&mut allocation).constraints.nodes = nodes.collect();
            allocation
        };
        let v = with(
            view(3, vec![named(1, &["n1"]), named(2, &["n2"]), asking(3, 1, amount(4, 2), false)]),
            amount(8, 2),
            &[poor.clone(), poor, good],
        );
        let poorly = 0.7 * 0.5 + 0.3 * 5.0 / 6.0;
        assert!(is_near(topology(&v, 1), poorly) && is_near(topology(&v, 2), poorly), "{:?}", topology(&v, 1));
        assert!(is_near(topology(&v, 3), 1.0));
    }

    #[test]
    fn work_that_prefers_one_domain_gets_nodes_that_have_one() {
        // Best fit alone would fill the first node.
        let held = || running_on(shared(9, 1, 1, 2), "n1", amount(2, 0));
        let wirings = [wired(&[(4, 0), (4, 0)], &[]), wired(&[(8, 0)], &[]), wired(&[(6, 0), (2, 0)], &[])];
        let of = |allocation: Allocation| placed(&with(view(3, vec![held(), allocation]), amount(8, 0), &wirings)).remove(0).1;
        assert_eq!(of(asking(1, 1, amount(5, 0), false)), ["n1"]);
        assert_eq!(of(asking(1, 1, amount(5, 0), true)), ["n2"]);
        assert_eq!(of(asking(1, 1, amount(4, 0), true)), ["n1"], "all have one");
        assert_eq!(of(asking(1, 2, amount(5, 0), true)), ["n2", "n3"]);
        // It is a preference: work does not wait for it.
        let full = [wired(&[(4, 0), (4, 0)], &[]), wired(&[(4, 0), (4, 0)], &[]), wired(&[(4, 0), (4, 0)], &[])];
        assert_eq!(placed(&with(view(3, vec![asking(1, 1, amount(8, 0), true)]), amount(8, 0), &full))[0].1, ["n1"]);
        // Of whole nodes, too, those of one domain come first.
        let whole = |same_numa| {
            let mut allocation = pending(1, 1, 10);
            spec_of(&mut allocation).constraints.same_numa = same_numa;
            placed(&with(view(2, vec![allocation]), amount(8, 0), &wirings)).remove(0).1
        };
        assert_eq!([whole(false), whole(true)], [["n1"], ["n2"]]);
    }

    #[test]
    fn of_equally_full_nodes_the_one_with_faster_links_is_taken() {
        let wirings = [wired(&[(4, 1), (4, 1)], &[10]), wired(&[(4, 1), (4, 1)], &[100])];
        let of = |held: Vec<Allocation>, allocation: Allocation| {
            let v = with(view(2, [held, vec![allocation]].concat()), amount(8, 2), &wirings);
            placed(&v).remove(0).1
        };
        assert_eq!(of(vec![], asking(1, 1, amount(1, 2), false)), ["n2"]);
        assert_eq!(of(vec![], asking(1, 1, amount(1, 1), false)), ["n1"], "one GPU has no link");
        // Whole nodes stay whole, unless one memory domain is preferred.
        let held = || vec![running_on(shared(9, 1, 1, 1), "n1", amount(1, 0))];
        assert_eq!(of(held(), asking(1, 1, amount(1, 2), false)), ["n1"]);
        assert_eq!(of(held(), asking(1, 1, amount(1, 2), true)), ["n2"]);
    }
}
