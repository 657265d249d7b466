//! `resources.constraints`: a map from keys to values. The value of the key `features` is a
//! comma-separated list. A key without a value is also a feature, and an unknown key is a feature
//! with a value.

use crate::v1;
use lattice_model::constraint::{Constraints, GPU_TYPE, UNIFIED_MEMORY};
use lattice_model::{NodeId, SpecError, Topology};

/// Bytes in one unit of `memory_gb`.
const GB: u64 = 1 << 30;

/// The constraints, and the memory policy, which is in the same map; empty: none.
pub(super) fn to_model(resources: Option<&v1::ResourceRequest>) -> Result<(Constraints, String), SpecError> {
    let (mut constraints, mut memory_policy) = (Constraints::default(), String::new());
    let invalid = |why: String| SpecError::Invalid { field: "constraint", why };
    for (key, value) in resources.into_iter().flat_map(|r| &r.constraints) {
        // `from_model` writes an unknown key as one of `features`, where surrounding spaces are
        // removed, so they are removed here too.
        let value = value.trim();
        let at_least = || {
            let number = value.strip_prefix(">=").unwrap_or(value).parse::<u32>();
            number.map_err(|_| invalid(format!("{key} needs a number, such as {key}=4")))
        };
        match key.as_str() {
            "features" => constraints.features.extend(value.split(',').map(|f| f.trim().to_owned()).filter(|f| !f.is_empty())),
            "gpu_count" => constraints.gpus = at_least()?,
            "memory_gb" => constraints.memory_bytes = u64::from(at_least()?) * GB,
            "memory_policy" => value.clone_into(&mut memory_policy),
            "require_unified_memory" => match value {
                "" | "true" => constraints.features.extend([UNIFIED_MEMORY.to_owned()]),
                "false" => {}
                _ => return Err(invalid("require_unified_memory must be true or false".to_owned())),
            },
            "require_conformance" => match value {
                "" | "true" => constraints.conformance = true,
                "false" => {}
                _ => return Err(invalid("require_conformance must be true or false".to_owned())),
            },
            // `unbuilt` refuses these unless the value is false.
            "prefer_same_numa" | "prefer_local_memory" | "allow_cxl_memory" => {}
            "topology" => constraints.topology = topology(value)?,
            GPU_TYPE if value.is_empty() => return Err(invalid(format!("{GPU_TYPE} needs a model, such as {GPU_TYPE}=GH200"))),
            key if value.starts_with(">=") => {
                return Err(invalid(format!("{key}{value}: only gpu_count and memory_gb can be compared, and only with >=")));
            }
            feature if value.is_empty() => constraints.features.extend([feature.to_owned()]),
            key => constraints.features.extend([format!("{key}={value}")]),
        }
    }
    if let Some(given) = resources.map(|r| r.topology.as_str()).filter(|given| !given.is_empty()) {
        let before = resources.and_then(|r| r.constraints.get("topology")).map(|value| value.trim());
        if before.is_some_and(|before| before != given) {
            return Err(SpecError::Invalid {
                field: "topology",
                why: format!("{given} contradicts the constraint topology: give one of them"),
            });
        }
        constraints.topology = topology(given)?;
    }
    for name in resources.into_iter().flat_map(|r| &r.nodelist) {
        let node = name.parse::<NodeId>().map_err(|why| SpecError::Invalid { field: "nodelist", why: why.to_string() })?;
        if !constraints.nodes.insert(node) {
            let why = format!("{name} is named twice: an allocation has each of its nodes once");
            return Err(SpecError::Invalid { field: "nodelist", why });
        }
    }
    Ok((constraints, memory_policy))
}

fn topology(name: &str) -> Result<Topology, SpecError> {
    let unknown = || SpecError::Invalid {
        field: "topology",
        why: format!("{:?} is not one of {}", name.chars().take(40).collect::<String>(), Topology::NAMES.join(", ")),
    };
    Topology::from_name(name).ok_or_else(unknown)
}

pub(super) fn from_model(constraints: &Constraints) -> std::collections::HashMap<String, String> {
    let features: Vec<&str> = constraints.features.iter().map(String::as_str).collect();
    let known = [
        ("features", features.join(",")),
        ("gpu_count", if constraints.gpus == 0 { String::new() } else { constraints.gpus.to_string() }),
        ("require_conformance", if constraints.conformance { "true".to_owned() } else { String::new() }),
        ("memory_gb", if constraints.memory_bytes == 0 { String::new() } else { constraints.memory_bytes.div_ceil(GB).to_string() }),
    ];
    known.into_iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| (key.to_owned(), value)).collect()
}
