//! Watches of a machine whose audit records find no space on the disk at times.

use super::machine::{on_disk, open};
use super::{Scratch, entry_of, grant};
use crate::directory::Directory;
use crate::machine::Agreed;
use lattice_ledger::history::ChangedPhases;
use lattice_ledger::{Action, SCHEDULER_LEASE, WatchCursor, test_builders};
use lattice_model::claim::ClaimShare;
use lattice_model::{
    Allocation, AllocationId, AllocationState, Claim, EndReason, NodeReport, ReportItem, RequeuePolicy, Revision, SharePhase, WorkUsage,
};
use openraft::storage::RaftStateMachine;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NAMES: u8 = 3;

/// Nodes of the only allocation.
const NODES: u8 = 3;

/// One entry of the log.
#[derive(Clone, Debug)]
struct Step {
    /// Leases that are granted, or released if they are held.
    leases: Vec<u8>,
    /// Nodes that report the next event of their shares.
    reports: Vec<u8>,
    /// Number of attempts to write its audit records that find no space.
    failures: u32,
    /// Which watchers resume while it waits for space.
    resume: u8,
    /// How many change sets these read at once.
    at_once: usize,
}

fn a_step() -> impl Strategy<Value = Step> {
    let failures = prop_oneof![6 => Just(0), 1 => Just(1)];
    let (leases, reports) = (prop::collection::vec(0..NAMES, 0..4), prop::collection::vec(0..NODES, 0..3));
    (leases, reports, failures, any::<u8>(), 1..3usize).prop_map(|(leases, reports, failures, resume, at_once)| Step {
        leases,
        reports,
        failures,
        resume,
        at_once,
    })
}

type Leases = BTreeMap<String, u64>;

/// A watcher of the leases, and of the allocation.
#[derive(Clone, Debug)]
struct Watcher {
    place: WatchCursor,
    leases: Leases,
    allocation: Option<Allocation>,
}

impl Watcher {
    fn list(agreed: &Agreed) -> Self {
        let ledger = agreed.ledger();
        let leases = ledger.leases().map(|(name, lease)| (name.to_owned(), lease.token)).collect();
        Self { place: ledger.place(), leases, allocation: ledger.allocations().next().map(|a| Allocation::clone(a)) }
    }

    /// Does the same as a member for a watch that resumes: sends the changes after its place, and then
    /// that everything up to the ledger's revision is known.
    fn resume(&mut self, agreed: &Agreed, at_once: usize) {
        let upto = agreed.ledger().revision();
        loop {
            let sets = agreed.changes.after(self.place, at_once).expect("all are kept");
            let Some(last) = sets.last() else { break };
            self.place.revision = last.revision;
            for set in &sets {
                for allocation in &set.allocations {
                    self.allocation = Some(Allocation::clone(allocation));
                }
                for ChangedPhases { change, .. } in &set.phases {
                    change.apply(self.allocation.as_mut().expect("it was submitted before")).expect("nothing is missed");
                }
            }
            for (name, lease) in sets.iter().flat_map(|set| &set.leases) {
                match lease {
                    Some(lease) => self.leases.insert(name.clone(), lease.token),
                    None => self.leases.remove(name),
                };
            }
        }
        self.place.revision = self.place.revision.max(upto);
    }
}

/// The commands of an entry that fit the ledger before it.
fn actions(agreed: &Agreed, step: &Step) -> Vec<Action> {
    let mut held = Watcher::list(agreed).leases;
    let mut action = |number: &u8| {
        let name = format!("l{number}");
        match held.remove(&name) {
            Some(token) => Action::ReleaseLease { name, token, holder: "n1".parse().unwrap(), user: None },
            None => grant(name),
        }
    };
    let leases = step.leases.iter().map(&mut action);
    let reports: BTreeSet<u8> = step.reports.iter().copied().collect();
    leases.chain(reports.into_iter().filter_map(|number| report(agreed, number))).collect()
}

/// The next report of this node about the allocation.
fn report(agreed: &Agreed, number: u8) -> Option<Action> {
    let ledger = agreed.ledger();
    let (node, of) = (ledger.node(&test_builders::node(number))?, ledger.allocations().next()?);
    let (allocation, epoch) = (of.id, of.epoch);
    let item = match (of.shares.phase_of(&node.id)?, of.state) {
        (SharePhase::Claimed, AllocationState::Staging) => ReportItem::Prepared { allocation, epoch },
        (SharePhase::Prepared, AllocationState::Running) => ReportItem::Ended { allocation, epoch, reason: EndReason::WalltimeExceeded },
        (SharePhase::Prepared, state) if state.is_terminal() => {
            ReportItem::Released { allocation, epoch, usage: Some(WorkUsage { nodes: 1, ..WorkUsage::default() }) }
        }
        _ => return None,
    };
    Some(Action::Report(NodeReport { node: node.id.clone(), incarnation: node.incarnation, seq: node.report_seq + 1, item }))
}

/// The entry that every history begins with: an allocation on all nodes.
fn beginning() -> Vec<Action> {
    let allocation = AllocationId(uuid::Uuid::from_u128(1));
    let register = |number| Action::Register(test_builders::registration(number, 1, 0, true));
    let lease = Action::GrantLease { name: SCHEDULER_LEASE.into(), holder: test_builders::node(0), ttl_ms: 1000, user: None };
    let spec = Box::new(test_builders::spec(NODES.into(), RequeuePolicy::Never, 0));
    let submit = Action::Submit { id: allocation, spec, owner: test_builders::user(7), claim: None };
    // Registered by the same entry, so they have its revision.
    let share = |number| ClaimShare { node: test_builders::node(number), resources: test_builders::SIZE, hold_revision: Revision(1) };
    let claim = Claim {
        allocation,
        requeue_count: 0,
        lease_token: 1,
        shares: (0..NODES).map(share).collect(),
        after: None,
        by: None,
        walltime: None,
    };
    (0..NODES).map(register).chain([lease, submit, Action::Claim(claim)]).collect()
}

async fn play(steps: &[Step]) -> Result<(), TestCaseError> {
    let scratch = Scratch::new();
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let mut machine = open(&directory, 0..=0, on_disk(steps.len() as u64 + 1)).unwrap();
    let agreed: Arc<Agreed> = machine.agreed();
    let mut watchers = vec![Watcher::list(&agreed)];
    let begun = machine.apply([entry_of(1, beginning())]).await.unwrap();
    prop_assert!(begun.iter().flat_map(|replies| &replies.0).all(Result::is_ok), "{:?}", begun);
    watchers.push(Watcher::list(&agreed));
    for (index, step) in (2u64..).zip(steps) {
        agreed.fill_disk_of_audit(step.failures);
        let actions = actions(&agreed, step);
        let is_empty = actions.is_empty();
        // Every command for a lease makes an audit record, but only some reports do.
        let has_records = !step.leases.is_empty();
        let applying = machine.apply([entry_of(index, actions)]);
        let mut applying = std::pin::pin!(applying);
        let is_pending = futures::poll!(&mut applying).is_pending();
        let is_allowed = if has_records { is_pending == (step.failures > 0) } else { !is_pending || step.failures > 0 && !is_empty };
        prop_assert!(is_allowed);
        // After a failed attempt, the ledger has changes whose records are still missing.
        let resumes = |number: usize| step.resume >> (number % 8) & 1 == 1;
        watchers.iter_mut().enumerate().filter(|(number, _)| resumes(*number)).for_each(|(_, w)| w.resume(&agreed, step.at_once));
        watchers.push(Watcher::list(&agreed));
        if is_pending {
            applying.await.unwrap();
        }
        prop_assert!(is_empty || agreed.ledger().revision().0 == index);
    }
    prop_assert!(agreed.lacks_audit().is_none());
    let state = Watcher::list(&agreed);
    for watcher in &mut watchers {
        watcher.resume(&agreed, 2);
        prop_assert_eq!(&watcher.leases, &state.leases);
        prop_assert_eq!(&watcher.allocation, &state.allocation);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_watch_that_is_resumed_anywhere_equals_the_list(steps in prop::collection::vec(a_step(), 1..16)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(play(&steps))?;
    }
}
