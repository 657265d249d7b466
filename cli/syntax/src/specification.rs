//! The specification of an allocation, from options, a program, and the context of the submission.
//!
//! Nothing here reads a file or the environment: agents also build specifications, for users of REST.

use crate::UsageError;
use crate::civil::Clock;
use crate::constraints::{Asked, constraints};
use crate::flags::{Exclusive, SubmitFlags, tags_once};
use crate::scaling::ScalingFlags;
use crate::share::{self, Amounts};
use crate::spread;
use crate::warning::EndWarning;
use lattice_api::v1;
use lattice_model::NodeId;
use lattice_model::launch::Pmi;
use lattice_model::spec::NODES_MAX;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Walltime of a submission without one.
const WALLTIME_SECONDS_DEFAULT: u64 = 3600;

/// Limit of a name in bytes.
const NAME_BYTES_MAX: usize = 128;

/// The program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A script.
    Script {
        /// The file's name, for people.
        name: String,
        /// The script's contents.
        text: String,
        /// Its arguments.
        args: Vec<String>,
    },
    /// Program and arguments.
    Command(Vec<String>),
    /// No program: the user opens a terminal later.
    Session,
}

/// The values of a submission that are in none of its options.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The tenant and the vCluster of work that names none; empty: none.
    pub tenant: String,
    pub vcluster: String,
    /// Variables of the program; those of the options win.
    pub env: HashMap<String, String>,
    /// The absolute directory that relative paths begin at.
    pub dir: PathBuf,
    /// The nodes of `--nodelist`, parsed.
    pub nodelist: Vec<NodeId>,
    /// The nodes of `--exclude`, parsed.
    pub exclude: Vec<NodeId>,
    /// How the ranks of the program find each other, if no option says so.
    pub pmi: Option<Pmi>,
    /// The present time, and the zone of times without one.
    pub clock: Clock,
}

/// Builds the specification. The server validates it: only what the message cannot express is refused here.
///
/// # Errors
/// Options that contradict each other, or that the message cannot express.
pub fn build(flags: &SubmitFlags, program: Program, context: Context) -> Result<v1::AllocationSpec, UsageError> {
    let Context { tenant, vcluster, mut env, dir, nodelist, exclude, pmi, clock } = context;
    let utf8 = |dir: &Path| dir.to_str().map(str::to_owned).ok_or_else(|| UsageError::new("the working directory's name is not UTF-8"));
    let (working_dir, submit_dir) = (utf8(&flags.working_dir(&dir))?, utf8(&dir)?);
    if let Some(share) = flags.first_share_option().filter(|_| flags.exclusive == Some(Exclusive::Nodes)) {
        return Err(UsageError::new(format!("--exclusive asks for whole nodes, and {share} for a share of each node: leave one out")));
    }
    let named = u32::try_from(nodelist.len()).unwrap_or(u32::MAX);
    let amounts = if flags.layout.spread { spread::resolve(flags, named)? } else { share::resolve(flags, named)? };
    let Amounts { shape: fits, cores, memory_bytes, gpus, spread } = amounts;
    let Asked { values, features } = constraints(flags)?;
    let default_name = match &program {
        Program::Script { name, .. } => name.clone(),
        Program::Command(argv) => {
            let program = argv.first().map(String::as_str).unwrap_or_default();
            Path::new(program).file_name().map_or_else(|| program.to_owned(), |name| name.to_string_lossy().into_owned())
        }
        Program::Session => "session".to_owned(),
    };
    let session = matches!(program, Program::Session);
    let what = match program {
        Program::Script { name: _, text, args } => Some(v1::entrypoint::What::Script(v1::entrypoint::Script { text, args })),
        Program::Command(argv) => Some(v1::entrypoint::What::Command(v1::entrypoint::Command { argv })),
        Program::Session => None,
    };
    env.extend(flags.variables(pmi));
    let everywhere = fits.nodes.saturating_mul(fits.tasks_per_node);
    // If a range gives more nodes, `tasks_per_node` on each would make more ranks.
    let is_range = flags.nodes.is_some_and(|nodes| nodes.most.is_some());
    let is_given = fits.ranks < everywhere || (is_range && flags.ranks.is_some()) || spread.is_some();
    let ranks = if is_given { fits.ranks } else { 0 };
    let nodes_max = match spread {
        Some(_) => fits.ranks.min(NODES_MAX),
        None => flags.nodes.and_then(|n| n.most).unwrap_or_default(),
    };
    let launch = v1::LaunchShape { ranks, ..flags.layout.to_message() };
    let uenv = flags.uenv.as_ref().map(|uenv| dir.join(uenv).to_string_lossy().into_owned());
    let mut spec = v1::AllocationSpec {
        name: flags.name.clone().unwrap_or_else(|| displayable_name(&default_name)),
        tenant: flags.tenant.clone().unwrap_or(tenant),
        project: flags.project.clone().unwrap_or_default(),
        tags: tags_once(&flags.tags)?.into_iter().collect(),
        vcluster: flags.vcluster.clone().unwrap_or(vcluster),
        environment: uenv.map(|uenv| v1::Environment { uenv, ..Default::default() }),
        entrypoint: what.map(|what| v1::Entrypoint { what: Some(what) }),
        session,
        resources: Some(v1::ResourceRequest {
            nodes: fits.nodes,
            nodes_max,
            constraints: values,
            features,
            topology: flags.topology.map_or(String::new(), |groups| groups.to_string()),
            nodelist: nodelist.iter().map(ToString::to_string).collect(),
            shared: flags.shared,
            cpus: cores,
            memory_bytes,
            memory_gb: flags.memory_gb.unwrap_or_default(),
            gpus,
            memory_unit: flags.amounts.memory_unit().to_owned(),
            cpus_per_gpu: flags.amounts.cpus_per_gpu.unwrap_or_default(),
            ntasks_per_gpu: flags.amounts.tasks_per_gpu.unwrap_or_default(),
            exclude: exclude.iter().map(ToString::to_string).collect(),
            // `StartFlags::apply` sets it.
            topology_wait_seconds: 0,
            exclusive_user: flags.exclusive == Some(Exclusive::User),
            spread: spread.map(|each| v1::Amount { cores: each.cores, memory_bytes: each.memory_bytes, gpus: each.gpus }),
        }),
        lifecycle: Some(v1::Lifecycle {
            r#type: if flags.service { "unbounded" } else { "bounded" }.to_owned(),
            walltime_seconds: flags.walltime.map_or(if flags.service { 0 } else { WALLTIME_SECONDS_DEFAULT }, |time| time.as_secs()),
            preemption_class: flags.given_preemption_class().unwrap_or_default(),
            preemption_class_set: flags.given_preemption_class().is_some(),
            scaling: None,
        }),
        tasks_per_node: fits.tasks_per_node,
        binding: flags.binding.to_message(),
        launch: Some(launch).filter(|shape| *shape != v1::LaunchShape::default()),
        working_dir,
        submit_dir,
        env,
        data: Some(flags.data.data(&dir)),
        liveness_probe: flags.data.liveness_probe.clone(),
        connectivity: flags.network.to_message(),
        requeue: (flags.requeue.is_some() || flags.max_requeues.is_some()).then(|| v1::Requeue {
            policy: flags.requeue.map_or(String::new(), |policy| policy.name().to_owned()),
            max: flags.max_requeues.unwrap_or_default(),
        }),
        checkpoint: flags.checkpoint_message(),
        on_isolation: flags.on_isolation.map_or(String::new(), |choice| choice.name().to_owned()),
        depends_on: flags.depends_on.clone(),
        end_warning: flags.signal.as_ref().map(EndWarning::to_message),
        ..Default::default()
    };
    flags.start.apply(&mut spec, &clock)?;
    flags.unbuilt.apply(&mut spec);
    Ok(spec)
}

/// Makes `spec` the specification of a scaled service, if the options say so.
///
/// # Errors
/// As [`ScalingFlags::to_message`].
pub fn apply_scaling(spec: &mut v1::AllocationSpec, flags: &SubmitFlags, scaling: &ScalingFlags) -> Result<(), UsageError> {
    let Some(scaling) = scaling.to_message(flags.service)? else { return Ok(()) };
    let lifecycle = spec.lifecycle.get_or_insert_default();
    lifecycle.r#type = "reactive".to_owned();
    if flags.walltime.is_none() {
        // A scaled service has no walltime, not even the default one.
        lifecycle.walltime_seconds = 0;
    }
    lifecycle.scaling = Some(scaling);
    Ok(())
}

/// A displayable name from a file name: of limited length, without control characters, never empty.
fn displayable_name(name: &str) -> String {
    let mut shown = String::new();
    for c in name.chars().map(|c| if c.is_control() { '?' } else { c }) {
        if shown.len() + c.len_utf8() > NAME_BYTES_MAX {
            break;
        }
        shown.push(c);
    }
    if shown.is_empty() { "unnamed".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_win_over_the_context() {
        let context = Context {
            tenant: "t".into(),
            env: HashMap::from([("A".into(), "1".into()), ("B".into(), "1".into())]),
            dir: "/project".into(),
            nodelist: vec!["n2".parse().unwrap(), "n1".parse().unwrap()],
            ..Context::default()
        };
        let flags = SubmitFlags { env: vec![("B".into(), "2".into())], chdir: Some("sub".into()), ..Default::default() };
        let spec = build(&flags, Program::Command(vec!["/bin/hostname".into()]), context.clone()).unwrap();
        assert_eq!((spec.name.as_str(), spec.tenant.as_str(), spec.working_dir.as_str()), ("hostname", "t", "/project/sub"));
        assert_eq!((spec.env["A"].as_str(), spec.env["B"].as_str()), ("1", "2"));
        let resources = spec.resources.unwrap();
        assert_eq!((resources.nodes, resources.nodelist), (2, vec!["n2".to_owned(), "n1".to_owned()]));
        let both = SubmitFlags { exclusive: Some(Exclusive::Nodes), mem: Some(1 << 30), ..Default::default() };
        let refused = build(&both, Program::Session, context).unwrap_err();
        assert!(refused.what.contains("--exclusive") && refused.what.contains("--mem"), "{refused}");
    }
}
