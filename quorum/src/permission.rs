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
//! which a node may make for people on that node. For operators, the quorum trusts no agent: the
//! operator's own token is the proof ([`lattice_pki::operator`]), and the table names the API
//! methods that the token must be signed for.

use lattice_ledger::access::{Access, AccessKind, TEXT_BYTES_MAX};
use lattice_ledger::{Action, Requester};
use lattice_model::operator_token::EXPORT_AUDIT;
use lattice_model::{Allocation, AllocationId, DagId, NodeId, Principal};
use lattice_pki::identity::{Caller, Role};
use lattice_pki::operator::Operator;
use lattice_quorum_client::wire::{Refusal, Request};

/// The API method that an operator signs to change the members.
const CHANGE_MEMBERS: &str = "AdminService/ChangeMembers";
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
    /// A user authenticated by the calling agent; or an operator with a token for one of these
    /// methods, who may do more.
    UserOrOperator(&'static [&'static str]),
    /// An operator with a token signed for one of these methods.
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
            // An operator's certificate cannot open connections.
            Role::Operator => Grant::No,
        }
    }

    /// The roles to which it is granted, for people: those with `Yes`, or if none has that, those
    /// with `Own`.
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
                use Person::{Itself, Operator, User};
                match self {
                    $(Self::$request => Row { quorum: Grant::$rq, api: Grant::$ra, node: Grant::$rn, person: $rp },)*
                    $(Self::$other => Row { quorum: Grant::$oq, api: Grant::$oa, node: Grant::$on, person: $op },)*
                }
            }

            /// The call made by a request. A query that may be answered from an outdated state
            /// counts as that query.
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
        ListAllocations: No Yes No Itself;
        ListNodes: No Yes Yes Itself;
        GetNodes: No Yes Yes Itself;
        SampleNodes: No Yes Yes Itself;
        Claims: No Yes No Itself;
        /// By the node that it names: the head of the lane.
        AdvanceLane: No Own Own Itself;
        GetTasks: No Yes No Itself;
        /// Held by the caller itself, or by a user of its machine.
        AcquireLease: No Own No User;
        QueryAudit: No Yes No Operator(&["AdminService/QueryAudit"]);
        VerifyAudit: No Yes No Itself;
        ExportAudit: No Yes No Operator(&[EXPORT_AUDIT]);
        /// For a node: on that node, to an allocation that has or had a share on it, by its owner
        /// or root.
        RecordAccess: No Yes Own User;
        Status: Yes Yes Yes Itself;
        StateHash: No Yes No Itself;
        Members: Yes Yes Yes Itself;
        ChangeMembers: No Yes No Operator(&[CHANGE_MEMBERS]);
        /// Held by the caller itself, or by a user of its machine.
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
        ListSessions: No Yes No Itself;
        ListAdmissions: No Yes No Itself;
        CheckDag: No Yes No User;
        GetDag: No Yes No Itself;
        ListDags: No Yes No Itself;
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

/// Checks whether the caller may make this request, as far as the request itself shows it, and that
/// the names of persons in it are well-formed. Conditions about an allocation are checked where the
/// allocation is known.
pub(crate) fn check(caller: &Caller, operator: Option<&Operator>, request: &mut Request) -> Result<Grant, Refusal> {
    let grant = granted(Call::of(request), caller)?;
    check_operator(request, operator)?;
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

/// The node in whose name a lease is acquired, renewed or released.
fn lease_holder(request: &Request) -> Option<&NodeId> {
    match request {
        Request::AcquireLease { holder, .. } | Request::RenewLease { holder, .. } => Some(holder),
        Request::Command(action) => match &**action {
            Action::ReleaseLease { holder, .. } => Some(holder),
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
        other => return Ok(Call::of(other).row().person),
    };
    let name = action.name();
    match action.requester() {
        Requester::Member => Err(Refusal::Malformed { why: format!("only members propose {name}: nobody may request it") }),
        Requester::User(..) | Requester::UserOfDag(..) | Requester::Owner(_) => Ok(Person::User),
        Requester::UserOrOperator { methods, .. } => Ok(Person::UserOrOperator(methods)),
        Requester::Operator(_, methods) => Ok(Person::Operator(methods)),
    }
}

/// Checks that a request for operators comes with an operator who signed for it, and that a request
/// that is not for operators comes without one.
fn check_operator(request: &mut Request, operator: Option<&Operator>) -> Result<(), Refusal> {
    let person = person(request)?;
    let what = match request {
        Request::Command(action) => action.name().to_owned(),
        other => format!("{:?}", Call::of(other)),
    };
    match (person, operator) {
        (Person::Operator(methods) | Person::UserOrOperator(methods), Some(operator)) if methods.contains(&operator.method.as_str()) => {
            Ok(())
        }
        (Person::Operator(methods) | Person::UserOrOperator(methods), Some(operator)) => {
            let why = format!("{} signed for {}; {} is needed", operator.name, operator.method, methods.join(" or "));
            Err(Refusal::NotOperator { why })
        }
        (Person::Operator(_), None) => Err(Refusal::NotOperator { why: format!("{what} was sent without an operator's token") }),
        (Person::Itself | Person::User | Person::UserOrOperator(_), None) => Ok(()),
        (Person::Itself | Person::User, Some(_)) => Err(Refusal::Malformed { why: format!("{what} is not a call for operators") }),
    }
}

/// Sets the requester's name for the audit log, in place of the name that the agent wrote: for an
/// operator, the name in the token and the machine of the agent; for root, if the work belongs to
/// another user, root and the machine. Other names stay as the agent wrote them.
pub(crate) fn name_person(
    request: &mut Request,
    caller: &Caller,
    operator: Option<&Operator>,
    is_of_root: impl Fn(AllocationId) -> bool,
    is_dag_of_root: impl Fn(DagId) -> bool,
) {
    let at = |name: &str| format!("{name}@{}", caller.name);
    match requester(request) {
        Some(Requester::Operator(by, _)) => {
            if let Some(operator) = operator {
                *by = at(&operator.name);
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
            *as_operator = operator.is_some();
            match operator {
                Some(operator) => by.name = at(&operator.name),
                None if by.is_root() && !is_of_root(allocation) => by.name = at(&by.name),
                None => {}
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
        Requester::User(by, _) | Requester::UserOfDag(by, _) | Requester::UserOrOperator { by, .. } => Some(&by.name),
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
        | Request::RecordAccess(Access { by, .. }) => Some(Requester::Owner(Some(by))),
        Request::AcquireLease { user, .. } | Request::RenewLease { user, .. } => Some(Requester::Owner(user.as_mut())),
        Request::ChangeMembers(order) => Some(Requester::Operator(&mut order.by.name, &[CHANGE_MEMBERS])),
        Request::GetAllocation { .. }
        | Request::ListAllocations { .. }
        | Request::ListNodes
        | Request::GetNodes { .. }
        | Request::SampleNodes { .. }
        | Request::Claims(_)
        | Request::AdvanceLane { .. }
        | Request::GetTasks { .. }
        | Request::QueryAudit { .. }
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
        | Request::ListSessions
        | Request::GetDag { .. }
        | Request::ListDags { .. } => None,
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
    if grant == Grant::Own && (!on_itself || access.allocation.is_none() || access.kind == AccessKind::AuditExported) {
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

    #[test]
    fn nobody_but_an_api_agent_carries_a_persons_wish_and_a_stolen_node_certificate_reads_little() {
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
}
