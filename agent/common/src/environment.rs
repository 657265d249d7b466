//! The environment variables that work gets.

pub mod slurm;

use lattice_model::input::STDIN_VARIABLE;
use lattice_model::{AllocationId, DesiredShare, Epoch, LaunchId, LaunchShape, LaunchSpec, NodeId, NodeRanks};
use sha2::{Digest, Sha256};
use slurm::SlurmSettings;
use std::collections::BTreeMap;

/// Where a uenv is mounted.
pub const UENV_MOUNT: &str = "/user-environment";
/// The index of the task that a process belongs to. The shim sets it, and a launch in a task inherits it.
const TASK_INDEX: &str = "LATTICE_TASK_INDEX";
/// The id of the scaled service of which this is a replica, and the replica's number.
const SERVICE: &str = "LATTICE_SERVICE_ID";
const REPLICA: &str = "LATTICE_REPLICA";

/// The user's own variables, the ones that every program expects, `LATTICE_*`, and Slurm's if the work or the site asks for
/// them.
pub fn base(share: &DesiredShare, slurm: &SlurmSettings) -> BTreeMap<String, String> {
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
    env.extend(of_task_group(share, slurm));
    // Work that a replica submits inherits these variables, but is no replica itself.
    for name in [SERVICE, REPLICA] {
        env.remove(name);
    }
    if let Some(replica) = share.replica {
        env.insert(SERVICE.to_owned(), replica.service.to_string());
        env.insert(REPLICA.to_owned(), replica.number.to_string());
    }
    if slurm.is_on(share) {
        env.extend(slurm::of_job(share, slurm));
    }
    env
}

/// The variables that all tasks of a lane's group share. The shim adds the index of each task.
fn of_task_group(share: &DesiredShare, slurm: &SlurmSettings) -> Vec<(String, String)> {
    let (Some(lane), Some(group)) = (share.lane, share.spec.tasks.as_deref()) else { return Vec::new() };
    let mut env = vec![("LATTICE_TASK_GROUP_ID".to_owned(), lane.group.to_string())];
    let of_indices = |prefix: &str| {
        let indices = &group.indices;
        let values = [("COUNT", indices.count()), ("MIN", indices.first()), ("MAX", indices.last()), ("STEP", indices.step())];
        values.map(|(name, value)| (format!("{prefix}{name}"), value.to_string()))
    };
    env.extend(of_indices("LATTICE_TASK_"));
    if slurm.is_on(share) {
        env.push(("SLURM_ARRAY_JOB_ID".to_owned(), share.number.to_string()));
        env.extend(of_indices("SLURM_ARRAY_TASK_"));
    }
    env
}

fn node_ids(share: &DesiredShare) -> Vec<NodeId> {
    share.nodes.to_vec()
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
    slurm: &SlurmSettings,
) -> BTreeMap<String, String> {
    let ranks: u32 = nodes.iter().map(|n| n.count).sum();
    let mut env = base(share, slurm);
    // Only the allocation's own command gets this variable.
    env.remove(STDIN_VARIABLE);
    env.extend(own);
    env.insert("LATTICE_LAUNCH_ID".to_owned(), id.to_string());
    env.insert("LATTICE_NPROCS".to_owned(), ranks.to_string());
    if shape.cpus_per_task > 0 {
        env.insert("LATTICE_CPUS_PER_TASK".to_owned(), shape.cpus_per_task.to_string());
    }
    if shape.slurm_env {
        let task = env.get(TASK_INDEX).and_then(|index| index.parse().ok());
        env.extend(slurm::of_step(share, nodes, shape, slurm));
        env.extend(task.into_iter().flat_map(|index| slurm::of_task(share, index)));
    }
    env
}

/// The launch of an inline command. Its id follows from allocation and epoch, so that it starts
/// only once.
pub fn entry_launch(share: &DesiredShare, argv: Vec<String>, slurm: &SlurmSettings) -> LaunchSpec {
    let id = entry_launch_id(share.allocation, share.epoch);
    let asked = &share.spec.launch;
    let shape = LaunchShape { slurm_env: slurm.is_on(share), ..asked.shape.clone() };
    let stdin = share.spec.env.get(STDIN_VARIABLE);
    let nodes = share.spec.usual_ranks(&node_ids(share));
    LaunchSpec {
        id,
        number: 1,
        allocation: share.allocation,
        epoch: share.epoch,
        argv,
        env: of_launch(share, id, &nodes, &shape, stdin.map(|stdin| (STDIN_VARIABLE.to_owned(), stdin.clone())), slurm),
        working_dir: share.spec.working_dir.clone(),
        nodes,
        shape,
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
