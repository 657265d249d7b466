//! The product's scheduler: the same `plan` that the agents call, on a view of a cluster whose nodes are all Ready.

use super::simulation::{Cluster, Decisions, Scheduler};
use super::workload::Job;
use crate::ready_node::ready_node;
use anyhow::{Context, Result, ensure};
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Claim, Entrypoint, NodeId, Principal, Resources, Share, SharePhase,
    Timestamp,
};
use lattice_scheduler::{View, plan};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

const NODE_SIZE: Resources = Resources { cores: 64, memory_bytes: 256 << 30, gpus: 4 };

/// See the module documentation.
pub struct Lattice {
    view: View,
    in_use: BTreeSet<NodeId>,
}

impl Lattice {
    pub fn new(nodes: u32) -> Self {
        let nodes: Vec<_> = (0..nodes).map(|number| ready_node(number, NODE_SIZE)).collect();
        let view = View {
            alive: nodes.iter().map(|node| node.id.clone()).collect(),
            nodes: nodes.into_iter().map(|node| (node.id.clone(), node)).collect(),
            fresh: true,
            ..View::default()
        };
        Self { view, in_use: BTreeSet::new() }
    }

    /// What the quorum and the nodes do: the work has its nodes, and runs at once.
    fn begin(&mut self, claim: Claim, now: Timestamp) -> Result<()> {
        let allocation = self.view.allocations.get_mut(&claim.allocation).context("a claim for nothing")?;
        ensure!(claim.shares.len() == allocation.spec.nodes as usize, "a claim of another number of nodes than was asked for");
        for share in &claim.shares {
            ensure!(self.in_use.insert(share.node.clone()), "a claim of node {}, which is in use", share.node);
        }
        let prepared = claim.shares.into_iter().map(|s| Share { node: s.node, resources: s.resources, phase: SharePhase::Prepared });
        allocation.shares = prepared.collect();
        (allocation.state, allocation.started_at) = (AllocationState::Running, Some(now));
        Ok(())
    }
}

impl Scheduler for Lattice {
    fn name(&self) -> &'static str {
        "lattice"
    }

    fn submit(&mut self, job: &Job) {
        let mut spec = AllocationSpec::new("replay", Entrypoint::Command { argv: vec!["true".into()] }, Path::new("/"));
        (spec.nodes, spec.walltime) = (job.nodes, Some(Duration::from_secs(job.estimate_s)));
        let owner = Principal { name: "u".into(), uid: 1000, gid: 1000, groups: vec![] };
        let allocation = Allocation::submitted(id(job.index), spec, owner, time(job.submitted_s));
        self.view.allocations.insert(allocation.id, allocation);
    }

    fn end(&mut self, job: &Job) {
        if let Some(allocation) = self.view.allocations.remove(&id(job.index)) {
            allocation.nodes().for_each(|node| _ = self.in_use.remove(node));
        }
    }

    fn decide(&mut self, now_s: u64, _cluster: &Cluster<'_>) -> Result<Decisions> {
        let now = time(now_s);
        let planned = plan(&self.view, now);
        let claims = planned.claims(|_| Some(1));
        let expected = planned.expected_starts().filter_map(|(id, start)| Some((index(id), start?.0 / 1000))).collect();
        let begin = claims.iter().map(|claim| index(claim.allocation)).collect();
        claims.into_iter().try_for_each(|claim| self.begin(claim, now))?;
        Ok(Decisions { begin, expected })
    }
}

fn time(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1000)
}

fn id(index: usize) -> AllocationId {
    AllocationId(Uuid::from_u128(index as u128))
}

fn index(id: AllocationId) -> usize {
    id.0.as_u128() as usize
}
