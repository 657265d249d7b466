//! `lattice-pmix` beside one launch: it serves PMIx to the ranks with the machine's own library (decision 0036).
//!
//! ```text
//!   start ─▶ Ready (with each rank's variables) ─▶ ranks start ─▶ … ─▶ the last rank ended: socket closed, bridge ends
//! ```
//!
//! It runs as the launch's user, in a cgroup beside the launch's: data from ranks can harm only that user's work, and
//! signals for the launch's processes do not reach it. It ends when its socket is closed.

use crate::leftovers::remove_unused;
use crate::log_files;
use crate::rank_socket::PmiSocket;
use crate::surroundings::Surroundings;
use lattice_model::call::BODY_BYTES_MAX;
use lattice_model::{AllocationId, LaunchSpec, NodeId, Principal};
use lattice_pmi::bridge::{BridgeError, BridgeJob, Frames, FromBridge, ToBridge, encode};
use lattice_pmi::{BLOB_BYTES_MAX, PmixServer};
use lattice_runtime::cgroup::CgroupError;
use lattice_runtime::process::{self, NotStarted, Program, StartReport};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The bridge's program, in the directory of the shim's.
const PROGRAM: &str = "lattice-pmix";
/// How long it may take to become ready, in milliseconds: it reads the machine's processors and loads a library.
pub const READY_MS_MAX: u64 = 20_000;
/// Bytes of our messages that it may leave unread before one more is an error. All that it requested may arrive
/// before it reads: the end of a fence, and answers. A call about published data has one answer of at most one body.
/// Of ranks' data at most 4096 answers may be pending; they fit with 15 KiB each.
const UNREAD_BYTES_MAX: usize = BLOB_BYTES_MAX + 16 * BODY_BYTES_MAX;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks read before other events are handled.
const CHUNKS_PER_TURN: usize = 64;

/// Why a launch's bridge could not be started.
#[derive(Debug, Error)]
pub enum BridgeStartError {
    #[error("cannot find the shim's own program")]
    OwnProgram(#[source] io::Error),
    #[error("{} does not exist: install {PROGRAM} beside lattice-shim", .program.display())]
    NoProgram { program: PathBuf },
    #[error("making a directory for it")]
    Directory(#[source] io::Error),
    #[error("the launch has no ranks here")]
    NoRanks,
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("making its socket")]
    Socket(#[source] io::Error),
    // Without the error's name: its description suffices for people.
    #[error("watching its socket: {}", .0.desc())]
    Watch(Errno),
    #[error(transparent)]
    Process(#[from] NotStarted),
    #[error(transparent)]
    Send(#[from] SendError),
}

/// Why a bridge was not sent a message.
#[derive(Debug, Error)]
pub enum SendError {
    #[error("it does not read its messages")]
    Unread,
    #[error(transparent)]
    Encode(#[from] BridgeError),
}

/// A running bridge.
pub struct Bridge {
    pub pid: i32,
    /// Its directory, to be removed when it has ended.
    pub directory: PathBuf,
    start: StartReport,
    socket: PmiSocket,
    frames: Frames<FromBridge>,
    token: u64,
}

/// Names and values.
pub type Variables = Vec<(String, String)>;

/// The PMIx state of a launch.
pub struct Pmix {
    pub server: PmixServer,
    /// The bridge, until it has ended or no rank is left.
    pub bridge: Option<Bridge>,
    /// The variables by which each local rank finds it.
    pub env: Vec<Variables>,
}

/// What was received from a bridge.
#[derive(Default)]
pub struct BridgeReceived {
    pub messages: Vec<FromBridge>,
    /// Why nothing more will arrive.
    pub lost: Option<String>,
}

/// Makes the directory of a launch's ranks and bridge. It is not among the shim's own files, because users may not
/// enter those. Where anybody may make directories, its name must be unpredictable, so that nobody takes it first.
fn make_directory(allocation: AllocationId, owner: &Principal) -> io::Result<PathBuf> {
    let path = nix::unistd::mkdtemp(&std::env::temp_dir().join(format!("lattice-pmix-{}-XXXXXX", allocation.short())))?;
    match File::open(&path).and_then(|made| log_files::set_owner(&made, owner)) {
        Ok(()) => Ok(path),
        Err(error) => {
            remove_unused(&path);
            Err(error)
        }
    }
}

impl Bridge {
    /// Starts the bridge in its own cgroup, and sends it the launch.
    pub fn start(
        spec: &LaunchSpec,
        namespace: &str,
        node: &NodeId,
        around: &Surroundings<'_>,
        token: u64,
    ) -> Result<Self, BridgeStartError> {
        let program = program().map_err(BridgeStartError::OwnProgram)?;
        if !program.exists() {
            return Err(BridgeStartError::NoProgram { program });
        }
        let directory = make_directory(spec.allocation, around.owner).map_err(BridgeStartError::Directory)?;
        let job = BridgeJob::new(spec, namespace, node, &directory.to_string_lossy()).ok_or(BridgeStartError::NoRanks);
        let started = job.and_then(|job| Self::start_in(spec, &job, &program, around, token));
        if started.is_err() {
            remove_unused(&directory);
        }
        started
    }

    fn start_in(
        spec: &LaunchSpec,
        job: &BridgeJob,
        program: &Path,
        around: &Surroundings<'_>,
        token: u64,
    ) -> Result<Self, BridgeStartError> {
        let first = job.local().first().copied().unwrap_or_default();
        log_files::create_directory(around.dir, spec.number)?;
        // The library's complaints go to the rank's error log, where its user looks first.
        let [_, err] = log_files::create(around.dir, spec.number, first, around.owner)?;
        let group = around.work.pmix_group(spec.number)?;
        let (ours, theirs) = UnixStream::pair().map_err(BridgeStartError::Socket)?;
        ours.set_nonblocking(true).map_err(BridgeStartError::Socket)?;
        let child = process::spawn(&Program {
            argv: &[program.to_string_lossy().into_owned()],
            env: &[("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            pid_variable: None,
            shared_env: None,
            working_dir: Path::new("/"),
            user: Some(around.owner),
            stdin: around.null.as_fd(),
            stdout: err.as_fd(),
            stderr: err.as_fd(),
            inherit: &[theirs.into()],
            cgroup: group.as_ref().map(AsFd::as_fd),
            v1_groups: around.v1_groups,
            open_files: around.open_files,
            binding: None,
            terminal: false,
        })?;
        let pid = child.pid;
        let directory = PathBuf::from(&job.directory);
        let mut bridge =
            Self { pid, directory, start: child.into_start_report(), socket: PmiSocket::new(ours), frames: Frames::default(), token };
        around.epoll.add(&bridge.socket, EpollEvent::new(EpollFlags::EPOLLIN, token)).map_err(BridgeStartError::Watch)?;
        bridge.send(&ToBridge::Serve(job.clone()), around.epoll)?;
        Ok(bridge)
    }

    /// Its socket is readable or writable.
    pub fn handle_ready(&mut self, flags: EpollFlags, epoll: &Epoll) -> BridgeReceived {
        if flags.contains(EpollFlags::EPOLLOUT) {
            self.socket.send(&[], epoll, self.token);
        }
        self.receive()
    }

    /// Returns when its socket is readable, or after this time.
    pub fn wait(&self, at_most: PollTimeout) {
        // If a signal interrupts it, the caller only checks earlier.
        let _ = poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], at_most);
    }

    /// Reads what is in its socket.
    pub fn receive(&mut self) -> BridgeReceived {
        let mut received = BridgeReceived::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        for _ in 0..CHUNKS_PER_TURN {
            let read = match self.socket.read(&mut chunk) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => 0,
            };
            if read == 0 {
                received.lost = Some(self.start.failure().map_or_else(|| "it ended".to_owned(), |failure| failure.why));
                break;
            }
            match self.frames.push(&chunk[..read]) {
                Ok(messages) => received.messages.extend(messages),
                Err(error) => {
                    received.lost = Some(error.to_string());
                    break;
                }
            }
        }
        received
    }

    /// Sends a message. A bridge that ended reports that itself. It runs as the user: what it does not read must not
    /// pile up here. A correct bridge has read the end of one fence before it enters the next, and reads the answers
    /// that it requested.
    pub fn send(&mut self, message: &ToBridge, epoll: &Epoll) -> Result<(), SendError> {
        if self.socket.unread() > UNREAD_BYTES_MAX {
            return Err(SendError::Unread);
        }
        let frame = encode(message)?;
        self.socket.send(&frame, epoll, self.token);
        Ok(())
    }

    /// Closes its socket, which ends it.
    pub fn close(self, epoll: &Epoll) {
        // Removed explicitly: a child between clone and exec may hold a copy, so closing alone would leave it
        // registered.
        let _ = epoll.delete(&self.socket);
    }
}

fn program() -> io::Result<PathBuf> {
    // The directory is correct even if the program was replaced since.
    let own = std::env::current_exe()?;
    Ok(own.parent().unwrap_or(Path::new("/")).join(PROGRAM))
}
