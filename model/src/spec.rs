//! The specification of an allocation: what a user requests. The protobuf conversion checks it and
//! refuses fields that are not implemented yet, by name.

mod node_choice;
mod scaling;
mod spread;
mod tasks;
mod timing;

use crate::binding::RankBinding;
use crate::checkpoint::{CheckpointMethod, CheckpointPolicy, SignalTo};
use crate::conformance::Conformance;
use crate::constraint::{self, Constraints};
use crate::count::counted;
use crate::data::Data;
use crate::dependency::{DEPENDENCIES_MAX, Dependency};
use crate::end_warning::EndWarning;
use crate::feature_choice::FeatureChoice;
use crate::ids::NodeId;
use crate::input::STDIN_VARIABLE;
use crate::launch::TerminalSize;
use crate::layout::{Distribution, EntryLaunch, TASKS_PER_NODE_MAX, lay_out};
use crate::mail::Mail;
use crate::network::Connectivity;
use crate::node::Node;
use crate::node_ranks::NodeRanks;
use crate::output_files::OutputFiles;
use crate::preemption::{CLASS_MAX, UNSAVED_CLASS_MAX};
use crate::probe::LivenessProbe;
use crate::resources::{MemoryUnit, Resources};
use crate::scaling::Scaling;
use crate::spec_error::SpecError;
use crate::task_group::{TaskGroup, task_walltime};
use crate::timing::Timing;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Largest size of a committed specification, in bytes.
pub const SPEC_BYTES_MAX: usize = 64 * 1024;
/// Largest size of a submission's script, in bytes.
pub const SCRIPT_BYTES_MAX: usize = 1024 * 1024;
/// Largest number of nodes for one allocation.
pub const NODES_MAX: u32 = 100_000;
// A claim's nodes are written as a hostlist, which must be readable.
const _: () = assert!(NODES_MAX as usize <= crate::hostlist::NAMES_MAX);
/// Largest number of requeues for one allocation.
pub const REQUEUES_MAX: u32 = 100;
/// Largest size of the part of a specification that says how it scales, in bytes: the text of a metric and some numbers.
const SCALING_BYTES_MAX: usize = 1024;
/// The preemption class of work that specifies none.
pub const PREEMPTION_CLASS_DEFAULT: u8 = 5;
/// Largest number of tags of one allocation.
pub const TAGS_MAX: usize = 64;
/// Largest size of a tag's name, and of its value, in bytes.
pub const TAG_BYTES_MAX: usize = 128;
/// The longest walltime: 365 days.
pub const WALLTIME_MAX: Duration = Duration::from_secs(365 * 86_400);
/// Largest length of the name of a machine, in bytes: of a name in DNS.
pub const HOST_BYTES_MAX: usize = 253;

/// A request to the cluster: how many resources, for how long, and what to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationSpec {
    /// A name for people; by default that of the script or command.
    pub name: String,
    /// The tenant to which the work is accounted.
    #[serde(default)]
    pub tenant: String,
    /// The project, a label.
    #[serde(default)]
    pub project: String,
    /// The vCluster (queue); empty: the default one.
    #[serde(default)]
    pub vcluster: String,
    /// User-defined labels.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Number of nodes, at least 1.
    pub nodes: u32,
    /// The most nodes that it gets, if more than `nodes` are free when it begins. `None`: exactly `nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_max: Option<u32>,
    /// Set if its ranks are spread over the fewest nodes that hold them, of `nodes` to `nodes_max`: the part of `share`
    /// that is for each rank, or the cores of each rank on whole nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Resources>,
    /// Amount of each node; `None`: whole nodes. An amount of 0 is derived from the others; see
    /// [`share_of`].
    #[serde(default)]
    pub share: Option<Resources>,
    /// Of what the memory of `share` was given; for people and for Slurm's variables.
    #[serde(default, skip_serializing_if = "MemoryUnit::is_node")]
    pub memory_unit: MemoryUnit,
    /// How long it waits in its queue for nodes as `constraints.topology` asks; then it takes nodes of any groups. `None`:
    /// as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_wait: Option<Duration>,
    /// Whether its shares are on a node only with shares of the same user, beside what the share policy says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive_user: bool,
    /// Requirements for each node.
    #[serde(default)]
    pub constraints: Constraints,
    /// Ranks on each node for an inline command, and the default for launches; at least 1.
    pub tasks_per_node: u32,
    /// The default binding of ranks; a launch may choose another.
    #[serde(default)]
    pub binding: RankBinding,
    /// Further settings for the launch of an inline command.
    #[serde(default)]
    pub launch: EntryLaunch,
    /// How long it may run after all prologues have finished. `None`: a service, which ends by
    /// itself, because of its probe, or when it is cancelled.
    pub walltime: Option<Duration>,
    /// The program to run.
    pub entrypoint: Entrypoint,
    /// The software environment.
    #[serde(default)]
    pub uenv: Option<Box<Image>>,
    /// The working directory, absolute.
    pub working_dir: PathBuf,
    /// The submission directory, absolute, if it differs from the working directory.
    #[serde(default)]
    pub submit_dir: Option<PathBuf>,
    /// The name of the machine on which it was submitted, at most [`HOST_BYTES_MAX`]; empty: not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub submit_host: String,
    /// The environment, without wire-up variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What happens when one of its nodes is lost.
    #[serde(default)]
    pub requeue: RequeuePolicy,
    /// How many times it may be requeued, at most [`REQUEUES_MAX`].
    #[serde(default)]
    pub requeues_max: u32,
    /// Its preemption class, from 0 (preempted first) to 10.
    #[serde(default)]
    pub preemption_class: u8,
    /// File systems and scratch space.
    #[serde(default)]
    pub data: Data,
    /// How its health is checked; `None`: not at all.
    #[serde(default)]
    pub liveness_probe: Option<Box<LivenessProbe>>,
    /// The initial size of the terminal of a command's first rank; `None`: no terminal.
    #[serde(default)]
    pub pty: Option<TerminalSize>,
    /// Whether it is an interactive session; then it runs [`crate::session::HOLDER`].
    #[serde(default)]
    pub session: bool,
    /// Its network domain and exposed ports.
    #[serde(default)]
    pub connectivity: Connectivity,
    /// Whether its nodes are claimed for sensitive work.
    #[serde(default)]
    pub sensitive: bool,
    /// What happens to its work on a node that the quorum cannot reach any more.
    #[serde(default)]
    pub on_isolation: OnIsolation,
    /// How it is asked to save itself; `None`: it makes no checkpoints.
    #[serde(default)]
    pub checkpoint: Option<CheckpointPolicy>,
    /// Whether it is held at submission, until somebody resumes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// What must have become of other allocations before it gets nodes; at most
    /// [`DEPENDENCIES_MAX`], each allocation once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Dependency>,
    /// Whether it gets nodes only when all that its user submitted before under the same name is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub singleton: bool,
    /// Set if it is a task group: the entry point runs once for each task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Box<TaskGroup>>,
    /// Set if it is a scaled service: the entry point runs in each of its replicas, each on a node of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Box<Scaling>>,
    /// Files of the user's that its output is also written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_files: Option<Box<OutputFiles>>,
    /// When it may begin, and by when it must have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Box<Timing>>,
    /// A signal before the end of its walltime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_warning: Option<Box<EndWarning>>,
    /// Which of its events the site's mail hook reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mail: Option<Box<Mail>>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// How much later in its queue it is than equal work; a unit is a minute of waiting. Below 0: earlier, for operators
    /// alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nice: i32,
    /// The reservation on whose nodes it begins, within its window; see [`crate::reservation`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
}

/// The program of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entrypoint {
    /// A script that runs on the first node and starts ranks with `lattice launch`.
    Script {
        /// The script's text, shared between holders of the same script.
        text: Arc<str>,
        /// Its arguments.
        args: Vec<String>,
    },
    /// One launch of this program, with nodes × tasks-per-node ranks.
    Command {
        /// The program and its arguments; not empty.
        argv: Vec<String>,
    },
}

/// A SquashFS image in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Its absolute path, the same on every node.
    pub path: PathBuf,
    /// SHA-256 of its contents, 64 lower-case hexadecimal digits, recorded at submission.
    pub sha256: String,
}

/// When work is put back into the queue instead of failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequeuePolicy {
    /// Never.
    #[default]
    Never,
    /// When there is evidence that one of its nodes lost it.
    OnNodeFailure,
    /// After any failure.
    Always,
}

/// What happens to work on a node that is cut off from the quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnIsolation {
    /// It continues. It is started elsewhere only on evidence that it is gone from that node.
    #[default]
    Continue,
    /// Its shim ends it when its run lease lapses ([`crate::run_lease`]); then it may be started
    /// elsewhere.
    Stop,
}

impl OnIsolation {
    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Stop => "stop",
        }
    }
}

/// Refuses a walltime of a task of which a lane could not have several. It is no rule of every
/// specification: that of a lane has its own walltime beside the tasks.
///
/// # Errors
/// [`SpecError::Invalid`].
pub fn check_task_walltime(walltime: Option<Duration>) -> Result<(), SpecError> {
    let most = task_walltime(WALLTIME_MAX);
    if walltime.is_some_and(|walltime| walltime > most) {
        let why = format!("a task may have at most {} days", most.as_secs() / 86_400);
        return Err(invalid("walltime", why));
    }
    Ok(())
}

fn check_label(field: &'static str, label: &str) -> Result<(), SpecError> {
    if label.len() > 128 || label.chars().any(char::is_control) {
        return Err(invalid(field, "at most 128 bytes without control characters"));
    }
    Ok(())
}

/// Checks a project and tags: people change them in records of ended work, too.
///
/// # Errors
/// [`SpecError::Invalid`].
pub fn check_project_and_tags(project: &str, tags: &BTreeMap<String, String>) -> Result<(), SpecError> {
    check_label("project", project)?;
    if tags.len() > TAGS_MAX {
        return Err(invalid("tag", format!("{} tags given; at most {TAGS_MAX} are possible", tags.len())));
    }
    let is_text = |text: &String| text.len() <= TAG_BYTES_MAX && !text.chars().any(char::is_control);
    let bad = |(name, value): &(&String, &String)| name.is_empty() || name.contains('=') || !is_text(name) || !is_text(value);
    match tags.iter().find(bad) {
        Some((name, _)) => {
            let name: String = name.chars().take(40).collect();
            let why = format!("{name:?}: name and value have at most {TAG_BYTES_MAX} bytes without control characters, the name no =");
            Err(invalid("tag", why))
        }
        None => Ok(()),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

fn invalid(field: &'static str, why: impl Into<String>) -> SpecError {
    SpecError::Invalid { field, why: why.into() }
}

impl AllocationSpec {
    /// One whole node and one rank for a minute, with an empty environment and defaults otherwise.
    pub fn new(name: &str, entrypoint: Entrypoint, working_dir: &Path) -> Self {
        Self {
            name: name.to_owned(),
            tenant: String::new(),
            project: String::new(),
            vcluster: String::new(),
            tags: BTreeMap::new(),
            nodes: 1,
            nodes_max: None,
            spread: None,
            share: None,
            memory_unit: MemoryUnit::Node,
            topology_wait: None,
            exclusive_user: false,
            constraints: Constraints::default(),
            tasks_per_node: 1,
            binding: RankBinding::default(),
            launch: EntryLaunch::default(),
            walltime: Some(Duration::from_secs(60)),
            entrypoint,
            uenv: None,
            working_dir: working_dir.to_owned(),
            submit_dir: None,
            submit_host: String::new(),
            env: BTreeMap::new(),
            requeue: RequeuePolicy::Never,
            requeues_max: 0,
            preemption_class: PREEMPTION_CLASS_DEFAULT,
            data: Data::default(),
            liveness_probe: None,
            pty: None,
            session: false,
            connectivity: Connectivity::default(),
            sensitive: false,
            on_isolation: OnIsolation::Continue,
            checkpoint: None,
            hold: false,
            depends_on: Vec::new(),
            singleton: false,
            tasks: None,
            scaling: None,
            output_files: None,
            timing: None,
            end_warning: None,
            mail: None,
            comment: String::new(),
            nice: 0,
            reservation: None,
        }
    }

    /// The text of its script; `None`: it runs a command.
    pub fn script(&self) -> Option<&Arc<str>> {
        match &self.entrypoint {
            Entrypoint::Script { text, .. } => Some(text),
            Entrypoint::Command { .. } => None,
        }
    }

    /// Checks everything that does not depend on the state of the cluster.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.name.is_empty() || self.name.len() > 128 || self.name.chars().any(char::is_control) {
            return Err(invalid("name", "1 to 128 bytes without control characters"));
        }
        for (field, label) in [("tenant", &self.tenant), ("vcluster", &self.vcluster)] {
            check_label(field, label)?;
        }
        check_project_and_tags(&self.project, &self.tags)?;
        if self.nodes == 0 || self.nodes > NODES_MAX {
            return Err(invalid("nodes", format!("{} given; 1 to {NODES_MAX} are possible", self.nodes)));
        }
        self.validate_range()?;
        if self.share == Some(Resources::default()) {
            return Err(invalid("shared", "how much of each node? Say --cores, --mem or --gpus"));
        }
        if self.tasks_per_node == 0 || self.tasks_per_node > TASKS_PER_NODE_MAX {
            return Err(invalid("tasks-per-node", format!("{} given; 1 to {TASKS_PER_NODE_MAX} are possible", self.tasks_per_node)));
        }
        let gpus = self.binding.gpus_per_task.saturating_mul(self.tasks_per_node);
        if let Some(share) = self.share.filter(|s| s.gpus < gpus) {
            return Err(invalid(
                "gpus-per-task",
                format!("its tasks want {} of each node, and --gpus asks for {}", counted(gpus, "GPU"), share.gpus),
            ));
        }
        self.validate_launch()?;
        if self.walltime.is_some_and(|time| time.is_zero() || time > WALLTIME_MAX) {
            return Err(invalid("walltime", "more than 0 and at most 365 days"));
        }
        match &self.entrypoint {
            Entrypoint::Script { text, args } => {
                if text.len() > SCRIPT_BYTES_MAX {
                    return Err(invalid("script", format!("{} bytes; at most {SCRIPT_BYTES_MAX} are carried", text.len())));
                }
                if !text.starts_with("#!") {
                    return Err(invalid("script", "it must begin with an interpreter line such as #!/bin/bash"));
                }
                without_nul("script arguments", args)?;
                if self.pty.is_some() {
                    return Err(invalid("pty", "a script has no terminal, the launches in it may have: `lattice launch --pty`"));
                }
            }
            Entrypoint::Command { argv } => {
                if argv.first().is_none_or(String::is_empty) {
                    return Err(invalid("command", "a program is needed after --"));
                }
                without_nul("command", argv)?;
            }
        }
        if self.session && self.walltime.is_none() {
            return Err(invalid("walltime", "a session needs one: it would hold its nodes for ever"));
        }
        absolute("working directory", &self.working_dir)?;
        if let Some(dir) = &self.submit_dir {
            absolute("submit directory", dir)?;
        }
        if self.submit_host.len() > HOST_BYTES_MAX || self.submit_host.contains(char::is_control) {
            return Err(invalid("submit host", format!("a name has at most {HOST_BYTES_MAX} bytes, and no control characters")));
        }
        if let Some(image) = &self.uenv {
            image.validate()?;
        }
        for (key, value) in &self.env {
            if key.is_empty() || key.contains('=') || key.contains('\0') || value.contains('\0') {
                return Err(invalid("env", format!("{:?} cannot be an environment variable", key.chars().take(40).collect::<String>())));
            }
        }
        if self.requeues_max > REQUEUES_MAX {
            return Err(invalid("requeue", format!("at most {REQUEUES_MAX} requeues are possible")));
        }
        if self.preemption_class > 10 {
            return Err(invalid("preemption-class", format!("{} given; it must be 0 to 10", self.preemption_class)));
        }
        self.constraints.validate()?;
        if self.constraints.cxl_memory && self.share.is_some() {
            let why = "allow_cxl_memory is for whole nodes: leave it out, or --cores, --mem and --gpus";
            return Err(invalid("constraint", why));
        }
        self.validate_nodelist()?;
        self.validate_node_choice()?;
        self.validate_spread()?;
        self.validate_dependencies()?;
        self.validate_tasks()?;
        self.validate_scaling()?;
        self.validate_timing()?;
        self.data.validate()?;
        self.connectivity.validate()?;
        if let Some(probe) = &self.liveness_probe {
            probe.validate()?;
        }
        self.validate_output_files()?;
        if let Some(warning) = &self.end_warning {
            warning.validate(self.walltime)?;
            if warning.script_only && self.script().is_none() {
                return Err(invalid("signal", "B: is for the process of a script, and this is a command: leave B: out"));
            }
        }
        let bytes = self.bytes_without_script();
        if bytes > SPEC_BYTES_MAX {
            return Err(invalid(
                "env",
                format!(
                    "the specification has {bytes} bytes, at most {SPEC_BYTES_MAX} are committed: export less of the environment (--export NONE or --env)"
                ),
            ));
        }
        Ok(())
    }

    /// The most nodes that it may get.
    pub fn nodes_most(&self) -> u32 {
        self.nodes_max.unwrap_or(self.nodes)
    }

    /// The number of nodes that it asks for, for people: `1 node`, `2 to 8 nodes`.
    pub fn nodes_text(&self) -> String {
        match self.nodes_max {
            None => counted(self.nodes, "node"),
            Some(most) => format!("{} to {most} nodes", self.nodes),
        }
    }

    /// Whether a claim for it may have this number of nodes.
    pub fn may_have(&self, nodes: usize) -> bool {
        let is_form = || self.spread.is_none() || self.spread_counts().any(|count| count as usize == nodes);
        (self.nodes as usize..=self.nodes_most() as usize).contains(&nodes) && is_form()
    }

    /// Number of ranks of an inline command, and of a script's launch that does not specify it, on the
    /// fewest nodes that it may get.
    pub fn ranks_min(&self) -> u32 {
        self.ranks_on(self.nodes)
    }

    /// The same on this number of nodes.
    pub fn ranks_on(&self, nodes: u32) -> u32 {
        match self.launch.ranks {
            0 => nodes.saturating_mul(self.tasks_per_node),
            ranks => ranks,
        }
    }

    /// The distribution of ranks to these nodes for the launch of an inline command, and for a
    /// script's launch that does not specify it.
    pub fn usual_ranks(&self, nodes: &[NodeId]) -> Vec<NodeRanks> {
        let asked = &self.launch;
        // Fewer ranks than would fit are distributed evenly.
        let limit = (asked.ranks == 0 || asked.shape.distribution != Distribution::Block).then_some(self.tasks_per_node);
        let ranks = self.ranks_on(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        lay_out(nodes, ranks, limit, &asked.shape.distribution).unwrap_or_default()
    }

    fn validate_launch(&self) -> Result<(), SpecError> {
        let (shape, most) = (&self.launch.shape, self.nodes.saturating_mul(self.tasks_per_node));
        if self.launch.ranks > most {
            let (nodes, tasks) = (counted(self.nodes, "node"), counted(self.tasks_per_node, "task"));
            let why = format!("{} ranks do not fit: {nodes} × {tasks} per node = {most}", self.launch.ranks);
            return Err(invalid("ntasks", why));
        }
        if let Distribution::Explicit(_) = shape.distribution {
            return Err(invalid("nodelist", "its nodes are not known yet; launches inside the allocation may list them"));
        }
        if let Entrypoint::Script { .. } = self.entrypoint
            && !shape.programs.is_empty()
        {
            return Err(invalid("ntasks", "of a script: its launches say how many ranks each program has (`lattice launch -n`)"));
        }
        shape.validate(self.ranks_min()).map_err(|e| invalid("launch", e.to_string()))?;
        for program in &shape.programs {
            without_nul("command", &program.argv)?;
        }
        let cores = shape.cpus_per_task.saturating_mul(self.tasks_per_node);
        match self.share.filter(|s| s.cores > 0 && s.cores < cores) {
            Some(share) => Err(invalid(
                "cpus-per-task",
                format!("its tasks want {} of each node, and --cores asks for {}", counted(cores, "core"), share.cores),
            )),
            None => Ok(()),
        }
    }

    fn validate_output_files(&self) -> Result<(), SpecError> {
        let Some(files) = &self.output_files else { return Ok(()) };
        files.validate()?;
        if self.session {
            return Err(invalid("output", "a session has no output of its own: its user's terminal shows it"));
        }
        if !files.stdin.is_empty() && self.pty.is_some() {
            return Err(invalid("input", "standard input of work on a terminal is the terminal: leave --input or --pty out"));
        }
        if !files.stdin.is_empty() && self.env.contains_key(STDIN_VARIABLE) {
            return Err(invalid("input", "standard input comes from the file, or from `lattice launch`: leave one of them out"));
        }
        Ok(())
    }

    fn validate_dependencies(&self) -> Result<(), SpecError> {
        let count = self.depends_on.len();
        if count > DEPENDENCIES_MAX {
            return Err(invalid("depends-on", format!("{count} allocations given; at most {DEPENDENCIES_MAX} are possible")));
        }
        if let Some(bad) = self.depends_on.iter().find(|dependency| !dependency.condition.has_valid_delay()) {
            return Err(invalid("depends-on", format!("{}: a delay has 1 second to 365 days", bad.condition)));
        }
        let mut named = BTreeSet::new();
        match self.depends_on.iter().find(|dependency| !named.insert(dependency.on)) {
            Some(twice) => Err(invalid("depends-on", format!("allocation {} is named twice: give one condition", twice.on.short()))),
            None => Ok(()),
        }
    }

    fn validate_range(&self) -> Result<(), SpecError> {
        let Some(most) = self.nodes_max else { return Ok(()) };
        let refuse = |why: String| Err(invalid("nodes", why));
        if most <= self.nodes || most > NODES_MAX {
            return refuse(format!("{}-{most} is not a range of numbers from 1 to {NODES_MAX}", self.nodes));
        }
        if self.launch.ranks > 0 && most > self.launch.ranks {
            return refuse(format!("of {most} nodes some would have none of its {}", counted(self.launch.ranks, "rank")));
        }
        if !self.constraints.nodes.is_empty() {
            return refuse("a range, and a list of the exact nodes: give one of them".to_owned());
        }
        Ok(())
    }

    fn validate_nodelist(&self) -> Result<(), SpecError> {
        let listed = self.constraints.nodes.len();
        if listed > 0 && u32::try_from(listed) != Ok(self.nodes) {
            let why = format!("nodes named: {listed}, asked for: {}; leave -N out, or name as many", self.nodes);
            return Err(invalid("nodelist", why));
        }
        Ok(())
    }

    /// Which requirement a node does not meet, regardless of what is free on it: constraints, and
    /// for whole nodes enough cores and GPUs for its tasks. For people; `None`: the node meets all.
    pub fn lacked_by(&self, node: &Node) -> Option<String> {
        let lacked = self.tasks_do_not_fit(node).or_else(|| self.unfenced_by(node)).or_else(|| self.unsaved_by(node));
        lacked.or_else(|| self.constraints.lacked_by(node)).or_else(|| self.astray(node))
    }

    /// Why a node as registered can never run it, regardless of the node's state and free
    /// resources. For people.
    pub fn never_served_by(&self, node: &Node) -> Option<String> {
        if !node.schedulable {
            return Some("takes no work (schedulable: false)".to_owned());
        }
        let wanted = self.amount_of(&node.size);
        let too_small = (node.size == Resources::default() || !node.size.holds(&wanted)).then(|| wanted.beyond(&node.size));
        too_small.or_else(|| self.tasks_do_not_fit(node)).or_else(|| self.constraints.never_met_by(node))
    }

    /// Why the tasks for a whole node do not fit on it.
    fn tasks_do_not_fit(&self, node: &Node) -> Option<String> {
        let gpus = self.binding.gpus_per_task.saturating_mul(self.tasks_per_node);
        if self.share.is_none() && gpus > node.size.gpus {
            return Some(format!("has {}; its tasks there want {gpus}", counted(node.size.gpus, "GPU")));
        }
        let cores = self.launch.shape.cpus_per_task.saturating_mul(self.tasks_per_node);
        (self.share.is_none() && cores > node.size.cores)
            .then(|| format!("has {}; its tasks there want {cores}", counted(node.size.cores, "core")))
    }

    /// If the work must end on isolation: why a node cannot guarantee that.
    pub fn unfenced_by(&self, node: &Node) -> Option<String> {
        let wanted = self.on_isolation == OnIsolation::Stop;
        (wanted && !constraint::has(&node.features, constraint::RUN_LEASE))
            .then(|| "keeps no run leases (a machine without cgroup v2), and --on-isolation=stop asks for one".to_owned())
    }

    /// Why a node's agent cannot make checkpoints of it or restore one.
    pub fn unsaved_by(&self, node: &Node) -> Option<String> {
        let asked = self.checkpoint.as_ref()?;
        if !constraint::has(&node.features, constraint::CHECKPOINTS) {
            let why = "makes no checkpoints (neither checkpoint.store nor logs.store is configured), and --checkpoint asks for them";
            return Some(why.to_owned());
        }
        // Run leases show that the agent can attribute processes to allocations: both need cgroup
        // v2.
        if constraint::has(&node.features, constraint::RUN_LEASE) {
            return None;
        }
        let by_call = asked.method == CheckpointMethod::Call;
        let of_some = asked.method.is_signal() && asked.signal.whom() != SignalTo::All;
        if by_call {
            return Some("cannot tell which work is calling (a machine without cgroup v2), and --checkpoint=grpc asks for it".to_owned());
        }
        of_some
            .then(|| format!("cannot tell its ranks (a machine without cgroup v2), and --checkpoint-signal={} asks for that", asked.signal))
    }

    /// Why a node's software and firmware are unsuitable: sensitive work is not placed on a drifted
    /// node.
    pub fn astray(&self, node: &Node) -> Option<String> {
        let drifted = node.conformance.as_ref().filter(|_| self.sensitive).and_then(Conformance::drifted);
        drifted.map(|changes| format!("has drifted from its configuration ({changes}), and sensitive work is not placed on such a node"))
    }

    /// Why it never gives its nodes back for other work to continue later, once it has been requeued so
    /// often; `None`: it does. Tasks that run in a lane begin anew in another one.
    pub fn never_gives_back(&self, requeue_count: u32) -> Option<&'static str> {
        let begins_anew = self.tasks.is_some() || (self.requeue == RequeuePolicy::Always && requeue_count < self.requeues_max);
        if self.sensitive || self.preemption_class >= CLASS_MAX {
            Some("it is sensitive, or of the highest class")
        } else if self.checkpoint.is_none() && !begins_anew {
            Some("it can neither save itself nor begin anew")
        } else if self.checkpoint.is_none() && self.preemption_class >= UNSAVED_CLASS_MAX {
            Some("it cannot save itself, and is of a high class")
        } else {
            None
        }
    }

    /// How much of a node of this size it gets.
    pub fn amount_of(&self, size: &Resources) -> Resources {
        self.share.as_ref().map_or(*size, |asked| share_of(asked, size))
    }

    /// Approximate number of committed bytes of strings, without the script.
    pub fn bytes_without_script(&self) -> usize {
        let env: usize = self.env.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let tags: usize = self.tags.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let features: usize = self.constraints.features.iter().map(|f| f.len() + 4).sum();
        let choice = self.constraints.choice.as_deref().map_or(0, FeatureChoice::bytes);
        let listed: usize = self.constraints.nodes.iter().chain(&self.constraints.excluded).map(|node| node.as_str().len() + 4).sum();
        let args: usize = match &self.entrypoint {
            Entrypoint::Script { args, .. } => args.iter().map(|a| a.len() + 4).sum(),
            Entrypoint::Command { argv } => argv.iter().map(|a| a.len() + 4).sum(),
        };
        env + tags
            + features
            + choice
            + listed
            + args
            + self.data.bytes()
            + self.connectivity.bytes()
            + self.launch.shape.bytes()
            + self.depends_on.len() * 40
            + self.tasks.as_ref().map_or(0, |tasks| tasks.bytes())
            + self.scaling.as_ref().map_or(0, |_| SCALING_BYTES_MAX)
            + self.name.len()
            + self.comment.len()
            + self.reservation.as_ref().map_or(0, String::len)
            + self.mail.as_ref().map_or(0, |mail| mail.user.len() + 128)
            + self.working_dir.as_os_str().len()
            + self.submit_dir.as_ref().map_or(0, |dir| dir.as_os_str().len())
            + self.submit_host.len()
            + self.output_files.as_ref().map_or(0, |files| files.bytes())
            + 256
    }
}

impl Image {
    /// Checks the syntax of path and digest.
    pub fn validate(&self) -> Result<(), SpecError> {
        absolute("uenv", &self.path)?;
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if self.sha256.len() != 64 || !self.sha256.bytes().all(hex) {
            return Err(invalid("uenv", "its digest must be 64 hexadecimal digits in lower case"));
        }
        Ok(())
    }
}

fn absolute(field: &'static str, path: &Path) -> Result<(), SpecError> {
    let text = path.to_string_lossy();
    if !path.is_absolute() || text.contains('\0') || text.len() > 4096 {
        return Err(invalid(field, format!("{text:?} must be an absolute path of at most 4096 bytes")));
    }
    Ok(())
}

fn without_nul(field: &'static str, texts: &[String]) -> Result<(), SpecError> {
    if texts.iter().any(|t| t.contains('\0')) { Err(invalid(field, "a NUL byte cannot be passed to a program")) } else { Ok(()) }
}

/// The share of a node of this size that a request amounts to. Cores and memory that were not
/// requested (0) are derived in proportion to the rest, so that every share is limited: the largest
/// requested fraction decides, with cores rounded up and memory rounded down. GPUs are never
/// derived. The result may exceed the node.
pub fn share_of(asked: &Resources, size: &Resources) -> Resources {
    let asked_of_size = [
        (u64::from(asked.cores), u64::from(size.cores)),
        (asked.memory_bytes, size.memory_bytes),
        (u64::from(asked.gpus), u64::from(size.gpus)),
    ];
    // Fractions requested/size, compared by cross-multiplication; a resource that the node lacks
    // gives no fraction.
    let larger = |a: (u64, u64), b: (u64, u64)| u128::from(a.0) * u128::from(b.1) >= u128::from(b.0) * u128::from(a.1);
    let (part, whole) =
        asked_of_size.into_iter().filter(|(_, whole)| *whole > 0).fold((0, 1), |most, next| if larger(most, next) { most } else { next });
    let (part, whole) = (u128::from(part.min(whole)), u128::from(whole));
    let cores = (u128::from(size.cores) * part).div_ceil(whole).max(1);
    let memory = u128::from(size.memory_bytes) * part / whole;
    Resources {
        cores: if asked.cores > 0 { asked.cores } else { u32::try_from(cores).unwrap_or(u32::MAX) },
        memory_bytes: if asked.memory_bytes > 0 { asked.memory_bytes } else { u64::try_from(memory).unwrap_or(u64::MAX) },
        gpus: asked.gpus,
    }
}

/// Prefixes of the variables by which a launcher, ours or a foreign one, passes wire-up information
/// to ranks.
pub const RANK_WIREUP: [&str; 7] = ["PMI_", "PMIX_", "JSM_JSRUN_PORT", "SLURM_", "OMPI_MCA_ess", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];

/// Beginnings of the names of variables that Slurm sets for a job, a step or a rank.
const SET_BY_SLURM: [&str; 26] = [
    "SLURM_ARRAY",
    "SLURM_CLUSTER",
    "SLURM_CPUS_",
    "SLURM_DIST",
    "SLURM_GPU",
    "SLURM_GTIDS",
    "SLURM_JOB",
    "SLURM_LAUNCH",
    "SLURM_LOCALID",
    "SLURM_MEM_PER",
    "SLURM_MPI",
    "SLURM_NNODES",
    "SLURM_NODE",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_OPEN_MODE",
    "SLURM_PMI",
    "SLURM_PRIO",
    "SLURM_PROCID",
    "SLURM_RESTART",
    "SLURM_SRUN",
    "SLURM_STEP",
    "SLURM_SUBMIT",
    "SLURM_TASK",
    "SLURM_TOPOLOGY",
    "SLURM_UMASK",
];

/// Whether a submission may set this variable of Slurm's: it is one that `srun` reads as an option, or any other name, and
/// none that describes a job, a step or a rank.
pub fn is_settable_of_slurm(name: &str) -> bool {
    name.starts_with("SLURM_") && !SET_BY_SLURM.iter().any(|beginning| name.starts_with(beginning))
}

/// Whether an environment variable belongs to a foreign launcher's wire-up and must not reach a
/// rank.
pub fn is_wireup_variable(name: &str) -> bool {
    name.starts_with("LATTICE_") || RANK_WIREUP.iter().any(|p| name.starts_with(p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::spec;
    use crate::{AllocationId, DependencyCondition};
    use uuid::Uuid;

    #[test]
    fn each_range_is_kept() {
        assert_eq!(spec().validate(), Ok(()));
        let refused = |change: &dyn Fn(&mut AllocationSpec), field: &str| {
            let mut changed = spec();
            change(&mut changed);
            match changed.validate() {
                Err(SpecError::Invalid { field: f, .. }) => assert_eq!(f, field),
                other => panic!("{field}: {other:?}"),
            }
        };
        refused(&|s| s.nodes = 0, "nodes");
        refused(&|s| s.tasks_per_node = 0, "tasks-per-node");
        refused(&|s| s.share = Some(Resources::default()), "shared");
        refused(&|s| s.walltime = Some(Duration::ZERO), "walltime");
        refused(&|s| s.entrypoint = Entrypoint::Command { argv: vec![] }, "command");
        refused(&|s| s.entrypoint = Entrypoint::Script { text: "echo".into(), args: vec![] }, "script");
        refused(
            &|s| {
                s.entrypoint = Entrypoint::Script { text: "#!/bin/sh".into(), args: vec![] };
                s.pty = Some(TerminalSize::default());
            },
            "pty",
        );
        refused(
            &|s| {
                s.session = true;
                s.walltime = None;
            },
            "walltime",
        );
        refused(&|s| s.working_dir = "here".into(), "working directory");
        refused(&|s| s.submit_host = "x".repeat(HOST_BYTES_MAX + 1), "submit host");
        refused(&|s| s.submit_host = "a\nb".into(), "submit host");
        refused(&|s| s.uenv = Some(Box::new(Image { path: "/a".into(), sha256: "AB".into() })), "uenv");
        refused(&|s| drop(s.env.insert("A=B".into(), String::new())), "env");
        refused(&|s| drop(s.env.insert("A".into(), "x".repeat(SPEC_BYTES_MAX))), "env");
        refused(&|s| s.name = "a\nb".into(), "name");
        for (name, value) in [("", "a"), ("a=b", "c"), ("a", "b\n"), ("a", "x".repeat(TAG_BYTES_MAX + 1).as_str())] {
            refused(&|s| drop(s.tags.insert(name.to_owned(), value.to_owned())), "tag");
        }
        refused(&|s| s.tags = (0..=TAGS_MAX).map(|number| (number.to_string(), String::new())).collect(), "tag");
        let on = |number| Dependency { on: AllocationId(Uuid::from_u128(number)), condition: DependencyCondition::Any };
        refused(&|s| s.depends_on = vec![on(1), on(2), on(1)], "depends-on");
        refused(&|s| s.depends_on = (0..=DEPENDENCIES_MAX as u128).map(on).collect(), "depends-on");
        for seconds in [0, 31_536_001] {
            refused(&|s| s.depends_on = vec![Dependency { condition: DependencyCondition::AfterDelay { seconds }, ..on(1) }], "depends-on");
        }
        let mut many = spec();
        many.depends_on = (0..DEPENDENCIES_MAX as u128).map(on).collect();
        assert_eq!(many.validate(), Ok(()));
        let shared = |s: &mut AllocationSpec| s.share = Some(Resources { cores: 1, ..Resources::default() });
        refused(
            &|s| {
                shared(s);
                s.constraints.cxl_memory = true;
            },
            "constraint",
        );
        let mut whole = spec();
        (whole.share, whole.constraints.cxl_memory) = (None, true);
        assert_eq!(whole.validate(), Ok(()));
    }

    #[test]
    fn variables_of_slurm_that_describe_nothing_may_be_set() {
        for (name, may) in [("SLURM_X", true), ("SLURM_CPU_BIND", true), ("SLURM_PROCID", false), ("SLURM_JOB_ID", false), ("X", false)] {
            assert_eq!(is_settable_of_slurm(name), may, "{name}");
        }
    }

    #[test]
    fn unrequested_resources_are_derived_in_proportion() {
        let size = Resources { cores: 64, memory_bytes: 512 << 30, gpus: 4 };
        let of = |cores, gib: u64, gpus| {
            let got = share_of(&Resources { cores, memory_bytes: gib << 30, gpus }, &size);
            (got.cores, got.memory_bytes >> 30, got.gpus)
        };
        assert_eq!(of(16, 0, 0), (16, 128, 0));
        assert_eq!(of(0, 256, 0), (32, 256, 0));
        assert_eq!(of(0, 0, 1), (16, 128, 1));
        assert_eq!(of(1, 0, 2), (1, 256, 2));
        assert_eq!(of(8, 1, 1), (8, 1, 1));
        assert_eq!(of(0, 1, 0), (1, 1, 0));
        // More than the node has stays more, so it fits on no node; a node without GPUs has no
        // fraction of them.
        assert_eq!(of(100, 0, 0), (100, 512, 0));
        let plain = Resources { cores: 2, memory_bytes: 100, gpus: 0 };
        let asked = Resources { gpus: 1, ..Resources::default() };
        assert!(!plain.holds(&share_of(&asked, &plain)));
        assert_eq!(share_of(&Resources { cores: 1, ..Resources::default() }, &Resources::default()).cores, 1);
        let whole = AllocationSpec { share: None, ..spec() };
        assert_eq!(whole.amount_of(&size), size);
    }
}
