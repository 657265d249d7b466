//! Task groups whose tasks wait for the tasks of the same index of other groups.
//!
//! ```text
//!   submission ──▶ tasks of the child: their parent's task has succeeded ──▶ wait for a lane, as others
//!                                      has ended otherwise ──▶ ended, as unmet
//!                                      has not ended ──▶ await it
//!                                      does not exist ──▶ wait for a lane
//!
//!   tasks of a group end ──▶ news, in its own record ──▶ each group that follows it: awaited tasks wait for
//!                                                        a lane, or end, which may be news for others
//! ```
//!
//! A group's tasks end once, so each end is news once. The news has only the ranges that ended since, so
//! a command costs what it changed, and not the size of a group. One command delivers a bounded part of
//! it; groups with more stay in `unsettled_tasks`, which is replicated, until the next command.

use super::{ApplyContext, Ledger};
use lattice_ledger_state::correspondence::EndedNews;
use lattice_ledger_state::refusal::{DependencyRefusal, Refusal};
use lattice_model::dependency::FOLLOWERS_MAX;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Dependency, DependencyCondition, EndReason, TaskGroup, TaskIndices, TaskSet,
};
use std::sync::Arc;

/// How many ranges of ended tasks one command delivers at most, counted once for each group that gets
/// them. Where the indices of two groups differ and have steps, each task counts as a range.
pub(super) const NEWS_AT_ONCE_MAX: usize = if cfg!(test) { 16 } else { 20_000 };

/// The tasks of a submitted group that correspond to tasks of one group that it follows.
pub(super) struct AwaitedTasks {
    /// The group that it follows.
    of: AllocationId,
    /// Its own tasks whose counterparts have not ended.
    awaited: TaskSet,
    /// Its own tasks whose counterparts have ended without success.
    unmet: TaskSet,
}

/// Refuses `corresponding` unless both allocations are task groups, and the parent has few enough
/// `followers`.
pub(super) fn may_correspond(is_group: bool, parent_is_group: bool, followers: usize) -> Result<(), DependencyRefusal> {
    if !is_group || !parent_is_group {
        return Err(DependencyRefusal::NotTaskGroups);
    }
    if followers >= FOLLOWERS_MAX {
        return Err(DependencyRefusal::TooManyFollowers);
    }
    Ok(())
}

/// Refuses a submission whose tasks wait for those of too many groups.
pub(super) fn follows_few(spec: &AllocationSpec) -> Result<(), Refusal> {
    let mut followed = spec.depends_on.iter().filter(|dependency| dependency.condition == DependencyCondition::Corresponding);
    match followed.nth(FOLLOWERS_MAX) {
        Some(one_more) => Err(Refusal::Dependency { on: one_more.on.to_string(), why: DependencyRefusal::TooManyFollowed }),
        None => Ok(()),
    }
}

/// Whether the search for corresponding tasks of another group looks at each task, and not only at each
/// range.
fn is_walked(indices: &TaskIndices, others: &TaskIndices) -> bool {
    indices != others && indices.runs().iter().any(|run| run.step > 1)
}

/// What it costs to find the tasks of another group that correspond to these: see [`NEWS_AT_ONCE_MAX`].
fn delivery_cost(indices: &TaskIndices, others: &TaskIndices, news: &EndedNews) -> usize {
    let sets = [&news.succeeded, &news.others];
    let tasks = sets.iter().fold(0_usize, |sum, set| sum.saturating_add(set.len() as usize));
    let ranges: usize = sets.iter().map(|set| set.range_count()).sum();
    let cost = if indices == others {
        ranges
    } else if is_walked(indices, others) {
        tasks
    } else {
        // A range may have the indices of several runs.
        ranges + indices.runs().len().min(tasks)
    };
    cost.max(1)
}

/// The end of a group whose tasks are all unmet: names a parent that did not succeed, or else the first.
pub(super) fn unmet_reason(ledger: &Ledger, group: &Allocation) -> Option<EndReason> {
    let parents = group.dependencies.iter().flat_map(|all| &all.parents);
    let corresponding = parents.filter(|parent| parent.condition == DependencyCondition::Corresponding);
    let state = |on: &AllocationId| ledger.allocation(*on).map(|parent| parent.shown_state());
    let all: Vec<_> = corresponding.map(|parent| (parent, state(&parent.on).or(parent.state.ended()))).collect();
    let did_not_succeed = all.iter().find(|(_, state)| state.is_some_and(|state| state != AllocationState::Completed));
    let (parent, state) = did_not_succeed.or(all.first())?;
    let (on, name, condition) = (parent.on, parent.name.clone(), parent.condition);
    Some(EndReason::DependencyUnmet { on, name, condition, state: state.unwrap_or(AllocationState::Cancelled) })
}

impl Ledger {
    /// The tasks of a submission that correspond to tasks of the groups that it follows, by group.
    pub(super) fn tasks_awaited(&self, spec: &AllocationSpec) -> Vec<AwaitedTasks> {
        let Some(own) = spec.tasks.as_deref() else { return Vec::new() };
        let followed = spec.depends_on.iter().filter(|dependency| dependency.condition == DependencyCondition::Corresponding);
        followed.filter_map(|Dependency { on, condition: _ }| self.awaited_of(*on, own)).collect()
    }

    fn awaited_of(&self, of: AllocationId, own: &TaskGroup) -> Option<AwaitedTasks> {
        let (parent, tasks) = (self.allocations.get(&of)?, self.task_groups.get(&of)?);
        let indices = &parent.spec.tasks.as_deref()?.indices;
        let mut unended = TaskSet::first(indices.count());
        let (mut awaited, mut unmet) = (TaskSet::default(), TaskSet::default());
        for (outcome, ended) in &tasks.ended {
            unended.remove_all(ended);
            if !outcome.is_success() {
                unmet.insert_all(&indices.corresponding_in(&own.indices, ended));
            }
        }
        awaited.insert_all(&indices.corresponding_in(&own.indices, &unended));
        Some(AwaitedTasks { of, awaited, unmet })
    }

    /// The group was submitted just now: its tasks wait for their counterparts.
    pub(super) fn await_tasks(&mut self, context: &mut ApplyContext, id: AllocationId, all: &[AwaitedTasks]) {
        if all.is_empty() {
            return;
        }
        let Some(tasks) = self.tasks_mut(context, id) else { return };
        for AwaitedTasks { unmet, .. } in all {
            tasks.end_unmet(unmet);
        }
        for AwaitedTasks { of, awaited, .. } in all.iter().filter(|all| !all.awaited.is_empty()) {
            tasks.await_tasks(*of, awaited);
        }
    }

    /// From now on, group `id` learns which tasks of group `of` end, if any of its tasks wait for them.
    pub(super) fn follow_tasks(&mut self, context: &mut ApplyContext, of: AllocationId, id: AllocationId) {
        if self.task_groups.get(&id).is_some_and(|tasks| tasks.awaits(of))
            && let Some(tasks) = self.tasks_mut(context, of)
        {
            tasks.add_follower(id);
        }
    }

    /// The group is about to end.
    pub(super) fn unfollow_tasks(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let Some(group) = self.allocations.get(&id).filter(|group| group.is_task_group()) else { return };
        let followed = group.spec.depends_on.iter().filter(|dependency| dependency.condition == DependencyCondition::Corresponding);
        let followed: Vec<AllocationId> = followed.map(|dependency| dependency.on).collect();
        for of in followed {
            if self.task_groups.get(&of).is_some_and(|tasks| tasks.follower_count() > 0)
                && let Some(tasks) = self.tasks_mut(context, of)
            {
                tasks.remove_follower(id);
            }
        }
    }

    /// After a command: delivers the news of ended tasks, at a cost of about `left`: see
    /// [`NEWS_AT_ONCE_MAX`].
    pub(super) fn settle_tasks(&mut self, context: &mut ApplyContext, left: &mut usize) {
        let has_news = |id: &&AllocationId| self.task_groups.get(*id).is_some_and(|tasks| tasks.has_news());
        let found: Vec<AllocationId> = context.groups.iter().filter(has_news).copied().collect();
        self.unsettled_tasks.extend(found);
        while *left > 0 {
            let Some(of) = self.unsettled_tasks.pop_first() else { return };
            let Some(spec) = self.allocations.get(&of).map(|group| Arc::clone(&group.spec)) else { continue };
            let followers = self.task_groups.get(&of).map(|tasks| tasks.followers()).unwrap_or_default();
            let ranges_max = (*left / followers.len().max(1)).max(1);
            let is_walked = followers.iter().any(|id| self.is_walked_for(&spec, *id));
            let tasks_max = if is_walked { u32::try_from(ranges_max).unwrap_or(u32::MAX) } else { u32::MAX };
            let taken = self.tasks_mut(context, of).map(|tasks| (tasks.take_news(ranges_max, tasks_max), tasks.has_news()));
            let Some((news, has_more)) = taken else { continue };
            if has_more {
                self.unsettled_tasks.insert(of);
            }
            *left -= 1;
            for id in followers {
                let cost = self.deliver(context, (of, &spec), id, &news);
                *left = left.saturating_sub(cost);
            }
        }
    }

    /// Whether each task of a group with this specification is looked at for that follower.
    fn is_walked_for(&self, spec: &AllocationSpec, follower: AllocationId) -> bool {
        let own = self.allocations.get(&follower).and_then(|group| group.spec.tasks.as_deref());
        own.zip(spec.tasks.as_deref()).is_some_and(|(own, others)| is_walked(&others.indices, &own.indices))
    }

    /// Group `id` learns which tasks of group `of` have ended. Returns the cost.
    fn deliver(
        &mut self,
        context: &mut ApplyContext,
        (of, spec): (AllocationId, &AllocationSpec),
        id: AllocationId,
        news: &EndedNews,
    ) -> usize {
        let own = self.allocations.get(&id).and_then(|group| group.spec.tasks.as_deref());
        let (Some(own), Some(others)) = (own, spec.tasks.as_deref()) else { return 0 };
        let cost = delivery_cost(&others.indices, &own.indices, news);
        let [succeeded, unmet] = [&news.succeeded, &news.others].map(|tasks| others.indices.corresponding_in(&own.indices, tasks));
        let Some(tasks) = self.tasks_mut(context, id) else { return cost };
        tasks.give_up(of, &unmet);
        tasks.meet(of, &succeeded);
        if tasks.has_news() {
            self.unsettled_tasks.insert(id);
        }
        cost
    }
}
