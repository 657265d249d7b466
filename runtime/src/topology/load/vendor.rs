//! The interface to each vendor for the load of its GPUs.

use lattice_model::gpu_load::GpuLoads;
use lattice_model::topology::{GpuDevice, GpuVendor};

/// Access to the load of one vendor's GPUs.
pub(super) trait Loads: Send {
    /// The source's name in labels.
    fn source(&self) -> &'static str;
    /// The vendor of these GPUs.
    fn vendor(&self) -> GpuVendor;
    /// Reads these devices, all of this vendor.
    fn read(&mut self, devices: &[&GpuDevice], loads: &mut GpuLoads);
    /// Closes what is held open.
    fn rest(&mut self);
}
