//! `resources.constraints`: a map from keys to values. The value of the key `features` is a
//! comma-separated list. A key without a value is also a feature, and an unknown key is a feature
//! with a value. Beside the map, `resources.features` is an expression: [`feature_expression`].

use crate::v1;
use lattice_model::constraint::{Constraints, GPU_TYPE, UNIFIED_MEMORY};
use lattice_model::{NodeId, SpecError, Topology, feature_expression};
use std::collections::BTreeSet;

/// Bytes in one unit of `memory_gb`.
const GB: u64 = 1 << 30;
/// Nodes with a memory domain that is large enough come first.
const SAME_NUMA: &str = "prefer_same_numa";
/// Another name for `memory_policy=local`.
const LOCAL_MEMORY: &str = "prefer_local_memory";
/// The name of the memory policy that [`LOCAL_MEMORY`] stands for.
const LOCAL_POLICY: &str = "local";
/// The work may use memory behind CXL.
const CXL_MEMORY: &str = "allow_cxl_memory";

/// A memory policy that is asked for in the map of constraints.
pub(super) struct AskedPolicy {
    pub(super) name: String,
    /// As the user writes it.
    pub(super) given: String,
}

/// The constraints, and the memory policy, which is in the same map.
pub(super) fn to_model(resources: Option<&v1::ResourceRequest>) -> Result<(Constraints, Option<AskedPolicy>), SpecError> {
    let (mut constraints, mut memory_policy, mut prefers_local) = (Constraints::default(), String::new(), false);
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
            "core_count" => constraints.cores = at_least()?,
            "socket_count" => constraints.sockets = at_least()?,
            "gpu_count" => constraints.gpus = at_least()?,
            "memory_gb" => constraints.memory_bytes = u64::from(at_least()?) * GB,
            "memory_policy" => value.clone_into(&mut memory_policy),
            "require_unified_memory" => constraints.features.extend(is_on(key, value)?.then(|| UNIFIED_MEMORY.to_owned())),
            "require_conformance" => constraints.conformance = is_on(key, value)?,
            SAME_NUMA => constraints.same_numa = is_on(key, value)?,
            CXL_MEMORY => constraints.cxl_memory = is_on(key, value)?,
            LOCAL_MEMORY => prefers_local = is_on(key, value)?,
            "topology" => {
                let names = Topology::NAMES.join(" or --topology ");
                return Err(invalid(format!("topology is asked for with --topology {names} (in a request: resources.topology)")));
            }
            GPU_TYPE if value.is_empty() => return Err(invalid(format!("{GPU_TYPE} needs a model, such as {GPU_TYPE}=GH200"))),
            key if value.starts_with(">=") => {
                return Err(invalid(format!(
                    "{key}{value}: only core_count, socket_count, gpu_count and memory_gb can be compared, and only with >="
                )));
            }
            feature if value.is_empty() => constraints.features.extend([feature.to_owned()]),
            key => constraints.features.extend([format!("{key}={value}")]),
        }
    }
    if let Some(given) = resources.map(|r| r.topology.as_str()).filter(|given| !given.is_empty()) {
        constraints.topology = topology(given)?;
    }
    if let Some(resources) = resources {
        let expression = feature_expression::parse(&resources.features);
        let expression = expression.map_err(|error| invalid(format!("{}: {error}", clipped(&resources.features))))?;
        constraints.features.extend(expression.features);
        constraints.choice = expression.choice.map(Box::new);
        constraints.nodes = named("nodelist", &resources.nodelist, "an allocation has each of its nodes once")?;
        constraints.excluded = named("exclude", &resources.exclude, "name each node once")?;
    }
    Ok((constraints, asked_policy(memory_policy, prefers_local)?))
}

/// The nodes of a list, each once.
fn named(field: &'static str, names: &[String], once: &str) -> Result<BTreeSet<NodeId>, SpecError> {
    let mut nodes = BTreeSet::new();
    for name in names {
        let node = name.parse::<NodeId>().map_err(|why| SpecError::Invalid { field, why: why.to_string() })?;
        if !nodes.insert(node) {
            return Err(SpecError::Invalid { field, why: format!("{name} is named twice: {once}") });
        }
    }
    Ok(nodes)
}

/// The beginning of a long text.
fn clipped(text: &str) -> String {
    text.chars().take(80).collect()
}

fn invalid(why: String) -> SpecError {
    SpecError::Invalid { field: "constraint", why }
}

/// Whether a constraint that is on or off is on.
fn is_on(key: &str, value: &str) -> Result<bool, SpecError> {
    match value {
        "" | "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(invalid(format!("{key} must be true or false"))),
    }
}

/// The policy of `memory_policy`, or the one that `prefer_local_memory` stands for.
fn asked_policy(memory_policy: String, prefers_local: bool) -> Result<Option<AskedPolicy>, SpecError> {
    match (memory_policy.as_str(), prefers_local) {
        ("", false) => Ok(None),
        ("", true) => Ok(Some(AskedPolicy { name: LOCAL_POLICY.to_owned(), given: LOCAL_MEMORY.to_owned() })),
        (other, true) if other != LOCAL_POLICY => {
            Err(invalid(format!("{LOCAL_MEMORY} contradicts memory_policy={other}: give one of them")))
        }
        (given, _) => Ok(Some(AskedPolicy { given: format!("memory_policy={given}"), name: memory_policy })),
    }
}

fn topology(name: &str) -> Result<Topology, SpecError> {
    let unknown = || SpecError::Invalid {
        field: "topology",
        why: format!("{:?} is not one of {}, or a number of groups", name.chars().take(40).collect::<String>(), Topology::NAMES.join(", ")),
    };
    Topology::from_name(name).ok_or_else(unknown)
}

pub(super) fn from_model(constraints: &Constraints) -> std::collections::HashMap<String, String> {
    let features: Vec<&str> = constraints.features.iter().map(String::as_str).collect();
    let on = |is_on: bool| if is_on { "true".to_owned() } else { String::new() };
    let known = [
        ("features", features.join(",")),
        ("core_count", if constraints.cores == 0 { String::new() } else { constraints.cores.to_string() }),
        ("socket_count", if constraints.sockets == 0 { String::new() } else { constraints.sockets.to_string() }),
        ("gpu_count", if constraints.gpus == 0 { String::new() } else { constraints.gpus.to_string() }),
        ("require_conformance", on(constraints.conformance)),
        (SAME_NUMA, on(constraints.same_numa)),
        (CXL_MEMORY, on(constraints.cxl_memory)),
        ("memory_gb", if constraints.memory_bytes == 0 { String::new() } else { constraints.memory_bytes.div_ceil(GB).to_string() }),
    ];
    known.into_iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| (key.to_owned(), value)).collect()
}
