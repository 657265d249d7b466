//! Merges the output of allocations and launches from the nodes that have it.

mod task;

use super::Api;
use super::access::AccessTarget;
use super::heads::Entry;
use super::watching::AllocationWatch;
use lattice_agent_common::clock::now;
use lattice_agent_common::user_quota::UserSlot;
use lattice_api::v1;
use lattice_ledger::AccessKind;
use lattice_mesh::MeshError;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::{LogItem, LogsOpen, Open};
use lattice_meshd as meshd;
use lattice_model::{
    Allocation, AllocationId, AllocationState, Attempt, Entrypoint, Epoch, NodeId, Principal, hostlist, millis, with_causes,
};
use lattice_output::log_store::Place;
use lattice_output::logs;
use lattice_output::output_index::Position;
use lattice_output::spool::{self, Spool};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::{Request, Status};
use uuid::Uuid;

const NOTHING_HERE: &str = "there is no output here: there was none, or it was removed since (logs.spool_max_bytes)";
/// How many pieces are queued for a slow caller.
const ITEMS_QUEUE_LEN: usize = 32;
/// How long a node that does not answer is retried for output that is not followed, or after the
/// work has ended.
const NODE_RETRY_MAX: Duration = Duration::from_secs(5);

/// The requested output.
#[derive(Clone)]
pub(super) struct Selection {
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
pub(super) fn received(positions: &[v1::Received], epoch: Epoch) -> BTreeMap<(u32, bool), Position> {
    let of_epoch = positions.iter().filter(|r| r.epoch == epoch.0);
    of_epoch.map(|r| ((r.rank, r.stderr), Position { segment: r.segment, offset: r.bytes })).collect()
}

/// `AllocationService.Logs`.
pub(super) async fn logs(api: &Api, request: Request<v1::LogsRequest>) -> Result<mpsc::Receiver<Result<v1::LogChunk, Status>>, Status> {
    let caller = api.caller(&request).await?;
    let request = request.into_inner();
    let allocation =
        if request.follow { api.followed(&request.key, request.being_submitted).await? } else { api.allocation(&request.key).await? };
    caller.check(allocation.id, &allocation.owner)?;
    if let Some(index) = request.task {
        return task::logs(api, caller, allocation, index, request).await;
    }
    task::refuse_without_index(&allocation)?;
    let (stdout, stderr) = streams(&request.stream)?;
    let node = match request.node.as_str() {
        "" => None,
        name => Some(name.parse::<NodeId>().map_err(|e| Status::invalid_argument(e.to_string()))?),
    };
    let former = wanted_attempt(&allocation, &request)?;
    let is_first = request.received.is_empty();
    let place = log_stream(api, caller.principal.uid)?;
    let whose = AccessTarget { allocation: allocation.id, owner: &allocation.owner, node: node.as_ref() };
    let what = if request.follow { "its output, and what follows" } else { "its output" };
    api.audit_unless_owner(Uuid::new_v4(), &caller.principal, AccessKind::LogsRead, &whose, what).await?;
    let waiting = last_written(&allocation).filter(|_| is_without_nodes(&allocation));
    let epoch = former.as_ref().or(waiting).map_or(allocation.epoch, |attempt| attempt.epoch);
    let earlier = request.received.iter().map(|r| r.epoch).max().filter(|e| *e < epoch.0);
    let selection = Selection {
        allocation: allocation.id,
        epoch,
        launch: entry_number(&allocation),
        rank: request.rank,
        stdout,
        stderr,
        follow: request.follow,
        at_once: request.follow && allocation.spec.pty.is_some(),
        user: caller.principal,
        received: received(&request.received, epoch),
        tail: request.tail,
        since_ms: request.since_ms,
        until_ms: request.until_ms,
        dated: request.timestamps,
        tenant: allocation.spec.tenant.clone(),
        project: allocation.spec.project.clone(),
        removable: is_removable(&allocation),
    };
    let (out, stream) = mpsc::channel(ITEMS_QUEUE_LEN);
    let (tasks, api) = (&api.context.work.tasks, api.clone());
    tasks.spawn(async move {
        if let Some(attempt) = former {
            let _ = out.send(Ok(notice("", &format!("this is the output of an earlier attempt: {}", described(&attempt))))).await;
            former_attempt(&api, &allocation, &attempt, &selection, node.as_ref(), &out).await;
            drop(place);
            return;
        }
        if earlier.is_some() {
            let _ = out.send(Ok(notice("", &requeued(&allocation)))).await;
        } else if is_first
            && !is_without_nodes(&allocation)
            && let Some(attempt) = last_written(&allocation)
        {
            let hint = format!("`lattice logs {} --attempt {}` shows what that wrote", allocation.id.short(), attempt.number);
            let _ = out.send(Ok(notice("", &format!("{}; {hint}", described(attempt))))).await;
        }
        follow_allocation(&api, allocation, selection, node, out).await;
        drop(place);
    });
    Ok(stream)
}

/// Which of stdout and stderr are wanted.
fn streams(named: &str) -> Result<(bool, bool), Status> {
    match named {
        "" => Ok((true, true)),
        "stdout" => Ok((true, false)),
        "stderr" => Ok((false, true)),
        other => Err(Status::invalid_argument(format!("stream: {other:?} is neither stdout nor stderr"))),
    }
}

/// Counts one more log stream of this user until the result is dropped.
fn log_stream(api: &Api, uid: u32) -> Result<UserSlot, Status> {
    let most = api.limits.log_streams_max;
    api.limits.log_streams.take(uid, most).ok_or_else(|| {
        Status::resource_exhausted(format!(
            "you have {most} log streams open at this agent, which is the limit\nhint: end a `lattice logs` or `launch` to open another"
        ))
    })
}

/// Whether it ended so long ago that its nodes may have removed its output.
fn is_removable(allocation: &Allocation) -> bool {
    allocation.ended_at.is_some_and(|at| now().0.saturating_sub(at.0) >= millis(spool::RETENTION_AFTER_END))
}

/// Whether the attempt of its present epoch has begun: its nodes then have files.
fn ran(allocation: &Allocation, entry: Entry) -> bool {
    match allocation.state {
        AllocationState::Pending | AllocationState::Suspended | AllocationState::Staging => entry != Entry::Unknown,
        AllocationState::Running => true,
        AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled => allocation.started_at.is_some(),
    }
}

/// Whether it has ended, or will have once the quorum has the report.
fn is_over(watch: &AllocationWatch) -> bool {
    watch.now().state.is_terminal() || watch.entry().exit_code().is_some()
}

fn requeued(now: &Allocation) -> String {
    let ended = now.attempts.last().map_or_else(String::new, |attempt| format!("{}; ", described(attempt)));
    format!("{ended}it began again: this is the output of the new attempt (epoch {})", now.epoch)
}

fn entry_number(allocation: &Allocation) -> u32 {
    match allocation.spec.entrypoint {
        Entrypoint::Script { .. } => 0,
        Entrypoint::Command { .. } => 1,
    }
}

/// Sends the existing output. If it is followed, waits for nodes, follows it over requeues, and
/// ends with the allocation.
async fn follow_allocation(
    api: &Api,
    allocation: Allocation,
    mut selection: Selection,
    node: Option<NodeId>,
    out: mpsc::Sender<Result<v1::LogChunk, Status>>,
) {
    let follow = selection.follow;
    let mut watch = AllocationWatch::new(api.clone(), allocation, follow.then(|| selection.user.clone()));
    let mut read = None;
    let first = watch.now().clone();
    if is_without_nodes(&first)
        && let Some(attempt) = last_written(&first)
    {
        let of_last = format!("This is the output of its last attempt (epoch {}): {}", attempt.epoch, described(attempt));
        let _ = out.send(Ok(notice("", &format!("the allocation is {}, and nothing of it runs. {of_last}", first.state)))).await;
        former_attempt(api, &first, attempt, &selection, node.as_ref(), &out).await;
        read = Some(attempt.epoch);
    }
    loop {
        let now = watch.now().clone();
        if ran(&now, watch.entry()) && read != Some(now.epoch) {
            if read.is_some() {
                selection.received.clear();
                selection.tail = None;
                let _ = out.send(Ok(notice("", &requeued(&now)))).await;
            }
            read = Some(now.epoch);
            selection.epoch = now.epoch;
            let nodes = with_output(&now, now.nodes(), node.as_ref());
            if let (Some(wanted), [], Some(number)) = (&node, &nodes[..], now.attempt_number()) {
                let _ = out.send(Ok(notice("", &not_there(wanted, &hostlist::fold(now.nodes()), number)))).await;
            }
            let (ended, over) = watch::channel(is_over(&watch));
            let mut gathering = std::pin::pin!(gather(api, &nodes, &selection, over, &out));
            loop {
                tokio::select! {
                    () = &mut gathering => break,
                    () = watch.changed(), if follow => {
                        let left = is_over(&watch) || watch.now().epoch != now.epoch;
                        ended.send_replace(left);
                    }
                }
            }
        }
        if !follow || is_over(&watch) || out.is_closed() {
            if read.is_none() {
                let _ =
                    out.send(Ok(notice("", &format!("there is no output: the allocation is {} and has not run", watch.now().state)))).await;
            }
            return;
        }
        tokio::select! {
            () = out.closed() => return,
            () = watch.changed() => {}
        }
    }
}

/// The nodes of an attempt that have its entry point's output, among the wanted ones.
fn with_output<'a>(allocation: &Allocation, nodes: impl Iterator<Item = &'a NodeId>, wanted: Option<&NodeId>) -> Vec<NodeId> {
    let most = match allocation.spec.entrypoint {
        Entrypoint::Script { .. } => 1,
        Entrypoint::Command { .. } => usize::MAX,
    };
    nodes.take(most).filter(|node| wanted.is_none_or(|wanted| wanted == *node)).cloned().collect()
}

/// Whether it has no nodes: it waits for nodes, or ended while it waited.
fn is_without_nodes(allocation: &Allocation) -> bool {
    allocation.shares.is_empty()
}

/// The last attempt that may have written something.
fn last_written(allocation: &Allocation) -> Option<&Attempt> {
    allocation.attempts.iter().rev().find(|attempt| attempt.may_have_run())
}

/// The ended attempt that was requested; `None`: the present or last one was.
fn wanted_attempt(allocation: &Allocation, request: &v1::LogsRequest) -> Result<Option<Attempt>, Status> {
    if !request.previous && request.attempt.is_none() {
        return Ok(None);
    }
    if request.follow {
        return Err(Status::invalid_argument("an attempt that has ended cannot be followed: leave out --follow"));
    }
    let (short, present) = (allocation.id.short(), allocation.attempt_number());
    let Some(number) = request.attempt else {
        let refused = || Status::failed_precondition(format!("allocation {short} has no earlier attempt with output"));
        return last_written(allocation).cloned().map(Some).ok_or_else(refused);
    };
    if present == Some(number) {
        return Ok(None);
    }
    let kept: Vec<String> = allocation.attempts.iter().map(|a| a.number).chain(present).map(|number| number.to_string()).collect();
    let known = if kept.is_empty() { "it has had none yet".to_owned() } else { format!("its record has {}", kept.join(", ")) };
    let found = allocation.attempts.iter().find(|attempt| attempt.number == number).cloned();
    found.map(Some).ok_or_else(|| Status::not_found(format!("allocation {short} has no attempt {number}: {known}")))
}

/// An ended attempt, for people.
fn described(attempt: &Attempt) -> String {
    let Attempt { number, nodes, ended_at, reason, by, .. } = attempt;
    format!("attempt {number} on {nodes} ended at {ended_at}: {reason} (by {by})")
}

/// Sends the output of an ended attempt.
async fn former_attempt(
    api: &Api,
    now: &Allocation,
    attempt: &Attempt,
    selection: &Selection,
    wanted: Option<&NodeId>,
    out: &mpsc::Sender<Result<v1::LogChunk, Status>>,
) {
    let mut nodes = match attempt.node_ids() {
        Ok(nodes) => nodes,
        Err(error) => {
            let _ = out.send(Ok(notice("", &format!("the nodes of attempt {} cannot be read: {error}", attempt.number)))).await;
            return;
        }
    };
    // A script writes on the head only.
    nodes.sort_by_key(|node| *node != attempt.head);
    // No node is retried for long: all output is complete.
    let once = Selection { follow: false, at_once: false, removable: true, ..selection.clone() };
    let nodes = with_output(now, nodes.iter(), wanted);
    if let (Some(wanted), []) = (wanted, &nodes[..]) {
        let _ = out.send(Ok(notice("", &not_there(wanted, &attempt.nodes, attempt.number)))).await;
    }
    gather(api, &nodes, &once, watch::channel(true).1, out).await;
}

/// Why a requested node has no output.
fn not_there(wanted: &NodeId, nodes: &str, attempt: u32) -> String {
    format!("attempt {attempt} has no output of {wanted}: it ran on {nodes}, and a script runs on the first node only")
}

/// Merges one launch's output from `nodes`; ends when each has reported the end of its output.
/// `over`: the work has ended, so a node that does not answer is not waited for.
pub(super) async fn gather(
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
    /// A node did not answer; whether it is given up. `is_awaited`: its work goes on, so it is
    /// retried for as long as that takes.
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

fn notice(node: &str, text: &str) -> v1::LogChunk {
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
