//! Which records of the audit log a user may read who is no operator.
//!
//! | record | visible to |
//! |---|---|
//! | of what the user did, on whichever machine | the user |
//! | of what anybody did to the user's work | the user |
//! | of what anybody did to work of a tenant that the ledger still knows | the tenant's admins |
//!
//! A filter selects among the visible records; it makes no further ones visible.

use lattice_model::{Allocation, AllocationId, AuditFilter, AuditRecord, Principal};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Actors of the quorum itself. An account that has such a name did not do what they did.
const OWN_ACTORS: [&str; 3] = ["quorum", "wipe", "fencing_hook"];

/// What one user may read.
#[derive(Clone, Debug)]
pub struct VisibleTo {
    user: String,
    admin_of: BTreeSet<String>,
}

impl VisibleTo {
    /// What `user` may read, who is an admin of these tenants.
    pub fn new(user: &Principal, admin_of: BTreeSet<String>) -> Self {
        Self { user: user.name.clone(), admin_of }
    }

    /// A filter for the search: every visible record that matches `filter` matches it too. It lets a
    /// user who is no admin read the index, and not everything.
    pub fn narrowed(&self, filter: &AuditFilter) -> AuditFilter {
        // The index cuts an actor at its first `@`.
        let is_indexed = self.admin_of.is_empty() && !self.user.contains('@');
        let user = if is_indexed { Some(self.user.clone()) } else { filter.user.clone() };
        AuditFilter { user, ..filter.clone() }
    }

    /// Whether the record is visible. `find`: the allocation, if the ledger still knows it.
    pub fn includes(&self, record: &AuditRecord, find: impl FnOnce(AllocationId) -> Option<Arc<Allocation>>) -> bool {
        self.is_named_in(record)
            || !self.admin_of.is_empty() && record.allocation.and_then(find).is_some_and(|it| self.administers(record, &it))
    }

    /// Whether the user did it, or owns the work to which it was done.
    fn is_named_in(&self, record: &AuditRecord) -> bool {
        let is_machine = |rest: &str| rest.strip_prefix('@').is_some_and(|machine| !machine.contains('@'));
        let is_actor = |rest: &str| rest.is_empty() || is_machine(rest);
        record.owner.as_ref() == Some(&self.user)
            || !OWN_ACTORS.contains(&self.user.as_str()) && record.actor.strip_prefix(&self.user).is_some_and(is_actor)
    }

    /// Whether the record's allocation belongs to a tenant of which the user is an admin. The id of a
    /// forgotten allocation can be used again by somebody else: older records are not of that one.
    fn administers(&self, record: &AuditRecord, allocation: &Allocation) -> bool {
        record.owner.as_ref() == Some(&allocation.owner.name) && self.admin_of.contains(&allocation.spec.tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{AuditAction, Revision, Timestamp, test_builders};
    use uuid::Uuid;

    const WORK: AllocationId = AllocationId(Uuid::from_u128(7));

    fn record(actor: &str, owner: Option<&str>) -> AuditRecord {
        AuditRecord {
            seq: 1,
            revision: Revision(1),
            at: Timestamp(1),
            actor: actor.to_owned(),
            action: AuditAction::CancelRequested,
            allocation: owner.map(|_| WORK),
            owner: owner.map(str::to_owned),
            node: None,
            detail: String::new(),
            previous: String::new(),
            hash: String::new(),
        }
    }

    fn visible_to(user: &str, admin_of: &[&str]) -> VisibleTo {
        let user = Principal { name: user.to_owned(), ..test_builders::user() };
        VisibleTo::new(&user, admin_of.iter().map(|tenant| (*tenant).to_owned()).collect())
    }

    /// Work of `u` in the tenant `physics`.
    fn work(id: AllocationId) -> Option<Arc<Allocation>> {
        let mut allocation = test_builders::allocation(id);
        "physics".clone_into(&mut test_builders::spec_of(&mut allocation).tenant);
        Some(Arc::new(allocation))
    }

    #[test]
    fn a_user_reads_what_it_did_and_what_was_done_to_its_work() {
        for (user, actor, owner, visible) in [
            ("alice", "alice", None, true),
            ("alice", "alice@n1", Some("bob"), true),
            ("alice", "root@n1", Some("alice"), true),
            ("alice", "bob", Some("bob"), false),
            ("alice", "alicent", None, false),
            ("alice", "alice@site@n1", None, false),
            ("alice@site", "alice@site@n1", None, true),
            ("n1", "node:n1", None, false),
            ("quorum", "quorum", None, false),
            ("quorum", "quorum", Some("quorum"), true),
        ] {
            assert_eq!(visible_to(user, &[]).includes(&record(actor, owner), work), visible, "{user} reads what {actor} did to {owner:?}");
        }
    }

    #[test]
    fn an_admin_reads_what_was_done_to_work_of_its_tenant_that_is_still_known() {
        let of_work = record("root@n1", Some("u"));
        assert!(visible_to("alice", &["physics"]).includes(&of_work, work));
        assert!(!visible_to("alice", &["biology"]).includes(&of_work, work));
        assert!(!visible_to("alice", &["physics"]).includes(&of_work, |_| None), "forgotten");
        assert!(!visible_to("alice", &["physics"]).includes(&record("root", Some("bob")), work), "the id was bob's before");
        assert!(!visible_to("alice", &["physics"]).includes(&record("root", None), work), "of no work");
    }

    #[test]
    fn the_search_skips_no_visible_record() {
        let of_root = AuditFilter { user: Some("root".into()), ..AuditFilter::default() };
        let searched = |user: &str, admin_of: &[&str]| visible_to(user, admin_of).narrowed(&of_root).user;
        assert_eq!(searched("alice", &[]).as_deref(), Some("alice"));
        assert_eq!(searched("alice", &["physics"]).as_deref(), Some("root"));
        assert_eq!(searched("alice@site", &[]).as_deref(), Some("root"));
    }
}
