//! `LeaseService`: leases for programs outside Lattice. The holder is this agent's node together
//! with the requesting user.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::caller::Caller;
use super::refusal::{status, unexpected};
use lattice_api::v1;
use lattice_api::v1::lease_service_server::LeaseService;
use lattice_ledger::Action;
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, LeaseStatus, Refusal, Request as Ask};
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl LeaseService for Api {
    async fn grant(&self, request: Request<v1::GrantLeaseRequest>) -> Result<Response<v1::Lease>, Status> {
        let user = self.user(&request).await?;
        let v1::GrantLeaseRequest { name, ttl_ms } = request.into_inner();
        let shown = user.name.clone();
        let ask = Ask::AcquireLease { name: name.clone(), holder: self.context.setup.me.clone(), ttl_ms, user: Some(user) };
        self.held(&ask, name, shown).await
    }

    async fn renew(&self, request: Request<v1::RenewLeaseRequest>) -> Result<Response<v1::Lease>, Status> {
        let user = self.user(&request).await?;
        self.refuse_others_lease(&self.caller(&request).await?, &request.get_ref().name).await?;
        let v1::RenewLeaseRequest { name, token } = request.into_inner();
        let shown = user.name.clone();
        let ask = Ask::RenewLease { name: name.clone(), token, holder: self.context.setup.me.clone(), user: Some(user) };
        self.held(&ask, name, shown).await
    }

    async fn release(&self, request: Request<v1::ReleaseLeaseRequest>) -> Result<Response<v1::ReleaseLeaseResponse>, Status> {
        let user = self.user(&request).await?;
        self.refuse_others_lease(&self.caller(&request).await?, &request.get_ref().name).await?;
        let v1::ReleaseLeaseRequest { name, token } = request.into_inner();
        self.done(&Ask::from(Action::ReleaseLease { name, token, holder: self.context.setup.me.clone(), user: Some(user) })).await?;
        Ok(Response::new(v1::ReleaseLeaseResponse {}))
    }

    async fn revoke(&self, request: Request<v1::RevokeLeaseRequest>) -> Result<Response<v1::RevokeLeaseResponse>, Status> {
        let operator = self.operator(&request).await?;
        let v1::RevokeLeaseRequest { name, token } = request.into_inner();
        let by = operator.name.clone();
        self.done(&operator.asks(Action::RevokeLease { name, token, by })).await?;
        Ok(Response::new(v1::RevokeLeaseResponse {}))
    }

    async fn list(&self, request: Request<v1::ListLeasesRequest>) -> Result<Response<v1::ListLeasesResponse>, Status> {
        self.user(&request).await?;
        let tokens = TokensOf::of(self, self.caller(&request).await?);
        let leases = self.leases().await?.into_iter().map(|l| v1::Lease {
            name: l.name,
            holder: l.holder.to_string(),
            token: tokens.shown(l.user.as_deref(), l.token),
            user: l.user.unwrap_or_default(),
            ttl_ms: l.ttl_ms,
            left_ms: l.left_ms,
            problem: l.problem.unwrap_or_default(),
        });
        Ok(Response::new(v1::ListLeasesResponse { leases: leases.collect() }))
    }
}

/// The leases whose tokens a caller sees: those of its own user, or all. A token gives access to what the lease protects.
pub(super) struct TokensOf {
    user: String,
    all: bool,
}

impl TokensOf {
    /// Root sees all while it acts for everybody: it may release leases of others. Work of an allocation may not.
    pub(super) fn of(api: &Api, caller: Caller) -> Self {
        Self { all: caller.principal.is_root() && api.is_operator_here(&caller), user: caller.principal.name }
    }

    /// The token, if the caller sees it. `user`: who holds the lease; `None`: an agent.
    pub(super) fn shown(&self, user: Option<&str>, token: u64) -> Option<u64> {
        (self.all || user == Some(self.user.as_str())).then_some(token)
    }
}

/// Refuses a lease of another user to a caller who acts by no role. The quorum would count the roles of the account.
fn check_own(leases: &[LeaseStatus], name: &str, user: &str) -> Result<(), Refusal> {
    match leases.iter().find(|lease| lease.name == name).and_then(|lease| lease.user.as_deref()) {
        Some(owner) if owner != user => Err(Refusal::LeaseNotYours { name: name.to_owned(), owner: owner.to_owned() }),
        Some(_) | None => Ok(()),
    }
}

impl Api {
    /// All leases, by name.
    pub(super) async fn leases(&self) -> Result<Vec<LeaseStatus>, Status> {
        match self.quorum.call(&Ask::ListLeases, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Leases(leases) => Ok(leases),
            other => Err(unexpected(&other)),
        }
    }

    /// Work of an allocation uses only the leases of its own user, even as root. So does everybody else for whom roles
    /// do not count, except root. The quorum decides all other cases.
    async fn refuse_others_lease(&self, caller: &Caller, name: &str) -> Result<(), Status> {
        let counts_roles = caller.within.is_none() && (self.granted_roles_count(caller) || caller.principal.is_root());
        if counts_roles {
            return Ok(());
        }
        check_own(&self.leases().await?, name, &caller.principal.name).map_err(|refusal| status(&CallError::Refused(refusal)))
    }

    async fn held(&self, ask: &Ask, name: String, user: String) -> Result<Response<v1::Lease>, Status> {
        match self.quorum.call(ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Lease { token, ttl_ms } => {
                let holder = self.context.setup.me.to_string();
                Ok(Response::new(v1::Lease {
                    name,
                    holder,
                    user,
                    token: Some(token),
                    ttl_ms,
                    left_ms: Some(ttl_ms),
                    problem: String::new(),
                }))
            }
            other => Err(unexpected(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_to_the_user_of_the_lease_and_to_root_that_acts_for_everybody() {
        let shown = |all, user| TokensOf { user: "alice".to_owned(), all }.shown(user, 5);
        assert_eq!([shown(false, Some("alice")), shown(false, Some("bob")), shown(false, None)], [Some(5), None, None]);
        assert_eq!([shown(true, Some("bob")), shown(true, None)], [Some(5); 2]);
    }

    #[test]
    fn work_uses_the_leases_of_its_own_user_alone() {
        let lease = |name: &str, user: Option<&str>| LeaseStatus {
            name: name.to_owned(),
            holder: "n1".parse().unwrap(),
            user: user.map(str::to_owned),
            token: 1,
            ttl_ms: 1000,
            left_ms: None,
            problem: None,
        };
        let leases = [lease("build", Some("alice")), lease("scratch", Some("bob")), lease("scheduler/default", None)];
        assert_eq!(check_own(&leases, "build", "alice"), Ok(()));
        let refused = Refusal::LeaseNotYours { name: "scratch".to_owned(), owner: "bob".to_owned() };
        assert_eq!(check_own(&leases, "scratch", "alice"), Err(refused.clone()));
        assert_eq!(check_own(&leases, "scratch", "root"), Err(refused), "work that became root");
        // The quorum refuses an agent's lease to every user, and answers for one that does not exist.
        assert_eq!([check_own(&leases, "scheduler/default", "alice"), check_own(&leases, "none", "alice")], [Ok(()), Ok(())]);
    }
}
