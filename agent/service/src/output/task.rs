//! The output of one task of a task group, from the lane that runs it or ran it.
//!
//! ```text
//!   index ─▶ ordinal ─▶ the quorum: its lanes ─▶ the lane's head ─▶ launch task_launch(ordinal), rank ordinal
//! ```
//!
//! No watch shows single tasks, so a follower asks a member of the quorum again and again. When the task has ended, the
//! rest of its output is read to its end.

use super::gathering::{ITEMS_QUEUE_LEN, Selection, gather, is_removable, log_stream, notice, received, streams};
use crate::Api;
use crate::access::AccessTarget;
use crate::caller::Caller;
use crate::tasks::{self, TaskState};
use lattice_api::v1;
use lattice_ledger::{AccessKind, TaskPlace, TaskStates, WhichTasks};
use lattice_model::{Allocation, AllocationId, LaneOf, NodeId, Principal};
use lattice_output::output_index::Position;
use lattice_runtime::shim::task_launch;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};
use uuid::Uuid;

/// The pause between two looks at the state of a task that is followed.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

type Out = mpsc::Sender<Result<v1::LogChunk, Status>>;

/// Refuses to show the output of a group or a service if the request names no task or replica.
pub(super) fn refuse_without_index(allocation: &Allocation) -> Result<(), Status> {
    let short = allocation.id.short();
    let text = match allocation.lane {
        Some(LaneOf { group, number, .. }) => {
            let group = group.short();
            format!(
                "allocation {short} is lane {number} of task group {group}: each task has an output of its own\n\
                 hint: `lattice logs '{group}[INDEX]'` shows one"
            )
        }
        None if allocation.is_task_group() => format!(
            "allocation {short} is a task group: each task has an output of its own\n\
             hint: `lattice logs '{short}[INDEX]'` shows one; `lattice status {short} --tasks` shows which failed"
        ),
        None if allocation.is_scaled_service() => format!(
            "allocation {short} is a scaled service: each replica has an output of its own\n\
             hint: name a replica, as in `lattice logs '{short}[N]'`; `lattice status {short} --replicas` lists them"
        ),
        None => return Ok(()),
    };
    Err(Status::failed_precondition(text))
}

/// The output of the task with this index.
pub(super) async fn logs(
    api: &Api,
    caller: Caller,
    group: Allocation,
    index: u32,
    request: v1::LogsRequest,
) -> Result<mpsc::Receiver<Result<v1::LogChunk, Status>>, Status> {
    let ordinal = tasks::ordinal(&group, index)?;
    if request.rank.is_some() || !request.node.is_empty() {
        return Err(Status::invalid_argument("a task has one output, on the first node of its lane: name neither a rank nor a node"));
    }
    let streams = streams(&request.stream)?;
    let states = tasks::states(api, group.id, WhichTasks::One(ordinal), false).await?;
    let former = wanted_lane(index, &states.places, &request)?;
    let slot = log_stream(api, caller.principal.uid)?;
    let accessed = AccessTarget { allocation: group.id, owner: &group.owner, node: None };
    let what = format!("the output of task {index}{}", if request.follow { ", and what follows" } else { "" });
    api.audit_unless_owner(Uuid::new_v4(), &caller.principal, AccessKind::LogsRead, &accessed, &what).await?;
    let has_ended = tasks::state(&states, index, ordinal)?.has_ended();
    let user = caller.vouched_for(&group.owner);
    let task = Task { api: api.clone(), group: group.id, index, ordinal, request, streams, user };
    let (out, stream) = mpsc::channel(ITEMS_QUEUE_LEN);
    api.context.work.tasks.spawn(async move {
        match former.or_else(|| states.places.last().cloned()) {
            Some(place) if has_ended || !task.request.follow => task.show(&place, &out).await,
            None if has_ended || !task.request.follow => {
                let _ = out.send(Ok(notice("", &format!("there is no output: task {index} has not run")))).await;
            }
            Some(_) | None => task.follow(states, &out).await,
        }
        drop(slot);
    });
    Ok(stream)
}

/// The lane whose output is wanted, if it is not the last one. `attempt` counts the lanes that ran the
/// task, from 1.
fn wanted_lane(index: u32, places: &[TaskPlace], request: &v1::LogsRequest) -> Result<Option<TaskPlace>, Status> {
    if !request.previous && request.attempt.is_none() {
        return Ok(None);
    }
    if request.follow {
        return Err(Status::invalid_argument("an attempt that has ended cannot be followed: leave out --follow"));
    }
    let Some(number) = request.attempt else {
        let before = places.len().checked_sub(2).and_then(|at| places.get(at)).cloned();
        return before.map(Some).ok_or_else(|| Status::failed_precondition(format!("task {index} has no earlier attempt")));
    };
    let found = (number as usize).checked_sub(1).and_then(|at| places.get(at)).cloned();
    let known = match places.len() {
        0 => "it has had none yet".to_owned(),
        count => format!("it has had {count}"),
    };
    found.map(Some).ok_or_else(|| Status::not_found(format!("task {index} has no attempt {number}: {known}")))
}

/// A task whose output is sent.
struct Task {
    api: Api,
    group: AllocationId,
    index: u32,
    ordinal: u32,
    request: v1::LogsRequest,
    /// Whether stdout and stderr are wanted.
    streams: (bool, bool),
    user: Principal,
}

impl Task {
    /// Sends what a lane's node has of it.
    async fn show(&self, place: &TaskPlace, out: &Out) {
        match self.in_lane(place).await {
            Ok((node, selection)) => {
                let once = Selection { follow: false, ..selection };
                gather(&self.api, &[node], &once, watch::channel(true).1, out).await;
            }
            Err(status) => {
                let _ = out.send(Err(status)).await;
            }
        }
    }

    /// Sends its output as it comes, over all lanes that run it, until it has ended.
    async fn follow(&self, mut states: TaskStates, out: &Out) {
        let (mut read, mut reading): (Vec<AllocationId>, Option<Reading>) = (Vec::new(), None);
        loop {
            // An answer may be older than the one before it, and show a lane that was left.
            let newer = states.places.last().filter(|place| !read.contains(&place.lane));
            if let Some(place) = newer {
                match self.in_lane(place).await {
                    Ok((node, selection)) => {
                        if let Some(former) = reading.take() {
                            former.finish(&self.api, out).await;
                            let text = format!("task {} began again in lane {} on {node}", self.index, place.lane.short());
                            let _ = out.send(Ok(notice("", &text))).await;
                        }
                        read.push(place.lane);
                        reading = Some(Reading::begin(&self.api, node, selection));
                    }
                    Err(status) if status.code() == Code::Unavailable => {}
                    Err(status) => {
                        let _ = out.send(Err(status)).await;
                        return;
                    }
                }
            }
            let is_behind = states.places.last().is_some_and(|place| !read.contains(&place.lane));
            let has_ended = TaskState::of(&states, self.ordinal).is_some_and(TaskState::has_ended);
            if has_ended && !is_behind {
                match reading {
                    Some(reading) => reading.finish(&self.api, out).await,
                    None => {
                        let text = format!("there is no output: task {} has not run", self.index);
                        let _ = out.send(Ok(notice("", &text))).await;
                    }
                }
                return;
            }
            match self.next_states(&mut reading, out).await {
                Some(next) => states = next,
                None => return,
            }
        }
    }

    /// Passes output on for a while, and then asks for the task's states. `None`: nobody waits for more.
    async fn next_states(&self, reading: &mut Option<Reading>, out: &Out) -> Option<TaskStates> {
        loop {
            let mut pause = std::pin::pin!(tokio::time::sleep(LOOK_INTERVAL));
            loop {
                let chunk = tokio::select! {
                    () = out.closed() => return None,
                    () = &mut pause => break,
                    chunk = next_chunk(reading) => chunk,
                };
                out.send(chunk).await.ok()?;
            }
            match tasks::states(&self.api, self.group, WhichTasks::One(self.ordinal), true).await {
                Ok(states) => return Some(states),
                Err(status) if status.code() == Code::Unavailable => {}
                Err(status) => {
                    let _ = out.send(Err(status)).await;
                    return None;
                }
            }
        }
    }

    /// The node and the output of the task in one of its lanes.
    async fn in_lane(&self, place: &TaskPlace) -> Result<(NodeId, Selection), Status> {
        let (index, short) = (self.index, place.lane.short());
        let dropped = || {
            let text = format!("task {index} ran in lane {short}, of which the quorum has no record any more: its output is not found");
            Status::not_found(text)
        };
        // This agent's watch may not show yet where the lane runs.
        let lane = match self.api.allocation_of_id(place.lane).await {
            Err(status) if status.code() == Code::NotFound => return Err(dropped()),
            lane => lane?,
        };
        let node = lane.head().cloned().ok_or_else(dropped)?;
        let (stdout, stderr) = self.streams;
        let selection = Selection {
            allocation: lane.id,
            epoch: lane.epoch,
            launch: task_launch(self.ordinal),
            rank: Some(self.ordinal),
            stdout,
            stderr,
            follow: self.request.follow,
            at_once: false,
            user: self.user.clone(),
            received: received(&self.request.received, lane.epoch),
            tail: self.request.tail,
            since_ms: self.request.since_ms,
            until_ms: self.request.until_ms,
            dated: self.request.timestamps,
            tenant: lane.spec.tenant.clone(),
            project: lane.stored_project().to_owned(),
            removable: is_removable(&lane),
        };
        Ok((node, selection))
    }
}

/// The output of a task in one lane while it is followed.
struct Reading {
    node: NodeId,
    /// Also records what was passed on.
    selection: Selection,
    chunks: mpsc::Receiver<Result<v1::LogChunk, Status>>,
    pull: AbortOnDropHandle<()>,
}

impl Reading {
    fn begin(api: &Api, node: NodeId, selection: Selection) -> Self {
        let (sender, chunks) = mpsc::channel(ITEMS_QUEUE_LEN);
        let (api, of, nodes) = (api.clone(), selection.clone(), [node.clone()]);
        let pull = tokio::spawn(async move { gather(&api, &nodes, &of, watch::channel(false).1, &sender).await });
        Self { node, selection, chunks, pull: AbortOnDropHandle::new(pull) }
    }

    /// The task has ended in this lane: sends what was not sent yet.
    async fn finish(self, api: &Api, out: &Out) {
        let Self { node, mut selection, mut chunks, pull } = self;
        drop(pull);
        while let Some(chunk) = chunks.recv().await {
            note(&mut selection, &chunk);
            if out.send(chunk).await.is_err() {
                return;
            }
        }
        // `tail` is for a stream of which nothing was received: others continue where they were.
        let rest = Selection { follow: false, ..selection };
        gather(api, &[node], &rest, watch::channel(true).1, out).await;
    }
}

/// The next piece that is read; waits for ever if nothing is being read. Cancel-safe.
async fn next_chunk(reading: &mut Option<Reading>) -> Result<v1::LogChunk, Status> {
    if let Some(Reading { selection, chunks, .. }) = reading
        && let Some(chunk) = chunks.recv().await
    {
        note(selection, &chunk);
        return chunk;
    }
    std::future::pending().await
}

/// Notes up to where the caller has the output.
fn note(selection: &mut Selection, chunk: &Result<v1::LogChunk, Status>) {
    if let Ok(v1::LogChunk { notice, rank, stderr, segment, bytes, .. }) = chunk
        && notice.is_empty()
    {
        selection.received.insert((*rank, *stderr), Position { segment: *segment, offset: *bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{TaskGroup, Timestamp, test_builders};

    fn id(number: u128) -> AllocationId {
        AllocationId(Uuid::from_u128(number << 96))
    }

    #[test]
    fn the_output_of_a_group_or_a_lane_is_asked_for_by_task() {
        let plain = test_builders::allocation(id(1));
        assert!(refuse_without_index(&plain).is_ok());
        let mut group = plain.clone();
        test_builders::spec_of(&mut group).tasks = Some(Box::new(TaskGroup::parse("0-9").unwrap()));
        let refused = |allocation: &Allocation| refuse_without_index(allocation).unwrap_err().message().to_owned();
        assert_eq!(
            refused(&group),
            "allocation 00000001 is a task group: each task has an output of its own\n\
             hint: `lattice logs '00000001[INDEX]'` shows one; `lattice status 00000001 --tasks` shows which failed"
        );
        let lane = Some(LaneOf { group: id(1), number: 4, queued_at: Timestamp(0), revocations: 0 });
        let lane = Allocation { id: id(2), lane, ..group };
        assert_eq!(
            refused(&lane),
            "allocation 00000002 is lane 4 of task group 00000001: each task has an output of its own\n\
             hint: `lattice logs '00000001[INDEX]'` shows one"
        );
    }

    #[test]
    fn attempts_of_a_task_are_its_lanes() {
        let place = |number| TaskPlace { lane: id(number), node: None };
        let places = [place(1), place(2), place(3)];
        let asked = |attempt, previous, follow| v1::LogsRequest { attempt, previous, follow, ..Default::default() };
        let wanted = |places: &[TaskPlace], request: &v1::LogsRequest| {
            let found = wanted_lane(7, places, request).map(|place| place.map(|place| place.lane));
            found.map_err(|status| status.message().to_owned())
        };
        assert_eq!(wanted(&places, &asked(None, false, true)), Ok(None));
        assert_eq!(wanted(&places, &asked(Some(1), false, false)), Ok(Some(id(1))));
        assert_eq!(wanted(&places, &asked(None, true, false)), Ok(Some(id(2))));
        let not_followed = "an attempt that has ended cannot be followed: leave out --follow";
        assert_eq!(wanted(&places, &asked(Some(1), false, true)), Err(not_followed.to_owned()));
        assert_eq!(wanted(&places, &asked(Some(0), false, false)), Err("task 7 has no attempt 0: it has had 3".to_owned()));
        assert_eq!(wanted(&places[..1], &asked(None, true, false)), Err("task 7 has no earlier attempt".to_owned()));
        assert_eq!(wanted(&[], &asked(Some(1), false, false)), Err("task 7 has no attempt 1: it has had none yet".to_owned()));
    }
}
