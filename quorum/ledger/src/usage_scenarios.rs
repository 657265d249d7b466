//! Scenarios of what work uses, and of the budgets of tenants.

use super::scenarios::{LimitsChange, SIZE, Story, id, node, prepared, registration, released, spec, user};
use super::usage::USAGE_BYTES_MAX;
use super::{Action, BudgetNotice, NodeStateChange, Outcome, QuotaChange, Registration, SoftLimitsChange, TenantChange, UsageOf};
use crate::Refusal;
use crate::history::ChangeSet;
use crate::properties::scans::invariant_indexes_equal_scans;
use lattice_ledger_state::usage_records::Consumer;
use lattice_model::constraint::CHECKPOINTS;
use lattice_model::usage::{DAY_MS, HOUR_MS};
use lattice_model::{
    AllocationSpec, AllocationState, AuditAction, AuditRecord, Budget, BudgetPeriod, CheckpointId, CheckpointPolicy, CheckpointRef,
    CheckpointSignal, EndReason, Epoch, NodeState, PreemptCause, Preemption, ReportItem, RequeuePolicy, Resources, Tenant, Timestamp, Used,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use uuid::Uuid;

fn tenant(create: bool, soft: SoftLimitsChange) -> Action {
    let (max_nodes, max_concurrent_allocations) = (QuotaChange::Keep, QuotaChange::Keep);
    let change = TenantChange { name: "physics".into(), create, max_nodes, max_concurrent_allocations, soft, expected_version: None };
    Action::SetTenant { change, by: "root".into() }
}

fn period(days: u32) -> Action {
    LimitsChange { budget_period_days: Some(days), ..LimitsChange::default() }.by("root")
}

fn submit(number: u128, spec: AllocationSpec) -> Action {
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None }
}

fn of_physics(nodes: u32, requeue: RequeuePolicy) -> AllocationSpec {
    AllocationSpec { tenant: "physics".into(), project: "higgs".into(), walltime: None, ..spec(nodes, requeue, 9) }
}

/// It runs on these nodes, from now on.
fn run(s: &mut Story, number: u128, nodes: &[u8]) -> Epoch {
    let epoch = s.claimed(number, nodes);
    nodes.iter().for_each(|node| s.report(*node, prepared(number, epoch)));
    assert_eq!(s.ledger.allocation(id(number)).unwrap().started_at, Some(s.now()));
    epoch
}

fn end(s: &mut Story, number: u128, nodes: &[u8], epoch: Epoch) {
    s.report(nodes[0], ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code: 0 } });
    nodes.iter().for_each(|node| s.report(*node, released(number, epoch)));
}

/// The node is silent, and an operator confirms that nothing runs there.
fn lose(s: &mut Story, number: u8) {
    let incarnation = s.ledger.node(&node(number)).unwrap().incarnation;
    for state in [NodeState::Degraded, NodeState::Down] {
        s.done(Action::NodeStates(vec![NodeStateChange { node: node(number), incarnation, state, reason: "silent".into() }]));
    }
    s.done(Action::ConfirmDead { node: node(number), by: "root".into(), reason: "its power is off".into() });
}

/// Of the user, of the tenant and of its project.
fn used(s: &Story) -> [(u64, u64); 3] {
    let of_project = UsageOf::Project { tenant: "physics".into(), project: "higgs".into() };
    [UsageOf::User("u7".into()), UsageOf::Tenant("physics".into()), of_project].map(|of| {
        let used = s.ledger.usage_report(&of, None, s.now()).unwrap().used;
        (used.node_ms, used.gpu_ms)
    })
}

/// Only what is recorded.
fn recorded(s: &Story) -> Used {
    let record = s.ledger.usage_records.get(&Consumer::User(7));
    record.map_or(Used::default(), |record| record.days.within(s.now(), BudgetPeriod::DAYS_MAX))
}

#[test]
fn work_is_charged_from_its_start_to_its_end() {
    let mut s = Story::new(2);
    s.done(submit(1, of_physics(2, RequeuePolicy::Never)));
    let epoch = s.claimed(1, &[0, 1]);
    s.pass(60_000);
    assert_eq!(used(&s), [(0, 0); 3], "the prologue is not charged");
    s.report(0, prepared(1, epoch));
    s.report(1, prepared(1, epoch));
    let started = s.now();
    s.pass(99_000);
    // It runs: it is charged up to now, and nothing is recorded yet.
    let ms = s.now().since_ms(started);
    assert_eq!((used(&s), recorded(&s)), ([(2 * ms, 4 * ms); 3], Used::default()));
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 1 } });
    let ms = s.now().since_ms(started);
    assert_eq!(ms, 101_000);
    s.pass(500_000);
    s.report(0, released(1, epoch));
    s.report(1, released(1, epoch));
    assert_eq!((used(&s), recorded(&s)), ([(2 * ms, 4 * ms); 3], Used { node_ms: 2 * ms, gpu_ms: 4 * ms }), "nor is the clean-up");
}

#[test]
fn each_attempt_is_charged_however_it_ends() {
    let mut s = Story::new(3);
    s.done(submit(1, of_physics(1, RequeuePolicy::Always)));
    let mut sum = 0;
    let charged = |s: &Story, started: Timestamp, sum: &mut u64| {
        *sum += s.now().since_ms(started);
        assert_eq!(used(s), [(*sum, 2 * *sum); 3]);
    };
    // A requeue on request.
    let epoch = run(&mut s, 1, &[0]);
    let started = s.now();
    s.pass(10_000);
    s.done(Action::RequeueAllocation { allocation: id(1), epoch, by: user(7), reason: "bad node".into() });
    charged(&s, started, &mut sum);
    s.report(0, released(1, epoch));
    s.pass(77_000);
    assert_eq!(recorded(&s).node_ms, sum, "waiting costs nothing");
    // It failed, and is requeued.
    let epoch = run(&mut s, 1, &[1]);
    let started = s.now();
    s.pass(20_000);
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 1 } });
    charged(&s, started, &mut sum);
    s.report(1, released(1, epoch));
    // Its node is lost.
    run(&mut s, 1, &[2]);
    let started = s.now();
    s.pass(30_000);
    lose(&mut s, 2);
    assert!(s.ledger.allocation(id(1)).unwrap().waits(), "it is requeued");
    charged(&s, started, &mut sum);
    // It is preempted: here, because it saves itself and is to wait.
    s.done(Action::Register(Registration { features: vec![CHECKPOINTS.to_owned()], ..registration(0, 1, 1, false) }));
    let policy = CheckpointPolicy::by_signal(CheckpointSignal::USR1);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.done(submit(2, AllocationSpec { checkpoint: Some(policy), ..of_physics(1, RequeuePolicy::Always) }));
    let epoch = run(&mut s, 2, &[0]);
    let started = s.now();
    s.pass(40_000);
    let made = CheckpointId(Uuid::from_u128(9));
    let (by, reason) = ("u7".to_owned(), "needed".to_owned());
    let order = Preemption { id: made, by, reason, cause: PreemptCause::Request, deadline_ms: 1000, hold: false, failed: None };
    s.done(Action::Preempt { allocation: id(2), epoch, by: user(7), order, kill: false });
    let checkpoint = CheckpointRef { id: made, epoch, step: None, bytes: 1 };
    s.report(0, ReportItem::Checkpointed { allocation: id(2), epoch, checkpoint });
    let reason = EndReason::Preempted { by: "u7".into(), why: "needed".into(), saved: Ok(made) };
    s.report(0, ReportItem::Ended { allocation: id(2), epoch, reason });
    assert_eq!(s.state(2), AllocationState::Suspended);
    charged(&s, started, &mut sum);
}

#[test]
fn a_new_boot_of_the_node_ends_what_is_charged() {
    let mut s = Story::new(1);
    s.done(submit(1, of_physics(1, RequeuePolicy::Never)));
    run(&mut s, 1, &[0]);
    let started = s.now();
    s.pass(30_000);
    s.done(Action::Register(registration(0, 2, 0, true)));
    let ms = s.now().since_ms(started);
    assert!(s.state(1).is_terminal());
    assert_eq!(recorded(&s).node_ms, ms);
    s.pass(30_000);
    assert_eq!(used(&s), [(ms, 2 * ms); 3]);
}

#[test]
fn an_attempt_is_charged_for_its_walltime_at_most() {
    let mut s = Story::new(1);
    let walltime = Some(std::time::Duration::from_millis(HOUR_MS));
    s.done(submit(1, AllocationSpec { walltime, ..of_physics(1, RequeuePolicy::Never) }));
    let epoch = run(&mut s, 1, &[0]);
    // Its end is reported days later.
    s.pass(3 * DAY_MS);
    assert_eq!(used(&s)[0].0, HOUR_MS);
    end(&mut s, 1, &[0], epoch);
    assert_eq!(recorded(&s).node_ms, HOUR_MS);
}

#[test]
fn a_share_of_a_node_is_charged_as_its_greatest_part() {
    let mut s = Story::new(1);
    let part = Resources { cores: 1, memory_bytes: SIZE.memory_bytes / 4, gpus: 1 };
    s.done(submit(1, AllocationSpec { share: Some(part), ..of_physics(1, RequeuePolicy::Never) }));
    s.claimed_share(1, 0, part);
    let epoch = s.ledger.allocation(id(1)).unwrap().epoch;
    s.report(0, prepared(1, epoch));
    let started = s.now();
    s.pass(HOUR_MS);
    end(&mut s, 1, &[0], epoch);
    let ms = recorded(&s).gpu_ms;
    assert!(ms >= HOUR_MS && ms < s.now().since_ms(started), "one of the two GPUs");
    assert_eq!(recorded(&s).node_ms, ms / 2);
}

#[test]
fn days_are_told_apart_and_old_ones_dropped() {
    let mut s = Story::new(1);
    s.done(tenant(true, SoftLimitsChange::default()));
    s.done(submit(1, of_physics(1, RequeuePolicy::Never)));
    s.pass(100 * DAY_MS - s.now().0 % DAY_MS - 9_000);
    let epoch = run(&mut s, 1, &[0]);
    let before_midnight = DAY_MS - s.now().0 % DAY_MS;
    assert!(before_midnight < 9_000);
    s.pass(10_000);
    end(&mut s, 1, &[0], epoch);
    let days: Vec<_> = s.ledger.tenant_use("physics").unwrap().since(0).collect();
    assert_eq!(days.len(), 2);
    assert_eq!((days[0].day + 1, days[0].used.node_ms), (days[1].day, before_midnight));
    // The last day alone, and both.
    let of_tenant = |s: &Story, days| s.ledger.usage_report(&UsageOf::Tenant("physics".into()), days, s.now());
    assert_eq!(of_tenant(&s, Some(1)).unwrap().used, days[1].used);
    assert_eq!(of_tenant(&s, None).unwrap().used, days[0].used.plus(days[1].used));
    for refused in [Some(0), Some(91)] {
        assert!(matches!(of_tenant(&s, refused), Err(Refusal::Malformed { .. })), "{refused:?}");
    }
    // 90 days later nobody counts it any more; with the next use the buckets and records are gone.
    s.pass(90 * DAY_MS);
    assert_eq!(of_tenant(&s, None).unwrap().used, Used::default());
    s.done(Action::Submit { id: id(2), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(8), claim: None });
    let epoch = run(&mut s, 2, &[0]);
    end(&mut s, 2, &[0], epoch);
    let left: Vec<_> = s.ledger.usage_records.iter().map(|(consumer, _)| consumer.clone()).collect();
    assert_eq!(left, [Consumer::Tenant("physics".into()), Consumer::User(8)], "the tenant exists: it keeps its record");
    s.done(submit(3, of_physics(1, RequeuePolicy::Never)));
    let asked = |name: &str| s.ledger.usage_report(&UsageOf::Tenant(name.into()), None, s.now());
    assert_eq!(asked("physx").unwrap_err().to_string(), "there is no tenant \"physx\"; did you mean \"physics\"?");
    assert!(matches!(asked(""), Err(Refusal::Malformed { .. })));
    let epoch = run(&mut s, 3, &[0]);
    end(&mut s, 3, &[0], epoch);
    assert_eq!(s.ledger.tenant_use("physics").unwrap().len(), 1);
}

#[test]
fn the_period_is_1_to_366_days() {
    let mut s = Story::new(1);
    for days in [0, 367, u32::MAX] {
        assert!(matches!(s.act(period(days)), Err(Refusal::Malformed { .. })), "{days}");
        assert_eq!(s.ledger.cluster_limits().budget_period.days(), 90);
    }
    let audit = s.acted(period(30));
    assert_eq!(audit[0].detail, "sensitive_pool_size unlimited, budget_period_days 30");
    assert_eq!(s.ledger.cluster_limits().budget_period.days(), 30);
    assert!(s.acted(period(30)).is_empty(), "said again");
}

#[test]
fn use_survives_a_snapshot_and_costs_no_more_than_its_bound() {
    let mut s = Story::new(1);
    s.done(tenant(true, SoftLimitsChange::default()));
    for number in 1..=1000 {
        let mut all = of_physics(1, RequeuePolicy::Never);
        all.project = format!("p{number}");
        let submit = Action::Submit { id: id(number), spec: Box::new(all), owner: user(u32::try_from(number).unwrap()), claim: None };
        s.done(submit);
        let epoch = run(&mut s, number, &[0]);
        end(&mut s, number, &[0], epoch);
        if number == 100 {
            s.pass(DAY_MS);
        }
    }
    let bytes: usize =
        s.ledger.usage_records.iter().map(|(of, record)| lattice_ledger_state::usage_records::usage_record_bytes(of, record)).sum();
    assert!(bytes <= USAGE_BYTES_MAX + 1024, "{bytes}");
    let has = |consumer| s.ledger.usage_records.get(&consumer).is_some();
    assert!(!has(Consumer::User(1)) && !has(Consumer::User(100)), "the oldest are dropped first");
    assert!(s.ledger.tenant_use("physics").is_some_and(|days| days.len() == 2), "a tenant's never");
    invariant_indexes_equal_scans(&s.ledger);
    let read: super::Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(read, s.ledger);
    assert_eq!(read.tenant_use("physics"), s.ledger.tenant_use("physics"));
}

#[test]
fn watchers_are_sent_the_changed_days_of_tenants_that_exist() {
    let mut s = Story::new(1);
    let sent = |s: &mut Story, action: Action| {
        let applied = s.apply(action);
        assert!(applied.result.is_ok());
        ChangeSet::of(&s.ledger, applied.changed).tenant_use
    };
    let cancelled = |s: &mut Story, number: u128| {
        s.done(submit(number, of_physics(1, RequeuePolicy::Never)));
        let epoch = run(s, number, &[0]);
        let sent = sent(s, Action::Cancel { id: id(number), by: user(7) });
        s.report(0, released(number, epoch));
        sent
    };
    assert_eq!(cancelled(&mut s, 1), [], "a label has no share");
    // With its record comes what was used under its name.
    let first = sent(&mut s, tenant(true, SoftLimitsChange::default()));
    assert_eq!((first.len(), first[0].1.len()), (1, 1));
    s.pass(DAY_MS);
    let second = cancelled(&mut s, 2);
    let days: Vec<_> = s.ledger.tenant_use("physics").unwrap().since(0).collect();
    assert_eq!((days.len(), &second[0].0[..], &second[0].1[..]), (2, "physics", &days[1..]), "one of the days has changed");
    // A change of something else sends nothing of it.
    let soft = SoftLimitsChange { gpu_hours_budget: QuotaChange::AtMost(1), ..SoftLimitsChange::default() };
    assert_eq!(sent(&mut s, tenant(false, soft)), []);
    s.done(Action::DeleteTenant { name: "physics".into(), by: "root".into() });
    assert_eq!(s.ledger.tenant_use("physics"), None);
}

#[test]
fn bad_numbers_are_refused() {
    let mut s = Story::new(1);
    let none = SoftLimitsChange::default();
    for soft in [
        SoftLimitsChange { fair_share_target_ppm: QuotaChange::AtMost(1_000_001), ..none },
        SoftLimitsChange { burst_allowance_percent: QuotaChange::AtMost(99), ..none },
        SoftLimitsChange { burst_allowance_percent: QuotaChange::AtMost(u32::MAX), ..none },
        SoftLimitsChange { gpu_hours_budget: QuotaChange::AtMost(u64::MAX), ..none },
        SoftLimitsChange { node_hours_budget: QuotaChange::AtMost(u64::MAX), ..none },
        SoftLimitsChange { class_max: QuotaChange::AtMost(11), ..none },
    ] {
        assert!(matches!(s.act(tenant(true, soft)), Err(Refusal::Malformed { .. })), "{soft:?}");
    }
    let all = SoftLimitsChange {
        fair_share_target_ppm: QuotaChange::AtMost(150_000),
        burst_allowance_percent: QuotaChange::AtMost(150),
        gpu_hours_budget: QuotaChange::AtMost(100_000),
        node_hours_budget: QuotaChange::AtMost(50_000),
        class_max: QuotaChange::AtMost(7),
    };
    let audit = s.acted(tenant(true, all));
    let want = "physics: max_nodes unlimited, max_concurrent_allocations unlimited, fair_share_target_ppm 150000, \
                burst_allowance_percent 150, gpu_hours_budget 100000, node_hours_budget 50000, class_max 7";
    assert_eq!(audit[0].detail, want);
    s.done(tenant(false, SoftLimitsChange { gpu_hours_budget: QuotaChange::Unlimited, ..none }));
    let now = s.ledger.tenant("physics").unwrap();
    let want = Tenant { gpu_hours_budget: None, ..Tenant::clone(now) };
    assert_eq!((&**now, now.class_max, now.fair_share_target_ppm), (&want, Some(7), Some(150_000)));
}

#[test]
fn a_class_above_that_of_the_tenant_is_refused() {
    let mut s = Story::new(1);
    s.done(tenant(true, SoftLimitsChange { class_max: QuotaChange::AtMost(6), ..SoftLimitsChange::default() }));
    let of_class = |preemption_class| AllocationSpec { preemption_class, ..of_physics(1, RequeuePolicy::Never) };
    let refused: Result<Outcome, Refusal> = s.act(submit(1, of_class(7)));
    let refused = refused.unwrap_err();
    assert_eq!(refused.to_string(), "work of tenant \"physics\" may have preemption classes up to 6; this has 7");
    assert!(refused.remedy().is_some_and(|remedy| remedy.contains("--preemption-class 6 or less")));
    assert_eq!(s.ledger.admits_submission(&of_class(7), &user(7), &[].into(), s.now()), Err(refused));
    s.done(submit(1, of_class(6)));
    // Work of others, and any class where there is no bound.
    s.done(submit(2, AllocationSpec { preemption_class: 10, ..spec(1, RequeuePolicy::Never, 0) }));
    s.done(tenant(false, SoftLimitsChange { class_max: QuotaChange::Unlimited, ..SoftLimitsChange::default() }));
    s.done(submit(3, of_class(10)));
}

/// What is recorded of marks when the leader's clock looks.
fn marked(s: &mut Story) -> Vec<String> {
    let Some(due) = s.ledger.budgets_due(s.now()) else { return Vec::new() };
    let audit = s.acted(due);
    assert_eq!(s.ledger.budgets_due(s.now()), None, "it is settled");
    assert!(audit.iter().all(|record| record.action == AuditAction::BudgetMarkReached && record.actor == "quorum"));
    audit.into_iter().map(|record| record.detail).collect()
}

fn marks(s: &Story) -> Vec<(Budget, u64)> {
    s.ledger.budget_marks("physics").into_iter().map(|(budget, reached)| (budget, reached.mark.percent())).collect()
}

fn budgets(node_hours: QuotaChange<u64>, gpu_hours: QuotaChange<u64>) -> SoftLimitsChange {
    SoftLimitsChange { node_hours_budget: node_hours, gpu_hours_budget: gpu_hours, ..SoftLimitsChange::default() }
}

#[test]
fn a_mark_of_a_budget_is_recorded_once_until_the_use_is_below_it_again() {
    let mut s = Story::new(1);
    s.done(period(2));
    s.done(tenant(true, budgets(QuotaChange::AtMost(10), QuotaChange::Keep)));
    s.done(submit(1, of_physics(1, RequeuePolicy::Never)));
    let epoch = run(&mut s, 1, &[0]);
    let started = s.now();
    let notice = |s: &Story, percent| {
        let used_ms = s.now().since_ms(started);
        format!(r#"{{"tenant":"physics","budget":"node_hours","percent":{percent},"used_ms":{used_ms},"budget_hours":10,"period_days":2}}"#)
    };
    s.pass(7 * HOUR_MS);
    assert!(marked(&mut s).is_empty());
    s.pass(HOUR_MS);
    assert_eq!((marked(&mut s), marks(&s)), (vec![notice(&s, 80)], vec![(Budget::NodeHours, 80)]));
    let since = s.now();
    s.pass(HOUR_MS);
    assert!(marked(&mut s).is_empty(), "it is on record");
    // The next leader has the state from a snapshot.
    s.ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert!(marked(&mut s).is_empty());
    assert_eq!(s.ledger.budget_marks("physics")[&Budget::NodeHours].since, since);
    s.pass(HOUR_MS);
    assert_eq!(marked(&mut s), [notice(&s, 100)]);
    // The end moves the use from running work into the buckets.
    end(&mut s, 1, &[0], epoch);
    assert!(marked(&mut s).is_empty());
    assert_eq!(marks(&s), [(Budget::NodeHours, 100)]);
    // The days leave the period.
    s.pass(2 * DAY_MS);
    assert!(marked(&mut s).is_empty());
    assert_eq!(marks(&s), []);
    s.done(submit(2, of_physics(1, RequeuePolicy::Never)));
    run(&mut s, 2, &[0]);
    s.pass(11 * HOUR_MS);
    let again = marked(&mut s);
    assert!(again.len() == 1 && again[0].contains("\"percent\":100,"), "both marks at once are one record: {again:?}");
}

#[test]
fn a_changed_budget_or_period_is_compared_with_the_use_at_once() {
    let mut s = Story::new(1);
    s.done(tenant(true, SoftLimitsChange::default()));
    s.done(submit(1, of_physics(1, RequeuePolicy::Never)));
    let epoch = run(&mut s, 1, &[0]);
    s.pass(2 * HOUR_MS);
    end(&mut s, 1, &[0], epoch);
    let details = |audit: Vec<AuditRecord>| -> Vec<BudgetNotice> { audit.iter().filter_map(BudgetNotice::of).collect() };
    // Two node-hours and four GPU-hours are used.
    let notices = details(s.acted(tenant(false, budgets(QuotaChange::AtMost(2), QuotaChange::AtMost(5)))));
    let said: Vec<_> = notices.iter().map(|notice| (notice.budget, notice.percent, notice.budget_hours, notice.period_days)).collect();
    assert_eq!(said, [(Budget::GpuHours, 80, 5, 90), (Budget::NodeHours, 100, 2, 90)]);
    assert!(details(s.acted(tenant(false, budgets(QuotaChange::AtMost(2), QuotaChange::AtMost(5))))).is_empty(), "a repetition");
    let report = s.ledger.usage_report(&UsageOf::Tenant("physics".into()), None, s.now()).unwrap().budget.unwrap();
    assert_eq!(report.marks, s.ledger.budget_marks("physics"));
    // Less than all is used, then nothing of a budget, and then the former budgets count anew.
    assert!(s.acted(tenant(false, budgets(QuotaChange::AtMost(1000), QuotaChange::Unlimited))).len() == 1);
    assert_eq!(marks(&s), []);
    assert_eq!(details(s.acted(tenant(false, budgets(QuotaChange::AtMost(2), QuotaChange::Keep)))).len(), 1);
    // A shorter period without the day of the use.
    s.pass(2 * DAY_MS);
    assert!(marked(&mut s).is_empty());
    assert!(details(s.acted(period(2))).is_empty());
    assert_eq!(marks(&s), []);
    assert_eq!(details(s.acted(period(30))).len(), 1);
    s.done(Action::DeleteTenant { name: "physics".into(), by: "root".into() });
    assert_eq!(marks(&s), []);
    // Nothing is recorded of tenants that do not exist.
    assert!(s.acted(Action::CheckBudgets { tenants: vec!["physics".into(), "nobody".into()] }).is_empty());
}

/// What an attempt that has ended used: when it began and ended, on how many halves of nodes.
struct Ran {
    from: u64,
    to: u64,
    halves: u64,
}

/// Node-milliseconds of each day, by a scan of all that ran: independent of the code that is tested.
fn scanned(ran: &[Ran]) -> BTreeMap<u32, u64> {
    let mut days: BTreeMap<u32, u64> = BTreeMap::new();
    for Ran { from, to, halves } in ran {
        let mut at = *from;
        while at < *to {
            let next = (at / DAY_MS * DAY_MS + DAY_MS).min(*to);
            *days.entry(u32::try_from(at / DAY_MS).unwrap()).or_default() += (next - at) * halves / 2;
            at = next;
        }
    }
    days
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Each of four nodes runs work of its own, half of it on a half of the node, which ends in all
    /// ways and crosses midnight.
    #[test]
    fn what_is_recorded_is_what_a_scan_of_the_history_finds(
        steps in prop::collection::vec((0..4u8, 0..6u8, 0..DAY_MS / 2), 1..60), restored_at in any::<prop::sample::Index>(),
    ) {
        let mut s = Story::new(4);
        let half = Resources { cores: SIZE.cores / 2, memory_bytes: 1, gpus: 0 };
        let (mut ran, mut running, mut boots) = (Vec::new(), BTreeMap::<u8, (u128, u64)>::new(), [1u128; 4]);
        let restored_at = restored_at.index(steps.len());
        for (step, (on, how, ms)) in steps.into_iter().enumerate() {
            let number = step as u128 + 1;
            match running.remove(&on) {
                None => {
                    let share = (on % 2 == 1).then_some(half);
                    s.done(submit(number, AllocationSpec { share, ..of_physics(1, RequeuePolicy::Never) }));
                    match share {
                        Some(half) => s.claimed_share(number, on, half),
                        None => drop(s.claimed(number, &[on])),
                    }
                    let epoch = s.ledger.allocation(id(number)).unwrap().epoch;
                    s.report(on, prepared(number, epoch));
                    running.insert(on, (number, s.now().0));
                }
                Some(runs) if how == 0 => drop(running.insert(on, runs)),
                Some((number, from)) => {
                    let epoch = s.ledger.allocation(id(number)).unwrap().epoch;
                    let code = i32::from(how);
                    match how {
                        1 => s.done(Action::Cancel { id: id(number), by: user(7) }),
                        2 => {
                            boots[usize::from(on)] += 1;
                            s.forget_reports(on);
                            s.done(Action::Register(registration(on, boots[usize::from(on)], 0, true)));
                        }
                        _ => s.report(on, ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code } }),
                    }
                    prop_assert!(s.state(number).is_terminal());
                    ran.push(Ran { from, to: s.now().0, halves: 2 - u64::from(on % 2) });
                    if how != 2 {
                        s.report(on, released(number, epoch));
                    }
                }
            }
            if step == restored_at {
                s.ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
            }
            s.pass(ms);
            let record = s.ledger.usage_records.get(&Consumer::User(7));
            let days = record.map(|record| record.days.since(0).map(|day| (day.day, day.used.node_ms)).collect()).unwrap_or_default();
            prop_assert_eq!(scanned(&ran), days);
        }
        prop_assert_eq!(s.ledger.usage_records.get(&Consumer::Tenant("physics".into())).map(|record| &record.days),
            s.ledger.usage_records.get(&Consumer::User(7)).map(|record| &record.days));
    }
}
