//! `@last`: the id of this user's last submission, which the symlink `$XDG_STATE_HOME/lattice/last` points to. (A file that replaces
//! another has its blocks written out at once on ext4, which a launch would wait for; a symlink has none.)

use crate::failure::{Exit, Failure};
use crate::settings::user_dir;
use lattice_model::AllocationId;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

fn path() -> Option<PathBuf> {
    Some(user_dir("XDG_STATE_HOME", ".local/state")?.join("lattice/last"))
}

/// Keeps `id`. A reader sees the old one or the new one, never half of it.
pub fn remember(id: &str) -> Result<(), String> {
    let path = path().ok_or("neither HOME nor XDG_STATE_HOME is set")?;
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(told)?;
    }
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&fresh);
    symlink(id, &fresh).and_then(|()| fs::rename(&fresh, &path)).map_err(|error| {
        let _ = fs::remove_file(&fresh);
        told(error)
    })
}

/// The id that was kept.
pub fn recall() -> Result<String, Failure> {
    let nothing = || {
        Failure::new(Exit::NotFound, "@last: this user has not submitted anything from this machine yet")
            .hint("`lattice status` lists your allocations")
    };
    let target = path().and_then(|path| fs::read_link(path).ok()).ok_or_else(nothing)?;
    target.to_string_lossy().parse::<AllocationId>().map(|id| id.to_string()).map_err(|_| nothing())
}
