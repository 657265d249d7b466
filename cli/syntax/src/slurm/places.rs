//! Where ranks run: nodes, and the cores, memory and GPUs to which they are bound.

use super::amounts::whole_number;
use super::option::{Around, Meaning};
use super::value_error::ValueError;
use lattice_model::duration::{self, BareNumber};

const ONE_PER_CORE: &str = "cores are counted here, never their threads";
const NO_OTHER_BINDING: &str = "ranks can be bound to cores, ldoms or sockets: --cpu-bind";

/// `--nodefile`: a name with a / is a file of `--nodelist`.
pub(super) fn node_file(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let here = if value.contains('/') { "" } else { "./" };
    Ok(Meaning::word(format!("--nodelist={here}{value}")))
}

/// `--exclusive`, alone or with `user`.
pub(super) fn exclusive(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    match value {
        "" | "1" | "yes" => Ok(Meaning::word("--exclusive")),
        "user" => Ok(Meaning::word("--exclusive=user")),
        other => Err(ValueError::not_honoured(other, "use --exclusive alone: whole nodes, shared with nobody; or --exclusive=user")),
    }
}

/// `--switches`: a switch is a topology group. After `@` comes the time for which the job waits for them.
pub(super) fn switches(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let (switches, wait) = value.split_once('@').map_or((value, None), |(switches, wait)| (switches, Some(wait)));
    let mut words = vec![format!("--topology={}", whole_number(switches, "switches")?)];
    if let Some(wait) = wait {
        match duration::parse(wait, BareNumber::Minutes)?.as_secs() {
            // A job that does not wait for switches does not ask for them.
            0 => words.clear(),
            seconds => words.push(format!("--topology-wait={seconds}s")),
        }
    }
    Ok(Meaning { words, note: None })
}

/// `--constraint`. Programs without a constraint give an empty one.
pub(super) fn constraint(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    if value.is_empty() { Ok(Meaning::default()) } else { Ok(Meaning::word(format!("--constraint={value}"))) }
}

/// `--mincpus`: the least cores of each node.
pub(super) fn cores_min(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning::word(format!("--constraint=core_count>={}", whole_number(value, "cores")?)))
}

/// `--sockets-per-node`.
pub(super) fn sockets_min(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning::word(format!("--constraint=socket_count>={}", whole_number(value, "sockets")?)))
}

/// `--extra-node-info`: sockets, `:` cores of each, `:` threads of each core; `*` is any number.
pub(super) fn extra_node_info(value: &str, around: Around<'_>) -> Result<Meaning, ValueError> {
    let mut levels = value.split(':');
    let sockets = levels.next().unwrap_or_default();
    let (cores, threads) = (levels.next().unwrap_or("*"), levels.next().unwrap_or("*"));
    if cores != "*" {
        return Err(ValueError::not_honoured(value, "write * for the cores of a socket; --mincpus is for those of a node"));
    }
    if !matches!(threads, "*" | "1") || levels.next().is_some() {
        return Err(ValueError::not_honoured(value, "write sockets alone, such as -B 2: cores are counted, not their threads"));
    }
    if sockets == "*" { Ok(Meaning::default()) } else { sockets_min(sockets, around) }
}

/// `--use-min-nodes`: it concerns the range of `--nodes`, so the options together honour it.
pub(super) fn nodes_min(_: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning::default())
}

/// `--distribution`: over nodes, `:` over sockets, `:` over cores, and `,NoPack`.
pub(super) fn distribution(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let refused = |what: &str| Err(ValueError::not_honoured(what, "write block, cyclic or plane=N; -w n1,n2,n1 of srun places each rank"));
    let (levels, packed) = value.split_once(',').unwrap_or((value, ""));
    if !packed.is_empty() && !packed.eq_ignore_ascii_case("NoPack") {
        return refused(packed);
    }
    let mut levels = levels.split(':');
    let over_nodes = levels.next().unwrap_or_default();
    let mut note = None;
    for level in levels {
        match level {
            "*" | "block" => {}
            "cyclic" | "fcyclic" => note = Some("ranks are not placed on sockets in turn; that matters only if they are bound to cores"),
            other => return refused(other),
        }
    }
    let words = match over_nodes {
        "*" => Vec::new(),
        "block" | "cyclic" => vec![format!("--distribution={over_nodes}")],
        plane if plane.starts_with("plane=") => vec![format!("--distribution={plane}")],
        other => return refused(other),
    };
    Ok(Meaning { words, note })
}

/// `--hint`.
pub(super) fn hint(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    match value {
        "compute_bound" | "nomultithread" | "multithread" => Ok(Meaning::harmless(ONE_PER_CORE)),
        other => Err(ValueError::not_honoured(other, "use -n, --ntasks-per-node and -c for the number of ranks and of their cores")),
    }
}

/// `--threads-per-core`.
pub(super) fn threads_of_core(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    match whole_number(value, "threads")? {
        1 => Ok(Meaning::harmless(ONE_PER_CORE)),
        _ => Err(ValueError::not_honoured(value, "use -c: a rank may start two threads on each of its cores")),
    }
}

/// The parts of a binding, except those that say how much is printed.
fn parts(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').filter(|part| !matches!(*part, "" | "quiet" | "q" | "verbose" | "v"))
}

/// `--cpu-bind`.
pub(super) fn cpu_bind(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let mut words = Vec::new();
    for part in parts(value) {
        let ours = match part {
            "none" | "no" => "none",
            "cores" => "cores",
            "sockets" => "sockets",
            "ldoms" => "numa",
            other => return Err(ValueError::not_honoured(other, NO_OTHER_BINDING)),
        };
        words = vec![format!("--cpu-bind={ours}")];
    }
    Ok(Meaning { words, note: None })
}

/// `--mem-bind`.
pub(super) fn memory_bind(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let (mut policy, mut prefers) = (None, false);
    for part in parts(value) {
        match part {
            "none" | "no" => policy = Some("local"),
            "local" => policy = Some("bind"),
            "p" | "prefer" => prefers = true,
            "sort" | "nosort" => {}
            other => return Err(ValueError::not_honoured(other, "use --mem-bind=local, prefer or none")),
        }
    }
    let policy = if prefers { Some("preferred") } else { policy };
    Ok(Meaning { words: policy.map(|policy| format!("--memory-policy={policy}")).into_iter().collect(), note: None })
}

/// `--gpu-bind`.
pub(super) fn gpu_bind(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let mut words = Vec::new();
    for part in parts(value) {
        words = match part.split_once(':') {
            None if matches!(part, "closest" | "none") => vec![format!("--gpu-bind={part}")],
            Some(("per_task", number)) => vec![format!("--gpus-per-task={}", whole_number(number, "GPUs")?)],
            Some(_) | None => return Err(ValueError::not_honoured(part, "use --gpu-bind=closest or none, or --gpus-per-task")),
        };
    }
    Ok(Meaning { words, note: None })
}
