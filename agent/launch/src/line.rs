//! One edge of a launch's tree: the connection to a subtree. It is renewed until the branch closes
//! it.

use super::down_frame::DownFrame;
use super::handles::Handles;
use lattice_mesh::branch::{BranchOpen, Up};
use lattice_mesh::frame;
use lattice_mesh::launch::{ToHead, ToPart, WireLaunch};
use lattice_mesh::open::Open;
use lattice_mesh::shape::WireShape;
use lattice_model::{Backoff, LaunchSpec, NodeId, NodeRanks};
use lattice_node::branch::Broken;
use lattice_pmi::{FenceRefused, Subtree};
use lattice_registry::AllocationHandle;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// How many messages are queued for one line.
const LINE_EVENTS_QUEUE_LEN: usize = 256;
/// Backoff between connection attempts.
const CONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// Shared by all lines of a branch.
#[derive(Clone)]
pub(super) struct Around {
    pub(super) handles: Arc<Handles>,
    pub(super) spec: Arc<LaunchSpec>,
    pub(super) fanout: u32,
    pub(super) stop: CancellationToken,
}

impl Around {
    pub(super) fn node(&self, part: u32) -> Option<&NodeId> {
        self.spec.nodes.get(part as usize).map(|ranks| &ranks.node)
    }

    /// Why a fence was refused, for people.
    pub(super) fn refused(&self, refused: &FenceRefused) -> String {
        refused.describe(|from| named(&self.spec.nodes, from))
    }
}

/// The names, for people, of parts that reached a fence together: any of them may have sent the
/// data that was refused.
fn named(nodes: &[NodeRanks], from: Subtree) -> String {
    let first = nodes.get(from.first as usize).map(|ranks| ranks.node.to_string()).unwrap_or_default();
    if from.is_single() { format!("node {first}") } else { format!("node {first}, or one of the {} below it,", from.len() - 1) }
}

/// An event that a line reports to its branch.
#[derive(Debug)]
pub(super) enum LineEvent {
    Connected,
    Broken(Broken),
    Received(Up),
}

/// A message in a line's queue.
pub(super) struct Waiting {
    pub(super) down_frame: Arc<DownFrame>,
    /// Number of the connection for which the message was queued. The part at a new connection has
    /// not reported its position in standard input yet, so a piece that was queued for an earlier
    /// connection could leave a gap.
    pub(super) connection: u64,
}

impl Waiting {
    /// The message, if it may be sent on this connection.
    fn of(self, connection: u64) -> Option<Arc<DownFrame>> {
        let is_late = matches!(self.down_frame.message, ToPart::Input(_)) && self.connection != connection;
        (!is_late).then_some(self.down_frame)
    }
}

/// Connects to a subtree, and again after each loss. It ends when it is connected and its queue is
/// closed and empty, when the branch is gone, or when it is stopped.
pub(super) struct LineTask {
    /// The branch's number for this line.
    pub(super) number: u64,
    pub(super) around: Around,
    pub(super) subtree: Subtree,
    pub(super) events: mpsc::Sender<(u64, LineEvent)>,
}

impl LineTask {
    pub(super) fn begin(self, stop: CancellationToken) -> mpsc::Sender<Waiting> {
        let (sender, queue) = mpsc::channel(LINE_EVENTS_QUEUE_LEN);
        let tasks = self.around.handles.tasks.clone();
        tasks.spawn(async move {
            let _stopped = stop.run_until_cancelled(self.run(queue)).await;
        });
        sender
    }

    async fn run(self, mut queue: mpsc::Receiver<Waiting>) {
        let mut pauses = CONNECT_BACKOFF;
        let mut connection = 0;
        loop {
            if let Some(connected) = self.connect().await {
                connection += 1;
                if !self.notify(LineEvent::Connected).await {
                    return;
                }
                let Some(broken) = self.carry(connected, &mut queue, connection).await else { return };
                if broken == Broken::Served {
                    pauses.reset();
                }
                if !self.notify(LineEvent::Broken(broken)).await {
                    return;
                }
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }

    /// Reports an event. `false`: the branch is gone.
    async fn notify(&self, event: LineEvent) -> bool {
        self.events.send((self.number, event)).await.is_ok()
    }

    async fn connect(&self) -> Option<Connection> {
        let Around { handles, spec, fanout, .. } = &self.around;
        let node = self.around.node(self.subtree.first)?;
        if *node == handles.me {
            let handle = handles.allocations.of_epoch(spec.allocation, spec.epoch)?;
            let messages = handle.attach(&handles.me, LaunchSpec::clone(spec)).await;
            return Some(Connection::Here { handle, messages });
        }
        let address = handles.directory.mesh(node).await?;
        let (mut send, recv) = match handles.mesh.open(node, &address).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%node, %error, "a part of a launch cannot be reached now");
                return None;
            }
        };
        let Subtree { first, end } = self.subtree;
        let open = BranchOpen { launch: WireLaunch::from(&**spec), shape: WireShape::from(&spec.shape), fanout: *fanout, first, end };
        frame::write(&mut send, &Open::Branch(Box::new(open))).await.ok()?;
        Some(Connection::There { send, recv })
    }

    /// Carries messages in both directions, independently of each other, until the line breaks.
    /// `None`: the branch needs no line any more.
    async fn carry(&self, connected: Connection, queue: &mut mpsc::Receiver<Waiting>, connection: u64) -> Option<Broken> {
        match connected {
            Connection::Here { handle, mut messages } => {
                let down = async {
                    while let Some(waiting) = queue.recv().await {
                        let Some(down_frame) = waiting.of(connection) else { continue };
                        handle.send_to_launch(self.around.spec.id, down_frame.message.clone()).await;
                    }
                    None
                };
                let up = async {
                    while let Some(message) = messages.recv().await {
                        if !self.notify(LineEvent::Received(self.of_part(message))).await {
                            return None;
                        }
                    }
                    Some(Broken::Served)
                };
                tokio::select! { ended = down => ended, ended = up => ended }
            }
            Connection::There { mut send, recv } => {
                let down = async {
                    while let Some(waiting) = queue.recv().await {
                        let Some(down_frame) = waiting.of(connection) else { continue };
                        let sent = match down_frame.frame().await {
                            Ok(frame) => frame.send(&mut send).await.is_ok(),
                            Err(error) => {
                                tracing::error!(node = ?self.around.node(self.subtree.first), %error, "a launch's message cannot be sent");
                                false
                            }
                        };
                        if !sent {
                            // Wait for the other direction, whose error shows how the line broke.
                            std::future::pending::<()>().await;
                        }
                    }
                    None
                };
                tokio::select! { ended = down => ended, ended = self.receive(recv) => ended }
            }
        }
    }

    async fn receive(&self, mut recv: quinn::RecvStream) -> Option<Broken> {
        let mut broken = Broken::Silent;
        loop {
            let up = match frame::read::<Up, _>(&mut recv).await {
                Ok(up) => up,
                Err(error) => {
                    tracing::debug!(node = ?self.around.node(self.subtree.first), %error, "a line of a launch broke");
                    return Some(broken);
                }
            };
            broken = match (broken, &up) {
                (Broken::Served, _) | (_, Up::Serving) => Broken::Served,
                (Broken::Silent | Broken::Refused, _) => Broken::Refused,
            };
            if !self.notify(LineEvent::Received(up)).await {
                return None;
            }
        }
    }

    /// Converts a message of this node's own part to the form in which other nodes send it.
    fn of_part(&self, message: ToHead) -> Up {
        match message {
            ToHead::Fence { number, blob } => Up::Fence { number, blob },
            ToHead::Synced => Up::UnreachableParts { parts: Vec::new() },
            ToHead::Input { taken, again } => Up::Input { taken, again },
            ToHead::Begun
            | ToHead::RankEnded { .. }
            | ToHead::Aborted { .. }
            | ToHead::WalltimeOver
            | ToHead::Lost { .. }
            | ToHead::Absent { .. }
            | ToHead::Call(_)
            | ToHead::OutOfMemory { .. } => Up::FromPart { part: self.subtree.first, message },
        }
    }
}

/// The connection to a subtree's first part, on this node or another.
enum Connection {
    Here { handle: AllocationHandle, messages: mpsc::Receiver<ToHead> },
    There { send: quinn::SendStream, recv: quinn::RecvStream },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_was_refused_names_nodes() {
        let nodes: Vec<NodeRanks> = (0..4).map(|i| NodeRanks { node: format!("n{i}").parse().unwrap(), first: i, count: 1 }).collect();
        let text = |from| FenceRefused::Changed { from, number: 3 }.describe(|from| named(&nodes, from));
        assert_eq!(text(Subtree::single(2)), "node n2 came to fence 3 twice, with different data");
        assert_eq!(text(Subtree { first: 1, end: 4 }), "node n1, or one of the 2 below it, came to fence 3 twice, with different data");
    }
}
