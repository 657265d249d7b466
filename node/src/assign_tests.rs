use super::*;
use lattice_model::topology::{CpuTopology, GpuLink, GpuLinkType, GpuVendor, MemoryDomain, MemoryDomainType, MemoryTopology};
use proptest::prelude::*;

/// A machine of `domains` NUMA nodes with `cores` cores each and `threads` threads per core
/// (numbered as Linux does: all first threads, then all second ones), and one GPU for each entry of
/// `gpu_domains`.
pub(crate) fn machine(domains: u32, cores: u32, threads: u32, gpu_domains: &[u32]) -> NodeTopology {
    let all = domains * cores;
    let core = |i: u32| Core { cpus: (0..threads).map(|t| i + t * all).collect(), package: i / cores, numa_node: i / cores };
    let gpu = |(index, numa): (u32, &u32)| GpuDevice {
        index,
        id: format!("GPU-{index}"),
        vendor: GpuVendor::Simulated,
        model: "M".into(),
        memory_bytes: 1 << 30,
        compute_capability: String::new(),
        partitioned: false,
        pci_address: None,
        numa_node: Some(*numa),
        device_files: vec![],
    };
    let domain = |id| MemoryDomain {
        id,
        domain_type: MemoryDomainType::Dram,
        capacity_bytes: 1 << 30,
        numa_node: Some(id),
        attached_cpus: vec![],
        attached_gpus: vec![],
    };
    NodeTopology {
        cpu: CpuTopology { cores: (0..all).map(core).collect(), caches: vec![] },
        memory: MemoryTopology { domains: (0..domains).map(domain).collect(), ..MemoryTopology::default() },
        gpu: GpuTopology { gpus: (0u32..).zip(gpu_domains).map(gpu).collect(), ..GpuTopology::default() },
    }
}

pub(crate) fn linked(node: &mut NodeTopology, bandwidth: impl Fn(u32, u32) -> f64) {
    let n = u32::try_from(node.gpu.gpus.len()).unwrap();
    let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
    node.gpu.links =
        pairs.map(|(a, b)| GpuLink { gpu_a: a, gpu_b: b, link_type: GpuLinkType::NvLink, bandwidth_gbps: bandwidth(a, b) }).collect();
}

fn share(cores: u32, gpus: u32) -> Resources {
    Resources { cores, memory_bytes: 0, gpus }
}

fn gpus(of: &Assignment) -> Vec<&str> {
    of.gpus.iter().map(String::as_str).collect()
}

#[test]
fn the_best_connected_gpus_are_assigned_together() {
    let constraints = Constraints::default();
    // Pairs (0,3) and (1,2) by NVLink, everything else over PCIe.
    let mut node = machine(2, 4, 1, &[0, 0, 1, 1]);
    linked(&mut node, |a, b| if a + b == 3 { 450.0 } else { 32.0 });
    let first = assign(&node, [], &share(2, 2), &constraints).unwrap();
    assert_eq!(gpus(&first), ["GPU-0", "GPU-3"]);
    let second = assign(&node, [&first], &share(2, 2), &constraints).unwrap();
    assert_eq!(gpus(&second), ["GPU-1", "GPU-2"]);
    assert_eq!(assign(&node, [&first, &second], &share(1, 1), &constraints), Err(NotAssigned::Gpus { wanted: 1, free: 0 }));
    // For a single GPU, the lowest free index.
    assert_eq!(gpus(&assign(&node, [&first], &share(1, 1), &constraints).unwrap()), ["GPU-1"]);
}

#[test]
fn of_equal_sets_the_one_near_interfaces_is_chosen_and_then_the_lowest() {
    let constraints = Constraints::default();
    let mut node = machine(1, 8, 1, &[0, 0, 0, 0]);
    linked(&mut node, |_, _| 32.0);
    assert_eq!(gpus(&assign(&node, [], &share(1, 2), &constraints).unwrap()), ["GPU-0", "GPU-1"]);
    node.gpu.nic_affinity = [(1, "hsn0".to_owned()), (2, "hsn0".to_owned()), (3, "hsn1".to_owned())].into();
    assert_eq!(gpus(&assign(&node, [], &share(1, 2), &constraints).unwrap()), ["GPU-1", "GPU-3"]);
}

#[test]
fn processors_are_near_the_gpus_and_cores_stay_whole() {
    let constraints = Constraints::default();
    let node = machine(2, 4, 2, &[1, 1]);
    let with_gpu = assign(&node, [], &share(4, 1), &constraints).unwrap();
    assert_eq!((with_gpu.cpus, with_gpu.memory_nodes), ([4, 5, 12, 13].into(), [1].into()));
    // Without GPUs: the smallest domain that has enough.
    let other = assign(&node, [], &share(2, 0), &constraints).unwrap();
    assert_eq!((other.cpus.clone(), other.memory_nodes.clone()), ([0, 8].into(), [0].into()));
    // An odd thread count splits a core; the next odd one gets the other half.
    let odd = assign(&node, [&other], &share(3, 0), &constraints).unwrap();
    assert_eq!(odd.cpus, [1, 2, 9].into());
    assert_eq!(assign(&node, [&other, &odd], &share(1, 0), &constraints).unwrap().cpus, [10].into());
    // A share larger than a domain gets processors of both.
    let wide = assign(&node, [], &share(12, 0), &constraints).unwrap();
    assert_eq!(wide.memory_nodes, [0, 1].into());
    assert_eq!(assign(&node, [], &share(16, 2), &constraints).unwrap().cpus, node.cpu.cpus(), "a whole node is all of it");
    assert_eq!(assign(&node, [&other], &share(15, 0), &constraints), Err(NotAssigned::Cpus { wanted: 15, free: 14 }));
}

fn same_numa() -> Constraints {
    Constraints { same_numa: true, ..Constraints::default() }
}

#[test]
fn work_that_prefers_one_domain_gets_cores_and_gpus_of_it() {
    // The fastest pair, GPUs 1 and 2, spans two domains.
    let mut node = machine(2, 4, 1, &[0, 0, 1, 1]);
    linked(&mut node, |a, b| match (a, b) {
        (1, 2) => 900.0,
        (2, 3) => 450.0,
        _ => 64.0,
    });
    let usual = assign(&node, [], &share(4, 2), &Constraints::default()).unwrap();
    assert_eq!((gpus(&usual), &usual.memory_nodes), (vec!["GPU-1", "GPU-2"], &[0, 1].into()));
    let local = assign(&node, [], &share(4, 2), &same_numa()).unwrap();
    assert_eq!((gpus(&local), &local.cpus, &local.memory_nodes), (vec!["GPU-2", "GPU-3"], &[4, 5, 6, 7].into(), &[1].into()));
    // The next work gets all that it asks for from the other domain, with slower links.
    let next = assign(&node, [&local], &share(4, 2), &same_numa()).unwrap();
    assert_eq!((gpus(&next), &next.cpus), (vec!["GPU-0", "GPU-1"], &[0, 1, 2, 3].into()));
    // No domain has enough of both: it gets what other work would get.
    for wanted in [share(5, 1), share(1, 3)] {
        assert_eq!(assign(&node, [], &wanted, &same_numa()), assign(&node, [], &wanted, &Constraints::default()));
    }
}

#[test]
fn of_equal_domains_the_one_with_the_fewest_free_processors_is_chosen() {
    let node = machine(3, 4, 1, &[0, 1, 2]);
    let other = Assignment { cpus: [4, 8, 9, 10].into(), ..Assignment::default() };
    let local = assign(&node, [&other], &share(2, 1), &same_numa()).unwrap();
    assert_eq!((gpus(&local), &local.cpus), (vec!["GPU-1"], &[5, 6].into()), "the third domain has one free core");
    // If a driver does not report where its GPU is, the only domain counts as near.
    let mut vague = machine(1, 4, 1, &[0]);
    vague.gpu.gpus[0].numa_node = None;
    assert_eq!(assign(&vague, [], &share(2, 1), &same_numa()).unwrap().memory_nodes, [0].into());
}

#[test]
fn memory_behind_cxl_is_for_work_that_allows_it() {
    let mut node = machine(2, 4, 1, &[1]);
    let far = MemoryDomain { id: 2, domain_type: MemoryDomainType::CxlAttached, numa_node: Some(2), ..node.memory.domains[0].clone() };
    node.memory.domains.push(far);
    // Even if a driver says that it is nearest to the GPU.
    node.gpu.gpus[0].numa_node = Some(2);
    let nodes = |cores, cxl_memory| {
        let constraints = Constraints { cxl_memory, ..Constraints::default() };
        assign(&node, [], &share(cores, 1), &constraints).unwrap().memory_nodes.into_iter().collect::<Vec<_>>()
    };
    assert_eq!([nodes(4, false), nodes(8, false), nodes(8, true)], [vec![0], vec![0, 1], vec![0, 1, 2]]);
}

#[derive(Clone, Debug)]
enum Op {
    Take(u32, u32),
    Leave(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![3 => (0u32..9, 0u32..4).prop_map(|(c, g)| Op::Take(c, g)), 2 => any::<usize>().prop_map(Op::Leave)];
    proptest::collection::vec(one, 1..40)
}

proptest! {
    /// Whatever shares come and go: nothing has two owners, and a share whose amounts are free is
    /// assigned.
    #[test]
    fn nothing_has_two_owners_and_a_share_that_fits_is_assigned(
        shape in (1u32..4, 1u32..5, 1u32..3), gpu_domains in proptest::collection::vec(0u32..4, 0..9), history in ops(), seed in any::<u32>(),
        same_numa in any::<bool>(),
    ) {
        let constraints = Constraints { same_numa, ..Constraints::default() };
        let mut node = machine(shape.0, shape.1, shape.2, &gpu_domains);
        linked(&mut node, |a, b| f64::from((seed >> ((a * 3 + b) % 29)) % 4) * 10.0);
        let size = share(shape.0 * shape.1 * shape.2, u32::try_from(gpu_domains.len()).unwrap());
        let mut owners: Vec<Assignment> = Vec::new();
        for op in history {
            match op {
                Op::Leave(i) if !owners.is_empty() => drop(owners.remove(i % owners.len())),
                Op::Leave(_) => {}
                Op::Take(cores, gpus) => {
                    let wanted = share(cores, gpus);
                    let used = owners.iter().fold(Resources::default(), |sum, o| {
                        sum.plus(&share(u32::try_from(o.cpus.len()).unwrap(), u32::try_from(o.gpus.len()).unwrap()))
                    });
                    let given = assign(&node, &owners, &wanted, &constraints);
                    prop_assert_eq!(given.is_ok(), size.minus(&used).holds(&wanted));
                    if let Ok(given) = given {
                        prop_assert_eq!((given.cpus.len() as u32, given.gpus.len() as u32), (cores, gpus));
                        owners.push(given);
                    }
                }
            }
            let all: usize = owners.iter().map(|o| o.cpus.len() + o.gpus.len()).sum();
            let cpus: BTreeSet<u32> = owners.iter().flat_map(|o| o.cpus.clone()).collect();
            let gpus: BTreeSet<String> = owners.iter().flat_map(|o| o.gpus.clone()).collect();
            prop_assert_eq!(all, cpus.len() + gpus.len(), "something has two owners");
        }
    }

    /// The exact search finds the best subset, and the greedy one is never better.
    #[test]
    fn the_exact_subset_is_the_best(n in 2usize..8, k in 1usize..8, ways in proptest::collection::vec(0u8..5, 64), nics in proptest::collection::vec(0u8..3, 8)) {
        prop_assume!(k <= n);
        let names = ["", "a", "b"];
        let graph = Graph {
            bandwidths: (0..n).map(|a| (0..n).map(|b| f64::from(ways[a.min(b) * 8 + a.max(b)])).collect()).collect(),
            nics: (0..n).map(|i| Some(names[usize::from(nics[i])]).filter(|n| !n.is_empty())).collect(),
        };
        let best = graph.quality(&exact(&graph, k));
        for bits in 0u32..1 << n {
            let set: Vec<usize> = (0..n).filter(|i| bits >> i & 1 == 1).collect();
            if set.len() == k { prop_assert!(!graph.quality(&set).is_better_than(best)); }
        }
        let near = greedy(&graph, k);
        prop_assert_eq!(near.iter().collect::<BTreeSet<_>>().len(), k);
        prop_assert!(!graph.quality(&near).is_better_than(best));
    }
}
