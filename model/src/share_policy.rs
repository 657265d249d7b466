//! Whose shares may be on one node at the same time. The quorum applies this rule when it refuses a
//! claim, and the scheduler when it places work and explains why it waits.

use crate::allocation::Allocation;
use crate::node::{Leaving, WorkOwner};
use serde::{Deserialize, Serialize};

/// Whose shares a node may hold at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SharePolicy {
    /// Everybody's.
    #[default]
    Anyone,
    /// Those of one tenant. Work without a tenant shares only with work of the same user that has
    /// no tenant either.
    Tenant,
    /// Those of one user.
    User,
}

impl SharePolicy {
    /// The names that operators write.
    pub const NAMES: [&'static str; 3] = ["anyone", "tenant", "user"];

    /// The policy with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "anyone" => Some(Self::Anyone),
            "tenant" => Some(Self::Tenant),
            "user" => Some(Self::User),
            _ => None,
        }
    }

    /// The name that operators write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anyone => Self::NAMES[0],
            Self::Tenant => Self::NAMES[1],
            Self::User => Self::NAMES[2],
        }
    }

    /// Its rule for a node, as a clause.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Anyone => "a node holds shares of all users at a time",
            Self::Tenant => "a node holds shares of one tenant at a time",
            Self::User => "a node holds shares of one user at a time",
        }
    }

    /// Whether it is the default, under which all work shares nodes.
    pub fn is_anyone(&self) -> bool {
        *self == Self::Anyone
    }

    /// The owner of this allocation's shares. Only shares of equal owners may be on one node.
    pub fn owner_of(self, allocation: &Allocation) -> ShareOwner<'_> {
        self.owner(allocation.owner.uid, &allocation.spec.tenant)
    }

    /// The owner of a leaving share; `None`: it is not known.
    pub fn owner_of_leaving(self, leaving: &Leaving) -> Option<ShareOwner<'_>> {
        leaving.owner.as_ref().map(|WorkOwner { uid, tenant, is_exclusive: _ }| self.owner(*uid, tenant))
    }

    fn owner(self, uid: u32, tenant: &str) -> ShareOwner<'_> {
        match self {
            Self::Anyone => ShareOwner::Anyone,
            Self::Tenant if tenant.is_empty() => ShareOwner::User(uid),
            Self::Tenant => ShareOwner::Tenant(tenant),
            Self::User => ShareOwner::User(uid),
        }
    }

    /// Why no share of the allocation may be on a node with a share of `holder`, as the end of "the
    /// node holds …"; `None`: it may. An unknown holder counts as somebody else.
    pub fn keeps_apart(self, allocation: &Allocation, holder: Option<ShareOwner<'_>>) -> Option<&'static str> {
        if self.is_anyone() {
            return None;
        }
        let Some(theirs) = holder else { return Some("work whose owner is not known") };
        let mine = self.owner_of(allocation);
        (mine != theirs).then(|| theirs.work_seen_by(mine))
    }
}

impl WorkOwner {
    /// Of an allocation.
    pub fn of(allocation: &Allocation) -> Self {
        Self { uid: allocation.owner.uid, tenant: allocation.spec.tenant.clone(), is_exclusive: allocation.spec.exclusive_user }
    }
}

/// The user of work, and whether its shares are on a node only with that user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareUser {
    /// The user's id.
    pub uid: u32,
    /// Whether it asks for that: `--exclusive=user`.
    pub is_exclusive: bool,
}

impl ShareUser {
    /// Of an allocation.
    pub fn of(allocation: &Allocation) -> Self {
        Self { uid: allocation.owner.uid, is_exclusive: allocation.spec.exclusive_user }
    }

    /// Of a leaving share; `None`: its owner is not known.
    pub fn of_leaving(leaving: &Leaving) -> Option<Self> {
        leaving.owner.as_ref().map(|owner| Self { uid: owner.uid, is_exclusive: owner.is_exclusive })
    }

    /// Why no share of this user's work may be on a node with a share of `holder`, as the end of "the node holds …"; `None`:
    /// it may. An unknown holder counts as work of another user that is not exclusive.
    pub fn keeps_apart(self, holder: Option<Self>) -> Option<&'static str> {
        match holder {
            Some(holder) if holder.uid == self.uid => None,
            Some(holder) if holder.is_exclusive => Some("work that shares a node only with its user's"),
            Some(_) => self.is_exclusive.then_some("work of another user"),
            None => self.is_exclusive.then_some("work whose owner is not known"),
        }
    }
}

/// The owner of shares, as a [`SharePolicy`] distinguishes owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShareOwner<'a> {
    /// Everybody's shares count as those of one owner.
    Anyone,
    /// This tenant's.
    Tenant(&'a str),
    /// Those of the user with this id.
    User(u32),
}

impl ShareOwner<'_> {
    fn work_seen_by(self, other: ShareOwner<'_>) -> &'static str {
        match (self, other) {
            (Self::Tenant(_), _) => "work of another tenant",
            (Self::User(_), ShareOwner::Tenant(_)) => "work without a tenant",
            (Self::User(_) | Self::Anyone, _) => "work of another user",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::{allocation, spec_of};
    use crate::{AllocationId, Epoch, Resources};
    use uuid::Uuid;

    fn work(tenant: &str, uid: u32) -> Allocation {
        let mut work = allocation(AllocationId(Uuid::nil()));
        work.owner.uid = uid;
        tenant.clone_into(&mut spec_of(&mut work).tenant);
        work
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, policy) in SharePolicy::NAMES.into_iter().zip([SharePolicy::Anyone, SharePolicy::Tenant, SharePolicy::User]) {
            assert_eq!((SharePolicy::from_name(name), policy.name()), (Some(policy), name));
        }
        assert_eq!(SharePolicy::from_name("Tenant"), None);
    }

    #[test]
    fn exclusive_work_meets_only_its_users_and_both_ways() {
        let of = |uid, is_exclusive| ShareUser { uid, is_exclusive };
        assert_eq!((of(1, true).keeps_apart(Some(of(1, true))), of(1, true).keeps_apart(Some(of(1, false)))), (None, None));
        assert_eq!(of(1, false).keeps_apart(Some(of(2, false))), None);
        assert_eq!(of(1, true).keeps_apart(Some(of(2, false))), Some("work of another user"));
        assert_eq!(of(1, false).keeps_apart(Some(of(2, true))), Some("work that shares a node only with its user's"));
        assert_eq!((of(1, true).keeps_apart(None), of(1, false).keeps_apart(None)), (Some("work whose owner is not known"), None));
    }

    #[test]
    fn shares_meet_on_a_node_only_if_the_policy_allows_it() {
        let (tenant, user) = (Some("work of another tenant"), Some("work of another user"));
        for (mine, theirs, under_tenant, under_user) in [
            (("physics", 1), ("physics", 1), None, None),
            (("physics", 1), ("physics", 2), None, user),
            (("physics", 1), ("chemistry", 1), tenant, None),
            (("physics", 1), ("", 1), Some("work without a tenant"), None),
            (("", 1), ("physics", 1), tenant, None),
            (("", 1), ("", 1), None, None),
            (("", 1), ("", 2), user, user),
        ] {
            let (mine, theirs) = (work(mine.0, mine.1), work(theirs.0, theirs.1));
            let apart = |policy: SharePolicy| policy.keeps_apart(&mine, Some(policy.owner_of(&theirs)));
            assert_eq!(apart(SharePolicy::Anyone), None);
            assert_eq!((apart(SharePolicy::Tenant), apart(SharePolicy::User)), (under_tenant, under_user), "{mine:?} {theirs:?}");
            // The share that remains once the record is in no list.
            let owner = Some(WorkOwner::of(&theirs));
            let leaving = Leaving { allocation: theirs.id, epoch: Epoch(1), resources: Resources::default(), fenced: false, owner };
            let apart = |policy: SharePolicy| policy.keeps_apart(&mine, policy.owner_of_leaving(&leaving));
            assert_eq!((apart(SharePolicy::Tenant), apart(SharePolicy::User)), (under_tenant, under_user), "{leaving:?}");
        }
        assert_eq!(SharePolicy::Anyone.keeps_apart(&work("", 1), None), None);
        for policy in [SharePolicy::Tenant, SharePolicy::User] {
            assert_eq!(policy.keeps_apart(&work("", 1), None), Some("work whose owner is not known"));
        }
    }
}
