//! Scenarios of checkpoints: whose reports count, and which checkpoint work starts from.

use super::scenarios::{Story, id, node, registration, spec, user};
use super::{Action, Outcome, Registration};
use crate::Refusal;
use lattice_model::constraint::{CHECKPOINTS, RUN_LEASE};
use lattice_model::{
    AllocationSpec, AuditAction, CheckpointId, CheckpointMethod, CheckpointPolicy, CheckpointRef, CheckpointSignal, EndReason, Epoch,
    Incarnation, NodeReport, ReportItem, RequeuePolicy, SignalTo,
};
use uuid::Uuid;

/// A scenario in which every node makes checkpoints; the report numbers are tracked here.
struct Saving {
    story: Story,
    seqs: [u64; 3],
}

fn whole(number: u128, epoch: Epoch) -> CheckpointRef {
    CheckpointRef { id: CheckpointId(Uuid::from_u128(number)), epoch, step: Some(5), bytes: 10 }
}

fn asks() -> AllocationSpec {
    AllocationSpec { checkpoint: Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1)), ..spec(2, RequeuePolicy::OnNodeFailure, 3) }
}

impl Saving {
    fn new() -> Self {
        let mut story = Story::new(3);
        for number in 0..3 {
            let features = vec![CHECKPOINTS.to_owned()];
            story.done(Action::Register(Registration { features, ..registration(number, 1, 1, false) }));
        }
        Self { story, seqs: [0; 3] }
    }

    fn report(&mut self, from: u8, item: ReportItem) -> Outcome {
        let seq = &mut self.seqs[usize::from(from)];
        *seq += 1;
        let incarnation: Incarnation = self.story.ledger.node(&node(from)).unwrap().incarnation;
        self.story.act(Action::Report(NodeReport { node: node(from), incarnation, seq: *seq, item })).unwrap()
    }

    /// On the first node alone, or together with the second.
    fn begin(&mut self, nodes: &[u8]) -> Epoch {
        let epoch = self.story.claimed(1, nodes);
        for from in nodes {
            self.report(*from, ReportItem::Prepared { allocation: id(1), epoch });
        }
        epoch
    }

    fn last(&self) -> Option<CheckpointRef> {
        self.story.ledger.allocation(id(1)).unwrap().checkpoint.as_deref().cloned()
    }

    fn restores(&self, on: u8) -> Option<CheckpointRef> {
        self.story.ledger.desired(&node(on)).shares.first().and_then(|share| share.restore.clone())
    }
}

fn checkpointed(epoch: Epoch, checkpoint: CheckpointRef) -> ReportItem {
    ReportItem::Checkpointed { allocation: id(1), epoch, checkpoint }
}

#[test]
fn the_heads_word_under_the_present_claim_alone_counts_and_the_next_claim_begins_from_it() {
    let mut s = Saving::new();
    s.story.done(Action::Submit { id: id(1), spec: Box::new(asks()), owner: user(7), claim: None });
    let first = s.begin(&[0, 1]);
    s.report(1, checkpointed(first, whole(1, first)));
    assert_eq!(s.last(), None, "it is not the head");
    s.report(0, checkpointed(first, whole(1, first)));
    assert_eq!((s.last(), s.restores(0)), (Some(whole(1, first)), None), "what runs did not begin from it");
    // A repetition after a restart of the agent changes nothing.
    let again = s.story.ledger.audit_head().clone();
    s.report(0, checkpointed(first, whole(1, first)));
    assert_eq!(*s.story.ledger.audit_head(), again);
    s.report(1, ReportItem::Ended { allocation: id(1), epoch: first, reason: EndReason::NodeLost { node: node(1), why: "x".into() } });
    for from in [0, 1] {
        s.report(from, ReportItem::Released { allocation: id(1), epoch: first, usage: None });
    }
    let second = s.begin(&[2, 0]);
    assert_eq!((s.restores(2), s.restores(0)), (Some(whole(1, first)), Some(whole(1, first))));
    // A late report from the earlier, isolated attempt.
    let stale = s.report(0, checkpointed(first, whole(2, first)));
    assert_eq!(stale, Outcome::ContentRefused(Refusal::StaleEpoch { id: id(1), seen: first, now: second }));
    // A report with a wrong epoch is refused as well.
    s.report(2, checkpointed(second, whole(3, first)));
    assert_eq!(s.last(), Some(whole(1, first)));
    s.report(2, checkpointed(second, whole(4, second)));
    assert_eq!(s.last(), Some(whole(4, second)));
}

#[test]
fn work_that_asks_for_none_has_none() {
    let mut s = Saving::new();
    s.story.done(Action::Submit { id: id(1), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(7), claim: None });
    let epoch = s.begin(&[0]);
    s.report(0, checkpointed(epoch, whole(1, epoch)));
    assert_eq!(s.last(), None);
}

#[test]
fn the_audit_log_says_which_and_by_whom() {
    let mut s = Saving::new();
    s.story.done(Action::Submit { id: id(1), spec: Box::new(asks()), owner: user(7), claim: None });
    let epoch = s.begin(&[0, 1]);
    s.seqs[0] += 1;
    let incarnation = s.story.ledger.node(&node(0)).unwrap().incarnation;
    let report = NodeReport { node: node(0), incarnation, seq: s.seqs[0], item: checkpointed(epoch, whole(1, epoch)) };
    let records = s.story.acted(Action::Report(report));
    let audited: Vec<_> = records.iter().map(|r| (r.action, r.actor.as_str(), r.detail.contains("step 5"))).collect();
    assert_eq!(audited, [(AuditAction::CheckpointCommitted, "node:n0", true)]);
}

#[test]
fn work_that_is_asked_by_calls_needs_scopes() {
    for by in [CheckpointMethod::SharedMemory, CheckpointMethod::Call] {
        let spec = AllocationSpec { checkpoint: Some(CheckpointPolicy::by(by)), ..asks() };
        let mut now = lattice_model::Node::clone(Saving::new().story.ledger.node(&node(0)).unwrap());
        now.features = vec![];
        assert!(spec.unsaved_by(&now).is_some_and(|why| why.contains("makes no checkpoints")));
        now.features = vec![CHECKPOINTS.to_owned()];
        assert_eq!(spec.unsaved_by(&now).is_some(), by == CheckpointMethod::Call, "calls are told apart by their scopes alone");
        now.features.push(RUN_LEASE.to_owned());
        assert_eq!(spec.unsaved_by(&now), None);
    }
}

#[test]
fn and_so_does_work_whose_ranks_alone_are_signalled() {
    let saver = Saving::new().story.ledger.node(&node(0)).unwrap().clone();
    let with = |features: &[&str]| {
        let mut node = lattice_model::Node::clone(&saver);
        node.features = features.iter().map(|feature| (*feature).to_owned()).collect();
        node
    };
    for text in ["RTMIN+3", "SIGQUIT", "group:USR1", "ranks:RTMAX"] {
        let signal: CheckpointSignal = text.parse().unwrap();
        let spec = AllocationSpec { checkpoint: Some(CheckpointPolicy::by_signal(signal)), ..asks() };
        let scopeless = spec.unsaved_by(&with(&[CHECKPOINTS]));
        assert_eq!(scopeless.is_some(), signal.whom() != SignalTo::All, "{text}: ranks are told by their scopes alone");
        assert_eq!(spec.unsaved_by(&with(&[CHECKPOINTS, RUN_LEASE])), None, "{text}");
    }
    assert_eq!(asks().unsaved_by(&with(&[CHECKPOINTS])), None);
}
