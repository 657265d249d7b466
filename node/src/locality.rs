//! The summary of a node's topology that the node registers.
//!
//! It uses the rules by which [`crate::assign`] chooses: which GPUs are best connected, and to which
//! domain a GPU is near. So the scheduler prefers a node for what work really gets there.

use crate::assign::{domain_near, domains, least_bandwidth};
use lattice_model::locality::{DOMAINS_MAX, LINKED_GPUS_MAX};
use lattice_model::resources::registered_memory_bytes;
use lattice_model::topology::GpuTopology;
use lattice_model::{LocalDomain, Locality, NodeTopology};
use std::collections::BTreeSet;

/// The summary of this topology.
pub fn locality(node: &NodeTopology) -> Locality {
    let cxl_memory_bytes = registered_memory_bytes(node.memory.cxl_bytes());
    let sockets: BTreeSet<u32> = node.cpu.cores.iter().map(|core| core.package).collect();
    let sockets = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
    Locality { domains: local_domains(node), sockets, cxl_memory_bytes, gpu_links: gpu_links(&node.gpu) }
}

/// The domains with processors; none if there are too many.
fn local_domains(node: &NodeTopology) -> Vec<LocalDomain> {
    let domains = domains(&node.cpu.cores);
    if domains.len() > DOMAINS_MAX {
        return Vec::new();
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let of = |domain: &u32| {
        let own = node.cpu.cores.iter().filter(|core| core.numa_node == *domain);
        let near = node.gpu.gpus.iter().filter(|gpu| domain_near(gpu, &domains) == Some(*domain));
        LocalDomain { cores: count(own.map(|core| core.cpus.len()).sum()), gpus: count(near.count()) }
    };
    domains.iter().map(of).collect()
}

/// For 2, 3, … GPUs: the slowest link between the best-connected GPUs of that number, in percent of
/// the fastest link. Empty if no link has a known bandwidth, or if there are too many GPUs.
fn gpu_links(gpus: &GpuTopology) -> Vec<u8> {
    let fastest = gpus.links.iter().map(|link| link.bandwidth_gbps).fold(0.0, f64::max);
    if fastest <= 0.0 || gpus.gpus.len() > LINKED_GPUS_MAX {
        return Vec::new();
    }
    let percent = |k: usize| (100.0 * least_bandwidth(gpus, k) / fastest).round().clamp(0.0, 100.0) as u8;
    (2..=gpus.gpus.len()).map(percent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assign::tests::{linked, machine};
    use lattice_model::topology::{MemoryDomain, MemoryDomainType};

    fn domain(cores: u32, gpus: u32) -> LocalDomain {
        LocalDomain { cores, gpus }
    }

    #[test]
    fn domains_are_counted_with_what_is_near_them() {
        let node = machine(2, 4, 2, &[0, 1, 1]);
        assert_eq!((locality(&node).domains, locality(&node).sockets), (vec![domain(8, 1), domain(8, 2)], 2));
        // A driver that does not say where its GPU is: near to the only domain, or to none of several.
        let mut vague = machine(1, 4, 1, &[0, 0]);
        vague.gpu.gpus[0].numa_node = None;
        assert_eq!(locality(&vague).domains, [domain(4, 2)]);
        let mut vague = machine(2, 4, 1, &[0, 0]);
        vague.gpu.gpus[0].numa_node = None;
        assert_eq!(locality(&vague).domains, [domain(4, 1), domain(4, 0)]);
        assert!(locality(&machine(DOMAINS_MAX as u32 + 1, 1, 1, &[])).domains.is_empty());
        assert_eq!(locality(&machine(DOMAINS_MAX as u32, 1, 1, &[])).domains.len(), DOMAINS_MAX);
        assert!(locality(&NodeTopology::default()).is_unknown());
    }

    #[test]
    fn memory_behind_cxl_is_no_domain_of_processors() {
        let mut node = machine(2, 4, 1, &[]);
        for id in 2..4 {
            let like = node.memory.domains[0].clone();
            let far = MemoryDomain { id, domain_type: MemoryDomainType::CxlAttached, numa_node: Some(id), ..like };
            node.memory.domains.push(far);
        }
        let registered = locality(&node);
        assert_eq!((registered.domains.len(), registered.cxl_memory_bytes), (2, 2 << 30));
        node.memory.domains[2].capacity_bytes += 3 * 1024;
        assert_eq!(locality(&node), registered, "like machines differ by some kB");
    }

    #[test]
    fn links_are_those_of_the_best_connected_gpus() {
        let mut node = machine(2, 4, 1, &[0, 0, 1, 1]);
        assert_eq!(locality(&node).gpu_links, [] as [u8; 0], "no driver reports a bandwidth");
        linked(&mut node, |a, b| if a / 2 == b / 2 { 450.0 } else { 32.0 });
        assert_eq!(locality(&node).gpu_links, [100, 7, 7]);
        linked(&mut node, |_, _| 900.0);
        assert_eq!(locality(&node).gpu_links, [100, 100, 100]);
        // Between two of three GPUs there is a link.
        let mut partly = machine(1, 4, 1, &[0, 0, 0]);
        linked(&mut partly, |a, b| if (a, b) == (0, 2) { 64.0 } else { 0.0 });
        assert_eq!(locality(&partly).gpu_links, [100, 0]);
        let mut many = machine(1, 4, 1, &[0; LINKED_GPUS_MAX + 1]);
        linked(&mut many, |_, _| 64.0);
        assert_eq!(locality(&many).gpu_links, [] as [u8; 0]);
        many.gpu.gpus.pop();
        many.gpu.links.retain(|link| (link.gpu_b as usize) < LINKED_GPUS_MAX);
        assert_eq!(locality(&many).gpu_links, [100; LINKED_GPUS_MAX - 1]);
        assert!(locality(&many).is_valid());
    }
}
