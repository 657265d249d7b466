//! The connections that wait to be accepted, by the cgroup of the listening socket.
//!
//! One request to the kernel (sock_diag(7)) lists the listening TCP sockets of this process's network namespace, and no
//! other sockets, so its cost does not depend on the number of connections. Each socket has the id of the cgroup in
//! which it was made, which is the inode of the cgroup's directory, so no process's descriptors are read. Only sums of
//! the requested cgroups are kept, so others may have any number of sockets. Work has the network of its node; sockets
//! in a network namespace that work makes for itself are not seen.

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use thiserror::Error;

/// The pause after a failure: without the kernel's module, each request tries to load it.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// The kernel sends at most this many bytes at once.
const BUFFER_BYTES: usize = 32 << 10;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
/// `1 << TCP_LISTEN`
const LISTENING: u32 = 1 << 10;

/// The bytes of `struct nlmsghdr`, and of `struct inet_diag_msg` after it.
const HEADER_BYTES: usize = 16;
const SOCKET_BYTES: usize = 72;
/// Of `struct inet_diag_msg`: where the local port and the length of the accept queue are.
const PORT_AT: usize = 4;
const WAITING_AT: usize = 56;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`
const DUMP: u16 = 0x301;
/// The attribute with the cgroup's id.
const INET_DIAG_CGROUP_ID: u16 = 21;
/// Without the flags of an attribute's type.
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// Why the sockets are not known.
#[derive(Debug, Error)]
enum ListError {
    #[error("the kernel cannot be asked for them")]
    Ask(#[source] Errno),
    #[error("the kernel does not list them")]
    Refused(#[source] Errno),
    #[error("the kernel's answer has an unknown form")]
    Malformed,
    #[error("the kernel does not report the cgroup of a socket: Linux 5.9 or newer is needed")]
    NoCgroups,
}

/// One listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listening {
    port: u16,
    /// Established connections that nobody has accepted.
    waiting: u32,
    cgroup: Option<u64>,
}

/// How many connections wait to be accepted, by the id of the cgroup that listens: 0 where none waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptQueues(BTreeMap<u64, u64>);

impl AcceptQueues {
    /// Adds a socket, if it is of one of these cgroups.
    fn add(&mut self, one: Listening, cgroups: &BTreeSet<u64>) -> Result<(), ListError> {
        let cgroup = one.cgroup.ok_or(ListError::NoCgroups)?;
        if cgroups.contains(&cgroup) {
            let waiting = self.0.entry(cgroup).or_default();
            *waiting = waiting.saturating_add(u64::from(one.waiting));
        }
        Ok(())
    }

    /// With these numbers of waiting connections.
    #[cfg(test)]
    pub(super) fn for_test(waiting: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self(waiting.into_iter().collect())
    }

    /// The connections that wait for sockets that were made directly in this cgroup. `None`: none of them listens.
    pub(super) fn of(&self, cgroup: u64) -> Option<u64> {
        self.0.get(&cgroup).copied()
    }
}

/// Asks for the listening sockets again and again.
#[derive(Debug, Default)]
pub struct Listeners {
    socket: Option<OwnedFd>,
    buffer: Vec<u8>,
    sequence: u32,
    failed_at: Option<Instant>,
}

impl Listeners {
    /// The connections that wait now for sockets of these cgroups. `None`: this kernel does not list the sockets with
    /// their cgroups; it is asked again after a minute.
    pub fn look(&mut self, now: Instant, cgroups: &BTreeSet<u64>) -> Option<AcceptQueues> {
        if self.failed_at.is_some_and(|at| now.saturating_duration_since(at) < RETRY_INTERVAL) {
            return None;
        }
        let mut queues = AcceptQueues::default();
        let listed = self.list(|one| queues.add(one, cgroups));
        match listed {
            Ok(()) => {
                self.failed_at = None;
                Some(queues)
            }
            Err(error) => {
                if self.failed_at.is_none() {
                    let why = lattice_model::with_causes(&error);
                    tracing::info!(%why, "connections that wait to be accepted by work are not counted");
                }
                // The rest of an answer may wait at the socket.
                (self.socket, self.failed_at) = (None, Some(now));
                None
            }
        }
    }

    fn list(&mut self, mut take: impl FnMut(Listening) -> Result<(), ListError>) -> Result<(), ListError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let open = || socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkSockDiag);
        let asked = self.socket.take().map_or_else(open, Ok).map_err(ListError::Ask)?;
        self.buffer.resize(BUFFER_BYTES, 0);
        for family in [AF_INET, AF_INET6] {
            self.sequence = self.sequence.wrapping_add(1);
            send(asked.as_raw_fd(), &request(family, self.sequence), MsgFlags::empty()).map_err(ListError::Ask)?;
            // The kernel has prepared each part of the answer before it is read: nothing waits here.
            loop {
                let length = recv(asked.as_raw_fd(), &mut self.buffer, MsgFlags::empty()).map_err(ListError::Ask)?;
                let part = self.buffer.get(..length).ok_or(ListError::Malformed)?;
                if read_part(part, &mut take)? {
                    break;
                }
            }
        }
        self.socket = Some(asked);
        Ok(())
    }
}

/// `struct nlmsghdr`, `struct inet_diag_req_v2`: all listening TCP sockets of a family.
fn request(family: u8, sequence: u32) -> Vec<u8> {
    /// A `struct inet_diag_sockid` that matches any socket.
    const ANY: [u8; 48] = [0; 48];
    let mut body = vec![family, IPPROTO_TCP, 0, 0];
    body.extend(LISTENING.to_ne_bytes());
    body.extend(ANY);
    let length = (HEADER_BYTES + body.len()) as u32;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

/// Reads one part of an answer. `true`: it was the last one.
fn read_part(mut bytes: &[u8], take: &mut impl FnMut(Listening) -> Result<(), ListError>) -> Result<bool, ListError> {
    while !bytes.is_empty() {
        let length = u32::from_ne_bytes(array(bytes, 0)?) as usize;
        let body = bytes.get(HEADER_BYTES..length).ok_or(ListError::Malformed)?;
        match u16::from_ne_bytes(array(bytes, 4)?) {
            kind @ (NLMSG_ERROR | NLMSG_DONE) => {
                let error = i32::from_ne_bytes(array(body, 0)?);
                let refused = error != 0 || kind == NLMSG_ERROR;
                return if refused { Err(ListError::Refused(Errno::from_raw(error.saturating_neg()))) } else { Ok(true) };
            }
            SOCK_DIAG_BY_FAMILY => take(read_socket(body)?)?,
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// `struct inet_diag_msg`, then attributes.
fn read_socket(body: &[u8]) -> Result<Listening, ListError> {
    let mut attributes = body.get(SOCKET_BYTES..).ok_or(ListError::Malformed)?;
    let mut cgroup = None;
    while !attributes.is_empty() {
        let length = usize::from(u16::from_ne_bytes(array(attributes, 0)?));
        let value = attributes.get(4..length).ok_or(ListError::Malformed)?;
        if u16::from_ne_bytes(array(attributes, 2)?) & ATTRIBUTE_TYPE == INET_DIAG_CGROUP_ID {
            cgroup = Some(u64::from_ne_bytes(array(value, 0)?));
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    let (port, waiting) = (u16::from_be_bytes(array(body, PORT_AT)?), u32::from_ne_bytes(array(body, WAITING_AT)?));
    Ok(Listening { port, waiting, cgroup })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], ListError> {
    bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).ok_or(ListError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn listening(port: u16, waiting: u32, cgroup: Option<u64>) -> Vec<u8> {
        let mut body = vec![0; SOCKET_BYTES];
        body[PORT_AT..PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
        body[WAITING_AT..WAITING_AT + 4].copy_from_slice(&waiting.to_ne_bytes());
        // Another attribute, of an odd length.
        body.extend([5u16.to_ne_bytes(), 8u16.to_ne_bytes()].concat());
        body.extend([7, 0, 0, 0]);
        if let Some(cgroup) = cgroup {
            body.extend([12u16.to_ne_bytes(), INET_DIAG_CGROUP_ID.to_ne_bytes()].concat());
            body.extend(cgroup.to_ne_bytes());
        }
        message(SOCK_DIAG_BY_FAMILY, &body)
    }

    fn read(bytes: &[u8]) -> Result<(bool, Vec<Listening>), ListError> {
        let mut listed = Vec::new();
        let last = read_part(bytes, &mut |one| {
            listed.push(one);
            Ok(())
        });
        last.map(|last| (last, listed))
    }

    /// The accept queues of these cgroups.
    fn counted(bytes: &[u8], cgroups: &[u64]) -> Result<AcceptQueues, ListError> {
        let (mut queues, cgroups) = (AcceptQueues::default(), cgroups.iter().copied().collect());
        read_part(bytes, &mut |one| queues.add(one, &cgroups)).map(|_| queues)
    }

    #[test]
    fn connections_are_added_up_by_cgroup() {
        let one = |port, waiting, cgroup| Listening { port, waiting, cgroup };
        let part = [listening(80, 3, Some(7)), listening(443, 2, Some(7)), listening(22, 0, Some(1))].concat();
        let (last, listed) = read(&part).unwrap();
        assert!(!last, "more follows");
        assert_eq!(listed, [one(80, 3, Some(7)), one(443, 2, Some(7)), one(22, 0, Some(1))]);
        let queues = counted(&part, &[1, 7, 9]).unwrap();
        assert_eq!((queues.of(7), queues.of(1), queues.of(9)), (Some(5), Some(0), None));
        let (last, _) = read(&[part, message(NLMSG_DONE, &[0; 4])].concat()).unwrap();
        assert!(last);
        assert!(matches!(counted(&listening(80, 3, None), &[7]), Err(ListError::NoCgroups)), "an older kernel");
    }

    #[test]
    fn refusals_and_damaged_answers_are_errors_and_no_panics() {
        let refused = |kind| read(&message(kind, &(-2i32).to_ne_bytes())).map(|_| ());
        for kind in [NLMSG_ERROR, NLMSG_DONE] {
            assert!(matches!(refused(kind), Err(ListError::Refused(Errno::ENOENT))), "{kind}");
        }
        let whole = [listening(80, 3, Some(7)), message(NLMSG_DONE, &[0; 4])].concat();
        for end in 0..whole.len() {
            let _ = read(&whole[..end]);
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                let _ = read(&damaged);
            }
        }
        assert!(matches!(read(&whole[..30]), Err(ListError::Malformed)));
    }

    #[test]
    fn many_sockets_of_others_are_neither_kept_nor_in_the_way() {
        let others: Vec<u8> = (100..20_100).flat_map(|cgroup| listening(80, 1, Some(cgroup))).collect();
        let queues = counted(&[others, listening(80, 3, Some(7))].concat(), &[7]).unwrap();
        assert_eq!(queues, AcceptQueues::for_test([(7, 3)]));
    }

    /// Of this kernel; skipped if it does not list sockets.
    #[test]
    fn a_connection_waits_until_it_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut listeners = Listeners::default();
        if let Err(error) = listeners.list(|_| Ok(())) {
            eprintln!("skipped: {}", lattice_model::with_causes(&error));
            return;
        }
        let mut waiting = || {
            let mut found = None;
            let take = |one: Listening| {
                found = found.or((one.port == address.port()).then_some(one.waiting));
                Ok(())
            };
            listeners.list(take).unwrap();
            found.unwrap()
        };
        assert_eq!(waiting(), 0);
        let _both = [TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap()];
        assert_eq!(waiting(), 2);
        let _accepted = listener.accept().unwrap();
        assert_eq!(waiting(), 1);
    }
}
