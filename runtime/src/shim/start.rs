//! Starting a shim, and finding it again after a restart of the agent.

use super::{ShimConfig, ShimDir};
use crate::cgroup::{CgroupError, Scope};
use crate::failpoint::{self, Point};
use crate::process::{self, NotStarted, Program};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a shim was not started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The directory's shim lives already: use [`connect_shim`].
    #[error("a shim lives already in {}", dir.display())]
    AlreadyRunning {
        /// Its directory.
        dir: PathBuf,
    },
    /// Its files could not be made.
    #[error("{}: {doing}", path.display())]
    Files {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// Its cgroup could not be made.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Its program could not be started.
    #[error("the shim could not be started: {0}")]
    NotStarted(#[from] NotStarted),
}

/// A shim that was just started.
#[derive(Debug)]
pub struct StartedShim {
    /// Its pid. It is our child: reap it ([`process::reap`]) once its pidfd is readable.
    pub pid: i32,
    /// Its pidfd.
    pub pidfd: OwnedFd,
    /// The connection; nothing was sent on it yet.
    pub stream: UnixStream,
}

/// Writes `shim.json` and starts `binary` in `dir`: listening socket as descriptor 3, in its own session and in the
/// scope's `shim` cgroup, output to `shim.log`. It outlives us. Returns once the program runs; after the agent's Hello
/// the shim mounts and sends [`super::FromShim::Ready`]. Refuses if a shim lives in `dir` already; the check connects
/// to it, and so, like any connect, replaces the connection of its present agent.
pub fn start_shim(binary: &Path, dir: &ShimDir, config: &ShimConfig) -> Result<StartedShim, StartError> {
    let failed = |path: PathBuf, doing| move |source| StartError::Files { path, doing, source };
    for path in [&dir.0, &dir.logs()] {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path.clone(), "making the directory"))?;
    }
    failpoint::pass(Point::ShimDirectoryMade);
    if connect_shim(dir).is_ok() {
        return Err(StartError::AlreadyRunning { dir: dir.0.clone() });
    }
    write_config(dir, config).map_err(failed(dir.config(), "writing it"))?;
    failpoint::pass(Point::ShimConfigWritten);
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.shim_log());
    let log = log.map_err(failed(dir.shim_log(), "opening it"))?;
    let null = File::open("/dev/null").map_err(failed("/dev/null".into(), "opening it"))?;
    let shim_group = config.scope.clone().map(|scope| Scope::at(scope).shim());
    let cgroup = match &shim_group {
        Some(group) => {
            group.create()?;
            Some(group.open_dir()?)
        }
        None => None,
    };
    failpoint::pass(Point::ShimCgroupMade);
    let (listener, stream) = listen(dir).map_err(failed(dir.socket(), "listening on it"))?;
    failpoint::pass(Point::ShimSocketBound);
    let argv = [binary.display().to_string(), dir.0.display().to_string()];
    let env = [("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned())];
    let started = process::spawn_loaded(&Program {
        argv: &argv,
        env: &env,
        pid_variable: None,
        shared_env: None,
        working_dir: Path::new("/"),
        user: None,
        stdin: null.as_fd(),
        stdout: log.as_fd(),
        stderr: log.as_fd(),
        inherit: &[listener.into()],
        cgroup: cgroup.as_ref().map(AsFd::as_fd),
        v1_groups: &[],
        open_files: config.open_files,
        binding: None,
        terminal: false,
    });
    match started {
        Ok((pid, pidfd)) => {
            failpoint::pass(Point::ShimSpawned);
            Ok(StartedShim { pid, pidfd, stream })
        }
        Err(error) => {
            let _ = fs::remove_file(dir.socket());
            Err(error.into())
        }
    }
}

/// Connects to the shim that lives in `dir`. `NotFound` or `ConnectionRefused`: there is none.
pub fn connect_shim(dir: &ShimDir) -> io::Result<UnixStream> {
    let (_held, path) = short_path(dir)?;
    UnixStream::connect(path)
}

/// Listens on the shim's socket and connects to it. Removes the socket of a dead shim.
fn listen(dir: &ShimDir) -> io::Result<(UnixListener, UnixStream)> {
    match fs::remove_file(dir.socket()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let (_held, path) = short_path(dir)?;
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(dir.socket(), Permissions::from_mode(0o600))?;
    let stream = UnixStream::connect(&path)?;
    Ok((listener, stream))
}

/// A path to the socket through its open directory: an address has 108 bytes, and state directories can be longer.
/// Valid while the directory is held.
fn short_path(dir: &ShimDir) -> io::Result<(OwnedFd, PathBuf)> {
    let held = open(&dir.0, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/shim.sock", held.as_raw_fd()));
    Ok((held, path))
}

/// The file gets its name only when it is complete. Not synced: after a reboot there is no shim to read it.
fn write_config(dir: &ShimDir, config: &ShimConfig) -> io::Result<()> {
    let part = dir.config().with_extension("json.part");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(&serde_json::to_vec_pretty(config)?)?;
    fs::rename(&part, dir.config())
}
