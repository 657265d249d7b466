//! Dependencies on other allocations.

use crate::v1;
use lattice_model::dependency::SINGLETON;
use lattice_model::{AllocationSpec, Dependency, DependencyCondition, SpecError};

/// The message by which work waits for all earlier work of its user with its name.
pub fn singleton() -> v1::Dependency {
    v1::Dependency { r#ref: String::new(), condition: SINGLETON.to_owned() }
}

/// Whether the message is [`singleton`]: it names no allocation.
pub fn is_singleton(dependency: &v1::Dependency) -> bool {
    dependency.r#ref.is_empty() && dependency.condition == SINGLETON
}

/// What an allocation depends on, and whether it is a singleton. The agent that accepts a submission
/// has replaced the prefixes of ids that a user may write.
pub(super) fn all_to_model(all: &[v1::Dependency]) -> Result<(Vec<Dependency>, bool), SpecError> {
    let named = all.iter().filter(|dependency| !is_singleton(dependency)).map(to_model).collect::<Result<_, _>>()?;
    Ok((named, all.iter().any(is_singleton)))
}

fn to_model(dependency: &v1::Dependency) -> Result<Dependency, SpecError> {
    let v1::Dependency { r#ref, condition } = dependency;
    let invalid = |why: String| SpecError::Invalid { field: "depends-on", why };
    let on = r#ref.parse().map_err(|error: lattice_model::ids::IdError| invalid(error.to_string()))?;
    let condition = match condition.as_str() {
        "" => DependencyCondition::Success,
        named => named.parse().map_err(|error: lattice_model::dependency::NoSuchCondition| invalid(error.to_string()))?,
    };
    Ok(Dependency { on, condition })
}

pub(super) fn all_from_model(spec: &AllocationSpec) -> Vec<v1::Dependency> {
    spec.depends_on.iter().map(from_model).chain(spec.singleton.then(singleton)).collect()
}

fn from_model(dependency: &Dependency) -> v1::Dependency {
    v1::Dependency { r#ref: dependency.on.to_string(), condition: dependency.condition.to_string() }
}
