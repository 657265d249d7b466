//! The environment variables that describe this node to work.

use crate::handles::Handles;
use lattice_agent_common::environment::{base, slurm};
use lattice_machine::hardware as machine;
use lattice_machine::mpirun;
use lattice_model::DesiredShare;
use std::collections::BTreeMap;

/// The script's environment on the head.
pub fn of_script(share: &DesiredShare, context: &Handles) -> Vec<(String, String)> {
    let mut env = base(share, &context.setup.slurm);
    of_this_node(&mut env, share, context);
    if context.setup.slurm.is_on(share) {
        let first = ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"].map(|name| (name.to_owned(), "0".to_owned()));
        env.extend(first);
        env.extend(slurm_of_this_node(share, context, false));
    }
    env.into_iter().collect()
}

/// The environment of a program on an attached terminal: like a script's, but without the Slurm
/// variables that describe a rank, with the caller's kind of terminal, and with `shell` if the work
/// has no SHELL of its own.
pub fn of_terminal(share: &DesiredShare, context: &Handles, term: &str, shell: &str) -> Vec<(String, String)> {
    let mut env = base(share, &context.setup.slurm);
    of_this_node(&mut env, share, context);
    if context.setup.slurm.is_on(share) {
        env.extend(slurm_of_this_node(share, context, false));
    }
    env.entry("SHELL".to_owned()).or_insert_with(|| shell.to_owned());
    env.insert("TERM".to_owned(), if term.is_empty() { "dumb" } else { term }.to_owned());
    env.into_iter().collect()
}

/// Slurm's variables that differ from node to node. `is_step`: for the ranks of a launch.
pub fn slurm_of_this_node(share: &DesiredShare, context: &Handles, is_step: bool) -> Vec<(String, String)> {
    let topology = context.machine.topology();
    let view = context.view.borrow();
    let local = view.locals.iter().find(|local| (local.share.allocation, local.share.epoch) == (share.allocation, share.epoch));
    let own = local.and_then(|local| local.assignment.as_ref()).into_iter().flat_map(|assignment| &assignment.gpus);
    let mut gpus: Vec<u32> = own.filter_map(|gpu| topology.gpu.by_id(gpu)).map(|gpu| gpu.index).collect();
    gpus.sort_unstable();
    slurm::of_node(share, &context.setup.me, &gpus, is_step)
}

/// Adds the variables that differ from node to node.
pub fn of_this_node(env: &mut BTreeMap<String, String>, share: &DesiredShare, context: &Handles) {
    env.insert("LATTICE_NODE".to_owned(), context.setup.me.to_string());
    env.insert("LATTICE_ENDPOINT".to_owned(), format!("unix:{}", context.setup.socket.display()));
    let topology = machine::file(&context.setup.state_dir, share.allocation, share.epoch);
    // There is no file if the allocation has no assignment of the node's resources.
    if topology.exists() {
        env.insert("LATTICE_TOPOLOGY_FILE".to_owned(), topology.display().to_string());
    }
    context.machine.fabric.add_key(env, share);
    let index = share.nodes.iter().position(|node| *node == context.setup.me).unwrap_or(0);
    env.insert("LATTICE_NODE_INDEX".to_owned(), index.to_string());
    env.extend(context.machine.data.environment(share));
    // Work submitted from within an allocation must not inherit that allocation's values.
    for name in ["LATTICE_CHECKPOINT_DIR", "LATTICE_CHECKPOINT_SHM", "LATTICE_RESTORE_FROM"] {
        env.remove(name);
    }
    env.extend(context.checkpoint.checkpoints.environment(share).into_iter().map(|(name, value)| (name.to_owned(), value)));
    mpirun::environment(env, &context.setup.state_dir, share);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::{Bench, ME};
    use lattice_model::test_builders::desired_share;
    use lattice_model::{AllocationId, LaneOf, ReplicaOf, TaskGroup, Timestamp};

    fn share() -> DesiredShare {
        let mut share = desired_share("00000000-0000-4000-8000-000000000001".parse().unwrap());
        share.nodes = ["n0", ME].map(|node| node.parse().unwrap()).into_iter().collect();
        share
    }

    #[tokio::test]
    async fn work_gets_its_node_and_nothing_of_the_allocation_that_submitted_it() {
        let (bench, share) = (Bench::new(), share());
        let outer = ["LATTICE_CHECKPOINT_DIR", "LATTICE_CHECKPOINT_SHM", "LATTICE_RESTORE_FROM", "LATTICE_NODE", "LATTICE_NODE_INDEX"];
        let mut env: BTreeMap<String, String> = outer.map(|name| (name.to_owned(), "outer".to_owned())).into();
        env.insert("OWN".to_owned(), "kept".to_owned());
        of_this_node(&mut env, &share, &bench.handles);
        let endpoint = format!("unix:{}", bench.handles.setup.socket.display());
        let want = [("LATTICE_ENDPOINT", endpoint.as_str()), ("LATTICE_NODE", ME), ("LATTICE_NODE_INDEX", "1"), ("OWN", "kept")];
        assert_eq!(env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect::<Vec<_>>(), want);
    }

    #[tokio::test]
    async fn the_topology_file_is_named_once_it_exists() {
        let (bench, share) = (Bench::new(), share());
        let file = machine::file(&bench.handles.setup.state_dir, share.allocation, share.epoch);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{}").unwrap();
        let mut env = BTreeMap::new();
        of_this_node(&mut env, &share, &bench.handles);
        assert_eq!(env["LATTICE_TOPOLOGY_FILE"], file.display().to_string());
    }

    #[tokio::test]
    async fn slurms_variables_are_set_for_scripts_that_request_them() {
        let (bench, mut share) = (Bench::new(), share());
        let names = |share: &DesiredShare| {
            let env: BTreeMap<String, String> = of_script(share, &bench.handles).into_iter().collect();
            ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURMD_NODENAME"].map(|name| env.get(name).cloned())
        };
        assert_eq!(names(&share), [const { None }; 4]);
        share.spec.launch.shape.slurm_env = true;
        assert_eq!(names(&share), ["0", "0", "0", ME].map(|value| Some(value.to_owned())));
        let terminal: BTreeMap<String, String> = of_terminal(&share, &bench.handles, "", "/bin/sh").into_iter().collect();
        assert_eq!((terminal.get("SLURMD_NODENAME").map(String::as_str), terminal.get("SLURM_PROCID")), (Some(ME), None));
    }

    #[tokio::test]
    async fn a_lane_has_the_variables_of_its_task_group() {
        let (bench, mut share) = (Bench::new(), share());
        let of_tasks = |share: &DesiredShare| {
            let all = of_script(share, &bench.handles).into_iter();
            all.filter(|(name, _)| name.starts_with("LATTICE_TASK_") || name.starts_with("SLURM_ARRAY_")).collect::<Vec<_>>()
        };
        let group: AllocationId = "8f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        share.spec.tasks = Some(Box::new(TaskGroup::parse("10-98:2%5").unwrap()));
        assert_eq!(of_tasks(&share), [], "it is no lane");
        share.number = 12;
        share.lane = Some(LaneOf { group, number: 3, queued_at: Timestamp(0), revocations: 0 });
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let texts = |pairs: &[(&str, &str)]| pairs.iter().map(owned).collect::<Vec<_>>();
        let ours = [
            ("LATTICE_TASK_COUNT", "45"),
            ("LATTICE_TASK_GROUP_ID", "8f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88"),
            ("LATTICE_TASK_MAX", "98"),
            ("LATTICE_TASK_MIN", "10"),
            ("LATTICE_TASK_STEP", "2"),
        ];
        assert_eq!(of_tasks(&share), texts(&ours));
        share.spec.launch.shape.slurm_env = true;
        let slurms = [
            ("SLURM_ARRAY_JOB_ID", "12"),
            ("SLURM_ARRAY_TASK_COUNT", "45"),
            ("SLURM_ARRAY_TASK_MAX", "98"),
            ("SLURM_ARRAY_TASK_MIN", "10"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
        ];
        assert_eq!(of_tasks(&share), texts(&[ours, slurms].concat()));
    }

    #[tokio::test]
    async fn a_replica_has_its_service_and_number_and_other_work_has_none() {
        let (bench, mut share) = (Bench::new(), share());
        let names = ["LATTICE_SERVICE_ID", "LATTICE_REPLICA"];
        let of = |share: &DesiredShare| {
            let env: BTreeMap<String, String> = of_script(share, &bench.handles).into_iter().collect();
            names.map(|name| env.get(name).cloned())
        };
        share.spec.env.extend(names.map(|name| (name.to_owned(), "outer".to_owned())));
        assert_eq!(of(&share), [None, None], "it was submitted by a replica");
        let service = "8f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";
        share.replica = Some(ReplicaOf { service: service.parse().unwrap(), number: 3 });
        assert_eq!(of(&share), [service, "3"].map(|value| Some(value.to_owned())));
    }

    #[tokio::test]
    async fn a_terminal_has_its_callers_kind_and_the_owners_shell_unless_the_work_sets_one() {
        let (bench, mut share) = (Bench::new(), share());
        let of = |share: &DesiredShare, term| {
            let env: BTreeMap<String, String> = of_terminal(share, &bench.handles, term, "/bin/zsh").into_iter().collect();
            (env["TERM"].clone(), env["SHELL"].clone())
        };
        assert_eq!(of(&share, "xterm"), ("xterm".to_owned(), "/bin/zsh".to_owned()));
        assert_eq!(of(&share, "").0, "dumb");
        share.spec.env.insert("SHELL".to_owned(), "/bin/sh".to_owned());
        assert_eq!(of(&share, "xterm").1, "/bin/sh");
    }
}
