//! GPU load: read on the machine (crate `lattice-runtime`), reported by the agent
//! (`lattice-machine`, `lattice-observe`). All values are in base units; a value that the vendor
//! does not report for a device is absent, never 0.

use crate::topology::{GpuDevice, GpuVendor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Largest number of processes reported for one GPU.
pub const PROCESSES_MAX: usize = 64;
/// Largest number of devices reported for one machine, counting instances of partitioned GPUs.
pub const GPUS_MAX: usize = 64;

/// The load of one GPU. For an instance of a partitioned GPU, vendors report most values only for
/// the whole GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuLoad {
    /// Fraction of time in which something ran on it, 0 to 1.
    pub utilization: Option<f64>,
    /// Fraction of time in which its memory was read or written, 0 to 1.
    pub memory_busy: Option<f64>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    /// Its current power and its power limit, in watts.
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    /// Energy used since its driver was loaded, in joules: a counter.
    pub energy_joules: Option<f64>,
    pub temperature_celsius: Option<f64>,
    /// The clock frequencies of its processors and its memory, in hertz.
    pub sm_clock_hertz: Option<f64>,
    pub memory_clock_hertz: Option<f64>,
    /// Why its clocks are reduced, one word for each reason; empty: they are not reduced. `None`:
    /// not reported.
    pub throttled: Option<Vec<String>>,
    /// Memory errors since its driver was loaded: counters.
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    /// Bytes sent and received over PCIe: counters.
    pub pcie_sent_bytes: Option<u64>,
    pub pcie_received_bytes: Option<u64>,
    /// Bytes sent and received over all its NVLinks: counters.
    pub nvlink_sent_bytes: Option<u64>,
    pub nvlink_received_bytes: Option<u64>,
    /// Process ids that compute on it; `None`: not reported.
    pub processes: Option<Vec<u32>>,
}

/// One sample of all GPUs of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuLoads {
    /// By device id. Devices that did not respond are absent.
    pub gpus: BTreeMap<String, GpuLoad>,
    /// The source of each device's values: `nvml`, `amdgpu`, `simulated`.
    pub sources: BTreeMap<String, &'static str>,
    /// Which values cannot be read, and why.
    pub lacking: Vec<Lacking>,
}

/// Something that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lacking {
    pub vendor: GpuVendor,
    /// The device's id; `None`: all devices of the vendor.
    pub gpu: Option<String>,
    /// The reason and its subject, for people.
    pub why: String,
}

impl Lacking {
    /// The error of one device.
    pub fn of(device: &GpuDevice, why: impl fmt::Display) -> Self {
        Self { vendor: device.vendor, gpu: Some(device.id.clone()), why: format!("GPU {}: {why}", device.id) }
    }
}

impl GpuLoads {
    /// Why a device has no values, if known.
    pub fn why_lacking(&self, gpu: &str, vendor: Option<GpuVendor>) -> Option<&str> {
        let own = self.lacking.iter().find(|lacking| lacking.gpu.as_deref() == Some(gpu));
        let all = || self.lacking.iter().find(|lacking| lacking.gpu.is_none() && Some(lacking.vendor) == vendor);
        own.or_else(all).map(|lacking| lacking.why.as_str())
    }
}

impl GpuLoad {
    /// Removes impossible values: numbers from a driver are divided and summed later.
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

    /// Fraction of its memory that is in use, 0 to 1.
    pub fn memory_ratio(&self) -> Option<f64> {
        let (used, total) = (self.memory_used_bytes?, self.memory_total_bytes.filter(|total| *total > 0)?);
        Some(used as f64 / total as f64)
    }
}

/// The label values for reasons of reduced clocks.
pub const THROTTLED: &[&str] =
    &["power_cap", "hardware_slowdown", "hardware_thermal", "hardware_power_brake", "software_thermal", "sync_boost", "clock_setting"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_removed() {
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
