//! Taking an allocation away: processes, scope, files. Its log files stay, within the spool's limit.

use crate::context::Context;
use lattice_model::{AllocationId, DesiredShare};
use lattice_quorum::pack::with_causes;
use lattice_runtime::shim::ShimDir;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// How long killed processes may take to be gone before it is said that they are not.
const KILL_WAIT: Duration = Duration::from_secs(3);

/// Kills whatever is in the allocation's scope and waits until it is empty.
pub(super) fn kill_scope(context: &Context, allocation: AllocationId) -> Result<(), String> {
    let Some(slice) = &context.slice else { return Ok(()) };
    let scopes = slice.scopes().map_err(|e| with_causes(&e))?;
    let Some((_, scope)) = scopes.into_iter().find(|(id, _)| *id == allocation) else { return Ok(()) };
    scope.whole().kill().map_err(|e| with_causes(&e))?;
    if scope.whole().wait_empty(KILL_WAIT).map_err(|e| with_causes(&e))? {
        return Ok(());
    }
    let left: Vec<String> = scope.whole().processes().iter().map(ToString::to_string).collect();
    Err(format!("killed processes are still there (in a call that cannot be interrupted?): pid {}", left.join(", ")))
}

/// Takes away scope and files. Fails while processes are left.
pub(super) fn undo(context: &Context, share: &DesiredShare, dir: &ShimDir) -> Result<(), String> {
    kill_scope(context, share.allocation)?;
    if let Some(slice) = &context.slice {
        let scopes = slice.scopes().map_err(|e| with_causes(&e))?;
        if let Some((_, scope)) = scopes.into_iter().find(|(id, _)| *id == share.allocation) {
            scope.whole().remove().map_err(|e| with_causes(&e))?;
        }
    }
    for file in [dir.socket(), dir.config(), dir.exits(), dir.script()] {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(format!("{}: {error}", file.display())),
            Ok(()) | Err(_) => {}
        }
    }
    trim_spool(context);
    Ok(())
}

/// Removes the oldest ended allocations' logs until the rest fits the spool's limit.
fn trim_spool(context: &Context) {
    let Ok(entries) = fs::read_dir(context.state_dir.join("alloc")) else { return };
    let mut ended: Vec<_> = entries
        .flatten()
        .filter(|e| !e.path().join("shim.json").exists())
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, bytes_below(&e.path()), e.path())))
        .collect();
    ended.sort();
    let mut total: u64 = ended.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in ended {
        if total <= context.log_spool_bytes_max {
            return;
        }
        tracing::info!(path = %path.display(), bytes, "the log spool is over its limit: the oldest logs go");
        if fs::remove_dir_all(&path).is_ok() {
            total = total.saturating_sub(bytes);
        }
    }
}

fn bytes_below(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let size = |e: fs::DirEntry| e.metadata().map_or(0, |m| if m.is_dir() { bytes_below(&e.path()) } else { m.len() });
    entries.flatten().map(size).sum()
}
