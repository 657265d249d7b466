//! The hardware of this machine, discovered once at each start of the agent.
//!
//! ```text
//!   machine   processors, caches, memory domains    /sys/devices/system
//!   pci       nearness of devices on the bus         /sys/bus/pci
//!   nvidia    GPUs, MIG instances, NVLink            NVML, loaded if it is installed
//!   amd       GPUs, xGMI                             ROCm SMI, loaded if it is installed and such a GPU is there
//!   simulated GPUs that the configuration names      always shown as simulated
//!   watch     the health of GPUs, checked repeatedly bus, kernel log, drivers
//!   load      how busy the GPUs are                  NVML, amdgpu's files and ROCm SMI
//! ```
//!
//! No library of a vendor is needed to build or to start. Without the library the machine has no GPUs of that vendor,
//! which is the normal case. All files are read below a root that is a parameter, so that a test can use a recorded
//! machine.

mod amd;
mod files;
pub mod hwloc;
mod load;
mod machine;
mod nvidia;
mod pci;
mod simulated;
mod vendor;
mod watch;

pub use files::Files;
pub use load::{GpuLoadReader, load_file};
pub use simulated::{SimulatedGpu, SimulatedReadings, readings_file};
pub use watch::{GpuWatch, read_gpus};

use lattice_model::NodeTopology;
use lattice_model::topology::{
    GpuDevice, GpuLink, GpuLinkType, GpuTopology, GpuVendor, MemoryDomainType, MemoryInterconnect, MemoryLinkType,
};
use pci::Pci;
use std::collections::BTreeSet;
use vendor::{Found, Vendor};

/// GPUs that share their memory with a processor, by a part of their model's name.
const SUPERCHIPS: [&str; 3] = ["GH200", "GB200", "MI300A"];

/// What was found, and what could not be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovered {
    /// The node.
    pub topology: NodeTopology,
    /// One line for each vendor whose driver answered, with the number of its GPUs.
    pub found: Vec<String>,
    /// GPUs that cannot be used, each with the remedy if one is known.
    pub lacking: Vec<String>,
}

/// Discovers the machine. `allowed`: the processors that this process may run on.
pub fn discover(files: &Files, allowed: &BTreeSet<u32>, simulated: &[SimulatedGpu]) -> Discovered {
    let pci = Pci::look(files);
    let mut out = Discovered::default();
    out.topology.cpu = machine::cpus(files, allowed);
    out.topology.memory = machine::memory(files, &out.topology.cpu);
    let vendors: [&dyn Vendor; 3] = [&nvidia::Nvml, &amd::RocmSmi, &simulated::Simulated(simulated)];
    for vendor in vendors {
        let on_bus = pci.gpus_of(vendor.vendor());
        match vendor.look(files, &pci) {
            Ok(found) if found.gpus.is_empty() => {
                if on_bus > 0 && found.lacking.is_empty() {
                    let vendor = vendor.vendor();
                    out.lacking.push(format!("{on_bus} GPU(s) of {vendor} are on the bus, and {} shows none of them", found.driver));
                }
                out.lacking.extend(found.lacking);
            }
            Ok(found) => {
                out.lacking.extend(found.lacking.iter().cloned());
                let names: BTreeSet<&str> = found.gpus.iter().map(|g| g.model.as_str()).collect();
                let names: Vec<&str> = names.into_iter().collect();
                out.found.push(format!("{} {} ({}), {}", found.gpus.len(), vendor.vendor(), names.join(", "), found.driver));
                add(&mut out.topology.gpu, found);
            }
            Err(why) if vendor.vendor() == GpuVendor::Simulated => out.lacking.push(format!("simulated_gpus: {why}")),
            Err(why) if on_bus > 0 => out.lacking.push(format!(
                "{on_bus} GPU(s) of {} are on the bus, and their driver does not answer: {why}; install the vendor's driver and library",
                vendor.vendor()
            )),
            Err(_) => {}
        }
    }
    let gpu = &mut out.topology.gpu;
    join_by_bus(gpu, &pci);
    gpu.nic_affinity = gpu.gpus.iter().filter_map(|g| Some((g.index, pci.nearest_interface(g.pci_address.as_deref()?)?))).collect();
    attach(&mut out.topology);
    out
}

/// The processors that this process may run on.
pub fn allowed_cpus() -> BTreeSet<u32> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap_or_default();
    (0u32..).take(nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu as usize).unwrap_or(false)).collect()
}

/// Appends one vendor's GPUs.
fn add(all: &mut GpuTopology, found: Found) {
    let first = u32::try_from(all.gpus.len()).unwrap_or(u32::MAX);
    all.gpus.extend(found.gpus.into_iter().map(|g| GpuDevice { index: g.index + first, ..g }));
    all.links.extend(found.links.into_iter().map(|l| GpuLink { gpu_a: l.gpu_a + first, gpu_b: l.gpu_b + first, ..l }));
}

/// Pairs without a vendor's link communicate over the bus, as fast as the slower of the two is attached. Instances of
/// partitioned GPUs do not reach each other at all.
fn join_by_bus(gpu: &mut GpuTopology, pci: &Pci) {
    for (at, a) in gpu.gpus.iter().enumerate() {
        for b in &gpu.gpus[at + 1..] {
            let joined = gpu.links.iter().any(|l| (l.gpu_a, l.gpu_b) == (a.index, b.index));
            let (Some(from), Some(to)) = (&a.pci_address, &b.pci_address) else { continue };
            if joined || a.partitioned || b.partitioned {
                continue;
            }
            let bandwidth_gbps = pci.bandwidth_gbps(from).unwrap_or(0.0).min(pci.bandwidth_gbps(to).unwrap_or(0.0));
            gpu.links.push(GpuLink { gpu_a: a.index, gpu_b: b.index, link_type: GpuLinkType::Pcie, bandwidth_gbps });
        }
    }
}

/// Adds the GPUs to each memory domain. A domain that a GPU shares becomes a unified one.
fn attach(node: &mut NodeTopology) {
    for gpu in &node.gpu.gpus {
        let Some(domain) = node.memory.domains.iter_mut().find(|d| d.numa_node.is_some() && d.numa_node == gpu.numa_node) else {
            continue;
        };
        domain.attached_gpus.push(gpu.index);
        if SUPERCHIPS.iter().any(|name| gpu.model.contains(name)) && domain.domain_type != MemoryDomainType::Unified {
            domain.domain_type = MemoryDomainType::Unified;
            node.memory.interconnects.push(MemoryInterconnect {
                domain_a: domain.id,
                domain_b: domain.id,
                link_type: MemoryLinkType::CoherentFabric,
                distance: 10,
                bandwidth_gbps: None,
                latency_ns: None,
            });
        }
    }
}

#[cfg(test)]
mod tests;
