//! The PMI server of one launch on one node.
//!
//! ```text
//!                 init                 finalize
//!      Fresh ────────────▶ Joined ─────────────────▶ Finalized
//!        │                 │  ▲ │  ▲
//!        │       barrier_in│  │ │  │ endcmd
//!  closed│                 ▼  │ ▼  │
//!  ended │             Fenced ┘ Spawning
//!        ▼
//!      Left            closed or ended in Joined, Fenced, Spawning: the launch is aborted
//! ```
//!
//! Such an abort has the code that the rank ended with, as Hydra's has: it is what people look for. A rank that ended
//! with 0 in the middle of MPI did not succeed either; its launch fails with 1.
//!
//! A fence needs every rank of the launch. A rank that left without `init`, or that is finalized, comes to none
//! any more: as soon as it and a rank that waits in a fence are known here, the launch is aborted, because that rank
//! would wait for ever. (When the two are on different nodes, the head sees it: [`FenceHub::waiting_for`] names the node.)
//!
//! [`FenceHub::waiting_for`]: crate::FenceHub::waiting_for

use crate::blob::{self, BLOB_BYTES_MAX};
use crate::job::Job;
use crate::kvs::Kvs;
use crate::wire::{
    self, Command, Excerpt, KEY_BYTES_MAX, Key, KeyRefused, LINE_BYTES_MAX, MAPPING_BYTES_MAX, MAPPING_KEY, Reply, VALUE_BYTES_MAX,
};
use std::fmt;

/// What happened. Events of a `local` outside of the node's ranks are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// What a rank wrote on its socket, in any fragmentation.
    Bytes { local: u32, data: &'a [u8] },
    /// A rank's socket reached end of file, or failed, and its process lives. A process that ends closes its socket
    /// first: give it a moment, and say [`Exited`](Self::Exited) alone if it ends in that, or its code would be lost.
    Closed { local: u32 },
    /// A rank's process ended with this code: 0 to 255, or 128 + signal. Its socket is to be read empty before this
    /// is said: `abort` is written without waiting for an answer, and its exit code would be lost.
    Exited { local: u32, code: i32 },
    /// The head has merged every node's contribution to a fence. One that is not the pending one is ignored.
    FenceDone { number: u32, blob: &'a [u8] },
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write to a rank's socket.
    Send { local: u32, bytes: Vec<u8> },
    /// All ranks of this node came to fence `number` (from 1): take the pairs put since the last fence to the head.
    /// Never said where one node has all ranks.
    Fence { number: u32, blob: Vec<u8> },
    /// Bring the whole launch down; said once, and the last action of this server. `code` is what the rank asked for
    /// (0 is possible), or what it ended with between init and finalize (where that is not 0), else 1; `why` names the rank.
    Abort { code: i32, why: String },
}

/// The code of an abort for which no rank gave another.
const ABORT_CODE: i32 = 1;
/// Codes that stand for a signal: 128 + 1 to 64.
const SIGNAL_CODES: std::ops::RangeInclusive<i32> = 129..=192;

/// How far a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Has said nothing: perhaps an ordinary program.
    Fresh,
    /// Ended or closed its socket without init.
    Left,
    /// Between init and finalize.
    Joined,
    /// Waits for the end of a fence.
    Fenced,
    /// In the middle of a spawn command: this many of so many were said.
    Spawning { total: u32, so_far: u32 },
    /// Said finalize.
    Finalized,
}

#[derive(Debug)]
struct Session {
    phase: Phase,
    /// The beginning of a line whose end has not come, at most [`LINE_BYTES_MAX`].
    held: Vec<u8>,
}

/// What this node gave to a fence.
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

/// The reason for which the launch was aborted.
#[derive(Clone, Debug)]
struct Aborted {
    code: i32,
    why: String,
}

/// One launch on one node: all its local ranks.
///
/// Keep it until the *launch* is over everywhere, not only here: a head that restarts may need its
/// [`replay`](Self::replay). But when the launch is brought down for a reason from elsewhere, stop handing it events:
/// it would take the killed ranks for dead ones, and say so with an abort of its own.
#[derive(Debug)]
pub struct Server {
    job: Job,
    ranks: Vec<Session>,
    kvs: Kvs,
    /// Pairs put here since the last fence, as a blob; empty where one node has all ranks.
    fresh: Vec<u8>,
    /// Fences completed so far.
    fences: u32,
    last: Option<Contribution>,
    pending: Option<Contribution>,
    aborted: Option<Aborted>,
}

impl Server {
    /// A server whose ranks have said nothing yet.
    pub fn new(job: Job) -> Self {
        let ranks = (0..job.count).map(|_| Session { phase: Phase::Fresh, held: Vec::new() }).collect();
        Self { job, ranks, kvs: Kvs::default(), fresh: Vec::new(), fences: 0, last: None, pending: None, aborted: None }
    }

    /// Takes an event; what is to be done is appended to `out`. After an abort nothing happens any more.
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
        }
    }

    /// All that an agent or a head that lost its memory must be told again: the contributions to the last completed and to
    /// the pending fence, in this order, and the abort.
    pub fn replay(&self) -> Vec<Action> {
        let fences = self.last.iter().chain(&self.pending).map(Contribution::action);
        let abort = self.aborted.iter().map(|aborted| Action::Abort { code: aborted.code, why: aborted.why.clone() });
        fences.chain(abort).collect()
    }

    fn bytes(&mut self, local: u32, mut data: &[u8], out: &mut Vec<Action>) {
        let mut held = std::mem::take(&mut self.session(local).held);
        while self.aborted.is_none() {
            let end = data.iter().position(|byte| *byte == b'\n');
            let piece = &data[..end.unwrap_or(data.len())];
            if held.len() + piece.len() > LINE_BYTES_MAX {
                let why = format!("sent a line of more than {LINE_BYTES_MAX} bytes, which is not PMI");
                return self.abort_for(local, ABORT_CODE, &why, out);
            }
            held.extend_from_slice(piece);
            let Some(end) = end else { break };
            self.line(local, &held, out);
            held.clear();
            data = &data[end + 1..];
        }
        self.session(local).held = held;
    }

    fn line(&mut self, local: u32, line: &[u8], out: &mut Vec<Action>) {
        if let Phase::Spawning { total, so_far } = self.session(local).phase {
            return self.spawn_line(local, line, total, so_far, out);
        }
        match wire::parse(line) {
            Ok(command) => self.command(local, command, out),
            Err(garbage) => self.abort_for(local, ABORT_CODE, &garbage.to_string(), out),
        }
    }

    fn command(&mut self, local: u32, command: Command<'_>, out: &mut Vec<Action>) {
        if let Command::Abort { code, message } = command {
            let said = message.map(|text| format!(": {}", Excerpt(text))).unwrap_or_default();
            return self.abort_for(local, code, &format!("aborted the launch with code {code}{said}"), out);
        }
        match (self.session(local).phase, command) {
            (Phase::Fresh, Command::Init { version, subversion }) => self.init(local, version, subversion, out),
            (Phase::Fresh, _) => self.abort_for(local, ABORT_CODE, "spoke PMI before it said init", out),
            (Phase::Left, _) => self.abort_for(local, ABORT_CODE, "ended between MPI_Init and MPI_Finalize", out),
            (Phase::Joined | Phase::Spawning { .. }, command) => self.joined(local, command, out),
            (Phase::Fenced, _) => self.abort_for(local, ABORT_CODE, "spoke PMI while it waited in a fence", out),
            (Phase::Finalized, _) => self.abort_for(local, ABORT_CODE, "spoke PMI after it said finalize", out),
        }
    }

    fn init(&mut self, local: u32, version: u32, subversion: u32, out: &mut Vec<Action>) {
        match version {
            1 => {
                self.session(local).phase = Phase::Joined;
                send(local, Reply::Init { version: 1, subversion: 1, rc: 0 }, out);
            }
            2 => {
                send(local, Reply::Init { version, subversion, rc: -1 }, out);
                let why = "speaks PMI-2, which comes in a later version of Lattice: use an MPI library that speaks PMI-1, \
                           as the distribution's MPICH does";
                self.abort_for(local, ABORT_CODE, why, out);
            }
            _ => {
                send(local, Reply::Init { version: 1, subversion: 1, rc: -1 }, out);
                self.abort_for(local, ABORT_CODE, &format!("speaks PMI version {version}; this server speaks 1"), out);
            }
        }
    }

    fn joined(&mut self, local: u32, command: Command<'_>, out: &mut Vec<Action>) {
        match command {
            Command::Init { .. } => self.abort_for(local, ABORT_CODE, "said init twice", out),
            Command::GetMaxes => send(local, Reply::Maxes, out),
            Command::GetAppnum => send(local, Reply::Appnum, out),
            Command::GetMyKvsname => send(local, Reply::MyKvsname(&self.job.kvsname), out),
            Command::GetUniverseSize => send(local, Reply::UniverseSize(self.job.size), out),
            Command::Put { pair, value } => {
                let result = self.put(pair, value);
                send(local, Reply::Put(result), out);
            }
            Command::Get { pair } => send(local, self.get(pair), out),
            Command::GetByIndex => send(local, Reply::NoIndex, out),
            Command::Name(command) => send(local, Reply::NoName(command), out),
            Command::SpawnBegin => self.session(local).phase = Phase::Spawning { total: 1, so_far: 1 },
            Command::BarrierIn => {
                self.session(local).phase = Phase::Fenced;
                self.fence_moved(out);
            }
            Command::Finalize => {
                self.session(local).phase = Phase::Finalized;
                send(local, Reply::FinalizeAck, out);
                self.fence_moved(out);
            }
            Command::Abort { .. } => unreachable!("answered in every phase alike"),
        }
    }

    /// A spawn command is read to its end and refused; its arguments are nobody's business until then.
    fn spawn_line(&mut self, local: u32, line: &[u8], total: u32, so_far: u32, out: &mut Vec<Action>) {
        let said = |name: &[u8]| line.strip_prefix(name).and_then(wire::number);
        let total = said(b"totspawns=").unwrap_or(total);
        let so_far = said(b"spawnssofar=").unwrap_or(so_far);
        let ended = line == b"endcmd";
        self.session(local).phase = if ended { Phase::Joined } else { Phase::Spawning { total, so_far } };
        if ended && so_far >= total {
            send(local, Reply::NoSpawn, out);
        }
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
        if pair.key == MAPPING_KEY {
            return Err(KeyRefused::Reserved);
        }
        let travels = !self.has_all_ranks();
        if travels && self.fresh.len() + blob::record_bytes(pair.key, value) > BLOB_BYTES_MAX {
            return Err(KeyRefused::Full);
        }
        self.kvs.put(pair.key, value).map_err(|_| KeyRefused::Full)?;
        if travels {
            blob::append(&mut self.fresh, pair.key, value);
        }
        Ok(())
    }

    fn get<'a>(&'a self, pair: Key<'a>) -> Reply<'a> {
        let key = pair.key;
        if let Err(why) = self.known_key(pair) {
            return Reply::NotGot { key, why };
        }
        let value = if key == MAPPING_KEY {
            Some(self.job.mapping.as_bytes()).filter(|mapping| mapping.len() <= MAPPING_BYTES_MAX)
        } else {
            self.kvs.get(key)
        };
        value.map_or(Reply::NotGot { key, why: KeyRefused::NotFound }, Reply::Got)
    }

    fn gone(&mut self, local: u32, how: Departure, out: &mut Vec<Action>) {
        match self.session(local).phase {
            Phase::Fresh => {
                self.session(local).phase = Phase::Left;
                self.fence_moved(out);
            }
            Phase::Joined | Phase::Fenced | Phase::Spawning { .. } => {
                self.abort_for(local, how.code(), &how.to_string(), out);
            }
            Phase::Left | Phase::Finalized => {}
        }
    }

    /// After any rank came to a fence or can come to none any more: the fence is impossible, whole, or still awaited.
    fn fence_moved(&mut self, out: &mut Vec<Action>) {
        let find = |wanted: fn(Phase) -> bool| (0u32..).zip(&self.ranks).find(|(_, session)| wanted(session.phase)).map(|(local, _)| local);
        let Some(waiting) = find(|phase| phase == Phase::Fenced) else { return };
        let waiting = self.rank(waiting);
        if let Some(absent) = find(|phase| phase == Phase::Left) {
            let why = format!(
                "ended without MPI_Init, and rank {waiting} waits for it in a fence: every rank of a launch must call MPI_Init, or none"
            );
            return self.abort_for(absent, ABORT_CODE, &why, out);
        }
        if let Some(absent) = find(|phase| phase == Phase::Finalized) {
            let why = format!("called MPI_Finalize, and rank {waiting} waits for it in a fence");
            return self.abort_for(absent, ABORT_CODE, &why, out);
        }
        if self.ranks.iter().any(|session| session.phase != Phase::Fenced) {
            return;
        }
        if self.has_all_ranks() {
            return self.release(out);
        }
        let Some(number) = self.fences.checked_add(1) else {
            return self.abort(ABORT_CODE, format!("rank {waiting} came to more than {} fences", u32::MAX), out);
        };
        let contribution = Contribution { number, blob: std::mem::take(&mut self.fresh) };
        out.push(contribution.action());
        self.pending = Some(contribution);
    }

    fn fence_done(&mut self, number: u32, blob: &[u8], out: &mut Vec<Action>) {
        let Some(contribution) = self.pending.take_if(|pending| pending.number == number) else { return };
        self.last = Some(contribution);
        if let Err(error) = self.kvs.merge(blob) {
            let ranks = format!("ranks {} to {}", self.job.first, self.rank(self.job.count.saturating_sub(1)));
            return self.abort(ABORT_CODE, format!("fence {number} failed for {ranks}: {error}"), out);
        }
        self.fences = number;
        self.release(out);
    }

    fn release(&mut self, out: &mut Vec<Action>) {
        for (local, session) in (0u32..).zip(&mut self.ranks) {
            if session.phase == Phase::Fenced {
                session.phase = Phase::Joined;
                send(local, Reply::BarrierOut, out);
            }
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
        u64::from(self.job.first) + u64::from(local)
    }

    fn session(&mut self, local: u32) -> &mut Session {
        &mut self.ranks[local as usize]
    }
}

/// How a rank went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// Its process lives.
    Closed,
    /// Its process does not.
    Ended { code: i32 },
}

impl Departure {
    /// The code of the abort that it means between init and finalize.
    fn code(self) -> i32 {
        match self {
            Self::Closed | Self::Ended { code: 0 } => ABORT_CODE,
            Self::Ended { code } => code,
        }
    }
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Closed => f.write_str("closed its PMI connection between MPI_Init and MPI_Finalize, and its process goes on"),
            // A shell around the program gives the same code when a signal ended the program: both are said.
            Self::Ended { code } if SIGNAL_CODES.contains(&code) => {
                write!(f, "ended with code {code} (128 + signal {}) between MPI_Init and MPI_Finalize", code - 128)
            }
            Self::Ended { code } => write!(f, "exited with code {code} between MPI_Init and MPI_Finalize"),
        }
    }
}

fn send(local: u32, reply: Reply<'_>, out: &mut Vec<Action>) {
    out.push(Action::Send { local, bytes: reply.line() });
}
