//! The conditions of a measurement.

use anyhow::{Context, Result, bail, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::interrupt;
use lattice_lab::lattice::{Lattice, rows, text};
use lattice_lab::machine::is_without_journal;
use lattice_lab::process::until;
use std::time::Duration;

/// A note that creating files is slow here, and why. A launch creates two files for each rank.
pub(super) fn slow_files(cluster: &Cluster) -> Option<String> {
    is_without_journal(&cluster.run_dir).then(|| {
        let at = cluster.run_dir.display();
        format!(
            "agents' files are on an ext4 without a journal ({at}), where recently deleted files slow down each new file: see --agents-dir"
        )
    })
}

/// Submits an allocation of this many nodes for the measurements, and waits until it runs.
pub(super) fn hold(lattice: &Lattice, nodes: u32) -> Result<String> {
    let nodes = nodes.to_string();
    let held =
        lattice.ok(&["submit", "-o", "name", "--name", "held", "--nodes", &nodes, "--walltime", "1h", "--", "/bin/sleep", "3600"])?;
    let held = held.trim().to_owned();
    wait_running(lattice, &held)?;
    Ok(held)
}

/// Waits until no node has work, so that the end of one measurement does not slow the next.
pub(super) fn wait_all_free(lattice: &Lattice) -> Result<()> {
    let is_free = |node: &serde_json::Value| node["allocations"].as_array().is_some_and(Vec::is_empty);
    let are_free = until(Duration::from_secs(30), || {
        interrupt::came().is_some()
            || lattice.json(&["nodes"]).is_ok_and(|answer| rows(&answer, "nodes").is_some_and(|nodes| nodes.iter().all(is_free)))
    });
    interrupt::check()?;
    ensure!(are_free, "nodes are not free 30 s after the last end");
    Ok(())
}

/// The cores of all nodes together.
pub(super) fn all_cores(lattice: &Lattice) -> Result<u32> {
    let answer = lattice.json(&["nodes"])?;
    let nodes = rows(&answer, "nodes").context("`lattice nodes -o json` is not a list")?;
    let of = |node: &serde_json::Value| node["cores"].as_u64().with_context(|| format!("a node without its number of cores: {node}"));
    let cores: u64 = nodes.iter().map(of).sum::<Result<u64>>()?;
    Ok(u32::try_from(cores)?)
}

pub(super) fn wait_running(lattice: &Lattice, id: &str) -> Result<()> {
    let mut now = serde_json::Value::Null;
    let running = until(Duration::from_secs(15), || {
        now = lattice.allocation(id).unwrap_or_default();
        text(&now, "state") == "Running" || interrupt::came().is_some()
    });
    interrupt::check()?;
    if running { Ok(()) } else { bail!("the allocation for the measurements does not run: {now}") }
}
