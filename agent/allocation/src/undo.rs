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
use lattice_runtime::shim::ShimDir;
use lattice_runtime::stuck;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// How long killed processes may take to end before that is reported as a failure.
pub(super) const KILL_WAIT: Duration = Duration::from_secs(3);

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

/// The processes that are left of killed work, for people; `None`: none, or the scope cannot be
/// read.
pub(super) fn what_is_left(context: &Handles, allocation: AllocationId) -> Option<String> {
    let scopes = context.machine.slice.as_ref()?.scopes().ok()?;
    let (_, scope) = scopes.into_iter().find(|(id, _)| *id == allocation)?;
    let left = scope.work().processes();
    (!left.is_empty()).then(|| still_there(&left))
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

/// Whether there is nothing to read: no output, and no messages of the shim or of hooks.
fn wrote_nothing(dir: &ShimDir) -> bool {
    let empty =
        |path: &Path| fs::symlink_metadata(path).map_or_else(|e| e.kind() == io::ErrorKind::NotFound, |m| m.is_file() && m.len() == 0);
    let silent = |launch: &Path| fs::read_dir(launch).is_ok_and(|mut files| files.all(|f| f.is_ok_and(|f| empty(&f.path()))));
    let Ok(mut launches) = fs::read_dir(dir.logs()) else { return false };
    launches.all(|l| l.is_ok_and(|l| silent(&l.path()))) && empty(&dir.shim_log()) && empty(&dir.hooks_log())
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
    fn only_where_nothing_was_written_there_is_nothing_to_keep() {
        let dir = Dir::new("nothing");
        let shim = ShimDir(dir.0.clone());
        drop(dir.log("0/0.out", b""));
        fs::write(shim.shim_log(), "").unwrap();
        assert!(wrote_nothing(&shim));
        fs::write(shim.shim_log(), "why").unwrap();
        assert!(!wrote_nothing(&shim));
        fs::remove_file(shim.shim_log()).unwrap();
        assert!(wrote_nothing(&shim));
        drop(dir.log("0/0.err", b"x"));
        assert!(!wrote_nothing(&shim));
    }
}
