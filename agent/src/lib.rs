//! The agent: the I/O around the node's brain, and the roles that its configuration switches on.
//!
//! ```text
//!              ┌───────────────────────────── driver (a thread; owns Brain and journal) ◀── Event, bounded 1024
//!   session ───┤  reports, node view (watch)            │ Command, bounded 256 each
//!   (quorum)   └────────────────────────────────────────▼
//!                                    allocation tasks, one each ── Unix socket ── shims
//!   membership (UDP), facts about nodes     ▲ ToHead / ToPart
//!   cluster (watch on the quorum)    launch heads and their part tasks ── mesh (QUIC) ── other agents
//!   placing (scheduler's role)       meshd: parts, output and launches for others
//!   health, gpus (look at the machine): what keeps work off, what is offered
//!   gpu_loads (a thread): the GPUs' load
//!   measuring (a thread, with programs in the kernel), metrics (/metrics, push), hangs: use by work, the agent's state
//!   checkpoint: sightings (which processes catch a signal); at the holder of the default queue's lease, broker and
//!   retention
//!   audit: what audited work opens and connects to, from the kernel's buffer
//!   traces: carries audits, and all measurements of work in debug mode, to the log store
//!   service (lattice.v1 on the agent's socket), edge (the same and REST on the network), identity (whom tokens identify)
//! ```
//!
//! Every queue is bounded; a latest value is in a `watch`. Each task is in one of two groups, or
//! ends with its owner: `Base::tasks`, each of which ends by itself once the agent stops, and
//! `Handles::tasks` (of allocations, launches, checkpoints, streams and requests), which end last.
//! The order of stopping (`stages::serving`): the API and its connections, the roles and the
//! session, the mesh, then the driver, which writes a last checkpoint, then the second group. Work
//! and shims stay.
//!
//! Every task and thread is awaited, except threads that ask a driver or the kernel, which may never
//! answer: those of `gpu_loads`, `adapters`, `mounts` and diagnosis (their number is bounded), and
//! those that reap a killed helper process.

mod audit;
pub mod dev;
pub mod doctor;
mod driver;
pub mod footprint;
mod gpus;
mod hangs;
mod job_mapping;
mod journal;
mod lane_reports;
mod metrics;
mod mounts;
pub mod own_memory;
pub mod recovery;
mod session;
mod slurm_names;
mod stages;
mod supervisor;
mod sweep;
mod unreported_health;

pub use lattice_agent_checkpoint::packers;

use crate::recovery::Unusable;
use crate::stages::Configured;
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_agent_common::config::AgentConfig;
use tokio_util::sync::CancellationToken;

/// Runs the agent until `stop`, or until it cannot continue. `unusable`: what to do with a state of a
/// newer version or of another node. `memory_bytes_max`: this process's memory limit, which is set
/// if the process has a cgroup of its own.
///
/// Boxed, because an `async fn` would be compiled again in each program that awaits it.
pub fn run(
    config: AgentConfig,
    unusable: Unusable,
    memory_bytes_max: Option<u64>,
    stop: CancellationToken,
) -> BoxFuture<'static, anyhow::Result<()>> {
    async move {
        let opened = Configured::new(config)?.open(unusable, memory_bytes_max, stop).await?;
        let adopted = opened.sweep().await?.adopt().await?;
        Box::pin(adopted.serve()).await.until_stopped().await
    }
    .boxed()
}
