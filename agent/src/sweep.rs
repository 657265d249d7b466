//! Removes what an earlier run of the agent may have left and the journal does not know: hooks that
//! it ran, scopes and cgroup v1 groups, shims and their files, scratch, mounts, loop devices. Their
//! processes are ended. Up to `AT_ONCE` of these items are swept concurrently. A process that
//! cannot be ended delays the rest only by a bounded wait (`KILL_WAIT`, `QUIT_WAIT`).

use lattice_machine::data_plane::remove_scratch_at;
use lattice_machine::hooks;
use lattice_meshd::context::Context;
use lattice_model::{AllocationId, Epoch, with_causes};
use lattice_node::Brain;
use lattice_runtime::cgroup::{Cgroup, Scope};
use lattice_runtime::mounts;
use lattice_runtime::shim::{PROTOCOL_MAJOR, ShimConfig, ShimDir, ToShim, connect_shim, encode};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long killed processes may take to be gone.
const KILL_WAIT: Duration = Duration::from_secs(3);
/// How long to wait for the next message of a stray shim that ends its processes. A shim in a scope
/// is killed with the scope.
const QUIT_WAIT: Duration = Duration::from_secs(12);
/// How many strays are swept at once.
const AT_ONCE: usize = 32;

/// Ends and removes everything that belongs to no local allocation, and logs each item by name.
/// Scratch can be large and is removed in the background. Returns the allocations whose
/// processes may still live.
pub fn strays(context: &Context, brain: &Brain) -> BTreeSet<AllocationId> {
    let mut work: Vec<Stray> = context.machine.slice.iter().flat_map(|slice| slice.hooks()).map(|group| Stray::Hook { group }).collect();
    work.extend(stray_scopes(context, brain));
    let groups = context.machine.bounds.controllers.v1_allocations();
    work.extend(groups.into_iter().filter(|a| brain.local(*a).is_none()).map(|allocation| Stray::Version1 { allocation }));
    work.extend(stray_shims(context, brain));
    let mut alive = BTreeSet::new();
    for some in work.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let swept: Vec<_> = some.iter().map(|stray| (stray, scope.spawn(|| stray.sweep(context)))).collect();
            let left = swept.into_iter().filter_map(|(stray, swept)| (!matches!(swept.join(), Ok(true))).then(|| stray.allocation()));
            alive.extend(left.flatten());
        });
    }
    let known = |allocation: AllocationId| brain.local(allocation).is_some();
    lattice_machine::hardware::sweep(&context.setup.state_dir, known);
    lattice_machine::mpirun::sweep(&context.setup.state_dir, known);
    context.machine.fabric.sweep(|allocation, epoch| brain.local(allocation).is_some_and(|local| local.share.epoch == epoch));
    mounts_and_loops(&context.setup.state_dir, known);
    context.work.checkpoint.checkpoints.sweep(known);
    for path in context.machine.data.take_strays(known) {
        tracing::warn!(path = %path.display(), "scratch that the journal does not know: it is removed");
        tokio::task::spawn_blocking(move || {
            if let Err(error) = remove_scratch_at(&path) {
                tracing::warn!(path = %path.display(), %error, "stray scratch stays");
            }
        });
    }
    alive
}

/// One item that the journal does not know.
enum Stray {
    /// A hook of the site. If it is still needed, it will run again.
    Hook {
        group: Cgroup,
    },
    Scope {
        allocation: AllocationId,
        scope: Scope,
    },
    Version1 {
        allocation: AllocationId,
    },
    Shim {
        dir: ShimDir,
    },
}

impl Stray {
    fn allocation(&self) -> Option<AllocationId> {
        match self {
            Self::Hook { .. } => None,
            Self::Scope { allocation, .. } | Self::Version1 { allocation } => Some(*allocation),
            Self::Shim { dir } => named(dir.0.file_name()?.to_str()?).map(|(allocation, _)| allocation),
        }
    }

    /// Ends the item's processes and removes the item. Returns whether all its processes are gone.
    fn sweep(&self, context: &Context) -> bool {
        match self {
            Self::Hook { group } => {
                tracing::warn!(cgroup = %group.path().display(), "a hook of an earlier run of the agent is ended");
                let ended = hooks::end_group(group);
                if let Err(why) = &ended {
                    tracing::warn!(%why, "a hook of an earlier run of the agent could not be ended");
                }
                ended.is_ok()
            }
            Self::Scope { allocation, scope } => {
                tracing::warn!(%allocation, "a scope that the journal does not know: its processes are ended");
                let whole = scope.whole();
                let swept = whole.kill().and_then(|()| whole.wait_empty(KILL_WAIT)).and_then(|_| whole.remove());
                if let Err(error) = &swept {
                    tracing::warn!(%allocation, error = with_causes(error), "a stray scope could not be removed");
                }
                swept.is_ok()
            }
            Self::Version1 { allocation } => {
                tracing::warn!(%allocation, "cgroups of version 1 that the journal does not know: their processes are ended");
                let removed = context.machine.bounds.controllers.remove(*allocation, KILL_WAIT);
                if let Err(error) = &removed {
                    tracing::warn!(%allocation, error = with_causes(error), "stray cgroups of version 1 could not be removed");
                }
                removed.is_ok()
            }
            Self::Shim { dir } => {
                if let Err(error) = quit(dir) {
                    tracing::warn!(dir = %dir.0.display(), %error, "a stray shim does not end");
                    return false;
                }
                for file in [dir.socket(), dir.config(), dir.exits(), dir.living(), dir.script(), dir.checkpoint()] {
                    match fs::remove_file(&file) {
                        Err(error) if error.kind() != ErrorKind::NotFound => {
                            tracing::warn!(file = %file.display(), %error, "a stray shim's file could not be removed");
                        }
                        Ok(()) | Err(_) => {}
                    }
                }
                true
            }
        }
    }
}

fn stray_scopes(context: &Context, brain: &Brain) -> Vec<Stray> {
    let Some(slice) = &context.machine.slice else { return Vec::new() };
    let scopes = slice.scopes().unwrap_or_else(|error| {
        tracing::warn!(
            error = with_causes(&error),
            "the slice cannot be listed: what an earlier run of the agent left there is not removed"
        );
        Vec::new()
    });
    let strays = scopes.into_iter().filter(|(allocation, _)| brain.local(*allocation).is_none());
    strays.map(|(allocation, scope)| Stray::Scope { allocation, scope }).collect()
}

/// The directories of shims that belong to no local allocation. Directories of ended allocations
/// have neither a configuration nor a socket any more, and stay because they have the log files.
fn stray_shims(context: &Context, brain: &Brain) -> Vec<Stray> {
    let entries = fs::read_dir(context.setup.state_dir.join("alloc")).into_iter().flatten().flatten();
    let strays = entries.filter_map(|entry| {
        let (allocation, epoch) = named(entry.file_name().to_str()?)?;
        let dir = ShimDir(entry.path());
        let known = brain.local(allocation).is_some_and(|l| l.share.epoch == epoch);
        let begun = dir.config().exists() || dir.socket().exists();
        (!known && begun && !is_of_another_node(&dir, context)).then_some(Stray::Shim { dir })
    });
    strays.collect()
}

/// Whether another node wrote the directory, because the state directory was moved here from there.
fn is_of_another_node(dir: &ShimDir, context: &Context) -> bool {
    let config = fs::read(dir.config()).ok().and_then(|text| serde_json::from_slice::<ShimConfig>(&text).ok());
    config.is_some_and(|c| c.node != context.setup.me.as_str())
}

/// Parses `<allocation>-<epoch>`.
fn named(name: &str) -> Option<(AllocationId, Epoch)> {
    let (allocation, epoch) = name.rsplit_once('-')?;
    Some((allocation.parse().ok()?, Epoch(epoch.parse().ok()?)))
}

/// Ends the shim that listens in `dir`, if any, with all that it started.
fn quit(dir: &ShimDir) -> io::Result<()> {
    let stream = match connect_shim(dir) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(()),
        Err(error) => return Err(error),
    };
    tracing::warn!(dir = %dir.0.display(), "a shim that the journal does not know is asked to quit");
    match ask_to_quit(stream) {
        // It ended meanwhile: its scope is killed at the same time.
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Ok(()),
        asked => asked,
    }
}

fn ask_to_quit(mut stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(QUIT_WAIT))?;
    for message in [ToShim::Hello { protocol: PROTOCOL_MAJOR }, ToShim::Quit] {
        stream.write_all(&encode(&message).map_err(io::Error::other)?)?;
    }
    // The shim reports what it has, and closes the connection when it ends.
    let mut chunk = vec![0; 16 * 1024];
    while stream.read(&mut chunk)? > 0 {}
    Ok(())
}

/// Unmounts what an unknown allocation has mounted below the state directory in the machine's own
/// mount namespace, and frees loop devices on our files that nothing else will free. Mounts inside
/// work's own namespace, and their devices, go with that namespace.
fn mounts_and_loops(state_dir: &Path, known: impl Fn(AllocationId) -> bool) {
    // Canonical, as the kernel shows paths.
    let Ok(state_dir) = &fs::canonicalize(state_dir) else { return };
    let of_an_allocation = |point: &Path| {
        let mut names = point.strip_prefix(state_dir).ok()?.components().filter_map(|c| c.as_os_str().to_str());
        names.find_map(|name| name.parse::<AllocationId>().ok().or_else(|| named(name).map(|(allocation, _)| allocation)))
    };
    // The latest first: upper mounts go before lower ones.
    for point in mounts::mount_points_below(state_dir).into_iter().rev() {
        if of_an_allocation(&point).is_some_and(|allocation| !known(allocation)) {
            tracing::warn!(mount = %point.display(), "a mount that the journal does not know is taken away");
            if let Err(error) = mounts::unmount(&point) {
                tracing::warn!(mount = %point.display(), %error, "a stray mount could not be taken away");
            }
        }
    }
    match mounts::free_stray_loops(state_dir) {
        Ok(freed) if freed.is_empty() => {}
        Ok(freed) => tracing::warn!(devices = ?freed, "loop devices of an earlier run will be freed with their last user"),
        Err(error) => tracing::warn!(%error, "loop devices of an earlier run cannot be looked for"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_that_dies_before_it_answers_has_ended() {
        let dir = ShimDir(std::env::temp_dir().join(format!("lattice-sweep-{}", std::process::id())));
        fs::create_dir_all(&dir.0).unwrap();
        quit(&dir).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(dir.socket()).unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| quit(&dir));
            // It is killed with a connection that it has not accepted.
            let mut ready = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&listener), nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut ready, nix::poll::PollTimeout::NONE).unwrap();
            drop(listener);
            asked.join().unwrap().unwrap();
        });
        quit(&dir).unwrap();
        fs::remove_dir_all(&dir.0).unwrap();
    }

    #[test]
    fn a_shims_directory_is_known_by_its_name() {
        let allocation: AllocationId = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        assert_eq!(named(&format!("{allocation}-7")), Some((allocation, Epoch(7))));
        let name = ShimDir::of(Path::new("/s"), allocation, Epoch(12)).0.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(named(&name), Some((allocation, Epoch(12))));
        for other in ["", "x-1", "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88", "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88-x"] {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
