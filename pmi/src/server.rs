//! The PMI server of one launch on one node.
//!
//! ```text
//!                 init                 finalize
//!      Fresh ────────────▶ Joined ─────────────────▶ Finalized
//!        │                 │  ▲ │  ▲ ╲ abort, of PMI-2
//!        │ barrier_in, ring│  │ │  │  ╰─────────────▶ Aborting
//!  closed│ kvs-fence, name ▼  │ ▼  │ endcmd
//!  ended │      Fenced, Naming┘ Spawning
//!        ▼
//!      Left            closed or ended in Joined, Fenced, Naming, Spawning, Aborting: the launch is aborted
//! ```
//!
//! The first line from a rank determines its PMI version; everything after it is handled by
//! [`version1`] or [`version2`]. Both versions share the key-value space, the fences and the states
//! above, so a launch may have ranks of both.
//!
//! Such an abort has the rank's exit code, as with Hydra, because users look for that code. A rank
//! that ended with 0 between init and finalize did not succeed either: its launch fails with 1. A
//! PMI-2 abort has no code, but its client then exits with one: the server waits for that exit as
//! for the exit of a rank that closed its socket.
//!
//! A fence needs every rank of the launch. A rank that left without `init` or that has finalized
//! will not join any further fence. If another rank of this node waits in a fence, it would wait
//! for ever, so the server aborts the launch. (If the two are on different nodes, the head detects
//! it: [`FenceHub::waiting_for`] names the node.) The server also aborts the launch if ranks wait
//! for a node attribute and no rank is left on the node that could put it.
//!
//! A ring is a fence before which each rank's value is stored under a key that ranks cannot use
//! ([`RING_PREFIX`]).
//!
//! [`FenceHub::waiting_for`]: crate::FenceHub::waiting_for

mod name_answer;
mod version1;
mod version2;

use crate::blob::{self, BLOB_BYTES_MAX};
use crate::job::{Job, ranks_of_hosts};
use crate::kvs::Kvs;
use crate::message::{self, Answer, Garbage, LENGTH_BYTES};
use crate::names::{Answered, Ask, Named, Names};
use crate::wire::{Excerpt, KEY_BYTES_MAX, Key, KeyRefused, LINE_BYTES_MAX, MAPPING_KEY, NameRefused, Reply, VALUE_BYTES_MAX};
use lattice_model::call::{Call, Service};
use std::cell::OnceCell;
use std::fmt;
use thiserror::Error;

/// Input events. Events with a `local` that is not a rank of this node are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Bytes that a rank wrote to its socket, in any fragmentation.
    Bytes { local: u32, data: &'a [u8] },
    /// End of file or an error on the socket of a rank whose process lives. A process that exits
    /// closes its socket first: wait a moment, and if the process exits within it, send only
    /// [`Exited`](Self::Exited), or its exit code would be lost.
    Closed { local: u32 },
    /// A rank's process ended with this code: 0 to 255, or 128 + signal. Read its socket until it
    /// is empty before sending this event: `abort` is written without waiting for an answer, and
    /// its code would be lost.
    Exited { local: u32, code: i32 },
    /// The head has merged every node's contribution to a fence. Ignored unless it is the pending
    /// fence.
    FenceDone { number: u32, blob: &'a [u8] },
    /// A call or an answer of [`Service::Names`] from another node's server.
    Called(&'a Call),
}

/// What the caller must do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write these bytes to a rank's socket.
    Send { local: u32, bytes: Vec<u8> },
    /// A rank has sent its last command: send [`Exited`](Event::Exited) if its process ends within
    /// a moment, else [`Closed`](Event::Closed).
    LastCommand { local: u32 },
    /// All ranks of this node have reached fence `number` (from 1): send the pairs put since the
    /// last fence to the head. Never emitted if one node has all ranks.
    Fence { number: u32, blob: Vec<u8> },
    /// Send this call to the server of its part. If it is a request, repeat it from time to time
    /// while it is [`Server::unanswered`].
    Call(Call),
    /// Abort the whole launch. Emitted once, as the last action of this server. `code` is the code
    /// that the rank requested (may be 0), or with which it ended between init and finalize (if not
    /// 0), else 1; `why` names the rank.
    Abort { code: i32, why: String },
}

/// The code of an abort for which no rank gave one.
const ABORT_CODE: i32 = 1;
/// Codes that represent a signal: 128 + 1 to 64.
const SIGNAL_CODES: std::ops::RangeInclusive<i32> = 129..=192;

/// The key prefix for the ranks' ring values.
const RING_PREFIX: &[u8] = b"\0ring ";
/// Largest number of node attributes and names that one rank may wait for at a time, in its
/// threads.
const WAITS_MAX: usize = 256;

/// The state of a rank; see the figure in the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Has sent nothing: possibly a program without MPI.
    Fresh,
    /// Ended or closed its socket without init.
    Left(Departure),
    /// Between init and finalize.
    Joined,
    /// Waits for the completion of a fence.
    Fenced(Gathering),
    /// Waits for the answer to a PMI-1 command about a name.
    Naming,
    /// Has sent part of a spawn command: `so_far` of `total` parts.
    Spawning { total: u32, so_far: u32 },
    /// Has sent abort without a code.
    Aborting { detail: String },
    /// Has sent finalize.
    Finalized,
}

/// The kind of a rank's fence, which determines the form of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Gathering {
    /// PMI-1.
    Barrier,
    /// PMI-2; `thread` is set if its client has several threads.
    Fence { thread: Option<Vec<u8>> },
    /// PMI-2, answered with the values of its neighbours.
    Ring { thread: Option<Vec<u8>> },
}

/// A rank that waits for the answer about a name, and the form of that answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asker {
    local: u32,
    how: Asked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Publish,
    Unpublish,
    Lookup,
    /// A PMI-2 command; `thread` is set if its client has several threads.
    Message {
        name: Vec<u8>,
        thread: Option<Vec<u8>>,
    },
}

/// A pending request for a node attribute.
#[derive(Debug)]
struct Wait {
    key: Vec<u8>,
    /// The requesting thread, if its client has several.
    thread: Option<Vec<u8>>,
}

/// The PMI version of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Lines. Also the initial value, before the version is known.
    One,
    /// Messages.
    Two,
}

#[derive(Debug)]
struct Session {
    phase: Phase,
    version: Version,
    /// The beginning of an incomplete line or message, limited to the longest valid one.
    held: Vec<u8>,
    /// Node attributes that it waits for.
    waits: Vec<Wait>,
    /// The index of its next `getbyidx` if it iterates over all pairs, and the key before that.
    by_index: Option<(usize, Box<[u8]>)>,
}

impl Session {
    fn new() -> Self {
        Self { phase: Phase::Fresh, version: Version::One, held: Vec::new(), waits: Vec::new(), by_index: None }
    }

    /// Whether it can do nothing by itself until another event happens.
    fn is_blocked(&self) -> bool {
        match &self.phase {
            Phase::Left(_) | Phase::Finalized | Phase::Fenced(Gathering::Barrier) => true,
            Phase::Fenced(Gathering::Fence { thread } | Gathering::Ring { thread }) => thread.is_none(),
            Phase::Joined => self.waits.iter().any(|wait| wait.thread.is_none()),
            Phase::Fresh | Phase::Naming | Phase::Spawning { .. } | Phase::Aborting { .. } => false,
        }
    }
}

/// This node's contribution to a fence.
#[derive(Clone, Debug)]
struct Contribution {
    number: u32,
    blob: Vec<u8>,
}

impl Contribution {
    fn action(&self) -> Action {
        Action::Fence { number: self.number, blob: self.blob.clone() }
    }
}

/// Why the launch was aborted.
#[derive(Clone, Debug)]
struct Aborted {
    code: i32,
    why: String,
}

/// The PMI server for all ranks of one launch on one node.
///
/// Keep it until the *launch* has ended on all nodes: a restarted head may need its
/// [`replay`](Self::replay). But once the launch is being ended for a reason from elsewhere, stop
/// sending it events: it would treat the killed ranks as failed and emit an abort of its own.
#[derive(Debug)]
pub struct Server {
    job: Job,
    ranks: Vec<Session>,
    kvs: Kvs,
    /// Node attributes put by ranks of this node.
    attributes: Kvs,
    /// Published services and their ports.
    names: Names<Asker>,
    /// The hosts and their ranks, as sent to all ranks: computed at the first request.
    hosts: OnceCell<(usize, String)>,
    /// Pairs put here since the last fence, as a blob; empty if one node has all ranks.
    fresh: Vec<u8>,
    fresh_bytes_max: usize,
    /// Number of completed fences.
    fences: u32,
    last: Option<Contribution>,
    pending: Option<Contribution>,
    aborted: Option<Aborted>,
}

impl Server {
    /// A server whose ranks have sent nothing yet.
    pub fn new(job: Job) -> Self {
        Self::within(job, usize::MAX)
    }

    /// A server that stores at most about twice this many bytes of what ranks put, limited to
    /// [`crate::KVS_BYTES_MAX`].
    pub fn within(job: Job, bytes_max: usize) -> Self {
        let ranks = (0..job.count).map(|_| Session::new()).collect();
        let names = Names::new(job.part, Service::Names);
        Self {
            job,
            ranks,
            kvs: Kvs::of_bytes(bytes_max),
            attributes: Kvs::small(),
            names,
            hosts: OnceCell::new(),
            fresh: Vec::new(),
            fresh_bytes_max: BLOB_BYTES_MAX.min(bytes_max),
            fences: 0,
            last: None,
            pending: None,
            aborted: None,
        }
    }

    /// Handles an event and appends actions to `out`. After an abort all events are ignored.
    pub fn handle(&mut self, event: Event<'_>, out: &mut Vec<Action>) {
        if self.aborted.is_some() {
            return;
        }
        match event {
            Event::Bytes { local, data } if local < self.job.count => self.bytes(local, data, out),
            Event::Closed { local } if local < self.job.count => self.gone(local, Departure::Closed, out),
            Event::Exited { local, code } if local < self.job.count => self.gone(local, Departure::Ended { code }, out),
            Event::Bytes { .. } | Event::Closed { .. } | Event::Exited { .. } => {}
            Event::FenceDone { number, blob } => self.fence_done(number, blob, out),
            Event::Called(call) => self.update_names(out, |names, named| names.called(call, named)),
        }
        self.check_waits(out);
    }

    /// What a restarted agent or head needs: the contributions to the last completed and to the
    /// pending fence, in this order, and the abort.
    pub fn replay(&self) -> Vec<Action> {
        let fences = self.last.iter().chain(&self.pending).map(Contribution::action);
        let abort = self.aborted.iter().map(|aborted| Action::Abort { code: aborted.code, why: aborted.why.clone() });
        fences.chain(abort).collect()
    }

    /// The call to another part that is not answered yet.
    pub fn unanswered(&self) -> Option<&Call> {
        self.names.unanswered().filter(|_| self.aborted.is_none())
    }

    /// The local ranks that have not reached the fence in which other ranks wait, here or on other
    /// nodes.
    pub fn absent(&self) -> Vec<u32> {
        let absent = (0u32..).zip(&self.ranks).filter(|(_, session)| !matches!(session.phase, Phase::Fenced(_)));
        absent.map(|(local, _)| self.job.rank(local)).collect()
    }

    fn bytes(&mut self, local: u32, mut data: &[u8], out: &mut Vec<Action>) {
        let mut held = std::mem::take(&mut self.session(local).held);
        while self.aborted.is_none() && !matches!(self.session(local).phase, Phase::Aborting { .. }) {
            let version = self.session(local).version;
            let whole = match version {
                Version::One => take_line(&mut held, &mut data).map_err(|too_long| too_long.to_string()),
                Version::Two => take_message(&mut held, &mut data).map_err(|garbage| garbage.to_string()),
            };
            match (whole, version) {
                (Err(why), _) => return self.abort_for(local, ABORT_CODE, &why, out),
                (Ok(false), _) => break,
                (Ok(true), Version::One) => self.line(local, &held, out),
                (Ok(true), Version::Two) => self.message(local, &held[LENGTH_BYTES..], out),
            }
            held.clear();
            // As if each rank had reached the fence by itself.
            self.check_waits(out);
        }
        self.session(local).held = held;
    }

    fn known_key(&self, pair: Key<'_>) -> Result<(), KeyRefused> {
        if pair.kvsname.is_some_and(|name| name != self.job.kvsname.as_bytes()) {
            return Err(KeyRefused::UnknownKvsname);
        }
        if !(1..=KEY_BYTES_MAX).contains(&pair.key.len()) {
            return Err(KeyRefused::BadKeyLength);
        }
        Ok(())
    }

    fn put(&mut self, pair: Key<'_>, value: &[u8]) -> Result<(), KeyRefused> {
        self.known_key(pair)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(KeyRefused::ValueTooLong);
        }
        if pair.key == MAPPING_KEY || pair.key.starts_with(RING_PREFIX) {
            return Err(KeyRefused::Reserved);
        }
        self.put_known(pair.key, value)
    }

    /// Puts a pair whose lengths have been checked against the wire's limits.
    fn put_known(&mut self, key: &[u8], value: &[u8]) -> Result<(), KeyRefused> {
        let travels = !self.has_all_ranks();
        if travels && self.fresh.len() + blob::record_bytes(key, value) > self.fresh_bytes_max {
            return Err(KeyRefused::Full);
        }
        self.kvs.put(key, value).map_err(|_| KeyRefused::Full)?;
        if travels {
            blob::append(&mut self.fresh, key, value);
        }
        Ok(())
    }

    /// `mapping_bytes_max`: the longest mapping that the client can read.
    fn get(&self, pair: Key<'_>, mapping_bytes_max: usize) -> Result<&[u8], KeyRefused> {
        self.known_key(pair)?;
        let value = if pair.key == MAPPING_KEY { self.mapping(mapping_bytes_max) } else { self.kvs.get(pair.key) };
        value.ok_or(KeyRefused::NotFound)
    }

    fn mapping(&self, bytes_max: usize) -> Option<&[u8]> {
        Some(self.job.mapping.as_bytes()).filter(|mapping| mapping.len() <= bytes_max)
    }

    /// The number of hosts, and the text with their ranks.
    fn hosts(&self) -> (usize, &str) {
        let (hosts, text) = self.hosts.get_or_init(|| ranks_of_hosts(&self.job.nodes, &self.job.runs));
        (*hosts, text)
    }

    fn ask_name(&mut self, who: Asker, ask: Ask, out: &mut Vec<Action>) {
        let (name, value) = match &ask {
            Ask::Publish { name, value } => (name, Some(value)),
            Ask::Unpublish { name } | Ask::Lookup { name } => (name, None),
        };
        let is_sane = |bytes: &Vec<u8>| (1..=VALUE_BYTES_MAX).contains(&bytes.len());
        let why = if !is_sane(name) || !value.is_none_or(is_sane) {
            NameRefused::BadLength
        } else if self.names.waiting().filter(|asker| asker.local == who.local).count() >= WAITS_MAX {
            NameRefused::Full
        } else {
            return self.update_names(out, |names, named| names.ask(who, ask, named));
        };
        self.deliver_answer(&who, Answered::Refused(why), out);
    }

    fn update_names(&mut self, out: &mut Vec<Action>, update: impl FnOnce(&mut Names<Asker>, &mut Vec<Named<Asker>>)) {
        let mut results = Vec::new();
        update(&mut self.names, &mut results);
        for named in results {
            match named {
                Named::Answer { who, answered } => self.deliver_answer(&who, answered, out),
                Named::Call(call) => out.push(Action::Call(call)),
            }
        }
    }

    fn deliver_answer(&mut self, who: &Asker, answered: Answered, out: &mut Vec<Action>) {
        let local = who.local;
        let done = |answered| match answered {
            Answered::Refused(why) => Err(why),
            Answered::Done | Answered::Found(_) => Ok(()),
        };
        match &who.how {
            Asked::Publish => send(local, Reply::Published(done(answered)), out),
            Asked::Unpublish => send(local, Reply::Unpublished(done(answered)), out),
            Asked::Lookup => {
                let found = match &answered {
                    Answered::Found(port) => Ok(&port[..]),
                    Answered::Done => Err(NameRefused::NotPublished),
                    Answered::Refused(why) => Err(*why),
                };
                send(local, Reply::LookedUp(found), out);
            }
            Asked::Message { name, thread } => return answer(local, name_answer::answer_of_name(name, thread.as_deref(), answered), out),
        }
        if let Phase::Naming = self.session(local).phase {
            self.session(local).phase = Phase::Joined;
        }
    }

    fn gone(&mut self, local: u32, how: Departure, out: &mut Vec<Action>) {
        match &self.session(local).phase {
            Phase::Fresh => {
                self.session(local).phase = Phase::Left(how);
                self.check_fence(out);
            }
            Phase::Joined | Phase::Fenced(_) | Phase::Naming | Phase::Spawning { .. } => {
                self.abort_for(local, how.code(), &how.inside(), out);
            }
            Phase::Aborting { detail } => {
                let why = format!("aborted the launch with code {}{detail}", how.code());
                self.abort_for(local, how.code(), &why, out);
            }
            Phase::Left(_) | Phase::Finalized => {}
        }
    }

    fn finalized(&mut self, local: u32, out: &mut Vec<Action>) {
        self.session(local).phase = Phase::Finalized;
        self.check_fence(out);
    }

    fn enter_fence(&mut self, local: u32, gathering: Gathering, out: &mut Vec<Action>) {
        self.session(local).phase = Phase::Fenced(gathering);
        self.check_fence(out);
    }

    /// Called when a rank has reached a fence or can no longer reach one: the fence is then
    /// impossible, complete, or still pending.
    fn check_fence(&mut self, out: &mut Vec<Action>) {
        let find =
            |wanted: fn(&Phase) -> bool| (0u32..).zip(&self.ranks).find(|(_, session)| wanted(&session.phase)).map(|(local, _)| local);
        let Some(waiting) = find(|phase| matches!(phase, Phase::Fenced(_))) else { return };
        let waiting = self.rank(waiting);
        let left = (0u32..).zip(&self.ranks).find_map(|(local, session)| match session.phase {
            Phase::Left(how) => Some((local, how)),
            _ => None,
        });
        if let Some((absent, how)) = left {
            let why = format!(
                "{how} without MPI_Init, and rank {waiting} waits for it in a fence: every rank of a launch must call MPI_Init, or none"
            );
            return self.abort_for(absent, how.code(), &why, out);
        }
        if let Some(absent) = find(|phase| *phase == Phase::Finalized) {
            let why = format!("called MPI_Finalize, and rank {waiting} waits for it in a fence");
            return self.abort_for(absent, ABORT_CODE, &why, out);
        }
        if self.ranks.iter().any(|session| !matches!(session.phase, Phase::Fenced(_))) {
            return;
        }
        let in_ring = |phase: &Phase| matches!(phase, Phase::Fenced(Gathering::Ring { .. }));
        if let (Some(ring), Some(fence)) = (find(in_ring), find(|phase| !matches!(phase, Phase::Fenced(Gathering::Ring { .. })))) {
            let why = format!("entered a ring, and rank {} a fence: neither has all ranks", self.rank(fence));
            return self.abort_for(ring, ABORT_CODE, &why, out);
        }
        let Some(number) = self.fences.checked_add(1) else {
            return self.abort(ABORT_CODE, format!("rank {waiting} entered more than {} fences", u32::MAX), out);
        };
        if self.has_all_ranks() {
            self.fences = number;
            return self.release(out);
        }
        let contribution = Contribution { number, blob: std::mem::take(&mut self.fresh) };
        out.push(contribution.action());
        self.pending = Some(contribution);
    }

    fn fence_done(&mut self, number: u32, blob: &[u8], out: &mut Vec<Action>) {
        let Some(contribution) = self.pending.take_if(|pending| pending.number == number) else { return };
        self.last = Some(contribution);
        if let Err(error) = self.kvs.merge(blob) {
            let ranks = format!("ranks {} to {}", self.rank(0), self.rank(self.job.count.saturating_sub(1)));
            return self.abort(ABORT_CODE, format!("fence {number} failed for {ranks}: {error}"), out);
        }
        self.fences = number;
        self.release(out);
    }

    fn release(&mut self, out: &mut Vec<Action>) {
        for local in 0..self.job.count {
            let session = self.session(local);
            // Skip a rank whose other thread sent abort meanwhile.
            let Phase::Fenced(gathering) = session.phase.clone() else { continue };
            session.phase = Phase::Joined;
            match gathering {
                Gathering::Barrier => send(local, Reply::BarrierOut, out),
                Gathering::Fence { thread } => answer(local, Answer::done(b"kvs-fence", thread.as_deref()), out),
                Gathering::Ring { thread } => match self.ring_answer(local, thread.as_deref()) {
                    Ok(ring) => answer(local, ring, out),
                    Err(absent) => {
                        let why = format!("entered a ring, and rank {absent} a fence: neither has all ranks");
                        return self.abort_for(local, ABORT_CODE, &why, out);
                    }
                },
            }
        }
        self.kvs.remove_all(RING_PREFIX);
    }

    /// Called after every event: aborts if a rank waits for a node attribute and no rank is left on
    /// the node to put it.
    fn check_waits(&mut self, out: &mut Vec<Action>) {
        let waiting = (0u32..).zip(&self.ranks).find_map(|(local, session)| Some((local, session.waits.first()?)));
        let Some((local, wait)) = waiting.filter(|_| self.aborted.is_none()) else { return };
        if self.ranks.iter().all(Session::is_blocked) {
            let why = format!("waits for the node attribute {}, which no rank of its node is left to put", Excerpt(&wait.key));
            self.abort_for(local, ABORT_CODE, &why, out);
        }
    }

    fn abort_for(&mut self, local: u32, code: i32, what: &str, out: &mut Vec<Action>) {
        let rank = self.rank(local);
        self.abort(code, format!("rank {rank} {what}"), out);
    }

    fn abort(&mut self, code: i32, why: String, out: &mut Vec<Action>) {
        self.aborted = Some(Aborted { code, why: why.clone() });
        out.push(Action::Abort { code, why });
    }

    fn has_all_ranks(&self) -> bool {
        self.job.count == self.job.size
    }

    fn rank(&self, local: u32) -> u64 {
        u64::from(self.job.rank(local))
    }

    fn session(&mut self, local: u32) -> &mut Session {
        &mut self.ranks[local as usize]
    }
}

/// How a rank left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// It closed its socket; its process lives.
    Closed,
    /// Its process ended.
    Ended { code: i32 },
}

impl Departure {
    /// The code of the resulting abort: the rank's own, so that the result is the same whether its
    /// exit or this abort is reported first.
    fn code(self) -> i32 {
        match self {
            Self::Closed | Self::Ended { code: 0 } => ABORT_CODE,
            Self::Ended { code } => code,
        }
    }

    /// A description of the departure, between init and finalize.
    fn inside(self) -> String {
        let then = if self == Self::Closed { ", and its process goes on" } else { "" };
        format!("{self} between MPI_Init and MPI_Finalize{then}")
    }
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Closed => f.write_str("closed its PMI connection"),
            // A shell around the program reports the same code when a signal ended the program, so
            // the text mentions both.
            Self::Ended { code } if SIGNAL_CODES.contains(&code) => write!(f, "ended with code {code} (128 + signal {})", code - 128),
            Self::Ended { code } => write!(f, "exited with code {code}"),
        }
    }
}

fn send(local: u32, reply: Reply<'_>, out: &mut Vec<Action>) {
    out.push(Action::Send { local, bytes: reply.line() });
}

fn answer(local: u32, answer: Answer, out: &mut Vec<Action>) {
    out.push(Action::Send { local, bytes: answer.bytes() });
}

/// A rank sent a line that does not end.
#[derive(Debug, Error)]
#[error("sent a line of more than {LINE_BYTES_MAX} bytes, which is not PMI")]
struct LineTooLong;

/// Moves bytes from `data` to `held` until the line is complete; returns whether it is.
fn take_line(held: &mut Vec<u8>, data: &mut &[u8]) -> Result<bool, LineTooLong> {
    let end = data.iter().position(|byte| *byte == b'\n');
    let piece = &data[..end.unwrap_or(data.len())];
    if held.len() + piece.len() > LINE_BYTES_MAX {
        return Err(LineTooLong);
    }
    held.extend_from_slice(piece);
    *data = end.map_or(&[], |end| &data[end + 1..]);
    Ok(end.is_some())
}

/// As [`take_line`], for a message with its length prefix.
fn take_message(held: &mut Vec<u8>, data: &mut &[u8]) -> Result<bool, Garbage> {
    let mut take = |held: &mut Vec<u8>, wanted: usize| {
        let (piece, rest) = data.split_at(data.len().min(wanted.saturating_sub(held.len())));
        held.extend_from_slice(piece);
        *data = rest;
        held.len() == wanted
    };
    if held.len() < LENGTH_BYTES && !take(held, LENGTH_BYTES) {
        return Ok(false);
    }
    let Some(header) = held.first_chunk() else { return Ok(false) };
    let whole = LENGTH_BYTES + message::length(*header)?;
    Ok(take(held, whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::layout::RankRun;

    #[test]
    fn the_list_of_hosts_is_made_once_for_all_ranks() {
        let runs = vec![RankRun { node: 0, first: 0, count: 2 }, RankRun { node: 1, first: 2, count: 1 }];
        let mut server = Server::new(Job {
            number: 1,
            kvsname: "k".into(),
            size: 3,
            first: 0,
            count: 2,
            ranks: vec![],
            appnums: vec![],
            mapping: String::new(),
            part: 0,
            nodes: vec!["a".parse().unwrap(), "b".parse().unwrap()],
            runs,
        });
        let mut ask = |local| {
            let mut actions = Vec::new();
            let commands = b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_ranks2hosts\n";
            server.handle(Event::Bytes { local, data: commands }, &mut actions);
            (actions.pop(), server.hosts.get().map(|(_, text)| text.as_ptr()))
        };
        let (first, made) = ask(0);
        let (second, still) = ask(1);
        let answer = |action| match action {
            Some(Action::Send { bytes, .. }) => String::from_utf8(bytes).unwrap(),
            other => panic!("{other:?}"),
        };
        let first = answer(first);
        assert!(first.ends_with("1 a 0,1, 1 b 2, \n") && first == answer(second), "{first:?}");
        assert!(made.is_some() && made == still, "one text for both");
    }
}
