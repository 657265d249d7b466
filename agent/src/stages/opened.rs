//! The second stage: state, machine and sockets are ready.

use super::base::Base;
use super::connections::Connections;
use super::machine::Machine;
use super::saved_state::SavedState;
use super::swept::Swept;
use super::wiring::{Channels, Stores, Wiring};
use crate::gpus::GpuWatching;
use crate::supervisor;
use crate::sweep;
use lattice_machine::bounds::Bounds;
use lattice_machine::conformance::Conforming;
use lattice_machine::health::Checking;
use lattice_meshd::context::Context;
use lattice_model::AllocationId;
use lattice_node::Brain;
use lattice_runtime::failpoint::{self, Point};
use std::sync::Arc;

/// The node's state is read, the machine is examined, and all sockets are open.
pub struct Opened {
    pub(super) base: Base,
    pub(super) saved: SavedState,
    pub(super) machine: Machine,
    pub(super) gpus: GpuWatching,
    pub(super) connections: Connections,
}

impl Opened {
    /// Creates what the tasks share, and ends leftover work that the journal does not know.
    pub async fn sweep(self) -> anyhow::Result<Swept> {
        let Self { base, mut saved, machine, gpus, connections } = self;
        let (config, stop, tasks) = (&base.config, &base.stop, &base.tasks);
        tasks.spawn(base.credentials.clone().keep_current(connections.quorum.authority(), stop.child_token()));
        let stores = Stores::open(&base)?;
        let (checking, checks) = Checking::new(config.health.clone(), &base.me, &config.state_dir, stores.images.clone());
        let finds = checking.finds();
        tasks.spawn(checking.run(stop.child_token()));
        let (conforming, conformance) = Conforming::new(config.conformance.clone(), &base.me);
        tasks.spawn(conforming.run(stop.child_token()));
        let (channels, driver_ends) = Channels::new(config.checkpoint.storage_bytes_per_second);
        let Machine { slice, controllers, device_filter, hwloc, size, data } = machine;
        let shim = config.shim_program()?;
        let bounds = Bounds::new(config, controllers, size, &gpus.topology().borrow().memory)?;
        let (spools, traces) = (stores.spools.clone(), stores.traces.clone());
        let wiring = Wiring {
            base: &base,
            gpus: &gpus,
            connections: &connections,
            channels: &channels,
            slice,
            bounds,
            size,
            checks,
            conformance,
            stores,
        };
        let context = Arc::new(wiring.context(shim, device_filter, hwloc, data)?);
        supervisor::status("recovering the node's work");
        let (loader, in_kernel) = (context.work.measuring.clone(), config.measuring.kernel_probes);
        let loading = tokio::task::spawn_blocking(move || loader.load(in_kernel));
        let (sweeper, brain) = (Arc::clone(&context), saved.brain);
        saved.brain = tokio::task::spawn_blocking(move || without_strays(&sweeper, brain)).await?;
        loading.await?;
        failpoint::pass(Point::StraysSwept);
        tasks.spawn(connections.fabric.clone().revoke(stop.child_token()));
        Ok(Swept { base, saved, gpus, size, connections, channels, driver_ends, context, spools, traces, finds })
    }
}

/// Ends work that the journal does not know. The brain holds the shares of work that does not end.
fn without_strays(context: &Context, mut brain: Brain) -> Brain {
    let alive = sweep::strays(context, &brain);
    if !alive.is_empty() {
        let ids: Vec<String> = alive.iter().map(AllocationId::short).collect();
        let text = format!(
            "work of allocation {} does not end: its resources stay held; end its processes, and restart the agent",
            ids.join(", ")
        );
        context.work.problems.set("work of an earlier agent process", text);
    }
    brain.set_unswept(alive);
    brain
}
