//! Converts specifications: `v1::AllocationSpec` into the model and back.

mod binding;
mod checkpoint;
pub(crate) mod connectivity;
mod constraint;
mod data;
mod dependency;
mod end_warning;
mod entrypoint;
mod image;
pub(crate) mod lifecycle;
mod mail;
pub(crate) mod output_files;
mod probe;
mod pty;
mod scaling;
mod shape;
mod share;
mod tasks;
mod timing;
mod unbuilt;

pub use binding::binding_request;
pub use dependency::{is_singleton, singleton};
pub use image::{ImageRequest, image_request, parse_image};
pub(crate) use mail::from_model as mail_to_proto;
pub(crate) use scaling::from_model as scaling_to_proto;
pub use scaling::scaling_request;
pub use shape::shape_request;
pub use share::amount;
pub use tasks::{index_run, task_indices};
pub(crate) use timing::from_model as timing_to_proto;

use crate::v1;
use constraint::AskedPolicy;
use lattice_model::input::{NoSuchStdin, STDIN_VARIABLE, Stdin};
use lattice_model::launch::{NoSuchPmi, PMI_PORT_ASKED, PMI_PORT_VARIABLE, PMI_VARIABLE, Pmi};
use lattice_model::spec::{AllocationSpec, Entrypoint, Image, is_settable_of_slurm, is_wireup_variable};
use lattice_model::{Constraints, RankBinding, RequeuePolicy, Resources, SpecError, Topology};
use std::time::Duration;

/// Ranks on each node if the message has 0.
const TASKS_PER_NODE_DEFAULT: u32 = 1;

/// Converts and validates a specification.
///
/// Unset fields get defaults (`tasks_per_node` 0, an unset preemption class, `requeue.max` 0). If a
/// uenv is named, `environment.sha256` must be set: the agent that accepts the submission first
/// reads the image (see [`image_request`]) and records its digest. Likewise it first replaces each
/// `depends_on.ref` by the whole id.
///
/// # Errors
/// [`SpecError::NotBuilt`] names the first documented field that this version does not implement;
/// [`SpecError::Invalid`] names a value with a wrong range or syntax. Both name the field as the
/// user writes it.
pub fn to_model(spec: &v1::AllocationSpec) -> Result<AllocationSpec, SpecError> {
    unbuilt::refuse(spec)?;
    let lifecycle = lifecycle::to_model(spec.lifecycle.as_ref())?;
    let (requeue, requeues_max) = lifecycle::requeue_to_model(spec, lifecycle.walltime.is_none())?;
    if let Some(asked) = spec.env.get(PMI_VARIABLE) {
        let unknown = |unknown: NoSuchPmi| SpecError::Invalid { field: "env", why: unknown.to_string() };
        asked.parse::<Pmi>().map_err(unknown)?;
    }
    let asked = |(name, value): &(&String, &String)| {
        *name == PMI_VARIABLE || *name == STDIN_VARIABLE || (*name == PMI_PORT_VARIABLE && *value == PMI_PORT_ASKED)
    };
    let is_set_by_launch = |name: &str| is_wireup_variable(name) && !is_settable_of_slurm(name);
    let is_refused = |variable: &(&String, &String)| is_set_by_launch(variable.0) && !asked(variable);
    let wireup = spec.env.iter().filter(is_refused).map(|(name, _)| name);
    if let Some(name) = wireup.min() {
        let why = format!("{name:?} is set by the wire-up of a launch; leave it out");
        return Err(SpecError::Invalid { field: "env", why });
    }
    let (constraints, memory_policy) = constraint::to_model(spec.resources.as_ref())?;
    let mut binding = spec.binding.clone().unwrap_or_default();
    if let Some(AskedPolicy { name, given }) = memory_policy {
        let requested = std::mem::replace(&mut binding.memory_policy, name);
        if !requested.is_empty() && requested != binding.memory_policy {
            let why = format!("{given} contradicts --memory-policy={requested}: give one of them");
            return Err(SpecError::Invalid { field: "constraint", why });
        }
    }
    let binding = binding_request(Some(&binding))?.over(RankBinding::default());
    let tasks_per_node = if spec.tasks_per_node == 0 { TASKS_PER_NODE_DEFAULT } else { spec.tasks_per_node };
    let mut share = share::to_model(spec.resources.as_ref())?;
    if let Some(share) = share.as_mut().filter(|s| s.gpus == 0) {
        share.gpus = binding.gpus_per_task.saturating_mul(tasks_per_node);
    }
    let (nodes, nodes_max) = spec.resources.as_ref().map_or((0, 0), |r| (r.nodes, r.nodes_max));
    // 0: it is not a range.
    let nodes_max = Some(nodes_max).filter(|most| *most != 0 && *most != nodes);
    let launch = shape::to_model(spec.launch.as_ref())?;
    let (depends_on, singleton) = dependency::all_to_model(&spec.depends_on)?;
    if let Some(share) = share.as_mut().filter(|s| s.cores == 0 && **s != Resources::default()) {
        share.cores = launch.shape.cpus_per_task.saturating_mul(tasks_per_node);
    }
    let model = AllocationSpec {
        name: spec.name.clone(),
        tenant: spec.tenant.clone(),
        project: spec.project.clone(),
        vcluster: spec.vcluster.clone(),
        tags: spec.tags.clone().into_iter().collect(),
        nodes,
        nodes_max,
        spread: spec.resources.as_ref().and_then(|resources| resources.spread.as_ref()).map(share::amount_to_model),
        share,
        memory_unit: share::memory_unit_to_model(spec.resources.as_ref())?,
        cpus_per_gpu: spec.resources.as_ref().map_or(0, |resources| resources.cpus_per_gpu),
        ntasks_per_gpu: spec.resources.as_ref().map_or(0, |resources| resources.ntasks_per_gpu),
        topology_wait: spec.resources.as_ref().map(|r| r.topology_wait_seconds).filter(|wait| *wait > 0).map(Duration::from_secs),
        exclusive_user: spec.resources.as_ref().is_some_and(|resources| resources.exclusive_user),
        constraints,
        tasks_per_node,
        binding,
        launch,
        walltime: lifecycle.walltime,
        entrypoint: entrypoint::to_model(spec.entrypoint.as_ref(), spec.session)?,
        uenv: image::to_model(spec)?.map(Box::new),
        working_dir: spec.working_dir.clone().into(),
        submit_host: spec.submit_host.clone(),
        submit_dir: (!spec.submit_dir.is_empty() && spec.submit_dir != spec.working_dir).then(|| spec.submit_dir.clone().into()),
        env: spec.env.clone().into_iter().collect(),
        requeue,
        requeues_max,
        preemption_class: lifecycle.preemption_class,
        data: data::to_model(spec.data.as_ref())?,
        liveness_probe: spec.liveness_probe.as_ref().map(probe::to_model).transpose()?.map(Box::new),
        pty: spec.pty.map(pty::to_model),
        session: spec.session,
        connectivity: connectivity::to_model(spec.connectivity.as_ref(), &spec.name)?,
        // Already refused if set.
        sensitive: false,
        on_isolation: lifecycle::on_isolation_to_model(&spec.on_isolation)?,
        checkpoint: checkpoint::to_model(spec.checkpoint.as_ref())?,
        hold: spec.hold,
        depends_on,
        singleton,
        tasks: spec.task_group.as_ref().map(tasks::to_model).transpose()?.map(Box::new),
        scaling: lifecycle.scaling.map(Box::new),
        output_files: output_files::to_model(spec.output_files.as_ref()).map(Box::new),
        end_warning: spec.end_warning.as_ref().map(end_warning::to_model).transpose()?.map(Box::new),
        timing: timing::to_model(spec.timing.as_ref()),
        mail: mail::to_model(spec.mail.as_ref())?,
        comment: spec.comment.clone(),
        nice: spec.nice,
        reservation: Some(spec.reservation.clone()).filter(|name| !name.is_empty()),
    };
    model.validate()?;
    // Not a rule of the model: the ledger applies submissions of earlier versions again.
    if model.session && model.requeue == RequeuePolicy::Always {
        let why = "always is not for a session: it would get nodes again after any failure, and nobody would be at its terminal; \
                   on_node_failure and never are possible";
        return Err(SpecError::Invalid { field: "requeue", why: why.to_owned() });
    }
    tasks::check(&model)?;
    scaling::check(&model)?;
    stdin_check(&model)?;
    Ok(model)
}

/// Checks that the ranks can have standard input as requested.
fn stdin_check(model: &AllocationSpec) -> Result<(), SpecError> {
    let Some(asked) = model.env.get(STDIN_VARIABLE) else { return Ok(()) };
    let invalid = |why: String| SpecError::Invalid { field: "stdin", why };
    let stdin: Stdin = asked.parse().map_err(|unknown: NoSuchStdin| invalid(unknown.to_string()))?;
    stdin.check(model.ranks_min(), model.pty.is_some()).map_err(|not| invalid(not.to_string()))?;
    match model.entrypoint {
        Entrypoint::Script { .. } if stdin != Stdin::None => {
            Err(invalid("a script has no standard input; its launches may have some".to_owned()))
        }
        Entrypoint::Command { .. } if stdin != Stdin::None && model.tasks.is_some() => {
            Err(invalid("a task has no standard input: let it open the file of its index".to_owned()))
        }
        Entrypoint::Script { .. } | Entrypoint::Command { .. } => Ok(()),
    }
}

/// Encodes a specification. [`to_model`] returns the same specification if it is valid, its
/// walltime is in whole seconds, and it allows at least one requeue.
pub fn from_model(spec: &AllocationSpec) -> v1::AllocationSpec {
    v1::AllocationSpec {
        name: spec.name.clone(),
        tenant: spec.tenant.clone(),
        project: spec.project.clone(),
        vcluster: spec.vcluster.clone(),
        tags: spec.tags.clone().into_iter().collect(),
        environment: spec.uenv.as_deref().map(image::from_model),
        entrypoint: (!spec.session).then(|| entrypoint::from_model(&spec.entrypoint)),
        resources: Some(v1::ResourceRequest {
            constraints: constraint::from_model(&spec.constraints),
            features: spec.constraints.choice.as_ref().map_or_else(String::new, ToString::to_string),
            nodelist: spec.constraints.nodes.iter().map(ToString::to_string).collect(),
            exclude: spec.constraints.excluded.iter().map(ToString::to_string).collect(),
            nodes_max: spec.nodes_max.unwrap_or_default(),
            spread: spec.spread.as_ref().map(amount),
            topology_wait_seconds: spec.topology_wait.map_or(0, |wait| wait.as_secs()),
            memory_unit: share::memory_unit_name(spec.memory_unit),
            cpus_per_gpu: spec.cpus_per_gpu,
            ntasks_per_gpu: spec.ntasks_per_gpu,
            exclusive_user: spec.exclusive_user,
            topology: topology_name(&spec.constraints),
            ..share::from_model(spec.nodes, spec.share.as_ref())
        }),
        lifecycle: Some(lifecycle::from_model(spec)),
        tasks_per_node: spec.tasks_per_node,
        binding: binding::from_model(&spec.binding),
        launch: shape::from_model(&spec.launch),
        working_dir: spec.working_dir.to_string_lossy().into_owned(),
        submit_host: spec.submit_host.clone(),
        submit_dir: spec.submit_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default(),
        env: spec.env.clone().into_iter().collect(),
        requeue: Some(lifecycle::requeue_from_model(spec.requeue, spec.requeues_max)),
        data: Some(data::from_model(&spec.data)),
        liveness_probe: spec.liveness_probe.as_deref().map(probe::from_model),
        pty: spec.pty.map(pty::from_model),
        session: spec.session,
        connectivity: connectivity::from_model(&spec.connectivity),
        on_isolation: spec.on_isolation.name().to_owned(),
        checkpoint: checkpoint::from_model(spec.checkpoint.as_ref()),
        hold: spec.hold,
        depends_on: dependency::all_from_model(spec),
        task_group: spec.tasks.as_deref().map(tasks::from_model),
        output_files: spec.output_files.as_deref().map(output_files::from_model),
        end_warning: spec.end_warning.as_deref().map(end_warning::from_model),
        timing: spec.timing.as_deref().map(timing::from_model),
        mail: spec.mail.as_deref().map(mail::from_model),
        comment: spec.comment.clone(),
        nice: spec.nice,
        reservation: spec.reservation.clone().unwrap_or_default(),
        ..Default::default()
    }
}

/// From how many topology groups its nodes may come; empty: from any.
pub fn topology_name(constraints: &Constraints) -> String {
    match constraints.topology {
        Topology::Any => String::new(),
        given @ (Topology::Tight | Topology::AtMost(_) | Topology::Contiguous) => given.to_string(),
    }
}

/// A refused specification as a gRPC status: `Unimplemented` for [`SpecError::NotBuilt`],
/// `InvalidArgument` otherwise.
pub fn status(error: &SpecError) -> tonic::Status {
    match error {
        SpecError::Invalid { .. } => tonic::Status::invalid_argument(error.to_string()),
        SpecError::NotBuilt { .. } => tonic::Status::unimplemented(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
