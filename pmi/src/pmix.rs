//! The PMIx state of one launch on one node: its ranks, and its numbered fences.
//!
//! The library in `lattice-pmix` answers the requests of ranks; this module holds the state that
//! must survive agents and be consistent between nodes. A fence works as in PMI: it is numbered,
//! each node contributes once, and contributions are replayed after a reconnection. Its data is
//! opaque to us, so it is sent as the values of records with one common key: the concatenation of
//! blobs is the concatenation of the data. Published data is handled like PMI names, in a directory
//! of its own.

use crate::blob::{self, BLOB_BYTES_MAX};
use crate::bridge::{AnswerStatus, FromBridge, MODEX_NOT_SUPPORTED, MODEX_TOO_LONG, Published, Question, ToBridge};
use crate::deaths::{Death, Deaths};
use crate::names::{Answered, Ask, Named, Names, PUBLISHED_BYTES_MAX, PUBLISHED_HEADER_BYTES};
use crate::wire::{Excerpt, NameRefused, VALUE_BYTES_MAX};
use lattice_model::call::{BODY_BYTES_MAX, Call, CallKind, Service};
use std::collections::{BTreeMap, BTreeSet};

/// The key of the records into which the library's data is split.
const DATA_KEY: &[u8] = b"x";
/// Largest size of a key, in bytes: `PMIX_MAX_KEYLEN`.
const PUBLISHED_KEY_BYTES_MAX: usize = 511;
/// Largest number of a node's unanswered questions, and of keys in one question.
const QUESTIONS_MAX: usize = 4096;
/// Largest total size of the values found for one question, in bytes: twice what a directory has. Only a question that
/// repeats keys finds more, and its answer would not fit a frame to the bridge.
const FOUND_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The code of a launch that this server aborts by itself.
const ABORT_CODE: i32 = 1;

/// Input events.
#[derive(Debug)]
pub enum PmixEvent<'a> {
    /// A message from the bridge.
    Message(FromBridge),
    /// The bridge reported that a rank finalized while its process was ending, so the rank may have
    /// died.
    Left { rank: u32 },
    /// The bridge reported that a rank's connection ended without finalize, while its process was
    /// ending.
    LostAtEnd { rank: u32 },
    /// The launch is being ended: exits of ranks from now on are not reported.
    BroughtDown,
    /// The bridge is gone, or sent invalid data.
    BridgeLost { why: &'a str },
    /// A rank's process was reaped; `local` is its index among the node's ranks.
    Exited { local: u32, code: i32 },
    /// The head's result of a fence.
    FenceDone { number: u32, blob: &'a [u8] },
    /// A call or an answer of [`Service::Published`] or [`Service::Modex`] from another node's
    /// server.
    Called(&'a Call),
}

/// What the caller must do.
#[derive(Debug, PartialEq, Eq)]
pub enum PmixAction {
    /// Send this message to the bridge.
    Send(ToBridge),
    /// Send this contribution to the head.
    Fence { number: u32, blob: Vec<u8> },
    /// Send this call to another node's server, and repeat it while it is
    /// [`PmixServer::unanswered`].
    Call(Call),
    /// Abort the launch.
    Abort { code: i32, why: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Has not used PMIx: possibly an ordinary program.
    Fresh,
    /// Between init and finalize.
    Joined,
    /// Its connection ended together with its process, and it had sent finalize: its exit code
    /// decides.
    Left,
    /// Its connection ended together with its process, without finalize: it died, with any exit code.
    Lost,
    /// It announced a normal end, or its exit is known.
    Over,
}

/// A rank of this node. Messages about it and its exit arrive in any order: its process may be
/// reaped before the bridge reports it.
#[derive(Debug)]
struct LocalRank {
    rank: u32,
    phase: Phase,
    /// Its exit code, after it was reaped.
    ended: Option<i32>,
}

impl LocalRank {
    /// The code with which it died between init and finalize, if known: other ranks would wait for
    /// it for ever.
    fn died_early(&self) -> Option<i32> {
        match self.phase {
            Phase::Fresh | Phase::Over => None,
            Phase::Joined | Phase::Left => self.ended.filter(|code| *code != 0),
            Phase::Lost => self.ended,
        }
    }
}

#[derive(Clone, Debug)]
struct Contribution {
    number: u32,
    blob: Vec<u8>,
}

/// The question and the index of its key that a directory request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asker {
    id: u64,
    key: usize,
}

/// A question with unanswered keys.
#[derive(Debug)]
struct Asked {
    keys: Vec<String>,
    answers: BTreeMap<usize, Answered>,
}

impl Asked {
    /// The status of the question, and the values found.
    fn ended(self) -> (AnswerStatus, Vec<Published>) {
        let mut found = Vec::new();
        let mut refused = None;
        let keys = self.keys.len();
        let mut good = 0;
        for (key, answered) in self.keys.into_iter().zip(self.answers.into_values()) {
            match answered {
                Answered::Done => good += 1,
                Answered::Found(bytes) => {
                    good += 1;
                    found.extend(decode_published(key, &bytes));
                }
                Answered::Refused(why) => refused = Some(why),
            }
        }
        let status = match refused {
            None => AnswerStatus::Done,
            Some(NameRefused::NotPublished) if good > 0 && good < keys => AnswerStatus::Partly,
            Some(NameRefused::NotPublished) => AnswerStatus::NotFound,
            Some(NameRefused::Published) => AnswerStatus::Duplicate,
            Some(NameRefused::Full | NameRefused::BadLength | NameRefused::HasBlank) => AnswerStatus::Full,
            Some(NameRefused::Unserved) => AnswerStatus::NotSupported,
        };
        if found.iter().map(|published| published.value.len()).sum::<usize>() > FOUND_BYTES_MAX {
            return (AnswerStatus::Full, Vec::new());
        }
        (status, found)
    }
}

fn encode_published(published: &Published) -> Vec<u8> {
    [&published.rank.to_le_bytes()[..], &published.data_type.to_le_bytes(), &published.value].concat()
}

fn decode_published(key: String, bytes: &[u8]) -> Option<Published> {
    let ([a, b, c, d, e, f], value) = bytes.split_first_chunk::<PUBLISHED_HEADER_BYTES>()?;
    let (rank, data_type) = (u32::from_le_bytes([*a, *b, *c, *d]), u16::from_le_bytes([*e, *f]));
    Some(Published { key, rank, data_type, value: value.to_vec() })
}

/// Requests for data that ranks put, made before any fence. Each is repeated to the node that has
/// the rank, until that node answers.
#[derive(Debug)]
struct Modex {
    part: u32,
    /// For each rank, the part that has it.
    parts: Vec<u32>,
    number: u64,
    /// By call number: the bridge's question id, and the unanswered call.
    asked: BTreeMap<u64, (u64, Call)>,
    /// The (part, number) of requests that were passed to the bridge and are not answered yet.
    giving: BTreeSet<(u32, u64)>,
}

impl Modex {
    fn ask(&mut self, id: u64, rank: u32, out: &mut Vec<PmixAction>) {
        let to = self.parts.get(rank as usize).copied().filter(|to| *to != self.part);
        let Some(to) = to.filter(|_| self.asked.len() < QUESTIONS_MAX) else {
            return out.push(unsupported(id));
        };
        self.number += 1;
        let (from, number) = (self.part, self.number);
        let call = Call { from, to, service: Service::Modex, kind: CallKind::Request, number, body: rank.to_le_bytes().to_vec() };
        self.asked.insert(number, (id, call.clone()));
        out.push(PmixAction::Call(call));
    }

    fn called(&mut self, call: &Call, out: &mut Vec<PmixAction>) {
        match call.kind {
            CallKind::Request => {
                let rank = call.body.as_slice().try_into().ok().map(u32::from_le_bytes);
                let Some(rank) = rank.filter(|rank| self.parts.get(*rank as usize) == Some(&self.part)) else {
                    return out.extend(call.unserved().map(PmixAction::Call));
                };
                // A repeated request is passed on once; if there are too many, the other node will
                // repeat it.
                if self.giving.len() < QUESTIONS_MAX && self.giving.insert((call.from, call.number)) {
                    out.push(PmixAction::Send(ToBridge::GiveModex { from: call.from, number: call.number, rank }));
                }
            }
            CallKind::Reply => {
                let Some((id, _)) = self.asked.get(&call.number).filter(|(_, asked)| asked.to == call.from) else { return };
                let id = *id;
                self.asked.remove(&call.number);
                out.push(match call.body.split_first_chunk::<4>() {
                    Some((status, data)) => {
                        PmixAction::Send(ToBridge::Modex { id, status: i32::from_le_bytes(*status), data: data.to_vec() })
                    }
                    None => unsupported(id),
                });
            }
        }
    }

    fn given(&mut self, from: u32, number: u64, status: i32, data: &[u8], out: &mut Vec<PmixAction>) {
        if !self.giving.remove(&(from, number)) {
            return;
        }
        let (status, data) = if data.len() + 4 > BODY_BYTES_MAX { (MODEX_TOO_LONG, &[][..]) } else { (status, data) };
        let body = [&status.to_le_bytes()[..], data].concat();
        let (kind, service) = (CallKind::Reply, Service::Modex);
        out.push(PmixAction::Call(Call { from: self.part, to: from, service, kind, number, body }));
    }
}

fn death_action(Death { rank, code }: Death) -> PmixAction {
    PmixAction::Send(ToBridge::Died { rank, code })
}

fn unsupported(id: u64) -> PmixAction {
    PmixAction::Send(ToBridge::Modex { id, status: MODEX_NOT_SUPPORTED, data: Vec::new() })
}

/// The PMIx server of one launch on one node, without the library.
#[derive(Debug)]
pub struct PmixServer {
    ranks: Vec<LocalRank>,
    /// Whether this node has all ranks, so that fences are local.
    alone: bool,
    names: Names<Asker>,
    /// The unanswered questions, by the bridge's id.
    asked: BTreeMap<u64, Asked>,
    modex: Modex,
    deaths: Deaths,
    fences: u32,
    last: Option<Contribution>,
    pending: Option<Contribution>,
    aborted: bool,
    brought_down: bool,
}

impl PmixServer {
    /// `ranks`: this node's global ranks, by local rank; `parts`: for each global rank, the part of
    /// its node; `part`: this node's part.
    pub fn new(ranks: &[u32], parts: Vec<u32>, part: u32) -> Self {
        let alone = ranks.len() == parts.len();
        let deaths = Deaths::new(part, parts.iter().max().map_or(1, |last| last + 1));
        let modex = Modex { part, parts, number: 0, asked: BTreeMap::new(), giving: BTreeSet::new() };
        Self {
            ranks: ranks.iter().map(|rank| LocalRank { rank: *rank, phase: Phase::Fresh, ended: None }).collect(),
            alone,
            names: Names::new(part, Service::Published),
            asked: BTreeMap::new(),
            modex,
            deaths,
            fences: 0,
            last: None,
            pending: None,
            aborted: false,
            brought_down: false,
        }
    }

    /// Whether any rank uses PMIx, or did.
    pub fn is_used(&self) -> bool {
        self.ranks.iter().any(|local| local.phase == Phase::Joined) || self.fences > 0 || self.pending.is_some()
    }

    /// The ranks that may be missing in a fence in which others wait. Only the library knows which
    /// ranks have reached it, but a rank that is not connected has not.
    pub fn absent(&self) -> Vec<u32> {
        let not_connected: Vec<u32> = self.ranks.iter().filter(|local| local.phase != Phase::Joined).map(|local| local.rank).collect();
        if not_connected.is_empty() { self.ranks.iter().map(|local| local.rank).collect() } else { not_connected }
    }

    /// What a new head needs: the contributions to the last completed and to the pending fence.
    pub fn replay(&self) -> Vec<PmixAction> {
        let fence = |c: &Contribution| PmixAction::Fence { number: c.number, blob: c.blob.clone() };
        self.last.iter().chain(&self.pending).map(fence).collect()
    }

    /// Handles an event. After an abort, questions are not answered any more, but deaths are still
    /// reported.
    pub fn handle(&mut self, event: PmixEvent<'_>, out: &mut Vec<PmixAction>) {
        match event {
            PmixEvent::BroughtDown => self.brought_down = true,
            PmixEvent::Called(call) if call.service == Service::Deaths => {
                let parts = &self.modex.parts;
                let mut calls = Vec::new();
                let new = self.deaths.called(call, |rank| parts.get(rank as usize).copied(), &mut calls);
                out.extend(new.into_iter().map(death_action));
                out.extend(calls.into_iter().map(PmixAction::Call));
            }
            // Let it exit: the launch is being ended anyway and has its reason.
            PmixEvent::Message(FromBridge::Aborted { rank, .. }) if self.brought_down => {
                out.push(PmixAction::Send(ToBridge::Left { rank }));
            }
            _ if self.aborted => {}
            PmixEvent::Message(message) => self.handle_message(message, out),
            PmixEvent::Left { rank } => self.set_phase(rank, Phase::Left, out),
            PmixEvent::LostAtEnd { rank } => self.lost_at_end(rank, out),
            PmixEvent::BridgeLost { why } => {
                if self.ranks.iter().any(|local| local.phase == Phase::Joined) {
                    self.abort(ABORT_CODE, format!("the PMIx server of this node is gone: {why}"), out);
                }
            }
            PmixEvent::Exited { local, code } => self.exited(local, code, out),
            PmixEvent::FenceDone { number, blob } => self.fence_done(number, blob, out),
            PmixEvent::Called(call) if call.service == Service::Modex => self.modex.called(call, out),
            PmixEvent::Called(call) => self.update_names(out, |names, named| names.called(call, named)),
        }
    }

    /// The calls to other parts that are not answered yet.
    pub fn unanswered(&self) -> impl Iterator<Item = &Call> {
        let modex = self.modex.asked.values().map(|(_, call)| call);
        self.names.unanswered().into_iter().chain(modex).filter(|_| !self.aborted).chain(self.deaths.unanswered())
    }

    fn handle_message(&mut self, message: FromBridge, out: &mut Vec<PmixAction>) {
        match message {
            FromBridge::Joined { rank } => self.set_phase(rank, Phase::Joined, out),
            FromBridge::Finalized { rank } => self.set_phase(rank, Phase::Over, out),
            FromBridge::Lost { rank } => {
                if self.ranks.iter().any(|local| local.rank == rank && local.phase == Phase::Joined) {
                    let what = "lost its connection to the PMIx server between MPI_Init and MPI_Finalize, while its process lives";
                    self.abort(ABORT_CODE, format!("rank {rank} {what}: did a program that it started die?"), out);
                }
            }
            FromBridge::Aborted { rank, code, message } => {
                let text = if message.is_empty() { String::new() } else { format!(": {}", Excerpt(message.as_bytes())) };
                self.abort(code, format!("rank {rank} aborted the launch with code {code}{text}"), out);
            }
            FromBridge::Fence { data } => self.fence(&data, out),
            FromBridge::Ask { id, question } => self.ask(id, question, out),
            FromBridge::Modex { from, number, status, data } => self.modex.given(from, number, status, &data, out),
            FromBridge::Failed { why } => {
                self.abort(ABORT_CODE, format!("the PMIx server of this node failed: {}", Excerpt(why.as_bytes())), out);
            }
            FromBridge::Ready { .. } => self.abort(ABORT_CODE, "the PMIx server of this node began twice".to_owned(), out),
        }
    }

    /// A finalize that arrived earlier counts.
    fn lost_at_end(&mut self, rank: u32, out: &mut Vec<PmixAction>) {
        if self.ranks.iter().any(|local| local.rank == rank && local.phase == Phase::Joined) {
            self.set_phase(rank, Phase::Lost, out);
        }
    }

    fn set_phase(&mut self, rank: u32, phase: Phase, out: &mut Vec<PmixAction>) {
        let Some(local) = self.ranks.iter_mut().find(|local| local.rank == rank) else { return };
        // A rank whose process lives may init again, such as the next program of a shell.
        if local.phase == Phase::Over && local.ended.is_some() {
            return;
        }
        // Some libraries report a finalize for each lost connection.
        if local.phase == Phase::Lost && matches!(phase, Phase::Left | Phase::Over) {
            return;
        }
        local.phase = phase;
        if let Some(code) = local.died_early() {
            self.died_early(rank, code, out);
        }
    }

    /// Whether a rank that ended with code 0 may have sent a finalize that has not arrived yet: a
    /// rank does not wait for ever for the answer to a finalize.
    pub fn may_have_finalized(&self, local: u32) -> bool {
        self.ranks.get(local as usize).is_some_and(|local| local.phase == Phase::Joined) && !self.aborted
    }

    fn exited(&mut self, local: u32, code: i32, out: &mut Vec<PmixAction>) {
        let Some(local) = self.ranks.get_mut(local as usize) else { return };
        local.ended = Some(code);
        let rank = local.rank;
        if matches!(local.phase, Phase::Joined | Phase::Lost) || local.died_early().is_some() {
            self.died_early(rank, code, out);
        } else if code != 0 {
            self.died(rank, code, out);
        }
    }

    fn died_early(&mut self, rank: u32, code: i32, out: &mut Vec<PmixAction>) {
        if let Some(local) = self.ranks.iter_mut().find(|local| local.rank == rank) {
            local.phase = Phase::Over;
        }
        self.died(rank, code, out);
        let how = match code {
            129..=192 => format!("ended with code {code} (128 + signal {})", code - 128),
            _ => format!("exited with code {code}"),
        };
        let code = if code == 0 { ABORT_CODE } else { code };
        self.abort(code, format!("rank {rank} {how} between MPI_Init and MPI_Finalize"), out);
    }

    /// Reports a death once to the ranks that registered for it.
    fn died(&mut self, rank: u32, code: i32, out: &mut Vec<PmixAction>) {
        let (death, mut calls) = (Death { rank, code }, Vec::new());
        if !self.brought_down && self.deaths.died(death, &mut calls) {
            out.push(death_action(death));
            out.extend(calls.into_iter().map(PmixAction::Call));
        }
    }

    fn ask(&mut self, id: u64, question: Question, out: &mut Vec<PmixAction>) {
        let (keys, asks): (Vec<String>, Vec<Ask>) = match question {
            Question::Publish(published) => {
                let value = encode_published(&published);
                let name = published.key.clone().into_bytes();
                (vec![published.key], vec![Ask::Publish { name, value }])
            }
            Question::Lookup { keys } => {
                let asks = keys.iter().map(|key| Ask::Lookup { name: key.clone().into_bytes() }).collect();
                (keys, asks)
            }
            Question::Unpublish { keys } => {
                let asks = keys.iter().map(|key| Ask::Unpublish { name: key.clone().into_bytes() }).collect();
                (keys, asks)
            }
            Question::Modex { rank } => return self.modex.ask(id, rank, out),
        };
        let waiting: usize = self.asked.values().map(|asked| asked.keys.len()).sum();
        let is_long = |ask: &Ask| match ask {
            Ask::Publish { name, value } => name.len() > PUBLISHED_KEY_BYTES_MAX || value.len() > PUBLISHED_BYTES_MAX,
            Ask::Unpublish { name } | Ask::Lookup { name } => name.len() > PUBLISHED_KEY_BYTES_MAX,
        };
        let refused = if keys.is_empty() || self.asked.contains_key(&id) {
            Some(AnswerStatus::NotSupported)
        } else {
            (waiting + keys.len() > QUESTIONS_MAX || asks.iter().any(is_long)).then_some(AnswerStatus::Full)
        };
        if let Some(status) = refused {
            return out.push(PmixAction::Send(ToBridge::Answered { id, status, found: Vec::new() }));
        }
        self.asked.insert(id, Asked { keys, answers: BTreeMap::new() });
        for (key, ask) in asks.into_iter().enumerate() {
            self.update_names(out, |names, named| names.ask(Asker { id, key }, ask, named));
        }
    }

    fn update_names(&mut self, out: &mut Vec<PmixAction>, update: impl FnOnce(&mut Names<Asker>, &mut Vec<Named<Asker>>)) {
        let mut results = Vec::new();
        update(&mut self.names, &mut results);
        for named in results {
            match named {
                Named::Answer { who, answered } => self.deliver_answer(who, answered, out),
                Named::Call(call) => out.push(PmixAction::Call(call)),
            }
        }
    }

    fn deliver_answer(&mut self, Asker { id, key }: Asker, answered: Answered, out: &mut Vec<PmixAction>) {
        let Some(asked) = self.asked.get_mut(&id) else { return };
        asked.answers.insert(key, answered);
        if asked.answers.len() == asked.keys.len()
            && let Some((status, found)) = self.asked.remove(&id).map(Asked::ended)
        {
            out.push(PmixAction::Send(ToBridge::Answered { id, status, found }));
        }
    }

    fn fence(&mut self, data: &[u8], out: &mut Vec<PmixAction>) {
        if self.alone {
            return out.push(PmixAction::Send(ToBridge::Fenced { data: data.to_vec() }));
        }
        let next = self.fences.checked_add(1).filter(|_| self.pending.is_none());
        let Some(number) = next else {
            return self.abort(ABORT_CODE, "the PMIx server of this node is in two fences at once".to_owned(), out);
        };
        let Some(blob) = packed(data) else {
            let why = format!("the data of PMIx fence {number} has {} bytes, more than the {BLOB_BYTES_MAX} allowed", data.len());
            return self.abort(ABORT_CODE, why, out);
        };
        let contribution = Contribution { number, blob };
        out.push(PmixAction::Fence { number, blob: contribution.blob.clone() });
        self.pending = Some(contribution);
    }

    fn fence_done(&mut self, number: u32, blob: &[u8], out: &mut Vec<PmixAction>) {
        let Some(contribution) = self.pending.take_if(|pending| pending.number == number) else { return };
        self.last = Some(contribution);
        self.fences = number;
        let mut data = Vec::with_capacity(blob.len());
        for pair in blob::pairs(blob) {
            match pair {
                Ok((DATA_KEY, value)) => data.extend_from_slice(value),
                Ok(_) => {
                    let why = format!("fence {number}: ranks of one launch use PMIx here and PMI elsewhere");
                    return self.abort(ABORT_CODE, why, out);
                }
                Err(corrupt) => return self.abort(ABORT_CODE, format!("fence {number}: {corrupt}"), out),
            }
        }
        out.push(PmixAction::Send(ToBridge::Fenced { data }));
    }

    fn abort(&mut self, code: i32, why: String, out: &mut Vec<PmixAction>) {
        self.aborted = true;
        out.push(PmixAction::Abort { code, why });
    }
}

/// The library's data as a blob. `None`: the data is too large.
fn packed(data: &[u8]) -> Option<Vec<u8>> {
    let mut blob = Vec::new();
    for part in data.chunks(VALUE_BYTES_MAX) {
        blob::append(&mut blob, DATA_KEY, part);
        if blob.len() > BLOB_BYTES_MAX {
            return None;
        }
    }
    Some(blob)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contributed, FenceHub, Subtree};

    fn act(server: &mut PmixServer, event: PmixEvent<'_>) -> Vec<PmixAction> {
        let mut out = Vec::new();
        server.handle(event, &mut out);
        out
    }

    fn receive(server: &mut PmixServer, message: FromBridge) -> Vec<PmixAction> {
        act(server, PmixEvent::Message(message))
    }

    #[test]
    fn nodes_get_each_others_data_joined_in_order() {
        let (mut a, mut b) = (PmixServer::new(&[0, 1], vec![0, 0, 1], 0), PmixServer::new(&[2], vec![0, 0, 1], 1));
        let mut hub = FenceHub::new(Subtree::whole(2));
        let data = [vec![b'a'; 3000], vec![b'b'; 5]];
        let mut merged = None;
        for (part, server) in [&mut b, &mut a].into_iter().enumerate() {
            let part = 1 - u32::try_from(part).unwrap();
            let out = receive(server, FromBridge::Fence { data: data[part as usize].clone() });
            let [PmixAction::Fence { number: 1, blob }] = out.as_slice() else { panic!("{out:?}") };
            // A new head receives the same contributions.
            assert_eq!(server.replay(), out);
            merged = Some(hub.contribute(Subtree::single(part), 1, blob.clone()).unwrap());
        }
        let Some(Contributed::Whole(merged)) = merged else { panic!("{merged:?}") };
        for server in [&mut a, &mut b] {
            let out = act(server, PmixEvent::FenceDone { number: 1, blob: &merged.blob });
            assert_eq!(out, [PmixAction::Send(ToBridge::Fenced { data: data.concat() })]);
            assert_eq!(act(server, PmixEvent::FenceDone { number: 1, blob: &merged.blob }), [], "told once");
        }
    }

    #[test]
    fn a_fence_without_data_and_one_of_a_node_alone() {
        let mut far = PmixServer::new(&[0], vec![0, 1], 0);
        assert_eq!(receive(&mut far, FromBridge::Fence { data: Vec::new() }), [PmixAction::Fence { number: 1, blob: Vec::new() }]);
        assert_eq!(act(&mut far, PmixEvent::FenceDone { number: 1, blob: &[] }), [PmixAction::Send(ToBridge::Fenced { data: vec![] })]);
        let mut alone = PmixServer::new(&[0, 1], vec![0, 0], 0);
        assert_eq!(receive(&mut alone, FromBridge::Fence { data: vec![1] }), [PmixAction::Send(ToBridge::Fenced { data: vec![1] })]);
        assert_eq!(alone.replay(), []);
    }

    #[test]
    fn who_ends_between_init_and_finalize_ends_the_launch() {
        let ended = |messages: &[FromBridge], code| {
            let mut server = PmixServer::new(&[4, 5], vec![0, 0], 0);
            for message in messages {
                assert_eq!(receive(&mut server, message.clone()), []);
            }
            act(&mut server, PmixEvent::Exited { local: 1, code })
        };
        let (joined, finalized) = (FromBridge::Joined { rank: 5 }, FromBridge::Finalized { rank: 5 });
        let died = |code| PmixAction::Send(ToBridge::Died { rank: 5, code });
        assert_eq!((ended(&[], 0), ended(&[], 3)), (vec![], vec![died(3)]), "an ordinary program");
        assert_eq!(ended(&[joined.clone(), finalized.clone()], 3), [died(3)]);
        assert_eq!(ended(&[joined.clone(), finalized], 0), []);
        // The library reports a lost connection in the same way as a finalize.
        let left = |code| {
            let mut server = PmixServer::new(&[4, 5], vec![0, 0], 0);
            receive(&mut server, joined.clone());
            assert_eq!(act(&mut server, PmixEvent::Left { rank: 5 }), []);
            act(&mut server, PmixEvent::Exited { local: 1, code })
        };
        assert_eq!(left(0), []);
        assert!(matches!(left(137).as_slice(), [_, PmixAction::Abort { code: 137, .. }]));
        // Reaped before the bridge reported the connection.
        let late = |code, then| {
            let mut server = PmixServer::new(&[4, 5], vec![0, 0], 0);
            let before = act(&mut server, PmixEvent::Exited { local: 1, code });
            [before, receive(&mut server, joined.clone()), act(&mut server, then)]
        };
        let [_, let_in, after] = late(137, PmixEvent::Left { rank: 5 });
        assert!(matches!(let_in.as_slice(), [PmixAction::Abort { code: 137, .. }]), "its death was told: {let_in:?}");
        assert_eq!(after, []);
        assert_eq!(late(0, PmixEvent::Left { rank: 5 }), [vec![], vec![], vec![]]);
        // Without finalize an exit code of 0 is no success, whatever is known first.
        let why = "rank 5 exited with code 0 between MPI_Init and MPI_Finalize";
        let brought_down = || vec![died(0), PmixAction::Abort { code: 1, why: why.to_owned() }];
        assert_eq!(late(0, PmixEvent::LostAtEnd { rank: 5 }), [vec![], vec![], brought_down()]);
        let mut server = PmixServer::new(&[4, 5], vec![0, 0], 0);
        receive(&mut server, joined.clone());
        assert!(server.may_have_finalized(1));
        assert_eq!(act(&mut server, PmixEvent::LostAtEnd { rank: 5 }), []);
        assert!(!server.may_have_finalized(1), "nobody waits for its finalize");
        assert_eq!(act(&mut server, PmixEvent::Exited { local: 1, code: 0 }), brought_down());
        // A library that reports a finalize for each lost connection.
        let mut server = PmixServer::new(&[4, 5], vec![0, 0], 0);
        receive(&mut server, joined.clone());
        act(&mut server, PmixEvent::LostAtEnd { rank: 5 });
        assert_eq!(act(&mut server, PmixEvent::Left { rank: 5 }), []);
        assert_eq!(act(&mut server, PmixEvent::Exited { local: 1, code: 0 }), brought_down());
        // The library reports the end of the connection of a rank that finalized as well.
        let mut server = PmixServer::new(&[4, 5], vec![0, 0], 0);
        receive(&mut server, joined.clone());
        act(&mut server, PmixEvent::Left { rank: 5 });
        assert_eq!(act(&mut server, PmixEvent::LostAtEnd { rank: 5 }), []);
        assert_eq!(act(&mut server, PmixEvent::Exited { local: 1, code: 0 }), []);
        let why = "rank 5 ended with code 137 (128 + signal 9) between MPI_Init and MPI_Finalize".to_owned();
        assert_eq!(ended(std::slice::from_ref(&joined), 137), [died(137), PmixAction::Abort { code: 137, why }]);
        let why = "rank 5 exited with code 0 between MPI_Init and MPI_Finalize".to_owned();
        assert_eq!(ended(&[joined], 0), [died(0), PmixAction::Abort { code: 1, why }]);
    }

    #[test]
    fn a_rank_whose_connection_ended_ends_the_launch_unless_it_finalized() {
        let lost = |messages: &[FromBridge]| {
            let mut server = PmixServer::new(&[4, 5], vec![0, 0], 0);
            for message in messages {
                receive(&mut server, message.clone());
            }
            receive(&mut server, FromBridge::Lost { rank: 5 })
        };
        let (joined, finalized) = (FromBridge::Joined { rank: 5 }, FromBridge::Finalized { rank: 5 });
        assert_eq!((lost(&[]), lost(&[joined.clone(), finalized])), (vec![], vec![]));
        assert_eq!(lost(&[FromBridge::Joined { rank: 4 }]), [], "another one's");
        let out = lost(&[joined]);
        assert!(matches!(&out[..], [PmixAction::Abort { code: 1, why }] if why.starts_with("rank 5 lost its connection")), "{out:?}");
    }

    #[test]
    fn a_death_is_reported_on_every_node() {
        let (mut first, mut other) = (PmixServer::new(&[0], vec![0, 1], 0), PmixServer::new(&[1], vec![0, 1], 1));
        let out = act(&mut other, PmixEvent::Exited { local: 0, code: 5 });
        let [PmixAction::Send(ToBridge::Died { rank: 1, code: 5 }), PmixAction::Call(call)] = out.as_slice() else { panic!("{out:?}") };
        assert!(other.unanswered().eq([call]));
        let out = act(&mut first, PmixEvent::Called(call));
        let [PmixAction::Send(ToBridge::Died { rank: 1, code: 5 }), PmixAction::Call(again), PmixAction::Call(answer)] = out.as_slice()
        else {
            panic!("{out:?}")
        };
        act(&mut other, PmixEvent::Called(answer));
        assert_eq!(other.unanswered().count(), 0);
        assert!(matches!(act(&mut other, PmixEvent::Called(again)).as_slice(), [PmixAction::Call(_)]), "it knows");
    }

    #[test]
    fn an_abort_has_its_code_and_ends_the_server() {
        let mut server = PmixServer::new(&[0], vec![0], 0);
        let out = receive(&mut server, FromBridge::Aborted { rank: 0, code: 7, message: "bad input".to_owned() });
        assert_eq!(out, [PmixAction::Abort { code: 7, why: "rank 0 aborted the launch with code 7: \"bad input\"".to_owned() }]);
        assert_eq!(receive(&mut server, FromBridge::Fence { data: Vec::new() }), []);
    }

    #[test]
    fn a_lost_bridge_ends_a_launch_only_if_its_ranks_use_pmix() {
        let mut server = PmixServer::new(&[0], vec![0], 0);
        assert_eq!(act(&mut server, PmixEvent::BridgeLost { why: "it ended" }), []);
        receive(&mut server, FromBridge::Joined { rank: 0 });
        let why = "the PMIx server of this node is gone: it ended".to_owned();
        assert_eq!(act(&mut server, PmixEvent::BridgeLost { why: "it ended" }), [PmixAction::Abort { code: 1, why }]);
    }

    #[test]
    fn two_fences_at_once_and_keys_of_pmi_are_refused() {
        let mut server = PmixServer::new(&[0], vec![0, 1], 0);
        receive(&mut server, FromBridge::Fence { data: Vec::new() });
        let mut pmi = Vec::new();
        blob::append(&mut pmi, b"key", b"value");
        let mut other = PmixServer::new(&[0], vec![0, 1], 0);
        receive(&mut other, FromBridge::Fence { data: Vec::new() });
        assert!(matches!(act(&mut other, PmixEvent::FenceDone { number: 1, blob: &pmi }).as_slice(), [PmixAction::Abort { .. }]));
        assert!(matches!(receive(&mut server, FromBridge::Fence { data: Vec::new() }).as_slice(), [PmixAction::Abort { .. }]));
    }

    #[test]
    fn what_is_published_on_one_node_is_found_on_another_by_its_publisher() {
        let (mut first, mut other) = (PmixServer::new(&[0], vec![0, 1], 0), PmixServer::new(&[1], vec![0, 1], 1));
        let published = |key: &str, rank| Published { key: key.to_owned(), rank, data_type: 3, value: b"port".to_vec() };
        let ask = |id, question| FromBridge::Ask { id, question };
        let answered = |id, status, found| [PmixAction::Send(ToBridge::Answered { id, status, found })];
        assert_eq!(receive(&mut first, ask(7, Question::Publish(published("a", 0)))), answered(7, AnswerStatus::Done, vec![]));
        // The other node asks, and is answered through calls.
        let mut through = |question| {
            let out = receive(&mut other, ask(9, question));
            let [PmixAction::Call(call)] = out.as_slice() else { panic!("{out:?}") };
            assert!(other.unanswered().eq([call]));
            let out = act(&mut first, PmixEvent::Called(call));
            let [PmixAction::Call(call)] = out.as_slice() else { panic!("{out:?}") };
            act(&mut other, PmixEvent::Called(call))
        };
        let duplicate = through(Question::Publish(published("a", 1)));
        assert_eq!(duplicate, answered(9, AnswerStatus::Duplicate, vec![]));
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(through(Question::Lookup { keys: keys(&["a"]) }), answered(9, AnswerStatus::Done, vec![published("a", 0)]));
        assert_eq!(through(Question::Lookup { keys: keys(&["b"]) }), answered(9, AnswerStatus::NotFound, vec![]));
        assert_eq!(through(Question::Unpublish { keys: keys(&["a"]) }), answered(9, AnswerStatus::Done, vec![]));
        // An invalid question is refused, and so is a question to a part that does not provide the
        // service.
        assert_eq!(receive(&mut other, ask(1, Question::Lookup { keys: vec![] })), answered(1, AnswerStatus::NotSupported, vec![]));
        let long = Published { value: vec![0; PUBLISHED_BYTES_MAX], ..published("b", 1) };
        assert_eq!(receive(&mut other, ask(1, Question::Publish(long))), answered(1, AnswerStatus::Full, vec![]));
        let mut out = receive(&mut other, ask(1, Question::Lookup { keys: keys(&["a", "b"]) }));
        // One call for each key: the first was sent before the second question was asked.
        for _ in 0..2 {
            let [PmixAction::Call(call)] = out.as_slice() else { panic!("{out:?}") };
            let unserved = call.unserved().unwrap();
            out = act(&mut other, PmixEvent::Called(&unserved));
        }
        assert_eq!(out, answered(1, AnswerStatus::NotSupported, vec![]));
    }

    #[test]
    fn of_several_keys_the_existing_ones_are_found() {
        let mut server = PmixServer::new(&[0], vec![0], 0);
        let published = Published { key: "a".to_owned(), rank: 0, data_type: 3, value: b"1".to_vec() };
        receive(&mut server, FromBridge::Ask { id: 1, question: Question::Publish(published.clone()) });
        let question = Question::Lookup { keys: vec!["a".to_owned(), "b".to_owned()] };
        let partly = ToBridge::Answered { id: 2, status: AnswerStatus::Partly, found: vec![published] };
        assert_eq!(receive(&mut server, FromBridge::Ask { id: 2, question }), [PmixAction::Send(partly)]);
    }

    #[test]
    fn what_a_rank_has_put_is_given_to_another_node_as_often_as_it_asks() {
        let (mut first, mut other) = (PmixServer::new(&[0], vec![0, 1], 0), PmixServer::new(&[1], vec![0, 1], 1));
        let modex_answer = |id, status, data: &[u8]| [PmixAction::Send(ToBridge::Modex { id, status, data: data.to_vec() })];
        let ask = |id, rank| FromBridge::Ask { id, question: Question::Modex { rank } };
        let out = receive(&mut first, ask(5, 1));
        let [PmixAction::Call(call)] = out.as_slice() else { panic!("{out:?}") };
        let give = [PmixAction::Send(ToBridge::GiveModex { from: 0, number: 1, rank: 1 })];
        assert_eq!(act(&mut other, PmixEvent::Called(call)), give);
        assert_eq!(act(&mut other, PmixEvent::Called(call)), [], "the rank has not put it yet");
        let given = FromBridge::Modex { from: 0, number: 1, status: 0, data: b"card".to_vec() };
        let out = receive(&mut other, given.clone());
        let [PmixAction::Call(answer)] = out.as_slice() else { panic!("{out:?}") };
        assert_eq!(receive(&mut other, given), [], "nobody asked again");
        assert_eq!(act(&mut other, PmixEvent::Called(call)), give, "the answer was lost");
        assert_eq!(act(&mut first, PmixEvent::Called(answer)), modex_answer(5, 0, b"card"));
        assert_eq!((act(&mut first, PmixEvent::Called(answer)), first.unanswered().count()), (vec![], 0));
        // A rank that does not exist; a rank of the same node, which the library knows itself; and
        // a part without the service.
        for rank in [0, 2] {
            assert_eq!(receive(&mut first, ask(6, rank)), modex_answer(6, MODEX_NOT_SUPPORTED, b""));
        }
        let out = receive(&mut first, ask(7, 1));
        let [PmixAction::Call(asked)] = out.as_slice() else { panic!("{out:?}") };
        assert_eq!(act(&mut first, PmixEvent::Called(&asked.unserved().unwrap())), modex_answer(7, MODEX_NOT_SUPPORTED, b""));
        let astray = Call { body: 0_u32.to_le_bytes().to_vec(), ..call.clone() };
        assert_eq!(act(&mut other, PmixEvent::Called(&astray)), [PmixAction::Call(astray.unserved().unwrap())]);
        receive(&mut other, FromBridge::Modex { from: 0, number: 1, status: 0, data: vec![0; BODY_BYTES_MAX] });
    }
}
