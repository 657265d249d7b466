//! The machine's topology for programs that use hwloc, read once and given to the ranks
//! (`HWLOC_XMLFILE`). Otherwise each MPI rank reads it in its init, including the configuration of
//! PCI devices.
//!
//! `lattice-agent hwloc-xml` reads it in a process of its own. Launches that start before the file
//! exists do not get it, and discover the topology themselves.
//!
//! The file has version 1 of hwloc's format, which hwloc 1 and 2 both read. Only allocations of
//! whole nodes get it: hwloc 1 does not ask what is allowed and would take the whole machine. The
//! separate process keeps the library and libxml2 out of the agent, and is killed after a minute if
//! it hangs. The file of an earlier run of the agent stays until it is replaced, because running
//! ranks have its path.

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

/// The file's name among the allocations' topology files. No other program uses this name.
pub const FILE: &str = "lattice-hwloc.xml";
/// Timeout of reading the machine.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of the checks whether the reading is done.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Components that hwloc leaves out, because they open devices or ask drivers.
const COMPONENTS: &str = "-gl,-opencl,-cuda,-nvml,-rsmi,-levelzero";
/// A user who sets one of these has chosen hwloc's source already.
const USERS_OWN: [&str; 3] = ["HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT"];
/// These tell hwloc that the file describes this machine, and that it must still ask the kernel
/// what may be used.
const THIS_MACHINE: [&str; 2] = ["HWLOC_THISSYSTEM", "HWLOC_THISSYSTEM_ALLOWED_RESOURCES"];

/// The file, and whether new launches get its path.
#[derive(Clone, Debug)]
pub struct Export {
    path: PathBuf,
    offered: Arc<AtomicBool>,
}

impl Export {
    /// The export of an agent with this state folder, not offered yet. A file of an earlier run
    /// stays until it is replaced: living ranks have its path, and may still start programs.
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join("topology").join(FILE), offered: Arc::default() }
    }

    /// Writes the file so that it appears complete, and offers it from then on. Takes tens of
    /// milliseconds, in another process.
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

    /// Sets the variables for a launch's ranks on this node. Not for a part of a node: hwloc 1
    /// would take the whole machine.
    pub fn add_environment(&self, env: &mut BTreeMap<String, String>, share: &DesiredShare, topology: &NodeTopology) {
        // The variables may come from the launch that submitted this one, perhaps on another node.
        if env.get("HWLOC_XMLFILE").is_some_and(|path| Path::new(path).file_name().is_some_and(|name| name == FILE)) {
            env.remove("HWLOC_XMLFILE");
            THIS_MACHINE.iter().for_each(|name| drop(env.remove(*name)));
        }
        let whole = usize::try_from(share.resources.cores).is_ok_and(|cores| cores >= topology.cpu.cpus().len());
        if !whole || USERS_OWN.iter().any(|name| env.contains_key(*name)) || !self.offered.load(Ordering::Relaxed) {
            return;
        }
        env.insert("HWLOC_XMLFILE".to_owned(), self.path.display().to_string());
        for name in THIS_MACHINE {
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
            None if began.elapsed() > EXPORT_TIMEOUT => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::other(format!("reading the machine took longer than {} s", EXPORT_TIMEOUT.as_secs())));
            }
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::AllocationId;

    #[test]
    fn the_file_of_an_earlier_agent_stays_but_is_not_offered() {
        let dir = std::env::temp_dir().join(format!("lattice-hwloc-{}", std::process::id()));
        let export = Export::new(&dir);
        fs::create_dir_all(export.path.parent().unwrap()).unwrap();
        fs::write(&export.path, "of an agent before").unwrap();
        let share = lattice_model::test_builders::desired_share(AllocationId(uuid::Uuid::from_u128(1)));
        let environment = |of_the_launch_before: bool| {
            let mut env = BTreeMap::new();
            if of_the_launch_before {
                env.insert("HWLOC_XMLFILE".to_owned(), export.path.display().to_string());
            }
            export.add_environment(&mut env, &share, &NodeTopology::default());
            env
        };
        assert_eq!((environment(false), environment(true)), (BTreeMap::new(), BTreeMap::new()));
        assert!(export.path.exists(), "ranks of then may start programs yet");
        export.offered.store(true, Ordering::Relaxed);
        assert_eq!(environment(false)["HWLOC_XMLFILE"], export.path.display().to_string());
        fs::remove_dir_all(&dir).unwrap();
    }
}
