//! How the tasks of a group correspond to those of other groups: which of its tasks wait for tasks of
//! other groups, and which of its ended tasks other groups do not know of yet.

use crate::record_bytes::{TASK_RANGE_BYTES, TASK_SET_BYTES};
use lattice_model::{AllocationId, TaskSet};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correspondence {
    /// The tasks that wait for a task of another group, by that group.
    awaited: BTreeMap<AllocationId, TaskSet>,
    /// All tasks in `awaited`, and how many.
    pub awaiting: TaskSet,
    pub awaiting_count: u32,
    /// The groups whose tasks wait for tasks of this one.
    followers: BTreeSet<AllocationId>,
    /// What the followers do not know yet.
    news: EndedNews,
}

/// Ends of tasks that the followers of a group do not know yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedNews {
    /// Those that have succeeded.
    pub succeeded: TaskSet,
    /// Those that have ended in any other way.
    pub others: TaskSet,
}

impl EndedNews {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.succeeded.is_empty() && self.others.is_empty()
    }
}

/// Takes the first ranges out of the set: at most `ranges` and `tasks`, which it reduces.
fn take_some(set: &mut TaskSet, ranges: &mut usize, tasks: &mut u32) -> TaskSet {
    let mut taken = TaskSet::default();
    while *ranges > 0 && *tasks > 0 {
        let Some(range) = set.ranges().next() else { break };
        let count = (range.end() - range.start()).saturating_add(1).min(*tasks);
        taken.insert_all(&set.take_first(count));
        *ranges -= 1;
        *tasks -= count;
    }
    taken
}

impl Correspondence {
    /// These tasks wait for the tasks of that group. `waiting`: those of them that waited for no
    /// group until now.
    pub fn await_tasks(&mut self, of: AllocationId, tasks: &TaskSet, waiting: &TaskSet) {
        let mut those = self.awaiting.and(tasks);
        those.insert_all(waiting);
        self.awaiting.insert_all(waiting);
        self.awaiting_count += waiting.len();
        if !those.is_empty() {
            self.awaited.entry(of).or_default().insert_all(&those);
        }
    }

    /// Whether tasks wait for tasks of that group.
    pub fn awaits(&self, of: AllocationId) -> bool {
        self.awaited.contains_key(&of)
    }

    /// These tasks wait no longer for those of that group. Returns the ones that wait for no task of
    /// any other group either.
    pub fn meet(&mut self, of: AllocationId, tasks: &TaskSet) -> TaskSet {
        let Some(awaited) = self.awaited.get_mut(&of) else { return TaskSet::default() };
        let mut ready = awaited.and(tasks);
        awaited.remove_all(&ready);
        if awaited.is_empty() {
            self.awaited.remove(&of);
        }
        for others in self.awaited.values() {
            let unready = others.and(&ready);
            ready.remove_all(&unready);
        }
        self.awaiting.remove_all(&ready);
        self.awaiting_count -= ready.len();
        ready
    }

    /// Of these tasks, those that wait for a task of that group stop waiting. Returns them.
    pub fn give_up(&mut self, of: AllocationId, tasks: &TaskSet) -> TaskSet {
        let those = self.awaited.get(&of).map_or_else(TaskSet::default, |awaited| awaited.and(tasks));
        self.take(&those)
    }

    /// Of these tasks, those that wait for tasks of other groups stop waiting. Returns them.
    pub fn take(&mut self, tasks: &TaskSet) -> TaskSet {
        let those = self.awaiting.and(tasks);
        if !those.is_empty() {
            self.awaiting.remove_all(&those);
            self.awaiting_count -= those.len();
            self.awaited.values_mut().for_each(|awaited| awaited.remove_all(&those));
            self.awaited.retain(|_, awaited| !awaited.is_empty());
        }
        those
    }

    /// All tasks stop waiting. Returns those that waited.
    pub fn take_all(&mut self) -> TaskSet {
        self.awaited.clear();
        self.awaiting_count = 0;
        std::mem::take(&mut self.awaiting)
    }

    /// Tasks of that group wait for tasks of this one.
    pub fn add_follower(&mut self, group: AllocationId) {
        self.followers.insert(group);
    }

    /// Nothing of that group waits any more.
    pub fn remove_follower(&mut self, group: AllocationId) {
        self.followers.remove(&group);
        if self.followers.is_empty() {
            self.news = EndedNews::default();
        }
    }

    /// How many groups have tasks that wait for tasks of this one.
    pub fn follower_count(&self) -> usize {
        self.followers.len()
    }

    /// These tasks have ended: records that for the followers, if there are any.
    pub fn note_ended(&mut self, is_success: bool, tasks: &TaskSet) {
        if self.followers.is_empty() {
            return;
        }
        let news = if is_success { &mut self.news.succeeded } else { &mut self.news.others };
        news.insert_all(tasks);
    }

    /// Whether there is news for the followers.
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// The groups whose tasks wait for tasks of this one.
    pub fn followers(&self) -> Vec<AllocationId> {
        self.followers.iter().copied().collect()
    }

    /// Removes and returns news for the followers: at most `ranges_max` ranges and `tasks_max` tasks.
    pub fn take_news(&mut self, ranges_max: usize, tasks_max: u32) -> EndedNews {
        let (mut ranges, mut tasks) = (ranges_max, tasks_max);
        let EndedNews { succeeded, others } = &mut self.news;
        let [succeeded, others] = [succeeded, others].map(|set| take_some(set, &mut ranges, &mut tasks));
        EndedNews { succeeded, others }
    }

    /// Whether nothing corresponds any more.
    pub fn is_over(&self) -> bool {
        self.awaiting.is_empty() && self.followers.is_empty()
    }

    /// Memory of its sets.
    pub fn bytes(&self) -> usize {
        let Self { awaited, awaiting, awaiting_count: _, followers, news: EndedNews { succeeded, others } } = self;
        let sets = awaited.values().chain([awaiting, succeeded, others]);
        let sets: usize = sets.map(|set| TASK_SET_BYTES + set.range_count() * TASK_RANGE_BYTES).sum();
        sets + followers.len() * 4 * size_of::<AllocationId>() + TASK_SET_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> AllocationId {
        AllocationId(uuid::Uuid::from_u128(number))
    }

    fn set(ranges: &[(u32, u32)]) -> TaskSet {
        TaskSet::from(ranges.to_vec())
    }

    #[test]
    fn a_task_that_waits_for_two_groups_begins_with_the_later_one() {
        let mut of = Correspondence::default();
        of.await_tasks(id(1), &set(&[(0, 5)]), &set(&[(0, 5)]));
        of.await_tasks(id(2), &set(&[(4, 9)]), &set(&[(6, 9)]));
        assert_eq!((of.awaiting.clone(), of.awaiting_count), (set(&[(0, 9)]), 10));
        assert_eq!(of.meet(id(1), &set(&[(3, 20)])), set(&[(3, 3)]), "4 and 5 wait for the second one");
        assert_eq!(of.meet(id(1), &set(&[(3, 5)])), set(&[]), "once");
        assert_eq!(of.meet(id(2), &set(&[(4, 6)])), set(&[(4, 6)]));
        assert_eq!(of.give_up(id(2), &set(&[(0, 7)])), set(&[(7, 7)]));
        assert_eq!(of.take(&set(&[(2, 8)])), set(&[(2, 2), (8, 8)]));
        assert_eq!((of.awaiting.clone(), of.awaiting_count), (set(&[(0, 1), (9, 9)]), 3));
        assert_eq!((of.take_all(), of.awaiting_count, of.is_over()), (set(&[(0, 1), (9, 9)]), 0, true));
    }

    #[test]
    fn news_is_taken_in_parts() {
        let mut of = Correspondence::default();
        of.add_follower(id(3));
        of.note_ended(true, &set(&[(0, 9), (20, 29)]));
        of.note_ended(false, &set(&[(40, 49)]));
        assert_eq!(of.take_news(1, 100), EndedNews { succeeded: set(&[(0, 9)]), others: set(&[]) });
        assert_eq!(of.take_news(9, 12), EndedNews { succeeded: set(&[(20, 29)]), others: set(&[(40, 41)]) });
        assert_eq!(of.take_news(9, u32::MAX), EndedNews { succeeded: set(&[]), others: set(&[(42, 49)]) });
        assert!(!of.has_news());
    }

    #[test]
    fn only_a_group_that_is_followed_keeps_news() {
        let mut of = Correspondence::default();
        of.note_ended(true, &set(&[(0, 1)]));
        assert!(!of.has_news());
        of.add_follower(id(3));
        of.note_ended(true, &set(&[(2, 2)]));
        of.note_ended(false, &set(&[(4, 4)]));
        assert!(of.has_news());
        assert_eq!(of.take_news(9, 9), EndedNews { succeeded: set(&[(2, 2)]), others: set(&[(4, 4)]) });
        assert_eq!((of.has_news(), of.followers()), (false, vec![id(3)]));
        of.note_ended(false, &set(&[(5, 5)]));
        of.remove_follower(id(3));
        assert!(!of.has_news() && of.is_over());
    }
}
