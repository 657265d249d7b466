//! Output formats, and writing output.

use crate::failure::Failure;
use crate::message::clear_progress;
use lattice_cli_syntax::args::output::Output;
use serde::Serialize;
use std::io::Write;

/// The format of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Aligned columns for people.
    #[default]
    Table,
    /// Data for programs.
    Data(Notation),
    /// Only the ids or names, one per line.
    Name,
}

impl Format {
    /// The format that `-o` names; `None`: the value is not a format of answers.
    pub fn of(output: Output) -> Option<Self> {
        match output {
            Output::Table | Output::Wide => Some(Self::Table),
            Output::Json => Some(Self::Data(Notation::Json)),
            Output::Yaml => Some(Self::Data(Notation::Yaml)),
            Output::Name => Some(Self::Name),
            Output::PerRank | Output::Dot => None,
        }
    }
}

/// How much of a table is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// Without empty columns and rarely needed ones.
    #[default]
    Terse,
    /// All columns.
    Wide,
}

impl Width {
    /// The width that `-o` names.
    pub fn of(output: Output) -> Self {
        match output {
            Output::Wide => Self::Wide,
            Output::Table | Output::Json | Output::Yaml | Output::Name | Output::PerRank | Output::Dot => Self::Terse,
        }
    }
}

/// The size limits of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    pub width: Width,
    /// Characters per line, if the output is a terminal; a terse table is made to fit.
    pub columns: Option<usize>,
}

/// The notation of data. Both have the same fields in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    Json,
    Yaml,
}

impl Notation {
    /// One value as text, indented, with a line end.
    pub fn text(self, value: &impl Serialize) -> Result<String, Failure> {
        match self {
            Self::Json => {
                let mut text =
                    serde_json::to_string_pretty(value).map_err(|error| Failure::other(format!("cannot write JSON: {error}")))?;
                text.push('\n');
                Ok(text)
            }
            Self::Yaml => lattice_model::config::write(value).map_err(|error| Failure::other(format!("cannot write YAML: {error}"))),
        }
    }

    /// Writes one value.
    pub fn print(self, value: &impl Serialize) -> Result<(), Failure> {
        print(&self.text(value)?)
    }

    /// Writes values of a stream: each is a line of JSON, or a YAML document.
    pub fn print_each<T: Serialize>(self, values: &[T]) -> Result<(), Failure> {
        print(&self.stream(values)?)
    }

    fn stream<T: Serialize>(self, values: &[T]) -> Result<String, Failure> {
        let line = |value: &T| -> Result<String, Failure> {
            let line = serde_json::to_string(value).map_err(|error| Failure::other(format!("cannot write JSON: {error}")))?;
            Ok(line + "\n")
        };
        match self {
            Self::Json => values.iter().map(line).collect(),
            Self::Yaml => values.iter().map(|value| Ok(format!("---\n{}", self.text(value)?))).collect(),
        }
    }
}

/// Writes text to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// Writes bytes to stdout, unchanged.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    clear_progress();
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Writes one name per line.
pub fn print_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    print(&names.into_iter().map(|name| format!("{name}\n")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Serialize)]
    struct Shown {
        node: &'static str,
        cores: u32,
        reason: Option<&'static str>,
        holds: Vec<&'static str>,
        committed: serde_json::Value,
    }

    #[test]
    fn both_notations_have_the_same_fields_in_the_same_order() {
        let shown = Shown { node: "n1", cores: 4, reason: None, holds: vec!["drain: a # b", "no"], committed: json!({ "gpus": 0 }) };
        let yaml = "node: n1\ncores: 4\nreason: null\nholds:\n- \"drain: a # b\"\n- \"no\"\ncommitted:\n  gpus: 0\n";
        assert_eq!(Notation::Yaml.text(&shown).ok().unwrap(), yaml);
        let json = Notation::Json.text(&shown).ok().unwrap();
        assert!(json.starts_with("{\n  \"node\": \"n1\",\n  \"cores\": 4,\n") && json.ends_with("}\n"), "{json}");
    }

    #[test]
    fn a_stream_is_a_line_or_a_document_each() {
        let values = [json!({ "at": 1 }), json!({ "at": 2 })];
        assert_eq!(Notation::Json.stream(&values).ok().unwrap(), "{\"at\":1}\n{\"at\":2}\n");
        assert_eq!(Notation::Yaml.stream(&values).ok().unwrap(), "---\nat: 1\n---\nat: 2\n");
    }
}
