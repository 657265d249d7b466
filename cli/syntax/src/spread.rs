//! `--spread`: the amounts of work whose ranks are spread over as many nodes as they need.

use crate::UsageError;
use crate::flags::SubmitFlags;
use crate::shape::Shape;
use crate::share::{Amounts, check_memory};
use lattice_model::Resources;
use lattice_model::layout::TASKS_PER_NODE_MAX;

/// The amounts on the fewest nodes, and how much of them is for each rank. `named`: how many nodes `--nodelist` names.
///
/// # Errors
/// There is no number of ranks, or an option says how many ranks a node has, or an amount of a node that depends on it.
pub(crate) fn resolve(flags: &SubmitFlags, named: u32) -> Result<Amounts, UsageError> {
    let Some(ranks) = flags.ranks else {
        return Err(UsageError::new("--spread needs a number of ranks").with_hint("give --ntasks too"));
    };
    if let Some(option) = flags.first_beside_spread().or((named > 0).then_some("--nodelist")) {
        let why =
            format!("with --spread the numbers of nodes and of ranks on each are not known before it begins: {option} has no meaning");
        let hint = "leave one of them out; --cpus-per-task, --gpus-per-task and --mem-per-core are for each rank";
        return Err(UsageError::new(why).with_hint(hint));
    }
    check_memory(flags)?;
    let gpus_each = flags.binding.gpus_per_task.unwrap_or(0);
    let cores = flags.layout.cpus_per_task.unwrap_or(1);
    let memory_bytes = flags.amounts.mem_per_core.map_or(Some(0), |each| each.checked_mul(cores.into()));
    let all = memory_bytes.and_then(|each| each.checked_mul(ranks.into()));
    let (Some(memory_bytes), Some(_)) = (memory_bytes, all) else {
        return Err(UsageError::new("--mem-per-core: for all ranks it is more memory than any machines have"));
    };
    // The GPUs of a node limit how many ranks it can have.
    let tasks_max = match (flags.gpus, gpus_each) {
        (Some(gpus), 1..) => (gpus / gpus_each).clamp(1, TASKS_PER_NODE_MAX),
        (Some(_), 0) | (None, _) => TASKS_PER_NODE_MAX,
    };
    let nodes = ranks.div_ceil(tasks_max);
    let tasks_per_node = ranks.div_ceil(nodes);
    let shape = Shape { nodes, tasks_per_node, ranks };
    let each = Resources { cores, memory_bytes, gpus: if flags.gpus.is_some() { 0 } else { gpus_each } };
    if flags.first_share_option().is_none() {
        let spread = Some(Resources { cores, ..Resources::default() });
        return Ok(Amounts { shape, cores: 0, memory_bytes: 0, gpus: 0, spread });
    }
    let memory_of_node = flags.mem.unwrap_or(0).saturating_add(memory_bytes.saturating_mul(tasks_per_node.into()));
    Ok(Amounts {
        shape,
        cores: cores.saturating_mul(tasks_per_node),
        memory_bytes: memory_of_node,
        gpus: flags.gpus.unwrap_or(gpus_each.saturating_mul(tasks_per_node)),
        spread: Some(each),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: SubmitFlags,
    }

    fn of(line: &str) -> Result<Amounts, UsageError> {
        resolve(&Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap().flags, 0)
    }

    #[test]
    fn amounts_are_those_of_the_fewest_nodes() {
        for (line, nodes, tasks, cores, mib, gpus, each) in [
            ("-n 8", 1, 8, 0, 0, 0, (1, 0, 0)),
            ("-n 5000 -c 2", 2, 2500, 0, 0, 0, (2, 0, 0)),
            ("-n 8 -c 2 --mem=1G", 1, 8, 16, 1024, 0, (2, 0, 0)),
            ("-n 8 -c 2 --mem-per-core=16M", 1, 8, 16, 256, 0, (2, 32, 0)),
            ("-n 8 --shared --gpus-per-task=1", 1, 8, 8, 0, 8, (1, 0, 1)),
            ("-n 8 --gpus=4 --gpus-per-task=1", 2, 4, 4, 0, 4, (1, 0, 0)),
        ] {
            let got = of(line).unwrap();
            let spread = got.spread.unwrap();
            assert_eq!((got.shape.nodes, got.shape.tasks_per_node, got.cores), (nodes, tasks, cores), "{line}");
            assert_eq!((got.memory_bytes >> 20, got.gpus), (mib, gpus), "{line}");
            assert_eq!((spread.cores, spread.memory_bytes >> 20, spread.gpus), each, "{line}");
        }
    }

    #[test]
    fn options_that_say_how_many_ranks_a_node_has_are_refused() {
        for (line, option) in
            [("", "--spread needs"), ("-n 8 -N 2", "--nodes has"), ("-n 8 --cores=2", "--cores has"), ("-n 8 -G 8", "--gpus-total has")]
        {
            let refused = of(line).unwrap_err();
            assert!(refused.what.contains(option) && refused.hint.is_some(), "{line}: {refused}");
        }
    }
}
