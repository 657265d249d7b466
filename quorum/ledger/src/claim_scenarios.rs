//! Scenarios of claims: what they take, why they are refused, and how work starts to run.

use super::scenarios::{SIZE, Story, id, node, prepared, registration, released, spec, user};
use super::{Action, NodeStateChange, Outcome, Refusal, Registration};
use lattice_model::claim::ClaimShare;
use lattice_model::feature_expression::parse;
use lattice_model::spec::share_of;
use lattice_model::{
    AllocationSpec, AllocationState, AuditAction, Claim, Constraints, EndReason, HoldKind, LocalDomain, Locality, NodeState, ReportItem,
    RequeuePolicy, Resources, Revision, SharePhase, Topology,
};

#[test]
fn a_submission_with_its_claim_is_one_commit_and_one_whose_claim_is_refused_waits() {
    let mut s = Story::new(1);
    let submit = |s: &Story, number, claim| Action::Submit {
        id: id(number),
        spec: Box::new(spec(1, RequeuePolicy::Never, 0)),
        owner: user(7),
        claim: Some(Claim { lease_token: s.token, ..claim }),
    };
    let first = submit(&s, 1, s.proposal(1, &[0]));
    s.done(first.clone());
    assert_eq!((s.state(1), s.desired(0)), (AllocationState::Staging, 1));
    let epoch = s.ledger.allocation(id(1)).unwrap().epoch;
    // Repeated because the answer was lost: nothing is claimed twice.
    s.done(first);
    assert_eq!((s.ledger.allocation(id(1)).unwrap().epoch, s.desired(0)), (epoch, 1));
    // Refused: the node was claimed meanwhile; a wrong lease token; a claim for another allocation.
    s.done(submit(&s, 2, s.proposal(2, &[0])));
    let mut stale = s.proposal(3, &[0]);
    stale.lease_token += 1;
    s.done(Action::Submit { id: id(3), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(7), claim: Some(stale) });
    s.done(submit(&s, 4, s.proposal(2, &[0])));
    assert_eq!([2, 3, 4].map(|n| s.state(n)), [AllocationState::Pending; 3]);
}

#[test]
fn the_audit_log_names_who_proposed_a_claim_and_not_who_holds_the_lease() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let by = |claim: Claim| Claim { by: Some(node(1).to_string()), ..claim };
    let waiting = Action::Claim(by(s.proposal(1, &[0])));
    let spec = Box::new(spec(1, RequeuePolicy::Never, 0));
    let newcomer = Action::Submit { id: id(2), spec, owner: user(7), claim: Some(by(s.proposal(2, &[1]))) };
    for action in [waiting, newcomer] {
        let records = s.acted(action);
        let claimed = records.iter().find(|r| r.action == AuditAction::AllocationClaimed).unwrap();
        assert_eq!(claimed.actor, format!("node:{}", node(1)), "{} holds the lease", node(0));
    }
}

#[test]
fn it_runs_when_every_node_is_prepared_and_its_nodes_are_free_when_they_say_so() {
    let mut s = Story::new(2);
    s.submit(1, 2, RequeuePolicy::Never, 0);
    let epoch = s.claimed(1, &[0, 1]);
    s.report(1, prepared(1, epoch));
    assert_eq!(s.state(1), AllocationState::Staging);
    s.report(0, prepared(1, epoch));
    assert_eq!(s.state(1), AllocationState::Running);
    // Only the head knows how the work ended.
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!(s.state(1), AllocationState::Running);
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!((s.state(1), s.desired(0), s.desired(1)), (AllocationState::Completed, 0, 0));
    assert_eq!(s.ledger.node(&node(0)).unwrap().leaving.len(), 1);
    s.report(0, released(1, epoch));
    assert_eq!(s.ledger.held(&node(0)), Resources::default());
    assert_eq!(s.ledger.held(&node(1)), SIZE);
    let phases: Vec<_> = s.ledger.allocation(id(1)).unwrap().shares.iter().map(|s| s.phase).collect();
    assert_eq!(phases, [SharePhase::Released, SharePhase::Prepared]);
}

#[test]
fn a_claim_is_refused_for_each_thing_that_can_stand_against_it() {
    let mut s = Story::new(3);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    s.claimed(1, &[0]);
    let why = |result: Result<Outcome, Refusal>| match result {
        Err(Refusal::Conflict { conflicts }) => (conflicts[0].holder, conflicts[0].why.clone()),
        other => panic!("{other:?}"),
    };
    let (holder, text) = why(s.claim(2, &[0]));
    assert!(holder == Some(id(1)) && text.contains("allocation"), "{text}");
    assert!(why(s.claim(2, &[9])).1.contains("not registered"));
    assert!(matches!(s.claim(1, &[1]), Err(Refusal::NotPending { .. })));
    assert!(matches!(s.claim(3, &[1]), Err(Refusal::NoSuchAllocation { .. })));
    assert!(matches!(s.claim(2, &[1, 2]), Err(Refusal::MalformedClaim { .. })));
    s.submit(4, 2, RequeuePolicy::Never, 0);
    assert!(matches!(s.claim(4, &[1, 1]), Err(Refusal::MalformedClaim { .. })));
    let incarnation = s.ledger.node(&node(1)).unwrap().incarnation;
    let state_change = NodeStateChange { node: node(1), incarnation, state: NodeState::Degraded, reason: "silent".into() };
    s.done(Action::NodeStates(vec![state_change]));
    assert!(why(s.claim(2, &[1])).1.contains("Degraded: silent"));
    // The claim is based on an outdated state of the node.
    let stale = ClaimShare { node: node(2), resources: SIZE, hold_revision: Revision(0) };
    let claim = |token, share| Claim {
        allocation: id(2),
        requeue_count: 0,
        lease_token: token,
        shares: vec![share],
        after: None,
        by: None,
        walltime: None,
    };
    assert!(why(s.act(Action::Claim(claim(s.token, stale.clone())))).1.contains("changed at revision"));
    assert!(matches!(s.act(Action::Claim(claim(s.token + 1, stale.clone()))), Err(Refusal::StaleLease { .. })));
    let late = Claim { requeue_count: 1, ..claim(s.token, stale) };
    assert!(matches!(s.act(Action::Claim(late)), Err(Refusal::StaleRequeueCount { seen: 1, now: 0, .. })));
}

#[test]
fn a_claim_has_a_number_of_nodes_of_the_range() {
    let mut s = Story::new(4);
    for number in 1..=3 {
        let spec = AllocationSpec { nodes_max: Some(3), ..spec(2, RequeuePolicy::Never, 0) };
        s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None });
    }
    for nodes in [&[0][..], &[0, 1, 2, 3]] {
        assert!(matches!(s.claim(1, nodes), Err(Refusal::MalformedClaim { .. })), "{nodes:?}");
    }
    s.claimed(1, &[0, 1, 2]);
    assert_eq!((s.desired(2), s.desired(3)), (1, 0));
}

#[test]
fn a_claim_made_before_a_node_moved_to_another_topology_group_is_refused() {
    let mut s = Story::new(1);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let claim = s.proposal(1, &[0]);
    let moved = |group: &str| Action::Register(Registration { topology_group: Some(group.into()), ..registration(0, 1, 1, false) });
    s.done(moved("row-1"));
    assert!(matches!(s.act(Action::Claim(claim)), Err(Refusal::Conflict { .. })));
    assert_eq!(s.ledger.node(&node(0)).unwrap().topology_group.as_deref(), Some("row-1"));
    for bad in ["", "row\n", &"x".repeat(65)] {
        assert!(matches!(s.act(moved(bad)), Err(Refusal::Malformed { .. })), "{bad:?}");
    }
    s.claimed(1, &[0]);
}

#[test]
fn a_claim_made_before_a_nodes_wiring_changed_is_refused() {
    let mut s = Story::new(1);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let claim = s.proposal(1, &[0]);
    let wired = |locality: &Locality| Action::Register(Registration { locality: locality.clone(), ..registration(0, 1, 1, false) });
    let links = |count, percent| Locality { gpu_links: vec![percent; count], ..Locality::default() };
    let locality = Locality { domains: vec![LocalDomain { cores: 2, gpus: 1 }; 2], cxl_memory_bytes: 1 << 40, ..links(1, 100) };
    s.done(wired(&locality));
    assert!(matches!(s.act(Action::Claim(claim)), Err(Refusal::Conflict { .. })));
    let held = s.ledger.node(&node(0)).unwrap();
    let (known, revision) = (held.locality.clone(), held.hold_revision);
    assert_eq!(known, locality);
    let domains = vec![LocalDomain::default(); 65];
    for bad in [Locality { domains, ..Locality::default() }, links(16, 100), links(1, 101)] {
        assert!(matches!(s.act(wired(&bad)), Err(Refusal::Malformed { .. })), "{bad:?}");
    }
    s.done(wired(&locality));
    assert_eq!(s.ledger.node(&node(0)).unwrap().hold_revision, revision, "nothing has changed");
    s.claimed(1, &[0]);
}

#[test]
fn shares_of_a_node_are_what_was_asked_for_and_never_come_to_more_than_it_has() {
    let mut s = Story::new(1);
    let share = Resources { cores: 3, ..Resources::default() };
    for number in 1..=3 {
        let spec = AllocationSpec { share: Some(share), ..spec(1, RequeuePolicy::Never, 0) };
        s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None });
    }
    s.submit(4, 1, RequeuePolicy::Never, 0);
    let part = share_of(&share, &SIZE);
    assert_eq!((part.cores, part.memory_bytes), (3, 24));
    let claim = |s: &Story, number, resources| Claim {
        shares: vec![ClaimShare { resources, ..s.proposal(number, &[0]).shares[0].clone() }],
        ..s.proposal(number, &[0])
    };
    let why = |result: Result<Outcome, Refusal>| match result {
        Err(Refusal::Conflict { conflicts }) => conflicts[0].why.clone(),
        other => panic!("{other:?}"),
    };
    // A scheduler cannot change the requested amount.
    for wrong in [SIZE, share, Resources { cores: 2, ..part }] {
        assert!(why(s.act(Action::Claim(claim(&s, 1, wrong)))).contains("is to give 3 cores"));
    }
    for number in [1, 2] {
        s.done_claim(claim(&s, number, part));
    }
    assert_eq!(s.ledger.held(&node(0)), part.plus(&part));
    assert_eq!(s.desired(0), 2);
    assert!(why(s.act(Action::Claim(claim(&s, 3, part)))).contains("3 cores are wanted, 2 free"));
    assert!(why(s.claim(4, &[0])).contains("8 cores are wanted, 2 free"));
    // Resources that one allocation released are available to another.
    let epoch = s.ledger.allocation(id(1)).unwrap().epoch;
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert!(why(s.act(Action::Claim(claim(&s, 3, part)))).contains("are wanted"), "not before it was released");
    s.report(0, released(1, epoch));
    s.done_claim(claim(&s, 3, part));
}

#[test]
fn a_node_that_shrinks_keeps_its_work_and_gets_no_more() {
    let mut s = Story::new(1);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    s.claimed(1, &[0]);
    let smaller = Resources { cores: 4, ..SIZE };
    let unenforced_limits = vec!["memory".to_owned()];
    s.done(Action::Register(Registration { size: smaller, unenforced_limits: unenforced_limits.clone(), ..registration(0, 1, 1, false) }));
    assert_eq!(s.ledger.node(&node(0)).unwrap().unenforced_limits, unenforced_limits);
    let hostile = Registration { unenforced_limits: vec!["x".repeat(33)], ..registration(0, 1, 1, false) };
    assert!(matches!(s.act(Action::Register(hostile)), Err(Refusal::Malformed { .. })));
    assert_eq!(s.desired(0), 1);
    assert!(matches!(s.claim(2, &[0]), Err(Refusal::Conflict { .. })));
}

#[test]
fn allocations_are_found_by_prefix() {
    let mut s = Story::new(0);
    s.submit(0x1234_5678, 1, RequeuePolicy::Never, 0);
    s.submit(0x1234_9999, 1, RequeuePolicy::Never, 0);
    let found = |key: &str| s.ledger.find(key).map(|a| a.id);
    assert_eq!(found("12345"), Ok(id(0x1234_5678)));
    assert_eq!(found(&id(0x1234_9999).to_string()), Ok(id(0x1234_9999)));
    assert!(matches!(found("1234"), Err(Refusal::AmbiguousAllocation { candidates, .. }) if candidates.len() == 2));
    assert!(matches!(found("12a"), Err(Refusal::Malformed { .. })));
    assert!(matches!(found("ffff"), Err(Refusal::NoSuchAllocation { .. })));
    assert!(matches!(found("xyzw"), Err(Refusal::NoSuchAllocation { .. })));
}

#[test]
fn a_claim_is_refused_if_the_one_before_it_in_its_queue_was() {
    let mut s = Story::new(2);
    (1..=3).for_each(|number| s.submit(number, 1, RequeuePolicy::Never, 0));
    let after = |s: &Story, number, node, ahead: Option<u128>| Claim { after: ahead.map(id), ..s.proposal(number, &[node]) };
    let (kind, by, reason) = (HoldKind::Drain, "root".to_owned(), "fan".to_owned());
    s.done(Action::SetHold { node: node(1), kind, by, reason, until: None, deadline: None });
    let first = after(&s, 1, 1, None);
    assert!(matches!(s.act(Action::Claim(first)), Err(Refusal::Conflict { .. })));
    let second = after(&s, 2, 0, Some(1));
    assert_eq!(s.act(Action::Claim(second)), Err(Refusal::WaitsAhead { id: id(2), ahead: id(1) }));
    // Once allocation 1 has ended, or has nodes, the claim is granted.
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.done_claim(after(&s, 2, 0, Some(1)));
    s.done(Action::Cancel { id: id(2), by: user(7) });
    assert!(matches!(s.claim(3, &[0]), Err(Refusal::Conflict { .. })), "it is not released yet");
}

#[test]
fn a_claim_has_nodes_that_were_asked_for_and_serve_together() {
    let mut s = Story::new(4);
    for (number, feature, group) in [(0, "a", "x"), (1, "b", "x"), (2, "a", "y"), (3, "b", "z")] {
        let (features, topology_group) = (vec![feature.to_owned()], Some(group.to_owned()));
        s.done(Action::Register(Registration { features, topology_group, ..registration(number, 1, 1, false) }));
    }
    let mut submit = |number: u128, nodes: u32, change: &dyn Fn(&mut Constraints)| {
        let mut wants = spec(nodes, RequeuePolicy::Never, 0);
        change(&mut wants.constraints);
        s.done(Action::Submit { id: id(number), spec: Box::new(wants), owner: user(7), claim: None });
    };
    let asks = |constraints: &mut Constraints, text: &str| constraints.choice = parse(text).unwrap().choice.map(Box::new);
    submit(1, 2, &|constraints| asks(constraints, "[a|b]"));
    submit(2, 2, &|constraints| asks(constraints, "a*1&b*1"));
    submit(3, 1, &|constraints| asks(constraints, "a|c"));
    submit(4, 1, &|constraints| constraints.excluded = [node(1)].into());
    submit(5, 2, &|constraints| constraints.topology = Topology::AtMost(1));
    submit(6, 2, &|constraints| constraints.topology = Topology::Contiguous);
    for (number, nodes, why) in [
        (1, &[0, 1][..], "have none of a|b in common"),
        (2, &[1, 3], "are not 1 with a and 1 with b"),
        (3, &[1], "has none of the alternatives a|c"),
        (4, &[1], "is excluded by --exclude"),
        (5, &[0, 2], "are of 2 topology groups; at most 1 is asked for"),
        (6, &[0, 2], "do not follow each other by their names"),
    ] {
        let Err(Refusal::Conflict { conflicts }) = s.claim(number, nodes) else { panic!("{why}") };
        assert!(conflicts[0].why.contains(why), "{}", conflicts[0].why);
    }
    s.claimed(1, &[0, 2]);
    s.claimed(4, &[3]);
}
