//! Simulated GPUs, for labs on machines without any. Only the agent's configuration creates them, and everything that
//! shows one marks it as simulated.

use super::files::Files;
use super::pci::Pci;
use super::vendor::{Found, Vendor, VendorError};
use lattice_model::gpu_look::{GpuEvent, GpuLook, GpuRead, GpuReading, GpuReads};
use lattice_model::topology::{DeviceFile, GpuDevice, GpuLink, GpuLinkType, GpuVendor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Bytes that are read of a simulated GPU's readings.
const READINGS_BYTES_MAX: u64 = 65_536;
/// The same for its load.
pub(super) const LOAD_BYTES_MAX: u64 = READINGS_BYTES_MAX;

/// One simulated GPU, as in the agent's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedGpu {
    /// A character device in its place (`mknod PATH c 240 N`: no driver, so that opening it fails with ENXIO where it
    /// is allowed).
    pub device: PathBuf,
    /// Its memory in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The NUMA node that it is near to.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// GPUs of one island are joined at 100 GB/s, others at 10.
    #[serde(default)]
    pub island: u32,
}

/// Discovers the simulated GPUs of the configuration.
pub struct Simulated<'a>(pub &'a [SimulatedGpu]);

impl Vendor for Simulated<'_> {
    fn vendor(&self) -> GpuVendor {
        GpuVendor::Simulated
    }

    fn look(&self, _files: &Files, _pci: &Pci) -> Result<Found, VendorError> {
        let (mut gpus, mut lacking) = (Vec::new(), Vec::new());
        for (gpu, index) in self.0.iter().zip(0u32..) {
            let path = gpu.device.display().to_string();
            let about = match std::fs::metadata(&gpu.device) {
                Ok(about) => about,
                Err(error) => {
                    lacking.push(format!("the device file of the simulated GPU {} is missing: {path}: {error}", id_of(index)));
                    continue;
                }
            };
            if !about.file_type().is_char_device() {
                return Err(VendorError::NoCharacterDevice { path });
            }
            let (major, minor) = (nix::sys::stat::major(about.rdev()), nix::sys::stat::minor(about.rdev()));
            let number = |n: u64| u32::try_from(n);
            gpus.push(GpuDevice {
                index,
                id: id_of(index),
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
                let there = |index: u32| gpus.iter().any(|g: &GpuDevice| g.index == index);
                if there(gpu_a) && there(gpu_b) {
                    links.push(GpuLink { gpu_a, gpu_b, link_type, bandwidth_gbps });
                }
            }
        }
        Ok(Found { gpus, links, driver: "simulated: simulated_gpus in the agent's configuration names them".to_owned(), lacking })
    }
}

/// The id of the simulated GPU with this number.
pub(super) fn id_of(index: u32) -> String {
    format!("SIM-{index}")
}

/// The file beside a simulated GPU's device with its readings.
pub fn readings_file(device: &Path) -> PathBuf {
    device.with_extension("json")
}

/// The readings of a simulated GPU: the same that a vendor's driver would give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatedReadings {
    /// Errors that its driver reports, in order; those that existed before are not reported again.
    pub xids: Vec<u32>,
    /// Its state.
    pub reading: GpuReading,
}

/// Repeated checks of simulated GPUs. A device's file simulates the bus; the file beside it simulates driver and kernel
/// log.
pub(super) struct Watch {
    /// By id: its device, and how many of its errors were reported.
    gpus: BTreeMap<String, (PathBuf, usize)>,
}

impl Watch {
    pub(super) fn new(gpus: &[SimulatedGpu]) -> Self {
        Self { gpus: (0u32..).zip(gpus).map(|(index, gpu)| (id_of(index), (gpu.device.clone(), 0))).collect() }
    }

    pub(super) fn look(&mut self, look: &mut GpuLook) {
        for (id, (device, reported)) in &mut self.gpus {
            if !std::fs::metadata(&*device).is_ok_and(|about| about.file_type().is_char_device()) {
                *reported = 0;
                continue;
            }
            look.on_bus.insert(id.clone());
            // An unreadable file simulates a silent driver; it is reported when the driver is read.
            let Ok(SimulatedReadings { xids, .. }) = readings(device) else { continue };
            if *reported > xids.len() {
                // It was removed and returned between two looks: a kernel's log would show that.
                look.events.push((id.clone(), GpuEvent::Found));
                *reported = 0;
            }
            look.events.extend(xids[*reported..].iter().map(|number| (id.clone(), GpuEvent::Xid { number: *number, ago_ms: 0 })));
            *reported = xids.len();
        }
    }
}

/// The drivers' readings of simulated GPUs.
pub(super) fn read(gpus: &[SimulatedGpu], on_bus: &BTreeSet<String>, reads: &mut GpuReads) {
    let named = (0u32..).zip(gpus).map(|(index, gpu)| (id_of(index), &gpu.device));
    for (id, device) in named.filter(|(id, _)| on_bus.contains(id)) {
        let read =
            readings(device).map_or_else(|error| GpuRead::Silent(error.to_string()), |read| GpuRead::Reading(Box::new(read.reading)));
        reads.gpus.insert(id, read);
    }
}

/// Why a simulated GPU's file cannot be read.
#[derive(Debug, Error)]
pub(super) enum UnreadableFile {
    #[error("{}: {source}", .path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{}: {source}", .path.display())]
    Json { path: PathBuf, source: serde_json::Error },
}

/// Without a file, the GPU is healthy.
fn readings(device: &Path) -> Result<SimulatedReadings, UnreadableFile> {
    let path = readings_file(device);
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(SimulatedReadings::default()),
        Err(source) => return Err(UnreadableFile::Open { path, source }),
    };
    serde_json::from_reader(BufReader::new(file.take(READINGS_BYTES_MAX))).map_err(|source| UnreadableFile::Json { path, source })
}
