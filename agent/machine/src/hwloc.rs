//! The machine's topology for programs that ask hwloc, read once and handed to the ranks (`HWLOC_XMLFILE`): an MPI rank reads it in its
//! init otherwise, PCI devices' configuration and all.
//!
//! `lattice-agent hwloc-xml` reads it, a process of its own: nothing of the library gets into the agent. Launches that begin before it is
//! there have none, and look for themselves.
//!
//! Version 1 of hwloc's format, which hwloc 1 and 2 both read. Whole nodes only: hwloc 1 does not
//! ask what is allowed and would take the whole machine. A process of its own keeps the library and
//! libxml2 out of the agent, and one that hangs is ended after a minute. The file of an earlier
//! agent stays until it is written anew, because running ranks have its path.

use lattice_model::{DesiredShare, NodeTopology};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Its name among the allocations' topology files. No other program's is called so: what has it, is one of ours.
pub const FILE: &str = "lattice-hwloc.xml";
/// How long reading the machine may take.
const TAKES_MAX: Duration = Duration::from_secs(60);
/// Between two looks at whether it is done.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What hwloc is to leave out: what opens devices, or asks their drivers.
const COMPONENTS: &str = "-gl,-opencl,-cuda,-nvml,-rsmi,-levelzero";
/// Who sets one of these has told hwloc what to look at.
const USERS_OWN: [&str; 3] = ["HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT"];
/// That the file is of the machine that it is read on, and that what may be used there is to be asked anew.
const AND_IT_IS_HERE: [&str; 2] = ["HWLOC_THISSYSTEM", "HWLOC_THISSYSTEM_ALLOWED_RESOURCES"];

/// The file, and whether launches that begin now are told of it.
#[derive(Clone, Debug)]
pub struct Export {
    path: PathBuf,
    offered: Arc<AtomicBool>,
}

impl Export {
    /// That of an agent with these files, not offered. What an earlier agent wrote stays where it is until it is written anew: ranks
    /// that live have its path, and may start programs yet.
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join("topology").join(FILE), offered: Arc::default() }
    }

    /// Writes it anew, whole or not at all, and offers it from then on. Takes tens of milliseconds, of another process.
    pub fn write(&self) -> io::Result<()> {
        let part = self.path.with_extension("part");
        fs::DirBuilder::new().recursive(true).mode(0o711).create(self.path.parent().unwrap_or(Path::new("/")))?;
        let done = ask(&part).and_then(|()| {
            fs::set_permissions(&part, fs::Permissions::from_mode(0o444))?;
            fs::rename(&part, &self.path)
        });
        match done {
            Ok(()) => self.offered.store(true, Ordering::Relaxed),
            Err(_) => drop(fs::remove_file(&part)),
        }
        done
    }

    /// Tells a launch's ranks on this node. Of a part of the node nothing is told: hwloc 1 would take the whole for theirs.
    pub fn tell(&self, env: &mut BTreeMap<String, String>, share: &DesiredShare, topology: &NodeTopology) {
        // Of the launch that submitted this one, perhaps on another node.
        if env.get("HWLOC_XMLFILE").is_some_and(|path| Path::new(path).file_name().is_some_and(|name| name == FILE)) {
            env.remove("HWLOC_XMLFILE");
            AND_IT_IS_HERE.iter().for_each(|name| drop(env.remove(*name)));
        }
        let whole = usize::try_from(share.resources.cores).is_ok_and(|cores| cores >= topology.cpu.cpus().len());
        if !whole || USERS_OWN.iter().any(|name| env.contains_key(*name)) || !self.offered.load(Ordering::Relaxed) {
            return;
        }
        env.insert("HWLOC_XMLFILE".to_owned(), self.path.display().to_string());
        for name in AND_IT_IS_HERE {
            env.entry(name.to_owned()).or_insert_with(|| "1".to_owned());
        }
    }
}

fn ask(part: &Path) -> io::Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .arg("hwloc-xml")
        .env_clear()
        .env("HWLOC_COMPONENTS", COMPONENTS)
        .stdin(Stdio::null())
        .stdout(File::create(part)?)
        .stderr(Stdio::null())
        .spawn()?;
    let began = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(io::Error::other(format!("reading the machine ended with {status}"))),
            None if began.elapsed() > TAKES_MAX => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::other(format!("reading the machine took longer than {} s", TAKES_MAX.as_secs())));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::AllocationId;

    #[test]
    fn what_an_earlier_agent_wrote_is_kept_and_told_to_nobody() {
        let dir = std::env::temp_dir().join(format!("lattice-hwloc-{}", std::process::id()));
        let export = Export::new(&dir);
        fs::create_dir_all(export.path.parent().unwrap()).unwrap();
        fs::write(&export.path, "of an agent before").unwrap();
        let share = lattice_model::test_builders::desired_share(AllocationId(uuid::Uuid::from_u128(1)));
        let told = |of_the_launch_before: bool| {
            let mut env = BTreeMap::new();
            if of_the_launch_before {
                env.insert("HWLOC_XMLFILE".to_owned(), export.path.display().to_string());
            }
            export.tell(&mut env, &share, &NodeTopology::default());
            env
        };
        assert_eq!((told(false), told(true)), (BTreeMap::new(), BTreeMap::new()));
        assert!(export.path.exists(), "ranks of then may start programs yet");
        export.offered.store(true, Ordering::Relaxed);
        assert_eq!(told(false)["HWLOC_XMLFILE"], export.path.display().to_string());
        fs::remove_dir_all(&dir).unwrap();
    }
}
