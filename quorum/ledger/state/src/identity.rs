//! Identities: the keys by which the roles and memberships of a principal are looked up.

use lattice_model::Principal;
use lattice_model::access::Subject;
use std::collections::BTreeSet;

/// A key that a principal shares with each subject that includes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    User { uid: u32, name: String },
    Group { gid: u32 },
}

impl Identity {
    pub fn of(subject: &Subject) -> Self {
        match subject {
            Subject::User { name, uid } => Self::User { uid: *uid, name: name.clone() },
            Subject::Group { name: _, gid } => Self::Group { gid: *gid },
        }
    }

    /// The identities of the account and of each of its groups.
    pub fn all_of(principal: &Principal) -> BTreeSet<Self> {
        let groups = principal.groups.iter().chain([&principal.gid]).map(|gid| Self::Group { gid: *gid });
        groups.chain([Self::User { uid: principal.uid, name: principal.name.clone() }]).collect()
    }
}
