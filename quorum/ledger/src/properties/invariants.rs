//! The invariants after each command.

use super::TENANT;
use crate::keyring::{CONFIGURED, Keyring};
use crate::signing::SignedHead;
use crate::{Applied, LEVEL_KNOWN, Ledger, WhichTasks};
use lattice_ledger_state::scaled_services::is_asked_to_leave;
use lattice_ledger_state::task_groups::GroupTasks;
use lattice_ledger_state::usage_records::Consumer;
use lattice_model::{
    Allocation, AllocationId, AllocationState, AuditAction, BudgetPeriod, DependencyCondition, Epoch, HoldKind, Node, NodeState,
    OnIsolation, ParentFacts, ParentState, Used,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The shares of a node never exceed it.
pub(super) fn invariant_nodes_are_never_oversubscribed(ledger: &Ledger) {
    for known in ledger.nodes() {
        assert!(known.size.holds(&ledger.held(&known.id)), "{}", known.id);
    }
}

/// A current claim holds exactly its shares; no other holding counts as current; the rest is listed
/// as leaving.
pub(super) fn invariant_one_live_claim_for_each_allocation(ledger: &Ledger) {
    for allocation in ledger.allocations() {
        let live = |node: &Node| {
            let holds = ledger.holdings(&node.id).iter().filter(|h| h.allocation == allocation.id);
            holds.filter(|h| ledger.is_live(h.allocation, h.epoch)).count()
        };
        let counts: Vec<usize> = ledger.nodes().map(|n| live(n)).collect();
        assert!(counts.iter().all(|c| *c <= 1));
        let holding: BTreeSet<_> = ledger.nodes().filter(|n| live(n) == 1).map(|n| n.id.clone()).collect();
        let holds_nodes = matches!(allocation.state, AllocationState::Staging | AllocationState::Running);
        let shares: BTreeSet<_> = allocation.nodes().filter(|_| holds_nodes).cloned().collect();
        assert_eq!(holding, shares, "{allocation:?}");
        assert_eq!(allocation.state.is_without_nodes(), allocation.shares.is_empty() && !allocation.state.is_terminal());
        assert!(!allocation.held || allocation.state.is_without_nodes(), "{allocation:?}");
        assert!(allocation.preemption.is_none() || holds_nodes, "{allocation:?}");
        assert!(allocation.telemetry.is_none() || holds_nodes, "{allocation:?}");
        for share in allocation.nodes().flat_map(|node| ledger.desired(node).shares).filter(|share| share.allocation == allocation.id) {
            assert_eq!(share.telemetry.as_ref(), allocation.telemetry.as_deref(), "each of its nodes gets the order");
        }
        // A suspended allocation that was not held has a checkpoint to continue from.
        let begun = allocation.state == AllocationState::Suspended && !allocation.held;
        assert!(!begun || allocation.checkpoint.is_some() || allocation.preempted_count > 0, "{allocation:?}");
    }
    for known in ledger.nodes() {
        let leaving: Vec<_> = ledger
            .holdings(&known.id)
            .iter()
            .filter(|h| !ledger.is_live(h.allocation, h.epoch))
            .map(|h| (h.allocation, h.epoch, h.resources, ledger.allocation(h.allocation).map(|a| a.owner.uid)))
            .collect();
        let shown = known.leaving.iter().map(|l| (l.allocation, l.epoch, l.resources, l.owner.as_ref().map(|owner| owner.uid)));
        assert_eq!(shown.collect::<Vec<_>>(), leaving);
    }
}

/// Every allocation with a domain and nodes is a member of that domain. No other domain has its VNI,
/// and no node may still use that VNI for another domain.
pub(super) fn invariant_each_domain_has_a_number_of_its_own(ledger: &Ledger) {
    let mut numbers = BTreeMap::new();
    for (key, domain) in ledger.domains() {
        assert!(numbers.insert(domain.vni, key).is_none(), "two domains have VNI {}", domain.vni);
        let holds_nodes = |a: &&Arc<Allocation>| matches!(a.state, AllocationState::Staging | AllocationState::Running);
        let named = ledger.allocations().filter(holds_nodes).filter(|a| crate::domain_of(&a.spec).as_ref() == Some(key));
        let named: BTreeSet<AllocationId> = named.inspect(|a| assert_eq!(a.vni, Some(domain.vni))).map(|a| a.id).collect();
        assert_eq!((&named, named.is_empty()), (&domain.members, domain.idle_since.is_some()));
    }
    for known in ledger.nodes() {
        for held in ledger.holdings(&known.id) {
            let key = ledger.allocation(held.allocation).and_then(|a| crate::domain_of(&a.spec));
            assert_eq!(held.vni.and_then(|vni| numbers.get(&vni).copied()), key.as_ref(), "{held:?}");
        }
    }
}

/// Work that must not run twice is claimed again only when it is known to have ended everywhere; a
/// fenced holding never belongs to a current claim.
pub(super) fn invariant_what_stops_is_claimed_when_it_is_over(before: &Ledger, claimed: Option<&Allocation>, after: &Ledger) {
    if let Some(claimed) = claimed.filter(|a| a.spec.on_isolation == OnIsolation::Stop) {
        let open = before.nodes().flat_map(|n| before.holdings(&n.id)).filter(|h| h.allocation == claimed.id && !h.fenced);
        assert_eq!(open.count(), 0, "{claimed:?}");
        assert!(
            claimed.nodes().all(|n| after.holdings(n).iter().all(|h| h.allocation != claimed.id || h.fenced || h.run_lease_ms.is_some()))
        );
    }
    for known in after.nodes() {
        assert!(after.holdings(&known.id).iter().all(|h| !h.fenced || !after.is_live(h.allocation, h.epoch)), "{known:?}");
    }
}

/// Every listed port is declared by a running allocation and is on one of its nodes; a lookup finds all
/// listed ports.
pub(super) fn invariant_services_are_of_what_runs(ledger: &Ledger) {
    for (id, rank, port) in &ledger.open_ports {
        let allocation = ledger.allocation(*id).expect("it is known");
        let declares = allocation.spec.connectivity.expose.iter().any(|exposed| exposed.port == *port);
        assert!(crate::services::offers(allocation) && declares && allocation.shares.get(*rank).is_some(), "{allocation:?}");
    }
    assert_eq!(ledger.endpoints("api", None, usize::MAX).len(), ledger.open_ports.len());
}

/// The number of nodes for sensitive work grows only up to the limit.
pub(super) fn invariant_sensitive_nodes_are_limited(before: &Ledger, after: &Ledger) {
    let (was, now) = (before.limits(before.time()).sensitive_nodes, after.limits(after.time()));
    assert!(now.sensitive_nodes <= was || now.limits.sensitive_pool_size.is_none_or(|limit| now.sensitive_nodes <= limit));
}

/// A signed record exists, precedes its signature, and is signed with a recorded key.
pub(super) fn invariant_only_keys_on_record_sign_what_is_there(ledger: &Ledger, applied: &Applied) {
    let signing = ledger.signing();
    assert!(signing.upto <= signing.last && signing.last <= ledger.audit_head().seq);
    for signed in applied.audit.iter().filter_map(SignedHead::of) {
        assert_eq!((signed.seq, signing.keys.get(&signed.member)), (signing.upto, Some(&signed.key)));
    }
}

/// A checkpoint of the audit chain never moves back, and never beyond the chain.
pub(super) fn invariant_the_audit_checkpoint_moves_forward(before: &Ledger, after: &Ledger) {
    let upto = |ledger: &Ledger| ledger.audit_checkpoint().map_or(0, |checkpoint| checkpoint.signed.seq);
    assert!(upto(before) <= upto(after) && upto(after) <= after.audit_head().seq);
}

/// Tokens increase across all leases; users' leases are never those of agents; the level never
/// decreases, and commands of the second level wait for it.
pub(super) fn invariant_leases_are_fenced(before: &Ledger, after: &Ledger) {
    assert!(before.level() <= after.level());
    assert!(before.lease_token <= after.lease_token);
    let mut tokens = BTreeSet::new();
    for (name, lease) in after.leases() {
        assert!(lease.token <= after.lease_token && tokens.insert(lease.token), "{name}");
        assert!(lease.user.is_none() || !name.starts_with("scheduler"), "{name}");
        assert!(!cfg!(debug_assertions) || !name.starts_with("trial/") || after.level() > LEVEL_KNOWN, "{name}");
        match before.leases().find(|(n, _)| *n == name) {
            Some((_, was)) if was.token == lease.token => assert_eq!((&was.holder, &was.user), (&lease.holder, &lease.user)),
            Some(_) | None => {
                assert!(lease.token > before.lease_token, "{name}: a new grant has a new token");
                let held = after.node(&lease.holder).is_some_and(|n| !n.holds.is_empty());
                assert!(!held, "{name} was given to a node under a hold");
            }
        }
    }
}

/// There are at most two keys, with increasing ids. Agents that are one step apart can decrypt each
/// other's messages; and every agent concerned is informed of the step.
pub(super) fn invariant_gossip_keys_follow_each_other(before: &Ledger, after: &Ledger, applied: &Applied) {
    let (was, now) = (before.keyring(), after.keyring());
    assert_eq!(applied.changed.keyring, was != now);
    assert!(now.keys.len() <= 2 && now.keys.is_sorted_by(|a, b| a.id < b.id) && was.newest() <= now.newest(), "{now:?}");
    // The agents concerned are informed of a revocation. No revocation is taken back, and each
    // requires another key.
    let revoked = |ledger: &Ledger| ledger.revocations().map(|(name, r)| (name.to_owned(), r.before)).collect::<BTreeMap<_, _>>();
    let (were, are) = (revoked(before), revoked(after));
    assert_eq!(applied.changed.revocations, were != are);
    assert!(were.iter().all(|(name, time)| are.get(name).is_some_and(|now| now >= time)), "{were:?} {are:?}");
    assert!(were == are || (after.needs_gossip_key() && are.values().all(|time| *time <= after.issue_time())), "{are:?}");
    // Without a keyring there is only the configured key.
    let opens = |ring: &Keyring, id: u32| if ring.is_empty() { id == CONFIGURED } else { ring.keys.iter().any(|key| key.id == id) };
    assert!(opens(now, now.seals) && opens(was, now.seals) && opens(now, was.seals), "{was:?} {now:?}");
}

/// A vCluster counts its nodes, nodes name their vCluster, and a claim uses only nodes available to
/// its queue.
pub(super) fn invariant_homes_are_kept(ledger: &Ledger, claimed: Option<&Allocation>) {
    let home = |name: &str| u32::try_from(ledger.nodes().filter(|n| n.home == name).count()).unwrap();
    for vcluster in ledger.vclusters() {
        assert_eq!(vcluster.nodes, home(&vcluster.name), "{vcluster:?}");
    }
    for known in ledger.nodes() {
        assert!(known.home.is_empty() || ledger.vcluster(&known.home).is_some(), "{known:?}");
    }
    if let Some(claimed) = claimed {
        let own = ledger.vcluster(&claimed.spec.vcluster).filter(|v| v.nodes > 0).map_or("", |v| v.name.as_str());
        assert!(claimed.nodes().all(|n| ledger.node(n).unwrap().home == own), "{claimed:?}");
    }
}

/// A record has the current states of its parents, unless a change has not reached it yet; nothing waits for
/// an impossible parent; and two allocations that exclude each other do not have nodes at the same time.
pub(super) fn invariant_dependencies_are_settled(ledger: &Ledger, claimed: Option<&Allocation>) {
    let holds = |id: AllocationId| ledger.nodes().flat_map(|n| ledger.holdings(&n.id)).any(|h| h.allocation == id && !h.fenced);
    let is_lane = |a: &Allocation, id: AllocationId| {
        a.lane.is_some_and(|lane| lane.group == id) || a.replica.as_deref().is_some_and(|replica| replica.service == id)
    };
    // The lanes of a task group count for it, and the replicas of a scaled service.
    let has_lanes = |id: AllocationId| ledger.allocations().any(|a| is_lane(a, id) && (!a.state.is_terminal() || holds(a.id)));
    let may_run = |id: AllocationId| holds(id) || has_lanes(id);
    for child in ledger.allocations().filter(|a| !a.state.is_terminal()) {
        for parent in child.dependencies.iter().flat_map(|all| &all.parents) {
            let Some(record) = ledger.allocation(parent.on) else {
                assert!(parent.state.is_final(), "{child:?} follows what is forgotten");
                continue;
            };
            let ended = Some(record.state).filter(|state| state.is_terminal());
            let ended_at = record.ended_at.filter(|_| ended.is_some());
            let facts = ParentFacts { ended, may_run: may_run(parent.on), begun_at: record.first_begun_at(), ended_at };
            let is = ParentState::of(parent.condition, facts);
            // The parent may have begun once and been requeued: its record does not show that any more.
            let is_right = parent.state == is || matches!(parent.state, ParentState::Begun | ParentState::Delayed { .. });
            assert!(is_right || ledger.unsettled.contains_key(&parent.on), "{parent:?} of {child:?} is {is:?}");
            let is_excluded = parent.condition == DependencyCondition::Mutex && may_run(parent.on);
            assert!(!is_excluded || !may_run(child.id), "{child:?} runs beside {}", parent.on);
            assert!(!child.state.is_without_nodes() || !parent.is_impossible(), "{child:?} waits in vain");
        }
    }
    let unmet = claimed.into_iter().flat_map(|a| &a.dependencies).flat_map(|all| &all.parents).find(|parent| !parent.is_met());
    assert!(unmet.is_none(), "{claimed:?} was claimed before {unmet:?}");
}

/// Each task of a group is in one set, a lane that holds tasks may still run, the lanes are within the
/// limit, and a group has ended when its tasks have.
pub(super) fn invariant_tasks_are_in_one_place(ledger: &Ledger) {
    for group in ledger.allocations().filter(|a| a.is_task_group()) {
        let spec = group.spec.tasks.as_ref().unwrap();
        let states = ledger.task_states(group.id, WhichTasks::All).unwrap();
        let sets = [&states.waiting, &states.leased].into_iter().chain(states.ended.values());
        let mut all: Vec<u32> = sets.flat_map(|set| set.iter()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..spec.indices.count()).collect::<Vec<_>>(), "{group:?}");
        let tasks = ledger.task_groups.get(&group.id).unwrap();
        let waiting = tasks.waiting_count + tasks.awaiting_count();
        assert_eq!((waiting, tasks.leased_count), (states.waiting.len(), states.leased.len()), "{group:?}");
        check_awaited_tasks(ledger, group, tasks);
        let lanes: Vec<_> = ledger.allocations().filter(|a| a.lane.is_some_and(|lane| lane.group == group.id)).collect();
        let live = lanes.iter().filter(|a| !a.state.is_terminal()).count();
        assert!(spec.concurrent_max.is_none_or(|most| live <= most as usize), "{group:?} has {live} lanes");
        for lane in lanes {
            let lease = tasks.lease(lane.lane.unwrap().number).filter(|lease| !lease.tasks.is_empty());
            assert!(lease.is_none() || ledger.holdings.unfenced_of(lane.id) > 0, "{lane:?} holds tasks and is gone");
        }
        assert!(!group.state.is_terminal() || tasks.unended_count() == 0, "{group:?}");
        assert!(group.state.is_terminal() || tasks.unended_count() > 0 || ledger.unsettled_groups.contains(&group.id), "{group:?}");
    }
    let mut waiting: BTreeMap<u32, u32> = BTreeMap::new();
    let is_part = |a: &&Arc<Allocation>| a.lane.is_some() || a.replica.is_some();
    for part in ledger.allocations().filter(is_part).filter(|a| a.state.is_without_nodes()) {
        *waiting.entry(part.owner.uid).or_default() += 1;
    }
    assert_eq!(ledger.lanes_waiting_of, waiting, "the lanes and replicas of each user that wait");
    let groups = ledger.allocations().filter(|a| a.is_task_group()).map(|a| a.id);
    assert!(ledger.task_groups.keys().copied().eq(groups), "every group has its tasks, and nothing else does");
}

/// A task that waits for tasks of other groups has a counterpart that has not ended, or whose end the
/// group does not know yet.
fn check_awaited_tasks(ledger: &Ledger, group: &Allocation, tasks: &GroupTasks) {
    let of_group = |on: AllocationId| Some((ledger.allocation(on)?.spec.tasks.clone()?, ledger.task_groups.get(&on)?));
    let parents = group.spec.depends_on.iter().filter(|on| on.condition == DependencyCondition::Corresponding);
    let parents: Vec<_> = parents.filter_map(|on| Some((on.on, of_group(on.on)?))).collect();
    let own = &group.spec.tasks.as_ref().unwrap().indices;
    for ordinal in 0..own.count() {
        let index = own.index_of(ordinal).unwrap();
        let unended = parents.iter().filter(|(on, (spec, of))| {
            let other = spec.indices.ordinal_of(index).filter(|other| !of.ended.values().any(|ended| ended.contains(*other)));
            other.is_some() || ledger.unsettled_tasks.contains(on)
        });
        let waits = tasks.awaiting().is_some_and(|awaiting| awaiting.contains(ordinal));
        assert!(!waits || unended.count() > 0, "task {index} of {group:?} waits in vain");
    }
}

/// A singleton that waits has a predecessor, which is the latest of the earlier ones that are not gone.
pub(super) fn invariant_singletons_wait_for_earlier_ones(ledger: &Ledger, claimed: Option<&Allocation>) {
    let is_gone = |a: &Allocation| ledger.name_place(a.id).is_none();
    let is_part = |a: &Allocation| a.lane.is_some() || a.replica.is_some();
    for singleton in ledger.allocations().filter(|a| a.spec.singleton && !is_part(a) && !a.state.is_terminal()) {
        let is_earlier = |a: &&Arc<Allocation>| {
            let is_alike = a.owner.uid == singleton.owner.uid && a.spec.name == singleton.spec.name && !is_part(a);
            is_alike && a.submission < singleton.submission && !is_gone(a)
        };
        let latest = ledger.allocations().filter(is_earlier).max_by_key(|a| a.submission).map(|a| a.id);
        let known = singleton.dependencies.as_ref().and_then(|all| all.predecessor);
        assert_eq!(known, latest, "{singleton:?}");
        assert!(claimed.is_none_or(|a| a.id != singleton.id) || known.is_none(), "{singleton:?} was claimed before {known:?} was gone");
    }
}

/// A service has the replicas that its record counts, each on another node, and as many as are wanted
/// unless something prevents that.
pub(crate) fn invariant_replicas_are_as_wanted(ledger: &Ledger) {
    for service in ledger.allocations().filter(|a| a.is_scaled_service()) {
        let (spec, state) = (service.spec.scaling.as_ref().unwrap(), service.scaling.as_ref().unwrap());
        let is_its = |a: &Allocation| a.replica.as_deref().is_some_and(|replica| replica.service == service.id);
        let replicas: Vec<_> = ledger.allocations().filter(|a| is_its(a)).collect();
        let count = |wanted: &dyn Fn(&Allocation) -> bool| u32::try_from(replicas.iter().filter(|a| wanted(a)).count()).unwrap();
        let has_nodes = |a: &Allocation| matches!(a.state, AllocationState::Staging | AllocationState::Running);
        let may_run = |a: &Allocation| a.state.is_terminal() && ledger.holdings.unfenced_of(a.id) > 0;
        let waiting = count(&|a| a.state.is_without_nodes());
        let running = count(&|a| has_nodes(a) && !is_asked_to_leave(a));
        let leaving = count(&|a| (has_nodes(a) && is_asked_to_leave(a)) || may_run(a));
        let serving = count(&|a| a.state == AllocationState::Running && !is_asked_to_leave(a));
        let expected = (waiting, running, serving, leaving);
        assert_eq!((state.waiting, state.running, state.serving, state.leaving), expected, "{service:?}");
        let numbers = ledger.scaled_services.get(&service.id).unwrap().counts();
        assert_eq!((numbers.waiting, numbers.running, numbers.serving, numbers.leaving), expected, "{service:?}");
        assert!(replicas.iter().all(|a| !a.held), "nobody would resume a replica of {service:?}");
        for known in ledger.nodes() {
            let there: BTreeSet<AllocationId> = ledger.holdings(&known.id).iter().map(|held| held.allocation).collect();
            let of_it = replicas.iter().filter(|a| there.contains(&a.id)).count();
            assert!(of_it <= 1, "{} has {of_it} replicas of {service:?}", known.id);
        }
        let is_capped = ledger.capped_groups.values().any(|groups| groups.contains(&service.id));
        let is_due = is_capped || ledger.unsettled_groups.contains(&service.id);
        if service.state.is_terminal() {
            assert!(is_due || waiting + running == 0, "{service:?} has ended");
            continue;
        }
        assert!((spec.replicas_min..=spec.replicas_max).contains(&state.wanted) && waiting + running <= spec.replicas_max, "{service:?}");
        let may_begin = !service.held && service.dependencies.as_ref().is_none_or(|all| all.are_met());
        let wanted = if may_begin { state.wanted } else { running };
        assert!(is_due || running <= state.wanted && waiting + running == wanted, "{service:?}");
    }
    let services = ledger.allocations().filter(|a| a.is_scaled_service()).map(|a| a.id);
    assert!(ledger.scaled_services.keys().copied().eq(services), "every service has its replicas, and nothing else does");
}

/// A session belongs to a running allocation that was submitted for a session and has the same owner.
pub(super) fn invariant_sessions_are_of_what_runs(ledger: &Ledger) {
    for session in ledger.sessions() {
        let of = ledger.allocation(session.allocation).unwrap();
        assert!(of.state == AllocationState::Running && of.spec.session, "{session:?} of {of:?}");
        assert_eq!((session.uid, Some(&session.node)), (of.owner.uid, of.nodes().next()));
    }
}

/// Nothing waits for ever: the leader's clock ends each wait, each delay and each exclusion of a node.
pub(super) fn invariant_waits_end(ledger: &Ledger) {
    let mut later = ledger.clone();
    let now = lattice_model::Timestamp(u64::MAX);
    later.apply(ledger.revision(), &crate::Command { at: now, action: crate::Action::EndWaits { now } }).result.unwrap();
    for allocation in later.allocations().filter(|a| !a.state.is_terminal()) {
        assert!(allocation.waits_until.is_none() && allocation.excluded.iter().all(|e| e.until.is_none()), "{allocation:?}");
        let mut parents = allocation.dependencies.iter().flat_map(|all| &all.parents);
        assert!(parents.all(|parent| parent.delayed_until().is_none()), "{allocation:?}");
    }
    assert!(!later.waits_are_due(now));
}

/// A refusal changes only the revision and the time.
pub(super) fn invariant_refusals_change_nothing(before: &Ledger, after: &Ledger, applied: &Applied) {
    if applied.result.is_err() {
        let mut same = before.clone();
        (same.revision, same.time) = (after.revision, after.time);
        assert_eq!(same, *after);
        assert_eq!((&applied.audit[..], &applied.changed), (&[][..], &crate::Changed::default()));
    }
}

/// A node's state matches its holds and its shares; a node under a hold gets no claim; a hold keeps
/// its first setter.
pub(super) fn invariant_holds_hold(before: &Ledger, after: &Ledger, claimed: Option<&Allocation>) {
    for known in after.nodes() {
        let (draining, empty) = (known.hold(HoldKind::Drain).is_some(), after.holdings(&known.id).is_empty());
        let disabled = known.out_of_service().is_some();
        match known.state {
            NodeState::Ready => assert!(!draining && !disabled, "{known:?}"),
            NodeState::Draining => assert!(draining && !empty && !disabled, "{known:?}"),
            NodeState::Drained => assert!(draining && empty && !disabled, "{known:?}"),
            NodeState::Down => {}
            NodeState::Degraded | NodeState::Booting | NodeState::Failed => assert!(!disabled, "{known:?}"),
        }
        for hold in before.node(&known.id).iter().flat_map(|was| &was.holds) {
            let now = known.hold(hold.kind).filter(|now| now.since == hold.since);
            assert!(now.is_none_or(|now| now.by == hold.by && now.more_reasons.len() >= hold.more_reasons.len()), "{hold:?} {now:?}");
            // Nobody can shorten a hold that somebody else has set.
            assert!(now.is_none_or(|now| now.until.is_none() || now.until >= hold.until && hold.until.is_some()), "{hold:?} {now:?}");
        }
    }
    for node in claimed.iter().flat_map(|a| a.nodes()) {
        let known = before.node(node).unwrap();
        assert!(known.holds.is_empty() && known.state == NodeState::Ready, "{known:?} was claimed");
    }
}

/// A watcher learns of everything that changed.
pub(super) fn invariant_changes_are_published(before: &Ledger, after: &Ledger, applied: &Applied) {
    for allocation in after.allocations() {
        if before.allocation(allocation.id) != Some(allocation) {
            let only_shares = applied.changed.shares.get(&allocation.id);
            assert!(applied.changed.allocations.contains(&allocation.id) != only_shares.is_some());
            if let (Some(changed), Some(before)) = (only_shares, before.allocation(allocation.id)) {
                assert_eq!(changed.previous_revision, before.revision);
                let mut same = Allocation { usage: allocation.usage.clone(), revision: allocation.revision, ..Allocation::clone(before) };
                for rank in &changed.ranks {
                    same.shares.set_phase_of_rank(*rank, allocation.shares.get(*rank).unwrap().phase);
                }
                assert_eq!(same, **allocation, "nothing else has changed");
            }
            assert_eq!(allocation.revision, after.revision);
        }
    }
    for known in after.nodes() {
        let quiet = before.node(&known.id).map(|n| Node { report_seq: known.report_seq, ..(**n).clone() });
        if quiet.as_ref() != Some(&**known) {
            assert!(applied.changed.nodes.contains(&known.id), "{known:?}");
            assert_eq!(known.revision, after.revision);
        }
        let asked = |ledger: &Ledger| (ledger.desired(&known.id).shares, ledger.desired(&known.id).wipe);
        if asked(before) != asked(after) {
            assert!(applied.changed.desired.contains(&known.id), "{}", known.id);
        }
        // A node needs no notice that a share it released has left its own list.
        let (was, leaving) = (before.desired(&known.id).leaving, after.desired(&known.id).leaving);
        if leaving.iter().any(|claim| !was.contains(claim)) {
            assert!(applied.changed.desired.contains(&known.id), "{}", known.id);
        }
    }
}

/// Only a node without work is removed; nothing of it is left, and its name can register again only
/// after an admission.
pub(super) fn invariant_removed_nodes_are_gone(before: &Ledger, after: &Ledger, applied: &Applied) {
    for gone in before.nodes().filter(|known| after.node(&known.id).is_none()) {
        let id = &gone.id;
        assert!(matches!(gone.state, NodeState::Drained | NodeState::Down), "{gone:?}");
        assert!(before.holdings(id).iter().all(|h| h.fenced && !before.is_live(h.allocation, h.epoch)), "{gone:?}");
        assert!(applied.changed.nodes.contains(id) && applied.changed.desired.contains(id), "{id}");
        assert!(after.leases().all(|(_, lease)| lease.holder != *id) && !after.awaits(id), "{id}");
        assert!(applied.audit.iter().any(|r| r.action == AuditAction::NodeRemoved && r.node.as_ref() == Some(id)), "{id}");
    }
    for (node, held) in after.holdings.iter() {
        assert!(held.is_empty() || after.node(node).is_some(), "{node} is removed and has {held:?}");
    }
    for known in after.nodes() {
        assert!(after.removal(&known.id).is_none() && after.removed.get(&known.id).is_none(), "{known:?}");
        if before.node(&known.id).is_none() {
            let admitted = before.removal(&known.id).is_none() || before.admitted.contains_key(&known.id);
            assert!(admitted, "{known:?}");
            let last = before.removal(&known.id).map_or(0, |removal| removal.incarnation.0);
            assert!(known.incarnation.0 > last, "{known:?}");
        }
    }
    for vcluster in after.vclusters() {
        let at_home = after.nodes().filter(|known| known.home == vcluster.name).count();
        assert_eq!(usize::try_from(vcluster.nodes).unwrap(), at_home, "{vcluster:?}");
    }
}

/// A tenant whose usage grew is within its quotas. Recounted from the allocations each time.
pub(super) fn invariant_no_claim_exceeds_a_quota(before: &Ledger, after: &Ledger) {
    let has = |ledger: &Ledger| {
        let live = |a: &&std::sync::Arc<lattice_model::Allocation>| {
            a.spec.tenant == TENANT && matches!(a.state, AllocationState::Staging | AllocationState::Running)
        };
        let live: Vec<_> = ledger.allocations().filter(live).cloned().collect();
        let nodes: BTreeSet<_> = live.iter().flat_map(|a| a.nodes().cloned()).collect();
        (u32::try_from(nodes.len()).unwrap(), u32::try_from(live.len()).unwrap())
    };
    let (Some(tenant), (nodes, allocations)) = (after.tenant(TENANT), has(after)) else { return };
    let was = has(before);
    assert!(nodes <= was.0 || tenant.max_nodes.is_none_or(|limit| nodes <= limit), "{tenant:?}: {nodes} nodes");
    let limit = tenant.max_concurrent_allocations;
    assert!(allocations <= was.1 || limit.is_none_or(|limit| allocations <= limit), "{tenant:?}: {allocations} allocations");
}

/// A claim puts no share beside a share of another owner. Nodes that held both before the policy was
/// set keep both.
pub(super) fn invariant_claims_follow_the_share_policy(after: &Ledger, epoch: Epoch) {
    let policy = after.cluster_limits().share_policy;
    let Some(claimed) = after.allocations().find(|a| a.epoch == epoch) else { return };
    for node in claimed.nodes() {
        for held in after.holdings(node) {
            let holder = after.allocation(held.allocation).expect("the record of an allocation that holds a node is kept");
            assert_eq!(policy.owner_of(claimed), policy.owner_of(holder), "{node} under {policy:?}");
        }
    }
}

/// No step raises a user's running allocations above the limit. The incremental count equals a
/// recount.
pub(super) fn invariant_users_run_what_they_may(before: &Ledger, after: &Ledger) {
    let running = |ledger: &Ledger| {
        let mut running: BTreeMap<u32, u32> = BTreeMap::new();
        for allocation in ledger.allocations().filter(|a| matches!(a.state, AllocationState::Staging | AllocationState::Running)) {
            *running.entry(allocation.owner.uid).or_default() += 1;
        }
        running
    };
    let (was, now) = (running(before), running(after));
    let most = after.cluster_limits().users.user_running;
    for (uid, count) in &now {
        let within = most.is_none_or(|most| *count <= most);
        assert!(within || *count <= was.get(uid).copied().unwrap_or_default(), "user {uid} runs {count} of {most:?}");
    }
    if let Some(counted) = after.running_of_users() {
        assert_eq!(counted, now);
    }
    assert!(after.has_right_counts(), "what is counted differs from what is there");
}

/// An ended allocation is kept while a node holds a part of itself for it, and `ended` has exactly
/// the ended allocations.
pub(super) fn invariant_ended_work_is_kept_while_it_is_held(before: &Ledger, after: &Ledger) {
    let held = after.nodes().flat_map(|node| after.holdings(&node.id)).map(|held| held.allocation);
    for id in held.filter(|id| before.allocation(*id).is_some()) {
        assert!(after.allocation(id).is_some(), "{id} is held, and its record is gone");
    }
    let ended: BTreeSet<_> = after.allocations().filter(|a| a.state.is_terminal()).map(|a| (a.ended_at, a.id)).collect();
    assert!(after.ended.iter().map(|place| (Some(place.ended_at), place.id)).eq(ended), "the order of the ends is another");
}

/// Every allocation without a record had ended by `forgotten.until`.
pub(super) fn invariant_what_is_dropped_is_said_to_be_forgotten(before: &Ledger, after: &Ledger) {
    assert!(after.forgotten.until >= before.forgotten.until && after.forgotten.too_early_until.is_none(), "{:?}", after.forgotten);
    for was in before.allocations().filter(|a| after.allocation(a.id).is_none()) {
        let ended_at = was.ended_at.unwrap_or(after.time());
        assert!(after.forgotten.until >= Some(ended_at), "{} ended at {ended_at}: {:?}", was.id, after.forgotten);
    }
}

/// Each end gets a number. The use of each user's ended work and of the former claims of live work adds up
/// to the recorded use of the user.
pub(super) fn invariant_each_end_is_accounted_with_its_use(before: &Ledger, after: &Ledger, applied: &Applied) {
    let ended = applied.audit.iter().filter(|record| record.action == AuditAction::AllocationEnded).count();
    assert_eq!(after.ends.last - before.ends.last, ended as u64);
    let numbers: Vec<u64> = after.ended_work_after(before.ends.last).map(|work| work.sequence).collect();
    assert!(!after.ends.are_kept() || numbers == (before.ends.last + 1..=after.ends.last).collect::<Vec<_>>(), "{numbers:?}");
    if !after.ends.are_kept() {
        return;
    }
    let mut sums: BTreeMap<u32, Used> = BTreeMap::new();
    let mut add = |uid: u32, used: Used| {
        let sum = sums.entry(uid).or_default();
        *sum = sum.plus(used);
    };
    after.ended_work_after(0).for_each(|work| add(work.uid, work.used));
    for (id, so_far) in &after.ends.used_so_far {
        let live = after.allocation(*id).filter(|allocation| !allocation.state.is_terminal());
        add(live.unwrap_or_else(|| panic!("{id} has ended")).owner.uid, so_far.used);
    }
    for uid in 0..10 {
        let recorded = after.usage_records.get(&Consumer::User(uid));
        let recorded = recorded.map(|record| record.days.within(after.time(), BudgetPeriod::DAYS_MAX)).unwrap_or_default();
        assert_eq!(sums.get(&uid).copied().unwrap_or_default(), recorded, "user {uid}");
    }
}

/// A command adds to the recorded use exactly the use of the attempts that it ended, from their start
/// until now.
pub(super) fn invariant_each_attempt_is_charged_once(before: &Ledger, after: &Ledger) {
    let holds_nodes = |a: &Allocation| matches!(a.state, AllocationState::Staging | AllocationState::Running);
    let mut want: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for was in before.allocations().filter(|a| holds_nodes(a)) {
        let continues = after.allocation(was.id).is_some_and(|now| holds_nodes(now) && now.epoch == was.epoch);
        let Some(started_at) = was.started_at.filter(|_| !continues) else { continue };
        let (ms, nodes) = (after.time().since_ms(started_at), was.shares.len() as u64);
        // Shares are halves of nodes with two GPUs.
        let halves = if was.spec.share.is_some() { nodes } else { 2 * nodes };
        let sum = want.entry(was.owner.uid).or_default();
        *sum = (sum.0 + ms * halves / 2, sum.1 + ms * halves);
    }
    let recorded = |ledger: &Ledger, consumer: Consumer| {
        let used = ledger.usage_records.get(&consumer).map(|record| record.days.within(after.time(), BudgetPeriod::DAYS_MAX));
        used.map_or((0, 0), |used| (used.node_ms, used.gpu_ms))
    };
    let added = |consumer: Consumer| {
        let (was, now) = (recorded(before, consumer.clone()), recorded(after, consumer));
        (now.0 - was.0, now.1 - was.1)
    };
    for uid in 0..10 {
        assert_eq!(added(Consumer::User(uid)), want.get(&uid).copied().unwrap_or_default(), "user {uid}");
    }
    // The user with id 1 submits under the tenant.
    assert_eq!(added(Consumer::Tenant(TENANT.to_owned())), want.get(&1).copied().unwrap_or_default());
}

/// A job number is assigned once, to one allocation or task, and numbers never decrease.
pub(super) fn invariant_job_numbers_are_given_once(before: &Ledger, after: &Ledger) {
    assert!(after.jobs() >= before.jobs());
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    for allocation in after.allocations() {
        let is_part = allocation.lane.is_some() || allocation.replica.is_some();
        assert_eq!(allocation.number == 0, is_part, "{:?}", allocation.id);
        match before.allocation(allocation.id) {
            Some(known) => assert_eq!(known.number, allocation.number),
            None => assert!(is_part || allocation.number > before.jobs()),
        }
        if !is_part {
            taken.insert(allocation.number, allocation.number + allocation.numbers_count());
        }
    }
    let numbered = after.allocations().filter(|allocation| allocation.number > 0).count();
    assert_eq!(taken.len(), numbered, "each has another first number");
    assert!(taken.values().zip(taken.keys().skip(1)).all(|(end, next)| end <= next), "{taken:?}");
    assert!(taken.values().all(|end| *end <= after.jobs() + 1));
}
