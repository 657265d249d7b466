//! Who is calling: the kernel's word about the process at the other end of the socket.

use super::Api;
use super::accounts::ACCOUNTS;
use super::connections::Peer;
use lattice_model::{AllocationId, Principal};
use std::io;
use tonic::{Request, Status};

/// A caller on the local socket.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The account that the process runs as.
    pub principal: Principal,
    /// The allocation whose work the process is, where it is in one's scope: it may act for that one alone.
    pub within: Option<AllocationId>,
}

impl Api {
    /// Recognises the caller of a request.
    pub(super) async fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let peer = request.extensions().get::<Peer>().ok_or_else(|| Status::unauthenticated("the socket does not say who is calling"))?;
        let within = match &self.context.slice {
            Some(slice) => whose_work(peer.credentials.pid(), |pid| {
                let scope = slice.scope_of_pid(pid)?;
                if peer.is_gone() { Err(io::ErrorKind::NotFound.into()) } else { Ok(scope) }
            })?,
            None => None,
        };
        Ok(Caller { principal: ACCOUNTS.principal(peer.credentials.uid(), peer.credentials.gid()).await?, within })
    }

    /// A caller that may act as a user, not as an allocation's work.
    pub(super) async fn user<T>(&self, request: &Request<T>) -> Result<Principal, Status> {
        let caller = self.caller(request).await?;
        if !self.vouches {
            return Err(Status::failed_precondition("this agent does not vouch for users (its roles lack api): use an agent that does"));
        }
        caller.outside()
    }
}

impl Api {
    /// A caller that may do what is the operators': root on an agent that vouches, or the user as whom that agent itself
    /// runs (`lattice dev`).
    pub(super) async fn operator<T>(&self, request: &Request<T>) -> Result<Principal, Status> {
        let user = self.user(request).await?;
        if is_operator(&user) {
            return Ok(user);
        }
        Err(Status::permission_denied(format!("{} is no operator: ask root on a machine whose agent has the role api", user.name)))
    }
}

impl Api {
    /// A caller that may do what is the operators' about this node alone, whom the kernel names: it needs nobody to vouch for it.
    pub(super) async fn operator_here<T>(&self, request: &Request<T>) -> Result<Principal, Status> {
        let user = self.caller(request).await?.outside()?;
        if is_operator(&user) {
            return Ok(user);
        }
        Err(Status::permission_denied(format!("{} is no operator: ask root on this machine", user.name)))
    }
}

/// Whether a user that the agent vouches for is an operator: root, or the one as whom the agent itself runs.
pub(super) fn is_operator(user: &Principal) -> bool {
    user.is_root() || user.uid == nix::unistd::geteuid().as_raw()
}

impl Caller {
    /// The account, where the process is no allocation's work.
    fn outside(self) -> Result<Principal, Status> {
        match self.within {
            None => Ok(self.principal),
            Some(id) => {
                let text = format!("this process is work of allocation {} and may act for that one alone", id.short());
                Err(Status::permission_denied(text))
            }
        }
    }

    /// Whether the caller may act on `allocation`, which belongs to `owner`.
    pub(super) fn check(&self, allocation: AllocationId, owner: &Principal) -> Result<(), Status> {
        if let Some(within) = self.within
            && within != allocation
        {
            let text = format!("this process is work of allocation {} and may act for that one alone", within.short());
            return Err(Status::permission_denied(text));
        }
        if self.principal.may_act_for(owner) {
            return Ok(());
        }
        Err(Status::permission_denied(format!("allocation {} belongs to {}", allocation.short(), owner.name)))
    }
}

/// The allocation that the connecting process is work of. Where that cannot be told the caller is refused: work whose
/// process is gone, its descriptor handed on, would else be taken for its user.
fn whose_work(pid: Option<i32>, scope_of: impl Fn(i32) -> io::Result<Option<AllocationId>>) -> Result<Option<AllocationId>, Status> {
    let refused = |why: String| Status::permission_denied(format!("{why}: the process that connects must stay for as long as it asks"));
    let pid = pid.filter(|pid| *pid > 0).ok_or_else(|| refused("the kernel does not say which process connected".to_owned()))?;
    scope_of(pid).map_err(|e| refused(format!("whose work process {pid} is cannot be told ({e})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_an_allocation_is_nobody_else() {
        let root = Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] };
        let id: AllocationId = "00000000-0000-4000-8000-000000000009".parse().unwrap();
        let caller = |within| Caller { principal: root.clone(), within };
        assert_eq!(caller(None).outside().unwrap(), root);
        assert_eq!(caller(Some(id)).outside().unwrap_err().code(), tonic::Code::PermissionDenied);
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
