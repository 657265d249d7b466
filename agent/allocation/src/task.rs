//! The task of one allocation: it receives commands and a shim's messages, and sends events.

mod beginning;
mod ending;
mod lane;
mod lane_state;
mod late_files;
mod lease;
mod line;
mod parts;
mod shim_line;
mod wakeups;

use super::local_launch::LocalLaunch;
use super::prepare::{self, Preparing};
use super::signals::Signals;
use super::terminals::Terminals;
use crate::handles::Shared;
use lane_state::LaneState;
use lattice_mesh::terminal::ToTerminal;
use lattice_model::input::Taken;
use lattice_model::launch::MEMORY_KILL_CODE;
use lattice_model::{AllocationId, DesiredShare, EndReason, Epoch, LaunchId, LaunchSpec, MemoryKill, RankOutcome};
use lattice_node::allocation::{EntryEvent, NotPrepared, TaskEvent, TaskPhase};
use lattice_node::walltime::{Walltime, WalltimeEvent};
use lattice_node::{Event, RunLease, RunLeaseEvent};
use lattice_output::spool::launches;
use lattice_registry::{Command, OpenTerminal, RunState, StateSenders, TaskEnds};
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::image::HeldImage;
use lattice_runtime::shim::{FromShim, REFUSED_CODE, ShimDir, StopReason, ToShim};
use shim_line::ShimLine;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

/// Begins the task of an allocation.
pub(super) fn begin(context: &Shared, ends: TaskEnds) {
    let (task, queue) = AllocationTask::new(context, ends);
    context.tasks.spawn(task.run(queue));
}

struct AllocationTask {
    own: mpsc::WeakSender<Command>,
    context: Shared,
    share: Arc<DesiredShare>,
    dir: ShimDir,
    line: ShimLine,
    preparing: Option<Preparing>,
    /// When the prologue was ordered, until the first process begins; forgotten at a restart of the
    /// agent.
    assigned: Option<Instant>,
    /// Runs the probes, if there are any.
    probing: Option<AbortOnDropHandle<()>>,
    /// Reports the exposed ports that accept connections, if it exposes any.
    checking_ports: Option<AbortOnDropHandle<()>>,
    /// On the head: asks the work to save itself before its walltime ends.
    warning: Option<AbortOnDropHandle<()>>,
    phase: TaskPhase,
    /// Keeps the image in the cache until the shim reports that it is mounted.
    image: Option<HeldImage>,
    launches: BTreeMap<LaunchId, LocalLaunch>,
    /// The reports to the quorum, if the allocation is a lane of a task group.
    lane: LaneState,
    /// Keyboard input for launches that the shim does not have yet, the oldest first.
    typed_ahead: VecDeque<(LaunchId, ToTerminal)>,
    terminals: Terminals,
    signals: Signals,
    walltime: Walltime,
    /// Which process of the script the kernel killed for lack of memory.
    script_kill: Option<MemoryKill>,
    /// When the newest heartbeat was sent that the leader acknowledged; `None`: the work needs no
    /// run lease.
    acknowledged: Option<watch::Receiver<Option<u64>>>,
    lease: RunLease,
    senders: StateSenders,
}

impl AllocationTask {
    fn new(context: &Shared, TaskEnds { share, dir, own, queue, senders }: TaskEnds) -> (Self, mpsc::Receiver<Command>) {
        let task = Self {
            own,
            context: Arc::clone(context),
            dir,
            line: ShimLine::Absent,
            preparing: None,
            assigned: None,
            probing: None,
            checking_ports: None,
            warning: None,
            phase: TaskPhase::default(),
            image: None,
            launches: BTreeMap::new(),
            lane: LaneState::default(),
            typed_ahead: VecDeque::new(),
            terminals: Terminals::default(),
            signals: Signals::default(),
            walltime: Walltime::default(),
            script_kill: None,
            acknowledged: share.run_lease_ms.map(|_| context.acknowledged.clone()),
            lease: RunLease::of(share.run_lease_ms),
            share,
            senders,
        };
        (task, queue)
    }

    async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        loop {
            if let Some(due) = self.lease.take_due() {
                self.begin_what_waited(due).await;
            }
            let message = tokio::select! {
                command = queue.recv() => {
                    let Some(command) = command else { return };
                    if let Command::Undo = command {
                        self.confirm_ends(&mut queue).await;
                        self.undo().await;
                        return;
                    }
                    self.execute(command).await;
                    continue;
                }
                prepared = prepare::ended(&mut self.preparing) => {
                    self.preparing = None;
                    self.prepared(prepared).await;
                    continue;
                }
                () = wakeups::renewed(&mut self.acknowledged) => {
                    self.renew().await;
                    continue;
                }
                () = wakeups::due(self.phase.look_at_ms()) => {
                    self.publish_what_is_left().await;
                    continue;
                }
                message = self.line.next() => message,
            };
            match message {
                Some(message) => self.handle_message(message).await,
                None => self.link_ended().await,
            }
        }
    }

    /// A process of the allocation has begun on this node, perhaps not the first.
    fn began(&mut self) {
        if let Some(assigned) = self.assigned.take() {
            self.context.latencies.startup.observe(assigned.elapsed());
        }
    }

    fn is_head(&self) -> bool {
        self.share.nodes.head().as_ref() == Some(&self.context.setup.me)
    }

    fn set_detail(&self, text: &str) {
        self.senders.detail.send_modify(|d| text.clone_into(&mut d.text));
    }

    /// The work is being ended: its probes and the checks of its ports stop.
    fn end_checks(&mut self) {
        (self.probing, self.checking_ports) = (None, None);
        self.senders.detail.send_if_modified(|d| d.unlisted.take().is_some());
    }

    /// Publishes whether launches can begin.
    fn publish_run_state(&self) {
        let runs = self.phase.is_started() && self.line.is_synced() && self.lease.may_begin();
        let now = match *self.senders.run_state.borrow() {
            // The shim of a lapsed lease begins nothing again.
            _ if self.lease.is_lapsed() => RunState::Ending,
            RunState::Ending => RunState::Ending,
            RunState::NotYet | RunState::Running if runs => RunState::Running,
            RunState::NotYet | RunState::Running => RunState::NotYet,
        };
        self.senders.run_state.send_if_modified(|run_state| std::mem::replace(run_state, now) != now);
    }

    async fn send_event(&self, event: impl FnOnce(AllocationId, Epoch) -> Event) {
        self.context.driver.send(event(self.share.allocation, self.share.epoch)).await;
    }

    async fn ended(&self, reason: EndReason) {
        self.send_event(|allocation, epoch| Event::Ended { allocation, epoch, reason }).await;
    }

    async fn execute(&mut self, command: Command) {
        tracing::debug!(allocation = %self.share.allocation, ?command, "received from the driver");
        match command {
            Command::Prepare { assignment } => {
                if self.preparing.is_none() {
                    self.assigned = Some(Instant::now());
                    self.preparing = Some(Preparing::begin(&self.context, &self.share, assignment, &self.dir, self.senders.detail.clone()));
                }
            }
            Command::Adopt => {
                if self.connect().await {
                    self.begin_log_upload(true);
                }
            }
            Command::Start(share) => self.start(share).await,
            Command::ChangeWalltime(share) => self.change_walltime(&share).await,
            Command::ChangeLane(share) => self.change_lane(&share),
            Command::LaneAdvanced { answer } => self.lane_advanced(answer).await,
            Command::Stop => self.stop().await,
            Command::Attach { launch, to_head } => self.attach(*launch, to_head).await,
            Command::FromHead { launch, message } => self.obey_head(launch, message).await,
            Command::OpenTerminal(terminal) => self.open_terminal(*terminal).await,
            Command::Signal(signal) => {
                let message = self.signals.begin(signal);
                if self.line.is_synced() {
                    self.send(message).await;
                } else {
                    self.signals.lost();
                }
            }
            Command::LogsFlushed { files } => self.send(ToShim::LogsFlushed { files }).await,
            Command::Typed { launch, message } => self.typed(launch, message).await,
            Command::EntryEnded { end } => self.entry_launch_over(end).await,
            Command::Undo => {}
        }
    }

    async fn handle_message(&mut self, message: FromShim) {
        tracing::debug!(allocation = %self.share.allocation, ?message, "received from the shim");
        match message {
            FromShim::Hello { allocation, epoch, pid, .. } => {
                if (allocation, epoch) != (self.share.allocation, self.share.epoch) {
                    let why = format!("its shim is gone, and another one answers in its place: {allocation} under epoch {epoch}");
                    tracing::error!(allocation = %self.share.allocation, %why, "work was not adopted");
                    self.line = ShimLine::Absent;
                    self.shim_lost(&why).await;
                    // No shim is left that could report that the processes are gone.
                    if self.phase.is_stopping() {
                        self.handle_phase(TaskEvent::LineBroken).await;
                    }
                    return;
                }
                self.forget_late_files();
                self.senders.detail.send_modify(|d| d.shim_pid = Some(pid));
            }
            FromShim::Ready { failed } => {
                // From here on the image's loop device keeps the image in the cache.
                drop(self.image.take());
                if self.phase == TaskPhase::AwaitingReady {
                    failpoint::pass(Point::ReadyReceived);
                }
                self.handle_phase(TaskEvent::Ready { result: failed.map_or(Ok(()), |why| Err(NotPrepared::Shim(why))) }).await;
            }
            FromShim::Going => {}
            FromShim::ScriptStarted => self.began(),
            FromShim::LaneOpened => self.lane_opened(),
            FromShim::LanePaused { why } => self.show_lane_pause(why.as_deref()),
            FromShim::TasksEnded { report, .. } => self.tasks_ended(report),
            FromShim::RunLease { until_ms } => self.handle_lease(RunLeaseEvent::Reported { until_ms }).await,
            FromShim::RunLeaseLapsed => self.handle_lease(RunLeaseEvent::Lapsed).await,
            FromShim::AttachStarted { session } => {
                failpoint::pass(Point::TerminalStarted);
                self.terminals.started(session);
            }
            FromShim::AttachEnded { session, outcome, why } => {
                failpoint::pass(Point::TerminalEnded);
                self.terminals.ended(session, outcome, why);
            }
            FromShim::Signalled { request, processes } => self.signals.answered(request, processes),
            FromShim::Synced => self.handle_synced().await,
            FromShim::ScriptEnded { outcome } => {
                failpoint::pass(Point::ScriptEndReceived);
                self.mark_over(0);
                self.lane_ended();
                self.handle_entry(EntryEvent::Over);
                if !self.walltime.is_over() && !self.lease.is_lapsed() && !self.phase.is_stopping() {
                    let reason = self.script_reason(outcome);
                    self.ended(reason).await;
                }
            }
            FromShim::OutOfMemory { launch, kill } => {
                tracing::warn!(allocation = %self.share.allocation, %kill, "the kernel killed work for lack of memory");
                match launch {
                    Some(launch) => self.with_launch(launch, |l| l.out_of_memory(kill)),
                    None => self.script_kill = Some(kill),
                }
            }
            FromShim::FileFailed { why } => {
                tracing::warn!(allocation = %self.share.allocation, %why, "a file for the allocation's user could not be written");
            }
            FromShim::FilesLate { why } => self.show_late_files(why),
            FromShim::LaunchStarted { launch } => self.launch_started(launch).await,
            FromShim::RankEnded { launch, rank, outcome } => {
                failpoint::pass(Point::RankEndReceived);
                self.with_launch(launch, |l| l.rank_ended(rank, outcome));
            }
            FromShim::Fence { launch, number, blob } => self.with_launch(launch, |l| l.fence(number, blob)),
            FromShim::InputAck { launch, upto, again } => {
                let taken = upto.map_or(Taken::Closed, Taken::UpTo);
                self.with_launch(launch, |l| l.input_taken(taken, again));
            }
            FromShim::Call { launch, call } => self.with_launch(launch, |l| l.call(call)),
            FromShim::Absent { launch, ranks } => self.with_launch(launch, |l| l.absent(ranks)),
            FromShim::Aborted { launch, code: REFUSED_CODE, why } => self.refused(launch, &why),
            FromShim::Aborted { launch, code, why } => self.with_launch(launch, |l| l.aborted(code, why)),
            FromShim::LaunchEnded { launch } => self.with_launch(launch, |l| l.lost("it ended before, and its end was reported then")),
            FromShim::Stopping { why } => {
                if why == StopReason::Walltime {
                    self.handle_walltime(WalltimeEvent::Over).await;
                }
            }
            FromShim::Stopped { why } => {
                if why == StopReason::Walltime {
                    self.handle_walltime(WalltimeEvent::Over).await;
                }
                if self.phase.is_stopping() {
                    failpoint::pass(Point::StoppedReceived);
                }
                self.handle_phase(TaskEvent::ProcessesGone).await;
            }
        }
    }

    /// A launch's first rank was made. After a restart of the agent, the shim reports each of its
    /// launches anew.
    async fn launch_started(&mut self, launch: LaunchSpec) {
        failpoint::pass(Point::LaunchReceived);
        self.began();
        let local = self.launches.entry(launch.id).or_insert_with(|| LocalLaunch::new(launch.clone()));
        if !local.begun {
            // The launch's directory may exist before its first rank. (A launch requested twice is
            // reported twice, perhaps after its end.)
            self.senders.activity.send_if_modified(|activity| activity.over.remove(&launch.number));
        }
        local.begun();
        if launch.part(&self.context.setup.me).is_some_and(|part| part.count == 0) {
            // Readers must not wait for the output of ranks here.
            self.mark_over(launch.number);
        }
        let headed_here = launch.nodes.first().is_some_and(|n| n.node == self.context.setup.me);
        if headed_here {
            // The launch is known already, unless the agent was restarted since then.
            self.context.launches.begin(&self.share, launch);
        }
        for (launch, message) in std::mem::take(&mut self.typed_ahead) {
            self.typed(launch, message).await;
        }
    }

    /// The reason for the script's end.
    fn script_reason(&self, outcome: RankOutcome) -> EndReason {
        match self.script_kill {
            // A script that lost only a child to the kill, and then ended by itself, ends with its
            // own code.
            Some(kill) if outcome.code() == MEMORY_KILL_CODE => EndReason::OutOfMemory { node: self.context.setup.me.clone(), kill },
            Some(_) | None => EndReason::Exited { code: outcome.code() },
        }
    }

    /// The shim has reported everything: a launch that has log files and was not reported is over.
    async fn handle_synced(&mut self) {
        let on_disk = if self.line.is_fresh() {
            BTreeSet::new()
        } else {
            let dir = self.dir.clone();
            tokio::task::spawn_blocking(move || launches(&dir)).await.ok().and_then(Result::ok).unwrap_or_default()
        };
        for number in on_disk.into_iter().filter(|n| *n > 0) {
            if !self.launches.values().any(|l| l.spec.number == number) && !self.is_of_tasks(number) {
                self.mark_over(number);
            }
        }
        failpoint::pass(Point::ShimReportedAll);
        if self.is_head() {
            self.context.checkpoint.checkpoints.resume(&self.context.checkpoint, &self.share, &self.dir).await;
        }
        self.context.adoption.found(self.share.allocation);
        self.line.set_synced();
        self.handle_walltime(WalltimeEvent::Synced).await;
        if self.has_begun() {
            // The connection may have broken during the start, or during a change of the walltime.
            self.send_walltime().await;
            if self.is_head() {
                let share = Arc::clone(&self.share);
                if share.lane.is_some() {
                    self.open_lane(&share).await;
                } else {
                    self.send_script(&share).await;
                }
            }
        }
        self.handle_entry(EntryEvent::Synced);
        self.begin_launches().await;
        for terminal in self.terminals.wanted() {
            self.send(terminal).await;
        }
        self.publish_run_state();
    }

    async fn open_terminal(&mut self, terminal: OpenTerminal) {
        self.terminals.open(terminal);
        if self.line.is_synced() {
            for terminal in self.terminals.wanted() {
                self.send(terminal).await;
                failpoint::pass(Point::TerminalAsked);
            }
        }
    }
}

#[cfg(test)]
mod tests;
