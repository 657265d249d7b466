//! Members of tenants: whose work a tenant takes, and to which tenant work belongs that names none.
//!
//! ```text
//!   work names a tenant   without members ──▶ accepted          with members ──▶ of these and its admins alone, and of root
//!   work names none       default of the account ──▶ the one default of its groups ──▶ the only tenant of which it is a member
//!                         or admin ──▶ none. Of several tenants without a default: refused
//! ```
//!
//! This is decided when work is submitted. Later changes of the members do not concern it.

use super::refusal::Refusal;
use super::roles::{is_well_formed, subject_text};
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_model::access::{self, MemberChange, MemberStep, Standing, SubjectName, TenantMember};
use lattice_model::{Allocation, AllocationSpec, AuditAction, Principal};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Largest number of members of one tenant.
pub(super) const MEMBERS_MAX: usize = if cfg!(test) { 100 } else { 10_000 };
/// Largest number of members of all tenants together.
const MEMBERS_OF_ALL_MAX: usize = if cfg!(test) { 150 } else { 200_000 };
/// Largest number of tenants named in a refusal.
const NAMED_MAX: usize = 16;

impl Ledger {
    /// The members of a tenant: accounts by name, then groups by name.
    ///
    /// # Errors
    /// [`Refusal::NoSuchTenant`]
    pub fn tenant_members(&self, tenant: &str) -> Result<Vec<TenantMember>, Refusal> {
        if !self.tenants.contains_key(tenant) {
            return Err(self.no_such_tenant(tenant));
        }
        Ok(self.tenant_members.of_tenant(tenant).collect())
    }

    /// What is known of a principal.
    pub fn standing_of(&self, by: &Principal) -> Standing {
        let roles = self.roles_of(by);
        let own: BTreeSet<&str> = self.tenant_members.memberships(by).map(|(tenant, ..)| tenant).collect();
        let is_its = |tenant: &str| own.contains(tenant) || roles.admin_of.contains(tenant);
        let (its, others): (BTreeSet<String>, BTreeSet<String>) =
            self.tenant_members.tenants().map(str::to_owned).partition(|tenant| is_its(tenant));
        let default_tenant = self.default_tenant(by).ok().flatten();
        Standing { member_of: its, closed_to_it: others, default_tenant, roles }
    }

    pub(super) fn set_tenant_member(&mut self, context: &mut ApplyContext, change: &MemberChange, by: &str) -> Result<Outcome, Refusal> {
        let MemberChange { tenant, step } = change;
        if !self.tenants.contains_key(tenant) {
            return Err(self.no_such_tenant(tenant));
        }
        match step {
            MemberStep::Add { subject, is_default } => self.add_member(context, tenant, (subject, *is_default), by),
            MemberStep::Remove { subject } => self.remove_member(context, tenant, subject, by),
        }
    }

    /// A repetition is a success.
    fn add_member(
        &mut self,
        context: &mut ApplyContext,
        tenant: &str,
        (subject, becomes_default): (&access::Subject, bool),
        by: &str,
    ) -> Result<Outcome, Refusal> {
        is_well_formed(subject)?;
        let known = self.tenant_members.get(tenant, subject);
        if known.is_some_and(|is_default| is_default || !becomes_default) {
            return Ok(Outcome::Done);
        }
        if known.is_none() {
            let too_many = |what: String, most: usize| Err(Refusal::TooMany { what, most: most as u64 });
            if self.tenant_members.count_of(tenant) >= MEMBERS_MAX {
                return too_many(format!("members of tenant {tenant:?}"), MEMBERS_MAX);
            }
            if self.tenant_members.count() >= MEMBERS_OF_ALL_MAX {
                return too_many("members of tenants".to_owned(), MEMBERS_OF_ALL_MAX);
            }
        }
        let default = match self.tenant_members.default_of(subject).filter(|_| becomes_default) {
            Some(before) => format!(", its default instead of {before}"),
            None if becomes_default => ", its default".to_owned(),
            None => String::new(),
        };
        let detail = format!("{} in {tenant}{default}", subject_text(subject));
        self.tenant_members.insert(tenant, subject, becomes_default);
        self.record(context, by, AuditAction::TenantMemberAdded, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    /// Removes all members of this name, whatever their numbers.
    fn remove_member(&mut self, context: &mut ApplyContext, tenant: &str, subject: &SubjectName, by: &str) -> Result<Outcome, Refusal> {
        let removed = self.tenant_members.remove(tenant, subject);
        if removed.is_empty() {
            return Err(Refusal::NoSuchMember { tenant: tenant.to_owned(), subject: subject.clone() });
        }
        let open = if self.tenant_members.count_of(tenant) == 0 { ", which has none now: it takes work from everybody" } else { "" };
        for member in &removed {
            let detail = format!("{} from {tenant}{open}", subject_text(member));
            self.record(context, by, AuditAction::TenantMemberRemoved, Subject::default(), detail);
        }
        Ok(Outcome::Done)
    }

    /// The specification with the tenant to which the work of this owner belongs.
    ///
    /// # Errors
    /// [`Refusal::NotOfTenant`], [`Refusal::SeveralTenants`]
    pub(super) fn with_tenant<'a>(&self, spec: &'a AllocationSpec, owner: &Principal) -> Result<Cow<'a, AllocationSpec>, Refusal> {
        Ok(match self.missing_tenant(spec, owner)? {
            Some(tenant) => Cow::Owned(AllocationSpec { tenant, ..spec.clone() }),
            None => Cow::Borrowed(spec),
        })
    }

    /// The tenant to which work of this owner belongs whose specification names none; `None`: it names one, which
    /// takes the work, or it belongs to none.
    ///
    /// # Errors
    /// As [`Self::with_tenant`].
    pub(super) fn missing_tenant(&self, spec: &AllocationSpec, owner: &Principal) -> Result<Option<String>, Refusal> {
        if spec.tenant.is_empty() {
            return self.default_tenant(owner);
        }
        if self.tenant_members.count_of(&spec.tenant) > 0 && !self.is_of_tenant(owner, &spec.tenant) {
            return Err(Refusal::NotOfTenant { tenant: spec.tenant.clone(), user: owner.name.clone() });
        }
        Ok(None)
    }

    /// Whether a tenant with members takes the work of this principal.
    fn is_of_tenant(&self, owner: &Principal, tenant: &str) -> bool {
        if self.tenant_members.memberships(owner).any(|(of, ..)| of == tenant) {
            return true;
        }
        let roles = self.roles_of(owner);
        roles.root || roles.admin_of.contains(tenant)
    }

    /// The tenant of work of this owner that names none.
    fn default_tenant(&self, owner: &Principal) -> Result<Option<String>, Refusal> {
        let (mut of_account, mut of_groups, mut tenants) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (tenant, member, is_default) in self.tenant_members.memberships(owner) {
            tenants.insert(tenant.to_owned());
            if is_default {
                match member {
                    access::Subject::User { .. } => of_account.insert(tenant),
                    access::Subject::Group { .. } => of_groups.insert(tenant),
                };
            }
        }
        for defaults in [of_account, of_groups] {
            if let (Some(tenant), 1) = (defaults.first(), defaults.len()) {
                return Ok(Some((*tenant).to_owned()));
            }
        }
        tenants.extend(self.roles_of(owner).admin_of);
        if tenants.len() > 1 {
            return Err(Refusal::SeveralTenants { user: owner.name.clone(), tenants: tenants.into_iter().take(NAMED_MAX).collect() });
        }
        Ok(tenants.pop_first())
    }
}

/// Whether an allocation was submitted with this specification. A tenant that the submission did not name
/// was filled in, perhaps from a default that has changed since.
pub(super) fn was_sent_as(allocation: &Allocation, spec: &AllocationSpec) -> bool {
    if spec.tenant.is_empty() {
        let tenant = allocation.spec.tenant.clone();
        return allocation.was_submitted_as(&AllocationSpec { tenant, ..spec.clone() });
    }
    allocation.was_submitted_as(spec)
}
