//! One launch's ranks on this node, each with its PMI socket.

use crate::log_files;
use crate::terminal::RankTerminal;
use crate::work::Work;
use lattice_model::binding::{MemoryPolicy, RankPlace};
use lattice_model::{LaunchId, LaunchSpec, MemoryKill, NodeRanks, Principal, RankOutcome};
use lattice_pmi::{Action, Event, Job, Server, process_mapping, rank_environment};
use lattice_runtime::binding::{Binding, Memory};
use lattice_runtime::process::{self, Child, Environment, NotStarted, Prepared, Program, Start};
use lattice_runtime::shim::ShimDir;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Where a rank finds its PMI socket.
const PMI_FD: i32 = 3;
/// In the place of a local rank's number: the first rank's terminal. Ranks are far fewer.
const TERMINAL: u32 = u32::MAX;
/// What a rank may leave unread of its answers, in bytes: real ones ask one thing at a time.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Read at a time, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks read from one rank before others have their turn: more than a socket holds.
const CHUNKS_PER_TURN: usize = 64;
/// How long the end of a process is waited for after the end of its socket, in milliseconds. A process that ends closes
/// its descriptors first, and how it ended is the better news; one that lives still has closed them itself.
const EXIT_AWAITED_MS: u64 = 200;

/// Ranks that are prepared before the first of them is made: while these are made, those before them run.
const MADE_TOGETHER: usize = 8;

/// What a launch's ranks brought about.
#[derive(Debug, PartialEq, Eq)]
pub enum Happening {
    /// To be told to the agent.
    Fence { number: u32, blob: Vec<u8> },
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
    first: u32,
    ranks: Vec<Rank>,
    /// Local ranks whose socket reached its end while their process lives, and when the server is told (milliseconds,
    /// CLOCK_BOOTTIME). Apart from `ranks`, because it is looked through at each turn of the loop.
    hung_up: BTreeMap<u32, u64>,
    server: Server,
    /// How far bringing it down is.
    pub down: Down,
    /// Told to the agent as an abort that began here.
    pub aborted: Option<(i32, String)>,
    /// The first rank's, where it is here and has one.
    terminal: Option<RankTerminal>,
    /// What of it was killed for its memory, the last time.
    pub memory_kill: Option<MemoryKill>,
}

/// Bringing one launch down.
#[derive(Debug, PartialEq, Eq)]
pub enum Down {
    No,
    /// SIGTERM was sent; SIGKILL follows at this time (milliseconds, CLOCK_BOOTTIME).
    Terminating {
        kill_at: u64,
    },
    Killed,
}

struct Rank {
    state: RankState,
    pmi: Option<PmiSocket>,
}

enum RankState {
    Running { pid: i32, start: Start },
    Ended(RankOutcome),
}

struct PmiSocket {
    stream: UnixStream,
    /// Answers not yet taken by the socket.
    answers: Vec<u8>,
    waits_to_write: bool,
}

impl PmiSocket {
    fn new(stream: UnixStream) -> Self {
        Self { stream, answers: Vec::new(), waits_to_write: false }
    }
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
    pub fn start(spec: LaunchSpec, part: &NodeRanks, around: &Surroundings<'_>, token: impl Fn(u32) -> u64) -> Started {
        let job = Job {
            number: spec.number,
            kvsname: format!("lattice_{}_{}_{}", spec.allocation.short(), spec.epoch, spec.number),
            size: spec.size(),
            first: part.first,
            count: part.count,
            mapping: process_mapping(&spec.nodes),
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
        let locals: Vec<u32> = (0..part.count).collect();
        for some in locals.chunks(MADE_TOGETHER) {
            let files: Vec<_> = some.iter().map(|local| RankFiles::make(&spec, &job, *local, around, &token)).collect();
            let made = make_ranks(&files, &spec, &shared, around);
            for ((local, files), made) in some.iter().zip(files).zip(made) {
                let started = files.and_then(|files| Ok((files, made?)));
                ranks.push(match started {
                    Ok((files, child)) => {
                        pids.push((*local, child.pid));
                        terminal = terminal.or(files.terminal.map(|(ours, _)| ours));
                        let state = RankState::Running { pid: child.pid, start: child.into_start() };
                        Rank { state, pmi: Some(PmiSocket::new(files.pmi)) }
                    }
                    Err(NotStarted { code, why }) => {
                        log_files::tell(around.dir, spec.number, part.first + local, &why);
                        failed.push(*local);
                        Rank { state: RankState::Ended(RankOutcome::NotStarted { code }), pmi: None }
                    }
                });
            }
        }
        let server = Server::new(job);
        let launch = Self {
            spec,
            first: part.first,
            ranks,
            hung_up: BTreeMap::new(),
            server,
            down: Down::No,
            aborted: None,
            memory_kill: None,
            terminal,
        };
        Started { launch, pids, failed }
    }

    /// Its id.
    pub fn id(&self) -> LaunchId {
        self.spec.id
    }

    /// The global number of a local rank.
    pub fn rank(&self, local: u32) -> u32 {
        self.first + local
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
            Action::Send { .. } | Action::Abort { .. } => None,
        };
        self.server.replay().into_iter().filter_map(fence).collect()
    }

    /// Its terminal, where it has one here that is not hung up.
    pub fn terminal(&mut self) -> Option<&mut RankTerminal> {
        self.terminal.as_mut()
    }

    /// The terminal hangs up: an interactive shell does not end by SIGTERM.
    pub fn hang_up(&self) {
        if self.terminal.is_some()
            && let Some(Rank { state: RankState::Running { pid, .. }, .. }) = self.ranks.first()
        {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGHUP);
        }
    }

    /// The head's answer to a fence.
    pub fn fence_done(&mut self, number: u32, blob: &[u8], epoll: &Epoll, token: impl Fn(u32) -> u64) -> Vec<Happening> {
        self.handle(Event::FenceDone { number, blob }, epoll, &token)
    }

    /// A rank's socket has something for us, or room. `now` is in milliseconds of CLOCK_BOOTTIME.
    pub fn socket_ready(&mut self, local: u32, flags: EpollFlags, now: u64, epoll: &Epoll, token: impl Fn(u32) -> u64) -> Vec<Happening> {
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
        happenings.extend(self.handle(Event::Exited { local, code: outcome.code() }, epoll, &token));
        self.close(local, epoll);
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
                Action::Fence { number, blob } => happenings.push(Happening::Fence { number, blob }),
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
            match pmi.stream.read(&mut chunk) {
                Ok(n) if n > 0 => happenings.extend(self.handle(Event::Bytes { local, data: &chunk[..n] }, epoll, token)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => return Received { happenings, hung_up: true },
            }
        }
        Received { happenings, hung_up: false }
    }

    /// Sends what the socket takes; the rest waits for room. A rank that is gone needs no answer: its end is told by other means.
    fn send(&mut self, local: u32, bytes: Vec<u8>, epoll: &Epoll, token: &impl Fn(u32) -> u64) -> Option<Happening> {
        let global = self.rank(local);
        let pmi = self.socket(local)?;
        pmi.answers.extend(bytes);
        let mut sent = 0;
        while sent < pmi.answers.len() {
            match pmi.stream.write(&pmi.answers[sent..]) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => sent = pmi.answers.len(),
            }
        }
        pmi.answers.drain(..sent);
        if pmi.answers.len() > ANSWER_BYTES_MAX {
            let why = format!("rank {global} asks by PMI and does not read the answers");
            return Some(Happening::Abort { code: 1, why });
        }
        let waits = !pmi.answers.is_empty();
        if waits != pmi.waits_to_write {
            let flags = if waits { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            if epoll.modify(&pmi.stream, &mut EpollEvent::new(flags, token(local))).is_ok() {
                pmi.waits_to_write = waits;
            }
        }
        None
    }

    fn socket(&mut self, local: u32) -> Option<&mut PmiSocket> {
        self.ranks.get_mut(local as usize)?.pmi.as_mut()
    }

    fn close(&mut self, local: u32, epoll: &Epoll) {
        if let Some(pmi) = self.ranks.get_mut(local as usize).and_then(|r| r.pmi.take()) {
            // A child between clone and exec may hold a copy: closing alone would leave it registered.
            let _ = epoll.delete(&pmi.stream);
        }
    }
}

/// What a rank is given, before there is a process.
struct RankFiles {
    out: File,
    err: File,
    pmi: UnixStream,
    theirs: OwnedFd,
    /// The first rank's, where one is asked for, and its other end.
    terminal: Option<(RankTerminal, OwnedFd)>,
    /// Its own part of the environment.
    env: Vec<(String, String)>,
    binding: Binding,
}

impl RankFiles {
    fn make(spec: &LaunchSpec, job: &Job, local: u32, around: &Surroundings<'_>, token: &impl Fn(u32) -> u64) -> Result<Self, NotStarted> {
        let rank = job.first + local;
        let [out, err] = log_files::create(around.dir, spec.number, rank, around.owner)?;
        let system = |what: &str, error: io::Error| NotStarted { code: 126, why: format!("{what}: {error}") };
        let (ours, theirs) = UnixStream::pair().map_err(|e| system("making its PMI socket", e))?;
        ours.set_nonblocking(true).map_err(|e| system("making its PMI socket", e))?;
        let mut env = rank_environment(job, local, PMI_FD);
        env.extend([
            ("LATTICE_RANK".to_owned(), rank.to_string()),
            ("LATTICE_LOCAL_RANK".to_owned(), local.to_string()),
            ("LATTICE_LOCAL_SIZE".to_owned(), job.count.to_string()),
        ]);
        let place = around.places.get(local as usize).cloned().unwrap_or_default();
        env.extend(place.visible.iter().map(|(name, ids)| ((*name).to_owned(), ids.clone())));
        let binding = binding(spec.binding.memory_policy, &place);
        around
            .epoll
            .add(&ours, EpollEvent::new(EpollFlags::EPOLLIN, token(local)))
            .map_err(|e| system("watching its PMI socket", e.into()))?;
        let terminal = match spec.pty.filter(|_| rank == 0) {
            Some(size) => {
                let log = out.try_clone().map_err(|e| system("its log file", e))?;
                let made = RankTerminal::make(around.owner, size, log, around.epoll, token(TERMINAL));
                Some(made.map_err(|e| system("making its terminal", e))?)
            }
            None => None,
        };
        Ok(Self { out, err, pmi: ours, theirs: theirs.into(), terminal, env, binding })
    }

    fn prepare<'a>(
        &'a self,
        spec: &'a LaunchSpec,
        group: Option<&'a OwnedFd>,
        env: &'a Environment,
        around: &'a Surroundings<'_>,
    ) -> Result<Prepared<'a>, NotStarted> {
        let [stdin, stdout, stderr] = match &self.terminal {
            Some((_, slave)) => [slave.as_fd(); 3],
            None => [around.null.as_fd(), self.out.as_fd(), self.err.as_fd()],
        };
        process::prepare(&Program {
            argv: &spec.argv,
            env: &self.env,
            shared_env: Some(env),
            working_dir: &spec.working_dir,
            user: Some(around.owner),
            stdin,
            stdout,
            stderr,
            inherit: std::slice::from_ref(&self.theirs),
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
