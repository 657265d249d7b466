//! vClusters: queues, each with a lease for its scheduler, and possibly with nodes of its own.
//!
//! ```text
//!   label of a specification ──queue_of──▶ vCluster, or default if none has that name
//!   Node::home of a node ── empty: serves default, and every vCluster without nodes of its own
//! ```

use super::claims::{ROLE_PREFIX, scheduler_lease};
use super::{ApplyContext, Ledger, Outcome};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::duration::clock_text;
use lattice_model::spec::WALLTIME_MAX;
use lattice_model::vcluster::{CYCLE_INTERVAL_MS_MAX, DEFAULT_VCLUSTER, NAME_BYTES_MAX, is_name};
use lattice_model::{
    Allocation, AllocationSpec, AuditAction, Borrower, Factor, Node, NodeId, Revision, SchedulerKind, Timestamp, VCluster, Weight, Weights,
    hostlist, millis,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Largest number of vClusters besides `default`.
const VCLUSTERS_MAX: usize = 256;
/// Largest size of a tenant's name, in bytes.
const TENANT_BYTES_MAX: usize = 128;
/// Largest number of names listed in a refusal.
const KNOWN_MAX: usize = 16;
/// Largest size of a list of nodes in an audit record, in bytes.
const NODES_LISTED_BYTES_MAX: usize = 200;

/// A change of a vCluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VClusterChange {
    /// Its name.
    pub name: String,
    /// The scheduler for a new vCluster; `None`: it exists already.
    pub create: Option<SchedulerKind>,
    /// The only tenant whose work it accepts, empty: every tenant; `None`: unchanged.
    pub tenant: Option<String>,
    /// All nodes that belong to it; `None`: unchanged.
    pub nodes: Option<BTreeSet<NodeId>>,
    pub weights: WeightsChange,
    /// See [`VCluster::cycle_interval_ms`]; `None`: unchanged.
    pub cycle_interval_ms: Option<u32>,
    /// See [`VCluster::borrows`]; `None`: unchanged.
    pub borrows: Option<bool>,
    /// See [`VCluster::lend_ms`]; 0: it lends nothing; `None`: unchanged.
    pub lend_ms: Option<u64>,
    /// The change is refused unless the settings have this version (the revision of their latest change), or are already
    /// so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<u64>,
}

impl VClusterChange {
    /// The methods of the API that may request it. A method that operators may call cannot change what only system
    /// admins may change.
    pub(super) fn methods(&self) -> &'static [&'static str] {
        let Self { name: _, create, tenant, nodes, weights: _, cycle_interval_ms, borrows, lend_ms, expected_version: _ } = self;
        let changes_config = tenant.is_some() || nodes.is_some() || cycle_interval_ms.is_some() || borrows.is_some() || lend_ms.is_some();
        match (create, changes_config) {
            (Some(_), _) => &["VClusterService/Create"],
            (None, true) => &["VClusterService/SetConfig", "VClusterService/Create"],
            (None, false) => &["VClusterService/SetWeights", "VClusterService/SetConfig", "VClusterService/Create"],
        }
    }
}

/// A change of a vCluster's weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsChange {
    /// All weights are those of its scheduler's profile again.
    pub reset: bool,
    /// These weights are set after the reset.
    pub set: BTreeMap<Factor, Weight>,
}

impl WeightsChange {
    fn is_none(&self) -> bool {
        !self.reset && self.set.is_empty()
    }

    /// The weights after the change.
    fn after(&self, vcluster: &VCluster) -> Result<Option<Weights>, Refusal> {
        if self.is_none() {
            return Ok(vcluster.weights);
        }
        let malformed = |why: String| Err(Refusal::Malformed { why });
        let Some(profile) = vcluster.scheduler.profile() else {
            return malformed(format!("{} serves in the order of submission: it has no weights", vcluster.scheduler));
        };
        let before = if self.reset { None } else { vcluster.weights };
        if self.set.is_empty() {
            return Ok(before);
        }
        let mut weights = before.unwrap_or_else(|| profile.weights());
        self.set.iter().for_each(|(factor, weight)| weights.set(*factor, *weight));
        if weights.are_zero() {
            return malformed("all weights would be 0: at least one has to be more".to_owned());
        }
        Ok(Some(weights))
    }
}

impl VClusterChange {
    /// Approximate size in bytes.
    pub fn bytes_about(&self) -> usize {
        let nodes: usize = self.nodes.iter().flatten().map(|n| n.as_str().len() + 4).sum();
        256 + self.name.len() + self.tenant.as_ref().map_or(0, String::len) + nodes + 8 * self.weights.set.len()
    }
}

/// A vCluster and its current usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VClusterStatus {
    pub vcluster: VCluster,
    /// Its own nodes; for `default`, all nodes that belong to no other vCluster.
    pub nodes: BTreeSet<NodeId>,
    /// Number of its waiting allocations.
    pub pending: u32,
    /// Number of its allocations that have nodes.
    pub running: u32,
    /// The node whose agent currently schedules its queue.
    pub served_by: Option<NodeId>,
}

impl Ledger {
    /// All vClusters that have a record, by name.
    pub fn vclusters(&self) -> impl Iterator<Item = &Arc<VCluster>> {
        self.vclusters.values()
    }

    /// All vClusters except `default`, by name.
    fn created_vclusters(&self) -> impl Iterator<Item = &Arc<VCluster>> {
        self.vclusters.values().filter(|vcluster| vcluster.name != DEFAULT_VCLUSTER)
    }

    /// The vCluster with this name.
    pub fn vcluster(&self, name: &str) -> Option<&Arc<VCluster>> {
        self.vclusters.get(name)
    }

    /// The vCluster whose queue contains work with this label.
    pub(super) fn queue_of(&self, label: &str) -> &str {
        VCluster::queue(self.vclusters.get(label).map(|v| &**v))
    }

    /// Why the vCluster keeps work with this label off this node; `None`: it does not.
    pub(super) fn foreign(&self, node: &Node, label: &str) -> Option<String> {
        VCluster::keeps_off(self.vclusters.get(label).map(|v| &**v), node)
    }

    /// Whether a node of another vCluster is lent to this work.
    pub(super) fn lends(&self, node: &Node, allocation: &Allocation) -> bool {
        VCluster::lends(|name| self.vclusters.get(name).map(|v| &**v), node, &allocation.spec, allocation.requeue_count)
    }

    /// Whether work has nodes that the vCluster with this label lent to it.
    pub(super) fn has_nodes_of(&self, label: &str, work: &Allocation) -> bool {
        let record = |name: &str| self.vclusters.get(name).map(|v| &**v);
        let Some(borrower) = Borrower::of(record, &work.spec) else { return false };
        let lender = record(label);
        work.nodes().filter_map(|node| self.nodes.get(node)).any(|node| borrower.has_from(lender, node))
    }

    /// A vCluster that has lent a node to this work, and would not lend it with this specification;
    /// `None`: there is none.
    pub(super) fn lender_against(&self, work: &Allocation, spec: &AllocationSpec) -> Option<String> {
        let record = |name: &str| self.vclusters.get(name).map(|v| &**v);
        let borrower = Borrower::of(record, &work.spec)?;
        let home = |node: &Node| if node.home.is_empty() { DEFAULT_VCLUSTER.to_owned() } else { node.home.clone() };
        let nodes = work.nodes().filter_map(|node| self.nodes.get(node));
        let mut lent = nodes.filter(|node| borrower.has_from(record(&home(node)), node));
        lent.find(|node| !VCluster::lends(record, node, spec, work.requeue_count)).map(|node| home(node))
    }

    /// Refuses a submission to a queue that no scheduler would ever serve, or that does not accept
    /// its tenant.
    pub(super) fn admits_to_vcluster(&self, spec: &AllocationSpec) -> Result<(), Refusal> {
        if matches!(spec.vcluster.as_str(), "" | DEFAULT_VCLUSTER) {
            return Ok(());
        }
        let vcluster = self.vclusters.get(&spec.vcluster).ok_or_else(|| self.no_such_vcluster(&spec.vcluster))?;
        if vcluster.tenant.is_empty() || vcluster.tenant == spec.tenant {
            return Ok(());
        }
        Err(Refusal::VClusterOfTenant { name: vcluster.name.clone(), tenant: vcluster.tenant.clone(), given: spec.tenant.clone() })
    }

    /// Refuses a scheduler lease for a queue that does not exist.
    pub(super) fn lease_has_queue(&self, lease: &str) -> Result<(), Refusal> {
        match lease.strip_prefix(ROLE_PREFIX) {
            Some(name) if name != DEFAULT_VCLUSTER && !self.vclusters.contains_key(name) => Err(self.no_such_vcluster(name)),
            Some(_) | None => Ok(()),
        }
    }

    fn no_such_vcluster(&self, name: &str) -> Refusal {
        let created = || self.created_vclusters().map(|vcluster| vcluster.name.clone());
        let known = std::iter::once(DEFAULT_VCLUSTER.to_owned()).chain(created()).take(KNOWN_MAX).collect();
        Refusal::NoSuchVCluster { name: name.chars().take(NAME_BYTES_MAX).collect(), known, all: created().count() as u64 + 1 }
    }

    pub(super) fn set_vcluster(&mut self, context: &mut ApplyContext, change: &VClusterChange, by: &str) -> Result<Outcome, Refusal> {
        let name = &change.name;
        let malformed = |why: String| Err(Refusal::Malformed { why });
        if name == DEFAULT_VCLUSTER && (change.create.is_some() || change.tenant.is_some() || change.nodes.is_some()) {
            let why = "vCluster default serves all tenants on all nodes that no other vCluster owns: only its weights, its interval, and what it lends and borrows can be set";
            return malformed(why.to_owned());
        }
        if change.cycle_interval_ms.is_some_and(|interval_ms| interval_ms > CYCLE_INTERVAL_MS_MAX) {
            return malformed(format!("the interval between two rounds is at most {} s", CYCLE_INTERVAL_MS_MAX / 1000));
        }
        if change.lend_ms.is_some_and(|lend_ms| lend_ms > millis(WALLTIME_MAX)) {
            return malformed("nodes are lent to work of 365 days at most".to_owned());
        }
        if !is_name(name) {
            return malformed(format!("a vCluster's name has 1 to {NAME_BYTES_MAX} letters, digits, dots, dashes and underscores"));
        }
        if change.tenant.as_ref().is_some_and(|t| t.len() > TENANT_BYTES_MAX || t.chars().any(char::is_control)) {
            return malformed(format!("a tenant's name has at most {TENANT_BYTES_MAX} bytes without control characters"));
        }
        let before = self.vclusters.get(name);
        let mut next = match (before, change.create) {
            (None, None) if name == DEFAULT_VCLUSTER => default_vcluster(),
            (None, None) => return Err(self.no_such_vcluster(name)),
            (None, Some(_)) if self.created_vclusters().count() >= VCLUSTERS_MAX => {
                return Err(Refusal::TooMany { what: "vClusters".to_owned(), most: VCLUSTERS_MAX as u64 });
            }
            (None, Some(scheduler)) => VCluster {
                name: name.clone(),
                scheduler,
                created_by: by.to_owned(),
                created_at: context.at,
                revision: context.revision,
                ..default_vcluster()
            },
            (Some(known), _) => VCluster::clone(known),
        };
        if let Some(tenant) = &change.tenant {
            next.tenant.clone_from(tenant);
        }
        next.weights = change.weights.after(&next)?;
        next.cycle_interval_ms = change.cycle_interval_ms.unwrap_or(next.cycle_interval_ms);
        next.borrows = change.borrows.unwrap_or(next.borrows);
        next.lend_ms = change.lend_ms.map_or(next.lend_ms, |lend_ms| Some(lend_ms).filter(|lend_ms| *lend_ms > 0));
        let at_home: BTreeSet<NodeId> = self.at_home(name);
        let wanted = change.nodes.as_ref().unwrap_or(&at_home);
        for id in wanted {
            let Some(node) = self.nodes.get(id) else { return Err(Refusal::NoSuchNode { node: id.clone() }) };
            if !node.home.is_empty() && node.home != *name {
                return Err(Refusal::NodeHasHome { node: id.clone(), vcluster: node.home.clone() });
            }
        }
        next.nodes = u32::try_from(wanted.len()).unwrap_or(u32::MAX);
        if let Some(known) = before {
            let same = **known == next && at_home == *wanted && change.create.is_none_or(|kind| kind == known.scheduler);
            if same {
                // A repetition whose first answer was lost.
                return Ok(Outcome::Done);
            }
            if change.create.is_some() {
                return Err(Refusal::VClusterExists { name: name.clone() });
            }
        }
        let latest = before.map_or(Revision(0), |known| known.revision);
        Refusal::of_other_version(|| format!("vCluster {name}"), change.expected_version, latest)?;
        let moved: Vec<(NodeId, bool)> = at_home
            .difference(wanted)
            .map(|id| (id.clone(), false))
            .chain(wanted.difference(&at_home).map(|id| (id.clone(), true)))
            .collect();
        let detail = detail(&next, wanted);
        for (id, comes) in moved {
            if let Some(node) = self.node_mut(context, &id) {
                node.home = if comes { name.clone() } else { String::new() };
            }
        }
        next.revision = context.revision;
        context.changed.vclusters.insert(name.clone());
        self.vclusters.insert(name.clone(), Arc::new(next));
        self.record(context, by, AuditAction::VClusterSet, super::Subject::default(), detail);
        Ok(Outcome::Done)
    }

    pub(super) fn delete_vcluster(&mut self, context: &mut ApplyContext, name: &str, by: &str) -> Result<Outcome, Refusal> {
        if name == DEFAULT_VCLUSTER {
            return Err(Refusal::Malformed { why: "vCluster default always exists: it cannot be deleted".to_owned() });
        }
        if !self.vclusters.contains_key(name) {
            return Err(self.no_such_vcluster(name));
        }
        if let Some(queue) = self.allocation_index.queues.get(name) {
            return Err(Refusal::VClusterHasWork { name: name.to_owned(), live: u64::from(queue.live()) });
        }
        for id in self.at_home(name) {
            if let Some(node) = self.node_mut(context, &id) {
                node.home.clear();
            }
        }
        self.vclusters.remove(name);
        context.changed.vclusters.insert(name.to_owned());
        self.drop_lease(context, &scheduler_lease(name), by, AuditAction::LeaseRevoked, "its vCluster is deleted");
        self.record(context, by, AuditAction::VClusterDeleted, super::Subject::default(), name.to_owned());
        Ok(Outcome::Done)
    }

    /// A node of this vCluster was removed.
    pub(super) fn leave_vcluster(&mut self, context: &mut ApplyContext, name: &str) {
        if let Some(vcluster) = self.vclusters.get_mut(name) {
            let vcluster = Arc::make_mut(vcluster);
            vcluster.nodes = vcluster.nodes.saturating_sub(1);
            vcluster.revision = context.revision;
            context.changed.vclusters.insert(name.to_owned());
        }
    }

    /// The nodes that belong to this vCluster, which is not `default`.
    fn at_home(&self, name: &str) -> BTreeSet<NodeId> {
        self.node_index.homes.get(name).into_iter().flatten().cloned().collect()
    }

    /// All vClusters with their current usage: `default` first, then by name.
    pub fn vcluster_statuses(&self) -> Vec<VClusterStatus> {
        let default = self.vclusters.get(DEFAULT_VCLUSTER).map_or_else(default_vcluster, |known| VCluster::clone(known));
        let mut statuses: Vec<VClusterStatus> = std::iter::once(default)
            .chain(self.created_vclusters().map(|v| VCluster::clone(v)))
            .map(|vcluster| {
                let nodes = if vcluster.name == DEFAULT_VCLUSTER {
                    self.nodes.values().filter(|node| node.home.is_empty()).map(|node| node.id.clone()).collect()
                } else {
                    self.at_home(&vcluster.name)
                };
                let served_by = self.lease(&scheduler_lease(&vcluster.name)).map(|lease| lease.holder.clone());
                VClusterStatus { vcluster, nodes, pending: 0, running: 0, served_by }
            })
            .collect();
        for (label, counts) in &self.allocation_index.queues {
            let queue = self.queue_of(label);
            if let Some(status) = statuses.iter_mut().find(|s| s.vcluster.name == queue) {
                status.pending += counts.pending;
                status.running += counts.running;
            }
        }
        statuses
    }
}

/// The default vCluster without settings.
fn default_vcluster() -> VCluster {
    VCluster {
        name: DEFAULT_VCLUSTER.to_owned(),
        scheduler: SchedulerKind::OF_DEFAULT,
        tenant: String::new(),
        nodes: 0,
        weights: None,
        cycle_interval_ms: 0,
        borrows: false,
        lend_ms: None,
        created_by: String::new(),
        created_at: Timestamp(0),
        revision: Revision(0),
    }
}

fn detail(vcluster: &VCluster, nodes: &BTreeSet<NodeId>) -> String {
    let tenant = if vcluster.tenant.is_empty() { "any" } else { &vcluster.tenant };
    let folded = hostlist::fold(nodes);
    let nodes = match nodes.len() {
        0 => "none of its own".to_owned(),
        _ if folded.len() <= NODES_LISTED_BYTES_MAX => folded,
        many => format!("{many} of its own"),
    };
    let mut detail = format!("{}: scheduler {}, tenant {tenant}, nodes {nodes}", vcluster.name, vcluster.scheduler);
    if let Some(weights) = &vcluster.weights {
        let weights: Vec<String> = Factor::ALL.iter().map(|factor| format!("{} {}", factor.name(), weights.get(*factor))).collect();
        detail.push_str(&format!(", weights {}", weights.join(" ")));
    }
    if vcluster.cycle_interval_ms > 0 {
        detail.push_str(&format!(", a round every {} ms at most", vcluster.cycle_interval_ms));
    }
    if vcluster.borrows {
        detail.push_str(", borrows nodes");
    }
    if let Some(lend_ms) = vcluster.lend_ms {
        detail.push_str(&format!(", lends nodes to work of {}", clock_text(Duration::from_millis(lend_ms))));
    }
    detail
}
