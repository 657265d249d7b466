//! The connection to the one agent, if there is one. The agent may vanish at any moment; a newer connection replaces an
//! older one.

use crate::shim_log::log_line;
use lattice_model::with_causes;
use lattice_runtime::shim::{Decoder, FRAME_BYTES_MAX, FrameError, FromShim, PROTOCOL_MAJOR, ToShim, encode};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use thiserror::Error;

/// Bytes that an agent may leave unread. Beyond that it is disconnected; the replay reports everything again.
const UNREAD_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks read before other events are handled: more than the longest frame.
const CHUNKS_PER_TURN: usize = FRAME_BYTES_MAX / CHUNK_BYTES + 64;

/// Pause of a listener after an accept failed, in milliseconds: missing resources (descriptors, memory) will be missing
/// in the next moment too, and waiting peers stay in the queue.
pub const ACCEPT_PAUSE_MS: u64 = 1000;

/// Why the agent's connection is dropped.
#[derive(Debug, Error)]
enum Dropped {
    #[error("the agent closed it")]
    Closed,
    #[error("a newer connection replaced it")]
    Replaced,
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("its protocol is {protocol}, and this shim's is {PROTOCOL_MAJOR}")]
    Protocol { protocol: u32 },
    #[error("it did not begin with Hello")]
    NoHello,
    #[error("it has left {bytes} bytes unread")]
    Unread { bytes: usize },
}

/// The listening socket and the present connection.
pub struct AgentLink {
    listener: UnixListener,
    /// Tokens of the listener and of the connection in `epoll` events.
    tokens: [u64; 2],
    connection: Option<Connection>,
    /// Until when the listener is paused (milliseconds, CLOCK_BOOTTIME).
    paused_until: Option<u64>,
    /// Whether the failure to accept was logged, with no success since.
    accept_failure_logged: bool,
}

struct Connection {
    stream: UnixStream,
    decoder: Decoder<ToShim>,
    /// Frames that the socket has not accepted yet; `sent` bytes of the first one are sent.
    unread: VecDeque<Vec<u8>>,
    unread_bytes: usize,
    sent: usize,
    /// Bytes that the agent may leave unread. A replay raises the limit, because its size does not show that the agent
    /// fails to read.
    unread_bytes_max: usize,
    waits_to_write: bool,
    greeted: bool,
}

impl AgentLink {
    /// Not connected yet. `tokens` are those of the listener and of the connection in `epoll` events.
    pub fn new(listener: UnixListener, tokens: [u64; 2]) -> Self {
        Self { listener, tokens, connection: None, paused_until: None, accept_failure_logged: false }
    }

    /// The listening socket, to wait on.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Accepts every waiting connection; the last one stays. Only root and our own user are accepted. `now` is in
    /// milliseconds of CLOCK_BOOTTIME.
    pub fn accept(&mut self, now: u64, epoll: &Epoll) {
        loop {
            let stream = match accepted(self.listener.accept()) {
                Ok(Some((stream, _))) => stream,
                Ok(None) => return,
                Err(error) => return self.pause(&error, now, epoll),
            };
            self.accept_failure_logged = false;
            let peer = match getsockopt(&stream, PeerCredentials) {
                Ok(peer) => peer,
                Err(errno) => {
                    log_line(&format!("a connection without credentials ({errno}) was refused"));
                    continue;
                }
            };
            if peer.uid() != 0 && peer.uid() != nix::unistd::geteuid().as_raw() {
                log_line(&format!("a connection of uid {} was refused", peer.uid()));
                continue;
            }
            let added =
                stream.set_nonblocking(true).and_then(|()| Ok(epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, self.tokens[1]))?));
            if let Err(error) = added {
                log_line(&format!("a connection could not be registered: {error}"));
                continue;
            }
            self.drop_connection(epoll, &Dropped::Replaced);
            self.connection = Some(Connection {
                stream,
                decoder: Decoder::default(),
                unread: VecDeque::new(),
                unread_bytes: 0,
                sent: 0,
                unread_bytes_max: UNREAD_BYTES_MAX,
                waits_to_write: false,
                greeted: false,
            });
        }
    }

    /// Pauses the listener: epoll would report the waiting peer again and again.
    fn pause(&mut self, error: &io::Error, now: u64, epoll: &Epoll) {
        if !std::mem::replace(&mut self.accept_failure_logged, true) {
            log_line(&format!("no agent can be accepted, retrying every {} s: {error}", ACCEPT_PAUSE_MS / 1000));
        }
        let _ = epoll.modify(&self.listener, &mut EpollEvent::new(EpollFlags::empty(), self.tokens[0]));
        self.paused_until = Some(now + ACCEPT_PAUSE_MS);
    }

    /// When [`Self::resume`] must be called (milliseconds, CLOCK_BOOTTIME).
    pub fn paused_until(&self) -> Option<u64> {
        self.paused_until
    }

    /// Listens again when the pause is over.
    pub fn resume(&mut self, now: u64, epoll: &Epoll) {
        if self.paused_until.take_if(|until| *until <= now).is_some() {
            let _ = epoll.modify(&self.listener, &mut EpollEvent::new(EpollFlags::EPOLLIN, self.tokens[0]));
        }
    }

    /// Reads what arrived. A protocol violation costs the agent its connection, and nothing else.
    pub fn receive(&mut self, epoll: &Epoll) -> Vec<ToShim> {
        let mut messages = Vec::new();
        if let Some(connection) = &mut self.connection
            && let Err(why) = connection.receive(&mut messages)
        {
            self.drop_connection(epoll, &why);
        }
        messages
    }

    /// Queues a message; [`Self::flush`] sends it. Without an agent it is dropped: the replay contains it.
    pub fn send(&mut self, message: &FromShim) {
        let Some(connection) = self.connection.as_mut().filter(|c| c.greeted) else { return };
        match encode(message) {
            Ok(frame) => {
                connection.unread_bytes += frame.len();
                connection.unread.push_back(frame);
            }
            Err(error) => log_line(&format!("a message was not sent: {error}")),
        }
    }

    /// The replay was queued completely: its size is not the agent's fault.
    pub fn replayed(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.unread_bytes_max = connection.unread_bytes + UNREAD_BYTES_MAX;
        }
    }

    /// Sends what the socket accepts, and waits for writability if something is left.
    pub fn flush(&mut self, epoll: &Epoll) {
        let token = self.tokens[1];
        let Some(connection) = &mut self.connection else { return };
        if let Err(why) = connection.flush(epoll, token) {
            self.drop_connection(epoll, &why);
        }
    }

    fn drop_connection(&mut self, epoll: &Epoll, why: &Dropped) {
        if let Some(connection) = self.connection.take() {
            // Removed explicitly: a child between clone and exec may hold a copy, so closing alone would leave it
            // registered.
            let _ = epoll.delete(&connection.stream);
            if !matches!(why, Dropped::Closed) {
                log_line(&format!("the agent's connection was dropped: {}", with_causes(why)));
            }
        }
    }
}

/// The result of a non-blocking accept; `None`: no peer waits.
pub fn accepted<T>(taken: io::Result<T>) -> io::Result<Option<T>> {
    match taken {
        Ok(taken) => Ok(Some(taken)),
        // A peer that disconnected meanwhile; the next event reports the peers behind it.
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl Connection {
    /// An error is the reason to drop the connection.
    fn receive(&mut self, messages: &mut Vec<ToShim>) -> Result<(), Dropped> {
        let mut chunk = vec![0; CHUNK_BYTES];
        for _ in 0..CHUNKS_PER_TURN {
            let n = match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Dropped::Closed),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            self.decoder.push(&chunk[..n]);
            while let Some(message) = self.decoder.next()? {
                match message {
                    ToShim::Hello { protocol, .. } if protocol != PROTOCOL_MAJOR => {
                        return Err(Dropped::Protocol { protocol });
                    }
                    ToShim::Hello { .. } => self.greeted = true,
                    _ if !self.greeted => return Err(Dropped::NoHello),
                    _ => {}
                }
                messages.push(message);
            }
        }
        Ok(())
    }

    fn flush(&mut self, epoll: &Epoll, token: u64) -> Result<(), Dropped> {
        while let Some(frame) = self.unread.front() {
            match self.stream.write(&frame[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    if self.sent == frame.len() {
                        self.unread_bytes -= frame.len();
                        self.unread.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // The agent is gone. Its earlier messages are still read; the end of them drops the connection.
                    self.unread.clear();
                    (self.unread_bytes, self.sent) = (0, 0);
                }
            }
        }
        if self.unread_bytes > self.unread_bytes_max {
            return Err(Dropped::Unread { bytes: self.unread_bytes });
        }
        let waits = !self.unread.is_empty();
        if waits != self.waits_to_write {
            let flags = if waits { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            epoll.modify(&self.stream, &mut EpollEvent::new(flags, token)).map_err(io::Error::from)?;
            self.waits_to_write = waits;
        }
        Ok(())
    }
}
