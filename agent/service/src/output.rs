//! `AllocationService.Logs`: output of an allocation, from its present or an earlier attempt.

mod gathering;
mod task;

pub(super) use gathering::{Selection, gather, received};

use super::Api;
use super::access::AccessTarget;
use super::heads::Entry;
use super::watching::AllocationWatch;
use gathering::{ITEMS_QUEUE_LEN, is_removable, log_stream, notice, streams};
use lattice_api::v1;
use lattice_ledger::AccessKind;
use lattice_model::{Allocation, AllocationId, AllocationState, Attempt, Entrypoint, NodeId, hostlist};
use tokio::sync::{mpsc, watch};
use tonic::{Request, Status};
use uuid::Uuid;

/// `AllocationService.Logs`.
pub(super) async fn logs(api: &Api, request: Request<v1::LogsRequest>) -> Result<mpsc::Receiver<Result<v1::LogChunk, Status>>, Status> {
    let caller = api.caller(&request).await?;
    let request = request.into_inner();
    let is_id = request.key.parse::<AllocationId>().is_ok();
    let (allocation, named) = if request.follow && is_id {
        (api.followed(&caller, &request.key, request.being_submitted).await?, None)
    } else {
        api.allocation_or_task(&caller, &request.key).await?
    };
    api.check(&caller, &allocation).await?;
    if let Some(index) = request.task.or(named) {
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
    let accessed = AccessTarget { allocation: allocation.id, owner: &allocation.owner, node: node.as_ref() };
    let what = if request.follow { "its output, and what follows" } else { "its output" };
    api.audit_unless_owner(Uuid::new_v4(), &caller.principal, AccessKind::LogsRead, &accessed, what).await?;
    let waiting = last_written(&allocation).filter(|_| is_without_nodes(&allocation));
    let epoch = former.as_ref().or(waiting).map_or(allocation.epoch, |attempt| attempt.epoch);
    let earlier = request.received.iter().map(|r| r.epoch).max().filter(|e| *e < epoch.0);
    let selection = Selection {
        allocation: allocation.id,
        epoch,
        launch: request.launch.unwrap_or_else(|| entry_number(&allocation)),
        rank: request.rank,
        stdout,
        stderr,
        follow: request.follow,
        at_once: request.follow && allocation.spec.pty.is_some(),
        user: caller.vouched_for(&allocation.owner),
        received: received(&request.received, epoch),
        tail: request.tail,
        since_ms: request.since_ms,
        until_ms: request.until_ms,
        dated: request.timestamps,
        tenant: allocation.spec.tenant.clone(),
        project: allocation.stored_project().to_owned(),
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
    // A launch inside the allocation ends before it.
    let ends_with_launch = selection.launch != entry_number(&allocation);
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
        let has_launch_ended = ends_with_launch && read.is_some();
        if !follow || has_launch_ended || is_over(&watch) || out.is_closed() {
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
