use super::*;
use lattice_model::topology::{Core, DeviceFile, MemoryDomain};
use std::fs;
use std::path::PathBuf;

/// A recorded machine as files, removed on drop.
struct Recorded(PathBuf);

impl Recorded {
    fn new(name: &str, text: &str) -> Self {
        let root = std::env::temp_dir().join(format!("lattice-topology-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let lines = text.lines().filter(|l| !l.starts_with('#'));
        for (path, content) in lines.map(|l| l.split_once('\t').unwrap()) {
            let link = content.strip_prefix("-> ");
            // In sysfs this is a link to a directory elsewhere; here the directory is beside the link, which only shows
            // the path.
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match link {
                Some(link) => {
                    let target = path.parent().unwrap().join(link);
                    fs::create_dir_all(&target).unwrap();
                    std::os::unix::fs::symlink(link, path).unwrap();
                }
                None => fs::write(path, content.replace("\\n", "\n")).unwrap(),
            }
        }
        Self(root)
    }

    fn two_sockets(name: &str) -> Self {
        Self::new(name, include_str!("machines/two-sockets.txt"))
    }

    fn files(&self) -> Files {
        Files::below(&self.0)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn gpu(numa_node: u32, island: u32) -> SimulatedGpu {
    SimulatedGpu { device: "/dev/null".into(), memory_bytes: 1 << 30, numa_node: Some(numa_node), island }
}

#[test]
fn a_machine_of_two_sockets_is_read_whole() {
    let recorded = Recorded::two_sockets("whole");
    let found = discover(&recorded.files(), &(0..8).collect(), &[]);
    let core = |first: u32, package| Core { cpus: vec![first, first + 1], package, numa_node: package };
    assert_eq!(found.topology.cpu.cores, [core(0, 0), core(2, 0), core(4, 1), core(6, 1)]);
    let level3: Vec<_> = found.topology.cpu.caches.iter().filter(|c| c.level == 3).map(|c| (c.size_bytes >> 20, c.cpus.clone())).collect();
    assert_eq!(level3, [(16, vec![0, 1, 2, 3]), (16, vec![4, 5, 6, 7])]);
    let domain = |id: u32, capacity_kib: u64, attached_cpus: &[u32]| MemoryDomain {
        id,
        domain_type: MemoryDomainType::Dram,
        capacity_bytes: capacity_kib * 1024,
        numa_node: Some(id),
        attached_cpus: attached_cpus.to_vec(),
        attached_gpus: vec![],
    };
    let memory = &found.topology.memory;
    assert_eq!(memory.domains, [domain(0, 481_496, &[0, 1, 2, 3]), domain(1, 514_944, &[4, 5, 6, 7]), domain(2, 515_752, &[])]);
    assert_eq!(memory.total_capacity_bytes, (481_496 + 514_944 + 515_752) * 1024);
    let ways: Vec<_> = memory.interconnects.iter().map(|i| (i.domain_a, i.domain_b, i.distance, i.bandwidth_gbps, i.latency_ns)).collect();
    assert_eq!(ways, [(0, 1, 21, None, None), (0, 2, 28, Some(32.768), Some(250)), (1, 2, 17, Some(32.768), Some(250))]);
    assert_eq!((found.topology.gpu, found.found, found.lacking), (GpuTopology::default(), vec![], vec![]));
}

#[test]
fn memory_without_processors_is_behind_cxl_where_there_is_a_cxl_region() {
    let recorded = Recorded::two_sockets("cxl");
    fs::create_dir_all(recorded.0.join("sys/bus/cxl/devices/region0")).unwrap();
    let memory = discover(&recorded.files(), &(0..8).collect(), &[]).topology.memory;
    assert_eq!((memory.cxl_bytes(), memory.cxl_numa_nodes()), (515_752 * 1024, [2].into()));
    assert_eq!(memory.local_numa_nodes(), [0, 1].into());
}

#[test]
fn only_allowed_processors_are_listed() {
    let recorded = Recorded::two_sockets("some");
    let cpu = discover(&recorded.files(), &[1, 4, 5].into(), &[]).topology.cpu;
    assert_eq!(cpu.cores.iter().map(|c| c.cpus.clone()).collect::<Vec<_>>(), [vec![1], vec![4, 5]]);
    assert!(cpu.caches.iter().all(|c| c.cpus.iter().all(|cpu| [1, 4, 5].contains(cpu))));
    // A machine whose files cannot be read still has its processors and one memory domain.
    let bare = Recorded::new("bare", "proc/meminfo\tMemTotal:  1024 kB\\nMemFree: 1 kB");
    let found = discover(&bare.files(), &[0, 1].into(), &[]).topology;
    assert_eq!(found.cpu.cores.len(), 2);
    assert_eq!((found.memory.domains.len(), found.memory.total_capacity_bytes), (1, 1 << 20));
    assert_eq!(found.memory.domains[0].numa_node, None);
}

#[test]
fn the_only_numa_node_has_what_the_machine_has() {
    let lines = [
        "proc/meminfo\tMemTotal:  131981020 kB",
        "sys/devices/system/node/node0/meminfo\tNode 0 MemTotal:  4550128 kB",
        "sys/devices/system/node/node0/cpulist\t0-1",
    ];
    let found = discover(&Recorded::new("one-node", &lines.join("\n")).files(), &[0, 1].into(), &[]).topology.memory;
    assert_eq!((found.domains.len(), found.domains[0].numa_node, found.total_capacity_bytes), (1, Some(0), 131_981_020 * 1024));
}

#[test]
fn the_nearest_interface_is_that_of_the_same_root() {
    let recorded = Recorded::two_sockets("pci");
    let pci = Pci::look(&recorded.files());
    assert_eq!(pci.nearest_interface("0000:42:00.0").as_deref(), Some("hsn0"));
    assert_eq!(pci.nearest_interface("0000:82:00.0").as_deref(), Some("hsn1"));
    assert_eq!((pci.nearest_interface("0000:00:00.0"), pci.nearest_interface("none")), (None, None));
    assert_eq!((pci.numa_node("0000:82:00.0"), pci.numa_node("0000:00:00.0")), (Some(1), None));
    assert_eq!(pci.bandwidth_gbps("0000:80:00.0"), Some(63.0));
    assert_eq!(pci.bandwidth_gbps("0000:81:00.0"), Some(0.3));
    assert_eq!((pci.gpus_of(GpuVendor::Nvidia), pci.gpus_of(GpuVendor::Amd)), (0, 0));
}

#[test]
fn gpus_on_the_bus_without_a_driver_are_reported() {
    let device = "sys/bus/pci/devices/0000:01:00.0";
    let recorded = Recorded::new("lacking", &format!("{device}/class\t0x030200\n{device}/vendor\t0x10de"));
    let found = discover(&recorded.files(), &[0].into(), &[]);
    assert_eq!((found.topology.gpu.gpus.len(), found.lacking.len()), (0, 1));
    assert!(found.lacking[0].contains("NVIDIA") && found.lacking[0].contains("install"), "{}", found.lacking[0]);
}

#[test]
fn simulated_gpus_are_shown_as_such_and_attached_to_their_memory() {
    let recorded = Recorded::two_sockets("simulated");
    let found = discover(&recorded.files(), &(0..8).collect(), &[gpu(0, 0), gpu(1, 1), gpu(1, 1)]);
    let gpus = &found.topology.gpu;
    assert!(gpus.gpus.iter().all(|g| g.vendor == GpuVendor::Simulated && g.model.contains("simulated")));
    assert_eq!(gpus.gpus[0].device_files, [DeviceFile { path: "/dev/null".into(), major: 1, minor: 3 }]);
    assert_eq!((gpus.bandwidth(0, 1), gpus.bandwidth(2, 1)), (10.0, 100.0));
    assert!(found.found[0].contains("SIMULATED"), "{:?}", found.found);
    let attached: Vec<_> = found.topology.memory.domains.iter().map(|d| d.attached_gpus.clone()).collect();
    assert_eq!(attached, [vec![0], vec![1, 2], vec![]]);
    let missing = SimulatedGpu { device: "/no/such/device".into(), ..gpu(0, 0) };
    assert_eq!(discover(&recorded.files(), &[0].into(), std::slice::from_ref(&missing)).lacking.len(), 1);
    // A missing device does not take the name of another one.
    let found = discover(&recorded.files(), &[0].into(), &[missing, gpu(0, 0), gpu(0, 0)]);
    let gpus = &found.topology.gpu;
    assert_eq!(gpus.gpus.iter().map(|g| g.id.as_str()).collect::<Vec<_>>(), ["SIM-1", "SIM-2"]);
    assert_eq!((gpus.bandwidth(1, 2), gpus.links.len(), found.lacking.len()), (100.0, 1, 1));
}
