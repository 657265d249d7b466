//! The features that work may require of this node (`--constraint`): detected on the machine, or
//! set by the site.

use crate::data_plane::DataPlane;
use crate::pmix;
use lattice_agent_common::config::AgentConfig;
use lattice_model::NodeTopology;
use lattice_model::constraint::{
    CHECKPOINTS, CXI, FEATURE_BYTES_MAX, FEATURES_MAX, GPU, GPU_TYPE, NVME_SCRATCH, PMIX, RUN_LEASE, TELEMETRY_AUDIT, TELEMETRY_DEBUG,
    UNIFIED_MEMORY,
};
use lattice_model::topology::MemoryDomainType;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where the kernel lists CXI devices (Slingshot).
const CXI_CLASS: &str = "/sys/class/cxi";
/// Greatest depth of stacked block devices (LVM on RAID on disks): no machine stacks more.
const STACKED_MAX: u32 = 8;

/// All features, ascending. `scopes`: whether all processes of an allocation can be found and
/// killed; `groups`: whether its work has a cgroup at all, by which it is measured; `audits`:
/// whether the kernel reports which files it opens.
pub fn of(config: &AgentConfig, data: &DataPlane, topology: &NodeTopology, (scopes, groups, audits): (bool, bool, bool)) -> Vec<String> {
    let mut features: BTreeSet<String> = config.features.iter().cloned().collect();
    if data.scratch_dir().is_some_and(lies_on_nvme) {
        features.insert(NVME_SCRATCH.to_owned());
    }
    if !topology.gpu.gpus.is_empty() {
        features.insert(GPU.to_owned());
    }
    features.extend(topology.gpu.gpus.iter().map(|gpu| gpu_type(&gpu.model)).collect::<BTreeSet<_>>());
    if topology.memory.domains.iter().any(|d| d.domain_type == MemoryDomainType::Unified) {
        features.insert(UNIFIED_MEMORY.to_owned());
    }
    if has_cxi() {
        features.insert(CXI.to_owned());
    }
    let own = [
        (CHECKPOINTS, config.makes_checkpoints().is_ok()),
        (PMIX, pmix::library(config).is_ok()),
        (RUN_LEASE, scopes),
        (TELEMETRY_DEBUG, config.logs.store.is_configured() && groups),
        (TELEMETRY_AUDIT, config.logs.store.is_configured() && scopes && audits),
    ];
    // The site cannot set the features that the agent detects.
    features.retain(|feature| own.iter().all(|(name, _)| name != feature));
    let mut all: BTreeSet<String> = own.into_iter().filter(|(_, has)| *has).map(|(feature, _)| feature.to_owned()).collect();
    all.extend(features.into_iter().take(FEATURES_MAX - all.len()));
    all.into_iter().collect()
}

/// Whether this machine has a CXI device.
pub fn has_cxi() -> bool {
    fs::read_dir(CXI_CLASS).is_ok_and(|mut devices| devices.next().is_some())
}

/// A GPU model as its driver reports it, without characters that a feature cannot have.
fn gpu_type(model: &str) -> String {
    let plain = model.chars().map(|c| if c.is_ascii_graphic() && !",:=".contains(c) { c } else { ' ' });
    let mut text = format!("{GPU_TYPE}={}", plain.collect::<String>().trim());
    text.truncate(FEATURE_BYTES_MAX);
    text
}

/// Whether a directory's file system lies on NVMe disks only. `false` if unknown: the site can set
/// the feature.
fn lies_on_nvme(directory: &Path) -> bool {
    let Ok(about) = fs::metadata(directory) else { return false };
    let device = format!("/sys/dev/block/{}:{}", libc::major(about.dev()), libc::minor(about.dev()));
    is_nvme(Path::new(&device), STACKED_MAX)
}

/// Whether a device is NVMe, by its path in sysfs. A device made of others is NVMe if all of them are.
fn is_nvme(device: &Path, stacked_max: u32) -> bool {
    let Ok(place) = fs::canonicalize(device) else { return false };
    if place.components().any(|part| part.as_os_str().to_str().is_some_and(|name| name.starts_with("nvme"))) {
        return true;
    }
    let below: Vec<_> = fs::read_dir(place.join("slaves")).into_iter().flatten().flatten().map(|e| e.path()).collect();
    stacked_max > 0 && !below.is_empty() && below.iter().all(|device| is_nvme(device, stacked_max - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::constraint::is_feature;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_nvme_disk_is_known_by_its_place_and_a_stack_by_what_it_is_made_of() {
        let sys = std::env::temp_dir().join(format!("lattice-features-{}", std::process::id()));
        let _ = fs::remove_dir_all(&sys);
        let make = |path: &str| fs::create_dir_all(sys.join(path)).unwrap();
        make("devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p2");
        make("devices/pci0/nvme/nvme1/nvme1n1");
        make("devices/pci0/virtio0/block/vda");
        for (name, made_of) in [
            ("md0", &["pci0/nvme/nvme0/nvme0n1", "pci0/nvme/nvme1/nvme1n1"][..]),
            ("dm-0", &["virtual/md0"]),
            ("dm-1", &["pci0/nvme/nvme0/nvme0n1", "pci0/virtio0/block/vda"]),
            ("loop0", &[]),
        ] {
            make(&format!("devices/virtual/{name}/slaves"));
            for (number, device) in made_of.iter().enumerate() {
                symlink(sys.join("devices").join(device), sys.join(format!("devices/virtual/{name}/slaves/{number}"))).unwrap();
            }
        }
        for (device, nvme) in [
            ("pci0/nvme/nvme0/nvme0n1/nvme0n1p2", true),
            ("pci0/virtio0/block/vda", false),
            ("virtual/md0", true),
            ("virtual/dm-0", true),
            ("virtual/dm-1", false),
            ("virtual/loop0", false),
            ("nowhere", false),
        ] {
            assert_eq!(is_nvme(&sys.join("devices").join(device), STACKED_MAX), nvme, "{device}");
        }
        assert!(!is_nvme(&sys.join("devices/virtual/dm-0"), 1), "what is deeper than that is not followed");
        fs::remove_dir_all(sys).unwrap();
    }

    #[test]
    fn every_model_can_be_a_feature() {
        for model in ["NVIDIA GH200 480GB", "A,B:C=D ü", &"x".repeat(300)] {
            assert!(is_feature(&gpu_type(model)), "{}", gpu_type(model));
        }
        assert_eq!(gpu_type("NVIDIA GH200 480GB"), "gpu_type=NVIDIA GH200 480GB");
    }
}
