//! What is asked of each vendor about the load of its GPUs.

use lattice_model::gpu_load::GpuLoads;
use lattice_model::topology::{GpuDevice, GpuVendor};

/// One vendor's way of telling.
pub(super) trait Loads: Send {
    /// As labels say it.
    fn source(&self) -> &'static str;
    /// Whose GPUs it tells of.
    fn vendor(&self) -> GpuVendor;
    /// Asks for these devices, all of its vendor.
    fn read(&mut self, devices: &[&GpuDevice], loads: &mut GpuLoads);
    /// Lets go of what is held open.
    fn rest(&mut self);
}
