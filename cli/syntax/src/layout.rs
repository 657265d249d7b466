//! The layout of a launch's ranks on its nodes, and what happens to the other ranks when one fails.

use crate::UsageError;
use clap::Args;
use lattice_api::v1;
use lattice_api::v1::launch_shape::{Program, RankPlace};
use lattice_model::hostlist::{self, HostlistError, NAMES_MAX};
use lattice_model::layout::CPUS_PER_TASK_MAX;
use lattice_model::{Distribution, NodeId};
use std::collections::BTreeSet;
use std::io::Read;

/// Separates the programs of one launch; `-n` follows.
const PROGRAM_SEPARATOR: &str = ":";
/// Size limit of a file of nodes in bytes: more than the longest list.
const NODE_FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// With `submit` they apply to its command, or are the defaults of its script's launches; with `launch` they apply to
/// that launch.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutFlags {
    /// How ranks are distributed over the nodes: block (neighbours together), cyclic (one on each node in turn) or
    /// plane=N (N on each node in turn) [default: block]
    #[arg(short = 'm', long, value_name = "HOW", overrides_with = "distribution")]
    pub distribution: Option<Distribution>,
    /// Cores for each rank; with --cpu-bind=cores the rank is bound to them [default: an equal share of the
    /// allocation's cores]
    #[arg(short = 'c', long, value_name = "N", overrides_with = "cpus_per_task", value_parser = clap::value_parser!(u32).range(1..=i64::from(CPUS_PER_TASK_MAX)))]
    pub cpus_per_task: Option<u32>,
    /// Do not end the other ranks when a rank ends with an exit code other than 0
    #[arg(long, overrides_with_all = ["no_kill_on_bad_exit", "kill_on_bad_exit"])]
    pub no_kill_on_bad_exit: bool,
    /// The default: a rank that ends with an exit code other than 0 ends the others
    #[arg(long, hide = true, overrides_with_all = ["no_kill_on_bad_exit", "kill_on_bad_exit"])]
    pub kill_on_bad_exit: bool,
    /// Set the variables of Slurm that programs read (SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_NODELIST, ...)
    #[arg(long)]
    pub slurm_env: bool,
    /// Spread the ranks of --ntasks over the fewest nodes that hold them in equal parts when the work begins: one node, or
    /// more nodes with fewer ranks on each
    #[arg(long)]
    pub spread: bool,
}

impl LayoutFlags {
    /// Merges two sets of options: a value of `self` wins over one of `under`.
    pub fn merge_over(self, under: Self) -> Self {
        let is_given = self.kill_on_bad_exit || self.no_kill_on_bad_exit;
        Self {
            distribution: self.distribution.or(under.distribution),
            cpus_per_task: self.cpus_per_task.or(under.cpus_per_task),
            no_kill_on_bad_exit: self.no_kill_on_bad_exit || (!is_given && under.no_kill_on_bad_exit),
            kill_on_bad_exit: self.kill_on_bad_exit || (!is_given && under.kill_on_bad_exit),
            slurm_env: self.slurm_env || under.slurm_env,
            spread: self.spread || under.spread,
        }
    }

    /// How many consecutive ranks each node gets, if that was given.
    pub fn plane(&self) -> Option<u32> {
        match self.distribution {
            Some(Distribution::Plane(size)) => Some(size),
            Some(Distribution::Block | Distribution::Cyclic | Distribution::Explicit(_)) | None => None,
        }
    }

    /// The options as a message.
    pub fn to_message(&self) -> v1::LaunchShape {
        let on_bad_exit = match (self.kill_on_bad_exit, self.no_kill_on_bad_exit) {
            (_, true) => "keep",
            (true, false) => "kill",
            (false, false) => "",
        };
        v1::LaunchShape {
            distribution: self.distribution.as_ref().map(ToString::to_string).unwrap_or_default(),
            cpus_per_task: self.cpus_per_task.unwrap_or_default(),
            slurm_env: self.slurm_env,
            on_bad_exit: on_bad_exit.to_owned(),
            ..Default::default()
        }
    }
}

/// The programs of one launch: the first one, the further ones, and the number of all ranks.
#[derive(Debug, PartialEq, Eq)]
pub struct Programs {
    pub first: Vec<String>,
    pub further: Vec<Program>,
    /// The total number of ranks, if it is known.
    pub ranks: Option<u32>,
}

/// Splits `a ARGS : -n 3 b ARGS` into its programs. A colon without a following `-n` is an ordinary argument.
pub fn split_programs(command: Vec<String>, ranks: Option<u32>) -> Result<Programs, UsageError> {
    let mut all = vec![(ranks, Vec::new())];
    let mut words = command.into_iter().peekable();
    while let Some(word) = words.next() {
        let count = if word == PROGRAM_SEPARATOR { words.peek().and_then(|next| parse_ranks_option(next)) } else { None };
        let Some(joined) = count else {
            all.last_mut().into_iter().for_each(|(_, argv)| argv.push(word.clone()));
            continue;
        };
        words.next();
        let text = joined.or_else(|| words.next()).unwrap_or_default();
        let ranks = text.parse::<u32>().ok().filter(|ranks| *ranks > 0);
        let ranks = ranks.ok_or_else(|| UsageError::new(format!(": -n {text}: a number of ranks is needed, as in `: -n 3 PROGRAM`")))?;
        all.push((Some(ranks), Vec::new()));
    }
    if all.iter().any(|(_, argv)| argv.is_empty()) {
        return Err(UsageError::new("a program is needed before and after each `: -n RANKS`"));
    }
    let (_, first) = all.remove(0);
    let further: Vec<Program> = all.into_iter().filter_map(|(ranks, argv)| Some(Program { ranks: ranks?, argv })).collect();
    if further.is_empty() {
        return Ok(Programs { first, further, ranks });
    }
    let own = ranks.ok_or_else(|| UsageError::new("each of several programs needs its number of ranks: `launch -n 2 A : -n 3 B`"))?;
    let all = further.iter().try_fold(own, |all, p| all.checked_add(p.ranks)).ok_or_else(|| UsageError::new("too many ranks"))?;
    Ok(Programs { first, further, ranks: Some(all) })
}

/// Parses the option for the number of ranks; the inner value is the number, if it is joined to the option. `None`:
/// another word.
fn parse_ranks_option(word: &str) -> Option<Option<String>> {
    match word.split_once('=') {
        Some(("--ntasks" | "-n", number)) => Some(Some(number.to_owned())),
        _ if word == "-n" || word == "-np" || word == "--ntasks" => Some(None),
        _ => {
            let number = word.strip_prefix("-n").filter(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            number.map(|number| Some(number.to_owned()))
        }
    }
}

/// The nodes of ranks in their order: a list, or a file of lists (a name with a `/`).
pub fn parse_rank_places(given: &str) -> Result<Vec<RankPlace>, UsageError> {
    let mut places: Vec<RankPlace> = Vec::new();
    for node in parse_nodelist(given)? {
        match places.last_mut() {
            Some(last) if last.node == node.as_str() => last.ranks += 1,
            Some(_) | None => places.push(RankPlace { node: node.to_string(), ranks: 1 }),
        }
    }
    Ok(places)
}

/// The nodes of a list, or of a file of lists, in their order.
///
/// # Errors
/// The file cannot be read, or it is no list of nodes.
pub fn parse_nodelist(given: &str) -> Result<Vec<NodeId>, UsageError> {
    if given.contains('/') { nodes_of_list(&read_list("--nodelist", given)?) } else { nodes_of_list(given) }
}

/// The nodes of a list, in their order. Reads no file.
///
/// # Errors
/// It is no list of nodes.
pub fn nodes_of_list(list: &str) -> Result<Vec<NodeId>, UsageError> {
    hostlist::in_order(list).map_err(|error| match error {
        HostlistError::TooMany => {
            UsageError::new(format!("--nodelist: it has more than {NAMES_MAX} nodes (inside an allocation, it has one for each rank)"))
                .with_hint("leave it out, and distribute the ranks with -n RANKS -m block, cyclic or plane=N")
        }
        HostlistError::Form(_) | HostlistError::Name(_) => UsageError::new(format!("--nodelist: {error}")),
    })
}

/// The nodes that are left out, each once, of a list or a file of lists.
///
/// # Errors
/// The file cannot be read, or it is no list of nodes.
pub fn parse_exclude(given: &str) -> Result<Vec<NodeId>, UsageError> {
    if given.contains('/') { nodes_of_exclude(&read_list("--exclude", given)?) } else { nodes_of_exclude(given) }
}

/// The nodes that are left out, each once, of a list. Reads no file.
///
/// # Errors
/// It is no list of nodes.
pub fn nodes_of_exclude(list: &str) -> Result<Vec<NodeId>, UsageError> {
    let nodes = hostlist::in_order(list).map_err(|error| UsageError::new(format!("--exclude: {error}")))?;
    Ok(nodes.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
}

/// Lines of nodes as one list; lines that begin with `#` are comments.
fn read_list(option: &str, path: &str) -> Result<String, UsageError> {
    let cannot = |error: std::io::Error| UsageError::new(format!("{option}: cannot read {path}: {error}"));
    let mut text = String::new();
    std::fs::File::open(path).and_then(|file| file.take(NODE_FILE_BYTES_MAX + 1).read_to_string(&mut text)).map_err(cannot)?;
    if text.len() as u64 > NODE_FILE_BYTES_MAX {
        return Err(UsageError::new(format!("{option}: {path} has more than {NODE_FILE_BYTES_MAX} bytes")));
    }
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    Ok(lines.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: LayoutFlags,
    }

    fn flags(line: &str) -> LayoutFlags {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap().flags
    }

    #[test]
    fn the_server_accepts_every_value_that_the_options_accept() {
        for line in ["-m cyclic -c 2", "--distribution plane=4 --no-kill-on-bad-exit", "--kill-on-bad-exit --slurm-env", ""] {
            lattice_api::spec::shape_request(Some(&flags(line).to_message())).unwrap();
        }
        for line in ["-m arbitrary", "-m plane=0", "-c 0"] {
            assert!(Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).is_err(), "{line}");
        }
        assert_eq!(flags("--no-kill-on-bad-exit --kill-on-bad-exit").to_message().on_bad_exit, "kill");
        assert_eq!(flags("--kill-on-bad-exit").merge_over(flags("--no-kill-on-bad-exit")).to_message().on_bad_exit, "kill");
        assert_eq!(flags("-c 2").merge_over(flags("--no-kill-on-bad-exit -c 3 -m cyclic")).to_message().on_bad_exit, "keep");
    }

    fn split(command: &str, ranks: Option<u32>) -> Result<Programs, UsageError> {
        split_programs(command.split_whitespace().map(str::to_owned).collect(), ranks)
    }

    #[test]
    fn programs_are_separated_by_a_colon_and_their_ranks() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let program = |ranks, text: &str| Program { ranks, argv: words(text) };
        let of = |first: &str, further: Vec<Program>, ranks| Programs { first: words(first), further, ranks };
        assert_eq!(split("a x : -n 3 b y : -n1 c", Some(2)).unwrap(), of("a x", vec![program(3, "b y"), program(1, "c")], Some(6)));
        assert_eq!(split("a : --ntasks=1 b : -np 1 c", Some(1)).unwrap().ranks, Some(3));
        assert_eq!(split("sh -c : x", None).unwrap(), of("sh -c : x", vec![], None), "a colon of the program's own");
        for (bad, ranks) in
            [("a : -n 3 b", None), ("a : -n 0 b", Some(1)), ("a : -n x b", Some(1)), ("a : -n 3", Some(1)), ("a : -n", Some(1))]
        {
            assert!(split(bad, ranks).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_of_nodes_is_read_in_its_order_from_a_word_or_a_file() {
        let drawn = |given: &str| {
            let places = parse_rank_places(given).unwrap();
            places.iter().map(|p| format!("{}*{}", p.node, p.ranks)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(drawn("n2,n[1-2],n2,n1"), "n2*1 n1*1 n2*2 n1*1");
        let path = std::env::temp_dir().join(format!("lattice-nodes-{}", std::process::id()));
        std::fs::write(&path, "# ranks\nn2\n\n n1,n1 \n").unwrap();
        assert_eq!(drawn(path.to_str().unwrap()), "n2*1 n1*2");
        let excluded = |given: &str| parse_exclude(given).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (excluded(path.to_str().unwrap()), excluded("n[3-4],n3")),
            (vec!["n1".into(), "n2".into()], vec!["n3".into(), "n4".into()])
        );
        assert!(parse_exclude("n[").unwrap_err().what.starts_with("--exclude: "));
        std::fs::remove_file(&path).unwrap();
        assert!(parse_rank_places(path.to_str().unwrap()).is_err() && parse_rank_places("n[1-").is_err());
        let too_many = parse_rank_places("n[1-50000],".repeat(3).trim_end_matches(',')).unwrap_err();
        assert!(too_many.what.contains("more than 100000 nodes"), "{too_many}");
        assert!(too_many.hint.is_some_and(|hint| hint.contains("-n RANKS -m")));
    }
}
