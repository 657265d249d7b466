//! `NodeService`.

use super::Api;
use super::admissions;
use super::api::Streamed;
use super::arguments::node_id;
use super::gossiping::liveness;
use super::groups::work_name;
use super::privacy::Viewer;
use super::refusal::{status, unexpected};
use lattice_agent_common::config::conformance::OWN;
use lattice_agent_common::session_state::{self, SessionState};
use lattice_api::v1;
use lattice_api::v1::node_service_server::NodeService;
use lattice_ledger::Action;
use lattice_machine::conformance::{Found, over_mesh};
use lattice_machine::disk;
use lattice_mesh::frame::REFUSED;
use lattice_meshd::status_texts;
use lattice_model::conformance::fingerprint;
use lattice_model::{
    Allocation, AllocationId, AllocationState, Epoch, HoldKind, Node, NodeId, PreemptCause, SharePhase, Timestamp, When, millis,
};
use lattice_node::Phase;
use lattice_node::health::{Check, Finding};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, Refusal, Request as Ask};
use lattice_runtime::cgroup::limits::IndexSet;
use lattice_scheduler::Holdings;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use tonic::{Code, Request, Response, Status};

#[tonic::async_trait]
impl NodeService for Api {
    async fn list(&self, request: Request<v1::ListNodesRequest>) -> Result<Response<v1::ListNodesResponse>, Status> {
        self.caller(&request).await?;
        let v1::ListNodesRequest { stale, or_gossip } = request.into_inner();
        let (nodes, age_ms) = match self.ask(Ask::ListNodes, stale).await {
            Ok((Answer::Nodes(nodes), age_ms)) => (nodes, age_ms),
            Ok((other, _)) => return Err(unexpected(&other)),
            Err(error) if or_gossip && error.code() == Code::Unavailable => {
                let quorum_error = error.message().to_owned();
                return Ok(Response::new(v1::ListNodesResponse { nodes: self.gossiped_nodes(), age_ms: None, quorum_error }));
            }
            Err(refused) => return Err(refused),
        };
        Ok(Response::new(v1::ListNodesResponse { nodes: self.shown(&nodes, &nodes), age_ms, quorum_error: String::new() }))
    }

    async fn local_status(&self, request: Request<v1::LocalStatusRequest>) -> Result<Response<v1::LocalStatusResponse>, Status> {
        let caller = self.caller(&request).await?;
        let view = self.context.work.view.borrow().clone();
        let has_others = view.locals.iter().any(|local| local.share.owner.uid != caller.principal.uid);
        let viewer = self.viewer_if(&caller, has_others).await;
        let (quorum_connected, quorum_detail) = match &*self.session.borrow() {
            SessionState::Connected { member, relay_node } => {
                let carried = self.context.carried.names();
                let carries = if carried.is_empty() { String::new() } else { format!("; carries the sessions of {}", carried.join(", ")) };
                (true, session_state::describe(member, relay_node.as_ref()) + &carries)
            }
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
                let detail =
                    self.context.work.allocations.get(local.share.allocation).map(|w| w.detail.borrow().clone()).unwrap_or_default();
                let full = v1::LocalAllocation {
                    id: local.share.allocation.to_string(),
                    epoch: local.share.epoch.0,
                    phase: phase(local.phase).to_owned(),
                    owner: local.share.owner.name.clone(),
                    name: work_name(&local.share.spec.name, local.share.lane, local.share.replica),
                    shim_pid: detail.shim_pid.unwrap_or(0),
                    detail: detail.status_text(),
                    cpus: local.assignment.as_ref().map(|a| IndexSet(a.cpus.clone()).to_string()).unwrap_or_default(),
                    gpus: local.assignment.as_ref().map(|a| a.gpus.iter().cloned().collect()).unwrap_or_default(),
                };
                viewer.local(&local.share.owner, &local.share.spec.tenant, full)
            })
            .collect();
        Ok(Response::new(v1::LocalStatusResponse {
            node: self.context.setup.me.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at_ms: self.started_at.0,
            incarnation: view.incarnation,
            quorum_connected,
            quorum_detail,
            desired_revision: view.revision.0,
            reports_pending: view.reports_pending as u64,
            allocations,
            degraded: self.degraded(),
            gpus: self.context.machine.gpus.borrow().shown(),
            gpu_policy: self.context.machine.gpus.borrow().policy.clone(),
            checks: self.context.machine.checks.now().checks().map(|(name, check)| checked(name, check)).collect(),
            conformance: Some(conforms(&self.context.setup.me, &self.context.machine.conformance.now())),
            refused: self.refused(),
            topology: serde_json::to_string(&*self.context.machine.topology()).map_err(|e| Status::internal(e.to_string()))?,
        }))
    }

    async fn fact(&self, request: Request<v1::NodeFactRequest>) -> Result<Response<v1::NodeFactResponse>, Status> {
        self.caller(&request).await?;
        let node = node_id(&request.into_inner().node)?;
        Ok(Response::new(self.fact_of(&node).await))
    }

    async fn gossip_members(&self, request: Request<v1::GossipMembersRequest>) -> Result<Response<v1::GossipMembersResponse>, Status> {
        self.caller(&request).await?;
        Ok(Response::new(self.gossip_view()))
    }

    type WatchGossipStream = Streamed<v1::GossipChange>;

    async fn watch_gossip(&self, request: Request<v1::WatchGossipRequest>) -> Result<Response<Self::WatchGossipStream>, Status> {
        let caller = self.caller(&request).await?;
        self.gossip_changes(caller.principal.uid).map(Response::new)
    }

    async fn set_hold(&self, request: Request<v1::SetHoldRequest>) -> Result<Response<v1::HoldResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::SetHoldRequest { node, kind, reason, until, deadline, urgent_id } = request.into_inner();
        let (node, kind, until, deadline) = (node_id(&node)?, hold_kind(&kind)?, when(until)?, when(deadline)?);
        if !urgent_id.is_empty() {
            let seed = urgent_id.parse().map_err(|e| Status::invalid_argument(format!("urgent_id: {e}")))?;
            if kind != HoldKind::Drain || until.is_some() {
                return Err(Status::invalid_argument("urgent_id: only a drain has one"));
            }
            self.done(&operator.asks(Action::DrainUrgently { node, by, reason, deadline, seed })).await?;
            return Ok(Response::new(v1::HoldResponse::default()));
        }
        self.done(&operator.asks(Action::SetHold { node, kind, by, reason, until, deadline })).await?;
        Ok(Response::new(v1::HoldResponse::default()))
    }

    async fn lift_hold(&self, request: Request<v1::LiftHoldRequest>) -> Result<Response<v1::HoldResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::LiftHoldRequest { node, kind } = request.into_inner();
        let (node, kind) = (node_id(&node)?, hold_kind(&kind)?);
        let preempting = if kind == HoldKind::Drain { self.asked_by_drain(&node) } else { Vec::new() };
        self.done(&operator.asks(Action::LiftHold { node, kind, by, until: None })).await?;
        Ok(Response::new(v1::HoldResponse { preempting }))
    }

    async fn boot(&self, request: Request<v1::BootNodeRequest>) -> Result<Response<v1::HoldResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::BootNodeRequest { node, reason } = request.into_inner();
        let ask = operator.asks(Action::BootNode { node: node_id(&node)?, by, reason });
        self.done(&ask).await?;
        Ok(Response::new(v1::HoldResponse::default()))
    }

    async fn confirm_dead(&self, request: Request<v1::ConfirmDeadRequest>) -> Result<Response<v1::ConfirmDeadResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::ConfirmDeadRequest { node, reason } = request.into_inner();
        self.done(&operator.asks(Action::ConfirmDead { node: node_id(&node)?, by, reason })).await?;
        Ok(Response::new(v1::ConfirmDeadResponse {}))
    }

    async fn fingerprint(&self, request: Request<v1::FingerprintRequest>) -> Result<Response<v1::LocalConformance>, Status> {
        let asked = &request.get_ref().node;
        let node = if asked.is_empty() { self.context.setup.me.clone() } else { node_id(asked)? };
        if node == self.context.setup.me {
            self.operator_here(&request).await?;
            return Ok(Response::new(conforms(&node, &*self.context.machine.conformance.look_again().await)));
        }
        self.operator(&request).await?;
        let found = over_mesh::ask(&self.context.work.mesh, &self.context.work.directory, &node).await;
        let found = found.map_err(|why| Status::unavailable(format!("no fingerprint could be taken: {why}")))?;
        Ok(Response::new(conforms(&node, &found)))
    }

    async fn accept_drift(&self, request: Request<v1::AcceptDriftRequest>) -> Result<Response<v1::AcceptDriftResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::AcceptDriftRequest { node, reason } = request.into_inner();
        let ask = operator.asks(Action::AcceptDrift { node: node_id(&node)?, by, reason });
        self.done(&ask).await?;
        Ok(Response::new(v1::AcceptDriftResponse {}))
    }

    async fn wipe(&self, request: Request<v1::WipeRequest>) -> Result<Response<v1::WipeResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::WipeRequest { node, reason, force } = request.into_inner();
        let ask = operator.asks(Action::Wipe { node: node_id(&node)?, by, reason, force });
        self.done(&ask).await?;
        Ok(Response::new(v1::WipeResponse {}))
    }

    async fn admit(&self, request: Request<v1::AdmitNodeRequest>) -> Result<Response<v1::AdmitNodeResponse>, Status> {
        admissions::admit(self, request).await.map(Response::new)
    }

    async fn withdraw_admission(
        &self,
        request: Request<v1::WithdrawAdmissionRequest>,
    ) -> Result<Response<v1::WithdrawAdmissionResponse>, Status> {
        admissions::withdraw(self, request).await.map(Response::new)
    }

    async fn remove(&self, request: Request<v1::RemoveNodeRequest>) -> Result<Response<v1::RemoveNodeResponse>, Status> {
        admissions::remove(self, request).await.map(Response::new)
    }

    async fn list_admissions(&self, request: Request<v1::ListAdmissionsRequest>) -> Result<Response<v1::ListAdmissionsResponse>, Status> {
        admissions::list(self, request).await.map(Response::new)
    }

    async fn waits(&self, request: Request<v1::NodeWaitsRequest>) -> Result<Response<v1::NodeWaitsResponse>, Status> {
        let viewer = self.viewer(&self.caller(&request).await?).await;
        let id = node_id(&request.into_inner().node)?;
        let all = match self.ask(Ask::ListNodes, false).await? {
            (Answer::Nodes(nodes), _) => nodes,
            (other, _) => return Err(unexpected(&other)),
        };
        let Some(node) = all.iter().find(|node| node.id == id) else {
            return Err(status(&CallError::Refused(Refusal::NoSuchNode { node: id })));
        };
        let cluster = self.cluster.borrow().clone();
        let live = cluster.allocations.values().filter(|a| matches!(a.state, AllocationState::Staging | AllocationState::Running));
        // This agent's view may be older than the quorum's answer.
        let left = |a: &Allocation| node.leaving.iter().any(|l| (l.allocation, l.epoch) == (a.id, a.epoch));
        let live: Vec<&Allocation> = live.filter(|a| !left(a) && a.shares.rank_of(&id).is_some()).collect();
        let shares = live.len() + node.leaving.len();
        let mut waits: Vec<v1::NodeWait> =
            live.into_iter().take(WAITS_MAX).map(|a| viewer.wait(&a.owner, &a.spec.tenant, wait_for(a))).collect();
        let leaving: Vec<_> = node.leaving.iter().take(WAITS_MAX - waits.len()).map(|l| (l.allocation, l.epoch)).collect();
        let texts = self.status_texts(node, &leaving.iter().map(|(id, _)| *id).collect::<Vec<_>>()).await;
        for ((allocation, epoch), text) in leaving.into_iter().zip(texts) {
            waits.push(self.wait_for_release(allocation, epoch, text, &viewer).await?);
        }
        let more = (shares - waits.len()) as u64;
        let node = self.shown(std::slice::from_ref(node), &all).pop();
        Ok(Response::new(v1::NodeWaitsResponse { node, waits, more }))
    }
}

/// How many shares of one node an answer lists.
const WAITS_MAX: usize = status_texts::ALLOCATIONS_MAX;

/// A share whose work has not ended.
fn wait_for(allocation: &Allocation) -> v1::NodeWait {
    let walltime_ms = allocation.spec.walltime.map(millis);
    v1::NodeWait {
        allocation: allocation.id.to_string(),
        owner: allocation.owner.name.clone(),
        name: work_name(&allocation.spec.name, allocation.lane, allocation.replica.as_deref().copied()),
        since_ms: allocation.started_at.or(allocation.claimed_at).map_or(0, |at| at.0),
        ends_ms: allocation.started_at.zip(walltime_ms).map_or(0, |(at, ms)| at.0.saturating_add(ms)),
        ended: false,
        detail: allocation.preemption.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

fn when(time: Option<v1::HoldTime>) -> Result<Option<When>, Status> {
    let Some(time) = time else { return Ok(None) };
    match time.time {
        Some(v1::hold_time::Time::AtMs(ms)) => Ok(Some(When::At(Timestamp(ms)))),
        Some(v1::hold_time::Time::AfterMs(ms)) => Ok(Some(When::AfterMs(ms))),
        None => Err(Status::invalid_argument("a time without a value: give at_ms or after_ms")),
    }
}

fn hold_kind(text: &str) -> Result<HoldKind, Status> {
    let kinds = || HoldKind::ALL.map(|kind| kind.to_string()).join(", ");
    HoldKind::from_name(text).ok_or_else(|| Status::invalid_argument(format!("there is no hold {text:?}; the holds are {}", kinds())))
}

impl Api {
    /// Allocations on the node that an urgent drain asked to save themselves and give their nodes
    /// back.
    fn asked_by_drain(&self, node: &NodeId) -> Vec<String> {
        let asked = |a: &&Allocation| a.preemption.as_ref().is_some_and(|order| order.stands() && order.cause == PreemptCause::Drain);
        let cluster = self.cluster.borrow();
        let there = cluster.allocations.values().filter(asked).filter(|a| a.shares.rank_of(node).is_some());
        there.map(|a| a.id.to_string()).collect()
    }

    /// A share whose work has ended. Details that the quorum has forgotten are left out.
    async fn wait_for_release(&self, id: AllocationId, epoch: Epoch, detail: String, viewer: &Viewer) -> Result<v1::NodeWait, Status> {
        let mut wait = v1::NodeWait { allocation: id.to_string(), ended: true, detail, ..Default::default() };
        match self.quorum.find_allocation(id.to_string()).await {
            Ok(known) => {
                wait.owner = known.owner.name.clone();
                wait.name = work_name(&known.spec.name, known.lane, known.replica.as_deref().copied());
                // If it was requeued, the end of its earlier claim is not stored.
                wait.since_ms = known.ended_at.filter(|_| known.epoch == epoch).map_or(0, |at| at.0);
                wait = viewer.wait(&known.owner, &known.spec.tenant, wait);
            }
            // Whose it was is not known, and its text may name the owner's files.
            Err(CallError::Refused(Refusal::NoSuchAllocation { .. })) if !viewer.sees_all() => wait.detail.clear(),
            Err(CallError::Refused(Refusal::NoSuchAllocation { .. })) => {}
            Err(error) => return Err(status(&error)),
        }
        Ok(wait)
    }

    /// The status texts of these allocations from the node's own agent; empty if it cannot be
    /// reached.
    pub(super) async fn status_texts(&self, node: &Node, ids: &[AllocationId]) -> Vec<String> {
        if ids.is_empty() || node.id == self.context.setup.me {
            return ids.iter().map(|id| status_texts::of(&self.context, *id)).collect();
        }
        let texts = status_texts::ask(&self.context, &node.id, &node.addresses.mesh, ids).await;
        texts.unwrap_or_else(|| vec![String::new(); ids.len()])
    }

    /// The nodes, each with the allocations that this agent knows on it, and its state in gossip.
    /// `all`: every node as far as it is known, for the sizes of groups with one fingerprint.
    pub(super) fn shown(&self, nodes: &[Node], all: &[Node]) -> Vec<v1::Node> {
        let members = self.membership.members();
        let gossip: BTreeMap<&NodeId, &str> = members.iter().map(|m| (&m.node, liveness(m.liveness))).collect();
        let cluster = self.cluster.borrow().clone();
        let mut on: BTreeMap<&NodeId, Vec<AllocationId>> = BTreeMap::new();
        for allocation in cluster.allocations.values().filter(|a| !a.state.is_without_nodes()) {
            for share in allocation.shares.iter().filter(|s| s.phase != SharePhase::Released) {
                on.entry(share.node).or_default().push(allocation.id);
            }
        }
        let held = Holdings::of(nodes.iter(), cluster.allocations.values());
        let mut groups: BTreeMap<&str, u32> = BTreeMap::new();
        for group in all.iter().filter_map(|n| n.conformance.as_ref()?.group()) {
            *groups.entry(group).or_default() += 1;
        }
        let group = |n: &Node| n.conformance.as_ref().and_then(|report| groups.get(report.group()?)).copied().unwrap_or(1);
        // An agent of role `node` does not know other nodes' allocations.
        let knows_all = self.context.work.directory.knows_all();
        let shown = nodes.iter().map(|n| {
            let gossip = gossip.get(&n.id).copied().unwrap_or("unknown");
            let shown = lattice_api::node::to_proto(n, on.remove(&n.id).unwrap_or_default(), &held.committed(&n.id), gossip, group(n));
            let committed = shown.committed.filter(|_| knows_all || n.id == self.context.setup.me);
            v1::Node { committed, ..shown }
        });
        shown.collect()
    }

    /// What this node cannot do, and its present problems.
    fn degraded(&self) -> Vec<String> {
        let certificate = self.credentials.problem().map(|why| format!("certificate: {why}"));
        let disk = disk::shortage(&self.context.setup.state_dir);
        let gossip = self.membership.contradiction(&self.context.setup.me).map(|text| format!("gossip: {text}"));
        let now = self.context.work.spools.problem().into_iter().chain(disk).chain(certificate).chain(gossip);
        let now = now.chain(self.context.work.problems.lines());
        self.degraded.iter().cloned().chain(now).collect()
    }

    /// What came over the network and was refused. Kinds without a refusal are left out.
    fn refused(&self) -> Vec<v1::Refused> {
        let gossip = self.membership.refused();
        let counts = [
            ("gossip datagrams", gossip.total() - gossip.unknown_key - gossip.life_ahead),
            ("gossip datagrams from a life of a node that is ahead of this machine's clock", gossip.life_ahead),
            ("gossip datagrams under keys that this node does not have", gossip.unknown_key),
            ("mesh frames of another version", REFUSED.version.load(Ordering::Relaxed)),
            ("mesh frames too large", REFUSED.too_large.load(Ordering::Relaxed)),
            ("mesh frames that are no message", REFUSED.malformed.load(Ordering::Relaxed)),
        ];
        let some = counts.into_iter().filter(|(_, count)| *count > 0).map(|(what, count)| (what.to_owned(), count));
        some.chain(self.credentials.refused().counts()).map(|(kind, count)| v1::Refused { kind, count }).collect()
    }
}

fn conforms(node: &NodeId, found: &Found) -> v1::LocalConformance {
    let components = found.components.clone().unwrap_or_default();
    let absent = if found.components.is_some() { OWN.iter().filter(|name| !components.contains_key(**name)).collect() } else { Vec::new() };
    v1::LocalConformance {
        fingerprint: found.components.as_ref().map(fingerprint).unwrap_or_default(),
        absent: absent.into_iter().map(|name| (*name).to_owned()).collect(),
        components: components.into_iter().collect(),
        at_ms: found.at.map_or(0, |at| at.0),
        error: found.error.clone().unwrap_or_default(),
        node: node.to_string(),
    }
}

fn checked(name: &str, check: &Check) -> v1::HealthCheck {
    let (finding, detail) = match &check.finding {
        Finding::Ok => ("ok", ""),
        Finding::Unsupported(why) => ("unsupported", why.as_str()),
        Finding::Warning(why) => ("warning", why.as_str()),
        Finding::Critical(why) => ("critical", why.as_str()),
        Finding::Drain(why) => ("drain", why.as_str()),
        Finding::Failure(why) => ("failure", why.as_str()),
    };
    v1::HealthCheck {
        name: name.to_owned(),
        finding: finding.to_owned(),
        detail: detail.to_owned(),
        blocks_new_work: check.critical.is_some(),
        since_ms: check.since.0,
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
