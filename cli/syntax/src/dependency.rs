//! Values of `--depends-on`: `ID`, `ID:CONDITION`, `ID:after+DELAY` or `singleton`.

use lattice_api::spec::singleton;
use lattice_api::v1;
use lattice_model::DependencyCondition;
use lattice_model::dependency::{NoSuchCondition, SINGLETON};
use thiserror::Error;

/// The text is not a dependency.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DependencyError {
    #[error("write ID or ID:CONDITION, such as 1f0c9a4e or 1f0c9a4e:failure, or singleton")]
    NoId,
    #[error(
        "`?` is not supported: all that is named counts, with commas between; for one of several, submit the work with --hold, \
         and let each of the others run `lattice resume ID || true`"
    )]
    AnyOf,
    #[error(transparent)]
    Condition(#[from] NoSuchCondition),
}

/// Parses `ID`, `ID:CONDITION` or `singleton`. The id may be a job number, a prefix, or `@last`: the agent looks it up.
pub fn parse_dependency(text: &str) -> Result<v1::Dependency, DependencyError> {
    if text.contains('?') {
        return Err(DependencyError::AnyOf);
    }
    match text.split_once(':') {
        Some((id, condition)) => named(id, Some(condition)),
        None => named(text, None),
    }
}

/// A dependency on the allocation with this name; without a condition, on its success. The name `singleton` alone
/// names no allocation.
pub fn named(name: &str, condition: Option<&str>) -> Result<v1::Dependency, DependencyError> {
    let condition = match condition {
        None if name == SINGLETON => return Ok(singleton()),
        None => DependencyCondition::Success,
        Some(condition) => condition.parse()?,
    };
    if name.is_empty() {
        return Err(DependencyError::NoId);
    }
    Ok(v1::Dependency { r#ref: name.to_owned(), condition: condition.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_without_a_condition_is_to_succeed() {
        let read = |text: &str| parse_dependency(text).map(|read| format!("{} {}", read.r#ref, read.condition));
        let all = ["1f0c", "@last:any", "1f0c:failure", "a:mutex", "a:after", "a:corresponding"].map(|text| read(text).unwrap());
        assert_eq!(all, ["1f0c success", "@last any", "1f0c failure", "a mutex", "a after", "a corresponding"]);
        assert_eq!(read("singleton").unwrap(), " singleton");
        assert_eq!(read(":any"), Err(DependencyError::NoId));
        assert_eq!(read(""), Err(DependencyError::NoId));
        let refused = |text: &str| read(text).unwrap_err().to_string();
        assert!(refused("1f0c:ok").starts_with("\"ok\" is no condition") && refused("1f0c:").starts_with("\"\" is no condition"));
        assert!(refused("1f0c:singleton").contains("write singleton alone"));
        assert!(refused("1f0c?2f0c").contains("submit the work with --hold") && refused("1f0c:any?2f0c:any").starts_with("`?`"));
    }

    #[test]
    fn a_beginning_may_have_a_delay() {
        let read = |text: &str| parse_dependency(text).map(|read| format!("{} {}", read.r#ref, read.condition));
        for (text, wanted) in [
            ("1f0c:after+10m", "1f0c after+10m"),
            ("1f0c:after+5", "1f0c after+5m"),
            ("@last:after+0:03", "@last after+3s"),
            ("1f0c:after+1-00", "1f0c after+1d"),
            ("1f0c:after+0", "1f0c after"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(wanted), "{text}");
        }
        let refused = |text: &str| read(text).unwrap_err().to_string();
        assert!(refused("1f0c:after+soon").starts_with("\"after+soon\" has no valid delay: write after+10m"));
        assert!(refused("1f0c:after+400d").ends_with("365 days at most") && refused("1f0c:any+5m").contains("is no condition"));
    }
}
