//! Serves a subtree of a launch whose head is on another node: forwards the parent's messages down,
//! and the messages of its parts up.
//!
//! The branch lives as long as its parent's stream. After the parent reconnects, all parts below
//! send their state again; the ranks notice nothing.

use super::branch::{Branch, BranchEvent};
use super::down_frame::DownFrame;
use super::handles::Handles;
use super::line::Around;
use super::times::{CHECK_INTERVAL, FORGET_AFTER};
use lattice_mesh::branch::{BranchOpen, Up};
use lattice_mesh::frame::{self, Frame, FrameError};
use lattice_mesh::launch::{ToHead, ToPart};
use lattice_model::input::Taken;
use lattice_model::{AllocationId, Epoch, LaunchId};
use lattice_pki::identity::Caller;
use parking_lot::Mutex;
use quinn::{RecvStream, SendStream};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How many messages from the parent are queued.
const LINE_QUEUE_LEN: usize = 16;

/// For each launch, the present parent of this node's part: the one that connected last.
#[derive(Clone, Default)]
pub struct Parents(Arc<Mutex<BTreeMap<LaunchId, CancellationToken>>>);

impl Parents {
    /// Registers a new parent and cancels the registration of the earlier one.
    pub fn take(&self, launch: LaunchId) -> Parent {
        let stop = CancellationToken::new();
        let mut parents = self.0.lock();
        if let Some(before) = parents.insert(launch, stop.clone()) {
            before.cancel();
        }
        drop(parents);
        Parent { parents: self.clone(), launch, stop }
    }
}

/// A parent's registration, valid until it is dropped or replaced.
pub struct Parent {
    parents: Parents,
    launch: LaunchId,
    /// Cancelled when another parent replaces this one, and when this is dropped.
    pub stop: CancellationToken,
}

impl Drop for Parent {
    fn drop(&mut self) {
        let mut parents = self.parents.0.lock();
        if !self.stop.is_cancelled() {
            parents.remove(&self.launch);
            self.stop.cancel();
        }
    }
}

/// Serves a subtree for the agent that opened the stream.
pub async fn serve(
    handles: &Arc<Handles>,
    parents: &Parents,
    peer: &Caller,
    open: BranchOpen,
    mut send: SendStream,
    recv: RecvStream,
) -> Result<(), FrameError> {
    let (subtree, fanout) = open.subtree()?;
    let spec = open.shape.of(open.launch)?;
    let part = subtree.first;
    let own = spec.nodes.get(part as usize).is_some_and(|ranks| ranks.node == handles.me);
    if handles.allocations.of_epoch(spec.allocation, spec.epoch).is_none() {
        return frame::write(&mut send, &Up::NotHere { why: not_here(spec.allocation, spec.epoch) }).await;
    }
    if !own {
        tracing::warn!(peer = %peer.name, allocation = %spec.allocation, "a peer wanted this node to serve another node's part: refused");
        let why = "refused: this part is of another node".to_owned();
        return frame::write(&mut send, &Up::FromPart { part, message: ToHead::Lost { why } }).await;
    }
    if !subtree.is_single() {
        tracing::info!(launch = %spec.id, parent = %peer.name, nodes = subtree.len(), fanout, "passes a launch on");
    }
    let parent = parents.take(spec.id);
    let around = Around { handles: Arc::clone(handles), spec: Arc::new(spec), fanout, stop: parent.stop.clone() };
    let mut branch = Branch::new(around, subtree);
    branch.serve_below(subtree);
    let (to_branch, from_parent) = mpsc::channel(LINE_QUEUE_LEN);
    let reader = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(read(recv, to_branch)));
    let ended = Served { part, branch, send, parent_stopped_reading: false, unreachable: None, absent: None, taken: None }
        .run(from_parent, &parent.stop)
        .await;
    drop(reader);
    if let Ended::Over(branch) = ended {
        // An agent that does not get `Forget` in this time has the launch in memory until the
        // allocation ends.
        let _late = tokio::time::timeout(FORGET_AFTER, branch.flush()).await;
    }
    Ok(())
}

/// The text for a part that cannot be served. It does not state how the share ended: this node
/// reports that to the quorum, and the quorum decides.
fn not_here(allocation: AllocationId, epoch: Epoch) -> String {
    format!("allocation {} is not on this node under epoch {epoch}", allocation.short())
}

async fn read(mut recv: RecvStream, to_branch: mpsc::Sender<Arc<DownFrame>>) {
    while let Ok(frame) = Frame::read(&mut recv).await {
        let Ok(down_frame) = DownFrame::from_parent(frame).await else { return };
        if to_branch.send(down_frame).await.is_err() {
            return;
        }
    }
}

enum Ended {
    /// The parent is gone, or another parent replaced it.
    Broken,
    /// The launch has ended, and all agents below must get `Forget`.
    Over(Box<Branch>),
}

struct Served {
    part: u32,
    branch: Branch,
    send: SendStream,
    /// The parent does not read any more. Messages that it sent may still arrive.
    parent_stopped_reading: bool,
    /// The unreachable parts as last sent to the parent.
    unreachable: Option<Vec<u32>>,
    absent: Option<(u32, Vec<u32>)>,
    taken: Option<Taken>,
}

impl Served {
    async fn run(mut self, mut from_parent: mpsc::Receiver<Arc<DownFrame>>, stop: &CancellationToken) -> Ended {
        self.report(Up::Serving).await;
        let mut look = tokio::time::interval(CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    self.report(Up::Replaced).await;
                    return Ended::Broken;
                }
                down_frame = from_parent.recv() => {
                    let Some(down_frame) = down_frame else { return Ended::Broken };
                    if let ToPart::Input(piece) = &down_frame.message {
                        if let Err(error) = self.branch.feed(piece, &down_frame) {
                            let launch = self.branch.around.spec.id;
                            tracing::warn!(%launch, %error, "standard input from the parent leaves a gap: the stream is closed, and the parent sends it again");
                            return Ended::Broken;
                        }
                        continue;
                    }
                    self.branch.send(&down_frame);
                    if matches!(down_frame.message, ToPart::Forget) {
                        return Ended::Over(Box::new(self.branch));
                    }
                }
                Some((line, event)) = self.branch.next_event() => {
                    if let Some(event) = self.branch.handle(line, event) && !self.pass_on(event).await {
                        return Ended::Broken;
                    }
                    self.report_taken().await;
                    // If all parts are reachable, the parent learns it at once, because a fence may
                    // wait for it. Other changes are sent at the next check.
                    if self.branch.unreachable().is_empty() {
                        self.report_unreachable().await;
                    }
                }
                _ = look.tick(), if !self.branch.is_at_rest() => {
                    for part in self.branch.check() {
                        self.report(Up::Unreached { part }).await;
                    }
                    self.report_unreachable().await;
                    let absent = self.branch.waiting_for();
                    if self.absent != absent {
                        if let Some((number, parts)) = absent.clone() {
                            self.report(Up::Absent { number, parts }).await;
                        }
                        self.absent = absent;
                    }
                }
            }
        }
    }

    /// Passes a message on to the parent. `false`: this subtree can no longer be served.
    async fn pass_on(&mut self, event: BranchEvent) -> bool {
        match event {
            // Only the head needs `Begun`, from its own node: after a crash, that node's shim still
            // has the launch.
            BranchEvent::FromPart { message: ToHead::Begun, .. } => {}
            BranchEvent::FromPart { part, message } => self.report(Up::FromPart { part, message }).await,
            BranchEvent::Whole(merged) => self.report(Up::Fence { number: merged.number, blob: merged.blob }).await,
            BranchEvent::Refused(why) => {
                let message = ToHead::Aborted { code: 1, why };
                self.report(Up::FromPart { part: self.part, message }).await;
            }
            BranchEvent::Unreached { part } => self.report(Up::Unreached { part }).await,
            BranchEvent::Replaced => return false,
        }
        true
    }

    async fn report_taken(&mut self) {
        let Some(taken) = self.branch.taken().filter(|taken| self.taken != Some(*taken)) else { return };
        let again = self.taken.replace(taken).is_none();
        self.report(Up::Input { taken: taken.into(), again }).await;
    }

    async fn report_unreachable(&mut self) {
        let unreachable = self.branch.unreachable();
        if self.unreachable.as_ref() != Some(&unreachable) {
            self.report(Up::UnreachableParts { parts: unreachable.clone() }).await;
            self.unreachable = Some(unreachable);
        }
    }

    async fn report(&mut self, up: Up) {
        if !self.parent_stopped_reading {
            self.parent_stopped_reading = frame::write(&mut self.send, &up).await.is_err();
        }
    }
}
