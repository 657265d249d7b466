//! Scenarios of ended work that waits for accounting, and its way into a store that may crash.

use super::ended_work::ENDED_WORK_BYTES_MAX;
use super::properties::scans::invariant_indexes_equal_scans;
use super::recovery::beyond;
use super::scenarios::{SIZE, Story, id, node, prepared, released, spec, user};
use super::task_group_scenarios::live_lanes;
use super::{ACCOUNTING_LEASE, Action, Correction, EndsStatus, Ledger, Outcome, Refusal};
use lattice_ledger_state::usage_records::Consumer;
use lattice_model::ended_work::{AccountedUntil, EndedWork};
use lattice_model::{
    AllocationSpec, AllocationState, AuditAction, AuditRecord, BudgetPeriod, DagId, DagStep, DagSubmission, EndReason, Epoch, ReportItem,
    RequeuePolicy, Revision, TaskGroup, Timestamp, Used,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// The agent of node 0 has the lease from now on; returns its token.
fn lease(s: &mut Story) -> u64 {
    let lease = Action::GrantLease { name: ACCOUNTING_LEASE.into(), holder: node(0), ttl_ms: 1000, user: None };
    let Ok(Outcome::Leased { token }) = s.act(lease) else { panic!("nobody else has it") };
    token
}

fn until(store: u128, sequence: u64) -> AccountedUntil {
    AccountedUntil { store: Uuid::from_u128(store), sequence }
}

fn account(store: u128, sequence: u64, lease_token: u64) -> Action {
    Action::Account { until: until(store, sequence), node: node(0), lease_token }
}

fn move_store(force: bool) -> Action {
    Action::MoveAccounting { by: "anna@n1".into(), force }
}

fn submit(s: &mut Story, number: u128, spec: AllocationSpec) {
    s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None });
}

fn cancel(number: u128) -> Action {
    Action::Cancel { id: id(number), by: user(7) }
}

/// Submits an allocation and cancels it; returns the audit records of the cancel.
fn end(s: &mut Story, number: u128) -> Vec<AuditRecord> {
    submit(s, number, spec(1, RequeuePolicy::Never, 0));
    s.acted(cancel(number))
}

fn waiting(s: &Story) -> Vec<u64> {
    s.ledger.ended_work_after(0).map(|work| work.sequence).collect()
}

fn shown(records: &[AuditRecord]) -> Vec<(AuditAction, &str, &str)> {
    records.iter().map(|record| (record.action, record.actor.as_str(), record.detail.as_str())).collect()
}

fn run(s: &mut Story, number: u128, nodes: &[u8]) -> Epoch {
    let epoch = s.claimed(number, nodes);
    nodes.iter().for_each(|node| s.report(*node, prepared(number, epoch)));
    epoch
}

#[test]
fn nothing_is_kept_before_a_store_has_been_seen_and_every_end_from_then_on() {
    let mut s = Story::new(1);
    end(&mut s, 1);
    end(&mut s, 2);
    assert_eq!(s.ledger.ends_status(), EndsStatus { ended: 2, ..EndsStatus::default() });
    let token = lease(&mut s);
    let store = Uuid::from_u128(1);
    let audit = s.acted(account(1, 0, token));
    let detail = format!("store {store}, which has everything up to number 0 of 2");
    assert_eq!(shown(&audit), [(AuditAction::AccountingStoreSet, "node:n0", detail.as_str())]);
    end(&mut s, 3);
    end(&mut s, 4);
    assert_eq!(waiting(&s), [3, 4]);
    assert_eq!(s.ledger.ended_work_after(3).map(|work| work.allocation).collect::<Vec<_>>(), [id(4)]);
    assert_eq!(s.ledger.ends_status(), EndsStatus { accounted: Some(until(1, 0)), ended: 4, waiting: 2, dropped: 0 });
    // The store confirms ends, twice, and a late message with a lower number changes nothing.
    for sequence in [3, 3, 1] {
        assert!(s.acted(account(1, sequence, token)).is_empty());
        assert_eq!((waiting(&s), s.ledger.ends_status().accounted), (vec![4], Some(until(1, 3))));
    }
    s.done(account(1, 4, token));
    assert_eq!(s.ledger.ends_status(), EndsStatus { accounted: Some(until(1, 4)), ended: 4, waiting: 0, dropped: 0 });
}

#[test]
fn only_the_holder_of_the_lease_confirms_and_for_the_one_store_alone() {
    let mut s = Story::new(2);
    let token = lease(&mut s);
    let stale = Refusal::StaleLease { name: ACCOUNTING_LEASE.into(), token: token + 1 };
    assert_eq!(s.act(account(1, 0, token + 1)), Err(stale));
    let of_another = Action::Account { until: until(1, 0), node: node(1), lease_token: token };
    assert_eq!(s.act(of_another), Err(Refusal::StaleLease { name: ACCOUNTING_LEASE.into(), token }));
    assert_eq!(s.ledger.ends_status(), EndsStatus::default());
    s.done(account(1, 0, token));
    end(&mut s, 1);
    assert_eq!(s.act(account(2, 1, token)), Err(Refusal::OtherStore { store: Uuid::from_u128(1) }));
    let Err(Refusal::Malformed { why }) = s.act(account(1, 2, token)) else { panic!("there is one end") };
    let store = Uuid::from_u128(1);
    assert_eq!(
        why,
        format!(
            "accounting store {store} has ended work up to number 2, but the last number of this cluster is 1: the store belongs to another cluster"
        )
    );
    assert_eq!(waiting(&s), [1]);
    // No user gets the lease.
    s.done(Action::RevokeLease { name: ACCOUNTING_LEASE.into(), token: None, by: "anna@n1".into() });
    let of_user = Action::GrantLease { name: ACCOUNTING_LEASE.into(), holder: node(0), ttl_ms: 1000, user: Some(user(7)) };
    assert!(matches!(s.act(of_user), Err(Refusal::Malformed { .. })));
    assert!(matches!(s.act(account(1, 1, token)), Err(Refusal::StaleLease { .. })), "it was revoked");
}

#[test]
fn a_record_has_what_all_claims_of_the_work_have_used() {
    let mut s = Story::new(3);
    let token = lease(&mut s);
    s.done(account(1, 0, token));
    let tags: BTreeMap<String, String> = [("run".to_owned(), "7".to_owned())].into();
    let sim = AllocationSpec {
        name: "sim".into(),
        tenant: "physics".into(),
        project: "higgs".into(),
        tags: tags.clone(),
        walltime: None,
        ..spec(2, RequeuePolicy::Always, 9)
    };
    submit(&mut s, 1, sim);
    let submitted_at = s.now();
    let epoch = s.claimed(1, &[0, 1]);
    let claimed_at = s.now();
    [0, 1].into_iter().for_each(|node| s.report(node, prepared(1, epoch)));
    let started_at = s.now();
    s.pass(10_000);
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 1 } });
    let mut ms = s.now().since_ms(started_at);
    [0, 1].into_iter().for_each(|node| s.report(node, released(1, epoch)));
    s.pass(77_000);
    assert_eq!((s.state(1), waiting(&s)), (AllocationState::Pending, vec![]), "it has not ended");
    // The state of a member that was started anew in between.
    s.ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    let epoch = run(&mut s, 1, &[1, 2]);
    let again = s.now();
    s.pass(20_000);
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    ms += s.now().since_ms(again);
    let used = Used { node_ms: 2 * ms, gpu_ms: 2 * ms * u64::from(SIZE.gpus) };
    let want = EndedWork {
        sequence: 1,
        allocation: id(1),
        job: 1,
        name: "sim".into(),
        tenant: "physics".into(),
        project: "higgs".into(),
        vcluster: String::new(),
        user: "u7".into(),
        uid: 7,
        tags,
        state: AllocationState::Completed,
        reason: "completed".into(),
        exit_code: Some(0),
        nodes: "n[1-2]".into(),
        node_count: 2,
        submitted_at,
        claimed_at: Some(claimed_at),
        started_at: Some(started_at),
        ended_at: s.now(),
        requeue_count: 1,
        preempted_count: 0,
        used,
        core_ms: 2 * ms * u64::from(SIZE.cores),
        part_of: None,
        corrects: None,
    };
    assert_eq!(s.ledger.ended_work_after(0).map(|work| (**work).clone()).collect::<Vec<_>>(), [want]);
    let recorded = s.ledger.usage_records.get(&Consumer::User(7)).unwrap();
    assert_eq!(recorded.days.within(s.now(), BudgetPeriod::DAYS_MAX), used, "as in the buckets");
    assert!(s.ledger.ends.used_so_far.is_empty(), "nothing is kept of what has ended");
}

#[test]
fn a_correction_is_numbered_recorded_and_given_to_the_store_and_only_who_may_change_the_work_makes_it() {
    let mut s = Story::new(1);
    let token = lease(&mut s);
    s.done(account(1, 0, token));
    end(&mut s, 1);
    let work = s.ledger.ended_work_after(0).next().map(|work| (**work).clone()).unwrap();
    let correct = |by: u32, work: &EndedWork, project: &str| {
        let tags = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())].into();
        let correction = Box::new(Correction { work: work.clone(), project: Some(project.to_owned()), tags });
        Action::CorrectEndedWork { correction, by: user(by), as_operator: by == 0 }
    };
    assert!(matches!(s.act(correct(7, &work, "higgs")), Err(Refusal::Malformed { .. })), "the store does not have it yet");
    s.done(account(1, 1, token));
    assert!(matches!(s.act(correct(8, &work, "mine")), Err(Refusal::NotYours { .. })));
    assert!(matches!(s.act(correct(7, &work, "a\nb")), Err(Refusal::Malformed { .. })));
    assert_eq!(waiting(&s), [] as [u64; 0]);
    let records = s.acted(correct(7, &work, "higgs"));
    let detail = "end 1: project higgs instead of none, tags a=1 instead of none";
    assert_eq!(shown(&records), [(AuditAction::EndedWorkCorrected, "u7", detail)]);
    assert_eq!(records[0].allocation, Some(id(1)));
    let tags: BTreeMap<String, String> = [("a".to_owned(), "1".to_owned())].into();
    let want = EndedWork { sequence: 2, project: "higgs".into(), tags, corrects: Some(1), ..work.clone() };
    assert_eq!(s.ledger.ended_work_after(0).map(|work| (**work).clone()).collect::<Vec<_>>(), std::slice::from_ref(&want));
    assert!(s.acted(correct(7, &work, "higgs")).is_empty(), "the answer was lost");
    // The store has the correction, and a repeated request reads the corrected record.
    let now = EndedWork { sequence: 1, corrects: None, ..want };
    assert!(s.acted(correct(0, &now, "higgs")).is_empty());
    assert_eq!(waiting(&s), [2]);
    // The ledger still has the work, so the owner that an agent sends does not count.
    let forged = EndedWork { user: "u8".into(), uid: 8, ..now };
    assert!(matches!(s.act(correct(8, &forged, "mine")), Err(Refusal::NotYours { owner, .. }) if owner == "u7"));
}

#[test]
fn corrections_that_the_store_does_not_have_yet_add_up_and_do_not_push_out_ends() {
    let mut s = Story::new(1);
    let token = lease(&mut s);
    s.done(account(1, 0, token));
    end(&mut s, 1);
    let work = s.ledger.ended_work_after(0).next().map(|work| (**work).clone()).unwrap();
    s.done(account(1, 1, token));
    let correct = |project: Option<String>, tag: Option<&str>| {
        let tags = tag.into_iter().map(|value| ("a".to_owned(), value.to_owned())).collect();
        let correction = Box::new(Correction { work: work.clone(), project, tags });
        Action::CorrectEndedWork { correction, by: user(7), as_operator: false }
    };
    s.done(correct(Some("higgs".into()), None));
    s.done(correct(None, Some("1")));
    let latest = s.ledger.ended_work_after(2).next().unwrap();
    assert_eq!((latest.project.as_str(), latest.tags.get("a").map(String::as_str)), ("higgs", Some("1")));
    let full = (0..).find_map(|number: u32| s.act(correct(Some(format!("p{number}")), None)).err()).unwrap();
    assert!(matches!(full, Refusal::StoreTooFarBehind { .. }) && full.remedy().is_some(), "{full}");
    assert_eq!(s.ledger.ends_status().dropped, 0);
    let ended = s.ledger.ends_status().ended;
    s.done(account(1, ended, token));
    s.done(correct(Some("later".into()), None));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn work_that_ends_in_the_queue_has_the_nodes_of_its_last_claim_and_work_without_a_claim_has_none() {
    let mut s = Story::new(1);
    let token = lease(&mut s);
    s.done(account(1, 0, token));
    end(&mut s, 1);
    submit(&mut s, 2, spec(1, RequeuePolicy::Always, 9));
    let epoch = run(&mut s, 2, &[0]);
    let started_at = s.now();
    s.done(Action::RequeueAllocation { allocation: id(2), epoch, by: user(7), reason: "bad node".into() });
    let node_ms = s.now().since_ms(started_at);
    s.done(cancel(2));
    let ended: Vec<_> = s.ledger.ended_work_after(0).collect();
    let of = |work: &EndedWork| (work.state, work.reason.clone(), work.nodes.clone(), work.node_count, work.started_at, work.used.node_ms);
    assert_eq!(of(ended[0]), (AllocationState::Cancelled, "cancelled by u7".into(), String::new(), 0, None, 0));
    assert_eq!(of(ended[1]), (AllocationState::Cancelled, "cancelled by u7".into(), "n0".into(), 1, Some(started_at), node_ms));
}

#[test]
fn parts_name_the_whole() {
    let mut s = Story::new(1);
    let token = lease(&mut s);
    s.done(account(1, 0, token));
    let tasks = Some(Box::new(TaskGroup::parse("0-9").unwrap()));
    let group = AllocationSpec { tasks, walltime: Some(Duration::from_secs(60)), ..spec(1, RequeuePolicy::Never, 0) };
    submit(&mut s, 1, group);
    let lanes = live_lanes(&s).len();
    assert!(lanes > 0, "the group has lanes");
    s.done(cancel(1));
    // Each command ends some of them.
    while !live_lanes(&s).is_empty() {
        s.done(Action::SettleDependents);
    }
    let dag = DagId(Uuid::from_u128(99));
    let step = DagStep { name: "a".into(), allocation: id(2), takes_env: false, spec: Box::new(spec(1, RequeuePolicy::Never, 0)) };
    let submission = DagSubmission { name: "d".into(), env: Default::default(), steps: vec![step] };
    s.done(Action::SubmitDag { id: dag, owner: user(7), dag: Box::new(submission) });
    s.done(cancel(2));
    let parts = |of: Option<Uuid>| s.ledger.ended_work_after(0).filter(|work| work.part_of == of).count();
    assert_eq!((parts(None), parts(Some(id(1).0)), parts(Some(dag.0))), (1, lanes, 1));
}

#[test]
fn accounting_is_moved_when_the_store_has_everything_or_by_force() {
    let mut s = Story::new(1);
    assert_eq!(s.act(move_store(true)), Err(Refusal::NoStore));
    let token = lease(&mut s);
    s.done(account(1, 0, token));
    end(&mut s, 1);
    let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
    assert_eq!(s.act(move_store(false)), Err(Refusal::StoreBehind { store: one, waiting: 1 }));
    s.done(account(1, 1, token));
    let audit = s.acted(move_store(false));
    let detail = format!("away from store {one}, which has confirmed number 1; 0 ends wait");
    let revoked = format!("accounting, token {token}: accounting is moved to another store");
    assert_eq!(
        shown(&audit),
        [(AuditAction::AccountingMoved, "anna@n1", detail.as_str()), (AuditAction::LeaseRevoked, "anna@n1", revoked.as_str())]
    );
    assert!(s.acted(move_store(false)).is_empty(), "a repetition");
    // Ends in between wait for the next store, which must be another one.
    end(&mut s, 2);
    let token = lease(&mut s);
    assert_eq!(s.act(account(1, 1, token)), Err(Refusal::FormerStore { store: one }));
    assert_eq!(s.ledger.ends_status(), EndsStatus { accounted: None, ended: 2, waiting: 1, dropped: 0 });
    s.done(account(2, 0, token));
    assert_eq!((waiting(&s), s.ledger.ends_status().accounted), (vec![2], Some(until(2, 0))));
    assert_eq!(s.act(account(1, 1, token)), Err(Refusal::OtherStore { store: two }));
    // By force: the next store gets the ends that this one has not confirmed.
    s.done(move_store(true));
    let token = lease(&mut s);
    assert_eq!(s.act(account(2, 2, token)), Err(Refusal::FormerStore { store: two }));
    // The move was a mistake: the former store continues.
    let audit = s.acted(move_store(true));
    assert_eq!(audit[0].detail, format!("store {two} may go on"));
    let token = lease(&mut s);
    s.done(account(2, 2, token));
    assert_eq!(s.ledger.ends_status(), EndsStatus { accounted: Some(until(2, 2)), ended: 2, waiting: 0, dropped: 0 });
}

#[test]
fn too_much_that_waits_drops_the_oldest_and_says_so_when_that_begins() {
    let mut s = Story::new(1);
    let token = lease(&mut s);
    s.done(account(1, 0, token));
    let begins = |records: &[AuditRecord]| records.iter().filter(|record| record.action == AuditAction::EndedWorkDropped).count();
    let mut count = 0;
    let first = loop {
        count += 1;
        let audit = end(&mut s, count);
        if begins(&audit) > 0 {
            break audit;
        }
        assert!(count < 5000, "{ENDED_WORK_BYTES_MAX} bytes are never full");
    };
    let (kept, ended) = (waiting(&s).len() as u64, s.ledger.ends_status().ended);
    assert_eq!((kept, s.ledger.ends_status().dropped), (ended - 1, 1));
    let store = Uuid::from_u128(1);
    let detail = format!("{kept} ends wait for store {store}, and the oldest are dropped from now on");
    assert_eq!(shown(&first)[1], (AuditAction::EndedWorkDropped, "quorum", detail.as_str()));
    for number in count + 1..count + 50 {
        assert_eq!(begins(&end(&mut s, number)), 0, "it is on record");
    }
    let status = s.ledger.ends_status();
    assert_eq!(waiting(&s), (status.ended - status.waiting + 1..=status.ended).collect::<Vec<_>>(), "the newest wait");
    assert_eq!(status.dropped, status.ended - status.waiting);
    invariant_indexes_equal_scans(&s.ledger);
    // The store has caught up: if dropping begins again, there is another audit record.
    s.done(account(1, status.ended, token));
    let again = (count + 50..2 * count + 60).map(|number| begins(&end(&mut s, number))).sum::<usize>();
    assert_eq!(again, 1);
}

#[test]
fn after_a_recovery_the_numbers_continue_beyond_those_that_the_store_may_have() {
    let mut s = Story::new(1);
    let token = lease(&mut s);
    s.done(account(1, 0, token));
    end(&mut s, 1);
    end(&mut s, 2);
    s.ledger.recover(Revision(1000), Timestamp(1_000_000));
    s.forward(Revision(1000));
    assert_eq!((s.ledger.ends_status().ended, waiting(&s)), (beyond(2), vec![1, 2]));
    // The lost quorum gave the store more ends than the backup has.
    let token = lease(&mut s);
    s.done(account(1, 700, token));
    assert!(waiting(&s).is_empty());
    end(&mut s, 3);
    assert_eq!(waiting(&s), [beyond(2) + 1]);
}

/// A store with the position that it wrote together with its records.
#[derive(Default)]
struct Store {
    rows: Vec<u64>,
    position: u64,
}

impl Store {
    /// Reads a page and writes it.
    fn read(&mut self, ledger: &Ledger, limit: usize) {
        let page: Vec<u64> = ledger.ended_work_after(self.position).take(limit).map(|work| work.sequence).collect();
        self.position = page.last().copied().unwrap_or(self.position);
        self.rows.extend(page);
    }
}

proptest! {
    /// Holds whenever the store's agent stops, whatever it repeats, and whenever a member restarts.
    #[test]
    fn each_end_is_in_the_store_exactly_once(steps in prop::collection::vec((0..9u8, 1..5usize), 1..120)) {
        let mut s = Story::new(1);
        let token = lease(&mut s);
        s.done(account(1, 0, token));
        let (mut store, mut ended) = (Store::default(), 0);
        for (step, size) in steps {
            match step {
                0..4 => {
                    ended += 1;
                    end(&mut s, ended);
                }
                4 | 5 => store.read(&s.ledger, size),
                6 => s.done(account(1, store.position, token)),
                // A message that was late.
                7 => s.done(account(1, store.position.saturating_sub(size as u64), token)),
                _ => s.ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap(),
            }
            prop_assert!(waiting(&s).into_iter().all(|sequence| sequence > s.ledger.ends_status().accounted.unwrap().sequence));
        }
        store.read(&s.ledger, usize::MAX);
        s.done(account(1, store.position, token));
        let all: Vec<u64> = (1..=s.ledger.ends_status().ended).collect();
        prop_assert_eq!(all.len() as u128, ended);
        prop_assert_eq!(store.rows, all);
        prop_assert_eq!(waiting(&s), Vec::<u64>::new());
    }
}
