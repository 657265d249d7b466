//! `lattice admin token …`.

use clap::{Args, Subcommand};
use lattice_model::access::Scopes;
use lattice_model::access_token::{LIFETIME_DAYS_MAX, TokenId};

const TOKEN_EXAMPLES: &str = "Examples:
  lattice admin token issue ci --account builder --scopes read,work --days 90
      a program submits and follows work as builder; the token is printed once
  lattice admin token issue tv --account viewer --scopes read --days 7 > FILE
  lattice admin token list --account builder
  lattice admin token revoke 7f0c9a4e5b7d4c39

Scopes:
  read    what every user may read
  work    submit work, and act on the account's own work
  admin   all that the account may do, its roles included

The agent that serves the command looks up the account; root gets no token. A
revoked token opens nothing more after 10 seconds at the latest.

System admins issue tokens, and list and revoke all of them. Everybody lists and
revokes those of their own account.";

#[derive(Args)]
#[command(after_help = TOKEN_EXAMPLES)]
pub struct TokenAdmin {
    #[command(subcommand)]
    pub command: TokenCommand,
}

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Issue a token for an account, and print it: nobody can read it again
    Issue(IssueToken),
    /// List the tokens that you may see, without their secrets
    List(ListTokens),
    /// Revoke a token, by its id
    Revoke(RevokeToken),
}

#[derive(Args)]
pub struct IssueToken {
    /// What the token is for: shown in lists and in the audit log
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The account as which the program acts
    #[arg(long, value_name = "NAME")]
    pub account: String,
    /// What the token opens: read, work and admin, several with commas
    #[arg(long, value_name = "SCOPES")]
    pub scopes: Scopes,
    /// After how many days it expires (1 to 366)
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=i64::from(LIFETIME_DAYS_MAX)))]
    pub days: u32,
}

#[derive(Args)]
pub struct ListTokens {
    /// Only the tokens of this account
    #[arg(long, value_name = "NAME")]
    pub account: Option<String>,
}

#[derive(Args)]
pub struct RevokeToken {
    /// The token's id, as the list shows it
    #[arg(value_name = "ID")]
    pub id: TokenId,
}
