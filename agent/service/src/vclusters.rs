//! `VClusterService`: queues and their nodes.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::arguments::node_id;
use super::refusal::{status, unexpected};
use super::status_message::StatusMessages;
use lattice_api::v1;
use lattice_api::v1::v_cluster_service_server::VClusterService;
use lattice_ledger::{Action, VClusterChange, WeightsChange};
use lattice_model::vcluster::SchedulerError;
use lattice_model::{Allocation, DEFAULT_VCLUSTER, Factor, Profile, SchedulerKind, Weight, Weights};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use std::collections::{BTreeMap, BTreeSet};
use tonic::{Request, Response, Status};

/// The name of the profile that resets the weights.
const PROFILE_OF_SCHEDULER: &str = "default";
/// How many allocations the answer about a queue has.
const SHOWN_MAX: usize = 1000;

/// An interval for the quorum. What is too long for its type is too long for the quorum too.
fn interval_ms(given_ms: u64) -> u32 {
    u32::try_from(given_ms).unwrap_or(u32::MAX)
}

/// Weights for a response.
fn shown(weights: &Weights) -> Vec<v1::Weight> {
    let weight = |factor: &Factor| v1::Weight { factor: factor.name().to_owned(), weight: weights.get(*factor).value() };
    Factor::ALL.iter().map(weight).collect()
}

/// The change that a request asks for.
fn weights_change(profile: &str, weights: &[v1::Weight]) -> Result<WeightsChange, String> {
    let mut set = BTreeMap::new();
    match profile {
        "" | PROFILE_OF_SCHEDULER => {}
        name => {
            let profile = name.parse::<Profile>().map_err(|e| e.to_string())?.weights();
            set.extend(Factor::ALL.map(|factor| (factor, profile.get(factor))));
        }
    }
    let mut given = BTreeSet::new();
    for v1::Weight { factor: name, weight } in weights {
        let factor = Factor::ALL.into_iter().find(|factor| factor.name() == name).ok_or_else(|| format!("{name:?} is not a factor"))?;
        let weight = Weight::new(*weight).map_err(|e| format!("{name}: {e}"))?;
        if !given.insert(factor) {
            return Err(format!("{name} is given twice"));
        }
        set.insert(factor, weight);
    }
    if profile.is_empty() && set.is_empty() {
        return Err("nothing to change: neither a profile nor a weight is given".to_owned());
    }
    Ok(WeightsChange { reset: profile == PROFILE_OF_SCHEDULER, set })
}

#[tonic::async_trait]
impl VClusterService for Api {
    async fn list(&self, request: Request<v1::ListVClustersRequest>) -> Result<Response<v1::ListVClustersResponse>, Status> {
        self.user(&request).await?;
        let all = match self.quorum.call(&Ask::ListVClusters, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::VClusters(all) => all,
            other => return Err(unexpected(&other)),
        };
        let vclusters = all.into_iter().map(|v| v1::VCluster {
            name: v.vcluster.name,
            scheduler: v.vcluster.scheduler.to_string(),
            tenant: v.vcluster.tenant,
            nodes: v.nodes.iter().map(ToString::to_string).collect(),
            pending: v.pending,
            running: v.running,
            served_by: v.served_by.map(|n| n.to_string()).unwrap_or_default(),
            created_by: v.vcluster.created_by,
            created_at_ms: v.vcluster.created_at.0,
            weights: v
                .vcluster
                .scheduler
                .profile()
                .map(|profile| shown(&v.vcluster.weights.unwrap_or(profile.weights())))
                .unwrap_or_default(),
            weights_set: v.vcluster.weights.is_some(),
            cycle_interval_ms: v.vcluster.cycle_interval_ms.into(),
            borrows: v.vcluster.borrows,
            lend_ms: v.vcluster.lend_ms.unwrap_or_default(),
            version: v.vcluster.revision.0,
        });
        Ok(Response::new(v1::ListVClustersResponse { vclusters: vclusters.collect() }))
    }

    async fn queue(&self, request: Request<v1::VClusterQueueRequest>) -> Result<Response<v1::VClusterQueueResponse>, Status> {
        let caller = self.caller(&request).await?;
        self.user(&request).await?;
        let name = request.into_inner().name;
        let cluster = self.cluster.borrow().clone();
        if !cluster.fresh {
            let text =
                "this agent has no connection to the quorum at present: what waits is not known\nhint: `lattice node status` shows why";
            return Err(Status::unavailable(text));
        }
        if name != DEFAULT_VCLUSTER && !cluster.vclusters.contains_key(&name) {
            return Err(Status::not_found(format!("vCluster {name:?} not found\nhint: `lattice vcluster list` shows them")));
        }
        let view = cluster.with_gossip(self.membership.gossiped());
        let in_order = move || {
            let waiting = lattice_scheduler::waiting_in(&view, &name, lattice_agent_common::clock::now());
            let first: Vec<Allocation> = waiting.iter().take(SHOWN_MAX).map(|&a| a.clone()).collect();
            (first, u32::try_from(waiting.len()).unwrap_or(u32::MAX))
        };
        let (first, waiting) = tokio::task::spawn_blocking(in_order).await.map_err(|error| Status::internal(error.to_string()))?;
        let viewer = self.viewer_if(&caller, first.iter().any(|a| a.owner.uid != caller.principal.uid)).await;
        let status_messages = StatusMessages::of(&cluster, self, first.iter()).await?;
        let shown = first.iter().map(|a| viewer.allocation(&a.owner, &a.spec.tenant, status_messages.shown(a))).collect();
        Ok(Response::new(v1::VClusterQueueResponse { allocations: shown, waiting }))
    }

    async fn create(&self, request: Request<v1::CreateVClusterRequest>) -> Result<Response<v1::VClusterResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::CreateVClusterRequest { name, scheduler, tenant, nodes, cycle_interval_ms, borrows, lend_ms } = request.into_inner();
        let scheduler: SchedulerKind = scheduler.parse().map_err(|e: SchedulerError| match &e {
            SchedulerError::NotBuilt(_) => Status::unimplemented(e.to_string()),
            SchedulerError::Unknown(_) => Status::invalid_argument(e.to_string()),
        })?;
        let nodes = nodes.iter().map(|n| node_id(n)).collect::<Result<_, _>>()?;
        let change = VClusterChange {
            name,
            create: Some(scheduler),
            tenant: Some(tenant),
            nodes: Some(nodes),
            cycle_interval_ms: Some(interval_ms(cycle_interval_ms)),
            borrows: Some(borrows),
            lend_ms: Some(lend_ms),
            ..VClusterChange::default()
        };
        self.done(&operator.asks(Action::SetVCluster { change, by })).await?;
        Ok(Response::new(v1::VClusterResponse {}))
    }

    async fn set_config(&self, request: Request<v1::SetVClusterRequest>) -> Result<Response<v1::VClusterResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::SetVClusterRequest { name, tenant, nodes, cycle_interval_ms, borrows, lend_ms, expected_version } = request.into_inner();
        let nodes = nodes.map(|set| set.nodes.iter().map(|n| node_id(n)).collect::<Result<_, _>>()).transpose()?;
        let cycle_interval_ms = cycle_interval_ms.map(interval_ms);
        let change =
            VClusterChange { name, tenant, nodes, cycle_interval_ms, borrows, lend_ms, expected_version, ..VClusterChange::default() };
        self.done(&operator.asks(Action::SetVCluster { change, by })).await?;
        Ok(Response::new(v1::VClusterResponse {}))
    }

    async fn set_weights(&self, request: Request<v1::SetWeightsRequest>) -> Result<Response<v1::VClusterResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::SetWeightsRequest { name, profile, weights, expected_version } = request.into_inner();
        let weights = weights_change(&profile, &weights).map_err(Status::invalid_argument)?;
        let change = VClusterChange { name, weights, expected_version, ..VClusterChange::default() };
        self.done(&operator.asks(Action::SetVCluster { change, by })).await?;
        Ok(Response::new(v1::VClusterResponse {}))
    }

    async fn delete(&self, request: Request<v1::DeleteVClusterRequest>) -> Result<Response<v1::VClusterResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        self.done(&operator.asks(Action::DeleteVCluster { name: request.into_inner().name, by })).await?;
        Ok(Response::new(v1::VClusterResponse {}))
    }
}
