//! Who is calling: the kernel's word about the process at the other end of the socket.

use super::Api;
use lattice_model::{AllocationId, Principal};
use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::ffi::CString;
use tonic::transport::server::UdsConnectInfo;
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
    pub(super) fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let info = request.extensions().get::<UdsConnectInfo>().and_then(|i| i.peer_cred);
        let credentials = info.ok_or_else(|| Status::unauthenticated("the socket does not say who is calling"))?;
        let within = match (credentials.pid(), &self.context.slice) {
            (Some(pid), Some(slice)) => slice.scope_of_pid(pid),
            (_, _) => None,
        };
        Ok(Caller { principal: account(credentials.uid(), credentials.gid())?, within })
    }

    /// A caller that may act as a user, not as an allocation's work.
    pub(super) fn user<T>(&self, request: &Request<T>) -> Result<Principal, Status> {
        let caller = self.caller(request)?;
        if !self.vouches {
            return Err(Status::failed_precondition("this agent does not vouch for users (its roles lack api): use an agent that does"));
        }
        match caller.within {
            None => Ok(caller.principal),
            Some(id) => {
                let text = format!("this process is work of allocation {} and may act for that one alone", id.short());
                Err(Status::permission_denied(text))
            }
        }
    }
}

impl Caller {
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

fn account(uid: u32, gid: u32) -> Result<Principal, Status> {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let user = user.ok_or_else(|| Status::unauthenticated(format!("uid {uid} has no account on this machine")))?;
    let name = CString::new(user.name.as_str()).map_err(|_| Status::unauthenticated("the account's name holds a NUL"))?;
    let groups = getgrouplist(&name, Gid::from_raw(gid)).map_err(|e| Status::internal(format!("the groups of {}: {e}", user.name)))?;
    Ok(Principal { name: user.name, uid, gid, groups: groups.into_iter().map(Gid::as_raw).collect() })
}
