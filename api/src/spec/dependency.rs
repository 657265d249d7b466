//! Dependencies on other allocations.

use crate::v1;
use lattice_model::{Dependency, DependencyCondition, SpecError};

/// The agent that accepts a submission has replaced the prefixes of ids that a user may write.
pub(super) fn to_model(dependency: &v1::Dependency) -> Result<Dependency, SpecError> {
    let v1::Dependency { r#ref, condition } = dependency;
    let invalid = |why: String| SpecError::Invalid { field: "depends-on", why };
    let on = r#ref.parse().map_err(|error: lattice_model::ids::IdError| invalid(error.to_string()))?;
    let condition = match condition.as_str() {
        "" => DependencyCondition::Success,
        named => named.parse().map_err(|error: lattice_model::dependency::NoSuchCondition| invalid(error.to_string()))?,
    };
    Ok(Dependency { on, condition })
}

pub(super) fn from_model(dependency: &Dependency) -> v1::Dependency {
    v1::Dependency { r#ref: dependency.on.to_string(), condition: dependency.condition.name().to_owned() }
}
