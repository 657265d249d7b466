//! How long, how preemptible, and how often again.

use super::Duration;
use crate::v1;
use lattice_model::spec::{PREEMPTION_CLASS_DEFAULT, RequeuePolicy, SpecError};

/// Requeues when a message says 0.
const REQUEUES_DEFAULT: u32 = 3;

pub(super) struct Lifecycle {
    pub walltime: Duration,
    pub preemption_class: u8,
}

/// `type` was looked at by [`super::unbuilt::refuse`]. A missing walltime is left 0, which validation refuses by name.
pub(super) fn to_model(lifecycle: Option<&v1::Lifecycle>) -> Result<Lifecycle, SpecError> {
    let Some(lifecycle) = lifecycle else {
        return Ok(Lifecycle { walltime: Duration::ZERO, preemption_class: PREEMPTION_CLASS_DEFAULT });
    };
    let preemption_class = if lifecycle.preemption_class_set {
        u8::try_from(lifecycle.preemption_class).map_err(|_| SpecError::Invalid {
            field: "preemption-class",
            why: format!("{} given; 0 to 10 are possible", lifecycle.preemption_class),
        })?
    } else if lifecycle.preemption_class == 0 {
        PREEMPTION_CLASS_DEFAULT
    } else {
        let why = "a class without preemption_class_set is ambiguous; set both".to_owned();
        return Err(SpecError::Invalid { field: "preemption-class", why });
    };
    Ok(Lifecycle { walltime: Duration::from_secs(lifecycle.walltime_seconds), preemption_class })
}

pub(super) fn from_model(walltime: Duration, preemption_class: u8) -> v1::Lifecycle {
    v1::Lifecycle {
        r#type: "bounded".to_owned(),
        walltime_seconds: walltime.as_secs(),
        preemption_class: preemption_class.into(),
        preemption_class_set: true,
    }
}

pub(super) fn requeue_to_model(requeue: Option<&v1::Requeue>) -> Result<(RequeuePolicy, u32), SpecError> {
    let Some(requeue) = requeue else { return Ok((RequeuePolicy::Never, REQUEUES_DEFAULT)) };
    let policy = match requeue.policy.as_str() {
        "" | "never" => RequeuePolicy::Never,
        "on_node_failure" => RequeuePolicy::OnNodeFailure,
        "always" => RequeuePolicy::Always,
        other => {
            let given: String = other.chars().take(40).collect();
            let why = format!("{given:?} is no policy; never, on_node_failure and always are");
            return Err(SpecError::Invalid { field: "requeue", why });
        }
    };
    Ok((policy, if requeue.max == 0 { REQUEUES_DEFAULT } else { requeue.max }))
}

pub(super) fn requeue_from_model(policy: RequeuePolicy, max: u32) -> v1::Requeue {
    let policy = match policy {
        RequeuePolicy::Never => "never",
        RequeuePolicy::OnNodeFailure => "on_node_failure",
        RequeuePolicy::Always => "always",
    };
    v1::Requeue { policy: policy.to_owned(), max }
}
