//! Ended work that waits for accounting, over a recovery.

use super::three_nodes;
use crate::scenarios::{id, node, user};
use crate::{ACCOUNTING_LEASE, Action, Outcome};
use lattice_ledger_state::usage_records::Consumer;
use lattice_model::ended_work::AccountedUntil;
use lattice_model::{AllocationId, BudgetPeriod, EndReason, ReportItem, Used};
use uuid::Uuid;

#[test]
fn the_use_of_adopted_work_is_accounted_once_and_equals_the_records_of_use() {
    let mut quorum = three_nodes();
    let lease = Action::GrantLease { name: ACCOUNTING_LEASE.into(), holder: node(0), ttl_ms: 1000, user: None };
    let Ok(Outcome::Leased { token }) = quorum.act(lease) else { panic!("nobody has it") };
    let until = AccountedUntil { store: Uuid::from_u128(1), sequence: 0 };
    quorum.act(Action::Account { until, node: node(0), lease_token: token }).unwrap();
    (1..=3).for_each(|number| quorum.submit(number, 1));
    let first = quorum.run(1, &[0]);
    let former = quorum.run(2, &[1]);
    let mut now = quorum.backup().recovered();
    // After the backup, allocation 2 was requeued to another node, and a waiting one began.
    quorum.act(Action::RequeueAllocation { allocation: id(2), epoch: former, by: user(7), reason: "bad node".into() }).unwrap();
    quorum.report(1, ReportItem::Released { allocation: id(2), epoch: former, usage: None });
    let second = quorum.run(2, &[2]);
    let third = quorum.run(3, &[1]);
    let started_at = now.ledger.allocation(id(2)).unwrap().started_at;

    for n in [0, 2, 1] {
        now.return_node(n, 1, quorum.held(n));
    }
    assert!(now.ledger.ended_work_after(0).next().is_none(), "all three run");
    for (number, on, epoch) in [(1, 0, first), (2, 2, second), (3, 1, third)] {
        now.report(on, ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code: 0 } });
    }
    let work: Vec<_> = now.ledger.ended_work_after(0).collect();
    let ended: Vec<AllocationId> = work.iter().map(|work| work.allocation).collect();
    assert_eq!(ended, [1, 2, 3].map(id));
    assert!(work.iter().all(|work| work.used.node_ms > 0));
    assert_eq!(work[1].started_at, started_at, "under its first claim");
    let used = work.iter().fold(Used::default(), |sum, work| sum.plus(work.used));
    let recorded = now.ledger.usage_records.get(&Consumer::User(7)).unwrap();
    assert_eq!(recorded.days.within(now.ledger.time(), BudgetPeriod::DAYS_MAX), used);
    assert!(now.ledger.ends.used_so_far.is_empty());
}
