//! One allocation on this node: the task that does what the brain decided, and keeps the line to the shim.
//!
//! ```text
//!   driver ──Command──▶ AllocationTask ──ToShim──▶ shim
//!          ◀──Event────      │  ▲     ◀─FromShim──
//!                      ToHead│  │ToPart
//!                            ▼  │
//!                     heads of launches, here or over the mesh
//! ```
//!
//! Everything it is told to do may be told twice, and the shim may be there already: after a restart of the agent
//! nothing tells whether an action was done. When the shim's socket is gone, so is the shim, and what it ran.

pub mod adoption;
pub mod handles;
pub mod latencies;
pub mod node_environment;
pub mod preemption;

mod final_usage;
mod find;
mod link;
mod local_launch;
mod prepare;
mod probing;
mod signals;
mod task;
mod terminals;
mod undo;
mod walltime;

use crate::handles::Shared;
use lattice_model::DesiredShare;
use lattice_registry::AllocationHandle;

/// The task of `share`'s allocation, begun where there is none.
pub fn ensure(context: &Shared, share: &DesiredShare) -> AllocationHandle {
    context.workers.ensure(&context.setup.state_dir, share, |ends| task::begin(context, ends))
}
