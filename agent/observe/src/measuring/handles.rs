//! What is measured of this node, and by what others are asked.

use crate::traces::Traces;
use lattice_agent_common::node_view::NodeView;
use lattice_agent_common::troubles::Troubles;
use lattice_machine::bounds::Bounds;
use lattice_machine::gpu_loads::GpuReadings;
use lattice_machine::gpu_standings::GpuStandings;
use lattice_mesh::Mesh;
use lattice_model::{NodeId, NodeTopology};
use lattice_registry::Allocations;
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
