//! A rank's PMI connection: an inherited socket, or its own port on the loopback interface.
//!
//! The port is for programs that close inherited descriptors. Anybody on the machine can connect to it, and TCP does
//! not identify the peer. So the shim finds the peer: the kernel's table has the inode of the connection's other end,
//! and some process of the launch must hold it. Any other connection is closed unread. The port accepts again after a
//! pause, because the search costs time that the launch's other ranks need.
//!
//! A secret in the environment would not work: the libraries' first message is fixed, and every process of the user can
//! read an environment. The kernel's table is read as text, because the module for netlink's socket diagnosis may be
//! missing.

use crate::agent_link::accepted;
use crate::log_files;
use crate::work::Work;
use lattice_model::with_causes;
use lattice_runtime::shim::ShimDir;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use thiserror::Error;

/// The stream to and from a rank.
trait Stream: Read + Write + AsFd {}
impl Stream for UnixStream {}
impl Stream for TcpStream {}

/// A rank's connection.
pub struct PmiSocket {
    stream: Box<dyn Stream>,
    /// Answers that the socket has not accepted yet.
    answers: Vec<u8>,
    waits_to_write: bool,
}

impl PmiSocket {
    /// From a non-blocking stream.
    pub fn new(stream: UnixStream) -> Self {
        Self::of(Box::new(stream))
    }

    fn of(stream: Box<dyn Stream>) -> Self {
        Self { stream, answers: Vec::new(), waits_to_write: false }
    }

    pub fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        self.stream.read(chunk)
    }

    /// Bytes of answers that wait to be sent.
    pub fn unread(&self) -> usize {
        self.answers.len()
    }

    /// Sends what the socket accepts; the rest waits. A rank that is gone needs no answer: its end is reported in
    /// another way.
    pub fn send(&mut self, bytes: &[u8], epoll: &Epoll, token: u64) {
        self.answers.extend_from_slice(bytes);
        let mut sent = 0;
        while sent < self.answers.len() {
            match self.stream.write(&self.answers[sent..]) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => sent = self.answers.len(),
            }
        }
        self.answers.drain(..sent);
        let waits = !self.answers.is_empty();
        if waits != self.waits_to_write {
            let flags = if waits { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            if epoll.modify(&self.stream, &mut EpollEvent::new(flags, token)).is_ok() {
                self.waits_to_write = waits;
            }
        }
    }
}

impl AsFd for PmiSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A rank's port, until the rank has connected.
pub struct PmiPort {
    listener: TcpListener,
    address: SocketAddrV4,
    /// Whether the rank's log already mentions a stranger.
    stranger_logged: bool,
}

/// The result of accepting on a port.
pub enum Accepted {
    Rank(PmiSocket),
    /// The peer was not a process of the launch, and was disconnected.
    Stranger,
    Nobody,
}

/// Why a connection to a rank's port is refused.
#[derive(Debug, Error)]
enum ConnectionRefused {
    #[error("its other end cannot be found")]
    Search(#[source] io::Error),
    #[error("its other end is gone")]
    Gone,
    #[error("no process of the launch made it")]
    Stranger,
    #[error("it cannot be used")]
    Unusable(#[source] io::Error),
}

/// The owner of a port, and the processes that may connect.
pub struct PortContext<'a> {
    pub dir: &'a ShimDir,
    pub work: &'a Work,
    /// The launch's number, and its living ranks.
    pub launch: u32,
    pub pids: &'a [i32],
    /// The rank.
    pub rank: u32,
}

impl PmiPort {
    /// Opens any free port.
    pub fn open() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        match listener.local_addr()? {
            SocketAddr::V4(address) => Ok(Self { listener, address, stranger_logged: false }),
            SocketAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// The value of `PMI_PORT`.
    pub fn number(&self) -> u16 {
        self.address.port()
    }

    /// Accepts at most one connection without blocking, if a process of the launch made it: other events are handled
    /// between two strangers. An error: no connection can be accepted now.
    pub fn accept(&mut self, of: &PortContext<'_>) -> io::Result<Accepted> {
        let Some((stream, SocketAddr::V4(peer))) = accepted(self.listener.accept())? else { return Ok(Accepted::Nobody) };
        let taken = self.check(peer, of).and_then(|()| {
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            ready.map_err(ConnectionRefused::Unusable)
        });
        match taken {
            Ok(()) => return Ok(Accepted::Rank(PmiSocket::of(Box::new(stream)))),
            Err(error) if !self.stranger_logged => {
                self.stranger_logged = true;
                let text = format!("a connection to the PMI port of rank {} was refused: {}", of.rank, with_causes(&error));
                log_files::append_error(of.dir, of.launch, of.rank, &text);
            }
            Err(_) => {}
        }
        Ok(Accepted::Stranger)
    }

    /// Checks that the other end is a process of the launch.
    fn check(&self, peer: SocketAddrV4, of: &PortContext<'_>) -> Result<(), ConnectionRefused> {
        let inode = inode_of(peer, self.address).map_err(ConnectionRefused::Search)?.ok_or(ConnectionRefused::Gone)?;
        let link = format!("socket:[{inode}]");
        // Most ranks connect themselves; processes that they started are searched afterwards.
        let held = of.pids.iter().any(|pid| holds(*pid, &link))
            || of.work.processes_of_launch(of.launch, of.pids).iter().any(|pid| holds(*pid, &link));
        if held { Ok(()) } else { Err(ConnectionRefused::Stranger) }
    }
}

impl AsFd for PmiPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn holds(pid: i32, link: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link))
}

/// The inode of the socket at `local` that is connected to `remote`, from the kernel's table; `None`: there is none.
fn inode_of(local: SocketAddrV4, remote: SocketAddrV4) -> io::Result<Option<u64>> {
    let (local, remote) = (in_table(local), in_table(remote));
    for line in BufReader::new(File::open("/proc/self/net/tcp")?).lines() {
        let line = line?;
        // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
        let mut fields = line.split_ascii_whitespace().skip(1);
        if fields.next() == Some(&local) && fields.next() == Some(&remote) {
            // A socket that its process has closed has no inode.
            return Ok(fields.nth(6).and_then(|inode| inode.parse().ok()).filter(|inode| *inode != 0));
        }
    }
    Ok(None)
}

/// An address in the table's notation: the bytes of the address as one number of this machine, and the port, in
/// hexadecimal.
fn in_table(address: SocketAddrV4) -> String {
    format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_connection_and_its_process_are_found() {
        let port = PmiPort::open().unwrap();
        let client = TcpStream::connect(port.address).unwrap();
        let SocketAddr::V4(peer) = client.local_addr().unwrap() else { unreachable!("loopback of version 4") };
        let inode = inode_of(peer, port.address).unwrap().expect("it is connected");
        let me = std::process::id().cast_signed();
        assert!(holds(me, &format!("socket:[{inode}]")));
        assert!(!holds(me, "socket:[0]") && !holds(-1, &format!("socket:[{inode}]")));
        drop(client);
        assert_eq!(inode_of(peer, port.address).unwrap(), None, "nobody holds it any more");
    }
}
