//! The hardware of a node: processors, memory domains, GPUs, and their connections. The agent
//! detects it once at start; it is shown in `node status`, used to share a node, and passed to
//! ranks so that they need not detect it again.
//!
//! The names `GpuTopology` and `MemoryTopology` come from the documents ("GPU topology", "memory
//! topology"). A value that neither firmware nor driver reports is absent, never guessed.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The topology of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeTopology {
    /// Its processors.
    pub cpu: CpuTopology,
    /// Its memory.
    pub memory: MemoryTopology,
    /// Its GPUs.
    pub gpu: GpuTopology,
}

/// The processors that the agent may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTopology {
    /// Physical cores, in the order of their first logical processor.
    pub cores: Vec<Core>,
    /// Caches of level 2 and above, and which processors share each.
    pub caches: Vec<Cache>,
}

/// One physical core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// Its logical processors (SMT siblings), as Linux numbers them, ascending.
    pub cpus: Vec<u32>,
    /// Its package (socket).
    pub package: u32,
    /// Its NUMA node; 0 if the kernel reports none.
    pub numa_node: u32,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cache {
    /// 2, 3, …
    pub level: u32,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The logical processors that share it, ascending.
    pub cpus: Vec<u32>,
}

/// The node's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryTopology {
    /// Its domains, by id.
    pub domains: Vec<MemoryDomain>,
    /// The known connections between them.
    pub interconnects: Vec<MemoryInterconnect>,
    /// All domains together, in bytes.
    pub total_capacity_bytes: u64,
}

/// Memory at the same distance for every processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDomain {
    /// Its index among the domains.
    pub id: u32,
    /// Its kind.
    pub domain_type: MemoryDomainType,
    /// Its size in bytes.
    pub capacity_bytes: u64,
    /// Its NUMA node, if it has one.
    pub numa_node: Option<u32>,
    /// Logical processors for which it is the nearest, ascending.
    pub attached_cpus: Vec<u32>,
    /// Indices of GPUs that are near it, ascending.
    pub attached_gpus: Vec<u32>,
}

/// The kinds of [`MemoryDomain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryDomainType {
    /// A processor's own memory.
    Dram,
    /// High-bandwidth memory with a NUMA node of its own.
    Hbm,
    /// Behind CXL.
    CxlAttached,
    /// One coherent memory of processors and GPU (GH200, MI300A).
    Unified,
}

/// A connection between two domains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryInterconnect {
    /// One end.
    pub domain_a: u32,
    /// The other end.
    pub domain_b: u32,
    /// Its kind.
    pub link_type: MemoryLinkType,
    /// The firmware's relative distance (ACPI SLIT; 10 is local).
    pub distance: u32,
    /// Gigabytes per second, if firmware or driver reports it.
    pub bandwidth_gbps: Option<f64>,
    /// Nanoseconds, if the firmware reports it.
    pub latency_ns: Option<u64>,
}

/// The kinds of [`MemoryInterconnect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLinkType {
    /// Between sockets, or parts of one socket.
    NumaLink,
    /// To memory behind CXL.
    CxlSwitch,
    /// Between processor and GPU of one coherent package.
    CoherentFabric,
}

/// The node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuTopology {
    /// The devices that can be assigned to work, by index.
    pub gpus: Vec<GpuDevice>,
    /// Known connections; each pair occurs once.
    pub links: Vec<GpuLink>,
    /// For each GPU index, the closest network interface, if one is closer than all others.
    pub nic_affinity: BTreeMap<u32, String>,
}

/// One GPU, or one instance of a partitioned one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuDevice {
    /// Its index on this node, from 0, in the order of PCI addresses.
    pub index: u32,
    /// Its permanent identifier, used for assignment and visibility (`GPU-…`, `MIG-…`).
    pub id: String,
    /// Its vendor.
    pub vendor: GpuVendor,
    /// The vendor's name for it.
    pub model: String,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// CUDA compute capability (`9.0`) or CDNA architecture (`gfx942`); empty if the driver does
    /// not report it.
    pub compute_capability: String,
    /// Whether it is an instance of a partitioned GPU (MIG).
    pub partitioned: bool,
    /// Its PCI address, or that of its parent (`0000:3b:00.0`).
    #[serde(default)]
    pub pci_address: Option<String>,
    /// The nearest NUMA node.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// The device files that open it; they open no other GPU except other instances of the same
    /// partitioned GPU.
    #[serde(default)]
    pub device_files: Vec<DeviceFile>,
}

/// A character device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceFile {
    /// Its path.
    pub path: String,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

/// The vendor of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuVendor {
    Nvidia,
    Amd,
    /// No real GPU: configured in the agent (`simulated_gpus`), for test installations.
    Simulated,
}

impl std::fmt::Display for GpuVendor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
            Self::Simulated => "SIMULATED",
        })
    }
}

/// A connection between two GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuLink {
    /// Index of one end.
    pub gpu_a: u32,
    /// Index of the other end.
    pub gpu_b: u32,
    /// Its kind.
    pub link_type: GpuLinkType,
    /// Gigabytes per second in one direction; 0 if neither driver nor bus reports it.
    pub bandwidth_gbps: f64,
}

/// The kinds of [`GpuLink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuLinkType {
    NvLink,
    NvSwitch,
    InfinityFabric,
    Xgmi,
    Pcie,
}

impl CpuTopology {
    /// All logical processors.
    pub fn cpus(&self) -> BTreeSet<u32> {
        self.cores.iter().flat_map(|c| c.cpus.iter().copied()).collect()
    }
}

impl MemoryTopology {
    /// The domains behind CXL.
    fn cxl_domains(&self) -> impl Iterator<Item = &MemoryDomain> {
        self.domains.iter().filter(|domain| domain.domain_type == MemoryDomainType::CxlAttached)
    }

    /// The size of its memory behind CXL in bytes.
    pub fn cxl_bytes(&self) -> u64 {
        self.cxl_domains().map(|domain| domain.capacity_bytes).fold(0, u64::saturating_add)
    }

    /// The NUMA nodes of its memory behind CXL.
    pub fn cxl_numa_nodes(&self) -> BTreeSet<u32> {
        self.cxl_domains().filter_map(|domain| domain.numa_node).collect()
    }

    /// The NUMA nodes of its other memory. A socket without memory has none.
    pub fn local_numa_nodes(&self) -> BTreeSet<u32> {
        let far = self.cxl_numa_nodes();
        let has_memory = self.domains.iter().filter(|domain| domain.capacity_bytes > 0);
        has_memory.filter_map(|domain| domain.numa_node).filter(|numa| !far.contains(numa)).collect()
    }
}

impl GpuTopology {
    /// The bandwidth between two GPUs in gigabytes per second; 0 if no link is known.
    pub fn bandwidth(&self, a: u32, b: u32) -> f64 {
        let joins = |l: &&GpuLink| (l.gpu_a, l.gpu_b) == (a, b) || (l.gpu_a, l.gpu_b) == (b, a);
        self.links.iter().filter(joins).map(|l| l.bandwidth_gbps).fold(0.0, f64::max)
    }

    /// The device with this id.
    pub fn by_id(&self, id: &str) -> Option<&GpuDevice> {
        self.gpus.iter().find(|g| g.id == id)
    }
}

/// The parts of a node assigned to one allocation. The node assigns them, and none of them twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Logical processors.
    pub cpus: BTreeSet<u32>,
    /// GPUs by [`GpuDevice::id`].
    pub gpus: BTreeSet<String>,
    /// The NUMA nodes of its processors and GPUs, and those behind CXL if it may use them.
    pub memory_nodes: BTreeSet<u32>,
}

impl Assignment {
    /// The device files of the node's GPUs that it must not open: all except those of its own GPUs.
    pub fn denied(&self, gpus: &GpuTopology) -> BTreeSet<DeviceFile> {
        let (own, other): (Vec<&GpuDevice>, Vec<&GpuDevice>) = gpus.gpus.iter().partition(|g| self.gpus.contains(&g.id));
        let own: BTreeSet<(u32, u32)> = own.iter().flat_map(|g| &g.device_files).map(|f| (f.major, f.minor)).collect();
        other.iter().flat_map(|g| &g.device_files).filter(|f| !own.contains(&(f.major, f.minor))).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_two_instances_share_is_denied_to_neither_of_them() {
        let file = |minor| DeviceFile { path: format!("/dev/x{minor}"), major: 195, minor };
        let gpu = |index: u32, files: &[u32]| GpuDevice {
            index,
            id: format!("GPU-{index}"),
            vendor: GpuVendor::Nvidia,
            model: String::new(),
            memory_bytes: 0,
            compute_capability: String::new(),
            partitioned: true,
            pci_address: None,
            numa_node: None,
            device_files: files.iter().copied().map(file).collect(),
        };
        let gpus = GpuTopology { gpus: vec![gpu(0, &[0, 10]), gpu(1, &[0, 11]), gpu(2, &[1])], ..GpuTopology::default() };
        let denied = |ids: &[&str]| -> Vec<u32> {
            let own = Assignment { gpus: ids.iter().map(|i| (*i).to_owned()).collect(), ..Assignment::default() };
            own.denied(&gpus).into_iter().map(|f| f.minor).collect()
        };
        assert_eq!(denied(&["GPU-0"]), [1, 11]);
        assert_eq!(denied(&["GPU-2"]), [0, 10, 11]);
        assert_eq!(denied(&[]), [0, 1, 10, 11]);
        assert_eq!(denied(&["GPU-0", "GPU-1", "GPU-2"]), [] as [u32; 0]);
    }
}
