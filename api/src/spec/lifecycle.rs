//! Walltime, preemption class, requeues, how a service scales, and what happens on isolation.

use super::{Duration, scaling};
use crate::v1;
use lattice_model::spec::{OnIsolation, PREEMPTION_CLASS_DEFAULT, RequeuePolicy};
use lattice_model::{AllocationSpec, Scaling, SpecError};

/// Number of requeues when the message has 0.
const REQUEUES_DEFAULT: u32 = 3;
const BOUNDED: &str = "bounded";
const UNBOUNDED: &str = "unbounded";
const REACTIVE: &str = "reactive";

pub(super) struct Lifecycle {
    /// `None`: a service.
    pub walltime: Option<Duration>,
    pub preemption_class: u8,
    /// Only of a scaled service.
    pub scaling: Option<Scaling>,
}

/// [`super::unbuilt::refuse`] has already checked `type`. A missing walltime stays 0, which
/// validation refuses by name.
pub(super) fn to_model(lifecycle: Option<&v1::Lifecycle>) -> Result<Lifecycle, SpecError> {
    let Some(lifecycle) = lifecycle else {
        return Ok(Lifecycle { walltime: Some(Duration::ZERO), preemption_class: PREEMPTION_CLASS_DEFAULT, scaling: None });
    };
    let preemption_class = if lifecycle.preemption_class_set {
        u8::try_from(lifecycle.preemption_class).map_err(|_| SpecError::Invalid {
            field: "preemption-class",
            why: format!("{} given; it must be 0 to 10", lifecycle.preemption_class),
        })?
    } else if lifecycle.preemption_class == 0 {
        PREEMPTION_CLASS_DEFAULT
    } else {
        let why = "a class without preemption_class_set is ambiguous; set both".to_owned();
        return Err(SpecError::Invalid { field: "preemption-class", why });
    };
    let walltime = match (lifecycle.r#type.as_str(), lifecycle.walltime_seconds) {
        (UNBOUNDED, 0) => None,
        (UNBOUNDED, _) => {
            let why = "a service has no walltime: leave out --walltime or --service".to_owned();
            return Err(SpecError::Invalid { field: "walltime", why });
        }
        (REACTIVE, 0) => None,
        (REACTIVE, _) => {
            let why = "a scaled service has no walltime: leave out --walltime or --reactive".to_owned();
            return Err(SpecError::Invalid { field: "walltime", why });
        }
        (_, seconds) => Some(Duration::from_secs(seconds)),
    };
    let invalid = |why: &str| SpecError::Invalid { field: "reactive", why: why.to_owned() };
    let scaling = match (lifecycle.r#type.as_str(), &lifecycle.scaling) {
        (REACTIVE, Some(scaling)) => Some(scaling::scaling_request(scaling)?),
        (REACTIVE, None) => return Err(invalid("say how many replicas there may be, with --min-nodes and --max-nodes")),
        (_, Some(_)) => return Err(invalid("only a service of this type has replicas: add --reactive")),
        (_, None) => None,
    };
    Ok(Lifecycle { walltime, preemption_class, scaling })
}

pub(super) fn from_model(spec: &AllocationSpec) -> v1::Lifecycle {
    let r#type = match (&spec.scaling, spec.walltime) {
        (Some(_), _) => REACTIVE,
        (None, Some(_)) => BOUNDED,
        (None, None) => UNBOUNDED,
    };
    v1::Lifecycle {
        r#type: r#type.to_owned(),
        walltime_seconds: spec.walltime.map_or(0, |time| time.as_secs()),
        preemption_class: spec.preemption_class.into(),
        preemption_class_set: true,
        scaling: spec.scaling.as_deref().map(scaling::from_model),
    }
}

/// The lifecycle of the same service without scaling; other work is not changed.
pub(crate) fn without_scaling(lifecycle: v1::Lifecycle) -> v1::Lifecycle {
    if lifecycle.scaling.is_none() {
        return lifecycle;
    }
    v1::Lifecycle { r#type: UNBOUNDED.to_owned(), scaling: None, ..lifecycle }
}

/// Without a policy, a session is never requeued, because a user is waiting at its terminal; a
/// service is requeued after any failure, and other work when a node is lost.
pub(super) fn requeue_to_model(spec: &v1::AllocationSpec, service: bool) -> Result<(RequeuePolicy, u32), SpecError> {
    let absent = v1::Requeue::default();
    let requeue = spec.requeue.as_ref().unwrap_or(&absent);
    let policy = match requeue.policy.as_str() {
        "" if spec.session => RequeuePolicy::Never,
        "" if service => RequeuePolicy::Always,
        "never" => RequeuePolicy::Never,
        "" | "on_node_failure" => RequeuePolicy::OnNodeFailure,
        "always" => RequeuePolicy::Always,
        other => {
            let given: String = other.chars().take(40).collect();
            let why = format!("unknown policy {given:?}: use never, on_node_failure or always");
            return Err(SpecError::Invalid { field: "requeue", why });
        }
    };
    Ok((policy, if requeue.max == 0 { REQUEUES_DEFAULT } else { requeue.max }))
}

pub(super) fn on_isolation_to_model(given: &str) -> Result<OnIsolation, SpecError> {
    let known = [OnIsolation::Continue, OnIsolation::Stop];
    match known.into_iter().find(|choice| given == choice.name()) {
        Some(choice) => Ok(choice),
        None if given.is_empty() => Ok(OnIsolation::default()),
        None => {
            let given: String = given.chars().take(40).collect();
            Err(SpecError::Invalid { field: "on-isolation", why: format!("{given:?} is not one of continue, stop") })
        }
    }
}

pub(super) fn requeue_from_model(policy: RequeuePolicy, max: u32) -> v1::Requeue {
    let policy = match policy {
        RequeuePolicy::Never => "never",
        RequeuePolicy::OnNodeFailure => "on_node_failure",
        RequeuePolicy::Always => "always",
    };
    v1::Requeue { policy: policy.to_owned(), max }
}
