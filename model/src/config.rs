//! Reads a component's YAML configuration and writes YAML. An unknown key is refused with its line
//! and the closest known key.

use serde::Serialize;
use serde::de::DeserializeOwned;
pub use serde_saphyr::Spanned;
use thiserror::Error;

/// An invalid configuration.
#[derive(Debug, Error)]
#[error("{file}: {what}")]
pub struct ConfigError {
    /// The file, as the caller named it.
    pub file: String,
    /// What is wrong, with line and suggestion.
    pub what: String,
}

/// Parses `text` (the contents of `file`) as a configuration. Configuration structs have
/// `deny_unknown_fields`.
pub fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, ConfigError> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    serde_saphyr::from_str(text).map_err(|error| {
        let what = error.to_string();
        let hint = suggestion(&what).map(|s| format!("\n  did you mean {s:?}?")).unwrap_or_default();
        ConfigError { file: file.to_owned(), what: what + &hint }
    })
}

/// A value as YAML in block style, ending with a newline. Any string that YAML 1.1 or 1.2 would
/// read as another type is quoted, and no line is folded, however long: reading the output gives
/// back the input.
pub fn write(value: &impl Serialize) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string_with_options(value, serde_saphyr::ser_options! { prefer_block_scalars: false })
}

/// The known name closest to `given`, if one is close enough to be a likely misspelling.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|k| (strsim::damerau_levenshtein(given, k), k)).min()?;
    (near.0 <= 1 + given.len() / 4).then_some(near.1)
}

/// Suggests the intended name from a message like "unknown field `x`, expected one of a, b" (names
/// with or without backticks).
fn suggestion(message: &str) -> Option<String> {
    let line = message.lines().find(|l| l.contains("unknown field"))?;
    let rest = &line[line.find("unknown field `")? + "unknown field `".len()..];
    let (given, rest) = rest.split_once('`')?;
    let (_, known) = rest.split_once("expected ")?;
    let known = known.strip_prefix("one of ").unwrap_or(known);
    let names = known.split([',', ' ']).map(|n| n.trim_matches(['`', '.', ':'])).filter(|n| !n.is_empty() && *n != "or");
    nearest(given, names).map(str::to_owned)
}

/// Whether the text is `host:port`.
pub fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    #[derive(Default)]
    struct Config {
        listen_address: String,
        id: u64,
        data_dir: String,
    }

    #[test]
    fn an_unknown_key_is_refused_with_line_and_suggestion() {
        let error = parse::<Config>("quorum.yaml", "listen_address: a\ndata_dri: b\n").unwrap_err().to_string();
        assert!(
            error.starts_with("quorum.yaml: ") && error.contains("data_dri") && error.contains("did you mean \"data_dir\"?"),
            "{error}"
        );
        assert!(error.contains("line 2") || error.contains(" 2:"), "{error}");
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        let config: Config = parse("x", "\n").unwrap();
        assert_eq!(config.id, 0);
        assert_eq!((config.listen_address.as_str(), config.data_dir.as_str()), ("", ""));
    }
}
