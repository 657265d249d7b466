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
//! a command costs what it changed, and not the size of a group. One command delivers a bounded number
//! of them; groups with more stay in `unsettled_tasks`, which is replicated, until the next command.

use super::refusal::DependencyRefusal;
use super::state::correspondence::EndedNews;
use super::{ApplyContext, Ledger};
use lattice_model::dependency::FOLLOWERS_MAX;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Dependency, DependencyCondition, EndReason, TaskGroup, TaskSet,
};
use std::sync::Arc;

/// What a submitted group has to know of the tasks of a group that it follows.
pub(super) struct AwaitedTasks {
    /// The group that it follows.
    of: AllocationId,
    /// Its own tasks whose counterparts have not ended.
    awaited: TaskSet,
    /// Its own tasks whose counterparts have ended without success.
    unmet: TaskSet,
}

/// Refuses `corresponding` between allocations that are not both task groups, or with too many that
/// follow. `followers`: how many do.
pub(super) fn may_correspond(is_group: bool, parent_is_group: bool, followers: usize) -> Result<(), DependencyRefusal> {
    if !is_group || !parent_is_group {
        return Err(DependencyRefusal::NotTaskGroups);
    }
    if followers >= FOLLOWERS_MAX {
        return Err(DependencyRefusal::TooManyFollowers);
    }
    Ok(())
}

/// What its tasks wait for, if none of them has run, and none will.
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
    /// What a submission has to know of the tasks of the groups that it follows.
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

    /// The group was submitted just now: its tasks wait for what they correspond to.
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

    /// The group learns of the ends of that group's tasks from now on, if tasks of it wait for them.
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

    /// After a command: delivers the news of ended tasks, to at most `left` groups.
    pub(super) fn settle_tasks(&mut self, context: &mut ApplyContext, left: &mut usize) {
        let has_news = |id: &&AllocationId| self.task_groups.get(*id).is_some_and(|tasks| tasks.has_news());
        let found: Vec<AllocationId> = context.groups.iter().filter(has_news).copied().collect();
        self.unsettled_tasks.extend(found);
        while *left > 0 {
            let Some(of) = self.unsettled_tasks.pop_first() else { return };
            let Some((news, followers)) = self.tasks_mut(context, of).map(|tasks| tasks.take_news()) else { continue };
            *left = left.saturating_sub(followers.len().max(1));
            let Some(spec) = self.allocations.get(&of).map(|group| Arc::clone(&group.spec)) else { continue };
            for id in followers {
                self.deliver(context, (of, &spec), id, &news);
            }
        }
    }

    /// A group learns which tasks of that group have ended.
    fn deliver(&mut self, context: &mut ApplyContext, (of, spec): (AllocationId, &AllocationSpec), id: AllocationId, news: &EndedNews) {
        let own = self.allocations.get(&id).and_then(|group| group.spec.tasks.as_deref());
        let (Some(own), Some(others)) = (own, spec.tasks.as_deref()) else { return };
        let [succeeded, unmet] = [&news.succeeded, &news.others].map(|tasks| others.indices.corresponding_in(&own.indices, tasks));
        let Some(tasks) = self.tasks_mut(context, id) else { return };
        tasks.give_up(of, &unmet);
        tasks.meet(of, &succeeded);
        if tasks.has_news() {
            self.unsettled_tasks.insert(id);
        }
    }
}
