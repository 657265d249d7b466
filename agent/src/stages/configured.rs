//! The first stage: the settings are usable.

use super::base::Base;
use super::connections::Connections;
use super::machine::Machine;
use super::opened::Opened;
use super::saved_state::SavedState;
use crate::recovery::Unusable;
use anyhow::{Context as _, bail};
use lattice_agent_common::config::AgentConfig;
use lattice_gossip::Key;
use lattice_model::NodeId;
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_runtime::failpoint::{self, Point};
use std::os::unix::fs::PermissionsExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Usable settings, and this agent's credentials.
pub struct Configured {
    config: AgentConfig,
    me: NodeId,
    credentials: Credentials,
    gossip_key: Key,
    degraded: Vec<String>,
}

impl Configured {
    /// Checks the settings, and reads certificate and key.
    pub fn new(config: AgentConfig) -> anyhow::Result<Self> {
        config.validate()?;
        let me = config.node()?;
        let credentials = Credentials::open(&config.tls, &config.certificate_file()).context("tls")?;
        let own = credentials.material().borrow().own.clone();
        if own.name != me.as_str() {
            bail!("tls.cert is the certificate of {:?}, the configured node_id is {me}: issue one for this node", own.name);
        }
        if own.role == Role::Node && !config.roles.is_empty() {
            bail!(
                "tls.cert is of role node, which suffices to run work and for none of the configured roles: set `roles: []`, or issue a certificate of role api"
            );
        }
        let mut degraded = Vec::new();
        arm_failpoint(&config, &mut degraded)?;
        let gossip_key = read_gossip_key(&config)?;
        Ok(Self { config, me, credentials, gossip_key, degraded })
    }

    /// Reads the node's state, examines the machine, and opens the sockets.
    pub async fn open(self, unusable: Unusable, memory_bytes_max: Option<u64>, stop: CancellationToken) -> anyhow::Result<Opened> {
        let Self { config, me, credentials, gossip_key, mut degraded } = self;
        let (state_dir, mut saved) = SavedState::read(&config, &me, unusable, &mut degraded)?;
        let (machine, gpus) = Machine::look(&config, memory_bytes_max, &mut saved.brain, &mut degraded).await?;
        let life = saved.journal.life();
        let tasks = TaskTracker::new();
        let connections = Connections::open(&config, &credentials, gossip_key, life, &tasks, &stop, &mut degraded).await?;
        let base = Base { config, me, credentials, degraded, stop, tasks, state_dir };
        Ok(Opened { base, saved, machine, gpus, connections })
    }
}

/// For the crash test only: no site's configuration lets work run as root.
fn arm_failpoint(config: &AgentConfig, degraded: &mut Vec<String>) -> anyhow::Result<()> {
    let Ok(name) = std::env::var(failpoint::VARIABLE) else { return Ok(()) };
    if !config.work.allow_root {
        bail!("{} is set: it is for tests, with work.allow_root; unset it", failpoint::VARIABLE);
    }
    let point: Point = name.parse().with_context(|| failpoint::VARIABLE)?;
    tracing::warn!(%point, "this agent kills itself when it comes to this point: {} is set", failpoint::VARIABLE);
    degraded.push(format!("failpoint {point}: this agent kills itself there; unset {} and start it again", failpoint::VARIABLE));
    failpoint::arm(point);
    Ok(())
}

fn read_gossip_key(config: &AgentConfig) -> anyhow::Result<Key> {
    let path = &config.gossip.key_file;
    let text = std::fs::read_to_string(path).with_context(|| format!("gossip.key_file {}", path.display()))?;
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!("gossip.key_file {}: others can read it (mode {:o}); chmod 600", path.display(), mode & 0o777);
    }
    Key::from_hex(text.trim()).with_context(|| format!("gossip.key_file {}: 64 hexadecimal digits are needed", path.display()))
}
