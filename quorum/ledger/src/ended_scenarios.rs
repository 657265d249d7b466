//! Scenarios of ended allocations: which are kept, and which are dropped first.

use super::history::ChangeSet;
use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{LimitsChange, Story, id, node, registration, released, spec, user};
use super::{
    Action, Changed, Command, EndedLimits, EndedLimitsChange, EndedStatus, Forgotten, Ledger, NodeStateChange, QuotaChange, Refusal,
    UserLimitsChange,
};
use lattice_model::{AllocationSpec, AllocationState, EndReason, Entrypoint, NodeState, ReportItem, RequeuePolicy, Revision, Timestamp};

const KEPT_MS: u64 = EndedLimits::KEPT_MS_DEFAULT;
const HOUR_MS: u64 = 3_600_000;

fn limits(users: UserLimitsChange, ended: EndedLimitsChange) -> Action {
    LimitsChange { users, ended, ..LimitsChange::default() }.by("root")
}

fn history_limit(most: QuotaChange) -> Action {
    limits(UserLimitsChange { user_history: most, ..UserLimitsChange::default() }, EndedLimitsChange::default())
}

fn kept_for(ms: u64) -> Action {
    limits(UserLimitsChange::default(), EndedLimitsChange { kept_ms: Some(ms), memory_bytes: None })
}

fn memory(bytes: u64) -> Action {
    limits(UserLimitsChange::default(), EndedLimitsChange { kept_ms: None, memory_bytes: Some(bytes) })
}

fn status(s: &Story) -> EndedStatus {
    s.ledger.ended_status(s.now())
}

fn there(s: &Story, first: u128, count: u128) -> Vec<u128> {
    (first..first + count).filter(|number| is_there(s, *number)).collect()
}

/// Submits an allocation of this user and cancels it.
fn end_of(s: &mut Story, number: u128, uid: u32) {
    end_with(s, number, uid, spec(1, RequeuePolicy::Never, 0));
}

fn end_with(s: &mut Story, number: u128, uid: u32, spec: AllocationSpec) {
    s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None });
    s.done(Action::Cancel { id: id(number), by: user(uid) });
}

fn is_there(s: &Story, number: u128) -> bool {
    s.ledger.allocation(id(number)).is_some()
}

#[test]
fn a_flood_of_ends_drops_the_oldest_of_its_own_user_when_the_memory_is_full() {
    let mut s = Story::new(0);
    (0..5).for_each(|number| end_of(&mut s, number, 8));
    let mut count = 0;
    while (0..count).all(|number| is_there(&s, 1000 + number)) {
        end_of(&mut s, 1000 + count, 7);
        count += 1;
    }
    assert!(count > 1000, "{count} allocations fill {} bytes", EndedLimits::MEMORY_BYTES_DEFAULT);
    for number in count..count + 500 {
        end_of(&mut s, 1000 + number, 7);
    }
    let there = |s: &Story| (0..count + 500).filter(|number| is_there(s, 1000 + number)).collect::<Vec<u128>>();
    let kept = there(&s);
    assert_eq!(kept, (501..count + 500).collect::<Vec<u128>>(), "the newest");
    assert!((0..5).all(|number| is_there(&s, number)), "the flood is another's");
    // A large record drops as many others as it needs space, and a copy of the ledger drops the same.
    s.ledger = s.ledger.clone();
    let argv = vec!["x".repeat(60_000)];
    end_with(&mut s, 1_000_000, 7, AllocationSpec { entrypoint: Entrypoint::Command { argv }, ..spec(1, RequeuePolicy::Never, 0) });
    assert!(there(&s).len() + 20 < kept.len());
    assert!(s.ledger.has_right_counts() && is_there(&s, 1_000_000) && (0..5).all(|number| is_there(&s, number)));
}

#[test]
fn scripts_that_only_ended_work_uses_count_once() {
    let mut s = Story::new(0);
    let with = |text: &str| {
        let entrypoint = Entrypoint::Script { text: format!("#!/bin/sh\n{text}").into(), args: vec![] };
        AllocationSpec { entrypoint, ..spec(1, RequeuePolicy::Never, 0) }
    };
    let long = "x".repeat(500_000);
    (0..100).for_each(|number| end_with(&mut s, number, 7, with(&long)));
    assert!((0..100).all(|number| is_there(&s, number)), "one text");
    (100..120).for_each(|number| end_with(&mut s, number, 7, with(&format!("{number}{long}"))));
    let kept: Vec<u128> = (0..120).filter(|number| is_there(&s, *number)).collect();
    assert_eq!(kept, (112..120).collect::<Vec<u128>>(), "eight texts fit");
}

#[test]
fn a_limit_of_a_user_takes_effect_when_the_next_allocation_ends() {
    let mut s = Story::new(0);
    (0..5).for_each(|number| end_of(&mut s, number, 8));
    end_of(&mut s, 10, 7);
    s.done(history_limit(QuotaChange::AtMost(3)));
    assert!((0..5).all(|number| is_there(&s, number)));
    end_of(&mut s, 6, 8);
    let left: Vec<u128> = (0..11).filter(|number| is_there(&s, *number)).collect();
    assert_eq!(left, [3, 4, 6, 10]);
    // Many are dropped in steps.
    s.done(history_limit(QuotaChange::Unlimited));
    (1000..1250).for_each(|number| end_of(&mut s, number, 9));
    s.done(history_limit(QuotaChange::AtMost(10)));
    let mut left = vec![];
    for number in 1250..1253 {
        end_of(&mut s, number, 9);
        left.push((1000..1253).filter(|number| is_there(&s, *number)).count());
    }
    assert_eq!(left, [151, 52, 10]);
}

/// Neither the user's limit nor a week drops the record: it shows what the node still has.
#[test]
fn a_record_is_kept_while_a_node_holds_a_share() {
    let mut s = Story::new(2);
    s.done(history_limit(QuotaChange::AtMost(3)));
    let run = |s: &mut Story, number: u128, on: u8| {
        s.submit(number, 1, RequeuePolicy::Never, 0);
        let epoch = s.claimed(number, &[on]);
        s.done(Action::Cancel { id: id(number), by: user(7) });
        epoch
    };
    let first = run(&mut s, 1, 0);
    run(&mut s, 2, 1);
    s.pass(2 * KEPT_MS);
    (10..13).for_each(|number| end_of(&mut s, number, 7));
    assert!(is_there(&s, 1) && is_there(&s, 2) && is_there(&s, 12) && !is_there(&s, 10) && s.ledger.has_right_counts());
    s.report(0, released(1, first));
    assert!(is_there(&s, 1));
    end_of(&mut s, 13, 7);
    assert!(!is_there(&s, 1) && is_there(&s, 2));
    // A reboot releases as well.
    s.done(Action::Register(registration(1, 2, 1, true)));
    assert!(s.ledger.holdings(&node(1)).is_empty() && is_there(&s, 2));
    s.ledger = s.ledger.clone();
    end_of(&mut s, 14, 7);
    assert!(!is_there(&s, 2) && s.ledger.has_right_counts());
}

/// A fenced holding keeps the record as well, until its node is removed.
#[test]
fn a_record_is_not_kept_for_a_removed_node() {
    let mut s = Story::new(2);
    s.done(history_limit(QuotaChange::AtMost(0)));
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.claimed(1, &[1]);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    for state in [NodeState::Degraded, NodeState::Down] {
        let incarnation = s.ledger.node(&node(1)).unwrap().incarnation;
        s.done(Action::NodeStates(vec![NodeStateChange { node: node(1), incarnation, state, reason: "silent".into() }]));
    }
    s.done(Action::ConfirmDead { node: node(1), by: "root".into(), reason: "no power".into() });
    end_of(&mut s, 2, 7);
    assert!(s.ledger.holdings(&node(1))[0].fenced && is_there(&s, 1) && !is_there(&s, 2));
    s.done(Action::RemoveNode { node: node(1), by: "root".into(), reason: "sold".into() });
    invariant_indexes_equal_scans(&s.ledger);
    end_of(&mut s, 3, 7);
    assert!(!is_there(&s, 1));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn an_end_is_published_even_if_the_user_keeps_no_history() {
    let mut s = Story::new(1);
    s.done(history_limit(QuotaChange::AtMost(0)));
    (1..=6).for_each(|number| s.submit(number, 1, RequeuePolicy::Never, 0));
    let epoch = s.claimed(6, &[0]);
    s.report(0, ReportItem::Prepared { allocation: id(6), epoch });
    // One log entry ends all of them, and drops them again.
    let revision = Revision(s.ledger.revision().0 + 1);
    let mut changed = Changed::default();
    let cancels = (1..=5).map(|number| Action::Cancel { id: id(number), by: user(7) });
    for action in cancels {
        changed.merge(s.ledger.apply(revision, &Command { at: s.now(), action }).changed);
    }
    let set = ChangeSet::of(&s.ledger, changed);
    let states: Vec<_> = set.allocations.iter().map(|a| (a.id, a.state)).collect();
    assert_eq!(states, (1..=5).map(|number| (id(number), AllocationState::Cancelled)).collect::<Vec<_>>());
    assert!((1..=5).all(|number| !is_there(&s, number)));
    s.forward(revision);
    let reason = EndReason::Exited { code: 0 };
    s.report(0, ReportItem::Ended { allocation: id(6), epoch, reason });
    assert!(is_there(&s, 6), "its node has not released it");
}

#[test]
fn a_repeated_submission_of_ended_work_does_not_run_again_within_a_flood() {
    let mut s = Story::new(0);
    end_of(&mut s, 1, 7);
    // More records of another user than one user could keep before.
    (1000..2200).for_each(|number| end_of(&mut s, number, 8));
    let again = Action::Submit { id: id(1), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(7), claim: None };
    s.done(again);
    assert_eq!(s.state(1), AllocationState::Cancelled);
}

#[test]
fn ended_work_is_kept_for_the_configured_time() {
    let mut s = Story::new(0);
    assert_eq!(status(&s).limits, EndedLimits { kept_ms: KEPT_MS, memory_bytes: 4 << 20 });
    let records = s.acted(kept_for(HOUR_MS));
    assert_eq!(records[0].detail, "sensitive_pool_size unlimited, ended_kept_ms 3600000");
    assert!(s.acted(kept_for(HOUR_MS)).is_empty(), "a repetition changes nothing");
    end_of(&mut s, 1, 7);
    let first = s.now();
    s.pass(HOUR_MS / 2);
    end_of(&mut s, 2, 8);
    let second = s.now();
    s.pass(HOUR_MS / 2 - 6000);
    end_of(&mut s, 3, 7);
    assert_eq!((there(&s, 1, 3), status(&s).oldest_ms()), (vec![1, 2, 3], Some(HOUR_MS)), "not a second too early");
    assert_eq!(status(&s).forgotten, Forgotten::default());
    end_of(&mut s, 4, 7);
    assert_eq!(there(&s, 1, 4), [2, 3, 4]);
    let now = status(&s);
    assert_eq!((now.count, now.oldest), (3, Some(second)));
    assert_eq!(now.forgotten, Forgotten { until: Some(first), too_early_until: None });
    assert!(!now.is_cut_short());
    // A longer time applies to existing records; a shorter one takes effect with the next ends, in steps.
    s.done(kept_for(3 * HOUR_MS));
    s.pass(HOUR_MS);
    (1000..1240).for_each(|number| end_of(&mut s, number, 9));
    assert_eq!(there(&s, 1, 4), [2, 3, 4]);
    s.done(kept_for(HOUR_MS));
    s.pass(2 * HOUR_MS);
    let mut left = vec![];
    for number in 1240..1243 {
        end_of(&mut s, number, 9);
        left.push(there(&s, 1, 4).len() + there(&s, 1000, 243).len());
    }
    assert_eq!(left, [144, 45, 3]);
    assert!(!status(&s).is_cut_short() && s.ledger.has_right_counts());
}

#[test]
fn limits_of_ended_work_have_bounds() {
    let mut s = Story::new(0);
    let before = s.ledger.cluster_limits();
    for (wrong, limit) in [
        (kept_for(HOUR_MS - 1), "ended_kept"),
        (kept_for(366 * 24 * HOUR_MS + 1), "ended_kept"),
        (memory((1 << 20) - 1), "ended_memory"),
        (memory((64 << 30) + 1), "ended_memory"),
    ] {
        let Err(Refusal::Malformed { why }) = s.act(wrong) else { panic!("{limit} has bounds") };
        assert!(why.ends_with(&format!("(limit {limit})")), "{why}");
        assert_eq!(s.ledger.cluster_limits(), before);
    }
    let records = s.acted(memory(1 << 20));
    assert_eq!(records[0].detail, "sensitive_pool_size unlimited, ended_memory_bytes 1048576");
    s.done(kept_for(366 * 24 * HOUR_MS));
    s.done(memory(64 << 30));
}

#[test]
fn memory_that_cuts_the_time_short_says_so_until_the_time_is_over() {
    let mut s = Story::new(0);
    let large = || {
        let argv = vec!["x".repeat(60_000)];
        AllocationSpec { entrypoint: Entrypoint::Command { argv }, ..spec(1, RequeuePolicy::Never, 0) }
    };
    let mut ends: Vec<Timestamp> = vec![];
    while there(&s, 0, ends.len() as u128).len() == ends.len() {
        end_with(&mut s, ends.len() as u128, 7, large());
        ends.push(s.now());
    }
    let now = status(&s);
    assert!(now.is_cut_short() && now.bytes <= now.limits.memory_bytes && now.bytes + 70_000 > now.limits.memory_bytes, "{now:?}");
    assert_eq!(now.forgotten, Forgotten { until: Some(ends[0]), too_early_until: Some(ends[0]) });
    assert_eq!((now.count, now.oldest), (ends.len() as u64 - 1, Some(ends[1])));
    // The status survives a snapshot.
    let restored: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(restored.ended_status(s.now()), now);
    s.ledger = restored;
    // With enough memory, work that ended so long ago would be gone, too.
    s.pass(KEPT_MS);
    assert!(!status(&s).is_cut_short());
    end_with(&mut s, 1000, 7, large());
    let now = status(&s);
    assert!(now.count == 1 && !now.is_cut_short(), "{now:?}");
}

/// A lowered limit of the memory takes effect in steps, and each end drops at least what it adds.
#[test]
fn a_lowered_limit_of_the_memory_drops_some_with_each_end() {
    let mut s = Story::new(0);
    (0..1500).for_each(|number| end_of(&mut s, number, 7));
    assert_eq!(there(&s, 0, 1500).len(), 1500);
    s.done(memory(1 << 20));
    let mut last = status(&s);
    assert!(last.bytes > 2 << 20 && last.count == 1500);
    for number in 1500..1502 {
        end_of(&mut s, number, 7);
        let now = status(&s);
        assert_eq!(now.count, last.count - 99);
        last = now;
    }
    // Its record has as many bytes as 400 others.
    let text = format!("#!/bin/sh\n{}", "x".repeat(700_000));
    let entrypoint = Entrypoint::Script { text: text.into(), args: vec![] };
    end_with(&mut s, 1502, 7, AllocationSpec { entrypoint, ..spec(1, RequeuePolicy::Never, 0) });
    let now = status(&s);
    assert!(now.bytes <= last.bytes && now.count < last.count - 300, "{last:?} {now:?}");
    for number in 1503..1530 {
        end_of(&mut s, number, 7);
    }
    let now = status(&s);
    assert!(now.bytes <= 1 << 20 && is_there(&s, 1529) && s.ledger.has_right_counts(), "{now:?}");
}

#[test]
fn a_refusal_says_what_may_be_forgotten_and_where_it_is() {
    let mut s = Story::new(0);
    let refused = |s: &Story, key: &str| s.ledger.find(key).map(|_| ()).unwrap_err();
    end_of(&mut s, 1, 7);
    let until = s.now();
    let key = id(1).to_string();
    assert_eq!(refused(&s, "ffff").remedy(), None, "nothing is forgotten yet");
    s.pass(2 * KEPT_MS);
    end_of(&mut s, 2, 7);
    let refusal = refused(&s, &key);
    assert_eq!(refusal.to_string(), format!("there is no allocation {key}"));
    let remedy = format!(
        "the quorum keeps ended work for 7 days, or less where the memory for it is full, and has forgotten some that ended until {until}. \
         An operator finds forgotten work in the audit log: `lattice audit query --alloc {key}`"
    );
    assert_eq!(refusal.remedy(), Some(remedy));
    assert_eq!(s.act(Action::Cancel { id: id(1), by: user(7) }), Err(refusal));
    assert_eq!(refused(&s, "xyzw").remedy(), None, "it is no id");
}
