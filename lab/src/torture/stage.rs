//! The cluster of a torture, and the files that its jobs need.

use super::job::Place;
use super::plan::{MEMBERS, NODES, SMALL_DISKS};
use crate::cluster::Cluster;
use crate::image;
use crate::lattice::Lattice;
use crate::machine::{Machine, memory_of};
use crate::up::{self, Options};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// MiB of each small disk: enough for everything that a torture writes, and quickly filled.
const SMALL_DISK_MIB: u32 = 192;

/// A cluster that is Ready.
#[derive(Clone, Debug)]
pub struct Stage {
    pub dir: PathBuf,
    pub place: Place,
    /// Memory in bytes and descriptors of each daemon when the cluster became Ready.
    pub at_first: BTreeMap<String, (u64, u64)>,
}

impl Stage {
    /// Makes the cluster in `dir`.
    pub fn make(dir: &Path, build: bool) -> Result<Self> {
        let machine = Machine::look();
        if !machine.root {
            bail!("a torture needs root: networks that can be cut, small disks");
        }
        let options = Options {
            build,
            netns: true,
            clocks: true,
            small_disks: SMALL_DISKS.iter().map(|daemon| ((*daemon).to_owned(), SMALL_DISK_MIB)).collect(),
            grace_seconds: 2,
            degraded_after_ms: 1_500,
            down_after_ms: 4_000,
            member_lines: "disk_reserve_bytes: 4194304\nsnapshot_entries: 500\n".to_owned(),
            ..Options::new(u32::try_from(NODES)?, u32::try_from(MEMBERS)?, dir)
        };
        let cluster = up::up(&options)?;
        let scripts = cluster.dir.join("scripts");
        std::fs::create_dir(&scripts).with_context(|| format!("cannot make {}", scripts.display()))?;
        let image = if machine.can_mount() { Some(cluster.dir.join("env.sqfs")) } else { None };
        if let Some(image) = &image {
            image::write(image, Path::new("/bin/true"))?;
        }
        let place = Place {
            lab: cluster.binaries.join("lattice-lab"),
            lattice: cluster.dir.join("bin/lattice"),
            traces: cluster.dir.join("traces"),
            image,
            scripts,
        };
        let at_first = cluster.daemons().filter_map(|d| Some((d.name.clone(), size_of(d.process.as_ref()?.pid)))).collect();
        Ok(Self { dir: cluster.dir, place, at_first })
    }

    /// The present record.
    pub fn cluster(&self) -> Result<Cluster> {
        Cluster::load(&self.dir)
    }

    /// The CLI, connected to the agent of the node with that number, or of the next one that runs.
    pub fn lattice(&self, number: u64) -> Result<Lattice> {
        let cluster = self.cluster()?;
        let from = usize::try_from(number.saturating_sub(1))?;
        let nodes = cluster.nodes.iter().cycle().skip(from).take(cluster.nodes.len());
        let node = nodes.into_iter().find(|n| n.daemon.alive()).context("no agent runs")?;
        Lattice::to(&cluster, &node.id)
    }
}

/// Memory in bytes and descriptors of a process.
pub fn size_of(pid: i32) -> (u64, u64) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count());
    (memory_of(pid).map_or(0, |(resident, _)| resident), u64::try_from(descriptors).unwrap_or(u64::MAX))
}
