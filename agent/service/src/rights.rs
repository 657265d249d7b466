//! Whether a caller may act on an allocation or a DAG.
//!
//! ```text
//!   work of an allocation ── its owner, its own allocation ──▶ yes or no; roles never count
//!   everybody else ── the owner ──▶ yes, and the quorum is not asked
//!                  └─ another's ── the quorum: its roles ──▶ the table of who may call which method
//!                                     └── away: root, as the limits last known here say; nobody else, until it answers
//! ```
//!
//! On a machine without a usable cgroup v2 tree, the agent cannot tell work from the people who submitted it. Roles that
//! were granted to accounts do not count there, or work would have them. For a caller on the network they count with the
//! scope `admin`.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::caller::{Caller, confined};
use super::refusal::{status, unexpected};
use lattice_agent_common::config::work::WorkMay;
use lattice_model::access::{Reach, Relation, Roles, RootMay, Scopes, Standing, rule};
use lattice_model::ended_work::EndedWork;
use lattice_model::{Allocation, AllocationId, Dag, DagId, Principal, Timestamp};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use std::collections::BTreeSet;
use tonic::{Code, Status};

/// The row that decides who sees one object whole, where the method's own row lets everybody call it: such methods show
/// each caller what it may see.
const SEES_WHOLE: &str = "AllocationService/Watch";

/// What a call acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Allocation(AllocationId),
    Dag(DagId),
}

/// The tenant of work, and when the work ended: a later tenant of the name has other admins.
#[derive(Clone, Copy, Debug)]
struct OfTenant<'a> {
    /// Empty: none.
    name: &'a str,
    ended_at: Option<Timestamp>,
}

/// What is decided without the caller's roles.
#[derive(Debug)]
enum Verdict {
    Allowed,
    Refused(Status),
    /// The object is another's: the caller's roles decide.
    ByRole,
}

impl Caller {
    /// Work may act on its own allocation, and as its user on that user's other allocations; even as root it may act on
    /// no other user's.
    fn verdict(&self, object: Object, owner: &Principal) -> Verdict {
        let may = match self.within {
            None if self.principal.owns(owner) => true,
            None => return Verdict::ByRole,
            Some(within) if object == Object::Allocation(within) => self.principal.may_act_for(owner),
            Some(within) if self.work_may == WorkMay::OwnAllocation => return Verdict::Refused(confined(within)),
            Some(_) => self.principal.owns(owner),
        };
        if may { Verdict::Allowed } else { Verdict::Refused(Status::permission_denied(self.not_yours(object, owner))) }
    }

    fn not_yours(&self, object: Object, owner: &Principal) -> String {
        let whom = if self.private { "another user" } else { &owner.name };
        match object {
            Object::Allocation(id) => format!("allocation {} belongs to {whom}", id.short()),
            Object::Dag(id) => format!("DAG {} belongs to {whom}", id.short()),
        }
    }

    /// Whether these roles let the caller act on an object that is not its own.
    fn may_by(&self, roles: &Roles, relation: Relation) -> bool {
        roles.may(deciding_row(&self.method), relation)
    }
}

/// The method whose row decides about one object.
fn deciding_row(method: &str) -> &str {
    if rule(method).is_some_and(|rule| rule.user == Reach::Everything) { SEES_WHOLE } else { method }
}

/// The roles of a caller, as far as they count here.
struct KnownRoles {
    roles: Roles,
    left_out: LeftOut,
}

/// Which roles a caller may have in addition to those that count.
enum LeftOut {
    None,
    /// The quorum did not answer.
    QuorumIsAway,
    /// Why granted roles do not count for this caller, for people.
    DoNotCount(String),
}

impl Api {
    /// The caller's roles and tenants from the quorum, as far as they count here.
    pub(super) async fn standing(&self, caller: &Caller) -> Result<Standing, Status> {
        Ok(self.as_it_counts(caller, self.standing_of_account(caller).await?))
    }

    /// As [`Self::standing`], also with those of `tenants` that are closed to the caller.
    pub(super) async fn standing_about(&self, caller: &Caller, tenants: BTreeSet<String>) -> Result<Standing, Status> {
        Ok(self.as_it_counts(caller, self.ask_standing(caller, tenants).await?))
    }

    /// A standing with the roles that count for this caller.
    pub(super) fn as_it_counts(&self, caller: &Caller, standing: Standing) -> Standing {
        if self.granted_roles_count(caller) { standing } else { without_granted_roles(standing) }
    }

    /// Whether roles of the account count for this caller.
    pub(super) fn granted_roles_count(&self, caller: &Caller) -> bool {
        self.why_roles_do_not_count(caller).is_none()
    }

    /// Why roles of the account do not count for this caller, and what to do about it; `None`: they count.
    pub(super) fn why_roles_do_not_count(&self, caller: &Caller) -> Option<String> {
        match &caller.network {
            Some(peer) => roles_not_in_scopes(&peer.scopes, peer.authentication.noun()),
            None => self.context.machine.slice.is_none().then(|| self.cannot_tell_work()),
        }
    }

    fn cannot_tell_work(&self) -> String {
        format!(
            "node {} has no usable cgroup v2 tree, so its agent cannot tell work from people, and roles of accounts do not count there: \
             use an operator's credential, or an agent on a machine with cgroup v2",
            self.context.setup.me
        )
    }

    /// The hint of a refusal for lack of a role; empty if roles of the account count.
    pub(super) fn roles_hint(&self, caller: &Caller) -> String {
        self.why_roles_do_not_count(caller).map_or_else(String::new, |why| format!("\nhint: {why}"))
    }

    /// What the quorum knows of the caller's account, including roles that do not count here.
    pub(super) async fn standing_of_account(&self, caller: &Caller) -> Result<Standing, Status> {
        self.ask_standing(caller, BTreeSet::new()).await
    }

    async fn ask_standing(&self, caller: &Caller, about: BTreeSet<String>) -> Result<Standing, Status> {
        let ask = Ask::StandingOf { by: caller.principal.clone(), login_tenants: caller.login_tenants(), about };
        match self.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Standing(standing) => Ok(*standing),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether the caller may call its method on this allocation.
    pub(super) async fn check(&self, caller: &Caller, allocation: &Allocation) -> Result<(), Status> {
        let of = OfTenant { name: &allocation.spec.tenant, ended_at: allocation.ended_at };
        self.check_object(caller, Object::Allocation(allocation.id), &allocation.owner, of).await
    }

    /// As [`Self::check`], for an allocation of this owner and tenant (empty: of none) that has not ended.
    pub(super) async fn check_work(&self, caller: &Caller, id: AllocationId, owner: &Principal, tenant: &str) -> Result<(), Status> {
        self.check_object(caller, Object::Allocation(id), owner, OfTenant { name: tenant, ended_at: None }).await
    }

    /// As [`Self::check`], for the record of ended work.
    pub(super) async fn check_ended(&self, caller: &Caller, work: &EndedWork) -> Result<(), Status> {
        let owner = Principal { name: work.user.clone(), uid: work.uid, gid: work.uid, groups: Vec::new() };
        let of = OfTenant { name: &work.tenant, ended_at: Some(work.ended_at) };
        self.check_object(caller, Object::Allocation(work.allocation), &owner, of).await
    }

    /// As [`Self::check`], for a DAG whose steps are of this tenant (empty: of several, of none, or of a former one).
    pub(super) async fn check_dag(&self, caller: &Caller, dag: &Dag, tenant: &str) -> Result<(), Status> {
        self.check_object(caller, Object::Dag(dag.id), &dag.owner, OfTenant { name: tenant, ended_at: None }).await
    }

    async fn check_object(&self, caller: &Caller, object: Object, owner: &Principal, of: OfTenant<'_>) -> Result<(), Status> {
        match caller.verdict(object, owner) {
            Verdict::Allowed => Ok(()),
            Verdict::Refused(why) => Err(why),
            Verdict::ByRole => {
                let known = self.known_roles(caller).await?;
                let tenant = known.roles.administered(of.name, of.ended_at);
                let relation = known.roles.relation(&caller.principal, owner, tenant);
                if caller.may_by(&known.roles, relation) { Ok(()) } else { Err(known.refusal(caller.not_yours(object, owner))) }
            }
        }
    }

    /// An agent that vouches for nobody knows no roles except root's on its own machine.
    async fn known_roles(&self, caller: &Caller) -> Result<KnownRoles, Status> {
        let by = &caller.principal;
        if !self.site.vouches {
            return Ok(KnownRoles { roles: Roles::of(by, [], RootMay::ActForEverybody), left_out: LeftOut::None });
        }
        match self.standing_of_account(caller).await {
            Ok(standing) => {
                let why = self.why_roles_do_not_count(caller).filter(|_| has_granted_roles(&standing.roles));
                let left_out = why.map_or(LeftOut::None, LeftOut::DoNotCount);
                Ok(KnownRoles { roles: self.as_it_counts(caller, standing).roles, left_out })
            }
            Err(status) if status.code() == Code::Unavailable => {
                let root_may = self.cluster.borrow().root_may;
                Ok(KnownRoles { roles: roles_without_quorum(by, root_may), left_out: LeftOut::QuorumIsAway })
            }
            Err(status) => Err(status),
        }
    }
}

impl KnownRoles {
    /// While the quorum does not answer, nobody knows whether the caller may.
    fn refusal(&self, not_yours: String) -> Status {
        match &self.left_out {
            LeftOut::None => Status::permission_denied(not_yours),
            LeftOut::QuorumIsAway => {
                let text = format!("{not_yours}, and the quorum, which knows your roles, does not answer");
                Status::unavailable(text + "\nhint: `lattice node status` shows why")
            }
            LeftOut::DoNotCount(why) => Status::permission_denied(format!("{not_yours}\nhint: {why}")),
        }
    }
}

/// Whether any role was granted.
pub(super) fn has_granted_roles(roles: &Roles) -> bool {
    roles.operator || roles.system_admin || !roles.admin_of.is_empty()
}

/// Why granted roles do not count for a caller whose token or certificate, which is called `noun`, has these scopes.
fn roles_not_in_scopes(scopes: &Scopes, noun: &str) -> Option<String> {
    let text = "roles of the account count only with the scope admin: use a token with it, or `lattice login`";
    (!scopes.open_roles()).then(|| format!("the {noun} has the scope {scopes}, and {text}"))
}

/// The standing of a caller for whom no granted role counts. A tenant that has members, and that only a role opens to
/// the caller, is closed to it.
pub(super) fn without_granted_roles(standing: Standing) -> Standing {
    let Standing { roles, mut member_of, by_role, mut closed_to_it, default_tenant } = standing;
    member_of.retain(|tenant| !by_role.contains(tenant));
    closed_to_it.extend(by_role);
    let roles = Roles { root: roles.root, ..Roles::default() };
    Standing { roles, member_of, by_role: Default::default(), closed_to_it, default_tenant }
}

/// The roles while the quorum does not answer. `root_may`: as the limits last known here say; `None`: they were never
/// known.
fn roles_without_quorum(by: &Principal, root_may: Option<RootMay>) -> Roles {
    Roles::of(by, [], root_may.unwrap_or(RootMay::ActForItself))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(uid: u32) -> Principal {
        Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![] }
    }

    fn id(number: u128) -> AllocationId {
        AllocationId(uuid::Uuid::from_u128(number))
    }

    fn caller(uid: u32, within: Option<AllocationId>, work_may: WorkMay) -> Caller {
        Caller { principal: principal(uid), within, network: None, work_may, private: false, method: "AllocationService/Cancel".to_owned() }
    }

    /// `ok`, `roles` or the refusal.
    fn decided(caller: &Caller, object: Object, owner: u32) -> String {
        match caller.verdict(object, &principal(owner)) {
            Verdict::Allowed => "ok".to_owned(),
            Verdict::ByRole => "roles".to_owned(),
            Verdict::Refused(why) => why.message().to_owned(),
        }
    }

    #[test]
    fn work_acts_for_its_owner_unless_the_site_narrows_it_and_by_no_role() {
        let (own, other) = (Object::Allocation(id(1)), Object::Allocation(id(2)));
        let dag = Object::Dag(DagId(uuid::Uuid::from_u128(3)));
        let wide = caller(7, Some(id(1)), WorkMay::AsOwner);
        assert_eq!([own, other, dag].map(|object| decided(&wide, object, 7)), ["ok", "ok", "ok"]);
        assert_eq!(decided(&wide, other, 8), "allocation 00000000 belongs to u8");
        assert_eq!(decided(&wide, dag, 8), "DAG 00000000 belongs to u8");
        let narrow = caller(7, Some(id(1)), WorkMay::OwnAllocation);
        assert_eq!(decided(&narrow, own, 7), "ok");
        for object in [other, dag] {
            let refused = decided(&narrow, object, 7);
            assert!(refused.contains("may act for that one alone"), "{refused}");
        }
    }

    #[test]
    fn work_of_root_acts_on_no_other_users_allocation_and_root_outside_by_its_roles() {
        for work_may in [WorkMay::AsOwner, WorkMay::OwnAllocation] {
            let (own, other) = (Object::Allocation(id(1)), Object::Allocation(id(2)));
            assert_eq!(decided(&caller(0, None, work_may), other, 8), "roles");
            assert_ne!(decided(&caller(0, Some(id(1)), work_may), other, 8), "ok");
            assert_ne!(decided(&caller(0, Some(id(1)), work_may), other, 8), "roles");
            // A process that became root inside an allocation may still act on that allocation.
            assert_eq!(decided(&caller(0, Some(id(1)), work_may), own, 8), "ok");
            assert_eq!(decided(&caller(8, None, work_may), other, 8), "ok", "the owner needs no roles");
        }
    }

    #[test]
    fn roles_count_for_a_token_with_the_scope_admin_alone() {
        assert_eq!(roles_not_in_scopes(&Scopes::all(), "token"), None);
        let why = roles_not_in_scopes(&Scopes::work(), "certificate").unwrap();
        let begins = "the certificate has the scope read,work, and roles of the account count only with the scope admin";
        assert!(why.starts_with(begins), "{why}");
    }

    #[test]
    fn the_private_site_names_no_owner() {
        let caller = Caller { private: true, ..caller(7, Some(id(1)), WorkMay::AsOwner) };
        assert_eq!(decided(&caller, Object::Allocation(id(2)), 8), "allocation 00000000 belongs to another user");
    }

    #[test]
    fn who_follows_an_allocation_sees_it_whole_although_everybody_may_ask() {
        let of = |method: &str, roles: &Roles, relation| {
            Caller { method: method.to_owned(), ..caller(7, None, WorkMay::AsOwner) }.may_by(roles, relation)
        };
        let operator = Roles { operator: true, ..Roles::default() };
        let admin = Roles { admin_of: ["physics".to_owned()].into(), ..Roles::default() };
        for method in ["AllocationService/Get", "WatchService/Watch", "AllocationService/Explain"] {
            assert!(!of(method, &Roles::default(), Relation::Foreign), "{method}");
            assert!(of(method, &operator, Relation::Foreign), "{method}");
            assert!(of(method, &admin, Relation::OwnTenant) && !of(method, &admin, Relation::Foreign), "{method}");
        }
        assert!(!of("AllocationService/Logs", &operator, Relation::Foreign), "what work wrote is not the operator's");
        assert!(!of("", &operator, Relation::Foreign), "a method without a row");
    }

    #[test]
    fn an_unanswered_quorum_is_unavailable_and_a_missing_role_is_a_denial() {
        let refused = |left_out| {
            let status = KnownRoles { roles: Roles::default(), left_out }.refusal("allocation 1 belongs to u8".to_owned());
            (status.code(), status.message().to_owned())
        };
        assert_eq!(refused(LeftOut::None), (Code::PermissionDenied, "allocation 1 belongs to u8".to_owned()));
        let away = "allocation 1 belongs to u8, and the quorum, which knows your roles, does not answer\n\
                    hint: `lattice node status` shows why";
        assert_eq!(refused(LeftOut::QuorumIsAway), (Code::Unavailable, away.to_owned()));
        let here = "allocation 1 belongs to u8\nhint: no cgroups".to_owned();
        assert_eq!(refused(LeftOut::DoNotCount("no cgroups".to_owned())), (Code::PermissionDenied, here));
    }

    #[test]
    fn without_granted_roles_root_remains_and_administered_tenants_are_closed() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<std::collections::BTreeSet<_>>();
        // The tenant `open` has no members.
        let admin_of = names(&["open", "biology", "physics"]);
        let roles = Roles { operator: true, system_admin: true, root: true, admin_of, ..Roles::default() };
        assert!(has_granted_roles(&roles) && !has_granted_roles(&Roles { root: true, ..Roles::default() }));
        let (member_of, by_role, closed_to_it) = (names(&["biology", "physics"]), names(&["physics"]), names(&["chemistry"]));
        let standing = Standing { roles, member_of, by_role, closed_to_it, default_tenant: None };
        let counted = without_granted_roles(standing);
        assert_eq!(counted.roles, Roles { root: true, ..Roles::default() });
        assert_eq!(counted.closed_to_it, names(&["chemistry", "physics"]));
        assert_eq!((counted.member_of, counted.by_role), (names(&["biology"]), names(&[])), "of biology it is a member, too");
    }

    #[test]
    fn without_the_quorum_root_acts_for_others_if_the_limits_were_known_to_say_so() {
        let may = |uid, root_may| roles_without_quorum(&principal(uid), root_may).may("AllocationService/Cancel", Relation::Foreign);
        assert!(may(0, Some(RootMay::ActForEverybody)));
        assert!(!may(0, Some(RootMay::ActForItself)) && !may(0, None));
        assert!(!may(7, Some(RootMay::ActForEverybody)));
    }
}
