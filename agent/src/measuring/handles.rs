//! What is measured of this node, and by what others are asked.

use crate::allocations::Allocations;
use crate::bounds::Bounds;
use crate::gpu_loads::GpuReadings;
use crate::gpu_standings::GpuStandings;
use crate::mesh::Mesh;
use crate::node_view::NodeView;
use crate::traces::Traces;
use crate::troubles::Troubles;
use lattice_model::{NodeId, NodeTopology};
use lattice_runtime::cgroup::Slice;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// What measuring needs of its node.
pub struct Handles {
    /// This node.
    pub me: NodeId,
    /// Where what outlives this agent is kept.
    pub state_dir: PathBuf,
    pub slice: Option<Slice>,
    pub bounds: Bounds,
    /// The allocations on this node.
    pub workers: Allocations,
    /// What the driver says of this node.
    pub view: watch::Receiver<Arc<NodeView>>,
    pub topology: watch::Receiver<Arc<NodeTopology>>,
    pub gpus: watch::Receiver<Arc<GpuStandings>>,
    pub gpu_readings: GpuReadings,
    pub traces: Traces,
    pub troubles: Troubles,
    pub mesh: Mesh,
}
