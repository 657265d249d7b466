//! The identities of principals: by them a role or membership of an account or group is found for its principal.

use lattice_model::Principal;
use lattice_model::access::Subject;
use std::collections::BTreeSet;

/// What a principal and a subject that includes it have in common.
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

    /// The account, and each of its groups once.
    pub fn all_of(principal: &Principal) -> BTreeSet<Self> {
        let groups = principal.groups.iter().chain([&principal.gid]).map(|gid| Self::Group { gid: *gid });
        groups.chain([Self::User { uid: principal.uid, name: principal.name.clone() }]).collect()
    }
}
