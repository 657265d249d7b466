//! One agent's place in a launch's tree: what is below it, gathered and told.
//!
//! ```text
//!        head task, or the stream to the parent
//!              ▲ Heard          │ tell
//!        ╭─────┴────────────────▼─────╮
//!        │ Branch: FenceHub, who is   │
//!        │ away, the last word to all │
//!        ╰──▲────────▲────────▲───────╯
//!      this node   child    child      a line each
//! ```
//!
//! A child whose agent is away for a moment is waited for. One that stays away is gone round: its own children are served
//! from here until this branch ends, and it alone when it is back. Of one that is not reached for long the head is told: where
//! it reaches it itself, it takes it from whoever is above it.

use super::line::{Around, Broken, LineTask, News, Waiting};
use super::told::Told;
use crate::mesh::branch::Up;
use crate::mesh::frame::FrameError;
use crate::mesh::input::WirePiece;
use crate::mesh::launch::{ToHead, ToPart};
use lattice_model::Stdin;
use lattice_model::input::{Pushed, Taken, Window};
use lattice_pmi::{Contributed, FenceHub, FenceMerged, Subtree};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// News waiting for a branch.
const QUEUE: usize = 256;
/// How long a child may be away before it is gone round. An agent that is restarted is often back by then.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same where no other node is reached: then it is this one's network, and what is gone round stays so.
const ALONE: Duration = Duration::from_secs(30);

/// How long a part is not reached before the head is told, and before it is told again.
const UNREACHED: Duration = Duration::from_secs(10);

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
    lines: BTreeMap<u64, Line>,
    numbers: u64,
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
    /// When it was served last, or begun.
    served: Instant,
    link: Link,
    /// How often it was connected.
    connections: u64,
    /// Of a fence that the subtree's agent waits for itself: who did not come.
    absent: Option<(u32, Vec<u32>)>,
    /// When it was told last that it is not reached.
    unreached: Option<Instant>,
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

enum Link {
    Broken {
        since: Instant,
    },
    /// Of the subtree, who cannot be reached.
    Connected {
        away: Vec<u32>,
    },
}

impl Branch {
    /// A branch with no lines yet.
    pub(super) fn new(around: Around, subtree: Subtree) -> Self {
        let (sender, news) = mpsc::channel(QUEUE);
        let (done, abort) = (None, None);
        let (readers, input) = (Readers::of(&around), Window::default());
        let (hub, parts) = (FenceHub::new(subtree), subtree.len());
        Self { around, lines: BTreeMap::new(), numbers: 0, hub, done, abort, readers, parts, input, sender, news }
    }

    /// Begins to serve a subtree from its first part: that part alone, and each subtree below it.
    pub(super) fn serve_below(&mut self, subtree: Subtree) {
        self.serve(Subtree::single(subtree.first));
        for child in subtree.children(self.around.fanout) {
            self.serve(child);
        }
    }

    /// Begins to serve a subtree.
    pub(super) fn serve(&mut self, subtree: Subtree) {
        self.numbers += 1;
        let number = self.numbers;
        let stop = self.around.stop.child_token();
        let task = LineTask { number, around: self.around.clone(), subtree, news: self.sender.clone() };
        let queue = task.begin(stop.clone());
        let served = Instant::now();
        let link = Link::Broken { since: served };
        let line = Line { subtree, queue, stop, served, link, connections: 0, absent: None, unreached: None, taken: None };
        self.lines.insert(number, line);
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
                line.link = Link::Connected { away: line.subtree.parts().collect() };
                line.connections += 1;
                (line.absent, line.unreached, line.taken) = (None, None, line.over());
                if let Some(abort) = self.abort.clone() {
                    self.tell_line(number, abort);
                }
                None
            }
            News::Broken(broken) => {
                if broken == Broken::Served {
                    line.served = Instant::now();
                }
                (line.link, line.taken) = (Link::Broken { since: line.served }, line.over());
                if broken == Broken::Refused {
                    self.go_round(number);
                }
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
            Up::Away { mut parts } => {
                parts.retain(of_it);
                line.link = Link::Connected { away: parts };
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
                let to = self.lines.iter().find(|(_, line)| line.has(call.to) && matches!(line.link, Link::Connected { .. }));
                if let Some(number) = to.map(|(number, _)| *number) {
                    self.tell_line(number, Arc::clone(told));
                }
                return;
            }
            ToPart::NameAbsent | ToPart::Forget | ToPart::Input(_) => {}
        }
        let over = matches!(told.message, ToPart::Forget);
        let heard = self.lines.iter().filter(|(_, line)| over || matches!(line.link, Link::Connected { .. }));
        let numbers: Vec<u64> = heard.map(|(number, _)| *number).collect();
        for number in numbers {
            self.tell_line(number, Arc::clone(told));
        }
        if matches!(told.message, ToPart::Abort { .. }) {
            // Nobody runs on because the agent between is away: who is reached hears it when the line is there.
            let broken = self.lines.iter().filter(|(_, line)| matches!(line.link, Link::Broken { .. }));
            let broken: Vec<u64> = broken.map(|(number, _)| *number).collect();
            broken.into_iter().for_each(|number| self.go_round(number));
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
            let subtree = line.subtree;
            self.drop_line(number);
            self.serve(subtree);
        }
    }

    fn drop_line(&mut self, number: u64) {
        if let Some(line) = self.lines.remove(&number) {
            line.stop.cancel();
        }
    }

    /// Goes round what has been away for too long. Gives the parts of which the head is to be told that they are not reached.
    pub(super) fn look(&mut self, now: Instant) -> Vec<u32> {
        let others = self.lines.values().filter(|line| self.around.node(line.subtree.first) != Some(&self.around.handles.me));
        let is_alone = !others.into_iter().any(|line| matches!(line.link, Link::Connected { .. }));
        let patience = if is_alone { ALONE } else { PATIENCE };
        let late = |line: &Line| match line.link {
            Link::Broken { since } => !line.subtree.is_single() && now.saturating_duration_since(since) > patience,
            Link::Connected { .. } => false,
        };
        let numbers: Vec<u64> = self.lines.iter().filter(|(_, line)| late(line)).map(|(number, _)| *number).collect();
        for number in numbers {
            self.go_round(number);
        }
        let long = |at: Instant| now.saturating_duration_since(at) > UNREACHED;
        let mut unreached = Vec::new();
        for line in self.lines.values_mut() {
            let is_away = matches!(line.link, Link::Broken { since } if long(since));
            if is_away && line.unreached.is_none_or(long) {
                line.unreached = Some(now);
                unreached.push(line.subtree.first);
            }
        }
        unreached
    }

    fn go_round(&mut self, number: u64) {
        let Some(line) = self.lines.get(&number).filter(|line| !line.subtree.is_single()) else { return };
        let subtree = line.subtree;
        if let Some(node) = self.around.node(subtree.first) {
            tracing::info!(launch = %self.around.spec.id, %node, "is away: those below it are served from here");
        }
        self.drop_line(number);
        self.serve_below(subtree);
    }

    /// From now on a part that is reached from here is served from here, with those below it: whoever is above it does not reach it,
    /// and still says so.
    pub(super) fn take_over(&mut self, part: u32) {
        let away = |link: &Link| matches!(link, Link::Connected { away } if away.contains(&part));
        let above = |line: &Line| line.has(part) && line.subtree.first != part && away(&line.link);
        let Some((number, subtree)) = self.lines.iter().find(|(_, line)| above(line)).map(|(number, line)| (*number, line.subtree)) else {
            return;
        };
        let fanout = self.around.fanout;
        if let (Some(node), Some(parent)) = (self.around.node(part), subtree.parent_of(part, fanout).and_then(|p| self.around.node(p))) {
            let launch = self.around.spec.id;
            tracing::warn!(%launch, %node, %parent, "the launch's head reaches a node that its parent in the tree does not reach, and serves it itself: look at the network between the two");
        }
        self.drop_line(number);
        for piece in subtree.down_to(part, fanout) {
            self.serve(piece);
        }
    }

    /// Parts that cannot be reached now, or have not told all yet.
    pub(super) fn away(&self) -> Vec<u32> {
        let of = |line: &Line| match &line.link {
            Link::Broken { .. } => line.subtree.parts().collect(),
            Link::Connected { away } => away.clone(),
        };
        self.lines.values().flat_map(of).collect()
    }

    /// Whether [`Self::look`] and [`Self::waiting_for`] would find nothing until something is heard.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_whole = |line: &Line| matches!(&line.link, Link::Connected { away } if away.is_empty());
        self.hub.is_at_rest() && self.lines.values().all(is_whole)
    }

    /// Whether a fence brings anything to anybody, as far as it is known here.
    pub(super) fn carries(&self, fence: u32) -> bool {
        self.hub.carries(fence)
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
