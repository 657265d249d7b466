//! Raft's messages, from members alone.

use crate::chain;
use crate::identity::{Caller, Role};
use crate::member::Core;
use crate::pack::{pack, unpack, with_causes};
use crate::raft::TypeConfig;
use crate::wire::{AuditPageRequest, HeartbeatSummary};
use lattice_api::v1::Packed;
use lattice_api::v1::raft_server::Raft;
use openraft::raft::InstallSnapshotRequest;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Request, Response, Status};

pub(super) struct RaftService {
    pub(super) core: Arc<Core>,
}

fn members_only(request: &Request<Packed>) -> Result<(), Status> {
    let caller = Caller::of(request)?;
    if caller.role == Role::Quorum {
        return Ok(());
    }
    Err(Status::permission_denied(format!("this needs the certificate role quorum; {} has {}", caller.name, caller.role)))
}

#[tonic::async_trait]
impl Raft for RaftService {
    async fn append(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        members_only(&request)?;
        let answer = self.core.raft.append_entries(unpack(request.get_ref())?).await;
        Ok(Response::new(pack(&answer)?))
    }

    async fn vote(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        members_only(&request)?;
        let answer = self.core.raft.vote(unpack(request.get_ref())?).await;
        Ok(Response::new(pack(&answer)?))
    }

    async fn install_snapshot(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        members_only(&request)?;
        let part: InstallSnapshotRequest<TypeConfig> = unpack(request.get_ref())?;
        if !self.core.chain.is_ready_for(&part.meta.snapshot_id, part.vote.leader_id.node_id) {
            return Err(Status::unavailable("the audit records that the snapshot relies on are fetched first"));
        }
        let answer = self.core.raft.install_snapshot(part).await;
        Ok(Response::new(pack(&answer)?))
    }

    async fn audit(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        members_only(&request)?;
        let AuditPageRequest { after } = unpack(request.get_ref())?;
        let agreed = Arc::clone(&self.core.agreed);
        let page = tokio::task::spawn_blocking(move || chain::page(&agreed, after)).await;
        let page = page.map_err(|e| Status::internal(e.to_string()))?.map_err(|e| Status::data_loss(with_causes(&e)))?;
        Ok(Response::new(pack(&page)?))
    }

    async fn heartbeats(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        members_only(&request)?;
        if !self.core.leads() {
            return Err(Status::failed_precondition("this member does not lead"));
        }
        let summary: HeartbeatSummary = unpack(request.get_ref())?;
        let now = Instant::now();
        for (node, incarnation, ago_ms) in summary.heard {
            let at = now.checked_sub(Duration::from_millis(ago_ms)).unwrap_or(now);
            self.core.hearts.heard(node, incarnation, at);
        }
        Ok(Response::new(Packed::default()))
    }
}
