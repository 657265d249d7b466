//! A ledger of a large cluster, filled by commands.

use anyhow::{Result, bail};
use lattice_ledger::{
    Action, Changed, Command, EndedLimitsChange, Ledger, Outcome, QuotaChange, Registration, SCHEDULER_LEASE, TenantChange,
    UserLimitsChange, VniPoolChange,
};
use lattice_model::claim::ClaimShare;
use lattice_model::conformance::Components;
use lattice_model::constraint::RUN_LEASE;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, Boot, Claim, EndReason, Entrypoint, Epoch, Incarnation, Locality, Node, NodeAddresses,
    NodeId, NodeReport, Principal, ReportItem, RequeuePolicy, Resources, Revision, Timestamp,
};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Nodes and allocations of the cluster.
pub const NODES: usize = 10_000;
pub const ALLOCATIONS: usize = 100_000;
/// Allocations that have ended, and that run on each node. The others wait.
const ENDED: usize = 10_000;
const RUNNING_ON_EACH: usize = 4;
const USERS: u128 = 500;
const TENANTS: u128 = 20;
/// Changed records that are still referenced, for example by the changes that members keep for watches: the next change
/// of such a record copies it.
const RETAINED: usize = 20_000;

const SIZE: Resources = Resources { cores: 64, memory_bytes: 256 << 30, gpus: 4 };
const SHARE: Resources = Resources { cores: 8, memory_bytes: 16 << 30, gpus: 0 };

/// See the module documentation.
pub struct Cluster {
    pub ledger: Ledger,
    index: u64,
    at_ms: u64,
    token: u64,
    allocations: u128,
    allocations_retained: VecDeque<Option<Arc<Allocation>>>,
    nodes_retained: VecDeque<Option<Arc<Node>>>,
}

impl Cluster {
    /// Fills a ledger.
    pub fn build() -> Result<Self> {
        let mut cluster = Self {
            ledger: Ledger::default(),
            index: 0,
            at_ms: 1_700_000_000_000,
            token: 0,
            allocations: 0,
            allocations_retained: VecDeque::new(),
            nodes_retained: VecDeque::new(),
        };
        cluster.settings()?;
        for number in 0..NODES {
            cluster.act(Action::Register(registration(number, Incarnation(0))))?;
        }
        let lease = Action::GrantLease { name: SCHEDULER_LEASE.into(), holder: node(0), ttl_ms: 10_000, user: None };
        match cluster.act(lease)?.0 {
            Outcome::Leased { token } => cluster.token = token,
            other => bail!("the scheduler's lease was not granted: {other:?}"),
        }
        for number in 0..ENDED {
            let (id, _) = cluster.submit(|_| {})?;
            let (epoch, _) = cluster.claim(id, number % NODES)?;
            cluster.end(id, epoch, number % NODES)?;
            cluster.release(id, epoch, number % NODES)?;
        }
        for number in 0..NODES * RUNNING_ON_EACH {
            let (id, _) = cluster.submit(|_| {})?;
            let (epoch, _) = cluster.claim(id, number % NODES)?;
            cluster.report(number % NODES, ReportItem::Prepared { allocation: id, epoch })?;
        }
        for _ in ENDED + NODES * RUNNING_ON_EACH..ALLOCATIONS {
            cluster.submit(|_| {})?;
        }
        Ok(cluster)
    }

    fn settings(&mut self) -> Result<()> {
        let by = || "root".to_owned();
        self.act(Action::Bootstrap { cluster: "bench".into() })?;
        let users = UserLimitsChange {
            user_pending: QuotaChange::Unlimited,
            user_submissions_per_second: QuotaChange::Unlimited,
            user_running: QuotaChange::AtMost(10_000),
            ..UserLimitsChange::default()
        };
        self.act(Action::SetLimits {
            sensitive_pool_size: QuotaChange::AtMost(5000),
            users,
            budget_period_days: None,
            share_policy: None,
            ended: EndedLimitsChange::default(),
            dag_size: None,
            root_may: None,
            by: by(),
        })?;
        self.act(Action::SetRunLease { ms: 90_000 })?;
        let change = VniPoolChange { grace_ms: Some(1000), ..VniPoolChange::default() };
        self.act(Action::SetVniPool { change, by: by() })?;
        for tenant in 0..TENANTS {
            let (max_nodes, max_concurrent_allocations) = (QuotaChange::AtMost(10_000), QuotaChange::AtMost(100_000));
            let change = TenantChange {
                name: tenant_of(tenant),
                create: true,
                max_nodes,
                max_concurrent_allocations,
                soft: Default::default(),
                expected_version: None,
            };
            self.act(Action::SetTenant { change, by: by() })?;
        }
        Ok(())
    }

    /// Applies the command, and returns how long that took.
    pub fn act(&mut self, action: Action) -> Result<(Outcome, Duration)> {
        self.index += 1;
        self.at_ms += 1;
        let (name, command) = (action.name(), Command { at: Timestamp(self.at_ms), action });
        let begun = Instant::now();
        let applied = self.ledger.apply(Revision(self.index), &command);
        let took = begun.elapsed();
        let (allocations, nodes) = (&mut self.allocations_retained, &mut self.nodes_retained);
        let changed = applied.changed.allocations.iter().chain(applied.changed.shares.keys());
        allocations.extend(changed.map(|id| self.ledger.allocation(*id).cloned()));
        nodes.extend(applied.changed.nodes.iter().map(|id| self.ledger.node(id).cloned()));
        allocations.drain(..allocations.len().saturating_sub(RETAINED));
        nodes.drain(..nodes.len().saturating_sub(RETAINED));
        match applied.result {
            Ok(Outcome::ContentRefused(refusal)) | Err(refusal) => bail!("{name}: {refusal}"),
            Ok(outcome) => Ok((outcome, took)),
        }
    }

    /// Applies the commands as one entry of the log. Returns what changed, and how long that took.
    pub fn entry(&mut self, actions: Vec<Action>) -> Result<(Changed, Duration)> {
        self.index += 1;
        self.at_ms += 1;
        let at = Timestamp(self.at_ms);
        let named = actions.into_iter().map(|action| (action.name(), Command { at, action }));
        let commands: Vec<_> = named.collect();
        let (mut changed, mut took) = (Changed::default(), Duration::ZERO);
        for (name, command) in &commands {
            let begun = Instant::now();
            let applied = self.ledger.apply(Revision(self.index), command);
            changed.merge(applied.changed);
            took += begun.elapsed();
            if let Ok(Outcome::ContentRefused(refusal)) | Err(refusal) = applied.result {
                bail!("{name}: {refusal}");
            }
        }
        Ok((changed, took))
    }

    /// The time of the last command.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.at_ms)
    }

    /// Lets time pass without commands.
    pub fn pass(&mut self, ms: u64) {
        self.at_ms += ms;
    }

    /// Submits an allocation of a part of one node.
    pub fn submit(&mut self, change: impl FnOnce(&mut AllocationSpec)) -> Result<(AllocationId, Duration)> {
        let (id, action) = self.submission(None, change);
        Ok((id, self.act(action)?.1))
    }

    /// Submits an allocation with a claim of its node.
    pub fn submit_claimed(&mut self, number: usize) -> Result<(AllocationId, Epoch, Duration)> {
        let (id, action) = self.submission(Some(number), |_| {});
        let (_, took) = self.act(action)?;
        match self.ledger.allocation(id) {
            Some(claimed) if claimed.epoch > Epoch(0) => Ok((id, claimed.epoch, took)),
            Some(_) | None => bail!("the claim that was submitted with {id} was refused"),
        }
    }

    fn submission(&mut self, on: Option<usize>, change: impl FnOnce(&mut AllocationSpec)) -> (AllocationId, Action) {
        self.allocations += 1;
        let id = AllocationId(Uuid::from_u128(self.allocations.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)));
        let argv = vec!["/usr/bin/solve".to_owned(), "--input".to_owned(), "/scratch/case/42".to_owned()];
        let mut spec = AllocationSpec::new("solve", Entrypoint::Command { argv }, Path::new("/home/u"));
        spec.env = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
        spec.tenant = tenant_of(self.allocations % TENANTS);
        spec.share = Some(SHARE);
        (spec.requeue, spec.requeues_max) = (RequeuePolicy::Always, 100);
        change(&mut spec);
        let claim = on.map(|number| self.proposal(id, [number]));
        let claim = claim.map(|claim| of_size(claim, spec.amount_of(&SIZE)));
        (id, Action::Submit { id, spec: Box::new(spec), owner: user(self.allocations), claim })
    }

    /// The owner of the allocation.
    pub fn owner(&self, id: AllocationId) -> Principal {
        self.ledger.allocation(id).map_or_else(|| user(0), |allocation| allocation.owner.clone())
    }

    /// Claims a part of the node for the allocation.
    pub fn claim(&mut self, id: AllocationId, number: usize) -> Result<(Epoch, Duration)> {
        match self.act(Action::Claim(self.proposal(id, [number])))? {
            (Outcome::Claimed { epoch }, took) => Ok((epoch, took)),
            (other, _) => bail!("a claim had the outcome {other:?}"),
        }
    }

    /// A claim of the requested resources on each of these nodes.
    pub fn proposal(&self, id: AllocationId, numbers: impl IntoIterator<Item = usize>) -> Claim {
        let allocation = self.ledger.allocation(id);
        let resources = allocation.map_or(SIZE, |allocation| allocation.spec.amount_of(&SIZE));
        let share = |number| {
            let node = node(number);
            let hold_revision = self.ledger.node(&node).map_or(Revision(0), |known| known.hold_revision);
            ClaimShare { node, resources, hold_revision }
        };
        let requeue_count = allocation.map_or(0, |allocation| allocation.requeue_count);
        let shares = numbers.into_iter().map(share).collect();
        Claim { allocation: id, requeue_count, lease_token: self.token, shares, after: None, by: None, walltime: None }
    }

    /// The node reports this.
    pub fn report(&mut self, number: usize, item: ReportItem) -> Result<Duration> {
        let report = self.report_of(number, item);
        Ok(self.act(report)?.1)
    }

    /// The node's next report.
    pub fn report_of(&self, number: usize, item: ReportItem) -> Action {
        let node = node(number);
        let (incarnation, seq) = self.ledger.node(&node).map_or((Incarnation(0), 0), |known| (known.incarnation, known.report_seq));
        Action::Report(NodeReport { node, incarnation, seq: seq + 1, item })
    }

    /// The node reports that the work is prepared, and that it has ended.
    pub fn end(&mut self, allocation: AllocationId, epoch: Epoch, number: usize) -> Result<[Duration; 2]> {
        let prepared = self.report(number, ReportItem::Prepared { allocation, epoch })?;
        let ended = self.report(number, ReportItem::Ended { allocation, epoch, reason: EndReason::Exited { code: 0 } })?;
        Ok([prepared, ended])
    }

    /// The node reports that nothing of the allocation is left.
    pub fn release(&mut self, allocation: AllocationId, epoch: Epoch, number: usize) -> Result<Duration> {
        self.report(number, ReportItem::Released { allocation, epoch, usage: None })
    }
}

/// The claim with this amount of each node.
fn of_size(claim: Claim, resources: Resources) -> Claim {
    Claim { shares: claim.shares.into_iter().map(|share| ClaimShare { resources, ..share }).collect(), ..claim }
}

/// A node's name.
pub fn node(number: usize) -> NodeId {
    format!("node{number:05}").parse().expect("a node's name")
}

fn user(number: u128) -> Principal {
    let uid = 1000 + u32::try_from(number % USERS).unwrap_or_default();
    Principal { name: format!("user{uid}"), uid, gid: uid, groups: vec![] }
}

fn tenant_of(number: u128) -> String {
    format!("tenant{number}")
}

/// An agent's registration.
pub fn registration(number: usize, incarnation: Incarnation) -> Registration {
    Registration {
        node: node(number),
        boot: Boot(Uuid::from_u128(1)),
        size: SIZE,
        addresses: NodeAddresses { mesh: format!("10.0.0.1:{number}"), gossip: format!("10.0.0.1:{number}") },
        schedulable: true,
        incarnation,
        new_life: incarnation == Incarnation(0),
        replaces: None,
        unenforced_limits: vec![],
        features: vec![RUN_LEASE.to_owned()],
        topology_group: None,
        locality: Locality::default(),
        found: None,
        relay_node: None,
        has_wipe_hook: false,
        unwell: None,
        conformance: Some(components(0)),
        automatic: true,
        from: None,
    }
}

/// The components of a node, with this version of its kernel.
pub fn components(version: usize) -> Components {
    let fixed =
        ["bios", "bmc", "cuda", "driver", "libfabric", "lustre", "nic", "os"].map(|name| (name.to_owned(), "1.2.3-4.el9".to_owned()));
    fixed.into_iter().chain([("kernel".to_owned(), format!("6.{version}"))]).collect()
}
