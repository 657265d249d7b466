//! What work finds in its environment.

use crate::context::Context;
use crate::machine;
use lattice_model::launch::block_layout;
use lattice_model::{AllocationId, DesiredShare, Epoch, LaunchId, LaunchSpec, NodeId, NodeRanks};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Where a uenv is mounted.
pub const UENV_MOUNT: &str = "/user-environment";

/// `LATTICE_*` and what every program expects, over the user's own.
fn base(share: &DesiredShare) -> BTreeMap<String, String> {
    let mut env = share.spec.env.clone();
    if !env.contains_key("HOME") {
        // Asked of the account database only where the user did not say: it can be slow.
        let account = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(share.owner.uid)).ok().flatten();
        env.insert("HOME".to_owned(), account.map_or_else(|| "/".to_owned(), |a| a.dir.to_string_lossy().into_owned()));
    }
    let mut default = |key: &str, value: String| {
        env.entry(key.to_owned()).or_insert(value);
    };
    default("USER", share.owner.name.clone());
    default("LOGNAME", share.owner.name.clone());
    default("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin".to_owned());
    let nodes: Vec<&str> = share.nodes.iter().map(|(n, _)| n.as_str()).collect();
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
        // For libfabric, which minds it where there is a CXI device and a service for that number.
        set("FI_CXI_DEFAULT_VNI", vni.to_string());
    }
    if share.spec.uenv.is_some() {
        set("LATTICE_UENV_MOUNT", UENV_MOUNT.to_owned());
    }
    env
}

/// The network domain and its number, for work and for the site's hooks.
pub fn of_domain(share: &DesiredShare) -> Vec<(&'static str, String)> {
    let name = &share.spec.connectivity.network_domain;
    let vni = share.vni.map(|vni| ("LATTICE_VNI", vni.to_string()));
    (!name.is_empty()).then(|| ("LATTICE_NETWORK_DOMAIN", name.clone())).into_iter().chain(vni).collect()
}

/// The script's environment on the head.
pub fn of_script(share: &DesiredShare, context: &Context) -> Vec<(String, String)> {
    let mut env = base(share);
    of_this_node(&mut env, share, context);
    env.into_iter().collect()
}

/// The environment of a program on an attached terminal: a script's, with the caller's kind of terminal.
pub fn of_terminal(share: &DesiredShare, context: &Context, term: &str, shell: &str) -> Vec<(String, String)> {
    let mut env = base(share);
    of_this_node(&mut env, share, context);
    env.entry("SHELL".to_owned()).or_insert_with(|| shell.to_owned());
    env.insert("TERM".to_owned(), if term.is_empty() { "dumb" } else { term }.to_owned());
    env.into_iter().collect()
}

/// What differs from node to node.
pub fn of_this_node(env: &mut BTreeMap<String, String>, share: &DesiredShare, context: &Context) {
    env.insert("LATTICE_NODE".to_owned(), context.me.to_string());
    env.insert("LATTICE_ENDPOINT".to_owned(), format!("unix:{}", context.socket.display()));
    let topology = machine::file(&context.state_dir, share.allocation, share.epoch);
    // Not there for what an agent prepared that knew no topology.
    if topology.exists() {
        env.insert("LATTICE_TOPOLOGY_FILE".to_owned(), topology.display().to_string());
    }
    let index = share.nodes.iter().position(|(n, _)| n == &context.me).unwrap_or(0);
    env.insert("LATTICE_NODE_INDEX".to_owned(), index.to_string());
    env.extend(context.data.environment(share));
}

/// A launch's environment, the same for all its ranks.
pub fn of_launch(
    share: &DesiredShare,
    id: LaunchId,
    ranks: u32,
    own: impl IntoIterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    let mut env = base(share);
    env.extend(own);
    env.insert("LATTICE_LAUNCH_ID".to_owned(), id.to_string());
    env.insert("LATTICE_NPROCS".to_owned(), ranks.to_string());
    env
}

/// The one launch of an inline command: its id follows from allocation and epoch, so that it is begun once.
pub fn entry_launch(share: &DesiredShare, argv: Vec<String>) -> LaunchSpec {
    let id = entry_launch_id(share.allocation, share.epoch);
    let per_node = share.spec.tasks_per_node;
    let names: Vec<NodeId> = share.nodes.iter().map(|(n, _)| n.clone()).collect();
    let ranks = per_node.saturating_mul(u32::try_from(names.len()).unwrap_or(u32::MAX));
    let nodes: Vec<NodeRanks> = block_layout(&names, ranks, Some(per_node)).unwrap_or_default();
    LaunchSpec {
        id,
        number: 1,
        allocation: share.allocation,
        epoch: share.epoch,
        argv,
        env: of_launch(share, id, ranks, []),
        working_dir: share.spec.working_dir.clone(),
        nodes,
        pty: share.spec.pty,
        binding: share.spec.binding,
    }
}

/// Its id.
pub fn entry_launch_id(allocation: AllocationId, epoch: Epoch) -> LaunchId {
    let hash =
        Sha256::new().chain_update(b"lattice entry launch").chain_update(allocation.0.as_bytes()).chain_update(epoch.0.to_be_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    LaunchId(uuid::Builder::from_random_bytes(bytes).into_uuid())
}
