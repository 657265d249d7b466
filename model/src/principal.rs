//! The user on whose behalf something happens.

use serde::{Deserialize, Serialize};

/// A user as known on the submitting machine. The executing node resolves `name` again and refuses
/// a mismatch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// The account's name.
    pub name: String,
    /// Its user id.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
    /// Its supplementary groups.
    #[serde(default)]
    pub groups: Vec<u32>,
}

impl Principal {
    /// Whether this is the superuser.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether this user is `owner`: the same account, by uid and name.
    pub fn owns(&self, owner: &Self) -> bool {
        self.uid == owner.uid && self.name == owner.name
    }

    /// Whether this user may act on objects of `owner`: it is the owner, or root of the machine
    /// that vouches for the user.
    pub fn may_act_for(&self, owner: &Self) -> bool {
        self.is_root() || self.owns(owner)
    }
}
