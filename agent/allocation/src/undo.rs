//! Removes an allocation from this node: processes, scratch, scope, files. Its log files stay,
//! within the spool's limit, unless nothing was written.

use crate::handles::Handles;
use lattice_agent_checkpoint::DirectoryError;
use lattice_machine::data_plane::DataPlaneError;
use lattice_machine::fabric::FabricError;
use lattice_machine::hardware as machine;
use lattice_machine::mpirun;
use lattice_model::{AllocationId, DesiredShare, with_causes};
use lattice_runtime::cgroup::CgroupError;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{LogStream, ShimDir};
use lattice_runtime::{identity, process, stuck};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long killed processes may take to end before that is reported as a failure.
pub(super) const KILL_WAIT: Duration = Duration::from_secs(3);

/// The pause between two rounds of killing the processes below a shim.
const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// The signal's number on Linux.
const SIGKILL: i32 = 9;

/// Largest number of processes that a message names.
const PROCESSES_NAMED_MAX: usize = 4;

/// Why an allocation cannot be removed yet.
#[derive(Debug, Error)]
pub(super) enum UndoError {
    #[error("{}", with_causes(.0))]
    Cgroup(#[from] CgroupError),
    #[error("{processes}")]
    StillThere { processes: String },
    #[error(transparent)]
    Data(#[from] DataPlaneError),
    #[error(transparent)]
    CheckpointDirectory(#[from] DirectoryError),
    #[error("{}: {source}", .path.display())]
    RemoveFile { path: PathBuf, source: io::Error },
    #[error("its topology file: {0}")]
    RemoveTopology(#[source] io::Error),
    #[error("its hostfiles: {0}")]
    RemoveHostfiles(#[source] io::Error),
    #[error("{}", with_causes(.0))]
    Fabric(#[from] FabricError),
}

/// Kills all processes in the allocation's scope and waits until it is empty.
pub(super) fn kill_scope(context: &Handles, allocation: AllocationId) -> Result<(), UndoError> {
    let Some(slice) = &context.machine.slice else { return Ok(()) };
    let scopes = slice.scopes()?;
    let Some((_, scope)) = scopes.into_iter().find(|(id, _)| *id == allocation) else { return Ok(()) };
    scope.whole().kill()?;
    if scope.whole().wait_empty(KILL_WAIT)? {
        return Ok(());
    }
    Err(UndoError::StillThere { processes: still_there(&scope.whole().processes()) })
}

/// Kills all processes in the allocation's scope, and does not wait for their end.
pub(super) fn kill_scope_at_once(context: &Handles, allocation: AllocationId) -> Result<(), UndoError> {
    let Some(slice) = &context.machine.slice else { return Ok(()) };
    let scope = slice.scopes()?.into_iter().find(|(id, _)| *id == allocation);
    Ok(scope.map_or(Ok(()), |(_, scope)| scope.whole().kill())?)
}

/// Kills all processes below a shim, and then the shim: for a node without cgroups.
pub(super) fn kill_tree(shim: i32) -> Result<(), UndoError> {
    let until = Instant::now() + KILL_WAIT;
    // Each round reaches the processes that were forked during the previous round.
    while process::signal_descendants(shim, SIGKILL, |_| true) > 0 {
        if Instant::now() >= until {
            let left: Vec<i32> = identity::descendants(shim).into_iter().map(|(pid, _)| pid).collect();
            return Err(UndoError::StillThere { processes: still_there(&left) });
        }
        std::thread::sleep(KILL_INTERVAL);
    }
    process::signal_each([shim], SIGKILL);
    Ok(())
}

/// What is left of killed work.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The node has no cgroups, or the scope cannot be read.
    Unknown,
    Nothing,
    /// Processes, described for people.
    Processes(String),
}

/// The processes that are left of killed work.
pub(super) fn what_is_left(context: &Handles, allocation: AllocationId) -> Left {
    let Some(slice) = &context.machine.slice else { return Left::Unknown };
    match slice.scope(allocation).work().processes_or_error() {
        Ok(left) if left.is_empty() => Left::Nothing,
        Ok(left) => Left::Processes(still_there(&left)),
        Err(_) => Left::Unknown,
    }
}

fn still_there(left: &[i32]) -> String {
    let named: Vec<String> = left.iter().take(PROCESSES_NAMED_MAX).map(|pid| stuck::describe(*pid)).collect();
    let more = if left.len() > PROCESSES_NAMED_MAX { format!("; and {} more", left.len() - PROCESSES_NAMED_MAX) } else { String::new() };
    format!("killed processes are still there (in a call that cannot be interrupted?): {}{more}", named.join("; "))
}

/// Kills what is left, and removes scratch, scope and files. Fails while processes are left.
pub(super) fn undo(context: &Handles, share: &DesiredShare, dir: &ShimDir) -> Result<(), UndoError> {
    kill_scope(context, share.allocation)?;
    failpoint::pass(Point::ScopeKilled);
    context.machine.data.remove_scratch(share.allocation)?;
    failpoint::pass(Point::ScratchRemoved);
    context.checkpoint.checkpoints.remove(share)?;
    if let Some(slice) = &context.machine.slice {
        let scopes = slice.scopes()?;
        if let Some((_, scope)) = scopes.into_iter().find(|(id, _)| *id == share.allocation) {
            scope.whole().remove()?;
        }
    }
    failpoint::pass(Point::ScopeRemoved);
    context.machine.bounds.controllers.remove(share.allocation, KILL_WAIT)?;
    failpoint::pass(Point::LimitsRemoved);
    if !wrote_nothing(dir) {
        context.spools.note(share, &context.setup.me, dir);
    }
    failpoint::pass(Point::OutputNoted);
    let files = [
        (dir.socket(), Point::SocketRemoved),
        (dir.config(), Point::ConfigRemoved),
        (dir.exits(), Point::ExitsRemoved),
        (dir.living(), Point::IdentityRemoved),
        (dir.script(), Point::FilesRemoved),
        (dir.task_output(LogStream::Out), Point::FilesRemoved),
        (dir.task_output(LogStream::Err), Point::FilesRemoved),
        (dir.checkpoint(), Point::FilesRemoved),
    ];
    for (file, removed) in files {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(UndoError::RemoveFile { path: file, source: error }),
            Ok(()) | Err(_) => failpoint::pass(removed),
        }
    }
    machine::forget(&context.setup.state_dir, share.allocation, share.epoch).map_err(UndoError::RemoveTopology)?;
    mpirun::forget(&context.setup.state_dir, share.allocation, share.epoch).map_err(UndoError::RemoveHostfiles)?;
    context.machine.fabric.end(share.allocation, share.epoch)?;
    if wrote_nothing(dir) {
        // The directories of many short jobs without output would use up the inodes.
        fs::remove_dir_all(&dir.0).map_err(|source| UndoError::RemoveFile { path: dir.0.clone(), source })?;
    }
    context.spools.end(share, &context.setup.me, dir);
    context.spools.trim();
    Ok(())
}

/// Whether there is nothing to read: no output, no steps, and no messages of the shim or of hooks.
fn wrote_nothing(dir: &ShimDir) -> bool {
    let empty =
        |path: &Path| fs::symlink_metadata(path).map_or_else(|e| e.kind() == io::ErrorKind::NotFound, |m| m.is_file() && m.len() == 0);
    let silent = |launch: &Path| fs::read_dir(launch).is_ok_and(|mut files| files.all(|f| f.is_ok_and(|f| empty(&f.path()))));
    let Ok(mut launches) = fs::read_dir(dir.logs()) else { return false };
    launches.all(|l| l.is_ok_and(|l| silent(&l.path()))) && [dir.shim_log(), dir.hooks_log(), dir.steps()].iter().all(|file| empty(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::path::PathBuf;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lattice-undo-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("logs/0")).unwrap();
            Self(path)
        }

        fn log(&self, name: &str, bytes: &[u8]) -> File {
            let mut file = File::create(self.0.join("logs").join(name)).unwrap();
            file.write_all(bytes).unwrap();
            file
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_stopped_shim_is_killed_with_all_processes_below_it() {
        use std::os::unix::process::ExitStatusExt;
        let script = "(sleep 300 & wait) & sleep 300 & kill -STOP $$";
        let mut shim = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = shim.id().cast_signed();
        let until = Instant::now() + Duration::from_secs(60);
        while identity::descendants(pid).len() < 3 && Instant::now() < until {
            std::thread::sleep(KILL_INTERVAL);
        }
        let below: Vec<i32> = identity::descendants(pid).into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(below.len(), 3);
        kill_tree(pid).unwrap();
        assert_eq!(shim.wait().unwrap().signal(), Some(SIGKILL));
        assert!(below.iter().all(|pid| identity::process_stat(*pid).map_or(true, |stat| stat.zombie)));
    }

    #[test]
    fn a_directory_has_nothing_to_keep_only_if_nothing_was_written() {
        let dir = Dir::new("nothing");
        let shim = ShimDir(dir.0.clone());
        drop(dir.log("0/0.out", b""));
        fs::write(shim.shim_log(), "").unwrap();
        assert!(wrote_nothing(&shim));
        fs::write(shim.shim_log(), "why").unwrap();
        assert!(!wrote_nothing(&shim));
        fs::remove_file(shim.shim_log()).unwrap();
        assert!(wrote_nothing(&shim));
        fs::write(shim.steps(), "{}").unwrap();
        assert!(!wrote_nothing(&shim), "a launch began in it");
        fs::remove_file(shim.steps()).unwrap();
        drop(dir.log("0/0.err", b"x"));
        assert!(!wrote_nothing(&shim));
    }
}
