//! The members of tenants, which tenants are closed, and which tenant is whose default.
//!
//! A tenant is closed from its first member on. It stays closed after its last member has left: its entry
//! stays without members.
//!
//! Serialised as the members of each closed tenant. The look-up of members by identity is derived from that.

use crate::identity::Identity;
use imbl::OrdMap;
use lattice_model::Principal;
use lattice_model::access::{Subject, SubjectName, TenantMember};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// The closed tenants with their members. An account or group has at most one default, which is one of
/// the tenants of which it is a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantMembers {
    /// The members of each closed tenant, and whether the tenant is the member's default.
    tenants: OrdMap<String, OrdMap<Subject, bool>>,
    /// The same, by the identity of the members: the key is the tenant and the member.
    identities: OrdMap<Identity, BTreeMap<(String, Subject), bool>>,
    /// The number of members of all tenants.
    count: usize,
}

impl TenantMembers {
    /// Whether no tenant is closed.
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// The number of members of all tenants.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of members of one tenant.
    pub fn count_of(&self, tenant: &str) -> usize {
        self.tenants.get(tenant).map_or(0, OrdMap::len)
    }

    /// Whether the tenant accepts work only from its members and admins.
    pub fn is_closed(&self, tenant: &str) -> bool {
        self.tenants.contains_key(tenant)
    }

    /// The tenants that are closed, by name.
    pub fn closed(&self) -> impl Iterator<Item = &str> {
        self.tenants.keys().map(String::as_str)
    }

    /// The members of one tenant: accounts by name, then groups by name.
    pub fn of_tenant(&self, tenant: &str) -> impl Iterator<Item = TenantMember> {
        self.tenants.get(tenant).into_iter().flat_map(listed)
    }

    /// Whether the tenant is this member's default; `None`: the subject is no member.
    pub fn get(&self, tenant: &str, subject: &Subject) -> Option<bool> {
        self.tenants.get(tenant)?.get(subject).copied()
    }

    /// The default of an account or group itself.
    pub fn default_of(&self, subject: &Subject) -> Option<&str> {
        let places = self.identities.get(&Identity::of(subject))?;
        let default = places.iter().find(|((_, member), is_default)| member == subject && **is_default);
        default.map(|((tenant, _), _)| tenant.as_str())
    }

    /// The tenants of which a principal is a member, each with the member that includes it, and whether the
    /// tenant is that member's default.
    pub fn memberships(&self, principal: &Principal) -> impl Iterator<Item = (&str, &Subject, bool)> {
        let places = Identity::all_of(principal).into_iter().filter_map(move |identity| self.identities.get(&identity));
        places.flatten().map(|((tenant, subject), is_default)| (tenant.as_str(), subject, *is_default))
    }

    /// Adds a member, or sets its default. The tenant is closed from now on. A new default replaces the former one.
    pub fn insert(&mut self, tenant: &str, subject: &Subject, is_default: bool) {
        if is_default && let Some(before) = self.default_of(subject).map(str::to_owned) {
            self.put(before, subject.clone(), false);
        }
        self.put(tenant.to_owned(), subject.clone(), is_default);
    }

    fn put(&mut self, tenant: String, subject: Subject, is_default: bool) {
        let places = self.identities.entry(Identity::of(&subject)).or_default();
        places.insert((tenant.clone(), subject.clone()), is_default);
        if self.tenants.entry(tenant).or_default().insert(subject, is_default).is_none() {
            self.count += 1;
        }
    }

    /// Removes all members of this kind and name, whatever their numeric ids. Returns them. The tenant stays closed.
    pub fn remove(&mut self, tenant: &str, name: &SubjectName) -> Vec<Subject> {
        let members = self.tenants.get(tenant).into_iter().flat_map(|members| members.keys());
        let removed: Vec<Subject> = members.filter(|subject| subject.name() == *name).cloned().collect();
        removed.iter().for_each(|subject| self.take(tenant, subject));
        removed
    }

    /// Forgets a tenant: a later one of the same name is not closed.
    pub fn remove_tenant(&mut self, tenant: &str) {
        let members: Vec<Subject> = self.tenants.get(tenant).into_iter().flat_map(|members| members.keys()).cloned().collect();
        members.iter().for_each(|subject| self.take(tenant, subject));
        self.tenants.remove(tenant);
    }

    fn take(&mut self, tenant: &str, subject: &Subject) {
        let Some(members) = self.tenants.get_mut(tenant) else { return };
        if members.remove(subject).is_none() {
            return;
        }
        self.count -= 1;
        let identity = Identity::of(subject);
        let Some(places) = self.identities.get_mut(&identity) else { return };
        places.remove(&(tenant.to_owned(), subject.clone()));
        let is_last = places.is_empty();
        if is_last {
            self.identities.remove(&identity);
        }
    }
}

fn listed(members: &OrdMap<Subject, bool>) -> impl Iterator<Item = TenantMember> {
    members.iter().map(|(subject, is_default)| TenantMember { subject: subject.clone(), is_default: *is_default })
}

impl Serialize for TenantMembers {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.tenants.iter().map(|(tenant, members)| (tenant, listed(members).collect::<Vec<_>>())))
    }
}

impl<'de> Deserialize<'de> for TenantMembers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut all = Self::default();
        for (tenant, members) in BTreeMap::<String, Vec<TenantMember>>::deserialize(from)? {
            all.tenants.entry(tenant.clone()).or_default();
            for TenantMember { subject, is_default } in members {
                all.put(tenant.clone(), subject, is_default);
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, uid: u32) -> Subject {
        Subject::User { name: name.to_owned(), uid }
    }

    fn group(name: &str, gid: u32) -> Subject {
        Subject::Group { name: name.to_owned(), gid }
    }

    fn of(members: &TenantMembers, principal: &Principal) -> Vec<(String, bool)> {
        members.memberships(principal).map(|(tenant, _, is_default)| (tenant.to_owned(), is_default)).collect()
    }

    #[test]
    fn a_group_that_is_its_users_primary_and_another_one_counts_once() {
        let mut members = TenantMembers::default();
        members.insert("physics", &group("phys", 50), true);
        let alice = Principal { name: "alice".into(), uid: 7, gid: 50, groups: vec![50, 51] };
        assert_eq!(of(&members, &alice), [("physics".to_owned(), true)]);
        assert!(of(&members, &Principal { gid: 1, groups: vec![51], ..alice }).is_empty());
    }

    #[test]
    fn a_group_that_got_another_name_is_two_members_and_both_are_known_by_the_number() {
        let mut members = TenantMembers::default();
        members.insert("physics", &group("phys", 50), true);
        members.insert("physics", &group("physics", 50), false);
        let alice = Principal { name: "alice".into(), uid: 7, gid: 50, groups: vec![] };
        assert_eq!((members.count(), of(&members, &alice).len()), (2, 2));
        assert_eq!(members.remove("physics", &group("phys", 50).name()), [group("phys", 50)]);
        assert_eq!((members.count(), of(&members, &alice)), (1, vec![("physics".to_owned(), false)]));
    }

    #[test]
    fn one_tenant_is_the_default_and_a_snapshot_has_everything() {
        let mut members = TenantMembers::default();
        for (tenant, subject) in [("physics", account("alice", 7)), ("zoology", account("alice", 7)), ("zoology", account("alice", 8))] {
            members.insert(tenant, &subject, true);
        }
        assert_eq!(members.get("physics", &account("alice", 7)), Some(false));
        assert_eq!(members.default_of(&account("alice", 7)), Some("zoology"));
        let restored: TenantMembers = rmp_serde::from_slice(&rmp_serde::to_vec_named(&members).unwrap()).unwrap();
        assert_eq!(restored, members);
        assert_eq!(members.remove("zoology", &account("alice", 0).name()).len(), 2, "whatever their numbers");
        members.remove_tenant("physics");
        members.remove_tenant("zoology");
        assert_eq!(members, TenantMembers::default());
    }

    #[test]
    fn a_tenant_stays_closed_without_members_until_it_is_forgotten_and_a_snapshot_has_that() {
        let mut members = TenantMembers::default();
        assert!(members.is_empty() && !members.is_closed("physics"));
        members.insert("physics", &account("alice", 7), true);
        assert_eq!(members.remove("physics", &account("alice", 7).name()), [account("alice", 7)]);
        assert_eq!((members.count_of("physics"), members.count(), members.default_of(&account("alice", 7))), (0, 0, None));
        let restored: TenantMembers = rmp_serde::from_slice(&rmp_serde::to_vec_named(&members).unwrap()).unwrap();
        for kept in [&members, &restored] {
            assert!(kept.is_closed("physics") && !kept.is_empty());
            assert_eq!(kept.closed().collect::<Vec<_>>(), ["physics"]);
        }
        assert_eq!(restored, members);
        members.remove_tenant("physics");
        assert_eq!(members, TenantMembers::default());
    }
}
