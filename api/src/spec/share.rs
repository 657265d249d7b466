//! The share of each node: `resources.cpus`, `memory_gb` or `memory_bytes`, `gpus`.

use crate::v1;
use lattice_model::{MemoryUnit, Resources, SpecError};

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

/// What the memory was given for.
pub(super) fn memory_unit_to_model(resources: Option<&v1::ResourceRequest>) -> Result<MemoryUnit, SpecError> {
    let name = resources.map_or("", |resources| resources.memory_unit.as_str());
    match MemoryUnit::NAMES.iter().find(|(known, _)| *known == name) {
        Some((_, unit)) => Ok(*unit),
        None if name.is_empty() => Ok(MemoryUnit::Node),
        None => Err(SpecError::Invalid { field: "memory_unit", why: format!("{name:?} is none of node, core and gpu") }),
    }
}

/// The name of the unit; empty: the memory was given for the node.
pub(super) fn memory_unit_name(unit: MemoryUnit) -> String {
    let name = MemoryUnit::NAMES.iter().find(|(_, known)| *known == unit && !known.is_node());
    name.map(|(name, _)| (*name).to_owned()).unwrap_or_default()
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
