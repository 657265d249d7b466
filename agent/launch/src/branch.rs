//! One agent in a launch's tree: it merges the messages from below and forwards the messages from
//! above.
//!
//! ```text
//!        head task, or the stream to the parent
//!              ▲ BranchEvent    │ send
//!        ╭─────┴────────────────▼─────╮
//!        │ Branch: FenceHub, Routes,  │
//!        │ last fence, abort, input   │
//!        ╰──▲────────▲────────▲───────╯
//!      this node   child    child      one line each
//! ```
//!
//! [`lattice_node::branch::Routes`] decides which lines exist.

use super::down_frame::DownFrame;
use super::line::{Around, LineEvent, LineTask, Waiting};
use lattice_mesh::branch::Up;
use lattice_mesh::frame::FrameError;
use lattice_mesh::input::WireInputChunk;
use lattice_mesh::launch::{ToHead, ToPart};
use lattice_model::input::{Pushed, Taken, Window};
use lattice_model::{Stdin, millis};
use lattice_node::branch::{RouteAction, RouteEvent, Routes};
use lattice_node::fence::OpenFence;
use lattice_pmi::{Contributed, FenceHub, FenceMerged, Subtree};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Largest number of queued events from a branch's lines.
const PARENT_QUEUE_LEN: usize = 256;

/// An event that the branch cannot handle itself: its owner must.
#[derive(Debug)]
pub(super) enum BranchEvent {
    /// A message of this part.
    FromPart { part: u32, message: ToHead },
    /// All parts of the subtree, including this node's, have reached a fence.
    Whole(FenceMerged),
    /// A fence is impossible; the reason is text for people.
    Refused(String),
    /// The agent above this part cannot reach the part's agent.
    Unreached { part: u32 },
    /// A child has another parent now: this branch is outdated.
    Replaced,
}

pub(super) struct Branch {
    pub(super) around: Around,
    /// Start of the branch's clock.
    began: Instant,
    routes: Routes,
    /// By the numbers that [`Routes`] assigns.
    lines: BTreeMap<u64, Line>,
    hub: FenceHub,
    /// The result of the last fence that the whole launch has completed.
    done: Option<Arc<DownFrame>>,
    /// The abort, if the launch is being aborted.
    abort: Option<Arc<DownFrame>>,
    /// Which parts have ranks that read standard input.
    readers: Readers,
    /// Number of parts of the subtree.
    parts: u32,
    /// Pieces of standard input that not all reading parts have taken yet.
    input: Window<Arc<DownFrame>>,
    sender: mpsc::Sender<(u64, LineEvent)>,
    events: mpsc::Receiver<(u64, LineEvent)>,
}

struct Line {
    subtree: Subtree,
    queue: mpsc::Sender<Waiting>,
    stop: CancellationToken,
    /// Number of connections so far.
    connections: u64,
    /// The fence in which the subtree waits, and the parts that have not reached it, as the
    /// subtree's agent reported them.
    absent: Option<(u32, Vec<u32>)>,
    /// How much of standard input its ranks have taken, as reported on the present connection. Only
    /// `Closed` is kept across connections.
    taken: Option<Taken>,
}

/// The parts that have ranks which read standard input.
enum Readers {
    None,
    Part(u32),
    /// This part and all after it.
    From(u32),
}

impl Readers {
    fn of(around: &Around) -> Self {
        match around.spec.stdin() {
            Err(_) | Ok(Stdin::None) => Self::None,
            Ok(Stdin::All) => Self::From(u32::from(around.spec.has_empty_head())),
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
            Self::From(first) => subtree.end > *first,
        }
    }
}

impl Line {
    /// `Closed`, if no rank of the subtree reads standard input any more. Other reports are outdated
    /// once the connection breaks.
    fn over(&self) -> Option<Taken> {
        self.taken.filter(|taken| *taken == Taken::Closed)
    }

    fn has(&self, part: u32) -> bool {
        self.subtree.contains(Subtree::single(part))
    }
}

impl Branch {
    /// A branch with no lines yet.
    pub(super) fn new(around: Around, subtree: Subtree) -> Self {
        let (sender, events) = mpsc::channel(PARENT_QUEUE_LEN);
        let (done, abort) = (None, None);
        let (readers, input) = (Readers::of(&around), Window::default());
        let (mut hub, parts) = (FenceHub::new(subtree), subtree.len());
        if around.spec.has_empty_head() {
            hub.excuse_head();
        }
        let own = around.spec.nodes.iter().position(|ranks| ranks.node == around.handles.me);
        let routes = Routes::new(around.fanout, own.and_then(|part| u32::try_from(part).ok()));
        Self { around, began: Instant::now(), routes, lines: BTreeMap::new(), hub, done, abort, readers, parts, input, sender, events }
    }

    /// Begins to serve a subtree from its first part: a line to that part alone, and one to each
    /// subtree below it.
    pub(super) fn serve_below(&mut self, subtree: Subtree) {
        self.route(RouteEvent::ServeBelow { subtree });
    }

    /// Begins to serve a subtree over one line.
    pub(super) fn serve(&mut self, subtree: Subtree) {
        self.route(RouteEvent::Serve { subtree });
    }

    /// Milliseconds since the branch began.
    pub(super) fn now_ms(&self) -> u64 {
        millis(self.began.elapsed())
    }

    /// Passes an event to the routes and executes their actions. Returns the parts to report to the
    /// head as unreachable.
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
                        tracing::info!(%launch, %node, "a node is unreachable: this agent serves the nodes below it");
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
        let task = LineTask { number, around: self.around.clone(), subtree, events: self.sender.clone() };
        let queue = task.begin(stop.clone());
        self.lines.insert(number, Line { subtree, queue, stop, connections: 0, absent: None, taken: None });
    }

    /// Waits for the next event of a line.
    pub(super) async fn next_event(&mut self) -> Option<(u64, LineEvent)> {
        self.events.recv().await
    }

    /// Handles an event of a line. An event of a line that has been replaced is ignored.
    pub(super) fn handle(&mut self, number: u64, event: LineEvent) -> Option<BranchEvent> {
        let line = self.lines.get_mut(&number)?;
        match event {
            LineEvent::Connected => {
                line.connections += 1;
                (line.absent, line.taken) = (None, line.over());
                self.route(RouteEvent::Connected { line: number });
                if let Some(abort) = self.abort.clone() {
                    self.send_to_line(number, abort);
                }
                None
            }
            LineEvent::Broken(how) => {
                line.taken = line.over();
                self.route(RouteEvent::Broken { line: number, how });
                None
            }
            LineEvent::Received(up) => self.handle_up(number, up),
        }
    }

    fn handle_up(&mut self, number: u64, up: Up) -> Option<BranchEvent> {
        let line = self.lines.get_mut(&number)?;
        let is_in_subtree = |part: &u32| line.has(*part);
        match up {
            Up::Serving => None,
            Up::FromPart { part, message: ToHead::Begun } => {
                // The abort that was sent before may have arrived when the part had no rank yet.
                if let Some(abort) = self.abort.clone() {
                    self.send_to_line(number, abort);
                }
                Some(BranchEvent::FromPart { part, message: ToHead::Begun })
            }
            Up::FromPart { part, message } => {
                let event = is_in_subtree(&part).then_some(BranchEvent::FromPart { part, message })?;
                if let BranchEvent::FromPart { message: ToHead::Lost { .. }, .. } = event
                    && line.subtree.is_single()
                {
                    // No rank of the lost part reads input any more.
                    self.record_taken(number, Taken::Closed, false);
                }
                Some(event)
            }
            Up::Input { taken, again } => {
                self.record_taken(number, taken.into(), again);
                None
            }
            Up::Fence { number: fence, blob } => {
                let contributed = self.hub.contribute(line.subtree, fence, blob);
                match contributed {
                    Ok(Contributed::Waits) => None,
                    Ok(Contributed::Whole(merged)) => Some(BranchEvent::Whole(merged)),
                    Ok(Contributed::Before) => {
                        if let Some(done) = self.done.clone().filter(|done| done.fence() == Some(fence)) {
                            self.send_to_line(number, done);
                        }
                        None
                    }
                    Err(refused) => Some(BranchEvent::Refused(self.around.refused(&refused))),
                }
            }
            Up::UnreachableParts { parts } => {
                self.route(RouteEvent::UnreachableParts { line: number, parts });
                None
            }
            Up::Absent { number, mut parts } => {
                parts.retain(is_in_subtree);
                line.absent = Some((number, parts));
                None
            }
            Up::Unreached { part } => is_in_subtree(&part).then_some(BranchEvent::Unreached { part }),
            Up::Replaced => Some(BranchEvent::Replaced),
            Up::NotHere { why } => {
                // The child then closes the stream, and the line connects again or is bypassed. The
                // quorum decides about the allocation, and this agent gets the decision with its
                // desired list.
                let (launch, node) = (self.around.spec.id, self.around.node(line.subtree.first));
                tracing::debug!(%launch, ?node, %why, "a part of a launch is not there now");
                None
            }
        }
    }

    /// Sends a message to all connected lines, a call only to the line of its part. A line that
    /// reconnects gets the last fence, the abort and the input again; a lost call is repeated by
    /// its caller. Only `Forget` is queued for broken lines as well, because nothing repeats it.
    pub(super) fn send(&mut self, down_frame: &Arc<DownFrame>) {
        match &down_frame.message {
            ToPart::FenceDone { .. } => self.done = Some(Arc::clone(down_frame)),
            ToPart::Abort { .. } => self.abort = Some(Arc::clone(down_frame)),
            ToPart::Call(call) => {
                let to = self.lines.iter().find(|(number, line)| line.has(call.to) && self.routes.is_connected(**number));
                if let Some(number) = to.map(|(number, _)| *number) {
                    self.send_to_line(number, Arc::clone(down_frame));
                }
                return;
            }
            ToPart::NameAbsent | ToPart::Forget | ToPart::Input(_) => {}
        }
        let over = matches!(down_frame.message, ToPart::Forget);
        let numbers: Vec<u64> = self.lines.keys().copied().filter(|number| over || self.routes.is_connected(*number)).collect();
        for number in numbers {
            self.send_to_line(number, Arc::clone(down_frame));
        }
        if matches!(down_frame.message, ToPart::Abort { .. }) {
            // No rank may continue because an agent in between is unreachable: the routes bypass
            // that agent, and each new line gets the abort.
            self.route(RouteEvent::BroughtDown);
        }
    }

    /// Whether the window has space for another piece of standard input.
    pub(super) fn has_room(&self) -> bool {
        self.input.has_room()
    }

    /// Sends a piece of standard input on the lines that have reported their position; the other
    /// lines get it when they report. An error: the piece is invalid, or does not follow the
    /// previous one.
    pub(super) fn feed(&mut self, piece: &WireInputChunk, down_frame: &Arc<DownFrame>) -> Result<(), FrameError> {
        match self.input.push(piece.place()?, Arc::clone(down_frame)) {
            Pushed::Astray => return Err(FrameError::Malformed),
            Pushed::Known => return Ok(()),
            Pushed::New => {}
        }
        let reading = self.lines.iter().filter(|(_, line)| matches!(line.taken, Some(Taken::UpTo(_))));
        for number in reading.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.send_to_line(number, Arc::clone(down_frame));
        }
        self.drop_taken();
        Ok(())
    }

    /// Handles a line's report of how much its ranks have taken. If it is the first report of its
    /// connection, or the line asks for it (`again`), sends the pieces that follow.
    fn record_taken(&mut self, number: u64, taken: Taken, again: bool) {
        let Some(line) = self.lines.get_mut(&number).filter(|line| self.readers.are_in(line.subtree)) else { return };
        let is_first = line.taken.replace(taken).is_none();
        if is_first || again {
            for piece in self.input.beyond(taken).cloned().collect::<Vec<_>>() {
                self.send_to_line(number, piece);
            }
        }
        self.drop_taken();
    }

    /// Drops the pieces that all reading parts have taken. If no part here reads any more, that
    /// includes a new piece.
    fn drop_taken(&mut self) {
        if let Some(all) = self.taken() {
            self.input.let_go(all);
        }
    }

    /// How much of standard input every reading rank of the subtree has taken; `None` until all
    /// parts with such ranks have reported, or if there are none.
    pub(super) fn taken(&self) -> Option<Taken> {
        // A head serves only its own part at first.
        let served: u32 = self.lines.values().map(|line| line.subtree.len()).sum();
        let reading = self.lines.values().filter(|line| self.readers.are_in(line.subtree));
        let taken: Option<Vec<Taken>> = reading.map(|line| line.taken).collect();
        taken.filter(|_| served == self.parts)?.into_iter().min()
    }

    /// Queues a message for a line. If the queue is full, the line is replaced by a new one, which
    /// gets what a reconnected line gets (see [`Self::send`]); a `Forget` is then lost.
    fn send_to_line(&mut self, number: u64, down_frame: Arc<DownFrame>) {
        let Some(line) = self.lines.get(&number) else { return };
        if line.queue.try_send(Waiting { down_frame, connection: line.connections }).is_err() {
            self.route(RouteEvent::Full { line: number });
        }
    }

    /// Bypasses agents that have been unreachable for too long. Returns the parts to report to the
    /// head as unreachable.
    pub(super) fn check(&mut self) -> Vec<u32> {
        self.route(RouteEvent::Clock)
    }

    /// The head reaches this part itself: if the agent above still reports the part as unreachable,
    /// serves it and the parts below it over a line of its own.
    pub(super) fn take_over(&mut self, part: u32) {
        self.route(RouteEvent::Reached { part });
    }

    /// Parts that are unreachable now, or have not reported everything yet.
    pub(super) fn unreachable(&self) -> Vec<u32> {
        self.routes.unreachable()
    }

    /// Whether [`Self::check`] and [`Self::waiting_for`] have nothing to find until the next
    /// message.
    pub(super) fn is_at_rest(&self) -> bool {
        self.hub.is_at_rest() && self.routes.is_whole()
    }

    /// The open fence, for the launch's head; `None` if there is none, or while a part is
    /// unreachable or has not reported everything.
    pub(super) fn open_fence(&self) -> Option<OpenFence> {
        let (number, missing) = self.waiting_for().filter(|_| self.unreachable().is_empty())?;
        Some(OpenFence { number, missing, carries: self.hub.carries(number) })
    }

    /// The open fence and the parts that have not reached it, as precisely as the agents below
    /// know.
    pub(super) fn waiting_for(&self) -> Option<(u32, Vec<u32>)> {
        let (number, mut missing) = self.hub.waiting_for()?;
        for line in self.lines.values() {
            if let Some((_, absent)) = line.absent.as_ref().filter(|(fence, _)| *fence == number) {
                missing.retain(|part| !line.subtree.contains(Subtree::single(*part)) || absent.contains(part));
            }
        }
        Some((number, missing))
    }

    /// Waits until each line has sent its queued messages, or was stopped.
    pub(super) async fn flush(mut self) {
        self.lines.clear();
        drop(self.sender);
        while self.events.recv().await.is_some() {}
    }
}
