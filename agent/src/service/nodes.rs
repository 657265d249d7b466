//! `NodeService`.

use super::Api;
use super::refusal::unexpected;
use crate::disk;
use crate::mesh::frame::REFUSED;
use crate::session::SessionState;
use lattice_api::v1;
use lattice_api::v1::node_service_server::NodeService;
use lattice_gossip::Liveness;
use lattice_model::{AllocationId, AllocationState, HoldKind, Node, NodeId, SharePhase};
use lattice_node::Phase;
use lattice_quorum::wire::{Answer, Request as Ask};
use lattice_runtime::cgroup::limits::IndexSet;
use lattice_scheduler::Holdings;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl NodeService for Api {
    async fn list(&self, request: Request<v1::ListNodesRequest>) -> Result<Response<v1::ListNodesResponse>, Status> {
        self.caller(&request).await?;
        let (nodes, age_ms) = match self.ask(Ask::ListNodes, request.get_ref().stale).await? {
            (Answer::Nodes(nodes), age_ms) => (nodes, age_ms),
            (other, _) => return Err(unexpected(&other)),
        };
        Ok(Response::new(v1::ListNodesResponse { nodes: self.shown(&nodes), age_ms }))
    }

    async fn local_status(&self, request: Request<v1::LocalStatusRequest>) -> Result<Response<v1::LocalStatusResponse>, Status> {
        self.caller(&request).await?;
        let view = self.context.view.borrow().clone();
        let (quorum_connected, quorum_detail) = match &*self.session.borrow() {
            SessionState::Connected { member } => (true, format!("session with {member}")),
            SessionState::Lost { since, why } => (
                false,
                format!(
                    "no session for {} s ({why}). What runs here goes on. Unknown until it is back: new work for this node, \
                     cancellations, and whether other nodes' parts still run",
                    since.elapsed().as_secs()
                ),
            ),
        };
        let allocations = view
            .locals
            .iter()
            .map(|local| {
                let detail = self.context.workers.get(local.share.allocation).map(|w| w.detail.borrow().clone()).unwrap_or_default();
                v1::LocalAllocation {
                    id: local.share.allocation.to_string(),
                    epoch: local.share.epoch.0,
                    phase: phase(local.phase).to_owned(),
                    owner: local.share.owner.name.clone(),
                    name: local.share.spec.name.clone(),
                    shim_pid: detail.shim_pid.unwrap_or(0),
                    detail: detail.text,
                    cpus: local.assignment.as_ref().map(|a| IndexSet(a.cpus.clone()).to_string()).unwrap_or_default(),
                    gpus: local.assignment.as_ref().map(|a| a.gpus.iter().cloned().collect()).unwrap_or_default(),
                }
            })
            .collect();
        Ok(Response::new(v1::LocalStatusResponse {
            node: self.context.me.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at_ms: self.started_at.0,
            incarnation: view.incarnation,
            quorum_connected,
            quorum_detail,
            desired_revision: view.revision.0,
            reports_pending: view.reports_pending as u64,
            allocations,
            degraded: self.degraded(),
            refused: self.refused(),
            topology: serde_json::to_string(&*self.context.topology).map_err(|e| Status::internal(e.to_string()))?,
        }))
    }

    async fn gossip_members(&self, request: Request<v1::GossipMembersRequest>) -> Result<Response<v1::GossipMembersResponse>, Status> {
        self.caller(&request).await?;
        let members = self.membership.members();
        let to_proto = |m: &lattice_gossip::Member| v1::GossipMember {
            node: m.node.to_string(),
            address: m.addr.to_string(),
            incarnation: m.incarnation,
            liveness: liveness(m.liveness).to_owned(),
            state: m.fact.as_ref().map_or(String::new(), |f| f.state.to_string()),
        };
        Ok(Response::new(v1::GossipMembersResponse { members: members.iter().map(to_proto).collect() }))
    }

    async fn set_hold(&self, request: Request<v1::SetHoldRequest>) -> Result<Response<v1::HoldResponse>, Status> {
        let operator = self.operator(&request).await?;
        let v1::SetHoldRequest { node, kind, reason } = request.into_inner();
        self.done(&Ask::SetHold { node: node_id(&node)?, kind: hold_kind(&kind)?, by: operator.name, reason }).await?;
        Ok(Response::new(v1::HoldResponse {}))
    }

    async fn lift_hold(&self, request: Request<v1::LiftHoldRequest>) -> Result<Response<v1::HoldResponse>, Status> {
        let operator = self.operator(&request).await?;
        let v1::LiftHoldRequest { node, kind } = request.into_inner();
        self.done(&Ask::LiftHold { node: node_id(&node)?, kind: hold_kind(&kind)?, by: operator.name }).await?;
        Ok(Response::new(v1::HoldResponse {}))
    }
}

pub(super) fn node_id(text: &str) -> Result<NodeId, Status> {
    text.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))
}

fn hold_kind(text: &str) -> Result<HoldKind, Status> {
    HoldKind::from_name(text).ok_or_else(|| Status::invalid_argument(format!("{text:?} is no hold: cordon and quarantine are")))
}

impl Api {
    /// Nodes with what this agent's own view has of the allocations on them, and what its gossip says.
    pub(super) fn shown(&self, nodes: &[Node]) -> Vec<v1::Node> {
        let members = self.membership.members();
        let gossip: BTreeMap<&NodeId, &str> = members.iter().map(|m| (&m.node, liveness(m.liveness))).collect();
        let cluster = self.cluster.borrow().clone();
        let mut on: BTreeMap<&NodeId, Vec<AllocationId>> = BTreeMap::new();
        for allocation in cluster.allocations.values().filter(|a| a.state != AllocationState::Pending) {
            for share in allocation.shares.iter().filter(|s| s.phase != SharePhase::Released) {
                on.entry(&share.node).or_default().push(allocation.id);
            }
        }
        let held = Holdings::of(nodes.iter(), cluster.allocations.values());
        let shown = nodes.iter().map(|n| {
            let gossip = gossip.get(&n.id).copied().unwrap_or("unknown");
            lattice_api::node::to_proto(n, on.remove(&n.id).unwrap_or_default(), &held.committed(&n.id), gossip)
        });
        shown.collect()
    }

    /// What this node cannot do, and what is amiss now.
    fn degraded(&self) -> Vec<String> {
        let certificate = self.credentials.trouble().map(|why| format!("certificate: {why}"));
        let disk = disk::shortage(&self.context.state_dir);
        let now = self.context.spools.trouble().into_iter().chain(disk).chain(certificate).chain(self.context.troubles.lines());
        self.degraded.iter().cloned().chain(now).collect()
    }

    /// What came over the network and was not taken, where there was any.
    fn refused(&self) -> Vec<v1::Refused> {
        let gossip = self.membership.refused();
        let counts = [
            ("gossip datagrams", gossip.total() - gossip.unknown_key),
            ("gossip datagrams under keys that this node does not have", gossip.unknown_key),
            ("mesh frames of another version", REFUSED.version.load(Ordering::Relaxed)),
            ("mesh frames too large", REFUSED.too_large.load(Ordering::Relaxed)),
            ("mesh frames that are no message", REFUSED.malformed.load(Ordering::Relaxed)),
        ];
        let some = counts.into_iter().filter(|(_, count)| *count > 0).map(|(what, count)| (what.to_owned(), count));
        some.chain(self.credentials.refused().told()).map(|(what, count)| v1::Refused { what, count }).collect()
    }
}

fn liveness(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::Alive => "alive",
        Liveness::Suspect => "suspect",
        Liveness::Down => "down",
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Preparing => "Preparing",
        Phase::Prepared => "Prepared",
        Phase::Running => "Running",
        Phase::Stopping => "Stopping",
        Phase::Undoing => "Undoing",
    }
}
