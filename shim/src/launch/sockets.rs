//! The ranks' PMI sockets: incoming messages, and sockets that end.

use super::hung_up::HungUp;
use super::{BRIDGE, Happening, INPUT, Launch, TERMINAL};
use crate::rank_socket::PmiSocket;
use crate::work::Work;
use lattice_pmi::Event;
use lattice_runtime::shim::ShimDir;
use nix::sys::epoll::{Epoll, EpollFlags};
use std::io;

/// Bytes of answers that a rank may leave unread: real ranks make one request at a time.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The least that each rank may leave unread, however many ranks there are and however little memory they have.
const ANSWER_BYTES_MIN: usize = 16 * 1024;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks read from one rank before other events are handled: more than a socket holds.
const CHUNKS_PER_TURN: usize = 64;
/// Bytes that each of `ranks` ranks may leave unread if all together may leave `all_bytes`.
pub(super) fn answer_bytes_max(all_bytes: usize, ranks: u32) -> usize {
    let each = all_bytes / usize::try_from(ranks.max(1)).unwrap_or(usize::MAX);
    each.clamp(ANSWER_BYTES_MIN, ANSWER_BYTES_MAX)
}

/// What arrived on a rank's socket.
pub(super) struct Received {
    pub(super) happenings: Vec<Happening>,
    /// Whether nothing more will arrive.
    hung_up: bool,
}

impl Launch {
    /// Handles a ready descriptor of the launch: the terminal, an input, the PMIx bridge, a rank's socket, or its port
    /// with a new connection. `now` is in milliseconds of CLOCK_BOOTTIME.
    pub fn socket_ready(
        &mut self,
        local: u32,
        flags: EpollFlags,
        now: u64,
        (dir, work): (&ShimDir, &Work),
        epoll: &Epoll,
        token: impl Fn(u32) -> u64,
    ) -> Vec<Happening> {
        let mut happenings = Vec::new();
        if local == TERMINAL {
            if let Some(mut terminal) = self.terminal.take() {
                match terminal.handle_ready(flags, epoll) {
                    true => self.terminal = Some(terminal),
                    false => terminal.close(epoll),
                }
            }
            return happenings;
        }
        if local < BRIDGE && local & INPUT != 0 {
            if let Some(input) = &mut self.input {
                input.handle_ready(local & !INPUT, flags, epoll);
            }
            return happenings;
        }
        if local == BRIDGE {
            let received = self.pmix.as_mut().and_then(|pmix| pmix.bridge.as_mut()).map(|bridge| bridge.handle_ready(flags, epoll));
            return received.map(|received| self.handle_bridge(received, epoll)).unwrap_or_default();
        }
        if self.ranks.get(local as usize).is_some_and(|rank| rank.port.is_some()) {
            // Data that the peer has sent already causes another event.
            self.accept(local, now, dir, work, epoll, token(local));
            return happenings;
        }
        if flags.contains(EpollFlags::EPOLLOUT) {
            happenings.extend(self.send(local, Vec::new(), epoll, &token));
        }
        if flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            let received = self.receive(local, epoll, &token);
            happenings.extend(received.happenings);
            if received.hung_up {
                self.close(local, epoll);
                self.hung_up.insert(local, HungUp::new(now));
            }
        }
        happenings
    }

    /// When [`Self::check_hung_up`] must be called (milliseconds, CLOCK_BOOTTIME).
    pub fn hung_up_until(&self) -> Option<u64> {
        self.hung_up.values().map(|hung_up| hung_up.until).min()
    }

    /// Handles ranks whose socket ended a while ago and whose process lives: they closed it themselves. All ended
    /// processes are reaped before this; one that is ending is still waited for.
    pub fn check_hung_up(&mut self, now: u64, epoll: &Epoll, token: impl Fn(u32) -> u64) -> Vec<Happening> {
        let due = self.hung_up.extract_if(.., |_, hung_up| hung_up.until <= now).collect::<Vec<_>>();
        let mut happenings = Vec::new();
        for (local, hung_up) in due {
            match hung_up.further(now, self.is_ending(self.rank(local))) {
                Some(further) => drop(self.hung_up.insert(local, further)),
                None => happenings.extend(self.handle(Event::Closed { local }, epoll, &token)),
            }
        }
        happenings
    }

    pub(super) fn receive(&mut self, local: u32, epoll: &Epoll, token: &impl Fn(u32) -> u64) -> Received {
        let mut happenings = Vec::new();
        let mut chunk = [0; CHUNK_BYTES];
        for _ in 0..CHUNKS_PER_TURN {
            let Some(pmi) = self.socket(local) else { break };
            match pmi.read(&mut chunk) {
                Ok(n) if n > 0 => happenings.extend(self.handle(Event::Bytes { local, data: &chunk[..n] }, epoll, token)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => return Received { happenings, hung_up: true },
            }
        }
        Received { happenings, hung_up: false }
    }

    pub(super) fn send(&mut self, local: u32, bytes: Vec<u8>, epoll: &Epoll, token: &impl Fn(u32) -> u64) -> Option<Happening> {
        let global = self.rank(local);
        let socket = self.socket(local)?;
        // A single answer may have any length: only unread earlier answers count.
        let unread = socket.unread();
        socket.send(&bytes, epoll, token(local));
        (!bytes.is_empty() && unread > self.answer_bytes_max).then(|| {
            let why = format!("rank {global} sends PMI requests and does not read the answers");
            Happening::Abort { code: 1, why }
        })
    }

    fn socket(&mut self, local: u32) -> Option<&mut PmiSocket> {
        self.ranks.get_mut(local as usize)?.pmi.as_mut()
    }

    pub(super) fn close(&mut self, local: u32, epoll: &Epoll) {
        let Some(rank) = self.ranks.get_mut(local as usize) else { return };
        // Removed explicitly: a child between clone and exec may hold a copy, so closing alone would leave it
        // registered.
        if let Some(pmi) = rank.pmi.take() {
            let _ = epoll.delete(&pmi);
        }
        if let Some(port) = rank.port.take() {
            let _ = epoll.delete(&port);
        }
        self.paused_ports.remove(&local);
    }
}
