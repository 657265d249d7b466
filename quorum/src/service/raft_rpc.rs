//! Raft's messages, from members alone.

use crate::identity::{Caller, Role};
use crate::member::Core;
use crate::pack::{pack, unpack};
use crate::wire::HeartbeatSummary;
use lattice_api::v1::Packed;
use lattice_api::v1::raft_server::Raft;
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
        let answer = self.core.raft.install_snapshot(unpack(request.get_ref())?).await;
        Ok(Response::new(pack(&answer)?))
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
