//! What a task group cannot have: everything meant for one long run, or needed by each task for
//! itself.

use super::{AllocationSpec, Entrypoint, invalid};
use crate::spec_error::SpecError;
use crate::task_group::{NoSuchIndices, RUNS_MAX};

const FIELD: &str = "task-group";

impl AllocationSpec {
    pub(super) fn validate_tasks(&self) -> Result<(), SpecError> {
        let Some(tasks) = &self.tasks else { return Ok(()) };
        let refuse = |why: &str| Err(invalid(FIELD, why));
        if tasks.indices.runs().len() > RUNS_MAX {
            return refuse(&NoSuchIndices::TooManyRuns.to_string());
        }
        if tasks.concurrent_max == Some(0) {
            return refuse("no task could run: allow at least 1 at the same time, as in 0-99%1");
        }
        if self.session {
            return refuse("a session has no tasks: submit a script, or leave --task-group out");
        }
        if self.pty.is_some() {
            return refuse("a task has no terminal: leave --pty out");
        }
        if self.liveness_probe.is_some() {
            return refuse("tasks are not probed: leave --liveness-probe out, or end the script when it must not go on");
        }
        if self.checkpoint.is_some() {
            return refuse("a task is not asked to save itself, it begins anew: leave --checkpoint out");
        }
        if !self.connectivity.expose.is_empty() {
            return refuse("a task exposes no port: leave --expose out, or submit the service by itself");
        }
        if self.walltime.is_none() {
            return refuse("a task has a walltime: give --walltime, and leave --service out");
        }
        let is_one = self.nodes_most() == 1 && self.ranks_min() == 1 && self.launch.shape.programs.is_empty();
        match self.entrypoint {
            Entrypoint::Command { .. } if !is_one => {
                refuse("the command of a task runs once, on one node: write a script that uses `lattice launch`")
            }
            Entrypoint::Command { .. } | Entrypoint::Script { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::TerminalSize;
    use crate::layout::Program;
    use crate::spec::SPEC_BYTES_MAX;
    use crate::task_group::{IndexRun, TaskGroup, TaskIndices};
    use crate::{CheckpointPolicy, Exposed, LivenessProbe, ProbeCheck, test_builders};
    use std::time::Duration;

    fn group(text: &str) -> AllocationSpec {
        AllocationSpec { tasks: Some(Box::new(TaskGroup::parse(text).unwrap())), ..test_builders::spec() }
    }

    fn script() -> Entrypoint {
        Entrypoint::Script { text: "#!/bin/sh".into(), args: vec![] }
    }

    fn why(spec: &AllocationSpec) -> String {
        match spec.validate() {
            Err(SpecError::Invalid { field: FIELD, why }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_group_of_scripts_or_of_commands_of_one_process_is_valid() {
        assert_eq!(group("0-99%20").validate(), Ok(()));
        let wide = AllocationSpec { entrypoint: script(), nodes: 2, nodes_max: Some(4), tasks_per_node: 8, ..group("0-99") };
        assert_eq!(wide.validate(), Ok(()));
    }

    #[test]
    fn what_a_task_cannot_have_is_refused_with_a_remedy() {
        let refused = |change: &dyn Fn(&mut AllocationSpec), piece: &str| {
            let mut changed = group("0-99");
            change(&mut changed);
            let why = why(&changed);
            assert!(why.contains(piece), "{why}");
        };
        let second = Duration::from_secs(1);
        let probe =
            LivenessProbe { check: ProbeCheck::Tcp, port: 1, initial_delay: second, period: second, timeout: second, failures_max: 1 };
        refused(&|s| (s.session, s.entrypoint) = (true, script()), "submit a script");
        refused(&|s| s.pty = Some(TerminalSize::default()), "leave --pty out");
        refused(&|s| s.liveness_probe = Some(Box::new(probe.clone())), "leave --liveness-probe out");
        refused(&|s| s.checkpoint = Some(CheckpointPolicy::default()), "leave --checkpoint out");
        let port = || Exposed { name: "a".into(), port: 80, protocol: "tcp".into() };
        refused(&|s| s.connectivity.expose = vec![port()], "leave --expose out");
        refused(&|s| s.walltime = None, "leave --service out");
        refused(&|s| s.nodes = 2, "`lattice launch`");
        refused(&|s| s.nodes_max = Some(2), "`lattice launch`");
        refused(&|s| s.tasks_per_node = 2, "`lattice launch`");
        let ranks = |s: &mut AllocationSpec| {
            s.tasks_per_node = 2;
            s.launch.ranks = 2;
            s.launch.shape.programs = vec![Program { ranks: 1, argv: vec!["true".into()] }];
        };
        refused(&ranks, "`lattice launch`");
        refused(&|s| s.tasks.as_mut().unwrap().concurrent_max = Some(0), "at least 1");
    }

    #[test]
    fn a_lane_gives_its_nodes_back_because_its_tasks_begin_anew() {
        let of_class = |preemption_class| AllocationSpec { preemption_class, ..group("0-9") };
        assert_eq!([5, 6, 7, 10].map(|class| of_class(class).never_gives_back(0).is_some()), [false, false, true, true]);
        assert!(test_builders::spec().never_gives_back(0).is_some());
    }

    #[test]
    fn a_group_with_the_most_runs_leaves_room_for_its_environment_and_more_runs_are_refused() {
        let with = |runs: u32| {
            let mut spec = group("0");
            // Each second pair: no two pairs are one run.
            let all = TaskIndices::new([IndexRun { first: 0, last: runs * 4, step: 1 }]).unwrap();
            let pairs = (0..runs).flat_map(|number| [number * 4, number * 4 + 1]).collect();
            spec.tasks.as_mut().unwrap().indices = all.indices_of(&pairs).unwrap();
            spec
        };
        let most = with(RUNS_MAX as u32);
        assert_eq!((most.tasks.as_ref().unwrap().indices.runs().len(), most.validate()), (RUNS_MAX, Ok(())));
        assert!(most.bytes_without_script() > SPEC_BYTES_MAX / 3 && most.bytes_without_script() < SPEC_BYTES_MAX * 2 / 3);
        assert!(why(&with(RUNS_MAX as u32 + 1)).contains("separate ranges"));
    }
}
