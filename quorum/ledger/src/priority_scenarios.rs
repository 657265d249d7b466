//! Scenarios of preemption by a scheduler: which work gives its nodes back for which, and what is
//! refused as a whole.

use super::scenarios::{Story, id, node, registration, spec, user};
use super::{Action, PreemptFor, QuotaChange, Registration, SoftLimitsChange, TenantChange};
use crate::Refusal;
use lattice_model::constraint::CHECKPOINTS;
use lattice_model::end_reason::NotSaved;
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, AuditAction, CheckpointPolicy, CheckpointSignal, EndReason, Epoch, NodeReport,
    PreemptCause, ReportItem, RequeuePolicy,
};

/// Work of this class that begins anew if it is preempted.
fn of_class(class: u8) -> AllocationSpec {
    AllocationSpec { preemption_class: class, ..spec(1, RequeuePolicy::Always, 3) }
}

struct Priority {
    story: Story,
    seq: u64,
}

impl Priority {
    /// Allocation 1 runs on the first node; 2 waits.
    fn new(runs: AllocationSpec, waits: AllocationSpec) -> (Self, Epoch) {
        let mut story = Story::new(2);
        for number in 0..2 {
            story.done(Action::Register(Registration { features: vec![CHECKPOINTS.to_owned()], ..registration(number, 1, 1, false) }));
        }
        for (number, spec) in [(1, runs), (2, waits)] {
            story.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None });
        }
        let epoch = story.claimed(1, &[0]);
        let mut priority = Self { story, seq: 0 };
        priority.report(ReportItem::Prepared { allocation: id(1), epoch });
        (priority, epoch)
    }

    fn report(&mut self, item: ReportItem) {
        self.seq += 1;
        let incarnation = self.story.ledger.node(&node(0)).unwrap().incarnation;
        self.story.act(Action::Report(NodeReport { node: node(0), incarnation, seq: self.seq, item })).unwrap();
    }

    fn order(&self, victims: &[(AllocationId, Epoch)]) -> Action {
        let order = PreemptFor { beneficiary: id(2), victims: victims.to_vec(), lease_token: self.story.token, deadline_ms: 1000 };
        Action::PreemptFor(order)
    }

    fn refused(&mut self, action: Action) -> String {
        let before = self.story.ledger.allocation(id(1)).cloned();
        let refusal = self.story.act(action).unwrap_err().to_string();
        assert_eq!(self.story.ledger.allocation(id(1)).cloned(), before, "nothing has changed");
        refusal
    }
}

#[test]
fn work_of_a_lower_class_gives_its_nodes_back_and_waits_again() {
    let (mut p, epoch) = Priority::new(of_class(4), of_class(5));
    let order = p.order(&[(id(1), epoch)]);
    let records = p.story.acted(order.clone());
    assert_eq!(records.iter().map(|r| (r.action, r.actor.as_str())).collect::<Vec<_>>(), [(AuditAction::PreemptRequested, "scheduler")]);
    let ordered = p.story.ledger.allocation(id(1)).unwrap().preemption.clone().unwrap();
    assert_eq!((ordered.cause, ordered.deadline_ms, ordered.hold), (PreemptCause::Priority, 1000, false));
    assert_eq!(ordered.reason, format!("allocation {} of class 5 needs its nodes", id(2).short()));
    assert!(p.story.acted(order.clone()).is_empty(), "the answer was lost");
    let why =
        EndReason::Preempted { by: ordered.by, why: ordered.reason, saved: Err(NotSaved("it was submitted without --checkpoint".into())) };
    p.report(ReportItem::Ended { allocation: id(1), epoch, reason: why });
    p.report(ReportItem::Released { allocation: id(1), epoch, usage: None });
    let now = p.story.ledger.allocation(id(1)).unwrap().clone();
    assert_eq!((now.state, now.requeue_count, now.waits_until), (AllocationState::Pending, 1, None));
    p.story.claimed(2, &[0]);
    let again = p.story.claimed(1, &[1]);
    assert!(matches!(p.story.act(order), Err(Refusal::NotPending { .. })), "it has nodes now");
    assert!(again > epoch && p.story.ledger.allocation(id(1)).unwrap().preemption.is_none());
}

#[test]
fn only_a_lower_class_is_preempted_and_only_work_that_continues_later() {
    for (runs, waits, why) in [
        (of_class(5), of_class(5), "its class is 5, and the work that needs its nodes has class 5"),
        // Without a limit of the tenant, class 9 counts as class 5.
        (of_class(5), of_class(9), "has class 5"),
        (
            AllocationSpec { preemption_class: 1, ..spec(1, RequeuePolicy::OnNodeFailure, 3) },
            of_class(5),
            "neither save itself nor begin anew",
        ),
        (AllocationSpec { requeues_max: 0, ..of_class(1) }, of_class(5), "neither save itself nor begin anew"),
    ] {
        let (mut p, epoch) = Priority::new(runs, waits);
        let order = p.order(&[(id(1), epoch)]);
        let refusal = p.refused(order);
        assert!(refusal.contains(why), "{refusal}");
    }
    let saves = AllocationSpec {
        preemption_class: 1,
        checkpoint: Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1)),
        ..spec(1, RequeuePolicy::Never, 0)
    };
    let (mut p, epoch) = Priority::new(saves, of_class(5));
    let order = p.order(&[(id(1), epoch)]);
    p.story.done(order);
}

#[test]
fn a_class_that_an_operator_has_bounded_counts() {
    let tenant = |name: &str| AllocationSpec { tenant: name.into(), ..of_class(8) };
    let (mut p, epoch) = Priority::new(AllocationSpec { preemption_class: 6, ..of_class(6) }, tenant("urgent"));
    let order = p.order(&[(id(1), epoch)]);
    p.refused(order.clone());
    let change = TenantChange {
        name: "urgent".into(),
        create: true,
        max_nodes: QuotaChange::Keep,
        max_concurrent_allocations: QuotaChange::Keep,
        soft: SoftLimitsChange { class_max: QuotaChange::AtMost(8), ..SoftLimitsChange::default() },
        expected_version: None,
    };
    p.story.done(Action::SetTenant { change, by: "root".into() });
    p.story.done(order);
}

#[test]
fn an_order_of_no_lease_for_nothing_or_for_too_many_changes_nothing() {
    let (mut p, epoch) = Priority::new(of_class(1), of_class(5));
    let token = p.story.token;
    let order = |victims: usize, lease_token, deadline_ms, beneficiary| {
        Action::PreemptFor(PreemptFor { beneficiary: id(beneficiary), victims: vec![(id(1), epoch); victims], lease_token, deadline_ms })
    };
    for (action, why) in [
        (order(1, token + 1, 1000, 2), "lease"),
        (order(0, token, 1000, 2), "0 victims"),
        (order(4, token, 1000, 2), "4 victims"),
        (order(1, token, 0, 2), "deadline"),
        (order(1, token, 1000, 9), "9"),
        (order(1, token, 1000, 1), "Running"),
    ] {
        let refusal = p.refused(action);
        assert!(refusal.contains(why), "{refusal}");
    }
    // One victim that may not be preempted protects the others: with fewer nodes the work could not begin.
    p.story.done(Action::Submit { id: id(3), spec: Box::new(of_class(5)), owner: user(7), claim: None });
    let other = p.story.claimed(3, &[1]);
    let both = p.order(&[(id(1), epoch), (id(3), other)]);
    assert!(p.refused(both).contains("its class is 5"));
    let stale = p.order(&[(id(1), Epoch(epoch.0 + 9))]);
    assert!(p.story.acted(stale).is_empty(), "the claim that was meant is over");
}
