//! Compresses the files that an allocation saved, in processes within its work, so that their time
//! and memory are the allocation's own.
//!
//! ```text
//!   agent: Packers ── a file (SCM_RIGHTS), its size ──▶ lattice-agent pack-files   in <scope>/work/save, as the owner
//!                  ◀── pieces, then BLAKE3 or why not ──
//! ```
//!
//! The figure shows cgroups v2; with version 1 the processes are in the allocation's own groups.
//!
//! The owner controls such a process, as well as the file. So the agent bounds what the process
//! sends back, and uses that for this file only. The process ends with the work or with the agent;
//! the agent kills it when it gives a file up.

use super::pack::{PackError, pack};
use lattice_machine::bounds::Bounds;
use lattice_model::{DesiredShare, Principal};
use lattice_runtime::cgroup::controllers::open_v1_procs;
use lattice_runtime::cgroup::{Scope, Slice};
use lattice_runtime::process::{self, Program};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The hidden command that runs this program as a compressing process.
const COMMAND: &str = "pack-files";
/// While nothing arrives, the interval of the checks whether a file was given up.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How long a killed process may take to end, in milliseconds.
const KILL_WAIT_MS: u16 = 2000;
/// Largest size of a piece.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// Size of the header of a piece: its kind, and its length as u32.
const HEAD_BYTES: usize = 5;
const PIECE: u8 = 0;
const DONE: u8 = 1;
const CHANGED: u8 = 2;
const FAILED: u8 = 3;
/// For proc_pid_oom_score_adj(5): killed before any process of the work.
const OOM_SCORE_FIRST: &str = "1000";

/// The compressing processes of one round of one allocation.
pub struct Packers {
    /// The scope, if there is a v2 tree.
    scope: Option<Scope>,
    v1_groups: Vec<PathBuf>,
    owner: Principal,
    /// Processes that wait for a file.
    idle: Mutex<Vec<Packer>>,
}

impl Packers {
    /// `None`: this machine has no cgroups that could hold the processes.
    pub(super) fn of(slice: Option<&Slice>, bounds: &Bounds, share: &DesiredShare) -> Option<Self> {
        let scope = slice.map(|slice| slice.scope(share.allocation));
        let groups = bounds.controllers.v1_groups(share.allocation);
        // The group of a controller that limits nothing was never created.
        let v1_groups: Vec<_> = groups.iter().map(|group| group.path()).filter(|path| path.exists()).collect();
        if scope.is_none() && v1_groups.is_empty() {
            return None;
        }
        Some(Self { scope, v1_groups, owner: share.owner.clone(), idle: Mutex::default() })
    }

    /// Compresses a file into `to` in one of the processes. Returns the BLAKE3 of its content.
    pub(super) fn pack(
        &self,
        file: &File,
        size: u64,
        to: &mut impl Write,
        is_given_up: &impl Fn() -> bool,
    ) -> Result<blake3::Hash, PackError> {
        let idle = self.idle.lock().pop();
        let mut packer = idle.map_or_else(|| self.start(), Ok)?;
        let hash = packer.pack(file, size, to, is_given_up)?;
        self.idle.lock().push(packer);
        Ok(hash)
    }

    fn start(&self) -> Result<Packer, PackError> {
        let broke = |error: &dyn std::error::Error| PackError::Broke(lattice_model::with_causes(error));
        let group = match &self.scope {
            // Only in an existing scope: one that is being removed must not be created again.
            Some(scope) if scope.work().path().exists() => {
                scope.saving().create().map_err(|e| broke(&e))?;
                Some(scope.saving().open_dir().map_err(|e| broke(&e))?)
            }
            Some(_) => return Err(PackError::Broke("the allocation's work is over".to_owned())),
            None => None,
        };
        let v1_groups = self.v1_groups.iter().map(|at| open_v1_procs(at)).collect::<Result<Vec<_>, _>>();
        let v1_groups = v1_groups.map_err(|e| broke(&e))?;
        let (socket, theirs) = UnixStream::pair().map_err(PackError::Io)?;
        socket.set_read_timeout(Some(LOOK_INTERVAL)).map_err(PackError::Io)?;
        socket.set_write_timeout(Some(LOOK_INTERVAL)).map_err(PackError::Io)?;
        let null = File::options().write(true).open("/dev/null").map_err(PackError::Io)?;
        let (pid, pidfd) = process::spawn_loaded(&Program {
            // This very program, even if its file was replaced since.
            argv: &["/proc/self/exe".to_owned(), COMMAND.to_owned()],
            env: &[],
            pid_variable: None,
            shared_env: None,
            working_dir: Path::new("/"),
            user: Some(&self.owner),
            stdin: theirs.as_fd(),
            stdout: null.as_fd(),
            stderr: null.as_fd(),
            inherit: &[],
            cgroup: group.as_ref().map(AsFd::as_fd),
            v1_groups: &v1_groups.iter().map(AsFd::as_fd).collect::<Vec<_>>(),
            open_files: None,
            binding: None,
            terminal: false,
        })
        .map_err(|e| PackError::Broke(format!("no process that compresses it starts within the allocation's limits: {e}")))?;
        Ok(Packer { pid, pidfd: Some(pidfd), socket })
    }
}

/// One process; dropping it kills the process.
struct Packer {
    pid: i32,
    pidfd: Option<OwnedFd>,
    socket: UnixStream,
}

impl Packer {
    fn pack(&mut self, file: &File, size: u64, to: &mut impl Write, is_given_up: &impl Fn() -> bool) -> Result<blake3::Hash, PackError> {
        let (bytes, files) = (size.to_le_bytes(), [file.as_raw_fd()]);
        let sent = sendmsg::<()>(
            self.socket.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            &[ControlMessage::ScmRights(&files)],
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        match sent {
            Ok(8) => {}
            // The process belongs to the work's owner, and gets one file at a time: only a
            // hostile process leaves so many requests unread that another does not fit.
            Err(Errno::EAGAIN) => return Err(PackError::Broke("the process that compresses reads no requests".to_owned())),
            Ok(_) | Err(_) => return Err(ended()),
        }
        // Even incompressible data, with the headers of its pieces, is not longer than this.
        let mut left = size.saturating_add(size / 64).saturating_add(PIECE_BYTES_MAX as u64);
        let mut piece = Vec::new();
        loop {
            let mut head = [0; HEAD_BYTES];
            self.read(&mut head, is_given_up)?;
            let [kind, length @ ..] = head;
            let length = u32::from_le_bytes(length) as usize;
            left = left.checked_sub((HEAD_BYTES + length) as u64).filter(|_| length <= PIECE_BYTES_MAX).ok_or_else(nonsense)?;
            piece.resize(length, 0);
            self.read(&mut piece, is_given_up)?;
            match kind {
                PIECE => to.write_all(&piece).map_err(PackError::Io)?,
                DONE => {
                    let hash = <[u8; 32]>::try_from(piece.as_slice()).map_err(|_| nonsense())?;
                    return Ok(blake3::Hash::from_bytes(hash));
                }
                CHANGED => return Err(PackError::Changed),
                FAILED => {
                    let errno = <[u8; 4]>::try_from(piece.as_slice()).map_err(|_| nonsense())?;
                    return Err(PackError::Io(io::Error::from_raw_os_error(i32::from_le_bytes(errno))));
                }
                _ => return Err(nonsense()),
            }
        }
    }

    fn read(&mut self, mut into: &mut [u8], is_given_up: &impl Fn() -> bool) -> Result<(), PackError> {
        while !into.is_empty() {
            if is_given_up() {
                return Err(PackError::GivenUp);
            }
            match self.socket.read(into) {
                Ok(0) => return Err(ended()),
                Ok(read) => into = &mut into[read..],
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(PackError::Io(error)),
            }
        }
        Ok(())
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        // The process is not reaped yet, so its id belongs to no other process.
        process::signal_each([self.pid], libc::SIGKILL);
        let (pid, pidfd) = (self.pid, self.pidfd.take());
        let reap = move || {
            let fds = pidfd.as_ref().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
            let _ = poll(&mut fds.into_iter().collect::<Vec<_>>(), PollTimeout::from(KILL_WAIT_MS));
            process::reap(pid)
        };
        // Without a runtime this process is about to end as well.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(reap));
        }
    }
}

fn ended() -> PackError {
    PackError::Broke("the process that compressed it was ended (has the allocation too little memory left?)".to_owned())
}

fn nonsense() -> PackError {
    PackError::Broke("the process that compressed it does not keep to their protocol".to_owned())
}

/// Runs a compressing process, with the socket as standard input, until the agent has no more files
/// or is gone.
pub fn serve() -> anyhow::Result<()> {
    // If memory runs out, the work is worth more than a copy of it.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_FIRST);
    // All processes of the work get SIGTERM when its time is over; what it saved by then must be
    // stored within its grace.
    // SAFETY: this process installs no signal handlers.
    unsafe { signal(Signal::SIGTERM, SigHandler::SigIgn) }?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    while let Some((file, size)) = receive(&socket)? {
        let agent = socket.try_clone()?;
        let packed = pack(&file, size, &mut Pieces(&mut socket), &|| is_gone(&agent));
        match packed {
            Ok(hash) => send(&mut socket, DONE, hash.as_bytes())?,
            Err(PackError::Changed) => send(&mut socket, CHANGED, &[])?,
            Err(PackError::Io(error)) => send(&mut socket, FAILED, &error.raw_os_error().unwrap_or(libc::EIO).to_le_bytes())?,
            Err(PackError::GivenUp | PackError::Broke(_)) => return Ok(()),
        }
    }
    Ok(())
}

/// Receives a file and its size; `None`: there are no more.
fn receive(socket: &UnixStream) -> anyhow::Result<Option<(File, u64)>> {
    let (mut size, mut space) = ([0; 8], nix::cmsg_space!(std::os::fd::RawFd));
    let mut into = [IoSliceMut::new(&mut size)];
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut into, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let files: Vec<OwnedFd> = got
        .cmsgs()?
        .filter_map(|message| match message {
            ControlMessageOwned::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        // SAFETY: the kernel has just created these descriptors for this process.
        .map(|file| unsafe { OwnedFd::from_raw_fd(file) })
        .collect();
    match (got.bytes, files.into_iter().next()) {
        (0, _) => Ok(None),
        (8, Some(file)) => Ok(Some((File::from(file), u64::from_le_bytes(size)))),
        (bytes, _) => anyhow::bail!("a message of {bytes} bytes, or without a file"),
    }
}

/// Whether the agent no longer waits for the result.
fn is_gone(agent: &UnixStream) -> bool {
    // POLLHUP is reported without being requested.
    let mut fds = [PollFd::new(agent.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

fn send(socket: &mut UnixStream, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut head = [kind, 0, 0, 0, 0];
    head[1..].copy_from_slice(&length.to_le_bytes());
    socket.write_all(&head)?;
    socket.write_all(bytes)
}

/// A writer that sends what is written in pieces.
struct Pieces<'a>(&'a mut UnixStream);

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES_MAX)];
        send(self.0, PIECE, piece)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
