//! A ledger with content in every part.

use super::{LimitsChange, allocation, components, node, registration, reservation_change, user, vcluster_change};
use crate::keyring::Secret;
use crate::{
    ACCOUNTING_LEASE, Action, Command, EndedLimitsChange, LEVEL_MAX, Ledger, NotifyChannel, QuotaChange, ReachedMark, Registration,
    SCHEDULER_LEASE, ScalingStep, SoftLimitsChange, TenantChange, VniPoolChange,
};
use lattice_ledger_state::usage_records::{Consumer, Span};
use lattice_model::access::{MemberChange, MemberStep, ProjectChange, ProjectStep, Role, RoleBinding, RootMay, Scopes, Subject};
use lattice_model::access_token::{AccessToken, TokenId};
use lattice_model::claim::ClaimShare;
use lattice_model::ended_work::AccountedUntil;
use lattice_model::scaling::Step;
use lattice_model::usage::{DAY_MS, WHOLE_NODE};
use lattice_model::{
    AllocationId, AllocationSpec, Amount, AuditRecord, Budget, BudgetMark, BudgetPeriod, Claim, Connectivity, DagId, DagStep,
    DagSubmission, Dependency, DependencyCondition, Drain, Epoch, Exposed, HoldKind, Incarnation, NodeReport, NodeUse, ReportItem,
    Revision, ScaleMetric, ScalePolicy, Scaling, SharePolicy, TaskGroup, TaskIndices, Timestamp, When,
};

/// The revision at which the node was last changed: see the actions below.
const CONFORMED: u64 = 12;

/// A token that is valid for a day.
fn access_token() -> AccessToken {
    AccessToken {
        id: TokenId(7),
        name: "ci".into(),
        account: Subject::User { name: "u1".into(), uid: 1 },
        scopes: Scopes::all(),
        secret_sha256: [7; 32],
        issued_at: Timestamp(1),
        issued_by: "root".into(),
        expires_at: Timestamp(DAY_MS),
    }
}

/// A ledger with content in every part, and the audit records that it created.
pub fn full_ledger() -> (Ledger, Vec<AuditRecord>) {
    let mut ledger = Ledger::default();
    let mut records = Vec::new();
    let allocation = allocation();
    // An allocation in a network domain that exposes a port.
    let id = AllocationId(uuid::Uuid::from_u128(8));
    let expose = vec![Exposed { name: "api".into(), port: 80, protocol: "tcp".into() }];
    let connectivity = Connectivity { network_domain: "ml".into(), expose };
    let spec = AllocationSpec { connectivity, nodes: 1, ..(*allocation.spec).clone() };
    let serving = Action::Submit { id, spec: Box::new(spec), owner: allocation.owner.clone(), claim: None };
    let depends_on = vec![Dependency { on: allocation.id, condition: DependencyCondition::Mutex }];
    let depending = AllocationSpec { depends_on, ..(*allocation.spec).clone() };
    let step = DagStep {
        name: "first".into(),
        allocation: AllocationId(uuid::Uuid::from_u128(11)),
        takes_env: true,
        spec: Box::new((*allocation.spec).clone()),
    };
    let dag = DagSubmission { name: "flow".into(), env: [("A".to_owned(), "1".to_owned())].into(), steps: vec![step] };
    let tasks = TaskGroup { indices: TaskIndices::parse("0-9").unwrap(), concurrent_max: Some(2), failures_max: Some(1) };
    let group = AllocationSpec { tasks: Some(Box::new(tasks)), nodes: 1, ..(*allocation.spec).clone() };
    let metric: ScaleMetric = "q{a=\"b\"}".parse().unwrap();
    let policy = ScalePolicy::new(metric.clone(), Amount(1));
    let scaling = Scaling { replicas_min: 2, replicas_max: 3, policy: Some(policy), drain: Drain::default() };
    let service = AllocationSpec { scaling: Some(Box::new(scaling)), nodes: 1, walltime: None, ..(*allocation.spec).clone() };
    let service = Box::new(service);
    let service =
        Action::Submit { id: AllocationId(uuid::Uuid::from_u128(12)), spec: service, owner: allocation.owner.clone(), claim: None };
    let found = Step::Note { found: Err("no series".into()) };
    let look = ScalingStep { service: AllocationId(uuid::Uuid::from_u128(12)), lease_token: 2, metric, step: found };
    let group =
        Action::Submit { id: AllocationId(uuid::Uuid::from_u128(10)), spec: Box::new(group), owner: allocation.owner.clone(), claim: None };
    let share = ClaimShare { node: node(1), resources: registration(1, 1, 0, true).size, hold_revision: Revision(CONFORMED) };
    let claim = Claim { allocation: id, requeue_count: 0, lease_token: 2, shares: vec![share], after: None, by: None, walltime: None };
    let prepared = ReportItem::Prepared { allocation: id, epoch: Epoch(1) };
    let open = ReportItem::PortsOpen { allocation: id, epoch: Epoch(1), ports: vec![80] };
    let soft = SoftLimitsChange::default();
    let (max_nodes, max_concurrent_allocations) = (QuotaChange::AtMost(9), QuotaChange::Keep);
    let tenant = TenantChange { name: "physics".into(), create: true, max_nodes, max_concurrent_allocations, soft, expected_version: None };
    let tenant = Action::SetTenant { change: tenant, by: "root".into() };
    let subject = Subject::Group { name: "phys".into(), gid: 50 };
    let project = |step: ProjectStep| {
        let change = ProjectChange { tenant: "physics".into(), project: "higgs".into(), step };
        Action::SetProject { change, by: "root".into() }
    };
    let step = MemberStep::Add { subject: subject.clone(), is_default: true };
    let binding = RoleBinding { subject, role: Role::TenantAdmin, tenant: Some("physics".into()) };
    let (node_1, reason, deadline) = (node(1), "disk".to_owned(), Some(When::At(Timestamp(99))));
    let drain = Action::SetHold { node: node_1, kind: HoldKind::Drain, by: "root".into(), reason, until: None, deadline };
    let actions = [
        Action::Bootstrap { cluster: "c".into() },
        Action::Register(registration(1, 1, 0, true)),
        Action::Submit { id: allocation.id, spec: Box::new((*allocation.spec).clone()), owner: allocation.owner.clone(), claim: None },
        Action::GrantLease { name: "l".into(), holder: node(1), ttl_ms: 1000, user: None },
        Action::RaiseLevel { level: LEVEL_MAX },
        Action::AddKey { secret: Secret([7; 32]), by: "root".into() },
        Action::SetVniPool { change: VniPoolChange { end: Some(2000), ..VniPoolChange::default() }, by: "root".into() },
        LimitsChange {
            sensitive_pool_size: QuotaChange::AtMost(3),
            share_policy: Some(SharePolicy::Tenant),
            ended: EndedLimitsChange { kept_ms: Some(3_600_000), memory_bytes: None },
            root_may: Some(RootMay::ActForItself),
            ..LimitsChange::default()
        }
        .by("root"),
        Action::SetRunLease { ms: 90_000 },
        Action::Conforms { node: node(1), incarnation: Incarnation(1), components: components() },
        Action::Conforms { node: node(1), incarnation: Incarnation(1), components: [("kernel".to_owned(), "6.6".to_owned())].into() },
        Action::ConformanceStale { node: node(1), incarnation: Incarnation(1), stale: true },
        Action::Notified { channel: NotifyChannel::Webhook, upto: 2 },
        Action::Fence { node: node(1), incarnation: Incarnation(1), silent_ms: 99_000 },
        Action::GrantLease { name: SCHEDULER_LEASE.into(), holder: node(1), ttl_ms: 1000, user: None },
        serving,
        Action::AdvanceTime,
        Action::Claim(claim),
        Action::Report(NodeReport { node: node(1), incarnation: Incarnation(1), seq: 1, item: prepared }),
        Action::Report(NodeReport { node: node(1), incarnation: Incarnation(1), seq: 2, item: open }),
        // After the claim, which the hold would prevent.
        Action::SetHold {
            node: node(1),
            kind: HoldKind::Maintenance,
            by: "root".into(),
            reason: "fan".into(),
            until: Some(When::AfterMs(9)),
            deadline: None,
        },
        drain,
        Action::Register(Registration { has_wipe_hook: true, conformance: Some(components()), ..registration(1, 1, 1, false) }),
        Action::Wipe { node: node(1), by: "root".into(), reason: "x".into(), force: false },
        Action::Admit { node: node(7), by: "anna".into(), reason: "rack 4".into() },
        Action::Register(registration(5, 1, 0, true)),
        Action::SetHold { node: node(5), kind: HoldKind::Drain, by: "root".into(), reason: "old".into(), until: None, deadline: None },
        Action::RemoveNode { node: node(5), by: "anna".into(), reason: "sold".into() },
        Action::AskDrain { node: node(1), incarnation: Incarnation(1), asked: Timestamp(7), reason: "gpu 0: XID 79".into() },
        // Last, because the claim was made while the node belonged to the default vCluster.
        Action::SetVCluster { change: vcluster_change(), by: "u".into() },
        Action::Revoke { name: "n1".into(), by: "root".into(), reason: "stolen".into() },
        Action::Submit {
            id: AllocationId(uuid::Uuid::from_u128(9)),
            spec: Box::new(depending),
            owner: allocation.owner.clone(),
            claim: None,
        },
        group,
        service,
        Action::StepScaling(look),
        Action::SubmitDag { id: DagId(uuid::Uuid::from_u128(10)), owner: allocation.owner, dag: Box::new(dag) },
        // Last, because the work before names no tenant.
        tenant,
        Action::GrantRole { binding, by: "root".into() },
        Action::SetTenantMember { change: MemberChange { tenant: "physics".into(), step }, by: "root".into() },
        project(ProjectStep::Create),
        project(ProjectStep::Add { account: Subject::User { name: "u1".into(), uid: 1 } }),
        Action::IssueToken { token: access_token() },
        Action::Register(registration(2, 1, 0, true)),
        Action::GrantLease { name: ACCOUNTING_LEASE.into(), holder: node(2), ttl_ms: 1000, user: None },
        Action::Account { until: AccountedUntil { store: uuid::Uuid::from_u128(13), sequence: 0 }, node: node(2), lease_token: 3 },
        Action::SetReservation { change: reservation_change(), by: "root".into() },
        Action::Cancel { id: AllocationId(uuid::Uuid::from_u128(11)), by: user(1) },
    ];
    for (index, action) in (1..).zip(actions) {
        let applied = ledger.apply(Revision(index), &Command { at: Timestamp(index), action });
        applied.result.unwrap();
        records.extend(applied.audit);
    }
    // Two days of work, without the commands of two days.
    let node_use = NodeUse { node_millionths: WHOLE_NODE, gpus: 2 };
    let span = Span { node_use, from: Timestamp(1), to: Timestamp(2 * DAY_MS) };
    for consumer in [Consumer::User(1), Consumer::Project { tenant: "physics".into(), project: "higgs".into() }] {
        ledger.usage_records.add(consumer, "u1", span, BudgetPeriod::default(), false, usize::MAX);
    }
    let reached = ReachedMark { mark: BudgetMark::Used, since: Timestamp(2 * DAY_MS) };
    ledger.budget_marks.set("physics", Budget::NodeHours, Some(reached));
    assert!(ledger.domains().count() == 1 && ledger.endpoints("api", None, 9).len() == 1);
    (ledger, records)
}
