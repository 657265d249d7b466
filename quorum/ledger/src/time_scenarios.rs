//! The time of commands: whatever the leader's clock shows, it never goes back, and jumps ahead
//! only with `AdvanceTime`.

use super::scenarios::{Story, id, node, registration, spec, user};
use super::{Action, Command, ENTRY_LEAP_MS_MAX, EndedLimits, Ledger, Outcome};
use lattice_model::{AllocationState, EndReason, HoldKind, ReportItem, RequeuePolicy, Revision, Timestamp, When};
use proptest::prelude::*;

const TEN_YEARS_MS: i64 = 10 * 365 * 86_400_000;

fn ended(s: &mut Story, number: u128) {
    s.submit(number, 1, RequeuePolicy::Never, 0);
    let epoch = s.claimed(number, &[0]);
    s.report(0, ReportItem::Prepared { allocation: id(number), epoch });
    s.report(0, ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code: 0 } });
    s.report(0, ReportItem::Released { allocation: id(number), epoch, usage: None });
}

#[test]
fn a_jump_of_the_leaders_clock_forgets_no_ended_work_and_ends_no_hold() {
    let mut s = Story::new(2);
    (1..=20).for_each(|number| ended(&mut s, number));
    let hold = |until| Action::SetHold {
        node: node(1),
        kind: HoldKind::Maintenance,
        by: "root".into(),
        reason: "fan".into(),
        until,
        deadline: None,
    };
    s.done(hold(Some(When::AfterMs(3_600_000))));
    let until = s.ledger.node(&node(1)).unwrap().hold(HoldKind::Maintenance).unwrap().until;
    let before = s.ledger.time();
    s.ahead_ms = TEN_YEARS_MS;
    ended(&mut s, 21);
    // Proposed by a leader whose clock is ahead.
    s.done(Action::LiftHold { node: node(1), kind: HoldKind::Maintenance, by: "quorum".into(), until });
    s.ahead_ms = 0;
    for number in 1..=21 {
        assert_eq!(s.ledger.allocation(id(number)).map(|a| a.state), Some(AllocationState::Completed), "{number}");
    }
    let again = Action::Submit { id: id(1), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(7), claim: None };
    s.done(again);
    assert_eq!(s.ledger.allocation(id(1)).map(|a| a.state), Some(AllocationState::Completed), "it is not run again");
    assert!(s.ledger.node(&node(1)).unwrap().hold(HoldKind::Maintenance).is_some());
    // Six consecutive commands advanced the time by at most the allowed step each.
    assert!(s.ledger.time().since_ms(before) <= 6 * ENTRY_LEAP_MS_MAX);
    // `AdvanceTime` advances by the whole time: ended allocations are dropped after a week.
    s.ahead_ms = i64::try_from(2 * EndedLimits::KEPT_MS_DEFAULT).unwrap();
    s.done(Action::AdvanceTime);
    ended(&mut s, 22);
    assert!(s.ledger.allocation(id(1)).is_none() && s.ledger.allocation(id(22)).is_some());
}

proptest! {
    /// Commands from leaders with arbitrary clocks, in any order.
    #[test]
    fn time_never_goes_back_and_leaps_only_with_advance_time(
        commands in proptest::collection::vec((any::<u64>(), 0u8..8), 1..60),
        small in proptest::collection::vec(0u64..200_000, 60),
    ) {
        let mut ledger = Ledger::default();
        let mut now = 1_772_704_812_000;
        let apply = |ledger: &mut Ledger, index: usize, at, action| {
            ledger.apply(Revision(index as u64 + 1), &Command { at: Timestamp(at), action })
        };
        apply(&mut ledger, 0, now, Action::Bootstrap { cluster: "c".into() });
        let mut last = ledger.time();
        let mut recorded = last;
        for (index, (wild, what)) in commands.into_iter().enumerate() {
            now += small[index];
            let at = if what < 4 { now } else { wild };
            let vouched = what % 4 == 0;
            let action = if vouched { Action::AdvanceTime } else { Action::Register(registration(1, 1, 0, true)) };
            let applied = apply(&mut ledger, index + 1, at, action);
            let time = ledger.time();
            prop_assert!(time >= last, "{time} after {last}");
            prop_assert!(vouched || time.since_ms(last) <= ENTRY_LEAP_MS_MAX, "{time} after {last}");
            if vouched {
                prop_assert_eq!((time, applied.result), (Timestamp(at).max(last), Ok(Outcome::Done)));
            }
            for record in applied.audit {
                prop_assert!(record.at >= recorded && record.at == time);
                recorded = record.at;
            }
            last = time;
        }
    }
}
