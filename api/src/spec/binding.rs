//! The binding of ranks: an empty string or 0 means that the field is not set.

use crate::v1;
use lattice_model::RankBinding;
use lattice_model::SpecError;
use lattice_model::binding::{BindingRequest, CpuBind, GPUS_PER_TASK_MAX, GpuBind, MemoryPolicy};

/// Decodes the binding.
///
/// # Errors
/// [`SpecError::Invalid`]: an unknown name, or more GPUs than a rank may have.
pub fn binding_request(message: Option<&v1::RankBinding>) -> Result<BindingRequest, SpecError> {
    let Some(v1::RankBinding { cpu_bind, gpus_per_task, gpu_bind, memory_policy }) = message else {
        return Ok(BindingRequest::default());
    };
    if *gpus_per_task > GPUS_PER_TASK_MAX {
        let why = format!("{gpus_per_task} given; at most {GPUS_PER_TASK_MAX} are possible");
        return Err(SpecError::Invalid { field: "gpus-per-task", why });
    }
    Ok(BindingRequest {
        cpu_bind: named_value("cpu-bind", &CpuBind::NAMES, cpu_bind)?,
        gpus_per_task: (*gpus_per_task > 0).then_some(*gpus_per_task),
        gpu_bind: named_value("gpu-bind", &GpuBind::NAMES, gpu_bind)?,
        memory_policy: named_value("memory-policy", &MemoryPolicy::NAMES, memory_policy)?,
    })
}

pub(super) fn from_model(binding: &RankBinding) -> Option<v1::RankBinding> {
    let message = v1::RankBinding {
        cpu_bind: name(&CpuBind::NAMES, &binding.cpu_bind, &CpuBind::default()),
        gpus_per_task: binding.gpus_per_task,
        gpu_bind: binding
            .gpu_bind
            .map(|bind| GpuBind::NAMES.iter().find(|(_, b)| *b == bind).map_or("", |(n, _)| *n))
            .unwrap_or("")
            .to_owned(),
        memory_policy: name(&MemoryPolicy::NAMES, &binding.memory_policy, &MemoryPolicy::default()),
    };
    (message != v1::RankBinding::default()).then_some(message)
}

pub(super) fn named_value<T: Copy>(field: &'static str, names: &[(&'static str, T)], given: &str) -> Result<Option<T>, SpecError> {
    if given.is_empty() {
        return Ok(None);
    }
    let known = names.iter().find(|(name, _)| *name == given).map(|(_, value)| *value);
    known.map(Some).ok_or_else(|| {
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        let given: String = given.chars().take(40).collect();
        SpecError::Invalid { field, why: format!("{given:?} is not one of {}", all.join(", ")) }
    })
}

fn name<T: PartialEq>(names: &[(&'static str, T)], value: &T, default: &T) -> String {
    let named = names.iter().find(|(_, known)| known == value && value != default);
    named.map_or("", |(name, _)| *name).to_owned()
}
