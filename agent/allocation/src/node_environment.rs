//! The environment variables by which work learns about this node.

use crate::handles::Handles;
use lattice_agent_common::environment::base;
use lattice_machine::hardware as machine;
use lattice_machine::mpirun;
use lattice_model::DesiredShare;
use std::collections::BTreeMap;

/// The script's environment on the head.
pub fn of_script(share: &DesiredShare, context: &Handles) -> Vec<(String, String)> {
    let mut env = base(share);
    of_this_node(&mut env, share, context);
    if share.spec.launch.shape.slurm_env {
        let first = ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"].map(|name| (name.to_owned(), "0".to_owned()));
        env.extend(first);
        env.insert("SLURMD_NODENAME".to_owned(), context.setup.me.to_string());
    }
    env.into_iter().collect()
}

/// The environment of a program on an attached terminal: a script's, with the caller's kind of terminal.
pub fn of_terminal(share: &DesiredShare, context: &Handles, term: &str, shell: &str) -> Vec<(String, String)> {
    let mut env = base(share);
    of_this_node(&mut env, share, context);
    env.entry("SHELL".to_owned()).or_insert_with(|| shell.to_owned());
    env.insert("TERM".to_owned(), if term.is_empty() { "dumb" } else { term }.to_owned());
    env.into_iter().collect()
}

/// What differs from node to node.
pub fn of_this_node(env: &mut BTreeMap<String, String>, share: &DesiredShare, context: &Handles) {
    env.insert("LATTICE_NODE".to_owned(), context.setup.me.to_string());
    env.insert("LATTICE_ENDPOINT".to_owned(), format!("unix:{}", context.setup.socket.display()));
    let topology = machine::file(&context.setup.state_dir, share.allocation, share.epoch);
    // Not there where nothing of the node was told apart.
    if topology.exists() {
        env.insert("LATTICE_TOPOLOGY_FILE".to_owned(), topology.display().to_string());
    }
    context.machine.fabric.add_key(env, share);
    let index = share.nodes.iter().position(|(n, _)| n == &context.setup.me).unwrap_or(0);
    env.insert("LATTICE_NODE_INDEX".to_owned(), index.to_string());
    env.extend(context.machine.data.environment(share));
    // Of the allocation from which it was submitted, they are not its own.
    for name in ["LATTICE_CHECKPOINT_DIR", "LATTICE_CHECKPOINT_SHM", "LATTICE_RESTORE_FROM"] {
        env.remove(name);
    }
    env.extend(context.checkpoint.checkpoints.environment(share).into_iter().map(|(name, value)| (name.to_owned(), value)));
    mpirun::environment(env, &context.setup.state_dir, share);
}
