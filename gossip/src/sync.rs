//! Comparing views with a random peer: a newcomer gets thousands of nodes in this way, and a node
//! that lost gossip catches up.
//!
//! ```text
//!   pull      from, to (peers), nonce 8, after (name), upto (name), tag 8 × n
//!   records   from, to (peers), nonce 8, covered (name), (member, length 1, fact item) × n
//! ```
//!
//! A pull names a range of the members in order of their names, `after` < name ≤ `upto` (empty: no
//! bound), and a tag for each record that its sender has in that range. The answer contains the
//! records whose tags the pull lacks, in order. If they do not all fit, `covered` is the name in
//! the last record that did, and the sender of the pull asks for the rest. If nothing in the range
//! is new, this takes one datagram each way.

use crate::fact::FactVersion;
use crate::fact_book::FactBook;
use crate::known::Known;
use crate::malformed::Malformed;
use crate::peer::Peer;
use crate::wire::{put_member, put_name, put_peer, read_member, read_node_name, read_peer, read_u8, read_u64};
use bytes::{Buf, BufMut};
use foca::State;
use lattice_model::NodeId;
use std::ops::Bound;

/// Asks for the records that its sender lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pull {
    pub from: Peer,
    pub to: Peer,
    pub nonce: u64,
    pub range: Range,
    pub tags: Vec<u64>,
}

/// `after` < name ≤ `upto`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub after: Option<NodeId>,
    pub upto: Option<NodeId>,
}

/// Answers a [`Pull`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Records {
    pub from: Peer,
    pub to: Peer,
    pub nonce: u64,
    pub covered: Option<NodeId>,
    pub records: Vec<Record>,
}

/// One member and, when it is known, its fact as it was broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub member: foca::Member<Peer>,
    pub fact_item: Box<[u8]>,
}

impl Range {
    pub fn bounds(&self) -> (Bound<&NodeId>, Bound<&NodeId>) {
        (self.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded), self.upto.as_ref().map_or(Bound::Unbounded, Bound::Included))
    }

    /// Whether the range can contain a name: if not, there is nothing to pull.
    pub fn is_nonempty(&self) -> bool {
        match (&self.after, &self.upto) {
            (Some(after), Some(upto)) => after < upto,
            (None, _) | (_, None) => true,
        }
    }
}

/// The tags of a pull, looked up in the order in which they came. When both sides know the same,
/// each tag is at its expected position. Otherwise the first wrong position makes this sort all
/// tags, once.
pub(crate) struct Tags<'a> {
    tags: &'a [u64],
    next: usize,
    sorted: Option<Vec<(u64, usize)>>,
}

impl<'a> Tags<'a> {
    pub fn new(tags: &'a [u64]) -> Self {
        Self { tags, next: 0, sorted: None }
    }

    pub fn contains(&mut self, tag: u64) -> bool {
        if self.tags.get(self.next) == Some(&tag) {
            self.next += 1;
            return true;
        }
        let sorted = self.sorted.get_or_insert_with(|| {
            let mut sorted: Vec<(u64, usize)> = self.tags.iter().copied().zip(0..).collect();
            sorted.sort_unstable();
            sorted
        });
        let at = sorted.partition_point(|(other, _)| *other < tag);
        match sorted.get(at) {
            Some((other, place)) if *other == tag => {
                self.next = place + 1;
                true
            }
            Some(_) | None => false,
        }
    }
}

impl Pull {
    /// How many tags fit beside the longest possible head.
    pub fn tags_max(body_bytes_max: usize) -> usize {
        body_bytes_max.saturating_sub(2 * 95 + 8 + 2 * 64) / 8
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_peer(&self.from, &mut body);
        put_peer(&self.to, &mut body);
        body.put_u64(self.nonce);
        put_name(self.range.after.as_ref(), &mut body);
        put_name(self.range.upto.as_ref(), &mut body);
        self.tags.iter().for_each(|tag| body.put_u64(*tag));
        body
    }

    pub fn decode(mut body: &[u8], known: &Known) -> Result<Self, Malformed> {
        let buf = &mut body;
        let (from, to, nonce) = (read_peer(buf, known)?, read_peer(buf, known)?, read_u64(buf)?);
        let range = Range { after: read_node_name(buf)?, upto: read_node_name(buf)? };
        if !range.is_nonempty() || !buf.remaining().is_multiple_of(8) {
            return Err(Malformed("a pull with an empty range, or a truncated pull"));
        }
        let mut tags = Vec::with_capacity(buf.remaining() / 8);
        while buf.has_remaining() {
            tags.push(read_u64(buf)?);
        }
        Ok(Self { from, to, nonce, range, tags })
    }
}

impl Records {
    /// Builds the answer to a pull: records of `lacking`, in order of their names, until one does
    /// not fit.
    pub fn answer(me: &Peer, pull: &Pull, lacking: impl IntoIterator<Item = Record>, body_bytes_max: usize) -> Self {
        let mut answer = Self { from: me.clone(), to: pull.from.clone(), nonce: pull.nonce, covered: None, records: Vec::new() };
        let mut room = body_bytes_max.saturating_sub(answer.encode().len() + 63);
        for record in lacking {
            let mut bytes = Vec::new();
            record.put(&mut bytes);
            if bytes.len() > room {
                answer.covered = answer.records.last().map(|last: &Record| last.member.id().node.clone());
                break;
            }
            room -= bytes.len();
            answer.records.push(record);
        }
        answer
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_peer(&self.from, &mut body);
        put_peer(&self.to, &mut body);
        body.put_u64(self.nonce);
        put_name(self.covered.as_ref(), &mut body);
        self.records.iter().for_each(|record| record.put(&mut body));
        body
    }

    pub fn decode(mut body: &[u8], known: &Known) -> Result<Self, Malformed> {
        let buf = &mut body;
        let (from, to, nonce, covered) = (read_peer(buf, known)?, read_peer(buf, known)?, read_u64(buf)?, read_node_name(buf)?);
        let mut records = Vec::new();
        while buf.has_remaining() {
            let member = read_member(buf, known)?;
            let mut fact_item = vec![0; usize::from(read_u8(buf)?)].into_boxed_slice();
            buf.try_copy_to_slice(&mut fact_item).map_err(|_| Malformed("a truncated record"))?;
            records.push(Record { member, fact_item });
        }
        Ok(Self { from, to, nonce, covered, records })
    }
}

impl Record {
    pub fn new(member: foca::Member<Peer>, facts: &FactBook) -> Self {
        let fact_item = facts.get(member.id().key).map(|known| known.item.clone()).unwrap_or_default();
        Self { member, fact_item }
    }

    fn put(&self, body: &mut Vec<u8>) {
        put_member(&self.member, body);
        // A name, a version and a fact: at most 124 bytes.
        body.put_u8(self.fact_item.len() as u8);
        body.put_slice(&self.fact_item);
    }
}

/// The tag by which two nodes compare what they know about a third. It does not depend on
/// suspicion, which is short and spreads by gossip.
pub(crate) fn tag(peer: &Peer, state: State, fact: Option<FactVersion>) -> u64 {
    let active = match state {
        State::Alive | State::Suspect => 1,
        State::Down => 0,
    };
    let fact = fact.map_or((0, 0), |version| (version.incarnation.wrapping_add(1), u64::from(version.counter)));
    let words = [peer.key, peer.incarnation, u64::from(peer.renewal), active, fact.0, fact.1];
    // FNV-1a: every sender of tags has the key, so the hash need not resist forgery.
    words
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::{members, peers};
    use proptest::prelude::*;

    fn pull(from: Peer, to: Peer) -> Pull {
        Pull { from, to, nonce: 7, range: Range::default(), tags: vec![] }
    }

    proptest! {
        #[test]
        fn pulls_and_records_round_trip(
            from in peers(), to in peers(), nonce: u64, tags in proptest::collection::vec(any::<u64>(), 0..50),
            members in proptest::collection::vec((members(), proptest::collection::vec(any::<u8>(), 0..124)), 0..9),
        ) {
            let range = Range { after: None, upto: Some(to.node.clone()) };
            let pull = Pull { from: from.clone(), to: to.clone(), nonce, range, tags };
            prop_assert_eq!(Pull::decode(&pull.encode(), &Known::default()).unwrap(), pull);
            let records = members.into_iter().map(|(member, item)| Record { member, fact_item: item.into() }).collect();
            let records = Records { from, to, nonce, covered: None, records };
            prop_assert_eq!(Records::decode(&records.encode(), &Known::default()).unwrap(), records);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Pull::decode(&bytes, &Known::default());
            let _ = Records::decode(&bytes, &Known::default());
        }

        #[test]
        fn an_answer_fits_and_names_its_last_record(
            from in peers(), to in peers(), body_bytes_max in (crate::PACKET_BYTES_MIN - crate::SEAL_BYTES - 1)..1_342,
            members in proptest::collection::vec(members(), 1..40),
        ) {
            let lacking: Vec<Record> = members.into_iter().map(|member| Record { member, fact_item: vec![0; 124].into() }).collect();
            let answer = Records::answer(&to, &pull(from, to.clone()), lacking.clone(), body_bytes_max);
            prop_assert!(answer.encode().len() <= body_bytes_max && !answer.records.is_empty());
            let last = answer.records.last().map(|record| record.member.id().node.clone());
            prop_assert_eq!(answer.covered, if answer.records.len() < lacking.len() { last } else { None });
        }
    }

    proptest! {
        #[test]
        fn a_tag_is_found_at_any_position(tags in proptest::collection::vec(0u64..40, 0..40), asked in proptest::collection::vec(0u64..40, 0..80)) {
            let mut all = Tags::new(&tags);
            for tag in tags.iter().chain(&asked).chain(&tags) {
                prop_assert_eq!(all.contains(*tag), tags.contains(tag));
            }
        }
    }

    #[test]
    fn an_empty_range_is_refused() {
        let peer = Peer::new("a".parse().unwrap(), "10.0.0.1:1".parse().unwrap(), 1, 0);
        let name = |text: &str| Some(text.parse().unwrap());
        let backwards = Pull { range: Range { after: name("b"), upto: name("a") }, ..pull(peer.clone(), peer) };
        assert!(Pull::decode(&backwards.encode(), &Known::default()).is_err());
    }
}
