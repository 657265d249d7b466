//! `sacct`.

use super::{Common, Data, Lines};
use clap::Parser;

/// Shows jobs that wait, run or have ended, as Slurm's command does
#[derive(Parser, Clone, Debug)]
#[command(name = "sacct", disable_help_flag = true, disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct Sacct {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub lines: Lines,
    #[command(flatten)]
    pub data: Data,
    /// Only jobs of these accounts
    #[arg(short = 'A', long = "accounts", alias = "account", value_name = "LIST")]
    pub accounts: Vec<String>,
    /// Accepted: there is one cluster
    #[arg(short = 'L', long)]
    pub allclusters: bool,
    /// Without steps
    #[arg(short = 'X', long)]
    pub allocations: bool,
    /// Jobs of all users
    #[arg(short, long)]
    pub allusers: bool,
    /// Refused: Lattice has no associations
    #[arg(short = 'x', long, value_name = "LIST")]
    pub associations: Vec<String>,
    /// The script of the job that -j names
    #[arg(short = 'B', long)]
    pub batch_script: bool,
    /// Only id, state and exit code
    #[arg(short, long)]
    pub brief: bool,
    /// Refused: there is no file of ended jobs
    #[arg(short, long)]
    pub completion: bool,
    /// Refused: the constraints of ended jobs are not kept
    #[arg(short = 'C', long, value_name = "LIST")]
    pub constraints: Vec<String>,
    /// What separates fields with -p and -P
    #[arg(long, value_name = "TEXT", default_value = "|", allow_hyphen_values = true)]
    pub delimiter: String,
    /// Accepted: job numbers are never used twice
    #[arg(short = 'D', long)]
    pub duplicates: bool,
    /// Only jobs that began to wait before this time
    #[arg(short = 'E', long, value_name = "TIME")]
    pub endtime: Option<String>,
    /// Refused: the environment of jobs is not kept
    #[arg(long)]
    pub env_vars: bool,
    /// Refused: there is no file of ended jobs
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<String>,
    /// Refused: which scheduler started a job is not kept
    #[arg(short = 'F', long, value_name = "LIST")]
    pub flags: Vec<String>,
    /// The fields, such as JobID%20,State
    #[arg(short = 'o', long, value_name = "FIELDS")]
    pub format: Vec<String>,
    /// Refused: the groups of users are not kept
    #[arg(short = 'g', long = "group", alias = "gid", value_name = "LIST")]
    pub group: Vec<String>,
    /// Print what the options mean
    #[arg(short = 'h', action = clap::ArgAction::Help)]
    pub short_help: Option<bool>,
    /// Print the fields that --format knows
    #[arg(short = 'e', long)]
    pub helpformat: bool,
    /// Only these jobs
    #[arg(short, long, value_name = "LIST")]
    pub jobs: Vec<String>,
    /// More fields
    #[arg(short, long)]
    pub long: bool,
    /// Only jobs with these names
    #[arg(long, value_name = "LIST")]
    pub name: Vec<String>,
    /// Only jobs with so many nodes: MIN or MIN-MAX
    #[arg(short = 'i', long, value_name = "NUMBERS")]
    pub nnodes: Option<String>,
    /// Only jobs with so many processors: MIN or MIN-MAX
    #[arg(short = 'I', long, value_name = "NUMBERS")]
    pub ncpus: Option<String>,
    /// Only jobs on any of these nodes
    #[arg(short = 'N', long, value_name = "HOSTLIST")]
    pub nodelist: Vec<String>,
    /// Only jobs of these partitions
    #[arg(short = 'r', long, value_name = "LIST")]
    pub partition: Vec<String>,
    /// Only jobs of these QOS
    #[arg(short, long, value_name = "LIST")]
    pub qos: Vec<String>,
    /// Only jobs with these reasons
    #[arg(short = 'R', long, value_name = "LIST")]
    pub reason: Vec<String>,
    /// Only jobs that had not ended before this time
    #[arg(short = 'S', long, value_name = "TIME")]
    pub starttime: Option<String>,
    /// Only jobs in these states
    #[arg(short, long, value_name = "LIST")]
    pub state: Vec<String>,
    /// Only jobs with at most this time limit
    #[arg(short = 'K', long, value_name = "TIME")]
    pub timelimit_max: Option<String>,
    /// Only jobs with this time limit, or at least this with --timelimit-max
    #[arg(short = 'k', long, value_name = "TIME")]
    pub timelimit_min: Option<String>,
    /// Refused: times are shown as they were
    #[arg(short = 'T', long)]
    pub truncate: bool,
    /// Only jobs of these users
    #[arg(short, long = "user", alias = "uid", value_name = "LIST")]
    pub user: Vec<String>,
    /// Accepted: amounts have a unit of their own
    #[arg(long, value_name = "UNIT")]
    pub units: Option<String>,
    /// Accepted: numbers of users are those of this machine
    #[arg(long)]
    pub use_local_uid: bool,
    /// Refused: Lattice has no wckeys
    #[arg(short = 'W', long, value_name = "LIST")]
    pub wckeys: Vec<String>,
    /// Accepted: Lattice has no heterogeneous jobs
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_missing_value = "yes")]
    pub whole_hetjob: Option<String>,
}
