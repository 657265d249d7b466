//! `lattice dev`: a member, an agent and all roles in one process.

use std::path::PathBuf;
use tokio_util::sync::CancellationToken;

/// Runs until `stop`.
pub async fn run(dir: Option<PathBuf>, stop: CancellationToken) -> anyhow::Result<()> {
    let _ = (dir, stop);
    anyhow::bail!("being written")
}
