//! The shim's one event loop, and its reaction to each event.

mod attached;
mod attaching;
mod ending;
mod lane;
mod lease;
mod memory;
mod open_lane;
mod output_files;
mod replay;
mod run_lease;
mod signalling;
mod starting;
mod waiting;
mod warning;

use crate::agent_link::AgentLink;
use crate::launch::{Down, Happening, Launch};
use crate::leftovers::Leftovers;
use crate::log_files;
use crate::log_ring::LogRing;
use crate::shim_log::log_line;
use crate::submitted::Submitted;
use crate::user_files::UserFiles;
use crate::work::Work;
use anyhow::Context;
use attached::Attached;
use lattice_model::end_warning::PendingWarning;
use lattice_model::{EndWarning, LaunchId, MemoryKill, NodeId, RankOutcome, with_causes};
use lattice_runtime::cgroup::Scope;
use lattice_runtime::cgroup::controllers::open_v1_procs;
use lattice_runtime::cgroup::memory::MemoryWatch;
use lattice_runtime::exits::{ExitRecord, Writer};
use lattice_runtime::process::{self, StartReport};
use lattice_runtime::shim::{FromShim, ShimConfig, ShimDir, StopReason, ToShim, boottime_ms as now_ms};
use lease::RunLease;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};
use open_lane::OpenLane;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;
use waiting::Waiting;

/// Events taken from the kernel at a time.
const EVENTS_PER_TURN: usize = 64;

/// The time after which the start of a shim and of its first processes counts as over.
const SETTLED_AFTER_MS: u64 = 10_000;
/// Tokens of epoll; those of launches' sockets are higher ([`socket_token`]).
const LISTENER: u64 = 0;
const AGENT: u64 = 1;
const SIGNALS: u64 = 2;
const TIMER: u64 = 3;
const WORK_EVENTS: u64 = 4;
const MEMORY_EVENTS: u64 = 5;

/// How long a shim that quits waits for the user's files: less than the agent waits for it.
const FILES_QUIT_WAIT_MAX: Duration = Duration::from_secs(3);

/// The outcome of a process that died of SIGKILL, which is how the kernel kills for lack of memory.
const KILLED: RankOutcome = RankOutcome::Signalled { signal: 9 };

fn socket_token(number: u32, local: u32) -> u64 {
    // Launch numbers begin with 1, so this is above all other tokens.
    u64::from(number) << 32 | u64::from(local)
}

/// The state of one shim.
pub struct Shim {
    dir: ShimDir,
    config: ShimConfig,
    node: NodeId,
    work: Work,
    /// Why no process can be started, if that is so.
    failed: Option<String>,
    open_files: Option<(u64, u64)>,
    /// `tasks` files of the groups of version 1 that every process joins.
    v1_groups: Vec<OwnedFd>,
    null: File,
    epoll: Epoll,
    signals: SignalFd,
    timer: TimerFd,
    work_events: Option<File>,
    memory: Option<MemoryWatch>,
    memory_events: Option<File>,
    /// The latest kill in the script for lack of memory.
    script_kill: Option<MemoryKill>,
    agent: AgentLink,
    exits: Writer,
    script: Script,
    /// The lane of a task group, until it ends; then `script` has its end. One that was stopped is kept with the ends of
    /// its tasks, which the agent may not have.
    lane: Option<OpenLane>,
    /// By number.
    launches: BTreeMap<u32, Launch>,
    /// Launches that start their ranks when their PMIx server is ready. By number.
    waiting: BTreeMap<u32, Waiting>,
    /// Directories that launches with PMIx leave. By number.
    directories: BTreeMap<u32, PathBuf>,
    /// Directories whose launch and server have ended.
    leftovers: Leftovers,
    /// Launches that were refused here, and why.
    refused: BTreeMap<LaunchId, String>,
    /// Launches that the agent has finished with: they must not start again.
    forgotten: BTreeSet<LaunchId>,
    attached: Attached,
    processes: BTreeMap<i32, Process>,
    walltime: Walltime,
    run_lease: RunLease,
    ending: Ending,
    log_ring: LogRing,
    /// The user's files to which its output is also written; `None`: there are none.
    user_files: Option<UserFiles>,
    /// The latest failure to write one of them.
    file_failure: Option<String>,
    /// The signal before the walltime ends.
    warning: PendingWarning,
    /// The same for each task of a lane.
    task_warning: Option<EndWarning>,
    /// Whether the work is a command, and no script.
    is_command: bool,
    /// When the pages of the program that only the start used are unmapped; `None`: they are unmapped.
    settled_at: Option<u64>,
}

/// The allocation's script.
enum Script {
    None,
    Running(StartReport),
    Ended(RankOutcome),
}

/// What a child process is.
#[derive(Clone, Copy)]
enum Process {
    Script,
    Task,
    Rank { number: u32, local: u32 },
    Bridge { number: u32 },
    Attached { session: u64 },
}

/// The allocation's walltime. All times are milliseconds of CLOCK_BOOTTIME, which continues while a machine is
/// suspended.
#[derive(Clone, Copy)]
enum Walltime {
    NotYet,
    Runs { since: u64, until: u64 },
    Over,
}

/// The end of all work.
#[derive(Clone, Copy)]
enum Ending {
    No,
    /// SIGTERM was sent.
    Terminating {
        why: StopReason,
        kill_at: u64,
    },
    /// SIGKILL was sent, and is repeated.
    Killing {
        why: StopReason,
        retry_at: u64,
    },
    /// No process is left.
    Stopped {
        why: StopReason,
    },
    /// The shim ends once no process is left, or at this time.
    Quitting {
        retry_at: u64,
        give_up_at: u64,
    },
}

impl Shim {
    /// A shim that is set up and does not serve yet. `failed`: why processes cannot be started here. `open_files`: the
    /// limits of open files for them. `submitted`: the user's further requests.
    pub fn new(
        dir: ShimDir,
        config: ShimConfig,
        node: NodeId,
        listener: UnixListener,
        failed: Option<String>,
        open_files: Option<(u64, u64)>,
        submitted: Submitted,
    ) -> anyhow::Result<Self> {
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            mask.add(signal);
        }
        mask.thread_block().context("blocking signals")?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).context("watching signals")?;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK).context("making a timer")?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("making an epoll")?;
        let mut failed = failed;
        let work = match config.scope.clone().map(Scope::at) {
            Some(scope) => {
                if let Err(error) = scope.work().create() {
                    failed.get_or_insert_with(|| with_causes(&error));
                }
                Work::Scope(scope)
            }
            None => Work::Tree,
        };
        let v1_groups = config.v1_groups.iter().map(|group| open_v1_procs(group)).collect::<Result<Vec<_>, _>>();
        let v1_groups = v1_groups.unwrap_or_else(|error| {
            failed.get_or_insert_with(|| with_causes(&error));
            Vec::new()
        });
        let work_events = work.events();
        let memory = MemoryWatch::of(config.scope.clone().map(Scope::at).as_ref(), &config.v1_groups);
        let memory_events = memory.as_ref().and_then(MemoryWatch::events);
        let agent = AgentLink::new(listener, [LISTENER, AGENT]);
        let readable = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
        epoll.add(agent.listener(), readable(LISTENER)).context("watching the socket")?;
        epoll.add(&signals, readable(SIGNALS)).context("watching signals")?;
        epoll.add(timer.as_fd(), readable(TIMER)).context("watching the timer")?;
        if let Some(events) = &work_events {
            epoll.add(events, EpollEvent::new(EpollFlags::EPOLLPRI, WORK_EVENTS)).context("watching the scope")?;
        }
        if let Some(events) = &memory_events {
            epoll.add(events, EpollEvent::new(EpollFlags::EPOLLPRI, MEMORY_EVENTS)).context("watching the memory")?;
        }
        let exits = Writer::open(&dir).with_context(|| format!("opening {}", dir.exits().display()))?;
        let log_ring = LogRing::new(config.log_limits, now_ms());
        let run_lease = RunLease::new(config.run_lease);
        let null = File::open("/dev/null").context("opening /dev/null")?;
        let Submitted { files, warning, is_command, is_lane } = submitted;
        let user_files = match files.filter(|_| failed.is_none()).map(|plan| UserFiles::begin(plan, &config.owner)).transpose() {
            Ok(user_files) => user_files,
            Err(error) => {
                failed.get_or_insert_with(|| format!("starting the thread for the user's files: {error}"));
                None
            }
        };
        let (warning, task_warning) = if is_lane { (None, warning) } else { (warning, None) };
        Ok(Self {
            dir,
            config,
            node,
            work,
            failed,
            open_files,
            v1_groups,
            null,
            epoll,
            signals,
            timer,
            work_events,
            memory,
            memory_events,
            script_kill: None,
            agent,
            exits,
            script: Script::None,
            lane: None,
            launches: BTreeMap::new(),
            waiting: BTreeMap::new(),
            directories: BTreeMap::new(),
            leftovers: Leftovers::default(),
            refused: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            attached: Attached::default(),
            processes: BTreeMap::new(),
            walltime: Walltime::NotYet,
            run_lease,
            ending: Ending::No,
            log_ring,
            user_files,
            file_failure: None,
            warning: PendingWarning::new(warning),
            task_warning,
            is_command,
            settled_at: Some(now_ms() + SETTLED_AFTER_MS),
        })
    }

    /// Serves until `Quit` has been carried out. The order is always: take events, write ends to disk, then report.
    pub fn serve(mut self) -> anyhow::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS_PER_TURN];
        loop {
            self.set_timer()?;
            let n = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(n) => n,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(errno) => return Err(errno).context("waiting"),
            };
            self.begin_files_turn();
            for event in &events[..n] {
                self.handle_event(event.data(), event.events());
            }
            self.check_deadlines();
            self.agent.flush(&self.epoll);
            if self.may_exit() {
                self.catch_up_all(FILES_QUIT_WAIT_MAX);
                self.work.remove_all();
                self.leftovers.give_up();
                let _ = std::fs::remove_file(self.dir.socket());
                return Ok(());
            }
        }
    }

    fn handle_event(&mut self, token: u64, flags: EpollFlags) {
        match token {
            LISTENER => {
                // Messages that an older agent sent before it was replaced are still valid.
                self.receive_messages();
                self.agent.accept(now_ms(), &self.epoll);
            }
            AGENT => self.receive_messages(),
            SIGNALS => self.handle_signals(),
            TIMER => drop(self.timer.wait()),
            WORK_EVENTS => {
                // Reading re-arms the notification.
                if let Some(events) = &mut self.work_events {
                    let _ = events.rewind().and_then(|()| events.read(&mut [0; 256]));
                }
                self.check_stopped();
            }
            MEMORY_EVENTS => self.handle_memory_events(),
            socket => {
                let (number, local) = ((socket >> 32) as u32, socket as u32);
                if self.waiting.contains_key(&number) {
                    return self.bridge_ready(number, flags);
                }
                if let Some(launch) = self.launches.get_mut(&number) {
                    let place = (&self.dir, &self.work);
                    let happenings = launch.socket_ready(local, flags, now_ms(), place, &self.epoll, |local| socket_token(number, local));
                    self.handle_happenings(number, happenings);
                    self.report_input(number, false);
                }
            }
        }
    }

    fn receive_messages(&mut self) {
        for message in self.agent.receive(&self.epoll) {
            self.handle_message(message);
        }
    }

    fn handle_message(&mut self, message: ToShim) {
        match message {
            ToShim::Hello { .. } => {
                self.replay();
                for number in self.launches.keys().copied().collect::<Vec<_>>() {
                    self.retry_calls_now(number);
                }
            }
            ToShim::Go { walltime_ms } => {
                let since = match self.walltime {
                    Walltime::NotYet => Some(now_ms()),
                    Walltime::Runs { since, .. } => Some(since),
                    Walltime::Over => None,
                };
                if let Some(since) = since {
                    self.walltime = Walltime::Runs { since, until: since.saturating_add(walltime_ms) };
                }
                self.agent.send(&FromShim::Going);
            }
            ToShim::StartScript { text, args, env, working_dir } => self.start_script(&text, &args, &env, &working_dir),
            ToShim::OpenLane { lane } => self.open_lane(*lane),
            ToShim::LeaseTasks { work } => self.lease_tasks(work),
            ToShim::StartLaunch { launch } => self.start_launch(launch),
            ToShim::FenceDone { launch, number, blob } => {
                if let Some(launch) = self.launches.values_mut().find(|l| l.id() == launch) {
                    let at = launch.spec.number;
                    let happenings = launch.fence_done(number, &blob, &self.epoll, |local| socket_token(at, local));
                    self.handle_happenings(at, happenings);
                }
            }
            ToShim::ResendRequests { launch } => {
                if let Some(number) = self.number_of(launch) {
                    self.retry_calls_now(number);
                }
            }
            ToShim::Call { launch, call } => {
                if let Some(number) = self.number_of(launch)
                    && let Some(launch) = self.launches.get_mut(&number)
                {
                    let happenings = launch.called(&call, &self.epoll, |local| socket_token(number, local));
                    self.handle_happenings(number, happenings);
                }
            }
            ToShim::NameAbsent { launch } => {
                if let Some(ranks) = self.launches.values().find(|l| l.id() == launch).map(Launch::absent) {
                    self.agent.send(&FromShim::Absent { launch, ranks });
                }
            }
            ToShim::Abort { launch, code, why } => {
                if let Some(number) = self.waiting.values().find(|w| w.spec.id == launch).map(|w| w.spec.number) {
                    self.give_up(number, &why);
                } else if let Some(number) = self.number_of(launch) {
                    log_line(&format!("launch {number} was aborted elsewhere with code {code}: {why}"));
                    self.bring_down(number);
                }
            }
            ToShim::Forget { launch } => {
                if let Some(number) = self.number_of(launch)
                    && self.launches[&number].has_ended()
                {
                    self.launches.remove(&number);
                    self.forgotten.insert(launch);
                    self.remove_launch(number);
                } else if self.refused.remove(&launch).is_some() {
                    self.forgotten.insert(launch);
                }
            }
            ToShim::Typed { launch, bytes } => {
                let launch = self.launches.values_mut().find(|l| l.id() == launch);
                if let Some(terminal) = launch.and_then(Launch::terminal) {
                    terminal.typed(&bytes, &self.epoll);
                }
            }
            ToShim::Input { launch, offset, bytes, last } => {
                if let Some(number) = self.number_of(launch)
                    && let Some(launch) = self.launches.get_mut(&number)
                {
                    launch.take_input(offset, &bytes, last, &self.epoll);
                    self.report_input(number, false);
                }
            }
            ToShim::Resized { launch, size } => {
                let launch = self.launches.values_mut().find(|l| l.id() == launch);
                if let Some(terminal) = launch.and_then(Launch::terminal) {
                    terminal.resize(size);
                }
            }
            ToShim::Attach { session, tty, argv, env, working_dir } => self.attach(session, &tty, &argv, &env, &working_dir),
            ToShim::LogsFlushed { files } => self.log_ring.flushed(&files, now_ms()),
            ToShim::RunLease { until_ms } => self.extend_run_lease(until_ms),
            ToShim::Signal { request, signal, to } => self.signal(request, signal, to),
            ToShim::Stop { why, grace_ms } => self.stop(why, grace_ms),
            ToShim::Quit => self.quit(),
        }
    }

    /// Sends unanswered calls to other nodes again: an agent in between may have lost them.
    fn retry_calls_now(&mut self, number: u32) {
        let Some(launch) = self.launches.get_mut(&number) else { return };
        let happenings = launch.retry_calls_now();
        self.handle_happenings(number, happenings);
    }

    fn script_ended(&mut self, outcome: RankOutcome) {
        if outcome == KILLED {
            self.look_for_memory_kill(0);
        }
        self.catch_up(0, 0, false);
        self.script = Script::Ended(outcome);
        self.record(&ExitRecord::Script { outcome });
        self.agent.send(&FromShim::ScriptEnded { outcome });
    }

    fn number_of(&self, launch: LaunchId) -> Option<u32> {
        self.launches.values().find(|l| l.id() == launch).map(|l| l.spec.number)
    }

    fn handle_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            // SIGTERM from a person, or from the machine shutting down, is meant for the work.
            if signal.ssi_signo == libc::SIGTERM.cast_unsigned() {
                self.stop(StopReason::Requested, self.config.grace_ms);
            }
        }
        while let Some((pid, outcome)) = process::reap_any() {
            match self.processes.remove(&pid) {
                Some(Process::Rank { number, local }) => self.rank_ended(number, local, outcome),
                Some(Process::Script) => {
                    let failure = match &mut self.script {
                        Script::Running(start) => start.failure(),
                        Script::None | Script::Ended(_) => None,
                    };
                    if let Some(failure) = &failure {
                        log_files::append_error(&self.dir, 0, 0, &failure.why);
                    }
                    self.script_ended(failure.map_or(outcome, |f| RankOutcome::NotStarted { code: f.code }));
                }
                Some(Process::Task) => self.task_ended(outcome),
                Some(Process::Bridge { number }) => self.bridge_ended(number),
                Some(Process::Attached { session }) => self.attached_ended(session, outcome),
                // An orphan that one of our processes left: nobody needs a report.
                None => {}
            }
        }
        self.check_stopped();
    }

    fn rank_ended(&mut self, number: u32, local: u32, outcome: RankOutcome) {
        if outcome == KILLED {
            self.look_for_memory_kill(number);
        }
        let Some(launch) = self.launches.get_mut(&number) else { return };
        let (outcome, happenings) = launch.rank_ended(local, outcome, &self.dir, &self.epoll, |local| socket_token(number, local));
        let (id, rank, over) = (launch.id(), launch.rank(local), launch.has_ended());
        if over {
            launch.close_bridge(&self.epoll);
        }
        // The abort that this end causes goes first, so that its receiver knows the reason of the end.
        self.handle_happenings(number, happenings);
        self.report_input(number, false);
        self.catch_up(number, rank, false);
        self.record(&ExitRecord::Rank { launch: id, rank, outcome });
        self.agent.send(&FromShim::RankEnded { launch: id, rank, outcome });
        if over {
            // A rank may wait for this; removing the directory can take longer.
            self.agent.flush(&self.epoll);
            self.remove_launch(number);
        }
    }

    fn remove_launch(&mut self, number: u32) {
        if self.work.remove_launch(number) {
            self.log_ring.over(number);
        }
        let is_served = self.processes.values().any(|process| matches!(process, Process::Bridge { number: n } if *n == number));
        if !is_served && let Some(directory) = self.directories.remove(&number) {
            self.leftovers.remove(directory, now_ms());
        }
    }

    fn handle_happenings(&mut self, number: u32, happenings: Vec<Happening>) {
        for happening in happenings {
            let Some(launch) = self.launches.get_mut(&number) else { return };
            let id = launch.id();
            match happening {
                Happening::Fence { number, blob } => self.agent.send(&FromShim::Fence { launch: id, number, blob }),
                Happening::Call(call) => self.agent.send(&FromShim::Call { launch: id, call }),
                // The shim is ending the launch: its ranks die because of that, and their deaths are not the reason.
                Happening::Abort { .. } if launch.down != Down::No || !matches!(self.ending, Ending::No) => {}
                Happening::Abort { code, why } => {
                    launch.aborted = Some((code, why.clone()));
                    self.record(&ExitRecord::Aborted { launch: id, code, why: why.clone() });
                    self.agent.send(&FromShim::Aborted { launch: id, code, why });
                    self.abort(number);
                }
            }
        }
    }

    /// Writes an end to the disk. Returns whether that was possible.
    fn record(&mut self, record: &ExitRecord) -> bool {
        let written = self.exits.append(record);
        if let Err(error) = &written {
            log_line(&format!("{record:?} could not be written to disk: {error}"));
        }
        written.is_ok()
    }
}
