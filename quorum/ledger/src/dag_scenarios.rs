//! Scenarios of DAGs.

use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{LimitsChange, Story, id, node, prepared, released, spec, user};
use super::{Action, DagCursor, DagFilter, Ledger, Outcome, QuotaChange, Refusal, UserLimitsChange};
use lattice_model::DependencyCondition::{self, Any, Failure, Mutex, Success};
use lattice_model::{
    AllocationSpec, AllocationState, AuditAction, AuditRecord, DagId, DagStep, DagSubmission, Dependency, EndReason, ReportItem,
    RequeuePolicy, StepEnd, Timestamp,
};
use uuid::Uuid;

fn dag_id(number: u128) -> DagId {
    DagId(Uuid::from_u128(number << 96 | number))
}

/// A DAG of steps, each with the number of its allocation and its dependencies.
fn dag(steps: &[(u128, &[(u128, DependencyCondition)])]) -> DagSubmission {
    let step = |(number, on): &(u128, &[(u128, DependencyCondition)])| {
        let depends_on = on.iter().map(|(number, condition)| Dependency { on: id(*number), condition: *condition }).collect();
        let spec = AllocationSpec { depends_on, ..spec(1, RequeuePolicy::Never, 0) };
        DagStep { name: format!("s{number}"), allocation: id(*number), takes_env: true, spec: Box::new(spec) }
    };
    DagSubmission { name: "flow".into(), env: [("A".to_owned(), "1".to_owned())].into(), steps: steps.iter().map(step).collect() }
}

fn submission(number: u128, dag: DagSubmission) -> Action {
    Action::SubmitDag { id: dag_id(number), owner: user(7), dag: Box::new(dag) }
}

fn runs_and_exits(s: &mut Story, number: u128, code: i32) {
    let epoch = s.claimed(number, &[0]);
    s.report(0, prepared(number, epoch));
    s.report(0, ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code } });
    s.report(0, released(number, epoch));
}

fn state(ledger: &Ledger, number: u128) -> AllocationState {
    ledger.dag(dag_id(number)).unwrap().counts().state()
}

fn ends(ledger: &Ledger, number: u128) -> Vec<Option<StepEnd>> {
    ledger.dag(dag_id(number)).unwrap().steps.iter().map(|step| step.end).collect()
}

fn users_limit(users: UserLimitsChange, dag_size: Option<u32>) -> Action {
    LimitsChange { users, dag_size, ..LimitsChange::default() }.by("root")
}

/// The refusal of a submission; a dry run says the same.
fn refused(s: &mut Story, number: u128, dag: DagSubmission) -> String {
    let before = s.ledger.allocations().count();
    let dry = s.ledger.admits_dag(&user(7), &dag, &[].into(), s.now()).unwrap_err();
    let refusal = s.act(submission(number, dag)).unwrap_err();
    assert_eq!((&dry, s.ledger.allocations().count()), (&refusal, before), "nothing was submitted");
    assert!(s.ledger.dag(dag_id(number)).is_none());
    refusal.to_string()
}

#[test]
fn a_step_finds_each_output_under_a_name_of_its_own() {
    let mut s = Story::new(1);
    let named = |names: [&str; 3]| {
        let mut dag = dag(&[(1, &[]), (2, &[]), (3, &[(1, Any), (2, Any)])]);
        dag.steps.iter_mut().zip(names).for_each(|(step, name)| step.name = name.to_owned());
        dag
    };
    let refused = s.act(submission(9, named(["a-b", "a_b", "c"]))).unwrap_err().to_string();
    assert!(refused.contains("\"a-b\" and \"a_b\"") && refused.contains("$LATTICE_PARENT_OUTPUT_a_b"), "{refused}");
    s.done(submission(9, named(["a", "b", "c"])));
    for number in [1, 2] {
        s.done(Action::Cancel { id: id(number), by: user(7) });
    }
    s.claimed(3, &[0]);
    let parents = s.ledger.desired(&node(0)).shares[0].parents.clone();
    let parents: Vec<_> = parents.into_iter().map(|parent| (parent.id, parent.place.name)).collect();
    assert_eq!(parents, [(id(1), "a".to_owned()), (id(2), "b".to_owned())]);
}

#[test]
fn a_failure_runs_its_branch_and_the_other_branch_is_cancelled() {
    let mut s = Story::new(1);
    let flow = dag(&[(1, &[]), (2, &[(1, Success)]), (3, &[(1, Failure)]), (4, &[(2, Any)])]);
    let records = s.acted(submission(1, flow.clone()));
    let detail = format!("DAG {} (flow) with 4 steps", dag_id(1));
    let of_dag: Vec<&AuditRecord> = records.iter().filter(|record| record.action == AuditAction::DagSubmitted).collect();
    assert_eq!((of_dag.len(), of_dag[0].actor.as_str(), &of_dag[0].detail), (1, "u7", &detail));
    assert_eq!(records.iter().filter(|record| record.action == AuditAction::AllocationSubmitted).count(), 4);
    let second = s.ledger.allocation(id(2)).unwrap();
    let place = second.dag.as_deref().unwrap();
    assert_eq!((place.dag, place.number, place.name.as_str(), second.spec.env["A"].as_str()), (dag_id(1), 1, "s2", "1"));
    assert_eq!((state(&s.ledger, 1), second.waits()), (AllocationState::Running, false));
    // A repetition whose first answer was lost; then another DAG with the same id.
    assert_eq!(s.act(submission(1, flow.clone())), Ok(Outcome::Done));
    let other = DagSubmission { name: "other".into(), ..flow };
    assert_eq!(s.act(submission(1, other)), Err(Refusal::DagExists { id: dag_id(1) }));

    runs_and_exits(&mut s, 1, 3);
    assert_eq!(ends(&s.ledger, 1), [Some(StepEnd::Caught), Some(StepEnd::NotNeeded), None, None]);
    runs_and_exits(&mut s, 3, 0);
    runs_and_exits(&mut s, 4, 0);
    assert_eq!(state(&s.ledger, 1), AllocationState::Completed, "the failure was caught");
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn a_dag_has_failed_if_a_step_failed_and_no_other_step_was_there_for_that() {
    let mut s = Story::new(1);
    // The end of 2 is caught, and the failure of 1 is not.
    s.done(submission(1, dag(&[(1, &[]), (2, &[(1, Success)]), (3, &[(2, Any)])])));
    runs_and_exits(&mut s, 1, 1);
    runs_and_exits(&mut s, 3, 0);
    assert_eq!(ends(&s.ledger, 1), [Some(StepEnd::Failed), Some(StepEnd::Cancelled), Some(StepEnd::Completed)]);
    assert_eq!(state(&s.ledger, 1), AllocationState::Failed);
    // The step that handles a failure fails itself.
    s.done(submission(2, dag(&[(11, &[]), (12, &[(11, Failure)])])));
    runs_and_exits(&mut s, 11, 1);
    assert_eq!(state(&s.ledger, 2), AllocationState::Running);
    runs_and_exits(&mut s, 12, 1);
    assert_eq!((ends(&s.ledger, 2), state(&s.ledger, 2)), (vec![Some(StepEnd::Caught), Some(StepEnd::Failed)], AllocationState::Failed));
    // Somebody cancels the step that handles a failure.
    s.done(submission(3, dag(&[(21, &[]), (22, &[(21, Any)])])));
    runs_and_exits(&mut s, 21, 1);
    s.done(Action::Cancel { id: id(22), by: user(7) });
    assert_eq!(state(&s.ledger, 3), AllocationState::Cancelled);
    // Work that is no step of the DAG does not catch its failures.
    s.done(submission(4, dag(&[(31, &[])])));
    let depends_on = vec![Dependency { on: id(31), condition: Failure }];
    let other = AllocationSpec { depends_on, ..spec(1, RequeuePolicy::Never, 0) };
    s.done(Action::Submit { id: id(32), spec: Box::new(other), owner: user(7), claim: None });
    runs_and_exits(&mut s, 31, 1);
    assert_eq!(state(&s.ledger, 4), AllocationState::Failed);
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn steps_for_a_failure_that_did_not_happen_are_not_needed() {
    let mut s = Story::new(1);
    s.done(submission(1, dag(&[(1, &[]), (2, &[(1, Failure)]), (3, &[(2, Success)]), (4, &[(1, Success)])])));
    runs_and_exits(&mut s, 1, 0);
    assert_eq!(ends(&s.ledger, 1), [Some(StepEnd::Completed), Some(StepEnd::NotNeeded), Some(StepEnd::NotNeeded), None]);
    runs_and_exits(&mut s, 4, 0);
    assert_eq!(state(&s.ledger, 1), AllocationState::Completed);
    // A step for which another allocation had to succeed was needed.
    s.submit(8, 1, RequeuePolicy::Never, 0);
    runs_and_exits(&mut s, 8, 1);
    s.done(submission(2, dag(&[(9, &[(8, Success)]), (10, &[(9, Success)])])));
    assert_eq!(ends(&s.ledger, 2), [Some(StepEnd::Cancelled); 2]);
    assert_eq!(state(&s.ledger, 2), AllocationState::Cancelled);
    let status = s.ledger.dag_status(s.ledger.dag(dag_id(2)).unwrap());
    assert_eq!(status.steps[0].others, [(id(8), "a".to_owned())].into());
    assert_eq!(status.steps[0].reason.as_ref().unwrap().to_string(), "dependency_unmet: success of 00000008 (a), which is Failed");
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn all_steps_are_submitted_or_none() {
    let mut s = Story::new(1);
    s.submit(8, 1, RequeuePolicy::Never, 0);
    assert_eq!(
        refused(&mut s, 1, dag(&[(1, &[]), (2, &[(9, Success)])])),
        format!(
            "step \"s2\": it cannot depend on allocation {}: it does not exist, or it ended so long ago that the quorum has forgotten it",
            id(9)
        )
    );
    // A later step does not exist yet, so there are no cycles.
    let later = refused(&mut s, 1, dag(&[(1, &[(2, Success)]), (2, &[])]));
    assert!(later.starts_with("step \"s1\": it cannot depend on allocation"), "{later}");
    let itself = refused(&mut s, 1, dag(&[(1, &[(1, Success)])]));
    assert!(itself.ends_with("it is the allocation itself"), "{itself}");
    assert_eq!(
        refused(&mut s, 1, dag(&[(1, &[]), (8, &[])])),
        format!("step \"s8\": allocation {} exists already, with another specification or owner", id(8))
    );
    let mut twice = dag(&[(1, &[]), (2, &[])]);
    twice.steps[1].name = "s1".into();
    assert_eq!(
        refused(&mut s, 1, twice),
        "the request is malformed: a name of a step has 1 to 128 bytes, and no other step has it: \"s1\""
    );
    let mut bad = dag(&[(1, &[]), (2, &[])]);
    bad.steps[1].spec.nodes = 0;
    let text = refused(&mut s, 1, bad);
    assert!(text.starts_with("step \"s2\": the request is malformed: nodes: 0 given"), "{text}");
    assert_eq!(refused(&mut s, 1, dag(&[])), "the request is malformed: a DAG without steps");
    let mut large = dag(&[(1, &[])]);
    large.env = [("A".to_owned(), "x".repeat(5 << 20))].into();
    assert!(refused(&mut s, 1, large).starts_with("the DAG has 524"));
}

#[test]
fn the_size_of_a_dag_and_what_its_user_may_have_waiting_are_limited() {
    let mut s = Story::new(1);
    let records = s.acted(users_limit(UserLimitsChange::default(), Some(2)));
    assert_eq!(records[0].detail, "sensitive_pool_size unlimited, dag_size 2");
    let three = || dag(&[(1, &[]), (2, &[]), (3, &[])]);
    let size = Refusal::DagSize { steps: 3, most: 2 };
    assert_eq!(refused(&mut s, 1, three()), "DAG exceeds maximum size (3 allocations, limit: 2)");
    assert!(size.remedy().unwrap().contains("--dag-size N"));
    for steps in [0, 10_001] {
        assert!(matches!(s.act(users_limit(UserLimitsChange::default(), Some(steps))), Err(Refusal::Malformed { .. })));
    }
    let users = UserLimitsChange { user_pending: QuotaChange::AtMost(3), ..UserLimitsChange::default() };
    s.done(users_limit(users, Some(1000)));
    s.submit(8, 1, RequeuePolicy::Never, 0);
    assert_eq!(refused(&mut s, 1, three()), "user u7 has 1 allocation waiting, and may have 3; with 3 more there would be 4");
    s.done(Action::Cancel { id: id(8), by: user(7) });
    s.done(submission(1, three()));
}

#[test]
fn a_cancelled_dag_ends_from_its_end_and_over_several_commands() {
    let mut s = Story::new(1);
    // Each step may begin as soon as the one before has ended in any way.
    let chain: Vec<(u128, Vec<(u128, DependencyCondition)>)> =
        (1..=20).map(|number| (number, if number == 1 { vec![] } else { vec![(number - 1, Any)] })).collect();
    let steps: Vec<(u128, &[(u128, DependencyCondition)])> = chain.iter().map(|(number, on)| (*number, on.as_slice())).collect();
    s.done(submission(1, dag(&steps)));
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    let cancel = |by| Action::CancelDag { id: dag_id(1), by: user(by) };
    assert_eq!(s.act(cancel(8)), Err(Refusal::DagNotYours { id: dag_id(1), owner: "u7".into() }));
    let mut records = s.acted(cancel(7));
    assert_eq!(records[0].detail, format!("DAG {} (flow), 20 steps not ended", dag_id(1)));
    assert_eq!((s.state(20), s.state(1)), (AllocationState::Cancelled, AllocationState::Running));
    // A repetition is recorded once.
    assert_eq!(s.apply(cancel(7)).result, Ok(Outcome::Done));
    while s.ledger.dependents_are_due() {
        records.extend(s.acted(Action::SettleDependents));
    }
    assert_eq!(records.iter().filter(|record| record.action == AuditAction::DagCancelRequested).count(), 1);
    let is_begun = |record: &&AuditRecord| record.action == AuditAction::AllocationClaimed;
    assert_eq!(records.iter().filter(is_begun).count(), 0);
    assert_eq!(ends(&s.ledger, 1), [Some(StepEnd::Cancelled); 20]);
    assert_eq!(state(&s.ledger, 1), AllocationState::Cancelled);
    assert_eq!(s.ledger.allocation(id(7)).unwrap().reason.as_ref().unwrap().to_string(), "cancelled by u7");
    assert_eq!(s.act(cancel(7)), Ok(Outcome::Done), "nothing of it is left");
    assert_eq!(s.act(Action::CancelDag { id: dag_id(9), by: user(7) }), Err(Refusal::NoSuchDag { key: dag_id(9).to_string() }));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn a_dag_is_known_as_long_as_one_of_its_allocations_is() {
    let mut s = Story::new(1);
    s.done(users_limit(UserLimitsChange { user_history: QuotaChange::AtMost(1), ..UserLimitsChange::default() }, None));
    s.done(submission(1, dag(&[(1, &[]), (2, &[(1, Success)])])));
    runs_and_exits(&mut s, 1, 0);
    runs_and_exits(&mut s, 2, 0);
    assert!(s.ledger.allocation(id(1)).is_none(), "only the last one is shown");
    let status = s.ledger.dag_status(s.ledger.dag(dag_id(1)).unwrap());
    assert_eq!(status.steps.iter().map(|step| step.state).collect::<Vec<_>>(), [AllocationState::Completed; 2]);
    assert_eq!(status.dag.records, 1);
    s.submit(8, 1, RequeuePolicy::Never, 0);
    runs_and_exits(&mut s, 8, 0);
    assert_eq!((s.ledger.allocation(id(2)).is_none(), s.ledger.dag(dag_id(1)).is_none()), (true, true));
    assert!(s.ledger.dags.is_empty() && s.ledger.dags.bytes(7) == (0, 0));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn dags_are_found_by_a_prefix_and_listed_in_pages() {
    let mut s = Story::new(1);
    for number in [1, 2, 3] {
        s.done(submission(number, dag(&[(10 + number, &[])])));
    }
    s.done(Action::SubmitDag { id: dag_id(4), owner: user(8), dag: Box::new(dag(&[(14, &[])])) });
    s.done(Action::Cancel { id: id(12), by: user(7) });
    let listed = |filter: DagFilter, limit, before| {
        s.ledger.list_dags(&filter, limit, before).into_iter().map(|dag| (dag.id, dag.submitted_at)).collect::<Vec<_>>()
    };
    let ids = |of: &[(DagId, Timestamp)]| of.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    let own = || DagFilter { uid: Some(7), ..DagFilter::default() };
    let first = listed(own(), 2, None);
    assert_eq!(ids(&first), [dag_id(3), dag_id(2)]);
    let (id_of_last, submitted_at) = first[1];
    assert_eq!(ids(&listed(own(), 2, Some(DagCursor { submitted_at, id: id_of_last }))), [dag_id(1)]);
    assert_eq!(listed(DagFilter::default(), 9, None).len(), 4);
    assert_eq!(ids(&listed(DagFilter { states: vec![AllocationState::Cancelled], ..own() }, 9, None)), [dag_id(2)]);
    assert_eq!(ids(&listed(DagFilter { user: Some("u8".into()), ..DagFilter::default() }, 9, None)), [dag_id(4)]);
    assert_eq!(s.ledger.find_dag("00000002").unwrap().id, dag_id(2));
    assert!(matches!(s.ledger.find_dag("0000"), Err(Refusal::AmbiguousDag { candidates, .. }) if candidates.len() == 4));
    assert_eq!(s.ledger.find_dag("dag-789").unwrap_err().to_string(), "there is no DAG dag-789");
    assert!(matches!(s.ledger.find_dag("ab"), Err(Refusal::Malformed { .. })));
}

#[test]
fn steps_that_exclude_each_other_never_run_at_the_same_time() {
    let mut s = Story::new(2);
    s.done(submission(1, dag(&[(1, &[]), (2, &[(1, Mutex)])])));
    let epoch = s.claimed(1, &[0]);
    assert!(s.claim(2, &[1]).is_err());
    s.report(0, prepared(1, epoch));
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    s.report(0, released(1, epoch));
    s.claimed(2, &[1]);
    // A copy of the state is the same state.
    let copy: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(copy, s.ledger);
}
