//! How busy the GPUs of a machine are: read where the machine can be looked at (`runtime`), told where it is measured (`telemetry`,
//! `agent`). All in base units; what a vendor does not tell of a device is absent, never 0.

use crate::topology::{GpuDevice, GpuVendor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Processes of one GPU that are told.
pub const PROCESSES_MAX: usize = 64;
/// Devices of one machine that are told, instances of partitioned GPUs among them.
pub const GPUS_MAX: usize = 64;

/// How busy one GPU is. Of an instance of a partitioned GPU most is told of the whole GPU alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuLoad {
    /// Part of the time in which something ran on it, 0 to 1.
    pub utilization: Option<f64>,
    /// Part of the time in which its memory was read or written, 0 to 1.
    pub memory_busy: Option<f64>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    /// What it draws, and may draw.
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    /// What it has drawn since its driver was loaded: a counter.
    pub energy_joules: Option<f64>,
    pub temperature_celsius: Option<f64>,
    /// The clocks of its processors and of its memory.
    pub sm_clock_hertz: Option<f64>,
    pub memory_clock_hertz: Option<f64>,
    /// Why its clocks are lower than they could be, each as one word; empty: nothing holds them down. `None`: it does not tell.
    pub throttled: Option<Vec<String>>,
    /// Memory errors since its driver was loaded.
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    /// Bytes over PCIe: counters.
    pub pcie_sent_bytes: Option<u64>,
    pub pcie_received_bytes: Option<u64>,
    /// Bytes over all its NVLinks: counters.
    pub nvlink_sent_bytes: Option<u64>,
    pub nvlink_received_bytes: Option<u64>,
    /// Who computes on it; `None`: it does not tell.
    pub processes: Option<Vec<u32>>,
}

/// One look at all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuLoads {
    /// By the device's id. Those that do not answer are absent.
    pub gpus: BTreeMap<String, GpuLoad>,
    /// Who told, by device: `nvml`, `amdgpu`, `simulated`.
    pub sources: BTreeMap<String, &'static str>,
    /// What cannot be read, and why.
    pub lacking: Vec<Lacking>,
}

/// Something that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lacking {
    pub vendor: GpuVendor,
    /// The device's id; `None`: all of the vendor's.
    pub gpu: Option<String>,
    /// For people, with what it is about.
    pub why: String,
}

impl Lacking {
    /// Of one device.
    pub fn of(device: &GpuDevice, why: impl fmt::Display) -> Self {
        Self { vendor: device.vendor, gpu: Some(device.id.clone()), why: format!("GPU {}: {why}", device.id) }
    }
}

impl GpuLoads {
    /// Why nothing is told of a device, where that is known.
    pub fn why_lacking(&self, gpu: &str, vendor: Option<GpuVendor>) -> Option<&str> {
        let own = self.lacking.iter().find(|lacking| lacking.gpu.as_deref() == Some(gpu));
        let all = || self.lacking.iter().find(|lacking| lacking.gpu.is_none() && Some(lacking.vendor) == vendor);
        own.or_else(all).map(|lacking| lacking.why.as_str())
    }
}

impl GpuLoad {
    /// Without what can be no load: a driver's numbers are divided by and added up.
    #[must_use]
    pub fn checked(mut self) -> Self {
        let positive = [
            &mut self.power_watts,
            &mut self.power_limit_watts,
            &mut self.energy_joules,
            &mut self.sm_clock_hertz,
            &mut self.memory_clock_hertz,
        ];
        for number in positive {
            *number = number.filter(|n| n.is_finite() && *n >= 0.0);
        }
        self.temperature_celsius = self.temperature_celsius.filter(|n| n.is_finite());
        for ratio in [&mut self.utilization, &mut self.memory_busy] {
            *ratio = ratio.filter(|n| n.is_finite() && (0.0..=1.0).contains(n));
        }
        if let Some(processes) = &mut self.processes {
            processes.truncate(PROCESSES_MAX);
        }
        if let Some(reasons) = &mut self.throttled {
            reasons.retain(|reason| THROTTLED.contains(&reason.as_str()));
        }
        self
    }

    /// Part of its memory that is used.
    pub fn memory_ratio(&self) -> Option<f64> {
        let (used, total) = (self.memory_used_bytes?, self.memory_total_bytes.filter(|total| *total > 0)?);
        Some(used as f64 / total as f64)
    }
}

/// Why clocks are held down, as labels say it.
pub const THROTTLED: &[&str] =
    &["power_cap", "hardware_slowdown", "hardware_thermal", "hardware_power_brake", "software_thermal", "sync_boost", "clock_setting"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_no_load_is_not_taken() {
        let load = GpuLoad {
            utilization: Some(1.5),
            memory_busy: Some(0.25),
            power_watts: Some(f64::NAN),
            energy_joules: Some(-1.0),
            temperature_celsius: Some(-5.0),
            memory_used_bytes: Some(50),
            memory_total_bytes: Some(200),
            throttled: Some(vec!["power_cap".to_owned(), "\u{1b}[2J".to_owned()]),
            processes: Some((0..1000).collect()),
            ..GpuLoad::default()
        }
        .checked();
        assert_eq!((load.utilization, load.memory_busy, load.power_watts, load.energy_joules), (None, Some(0.25), None, None));
        assert_eq!((load.temperature_celsius, load.memory_ratio()), (Some(-5.0), Some(0.25)));
        assert_eq!(load.throttled.as_deref(), Some(&["power_cap".to_owned()][..]));
        assert_eq!(load.processes.map(|all| all.len()), Some(PROCESSES_MAX));
        assert_eq!(GpuLoad { memory_used_bytes: Some(1), memory_total_bytes: Some(0), ..GpuLoad::default() }.memory_ratio(), None);
    }
}
