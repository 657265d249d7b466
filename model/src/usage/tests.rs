use super::*;
use crate::claim::{Share, SharePhase};
use crate::principal::Principal;
use crate::test_builders::spec;
use crate::{Allocation, AllocationId, AllocationSpec};
use proptest::prelude::*;
use uuid::Uuid;

const NODE: NodeUse = NodeUse { node_millionths: WHOLE_NODE, gpus: 4 };

fn at(day: u64, ms: u64) -> Timestamp {
    Timestamp(day * DAY_MS + ms)
}

fn of_days(use_of: &DailyUse) -> Vec<(u32, u64, u64)> {
    use_of.since(0).map(|DayUse { day, used }| (day, used.node_ms, used.gpu_ms)).collect()
}

#[test]
fn work_that_spans_midnight_belongs_to_both_days() {
    let mut days = DailyUse::default();
    assert_eq!(days.add(NODE, at(100, DAY_MS - 10), at(101, 5), BudgetPeriod::default()), Some(100));
    assert_eq!(of_days(&days), [(100, 10, 40), (101, 5, 20)]);
    // Up to midnight exactly: the next day has nothing.
    assert_eq!(days.add(NODE, at(101, DAY_MS - 7), at(102, 0), BudgetPeriod::default()), Some(101));
    assert_eq!(of_days(&days), [(100, 10, 40), (101, 12, 48)]);
    // A clock that went back charges nothing.
    assert_eq!(days.add(NODE, at(103, 0), at(102, 0), BudgetPeriod::default()), None);
    assert_eq!((days.len(), days.last_day()), (2, Some(101)));
}

#[test]
fn days_before_the_period_are_forgotten_and_never_charged() {
    let week = BudgetPeriod::of_days(7).unwrap();
    let mut days = DailyUse::default();
    days.add(NODE, at(100, 0), at(100, 9), week);
    // It ran for 20 days, of which the period has 7.
    assert_eq!(days.add(NODE, at(90, 0), at(109, 500), week), Some(103));
    assert_eq!(days.len(), 7);
    assert_eq!(days.within(at(109, 500), 7), Used { node_ms: 6 * DAY_MS + 500, gpu_ms: 4 * (6 * DAY_MS + 500) });
    assert_eq!(days.within(at(109, 500), 1), Used { node_ms: 500, gpu_ms: 2000 });
    assert_eq!(days.within(at(109, 500), 0), Used::default());
    assert_eq!(days.within(at(300, 0), 7), Used::default());
    // The longest time that a clock can show costs no more.
    assert!(days.add(NODE, Timestamp(0), Timestamp(u64::MAX), week).is_some());
    assert_eq!(days.len(), 7);
}

#[test]
fn work_that_runs_counts_from_the_first_of_the_days_on() {
    let within = |from, to, days| NODE.within((from, to), at(109, 500), days);
    let of_ms = |ms| Used { node_ms: ms, gpu_ms: 4 * ms };
    assert_eq!(within(at(90, 0), at(109, 500), 7), of_ms(6 * DAY_MS + 500));
    assert_eq!(within(at(109, 100), at(109, 500), 7), of_ms(400));
    // It reached its walltime before.
    assert_eq!(within(at(90, 0), at(102, 500), 7), Used::default());
    assert_eq!(within(at(90, 0), at(103, 500), 7), of_ms(500));
}

#[test]
fn use_counts_half_after_one_half_life() {
    let mut days = DailyUse::default();
    days.add(NODE, at(100, 0), at(100, 1000), BudgetPeriod::default());
    let decayed = |day, ms| days.decayed(at(day, ms), HALF_LIFE);
    assert_eq!([decayed(100, 1000), decayed(101, 0), decayed(108, 0), decayed(115, 0)], [1000, 1000, 500, 250]);
    assert_eq!(decayed(100_000, 0), 0);
    assert_eq!(days.decayed(at(101, 1), Duration::ZERO), 500, "no division by zero");
    let most = NodeUse { node_millionths: u64::MAX, gpus: u64::MAX };
    days.add(most, at(100, 0), at(101, 0), BudgetPeriod::default());
    assert_eq!(days.within(at(101, 0), 90), Used { node_ms: u64::MAX, gpu_ms: u64::MAX }, "sums saturate");
    assert_eq!(days.decayed(at(101, 0), HALF_LIFE), u64::MAX);
}

#[test]
fn a_part_of_a_node_is_its_greatest_part() {
    let size = Resources { cores: 8, memory_bytes: 64, gpus: 4 };
    let of = |share: Option<Resources>, amounts: &[Resources], size: Option<Resources>| {
        let principal = Principal { name: "u".into(), uid: 1, gid: 1, groups: vec![] };
        let spec = AllocationSpec { share, ..spec() };
        let shares = (0..).zip(amounts).map(|(number, amount): (u32, _)| Share {
            node: format!("n{number}").parse().unwrap(),
            resources: *amount,
            phase: SharePhase::Claimed,
        });
        let allocation =
            Allocation { shares: shares.collect(), ..Allocation::submitted(AllocationId(Uuid::nil()), spec, principal, Timestamp(1)) };
        let NodeUse { node_millionths, gpus } = NodeUse::of(&allocation, |_| size);
        (node_millionths, gpus)
    };
    let part = |cores, memory_bytes, gpus| Resources { cores, memory_bytes, gpus };
    let shared = |amount: Resources| of(Some(amount), &[amount], Some(size));
    assert_eq!(shared(part(2, 8, 0)), (250_000, 0));
    assert_eq!(shared(part(2, 32, 1)), (500_000, 1));
    assert_eq!(shared(part(1, 1, 3)), (750_000, 3));
    // Three sevenths, rounded up: a share never counts as less than it is.
    assert_eq!(of(Some(part(3, 0, 0)), &[part(3, 0, 0)], Some(part(7, 0, 0))), (428_572, 0));
    // Whole nodes, of whatever size they are now; and a share of a node that is gone.
    assert_eq!(of(None, &[size, size], Some(part(16, 128, 8))), (2_000_000, 8));
    assert_eq!(of(Some(part(1, 1, 1)), &[part(1, 1, 1)], None), (1_000_000, 1));
    // The node shrank since.
    assert_eq!(of(Some(part(4, 1, 0)), &[part(4, 1, 0)], Some(part(2, 8, 0))), (1_000_000, 0));
}

#[test]
fn a_period_has_1_to_366_days_however_it_is_given() {
    for days in [1, 90, 366] {
        assert_eq!(BudgetPeriod::of_days(days).unwrap().days(), days);
    }
    for days in [0, 367, u32::MAX] {
        assert_eq!(BudgetPeriod::of_days(days), Err(InvalidPeriod { days }));
        assert!(serde_json::from_str::<BudgetPeriod>(&days.to_string()).is_err());
    }
    assert_eq!(BudgetPeriod::default().days(), 90);
}

#[test]
fn a_follower_has_not_more_days_than_any_period() {
    let mut days = DailyUse::default();
    let used = Used { node_ms: 1, gpu_ms: 1 };
    days.replace((0..1000).map(|day| DayUse { day, used }));
    assert_eq!((days.len(), days.since(0).next().map(|first| first.day)), (366, Some(634)));
    let more = Used { node_ms: 2, gpu_ms: 2 };
    days.replace([DayUse { day: 999, used: more }]);
    assert_eq!(days.since(999).collect::<Vec<_>>(), [DayUse { day: 999, used: more }]);
}

#[test]
fn the_recorded_use_is_known_without_the_buckets() {
    let third = NodeUse { node_millionths: 333_333, gpus: 1 };
    let week = BudgetPeriod::of_days(7).unwrap();
    // Each day is rounded by itself, and what is before the period is not recorded.
    for (from, to) in [(5, 5), (5, 1000), (DAY_MS - 7, 3 * DAY_MS + 11), (3, 40 * DAY_MS + 1), (9, 2)] {
        let (from, to) = (Timestamp(from), Timestamp(to));
        let mut days = DailyUse::default();
        days.add(third, from, to, week);
        let sum = days.since(0).fold(Used::default(), |sum, day| sum.plus(day.used));
        assert_eq!(third.recorded((from, to), week), sum, "{from:?} to {to:?}");
        assert_eq!(week.recorded_ms(from, to), sum.gpu_ms, "{from:?} to {to:?}");
    }
    assert_eq!(week.recorded_ms(Timestamp(3), Timestamp(40 * DAY_MS + 1)), 6 * DAY_MS + 1);
}

proptest! {
    /// Split over days or not, all of it is there, and a follower of the changes has the same.
    #[test]
    fn nothing_is_lost_at_midnight(spans in prop::collection::vec((0..60 * DAY_MS, 0..5 * DAY_MS, 0..4u64), 1..40)) {
        let period = BudgetPeriod::of_days(BudgetPeriod::DAYS_MAX).unwrap();
        let (mut days, mut follower, mut sum) = (DailyUse::default(), DailyUse::default(), Used::default());
        for (begin, ms, nodes) in spans {
            let node_use = NodeUse { node_millionths: nodes * WHOLE_NODE, gpus: nodes * 2 };
            let changed = days.add(node_use, Timestamp(begin), Timestamp(begin + ms), period);
            prop_assert_eq!(changed.is_some(), ms * nodes > 0);
            let times = (Timestamp(begin), Timestamp(begin + ms));
            prop_assert_eq!(node_use.recorded(times, period), node_use.for_ms(ms));
            prop_assert_eq!(period.recorded_ms(times.0, times.1), ms);
            follower.replace(changed.into_iter().flat_map(|day| days.since(day)));
            sum = sum.plus(Used { node_ms: ms * nodes, gpu_ms: ms * nodes * 2 });
        }
        prop_assert_eq!(days.within(Timestamp(65 * DAY_MS), 66), sum);
        let encoded = serde_json::to_string(&days).unwrap();
        prop_assert_eq!(&serde_json::from_str::<DailyUse>(&encoded).unwrap(), &days);
        prop_assert_eq!(follower, days);
    }
}
