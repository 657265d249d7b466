//! `lattice admin accounting …`.

use super::history::HistoryFilter;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

const ACCOUNTING_NOTE: &str = "\
An agent with the role accounting writes all work that ends into a database
(accounting.store in its agent.yaml). `lattice history` shows it.

`move` lets another store continue: give an agent the new store, wait until
`status` shows that nothing waits, and move. The former store is left as it is.
System admins move; operators, and admins of a tenant for its work, export.
Without --since, an export has everything.

Examples:
  lattice admin accounting status
  lattice admin accounting export --since 2026-02-01 --until 2026-03-01 \\
      --file february.csv";

#[derive(Args)]
#[command(after_help = ACCOUNTING_NOTE)]
pub struct Accounting {
    #[command(subcommand)]
    pub command: AccountingCommand,
}

#[derive(Subcommand)]
pub enum AccountingCommand {
    /// Show which store has the ended work, and whether it has all of it
    Status,
    /// Write ended work to a file or to stdout, the oldest first
    Export(Box<ExportHistory>),
    /// Let another store continue
    Move(MoveStore),
}

#[derive(Args)]
pub struct ExportHistory {
    #[command(flatten)]
    pub filter: HistoryFilter,
    /// csv, parquet, or json: one record in each line
    #[arg(long, value_name = "FORMAT", default_value = "csv")]
    pub format: ExportFormat,
    /// The file, which appears when it is complete [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Args)]
pub struct MoveStore {
    /// Also if the present store does not have everything: what it has not confirmed goes to the next one
    #[arg(long)]
    pub force: bool,
}

/// How an export is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Comma-separated values with a head line (RFC 4180).
    Csv,
    /// One JSON object in each line.
    Json,
    /// A table of Apache Parquet.
    Parquet,
}

impl FromStr for ExportFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "csv" => Ok(Self::Csv),
            "json" => Ok(Self::Json),
            "parquet" => Ok(Self::Parquet),
            _ => Err("the formats are csv, json and parquet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_format_is_refused_with_those_that_there_are() {
        assert_eq!(("csv".parse(), "json".parse()), (Ok(ExportFormat::Csv), Ok(ExportFormat::Json)));
        assert_eq!("parquet".parse(), Ok(ExportFormat::Parquet));
        assert!("xml".parse::<ExportFormat>().unwrap_err().contains("csv, json and parquet"));
    }
}
