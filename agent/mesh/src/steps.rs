//! The wire form of an allocation's steps, from its head.

use super::frame::FrameError;
use lattice_model::job_steps::{STEP_NAME_CHARS_MAX, STEP_NODES_BYTES_MAX, STEP_REASON_CHARS_MAX, STEPS_MAX};
use lattice_model::{AllocationState, JobStep, JobStepEnd, JobStepTotals, JobSteps, LaunchId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};
use uuid::Uuid;

/// A request for the steps of an allocation, running or ended.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct StepsOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// The user for whom the calling agent vouches.
    pub uid: u32,
    pub user: String,
}

/// The answer to [`StepsOpen`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum StepsAnswer {
    Refused {
        why: String,
    },
    /// This node has no files of the allocation: it left none, or they were removed. The log store
    /// may have them.
    NotHere,
    Here(WireSteps),
}

/// The wire form of [`JobSteps`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireSteps {
    /// How many older steps, which are not in `steps`, have begun, completed, failed, been cancelled.
    pub omitted: [u64; 4],
    pub steps: Vec<WireStep>,
}

/// The wire form of [`JobStep`]; times in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireStep {
    pub launch_number: u32,
    pub launch: [u8; 16],
    pub name: String,
    pub ranks: u32,
    pub nodes: String,
    pub node_count: u32,
    pub began_at_ms: u64,
    pub end: Option<WireStepEnd>,
}

/// The wire form of [`JobStepEnd`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireStepEnd {
    pub at_ms: u64,
    pub state: WireStepState,
    pub exit_code: Option<i32>,
    pub reason: String,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireStepState {
    Completed,
    Failed,
    Cancelled,
}

impl From<AllocationState> for WireStepState {
    fn from(state: AllocationState) -> Self {
        match state {
            AllocationState::Completed => Self::Completed,
            AllocationState::Failed => Self::Failed,
            AllocationState::Cancelled
            | AllocationState::Pending
            | AllocationState::Staging
            | AllocationState::Running
            | AllocationState::Suspended => Self::Cancelled,
        }
    }
}

impl From<WireStepState> for AllocationState {
    fn from(state: WireStepState) -> Self {
        match state {
            WireStepState::Completed => Self::Completed,
            WireStepState::Failed => Self::Failed,
            WireStepState::Cancelled => Self::Cancelled,
        }
    }
}

impl From<JobSteps> for WireSteps {
    fn from(JobSteps { omitted, steps }: JobSteps) -> Self {
        let JobStepTotals { begun, completed, failed, cancelled } = omitted;
        Self { omitted: [begun, completed, failed, cancelled], steps: steps.into_iter().map(WireStep::from).collect() }
    }
}

impl From<JobStep> for WireStep {
    fn from(step: JobStep) -> Self {
        let JobStep { launch_number, launch, name, ranks, nodes, node_count, began_at, end } = step;
        let end =
            end.map(|JobStepEnd { at, state, exit_code, reason }| WireStepEnd { at_ms: at.0, state: state.into(), exit_code, reason });
        Self { launch_number, launch: *launch.0.as_bytes(), name, ranks, nodes, node_count, began_at_ms: began_at.0, end }
    }
}

impl WireSteps {
    /// Checks the bounds and refuses control characters: the texts are printed on users' terminals.
    ///
    /// # Errors
    /// The message has more, or longer, values than a head sends.
    pub fn checked(self) -> Result<JobSteps, FrameError> {
        let plain = |text: &str, chars_max: usize| text.chars().count() <= chars_max && !text.chars().any(char::is_control);
        let good = |step: &WireStep| {
            let is_end_good = step.end.as_ref().is_none_or(|end| plain(&end.reason, STEP_REASON_CHARS_MAX));
            is_end_good && plain(&step.name, STEP_NAME_CHARS_MAX) && plain(&step.nodes, STEP_NODES_BYTES_MAX)
        };
        let is_ascending = self.steps.windows(2).all(|two| two[0].launch_number < two[1].launch_number);
        if self.steps.len() > STEPS_MAX || !is_ascending || !self.steps.iter().all(good) {
            return Err(FrameError::Malformed);
        }
        let [begun, completed, failed, cancelled] = self.omitted;
        let omitted = JobStepTotals { begun, completed, failed, cancelled };
        Ok(JobSteps { omitted, steps: self.steps.into_iter().map(JobStep::from).collect() })
    }
}

impl From<WireStep> for JobStep {
    fn from(step: WireStep) -> Self {
        let WireStep { launch_number, launch, name, ranks, nodes, node_count, began_at_ms, end } = step;
        let end = end.map(|WireStepEnd { at_ms, state, exit_code, reason }| JobStepEnd {
            at: Timestamp(at_ms),
            state: state.into(),
            exit_code,
            reason,
        });
        let launch = LaunchId(Uuid::from_bytes(launch));
        Self { launch_number, launch, name, ranks, nodes, node_count, began_at: Timestamp(began_at_ms), end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    fn step(launch_number: u32) -> WireStep {
        WireStep {
            launch_number,
            launch: [7; 16],
            name: "sim".into(),
            ranks: 4,
            nodes: "n[1-2]".into(),
            node_count: 2,
            began_at_ms: 5,
            end: Some(WireStepEnd { at_ms: 9, state: WireStepState::Failed, exit_code: Some(3), reason: "exit_code 3".into() }),
        }
    }

    #[tokio::test]
    async fn steps_survive_the_wire_and_values_out_of_bounds_are_refused() {
        let wire = WireSteps { omitted: [4, 3, 1, 0], steps: vec![step(5), WireStep { end: None, ..step(6) }] };
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &StepsAnswer::Here(wire.clone())).await.unwrap();
        assert_eq!(frame::read::<StepsAnswer, _>(&mut bytes.as_slice()).await.unwrap(), StepsAnswer::Here(wire.clone()));
        let steps = wire.clone().checked().unwrap();
        assert_eq!((steps.totals().begun, steps.totals().failed), (6, 2));
        assert_eq!(WireSteps::from(steps), wire);
        let count = u32::try_from(STEPS_MAX).unwrap() + 1;
        for bad in [
            vec![WireStep { name: "a\u{1b}[2J".into(), ..step(1) }],
            vec![WireStep { nodes: "n".repeat(STEP_NODES_BYTES_MAX + 1), ..step(1) }],
            vec![step(2), step(1)],
            (0..count).map(step).collect(),
        ] {
            assert!(WireSteps { omitted: [0; 4], steps: bad }.checked().is_err());
        }
    }
}
