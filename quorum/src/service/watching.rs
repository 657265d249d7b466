//! Watches: first a complete list, or the changes since the watcher's place; then all further
//! changes.
//!
//! ```text
//!   since nothing ─▶ the list as of now ────────────┐
//!   since a place ─▶ in history? ─▶ later changes ───┴─▶ each entry that concerns it ─▶ …
//!                        └ no ─▶ Resync
//! ```
//!
//! A watch has no queue of its own except a few messages: it reads the member's history from its
//! current place. If the history no longer contains that place, the watcher must start again. A
//! watcher that reads nothing for a while is disconnected, and may resume from its place later.
//!
//! A narrow watch concerns one node, for its agent of role `node`, or one allocation. Only changes
//! that concern it wake it, so ten thousand narrow watches cost nothing while others change.

use super::packets::Packets;
use crate::core::Core;
use crate::permission::{Call, is_of_node};
use lattice_api::pack::pack;
use lattice_api::v1::Packed;
use lattice_ledger::history::{ChangeSet, ChangedPhases};
use lattice_ledger::{ClusterLimits, DomainKey, Lease};
use lattice_ledger_state::record_bytes::{allocation_bytes, node_bytes, phases_bytes, reservation_bytes};
use lattice_model::{
    Allocation, AllocationId, DailyUse, DayUse, Node, NodeId, PhasesChange, Reservation, Revision, Tenant, VCluster, VniPool,
};
use lattice_quorum_client::wire::{Change, LeaseStatus, WatchAllocations, WatchCursor, WatchMessage, WatchRequest};
use lattice_store::changes::{Narrow, Topic};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Largest number of queued messages of a watch, including one that says why it ends.
const DOWN_QUEUE: usize = 8;
/// Approximate size of the changes in one message, in bytes.
const MESSAGE_BYTES: usize = 1024 * 1024;
/// How long a watcher may read nothing.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long this member may lag behind the watcher's place.
const CATCH_UP: Duration = Duration::from_secs(2);
/// Number of change sets read at once.
const SETS_MAX: usize = 64;
/// How often the place of a watcher is advanced while no change concerns it, so that the history
/// does not lose that place.
const MARK_AFTER: Duration = Duration::from_secs(1);
/// The same for a narrow watch: its list is short, so it may start again with a list at any time.
const NARROW_MARK_AFTER: Duration = Duration::from_secs(30);
/// Largest number of change sets that the watch of a node's agent searches when it resumes. After
/// more, it gets its list, which is short: ten thousand of them may resume at once.
const NODE_RESUMED_MAX: usize = 1024;

/// How a watch ends.
enum Ended {
    /// The watcher is gone.
    Gone,
    /// The watcher may resume from its place, at any member.
    CutOff(Status),
    /// The watcher's place is no longer available.
    Resync(String),
}

/// The calls that a watch needs permission for.
pub(super) fn calls(wanted: &WatchRequest) -> Vec<Call> {
    let WatchRequest { nodes, allocations, tenants, leases, vclusters, domains, limits, uid: _, since: _ } = wanted;
    let allocations = match allocations {
        WatchAllocations::None => false,
        WatchAllocations::Live | WatchAllocations::One(_) => true,
    };
    let asked = [
        (*nodes, Call::WatchNodes),
        (allocations, Call::WatchAllocations),
        (*tenants, Call::WatchTenants),
        (*leases, Call::WatchLeases),
        (*vclusters, Call::WatchVClusters),
        (*domains, Call::WatchDomains),
        (*limits, Call::WatchLimits),
    ];
    asked.into_iter().filter_map(|(asked, call)| asked.then_some(call)).collect()
}

/// Starts a watch. `whose`: if set, only this node and its allocations are sent.
pub(super) fn open(core: Arc<Core>, wanted: WatchRequest, whose: Option<NodeId>) -> Result<Packets, Status> {
    if !*core.status.led.borrow() {
        return Err(Status::unavailable("this member has no leader"));
    }
    let (tx, rx) = mpsc::channel(DOWN_QUEUE);
    let tasks = core.tasks.clone();
    tasks.spawn(async move {
        // Reserved for the end, so that a watcher that reads nothing still finds the reason.
        let Ok(last) = tx.clone().try_reserve_owned() else { return };
        let watch = Watch { core: &core, wanted: &wanted, whose: whose.as_ref(), down: &tx };
        let ended = tokio::select! {
            () = tx.closed() => return,
            () = core.stop.cancelled() => Ended::CutOff(Status::unavailable("this member is stopping")),
            () = leaderless(&core) => Ended::CutOff(Status::unavailable("this member has no leader")),
            ended = watch.run() => match ended {
                Ok(never) => match never {},
                Err(ended) => ended,
            },
        };
        match ended {
            Ended::Gone => {}
            Ended::CutOff(status) => drop(last.send(Err(status))),
            Ended::Resync(why) => drop(last.send(pack(&WatchMessage::Resync { why }).map_err(Status::from))),
        }
    });
    Ok(Box::pin(ReceiverStream::new(rx)))
}

/// Returns when this member has had no leader for too long.
pub(super) async fn leaderless(core: &Core) {
    let mut led = core.status.led.clone();
    if led.wait_for(|led| !led).await.is_err() {
        // The sender is gone because the member is stopping, which is reported elsewhere.
        std::future::pending::<()>().await;
    }
}

struct Watch<'a> {
    core: &'a Core,
    wanted: &'a WatchRequest,
    /// If set, only this node and its allocations are sent.
    whose: Option<&'a NodeId>,
    down: &'a mpsc::Sender<Result<Packed, Status>>,
}

/// Everything watched, at one moment.
struct List {
    place: WatchCursor,
    nodes: Vec<Arc<Node>>,
    allocations: Vec<Arc<Allocation>>,
    tenants: Vec<Arc<Tenant>>,
    leases: Vec<(String, Lease)>,
    vclusters: Vec<Arc<VCluster>>,
    reservations: Vec<Arc<Reservation>>,
    domains: Vec<(DomainKey, u32)>,
    vni_pool: Option<VniPool>,
    limits: Option<ClusterLimits>,
    tenant_use: Vec<(String, DailyUse)>,
}

/// Created one by one as they are sent.
type Changes<'a> = Box<dyn Iterator<Item = Change> + Send + 'a>;

impl List {
    fn changes(self) -> Changes<'static> {
        let tenants = self.tenants.into_iter().map(|t| Change::Tenant(Box::new((*t).clone())));
        let leases = self.leases.into_iter().map(|(name, lease)| lease_change(&name, Some(&lease)));
        let nodes = self.nodes.into_iter().map(|n| Change::Node(Box::new((*n).clone())));
        let allocations = self.allocations.into_iter().map(|a| Change::Allocation(Box::new((*a).clone())));
        let vclusters = self.vclusters.into_iter().map(|v| Change::VCluster(Box::new((*v).clone())));
        let vclusters = vclusters.chain(self.reservations.into_iter().map(|r| Change::Reservation(Box::new((*r).clone()))));
        let pool = self.vni_pool.into_iter().map(Change::VniPool).chain(self.limits.into_iter().map(Change::Limits));
        let domains = self.domains.into_iter().map(|(key, vni)| domain_change(key, Some(vni)));
        let tenant_use =
            self.tenant_use.into_iter().map(|(tenant, of_tenant)| Change::TenantUse { tenant, days: of_tenant.since(0).collect() });
        Box::new(tenants.chain(tenant_use).chain(vclusters).chain(pool).chain(domains).chain(leases).chain(nodes).chain(allocations))
    }
}

/// A narrow watch that the member knows of until it is dropped.
struct Subscription<'a> {
    core: &'a Core,
    topic: Topic,
    narrow: Arc<Narrow>,
}

impl<'a> Subscription<'a> {
    fn to(core: &'a Core, topic: Topic) -> Self {
        let narrow = core.agreed.changes.narrow(topic.clone());
        Self { core, topic, narrow }
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        // Dropped first: `narrow_over` removes only dropped watches.
        self.narrow = Arc::default();
        self.core.agreed.changes.narrow_over(&self.topic);
    }
}

impl Watch<'_> {
    async fn run(&self) -> Result<Infallible, Ended> {
        match self.topic() {
            Some(topic) => {
                let subscription = Subscription::to(self.core, topic);
                self.run_narrow(&subscription.narrow).await
            }
            None => self.run_wide().await,
        }
    }

    /// The topic of a narrow watch; `None`: the watch is not narrow.
    fn topic(&self) -> Option<Topic> {
        if let Some(node) = self.whose {
            return Some(Topic::Node(node.clone()));
        }
        let WatchRequest { nodes, allocations, tenants, leases, vclusters, domains, limits, uid: _, since: _ } = self.wanted;
        match allocations {
            WatchAllocations::One(id) if !(*nodes || *tenants || *leases || *vclusters || *domains || *limits) => {
                Some(Topic::Allocation(*id))
            }
            WatchAllocations::One(_) | WatchAllocations::Live | WatchAllocations::None => None,
        }
    }

    async fn run_narrow(&self, narrow: &Narrow) -> Result<Infallible, Ended> {
        let mut place = self.begin().await?;
        let mut sent_at = Instant::now();
        loop {
            if let Some(first) = narrow.take() {
                place.revision = place.revision.max(Revision(first.0.saturating_sub(1)));
                loop {
                    let sets = self.after(place)?;
                    let Some(last) = sets.last() else { break };
                    place.revision = last.revision;
                    for set in &sets {
                        if self.send_changes(set).await? {
                            sent_at = Instant::now();
                        }
                    }
                }
                continue;
            }
            tokio::select! {
                () = narrow.notified() => {}
                () = sleep_until(sent_at + NARROW_MARK_AFTER) => {
                    if let Some(revision) = self.core.agreed.changes.taken_up_to(narrow) {
                        place.revision = place.revision.max(revision);
                        self.mark(place).await?;
                    }
                    sent_at = Instant::now();
                }
            }
        }
    }

    /// Sends the list, or the changes after the watcher's place; returns the place that it then has.
    async fn begin(&self) -> Result<WatchCursor, Ended> {
        match self.wanted.since {
            Some(since) => self.send_changes_since(since).await,
            None => self.send_list().await,
        }
    }

    async fn run_wide(&self) -> Result<Infallible, Ended> {
        let mut newer = self.core.agreed.changes.newer();
        // The place that was last sent to the watcher.
        let mut sent = self.begin().await?;
        let mut sent_at = Instant::now();
        let mut place = sent;
        loop {
            newer.mark_unchanged();
            let sets = self.after(place)?;
            for set in &sets {
                place.revision = set.revision;
                if self.send_changes(set).await? {
                    (sent, sent_at) = (place, Instant::now());
                }
            }
            let is_unsent = sent != place;
            if is_unsent && sent_at.elapsed() >= MARK_AFTER {
                self.mark(place).await?;
                (sent, sent_at) = (place, Instant::now());
            } else if sets.is_empty() {
                tokio::select! {
                    // The sender lives as long as the member.
                    _changed = newer.changed() => {}
                    () = sleep_until(sent_at + MARK_AFTER), if is_unsent => {}
                }
            }
        }
    }

    fn after(&self, place: WatchCursor) -> Result<Vec<Arc<ChangeSet>>, Ended> {
        self.core.agreed.changes.after(place, SETS_MAX).map_err(|compacted| {
            let (from, begins) = (place.revision, compacted.begins.revision);
            Ended::Resync(if compacted.begins.generation == place.generation {
                format!("changes after revision {from} are not kept any more; those after {begins} are")
            } else {
                recovered(compacted.begins, place)
            })
        })
    }

    /// The changes after `since`, up to now. Never an older state: this member first catches up
    /// with the watcher.
    async fn send_changes_since(&self, since: WatchCursor) -> Result<WatchCursor, Ended> {
        let now = || self.core.agreed.ledger().place();
        let behind = |what: String| Ended::CutOff(Status::unavailable(format!("this member lies behind the watcher: {what}")));
        let there = now();
        if there.generation > since.generation {
            return Err(Ended::Resync(recovered(there, since)));
        }
        if there.generation < since.generation {
            return Err(behind(format!("it is of generation {}, the watcher knows of {}", there.generation, since.generation)));
        }
        // The ledger may be ahead of what counts as applied: an entry counts when its audit records
        // are written, which happens after the ledger has it, and may wait for space on the disk.
        let is_known = there.revision >= since.revision;
        if !is_known && !self.core.applied(since.revision, CATCH_UP).await {
            return Err(behind(format!("it is at revision {}, the watcher at {}", now().revision, since.revision)));
        }
        let upto = now();
        let (mut place, mut read) = (since, 0);
        loop {
            let sets = self.after(place)?;
            let Some(last) = sets.last() else { break };
            place.revision = last.revision;
            read += sets.len();
            if read > NODE_RESUMED_MAX && self.whose.is_some() {
                return Err(Ended::Resync(format!("more than {NODE_RESUMED_MAX} entries since: the list is shorter")));
            }
            for set in &sets {
                self.send_changes(set).await?;
            }
        }
        // Entries after the last set changed nothing that can be watched.
        place.revision = place.revision.max(upto.revision);
        self.mark(place).await?;
        Ok(place)
    }

    /// The complete list.
    async fn send_list(&self) -> Result<WatchCursor, Ended> {
        let list = self.list();
        let place = list.place;
        let WatchCursor { generation, revision } = place;
        self.send(&WatchMessage::Start { generation, revision }).await?;
        self.send_all(revision, &mut *list.changes()).await?;
        Ok(place)
    }

    fn list(&self) -> List {
        // Changes are published while the ledger is locked for writing, so the list and the later
        // changes join exactly.
        let ledger = self.core.agreed.ledger();
        let allocations = match (&self.wanted.allocations, self.whose) {
            (WatchAllocations::None, _) => Vec::new(),
            (WatchAllocations::Live, Some(node)) => {
                let held = ledger.holdings(node).iter().map(|held| held.allocation);
                let its: BTreeSet<AllocationId> = held.chain(ledger.moved_allocations()).collect();
                its.into_iter()
                    .filter_map(|id| ledger.allocation(id))
                    .filter(|a| !a.state.is_terminal() && self.concerns(a))
                    .cloned()
                    .collect()
            }
            (WatchAllocations::Live, None) => {
                // As in the changes, ended work is included while it still holds shares.
                let holds = |a: &Allocation| !a.state.is_terminal() || !a.shares.all_released();
                ledger.allocations().filter(|a| holds(a) && self.concerns(a)).cloned().collect()
            }
            (WatchAllocations::One(id), _) => ledger.allocation(*id).filter(|a| self.concerns(a)).cloned().into_iter().collect(),
        };
        let nodes = match self.whose {
            _ if !self.wanted.nodes => Vec::new(),
            Some(node) => ledger.node(node).cloned().into_iter().collect(),
            None => ledger.nodes().cloned().collect(),
        };
        let tenants = if self.wanted.tenants { ledger.tenants().cloned().collect() } else { Vec::new() };
        let use_of = |tenant: &Arc<Tenant>| Some((tenant.name.clone(), ledger.tenant_use(&tenant.name)?.clone()));
        let tenant_use = tenants.iter().filter_map(use_of).collect();
        let leases = ledger.leases().filter(|_| self.wanted.leases).map(|(name, lease)| (name.to_owned(), lease.clone())).collect();
        let vclusters = if self.wanted.vclusters { ledger.vclusters().cloned().collect() } else { Vec::new() };
        let reservations = if self.wanted.vclusters { ledger.reservations().cloned().collect() } else { Vec::new() };
        let domains = ledger.domains().filter(|_| self.wanted.domains).map(|(key, domain)| (key.clone(), domain.vni)).collect();
        let vni_pool = self.wanted.domains.then(|| ledger.vni_pool());
        let limits = self.wanted.limits.then(|| ledger.cluster_limits());
        let place = ledger.place();
        List { place, nodes, allocations, tenants, leases, vclusters, reservations, domains, vni_pool, limits, tenant_use }
    }

    fn concerns(&self, allocation: &Allocation) -> bool {
        self.wants(allocation.id, allocation.owner.uid) && self.whose.is_none_or(|node| is_of_node(allocation, node.as_str()))
    }

    /// Whether the watch wants this allocation, on any node. `owner`: the owner's user id.
    fn wants(&self, allocation: AllocationId, owner: u32) -> bool {
        let which = match &self.wanted.allocations {
            WatchAllocations::None => false,
            WatchAllocations::Live => true,
            WatchAllocations::One(id) => allocation == *id,
        };
        which && self.wanted.uid.is_none_or(|uid| owner == uid)
    }

    /// The changes in a set that concern this watch. Quotas and vClusters come first, because
    /// claims depend on them.
    fn of<'b>(&'b self, set: &'b ChangeSet) -> Changes<'b> {
        let tenants = set.tenants.iter().filter(|_| self.wanted.tenants).map(|(name, tenant)| match tenant {
            Some(tenant) => Change::Tenant(Box::new((**tenant).clone())),
            None => Change::TenantDeleted(name.clone()),
        });
        let pool = set.vni_pool.filter(|_| self.wanted.domains).into_iter().map(Change::VniPool);
        let pool = pool.chain(set.limits.filter(|_| self.wanted.limits).into_iter().map(Change::Limits));
        let domains = set.domains.iter().filter(|_| self.wanted.domains).map(|(key, vni)| domain_change(key.clone(), *vni));
        let leases = set.leases.iter().filter(|_| self.wanted.leases).map(|(name, lease)| lease_change(name, lease.as_ref()));
        let use_of = |(tenant, days): &(String, Vec<DayUse>)| Change::TenantUse { tenant: tenant.clone(), days: days.clone() };
        let tenants = tenants.chain(set.tenant_use.iter().filter(|_| self.wanted.tenants).map(use_of));
        let vclusters = set.vclusters.iter().filter(|_| self.wanted.vclusters).map(|(name, vcluster)| match vcluster {
            Some(vcluster) => Change::VCluster(Box::new((**vcluster).clone())),
            None => Change::VClusterDeleted(name.clone()),
        });
        let reservations = set.reservations.iter().filter(|_| self.wanted.vclusters).map(|(name, reservation)| match reservation {
            Some(reservation) => Change::Reservation(Box::new((**reservation).clone())),
            None => Change::ReservationDeleted(name.clone()),
        });
        let vclusters = vclusters.chain(reservations);
        let is_watched = |node: &NodeId| self.wanted.nodes && self.whose.is_none_or(|whose| whose == node);
        let changed = self.whose.map_or(&set.nodes[..], |node| set.node(node));
        let nodes = changed.iter().filter(|_| self.wanted.nodes).map(|n| Change::Node(Box::new((**n).clone())));
        let removed = set.nodes_removed.iter().filter(move |node| is_watched(node)).map(|node| Change::NodeRemoved(node.clone()));
        let nodes = nodes.chain(removed);
        let allocations = set.allocations.iter().filter(|a| self.concerns(a)).map(|a| Change::Allocation(Box::new((**a).clone())));
        let phases = set.phases.iter().filter_map(|p| self.phases(p)).map(|change| Change::Phases(Box::new(change)));
        let allocations = allocations.chain(phases);
        Box::new(tenants.chain(vclusters).chain(pool).chain(domains).chain(leases).chain(nodes).chain(allocations))
    }

    /// The changed phases for this watch. The agent of a node gets only those of its own share:
    /// otherwise each of ten thousand reports would go to ten thousand nodes.
    fn phases(&self, changed: &ChangedPhases) -> Option<PhasesChange> {
        if !self.wants(changed.change.id, changed.uid) {
            return None;
        }
        match self.whose {
            Some(node) => changed.of_node(node),
            None => Some(changed.change.clone()),
        }
    }

    /// Sends the changes in a set that concern this watch; returns false if there are none.
    async fn send_changes(&self, set: &ChangeSet) -> Result<bool, Ended> {
        let mut changes = self.of(set).peekable();
        if changes.peek().is_none() {
            return Ok(false);
        }
        self.send_all(set.revision, &mut changes).await?;
        Ok(true)
    }

    /// Sends that everything up to this place is known.
    async fn mark(&self, place: WatchCursor) -> Result<(), Ended> {
        self.send_all(place.revision, &mut std::iter::empty()).await
    }

    /// Sends changes that belong together, in parts of limited size.
    async fn send_all(&self, revision: Revision, all: &mut (dyn Iterator<Item = Change> + Send)) -> Result<(), Ended> {
        let (mut changes, mut bytes) = (Vec::new(), 0);
        for change in all {
            if bytes >= MESSAGE_BYTES {
                self.send(&WatchMessage::Changes { revision, changes: std::mem::take(&mut changes), complete: false }).await?;
                bytes = 0;
            }
            bytes += bytes_about(&change);
            changes.push(change);
        }
        self.send(&WatchMessage::Changes { revision, changes, complete: true }).await
    }

    async fn send(&self, message: &WatchMessage) -> Result<(), Ended> {
        let packed = pack(message).map_err(|e| Ended::CutOff(Status::from(e)))?;
        match timeout(PATIENCE, self.down.send(Ok(packed))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Ended::Gone),
            Err(_) => {
                let why = format!("the watcher is too slow: it took nothing for {} s", PATIENCE.as_secs());
                tracing::info!("{why}; it is cut off");
                Err(Ended::CutOff(Status::aborted(why)))
            }
        }
    }
}

fn recovered(there: WatchCursor, watcher: WatchCursor) -> String {
    format!("the quorum was recovered since: it is of generation {}, the watcher of {}", there.generation, watcher.generation)
}

fn lease_change(name: &str, lease: Option<&Lease>) -> Change {
    let Some(lease) = lease else { return Change::LeaseEnded(name.to_owned()) };
    Change::Lease(Box::new(LeaseStatus {
        name: name.to_owned(),
        holder: lease.holder.clone(),
        user: lease.user.as_ref().map(|u| u.name.clone()),
        token: lease.token,
        ttl_ms: lease.ttl_ms,
        left_ms: None,
        problem: None,
    }))
}

fn domain_change((tenant, name): DomainKey, vni: Option<u32>) -> Change {
    match vni {
        Some(vni) => Change::Domain { tenant, name, vni },
        None => Change::DomainReleased { tenant, name },
    }
}

fn bytes_about(change: &Change) -> usize {
    match change {
        Change::Node(node) => node_bytes(node),
        Change::Allocation(allocation) => allocation_bytes(allocation),
        Change::Phases(change) => phases_bytes(change),
        Change::TenantUse { days, .. } => 256 + days.len() * 32,
        Change::Reservation(reservation) => reservation_bytes(&reservation.name, Some(&**reservation)),
        Change::NodeRemoved(_)
        | Change::Tenant(_)
        | Change::TenantDeleted(_)
        | Change::Lease(_)
        | Change::LeaseEnded(_)
        | Change::VCluster(_)
        | Change::VClusterDeleted(_)
        | Change::ReservationDeleted(_)
        | Change::Domain { .. }
        | Change::DomainReleased { .. }
        | Change::VniPool(_)
        | Change::Limits(_) => 256,
    }
}
