//! Scenarios of limits for users and tenants.

use super::scenarios::{LimitsChange, Story, id, spec, user};
use super::{Action, Outcome, QuotaChange, UserLimit, UserLimitsChange};
use crate::Refusal;
use lattice_model::{AllocationSpec, Claim, EndReason, Entrypoint, ReportItem, RequeuePolicy};

fn limit(change: UserLimitsChange) -> Action {
    LimitsChange { users: change, ..LimitsChange::default() }.by("root")
}

fn submit(s: &mut Story, number: u128, uid: u32, script: Option<&str>) -> Result<Outcome, Refusal> {
    let mut spec = spec(1, RequeuePolicy::Never, 0);
    if let Some(text) = script {
        spec.entrypoint = Entrypoint::Script { text: format!("#!/bin/sh\n{text}").into(), args: vec![] };
    }
    s.act(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None })
}

fn cancel(s: &mut Story, number: u128, uid: u32) {
    s.done(Action::Cancel { id: id(number), by: user(uid) });
}

fn refused(result: &Result<Outcome, Refusal>) -> Option<UserLimit> {
    match result {
        Err(Refusal::OverUserLimit { limit, .. }) => Some(*limit),
        Err(other) => panic!("{other}"),
        Ok(_) => None,
    }
}

#[test]
fn waiting_work_of_a_user_and_of_a_tenant_is_limited() {
    let mut s = Story::new(1);
    let (user_pending, tenant_pending) = (QuotaChange::AtMost(2), QuotaChange::AtMost(3));
    s.done(limit(UserLimitsChange { user_pending, tenant_pending, ..UserLimitsChange::default() }));
    submit(&mut s, 1, 7, None).unwrap();
    submit(&mut s, 2, 7, None).unwrap();
    let third = submit(&mut s, 3, 7, None);
    assert_eq!(refused(&third), Some(UserLimit::Pending));
    assert_eq!(submit(&mut s, 2, 7, None), Ok(Outcome::Submitted { number: 2 }), "what was taken is answered again");
    submit(&mut s, 4, 8, None).unwrap();
    // An allocation that has begun no longer counts as waiting.
    s.claim(1, &[0]).unwrap();
    submit(&mut s, 3, 7, None).unwrap();
    assert_eq!(refused(&submit(&mut s, 5, 7, None)), Some(UserLimit::Pending));
    cancel(&mut s, 3, 7);
    submit(&mut s, 5, 7, None).unwrap();
    // A copy counts the same.
    s.ledger = s.ledger.clone();
    assert_eq!(refused(&submit(&mut s, 6, 7, None)), Some(UserLimit::Pending));
    let mut in_tenant = |number: u128, uid: u32| {
        let spec = AllocationSpec { tenant: "physics".into(), ..spec(1, RequeuePolicy::Never, 0) };
        s.act(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None })
    };
    for uid in 10..13 {
        in_tenant(uid.into(), uid).unwrap();
    }
    assert_eq!(refused(&in_tenant(13, 13)), Some(UserLimit::TenantPending));
}

#[test]
fn scripts_are_limited_by_their_texts_and_forgotten_with_ended_work() {
    let mut s = Story::new(0);
    s.done(limit(UserLimitsChange { user_script_bytes: QuotaChange::AtMost(1000), ..UserLimitsChange::default() }));
    let text = |n: u8| (n as char).to_string().repeat(600);
    submit(&mut s, 1, 7, Some(&text(b'a'))).unwrap();
    submit(&mut s, 2, 7, Some(&text(b'a'))).unwrap();
    assert_eq!(refused(&submit(&mut s, 3, 7, Some(&text(b'b')))), Some(UserLimit::ScriptBytes));
    submit(&mut s, 4, 8, Some(&text(b'b'))).unwrap();
    cancel(&mut s, 1, 7);
    assert_eq!(refused(&submit(&mut s, 3, 7, Some(&text(b'b')))), Some(UserLimit::ScriptBytes), "the other one waits");
    cancel(&mut s, 2, 7);
    submit(&mut s, 3, 7, Some(&text(b'b'))).unwrap();
    assert!(s.ledger.allocation(id(1)).is_none() && s.ledger.allocation(id(2)).is_none(), "their text was in the way");
}

#[test]
fn a_submission_that_is_only_checked_meets_the_same_limits_and_counts_for_none() {
    let mut s = Story::new(0);
    let (user_pending, user_submissions_per_second) = (QuotaChange::AtMost(2), QuotaChange::AtMost(1));
    s.done(limit(UserLimitsChange { user_pending, user_submissions_per_second, ..UserLimitsChange::default() }));
    let checked = |s: &Story, uid: u32| {
        let mut spec = spec(1, RequeuePolicy::Never, 0);
        spec.entrypoint = Entrypoint::Script { text: "#!/bin/sh\ntrue".into(), args: vec![] };
        // A copy that has not counted yet gives the same answers.
        let answers = [&s.ledger, &s.ledger.clone()].map(|ledger| ledger.admits_submission(&spec, &user(uid), &[].into(), s.now()));
        assert_eq!(answers[0], answers[1]);
        refused(&answers[0].clone().map(|()| Outcome::Done))
    };
    submit(&mut s, 1, 7, None).unwrap();
    let before = s.ledger.hash().unwrap();
    assert_eq!(checked(&s, 7), None);
    assert_eq!(s.ledger.hash().unwrap(), before);
    submit(&mut s, 2, 7, None).unwrap();
    assert_eq!((checked(&s, 7), checked(&s, 8)), (Some(UserLimit::Pending), None));
    for number in 3..300 {
        if submit(&mut s, number, 8, None).is_ok() {
            cancel(&mut s, number, 8);
        }
    }
    assert_eq!(checked(&s, 8), None, "a second has passed with each step");
    s.done(limit(UserLimitsChange { user_script_bytes: QuotaChange::AtMost(5), ..UserLimitsChange::default() }));
    assert_eq!(checked(&s, 8), Some(UserLimit::ScriptBytes));
}

#[test]
fn limits_are_audited() {
    let mut s = Story::new(1);
    let change = UserLimitsChange { user_pending: QuotaChange::AtMost(1), ..UserLimitsChange::default() };
    let records = s.acted(limit(change));
    assert_eq!(records[0].detail, "sensitive_pool_size unlimited, user_pending 1");
}

fn running_limit(most: u32) -> Action {
    limit(UserLimitsChange { user_running: QuotaChange::AtMost(most), ..UserLimitsChange::default() })
}

fn waits(s: &Story, number: u128) -> bool {
    s.ledger.allocation(id(number)).unwrap().waits()
}

#[test]
fn a_claim_beyond_what_a_user_may_have_running_is_refused_and_the_work_waits() {
    let mut s = Story::new(5);
    s.done(running_limit(2));
    for number in 1..=3 {
        s.submit(number, 1, RequeuePolicy::Always, 2);
    }
    submit(&mut s, 4, 8, None).unwrap();
    let epoch = s.claimed(1, &[0]);
    s.claimed(2, &[1]);
    // Two schedulers race: the second one is refused, and the ledger stays unchanged.
    let third = s.claim(3, &[2]);
    assert_eq!(refused(&third), Some(UserLimit::Running));
    let text = third.unwrap_err().to_string();
    assert_eq!(text, "user u7's 2 running allocations are as many as one user may have (limit user_running: 2)");
    assert!(waits(&s, 3));
    // A claim that comes with the submission is refused in the same way, and the submitted
    // allocation waits.
    let proposal = Claim { allocation: id(5), requeue_count: 0, ..s.proposal(3, &[2]) };
    let spec = Box::new(spec(1, RequeuePolicy::Never, 0));
    s.done(Action::Submit { id: id(5), spec, owner: user(7), claim: Some(proposal) });
    assert!(waits(&s, 5));
    // Other users are not affected; a copy, which has counted nothing yet, gives the same answer.
    s.claimed(4, &[3]);
    s.ledger = s.ledger.clone();
    assert_eq!(refused(&s.claim(3, &[2])), Some(UserLimit::Running));
    // A requeued allocation no longer counts, even while its node has not released it. Its next
    // claim is subject to the limit again.
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 1 } });
    assert!(!s.ledger.allocation(id(1)).unwrap().state.is_terminal(), "it was requeued");
    s.claimed(3, &[2]);
    s.waits_over(1);
    assert_eq!(refused(&s.claim(1, &[4])), Some(UserLimit::Running));
    cancel(&mut s, 2, 7);
    s.claimed(1, &[4]);
}

#[test]
fn a_limit_on_running_work_that_is_lowered_ends_nothing_and_lifted_lets_work_begin() {
    let mut s = Story::new(4);
    for number in 1..=3 {
        submit(&mut s, number, 7, None).unwrap();
    }
    s.claimed(1, &[0]);
    s.claimed(2, &[1]);
    let records = s.acted(running_limit(1));
    assert_eq!(records[0].detail, "sensitive_pool_size unlimited, user_running 1");
    assert!(!waits(&s, 1) && !waits(&s, 2), "both go on");
    let text = s.claim(3, &[2]).unwrap_err().to_string();
    assert_eq!(text, "user u7's 2 running allocations are more than one user may have (limit user_running: 1)");
    cancel(&mut s, 1, 7);
    assert_eq!(refused(&s.claim(3, &[2])), Some(UserLimit::Running));
    s.done(limit(UserLimitsChange { user_running: QuotaChange::Unlimited, ..UserLimitsChange::default() }));
    s.claimed(3, &[2]);
}
