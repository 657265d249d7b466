//! Random histories of a small cluster: what happens to nodes, work and rules, one step at a time.

use crate::replicas_tests::{replica, service};
use crate::tests::{NOW, node, owned_by, parent, pending, running_on, shared, vcluster, view, with_plan};
use crate::{Plan, View};
use lattice_model::constraint::CHECKPOINTS;
use lattice_model::test_builders::spec_of;
use lattice_model::usage::{NodeUse, WHOLE_NODE};
use lattice_model::{
    Allocation, AllocationId, AllocationState, BudgetPeriod, CheckpointId, CheckpointPolicy, CheckpointSignal, Claim, Conformance,
    Dependencies, DependencyCondition, EndReason, Epoch, Exclusion, Factor, Hold, HoldKind, Leaving, Node, NodeId, NodeState, ParentState,
    PreemptCause, Preemption, Profile, RequeuePolicy, Resources, SchedulerKind, Share, SharePhase, SharePolicy, Tenant, Timestamp,
    Topology, VCluster, Weight, WorkOwner,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const MINUTE_MS: u64 = 60_000;
/// Nodes have numbers from 1 up to this.
const NODES: u64 = 8;
const WHOLE: Resources = Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 };
/// How many kinds of steps there are.
const KINDS: u8 = 29;
/// The numbers of a step are less than this.
const CHOICES: u64 = 5040;

/// A change of the cluster: its kind, and two numbers that choose its details.
pub type Step = (u8, u64, u64);

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..KINDS, 0..CHOICES, 0..CHOICES), 1..60)
}

pub struct History {
    pub view: View,
    pub now: Timestamp,
    submitted: u64,
}

impl History {
    /// There are six nodes; n5 is lent to the vCluster of n6. Work that may be preempted has n1, n2, n3 and n6.
    pub fn new() -> Self {
        let running = |n: u64, node: &str, vcluster: &str| {
            let mut allocation = running_on(pending(n, 1, 0), node, WHOLE);
            allocation.started_at = Some(NOW);
            let spec = spec_of(&mut allocation);
            (spec.walltime, spec.preemption_class) = (Some(Duration::from_secs(36_000)), 1);
            (spec.requeue, spec.requeues_max) = (RequeuePolicy::Always, 3);
            vcluster.clone_into(&mut spec.vcluster);
            allocation
        };
        let default = [(1001, "n1"), (1002, "n2"), (1003, "n3")].map(|(n, node)| running(n, node, ""));
        let mut view = view(6, default.into_iter().chain([running(1004, "n6", "borrower")]).collect());
        for (at, node) in view.nodes.values_mut().enumerate() {
            node.features = vec![CHECKPOINTS.to_owned()];
            ["", "", "", "", "lender", "borrower"][at].clone_into(&mut node.home);
        }
        let lender = VCluster { lend_ms: Some(120 * MINUTE_MS), ..vcluster("lender", SchedulerKind::HpcBackfill, 1) };
        let borrower = VCluster { borrows: true, ..vcluster("borrower", SchedulerKind::HpcBackfill, 1) };
        view.vclusters = [("lender".to_owned(), lender), ("borrower".to_owned(), borrower)].into();
        Self { view, now: NOW, submitted: 0 }
    }

    pub fn step(&mut self, (kind, one, two): Step) {
        self.now = Timestamp(self.now.0 + (two % 3) * 7 * MINUTE_MS);
        let name: NodeId = format!("n{}", 1 + one % NODES).parse().unwrap();
        match kind {
            0 => self.register(1 + one % NODES, two),
            1 => drop(self.view.nodes.remove(&name)),
            2 => self.change_node(&name, |node, now| {
                if node.holds.pop().is_none() {
                    node.holds.push(Hold::new(HoldKind::Drain, "ada", "", now));
                }
            }),
            3 => self.change_node(&name, |node, now| {
                node.state = if node.state == NodeState::Ready { NodeState::Down } else { NodeState::Ready };
                node.state_since = now;
            }),
            4 => self.gossip(name, two),
            5..=8 => self.submit(one, two),
            9..=12 => self.claim(one, two),
            13 => self.end(one, two),
            14 => self.change_node(&name, |node, _| drop(node.leaving.pop())),
            15 => self.change_rules(one, two),
            16 | 17 => self.preempt(),
            18 => self.ask_to_leave(one, two),
            19 => self.suspend(one),
            20 => self.list_again(),
            21 => self.begin(one),
            22 => self.release(one, two),
            23 => self.change_spec(one, two),
            24 => self.change_waiting(one, |record, _| record.held = !record.held),
            25 => self.depend(one, two),
            26 => self.keep_off(one, two),
            27 => self.submit_service(one, two),
            _ => self.change_use(one, two),
        }
    }

    fn register(&mut self, n: u64, how: u64) {
        let mut new = node(n, NodeState::Ready);
        new.size.cores += (how % 2) as u32;
        new.topology_group = (!(how / 2).is_multiple_of(3)).then(|| (how / 2 % 3).to_string());
        let group = how / 6 % 3;
        new.conformance = (group > 0).then(|| Conformance::first([("kernel".to_owned(), group.to_string())].into()));
        ["", "", "lender", "borrower"][(how / 18 % 4) as usize].clone_into(&mut new.home);
        new.features = if how.is_multiple_of(11) { vec![] } else { vec![CHECKPOINTS.to_owned()] };
        if let Some(known) = self.view.nodes.get(&new.id) {
            new.leaving.clone_from(&known.leaving);
        }
        self.view.alive.insert(new.id.clone());
        self.view.nodes.insert(new.id.clone(), new);
    }

    fn change_node(&mut self, name: &NodeId, change: impl FnOnce(&mut Node, Timestamp)) {
        let now = self.now;
        if let Some(node) = self.view.nodes.get_mut(name) {
            change(node, now);
        }
    }

    fn gossip(&mut self, name: NodeId, two: u64) {
        if !self.view.alive.remove(&name) {
            self.view.silent_since.remove(&name);
            self.view.alive.insert(name);
        } else if two.is_multiple_of(2) {
            self.view.silent_since.insert(name, self.now);
        }
    }

    fn submit(&mut self, one: u64, two: u64) {
        self.submitted += 1;
        let (n, at) = (self.submitted, self.now.0 - two % 5);
        let mut new = match one % 3 {
            0 => shared(n, 1 + (one / 3 % 2) as u32, at, (two % 3) as u32),
            _ => pending(n, 1 + (one / 3 % 3) as u32, at),
        };
        new = owned_by((two % 5) as u8, new);
        let spec = spec_of(&mut new);
        if let Some(share) = spec.share.as_mut().filter(|share| share.cores == 0) {
            share.memory_bytes = 1 << 29;
        }
        spec.walltime = (!one.is_multiple_of(7)).then(|| Duration::from_secs(600 * (1 + two % 9)));
        spec.preemption_class = [0, 1, 5, 7][(one / 9 % 4) as usize];
        if !two.is_multiple_of(4) {
            (spec.requeue, spec.requeues_max) = (RequeuePolicy::Always, 3);
        }
        spec.checkpoint = two.is_multiple_of(7).then(|| CheckpointPolicy::by_signal(CheckpointSignal::USR1));
        spec.constraints.conformance = (one / 36).is_multiple_of(5);
        spec.constraints.topology = if two.is_multiple_of(8) { Topology::Tight } else { Topology::Any };
        ["", "", "lender", "borrower", "borrower", "gone"][(two / 3 % 6) as usize].clone_into(&mut spec.vcluster);
        self.view.allocations.insert(new.id, new);
    }

    /// A service with some replicas, as the ledger makes them.
    fn submit_service(&mut self, one: u64, two: u64) {
        let first = self.submitted + 1;
        self.submitted += 2 + one % 3;
        let of = service(first, self.now.0 - two % 5);
        let replicas: Vec<Allocation> = (0..).zip(first + 1..=self.submitted).map(|(number, n)| replica(n, &of, number)).collect();
        self.view.allocations.extend(replicas.into_iter().chain([of]).map(|record| (record.id, record)));
    }

    /// Makes some of the claims of a plan.
    fn claim(&mut self, one: u64, two: u64) {
        let claims = self.planned(|plan| plan.claims(|_| Some(1)));
        for claim in claims.into_iter().take(1 + (one % 3) as usize) {
            let Some(record) = self.view.allocations.get_mut(&claim.allocation) else { continue };
            let has_begun = !two.is_multiple_of(4);
            record.state = if has_begun { AllocationState::Running } else { AllocationState::Staging };
            record.started_at = has_begun.then_some(self.now);
            record.epoch = Epoch(record.epoch.0 + 1);
            let phase = if has_begun { SharePhase::Prepared } else { SharePhase::Claimed };
            record.shares = claim.shares.into_iter().map(|s| Share { node: s.node, resources: s.resources, phase }).collect();
        }
    }

    /// The result of `look` at the plan of this moment.
    pub fn planned<R>(&self, look: impl FnOnce(&Plan<'_>) -> R) -> R {
        with_plan(&self.view, self.now, look)
    }

    /// How many nodes these claims borrow.
    pub fn borrowed(&self, claims: &[Claim]) -> usize {
        let of_lender = |claim: &Claim| {
            let nodes = claim.shares.iter().map(|share| &self.view.nodes[&share.node]);
            nodes.filter(|node| node.home != self.view.allocations[&claim.allocation].spec.vcluster && node.home == "lender").count()
        };
        claims.iter().map(of_lender).sum()
    }

    fn one_of(&self, one: u64, is_meant: impl Fn(&Allocation) -> bool) -> Option<AllocationId> {
        let all: Vec<AllocationId> = self.view.allocations.values().filter(|a| is_meant(a)).map(|a| a.id).collect();
        all.get(usize::try_from(one).unwrap() % all.len().max(1)).copied()
    }

    fn with_nodes(&self, one: u64) -> Option<AllocationId> {
        self.one_of(one, |allocation| !allocation.state.is_without_nodes())
    }

    /// Work ends, and its nodes have not released their shares yet; or it is gone; or it waits again.
    fn end(&mut self, one: u64, two: u64) {
        let Some(id) = self.with_nodes(one) else { return };
        let mut record = self.view.allocations[&id].clone();
        if two.is_multiple_of(4) {
            (record.state, record.ended_at) = (AllocationState::Completed, Some(self.now));
            self.view.allocations.insert(id, record);
            return;
        }
        self.view.allocations.remove(&id);
        if two % 4 == 1 {
            return;
        }
        for share in record.shares.iter() {
            let owner = (!two.is_multiple_of(3)).then(|| WorkOwner::of(&record));
            let leaving = Leaving { allocation: id, epoch: record.epoch, resources: share.resources, fenced: two % 8 == 2, owner };
            self.change_node(share.node, |node, _| node.leaving.push(leaving));
        }
        if two % 4 == 2 {
            record.shares.clear();
            (record.state, record.started_at) = (AllocationState::Pending, None);
            self.view.allocations.insert(id, record);
        }
    }

    fn change_rules(&mut self, one: u64, two: u64) {
        let mut weights = Profile::HpcBatch.weights();
        weights.set(Factor::WaitTime, Weight::new(f64::from((two % 9) as u32) / 10.0).unwrap());
        let kind = [SchedulerKind::HpcBackfill, SchedulerKind::InteractiveFifo][(two / 6 % 2) as usize];
        let record = match one % 7 {
            0 => {
                self.view.share_policy = [SharePolicy::Anyone, SharePolicy::Tenant, SharePolicy::User][(two % 3) as usize];
                return;
            }
            1 => {
                self.view.user_running = two.is_multiple_of(2).then_some(2);
                return;
            }
            2 => {
                let max_nodes = two.is_multiple_of(2).then_some(3);
                let tenant = Tenant { name: "physics".into(), max_nodes, fair_share_target_ppm: Some(300_000), ..Tenant::default() };
                self.view.tenants.insert("physics".into(), tenant);
                return;
            }
            3 => VCluster { lend_ms: (!two.is_multiple_of(3)).then_some(60 * MINUTE_MS), ..vcluster("lender", kind, 1) },
            4 => VCluster { borrows: !two.is_multiple_of(3), ..vcluster("borrower", kind, (two % 2) as u32) },
            _ => VCluster { weights: Some(weights), ..vcluster("default", SchedulerKind::HpcBackfill, 0) },
        };
        self.view.vclusters.insert(record.name.clone(), record);
    }

    /// The work that a plan preempts is asked to give its nodes back.
    fn preempt(&mut self) {
        for (_, order) in self.planned(|plan| plan.preemptions()) {
            for (victim, _) in order.victims {
                if let Some(record) = self.view.allocations.get_mut(&victim) {
                    record.preemption = Some(request(victim));
                }
            }
        }
    }

    /// Somebody asks work to give its nodes back, or withdraws that request.
    fn ask_to_leave(&mut self, one: u64, two: u64) {
        if let Some(record) = self.with_nodes(one).and_then(|id| self.view.allocations.get_mut(&id)) {
            record.preemption = (!two.is_multiple_of(4)).then(|| request(record.id));
        }
    }

    /// Work that was asked to leave has saved itself: it waits again, and its shares leave.
    fn suspend(&mut self, one: u64) {
        let Some(id) = self.one_of(one, |allocation| allocation.preemption.is_some()) else { return };
        let mut record = self.view.allocations[&id].clone();
        for share in record.shares.iter() {
            let leaving = Leaving { allocation: id, epoch: record.epoch, resources: share.resources, fenced: false, owner: None };
            self.change_node(share.node, |node, _| node.leaving.push(leaving));
        }
        let reason = EndReason::Preempted { by: "scheduler".into(), why: "x".into(), saved: Ok(CheckpointId(id.0)) };
        record.close_attempt(self.now, &reason, "scheduler");
        (record.state, record.reason, record.preemption) = (AllocationState::Suspended, Some(reason), None);
        record.requeue_count += 1;
        self.view.allocations.insert(id, record);
    }

    /// The watch begins anew: all records are equal to the earlier ones, but none is shared.
    fn list_again(&mut self) {
        self.view.nodes = self.view.nodes.iter().map(|(id, node)| (id.clone(), node.clone())).collect();
        self.view.allocations = self.view.allocations.iter().map(|(id, record)| (*id, record.clone())).collect();
    }

    /// The nodes of claimed work are prepared.
    fn begin(&mut self, one: u64) {
        let staging = self.one_of(one, |allocation| allocation.state == AllocationState::Staging);
        let Some(record) = staging.and_then(|id| self.view.allocations.get_mut(&id)) else { return };
        (record.state, record.started_at) = (AllocationState::Running, Some(self.now));
        for rank in 0..record.shares.len() {
            record.shares.set_phase_of_rank(u32::try_from(rank).unwrap(), SharePhase::Prepared);
        }
    }

    /// A node releases its share; the watch forgets ended work that has no other share.
    fn release(&mut self, one: u64, two: u64) {
        let Some(record) = self.with_nodes(one).and_then(|id| self.view.allocations.get_mut(&id)) else { return };
        let rank = two % u64::try_from(record.shares.len().max(1)).unwrap();
        record.shares.set_phase_of_rank(u32::try_from(rank).unwrap(), SharePhase::Released);
        if record.state.is_terminal() && record.shares.all_released() {
            let id = record.id;
            self.view.allocations.remove(&id);
        }
    }

    fn change_spec(&mut self, one: u64, two: u64) {
        let Some(record) = self.one_of(one, |_| true).and_then(|id| self.view.allocations.get_mut(&id)) else { return };
        let spec = spec_of(record);
        if two.is_multiple_of(2) {
            spec.walltime = (!two.is_multiple_of(5)).then(|| Duration::from_secs(600 * (1 + two / 2 % 12)));
        } else {
            spec.preemption_class = [0, 1, 5, 7][(two / 2 % 4) as usize];
        }
    }

    fn change_waiting(&mut self, one: u64, change: impl FnOnce(&mut Allocation, Timestamp)) {
        let now = self.now;
        let waiting = self.one_of(one, |allocation| allocation.state.is_without_nodes() && !allocation.is_group());
        if let Some(record) = waiting.and_then(|id| self.view.allocations.get_mut(&id)) {
            change(record, now);
        }
    }

    fn depend(&mut self, one: u64, two: u64) {
        let parent = match two % 4 {
            0 => None,
            1 => Some(parent(2000, DependencyCondition::Success, ParentState::Unended)),
            2 => Some(parent(2000, DependencyCondition::Any, ParentState::Ended(AllocationState::Completed))),
            _ => Some(parent(1 + two / 4 % 9, DependencyCondition::Mutex, ParentState::Unended)),
        };
        self.change_waiting(one, |record, now| {
            let of = |parent| Box::new(Dependencies { parents: vec![parent], predecessor: None, begin: None, eligible_at: Some(now) });
            record.dependencies = parent.filter(|parent| parent.on != record.id).map(of);
        });
    }

    /// Waiting work names its nodes, or could not begin on one, or neither.
    fn keep_off(&mut self, one: u64, two: u64) {
        let name = |number: u64| -> NodeId { format!("n{}", 1 + number % NODES).parse().unwrap() };
        self.change_waiting(one, |record, now| match two % 4 {
            0 => spec_of(record).constraints.nodes = [name(two / 4), name(two / 7)].into(),
            1 => spec_of(record).constraints.nodes.clear(),
            2 => {
                let until = two.is_multiple_of(3).then(|| Timestamp(now.0 + 10 * MINUTE_MS));
                record.excluded = vec![Exclusion { node: name(two / 4), why: "x".into(), failures: 1, until }];
            }
            _ => record.excluded.clear(),
        });
    }

    fn change_use(&mut self, one: u64, two: u64) {
        let tenant = ["physics", "chemistry"][(one % 2) as usize].to_owned();
        let node_use = NodeUse { node_millionths: WHOLE_NODE * (1 + two % 9), gpus: 0 };
        let begin = Timestamp(self.now.0 - 60 * MINUTE_MS);
        let of_tenant = Arc::make_mut(self.view.usage.entry(tenant).or_default());
        let _ = of_tenant.add(node_use, begin, self.now, BudgetPeriod::default());
    }
}

fn request(id: AllocationId) -> Box<Preemption> {
    Box::new(Preemption {
        id: CheckpointId(id.0),
        by: "scheduler".to_owned(),
        reason: String::new(),
        cause: PreemptCause::Priority,
        deadline_ms: 90_000,
        hold: false,
        failed: None,
    })
}
