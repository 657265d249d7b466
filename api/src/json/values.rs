//! Single values.

use lattice_model::DEFAULT_VCLUSTER;
use lattice_model::time::Timestamp;

/// A time as RFC 3339; `None` for 0, which means that there is none.
pub fn time(ms: u64) -> Option<String> {
    (ms != 0).then(|| Timestamp(ms).to_string())
}

/// `None` for an empty text.
pub fn filled(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// The name of something that has an owner; it may be empty. `None` if the agent hides both.
pub fn disclosed<'a>(name: &'a str, owner: &str) -> Option<&'a str> {
    (!owner.is_empty()).then_some(name)
}

/// The name of a vCluster; an empty text is the default one.
pub fn queue(vcluster: &str) -> &str {
    filled(vcluster).unwrap_or(DEFAULT_VCLUSTER)
}

/// `None` for an empty text.
pub(super) fn text(text: &str) -> Option<String> {
    filled(text).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_none() {
        assert_eq!((time(0), time(1_772_704_812_034).as_deref()), (None, Some("2026-03-05T10:00:12.034Z")));
        assert_eq!((filled(""), filled("a")), (None, Some("a")));
        assert_eq!((disclosed("", "ada"), disclosed("sim", "")), (Some(""), None));
        assert_eq!((queue(""), queue("gpu")), ("default", "gpu"));
    }
}
