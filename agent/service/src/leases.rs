//! `LeaseService`: leases for programs outside Lattice. The holder is this agent's node together
//! with the requesting user.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::caller::is_operator;
use super::refusal::{status, unexpected};
use lattice_api::v1;
use lattice_api::v1::lease_service_server::LeaseService;
use lattice_ledger::Action;
use lattice_model::Principal;
use lattice_quorum_client::wire::{Answer, Request as Ask};
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
        let v1::RenewLeaseRequest { name, token } = request.into_inner();
        let shown = user.name.clone();
        let ask = Ask::RenewLease { name: name.clone(), token, holder: self.context.setup.me.clone(), user: Some(user) };
        self.held(&ask, name, shown).await
    }

    async fn release(&self, request: Request<v1::ReleaseLeaseRequest>) -> Result<Response<v1::ReleaseLeaseResponse>, Status> {
        let user = self.user(&request).await?;
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
        let viewer = self.user(&request).await?;
        let leases = match self.quorum.call(&Ask::ListLeases, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Leases(leases) => leases,
            other => return Err(unexpected(&other)),
        };
        let leases = leases.into_iter().map(|l| v1::Lease {
            name: l.name,
            holder: l.holder.to_string(),
            token: visible_token(&viewer, l.user.as_deref(), l.token),
            user: l.user.unwrap_or_default(),
            ttl_ms: l.ttl_ms,
            left_ms: l.left_ms,
            problem: l.problem.unwrap_or_default(),
        });
        Ok(Response::new(v1::ListLeasesResponse { leases: leases.collect() }))
    }
}

/// The token of a lease if `viewer` may see it: only the holding user and operators may, because
/// the token gives access to what the lease protects.
pub(super) fn visible_token(viewer: &Principal, user: Option<&str>, token: u64) -> Option<u64> {
    (is_operator(viewer) || user == Some(viewer.name.as_str())).then_some(token)
}

impl Api {
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
