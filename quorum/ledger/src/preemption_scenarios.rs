//! Scenarios of preemption: who may request it, which work is suspended, which fails, and which
//! waits for nodes again.

use super::scenarios::{Story, id, node, registration, spec, user};
use super::{Action, Outcome, Registration};
use crate::Refusal;
use lattice_model::constraint::CHECKPOINTS;
use lattice_model::end_reason::NotSaved;
use lattice_model::{
    Allocation, AllocationSpec, AllocationState, AuditAction, CheckpointId, CheckpointPolicy, CheckpointRef, CheckpointSignal, EndReason,
    Epoch, NodeReport, PreemptCause, Preemption, ReportItem, RequeuePolicy, When,
};
use uuid::Uuid;

#[test]
fn only_its_owner_holds_work_that_has_not_begun_and_resume_lets_it_wait_again() {
    let mut s = Preempting::new();
    s.submit(AllocationSpec { hold: true, ..spec(1, RequeuePolicy::Never, 0) });
    let held = |s: &Preempting| s.story.ledger.allocation(id(1)).map(|a| (a.held, a.waits())).unwrap();
    assert_eq!(held(&s), (true, false));
    assert!(matches!(s.story.claim(1, &[0]), Err(Refusal::NotPending { .. })), "held work gets no nodes");
    s.story.done(Action::Resume { allocation: id(1), by: user(7) });
    assert_eq!(held(&s), (false, true));
    let hold = |by| Action::HoldAllocation { allocation: id(1), by: user(by) };
    assert!(matches!(s.story.act(hold(8)), Err(Refusal::NotYours { .. })));
    let records = s.story.acted(hold(7));
    assert_eq!(records.iter().map(|r| r.action).collect::<Vec<_>>(), [AuditAction::AllocationHeld]);
    assert!(s.story.acted(hold(7)).is_empty(), "a repetition succeeds and changes nothing");
    s.story.done(Action::Resume { allocation: id(1), by: user(7) });
    s.run(&[0]);
    assert!(matches!(s.story.act(hold(7)), Err(Refusal::NotPending { .. })), "work with nodes is preempted, not held");
}

#[test]
fn requeue_checks_the_caller_and_the_policy_and_counts_once_for_each_claim() {
    let mut s = Preempting::new();
    let requeue = |epoch, by| Action::RequeueAllocation { allocation: id(1), epoch, by: user(by), reason: "x".into() };
    s.submit(spec(2, RequeuePolicy::OnNodeFailure, 1));
    assert!(matches!(s.story.act(requeue(Epoch(0), 7)), Err(Refusal::NotRunning { .. })), "it has no nodes");
    let first = s.run(&[0, 1]);
    assert!(matches!(s.story.act(requeue(first, 8)), Err(Refusal::NotYours { .. })));
    let records = s.story.acted(requeue(first, 0));
    assert_eq!(records.iter().map(|r| r.action).collect::<Vec<_>>(), [AuditAction::AllocationRequeued]);
    let now = s.now();
    let attempt = now.attempts.last().unwrap();
    assert_eq!((now.state, now.requeue_count, now.waits_until), (AllocationState::Pending, 1, None));
    assert_eq!((attempt.epoch, attempt.by.as_str(), attempt.reason.to_string()), (first, "u0", "requeued by u0: x".to_owned()));
    assert!(s.story.acted(requeue(first, 0)).is_empty(), "the answer was lost");
    for from in [0, 1] {
        s.report(from, ReportItem::Released { allocation: id(1), epoch: first, usage: None });
    }
    let second = s.run(&[2, 1]);
    assert!(s.story.acted(requeue(first, 0)).is_empty(), "the claim that the request names is over");
    assert_eq!(s.now().state, AllocationState::Running);
    assert!(matches!(s.story.act(requeue(second, 7)), Err(Refusal::NotRequeueable { .. })), "its policy allows one requeue");
    let mut never = Preempting::new();
    never.submit(spec(1, RequeuePolicy::Never, 3));
    let epoch = never.run(&[0]);
    assert!(matches!(never.story.act(requeue(epoch, 7)), Err(Refusal::NotRequeueable { .. })));
}

struct Preempting {
    story: Story,
    seqs: [u64; 3],
}

fn saves(nodes: u32, requeue: RequeuePolicy) -> AllocationSpec {
    AllocationSpec { checkpoint: Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1)), ..spec(nodes, requeue, 3) }
}

fn preemption_order(number: u128, hold: bool) -> Preemption {
    let (by, reason) = ("whoever".to_owned(), "needed".to_owned());
    let id = CheckpointId(Uuid::from_u128(number));
    Preemption { id, by, reason, cause: PreemptCause::Request, deadline_ms: 1000, hold, failed: None }
}

impl Preempting {
    fn new() -> Self {
        let mut story = Story::new(3);
        for number in 0..3 {
            let features = vec![CHECKPOINTS.to_owned()];
            story.done(Action::Register(Registration { features, ..registration(number, 1, 1, false) }));
        }
        Self { story, seqs: [0; 3] }
    }

    fn submit(&mut self, spec: AllocationSpec) {
        self.story.done(Action::Submit { id: id(1), spec: Box::new(spec), owner: user(7), claim: None });
    }

    fn report(&mut self, from: u8, item: ReportItem) -> Outcome {
        let seq = &mut self.seqs[usize::from(from)];
        *seq += 1;
        let incarnation = self.story.ledger.node(&node(from)).unwrap().incarnation;
        self.story.act(Action::Report(NodeReport { node: node(from), incarnation, seq: *seq, item })).unwrap()
    }

    fn run(&mut self, nodes: &[u8]) -> Epoch {
        let epoch = self.story.claimed(1, nodes);
        for from in nodes {
            self.report(*from, ReportItem::Prepared { allocation: id(1), epoch });
        }
        epoch
    }

    fn preempt(&mut self, epoch: Epoch, by: u32, order: Preemption) -> Result<Outcome, Refusal> {
        self.story.act(Action::Preempt { allocation: id(1), epoch, by: user(by), order, kill: false })
    }

    fn kill(&mut self, epoch: Epoch, by: u32, order: Preemption) -> Result<Outcome, Refusal> {
        self.story.act(Action::Preempt { allocation: id(1), epoch, by: user(by), order, kill: true })
    }

    fn checkpointed(&mut self, from: u8, epoch: Epoch, number: u128) -> CheckpointId {
        let made = CheckpointId(Uuid::from_u128(number));
        let checkpoint = CheckpointRef { id: made, epoch, step: None, bytes: 1 };
        self.report(from, ReportItem::Checkpointed { allocation: id(1), epoch, checkpoint });
        made
    }

    fn ended(&mut self, from: u8, epoch: Epoch, saved: Result<CheckpointId, NotSaved>) {
        let reason = EndReason::Preempted { by: "x".into(), why: "x".into(), saved };
        self.report(from, ReportItem::Ended { allocation: id(1), epoch, reason });
    }

    fn now(&self) -> &Allocation {
        self.story.ledger.allocation(id(1)).unwrap()
    }

    fn requested_checkpoint(&self, on: u8) -> Option<CheckpointId> {
        self.story.ledger.desired(&node(on)).shares.first().and_then(|share| share.preempt.as_ref()).map(|order| order.id)
    }
}

#[test]
fn work_that_saved_itself_keeps_its_submission_time_and_continues_elsewhere() {
    let mut s = Preempting::new();
    s.submit(saves(2, RequeuePolicy::Never));
    assert!(matches!(s.preempt(Epoch(0), 7, preemption_order(1, false)), Err(Refusal::NotRunning { .. })), "it has no nodes");
    let epoch = s.run(&[0, 1]);
    let submitted = s.now().submitted_at;
    assert!(matches!(s.preempt(epoch, 8, preemption_order(1, false)), Err(Refusal::NotYours { .. })));
    assert_eq!(s.preempt(epoch, 0, preemption_order(1, false)), Ok(Outcome::Done));
    let before = s.story.ledger.audit_head().clone();
    assert_eq!(s.preempt(epoch, 0, preemption_order(1, false)), Ok(Outcome::Done), "the answer was lost");
    assert_eq!(*s.story.ledger.audit_head(), before);
    assert_eq!(s.requested_checkpoint(0), Some(preemption_order(1, false).id));
    // Two concurrent requests are merged.
    s.preempt(epoch, 7, preemption_order(2, true)).unwrap();
    assert_eq!((s.requested_checkpoint(0), s.now().preemption.as_ref().unwrap().hold), (Some(preemption_order(1, false).id), true));
    let made = s.checkpointed(0, epoch, 1);
    // A report from a node other than the head, and one of an unknown checkpoint.
    s.ended(1, epoch, Ok(made));
    assert_eq!(s.now().state, AllocationState::Running);
    s.ended(0, epoch, Ok(made));
    let now = s.now();
    assert_eq!((now.state, now.held, now.preempted_count, now.requeue_count), (AllocationState::Suspended, true, 1, 0));
    assert_eq!((now.submitted_at, now.preemption.clone(), now.shares.len()), (submitted, None, 0));
    assert!(matches!(&now.reason, Some(EndReason::Preempted { by, saved: Ok(id), .. }) if *id == made && by == "u0"), "{now:?}");
    assert_eq!(s.requested_checkpoint(0), None);
    assert!(matches!(s.story.claim(1, &[2, 0]), Err(Refusal::NotPending { .. })), "it is held");
    assert!(matches!(s.story.act(Action::Resume { allocation: id(1), by: user(8) }), Err(Refusal::NotYours { .. })));
    s.story.done(Action::Resume { allocation: id(1), by: user(7) });
    s.story.done(Action::Resume { allocation: id(1), by: user(7) });
    for from in [0, 1] {
        s.report(from, ReportItem::Released { allocation: id(1), epoch, usage: None });
    }
    let second = s.run(&[2, 0]);
    let share = s.story.ledger.desired(&node(2)).shares[0].clone();
    assert_eq!(share.restore.map(|from| (from.id, from.epoch)), Some((made, epoch)));
    assert_eq!((s.now().state, s.now().preempted_count), (AllocationState::Running, 1));
    // A request for the previous claim has no effect.
    assert_eq!(s.preempt(epoch, 0, preemption_order(1, false)), Ok(Outcome::Done));
    assert_eq!((s.requested_checkpoint(2), s.now().epoch), (None, second));
    s.report(2, ReportItem::Ended { allocation: id(1), epoch: second, reason: EndReason::Exited { code: 0 } });
    assert_eq!(s.now().state, AllocationState::Completed);
    assert_eq!(s.preempt(second, 0, preemption_order(3, false)), Ok(Outcome::Done));
    assert!(matches!(s.story.act(Action::Resume { allocation: id(1), by: user(7) }), Err(Refusal::NotSuspended { .. })));
}

#[test]
fn work_that_did_not_save_itself_fails_or_follows_its_requeue_policy() {
    for (policy, state) in [
        (RequeuePolicy::Never, AllocationState::Failed),
        (RequeuePolicy::OnNodeFailure, AllocationState::Failed),
        (RequeuePolicy::Always, AllocationState::Pending),
    ] {
        let mut s = Preempting::new();
        s.submit(saves(1, policy));
        let epoch = s.run(&[0]);
        s.preempt(epoch, 7, preemption_order(1, true)).unwrap();
        s.ended(0, epoch, Err(NotSaved("it ignored that".into())));
        assert_eq!((s.now().state, s.now().held, s.now().preemption.clone()), (state, false, None), "{policy:?}");
        assert!(s.now().reason.as_ref().unwrap().to_string().contains("not saved: it ignored that"));
    }
    // A report of a checkpoint that the quorum does not have.
    let mut s = Preempting::new();
    s.submit(saves(1, RequeuePolicy::Never));
    let epoch = s.run(&[0]);
    s.preempt(epoch, 7, preemption_order(1, false)).unwrap();
    s.ended(0, epoch, Ok(preemption_order(1, false).id));
    assert_eq!(s.now().state, AllocationState::Failed);
}

#[test]
fn work_that_cannot_save_itself_is_ended_only_with_kill() {
    for (policy, then) in [(RequeuePolicy::Never, "would be Failed"), (RequeuePolicy::Always, "would begin again from its beginning")] {
        let mut s = Preempting::new();
        s.submit(spec(1, policy, 3));
        let epoch = s.run(&[0]);
        let before = s.now().clone();
        for hold in [false, true] {
            // Requested by its owner, or by root.
            for by in [7, 0] {
                let refused = s.preempt(epoch, by, preemption_order(1, hold)).unwrap_err();
                assert!(refused.to_string().contains("without --checkpoint") && refused.to_string().contains(then), "{refused}");
                assert!(refused.remedy().unwrap().contains("--kill"));
            }
        }
        assert_eq!((s.now(), s.requested_checkpoint(0)), (&before, None));
        s.kill(epoch, 7, preemption_order(1, false)).unwrap();
        assert_eq!(s.requested_checkpoint(0), Some(preemption_order(1, false).id));
        s.ended(0, epoch, Err(NotSaved("it was submitted without --checkpoint".into())));
        assert_eq!(s.kill(epoch, 7, preemption_order(1, false)), Ok(Outcome::Done), "the answer was lost");
    }
    // Work that has not begun loses nothing.
    let mut s = Preempting::new();
    s.submit(spec(2, RequeuePolicy::Never, 3));
    let epoch = s.story.claimed(1, &[0, 1]);
    assert_eq!(s.preempt(epoch, 7, preemption_order(1, false)), Ok(Outcome::Done));
    assert_eq!(s.now().state, AllocationState::Pending);
}

#[test]
fn a_repeated_request_has_no_effect_on_the_next_claim() {
    // The work could not save itself and was started again. A requester that missed this repeats
    // its request with the new claim.
    let mut s = Preempting::new();
    s.submit(saves(1, RequeuePolicy::Always));
    let epoch = s.run(&[0]);
    s.preempt(epoch, 7, preemption_order(1, false)).unwrap();
    s.ended(0, epoch, Err(NotSaved("it ignored that".into())));
    s.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
    let second = s.run(&[1]);
    assert_eq!(s.preempt(second, 7, preemption_order(1, false)), Ok(Outcome::Done));
    assert_eq!((s.now().state, s.requested_checkpoint(1)), (AllocationState::Running, None));
    s.preempt(second, 7, preemption_order(2, false)).unwrap();
    assert_eq!(s.requested_checkpoint(1), Some(preemption_order(2, false).id), "another id is another request");
    // It ended by itself before it had saved itself, and was requeued because of that.
    s.report(1, ReportItem::Ended { allocation: id(1), epoch: second, reason: EndReason::Exited { code: 1 } });
    s.report(1, ReportItem::Released { allocation: id(1), epoch: second, usage: None });
    let third = s.run(&[2]);
    assert_eq!(s.preempt(third, 7, preemption_order(2, false)), Ok(Outcome::Done));
    assert_eq!((s.now().state, s.requested_checkpoint(2)), (AllocationState::Running, None), "the request was served by the earlier claim");
    // It had not begun.
    let mut s = Preempting::new();
    s.submit(saves(2, RequeuePolicy::Never));
    let epoch = s.story.claimed(1, &[0, 1]);
    s.preempt(epoch, 7, preemption_order(1, false)).unwrap();
    for from in [0, 1] {
        s.report(from, ReportItem::Released { allocation: id(1), epoch, usage: None });
    }
    let second = s.run(&[0, 1]);
    assert_eq!(s.preempt(second, 7, preemption_order(1, false)), Ok(Outcome::Done));
    assert_eq!((s.now().state, s.requested_checkpoint(0), s.now().preempted_count), (AllocationState::Running, None, 1));
}

#[test]
fn work_that_has_not_begun_waits_again_at_once_and_sensitive_or_high_class_work_keeps_its_nodes() {
    let mut s = Preempting::new();
    s.submit(saves(2, RequeuePolicy::Never));
    let epoch = s.story.claimed(1, &[0, 1]);
    s.preempt(epoch, 0, preemption_order(1, false)).unwrap();
    assert_eq!((s.now().state, s.now().preempted_count), (AllocationState::Pending, 1), "there is no checkpoint to continue from");
    for from in [0, 1] {
        s.report(from, ReportItem::Released { allocation: id(1), epoch, usage: None });
    }
    let epoch = s.story.claimed(1, &[0, 1]);
    s.preempt(epoch, 0, preemption_order(2, true)).unwrap();
    assert_eq!((s.now().state, s.now().held), (AllocationState::Suspended, true));

    for spec in [
        AllocationSpec { sensitive: true, ..saves(1, RequeuePolicy::Never) },
        AllocationSpec { preemption_class: 10, ..saves(1, RequeuePolicy::Never) },
    ] {
        let mut s = Preempting::new();
        s.submit(spec);
        let epoch = s.run(&[0]);
        assert!(matches!(s.preempt(epoch, 0, preemption_order(1, false)), Err(Refusal::NotPreemptible { .. })));
        assert_eq!(s.preempt(epoch, 7, preemption_order(1, false)), Ok(Outcome::Done), "its owner may");
    }
}

#[test]
fn work_that_saved_itself_in_the_grace_of_its_walltime_is_suspended_until_resume() {
    let mut s = Preempting::new();
    s.submit(saves(1, RequeuePolicy::Always));
    let epoch = s.run(&[0]);
    let saved = |made| EndReason::WalltimeSaved { checkpoint: made };
    let made = s.checkpointed(0, epoch, 5);
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: saved(made) });
    assert_eq!((s.now().state, s.now().held, s.now().preempted_count), (AllocationState::Suspended, true, 0));
    s.story.done(Action::Resume { allocation: id(1), by: user(7) });
    s.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
    let epoch = s.run(&[1]);
    // A checkpoint of the previous claim does not count for this one.
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: saved(made) });
    assert_eq!((s.now().state, s.now().reason.clone()), (AllocationState::Failed, Some(EndReason::WalltimeExceeded)));
}

#[test]
fn walltime_holds_work_that_an_urgent_drain_could_not_save() {
    let mut s = Preempting::new();
    s.submit(saves(1, RequeuePolicy::Never));
    let epoch = s.run(&[0]);
    let (by, reason, seed) = ("root".to_owned(), "fire".to_owned(), Uuid::from_u128(1));
    s.story.done(Action::DrainUrgently { node: node(0), by, reason, deadline: None, seed });
    let asked = s.requested_checkpoint(0).unwrap();
    s.report(0, ReportItem::NotPreempted { allocation: id(1), epoch, id: asked, why: "it is deaf".into() });
    let made = s.checkpointed(0, epoch, 5);
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::WalltimeSaved { checkpoint: made } });
    assert_eq!((s.now().state, s.now().held), (AllocationState::Suspended, true));
}

#[test]
fn an_urgent_drain_asks_work_that_can_save_itself_and_lets_other_work_continue() {
    let mut s = Preempting::new();
    s.submit(saves(1, RequeuePolicy::Never));
    s.story.done(Action::Submit { id: id(2), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(7), claim: None });
    let epoch = s.run(&[0]);
    let drain = |seed, deadline| Action::DrainUrgently {
        node: node(0),
        by: "root".into(),
        reason: "fire".into(),
        deadline,
        seed: Uuid::from_u128(seed),
    };
    s.story.done(drain(1, Some(When::AfterMs(5000))));
    let first = s.now().preemption.clone().unwrap();
    assert_eq!((first.cause, first.deadline_ms, s.requested_checkpoint(0)), (PreemptCause::Drain, 5000, Some(first.id)));
    s.story.done(drain(1, Some(When::AfterMs(5000))));
    assert_eq!(s.requested_checkpoint(0), Some(first.id), "a repetition");
    // It cannot save itself, and continues; a second request is a different one.
    let not = |id, why: &str| ReportItem::NotPreempted { allocation: super::scenarios::id(1), epoch, id, why: why.into() };
    s.report(0, not(first.id, "it is deaf"));
    assert_eq!((s.now().state, s.requested_checkpoint(0)), (AllocationState::Running, None));
    assert_eq!(s.now().preemption.as_ref().unwrap().failed.as_deref(), Some("it is deaf"));
    // A repetition with the same seed was tried already; another seed is a new request.
    s.story.done(drain(1, None));
    assert_eq!((s.requested_checkpoint(0), s.now().preemption.as_ref().unwrap().stands()), (None, false));
    s.story.done(drain(2, None));
    let second = s.requested_checkpoint(0).unwrap();
    assert_ne!(second, first.id);
    // A request that requires more is merged while the first is being tried: a failure then ends
    // the work.
    s.preempt(epoch, 0, preemption_order(9, false)).unwrap();
    assert_eq!((s.requested_checkpoint(0), s.now().preemption.as_ref().unwrap().deadline_ms), (Some(second), 1000), "and sooner");
    s.report(0, not(second, "it is deaf"));
    assert_eq!(s.now().state, AllocationState::Failed);
}

#[test]
fn work_on_one_node_counts_as_running_before_its_node_reports() {
    let mut s = Preempting::new();
    s.submit(AllocationSpec { checkpoint: None, ..saves(1, RequeuePolicy::Never) });
    let epoch = s.story.claimed(1, &[0]);
    let drain = |seed| Action::DrainUrgently {
        node: node(0),
        by: "root".into(),
        reason: "fire".into(),
        deadline: None,
        seed: Uuid::from_u128(seed),
    };
    s.story.done(drain(1));
    assert_eq!((s.now().state, s.requested_checkpoint(0)), (AllocationState::Staging, None), "it may run, and cannot save itself");
    s.kill(epoch, 7, preemption_order(1, false)).unwrap();
    s.kill(epoch, 7, preemption_order(1, false)).unwrap();
    assert_eq!((s.now().state, s.requested_checkpoint(0)), (AllocationState::Staging, Some(preemption_order(1, false).id)));
    s.report(0, ReportItem::Prepared { allocation: id(1), epoch });
    assert_eq!((s.now().state, s.requested_checkpoint(0)), (AllocationState::Running, Some(preemption_order(1, false).id)));
    s.ended(0, epoch, Err(NotSaved("it cannot".into())));
    assert_eq!(s.now().state, AllocationState::Failed, "it is never run again");
}

#[test]
fn draining_a_second_node_with_the_same_seed_asks_the_new_claim_for_its_own_checkpoint() {
    let mut s = Preempting::new();
    s.submit(saves(1, RequeuePolicy::Never));
    let drain =
        |on| Action::DrainUrgently { node: node(on), by: "root".into(), reason: "fire".into(), deadline: None, seed: Uuid::from_u128(77) };
    let epoch = s.run(&[0]);
    s.story.done(drain(0));
    let first = s.requested_checkpoint(0).unwrap();
    s.checkpointed(0, epoch, first.0.as_u128());
    s.ended(0, epoch, Ok(first));
    assert_eq!(s.now().state, AllocationState::Suspended);
    s.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
    let epoch = s.run(&[1]);
    s.story.done(drain(1));
    let second = s.requested_checkpoint(1).unwrap();
    assert_ne!(second, first, "each claim is asked for its own checkpoint");
    s.checkpointed(1, epoch, second.0.as_u128());
    s.ended(1, epoch, Ok(second));
    assert_eq!((s.now().state, s.now().preempted_count), (AllocationState::Suspended, 2));
    s.report(1, ReportItem::Released { allocation: id(1), epoch, usage: None });
    // A person's request with the same id, repeated for the new claim.
    let epoch = s.run(&[2]);
    let again = Preemption { id: second, ..preemption_order(0, false) };
    assert_eq!(s.preempt(epoch, 7, again), Ok(Outcome::Done));
    assert_eq!((s.now().state, s.requested_checkpoint(2)), (AllocationState::Running, None));
}

#[test]
fn the_audit_log_says_who() {
    let mut s = Preempting::new();
    s.submit(saves(1, RequeuePolicy::Never));
    let epoch = s.run(&[0]);
    let asking = Action::Preempt { allocation: id(1), epoch, by: user(0), order: preemption_order(1, false), kill: false };
    let records = s.story.acted(asking);
    let audited: Vec<_> = records.iter().map(|r| (r.action, r.actor.as_str())).collect();
    assert_eq!(audited, [(AuditAction::PreemptRequested, "u0")]);
}
