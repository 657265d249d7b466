//! One agent's place in a launch's tree: what is below it, gathered and told.
//!
//! ```text
//!        head task, or the stream to the parent
//!              ▲ Heard          │ tell
//!        ╭─────┴────────────────▼─────╮
//!        │ Branch: FenceHub, Routes,  │
//!        │ the last word to all       │
//!        ╰──▲────────▲────────▲───────╯
//!      this node   child    child      a line each
//! ```
//!
//! [`lattice_node::branch::Routes`] decides which lines there are.

use super::line::{Around, LineTask, News, Waiting};
use super::told::Told;
use lattice_mesh::branch::Up;
use lattice_mesh::frame::FrameError;
use lattice_mesh::input::WirePiece;
use lattice_mesh::launch::{ToHead, ToPart};
use lattice_model::Stdin;
use lattice_model::input::{Pushed, Taken, Window};
use lattice_node::branch::{RouteAction, RouteEvent, Routes};
use lattice_node::fence::OpenFence;
use lattice_pmi::{Contributed, FenceHub, FenceMerged, Subtree};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// News waiting for a branch.
const QUEUE: usize = 256;

/// What is more than a branch's own affair.
#[derive(Debug)]
pub(super) enum Heard {
    /// A part says this.
    Said { part: u32, said: ToHead },
    /// All below came to a fence.
    Whole(FenceMerged),
    /// A fence cannot be, and why.
    Refused(String),
    /// This part's agent is not reached by the one above it.
    Unreached { part: u32 },
    /// A child has another parent: what stands here is old.
    Replaced,
}

pub(super) struct Branch {
    pub(super) around: Around,
    /// Since when the branch's times count.
    began: Instant,
    routes: Routes,
    /// By their numbers among the routes.
    lines: BTreeMap<u64, Line>,
    hub: FenceHub,
    /// The last fence that the whole launch has done.
    done: Option<Arc<Told>>,
    /// That the launch is brought down.
    abort: Option<Arc<Told>>,
    /// Which parts have ranks that read standard input.
    readers: Readers,
    /// Parts in all.
    parts: u32,
    /// What of it not all of them took.
    input: Window<Arc<Told>>,
    sender: mpsc::Sender<(u64, News)>,
    news: mpsc::Receiver<(u64, News)>,
}

struct Line {
    subtree: Subtree,
    queue: mpsc::Sender<Waiting>,
    stop: CancellationToken,
    /// How often it was connected.
    connections: u64,
    /// Of a fence that the subtree's agent waits for itself: who did not come.
    absent: Option<(u32, Vec<u32>)>,
    /// How much of standard input its ranks took, as the present connection told.
    taken: Option<Taken>,
}

/// Parts that have ranks which read standard input.
enum Readers {
    None,
    Part(u32),
    All,
}

impl Readers {
    fn of(around: &Around) -> Self {
        match around.spec.stdin() {
            Err(_) | Ok(Stdin::None) => Self::None,
            Ok(Stdin::All) => Self::All,
            Ok(Stdin::Rank(rank)) => {
                let run = around.spec.runs().into_iter().find(|run| (run.first..run.first + run.count).contains(&rank));
                run.and_then(|run| u32::try_from(run.node).ok()).map_or(Self::None, Self::Part)
            }
        }
    }

    fn are_in(&self, subtree: Subtree) -> bool {
        match self {
            Self::None => false,
            Self::Part(part) => subtree.contains(Subtree::single(*part)),
            Self::All => true,
        }
    }
}

impl Line {
    /// What of standard input outlives a connection: that nobody below reads it any more.
    fn over(&self) -> Option<Taken> {
        self.taken.filter(|taken| *taken == Taken::Over)
    }

    fn has(&self, part: u32) -> bool {
        self.subtree.contains(Subtree::single(part))
    }
}

impl Branch {
    /// A branch with no lines yet.
    pub(super) fn new(around: Around, subtree: Subtree) -> Self {
        let (sender, news) = mpsc::channel(QUEUE);
        let (done, abort) = (None, None);
        let (readers, input) = (Readers::of(&around), Window::default());
        let (hub, parts) = (FenceHub::new(subtree), subtree.len());
        let own = around.spec.nodes.iter().position(|ranks| ranks.node == around.handles.me);
        let routes = Routes::new(around.fanout, own.and_then(|part| u32::try_from(part).ok()));
        Self { around, began: Instant::now(), routes, lines: BTreeMap::new(), hub, done, abort, readers, parts, input, sender, news }
    }

    /// Begins to serve a subtree from its first part: that part alone, and each subtree below it.
    pub(super) fn serve_below(&mut self, subtree: Subtree) {
        self.route(RouteEvent::ServeBelow { subtree });
    }

    /// Begins to serve a subtree.
    pub(super) fn serve(&mut self, subtree: Subtree) {
        self.route(RouteEvent::Serve { subtree });
    }

    /// In milliseconds since the branch began.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Does what the routes decide. Gives the parts of which the head is to be told that they are not reached.
    fn route(&mut self, event: RouteEvent) -> Vec<u32> {
        let mut actions = Vec::new();
        self.routes.handle(self.now_ms(), event, &mut actions);
        let mut unreached = Vec::new();
        let launch = self.around.spec.id;
        for action in actions {
            match action {
                RouteAction::Open { line, subtree } => self.open(line, subtree),
                RouteAction::Close { line } => {
                    if let Some(line) = self.lines.remove(&line) {
                        line.stop.cancel();
                    }
                }
                RouteAction::LogGoneRound { part } => {
                    if let Some(node) = self.around.node(part) {
                        tracing::info!(%launch, %node, "is away: those below it are served from here");
                    }
                }
                RouteAction::LogTakenOver { part, parent } => {
                    if let (Some(node), Some(parent)) = (self.around.node(part), self.around.node(parent)) {
                        tracing::warn!(%launch, %node, %parent, "the launch's head reaches a node that its parent in the tree does not reach, and serves it itself: look at the network between the two");
                    }
                }
                RouteAction::NotifyUnreached { part } => unreached.push(part),
            }
        }
        unreached
    }

    fn open(&mut self, number: u64, subtree: Subtree) {
        let stop = self.around.stop.child_token();
        let task = LineTask { number, around: self.around.clone(), subtree, news: self.sender.clone() };
        let queue = task.begin(stop.clone());
        self.lines.insert(number, Line { subtree, queue, stop, connections: 0, absent: None, taken: None });
    }

    /// The next that a line tells.
    pub(super) async fn news(&mut self) -> Option<(u64, News)> {
        self.news.recv().await
    }

    /// Takes it. What a line says that was replaced meanwhile is old.
    pub(super) fn hear(&mut self, number: u64, news: News) -> Option<Heard> {
        let line = self.lines.get_mut(&number)?;
        match news {
            News::Connected => {
                line.connections += 1;
                (line.absent, line.taken) = (None, line.over());
                self.route(RouteEvent::Connected { line: number });
                if let Some(abort) = self.abort.clone() {
                    self.tell_line(number, abort);
                }
                None
            }
            News::Broken(how) => {
                line.taken = line.over();
                self.route(RouteEvent::Broken { line: number, how });
                None
            }
            News::Said(up) => self.said(number, up),
        }
    }

    fn said(&mut self, number: u64, up: Up) -> Option<Heard> {
        let line = self.lines.get_mut(&number)?;
        let of_it = |part: &u32| line.has(*part);
        match up {
            Up::Serving => None,
            Up::Said { part, said: ToHead::Begun } => {
                // One that was told before it had anything to bring down.
                if let Some(abort) = self.abort.clone() {
                    self.tell_line(number, abort);
                }
                Some(Heard::Said { part, said: ToHead::Begun })
            }
            Up::Said { part, said } => {
                let heard = of_it(&part).then_some(Heard::Said { part, said })?;
                if let Heard::Said { said: ToHead::Lost { .. }, .. } = heard
                    && line.subtree.is_single()
                {
                    // Nobody reads there any more.
                    self.took(number, Taken::Over, false);
                }
                Some(heard)
            }
            Up::Input { taken, again } => {
                self.took(number, taken.into(), again);
                None
            }
            Up::Fence { number: fence, blob } => {
                let contributed = self.hub.contribute(line.subtree, fence, blob);
                match contributed {
                    Ok(Contributed::Waits) => None,
                    Ok(Contributed::Whole(merged)) => Some(Heard::Whole(merged)),
                    Ok(Contributed::Before) => {
                        if let Some(done) = self.done.clone().filter(|done| done.fence() == Some(fence)) {
                            self.tell_line(number, done);
                        }
                        None
                    }
                    Err(refused) => Some(Heard::Refused(self.around.refused(&refused))),
                }
            }
            Up::Away { parts } => {
                self.route(RouteEvent::Away { line: number, parts });
                None
            }
            Up::Absent { number, mut parts } => {
                parts.retain(of_it);
                line.absent = Some((number, parts));
                None
            }
            Up::Unreached { part } => of_it(&part).then_some(Heard::Unreached { part }),
            Up::Replaced => Some(Heard::Replaced),
            Up::NotHere { why } => {
                // The line asks again, later each time. What the node's share came to the quorum says, by this node's own list.
                let (launch, node) = (self.around.spec.id, self.around.node(line.subtree.first));
                tracing::debug!(%launch, ?node, %why, "a part of a launch is not there now");
                None
            }
        }
    }

    /// Tells everything below, and of a call its part alone. What is broken hears what it has to when it is there again; but that all is over must reach it.
    pub(super) fn tell(&mut self, told: &Arc<Told>) {
        match &told.message {
            ToPart::FenceDone { .. } => self.done = Some(Arc::clone(told)),
            ToPart::Abort { .. } => self.abort = Some(Arc::clone(told)),
            ToPart::Call(call) => {
                let to = self.lines.iter().find(|(number, line)| line.has(call.to) && self.routes.is_connected(**number));
                if let Some(number) = to.map(|(number, _)| *number) {
                    self.tell_line(number, Arc::clone(told));
                }
                return;
            }
            ToPart::NameAbsent | ToPart::Forget | ToPart::Input(_) => {}
        }
        let over = matches!(told.message, ToPart::Forget);
        let numbers: Vec<u64> = self.lines.keys().copied().filter(|number| over || self.routes.is_connected(*number)).collect();
        for number in numbers {
            self.tell_line(number, Arc::clone(told));
        }
        if matches!(told.message, ToPart::Abort { .. }) {
            // Nobody runs on because the agent between is away: who is reached hears it when the line is there.
            self.route(RouteEvent::BroughtDown);
        }
    }

    /// Whether another piece of standard input can be taken.
    pub(super) fn has_room(&self) -> bool {
        self.input.has_room()
    }

    /// Passes a piece of standard input on to those lines that have told what they have; the others get it when they do.
    pub(super) fn feed(&mut self, piece: &WirePiece, told: &Arc<Told>) -> Result<(), FrameError> {
        match self.input.push(piece.place()?, Arc::clone(told)) {
            Pushed::Astray => return Err(FrameError::Malformed),
            Pushed::Known => return Ok(()),
            Pushed::New => {}
        }
        let reading = self.lines.iter().filter(|(_, line)| matches!(line.taken, Some(Taken::UpTo(_))));
        for number in reading.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.tell_line(number, Arc::clone(told));
        }
        self.let_go();
        Ok(())
    }

    /// A line tells how much it took. Where that is the first that its connection tells, or it asks, it is sent what is beyond.
    fn took(&mut self, number: u64, taken: Taken, again: bool) {
        let Some(line) = self.lines.get_mut(&number).filter(|line| self.readers.are_in(line.subtree)) else { return };
        let is_first = line.taken.replace(taken).is_none();
        if is_first || again {
            for piece in self.input.beyond(taken).cloned().collect::<Vec<_>>() {
                self.tell_line(number, piece);
            }
        }
        self.let_go();
    }

    /// What came may be sent for the sake of others, and be taken here long since.
    fn let_go(&mut self) {
        if let Some(all) = self.taken() {
            self.input.let_go(all);
        }
    }

    /// How much of standard input every rank below took that reads it; `None` while not all such parts have told.
    pub(super) fn taken(&self) -> Option<Taken> {
        // A head begins with its own part alone.
        let served: u32 = self.lines.values().map(|line| line.subtree.len()).sum();
        let reading = self.lines.values().filter(|line| self.readers.are_in(line.subtree));
        let taken: Option<Vec<Taken>> = reading.map(|line| line.taken).collect();
        taken.filter(|_| served == self.parts)?.into_iter().min()
    }

    /// A line that takes no more is begun anew: whoever comes back hears everything.
    fn tell_line(&mut self, number: u64, told: Arc<Told>) {
        let Some(line) = self.lines.get(&number) else { return };
        if line.queue.try_send(Waiting { told, connection: line.connections }).is_err() {
            self.route(RouteEvent::Full { line: number });
        }
    }

    /// Goes round what has been away for too long. Gives the parts of which the head is to be told that they are not reached.
    pub(super) fn look(&mut self) -> Vec<u32> {
        self.route(RouteEvent::Clock)
    }

    /// From now on a part that is reached from here is served from here, with those below it.
    pub(super) fn take_over(&mut self, part: u32) {
        self.route(RouteEvent::Reached { part });
    }

    /// Parts that cannot be reached now, or have not told all yet.
    pub(super) fn away(&self) -> Vec<u32> {
        self.routes.away()
    }

    /// Whether [`Self::look`] and [`Self::waiting_for`] would find nothing until something is heard.
    pub(super) fn is_at_rest(&self) -> bool {
        self.hub.is_at_rest() && self.routes.is_whole()
    }

    /// The open fence, for the launch's head; `None` while a node is away.
    pub(super) fn open_fence(&self) -> Option<OpenFence> {
        let (number, missing) = self.waiting_for().filter(|_| self.away().is_empty())?;
        Some(OpenFence { number, missing, carries: self.hub.carries(number) })
    }

    /// The open fence, and who did not come to it, as exactly as those below know.
    pub(super) fn waiting_for(&self) -> Option<(u32, Vec<u32>)> {
        let (number, mut missing) = self.hub.waiting_for()?;
        for line in self.lines.values() {
            if let Some((_, absent)) = line.absent.as_ref().filter(|(fence, _)| *fence == number) {
                missing.retain(|part| !line.subtree.contains(Subtree::single(*part)) || absent.contains(part));
            }
        }
        Some((number, missing))
    }

    /// Leaves the lines to themselves until each has carried what is queued.
    pub(super) async fn carried(mut self) {
        self.lines.clear();
        drop(self.sender);
        while self.news.recv().await.is_some() {}
    }
}
