//! What a user asks for. The protobuf conversion reads it and refuses by name what is not built yet.

use crate::binding::RankBinding;
use crate::checkpoint::{AskBy, CheckpointPolicy, SignalTo};
use crate::conformance::Conformance;
use crate::constraint::{self, Constraints};
use crate::count::counted;
use crate::data::Data;
use crate::ids::NodeId;
use crate::launch::TerminalSize;
use crate::layout::{Distribution, EntryLaunch, TASKS_PER_NODE_MAX, lay_out};
use crate::network::Connectivity;
use crate::node::Node;
use crate::node_ranks::NodeRanks;
use crate::probe::LivenessProbe;
use crate::resources::Resources;
use crate::spec_error::SpecError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a whole specification may have when it is committed.
pub const SPEC_BYTES_MAX: usize = 64 * 1024;
/// Bytes of script that one submission may carry.
pub const SCRIPT_BYTES_MAX: usize = 1024 * 1024;
/// Nodes one allocation may ask for.
pub const NODES_MAX: u32 = 100_000;
/// Requeues one allocation may ask for.
pub const REQUEUES_MAX: u32 = 100;
/// The class of work that names none.
pub const PREEMPTION_CLASS_DEFAULT: u8 = 5;
/// The longest walltime: 365 days.
pub const WALLTIME_MAX: Duration = Duration::from_secs(365 * 86_400);

/// What is asked of the cluster: how much, for how long, and what to run there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationSpec {
    /// A name for people; by default the script's or command's.
    pub name: String,
    /// Who pays. A label until quotas are built.
    #[serde(default)]
    pub tenant: String,
    /// What it is for. A label.
    #[serde(default)]
    pub project: String,
    /// The queue it stands in; empty means the default one.
    #[serde(default)]
    pub vcluster: String,
    /// Free labels.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Nodes wanted, at least 1.
    pub nodes: u32,
    /// How much of each node is wanted; `None`: whole nodes. An amount of 0 is not asked for by itself: see [`share_of`].
    #[serde(default)]
    pub share: Option<Resources>,
    /// What each node must be like.
    #[serde(default)]
    pub constraints: Constraints,
    /// Ranks a node of an inline command, and the default of a launch, at least 1.
    pub tasks_per_node: u32,
    /// How its ranks are bound, where a launch does not say otherwise.
    #[serde(default)]
    pub binding: RankBinding,
    /// What else is asked of the launch of an inline command.
    #[serde(default)]
    pub launch: EntryLaunch,
    /// How long it may run once every prologue is done. `None`: a service, which ends by itself, by its probe, or by a cancel.
    pub walltime: Option<Duration>,
    /// What runs.
    pub entrypoint: Entrypoint,
    /// The software environment it runs in.
    #[serde(default)]
    pub uenv: Option<Image>,
    /// The working directory, absolute.
    pub working_dir: PathBuf,
    /// Where it was submitted, absolute, where that is another directory.
    #[serde(default)]
    pub submit_dir: Option<PathBuf>,
    /// The environment, already scrubbed of wire-up variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What happens when its node is lost.
    #[serde(default)]
    pub requeue: RequeuePolicy,
    /// How often it may be requeued, at most [`REQUEUES_MAX`].
    #[serde(default)]
    pub requeues_max: u32,
    /// How hard it is to preempt, 0 (first) to 10.
    #[serde(default)]
    pub preemption_class: u8,
    /// File systems and scratch.
    #[serde(default)]
    pub data: Data,
    /// How it is asked whether it still serves.
    #[serde(default)]
    pub liveness_probe: Option<LivenessProbe>,
    /// Whether a command's first rank has a terminal, and of which size at first.
    #[serde(default)]
    pub pty: Option<TerminalSize>,
    /// Whether it is held for a user's terminal: what runs is [`crate::session::HOLDER`].
    #[serde(default)]
    pub session: bool,
    /// Its network domain, and the ports that it offers.
    #[serde(default)]
    pub connectivity: Connectivity,
    /// Whether its nodes are claimed for sensitive use.
    #[serde(default)]
    pub sensitive: bool,
    /// What becomes of it on a node that the quorum does not hear any more.
    #[serde(default)]
    pub on_isolation: OnIsolation,
    /// How it is asked to save itself; `None`: it is not.
    #[serde(default)]
    pub checkpoint: Option<CheckpointPolicy>,
    /// Whether it is held from its submission on, until somebody resumes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
}

/// What an allocation runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entrypoint {
    /// A script, run on the first node; it starts ranks with `lattice launch`.
    Script {
        /// The script itself, shared by whoever holds the same one.
        text: Arc<str>,
        /// Its arguments.
        args: Vec<String>,
    },
    /// One launch of nodes × tasks-per-node ranks of this program and its arguments.
    Command {
        /// Program and arguments, at least the program.
        argv: Vec<String>,
    },
}

/// A SquashFS image in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Where it lies, absolute, on every node.
    pub path: PathBuf,
    /// SHA-256 of its contents, 64 hexadecimal digits in lower case, recorded at submission.
    pub sha256: String,
}

/// When work is put back into the queue instead of failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequeuePolicy {
    /// Never.
    #[default]
    Never,
    /// When evidence says that one of its nodes lost it.
    OnNodeFailure,
    /// After any failure.
    Always,
}

/// What becomes of work on a node that is cut off from the quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnIsolation {
    /// It goes on, and is begun elsewhere only on evidence that it is gone there.
    #[default]
    Continue,
    /// Its shim ends it when its run lease lapses ([`crate::run_lease`]); then it may be begun elsewhere.
    Stop,
}

impl OnIsolation {
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Stop => "stop",
        }
    }
}

fn invalid(field: &'static str, why: impl Into<String>) -> SpecError {
    SpecError::Invalid { field, why: why.into() }
}

impl AllocationSpec {
    /// One whole node and one rank of this for a minute, with no environment and nothing else asked.
    pub fn new(name: &str, entrypoint: Entrypoint, working_dir: &Path) -> Self {
        Self {
            name: name.to_owned(),
            tenant: String::new(),
            project: String::new(),
            vcluster: String::new(),
            tags: BTreeMap::new(),
            nodes: 1,
            share: None,
            constraints: Constraints::default(),
            tasks_per_node: 1,
            binding: RankBinding::default(),
            launch: EntryLaunch::default(),
            walltime: Some(Duration::from_secs(60)),
            entrypoint,
            uenv: None,
            working_dir: working_dir.to_owned(),
            submit_dir: None,
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
        }
    }

    /// Checks every range and form that needs no knowledge of the cluster.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.name.is_empty() || self.name.len() > 128 || self.name.chars().any(char::is_control) {
            return Err(invalid("name", "1 to 128 bytes without control characters"));
        }
        for (field, label) in [("tenant", &self.tenant), ("project", &self.project), ("vcluster", &self.vcluster)] {
            if label.len() > 128 || label.chars().any(char::is_control) {
                return Err(invalid(field, "at most 128 bytes without control characters"));
            }
        }
        if self.nodes == 0 || self.nodes > NODES_MAX {
            return Err(invalid("nodes", format!("{} given; 1 to {NODES_MAX} are possible", self.nodes)));
        }
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
            return Err(invalid("preemption-class", format!("{} given; 0 to 10 are possible", self.preemption_class)));
        }
        self.constraints.validate()?;
        self.validate_nodelist()?;
        self.data.validate()?;
        self.connectivity.validate()?;
        if let Some(probe) = &self.liveness_probe {
            probe.validate()?;
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

    /// Ranks of an inline command, and of a script's launch that does not say how many.
    pub fn ranks(&self) -> u32 {
        match self.launch.ranks {
            0 => self.nodes.saturating_mul(self.tasks_per_node),
            ranks => ranks,
        }
    }

    /// Which ranks each of these nodes has of the launch of an inline command, and of a script's that does not say otherwise.
    pub fn usual_ranks(&self, nodes: &[NodeId]) -> Vec<NodeRanks> {
        let asked = &self.launch;
        // Fewer ranks than there is room for are dealt out evenly.
        let limit = (asked.ranks == 0 || asked.shape.distribution != Distribution::Block).then_some(self.tasks_per_node);
        lay_out(nodes, self.ranks(), limit, &asked.shape.distribution).unwrap_or_default()
    }

    fn validate_launch(&self) -> Result<(), SpecError> {
        let (shape, most) = (&self.launch.shape, self.nodes.saturating_mul(self.tasks_per_node));
        if self.launch.ranks > most {
            let (nodes, tasks) = (counted(self.nodes, "node"), counted(self.tasks_per_node, "task"));
            let why = format!("{} ranks do not fit: {nodes} × {tasks} per node = {most}", self.launch.ranks);
            return Err(invalid("ntasks", why));
        }
        if let Distribution::Explicit(_) = shape.distribution {
            return Err(invalid("nodelist", "which nodes it gets is not known yet; launches inside the allocation may list them"));
        }
        if let Entrypoint::Script { .. } = self.entrypoint
            && !shape.programs.is_empty()
        {
            return Err(invalid("ntasks", "of a script: its launches say how many ranks each program has (`lattice launch -n`)"));
        }
        shape.validate(self.ranks()).map_err(|e| invalid("launch", e.to_string()))?;
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

    fn validate_nodelist(&self) -> Result<(), SpecError> {
        let listed = self.constraints.nodes.len();
        if listed > 0 && u32::try_from(listed) != Ok(self.nodes) {
            let why = format!("nodes named: {listed}, asked for: {}; leave -N out, or name as many", self.nodes);
            return Err(invalid("nodelist", why));
        }
        Ok(())
    }

    /// What of what it must be like a node lacks for it, whatever is free of it: its constraints, and of a whole node the cores and
    /// GPUs of its tasks. For people; `None`: nothing.
    pub fn lacked_by(&self, node: &Node) -> Option<String> {
        let lacked = self.tasks_do_not_fit(node).or_else(|| self.unfenced_by(node)).or_else(|| self.unsaved_by(node));
        lacked.or_else(|| self.constraints.lacked_by(node)).or_else(|| self.astray(node))
    }

    /// Why a node could never serve it as it is registered, whatever its state and whatever is taken of it. For people.
    pub fn never_served_by(&self, node: &Node) -> Option<String> {
        if !node.schedulable {
            return Some("takes no work (schedulable: false)".to_owned());
        }
        let wanted = self.amount_of(&node.size);
        let too_small = (node.size == Resources::default() || !node.size.holds(&wanted)).then(|| wanted.beyond(&node.size));
        too_small.or_else(|| self.tasks_do_not_fit(node)).or_else(|| self.constraints.never_met_by(node))
    }

    /// Why the tasks of a whole node do not fit on it.
    fn tasks_do_not_fit(&self, node: &Node) -> Option<String> {
        let gpus = self.binding.gpus_per_task.saturating_mul(self.tasks_per_node);
        if self.share.is_none() && gpus > node.size.gpus {
            return Some(format!("has {}; its tasks there want {gpus}", counted(node.size.gpus, "GPU")));
        }
        let cores = self.launch.shape.cpus_per_task.saturating_mul(self.tasks_per_node);
        (self.share.is_none() && cores > node.size.cores)
            .then(|| format!("has {}; its tasks there want {cores}", counted(node.size.cores, "core")))
    }

    /// Why a node cannot be trusted to end it when it is cut off, where that was asked for.
    pub fn unfenced_by(&self, node: &Node) -> Option<String> {
        let wanted = self.on_isolation == OnIsolation::Stop;
        (wanted && !constraint::has(&node.features, constraint::RUN_LEASE))
            .then(|| "keeps no run leases (a machine without cgroup v2), and --on-isolation=stop asks for one".to_owned())
    }

    /// Why a node's agent cannot ask it to save itself, nor give it back what it saved.
    pub fn unsaved_by(&self, node: &Node) -> Option<String> {
        let asked = self.checkpoint.as_ref()?;
        if !constraint::has(&node.features, constraint::CHECKPOINTS) {
            let why = "makes no checkpoints (neither checkpoint_store nor log_store is configured), and --checkpoint asks for them";
            return Some(why.to_owned());
        }
        // Nodes that can tell which process is whose say so by keeping run leases.
        if constraint::has(&node.features, constraint::RUN_LEASE) {
            return None;
        }
        let by_call = asked.by == AskBy::Call;
        let of_some = asked.by.is_signal() && asked.signal.whom() != SignalTo::All;
        if by_call {
            return Some("cannot tell whose work calls (a machine without cgroup v2), and --checkpoint=grpc asks for it".to_owned());
        }
        of_some
            .then(|| format!("cannot tell its ranks (a machine without cgroup v2), and --checkpoint-signal={} asks for that", asked.signal))
    }

    /// Why a node's software and firmware are not what it is to have: sensitive work goes to no node that has drifted.
    pub fn astray(&self, node: &Node) -> Option<String> {
        let drifted = node.conformance.as_ref().filter(|_| self.sensitive).and_then(Conformance::drifted);
        drifted.map(|changes| format!("has drifted from its configuration ({changes}), and sensitive work goes to no such node"))
    }

    /// How much of a node of this size it is to have.
    pub fn amount_of(&self, size: &Resources) -> Resources {
        self.share.as_ref().map_or(*size, |asked| share_of(asked, size))
    }

    /// About how many bytes of strings are committed besides the script.
    pub fn bytes_without_script(&self) -> usize {
        let env: usize = self.env.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let tags: usize = self.tags.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let features: usize = self.constraints.features.iter().map(|f| f.len() + 4).sum();
        let listed: usize = self.constraints.nodes.iter().map(|node| node.as_str().len() + 4).sum();
        let args: usize = match &self.entrypoint {
            Entrypoint::Script { args, .. } => args.iter().map(|a| a.len() + 4).sum(),
            Entrypoint::Command { argv } => argv.iter().map(|a| a.len() + 4).sum(),
        };
        env + tags
            + features
            + listed
            + args
            + self.data.bytes()
            + self.connectivity.bytes()
            + self.launch.shape.bytes()
            + self.name.len()
            + self.working_dir.as_os_str().len()
            + self.submit_dir.as_ref().map_or(0, |dir| dir.as_os_str().len())
            + 256
    }
}

impl Image {
    /// Checks path and digest for their form.
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

/// What a share of a node of this size comes to. Cores and memory that were not asked for (0) come in proportion to what was,
/// so that nobody's part is without limit: the largest fraction asked for decides, cores rounded up, memory down. GPUs come
/// only when asked for. The result may be more than the node has.
pub fn share_of(asked: &Resources, size: &Resources) -> Resources {
    let asked_of_size = [
        (u64::from(asked.cores), u64::from(size.cores)),
        (asked.memory_bytes, size.memory_bytes),
        (u64::from(asked.gpus), u64::from(size.gpus)),
    ];
    // Of each whole: asked/size, compared as fractions; what a node does not have at all cannot be a part of it.
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

/// How variables begin by which somebody else's launcher, or ours, tells a rank how to find the others.
pub const RANK_WIREUP: [&str; 7] = ["PMI_", "PMIX_", "JSM_JSRUN_PORT", "SLURM_", "OMPI_MCA_ess", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];

/// Whether an environment variable belongs to somebody else's wire-up and must not reach a rank.
pub fn is_wireup_variable(name: &str) -> bool {
    name.starts_with("LATTICE_") || RANK_WIREUP.iter().any(|p| name.starts_with(p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::spec;

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
        refused(&|s| s.uenv = Some(Image { path: "/a".into(), sha256: "AB".into() }), "uenv");
        refused(&|s| drop(s.env.insert("A=B".into(), String::new())), "env");
        refused(&|s| drop(s.env.insert("A".into(), "x".repeat(SPEC_BYTES_MAX))), "env");
        refused(&|s| s.name = "a\nb".into(), "name");
    }

    #[test]
    fn what_of_a_node_was_not_asked_for_comes_in_proportion() {
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
        // More than there is stays more, and fits nowhere; a node without GPUs has no part of them.
        assert_eq!(of(100, 0, 0), (100, 512, 0));
        let plain = Resources { cores: 2, memory_bytes: 100, gpus: 0 };
        let asked = Resources { gpus: 1, ..Resources::default() };
        assert!(!plain.holds(&share_of(&asked, &plain)));
        assert_eq!(share_of(&Resources { cores: 1, ..Resources::default() }, &Resources::default()).cores, 1);
        let whole = AllocationSpec { share: None, ..spec() };
        assert_eq!(whole.amount_of(&size), size);
    }
}
