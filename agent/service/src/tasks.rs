//! Task groups: their tasks, and what users do to single ones. A group has no nodes itself; its *lanes*,
//! which are allocations, run its tasks. What also holds for scaled services is in `groups`.

mod ranges;

pub(super) use ranges::{TaskState, counts};

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::arguments::allocation_id;
use super::caller::Caller;
use super::niceness;
use super::refusal::{status, unexpected};
use super::servable::servable;
use lattice_api::spec::task_indices;
use lattice_api::v1;
use lattice_ledger::{Action, LanesObstacle, TASK_RANGES_MAX, TaskStates, WhichTasks};
use lattice_model::{Allocation, AllocationId, AllocationSpec, AllocationState, LaneOf, Principal, TaskGroup, TaskIndices, TaskSet};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, Refusal, Request as Ask};
use tonic::{Request, Status};

/// How many ranges an answer has if the caller does not say.
const RANGES_DEFAULT: u32 = 1000;
/// How much of a group's indices an error shows, in characters.
const INDICES_CHARS_MAX: usize = 60;

pub(super) async fn get(api: &Api, request: Request<v1::GetTasksRequest>) -> Result<v1::GetTasksResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::GetTasksRequest { key, index, limit, stale } = request.into_inner();
    let (group, _) = api.get_allocation(key, stale).await?;
    api.check(&caller, &group).await?;
    let tasks = tasks_of(&group)?;
    let task = index.map(|index| Ok::<_, Status>((index, ordinal(&group, index)?))).transpose()?;
    let most = if limit == 0 { RANGES_DEFAULT } else { limit.min(TASK_RANGES_MAX) };
    let which = task.map_or(WhichTasks::Ranges { most }, |(_, ordinal)| WhichTasks::One(ordinal));
    let states = states(api, group.id, which, stale).await?;
    let (ranges, truncated) = match task {
        Some((index, ordinal)) => (vec![ranges::of_one(index, state(&states, index, ordinal)?, &states)], false),
        None => ranges::ranges(&tasks.indices, &states, most as usize),
    };
    Ok(v1::GetTasksResponse { id: group.id.to_string(), counts: Some(counts(&states.counts)), ranges, truncated })
}

pub(super) async fn cancel(api: &Api, request: Request<v1::CancelTasksRequest>) -> Result<v1::CancelTasksResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::CancelTasksRequest { key, indices } = request.into_inner();
    // With indices of its own, `13[7]` means a task of the group that has job number 13 among its own.
    let (group, _) = api.allocation_or_task(&caller, &key).await?;
    api.check(&caller, &group).await?;
    let tasks = chosen(&group, &indices)?;
    let ask = Ask::from(Action::CancelTasks { id: group.id, tasks, by: caller.principal });
    match api.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::TasksCancelled { cancelled, ended } => Ok(v1::CancelTasksResponse { id: group.id.to_string(), cancelled, ended }),
        other => Err(unexpected(&other)),
    }
}

/// Cancels the task with this index, named by its job number.
pub(super) async fn cancel_one(api: &Api, caller: Caller, group: &Allocation, index: u32) -> Result<v1::CancelResponse, Status> {
    let ordinal = ordinal(group, index)?;
    let mut tasks = TaskSet::default();
    tasks.insert(ordinal..=ordinal);
    let ask = Ask::from(Action::CancelTasks { id: group.id, tasks, by: caller.principal });
    let state = match api.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::TasksCancelled { ended: 0, .. } => AllocationState::Cancelled,
        Answer::TasksCancelled { .. } => {
            let states = states(api, group.id, WhichTasks::One(ordinal), false).await?;
            state(&states, index, ordinal)?.shown()
        }
        other => return Err(unexpected(&other)),
    };
    Ok(v1::CancelResponse { id: format!("{}[{index}]", group.id), state: state.to_string() })
}

/// The caller submits a group of its own, so the first one is the caller's too.
pub(super) async fn retry(api: &Api, request: Request<v1::RetryTasksRequest>) -> Result<v1::SubmitResponse, Status> {
    let user = api.user(&request).await?;
    let caller = api.caller(&request).await?;
    let v1::RetryTasksRequest { key, indices, id } = request.into_inner();
    let id = allocation_id(&id)?;
    let submitting = api.submitted.begin(id);
    let group = api.allocation(&caller, &key).await?;
    // Its refusal names the owner, and the table says the same.
    if !caller.private {
        is_own(&group, &user)?;
    }
    api.check(&caller, &group).await?;
    is_own(&group, &user)?;
    tasks_of(&group)?;
    let states = states(api, group.id, WhichTasks::All, false).await?;
    let again = if indices.is_empty() { failed(&group, &states)? } else { ended(&group, chosen(&group, &indices)?, &states)? };
    let mut spec = spec_again(&group, &again)?;
    // An operator put that group before others, and not those that its user makes of it.
    if spec.nice < 0 && !niceness::may_precede(api, &caller).await? {
        spec.nice = 0;
    }
    api.may_own_work(&user)?;
    api.check_tenants(&caller, [spec.tenant.clone()].into()).await?;
    let warning = match api.context.work.directory.knows_all() {
        true => servable(&api.cluster.borrow(), &spec, true)?,
        false => String::new(),
    };
    let number = api.commit_submission(submitting, id, spec, (user, caller.login_tenants())).await?;
    Ok(v1::SubmitResponse { id: id.to_string(), warning, checked: None, number, expected: None })
}

/// Adds what only a query of this group answers.
pub(super) async fn add_counts(api: &Api, group: &Allocation, shown: &mut v1::Allocation, stale: bool) -> Result<(), Status> {
    let TaskStates { counts: known, obstacle, .. } = states(api, group.id, WhichTasks::Counts, stale).await?;
    let counts = counts(&known);
    if !group.state.is_terminal() && !group.held && group.awaits().is_none() {
        let obstacle = obstacle.filter(|_| counts.waiting > known.awaiting).map_or("", obstacle_brief);
        let awaiting = awaiting_text(group, known.awaiting);
        shown.status_message = format!("{} of {} done{obstacle}{awaiting}", ended_count(&counts), counts.total);
    }
    shown.tasks = Some(counts);
    Ok(())
}

/// Why a group gets no other lane now, in few words behind its progress.
fn obstacle_brief(obstacle: LanesObstacle) -> &'static str {
    match obstacle {
        LanesObstacle::Recovery => "; nodes report first",
        LanesObstacle::TooManyLive => "; the cluster is full of work",
        LanesObstacle::TooManyOfUser => "; many lanes of its owner wait",
    }
}

/// For which groups' tasks so many tasks of this group wait; empty: none does.
pub(super) fn awaiting_text(group: &Allocation, awaiting: u32) -> String {
    let of = group.dependencies.as_ref().and_then(|all| all.corresponding());
    match (awaiting, of) {
        (0, _) | (_, None) => String::new(),
        (1, Some(of)) => format!("; 1 waits for the same task of {of}"),
        (_, Some(of)) => format!("; {awaiting} wait for the same tasks of {of}"),
    }
}

/// How many tasks have ended.
pub(super) fn ended_count(counts: &v1::TaskCounts) -> u32 {
    counts.completed + counts.failed + counts.cancelled
}

/// The numbers of a group's tasks, and the states of those that are asked for.
pub(super) async fn states(api: &Api, group: AllocationId, which: WhichTasks, stale: bool) -> Result<TaskStates, Status> {
    match api.ask(Ask::GetTasks { id: group, which }, stale).await? {
        (Answer::Tasks(states), _) => Ok(*states),
        (other, _) => Err(unexpected(&other)),
    }
}

/// A task of a group that has ended.
pub(super) struct EndedTask {
    pub range: v1::TaskRange,
    /// Its place among the tasks of the group, from 0.
    pub ordinal: u32,
    /// The nodes that it had.
    pub node_count: u32,
}

/// How this task ended; `None`: the quorum has forgotten the group.
pub(super) async fn ended_task(api: &Api, group: AllocationId, index: u32) -> Result<Option<EndedTask>, Status> {
    let group = match api.quorum.find_allocation(group.to_string()).await {
        Ok(group) => group,
        Err(CallError::Refused(Refusal::NoSuchAllocation { .. })) => return Ok(None),
        Err(error) => return Err(status(&error)),
    };
    let ordinal = ordinal(&group, index)?;
    let states = states(api, group.id, WhichTasks::One(ordinal), false).await?;
    let range = ranges::of_one(index, state(&states, index, ordinal)?, &states);
    Ok(Some(EndedTask { range, ordinal, node_count: group.spec.nodes }))
}

/// Refuses a group of another user: what is submitted is the caller's, who would get the tasks.
fn is_own(group: &Allocation, user: &Principal) -> Result<(), Status> {
    if user.owns(&group.owner) {
        return Ok(());
    }
    let (short, owner) = (group.id.short(), &group.owner.name);
    Err(Status::permission_denied(format!(
        "task group {short} belongs to {owner}, and only {owner} may have its tasks run once more: that is new work of {owner}\n\
         hint: `sudo -u {owner} lattice retry {short}`"
    )))
}

/// The tasks of a group; refused if it is none.
pub(super) fn tasks_of(allocation: &Allocation) -> Result<&TaskGroup, Status> {
    let short = allocation.id.short();
    let text = match (allocation.spec.tasks.as_deref(), allocation.lane) {
        (Some(tasks), None) => return Ok(tasks),
        (_, Some(LaneOf { group, number, .. })) => {
            format!("allocation {short} is lane {number} of task group {0}\nhint: name the group, {0}", group.short())
        }
        (None, None) if allocation.spec.scaling.is_some() => {
            format!("allocation {short} belongs to a scaled service: it has replicas, and no tasks\nhint: `lattice status {short}`")
        }
        (None, None) => format!("allocation {short} is no task group\nhint: `lattice submit --task-group` submits one"),
    };
    Err(Status::failed_precondition(text))
}

/// The ordinal of the task with this index.
pub(super) fn ordinal(group: &Allocation, index: u32) -> Result<u32, Status> {
    let tasks = tasks_of(group)?;
    tasks.indices.ordinal_of(index).ok_or_else(|| no_such_task(group, tasks, index))
}

/// The state of one task.
pub(super) fn state(states: &TaskStates, index: u32, ordinal: u32) -> Result<TaskState, Status> {
    TaskState::of(states, ordinal).ok_or_else(|| Status::internal(format!("the quorum has no state of task {index}")))
}

fn no_such_task(group: &Allocation, tasks: &TaskGroup, index: u32) -> Status {
    let mut indices = tasks.indices.to_string();
    if indices.len() > INDICES_CHARS_MAX {
        indices.truncate(INDICES_CHARS_MAX);
        indices.push('…');
    }
    Status::not_found(format!("task group {} has no task {index}; its indices are {indices}", group.id.short()))
}

/// The ordinals of the tasks with these indices, all of which must exist.
fn chosen(group: &Allocation, runs: &[v1::IndexRun]) -> Result<TaskSet, Status> {
    let tasks = tasks_of(group)?;
    let indices = task_indices(runs).map_err(|error| Status::invalid_argument(format!("indices: {error}")))?;
    let ordinals = tasks.indices.ordinals_of(&indices);
    if ordinals.len() < indices.count() {
        let mut all = indices.runs().iter().flat_map(|run| (run.first..=run.last).step_by(run.step as usize));
        let missing = all.find(|index| tasks.indices.ordinal_of(*index).is_none()).unwrap_or_default();
        return Err(no_such_task(group, tasks, missing));
    }
    Ok(ordinals)
}

/// All that failed; refused if none did.
fn failed(group: &Allocation, states: &TaskStates) -> Result<TaskSet, Status> {
    let failed = ranges::failed(states);
    if failed.is_empty() {
        let short = group.id.short();
        let text = format!("no task of group {short} has failed\nhint: `lattice retry {short} --tasks LIST` runs others once more");
        return Err(Status::failed_precondition(text));
    }
    Ok(failed)
}

/// These tasks; refused if one of them has not ended.
fn ended(group: &Allocation, chosen: TaskSet, states: &TaskStates) -> Result<TaskSet, Status> {
    let under_way = [&states.waiting, &states.leased].into_iter().find_map(|tasks| tasks.and(&chosen).iter().next());
    let Some(ordinal) = under_way else { return Ok(chosen) };
    let index = tasks_of(group)?.indices.index_of(ordinal).unwrap_or_default();
    let short = group.id.short();
    let text = format!("task {index} of group {short} has not ended\nhint: `lattice cancel '{short}[{index}]'` ends it");
    Err(Status::failed_precondition(text))
}

/// The spec of a group that has these tasks of another one. What that one depended on does not matter
/// any more, nor that it was held.
fn spec_again(group: &Allocation, again: &TaskSet) -> Result<AllocationSpec, Status> {
    let (tasks, short) = (tasks_of(group)?, group.id.short());
    let chosen = tasks.indices.indices_of(again);
    let indices = TaskIndices::new(chosen.iter().flat_map(TaskIndices::runs).copied()).map_err(|error| {
        Status::failed_precondition(format!(
            "the tasks to run once more make no group: {error}\nhint: choose fewer with `lattice retry {short} --tasks LIST`"
        ))
    })?;
    let tasks = TaskGroup { indices, ..tasks.clone() };
    let spec = AllocationSpec::clone(&group.spec);
    Ok(AllocationSpec { tasks: Some(Box::new(tasks)), depends_on: Vec::new(), singleton: false, hold: false, ..spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_membership::cluster::Cluster;
    use lattice_model::{Drain, EndReason, Scaling, TaskOutcome, Timestamp, test_builders};

    fn id(number: u128) -> AllocationId {
        AllocationId(uuid::Uuid::from_u128(number << 96))
    }

    /// A group with the indices 0, 2, 4, … 18.
    fn group() -> Allocation {
        let mut group = test_builders::allocation(id(1));
        test_builders::spec_of(&mut group).tasks = Some(Box::new(TaskGroup::parse("0-18:2%4").unwrap()));
        group
    }

    fn lane() -> Allocation {
        Allocation { id: id(2), lane: Some(LaneOf { group: id(1), number: 3, queued_at: Timestamp(0), revocations: 0 }), ..group() }
    }

    fn set(ranges: &[(u32, u32)]) -> TaskSet {
        ranges.to_vec().into()
    }

    fn states() -> TaskStates {
        let failed = [(TaskOutcome::Exited(7), set(&[(3, 3)])), (TaskOutcome::Lost, set(&[(5, 5)]))];
        let ended = failed.into_iter().chain([(TaskOutcome::Exited(0), set(&[(0, 2)]))]).collect();
        TaskStates { waiting: set(&[(6, 9)]), leased: set(&[(4, 4)]), ended, ..TaskStates::default() }
    }

    fn refused<T: std::fmt::Debug>(result: Result<T, Status>) -> String {
        result.unwrap_err().message().to_owned()
    }

    #[test]
    fn what_is_no_group_has_no_tasks() {
        assert_eq!(tasks_of(&group()).unwrap().to_string(), "0-18:2%4");
        assert_eq!(refused(tasks_of(&lane())), "allocation 00000002 is lane 3 of task group 00000001\nhint: name the group, 00000001");
        assert_eq!(
            refused(tasks_of(&test_builders::allocation(id(1)))),
            "allocation 00000001 is no task group\nhint: `lattice submit --task-group` submits one"
        );
        let mut service = test_builders::allocation(id(1));
        let scaling = Scaling { replicas_min: 1, replicas_max: 2, policy: None, drain: Drain::default() };
        test_builders::spec_of(&mut service).scaling = Some(Box::new(scaling));
        assert_eq!(
            refused(tasks_of(&service)),
            "allocation 00000001 belongs to a scaled service: it has replicas, and no tasks\nhint: `lattice status 00000001`"
        );
    }

    #[test]
    fn tasks_run_once_more_for_the_owner_alone() {
        let mut group = group();
        let root = Principal { name: "root".to_owned(), uid: 0, ..group.owner.clone() };
        (group.owner.name, group.owner.uid) = ("ada".to_owned(), 7);
        assert!(is_own(&group, &group.owner).is_ok());
        assert_eq!(
            refused(is_own(&group, &root)),
            "task group 00000001 belongs to ada, and only ada may have its tasks run once more: that is new work of ada\n\
             hint: `sudo -u ada lattice retry 00000001`"
        );
    }

    #[test]
    fn tasks_are_chosen_by_index_and_all_must_exist() {
        let run = |first, last, step| v1::IndexRun { first, last, step };
        assert_eq!(chosen(&group(), &[run(4, 8, 2), run(18, 18, 0)]).unwrap(), set(&[(2, 4), (9, 9)]));
        let none = "task group 00000001 has no task 5; its indices are 0-18:2";
        assert_eq!(refused(chosen(&group(), &[run(4, 8, 1)])), none);
        assert_eq!(refused(ordinal(&group(), 5)), none);
        assert_eq!(ordinal(&group(), 6).unwrap(), 3);
        assert!(chosen(&group(), &[]).is_err());
    }

    #[test]
    fn the_indices_in_a_refusal_are_bounded() {
        let mut many = group();
        let indices = (0..100).map(|n| (n * n).to_string()).collect::<Vec<_>>().join(",");
        test_builders::spec_of(&mut many).tasks = Some(Box::new(TaskGroup::parse(&indices).unwrap()));
        let text = refused(ordinal(&many, 5));
        assert!(text.ends_with('…') && text.chars().count() < 120, "{text}");
    }

    #[test]
    fn a_retry_has_the_failed_tasks_or_chosen_ones_that_have_ended() {
        assert_eq!(failed(&group(), &states()).unwrap(), set(&[(3, 3), (5, 5)]));
        assert_eq!(
            refused(failed(&group(), &TaskStates::default())),
            "no task of group 00000001 has failed\nhint: `lattice retry 00000001 --tasks LIST` runs others once more"
        );
        assert_eq!(ended(&group(), set(&[(1, 3)]), &states()).unwrap(), set(&[(1, 3)]));
        for under_way in [(4, 4), (3, 4)] {
            let text = "task 8 of group 00000001 has not ended\nhint: `lattice cancel '00000001[8]'` ends it";
            assert_eq!(refused(ended(&group(), set(&[under_way]), &states())), text);
        }
        let mut first = group();
        test_builders::spec_of(&mut first).hold = true;
        let spec = spec_again(&first, &set(&[(3, 3), (5, 5)])).unwrap();
        assert_eq!(spec.tasks.as_ref().unwrap().to_string(), "6,10%4");
        let before = AllocationSpec { hold: false, tasks: None, ..AllocationSpec::clone(&first.spec) };
        assert_eq!(AllocationSpec { tasks: None, ..spec }, before);
        assert!(spec_again(&first, &TaskSet::default()).is_err());
    }

    #[test]
    fn an_ended_lane_says_where_its_tasks_run() {
        let of_lane = Allocation { state: AllocationState::Failed, reason: Some(EndReason::WalltimeExceeded), ..lane() };
        let plain = Allocation { lane: None, ..of_lane.clone() };
        let text = |allocation: &Allocation| crate::status_message::status_message(allocation, &Cluster::default());
        assert!(text(&plain).ends_with("; ask for more with --walltime"), "{}", text(&plain));
        assert!(text(&of_lane).ends_with("; its tasks run in another lane"), "{}", text(&of_lane));
    }
}
