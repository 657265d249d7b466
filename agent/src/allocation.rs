//! One allocation on this node: the task that does what the brain decided, and keeps the line to the shim.
//!
//! ```text
//!   driver ──Command──▶ AllocationTask ──ToShim──▶ shim
//!          ◀──Event────      │  ▲     ◀─FromShim──
//!                      ToHead│  │ToPart
//!                            ▼  │
//!                     heads of launches, here or over the mesh
//! ```
//!
//! Everything it is told to do may be told twice, and the shim may be there already: after a restart of the agent
//! nothing tells whether an action was done. When the shim's socket is gone, so is the shim, and what it ran.

mod link;
mod prepare;
mod undo;

use crate::context::Shared;
use crate::environment;
use crate::mesh::frame::{ToHead, ToPart};
use lattice_model::{AllocationId, DesiredShare, EndReason, Entrypoint, Epoch, LaunchId, LaunchSpec, RankOutcome};
use lattice_node::{Event, LaunchEnd};
use lattice_runtime::exits::{self, ExitRecord};
use lattice_runtime::shim::{FromShim, PROTOCOL_MAJOR, REFUSED_CODE, ShimDir, StopReason, ToShim};
use link::Link;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Commands waiting for one allocation's task.
const COMMANDS: usize = 256;
/// Messages waiting for a launch's head; one that is slower is cut off and hears everything again when it is back.
const TO_HEAD: usize = 1024;
/// What background processes get between SIGTERM and SIGKILL once the entry point is over.
const LEFTOVER_GRACE: Duration = Duration::from_secs(5);

/// What an allocation's task is told.
#[derive(Debug)]
pub enum Command {
    Prepare,
    Adopt,
    Start(Box<DesiredShare>),
    Stop,
    Undo,
    /// A head, here or elsewhere, wants this node's part of its launch started, and to hear of it.
    Attach {
        launch: Box<LaunchSpec>,
        to_head: mpsc::Sender<ToHead>,
    },
    /// From the head of a launch.
    FromHead {
        launch: LaunchId,
        message: ToPart,
    },
    /// A launch of this head is over (told by the launch's own task).
    EntryOver {
        end: LaunchEnd,
    },
}

/// What readers of logs wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Numbers of launches of which no rank is left here; 0 is the script.
    pub over: BTreeSet<u32>,
}

/// The way to an allocation's task.
#[derive(Clone, Debug)]
pub struct AllocationHandle {
    /// What it works on, as the quorum said when it began here.
    pub share: Arc<DesiredShare>,
    commands: mpsc::Sender<Command>,
    /// Where its files lie.
    pub dir: ShimDir,
    /// Ends with the task.
    pub activity: watch::Receiver<Activity>,
    /// For `node status`: what it does now.
    pub detail: watch::Receiver<Detail>,
}

/// What an allocation's task says about itself.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    pub shim_pid: Option<u32>,
    pub text: String,
}

impl AllocationHandle {
    /// Attaches a head; what it hears comes out of the receiver. A later head of the same launch replaces it.
    pub async fn attach(&self, launch: LaunchSpec) -> mpsc::Receiver<ToHead> {
        let (to_head, receiver) = mpsc::channel(TO_HEAD);
        let _ = self.commands.send(Command::Attach { launch: Box::new(launch), to_head }).await;
        receiver
    }

    /// Passes on what a head says.
    pub async fn pass_on(&self, launch: LaunchId, message: ToPart) {
        let _ = self.commands.send(Command::FromHead { launch, message }).await;
    }

    /// The highest number that a launch headed here ever had: its log files have it, and it is never used again.
    pub fn highest_launch_number(&self) -> u32 {
        let Ok(entries) = std::fs::read_dir(self.dir.logs()) else { return 0 };
        let number = |e: std::fs::DirEntry| e.file_name().to_str()?.split('.').next()?.parse().ok();
        entries.flatten().filter_map(number).max().unwrap_or(0)
    }

    /// Tells the task, from the driver's thread. Fails only when the task has ended.
    pub fn command(&self, command: Command) {
        let _ = self.commands.blocking_send(command);
    }
}

/// The allocations on this node, by id. Cloneable; all clones are one.
#[derive(Clone, Default)]
pub struct Workers(Arc<Mutex<BTreeMap<AllocationId, AllocationHandle>>>);

impl Workers {
    /// The task of an allocation, under any epoch.
    pub fn get(&self, allocation: AllocationId) -> Option<AllocationHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&allocation).cloned()
    }

    /// The task of an allocation under this epoch.
    pub fn of_epoch(&self, allocation: AllocationId, epoch: Epoch) -> Option<AllocationHandle> {
        self.get(allocation).filter(|h| h.share.epoch == epoch)
    }

    /// The task of `share`'s allocation, begun where there is none.
    pub fn ensure(&self, context: &Shared, share: &DesiredShare) -> AllocationHandle {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = map.get(&share.allocation)
            && handle.share.epoch == share.epoch
        {
            return handle.clone();
        }
        let (commands, queue) = mpsc::channel(COMMANDS);
        let (activity, activity_view) = watch::channel(Activity::default());
        let (detail, detail_view) = watch::channel(Detail::default());
        let share = Arc::new(share.clone());
        let dir = ShimDir::of(&context.state_dir, share.allocation, share.epoch);
        let (own, for_handle) = (commands.downgrade(), dir.clone());
        let handle =
            AllocationHandle { share: Arc::clone(&share), commands, dir: for_handle, activity: activity_view, detail: detail_view };
        map.insert(share.allocation, handle.clone());
        let task = AllocationTask {
            own,
            context: Arc::clone(context),
            share,
            dir,
            link: None,
            phase: Phase::Idle,
            launches: BTreeMap::new(),
            entry_over: false,
            walltime_over: false,
            activity,
            detail,
        };
        tokio::spawn(task.run(queue));
        handle
    }

    fn forget(&self, share: &DesiredShare) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.get(&share.allocation).is_some_and(|h| h.share.epoch == share.epoch) {
            map.remove(&share.allocation);
        }
    }
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

/// One launch's part on this node, as far as the shim told.
struct LocalLaunch {
    spec: LaunchSpec,
    ended: BTreeMap<u32, RankOutcome>,
    /// This node's contributions to the last two fences, which a head that reconnects may need.
    fences: BTreeMap<u32, Vec<u8>>,
    aborted: Option<(i32, String)>,
    head: Option<mpsc::Sender<ToHead>>,
    /// Whether the shim said that it has it.
    begun: bool,
}

struct AllocationTask {
    own: mpsc::WeakSender<Command>,
    context: Shared,
    share: Arc<DesiredShare>,
    dir: ShimDir,
    link: Option<Link>,
    phase: Phase,
    launches: BTreeMap<LaunchId, LocalLaunch>,
    entry_over: bool,
    walltime_over: bool,
    activity: watch::Sender<Activity>,
    detail: watch::Sender<Detail>,
}

impl AllocationTask {
    async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        loop {
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
        self.detail.send_modify(|d| text.clone_into(&mut d.text));
    }

    async fn tell(&self, event: impl FnOnce(AllocationId, Epoch) -> Event) {
        self.context.tell(event(self.share.allocation, self.share.epoch)).await;
    }

    async fn ended(&self, reason: EndReason) {
        self.tell(|allocation, epoch| Event::Ended { allocation, epoch, reason }).await;
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Prepare => self.prepare().await,
            Command::Adopt => {
                self.connect().await;
            }
            Command::Start(share) => self.start(&share).await,
            Command::Stop => self.stop().await,
            Command::Attach { launch, to_head } => self.attach(*launch, to_head).await,
            Command::FromHead { launch, message } => self.obey_head(launch, message).await,
            Command::EntryOver { end } => self.entry_launch_over(end).await,
            Command::Undo => {}
        }
    }

    async fn prepare(&mut self) {
        self.say("preparing: identity, image, scope, shim");
        let (context, share, dir) = (Arc::clone(&self.context), Arc::clone(&self.share), self.dir.clone());
        let prepared = tokio::task::spawn_blocking(move || prepare::prepare(&context, &share, &dir)).await;
        let failure = match prepared {
            Ok(Ok(stream)) => match self.take_link(stream).await {
                Ok(()) => {
                    self.phase = Phase::AwaitingReady;
                    None
                }
                Err(error) => Some(format!("the shim does not answer: {error}")),
            },
            Ok(Err(why)) => Some(why),
            Err(panic) => Some(format!("preparing broke: {panic}")),
        };
        if let Some(why) = failure {
            self.say(&why);
            self.tell(|allocation, epoch| Event::Prepared { allocation, epoch, result: Err(why) }).await;
        }
    }

    async fn take_link(&mut self, stream: std::os::unix::net::UnixStream) -> std::io::Result<()> {
        let mut link = Link::new(stream)?;
        link.send(&ToShim::Hello { protocol: PROTOCOL_MAJOR }).await?;
        self.link = Some(link);
        Ok(())
    }

    /// Finds the shim again, where there is no line to it. `false`: it is gone, and the driver was told.
    async fn connect(&mut self) -> bool {
        if self.link.is_some() {
            return true;
        }
        let dir = self.dir.clone();
        let found = tokio::task::spawn_blocking(move || lattice_runtime::shim::connect_shim(&dir)).await;
        let connected = match found {
            Ok(Ok(stream)) => self.take_link(stream).await.is_ok(),
            Ok(Err(_)) | Err(_) => false,
        };
        if !connected {
            self.shim_lost().await;
        }
        connected
    }

    async fn start(&mut self, share: &DesiredShare) {
        if !self.connect().await {
            return;
        }
        let walltime_ms = u64::try_from(share.spec.walltime.as_millis()).unwrap_or(u64::MAX);
        self.send(ToShim::Go { walltime_ms }).await;
        self.say("running");
        if !self.is_head() {
            return;
        }
        match &share.spec.entrypoint {
            Entrypoint::Script { text, args } => {
                let env = environment::of_script(share, &self.context);
                let working_dir = share.spec.working_dir.clone();
                self.send(ToShim::StartScript { text: text.clone(), args: args.clone(), env, working_dir }).await;
            }
            Entrypoint::Command { argv } => {
                let launch = environment::entry_launch(share, argv.clone());
                let Some(own) = self.own.upgrade() else { return };
                let mut end = self.context.launches.begin(&self.context, &self.share, launch);
                tokio::spawn(async move {
                    let end = end.wait_for(Option::is_some).await.ok().and_then(|e| e.clone());
                    if let Some(end) = end {
                        let _ = own.send(Command::EntryOver { end }).await;
                    }
                });
            }
        }
    }

    async fn entry_launch_over(&mut self, end: LaunchEnd) {
        self.entry_over = true;
        let reason = match end {
            LaunchEnd { walltime_over: true, .. } => EndReason::WalltimeExceeded,
            LaunchEnd { code, aborted: Some(why), .. } => EndReason::LaunchAborted { code, why },
            LaunchEnd { code, aborted: None, .. } => EndReason::Exited { code },
        };
        self.ended(reason).await;
    }

    async fn stop(&mut self) {
        self.say("ending its processes");
        let grace = if self.entry_over { LEFTOVER_GRACE.min(self.context.grace) } else { self.context.grace };
        self.context.launches.drop_of(self.share.allocation);
        if self.link.is_none() {
            let dir = self.dir.clone();
            if let Ok(Ok(stream)) = tokio::task::spawn_blocking(move || lattice_runtime::shim::connect_shim(&dir)).await {
                let _ = self.take_link(stream).await;
            }
        }
        self.phase = Phase::AwaitingStopped;
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        if self.link.is_some() {
            self.send(ToShim::Stop { why: StopReason::Asked, grace_ms }).await;
        } else {
            self.kill_scope().await;
        }
    }

    /// Without a shim only the scope is left: whatever is in it goes at once.
    async fn kill_scope(&mut self) {
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
        self.say("taking away what was made");
        self.context.launches.drop_of(self.share.allocation);
        if self.link.is_none() {
            let dir = self.dir.clone();
            if let Ok(Ok(stream)) = tokio::task::spawn_blocking(move || lattice_runtime::shim::connect_shim(&dir)).await {
                let _ = self.take_link(stream).await;
            }
        }
        if self.link.is_some() {
            self.send(ToShim::Quit).await;
            let gone = async { while hear(&mut self.link).await.is_some() {} };
            if tokio::time::timeout(Duration::from_secs(5), gone).await.is_err() {
                tracing::warn!(allocation = %self.share.allocation, "the shim does not quit: it is killed with its scope");
            }
        }
        loop {
            let (context, share, dir) = (Arc::clone(&self.context), Arc::clone(&self.share), self.dir.clone());
            let undone = tokio::task::spawn_blocking(move || undo::undo(&context, &share, &dir)).await;
            match undone {
                Ok(Ok(())) => break,
                Ok(Err(why)) => {
                    // Processes in an uninterruptible call, for one: the share stays ours until they are gone.
                    tracing::warn!(allocation = %self.share.allocation, %why, "an allocation cannot be taken away yet");
                    self.say(&why);
                }
                Err(panic) => tracing::error!(%panic, "taking an allocation away broke"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.context.workers.forget(&self.share);
        self.tell(|allocation, epoch| Event::Undone { allocation, epoch }).await;
    }

    async fn send(&mut self, message: ToShim) {
        if let Some(link) = &mut self.link
            && let Err(error) = link.send(&message).await
        {
            tracing::warn!(allocation = %self.share.allocation, %error, "the line to a shim broke");
        }
    }

    async fn heard(&mut self, message: FromShim) {
        match message {
            FromShim::Hello { pid, .. } => self.detail.send_modify(|d| d.shim_pid = Some(pid)),
            FromShim::Ready { failed } => {
                if self.phase == Phase::AwaitingReady {
                    self.phase = Phase::Idle;
                    self.say(failed.as_deref().unwrap_or("prepared"));
                    let result = failed.map_or(Ok(()), Err);
                    self.tell(|allocation, epoch| Event::Prepared { allocation, epoch, result }).await;
                }
            }
            FromShim::Going | FromShim::ScriptStarted => {}
            FromShim::Synced => self.begin_launches().await,
            FromShim::ScriptEnded { outcome } => {
                self.over(0);
                self.entry_over = true;
                if !self.walltime_over && self.phase != Phase::AwaitingStopped {
                    self.ended(EndReason::Exited { code: outcome.code() }).await;
                }
            }
            FromShim::LaunchStarted { launch } => {
                let id = launch.id;
                self.launches.entry(id).or_insert_with(|| LocalLaunch::new(launch.clone())).begun = true;
                let headed_here = launch.nodes.first().is_some_and(|n| n.node == self.context.me);
                if headed_here {
                    // After a restart of this agent the shim is who remembers the launches that it headed.
                    self.context.launches.begin(&self.context, &self.share, launch);
                }
            }
            FromShim::RankEnded { launch, rank, outcome } => {
                if let Some(local) = self.launches.get_mut(&launch) {
                    local.ended.insert(rank, outcome);
                    local.tell(ToHead::RankEnded { rank, outcome: outcome.into() });
                    if local.over(&self.context.me) {
                        let number = local.spec.number;
                        self.over(number);
                    }
                }
            }
            FromShim::Fence { launch, number, blob } => {
                if let Some(local) = self.launches.get_mut(&launch) {
                    local.fences.retain(|n, _| n + 1 >= number);
                    local.fences.insert(number, blob.clone());
                    local.tell(ToHead::Fence { number, blob });
                }
            }
            FromShim::Aborted { launch, code, why } => {
                if let Some(local) = self.launches.get_mut(&launch) {
                    local.begun = true;
                    if code == REFUSED_CODE {
                        // Nothing of it was started here: no rank's end will follow.
                        local.tell(ToHead::Lost { why });
                    } else {
                        local.aborted = Some((code, why.clone()));
                        local.tell(ToHead::Aborted { code, why });
                    }
                }
            }
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
                    self.phase = Phase::Idle;
                    self.tell(|allocation, epoch| Event::Stopped { allocation, epoch }).await;
                }
            }
        }
    }

    /// No rank of this launch is left here: readers of its output may come to their end.
    fn over(&self, number: u32) {
        self.activity.send_modify(|activity| {
            activity.over.insert(number);
        });
    }

    async fn walltime_is_over(&mut self) {
        if self.walltime_over {
            return;
        }
        self.walltime_over = true;
        for local in self.launches.values_mut() {
            local.tell(ToHead::WalltimeOver);
        }
        self.ended(EndReason::WalltimeExceeded).await;
    }

    async fn attach(&mut self, launch: LaunchSpec, to_head: mpsc::Sender<ToHead>) {
        let id = launch.id;
        let walltime_over = self.walltime_over;
        let local = self.launches.entry(id).or_insert_with(|| LocalLaunch::new(launch.clone()));
        local.head = Some(to_head);
        let again: Vec<ToHead> = local.retell(walltime_over).collect();
        for message in again {
            local.tell(message);
        }
        if self.link.is_some() {
            self.begin_launches().await;
        }
    }

    /// Asks the shim for every launch that it has not said to have. Asking twice is one launch.
    async fn begin_launches(&mut self) {
        let missing: Vec<LaunchSpec> = self.launches.values().filter(|l| !l.begun).map(|l| l.spec.clone()).collect();
        for mut launch in missing {
            environment::of_this_node(&mut launch.env, &self.share, &self.context);
            self.send(ToShim::StartLaunch { launch }).await;
        }
    }

    async fn obey_head(&mut self, launch: LaunchId, message: ToPart) {
        match message {
            ToPart::FenceDone { number, blob } => self.send(ToShim::FenceDone { launch, number, blob }).await,
            ToPart::Abort { code, why } => self.send(ToShim::Abort { launch, code, why }).await,
            ToPart::Forget => {
                if self.launches.get(&launch).is_some_and(|l| l.over(&self.context.me)) {
                    self.launches.remove(&launch);
                    self.send(ToShim::Forget { launch }).await;
                }
            }
        }
    }

    /// The shim closed the line: it was replaced (never by us), or it is dead.
    async fn link_ended(&mut self) {
        self.link = None;
        match self.phase {
            Phase::AwaitingStopped => self.kill_scope().await,
            Phase::AwaitingReady => {
                self.phase = Phase::Idle;
                let why = "the shim ended before it was ready (its shim.log says why)".to_owned();
                self.tell(|allocation, epoch| Event::Prepared { allocation, epoch, result: Err(why) }).await;
            }
            Phase::Idle => {
                self.connect().await;
            }
        }
    }

    /// The shim is dead. What it wrote down of ends counts; all else is lost, and nothing of it may live on.
    async fn shim_lost(&mut self) {
        let dir = self.dir.clone();
        let records = tokio::task::spawn_blocking(move || exits::read(&dir)).await;
        let records = records.ok().and_then(Result::ok).unwrap_or_default();
        let mut reason = EndReason::NodeLost { node: self.context.me.clone(), why: "its shim is gone".to_owned() };
        for record in records {
            match record {
                ExitRecord::Script { outcome } if self.is_head() => reason = EndReason::Exited { code: outcome.code() },
                ExitRecord::Stopped { why: StopReason::Walltime } => reason = EndReason::WalltimeExceeded,
                ExitRecord::Script { .. } | ExitRecord::Rank { .. } | ExitRecord::Aborted { .. } | ExitRecord::Stopped { .. } => {}
            }
        }
        for local in self.launches.values_mut() {
            local.tell(ToHead::Lost { why: "its shim is gone".to_owned() });
        }
        self.ended(reason).await;
    }
}

async fn hear(link: &mut Option<Link>) -> Option<FromShim> {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
}

impl LocalLaunch {
    fn new(spec: LaunchSpec) -> Self {
        Self { spec, ended: BTreeMap::new(), fences: BTreeMap::new(), aborted: None, head: None, begun: false }
    }

    /// Whether none of this node's ranks is left.
    fn over(&self, me: &lattice_model::NodeId) -> bool {
        self.spec.part(me).is_none_or(|p| self.ended.len() >= p.count as usize)
    }

    /// All that is known, for a head that has just come.
    fn retell(&self, walltime_over: bool) -> impl Iterator<Item = ToHead> + use<> {
        let mut all: Vec<ToHead> = Vec::new();
        if walltime_over {
            all.push(ToHead::WalltimeOver);
        }
        all.extend(self.fences.iter().map(|(number, blob)| ToHead::Fence { number: *number, blob: blob.clone() }));
        all.extend(self.aborted.iter().map(|(code, why)| ToHead::Aborted { code: *code, why: why.clone() }));
        all.extend(self.ended.iter().map(|(rank, outcome)| ToHead::RankEnded { rank: *rank, outcome: (*outcome).into() }));
        all.push(ToHead::Synced);
        all.into_iter()
    }

    /// Tells the head. One that does not keep up is let go: it comes again and hears everything.
    fn tell(&mut self, message: ToHead) {
        if let Some(head) = &self.head
            && head.try_send(message).is_err()
        {
            self.head = None;
        }
    }
}
