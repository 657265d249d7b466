//! The bodies of datagrams: foca's messages and members in our own encoding. Numbers are big
//! endian.
//!
//! ```text
//!   name     length 1, bytes (0: no particular node)
//!   peer     name, address, address of the mesh, incarnation 8, renewal 4
//!   address  family 1 (4 or 6; of the mesh also 0: the ip of gossip), ip, port 2
//!   member   peer, foca's incarnation 2, state 1
//!   header   peer (from), foca's incarnation 2, peer or an empty name (to), tag 1, the tag's fields
//! ```

use crate::known::Known;
use crate::malformed::Malformed;
use crate::peer::Peer;
use bytes::{Buf, BufMut};
use foca::{Codec, Header, Message, ProbeNumber, State};
use lattice_model::NodeId;
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kind of a datagram: its first byte.
pub(crate) const KIND_FOCA: u8 = 0;
/// See `sync.rs`.
pub(crate) const KIND_PULL: u8 = 1;
/// See `sync.rs`.
pub(crate) const KIND_RECORDS: u8 = 2;

const ANNOUNCE: u8 = 6;

/// The longest encoded [`Peer`].
const PEER_BYTES_MAX: usize = 1 + 63 + 2 * (1 + 16 + 2) + 8 + 4;
/// In place of an address family: the address of the mesh is that of gossip, with another port.
const SAME_IP: u8 = 0;

pub(crate) fn put_node_name(node: &NodeId, buf: &mut impl BufMut) {
    put_name(Some(node), buf);
}

/// A name or, for `None`, an empty one.
pub(crate) fn put_name(node: Option<&NodeId>, buf: &mut impl BufMut) {
    let name = node.map_or("", NodeId::as_str);
    buf.put_u8(name.len() as u8);
    buf.put_slice(name.as_bytes());
}

/// A name, as bytes read from a datagram.
pub(crate) struct Name {
    bytes: [u8; 63],
    len: usize,
}

impl Name {
    pub fn read(buf: &mut impl Buf) -> Result<Self, Malformed> {
        let mut name = Self { bytes: [0; 63], len: usize::from(read_u8(buf)?) };
        let bytes = name.bytes.get_mut(..name.len).ok_or(Malformed("a name that is too long"))?;
        buf.try_copy_to_slice(bytes).map_err(|_| TRUNCATED)?;
        Ok(name)
    }

    /// The text; `None` if the name is empty.
    pub fn text(&self) -> Result<Option<&str>, Malformed> {
        let text = std::str::from_utf8(&self.bytes[..self.len]).map_err(|_| Malformed("a name that is not UTF-8"))?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }
}

/// A name; `None` when it is empty.
pub(crate) fn read_node_name(buf: &mut impl Buf) -> Result<Option<NodeId>, Malformed> {
    let name = Name::read(buf)?;
    name.text()?.map(str::parse).transpose().map_err(|_| Malformed("an invalid node name"))
}

pub(crate) fn put_peer(peer: &Peer, buf: &mut impl BufMut) {
    put_node_name(&peer.node, buf);
    put_ip(peer.addr.ip(), buf);
    buf.put_u16(peer.addr.port());
    if peer.mesh.ip() == peer.addr.ip() {
        buf.put_u8(SAME_IP);
    } else {
        put_ip(peer.mesh.ip(), buf);
    }
    buf.put_u16(peer.mesh.port());
    buf.put_u64(peer.incarnation);
    buf.put_u32(peer.renewal);
}

fn put_ip(ip: IpAddr, buf: &mut impl BufMut) {
    match ip {
        IpAddr::V4(ip) => {
            buf.put_u8(4);
            buf.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            buf.put_u8(6);
            buf.put_slice(&ip.octets());
        }
    }
}

fn read_ip(family: u8, buf: &mut impl Buf) -> Result<IpAddr, Malformed> {
    match family {
        4 => {
            let mut octets = [0u8; 4];
            buf.try_copy_to_slice(&mut octets).map_err(|_| TRUNCATED)?;
            Ok(octets.into())
        }
        6 => {
            let mut octets = [0u8; 16];
            buf.try_copy_to_slice(&mut octets).map_err(|_| TRUNCATED)?;
            Ok(octets.into())
        }
        _ => Err(Malformed("an address of an unknown family")),
    }
}

pub(crate) fn read_peer(buf: &mut impl Buf, known: &Known) -> Result<Peer, Malformed> {
    let name = Name::read(buf)?;
    read_named_peer(name.text()?.ok_or(Malformed("a peer without a name"))?, buf, known)
}

fn read_named_peer(name: &str, buf: &mut impl Buf, known: &Known) -> Result<Peer, Malformed> {
    let ip = read_ip(read_u8(buf)?, buf)?;
    let addr = SocketAddr::new(ip, read_u16(buf)?);
    let mesh_ip = match read_u8(buf)? {
        SAME_IP => ip,
        family => read_ip(family, buf)?,
    };
    let mesh = SocketAddr::new(mesh_ip, read_u16(buf)?);
    let incarnation = buf.try_get_u64().map_err(|_| TRUNCATED)?;
    let renewal = buf.try_get_u32().map_err(|_| TRUNCATED)?;
    known.peer(name, addr, mesh, incarnation, renewal)
}

pub(crate) fn put_member(member: &foca::Member<Peer>, buf: &mut impl BufMut) {
    put_peer(member.id(), buf);
    buf.put_u16(member.incarnation());
    buf.put_u8(match member.state() {
        State::Alive => 0,
        State::Suspect => 1,
        State::Down => 2,
    });
}

pub(crate) fn read_member(buf: &mut impl Buf, known: &Known) -> Result<foca::Member<Peer>, Malformed> {
    let peer = read_peer(buf, known)?;
    let incarnation = read_u16(buf)?;
    let state = match read_u8(buf)? {
        0 => State::Alive,
        1 => State::Suspect,
        2 => State::Down,
        _ => return Err(Malformed("a member in an unknown state")),
    };
    Ok(foca::Member::new(peer, incarnation, state))
}

/// foca's announce, addressed to no name: a cluster is joined before any of its names are known.
pub(crate) fn announce_to_anyone(me: &Peer) -> Vec<u8> {
    let mut body = Vec::new();
    put_peer(me, &mut body);
    // 0 is enough: if others know a higher incarnation, this is not new to them. foca does not
    // expose ours.
    body.put_u16(0);
    put_name(None, &mut body);
    body.put_u8(ANNOUNCE);
    body
}

/// Reads sender, receiver and type of a foca message.
fn read_header(buf: &mut impl Buf, me: &Peer, known: &Known) -> Result<Header<Peer>, Malformed> {
    let src = read_peer(buf, known)?;
    let src_incarnation = read_u16(buf)?;
    let to = Name::read(buf)?;
    let (dst, to_anyone) = match to.text()? {
        Some(name) => (read_named_peer(name, buf, known)?, false),
        None => (me.clone(), true),
    };
    let tag = read_u8(buf)?;
    if to_anyone && tag != ANNOUNCE {
        return Err(Malformed("a message without a receiver that is not an announce"));
    }
    let message = match tag {
        0 => Message::Ping(read_u8(buf)?),
        1 => Message::Ack(read_u8(buf)?),
        2 => Message::PingReq { probe_number: read_u8(buf)?, target: read_peer(buf, known)? },
        3 => Message::IndirectPing { probe_number: read_u8(buf)?, origin: read_peer(buf, known)? },
        4 => Message::IndirectAck { probe_number: read_u8(buf)?, target: read_peer(buf, known)? },
        5 => Message::ForwardedAck { probe_number: read_u8(buf)?, origin: read_peer(buf, known)? },
        ANNOUNCE => Message::Announce,
        7 => Message::Feed,
        8 => Message::Gossip,
        9 => Message::Broadcast,
        10 => Message::TurnUndead,
        _ => return Err(Malformed("a message of an unknown kind")),
    };
    Ok(Header { src, src_incarnation, dst, message })
}

/// A foca message without the updates that its receiver already has.
pub(crate) struct NewInMessage<'a> {
    pub header: Header<Peer>,
    /// Only the new member updates: foca searches its whole list for each, and most updates in
    /// gossip are old.
    pub body: Cow<'a, [u8]>,
    /// Whether an update is new, or the sender, which every message names, is new.
    pub is_new: bool,
    /// The facts after the updates; `None`: this kind of message has no updates.
    pub items: Option<&'a [u8]>,
}

/// Reads the body of a foca message and asks `new` about each member update, and first about the
/// sender.
pub(crate) fn only_new<'a>(
    body: &'a [u8],
    me: &Peer,
    known: &Known,
    mut new: impl FnMut(&Header<Peer>, &foca::Member<Peer>) -> bool,
) -> Result<NewInMessage<'a>, Malformed> {
    let mut rest = body;
    let header = read_header(&mut rest, me, known)?;
    let mut is_new = new(&header, &foca::Member::new(header.src.clone(), header.src_incarnation, State::Alive));
    if matches!(header.message, Message::Announce | Message::Broadcast) || rest.len() < 2 {
        return Ok(NewInMessage { header, body: Cow::Borrowed(body), is_new, items: None });
    }
    let head_bytes = body.len() - rest.len();
    let count = read_u16(&mut rest)?;
    let (mut kept, mut kept_count) = (Vec::new(), 0u16);
    for _ in 0..count {
        let update = rest;
        if new(&header, &read_member(&mut rest, known)?) {
            kept.extend_from_slice(&update[..update.len() - rest.len()]);
            kept_count += 1;
        }
    }
    is_new |= kept_count > 0;
    let body = if kept_count == count {
        Cow::Borrowed(body)
    } else {
        Cow::Owned([&body[..head_bytes], &kept_count.to_be_bytes(), &kept, rest].concat())
    };
    Ok(NewInMessage { header, body, is_new, items: Some(rest) })
}

/// The answer that foca gives to a ping when it has no updates to add.
pub(crate) fn ack(me: &Peer, incarnation: u16, ping: &Header<Peer>, number: ProbeNumber) -> Vec<u8> {
    let mut body = Vec::with_capacity(3 * PEER_BYTES_MAX);
    put_header(&Header { src: me.clone(), src_incarnation: incarnation, dst: ping.src.clone(), message: Message::Ack(number) }, &mut body);
    body.put_u16(0);
    body
}

/// A ping with the suspicion of its receiver. A receiver that is alive answers with a higher foca
/// incarnation.
pub(crate) fn suspicion_ping(me: &Peer, incarnation: u16, suspect: Peer, suspected: u16) -> Vec<u8> {
    let mut body = Vec::with_capacity(3 * PEER_BYTES_MAX);
    // foca numbers its own probes from one, and none of them waits for the answer to this ping.
    put_header(&Header { src: me.clone(), src_incarnation: incarnation, dst: suspect.clone(), message: Message::Ping(0) }, &mut body);
    body.put_u16(1);
    put_member(&foca::Member::new(suspect, suspected, State::Suspect), &mut body);
    body
}

/// Gossip of one member to one node.
pub(crate) fn update_for(me: &Peer, incarnation: u16, to: Peer, member: &foca::Member<Peer>) -> Vec<u8> {
    let mut body = Vec::with_capacity(3 * PEER_BYTES_MAX);
    put_header(&Header { src: me.clone(), src_incarnation: incarnation, dst: to, message: Message::Gossip }, &mut body);
    body.put_u16(1);
    put_member(member, &mut body);
    body
}

/// foca's message to a node that this node declares Down.
pub(crate) fn turn_undead(me: &Peer, incarnation: u16, to: Peer) -> Vec<u8> {
    let mut body = Vec::with_capacity(2 * PEER_BYTES_MAX);
    put_header(&Header { src: me.clone(), src_incarnation: incarnation, dst: to, message: Message::TurnUndead }, &mut body);
    body
}

fn put_header(header: &Header<Peer>, bytes: &mut Vec<u8>) {
    put_peer(&header.src, bytes);
    bytes.put_u16(header.src_incarnation);
    put_peer(&header.dst, bytes);
    match &header.message {
        Message::Ping(number) => bytes.put_slice(&[0, *number]),
        Message::Ack(number) => bytes.put_slice(&[1, *number]),
        Message::PingReq { target, probe_number } => put_relayed(2, *probe_number, target, bytes),
        Message::IndirectPing { origin, probe_number } => put_relayed(3, *probe_number, origin, bytes),
        Message::IndirectAck { target, probe_number } => put_relayed(4, *probe_number, target, bytes),
        Message::ForwardedAck { origin, probe_number } => put_relayed(5, *probe_number, origin, bytes),
        Message::Announce => bytes.put_u8(ANNOUNCE),
        Message::Feed => bytes.put_u8(7),
        Message::Gossip => bytes.put_u8(8),
        Message::Broadcast => bytes.put_u8(9),
        Message::TurnUndead => bytes.put_u8(10),
    }
}

/// foca's codec.
pub(crate) struct Wire {
    me: Peer,
    known: Known,
    refutations: Arc<AtomicU32>,
}

impl Wire {
    /// `refutations` receives how often foca has refuted a suspicion of us, taken from the last
    /// header that foca wrote: foca shows its own incarnation nowhere else.
    pub fn new(me: Peer, known: Known, refutations: Arc<AtomicU32>) -> Self {
        Self { me, known, refutations }
    }
}

impl Codec<Peer> for Wire {
    type Error = Malformed;

    fn encode_header(&mut self, header: &Header<Peer>, mut buf: impl BufMut) -> Result<(), Malformed> {
        self.refutations.store(header.src_incarnation.into(), Ordering::Relaxed);
        let mut bytes = Vec::with_capacity(3 * PEER_BYTES_MAX + 4);
        put_header(header, &mut bytes);
        put_whole(&bytes, &mut buf)
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<Peer>, Malformed> {
        read_header(&mut buf, &self.me, &self.known)
    }

    fn encode_member(&mut self, member: &foca::Member<Peer>, mut buf: impl BufMut) -> Result<(), Malformed> {
        let mut bytes = Vec::with_capacity(PEER_BYTES_MAX + 3);
        put_member(member, &mut bytes);
        put_whole(&bytes, &mut buf)
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<foca::Member<Peer>, Malformed> {
        read_member(&mut buf, &self.known)
    }
}

fn put_relayed(tag: u8, number: u8, peer: &Peer, bytes: &mut Vec<u8>) {
    bytes.put_slice(&[tag, number]);
    put_peer(peer, bytes);
}

/// Writes all of the bytes or none: foca expects an error, not a panic, when its datagram is full.
fn put_whole(bytes: &[u8], buf: &mut impl BufMut) -> Result<(), Malformed> {
    if buf.remaining_mut() < bytes.len() {
        return Err(Malformed("the datagram is full"));
    }
    buf.put_slice(bytes);
    Ok(())
}

const TRUNCATED: Malformed = Malformed("a truncated message");

pub(crate) fn read_u8(buf: &mut impl Buf) -> Result<u8, Malformed> {
    buf.try_get_u8().map_err(|_| TRUNCATED)
}

pub(crate) fn read_u16(buf: &mut impl Buf) -> Result<u16, Malformed> {
    buf.try_get_u16().map_err(|_| TRUNCATED)
}

pub(crate) fn read_u64(buf: &mut impl Buf) -> Result<u64, Malformed> {
    buf.try_get_u64().map_err(|_| TRUNCATED)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::peer::{Life, node_key};
    use proptest::prelude::*;

    pub(crate) fn peers() -> impl Strategy<Value = Peer> {
        let names = "[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}";
        let addresses = (any::<IpAddr>(), any::<u16>(), proptest::option::of(any::<IpAddr>()), any::<u16>());
        (names, addresses, any::<u64>(), any::<u32>()).prop_map(|(node, (ip, port, mesh_ip, mesh_port), incarnation, renewal)| {
            let (addr, mesh) = (SocketAddr::new(ip, port), SocketAddr::new(mesh_ip.unwrap_or(ip), mesh_port));
            Peer::of_life(node_key(&node), Life { renewal, incarnation, addr, mesh, node: node.parse().unwrap() })
        })
    }

    pub(crate) fn members() -> impl Strategy<Value = foca::Member<Peer>> {
        let state = prop_oneof![Just(State::Alive), Just(State::Suspect), Just(State::Down)];
        (peers(), any::<u16>(), state).prop_map(|(peer, incarnation, state)| foca::Member::new(peer, incarnation, state))
    }

    fn messages() -> impl Strategy<Value = Message<Peer>> {
        (0u8..11, any::<u8>(), peers()).prop_map(|(which, probe_number, peer)| match which {
            0 => Message::Ping(probe_number),
            1 => Message::Ack(probe_number),
            2 => Message::PingReq { target: peer, probe_number },
            3 => Message::IndirectPing { origin: peer, probe_number },
            4 => Message::IndirectAck { target: peer, probe_number },
            5 => Message::ForwardedAck { origin: peer, probe_number },
            6 => Message::Announce,
            7 => Message::Feed,
            8 => Message::Gossip,
            9 => Message::Broadcast,
            _ => Message::TurnUndead,
        })
    }

    fn wire() -> Wire {
        Wire::new(Peer::new("me".parse().unwrap(), "10.0.0.1:1".parse().unwrap(), 1, 0), Known::default(), Arc::default())
    }

    proptest! {
        #[test]
        fn headers_and_members_round_trip(src in peers(), src_incarnation: u16, dst in peers(), message in messages(), member in members()) {
            let header = Header { src, src_incarnation, dst, message };
            let mut bytes = Vec::new();
            wire().encode_header(&header, &mut bytes).unwrap();
            wire().encode_member(&member, &mut bytes).unwrap();
            let mut rest = bytes.as_slice();
            prop_assert_eq!(wire().decode_header(&mut rest).unwrap(), header);
            prop_assert_eq!(wire().decode_member(&mut rest).unwrap(), member);
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn a_cut_header_is_refused(src in peers(), dst in peers(), message in messages(), cut in 1usize..200) {
            let mut bytes = Vec::new();
            wire().encode_header(&Header { src, src_incarnation: 0, dst, message }, &mut bytes).unwrap();
            bytes.truncate(bytes.len().saturating_sub(cut));
            prop_assert!(wire().decode_header(bytes.as_slice()).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = wire().decode_header(bytes.as_slice());
            let _ = wire().decode_member(bytes.as_slice());
            let _ = only_new(&bytes, &wire().me, &Known::default(), |_, _| false);
        }
    }

    #[test]
    fn the_reader_of_an_announce_to_anyone_is_its_receiver() {
        let src = Peer::new("new".parse().unwrap(), "10.0.0.7:1".parse().unwrap(), 3, 0);
        let header = wire().decode_header(announce_to_anyone(&src).as_slice()).unwrap();
        assert_eq!((header.src, header.dst, header.message), (src, wire().me, Message::Announce));
    }

    #[test]
    fn messages_to_a_suspect_decode_like_those_of_foca() {
        let (me, known) = (wire().me, Known::default());
        let suspect = Peer::new("s".parse().unwrap(), "10.0.0.7:1".parse().unwrap(), 3, 1);
        let ping = suspicion_ping(&me, 4, suspect.clone(), 2);
        let mut updates = Vec::new();
        let parsed = only_new(&ping, &suspect, &known, |_, member| {
            updates.push(member.clone());
            true
        });
        let header = |message| Header { src: me.clone(), src_incarnation: 4, dst: suspect.clone(), message };
        assert_eq!(parsed.unwrap().header, header(Message::Ping(0)));
        assert_eq!(updates[1..], [foca::Member::new(suspect.clone(), 2, State::Suspect)]);
        let gone = turn_undead(&me, 4, suspect.clone());
        let mut focas = Vec::new();
        wire().encode_header(&header(Message::TurnUndead), &mut focas).unwrap();
        assert_eq!(gone, focas);
    }

    #[test]
    fn known_updates_are_left_out_and_the_rest_is_unchanged() {
        let (me, known) = (wire().me, Known::default());
        let peer = |name: &str| Peer::new(name.parse().unwrap(), "10.0.0.7:1".parse().unwrap(), 1, 0);
        let mut body = Vec::new();
        let header = Header { src: peer("s"), src_incarnation: 2, dst: me.clone(), message: Message::Gossip };
        wire().encode_header(&header, &mut body).unwrap();
        let head = body.clone();
        body.put_u16(2);
        wire().encode_member(&foca::Member::alive(peer("a")), &mut body).unwrap();
        let from = body.len();
        wire().encode_member(&foca::Member::down(peer("b")), &mut body).unwrap();
        let b = body[from..].to_vec();
        body.put_slice(b"the rest");
        let mut seen = Vec::new();
        let less = only_new(&body, &me, &known, |_, member| {
            seen.push((member.id().node.to_string(), member.incarnation()));
            member.state() == State::Down
        });
        let less = less.unwrap();
        assert_eq!(&*less.body, [head.as_slice(), &[0, 1], &b, b"the rest"].concat());
        assert_eq!((less.header, less.is_new, less.items), (header, true, Some(&b"the rest"[..])));
        assert_eq!(seen, [("s".to_owned(), 2), ("a".to_owned(), 0), ("b".to_owned(), 0)]);
        assert!(matches!(only_new(&body, &me, &known, |_, _| true).unwrap().body, Cow::Borrowed(_)));
        assert!(!only_new(&body, &me, &known, |_, _| false).unwrap().is_new);
        assert!(only_new(&body[..from], &me, &known, |_, _| true).is_err(), "truncated within the updates");
    }

    #[test]
    fn a_full_datagram_is_an_error() {
        let member = foca::Member::alive(wire().me);
        assert!(wire().encode_member(&member, (&mut Vec::new()).limit(5)).is_err());
    }
}
