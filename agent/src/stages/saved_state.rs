//! The node's state on its disk.

use crate::journal::{Journal, Opened, StateDir};
use crate::recovery::{self, Unusable};
use crate::supervisor;
use anyhow::Context as _;
use lattice_agent_common::config::AgentConfig;
use lattice_model::{Boot, NodeId};
use lattice_node::Brain;
use lattice_runtime::identity;
use std::os::unix::fs::PermissionsExt;

/// The journal, and the state read from it.
pub struct SavedState {
    /// The machine's present boot.
    pub boot: Boot,
    pub journal: Journal,
    pub brain: Brain,
    /// Whether the machine has not been restarted since the journal was written.
    pub same_boot: bool,
}

impl SavedState {
    /// Reads the state. Also returns the lock that excludes other agents from the directory.
    pub fn read(config: &AgentConfig, me: &NodeId, unusable: Unusable, degraded: &mut Vec<String>) -> anyhow::Result<(StateDir, Self)> {
        std::fs::create_dir_all(&config.state_dir).with_context(|| format!("state_dir {}", config.state_dir.display()))?;
        std::fs::set_permissions(&config.state_dir, std::fs::Permissions::from_mode(0o711))?;
        supervisor::status("reading the node's state");
        let boot = identity::boot_id().context("the kernel's boot id")?;
        let state_dir = StateDir::take(&config.state_dir, &config.state_file())?;
        let opened = recovery::open(&state_dir, &config.state_dir, me, boot, unusable, degraded)?;
        let Opened { journal, brain, same_boot, torn_bytes } = opened;
        if torn_bytes > 0 {
            tracing::warn!(
                torn_bytes,
                "the end of the journal is not whole: an append was cut short by a crash, or the machine went down before it was on the disk; nothing that \
                 was reported is lost"
            );
        }
        if !same_boot {
            tracing::warn!("the machine was restarted: what ran before is lost and reported so");
        }
        Ok((state_dir, Self { boot, journal, brain, same_boot }))
    }
}
