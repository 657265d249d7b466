//! Scaled services, when the lost quorum has changed their replicas since the backup.

use super::*;
use crate::properties::invariants::invariant_replicas_are_as_wanted;
use crate::task_groups::lane_id;
use crate::{AllocationChange, ListFilter, ScalingChange, WantedLanes};
use lattice_model::{AllocationId, Dependency, DependencyCondition, Drain, PreemptCause, ReplicaOf, Scaling, ScalingState};

fn replica(number: u32) -> AllocationId {
    lane_id(id(1), number)
}

/// A service that exposes a port.
fn submit_service(quorum: &mut Quorum, least: u32, most: u32) {
    let scaling = Scaling { replicas_min: least, replicas_max: most, policy: None, drain: Drain::default() };
    let api = Exposed { name: "api".into(), port: 80, protocol: "tcp".into() };
    let connectivity = Connectivity { expose: vec![api], ..Connectivity::default() };
    let plain = spec(1, RequeuePolicy::Never, 0);
    let spec = Box::new(AllocationSpec { scaling: Some(Box::new(scaling)), walltime: None, connectivity, ..plain });
    quorum.act(Action::Submit { id: id(1), spec, owner: user(7), claim: None }).unwrap();
}

fn scale(quorum: &mut Quorum, replicas: u32) {
    quorum.act(Action::Scale { id: id(1), replicas, by: user(7) }).unwrap();
}

fn rebound(quorum: &mut Quorum, replicas_min: Option<u32>, replicas_max: Option<u32>) {
    let scaling = Some(ScalingChange { replicas_min, replicas_max, ..ScalingChange::default() });
    let change = AllocationChange { scaling, ..AllocationChange::default() };
    quorum.act(Action::UpdateAllocation { allocation: id(1), by: user(7), change, as_operator: false }).unwrap();
}

fn run_replica(quorum: &mut Quorum, number: u32, on: u8) -> Epoch {
    let hold_revision = quorum.ledger.node(&node(on)).unwrap().hold_revision;
    let shares = vec![ClaimShare { node: node(on), resources: SIZE, hold_revision }];
    let claim =
        Claim { allocation: replica(number), requeue_count: 0, lease_token: quorum.token, shares, after: None, by: None, walltime: None };
    let Ok(Outcome::Claimed { epoch }) = quorum.act(Action::Claim(claim)) else { panic!("replica {number} waits for nodes") };
    quorum.report(on, ReportItem::Prepared { allocation: replica(number), epoch });
    epoch
}

fn live(quorum: &Quorum) -> Vec<u32> {
    let replicas = quorum.ledger.list(None, &[], 0, None, &ListFilter { lanes: WantedLanes::Of(id(1)), ..ListFilter::default() });
    let live = replicas.iter().filter(|a| !a.state.is_terminal());
    let mut numbers: Vec<u32> = live.map(|a| a.replica.as_ref().unwrap().number).collect();
    numbers.sort_unstable();
    numbers
}

/// Wanted, waiting, running and leaving replicas.
fn counts(quorum: &Quorum) -> (u32, u32, u32, u32) {
    let service = quorum.ledger.allocation(id(1)).unwrap();
    let ScalingState { wanted, waiting, running, leaving, .. } = service.scaling.as_deref().unwrap();
    (*wanted, *waiting, *running, *leaving)
}

#[test]
fn replicas_that_the_backup_lacks_are_adopted_and_wanted() {
    let mut quorum = three_nodes();
    submit_service(&mut quorum, 1, 3);
    run_replica(&mut quorum, 0, 0);
    let mut now = quorum.backup().recovered();
    scale(&mut quorum, 3);
    run_replica(&mut quorum, 1, 1);
    run_replica(&mut quorum, 2, 2);
    (0..3).for_each(|n| now.return_node(n, 1, quorum.held(n)));
    assert_eq!((live(&now), counts(&now)), (vec![0, 1, 2], (3, 0, 3, 0)));
    assert_eq!(now.ledger.endpoints("api", None, 9).len(), 3);
    invariant_replicas_are_as_wanted(&now.ledger);
    // Numbers that the lost quorum may have used are not used again.
    now.act(Action::Cancel { id: replica(1), by: user(7) }).unwrap();
    assert_eq!(live(&now), [0, 2, 1_000_001]);
}

#[test]
fn adopted_replicas_are_wanted_once_and_not_against_the_user() {
    for (asked, then) in [(None, (3, 0, 3, 0)), (Some(2), (2, 0, 2, 1))] {
        let mut quorum = three_nodes();
        submit_service(&mut quorum, 1, 3);
        let mut now = quorum.backup().recovered();
        scale(&mut quorum, 3);
        for number in 0..3 {
            run_replica(&mut quorum, number.into(), number);
        }
        (0..2).for_each(|n| now.return_node(n, 1, quorum.held(n)));
        assert_eq!(counts(&now), (1, 0, 2, 0), "a node may have more");
        if let Some(asked) = asked {
            scale(&mut now, asked);
        }
        now.return_node(2, 1, quorum.held(2));
        assert_eq!(counts(&now), then);
        invariant_replicas_are_as_wanted(&now.ledger);
        let change = now.ledger.allocation(id(1)).unwrap().scaling.as_ref().unwrap().change.clone().unwrap();
        assert_eq!(change.by.as_deref(), Some(if asked.is_some() { "u7" } else { "quorum" }));
        scale(&mut now, 1);
        assert_eq!(counts(&now).0, 1);
    }
}

#[test]
fn a_higher_bound_than_the_backups_is_adopted_with_the_replicas_created_under_it() {
    let mut quorum = three_nodes();
    submit_service(&mut quorum, 1, 2);
    run_replica(&mut quorum, 0, 0);
    let submitted = quorum.ledger.allocation(id(1)).unwrap().spec.clone();
    let mut now = quorum.backup().recovered();
    rebound(&mut quorum, None, Some(5));
    scale(&mut quorum, 3);
    run_replica(&mut quorum, 1, 1);
    run_replica(&mut quorum, 2, 2);
    (0..3).for_each(|n| now.return_node(n, 1, quorum.held(n)));
    assert_eq!((live(&now), counts(&now)), (vec![0, 1, 2], (3, 0, 3, 0)));
    let service = now.ledger.allocation(id(1)).unwrap();
    let bounds = service.spec.scaling.as_deref().map(|scaling| (scaling.replicas_min, scaling.replicas_max));
    assert_eq!(bounds, Some((1, 5)));
    assert!(service.was_submitted_as(&submitted));
    scale(&mut now, 5);
    assert_eq!(counts(&now), (5, 2, 3, 0));
    invariant_replicas_are_as_wanted(&now.ledger);
}

#[test]
fn a_replica_that_the_backup_has_widens_no_bound_that_was_lowered() {
    let mut quorum = three_nodes();
    submit_service(&mut quorum, 1, 5);
    rebound(&mut quorum, None, Some(2));
    let mut now = quorum.backup().recovered();
    run_replica(&mut quorum, 0, 0);
    (0..3).for_each(|n| now.return_node(n, 1, quorum.held(n)));
    let service = now.ledger.allocation(id(1)).unwrap();
    assert_eq!((service.spec.scaling.as_ref().unwrap().replicas_max, counts(&now)), (2, (1, 0, 1, 0)));
}

#[test]
fn other_bounds_during_a_recovery_end_nothing_that_is_adopted_within_them() {
    for (least, most, then) in [(Some(2), None, (3, 0, 3, 0)), (None, Some(2), (2, 0, 2, 1))] {
        let mut quorum = three_nodes();
        submit_service(&mut quorum, 1, 3);
        let mut now = quorum.backup().recovered();
        scale(&mut quorum, 3);
        for number in 0..3 {
            run_replica(&mut quorum, number.into(), number);
        }
        (0..2).for_each(|n| now.return_node(n, 1, quorum.held(n)));
        rebound(&mut now, least, most);
        now.return_node(2, 1, quorum.held(2));
        assert_eq!(counts(&now), then);
        invariant_replicas_are_as_wanted(&now.ledger);
    }
}

#[test]
fn a_service_whose_replica_is_adopted_waits_for_nothing() {
    let mut quorum = three_nodes();
    quorum.submit(2, 1);
    let depends_on = vec![Dependency { on: id(2), condition: DependencyCondition::Any }];
    let scaling = Scaling { replicas_min: 1, replicas_max: 2, policy: None, drain: Drain::default() };
    let plain = spec(1, RequeuePolicy::Never, 0);
    let spec = Box::new(AllocationSpec { scaling: Some(Box::new(scaling)), walltime: None, depends_on, ..plain });
    quorum.act(Action::Submit { id: id(1), spec, owner: user(7), claim: None }).unwrap();
    let mut now = quorum.backup().recovered();
    quorum.act(Action::Cancel { id: id(2), by: user(7) }).unwrap();
    run_replica(&mut quorum, 0, 0);
    (0..3).for_each(|n| now.return_node(n, 1, quorum.held(n)));
    assert_eq!((now.state(2), counts(&now)), (AllocationState::Pending, (1, 0, 1, 0)));
    assert!(now.ledger.allocation(id(1)).unwrap().awaits().is_none(), "the lost quorum let it begin");
    now.act(Action::Cancel { id: replica(0), by: user(7) }).unwrap();
    assert_eq!(live(&now), [1_000_000]);
    invariant_replicas_are_as_wanted(&now.ledger);
}

#[test]
fn a_replica_whose_id_is_taken_does_not_keep_its_node_from_being_adopted() {
    let mut quorum = three_nodes();
    submit_service(&mut quorum, 2, 2);
    let mut now = quorum.backup();
    // Its user cancels a waiting replica, and somebody submits work with the id of the replica that replaces it.
    let taken = replica(2);
    now.act(Action::Submit { id: taken, spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(8), claim: None }).unwrap();
    let mut now = now.recovered();
    quorum.act(Action::Cancel { id: replica(1), by: user(7) }).unwrap();
    run_replica(&mut quorum, 0, 0);
    let epoch = run_replica(&mut quorum, 2, 1);
    let ended = ReportItem::Ended { allocation: taken, epoch, reason: EndReason::Exited { code: 0 } };
    now.return_node(0, 1, quorum.held(0));
    now.return_node_with(1, 1, quorum.held(1), vec![ended]);
    assert!(!now.ledger.awaits(&node(1)));
    let other = now.ledger.allocation(taken).unwrap();
    assert_eq!((other.owner.uid, other.state, other.replica.is_none()), (8, AllocationState::Pending, true));
    let list = now.ledger.desired(&node(1));
    assert_eq!((list.shares.len(), list.leaving), (0, vec![(taken, epoch)]), "it is ordered to end");
    assert_eq!(now.ledger.allocation(replica(0)).unwrap().state, AllocationState::Running);
}

#[test]
fn no_replica_is_created_or_asked_to_leave_before_every_node_has_reported() {
    let mut quorum = three_nodes();
    submit_service(&mut quorum, 1, 3);
    scale(&mut quorum, 2);
    run_replica(&mut quorum, 0, 0);
    run_replica(&mut quorum, 1, 1);
    let mut now = quorum.backup().recovered();
    now.return_node(0, 1, vec![]);
    assert_eq!((live(&now), counts(&now)), (vec![1], (2, 0, 1, 0)), "replica 0 is gone");
    scale(&mut now, 1);
    now.return_node(1, 1, quorum.held(1));
    scale(&mut now, 3);
    assert_eq!((live(&now), counts(&now)), (vec![1], (3, 0, 1, 0)));
    now.return_node(2, 1, vec![]);
    assert_eq!((live(&now), counts(&now)), (vec![1, 1_000_002, 1_000_003], (3, 2, 1, 0)));
    invariant_replicas_are_as_wanted(&now.ledger);
}

#[test]
fn a_replica_that_the_lost_quorum_asked_to_leave_leaves() {
    let mut quorum = three_nodes();
    submit_service(&mut quorum, 1, 3);
    scale(&mut quorum, 2);
    run_replica(&mut quorum, 0, 0);
    let epoch = run_replica(&mut quorum, 1, 1);
    let mut now = quorum.backup().recovered();
    scale(&mut quorum, 1);
    assert!(quorum.held(1)[0].share.preempt.as_ref().is_some_and(|order| order.cause == PreemptCause::ScaleDown));
    (0..3).for_each(|n| now.return_node(n, 1, quorum.held(n)));
    // The backup wants two.
    assert_eq!((live(&now), counts(&now)), (vec![0, 1, 1_000_002], (2, 1, 1, 1)));
    assert_eq!(now.ledger.endpoints("api", None, 9).len(), 1);
    now.report(1, ReportItem::Ended { allocation: replica(1), epoch, reason: EndReason::Exited { code: 1 } });
    assert_eq!(now.ledger.allocation(replica(1)).unwrap().reason, Some(EndReason::Cancelled { by: "u7".into() }));
    invariant_replicas_are_as_wanted(&now.ledger);
}

#[test]
fn a_service_that_the_backup_lacks_is_adopted_with_its_replicas() {
    let mut quorum = three_nodes();
    let mut now = quorum.backup().recovered();
    submit_service(&mut quorum, 1, 2);
    scale(&mut quorum, 2);
    run_replica(&mut quorum, 0, 0);
    run_replica(&mut quorum, 1, 1);
    (0..3).for_each(|n| now.return_node(n, 1, quorum.held(n)));
    let service = now.ledger.allocation(id(1)).unwrap();
    assert!(service.is_scaled_service() && service.shown_state() == AllocationState::Running && service.owner == user(7));
    assert_eq!((live(&now), counts(&now)), (vec![0, 1], (2, 0, 2, 0)));
    assert_eq!(now.ledger.allocation(replica(1)).unwrap().replica.as_deref(), Some(&ReplicaOf { service: id(1), number: 1 }));
    invariant_replicas_are_as_wanted(&now.ledger);
}

#[test]
fn a_share_that_is_no_replica_of_its_service_is_refused() {
    let mut quorum = three_nodes();
    submit_service(&mut quorum, 1, 2);
    run_replica(&mut quorum, 0, 0);
    let mut now = quorum.backup().recovered();
    let Ok(Outcome::Registered { incarnation, .. }) = now.act(Action::Register(registration(0, 1, 1, false))) else {
        panic!("the node is known")
    };
    let changed = |change: &dyn Fn(&mut HeldShare)| {
        let mut held = quorum.held(0);
        change(&mut held[0]);
        Action::Adopt { node: node(0), incarnation, held, unreported: vec![] }
    };
    let plain = |held: &mut HeldShare| (held.share.replica, held.share.spec.scaling) = (None, None);
    let as_service = |held: &mut HeldShare| {
        held.share.allocation = id(1);
        held.share.replica.as_mut().unwrap().number = u32::MAX;
    };
    let of_another = |held: &mut HeldShare| {
        held.share.replica = Some(ReplicaOf { service: id(2), number: 0 });
        held.share.allocation = id(2);
    };
    let refused: [&dyn Fn(&mut HeldShare); 7] = [
        &|held| held.share.replica = None,
        &|held| held.share.spec.scaling = None,
        &plain,
        &|held| held.share.replica.as_mut().unwrap().number = 7,
        &|held| held.share.owner = user(8),
        &as_service,
        &of_another,
    ];
    for change in refused {
        assert!(matches!(now.act(changed(change)), Err(Refusal::Malformed { .. })));
    }
    now.act(changed(&|_| {})).unwrap();
}

#[test]
fn a_replica_whose_service_is_other_work_is_refused() {
    let mut quorum = three_nodes();
    let mut now = quorum.backup();
    // In the backup, the id of the service is that of other work.
    now.submit(1, 1);
    let mut now = now.recovered();
    submit_service(&mut quorum, 1, 2);
    run_replica(&mut quorum, 0, 0);
    let Ok(Outcome::Registered { incarnation, .. }) = now.act(Action::Register(registration(0, 1, 1, false))) else {
        panic!("the node is known")
    };
    let adopt = Action::Adopt { node: node(0), incarnation, held: quorum.held(0), unreported: vec![] };
    let Err(Refusal::Malformed { why }) = now.act(adopt) else { panic!("allocation 1 is no service") };
    assert!(why.contains("no scaled service"), "{why}");
}
