//! The share of each node: `resources.cpus`, `memory_gb` or `memory_bytes`, `gpus`.

use crate::v1;
use lattice_model::Resources;
use lattice_model::SpecError;

/// Bytes in one unit of `memory_gb`.
const GB: u64 = 1 << 30;

pub(super) fn to_model(resources: Option<&v1::ResourceRequest>) -> Result<Option<Resources>, SpecError> {
    let Some(resources) = resources else { return Ok(None) };
    let invalid = |why: &str| Err(SpecError::Invalid { field: "mem", why: why.to_owned() });
    let memory_bytes = match (resources.memory_gb, resources.memory_bytes) {
        (0, bytes) => bytes,
        (gb, 0) => match gb.checked_mul(GB) {
            Some(bytes) => bytes,
            None => return invalid("it is more memory than any machine has"),
        },
        (_, _) => return invalid("memory_gb and memory_bytes are both given: give one of them"),
    };
    let asked = Resources { cores: resources.cpus, memory_bytes, gpus: resources.gpus };
    // The model refuses an empty share with a message that names what is missing.
    Ok((resources.shared || asked != Resources::default()).then_some(asked))
}

pub(super) fn from_model(nodes: u32, share: Option<&Resources>) -> v1::ResourceRequest {
    let asked = share.copied().unwrap_or_default();
    v1::ResourceRequest {
        nodes,
        shared: share.is_some(),
        cpus: asked.cores,
        memory_bytes: asked.memory_bytes,
        gpus: asked.gpus,
        ..Default::default()
    }
}

/// A resource amount as a message.
pub fn amount(resources: &Resources) -> v1::Amount {
    v1::Amount { cores: resources.cores, memory_bytes: resources.memory_bytes, gpus: resources.gpus }
}

pub(super) fn amount_to_model(amount: &v1::Amount) -> Resources {
    Resources { cores: amount.cores, memory_bytes: amount.memory_bytes, gpus: amount.gpus }
}
