//! Which records of the audit log a user who is no operator may read.
//!
//! | record | visible to |
//! |---|---|
//! | the actor is exactly the user's name | the user |
//! | the actor is `root@MACHINE` | root |
//! | anybody did something to the user's work | the user |
//! | anybody issued or revoked a token of the user's account | the user |
//! | anybody did something to work of a tenant, and the ledger still knows that work | the tenant's admins |
//!
//! A filter selects among the visible records; it makes no further ones visible.
//!
//! An actor is a text, and the log has no user ids. So the first row does not apply to a user whose name
//! is also the text for another actor: one of the quorum itself, or an operator on a machine
//! (`anna@n1`). The actor of a request with an operator's role or certificate is `NAME@MACHINE`, so the
//! first row does not show its record to the account NAME.

use lattice_model::access::Roles;
use lattice_model::{Allocation, AllocationId, AuditFilter, AuditRecord, Principal};
use lattice_quorum_client::wire::Refusal;
use std::sync::Arc;

/// Actors of the quorum itself whose names an account can have. Those of agents and members contain
/// a `:`, as in `node:n1`.
const OWN_ACTORS: [&str; 5] = ["fencing_hook", "quorum", "scaling", "scheduler", "wipe"];

/// The actors whose records a user reads, whoever owns the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actors {
    /// None.
    None,
    /// The actor with the user's name.
    Namesake,
    /// Root, on any machine.
    Root,
}

/// What one user may read.
#[derive(Clone, Debug)]
pub struct VisibleTo {
    user: String,
    actors: Actors,
    /// Only the tenants of which it is an admin matter.
    roles: Roles,
}

impl VisibleTo {
    /// What `user` with these roles may read. `is_machine`: whether a machine of the
    /// cluster has this name.
    ///
    /// # Errors
    /// [`Refusal::Malformed`]: the name contains a `:`.
    pub fn new(user: &Principal, roles: Roles, is_machine: impl Fn(&str) -> bool) -> Result<Self, Refusal> {
        let name = user.name.as_str();
        if name.contains(':') {
            let why = format!("account {name:?} cannot read the audit log: names with a colon belong to agents and members");
            return Err(Refusal::Malformed { why });
        }
        let is_ambiguous = OWN_ACTORS.contains(&name) || name.rsplit_once('@').is_some_and(|(_, machine)| is_machine(machine));
        let actors = match (is_ambiguous, user.is_root() && name == "root") {
            (true, _) => Actors::None,
            (false, true) => Actors::Root,
            (false, false) => Actors::Namesake,
        };
        Ok(Self { user: name.to_owned(), actors, roles })
    }

    /// A filter for the search: every visible record that matches `filter` matches it too. For a user
    /// who is no admin, the search then needs only the index.
    pub fn narrowed(&self, filter: &AuditFilter) -> AuditFilter {
        let user = if self.roles.admin_of.is_empty() { Some(self.user.clone()) } else { filter.user.clone() };
        AuditFilter { user, ..filter.clone() }
    }

    /// Whether the record is visible. `find`: the allocation, if the ledger still knows it.
    pub fn includes(&self, record: &AuditRecord, find: impl FnOnce(AllocationId) -> Option<Arc<Allocation>>) -> bool {
        self.is_named_in(record)
            || !self.roles.admin_of.is_empty() && record.allocation.and_then(find).is_some_and(|it| self.administers(record, &it))
    }

    /// Whether the user is the record's actor, or the owner of its work or token.
    fn is_named_in(&self, record: &AuditRecord) -> bool {
        record.owner.as_ref() == Some(&self.user)
            || record.token_account() == Some(self.user.as_str())
            || match self.actors {
                Actors::None => false,
                Actors::Namesake => record.actor == self.user,
                Actors::Root => is_root_somewhere(&record.actor),
            }
    }

    /// Whether the record's allocation belongs to a tenant of which the user is an admin. The owners are compared,
    /// because somebody else may use the id of a forgotten allocation again. Work of a former tenant of the same
    /// name does not count.
    fn administers(&self, record: &AuditRecord, allocation: &Allocation) -> bool {
        let tenant = self.roles.administered(&allocation.spec.tenant, allocation.ended_at);
        record.owner.as_ref() == Some(&allocation.owner.name) && self.roles.admin_of.contains(tenant)
    }
}

/// Whether the actor is root: `root`, or `root@n1`.
fn is_root_somewhere(actor: &str) -> bool {
    let is_machine = |rest: &str| rest.strip_prefix('@').is_some_and(|machine| !machine.contains('@'));
    actor.strip_prefix("root").is_some_and(|rest| rest.is_empty() || is_machine(rest))
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
            token: None,
            action: AuditAction::CancelRequested,
            allocation: owner.map(|_| WORK),
            owner: owner.map(str::to_owned),
            node: None,
            detail: String::new(),
            previous: String::new(),
            hash: String::new(),
        }
    }

    /// `root` has the user id 0; the only machine is `n1`.
    fn visible_to(user: &str, admin_of: &[&str]) -> VisibleTo {
        let uid = if user == "root" { 0 } else { 1000 };
        let user = Principal { name: user.to_owned(), uid, ..test_builders::user() };
        let admin_of = admin_of.iter().map(|tenant| (*tenant).to_owned()).collect();
        VisibleTo::new(&user, Roles { admin_of, ..Roles::default() }, |name| name == "n1").unwrap()
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
            ("alice", "alice", Some("bob"), true),
            ("alice", "root@n1", Some("alice"), true),
            ("alice", "bob", Some("bob"), false),
            ("alice", "alicent", None, false),
            // An account of a domain, and an operator of that name at a machine.
            ("alice", "alice@corp", None, false),
            ("alice", "alice@n1", Some("bob"), false),
            ("alice", "alice@n1", Some("alice"), true),
            ("alice@corp", "alice@corp", None, true),
            ("alice@corp", "alice@corp@n1", None, false),
            ("alice@corp", "alice", None, false),
            // An account that is named like an operator at a machine.
            ("alice@n1", "alice@n1", None, false),
            ("root@n1", "root@n1", None, false),
            ("alice@n1", "bob", Some("alice@n1"), true),
            ("root", "root", None, true),
            ("root", "root@n1", Some("alice"), true),
            ("root", "root@n9", None, true),
            ("root", "root@corp@n1", None, false),
            ("root", "rooter", None, false),
            ("root", "alice", Some("alice"), false),
            ("n1", "node:n1", None, false),
        ] {
            assert_eq!(visible_to(user, &[]).includes(&record(actor, owner), work), visible, "{user} reads what {actor} did to {owner:?}");
        }
    }

    #[test]
    fn a_user_reads_of_the_tokens_of_its_account() {
        let detail = "00000000000000ab \"ci\" of user:alice (uid 1000), scopes read, until 1970".to_owned();
        let issued = AuditRecord { action: AuditAction::TokenIssued, detail, ..record("anna@n1", None) };
        assert!(visible_to("alice", &[]).includes(&issued, work) && !visible_to("bob", &[]).includes(&issued, work));
        assert!(visible_to("alice", &[]).narrowed(&AuditFilter::default()).matches(&issued));
        let other = AuditRecord { action: AuditAction::RoleGranted, ..issued };
        assert!(!visible_to("alice", &[]).includes(&other, work));
    }

    #[test]
    fn an_account_reads_nothing_of_an_actor_of_the_quorum_that_has_its_name() {
        for name in OWN_ACTORS {
            assert!(!visible_to(name, &[]).includes(&record(name, None), work), "{name}");
            assert!(!visible_to(name, &[]).includes(&record(name, Some("alice")), work), "{name}");
            assert!(visible_to(name, &[]).includes(&record(name, Some(name)), work), "{name}: its own work");
        }
        for name in ["node:n1", "member:1", ":"] {
            let user = Principal { name: name.to_owned(), ..test_builders::user() };
            let refused = VisibleTo::new(&user, Roles::default(), |_| false);
            let why = format!("account {name:?} cannot read the audit log: names with a colon belong to agents and members");
            assert_eq!(refused.map(|_| ()), Err(Refusal::Malformed { why }));
        }
    }

    #[test]
    fn an_account_named_root_without_its_user_id_reads_what_it_did_itself() {
        let namesake = Principal { name: "root".to_owned(), ..test_builders::user() };
        let visible = VisibleTo::new(&namesake, Roles::default(), |_| false).unwrap();
        assert!(visible.includes(&record("root", None), work) && !visible.includes(&record("root@n1", None), work));
    }

    #[test]
    fn an_admin_reads_nothing_of_work_that_ended_before_its_tenant_was_created() {
        let admin_since = [("physics".to_owned(), Timestamp(50))].into();
        let roles = Roles { admin_of: ["physics".to_owned()].into(), admin_since, ..Roles::default() };
        let user = Principal { name: "alice".to_owned(), ..test_builders::user() };
        let visible = VisibleTo::new(&user, roles, |_| false).unwrap();
        let ended = |at: u64| {
            move |id: AllocationId| {
                let mut allocation = (*work(id)?).clone();
                allocation.ended_at = Some(Timestamp(at));
                Some(Arc::new(allocation))
            }
        };
        let of_work = record("root@n1", Some("u"));
        assert!(visible.includes(&of_work, ended(60)) && !visible.includes(&of_work, ended(40)));
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
        assert_eq!(searched("alice@corp", &[]).as_deref(), Some("alice@corp"));
        for (user, actor, owner) in [("alice@corp", "alice@corp", None), ("root", "root@n1", Some("bob")), ("bob", "root@n1", Some("bob"))]
        {
            let (visible, record) = (visible_to(user, &[]), record(actor, owner));
            assert!(visible.includes(&record, work), "{user}");
            assert!(visible.narrowed(&AuditFilter::default()).matches(&record), "{user}");
        }
    }
}
