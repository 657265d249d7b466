//! The tasks that a lane of a task group holds, and how far they are. Pure: the caller runs them, and passes the time.
//!
//! ```text
//!   waiting ──begin──▶ running ──end──▶ ended ──reported, and the next lease lacks it──▶ forgotten
//!    │ ▲                  │
//!    │ ╰──did not run, or was revoked and is leased again
//!    ╰──return──▶ returned, until an answer shows that the quorum knows ──▶ forgotten
//! ```

use lattice_model::{EndedTasks, LaneReport, LaneReturn, LaneWork, TaskOutcome, TaskSet};
use lattice_runtime::shim::{TASKS_PER_LOG_DIRECTORY, task_launch};
use std::collections::BTreeMap;

/// The interval between two reports while enough tasks are left, in milliseconds.
const REPORT_INTERVAL_MS: u64 = 500;
/// After this many tasks, those before them count half as much towards the average time.
const MEAN_TASKS: u64 = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Lane {
    /// All tasks of the latest lease.
    leased: TaskSet,
    /// Those of them that were not begun.
    waiting: TaskSet,
    /// Those of them that are returned: they are not begun, whatever happens to the return.
    returned: TaskSet,
    /// The number of the present return, or of the next one.
    return_number: u32,
    /// Whether the present return must still be reported under its number.
    is_return_due: bool,
    running: Option<u32>,
    /// Those of `leased` that have ended.
    ended: BTreeMap<TaskOutcome, TaskSet>,
    /// Whether no further task will come.
    is_last: bool,
    /// Whether no further task may begin.
    is_closed: bool,
    /// How many tasks were left when the latest lease came.
    lease_len: u32,
    /// Whether it was reported since then that few of them are left.
    reported_few: bool,
    /// Whether a task has ended since the latest report.
    has_news: bool,
    /// When the latest report was made.
    reported_at_ms: u64,
    /// How long the latest tasks that ended took in total, in microseconds, and how many they were.
    took_us: u64,
    took_count: u64,
}

impl Lane {
    /// Takes the tasks that the lane holds from now on. Returns whether the running task is not one of them.
    pub fn lease(&mut self, work: LaneWork) -> bool {
        self.leased = work.leased;
        self.is_last = work.is_last;
        for tasks in self.ended.values_mut() {
            *tasks = tasks.and(&self.leased);
        }
        self.ended.retain(|_, tasks| !tasks.is_empty());
        self.has_news &= !self.ended.is_empty();
        self.follow_return(work.returns);
        self.waiting = self.leased.clone();
        self.waiting.remove_all(&self.returned);
        self.ended.values().for_each(|tasks| self.waiting.remove_all(tasks));
        if let Some(running) = self.running {
            self.waiting.remove(running..=running);
        }
        self.lease_len = self.left();
        self.reported_few = false;
        self.running.is_some_and(|running| !self.leased.contains(running))
    }

    /// The quorum has accepted this many returns. A quorum that was recovered from a backup may know fewer than before:
    /// then the present return is reported once more, under the number that the quorum expects.
    fn follow_return(&mut self, accepted: u32) {
        let is_accepted = accepted == self.return_number.wrapping_add(1);
        self.returned = if is_accepted { TaskSet::default() } else { self.returned.and(&self.leased) };
        self.is_return_due = !self.returned.is_empty() && (self.is_return_due || accepted != self.return_number);
        self.return_number = accepted;
    }

    /// The running task takes long: returns those that were not begun, so that other lanes can run them. Does nothing
    /// while an earlier return is not accepted.
    pub fn return_waiting(&mut self) {
        if self.running.is_some() && !self.waiting.is_empty() && self.returned.is_empty() {
            self.returned = std::mem::take(&mut self.waiting);
            self.is_return_due = true;
        }
    }

    /// Begins the next task; `None`: there is none, one runs already, or none may begin.
    pub fn begin(&mut self) -> Option<u32> {
        if self.is_closed || self.running.is_some() {
            return None;
        }
        let next = self.waiting.ranges().next().map(|range| *range.start())?;
        self.waiting.remove(next..=next);
        self.running = Some(next);
        Some(next)
    }

    /// The running task has ended. `took_us`: how long it ran, in microseconds; `None`: it could not be started. A task
    /// that is not leased any more is forgotten.
    pub fn end(&mut self, outcome: TaskOutcome, took_us: Option<u64>) {
        match outcome {
            // It was revoked. If it is leased again, the quorum did not cancel it, and ignores this end.
            TaskOutcome::Cancelled => return self.put_back(),
            TaskOutcome::Exited(_) | TaskOutcome::WalltimeExceeded | TaskOutcome::Lost | TaskOutcome::Unmet => {}
        }
        let Some(task) = self.running.take().filter(|task| self.leased.contains(*task)) else { return };
        self.ended.entry(outcome).or_default().insert(task..=task);
        self.has_news = true;
        if let Some(took_us) = took_us {
            if self.took_count >= MEAN_TASKS {
                (self.took_us, self.took_count) = (self.took_us / 2, self.took_count / 2);
            }
            self.took_us = self.took_us.saturating_add(took_us);
            self.took_count += 1;
        }
    }

    /// The running task did not run: it waits again, if it is still leased.
    pub fn put_back(&mut self) {
        if let Some(task) = self.running.take().filter(|task| self.leased.contains(*task)) {
            self.waiting.insert(task..=task);
        }
    }

    /// Begins no further task from now on: the lane ends when nothing runs and every end is confirmed.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether a task of this launch number ([`task_launch`]) waits or runs.
    pub fn has_tasks_of(&self, launch: u32) -> bool {
        let first = (launch - 1) * TASKS_PER_LOG_DIRECTORY;
        let mut all = TaskSet::default();
        all.insert(first..=first + (TASKS_PER_LOG_DIRECTORY - 1));
        !self.waiting.and(&all).is_empty() || self.running.is_some_and(|running| task_launch(running) == launch)
    }

    /// The number of leased tasks that have not ended.
    fn left(&self) -> u32 {
        self.waiting.len() + u32::from(self.running.is_some_and(|running| self.leased.contains(running)))
    }

    /// When to report, in milliseconds of the clock passed to [`Self::report`]; `None`: there is nothing new.
    pub fn report_due_ms(&self) -> Option<u64> {
        if !self.has_news && !self.is_return_due {
            return None;
        }
        let nothing_to_run = self.running.is_none() && (self.is_closed || self.waiting.is_empty());
        let is_urgent = self.is_return_due || nothing_to_run || (!self.reported_few && self.has_few());
        Some(if is_urgent { 0 } else { self.reported_at_ms.saturating_add(REPORT_INTERVAL_MS) })
    }

    /// Whether less than half of the latest lease is left.
    fn has_few(&self) -> bool {
        self.left() < self.lease_len.div_ceil(2)
    }

    /// The unconfirmed ends and the present return; and how many leased tasks wait or run.
    pub fn report(&mut self, now_ms: u64) -> (LaneReport, u32) {
        (self.has_news, self.is_return_due) = (false, false);
        self.reported_at_ms = now_ms;
        self.reported_few |= self.has_few();
        let ended = self.ended.iter().map(|(outcome, tasks)| EndedTasks { outcome: *outcome, tasks: tasks.clone() }).collect();
        // Zero means that none has ended.
        let mean_us = self.took_us.checked_div(self.took_count).map_or(0, |mean| mean.max(1));
        let returned = (!self.returned.is_empty()).then(|| LaneReturn { number: self.return_number, tasks: self.returned.clone() });
        (LaneReport { ended, mean_us, returned }, self.left())
    }

    /// Whether the task has ended here and that is not confirmed.
    pub fn is_unconfirmed(&self, task: u32) -> bool {
        self.ended.values().any(|tasks| tasks.contains(task))
    }

    /// Whether some end or return is not confirmed.
    pub fn has_unconfirmed(&self) -> bool {
        !self.ended.is_empty() || !self.returned.is_empty()
    }

    /// Whether it has ended: nothing runs, every end is confirmed, and no task will begin.
    pub fn is_over(&self) -> bool {
        self.running.is_none() && self.ended.is_empty() && (self.is_closed || (self.is_last && self.leased.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: TaskOutcome = TaskOutcome::Exited(0);
    const FAILED: TaskOutcome = TaskOutcome::Exited(3);

    fn work(tasks: impl IntoIterator<Item = u32>, is_last: bool) -> LaneWork {
        LaneWork { leased: tasks.into_iter().collect(), is_last, returns: 0 }
    }

    fn ends(ended: Vec<EndedTasks>, mean_us: u64) -> LaneReport {
        LaneReport { ended, mean_us, returned: None }
    }

    fn ended(outcome: TaskOutcome, tasks: impl IntoIterator<Item = u32>) -> EndedTasks {
        EndedTasks { outcome, tasks: tasks.into_iter().collect() }
    }

    /// A lane that holds these tasks.
    fn lane(tasks: impl IntoIterator<Item = u32>) -> Lane {
        let mut lane = Lane::default();
        assert!(!lane.lease(work(tasks, false)));
        lane
    }

    fn run(lane: &mut Lane, outcome: TaskOutcome) -> u32 {
        let task = lane.begin().expect("a task waits");
        lane.end(outcome, Some(10));
        task
    }

    #[test]
    fn tasks_run_one_at_a_time_in_ascending_order() {
        let mut lane = lane([7, 3, 4]);
        assert_eq!((lane.begin(), lane.begin()), (Some(3), None), "one runs");
        lane.end(DONE, Some(5));
        assert_eq!([run(&mut lane, FAILED), run(&mut lane, DONE)], [4, 7]);
        assert_eq!(lane.begin(), None);
        let report = ends(vec![ended(DONE, [3, 7]), ended(FAILED, [4])], 8);
        assert_eq!(lane.report(0), (report, 0));
    }

    #[test]
    fn an_end_is_reported_until_the_lease_lacks_it_and_never_runs_again() {
        let mut lane = lane([1, 2]);
        run(&mut lane, DONE);
        assert_eq!(lane.report(0).0.ended, [ended(DONE, [1])]);
        // The answer to a report that was made before the end.
        lane.lease(work([1, 2, 3], false));
        assert_eq!(lane.begin(), Some(2));
        assert_eq!(lane.report(0), (ends(vec![ended(DONE, [1])], 10), 2));
        lane.lease(work([2, 3], false));
        assert_eq!(lane.report(0), (ends(vec![], 10), 2));
    }

    #[test]
    fn an_end_is_unconfirmed_until_the_lease_lacks_it() {
        let mut lane = lane([1, 2]);
        run(&mut lane, DONE);
        lane.begin();
        assert_eq!([0, 1, 2].map(|task| lane.is_unconfirmed(task)), [false, true, false]);
        lane.report(0);
        assert!(lane.is_unconfirmed(1));
        lane.lease(work([2], false));
        lane.end(TaskOutcome::Cancelled, None);
        assert_eq!([1, 2].map(|task| lane.is_unconfirmed(task)), [false, false], "one that is revoked is no end");
    }

    #[test]
    fn few_tasks_are_reported_once_and_the_rest_at_intervals() {
        let mut lane = lane(0..10);
        lane.report(1000);
        assert_eq!(lane.report_due_ms(), None);
        run(&mut lane, DONE);
        assert_eq!(lane.report_due_ms(), Some(1500));
        for _ in 0..4 {
            run(&mut lane, DONE);
        }
        assert_eq!(lane.report_due_ms(), Some(1500), "half is left");
        run(&mut lane, DONE);
        assert_eq!(lane.report_due_ms(), Some(0));
        assert_eq!(lane.report(1100).1, 4);
        run(&mut lane, DONE);
        assert_eq!(lane.report_due_ms(), Some(1600), "the next lease is on its way");
        for _ in 0..3 {
            run(&mut lane, DONE);
        }
        assert_eq!(lane.report_due_ms(), Some(0), "nothing is left to run");
        lane.report(1100);
        assert_eq!(lane.report_due_ms(), None);
    }

    #[test]
    fn a_single_task_is_reported_at_its_end() {
        let mut lane = lane([5]);
        lane.begin();
        assert_eq!(lane.report_due_ms(), None);
        lane.end(DONE, Some(0));
        assert_eq!(lane.report_due_ms(), Some(0));
        assert_eq!(lane.report(0), (ends(vec![ended(DONE, [5])], 1), 0));
    }

    #[test]
    fn a_revoked_task_is_neither_run_nor_reported() {
        let mut lane = lane([1, 2, 3]);
        lane.begin();
        assert!(!lane.lease(work([1, 3], false)));
        assert!(lane.lease(work([3], false)), "the running one");
        assert_eq!(lane.begin(), None, "it still runs");
        lane.end(TaskOutcome::Cancelled, Some(10));
        assert_eq!((lane.report_due_ms(), lane.has_unconfirmed()), (None, false));
        assert_eq!(lane.begin(), Some(3));
    }

    #[test]
    fn a_task_that_is_revoked_and_leased_again_runs_again() {
        let mut lane = lane([1, 2]);
        lane.begin();
        assert!(lane.lease(work([2], false)));
        assert!(!lane.lease(work([1, 2], false)), "while it is ended");
        lane.end(TaskOutcome::Cancelled, Some(10));
        assert!(!lane.has_unconfirmed());
        assert_eq!([run(&mut lane, DONE), run(&mut lane, DONE)], [1, 2]);
        assert_eq!(lane.report(0), (ends(vec![ended(DONE, [1, 2])], 10), 0));
    }

    #[test]
    fn tasks_behind_a_long_one_are_returned_and_not_begun_here() {
        let mut lane = lane(0..5);
        lane.return_waiting();
        assert_eq!((lane.report_due_ms(), lane.begin()), (None, Some(0)), "without a task that takes long, nothing is returned");
        lane.return_waiting();
        assert_eq!(lane.report_due_ms(), Some(0));
        let returned = |number, tasks: std::ops::Range<u32>| Some(LaneReturn { number, tasks: tasks.collect() });
        assert_eq!(lane.report(1000), (LaneReport { returned: returned(0, 1..5), ..LaneReport::default() }, 1));
        assert_eq!((lane.report_due_ms(), lane.has_unconfirmed()), (None, true));
        // The answer to an earlier report.
        lane.lease(work(0..7, false));
        lane.return_waiting();
        lane.end(DONE, Some(10));
        assert_eq!(lane.begin(), Some(5));
        assert_eq!(lane.report(1000).0, LaneReport { returned: returned(0, 1..5), ..ends(vec![ended(DONE, [0])], 10) });
        // Accepted; one of them is leased again.
        lane.lease(LaneWork { returns: 1, ..work([2, 5, 6], false) });
        assert_eq!((lane.has_unconfirmed(), lane.report_due_ms()), (false, None));
        lane.return_waiting();
        assert_eq!(lane.report(1000).0.returned, Some(LaneReturn { number: 1, tasks: [2, 6].into_iter().collect() }));
        // The returned tasks were cancelled.
        lane.lease(LaneWork { returns: 1, ..work([5], false) });
        assert_eq!((lane.has_unconfirmed(), lane.report_due_ms(), lane.begin()), (false, None, None));
    }

    #[test]
    fn a_return_that_a_recovered_quorum_does_not_know_is_reported_once_more() {
        let mut lane = lane(0..3);
        lane.lease(LaneWork { returns: 7, ..work(0..3, false) });
        lane.begin();
        lane.return_waiting();
        assert_eq!(lane.report(1000).0.returned.map(|returned| returned.number), Some(7));
        lane.lease(LaneWork { returns: 4, ..work(0..3, false) });
        assert_eq!((lane.report_due_ms(), lane.report(1000).0.returned.map(|returned| returned.number)), (Some(0), Some(4)));
        lane.lease(LaneWork { returns: 5, ..work(0..1, false) });
        assert!(!lane.has_unconfirmed());
    }

    #[test]
    fn the_average_time_is_that_of_the_latest_tasks() {
        let mut lane = lane(0..2000);
        let took = |lane: &mut Lane, count: u32, us: u64| {
            for _ in 0..count {
                lane.begin();
                lane.end(DONE, Some(us));
            }
            lane.report(0).0.mean_us
        };
        assert_eq!(took(&mut lane, 500, 1000), 1000);
        let (one, some) = (took(&mut lane, 1, 600_000_000), took(&mut lane, 1000, 1000));
        assert!(one > 1_000_000 && some < 2000, "{one} {some}");
    }

    #[test]
    fn a_task_that_could_not_be_started_has_no_time() {
        let mut lane = lane([1, 2, 3]);
        lane.begin();
        lane.end(TaskOutcome::Exited(127), None);
        assert_eq!(lane.report(0).0.mean_us, 0);
        run(&mut lane, DONE);
        assert_eq!(lane.report(0).0.mean_us, 10);
        assert_eq!(lane.begin(), Some(3));
        lane.put_back();
        assert_eq!((lane.report(0).1, lane.begin()), (1, Some(3)));
    }

    #[test]
    fn it_is_over_when_it_holds_nothing_and_no_task_will_come() {
        let mut lane = Lane::default();
        assert!(!lane.is_over(), "nothing was leased yet");
        lane.lease(work([1], true));
        lane.begin();
        lane.end(DONE, Some(10));
        assert!(!lane.is_over(), "its end is not confirmed");
        lane.lease(work([], false));
        assert!(!lane.is_over(), "a task may come");
        lane.lease(work([], true));
        assert!(lane.is_over());
    }

    #[test]
    fn a_closed_lane_keeps_what_has_not_begun_and_ends_when_its_ends_are_confirmed() {
        let mut lane = lane(0..10);
        lane.report(1000);
        lane.begin();
        lane.close();
        assert_eq!((lane.begin(), lane.is_over()), (None, false));
        lane.end(DONE, Some(10));
        assert_eq!((lane.report_due_ms(), lane.begin(), lane.is_over()), (Some(0), None, false));
        assert_eq!(lane.report(1100).1, 9);
        lane.lease(work(1..20, false));
        assert_eq!((lane.begin(), lane.is_over()), (None, true));
    }

    #[test]
    fn a_thousand_tasks_are_done_when_none_of_them_waits_or_runs() {
        let mut lane = lane([998, 1000, 2500]);
        let of = |lane: &Lane| [1, 2, 3].map(|launch| lane.has_tasks_of(launch));
        assert_eq!(of(&lane), [true; 3]);
        lane.begin();
        assert_eq!(of(&lane), [true; 3]);
        lane.end(DONE, Some(10));
        assert_eq!(of(&lane), [false, true, true]);
    }
}
