//! Property test of roles and members of tenants: whatever is granted, revoked and deleted, the ledger
//! agrees with a simple record of it, and so does the ledger that was read back from a snapshot.

use super::scenarios::{LimitsChange, Story, user};
use super::{Action, Ledger, QuotaChange, SoftLimitsChange, TenantChange};
use lattice_model::Principal;
use lattice_model::access::{MemberChange, MemberStep, Role, RoleBinding, Roles, RootMay, Standing, Subject, TenantMember};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const TENANTS: [&str; 3] = ["physics", "statistics", "zoology"];

#[derive(Clone, Copy, Debug)]
enum Step {
    Create { tenant: usize },
    Delete { tenant: usize },
    Grant { subject: usize, role: Role, tenant: usize },
    Revoke { subject: usize, role: Role, tenant: usize },
    Add { subject: usize, tenant: usize, is_default: bool },
    Remove { subject: usize, tenant: usize },
    Narrow { root_may: RootMay },
}

fn a_step() -> impl Strategy<Value = Step> {
    let (subject, tenant, role) = (0..subjects().len(), 0..TENANTS.len(), prop::sample::select(Role::ALL.to_vec()));
    prop_oneof![
        2 => tenant.clone().prop_map(|tenant| Step::Create { tenant }),
        1 => tenant.clone().prop_map(|tenant| Step::Delete { tenant }),
        3 => (subject.clone(), role.clone(), tenant.clone()).prop_map(|(subject, role, tenant)| Step::Grant { subject, role, tenant }),
        1 => (subject.clone(), role, tenant.clone()).prop_map(|(subject, role, tenant)| Step::Revoke { subject, role, tenant }),
        6 => (subject.clone(), tenant.clone(), any::<bool>())
            .prop_map(|(subject, tenant, is_default)| Step::Add { subject, tenant, is_default }),
        2 => (subject, tenant).prop_map(|(subject, tenant)| Step::Remove { subject, tenant }),
        1 => prop::sample::select(vec![RootMay::ActForEverybody, RootMay::ActForItself]).prop_map(|root_may| Step::Narrow { root_may }),
    ]
}

/// Two groups have the same gid, and two accounts the same name. One account is root, and one has a name with an
/// `@`.
fn subjects() -> Vec<Subject> {
    let account = |name: &str, uid| Subject::User { name: name.to_owned(), uid };
    let group = |name: &str, gid| Subject::Group { name: name.to_owned(), gid };
    let accounts = [account("u1", 1), account("u2", 2), account("u2", 22), account("u2@n1", 2), account("root", 0)];
    accounts.into_iter().chain([group("g50", 50), group("h50", 50), group("g51", 51)]).collect()
}

fn principals() -> Vec<Principal> {
    let in_groups = |uid, groups: &[u32]| Principal { groups: groups.to_vec(), ..user(uid) };
    let named = |name: &str, uid| Principal { name: name.to_owned(), ..user(uid) };
    let of_root = [named("root", 0), named("root@n1", 0), named("other@n1", 0)];
    let others = [user(1), in_groups(1, &[50, 51]), user(2), named("u2@n1", 2), in_groups(3, &[50]), in_groups(4, &[51, 50]), user(5)];
    of_root.into_iter().chain(others).collect()
}

/// What was granted and not revoked.
#[derive(Default)]
struct Record {
    tenants: BTreeSet<String>,
    roles: BTreeSet<RoleBinding>,
    members: BTreeSet<(String, Subject)>,
    /// The tenants that had a member.
    closed: BTreeSet<String>,
    defaults: BTreeMap<Subject, String>,
    root_may: RootMay,
}

impl Record {
    /// Returns whether the step is possible.
    fn take(&mut self, step: Step) -> bool {
        let name = |tenant: usize| TENANTS[tenant].to_owned();
        match step {
            // A repetition is a success.
            Step::Create { tenant } => {
                self.tenants.insert(name(tenant));
                true
            }
            Step::Delete { tenant } => {
                let tenant = name(tenant);
                self.roles.retain(|binding| binding.tenant.as_ref() != Some(&tenant));
                self.members.retain(|(of, _)| *of != tenant);
                self.defaults.retain(|_, of| *of != tenant);
                self.closed.remove(&tenant);
                self.tenants.remove(&tenant)
            }
            Step::Grant { subject, role, tenant } => {
                let binding = binding(subject, role, tenant);
                let exists = binding.tenant.as_ref().is_none_or(|tenant| self.tenants.contains(tenant));
                if exists {
                    self.roles.insert(binding);
                }
                exists
            }
            Step::Revoke { subject, role, tenant } => {
                let RoleBinding { subject, role, tenant } = binding(subject, role, tenant);
                let before = self.roles.len();
                self.roles.retain(|other| (other.subject.name(), other.role, &other.tenant) != (subject.name(), role, &tenant));
                self.roles.len() < before
            }
            Step::Add { subject, tenant, is_default } => {
                let (subject, tenant) = (subjects()[subject].clone(), name(tenant));
                if !self.tenants.contains(&tenant) {
                    return false;
                }
                self.members.insert((tenant.clone(), subject.clone()));
                self.closed.insert(tenant.clone());
                if is_default {
                    self.defaults.insert(subject, tenant);
                }
                true
            }
            Step::Remove { subject, tenant } => {
                let (named, tenant) = (subjects()[subject].name(), name(tenant));
                let before = self.members.len();
                self.members.retain(|(of, subject)| *of != tenant || subject.name() != named);
                self.defaults.retain(|subject, of| *of != tenant || subject.name() != named);
                self.members.len() < before
            }
            Step::Narrow { root_may } => {
                self.root_may = root_may;
                true
            }
        }
    }

    fn members_of(&self, tenant: &str) -> Vec<TenantMember> {
        let members = self.members.iter().filter(|(of, _)| of == tenant).map(|(_, subject)| subject.clone());
        let is_default = |subject: &Subject| self.defaults.get(subject).is_some_and(|of| of == tenant);
        members.map(|subject| TenantMember { is_default: is_default(&subject), subject }).collect()
    }

    /// Root keeps its roles when a member appends a machine to its name.
    fn has(&self, by: &Principal, role: Role, tenant: Option<&str>) -> bool {
        let is_its = |subject: &Subject| is_of(subject, by) || (by.name == "root@n1" && is_root(subject));
        self.roles.iter().any(|binding| binding.role == role && binding.tenant.as_deref() == tenant && is_its(&binding.subject))
    }

    fn roles_of(&self, by: &Principal) -> Roles {
        Roles {
            operator: self.has(by, Role::Operator, None),
            system_admin: self.has(by, Role::SystemAdmin, None),
            admin_of: TENANTS.into_iter().filter(|name| self.has(by, Role::TenantAdmin, Some(*name))).map(str::to_owned).collect(),
            root: by.uid == 0 && self.root_may == RootMay::ActForEverybody,
            admin_since: BTreeMap::new(),
        }
    }

    fn standing_of(&self, by: &Principal) -> Standing {
        let roles = self.roles_of(by);
        let its = self.members.iter().filter(|(_, subject)| is_of(subject, by)).map(|(tenant, _)| tenant.clone());
        let as_member: BTreeSet<String> = its.collect();
        let its: BTreeSet<String> = as_member.union(&roles.admin_of).cloned().collect();
        let defaults = |groups: bool| {
            let own = self.defaults.iter().filter(|(subject, _)| is_of(subject, by) && subject.name().is_group == groups);
            let own: BTreeSet<&String> = own.map(|(_, tenant)| tenant).collect();
            own.first().filter(|_| own.len() == 1).map(|tenant| (*tenant).clone())
        };
        Standing {
            default_tenant: defaults(false).or_else(|| defaults(true)),
            member_of: self.closed.intersection(&its).cloned().collect(),
            by_role: self.closed.intersection(&roles.admin_of).filter(|tenant| !as_member.contains(*tenant)).cloned().collect(),
            closed_to_it: self.closed.difference(&its).cloned().collect(),
            roles,
        }
    }
}

fn is_of(subject: &Subject, by: &Principal) -> bool {
    match subject {
        Subject::User { name, uid } => (name, uid) == (&by.name, &by.uid),
        Subject::Group { name: _, gid } => by.groups.iter().chain([&by.gid]).any(|of| of == gid),
    }
}

fn is_root(subject: &Subject) -> bool {
    *subject == Subject::User { name: "root".to_owned(), uid: 0 }
}

fn binding(subject: usize, role: Role, tenant: usize) -> RoleBinding {
    RoleBinding { subject: subjects()[subject].clone(), role, tenant: role.is_of_tenant().then(|| TENANTS[tenant].to_owned()) }
}

fn action(step: Step) -> Action {
    let (by, name) = ("root".to_owned(), |tenant: usize| TENANTS[tenant].to_owned());
    let member = |tenant: usize, step| Action::SetTenantMember { change: MemberChange { tenant: name(tenant), step }, by: "root".into() };
    match step {
        Step::Create { tenant } => {
            let (max_nodes, max_concurrent_allocations) = (QuotaChange::Keep, QuotaChange::Keep);
            let soft = SoftLimitsChange::default();
            let change =
                TenantChange { name: name(tenant), create: true, max_nodes, max_concurrent_allocations, soft, expected_version: None };
            Action::SetTenant { change, by }
        }
        Step::Delete { tenant } => Action::DeleteTenant { name: name(tenant), by },
        Step::Grant { subject, role, tenant } => Action::GrantRole { binding: binding(subject, role, tenant), by },
        Step::Revoke { subject, role, tenant } => {
            let RoleBinding { subject, role, tenant } = binding(subject, role, tenant);
            Action::RevokeRole { subject: subject.name(), role, tenant, by }
        }
        Step::Add { subject, tenant, is_default } => member(tenant, MemberStep::Add { subject: subjects()[subject].clone(), is_default }),
        Step::Remove { subject, tenant } => member(tenant, MemberStep::Remove { subject: subjects()[subject].name() }),
        Step::Narrow { root_may } => LimitsChange { root_may: Some(root_may), ..LimitsChange::default() }.by(&by),
    }
}

/// The names of all tenants.
fn names_of(ledger: &Ledger) -> BTreeSet<String> {
    ledger.tenants.keys().cloned().collect()
}

fn agree(ledger: &Ledger, record: &Record) {
    assert!(ledger.role_bindings().eq(&record.roles));
    for tenant in TENANTS {
        let wanted = record.tenants.contains(tenant).then(|| record.members_of(tenant));
        assert_eq!(ledger.tenant_members(tenant).ok(), wanted, "{tenant}");
    }
    for principal in principals() {
        let standing = ledger.standing_of(&principal, &[].into(), &names_of(ledger));
        let since = |name: &String| ledger.tenant(name).map(|tenant| (name.clone(), tenant.since));
        let admin_since: BTreeMap<_, _> = standing.roles.admin_of.iter().filter_map(since).collect();
        assert_eq!(standing.roles.admin_since, admin_since, "{principal:?}");
        let roles = Roles { admin_since: BTreeMap::new(), ..standing.roles.clone() };
        assert_eq!(Standing { roles, ..standing }, record.standing_of(&principal), "{principal:?}");
    }
}

proptest! {
    #[test]
    fn roles_and_members_are_what_was_granted_last_and_a_snapshot_keeps_them(steps in prop::collection::vec(a_step(), 1..60)) {
        let (mut s, mut record) = (Story::new(0), Record::default());
        for step in steps {
            let before = s.ledger.clone();
            let result = s.act(action(step));
            prop_assert_eq!(result.is_ok(), record.take(step), "{:?}: {:?}", step, result);
            agree(&s.ledger, &record);
            if result.is_err() {
                let refused = Ledger { revision: s.ledger.revision, time: s.ledger.time, ..before };
                prop_assert_eq!(&refused, &s.ledger);
            }
        }
        let restored: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
        prop_assert_eq!(&restored, &s.ledger);
        agree(&restored, &record);
    }
}
