//! `AllocationService.Explain`: why an allocation waits, or what it does. A task group is explained by its
//! counts and by its first lane that waits, a scaled service by what its loop waits for and by its
//! first replica that waits.

use super::groups::first_waiting;
use super::networks::unenforced;
use super::status_message::status_message;
use super::tasks::{self, counts, ended_count};
use super::{Api, checkpoints, isolation, scaling};
use lattice_api::v1;
use lattice_ledger::{LANES_WAITING_OF_USER_MAX, LIVE_WITH_LANES_MAX, LanesObstacle, WhichTasks};
use lattice_membership::cluster::Cluster;
use lattice_model::count::counted;
use lattice_model::{Allocation, AllocationState, NodeId};
use lattice_scheduler::{Explanation, Score, Term, WhyNot};
use tonic::{Request, Status};

pub(super) async fn explain(api: &Api, request: Request<v1::ExplainRequest>) -> Result<v1::ExplainResponse, Status> {
    let caller = api.caller(&request).await?;
    let allocation = api.allocation(&caller, &request.into_inner().key).await?;
    api.check(&caller, &allocation).await?;
    if allocation.is_task_group() {
        group(api, &allocation).await
    } else if allocation.is_scaled_service() {
        service(api, &allocation).await
    } else {
        single(api, &allocation).await
    }
}

/// An allocation that is neither a task group nor a scaled service.
async fn single(api: &Api, allocation: &Allocation) -> Result<v1::ExplainResponse, Status> {
    let waits = allocation.waits();
    let directory = &api.context.work.directory;
    if waits && !directory.knows_all() {
        return Err(knows_too_little());
    }
    let cluster = directory.with_nodes_of(allocation).await;
    let (refused_claim, stopped) = if waits { api.refused_claim(allocation.id).await } else { (None, None) };
    let (summary, why) = if waits {
        let view = cluster.with_gossip(api.membership.gossiped());
        let (asked, now) = (allocation.clone(), lattice_agent_common::clock::now());
        // An explanation takes several plans.
        let why = tokio::task::spawn_blocking(move || lattice_scheduler::explain(&view, &asked, now)).await;
        let why = why.map_err(|error| Status::internal(error.to_string()))?;
        let before = allocation.reason.as_ref().map(|r| format!(" (back in the queue: {r})")).unwrap_or_default();
        let stopped = stopped.map(|refusal| format!("; nothing new is placed now: {refusal}")).unwrap_or_default();
        (why.summary.clone() + &before + &stopped, Some(why))
    } else {
        (status_message(allocation, &cluster) + &text_of_head(api, &cluster, allocation).await, None)
    };
    let summary = summary + &deadline_text(allocation);
    let checkpoint = checkpoints::judged(api, &cluster, allocation).await;
    let network_note = unenforced(allocation, &cluster.nodes);
    let isolation_note = isolation::note(allocation, &cluster.nodes);
    let shown = v1::Allocation { network_note, isolation_note, ..lattice_api::allocation::to_proto(allocation) };
    let waits = why.map(|why| answer(why, &shown)).unwrap_or_default();
    let allocation = Some(waits.allocation.unwrap_or(shown));
    Ok(v1::ExplainResponse { allocation, summary, refused_claim, checkpoint, ..waits })
}

/// What the agent of its first node adds to its state Running, as the end of a sentence: a lane that begins no task, or
/// an exposed port that accepts no connections.
async fn text_of_head(api: &Api, cluster: &Cluster, allocation: &Allocation) -> String {
    let has_text = allocation.lane.is_some() || !allocation.spec.connectivity.expose.is_empty();
    let head = allocation.head().filter(|_| has_text && allocation.state == AllocationState::Running);
    let Some(node) = head.and_then(|head| cluster.nodes.get(head)) else { return String::new() };
    let texts = api.status_texts(node, &[allocation.id]).await;
    let more = texts.first().and_then(|text| text.strip_prefix("running; "));
    more.map_or_else(String::new, |more| format!("; {more}"))
}

/// By when it must have ended, as the end of a sentence.
fn deadline_text(allocation: &Allocation) -> String {
    let deadline = allocation.spec.deadline().filter(|_| !allocation.state.is_terminal());
    deadline.map_or_else(String::new, |deadline| format!("; it must have ended by {deadline}"))
}

fn knows_too_little() -> Status {
    Status::failed_precondition(
        "this node's agent knows neither what else waits nor what is free: ask an agent whose certificate has the role api, \
         such as a login node's",
    )
}

/// A task group: its counts, and why its first lane waits.
async fn group(api: &Api, group: &Allocation) -> Result<v1::ExplainResponse, Status> {
    let states = tasks::states(api, group.id, WhichTasks::Counts, false).await?;
    let counts = counts(&states.counts);
    let shown = v1::Allocation { tasks: Some(counts), ..lattice_api::allocation::to_proto(group) };
    let cluster = api.context.work.directory.with_nodes_of(group).await;
    if group.state.is_terminal() || group.held || group.awaits().is_some() {
        let summary = status_message(group, &cluster);
        return Ok(v1::ExplainResponse { allocation: Some(shown), summary, ..Default::default() });
    }
    let awaiting = states.counts.awaiting;
    let progress = progress(&counts) + &tasks::awaiting_text(group, awaiting);
    if counts.lanes_waiting == 0 {
        let summary = progress + &no_lane_waits(group, &counts, awaiting, states.obstacle);
        return Ok(v1::ExplainResponse { allocation: Some(shown), summary, ..Default::default() });
    }
    if let Some((lane, of_lane)) = of_first_waiting(api, &cluster, group, &shown).await? {
        let few = few_lanes_wait(&counts, states.obstacle);
        let summary = format!("{progress}; its next lane, {}, waits: {}{few}", lane.id.short(), of_lane.summary);
        return Ok(v1::ExplainResponse { summary, ..of_lane });
    }
    if !api.context.work.directory.knows_all() {
        return Err(knows_too_little());
    }
    let summary = format!("{progress}; {} of its lanes wait for nodes", counts.lanes_waiting);
    Ok(v1::ExplainResponse { allocation: Some(shown), summary, ..Default::default() })
}

/// A scaled service: how many replicas it has, what its loop waits for, and why its first replica
/// that waits does so.
async fn service(api: &Api, service: &Allocation) -> Result<v1::ExplainResponse, Status> {
    let shown = lattice_api::allocation::to_proto(service);
    let cluster = api.context.work.directory.with_nodes_of(service).await;
    if service.state.is_terminal() || service.held || service.awaits().is_some() {
        let summary = status_message(service, &cluster);
        return Ok(v1::ExplainResponse { allocation: Some(shown), summary, ..Default::default() });
    }
    let explanation = scaling::explanation(service, lattice_agent_common::clock::now());
    if let Some((replica, of_replica)) = of_first_waiting(api, &cluster, service, &shown).await? {
        let number = replica.replica.as_deref().map_or(0, |of| of.number);
        let summary = format!("{explanation}\nReplica {number}, {}, waits: {}", replica.id.short(), of_replica.summary);
        return Ok(v1::ExplainResponse { summary, ..of_replica });
    }
    let waits = service.scaling.as_deref().is_some_and(|state| state.waiting > 0);
    let unknown = if waits && !api.context.work.directory.knows_all() {
        "\nThis node's agent does not know what the waiting replicas wait for: ask one whose certificate has the role api."
    } else {
        ""
    };
    Ok(v1::ExplainResponse { allocation: Some(shown), summary: explanation + unknown, ..Default::default() })
}

/// The lane or replica of a task group or a scaled service that begins before the others, and its explanation, in which
/// the group or service takes its place. `None`: this agent knows of none that waits.
async fn of_first_waiting<'a>(
    api: &Api,
    cluster: &'a Cluster,
    group: &Allocation,
    shown: &v1::Allocation,
) -> Result<Option<(&'a Allocation, v1::ExplainResponse)>, Status> {
    let Some(first) = first_waiting(cluster, &[group.id].into()).remove(&group.id) else { return Ok(None) };
    let of_first = Box::pin(single(api, first)).await?;
    let expected = of_first.allocation.unwrap_or_default();
    let allocation = v1::Allocation {
        expected_start_ms: expected.expected_start_ms,
        class_in_queue: expected.class_in_queue,
        score: expected.score,
        ..shown.clone()
    };
    Ok(Some((first, v1::ExplainResponse { allocation: Some(allocation), ..of_first })))
}

/// How far a group is.
fn progress(counts: &v1::TaskCounts) -> String {
    let (ended, total) = (ended_count(counts), counts.total);
    let failed = if counts.failed == 0 { String::new() } else { format!(" ({} failed)", counts.failed) };
    let running = match (counts.running, counts.lanes_running) {
        (0, 0) => "none runs".to_owned(),
        (1, lanes) => format!("1 runs or is next in {}", counted(lanes, "lane")),
        (tasks, lanes) => format!("{tasks} run or are next in {}", counted(lanes, "lane")),
    };
    format!("{ended} of {total} tasks have ended{failed}, {} wait, {running}", counts.waiting)
}

/// Why at most one of a group's lanes waits, if that is so.
fn few_lanes_wait(counts: &v1::TaskCounts, obstacle: Option<LanesObstacle>) -> String {
    match obstacle {
        Some(LanesObstacle::TooManyOfUser) if counts.waiting > 1 => {
            format!("; it gets no other lane while {LANES_WAITING_OF_USER_MAX} lanes of its owner wait for nodes")
        }
        Some(LanesObstacle::TooManyOfUser | LanesObstacle::Recovery | LanesObstacle::TooManyLive) | None => String::new(),
    }
}

/// Why no lane of a group waits although its tasks do. `awaiting`: how many of the tasks wait for tasks of other
/// groups.
fn no_lane_waits(group: &Allocation, counts: &v1::TaskCounts, awaiting: u32, obstacle: Option<LanesObstacle>) -> String {
    let most = group.spec.tasks.as_ref().and_then(|tasks| tasks.concurrent_max).filter(|most| counts.lanes_running >= *most);
    match (obstacle, most) {
        _ if counts.waiting <= awaiting => String::new(),
        (Some(LanesObstacle::Recovery), _) => {
            "; it gets no other lane until each node has reported what it runs since the quorum was recovered from a backup, or is away"
                .to_owned()
        }
        (_, Some(most)) => format!("; no more than {most} may run at the same time"),
        (Some(LanesObstacle::TooManyLive), None) => {
            format!("; it gets no other lane while {LIVE_WITH_LANES_MAX} allocations of the cluster have not ended")
        }
        // Each of the user's groups has a lane that waits, or gets one in a moment.
        (Some(LanesObstacle::TooManyOfUser) | None, None) => "; none of its lanes waits".to_owned(),
    }
}

/// What is known of an allocation that waits.
fn answer(why: Explanation, shown: &v1::Allocation) -> v1::ExplainResponse {
    let reason = |(node, why): (NodeId, WhyNot)| v1::explain_response::NodeReason { node: node.to_string(), reason: why.to_string() };
    let term = |term: &Term| v1::explain_response::ScoreTerm {
        factor: term.factor.name().to_owned(),
        weight: term.weight,
        value: term.value,
        known: term.is_known,
    };
    let score = why.score.as_ref();
    let allocation = v1::Allocation {
        expected_start_ms: why.start.map(|start| start.0),
        class_in_queue: score.map(|score| score.class.into()),
        score: score.map(Score::total),
        ..shown.clone()
    };
    v1::ExplainResponse {
        allocation: Some(allocation),
        nodes: why.nodes.into_iter().map(reason).collect(),
        score: score.into_iter().flat_map(|score| score.terms.iter().map(term).chain(nice_term(score))).collect(),
        budget_factor: score.map_or(1.0, |score| score.budget_factor),
        sooner: why.sooner.iter().map(ToString::to_string).collect(),
        ..v1::ExplainResponse::default()
    }
}

/// What its `nice` changes of its score, if it has one.
fn nice_term(score: &Score) -> Option<v1::explain_response::ScoreTerm> {
    let (factor, weight, value) = ("nice".to_owned(), score.wait_weight(), score.nice);
    (value != 0.0).then_some(v1::explain_response::ScoreTerm { factor, weight, value, known: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{AllocationId, TaskGroup, test_builders};

    #[test]
    fn the_progress_of_a_group_is_one_clause() {
        let counts = v1::TaskCounts { total: 20, waiting: 9, running: 4, completed: 5, lanes_running: 4, ..Default::default() };
        assert_eq!(progress(&counts), "5 of 20 tasks have ended, 9 wait, 4 run or are next in 4 lanes");
        let counts = v1::TaskCounts { failed: 2, cancelled: 1, running: 1, lanes_running: 1, ..counts };
        assert_eq!(progress(&counts), "8 of 20 tasks have ended (2 failed), 9 wait, 1 runs or is next in 1 lane");
        let counts = v1::TaskCounts { total: 3, waiting: 3, ..Default::default() };
        assert_eq!(progress(&counts), "0 of 3 tasks have ended, 3 wait, none runs");
    }

    #[test]
    fn a_group_without_a_lane_that_waits_says_why() {
        let mut group = test_builders::allocation(AllocationId(uuid::Uuid::from_u128(1)));
        test_builders::spec_of(&mut group).tasks = Some(Box::new(TaskGroup::parse("0-19%4").unwrap()));
        let counts = |waiting, lanes_running| v1::TaskCounts { total: 20, waiting, lanes_running, ..Default::default() };
        let of = |waiting, lanes, obstacle| no_lane_waits(&group, &counts(waiting, lanes), 0, obstacle);
        assert_eq!(of(0, 4, None), "");
        assert_eq!(no_lane_waits(&group, &counts(9, 3), 9, None), "", "they wait for tasks of another group");
        assert_eq!(of(9, 4, None), "; no more than 4 may run at the same time");
        assert_eq!(of(9, 3, None), "; none of its lanes waits");
        let crowded = "; it gets no other lane while 150000 allocations of the cluster have not ended";
        assert_eq!(of(9, 3, Some(LanesObstacle::TooManyLive)), crowded);
        let recovery =
            "; it gets no other lane until each node has reported what it runs since the quorum was recovered from a backup, or is away";
        assert_eq!(of(9, 4, Some(LanesObstacle::Recovery)), recovery);
        assert_eq!(of(9, 3, Some(LanesObstacle::TooManyOfUser)), "; none of its lanes waits");
        let few = |waiting, obstacle| few_lanes_wait(&counts(waiting, 1), obstacle);
        let capped = "; it gets no other lane while 1000 lanes of its owner wait for nodes";
        assert_eq!(few(9, Some(LanesObstacle::TooManyOfUser)), capped);
        assert_eq!([few(1, Some(LanesObstacle::TooManyOfUser)), few(9, None)], ["", ""]);
    }
}
