//! Limits of an allocation's work on this node, from its share and the node's configuration.

use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::config::cgroup::IoMax;
use lattice_model::topology::MemoryTopology;
use lattice_model::{Assignment, DesiredShare, Resources};
use lattice_runtime::cgroup::Slice;
use lattice_runtime::cgroup::controllers::{Controller, Controllers};
use lattice_runtime::cgroup::limits::{IndexSet, IoLimit, Limits};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use thiserror::Error;

/// The CPU weight of a share of all cores, and the sum of the weights of all shares of a node. Work
/// without a share has no weight.
const CPU_WEIGHT_WHOLE: u64 = 10_000;
/// The same for block devices.
const IO_WEIGHT_WHOLE: u64 = 10_000;
/// Smallest limit of processes and threads of a share: enough for a shell with a pipe, and an MPI
/// library's threads.
const PIDS_LEAST: u64 = 64;

/// The basis of the limits of all allocations on this node.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Which resources can be limited here, and with which cgroup version.
    pub controllers: Controllers,
    /// The node's size as it registers.
    pub size: Resources,
    /// Its memory behind CXL in bytes, which work may get in addition.
    pub cxl_bytes: u64,
    /// The NUMA nodes of the other memory, if the node has memory behind CXL: work that does not
    /// ask for memory behind CXL is kept on them.
    pub local_numa_nodes: BTreeSet<u32>,
    /// Processes and threads of work that has the whole node.
    pub pids_max: u64,
    /// Limits of block devices for work that has the whole node.
    pub io: Vec<IoLimit>,
}

/// A device in the configuration's `cgroup.io_max` is not a block device.
#[derive(Debug, Error)]
#[error("cgroup.io_max: {}: {source}", .device.display())]
pub struct IoMaxError {
    device: PathBuf,
    source: io::Error,
}

impl Bounds {
    /// Combines the configuration with the machine's resources. An error names a path that is not a
    /// block device.
    pub fn new(config: &AgentConfig, controllers: Controllers, size: Resources, memory: &MemoryTopology) -> Result<Self, IoMaxError> {
        let io = config.cgroup.io_max.iter().map(|io| device(io).map_err(|source| IoMaxError { device: io.device.clone(), source }));
        let io: Vec<IoLimit> = io.collect::<Result<_, _>>()?;
        let cxl_bytes = memory.cxl_bytes();
        let local_numa_nodes = if cxl_bytes == 0 { BTreeSet::new() } else { memory.local_numa_nodes() };
        Ok(Self { controllers, size, cxl_bytes, local_numa_nodes, pids_max: config.cgroup.pids_max, io })
    }

    /// The limits of one allocation's work here. Limits that this node cannot enforce are absent;
    /// `doctor`, `node status` and the node's registration report them.
    pub fn limits(&self, share: &DesiredShare, assignment: Option<&Assignment>) -> Limits {
        let can = |controller| self.controllers.place(controller).is_some();
        let shared = share.spec.share.is_some();
        let own = assignment.filter(|_| shared && can(Controller::Cpuset));
        let is_kept_local = self.is_kept_local(share) && can(Controller::Cpuset);
        let (has, of) = (u64::from(share.resources.cores), u64::from(self.size.cores).max(1));
        let part =
            |whole: u64| if shared { u64::try_from(u128::from(whole) * u128::from(has) / u128::from(of)).unwrap_or(whole) } else { whole };
        let io = self.io.iter().map(|io| IoLimit {
            device: io.device,
            read_bytes_per_second: io.read_bytes_per_second.map(|n| part(n).max(1)),
            write_bytes_per_second: io.write_bytes_per_second.map(|n| part(n).max(1)),
        });
        Limits {
            cpus: own.map(|a| IndexSet(a.cpus.clone())),
            memory_nodes: is_kept_local.then(|| IndexSet(self.local_numa_nodes.clone())),
            cpu_weight: (shared && can(Controller::Cpu)).then(|| part(CPU_WEIGHT_WHOLE).max(1)),
            // Work with its own processors needs no quota. With a quota, the kernel would now and
            // then stop it until the next period.
            cpu_quota: (shared && own.is_none() && can(Controller::Cpu)).then(|| has.max(1) * 1000),
            memory_bytes: can(Controller::Memory).then(|| self.memory_bytes(share)),
            pids: can(Controller::Pids).then(|| part(self.pids_max).max(PIDS_LEAST.min(self.pids_max))),
            io_weight: (shared && !self.controllers.io_weights().is_empty()).then(|| part(IO_WEIGHT_WHOLE).max(1)),
            io: if can(Controller::Io) { io.collect() } else { Vec::new() },
            denied_devices: BTreeSet::new(),
        }
    }

    /// How much memory the work may use, in bytes.
    fn memory_bytes(&self, share: &DesiredShare) -> u64 {
        let cxl_bytes = if share.spec.constraints.cxl_memory { self.cxl_bytes } else { 0 };
        share.resources.memory_bytes.saturating_add(cxl_bytes)
    }

    /// Whether the work must be kept off memory behind CXL. It is not bound to one domain: the
    /// kernel takes the nearest free memory, and work may need more than one domain has.
    fn is_kept_local(&self, share: &DesiredShare) -> bool {
        !share.spec.constraints.cxl_memory && !self.local_numa_nodes.is_empty()
    }
}

/// What can be limited with this configuration, and one line about each controller that is missing.
pub fn controllers(config: &AgentConfig, slice: Option<&Slice>) -> (Controllers, Vec<String>) {
    let v1 = config.cgroup.v1_controllers.iter().copied().collect();
    let found = Controllers::find(&config.cgroup.root, slice, &config.cgroup.delegated, &v1);
    let describe = |(controller, why): (&Controller, &String)| {
        let lacks = match controller {
            Controller::Cpu => "processor time is not limited: allocations on one node can take each other's time",
            Controller::Cpuset => "work cannot be bound to its own processors",
            Controller::Memory => "memory is not limited: work that uses too much can end other work and the node",
            Controller::Pids => "processes are not limited: a fork bomb can bring down the node",
            Controller::Io => "disk traffic cannot be limited",
            // There are two ways to filter devices; `DeviceFilter` reports if both are missing.
            Controller::Devices => return None,
        };
        Some(format!("{controller} limits: {lacks}. {why}"))
    };
    let mut missing: Vec<String> = found.missing().iter().filter_map(describe).collect();
    if found.place(Controller::Io).is_some() && found.io_weights().is_empty() {
        missing.push(
            "io limits: shares have no weights at disks: the traffic of one can delay the others. A kernel with \
             CONFIG_BLK_CGROUP_IOCOST or BFQ supports weights"
                .to_owned(),
        );
    }
    (found, missing)
}

/// Names of the resources that cannot be limited here, as the node registers them.
pub fn unlimited(controllers: &Controllers) -> Vec<String> {
    let weights = (controllers.io_weights().is_empty() && controllers.place(Controller::Io).is_some()).then(|| "io-weight".to_owned());
    controllers.missing().keys().map(ToString::to_string).chain(weights).collect()
}

fn device(io: &IoMax) -> io::Result<IoLimit> {
    let about = std::fs::metadata(&io.device)?;
    if !about.file_type().is_block_device() {
        return Err(io::Error::other("it is not a block device"));
    }
    let device = (libc::major(about.rdev()), libc::minor(about.rdev()));
    Ok(IoLimit { device, read_bytes_per_second: io.read_bytes_per_second, write_bytes_per_second: io.write_bytes_per_second })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::AllocationId;
    use lattice_model::test_builders::desired_share;
    use lattice_model::topology::{MemoryDomain, MemoryDomainType};
    use std::path::Path;

    const GIB: u64 = 1 << 30;

    fn bounds(kinds: &[MemoryDomainType]) -> Bounds {
        let domain = |(id, kind): (u32, &MemoryDomainType)| MemoryDomain {
            id,
            domain_type: *kind,
            capacity_bytes: 4 * GIB,
            numa_node: Some(id),
            attached_cpus: vec![],
            attached_gpus: vec![],
        };
        let memory = MemoryTopology { domains: (0..).zip(kinds).map(domain).collect(), ..MemoryTopology::default() };
        let controllers = Controllers::find(Path::new("lattice-bounds"), None, Path::new(""), &BTreeSet::new());
        Bounds::new(&AgentConfig::default(), controllers, Resources::default(), &memory).unwrap()
    }

    fn whole_node(cxl_memory: bool) -> DesiredShare {
        let mut share = desired_share(AllocationId(uuid::Uuid::from_u128(1)));
        share.resources.memory_bytes = GIB;
        (share.spec.share, share.spec.constraints.cxl_memory) = (None, cxl_memory);
        share
    }

    #[test]
    fn memory_behind_cxl_is_for_whole_nodes_that_allow_it() {
        use MemoryDomainType::{CxlAttached, Dram, Hbm};
        let near = bounds(&[Dram, Hbm]);
        let far = bounds(&[Dram, Hbm, CxlAttached, CxlAttached]);
        for (bounds, allows, bytes, is_kept_local) in
            [(&near, false, GIB, false), (&near, true, GIB, false), (&far, false, GIB, true), (&far, true, 9 * GIB, false)]
        {
            let share = whole_node(allows);
            assert_eq!((bounds.memory_bytes(&share), bounds.is_kept_local(&share)), (bytes, is_kept_local));
        }
        assert_eq!(far.local_numa_nodes, [0, 1].into());
        let mut shared = whole_node(false);
        shared.spec.share = Some(Resources { cores: 1, ..Resources::default() });
        assert!(far.is_kept_local(&shared) && !near.is_kept_local(&shared));
    }
}
