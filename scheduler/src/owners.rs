//! The owners of shares, as numbers: shares with different numbers may not be on one node together.

use crate::view::View;
use lattice_model::{Allocation, AllocationId, Leaving, Node, ShareOwner, SharePolicy, ShareUser};
use std::collections::BTreeMap;

/// The number of everybody if the share policy keeps nobody apart.
const EVERYBODY: u32 = 0;
/// The number of holders that are not known, or have had no work since the state was made. No waiting work has it.
const UNKNOWN: u32 = u32::MAX;

/// The owner of a share: its number under the share policy, and its user if any work uses `--exclusive=user`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// The number of its owner under the share policy.
    owner: u32,
    /// Its user; `None`: not known, or no work uses `--exclusive=user`.
    user: Option<ShareUser>,
}

impl Who {
    /// Whether no share of one may be on a node with a share of the other.
    pub fn keeps_off(self, other: Self) -> bool {
        let are_users_apart = || match (self.user, other.user) {
            (Some(user), holder) => user.keeps_apart(holder).is_some(),
            (None, Some(user)) => user.keeps_apart(None).is_some(),
            (None, None) => false,
        };
        self.owner != other.owner || are_users_apart()
    }
}

/// The owners of work, under a share policy. A [`crate::State`] keeps them: an owner keeps its number.
#[derive(Default)]
pub struct Owners {
    policy: SharePolicy,
    /// Whether any work uses `--exclusive=user`.
    has_exclusive: bool,
    tenants: BTreeMap<String, u32>,
    users: BTreeMap<u32, u32>,
}

impl Owners {
    pub fn of(view: &View) -> Self {
        let has_exclusive = view.allocations.values().any(is_exclusive) || view.nodes.values().any(has_exclusive_leaving);
        Self { policy: view.share_policy, has_exclusive, ..Self::default() }
    }

    /// Whether users are not distinguished yet, although this work or a share on this node needs it.
    pub fn would_tell_users_apart(&self, allocation: Option<&Allocation>, node: Option<&Node>) -> bool {
        !self.has_exclusive && (allocation.is_some_and(is_exclusive) || node.is_some_and(has_exclusive_leaving))
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

    /// The owner of an allocation of the view.
    pub fn who(&self, allocation: &Allocation) -> Who {
        let user = self.has_exclusive.then(|| ShareUser::of(allocation));
        Who { owner: self.number_of(Some(self.policy.owner_of(allocation))), user }
    }

    /// The owner of a share that leaves its node.
    pub fn who_of_leaving(&self, leaving: &Leaving) -> Who {
        let user = if self.has_exclusive { ShareUser::of_leaving(leaving) } else { None };
        Who { owner: self.number_of(self.policy.owner_of_leaving(leaving)), user }
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
    pub fn has_policy(&self) -> bool {
        !self.policy.is_anyone()
    }

    /// Whether the policy, or a request of work, keeps any work apart. No decision may depend on this: it stays true after
    /// that work has ended.
    pub fn are_apart(&self) -> bool {
        self.has_policy() || self.has_exclusive
    }
}

fn is_exclusive(allocation: &Allocation) -> bool {
    allocation.spec.exclusive_user
}

fn has_exclusive_leaving(node: &Node) -> bool {
    node.leaving.iter().any(|leaving| leaving.owner.as_ref().is_some_and(|owner| owner.is_exclusive))
}

/// The first of these holders of a node from which `--exclusive=user`, of either, keeps this allocation apart, and the
/// holder's work in words.
pub fn users_apart(
    view: &View,
    allocation: &Allocation,
    node: &Node,
    holders: impl IntoIterator<Item = AllocationId>,
) -> Option<(AllocationId, &'static str)> {
    let user = |holder: AllocationId| {
        let leaving = || node.leaving.iter().find(|leaving| leaving.allocation == holder);
        let of_record = view.allocations.get(&holder).map(ShareUser::of);
        of_record.or_else(|| ShareUser::of_leaving(leaving()?))
    };
    holders.into_iter().find_map(|holder| Some((holder, ShareUser::of(allocation).keeps_apart(user(holder))?)))
}

/// The first of these holders of a node from which the share policy keeps this allocation apart, and
/// the holder's work in words.
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
