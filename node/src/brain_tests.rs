use super::*;
use lattice_model::test_builders::desired_share;
use lattice_model::{Generation, PreemptCause, Preemption, Resources, Revision, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn alloc(n: u128) -> AllocationId {
    AllocationId(format!("00000000-0000-4000-8000-{n:012x}").parse::<AllocationId>().unwrap().0)
}

pub(crate) fn share(n: u128, epoch: u64, state: AllocationState, nodes: usize) -> DesiredShare {
    DesiredShare {
        epoch: Epoch(epoch),
        state,
        resources: Resources { cores: 2, memory_bytes: 1 << 20, gpus: 1 },
        nodes: (0..nodes).map(|i| format!("n{i}").parse().unwrap()).collect(),
        ..desired_share(alloc(n))
    }
}

fn list(revision: u64, shares: Vec<DesiredShare>) -> Event {
    Event::Listed(DesiredList { generation: Generation(1), revision: Revision(revision), shares, ..DesiredList::default() })
}

/// A list that also names claims as leaving.
fn list_of(revision: u64, shares: Vec<DesiredShare>, leaving: Vec<(AllocationId, Epoch)>) -> Event {
    Event::Listed(DesiredList { generation: Generation(1), revision: Revision(revision), shares, leaving, wipe: None })
}

fn step(brain: &mut Brain, event: Event) -> Vec<Action> {
    let (mut records, mut actions) = (Vec::new(), Vec::new());
    brain.handle(event, &mut records, &mut actions);
    actions
}

fn names(actions: &[Action]) -> Vec<&'static str> {
    actions
        .iter()
        .map(|a| match a {
            Action::Prepare(_) => "prepare",
            Action::Adopt(_) => "adopt",
            Action::Start(_) => "start",
            Action::Stop(_) => "stop",
            Action::Undo(_) => "undo",
            Action::Preempt(_) => "preempt",
            Action::ChangeWalltime(_) => "walltime",
            Action::ChangeLane(_) => "lane",
            Action::Report => "report",
        })
        .collect()
}

/// A node on which exactly four of [`share`] fit.
fn brain() -> Brain {
    let mut brain = Brain::new("n0".parse().unwrap());
    brain.knows(crate::assign::tests::machine(2, 4, 1, &[0, 0, 1, 1]));
    brain
}

/// No processor or GPU has two owners, and each allocation has as many as its share says.
fn each_has_its_own(brain: &Brain) {
    let (mut cpus, mut gpus) = (BTreeSet::new(), BTreeSet::new());
    for assignment in brain.locals().filter_map(|l| l.assignment.as_ref()) {
        assert_eq!((assignment.cpus.len(), assignment.gpus.len()), (2, 1));
        for cpu in &assignment.cpus {
            assert!(cpus.insert(*cpu), "processor {cpu} has two owners");
        }
        for gpu in &assignment.gpus {
            assert!(gpus.insert(gpu.clone()), "{gpu} has two owners");
        }
    }
}

#[test]
fn a_share_that_does_not_fit_is_refused_and_reported() {
    let mut b = brain();
    let all: Vec<_> = (1..=4).map(|n| share(n, 1, AllocationState::Staging, 1)).collect();
    assert_eq!(names(&step(&mut b, list(1, all.clone()))), ["prepare"; 4]);
    each_has_its_own(&b);
    let five: Vec<_> = all.into_iter().chain([share(5, 1, AllocationState::Staging, 1)]).collect();
    assert_eq!(names(&step(&mut b, list(2, five))), ["report", "undo"]);
    let report = b.reports().last().unwrap().item;
    assert!(matches!(&report, ReportItem::PrepareFailed { why, .. } if why.contains("GPUs")), "{report:?}");
    // The processors and GPUs of an ended allocation are free for the next.
    step(&mut b, Event::Undone { allocation: alloc(5), epoch: Epoch(1), usage: None });
    step(&mut b, list(3, vec![]));
    step(&mut b, Event::Stopped { allocation: alloc(2), epoch: Epoch(1) });
    step(&mut b, Event::Undone { allocation: alloc(2), epoch: Epoch(1), usage: None });
    assert_eq!(names(&step(&mut b, list(4, vec![share(6, 2, AllocationState::Staging, 1)]))), ["prepare"]);
    each_has_its_own(&b);
}

#[test]
fn one_allocation_from_list_to_released() {
    let mut b = brain();
    let (a, e) = (alloc(1), Epoch(1));
    assert_eq!(names(&step(&mut b, list(1, vec![share(1, 1, AllocationState::Staging, 2)]))), ["prepare"]);
    assert_eq!(names(&step(&mut b, Event::Prepared { allocation: a, epoch: e, result: Ok(()) })), ["report"]);
    assert_eq!(names(&step(&mut b, list(2, vec![share(1, 1, AllocationState::Running, 2)]))), ["start"]);
    assert_eq!(names(&step(&mut b, list(2, vec![]))), [""; 0], "an equal revision is nothing new");
    let ended = Event::Ended { allocation: a, epoch: e, reason: EndReason::Exited { code: 0 } };
    assert_eq!(names(&step(&mut b, ended)), ["report", "stop"]);
    assert_eq!(names(&step(&mut b, Event::Stopped { allocation: a, epoch: e })), ["undo"]);
    assert_eq!(names(&step(&mut b, Event::Undone { allocation: a, epoch: e, usage: None })), ["report"]);
    assert_eq!(b.reports().map(|r| r.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(names(&step(&mut b, list(3, vec![share(1, 1, AllocationState::Running, 2)]))), [""; 0], "never begun again in this epoch");
    assert_eq!(names(&step(&mut b, list(4, vec![share(1, 2, AllocationState::Staging, 2)]))), ["prepare"]);
}

#[test]
fn a_lone_node_starts_when_it_is_prepared() {
    let mut b = brain();
    step(&mut b, list(1, vec![share(1, 1, AllocationState::Staging, 1)]));
    assert_eq!(names(&step(&mut b, Event::Prepared { allocation: alloc(1), epoch: Epoch(1), result: Ok(()) })), ["report", "start"]);
}

#[test]
fn a_new_epoch_waits_until_the_old_one_is_gone() {
    let mut b = brain();
    step(&mut b, list(1, vec![share(1, 1, AllocationState::Staging, 1)]));
    assert_eq!(names(&step(&mut b, list(2, vec![share(1, 2, AllocationState::Staging, 1)]))), ["stop"]);
    assert_eq!(names(&step(&mut b, Event::Prepared { allocation: alloc(1), epoch: Epoch(1), result: Ok(()) })), [""; 0]);
    step(&mut b, Event::Stopped { allocation: alloc(1), epoch: Epoch(1) });
    assert_eq!(names(&step(&mut b, Event::Undone { allocation: alloc(1), epoch: Epoch(1), usage: None })), ["report", "prepare"]);
}

#[test]
fn a_failed_prologue_is_reported_and_undone() {
    let mut b = brain();
    step(&mut b, list(1, vec![share(1, 1, AllocationState::Staging, 1)]));
    let failed = Event::Prepared { allocation: alloc(1), epoch: Epoch(1), result: Err(NotPrepared::Prologue("no image".into())) };
    assert_eq!(names(&step(&mut b, failed)), ["report", "undo"]);
    assert_eq!(names(&step(&mut b, Event::Undone { allocation: alloc(1), epoch: Epoch(1), usage: None })), ["report"]);
    assert_eq!(b.locals().count(), 0);
}

#[test]
fn superseded_work_is_stopped_before_the_list_says_so_and_not_begun_again() {
    let mut b = brain();
    step(&mut b, list(1, vec![share(1, 1, AllocationState::Staging, 2)]));
    step(&mut b, Event::Prepared { allocation: alloc(1), epoch: Epoch(1), result: Ok(()) });
    let superseded = |epoch| Event::Superseded { allocation: alloc(1), epoch: Epoch(epoch) };
    assert_eq!(names(&step(&mut b, superseded(7))), Vec::<&str>::new(), "another claim's");
    assert_eq!(names(&step(&mut b, superseded(1))), ["stop"]);
    assert_eq!(names(&step(&mut b, superseded(1))), Vec::<&str>::new());
    assert_eq!(names(&step(&mut b, Event::Stopped { allocation: alloc(1), epoch: Epoch(1) })), ["undo"]);
    assert_eq!(names(&step(&mut b, Event::Undone { allocation: alloc(1), epoch: Epoch(1), usage: None })), ["report"]);
    // The same list again; then one with the next claim.
    assert_eq!(names(&step(&mut b, list(2, vec![share(1, 1, AllocationState::Running, 2)]))), Vec::<&str>::new());
    assert_eq!(names(&step(&mut b, list(3, vec![share(1, 2, AllocationState::Staging, 2)]))), ["prepare"]);
}

#[test]
fn reports_are_numbered_anew_in_a_new_life_and_none_is_lost() {
    let mut b = brain();
    step(&mut b, Event::Registered { incarnation: Incarnation(1), report_seq: 0 });
    step(&mut b, list(1, vec![share(1, 1, AllocationState::Staging, 2), share(2, 2, AllocationState::Staging, 2)]));
    for n in [1, 2] {
        step(&mut b, Event::Prepared { allocation: alloc(n), epoch: Epoch(n as u64), result: Ok(()) });
    }
    step(&mut b, Event::Acknowledged { incarnation: Incarnation(1), seq: 1 });
    assert_eq!(b.reports().map(|r| (r.incarnation.0, r.seq)).collect::<Vec<_>>(), [(1, 2)]);
    step(&mut b, Event::Registered { incarnation: Incarnation(2), report_seq: 0 });
    assert_eq!(b.reports().map(|r| (r.incarnation.0, r.seq)).collect::<Vec<_>>(), [(2, 1)]);
    step(&mut b, Event::Acknowledged { incarnation: Incarnation(1), seq: 9 });
    assert_eq!(b.reports().count(), 1, "an acknowledgement of another life is ignored");
}

#[test]
fn after_a_reboot_everything_is_removed_and_nothing_started() {
    let mut b = brain();
    step(&mut b, list(1, vec![share(1, 1, AllocationState::Running, 1), share(2, 2, AllocationState::Staging, 2)]));
    step(&mut b, Event::Prepared { allocation: alloc(1), epoch: Epoch(1), result: Ok(()) });
    let (mut records, mut actions) = (Vec::new(), Vec::new());
    b.resume(false, &mut records, &mut actions);
    assert_eq!(names(&actions), ["undo", "undo", "report"]);
}

#[test]
fn a_node_that_lost_its_state_keeps_the_work_that_it_found_until_the_quorum_ends_it() {
    let found = |n| Local { share: share(n, 1, AllocationState::Running, 2), phase: Phase::Running, assignment: None };
    let reports = vec![ReportItem::Released { allocation: alloc(9), epoch: Epoch(4), usage: None }];
    let mut b = Brain::recovered("n0".parse().unwrap(), Incarnation(3), vec![found(1), found(2)], reports);
    assert_eq!(b.found(), Some(vec![(alloc(1), Epoch(1)), (alloc(2), Epoch(1))]));
    let (mut records, mut actions) = (Vec::new(), Vec::new());
    b.resume(true, &mut records, &mut actions);
    assert_eq!(names(&actions), ["start", "start", "report"]);
    assert_eq!(names(&step(&mut b, Event::Registered { incarnation: Incarnation(4), report_seq: 0 })), ["report"], "nothing is stopped");
    assert_eq!(b.found(), None, "the quorum knows");
    assert_eq!(b.reports().map(|r| (r.incarnation, r.seq)).collect::<Vec<_>>(), [(Incarnation(4), 1)]);
    let listed = list(7, vec![share(1, 1, AllocationState::Running, 2), share(3, 5, AllocationState::Staging, 1)]);
    assert_eq!(names(&step(&mut b, listed)), ["stop", "prepare"]);
    assert!(Brain::recovered("n0".parse().unwrap(), Incarnation(0), vec![], vec![]).found().is_some_and(|f| f.is_empty()));
    assert_eq!(Brain::new("n0".parse().unwrap()).found(), None);
}

#[test]
fn a_claim_that_was_over_before_the_node_received_it_is_given_back_once() {
    let mut b = brain();
    let released = |b: &Brain| b.reports().map(|r| r.item).collect::<Vec<_>>();
    let (missed, here) = ((alloc(1), Epoch(1)), share(2, 1, AllocationState::Staging, 1));
    step(&mut b, Event::Registered { incarnation: Incarnation(1), report_seq: 0 });
    assert_eq!(names(&step(&mut b, list_of(1, vec![here.clone()], vec![missed, missed]))), ["report", "prepare"]);
    let release = ReportItem::Released { allocation: alloc(1), epoch: Epoch(1), usage: None };
    assert_eq!(released(&b), [release]);
    step(&mut b, Event::Acknowledged { incarnation: Incarnation(1), seq: 1 });
    step(&mut b, list_of(2, vec![here], vec![missed]));
    assert_eq!(released(&b), [], "a list from before the report arrived");

    // An allocation that still lives, unknown to the brain, is not free.
    b.set_unswept(BTreeSet::from([alloc(3)]));
    step(&mut b, list_of(3, vec![share(2, 1, AllocationState::Staging, 1)], vec![(alloc(3), Epoch(1))]));
    assert_eq!(released(&b), []);

    // An allocation on the node ends first, and is then reported as released.
    let here = (alloc(2), Epoch(1));
    assert_eq!(names(&step(&mut b, list_of(4, vec![], vec![here]))), ["stop"]);
    assert_eq!(released(&b), []);
    step(&mut b, Event::Stopped { allocation: alloc(2), epoch: Epoch(1) });
    assert_eq!(names(&step(&mut b, Event::Undone { allocation: alloc(2), epoch: Epoch(1), usage: None })), ["report"]);
    assert_eq!(released(&b).len(), 1);
}

/// The world around a brain: which allocations have processes, and which answers are due.
#[derive(Default)]
struct World {
    /// (allocation, epoch) with a shim on the node.
    live: BTreeSet<(AllocationId, Epoch)>,
    /// Every entry point that was ever started.
    started: BTreeSet<(AllocationId, Epoch)>,
    /// Answers that the executor still owes.
    pending: Vec<Event>,
}

impl World {
    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Prepare(local) => {
                    let s = local.share;
                    self.live.insert((s.allocation, s.epoch));
                    self.pending.push(Event::Prepared { allocation: s.allocation, epoch: s.epoch, result: Ok(()) });
                }
                Action::Start(s) => {
                    assert!(self.live.contains(&(s.allocation, s.epoch)), "started what is not prepared");
                    self.started.insert((s.allocation, s.epoch));
                }
                Action::Stop(s) => self.pending.push(Event::Stopped { allocation: s.allocation, epoch: s.epoch }),
                Action::Undo(s) => {
                    self.live.remove(&(s.allocation, s.epoch));
                    self.pending.push(Event::Undone { allocation: s.allocation, epoch: s.epoch, usage: None });
                }
                Action::Preempt(s) => {
                    let request = s.preempt.map(|order| order.id).expect("it is asked for");
                    self.pending.push(Event::Saved { allocation: s.allocation, epoch: s.epoch, request, saved: Ok(request) });
                }
                Action::Adopt(_) | Action::ChangeWalltime(_) | Action::ChangeLane(_) | Action::Report => {}
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    List(Vec<(u8, u8, bool)>),
    /// Claimed and ended before this node received it.
    Missed(u8, u8),
    Answer(u8),
    End(u8),
    /// The agent is killed after this many of the next step's records reached the disk.
    Crash(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        3 => proptest::collection::vec((0u8..4, 1u8..4, any::<bool>()), 0..4).prop_map(Step::List),
        1 => (0u8..4, 4u8..6).prop_map(|(n, epoch)| Step::Missed(n, epoch)),
        6 => any::<u8>().prop_map(Step::Answer),
        2 => (0u8..4).prop_map(Step::End),
        2 => any::<u8>().prop_map(Step::Crash),
    ];
    proptest::collection::vec(one, 1..60)
}

proptest! {
    /// From any history with a crash between any two records: once the world answers, the work of the
    /// last list runs (except ended work), nothing else is left, replay gives the same state, no
    /// (allocation, epoch) runs again after it was gone, and the quorum receives a release for every
    /// claim that is over.
    #[test]
    fn the_node_converges_from_any_crash_point(history in steps()) {
        let mut brain = brain();
        let mut disk: Vec<Record> = Vec::new();
        let mut world = World::default();
        let mut revision = 0;
        let mut gone: BTreeSet<(AllocationId, Epoch)> = BTreeSet::new();
        let mut ended: BTreeSet<(AllocationId, Epoch)> = BTreeSet::new();
        let mut last: Vec<DesiredShare> = Vec::new();
        let mut held: BTreeSet<(AllocationId, Epoch)> = BTreeSet::new();
        let leaving = |held: &BTreeSet<(AllocationId, Epoch)>, last: &[DesiredShare], brain: &Brain| {
            let over = held.iter().filter(|(id, epoch)| !last.iter().any(|s| s.allocation == *id && s.epoch == *epoch));
            let is_reported = |(allocation, epoch)| brain.reports().any(|r| r.item == ReportItem::Released { allocation, epoch, usage: None });
            over.copied().filter(|claim| !is_reported(*claim)).collect::<Vec<_>>()
        };
        let mut cut: Option<usize> = None;
        let mut all = history;
        all.extend((0..200).map(|_| Step::Answer(0)));
        for step in all {
            let event = match step {
                Step::List(wanted) => {
                    revision += 1;
                    let mut by_id = BTreeMap::new();
                    for (n, epoch, running) in wanted {
                        let state = if running { AllocationState::Running } else { AllocationState::Staging };
                        by_id.insert(n, share(u128::from(n), u64::from(epoch), state, 2));
                    }
                    last = by_id.into_values().collect();
                    held.extend(last.iter().map(|s| (s.allocation, s.epoch)));
                    list_of(revision, last.clone(), leaving(&held, &last, &brain))
                }
                Step::Missed(n, epoch) => {
                    revision += 1;
                    held.insert((alloc(u128::from(n)), Epoch(u64::from(epoch))));
                    list_of(revision, last.clone(), leaving(&held, &last, &brain))
                }
                Step::Answer(i) => {
                    if world.pending.is_empty() { continue }
                    let i = usize::from(i) % world.pending.len();
                    world.pending.remove(i)
                }
                Step::End(n) => {
                    let Some(local) = brain.local(alloc(u128::from(n))) else { continue };
                    if local.phase != Phase::Running { continue }
                    ended.insert((local.share.allocation, local.share.epoch));
                    Event::Ended { allocation: local.share.allocation, epoch: local.share.epoch, reason: EndReason::Exited { code: 0 } }
                }
                Step::Crash(n) => { cut = Some(usize::from(n % 5)); continue }
            };
            each_has_its_own(&brain);
            let (mut records, mut actions) = (Vec::new(), Vec::new());
            brain.handle(event.clone(), &mut records, &mut actions);
            for record in &records {
                if let Record::Removed { allocation, epoch } = record { gone.insert((*allocation, *epoch)); }
            }
            if let Some(kept) = cut.take() {
                let kept = kept.min(records.len());
                let whole = kept == records.len();
                for record in &records[kept..] {
                    if let Record::Removed { allocation, epoch } = record { gone.remove(&(*allocation, *epoch)); }
                }
                disk.extend(records.into_iter().take(kept));
                if whole { world.act(actions); }
                brain = self::brain();
                for record in &disk { brain.replay(record.clone()); }
                let (mut records, mut actions) = (Vec::new(), Vec::new());
                brain.resume(true, &mut records, &mut actions);
                disk.extend(records);
                world.pending.clear();
                world.act(actions);
                // The session reconnects and sends its list again, with a revision newer than any
                // before.
                revision += 1;
                let (mut records, mut actions) = (Vec::new(), Vec::new());
                brain.handle(list_of(revision, last.clone(), leaving(&held, &last, &brain)), &mut records, &mut actions);
                disk.extend(records);
                world.act(actions);
                continue;
            }
            disk.extend(records);
            for action in &actions {
                if let Action::Prepare(local) = action {
                    let s = &local.share;
                    let listed_since = last.iter().any(|l| l.allocation == s.allocation && l.epoch == s.epoch);
                    prop_assert!(listed_since, "prepared what no list wants");
                }
            }
            world.act(actions);
        }
        prop_assert!(world.pending.is_empty());
        prop_assert_eq!(leaving(&held, &last, &brain), vec![], "the quorum holds it for this node for ever");
        let mut replayed = self::brain();
        for record in &disk { replayed.replay(record.clone()); }
        prop_assert_eq!(&replayed, &brain);
        for local in brain.locals() {
            let key = (local.share.allocation, local.share.epoch);
            prop_assert!(last.iter().any(|s| (s.allocation, s.epoch) == key), "{:?} is on the node, no list wants it", key);
            prop_assert!(world.live.contains(&key));
        }
        prop_assert_eq!(world.live.len(), brain.locals().count(), "something is left behind");
        for wanted in &last {
            let key = (wanted.allocation, wanted.epoch);
            let here = brain.local(wanted.allocation).is_some_and(|l| l.share.epoch == wanted.epoch);
            prop_assert!(here || gone.contains(&key), "{:?} is wanted and was never begun", key);
            if here && wanted.state == AllocationState::Running && !ended.contains(&key) {
                prop_assert!(world.started.contains(&key));
            }
        }
    }

    /// The same list again changes nothing: reconciliation is idempotent.
    #[test]
    fn a_repeated_list_does_nothing(shares in proptest::collection::vec((0u8..6, 1u8..3), 0..6)) {
        let mut brain = brain();
        let mut by_id = BTreeMap::new();
        for (n, epoch) in shares { by_id.insert(n, share(u128::from(n), u64::from(epoch), AllocationState::Staging, 2)); }
        let shares: Vec<DesiredShare> = by_id.into_values().collect();
        step(&mut brain, list(1, shares.clone()));
        let before = brain.locals().cloned().collect::<Vec<_>>();
        prop_assert_eq!(names(&step(&mut brain, list(2, shares))), Vec::<&str>::new());
        prop_assert_eq!(before, brain.locals().cloned().collect::<Vec<_>>());
    }
}

#[test]
fn the_preferences_of_work_decide_which_part_of_the_node_it_gets() {
    let memory_nodes = |same_numa: bool| {
        // The first domain has two free cores and the first GPU, the second has all of its own.
        let mut brain = Brain::new("n0".parse().unwrap());
        brain.knows(crate::assign::tests::machine(2, 4, 1, &[0, 1]));
        let mut other = share(1, 1, AllocationState::Staging, 1);
        other.resources.gpus = 0;
        let mut wanted = share(2, 1, AllocationState::Staging, 1);
        wanted.resources.cores = 4;
        wanted.spec.constraints.same_numa = same_numa;
        step(&mut brain, list(1, vec![other.clone()]));
        step(&mut brain, list(2, vec![other, wanted]));
        brain.local(alloc(2)).unwrap().assignment.clone().unwrap().memory_nodes
    };
    assert_eq!([memory_nodes(false), memory_nodes(true)], [BTreeSet::from([0, 1]), BTreeSet::from([1])]);
}

#[test]
fn work_with_a_lost_gpu_fails_and_nobody_gets_that_gpu_until_it_is_back() {
    let mut brain = brain();
    let shares = |ids: &[u128]| ids.iter().map(|n| share(*n, 1, AllocationState::Staging, 1)).collect::<Vec<_>>();
    step(&mut brain, list(1, shares(&[1, 2])));
    let gpu_of = |brain: &Brain, n| brain.local(alloc(n)).unwrap().assignment.clone().unwrap().gpus.into_iter().next().unwrap();
    let lost = gpu_of(&brain, 1);
    let topology = crate::assign::tests::machine(2, 4, 1, &[0, 0, 1, 1]);
    let now = |why: &str| GpusNow {
        topology: topology.clone(),
        lost: if why.is_empty() { BTreeMap::new() } else { BTreeMap::from([(lost.clone(), why.to_owned())]) },
        withheld: if why.is_empty() { BTreeSet::new() } else { BTreeSet::from([lost.clone()]) },
    };
    let actions = step(&mut brain, Event::Gpus(Box::new(now("its GPU 3b:00.0 is lost"))));
    assert_eq!(names(&actions), ["report", "stop"]);
    let reports: Vec<String> = brain.reports().map(|r| format!("{:?}", r.item)).collect();
    assert!(reports.len() == 1 && reports[0].contains("its GPU 3b:00.0 is lost"), "{reports:?}");
    assert_eq!([1, 2].map(|n| brain.local(alloc(n)).unwrap().phase), [Phase::Stopping, Phase::Preparing]);
    // The same loss reported again is not a second loss.
    assert_eq!(names(&step(&mut brain, Event::Gpus(Box::new(now("its GPU 3b:00.0 is lost"))))), [] as [&str; 0]);
    step(&mut brain, Event::Stopped { allocation: alloc(1), epoch: Epoch(1) });
    step(&mut brain, Event::Undone { allocation: alloc(1), epoch: Epoch(1), usage: None });
    step(&mut brain, list(2, shares(&[2, 3, 4, 5])));
    assert!([2, 3, 4].iter().all(|n| gpu_of(&brain, *n) != lost));
    assert_eq!(brain.local(alloc(5)).unwrap().phase, Phase::Undoing, "there are three");
    step(&mut brain, Event::Undone { allocation: alloc(5), epoch: Epoch(1), usage: None });
    step(&mut brain, Event::Gpus(Box::new(now(""))));
    step(&mut brain, list(3, shares(&[2, 3, 4, 6])));
    assert_eq!(gpu_of(&brain, 6), lost);
}

#[test]
fn work_that_an_error_hit_fails_once_under_its_own_claim() {
    let mut brain = brain();
    step(&mut brain, list(1, vec![share(1, 1, AllocationState::Staging, 1), share(2, 1, AllocationState::Staging, 1)]));
    let hit = |epoch| Event::Hit { allocation: alloc(1), epoch: Epoch(epoch), why: "its GPU reported XID 31".to_owned() };
    assert_eq!(names(&step(&mut brain, hit(1))), [] as [&str; 0], "nothing runs yet");
    step(&mut brain, Event::Prepared { allocation: alloc(1), epoch: Epoch(1), result: Ok(()) });
    assert_eq!(names(&step(&mut brain, hit(2))), [] as [&str; 0], "another claim of it");
    let before = brain.reports().count();
    assert_eq!(names(&step(&mut brain, hit(1))), ["report", "stop"]);
    let reports: Vec<String> = brain.reports().skip(before).map(|r| format!("{:?}", r.item)).collect();
    assert!(reports.len() == 1 && reports[0].contains("NodeLost") && reports[0].contains("its GPU reported XID 31"), "{reports:?}");
    assert_eq!([1, 2].map(|n| brain.local(alloc(n)).unwrap().phase), [Phase::Stopping, Phase::Preparing]);
    assert_eq!(names(&step(&mut brain, hit(1))), [] as [&str; 0], "the same error again");
}

fn checkpoint(n: u128) -> CheckpointId {
    format!("00000000-0000-4000-9000-{n:012x}").parse().unwrap()
}

/// A running allocation that is to save itself under request `id`.
fn preempted(id: u128, cause: PreemptCause, nodes: usize) -> DesiredShare {
    let (by, reason) = ("root".to_owned(), "needed".to_owned());
    let order = Preemption { id: checkpoint(id), by, reason, cause, deadline_ms: 1000, hold: false, failed: None };
    DesiredShare { preempt: Some(order), ..share(1, 1, AllocationState::Running, nodes) }
}

fn running(b: &mut Brain, nodes: usize) {
    step(b, list(1, vec![share(1, 1, AllocationState::Running, nodes)]));
    step(b, Event::Prepared { allocation: alloc(1), epoch: Epoch(1), result: Ok(()) });
    step(b, Event::Registered { incarnation: Incarnation(1), report_seq: 0 });
}

#[test]
fn open_ports_of_running_work_are_reported_once() {
    let mut b = brain();
    let opened = |ports: &[u16]| Event::PortsOpened { allocation: alloc(1), epoch: Epoch(1), ports: ports.to_vec() };
    assert_eq!(names(&step(&mut b, opened(&[80]))), [""; 0], "it is not here");
    running(&mut b, 1);
    assert_eq!(names(&step(&mut b, opened(&[80]))), ["report"]);
    assert_eq!(b.reports().last().unwrap().item, ReportItem::PortsOpen { allocation: alloc(1), epoch: Epoch(1), ports: vec![80] });
    assert_eq!(names(&step(&mut b, opened(&[80]))), [""; 0], "reported already");
    assert_eq!(names(&step(&mut b, opened(&[81]))), ["report"]);
}

fn saved(request: u128, saved: Result<u128, &str>) -> Event {
    let saved = saved.map(checkpoint).map_err(|why| NotSaved(why.to_owned()));
    Event::Saved { allocation: alloc(1), epoch: Epoch(1), request: checkpoint(request), saved }
}

#[test]
fn work_to_preempt_is_asked_once_in_each_life_and_ends_when_it_is_saved() {
    let mut b = brain();
    running(&mut b, 2);
    assert_eq!(names(&step(&mut b, list(2, vec![preempted(7, PreemptCause::Request, 2)]))), ["preempt"]);
    assert_eq!(names(&step(&mut b, list(3, vec![preempted(7, PreemptCause::Request, 2)]))), [""; 0]);
    let (mut records, mut actions) = (Vec::new(), Vec::new());
    let here = Local { share: preempted(7, PreemptCause::Request, 2), phase: Phase::Running, assignment: None };
    Brain::recovered("n0".parse().unwrap(), Incarnation(1), vec![here], vec![]).resume(true, &mut records, &mut actions);
    assert_eq!(names(&actions), ["start", "preempt"]);
    assert_eq!(names(&step(&mut b, saved(8, Ok(8)))), [""; 0], "another request");
    assert_eq!(names(&step(&mut b, saved(7, Ok(7)))), ["report", "stop"]);
    let last = b.reports().last().unwrap().item;
    let reason = EndReason::Preempted { by: "root".into(), why: "needed".into(), saved: Ok(checkpoint(7)) };
    assert_eq!(last, ReportItem::Ended { allocation: alloc(1), epoch: Epoch(1), reason });
    assert_eq!(names(&step(&mut b, saved(7, Ok(7)))), [""; 0]);
}

#[test]
fn work_that_cannot_save_itself_ends_or_continues_by_the_latest_request() {
    let mut b = brain();
    running(&mut b, 1);
    step(&mut b, list(2, vec![preempted(7, PreemptCause::Drain, 1)]));
    assert_eq!(names(&step(&mut b, saved(7, Err("deaf")))), ["report"]);
    assert!(matches!(b.reports().last().unwrap().item, ReportItem::NotPreempted { .. }));
    assert_eq!(names(&step(&mut b, saved(7, Err("deaf")))), [""; 0], "reported already");
    assert_eq!(names(&step(&mut b, list(3, vec![preempted(8, PreemptCause::Drain, 1)]))), ["preempt"], "asked again");
    step(&mut b, list(4, vec![preempted(8, PreemptCause::Request, 1)]));
    assert_eq!(names(&step(&mut b, saved(8, Err("deaf")))), ["report", "stop"]);
    // A request that the list dropped and has again is asked again.
    let mut again = brain();
    running(&mut again, 1);
    let late = preempted(7, PreemptCause::Drain, 1);
    step(&mut again, list(2, vec![late.clone()]));
    assert_eq!(again.locals_with_requests().map(|local| local.share).collect::<Vec<_>>(), [late], "asked since it began");
    step(&mut again, saved(7, Err("deaf")));
    step(&mut again, list(3, vec![share(1, 1, AllocationState::Running, 1)]));
    assert_eq!(again.locals_with_requests().next().and_then(|local| local.share.preempt), None);
    assert_eq!(names(&step(&mut again, list(4, vec![preempted(7, PreemptCause::Request, 1)]))), ["preempt"]);
    assert_eq!(names(&step(&mut again, saved(7, Err("deaf")))), ["report", "stop"]);
    // Only the head asks.
    let mut other = Brain::new("n1".parse().unwrap());
    other.knows(crate::assign::tests::machine(2, 4, 1, &[0, 0, 1, 1]));
    running(&mut other, 2);
    assert_eq!(names(&step(&mut other, list(2, vec![preempted(7, PreemptCause::Request, 2)]))), [""; 0]);
}

#[test]
fn a_replica_that_must_leave_ends_saved_or_not_unless_it_has_ended_by_itself() {
    let asked = || {
        let mut b = brain();
        running(&mut b, 1);
        assert_eq!(names(&step(&mut b, list(2, vec![preempted(7, PreemptCause::ScaleDown, 1)]))), ["preempt"]);
        b
    };
    let stayed = || NotSaved("it stayed".to_owned());
    for (event, as_reported) in [(saved(7, Ok(7)), Ok(checkpoint(7))), (saved(7, Err("it stayed")), Err(stayed()))] {
        let mut b = asked();
        assert_eq!(names(&step(&mut b, event)), ["report", "stop"]);
        let reason = EndReason::Preempted { by: "root".into(), why: "needed".into(), saved: as_reported };
        assert_eq!(b.reports().last().unwrap().item, ReportItem::Ended { allocation: alloc(1), epoch: Epoch(1), reason });
    }
    let mut b = asked();
    let (allocation, epoch, reason) = (alloc(1), Epoch(1), EndReason::Exited { code: 0 });
    assert_eq!(names(&step(&mut b, Event::Ended { allocation, epoch, reason: reason.clone() })), ["report", "stop"]);
    assert_eq!(names(&step(&mut b, saved(7, Err("it stayed")))), [""; 0]);
    assert_eq!(b.reports().last().unwrap().item, ReportItem::Ended { allocation, epoch, reason });
}

#[test]
fn unreported_health_is_stored_in_order_and_bounded() {
    let health_change = |at: u64| Event::UnreportedHealth { at: Timestamp(at), text: format!("not well: {at}") };
    let mut b = brain();
    step(&mut b, Event::Registered { incarnation: Incarnation(1), report_seq: 0 });
    for at in 2..200 {
        step(&mut b, health_change(at));
    }
    let kept = b.reports().map(|report| match report.item {
        ReportItem::UnreportedHealth { at, health: text } => (at.0, text),
        other => panic!("{other:?}"),
    });
    let kept: Vec<(u64, String)> = kept.collect();
    assert_eq!(kept.len(), 65);
    assert_eq!(kept[..64], (2..66).map(|at| (at, format!("not well: {at}"))).collect::<Vec<_>>()[..]);
    assert!(kept[64].1.contains("more than 64 changes"), "{kept:?}");
    // Once they are acknowledged, more are stored.
    step(&mut b, Event::Acknowledged { incarnation: Incarnation(1), seq: 65 });
    assert_eq!(names(&step(&mut b, health_change(200))), ["report"]);
}

#[test]
fn a_changed_walltime_reaches_running_and_later_work_also_over_a_restart() {
    let with = |walltime: u64, state| {
        let mut share = share(1, 1, state, 2);
        share.spec.walltime = Some(std::time::Duration::from_secs(walltime));
        share
    };
    let mut brain = Brain::new("n0".parse().unwrap());
    let mut journal = Vec::new();
    let mut step = |event| {
        let mut actions = Vec::new();
        brain.handle(event, &mut journal, &mut actions);
        let walltime_seconds = |action: &Action| match action {
            Action::Start(share) | Action::ChangeWalltime(share) => share.spec.walltime.map(|time| time.as_secs()),
            _ => None,
        };
        (names(&actions), actions.iter().find_map(walltime_seconds))
    };
    step(Event::Registered { incarnation: Incarnation(1), report_seq: 0 });
    step(list(1, vec![with(600, AllocationState::Staging)]));
    assert_eq!(step(list(2, vec![with(500, AllocationState::Staging)])), (vec![], None), "it has not begun");
    step(Event::Prepared { allocation: alloc(1), epoch: Epoch(1), result: Ok(()) });
    assert_eq!(step(list(3, vec![with(500, AllocationState::Running)])), (vec!["start"], Some(500)));
    assert_eq!(step(list(4, vec![with(90, AllocationState::Running)])), (vec!["walltime"], Some(90)));
    assert_eq!(step(list(5, vec![with(90, AllocationState::Running)])), (vec![], None), "nothing new");
    assert_eq!(step(list(4, vec![with(600, AllocationState::Running)])), (vec![], None), "an old list");
    let mut renamed = with(90, AllocationState::Running);
    renamed.spec.name = "renamed".to_owned();
    assert_eq!(step(list(6, vec![renamed])), (vec![], None), "another name");
    assert_eq!(brain.locals_with_requests().map(|local| local.share.spec.name).collect::<Vec<_>>(), ["renamed"]);
    // An agent that has only the journal begins with the last walltime.
    let mut again = Brain::new("n0".parse().unwrap());
    journal.into_iter().for_each(|record| again.replay(record));
    assert_eq!(again.local(alloc(1)).unwrap().share.spec.walltime, Some(std::time::Duration::from_secs(90)));
}

#[test]
fn revoked_tasks_reach_the_running_lane_that_holds_them() {
    let with = |revocations, state| {
        let lane = lattice_model::LaneOf { group: alloc(9), number: 0, queued_at: Timestamp(0), revocations };
        DesiredShare { lane: Some(lane), ..share(1, 1, state, 2) }
    };
    let mut brain = brain();
    let mut step = |event| {
        let actions = step(&mut brain, event);
        let revocations = |action: &Action| match action {
            Action::ChangeLane(share) => share.lane.map(|lane| lane.revocations),
            _ => None,
        };
        (names(&actions), actions.iter().find_map(revocations))
    };
    step(Event::Registered { incarnation: Incarnation(1), report_seq: 0 });
    step(list(1, vec![with(0, AllocationState::Staging)]));
    step(Event::Prepared { allocation: alloc(1), epoch: Epoch(1), result: Ok(()) });
    assert_eq!(step(list(2, vec![with(1, AllocationState::Running)])), (vec!["start"], None), "it asks when it begins");
    assert_eq!(step(list(3, vec![with(2, AllocationState::Running)])), (vec!["lane"], Some(2)));
    assert_eq!(step(list(4, vec![with(2, AllocationState::Running)])), (vec![], None), "nothing new");
}
