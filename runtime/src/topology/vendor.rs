//! The interface to each vendor of GPUs.

use super::files::Files;
use super::pci::Pci;
use lattice_model::topology::{GpuDevice, GpuLink, GpuVendor};

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

/// Access to one vendor's GPUs.
pub(super) trait Vendor {
    /// The vendor of these GPUs.
    fn vendor(&self) -> GpuVendor;
    /// Reads the GPUs. An error says why that is not possible; the normal one is that the library is not installed.
    fn look(&self, files: &Files, pci: &Pci) -> Result<Found, String>;
}
