//! The numbers of nodes and ranks, and how much of each node, from all options that say something about them.

use crate::UsageError;
use crate::flags::SubmitFlags;
use crate::shape::{Shape, complete_shape};
use lattice_model::Resources;
use lattice_model::count::counted;

/// The numbers of nodes and ranks, and the amounts of each node; 0: not requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub shape: Shape,
    pub cores: u32,
    pub memory_bytes: u64,
    pub gpus: u32,
    /// With `--spread`: how much of these is for each rank.
    pub spread: Option<Resources>,
}

/// The amounts that the options ask for. `named`: how many nodes `--nodelist` names; 0: it was not given.
///
/// # Errors
/// Numbers that contradict each other or do not divide evenly, and amounts of something whose number is not known.
pub(crate) fn resolve(flags: &SubmitFlags, named: u32) -> Result<Amounts, UsageError> {
    let shape = shape(flags, named)?;
    let gpus = gpus(flags, shape.nodes)?;
    check_ranks_of_gpus(flags, shape.nodes, gpus)?;
    let gpus_each = match gpus {
        0 => flags.binding.gpus_per_task.unwrap_or(0).saturating_mul(shape.tasks_per_node),
        gpus => gpus,
    };
    let gpus_for = |option: &str| match gpus_each {
        0 => Err(UsageError::new(format!("{option} needs a number of GPUs")).with_hint("give --gpus, --gpus-total or --gpus-per-task too")),
        gpus => Ok(gpus),
    };
    let mut cores = match flags.amounts.cpus_per_gpu {
        None => flags.cores.unwrap_or(0),
        Some(_) if flags.cores.is_some() => return Err(one_of("--cpus-per-gpu", "--cores", "the cores of each node")),
        Some(_) if flags.layout.cpus_per_task.is_some() => return Err(one_of("--cpus-per-gpu", "--cpus-per-task", "the cores")),
        Some(each) => each.saturating_mul(gpus_for("--cpus-per-gpu")?),
    };
    check_memory(flags)?;
    let bytes = |option: &str, each: u64, count: u32| {
        let too_much = || UsageError::new(format!("{option}: {count} times as much is more memory than any machine has"));
        each.checked_mul(u64::from(count)).ok_or_else(too_much)
    };
    let memory_bytes = if let Some(each) = flags.amounts.mem_per_core {
        if cores == 0 {
            cores = flags.layout.cpus_per_task.unwrap_or(1).saturating_mul(shape.tasks_per_node);
        }
        bytes("--mem-per-core", each, cores)?
    } else if let Some(each) = flags.amounts.mem_per_gpu {
        bytes("--mem-per-gpu", each, gpus_for("--mem-per-gpu")?)?
    } else {
        flags.mem.unwrap_or(0)
    };
    // A share has the GPUs for which it has cores or memory.
    let is_by_gpu = flags.amounts.cpus_per_gpu.is_some() || flags.amounts.mem_per_gpu.is_some();
    Ok(Amounts { shape, cores, memory_bytes, gpus: if is_by_gpu { gpus_each } else { gpus }, spread: None })
}

/// Refuses memory that is given twice, and all memory of nodes beside a share of them.
pub(crate) fn check_memory(flags: &SubmitFlags) -> Result<(), UsageError> {
    let given = [
        ("--mem", flags.mem.is_some()),
        ("--memory-gb", flags.memory_gb.is_some()),
        ("--mem-per-core", flags.amounts.mem_per_core.is_some()),
        ("--mem-per-gpu", flags.amounts.mem_per_gpu.is_some()),
    ];
    let given: Vec<&str> = given.into_iter().filter(|(_, set)| *set).map(|(flag, _)| flag).collect();
    if let [one, other, ..] = given[..] {
        return Err(one_of(one, other, "the memory"));
    }
    if let (Some(0), Some(share)) = (flags.mem, flags.first_share_option()) {
        let why = format!("--mem=0 asks for all memory of each node, and {share} for a share of it");
        return Err(UsageError::new(why).with_hint("leave one of them out: without amounts, nodes are whole"));
    }
    Ok(())
}

fn one_of(one: &str, other: &str, what: &str) -> UsageError {
    UsageError::new(format!("{one} and {other} both set {what}")).with_hint("give one of them")
}

/// Nodes, ranks on each node, and total ranks, from the given ones of these numbers.
fn shape(flags: &SubmitFlags, named: u32) -> Result<Shape, UsageError> {
    let mut nodes = flags.nodes.map(|nodes| nodes.least).or(Some(named).filter(|named| *named > 0));
    let (mut ranks, mut tasks_per_node) = (flags.ranks, flags.tasks_per_node);
    if let Some(total) = flags.amounts.gpus_total {
        if let Some(most) = flags.nodes.and_then(|nodes| nodes.most.filter(|most| *most > nodes.least)) {
            let why =
                format!("--gpus-total {total} cannot be divided: up to {most} nodes are asked for, and how many it gets is not known");
            return Err(UsageError::new(why).with_hint("give one number of nodes, or --gpus for each node"));
        }
        if let (None, Some(each)) = (nodes, flags.gpus) {
            nodes = Some(divided(total, each, "--gpus")?);
        }
        // The number of nodes and the ranks on each already give the number of ranks.
        let is_counted = ranks.is_some() || (flags.tasks_per_node.is_some() && nodes.is_some());
        if let (false, Some(each)) = (is_counted, flags.binding.gpus_per_task) {
            ranks = Some(divided(total, each, "--gpus-per-task")?);
        }
    }
    // `check_ranks_of_gpus` compares the result with numbers that were given too.
    if let Some(each) = flags.amounts.tasks_per_gpu {
        match (flags.amounts.gpus_total, flags.gpus) {
            (Some(total), _) => {
                ranks = Some(each.saturating_mul(total));
                tasks_per_node = tasks_per_node.filter(|_| nodes.is_none());
            }
            (None, Some(gpus)) => {
                tasks_per_node = Some(each.saturating_mul(gpus));
                ranks = ranks.filter(|_| nodes.is_none());
            }
            (None, None) => {
                return Err(UsageError::new("--tasks-per-gpu needs a number of GPUs").with_hint("give --gpus or --gpus-total too"));
            }
        }
    }
    complete_shape(ranks, nodes, tasks_per_node, flags.layout.plane()).map_err(|error| UsageError::new(error.to_string()))
}

/// Refuses numbers of ranks that are not those of `--tasks-per-gpu`. `gpus`: of each of this many nodes.
fn check_ranks_of_gpus(flags: &SubmitFlags, nodes: u32, gpus: u32) -> Result<(), UsageError> {
    let Some(each) = flags.amounts.tasks_per_gpu else { return Ok(()) };
    if flags.binding.gpus_per_task.is_some_and(|gpus| (gpus, each) != (1, 1)) {
        return Err(one_of("--tasks-per-gpu", "--gpus-per-task", "the ranks of each GPU"));
    }
    let is_range = flags.nodes.is_some_and(|nodes| nodes.most.is_some_and(|most| most > nodes.least));
    if is_range && flags.ranks.is_some() {
        return Err(one_of("--tasks-per-gpu", "--ntasks", "the ranks on a range of nodes"));
    }
    let given = [("--tasks-per-node", flags.tasks_per_node, gpus), ("--ntasks", flags.ranks, gpus.saturating_mul(nodes))];
    for (option, given, gpus) in given {
        let ranks = each.saturating_mul(gpus);
        if let Some(given) = given.filter(|given| *given != ranks) {
            let why = format!("--tasks-per-gpu {each} on {} is {}, and {option} is {given}", counted(gpus, "GPU"), counted(ranks, "rank"));
            return Err(UsageError::new(why).with_hint("leave one of them out"));
        }
    }
    Ok(())
}

/// The GPUs of each of this many nodes.
fn gpus(flags: &SubmitFlags, nodes: u32) -> Result<u32, UsageError> {
    let Some(total) = flags.amounts.gpus_total else { return Ok(flags.gpus.unwrap_or(0)) };
    if let Some(each) = flags.gpus.filter(|each| u64::from(*each) * u64::from(nodes) != u64::from(total)) {
        let all = u64::from(each) * u64::from(nodes);
        let why = format!("--gpus {each} on {} is {all} in all, and --gpus-total is {total}", counted(nodes, "node"));
        return Err(UsageError::new(why).with_hint("leave one of them out"));
    }
    if nodes == 0 || !total.is_multiple_of(nodes) {
        let less = total / nodes.max(1) * nodes;
        let fits = if less > 0 { format!("{less} or {}", less + nodes) } else { nodes.to_string() };
        let why = format!("--gpus-total {total} does not divide evenly over {}", counted(nodes, "node"));
        return Err(UsageError::new(why).with_hint(format!("ask for {fits} GPUs in all, or for another number of nodes")));
    }
    Ok(total / nodes)
}

/// How many times `each` the total is.
fn divided(total: u32, each: u32, option: &str) -> Result<u32, UsageError> {
    if each == 0 || !total.is_multiple_of(each) {
        let why = format!("--gpus-total {total} is no multiple of {option} {each}");
        return Err(UsageError::new(why).with_hint("change one of them"));
    }
    Ok(total / each)
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

    fn of(line: &str) -> Result<(u32, u32, u32, u64, u32), String> {
        let flags = Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap().flags;
        let shown = |error: UsageError| format!("{error} | {}", error.hint.as_deref().unwrap_or_default());
        let Amounts { shape, cores, memory_bytes, gpus, spread: _ } = resolve(&flags, 0).map_err(shown)?;
        Ok((shape.nodes, shape.tasks_per_node, cores, memory_bytes >> 20, gpus))
    }

    #[test]
    fn amounts_follow_from_others() {
        for (line, nodes, tasks, cores, mib, gpus) in [
            ("", 1, 1, 0, 0, 0),
            ("--mem=0", 1, 1, 0, 0, 0),
            ("--mem-per-core=512M", 1, 1, 1, 512, 0),
            ("--mem-per-cpu=512M -n 8 -c 2", 1, 8, 16, 8192, 0),
            ("--mem-per-core=512M --cores=3 -n 2", 1, 2, 3, 1536, 0),
            ("--mem-per-core=1G -n 8 -N 2", 2, 4, 4, 4096, 0),
            ("--mem-per-gpu=1G --gpus=4", 1, 1, 0, 4096, 4),
            ("--mem-per-gpu=1G --gpus-per-task=2 -n 2", 1, 2, 0, 4096, 4),
            ("--cpus-per-gpu=8 --gpus-per-task=1 -n 4 -N 2", 2, 2, 16, 0, 2),
            ("--cpus-per-gpu=8 --gpus=2", 1, 1, 16, 0, 2),
            ("--cpus-per-gpu=8 --gpus=2 --mem-per-core=1G", 1, 1, 16, 16_384, 2),
            ("-G 8", 1, 1, 0, 0, 8),
            ("-G 8 -N 2", 2, 1, 0, 0, 4),
            ("-G 8 --gpus=4", 2, 1, 0, 0, 4),
            ("-G 8 -n 8 --tasks-per-node=4", 2, 4, 0, 0, 4),
            ("-G 8 --gpus-per-task=1 -N 2", 2, 4, 0, 0, 4),
            ("-G 4 --mem-per-gpu=1G -N 2", 2, 1, 0, 2048, 2),
            ("-G 8 --gpus-per-task=1 --tasks-per-node=4", 2, 4, 0, 0, 4),
            ("-G 8 --gpus-per-task=1 --tasks-per-node=2 -N 2", 2, 2, 0, 0, 4),
            ("-G 8 --gpus-per-task=1 --gpus=4 -c 2 --mem-per-core=1G", 2, 4, 8, 8192, 4),
            ("-G 4 --tasks-per-gpu=2", 1, 8, 0, 0, 4),
            ("-G 4 --ntasks-per-gpu=2 -N 2 --cpus-per-gpu=8", 2, 4, 16, 0, 2),
            ("--gpus=4 --tasks-per-gpu=2 -N 2", 2, 8, 0, 0, 4),
            ("--gpus=4 --tasks-per-gpu=2 -n 16", 2, 8, 0, 0, 4),
            ("--gpus=4 --tasks-per-gpu=2 --mem-per-core=1G -N 2-4", 2, 8, 8, 8192, 4),
            ("-G 8 --tasks-per-gpu=1 --tasks-per-node=4 -n 8", 2, 4, 0, 0, 4),
            ("-G 8 --tasks-per-gpu=1 --gpus-per-task=1 -N 2", 2, 4, 0, 0, 4),
        ] {
            assert_eq!(of(line), Ok((nodes, tasks, cores, mib, gpus)), "{line}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_numbers() {
        for (line, refused) in [
            (
                "-G 6 -N 4",
                "--gpus-total 6 does not divide evenly over 4 nodes | ask for 4 or 8 GPUs in all, or for another number of nodes",
            ),
            ("-G 3 -N 4", "--gpus-total 3 does not divide evenly over 4 nodes | ask for 4 GPUs in all, or for another number of nodes"),
            ("-G 8 --gpus=2 -N 2", "--gpus 2 on 2 nodes is 4 in all, and --gpus-total is 8 | leave one of them out"),
            ("-G 8 --gpus=3", "--gpus-total 8 is no multiple of --gpus 3 | change one of them"),
            ("-G 8 --gpus-per-task=3", "--gpus-total 8 is no multiple of --gpus-per-task 3 | change one of them"),
            (
                "-G 8 -N 2-4",
                "--gpus-total 8 cannot be divided: up to 4 nodes are asked for, and how many it gets is not known | give one number of \
                 nodes, or --gpus for each node",
            ),
            ("--mem-per-gpu=1G", "--mem-per-gpu needs a number of GPUs | give --gpus, --gpus-total or --gpus-per-task too"),
            ("--cpus-per-gpu=2", "--cpus-per-gpu needs a number of GPUs | give --gpus, --gpus-total or --gpus-per-task too"),
            ("--cpus-per-gpu=2 --cores=2 --gpus=1", "--cpus-per-gpu and --cores both set the cores of each node | give one of them"),
            ("--cpus-per-gpu=2 -c 2 --gpus=1", "--cpus-per-gpu and --cpus-per-task both set the cores | give one of them"),
            ("--tasks-per-gpu=2", "--tasks-per-gpu needs a number of GPUs | give --gpus or --gpus-total too"),
            ("-G 2 --tasks-per-gpu=2 -n 3", "--tasks-per-gpu 2 on 2 GPUs is 4 ranks, and --ntasks is 3 | leave one of them out"),
            ("--gpus=1 -N 3 --tasks-per-gpu=2 -n 8", "--tasks-per-gpu 2 on 3 GPUs is 6 ranks, and --ntasks is 8 | leave one of them out"),
            (
                "--gpus=2 --tasks-per-gpu=2 --tasks-per-node=2",
                "--tasks-per-gpu 2 on 2 GPUs is 4 ranks, and --tasks-per-node is 2 | leave one of them out",
            ),
            (
                "--gpus=2 --tasks-per-gpu=2 -N 2-4 -n 8",
                "--tasks-per-gpu and --ntasks both set the ranks on a range of nodes | give one of them",
            ),
            (
                "--gpus=2 --tasks-per-gpu=2 --gpus-per-task=1",
                "--tasks-per-gpu and --gpus-per-task both set the ranks of each GPU | give one of them",
            ),
            ("--mem=1G --mem-per-core=1G", "--mem and --mem-per-core both set the memory | give one of them"),
            (
                "--mem=0 --cores=2",
                "--mem=0 asks for all memory of each node, and --cores for a share of it | leave one of them out: without amounts, nodes are \
                 whole",
            ),
        ] {
            assert_eq!(of(line), Err(refused.to_owned()), "{line}");
        }
    }

    #[test]
    fn the_command_line_wins_over_a_script() {
        let flags = |line: &str| Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap().flags;
        let merged = flags("--mem-per-core=1G -G 4").merge_over(flags("--mem=2G --gpus=2 --cpus-per-gpu=3"));
        assert_eq!((merged.mem, merged.gpus, merged.amounts.gpus_total, merged.amounts.cpus_per_gpu), (None, None, Some(4), Some(3)));
        let ranks = |over: &str, under: &str| {
            let merged = flags(over).merge_over(flags(under));
            (merged.ranks, merged.tasks_per_node, merged.amounts.tasks_per_gpu)
        };
        assert_eq!(ranks("-n 4", "-G 4 --tasks-per-gpu=2"), (Some(4), None, None));
        assert_eq!(ranks("--tasks-per-gpu=2", "-n 4 --tasks-per-node=4 -G 4"), (None, None, Some(2)));
        assert_eq!(ranks("-G 2", "-G 4 --tasks-per-gpu=2"), (None, None, Some(2)), "of the GPUs that there are now");
        for (over, gpus) in
            [("--exclusive", None), ("-n 8", None), ("--tasks-per-gpu=2", None), ("--tasks-per-gpu=1", Some(1)), ("-N 2", Some(1))]
        {
            let merged = flags(over).merge_over(flags("-G 4 --tasks-per-gpu=1 --gpus-per-task=1"));
            assert_eq!(merged.binding.gpus_per_task, gpus, "{over}");
        }
        let merged = flags("--mem=0").merge_over(flags("--mem-per-gpu=2G -x n1"));
        assert_eq!((merged.mem, merged.amounts.first_given(), merged.exclude.as_deref()), (Some(0), None, Some("n1")));
        assert_eq!(flags("--mem=0").first_allocation_option(), Some("--mem"));
    }
}
