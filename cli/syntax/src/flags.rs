//! The options of a submission, on the command line and in a script's lines.

use crate::UsageError;
use crate::amounts::AmountFlags;
use crate::binding::BindingFlags;
use crate::data::DataFlags;
use crate::dependency::parse_dependency;
use crate::layout::LayoutFlags;
use crate::network::NetworkFlags;
use crate::start_times::StartFlags;
use crate::unbuilt::UnbuiltFlags;
use crate::warning::EndWarning;
use clap::{Args, ValueEnum};
use lattice_api::v1;
use lattice_model::Topology;
use lattice_model::constraint::PMIX;
use lattice_model::duration::{self, BareNumber, DurationError};
use lattice_model::launch::{self, PMI_PORT_ASKED, PMI_PORT_VARIABLE, PMI_VARIABLE};
use lattice_model::millis;
use lattice_model::preemption::CLASS_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// The options of `submit`, `launch` and `session`. If an option is repeated, the last one wins; some add up.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct SubmitFlags {
    /// Number of nodes, or a range such as 2-8: as many of it as are free when the work begins; whole nodes, unless
    /// --cores, --mem or --gpus is given [default: 1]
    #[arg(short = 'N', long, value_name = "N[-MAX]", overrides_with = "nodes")]
    pub nodes: Option<NodeCount>,
    /// Number of ranks in all; for a script: of each `lattice launch` that gives no number [default: nodes ×
    /// tasks-per-node]
    #[arg(short = 'n', long = "ntasks", value_name = "RANKS", overrides_with = "ranks", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,
    /// Exactly these nodes: n1,n2 or n[1-2], or a file with such lines (a name with a /). In a launch inside an
    /// allocation: the node of each rank, in rank order, such as n1,n2,n1
    #[arg(short = 'w', long, value_name = "LIST", overrides_with = "nodelist")]
    pub nodelist: Option<String>,
    /// None of these nodes: n1,n2 or n[1-2], or a file with such lines (a name with a /)
    #[arg(short = 'x', long, value_name = "LIST", overrides_with = "exclude")]
    pub exclude: Option<String>,
    /// Whole nodes, shared with nobody (the default); not together with --cores, --mem or --gpus. With =user: nodes are
    /// shared only with work of the same user
    #[arg(
        long,
        value_name = "WITH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "nodes",
        overrides_with = "exclusive"
    )]
    pub exclusive: Option<Exclusive>,
    /// Submit even if the registered nodes could never run it; it then waits until other nodes register
    #[arg(long)]
    pub wait_for_nodes: bool,
    /// Share the nodes: take this many cores of each [default: in proportion to --mem or --gpus]
    #[arg(long, aliases = ["cpus", "cpu-cores"], value_name = "N", overrides_with = "cores", value_parser = clap::value_parser!(u32).range(1..))]
    pub cores: Option<u32>,
    /// Share the nodes: take this much memory of each, with a unit, such as 512M or 16G; 0: all memory, of whole nodes
    /// [default: in proportion to --cores or --gpus]
    #[arg(long, alias = "memory", value_name = "SIZE", overrides_with = "mem", value_parser = crate::memory::parse_or_all)]
    pub mem: Option<u64>,
    /// A share of each node: this much memory in GiB
    #[arg(long, hide = true, value_name = "N", conflicts_with = "mem", value_parser = clap::value_parser!(u64).range(1..))]
    pub memory_gb: Option<u64>,
    /// Share the nodes: take this many GPUs of each [default: none]
    #[arg(long, aliases = ["gpus-per-node", "gpu-count"], value_name = "N", overrides_with = "gpus", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus: Option<u32>,
    /// What each node must have, separated by commas: nvme_scratch, gpu, gpu_type=GH200, core_count>=32, socket_count>=2,
    /// gpu_count=4, memory_gb>=512, require_unified_memory, allow_cxl_memory, or a feature that the site defines; or what is preferred:
    /// prefer_same_numa, prefer_local_memory. Of features also a|b and (a|b)&c; [a|b]: all nodes have the same one;
    /// a*2&b*4: 2 nodes with a and 4 with b
    #[arg(short = 'C', long, alias = "constraints", value_name = "LIST")]
    pub constraint: Vec<String>,
    /// Of how many topology groups (parts of the network) the nodes may be: any; tight (as few as the cluster's nodes
    /// allow: it waits for nodes of one group, or, if none is large enough, of as few as possible); or a number (at most
    /// so many). Or contiguous: nodes that follow each other by their names [default: any]
    #[arg(long, value_name = "HOW", overrides_with = "topology", value_parser = parse_topology)]
    pub topology: Option<Topology>,
    /// Implied by the amounts above; alone it is refused
    #[arg(long, hide = true)]
    pub shared: bool,
    /// Ranks on each node [default: 1]
    #[arg(long, alias = "ntasks-per-node", value_name = "N", overrides_with = "tasks_per_node", value_parser = clap::value_parser!(u32).range(1..))]
    pub tasks_per_node: Option<u32>,
    /// How long it may run: 90 (minutes), 90s, 30m, 24h, 1h30m, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS [default:
    /// 1h; required for a session]
    #[arg(short = 't', long, visible_alias = "time", value_name = "TIME", overrides_with = "walltime", value_parser = parse_walltime)]
    pub walltime: Option<Duration>,
    /// Send SIGNAL this many seconds before its walltime ends: to the ranks, or with B: to the script alone. Of a script
    /// without ranks nothing gets it unless B: is given [default SECONDS: 60]
    #[arg(long, value_name = "[B:]SIGNAL[@SECONDS]", overrides_with = "signal")]
    pub signal: Option<EndWarning>,
    /// Run it as a service, without a walltime: until it ends, is cancelled, or fails its liveness probe
    #[arg(long)]
    pub service: bool,
    /// A SquashFS image to run in, mounted at /user-environment: PATH[@sha256:DIGEST]
    #[arg(long, value_name = "PATH", overrides_with = "uenv")]
    pub uenv: Option<String>,
    /// The directory to run in; a relative path starts at the current directory [default: the current directory]
    #[arg(short = 'D', long, value_name = "DIR", overrides_with = "chdir")]
    pub chdir: Option<String>,
    /// Set a variable for the program; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_assignment)]
    pub env: Vec<(String, String)>,
    /// For MPI programs that close inherited files: offer PMI on a port of the loopback interface, to the launch's
    /// processes alone
    #[arg(long)]
    pub pmi_port: bool,
    /// How the ranks of an MPI program find each other [default: auto]
    #[arg(long, alias = "mpi", value_name = "HOW", ignore_case = true, overrides_with = "pmi")]
    pub pmi: Option<Wireup>,
    /// Which of your environment variables the program gets [default: all]
    #[arg(long, value_name = "WHAT", ignore_case = true, overrides_with = "export")]
    pub export: Option<Export>,
    /// A name for people [default: the name of the script or the program]
    #[arg(short = 'J', long, alias = "job-name", value_name = "NAME", overrides_with = "name")]
    pub name: Option<String>,
    /// A label for people, by which `lattice status --tag` finds it; may be given more than once, and with commas
    #[arg(long = "tag", visible_alias = "tags", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_tag)]
    pub tags: Vec<(String, String)>,
    /// When it is put back into the queue instead of ending as Failed; --requeue without WHEN: on_node_failure
    /// [default: on_node_failure; for a --service or --reactive: always; for a launch or session: never]
    #[arg(
        long,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on_node_failure",
        overrides_with = "requeue"
    )]
    pub requeue: Option<Requeue>,
    /// How many times it may be requeued [default: 3]
    #[arg(long, alias = "max_requeues", value_name = "N", overrides_with = "max_requeues", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub max_requeues: Option<u32>,
    /// Begin only when other allocations are as they must be: ID or ID:CONDITION, separated by commas. The condition is
    /// success, failure, any (its end), after (its beginning), after+10m (10 minutes later), mutex (it has no nodes: the
    /// two never run at the same time) or corresponding (of two task groups: each task waits for the success of that with
    /// the same index). If one can never be met, this allocation ends as Cancelled. singleton: when all that you submitted
    /// before under the same name is gone [default CONDITION: success]
    #[arg(long, alias = "depends_on", value_name = "ID[:CONDITION]", value_delimiter = ',', value_parser = parse_dependency)]
    pub depends_on: Vec<v1::Dependency>,
    /// What it does on a node that is cut off from the cluster [default: continue]
    #[arg(long, alias = "on_isolation", value_name = "WHAT", overrides_with = "on_isolation")]
    pub on_isolation: Option<OnIsolation>,
    /// The work can save its state, and is asked to do so by a signal (signal), through shared memory (shmem), or in a
    /// call (grpc). It saves into $LATTICE_CHECKPOINT_DIR; when it runs again, it finds its files in
    /// $LATTICE_RESTORE_FROM [default: none]
    #[arg(long, value_name = "HOW", overrides_with = "checkpoint")]
    pub checkpoint: Option<String>,
    /// The signal that asks the work to save: any that a program can catch, such as USR2, RTMIN+3 or 37. It goes to all
    /// processes that catch it; with the prefix "group:" to the process groups of the script and the ranks, with
    /// "ranks:" to the ranks only [default: SIGUSR1]
    #[arg(long, value_name = "[WHOM:]SIGNAL", overrides_with = "checkpoint_signal")]
    pub checkpoint_signal: Option<String>,
    /// With --checkpoint=grpc: the work listens on this port of 127.0.0.1, and the agent of its node calls it [default:
    /// the work calls the agent]
    #[arg(long, value_name = "PORT", overrides_with = "checkpoint_port", value_parser = clap::value_parser!(u16).range(1..))]
    pub checkpoint_port: Option<u16>,
    /// When the work is asked to save automatically: "auto" (when that is worth more than it costs), or an interval
    /// such as 30m (a bare number is seconds) [default: only before its walltime ends]
    #[arg(long, alias = "checkpoint_every", value_name = "WHEN", overrides_with = "checkpoint_every")]
    pub checkpoint_every: Option<CheckpointEvery>,
    /// The queue (vCluster) that it waits in [default: LATTICE_VCLUSTER, else vcluster of config.yaml, else default]
    #[arg(long, value_name = "NAME", overrides_with = "vcluster")]
    pub vcluster: Option<String>,
    /// The tenant that it is accounted to [default: LATTICE_TENANT, else tenant of config.yaml, else none]
    #[arg(long, value_name = "NAME", overrides_with = "tenant")]
    pub tenant: Option<String>,
    /// The project that it belongs to [default: none]
    #[arg(long, value_name = "NAME", overrides_with = "project")]
    pub project: Option<String>,
    /// How hard it is to preempt: 0 (the first to be preempted) to 10 (only you may preempt it); below 5,
    /// other work is also served first [default: 5]
    #[arg(long, value_name = "CLASS", overrides_with = "preemption_class", value_parser = clap::value_parser!(u32).range(0..=10))]
    pub preemption_class: Option<u32>,
    /// Only you may preempt it: the same as --preemption-class=10
    #[arg(long, conflicts_with = "preemption_class")]
    pub no_preempt: bool,
    #[command(flatten)]
    pub amounts: AmountFlags,
    #[command(flatten)]
    pub layout: LayoutFlags,
    #[command(flatten)]
    pub binding: BindingFlags,
    #[command(flatten)]
    pub data: DataFlags,
    #[command(flatten)]
    pub network: NetworkFlags,
    #[command(flatten)]
    pub start: StartFlags,
    #[command(flatten)]
    pub unbuilt: UnbuiltFlags,
}

impl SubmitFlags {
    /// Merges two sets of options: a value of `self` wins over one of `under`. The variables of both are set, those of
    /// `self` last.
    pub fn merge_over(self, mut under: Self) -> Self {
        // If the two disagree whether nodes are whole or shared, `self` decides.
        let of_under = under.exclusive.filter(|under| *under == Exclusive::User || self.first_share_option().is_none());
        let exclusive = self.exclusive.or(of_under);
        // `#SBATCH --ntasks-per-gpu=1` means `--gpus-per-task=1` too, which ends with it.
        let has_other_ranks = self.exclusive == Some(Exclusive::Nodes)
            || self.ranks.is_some()
            || self.tasks_per_node.is_some()
            || self.amounts.tasks_per_gpu.is_some_and(|ranks| ranks != 1);
        if has_other_ranks && under.amounts.tasks_per_gpu == Some(1) {
            under.binding.gpus_per_task = None;
        }
        if self.exclusive == Some(Exclusive::Nodes) {
            (under.cores, under.mem, under.memory_gb, under.gpus) = (None, None, None, None);
            under.amounts = AmountFlags::default();
        }
        // `#SBATCH -n 8` means it, and `lattice submit -N 2` says otherwise.
        under.layout.spread &= self.first_beside_spread().is_none();
        // Options that say the same in several ways: any of `self` wins over all of `under`.
        if self.mem.is_some() || self.memory_gb.is_some() || self.amounts.has_memory() {
            (under.mem, under.memory_gb) = (None, None);
            under.amounts.remove_memory();
        }
        if self.cores.is_some() || self.amounts.cpus_per_gpu.is_some() {
            (under.cores, under.amounts.cpus_per_gpu) = (None, None);
        }
        if self.gpus.is_some() || self.amounts.gpus_total.is_some() {
            (under.gpus, under.amounts.gpus_total) = (None, None);
        }
        if self.ranks.is_some() || self.tasks_per_node.is_some() {
            under.amounts.tasks_per_gpu = None;
        }
        if self.amounts.tasks_per_gpu.is_some() {
            (under.ranks, under.tasks_per_node) = (None, None);
        }
        Self {
            nodes: self.nodes.or(under.nodes),
            ranks: self.ranks.or(under.ranks),
            nodelist: self.nodelist.or(under.nodelist),
            exclude: self.exclude.or(under.exclude),
            exclusive,
            wait_for_nodes: self.wait_for_nodes || under.wait_for_nodes,
            cores: self.cores.or(under.cores),
            mem: self.mem.or(under.mem),
            memory_gb: self.memory_gb.or(under.memory_gb),
            gpus: self.gpus.or(under.gpus),
            constraint: [under.constraint, self.constraint].concat(),
            topology: self.topology.or(under.topology),
            shared: self.shared || under.shared,
            tasks_per_node: self.tasks_per_node.or(under.tasks_per_node),
            // `--walltime` and `--service` exclude each other: `self` decides.
            walltime: self.walltime.or(if self.service { None } else { under.walltime }),
            signal: self.signal.or(under.signal),
            service: self.service || (under.service && self.walltime.is_none()),
            uenv: self.uenv.or(under.uenv),
            chdir: self.chdir.or(under.chdir),
            env: [under.env, self.env].concat(),
            pmi_port: self.pmi_port || under.pmi_port,
            pmi: self.pmi.or(under.pmi),
            export: self.export.or(under.export),
            name: self.name.or(under.name),
            tags: merged_tags(under.tags, self.tags),
            requeue: self.requeue.or(under.requeue),
            max_requeues: self.max_requeues.or(under.max_requeues),
            depends_on: [under.depends_on, self.depends_on].concat(),
            on_isolation: self.on_isolation.or(under.on_isolation),
            checkpoint: self.checkpoint.or(under.checkpoint),
            checkpoint_signal: self.checkpoint_signal.or(under.checkpoint_signal),
            checkpoint_port: self.checkpoint_port.or(under.checkpoint_port),
            checkpoint_every: self.checkpoint_every.or(under.checkpoint_every),
            vcluster: self.vcluster.or(under.vcluster),
            tenant: self.tenant.or(under.tenant),
            project: self.project.or(under.project),
            // Two options set the preemption class: either of `self` wins over both of `under`.
            preemption_class: self.preemption_class.or(if self.no_preempt { None } else { under.preemption_class }),
            no_preempt: self.no_preempt || (under.no_preempt && self.preemption_class.is_none()),
            amounts: self.amounts.merge_over(under.amounts),
            layout: self.layout.merge_over(under.layout),
            binding: self.binding.merge_over(under.binding),
            data: self.data.merge_over(under.data),
            network: self.network.merge_over(under.network),
            start: self.start.merge_over(under.start),
            unbuilt: self.unbuilt.merge_over(under.unbuilt),
        }
    }

    /// The working directory of the program, if this process runs in `here`.
    pub fn working_dir(&self, here: &Path) -> PathBuf {
        self.chdir.as_ref().map_or_else(|| here.to_owned(), |dir| here.join(dir))
    }

    /// The first option that requests a share of each node.
    pub fn first_share_option(&self) -> Option<&'static str> {
        let given = [
            ("--cores", self.cores.is_some()),
            // 0 asks for whole nodes.
            ("--mem", self.mem.is_some_and(|bytes| bytes > 0) || self.memory_gb.is_some()),
            ("--gpus", self.gpus.is_some()),
            ("--shared", self.shared),
        ];
        given.into_iter().find(|(_, set)| *set).map(|(flag, _)| flag).or_else(|| self.amounts.first_given())
    }

    /// The first option that says how many nodes there are, or what each has: ranks are not spread beside it.
    pub(crate) fn first_beside_spread(&self) -> Option<&'static str> {
        let given = [
            ("--nodes", self.nodes.is_some()),
            ("--nodelist", self.nodelist.is_some()),
            ("--tasks-per-node", self.tasks_per_node.is_some()),
            ("--distribution=plane", self.layout.plane().is_some()),
            ("--cores", self.cores.is_some()),
            ("--gpus-total", self.amounts.gpus_total.is_some()),
            ("--mem-per-gpu", self.amounts.mem_per_gpu.is_some()),
            ("--cpus-per-gpu", self.amounts.cpus_per_gpu.is_some()),
            ("--tasks-per-gpu", self.amounts.tasks_per_gpu.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// The variables that these options set. `pmi`: the wire-up of ranks if no option chooses one.
    pub fn variables(&self, pmi: Option<launch::Pmi>) -> impl Iterator<Item = (String, String)> {
        let given = self.pmi.map(Wireup::to_model).filter(|given| *given != launch::Pmi::Auto);
        let port = self.pmi_port.then(|| (PMI_PORT_VARIABLE.to_owned(), PMI_PORT_ASKED.to_owned()));
        let asked = self.env.iter().any(|(name, _)| name == PMI_VARIABLE);
        let pmi = given.or(pmi.filter(|_| !asked)).map(|pmi| (PMI_VARIABLE.to_owned(), pmi.name().to_owned()));
        self.env.iter().cloned().chain(port).chain(pmi)
    }

    /// The checkpoint options, for the server to check.
    pub fn checkpoint_message(&self) -> Option<v1::Checkpoint> {
        let signal = self.checkpoint_signal.clone().unwrap_or_default();
        let given = self.checkpoint.is_some()
            || self.checkpoint_signal.is_some()
            || self.checkpoint_port.is_some()
            || self.checkpoint_every.is_some();
        // `--checkpoint-signal` or `--checkpoint-port` alone implies "signal". An interval is sent as "auto", because an
        // agent that does not know intervals refuses that instead of ignoring the interval.
        let strategy = match (self.checkpoint.as_deref(), self.checkpoint_every) {
            (None | Some("signal"), Some(_)) => "auto",
            (None, None) => "signal",
            (Some(mode), _) => mode,
        };
        given.then(|| v1::Checkpoint {
            strategy: strategy.to_owned(),
            port: self.checkpoint_port.unwrap_or(0).into(),
            signal,
            auto: self.checkpoint_every == Some(CheckpointEvery::Auto) || self.checkpoint.as_deref() == Some("auto"),
            every_ms: match self.checkpoint_every {
                Some(CheckpointEvery::Time(time)) => millis(time),
                Some(CheckpointEvery::Auto) | None => 0,
            },
        })
    }

    /// The preemption class, if one was given.
    pub fn given_preemption_class(&self) -> Option<u32> {
        if self.no_preempt { Some(CLASS_MAX.into()) } else { self.preemption_class }
    }

    /// The features that its nodes must have.
    pub fn constraints(&self) -> impl Iterator<Item = &str> {
        let pmix = (self.pmi == Some(Wireup::Pmix)).then_some(PMIX);
        self.constraint.iter().map(String::as_str).chain(pmix)
    }

    /// The first option that belongs to an allocation and has no meaning for a launch inside an existing one.
    pub fn first_allocation_option(&self) -> Option<&'static str> {
        let given = [
            ("--mem", self.mem.is_some()),
            ("--exclude", self.exclude.is_some()),
            ("--constraint", !self.constraint.is_empty()),
            ("--topology", self.topology.is_some()),
            ("--exclusive", self.exclusive.is_some()),
            ("--wait-for-nodes", self.wait_for_nodes),
            ("--walltime", self.walltime.is_some()),
            ("--signal", self.signal.is_some()),
            ("--service", self.service),
            ("--uenv", self.uenv.is_some()),
            ("--name", self.name.is_some()),
            ("--tag", !self.tags.is_empty()),
            ("--requeue", self.requeue.is_some()),
            ("--max-requeues", self.max_requeues.is_some()),
            ("--depends-on", !self.depends_on.is_empty()),
            ("--on-isolation", self.on_isolation.is_some()),
            ("--checkpoint", self.checkpoint.is_some()),
            ("--checkpoint-signal", self.checkpoint_signal.is_some()),
            ("--checkpoint-port", self.checkpoint_port.is_some()),
            ("--checkpoint-every", self.checkpoint_every.is_some()),
            ("--vcluster", self.vcluster.is_some()),
            ("--tenant", self.tenant.is_some()),
            ("--project", self.project.is_some()),
            ("--preemption-class", self.preemption_class.is_some()),
            ("--no-preempt", self.no_preempt),
            ("--spread", self.layout.spread),
        ];
        let given = given.into_iter().find(|(_, set)| *set).map(|(flag, _)| flag);
        self.first_share_option()
            .or(given)
            .or_else(|| self.data.first_given())
            .or_else(|| self.network.first_given())
            .or_else(|| self.start.first_given())
            .or_else(|| self.unbuilt.first_given())
    }
}

/// A number of nodes such as `4`, or a range such as `2-4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCount {
    /// At least this many.
    pub least: u32,
    /// At most this many, if a range was given.
    pub most: Option<u32>,
}

/// The text is not a number of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NodeCountError {
    #[error("{0:?} is not a number of nodes such as 4")]
    Number(String),
    #[error("at least 1 node is needed")]
    None,
    #[error("in {0:?} the second number is smaller than the first")]
    Order(String),
}

impl FromStr for NodeCount {
    type Err = NodeCountError;

    fn from_str(text: &str) -> Result<Self, NodeCountError> {
        let number = |part: &str| part.parse::<u32>().map_err(|_| NodeCountError::Number(text.to_owned()));
        let (least, most) = match text.split_once("..").or_else(|| text.split_once('-')) {
            Some((least, most)) => (number(least)?, Some(number(most)?)),
            None => (number(text)?, None),
        };
        if least == 0 {
            return Err(NodeCountError::None);
        }
        if most.is_some_and(|most| most < least) {
            return Err(NodeCountError::Order(text.to_owned()));
        }
        Ok(Self { least, most })
    }
}

/// Parses `--topology`.
fn parse_topology(text: &str) -> Result<Topology, TopologyError> {
    Topology::from_name(&text.to_ascii_lowercase()).ok_or_else(|| TopologyError(text.to_owned()))
}

/// The text is not a choice of topology groups.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not any, tight, contiguous, or a number of groups such as 2")]
struct TopologyError(String);

/// `--exclusive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Exclusive {
    /// Whole nodes
    Nodes,
    /// Shares of nodes, and only the same user's work beside them
    User,
}

/// `--export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Export {
    /// All of them, except those of MPI launchers
    All,
    /// Only those that --env sets
    None,
}

/// `--pmi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wireup {
    /// By PMI-1 or PMI-2, whichever the program speaks
    #[value(aliases = ["pmi1", "pmi2"])]
    Pmi,
    /// By PMIx, which Open MPI speaks, on nodes that have its library
    Pmix,
    /// By PMI, and also by PMIx on nodes that have it if the program may need it; a program linked with Open MPI fails
    /// on other nodes
    Auto,
    /// Not at all: for programs without MPI
    None,
}

impl Wireup {
    fn to_model(self) -> launch::Pmi {
        match self {
            Self::Pmi => launch::Pmi::Pmi,
            Self::Pmix => launch::Pmi::Pmix,
            Self::Auto => launch::Pmi::Auto,
            Self::None => launch::Pmi::None,
        }
    }
}

/// `--requeue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Requeue {
    /// Never
    Never,
    /// When one of its nodes is lost
    #[value(name = "on_node_failure", alias = "on-node-failure")]
    OnNodeFailure,
    /// After any failure
    Always,
}

impl Requeue {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::OnNodeFailure => "on_node_failure",
            Self::Always => "always",
        }
    }
}

/// `--on-isolation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnIsolation {
    /// It continues there, and is started elsewhere only on evidence that it has ended
    Continue,
    /// It is ended when its run lease expires, and may then start elsewhere: it never runs twice
    Stop,
}

impl OnIsolation {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Stop => "stop",
        }
    }
}

/// When work is asked for a checkpoint without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointEvery {
    /// When that is worth more than it costs.
    Auto,
    /// At this interval.
    Time(Duration),
}

impl FromStr for CheckpointEvery {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        if text.eq_ignore_ascii_case("auto") { Ok(Self::Auto) } else { parse_positive(text, BareNumber::Seconds).map(Self::Time) }
    }
}

/// Why a walltime or an interval is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TimeError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("more than 0 is needed")]
    Zero,
}

/// Parses a walltime. As in Slurm, a number without a unit is minutes.
pub(crate) fn parse_walltime(text: &str) -> Result<Duration, TimeError> {
    parse_positive(text, BareNumber::Minutes)
}

/// Parses a duration that is not 0.
pub(crate) fn parse_positive(text: &str, bare: BareNumber) -> Result<Duration, TimeError> {
    let time = duration::parse(text, bare)?;
    if time.is_zero() { Err(TimeError::Zero) } else { Ok(time) }
}

/// The text does not set a variable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write NAME=VALUE")]
struct AssignmentError;

fn parse_assignment(text: &str) -> Result<(String, String), AssignmentError> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(AssignmentError),
    }
}

/// The text is no tag.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write NAME=VALUE, such as campaign=42")]
pub(crate) struct TagError;

/// Parses a tag and its value.
pub(crate) fn parse_tag(text: &str) -> Result<(String, String), TagError> {
    parse_tag_change(text).and_then(|(name, value)| if value.is_empty() { Err(TagError) } else { Ok((name, value)) })
}

/// Tags of two sets of options. A value of `over` replaces one of `under`.
fn merged_tags(mut under: Vec<(String, String)>, over: Vec<(String, String)>) -> Vec<(String, String)> {
    let names: BTreeSet<&str> = over.iter().map(|(name, _)| name.as_str()).collect();
    under.retain(|(name, _)| !names.contains(name.as_str()));
    [under, over].concat()
}

/// The tags that one set of options gives.
///
/// # Errors
/// A tag is given twice.
pub fn tags_once(tags: &[(String, String)]) -> Result<BTreeMap<String, String>, UsageError> {
    let mut known = BTreeMap::new();
    for (name, value) in tags {
        if let Some(first) = known.insert(name.clone(), value.clone()) {
            let shown = |value: &str| if value.is_empty() { "nothing".to_owned() } else { value.to_owned() };
            let what = format!("--tag {name} is given twice: {} and {}", shown(&first), shown(value));
            return Err(UsageError::new(what).with_hint("give one value"));
        }
    }
    Ok(known)
}

/// Parses a tag and its new value; an empty one removes the tag.
pub(crate) fn parse_tag_change(text: &str) -> Result<(String, String), TagError> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(TagError),
    }
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

    fn flags(line: &str) -> SubmitFlags {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap().flags
    }

    #[test]
    fn durations_are_read_in_every_form() {
        for (text, seconds) in [
            ("90", 5400),
            ("90s", 90),
            ("10m", 600),
            ("2h", 7200),
            ("1h30m", 5400),
            ("90:30", 5430),
            ("72:00:00", 259_200),
            ("1-0", 86_400),
            ("1-2:30", 95_400),
            ("1-0:0:0", 86_400),
        ] {
            for flag in ["--walltime", "--time", "-t"] {
                assert_eq!(flags(&format!("{flag} {text}")).walltime, Some(Duration::from_secs(seconds)), "{flag} {text}");
            }
        }
    }

    #[test]
    fn when_it_is_asked_says_that_it_can_be() {
        let asked = |line: &str| flags(line).checkpoint_message();
        let every = |auto, every_ms| Some(v1::Checkpoint { strategy: "auto".to_owned(), auto, every_ms, ..Default::default() });
        assert_eq!(asked("--checkpoint-every auto"), every(true, 0));
        assert_eq!(asked("--checkpoint_every=30m"), every(false, 1_800_000));
        assert_eq!(asked("--checkpoint=auto"), every(true, 0));
        assert_eq!(asked("--checkpoint=signal --checkpoint-every=30m"), every(false, 1_800_000));
        // Both options: the server refuses it.
        assert_eq!(asked("--checkpoint=auto --checkpoint-every=30m"), every(true, 1_800_000));
        assert_eq!(asked("--checkpoint=signal").unwrap().strategy, "signal");
        assert_eq!(asked("--checkpoint=none --checkpoint-every=auto").unwrap().strategy, "none");
        assert_eq!(asked("--nodes=1"), None);
        assert!(Line::try_parse_from(["x", "--checkpoint-every", "0"]).is_err());
        assert!(Line::try_parse_from(["x", "--checkpoint-every", "often"]).is_err());
    }

    #[test]
    fn the_last_of_a_kind_wins_and_variables_add_up() {
        let given = flags("--nodes=1 --nodes=2 --env A=1 --env A=2 --env B== --requeue");
        assert_eq!(given.nodes, Some(NodeCount { least: 2, most: None }));
        assert_eq!(given.requeue, Some(Requeue::OnNodeFailure));
        assert_eq!(given.env, [("A".into(), "1".into()), ("A".into(), "2".into()), ("B".into(), "=".into())]);
        let both = flags("--nodes=3 --env C=3").merge_over(flags("--nodes=1 --name=n --env C=1 --topology=TIGHT"));
        assert_eq!((both.nodes.map(|n| n.least), both.name.as_deref()), (Some(3), Some("n")));
        assert_eq!(both.env.last().map(|(_, value)| value.as_str()), Some("3"));
        assert_eq!((both.topology, both.first_allocation_option()), (Some(Topology::Tight), Some("--topology")));
        assert_eq!(flags("--topology=2").topology, Some(Topology::AtMost(2)));
        assert!(Line::try_parse_from(["x", "--topology=0"]).is_err() && Line::try_parse_from(["x", "--topology=near"]).is_err());
        let both = flags("--mpi=PMIX --constraint=gpu").merge_over(flags("--pmi=pmi2"));
        assert_eq!(both.variables(None).collect::<Vec<_>>(), [("LATTICE_PMI".to_owned(), "pmix".to_owned())]);
        assert_eq!(both.constraints().collect::<Vec<_>>(), ["gpu", "pmix"]);
        let [one] = <[_; 1]>::try_from(flags("--pmi=pmi2").variables(Some(launch::Pmi::AutoPmix)).collect::<Vec<_>>()).unwrap();
        assert_eq!(one.1, "pmi");
        let found = |line| flags(line).variables(Some(launch::Pmi::AutoPmix)).last().map(|(_, value)| value);
        assert_eq!((found("").as_deref(), found("--pmi=auto").as_deref()), (Some("auto_pmix"), Some("auto_pmix")));
        assert_eq!(found("--env LATTICE_PMI=pmi").as_deref(), Some("pmi"));
        let of = |flags: SubmitFlags| (flags.service, flags.walltime.map(|time| time.as_secs()));
        assert_eq!(of(flags("--service").merge_over(flags("--walltime=60s"))), (true, None));
        assert_eq!(of(flags("--walltime=60s").merge_over(flags("--service"))), (false, Some(60)));
    }

    #[test]
    fn tags_add_up_and_have_values() {
        let tags = |flags: SubmitFlags| flags.tags.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
        assert_eq!(tags(flags("--tag=a=1,b=2 --tags c=x=y")), ["a=1", "b=2", "c=x=y"]);
        assert_eq!(tags(flags("--tag=a=2").merge_over(flags("--tag=a=1"))), ["a=2"], "the command line wins");
        assert_eq!(tags(flags("--tag=a=2").merge_over(flags("--tag=b=1,c=1"))), ["b=1", "c=1", "a=2"]);
        for bad in ["--tag=a", "--tag==1", "--tag=a="] {
            assert!(Line::try_parse_from(["x", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_tag_is_given_once() {
        let once = |line: &str| tags_once(&flags(line).tags);
        assert_eq!(once("--tag=a=1,b=1").unwrap().into_keys().collect::<Vec<_>>(), ["a", "b"]);
        for line in ["--tag a=1 --tag a=2", "--tags=a=1,a=2"] {
            let refused = once(line).unwrap_err();
            assert_eq!((refused.what.as_str(), refused.hint.as_deref()), ("--tag a is given twice: 1 and 2", Some("give one value")));
        }
        let change = ["a=1", "a="].map(|text| parse_tag_change(text).unwrap());
        assert_eq!(tags_once(&change).unwrap_err().what, "--tag a is given twice: 1 and nothing");
    }

    #[test]
    fn dependencies_add_up() {
        let named = |flags: SubmitFlags| flags.depends_on.into_iter().map(|d| format!("{}:{}", d.r#ref, d.condition)).collect::<Vec<_>>();
        assert_eq!(named(flags("--depends-on=1f0c,2f0c:any --depends-on 3f0c:mutex")), ["1f0c:success", "2f0c:any", "3f0c:mutex"]);
        let both = flags("--depends-on=1f0c").merge_over(flags("--depends_on=2f0c:failure"));
        assert_eq!(both.first_allocation_option(), Some("--depends-on"));
        assert_eq!(named(both), ["2f0c:failure", "1f0c:success"]);
        assert_eq!(named(flags("--depends-on=singleton,1f0c:after")), [":singleton", "1f0c:after"]);
        assert_eq!(named(flags("--depends-on=1f0c:after+10,2f0c:after+3s")), ["1f0c:after+10m", "2f0c:after+3s"]);
        assert!(Line::try_parse_from(["x", "--depends-on=1f0c:ok"]).is_err());
    }

    #[test]
    fn a_share_is_asked_for_under_every_documented_name() {
        for line in
            ["--cores 4 --mem 16G --gpus 1", "--cpus=4 --memory=16GiB --gpus-per-node=1", "--cpu-cores=4 --memory-gb=16 --gpu-count=1"]
        {
            let given = flags(line);
            let bytes = given.mem.or(given.memory_gb.map(|gb| gb << 30));
            assert_eq!((given.cores, bytes, given.gpus), (Some(4), Some(16 << 30), Some(1)), "{line}");
            assert_eq!(given.first_allocation_option(), Some("--cores"));
        }
        let both = flags("--memory-gb=1").merge_over(flags("--mem=1M --cores=2"));
        assert_eq!((both.mem, both.memory_gb, both.cores), (None, Some(1), Some(2)));
        let whole = flags("--exclusive").merge_over(flags("--mem=1M --cores=2"));
        assert_eq!((whole.exclusive, whole.first_share_option()), (Some(Exclusive::Nodes), None));
        let share = flags("--cores=2").merge_over(flags("--exclusive"));
        assert_eq!((share.exclusive, share.first_share_option()), (None, Some("--cores")));
        let of_user = flags("--cores=2").merge_over(flags("--exclusive=user"));
        assert_eq!((of_user.exclusive, of_user.first_share_option()), (Some(Exclusive::User), Some("--cores")));
        let spread = |over: &str| flags(over).merge_over(flags("--ntasks=8 --spread")).layout.spread;
        assert_eq!(["--nodes=2", "--cores=4", "--ntasks=4", "--mem=1M"].map(spread), [false, false, true, true]);
        let message = Line::try_parse_from(["x", "--mem", "16"]).err().unwrap().to_string();
        assert!(message.contains("16M") && message.contains("16G"), "{message}");
    }

    #[test]
    fn a_number_of_nodes_may_be_a_range() {
        assert_eq!("2-4".parse(), Ok(NodeCount { least: 2, most: Some(4) }));
        assert_eq!("2..4".parse(), Ok(NodeCount { least: 2, most: Some(4) }));
        for bad in ["0", "-1", "4-2", "x", "", "1-", "99999999999"] {
            assert!(bad.parse::<NodeCount>().is_err(), "{bad}");
        }
        assert_eq!("4-2".parse::<NodeCount>(), Err(NodeCountError::Order("4-2".to_owned())));
    }
}
