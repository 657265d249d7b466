//! The result of examining a machine's GPUs: collected on the machine (crate `lattice-runtime`),
//! evaluated without access to it (`lattice-node`).
//!
//! A GPU is identified by its bus address (`0000:3b:00.0`), which all its instances share if it is
//! partitioned. A simulated GPU has no address and is identified by its id.

use crate::topology::GpuDevice;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One examination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuLook {
    /// The GPUs present on the bus.
    pub on_bus: BTreeSet<String>,
    /// What the kernel reported about them since the previous examination, in order.
    pub events: Vec<(String, GpuEvent)>,
}

/// The drivers' answers. If a GPU is missing here, its driver was not asked, and its previous
/// reading remains valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuReads {
    /// By GPU.
    pub gpus: BTreeMap<String, GpuRead>,
    /// What cannot be examined on this machine, and why.
    pub unsupported: Vec<String>,
}

/// The driver's answer about one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRead {
    /// The GPU responds.
    Reading(Box<GpuReading>),
    /// The driver has lost the GPU.
    Lost(String),
    /// The GPU is on the bus, but no driver reports it.
    Silent(String),
}

/// A message in the kernel's log about one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuEvent {
    /// The GPU appeared on the bus, for the first time or again.
    Found,
    /// NVIDIA's driver reported the Xid error `number`, `ago_ms` milliseconds ago.
    Xid { number: u32, ago_ms: u64 },
}

/// The state of one GPU. Values that its driver does not report are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuReading {
    /// Uncorrectable memory errors since its driver was loaded or the GPU was reset.
    pub ecc_uncorrected: Option<u64>,
    /// Whether a memory row (a page, before Ampere) will be replaced at the next reset.
    pub remap_pending: Option<bool>,
    /// Whether replacing a row failed.
    pub remap_failed: Option<bool>,
    /// Number of links to other GPUs and switches that are up.
    pub nvlinks_up: Option<u32>,
    /// Replays, recoveries and checksum errors of all links: a counter.
    pub nvlink_errors: Option<u64>,
    /// Its temperature in degrees Celsius.
    pub temperature_c: Option<u32>,
    /// The temperature at which it reduces its clocks.
    pub slowdown_c: Option<u32>,
    /// The temperature at which it switches itself off.
    pub shutdown_c: Option<u32>,
    /// Why the hardware reduces its clocks; empty: it does not.
    pub throttled: Vec<String>,
    /// The recovery that its driver requests, if any.
    pub recovery: Option<GpuRecovery>,
}

/// `NVML_GPU_RECOVERY_ACTION_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuRecovery {
    None,
    Reset,
    Reboot,
    DrainP2p,
    DrainAndReset,
}

/// The identifier of a device's GPU.
pub fn gpu_key(device: &GpuDevice) -> &str {
    device.pci_address.as_deref().unwrap_or(&device.id)
}
