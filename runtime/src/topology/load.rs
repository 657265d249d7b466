//! How busy the machine's GPUs are.
//!
//! ```text
//!   nvidia     NVML, held open while work has GPUs
//!   amd        amdgpu's files in sysfs, energy by ROCm SMI
//!   simulated  the file beside the device
//! ```
//!
//! A vendor's library that is held open keeps its devices open, and an open GPU cannot be reset. So
//! [`GpuLoadReader::rest`] closes the libraries as soon as no work has a GPU. Any call here may hang with a driver:
//! callers use a separate thread.

mod amd;
mod nvidia;
mod simulated;
mod vendor;

use super::{Files, SimulatedGpu};
use lattice_model::gpu_load::{GPUS_MAX, GpuLoads};
use lattice_model::topology::GpuDevice;
use vendor::Loads;

pub use simulated::load_file;

/// Reads the GPUs of all vendors.
pub struct GpuLoadReader {
    vendors: Vec<Box<dyn Loads>>,
}

impl GpuLoadReader {
    /// For the GPUs of this machine, and simulated GPUs of the configuration.
    pub fn new(files: Files, simulated: &[SimulatedGpu]) -> Self {
        let mut vendors: Vec<Box<dyn Loads>> = vec![Box::<nvidia::Nvidia>::default(), Box::new(amd::Amd::new(files))];
        if !simulated.is_empty() {
            vendors.push(Box::new(simulated::Simulated::new(simulated)));
        }
        Self { vendors }
    }

    /// One reading of these devices.
    pub fn read(&mut self, devices: &[GpuDevice]) -> GpuLoads {
        let mut loads = GpuLoads::default();
        for vendor in &mut self.vendors {
            let mine: Vec<&GpuDevice> = devices.iter().filter(|device| device.vendor == vendor.vendor()).take(GPUS_MAX).collect();
            if mine.is_empty() {
                continue;
            }
            let mut found = GpuLoads::default();
            vendor.read(&mine, &mut found);
            for (id, load) in found.gpus {
                loads.sources.insert(id.clone(), vendor.source());
                loads.gpus.insert(id, load.checked());
            }
            loads.lacking.extend(found.lacking);
        }
        loads
    }

    /// Closes the vendors' libraries, because no work has a GPU.
    pub fn rest(&mut self) {
        self.vendors.iter_mut().for_each(|vendor| vendor.rest());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{allowed_cpus, discover};
    use lattice_model::topology::GpuVendor;
    use std::path::Path;

    /// Needs a machine with NVIDIA's driver: `cargo test -p lattice-runtime --lib nvidia -- --ignored`.
    #[test]
    #[ignore = "needs an NVIDIA GPU with its driver"]
    fn nvidias_gpus_are_read() {
        let files = Files::below(Path::new("/"));
        let devices = discover(&files, &allowed_cpus(), &[]).topology.gpu.gpus;
        assert!(devices.iter().any(|gpu| gpu.vendor == GpuVendor::Nvidia), "there is no GPU of NVIDIA here");
        let mut reader = GpuLoadReader::new(files, &[]);
        let first = reader.read(&devices);
        assert!(first.lacking.is_empty(), "{:?}", first.lacking);
        for device in devices.iter().filter(|device| !device.partitioned && device.vendor == GpuVendor::Nvidia) {
            let load = &first.gpus[&device.id];
            assert_eq!(first.sources[&device.id], "nvml");
            assert!(load.utilization.is_some() && load.memory_used_bytes.is_some(), "{load:?}");
            assert_eq!(load.memory_total_bytes, Some(device.memory_bytes));
            assert!(load.power_watts.is_some_and(|watts| (1.0..3000.0).contains(&watts)), "{load:?}");
            assert!(load.temperature_celsius.is_some_and(|degrees| (0.0..120.0).contains(&degrees)), "{load:?}");
            assert!(load.sm_clock_hertz.is_some_and(|hertz| (1e7..1e10).contains(&hertz)), "{load:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
        let second = reader.read(&devices);
        for (id, load) in &first.gpus {
            let (was, is) = (load.energy_joules, second.gpus[id].energy_joules);
            assert!(was <= is, "{id}: {was:?} J, then {is:?} J");
        }
        reader.rest();
        assert_eq!(reader.read(&devices).gpus.len(), first.gpus.len(), "opened again");
    }
}
