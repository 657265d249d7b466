//! Which free processors and GPUs of a node an allocation's share gets.
//!
//! GPUs first: the best-connected subset (the specification's "selection algorithm": the set whose
//! slowest link between any two is fastest; then the most GPUs with a network interface near them,
//! and the most such interfaces; then the lowest indices). Then processors near those GPUs, whole
//! cores before single threads of shared ones. A share whose amounts are free always gets them.
//! With the constraint `prefer_same_numa`, a domain that has enough of both comes before the
//! best-connected GPUs of several.
//!
//! The quorum commits amounts, not devices: for devices it would have to know every node's wiring.
//! The journal's first record of an allocation contains the choice, and is on the disk before
//! anything else happens. So an agent that is killed after that uses the same devices again, and
//! assigns none twice. The devices are free once `Gone` is written, before the quorum receives
//! `Released`.
//!
//! GPUs have the driver's own ids (`GPU-…`, `MIG-…`), not an index, which changes when a device
//! falls off the bus. A GPU is lost only when the bus or its driver reports that, not when a
//! library does not answer.

use lattice_model::topology::{Core, GpuDevice, GpuTopology};
use lattice_model::{Assignment, Constraints, NodeTopology, Resources};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// With more free GPUs than this the choice is greedy, and may not be the best one.
pub const EXACT_GPUS_MAX: usize = 16;

/// Why a share cannot be assigned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotAssigned {
    /// Fewer processors are free than the share has.
    #[error(
        "its share has {wanted} processors of this node, but only {free} exist and are free: restart the agent to register what the node has now"
    )]
    Cpus { wanted: u32, free: usize },
    /// Fewer GPUs are free than the share has.
    #[error(
        "its share has {wanted} GPUs of this node, but only {free} exist, are healthy and are free: the node has reported its GPUs to the quorum, \
         and the work goes to other nodes"
    )]
    Gpus { wanted: u32, free: usize },
}

/// Chooses processors and GPUs for one share. `taken`: the assignments of the node's other
/// allocations. `constraints`: what the allocation prefers, and whether it may use memory behind CXL.
pub fn assign<'a>(
    node: &NodeTopology,
    taken: impl IntoIterator<Item = &'a Assignment>,
    share: &Resources,
    constraints: &Constraints,
) -> Result<Assignment, NotAssigned> {
    let (mut used_cpus, mut used_gpus) = (BTreeSet::new(), BTreeSet::new());
    for other in taken {
        used_cpus.extend(other.cpus.iter().copied());
        used_gpus.extend(other.gpus.iter().map(String::as_str));
    }
    let free: Vec<&GpuDevice> = node.gpu.gpus.iter().filter(|g| !used_gpus.contains(g.id.as_str())).collect();
    let short = NotAssigned::Gpus { wanted: share.gpus, free: free.len() };
    let wanted = usize::try_from(share.gpus).ok().filter(|k| *k <= free.len()).ok_or(short)?;
    let local = if constraints.same_numa { of_one_domain(node, &used_cpus, &free, share.cores, wanted) } else { None };
    let (gpus, near) = local.map_or_else(
        || {
            let gpus = best_connected(&node.gpu, &free, wanted).1;
            let near: BTreeSet<u32> = gpus.iter().filter_map(|g| g.numa_node).collect();
            (gpus, near)
        },
        |(domain, gpus)| (gpus, BTreeSet::from([domain])),
    );
    let cpus = nearest_cpus(&node.cpu.cores, &used_cpus, &near, share.cores)?;
    let mut memory_nodes = near;
    memory_nodes.extend(node.cpu.cores.iter().filter(|c| c.cpus.iter().any(|cpu| cpus.contains(cpu))).map(|c| c.numa_node));
    let local = node.memory.local_numa_nodes();
    memory_nodes.retain(|numa| local.contains(numa));
    if constraints.cxl_memory {
        memory_nodes.extend(node.memory.cxl_numa_nodes());
    }
    Ok(Assignment { cpus, gpus: gpus.iter().map(|g| g.id.clone()).collect(), memory_nodes })
}

/// The quality of a set of GPUs; greater is better.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quality {
    least_bandwidth: f64,
    gpus_with_nic: usize,
    nics: usize,
}

impl Quality {
    fn is_better_than(self, other: Self) -> bool {
        let bandwidth = self.least_bandwidth.total_cmp(&other.least_bandwidth);
        bandwidth.then((self.gpus_with_nic, self.nics).cmp(&(other.gpus_with_nic, other.nics))).is_gt()
    }
}

/// The free GPUs as a graph; a GPU is its index among the free ones.
struct Graph<'a> {
    bandwidths: Vec<Vec<f64>>,
    nics: Vec<Option<&'a str>>,
}

impl Graph<'_> {
    fn quality(&self, set: &[usize]) -> Quality {
        let pairs = set.iter().enumerate().flat_map(|(at, a)| set[at + 1..].iter().map(|b| self.bandwidths[*a][*b]));
        let nics: Vec<&str> = set.iter().filter_map(|i| self.nics[*i]).collect();
        Quality {
            least_bandwidth: pairs.fold(f64::INFINITY, f64::min),
            gpus_with_nic: nics.len(),
            nics: nics.into_iter().collect::<BTreeSet<_>>().len(),
        }
    }
}

/// The NUMA nodes that have processors.
pub(crate) fn domains(cores: &[Core]) -> BTreeSet<u32> {
    cores.iter().map(|core| core.numa_node).collect()
}

/// The domain that a GPU is near to: the one that its driver reports, or the only one of `domains`.
pub(crate) fn domain_near(gpu: &GpuDevice, domains: &BTreeSet<u32>) -> Option<u32> {
    match gpu.numa_node {
        Some(numa) => Some(numa),
        None => domains.first().copied().filter(|_| domains.len() == 1),
    }
}

/// A domain with enough free processors and GPUs, and its best-connected GPUs. Of several domains, the
/// one with the best GPUs wins, then the one with the fewest free processors. `None`: no domain has
/// enough of both.
fn of_one_domain<'a>(
    node: &NodeTopology,
    used: &BTreeSet<u32>,
    free: &[&'a GpuDevice],
    cores: u32,
    gpus: usize,
) -> Option<(u32, Vec<&'a GpuDevice>)> {
    let domains = domains(&node.cpu.cores);
    let enough = usize::try_from(cores).ok()?;
    let mut best: Option<(Quality, usize, u32, Vec<&'a GpuDevice>)> = None;
    for domain in &domains {
        let own = node.cpu.cores.iter().filter(|core| core.numa_node == *domain);
        let cpus = own.flat_map(|core| &core.cpus).filter(|cpu| !used.contains(*cpu)).count();
        let near: Vec<&GpuDevice> = free.iter().copied().filter(|gpu| domain_near(gpu, &domains) == Some(*domain)).collect();
        if cpus < enough || near.len() < gpus {
            continue;
        }
        let (quality, chosen) = best_connected(&node.gpu, &near, gpus);
        let is_better = best
            .as_ref()
            .is_none_or(|(other, fewest, ..)| quality.is_better_than(*other) || (cpus < *fewest && !other.is_better_than(quality)));
        if is_better {
            best = Some((quality, cpus, *domain, chosen));
        }
    }
    best.map(|(_, _, domain, chosen)| (domain, chosen))
}

/// The slowest link between the `k` best-connected of all GPUs, in gigabytes per second.
pub(crate) fn least_bandwidth(gpus: &GpuTopology, k: usize) -> f64 {
    let all: Vec<&GpuDevice> = gpus.gpus.iter().collect();
    best_connected(gpus, &all, k).0.least_bandwidth
}

/// The `k` best-connected GPUs of `free`, which is in order of index and has at least `k`.
fn best_connected<'a>(gpus: &GpuTopology, free: &[&'a GpuDevice], k: usize) -> (Quality, Vec<&'a GpuDevice>) {
    // Without a GPU to choose, nothing needs to be compared.
    let free: &[&'a GpuDevice] = if k == 0 { &[] } else { free };
    let graph = Graph {
        bandwidths: free.iter().map(|a| free.iter().map(|b| gpus.bandwidth(a.index, b.index)).collect()).collect(),
        nics: free.iter().map(|g| gpus.nic_affinity.get(&g.index).map(String::as_str)).collect(),
    };
    let chosen: Vec<usize> = match free.len() {
        all if k >= all => (0..all).collect(),
        ..=EXACT_GPUS_MAX => exact(&graph, k),
        _ => greedy(&graph, k),
    };
    (graph.quality(&chosen), chosen.into_iter().map(|i| free[i]).collect())
}

/// Tries every subset: at most 12,870 of them. Of equally good subsets the first wins, with the
/// lowest indices.
fn exact(graph: &Graph<'_>, k: usize) -> Vec<usize> {
    let all = graph.nics.len();
    let mut subset: Vec<usize> = (0..k).collect();
    let mut best = (graph.quality(&subset), subset.clone());
    while let Some(i) = (0..k).rev().find(|i| subset[*i] < all - k + i) {
        subset[i] += 1;
        for j in i + 1..k {
            subset[j] = subset[j - 1] + 1;
        }
        let now = graph.quality(&subset);
        if now.is_better_than(best.0) {
            best = (now, subset.clone());
        }
    }
    best.1
}

/// Builds one set from each GPU, always adding the GPU that makes the best set. Returns the best of
/// these sets.
fn greedy(graph: &Graph<'_>, k: usize) -> Vec<usize> {
    let mut best: Option<(Quality, Vec<usize>)> = None;
    for start in 0..graph.nics.len() {
        let mut set = vec![start];
        while set.len() < k {
            let mut next: Option<(Quality, usize)> = None;
            for candidate in (0..graph.nics.len()).filter(|i| !set.contains(i)) {
                let now = graph.quality(&[&set[..], &[candidate]].concat());
                if next.is_none_or(|(quality, _)| now.is_better_than(quality)) {
                    next = Some((now, candidate));
                }
            }
            let Some((_, added)) = next else { break };
            set.push(added);
        }
        set.sort_unstable();
        let now = graph.quality(&set);
        if best.as_ref().is_none_or(|(quality, _)| now.is_better_than(*quality)) {
            best = Some((now, set));
        }
    }
    best.map(|(_, set)| set).unwrap_or_default()
}

/// Chooses processors of the domains in `near`. If these have too few, the rest comes from as few
/// other domains as possible. Within a domain: whole free cores first, then threads of cores that
/// others partly use, then threads of one more core.
fn nearest_cpus(cores: &[Core], used: &BTreeSet<u32>, near: &BTreeSet<u32>, wanted: u32) -> Result<BTreeSet<u32>, NotAssigned> {
    let mut domains: BTreeMap<u32, Vec<Vec<u32>>> = BTreeMap::new();
    for core in cores {
        let free: Vec<u32> = core.cpus.iter().copied().filter(|c| !used.contains(c)).collect();
        if !free.is_empty() {
            domains.entry(core.numa_node).or_default().push(free);
        }
    }
    let free = |domain: &Vec<Vec<u32>>| domain.iter().map(Vec::len).sum::<usize>();
    let all: usize = domains.values().map(free).sum();
    let mut missing = usize::try_from(wanted).ok().filter(|w| *w <= all).ok_or(NotAssigned::Cpus { wanted, free: all })?;
    let widths: BTreeMap<u32, usize> = cores.iter().flat_map(|c| c.cpus.iter().map(|cpu| (*cpu, c.cpus.len()))).collect();
    let whole = |core: &[u32]| core.first().is_some_and(|cpu| widths.get(cpu) == Some(&core.len()));
    let mut chosen = BTreeSet::new();
    while missing > 0 {
        // Near domains first; then the smallest domain that has enough; then the domain that has most.
        let order = |(id, domain): &(&u32, &Vec<Vec<u32>>)| {
            let has = free(domain);
            (!near.contains(id), has < missing, if has < missing { usize::MAX - has } else { has }, **id)
        };
        let Some(id) = domains.iter().min_by_key(order).map(|(id, _)| *id) else { break };
        let mut domain = domains.remove(&id).unwrap_or_default();
        // The sort is stable: equal cores stay in ascending order.
        domain.sort_by_key(|core| Reverse(whole(core)));
        let (wholes, parts): (Vec<Vec<u32>>, Vec<Vec<u32>>) = domain.into_iter().partition(|core| whole(core));
        let mut left = Vec::new();
        for core in wholes {
            if core.len() <= missing {
                missing -= core.len();
                chosen.extend(core);
            } else {
                left.push(core);
            }
        }
        for cpu in parts.into_iter().chain(left).flatten().take(missing) {
            chosen.insert(cpu);
            missing -= 1;
        }
    }
    Ok(chosen)
}

#[cfg(test)]
#[path = "assign_tests.rs"]
pub(crate) mod tests;
