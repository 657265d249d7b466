//! Dependencies: an allocation waits for others before it is in its queue.
//!
//! ```text
//!   submitted ──▶ waits for others ──all conditions are met──▶ in its queue ──claim──▶ has nodes
//!                   │          ▲                                    │
//!                   │          ╰── mutex: the other one has nodes ──╯
//!                   ╰──one condition can never be met──▶ Cancelled
//! ```
//!
//! A submission can name only allocations that exist, and never changes what it names. So nothing
//! depends on itself through others. `mutex` binds both sides, but keeps one of them waiting only
//! while the other one has nodes.
//!
//! `corresponding` is between two task groups. It keeps single tasks waiting, and not the group. A
//! *singleton* names nothing: it waits for whatever its user has submitted before under the same name.
//!
//! What is known of each parent is in the record of the child, so that the record of an ended parent
//! may be dropped.

use crate::allocation_state::AllocationState;
use crate::ids::AllocationId;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Largest number of allocations that one may depend on.
pub const DEPENDENCIES_MAX: usize = 256;
/// How many task groups that have not ended may have tasks that correspond to those of one: each end
/// of a task there costs as many changes.
pub const FOLLOWERS_MAX: usize = 16;
/// How many of them a text names.
const NAMED_MAX: usize = 3;
/// What users write for work that waits for all earlier work of its user with its name.
pub const SINGLETON: &str = "singleton";

/// What must have become of an allocation before one that depends on it gets nodes.
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
    /// Of two task groups: each task of this one waits until the task with the same index of the other
    /// one has succeeded. A task for whose index the other one has none waits for nothing.
    Corresponding,
}

impl DependencyCondition {
    /// Every condition.
    pub const ALL: [Self; 6] = [Self::Success, Self::Failure, Self::Any, Self::Mutex, Self::After, Self::Corresponding];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Any => "any",
            Self::Mutex => "mutex",
            Self::After => "after",
            Self::Corresponding => "corresponding",
        }
    }

    /// Whether it is met by this end only when nothing of the parent can run any more. Work that was
    /// cancelled, or failed on one of its nodes, may still run for its grace; a program that succeeded
    /// has ended by itself.
    fn awaits_release_after(self, ended: AllocationState) -> bool {
        match self {
            Self::Success | Self::Mutex | Self::After | Self::Corresponding => false,
            Self::Failure => ended == AllocationState::Failed,
            Self::Any => true,
        }
    }
}

impl fmt::Display for DependencyCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the name of a condition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoSuchCondition {
    /// It is for work that names no other.
    #[error("singleton is no condition of one allocation: write singleton alone, without an id")]
    Singleton,
    /// It has a delay.
    #[error("{0:?}: no delay is possible; write after, and let the work wait by itself, such as with `sleep`")]
    Delay(String),
    /// It is no condition.
    #[error("{0:?} is no condition: use success, failure, any, after, mutex or corresponding")]
    Unknown(String),
}

impl FromStr for DependencyCondition {
    type Err = NoSuchCondition;

    fn from_str(text: &str) -> Result<Self, NoSuchCondition> {
        let shown = || text.chars().take(40).collect();
        match Self::ALL.into_iter().find(|condition| condition.name() == text) {
            Some(known) => Ok(known),
            None if text == SINGLETON => Err(NoSuchCondition::Singleton),
            None if text.starts_with("after+") => Err(NoSuchCondition::Delay(shown())),
            None => Err(NoSuchCondition::Unknown(shown())),
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

/// What those that depend on an allocation need to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentFacts {
    /// Its final state; `None`: it has not ended.
    pub ended: Option<AllocationState>,
    /// Whether it has nodes, or something of its last claim may still run.
    pub may_run: bool,
    /// Whether it has begun to run under any of its claims.
    pub has_begun: bool,
}

/// What is known of a parent, as far as the condition needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParentState {
    /// It has not ended. With `mutex`: and nothing of it can run.
    Unended,
    /// With `mutex`: it has nodes, or something of its last claim may still run.
    HasNodes,
    /// With `after`: it has begun to run. This does not change any more.
    Begun,
    /// It has ended in this state, which meets the condition once nothing of it can run any more.
    Leaving(AllocationState),
    /// It has ended in this state. This does not change any more.
    Ended(AllocationState),
}

impl ParentState {
    /// Of a parent under this condition.
    pub fn of(condition: DependencyCondition, ParentFacts { ended, may_run, has_begun }: ParentFacts) -> Self {
        if may_run && condition == DependencyCondition::Mutex {
            return Self::HasNodes;
        }
        match ended {
            None if has_begun && condition == DependencyCondition::After => Self::Begun,
            None => Self::Unended,
            Some(state) if may_run && condition.awaits_release_after(state) => Self::Leaving(state),
            Some(state) => Self::Ended(state),
        }
    }

    /// The final state, if it has ended.
    pub fn ended(self) -> Option<AllocationState> {
        match self {
            Self::Leaving(state) | Self::Ended(state) => Some(state),
            Self::Unended | Self::HasNodes | Self::Begun => None,
        }
    }

    /// Whether it does not change any more.
    pub fn is_final(self) -> bool {
        match self {
            Self::Ended(_) | Self::Begun => true,
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
    /// The allocation's project.
    pub project: String,
}

/// The variable in which work finds the output directory of what has this name and on which it
/// depends. Characters that a variable may not have become `_`.
pub fn output_variable(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    "LATTICE_PARENT_OUTPUT_".chars().chain(plain).collect()
}

/// An allocation that another one depends on, in the record of that other one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Its id.
    pub on: AllocationId,
    /// What must have become of it.
    pub condition: DependencyCondition,
    /// Its name, for people.
    pub name: String,
    /// Whether it asked for this, by naming the allocation with `mutex`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked_for_it: bool,
    /// Where its output directory is; `None`: it has none, or it is none of this one's owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<OutputPlace>>,
    /// What is known of it.
    pub state: ParentState,
}

impl Parent {
    /// Whether the condition is met now. `corresponding` is always: it keeps tasks waiting, and not the
    /// group.
    pub fn is_met(&self) -> bool {
        match self.condition {
            DependencyCondition::Success => self.state == ParentState::Ended(AllocationState::Completed),
            DependencyCondition::Failure => self.state == ParentState::Ended(AllocationState::Failed),
            DependencyCondition::Any | DependencyCondition::After => self.state.is_final(),
            DependencyCondition::Corresponding => true,
            DependencyCondition::Mutex => self.state != ParentState::HasNodes,
        }
    }

    /// Whether the condition can never be met.
    pub fn is_impossible(&self) -> bool {
        match self.condition {
            DependencyCondition::Success | DependencyCondition::Failure => self.state.is_final() && !self.is_met(),
            DependencyCondition::Any | DependencyCondition::Mutex | DependencyCondition::After | DependencyCondition::Corresponding => {
                false
            }
        }
    }

    /// Whether tasks of the group that depends on it may still wait for tasks of it.
    pub fn awaits_tasks(&self) -> bool {
        self.condition == DependencyCondition::Corresponding && !self.state.is_final()
    }

    /// Its id and its name: `1f0c9a4e (prep)`.
    pub fn label(&self) -> String {
        format!("{} ({})", self.on.short(), self.name)
    }

    /// What is waited for, as the end of a sentence.
    fn awaited(&self) -> String {
        let verb = match self.condition {
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
    /// In the order of the submission, then those that asked for it; each allocation once.
    pub parents: Vec<Parent>,
    /// Of a singleton: of the user's allocations with its name that were submitted before it and are
    /// not gone, the latest one. It ends before this one begins, and so do those before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predecessor: Option<AllocationId>,
    /// When all conditions were met for the first time: since then it has a place in its queue.
    /// `None`: they never were.
    pub eligible_at: Option<Timestamp>,
}

impl Dependencies {
    /// With these parents, at this time. It is no singleton.
    pub fn new(parents: Vec<Parent>, now: Timestamp) -> Self {
        Self::of(parents, None, now)
    }

    /// With these parents and this predecessor, at this time.
    pub fn of(parents: Vec<Parent>, predecessor: Option<AllocationId>, now: Timestamp) -> Self {
        let mut dependencies = Self { parents, predecessor, eligible_at: None };
        dependencies.note_eligible(now);
        dependencies
    }

    /// Whether all conditions are met now.
    pub fn are_met(&self) -> bool {
        self.predecessor.is_none() && self.parents.iter().all(Parent::is_met)
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

    /// Records what is known of a parent now. One that asked for it and has ended is removed.
    pub fn set_state(&mut self, on: AllocationId, state: ParentState, now: Timestamp) {
        if let Some(parent) = self.parents.iter_mut().find(|parent| parent.on == on) {
            parent.state = state;
        }
        self.parents.retain(|parent| !(parent.asked_for_it && parent.state.is_final()));
        self.note_eligible(now);
    }

    /// Records the predecessor of a singleton; `None`: it has none any more.
    pub fn set_predecessor(&mut self, predecessor: Option<AllocationId>, now: Timestamp) {
        self.predecessor = predecessor;
        self.note_eligible(now);
    }

    /// What is waited for, in a sentence without its subject; `None`: nothing.
    pub fn sentence(&self) -> Option<String> {
        let predecessor = self.predecessor.map(|id| format!("{}, an earlier one of this name, to end", id.short()));
        let unmet = self.parents.iter().filter(|parent| !parent.is_met()).map(Parent::awaited);
        listed(predecessor.into_iter().chain(unmet)).map(|all| format!("waits for {all}"))
    }

    /// The groups for whose tasks some tasks of this group may wait, such as `1f0c9a4e (prep)`; `None`:
    /// there are none.
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
        assert_eq!(refused("Success"), "\"Success\" is no condition: use success, failure, any, after, mutex or corresponding");
        assert_eq!(refused("singleton"), "singleton is no condition of one allocation: write singleton alone, without an id");
        assert!(refused("after+5").starts_with("\"after+5\": no delay is possible; write after"));
    }

    /// For each condition and each end: whether it is met and whether it is impossible, while something
    /// may still run and after that.
    #[test]
    fn an_end_meets_a_condition_or_makes_it_impossible() {
        use AllocationState::{Cancelled, Completed, Failed};
        use DependencyCondition::{After, Any, Corresponding, Failure, Mutex, Success};
        let judged = |condition, ended, may_run| {
            let facts = ParentFacts { ended, may_run, has_begun: false };
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
        let facts = |ended, has_begun| ParentFacts { ended, may_run: true, has_begun };
        let of = |condition, has_begun| ParentState::of(condition, facts(None, has_begun));
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
        let mut all = Dependencies::of(vec![other.clone()], Some(earlier), NOW);
        assert_eq!(all.sentence().unwrap(), "waits for 00000007, an earlier one of this name, to end and 00000001 (job1) to begin");
        all.set_state(other.on, ParentState::Begun, Timestamp(20));
        assert_eq!((all.are_met(), all.eligible_at), (false, None));
        all.set_predecessor(None, Timestamp(30));
        assert_eq!((all.are_met(), all.eligible_at, all.sentence()), (true, Some(Timestamp(30)), None));
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
    fn a_place_in_the_queue_is_had_from_the_first_time_that_all_conditions_are_met() {
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
