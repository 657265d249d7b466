//! The parts of the agent that measuring needs.

use crate::traces::Traces;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_agent_common::node_view::NodeView;
use lattice_machine::bounds::Bounds;
use lattice_machine::gpu_loads::GpuReadings;
use lattice_machine::gpu_statuses::GpuStatuses;
use lattice_mesh::Mesh;
use lattice_model::{NodeId, NodeTopology};
use lattice_registry::Allocations;
use lattice_runtime::cgroup::Slice;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

pub struct Handles {
    /// This node's id.
    pub me: NodeId,
    /// The agent's state folder.
    pub state_dir: PathBuf,
    pub slice: Option<Slice>,
    pub bounds: Bounds,
    /// The allocations on this node.
    pub allocations: Allocations,
    /// The driver's view of this node.
    pub view: watch::Receiver<Arc<NodeView>>,
    pub topology: watch::Receiver<Arc<NodeTopology>>,
    pub gpus: watch::Receiver<Arc<GpuStatuses>>,
    pub gpu_readings: GpuReadings,
    pub traces: Traces,
    pub problems: NodeProblems,
    pub mesh: Mesh,
}
