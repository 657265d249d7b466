//! What several options mean together: the cores of a share, the GPUs of ranks, and whole nodes with an amount.

use super::arguments::Given;
use super::job::{Job, Piece, refusal};
use super::option::Command;
use super::value_error::ValueError;
use crate::UsageError;
use crate::memory;
use crate::shape::complete_shape;
use lattice_model::count::counted;
use lattice_model::hostlist;

/// Options of `lattice submit` that ask for a share of each node.
const SHARES: [&str; 5] = ["--mem", "--mem-per-core", "--mem-per-gpu", "--gpus", "--gpus-total"];

const BESIDE_EXCLUSIVE: &str = "with --exclusive, ask for the nodes' amounts with --mem and --gpus-per-node";
const SOCKETS_BOUND: &str = "leave --cpu-bind out, or write --distribution with one part: ranks are bound to neighbouring cores";

/// The numbers that were given.
struct Numbers {
    ranks: Option<u32>,
    nodes: Option<u32>,
    per_node: Option<u32>,
    cpus: Option<u32>,
}

/// Adds what follows from all options together.
pub(super) fn complete(command: Command, all: &[Given], job: &mut Job) -> Result<(), UsageError> {
    let is_bound = job.value_of("--cpu-bind").is_some() || find(all, "ntasks-per-socket").is_some();
    if let Some(given) = find(all, "distribution").filter(|_| is_bound) {
        let second = given.value.as_deref().and_then(|value| value.split(':').nth(1)).unwrap_or_default();
        if second.contains("cyclic") {
            return Err(refusal(given, &ValueError::not_honoured(second, SOCKETS_BOUND)));
        }
    }
    if let Some(given) = find(all, "contiguous").filter(|_| find(all, "switches").is_some()) {
        return Err(refusal(given, &ValueError::not_honoured("beside --switches", "leave one of the two out")));
    }
    if let Some(given) = find(all, "mail-user").filter(|_| find(all, "mail-type").is_none()) {
        // Nothing is sent, and the quorum refuses an address for nothing.
        job.pieces.iter_mut().for_each(|piece| piece.words.retain(|word| !word.starts_with("--mail-user=")));
        job.notes.push(format!("{}: without --mail-type nobody gets mail", given.shown()));
    }
    if find(all, "use-min-nodes").is_some() {
        for word in job.pieces.iter_mut().flat_map(|piece| &mut piece.words) {
            let least = word.strip_prefix("--nodes=").and_then(|nodes| nodes.split(['-', '.']).next()).map(str::to_owned);
            if let Some(least) = least.filter(|least| !least.is_empty()) {
                *word = format!("--nodes={least}");
            }
        }
    }
    let mut added = Vec::new();
    let for_each_gpu = ranks_of_gpus(command, all, job, &mut added)?;
    gpu_of_each_rank(all, job, &mut added);
    if find(all, "ntasks-per-core").is_some() && find(all, "cpus-per-task").is_none() {
        added.push("--cpus-per-task=1".to_owned());
    }
    job.pieces.push(of_several("the number of ranks", std::mem::take(&mut added)));
    nodes_of_sockets(all, job);
    let numbers = numbers(all, job);
    let Ok(shape) = complete_shape(numbers.ranks, numbers.nodes, numbers.per_node, None) else {
        // The parser of `lattice submit` says what does not fit.
        job.pieces.retain(|piece| !piece.words.is_empty());
        return Ok(());
    };
    let spreads = is_spread(job, &numbers);
    if let Some(gpus) = gpus_of_ranks(job, shape.tasks_per_node).filter(|_| !spreads) {
        added.push(format!("--gpus={gpus}"));
    }
    let cores = shape.tasks_per_node.saturating_mul(numbers.cpus.unwrap_or(1));
    if job.has_plain("--exclusive") {
        whole_nodes(all, job, cores, &mut added)?;
    } else if job.own.exclusive {
        // Of `srun`: a step takes no amounts, so its options stay, and a job of its own has whole nodes.
        added = least_amounts(job, cores, &added);
    } else {
        let has_amounts = SHARES.iter().any(|ours| job.value_of(ours).is_some_and(|value| value != "0"));
        let has_gpus_of_ranks = spreads && job.value_of("--gpus-per-task").is_some();
        let is_share = !added.is_empty() || has_amounts || has_gpus_of_ranks;
        let counts_cores = numbers.ranks.is_some() || numbers.per_node.is_some() || numbers.cpus.is_some();
        if is_share {
            refuse_all_memory(all)?;
            if spreads {
                // The amounts of a node follow from how many ranks it gets.
                added.extend((!has_amounts).then(|| "--shared".to_owned()));
            } else if (counts_cores || job.value_of("--mem-per-core").is_some()) && job.value_of("--cpus-per-gpu").is_none() {
                added.push(format!("--cores={}", if job.own.overcommit { 1 } else { cores }));
            }
        }
    }
    ranks_of_sockets(all, job, shape.tasks_per_node, spreads, &mut added)?;
    if spreads {
        added.push("--spread".to_owned());
    } else if let (Some(ranks @ 2..), None, None, Command::Sbatch | Command::Salloc) =
        (number(job.value_of("--ntasks")), numbers.nodes, numbers.per_node, command)
    {
        job.notes.push(format!("-n {ranks} without -N: all {ranks} ranks are on one node; -N or --ntasks-per-node spreads them"));
        // It is refused where no node has so many cores, and never crowded.
        let has_cores = numbers.cpus.is_some() || added.iter().any(|word| word.starts_with("--cores="));
        if !has_cores && !job.own.overcommit {
            added.push(format!("--constraint=core_count>={ranks}"));
        }
    }
    if command == Command::Srun {
        added.extend(for_each_gpu);
        job.of_job = added;
    } else {
        job.pieces.push(of_several("the options together", added));
    }
    job.pieces.retain(|piece| !piece.words.is_empty());
    Ok(())
}

/// What several options became together.
fn of_several(shown: &str, words: Vec<String>) -> Piece {
    Piece { shown: shown.to_owned(), words, is_typed: false }
}

fn find<'a>(all: &'a [Given], long: &str) -> Option<&'a Given> {
    all.iter().rfind(|given| given.option.long == long)
}

fn number(text: Option<&str>) -> Option<u32> {
    text?.parse().ok().filter(|number| *number > 0)
}

fn numbers(all: &[Given], job: &Job) -> Numbers {
    let least = job.value_of("--nodes").and_then(|nodes| nodes.split(['-', '.']).next());
    let named = find(all, "nodelist").and_then(|given| given.value.as_deref()).filter(|list| !list.contains('/'));
    let named = named.and_then(|list| hostlist::count(list).ok()).and_then(|count| u32::try_from(count).ok());
    // As `lattice submit` derives them from the GPUs of the job.
    let total = number(job.value_of("--gpus-total"));
    let divided = |by: &str| {
        total.zip(number(job.value_of(by))).filter(|(total, each)| total.is_multiple_of(*each)).map(|(total, each)| total / each)
    };
    let nodes = number(least).or(named).or_else(|| divided("--gpus"));
    let of_each = |gpus: Option<u32>| number(job.value_of("--tasks-per-gpu")).zip(gpus).map(|(ranks, gpus)| ranks.saturating_mul(gpus));
    let per_node = number(job.value_of("--tasks-per-node")).or_else(|| of_each(number(job.value_of("--gpus"))));
    let of_ranks = || divided("--gpus-per-task").filter(|_| per_node.is_none() || nodes.is_none());
    let of_gpus = || of_each(total.filter(|_| per_node.is_none())).or_else(of_ranks);
    Numbers { ranks: number(job.value_of("--ntasks")).or_else(of_gpus), nodes, per_node, cpus: number(job.value_of("--cpus-per-task")) }
}

/// Whether the ranks get as many nodes as they need: nothing says how many nodes there are, or what each has.
fn is_spread(job: &Job, numbers: &Numbers) -> bool {
    let is_given = |ours: &&str| job.value_of(ours).is_some();
    let is_whole = job.has_plain("--exclusive") || job.own.exclusive;
    let amounts_depend = ["--gpus-total", "--mem-per-gpu", "--cpus-per-gpu", "--nodelist", "--topology-wait"].iter().any(is_given)
        || (is_whole && ["--mem-per-core", "--gpus-per-task"].iter().any(is_given))
        || job.value_of("--distribution").is_some_and(|how| how.starts_with("plane"));
    let is_number_alone = numbers.nodes.is_none() && numbers.per_node.is_none();
    let has_several = number(job.value_of("--ntasks")).is_some_and(|ranks| ranks > 1);
    has_several && is_number_alone && !amounts_depend && !job.own.overcommit
}

/// `--ntasks-per-gpu`: the number of ranks follows from that of GPUs. Returns what a job of `srun` has beside it: a step, to
/// which the same options are given, has no amounts.
fn ranks_of_gpus(command: Command, all: &[Given], job: &Job, added: &mut Vec<String>) -> Result<Option<String>, UsageError> {
    let Some(given) = find(all, "ntasks-per-gpu") else { return Ok(None) };
    let remedy = "write it with --gpus-per-node or --gpus, or use -n and --gpus-per-task";
    let not_alone = || refusal(given, &ValueError::not_honoured(given.value.as_deref().unwrap_or_default(), remedy));
    let ranks = number(given.value.as_deref()).ok_or_else(not_alone)?;
    let (ours, theirs, gpus) = match (number(job.value_of("--gpus")), number(job.value_of("--gpus-total"))) {
        (Some(gpus), _) => ("--tasks-per-node", "ntasks-per-node", gpus),
        (None, Some(gpus)) => ("--ntasks", "ntasks", gpus),
        (None, None) => return Err(not_alone()),
    };
    let for_each_gpu = format!("--tasks-per-gpu={ranks}");
    // A whole node may have more GPUs than were asked for.
    let is_whole = job.has_plain("--exclusive") || job.own.exclusive;
    if !is_whole && command != Command::Srun {
        added.push(for_each_gpu);
        return Ok(None);
    }
    let wanted = ranks.saturating_mul(gpus);
    let typed = find(all, theirs).and_then(|other| Some((other, number(other.value.as_deref())?)));
    if let Some((other, count)) = typed.filter(|(_, count)| *count != wanted) {
        let (gpus, wanted) = (counted(gpus, "GPU"), counted(wanted, "rank"));
        let why = format!("{}: on {gpus} that is {wanted}, and {} asks for {count}", given.shown(), other.shown());
        return Err(UsageError::new(why).with_hint("leave one of them out"));
    }
    added.push(format!("{ours}={wanted}"));
    Ok((!is_whole).then_some(for_each_gpu))
}

/// Slurm's `--ntasks-per-gpu` also gives each rank one GPU, unless another option says which GPUs it has.
fn gpu_of_each_rank(all: &[Given], job: &mut Job, added: &mut Vec<String>) {
    let Some(given) = find(all, "ntasks-per-gpu") else { return };
    if ["--gpu-bind", "--gpus-per-task"].iter().any(|ours| job.value_of(ours).is_some()) {
        return;
    }
    if number(given.value.as_deref()) == Some(1) {
        added.push("--gpus-per-task=1".to_owned());
        return;
    }
    let seen = "each rank sees all GPUs of the job on its node, not one as in Slurm: choose one by SLURM_LOCALID";
    job.notes.push(format!("{}: {seen}", given.shown()));
}

/// `--ntasks-per-socket` with a number of ranks alone: the number of nodes follows from that of the sockets of each.
fn nodes_of_sockets(all: &[Given], job: &mut Job) {
    let each = find(all, "ntasks-per-socket").and_then(|given| number(given.value.as_deref()));
    let numbers = numbers(all, job);
    let (Some(each), Some(sockets), Some(ranks)) = (each, least_sockets(job), numbers.ranks) else { return };
    if is_spread(job, &numbers) {
        let nodes = ranks.div_ceil(each.saturating_mul(sockets));
        job.pieces.push(of_several("the number of nodes", vec![format!("--nodes={nodes}")]));
    }
}

/// The sockets that each node must have; `None`: no option says it.
fn least_sockets(job: &Job) -> Option<u32> {
    let lists = job.pieces.iter().flat_map(|piece| &piece.words).filter_map(|word| word.strip_prefix("--constraint="));
    lists.flat_map(|list| list.split(['&', ','])).filter_map(|term| number(term.trim().strip_prefix("socket_count>="))).max()
}

/// `--ntasks-per-socket`: nodes have so many sockets that each has at most that many ranks when these are dealt evenly.
fn ranks_of_sockets(all: &[Given], job: &Job, tasks_per_node: u32, spreads: bool, added: &mut Vec<String>) -> Result<(), UsageError> {
    let Some(given) = find(all, "ntasks-per-socket") else { return Ok(()) };
    let value = given.value.as_deref().unwrap_or_default();
    let refused = |remedy| Err(refusal(given, &ValueError::not_honoured(value, remedy)));
    // `srun --exclusive` keeps the amounts among its words, for a step; a job of its own has whole nodes.
    let has_amounts = !job.own.exclusive && SHARES.iter().any(|ours| job.value_of(ours).is_some_and(|value| value != "0"));
    let is_share = has_amounts || added.iter().any(|word| word.starts_with("--cores=") || word.starts_with("--gpus="));
    if spreads {
        return refused(
            "the sockets of a node are not known, which say how many ranks it has: add -N, --ntasks-per-node or --sockets-per-node",
        );
    }
    if is_share {
        return refused("add --exclusive: the cores of a share may all be of one socket");
    }
    if job.value_of("--cpu-bind").is_some_and(|bind| bind != "sockets") {
        return refused("leave --cpu-bind out: ranks are bound to their sockets");
    }
    let each = number(given.value.as_deref()).unwrap_or(1);
    // A later constraint replaces an earlier one of the same name, such as that of --sockets-per-node.
    let sockets = tasks_per_node.max(1).div_ceil(each).max(least_sockets(job).unwrap_or(1));
    added.push(format!("--constraint=socket_count>={sockets}"));
    if job.value_of("--cpu-bind").is_none() {
        added.push("--cpu-bind=sockets".to_owned());
    }
    Ok(())
}

/// The GPUs that the ranks of a node need, if nothing else says how many a node has.
fn gpus_of_ranks(job: &Job, tasks_per_node: u32) -> Option<u32> {
    if job.value_of("--gpus").is_some() || job.value_of("--gpus-total").is_some() {
        return None;
    }
    number(job.value_of("--gpus-per-task")).map(|gpus| gpus.saturating_mul(tasks_per_node))
}

/// Whole nodes that have at least the amounts: a share of each would not be whole.
fn whole_nodes(all: &[Given], job: &mut Job, cores: u32, added: &mut Vec<String>) -> Result<(), UsageError> {
    for long in ["gpus", "mem-per-gpu", "cpus-per-gpu"] {
        if let Some(given) = find(all, long) {
            return Err(refusal(given, &ValueError::not_honoured(given.value.as_deref().unwrap_or_default(), BESIDE_EXCLUSIVE)));
        }
    }
    *added = least_amounts(job, cores, added);
    for piece in &mut job.pieces {
        piece.words.retain(|word| !["--mem=", "--mem-per-core=", "--gpus="].iter().any(|ours| word.starts_with(ours)));
    }
    if !added.is_empty() {
        job.notes.push("--exclusive: the job gets all memory and GPUs of nodes that have at least the given amounts".to_owned());
    }
    Ok(())
}

/// The constraints that say which amounts a whole node must have. `added`: the GPUs that its ranks need.
fn least_amounts(job: &Job, cores: u32, added: &[String]) -> Vec<String> {
    let per_core = job.value_of("--mem-per-core").and_then(|size| memory::parse(size).ok());
    let bytes = job.value_of("--mem").and_then(|size| memory::parse(size).ok()).or(per_core.map(|size| size.saturating_mul(cores.into())));
    let of_ranks = added.iter().find_map(|word| word.strip_prefix("--gpus=")).and_then(|gpus| number(Some(gpus)));
    let gpus = number(job.value_of("--gpus")).or(of_ranks);
    let memory = bytes.map(|bytes| format!("--constraint=memory_gb>={}", bytes.div_ceil(1 << 30)));
    memory.into_iter().chain(gpus.map(|gpus| format!("--constraint=gpu_count={gpus}"))).collect()
}

/// `--mem=0` is all memory of a node, which comes only with the whole node.
fn refuse_all_memory(all: &[Given]) -> Result<(), UsageError> {
    let Some(given) = find(all, "mem") else { return Ok(()) };
    let value = given.value.as_deref().unwrap_or_default();
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if digits.is_empty() || digits.bytes().any(|digit| digit != b'0') {
        return Ok(());
    }
    let remedy = "add --exclusive for whole nodes, or give the amount";
    Err(refusal(given, &ValueError::not_honoured(value, remedy)))
}
