//! Members of tenants: whose work a tenant accepts, and the tenant of work that names none.
//!
//! ```text
//!   work names a tenant   it is open ──▶ accepted      it is closed ──▶ of its members and admins alone, and of root
//!   work names none       default of the account ──▶ the one default of its groups ──▶ none; but refused if it is a
//!                         member or admin of a closed tenant: nobody knows which one pays
//! ```
//!
//! A tenant is closed from its first member on, and stays closed after its last one has left: the removal
//! of a member admits nobody. A deleted tenant is no longer closed.
//!
//! A login at the site's identity provider may name tenants (`login_submissions`): then its user counts as
//! their member, without a default.
//!
//! Membership is checked when work is submitted; later changes do not affect that work. Root is meant only
//! while it acts for everybody.

use super::roles::{is_well_formed, subject_text};
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::access::{self, MemberChange, MemberStep, Roles, Standing, SubjectName, TenantMember};
use lattice_model::{Allocation, AllocationSpec, AuditAction, Principal};
use std::borrow::Cow;
use std::cell::OnceCell;
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

    /// The standing of a principal, whose login also makes it a member of `login_tenants`. Of the tenants that are
    /// closed to it, the result names only those in `about`.
    pub fn standing_of(&self, by: &Principal, login_tenants: &BTreeSet<String>, about: &BTreeSet<String>) -> Standing {
        let own = self.own_tenants(by, login_tenants);
        let member_of: BTreeSet<String> = self.tenant_members.closed().filter(|tenant| own.includes(tenant)).map(str::to_owned).collect();
        let is_closed_to_it = |tenant: &&String| self.tenant_members.is_closed(tenant) && !own.includes(tenant);
        let closed_to_it = about.iter().filter(is_closed_to_it).cloned().collect();
        let by_role = member_of.iter().filter(|tenant| !own.member_of.contains(tenant.as_str())).cloned().collect();
        let default_tenant = own.default.map(str::to_owned);
        Standing { member_of, by_role, closed_to_it, default_tenant, roles: own.roles().clone() }
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

    /// Removes all members of this name, whatever their numeric ids.
    fn remove_member(&mut self, context: &mut ApplyContext, tenant: &str, subject: &SubjectName, by: &str) -> Result<Outcome, Refusal> {
        let removed = self.tenant_members.remove(tenant, subject);
        if removed.is_empty() {
            return Err(Refusal::NoSuchMember { tenant: tenant.to_owned(), subject: subject.clone() });
        }
        let is_last = self.tenant_members.count_of(tenant) == 0;
        let rest = if is_last { ", which has none now and takes work from its admins alone" } else { "" };
        for member in &removed {
            let detail = format!("{} from {tenant}{rest}", subject_text(member));
            self.record(context, by, AuditAction::TenantMemberRemoved, Subject::default(), detail);
        }
        Ok(Outcome::Done)
    }

    /// The specification with the tenant of this owner's work filled in.
    ///
    /// # Errors
    /// As [`OwnTenants::missing`].
    pub(super) fn with_tenant<'a>(
        &self,
        spec: &'a AllocationSpec,
        owner: &Principal,
        login_tenants: &BTreeSet<String>,
    ) -> Result<Cow<'a, AllocationSpec>, Refusal> {
        Ok(match self.own_tenants(owner, login_tenants).missing(spec)? {
            Some(tenant) => Cow::Owned(AllocationSpec { tenant, ..spec.clone() }),
            None => Cow::Borrowed(spec),
        })
    }

    /// The tenants of this owner, whose login also makes it a member of `login_tenants`.
    pub(super) fn own_tenants<'a>(&'a self, owner: &'a Principal, login_tenants: &'a BTreeSet<String>) -> OwnTenants<'a> {
        let mut member_of: BTreeSet<&str> = login_tenants.iter().map(String::as_str).collect();
        let (mut of_account, mut of_groups) = (BTreeSet::new(), BTreeSet::new());
        for (tenant, member, is_default) in self.tenant_members.memberships(owner) {
            member_of.insert(tenant);
            if is_default {
                match member {
                    access::Subject::User { .. } => of_account.insert(tenant),
                    access::Subject::Group { .. } => of_groups.insert(tenant),
                };
            }
        }
        let only = |defaults: BTreeSet<&'a str>| defaults.first().copied().filter(|_| defaults.len() == 1);
        let default = only(of_account).or_else(|| only(of_groups));
        OwnTenants { ledger: self, owner, member_of, default, roles: OnceCell::new(), of_none: OnceCell::new() }
    }
}

/// The tenants of one owner, looked up once for a command: a DAG may have many steps.
pub(super) struct OwnTenants<'a> {
    ledger: &'a Ledger,
    owner: &'a Principal,
    /// The tenants that have it as a member.
    member_of: BTreeSet<&'a str>,
    /// The tenant for work that names none.
    default: Option<&'a str>,
    /// Looked up on first use: most work needs no roles.
    roles: OnceCell<Roles>,
    /// Whether its work may belong to no tenant.
    of_none: OnceCell<Result<(), Refusal>>,
}

impl OwnTenants<'_> {
    /// The tenant to fill in if the specification names none; `None`: it names a tenant that accepts the
    /// work, or the work belongs to no tenant.
    ///
    /// # Errors
    /// [`Refusal::NotOfTenant`], [`Refusal::TenantNotNamed`]
    pub(super) fn missing(&self, spec: &AllocationSpec) -> Result<Option<String>, Refusal> {
        let tenant = &spec.tenant;
        if tenant.is_empty() {
            return match self.default {
                Some(default) => Ok(Some(default.to_owned())),
                None => self.of_none.get_or_init(|| self.belongs_to_none()).clone().map(|()| None),
            };
        }
        if !self.ledger.tenant_members.is_closed(tenant) || self.includes(tenant) || self.roles().root {
            return Ok(None);
        }
        Err(Refusal::NotOfTenant { tenant: tenant.clone(), user: self.owner.name.clone() })
    }

    /// Refuses members and admins of closed tenants: nobody would pay for work without a tenant.
    fn belongs_to_none(&self) -> Result<(), Refusal> {
        if self.ledger.tenant_members.is_empty() {
            return Ok(());
        }
        let is_closed = |tenant: &&str| self.ledger.tenant_members.is_closed(tenant);
        let admin_of = self.roles().admin_of.iter().map(String::as_str).filter(is_closed);
        let its: BTreeSet<&str> = self.member_of.iter().copied().filter(is_closed).chain(admin_of).collect();
        if its.is_empty() {
            return Ok(());
        }
        let tenants: Vec<String> = its.iter().take(NAMED_MAX).map(|tenant| (*tenant).to_owned()).collect();
        let more = its.len().saturating_sub(tenants.len()) as u64;
        Err(Refusal::TenantNotNamed { user: self.owner.name.clone(), tenants, more })
    }

    /// Whether it is a member or an admin of the tenant.
    fn includes(&self, tenant: &str) -> bool {
        self.member_of.contains(tenant) || self.roles().admin_of.contains(tenant)
    }

    fn roles(&self) -> &Roles {
        self.roles.get_or_init(|| self.ledger.roles_of(self.owner))
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
