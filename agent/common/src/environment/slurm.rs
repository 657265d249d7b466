//! The variables that Slurm sets for jobs and steps, for programs and scripts that expect them: those of `sbatch(1)` and
//! `srun(1)`, "Output environment variables", whose values Lattice knows. What differs from rank to rank, the shim adds.

use lattice_model::binding::GpuBind;
use lattice_model::dependency::{DependencyCondition, SINGLETON};
use lattice_model::layout::Distribution;
use lattice_model::{
    AllocationSpec, DEFAULT_VCLUSTER, Dependency, DesiredShare, LaunchShape, MemoryUnit, NodeId, NodeRanks, hostlist, millis,
};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A mebibyte: Slurm's unit of memory.
const MEBIBYTE: u64 = 1 << 20;

/// The QOS of a preemption class that the site has not named.
const QOS_DEFAULT: &str = "normal";

/// The site's names of Slurm for those of Lattice. A name that is not here is the same in both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmNames {
    /// The partition of each vCluster.
    pub partitions: BTreeMap<String, String>,
    /// The account of each tenant.
    pub accounts: BTreeMap<String, String>,
    /// The QOS of each preemption class; of others it is [`QOS_DEFAULT`].
    pub qos: BTreeMap<u8, String>,
}

/// What the site says of these variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmSettings {
    /// The cluster's name.
    pub cluster: String,
    /// The site's other names.
    pub names: SlurmNames,
    /// Whether all work of the node gets them, whatever it asks for.
    pub for_all_work: bool,
    /// The address at which other nodes reach this one; `None`: it is a name, or not known.
    pub address: Option<IpAddr>,
}

impl SlurmSettings {
    /// Whether the work of this share gets them.
    pub fn is_on(&self, share: &DesiredShare) -> bool {
        self.for_all_work || share.spec.launch.shape.slurm_env
    }
}

/// Those of a job, the same in all its processes but for those of its tasks.
pub(super) fn of_job(share: &DesiredShare, slurm: &SlurmSettings) -> Vec<(String, String)> {
    let spec = &share.spec;
    let nodes = u32::try_from(share.nodes.len()).unwrap_or(u32::MAX);
    let ranks = spec.ranks_on(nodes).to_string();
    let submit_dir = spec.submit_dir.as_ref().unwrap_or(&spec.working_dir);
    let list = hostlist::fold(share.nodes.iter());
    let counts = spec.usual_ranks(&share.nodes);
    let vcluster = if spec.vcluster.is_empty() { DEFAULT_VCLUSTER } else { &spec.vcluster };
    let named = |names: &BTreeMap<String, String>, ours: &str| names.get(ours).map_or_else(|| ours.to_owned(), String::clone);
    let qos = slurm.names.qos.get(&spec.preemption_class).map_or(QOS_DEFAULT, String::as_str);
    let mut env = vec![
        ("SLURM_CLUSTER_NAME", slurm.cluster.clone()),
        ("SLURM_JOB_ID", share.number.to_string()),
        ("SLURM_JOBID", share.number.to_string()),
        ("SLURM_JOB_NAME", spec.name.clone()),
        ("SLURM_JOB_USER", share.owner.name.clone()),
        ("SLURM_JOB_UID", share.owner.uid.to_string()),
        ("SLURM_JOB_GID", share.owner.gid.to_string()),
        ("SLURM_JOB_PARTITION", named(&slurm.names.partitions, vcluster)),
        ("SLURM_JOB_QOS", qos.to_owned()),
        ("SLURM_JOB_NODELIST", list.clone()),
        ("SLURM_NODELIST", list),
        ("SLURM_JOB_NUM_NODES", nodes.to_string()),
        ("SLURM_NNODES", nodes.to_string()),
        ("SLURM_NODE_ALIASES", "(null)".to_owned()),
        ("SLURM_NTASKS", ranks.clone()),
        ("SLURM_NPROCS", ranks),
        ("SLURM_NTASKS_PER_NODE", spec.tasks_per_node.to_string()),
        ("SLURM_TASKS_PER_NODE", repeated(counts.iter().map(|n| (1, n.count)))),
        ("SLURM_PRIO_PROCESS", "0".to_owned()),
        // All work begins with it.
        ("SLURM_UMASK", "0022".to_owned()),
        ("SLURM_SUBMIT_DIR", submit_dir.to_string_lossy().into_owned()),
    ];
    let if_set = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let seconds = |ms: u64| (ms / 1000).to_string();
    let walltime_ms = spec.walltime.map(millis);
    let ends_at = share.started_at.zip(walltime_ms).map(|(started, walltime)| started.0.saturating_add(walltime));
    let optional = [
        ("SLURM_JOB_ACCOUNT", if_set(&named(&slurm.names.accounts, &spec.tenant))),
        ("SLURM_SUBMIT_HOST", if_set(&spec.submit_host)),
        ("SLURM_JOB_COMMENT", if_set(&spec.comment)),
        ("SLURM_JOB_DEPENDENCY", if_set(&dependencies(spec))),
        ("SLURM_JOB_RESERVATION", spec.reservation.clone()),
        ("SLURM_JOB_CPUS_PER_NODE", if_set(&repeated(share.cores.iter().copied()))),
        ("SLURM_JOB_START_TIME", share.started_at.map(|started| seconds(started.0))),
        ("SLURM_JOB_END_TIME", ends_at.map(seconds)),
        ("SLURM_RESTART_COUNT", positive(share.requeue_count)),
        // `srun` in the job follows it: both may write to the same file.
        ("SLURM_OPEN_MODE", spec.output_files.as_ref().filter(|files| files.append).map(|_| "a".to_owned())),
    ];
    env.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    env.extend(of_amounts(share, nodes));
    env.extend(of_shape(&spec.launch.shape));
    owned(env)
}

/// Those of the amounts that were requested of each node.
fn of_amounts(share: &DesiredShare, nodes: u32) -> Vec<(&'static str, String)> {
    let spec = &share.spec;
    let gpus = spec.share.map_or(0, |asked| asked.gpus);
    // The amount in the claim: a request without memory has memory by its cores.
    let memory = spec.share.map_or(0, |_| share.resources.memory_bytes / MEBIBYTE);
    let has = share.resources;
    let (memory_variable, units) = match spec.memory_unit {
        MemoryUnit::Core if has.cores > 0 => ("SLURM_MEM_PER_CPU", has.cores),
        MemoryUnit::Gpu if has.gpus > 0 => ("SLURM_MEM_PER_GPU", has.gpus),
        MemoryUnit::Node | MemoryUnit::Core | MemoryUnit::Gpu => ("SLURM_MEM_PER_NODE", 1),
    };
    let memory = memory / u64::from(units);
    let gpu_bind = spec.binding.gpu_bind.map(|bind| match bind {
        GpuBind::Closest => "closest".to_owned(),
        GpuBind::None => "none".to_owned(),
    });
    // A request by gRPC may have them without GPUs.
    let of_each_gpu = |count: u32| positive(count).filter(|_| gpus > 0);
    let amounts = [
        (memory_variable, Some(memory).filter(|memory| *memory > 0).map(|memory| memory.to_string())),
        ("SLURM_GPUS", positive(gpus.saturating_mul(nodes))),
        ("SLURM_GPUS_PER_NODE", positive(gpus)),
        ("SLURM_GPUS_PER_TASK", positive(spec.binding.gpus_per_task)),
        ("SLURM_CPUS_PER_GPU", of_each_gpu(spec.cpus_per_gpu)),
        ("SLURM_NTASKS_PER_GPU", of_each_gpu(spec.ntasks_per_gpu)),
        ("SLURM_GPU_BIND", gpu_bind),
    ];
    amounts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Those of a job's or step's options of layout that were given.
fn of_shape(shape: &LaunchShape) -> Vec<(&'static str, String)> {
    let mut env = Vec::new();
    if shape.cpus_per_task > 0 {
        env.push(("SLURM_CPUS_PER_TASK", shape.cpus_per_task.to_string()));
    }
    match &shape.distribution {
        Distribution::Block => {}
        Distribution::Plane(size) => {
            env.extend([("SLURM_DISTRIBUTION", "plane".to_owned()), ("SLURM_DIST_PLANESIZE", size.to_string())]);
        }
        Distribution::Cyclic | Distribution::Explicit(_) => env.push(("SLURM_DISTRIBUTION", shape.distribution.to_string())),
    }
    env
}

/// Those of a step, the same for all its ranks, on top of those of its job.
pub(super) fn of_step(share: &DesiredShare, nodes: &[NodeRanks], shape: &LaunchShape, slurm: &SlurmSettings) -> Vec<(String, String)> {
    let ranks: u32 = nodes.iter().map(|n| n.count).sum();
    let nodes: Vec<&NodeRanks> = nodes.iter().filter(|n| n.count > 0).collect();
    let list = hostlist::fold(nodes.iter().map(|n| &n.node));
    let counts = repeated(nodes.iter().map(|n| (1, n.count)));
    let mut env = vec![
        ("SLURM_STEP_NODELIST", list),
        ("SLURM_STEP_NUM_NODES", nodes.len().to_string()),
        ("SLURM_STEP_NUM_TASKS", ranks.to_string()),
        ("SLURM_STEP_TASKS_PER_NODE", counts.clone()),
        ("SLURM_NNODES", nodes.len().to_string()),
        ("SLURM_NTASKS", ranks.to_string()),
        ("SLURM_NPROCS", ranks.to_string()),
        ("SLURM_TASKS_PER_NODE", counts),
        ("SLURM_DISTRIBUTION", shape.distribution.to_string()),
    ];
    env.extend(of_shape(shape));
    if let Some(address) = slurm.address {
        env.extend([("SLURM_LAUNCH_NODE_IPADDR", address.to_string()), ("SLURM_SRUN_COMM_HOST", address.to_string())]);
    }
    of_job(share, slurm).into_iter().chain(owned(env)).collect()
}

/// The number of a task of a lane's group, which is a job of its own in Slurm's eyes.
pub(super) fn of_task(share: &DesiredShare, index: u32) -> Vec<(String, String)> {
    let group = share.spec.tasks.as_deref().filter(|_| share.lane.is_some());
    let Some(ordinal) = group.and_then(|group| group.indices.ordinal_of(index)) else { return Vec::new() };
    let number = share.number.saturating_add(ordinal.into()).to_string();
    owned(vec![("SLURM_JOB_ID", number.clone()), ("SLURM_JOBID", number)])
}

/// Those that differ from node to node. `gpus`: the indices of the allocation's GPUs on this node; empty: they are not
/// known. `is_step`: for the ranks of a launch.
pub fn of_node(share: &DesiredShare, me: &NodeId, gpus: &[u32], is_step: bool) -> Vec<(String, String)> {
    let mut env = vec![("SLURM_CPUS_ON_NODE", share.resources.cores.to_string()), ("SLURMD_NODENAME", me.to_string())];
    env.extend(positive(share.resources.gpus).map(|count| ("SLURM_GPUS_ON_NODE", count)));
    if !gpus.is_empty() {
        let list = gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        env.push(("SLURM_JOB_GPUS", list.clone()));
        env.extend(is_step.then_some(("SLURM_STEP_GPUS", list)));
    }
    owned(env)
}

/// As in `--dependency`, with the ids of allocations in the place of job numbers.
fn dependencies(spec: &AllocationSpec) -> String {
    let of_one = |Dependency { on, condition }: &Dependency| {
        let (kind, delay) = match condition {
            DependencyCondition::Success => ("afterok", String::new()),
            DependencyCondition::Failure => ("afternotok", String::new()),
            DependencyCondition::Any => ("afterany", String::new()),
            DependencyCondition::After => ("after", String::new()),
            DependencyCondition::AfterDelay { seconds } => ("after", format!("+{}", seconds.div_ceil(60))),
            DependencyCondition::Corresponding => ("aftercorr", String::new()),
            // Slurm has no such kind.
            DependencyCondition::Mutex => return None,
        };
        Some(format!("{kind}:{}{delay}", on.short()))
    };
    let mut all: Vec<String> = spec.depends_on.iter().filter_map(of_one).collect();
    if spec.singleton {
        all.push(SINGLETON.to_owned());
    }
    all.join(",")
}

fn positive(count: u32) -> Option<String> {
    (count > 0).then(|| count.to_string())
}

fn owned(env: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Counts of nodes in Slurm's notation: `2(x3),1` for 2, 2, 2 and 1. Given as runs: how many nodes, and the count of each.
fn repeated(counts: impl Iterator<Item = (u32, u32)>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (nodes, count) in counts {
        match runs.last_mut() {
            Some((times, same)) if *same == count => *times += nodes,
            Some(_) | None => runs.push((nodes, count)),
        }
    }
    let text = |(times, count): &(u32, u32)| if *times > 1 { format!("{count}(x{times})") } else { count.to_string() };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::test_builders::desired_share;
    use lattice_model::{AllocationId, LaneOf, OutputFiles, Resources, TaskGroup, Timestamp};
    use std::collections::BTreeMap;
    use std::time::Duration;
    use uuid::Uuid;

    fn id(number: u128) -> AllocationId {
        AllocationId(Uuid::from_u128(number << 96))
    }

    fn share() -> DesiredShare {
        let mut share = desired_share(id(1));
        share.nodes = ["n1", "n2", "n3"].map(|node| node.parse().unwrap()).into_iter().collect();
        (share.number, share.cores, share.started_at) = (12, vec![(2, 8), (1, 4)], Some(Timestamp(1_772_704_812_034)));
        share.resources = Resources { cores: 8, memory_bytes: 4 << 30, gpus: 2 };
        share.spec.walltime = Some(Duration::from_secs(3600));
        share
    }

    fn settings() -> SlurmSettings {
        let names = SlurmNames {
            partitions: [("default".to_owned(), "normal".to_owned())].into(),
            accounts: [("physics".to_owned(), "phys01".to_owned())].into(),
            qos: [(8, "high".to_owned())].into(),
        };
        SlurmSettings { cluster: "alps".to_owned(), names, for_all_work: false, address: Some([10, 0, 0, 7].into()) }
    }

    fn value(env: &[(String, String)], name: &str) -> Option<String> {
        env.iter().rfind(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    #[test]
    fn a_job_has_its_number_and_what_it_got() {
        let mut share = share();
        share.spec.share = Some(Resources { cores: 8, memory_bytes: 0, gpus: 2 });
        let env: BTreeMap<_, _> = of_job(&share, &settings()).into_iter().collect();
        let of = |name: &str| env.get(name).map(String::as_str);
        for (name, want) in [
            ("SLURM_JOB_ID", "12"),
            ("SLURM_JOBID", "12"),
            ("SLURM_CLUSTER_NAME", "alps"),
            ("SLURM_JOB_PARTITION", "normal"),
            ("SLURM_JOB_QOS", "normal"),
            ("SLURM_UMASK", "0022"),
            ("SLURM_JOB_NODELIST", "n[1-3]"),
            ("SLURM_JOB_CPUS_PER_NODE", "8(x2),4"),
            ("SLURM_MEM_PER_NODE", "4096"),
            ("SLURM_GPUS", "6"),
            ("SLURM_GPUS_PER_NODE", "2"),
            ("SLURM_JOB_START_TIME", "1772704812"),
            ("SLURM_JOB_END_TIME", "1772708412"),
        ] {
            assert_eq!(of(name), Some(want), "{name}");
        }
        for unset in ["SLURM_RESTART_COUNT", "SLURM_JOB_ACCOUNT", "SLURM_JOB_DEPENDENCY", "SLURM_JOB_COMMENT", "SLURM_CPUS_PER_TASK"] {
            assert_eq!(of(unset), None, "{unset}");
        }
        assert_eq!(of("SLURM_OPEN_MODE"), None);
        share.spec.output_files = Some(Box::new(OutputFiles { stdout: "out".to_owned(), append: true, ..OutputFiles::default() }));
        assert_eq!(value(&of_job(&share, &settings()), "SLURM_OPEN_MODE").as_deref(), Some("a"));
        share.spec.share = None;
        share.spec.submit_host = "login1".to_owned();
        assert_eq!(value(&of_job(&share, &settings()), "SLURM_SUBMIT_HOST").as_deref(), Some("login1"));
        (share.requeue_count, share.spec.tenant, share.spec.comment) = (2, "physics".to_owned(), "a run".to_owned());
        let env = of_job(&share, &settings());
        let names = ["SLURM_RESTART_COUNT", "SLURM_JOB_ACCOUNT", "SLURM_JOB_COMMENT", "SLURM_MEM_PER_NODE", "SLURM_GPUS"];
        let want = [Some("2"), Some("phys01"), Some("a run"), None, None];
        assert_eq!(names.map(|name| value(&env, name)), want.map(|text| text.map(str::to_owned)));
    }

    #[test]
    fn memory_has_the_variable_of_its_unit_and_a_class_the_sites_name() {
        let mut share = share();
        share.spec.share = Some(Resources { cores: 8, memory_bytes: 4 << 30, gpus: 2 });
        let names = ["SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU"];
        for (unit, want) in [
            (MemoryUnit::Node, [Some("4096"), None, None]),
            (MemoryUnit::Core, [None, Some("512"), None]),
            (MemoryUnit::Gpu, [None, None, Some("2048")]),
        ] {
            share.spec.memory_unit = unit;
            let env = of_job(&share, &settings());
            assert_eq!(names.map(|name| value(&env, name)), want.map(|text| text.map(str::to_owned)), "{unit:?}");
        }
        (share.resources.gpus, share.spec.preemption_class) = (0, 8);
        let env = of_job(&share, &settings());
        assert_eq!(names.map(|name| value(&env, name).is_some()), [true, false, false]);
        assert_eq!(value(&env, "SLURM_JOB_QOS").as_deref(), Some("high"));
    }

    #[test]
    fn what_was_given_for_each_gpu_is_said_and_nothing_else() {
        let mut share = share();
        share.spec.share = Some(Resources { cores: 16, memory_bytes: 0, gpus: 2 });
        let names = ["SLURM_CPUS_PER_GPU", "SLURM_NTASKS_PER_GPU"];
        for (cpus_per_gpu, ntasks_per_gpu, want) in [(0, 0, [None, None]), (8, 0, [Some("8"), None]), (0, 2, [None, Some("2")])] {
            (share.spec.cpus_per_gpu, share.spec.ntasks_per_gpu) = (cpus_per_gpu, ntasks_per_gpu);
            let env = of_job(&share, &settings());
            assert_eq!(names.map(|name| value(&env, name)), want.map(|text| text.map(str::to_owned)));
        }
        (share.spec.cpus_per_gpu, share.spec.ntasks_per_gpu) = (8, 2);
        for without in [Some(Resources { cores: 16, memory_bytes: 0, gpus: 0 }), None] {
            share.spec.share = without;
            let env = of_job(&share, &settings());
            assert_eq!(names.map(|name| value(&env, name)), [None, None], "{without:?}");
        }
    }

    #[test]
    fn a_step_has_its_nodes_and_where_it_was_launched() {
        let nodes =
            [NodeRanks { node: "n1".parse().unwrap(), first: 0, count: 2 }, NodeRanks { node: "n2".parse().unwrap(), first: 2, count: 1 }];
        let shape = LaunchShape { distribution: Distribution::Plane(4), cpus_per_task: 3, ..LaunchShape::default() };
        let env = of_step(&share(), &nodes, &shape, &settings());
        let of = |name: &str| value(&env, name).unwrap();
        assert_eq!((of("SLURM_STEP_NODELIST"), of("SLURM_STEP_TASKS_PER_NODE")), ("n[1-2]".to_owned(), "2,1".to_owned()));
        assert_eq!((of("SLURM_NTASKS"), of("SLURM_JOB_NUM_NODES")), ("3".to_owned(), "3".to_owned()));
        assert_eq!((of("SLURM_DISTRIBUTION"), of("SLURM_DIST_PLANESIZE")), ("plane".to_owned(), "4".to_owned()));
        assert_eq!((of("SLURM_CPUS_PER_TASK"), of("SLURM_SRUN_COMM_HOST")), ("3".to_owned(), "10.0.0.7".to_owned()));
    }

    #[test]
    fn a_task_has_a_number_of_its_own() {
        let mut share = share();
        share.spec.tasks = Some(Box::new(TaskGroup::parse("10-18:2").unwrap()));
        assert_eq!(of_task(&share, 14), [], "it is no lane");
        share.lane = Some(LaneOf { group: id(2), number: 0, queued_at: Timestamp(0), revocations: 0 });
        assert_eq!(value(&of_task(&share, 14), "SLURM_JOB_ID").as_deref(), Some("14"));
        assert_eq!(value(&of_task(&share, 18), "SLURM_JOBID").as_deref(), Some("16"));
        assert_eq!(of_task(&share, 11), []);
    }

    #[test]
    fn a_node_has_its_own_amounts() {
        let me = "n2".parse().unwrap();
        let env = of_node(&share(), &me, &[1, 3], true);
        let names = ["SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURMD_NODENAME"];
        assert_eq!(names.map(|name| value(&env, name).unwrap()), ["8", "2", "1,3", "1,3", "n2"]);
        let plain = of_node(&DesiredShare { resources: Resources { gpus: 0, ..share().resources }, ..share() }, &me, &[], false);
        assert_eq!(names.map(|name| value(&plain, name).is_some()), [true, false, false, false, true]);
    }

    #[test]
    fn dependencies_are_written_as_slurm_has_them() {
        let mut spec = share().spec;
        let on = |number, condition| Dependency { on: id(number), condition };
        spec.depends_on = vec![
            on(1, DependencyCondition::Success),
            on(2, DependencyCondition::AfterDelay { seconds: 90 }),
            on(3, DependencyCondition::Mutex),
        ];
        spec.singleton = true;
        assert_eq!(dependencies(&spec), "afterok:00000001,after:00000002+2,singleton");
    }

    #[test]
    fn counts_of_equal_nodes_are_folded() {
        assert_eq!(repeated([(1, 2), (2, 2), (1, 1)].into_iter()), "2(x3),1");
        assert_eq!(repeated(std::iter::empty()), "");
    }
}
