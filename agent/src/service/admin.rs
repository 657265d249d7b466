//! `AdminService`.

use super::refusal::{status, unexpected};
use super::{Api, allocations::ANSWER};
use lattice_api::v1;
use lattice_api::v1::admin_service_server::AdminService;
use lattice_quorum::wire::{Answer, QuorumStatus, Request as Ask};
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl AdminService for Api {
    async fn quorum_status(&self, request: Request<v1::QuorumStatusRequest>) -> Result<Response<v1::QuorumStatusResponse>, Status> {
        self.caller(&request).await?;
        match self.quorum.call(&Ask::Status, ANSWER).await.map_err(|e| status(&e))? {
            Answer::Status(now) => Ok(Response::new(to_proto(&now))),
            other => Err(unexpected(&other)),
        }
    }

    async fn verify_audit(&self, request: Request<v1::VerifyAuditRequest>) -> Result<Response<v1::VerifyAuditResponse>, Status> {
        self.caller(&request).await?;
        match self.quorum.call(&Ask::VerifyAudit, ANSWER).await.map_err(|e| status(&e))? {
            Answer::AuditVerified { records, head } => Ok(Response::new(v1::VerifyAuditResponse { records, head })),
            other => Err(unexpected(&other)),
        }
    }
}

fn to_proto(now: &QuorumStatus) -> v1::QuorumStatusResponse {
    use v1::quorum_status_response::{Count, Member};
    v1::QuorumStatusResponse {
        cluster: now.cluster.clone(),
        answered_by: now.member.0,
        leader: now.leader.map(|l| l.0),
        term: now.term,
        revision: now.revision.0,
        generation: now.generation.0,
        members: now
            .members
            .iter()
            .map(|m| Member {
                id: m.id.0,
                service: m.service.clone(),
                raft: m.raft.clone(),
                standing: m.standing.clone(),
                matched: m.matched,
            })
            .collect(),
        audit_records: now.audit_records,
        nodes: now.nodes.iter().map(|(s, count)| Count { state: s.to_string(), count: *count }).collect(),
        allocations: now.allocations.iter().map(|(s, count)| Count { state: s.to_string(), count: *count }).collect(),
    }
}
