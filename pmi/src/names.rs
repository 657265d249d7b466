//! Names that ranks publish for the other ranks of their launch. The server of the launch's first
//! part has the directory; the others send it requests.
//!
//! ```text
//!   rank ─ ask ─▶ Names of its node ─ Call: pending asks ──────▶ Names of part 0: Directory
//!                        ◀────────── Call: the answers ─────────
//! ```
//!
//! A part has one unanswered call at a time, with increasing numbers. The directory stores its last
//! answer to each part and repeats it if the call is repeated, so a repeated request is executed
//! once, even if agents died meanwhile.
//!
//! Names belong to one launch: spawning and connections between launches are not supported. The
//! directory is in the first part's server, because that server already stores the launch's state
//! and survives agents. A directory in the head's agent would have to be rebuilt from all nodes
//! before it could answer that a name does not exist. With a directory on every node, each
//! publication would wait for all nodes.

use crate::kvs::Kvs;
use crate::wire::{NameRefused, VALUE_BYTES_MAX};
use lattice_model::call::{BODY_BYTES_MAX, Call, CallKind, Service};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Largest size of a value published over PMIx, in bytes.
pub(crate) const PUBLISHED_BYTES_MAX: usize = 64 * 1024;
/// Size of such a value's header, in bytes: its rank and its type.
pub(crate) const PUBLISHED_HEADER_BYTES: usize = 6;
/// The part that has the directory.
const DIRECTORY: u32 = 0;
/// Largest number of requests in one call.
const ASKS_MAX: usize = 256;
/// Largest total size of the names and values in one call, in bytes; a single larger request is
/// allowed.
const ASKS_BYTES_MAX: usize = 256 * 1024;
/// Largest total size of the answers to one call that a caller expects, in bytes; well below [`BODY_BYTES_MAX`], beyond
/// which agents would not carry the answer.
const ANSWERS_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Largest size of one answer without its value, in bytes: the names of its variants, and lengths.
const ANSWER_HEADER_BYTES: usize = 32;
/// Largest number of requests waiting on one node.
const WAITING_MAX: usize = 1 << 14;
/// Largest total size of the names and values in waiting requests, in bytes.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A request to the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    Publish {
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    Unpublish {
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    Lookup {
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
}

impl Ask {
    fn bytes(&self) -> usize {
        match self {
            Self::Publish { name, value } => name.len() + value.len(),
            Self::Unpublish { name } | Self::Lookup { name } => name.len(),
        }
    }

    /// The largest size of the answer, in bytes.
    fn answer_bytes_max(&self, service: Service) -> usize {
        let value_bytes_max = match (self, service) {
            (Self::Publish { .. } | Self::Unpublish { .. }, _) => 0,
            (Self::Lookup { .. }, Service::Names) => VALUE_BYTES_MAX,
            (Self::Lookup { .. }, Service::Published | Service::Modex | Service::Deaths) => PUBLISHED_HEADER_BYTES + PUBLISHED_BYTES_MAX,
        };
        ANSWER_HEADER_BYTES + value_bytes_max
    }
}

/// The directory's answer; for a lookup, the value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answered {
    Done,
    Found(#[serde(with = "serde_bytes")] Vec<u8>),
    Refused(NameRefused),
}

/// A result to deliver, or a call to send to another part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named<W> {
    Answer { who: W, answered: Answered },
    Call(Call),
}

/// The client side on one node, and on the first part also the directory. `W` identifies who waits
/// for an answer.
#[derive(Debug)]
pub(crate) struct Names<W> {
    part: u32,
    service: Service,
    /// Used on the first part only.
    directory: Directory,
    /// Number of calls so far.
    number: u64,
    under_way: Option<UnderWay<W>>,
    waiting: VecDeque<(W, Ask)>,
    waiting_bytes: usize,
}

#[derive(Debug)]
struct UnderWay<W> {
    call: Call,
    who: Vec<W>,
}

impl<W> Names<W> {
    pub(crate) fn new(part: u32, service: Service) -> Self {
        let directory = Directory { names: Kvs::small(), last: BTreeMap::new() };
        Self { part, service, directory, number: 0, under_way: None, waiting: VecDeque::new(), waiting_bytes: 0 }
    }

    /// Adds a rank's request.
    pub(crate) fn ask(&mut self, who: W, ask: Ask, out: &mut Vec<Named<W>>) {
        if self.part == DIRECTORY {
            let answered = self.directory.decide(ask);
            return out.push(Named::Answer { who, answered });
        }
        let bytes = self.waiting_bytes + ask.bytes();
        if self.waiting.len() >= WAITING_MAX || bytes > WAITING_BYTES_MAX {
            return out.push(Named::Answer { who, answered: Answered::Refused(NameRefused::Full) });
        }
        self.waiting_bytes = bytes;
        self.waiting.push_back((who, ask));
        self.start_next_call(out);
    }

    /// Handles a call or an answer from another part.
    pub(crate) fn called(&mut self, call: &Call, out: &mut Vec<Named<W>>) {
        match call.kind {
            CallKind::Request if self.part == DIRECTORY => {
                if let Some(body) = self.directory.answer(call) {
                    out.push(Named::Call(call.answer(body)));
                }
            }
            CallKind::Request => out.extend(call.unserved().map(Named::Call)),
            CallKind::Reply => self.answered(call, out),
        }
    }

    /// The call to repeat from time to time.
    pub(crate) fn unanswered(&self) -> Option<&Call> {
        self.under_way.as_ref().map(|under_way| &under_way.call)
    }

    /// Those who wait for an answer.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &W> {
        let under_way = self.under_way.iter().flat_map(|under_way| &under_way.who);
        under_way.chain(self.waiting.iter().map(|(who, _)| who))
    }

    fn answered(&mut self, call: &Call, out: &mut Vec<Named<W>>) {
        let is_it = |under_way: &mut UnderWay<W>| under_way.call.number == call.number && call.from == DIRECTORY;
        let Some(UnderWay { who, .. }) = self.under_way.take_if(is_it) else { return };
        // The other node's shim runs as its user, so its answer is not trusted.
        let mut answers = decoded::<Vec<Answered>>(&call.body).unwrap_or_default().into_iter();
        out.extend(who.into_iter().map(|who| {
            let answered = answers.next().unwrap_or(Answered::Refused(NameRefused::Unserved));
            Named::Answer { who, answered }
        }));
        self.start_next_call(out);
    }

    /// Starts the next call with the pending requests, as many as the bounds of a call and of its answer allow.
    fn start_next_call(&mut self, out: &mut Vec<Named<W>>) {
        if self.under_way.is_some() {
            return;
        }
        let service = self.service;
        let (mut who, mut asks, mut bytes, mut answer_bytes) = (Vec::new(), Vec::new(), 0, 0);
        while let Some((asker, ask)) = self.waiting.pop_front_if(|(_, ask)| {
            let fits = bytes + ask.bytes() <= ASKS_BYTES_MAX && answer_bytes + ask.answer_bytes_max(service) <= ANSWERS_BYTES_MAX;
            asks.is_empty() || (asks.len() < ASKS_MAX && fits)
        }) {
            bytes += ask.bytes();
            answer_bytes += ask.answer_bytes_max(service);
            who.push(asker);
            asks.push(ask);
        }
        if asks.is_empty() {
            return;
        }
        self.waiting_bytes -= bytes;
        self.number += 1;
        let (from, number) = (self.part, self.number);
        let call = Call { from, to: DIRECTORY, service, kind: CallKind::Request, number, body: encoded(&asks) };
        out.push(Named::Call(call.clone()));
        self.under_way = Some(UnderWay { call, who });
    }
}

/// The published names, and for each part the last answer with its number.
#[derive(Debug)]
struct Directory {
    names: Kvs,
    last: BTreeMap<u32, (u64, Vec<u8>)>,
}

impl Directory {
    fn decide(&mut self, ask: Ask) -> Answered {
        match ask {
            Ask::Publish { name, .. } if self.names.get(&name).is_some() => Answered::Refused(NameRefused::Published),
            Ask::Publish { name, value } => match self.names.put(&name, &value) {
                Ok(()) => Answered::Done,
                Err(_) => Answered::Refused(NameRefused::Full),
            },
            Ask::Unpublish { name } if self.names.remove(&name) => Answered::Done,
            Ask::Lookup { name } => match self.names.get(&name) {
                Some(value) => Answered::Found(value.to_vec()),
                None => Answered::Refused(NameRefused::NotPublished),
            },
            Ask::Unpublish { .. } => Answered::Refused(NameRefused::NotPublished),
        }
    }

    /// Refuses a value that would make the answer too long to be carried: without an answer, the
    /// caller would repeat its call for ever. A caller that keeps the bounds never asks for so
    /// much.
    fn decide_all(&mut self, asks: Vec<Ask>) -> Vec<Answered> {
        let mut bytes_left = BODY_BYTES_MAX - (ASKS_MAX + 1) * ANSWER_HEADER_BYTES;
        let decide = |ask| match self.decide(ask) {
            Answered::Found(value) => match bytes_left.checked_sub(value.len()) {
                Some(left) => {
                    bytes_left = left;
                    Answered::Found(value)
                }
                None => Answered::Refused(NameRefused::Full),
            },
            other => other,
        };
        asks.into_iter().map(decide).collect()
    }

    /// `None`: the caller has already received a later answer.
    fn answer(&mut self, call: &Call) -> Option<Vec<u8>> {
        match self.last.get(&call.from) {
            Some((last, body)) if *last == call.number => return Some(body.clone()),
            Some((last, _)) if *last > call.number => return None,
            Some(_) | None => {}
        }
        // An invalid body is answered like a service that is not available.
        let asks = decoded::<Vec<Ask>>(&call.body).filter(|asks| asks.len() <= ASKS_MAX);
        let body = asks.map(|asks| encoded(&self.decide_all(asks))).unwrap_or_default();
        self.last.insert(call.from, (call.number, body.clone()));
        Some(body)
    }
}

fn encoded<T: Serialize>(what: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(what).expect("plain data can be written to memory")
}

fn decoded<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Option<T> {
    rmp_serde::from_slice(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Who = (u32, usize);

    fn publish(name: &str, value: &str) -> Ask {
        Ask::Publish { name: name.into(), value: value.into() }
    }

    fn lookup(name: &str) -> Ask {
        Ask::Lookup { name: name.into() }
    }

    fn asked(names: &mut Names<Who>, who: Who, ask: Ask) -> Vec<Named<Who>> {
        let mut out = Vec::new();
        names.ask(who, ask, &mut out);
        out
    }

    fn called(names: &mut Names<Who>, call: &Call) -> Vec<Named<Who>> {
        let mut out = Vec::new();
        names.called(call, &mut out);
        out
    }

    fn call(out: &[Named<Who>]) -> Call {
        match out {
            [Named::Call(call)] => call.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn answer(who: Who, answered: Answered) -> Named<Who> {
        Named::Answer { who, answered }
    }

    #[test]
    fn requests_made_during_a_call_are_sent_in_the_next_one() {
        let (mut first, mut other) = (Names::new(0, Service::Names), Names::new(3, Service::Names));
        let one = call(&asked(&mut other, (3, 0), publish("a", "1")));
        assert_eq!(asked(&mut other, (3, 1), lookup("a")), []);
        assert_eq!(asked(&mut other, (3, 2), publish("a", "2")), []);
        let answers = called(&mut first, &one);
        // A repeated call is executed once.
        assert_eq!(called(&mut first, &one), answers);
        let out = called(&mut other, &call(&answers));
        assert_eq!(out[0], answer((3, 0), Answered::Done));
        let two = call(&out[1..]);
        let answers = called(&mut first, &two);
        assert_eq!(called(&mut first, &one), [], "an old one is over");
        let found = answer((3, 1), Answered::Found(b"1".to_vec()));
        assert_eq!(called(&mut other, &call(&answers)), [found, answer((3, 2), Answered::Refused(NameRefused::Published))]);
        assert_eq!(called(&mut other, &call(&answers)), [], "answered once");
        assert_eq!(asked(&mut first, (0, 0), lookup("a")), [answer((0, 0), Answered::Found(b"1".to_vec()))]);
    }

    #[test]
    fn nobody_waits_where_calls_are_not_served() {
        let mut other = Names::new(1, Service::Names);
        let asks = call(&asked(&mut other, (1, 0), lookup("a")));
        let refused = answer((1, 0), Answered::Refused(NameRefused::Unserved));
        assert_eq!(called(&mut other, &asks.unserved().unwrap()), [refused]);
        assert_eq!(other.unanswered(), None);
        // A part without the directory says so.
        assert_eq!(call(&called(&mut other, &Call { to: 1, from: 2, ..asks.clone() })).body, b"");
    }

    #[test]
    fn what_waits_is_bounded_and_a_call_too() {
        let mut other = Names::new(1, Service::Names);
        let large = "v".repeat(200 * 1024);
        let first = call(&asked(&mut other, (1, 0), publish("a", "")));
        let fits = (1..1000).take_while(|n| asked(&mut other, (1, *n), publish("a", &large)).is_empty()).count();
        assert_eq!(fits, WAITING_BYTES_MAX / (large.len() + 1));
        let next = call(&called(&mut other, &first.answer(encoded(&[Answered::Done])))[1..]);
        assert!(next.body.len() < large.len() + 100, "one at a time where they are large");
        let mut other = Names::new(1, Service::Names);
        let first = call(&asked(&mut other, (1, 0), lookup("a")));
        let fits = (1..100_000).take_while(|n| asked(&mut other, (1, *n), lookup("a")).is_empty()).count();
        assert_eq!(fits, WAITING_MAX);
        let next = call(&called(&mut other, &first.answer(encoded(&[Answered::Done])))[1..]);
        assert_eq!(decoded::<Vec<Ask>>(&next.body).map(|asks| asks.len()), Some(ASKS_MAX));
    }

    /// Calls until everybody has an answer: those answers, and the number of calls.
    fn answers_of_all(first: &mut Names<Who>, other: &mut Names<Who>) -> (Vec<Answered>, usize) {
        let (mut answers, mut calls) = (Vec::new(), 0);
        while let Some(asks) = other.unanswered().cloned() {
            let answer = call(&called(first, &asks));
            assert!(answer.body.len() <= ANSWERS_BYTES_MAX, "{} bytes", answer.body.len());
            answers.extend(called(other, &answer).into_iter().filter_map(|named| match named {
                Named::Answer { answered, .. } => Some(answered),
                Named::Call(_) => None,
            }));
            calls += 1;
        }
        (answers, calls)
    }

    #[test]
    fn large_values_are_answered_in_several_calls() {
        let value = "v".repeat(PUBLISHED_HEADER_BYTES + PUBLISHED_BYTES_MAX);
        let (mut first, mut other) = (Names::new(0, Service::Published), Names::new(1, Service::Published));
        asked(&mut first, (0, 0), publish("a", &value));
        for n in 0..256 {
            asked(&mut other, (1, n), lookup("a"));
        }
        let (answers, calls) = answers_of_all(&mut first, &mut other);
        assert_eq!(answers, vec![Answered::Found(value.into_bytes()); 256]);
        // One alone, then 47 at a time.
        assert_eq!(calls, 7);
        // Names of PMI have short values: as many as fit in a call.
        let (mut first, mut other) = (Names::new(0, Service::Names), Names::new(1, Service::Names));
        for n in 0..=256 {
            asked(&mut other, (1, n), lookup("a"));
        }
        assert_eq!(answers_of_all(&mut first, &mut other).1, 2);
    }

    #[test]
    fn an_answer_too_long_to_be_carried_is_refused_in_part() {
        let value = "v".repeat(PUBLISHED_HEADER_BYTES + PUBLISHED_BYTES_MAX);
        let mut first = Names::new(0, Service::Published);
        asked(&mut first, (0, 0), publish("a", &value));
        let asks = [vec![lookup("a"); 128], vec![publish("b", "")], vec![lookup("-"); 127]].concat();
        let large_call = Call { from: 1, to: 0, service: Service::Published, kind: CallKind::Request, number: 1, body: encoded(&asks) };
        let answer = call(&called(&mut first, &large_call));
        assert!(answer.body.len() <= BODY_BYTES_MAX, "{} bytes", answer.body.len());
        let answers = decoded::<Vec<Answered>>(&answer.body).unwrap();
        let found = answers.iter().filter(|answered| matches!(answered, Answered::Found(_))).count();
        assert_eq!((answers.len(), found), (256, 63));
        assert_eq!(answers[63..128], vec![Answered::Refused(NameRefused::Full); 65]);
        assert_eq!(answers[128], Answered::Done);
    }

    proptest! {
        /// Calls are lost, duplicated and delayed: each request is answered once, and the answer
        /// matches what the directory did.
        #[test]
        fn each_answered_request_was_executed_once(steps in prop::collection::vec((1..3u32, 0..3u8, 0..3u8, 0..3u8), 1..200)) {
            let mut parts: Vec<Names<Who>> = (0..3).map(|part| Names::new(part, Service::Names)).collect();
            let mut answers: BTreeMap<Who, Answered> = BTreeMap::new();
            let (mut asks, mut old) = (BTreeMap::new(), Vec::<Call>::new());
            let deliver = |parts: &mut Vec<Names<Who>>, calls: Vec<Call>, answers: &mut BTreeMap<Who, Answered>, old: &mut Vec<Call>| {
                let mut calls = VecDeque::from(calls);
                while let Some(call) = calls.pop_front() {
                    old.push(call.clone());
                    for named in called(&mut parts[call.to as usize], &call) {
                        match named {
                            Named::Call(call) => calls.push_back(call),
                            Named::Answer { who, answered } => assert!(answers.insert(who, answered).is_none(), "{who:?} twice"),
                        }
                    }
                }
            };
            for (number, (part, what, name, fate)) in steps.into_iter().enumerate() {
                let name = name.to_string();
                let ask = match what {
                    0 => publish(&name, &number.to_string()),
                    1 => Ask::Unpublish { name: name.into() },
                    _ => lookup(&name),
                };
                asks.insert((part, number), ask.clone());
                let out = asked(&mut parts[part as usize], (part, number), ask);
                let new: Vec<Call> = out.into_iter().filter_map(|named| match named { Named::Call(call) => Some(call), _ => None }).collect();
                match fate {
                    // The call arrives, and so does an old one.
                    0 => {
                        deliver(&mut parts, new, &mut answers, &mut old);
                        let again = old.get(number / 2).cloned();
                        deliver(&mut parts, again.into_iter().collect(), &mut answers, &mut old);
                    }
                    // The directory receives it, and its answer is lost.
                    1 => for call in new { called(&mut parts[0], &call); },
                    // The call is lost.
                    _ => {}
                }
            }
            for part in [1, 2] {
                while let Some(call) = parts[part].unanswered().cloned() {
                    deliver(&mut parts, vec![call], &mut answers, &mut old);
                }
            }
            prop_assert_eq!(answers.len(), asks.len());
            // The number of publications equals that of unpublications plus the names that exist.
            for name in ["0", "1", "2"] {
                let count = |wanted: fn(&Ask) -> bool| asks.iter().filter(|(who, ask)| {
                    let of = match ask { Ask::Publish { name, .. } | Ask::Unpublish { name } | Ask::Lookup { name } => name };
                    wanted(ask) && of == name.as_bytes() && answers[*who] == Answered::Done
                }).count();
                let there = parts[0].directory.names.get(name.as_bytes()).is_some();
                prop_assert_eq!(count(|ask| matches!(ask, Ask::Publish { .. })), count(|ask| matches!(ask, Ask::Unpublish { .. })) + usize::from(there));
            }
        }
    }
}
