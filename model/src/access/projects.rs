//! Projects of tenants: which projects work may name, and whose work may name them.

use super::{Subject, SubjectName};
use serde::{Deserialize, Serialize};

/// A change of one project of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectChange {
    /// The tenant.
    pub tenant: String,
    /// The project.
    pub project: String,
    /// What happens.
    pub step: ProjectStep,
}

/// What happens to a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProjectStep {
    /// It becomes or stays registered. From its tenant's first project on, work of the tenant names only registered ones.
    Create,
    /// It is no longer registered.
    Delete,
    /// An account becomes its member, or stays one.
    Add {
        /// The account; never a group.
        account: Subject,
    },
    /// An account is no member any more.
    Remove {
        /// The account.
        account: SubjectName,
    },
}

/// A registered project of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Its name.
    pub name: String,
    /// Whether only its members' work may name it: so from its first member on.
    pub is_closed: bool,
    /// Its members, by name.
    pub members: Vec<Subject>,
}
