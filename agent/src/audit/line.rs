//! Audit events as lines of JSON. Bytes from a process may be anything: what is not UTF-8 is also
//! given in hexadecimal.

use lattice_ebpf::call_name;
use lattice_ebpf::layout::{
    CALL_ACCEPT, CALL_COMPAT, CALL_CONNECT, CALL_CREAT, CALL_OPEN, CALL_OPENAT, CALL_OPENAT2, CALL_URING, Event, URING_ACCEPT,
    URING_CONNECT, URING_OPENAT, URING_OPENAT2,
};
use nix::errno::Errno;
use serde_json::{Map, Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The present time, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    pub now_ms: u64,
    pub boottime_ms: u64,
}

/// The allocation's owner.
#[derive(Clone, Debug)]
pub struct Owner {
    pub uid: u32,
    pub name: String,
}

/// The kernel's results for a call that a signal interrupted and that may be restarted:
/// `ERESTARTSYS` and the following numbers.
const INTERRUPTED: std::ops::RangeInclusive<i64> = 512..=516;

/// A line: the audit begins here.
pub fn begun(now_ms: u64) -> Vec<u8> {
    whole(now_ms, json!({ "event": "started" }))
}

/// A line: the audit ended here. All events until then are in the record, or reported as lost.
pub fn ended(at_ms: u64) -> Vec<u8> {
    whole(at_ms, json!({ "event": "ended" }))
}

/// A line: a gap in which no agent read the kernel's events.
pub fn gap(from_ms: u64, to_ms: u64) -> Vec<u8> {
    whole(to_ms, json!({ "event": "gap", "from_ms": from_ms, "to_ms": to_ms }))
}

/// A line: `count` events are missing in the record.
pub fn lost(now_ms: u64, count: u64) -> Vec<u8> {
    whole(now_ms, json!({ "event": "lost", "count": count }))
}

/// The line of one event.
pub fn of(event: &Event, data: &[u8], clocks: Clocks, owner: &Owner) -> Vec<u8> {
    let ago_ms = clocks.boottime_ms.saturating_sub(event.at_ns / 1_000_000);
    let (uid, gid) = (event.gid_uid as u32, (event.gid_uid >> 32) as u32);
    let user = match uid {
        uid if uid == owner.uid => Some(owner.name.as_str()),
        0 => Some("root"),
        _ => None,
    };
    let mut line = Map::new();
    let what = match event.kind {
        CALL_OPEN | CALL_OPENAT | CALL_OPENAT2 | CALL_CREAT => "open",
        CALL_CONNECT => "connect",
        CALL_ACCEPT => "accept",
        CALL_COMPAT => "call_32",
        CALL_URING => "io_uring",
        _ => "unknown",
    };
    line.insert("event".into(), what.into());
    let call = if event.kind == CALL_URING { operation(event.number) } else { call_name(event.kind, event.number) };
    line.insert("call".into(), call.map_or_else(|| event.number.into(), Value::from));
    line.insert("pid".into(), ((event.pid_tid >> 32) as u32).into());
    line.insert("tid".into(), (event.pid_tid as u32).into());
    line.insert("uid".into(), uid.into());
    line.insert("user".into(), user.into());
    line.insert("gid".into(), gid.into());
    put_text(&mut line, "command", up_to_zero(&event.command));
    match event.kind {
        CALL_OPEN | CALL_OPENAT | CALL_OPENAT2 | CALL_CREAT => {
            put_path(&mut line, event, data);
            if event.kind != CALL_CREAT {
                line.insert("flags".into(), flags(event.flags).into());
            }
            if matches!(event.kind, CALL_OPENAT | CALL_OPENAT2) && event.descriptor != libc::AT_FDCWD {
                line.insert("directory_fd".into(), event.descriptor.into());
            }
        }
        CALL_CONNECT => {
            line.insert("fd".into(), event.descriptor.into());
            line.insert("protocol".into(), protocol(event));
            match event.unread {
                0 => put_address(&mut line, data),
                _ => drop(line.insert("address".into(), Value::Null)),
            }
        }
        CALL_ACCEPT => {
            line.insert("fd".into(), event.descriptor.into());
            line.insert("protocol".into(), protocol(event));
            let [a, b, c, d, ..] = event.remote;
            let remote = match i32::from(event.family) {
                libc::AF_INET => Some(IpAddr::from(Ipv4Addr::new(a, b, c, d))),
                libc::AF_INET6 => Some(IpAddr::from(Ipv6Addr::from(event.remote))),
                _ => None,
            };
            line.insert("family".into(), family(event.family));
            if let Some(remote) = remote {
                line.insert("address".into(), remote.to_string().into());
                line.insert("port".into(), u16::from_be(event.remote_port).into());
                line.insert("local_port".into(), event.local_port.into());
            }
        }
        CALL_URING if matches!(event.number, URING_OPENAT | URING_OPENAT2) => put_path(&mut line, event, data),
        _ => {}
    }
    if event.kind != CALL_URING {
        match event.result {
            failed @ -4095..0 => drop(line.insert("error".into(), error(-failed).into())),
            result => drop(line.insert("result".into(), result.into())),
        }
    }
    whole(clocks.now_ms.saturating_sub(ago_ms), Value::Object(line))
}

/// The time comes first: it distinguishes an event from other lines.
fn whole(at_ms: u64, line: Value) -> Vec<u8> {
    let rest = line.to_string();
    format!("{{\"at_ms\":{at_ms},{}\n", rest.strip_prefix('{').unwrap_or("}")).into_bytes()
}

fn up_to_zero(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())]
}

/// Adds the bytes as text; if they are not UTF-8, also in hexadecimal.
fn put_text(line: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    line.insert(name.to_owned(), String::from_utf8_lossy(bytes).into());
    if std::str::from_utf8(bytes).is_err() {
        line.insert(format!("{name}_hex"), hex(bytes).into());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn put_path(line: &mut Map<String, Value>, event: &Event, data: &[u8]) {
    match event.unread {
        0 => put_text(line, "path", up_to_zero(data)),
        _ => drop(line.insert("path".into(), Value::Null)),
    }
}

fn put_address(line: &mut Map<String, Value>, data: &[u8]) {
    let Some((of, rest)) = data.split_first_chunk::<2>() else {
        line.insert("address_hex".into(), hex(data).into());
        return;
    };
    let of = u16::from_ne_bytes(*of);
    line.insert("family".into(), family(of));
    let port = |rest: &[u8]| rest.first_chunk::<2>().map(|port| u16::from_be_bytes(*port));
    let ip = match i32::from(of) {
        libc::AF_INET => rest.get(2..).and_then(<[u8]>::first_chunk::<4>).map(|ip| IpAddr::from(*ip)),
        // The flow label comes after the port.
        libc::AF_INET6 => rest.get(6..).and_then(<[u8]>::first_chunk::<16>).map(|ip| IpAddr::from(*ip)),
        _ => None,
    };
    match (ip, port(rest)) {
        (Some(ip), Some(port)) => {
            line.insert("address".into(), ip.to_string().into());
            line.insert("port".into(), port.into());
        }
        // An abstract address begins with a 0.
        _ if i32::from(of) == libc::AF_UNIX => match rest.split_first() {
            Some((0, name)) => put_text(line, "address", &[&b"@"[..], name].concat()),
            _ => put_text(line, "address", up_to_zero(rest)),
        },
        _ => drop(line.insert("address_hex".into(), hex(rest).into())),
    }
}

fn operation(number: u32) -> Option<&'static str> {
    match number {
        URING_ACCEPT => Some("accept"),
        URING_CONNECT => Some("connect"),
        URING_OPENAT => Some("openat"),
        URING_OPENAT2 => Some("openat2"),
        _ => None,
    }
}

fn family(of: u16) -> Value {
    match i32::from(of) {
        libc::AF_INET => "inet".into(),
        libc::AF_INET6 => "inet6".into(),
        libc::AF_UNIX => "unix".into(),
        libc::AF_NETLINK => "netlink".into(),
        libc::AF_VSOCK => "vsock".into(),
        other => other.into(),
    }
}

/// The protocol of a socket; null if the descriptor was not a socket.
fn protocol(event: &Event) -> Value {
    let by_type = match i32::from(event.socket_type) {
        libc::SOCK_STREAM => "stream",
        libc::SOCK_DGRAM => "datagram",
        libc::SOCK_SEQPACKET => "seqpacket",
        libc::SOCK_RAW => "raw",
        _ => return Value::Null,
    };
    match (i32::from(event.family), i32::from(event.protocol)) {
        (libc::AF_INET | libc::AF_INET6, libc::IPPROTO_TCP) => "tcp".into(),
        (libc::AF_INET | libc::AF_INET6, libc::IPPROTO_UDP) => "udp".into(),
        (libc::AF_INET | libc::AF_INET6, libc::IPPROTO_SCTP) => "sctp".into(),
        (libc::AF_INET | libc::AF_INET6, libc::IPPROTO_MPTCP) => "mptcp".into(),
        (libc::AF_INET | libc::AF_INET6, libc::IPPROTO_ICMP | libc::IPPROTO_ICMPV6) => "icmp".into(),
        _ => by_type.into(),
    }
}

/// Open flags by their names in C; bits without a name as one number at the end.
fn flags(bits: u64) -> String {
    let access = match bits & libc::O_ACCMODE as u64 {
        0 => "O_RDONLY",
        1 => "O_WRONLY",
        2 => "O_RDWR",
        _ => "O_ACCMODE",
    };
    let mut left = bits & !(libc::O_ACCMODE as u64);
    let mut all = access.to_owned();
    // A flag that contains another's bits comes before it.
    let named = [
        ("O_TMPFILE", libc::O_TMPFILE),
        ("O_SYNC", libc::O_SYNC),
        ("O_CREAT", libc::O_CREAT),
        ("O_EXCL", libc::O_EXCL),
        ("O_NOCTTY", libc::O_NOCTTY),
        ("O_TRUNC", libc::O_TRUNC),
        ("O_APPEND", libc::O_APPEND),
        ("O_NONBLOCK", libc::O_NONBLOCK),
        ("O_DSYNC", libc::O_DSYNC),
        ("O_DIRECT", libc::O_DIRECT),
        ("O_DIRECTORY", libc::O_DIRECTORY),
        ("O_NOFOLLOW", libc::O_NOFOLLOW),
        ("O_NOATIME", libc::O_NOATIME),
        ("O_CLOEXEC", libc::O_CLOEXEC),
        ("O_PATH", libc::O_PATH),
    ];
    for (name, flag) in named {
        let flag = flag as u64;
        if left & flag == flag {
            left &= !flag;
            all += "|";
            all += name;
        }
    }
    if left != 0 {
        all += &format!("|{left:#x}");
    }
    all
}

fn error(number: i64) -> String {
    if INTERRUPTED.contains(&number) {
        return "interrupted".to_owned();
    }
    match Errno::from_raw(i32::try_from(number).unwrap_or(0)) {
        Errno::UnknownErrno => number.to_string(),
        known => format!("{known:?}"),
    }
}

#[cfg(test)]
mod tests;
