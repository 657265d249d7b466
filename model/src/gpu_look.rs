//! What a look at a machine's GPUs finds: made where the machine can be looked at (`runtime`), judged where it cannot (`node`).
//!
//! A GPU goes by its address on the bus (`0000:3b:00.0`), which is that of all its instances where it is partitioned; a simulated
//! one, which has none, by its id.

use crate::topology::GpuDevice;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuLook {
    /// The GPUs that the bus shows.
    pub on_bus: BTreeSet<String>,
    /// What the kernel said of them since the look before, in order.
    pub said: Vec<(String, GpuEvent)>,
}

/// What drivers say when they are asked. Of a GPU that is missing here nothing was asked, and what it said before stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuReads {
    /// By GPU.
    pub gpus: BTreeMap<String, GpuRead>,
    /// What cannot be looked at here, and why.
    pub unsupported: Vec<String>,
}

/// What the driver says of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRead {
    /// It answers.
    Told(Box<GpuReading>),
    /// The driver had it and has lost it.
    Lost(String),
    /// The bus shows it, and no driver speaks for it.
    Silent(String),
}

/// What the kernel's log says of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuEvent {
    /// The bus found it, for the first time or anew.
    Found,
    /// NVIDIA's driver reported an error of this number, so long ago.
    Xid { number: u32, ago_ms: u64 },
}

/// The state of one GPU. What its driver does not tell is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuReading {
    /// Memory errors that could not be corrected, since its driver was loaded or it was reset.
    pub ecc_uncorrected: Option<u64>,
    /// A row of its memory (a page, before Ampere) is to be replaced at its next reset.
    pub remap_pending: Option<bool>,
    /// A row could not be replaced.
    pub remap_failed: Option<bool>,
    /// Links to other GPUs and switches that are up.
    pub nvlinks_up: Option<u32>,
    /// Replays, recoveries and checksum errors of all of them: a counter.
    pub nvlink_errors: Option<u64>,
    /// Its temperature in degrees Celsius.
    pub temperature_c: Option<u32>,
    /// From here on it slows itself down.
    pub slowdown_c: Option<u32>,
    /// Here it switches itself off.
    pub shutdown_c: Option<u32>,
    /// Why its clocks are held down by the hardware; empty: they are not.
    pub throttled: Vec<String>,
    /// What its driver asks for, where it says so.
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

/// What the GPU of a device goes by.
pub fn gpu_key(device: &GpuDevice) -> &str {
    device.pci_address.as_deref().unwrap_or(&device.id)
}
