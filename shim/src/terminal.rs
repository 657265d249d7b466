//! The terminal of a launch's first rank. The shim acts as its keyboard and screen, so that it outlives the agent:
//! output goes into the rank's log file, and the agent delivers what is typed.

use crate::shim_log::log_line;
use lattice_model::{Principal, TerminalSize};
use lattice_runtime::pty::{self, Modes};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

/// Typed bytes that the terminal has not accepted: more than a person pastes.
const TYPED_BYTES_MAX: usize = 1024 * 1024;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks read before other events are handled.
const CHUNKS_PER_TURN: usize = 16;

/// Our end of the terminal.
pub struct RankTerminal {
    master: OwnedFd,
    /// The log file of the rank's standard output.
    log: File,
    /// Output bytes that the log could not store and does not mention yet.
    lost: u64,
    typed: VecDeque<u8>,
    waits_to_write: bool,
    overflown: bool,
    token: u64,
}

impl RankTerminal {
    /// Creates our end and the rank's end, which must stay open until the rank's process has it. `token` identifies our
    /// end in `epoll`.
    pub fn make(owner: &Principal, size: TerminalSize, log: File, epoll: &Epoll, token: u64) -> io::Result<(Self, OwnedFd)> {
        let pty::Terminal { master, slave, .. } = pty::open(owner, size, Modes { echo: true, cooked_output: true })?;
        epoll.add(&master, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        Ok((Self { master, log, lost: 0, typed: VecDeque::new(), waits_to_write: false, overflown: false, token }, slave))
    }

    /// The terminal is readable or writable. `false`: nobody has the other end any more, and ours must be closed.
    pub fn handle_ready(&mut self, flags: EpollFlags, epoll: &Epoll) -> bool {
        if flags.contains(EpollFlags::EPOLLOUT) {
            self.write_typed(epoll);
        }
        !flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) || self.log_output()
    }

    /// Logs pending output. `false`: there will be no more.
    pub fn log_output(&mut self) -> bool {
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

    /// A full disk must not block the program: its output is lost, and the log marks the gap once there is space.
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
                    log_line("a terminal's log cannot be written: its output is lost until it can");
                    break;
                }
            }
        }
        self.lost += rest.len() as u64;
    }

    /// Types these bytes. If a program does not read, bytes beyond the limit are lost.
    pub fn typed(&mut self, bytes: &[u8], epoll: &Epoll) {
        let free = TYPED_BYTES_MAX - self.typed.len();
        if bytes.len() > free && !std::mem::replace(&mut self.overflown, true) {
            log_line(&format!("a program has not read {TYPED_BYTES_MAX} typed bytes: further input is lost"));
        }
        self.typed.extend(&bytes[..bytes.len().min(free)]);
        self.write_typed(epoll);
    }

    fn write_typed(&mut self, epoll: &Epoll) {
        while !self.typed.is_empty() {
            match nix::unistd::write(&self.master, self.typed.as_slices().0) {
                Ok(n) => drop(self.typed.drain(..n)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                // Nobody can read it any more.
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

    /// Closes our end, which hangs up the programs at the other end.
    pub fn close(self, epoll: &Epoll) {
        // Removed explicitly: a child between clone and exec may hold a copy, so closing alone would leave it
        // registered.
        let _ = epoll.delete(&self.master);
    }
}
