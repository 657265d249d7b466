//! `lattice quorum …`.

use super::rest::Rest;
use clap::{Args, Subcommand};
use std::ffi::OsString;

#[derive(Args)]
pub struct Quorum {
    #[command(subcommand)]
    pub what: QuorumCommand,
}

#[derive(Subcommand)]
pub enum QuorumCommand {
    /// Who leads, who follows, how far each is, as the member in use sees it
    Status,
    /// The members, as the leader sees them
    Members,
    /// Let a member join: it runs already, with an empty data_dir and without --bootstrap; it learns, then votes
    Add(AddMember),
    /// Take a member out; it stops serving
    Remove(MemberId),
    /// Let a new member vote in the place of another, in one change
    Replace(ReplaceMember),
    /// Let another member lead
    TransferLeader(Transfer),
    /// The built-in certificate authority: init, issue, renew, operator; revoke, revoked
    Ca(Ca),
    /// Copy the state to the place for backups now; on a member's machine, by lattice-quorum
    #[command(disable_help_flag = true)]
    Backup(Rest),
    /// Check a backup whole; on a member's machine, by lattice-quorum
    #[command(disable_help_flag = true)]
    Verify(Rest),
    /// Go on from a backup after the loss of the whole quorum, or (--plan) say what is the matter; on a member's machine, by lattice-quorum
    #[command(disable_help_flag = true)]
    Recover(Rest),
    /// Go back to a backup on purpose; on a member's machine, by lattice-quorum
    #[command(disable_help_flag = true)]
    Restore(Rest),
}

impl QuorumCommand {
    /// What a member's own program does, and how it calls that.
    pub fn of_a_member(&self) -> Option<(&'static str, &[OsString])> {
        match self {
            Self::Ca(Ca { what: CaCommand::WithItsKey(args) }) => Some(("ca", args)),
            Self::Backup(rest) => Some(("backup", &rest.args)),
            Self::Verify(rest) => Some(("verify", &rest.args)),
            Self::Recover(rest) => Some(("recover", &rest.args)),
            Self::Restore(rest) => Some(("restore", &rest.args)),
            Self::Ca(Ca { what: CaCommand::Revoke(_) | CaCommand::Revoked }) => None,
            Self::Status | Self::Members | Self::Add(_) | Self::Remove(_) | Self::Replace(_) | Self::TransferLeader(_) => None,
        }
    }
}

#[derive(Args)]
#[command(after_help = "On a machine with the authority's key, by lattice-quorum (each has --help):
  init      Make an authority
  issue     Issue a certificate to a member, an agent or a node
  renew     Put another certificate in the place of one
  operator  Issue an operator's credential")]
pub struct Ca {
    #[command(subcommand)]
    pub what: CaCommand,
}

#[derive(Subcommand)]
pub enum CaCommand {
    /// Certificates of a name, of any role, that were issued until now count no more, anywhere (operators): sessions and connections are
    /// closed, and the gossip key is replaced
    Revoke(Revoke),
    /// The names that were revoked
    Revoked,
    #[command(external_subcommand)]
    WithItsKey(Vec<OsString>),
}

#[derive(Args)]
pub struct Revoke {
    /// The name in them: a node's, an operator's, or a former member's (member-ID)
    pub name: String,
    /// Why, for others and the audit log
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

#[derive(Args)]
pub struct AddMember {
    /// Its id, one that no member had before
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
    /// The member
    pub id: u64,
}

#[derive(Args)]
pub struct ReplaceMember {
    /// The member that goes; it may be dead
    pub old: u64,
    #[command(flatten)]
    pub new: AddMember,
}

#[derive(Args)]
pub struct Transfer {
    /// The member that is to lead [default: the one that has most of the log]
    pub to: Option<u64>,
}
