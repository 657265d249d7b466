//! The owner of a TCP socket on the loopback: the kernel reports it (`sock_diag`, linux/inet_diag.h) for one socket, by
//! its addresses.
//!
//! A socket keeps the cgroup of the process that made it, whatever happens to that process; a connection that a
//! listening socket accepts has the listener's cgroup. So the cgroup of a connection's other end shows who was allowed
//! to make it, before a byte is sent. This needs no search through the descriptors of all processes, which change while
//! they are read.

use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, send, socket};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// `SOCK_DIAG_BY_FAMILY`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLMSG_ERROR`.
const NLMSG_ERROR: u16 = 2;
/// `INET_DIAG_CGROUP_ID`.
const INET_DIAG_CGROUP_ID: u16 = 21;
/// `TCP_LISTEN`.
const TCP_LISTEN: u8 = 10;
/// `TCP_ESTABLISHED`, and `TCP_CLOSE_WAIT`: the other end has finished sending.
const CONNECTED_STATES: [u8; 2] = [1, 8];
/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_msg`.
const MESSAGE_BYTES: usize = 72;
/// Buffer for one answer.
const ANSWER_BYTES_MAX: usize = 8192;

/// The owner of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whose {
    /// The user that made it.
    pub uid: u32,
    /// The cgroup of the v2 tree in which it was made: its directory's inode. `None`: this kernel does not keep it.
    pub cgroup: Option<u64>,
}

/// The listener that a connection to this port of 127.0.0.1 would reach now; `None`: nobody listens there.
///
/// # Errors
/// The kernel does not report it.
pub fn listener(port: u16) -> io::Result<Option<Whose>> {
    let found = listening(port)?;
    if found.is_none() && !kernel_reports()? {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "sock_diag is not available (modprobe tcp_diag)"));
    }
    Ok(found)
}

fn listening(port: u16) -> io::Result<Option<Whose>> {
    let found = ask_kernel(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    Ok(found.filter(|(state, _)| *state == TCP_LISTEN).map(|(_, whose)| whose))
}

/// Whether the kernel reports an existing socket. If it cannot load `tcp_diag`, it reports each socket as missing.
fn kernel_reports() -> io::Result<bool> {
    static REPORTS: AtomicBool = AtomicBool::new(false);
    if REPORTS.load(Ordering::Relaxed) {
        return Ok(true);
    }
    let own = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let found = listening(own.local_addr()?.port())?.is_some();
    // A kernel that does not report may load the module later.
    REPORTS.store(found, Ordering::Relaxed);
    Ok(found)
}

/// The owner of the other end of a connection on this machine. `None`: the end does not exist yet (it is made with the
/// last step of the handshake, or with the first byte if its owner chose that), or no longer. `local`, `peer`: the
/// addresses of this end.
///
/// # Errors
/// The kernel does not report it.
pub fn other_end(local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Option<Whose>> {
    Ok(ask_kernel(peer, local)?.filter(|(state, _)| CONNECTED_STATES.contains(state)).map(|(_, whose)| whose))
}

fn ask_kernel(its: SocketAddrV4, others: SocketAddrV4) -> io::Result<Option<(u8, Whose)>> {
    let netlink = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    send(netlink.as_raw_fd(), &encode_request(its, others), MsgFlags::empty())?;
    let mut answer = [0u8; ANSWER_BYTES_MAX];
    // The answer is there when the request was accepted.
    let (length, from) = recvfrom::<NetlinkAddr>(netlink.as_raw_fd(), &mut answer)?;
    if from.is_none_or(|from| from.pid() != 0) {
        return Err(io::Error::other("an answer that is not the kernel's"));
    }
    decode_answer(answer.get(..length).unwrap_or_default())
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn encode_request(its: SocketAddrV4, others: SocketAddrV4) -> Vec<u8> {
    const REQUEST: u16 = 1;
    // `AF_INET`, `IPPROTO_TCP`.
    const INET: u8 = 2;
    const TCP: u8 = 6;
    const ANY_STATE: u32 = u32::MAX;
    const NO_COOKIE: u32 = u32::MAX;
    let mut body = Vec::with_capacity(HEADER_BYTES + 56);
    let length = u32::try_from(HEADER_BYTES + 56).unwrap_or(u32::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    body.extend(REQUEST.to_ne_bytes());
    body.extend([0; 8]);
    // A search by IPv4 address also finds an IPv6 socket that serves it.
    body.extend([INET, TCP, 0, 0]);
    body.extend(ANY_STATE.to_ne_bytes());
    body.extend(its.port().to_be_bytes());
    body.extend(others.port().to_be_bytes());
    for address in [its, others] {
        body.extend(address.ip().octets());
        body.extend([0; 12]);
    }
    body.extend(0u32.to_ne_bytes());
    body.extend(NO_COOKIE.to_ne_bytes());
    body.extend(NO_COOKIE.to_ne_bytes());
    body
}

/// Its state and its owner.
fn decode_answer(answer: &[u8]) -> io::Result<Option<(u8, Whose)>> {
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "an answer that cannot be read");
    let length = usize::try_from(number(answer, 0).ok_or_else(odd)?).map_err(|_| odd())?;
    let kind = short(answer, 4).ok_or_else(odd)?;
    let answer = answer.get(..length).ok_or_else(odd)?;
    if kind == NLMSG_ERROR {
        let errno = number(answer, HEADER_BYTES).ok_or_else(odd)?.cast_signed();
        return match -errno {
            libc::ENOENT => Ok(None),
            errno => Err(io::Error::from_raw_os_error(errno)),
        };
    }
    if kind != SOCK_DIAG_BY_FAMILY {
        return Err(odd());
    }
    let state = *answer.get(HEADER_BYTES + 1).ok_or_else(odd)?;
    let uid = number(answer, HEADER_BYTES + 64).ok_or_else(odd)?;
    let mut attributes = answer.get(HEADER_BYTES + MESSAGE_BYTES..).ok_or_else(odd)?;
    let mut cgroup = None;
    while let (Some(length), Some(kind)) = (short(attributes, 0), short(attributes, 2)) {
        let length = usize::from(length);
        let value = attributes.get(4..length).ok_or_else(odd)?;
        if kind == INET_DIAG_CGROUP_ID {
            cgroup = Some(u64::from_ne_bytes(value.try_into().map_err(|_| odd())?));
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(Some((state, Whose { uid, cgroup })))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    fn v4(address: SocketAddr) -> SocketAddrV4 {
        match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(address) => panic!("{address}"),
        }
    }

    #[test]
    fn the_kernel_reports_who_listens_and_who_accepts() {
        let own = Some(nix::unistd::geteuid().as_raw());
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let listens = TcpListener::bind(address).unwrap();
            let port = listens.local_addr().unwrap().port();
            let there = listener(port).unwrap();
            assert_eq!(there.map(|whose| whose.uid), own, "{address}");
            let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (local, peer) = (v4(stream.local_addr().unwrap()), v4(stream.peer_addr().unwrap()));
            // Nobody has accepted the connection yet: its owner is known all the same.
            let end = other_end(local, peer).unwrap().unwrap();
            assert_eq!(end.cgroup, there.unwrap().cgroup, "{address}");
            assert!(end.cgroup.is_some(), "{address}");
            let accepted = listens.accept().unwrap();
            assert_eq!(other_end(local, peer).unwrap().map(|whose| whose.uid), own, "{address}");
            drop((accepted, listens));
            assert_eq!((listener(port).unwrap(), other_end(local, peer).unwrap()), (None, None), "{address}");
        }
        let alone = TcpListener::bind("[::1]:0").unwrap();
        assert_eq!(listener(alone.local_addr().unwrap().port()).unwrap(), None, "it is not reached at 127.0.0.1");
    }

    #[test]
    fn what_is_no_answer_is_an_error_and_no_panic() {
        let mut answer = vec![0u8; HEADER_BYTES + MESSAGE_BYTES];
        assert!(decode_answer(&answer).is_err());
        answer[..4].copy_from_slice(&88u32.to_ne_bytes());
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert_eq!(decode_answer(&answer).unwrap(), Some((0, Whose { uid: 0, cgroup: None })));
        // An attribute with a length beyond the message, and one of length zero.
        for length in [200u16, 0, 3] {
            let mut odd = answer.clone();
            odd.extend(length.to_ne_bytes());
            odd.extend(INET_DIAG_CGROUP_ID.to_ne_bytes());
            let all = u32::try_from(odd.len()).unwrap();
            odd[..4].copy_from_slice(&all.to_ne_bytes());
            assert!(decode_answer(&odd).is_err(), "{length}");
        }
        for length in 0..answer.len() {
            assert!(decode_answer(&answer[..length]).is_err(), "{length}");
        }
    }
}
