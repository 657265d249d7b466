//! `lattice quorum …`.

use super::rest::Rest;
use clap::{Args, Subcommand};
use std::ffi::OsString;

#[derive(Args)]
pub struct Quorum {
    #[command(subcommand)]
    pub command: QuorumCommand,
}

#[derive(Subcommand)]
pub enum QuorumCommand {
    /// Show the leader, the followers and how far each is, as seen by the member to which the agent is connected
    Status,
    /// Show the members, as the leader sees them
    Members,
    /// Add a member, which already runs with an empty data_dir and without --bootstrap; it first copies the log, and
    /// then votes
    Add(AddMember),
    /// Remove a member; it stops serving
    Remove(MemberId),
    /// Replace a member by a new one, in one change
    Replace(ReplaceMember),
    /// Make another member the leader
    TransferLeader(Transfer),
    /// Manage the built-in certificate authority: init, issue, renew, operator, revoke, revoked
    Ca(Ca),
    /// Make a backup now (on a member's machine, by lattice-quorum)
    #[command(disable_help_flag = true)]
    Backup(Rest),
    /// Check every part of a backup (on a member's machine, by lattice-quorum)
    #[command(disable_help_flag = true)]
    Verify(Rest),
    /// Recover from a backup after the loss of the whole quorum, or diagnose it (--plan) (on a member's machine, by
    /// lattice-quorum)
    #[command(disable_help_flag = true)]
    Recover(Rest),
    /// Go back to a backup on purpose (on a member's machine, by lattice-quorum)
    #[command(disable_help_flag = true)]
    Restore(Rest),
}

impl QuorumCommand {
    /// The command and arguments for `lattice-quorum`, if that program executes this command.
    pub fn member_program_call(&self) -> Option<(&'static str, &[OsString])> {
        match self {
            Self::Ca(Ca { command: CaCommand::WithItsKey(args) }) => Some(("ca", args)),
            Self::Backup(rest) => Some(("backup", &rest.args)),
            Self::Verify(rest) => Some(("verify", &rest.args)),
            Self::Recover(rest) => Some(("recover", &rest.args)),
            Self::Restore(rest) => Some(("restore", &rest.args)),
            Self::Ca(Ca { command: CaCommand::Revoke(_) | CaCommand::Revoked }) => None,
            Self::Status | Self::Members | Self::Add(_) | Self::Remove(_) | Self::Replace(_) | Self::TransferLeader(_) => None,
        }
    }
}

#[derive(Args)]
#[command(after_help = "On a machine with the authority's key, by lattice-quorum (each has --help):
  init      Make an authority
  issue     Issue a certificate for a member, an agent or a node
  renew     Replace a certificate by a new one
  operator  Issue an operator's credential
  service   Issue the certificate of a service account")]
pub struct Ca {
    #[command(subcommand)]
    pub command: CaCommand,
}

#[derive(Subcommand)]
pub enum CaCommand {
    /// Revoke all certificates of a name that were issued until now (system admins). Its sessions and connections
    /// are closed, and the gossip key is replaced
    Revoke(Revoke),
    /// List the names that were revoked
    Revoked,
    #[command(external_subcommand)]
    WithItsKey(Vec<OsString>),
}

#[derive(Args)]
pub struct Revoke {
    /// The name in the certificates: that of a node, of an operator, of a former member (member-ID), or of a service
    /// account (account-NAME)
    pub name: String,
    /// The reason, for others and for the audit log
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

#[derive(Args)]
pub struct AddMember {
    /// The id of the new member; no member may ever have had it
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub id: u64,
    /// Where agents reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub service: String,
    /// Where members reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub raft: String,
}

#[derive(Args)]
pub struct MemberId {
    /// The id of the member
    pub id: u64,
}

#[derive(Args)]
pub struct ReplaceMember {
    /// The id of the member to replace; it may be dead
    pub old: u64,
    #[command(flatten)]
    pub new: AddMember,
}

#[derive(Args)]
pub struct Transfer {
    /// The id of the member that is to lead [default: the one that has most of the log]
    pub to: Option<u64>,
}
