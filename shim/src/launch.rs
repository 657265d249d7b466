//! One launch's ranks on this node, each with its PMI socket.

use crate::agent_link::REST_MS;
use crate::bridge::{Bridge, Heard, Pmix};
use crate::log_files;
use crate::rank_input::{self, RankInput};
use crate::rank_socket::{Came, PmiPort, PmiSocket, PortOf};
use crate::say;
use crate::slurm;
use crate::terminal::RankTerminal;
use crate::work::Work;
use lattice_model::binding::{MemoryPolicy, RankPlace};
use lattice_model::call::{Leg, Service};
use lattice_model::input::Taken;
use lattice_model::{Call, LaunchId, LaunchSpec, MemoryKill, NodeRanks, Principal, RankOutcome};
use lattice_pmi::bridge::{FromBridge, ToBridge};
use lattice_pmi::{Action, Event, Job, PmixAction, PmixEvent, PmixServer, Server, Way, process_mapping, rank_environment};
use lattice_runtime::binding::{Binding, Memory};
use lattice_runtime::identity::process_stat;
use lattice_runtime::process::{self, Child, Environment, NotStarted, Prepared, Program, Start};
use lattice_runtime::shim::{ShimDir, boottime_ms};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Where a rank finds its PMI socket.
const PMI_FD: i32 = 3;
/// In the place of a local rank's number: the first rank's terminal. Ranks are far fewer.
const TERMINAL: u32 = u32::MAX;
/// And the launch's bridge to PMIx.
pub const BRIDGE: u32 = u32::MAX - 1;
/// Beside a local rank's number: its standard input.
const INPUT: u32 = 1 << 31;
/// What a rank may leave unread of its answers, in bytes: real ones ask one thing at a time.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Read at a time, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks read from one rank before others have their turn: more than a socket holds.
const CHUNKS_PER_TURN: usize = 64;
/// How long the end of a process is waited for after the end of its socket, in milliseconds. A process that ends closes
/// its descriptors first, and how it ended is the better news; one that lives still has closed them itself.
const EXIT_AWAITED_MS: u64 = 200;

/// How long a port is left alone after a stranger came to it, in milliseconds, times the strangers there so far: to know one takes a
/// walk through all that the launch's processes have open, and anybody on the machine may come as often as it likes.
const STRANGER_REST_MS: u64 = 100;
/// Strangers from which on a port is left alone no longer each time.
const STRANGERS_MAX: u64 = 20;

/// Before another node is asked again that did not answer, at first and at most, in milliseconds.
const ASK_AGAIN_MS: std::ops::RangeInclusive<u64> = 500..=8000;

/// Ranks that are prepared before the first of them is made: while these are made, those before them run.
const MADE_TOGETHER: usize = 8;

/// What a launch's ranks brought about.
#[derive(Debug, PartialEq, Eq)]
pub enum Happening {
    /// To be told to the agent.
    Fence { number: u32, blob: Vec<u8> },
    /// The same.
    Call(Call),
    /// The launch is to be brought down, here and everywhere.
    Abort { code: i32, why: String },
}

/// What every start of a process needs to know of its surroundings.
pub struct Surroundings<'a> {
    pub dir: &'a ShimDir,
    pub owner: &'a Principal,
    pub work: &'a Work,
    pub epoll: &'a Epoll,
    pub null: &'a File,
    pub open_files: Option<(u64, u64)>,
    pub v1_groups: &'a [BorrowedFd<'a>],
    /// Each local rank's place; the policy by which its memory is taken is the launch's.
    pub places: Vec<RankPlace>,
}

/// A launch that was started here.
pub struct Launch {
    pub spec: LaunchSpec,
    /// Which ones are here, by local rank.
    numbers: Vec<u32>,
    ranks: Vec<Rank>,
    /// Local ranks whose socket reached its end while their process lives, or that said their last by it, and when the server is
    /// told (milliseconds, CLOCK_BOOTTIME). Apart from `ranks`, because it is looked through at each turn of the loop.
    hung_up: BTreeMap<u32, u64>,
    /// Local ranks whose port is left alone, and until when (milliseconds, CLOCK_BOOTTIME).
    resting_ports: BTreeMap<u32, u64>,
    /// Strangers who came to the local ranks' ports. One that is beleaguered holds up no other.
    strangers: BTreeMap<u32, u64>,
    /// That a port could not be taken from was said.
    port_failure_told: bool,
    server: Server,
    /// When other nodes are asked again (milliseconds, CLOCK_BOOTTIME), and how long after that once more.
    asks_again: Option<(u64, u64)>,
    /// Where it is served PMIx.
    pmix: Option<Pmix>,
    /// How far bringing it down is.
    pub down: Down,
    /// Told to the agent as an abort that began here.
    pub aborted: Option<(i32, String)>,
    /// The first rank's, where it is here and has one.
    terminal: Option<RankTerminal>,
    /// Standard input of those ranks here that read it, where there are any.
    input: Option<RankInput>,
    /// What of it was killed for its memory, the last time.
    pub memory_kill: Option<MemoryKill>,
}

/// Bringing one launch down.
#[derive(Debug, PartialEq, Eq)]
pub enum Down {
    No,
    /// An abort that began here is told to the head, which tells every node. Until then, and no longer than until this time
    /// (milliseconds, CLOCK_BOOTTIME), the ranks stay: a peer on another node that sees one end may abort with a code of its own,
    /// and be heard first.
    Telling {
        until: u64,
    },
    /// SIGTERM was sent; SIGKILL follows at this time (milliseconds, CLOCK_BOOTTIME).
    Terminating {
        kill_at: u64,
    },
    Killed,
}

struct Rank {
    state: RankState,
    pmi: Option<PmiSocket>,
    /// Where it has not come yet.
    port: Option<PmiPort>,
}

enum RankState {
    Running { pid: i32, start: Start },
    Ended(RankOutcome),
}

/// What came by a rank's socket.
struct Received {
    happenings: Vec<Happening>,
    /// Nothing more will come.
    hung_up: bool,
}

/// What [`Launch::start`] gives.
pub struct Started {
    pub launch: Launch,
    /// The pids of the processes made, by local rank.
    pub pids: Vec<(u32, i32)>,
    /// Local ranks for which no process could be made.
    pub failed: Vec<u32>,
}

impl Launch {
    /// Starts this node's ranks. `token` gives the number under which a rank's socket is known in `epoll`.
    pub fn start(spec: LaunchSpec, part: &NodeRanks, pmix: Option<Pmix>, around: &Surroundings<'_>, token: impl Fn(u32) -> u64) -> Started {
        let numbers = spec.ranks_on(&part.node);
        let runs = spec.runs();
        let here = spec.nodes.iter().position(|one| one.node == part.node).and_then(|at| u32::try_from(at).ok()).unwrap_or(u32::MAX);
        let appnum = |rank: &u32| u32::try_from(spec.program_of(*rank).0).unwrap_or(u32::MAX);
        let job = Job {
            number: spec.number,
            kvsname: namespace(&spec),
            size: spec.size(),
            first: part.first,
            count: part.count,
            ranks: numbers.clone(),
            appnums: numbers.iter().map(appnum).collect(),
            mapping: process_mapping(&runs),
            part: here,
            nodes: spec.nodes.iter().map(|part| part.node.clone()).collect(),
            runs,
        };
        let group = log_files::create_directory(around.dir, spec.number).and_then(|()| {
            around.work.launch_group(spec.number).map_err(|error| {
                let source = std::error::Error::source(&error).map(|s| format!(": {s}")).unwrap_or_default();
                NotStarted { code: 126, why: format!("{error}{source}") }
            })
        });
        let shared = group.and_then(|group| Ok((group, Environment::new(&spec.env)?)));
        let (mut ranks, mut pids, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut terminal = None;
        let stdin = spec.stdin().unwrap_or_default();
        let mut input = numbers.iter().any(|rank| stdin.is_for(*rank)).then(RankInput::default);
        let locals: Vec<u32> = (0..part.count).collect();
        for some in locals.chunks(MADE_TOGETHER) {
            let make = |local: &u32| RankFiles::make(&spec, part, &job, *local, pmix.as_ref(), around, &token);
            let files: Vec<_> = some.iter().map(make).collect();
            let made = make_ranks(&files, &spec, &shared, around);
            for ((local, files), made) in some.iter().zip(files).zip(made) {
                let started = files.and_then(|files| Ok((files, made?)));
                ranks.push(match started {
                    Ok((files, child)) => {
                        pids.push((*local, child.pid));
                        terminal = terminal.or(files.terminal.map(|(ours, _)| ours));
                        if let (Some(input), Some((ours, _))) = (&mut input, files.input) {
                            input.add(*local, ours, token(INPUT | *local), around.epoll);
                        }
                        let state = RankState::Running { pid: child.pid, start: child.into_start() };
                        let (pmi, port) = match files.pmi {
                            Some(PmiEnd::Inherited { ours, .. }) => (Some(ours), None),
                            Some(PmiEnd::Port(port)) => (None, Some(port)),
                            None => (None, None),
                        };
                        Rank { state, pmi, port }
                    }
                    Err(NotStarted { code, why }) => {
                        log_files::tell(around.dir, spec.number, job.rank(*local), &why);
                        failed.push(*local);
                        Rank { state: RankState::Ended(RankOutcome::NotStarted { code }), pmi: None, port: None }
                    }
                });
            }
        }
        let server = Server::new(job);
        let launch = Self {
            spec,
            numbers,
            ranks,
            hung_up: BTreeMap::new(),
            resting_ports: BTreeMap::new(),
            strangers: BTreeMap::new(),
            port_failure_told: false,
            server,
            asks_again: None,
            pmix,
            down: Down::No,
            aborted: None,
            memory_kill: None,
            terminal,
            input,
        };
        Started { launch, pids, failed }
    }

    /// Its id.
    pub fn id(&self) -> LaunchId {
        self.spec.id
    }

    /// The global number of a local rank.
    pub fn rank(&self, local: u32) -> u32 {
        self.numbers.get(local as usize).copied().unwrap_or(u32::MAX)
    }

    /// The ranks that live.
    pub fn pids(&self) -> Vec<i32> {
        let pid = |rank: &Rank| match rank.state {
            RankState::Running { pid, .. } => Some(pid),
            RankState::Ended(_) => None,
        };
        self.ranks.iter().filter_map(pid).collect()
    }

    /// Whether every rank has ended.
    pub fn ended(&self) -> bool {
        self.ranks.iter().all(|r| matches!(r.state, RankState::Ended(_)))
    }

    /// Local ranks that have ended, and how.
    pub fn outcomes(&self) -> impl Iterator<Item = (u32, RankOutcome)> {
        (0..).zip(&self.ranks).filter_map(|(local, rank)| match rank.state {
            RankState::Running { .. } => None,
            RankState::Ended(outcome) => Some((local, outcome)),
        })
    }

    /// The fences that an agent must be told after a connect.
    pub fn replay(&self) -> Vec<Happening> {
        let fence = |action| match action {
            Action::Fence { number, blob } => Some(Happening::Fence { number, blob }),
            // The abort is replayed from `aborted`, with those that did not begin in PMI.
            Action::Send { .. } | Action::LastWords { .. } | Action::Call(_) | Action::Abort { .. } => None,
        };
        let pmix = self.pmix.iter().flat_map(|pmix| pmix.server.replay()).filter_map(|action| match action {
            PmixAction::Fence { number, blob } => Some(Happening::Fence { number, blob }),
            PmixAction::Tell(_) | PmixAction::Call(_) | PmixAction::Abort { .. } => None,
        });
        self.server.replay().into_iter().filter_map(fence).chain(pmix).collect()
    }

    /// No rank needs the bridge any more.
    pub fn close_bridge(&mut self, epoll: &Epoll) {
        if let Some(bridge) = self.pmix.as_mut().and_then(|pmix| pmix.bridge.take()) {
            bridge.close(epoll);
        }
    }

    /// Its terminal, where it has one here that is not hung up.
    pub fn terminal(&mut self) -> Option<&mut RankTerminal> {
        self.terminal.as_mut()
    }

    /// A piece of standard input came: see [`lattice_runtime::shim::ToShim::Input`].
    pub fn take_input(&mut self, offset: u64, bytes: &[u8], last: bool, epoll: &Epoll) {
        if let Some(input) = &mut self.input {
            input.take(offset, bytes, last, epoll);
        }
    }

    /// How much of it was taken by those of its ranks here that read it, where any ever did.
    pub fn input_taken(&self) -> Option<Taken> {
        self.input.as_ref().map(RankInput::taken)
    }

    /// The same, where the agent is to hear of it.
    pub fn input_news(&mut self) -> Option<Taken> {
        self.input.as_mut().and_then(RankInput::news)
    }

    /// Its ranks were told to end. The terminal hangs up: an interactive shell does not end by SIGTERM.
    pub fn is_told_to_end(&mut self) {
        if let Some(pmix) = &mut self.pmix {
            // It has nothing to do about it.
            pmix.server.handle(PmixEvent::BroughtDown, &mut Vec::new());
        }
        if self.terminal.is_some()
            && let Some(Rank { state: RankState::Running { pid, .. }, .. }) = self.ranks.first()
        {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGHUP);
        }
    }

    /// The head's answer to a fence.
    pub fn fence_done(&mut self, number: u32, blob: &[u8], epoll: &Epoll, token: impl Fn(u32) -> u64) -> Vec<Happening> {
        let mut happenings = self.handle(Event::FenceDone { number, blob }, epoll, &token);
        happenings.extend(self.handle_pmix(PmixEvent::FenceDone { number, blob }, epoll));
        happenings
    }

    /// A server of another node asks, or answers.
    pub fn called(&mut self, call: &Call, epoll: &Epoll, token: impl Fn(u32) -> u64) -> Vec<Happening> {
        match call.service {
            Service::Names => self.handle(Event::Called(call), epoll, &token),
            Service::Published | Service::Modex | Service::Deaths if self.pmix.is_some() => {
                self.handle_pmix(PmixEvent::Called(call), epoll)
            }
            Service::Published | Service::Modex | Service::Deaths => call.unserved().map(Happening::Call).into_iter().collect(),
        }
    }

    /// Whether what is asked of other nodes is carried there.
    pub fn carry(&mut self, carried: bool, epoll: &Epoll, token: impl Fn(u32) -> u64) -> Vec<Happening> {
        let mut happenings = self.handle(Event::Carried(carried), epoll, &token);
        happenings.extend(self.handle_pmix(PmixEvent::Carried(carried), epoll));
        // Who carries them now is new: what the one before had is lost.
        happenings.extend(self.unanswered().into_iter().map(|call| self.asked(call)).collect::<Vec<_>>());
        happenings
    }

    /// What other nodes were asked and have not answered. Those who asked are gone when all have ended.
    fn unanswered(&self) -> Vec<Call> {
        let ended = self.ended();
        let pmix = self.pmix.iter().flat_map(|pmix| pmix.server.unanswered());
        let all = self.server.unanswered().into_iter().chain(pmix);
        // Of deaths others hear, and of the last rank's here too.
        all.filter(|call| !ended || call.service == Service::Deaths).cloned().collect()
    }

    /// When [`Self::ask_again`] has something to do (milliseconds, CLOCK_BOOTTIME).
    pub fn asks_again_at(&self) -> Option<u64> {
        self.asks_again.map(|(at, _)| at)
    }

    /// What other nodes were asked and have not answered, when it is time.
    pub fn ask_again(&mut self, now: u64) -> Vec<Happening> {
        let Some((_, pause)) = self.asks_again.take_if(|(at, _)| *at <= now) else { return Vec::new() };
        let again: Vec<Happening> = self.unanswered().into_iter().map(Happening::Call).collect();
        if !again.is_empty() {
            self.asks_again = Some((now + pause, (pause * 2).min(*ASK_AGAIN_MS.end())));
        }
        again
    }

    fn asked(&mut self, call: Call) -> Happening {
        if call.leg == Leg::Asks {
            let pause = *ASK_AGAIN_MS.start();
            self.asks_again = Some((boottime_ms() + pause, pause * 2));
        }
        Happening::Call(call)
    }

    fn heard(&mut self, heard: Heard, epoll: &Epoll) -> Vec<Happening> {
        let mut happenings = Vec::new();
        for said in heard.said {
            // The code tells how it ended, once it is reaped.
            if matches!(said, FromBridge::Lost { rank } if self.is_ending(rank)) {
                continue;
            }
            let FromBridge::Finalized { rank } = said else {
                happenings.extend(self.handle_pmix(PmixEvent::Said(said), epoll));
                continue;
            };
            let event = if self.is_ending(rank) { PmixEvent::Left { rank } } else { PmixEvent::Said(said) };
            happenings.extend(self.handle_pmix(event, epoll));
            happenings.extend(self.tell_bridge(&ToBridge::Left { rank }, epoll));
        }
        if let Some(why) = heard.lost {
            self.close_bridge(epoll);
            happenings.extend(self.handle_pmix(PmixEvent::BridgeLost { why: &why }, epoll));
        }
        happenings
    }

    fn handle_pmix(&mut self, event: PmixEvent<'_>, epoll: &Epoll) -> Vec<Happening> {
        let Some(pmix) = &mut self.pmix else { return Vec::new() };
        let (mut actions, mut happenings, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        pmix.server.handle(event, &mut actions);
        for action in actions {
            match action {
                PmixAction::Tell(message) => happenings.extend(tell_bridge(pmix, &message, epoll)),
                PmixAction::Fence { number, blob } => happenings.push(Happening::Fence { number, blob }),
                PmixAction::Call(call) => calls.push(call),
                PmixAction::Abort { code, why } => happenings.push(Happening::Abort { code, why }),
            }
        }
        happenings.extend(calls.into_iter().map(|call| self.asked(call)).collect::<Vec<_>>());
        happenings
    }

    fn tell_bridge(&mut self, message: &ToBridge, epoll: &Epoll) -> Option<Happening> {
        self.pmix.as_mut().and_then(|pmix| tell_bridge(pmix, message, epoll))
    }

    /// Whether a rank's process is ending: one that waits for an answer is not.
    fn is_ending(&self, rank: u32) -> bool {
        let at = self.numbers.iter().position(|number| *number == rank);
        match at.and_then(|local| self.ranks.get(local)).map(|rank| &rank.state) {
            Some(RankState::Running { pid, .. }) => process_stat(*pid).map_or(true, |stat| stat.ending),
            Some(RankState::Ended(_)) | None => true,
        }
    }

    /// The ranks that have not come to a fence in which others wait.
    pub fn absent(&self) -> Vec<u32> {
        let pmix = self.pmix.as_ref().map(|pmix| &pmix.server).filter(|server| server.is_used());
        pmix.map_or_else(|| self.server.absent(), PmixServer::absent)
    }

    /// A rank's socket has something for us, or room; or somebody came to its port. `now` is in milliseconds of CLOCK_BOOTTIME.
    pub fn socket_ready(
        &mut self,
        local: u32,
        flags: EpollFlags,
        now: u64,
        (dir, work): (&ShimDir, &Work),
        epoll: &Epoll,
        token: impl Fn(u32) -> u64,
    ) -> Vec<Happening> {
        let mut happenings = Vec::new();
        if local == TERMINAL {
            if let Some(mut terminal) = self.terminal.take() {
                match terminal.ready(flags, epoll) {
                    true => self.terminal = Some(terminal),
                    false => terminal.close(epoll),
                }
            }
            return happenings;
        }
        if local < BRIDGE && local & INPUT != 0 {
            if let Some(input) = &mut self.input {
                input.ready(local & !INPUT, flags, epoll);
            }
            return happenings;
        }
        if local == BRIDGE {
            let heard = self.pmix.as_mut().and_then(|pmix| pmix.bridge.as_mut()).map(|bridge| bridge.ready(flags, epoll));
            return heard.map(|heard| self.heard(heard, epoll)).unwrap_or_default();
        }
        if self.ranks.get(local as usize).is_some_and(|rank| rank.port.is_some()) {
            // What came with it is told by the next event.
            self.accept(local, now, dir, work, epoll, token(local));
            return happenings;
        }
        if flags.contains(EpollFlags::EPOLLOUT) {
            happenings.extend(self.send(local, Vec::new(), epoll, &token));
        }
        if flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            let received = self.receive(local, epoll, &token);
            happenings.extend(received.happenings);
            if received.hung_up {
                self.close(local, epoll);
                self.hung_up.insert(local, now + EXIT_AWAITED_MS);
            }
        }
        happenings
    }

    fn accept(&mut self, local: u32, now: u64, dir: &ShimDir, work: &Work, epoll: &Epoll, token: u64) {
        let (pids, number, global) = (self.pids(), self.spec.number, self.rank(local));
        let Some(rank) = self.ranks.get_mut(local as usize) else { return };
        let Some(port) = &mut rank.port else { return };
        let of = PortOf { dir, work, launch: number, pids: &pids, rank: global };
        let socket = match port.accept(&of) {
            Ok(Came::Rank(socket)) => socket,
            Ok(Came::Nobody) => return,
            Ok(Came::Stranger) => {
                let so_far = self.strangers.entry(local).or_default();
                *so_far = (*so_far + 1).min(STRANGERS_MAX);
                let until = now + STRANGER_REST_MS * *so_far;
                return self.rest_port(local, until, epoll, token);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.port_failure_told, true) {
                    say(&format!("launch {number}: a PMI connection of rank {global} cannot be taken, which is tried again: {error}"));
                }
                return self.rest_port(local, now + REST_MS, epoll, token);
            }
        };
        match epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, token)) {
            Ok(()) => {
                // A rank has one connection. (Deleted first: a child between clone and exec may hold a copy.)
                let _ = epoll.delete(&*port);
                (rank.pmi, rank.port) = (Some(socket), None);
            }
            Err(errno) => log_files::tell(dir, number, global, &format!("watching its PMI connection: {}", errno.desc())),
        }
    }

    /// It would be told again and again that somebody waits there.
    fn rest_port(&mut self, local: u32, until: u64, epoll: &Epoll, token: u64) {
        if let Some(port) = self.ranks.get(local as usize).and_then(|rank| rank.port.as_ref()) {
            let _ = epoll.modify(port, &mut EpollEvent::new(EpollFlags::empty(), token));
            self.resting_ports.insert(local, until);
        }
    }

    /// When [`Self::wake_ports`] has something to do (milliseconds, CLOCK_BOOTTIME).
    pub fn ports_rest_until(&self) -> Option<u64> {
        self.resting_ports.values().min().copied()
    }

    /// Looks again at the ports that have rested.
    pub fn wake_ports(&mut self, now: u64, epoll: &Epoll, token: impl Fn(u32) -> u64) {
        for (local, _) in self.resting_ports.extract_if(.., |_, until| *until <= now) {
            if let Some(port) = self.ranks.get(local as usize).and_then(|rank| rank.port.as_ref()) {
                let _ = epoll.modify(port, &mut EpollEvent::new(EpollFlags::EPOLLIN, token(local)));
            }
        }
    }

    /// When [`Self::check_hung_up`] has something to do (milliseconds, CLOCK_BOOTTIME).
    pub fn hung_up_until(&self) -> Option<u64> {
        self.hung_up.values().min().copied()
    }

    /// The ranks whose socket ended a while ago live: they closed it themselves. All that ended is reaped before this.
    pub fn check_hung_up(&mut self, now: u64, epoll: &Epoll, token: impl Fn(u32) -> u64) -> Vec<Happening> {
        let due = self.hung_up.extract_if(.., |_, until| *until <= now).map(|(local, _)| local).collect::<Vec<_>>();
        due.into_iter().flat_map(|local| self.handle(Event::Closed { local }, epoll, &token)).collect()
    }

    /// A rank's process was reaped. What it wrote before its end is taken first: one that finalized and ended at once
    /// is none that died. (All of that lies in the socket by now, and a child of the rank may hold the other end open.)
    pub fn rank_ended(
        &mut self,
        local: u32,
        outcome: RankOutcome,
        dir: &ShimDir,
        epoll: &Epoll,
        token: impl Fn(u32) -> u64,
    ) -> (RankOutcome, Vec<Happening>) {
        let mut happenings = self.receive(local, epoll, &token).happenings;
        if let Some(heard) = self.pmix.as_mut().and_then(|pmix| pmix.bridge.as_mut()).map(Bridge::receive) {
            happenings.extend(self.heard(heard, epoll));
        }
        happenings.extend(self.handle(Event::Exited { local, code: outcome.code() }, epoll, &token));
        happenings.extend(self.handle_pmix(PmixEvent::Exited { local, code: outcome.code() }, epoll));
        self.close(local, epoll);
        if let Some(input) = &mut self.input {
            input.remove(local, epoll);
        }
        if self.rank(local) == 0
            && let Some(mut terminal) = self.terminal.take()
        {
            // With its leader the kernel has hung up the session: nothing is shown any more.
            terminal.show();
            terminal.close(epoll);
        }
        self.hung_up.remove(&local);
        let (number, global) = (self.spec.number, self.rank(local));
        let Some(rank) = self.ranks.get_mut(local as usize) else { return (outcome, happenings) };
        let failure = match &mut rank.state {
            RankState::Running { start, .. } => start.failure(),
            RankState::Ended(outcome) => return (*outcome, happenings),
        };
        let outcome = match failure {
            Some(NotStarted { code, why }) => {
                log_files::tell(dir, number, global, &why);
                RankOutcome::NotStarted { code }
            }
            None => outcome,
        };
        rank.state = RankState::Ended(outcome);
        (outcome, happenings)
    }

    fn handle(&mut self, event: Event<'_>, epoll: &Epoll, token: &impl Fn(u32) -> u64) -> Vec<Happening> {
        let mut actions = Vec::new();
        self.server.handle(event, &mut actions);
        let mut happenings = Vec::new();
        for action in actions {
            match action {
                Action::Send { local, bytes } => happenings.extend(self.send(local, bytes, epoll, token)),
                Action::LastWords { local } => drop(self.hung_up.insert(local, boottime_ms() + EXIT_AWAITED_MS)),
                Action::Fence { number, blob } => happenings.push(Happening::Fence { number, blob }),
                Action::Call(call) => happenings.push(self.asked(call)),
                Action::Abort { code, why } => happenings.push(Happening::Abort { code, why }),
            }
        }
        happenings
    }

    fn receive(&mut self, local: u32, epoll: &Epoll, token: &impl Fn(u32) -> u64) -> Received {
        let mut happenings = Vec::new();
        let mut chunk = [0; CHUNK_BYTES];
        for _ in 0..CHUNKS_PER_TURN {
            let Some(pmi) = self.socket(local) else { break };
            match pmi.read(&mut chunk) {
                Ok(n) if n > 0 => happenings.extend(self.handle(Event::Bytes { local, data: &chunk[..n] }, epoll, token)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => return Received { happenings, hung_up: true },
            }
        }
        Received { happenings, hung_up: false }
    }

    fn send(&mut self, local: u32, bytes: Vec<u8>, epoll: &Epoll, token: &impl Fn(u32) -> u64) -> Option<Happening> {
        let global = self.rank(local);
        let socket = self.socket(local)?;
        // One answer may be of any length: those before it were to be read.
        let unread = socket.unread();
        socket.send(&bytes, epoll, token(local));
        (unread > ANSWER_BYTES_MAX).then(|| {
            let why = format!("rank {global} asks by PMI and does not read the answers");
            Happening::Abort { code: 1, why }
        })
    }

    fn socket(&mut self, local: u32) -> Option<&mut PmiSocket> {
        self.ranks.get_mut(local as usize)?.pmi.as_mut()
    }

    fn close(&mut self, local: u32, epoll: &Epoll) {
        let Some(rank) = self.ranks.get_mut(local as usize) else { return };
        // A child between clone and exec may hold a copy: closing alone would leave it registered.
        if let Some(pmi) = rank.pmi.take() {
            let _ = epoll.delete(&pmi);
        }
        if let Some(port) = rank.port.take() {
            let _ = epoll.delete(&port);
        }
        self.resting_ports.remove(&local);
    }
}

/// Our end of a rank's PMI, and what the rank gets of it.
enum PmiEnd {
    Inherited { ours: PmiSocket, theirs: OwnedFd },
    Port(PmiPort),
}

impl PmiEnd {
    fn make(by_port: bool) -> io::Result<Self> {
        if by_port {
            return PmiPort::open().map(Self::Port);
        }
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok(Self::Inherited { ours: PmiSocket::new(ours), theirs: theirs.into() })
    }

    fn way(&self) -> Way {
        match self {
            Self::Inherited { .. } => Way::Inherited(PMI_FD),
            Self::Port(port) => Way::Port(port.number()),
        }
    }

    /// What the rank inherits.
    fn theirs(&self) -> &[OwnedFd] {
        match self {
            Self::Inherited { theirs, .. } => std::slice::from_ref(theirs),
            Self::Port(_) => &[],
        }
    }
}

impl AsFd for PmiEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Inherited { ours, .. } => ours.as_fd(),
            Self::Port(port) => port.as_fd(),
        }
    }
}

/// The launch's name in PMI and PMIx, the same on all its nodes.
pub fn namespace(spec: &LaunchSpec) -> String {
    format!("lattice_{}_{}_{}", spec.allocation.short(), spec.epoch, spec.number)
}

/// What a rank is given, before there is a process.
struct RankFiles {
    out: File,
    err: File,
    /// Where it is served PMI.
    pmi: Option<PmiEnd>,
    /// The first rank's, where one is asked for, and its other end.
    terminal: Option<(RankTerminal, OwnedFd)>,
    /// Our end of its standard input and its own, where it has one.
    input: Option<(OwnedFd, OwnedFd)>,
    /// Its number in the launch.
    rank: u32,
    /// Its own part of the environment.
    env: Vec<(String, String)>,
    binding: Binding,
}

impl RankFiles {
    fn make(
        spec: &LaunchSpec,
        part: &NodeRanks,
        job: &Job,
        local: u32,
        pmix: Option<&Pmix>,
        around: &Surroundings<'_>,
        token: &impl Fn(u32) -> u64,
    ) -> Result<Self, NotStarted> {
        let rank = job.rank(local);
        let [out, err] = log_files::create(around.dir, spec.number, rank, around.owner)?;
        let system = |what: &str, error: io::Error| NotStarted { code: 126, why: format!("{what}: {error}") };
        let asked = spec.pmi().map_err(|unknown| NotStarted { code: 126, why: unknown.to_string() })?;
        let pmi = match asked.has_pmi() {
            true => Some(PmiEnd::make(spec.pmi_by_port()).map_err(|e| system("making its PMI socket", e))?),
            false => None,
        };
        let mut env = pmi.as_ref().map(|pmi| rank_environment(job, local, pmi.way())).unwrap_or_default();
        // What is for Open MPI is the user's to choose.
        let chosen = |name: &String| name.starts_with("OMPI_") && spec.env.contains_key(name);
        let served = pmix.and_then(|pmix| pmix.env.get(local as usize)).into_iter().flatten();
        env.extend(served.filter(|(name, _)| !chosen(name)).cloned());
        env.extend([
            ("LATTICE_RANK".to_owned(), rank.to_string()),
            ("LATTICE_LOCAL_RANK".to_owned(), local.to_string()),
            ("LATTICE_LOCAL_SIZE".to_owned(), job.count.to_string()),
        ]);
        env.extend(slurm::of_rank(spec, part, rank, local));
        let place = around.places.get(local as usize).cloned().unwrap_or_default();
        env.extend(place.visible.iter().map(|(name, ids)| ((*name).to_owned(), ids.clone())));
        let binding = binding(spec.binding.memory_policy, &place);
        if let Some(pmi) = &pmi {
            let added = around.epoll.add(pmi, EpollEvent::new(EpollFlags::EPOLLIN, token(local)));
            added.map_err(|e| system("watching its PMI socket", e.into()))?;
        }
        let terminal = match spec.pty.filter(|_| rank == 0) {
            Some(size) => {
                let log = out.try_clone().map_err(|e| system("its log file", e))?;
                let made = RankTerminal::make(around.owner, size, log, around.epoll, token(TERMINAL));
                Some(made.map_err(|e| system("making its terminal", e))?)
            }
            None => None,
        };
        let input = match spec.stdin() {
            Ok(stdin) if stdin.is_for(rank) => {
                Some(rank_input::pipe(around.owner).map_err(|e| system("making its standard input", e.into()))?)
            }
            Ok(_) | Err(_) => None,
        };
        Ok(Self { out, err, pmi, terminal, input, rank, env, binding })
    }

    fn prepare<'a>(
        &'a self,
        spec: &'a LaunchSpec,
        group: Option<&'a OwnedFd>,
        env: &'a Environment,
        around: &'a Surroundings<'_>,
    ) -> Result<Prepared<'a>, NotStarted> {
        let [stdin, stdout, stderr] = match (&self.terminal, &self.input) {
            (Some((_, slave)), _) => [slave.as_fd(); 3],
            (None, Some((_, theirs))) => [theirs.as_fd(), self.out.as_fd(), self.err.as_fd()],
            (None, None) => [around.null.as_fd(), self.out.as_fd(), self.err.as_fd()],
        };
        process::prepare(&Program {
            argv: spec.program_of(self.rank).1,
            env: &self.env,
            shared_env: Some(env),
            working_dir: &spec.working_dir,
            user: Some(around.owner),
            stdin,
            stdout,
            stderr,
            inherit: self.pmi.as_ref().map_or(&[], PmiEnd::theirs),
            cgroup: group.map(AsFd::as_fd),
            v1_groups: around.v1_groups,
            open_files: around.open_files,
            binding: Some(&self.binding),
            terminal: self.terminal.is_some(),
        })
    }
}

/// What the ranks of a launch have alike: their cgroup and most of their environment.
type Shared = (Option<OwnedFd>, Environment);

fn make_ranks(
    files: &[Result<RankFiles, NotStarted>],
    spec: &LaunchSpec,
    shared: &Result<Shared, NotStarted>,
    around: &Surroundings<'_>,
) -> Vec<Result<Child, NotStarted>> {
    let prepared = files.iter().map(|files| {
        let (group, env) = shared.as_ref().map_err(NotStarted::clone)?;
        files.as_ref().map_err(NotStarted::clone)?.prepare(spec, group.as_ref(), env, around)
    });
    process::spawn_all(prepared.collect())
}

/// A rank's place as the kernel is told.
fn binding(policy: MemoryPolicy, place: &RankPlace) -> Binding {
    let nodes = &place.memory_nodes;
    let memory = nodes.first().and_then(|first| match policy {
        MemoryPolicy::Local => None,
        MemoryPolicy::Interleave => Some(Memory::Interleave(nodes.clone())),
        MemoryPolicy::Preferred => Some(Memory::Preferred(*first)),
        MemoryPolicy::Bind => Some(Memory::Bind(nodes.clone())),
    });
    Binding::new(&place.cpus, memory.as_ref())
}

fn tell_bridge(pmix: &mut Pmix, message: &ToBridge, epoll: &Epoll) -> Option<Happening> {
    let told = pmix.bridge.as_mut().map(|bridge| bridge.tell(message, epoll))?;
    // A death that nobody hears of is no reason to end the others.
    let why = told.err().filter(|_| !matches!(message, ToBridge::Died { .. }))?;
    Some(Happening::Abort { code: 1, why: format!("the PMIx server of this node was not told: {why}") })
}
