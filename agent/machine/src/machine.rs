//! This node as the tasks of the agent see it.

use crate::bounds::Bounds;
use crate::conformance::Conformity;
use crate::data_plane::DataPlane;
use crate::devices::DeviceFilter;
use crate::fabric::Fabric;
use crate::facts::Facts;
use crate::gpu_loads::GpuReadings;
use crate::gpu_statuses::GpuStatuses;
use crate::health::Checks;
use crate::hooks::Hooks;
use crate::hwloc;
use crate::image_cache::ImageCache;
use lattice_model::NodeTopology;
use lattice_runtime::cgroup::Slice;
use std::sync::Arc;
use tokio::sync::watch;

/// The hardware of a node, its condition, and the resources for work on it. Everything that changes
/// is behind handles.
pub struct Machine {
    /// The slice for scopes. `None`: there is no usable cgroup v2 tree; processes are found by
    /// their ancestry.
    pub slice: Option<Slice>,
    /// The limits of allocations' work on this node.
    pub bounds: Bounds,
    /// Denies work the GPUs that are not its own.
    pub device_filter: DeviceFilter,
    /// The node's topology, with every GPU that it has had in this run of the agent.
    pub topology: watch::Receiver<Arc<NodeTopology>>,
    /// The topology in hwloc's format, for ranks.
    pub hwloc: hwloc::Export,
    /// The site's programs before and after an allocation.
    pub hooks: Hooks,
    /// The image cache.
    pub images: ImageCache,
    /// Home, scratch, output and mounts.
    pub data: DataPlane,
    /// Keys for the fabric.
    pub fabric: Fabric,
    /// The results of the node's health checks.
    pub checks: Checks,
    /// The facts of this node and of others.
    pub facts: Facts,
    /// The state of the GPUs.
    pub gpus: watch::Receiver<Arc<GpuStatuses>>,
    /// The load of the GPUs.
    pub gpu_readings: GpuReadings,
    /// The versions of software and firmware.
    pub conformance: Conformity,
}

impl Machine {
    /// The present topology.
    pub fn topology(&self) -> Arc<NodeTopology> {
        Arc::clone(&self.topology.borrow())
    }
}
