//! Counts and indexes equal a scan of everything. The scans here are independent of the code that
//! updates the counts.

use crate::{Action, DomainKey, DriftLimits, Ledger, NodeStateChange, holds};
use lattice_model::shares::ShareRef;
use lattice_model::{Allocation, AllocationId, AllocationState, HoldKind, NodeId, NodeState, ParentState, SharePhase, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All derived data equals a scan, after each command.
pub(crate) fn invariant_indexes_equal_scans(ledger: &Ledger) {
    let mut built = ledger.clone();
    built.holdings = rmp_serde::from_slice(&rmp_serde::to_vec_named(&ledger.holdings).unwrap()).unwrap();
    built.build_indexes();
    assert_eq!(built, *ledger, "built anew and kept");
    if let (Some(kept), Some(counted)) = (&ledger.user_usage.0, &built.user_usage.0) {
        assert_eq!(kept, counted);
    }
    assert_eq!(ledger.node_counts(), states(ledger.nodes().map(|node| node.state)));
    assert_eq!(ledger.allocation_counts(), states(ledger.allocations().map(|allocation| allocation.state)));
    assert_eq!(ledger.nodes_amiss(), amiss(ledger));
    assert_eq!(ledger.placing_waits_for(), waited_for(ledger));
    let down: Vec<_> = ledger.nodes().filter(|node| node.state == NodeState::Down).collect();
    assert_eq!(ledger.nodes_down().collect::<Vec<_>>(), down);
    the_latest_changes_are_those_of_the_nodes(ledger);
    usage_is_counted(ledger);
    vnis_are_counted(ledger);
    phases_are_counted(ledger);
    due_proposals_equal_scans(ledger);
}

fn states<S: Ord>(each: impl Iterator<Item = S>) -> Vec<(S, u32)> {
    let mut counts = BTreeMap::new();
    each.for_each(|state| *counts.entry(state).or_insert(0) += 1);
    counts.into_iter().collect()
}

fn amiss(ledger: &Ledger) -> [u32; 2] {
    let wipes = ledger.nodes().filter(|node| node.wipe.as_ref().is_some_and(|wipe| wipe.failed.is_some())).count();
    let drifts = ledger.nodes().filter_map(|node| node.conformance.as_ref()?.drift.as_ref()).filter(|drift| drift.overdue).count();
    [wipes, drifts].map(|count| u32::try_from(count).unwrap())
}

fn waited_for(ledger: &Ledger) -> Vec<NodeId> {
    let awaited = ledger.recovery().into_iter().flat_map(|recovery| &recovery.awaited);
    awaited.filter(|id| ledger.node(id).is_some_and(|node| !node.state.is_away())).cloned().collect()
}

fn the_latest_changes_are_those_of_the_nodes(ledger: &Ledger) {
    let revisions: BTreeSet<_> = ledger.nodes().map(|node| node.revision).chain([ledger.revision()]).collect();
    for revision in revisions {
        let found: BTreeSet<&NodeId> = ledger.nodes_changed_since(revision).map(|node| &node.id).collect();
        let scanned: BTreeSet<&NodeId> = ledger.nodes().filter(|node| node.revision >= revision).map(|node| &node.id).collect();
        assert_eq!(found, scanned);
    }
}

fn has_nodes(allocation: &Allocation) -> bool {
    matches!(allocation.state, AllocationState::Staging | AllocationState::Running)
}

/// The use of tenants and of sensitive work, and the waiting and running work of each vCluster.
fn usage_is_counted(ledger: &Ledger) {
    let running: Vec<&Arc<Allocation>> = ledger.allocations().filter(|allocation| has_nodes(allocation)).collect();
    let with_nodes = |user: Option<&str>| ledger.allocation_index.with_nodes(user).collect::<BTreeSet<_>>();
    let scanned = |user: Option<&str>| {
        let wanted = running.iter().filter(|allocation| user.is_none_or(|user| allocation.owner.name == user));
        wanted.map(|allocation| allocation.id).collect::<BTreeSet<_>>()
    };
    let users: BTreeSet<&str> = ledger.allocations().map(|allocation| allocation.owner.name.as_str()).collect();
    for user in users.into_iter().map(Some).chain([None, Some("nobody")]) {
        assert_eq!(with_nodes(user), scanned(user), "{user:?}");
    }
    let nodes_of = |wanted: &dyn Fn(&Allocation) -> bool| {
        running.iter().filter(|allocation| wanted(allocation)).flat_map(|allocation| allocation.nodes()).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(ledger.limits(ledger.time()).sensitive_nodes as usize, nodes_of(&|allocation| allocation.spec.sensitive));
    for status in ledger.tenant_statuses() {
        let name = &status.tenant.name;
        assert_eq!(status.nodes as usize, nodes_of(&|allocation| allocation.spec.tenant == *name));
        assert_eq!(status.allocations as usize, running.iter().filter(|allocation| allocation.spec.tenant == *name).count());
        let live = ledger.allocations().filter(|a| !a.state.is_terminal() && a.spec.tenant == *name).count();
        assert_eq!(ledger.allocation_index.live_of_tenant.get(name).map_or(0, |live| *live as usize), live);
    }
    let is_charged = |allocation: &&&Arc<Allocation>| allocation.started_at.is_some() && !allocation.spec.tenant.is_empty();
    let charged: BTreeSet<(String, AllocationId)> = running.iter().filter(is_charged).map(|a| (a.spec.tenant.clone(), a.id)).collect();
    assert!(ledger.allocation_index.charged.iter().eq(&charged), "the running work of tenants");
    for status in ledger.vcluster_statuses() {
        let name = &status.vcluster.name;
        let home = if name == "default" { "" } else { name };
        let nodes: BTreeSet<NodeId> = ledger.nodes().filter(|node| node.home == home).map(|node| node.id.clone()).collect();
        assert_eq!(status.nodes, nodes, "{name}");
        let queued: Vec<_> = ledger.allocations().filter(|a| ledger.queue_of(&a.spec.vcluster) == name).collect();
        let waits = |a: &&&Arc<Allocation>| matches!(a.state, AllocationState::Pending | AllocationState::Suspended) && !a.held;
        assert_eq!(status.pending as usize, queued.iter().filter(waits).count(), "{name}");
        assert_eq!(status.running as usize, queued.iter().filter(|a| has_nodes(a)).count(), "{name}");
        let live = ledger.allocations().filter(|a| !a.state.is_terminal() && a.spec.vcluster == *name).count();
        assert_eq!(ledger.allocation_index.queues.get(name).map_or(0, |queue| queue.live() as usize), live, "{name}");
    }
}

fn vnis_are_counted(ledger: &Ledger) {
    let held: Vec<(&NodeId, &crate::Holding)> =
        ledger.holdings.iter().flat_map(|(node, held)| held.iter().map(move |holding| (node, holding))).collect();
    let pool = ledger.vni_pool();
    let of_holdings: BTreeSet<u32> = held.iter().filter_map(|(_, holding)| holding.vni).collect();
    let used: BTreeSet<u32> = ledger.domains().map(|(_, domain)| domain.vni).chain(of_holdings.iter().copied()).collect();
    let vnis = &ledger.holdings.vnis;
    assert_eq!(vnis.used_of(&pool) as usize, used.iter().filter(|vni| pool.numbers().contains(vni)).count());
    assert_eq!(vnis.lowest_free(&pool), pool.numbers().find(|vni| !used.contains(vni)));
    for allocation in ledger.allocations() {
        let unfenced = held.iter().filter(|(_, holding)| holding.allocation == allocation.id && !holding.fenced).count();
        assert_eq!(ledger.holdings.unfenced_of(allocation.id), unfenced);
        assert_eq!(ledger.holdings.has_any_of(allocation.id), held.iter().any(|(_, holding)| holding.allocation == allocation.id));
    }
}

/// How many shares of an allocation are in each phase, and which rank a node has.
fn phases_are_counted(ledger: &Ledger) {
    for allocation in ledger.allocations() {
        let shares: Vec<ShareRef<'_>> = allocation.shares.iter().collect();
        for phase in [SharePhase::Claimed, SharePhase::Prepared, SharePhase::Released] {
            assert_eq!(allocation.shares.count(phase), shares.iter().filter(|share| share.phase == phase).count(), "{allocation:?}");
        }
        for node in ledger.nodes().map(|node| &node.id) {
            let found = shares.iter().find(|share| share.node == node);
            assert_eq!(allocation.shares.phase_of(node), found.map(|share| share.phase));
            let is_live = has_nodes(allocation) && found.is_some();
            assert_eq!(ledger.takes_part(node, allocation.id, allocation.epoch), is_live);
        }
    }
}

/// The proposals of the leader's clocks now and at some later times.
fn due_proposals_equal_scans(ledger: &Ledger) {
    let limits = DriftLimits { ordinary_ms: 100, sensitive_ms: 20 };
    for later in [0, 15, 120, 400_000, u64::MAX] {
        let now = Timestamp(ledger.time().0.saturating_add(later));
        assert_eq!(ledger.nodes_due(now, 60), nodes_due(ledger, now, 60));
        assert_eq!(ledger.drifts_due(now, limits), drifts_due(ledger, now, limits));
        assert_eq!(ledger.telemetry_due(now), telemetry_due(ledger, now));
        assert_eq!(ledger.domains_due(now), domains_due(ledger, now));
        assert_eq!(ledger.waits_are_due(now), waits_are_due(ledger, now));
    }
}

fn nodes_due(ledger: &Ledger, now: Timestamp, boot_ms: u64) -> Vec<Action> {
    let (mut due, mut late) = (Vec::new(), Vec::new());
    for node in ledger.nodes() {
        for hold in &node.holds {
            if let Some(until) = hold.until.filter(|until| *until <= now) {
                due.push(Action::LiftHold { node: node.id.clone(), kind: hold.kind, by: "quorum".to_owned(), until: Some(until) });
            }
        }
        let has_work = ledger.holdings(&node.id).iter().any(|h| ledger.is_live(h.allocation, h.epoch));
        if let Some(deadline) = node.hold(HoldKind::Drain).and_then(|hold| hold.deadline)
            && holds::drain_is_over(node, now)
            && has_work
        {
            due.push(Action::EndDrained { node: node.id.clone(), deadline });
        }
        if node.state == NodeState::Booting && now.since_ms(node.state_since) >= boot_ms {
            let reason = "it did not register under another boot id within 0 s".to_owned();
            late.push(NodeStateChange { node: node.id.clone(), incarnation: node.incarnation, state: NodeState::Failed, reason });
        }
    }
    due.extend((!late.is_empty()).then_some(Action::NodeStates(late)));
    due
}

fn drifts_due(ledger: &Ledger, now: Timestamp, limits: DriftLimits) -> Vec<Action> {
    let due = ledger.nodes().filter_map(|node| {
        let drift = node.conformance.as_ref()?.drift.as_ref().filter(|drift| !drift.overdue)?;
        let limit_ms = if drift.sensitive { limits.sensitive_ms } else { limits.ordinary_ms };
        (now.since_ms(drift.since) >= limit_ms).then(|| Action::DriftOver { node: node.id.clone(), since: drift.since })
    });
    due.collect()
}

fn telemetry_due(ledger: &Ledger, now: Timestamp) -> Vec<Action> {
    let orders = ledger.allocations().filter_map(|allocation| Some((allocation.id, allocation.telemetry.as_ref()?)));
    let over = orders.filter(|(_, order)| order.is_over(now));
    over.map(|(allocation, order)| Action::EndTelemetry { allocation, order: order.id }).collect()
}

fn domains_due(ledger: &Ledger, now: Timestamp) -> Vec<DomainKey> {
    let held: BTreeSet<u32> = ledger.holdings.iter().flat_map(|(_, held)| held).filter_map(|holding| holding.vni).collect();
    let due = ledger.domains().filter(|(_, domain)| {
        let grace_ms = domain.grace_ms.unwrap_or(ledger.vni_pool().grace_ms);
        let is_over = domain.idle_since.is_some_and(|since| now.since_ms(since) >= grace_ms);
        domain.members.is_empty() && is_over && !held.contains(&domain.vni)
    });
    due.map(|(key, _)| key.clone()).collect()
}

/// When the delays of an allocation end.
fn delays(allocation: &Allocation) -> impl Iterator<Item = Timestamp> {
    let begin = allocation.dependencies.as_ref().and_then(|all| all.begin);
    let parents = allocation.dependencies.iter().flat_map(|all| &all.parents);
    let delays = parents.filter_map(|parent| match parent.state {
        ParentState::Delayed { until, .. } => Some(until),
        ParentState::Unended | ParentState::HasNodes | ParentState::Begun | ParentState::Leaving(_) | ParentState::Ended(_) => None,
    });
    delays.chain(begin)
}

fn waits_are_due(ledger: &Ledger, now: Timestamp) -> bool {
    // The longest waits, in milliseconds; a later end was set by a clock that has gone back since.
    let is_over = |until: Timestamp, longest_ms| until <= now || until.since_ms(now) > longest_ms;
    let is_due = |allocation: &Allocation| {
        allocation.waits_until.is_some_and(|until| is_over(until, 5 * 60_000))
            || allocation.excluded.iter().filter_map(|excluded| excluded.until).any(|until| is_over(until, 30 * 60_000))
            || delays(allocation).any(|until| is_over(until, 366 * 86_400_000))
            || allocation.deadline_missed_at().is_some_and(|at| at <= now && !ledger.may_be_in_time(allocation.id))
            || allocation.next_mail_mark().is_some_and(|(at, _)| at <= now)
    };
    ledger.allocations().filter(|allocation| !allocation.state.is_terminal()).any(|allocation| is_due(allocation))
}
