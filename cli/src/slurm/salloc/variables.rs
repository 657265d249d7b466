//! The variables of the command that `salloc` runs: those of the job, and the one by which a launch finds it.

use lattice_api::v1;
use lattice_cli_syntax::compat::Compat;
use lattice_cli_syntax::flags::SubmitFlags;
use lattice_cli_syntax::slurm::Given;
use lattice_model::{NodeId, hostlist};

/// The nodes as a list.
pub fn node_list(allocation: &v1::Allocation) -> String {
    let names: Vec<NodeId> = allocation.nodes.iter().filter_map(|node| node.parse().ok()).collect();
    hostlist::fold(names.iter())
}

/// The variables of the job `number`. `given`: the options of `salloc`, some of which became others among `flags`.
pub fn of_job(allocation: &v1::Allocation, number: u64, flags: &SubmitFlags, given: &[Given], compat: &Compat) -> Vec<(String, String)> {
    let (list, nodes, number) = (node_list(allocation), allocation.nodes.len(), number.to_string());
    let per_node = allocation.tasks_per_node.max(1);
    let mut variables = vec![
        ("LATTICE_ALLOC_ID", allocation.id.clone()),
        ("SLURM_JOB_ID", number.clone()),
        ("SLURM_JOBID", number),
        ("SLURM_JOB_NAME", allocation.name.clone()),
        ("SLURM_JOB_NODELIST", list.clone()),
        ("SLURM_NODELIST", list),
        ("SLURM_JOB_NUM_NODES", nodes.to_string()),
        ("SLURM_NNODES", nodes.to_string()),
        ("SLURM_JOB_PARTITION", compat.partition_of(&allocation.vcluster).to_owned()),
        ("SLURM_CLUSTER_NAME", compat.cluster().to_owned()),
    ];
    if !allocation.tenant.is_empty() {
        variables.push(("SLURM_JOB_ACCOUNT", compat.account_of(&allocation.tenant).to_owned()));
    }
    let dir = std::env::current_dir().ok().and_then(|dir| dir.to_str().map(str::to_owned));
    variables.extend(dir.map(|dir| ("SLURM_SUBMIT_DIR", dir)));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    variables.extend(host.map(|host| ("SLURM_SUBMIT_HOST", host.trim_end().to_owned())));
    if flags.ranks.is_some() || flags.tasks_per_node.is_some() || flags.amounts.tasks_per_gpu.is_some() {
        let everywhere = u64::from(per_node).saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX));
        let ranks = if allocation.ranks > 0 { u64::from(allocation.ranks) } else { everywhere };
        variables.push(("SLURM_NTASKS", ranks.to_string()));
        variables.push(("SLURM_NPROCS", ranks.to_string()));
        if ranks == everywhere {
            let repeated = if nodes > 1 { format!("{per_node}(x{nodes})") } else { per_node.to_string() };
            variables.push(("SLURM_TASKS_PER_NODE", repeated));
        }
    }
    // Hidden, where the site hides it.
    variables.extend(
        allocation
            .preemption_class
            .and_then(|class| u8::try_from(class).ok())
            .map(|class| ("SLURM_JOB_QOS", compat.qos_of(class).to_owned())),
    );
    let mebibytes = |bytes: Option<u64>| bytes.filter(|bytes| *bytes > 0).map(|bytes| (bytes >> 20).to_string());
    let memory = [
        ("SLURM_MEM_PER_NODE", flags.mem),
        ("SLURM_MEM_PER_CPU", flags.amounts.mem_per_core),
        ("SLURM_MEM_PER_GPU", flags.amounts.mem_per_gpu),
    ];
    variables.extend(memory.into_iter().filter_map(|(name, bytes)| Some((name, mebibytes(bytes)?))));
    variables.extend(flags.amounts.cpus_per_gpu.map(|cpus| ("SLURM_CPUS_PER_GPU", cpus.to_string())));
    let per_gpu = given.iter().rfind(|given| given.option.long == "ntasks-per-gpu").and_then(|given| given.value.clone());
    variables.extend(per_gpu.map(|ranks| ("SLURM_NTASKS_PER_GPU", ranks)));
    variables.extend(flags.layout.cpus_per_task.map(|cpus| ("SLURM_CPUS_PER_TASK", cpus.to_string())));
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_syntax::slurm;

    #[test]
    fn a_command_finds_its_job_and_the_jobs_shape() {
        let allocation = v1::Allocation {
            id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            name: "bash".into(),
            nodes: vec!["n1".into(), "n2".into()],
            tasks_per_node: 2,
            vcluster: "batch".into(),
            preemption_class: Some(8),
            ..Default::default()
        };
        let compat = Compat::parse("partition_mapping: {long: batch}\nqos_mapping: {high: 8}\n").unwrap();
        let flags = SubmitFlags { ranks: Some(4), mem: Some(4 << 30), ..Default::default() };
        let variables = of_job(&allocation, 12, &flags, &[], &compat);
        let value = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(value("LATTICE_ALLOC_ID"), Some(allocation.id.as_str()));
        assert_eq!((value("SLURM_JOB_ID"), value("SLURM_JOB_NODELIST"), value("SLURM_NNODES")), (Some("12"), Some("n[1-2]"), Some("2")));
        assert_eq!((value("SLURM_NTASKS"), value("SLURM_TASKS_PER_NODE")), (Some("4"), Some("2(x2)")));
        assert_eq!((value("SLURM_JOB_PARTITION"), value("SLURM_JOB_ACCOUNT")), (Some("long"), None));
        let of_amounts = ["SLURM_JOB_QOS", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"].map(value);
        assert_eq!(of_amounts, [Some("high"), Some("4096"), None]);
        assert_eq!(["SLURM_CPUS_PER_GPU", "SLURM_NTASKS_PER_GPU"].map(value), [None, None], "they were not given");
    }

    #[test]
    fn a_command_finds_what_was_given_for_each_gpu() {
        let typed = ["-G", "4", "--ntasks-per-gpu=1", "--cpus-per-gpu=8", "--ntasks-per-gpu=2"].map(str::to_owned);
        let given = slurm::read_arguments(slurm::Command::Salloc, "", &typed).unwrap().given;
        let mut flags = SubmitFlags::default();
        (flags.amounts.cpus_per_gpu, flags.amounts.tasks_per_gpu) = (Some(8), Some(2));
        let allocation = v1::Allocation { nodes: vec!["n1".into()], tasks_per_node: 8, ..Default::default() };
        let variables = of_job(&allocation, 12, &flags, &given, &Compat::default());
        let value = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(["SLURM_CPUS_PER_GPU", "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS"].map(value), [Some("8"), Some("2"), Some("8")]);
    }
}
