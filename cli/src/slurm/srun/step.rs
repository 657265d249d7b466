//! A step of `srun`: a launch inside an allocation, which has what a step can have.

use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::args::launch::Launch;
use lattice_cli_syntax::flags::{NodeCount, SubmitFlags};
use lattice_cli_syntax::layout;
use lattice_cli_syntax::slurm::{Given, OwnOptions};
use lattice_model::Distribution;
use std::collections::BTreeSet;
use std::time::Duration;

/// Options that would change where or how a step runs, and that a step does not have here.
const REFUSED: [(&str, &str); 2] = [
    ("--exclude", "name the nodes that the step may use with --nodelist"),
    ("--signal", "give it to sbatch: the job's script and steps get the signal before the job's time ends"),
];

/// Refuses options among these words that a step cannot have.
pub fn refuse_options(words: &[String]) -> Result<(), Failure> {
    let is = |word: &String, option: &str| word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    match REFUSED.iter().find(|(option, _)| words.iter().any(|word| is(word, option))) {
        None => Ok(()),
        Some((option, remedy)) => Err(Failure::usage(format!("{option} is not possible for a step inside a job")).hint(*remedy)),
    }
}

/// Whether these options of `srun` name the job to run in.
pub fn names_job(given: &[Given]) -> bool {
    let is_named = |given: &Given| given.option.long == "jobid" && given.value.as_deref().is_some_and(|job| !job.is_empty());
    given.iter().any(is_named)
}

/// Refuses `--ntasks-per-socket` of a step, before the rules for a job of its own ask for other options beside it.
pub fn refuse_ranks_of_sockets(given: &[Given]) -> Result<(), Failure> {
    match given.iter().rfind(|given| given.option.long == "ntasks-per-socket") {
        None => Ok(()),
        Some(given) => {
            let what = format!("{} is not possible for a step inside a job: the job's nodes were chosen before it", given.shown());
            Err(Failure::usage(what).hint(
                "give it to sbatch, salloc or srun outside a job, which choose nodes with enough sockets; --cpu-bind=sockets binds a step's ranks",
            ))
        }
    }
}

/// Removes the options that a step does not have, and returns its time limit. As in Slurm, options that its manual has only
/// for jobs are ignored inside one. A note says if the step gets more than it asked for.
pub async fn restrict(session: &Session, launch: &mut Launch, own: &OwnOptions, ours: Option<&str>) -> Result<Option<Duration>, Failure> {
    notes(&launch.flags, own).iter().for_each(|note| session.note(note));
    let limit = launch.flags.walltime;
    launch.flags = flags_of_step(std::mem::take(&mut launch.flags));
    if let Some(note) = fit_nodes(&mut launch.flags) {
        session.note(&note);
    }
    if launch.flags.nodelist.is_some() || own.relative.is_some() {
        let key = session.resolve_key(launch.alloc.as_deref().or(ours).unwrap_or_default())?;
        let client = session.connect().await?;
        let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key, stale: false })).await?;
        place(&mut launch.flags, own.relative, &allocation)?;
    }
    Ok(limit)
}

/// The options that a launch inside an allocation has.
fn flags_of_step(given: SubmitFlags) -> SubmitFlags {
    SubmitFlags {
        nodes: given.nodes,
        ranks: given.ranks,
        nodelist: given.nodelist,
        tasks_per_node: given.tasks_per_node,
        chdir: given.chdir,
        env: given.env,
        pmi_port: given.pmi_port,
        pmi: given.pmi,
        export: given.export,
        layout: given.layout,
        binding: given.binding,
        ..SubmitFlags::default()
    }
}

/// What differs from a step of Slurm.
fn notes(flags: &SubmitFlags, own: &OwnOptions) -> Vec<String> {
    let mut notes = Vec::new();
    if own.exclusive {
        notes.push("--exclusive: the steps of a job share its cores here, so this one begins at once".to_owned());
    }
    if (flags.gpus.is_some() || flags.amounts.gpus_total.is_some()) && flags.binding.gpus_per_task.is_none() {
        notes.push(
            "the GPUs of a step: its ranks see those that the job's options give them; --gpus-per-task gives each its own".to_owned(),
        );
    }
    // 0 is all memory, which a step may use here.
    if flags.mem.is_some_and(|bytes| bytes > 0) || flags.memory_gb.is_some() || flags.amounts.has_memory() {
        notes.push("the memory of a step: it may use all of its job's".to_owned());
    }
    if flags.amounts.cpus_per_gpu.is_some() {
        notes.push("--cpus-per-gpu of a step: -c gives each rank its cores".to_owned());
    }
    if !flags.constraint.is_empty() {
        notes.push("--constraint: a step runs on the nodes of its job".to_owned());
    }
    notes
}

/// A step has at most as many nodes as ranks, and exactly one number of them. Returns what to report, as Slurm does.
fn fit_nodes(flags: &mut SubmitFlags) -> Option<String> {
    let nodes = flags.nodes.as_mut()?;
    // The largest number of a range that the step can use is not known here; the smallest is always possible.
    nodes.most = None;
    let ranks = flags.ranks.filter(|ranks| *ranks < nodes.least)?;
    let note = format!("Warning: can't run {ranks} processes on {} nodes, setting nnodes to {ranks}", nodes.least);
    *nodes = NodeCount { least: ranks, most: None };
    Some(note)
}

/// Names the node of each rank: `-w` and `-r` of Slurm choose nodes, and ranks are distributed over them.
fn place(flags: &mut SubmitFlags, relative: Option<u32>, allocation: &v1::Allocation) -> Result<(), Failure> {
    let asked = flags.nodes.map(|nodes| nodes.least as usize);
    let mut nodes: Vec<String> = match &flags.nodelist {
        Some(list) => layout::parse_nodelist(list)?.iter().map(ToString::to_string).collect(),
        None => {
            let from = relative.unwrap_or(0) as usize;
            let rest = allocation.nodes.iter().skip(from).take(asked.unwrap_or(usize::MAX));
            rest.cloned().collect()
        }
    };
    if relative.is_some() && flags.nodelist.is_some() {
        return Err(Failure::usage("--relative and --nodelist both choose nodes").hint("leave one of them out"));
    }
    // A node that is named twice has two ranks: the list already names the node of each rank.
    if nodes.iter().collect::<BTreeSet<_>>().len() < nodes.len() {
        (flags.nodes, flags.tasks_per_node, flags.layout.distribution) = (None, None, None);
        return Ok(());
    }
    if nodes.is_empty() || asked.is_some_and(|asked| asked != nodes.len()) {
        let what = format!("-N {} does not fit the {} nodes that are chosen", asked.unwrap_or(1), nodes.len());
        return Err(Failure::usage(what).hint(format!("the job has {} nodes", allocation.nodes.len())));
    }
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let each = flags.tasks_per_node.unwrap_or(allocation.tasks_per_node.max(1));
    let ranks = flags.ranks.unwrap_or(count.saturating_mul(each));
    nodes.truncate(ranks as usize);
    let of_ranks = distributed(&nodes, ranks as usize, flags.layout.distribution.as_ref());
    flags.nodelist = Some(of_ranks.join(","));
    (flags.ranks, flags.nodes, flags.tasks_per_node, flags.layout.distribution) = (Some(ranks), None, None, None);
    Ok(())
}

/// The node of each rank.
fn distributed<'a>(nodes: &'a [String], ranks: usize, how: Option<&Distribution>) -> Vec<&'a str> {
    let plane = match how {
        Some(Distribution::Cyclic) => 1,
        Some(Distribution::Plane(size)) => *size as usize,
        Some(Distribution::Block | Distribution::Explicit(_)) | None => {
            let (each, more) = (ranks / nodes.len(), ranks % nodes.len());
            let of_node = |(at, node): (usize, &'a String)| std::iter::repeat_n(node.as_str(), each + usize::from(at < more));
            return nodes.iter().enumerate().flat_map(of_node).collect();
        }
    };
    (0..ranks).map(|rank| nodes[(rank / plane.max(1)) % nodes.len()].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_syntax::slurm;

    fn allocation() -> v1::Allocation {
        let nodes = ["n1", "n2", "n3"].map(str::to_owned).into();
        v1::Allocation { nodes, tasks_per_node: 2, ..Default::default() }
    }

    fn nodes(least: u32) -> Option<NodeCount> {
        Some(NodeCount { least, most: None })
    }

    fn placed(flags: SubmitFlags, relative: Option<u32>) -> Result<String, String> {
        let mut flags = flags;
        place(&mut flags, relative, &allocation()).map_err(|failure| failure.text())?;
        assert_eq!((flags.nodes, flags.tasks_per_node), (None, None));
        Ok(flags.nodelist.unwrap_or_default())
    }

    #[test]
    fn ranks_are_distributed_over_the_chosen_nodes() {
        let listed = |list: &str| SubmitFlags { nodelist: Some(list.into()), ..SubmitFlags::default() };
        assert_eq!(placed(listed("n[1-2]"), None).unwrap(), "n1,n1,n2,n2");
        assert_eq!(placed(SubmitFlags { ranks: Some(3), ..listed("n3,n1") }, None).unwrap(), "n3,n3,n1");
        assert_eq!(placed(SubmitFlags { ranks: Some(1), ..listed("n3,n1") }, None).unwrap(), "n3");
        let mut cyclic = SubmitFlags { ranks: Some(3), ..listed("n3,n1") };
        cyclic.layout.distribution = Some(Distribution::Cyclic);
        assert_eq!(placed(cyclic, None).unwrap(), "n3,n1,n3");
        assert_eq!(placed(listed("n1,n2,n1"), None).unwrap(), "n1,n2,n1", "it is the list of ranks");
        let one = SubmitFlags { ranks: Some(1), nodes: nodes(1), ..SubmitFlags::default() };
        assert_eq!(placed(one.clone(), Some(2)).unwrap(), "n3");
        assert!(placed(one, Some(3)).unwrap_err().contains("the job has 3 nodes"));
        assert!(placed(SubmitFlags { nodes: nodes(3), ..listed("n1") }, None).unwrap_err().contains("-N 3"));
    }

    #[test]
    fn what_a_step_cannot_have_is_refused_with_a_remedy() {
        let refused = |word: &str| refuse_options(&[word.to_owned()]).err().map(|failure| failure.text());
        assert!(refused("--exclude=n9").unwrap().contains("hint: name the nodes"));
        assert!(refused("--signal=USR1@60").is_some());
        assert_eq!((refused("--exclusive"), refused("--nodes=2")), (None, None));
    }

    #[test]
    fn ranks_of_sockets_are_for_jobs() {
        let given = |text: &str| {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            slurm::read_arguments(slurm::Command::Srun, "", &words).unwrap().given
        };
        let refused = refuse_ranks_of_sockets(&given("-n 4 --ntasks-per-socket=2 true")).unwrap_err().text();
        assert!(refused.contains("--ntasks-per-socket=2 is not possible for a step inside a job"), "{refused}");
        assert!(refused.contains("hint: give it to sbatch"), "{refused}");
        assert!(refuse_ranks_of_sockets(&given("-n 4 --cpu-bind=sockets true --ntasks-per-socket=2")).is_ok(), "the program's option");
        assert!(names_job(&given("--jobid=12 true")) && !names_job(&given("-n 2 true --jobid=12")));
    }

    #[test]
    fn a_step_has_no_more_nodes_than_ranks() {
        let mut flags = SubmitFlags { ranks: Some(1), nodes: nodes(2), ..SubmitFlags::default() };
        let note = fit_nodes(&mut flags).unwrap();
        assert_eq!(note, "Warning: can't run 1 processes on 2 nodes, setting nnodes to 1");
        assert_eq!((flags.nodes, fit_nodes(&mut flags)), (nodes(1), None));
    }

    #[test]
    fn options_of_the_job_are_left_out_and_smaller_amounts_reported() {
        let given = SubmitFlags { gpus: Some(1), vcluster: Some("q".into()), ranks: Some(2), ..SubmitFlags::default() };
        let own = OwnOptions { exclusive: true, ..OwnOptions::default() };
        assert_eq!(notes(&given, &own).len(), 2);
        let left = flags_of_step(given);
        assert_eq!((left.first_allocation_option(), left.ranks), (None, Some(2)));
    }
}
