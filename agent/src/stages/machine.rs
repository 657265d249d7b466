//! The machine's properties, and what it permits the agent to do.

use crate::doctor;
use crate::gpus::GpuWatching;
use crate::own_memory;
use lattice_agent_common::config::AgentConfig;
use lattice_machine::bounds;
use lattice_machine::data_plane::DataPlane;
use lattice_machine::devices::DeviceFilter;
use lattice_machine::hardware as machine;
use lattice_machine::hwloc;
use lattice_machine::mpirun;
use lattice_model::Resources;
use lattice_node::Brain;
use lattice_runtime::cgroup::Slice;
use lattice_runtime::cgroup::controllers::Controllers;

/// What was found on the machine.
pub struct Machine {
    /// The slice for scopes; `None`: there is no usable v2 tree.
    pub slice: Option<Slice>,
    pub controllers: Controllers,
    pub device_filter: DeviceFilter,
    pub hwloc: hwloc::Export,
    /// The resources that work may have.
    pub size: Resources,
    pub data: DataPlane,
}

impl Machine {
    /// Examines the machine, and gives `brain` its topology. `memory_bytes_max`: this process's
    /// limit, if it has one.
    pub async fn look(
        config: &AgentConfig,
        memory_bytes_max: Option<u64>,
        brain: &mut Brain,
        degraded: &mut Vec<String>,
    ) -> anyhow::Result<(Self, GpuWatching)> {
        let slice = usable_slice(config, degraded);
        let simulated = config.simulated_gpus.clone();
        let policy = config.health.gpu_policy.clone();
        let (found, gpus) = tokio::task::spawn_blocking(move || {
            let found = machine::look(&simulated);
            let gpus = GpuWatching::begin(&found.topology, simulated, policy);
            (found, gpus)
        })
        .await?;
        for lacking in &found.lacking {
            tracing::warn!(%lacking, "GPUs");
        }
        degraded.extend(doctor::gpu_shortcoming(&found));
        degraded.extend(doctor::gpu_memory(&found.topology).map(|why| format!("GPU memory: {why}")));
        brain.knows(found.topology.clone());
        let hwloc = hwloc::Export::new(&config.state_dir);
        if config.work.hwloc_xml {
            let export = hwloc.clone();
            tokio::task::spawn_blocking(move || {
                if let Err(error) = export.write() {
                    tracing::info!(%error, "no topology for hwloc: ranks read the machine themselves (`lattice-agent doctor`)");
                }
            });
        }
        let (controllers, unlimited) = bounds::controllers(config, slice.as_ref());
        for why in &unlimited {
            tracing::warn!("{why}");
        }
        degraded.extend(unlimited);
        own_memory::limit(memory_bytes_max, &controllers, degraded);
        if let Err(why) = mpirun::install(&config.state_dir) {
            tracing::warn!("{why}");
            degraded.push(why.to_string());
        }
        let device_filter = DeviceFilter::find(slice.as_ref(), &controllers);
        degraded.extend(device_filter.shortcoming(&found.topology.gpu));
        let size = machine::size(&found.topology, machine::memory_bytes(&found.topology.memory, config.cgroup.memory_reserved_bytes)?)?;
        let data = DataPlane::of(config, size.memory_bytes, degraded);
        Ok((Self { slice, controllers, device_filter, hwloc, size, data }, gpus))
    }
}

/// The slice for scopes, if this machine permits one; otherwise notes what is missing.
fn usable_slice(config: &AgentConfig, degraded: &mut Vec<String>) -> Option<Slice> {
    match doctor::probe_slice(&config.cgroup.root) {
        Ok(slice) => Some(slice),
        Err(why) => {
            tracing::warn!(%why, "no scopes: processes that leave their parents are not found again");
            degraded.push(format!("cgroup scopes: {why}"));
            None
        }
    }
}
