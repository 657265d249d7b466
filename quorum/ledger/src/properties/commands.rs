//! Turns a move into a command that fits the current ledger.

use super::moves::Move;
use super::{NODES, TENANT};
use crate::keyring::Secret;
use crate::scenarios::{LimitsChange, SIZE, id, node, registration, spec, user};
use crate::signing::SignedHead;
use crate::{
    ACCOUNTING_LEASE, Access, AccessKind, Action, AllocationChange, Ledger, NodeStateChange, NotifyChannel, QuotaChange, Registration,
    SCHEDULER_LEASE, ScalingStep, TenantChange, UserLimitsChange, VClusterChange, VniPoolChange, scheduler_lease,
};
use lattice_ledger_state::user_usage::holds_nodes;
use lattice_model::claim::ClaimShare;
use lattice_model::constraint::{CHECKPOINTS, RUN_LEASE, TELEMETRY_AUDIT, TELEMETRY_DEBUG};
use lattice_model::end_reason::NotSaved;
use lattice_model::ended_work::AccountedUntil;
use lattice_model::scaling::Step;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Amount, CheckpointId, CheckpointPolicy, CheckpointRef, CheckpointSignal,
    Claim, Connectivity, Dependency, DependencyCondition, Drain, EndReason, EndedTasks, EntryLaunch, Epoch, Exposed, HoldKind, Incarnation,
    LaneReport, LaneReturn, MemberId, NodeReport, NodeState, OnIsolation, PreemptCause, Preemption, ReportItem, RequeuePolicy, Resources,
    Revision, ScaleMetric, ScalePolicy, Scaling, SchedulerKind, SharePolicy, TaskGroup, TaskIndices, TaskOutcome, TaskSet, TelemetryMode,
    Timestamp, When,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const VCLUSTER: &str = "small";

/// The id of the only checkpoint of an allocation in these tests, made repeatedly.
fn saved(allocation: &AllocationId) -> CheckpointId {
    CheckpointId(allocation.0)
}

fn half(of: Resources) -> Resources {
    Resources { cores: of.cores / 2, memory_bytes: of.memory_bytes / 2, gpus: of.gpus / 2 }
}

/// Whether the allocation with this number is a task group.
fn is_group(number: u128) -> bool {
    number % 6 == 5
}

/// Whether the allocation with this number is a scaled service.
fn is_service(number: u128) -> bool {
    number % 8 == 6
}

fn scaling() -> Scaling {
    let policy = ScalePolicy::new(ScaleMetric::CpuUtilization, Amount(500_000));
    let policy = ScalePolicy { interval_ms: 1000, up_window_ms: 1000, down_window_ms: 1000, cooldown_ms: 1000, ..policy };
    Scaling { replicas_min: 1, replicas_max: 3, policy: Some(policy), drain: Drain::default() }
}

/// Some allocations depend on earlier ones that exist.
fn dependencies(ledger: &Ledger, number: u128, owner: u32) -> Vec<Dependency> {
    if number % 4 != 3 || number < 8 {
        return vec![];
    }
    let named: BTreeSet<AllocationId> = [number - 8, number / 2, number - 1].map(id).into();
    let existing = named.into_iter().filter_map(|on| ledger.allocation(on));
    let delayed = DependencyCondition::AfterDelay { seconds: 3 };
    let conditions = DependencyCondition::ALL.into_iter().chain([delayed]).cycle().skip((number / 4) as usize);
    let dependency = |(parent, condition): (&Arc<Allocation>, DependencyCondition)| {
        let groups = [parent.is_task_group(), is_group(number)];
        let are_plain = !parent.is_group() && !is_group(number) && !is_service(number);
        let may = match condition {
            // Users exclude their own work alone, and no task groups and scaled services.
            DependencyCondition::Mutex => parent.owner == user(owner) && are_plain,
            DependencyCondition::Corresponding => parent.owner == user(owner) && groups == [true, true],
            DependencyCondition::Success
            | DependencyCondition::Failure
            | DependencyCondition::Any
            | DependencyCondition::After
            | DependencyCondition::AfterDelay { .. } => true,
        };
        Dependency { on: parent.id, condition: if may { condition } else { DependencyCondition::Any } }
    };
    existing.zip(conditions).map(dependency).collect()
}

/// Whether it is no lane and no replica.
fn is_whole(allocation: &Allocation) -> bool {
    allocation.lane.is_none() && allocation.replica.is_none()
}

pub(super) fn action(ledger: &Ledger, a_move: &Move) -> Action {
    let lease = ledger.lease(SCHEDULER_LEASE).cloned();
    let token = lease.as_ref().map_or(0, |l| l.token);
    match a_move.clone() {
        Move::Submit { id: number, nodes, requeue, max, owner, named } => {
            let policy = [RequeuePolicy::Never, RequeuePolicy::OnNodeFailure, RequeuePolicy::Always][usize::from(requeue)];
            // One of the users requests halves of nodes; the others sometimes do.
            let share = (owner == 2 || number % 4 == 2).then(|| half(SIZE));
            // Another user belongs to a tenant.
            let tenant = if owner == 1 { TENANT.to_owned() } else { String::new() };
            let vcluster = if named { VCLUSTER.to_owned() } else { String::new() };
            // Some allocations join one of three domains, some expose a port, some are sensitive.
            let network_domain = ["", "a", "b", "c"][usize::try_from(number % 4).unwrap()].to_owned();
            let port = |port| Exposed { name: "api".into(), port, protocol: "tcp".into() };
            let expose = (number % 3 == 0).then(|| port(80)).into_iter().collect();
            let connectivity = Connectivity { network_domain, expose };
            let scaling = is_service(number).then(|| Box::new(scaling()));
            let (session, sensitive) = (number % 2 == 0 && scaling.is_none(), number % 5 == 0);
            let on_isolation = if number % 6 == 1 { OnIsolation::Stop } else { OnIsolation::Continue };
            let checkpoint = (number % 3 == 1).then_some(CheckpointPolicy::by_signal(CheckpointSignal::USR1));
            let launch = EntryLaunch { keeps_on_bad_exit: number % 7 == 3, ..EntryLaunch::default() };
            let tasks = is_group(number).then(|| {
                let indices = TaskIndices::parse("0-11").unwrap();
                Box::new(TaskGroup {
                    indices,
                    concurrent_max: (number % 4 == 1).then_some(2),
                    failures_max: (number % 4 == 3).then_some(3),
                })
            });
            let nodes = if tasks.is_some() || scaling.is_some() { 1 } else { nodes };
            let nodes_max = (number % 4 == 1 && tasks.is_none()).then_some(nodes + 1);
            let plain = spec(nodes, policy, max);
            let spec = AllocationSpec {
                walltime: plain.walltime.filter(|_| scaling.is_none()),
                depends_on: dependencies(ledger, number, owner),
                singleton: number % 9 == 2,
                nodes_max,
                share,
                tenant,
                vcluster,
                session,
                connectivity,
                sensitive,
                on_isolation,
                launch,
                checkpoint,
                tasks,
                scaling,
                ..plain
            };
            Action::Submit { id: id(number), spec: Box::new(spec), owner: user(owner), claim: None }
        }
        Move::Cancel { id: number, by } => Action::Cancel { id: id(number), by: user(by) },
        Move::Claim { id: number, nodes, half: small, stale } => {
            // Usually a waiting allocation in a queue with a scheduler, and not always the first
            // one, which may get no VNI or not fit.
            let served = |a: &Allocation| {
                let queue = ledger.queue_of(&a.spec.vcluster);
                if queue == VCLUSTER { ledger.lease(&scheduler_lease(queue)).is_some() } else { lease.is_some() }
            };
            let is_eligible = |a: &Allocation| a.awaits().is_none() || stale == 4;
            let waits =
                |a: &&Arc<Allocation>| a.state == AllocationState::Pending && !a.is_group() && stale > 3 && served(a) && is_eligible(a);
            let waiting: Vec<_> = ledger.allocations().filter(waits).collect();
            let number = waiting.get(usize::from(nodes[0]) % waiting.len().max(1)).map_or(id(number), |a| a.id);
            let allocation = ledger.allocation(number);
            // Sometimes the most of a range.
            let count = |a: &Allocation| if small { a.spec.nodes } else { a.spec.nodes_most() };
            let wanted = allocation.map_or(1, |a| count(a) as usize);
            let label = allocation.map_or("", |a| &a.spec.vcluster);
            let own = |n: &u8| ledger.node(&node(*n)).is_none_or(|known| ledger.foreign(known, label).is_none());
            let own: Vec<u8> = (0..NODES).filter(|n| stale == 5 || own(n)).collect();
            let shares = nodes.iter().cycle().take(wanted).enumerate().map(|(at, n)| {
                // Usually distinct nodes.
                let number = if stale == 0 { *n } else { own.get((usize::from(nodes[0]) + at) % own.len().max(1)).copied().unwrap_or(*n) };
                let known = ledger.node(&node(number)).map_or(Revision(0), |n| n.hold_revision);
                let hold_revision = if stale == 1 { Revision(known.0 + 1) } else { known };
                // Half of the request is sometimes too little.
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
                after: None,
                by: None,
                walltime: None,
            })
        }
        Move::Register { node: number, boot, memory, new_life } => {
            // A booting node returns with a new boot id.
            let away = ledger.node(&node(number)).filter(|n| matches!(n.state, NodeState::Booting | NodeState::Failed));
            let boot = away.map_or(boot, |n| 3 - n.boot.0.as_u128());
            let known = ledger.node(&node(number)).map_or(0, |n| n.incarnation.0);
            let found = ledger.holdings(&node(number)).first().map(|h| (h.allocation, h.epoch)).into_iter().collect();
            let found = (!memory && boot == 2).then_some(found);
            // One of the nodes has none of these features.
            let all = [RUN_LEASE, CHECKPOINTS, TELEMETRY_AUDIT, TELEMETRY_DEBUG].map(str::to_owned);
            let features = if number == 3 { vec![] } else { all.to_vec() };
            let has_wipe_hook = number != 3;
            Action::Register(Registration {
                found,
                features,
                has_wipe_hook,
                // An agent that lost its state is told.
                replaces: Some(Incarnation(known)),
                ..registration(number, boot, if memory { known } else { 0 }, new_life)
            })
        }
        Move::Report { node: number, id: of, item, old_epoch, skip } => {
            let known = ledger.node(&node(number));
            // Usually about something that the node has.
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
                    let saved = if skip == 0 { Err(NotSaved("x".to_owned())) } else { Ok(saved(&allocation)) };
                    ReportItem::Ended { allocation, epoch, reason: EndReason::Preempted { by: "x".into(), why: "x".into(), saved } }
                }
                14 => ReportItem::Ended { allocation, epoch, reason: EndReason::WalltimeSaved { checkpoint: saved(&allocation) } },
                15 => {
                    let asked = ledger.allocation(allocation).and_then(|a| a.preemption.as_ref()).map(|order| order.id);
                    ReportItem::NotPreempted { allocation, epoch, id: asked.unwrap_or(saved(&allocation)), why: "x".into() }
                }
                16 => ReportItem::UnreportedHealth { at: Timestamp(skip), health: "not well: x".into() },
                17 | 18 => ReportItem::PortsOpen { allocation, epoch, ports: vec![80, 81] },
                _ => ReportItem::Released { allocation, epoch, usage: None },
            };
            let (incarnation, seq) = known.map(|n| (n.incarnation, n.report_seq)).unwrap_or_default();
            Action::Report(NodeReport { node: node(number), incarnation, seq: seq + skip, item })
        }
        Move::State { node: number, state, stale } => {
            let mut incarnation = ledger.node(&node(number)).map(|n| n.incarnation).unwrap_or_default();
            incarnation.0 -= u64::from(stale && incarnation.0 > 0);
            let state = [NodeState::Ready, NodeState::Degraded, NodeState::Down, NodeState::Failed][usize::from(state)];
            Action::NodeStates(vec![NodeStateChange { node: node(number), incarnation, state, reason: "x".into() }])
        }
        Move::Lease { holder, user: None, named: true, .. } => {
            Action::GrantLease { name: scheduler_lease(VCLUSTER), holder: node(holder % 2), ttl_ms: 1000, user: None }
        }
        Move::Lease { holder, user, trial, .. } => {
            let name = match user {
                Some(_) if trial => "trial/theirs",
                Some(_) => "theirs",
                None => SCHEDULER_LEASE,
            };
            Action::GrantLease { name: name.into(), holder: node(holder % 2), ttl_ms: 1000, user: user.map(self::user) }
        }
        Move::Accounting { begins: false } => {
            Action::GrantLease { name: ACCOUNTING_LEASE.into(), holder: node(0), ttl_ms: 1000, user: None }
        }
        Move::Accounting { begins: true } => {
            let lease_token = ledger.lease(ACCOUNTING_LEASE).map_or(0, |lease| lease.token);
            Action::Account { until: AccountedUntil { store: uuid::Uuid::from_u128(1), sequence: 0 }, node: node(0), lease_token }
        }
        Move::Revoke { stale } => {
            let token = lease.map_or(0, |l| l.token) + u64::from(stale);
            Action::RevokeLease { name: SCHEDULER_LEASE.into(), token: Some(token), by: "root".into() }
        }
        Move::Hold { node: number, kind, lift: true, reason, .. } => {
            // Usually an existing hold.
            let stands = ledger.node(&node(number)).and_then(|n| n.holds.first()).filter(|_| reason > 0);
            Action::LiftHold { node: node(number), kind: stands.map_or(kind, |hold| hold.kind), by: "root".into(), until: None }
        }
        // Requested by its own checks.
        Move::Hold { node: number, kind: HoldKind::Drain, lift: false, ends: None, reason: asked @ 1.. } => {
            let incarnation = ledger.node(&node(number)).map_or(Incarnation(0), |known| known.incarnation);
            Action::AskDrain { node: node(number), incarnation, asked: Timestamp(u64::from(asked)), reason: format!("finding {asked}") }
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
            // A wait is long for such a history: half of the existing waits end.
            let later = Timestamp(now.0 + 5_000);
            let waits = ledger.waits_are_due(later).then_some(Action::EndWaits { now: later });
            let waits = waits.or_else(|| ledger.dependents_are_due().then_some(Action::SettleDependents));
            let due = waits.or_else(|| ledger.nodes_due(now, 60).into_iter().next());
            due.unwrap_or_else(|| Action::EndDrained { node: node(0), deadline: now })
        }
        Move::Boot { node: number } => {
            // Usually a node that can be booted.
            let may = ledger.nodes().find(|n| matches!(n.state, NodeState::Down | NodeState::Drained) && n.out_of_service().is_none());
            let booted = may.map_or(node(number), |n| n.id.clone());
            Action::BootNode { node: booted, by: "root".into(), reason: "x".into() }
        }
        Move::Remove { node: number, admit: true } => {
            // Usually a name that was removed.
            let gone = (0..NODES).map(node).find(|id| ledger.node(id).is_none());
            Action::Admit { node: gone.unwrap_or(node(number)), by: "root".into(), reason: "x".into() }
        }
        Move::Remove { node: number, admit: false } => {
            // Usually a node that can be removed.
            let may = ledger.nodes().find(|n| matches!(n.state, NodeState::Down | NodeState::Drained) && number > 0);
            let removed = may.map_or(node(number), |n| n.id.clone());
            Action::RemoveNode { node: removed, by: "root".into(), reason: "x".into() }
        }
        Move::Level { level } => Action::RaiseLevel { level },
        Move::Tenant { max_nodes, max_allocations: max_concurrent_allocations } => {
            let create = ledger.tenant(TENANT).is_none();
            let change = TenantChange {
                name: TENANT.into(),
                create,
                max_nodes,
                max_concurrent_allocations,
                soft: Default::default(),
                expected_version: None,
            };
            Action::SetTenant { change, by: "root".into() }
        }
        Move::VCluster { delete: true, .. } => Action::DeleteVCluster { name: VCLUSTER.into(), by: "root".into() },
        Move::VCluster { nodes, tenant, delete: false } => {
            let create = ledger.vcluster(VCLUSTER).is_none().then_some(SchedulerKind::InteractiveFifo);
            let tenant = Some(if tenant { TENANT.to_owned() } else { String::new() });
            let nodes = Some(nodes.into_iter().map(node).collect());
            let change = VClusterChange { name: VCLUSTER.into(), create, tenant, nodes, ..VClusterChange::default() };
            Action::SetVCluster { change, by: "root".into() }
        }
        Move::Session { id: session, owner, delete } => {
            // Usually in a running allocation.
            let runs = ledger.allocations().find(|a| a.state == AllocationState::Running && (a.spec.session || owner == 0));
            let (allocation, by) = runs.map_or((id(session), user(owner)), |a| (a.id, a.owner.clone()));
            let session = uuid::Uuid::from_u128(session);
            if delete {
                Action::DeleteSession { id: session, allocation, by }
            } else {
                Action::CreateSession { id: session, allocation, by }
            }
        }
        Move::Release { stale } => {
            let holder = lease.map_or_else(|| node(0), |l| l.holder.clone());
            Action::ReleaseLease { name: SCHEDULER_LEASE.into(), token: token + u64::from(stale), holder, user: None }
        }
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
        Move::Conform { node: number, how: 2, kernel } => {
            let incarnation = ledger.node(&node(number)).map(|n| n.incarnation).unwrap_or_default();
            Action::ConformanceStale { node: node(number), incarnation, stale: kernel == 0 }
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
        Move::Preempt { id: number, how: 2, hold: true } => {
            let has_nodes = ledger.allocations().find(|a| holds_nodes(a.state) && number > 2);
            let (allocation, by) = has_nodes.map_or((id(number), user(1)), |a| (a.id, a.owner.clone()));
            let epoch = ledger.allocation(allocation).map_or(Epoch(0), |a| a.epoch);
            Action::RequeueAllocation { allocation, epoch, by, reason: "x".into() }
        }
        Move::Preempt { id: number, how: 3, hold: true } => {
            let waits = ledger.allocations().find(|a| a.waits() && (is_whole(a) || number < 3));
            let (allocation, by) = waits.map_or((id(number), user(1)), |a| (a.id, a.owner.clone()));
            Action::HoldAllocation { allocation, by }
        }
        Move::Preempt { id: number, how: 4, hold } => {
            let lives = ledger.allocations().find(|a| !a.state.is_terminal() && (is_whole(a) || number == 3) && number > 2);
            let is_service = lives.is_some_and(|a| a.is_scaled_service());
            let (allocation, by) = lives.map_or((id(number), user(1)), |a| (a.id, a.owner.clone()));
            let walltime = std::time::Duration::from_secs(if hold { 120 } else { 90_000 });
            let change = AllocationChange {
                name: hold.then(|| format!("name{number}")),
                project: hold.then(|| format!("project{}", number % 2)),
                walltime: Some(walltime).filter(|_| !is_service),
                preemption_class: Some(number as u8 % 11),
                tags: [("t".to_owned(), if hold { "1".to_owned() } else { String::new() })].into(),
                scaling: None,
                begin: (number == 5).then_some(Timestamp(ledger.time().0 + 30_000)),
                deadline: None,
                nice: Some(number as i32 % 7),
                comment: None,
                reservation: None,
                expected_version: (number == 7).then_some(1),
            };
            Action::UpdateAllocation { allocation, by, change, as_operator: number % 2 == 0 }
        }
        Move::Preempt { id: number, how: 1..=3, .. } => {
            // Usually a held allocation.
            let held = ledger.allocations().find(|a| a.held && number > 2);
            let (allocation, by) = held.map_or((id(number), user(1)), |a| (a.id, a.owner.clone()));
            Action::Resume { allocation, by }
        }
        Move::Preempt { id: number, hold, .. } => {
            let has_nodes = ledger.allocations().find(|a| holds_nodes(a.state) && number > 2);
            let (allocation, by) = has_nodes.map_or((id(number), user(1)), |a| (a.id, a.owner.clone()));
            let epoch = ledger.allocation(allocation).map_or(Epoch(0), |a| a.epoch);
            let (name, reason, cause) = (by.name.clone(), "x".to_owned(), PreemptCause::Request);
            let order = Preemption { id: saved(&allocation), by: name, reason, cause, deadline_ms: 1000, hold, failed: None };
            Action::Preempt { allocation, epoch, by, order, kill: number % 2 == 0 }
        }
        Move::Tasks { node: number, how: 0 } => {
            let group = ledger.allocations().find(|a| a.is_task_group() && !a.state.is_terminal());
            let (group, by) = group.map_or((id(5), user(1)), |a| (a.id, a.owner.clone()));
            Action::CancelTasks { id: group, tasks: TaskSet::from(vec![(number.into(), u32::from(number) + 1)]), by }
        }
        Move::Tasks { node: number, how } => {
            let is_lane = |of: AllocationId| ledger.allocation(of).is_some_and(|a| a.lane.is_some());
            let held = ledger.holdings(&node(number)).iter().find(|held| is_lane(held.allocation));
            let (lane, epoch) = held.map_or((id(5), Epoch(1)), |held| (held.allocation, held.epoch));
            let returned = (how == 2).then(|| LaneReturn { number: 0, tasks: TaskSet::from(vec![(2, 9)]) });
            // Some of these are its own, and some have ended.
            let ended = EndedTasks { outcome: TaskOutcome::Exited(i32::from(how == 1)), tasks: TaskSet::first(u32::from(how) * 3) };
            let report = LaneReport { ended: vec![ended], mean_us: 1000, returned };
            Action::AdvanceLane { id: lane, epoch, node: node(number), report }
        }
        Move::Scale { replicas, how } => {
            let service = ledger.allocations().find(|a| a.is_scaled_service() && !a.state.is_terminal());
            let (service, by) = service.map_or((id(6), user(1)), |a| (a.id, a.owner.clone()));
            let step = match how {
                0..4 => return Action::Scale { id: service, replicas, by },
                4 => Step::Note { found: Err("away".to_owned()) },
                5 | 6 => Step::Note { found: Ok(Amount(u64::from(replicas) * 300_000)) },
                _ => Step::Want { replicas, value: Amount(1) },
            };
            let (lease_token, metric) = (token + u64::from(how == 8), ScaleMetric::CpuUtilization);
            Action::StepScaling(ScalingStep { service, lease_token, metric, step })
        }
        Move::Telemetry { how: 0, .. } => {
            let due = ledger.telemetry_due(Timestamp(u64::MAX)).into_iter().next();
            due.unwrap_or(Action::EndTelemetry { allocation: id(1), order: uuid::Uuid::nil() })
        }
        Move::Telemetry { id: number, how } => {
            let has_nodes = ledger.allocations().find(|a| holds_nodes(a.state) && number > 2);
            let (allocation, by) = has_nodes.map_or((id(number), user(1)), |a| (a.id, a.owner.clone()));
            let (mode, duration_ms) = match how {
                1 => (TelemetryMode::Prod, 0),
                3 => (TelemetryMode::Audit, 0),
                _ => (TelemetryMode::Debug, 5000),
            };
            Action::SetTelemetry { allocation, by, id: uuid::Uuid::from_u128(u128::from(how) << 8 | number), mode, duration_ms }
        }
        Move::Notified { upto } => Action::Notified { channel: NotifyChannel::Hook, upto },
        Move::Limits { sensitive, running, history } => {
            let users = UserLimitsChange { user_running: running, user_history: history, ..UserLimitsChange::default() };
            // The policy changes whenever the limit for sensitive work does.
            let share_policy = match sensitive {
                QuotaChange::Keep => None,
                QuotaChange::Unlimited => Some(SharePolicy::Anyone),
                QuotaChange::AtMost(nodes) => Some(if nodes % 2 == 0 { SharePolicy::Tenant } else { SharePolicy::User }),
            };
            LimitsChange { sensitive_pool_size: sensitive, users, share_policy, ..LimitsChange::default() }.by("root")
        }
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
            // Including records that do not exist yet, and ones that are already signed.
            let seq = (head.seq + 1).saturating_sub(back);
            let signed = SignedHead { seq, hash: head.hash.clone(), member: MemberId(member), key, signature };
            match back {
                3 => Action::ArchiveAudit { signed, generation: ledger.generation(), archive: String::new() },
                _ => Action::SignHead(signed),
            }
        }
        Move::Gossip { step, number } => match step {
            0 => Action::AddKey { secret: Secret([number; 32]), by: "root".into() },
            1 => Action::SealWithKey { id: ledger.keyring().newest() },
            2 => Action::RetireKey { id: ledger.keyring().keys.first().map_or(0, |key| key.id) },
            3 => Action::SealWithKey { id: number.into() },
            4 => Action::Revoke { name: format!("n{}", number % 4), by: "root@n1".into(), reason: String::new() },
            _ => Action::RetireKey { id: number.into() },
        },
    }
}
