//! Scenarios of interactive sessions.

use super::scenarios::{Story, id, node, registration, spec, user};
use super::{Action, Outcome};
use crate::Refusal;
use lattice_model::session::HOLDER;
use lattice_model::{AllocationSpec, AllocationState, EndReason, Entrypoint, Epoch, ReportItem, RequeuePolicy};
use uuid::Uuid;

fn submit(number: u128, session: bool, requeue: RequeuePolicy) -> Action {
    let entrypoint = Entrypoint::Script { text: HOLDER.into(), args: vec![] };
    let spec = AllocationSpec { session, entrypoint, ..spec(1, requeue, 3) };
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None }
}

fn create(session: u128, number: u128, by: u32) -> Action {
    Action::CreateSession { id: Uuid::from_u128(session), allocation: id(number), by: user(by) }
}

fn delete(session: u128, number: u128, by: u32) -> Action {
    Action::DeleteSession { id: Uuid::from_u128(session), allocation: id(number), by: user(by) }
}

fn runs(s: &mut Story, number: u128, on: u8) -> Epoch {
    let epoch = s.claimed(number, &[on]);
    s.report(on, ReportItem::Prepared { allocation: id(number), epoch });
    epoch
}

#[test]
fn its_owner_alone_opens_one_where_it_runs_and_one_at_a_time() {
    let mut s = Story::new(2);
    s.done(submit(1, true, RequeuePolicy::Never));
    assert!(matches!(s.act(create(1, 1, 7)), Err(Refusal::NotRunning { state: AllocationState::Pending, .. })));
    runs(&mut s, 1, 0);
    // Root is not its owner either.
    for other in [8, 0] {
        assert!(matches!(s.act(create(1, 1, other)), Err(Refusal::NotYours { .. })));
    }
    s.done(create(1, 1, 7));
    s.done(create(1, 1, 7));
    assert!(matches!(s.act(create(2, 1, 7)), Err(Refusal::SessionExists { session, .. }) if session == Uuid::from_u128(1)));
    let open: Vec<_> = s.ledger.sessions().map(|o| (o.id, o.allocation, o.uid, o.node.clone())).collect();
    assert_eq!(open, [(Uuid::from_u128(1), id(1), 7, node(0))]);
    s.done(submit(2, false, RequeuePolicy::Never));
    runs(&mut s, 2, 1);
    assert!(matches!(s.act(create(3, 2, 7)), Err(Refusal::NotASession { .. })));
    assert!(matches!(s.act(create(3, 9, 7)), Err(Refusal::NoSuchAllocation { .. })));
}

#[test]
fn to_delete_it_ends_what_was_held_for_it() {
    let mut s = Story::new(1);
    s.done(submit(1, true, RequeuePolicy::OnNodeFailure));
    runs(&mut s, 1, 0);
    s.done(create(1, 1, 7));
    assert!(matches!(s.act(delete(1, 1, 8)), Err(Refusal::NotYours { .. })));
    assert!(matches!(s.act(delete(2, 1, 7)), Err(Refusal::NoSuchSession { .. })));
    s.done(delete(1, 1, 7));
    let ended = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((ended.state, ended.reason.clone()), (AllocationState::Completed, Some(EndReason::Exited { code: 0 })));
    assert_eq!(s.ledger.sessions().count(), 0);
    assert_eq!(s.act(delete(1, 1, 7)), Ok(Outcome::Done), "said again");
}

#[test]
fn it_goes_with_its_allocations_claim() {
    let mut s = Story::new(2);
    s.done(submit(1, true, RequeuePolicy::OnNodeFailure));
    s.done(submit(2, true, RequeuePolicy::Never));
    let epoch = runs(&mut s, 1, 0);
    let other = runs(&mut s, 2, 1);
    s.done(create(1, 1, 7));
    s.done(create(2, 2, 7));
    s.done(Action::Cancel { id: id(2), by: user(7) });
    assert_eq!(s.ledger.sessions().map(|o| o.allocation).collect::<Vec<_>>(), [id(1)]);
    // Its node returns with another boot id: the allocation waits for another node, and then for a
    // new terminal.
    s.done(Action::Register(registration(0, 2, 1, true)));
    assert_eq!(s.ledger.allocation(id(1)).unwrap().state, AllocationState::Pending);
    assert_eq!(s.ledger.sessions().count(), 0);
    s.report(1, ReportItem::Released { allocation: id(2), epoch: other, usage: None });
    let again = runs(&mut s, 1, 1);
    assert!(again > epoch);
    s.done(create(3, 1, 7));
    s.report(1, ReportItem::Ended { allocation: id(1), epoch: again, reason: EndReason::WalltimeExceeded });
    assert_eq!(s.ledger.sessions().count(), 0);
}
