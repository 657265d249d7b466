//! How things are shown, and writing them.

use crate::failure::Failure;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::io::Write;

/// How answers are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Aligned columns for people
    #[default]
    Table,
    /// JSON for programs; its fields are documented and stay
    Json,
    /// The bare ids or names, one a line
    Name,
}

/// What `-o` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Aligned columns for people
    Table,
    /// JSON for programs; its fields are documented and stay
    Json,
    /// The bare ids or names, one a line
    Name,
    /// Of launch: what each rank writes, in a file of its own
    PerRank,
}

impl Output {
    /// How answers are shown, where that is what it says.
    pub fn format(self) -> Option<Format> {
        match self {
            Self::Table => Some(Format::Table),
            Self::Json => Some(Format::Json),
            Self::Name => Some(Format::Name),
            Self::PerRank => None,
        }
    }
}

/// Writes text to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// Writes bytes to stdout, as they are.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Writes a value as JSON, indented, with a line end.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(|error| Failure::other(format!("cannot write JSON: {error}")))?;
    text.push('\n');
    print(&text)
}

/// Writes values as JSON, one a line.
pub fn print_json_lines(values: &[serde_json::Value]) -> Result<(), Failure> {
    print(&values.iter().map(|value| format!("{value}\n")).collect::<String>())
}

/// Writes one name a line.
pub fn print_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    print(&names.into_iter().map(|name| format!("{name}\n")).collect::<String>())
}
