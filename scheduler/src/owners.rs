//! Whose shares are, as numbers: shares with different numbers may not be on one node together.

use crate::view::View;
use lattice_model::{Allocation, AllocationId, Leaving, Node, ShareOwner, SharePolicy};
use std::collections::BTreeMap;

/// The number of everybody where the share policy keeps nobody apart.
const EVERYBODY: u32 = 0;
/// The number of holders that are not known, or have had no work since the state was made; no work that waits.
const UNKNOWN: u32 = u32::MAX;

/// The owners of work, under a share policy. A [`crate::State`] keeps them: an owner keeps its number.
#[derive(Default)]
pub struct Owners {
    policy: SharePolicy,
    tenants: BTreeMap<String, u32>,
    users: BTreeMap<u32, u32>,
}

impl Owners {
    pub fn of(policy: SharePolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Gives the owner of an allocation a number, if it has none.
    pub fn add(&mut self, allocation: &Allocation) {
        let next = u32::try_from(self.tenants.len() + self.users.len()).unwrap_or(UNKNOWN);
        match self.policy.owner_of(allocation) {
            ShareOwner::Anyone => {}
            ShareOwner::User(uid) => {
                self.users.entry(uid).or_insert(next);
            }
            ShareOwner::Tenant(name) => {
                if !self.tenants.contains_key(name) {
                    self.tenants.insert(name.to_owned(), next);
                }
            }
        }
    }

    /// The number of the owner of an allocation of the view.
    pub fn number(&self, allocation: &Allocation) -> u32 {
        self.number_of(Some(self.policy.owner_of(allocation)))
    }

    /// The number of the owner of a share that leaves its node.
    pub fn number_of_leaving(&self, leaving: &Leaving) -> u32 {
        self.number_of(self.policy.owner_of_leaving(leaving))
    }

    fn number_of(&self, owner: Option<ShareOwner<'_>>) -> u32 {
        if self.policy.is_anyone() {
            return EVERYBODY;
        }
        let number = match owner {
            Some(ShareOwner::Tenant(name)) => self.tenants.get(name),
            Some(ShareOwner::User(uid)) => self.users.get(&uid),
            Some(ShareOwner::Anyone) | None => None,
        };
        number.copied().unwrap_or(UNKNOWN)
    }

    /// Whether the policy keeps any work apart.
    pub fn are_apart(&self) -> bool {
        !self.policy.is_anyone()
    }
}

/// The first of these holders of a node that the share policy keeps this allocation apart from, and
/// what the node holds with it, in words.
pub fn kept_apart(
    view: &View,
    allocation: &Allocation,
    node: &Node,
    holders: impl IntoIterator<Item = AllocationId>,
) -> Option<(AllocationId, &'static str)> {
    let policy = view.share_policy;
    let owner = |holder: AllocationId| {
        let leaving = || node.leaving.iter().find(|leaving| leaving.allocation == holder);
        let of_record = view.allocations.get(&holder).map(|record| policy.owner_of(record));
        of_record.or_else(|| policy.owner_of_leaving(leaving()?))
    };
    holders.into_iter().find_map(|holder| Some((holder, policy.keeps_apart(allocation, owner(holder))?)))
}
