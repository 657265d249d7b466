//! The product's scheduler: the same `plan` that the agents call, on a view of a cluster whose
//! nodes are all Ready. Its claims and orders are carried out here at once, as the quorum's ledger
//! would do.

use super::simulation::{Cluster, Decisions, Scheduler};
use super::site::Site;
use super::workload::Job;
use anyhow::{Context, Result, ensure};
use lattice_model::checkpoint::DEADLINE_MS_DEFAULT;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Borrower, CheckpointId, CheckpointRef, Claim, Entrypoint, Epoch, NodeId,
    NodeUse, PreemptCause, Preemption, Principal, Resources, Share, SharePhase, Timestamp,
};
use lattice_scheduler::{State, View, giving_back_s, plan};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The name in the records of preempted work.
const SCHEDULER: &str = "scheduler";

/// See the module documentation.
pub struct Lattice {
    view: View,
    /// How much of each node has been claimed.
    claimed: BTreeMap<NodeId, Resources>,
    /// The scheduler's state between plans.
    state: State,
    /// The time after which each work with a deadline, if it still waits, would miss the deadline.
    missed_at: BTreeSet<(Timestamp, AllocationId)>,
}

/// What happens after a plan.
#[derive(Debug, Default)]
pub struct Round {
    /// What begins.
    pub begun: Vec<Begun>,
    /// What must give its nodes back.
    pub preempted: Vec<Preempted>,
    /// When others are expected to begin, in seconds.
    pub expected: Vec<(AllocationId, u64)>,
}

/// An allocation that must give its nodes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preempted {
    pub id: AllocationId,
    pub cause: PreemptCause,
    /// How long it keeps its nodes, in seconds: as long as the plan assumes.
    pub giving_back_s: u64,
}

/// An allocation that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    pub id: AllocationId,
    pub uses: NodeUse,
    /// Work that was ahead of it in its queue still waits.
    pub is_backfill: bool,
    /// The walltime that it was given, in seconds, if that is less than it asked for.
    pub walltime_s: Option<u64>,
}

impl Lattice {
    /// An empty cluster.
    pub fn new(site: &Site) -> Self {
        let by_name = |node: &lattice_model::Node| (node.id.clone(), node.clone());
        let view = View {
            alive: site.nodes.iter().map(|node| node.id.clone()).collect(),
            nodes: site.nodes.iter().map(by_name).collect(),
            tenants: site.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.clone())).collect(),
            vclusters: site.vclusters.iter().map(|vcluster| (vcluster.name.clone(), vcluster.clone())).collect(),
            share_policy: site.share_policy,
            budget_period: site.budget_period,
            checkpoint_bytes_per_second: site.checkpoint_bytes_per_second,
            fresh: true,
            ..View::default()
        };
        Self { view, claimed: BTreeMap::new(), state: State::default(), missed_at: BTreeSet::new() }
    }

    /// Adds a submitted allocation.
    pub fn accept(&mut self, allocation: Allocation) {
        self.missed_at.extend(allocation.deadline_missed_at().map(|at| (at, allocation.id)));
        self.view.allocations.insert(allocation.id, allocation);
    }

    /// Removes an allocation that has ended.
    pub fn finish(&mut self, id: AllocationId, now: Timestamp) {
        self.release(id, now);
        self.view.allocations.remove(&id);
    }

    /// Frees the nodes of a preempted allocation, which then waits again.
    pub fn give_back(&mut self, id: AllocationId, now: Timestamp) {
        self.release(id, now);
        let Some(allocation) = self.view.allocations.get_mut(&id) else { return };
        if allocation.spec.checkpoint.is_some() {
            allocation.state = AllocationState::Suspended;
            let made = CheckpointRef { id: CheckpointId(id.0), epoch: allocation.epoch, step: None, bytes: 0 };
            allocation.checkpoint = Some(Box::new(made));
        } else {
            allocation.state = AllocationState::Pending;
            allocation.requeue_count += 1;
        }
        allocation.shares.clear();
        (allocation.claimed_at, allocation.started_at, allocation.preemption) = (None, None, None);
        allocation.preempted_count += 1;
        if let Some(asked) = allocation.asked_walltime.take() {
            Arc::make_mut(&mut allocation.spec).walltime = Some(asked);
        }
        self.missed_at.extend(allocation.deadline_missed_at().map(|at| (at, id)));
    }

    /// Ends waiting work that would miss its deadline, as the quorum does.
    fn end_missed(&mut self, now: Timestamp) {
        while let Some((at, id)) = self.missed_at.first().copied().filter(|(at, _)| *at <= now) {
            self.missed_at.remove(&(at, id));
            let is_missed = self.view.allocations.get(&id).and_then(Allocation::deadline_missed_at).is_some_and(|at| at <= now);
            if is_missed {
                self.view.allocations.remove(&id);
            }
        }
    }

    /// Plans, and carries out the plan.
    pub fn round(&mut self, now: Timestamp) -> Result<Round> {
        self.end_missed(now);
        self.state.apply(self.view.clone());
        let planned = plan(&self.state, now);
        let claims = planned.claims(|_| Some(1));
        let (orders, backfilled) = (planned.preemptions(), planned.backfilled());
        let expected = planned.expected_starts().filter_map(|(id, start)| Some((id, start?.0 / 1000))).collect();
        let mut begun = Vec::with_capacity(claims.len());
        for claim in claims {
            let (id, walltime_s) = (claim.allocation, claim.walltime.map(|given| given.as_secs()));
            let uses = self.begin(claim, now)?;
            begun.push(Begun { id, uses, is_backfill: backfilled.contains(&id), walltime_s });
        }
        let mut preempted = Vec::new();
        for (_, order) in orders {
            for (victim, epoch) in order.victims {
                let cause = self.cause(order.beneficiary, victim)?;
                let giving_back_s = self.order(victim, epoch, cause)?;
                preempted.push(Preempted { id: victim, cause, giving_back_s });
            }
        }
        Ok(Round { begun, preempted, expected })
    }

    /// Gives the work its nodes and starts it at once, in place of the quorum and the nodes.
    fn begin(&mut self, claim: Claim, now: Timestamp) -> Result<NodeUse> {
        let allocation = self.view.allocations.get_mut(&claim.allocation).context("a claim for nothing")?;
        let (least, most) = (allocation.spec.nodes as usize, allocation.spec.nodes_max.unwrap_or(allocation.spec.nodes) as usize);
        ensure!((least..=most).contains(&claim.shares.len()), "a claim of another number of nodes than was asked for");
        for share in &claim.shares {
            let size = self.view.nodes.get(&share.node).context("a claim of a node that is not there")?.size;
            let claimed = self.claimed.entry(share.node.clone()).or_default();
            let after = claimed.plus(&share.resources);
            ensure!(size.holds(&after), "a claim of more of node {} than is free", share.node);
            *claimed = after;
        }
        if let (Some(given), Some(asked)) = (claim.walltime, allocation.spec.walltime) {
            allocation.asked_walltime = Some(asked);
            Arc::make_mut(&mut allocation.spec).walltime = Some(given);
        }
        let prepared = claim.shares.into_iter().map(|s| Share { node: s.node, resources: s.resources, phase: SharePhase::Prepared });
        allocation.shares = prepared.collect();
        allocation.epoch = Epoch(allocation.epoch.0 + 1);
        (allocation.state, allocation.claimed_at, allocation.started_at) = (AllocationState::Running, Some(now), Some(now));
        let nodes = &self.view.nodes;
        Ok(NodeUse::of(allocation, |node| nodes.get(node).map(|node| node.size)))
    }

    /// Frees an allocation's nodes and accounts its usage.
    fn release(&mut self, id: AllocationId, now: Timestamp) {
        let Some(allocation) = self.view.allocations.get(&id) else { return };
        for share in allocation.shares.iter() {
            if let Some(claimed) = self.claimed.get_mut(share.node) {
                *claimed = claimed.minus(&share.resources);
            }
        }
        let Some(started) = allocation.started_at else { return };
        let nodes = &self.view.nodes;
        let uses = NodeUse::of(allocation, |node| nodes.get(node).map(|node| node.size));
        let days = self.view.usage.entry(allocation.spec.tenant.clone()).or_default();
        Arc::make_mut(days).add(uses, started, now, self.view.budget_period.kept());
    }

    /// The cause, decided as the quorum does: whether the victim has nodes that the beneficiary's
    /// vCluster lent.
    fn cause(&self, beneficiary: AllocationId, victim: AllocationId) -> Result<PreemptCause> {
        let known = |id: &AllocationId| self.view.allocations.get(id).context("a preemption for or of nothing");
        let (beneficiary, victim) = (known(&beneficiary)?, known(&victim)?);
        let record = |name: &str| self.view.vclusters.get(name);
        let Some(borrower) = Borrower::of(record, &victim.spec) else { return Ok(PreemptCause::Priority) };
        let lender = record(&beneficiary.spec.vcluster);
        let is_lent = |node: &NodeId| self.view.nodes.get(node).is_some_and(|node| borrower.has_from(lender, node));
        Ok(if victim.nodes().any(is_lent) { PreemptCause::Reclaim } else { PreemptCause::Priority })
    }

    /// Asks the victim to give its nodes back. Returns how long it keeps them, in seconds.
    fn order(&mut self, victim: AllocationId, epoch: Epoch, cause: PreemptCause) -> Result<u64> {
        let allocation = self.view.allocations.get_mut(&victim).context("a preemption of nothing")?;
        ensure!(allocation.epoch == epoch, "a preemption of an earlier claim");
        allocation.preemption = Some(Box::new(Preemption {
            id: CheckpointId(victim.0),
            by: SCHEDULER.to_owned(),
            reason: String::new(),
            cause,
            deadline_ms: DEADLINE_MS_DEFAULT,
            hold: false,
            failed: None,
        }));
        Ok(giving_back_s(allocation, self.view.checkpoint_bytes_per_second).ceil() as u64)
    }
}

impl Scheduler for Lattice {
    fn name(&self) -> &'static str {
        "lattice"
    }

    fn submit(&mut self, job: &Job) {
        let mut spec = AllocationSpec::new("replay", Entrypoint::Command { argv: vec!["true".into()] }, Path::new("/"));
        (spec.nodes, spec.walltime) = (job.nodes, Some(Duration::from_secs(job.estimate_s)));
        self.accept(Allocation::submitted(id(job.index), spec, owner(0), time(job.submitted_s)));
    }

    fn end(&mut self, job: &Job, now_s: u64) {
        self.finish(id(job.index), time(now_s));
    }

    fn decide(&mut self, now_s: u64, _cluster: &Cluster<'_>) -> Result<Decisions> {
        let round = self.round(time(now_s))?;
        ensure!(round.preempted.is_empty(), "work of one class is preempted");
        let begin = round.begun.iter().map(|begun| index(begun.id)).collect();
        let expected = round.expected.into_iter().map(|(id, start_s)| (index(id), start_s)).collect();
        Ok(Decisions { begin, expected })
    }
}

/// A user with this number.
pub fn owner(user: u32) -> Principal {
    Principal { name: format!("user-{user}"), uid: user, gid: user, groups: vec![] }
}

pub fn time(seconds: u64) -> Timestamp {
    Timestamp(seconds.saturating_mul(1000))
}

/// The id of the allocation with this index.
pub fn id(index: usize) -> AllocationId {
    AllocationId(Uuid::from_u128(index as u128))
}

fn index(id: AllocationId) -> usize {
    id.0.as_u128() as usize
}
