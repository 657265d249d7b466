//! `SessionService`: interactive sessions, which the quorum stores.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::privacy::Viewer;
use super::refusal::{status, unexpected};
use lattice_api::v1;
use lattice_api::v1::session_service_server::SessionService;
use lattice_ledger::Action;
use lattice_membership::cluster::Cluster;
use lattice_model::{AllocationId, InteractiveSession};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use tonic::{Request, Response, Status};
use uuid::Uuid;

/// How many digits of an id a key must have.
const KEY_DIGITS_MIN: usize = 4;

#[tonic::async_trait]
impl SessionService for Api {
    async fn create(&self, request: Request<v1::CreateSessionRequest>) -> Result<Response<v1::InteractiveSession>, Status> {
        let caller = self.caller(&request).await?;
        let by = self.user(&request).await?;
        let v1::CreateSessionRequest { id, allocation } = request.into_inner();
        let id: Uuid = id.parse().map_err(|_| Status::invalid_argument(format!("{id:?} is not the id of a session (a UUID)")))?;
        let allocation: AllocationId =
            allocation.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))?;
        // Checked here first, because the quorum's refusal would name the owner.
        if caller.private {
            let found = self.allocation_of_id(allocation).await?;
            self.check(&caller, &found).await?;
        }
        self.done(&Ask::from(Action::CreateSession { id, allocation, by })).await?;
        let gone = || Status::failed_precondition(format!("session {} has ended already", id.simple()));
        let session = self.sessions().await?.into_iter().find(|s| s.id == id).ok_or_else(gone)?;
        Ok(Response::new(to_proto(&session)))
    }

    async fn list(&self, request: Request<v1::ListSessionsRequest>) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let all = request.get_ref().all_users;
        let viewer = self.viewer_if(&self.caller(&request).await?, all).await;
        let user = self.user(&request).await?;
        let sessions = self.sessions().await?;
        let cluster = self.cluster.borrow().clone();
        let shown = sessions.iter().filter(|s| s.uid == user.uid || (all && sees(&viewer, s, &cluster))).map(to_proto).collect();
        Ok(Response::new(v1::ListSessionsResponse { sessions: shown }))
    }

    async fn delete(&self, request: Request<v1::DeleteSessionRequest>) -> Result<Response<v1::InteractiveSession>, Status> {
        let by = self.user(&request).await?;
        let caller = self.caller(&request).await?;
        let mut sessions = self.sessions().await?;
        let viewer = self.viewer_if(&caller, sessions.iter().any(|session| session.uid != by.uid)).await;
        let cluster = self.cluster.borrow().clone();
        sessions.retain(|s| sees(&viewer, s, &cluster));
        let key = request.into_inner().key;
        let numbered = self.numbered(&caller, &key).await?;
        let session = match numbered.and_then(|id| sessions.iter().position(|session| session.allocation == id)) {
            Some(at) => sessions.swap_remove(at),
            None => named(sessions, &key)?,
        };
        // The quorum does not know whether the caller is work, and would count its user's roles.
        if (session.uid, &session.user) != (by.uid, &by.name) {
            let of = self.allocation_of_id(session.allocation).await?;
            self.check(&caller, &of).await?;
        }
        self.done(&Ask::from(Action::DeleteSession { id: session.id, allocation: session.allocation, by })).await?;
        Ok(Response::new(to_proto(&session)))
    }
}

impl Api {
    async fn sessions(&self) -> Result<Vec<InteractiveSession>, Status> {
        match self.quorum.call(&Ask::ListSessions, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Sessions(sessions) => Ok(sessions),
            other => Err(unexpected(&other)),
        }
    }
}

/// Whether the viewer sees a session. Its tenant is that of its allocation, which lives as long as the
/// session; if this agent does not know the allocation, the session counts as one of no tenant.
fn sees(viewer: &Viewer, session: &InteractiveSession, cluster: &Cluster) -> bool {
    let tenant = cluster.allocations.get(&session.allocation).map_or("", |allocation| allocation.spec.tenant.as_str());
    viewer.sees(session.uid, tenant)
}

/// The session with this id, or of the allocation with this id.
fn named(sessions: Vec<InteractiveSession>, key: &str) -> Result<InteractiveSession, Status> {
    if key.len() < KEY_DIGITS_MIN {
        return Err(Status::invalid_argument(format!("{key:?} is too short for an id: give at least {KEY_DIGITS_MIN} digits")));
    }
    let begins = |id: String| id.starts_with(key);
    let fits = |s: &InteractiveSession| begins(s.id.to_string()) || begins(s.id.simple().to_string()) || begins(s.allocation.to_string());
    let mut found = sessions.into_iter().filter(fits);
    match (found.next(), found.next()) {
        (Some(session), None) => Ok(session),
        (Some(_), Some(_)) => Err(Status::invalid_argument(format!("{key} could be more than one session: give more digits"))),
        (None, _) => Err(Status::not_found(format!(
            "there is no session {key}\nhint: `lattice session list` shows yours; an allocation without a session is ended by `lattice cancel`"
        ))),
    }
}

fn to_proto(session: &InteractiveSession) -> v1::InteractiveSession {
    v1::InteractiveSession {
        id: session.id.to_string(),
        allocation: session.allocation.to_string(),
        user: session.user.clone(),
        node: session.node.to_string(),
        since_ms: session.since.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::caller::Caller;
    use super::*;
    use lattice_agent_common::config::work::WorkMay;
    use lattice_model::access::Roles;
    use lattice_model::{Principal, Timestamp, test_builders};
    use std::collections::BTreeSet;

    #[test]
    fn a_session_is_shown_by_the_tenant_of_its_allocation_and_else_to_its_user_alone() {
        let id = AllocationId(Uuid::from_u128(1));
        let mut allocation = test_builders::allocation(id);
        test_builders::spec_of(&mut allocation).tenant = "physics".into();
        let known = Cluster { allocations: [(id, allocation)].into_iter().collect(), ..Cluster::default() };
        let session = InteractiveSession {
            id: Uuid::nil(),
            allocation: id,
            user: "u8".into(),
            uid: 8,
            node: "n1".parse().unwrap(),
            since: Timestamp(0),
        };
        let viewer = |uid, tenant: &str| {
            let principal = Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![] };
            let method = "SessionService/List".to_owned();
            let caller = Caller { principal, within: None, network: None, work_may: WorkMay::AsOwner, private: true, method };
            Viewer::of(&caller, Roles { admin_of: BTreeSet::from([tenant.to_owned()]), ..Roles::default() })
        };
        assert!(sees(&viewer(7, "physics"), &session, &known) && sees(&viewer(8, "chemistry"), &session, &known));
        assert!(!sees(&viewer(7, "chemistry"), &session, &known));
        assert!(!sees(&viewer(7, "physics"), &session, &Cluster::default()) && sees(&viewer(8, "physics"), &session, &Cluster::default()));
    }

    #[test]
    fn a_session_is_named_by_either_id_where_that_is_unique() {
        let session = |id: u128, of: u128| InteractiveSession {
            id: Uuid::from_u128(id << 96),
            allocation: AllocationId(Uuid::from_u128(of << 96)),
            user: "u".into(),
            uid: 1,
            node: "n1".parse().unwrap(),
            since: Timestamp(0),
        };
        let all = || vec![session(0x1111_0000, 0xaaaa_0000), session(0x1111_2222, 0xbbbb_0000)];
        assert_eq!(named(all(), "11112222").unwrap().id, all()[1].id);
        assert_eq!(named(all(), "aaaa").unwrap().id, all()[0].id);
        let code = |key| named(all(), key).unwrap_err().code();
        assert_eq!(
            [code("1111"), code("cccc"), code("")],
            [tonic::Code::InvalidArgument, tonic::Code::NotFound, tonic::Code::InvalidArgument]
        );
    }
}
