//! One launch's ranks on this node, each with its PMI socket.

mod calls;
mod hung_up;
mod pmix;
mod ports;
mod rank_files;
mod sockets;
pub mod start;

use crate::bridge::Pmix;
use crate::log_files;
use crate::rank_input::RankInput;
use crate::rank_socket::{PmiPort, PmiSocket};
use crate::terminal::RankTerminal;
use hung_up::HungUp;
use lattice_model::input::Taken;
use lattice_model::{Backoff, Call, LaunchId, LaunchSpec, MemoryKill, RankOutcome};
use lattice_pmi::{Action, Event, PmixAction, PmixEvent, PmixServer, Server};
use lattice_runtime::process::{NotStarted, Start};
use lattice_runtime::shim::{ShimDir, boottime_ms};
use nix::sys::epoll::Epoll;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;

/// In the place of a local rank's number: the first rank's terminal. Ranks are far fewer.
const TERMINAL: u32 = u32::MAX;
/// And the launch's bridge to PMIx.
pub const BRIDGE: u32 = u32::MAX - 1;
/// Beside a local rank's number: its standard input.
const INPUT: u32 = 1 << 31;

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

/// A launch that was started here.
pub struct Launch {
    pub spec: LaunchSpec,
    /// Which ones are here, by local rank.
    numbers: Vec<u32>,
    ranks: Vec<Rank>,
    /// Local ranks whose socket reached its end while their process lives, or that said their last by it, until the server is told.
    /// Apart from `ranks`, because it is looked through at each turn of the loop.
    hung_up: BTreeMap<u32, HungUp>,
    /// Local ranks whose port is left alone, and until when (milliseconds, CLOCK_BOOTTIME).
    resting_ports: BTreeMap<u32, u64>,
    /// Strangers who came to the local ranks' ports. One that is beleaguered holds up no other.
    strangers: BTreeMap<u32, u64>,
    /// That a port could not be taken from was said.
    port_failure_told: bool,
    server: Server,
    /// What a rank may leave unread of its answers, in bytes.
    answer_bytes_max: usize,
    /// When other nodes are asked again (milliseconds, CLOCK_BOOTTIME), and the pauses after that.
    asks_again: Option<(u64, Backoff)>,
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

impl Launch {
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

    /// The ranks that have not come to a fence in which others wait.
    pub fn absent(&self) -> Vec<u32> {
        let pmix = self.pmix.as_ref().map(|pmix| &pmix.server).filter(|server| server.is_used());
        pmix.map_or_else(|| self.server.absent(), PmixServer::absent)
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
        happenings.extend(self.heard_of_ended(local, outcome, epoll));
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
                Action::LastWords { local } => drop(self.hung_up.insert(local, HungUp::new(boottime_ms()))),
                Action::Fence { number, blob } => happenings.push(Happening::Fence { number, blob }),
                Action::Call(call) => happenings.push(self.asked(call)),
                Action::Abort { code, why } => happenings.push(Happening::Abort { code, why }),
            }
        }
        happenings
    }
}
