//! `lattice admin role …`.

use crate::UsageError;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Args, Command, Error, Subcommand};
use lattice_model::access::{Role, SubjectName};
use std::ffi::OsStr;
use std::str::FromStr;

const ROLE_EXAMPLES: &str = "Examples:
  lattice admin role grant tenant-admin user:alice --tenant physics
      alice acts for all work of the tenant physics, and names its members
  lattice admin role grant operator group:hpc-ops
      every account of this group runs the machines
  lattice admin role revoke operator alice
  lattice admin role list --subject alice

SUBJECT is user:NAME or group:NAME; a NAME alone is an account. A role that is
granted to user:NAME is not that of the groups of this account: `role list`
shows what can be revoked, `lattice whoami` all roles of an account.

The agent that serves the command looks up the number of the account or group. A
role counts only for the account that has both this name and this number. With
the first grant the cluster trusts the agents that serve users (role api) when
they say who calls. An operator's certificate needs no grant.

System admins grant and revoke roles. Everybody lists their own roles, admins of
a tenant also those for it, operators all roles.";

#[derive(Args)]
#[command(after_help = ROLE_EXAMPLES)]
pub struct RoleAdmin {
    #[command(subcommand)]
    pub command: RoleCommand,
}

#[derive(Subcommand)]
pub enum RoleCommand {
    /// Grant a role to an account or a group
    Grant(RoleOfSubject),
    /// Revoke a role that was granted to an account or a group
    Revoke(RoleOfSubject),
    /// List the granted roles that you may see
    List(ListRoles),
}

#[derive(Args)]
pub struct RoleOfSubject {
    /// The role
    #[arg(value_name = "ROLE", value_parser = RoleParser)]
    pub role: Role,
    /// Who has it: user:NAME, group:NAME, or NAME for an account
    #[arg(value_name = "SUBJECT")]
    pub subject: SubjectName,
    /// The tenant of a tenant-admin; the other roles have none
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

impl RoleOfSubject {
    /// The tenant; `None` for a role that is not of one tenant.
    ///
    /// # Errors
    /// A role of a tenant without a tenant, or another role with one.
    pub fn tenant(&self) -> Result<Option<&str>, UsageError> {
        let role = self.role;
        match self.tenant.as_deref() {
            Some(tenant) if role.is_of_tenant() && !tenant.is_empty() => Ok(Some(tenant)),
            Some(_) if !role.is_of_tenant() => {
                let error = UsageError::new(format!("--tenant: the role {role} is not of one tenant"));
                Err(error.with_hint(format!("leave it out; only the role {} has it", Role::TenantAdmin)))
            }
            None if !role.is_of_tenant() => Ok(None),
            Some(_) | None => {
                let error = UsageError::new(format!("the role {role} is of one tenant, and none is named"));
                Err(error.with_hint("give --tenant=NAME; `lattice admin tenant list` shows the tenants"))
            }
        }
    }
}

#[derive(Args)]
pub struct ListRoles {
    /// Only the roles for this tenant
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only the roles that this account or group was granted: user:NAME, group:NAME, or NAME for an account
    #[arg(long, value_name = "SUBJECT")]
    pub subject: Option<SubjectName>,
}

/// Parses a role as the model does, and offers the roles to `--help` and to completion.
#[derive(Clone)]
struct RoleParser;

impl TypedValueParser for RoleParser {
    type Value = Role;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Role, Error> {
        Role::from_str.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Role::ALL.into_iter().map(|role| PossibleValue::new(role.name()).help(meaning(role)))))
    }
}

fn meaning(role: Role) -> &'static str {
    match role {
        Role::TenantAdmin => "Acts for all work of one tenant, and names its members",
        Role::Operator => "Runs the machines and all work, without access to what the work reads and writes",
        Role::SystemAdmin => "May do everything",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        role: RoleOfSubject,
    }

    fn parsed(line: &str) -> RoleOfSubject {
        Line::try_parse_from(std::iter::once("x").chain(line.split(' '))).unwrap_or_else(|error| panic!("{line}: {error}")).role
    }

    #[test]
    fn a_role_of_a_tenant_needs_one_and_the_others_have_none() {
        assert_eq!(parsed("tenant-admin alice --tenant=physics").tenant(), Ok(Some("physics")));
        assert_eq!(parsed("operator group:ops").tenant(), Ok(None));
        for (line, what, hint) in [
            ("tenant-admin alice", "the role tenant-admin is of one tenant, and none is named", "give --tenant=NAME;"),
            ("tenant-admin alice --tenant=", "the role tenant-admin is of one tenant, and none is named", "give --tenant=NAME;"),
            ("operator alice --tenant=physics", "--tenant: the role operator is not of one tenant", "leave it out;"),
            ("system-admin alice --tenant=", "--tenant: the role system-admin is not of one tenant", "leave it out;"),
        ] {
            let error = parsed(line).tenant().unwrap_err();
            assert_eq!(error.what, what, "{line}");
            assert!(error.hint.as_ref().is_some_and(|text| text.starts_with(hint)), "{line}: {error:?}");
        }
    }

    #[test]
    fn a_name_alone_is_an_account() {
        let subject = |line: &str| parsed(line).subject.to_string();
        assert_eq!([subject("operator alice"), subject("operator group:ops")], ["user:alice", "group:ops"]);
    }

    #[test]
    fn all_roles_are_offered() {
        let offered: Vec<String> = RoleParser.possible_values().into_iter().flatten().map(|value| value.get_name().to_owned()).collect();
        assert_eq!(offered, ["tenant-admin", "operator", "system-admin"]);
    }
}
