//! The table of permissions: which certificate role may make which call to a member. It contains
//! every [`Request`] (a missing one does not compile), the streams, and the messages between
//! members. All commands together are one call, for the role `api`; the table of
//! [`lattice_ledger::Action`] states for each command who may request it.
//!
//! | cell | meaning |
//! |---|---|
//! | `No` | refused |
//! | `Own` | only for the caller's own objects; the comments in the table say which |
//! | `Yes` | granted |
//!
//! `person` says on whose behalf a request is made: nobody's (`Itself`: the agent or member acts
//! for itself), a user's or an operator's. For users, the quorum trusts the agent that
//! authenticated them, so only the role `api` may make such calls; the exception is `RecordAccess`,
//! which a node may make for people on that node. A request for operators needs a proof (`Author`)
//! for one of the API methods in its row of the table. There are two kinds of proof:
//!
//! | proof | trusted agents | allowed methods |
//! |---|---|---|
//! | a token of an operator's certificate ([`lattice_pki::operator`]) | none | all |
//! | an account for which an agent vouches | those of role `api` | by its roles ([`lattice_model::access`]) |
//!
//! The content of a request may need more than its method: a tenant's admin adds accounts to the
//! tenant, and a system admin alone adds groups and sets defaults ([`Action::needs_system_admin`]).

use lattice_ledger::access::{Access, AccessKind, TEXT_BYTES_MAX};
use lattice_ledger::{Action, Requester};
use lattice_model::access::{Relation, Roles, rule};
use lattice_model::operator_token::EXPORT_AUDIT;
use lattice_model::{Allocation, AllocationId, DagId, NodeId, Principal};
use lattice_pki::identity::{Caller, Role};
use lattice_pki::operator::Operator;
use lattice_quorum_client::wire::{Refusal, Request};

/// The API method that an operator signs to change the members.
const CHANGE_MEMBERS: &str = "AdminService/ChangeMembers";
/// The API method that reads the audit log.
const QUERY_AUDIT: &str = "AdminService/QueryAudit";
/// The API method that removes a member of a tenant.
const REMOVE_TENANT_MEMBER: &str = "AdminService/RemoveTenantMember";
/// Largest size of a person's name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The permission of a role for one kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Refused.
    No,
    /// Granted for the caller's own objects.
    Own,
    /// Granted.
    Yes,
}

/// The person on whose behalf a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Person {
    /// Nobody: the caller acts for itself.
    Itself,
    /// A user authenticated by the calling agent.
    User,
    /// A user authenticated by the calling agent; or an operator with a proof for one of these
    /// methods, who may do more.
    UserOrOperator(&'static [&'static str]),
    /// An operator with a proof for one of these methods.
    Operator(&'static [&'static str]),
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    quorum: Grant,
    api: Grant,
    node: Grant,
    /// The person on whose behalf it is made.
    pub person: Person,
}

impl Row {
    /// The cell of a role.
    pub fn of(self, role: Role) -> Grant {
        match role {
            Role::Quorum => self.quorum,
            Role::Api => self.api,
            Role::Node => self.node,
            // Their certificates open no connection to a member.
            Role::Operator | Role::Service => Grant::No,
        }
    }

    /// The roles that may make the call, as text: those with `Yes`, or if there are none, those with
    /// `Own`.
    fn roles(self) -> String {
        let roles = [Role::Quorum, Role::Api, Role::Node].into_iter();
        let granted =
            |wanted: Grant| roles.clone().filter(|role| self.of(*role) == wanted).map(|role| role.to_string()).collect::<Vec<_>>();
        let all = granted(Grant::Yes);
        if all.is_empty() { granted(Grant::Own).join(" or ") } else { all.join(" or ") }
    }
}

macro_rules! table {
    (
        requests { $($(#[$request_doc:meta])* $request:ident: $rq:ident $ra:ident $rn:ident $rp:expr;)* }
        others { $($(#[$other_doc:meta])* $other:ident: $oq:ident $oa:ident $on:ident $op:expr;)* }
    ) => {
        /// All calls to a member.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Call {
            $($(#[$request_doc])* $request,)*
            $($(#[$other_doc])* $other,)*
        }

        impl Call {
            /// All calls.
            pub const ALL: &'static [Self] = &[$(Self::$request,)* $(Self::$other,)*];

            /// Its row in the table.
            pub fn row(self) -> Row {
                use Person::{Itself, Operator, User, UserOrOperator};
                match self {
                    $(Self::$request => Row { quorum: Grant::$rq, api: Grant::$ra, node: Grant::$rn, person: $rp },)*
                    $(Self::$other => Row { quorum: Grant::$oq, api: Grant::$oa, node: Grant::$on, person: $op },)*
                }
            }

            /// The call made by a request. `Stale` and `AsOperator` count as the request that they
            /// contain.
            pub fn of(request: &Request) -> Self {
                let mut asked = request;
                loop {
                    asked = match asked {
                        Request::Stale(inner) | Request::AsOperator { request: inner, .. } => inner,
                        $(Request::$request { .. } => return Self::$request,)*
                    };
                }
            }
        }
    };
}

table! {
    // Call: quorum api node, and the person on whose behalf it is made.
    requests {
        /// The command's own row states the person, or that nobody may request it.
        Command: No Yes No Itself;
        Submit: No Yes No User;
        CheckSubmission: No Yes No User;
        /// For a node: an allocation that has or had a share on it.
        GetAllocation: No Yes Own Itself;
        /// For a node: as `GetAllocation`, each allocation separately.
        GetAllocations: No Yes Own Itself;
        ListAllocations: No Yes No Itself;
        ListNodes: No Yes Yes Itself;
        GetNodes: No Yes Yes Itself;
        SampleNodes: No Yes Yes Itself;
        Claims: No Yes No Itself;
        /// Only by the head of the lane, which is the `node` in the request.
        AdvanceLane: No Own Own Itself;
        GetTasks: No Yes No Itself;
        /// Only with the caller as the holder, for itself or for a user of its machine.
        AcquireLease: No Own No User;
        /// A query for a user reads the records visible to that user (`audit::visible`). It knows the
        /// user by name alone, so it includes records of a namesake on another machine. A query
        /// without a user reads everything, for an operator.
        QueryAudit: No Yes No UserOrOperator(&[QUERY_AUDIT]);
        VerifyAudit: No Yes No Itself;
        ExportAudit: No Yes No Operator(&[EXPORT_AUDIT]);
        /// For a node: only accesses on that node, by the owner or root, to an allocation that has or
        /// had a share on it; no `Denied` and no `AuditExported`.
        RecordAccess: No Yes Own User;
        Status: Yes Yes Yes Itself;
        StateHash: No Yes No Itself;
        Members: Yes Yes Yes Itself;
        ChangeMembers: No Yes No Operator(&[CHANGE_MEMBERS]);
        /// Only with the caller as the holder, for itself or for a user of its machine.
        RenewLease: No Own No User;
        ListLeases: No Yes No Itself;
        RefusedClaim: No Yes No Itself;
        /// The caller's next certificate, with its name and role.
        RenewCertificate: Own Own Own Itself;
        ListTenants: No Yes No Itself;
        GetVniPool: No Yes No Itself;
        ListDomains: No Yes No Itself;
        /// For a node: services of tenants whose work is on it.
        ListServices: No Yes Own Itself;
        /// For a node: services of tenants whose work is on it.
        LookupService: No Yes Own Itself;
        GetUsage: No Yes No Itself;
        GetLimits: No Yes No Itself;
        ListKeys: No Yes No Itself;
        ListRevocations: No Yes No Itself;
        Backup: Yes No No Itself;
        ListVClusters: No Yes No Itself;
        ListReservations: No Yes No Itself;
        ListSessions: No Yes No Itself;
        ListAdmissions: No Yes No Itself;
        CheckDag: No Yes No User;
        GetDag: No Yes No Itself;
        ListDags: No Yes No Itself;
        StandingOf: No Yes No User;
        ListRoles: No Yes No Itself;
        ListTenantMembers: No Yes No Itself;
        ListProjects: No Yes No Itself;
        TokenRecord: No Yes No Itself;
        ListTokens: No Yes No Itself;
        EndedWork: No Yes No Itself;
    }
    others {
        /// For the node named in the certificate.
        Session: No Own Own Itself;
        /// For a node: itself.
        WatchNodes: No Yes Own Itself;
        /// For a node: allocations that have or had a share on it.
        WatchAllocations: No Yes Own Itself;
        WatchTenants: No Yes No Itself;
        WatchLeases: No Yes No Itself;
        WatchVClusters: No Yes No Itself;
        WatchDomains: No Yes No Itself;
        WatchLimits: No Yes No Itself;
        /// A request that a current member forwards to the leader.
        Forward: Own No No Itself;
        /// Raft's messages: each member only in its own name.
        Append: Own No No Itself;
        Vote: Own No No Itself;
        InstallSnapshot: Own No No Itself;
        Audit: Yes No No Itself;
        Heartbeats: Own No No Itself;
        Roster: Own No No Itself;
        Campaign: Own No No Itself;
    }
}

/// The caller's permission in the table.
///
/// # Errors
/// [`Refusal::Role`] if there is none.
pub fn granted(call: Call, caller: &Caller) -> Result<Grant, Refusal> {
    match call.row().of(caller.role) {
        Grant::No => Err(refused(call, caller)),
        grant @ (Grant::Own | Grant::Yes) => Ok(grant),
    }
}

/// The refusal for objects that are not the caller's own.
pub(crate) fn refused(call: Call, caller: &Caller) -> Refusal {
    Refusal::Role { needed: call.row().roles(), role: caller.role.to_string() }
}

/// The proven author of a request for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Author {
    /// The name in the operator's certificate, or of the account.
    name: String,
    /// The API method that the operator signed for, or that the account called.
    method: String,
    /// The account, which needs a role that allows the method ([`check_roles`]). `None`: an
    /// operator's certificate, which allows every method that it signed for.
    pub account: Option<Principal>,
}

impl From<Operator> for Author {
    fn from(Operator { name, method }: Operator) -> Self {
        Self { name, method, account: None }
    }
}

impl Author {
    /// An account for which the caller vouches. Its roles are not checked yet.
    ///
    /// # Errors
    /// [`Refusal::NotOperator`]: the caller may not vouch for accounts, or there is no such method.
    /// [`Refusal::Malformed`]: the account's name.
    pub fn of_account(caller: &Caller, by: Principal, method: &str) -> Result<Self, Refusal> {
        if caller.role != Role::Api {
            let why = format!("{} vouches for an account with a certificate of role {}; {} is needed", caller.name, caller.role, Role::Api);
            return Err(Refusal::NotOperator { why });
        }
        check_name(&by.name)?;
        let Some(rule) = rule(method) else {
            return Err(Refusal::NotOperator { why: format!("{} called no method of the API that is known here", by.name) });
        };
        Ok(Self { name: by.name.clone(), method: rule.method.to_owned(), account: Some(by) })
    }
}

/// The requirements that the content of a request adds to those of its method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope<'a> {
    /// The tenant that it changes, if admins of the tenant may make such requests.
    tenant: Option<&'a str>,
    /// Whether a system admin alone may make it ([`Action::needs_system_admin`]).
    needs_system_admin: bool,
}

impl<'a> Scope<'a> {
    /// The scope of a request.
    pub fn of(request: &'a Request) -> Self {
        match request {
            Request::Command(action) => Self { tenant: action.concerns_tenant(), needs_system_admin: action.needs_system_admin() },
            _ => Self::default(),
        }
    }
}

/// Checks that an account's roles allow the method that it called, with this scope.
///
/// # Errors
/// [`Refusal::NotOperator`] if they do not.
pub(crate) fn check_roles(author: &Author, roles: &Roles, scope: Scope<'_>) -> Result<(), Refusal> {
    let Author { name, method, account: _ } = author;
    let relation = scope.tenant.map_or(Relation::Foreign, |tenant| roles.relation_to_tenant(tenant));
    if !roles.may(method, relation) {
        let for_tenant = scope.tenant.map_or_else(String::new, |tenant| format!(" for tenant {tenant:?}"));
        return Err(Refusal::NotOperator { why: format!("{name} has no role that allows {method}{for_tenant}") });
    }
    if !scope.needs_system_admin || roles.system_admin {
        return Ok(());
    }
    let why = match scope.tenant {
        Some(tenant) if method == REMOVE_TENANT_MEMBER => {
            format!("{name} may remove accounts from tenant {tenant:?}; a system admin removes groups")
        }
        Some(tenant) => format!("{name} may add accounts to tenant {tenant:?}; a system admin adds groups and sets defaults"),
        None => format!("{name} is no system admin"),
    };
    Err(Refusal::NotOperator { why })
}

/// Checks whether the caller may make this request, as far as the request itself shows it, and
/// whether the names of persons in it are well-formed. Callers that know the allocation or the
/// account's roles check the conditions that depend on them.
pub(crate) fn check(caller: &Caller, author: Option<&Author>, request: &mut Request) -> Result<Grant, Refusal> {
    let grant = granted(Call::of(request), caller)?;
    check_author(request, author)?;
    if let Some(holder) = lease_holder(request)
        && holder.as_str() != caller.name
    {
        return Err(Refusal::Malformed { why: format!("{} may not use leases of {holder}", caller.name) });
    }
    if let Request::AdvanceLane { node, .. } = request
        && node.as_str() != caller.name
    {
        return Err(Refusal::Malformed { why: format!("{} may not report for the lanes of {node}", caller.name) });
    }
    if let Request::RecordAccess(access) = request {
        check_access(caller, grant, access)?;
    }
    if let Some(name) = name_of_person(request) {
        check_name(name)?;
    }
    Ok(grant)
}

/// The node in whose name a lease is acquired, renewed, used or released.
fn lease_holder(request: &Request) -> Option<&NodeId> {
    match request {
        Request::AcquireLease { holder, .. } | Request::RenewLease { holder, .. } => Some(holder),
        Request::Command(action) => match &**action {
            Action::ReleaseLease { holder, .. } | Action::Account { node: holder, .. } => Some(holder),
            _ => None,
        },
        _ => None,
    }
}

/// The person on whose behalf a request is made.
///
/// # Errors
/// [`Refusal::Malformed`]: a command that only members may propose.
pub fn person(request: &mut Request) -> Result<Person, Refusal> {
    let action = match request {
        Request::Stale(inner) | Request::AsOperator { request: inner, .. } => return person(inner),
        Request::Command(action) => action,
        Request::QueryAudit { by: Some(_), .. } => return Ok(Person::User),
        Request::QueryAudit { by: None, .. } => return Ok(Person::Operator(&[QUERY_AUDIT])),
        other => return Ok(Call::of(other).row().person),
    };
    let name = action.name();
    match action.requester() {
        Requester::Member => Err(Refusal::Malformed { why: format!("only members propose {name}: nobody may request it") }),
        Requester::User(..) | Requester::UserOfDag(..) | Requester::Owner(_) => Ok(Person::User),
        Requester::UserOrOperator { methods, .. } | Requester::OwnerOrOperator { methods, .. } => Ok(Person::UserOrOperator(methods)),
        Requester::Operator(_, methods) => Ok(Person::Operator(methods)),
    }
}

/// Checks that a request for operators has a proof for its method, and that any other request has
/// none.
fn check_author(request: &mut Request, author: Option<&Author>) -> Result<(), Refusal> {
    let person = person(request)?;
    let what = match request {
        Request::Command(action) => action.name().to_owned(),
        other => format!("{:?}", Call::of(other)),
    };
    match (person, author) {
        (Person::Operator(methods) | Person::UserOrOperator(methods), Some(author)) if methods.contains(&author.method.as_str()) => Ok(()),
        (Person::Operator(methods) | Person::UserOrOperator(methods), Some(author)) => {
            let why = format!("the proof of {} is for {}; {} is needed", author.name, author.method, methods.join(" or "));
            Err(Refusal::NotOperator { why })
        }
        (Person::Operator(_), None) => Err(Refusal::NotOperator { why: format!("{what} was sent without the proof of an operator") }),
        (Person::Itself | Person::User | Person::UserOrOperator(_), None) => Ok(()),
        (Person::Itself | Person::User, Some(_)) => Err(Refusal::Malformed { why: format!("{what} is not a call for operators") }),
    }
}

/// Replaces the requester's name that the agent wrote, for the audit log. An operator gets the name
/// in the proof and the agent's machine; root gets the machine if the work belongs to another user.
/// All other names stay without a machine, even if a role lets the person act on another user's work
/// without a proof, for example an admin of its tenant. Before the ledger looks up roles, it removes
/// the machine only from root's name, so no other name may get one here without a proof.
pub(crate) fn name_person(
    request: &mut Request,
    caller: &Caller,
    author: Option<&Author>,
    is_of_root: impl Fn(AllocationId) -> bool,
    is_dag_of_root: impl Fn(DagId) -> bool,
) {
    let at = |name: &str| format!("{name}@{}", caller.name);
    match requester(request) {
        Some(Requester::Operator(by, _)) => {
            if let Some(author) = author {
                *by = at(&author.name);
            }
        }
        Some(Requester::User(by, allocation)) => {
            if by.is_root() && !is_of_root(allocation) {
                by.name = at(&by.name);
            }
        }
        Some(Requester::UserOfDag(by, dag)) => {
            if by.is_root() && !is_dag_of_root(dag) {
                by.name = at(&by.name);
            }
        }
        Some(Requester::UserOrOperator { by, allocation, as_operator, .. }) => {
            *as_operator = author.is_some();
            match author {
                Some(author) => by.name = at(&author.name),
                None if by.is_root() && !is_of_root(allocation) => by.name = at(&by.name),
                None => {}
            }
        }
        Some(Requester::OwnerOrOperator { by, as_operator, .. }) => {
            *as_operator = author.is_some();
            if let Some(author) = author {
                by.name = at(&author.name);
            }
        }
        // An owner's name is not changed, and an access record already contains its machine.
        Some(Requester::Owner(_) | Requester::Member) | None => {}
    }
}

/// The name of the person on whose behalf a request is made; `None`: the caller makes it for
/// itself, for example for a lease of the agent.
pub fn name_of_person(request: &mut Request) -> Option<&str> {
    match requester(request)? {
        Requester::User(by, _)
        | Requester::UserOfDag(by, _)
        | Requester::UserOrOperator { by, .. }
        | Requester::OwnerOrOperator { by, .. } => Some(&by.name),
        Requester::Owner(owner) => owner.map(|owner| owner.name.as_str()),
        Requester::Operator(by, _) => Some(by),
        Requester::Member => None,
    }
}

/// The requester named in a request; `None`: the caller requests it for itself.
fn requester(request: &mut Request) -> Option<Requester<'_>> {
    match request {
        Request::Stale(inner) | Request::AsOperator { request: inner, .. } => requester(inner),
        Request::Command(action) => Some(action.requester()),
        Request::Submit { owner: by, .. }
        | Request::CheckSubmission { owner: by, .. }
        | Request::CheckDag { owner: by, .. }
        | Request::StandingOf { by, .. }
        | Request::RecordAccess(Access { by, .. }) => Some(Requester::Owner(Some(by))),
        Request::AcquireLease { user, .. } | Request::RenewLease { user, .. } | Request::QueryAudit { by: user, .. } => {
            Some(Requester::Owner(user.as_mut()))
        }
        Request::ChangeMembers(order) => Some(Requester::Operator(&mut order.by.name, &[CHANGE_MEMBERS])),
        Request::GetAllocation { .. }
        | Request::GetAllocations { .. }
        | Request::ListAllocations { .. }
        | Request::ListNodes
        | Request::GetNodes { .. }
        | Request::SampleNodes { .. }
        | Request::Claims(_)
        | Request::AdvanceLane { .. }
        | Request::GetTasks { .. }
        | Request::VerifyAudit { .. }
        | Request::ExportAudit { .. }
        | Request::Status
        | Request::StateHash
        | Request::Members
        | Request::ListLeases
        | Request::RefusedClaim { .. }
        | Request::RenewCertificate { .. }
        | Request::ListTenants
        | Request::GetVniPool
        | Request::ListDomains { .. }
        | Request::ListServices { .. }
        | Request::LookupService { .. }
        | Request::GetUsage { .. }
        | Request::GetLimits
        | Request::ListKeys
        | Request::ListRevocations
        | Request::ListAdmissions
        | Request::Backup
        | Request::ListVClusters
        | Request::ListReservations
        | Request::ListSessions
        | Request::GetDag { .. }
        | Request::ListDags { .. }
        | Request::ListRoles
        | Request::ListTenantMembers { .. }
        | Request::ListProjects { .. }
        | Request::TokenRecord { .. }
        | Request::ListTokens { .. }
        | Request::EndedWork { .. } => None,
    }
}

/// Checks the form of a person's name, because it is in the audit log for ever.
fn check_name(name: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let why = format!("the requester's name has 1 to {NAME_BYTES_MAX} bytes without control characters");
        return Err(Refusal::Malformed { why });
    }
    Ok(())
}

/// Checks an access record as far as that needs no allocation.
fn check_access(caller: &Caller, grant: Grant, access: &Access) -> Result<(), Refusal> {
    if access.detail.len() > TEXT_BYTES_MAX {
        let (bytes, most) = (access.detail.len() as u64, TEXT_BYTES_MAX as u64);
        return Err(Refusal::TooLarge { what: "the description of an access".to_owned(), bytes, most });
    }
    if access.detail.chars().any(char::is_control) {
        return Err(Refusal::Malformed { why: "the description of an access has no control characters: escape them".to_owned() });
    }
    let on_itself = access.node.as_ref().is_none_or(|node| node.as_str() == caller.name);
    // An api agent exports the audit log, and denies calls.
    let is_of_api = matches!(access.kind, AccessKind::AuditExported | AccessKind::Denied);
    if grant == Grant::Own && (!on_itself || access.allocation.is_none() || is_of_api) {
        return Err(refused(Call::RecordAccess, caller));
    }
    Ok(())
}

/// Whether an allocation has a share on this node, or had one that its record still contains.
pub fn is_of_node(allocation: &Allocation, node: &str) -> bool {
    allocation.shares.rank_of_name(node).is_some()
        || allocation.attempts.iter().any(|attempt| {
            attempt.head.as_str() == node || attempt.node_ids().is_ok_and(|nodes| nodes.iter().any(|of| of.as_str() == node))
        })
}

/// Checks who acts on an allocation at a node: only its owner or the root of that machine may.
///
/// # Errors
/// [`Refusal::Malformed`]: somebody else.
pub(crate) fn check_actor(by: &Principal, allocation: &Allocation) -> Result<(), Refusal> {
    if by.owns(&allocation.owner) || (by.is_root() && by.name == "root") {
        return Ok(());
    }
    let why = format!("a node records only what {} and root do to allocation {}", allocation.owner.name, allocation.id.short());
    Err(Refusal::Malformed { why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::access_token::TokenId;

    #[test]
    fn only_an_api_agent_acts_for_a_person_and_a_stolen_node_certificate_reads_little() {
        for call in Call::ALL {
            let row = call.row();
            assert!(row.quorum == Grant::No || row.person == Person::Itself, "{call:?}");
            assert!(row.person == Person::Itself || row.node == Grant::No || *call == Call::RecordAccess, "{call:?}");
            assert_ne!(row.roles(), "", "{call:?}: somebody may");
        }
        // Most commands are made on behalf of a person, although the row of `Command` has `Itself`.
        let commands = Call::Command.row();
        assert_eq!((commands.quorum, commands.node), (Grant::No, Grant::No));
        let of_node: Vec<Call> = Call::ALL.iter().copied().filter(|call| call.row().node == Grant::Yes).collect();
        assert_eq!(of_node, [Call::ListNodes, Call::GetNodes, Call::SampleNodes, Call::Status, Call::Members]);
    }

    fn account() -> Principal {
        Principal { name: "alice".into(), uid: 7, gid: 7, groups: vec![] }
    }

    fn api() -> Caller {
        Caller { name: "n1".into(), role: Role::Api }
    }

    #[test]
    fn an_api_agent_alone_vouches_for_an_account_and_for_methods_of_the_table() {
        let author = Author::of_account(&api(), account(), "NodeService/SetHold").unwrap();
        assert_eq!((author.name.as_str(), author.method.as_str(), author.account), ("alice", "NodeService/SetHold", Some(account())));
        for role in [Role::Quorum, Role::Node, Role::Operator, Role::Service] {
            let refused = Author::of_account(&Caller { role, ..api() }, account(), "NodeService/SetHold");
            let why = format!("n1 vouches for an account with a certificate of role {role}; api is needed");
            assert_eq!(refused, Err(Refusal::NotOperator { why }));
        }
        let why = "alice called no method of the API that is known here".to_owned();
        assert_eq!(Author::of_account(&api(), account(), "NodeService/Explode"), Err(Refusal::NotOperator { why }));
        let nameless = Author::of_account(&api(), Principal { name: "a\nb".into(), ..account() }, "NodeService/SetHold");
        assert!(matches!(nameless, Err(Refusal::Malformed { .. })), "{nameless:?}");
    }

    #[test]
    fn the_roles_of_an_account_allow_their_methods_in_the_table() {
        let author = |method| Author::of_account(&api(), account(), method).unwrap();
        let operator = Roles { operator: true, ..Roles::default() };
        let admin = Roles { admin_of: ["physics".to_owned()].into(), ..Roles::default() };
        let root = Roles { root: true, ..Roles::default() };
        let (hold, grant, member) =
            (author("NodeService/SetHold"), author("AdminService/GrantRole"), author("AdminService/AddTenantMember"));
        let scope = |tenant| Scope { tenant, needs_system_admin: false };
        assert_eq!(check_roles(&hold, &operator, scope(None)), Ok(()));
        assert_eq!(check_roles(&member, &admin, scope(Some("physics"))), Ok(()));
        for (author, roles, tenant, why) in [
            (&hold, &Roles::default(), None, "alice has no role that allows NodeService/SetHold"),
            (&hold, &root, None, "alice has no role that allows NodeService/SetHold"),
            (&hold, &admin, None, "alice has no role that allows NodeService/SetHold"),
            (&grant, &operator, None, "alice has no role that allows AdminService/GrantRole"),
            (&member, &admin, None, "alice has no role that allows AdminService/AddTenantMember"),
            (&member, &admin, Some("biology"), "alice has no role that allows AdminService/AddTenantMember for tenant \"biology\""),
            (&member, &operator, Some("physics"), "alice has no role that allows AdminService/AddTenantMember for tenant \"physics\""),
        ] {
            assert_eq!(check_roles(author, roles, scope(tenant)), Err(Refusal::NotOperator { why: why.to_owned() }));
        }
    }

    #[test]
    fn a_request_for_system_admins_is_refused_to_other_roles_that_have_its_method() {
        let author = |method| Author::of_account(&api(), account(), method).unwrap();
        let admin = Roles { admin_of: ["physics".to_owned()].into(), ..Roles::default() };
        let (operator, system) = (Roles { operator: true, ..Roles::default() }, Roles { system_admin: true, ..Roles::default() });
        for (method, roles, tenant, why) in [
            (
                "AdminService/AddTenantMember",
                &admin,
                Some("physics"),
                "alice may add accounts to tenant \"physics\"; a system admin adds groups and sets defaults",
            ),
            (
                REMOVE_TENANT_MEMBER,
                &admin,
                Some("physics"),
                "alice may remove accounts from tenant \"physics\"; a system admin removes groups",
            ),
            ("NodeService/SetHold", &operator, None, "alice is no system admin"),
        ] {
            let (author, scope) = (author(method), Scope { tenant, needs_system_admin: true });
            assert_eq!(check_roles(&author, roles, scope), Err(Refusal::NotOperator { why: why.to_owned() }));
            let both = Roles { system_admin: true, ..roles.clone() };
            assert_eq!((check_roles(&author, &system, scope), check_roles(&author, &both, scope)), (Ok(()), Ok(())), "{method}");
        }
    }

    #[test]
    fn a_token_is_revoked_as_its_account_without_a_proof_and_as_an_admin_with_one() {
        let revoke = || Request::from(Action::RevokeToken { id: TokenId(7), by: account(), as_operator: true });
        let named = |author: Option<&Author>| {
            let mut request = revoke();
            assert_eq!(check(&api(), author, &mut request), Ok(Grant::Yes));
            name_person(&mut request, &api(), author, |_| false, |_| false);
            let Request::Command(action) = request else { panic!("it stays a command") };
            match *action {
                Action::RevokeToken { by, as_operator, .. } => (by.name, as_operator),
                other => panic!("{other:?}"),
            }
        };
        let author = |method| Author::of_account(&api(), account(), method).unwrap();
        assert_eq!(named(None), ("alice".to_owned(), false), "whatever the agent says");
        assert_eq!(named(Some(&author("AdminService/RevokeToken"))), ("alice@n1".to_owned(), true));
        let other = check(&api(), Some(&author("AdminService/ListTokens")), &mut revoke());
        assert!(matches!(other, Err(Refusal::NotOperator { .. })), "{other:?}");
    }

    #[test]
    fn the_whole_audit_log_is_read_only_with_a_proof() {
        let query = |by| Request::QueryAudit { filter: lattice_model::AuditFilter::default(), after: 0, limit: 1, by };
        let author = Author::of_account(&api(), account(), QUERY_AUDIT).unwrap();
        assert_eq!(check(&api(), Some(&author), &mut query(None)), Ok(Grant::Yes));
        assert_eq!(check(&api(), None, &mut query(Some(account()))), Ok(Grant::Yes));
        let why = "QueryAudit was sent without the proof of an operator".to_owned();
        assert_eq!(check(&api(), None, &mut query(None)), Err(Refusal::NotOperator { why: why.clone() }));
        assert_eq!(check(&api(), None, &mut Request::Stale(Box::new(query(None)))), Err(Refusal::NotOperator { why }));
        let proven = check(&api(), Some(&author), &mut query(Some(account())));
        assert!(matches!(proven, Err(Refusal::Malformed { .. })), "a user's query needs no proof: {proven:?}");
    }
}
