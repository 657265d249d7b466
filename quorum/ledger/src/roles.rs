//! Roles: who has them, and what they allow.
//!
//! ```text
//!   GrantRole, RevokeRole ──▶ bindings ──roles_of──▶ roles of a principal ──may──▶ the table of the model
//! ```
//!
//! A repeated grant is a success. The revocation of a role that nobody has is refused: after a typing error, the
//! intended role would stay unnoticed.
//!
//! The member that answers appends the machine to root's name where root acts on others' work, for the audit
//! log (`root@n1`). Root then has the roles of its account. Other names are those of accounts, also
//! `alice@example.org`, and no member changes them.

use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::access::{self, Role, RoleBinding, Roles, SubjectName};
use lattice_model::{AuditAction, Principal};

/// Largest number of granted roles.
pub(super) const BINDINGS_MAX: usize = if cfg!(test) { 100 } else { 10_000 };

impl Ledger {
    /// All granted roles, sorted.
    pub fn role_bindings(&self) -> impl Iterator<Item = &RoleBinding> {
        self.roles.iter()
    }

    /// The roles of a principal.
    pub fn roles_of(&self, by: &Principal) -> Roles {
        let mut roles = Roles::of(by, self.roles.of(by), self.limits.root_may);
        if by.is_root()
            && let Some((account, _machine)) = by.name.rsplit_once('@')
        {
            let account = Principal { name: account.to_owned(), ..by.clone() };
            let Roles { operator, system_admin, admin_of, root: _, admin_since: _ } =
                Roles::of(&account, self.roles.of(&account), self.limits.root_may);
            roles.operator |= operator;
            roles.system_admin |= system_admin;
            roles.admin_of.extend(admin_of);
        }
        let since = |name: &String| Some((name.clone(), self.tenants.get(name)?.since));
        roles.admin_since = roles.admin_of.iter().filter_map(since).collect();
        roles
    }

    /// Whether the table lets a principal call this method of the API on an object of `owner` in `tenant` (empty: of
    /// no tenant).
    pub fn may(&self, method: &str, by: &Principal, owner: &Principal, tenant: &str) -> bool {
        let roles = self.roles_of(by);
        roles.may(method, roles.relation(by, owner, tenant))
    }

    pub(super) fn grant_role(&mut self, context: &mut ApplyContext, binding: &RoleBinding, by: &str) -> Result<Outcome, Refusal> {
        let RoleBinding { subject, role, tenant } = binding;
        is_well_formed(subject)?;
        match tenant {
            Some(name) if role.is_of_tenant() && !self.tenants.contains_key(name) => return Err(self.no_such_tenant(name)),
            Some(_) if role.is_of_tenant() => {}
            None if role.is_of_tenant() => {
                return Err(Refusal::Malformed { why: format!("the role {role} is granted for one tenant, and none is named") });
            }
            Some(_) => return Err(Refusal::Malformed { why: format!("the role {role} is not granted for a tenant") }),
            None => {}
        }
        if self.roles.contains(binding) {
            return Ok(Outcome::Done);
        }
        if self.roles.len() >= BINDINGS_MAX {
            return Err(Refusal::TooMany { what: "granted roles".to_owned(), most: BINDINGS_MAX as u64 });
        }
        self.roles.insert(binding.clone());
        let detail = format!("{} to {}", role_text(*role, tenant.as_deref()), subject_text(subject));
        self.record(context, by, AuditAction::RoleGranted, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    /// Revokes the role of all accounts or groups of this name, whatever their numeric ids.
    pub(super) fn revoke_role(
        &mut self,
        context: &mut ApplyContext,
        (subject, role, tenant): (&SubjectName, Role, Option<&str>),
        by: &str,
    ) -> Result<Outcome, Refusal> {
        let is_meant =
            |binding: &&RoleBinding| binding.role == role && binding.tenant.as_deref() == tenant && binding.subject.name() == *subject;
        let revoked: Vec<RoleBinding> = self.roles.iter().filter(is_meant).cloned().collect();
        if revoked.is_empty() {
            return Err(Refusal::NoSuchBinding { subject: subject.clone(), role, tenant: tenant.map(str::to_owned) });
        }
        for binding in revoked {
            self.roles.remove(&binding);
            let detail = format!("{} from {}", role_text(role, tenant), subject_text(&binding.subject));
            self.record(context, by, AuditAction::RoleRevoked, Subject::default(), detail);
        }
        Ok(Outcome::Done)
    }

    /// The tenant is deleted: nobody is its admin any more. Returns how many bindings are gone.
    pub(super) fn revoke_admins_of(&mut self, tenant: &str) -> usize {
        let admins: Vec<RoleBinding> = self.roles.iter().filter(|binding| binding.tenant.as_deref() == Some(tenant)).cloned().collect();
        for binding in &admins {
            self.roles.remove(binding);
        }
        admins.len()
    }
}

/// Refuses a subject whose name nobody could type.
pub(super) fn is_well_formed(subject: &access::Subject) -> Result<(), Refusal> {
    match subject.to_string().parse::<SubjectName>() {
        Ok(_) => Ok(()),
        Err(error) => Err(Refusal::Malformed { why: error.to_string() }),
    }
}

/// An account or group with its number, for the audit log.
pub(super) fn subject_text(subject: &access::Subject) -> String {
    match subject {
        access::Subject::User { name: _, uid } => format!("{subject} (uid {uid})"),
        access::Subject::Group { name: _, gid } => format!("{subject} (gid {gid})"),
    }
}

fn role_text(role: Role, tenant: Option<&str>) -> String {
    tenant.map_or_else(|| role.to_string(), |tenant| format!("{role} of {tenant}"))
}
