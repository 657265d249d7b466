//! The granted roles, with an index by identity: each command looks up the roles of a principal, and there may be ten
//! thousand bindings.
//!
//! Serialised as the set of bindings. The index is derived from it.

use crate::entries::each_in_turn;
use crate::identity::Identity;
use imbl::{OrdMap, OrdSet};
use lattice_model::Principal;
use lattice_model::access::RoleBinding;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;

/// The granted roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleBindings {
    bindings: OrdSet<RoleBinding>,
    identities: OrdMap<Identity, BTreeSet<RoleBinding>>,
}

impl RoleBindings {
    /// Whether nobody has a role.
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// The number of bindings.
    pub fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Whether this binding exists.
    pub fn contains(&self, binding: &RoleBinding) -> bool {
        self.bindings.contains(binding)
    }

    /// All bindings, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &RoleBinding> {
        self.bindings.iter()
    }

    /// The bindings of a principal: of its account, and of its groups.
    pub fn of(&self, principal: &Principal) -> impl Iterator<Item = &RoleBinding> {
        let found = Identity::all_of(principal).into_iter().filter_map(move |identity| self.identities.get(&identity));
        found.flatten()
    }

    /// Adds a binding.
    pub fn insert(&mut self, binding: RoleBinding) {
        self.identities.entry(Identity::of(&binding.subject)).or_default().insert(binding.clone());
        self.bindings.insert(binding);
    }

    /// Removes a binding.
    pub fn remove(&mut self, binding: &RoleBinding) {
        self.bindings.remove(binding);
        let identity = Identity::of(&binding.subject);
        let Some(its) = self.identities.get_mut(&identity) else { return };
        its.remove(binding);
        if its.is_empty() {
            self.identities.remove(&identity);
        }
    }
}

impl Serialize for RoleBindings {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.bindings.serialize(to)
    }
}

impl<'de> Deserialize<'de> for RoleBindings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut all = Self::default();
        for binding in each_in_turn::<RoleBinding, D>(from)? {
            all.insert(binding);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::access::{Role, Subject};

    fn binding(subject: &Subject, role: Role) -> RoleBinding {
        RoleBinding { subject: subject.clone(), role, tenant: None }
    }

    #[test]
    fn a_principal_has_the_bindings_of_its_account_and_groups_and_a_snapshot_has_everything() {
        let alice = Subject::User { name: "alice".to_owned(), uid: 7 };
        let ops = Subject::Group { name: "ops".to_owned(), gid: 50 };
        let mut bindings = RoleBindings::default();
        let all = [binding(&alice, Role::Operator), binding(&alice, Role::SystemAdmin), binding(&ops, Role::Operator)];
        all.iter().cloned().for_each(|binding| bindings.insert(binding));
        let of = |bindings: &RoleBindings, name: &str, uid: u32, gid: u32| {
            let principal = Principal { name: name.to_owned(), uid, gid, groups: vec![gid] };
            let found: BTreeSet<RoleBinding> = bindings.of(&principal).cloned().collect();
            let scanned = bindings.iter().filter(|binding| binding.subject.includes(&principal)).cloned().collect();
            assert_eq!(found, scanned, "{name}");
            found.len()
        };
        assert_eq!((of(&bindings, "alice", 7, 1), of(&bindings, "alice", 7, 50), of(&bindings, "bob", 8, 50)), (2, 3, 1));
        assert_eq!((of(&bindings, "alice", 8, 1), of(&bindings, "eve", 7, 1)), (0, 0));
        let restored: RoleBindings = rmp_serde::from_slice(&rmp_serde::to_vec_named(&bindings).unwrap()).unwrap();
        assert_eq!(restored, bindings);
        all.iter().for_each(|binding| bindings.remove(binding));
        assert_eq!(bindings, RoleBindings::default());
    }
}
