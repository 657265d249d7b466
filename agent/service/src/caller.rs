//! The identity of callers: the kernel identifies the process at the other end of the socket.

use super::Api;
use super::accounts::ACCOUNTS;
use super::connections::Peer;
use super::refusal::status;
use super::requests::Method;
use lattice_agent_common::clock::now;
use lattice_agent_common::config::work::WorkMay;
use lattice_api::operator::token_of;
use lattice_model::{AllocationId, DagId, OperatorToken, Principal, with_causes};
use lattice_pki::operator;
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Refusal, Request as Ask};
use std::io;
use tonic::{Request, Status};

/// A caller on the local socket.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The account of the process.
    pub principal: Principal,
    /// The allocation in whose scope the process is, if any. Such a process never acts as an
    /// operator.
    pub within: Option<AllocationId>,
    /// What a process of an allocation may do.
    pub work_may: WorkMay,
    /// Whether the site hides the owners of allocations.
    pub private: bool,
}

impl Api {
    /// Identifies the caller of a request.
    pub(super) async fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let peer = request.extensions().get::<Peer>().ok_or_else(|| Status::unauthenticated("the socket does not identify the caller"))?;
        let within = match &self.context.machine.slice {
            Some(slice) => whose_work(peer.credentials.pid(), |pid| {
                let scope = slice.scope_of_pid(pid)?;
                if peer.is_gone() { Err(io::ErrorKind::NotFound.into()) } else { Ok(scope) }
            })?,
            None => None,
        };
        let principal = ACCOUNTS.principal(peer.credentials.uid(), peer.credentials.gid()).await?;
        Ok(Caller { principal, within, work_may: self.site.work_may, private: self.site.private })
    }

    /// The user as whom the caller may act. Work of an allocation may act as its owner unless the
    /// site restricts it.
    pub(super) async fn user<T>(&self, request: &Request<T>) -> Result<Principal, Status> {
        let caller = self.caller(request).await?;
        self.vouches_for_users()?;
        caller.user()
    }

    /// The user, if the caller is no allocation's work: for what the quorum grants to root alone.
    pub(super) async fn person<T>(&self, request: &Request<T>) -> Result<Principal, Status> {
        let caller = self.caller(request).await?;
        self.vouches_for_users()?;
        caller.outside()
    }

    fn vouches_for_users(&self) -> Result<(), Status> {
        if self.site.vouches {
            return Ok(());
        }
        Err(Status::failed_precondition("this agent does not serve users (its roles lack api): use an agent that does"))
    }
}

/// An operator, authenticated by a token.
pub(super) struct Operator {
    /// The name in the operator's certificate.
    pub name: String,
    /// The account of the operator's process on this machine.
    pub account: Principal,
    token: OperatorToken,
}

impl Operator {
    /// The operator's request, with the token.
    pub fn asks(&self, request: impl Into<Ask>) -> Ask {
        Ask::AsOperator { token: self.token.clone(), request: Box::new(request.into()) }
    }
}

impl Api {
    /// The operator whose token for this very method comes with the request. Never work of an
    /// allocation, whoever owns it.
    pub(super) async fn operator<T>(&self, request: &Request<T>) -> Result<Operator, Status> {
        let account = self.person(request).await?;
        let token = token_of(request.metadata()).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let token = token.ok_or_else(|| not_operator(format!("{} shows none", account.name)))?;
        let proven = operator::verify(&token, &self.credentials, now()).map_err(|error| not_operator(with_causes(&error)))?;
        let method = request.extensions().get::<Method>().map_or("", |method| &method.0);
        if proven.method != method {
            return Err(not_operator(format!("{} signed for {}, not for {method}", proven.name, proven.method)));
        }
        Ok(Operator { name: proven.name, account, token })
    }
}

fn not_operator(why: String) -> Status {
    status(&CallError::Refused(Refusal::NotOperator { why }))
}

impl Api {
    /// A caller that may act as an operator on this node only. The kernel identifies it, so no
    /// agent need vouch for it.
    pub(super) async fn operator_here<T>(&self, request: &Request<T>) -> Result<Principal, Status> {
        let user = self.caller(request).await?.outside()?;
        if is_operator(&user) {
            return Ok(user);
        }
        Err(Status::permission_denied(format!("{} is no operator: ask root on this machine", user.name)))
    }
}

/// Whether a user is an operator of this node: root, or the user as whom the agent runs.
pub(super) fn is_operator(user: &Principal) -> bool {
    user.is_root() || user.uid == nix::unistd::geteuid().as_raw()
}

impl Caller {
    /// As [`Self::check`], for a DAG.
    pub(super) fn check_dag(&self, dag: DagId, owner: &Principal) -> Result<(), Status> {
        let may = match self.within {
            None => self.principal.may_act_for(owner),
            Some(within) if self.work_may == WorkMay::OwnAllocation => return Err(confined(within)),
            Some(_) => self.principal.owns(owner),
        };
        if may {
            return Ok(());
        }
        let whom = if self.private { "another user" } else { &owner.name };
        Err(Status::permission_denied(format!("DAG {} belongs to {whom}", dag.short())))
    }

    /// The account, if the process may act as that user.
    fn user(self) -> Result<Principal, Status> {
        match (self.within, self.work_may) {
            (None, _) | (Some(_), WorkMay::AsOwner) => Ok(self.principal),
            (Some(within), WorkMay::OwnAllocation) => Err(confined(within)),
        }
    }

    /// The account, if the process is no allocation's work.
    fn outside(self) -> Result<Principal, Status> {
        match self.within {
            None => Ok(self.principal),
            Some(within) => {
                let text = format!("this process is work of allocation {}: work may not use operators' commands", within.short());
                Err(Status::permission_denied(text))
            }
        }
    }

    /// Whether the caller may act on `allocation`, which belongs to `owner`. Work may act on its
    /// own allocation, and as its user on that user's other allocations; even as root it may act on
    /// no other user's.
    pub(super) fn check(&self, allocation: AllocationId, owner: &Principal) -> Result<(), Status> {
        let may = match self.within {
            None => self.principal.may_act_for(owner),
            Some(within) if within == allocation => self.principal.may_act_for(owner),
            Some(within) if self.work_may == WorkMay::OwnAllocation => return Err(confined(within)),
            Some(_) => self.principal.owns(owner),
        };
        if may {
            return Ok(());
        }
        let whom = if self.private { "another user" } else { &owner.name };
        Err(Status::permission_denied(format!("allocation {} belongs to {whom}", allocation.short())))
    }
}

fn confined(within: AllocationId) -> Status {
    let text = format!("this process is work of allocation {} and may act for that one alone (work.may: own_allocation)", within.short());
    Status::permission_denied(text)
}

/// The allocation of which the connecting process is work. If that cannot be determined, the caller
/// is refused: otherwise work that ends and hands its connection on would count as its user.
fn whose_work(pid: Option<i32>, scope_of: impl Fn(i32) -> io::Result<Option<AllocationId>>) -> Result<Option<AllocationId>, Status> {
    let refused =
        |why: String| Status::permission_denied(format!("{why}: the process that opened the connection must live until it has the answer"));
    let pid = pid.filter(|pid| *pid > 0).ok_or_else(|| refused("the kernel does not report which process connected".to_owned()))?;
    scope_of(pid).map_err(|e| refused(format!("the allocation of process {pid} is not known ({e})")))
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
        Caller { principal: principal(uid), within, work_may, private: false }
    }

    #[test]
    fn work_acts_as_its_owner_unless_the_site_narrows_it_and_never_as_an_operator() {
        let (own, other) = (id(1), id(2));
        let wide = caller(7, Some(own), WorkMay::AsOwner);
        assert_eq!(wide.clone().user().unwrap(), principal(7));
        assert!(wide.check(own, &principal(7)).is_ok() && wide.check(other, &principal(7)).is_ok());
        assert_eq!(wide.check(other, &principal(8)).unwrap_err().message(), "allocation 00000000 belongs to u8");
        let dag = DagId(uuid::Uuid::from_u128(3));
        assert!(wide.check_dag(dag, &principal(7)).is_ok());
        assert_eq!(wide.check_dag(dag, &principal(8)).unwrap_err().message(), "DAG 00000000 belongs to u8");
        assert!(caller(0, None, WorkMay::AsOwner).check_dag(dag, &principal(8)).is_ok());
        assert_eq!(wide.outside().unwrap_err().code(), tonic::Code::PermissionDenied);
        let narrow = caller(7, Some(own), WorkMay::OwnAllocation);
        assert!(narrow.check(own, &principal(7)).is_ok());
        let of_dag = narrow.check_dag(dag, &principal(7)).unwrap_err();
        for refused in [narrow.check(other, &principal(7)).unwrap_err(), narrow.clone().user().unwrap_err(), of_dag] {
            assert!(refused.message().contains("may act for that one alone"), "{refused}");
        }
        assert_eq!(narrow.outside().unwrap_err().code(), tonic::Code::PermissionDenied);
    }

    #[test]
    fn work_of_root_acts_on_no_other_users_allocation_and_root_outside_does() {
        for work_may in [WorkMay::AsOwner, WorkMay::OwnAllocation] {
            assert!(caller(0, None, work_may).check(id(2), &principal(8)).is_ok());
            assert_eq!(caller(0, None, work_may).outside().unwrap(), principal(0));
            assert!(caller(0, Some(id(1)), work_may).check(id(2), &principal(8)).is_err());
            // A process that became root inside an allocation may still act on that allocation.
            assert!(caller(0, Some(id(1)), work_may).check(id(1), &principal(8)).is_ok());
        }
    }

    #[test]
    fn a_caller_whose_process_is_gone_is_refused_and_not_taken_for_its_user() {
        let id: AllocationId = "00000000-0000-4000-8000-000000000009".parse().unwrap();
        let scope_of = |pid| match pid {
            1 => Ok(None),
            2 => Ok(Some(id)),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        assert_eq!(whose_work(Some(1), scope_of).unwrap(), None);
        assert_eq!(whose_work(Some(2), scope_of).unwrap(), Some(id));
        for pid in [None, Some(0), Some(3)] {
            assert_eq!(whose_work(pid, scope_of).unwrap_err().code(), tonic::Code::PermissionDenied, "{pid:?}");
        }
    }
}
