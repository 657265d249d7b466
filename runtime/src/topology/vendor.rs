//! The interface to each vendor of GPUs.

use super::files::Files;
use super::pci::Pci;
use lattice_model::topology::{GpuDevice, GpuLink, GpuVendor};
use nvml_wrapper::error::NvmlError;
use std::num::TryFromIntError;
use thiserror::Error;

/// The GPUs of one vendor. Indices count from 0 within it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) gpus: Vec<GpuDevice>,
    pub(super) links: Vec<GpuLink>,
    /// The driver, for people.
    pub(super) driver: String,
    /// Devices that do not answer, each with the remedy if one is known.
    pub(super) lacking: Vec<String>,
}

/// Why a vendor's GPUs cannot be discovered.
#[derive(Debug, Error)]
pub(super) enum VendorError {
    #[error("{0}")]
    Nvml(#[from] NvmlError),
    #[error("{0}")]
    LoadRocm(#[source] libloading::Error),
    #[error("{0}")]
    FindRocmFunction(#[source] libloading::Error),
    #[error("ROCm SMI cannot be initialised (status {status})")]
    BeginRocm { status: u32 },
    #[error("ROCm SMI cannot count its devices (status {status})")]
    CountRocm { status: u32 },
    #[error("{path} is no character device")]
    NoCharacterDevice { path: String },
    #[error("{0}")]
    DeviceNumber(#[from] TryFromIntError),
}

/// Discovers one vendor's GPUs.
pub(super) trait Vendor {
    /// The vendor of these GPUs.
    fn vendor(&self) -> GpuVendor;
    /// Reads the driver. The most frequent error is a library that is not installed.
    fn look(&self, files: &Files, pci: &Pci) -> Result<Found, VendorError>;
}
