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
use lattice_runtime::process::{NotStarted, StartReport};
use lattice_runtime::shim::{ShimDir, boottime_ms};
use nix::sys::epoll::Epoll;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;

/// Token of the first rank's terminal, in the place of a local rank's number. Real ranks are far
/// fewer.
const TERMINAL: u32 = u32::MAX;
/// Token of the launch's PMIx bridge.
pub const BRIDGE: u32 = u32::MAX - 1;
/// Added to a local rank's number: the token of its standard input.
const INPUT: u32 = 1 << 31;

/// What a launch's ranks caused.
#[derive(Debug, PartialEq, Eq)]
pub enum Happening {
    /// To be sent to the agent.
    Fence { number: u32, blob: Vec<u8> },
    /// To be sent to the agent.
    Call(Call),
    /// The launch must be ended, here and everywhere.
    Abort { code: i32, why: String },
}

/// A launch that was started here.
pub struct Launch {
    pub spec: LaunchSpec,
    /// The global numbers of the local ranks.
    numbers: Vec<u32>,
    ranks: Vec<Rank>,
    /// Local ranks that closed their socket, or sent their last message, while their process lives, until the server is
    /// notified. Separate from `ranks`, because the loop checks it at each turn.
    hung_up: BTreeMap<u32, HungUp>,
    /// Local ranks with a paused port, and until when (milliseconds, CLOCK_BOOTTIME).
    paused_ports: BTreeMap<u32, u64>,
    /// The number of strangers at each local rank's port. A port under attack delays no other.
    strangers: BTreeMap<u32, u64>,
    /// Whether a failure to accept on a port was logged.
    port_failure_logged: bool,
    server: Server,
    /// Bytes of answers that a rank may leave unread.
    answer_bytes_max: usize,
    /// When unanswered calls are repeated (milliseconds, CLOCK_BOOTTIME), and the pauses after that.
    call_retry: Option<(u64, Backoff)>,
    /// Its PMIx server, if it has one.
    pmix: Option<Pmix>,
    /// The state of ending it.
    pub down: Down,
    /// The abort that began here, as reported to the agent.
    pub aborted: Option<(i32, String)>,
    /// The first rank's terminal, if that rank is here and has one.
    terminal: Option<RankTerminal>,
    /// Standard input of the ranks here that read it, if there are any.
    input: Option<RankInput>,
    /// The latest kill in it for lack of memory.
    pub memory_kill: Option<MemoryKill>,
}

/// The states of ending one launch.
#[derive(Debug, PartialEq, Eq)]
pub enum Down {
    No,
    /// An abort that began here is reported to the head, which notifies every node. Until then, but not beyond this
    /// time (milliseconds, CLOCK_BOOTTIME), the ranks stay alive: a peer on another node that sees one of them end may
    /// abort with its own code, and the head might receive that one first.
    Reporting {
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
    /// Its port, until the rank has connected.
    port: Option<PmiPort>,
}

enum RankState {
    Running { pid: i32, start: StartReport },
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

    /// The pids of the living ranks.
    pub fn pids(&self) -> Vec<i32> {
        let pid = |rank: &Rank| match rank.state {
            RankState::Running { pid, .. } => Some(pid),
            RankState::Ended(_) => None,
        };
        self.ranks.iter().filter_map(pid).collect()
    }

    /// Whether every rank has ended.
    pub fn has_ended(&self) -> bool {
        self.ranks.iter().all(|r| matches!(r.state, RankState::Ended(_)))
    }

    /// Local ranks that have ended, with their outcomes.
    pub fn outcomes(&self) -> impl Iterator<Item = (u32, RankOutcome)> {
        (0..).zip(&self.ranks).filter_map(|(local, rank)| match rank.state {
            RankState::Running { .. } => None,
            RankState::Ended(outcome) => Some((local, outcome)),
        })
    }

    /// The fences to replay to an agent after a connect.
    pub fn replay(&self) -> Vec<Happening> {
        let fence = |action| match action {
            Action::Fence { number, blob } => Some(Happening::Fence { number, blob }),
            // Aborts are replayed from `aborted`, together with those that did not begin in PMI.
            Action::Send { .. } | Action::LastCommand { .. } | Action::Call(_) | Action::Abort { .. } => None,
        };
        let pmix = self.pmix.iter().flat_map(|pmix| pmix.server.replay()).filter_map(|action| match action {
            PmixAction::Fence { number, blob } => Some(Happening::Fence { number, blob }),
            PmixAction::Send(_) | PmixAction::Call(_) | PmixAction::Abort { .. } => None,
        });
        self.server.replay().into_iter().filter_map(fence).chain(pmix).collect()
    }

    /// Its terminal, if it has one here that is not hung up.
    pub fn terminal(&mut self) -> Option<&mut RankTerminal> {
        self.terminal.as_mut()
    }

    /// Accepts a piece of standard input: see [`lattice_runtime::shim::ToShim::Input`].
    pub fn take_input(&mut self, offset: u64, bytes: &[u8], last: bool, epoll: &Epoll) {
        if let Some(input) = &mut self.input {
            input.take(offset, bytes, last, epoll);
        }
    }

    /// How much of the input the ranks here that read it have taken; `None`: no rank ever read it.
    pub fn input_taken(&self) -> Option<Taken> {
        self.input.as_ref().map(RankInput::taken)
    }

    /// The same, if it should be reported to the agent.
    pub fn input_to_report(&mut self) -> Option<Taken> {
        self.input.as_mut().and_then(RankInput::progress_to_report)
    }

    /// Its ranks were signalled to end. Hangs up the terminal: an interactive shell does not end by SIGTERM.
    pub fn handle_end_signal(&mut self) {
        if let Some(pmix) = &mut self.pmix {
            // This event causes no actions.
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

    /// The ranks that have not arrived at a fence in which others wait.
    pub fn absent(&self) -> Vec<u32> {
        let pmix = self.pmix.as_ref().map(|pmix| &pmix.server).filter(|server| server.is_used());
        pmix.map_or_else(|| self.server.absent(), PmixServer::absent)
    }

    /// A rank's process was reaped. Its last messages are read first: a rank that finalized and ended at once did not
    /// fail. (All of them are in the socket by now; a child of the rank may hold the other end open.)
    pub fn rank_ended(
        &mut self,
        local: u32,
        outcome: RankOutcome,
        dir: &ShimDir,
        epoll: &Epoll,
        token: impl Fn(u32) -> u64,
    ) -> (RankOutcome, Vec<Happening>) {
        let mut happenings = self.receive(local, epoll, &token).happenings;
        happenings.extend(self.handle_last_bridge_messages(local, outcome, epoll));
        happenings.extend(self.handle(Event::Exited { local, code: outcome.code() }, epoll, &token));
        happenings.extend(self.handle_pmix(PmixEvent::Exited { local, code: outcome.code() }, epoll));
        self.close(local, epoll);
        if let Some(input) = &mut self.input {
            input.remove(local, epoll);
        }
        if self.rank(local) == 0
            && let Some(mut terminal) = self.terminal.take()
        {
            // The end of the session leader makes the kernel hang up the session: no more output follows.
            terminal.log_output();
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
                log_files::append_error(dir, number, global, &why);
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
                Action::LastCommand { local } => drop(self.hung_up.insert(local, HungUp::new(boottime_ms()))),
                Action::Fence { number, blob } => happenings.push(Happening::Fence { number, blob }),
                Action::Call(call) => happenings.push(self.asked(call)),
                Action::Abort { code, why } => happenings.push(Happening::Abort { code, why }),
            }
        }
        happenings
    }
}
