//! What is asked of each vendor of GPUs.

use super::files::Files;
use super::pci::Pci;
use lattice_model::topology::{GpuDevice, GpuLink, GpuVendor};

/// What one vendor says of its GPUs. Indices count from 0 within it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) gpus: Vec<GpuDevice>,
    pub(super) links: Vec<GpuLink>,
    /// The driver, for people.
    pub(super) driver: String,
    /// Devices that do not answer, each with the remedy where one is known.
    pub(super) lacking: Vec<String>,
}

/// A vendor's way of telling about its GPUs.
pub(super) trait Vendor {
    /// Whose GPUs it tells of.
    fn vendor(&self) -> GpuVendor;
    /// Asks it. An error says why it cannot tell: that its library is not there is the normal one.
    fn look(&self, files: &Files, pci: &Pci) -> Result<Found, String>;
}
