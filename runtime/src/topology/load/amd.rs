//! AMD's GPUs by amdgpu's files (the kernel's Documentation/gpu/amdgpu: "GPU Busy", "Memory info", "hwmon Interfaces",
//! "RAS Error Count sysfs Interface"); their energy by ROCm SMI, if it is installed.

use super::vendor::Loads;
use crate::topology::Files;
use crate::topology::amd::Rocm;
use lattice_model::gpu_load::{GpuLoad, GpuLoads, Lacking};
use lattice_model::topology::{GpuDevice, GpuVendor};
use std::collections::BTreeMap;

/// Reads the load of AMD's GPUs.
pub(super) struct Amd {
    files: Files,
    /// The library while it is held open, and its device numbers by address.
    library: Option<(Rocm, BTreeMap<String, u32>)>,
    /// Why the library cannot be loaded; not tried again before `rest`.
    missing: Option<String>,
}

impl Amd {
    pub(super) fn new(files: Files) -> Self {
        Self { files, library: None, missing: None }
    }
}

impl Loads for Amd {
    fn source(&self) -> &'static str {
        "amdgpu"
    }

    fn vendor(&self) -> GpuVendor {
        GpuVendor::Amd
    }

    fn read(&mut self, devices: &[&GpuDevice], loads: &mut GpuLoads) {
        if self.library.is_none() && self.missing.is_none() {
            match Rocm::load() {
                Ok(rocm) => {
                    let numbers = rocm.numbers();
                    self.library = Some((rocm, numbers));
                }
                Err(why) => self.missing = Some(format!("energy of AMD's GPUs: ROCm SMI cannot be loaded: {why}")),
            }
        }
        loads.lacking.extend(self.missing.clone().map(|why| Lacking { vendor: GpuVendor::Amd, gpu: None, why }));
        for device in devices {
            let Some(address) = device.pci_address.as_deref() else { continue };
            match of_files(&self.files, address) {
                Some(mut load) => {
                    let energy = self.library.as_ref().and_then(|(rocm, numbers)| rocm.energy_joules(*numbers.get(address)?));
                    load.energy_joules = energy;
                    loads.gpus.insert(device.id.clone(), load);
                }
                None => loads.lacking.push(Lacking::of(device, format!("amdgpu reports nothing about it at {address}"))),
            }
        }
    }

    fn rest(&mut self) {
        (self.library, self.missing) = (None, None);
    }
}

/// `None`: the device does not exist or has no driver.
fn of_files(files: &Files, address: &str) -> Option<GpuLoad> {
    let dir = format!("sys/bus/pci/devices/{address}");
    let number = |name: &str| files.number::<u64>(&format!("{dir}/{name}"));
    let total = number("mem_info_vram_total")?;
    let sensors = files.names(&format!("{dir}/hwmon")).into_iter().next().unwrap_or_default();
    let sensor = |name: &str| number(&format!("hwmon/{sensors}/{name}")).map(|n| n as f64);
    let percent = |name: &str| number(name).map(|percent| percent as f64 / 100.0);
    let errors = |kind: &str| {
        let names = files.names(&format!("{dir}/ras")).into_iter().filter(|name| name.ends_with("_err_count"));
        let counts = names.filter_map(|name| {
            let text = files.text(&format!("{dir}/ras/{name}"))?;
            text.lines().find_map(|line| line.strip_prefix(kind)?.trim().parse::<u64>().ok())
        });
        counts.reduce(u64::saturating_add)
    };
    Some(GpuLoad {
        utilization: percent("gpu_busy_percent"),
        memory_busy: percent("mem_busy_percent"),
        memory_used_bytes: number("mem_info_vram_used"),
        memory_total_bytes: Some(total),
        // In millionths of a watt; the average if the GPU reports one, else the present value.
        power_watts: sensor("power1_average").or_else(|| sensor("power1_input")).map(|micro| micro / 1e6),
        power_limit_watts: sensor("power1_cap").map(|micro| micro / 1e6),
        temperature_celsius: sensor("temp1_input").map(|thousandths| thousandths / 1e3),
        sm_clock_hertz: sensor("freq1_input"),
        memory_clock_hertz: sensor("freq2_input"),
        ecc_corrected: errors("ce:"),
        ecc_uncorrected: errors("ue:"),
        ..GpuLoad::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn amdgpus_files_give_the_load() {
        let root = std::env::temp_dir().join(format!("lattice-amdgpu-load-{}", std::process::id()));
        let device = root.join("sys/bus/pci/devices/0000:c1:00.0");
        let files = [
            ("gpu_busy_percent", "87\n"),
            ("mem_busy_percent", "12\n"),
            ("mem_info_vram_total", "137438953472\n"),
            ("mem_info_vram_used", "1048576\n"),
            ("hwmon/hwmon5/power1_average", "305000000\n"),
            ("hwmon/hwmon5/power1_cap", "560000000\n"),
            ("hwmon/hwmon5/temp1_input", "61000\n"),
            ("hwmon/hwmon5/freq1_input", "1700000000\n"),
            ("ras/umc_err_count", "ue: 2\nce: 7\n"),
            ("ras/gfx_err_count", "ue: 1\nce: 0\n"),
        ];
        for (file, text) in files {
            fs::create_dir_all(device.join(file).parent().unwrap()).unwrap();
            fs::write(device.join(file), text).unwrap();
        }
        let load = of_files(&Files::below(&root), "0000:c1:00.0").unwrap();
        assert_eq!((load.utilization, load.memory_busy), (Some(0.87), Some(0.12)));
        assert_eq!((load.memory_used_bytes, load.memory_total_bytes), (Some(1 << 20), Some(128 << 30)));
        assert_eq!((load.power_watts, load.power_limit_watts, load.temperature_celsius), (Some(305.0), Some(560.0), Some(61.0)));
        assert_eq!((load.sm_clock_hertz, load.memory_clock_hertz), (Some(1.7e9), None));
        assert_eq!((load.ecc_corrected, load.ecc_uncorrected, load.throttled), (Some(7), Some(3), None));
        assert_eq!(of_files(&Files::below(&root), "0000:c2:00.0"), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
