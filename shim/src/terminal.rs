//! The terminal of a launch's first rank. We are its keyboard and its screen, so that it outlives the agent: what it shows
//! goes into the rank's log file, what is typed comes by the agent.

use crate::shim_log::say;
use lattice_model::{Principal, TerminalSize};
use lattice_runtime::pty::{self, Modes};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

/// Bytes typed that the terminal has not taken: more than a person pastes.
const TYPED_BYTES_MAX: usize = 1024 * 1024;
/// Read at a time, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks read before others have their turn.
const CHUNKS_PER_TURN: usize = 16;

/// Our end.
pub struct RankTerminal {
    master: OwnedFd,
    /// The rank's standard output, as it is logged.
    log: File,
    /// Bytes shown that the log could not take, and that it does not tell of yet.
    lost: u64,
    typed: VecDeque<u8>,
    waits_to_write: bool,
    overflown: bool,
    token: u64,
}

impl RankTerminal {
    /// Ours, and the rank's end, to be held until its process has it. `token` is ours in `epoll`.
    pub fn make(owner: &Principal, size: TerminalSize, log: File, epoll: &Epoll, token: u64) -> io::Result<(Self, OwnedFd)> {
        let pty::Terminal { master, slave, .. } = pty::open(owner, size, Modes { echo: true, cooked_output: true })?;
        epoll.add(&master, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        Ok((Self { master, log, lost: 0, typed: VecDeque::new(), waits_to_write: false, overflown: false, token }, slave))
    }

    /// It has something for us, or room. `false`: nobody has the other end any more, and it is to be closed.
    pub fn ready(&mut self, flags: EpollFlags, epoll: &Epoll) -> bool {
        if flags.contains(EpollFlags::EPOLLOUT) {
            self.enter(epoll);
        }
        !flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) || self.show()
    }

    /// Logs what was shown and not read yet. `false`: there will be no more.
    pub fn show(&mut self) -> bool {
        let mut chunk = [0; CHUNK_BYTES];
        for _ in 0..CHUNKS_PER_TURN {
            match nix::unistd::read(&self.master, &mut chunk) {
                Ok(n) if n > 0 => self.log(&chunk[..n]),
                Err(Errno::EAGAIN) => return true,
                Err(Errno::EINTR) => {}
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }

    /// What a full disk does not take is lost, and told of where it is missing once there is room: the program must not be
    /// held by that.
    fn log(&mut self, shown: &[u8]) {
        if self.lost > 0 {
            let text = format!("\r\n[lattice: {} bytes that were shown here are missing: the node's disk was full]\r\n", self.lost);
            if self.log.write_all(text.as_bytes()).is_ok() {
                self.lost = 0;
            }
        }
        let mut rest = shown;
        while self.lost == 0 && !rest.is_empty() {
            match self.log.write(rest) {
                Ok(n) if n > 0 => rest = &rest[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    say("the log of a terminal takes nothing more: what it shows is lost until it does");
                    break;
                }
            }
        }
        self.lost += rest.len() as u64;
    }

    /// Types. What a program does not read for so long that it is too much is lost.
    pub fn typed(&mut self, bytes: &[u8], epoll: &Epoll) {
        let room = TYPED_BYTES_MAX - self.typed.len();
        if bytes.len() > room && !std::mem::replace(&mut self.overflown, true) {
            say(&format!("a program reads nothing of {TYPED_BYTES_MAX} bytes that were typed: what is typed beyond is lost"));
        }
        self.typed.extend(&bytes[..bytes.len().min(room)]);
        self.enter(epoll);
    }

    fn enter(&mut self, epoll: &Epoll) {
        while !self.typed.is_empty() {
            match nix::unistd::write(&self.master, self.typed.as_slices().0) {
                Ok(n) => drop(self.typed.drain(..n)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                // Nobody is there to read it.
                Err(_) => self.typed.clear(),
            }
        }
        let waits = !self.typed.is_empty();
        if waits != self.waits_to_write {
            let flags = if waits { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            if epoll.modify(&self.master, &mut EpollEvent::new(flags, self.token)).is_ok() {
                self.waits_to_write = waits;
            }
        }
    }

    pub fn resize(&self, size: TerminalSize) {
        let _ = pty::set_size(self.master.as_fd(), size);
    }

    /// Closes it: whoever has the other end is hung up.
    pub fn close(self, epoll: &Epoll) {
        // A child between clone and exec may hold a copy: closing alone would leave it registered.
        let _ = epoll.delete(&self.master);
    }
}
