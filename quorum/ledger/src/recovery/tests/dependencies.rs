//! Work that depends on other work, after a recovery, when nodes have reported what runs.

use super::*;
use lattice_model::{Dependency, DependencyCondition};

fn submit_after(quorum: &mut Quorum, number: u128, on: u128, condition: DependencyCondition) {
    let depends_on = vec![Dependency { on: id(on), condition }];
    let spec = Box::new(AllocationSpec { depends_on, ..spec(1, RequeuePolicy::Always, 9) });
    quorum.act(Action::Submit { id: id(number), spec, owner: user(7), claim: None }).unwrap();
}

#[test]
fn adopted_work_continues_and_unmet_work_ends_when_all_nodes_have_reported() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    submit_after(&mut quorum, 2, 1, DependencyCondition::Success);
    submit_after(&mut quorum, 3, 1, DependencyCondition::Success);
    let first = quorum.run(1, &[0]);
    let mut now = quorum.backup().recovered();
    quorum.report(0, ReportItem::Ended { allocation: id(1), epoch: first, reason: EndReason::Exited { code: 0 } });
    quorum.report(0, ReportItem::Released { allocation: id(1), epoch: first, usage: None });
    quorum.run(2, &[1]);

    // Nobody knows how the first one ended, so it counts as failed.
    now.return_node(0, 1, vec![]);
    assert_eq!(now.state(1), AllocationState::Failed);
    assert_eq!([2, 3].map(|number| now.state(number)), [AllocationState::Pending; 2], "a node may run them");
    now.return_node(1, 1, quorum.held(1));
    assert_eq!((now.state(2), now.state(3)), (AllocationState::Running, AllocationState::Pending));
    now.return_node(2, 1, vec![]);
    assert_eq!((now.state(2), now.state(3)), (AllocationState::Running, AllocationState::Cancelled));
    let reason = now.ledger.allocation(id(3)).unwrap().reason.as_ref().unwrap().to_string();
    assert_eq!(reason, "dependency_unmet: success of 00000001 (a), which is Failed");
}

#[test]
fn a_delay_continues_after_a_recovery_and_is_over_for_adopted_work() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    for number in [2, 3] {
        submit_after(&mut quorum, number, 1, DependencyCondition::AfterDelay { seconds: 3600 });
    }
    quorum.run(1, &[0]);
    let until = Timestamp(quorum.at + 3_600_000);
    let mut now = quorum.backup().recovered();
    quorum.act(Action::EndWaits { now: until }).unwrap();
    quorum.run(2, &[1]);

    for number in 0..3 {
        now.return_node(number, 1, quorum.held(number));
    }
    let record = |number| now.ledger.allocation(id(number)).unwrap();
    assert_eq!((record(2).state, record(2).dependencies.is_none()), (AllocationState::Running, true));
    assert_eq!(record(3).awaits(), Some(format!("waits until {until}: 1 hour after 00000001 (a) began")));
    assert!(!now.ledger.waits_are_due(Timestamp(until.0 - 1)));
    now.act(Action::EndWaits { now: until }).unwrap();
    assert!(now.ledger.allocation(id(3)).unwrap().waits());
}
