//! The load of simulated GPUs, which only an agent's configuration creates: a file beside the device contains it.

use super::vendor::Loads;
use crate::topology::SimulatedGpu;
use crate::topology::simulated::{LOAD_BYTES_MAX, UnreadableFile, id_of};
use lattice_model::gpu_load::{GpuLoad, GpuLoads, Lacking};
use lattice_model::topology::{GpuDevice, GpuVendor};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The file beside a simulated GPU's device with its load.
pub fn load_file(device: &Path) -> PathBuf {
    device.with_extension("load")
}

/// Reads the load of simulated GPUs.
pub(super) struct Simulated {
    /// By id.
    devices: BTreeMap<String, PathBuf>,
}

impl Simulated {
    pub(super) fn new(gpus: &[SimulatedGpu]) -> Self {
        Self { devices: (0u32..).zip(gpus).map(|(index, gpu)| (id_of(index), gpu.device.clone())).collect() }
    }
}

impl Loads for Simulated {
    fn source(&self) -> &'static str {
        "simulated"
    }

    fn vendor(&self) -> GpuVendor {
        GpuVendor::Simulated
    }

    fn read(&mut self, devices: &[&GpuDevice], loads: &mut GpuLoads) {
        for device in devices {
            let Some(path) = self.devices.get(&device.id) else { continue };
            match load(path, device.memory_bytes) {
                Ok(load) => drop(loads.gpus.insert(device.id.clone(), load)),
                Err(error) => loads.lacking.push(Lacking::of(device, error.to_string())),
            }
        }
    }

    fn rest(&mut self) {}
}

/// Why a simulated GPU has no load.
#[derive(Debug, Error)]
enum LoadError {
    #[error("its device file is missing")]
    Missing,
    #[error(transparent)]
    File(#[from] UnreadableFile),
}

/// Without a file, the GPU is idle and all of its memory is free.
fn load(device: &Path, memory_bytes: u64) -> Result<GpuLoad, LoadError> {
    if !std::fs::metadata(device).is_ok_and(|about| about.file_type().is_char_device()) {
        return Err(LoadError::Missing);
    }
    let path = load_file(device);
    let load = match File::open(&path) {
        Ok(file) => {
            serde_json::from_reader(BufReader::new(file.take(LOAD_BYTES_MAX))).map_err(|source| UnreadableFile::Json { path, source })?
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            GpuLoad { utilization: Some(0.0), memory_used_bytes: Some(0), ..GpuLoad::default() }
        }
        Err(source) => return Err(UnreadableFile::Open { path, source }.into()),
    };
    Ok(GpuLoad { memory_total_bytes: load.memory_total_bytes.or(Some(memory_bytes)), ..load })
}
