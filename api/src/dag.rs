//! DAGs in the form that users see.

use crate::v1;
use lattice_model::{AllocationId, Dag, Dependency, EndReason, Step, StepCounts, StepEnd};
use std::collections::BTreeMap;

/// The facts about a step that the record of its DAG lacks.
#[derive(Clone, Debug, Default)]
pub struct StepNow {
    /// The state of its allocation.
    pub state: String,
    /// Why the allocation ended, or is in the queue again.
    pub reason: Option<EndReason>,
    /// The names of the allocations on which it depends and that are no steps of the DAG.
    pub others: BTreeMap<AllocationId, String>,
}

/// Encodes how many steps have ended in which way. People see all Failed steps as one number.
pub fn counts_to_proto(counts: StepCounts) -> v1::StepCounts {
    let StepCounts { unended, completed, failed, caught, cancelled, not_needed } = counts;
    v1::StepCounts { unended, completed, failed: failed + caught, cancelled, not_needed }
}

/// Encodes a DAG with its steps. `now`: further facts about each step, in the same order.
pub fn to_proto(dag: &Dag, now: &[StepNow]) -> v1::Dag {
    let names: BTreeMap<AllocationId, &str> = dag.steps.iter().map(|step| (step.allocation, step.name.as_str())).collect();
    let counts = dag.counts();
    v1::Dag {
        id: dag.id.to_string(),
        name: dag.name.clone(),
        owner: dag.owner.name.clone(),
        state: counts.state().to_string(),
        submitted_at_ms: dag.submitted_at.0,
        counts: Some(counts_to_proto(counts)),
        steps: dag.steps.iter().zip(now).map(|(step, now)| step_to_proto(step, now, &names)).collect(),
        age_ms: None,
    }
}

fn step_to_proto(step: &Step, now: &StepNow, names: &BTreeMap<AllocationId, &str>) -> v1::DagStepStatus {
    let edge = |Dependency { on, condition }: &Dependency| v1::DagEdge {
        step: names.get(on).map(|name| (*name).to_owned()).unwrap_or_default(),
        allocation: on.to_string(),
        name: now.others.get(on).cloned().unwrap_or_default(),
        condition: condition.to_string(),
    };
    v1::DagStepStatus {
        name: step.name.clone(),
        allocation: step.allocation.to_string(),
        state: now.state.clone(),
        reason: now.reason.as_ref().map(ToString::to_string).unwrap_or_default(),
        not_needed: step.end == Some(StepEnd::NotNeeded),
        depends_on: step.depends_on.iter().map(edge).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{DagId, DependencyCondition, Principal, Timestamp};

    #[test]
    fn edges_name_steps_and_other_allocations() {
        let id = |number: u128| AllocationId(uuid::Uuid::from_u128(number));
        let on = |number, condition| Dependency { on: id(number), condition };
        let step =
            |name: &str, number, depends_on, end| Step { name: name.into(), allocation: id(number), depends_on, is_caught: false, end };
        let dag = Dag {
            id: DagId(uuid::Uuid::from_u128(9)),
            name: "flow".into(),
            owner: Principal { name: "ada".into(), uid: 1000, gid: 1000, groups: vec![] },
            submitted_at: Timestamp(5),
            digest: [0; 32],
            steps: vec![
                step("a", 1, vec![on(7, DependencyCondition::Any)], Some(StepEnd::Completed)),
                step("b", 2, vec![on(1, DependencyCondition::Failure)], Some(StepEnd::NotNeeded)),
            ],
            records: 2,
        };
        let reason = EndReason::Exited { code: 0 };
        let now = [
            StepNow { state: "Completed".into(), reason: Some(reason), others: [(id(7), "data".to_owned())].into() },
            StepNow { state: "Cancelled".into(), ..StepNow::default() },
        ];
        let shown = to_proto(&dag, &now);
        assert_eq!((shown.state.as_str(), shown.owner.as_str(), shown.submitted_at_ms), ("Completed", "ada", 5));
        assert_eq!(shown.counts, Some(v1::StepCounts { completed: 1, not_needed: 1, ..Default::default() }));
        let edge = |step: &str, number, name: &str, condition: &str| v1::DagEdge {
            step: step.into(),
            allocation: id(number).to_string(),
            name: name.into(),
            condition: condition.into(),
        };
        assert_eq!(shown.steps[0].depends_on, [edge("", 7, "data", "any")]);
        assert_eq!(shown.steps[1].depends_on, [edge("a", 1, "", "failure")]);
        assert_eq!(shown.steps.iter().map(|step| step.not_needed).collect::<Vec<_>>(), [false, true]);
    }
}
