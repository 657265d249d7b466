//! The variables that set options: `SBATCH_...` for `sbatch`, `SALLOC_...` for `salloc`, `SLURM_...` for `srun`.

use super::arguments::{Given, find_exactly};
use super::option::{Command, Takes};
use std::collections::BTreeMap;

const SBATCH: u8 = Command::Sbatch.bit();
const SRUN: u8 = Command::Srun.bit();
const SALLOC: u8 = Command::Salloc.bit();
const JOBS: u8 = SBATCH | SALLOC;
const ALL: u8 = JOBS | SRUN;

/// The end of a variable's name, the option that it sets, and the commands that read it. The name begins with the prefix
/// of the command.
pub(super) const VARIABLES: &[(&str, &str, u8)] = &[
    ("ACCOUNT", "account", ALL),
    ("ACCTG_FREQ", "acctg-freq", ALL),
    ("ARRAY_INX", "array", SBATCH),
    ("BATCH", "batch", SBATCH),
    ("BCAST", "bcast", SRUN),
    ("BCAST_EXCLUDE", "bcast-exclude", SRUN),
    ("BELL", "bell", SALLOC),
    ("BURST_BUFFER", "bb", SRUN | SALLOC),
    ("CLUSTERS", "clusters", ALL),
    ("COMPRESS", "compress", SRUN),
    ("CONSTRAINT", "constraint", ALL),
    ("CONTAINER", "container", JOBS),
    ("CORE_SPEC", "core-spec", ALL),
    ("CPU_BIND", "cpu-bind", SRUN),
    ("CPU_FREQ_REQ", "cpu-freq", SRUN),
    ("CPUS_PER_GPU", "cpus-per-gpu", ALL),
    ("DEBUG", "verbose", ALL),
    ("DELAY_BOOT", "delay-boot", ALL),
    ("DEPENDENCY", "dependency", SRUN),
    ("DISABLE_STATUS", "disable-status", SRUN),
    ("DISTRIBUTION", "distribution", SBATCH | SRUN),
    ("EPILOG", "epilog", SRUN),
    ("ERROR", "error", SBATCH),
    ("EXACT", "exact", SRUN),
    ("EXCLUSIVE", "exclusive", ALL),
    ("EXPORT", "export", SBATCH),
    ("EXPORT_ENV", "export", SRUN),
    ("GET_USER_ENV", "get-user-env", SBATCH),
    ("GPU_BIND", "gpu-bind", ALL),
    ("GPU_FREQ", "gpu-freq", ALL),
    ("GPUS", "gpus", ALL),
    ("GPUS_PER_NODE", "gpus-per-node", ALL),
    ("GPUS_PER_TASK", "gpus-per-task", ALL),
    ("GRES", "gres", ALL),
    ("GRES_FLAGS", "gres-flags", ALL),
    ("HINT", "hint", ALL),
    ("IGNORE_PBS", "ignore-pbs", SBATCH),
    ("IMMEDIATE", "immediate", SRUN | SALLOC),
    ("INPUT", "input", SBATCH),
    ("JOB_ID", "jobid", SRUN),
    ("JOB_NAME", "job-name", SBATCH | SRUN),
    ("JOB_NUM_NODES", "nodes", SRUN),
    ("KILL_BAD_EXIT", "kill-on-bad-exit", SRUN),
    ("KILL_CMD", "kill-command", SALLOC),
    ("LABELIO", "label", SRUN),
    ("MEM_BIND", "mem-bind", ALL),
    ("MEM_PER_CPU", "mem-per-cpu", ALL),
    ("MEM_PER_GPU", "mem-per-gpu", ALL),
    ("MEM_PER_NODE", "mem", ALL),
    ("MPI_TYPE", "mpi", SRUN),
    ("NETWORK", "network", ALL),
    ("NNODES", "nodes", SRUN),
    ("NO_BELL", "no-bell", SALLOC),
    ("NO_KILL", "no-kill", ALL),
    ("NO_REQUEUE", "no-requeue", SBATCH),
    ("NPROCS", "ntasks", SRUN),
    ("NTASKS", "ntasks", SRUN),
    ("NTASKS_PER_CORE", "ntasks-per-core", SRUN),
    ("NTASKS_PER_GPU", "ntasks-per-gpu", SRUN),
    ("NTASKS_PER_NODE", "ntasks-per-node", SRUN),
    ("NTASKS_PER_SOCKET", "ntasks-per-socket", SRUN),
    ("OPEN_MODE", "open-mode", SBATCH | SRUN),
    ("OUTPUT", "output", SBATCH),
    ("OVERCOMMIT", "overcommit", ALL),
    ("OVERLAP", "overlap", SRUN),
    ("PARTITION", "partition", ALL),
    ("POWER", "power", ALL),
    ("PROFILE", "profile", ALL),
    ("PROLOG", "prolog", SRUN),
    ("QOS", "qos", ALL),
    ("REMOTE_CWD", "chdir", SRUN),
    ("REQ_SWITCH", "switches", ALL),
    ("REQUEUE", "requeue", SBATCH),
    ("RESERVATION", "reservation", ALL),
    ("RESV_PORTS", "resv-ports", SRUN),
    ("SEND_LIBS", "send-libs", SRUN),
    ("SIGNAL", "signal", ALL),
    ("SPREAD_JOB", "spread-job", ALL),
    ("STDERRMODE", "error", SRUN),
    ("STDINMODE", "input", SRUN),
    ("STDOUTMODE", "output", SRUN),
    ("STEP_GRES", "gres", SRUN),
    ("TASK_EPILOG", "task-epilog", SRUN),
    ("TASK_PROLOG", "task-prolog", SRUN),
    ("THREAD_SPEC", "thread-spec", ALL),
    ("THREADS", "threads", SRUN),
    ("THREADS_PER_CORE", "threads-per-core", ALL),
    ("TIMELIMIT", "time", ALL),
    ("UNBUFFEREDIO", "unbuffered", SRUN),
    ("USE_MIN_NODES", "use-min-nodes", ALL),
    ("WAIT", "wait", SBATCH | SRUN),
    ("WAIT_ALL_NODES", "wait-all-nodes", JOBS),
    ("WCKEY", "wckey", ALL),
    ("WORKING_DIR", "chdir", SRUN),
];

/// Variables whose whole name is here. A command reads them after those above, so they win.
pub(super) const WHOLE_NAMES: &[(&str, &str, u8)] = &[
    ("SLURM_CLUSTERS", "clusters", JOBS),
    ("SLURM_HINT", "hint", JOBS),
    ("SRUN_CONTAINER", "container", SRUN),
    ("SRUN_CPUS_PER_TASK", "cpus-per-task", SRUN),
    ("SRUN_EXPORT_ENV", "export", SRUN),
];

/// How the names of a command's variables begin.
pub(super) fn prefix(command: Command) -> &'static str {
    match command {
        Command::Sbatch => "SBATCH_",
        Command::Srun => "SLURM_",
        Command::Salloc => "SALLOC_",
    }
}

/// The options that these variables set. An empty variable sets none. A variable of an option without a value sets the
/// option unless the variable is 0.
pub fn read_environment(command: Command, environment: &BTreeMap<String, String>) -> Vec<Given> {
    let of_command = VARIABLES.iter().map(|(end, long, commands)| (format!("{}{end}", prefix(command)), *long, *commands));
    let whole = WHOLE_NAMES.iter().map(|(name, long, commands)| ((*name).to_owned(), *long, *commands));
    let mut given = Vec::new();
    for (name, long, commands) in of_command.chain(whole) {
        if commands & command.bit() == 0 {
            continue;
        }
        let Some(value) = environment.get(&name).filter(|value| !value.is_empty()) else { continue };
        let Some(option) = find_exactly(command, long) else { continue };
        let value = match option.takes {
            Takes::Nothing if value == "0" => continue,
            Takes::Nothing => None,
            Takes::Value | Takes::Perhaps => Some(value.clone()),
        };
        // How long a job waits for its switches is a part of the option's value.
        let longest_wait = environment.get(&format!("{}WAIT4SWITCH", prefix(command))).filter(|_| long == "switches");
        let value = match longest_wait {
            Some(wait) => value.map(|count| format!("{count}@{wait}")),
            None => value,
        };
        let written = match &value {
            Some(value) => format!("{name}={value}"),
            None => name,
        };
        given.push(Given { option, written, value, place: String::new() });
    }
    given
}
