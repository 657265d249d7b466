//! The identity of callers: the kernel identifies the process at the other end of the socket, a token a caller on the
//! network.

use super::Api;
use super::accounts::ACCOUNTS;
use super::connections::{NetworkPeer, Peer};
use super::refusal::status;
use super::requests::Method;
use lattice_agent_common::clock::now;
use lattice_agent_common::config::work::WorkMay;
use lattice_api::operator::token_of;
use lattice_model::access::{Reach, Relation, Roles, RootMay, rule};
use lattice_model::{AllocationId, Principal, with_causes};
use lattice_pki::operator;
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Proof, Refusal, Request as Ask};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use tonic::{Request, Status};

/// A caller on the local socket or on the network.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The account of the process, or of the token.
    pub principal: Principal,
    /// The allocation in whose scope the process is, if any. Such a process never acts as an
    /// operator.
    pub within: Option<AllocationId>,
    /// How a caller on the network proved who it is; `None`: a process of this machine.
    pub network: Option<Arc<NetworkPeer>>,
    /// What a process of an allocation may do.
    pub work_may: WorkMay,
    /// Whether the site hides the owners of allocations.
    pub private: bool,
    /// The method that it calls, such as `AllocationService/Cancel`.
    pub method: String,
}

impl Api {
    /// Identifies the caller of a request.
    pub(super) async fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let peer = request.extensions().get::<Peer>().ok_or_else(|| Status::unauthenticated("the socket does not identify the caller"))?;
        let (principal, within, network) = match peer {
            Peer::Local(peer) => {
                let within = match &self.context.machine.slice {
                    Some(slice) => allocation_of(peer.credentials.pid(), |pid| {
                        let scope = slice.scope_of_pid(pid)?;
                        if peer.is_gone() { Err(io::ErrorKind::NotFound.into()) } else { Ok(scope) }
                    })?,
                    None => None,
                };
                (ACCOUNTS.principal(peer.credentials.uid(), peer.credentials.gid()).await?, within, None)
            }
            Peer::Network(peer) => (peer.principal.clone(), None, Some(Arc::clone(peer))),
        };
        // A request without its method is in no row of the table: it acts on the caller's own objects alone.
        let method = request.extensions().get::<Method>().map_or_else(String::new, |method| method.0.clone());
        Ok(Caller { principal, within, network, work_may: self.site.work_may, private: self.site.private, method })
    }

    /// The user as whom the caller may act. Work of an allocation may act as its owner unless the
    /// site restricts it.
    pub(super) async fn user<T>(&self, request: &Request<T>) -> Result<Principal, Status> {
        let caller = self.caller(request).await?;
        self.vouches_for_users()?;
        caller.user()
    }

    /// Refuses what only agents of role `api` do.
    pub(super) fn vouches_for_users(&self) -> Result<(), Status> {
        if self.site.vouches {
            return Ok(());
        }
        Err(Status::failed_precondition("this agent does not serve users (its roles lack api): use an agent that does"))
    }
}

/// An operator: by a token, or by the roles of the account.
pub(super) struct Operator {
    /// The name in the operator's certificate, or that of the account.
    pub name: String,
    /// The account of the operator's process on this machine.
    pub account: Principal,
    proof: Proof,
}

impl Operator {
    /// The operator's request, with the proof that the operator made it.
    pub fn asks(&self, request: impl Into<Ask>) -> Ask {
        Ask::AsOperator { proof: self.proof.clone(), request: Box::new(request.into()) }
    }

    fn by_account(account: Principal, method: String) -> Self {
        Self { name: account.name.clone(), proof: Proof::Account { by: account.clone(), method }, account }
    }
}

impl Api {
    /// The operator who makes this request: by a token for this very method that comes with it, or else by the roles of
    /// the account. Of a method that is about one tenant, the quorum decides whether the account is an admin of that
    /// tenant. Never work of an allocation, whoever owns it.
    pub(super) async fn operator<T>(&self, request: &Request<T>) -> Result<Operator, Status> {
        let caller = self.outside_caller(request).await?;
        if let Some(operator) = self.by_token(&caller, request)? {
            return Ok(operator);
        }
        let standing = self.standing_of_account(&caller).await?;
        let is_allowed = opens(&standing.roles, &caller.method);
        if opens(&self.as_it_counts(&caller, standing).roles, &caller.method) {
            return Ok(Operator::by_account(caller.principal, caller.method));
        }
        let left_out = self.why_roles_do_not_count(&caller).filter(|_| is_allowed);
        let has_none = || format!("{} shows none, and has no role for {}", caller.principal.name, caller.method);
        Err(not_operator(left_out.unwrap_or_else(has_none)))
    }

    /// The caller as an operator by the roles of its account, for a method that its roles open for everybody's objects;
    /// `None`: it has no such role, it is work of an allocation, or this agent vouches for nobody.
    pub(super) async fn operator_by_role(&self, caller: &Caller) -> Result<Option<Operator>, Status> {
        if caller.within.is_some() || !self.site.vouches {
            return Ok(None);
        }
        let roles = Roles { root: false, ..self.standing(caller).await?.roles };
        let is_allowed = roles.may(&caller.method, Relation::Foreign);
        Ok(is_allowed.then(|| Operator::by_account(caller.principal.clone(), caller.method.clone())))
    }

    /// The operator whose token for this very method comes with the request; `None`: no token comes with it. Work of an
    /// allocation is refused, with a token or without.
    pub(super) async fn operator_by_token<T>(&self, request: &Request<T>) -> Result<Option<Operator>, Status> {
        let caller = self.outside_caller(request).await?;
        self.by_token(&caller, request)
    }

    async fn outside_caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let caller = self.caller(request).await?;
        self.vouches_for_users()?;
        caller.outside()
    }

    fn by_token<T>(&self, caller: &Caller, request: &Request<T>) -> Result<Option<Operator>, Status> {
        let token = token_of(request.metadata()).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let Some(token) = token else { return Ok(None) };
        let proven = operator::verify(&token, &self.credentials, now()).map_err(|error| not_operator(with_causes(&error)))?;
        if proven.method != caller.method {
            return Err(not_operator(format!("{} signed for {}, not for {}", proven.name, proven.method, caller.method)));
        }
        Ok(Some(Operator { name: proven.name, account: caller.principal.clone(), proof: Proof::Token(token) }))
    }
}

/// Whether these roles open a method that only operators call. If they reach tenants, the quorum decides which.
fn opens(roles: &Roles, method: &str) -> bool {
    rule(method).is_some_and(|rule| roles.reach(rule) >= Reach::OwnTenant)
}

fn not_operator(why: String) -> Status {
    status(&CallError::Refused(Refusal::NotOperator { why }))
}

impl Api {
    /// Refuses callers that may not act as operators on this node. An operator's token suffices, and so does being root
    /// of this machine, which the kernel proves without an agent that vouches; for others, the roles of the account
    /// decide.
    pub(super) async fn operator_here<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let caller = self.caller(request).await?.outside()?;
        if self.by_token(&caller, request)?.is_some() || self.is_operator_here(&caller) {
            return Ok(());
        }
        if self.site.vouches && opens(&self.standing(&caller).await?.roles, &caller.method) {
            return Ok(());
        }
        let text = format!("{} is no operator of this node: ask one, or root that acts for everybody", caller.principal.name);
        Err(Status::permission_denied(text + &self.roles_hint(&caller)))
    }

    /// Whether the caller is an operator of this node without a question to the quorum: root that acts for everybody, or
    /// the user as whom the agent runs; never work of an allocation, and nobody on the network.
    pub(super) fn is_operator_here(&self, caller: &Caller) -> bool {
        // An agent that serves no users does not follow the limits: root of its own machine is root there.
        let root_may = if self.site.vouches { self.cluster.borrow().root_may } else { Some(RootMay::ActForEverybody) };
        is_operator(caller, root_may)
    }
}

/// `root_may`: as the limits last known here say; `None`: they are not known.
fn is_operator(caller: &Caller, root_may: Option<RootMay>) -> bool {
    let is_one = if caller.principal.is_root() {
        root_may == Some(RootMay::ActForEverybody)
    } else {
        caller.principal.uid == nix::unistd::geteuid().as_raw()
    };
    caller.within.is_none() && caller.network.is_none() && is_one
}

impl Caller {
    /// The account, if the process may act as that user.
    fn user(self) -> Result<Principal, Status> {
        match (self.within, self.work_may) {
            (None, _) | (Some(_), WorkMay::AsOwner) => Ok(self.principal),
            (Some(within), WorkMay::OwnAllocation) => Err(confined(within)),
        }
    }

    /// The tenants of which the caller's token makes it a member: this agent vouches for them.
    pub(super) fn login_tenants(&self) -> BTreeSet<String> {
        self.network.as_ref().map(|peer| peer.tenants.clone()).unwrap_or_default()
    }

    /// The caller, if the process is no allocation's work.
    fn outside(self) -> Result<Self, Status> {
        match self.within {
            None => Ok(self),
            Some(within) => {
                let text = format!("this process is work of allocation {}: work may not use operators' commands", within.short());
                Err(Status::permission_denied(text))
            }
        }
    }

    /// The principal that this agent vouches for towards the agents of nodes, once the caller may act on work of
    /// `owner`: the owner itself, or root if the work is another's. Audit records name the caller itself.
    pub(super) fn vouched_for(&self, owner: &Principal) -> Principal {
        if self.principal.owns(owner) {
            return self.principal.clone();
        }
        Principal { name: "root".to_owned(), uid: 0, gid: 0, groups: Vec::new() }
    }
}

/// The refusal for work that may act for its own allocation alone.
pub(super) fn confined(within: AllocationId) -> Status {
    let text = format!("this process is work of allocation {} and may act for that one alone (work.may: own_allocation)", within.short());
    Status::permission_denied(text)
}

/// The allocation of which the connecting process is work. If that cannot be determined, the caller
/// is refused: otherwise work that ends and hands its connection on would count as its user.
fn allocation_of(pid: Option<i32>, scope_of: impl Fn(i32) -> io::Result<Option<AllocationId>>) -> Result<Option<AllocationId>, Status> {
    let refused =
        |why: String| Status::permission_denied(format!("{why}: the process that opened the connection must live until it has the answer"));
    let pid = pid.filter(|pid| *pid > 0).ok_or_else(|| refused("the kernel does not report which process connected".to_owned()))?;
    scope_of(pid).map_err(|e| refused(format!("the allocation of process {pid} is not known ({e})")))
}

#[cfg(test)]
mod tests {
    use super::super::connections::Authentication;
    use super::*;
    use lattice_model::Timestamp;
    use lattice_model::access::Scopes;
    use lattice_model::access_token::TokenId;

    fn principal(uid: u32) -> Principal {
        Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![] }
    }

    fn id(number: u128) -> AllocationId {
        AllocationId(uuid::Uuid::from_u128(number))
    }

    fn caller(uid: u32, within: Option<AllocationId>, work_may: WorkMay) -> Caller {
        Caller { principal: principal(uid), within, network: None, work_may, private: false, method: "AllocationService/Cancel".to_owned() }
    }

    #[test]
    fn work_acts_as_its_owner_unless_the_site_narrows_it_and_never_as_an_operator() {
        let wide = caller(7, Some(id(1)), WorkMay::AsOwner);
        assert_eq!(wide.clone().user().unwrap(), principal(7));
        assert_eq!(wide.outside().unwrap_err().code(), tonic::Code::PermissionDenied);
        let narrow = caller(7, Some(id(1)), WorkMay::OwnAllocation);
        let refused = narrow.clone().user().unwrap_err();
        assert!(refused.message().contains("may act for that one alone"), "{refused}");
        assert_eq!(narrow.outside().unwrap_err().code(), tonic::Code::PermissionDenied);
        assert_eq!(caller(0, None, WorkMay::OwnAllocation).outside().unwrap().principal, principal(0));
    }

    #[test]
    fn an_agent_vouches_for_owners_as_themselves_and_for_all_others_as_root() {
        let of = |uid: u32| {
            let Principal { name, uid, .. } = caller(uid, None, WorkMay::AsOwner).vouched_for(&principal(7));
            (name, uid)
        };
        assert_eq!(of(7), ("u7".to_owned(), 7));
        assert_eq!(of(8), ("root".to_owned(), 0));
    }

    #[test]
    fn a_method_for_operators_is_open_to_roles_that_reach_a_tenant_or_everything() {
        let admin = Roles { admin_of: ["physics".to_owned()].into(), ..Roles::default() };
        let operator = Roles { operator: true, ..Roles::default() };
        let system_admin = Roles { system_admin: true, ..Roles::default() };
        let root = Roles { root: true, ..Roles::default() };
        let who = |method: &str| [&Roles::default(), &admin, &operator, &system_admin, &root].map(|roles| opens(roles, method));
        assert_eq!(who("NodeService/SetHold"), [false, false, true, true, false]);
        assert_eq!(who("AdminService/GrantRole"), [false, false, false, true, false]);
        assert_eq!(who("AdminService/AddTenantMember"), [false, true, false, true, false]);
        assert_eq!(who("NodeService/Fingerprint"), [false, false, true, true, true]);
        assert_eq!(who("NodeService/Nothing"), [false; 5], "a method without a row");
        assert_eq!(who(""), [false; 5]);
    }

    #[test]
    fn root_is_an_operator_of_its_node_outside_allocations_until_the_site_narrows_it() {
        let of = |uid, within, root_may| is_operator(&caller(uid, within, WorkMay::AsOwner), root_may);
        assert!(of(0, None, Some(RootMay::ActForEverybody)));
        assert!(!of(0, None, Some(RootMay::ActForItself)) && !of(0, None, None));
        assert!(!of(0, Some(id(1)), Some(RootMay::ActForEverybody)));
        let peer = NetworkPeer {
            principal: principal(nix::unistd::geteuid().as_raw()),
            scopes: Scopes::all(),
            tenants: [].into(),
            authentication: Authentication::Token { id: TokenId(1), name: "ci".to_owned() },
            expires_at: Timestamp(0),
        };
        let on_network = Caller { network: Some(Arc::new(peer.clone())), ..caller(peer.principal.uid, None, WorkMay::AsOwner) };
        assert!(!is_operator(&on_network, Some(RootMay::ActForEverybody)), "whoever it is");
        let stranger = nix::unistd::geteuid().as_raw() + 1;
        assert!(!of(stranger, None, Some(RootMay::ActForEverybody)));
    }

    #[test]
    fn a_caller_whose_process_is_gone_is_refused_and_not_taken_for_its_user() {
        let id: AllocationId = "00000000-0000-4000-8000-000000000009".parse().unwrap();
        let scope_of = |pid| match pid {
            1 => Ok(None),
            2 => Ok(Some(id)),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        assert_eq!(allocation_of(Some(1), scope_of).unwrap(), None);
        assert_eq!(allocation_of(Some(2), scope_of).unwrap(), Some(id));
        for pid in [None, Some(0), Some(3)] {
            assert_eq!(allocation_of(pid, scope_of).unwrap_err().code(), tonic::Code::PermissionDenied, "{pid:?}");
        }
    }
}
