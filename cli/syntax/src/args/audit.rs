//! `lattice audit …`.

use crate::tasks::parse_job;
use clap::{Args, Subcommand};
use lattice_model::access_token::TokenId;
use std::path::PathBuf;

#[derive(Args)]
pub struct Audit {
    #[command(subcommand)]
    pub command: AuditCommand,
}

#[derive(Subcommand)]
pub enum AuditCommand {
    /// Show who did what, the oldest first: what you did, and what was done to your work
    Query(AuditQuery),
    /// Check a member's hash chain and every signature, and name the first record that is wrong (operators)
    Verify(AuditVerify),
    /// Write a signed JSON bundle that can be verified without Lattice (system admins)
    Export(AuditExport),
}

const AUDIT_QUERY_EXAMPLES: &str = "Examples:
  lattice audit query --alloc 1f0c9a4e
      the whole history of one allocation
  lattice audit query --job 4711
      the same, by its job number
  lattice audit query --user alice --since 2026-03-01 --until 2026-03-15
      what alice did, and what was done to alice's allocations, in two weeks
  lattice audit query --type attach-started,logs-read --since 1d -o json
      who looked at the work of whom since yesterday
  lattice audit query --token 7f0c9a4e5b7d4c39
      what a program requested with this token

You see the records of what you did, and of what was done to your work. Admins
of a tenant also see those of its work, operators see all records.

A time is 2026-03-01T10:00:00Z, a day (its beginning in UTC), or a time ago
(90s, 10m, 2h, 1d).";

#[derive(Args)]
pub struct AuditFilterArgs {
    /// What this user did, and what was done to this user's allocations; node:ID and member:ID name a node or a member
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// About this allocation: its id, the beginning of it, or @last
    #[arg(long, value_name = "ID")]
    pub alloc: Option<String>,
    /// About the allocation with this job number, also of one that ended long ago, if the site keeps accounts
    #[arg(long, value_name = "NUMBER", conflicts_with = "alloc", value_parser = parse_job)]
    pub job: Option<u64>,
    /// About this node
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Requested with the token that has this id, as `lattice admin token list` shows it; refused calls have it only in the detail
    #[arg(long, value_name = "ID")]
    pub token: Option<TokenId>,
    /// Of these types, separated by commas, such as AllocationEnded or attach-started
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<String>,
    /// Begin at this time
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// End before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
}

#[derive(Args)]
#[command(after_help = AUDIT_QUERY_EXAMPLES)]
pub struct AuditQuery {
    #[command(flatten)]
    pub filter: AuditFilterArgs,
    /// Begin after the record with this number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub after: u64,
    /// Show at most this many records
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
}

#[derive(Args)]
pub struct AuditVerify {
    /// A key (64 hexadecimal digits) that may have signed; may be given more than once; the check fails if any other
    /// key was used [default: any key]
    #[arg(long, value_name = "KEY")]
    pub key: Vec<String>,
}

#[derive(Args)]
pub struct AuditExport {
    #[command(flatten)]
    pub filter: AuditFilterArgs,
    /// The file to write [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}
