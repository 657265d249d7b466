//! GPUs that are not there: for labs on machines without any. Nothing but the agent's configuration brings them, and
//! everything that shows one says that it is simulated.

use super::pci::Pci;
use super::{Files, Found, Vendor};
use lattice_model::topology::{DeviceFile, GpuDevice, GpuLink, GpuLinkType, GpuVendor};
use serde::Deserialize;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

/// One of them, as the agent's configuration has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedGpu {
    /// A character device that stands for it (`mknod PATH c 240 N`: no driver, so that opening it fails with ENXIO where it is allowed).
    pub device: PathBuf,
    /// Its memory in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The NUMA node that it is to be near to.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// GPUs of one island are joined at 100 GB/s, others at 10.
    #[serde(default)]
    pub island: u32,
}

/// See [`SimulatedGpu`].
pub struct Simulated<'a>(pub &'a [SimulatedGpu]);

impl Vendor for Simulated<'_> {
    fn vendor(&self) -> GpuVendor {
        GpuVendor::Simulated
    }

    fn look(&self, _files: &Files, _pci: &Pci) -> Result<Found, String> {
        let mut gpus = Vec::new();
        for (gpu, index) in self.0.iter().zip(0u32..) {
            let path = gpu.device.display().to_string();
            let about = std::fs::metadata(&gpu.device).map_err(|e| format!("{path}: {e}"))?;
            if !about.file_type().is_char_device() {
                return Err(format!("{path} is no character device"));
            }
            let (major, minor) = (nix::sys::stat::major(about.rdev()), nix::sys::stat::minor(about.rdev()));
            let number = |n: u64| u32::try_from(n).map_err(|e| e.to_string());
            gpus.push(GpuDevice {
                index,
                id: format!("SIM-{index}"),
                vendor: GpuVendor::Simulated,
                model: "simulated GPU".to_owned(),
                memory_bytes: gpu.memory_bytes,
                compute_capability: String::new(),
                partitioned: false,
                pci_address: None,
                numa_node: gpu.numa_node,
                device_files: vec![DeviceFile { path, major: number(major)?, minor: number(minor)? }],
            });
        }
        let islands: Vec<u32> = self.0.iter().map(|g| g.island).collect();
        let mut links = Vec::new();
        for (a, gpu_a) in islands.iter().zip(0u32..) {
            for (b, gpu_b) in islands.iter().zip(0u32..).skip(gpu_a as usize + 1) {
                let (link_type, bandwidth_gbps) = if a == b { (GpuLinkType::NvLink, 100.0) } else { (GpuLinkType::Pcie, 10.0) };
                links.push(GpuLink { gpu_a, gpu_b, link_type, bandwidth_gbps });
            }
        }
        Ok(Found { gpus, links, driver: "named by simulated_gpus in the agent's configuration, not there".to_owned(), lacking: Vec::new() })
    }
}
