use super::*;
use proptest::prelude::*;

const LENGTH: u64 = 1000;

fn id() -> CheckpointId {
    "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap()
}

fn node(n: usize) -> NodeId {
    format!("n{n}").parse().unwrap()
}

fn begun(nodes: usize) -> Checkpointing {
    Checkpointing::begin(id(), Epoch(3), None, (0..nodes).map(node).collect(), LENGTH, DEFERRAL_MS_MAX, 0)
}

fn able(n: usize, round: u32) -> CheckpointEvent {
    CheckpointEvent::Able { node: node(n), round, idle: false }
}

fn saved(n: usize, round: u32, step: Option<u64>) -> CheckpointEvent {
    let saved = Saved { files: 1, bytes: 10, step, manifest: Some("00".to_owned()) };
    CheckpointEvent::NodeSaved { node: node(n), round, saved }
}

fn whole(step: Option<u64>, bytes: u64) -> CheckpointRef {
    CheckpointRef { id: id(), epoch: Epoch(3), step, bytes }
}

#[test]
fn the_time_of_a_round_counts_from_its_beginning() {
    let mut c = begun(1);
    assert_eq!(c.round_ms(300), Some(300));
    c.handle(LENGTH + 1, CheckpointEvent::Clock);
    assert_eq!(c.round_ms(LENGTH + 200), Some(LENGTH + 200), "its deadline was put off by half");
    c.handle(1200, CheckpointEvent::Deferred { node: node(0), round: 1, for_ms: 5000 });
    assert_eq!(c.round_ms(2000), None);
    c.handle(6200, CheckpointEvent::Clock);
    assert_eq!((c.round, c.round_ms(6300)), (2, Some(100)));
}

#[test]
fn a_checkpoint_is_complete_once_every_node_has_saved_and_the_quorum_has_committed() {
    let mut c = begun(2);
    assert_eq!(c.resume(), [CheckpointStep::Ask { round: 1 }]);
    assert_eq!(c.handle(1, saved(0, 1, Some(7))), [], "nothing was sent yet");
    assert_eq!(c.handle(1, able(0, 1)), []);
    assert_eq!(c.handle(1, able(0, 1)), [], "reported twice");
    assert_eq!(c.handle(2, able(1, 1)), [CheckpointStep::Go { round: 1 }]);
    assert_eq!(c.resume(), [CheckpointStep::Ask { round: 1 }, CheckpointStep::Go { round: 1 }]);
    assert_eq!(c.handle(3, saved(1, 1, Some(7))), []);
    assert!(c.awaits(&node(0)) && !c.awaits(&node(1)));
    assert_eq!(c.handle(4, saved(0, 1, Some(7))), [CheckpointStep::Write { round: 1 }]);
    assert_eq!(c.handle(5, CheckpointEvent::Committed { id: id() }), [], "not before it is written");
    assert!(!c.may_be_recorded);
    assert_eq!(c.handle(6, CheckpointEvent::Written), [CheckpointStep::Commit { checkpoint: whole(Some(7), 20) }]);
    assert_eq!(c.handle(1 << 40, CheckpointEvent::Clock), [], "a whole checkpoint has no deadline");
    assert_eq!(c.handle(7, CheckpointEvent::Committed { id: id() }), [CheckpointStep::Forget]);
    assert_eq!(c.end(), Some(&CheckpointEnd::Complete { checkpoint: whole(Some(7), 20) }));
}

#[test]
fn idle_nodes_report_again_and_idle_nodes_alone_are_a_failure() {
    let idle = |n| CheckpointEvent::Able { node: node(n), round: 1, idle: true };
    let mut c = begun(2);
    c.handle(1, idle(1));
    assert_eq!(c.handle(1, able(0, 1)), [CheckpointStep::Go { round: 1 }]);
    assert_eq!(c.handle(1, saved(0, 1, None)), []);
    let nothing = |n| CheckpointEvent::NodeSaved { node: node(n), round: 1, saved: Saved::default() };
    assert_eq!(c.clone().handle(2, nothing(1)), [CheckpointStep::Write { round: 1 }]);
    // Something began on the idle node.
    assert_eq!(c.clone().handle(2, saved(1, 1, None)), [CheckpointStep::Forget]);
    let why = "something runs".to_owned();
    assert_eq!(c.handle(2, CheckpointEvent::NodeFailed { node: node(1), round: 1, why }), [CheckpointStep::Forget]);
    // The work on the node has ended.
    let mut c = begun(1);
    c.handle(1, able(0, 1));
    assert_eq!(c.handle(2, nothing(0)), [CheckpointStep::Forget]);
    let mut c = begun(1);
    assert_eq!(c.handle(1, idle(0)), [CheckpointStep::Forget]);
    assert!(matches!(c.end(), Some(CheckpointEnd::Failed { .. })));
}

#[test]
fn the_deadline_is_extended_once_by_half() {
    let mut c = begun(1);
    c.handle(1, able(0, 1));
    assert_eq!(c.handle(LENGTH - 1, CheckpointEvent::Clock), []);
    assert_eq!(c.handle(LENGTH, CheckpointEvent::Clock), []);
    assert_eq!(c.wakes_ms(), Some(LENGTH + LENGTH / 2));
    assert_eq!(c.handle(LENGTH + LENGTH / 2, CheckpointEvent::Clock), [CheckpointStep::Forget]);
    assert_eq!(c.end(), Some(&CheckpointEnd::TimedOut { waited_for: BTreeSet::from([node(0)]) }));
    // An agent that was down all the time finds both deadlines over at once.
    let mut c = begun(1);
    assert_eq!(c.handle(LENGTH * 5, CheckpointEvent::Clock), [CheckpointStep::Forget]);
}

#[test]
fn parts_saved_before_a_deferral_do_not_count() {
    let mut c = begun(2);
    c.handle(1, able(0, 1));
    c.handle(1, able(1, 1));
    c.handle(2, saved(0, 1, None));
    assert_eq!(
        c.handle(3, CheckpointEvent::Deferred { node: node(1), round: 1, for_ms: 500 }),
        [CheckpointStep::Forget],
        "for a second at least"
    );
    assert_eq!(c.handle(100, saved(1, 1, None)), [], "the round is over");
    assert_eq!(c.handle(1003, CheckpointEvent::Clock), [CheckpointStep::Ask { round: 2 }]);
    c.handle(1004, able(0, 2));
    c.handle(1004, able(1, 2));
    assert_eq!(c.handle(1005, saved(0, 1, None)), [], "a late report of the previous round");
    assert_eq!(c.handle(1006, saved(1, 2, None)), []);
    assert_eq!(c.handle(1007, saved(0, 2, None)), [CheckpointStep::Write { round: 2 }]);
}

#[test]
fn progress_counts_in_its_round_and_decides_nothing() {
    let mut c = begun(1);
    let progressed = |round| CheckpointEvent::Progressed { node: node(0), round, progress: Progress { percent: Some(40), left_ms: None } };
    c.handle(1, progressed(1));
    assert!(c.progress.is_empty(), "nothing was asked yet");
    c.handle(1, able(0, 1));
    let phase = c.phase.clone();
    c.handle(2, progressed(2));
    assert_eq!((c.handle(2, progressed(1)), c.progress[&node(0)].percent, &c.phase), (vec![], Some(40), &phase));
    c.handle(3, CheckpointEvent::Deferred { node: node(0), round: 1, for_ms: 1000 });
    assert!(c.progress.is_empty());
}

#[test]
fn a_checkpoint_is_acknowledged_once_every_saving_node_has_acknowledged() {
    let mut c = begun(3);
    let progressed = |n, percent| {
        let progress = Progress { percent, left_ms: None };
        CheckpointEvent::Progressed { node: node(n), round: 1, progress }
    };
    let mut after = |event| {
        let steps = c.handle(1, event);
        (c.text(), steps)
    };
    assert_eq!(after(progressed(0, None)), ("asking", vec![]), "no node was asked to save yet");
    assert_eq!(after(able(0, 1)), ("asking", vec![]));
    assert_eq!(after(able(1, 1)), ("asking", vec![]));
    // Nothing runs on the third node, which need not acknowledge.
    let idle = CheckpointEvent::Able { node: node(2), round: 1, idle: true };
    assert_eq!(after(idle), ("requested", vec![CheckpointStep::Go { round: 1 }]));
    assert_eq!(after(progressed(0, None)), ("requested", vec![]), "the other one has not acknowledged");
    assert_eq!(after(progressed(0, Some(10))), ("requested", vec![]));
    assert_eq!(after(progressed(1, None)), ("acknowledged", vec![]));
    assert_eq!(after(progressed(1, Some(0))), ("writing", vec![]));
    assert_eq!(after(saved(1, 1, None)), ("writing", vec![]));
    assert_eq!(after(progressed(0, None)), ("acknowledged", vec![]), "the node begins again");
    assert_eq!(after(saved(0, 1, None)), ("writing", vec![]), "all saving nodes are done");
    let nothing = CheckpointEvent::NodeSaved { node: node(2), round: 1, saved: Saved::default() };
    assert_eq!(after(nothing), ("verifying", vec![CheckpointStep::Write { round: 1 }]));
    // Work that is asked by a signal reports nothing before it is done, and a deferral begins a new
    // request.
    let mut c = begun(1);
    c.handle(1, able(0, 1));
    c.handle(1, progressed(0, Some(50)));
    c.handle(2, CheckpointEvent::Deferred { node: node(0), round: 1, for_ms: 1000 });
    c.handle(1002, CheckpointEvent::Clock);
    c.handle(1003, able(0, 2));
    assert_eq!(c.text(), "requested");
    c.handle(1004, saved(0, 2, None));
    assert_eq!(c.text(), "verifying");
}

#[test]
fn parts_with_different_steps_fail_the_checkpoint() {
    let mut c = begun(2);
    c.handle(1, able(0, 1));
    c.handle(1, able(1, 1));
    c.handle(2, saved(0, 1, Some(4)));
    c.handle(2, saved(1, 1, Some(5)));
    let Some(CheckpointEnd::Failed { why }) = c.end() else { panic!("{c:?}") };
    assert!(why.contains("step 4") && why.contains("step 5"), "{why}");
}

#[test]
fn whether_the_quorum_was_notified_outlives_the_end() {
    let mut c = begun(1);
    c.handle(1, able(0, 1));
    c.handle(2, saved(0, 1, None));
    let mut late = c.clone();
    c.handle(3, CheckpointEvent::NotWritten { why: "made before".to_owned() });
    assert!(matches!(c.end(), Some(CheckpointEnd::Failed { .. })) && !c.may_be_recorded);
    late.handle(3, CheckpointEvent::Written);
    late.handle(4, CheckpointEvent::Superseded { why: "claimed anew".to_owned() });
    assert!(matches!(late.end(), Some(CheckpointEnd::Failed { .. })) && late.may_be_recorded);
}

fn event(nodes: usize) -> impl Strategy<Value = CheckpointEvent> {
    let of = move || (0..=nodes, 0u32..4);
    prop_oneof![
        6 => (of(), any::<bool>()).prop_map(|((n, round), idle)| CheckpointEvent::Able { node: node(n), round, idle }),
        6 => (of(), prop::option::of(Just(7u64))).prop_map(|((n, round), step)| saved(n, round, step)),
        3 => of().prop_map(|(n, round)| CheckpointEvent::NodeSaved { node: node(n), round, saved: Saved::default() }),
        1 => of().prop_map(|(n, round)| CheckpointEvent::Progressed { node: node(n), round, progress: Progress::default() }),
        1 => of().prop_map(|(n, round)| CheckpointEvent::NodeFailed { node: node(n), round, why: "x".to_owned() }),
        2 => (of(), 0..DEFERRAL_MS_MAX).prop_map(|((n, round), for_ms)| CheckpointEvent::Deferred { node: node(n), round, for_ms }),
        2 => Just(CheckpointEvent::Written),
        1 => Just(CheckpointEvent::NotWritten { why: "x".to_owned() }),
        2 => Just(CheckpointEvent::Committed { id: id() }),
        3 => Just(CheckpointEvent::Clock),
        1 => Just(CheckpointEvent::AllocationOver),
        1 => Just(CheckpointEvent::Superseded { why: "x".to_owned() }),
    ]
}

proptest! {
    /// Whatever events come in whatever order, also repeated and across restarts: a complete
    /// checkpoint has an answer of every node in its last round, after the step `Go`; deferrals and
    /// extensions are bounded; an end is final.
    #[test]
    fn invariants(nodes in 1usize..4, events in prop::collection::vec((event(3), 0u64..700, any::<bool>()), 0..80)) {
        let mut c = begun(nodes);
        let (mut now, mut gone) = (0, BTreeMap::<u32, u64>::new());
        let mut answered: BTreeSet<(u32, NodeId)> = BTreeSet::new();
        let mut extended = BTreeMap::<u32, BTreeSet<u64>>::new();
        for (event, passed, restarted) in events {
            now += passed;
            if restarted {
                // Only the state outlives the agent; the steps that it gives again belong to its
                // round.
                c = c.clone();
                for step in c.resume() {
                    if let CheckpointStep::Ask { round } | CheckpointStep::Go { round } | CheckpointStep::Write { round } = step {
                        prop_assert_eq!(round, c.round);
                    }
                }
            }
            let (before, handled) = (c.clone(), event.clone());
            let steps = c.handle(now, event);
            prop_assert!(before.end().is_none() || before == c, "an end stays");
            match handled {
                CheckpointEvent::NodeSaved { node, round, .. }
                    if matches!(before.phase, CheckpointPhase::Saving { .. }) && round == before.round =>
                {
                    answered.insert((round, node));
                }
                _ => {}
            }
            for step in steps {
                match step {
                    CheckpointStep::Go { round } => {
                        gone.insert(round, now);
                    }
                    CheckpointStep::Write { round } => {
                        prop_assert!(gone.contains_key(&round));
                        for node in &c.nodes {
                            prop_assert!(answered.contains(&(round, node.clone())), "{node} did not answer round {round}");
                        }
                    }
                    CheckpointStep::Commit { .. } => prop_assert!(matches!(before.phase, CheckpointPhase::Verifying { .. }), "{before:?}"),
                    CheckpointStep::Ask { round } => prop_assert_eq!(round, before.round + 1),
                    CheckpointStep::Forget => {}
                }
            }
            prop_assert!(c.deferred_ms <= DEFERRAL_MS_MAX && c.round <= ROUNDS_MAX);
            if let Some(at) = c.wakes_ms().filter(|_| !matches!(c.phase, CheckpointPhase::Deferred { .. })) {
                let deadlines = extended.entry(c.round).or_default();
                deadlines.insert(at);
                prop_assert!(deadlines.len() <= 2, "extended more than once: {deadlines:?}");
            }
        }
        // Without further events a checkpoint ends; only a whole one waits for the quorum without
        // limit.
        for _ in 0..64 {
            now += DEFERRAL_MS_MAX;
            c.handle(now, CheckpointEvent::Clock);
        }
        let ended = c.end().is_some() || matches!(c.phase, CheckpointPhase::Committing { .. });
        prop_assert!(ended, "{c:?}");
    }
}
