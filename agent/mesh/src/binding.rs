//! [`BindingRequest`] on the wire. The value of an option with named values is the index of its
//! name in the list of the names that users write.

use super::frame::FrameError;
use lattice_model::RankBinding;
use lattice_model::binding::{BindingRequest, CpuBind, GPUS_PER_TASK_MAX, GpuBind, MemoryPolicy};
use rkyv::{Archive, Deserialize, Serialize};

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireBinding {
    pub cpu_bind: Option<u8>,
    pub gpus_per_task: Option<u32>,
    pub gpu_bind: Option<u8>,
    pub memory_policy: Option<u8>,
}

impl From<BindingRequest> for WireBinding {
    fn from(asked: BindingRequest) -> Self {
        Self {
            cpu_bind: asked.cpu_bind.and_then(|v| place(&CpuBind::NAMES, v)),
            gpus_per_task: asked.gpus_per_task,
            gpu_bind: asked.gpu_bind.and_then(|v| place(&GpuBind::NAMES, v)),
            memory_policy: asked.memory_policy.and_then(|v| place(&MemoryPolicy::NAMES, v)),
        }
    }
}

impl From<RankBinding> for WireBinding {
    fn from(binding: RankBinding) -> Self {
        BindingRequest::from(binding).into()
    }
}

impl TryFrom<WireBinding> for BindingRequest {
    type Error = FrameError;

    fn try_from(wire: WireBinding) -> Result<Self, FrameError> {
        if wire.gpus_per_task.is_some_and(|n| n > GPUS_PER_TASK_MAX) {
            return Err(FrameError::Malformed);
        }
        Ok(Self {
            cpu_bind: wire.cpu_bind.map(|at| named(&CpuBind::NAMES, at)).transpose()?,
            gpus_per_task: wire.gpus_per_task,
            gpu_bind: wire.gpu_bind.map(|at| named(&GpuBind::NAMES, at)).transpose()?,
            memory_policy: wire.memory_policy.map(|at| named(&MemoryPolicy::NAMES, at)).transpose()?,
        })
    }
}

fn place<T: Copy + PartialEq>(names: &[(&str, T)], value: T) -> Option<u8> {
    names.iter().position(|(_, named)| *named == value).and_then(|at| u8::try_from(at).ok())
}

fn named<T: Copy>(names: &[(&str, T)], at: u8) -> Result<T, FrameError> {
    names.get(usize::from(at)).map(|(_, value)| *value).ok_or(FrameError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_decoded_and_others_are_refused() {
        for (_, cpu_bind) in CpuBind::NAMES {
            for gpu_bind in GpuBind::NAMES.iter().map(|(_, g)| Some(*g)).chain([None]) {
                for (_, memory_policy) in MemoryPolicy::NAMES {
                    let binding = RankBinding { cpu_bind, gpus_per_task: 3, gpu_bind, memory_policy };
                    let back = BindingRequest::try_from(WireBinding::from(binding)).unwrap();
                    assert_eq!(back.over(RankBinding::default()), binding);
                }
            }
        }
        assert!(BindingRequest::try_from(WireBinding { cpu_bind: Some(99), ..WireBinding::default() }).is_err());
        assert!(BindingRequest::try_from(WireBinding { gpus_per_task: Some(u32::MAX), ..WireBinding::default() }).is_err());
    }
}
