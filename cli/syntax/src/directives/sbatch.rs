//! Translates `#SBATCH` options. [`OPTIONS`] has a rule for each.

use super::slurm_values::{self, ValueError};
use crate::UsageError;
use lattice_model::duration::{self, BareNumber};

/// How an option of Slurm is translated.
#[derive(Clone, Copy)]
pub enum Rule {
    /// The same value under this name.
    Value(&'static str),
    /// A time; a bare number is minutes.
    Time,
    /// An amount of memory; a bare number is MiB.
    Memory,
    /// Generic resources; only GPUs are supported.
    Gres,
    /// GPUs per node, with or without their type.
    GpusPerNode,
    /// The variables that the job gets.
    Export,
    /// Other jobs that must have ended.
    Dependency,
    /// This option, which has no value.
    Plain(&'static str),
    /// It does not change the job: it is ignored with a warning. The flag says whether a value follows.
    Harmless(bool),
    /// It changes the job, or concerns only the submitting command, and is not supported. The text says what to do
    /// instead.
    Refused(&'static str),
}

/// An option of `sbatch`.
pub struct SlurmOption {
    pub long: &'static str,
    pub short: Option<char>,
    pub rule: Rule,
}

const fn option(long: &'static str, rule: Rule) -> SlurmOption {
    SlurmOption { long, short: None, rule }
}

const fn lettered(short: char, long: &'static str, rule: Rule) -> SlurmOption {
    SlurmOption { long, short: Some(short), rule }
}

const LEAVE_OUT: &str = "leave it out";
const FILES_ARE_KEPT: &str =
    "`lattice logs` shows the output, with stdout and stderr separate; a script that begins with `exec >FILE 2>&1` writes a file itself";
const BY_NODES: &str = "set nodes, ranks and cores with -N, -n, --ntasks-per-node and -c";
const NODES_BY_FEATURES: &str = "choose nodes by their features (-C) or their names (-w)";
const GPUS_BY_NODE: &str = "use --gpus-per-node or --gpus-per-task";
const NO_TIME: &str =
    "start times are not built yet; submit with `lattice submit --hold`, and run `lattice resume ID` when the job may start";
const OF_SUBMITTING_COMMAND: &str = "it is an option of the submitting command, not of the job";

/// Each option of `sbatch`, sorted by name. Options that are not listed are refused as well.
pub const OPTIONS: &[SlurmOption] = &[
    lettered('A', "account", Rule::Value("--tenant")),
    option("acctg-freq", Rule::Harmless(true)),
    lettered('a', "array", Rule::Value("--array")),
    option("batch", Rule::Refused(NODES_BY_FEATURES)),
    option("bb", Rule::Refused("burst buffers are not known; --scratch-per-node asks for space on each node")),
    option("bbf", Rule::Refused("burst buffers are not known; --scratch-per-node asks for space on each node")),
    lettered('b', "begin", Rule::Refused(NO_TIME)),
    lettered('D', "chdir", Rule::Value("--chdir")),
    option("cluster-constraint", Rule::Refused("there is one cluster; leave it out")),
    lettered('M', "clusters", Rule::Refused("there is one cluster; --endpoint names an agent of another one")),
    option("comment", Rule::Harmless(true)),
    lettered('C', "constraint", Rule::Value("--constraint")),
    option("container", Rule::Refused("use --uenv=IMAGE")),
    option("container-id", Rule::Refused("use --uenv=IMAGE")),
    option("contiguous", Rule::Refused(NODES_BY_FEATURES)),
    lettered('S', "core-spec", Rule::Refused("cores are not set aside for the system; use -c")),
    option("cores-per-socket", Rule::Refused(NODES_BY_FEATURES)),
    option("cpu-freq", Rule::Refused("frequencies are not set; leave it out")),
    option("cpus-per-gpu", Rule::Refused("use -c and --gpus-per-task")),
    lettered('c', "cpus-per-task", Rule::Value("--cpus-per-task")),
    option("deadline", Rule::Refused("queues have no deadlines; leave it out")),
    option("delay-boot", Rule::Refused(NODES_BY_FEATURES)),
    lettered('d', "dependency", Rule::Dependency),
    lettered('m', "distribution", Rule::Value("--distribution")),
    lettered('e', "error", Rule::Refused(FILES_ARE_KEPT)),
    lettered('x', "exclude", Rule::Refused(NODES_BY_FEATURES)),
    option("exclusive", Rule::Plain("--exclusive")),
    option("export", Rule::Export),
    option("export-file", Rule::Refused("have the script read the file: `. FILE`")),
    option("extra", Rule::Refused(NODES_BY_FEATURES)),
    lettered('B', "extra-node-info", Rule::Refused(NODES_BY_FEATURES)),
    option("get-user-env", Rule::Refused("begin the script with `#!/bin/bash -l` for a login shell's environment")),
    option("gid", Rule::Refused("a job runs with its submitter's groups; leave it out")),
    option("gpu-bind", Rule::Value("--gpu-bind")),
    option("gpu-freq", Rule::Refused("frequencies are not set; leave it out")),
    lettered('G', "gpus", Rule::Refused("it counts the GPUs of all nodes together; use --gpus-per-node or --gpus-per-task")),
    option("gpus-per-node", Rule::GpusPerNode),
    option("gpus-per-socket", Rule::Refused(GPUS_BY_NODE)),
    option("gpus-per-task", Rule::Value("--gpus-per-task")),
    option("gres", Rule::Gres),
    option("gres-flags", Rule::Refused("use --gpu-bind=closest or --gpu-bind=none")),
    lettered('h', "help", Rule::Refused(OF_SUBMITTING_COMMAND)),
    option("hint", Rule::Refused("use -c, --cpu-bind and --ntasks-per-node")),
    lettered('H', "hold", Rule::Refused("use the submitting command: `lattice submit --hold`")),
    option("ignore-pbs", Rule::Harmless(false)),
    lettered('i', "input", Rule::Refused("a script's standard input is empty; redirect it in the script: `program <FILE`")),
    lettered('J', "job-name", Rule::Value("--name")),
    option("kill-on-invalid-dep", Rule::Refused("a job that waits in vain is always cancelled; leave it out")),
    lettered('L', "licenses", Rule::Refused("licenses are not counted; leave it out if the program itself waits for a license")),
    option("mail-type", Rule::Harmless(true)),
    option("mail-user", Rule::Harmless(true)),
    option("mcs-label", Rule::Refused(LEAVE_OUT)),
    option("mem", Rule::Memory),
    option("mem-bind", Rule::Refused("use --memory-policy in a #LATTICE line")),
    option("mem-per-cpu", Rule::Refused("give the memory of each node: --mem=SIZE")),
    option("mem-per-gpu", Rule::Refused("give the memory of each node: --mem=SIZE")),
    option("mincpus", Rule::Refused(BY_NODES)),
    option("network", Rule::Refused("use --network-domain in a #LATTICE line")),
    option("nice", Rule::Refused("queues are served in the order of submission; leave it out")),
    lettered('k', "no-kill", Rule::Refused("use --requeue, or --no-kill-on-bad-exit in a #LATTICE line")),
    option("no-requeue", Rule::Plain("--requeue=never")),
    lettered('F', "nodefile", Rule::Refused("use -w FILE, where FILE has a / in its name")),
    lettered('w', "nodelist", Rule::Value("--nodelist")),
    lettered('N', "nodes", Rule::Value("--nodes")),
    lettered('n', "ntasks", Rule::Value("--ntasks")),
    option("ntasks-per-core", Rule::Refused(BY_NODES)),
    option("ntasks-per-gpu", Rule::Refused("use -n and --gpus-per-task")),
    option("ntasks-per-node", Rule::Value("--tasks-per-node")),
    option("ntasks-per-socket", Rule::Refused(BY_NODES)),
    option("oom-kill-step", Rule::Refused(LEAVE_OUT)),
    option("open-mode", Rule::Refused(FILES_ARE_KEPT)),
    lettered('o', "output", Rule::Refused(FILES_ARE_KEPT)),
    lettered('O', "overcommit", Rule::Refused(BY_NODES)),
    lettered('s', "oversubscribe", Rule::Refused("ask for a share of each node: --mem, --gpus-per-node, or --cores in a #LATTICE line")),
    option("parsable", Rule::Refused("use the submitting command: `lattice submit -o name` prints only the id")),
    lettered('p', "partition", Rule::Value("--vcluster")),
    option("power", Rule::Refused(LEAVE_OUT)),
    option("prefer", Rule::Refused(NODES_BY_FEATURES)),
    option("priority", Rule::Refused("queues are served in the order of submission; leave it out")),
    option("profile", Rule::Refused("`lattice telemetry` measures running work closely")),
    option("propagate", Rule::Refused("set limits in the script with `ulimit`")),
    lettered(
        'q',
        "qos",
        Rule::Refused("there are no classes of service; choose a queue with -p, and set --preemption-class in a #LATTICE line"),
    ),
    lettered('Q', "quiet", Rule::Harmless(false)),
    option("reboot", Rule::Refused("nodes are not rebooted for a job; leave it out")),
    option("requeue", Rule::Plain("--requeue=on_node_failure")),
    option("reservation", Rule::Refused("there are no reservations; choose a queue with -p")),
    option("resv-ports", Rule::Refused("ports are not reserved; leave it out")),
    option("segment", Rule::Refused(NODES_BY_FEATURES)),
    option(
        "signal",
        Rule::Refused(
            "use --checkpoint=signal and --checkpoint-signal in a #LATTICE line: the job gets the signal before its walltime ends; \
             `lattice signal ID` sends a signal at any time",
        ),
    ),
    option("sockets-per-node", Rule::Refused(NODES_BY_FEATURES)),
    option("spread-job", Rule::Refused(BY_NODES)),
    option("stepmgr", Rule::Refused(LEAVE_OUT)),
    option("switches", Rule::Refused(NODES_BY_FEATURES)),
    option("test-only", Rule::Refused("use the submitting command: `lattice submit --dry-run`")),
    option("thread-spec", Rule::Refused("threads are not set aside for the system; use -c")),
    option("threads-per-core", Rule::Refused("use -c and --cpu-bind")),
    lettered('t', "time", Rule::Time),
    option("time-min", Rule::Refused("a job has one walltime; use -t")),
    option("tmp", Rule::Refused("use --scratch-per-node=SIZE in a #LATTICE line")),
    option("tres-bind", Rule::Refused("use --gpu-bind")),
    option("tres-per-task", Rule::Refused("use -c and --gpus-per-task")),
    option("uenv", Rule::Value("--uenv")),
    option("uid", Rule::Refused("a job runs as its submitter; leave it out")),
    option("usage", Rule::Refused(OF_SUBMITTING_COMMAND)),
    option("use-min-nodes", Rule::Refused(BY_NODES)),
    lettered('v', "verbose", Rule::Harmless(false)),
    lettered('V', "version", Rule::Refused(OF_SUBMITTING_COMMAND)),
    option("view", Rule::Value("--view")),
    lettered('W', "wait", Rule::Refused("use the submitting command: `lattice submit --wait`")),
    option("wait-all-nodes", Rule::Refused("a job always begins when all its nodes are ready; leave it out")),
    option("wckey", Rule::Harmless(true)),
    option("wrap", Rule::Refused("`lattice submit -- sh -c COMMAND` runs a command without a script")),
    option("x11", Rule::Refused("`lattice session` opens a terminal; displays are not forwarded")),
];

/// One line, translated.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Translated {
    /// Options of `lattice submit`.
    pub words: Vec<String>,
    /// Options that do not change the job, as they were written.
    pub ignored: Vec<String>,
}

/// Translates the words of one line.
///
/// # Errors
/// The first option that would change the job and is not supported, or that has a wrong value.
pub fn translate(words: &[String]) -> Result<Translated, UsageError> {
    let mut translated = Translated::default();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let (known, mut value) = find_option(word);
        let rule = known.ok_or_else(|| unknown_option(word))?.rule;
        let takes_value = !matches!(rule, Rule::Plain(_) | Rule::Harmless(false));
        if value.is_none() && takes_value && rest.peek().is_some_and(|next| !next.starts_with('-')) {
            value = rest.next().cloned();
        }
        // `-vv` is `-v` twice.
        let is_repeated = word.bytes().skip(1).all(|letter| Some(&letter) == word.as_bytes().get(1));
        if !takes_value && value.is_some() && !is_repeated && !matches!(rule, Rule::Plain("--exclusive")) {
            let hint = Some("write each option by itself".to_owned());
            return Err(UsageError { what: format!("{word}: this option has no value"), hint });
        }
        match rule {
            Rule::Harmless(_) => translated.ignored.push(word.clone()),
            Rule::Refused(remedy) => {
                return Err(UsageError {
                    what: format!("{word}: it is not supported, and the job would be different without it"),
                    hint: Some(remedy.to_owned()),
                });
            }
            Rule::Plain("--exclusive") if value.is_some() => {
                let hint = "use --exclusive alone: whole nodes, shared with nobody".to_owned();
                return Err(UsageError { what: format!("{word}: only whole nodes can be asked for"), hint: Some(hint) });
            }
            Rule::Plain(ours) => translated.words.push(ours.to_owned()),
            Rule::Value(_) | Rule::Time | Rule::Memory | Rule::Gres | Rule::GpusPerNode | Rule::Export | Rule::Dependency => {
                let missing = || UsageError { what: format!("{word}: a value is needed"), hint: None };
                let ours = translate_value(rule, &value.ok_or_else(missing)?);
                translated.words.extend(ours.map_err(|why| UsageError { what: format!("{word}: {why}"), hint: None })?);
            }
        }
    }
    Ok(translated)
}

/// The options of `lattice submit` for an option of Slurm with a value.
fn translate_value(rule: Rule, value: &str) -> Result<Vec<String>, ValueError> {
    match rule {
        Rule::Value(name) => Ok(vec![format!("{name}={value}")]),
        Rule::Time => {
            let time = duration::parse(value, BareNumber::Minutes)?;
            Ok(vec![format!("--walltime={}s", time.as_secs())])
        }
        Rule::Memory => slurm_values::translate_memory(value),
        Rule::Gres => slurm_values::translate_gres(value),
        Rule::GpusPerNode => slurm_values::translate_gpus(value),
        Rule::Export => slurm_values::translate_export(value),
        Rule::Dependency => slurm_values::translate_dependency(value),
        Rule::Plain(_) | Rule::Harmless(_) | Rule::Refused(_) => Ok(Vec::new()),
    }
}

fn unknown_option(word: &str) -> UsageError {
    let hint = "an unknown option might change the job, so it is refused; `lattice submit --help` lists the options";
    UsageError { what: format!("{word}: there is no such option"), hint: Some(hint.to_owned()) }
}

/// The option that a word names, and the value joined to it.
pub fn find_option(word: &str) -> (Option<&'static SlurmOption>, Option<String>) {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (long, None),
        };
        return (OPTIONS.iter().find(|option| option.long == name), value);
    }
    let mut chars = word.chars();
    let letter = if chars.next() == Some('-') { chars.next() } else { None };
    let joined = chars.as_str();
    let value = (letter.is_some() && !joined.is_empty()).then(|| joined.strip_prefix('=').unwrap_or(joined).to_owned());
    (OPTIONS.iter().find(|option| letter.is_some() && option.short == letter), value)
}
