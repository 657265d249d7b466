//! The record of one lab cluster: `DIR/cluster.json`. It is all that `down` and the faults know of the cluster.

use crate::networks::Networks;
use crate::process::Identity;
use crate::small_disks::SmallDisk;
use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// The record's version; another one is refused.
const VERSION: u32 = 1;
/// Length limit of a Unix socket's path in bytes (`sun_path` without its NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The longest socket path below a run directory: `/n99/state/alloc/<uuid>-<epoch>/shim.sock`.
const SOCKET_TAIL_BYTES: usize = "/n99/state/alloc/".len() + 36 + 1 + 6 + "/shim.sock".len();

/// One cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// [`VERSION`].
    pub version: u32,
    /// The directory of configuration, logs, certificates and this record; absolute.
    pub dir: PathBuf,
    /// The directory of sockets and state: `dir`, or a short directory of the lab if `dir` is too long for a Unix
    /// socket.
    pub run_dir: PathBuf,
    /// The directory of the started binaries.
    pub binaries: PathBuf,
    /// The scopes' root below the cgroup v2 mount, without a leading slash.
    pub cgroup_root: String,
    /// The quorum's members.
    pub members: Vec<Member>,
    /// The nodes' agents.
    pub nodes: Vec<Node>,
    /// The daemons' own networks, if they have any.
    #[serde(default)]
    pub networks: Option<Networks>,
    /// File systems that the lab mounted.
    #[serde(default)]
    pub small_disks: Vec<SmallDisk>,
}

/// One member.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its id, from 1.
    pub id: u64,
    /// Its address for agents.
    pub service: String,
    /// Its address for members.
    pub raft: String,
    /// Its address for metrics.
    #[serde(default)]
    pub metrics: String,
    /// The process.
    pub daemon: Daemon,
}

/// One node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// `n1`, `n2`, ...
    pub id: String,
    /// The agent's API.
    pub socket: PathBuf,
    /// The address of its mesh for other agents (UDP).
    pub mesh: String,
    /// The address of its gossip for other agents (UDP).
    pub gossip: String,
    /// Its address for metrics.
    #[serde(default)]
    pub metrics: String,
    /// The address of its API on the network, if it serves one.
    #[serde(default)]
    pub api: String,
    /// The process.
    pub daemon: Daemon,
}

impl Node {
    /// The URL of its API on the network. `DIR/ca/ca.crt` has issued the certificate there.
    pub fn api_url(&self) -> String {
        format!("https://{}", self.api)
    }
}

/// How a daemon is started, and its present process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    /// Its name for people: `n1`, `member-1`.
    pub name: String,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments at every start.
    pub args: Vec<String>,
    /// The file of its output.
    pub log: PathBuf,
    /// The process that was last started.
    pub process: Option<Identity>,
}

impl Daemon {
    /// Whether it runs.
    pub fn alive(&self) -> bool {
        self.process.as_ref().is_some_and(Identity::alive)
    }
}

/// Holds `DIR/lock` until dropped: only one lab command at a time changes a cluster.
pub struct Lock(#[expect(dead_code, reason = "held for its drop")] Flock<File>);

impl Cluster {
    /// A record without daemons for `dir`, which is made absolute. The agents' sockets and state are below `agents` if
    /// that is given, else in `dir` if its name is short enough. Nothing is written yet.
    pub fn new(dir: &Path, agents: Option<&Path>, binaries: &Path) -> Result<Self> {
        let dir = std::path::absolute(dir).with_context(|| format!("{} cannot be made absolute", dir.display()))?;
        let Some(text) = dir.to_str() else { bail!("{} is not UTF-8", dir.display()) };
        if text.chars().any(|c| c.is_control() || c == '\'') {
            bail!("{text:?} contains a quote or a control character, which the environment file cannot carry");
        }
        let hash = short_hash(&dir);
        let short = format!("lattice-lab-{hash}");
        let candidates = match agents {
            Some(agents) => vec![std::path::absolute(agents)?.join(&short)],
            None => vec![dir.clone(), std::env::temp_dir().join(&short), Path::new("/tmp").join(&short)],
        };
        let fits = |d: &&PathBuf| d.as_os_str().len() + SOCKET_TAIL_BYTES <= SOCKET_PATH_BYTES_MAX;
        let Some(run_dir) = candidates.iter().find(fits).cloned() else {
            bail!(
                "a Unix socket's path may have {SOCKET_PATH_BYTES_MAX} bytes, of which the lab needs {SOCKET_TAIL_BYTES}: \
                 {} is too long; choose a shorter one",
                candidates[0].display()
            );
        };
        Ok(Self {
            version: VERSION,
            run_dir,
            binaries: binaries.to_owned(),
            cgroup_root: format!("lattice-lab/{hash}"),
            members: Vec::new(),
            nodes: Vec::new(),
            networks: None,
            small_disks: Vec::new(),
            dir,
        })
    }

    /// Reads the record of the cluster in `dir`.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("cluster.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                bail!("there is no lab cluster in {} (no cluster.json); `lattice-lab up --dir {}` makes one", dir.display(), dir.display())
            }
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let cluster: Self = serde_json::from_str(&text).with_context(|| format!("{} is not a lab's record", path.display()))?;
        if cluster.version != VERSION {
            bail!("{} is of version {}; this lab reads {VERSION}", path.display(), cluster.version);
        }
        Ok(cluster)
    }

    /// Writes the record; if this process is killed, the file is the old or the new one.
    pub fn save(&self) -> Result<()> {
        let new = self.dir.join("cluster.json.new");
        std::fs::write(&new, serde_json::to_vec_pretty(self)?).with_context(|| format!("cannot write {}", new.display()))?;
        std::fs::rename(&new, self.dir.join("cluster.json")).context("cannot rename cluster.json.new")
    }

    /// Takes the cluster's lock.
    pub fn lock(dir: &Path) -> Result<Lock> {
        let path = dir.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("there is no lab cluster in {}", dir.display()))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e);
        Ok(Lock(lock.with_context(|| format!("cannot lock {}", path.display()))?))
    }

    /// A node by its id.
    pub fn node(&self, id: &str) -> Result<&Node> {
        let known = || self.nodes.iter().map(|n| n.id.as_str()).collect::<Vec<_>>().join(", ");
        self.nodes.iter().find(|n| n.id == id).with_context(|| format!("there is no node {id:?} here; there are {}", known()))
    }

    /// A member by its id.
    pub fn member(&self, id: u64) -> Result<&Member> {
        let known = || self.members.iter().map(|m| m.id.to_string()).collect::<Vec<_>>().join(", ");
        self.members.iter().find(|m| m.id == id).with_context(|| format!("there is no member {id} here; there are {}", known()))
    }

    /// The small file system of a daemon.
    pub fn small_disk(&self, daemon: &str) -> Result<&SmallDisk> {
        self.small_disks.iter().find(|d| d.daemon == daemon).with_context(|| format!("{daemon} has no small file system of its own"))
    }

    /// Every daemon, agents first.
    pub fn daemons(&self) -> impl Iterator<Item = &Daemon> {
        self.nodes.iter().map(|n| &n.daemon).chain(self.members.iter().map(|m| &m.daemon))
    }

    /// The daemon with that name, mutable.
    pub fn daemon_mut(&mut self, name: &str) -> Option<&mut Daemon> {
        self.nodes.iter_mut().map(|n| &mut n.daemon).chain(self.members.iter_mut().map(|m| &mut m.daemon)).find(|d| d.name == name)
    }

    /// All directories of this cluster.
    pub fn folders(&self) -> Vec<&Path> {
        if self.run_dir == self.dir { vec![&self.dir] } else { vec![&self.dir, &self.run_dir] }
    }
}

fn short_hash(dir: &Path) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    dir.hash(&mut hasher);
    format!("{:08x}", hasher.finish() & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_folder_gets_a_short_one_for_its_sockets() {
        let near = Cluster::new(Path::new("/tmp/a"), None, Path::new("/b")).unwrap();
        assert_eq!(near.run_dir, near.dir);
        let far = Cluster::new(Path::new(&format!("/tmp/{}", "x".repeat(90))), None, Path::new("/b")).unwrap();
        assert_ne!(far.run_dir, far.dir);
        assert!(far.run_dir.as_os_str().len() + SOCKET_TAIL_BYTES <= SOCKET_PATH_BYTES_MAX);
        assert_ne!(near.cgroup_root, far.cgroup_root);
        assert!(Cluster::new(Path::new("/tmp/it's"), None, Path::new("/b")).is_err());
    }

    #[test]
    fn a_folder_without_a_record_is_refused() {
        let error = Cluster::load(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("no lab cluster in /nonexistent"), "{error}");
    }
}
