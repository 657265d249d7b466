//! `lattice admin project …`.

use clap::{Args, Subcommand};
use lattice_model::access::SubjectName;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

const PROJECT_EXAMPLES: &str = "Examples:
  lattice admin project create physics/higgs
      work of physics that names a project names a registered one from now on
  lattice admin project member add physics/higgs user:alice
  lattice admin project member remove physics/higgs alice
  lattice admin project list physics
  lattice admin project delete physics/higgs

A project takes work of everybody who submits for the tenant. From its first
member on it takes new work of its members alone, and none when the last one is
removed. Work that names no project is accepted as before. Work that was
submitted before stays.

Members are accounts: user:NAME, or NAME. For admins of the tenant and system
admins; operators may list. An admin of the tenant is a member only if it is
added.";

#[derive(Args)]
#[command(after_help = PROJECT_EXAMPLES)]
pub struct ProjectAdmin {
    #[command(subcommand)]
    pub command: ProjectCommand,
}

#[derive(Subcommand)]
pub enum ProjectCommand {
    /// Register a project of a tenant
    Create(ProjectArgs),
    /// Delete a project; its work continues
    Delete(ProjectArgs),
    /// List the projects of a tenant and their members
    List(ProjectsOfTenant),
    /// Manage whose work belongs to a project
    Member(ProjectMembers),
}

#[derive(Args)]
pub struct ProjectArgs {
    /// The tenant and the project
    #[arg(value_name = "TENANT/NAME")]
    pub project: ProjectName,
}

#[derive(Args)]
pub struct ProjectsOfTenant {
    /// The tenant
    #[arg(value_name = "TENANT")]
    pub tenant: String,
}

#[derive(Args)]
pub struct ProjectMembers {
    #[command(subcommand)]
    pub command: ProjectMemberCommand,
}

#[derive(Subcommand)]
pub enum ProjectMemberCommand {
    /// Make an account a member of a project
    Add(MemberOfProject),
    /// Remove a member from a project
    Remove(MemberOfProject),
}

#[derive(Args)]
pub struct MemberOfProject {
    /// The tenant and the project
    #[arg(value_name = "TENANT/NAME")]
    pub project: ProjectName,
    /// The account: user:NAME, or NAME
    #[arg(value_name = "SUBJECT")]
    pub subject: SubjectName,
}

/// A project of a tenant: `physics/higgs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectName {
    pub tenant: String,
    pub name: String,
}

/// The text names no project.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("write TENANT/NAME, as in physics/higgs")]
pub struct ProjectNameError;

impl FromStr for ProjectName {
    type Err = ProjectNameError;

    fn from_str(text: &str) -> Result<Self, ProjectNameError> {
        let (tenant, name) = text.split_once('/').ok_or(ProjectNameError)?;
        if tenant.is_empty() || name.is_empty() || name.contains('/') {
            return Err(ProjectNameError);
        }
        Ok(Self { tenant: tenant.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for ProjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_named_with_its_tenant() {
        let higgs: ProjectName = "physics/higgs".parse().unwrap();
        assert_eq!((higgs.tenant.as_str(), higgs.name.as_str(), higgs.to_string().as_str()), ("physics", "higgs", "physics/higgs"));
        for text in ["", "physics", "physics/", "/higgs", "a/b/c"] {
            assert_eq!(text.parse::<ProjectName>(), Err(ProjectNameError), "{text}");
        }
    }
}
