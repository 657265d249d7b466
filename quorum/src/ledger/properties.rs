//! Random histories of commands, and what must hold after each of them.

use super::keyring::{CONFIGURED, Keyring, Secret};
use super::scenarios::{SIZE, id, node, registration, spec, user};
use super::signing::SignedHead;
use super::{
    Access, AccessKind, Action, Applied, AuditHead, Command, DomainKey, Ledger, NodeStanding, NotifyWay, OLD_SCHEDULER_LEASE, Outcome,
    QuotaChange, Registration, SCHEDULER_LEASE, TenantChange, VClusterChange, scheduler_lease,
};
use crate::history::ChangeSet;
use crate::pack;
use crate::wire::VniPoolChange;
use lattice_model::claim::ClaimShare;
use lattice_model::constraint::{CHECKPOINTS, LAUNCH_SHAPES, PREEMPTS, RUN_LEASE, TELEMETRY_DEBUG};
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, AskSignal, AuditAction, AuditRecord, CheckpointId, CheckpointPolicy,
    CheckpointRef, Claim, Connectivity, EndReason, EntryLaunch, Epoch, Exposed, HoldKind, MemberId, Node, NodeId, NodeReport, NodeState,
    OnIsolation, PreemptCause, Preemption, ReportItem, RequeuePolicy, Resources, Revision, SchedulerKind, TelemetryMode, Tenant, Timestamp,
    VCluster, VniPool, When,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NODES: u8 = 4;
const IDS: u128 = 24;
const TENANT: &str = "physics";
const VCLUSTER: &str = "small";

/// A move, made a command by looking at the ledger, so that most commands have an effect.
#[derive(Clone, Debug)]
enum Move {
    Submit {
        id: u128,
        nodes: u32,
        requeue: u8,
        max: u32,
        owner: u32,
        named: bool,
    },
    Cancel {
        id: u128,
        by: u32,
    },
    Claim {
        id: u128,
        nodes: Vec<u8>,
        half: bool,
        stale: u8,
    },
    Register {
        node: u8,
        boot: u128,
        memory: bool,
        new_life: bool,
    },
    Report {
        node: u8,
        id: u128,
        item: u8,
        old_epoch: bool,
        skip: u64,
    },
    State {
        node: u8,
        state: u8,
        stale: bool,
    },
    /// The scheduler's, for an agent, as either level has it; or one of the users' for one of them.
    Lease {
        holder: u8,
        old: bool,
        user: Option<u32>,
        named: bool,
    },
    Revoke {
        stale: bool,
    },
    Hold {
        node: u8,
        kind: HoldKind,
        lift: bool,
        /// In how many milliseconds it ends, or the drain's deadline is.
        ends: Option<u64>,
        reason: u8,
    },
    /// The leader's clock has looked.
    Due,
    Boot {
        node: u8,
    },
    Level {
        level: u32,
    },
    Tenant {
        max_nodes: QuotaChange,
        max_allocations: QuotaChange,
    },
    VCluster {
        nodes: Vec<u8>,
        tenant: bool,
        delete: bool,
    },
    Session {
        id: u128,
        owner: u32,
        delete: bool,
    },
    Release {
        stale: bool,
    },
    /// A pool of a few numbers.
    Pool {
        start: u32,
        size: u32,
        grace: u64,
    },
    /// Network domains whose time is over; or one gets another time.
    Domains {
        grace: Option<u64>,
    },
    Limits {
        sensitive: QuotaChange,
    },
    /// A node says what it is made of; or an operator accepts that, or the time to mend it is over.
    Conform {
        node: u8,
        kernel: u8,
        how: u8,
    },
    /// A node is to be wiped; or it says how that ended.
    Wipe {
        node: u8,
        how: u8,
    },
    /// Work is to give its nodes back, or one of its nodes is drained urgently; or what is held goes on.
    Preempt {
        id: u128,
        hold: bool,
        how: u8,
    },
    /// Work is measured more closely, or as usual, or its time is over.
    Telemetry {
        id: u128,
        how: u8,
    },
    /// Others were told of what happened.
    Notified {
        upto: u64,
    },
    /// A silent node's leases are over, or somebody vouches for its death; or leases get another length.
    Fence {
        node: u8,
        silent_ms: u64,
        how: u8,
    },
    Expire {
        stale: bool,
    },
    Access {
        id: u128,
        of: u128,
        long: bool,
    },
    Key {
        member: u64,
        key: u8,
    },
    Sign {
        member: u64,
        key: u8,
        back: u64,
    },
    /// A gossip key is added; or another one seals, or is retired, where that may be.
    Gossip {
        step: u8,
        number: u8,
    },
}

fn a_quota() -> impl Strategy<Value = QuotaChange> {
    prop_oneof![Just(QuotaChange::Keep), Just(QuotaChange::Unlimited), (2..6u32).prop_map(QuotaChange::AtMost)]
}

fn a_move() -> impl Strategy<Value = Move> {
    let (id, node, node_again) = (0..IDS, 0..NODES, 0..NODES);
    prop_oneof![
        3 => (id.clone(), 1..4u32, 0..3u8, 0..3u32, 1..3u32, prop::bool::weighted(0.15))
            .prop_map(|(id, nodes, requeue, max, owner, named)| Move::Submit { id, nodes, requeue, max, owner, named }),
        1 => (id.clone(), 0..3u32).prop_map(|(id, by)| Move::Cancel { id, by }),
        24 => (id.clone(), prop::collection::vec(node.clone(), 1..4), prop::bool::weighted(0.3), 0..12u8)
            .prop_map(|(id, nodes, half, stale)| Move::Claim { id, nodes, half, stale }),
        3 => (node.clone(), prop_oneof![4 => Just(1u128), 1 => Just(2u128)], any::<bool>(), any::<bool>())
            .prop_map(|(node, boot, memory, new_life)| Move::Register { node, boot, memory, new_life }),
        10 => (node.clone(), id, 0..16u8, prop::bool::weighted(0.1), prop_oneof![8 => Just(1u64), 1 => Just(0u64), 1 => Just(2u64)])
            .prop_map(|(node, id, item, old_epoch, skip)| Move::Report { node, id, item, old_epoch, skip }),
        // Mostly heard again.
        2 => (node.clone(), prop_oneof![3 => Just(0u8), 2 => 1..4u8], prop::bool::weighted(0.3)).prop_map(|(node, state, stale)| Move::State { node, state, stale }),
        6 => (node.clone(), any::<bool>(), prop_oneof![4 => Just(None), 1 => (1..3u32).prop_map(Some)], prop::bool::weighted(0.3))
            .prop_map(|(holder, old, user, named)| Move::Lease { holder, old, user, named }),
        1 => any::<bool>().prop_map(|stale| Move::Revoke { stale }),
        2 => (
            node.clone(),
            // A drain is what most depends on.
            prop_oneof![Just(HoldKind::Drain), prop::sample::select(HoldKind::ALL.to_vec())],
            prop::bool::weighted(0.8),
            prop_oneof![2 => Just(None), 1 => (1..100u64).prop_map(Some)],
            0..3u8,
        )
            .prop_map(|(node, kind, lift, ends, reason)| Move::Hold { node, kind, lift, ends, reason }),
        2 => Just(Move::Due),
        1 => node.prop_map(|node| Move::Boot { node }),
        1 => (0..=super::LEVEL_KNOWN).prop_map(|level| Move::Level { level }),
        1 => (a_quota(), a_quota()).prop_map(|(max_nodes, max_allocations)| Move::Tenant { max_nodes, max_allocations }),
        1 => (prop::collection::vec(node_again, 0..2), prop::bool::weighted(0.2), prop::bool::weighted(0.4))
            .prop_map(|(nodes, tenant, delete)| Move::VCluster { nodes, tenant, delete }),
        1 => (0..2u128, 0..3u32, prop::bool::weighted(0.2)).prop_map(|(id, owner, delete)| Move::Session { id, owner, delete }),
        1 => any::<bool>().prop_map(|stale| Move::Release { stale }),
        1 => any::<bool>().prop_map(|stale| Move::Expire { stale }),
        1 => (999..1004u32, 1..6u32, 0..60u64).prop_map(|(start, size, grace)| Move::Pool { start, size, grace }),
        4 => prop_oneof![3 => Just(None), 1 => (0..60u64).prop_map(Some)].prop_map(|grace| Move::Domains { grace }),
        1 => a_quota().prop_map(|sensitive| Move::Limits { sensitive }),
        1 => (0..NODES, 0..3u8, 0..8u8).prop_map(|(node, kernel, how)| Move::Conform { node, kernel, how }),
        1 => (0..NODES, 0..12u8).prop_map(|(node, how)| Move::Wipe { node, how }),
        1 => (0..300u64).prop_map(|upto| Move::Notified { upto }),
        4 => (0..IDS, any::<bool>(), 0..8u8).prop_map(|(id, hold, how)| Move::Preempt { id, hold, how }),
        2 => (0..IDS, 0..6u8).prop_map(|(id, how)| Move::Telemetry { id, how }),
        1 => (0..NODES, prop_oneof![Just(200_000u64), 0..9000u64], 0..4u8).prop_map(|(node, silent_ms, how)| Move::Fence { node, silent_ms, how }),
        1 => prop_oneof![
            (0..4u128, 0..IDS, prop::bool::weighted(0.1)).prop_map(|(id, of, long)| Move::Access { id, of, long }),
            (0..2u64, 0..3u8).prop_map(|(member, key)| Move::Key { member, key }),
            (0..2u64, 0..3u8, 0..4u64).prop_map(|(member, key, back)| Move::Sign { member, key, back }),
            (0..5u8, 0..4u8).prop_map(|(step, number)| Move::Gossip { step, number }),
        ],
    ]
}

/// The one checkpoint that an allocation makes here, again and again.
fn saved(allocation: &AllocationId) -> CheckpointId {
    CheckpointId(allocation.0)
}

fn half(of: Resources) -> Resources {
    Resources { cores: of.cores / 2, memory_bytes: of.memory_bytes / 2, gpus: of.gpus / 2 }
}

fn action(ledger: &Ledger, a_move: &Move) -> Action {
    let lease = ledger.leases().find(|(name, _)| [SCHEDULER_LEASE, OLD_SCHEDULER_LEASE].contains(name)).map(|(_, lease)| lease.clone());
    let token = lease.as_ref().map_or(0, |l| l.token);
    match a_move.clone() {
        Move::Submit { id: number, nodes, requeue, max, owner, named } => {
            let policy = [RequeuePolicy::Never, RequeuePolicy::OnNodeFailure, RequeuePolicy::Always][usize::from(requeue)];
            // One of the users asks for halves of nodes.
            let share = (owner == 2).then(|| half(SIZE));
            // Another one is of a tenant.
            let tenant = if owner == 1 { TENANT.to_owned() } else { String::new() };
            let vcluster = if named { VCLUSTER.to_owned() } else { String::new() };
            // Some name one of three domains, some offer a port, some are sensitive.
            let network_domain = ["", "a", "b", "c"][usize::try_from(number % 4).unwrap()].to_owned();
            let port = |port| Exposed { name: "api".into(), port, protocol: "tcp".into() };
            let expose = (number % 3 == 0).then(|| port(80)).into_iter().collect();
            let connectivity = Connectivity { network_domain, expose };
            let (session, sensitive) = (number % 2 == 0, number % 5 == 0);
            let on_isolation = if number % 6 == 1 { OnIsolation::Stop } else { OnIsolation::Continue };
            let checkpoint = (number % 3 == 1).then_some(CheckpointPolicy::by_signal(AskSignal::Usr1));
            let launch = EntryLaunch { keeps_on_bad_exit: number % 7 == 3, ..EntryLaunch::default() };
            let spec = AllocationSpec {
                share,
                tenant,
                vcluster,
                session,
                connectivity,
                sensitive,
                on_isolation,
                launch,
                checkpoint,
                ..spec(nodes, policy, max)
            };
            Action::Submit { id: id(number), spec: Box::new(spec), owner: user(owner), claim: None }
        }
        Move::Cancel { id: number, by } => Action::Cancel { id: id(number), by: user(by) },
        Move::Claim { id: number, nodes, half: small, stale } => {
            // Mostly one that waits, in a queue that is served, and not always the same: the first may get no number, or no room.
            let served = |a: &Allocation| {
                let queue = ledger.queue_of(&a.spec.vcluster);
                if queue == VCLUSTER { ledger.lease(&scheduler_lease(queue)).is_some() } else { lease.is_some() }
            };
            let waits = |a: &&Arc<Allocation>| a.state == AllocationState::Pending && stale > 3 && served(a);
            let waiting: Vec<_> = ledger.allocations().filter(waits).collect();
            let number = waiting.get(usize::from(nodes[0]) % waiting.len().max(1)).map_or(id(number), |a| a.id);
            let allocation = ledger.allocation(number);
            let wanted = allocation.map_or(1, |a| a.spec.nodes as usize);
            let label = allocation.map_or("", |a| &a.spec.vcluster);
            let own = |n: &u8| ledger.node(&node(*n)).is_none_or(|known| ledger.foreign(known, label).is_none());
            let own: Vec<u8> = (0..NODES).filter(|n| stale == 5 || own(n)).collect();
            let shares = nodes.iter().cycle().take(wanted).enumerate().map(|(at, n)| {
                // Mostly distinct nodes.
                let number = if stale == 0 { *n } else { own.get((usize::from(nodes[0]) + at) % own.len().max(1)).copied().unwrap_or(*n) };
                let known = ledger.node(&node(number)).map_or(Revision(0), |n| n.hold_revision);
                let hold_revision = if stale == 1 { Revision(known.0 + 1) } else { known };
                // Half of it is less than some asked for.
                let asked = allocation.map_or(SIZE, |a| a.spec.amount_of(&SIZE));
                ClaimShare { node: node(number), resources: if small { half(SIZE) } else { asked }, hold_revision }
            });
            let queue = scheduler_lease(ledger.queue_of(label));
            let token = ledger.lease(&queue).filter(|_| stale != 4).map_or(token, |l| l.token);
            Action::Claim(Claim {
                allocation: number,
                requeue_count: allocation.map_or(0, |a| a.requeue_count) + u32::from(stale == 2),
                lease_token: token + u64::from(stale == 3),
                shares: shares.collect(),
            })
        }
        Move::Register { node: number, boot, memory, new_life } => {
            // One that is being booted comes back booted.
            let away = ledger.node(&node(number)).filter(|n| matches!(n.state, NodeState::Booting | NodeState::Failed));
            let boot = away.map_or(boot, |n| 3 - n.boot.0.as_u128());
            let known = ledger.node(&node(number)).map_or(0, |n| n.incarnation.0);
            let found = ledger.holdings(&node(number)).first().map(|h| (h.allocation, h.epoch)).into_iter().collect();
            let found = (!memory && boot == 2).then_some(found);
            // One of them is of an older version.
            let all = [LAUNCH_SHAPES, RUN_LEASE, CHECKPOINTS, PREEMPTS, TELEMETRY_DEBUG].map(str::to_owned);
            let features = if number == 3 { vec![] } else { all.to_vec() };
            let wipes = number != 3;
            Action::Register(Registration {
                found,
                features,
                wipes,
                ..registration(number, boot, if memory { known } else { 0 }, new_life)
            })
        }
        Move::Report { node: number, id: of, item, old_epoch, skip } => {
            let known = ledger.node(&node(number));
            // Mostly about something that the node has.
            let held = ledger.holdings(&node(number)).first().map(|h| (h.allocation, h.epoch));
            let (allocation, epoch) = match held {
                Some(held) if item != 7 => held,
                _ => (id(of), ledger.allocation(id(of)).map_or(Epoch(0), |a| a.epoch)),
            };
            let epoch = Epoch(epoch.0.saturating_sub(u64::from(old_epoch)));
            let item = match item {
                0 | 1 | 7 => ReportItem::Prepared { allocation, epoch },
                2 => ReportItem::PrepareFailed { allocation, epoch, why: "x".into() },
                3 => ReportItem::Ended { allocation, epoch, reason: EndReason::Exited { code: 0 } },
                4 => ReportItem::Ended { allocation, epoch, reason: EndReason::Exited { code: 1 } },
                5 => ReportItem::Ended { allocation, epoch, reason: EndReason::NodeLost { node: node(number), why: "x".into() } },
                12 => {
                    let checkpoint = CheckpointRef { id: saved(&allocation), epoch, step: None, bytes: 1 };
                    ReportItem::Checkpointed { allocation, epoch, checkpoint }
                }
                13 => {
                    let saved = if skip == 0 { Err("x".to_owned()) } else { Ok(saved(&allocation)) };
                    ReportItem::Ended { allocation, epoch, reason: EndReason::Preempted { by: "x".into(), why: "x".into(), saved } }
                }
                14 => ReportItem::Ended { allocation, epoch, reason: EndReason::WalltimeSaved { checkpoint: saved(&allocation) } },
                15 => {
                    let asked = ledger.allocation(allocation).and_then(|a| a.preemption.as_ref()).map(|order| order.id);
                    ReportItem::NotPreempted { allocation, epoch, id: asked.unwrap_or(saved(&allocation)), why: "x".into() }
                }
                _ => ReportItem::Released { allocation, epoch },
            };
            let (incarnation, seq) = known.map(|n| (n.incarnation, n.report_seq)).unwrap_or_default();
            Action::Report(NodeReport { node: node(number), incarnation, seq: seq + skip, item })
        }
        Move::State { node: number, state, stale } => {
            let mut incarnation = ledger.node(&node(number)).map(|n| n.incarnation).unwrap_or_default();
            incarnation.0 -= u64::from(stale && incarnation.0 > 0);
            let state = [NodeState::Ready, NodeState::Degraded, NodeState::Down, NodeState::Failed][usize::from(state)];
            Action::NodeStates(vec![NodeStanding { node: node(number), incarnation, state, reason: "x".into() }])
        }
        Move::Lease { holder, user: None, named: true, .. } => {
            Action::GrantLease { name: scheduler_lease(VCLUSTER), holder: node(holder % 2), ttl_ms: 1000, user: None }
        }
        Move::Lease { holder, old: true, user: None, .. } => {
            Action::AcquireLease { name: OLD_SCHEDULER_LEASE.into(), holder: node(holder % 2), ttl_ms: 1000 }
        }
        Move::Lease { holder, user, .. } => {
            let name = if user.is_some() { "theirs" } else { SCHEDULER_LEASE };
            Action::GrantLease { name: name.into(), holder: node(holder % 2), ttl_ms: 1000, user: user.map(self::user) }
        }
        Move::Revoke { stale } => {
            let token = lease.map_or(0, |l| l.token) + u64::from(stale);
            Action::RevokeLease { name: SCHEDULER_LEASE.into(), token: Some(token), by: "root".into() }
        }
        Move::Hold { node: number, kind, lift: true, reason, .. } => {
            // Mostly one that stands.
            let stands = ledger.node(&node(number)).and_then(|n| n.holds.first()).filter(|_| reason > 0);
            Action::LiftHold { node: node(number), kind: stands.map_or(kind, |hold| hold.kind), by: "root".into(), until: None }
        }
        Move::Hold { node: number, kind, lift: false, ends, reason } => {
            let reason = format!("reason {reason}");
            let (until, deadline) = (ends.filter(|_| kind.may_end()), ends.filter(|_| kind == HoldKind::Drain));
            let (until, deadline) = (until.map(When::AfterMs), deadline.map(When::AfterMs));
            Action::SetHold { node: node(number), kind, by: "root".into(), reason, until, deadline }
        }
        Move::Due => {
            // A minute is short for a boot.
            let now = Timestamp(ledger.revision().0 * 20);
            let due = ledger.nodes_due(now, 60).into_iter().next();
            due.unwrap_or_else(|| Action::EndDrained { node: node(0), deadline: now })
        }
        Move::Boot { node: number } => {
            // Mostly one that may be.
            let may = ledger.nodes().find(|n| matches!(n.state, NodeState::Down | NodeState::Drained) && n.out_of_service().is_none());
            let booted = may.map_or(node(number), |n| n.id.clone());
            Action::BootNode { node: booted, by: "root".into(), reason: "x".into() }
        }
        Move::Level { level } => Action::RaiseLevel { level },
        Move::Tenant { max_nodes, max_allocations: max_concurrent_allocations } => {
            let create = ledger.tenant(TENANT).is_none();
            let change = TenantChange { name: TENANT.into(), create, max_nodes, max_concurrent_allocations };
            Action::SetTenant { change, by: "root".into() }
        }
        Move::VCluster { delete: true, .. } => Action::DeleteVCluster { name: VCLUSTER.into(), by: "root".into() },
        Move::VCluster { nodes, tenant, delete: false } => {
            let create = ledger.vcluster(VCLUSTER).is_none().then_some(SchedulerKind::InteractiveFifo);
            let tenant = Some(if tenant { TENANT.to_owned() } else { String::new() });
            let change = VClusterChange { name: VCLUSTER.into(), create, tenant, nodes: Some(nodes.into_iter().map(node).collect()) };
            Action::SetVCluster { change, by: "root".into() }
        }
        Move::Session { id: session, owner, delete } => {
            // Mostly in one that runs.
            let runs = ledger.allocations().find(|a| a.state == AllocationState::Running && (a.spec.session || owner == 0));
            let (allocation, by) = runs.map_or((id(session), user(owner)), |a| (a.id, a.owner.clone()));
            let session = uuid::Uuid::from_u128(session);
            if delete {
                Action::DeleteSession { id: session, allocation, by }
            } else {
                Action::CreateSession { id: session, allocation, by }
            }
        }
        Move::Release { stale } => Action::ReleaseLease { name: SCHEDULER_LEASE.into(), token: token + u64::from(stale), user: None },
        Move::Expire { stale } => {
            let renewed = lease.map_or(Revision(0), |l| l.renewed);
            Action::ExpireLease { name: SCHEDULER_LEASE.into(), token, renewed: Revision(renewed.0 + u64::from(stale)) }
        }
        Move::Pool { start, size, grace } => {
            let change = VniPoolChange { start: Some(start), end: Some(start + size), grace_ms: Some(grace) };
            Action::SetVniPool { change, by: "root".into() }
        }
        Move::Domains { grace: None } => Action::ReleaseDomains,
        Move::Domains { grace: Some(grace_ms) } => {
            Action::SetDomainGrace { domain: (TENANT.into(), "a".into()), grace_ms, by: "root".into() }
        }
        Move::Fence { node: number, how: 0, .. } => Action::ConfirmDead { node: node(number), by: "root".into(), reason: "x".into() },
        Move::Fence { silent_ms: ms, how: 1, .. } => Action::SetRunLease { ms },
        Move::Fence { node: number, silent_ms, .. } => {
            let incarnation = ledger.node(&node(number)).map(|n| n.incarnation).unwrap_or_default();
            Action::Fence { node: node(number), incarnation, silent_ms }
        }
        Move::Conform { node: number, how: 0, .. } => Action::AcceptDrift { node: node(number), by: "root".into(), reason: "x".into() },
        Move::Conform { node: number, how: 1, .. } => {
            let drift = ledger.node(&node(number)).and_then(|n| n.conformance.as_ref()).and_then(|c| c.drift.as_ref());
            Action::DriftOver { node: node(number), since: drift.map_or(Timestamp(0), |drift| drift.since) }
        }
        Move::Conform { node: number, kernel, .. } => {
            let incarnation = ledger.node(&node(number)).map(|n| n.incarnation).unwrap_or_default();
            let components = [("kernel".to_owned(), format!("6.{kernel}"))].into();
            Action::Conforms { node: node(number), incarnation, components }
        }
        Move::Wipe { node: number, how: how @ 0..=1 } => {
            Action::Wipe { node: node(number), by: "root".into(), reason: "x".into(), force: how == 0 }
        }
        Move::Wipe { node: number, how } => {
            let order = ledger.node(&node(number)).and_then(|n| n.wipe.as_ref()).map_or(0, |wipe| wipe.order);
            Action::Wiped { node: node(number), order, failed: (how == 3).then(|| "disk".to_owned()) }
        }
        Move::Preempt { id: number, how: 0, .. } => {
            let (by, reason, seed) = ("root".into(), "x".into(), uuid::Uuid::from_u128(number));
            Action::DrainUrgently { node: node(number as u8 % NODES), by, reason, deadline: None, seed }
        }
        Move::Preempt { id: number, how: 1..=3, .. } => {
            // Mostly one that is held.
            let held = ledger.allocations().find(|a| a.held && number > 2);
            let (allocation, by) = held.map_or((id(number), user(1)), |a| (a.id, a.owner.clone()));
            Action::Resume { allocation, by }
        }
        Move::Preempt { id: number, hold, .. } => {
            let has_nodes = ledger.allocations().find(|a| super::views::holds_nodes(a.state) && number > 2);
            let (allocation, by) = has_nodes.map_or((id(number), user(1)), |a| (a.id, a.owner.clone()));
            let epoch = ledger.allocation(allocation).map_or(Epoch(0), |a| a.epoch);
            let (name, reason, cause) = (by.name.clone(), "x".to_owned(), PreemptCause::Request);
            let order = Preemption { id: saved(&allocation), by: name, reason, cause, deadline_ms: 1000, hold, failed: None };
            Action::Preempt { allocation, epoch, by, order }
        }
        Move::Telemetry { how: 0, .. } => {
            let due = ledger.telemetry_due(Timestamp(u64::MAX)).into_iter().next();
            due.unwrap_or(Action::EndTelemetry { allocation: id(1), order: uuid::Uuid::nil() })
        }
        Move::Telemetry { id: number, how } => {
            let has_nodes = ledger.allocations().find(|a| super::views::holds_nodes(a.state) && number > 2);
            let (allocation, by) = has_nodes.map_or((id(number), user(1)), |a| (a.id, a.owner.clone()));
            let mode = if how == 1 { TelemetryMode::Prod } else { TelemetryMode::Debug };
            Action::SetTelemetry { allocation, by, id: uuid::Uuid::from_u128(u128::from(how) << 8 | number), mode, duration_ms: 5000 }
        }
        Move::Notified { upto } => Action::Notified { way: NotifyWay::Hook, upto },
        Move::Limits { sensitive } => Action::SetLimits { sensitive_pool_size: sensitive, by: "root".into() },
        Move::Access { id: number, of, long } => Action::RecordAccess(Access {
            id: uuid::Uuid::from_u128(number),
            by: user(0),
            kind: AccessKind::LogsRead,
            allocation: Some(id(of)),
            node: Some(node(0)),
            detail: "x".repeat(if long { 5000 } else { 5 }),
        }),
        Move::Key { member, key } => Action::SetSigningKey { member: MemberId(member), key: format!("{key:064x}") },
        Move::Sign { member, key, back } => {
            let head = ledger.audit_head();
            let (key, signature) = (format!("{key:064x}"), "0".repeat(128));
            // Also records that are not there yet, and ones that are signed.
            let seq = (head.seq + 1).saturating_sub(back);
            Action::SignHead(SignedHead { seq, hash: head.hash.clone(), member: MemberId(member), key, signature })
        }
        Move::Gossip { step, number } => match step {
            0 => Action::AddKey { secret: Secret([number; 32]), by: "root".into() },
            1 => Action::SealWithKey { id: ledger.keyring().newest() },
            2 => Action::RetireKey { id: ledger.keyring().keys.first().map_or(0, |key| key.id) },
            3 => Action::SealWithKey { id: number.into() },
            _ => Action::RetireKey { id: number.into() },
        },
    }
}

/// Shares of a node never exceed it.
fn invariant_nodes_are_never_oversubscribed(ledger: &Ledger) {
    for known in ledger.nodes() {
        assert!(known.size.holds(&ledger.held(&known.id)), "{}", known.id);
    }
}

/// A claim that stands holds exactly its shares; nothing else counts as standing; the rest is shown as leaving.
fn invariant_one_live_claim_for_each_allocation(ledger: &Ledger) {
    for allocation in ledger.allocations() {
        let live = |node: &Node| {
            let holds = ledger.holdings(&node.id).iter().filter(|h| h.allocation == allocation.id);
            holds.filter(|h| ledger.is_live(h.allocation, h.epoch)).count()
        };
        let counts: Vec<usize> = ledger.nodes().map(|n| live(n)).collect();
        assert!(counts.iter().all(|c| *c <= 1));
        let holding: BTreeSet<_> = ledger.nodes().filter(|n| live(n) == 1).map(|n| n.id.clone()).collect();
        let stands = matches!(allocation.state, AllocationState::Staging | AllocationState::Running);
        let shares: BTreeSet<_> = allocation.nodes().filter(|_| stands).cloned().collect();
        assert_eq!(holding, shares, "{allocation:?}");
        assert_eq!(allocation.state.is_without_nodes(), allocation.shares.is_empty() && !allocation.state.is_terminal());
        assert!(!allocation.held || allocation.state == AllocationState::Suspended, "{allocation:?}");
        assert!(allocation.preemption.is_none() || stands, "{allocation:?}");
        assert!(allocation.telemetry.is_none() || stands, "{allocation:?}");
        for share in allocation.nodes().flat_map(|node| ledger.desired(node).shares).filter(|share| share.allocation == allocation.id) {
            assert_eq!(share.telemetry, allocation.telemetry, "each of its nodes is told");
        }
        // Whoever is suspended and was not held has something to go on from.
        let begun = allocation.state == AllocationState::Suspended && !allocation.held;
        assert!(!begun || allocation.checkpoint.is_some() || allocation.preempted_count > 0, "{allocation:?}");
    }
    let closely: BTreeSet<_> = ledger.allocations().filter(|a| a.telemetry.is_some()).map(|a| a.id).collect();
    assert_eq!(closely, ledger.closely, "the leader's clock looks at all of them, and at no others");
    for known in ledger.nodes() {
        let leaving: Vec<_> = ledger
            .holdings(&known.id)
            .iter()
            .filter(|h| !ledger.is_live(h.allocation, h.epoch))
            .map(|h| (h.allocation, h.epoch, h.resources))
            .collect();
        assert_eq!(known.leaving.iter().map(|l| (l.allocation, l.epoch, l.resources)).collect::<Vec<_>>(), leaving);
    }
}

/// Who names a domain and has nodes is in it, under a number that no other domain has and that no node may still use for another.
fn invariant_each_domain_has_a_number_of_its_own(ledger: &Ledger) {
    let mut numbers = BTreeMap::new();
    for (key, domain) in ledger.domains() {
        assert!(numbers.insert(domain.vni, key).is_none(), "two domains have VNI {}", domain.vni);
        let stands = |a: &&Arc<Allocation>| matches!(a.state, AllocationState::Staging | AllocationState::Running);
        let named = ledger.allocations().filter(stands).filter(|a| super::domain_of(&a.spec).as_ref() == Some(key));
        let named: BTreeSet<AllocationId> = named.inspect(|a| assert_eq!(a.vni, Some(domain.vni))).map(|a| a.id).collect();
        assert_eq!((&named, named.is_empty()), (&domain.members, domain.idle_since.is_some()));
    }
    for known in ledger.nodes() {
        for held in ledger.holdings(&known.id) {
            let key = ledger.allocation(held.allocation).and_then(|a| super::domain_of(&a.spec));
            assert_eq!(held.vni.and_then(|vni| numbers.get(&vni).copied()), key.as_ref(), "{held:?}");
        }
    }
}

/// What must not run twice was known to be over everywhere when it was claimed anew; what is fenced is no claim that stands.
fn invariant_what_stops_is_claimed_when_it_is_over(before: &Ledger, claimed: Option<&Allocation>, after: &Ledger) {
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

/// What is offered is offered by what runs, and all of that is.
fn invariant_services_are_of_what_runs(ledger: &Ledger) {
    let runs: BTreeSet<AllocationId> = ledger.allocations().filter(|a| super::services::offers(a)).map(|a| a.id).collect();
    assert_eq!(ledger.offering, runs);
    let found: BTreeSet<AllocationId> = ledger.endpoints("api", None, usize::MAX).iter().map(|e| e.allocation).collect();
    assert_eq!(found, runs);
}

/// There are more nodes for sensitive use than before only up to the limit.
fn invariant_sensitive_nodes_are_limited(before: &Ledger, after: &Ledger) {
    let (was, now) = (before.limits().sensitive_nodes, after.limits());
    assert!(now.sensitive_nodes <= was || now.limits.sensitive_pool_size.is_none_or(|limit| now.sensitive_nodes <= limit));
}

/// What is signed is there, lies before its signature, and is signed with a key that is on record.
fn invariant_only_keys_on_record_sign_what_is_there(ledger: &Ledger, applied: &Applied) {
    let signing = ledger.signing();
    assert!(signing.upto <= signing.last && signing.last <= ledger.audit_head().seq);
    for signed in applied.audit.iter().filter_map(SignedHead::of) {
        assert_eq!((signed.seq, signing.keys.get(&signed.member)), (signing.upto, Some(&signed.key)));
    }
}

/// Tokens rise over all leases; a user's lease is never the agents' own; the level never falls.
fn invariant_leases_are_fenced(before: &Ledger, after: &Ledger) {
    assert!(before.level() <= after.level());
    assert!(before.lease_token <= after.lease_token);
    let mut tokens = BTreeSet::new();
    for (name, lease) in after.leases() {
        assert!(lease.token <= after.lease_token && tokens.insert(lease.token), "{name}");
        assert!(lease.user.is_none() || !name.starts_with("scheduler"), "{name}");
        match before.leases().find(|(n, _)| *n == name) {
            Some((_, was)) if was.token == lease.token => assert_eq!((&was.holder, &was.user), (&lease.holder, &lease.user)),
            Some(_) | None => {
                assert!(lease.token > before.lease_token, "{name}: a new grant has a new token");
                let held = after.node(&lease.holder).is_some_and(|n| !n.holds.is_empty());
                assert!(!held || name == OLD_SCHEDULER_LEASE, "{name} was given to a node under a hold");
            }
        }
    }
}

/// Two keys at most, with rising ids. Whoever is a step behind opens what those in front seal, and the other way round; and
/// whoever must hear of the step is told.
fn invariant_gossip_keys_follow_each_other(before: &Ledger, after: &Ledger, applied: &Applied) {
    let (was, now) = (before.keyring(), after.keyring());
    assert_eq!(applied.changed.keyring, was != now);
    assert!(now.keys.len() <= 2 && now.keys.is_sorted_by(|a, b| a.id < b.id) && was.newest() <= now.newest(), "{now:?}");
    // Without a ring there is the configured key alone.
    let opens = |ring: &Keyring, id: u32| if ring.is_empty() { id == CONFIGURED } else { ring.keys.iter().any(|key| key.id == id) };
    assert!(opens(now, now.seals) && opens(was, now.seals) && opens(now, was.seals), "{was:?} {now:?}");
}

/// A vCluster counts its nodes, nodes know their vCluster, and a claim keeps to the nodes of its queue.
fn invariant_homes_are_kept(ledger: &Ledger, claimed: Option<&Allocation>) {
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

/// A session is its allocation's one, where that runs and is held for it, and its owner's.
fn invariant_sessions_are_of_what_runs(ledger: &Ledger) {
    for session in ledger.sessions() {
        let of = ledger.allocation(session.allocation).unwrap();
        assert!(of.state == AllocationState::Running && of.spec.session, "{session:?} of {of:?}");
        assert_eq!((session.uid, Some(&session.node)), (of.owner.uid, of.nodes().next()));
    }
}

/// A refusal changes nothing but the revision.
fn invariant_refusals_change_nothing(before: &Ledger, after: &Ledger, applied: &Applied) {
    if applied.result.is_err() {
        let mut same = before.clone();
        same.revision = after.revision;
        assert_eq!(same, *after);
        assert_eq!((&applied.audit[..], &applied.changed), (&[][..], &super::Changed::default()));
    }
}

/// A node stands where its holds and what is on it say; nothing is placed under a hold; the first reason stays in front.
fn invariant_holds_hold(before: &Ledger, after: &Ledger, claimed: Option<&Allocation>) {
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
            assert!(now.is_none_or(|now| now.reason.starts_with(&hold.reason) && now.by == hold.by), "{hold:?} {now:?}");
            // Nobody's hold is shortened by somebody else's.
            assert!(now.is_none_or(|now| now.until.is_none() || now.until >= hold.until && hold.until.is_some()), "{hold:?} {now:?}");
        }
    }
    for node in claimed.iter().flat_map(|a| a.nodes()) {
        let known = before.node(node).unwrap();
        assert!(known.holds.is_empty() && known.state == NodeState::Ready, "{known:?} was claimed");
    }
}

/// Whoever watches hears of everything that is different.
fn invariant_changes_are_told(before: &Ledger, after: &Ledger, applied: &Applied) {
    for allocation in after.allocations() {
        if before.allocation(allocation.id) != Some(allocation) {
            assert!(applied.changed.allocations.contains(&allocation.id));
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
        // What is no longer leaving is no news to the node that said so.
        let (was, leaving) = (before.desired(&known.id).leaving, after.desired(&known.id).leaving);
        if leaving.iter().any(|claim| !was.contains(claim)) {
            assert!(applied.changed.desired.contains(&known.id), "{}", known.id);
        }
    }
}

/// A tenant that has more than before is within its quotas. Counted from the allocations, each time anew.
fn invariant_no_claim_exceeds_a_quota(before: &Ledger, after: &Ledger) {
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

struct History {
    commands: Vec<(Revision, Command)>,
    states: Vec<Ledger>,
    audit: Vec<AuditRecord>,
    claims: usize,
}

fn play(moves: &[Move]) -> History {
    let mut ledger = Ledger::default();
    let mut history = History { commands: vec![], states: vec![ledger.clone()], audit: vec![], claims: 0 };
    let mut last_epoch = Epoch(0);
    let mut head = AuditHead::default();
    // A cluster with a scheduler, so that claims have a chance.
    let join = |node| Move::Register { node, boot: 1, memory: false, new_life: true };
    let beginning: Vec<Move> = (0..NODES)
        .map(join)
        .chain([Move::Level { level: super::LEVEL_KNOWN }, Move::Lease { holder: 0, old: false, user: None, named: false }])
        .chain([Move::Fence { node: 0, silent_ms: 3000, how: 1 }])
        .collect();
    for (index, a_move) in (1u64..).zip(beginning.iter().chain(moves)) {
        // Two commands share an entry.
        let revision = Revision(index / 2 + 1);
        let command = Command { at: Timestamp(index * 10), action: action(&ledger, a_move) };
        let before = ledger.clone();
        let applied = ledger.apply(revision, &command);
        invariant_nodes_are_never_oversubscribed(&ledger);
        invariant_one_live_claim_for_each_allocation(&ledger);
        invariant_refusals_change_nothing(&before, &ledger, &applied);
        invariant_changes_are_told(&before, &ledger, &applied);
        invariant_only_keys_on_record_sign_what_is_there(&ledger, &applied);
        invariant_leases_are_fenced(&before, &ledger);
        invariant_gossip_keys_follow_each_other(&before, &ledger, &applied);
        let claimed = match &command.action {
            Action::Claim(claim) if applied.result.is_ok() => ledger.allocation(claim.allocation),
            _ => None,
        };
        invariant_holds_hold(&before, &ledger, claimed.map(|a| &**a));
        invariant_sessions_are_of_what_runs(&ledger);
        invariant_what_stops_is_claimed_when_it_is_over(&before, claimed.map(|a| &**a), &ledger);
        invariant_homes_are_kept(&ledger, claimed.map(|a| &**a));
        invariant_each_domain_has_a_number_of_its_own(&ledger);
        invariant_services_are_of_what_runs(&ledger);
        invariant_sensitive_nodes_are_limited(&before, &ledger);
        if let Ok(Outcome::Claimed { epoch }) = applied.result {
            invariant_no_claim_exceeds_a_quota(&before, &ledger);
            assert!(epoch > last_epoch, "epochs rise");
            last_epoch = epoch;
            history.claims += 1;
        }
        for record in &applied.audit {
            head.follow(record).unwrap();
        }
        assert_eq!(&head, ledger.audit_head());
        history.audit.extend(applied.audit);
        history.commands.push((revision, command));
        history.states.push(ledger.clone());
    }
    history
}

/// What a watcher of everything has.
#[derive(Clone, Debug, PartialEq)]
struct Watcher {
    nodes: BTreeMap<NodeId, Node>,
    allocations: BTreeMap<AllocationId, Arc<Allocation>>,
    tenants: BTreeMap<String, Arc<Tenant>>,
    leases: BTreeMap<String, (NodeId, u64, u64)>,
    vclusters: BTreeMap<String, Arc<VCluster>>,
    domains: BTreeMap<DomainKey, u32>,
    vni_pool: VniPool,
}

impl Watcher {
    fn list(ledger: &Ledger) -> Self {
        Self {
            nodes: ledger.nodes().map(|n| (n.id.clone(), quiet(n))).collect(),
            allocations: ledger.allocations().map(|a| (a.id, Arc::clone(a))).collect(),
            tenants: ledger.tenants().map(|t| (t.name.clone(), Arc::clone(t))).collect(),
            leases: ledger.leases().map(|(name, l)| (name.to_owned(), (l.holder.clone(), l.token, l.ttl_ms))).collect(),
            vclusters: ledger.vclusters().map(|v| (v.name.clone(), Arc::clone(v))).collect(),
            domains: ledger.domains().map(|(key, domain)| (key.clone(), domain.vni)).collect(),
            vni_pool: ledger.vni_pool(),
        }
    }

    fn take(&mut self, set: &ChangeSet) {
        self.nodes.extend(set.nodes.iter().map(|n| (n.id.clone(), quiet(n))));
        self.allocations.extend(set.allocations.iter().map(|a| (a.id, Arc::clone(a))));
        for (name, tenant) in &set.tenants {
            match tenant {
                Some(tenant) => drop(self.tenants.insert(name.clone(), Arc::clone(tenant))),
                None => drop(self.tenants.remove(name)),
            }
        }
        for (name, vcluster) in &set.vclusters {
            match vcluster {
                Some(vcluster) => drop(self.vclusters.insert(name.clone(), Arc::clone(vcluster))),
                None => drop(self.vclusters.remove(name)),
            }
        }
        for (name, lease) in &set.leases {
            match lease {
                Some(l) => drop(self.leases.insert(name.clone(), (l.holder.clone(), l.token, l.ttl_ms))),
                None => drop(self.leases.remove(name)),
            }
        }
        for (key, vni) in &set.domains {
            match vni {
                Some(vni) => drop(self.domains.insert(key.clone(), *vni)),
                None => drop(self.domains.remove(key)),
            }
        }
        self.vni_pool = set.vni_pool.unwrap_or(self.vni_pool);
    }
}

/// Without its bookkeeping of reports, which nobody watches.
fn quiet(node: &Node) -> Node {
    Node { report_seq: 0, ..node.clone() }
}

fn replay(mut ledger: Ledger, commands: &[(Revision, Command)]) -> Ledger {
    for (revision, command) in commands {
        ledger.apply(*revision, command);
    }
    ledger
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_must_hold_holds_after_every_command(moves in prop::collection::vec(a_move(), 1..120)) {
        play(&moves);
    }

    #[test]
    fn replays_and_snapshots_give_the_same_state(moves in prop::collection::vec(a_move(), 1..80), cut in any::<prop::sample::Index>()) {
        let history = play(&moves);
        let cut = cut.index(history.commands.len() + 1);
        let prefix = replay(Ledger::default(), &history.commands[..cut]);
        prop_assert_eq!(&prefix, &history.states[cut]);
        let restored: Ledger = pack::from_bytes(&pack::to_bytes(&prefix).unwrap()).unwrap();
        prop_assert_eq!(&restored, &prefix);
        prop_assert_eq!(&replay(restored, &history.commands[cut..]), history.states.last().unwrap());
        // Commands mean the same after their way through the log.
        let through: Vec<(Revision, Command)> = history
            .commands
            .iter()
            .map(|(r, c)| (*r, pack::from_bytes(&pack::to_bytes(c).unwrap()).unwrap()))
            .collect();
        prop_assert_eq!(&through, &history.commands);
    }

    #[test]
    fn a_list_and_what_came_after_it_are_the_state_or_what_came_is_said_to_be_forgotten(
        moves in prop::collection::vec(a_move(), 1..80), bytes_max in 0..60_000usize, at_once in 1..4usize,
    ) {
        let mut ledger = Ledger::default();
        let mut history = crate::history::History::new(ledger.place());
        history.keep(bytes_max);
        let mut lists = vec![(ledger.place(), Watcher::list(&ledger))];
        for entry in play(&moves).commands.chunk_by(|one, next| one.0 == next.0) {
            let mut changed = super::Changed::default();
            entry.iter().for_each(|(revision, command)| changed.merge(ledger.apply(*revision, command).changed));
            let set = ChangeSet::of(&ledger, changed);
            if !set.is_empty() {
                history.push(set);
            }
            lists.push((ledger.place(), Watcher::list(&ledger)));
        }
        let (now, state) = lists.last().cloned().unwrap();
        prop_assert_eq!(history.after(now, 1).map(|sets| sets.len()), Ok(0));
        for (mut place, mut watcher) in lists {
            loop {
                match history.after(place, at_once) {
                    Ok(sets) => {
                        let Some(last) = sets.last() else {
                            prop_assert_eq!(&watcher, &state);
                            break;
                        };
                        prop_assert!(sets[0].revision > place.revision && sets.is_sorted_by(|a, b| a.revision < b.revision));
                        place.revision = last.revision;
                        sets.iter().for_each(|set| watcher.take(set));
                    }
                    Err(compacted) => {
                        prop_assert!(place < compacted.begins);
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn the_chain_breaks_on_any_changed_byte(
        moves in prop::collection::vec(a_move(), 20..60), which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), flip in 1..=255u8,
    ) {
        let mut audit = play(&moves).audit;
        prop_assume!(!audit.is_empty());
        let which = which.index(audit.len());
        let mut text = serde_json::to_vec(&audit[which]).unwrap();
        let at = at.index(text.len());
        text[at] ^= flip;
        // What is no record any more is noticed without the chain.
        let Ok(changed) = serde_json::from_slice::<AuditRecord>(&text) else { return Ok(()) };
        prop_assume!(changed != audit[which]);
        audit[which] = changed;
        let mut head = AuditHead::default();
        prop_assert!(audit.iter().any(|record| head.follow(record).is_err()) );
    }
}

#[test]
fn histories_are_not_idle() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let moves = prop::collection::vec(a_move(), 120);
    let histories: Vec<History> = (0..45).map(|_| play(&moves.new_tree(&mut runner).unwrap().current())).collect();
    let claims: usize = histories.iter().map(|history| history.claims).sum();
    assert!(claims > 60, "{claims} claims in 45 histories exercise little");
    let recorded = |action| histories.iter().flat_map(|history| &history.audit).filter(|record| record.action == action).count();
    let domains = [AuditAction::NetworkDomainCreated, AuditAction::NetworkDomainReleased].map(recorded);
    assert!(domains.iter().all(|count| *count > 3), "{domains:?} domains created and released in 45 histories exercise little");
    let states = |state: NodeState| {
        let stands = |ledger: &&Ledger| ledger.nodes().any(|n| n.state == state);
        histories.iter().flat_map(|history| &history.states).filter(stands).count()
    };
    for state in NodeState::ALL {
        assert!(states(state) > 3, "{state} in {} states of 45 histories exercises little", states(state));
    }
}
