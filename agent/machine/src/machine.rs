//! This node as the tasks of the agent see it.

use crate::bounds::Bounds;
use crate::conformance::Conformity;
use crate::data_plane::DataPlane;
use crate::devices::DeviceFilter;
use crate::fabric::Fabric;
use crate::facts::Facts;
use crate::gpu_loads::GpuReadings;
use crate::gpu_standings::GpuStandings;
use crate::health::Checks;
use crate::hooks::Hooks;
use crate::hwloc;
use crate::image_cache::ImageCache;
use lattice_model::NodeTopology;
use lattice_runtime::cgroup::Slice;
use std::sync::Arc;
use tokio::sync::watch;

/// What a node is made of, how it is, and what work finds there. Nothing in it changes but through the handles that it holds.
pub struct Machine {
    /// The slice for scopes; `None`: this machine has no usable v2 tree, and processes are found by their ancestry alone.
    pub slice: Option<Slice>,
    /// How much of this node an allocation's work may use.
    pub bounds: Bounds,
    /// How work is kept from GPUs that are not its own.
    pub device_filter: DeviceFilter,
    /// What this node is made of, with every GPU that it ever had in this life of the agent.
    pub topology: watch::Receiver<Arc<NodeTopology>>,
    /// The topology as hwloc has it, for ranks.
    pub hwloc: hwloc::Export,
    /// What the site runs before and after an allocation.
    pub hooks: Hooks,
    /// Images for work.
    pub images: ImageCache,
    /// Home, scratch, output and mounts.
    pub data: DataPlane,
    /// Keys for the fabric.
    pub fabric: Fabric,
    /// What its checks find.
    pub checks: Checks,
    /// What nodes say of themselves.
    pub facts: Facts,
    /// What is the matter with its GPUs.
    pub gpus: watch::Receiver<Arc<GpuStandings>>,
    /// How busy they are.
    pub gpu_readings: GpuReadings,
    /// What its software and firmware are.
    pub conformance: Conformity,
}

impl Machine {
    /// What this node is made of now.
    pub fn topology(&self) -> Arc<NodeTopology> {
        Arc::clone(&self.topology.borrow())
    }
}
