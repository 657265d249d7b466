//! The task of one allocation: commands in, a shim's messages in, events out.

use super::find::{self, Missing};
use super::link::Link;
use super::local_launch::LocalLaunch;
use super::prepare::{self, Line, Preparing};
use super::run_lease::{self, RunLease};
use super::terminals::{OpenTerminal, Terminals};
use super::walltime::{self, Awaited};
use super::{Activity, Command, Detail, Standing, probing, undo};
use crate::context::Shared;
use crate::environment;
use crate::hooks::Moment;
use crate::mesh::call::WireCall;
use crate::mesh::frame::{ToHead, ToPart};
use crate::mesh::input::WirePiece;
use crate::mesh::terminal::ToTerminal;
use crate::spool::launches;
use crate::terminal;
use lattice_model::input::Taken;
use lattice_model::launch::MEMORY_KILL_CODE;
use lattice_model::{
    AllocationId, Call, DesiredShare, EndReason, Entrypoint, Epoch, LaunchId, LaunchShape, LaunchSpec, MemoryKill, RankOutcome, Stdin,
};
use lattice_node::{Event, LaunchEnd};
use lattice_runtime::exits::{self, ExitRecord};
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{FromShim, PROTOCOL_MAJOR, REFUSED_CODE, ShimDir, StopReason, ToShim};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// What background processes get between SIGTERM and SIGKILL once the entry point is over.
const LEFTOVER_GRACE: Duration = Duration::from_secs(5);
/// How long a shim may take to quit before it is killed with its scope.
const QUIT_WAIT: Duration = Duration::from_secs(5);
/// Between two tries to reach a shim while this agent lacks something for it (descriptors, memory).
const CONNECT_AGAIN: Duration = Duration::from_millis(200);
/// Bytes typed that wait for launches to begin; where there are more, the oldest pieces are lost.
const TYPED_AHEAD_BYTES_MAX: usize = 64 * 1024;
/// Between two tries to take away what cannot be taken away yet.
const UNDO_AGAIN: Duration = Duration::from_secs(1);

/// Why a launch is not begun by a shim of the version before.
const SHAPELESS: &str = "its shim was started by an older version, which lays ranks out in blocks of one program alone: leave the options of \
                         its layout out, or begin the allocation anew";

/// The same of one that has standard input.
const INPUTLESS: &str = "its shim was started by an older version, which passes no standard input on: say --stdin=none, or begin the allocation \
                         anew";

/// Where the task says how it is.
pub(super) struct Says {
    pub(super) activity: watch::Sender<Activity>,
    pub(super) standing: watch::Sender<Standing>,
    pub(super) detail: watch::Sender<Detail>,
}

/// Begins the task of `share`'s allocation.
pub(super) fn begin(
    context: &Shared,
    share: &Arc<DesiredShare>,
    dir: ShimDir,
    own: mpsc::WeakSender<Command>,
    queue: mpsc::Receiver<Command>,
    says: Says,
) {
    let task = AllocationTask {
        own,
        context: Arc::clone(context),
        share: Arc::clone(share),
        dir,
        link: None,
        preparing: None,
        probing: None,
        warning: None,
        phase: Phase::Idle,
        fresh: false,
        synced: false,
        shapes: false,
        inputs: false,
        calls: false,
        started: false,
        entry_waits: false,
        launches: BTreeMap::new(),
        typed_ahead: VecDeque::new(),
        terminals: Terminals::default(),
        entry_over: false,
        walltime_over: false,
        walltime_told: false,
        script_kill: None,
        acknowledged: share.run_lease_ms.map(|_| context.acknowledged.clone()),
        lease: RunLease::default(),
        says,
    };
    tokio::spawn(task.run(queue));
}

/// What the task is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing in particular.
    Idle,
    /// The shim's word that its mounts are there.
    AwaitingReady,
    /// The shim's word that nothing is left.
    AwaitingStopped,
}

struct AllocationTask {
    own: mpsc::WeakSender<Command>,
    context: Shared,
    share: Arc<DesiredShare>,
    dir: ShimDir,
    link: Option<Link>,
    preparing: Option<Preparing>,
    /// Makes the probes, where there are any.
    probing: Option<AbortOnDropHandle<()>>,
    /// Asks it to save itself before its walltime ends, on the head.
    warning: Option<AbortOnDropHandle<()>>,
    phase: Phase,
    /// Whether the shim was just started when the present line came.
    fresh: bool,
    /// Whether the shim has told all that it has, on the present line.
    synced: bool,
    /// Whether the shim knows launches of other shapes than the usual one.
    shapes: bool,
    /// Whether the shim passes standard input on.
    inputs: bool,
    /// Whether the shim's servers answer calls.
    calls: bool,
    /// Whether the brain said that it may run.
    started: bool,
    /// Whether the inline command's launch is to begin once the shim has told all that it has.
    entry_waits: bool,
    launches: BTreeMap<LaunchId, LocalLaunch>,
    /// What was typed at launches that the shim does not have yet, the oldest first.
    typed_ahead: VecDeque<(LaunchId, ToTerminal)>,
    terminals: Terminals,
    entry_over: bool,
    walltime_over: bool,
    /// Whether it is said what that means, or will be: a checkpoint that is under way may be waited for.
    walltime_told: bool,
    /// What was killed of the script for its memory.
    script_kill: Option<MemoryKill>,
    /// When the newest heartbeat was sent that the leader acknowledged; `None`: the work is under no run lease.
    acknowledged: Option<watch::Receiver<Option<u64>>>,
    lease: RunLease,
    says: Says,
}

impl AllocationTask {
    async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        loop {
            if std::mem::take(&mut self.lease.begins) {
                self.begin_what_waited().await;
            }
            let heard = tokio::select! {
                command = queue.recv() => {
                    let Some(command) = command else { return };
                    if let Command::Undo = command {
                        self.undo().await;
                        return;
                    }
                    self.obey(command).await;
                    continue;
                }
                prepared = prepare::ended(&mut self.preparing) => {
                    self.preparing = None;
                    self.prepared(prepared).await;
                    continue;
                }
                () = run_lease::renewed(&mut self.acknowledged) => {
                    self.renew().await;
                    continue;
                }
                heard = hear(&mut self.link) => heard,
            };
            match heard {
                Some(message) => self.heard(message).await,
                None => self.link_ended().await,
            }
        }
    }

    fn is_head(&self) -> bool {
        self.share.nodes.first().is_some_and(|(node, _)| node == &self.context.me)
    }

    fn say(&self, text: &str) {
        self.says.detail.send_modify(|d| text.clone_into(&mut d.text));
    }

    /// Says whether launches can begin.
    fn stand(&self) {
        let now = match (*self.says.standing.borrow(), self.started && self.synced && self.may_begin()) {
            (Standing::Ending, _) => Standing::Ending,
            (_, true) => Standing::Running,
            (_, false) => Standing::NotYet,
        };
        self.says.standing.send_if_modified(|standing| std::mem::replace(standing, now) != now);
    }

    async fn tell(&self, event: impl FnOnce(AllocationId, Epoch) -> Event) {
        self.context.tell(event(self.share.allocation, self.share.epoch)).await;
    }

    async fn ended(&self, reason: EndReason) {
        self.tell(|allocation, epoch| Event::Ended { allocation, epoch, reason }).await;
    }

    async fn obey(&mut self, command: Command) {
        tracing::debug!(allocation = %self.share.allocation, ?command, "told");
        match command {
            Command::Prepare { assignment } => {
                if self.preparing.is_none() {
                    self.preparing = Some(Preparing::begin(&self.context, &self.share, assignment, &self.dir, self.says.detail.clone()));
                }
            }
            Command::Adopt => {
                if self.connect().await {
                    self.look_after_logs(true);
                }
            }
            Command::Start(share) => self.start(&share).await,
            Command::Stop => self.stop().await,
            Command::Attach { launch, calls, to_head } => self.attach(*launch, calls, to_head).await,
            Command::FromHead { launch, message } => self.obey_head(launch, message).await,
            Command::OpenTerminal(terminal) => self.open_terminal(*terminal).await,
            Command::LogsFlushed { files } => self.send(ToShim::LogsFlushed { files }).await,
            Command::Typed { launch, message } => self.typed(launch, message).await,
            Command::EntryOver { end } => self.entry_launch_over(end).await,
            Command::Undo => {}
        }
    }

    async fn prepared(&mut self, result: Result<Line, String>) {
        let failure = match result {
            Ok(line) => match self.take_link(line).await {
                Ok(()) => {
                    self.look_after_logs(false);
                    self.phase = Phase::AwaitingReady;
                    failpoint::pass(Point::ShimGreeted);
                    None
                }
                Err(error) => Some(format!("the shim does not answer: {error}")),
            },
            Err(why) => Some(why),
        };
        if let Some(why) = failure {
            self.context.adoption.lost(self.share.allocation);
            tracing::warn!(allocation = %self.share.allocation, %why, "an allocation could not be prepared");
            self.say(&why);
            self.tell(|allocation, epoch| Event::Prepared { allocation, epoch, result: Err(why) }).await;
        }
    }

    /// From here on, what is written goes on into the log store.
    fn look_after_logs(&self, adopted: bool) {
        self.context.spools.begin(&self.share, &self.context.me, &self.dir, self.own.clone(), adopted);
    }

    /// Ends a prologue in its middle: nothing of it goes on when this is over. A shim that it started is met again here.
    async fn give_up_preparing(&mut self) {
        if let Some(preparing) = self.preparing.take()
            && let Some(line) = preparing.give_up().await
            && let Err(error) = self.take_link(line).await
        {
            tracing::warn!(allocation = %self.share.allocation, %error, "the line to a shim broke");
        }
    }

    async fn take_link(&mut self, Line { stream, fresh }: Line) -> std::io::Result<()> {
        let mut link = Link::new(stream)?;
        link.send(&ToShim::Hello { protocol: PROTOCOL_MAJOR, calls: true }).await?;
        self.link = Some(link);
        self.renew().await;
        self.fresh = fresh;
        self.synced = false;
        self.stand();
        Ok(())
    }

    /// Looks for the shim once.
    async fn find_shim(&mut self) -> Result<(), Missing> {
        let (context, allocation, dir) = (Arc::clone(&self.context), self.share.allocation, self.dir.clone());
        let found = tokio::task::spawn_blocking(move || find::find(&context, allocation, &dir)).await;
        let stream = found.map_err(|e| Missing::Unreachable(std::io::Error::other(e)))??;
        failpoint::pass(Point::ShimFound);
        self.take_link(Line { stream, fresh: false }).await.map_err(Missing::Unreachable)
    }

    /// Finds the shim again, where there is no line to it. `false`: it is gone, and the driver was told.
    async fn connect(&mut self) -> bool {
        while self.link.is_none() {
            match self.find_shim().await {
                Ok(()) => {}
                Err(Missing::Gone) => {
                    self.shim_lost("its shim is gone").await;
                    return false;
                }
                Err(Missing::NotOurs(why)) => {
                    let why = format!("its shim is gone, and what listens in its place is not it: {why}");
                    tracing::error!(allocation = %self.share.allocation, socket = %self.dir.socket().display(), %why, "not adopted");
                    self.shim_lost(&why).await;
                    return false;
                }
                Err(Missing::Unreachable(error)) => {
                    tracing::warn!(allocation = %self.share.allocation, %error, "a shim cannot be reached now; it is tried again");
                    tokio::time::sleep(CONNECT_AGAIN).await;
                }
            }
        }
        true
    }

    async fn start(&mut self, share: &DesiredShare) {
        self.started = true;
        self.stand();
        if !self.connect().await {
            return;
        }
        let walltime_ms = share.spec.walltime.map_or(u64::MAX, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        if !self.may_begin() {
            self.lease.waits = Some(Box::new(share.clone()));
            self.say("waits for the leader to acknowledge a heartbeat: its run lease begins with that");
            return;
        }
        if self.is_head() {
            walltime::begins(&self.share, &self.dir).await;
        }
        self.send(ToShim::Go { walltime_ms }).await;
        failpoint::pass(Point::GoSent);
        self.say("running");
        if self.probing.is_none() {
            self.probing = probing::begin(&self.context, &self.share, self.says.detail.clone());
        }
        if !self.is_head() {
            return;
        }
        if self.warning.is_none() {
            self.warning = walltime::warn(&self.context, &self.share, &self.dir);
        }
        match &share.spec.entrypoint {
            Entrypoint::Script { text, args } => {
                let env = environment::of_script(share, &self.context);
                let working_dir = share.spec.working_dir.clone();
                self.send(ToShim::StartScript { text: text.to_string(), args: args.clone(), env, working_dir }).await;
                failpoint::pass(Point::ScriptAsked);
            }
            Entrypoint::Command { .. } if self.synced => self.begin_entry(),
            // It may have been begun by a former life: the shim has it as it was meant then.
            Entrypoint::Command { .. } => self.entry_waits = true,
        }
    }

    fn begin_entry(&self) {
        let Entrypoint::Command { argv } = &self.share.spec.entrypoint else { return };
        let usual = environment::entry_launch(&self.share, argv.clone());
        let told = self.launches.get(&usual.id).map(|launch| launch.spec.clone());
        self.begin_entry_launch(told.unwrap_or(usual));
    }

    /// Heads the launch of an inline command, unless that is done already, and waits for its end.
    fn begin_entry_launch(&self, launch: LaunchSpec) {
        let Some(own) = self.own.upgrade() else { return };
        let mut end = self.context.launches.begin(&self.context, &self.share, launch);
        tokio::spawn(async move {
            let end = end.wait_for(Option::is_some).await.ok().and_then(|e| e.clone());
            if let Some(end) = end {
                let _ = own.send(Command::EntryOver { end }).await;
            }
        });
    }

    async fn entry_launch_over(&mut self, end: LaunchEnd) {
        if self.lease.lapsed {
            return;
        }
        self.entry_over = true;
        failpoint::pass(Point::LaunchOver);
        let reason = match end {
            LaunchEnd { walltime_over: true, .. } => return self.walltime_is_over().await,
            LaunchEnd { out_of_memory: Some((node, kill)), .. } => EndReason::OutOfMemory { node, kill },
            LaunchEnd { code, aborted: Some(why), .. } => EndReason::LaunchAborted { code, why },
            LaunchEnd { code, aborted: None, .. } => EndReason::Exited { code },
        };
        self.ended(reason).await;
    }

    async fn stop(&mut self) {
        self.probing = None;
        self.entry_waits = false;
        self.lease.waits = None;
        self.give_up_preparing().await;
        if self.phase == Phase::AwaitingReady {
            // It is still mounting, and has started nothing; a mount that hangs must not be waited for here.
            self.phase = Phase::Idle;
            return self.tell(|allocation, epoch| Event::Stopped { allocation, epoch }).await;
        }
        self.say("ending its processes");
        self.says.standing.send_replace(Standing::Ending);
        let grace = if self.entry_over { LEFTOVER_GRACE.min(self.context.grace) } else { self.context.grace };
        self.context.launches.drop_of(self.share.allocation);
        if self.link.is_none() {
            // Without a shim its scope is all there is to end.
            let _ = self.find_shim().await;
        }
        self.phase = Phase::AwaitingStopped;
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        if self.link.is_some() {
            self.send(ToShim::Stop { why: StopReason::Asked, grace_ms }).await;
            failpoint::pass(Point::StopSent);
        } else {
            self.kill_scope().await;
        }
    }

    /// Without a shim only the scope is left: whatever is in it goes at once.
    async fn kill_scope(&mut self) {
        self.context.adoption.found(self.share.allocation);
        self.phase = Phase::Idle;
        let (context, share) = (Arc::clone(&self.context), Arc::clone(&self.share));
        let killed = tokio::task::spawn_blocking(move || undo::kill_scope(&context, share.allocation)).await;
        if let Ok(Err(why)) = killed {
            self.say(&why);
            tracing::warn!(allocation = %self.share.allocation, %why, "processes of an allocation without a shim could not be ended");
        }
        self.tell(|allocation, epoch| Event::Stopped { allocation, epoch }).await;
    }

    async fn undo(mut self) {
        self.context.adoption.found(self.share.allocation);
        self.probing = None;
        self.give_up_preparing().await;
        self.say("taking away what was made");
        self.says.standing.send_replace(Standing::Ending);
        self.context.launches.drop_of(self.share.allocation);
        if self.link.is_none() {
            let _ = self.find_shim().await;
        }
        if self.link.is_some() {
            self.send(ToShim::Quit).await;
            failpoint::pass(Point::QuitSent);
            let gone = async { while hear(&mut self.link).await.is_some() {} };
            if tokio::time::timeout(QUIT_WAIT, gone).await.is_err() {
                tracing::warn!(allocation = %self.share.allocation, "the shim does not quit: it is killed with its scope");
            }
        }
        failpoint::pass(Point::ShimGone);
        let (context, allocation) = (Arc::clone(&self.context), self.share.allocation);
        self.insist(move || undo::kill_scope(&context, allocation)).await;
        self.epilogue().await;
        failpoint::pass(Point::EpilogueOver);
        let (context, share, dir) = (Arc::clone(&self.context), Arc::clone(&self.share), self.dir.clone());
        self.insist(move || undo::undo(&context, &share, &dir)).await;
        failpoint::pass(Point::Undone);
        self.context.workers.forget(&self.share);
        // A launch that came in while this was being done has nobody to run it.
        self.context.launches.drop_of(self.share.allocation);
        self.tell(|allocation, epoch| Event::Undone { allocation, epoch }).await;
        self.context.checks.again();
    }

    /// Does something until it is done.
    async fn insist(&self, act: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        let act = Arc::new(act);
        loop {
            let act = Arc::clone(&act);
            match tokio::task::spawn_blocking(move || act()).await {
                Ok(Ok(())) => return,
                Ok(Err(why)) => {
                    // Processes in an uninterruptible call, for one: the share stays ours until they are gone.
                    tracing::warn!(allocation = %self.share.allocation, %why, "an allocation cannot be taken away yet");
                    self.say(&why);
                }
                Err(panic) => tracing::error!(%panic, "taking an allocation away broke"),
            }
            tokio::time::sleep(UNDO_AGAIN).await;
        }
    }

    /// The site's, once no process is left. A failed one is said, and keeps the node from nobody (decision 0010).
    async fn epilogue(&self) {
        let (context, share) = (&self.context, &self.share);
        self.say("the site's epilogue");
        let data = context.data.environment(share);
        match context.hooks.run(Moment::Epilogue, context, share, &self.dir, &data, &CancellationToken::new()).await {
            Ok(()) => {
                context.troubles.over("epilogue");
                self.say("taking away what was made");
            }
            Err(failure) => {
                tracing::error!(allocation = %share.allocation, %failure, "an epilogue failed: the node is given away without it");
                context.troubles.say("epilogue", format!("after allocation {}, {failure}", share.allocation));
                self.say(&failure.to_string());
            }
        }
    }

    async fn send(&mut self, message: ToShim) {
        if let Some(link) = &mut self.link
            && let Err(error) = link.send(&message).await
        {
            tracing::warn!(allocation = %self.share.allocation, %error, "the line to a shim broke");
        }
    }

    async fn heard(&mut self, message: FromShim) {
        tracing::debug!(allocation = %self.share.allocation, ?message, "heard from the shim");
        match message {
            FromShim::Hello { allocation, epoch, pid, shapes, input, calls, .. } => {
                if (allocation, epoch) != (self.share.allocation, self.share.epoch) {
                    let why = format!("its shim is gone, and another one answers in its place: {allocation} under epoch {epoch}");
                    tracing::error!(allocation = %self.share.allocation, %why, "not adopted");
                    self.link = None;
                    return self.shim_lost(&why).await;
                }
                (self.shapes, self.inputs, self.calls) = (shapes, input, calls);
                self.says.detail.send_modify(|d| d.shim_pid = Some(pid));
            }
            FromShim::Ready { failed } => {
                if self.phase == Phase::AwaitingReady {
                    failpoint::pass(Point::ReadyHeard);
                    self.phase = Phase::Idle;
                    let failed = failed.or_else(|| self.unfenced());
                    self.say(failed.as_deref().unwrap_or("prepared"));
                    let result = failed.map_or(Ok(()), Err);
                    self.tell(|allocation, epoch| Event::Prepared { allocation, epoch, result }).await;
                }
            }
            FromShim::Going | FromShim::ScriptStarted => {}
            FromShim::RunLease { until_ms } => self.keeps_lease(until_ms),
            FromShim::RunLeaseLapsed => self.lease_lapsed().await,
            FromShim::AttachStarted { session } => {
                failpoint::pass(Point::TerminalStarted);
                self.terminals.started(session);
            }
            FromShim::AttachEnded { session, outcome, why } => {
                failpoint::pass(Point::TerminalEnded);
                self.terminals.ended(session, outcome, why);
            }
            FromShim::Synced => self.is_synced().await,
            FromShim::ScriptEnded { outcome } => {
                failpoint::pass(Point::ScriptEndHeard);
                self.over(0);
                self.entry_over = true;
                if !self.walltime_over && !self.lease.lapsed && self.phase != Phase::AwaitingStopped {
                    let reason = self.script_reason(outcome);
                    self.ended(reason).await;
                }
            }
            FromShim::OutOfMemory { launch, kill } => {
                tracing::warn!(allocation = %self.share.allocation, %kill, "memory was over");
                match launch {
                    Some(launch) => self.of(launch, |l| l.out_of_memory(kill)),
                    None => self.script_kill = Some(kill),
                }
            }
            FromShim::LaunchStarted { launch } => {
                failpoint::pass(Point::LaunchHeard);
                let local = self.launches.entry(launch.id).or_insert_with(|| LocalLaunch::new(launch.clone()));
                if !local.begun {
                    // Its folder may have been there before its first rank. (One that was asked for twice is told twice, maybe after its end.)
                    self.says.activity.send_if_modified(|activity| activity.over.remove(&launch.number));
                }
                local.begun();
                let (id, calls) = (launch.id, local.calls);
                let headed_here = launch.nodes.first().is_some_and(|n| n.node == self.context.me);
                if headed_here {
                    // After a restart of this agent the shim is who remembers the launches that it headed.
                    self.context.launches.begin(&self.context, &self.share, launch);
                }
                self.tell_calls(id, calls).await;
                for (launch, message) in std::mem::take(&mut self.typed_ahead) {
                    self.typed(launch, message).await;
                }
            }
            FromShim::RankEnded { launch, rank, outcome } => {
                failpoint::pass(Point::RankEndHeard);
                self.of(launch, |l| l.rank_ended(rank, outcome));
            }
            FromShim::Fence { launch, number, blob } => self.of(launch, |l| l.fence(number, blob)),
            FromShim::InputTaken { launch, upto, again } => {
                let taken = upto.map_or(Taken::Over, Taken::UpTo);
                self.of(launch, |l| l.input_taken(taken, again));
            }
            FromShim::Call { launch, call } => self.of(launch, |l| l.call(call)),
            FromShim::Absent { launch, ranks } => self.of(launch, |l| l.absent(ranks)),
            FromShim::Aborted { launch, code: REFUSED_CODE, why } => self.of(launch, |l| l.lost(&why)),
            FromShim::Aborted { launch, code, why } => self.of(launch, |l| l.aborted(code, why)),
            FromShim::Stopping { why } => {
                if why == StopReason::Walltime {
                    self.walltime_is_over().await;
                }
            }
            FromShim::Stopped { why } => {
                if why == StopReason::Walltime {
                    self.walltime_is_over().await;
                }
                if self.phase == Phase::AwaitingStopped {
                    failpoint::pass(Point::StoppedHeard);
                    self.phase = Phase::Idle;
                    self.tell(|allocation, epoch| Event::Stopped { allocation, epoch }).await;
                }
            }
        }
    }

    /// Why the script ended so.
    fn script_reason(&self, outcome: RankOutcome) -> EndReason {
        match self.script_kill {
            // A script that only lost a child to it and ended by itself has its own say.
            Some(kill) if outcome.code() == MEMORY_KILL_CODE => EndReason::OutOfMemory { node: self.context.me.clone(), kill },
            Some(_) | None => EndReason::Exited { code: outcome.code() },
        }
    }

    /// The shim has told all that it has: what it does not have and has log files is over and was forgotten.
    async fn is_synced(&mut self) {
        let on_disk = if self.fresh {
            BTreeSet::new()
        } else {
            let dir = self.dir.clone();
            tokio::task::spawn_blocking(move || launches(&dir)).await.ok().and_then(Result::ok).unwrap_or_default()
        };
        for number in on_disk.into_iter().filter(|n| *n > 0) {
            if !self.launches.values().any(|l| l.spec.number == number) {
                self.over(number);
            }
        }
        failpoint::pass(Point::ShimToldAll);
        if self.is_head() {
            self.context.checkpoints.resume(&self.context, &self.share, &self.dir).await;
        }
        self.context.adoption.found(self.share.allocation);
        self.synced = true;
        self.tell_walltime().await;
        if std::mem::take(&mut self.entry_waits) {
            self.begin_entry();
        }
        self.begin_launches().await;
        for terminal in self.terminals.wanted() {
            self.send(terminal).await;
        }
        self.stand();
    }

    /// What is typed at a launch that does not run yet waits for it. While there is no line to the shim, what is typed is
    /// lost: as if the program had not looked.
    async fn typed(&mut self, launch: LaunchId, message: ToTerminal) {
        if self.launches.get(&launch).is_none_or(|l| !l.begun) {
            self.typed_ahead.push_back((launch, message));
            while self.typed_ahead.iter().map(|(_, message)| message.bytes()).sum::<usize>() > TYPED_AHEAD_BYTES_MAX {
                self.typed_ahead.pop_front();
            }
            return;
        }
        match message {
            ToTerminal::Input(bytes) => self.send(ToShim::Typed { launch, bytes }).await,
            ToTerminal::Size { rows, columns } => self.send(ToShim::Resized { launch, size: terminal::size(rows, columns) }).await,
            ToTerminal::EndOfInput => {}
        }
    }

    async fn open_terminal(&mut self, terminal: OpenTerminal) {
        self.terminals.open(terminal);
        if self.synced {
            for terminal in self.terminals.wanted() {
                self.send(terminal).await;
                failpoint::pass(Point::TerminalAsked);
            }
        }
    }

    /// Changes what is known of a launch.
    fn of(&mut self, launch: LaunchId, change: impl FnOnce(&mut LocalLaunch)) {
        // That ranks were killed for it is not how their launch ended: its head hears of the node, by way of the quorum.
        if self.lease.lapsed {
            return;
        }
        let Some(local) = self.launches.get_mut(&launch) else { return };
        change(local);
        if local.over(&self.context.me) {
            let number = local.spec.number;
            self.over(number);
        }
    }

    /// No rank of this launch is left here: readers of its output may come to their end.
    fn over(&self, number: u32) {
        self.says.activity.send_if_modified(|activity| activity.over.insert(number));
    }

    async fn walltime_is_over(&mut self) {
        if !std::mem::replace(&mut self.walltime_over, true) {
            for local in self.launches.values_mut() {
                local.walltime_over();
            }
        }
        self.tell_walltime().await;
    }

    /// Says once what the end of its walltime means: the head knows whether it is being saved, when the shim has told all.
    async fn tell_walltime(&mut self) {
        // The quorum may understand more than when this began.
        let (id, epoch) = (self.share.allocation, self.share.epoch);
        let saves = self.share.spec.checkpoint.is_some() && (self.share.suspends || walltime::suspends(&self.context, id, epoch));
        if !self.walltime_over || self.walltime_told || (saves && self.is_head() && !self.synced) {
            return;
        }
        self.walltime_told = true;
        let (context, share) = (Arc::clone(&self.context), Arc::clone(&self.share));
        if saves && !self.is_head() {
            tokio::spawn(walltime::end_without_head(context, share));
            return;
        }
        let awaited = if saves { walltime::awaited(&context, &share, &self.dir).await } else { None };
        match awaited {
            Some(Awaited::UnderWay(view)) => {
                self.say("its walltime is over; a checkpoint that is under way has the grace to be whole");
                tokio::spawn(walltime::end(context, share, view));
            }
            Some(Awaited::Whole(checkpoint)) => {
                self.say("its walltime is over; it saved itself before that");
                tokio::spawn(walltime::end_saved(context, share, checkpoint));
            }
            None => self.ended(EndReason::WalltimeExceeded).await,
        }
    }

    /// `calls`: the head, and all on the way to it, carry calls.
    async fn attach(&mut self, launch: LaunchSpec, calls: bool, to_head: mpsc::Sender<ToHead>) {
        let id = launch.id;
        let local = self.launches.entry(id).or_insert_with(|| LocalLaunch::new(launch));
        local.calls = Some(calls);
        local.attach(to_head, self.walltime_over);
        if local.begun {
            self.tell_calls(id, Some(calls)).await;
        }
        if self.synced {
            self.begin_launches().await;
        }
    }

    /// Whether calls of a launch are carried, where that is known: while it is not, the shim's servers wait.
    async fn tell_calls(&mut self, launch: LaunchId, carried: Option<bool>) {
        if let Some(carried) = carried {
            self.send(ToShim::Calls { launch, carried }).await;
        }
    }

    /// Asks the shim for every launch that it has not said to have. Asking twice is one launch.
    async fn begin_launches(&mut self) {
        if !self.may_begin() {
            return;
        }
        let missing: Vec<LaunchSpec> = self.launches.values().filter(|l| !l.begun).map(|l| l.spec.clone()).collect();
        for mut launch in missing {
            if launch.shape != LaunchShape::default() && !self.shapes {
                self.of(launch.id, |l| l.lost(SHAPELESS));
                continue;
            }
            if launch.stdin() != Ok(Stdin::None) && !self.inputs {
                self.of(launch.id, |l| l.lost(INPUTLESS));
                continue;
            }
            environment::of_this_node(&mut launch.env, &self.share, &self.context);
            self.context.hwloc.tell(&mut launch.env, &self.share, &self.context.topology());
            self.send(ToShim::StartLaunch { launch }).await;
            failpoint::pass(Point::LaunchAsked);
        }
    }

    async fn obey_head(&mut self, launch: LaunchId, message: ToPart) {
        match message {
            ToPart::FenceDone { number, blob } => self.send(ToShim::FenceDone { launch, number, blob }).await,
            ToPart::Input(piece) => {
                let WirePiece { offset, bytes, last } = *piece;
                self.send(ToShim::Input { launch, offset, bytes, last }).await;
            }
            ToPart::Call(call) => self.call(launch, *call).await,
            ToPart::NameAbsent => self.send(ToShim::NameAbsent { launch }).await,
            ToPart::Abort { code, why } => self.send(ToShim::Abort { launch, code, why }).await,
            ToPart::Forget => {
                if self.launches.get(&launch).is_some_and(|l| l.over(&self.context.me)) {
                    self.launches.remove(&launch);
                    self.send(ToShim::Forget { launch }).await;
                }
            }
        }
    }

    /// Another part's server asks or answers. A shim of the version before has none that would.
    async fn call(&mut self, launch: LaunchId, call: WireCall) {
        let Ok(call) = Call::try_from(call) else { return };
        if self.calls {
            self.send(ToShim::Call { launch, call }).await;
        } else if let Some(answer) = call.unserved() {
            self.of(launch, |l| l.call(answer));
        }
    }

    /// The shim closed the line: it is dead, or said something that cannot be read.
    async fn link_ended(&mut self) {
        self.link = None;
        self.synced = false;
        self.stand();
        match self.phase {
            Phase::AwaitingStopped => self.kill_scope().await,
            Phase::AwaitingReady => {
                self.phase = Phase::Idle;
                let why = "the shim ended before it was ready (its shim.log says why)".to_owned();
                self.tell(|allocation, epoch| Event::Prepared { allocation, epoch, result: Err(why) }).await;
            }
            Phase::Idle => {
                // What cannot be read is said again after each connect: not in a tight circle.
                tokio::time::sleep(CONNECT_AGAIN).await;
                self.connect().await;
            }
        }
    }

    /// The shim is dead. What it wrote down of ends counts; all else is lost, and nothing of it may live on.
    async fn shim_lost(&mut self, why: &str) {
        self.context.adoption.lost(self.share.allocation);
        self.terminals.lost(why);
        let dir = self.dir.clone();
        let records = tokio::task::spawn_blocking(move || exits::read(&dir)).await;
        let records = records.ok().and_then(Result::ok).unwrap_or_default();
        let entry = match &self.share.spec.entrypoint {
            Entrypoint::Command { argv } if self.started => Some(environment::entry_launch(&self.share, argv.clone())),
            Entrypoint::Command { .. } | Entrypoint::Script { .. } => None,
        };
        if let Some(entry) = &entry {
            self.launches.entry(entry.id).or_insert_with(|| LocalLaunch::new(entry.clone()));
        }
        let mut known = None;
        for record in records {
            match record {
                ExitRecord::OutOfMemory { launch: None, kill } => self.script_kill = Some(kill),
                ExitRecord::OutOfMemory { launch: Some(launch), kill } => self.of(launch, |l| l.out_of_memory(kill)),
                ExitRecord::Script { outcome } if self.is_head() => known = Some(self.script_reason(outcome)),
                ExitRecord::Stopped { why: StopReason::Walltime } => known = Some(EndReason::WalltimeExceeded),
                ExitRecord::RunLeaseLapsed => self.lease.lapsed = true,
                ExitRecord::Rank { launch, rank, outcome } => self.of(launch, |l| l.rank_ended(rank, outcome)),
                ExitRecord::Aborted { launch, code, why } if code != REFUSED_CODE => self.of(launch, |l| l.aborted(code, why)),
                ExitRecord::Script { .. } | ExitRecord::Aborted { .. } | ExitRecord::Stopped { .. } => {}
            }
        }
        let me = self.context.me.clone();
        if self.lease.lapsed {
            // Whatever else ended since was killed for that.
            known = Some(EndReason::RunLeaseLapsed { node: me.clone() });
        }
        for local in self.launches.values_mut().filter(|l| !self.lease.lapsed && !l.all_ended(&me)) {
            local.lost(why);
        }
        // An inline command whose ranks here are all known to have ended ends as its head says, not as lost.
        let told_by_head = entry.and_then(|e| self.launches.get(&e.id)).is_some_and(|l| l.all_ended(&me));
        if !told_by_head || known.is_some() {
            let lost = EndReason::NodeLost { node: me, why: why.to_owned() };
            self.ended(known.unwrap_or(lost)).await;
        } else if self.is_head() {
            self.begin_entry();
        }
    }
}

/// Its run lease.
impl AllocationTask {
    /// Whether work may be begun: it has a lease, or needs none.
    fn may_begin(&self) -> bool {
        self.acknowledged.is_none() || self.lease.granted
    }

    /// Passes on to the shim how long its work may run, counted from the newest heartbeat that the leader acknowledged.
    async fn renew(&mut self) {
        let (Some(acknowledged), Some(length)) = (&mut self.acknowledged, self.share.run_lease_ms) else { return };
        let Some(sent) = *acknowledged.borrow_and_update() else { return };
        if self.link.is_some() {
            self.send(ToShim::RunLease { until_ms: sent.saturating_add(length) }).await;
            self.lease_granted();
        }
    }

    /// The shim keeps a lease; where a former life of the agent had it granted, work may begin.
    fn keeps_lease(&mut self, until_ms: Option<u64>) {
        self.lease.kept = true;
        if until_ms.is_some() {
            self.lease_granted();
        }
    }

    fn lease_granted(&mut self) {
        self.lease.begins |= !std::mem::replace(&mut self.lease.granted, true);
    }

    async fn begin_what_waited(&mut self) {
        if let Some(share) = self.lease.waits.take() {
            self.start(&share).await;
        }
        if self.synced {
            self.begin_launches().await;
        }
        self.stand();
    }

    /// Why the shim cannot be trusted with work that is to end when this node is cut off.
    fn unfenced(&self) -> Option<String> {
        (self.acknowledged.is_some() && !self.lease.kept).then(|| {
            format!(
                "{} keeps no run leases, so work with --on-isolation=stop would not be ended: it is of an older version than the agent; install \
                 the same version of both",
                self.context.shim.display()
            )
        })
    }

    async fn lease_lapsed(&mut self) {
        if std::mem::replace(&mut self.lease.lapsed, true) {
            return;
        }
        tracing::warn!(allocation = %self.share.allocation, "its run lease lapsed: the shim killed its work");
        self.say("its run lease lapsed, its work was killed");
        self.lease.waits = None;
        self.ended(EndReason::RunLeaseLapsed { node: self.context.me.clone() }).await;
    }
}

async fn hear(link: &mut Option<Link>) -> Option<FromShim> {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
}
