//! `lattice-pmix`: serves PMIx to the ranks of one launch on one node, with the machine's own
//! library.
//!
//! The shim starts it before the ranks, as the launch's user, with a socket as descriptor 3. It
//! ends when the shim closes that socket. Like the shim it survives agents, and it has no state
//! that the shim does not have as well.
//!
//! ```text
//!   ranks ── PMIx (loopback) ──▶ libpmix, its own thread ── callbacks ──▶ Host ── FromBridge ──▶ shim
//!   shim ── ToBridge ──▶ this thread ── a fence's data ──▶ libpmix
//! ```

// Not a core but a process around a library: it uses a socket, an environment and threads.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod abi;
mod gate;
mod host;
mod library;
mod prompt;
mod publishing;
mod questions;

use lattice_model::with_causes;
use lattice_pmi::bridge::{BridgeError, Frames, FromBridge, ToBridge, encode};
use library::Library;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use thiserror::Error;

/// The descriptor of the socket to the shim.
const SOCKET_FD: i32 = 3;
/// Size of a read, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// Why serving ends without the shim's wish.
#[derive(Debug, Error)]
enum ServeError {
    #[error("the shim's socket")]
    Socket(#[source] io::Error),
    #[error(transparent)]
    Frame(#[from] BridgeError),
    #[error("an answer before the launch")]
    EarlyAnswer,
    #[error("a fence before the launch")]
    EarlyFence,
    #[error("an end before the launch")]
    EarlyEnd,
    #[error("a second launch")]
    SecondLaunch,
}

fn main() -> ExitCode {
    if let [_, argument] = std::env::args().collect::<Vec<_>>().as_slice()
        && argument == "--check"
    {
        return check();
    }
    let Some(socket) = inherited_socket() else {
        eprintln!("lattice-pmix is started by lattice-shim, with a socket as descriptor 3; --check shows whether it can serve here");
        return ExitCode::FAILURE;
    };
    match serve(socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("lattice-pmix: {}", with_causes(&why));
            ExitCode::FAILURE
        }
    }
}

/// Prints the library that it would use, or why it cannot serve.
fn check() -> ExitCode {
    match Library::load() {
        Ok(library) => {
            println!("{}", library.version());
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{}", with_causes(&why));
            ExitCode::FAILURE
        }
    }
}

fn inherited_socket() -> Option<UnixStream> {
    let mut about = std::mem::MaybeUninit::uninit();
    // SAFETY: fstat only examines a descriptor and fills the given structure, or fails.
    let looked = unsafe { libc::fstat(SOCKET_FD, about.as_mut_ptr()) };
    if looked != 0 {
        return None;
    }
    // SAFETY: fstat filled it.
    let about: libc::stat = unsafe { about.assume_init() };
    if about.st_mode & libc::S_IFMT != libc::S_IFSOCK {
        return None;
    }
    // SAFETY: the descriptor is open, was passed to us, and is used nowhere else in this process.
    Some(UnixStream::from(unsafe { OwnedFd::from_raw_fd(SOCKET_FD) }))
}

/// Serves until the shim closes the socket.
fn serve(socket: UnixStream) -> Result<(), ServeError> {
    let mut directory = None;
    let served = serve_in(socket, &mut directory);
    if let Some(directory) = directory {
        // The shim also removes it, but may have been killed.
        let _ = std::fs::remove_dir_all(directory);
    }
    served
}

fn serve_in(mut socket: UnixStream, directory: &mut Option<String>) -> Result<(), ServeError> {
    // A launch is ended by signals to all its processes; the ranks need this server until they have
    // ended.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut frames = Frames::<ToBridge>::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut library = None;
    loop {
        let read = match socket.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            // The shim closed it before it read all: the launch is over.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(ServeError::Socket(error)),
        };
        for message in frames.push(&chunk[..read])? {
            match (message, &library) {
                (ToBridge::Serve(job), None) => {
                    let for_callbacks = socket.try_clone().map_err(ServeError::Socket)?;
                    *directory = Some(job.directory.clone());
                    match Library::load().and_then(|library| Ok((library.serve(&job, for_callbacks)?, library))) {
                        Ok((env, loaded)) => {
                            send(&mut socket, &FromBridge::Ready { library: loaded.version().to_owned(), env })?;
                            library = Some(loaded);
                        }
                        Err(why) => return send(&mut socket, &FromBridge::Failed { why: with_causes(&why) }),
                    }
                }
                (ToBridge::Fenced { data }, Some(library)) => library.complete_fence(data),
                (ToBridge::Answered { id, status, found }, Some(library)) => library.deliver_answer(id, status, found),
                (ToBridge::Modex { id, status, data }, Some(library)) => library.deliver_modex(id, status, data),
                (ToBridge::GiveModex { from, number, rank }, Some(library)) => library.give_modex(from, number, rank),
                (ToBridge::Left { rank }, Some(library)) => library.release_rank(rank),
                (ToBridge::Died { rank, code }, Some(library)) => library.notify_death(rank, code),
                (ToBridge::Answered { .. } | ToBridge::Modex { .. } | ToBridge::GiveModex { .. }, None) => {
                    return Err(ServeError::EarlyAnswer);
                }
                (ToBridge::Serve(_), Some(_)) => return Err(ServeError::SecondLaunch),
                (ToBridge::Fenced { .. }, None) => return Err(ServeError::EarlyFence),
                (ToBridge::Left { .. } | ToBridge::Died { .. }, None) => return Err(ServeError::EarlyEnd),
            }
        }
    }
}

fn send(socket: &mut UnixStream, message: &FromBridge) -> Result<(), ServeError> {
    let frame = encode(message)?;
    match socket.write_all(&frame) {
        // The launch was over before this was ready: the next read finds the end, and the work's output has no line about it.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(ServeError::Socket),
    }
}
