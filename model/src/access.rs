//! Who may do what: roles, to whom they are granted, and the one table of the API's methods.
//!
//! ```text
//!   Principal ──bindings of the ledger──▶ Roles ─┐
//!   object: owner, tenant ──▶ Relation ──────────┼──▶ table: Reach of a method ──▶ allowed or not
//!   method, such as AllocationService/Cancel ────┘
//! ```
//!
//! Agents check the table before they execute a method, and the quorum checks it again for commands. The
//! answering member checks commands of operators, by their proof and the roles of the account that it
//! names. The ledger checks commands of users on an existing allocation, DAG or lease. It does not check
//! the members' own commands, nor submissions: who submits work is its owner.

mod projects;
mod reach;
mod scope;
mod table;

pub use projects::{Project, ProjectChange, ProjectStep};
pub use reach::{Reach, Relation};
pub use scope::{Scope, Scopes, ScopesError};
pub use table::{Rule, methods, rule};

use crate::principal::Principal;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A role that can be granted. Everybody has the role `user` without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Acts for all work of one tenant and names its members.
    TenantAdmin,
    /// Runs the machines: nodes, holds, other users' work, but not what the work reads and writes.
    Operator,
    /// May do everything. Whoever has an operator's certificate has this role too.
    SystemAdmin,
}

impl Role {
    /// All roles that can be granted.
    pub const ALL: [Self; 3] = [Self::TenantAdmin, Self::Operator, Self::SystemAdmin];

    /// The name that users type and read.
    pub fn name(self) -> &'static str {
        match self {
            Self::TenantAdmin => "tenant-admin",
            Self::Operator => "operator",
            Self::SystemAdmin => "system-admin",
        }
    }

    /// Whether it is granted for one tenant.
    pub fn is_of_tenant(self) -> bool {
        self == Self::TenantAdmin
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why a text names no role that can be granted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RoleError {
    /// Everybody has it.
    #[error("everybody has the role user: it is not granted")]
    User,
    /// A role of the design that is not built.
    #[error("the role claiming-user belongs to nodes that a user claims for sensitive work, which is not built yet")]
    ClaimingUser,
    /// None of the roles.
    #[error("{given:?} is not a role: give tenant-admin, operator or system-admin")]
    Unknown {
        /// The text.
        given: String,
    },
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        match (text, Self::ALL.into_iter().find(|role| role.name() == text)) {
            (_, Some(role)) => Ok(role),
            ("user", None) => Err(RoleError::User),
            ("claiming-user", None) => Err(RoleError::ClaimingUser),
            (other, None) => Err(RoleError::Unknown { given: other.to_owned() }),
        }
    }
}

/// An account or a group, by the name and number that the machine that served the command knew. Shown as
/// `user:alice` and `group:physics`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Subject {
    /// An account: whoever has both its name and its user id.
    User {
        /// Its name.
        name: String,
        /// Its user id.
        uid: u32,
    },
    /// All accounts in a group, primary or supplementary.
    Group {
        /// Its name.
        name: String,
        /// Its group id.
        gid: u32,
    },
}

impl Subject {
    /// Whether a principal is this account, or in this group.
    pub fn includes(&self, principal: &Principal) -> bool {
        match self {
            Self::User { name, uid } => principal.uid == *uid && principal.name == *name,
            Self::Group { gid, .. } => principal.gid == *gid || principal.groups.contains(gid),
        }
    }

    /// Its kind and name, without its number: what a user types to remove it.
    pub fn name(&self) -> SubjectName {
        match self {
            Self::User { name, .. } => SubjectName { is_group: false, name: name.clone() },
            Self::Group { name, .. } => SubjectName { is_group: true, name: name.clone() },
        }
    }

    /// Whether [`Self::name`] is this.
    pub fn has_name(&self, given: &SubjectName) -> bool {
        match self {
            Self::User { name, uid: _ } => !given.is_group && *name == given.name,
            Self::Group { name, gid: _ } => given.is_group && *name == given.name,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

/// How a user names an account or a group: `user:alice`, `group:physics`, or `alice` for the account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SubjectName {
    /// Whether it is a group.
    pub is_group: bool,
    /// The name of the account or group.
    pub name: String,
}

/// Largest size of the name of an account or group, in bytes.
pub const SUBJECT_NAME_BYTES_MAX: usize = 256;

/// A text that names neither an account nor a group.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{given:?} names no account or group: write user:NAME or group:NAME, a name of 1 to {SUBJECT_NAME_BYTES_MAX} bytes without control characters"
)]
pub struct SubjectNameError {
    /// The text.
    pub given: String,
}

impl FromStr for SubjectName {
    type Err = SubjectNameError;

    fn from_str(text: &str) -> Result<Self, SubjectNameError> {
        let (is_group, name) = match text.split_once(':') {
            Some(("group", name)) => (true, name),
            Some(("user", name)) => (false, name),
            Some(_) => (false, ""),
            None => (false, text),
        };
        if name.is_empty() || name.len() > SUBJECT_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(SubjectNameError { given: text.to_owned() });
        }
        Ok(Self { is_group, name: name.to_owned() })
    }
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", if self.is_group { "group" } else { "user" }, self.name))
    }
}

/// A granted role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RoleBinding {
    /// Who has it.
    pub subject: Subject,
    /// The role.
    pub role: Role,
    /// The tenant of a [`Role::TenantAdmin`]; `None` for the other roles.
    pub tenant: Option<String>,
}

/// The roles of one principal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// [`Role::Operator`].
    pub operator: bool,
    /// [`Role::SystemAdmin`].
    pub system_admin: bool,
    /// The tenants of which it is [`Role::TenantAdmin`].
    pub admin_of: BTreeSet<String>,
    /// Whether the principal is root of a machine whose agents vouch for users, and the cluster
    /// lets root act for everybody ([`RootMay`]).
    pub root: bool,
    /// Since when the tenants of `admin_of` exist, as far as the ledger knows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub admin_since: BTreeMap<String, Timestamp>,
}

impl Roles {
    /// The roles that these bindings give to a principal. `root_may` decides about root.
    pub fn of<'a>(principal: &Principal, bindings: impl IntoIterator<Item = &'a RoleBinding>, root_may: RootMay) -> Self {
        let root = principal.is_root() && root_may == RootMay::ActForEverybody;
        let mut roles = Self { root, ..Self::default() };
        for binding in bindings.into_iter().filter(|binding| binding.subject.includes(principal)) {
            match binding.role {
                Role::Operator => roles.operator = true,
                Role::SystemAdmin => roles.system_admin = true,
                Role::TenantAdmin => roles.admin_of.extend(binding.tenant.clone()),
            }
        }
        roles
    }

    /// The relation of the principal with these roles to an object of `owner` in `tenant` (empty: of no tenant).
    pub fn relation(&self, principal: &Principal, owner: &Principal, tenant: &str) -> Relation {
        if principal.owns(owner) { Relation::Own } else { self.relation_to_tenant(tenant) }
    }

    /// The tenant whose admins may act on work of `tenant`; empty: none. Work that had ended when this tenant was
    /// created belongs to a former tenant of this name.
    pub fn administered<'a>(&self, tenant: &'a str, ended_at: Option<Timestamp>) -> &'a str {
        let is_former = ended_at.zip(self.admin_since.get(tenant)).is_some_and(|(ended_at, since)| ended_at <= *since);
        if is_former { "" } else { tenant }
    }

    /// The relation of the principal with these roles to a tenant itself, or to another owner's object in it.
    pub fn relation_to_tenant(&self, tenant: &str) -> Relation {
        if self.admin_of.contains(tenant) { Relation::OwnTenant } else { Relation::Foreign }
    }

    /// Whether a principal with these roles may call a method on an object of this relation. Nobody may call a method that
    /// is not in the table.
    pub fn may(&self, method: &str, relation: Relation) -> bool {
        rule(method).is_some_and(|rule| self.reach(rule).covers(relation))
    }

    /// The reach of a principal with these roles for a method.
    pub fn reach(&self, rule: &Rule) -> Reach {
        let of = |has: bool, reach: Reach| if has { reach } else { Reach::Nothing };
        [
            rule.user,
            of(!self.admin_of.is_empty(), rule.tenant_admin),
            of(self.operator, rule.operator),
            of(self.system_admin, rule.system_admin),
            of(self.root, rule.root),
        ]
        .into_iter()
        .max()
        .unwrap_or(Reach::Nothing)
    }
}

/// What root of a machine whose agents vouch for users may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootMay {
    /// What the column `root` of the table says: it acts for every user.
    #[default]
    ActForEverybody,
    /// Root may do what any user may, and what is granted to `user:root`.
    ActForItself,
}

impl RootMay {
    /// The words that users type and read.
    pub fn name(self) -> &'static str {
        match self {
            Self::ActForEverybody => "everybody",
            Self::ActForItself => "itself",
        }
    }

    /// Whether it is the default.
    pub fn is_everybody(&self) -> bool {
        *self == Self::ActForEverybody
    }
}

impl FromStr for RootMay {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "everybody" => Ok(Self::ActForEverybody),
            "itself" => Ok(Self::ActForItself),
            _ => Err("root acts for everybody or for itself"),
        }
    }
}

/// The roles and tenants of a principal, as the quorum knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its roles.
    pub roles: Roles,
    /// The closed tenants of which it is a member or an admin. A tenant is closed from its first member on.
    pub member_of: BTreeSet<String>,
    /// Those of `member_of` of which it is no member: only its role opens them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub by_role: BTreeSet<String>,
    /// Those of the queried tenants that are closed, and of which it is neither a member nor an admin.
    pub closed_to_it: BTreeSet<String>,
    /// The tenant of its work if a submission names none.
    pub default_tenant: Option<String>,
}

/// A change of one tenant's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberChange {
    /// The tenant.
    pub tenant: String,
    /// What happens.
    pub step: MemberStep,
}

impl MemberChange {
    /// Whether only a system admin may make this change, and no tenant admin: it names a group, or sets a default. A default
    /// decides which tenant pays for work that names none, and may replace another tenant.
    pub fn needs_system_admin(&self) -> bool {
        match &self.step {
            MemberStep::Add { subject: Subject::User { .. }, is_default } => *is_default,
            MemberStep::Add { subject: Subject::Group { .. }, is_default: _ } => true,
            MemberStep::Remove { subject } => subject.is_group,
        }
    }
}

/// What happens to a tenant's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberStep {
    /// Becomes or stays a member. With `is_default`, this tenant replaces the default of the
    /// account or group: the tenant of work that names none. Otherwise the default stays.
    Add {
        /// The account or group.
        subject: Subject,
        /// Whether the tenant becomes its default.
        is_default: bool,
    },
    /// Is no member any more.
    Remove {
        /// The account or group.
        subject: SubjectName,
    },
}

/// Largest number of tenants of which one login makes its user a member.
pub const LOGIN_TENANTS_MAX: usize = 256;

/// A member of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TenantMember {
    /// The account or group.
    pub subject: Subject,
    /// Whether the tenant is its default.
    pub is_default: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(name: &str, uid: u32, groups: &[u32]) -> Principal {
        Principal { name: name.to_owned(), uid, gid: uid, groups: groups.to_vec() }
    }

    fn binding(subject: Subject, role: Role, tenant: Option<&str>) -> RoleBinding {
        RoleBinding { subject, role, tenant: tenant.map(str::to_owned) }
    }

    #[test]
    fn a_role_reaches_those_whom_the_binding_names_by_name_and_number() {
        let alice = Subject::User { name: "alice".to_owned(), uid: 7 };
        let physics = Subject::Group { name: "physics".to_owned(), gid: 50 };
        let bindings = [binding(alice, Role::Operator, None), binding(physics, Role::TenantAdmin, Some("physics"))];
        let of = |principal: &Principal| Roles::of(principal, &bindings, RootMay::ActForEverybody);
        assert!(of(&principal("alice", 7, &[])).operator);
        assert_eq!(of(&principal("bob", 7, &[])), Roles::default(), "another account that got the number");
        assert_eq!(of(&principal("alice", 8, &[])), Roles::default(), "the name on another machine");
        let bob = of(&principal("bob", 9, &[1, 50]));
        assert_eq!(bob.admin_of, BTreeSet::from(["physics".to_owned()]));
        assert_eq!(bob.relation(&principal("bob", 9, &[]), &principal("eve", 3, &[]), "physics"), Relation::OwnTenant);
        assert_eq!(bob.relation(&principal("bob", 9, &[]), &principal("eve", 3, &[]), ""), Relation::Foreign);
    }

    #[test]
    fn work_that_ended_before_the_tenant_was_created_is_not_its_admins() {
        let admin_since = BTreeMap::from([("physics".to_owned(), Timestamp(50))]);
        let roles = Roles { admin_of: BTreeSet::from(["physics".to_owned()]), admin_since, ..Roles::default() };
        let of = |ended_at: Option<u64>| roles.administered("physics", ended_at.map(Timestamp));
        assert_eq!([None, Some(51), Some(50), Some(7)].map(of), ["physics", "physics", "", ""]);
        assert_eq!(roles.administered("chemistry", Some(Timestamp(7))), "chemistry", "no tenant of this admin");
    }

    #[test]
    fn root_acts_for_everybody_until_the_site_narrows_it() {
        let root = principal("root", 0, &[]);
        let (wide, narrow) = (Roles::of(&root, [], RootMay::ActForEverybody), Roles::of(&root, [], RootMay::ActForItself));
        assert!(wide.may("AllocationService/Cancel", Relation::Foreign) && !narrow.may("AllocationService/Cancel", Relation::Foreign));
        assert!(narrow.may("AllocationService/Cancel", Relation::Own));
        assert!(!wide.may("AdminService/GrantRole", Relation::Foreign), "root alone changes no cluster");
    }

    #[test]
    fn an_admin_of_a_tenant_adds_and_removes_accounts_and_sets_no_default() {
        let alice = Subject::User { name: "alice".to_owned(), uid: 7 };
        let physics = Subject::Group { name: "physics".to_owned(), gid: 50 };
        let needs = |step: MemberStep| MemberChange { tenant: "physics".to_owned(), step }.needs_system_admin();
        let add = |subject: &Subject, is_default| MemberStep::Add { subject: subject.clone(), is_default };
        let remove = |subject: &Subject| MemberStep::Remove { subject: subject.name() };
        assert_eq!([add(&alice, false), remove(&alice)].map(needs), [false, false]);
        assert_eq!([add(&alice, true), add(&physics, false), add(&physics, true), remove(&physics)].map(needs), [true; 4]);
    }

    #[test]
    fn names_of_subjects_and_roles_are_read_as_they_are_printed_and_all_else_is_refused() {
        for text in ["user:alice", "group:physics"] {
            assert_eq!(text.parse::<SubjectName>().unwrap().to_string(), text);
        }
        let subjects = [Subject::User { name: "a".to_owned(), uid: 7 }, Subject::Group { name: "a".to_owned(), gid: 7 }];
        for (name, has) in [("user:a", [true, false]), ("group:a", [false, true]), ("user:b", [false, false])] {
            let name = name.parse().unwrap();
            assert_eq!(subjects.each_ref().map(|subject| subject.has_name(&name)), has);
            assert_eq!(subjects.each_ref().map(|subject| subject.name() == name), has);
        }
        assert_eq!("alice".parse::<SubjectName>().unwrap().to_string(), "user:alice");
        for text in ["", "user:", "grp:x", "a\nb", "user:a\u{7}"] {
            assert!(text.parse::<SubjectName>().is_err(), "{text:?}");
        }
        for role in Role::ALL {
            assert_eq!(role.name().parse::<Role>(), Ok(role));
        }
        assert_eq!("user".parse::<Role>(), Err(RoleError::User));
        assert_eq!("claiming-user".parse::<Role>(), Err(RoleError::ClaimingUser));
        assert!("admin".parse::<Role>().is_err());
    }
}
