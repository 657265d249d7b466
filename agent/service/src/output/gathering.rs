//! Merges the output of allocations and launches from the nodes that have it.

use crate::Api;
use lattice_agent_common::clock::now;
use lattice_agent_common::user_quota::UserSlot;
use lattice_api::v1;
use lattice_mesh::MeshError;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::{LogItem, LogsOpen, Open};
use lattice_meshd as meshd;
use lattice_model::{Allocation, AllocationId, Epoch, NodeId, Principal, millis, with_causes};
use lattice_output::log_store::Place;
use lattice_output::logs;
use lattice_output::output_index::Position;
use lattice_output::spool::{self, Spool};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::Status;

const NOTHING_HERE: &str = "there is no output here: there was none, or it was removed since (logs.spool_max_bytes)";
/// How many pieces are queued for a slow caller.
pub(super) const ITEMS_QUEUE_LEN: usize = 32;
/// How long a node that does not answer is retried for output that is not followed, or after the
/// work has ended.
const NODE_RETRY_MAX: Duration = Duration::from_secs(5);

/// The requested output.
#[derive(Clone)]
pub(crate) struct Selection {
    pub allocation: AllocationId,
    pub epoch: Epoch,
    /// The launch's number; 0 is the script.
    pub launch: u32,
    pub rank: Option<u32>,
    pub stdout: bool,
    pub stderr: bool,
    pub follow: bool,
    /// Whether unfinished lines are sent as they come.
    pub at_once: bool,
    pub user: Principal,
    /// What the caller already has of this epoch: (rank, stderr) → the next position.
    pub received: BTreeMap<(u32, bool), Position>,
    pub tail: Option<u64>,
    pub since_ms: Option<u64>,
    pub until_ms: Option<u64>,
    /// Whether lines carry the time of writing.
    pub dated: bool,
    /// The tenant and project of its keys in the log store.
    pub tenant: String,
    pub project: String,
    /// Whether it ended so long ago that the node may have removed its output.
    pub removable: bool,
}

/// What a reconnecting caller has of an attempt; positions of other epochs are ignored.
pub(crate) fn received(positions: &[v1::Received], epoch: Epoch) -> BTreeMap<(u32, bool), Position> {
    let of_epoch = positions.iter().filter(|r| r.epoch == epoch.0);
    of_epoch.map(|r| ((r.rank, r.stderr), Position { segment: r.segment, offset: r.bytes })).collect()
}

/// Which of stdout and stderr are wanted.
pub(super) fn streams(named: &str) -> Result<(bool, bool), Status> {
    match named {
        "" => Ok((true, true)),
        "stdout" => Ok((true, false)),
        "stderr" => Ok((false, true)),
        other => Err(Status::invalid_argument(format!("stream: {other:?} is neither stdout nor stderr"))),
    }
}

/// Counts one more log stream of this user until the result is dropped.
pub(super) fn log_stream(api: &Api, uid: u32) -> Result<UserSlot, Status> {
    let most = api.limits.log_streams_max;
    api.limits.log_streams.take(uid, most).ok_or_else(|| {
        Status::resource_exhausted(format!(
            "you have {most} log streams open at this agent, which is the limit\nhint: end a `lattice logs` or `launch` to open another"
        ))
    })
}

/// Whether it ended so long ago that its nodes may have removed its output.
pub(super) fn is_removable(allocation: &Allocation) -> bool {
    allocation.ended_at.is_some_and(|at| now().0.saturating_sub(at.0) >= millis(spool::RETENTION_AFTER_END))
}

/// Merges one launch's output from `nodes`; ends when each has reported the end of its output.
/// `over`: the work has ended, so a node that does not answer is not waited for.
pub(crate) async fn gather(
    api: &Api,
    nodes: &[NodeId],
    selection: &Selection,
    over: watch::Receiver<bool>,
    out: &mpsc::Sender<Result<v1::LogChunk, Status>>,
) {
    let mut pulls: JoinSet<()> =
        nodes.iter().map(|node| pull(api.clone(), node.clone(), selection.clone(), over.clone(), out.clone())).collect();
    while pulls.join_next().await.is_some() {}
}

async fn pull(
    api: Api,
    node: NodeId,
    mut selection: Selection,
    over: watch::Receiver<bool>,
    out: mpsc::Sender<Result<v1::LogChunk, Status>>,
) {
    let mut silence = Silence::default();
    loop {
        let why = match open(&api, &node, &selection).await {
            Ok(mut items) => {
                silence = Silence::default();
                match pass_on(&mut items, &node, &mut selection, &out).await {
                    Passed::End | Passed::Nobody => return,
                    Passed::NotHere => {
                        // Work that has just ended and left nothing had no output.
                        let why = selection.removable.then_some(NOTHING_HERE);
                        return from_store(&api, &node, &mut selection, &out, why).await;
                    }
                    Passed::Broken => "the connection broke".to_owned(),
                }
            }
            Err(error) => error.to_string(),
        };
        let is_awaited = selection.follow && !*over.borrow();
        if silence.is_too_long(Instant::now(), is_awaited) {
            let missing =
                format!("the node does not answer ({why}): output that is only on the node, not in the log store, is missing here");
            return from_store(&api, &node, &mut selection, &out, Some(&missing)).await;
        }
        tokio::select! {
            () = out.closed() => return,
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
    }
}

/// How long a node has not answered although its work has ended. The time before that end does not
/// count: an agent that was away meanwhile has just come back to report it.
#[derive(Debug, Default)]
struct Silence {
    since: Option<Instant>,
}

impl Silence {
    /// Whether a node that did not answer is given up. `is_awaited`: its work continues, so the
    /// node is retried for as long as the work runs.
    fn is_too_long(&mut self, now: Instant, is_awaited: bool) -> bool {
        if is_awaited {
            self.since = None;
            return false;
        }
        now.duration_since(*self.since.get_or_insert(now)) > NODE_RETRY_MAX
    }
}

/// Why a node's output cannot be requested.
#[derive(Debug, Error)]
enum OpenError {
    #[error("the address of {node} is not known")]
    NoAddress { node: NodeId },
    #[error(transparent)]
    Mesh(#[from] MeshError),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

async fn open(api: &Api, node: &NodeId, selection: &Selection) -> Result<mpsc::Receiver<LogItem>, OpenError> {
    let open = LogsOpen {
        allocation: *selection.allocation.0.as_bytes(),
        epoch: selection.epoch.0,
        launch: selection.launch,
        rank: selection.rank,
        stdout: selection.stdout,
        stderr: selection.stderr,
        follow: selection.follow,
        at_once: selection.at_once,
        received: selection.received.iter().map(|((rank, stderr), at)| (*rank, *stderr, at.segment, at.offset)).collect(),
        tail: selection.tail,
        since_ms: selection.since_ms,
        until_ms: selection.until_ms,
        dated: selection.dated,
        uid: selection.user.uid,
        user: selection.user.name.clone(),
    };
    if node == &api.context.setup.me {
        return Ok(meshd::read_output(&api.context, selection.allocation, selection.epoch, &open));
    }
    let address = api.mesh_address(node).await.ok_or_else(|| OpenError::NoAddress { node: node.clone() })?;
    let (mut send, mut recv) = api.context.work.mesh.open(node, &address).await?;
    frame::write(&mut send, &Open::Logs(Box::new(open))).await?;
    let (items, receiver) = mpsc::channel(ITEMS_QUEUE_LEN);
    api.context.work.tasks.spawn(async move {
        // The sending half stays open as long as there is a reader.
        let _send = send;
        loop {
            let item = tokio::select! {
                () = items.closed() => return,
                item = frame::read::<LogItem, _>(&mut recv) => item,
            };
            let Ok(item) = item else { return };
            if items.send(item).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Reads a node's output from the log store, because the node itself has none. `why`: the notice to
/// give if the store has none either.
async fn from_store(
    api: &Api,
    node: &NodeId,
    selection: &mut Selection,
    out: &mpsc::Sender<Result<v1::LogChunk, Status>>,
    why: Option<&str>,
) {
    let send_notice = async |text: Option<String>| {
        if let Some(text) = text {
            let _ = out.send(Ok(notice(node.as_str(), &text))).await;
        }
    };
    let place = Place {
        tenant: selection.tenant.clone(),
        project: selection.project.clone(),
        allocation: selection.allocation,
        epoch: selection.epoch,
    };
    let index = match api.context.work.spools.store() {
        None => Ok(None),
        Some(store) => store.index(&place, node).await.map(|index| index.map(|index| (index, store.clone()))),
    };
    let (index, store) = match index {
        Ok(Some(found)) => found,
        Ok(None) => return send_notice(why.map(str::to_owned)).await,
        Err(error) => {
            let text = format!("{}; {}", why.unwrap_or("the node has no output"), with_causes(&error));
            return send_notice(Some(text)).await;
        }
    };
    if !index.complete {
        send_notice(why.map(str::to_owned)).await;
    }
    let wanted = logs::Wanted {
        launch: selection.launch,
        rank: selection.rank,
        stdout: selection.stdout,
        stderr: selection.stderr,
        at_once: false,
        positions: selection.received.clone(),
        tail: selection.tail,
        since_ms: selection.since_ms,
        until_ms: selection.until_ms,
        dated: selection.dated,
    };
    let (items, mut receiver) = mpsc::channel(ITEMS_QUEUE_LEN);
    api.context.work.tasks.spawn(logs::archived(Spool::in_store(index), store, wanted, items));
    pass_on(&mut receiver, node, selection, out).await;
}

enum Passed {
    End,
    NotHere,
    Broken,
    Nobody,
}

async fn pass_on(
    items: &mut mpsc::Receiver<LogItem>,
    node: &NodeId,
    selection: &mut Selection,
    out: &mpsc::Sender<Result<v1::LogChunk, Status>>,
) -> Passed {
    let mut written_ms = 0;
    loop {
        let item = tokio::select! {
            () = out.closed() => return Passed::Nobody,
            item = items.recv() => item,
        };
        let chunk = match item {
            None => return Passed::Broken,
            Some(LogItem::End) => return Passed::End,
            Some(LogItem::NotHere) => return Passed::NotHere,
            Some(LogItem::Notice(text)) => notice(node.as_str(), &text),
            Some(LogItem::Written(ms)) => {
                written_ms = ms;
                continue;
            }
            Some(LogItem::Chunk { rank, stderr, data, segment, end }) => {
                selection.received.insert((rank, stderr), Position { segment, offset: end });
                let (node, launch, epoch) = (node.to_string(), selection.launch, selection.epoch.0);
                v1::LogChunk { node, launch, rank, stderr, data, notice: String::new(), epoch, segment, bytes: end, written_ms }
            }
        };
        if out.send(Ok(chunk)).await.is_err() {
            return Passed::Nobody;
        }
    }
}

pub(super) fn notice(node: &str, text: &str) -> v1::LogChunk {
    v1::LogChunk { node: node.to_owned(), notice: text.to_owned(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_away_while_the_work_ran_is_retried_after_its_end() {
        let begin = Instant::now();
        let at = |s: u64| begin + Duration::from_secs(s);
        let mut silence = Silence::default();
        assert!(!silence.is_too_long(at(0), true));
        assert!(!silence.is_too_long(at(8), true), "the work goes on");
        assert!(!silence.is_too_long(at(9), false), "the time that it was awaited does not count");
        assert!(!silence.is_too_long(at(14), false));
        assert!(silence.is_too_long(at(15), false));
    }
}
