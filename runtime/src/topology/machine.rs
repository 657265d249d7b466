//! Processors and memory from `/sys/devices/system` (the kernel's Documentation/ABI/stable/sysfs-devices-system-cpu,
//! sysfs-devices-node, and Documentation/admin-guide/mm/numaperf).

use super::files::Files;
use crate::cgroup::limits::IndexSet;
use lattice_model::topology::{
    Cache, Core, CpuTopology, MemoryDomain, MemoryDomainType, MemoryInterconnect, MemoryLinkType, MemoryTopology,
};
use std::collections::{BTreeMap, BTreeSet};

/// A list of processors; empty if the text is not one.
fn list(text: &str) -> BTreeSet<u32> {
    text.parse::<IndexSet>().map(|set| set.0).unwrap_or_default()
}

/// The cores of `allowed`. A processor without data in sysfs counts as a core of its own.
pub fn cpus(files: &Files, allowed: &BTreeSet<u32>) -> CpuTopology {
    let nodes = numa_nodes(files);
    let mut cores: BTreeMap<u32, Core> = BTreeMap::new();
    let mut caches = BTreeSet::new();
    for cpu in allowed {
        let dir = format!("sys/devices/system/cpu/cpu{cpu}");
        let siblings =
            files.text(&format!("{dir}/topology/core_cpus_list")).or_else(|| files.text(&format!("{dir}/topology/thread_siblings_list")));
        let mut siblings = siblings.map(|s| list(&s)).unwrap_or_default();
        siblings.insert(*cpu);
        siblings.retain(|c| allowed.contains(c));
        let first = siblings.first().copied().unwrap_or(*cpu);
        cores.entry(first).or_insert_with(|| Core {
            cpus: siblings.into_iter().collect(),
            package: files.number(&format!("{dir}/topology/physical_package_id")).unwrap_or(0),
            numa_node: nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map_or(0, |(node, _)| *node),
        });
        for index in files.names(&format!("{dir}/cache")).iter().filter(|n| n.starts_with("index")) {
            caches.extend(cache(files, &format!("{dir}/cache/{index}"), allowed));
        }
    }
    CpuTopology { cores: cores.into_values().collect(), caches: caches.into_iter().collect() }
}

fn cache(files: &Files, dir: &str, allowed: &BTreeSet<u32>) -> Option<Cache> {
    let level: u32 = files.number(&format!("{dir}/level"))?;
    let size = files.text(&format!("{dir}/size"))?;
    let size_bytes = match size.strip_suffix('K') {
        Some(kib) => kib.parse::<u64>().ok()?.checked_mul(1024)?,
        None => size.strip_suffix('M')?.parse::<u64>().ok()?.checked_mul(1 << 20)?,
    };
    let cpus = list(&files.text(&format!("{dir}/shared_cpu_list"))?).into_iter().filter(|c| allowed.contains(c)).collect();
    (level >= 2).then_some(Cache { level, size_bytes, cpus })
}

/// The NUMA nodes with their processors. Empty if the kernel reports none.
fn numa_nodes(files: &Files) -> BTreeMap<u32, BTreeSet<u32>> {
    let names = files.names("sys/devices/system/node");
    let numbers = names.iter().filter_map(|n| n.strip_prefix("node")?.parse::<u32>().ok());
    numbers.map(|n| (n, list(&files.text(&format!("sys/devices/system/node/node{n}/cpulist")).unwrap_or_default()))).collect()
}

/// `MemTotal` of a meminfo, in bytes.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.split_once("MemTotal:"))?.1;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The memory domains: one for each NUMA node, or a single one if the kernel reports none.
pub fn memory(files: &Files, cpu: &CpuTopology) -> MemoryTopology {
    let ours = cpu.cpus();
    let nodes = numa_nodes(files);
    let mut domains = Vec::new();
    let capacity_in = |meminfo: &str| files.text(meminfo).as_deref().and_then(total_bytes).unwrap_or(0);
    if nodes.is_empty() {
        domains.push(MemoryDomain {
            id: 0,
            domain_type: MemoryDomainType::Dram,
            capacity_bytes: capacity_in("proc/meminfo"),
            numa_node: None,
            attached_cpus: ours.iter().copied().collect(),
            attached_gpus: Vec::new(),
        });
    }
    for ((node, cpus), id) in nodes.iter().zip(0u32..) {
        // In a virtual machine that gets its memory on demand, a node's count is the present memory, and the machine's
        // count is what it can get.
        let capacity_bytes = match nodes.len() {
            1 => capacity_in("proc/meminfo"),
            _ => capacity_in(&format!("sys/devices/system/node/node{node}/meminfo")),
        };
        domains.push(MemoryDomain {
            id,
            domain_type: if cpus.is_empty() { far_type(files, *node, &nodes) } else { MemoryDomainType::Dram },
            capacity_bytes,
            numa_node: Some(*node),
            attached_cpus: cpus.intersection(&ours).copied().collect(),
            attached_gpus: Vec::new(),
        });
    }
    MemoryTopology {
        interconnects: interconnects(files, &domains),
        total_capacity_bytes: domains.iter().map(|d| d.capacity_bytes).fold(0, u64::saturating_add),
        domains,
    }
}

/// The memory type of a node without processors: HBM if it is faster than theirs; CXL if the machine has a CXL region.
fn far_type(files: &Files, node: u32, nodes: &BTreeMap<u32, BTreeSet<u32>>) -> MemoryDomainType {
    let near = nodes.iter().filter(|(_, cpus)| !cpus.is_empty()).filter_map(|(n, _)| performance(files, *n).0).fold(0.0, f64::max);
    match performance(files, node).0 {
        Some(bandwidth) if near > 0.0 && bandwidth > near => MemoryDomainType::Hbm,
        _ if files.names("sys/bus/cxl/devices").iter().any(|n| n.starts_with("region")) => MemoryDomainType::CxlAttached,
        _ => MemoryDomainType::Dram,
    }
}

/// Bandwidth (GB/s) and latency (ns) of a node's memory from its nearest processors, if the firmware reports them
/// (HMAT).
fn performance(files: &Files, node: u32) -> (Option<f64>, Option<u64>) {
    let dir = format!("sys/devices/system/node/node{node}/access1/initiators");
    let bandwidth = files.number::<u32>(&format!("{dir}/read_bandwidth")).filter(|mb| *mb > 0).map(|mb| f64::from(mb) / 1000.0);
    (bandwidth, files.number(&format!("{dir}/read_latency")).filter(|ns| *ns > 0))
}

/// Each pair of domains once, by the firmware's distances. Bandwidth and latency are known only for memory without
/// processors: for the path to the nearest ones.
fn interconnects(files: &Files, domains: &[MemoryDomain]) -> Vec<MemoryInterconnect> {
    let numa: Vec<u32> = domains.iter().filter_map(|d| d.numa_node).collect();
    let mut out = Vec::new();
    for (at, a) in domains.iter().enumerate() {
        let Some(node) = a.numa_node else { continue };
        let distances = files.text(&format!("sys/devices/system/node/node{node}/distance")).unwrap_or_default();
        let distances: Vec<u32> = distances.split_whitespace().filter_map(|d| d.parse().ok()).collect();
        for (b, number) in domains.iter().zip(&numa).skip(at + 1) {
            let Some(distance) = numa.iter().position(|n| n == number).and_then(|i| distances.get(i)).copied() else { continue };
            let far = [a, b].into_iter().find(|d| d.attached_cpus.is_empty()).and_then(|d| d.numa_node);
            let (bandwidth_gbps, latency_ns) = far.map_or((None, None), |far| performance(files, far));
            let cxl = [a, b].iter().any(|d| d.domain_type == MemoryDomainType::CxlAttached);
            let link_type = if cxl { MemoryLinkType::CxlSwitch } else { MemoryLinkType::NumaLink };
            out.push(MemoryInterconnect { domain_a: a.id, domain_b: b.id, link_type, distance, bandwidth_gbps, latency_ns });
        }
    }
    out
}
