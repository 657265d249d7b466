//! One allocation on this node: the task that executes the driver's commands, and holds the
//! connection to the shim.
//!
//! ```text
//!   driver ──Command──▶ AllocationTask ──ToShim──▶ shim
//!          ◀──Event────      │  ▲     ◀─FromShim──
//!                      ToHead│  │ToPart
//!                            ▼  │
//!                     heads of launches, here or over the mesh
//! ```
//!
//! Any command may be repeated, and the shim may already exist: after a restart of the agent
//! nothing shows whether an action was done. If the shim's socket is gone, so are the shim and its
//! processes.
//!
//! | task | ends | queues |
//! |---|---|---|
//! | `AllocationTask`, one per allocation | with the allocation | commands, bounded by `lattice_registry` |
//! | the prologue, at most one per allocation | when it is over, or with the allocation's task | its result |
//! | probes; checks of exposed ports; the warning before walltime ends | with the allocation's task | |
//! | a lane's call to the quorum, at most one per lane | when it is answered, or with the allocation's task | one command to the allocation's task |
//! | one that waits for the entry point's launch | with the launch | one command to the allocation's task |
//! | one at the end of walltime | when it has reported to the driver, after the grace at most | |
//! | a preemption or a replica's leaving, one per request | when it has reported to the driver, or the work is being ended | |
//! | one that reaps a shim, one per shim that this agent started | with the shim | |
//!
//! Tasks that end with the allocation's task are aborted with it. All others, and the allocation's
//! task itself, are in [`handles::Handles::tasks`].

pub mod adoption;
pub mod handles;
pub mod lane_quorum;
pub mod latencies;
pub mod node_environment;
pub mod preemption;
#[cfg(any(test, feature = "test-builders"))]
pub mod test_builders;

mod draining;
mod final_usage;
mod find;
mod link;
mod local_launch;
mod open_ports;
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

/// The task of `share`'s allocation; begins one if there is none.
pub fn ensure(context: &Shared, share: &DesiredShare) -> AllocationHandle {
    context.allocations.ensure(&context.setup.state_dir, share, |ends| task::begin(context, ends))
}
