//! Dependencies: an allocation waits for others before it is in its queue.
//!
//! ```text
//!   submitted ──▶ waits for others ──all conditions are met──▶ in its queue ──claim──▶ has nodes
//!                   │          ▲                                    │
//!                   │          ╰── mutex: the other one has nodes ──╯
//!                   ╰──one condition can never be met──▶ Cancelled
//! ```
//!
//! A submission names only allocations that exist already, and never changes which ones. So
//! dependencies have no cycles. `mutex` binds both sides: each waits only while the other one has
//! nodes.
//!
//! With a delay, `after` also waits for that time, counted from the parent's beginning, or from its end
//! if it never begins. Once the delay runs, the parent no longer matters, and its record may be dropped.
//!
//! ```text
//!   parent has not begun ──begins, or ends before──▶ Delayed until then + delay ──leader's clock──▶ Begun
//! ```
//!
//! A submission may also name the time at which it enters its queue. This wait ends as a delay does.
//!
//! `corresponding` links two task groups: single tasks wait, and not the whole group. A *singleton*
//! names no allocation: it waits for all earlier work of its user with the same name.
//!
//! The record of the child stores the state of each parent, so that the record of an ended parent
//! may be dropped.

use crate::allocation_state::AllocationState;
use crate::duration::{self, BareNumber, short_text, units_text};
use crate::ids::AllocationId;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Largest number of allocations that one may depend on.
pub const DEPENDENCIES_MAX: usize = 256;
/// How many unended task groups may depend on one group by `corresponding`: each end of a task of
/// that group changes the records of all of them.
pub const FOLLOWERS_MAX: usize = 16;
/// The longest delay after a beginning, in milliseconds: 365 days.
pub const DELAY_MS_MAX: u64 = 365 * DAY_MS;
/// The longest remaining delay, in milliseconds. If more remains, the clock was set back since, and the
/// delay ends. A day more than [`DELAY_MS_MAX`], so that no small correction of a clock ends a delay.
pub const DELAY_LEFT_MS_MAX: u64 = DELAY_MS_MAX + DAY_MS;
const DAY_MS: u64 = 86_400_000;
/// The sign between `after` and its delay.
const DELAY_SIGN: char = '+';
/// How many allocations a text names.
const NAMED_MAX: usize = 3;
/// What users write for work that waits for all earlier work of its user with its name.
pub const SINGLETON: &str = "singleton";

/// The condition on a parent that must be met before its child gets nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DependencyCondition {
    /// It is Completed.
    Success,
    /// It is Failed.
    Failure,
    /// It has ended in any way.
    Any,
    /// It has no nodes: the two never run at the same time.
    Mutex,
    /// It has begun to run, or has ended.
    After,
    /// This many seconds, at least 1 and at most [`DELAY_MS_MAX`], have passed since it first began to
    /// run, or since it ended without having run.
    AfterDelay { seconds: u32 },
    /// Of two task groups: each task of this one waits until the task with the same index of the other one has
    /// succeeded. A task waits for nothing if the other group does not have its index.
    Corresponding,
}

impl DependencyCondition {
    /// Every condition without a delay.
    pub const ALL: [Self; 6] = [Self::Success, Self::Failure, Self::Any, Self::Mutex, Self::After, Self::Corresponding];

    /// The name that users write, without the delay.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Any => "any",
            Self::Mutex => "mutex",
            Self::After | Self::AfterDelay { .. } => "after",
            Self::Corresponding => "corresponding",
        }
    }

    /// The delay after the parent's beginning; zero: none.
    pub fn delay(self) -> Duration {
        match self {
            Self::AfterDelay { seconds } => Duration::from_secs(seconds.into()),
            Self::Success | Self::Failure | Self::Any | Self::Mutex | Self::After | Self::Corresponding => Duration::ZERO,
        }
    }

    /// Whether its delay, if it has one, is within the limits.
    pub fn has_valid_delay(self) -> bool {
        match self {
            Self::AfterDelay { seconds } => seconds > 0 && u64::from(seconds) * 1000 <= DELAY_MS_MAX,
            Self::Success | Self::Failure | Self::Any | Self::Mutex | Self::After | Self::Corresponding => true,
        }
    }

    /// Parses the delay of `after`. An error shows `text`, the whole condition. A number alone counts
    /// minutes, as in Slurm.
    fn after(delay: &str, text: impl Fn() -> String) -> Result<Self, NoSuchCondition> {
        let delay = duration::parse(delay, BareNumber::Minutes).map_err(|_| NoSuchCondition::Delay(text()))?;
        if delay.is_zero() {
            return Ok(Self::After);
        }
        let condition = u32::try_from(delay.as_secs()).ok().map(|seconds| Self::AfterDelay { seconds });
        condition.filter(|condition| condition.has_valid_delay()).ok_or_else(|| NoSuchCondition::DelayTooLong(text()))
    }

    /// Whether this end of the parent meets the condition only once nothing of the parent can run any
    /// more. Work that was cancelled, or failed on one of its nodes, may still run for its grace; a
    /// program that succeeded has ended by itself.
    fn awaits_release_after(self, ended: AllocationState) -> bool {
        match self {
            Self::Success | Self::Mutex | Self::After | Self::AfterDelay { .. } | Self::Corresponding => false,
            Self::Failure => ended == AllocationState::Failed,
            Self::Any => true,
        }
    }
}

impl fmt::Display for DependencyCondition {
    /// The name that users write, with the delay: `success`, `after+10m`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AfterDelay { .. } => f.pad(&format!("{}{DELAY_SIGN}{}", self.name(), short_text(self.delay()))),
            Self::Success | Self::Failure | Self::Any | Self::Mutex | Self::After | Self::Corresponding => f.pad(self.name()),
        }
    }
}

/// The text is not the name of a condition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoSuchCondition {
    /// `singleton` names no allocation.
    #[error("singleton is no condition of one allocation: write singleton alone, without an id")]
    Singleton,
    /// Its delay is no duration.
    #[error("{0:?} has no valid delay: write after+10m, after+90s or after+2h; a number alone counts minutes")]
    Delay(String),
    /// Its delay is longer than [`DELAY_MS_MAX`].
    #[error("{0:?}: a delay has 365 days at most")]
    DelayTooLong(String),
    /// It is no condition.
    #[error("{0:?} is no condition: use success, failure, any, after, after+DELAY, mutex or corresponding")]
    Unknown(String),
}

impl FromStr for DependencyCondition {
    type Err = NoSuchCondition;

    fn from_str(text: &str) -> Result<Self, NoSuchCondition> {
        let shown = || text.chars().take(40).collect::<String>();
        match Self::ALL.into_iter().find(|condition| condition.name() == text) {
            Some(known) => Ok(known),
            None if text == SINGLETON => Err(NoSuchCondition::Singleton),
            None => match text.split_once(DELAY_SIGN) {
                Some((name, delay)) if name == Self::After.name() => Self::after(delay, shown),
                Some(_) | None => Err(NoSuchCondition::Unknown(shown())),
            },
        }
    }
}

/// A dependency as submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// The allocation that it depends on.
    pub on: AllocationId,
    /// What must have become of it.
    pub condition: DependencyCondition,
}

/// The facts about an allocation that decide the conditions of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentFacts {
    /// Its final state; `None`: it has not ended.
    pub ended: Option<AllocationState>,
    /// Whether it has nodes, or something of its last claim may still run.
    pub may_run: bool,
    /// When it began to run for the first time, under any of its claims; `None`: it never did.
    pub begun_at: Option<Timestamp>,
    /// When it ended; `None`: it has not.
    pub ended_at: Option<Timestamp>,
}

/// The state of a parent, as far as the condition needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParentState {
    /// It has not ended. With `mutex`: nothing of it can run either.
    Unended,
    /// With `mutex`: it has nodes, or something of its last claim may still run.
    HasNodes,
    /// With `after`: it has begun to run. With a delay: the delay is over. This is final.
    Begun,
    /// With `after` and a delay: the condition is met at the time `until`. `begun`: whether it began to
    /// run; otherwise it ended before. No change of the parent changes this.
    Delayed { until: Timestamp, begun: bool },
    /// It has ended in this state, which meets the condition once nothing of it can run any more.
    Leaving(AllocationState),
    /// It has ended in this state. This does not change any more.
    Ended(AllocationState),
}

impl ParentState {
    /// The state of a parent under this condition.
    pub fn of(condition: DependencyCondition, ParentFacts { ended, may_run, begun_at, ended_at }: ParentFacts) -> Self {
        if may_run && condition == DependencyCondition::Mutex {
            return Self::HasNodes;
        }
        if let DependencyCondition::AfterDelay { seconds } = condition
            && let Some(from) = begun_at.or(ended_at)
        {
            let until = Timestamp(from.0.saturating_add(u64::from(seconds) * 1000));
            return Self::Delayed { until, begun: begun_at.is_some() };
        }
        match ended {
            None if begun_at.is_some() && condition == DependencyCondition::After => Self::Begun,
            None => Self::Unended,
            Some(state) if may_run && condition.awaits_release_after(state) => Self::Leaving(state),
            Some(state) => Self::Ended(state),
        }
    }

    /// The final state, if it has ended.
    pub fn ended(self) -> Option<AllocationState> {
        match self {
            Self::Leaving(state) | Self::Ended(state) => Some(state),
            Self::Unended | Self::HasNodes | Self::Begun | Self::Delayed { .. } => None,
        }
    }

    /// Whether no change of the parent changes it any more.
    pub fn is_final(self) -> bool {
        match self {
            Self::Ended(_) | Self::Begun | Self::Delayed { .. } => true,
            Self::Unended | Self::HasNodes | Self::Leaving(_) => false,
        }
    }
}

/// Where the output directory of an allocation is, for those that depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPlace {
    /// The name of its step, if it is one of a DAG, else that of the allocation.
    pub name: String,
    /// The allocation's tenant.
    pub tenant: String,
    /// The allocation's project, as submitted.
    pub project: String,
}

/// The environment variable that holds the output directory of the parent with this name.
/// Characters that a variable cannot have become `_`.
pub fn output_variable(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    "LATTICE_PARENT_OUTPUT_".chars().chain(plain).collect()
}

/// A parent, in the record of its child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Its id.
    pub on: AllocationId,
    /// What must have become of it.
    pub condition: DependencyCondition,
    /// Its name, for people.
    pub name: String,
    /// Whether the parent itself asked for this, by naming the child with `mutex`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked_for_it: bool,
    /// Where its output directory is; `None`: it has none, or its owner is not the child's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<OutputPlace>>,
    /// Its state.
    pub state: ParentState,
}

impl Parent {
    /// Whether the condition is met now. `corresponding` always is: it keeps single tasks waiting, and
    /// not the group.
    pub fn is_met(&self) -> bool {
        match self.condition {
            DependencyCondition::Success => self.state == ParentState::Ended(AllocationState::Completed),
            DependencyCondition::Failure => self.state == ParentState::Ended(AllocationState::Failed),
            DependencyCondition::Any | DependencyCondition::After => self.state.is_final(),
            DependencyCondition::AfterDelay { .. } => matches!(self.state, ParentState::Begun | ParentState::Ended(_)),
            DependencyCondition::Corresponding => true,
            DependencyCondition::Mutex => self.state != ParentState::HasNodes,
        }
    }

    /// Whether the condition can never be met.
    pub fn is_impossible(&self) -> bool {
        match self.condition {
            DependencyCondition::Success | DependencyCondition::Failure => self.state.is_final() && !self.is_met(),
            DependencyCondition::Any
            | DependencyCondition::Mutex
            | DependencyCondition::After
            | DependencyCondition::AfterDelay { .. }
            | DependencyCondition::Corresponding => false,
        }
    }

    /// When its delay ends; `None`: none has begun, or it has ended.
    pub fn delayed_until(&self) -> Option<Timestamp> {
        match self.state {
            ParentState::Delayed { until, .. } => Some(until),
            ParentState::Unended | ParentState::HasNodes | ParentState::Begun | ParentState::Leaving(_) | ParentState::Ended(_) => None,
        }
    }

    /// Whether tasks of the child may still wait for tasks of this parent.
    pub fn awaits_tasks(&self) -> bool {
        self.condition == DependencyCondition::Corresponding && !self.state.is_final()
    }

    /// Its id and its name: `1f0c9a4e (prep)`.
    pub fn label(&self) -> String {
        format!("{} ({})", self.on.short(), self.name)
    }

    /// When its delay ends, and from which event it counts, as a part of a sentence.
    fn delay_text(&self, until: Timestamp) -> String {
        let event = if matches!(self.state, ParentState::Delayed { begun: false, .. }) { "ended" } else { "began" };
        format!("until {until}: {} after {} {event}", units_text(self.condition.delay()), self.label())
    }

    /// What the child waits for, as the end of a sentence.
    fn awaited(&self) -> String {
        let verb = match self.condition {
            DependencyCondition::AfterDelay { .. } => {
                return format!("{} to begin (and {} more)", self.label(), units_text(self.condition.delay()));
            }
            DependencyCondition::Success => "to succeed",
            DependencyCondition::Failure if self.state.ended().is_none() => "to fail",
            DependencyCondition::Any if self.state.ended().is_none() => "to end",
            DependencyCondition::After => "to begin",
            DependencyCondition::Corresponding => "to end its tasks",
            DependencyCondition::Failure | DependencyCondition::Any | DependencyCondition::Mutex => "to leave its nodes",
        };
        format!("{} {verb}", self.label())
    }
}

/// Everything that an allocation depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependencies {
    /// In the order of the submission, then those that named this allocation with `mutex`; each once.
    pub parents: Vec<Parent>,
    /// Of a singleton: the latest of its user's earlier allocations with its name that are not gone.
    /// It must end before this one begins, and so must those before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predecessor: Option<AllocationId>,
    /// Before this time it is not in its queue; `None`: there is no such time, or it has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Timestamp>,
    /// When all conditions were met for the first time: since then it has a place in its queue.
    /// `None`: they never were.
    pub eligible_at: Option<Timestamp>,
}

impl Dependencies {
    /// With these parents, at this time. It is no singleton.
    pub fn new(parents: Vec<Parent>, now: Timestamp) -> Self {
        Self::of(parents, None, None, now)
    }

    /// With these parents, this predecessor and this time before which it is not in its queue, at this time.
    pub fn of(parents: Vec<Parent>, predecessor: Option<AllocationId>, begin: Option<Timestamp>, now: Timestamp) -> Self {
        let mut dependencies = Self { parents, predecessor, begin, eligible_at: None };
        dependencies.end_delays(now);
        dependencies
    }

    /// Whether all conditions are met now.
    pub fn are_met(&self) -> bool {
        self.predecessor.is_none() && self.begin.is_none() && self.parents.iter().all(Parent::is_met)
    }

    /// The first parent whose condition can never be met.
    pub fn impossible(&self) -> Option<&Parent> {
        self.parents.iter().find(|parent| parent.is_impossible())
    }

    /// The parent with this id.
    pub fn get(&self, on: AllocationId) -> Option<&Parent> {
        self.parents.iter().find(|parent| parent.on == on)
    }

    /// The allocations that must not run at the same time.
    pub fn excluded(&self) -> impl Iterator<Item = &Parent> {
        self.parents.iter().filter(|parent| parent.condition == DependencyCondition::Mutex)
    }

    /// Records the state of a parent. A parent that asked for this itself is removed once it has ended.
    pub fn set_state(&mut self, on: AllocationId, state: ParentState, now: Timestamp) {
        if let Some(parent) = self.parents.iter_mut().find(|parent| parent.on == on) {
            parent.state = state;
        }
        self.parents.retain(|parent| !(parent.asked_for_it && parent.state.is_final()));
        self.end_delays(now);
    }

    /// Sets the time before which it is not in its queue. If it was in its queue, it keeps its place.
    pub fn set_begin(&mut self, begin: Option<Timestamp>, now: Timestamp) {
        self.begin = begin;
        self.end_delays(now);
    }

    /// The ends of its delays, and its begin time.
    pub fn delay_ends(&self) -> impl Iterator<Item = Timestamp> {
        self.parents.iter().filter_map(Parent::delayed_until).chain(self.begin)
    }

    /// Ends the delays that are over.
    pub fn end_delays(&mut self, now: Timestamp) {
        let is_over = |until: Timestamp| until <= now || until.since_ms(now) > DELAY_LEFT_MS_MAX;
        for parent in &mut self.parents {
            if parent.delayed_until().is_some_and(is_over) {
                parent.state = ParentState::Begun;
            }
        }
        self.begin = self.begin.filter(|begin| !is_over(*begin));
        self.note_eligible(now);
    }

    /// Records the predecessor of a singleton; `None`: it has none any more.
    pub fn set_predecessor(&mut self, predecessor: Option<AllocationId>, now: Timestamp) {
        self.predecessor = predecessor;
        self.note_eligible(now);
    }

    /// What it waits for, in a sentence without its subject; `None`: for nothing. Of several delays, it
    /// names the one that ends last.
    pub fn sentence(&self) -> Option<String> {
        let predecessor = self.predecessor.map(|id| format!("{}, an earlier one of this name, to end", id.short()));
        let unmet = self.parents.iter().filter(|parent| !parent.is_met() && parent.delayed_until().is_none()).map(Parent::awaited);
        let others = listed(predecessor.into_iter().chain(unmet)).map(|all| format!("for {all}"));
        let delays = self.parents.iter().filter_map(|parent| Some((parent.delayed_until()?, parent)));
        let delay = delays.max_by_key(|(until, _)| *until).map(|(until, parent)| parent.delay_text(until));
        let parts: Vec<String> = others.into_iter().chain(delay).collect();
        let waits = (!parts.is_empty()).then(|| format!("waits {}", parts.join(", and ")));
        let begins = self.begin.map(|begin| format!("begins at {begin}"));
        match (begins, waits) {
            (Some(begins), Some(waits)) => Some(format!("{begins}; it also {waits}")),
            (begins, waits) => begins.or(waits),
        }
    }

    /// The parents for whose tasks some tasks of this group may wait, such as `1f0c9a4e (prep)`;
    /// `None`: there are none.
    pub fn corresponding(&self) -> Option<String> {
        listed(self.parents.iter().filter(|parent| parent.awaits_tasks()).map(Parent::label))
    }

    fn note_eligible(&mut self, now: Timestamp) {
        if self.eligible_at.is_none() && self.are_met() {
            self.eligible_at = Some(now);
        }
    }
}

/// The first of these parts, and how many more there are; `None`: there are none.
fn listed(all: impl Iterator<Item = String>) -> Option<String> {
    let all: Vec<String> = all.collect();
    let more = all.len().saturating_sub(NAMED_MAX);
    let mut parts: Vec<String> = all.into_iter().take(NAMED_MAX).collect();
    parts.extend((more > 0).then(|| format!("{more} more")));
    let last = parts.pop()?;
    Some(if parts.is_empty() { last } else { format!("{} and {last}", parts.join(", ")) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const NOW: Timestamp = Timestamp(9);

    fn parent(number: u128, condition: DependencyCondition, state: ParentState) -> Parent {
        let on = AllocationId(Uuid::from_u128(number << 96));
        Parent { on, condition, name: format!("job{number}"), asked_for_it: false, output: None, state }
    }

    #[test]
    fn conditions_are_known_by_their_names() {
        for condition in DependencyCondition::ALL {
            assert_eq!(condition.to_string().parse(), Ok(condition));
        }
        let refused = |text: &str| text.parse::<DependencyCondition>().unwrap_err().to_string();
        let wanted = "\"Success\" is no condition: use success, failure, any, after, after+DELAY, mutex or corresponding";
        assert_eq!(refused("Success"), wanted);
        assert_eq!(refused("singleton"), "singleton is no condition of one allocation: write singleton alone, without an id");
        assert!(refused("any+5m").starts_with("\"any+5m\" is no condition"), "only a beginning has a delay");
    }

    #[test]
    fn a_delay_is_read_and_written_in_one_form() {
        let read = |text: &str| text.parse::<DependencyCondition>();
        for (text, seconds, written) in [
            ("after+10m", 600, "after+10m"),
            ("after+5", 300, "after+5m"),
            ("after+3s", 3, "after+3s"),
            ("after+1:30:00", 5400, "after+90m"),
            ("after+365d", 31_536_000, "after+365d"),
        ] {
            let condition = DependencyCondition::AfterDelay { seconds };
            assert_eq!((read(text), condition.to_string().as_str()), (Ok(condition), written), "{text}");
            assert_eq!((condition.name(), read(written)), ("after", Ok(condition)));
        }
        assert_eq!(read("after+0"), Ok(DependencyCondition::After));
        let refused = |text: &str| read(text).unwrap_err().to_string();
        for text in ["after+", "after+soon", "after+-5", "after+1m+1m"] {
            assert!(refused(text).starts_with(&format!("{text:?} has no valid delay: write after+10m")), "{text}");
        }
        for text in ["after+366d", "after+31536001s", "after+99999999999d"] {
            assert_eq!(refused(text), format!("{text:?}: a delay has 365 days at most"));
        }
    }

    const MINUTES: DependencyCondition = DependencyCondition::AfterDelay { seconds: 600 };

    #[test]
    fn a_delay_counts_from_the_beginning_or_from_an_end_without_one() {
        let of = |ended, begun_at: Option<u64>, ended_at: Option<u64>| {
            let (begun_at, ended_at) = (begun_at.map(Timestamp), ended_at.map(Timestamp));
            ParentState::of(MINUTES, ParentFacts { ended, may_run: true, begun_at, ended_at })
        };
        let delayed = |until, begun| ParentState::Delayed { until: Timestamp(until), begun };
        assert_eq!(of(None, None, None), ParentState::Unended);
        assert_eq!(of(None, Some(1000), None), delayed(601_000, true));
        assert_eq!(of(Some(AllocationState::Failed), Some(1000), Some(5000)), delayed(601_000, true));
        assert_eq!(of(Some(AllocationState::Cancelled), None, Some(5000)), delayed(605_000, false));
        let waits = parent(1, MINUTES, delayed(601_000, true));
        assert!(waits.state.is_final() && waits.state.ended().is_none() && !waits.is_met() && !waits.is_impossible());
        assert!(parent(1, MINUTES, ParentState::Begun).is_met());
    }

    #[test]
    fn a_delay_ends_at_its_time_and_one_that_is_too_far_away_at_once() {
        let delayed = |until| parent(1, MINUTES, ParentState::Delayed { until: Timestamp(until), begun: true });
        let mut all = Dependencies::new(vec![delayed(1000)], Timestamp(999));
        assert_eq!((all.are_met(), all.eligible_at), (false, None));
        all.end_delays(Timestamp(1000));
        assert_eq!((all.are_met(), all.eligible_at, all.parents[0].state), (true, Some(Timestamp(1000)), ParentState::Begun));
        let met = |until| Dependencies::new(vec![delayed(until)], Timestamp(10)).are_met();
        assert_eq!([10, 11, 10 + DELAY_LEFT_MS_MAX, 11 + DELAY_LEFT_MS_MAX].map(met), [true, false, false, true]);
    }

    #[test]
    fn the_delay_that_ends_last_is_named_with_its_time() {
        use DependencyCondition::{AfterDelay, Any, Success};
        let delayed = |number, until, begun| parent(number, MINUTES, ParentState::Delayed { until: Timestamp(until), begun });
        let now = Timestamp(1_772_704_300_000);
        let sentence = |parents: &[Parent]| Dependencies::new(parents.to_vec(), now).sentence().unwrap();
        let (first, last) = (delayed(1, 1_772_704_612_034, true), delayed(2, 1_772_704_812_034, false));
        let alone = sentence(std::slice::from_ref(&first));
        assert_eq!(alone, "waits until 2026-03-05T09:56:52.034Z: 10 minutes after 00000001 (job1) began");
        let until = "until 2026-03-05T10:00:12.034Z: 10 minutes after 00000002 (job2) ended";
        assert_eq!(sentence(&[first.clone(), last.clone()]), format!("waits {until}"));
        let others = [parent(3, Success, ParentState::Unended), last, parent(4, Any, ParentState::Unended), first];
        let wanted = format!("waits for 00000003 (job3) to succeed and 00000004 (job4) to end, and {until}");
        assert_eq!(sentence(&others), wanted);
        let unbegun = parent(5, AfterDelay { seconds: 90 }, ParentState::Unended);
        assert_eq!(sentence(&[unbegun]), "waits for 00000005 (job5) to begin (and 90 seconds more)");
    }

    /// For each condition and each end: whether it is met and whether it is impossible, while something
    /// may still run and after that.
    #[test]
    fn an_end_meets_a_condition_or_makes_it_impossible() {
        use AllocationState::{Cancelled, Completed, Failed};
        use DependencyCondition::{After, Any, Corresponding, Failure, Mutex, Success};
        let judged = |condition, ended, may_run| {
            let facts = ParentFacts { ended, may_run, begun_at: None, ended_at: ended.map(|_| NOW) };
            let parent = parent(1, condition, ParentState::of(condition, facts));
            (parent.is_met(), parent.is_impossible())
        };
        let (met, waits, never) = ((true, false), (false, false), (false, true));
        for (condition, ended, while_it_may_run, then) in [
            (Success, None, waits, waits),
            (Success, Some(Completed), met, met),
            (Success, Some(Failed), never, never),
            (Success, Some(Cancelled), never, never),
            (Failure, None, waits, waits),
            (Failure, Some(Completed), never, never),
            (Failure, Some(Failed), waits, met),
            (Failure, Some(Cancelled), never, never),
            (Any, None, waits, waits),
            (Any, Some(Completed), waits, met),
            (Any, Some(Failed), waits, met),
            (Any, Some(Cancelled), waits, met),
            (Mutex, None, waits, met),
            (Mutex, Some(Completed), waits, met),
            (Mutex, Some(Cancelled), waits, met),
            (After, None, waits, waits),
            (After, Some(Cancelled), met, met),
            (Corresponding, None, met, met),
            (Corresponding, Some(Failed), met, met),
        ] {
            let found = (judged(condition, ended, true), judged(condition, ended, false));
            assert_eq!(found, (while_it_may_run, then), "{condition} {ended:?}");
        }
    }

    #[test]
    fn a_name_becomes_a_variable() {
        let variables = ["train", "Pre-process 2", "data.set_é", ""].map(output_variable);
        let wanted = ["train", "Pre_process_2", "data_set__", ""].map(|end| format!("LATTICE_PARENT_OUTPUT_{end}"));
        assert_eq!(variables, wanted);
    }

    #[test]
    fn a_beginning_counts_for_after_alone_and_stays() {
        let facts = |has_begun: bool| ParentFacts { ended: None, may_run: true, begun_at: has_begun.then_some(NOW), ended_at: None };
        let of = |condition, has_begun| ParentState::of(condition, facts(has_begun));
        let each = DependencyCondition::ALL.map(|condition| of(condition, true));
        let [unended, has_nodes] = [ParentState::Unended, ParentState::HasNodes];
        assert_eq!(each, [unended, unended, unended, has_nodes, ParentState::Begun, unended]);
        assert_eq!(of(DependencyCondition::After, false), unended);
        assert!(ParentState::Begun.is_final() && ParentState::Begun.ended().is_none());
        let begun = parent(1, DependencyCondition::After, ParentState::Begun);
        assert!(begun.is_met() && !begun.is_impossible());
    }

    #[test]
    fn a_singleton_waits_for_its_predecessor_beside_all_else() {
        let (earlier, other) = (AllocationId(Uuid::from_u128(7 << 96)), parent(1, DependencyCondition::After, ParentState::Unended));
        let mut all = Dependencies::of(vec![other.clone()], Some(earlier), None, NOW);
        assert_eq!(all.sentence().unwrap(), "waits for 00000007, an earlier one of this name, to end and 00000001 (job1) to begin");
        all.set_state(other.on, ParentState::Begun, Timestamp(20));
        assert_eq!((all.are_met(), all.eligible_at), (false, None));
        all.set_predecessor(None, Timestamp(30));
        assert_eq!((all.are_met(), all.eligible_at, all.sentence()), (true, Some(Timestamp(30)), None));
    }

    #[test]
    fn work_with_a_begin_is_in_its_queue_from_then_on() {
        let begin = Timestamp(1_772_704_812_034);
        let mut all = Dependencies::of(vec![], None, Some(begin), NOW);
        // The clock was set to a wrong time long before, so that the time is too far away.
        assert_eq!((all.are_met(), all.begin), (true, None));
        let before = Timestamp(begin.0 - 1);
        all = Dependencies::of(vec![parent(1, DependencyCondition::Any, ParentState::Unended)], None, Some(begin), before);
        let sentence = "begins at 2026-03-05T10:00:12.034Z; it also waits for 00000001 (job1) to end";
        assert_eq!((all.sentence().as_deref(), all.delay_ends().collect::<Vec<_>>()), (Some(sentence), vec![begin]));
        all.set_state(all.parents[0].on, ParentState::Ended(AllocationState::Failed), before);
        assert_eq!(all.sentence().as_deref(), Some("begins at 2026-03-05T10:00:12.034Z"));
        assert_eq!((all.are_met(), all.eligible_at), (false, None));
        all.end_delays(begin);
        assert_eq!((all.are_met(), all.eligible_at, all.sentence()), (true, Some(begin), None));
        all.set_begin(Some(Timestamp(begin.0 + 5)), begin);
        assert_eq!((all.are_met(), all.eligible_at), (false, Some(begin)), "it keeps its place");
    }

    #[test]
    fn a_group_is_in_its_queue_while_tasks_of_it_wait_for_those_of_another() {
        let other = parent(1, DependencyCondition::Corresponding, ParentState::Unended);
        let mut all = Dependencies::new(vec![other.clone()], NOW);
        assert_eq!((all.are_met(), all.eligible_at, all.sentence()), (true, Some(NOW), None));
        assert_eq!(all.corresponding().as_deref(), Some("00000001 (job1)"));
        all.set_state(other.on, ParentState::Ended(AllocationState::Failed), NOW);
        assert_eq!((all.corresponding(), all.impossible()), (None, None));
    }

    #[test]
    fn what_is_waited_for_is_named_up_to_a_number() {
        use DependencyCondition::{Any, Failure, Mutex, Success};
        let sentence = |parents: &[Parent]| Dependencies::new(parents.to_vec(), NOW).sentence();
        let done = parent(1, Success, ParentState::Ended(AllocationState::Completed));
        assert_eq!(sentence(std::slice::from_ref(&done)), None);
        let all = [
            done,
            parent(2, Success, ParentState::Unended),
            parent(3, Failure, ParentState::Unended),
            parent(4, Any, ParentState::Leaving(AllocationState::Cancelled)),
            parent(5, Mutex, ParentState::HasNodes),
            parent(6, Any, ParentState::Unended),
        ];
        assert_eq!(sentence(&all[..2]).as_deref(), Some("waits for 00000002 (job2) to succeed"));
        assert_eq!(sentence(&all[..3]).as_deref(), Some("waits for 00000002 (job2) to succeed and 00000003 (job3) to fail"));
        let many = "waits for 00000002 (job2) to succeed, 00000003 (job3) to fail, 00000004 (job4) to leave its nodes and 2 more";
        assert_eq!(sentence(&all).as_deref(), Some(many));
        assert_eq!(sentence(&all[4..]).as_deref(), Some("waits for 00000005 (job5) to leave its nodes and 00000006 (job6) to end"));
    }

    #[test]
    fn a_place_in_the_queue_counts_from_when_all_conditions_were_first_met() {
        let mut dependencies = Dependencies::new(vec![parent(1, DependencyCondition::Mutex, ParentState::HasNodes)], NOW);
        assert_eq!(dependencies.eligible_at, None);
        let on = dependencies.parents[0].on;
        let mut set = |state, at| {
            dependencies.set_state(on, state, Timestamp(at));
            (dependencies.are_met(), dependencies.eligible_at)
        };
        assert_eq!(set(ParentState::Unended, 20), (true, Some(Timestamp(20))));
        assert_eq!(set(ParentState::HasNodes, 30), (false, Some(Timestamp(20))));
        assert_eq!(set(ParentState::Ended(AllocationState::Failed), 40), (true, Some(Timestamp(20))));
        let theirs = Parent { asked_for_it: true, ..parent(2, DependencyCondition::Mutex, ParentState::Unended) };
        let mut mutual = Dependencies::new(vec![theirs], NOW);
        mutual.set_state(mutual.parents[0].on, ParentState::Ended(AllocationState::Completed), NOW);
        assert!(mutual.parents.is_empty(), "it is over");
    }
}
