//! DAGs: allocations that are submitted together as the steps of one graph, all of them or none.
//!
//! ```text
//!   submission (names) ──agent: order, faults──▶ steps in order, with ids ──ledger──▶ one allocation for each
//!                                                                              and a record of the graph
//! ```
//!
//! The edges of a DAG are dependencies of its allocations ([`crate::dependency`]): nothing else
//! decides when a step begins. The record stores the name and the end of each step, also when an
//! allocation's own record has been dropped.

use crate::allocation_state::AllocationState;
use crate::dependency::{Dependency, DependencyCondition};
use crate::ids::{AllocationId, DagId};
use crate::principal::Principal;
use crate::spec::AllocationSpec;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Largest size of a submission, in bytes: what an agent accepts from one user at a time.
pub const DAG_BYTES_MAX: usize = 4 << 20;
/// Largest size of a name of a DAG or a step, in bytes.
pub const DAG_NAME_BYTES_MAX: usize = 128;
/// The size of a step in a submission, besides its texts.
const STEP_BYTES: usize = 256;

/// How many steps a DAG may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct DagSize(u32);

impl DagSize {
    /// The largest limit: one command makes all allocations of a DAG.
    pub const STEPS_MAX: u32 = 10_000;

    /// This many steps.
    ///
    /// # Errors
    /// [`InvalidDagSize`]: none, or more than [`Self::STEPS_MAX`].
    pub fn of_steps(steps: u32) -> Result<Self, InvalidDagSize> {
        if (1..=Self::STEPS_MAX).contains(&steps) { Ok(Self(steps)) } else { Err(InvalidDagSize { steps }) }
    }

    /// The number of steps.
    pub fn steps(self) -> u32 {
        self.0
    }
}

impl Default for DagSize {
    fn default() -> Self {
        Self(1000)
    }
}

impl TryFrom<u32> for DagSize {
    type Error = InvalidDagSize;

    fn try_from(steps: u32) -> Result<Self, InvalidDagSize> {
        Self::of_steps(steps)
    }
}

impl From<DagSize> for u32 {
    fn from(size: DagSize) -> Self {
        size.0
    }
}

/// The number cannot be the limit of the size of DAGs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a DAG may have up to {steps} steps? The limit can be 1 to {most}", most = DagSize::STEPS_MAX)]
pub struct InvalidDagSize {
    /// The number.
    pub steps: u32,
}

/// Whether a text can name a DAG or a step.
pub fn is_dag_name(text: &str) -> bool {
    (1..=DAG_NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// A step of a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DagStep {
    /// Its name, which no other step of the DAG has.
    pub name: String,
    /// The allocation that it becomes.
    pub allocation: AllocationId,
    /// Whether it gets [`DagSubmission::env`].
    pub takes_env: bool,
    /// The specification without the variables of [`DagSubmission::env`].
    pub spec: Box<AllocationSpec>,
}

/// A DAG as submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DagSubmission {
    /// Its name, for people. Several DAGs may have the same.
    pub name: String,
    /// Variables of all steps with [`DagStep::takes_env`]; a step's own variables win. Without this,
    /// each step would bring the same environment.
    pub env: BTreeMap<String, String>,
    /// The steps. Each is after those that it depends on, so there are no cycles.
    pub steps: Vec<DagStep>,
}

impl DagSubmission {
    /// The allocations on whose failure, or end in any way, another step depends.
    pub fn caught(&self) -> BTreeSet<AllocationId> {
        let edges = self.steps.iter().flat_map(|step| &step.spec.depends_on);
        let catching = edges.filter(|edge| matches!(edge.condition, DependencyCondition::Failure | DependencyCondition::Any));
        catching.map(|edge| edge.on).collect()
    }

    /// The whole specification of one of its steps.
    pub fn spec_of(&self, step: &DagStep) -> AllocationSpec {
        let mut spec = AllocationSpec::clone(&step.spec);
        if step.takes_env {
            for (name, value) in &self.env {
                spec.env.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        spec
    }

    /// Its approximate size in the log, in bytes.
    pub fn bytes_about(&self) -> usize {
        let env: usize = self.env.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        let step = |step: &DagStep| {
            let script = step.spec.script().map_or(0, |text| text.len());
            STEP_BYTES + step.name.len() + script + step.spec.bytes_without_script()
        };
        256 + self.name.len() + env + self.steps.iter().map(step).sum::<usize>()
    }
}

/// How a step has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepEnd {
    /// It is Completed.
    Completed,
    /// It is Failed, and no other step handles that.
    Failed,
    /// It is Failed, and another step handles that: see [`Step::is_caught`].
    Caught,
    /// It is Cancelled.
    Cancelled,
    /// It is Cancelled, because it waited for the failure of a step that succeeded, or for the success
    /// of one whose failure was caught, or depends on such a step.
    NotNeeded,
}

impl StepEnd {
    /// The state of the allocation.
    pub fn state(self) -> AllocationState {
        match self {
            Self::Completed => AllocationState::Completed,
            Self::Failed | Self::Caught => AllocationState::Failed,
            Self::Cancelled | Self::NotNeeded => AllocationState::Cancelled,
        }
    }
}

/// A step in the record of its DAG.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Its allocation.
    pub allocation: AllocationId,
    /// What it depends on: steps of the DAG before it, and other allocations.
    pub depends_on: Vec<Dependency>,
    /// Whether its failure is caught: another step waits for that, or for its end in any way.
    pub is_caught: bool,
    /// How it ended; `None`: it has not ended.
    pub end: Option<StepEnd>,
}

/// The record of one DAG.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dag {
    /// Its id.
    pub id: DagId,
    /// Its name.
    pub name: String,
    /// The user who submitted it.
    pub owner: Principal,
    /// When the submission was committed.
    pub submitted_at: Timestamp,
    /// The SHA-256 of the submission: a repetition has the same.
    pub digest: [u8; 32],
    /// The steps. Each is after those that it depends on.
    pub steps: Vec<Step>,
    /// The number of steps whose allocation's record has not been dropped. If it is 0, this record is
    /// dropped, too.
    pub records: u32,
}

impl Dag {
    /// How many steps have ended in which way.
    pub fn counts(&self) -> StepCounts {
        let mut counts = StepCounts::default();
        for step in &self.steps {
            let count = match step.end {
                None => &mut counts.unended,
                Some(StepEnd::Completed) => &mut counts.completed,
                Some(StepEnd::Failed) => &mut counts.failed,
                Some(StepEnd::Caught) => &mut counts.caught,
                Some(StepEnd::Cancelled) => &mut counts.cancelled,
                Some(StepEnd::NotNeeded) => &mut counts.not_needed,
            };
            *count += 1;
        }
        counts
    }
}

/// How many steps of a DAG have ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCounts {
    /// Not yet.
    pub unended: u32,
    /// See [`StepEnd::Completed`].
    pub completed: u32,
    /// See [`StepEnd::Failed`].
    pub failed: u32,
    /// See [`StepEnd::Caught`].
    pub caught: u32,
    /// See [`StepEnd::Cancelled`].
    pub cancelled: u32,
    /// See [`StepEnd::NotNeeded`].
    pub not_needed: u32,
}

impl StepCounts {
    /// The number of all steps.
    pub fn all(self) -> u32 {
        let Self { unended, completed, failed, caught, cancelled, not_needed } = self;
        unended + completed + failed + caught + cancelled + not_needed
    }

    /// The state of the DAG: Running until all steps have ended; then Failed if a failure was not
    /// caught, else Cancelled if a step was cancelled, else Completed. Steps that were not needed do
    /// not count.
    pub fn state(self) -> AllocationState {
        if self.unended > 0 {
            AllocationState::Running
        } else if self.failed > 0 {
            AllocationState::Failed
        } else if self.cancelled > 0 {
            AllocationState::Cancelled
        } else {
            AllocationState::Completed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders;

    fn counts(unended: u32, completed: u32, failed: u32, caught: u32, cancelled: u32, not_needed: u32) -> StepCounts {
        StepCounts { unended, completed, failed, caught, cancelled, not_needed }
    }

    #[test]
    fn the_state_follows_from_how_the_steps_ended() {
        for (of, state) in [
            (counts(1, 1, 1, 1, 1, 1), AllocationState::Running),
            (counts(0, 1, 1, 1, 1, 1), AllocationState::Failed),
            (counts(0, 1, 0, 1, 1, 1), AllocationState::Cancelled),
            (counts(0, 1, 0, 1, 0, 1), AllocationState::Completed),
        ] {
            assert_eq!(of.state(), state, "{of:?}");
        }
        assert_eq!(counts(1, 2, 3, 4, 5, 6).all(), 21);
    }

    #[test]
    fn a_step_gets_the_variables_of_all_steps_and_its_own_win() {
        let allocation = AllocationId(uuid::Uuid::from_u128(1));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut spec = test_builders::spec();
        spec.env = [pair("A", "own")].into();
        let step = |takes_env| DagStep { name: "a".into(), allocation, takes_env, spec: Box::new(spec.clone()) };
        let env = [pair("A", "all"), pair("B", "all")].into();
        let dag = DagSubmission { name: "d".into(), env, steps: vec![step(true), step(false)] };
        assert_eq!(dag.spec_of(&dag.steps[0]).env, [pair("A", "own"), pair("B", "all")].into());
        assert_eq!(dag.spec_of(&dag.steps[1]), spec);
        assert!(dag.bytes_about() > 2 * STEP_BYTES);
    }

    #[test]
    fn sizes_and_names_have_bounds() {
        assert_eq!(DagSize::default().steps(), 1000);
        assert!(DagSize::of_steps(10_000).is_ok() && DagSize::of_steps(0).is_err());
        assert_eq!(DagSize::of_steps(10_001).unwrap_err().to_string(), "a DAG may have up to 10001 steps? The limit can be 1 to 10000");
        assert!(is_dag_name("stage 1") && is_dag_name(&"x".repeat(128)));
        assert!(!is_dag_name("") && !is_dag_name("a\n") && !is_dag_name(&"x".repeat(129)));
    }
}
