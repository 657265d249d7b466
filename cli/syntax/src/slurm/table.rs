//! Every option of `sbatch`, `srun` and `salloc`, and its rule.

use super::option::{Command, Rule, SlurmOption, Takes};
use super::own::Sets;
use super::{amounts, places, times, values};

const SBATCH: u8 = Command::Sbatch.bit();
const SRUN: u8 = Command::Srun.bit();
const SALLOC: u8 = Command::Salloc.bit();
const JOBS: u8 = SBATCH | SALLOC;
const ALL: u8 = JOBS | SRUN;

/// No letter.
const NONE: char = '\0';

const LEAVE_OUT: &str = "leave it out";
const BY_NODES: &str = "set nodes, ranks and cores with -N, -n, --ntasks-per-node and -c";
const NODES_BY_FEATURES: &str = "choose nodes by their features (-C) or their names (-w)";
const CORES_BY_NODE: &str =
    "no constraint counts the cores of a socket: --mincpus=N is for those of a node, --sockets-per-node=N for its sockets, -C for features";
const GPUS_BY_NODE: &str = "use --gpus-per-node or --gpus-per-task";
const NO_BURST_BUFFERS: &str = "burst buffers are not known; --tmp asks for space on each node";
const NO_FREQUENCIES: &str = "frequencies are not set; leave it out";
const IMAGE: &str = "use --uenv=IMAGE, a SquashFS file";
const NO_SYSTEM_CORES: &str = "cores are not set aside for the system; use -c";
const OTHER_USER: &str = "a job runs as its submitter; leave it out";
/// What to do instead of a heterogeneous job.
pub const NOT_HETEROGENEOUS: &str = "a job has nodes of one kind; `lattice dag submit` runs jobs of several kinds";
const BY_SBCAST: &str = "copy the program with `sbcast` before the step";
const BY_SCRIPT: &str = "have the program be a script that does it";
const OF_SBATCH: &str = "it is an option of `sbatch`, not of the job";

/// An option without a value.
const fn flag(commands: u8, short: char, long: &'static str, rule: Rule) -> SlurmOption {
    option(commands, short, long, Takes::Nothing, "", rule)
}

/// An option with a value, of which `sample` is an example.
const fn valued(commands: u8, short: char, long: &'static str, sample: &'static str, rule: Rule) -> SlurmOption {
    option(commands, short, long, Takes::Value, sample, rule)
}

/// An option that may have a value.
const fn perhaps(commands: u8, short: char, long: &'static str, sample: &'static str, rule: Rule) -> SlurmOption {
    option(commands, short, long, Takes::Perhaps, sample, rule)
}

const fn option(commands: u8, short: char, long: &'static str, takes: Takes, sample: &'static str, rule: Rule) -> SlurmOption {
    let short = if short == NONE { None } else { Some(short) };
    SlurmOption { long, short, commands, takes, rule, sample, remark: "" }
}

impl SlurmOption {
    const fn with(self, remark: &'static str) -> Self {
        Self { remark, ..self }
    }
}

/// Each option, sorted by name. One name has several rows if the commands mean different things by it. Options that are
/// not listed are refused as well.
pub const OPTIONS: &[SlurmOption] = &[
    valued(SRUN, NONE, "accel-bind", "g", Rule::Refused("use --gpu-bind=closest")),
    valued(ALL, 'A', "account", "physics", Rule::By(values::account)).with("the site may map accounts to tenants"),
    valued(ALL, NONE, "acctg-freq", "30", Rule::Harmless("usage is always measured")),
    valued(SBATCH, 'a', "array", "0-99%20", Rule::Word("--array")),
    valued(SBATCH, NONE, "batch", "gpu", Rule::Refused(NODES_BY_FEATURES)),
    valued(ALL, NONE, "bb", "capacity=1G", Rule::Refused(NO_BURST_BUFFERS)),
    valued(ALL, NONE, "bbf", "file", Rule::Refused(NO_BURST_BUFFERS)),
    perhaps(SRUN, NONE, "bcast", "/tmp/program", Rule::Refused(BY_SBCAST)),
    valued(SRUN, NONE, "bcast-exclude", "NONE", Rule::Refused(BY_SBCAST)),
    valued(SBATCH | SRUN, 'b', "begin", "2030-03-01T18:00:00Z", Rule::By(times::begin)),
    valued(SALLOC, NONE, "begin", "2030-03-01T18:00:00Z", Rule::By(times::begin)),
    flag(SALLOC, NONE, "bell", Rule::Own(Sets::Bell, "")),
    valued(ALL, 'D', "chdir", "/scratch/x", Rule::Word("--chdir")),
    valued(ALL, NONE, "cluster-constraint", "x", Rule::Refused("there is one cluster; leave it out")),
    valued(ALL, 'M', "clusters", "lattice", Rule::By(values::clusters)).with("only this cluster; another one is refused"),
    valued(ALL, NONE, "comment", "text", Rule::Word("--comment")),
    perhaps(SRUN, NONE, "compress", "lz4", Rule::Refused(BY_SBCAST)),
    valued(ALL, 'C', "constraint", "gpu&nvme_scratch", Rule::By(places::constraint)),
    valued(ALL, NONE, "container", "bundle", Rule::Refused(IMAGE)),
    valued(ALL, NONE, "container-id", "x", Rule::Refused(IMAGE)),
    flag(ALL, NONE, "contiguous", Rule::Plain("--topology=contiguous")).with("not together with --switches"),
    valued(ALL, 'S', "core-spec", "1", Rule::Refused(NO_SYSTEM_CORES)),
    valued(ALL, NONE, "cores-per-socket", "8", Rule::Refused(CORES_BY_NODE)),
    valued(ALL, NONE, "cpu-bind", "cores", Rule::By(places::cpu_bind))
        .with("none, cores, sockets and ldoms; in sbatch and salloc an addition"),
    valued(ALL, NONE, "cpu-freq", "high", Rule::Refused(NO_FREQUENCIES)),
    valued(ALL, NONE, "cpus-per-gpu", "8", Rule::Word("--cpus-per-gpu")),
    valued(ALL, 'c', "cpus-per-task", "8", Rule::Word("--cpus-per-task")).with("cores, not threads"),
    valued(ALL, NONE, "deadline", "2030-03-01T18:00:00Z", Rule::Word("--deadline")),
    valued(ALL, NONE, "delay-boot", "10", Rule::Harmless("nodes are not booted for a job")),
    valued(ALL, 'd', "dependency", "afterok:12:13,afterany:14", Rule::By(values::dependency))
        .with("also afternotok, after, after:N+MINUTES, aftercorr and singleton; `?` is refused"),
    flag(SRUN, 'X', "disable-status", Rule::Harmless("the first Ctrl-C ends a step in any case")),
    valued(ALL, 'm', "distribution", "cyclic:block", Rule::By(places::distribution))
        .with("block, cyclic or plane=N over the nodes; NoPack; Pack and arbitrary are refused"),
    valued(SRUN, NONE, "epilog", "none", Rule::Refused(BY_SCRIPT)),
    valued(SBATCH, 'e', "error", "x-%j.err", Rule::Word("--error")),
    valued(SRUN, 'e', "error", "x-%j.err", Rule::Own(Sets::Error, "")),
    flag(SRUN, NONE, "exact", Rule::Harmless("a step gets the cores that it asks for")),
    valued(ALL, 'x', "exclude", "n[1-2]", Rule::Word("--exclude")),
    perhaps(JOBS, NONE, "exclusive", "", Rule::By(places::exclusive))
        .with("amounts beside it choose nodes that have at least so much; =user; =mcs is refused"),
    perhaps(SRUN, NONE, "exclusive", "", Rule::Own(Sets::Exclusive, "")),
    valued(SBATCH | SRUN, NONE, "export", "ALL,A=1", Rule::By(values::export)).with("names alone only on a command line"),
    valued(SBATCH, NONE, "export-file", "file", Rule::Refused("have the script read the file: `. FILE`")),
    valued(ALL, NONE, "extra", "x", Rule::Refused(NODES_BY_FEATURES)),
    valued(ALL, 'B', "extra-node-info", "2:*:1", Rule::By(places::extra_node_info)).with("only sockets, and one thread of each core"),
    perhaps(JOBS, NONE, "get-user-env", "10L", Rule::Refused("begin the script with `#!/bin/bash -l` for a login shell's environment")),
    valued(ALL, NONE, "gid", "x", Rule::Refused("a job runs with its submitter's groups; leave it out")),
    valued(ALL, NONE, "gpu-bind", "closest", Rule::By(places::gpu_bind)).with("closest, none and per_task:N"),
    valued(ALL, NONE, "gpu-freq", "high", Rule::Refused(NO_FREQUENCIES)),
    valued(ALL, 'G', "gpus", "a100:8", Rule::By(amounts::gpus_of_job)).with("must divide evenly over the nodes"),
    valued(ALL, NONE, "gpus-per-node", "a100:4", Rule::By(amounts::gpus_of_node)),
    valued(ALL, NONE, "gpus-per-socket", "2", Rule::Refused(GPUS_BY_NODE)),
    valued(ALL, NONE, "gpus-per-task", "1", Rule::By(amounts::gpus_of_rank)),
    valued(ALL, NONE, "gres", "gpu:a100:4", Rule::By(amounts::generic_resources)).with("only GPUs; others are refused"),
    valued(ALL, NONE, "gres-flags", "enforce-binding", Rule::Refused("use --gpu-bind=closest or --gpu-bind=none")),
    flag(ALL, 'h', "help", Rule::Own(Sets::Help, OF_SBATCH)),
    valued(SRUN, NONE, "het-group", "1", Rule::Refused(NOT_HETEROGENEOUS)),
    valued(ALL, NONE, "hint", "nomultithread", Rule::By(places::hint)).with("memory_bound is refused"),
    flag(ALL, 'H', "hold", Rule::Own(Sets::Hold, "use `sbatch`, or `lattice submit --hold`")),
    flag(SBATCH, NONE, "ignore-pbs", Rule::Harmless("#PBS lines are never read")),
    perhaps(SRUN | SALLOC, 'I', "immediate", "30", Rule::Own(Sets::Immediate, "")),
    valued(SBATCH, 'i', "input", "in.txt", Rule::Word("--input")),
    valued(SRUN, 'i', "input", "in.txt", Rule::Own(Sets::Input, "")),
    valued(ALL, 'J', "job-name", "x", Rule::Word("--name")),
    valued(SRUN, NONE, "jobid", "12", Rule::Own(Sets::JobId, "")),
    perhaps(SALLOC, 'K', "kill-command", "TERM", Rule::Own(Sets::KillCommand, "")),
    perhaps(SRUN, 'K', "kill-on-bad-exit", "1", Rule::Own(Sets::KillOnBadExit, "")),
    valued(SBATCH, NONE, "kill-on-invalid-dep", "yes", Rule::By(values::kill_on_invalid_dependency))
        .with("no is refused: a job that waits in vain is cancelled"),
    flag(SRUN, 'l', "label", Rule::Own(Sets::Label, "")),
    valued(
        ALL,
        'L',
        "licenses",
        "matlab",
        Rule::Refused("licenses are not counted; leave it out if the program itself waits for a license"),
    ),
    valued(ALL, NONE, "mail-type", "END,FAIL", Rule::By(values::mail_type))
        .with("by the site's mail hook; STAGE_OUT has nothing to report, ARRAY_TASKS goes with END and FAIL alone"),
    valued(ALL, NONE, "mail-user", "a@example.com", Rule::Word("--mail-user")).with("with --mail-type"),
    valued(ALL, NONE, "mcs-label", "x", Rule::Refused(LEAVE_OUT)),
    valued(ALL, NONE, "mem", "4096", Rule::By(amounts::memory_of_node)).with("0: all memory, with whole nodes"),
    valued(ALL, NONE, "mem-bind", "local", Rule::By(places::memory_bind)).with("local, prefer and none"),
    valued(ALL, NONE, "mem-per-cpu", "2G", Rule::By(amounts::memory_of_core)),
    valued(ALL, NONE, "mem-per-gpu", "64G", Rule::By(amounts::memory_of_gpu)),
    valued(ALL, NONE, "mincpus", "8", Rule::By(places::cores_min)).with("nodes with at least so many cores"),
    valued(SRUN, NONE, "mpi", "pmix", Rule::Own(Sets::Mpi, "")),
    valued(SRUN, NONE, "msg-timeout", "10", Rule::Harmless("messages have timeouts of their own")),
    flag(SRUN, NONE, "multi-prog", Rule::Own(Sets::MultiProg, "")),
    valued(ALL, NONE, "network", "x", Rule::Refused("use --network-domain in a #LATTICE line")),
    perhaps(ALL, NONE, "nice", "50", Rule::By(amounts::nice)).with("without a number, 100"),
    flag(SRUN, 'Z', "no-allocate", Rule::Refused("leave it out: only an allocation has nodes")),
    flag(SALLOC, NONE, "no-bell", Rule::Own(Sets::NoBell, "")),
    perhaps(ALL, 'k', "no-kill", "off", Rule::By(values::no_kill)).with("only off: a job ends with its nodes"),
    flag(SBATCH, NONE, "no-requeue", Rule::Plain("--requeue=never")),
    flag(SALLOC, NONE, "no-shell", Rule::Own(Sets::NoShell, "")),
    valued(ALL, 'F', "nodefile", "nodes.txt", Rule::By(places::node_file)),
    valued(ALL, 'w', "nodelist", "n[1-2]", Rule::Word("--nodelist")),
    valued(ALL, 'N', "nodes", "2-4", Rule::Word("--nodes")),
    valued(ALL, 'n', "ntasks", "8", Rule::Word("--ntasks"))
        .with("without -N and --ntasks-per-node: on the fewest nodes that have the cores free"),
    valued(ALL, NONE, "ntasks-per-core", "1", Rule::By(amounts::ranks_of_core)).with("only 1"),
    valued(ALL, NONE, "ntasks-per-gpu", "2", Rule::By(amounts::ranks_of_gpu))
        .with("with --gpus-per-node, --gres or --gpus; with 1, each rank sees one GPU, else all of the job on its node"),
    valued(ALL, NONE, "ntasks-per-node", "4", Rule::Word("--tasks-per-node")),
    valued(ALL, NONE, "ntasks-per-socket", "2", Rule::By(amounts::ranks_of_socket)).with(
        "with -N, --ntasks-per-node or --sockets-per-node, on whole nodes: nodes with enough sockets, to which ranks are bound; \
         refused for a step inside a job",
    ),
    valued(ALL, NONE, "oom-kill-step", "1", Rule::Refused(LEAVE_OUT)),
    valued(SBATCH, NONE, "open-mode", "append", Rule::Word("--open-mode")),
    valued(SRUN, NONE, "open-mode", "append", Rule::Own(Sets::OpenMode, "")),
    valued(SBATCH, 'o', "output", "x-%j.out", Rule::By(values::output)).with("`sbatch` alone has a default, slurm-%j.out"),
    valued(SRUN, 'o', "output", "x-%j.out", Rule::Own(Sets::Output, "")),
    flag(ALL, 'O', "overcommit", Rule::Own(Sets::Overcommit, "")),
    flag(SRUN, NONE, "overlap", Rule::Own(Sets::Overlap, "")),
    flag(ALL, 's', "oversubscribe", Rule::Harmless("it permits sharing, and does not ask for it")),
    flag(SBATCH, NONE, "parsable", Rule::Own(Sets::Parsable, "use `sbatch`, or `lattice submit -o name`")),
    valued(ALL, 'p', "partition", "debug", Rule::By(values::partition)).with("one; the site may map partitions to vClusters"),
    valued(ALL, NONE, "power", "level", Rule::Refused(LEAVE_OUT)),
    valued(ALL, NONE, "prefer", "gpu", Rule::Refused(NODES_BY_FEATURES)),
    flag(SRUN, 'E', "preserve-env", Rule::Refused("leave it out: a step's variables are those of the step")),
    valued(ALL, NONE, "priority", "TOP", Rule::By(amounts::priority))
        .with("TOP: first in its queue, for operators; 1: last; other numbers are refused, --nice moves a job by minutes"),
    valued(ALL, NONE, "profile", "all", Rule::Harmless("usage is always measured: `lattice top ID`, `lattice telemetry`")),
    valued(SRUN, NONE, "prolog", "none", Rule::Refused(BY_SCRIPT)),
    perhaps(SBATCH | SRUN, NONE, "propagate", "NONE", Rule::By(values::propagate)).with("only NONE: limits are those of the nodes"),
    flag(SRUN, NONE, "pty", Rule::Own(Sets::Pty, "")),
    valued(ALL, 'q', "qos", "high", Rule::By(values::qos)).with("a QOS that the site has named in lattice-compat.yaml"),
    flag(ALL, 'Q', "quiet", Rule::Own(Sets::Quiet, "")),
    flag(SRUN, NONE, "quit-on-interrupt", Rule::Harmless("the first Ctrl-C ends a step in any case")),
    flag(ALL, NONE, "reboot", Rule::Refused("nodes are not rebooted for a job; leave it out")),
    valued(SRUN, 'r', "relative", "1", Rule::Own(Sets::Relative, "")),
    flag(SBATCH, NONE, "requeue", Rule::Plain("--requeue=on_node_failure")),
    valued(ALL, NONE, "reservation", "course", Rule::Word("--reservation")).with("one"),
    perhaps(ALL, NONE, "resv-ports", "4", Rule::Refused("ports are not reserved; leave it out")),
    valued(ALL, NONE, "segment", "4", Rule::Refused(NODES_BY_FEATURES)),
    perhaps(SRUN, NONE, "send-libs", "yes", Rule::Refused(BY_SBCAST)),
    valued(ALL, NONE, "signal", "B:USR1@120", Rule::By(values::signal)),
    valued(SRUN, NONE, "slurmd-debug", "1", Rule::Harmless("the agents' logs are set by the site")),
    valued(ALL, NONE, "sockets-per-node", "2", Rule::By(places::sockets_min)).with("nodes with at least so many sockets"),
    flag(ALL, NONE, "spread-job", Rule::Refused(BY_NODES)),
    flag(JOBS, NONE, "stepmgr", Rule::Refused(LEAVE_OUT)),
    valued(ALL, NONE, "switches", "2", Rule::By(places::switches))
        .with("at most so many topology groups; with @TIME it waits so long for them, and then takes any"),
    valued(SRUN, NONE, "task-epilog", "x", Rule::Refused(BY_SCRIPT)),
    valued(SRUN, NONE, "task-prolog", "x", Rule::Refused(BY_SCRIPT)),
    flag(SBATCH | SRUN, NONE, "test-only", Rule::Own(Sets::TestOnly, "use `sbatch`, or `lattice submit --dry-run`")),
    valued(ALL, NONE, "thread-spec", "1", Rule::Refused(NO_SYSTEM_CORES)),
    valued(SRUN, 'T', "threads", "8", Rule::Harmless("a launch needs no threads of the client")),
    valued(ALL, NONE, "threads-per-core", "1", Rule::By(places::threads_of_core)).with("only 1"),
    valued(ALL, 't', "time", "1-12:00:00", Rule::By(times::walltime)).with("without an end it is refused"),
    valued(ALL, NONE, "time-min", "30", Rule::By(times::walltime_min)),
    valued(ALL, NONE, "tmp", "10G", Rule::By(amounts::scratch)),
    valued(ALL, NONE, "tres-bind", "x", Rule::Refused("use --gpu-bind")),
    valued(ALL, NONE, "tres-per-task", "cpu=4", Rule::Refused("use -c and --gpus-per-task")),
    valued(ALL, NONE, "uenv", "/images/a.sqfs", Rule::Word("--uenv")),
    valued(ALL, NONE, "uid", "x", Rule::Refused(OTHER_USER)),
    flag(SRUN, 'u', "unbuffered", Rule::Own(Sets::Unbuffered, "")),
    flag(ALL, NONE, "usage", Rule::Own(Sets::Usage, OF_SBATCH)),
    flag(ALL, NONE, "use-min-nodes", Rule::By(places::nodes_min)).with("of -N 2-4, the 2"),
    flag(ALL, 'v', "verbose", Rule::Own(Sets::Verbose, "")),
    flag(ALL, 'V', "version", Rule::Own(Sets::Version, OF_SBATCH)),
    valued(ALL, NONE, "view", "default", Rule::Refused("leave it out: views of an image are not built yet")),
    flag(SBATCH, 'W', "wait", Rule::Own(Sets::Wait, "use `sbatch`, or `lattice submit --wait`")),
    valued(SRUN, 'W', "wait", "0", Rule::By(values::wait_for_ranks)).with("only 0: a rank that ends well ends no other"),
    valued(JOBS, NONE, "wait-all-nodes", "1", Rule::Harmless("a job always begins when all its nodes are ready")),
    valued(ALL, NONE, "wckey", "x", Rule::By(values::wckey)),
    valued(SBATCH, NONE, "wrap", "hostname", Rule::Own(Sets::Wrap, "use `sbatch`, or `lattice submit -- sh -c COMMAND`")),
    perhaps(ALL, NONE, "x11", "all", Rule::Refused("`lattice session` opens a terminal; displays are not forwarded")),
];
