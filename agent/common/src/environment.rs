//! The environment variables that work gets.

use lattice_model::input::STDIN_VARIABLE;
use lattice_model::{AllocationId, DesiredShare, Epoch, LaunchId, LaunchShape, LaunchSpec, NodeId, NodeRanks, hostlist};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Where a uenv is mounted.
pub const UENV_MOUNT: &str = "/user-environment";
/// The id of the scaled service of which this is a replica, and the replica's number.
const SERVICE: &str = "LATTICE_SERVICE_ID";
const REPLICA: &str = "LATTICE_REPLICA";

/// `LATTICE_*` and the variables that every program expects, on top of the user's own.
pub fn base(share: &DesiredShare) -> BTreeMap<String, String> {
    let mut env = share.spec.env.clone();
    if !env.contains_key("HOME") {
        // Look the account up only if the user did not set the variable: the account database can
        // be slow.
        let account = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(share.owner.uid)).ok().flatten();
        env.insert("HOME".to_owned(), account.map_or_else(|| "/".to_owned(), |a| a.dir.to_string_lossy().into_owned()));
    }
    let mut default = |key: &str, value: String| {
        env.entry(key.to_owned()).or_insert(value);
    };
    default("USER", share.owner.name.clone());
    default("LOGNAME", share.owner.name.clone());
    default("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin".to_owned());
    let nodes: Vec<&str> = share.nodes.iter().map(NodeId::as_str).collect();
    let mut set = |key: &str, value: String| drop(env.insert(key.to_owned(), value));
    set("LATTICE_ALLOC_ID", share.allocation.to_string());
    set("LATTICE_JOB_NAME", share.spec.name.clone());
    set("LATTICE_NODELIST", nodes.join(","));
    set("LATTICE_NNODES", nodes.len().to_string());
    set("LATTICE_TASKS_PER_NODE", share.spec.tasks_per_node.to_string());
    set("LATTICE_REQUEUE_COUNT", share.requeue_count.to_string());
    for (key, value) in of_domain(share) {
        set(key, value);
    }
    if let Some(vni) = share.vni {
        // For libfabric, which reads it if there is a CXI device with a service for that number.
        set("FI_CXI_DEFAULT_VNI", vni.to_string());
    }
    if share.spec.uenv.is_some() {
        set("LATTICE_UENV_MOUNT", UENV_MOUNT.to_owned());
    }
    env.extend(of_task_group(share));
    // Work submitted from within a replica is none.
    for name in [SERVICE, REPLICA] {
        env.remove(name);
    }
    if let Some(replica) = share.replica {
        env.insert(SERVICE.to_owned(), replica.service.to_string());
        env.insert(REPLICA.to_owned(), replica.number.to_string());
    }
    if share.spec.launch.shape.slurm_env {
        env.extend(slurm_job(share));
    }
    env
}

/// What the tasks of a lane's group have in common. The shim adds the index of each task.
fn of_task_group(share: &DesiredShare) -> Vec<(String, String)> {
    let (Some(lane), Some(group)) = (share.lane, share.spec.tasks.as_deref()) else { return Vec::new() };
    let mut env = vec![("LATTICE_TASK_GROUP_ID".to_owned(), lane.group.to_string())];
    let of_indices = |prefix: &str| {
        let indices = &group.indices;
        let values = [("COUNT", indices.count()), ("MIN", indices.first()), ("MAX", indices.last()), ("STEP", indices.step())];
        values.map(|(name, value)| (format!("{prefix}{name}"), value.to_string()))
    };
    env.extend(of_indices("LATTICE_TASK_"));
    if share.spec.launch.shape.slurm_env {
        env.push(("SLURM_ARRAY_JOB_ID".to_owned(), slurm_number(lane.group)));
        env.extend(of_indices("SLURM_ARRAY_TASK_"));
    }
    env
}

/// Slurm's job ids are numbers: one from the allocation's id, so that it differs between
/// allocations.
fn slurm_number(allocation: AllocationId) -> String {
    let bytes = allocation.0.as_bytes();
    (u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & 0x7fff_ffff).to_string()
}

/// The variables that Slurm sets for a job (`--slurm-env`).
fn slurm_job(share: &DesiredShare) -> Vec<(String, String)> {
    let number = slurm_number(share.allocation);
    let (nodes, tasks) = (share.nodes.len(), share.spec.tasks_per_node);
    let ranks = share.spec.ranks_on(u32::try_from(nodes).unwrap_or(u32::MAX)).to_string();
    let submit_dir = share.spec.submit_dir.as_ref().unwrap_or(&share.spec.working_dir);
    let list = hostlist::fold(share.nodes.iter());
    let mut env = vec![
        ("SLURM_JOB_ID", number.clone()),
        ("SLURM_JOBID", number),
        ("SLURM_JOB_NAME", share.spec.name.clone()),
        ("SLURM_JOB_USER", share.owner.name.clone()),
        ("SLURM_JOB_NODELIST", list.clone()),
        ("SLURM_NODELIST", list),
        ("SLURM_JOB_NUM_NODES", nodes.to_string()),
        ("SLURM_NNODES", nodes.to_string()),
        ("SLURM_NTASKS", ranks.clone()),
        ("SLURM_NPROCS", ranks),
        ("SLURM_NTASKS_PER_NODE", tasks.to_string()),
        ("SLURM_TASKS_PER_NODE", repeated(share.spec.usual_ranks(&node_ids(share)).iter().map(|n| n.count))),
        ("SLURM_SUBMIT_DIR", submit_dir.to_string_lossy().into_owned()),
    ];
    if share.spec.launch.shape.cpus_per_task > 0 {
        env.push(("SLURM_CPUS_PER_TASK", share.spec.launch.shape.cpus_per_task.to_string()));
    }
    env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The variables that Slurm sets for a step, on top of [`slurm_job`]. The shim adds those that
/// differ from rank to rank.
fn slurm_step(share: &DesiredShare, nodes: &[NodeRanks], shape: &LaunchShape) -> Vec<(String, String)> {
    let ranks: u32 = nodes.iter().map(|n| n.count).sum();
    let list = hostlist::fold(nodes.iter().map(|n| &n.node));
    let counts = repeated(nodes.iter().map(|n| n.count));
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
    if shape.cpus_per_task > 0 {
        env.push(("SLURM_CPUS_PER_TASK", shape.cpus_per_task.to_string()));
    }
    let step = env.into_iter().map(|(name, value)| (name.to_owned(), value));
    slurm_job(share).into_iter().chain(step).collect()
}

fn node_ids(share: &DesiredShare) -> Vec<NodeId> {
    share.nodes.to_vec()
}

/// Counts in Slurm's notation: `2(x3),1` for 2, 2, 2 and 1.
fn repeated(counts: impl Iterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for count in counts {
        match runs.last_mut() {
            Some((same, times)) if *same == count => *times += 1,
            Some(_) | None => runs.push((count, 1)),
        }
    }
    let text = |(count, times): &(u32, u32)| if *times > 1 { format!("{count}(x{times})") } else { count.to_string() };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The network domain and its VNI, for work and for the site's hooks.
pub fn of_domain(share: &DesiredShare) -> Vec<(&'static str, String)> {
    let name = &share.spec.connectivity.network_domain;
    let vni = share.vni.map(|vni| ("LATTICE_VNI", vni.to_string()));
    (!name.is_empty()).then(|| ("LATTICE_NETWORK_DOMAIN", name.clone())).into_iter().chain(vni).collect()
}

/// A launch's environment, the same for all its ranks.
pub fn of_launch(
    share: &DesiredShare,
    id: LaunchId,
    nodes: &[NodeRanks],
    shape: &LaunchShape,
    own: impl IntoIterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    let ranks: u32 = nodes.iter().map(|n| n.count).sum();
    let mut env = base(share);
    // It belongs to the allocation's own command and to no other launch.
    env.remove(STDIN_VARIABLE);
    env.extend(own);
    env.insert("LATTICE_LAUNCH_ID".to_owned(), id.to_string());
    env.insert("LATTICE_NPROCS".to_owned(), ranks.to_string());
    if shape.cpus_per_task > 0 {
        env.insert("LATTICE_CPUS_PER_TASK".to_owned(), shape.cpus_per_task.to_string());
    }
    if shape.slurm_env {
        env.extend(slurm_step(share, nodes, shape));
    }
    env
}

/// The launch of an inline command. Its id follows from allocation and epoch, so that it starts
/// only once.
pub fn entry_launch(share: &DesiredShare, argv: Vec<String>) -> LaunchSpec {
    let id = entry_launch_id(share.allocation, share.epoch);
    let asked = &share.spec.launch;
    let stdin = share.spec.env.get(STDIN_VARIABLE);
    let nodes = share.spec.usual_ranks(&node_ids(share));
    LaunchSpec {
        id,
        number: 1,
        allocation: share.allocation,
        epoch: share.epoch,
        argv,
        env: of_launch(share, id, &nodes, &asked.shape, stdin.map(|stdin| (STDIN_VARIABLE.to_owned(), stdin.clone()))),
        working_dir: share.spec.working_dir.clone(),
        nodes,
        shape: asked.shape.clone(),
        kill_on_bad_exit: !asked.keeps_on_bad_exit,
        pty: share.spec.pty,
        binding: share.spec.binding,
    }
}

/// The id of [`entry_launch`].
pub fn entry_launch_id(allocation: AllocationId, epoch: Epoch) -> LaunchId {
    let hash =
        Sha256::new().chain_update(b"lattice entry launch").chain_update(allocation.0.as_bytes()).chain_update(epoch.0.to_be_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    LaunchId(uuid::Builder::from_random_bytes(bytes).into_uuid())
}
