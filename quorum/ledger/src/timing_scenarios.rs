//! Scenarios of a begin, a deadline, the least walltime, `nice`, the comment and mail.

use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{Story, id, node, prepared, spec, user};
use super::task_group_scenarios::{DONE, SHORT_US, claim as lane_claim, lane, runs, tasks};
use super::{Action, AllocationChange, MailNotice, Outcome, Refusal, UpdateRefusal};
use lattice_model::{
    AllocationSpec, AllocationState, AuditRecord, Claim, EndReason, EndedTasks, Epoch, LaneReport, Mail, MailEvent, ReportItem,
    RequeuePolicy, TaskGroup, TaskOutcome, Timestamp, Timing,
};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const HOUR_MS: u64 = 3_600_000;

/// Work of one node and an hour.
fn timed(timing: Timing) -> AllocationSpec {
    AllocationSpec { walltime: Some(HOUR), timing: timing.unless_empty(), ..spec(1, RequeuePolicy::Always, 3) }
}

fn submit(s: &mut Story, number: u128, spec: AllocationSpec) -> Result<Outcome, Refusal> {
    s.act(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None })
}

/// Lets the leader's clock act at this time.
fn clock(s: &mut Story, at: Timestamp) -> Vec<AuditRecord> {
    s.pass(at.since_ms(s.now()));
    assert!(s.ledger.waits_are_due(s.now()));
    let now = s.now();
    s.acted(Action::EndWaits { now })
}

fn exited(number: u128, epoch: Epoch, code: i32) -> ReportItem {
    ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code } }
}

fn walltime_s(s: &Story, number: u128) -> u64 {
    s.ledger.allocation(id(number)).unwrap().spec.walltime.unwrap().as_secs()
}

#[test]
fn work_with_a_begin_is_in_its_queue_from_then_on() {
    let mut s = Story::new(1);
    let begin = Timestamp(s.now().0 + HOUR_MS);
    submit(&mut s, 1, timed(Timing { begin: Some(begin), ..Timing::default() })).unwrap();
    let known = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((known.waits(), known.awaits()), (false, Some(format!("begins at {begin}"))));
    assert_eq!(s.claim(1, &[0]).unwrap_err().to_string(), format!("allocation {} begins at {begin}", id(1)));
    assert!(!s.ledger.waits_are_due(Timestamp(begin.0 - 1)) && s.ledger.waits_are_due(begin));
    invariant_indexes_equal_scans(&s.ledger);
    clock(&mut s, begin);
    let known = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((known.waits(), known.awaits()), (true, None));
    assert!(known.queued_at() >= begin, "the time before does not count as waiting");
    invariant_indexes_equal_scans(&s.ledger);
    s.claimed(1, &[0]);
    // A begin in the past counts as none.
    submit(&mut s, 2, timed(Timing { begin: Some(begin), ..Timing::default() })).unwrap();
    assert!(s.ledger.allocation(id(2)).unwrap().waits());
    let far = Timing { begin: Some(Timestamp(s.now().0 + 366 * 86_400_000)), ..Timing::default() };
    assert!(submit(&mut s, 3, timed(far)).unwrap_err().to_string().ends_with("is more than 365 days ahead"));
}

#[test]
fn work_that_cannot_end_by_its_deadline_is_refused_or_ended() {
    let mut s = Story::new(1);
    let deadline = Timestamp(s.now().0 + 2 * HOUR_MS);
    let timing = |deadline| Timing { deadline: Some(deadline), ..Timing::default() };
    let near = Timestamp(s.now().0 + HOUR_MS);
    assert!(submit(&mut s, 1, timed(timing(near))).unwrap_err().to_string().contains("it could not end by"), "a second has passed");
    submit(&mut s, 1, timed(timing(deadline))).unwrap();
    submit(&mut s, 2, timed(Timing { walltime_min: Some(HOUR / 2), ..timing(deadline) })).unwrap();
    let latest = Timestamp(deadline.0 - HOUR_MS);
    assert!(!s.ledger.waits_are_due(latest) && s.ledger.waits_are_due(Timestamp(latest.0 + 1)));
    invariant_indexes_equal_scans(&s.ledger);
    clock(&mut s, Timestamp(latest.0 + 1));
    let ended = s.ledger.allocation(id(1)).unwrap();
    let reason = format!("deadline_missed: it could not end by {deadline} any more");
    assert_eq!((ended.state, ended.reason.as_ref().unwrap().to_string()), (AllocationState::Cancelled, reason));
    // The other one may begin with less.
    assert_eq!(s.state(2), AllocationState::Pending);
    let epoch = s.claimed(2, &[0]);
    let left_s = deadline.since_ms(s.now()) / 1000;
    assert_eq!((walltime_s(&s, 2), s.ledger.allocation(id(2)).unwrap().asked_walltime), (left_s, Some(HOUR)));
    s.pass(60_000);
    s.report(0, prepared(2, epoch));
    assert_eq!(walltime_s(&s, 2), deadline.since_ms(s.now()) / 1000, "what its preparation took is cut off");
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn a_claim_may_give_less_than_the_walltime_but_not_less_than_the_least_one() {
    let mut s = Story::new(1);
    submit(&mut s, 1, timed(Timing { walltime_min: Some(HOUR / 4), ..Timing::default() })).unwrap();
    submit(&mut s, 2, timed(Timing::default())).unwrap();
    let claim = |s: &Story, number, walltime| Action::Claim(Claim { walltime: Some(walltime), ..s.proposal(number, &[0]) });
    for (number, wrong) in [(1, HOUR / 4 - Duration::from_secs(1)), (1, HOUR * 2), (2, HOUR / 2)] {
        let action = claim(&s, number, wrong);
        assert!(matches!(s.act(action), Err(Refusal::MalformedClaim { .. })), "{number} {wrong:?}");
    }
    let action = claim(&s, 1, HOUR / 2);
    let Ok(Outcome::Claimed { epoch }) = s.act(action) else { panic!("it may have half an hour") };
    s.report(0, prepared(1, epoch));
    assert_eq!(walltime_s(&s, 1), 1800);
    let submitted = timed(Timing { walltime_min: Some(HOUR / 4), ..Timing::default() });
    assert_eq!(submit(&mut s, 1, submitted), Ok(Outcome::Submitted { number: 1 }), "it is still known as what was submitted");
    // Requeued, it asks for its whole walltime again.
    s.report(0, exited(1, epoch, 1));
    let back = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((back.state, back.asked_walltime, walltime_s(&s, 1)), (AllocationState::Pending, None, 3600));
}

/// Four tasks of four minutes, or of one at least, and this long until the deadline.
fn due_group(s: &Story, left: Duration) -> (AllocationSpec, Timestamp) {
    let deadline = Timestamp(s.now().0 + u64::try_from(left.as_millis()).unwrap());
    let timing = Timing { begin: None, deadline: Some(deadline), walltime_min: Some(HOUR / 60) };
    let (tasks, walltime) = (Some(Box::new(TaskGroup::parse("0-3").unwrap())), Some(HOUR / 15));
    (AllocationSpec { tasks, walltime, timing: timing.unless_empty(), ..spec(1, RequeuePolicy::OnNodeFailure, 3) }, deadline)
}

#[test]
fn lanes_of_a_group_end_by_its_deadline_and_with_it_all_of_the_group() {
    let mut s = Story::new(2);
    let (group, deadline) = due_group(&s, HOUR / 6);
    submit(&mut s, 1, group).unwrap();
    let waiting = s.ledger.allocation(lane(0)).unwrap().spec.clone();
    assert_eq!((waiting.deadline(), waiting.walltime_least(), waiting.walltime), (Some(deadline), Some(HOUR / 20), Some(HOUR * 9 / 60)));
    s.pass(300_000);
    runs(&mut s, 0, 0);
    let cut = s.ledger.allocation(lane(0)).unwrap();
    let left = Duration::from_millis(deadline.since_ms(cut.started_at.unwrap()));
    assert_eq!((cut.spec.walltime, cut.spec.walltime_of_tasks()), (Some(left), Some((left - HOUR / 60) / 2)));
    assert!(left < HOUR / 12, "{left:?}");
    invariant_indexes_equal_scans(&s.ledger);
    // It has begun: no other lane begins late, but those that run go on.
    let late = Timestamp(deadline.0 - 180_000 + 1);
    assert!(!s.ledger.waits_are_due(late));
    s.pass(late.since_ms(s.now()));
    let action = Action::Claim(lane_claim(&s, lane(1), 1));
    assert_eq!(s.act(action), Err(Refusal::DeadlineMissed { id: lane(1), deadline }));
    assert!(!s.ledger.waits_are_due(deadline));
    clock(&mut s, Timestamp(deadline.0 + 1));
    let ended = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((ended.state, &ended.reason), (AllocationState::Cancelled, &Some(EndReason::DeadlineMissed { deadline })));
    assert!((0..4).all(|number| s.ledger.allocation(lane(number)).is_none_or(|lane| lane.state.is_terminal())));
    assert_eq!(walltime_s(&s, 1), 240, "the walltime of a task stays");
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn a_group_whose_first_lane_is_prepared_is_not_late() {
    let mut s = Story::new(1);
    let (group, deadline) = due_group(&s, HOUR / 6);
    submit(&mut s, 1, group).unwrap();
    let action = Action::Claim(lane_claim(&s, lane(0), 0));
    let Ok(Outcome::Claimed { epoch }) = s.act(action) else { panic!("it is in time") };
    let late = Timestamp(deadline.0 - 120_000);
    assert!(!s.ledger.waits_are_due(late));
    invariant_indexes_equal_scans(&s.ledger);
    s.pass(late.since_ms(s.now()));
    s.report(0, ReportItem::Prepared { allocation: lane(0), epoch });
    assert_eq!(s.ledger.allocation(lane(0)).unwrap().state, AllocationState::Running);
    let left = s.ledger.allocation(lane(0)).unwrap().spec.walltime.unwrap();
    assert!(left <= HOUR / 30, "what the preparation took is cut off: {left:?}");
    clock(&mut s, Timestamp(deadline.0 + 1));
    assert_eq!(s.ledger.allocation(id(1)).unwrap().state, AllocationState::Cancelled);
}

#[test]
fn a_group_of_which_no_lane_could_end_in_time_is_refused_or_ended() {
    let mut s = Story::new(1);
    let (near, _) = due_group(&s, HOUR / 20);
    let refused = submit(&mut s, 1, near).unwrap_err().to_string();
    assert!(refused.contains("a lane, which has two walltimes of a task and a minute, takes 00:03:00"), "{refused}");
    let (group, deadline) = due_group(&s, HOUR / 6);
    submit(&mut s, 1, group).unwrap();
    clock(&mut s, Timestamp(deadline.0 - 180_000 + 1));
    let ended = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((ended.state, &ended.reason), (AllocationState::Cancelled, &Some(EndReason::DeadlineMissed { deadline })));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn the_place_in_the_queue_is_changed_until_work_begins() {
    let mut s = Story::new(1);
    submit(&mut s, 1, timed(Timing::default())).unwrap();
    let queued_at = s.ledger.allocation(id(1)).unwrap().queued_at();
    let begin = Timestamp(s.now().0 + HOUR_MS);
    let update = |change, as_operator| Action::UpdateAllocation { allocation: id(1), by: user(7), change, as_operator };
    let later = AllocationChange { begin: Some(begin), nice: Some(5), comment: Some("x".to_owned()), ..AllocationChange::default() };
    let records = s.acted(update(later, false));
    let detail = format!("begin {begin} instead of none, nice 5 instead of 0, another comment while Pending");
    assert_eq!(records.iter().map(|record| record.detail.as_str()).collect::<Vec<_>>(), [detail]);
    let known = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((known.waits(), known.spec.nice, known.spec.comment.as_str()), (false, 5, "x"));
    assert_eq!((known.queued_at(), known.ordered_at()), (queued_at, Timestamp(queued_at.0 + 300_000)), "it keeps its place");
    assert_eq!(
        submit(&mut s, 1, timed(Timing::default())),
        Ok(Outcome::Submitted { number: 1 }),
        "it is still known as what was submitted"
    );
    let smaller = AllocationChange { nice: Some(-5), ..AllocationChange::default() };
    assert_eq!(s.act(update(smaller.clone(), false)), Err(Refusal::Update { id: id(1), why: UpdateRefusal::SmallerNice }));
    s.done(update(smaller, true));
    s.done(update(AllocationChange { begin: Some(Timestamp(1)), ..AllocationChange::default() }, false));
    assert!(s.ledger.allocation(id(1)).unwrap().waits());
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    let state = AllocationState::Running;
    let again = AllocationChange { begin: Some(begin), ..AllocationChange::default() };
    assert_eq!(s.act(update(again, false)), Err(Refusal::Update { id: id(1), why: UpdateRefusal::HasBegun { state } }));
    invariant_indexes_equal_scans(&s.ledger);
}

/// The mail of these records: event, recipient, state and exit code.
fn mail(records: &[AuditRecord]) -> Vec<(String, String, String, Option<i32>)> {
    let notices = records.iter().filter_map(MailNotice::of);
    notices.map(|notice| (notice.event, notice.to, notice.state, notice.exit_code)).collect()
}

fn one(event: &str, to: &str, state: &str, exit_code: Option<i32>) -> Vec<(String, String, String, Option<i32>)> {
    vec![(event.to_owned(), to.to_owned(), state.to_owned(), exit_code)]
}

#[test]
fn each_event_of_which_mail_is_wanted_is_recorded_once() {
    let mut s = Story::new(1);
    let of = |events: &[MailEvent], user: &str| Some(Box::new(Mail { events: events.iter().copied().collect(), user: user.to_owned() }));
    let every = AllocationSpec { mail: of(&MailEvent::ALL, "ada@example.org"), ..timed(Timing::default()) };
    submit(&mut s, 1, every).unwrap();
    let epoch = s.claimed(1, &[0]);
    let reported = |s: &mut Story, item| s.report_records(0, item);
    let begun = reported(&mut s, prepared(1, epoch));
    assert_eq!(mail(&begun), one("begin", "ada@example.org", "Running", None));
    let started = s.now();
    let at = |percent: u64| Timestamp(started.0 + HOUR_MS / 100 * percent);
    assert!(!s.ledger.waits_are_due(Timestamp(at(50).0 - 1)));
    assert_eq!(mail(&clock(&mut s, at(50))), one("time_limit_50", "ada@example.org", "Running", None));
    assert!(!s.ledger.waits_are_due(s.now()), "it is recorded once");
    // The leader was late: only the last mark counts.
    assert_eq!(mail(&clock(&mut s, at(95))), one("time_limit_90", "ada@example.org", "Running", None));
    let requeued = reported(&mut s, exited(1, epoch, 1));
    assert_eq!(mail(&requeued), one("requeue", "ada@example.org", "Pending", Some(1)));
    s.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
    let again = s.claimed(1, &[0]);
    s.report(0, prepared(1, again));
    let ended = reported(&mut s, exited(1, again, 0));
    assert_eq!(mail(&ended), one("end", "ada@example.org", "Completed", Some(0)));
    s.report(0, ReportItem::Released { allocation: id(1), epoch: again, usage: None });
    // Without an address, its owner gets it; for people who asked only for ends, a failure is an end.
    submit(&mut s, 2, AllocationSpec { mail: of(&[MailEvent::End], ""), requeue: RequeuePolicy::Never, ..timed(Timing::default()) })
        .unwrap();
    let failing = s.claimed(2, &[0]);
    assert!(mail(&reported(&mut s, prepared(2, failing))).is_empty());
    let owner = user(7).name;
    assert_eq!(mail(&reported(&mut s, exited(2, failing, 3))), one("end", &owner, "Failed", Some(3)));
    submit(&mut s, 3, AllocationSpec { mail: of(&[MailEvent::Fail], ""), ..timed(Timing::default()) }).unwrap();
    let cancelled = s.acted(Action::Cancel { id: id(3), by: user(7) });
    assert_eq!(mail(&cancelled), one("fail", &owner, "Cancelled", None));
    invariant_indexes_equal_scans(&s.ledger);
}

/// A story with a group of 300 tasks, of which there is mail, and the epoch of its lane.
fn mailed_group(failures_max: Option<u32>) -> (Story, Epoch) {
    let mut s = Story::new(1);
    let tasks = TaskGroup { failures_max, ..TaskGroup::parse("0-299%1").unwrap() };
    let events = [MailEvent::End, MailEvent::Fail, MailEvent::ArrayTasks].into();
    let mail = Some(Box::new(Mail { events, user: "ada".to_owned() }));
    let walltime = Some(Duration::from_secs(60));
    submit(&mut s, 1, AllocationSpec { tasks: Some(Box::new(tasks)), mail, walltime, ..spec(1, RequeuePolicy::OnNodeFailure, 3) }).unwrap();
    let epoch = runs(&mut s, 0, 0);
    assert!(ended_tasks(&mut s, epoch, &[]).is_empty());
    (s, epoch)
}

/// The lane reports these ends: event, task and state of the mail that is due then.
fn ended_tasks(s: &mut Story, epoch: Epoch, ended: &[(TaskOutcome, (u32, u32))]) -> Vec<(String, Option<u32>, String)> {
    let ended = ended.iter().map(|(outcome, range)| EndedTasks { outcome: *outcome, tasks: tasks(&[*range]) }).collect();
    let report = LaneReport { ended, mean_us: SHORT_US, returned: None };
    let records = s.acted(Action::AdvanceLane { id: lane(0), epoch, node: node(0), report });
    records.iter().filter_map(MailNotice::of).map(|notice| (notice.event, notice.task, notice.state)).collect()
}

#[test]
fn of_the_first_100_tasks_that_end_there_is_mail_and_of_none_that_is_cancelled() {
    let due = |event: &str, task: u32, state: &str| (event.to_owned(), Some(task), state.to_owned());
    let (mut s, epoch) = mailed_group(None);
    let first = ended_tasks(&mut s, epoch, &[(DONE, (0, 97)), (TaskOutcome::Exited(3), (98, 98))]);
    assert_eq!(first.len(), 99);
    assert_eq!((&first[0], &first[98]), (&due("end", 0, "Completed"), &due("fail", 98, "Failed")));
    assert!(ended_tasks(&mut s, epoch, &[(DONE, (0, 97))]).is_empty(), "a repetition reports nothing new");
    assert_eq!(ended_tasks(&mut s, epoch, &[(DONE, (99, 120))]), [due("end", 99, "Completed")]);
    assert!(ended_tasks(&mut s, epoch, &[(DONE, (121, 121))]).is_empty());
    // A failure too many cancels all tasks that wait.
    let (mut s, epoch) = mailed_group(Some(0));
    assert_eq!(ended_tasks(&mut s, epoch, &[(TaskOutcome::Exited(3), (0, 0))]), [due("fail", 0, "Failed")]);
    invariant_indexes_equal_scans(&s.ledger);
}
