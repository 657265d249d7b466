//! The steps of an allocation: its launches, in the order in which they began. The head's agent writes
//! an event when a launch begins and when it ends; [`JobSteps`] is the sum of the events.
//!
//! A step's number is the launch's number less 1, as in Slurm: the first launch of a script is step 0.

use crate::allocation_state::AllocationState;
use crate::end_reason::EndReason;
use crate::hostlist;
use crate::ids::LaunchId;
use crate::launch::LaunchSpec;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Limit of the steps that are stored of an allocation. Older ones are only counted.
pub const STEPS_MAX: usize = 1000;
/// Limit of a step's name, in characters.
pub const STEP_NAME_CHARS_MAX: usize = 64;
/// Limit of the list of a step's nodes, in bytes; a longer one is not stored.
pub const STEP_NODES_BYTES_MAX: usize = 512;
/// Limit of the reason of a step's end, in characters.
pub const STEP_REASON_CHARS_MAX: usize = 160;

/// One launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStep {
    /// The launch's number, from 1.
    pub launch_number: u32,
    /// The launch's id.
    pub launch: LaunchId,
    /// The name of its program, without the directory.
    pub name: String,
    /// How many ranks it has.
    pub ranks: u32,
    /// Its nodes as a hostlist; empty: the list is longer than [`STEP_NODES_BYTES_MAX`].
    pub nodes: String,
    /// How many nodes it has.
    pub node_count: u32,
    /// When it began.
    pub began_at: Timestamp,
    /// How it ended; `None`: it runs, or its end was not recorded.
    pub end: Option<JobStepEnd>,
}

/// The end of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStepEnd {
    /// When it ended.
    pub at: Timestamp,
    /// `Completed`, `Failed` or `Cancelled`.
    pub state: AllocationState,
    /// The highest exit code of its ranks, or that of its abort; `None`: its allocation ended first.
    pub exit_code: Option<i32>,
    /// Why it ended, in the words of [`EndReason`].
    pub reason: String,
}

/// An event in the record of an allocation's steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobStepEvent {
    /// The totals of older steps, which are not stored any more.
    Omitted(JobStepTotals),
    /// A launch began.
    Began(JobStep),
    /// The launch with this number ended.
    Ended {
        /// The launch's number.
        launch_number: u32,
        /// How.
        end: JobStepEnd,
    },
}

/// How many steps there are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStepTotals {
    /// All that have begun.
    pub begun: u64,
    /// Those that completed.
    pub completed: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that were cancelled, or whose allocation ended first.
    pub cancelled: u64,
}

/// The steps of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSteps {
    /// The totals of steps that are not in `steps`.
    pub omitted: JobStepTotals,
    /// The newest steps, ascending by the launch's number; at most [`STEPS_MAX`].
    pub steps: Vec<JobStep>,
}

impl JobStep {
    /// A launch that begins now.
    pub fn of(spec: &LaunchSpec, now: Timestamp) -> Self {
        let program = spec.argv.first().map_or("", String::as_str);
        let nodes = hostlist::fold_in_order(spec.nodes_with_ranks().iter().map(|ranks| &ranks.node));
        Self {
            launch_number: spec.number,
            launch: spec.id,
            name: plain(program.rsplit('/').next().unwrap_or(program), STEP_NAME_CHARS_MAX),
            ranks: spec.size(),
            nodes: Some(nodes).filter(|nodes| nodes.len() <= STEP_NODES_BYTES_MAX).unwrap_or_default(),
            node_count: u32::try_from(spec.nodes_with_ranks().len()).unwrap_or(u32::MAX),
            began_at: now,
            end: None,
        }
    }
}

impl JobStepEnd {
    /// A launch that ended with this code, for this reason.
    pub fn of(reason: &EndReason, exit_code: i32, now: Timestamp) -> Self {
        let state = reason.state();
        Self { at: now, state, exit_code: Some(exit_code), reason: plain(&reason.to_string(), STEP_REASON_CHARS_MAX) }
    }

    /// A launch whose allocation ended before it.
    pub fn with_allocation(now: Timestamp) -> Self {
        Self { at: now, state: AllocationState::Cancelled, exit_code: None, reason: "its allocation ended first".to_owned() }
    }
}

impl JobStepTotals {
    fn add(&mut self, step: &JobStep) {
        // These totals may come from another node, so the sum must not overflow.
        let add_one = |count: &mut u64| *count = count.saturating_add(1);
        add_one(&mut self.begun);
        match step.end.as_ref().map(|end| end.state) {
            Some(AllocationState::Completed) => add_one(&mut self.completed),
            Some(AllocationState::Failed) => add_one(&mut self.failed),
            Some(_) => add_one(&mut self.cancelled),
            None => {}
        }
    }
}

impl JobSteps {
    /// Applies an event. A launch may be reported again after a restart of its agent: the first report
    /// counts.
    pub fn apply(&mut self, event: JobStepEvent) {
        match event {
            JobStepEvent::Omitted(totals) => self.omitted = totals,
            JobStepEvent::Began(step) => {
                let Err(at) = self.steps.binary_search_by_key(&step.launch_number, |known| known.launch_number) else { return };
                self.steps.insert(at, step);
                if self.steps.len() > STEPS_MAX {
                    // A running step is kept longer than those that have ended.
                    let oldest = self.steps.iter().position(|step| step.end.is_some()).unwrap_or(0);
                    let gone = self.steps.remove(oldest);
                    self.omitted.add(&gone);
                }
            }
            JobStepEvent::Ended { launch_number, end } => {
                let at = self.steps.binary_search_by_key(&launch_number, |known| known.launch_number);
                if let Some(step) = at.ok().and_then(|at| self.steps.get_mut(at))
                    && step.end.is_none()
                {
                    step.end = Some(end);
                }
            }
        }
    }

    /// The totals of all steps.
    pub fn totals(&self) -> JobStepTotals {
        let mut totals = self.omitted;
        self.steps.iter().for_each(|step| totals.add(step));
        totals
    }

    /// The events that add up to these steps.
    pub fn events(&self) -> impl Iterator<Item = JobStepEvent> + '_ {
        let of_step = |step: &JobStep| {
            let began = JobStepEvent::Began(JobStep { end: None, ..step.clone() });
            let ended = step.end.clone().map(|end| JobStepEvent::Ended { launch_number: step.launch_number, end });
            std::iter::once(began).chain(ended)
        };
        std::iter::once(JobStepEvent::Omitted(self.omitted)).chain(self.steps.iter().flat_map(of_step))
    }

    /// The highest number of a launch.
    pub fn launch_number_max(&self) -> u32 {
        self.steps.last().map_or(0, |step| step.launch_number)
    }
}

/// The beginning of a text, which users choose, without control characters.
fn plain(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn step(launch_number: u32) -> JobStep {
        JobStep {
            launch_number,
            launch: LaunchId(Uuid::from_u128(launch_number.into())),
            name: "sim".to_owned(),
            ranks: 2,
            nodes: "n[1-2]".to_owned(),
            node_count: 2,
            began_at: Timestamp(1000 + u64::from(launch_number)),
            end: None,
        }
    }

    fn ended(launch_number: u32, code: i32) -> JobStepEvent {
        JobStepEvent::Ended { launch_number, end: JobStepEnd::of(&EndReason::Exited { code }, code, Timestamp(5000)) }
    }

    #[test]
    fn the_first_report_of_a_launch_counts() {
        let mut steps = JobSteps::default();
        for event in [JobStepEvent::Began(step(2)), JobStepEvent::Began(step(1)), ended(1, 3), ended(1, 0), ended(9, 0)] {
            steps.apply(event);
        }
        steps.apply(JobStepEvent::Began(JobStep { ranks: 7, ..step(1) }));
        let shown: Vec<_> =
            steps.steps.iter().map(|step| (step.launch_number, step.ranks, step.end.as_ref().map(|end| end.state))).collect();
        assert_eq!(shown, [(1, 2, Some(AllocationState::Failed)), (2, 2, None)]);
        assert_eq!(steps.totals(), JobStepTotals { begun: 2, completed: 0, failed: 1, cancelled: 0 });
        assert_eq!(steps.launch_number_max(), 2);
    }

    #[test]
    fn the_newest_steps_are_kept_and_running_ones_longer_than_ended_ones() {
        let mut steps = JobSteps::default();
        let count = u32::try_from(STEPS_MAX).unwrap() + 3;
        for number in 1..=count {
            steps.apply(JobStepEvent::Began(step(number)));
            if number > 1 {
                steps.apply(ended(number, 0));
            }
        }
        assert_eq!(steps.steps.len(), STEPS_MAX);
        assert_eq!(steps.steps.iter().take(2).map(|step| step.launch_number).collect::<Vec<_>>(), [1, 5]);
        assert_eq!(steps.totals(), JobStepTotals { begun: count.into(), completed: u64::from(count) - 1, failed: 0, cancelled: 0 });
        let mut again = JobSteps::default();
        steps.events().for_each(|event| again.apply(event));
        assert_eq!(again, steps);
    }

    #[test]
    fn an_end_says_its_state_and_why() {
        let of = |reason: &EndReason| {
            let end = JobStepEnd::of(reason, 7, Timestamp(1));
            (end.state, end.reason)
        };
        let cancelled = EndReason::Cancelled { by: "ada\u{1b}".to_owned() };
        assert_eq!(of(&cancelled), (AllocationState::Cancelled, "cancelled by ada?".to_owned()));
        assert_eq!(of(&EndReason::WalltimeExceeded), (AllocationState::Failed, "walltime_exceeded".to_owned()));
        let cut = JobStepEnd::with_allocation(Timestamp(1));
        assert_eq!((cut.state, cut.exit_code), (AllocationState::Cancelled, None));
    }
}
