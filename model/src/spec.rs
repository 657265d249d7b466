//! The specification of an allocation: what a user requests. The protobuf conversion checks it and
//! refuses fields that are not implemented yet, by name.

mod amount;
mod bytes;
mod checks;
mod launch;
mod node_choice;
mod scaling;
mod spread;
mod suitability;
mod tasks;
mod timing;
mod variables;

pub use amount::share_of;
pub use checks::{check_project_and_tags, check_task_walltime};
pub use variables::{RANK_WIREUP, is_settable_of_slurm, is_wireup_variable};

use crate::binding::RankBinding;
use crate::checkpoint::CheckpointPolicy;
use crate::constraint::Constraints;
use crate::count::counted;
use crate::data::Data;
use crate::dependency::Dependency;
use crate::end_warning::EndWarning;
use crate::launch::TerminalSize;
use crate::layout::EntryLaunch;
use crate::mail::Mail;
use crate::network::Connectivity;
use crate::output_files::OutputFiles;
use crate::preemption::{CLASS_MAX, UNSAVED_CLASS_MAX};
use crate::probe::LivenessProbe;
use crate::resources::{MemoryUnit, Resources};
use crate::scaling::Scaling;
use crate::spec_error::SpecError;
use crate::task_group::TaskGroup;
use crate::timing::Timing;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// How many cores of `share` were given for each GPU; for Slurm's variables. 0: they were not given so.
    #[serde(default, skip_serializing_if = "is_not_given")]
    pub cpus_per_gpu: u32,
    /// How many ranks were given for each GPU; for Slurm's variables. 0: they were not given so.
    #[serde(default, skip_serializing_if = "is_not_given")]
    pub ntasks_per_gpu: u32,
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
    /// [`crate::dependency::DEPENDENCIES_MAX`], each allocation once.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_not_given(amount: &u32) -> bool {
    *amount == 0
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
            cpus_per_gpu: 0,
            ntasks_per_gpu: 0,
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
}
