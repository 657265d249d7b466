//! The PMI ports of ranks: each peer is checked, and a port to which strangers connect is paused.

use super::Launch;
use crate::agent_link::ACCEPT_PAUSE_MS;
use crate::log_files;
use crate::rank_socket::{Accepted, PortContext};
use crate::shim_log::log_line;
use crate::work::Work;
use lattice_runtime::shim::ShimDir;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

/// After a stranger connected, a port pauses for this many milliseconds times the number of its strangers so far. To
/// recognise a stranger, the shim lists all open files of the launch's processes, and anybody on the machine may
/// connect as often as they like.
const STRANGER_PAUSE_MS: u64 = 100;
/// The pause does not grow beyond this number of strangers.
const STRANGERS_MAX: u64 = 20;

impl Launch {
    pub(super) fn accept(&mut self, local: u32, now: u64, dir: &ShimDir, work: &Work, epoll: &Epoll, token: u64) {
        let (pids, number, global) = (self.pids(), self.spec.number, self.rank(local));
        let Some(rank) = self.ranks.get_mut(local as usize) else { return };
        let Some(port) = &mut rank.port else { return };
        let of = PortContext { dir, work, launch: number, pids: &pids, rank: global };
        let socket = match port.accept(&of) {
            Ok(Accepted::Rank(socket)) => socket,
            Ok(Accepted::Nobody) => return,
            Ok(Accepted::Stranger) => {
                let so_far = self.strangers.entry(local).or_default();
                *so_far = (*so_far + 1).min(STRANGERS_MAX);
                let until = now + STRANGER_PAUSE_MS * *so_far;
                return self.pause_port(local, until, epoll, token);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.port_failure_logged, true) {
                    log_line(&format!("launch {number}: a PMI connection of rank {global} cannot be accepted, and is retried: {error}"));
                }
                return self.pause_port(local, now + ACCEPT_PAUSE_MS, epoll, token);
            }
        };
        match epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, token)) {
            Ok(()) => {
                // A rank has one connection. (Removed explicitly: a child between clone and exec may hold a copy.)
                let _ = epoll.delete(&*port);
                (rank.pmi, rank.port) = (Some(socket), None);
            }
            Err(errno) => log_files::append_error(dir, number, global, &format!("watching its PMI connection: {}", errno.desc())),
        }
    }

    /// Pauses a port. It watches no events meanwhile: epoll would report a waiting peer again and again.
    fn pause_port(&mut self, local: u32, until: u64, epoll: &Epoll, token: u64) {
        if let Some(port) = self.ranks.get(local as usize).and_then(|rank| rank.port.as_ref()) {
            let _ = epoll.modify(port, &mut EpollEvent::new(EpollFlags::empty(), token));
            self.paused_ports.insert(local, until);
        }
    }

    /// When [`Self::resume_ports`] must be called (milliseconds, CLOCK_BOOTTIME).
    pub fn ports_paused_until(&self) -> Option<u64> {
        self.paused_ports.values().min().copied()
    }

    /// Listens again on ports whose pause is over.
    pub fn resume_ports(&mut self, now: u64, epoll: &Epoll, token: impl Fn(u32) -> u64) {
        for (local, _) in self.paused_ports.extract_if(.., |_, until| *until <= now) {
            if let Some(port) = self.ranks.get(local as usize).and_then(|rank| rank.port.as_ref()) {
                let _ = epoll.modify(port, &mut EpollEvent::new(EpollFlags::EPOLLIN, token(local)));
            }
        }
    }
}
