//! Values of `--depends-on`.

use lattice_api::v1;
use lattice_model::DependencyCondition;
use lattice_model::dependency::NoSuchCondition;
use thiserror::Error;

/// The text does not say what work depends on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DependencyError {
    #[error("write ID or ID:CONDITION, such as 1f0c9a4e or 1f0c9a4e:failure")]
    NoId,
    #[error(transparent)]
    Condition(#[from] NoSuchCondition),
}

/// Parses `ID` or `ID:CONDITION`. The id may be a prefix, or `@last`: the agent looks it up.
pub fn parse_dependency(text: &str) -> Result<v1::Dependency, DependencyError> {
    let (id, condition) = match text.split_once(':') {
        Some((id, condition)) => (id, condition.parse::<DependencyCondition>()?),
        None => (text, DependencyCondition::Success),
    };
    if id.is_empty() {
        return Err(DependencyError::NoId);
    }
    Ok(v1::Dependency { r#ref: id.to_owned(), condition: condition.name().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_without_a_condition_is_to_succeed() {
        let read = |text: &str| parse_dependency(text).map(|read| format!("{} {}", read.r#ref, read.condition));
        let all = ["1f0c", "@last:any", "1f0c:failure", "a:mutex"].map(|text| read(text).unwrap());
        assert_eq!(all, ["1f0c success", "@last any", "1f0c failure", "a mutex"]);
        assert_eq!(read(":any"), Err(DependencyError::NoId));
        assert_eq!(read(""), Err(DependencyError::NoId));
        let refused = |text: &str| read(text).unwrap_err().to_string();
        assert!(refused("1f0c:ok").starts_with("\"ok\" is no condition") && refused("1f0c:").starts_with("\"\" is no condition"));
        assert!(refused("1f0c:corresponding").contains("corresponding is not built yet"));
    }
}
