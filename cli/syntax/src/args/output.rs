//! Formats of answers.

use clap::ValueEnum;
use serde::Deserialize;

/// The values of `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// Aligned columns for people
    Table,
    /// A table with more columns
    Wide,
    /// JSON for programs; its fields are documented and stable
    Json,
    /// The same fields as YAML
    Yaml,
    /// Only the ids or names, one per line
    Name,
    /// For launch: the output of each rank, in a file of its own
    #[serde(skip)]
    PerRank,
    /// For dag show: the graph, for Graphviz
    #[serde(skip)]
    Dot,
}
