//! The machine's topology for programs that ask hwloc, read once and handed to the ranks (`HWLOC_XMLFILE`): an MPI rank reads it in its
//! init otherwise, PCI devices' configuration and all.
//!
//! `lattice-agent hwloc-xml` reads it, a process of its own: nothing of the library gets into the agent. Launches that begin before it is
//! there have none, and look for themselves.

use lattice_model::{DesiredShare, NodeTopology};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("topology").join(FILE)
}

/// Writes the file anew, whole or not at all. Takes tens of milliseconds, of another process.
pub fn write(state_dir: &Path) -> io::Result<()> {
    let path = file(state_dir);
    fs::DirBuilder::new().recursive(true).mode(0o711).create(state_dir.join("topology"))?;
    let part = path.with_extension("part");
    let done = ask(&part).and_then(|()| {
        fs::set_permissions(&part, fs::Permissions::from_mode(0o444))?;
        fs::rename(&part, &path)
    });
    if done.is_err() {
        // What an earlier agent wrote may be of a machine that has changed since.
        for file in [&part, &path] {
            let _ = fs::remove_file(file);
        }
    }
    done
}

/// Removes it, where it is not wanted any more.
pub fn remove(state_dir: &Path) -> io::Result<()> {
    match fs::remove_file(file(state_dir)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
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

/// Tells a launch's ranks on this node. Of a part of the node nothing is told: hwloc 1 would take the whole for theirs.
pub fn environment(env: &mut BTreeMap<String, String>, state_dir: &Path, share: &DesiredShare, topology: &NodeTopology) {
    // Of the launch that submitted this one, perhaps on another node.
    if env.get("HWLOC_XMLFILE").is_some_and(|path| Path::new(path).file_name().is_some_and(|name| name == FILE)) {
        env.remove("HWLOC_XMLFILE");
        AND_IT_IS_HERE.iter().for_each(|name| drop(env.remove(*name)));
    }
    let whole = usize::try_from(share.resources.cores).is_ok_and(|cores| cores >= topology.cpu.cpus().len());
    let path = file(state_dir);
    if !whole || USERS_OWN.iter().any(|name| env.contains_key(*name)) || !path.exists() {
        return;
    }
    env.insert("HWLOC_XMLFILE".to_owned(), path.display().to_string());
    for name in AND_IT_IS_HERE {
        env.entry(name.to_owned()).or_insert_with(|| "1".to_owned());
    }
}
