//! The agent: the I/O around the node's brain, and the roles that its configuration switches on.
//!
//! ```text
//!              ┌───────────────────────────── driver (a thread; owns Brain and journal) ◀── Event, bounded 1024
//!   session ───┤  reports, node view (watch)            │ Command, bounded 256 each
//!   (quorum)   └────────────────────────────────────────▼
//!                                    allocation tasks, one each ── Unix socket ── shims
//!   membership (UDP), facts (what it says)  ▲ ToHead / ToPart
//!   cluster (watch on the quorum)    launch heads and their part tasks ── mesh (QUIC) ── other agents
//!   placing (scheduler's role)       meshd: parts, output and launches for others
//!   health, gpus (looks at the machine): what keeps work off, what is offered
//!   gpu_loads (a thread): how busy the GPUs are
//!   measuring (a thread, with programs in the kernel), metrics (/metrics, push), hangs: what work uses, whether it stands still, how the agent is
//!   checkpoint: sightings (who catches a signal); where the default queue's lease is, broker and retention
//!   audit: what work in audit mode opens and whom it connects to, from the kernel's buffer
//!   traces: that, and every look at work in debug mode, on their way into the log store
//!   service (lattice.v1 on the agent's socket)
//! ```
//!
//! Every queue is bounded; what is the latest value travels in a `watch`. Stopping, in order: the API, the roles, the
//! session and the mesh, then the driver, which writes a last checkpoint. Work and shims stay.

mod adapters;
mod adoption;
mod alerting;
mod allocation;
mod allocations;
mod audit;
mod bounds;
mod checkpoint;
mod clock;
mod cluster;
pub mod config;
pub mod conformance;
mod context;
mod data_plane;
pub mod dev;
mod devices;
mod diagnosis;
mod diagnosis_slots;
mod disk;
pub mod doctor;
mod driver;
mod entry;
mod environment;
mod fabric;
mod facts;
mod features;
mod file_system;
pub mod footprint;
mod gossip_keys;
mod gpu_loads;
mod gpu_standings;
mod gpus;
mod growth;
mod hangs;
mod hatch;
pub mod health;
mod hooks;
mod hwloc;
mod image_cache;
mod job_mapping;
mod journal;
mod kernel_counts;
mod latencies;
mod launch;
pub mod limits;
pub mod log_store;
mod logs;
mod machine;
mod measuring;
mod membership;
pub mod mesh;
mod meshd;
mod metrics;
mod monitoring;
mod mounts;
mod node_environment;
mod node_view;
mod output_index;
pub mod own_memory;
mod peers;
mod places;
mod placing;
mod pmix;
mod preemption;
mod questions;
mod quorum_list;
mod readiness;
pub mod recovery;
mod relay;
mod revocations;
mod service;
mod session;
mod session_state;
mod signalling;
mod spool;
mod stages;
mod supervisor;
mod sweep;
mod terminal;
mod traces;
mod troubles;
mod unheard;
mod unsupported;
mod user_shares;
mod wipe;
mod words;

pub use checkpoint::packers;

use crate::config::AgentConfig;
use crate::recovery::Unusable;
use crate::stages::Configured;
use tokio_util::sync::CancellationToken;

/// Runs the agent until `stop`, or until it cannot go on. `unusable`: what to do with a state of a newer version or of
/// another node. `memory_bytes_max`: how much memory this process may have, where it lies in a cgroup of its own.
pub async fn run(config: AgentConfig, unusable: Unusable, memory_bytes_max: Option<u64>, stop: CancellationToken) -> anyhow::Result<()> {
    let opened = Configured::new(config)?.open(unusable, memory_bytes_max, stop).await?;
    opened.sweep().await?.adopt().await?.serve().await.until_stopped().await
}
