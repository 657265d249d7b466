//! Finds the node's topology, and writes the topology files of allocations. Each file contains the
//! whole topology and the allocation's part of it, so that ranks need not discover it again.

use crate::hwloc;
use anyhow::Context;
use lattice_model::binding::PlacedGpu;
use lattice_model::resources::registered_memory_bytes;
use lattice_model::topology::{Core, GpuDevice, MemoryTopology};
use lattice_model::{AllocationId, Assignment, DesiredShare, Epoch, NodeTopology, Placement, Resources};
use lattice_runtime::topology::{self, Discovered, Files, SimulatedGpu};
use serde::Serialize;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Discovers this machine, at the start and when a GPU appears that is not known. Takes as long as
/// the vendors' libraries do.
pub fn look(simulated: &[SimulatedGpu]) -> Discovered {
    topology::discover(&Files::below(Path::new("/")), &topology::allowed_cpus(), simulated)
}

/// The memory that the node registers, in bytes and whole steps: the machine's memory, without
/// memory behind CXL and without the system's reservation, which is at most a quarter.
pub fn memory_bytes(memory: &MemoryTopology, reserved_bytes: u64) -> anyhow::Result<u64> {
    Ok(registered_bytes(total_bytes()?, memory.cxl_bytes(), reserved_bytes))
}

fn registered_bytes(total: u64, cxl: u64, reserved: u64) -> u64 {
    let local = total.saturating_sub(cxl);
    registered_memory_bytes(local - reserved.min(local / 4))
}

/// All memory of this machine in bytes.
pub fn total_bytes() -> anyhow::Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let total = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")).and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    Ok(total.context("/proc/meminfo has no MemTotal")?.saturating_mul(1024))
}

/// The topology `now`, plus the GPUs that were known before and are missing: work must still be
/// denied their device files.
pub fn with_lost(mut now: NodeTopology, before: &NodeTopology) -> NodeTopology {
    let mut next = now.gpu.gpus.iter().map(|g| g.index + 1).max().unwrap_or(0);
    for gpu in &before.gpu.gpus {
        if now.gpu.by_id(&gpu.id).is_none() {
            now.gpu.gpus.push(GpuDevice { index: next, ..gpu.clone() });
            next += 1;
        }
    }
    now
}

/// The resources that the node registers. Each processor counts as a core.
pub fn size(topology: &NodeTopology, memory_bytes: u64) -> anyhow::Result<Resources> {
    Ok(Resources { cores: u32::try_from(topology.cpu.cpus().len())?, memory_bytes, gpus: u32::try_from(topology.gpu.gpus.len())? })
}

/// An allocation's part of the node, as its shim distributes it among ranks.
pub fn placement(topology: &NodeTopology, assigned: &Assignment) -> Placement {
    let own = |core: &Core| Core { cpus: core.cpus.iter().copied().filter(|c| assigned.cpus.contains(c)).collect(), ..core.clone() };
    let gpus = topology.gpu.gpus.iter().filter(|g| assigned.gpus.contains(&g.id));
    Placement {
        cores: topology.cpu.cores.iter().map(own).filter(|c| !c.cpus.is_empty()).collect(),
        gpus: gpus.map(|g| PlacedGpu { id: g.id.clone(), vendor: g.vendor, numa_node: g.numa_node }).collect(),
        memory_nodes: assigned.memory_nodes.clone(),
        vendors: topology.gpu.gpus.iter().map(|g| g.vendor).collect(),
    }
}

/// The content of a topology file, in JSON.
#[derive(Serialize)]
struct TopologyFile<'a> {
    node: &'a str,
    assigned: &'a Assignment,
    #[serde(flatten)]
    topology: &'a NodeTopology,
}

fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("topology")
}

/// Path of an allocation's topology file. It is not in the allocation's own directory, which the
/// user cannot enter.
pub fn file(state_dir: &Path, allocation: AllocationId, epoch: Epoch) -> PathBuf {
    directory(state_dir).join(format!("{allocation}-{epoch}.json"))
}

/// Writes the topology file under another name first, so that readers see it complete or not at
/// all. Not synced: after a reboot nobody reads it.
pub fn write_topology(
    state_dir: &Path,
    node: &str,
    share: &DesiredShare,
    topology: &NodeTopology,
    assigned: &Assignment,
) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o711).create(directory(state_dir))?;
    let path = file(state_dir, share.allocation, share.epoch);
    let part = path.with_extension("part");
    fs::write(&part, serde_json::to_vec(&TopologyFile { node, assigned, topology })?)?;
    fs::set_permissions(&part, fs::Permissions::from_mode(0o444))?;
    fs::rename(&part, &path)
}

/// Removes the file.
pub fn forget(state_dir: &Path, allocation: AllocationId, epoch: Epoch) -> io::Result<()> {
    match fs::remove_file(file(state_dir, allocation, epoch)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes the topology files of allocations that are no longer here.
pub fn sweep(state_dir: &Path, here: impl Fn(AllocationId) -> bool) {
    for entry in fs::read_dir(directory(state_dir)).into_iter().flatten().flatten() {
        if Path::new(&entry.file_name()).file_stem() == Path::new(hwloc::FILE).file_stem() {
            continue;
        }
        let allocation = entry.file_name().to_str().and_then(|name| name.get(..36)?.parse::<AllocationId>().ok());
        if !allocation.is_some_and(&here)
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "a stray topology file could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_behind_cxl_and_that_of_the_system_are_not_registered() {
        const GIB: u64 = 1 << 30;
        assert_eq!(registered_bytes(512 * GIB, 0, 8 * GIB), 504 * GIB);
        assert_eq!(registered_bytes(2560 * GIB, 2048 * GIB, 8 * GIB), 504 * GIB);
        assert_eq!(registered_bytes(2560 * GIB, 2048 * GIB, 600 * GIB), 384 * GIB, "at most a quarter is reserved");
        assert_eq!(registered_bytes(GIB, 2 * GIB, GIB), 0);
        assert_eq!(registered_bytes(512 * GIB + 3 * 1024, 0, 8 * GIB), 504 * GIB, "like machines differ by some kB");
    }

    #[test]
    fn only_files_of_absent_allocations_are_swept() {
        let dir = std::env::temp_dir().join(format!("lattice-machine-{}", std::process::id()));
        fs::create_dir_all(directory(&dir)).unwrap();
        let ids = [AllocationId(uuid::Uuid::new_v4()), AllocationId(uuid::Uuid::new_v4())];
        for id in ids {
            fs::write(file(&dir, id, Epoch(1)), "{}").unwrap();
        }
        fs::write(directory(&dir).join("half.part"), "").unwrap();
        fs::write(directory(&dir).join(hwloc::FILE), "").unwrap();
        sweep(&dir, |id| id == ids[1]);
        let left: Vec<_> = fs::read_dir(directory(&dir)).unwrap().flatten().map(|e| e.path()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!([file(&dir, ids[1], Epoch(1)), directory(&dir).join(hwloc::FILE)].iter().all(|path| left.contains(path)), "{left:?}");
        forget(&dir, ids[1], Epoch(1)).unwrap();
        forget(&dir, ids[1], Epoch(1)).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}
