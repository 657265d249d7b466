use super::*;
use lattice_model::test_builders::node;
use lattice_model::{Hold, Timestamp};

const S: fn(u64) -> Duration = Duration::from_secs;

/// Nodes of a test.
struct All<'a> {
    nodes: &'a [Node],
    used: NodeUse,
    revision: Revision,
}

impl ClockedNodes for All<'_> {
    fn get(&self, id: &NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == *id)
    }

    fn count(&self) -> usize {
        self.nodes.len()
    }

    fn revision(&self) -> Revision {
        self.revision
    }

    fn changed_since(&self, revision: Revision) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.revision >= revision)
    }

    fn use_of(&self, _node: &Node) -> NodeUse {
        self.used
    }
}

/// The nodes, at a revision at which each evaluation examines all of them.
fn all(nodes: &[Node]) -> All<'_> {
    All { nodes, used: NodeUse::Own, revision: Revision(0) }
}

fn states(clocks: &mut Clocks, now: u64, nodes: &[Node]) -> Vec<(String, NodeState)> {
    clocks.state_changes(S(now), &all(nodes)).into_iter().map(|s| (s.node.to_string(), s.state)).collect()
}

fn clocks() -> Clocks {
    Clocks::new(LIMITS)
}

/// The default configuration.
const LIMITS: Limits = Limits {
    own: Patience { degraded_after: Duration::from_secs(30), down_after: Duration::from_secs(60) },
    sensitive: Patience { degraded_after: Duration::from_secs(120), down_after: Duration::from_secs(300) },
    borrowed: Patience { degraded_after: Duration::from_secs(30), down_after: Duration::from_secs(30) },
    cut_off_after: Duration::from_secs(300),
};

#[test]
fn a_nodes_patience_depends_on_its_use() {
    // For each use: when a node becomes Degraded, and when Down.
    let table = [(NodeUse::Own, 30, 90), (NodeUse::Sensitive, 120, 420), (NodeUse::Borrowed, 30, 60)];
    for (used, degraded, down) in table {
        let (mut c, mut n) = (clocks(), [node("n1", NodeState::Ready)]);
        let mut at = |now, n: &[Node]| c.state_changes(S(now), &All { nodes: n, used, revision: Revision(0) }).first().map(|s| s.state);
        assert_eq!(at(0, &n), None);
        assert_eq!((at(degraded, &n), at(degraded + 1, &n)), (None, Some(NodeState::Degraded)), "{used:?}");
        n[0].state = NodeState::Degraded;
        assert_eq!((at(down, &n), at(down + 1, &n)), (None, Some(NodeState::Down)), "{used:?}");
    }
}

#[test]
fn a_node_that_others_hear_stays_degraded_longer_but_only_while_they_report_it() {
    let (mut c, mut n) = (clocks(), [node("n1", NodeState::Degraded)]);
    let (id, by) = (n[0].id.clone(), || "n2".parse::<NodeId>().unwrap());
    assert_eq!(states(&mut c, 0, &n), []);
    c.witnessed(&id, by(), S(1));
    assert_eq!(states(&mut c, 87, &n), []);
    assert!(c.asked().is_empty(), "it is too early to ask");
    assert_eq!(states(&mut c, 88, &n), []);
    assert!(c.asked().contains(&id));
    c.witnessed(&id, id.clone(), S(88));
    c.witnessed(&id, by(), S(88));
    let state_changes = c.state_changes(S(89), &all(&n));
    assert_eq!(
        (state_changes[0].state, state_changes[0].reason.as_str()),
        (NodeState::Degraded, "its way to the quorum is lost: n2 hears it")
    );
    n[0].state_reason.clone_from(&state_changes[0].reason);
    assert_eq!(states(&mut c, 91, &n), []);
    assert!(c.cut_off.contains(&id), "its run leases lapse like others");
    // The witness does not reach it any more.
    assert_eq!(states(&mut c, 94, &n), [("n1".to_owned(), NodeState::Down)]);
    c.witnessed(&id, by(), S(389));
    assert_eq!(states(&mut c, 390, &n), []);
    c.witnessed(&id, by(), S(390));
    assert_eq!(states(&mut c, 391, &n), [("n1".to_owned(), NodeState::Down)], "not for ever");
}

#[test]
fn if_many_nodes_are_silent_no_witness_is_asked_and_no_node_is_fenced() {
    let many: Vec<Node> = (0..10).map(|i| node(&format!("n{i}"), NodeState::Degraded)).collect();
    let mut c = clocks();
    assert_eq!(states(&mut c, 0, &many), []);
    assert_eq!(states(&mut c, 91, &many), []);
    assert!(c.held_back > 0 && c.asked().is_empty() && c.cut_off.is_empty());
}

proptest::proptest! {
    /// The same history with and without witnesses: they never make a node Down earlier, and leases
    /// expire at the same time.
    #[test]
    fn a_witness_lengthens_and_never_shortens_the_wait(history in proptest::collection::vec((0u64..40, 0usize..5, 0usize..5, 0u8..4), 1..80)) {
        let ids: Vec<NodeId> = (0..5).map(|i| format!("n{i}").parse().unwrap()).collect();
        let mut sides = [(clocks(), false), (clocks(), true)].map(|(c, asks)| {
            (c, asks, (0..5).map(|i| node(&format!("n{i}"), NodeState::Ready)).collect::<Vec<_>>())
        });
        let mut now = 0;
        for (pause, who, by, what) in history {
            now += pause;
            for (c, asks, nodes) in &mut sides {
                match what {
                    0 => c.record_heartbeat(ids[who].clone(), Incarnation(1), S(now)),
                    1 if *asks => c.witnessed(&ids[who], ids[by].clone(), S(now)),
                    _ => {}
                }
                let all: Vec<_> = c.state_changes(S(now), &all(nodes));
                for state_change in all {
                    let node = nodes.iter_mut().find(|n| n.id == state_change.node).unwrap();
                    (node.state, node.state_reason) = (state_change.state, state_change.reason);
                }
            }
            let [(_, _, without), (c, _, with)] = &sides;
            for (without, with) in without.iter().zip(with) {
                let (gone, stays) = (without.state == NodeState::Down, with.state == NodeState::Down);
                assert!(gone || !stays, "{} is Down because of a witness", with.id);
                // Leases: a node that is Down in one history may be fenced in the other, unless
                // many fell silent since.
                let fenced = stays || c.cut_off.contains(&with.id);
                assert!(gone || !fenced, "{} is fenced because of a witness", with.id);
                assert!(!gone || fenced || c.held_back > 0, "{} is not fenced because of a witness", with.id);
            }
        }
    }
}

#[test]
fn nodes_that_a_new_leader_found_down_do_not_keep_others_from_going_down() {
    let mut n: Vec<Node> = (0..10).map(|i| node(&format!("n{i}"), NodeState::Ready)).collect();
    n[..3].iter_mut().for_each(|dead| dead.state = NodeState::Down);
    let mut c = clocks();
    assert_eq!(states(&mut c, 0, &n), []);
    for now in [5, 40, 97] {
        // One more node dies after five seconds; the others stay alive.
        n[3..].iter().filter(|n| now == 5 || n.id.as_str() != "n3").for_each(|n| c.record_heartbeat(n.id.clone(), Incarnation(1), S(now)));
        for (id, state) in states(&mut c, now, &n) {
            assert_eq!(id, "n3");
            n[3].state = state;
        }
        assert_eq!(c.held_back, 0);
    }
    assert_eq!(n[3].state, NodeState::Down);
}

proptest::proptest! {
    /// The same history with and without nodes that were Down before this leader's term: the other
    /// nodes' states are the same.
    #[test]
    fn nodes_that_were_down_before_change_nothing_for_the_others(
        dead in 1usize..8,
        history in proptest::collection::vec((0u64..40, 0usize..5, proptest::bool::ANY), 1..80),
    ) {
        let mut sides = [0, dead].map(|dead| {
            let live = (0..5).map(|i| node(&format!("n{i}"), NodeState::Ready));
            let dead = (0..dead).map(|i| node(&format!("dead{i}"), NodeState::Down));
            (clocks(), live.chain(dead).collect::<Vec<_>>())
        });
        let mut now = 0;
        for (pause, who, has_heartbeat) in history {
            now += pause;
            for (c, nodes) in &mut sides {
                if has_heartbeat {
                    c.record_heartbeat(nodes[who].id.clone(), Incarnation(1), S(now));
                }
                for state_change in c.state_changes(S(now), &all(nodes)) {
                    nodes.iter_mut().find(|n| n.id == state_change.node).unwrap().state = state_change.state;
                }
            }
            let [(without, nodes), (with, more)] = &sides;
            let states = |nodes: &[Node]| nodes[..5].iter().map(|n| n.state).collect::<Vec<_>>();
            assert_eq!((states(nodes), without.held_back), (states(more), with.held_back));
            assert!(more[5..].iter().all(|n| n.state == NodeState::Down));
        }
    }
}

#[test]
fn a_silent_node_is_degraded_then_down_then_ready_when_heard() {
    let mut c = clocks();
    let mut n = [node("n1", NodeState::Ready)];
    assert_eq!(states(&mut c, 100, &n), []);
    assert_eq!(c.due(), Some(S(130)));
    assert_eq!(states(&mut c, 130, &n), []);
    assert_eq!(states(&mut c, 131, &n), [("n1".to_owned(), NodeState::Degraded)]);
    n[0].state = NodeState::Degraded;
    assert_eq!(c.due(), Some(S(190)));
    assert_eq!(states(&mut c, 190, &n), []);
    assert_eq!(states(&mut c, 191, &n), [("n1".to_owned(), NodeState::Down)]);
    n[0].state = NodeState::Down;
    c.record_heartbeat("n1".parse().unwrap(), Incarnation(1), S(192));
    assert_eq!(states(&mut c, 193, &n), [("n1".to_owned(), NodeState::Ready)]);
}

#[test]
fn an_unwell_node_is_degraded_until_it_is_well_and_a_new_leader_waits_for_its_health() {
    let (mut c, mut n) = (clocks(), [node("n1", NodeState::Ready)]);
    let id = || "n1".parse::<NodeId>().unwrap();
    let unwell = || NodeHealth::Unwell { why: "disk: full".into(), drain: None };
    c.record_heartbeat(id(), Incarnation(1), S(1));
    c.record_health(id(), Incarnation(1), unwell());
    let state_changes = c.state_changes(S(2), &all(&n));
    assert_eq!((state_changes[0].state, state_changes[0].reason.as_str()), (NodeState::Degraded, "not well: disk: full"));
    (n[0].state, n[0].state_reason) = (NodeState::Degraded, state_changes[0].reason.clone());
    assert_eq!(states(&mut c, 3, &n), []);
    // A change in which checks fail is reported; a different number from the same check is not.
    for (why, expected) in
        [("disk: 3 % are free", None), ("disk: full; nic eth0: it is down", Some("not well: disk: full; nic eth0: it is down"))]
    {
        c.record_health(id(), Incarnation(1), NodeHealth::Unwell { why: why.into(), drain: None });
        let again = c.state_changes(S(3), &all(&n));
        assert_eq!(again.first().map(|state_change| state_change.reason.as_str()), expected);
        assert!(again.iter().all(|state_change| state_change.state == NodeState::Degraded));
    }
    c.record_health(id(), Incarnation(1), unwell());
    let mut next = clocks();
    next.record_heartbeat(id(), Incarnation(1), S(1));
    assert_eq!(states(&mut next, 2, &n), [], "a heartbeat came, but no health report");
    next.record_health(id(), Incarnation(1), NodeHealth::Well);
    assert_eq!(states(&mut next, 3, &n), [("n1".to_owned(), NodeState::Ready)]);
    // Silence still counts, and is the reason from then on. A node that returns is first Ready, then
    // Degraded again.
    let silent = c.state_changes(S(32), &all(&n));
    assert_eq!((silent[0].state, silent[0].reason.as_str()), (NodeState::Degraded, "silent for 31 s"));
    n[0].state_reason.clone_from(&silent[0].reason);
    assert!(!n[0].is_unwell());
    assert_eq!(states(&mut c, 33, &n), []);
    assert_eq!(states(&mut c, 92, &n), [("n1".to_owned(), NodeState::Down)]);
    n[0].state = NodeState::Down;
    c.record_heartbeat(id(), Incarnation(1), S(93));
    assert_eq!(states(&mut c, 93, &n), [NodeState::Ready, NodeState::Degraded].map(|state| ("n1".to_owned(), state)));
    (n[0].state, n[0].state_reason) = (NodeState::Degraded, state_changes[0].reason.clone());
    // A restarted agent reports it again.
    n[0].incarnation = Incarnation(2);
    assert_eq!(states(&mut c, 95, &n), []);
}

#[test]
fn an_unwell_node_that_drains_keeps_its_state_and_gets_a_reason() {
    let (mut c, mut n) = (clocks(), [node("n1", NodeState::Draining)]);
    let id = || "n1".parse::<NodeId>().unwrap();
    n[0].holds = vec![Hold {
        kind: HoldKind::Drain,
        by: "root".into(),
        reason: "x".into(),
        more_reasons: Vec::new(),
        since: Timestamp(0),
        until: None,
        deadline: None,
    }];
    c.record_heartbeat(id(), Incarnation(1), S(1));
    assert_eq!(states(&mut c, 1, &n), []);
    c.record_health(id(), Incarnation(1), NodeHealth::Unwell { why: "disk: full".into(), drain: None });
    let state_changes = c.state_changes(S(2), &all(&n));
    assert_eq!((state_changes[0].state, state_changes[0].reason.as_str()), (NodeState::Draining, "not well: disk: full"));
    n[0].state_reason.clone_from(&state_changes[0].reason);
    assert_eq!(states(&mut c, 3, &n), [], "proposed once");
    // It was Degraded before it was drained: from now on its drain determines its state.
    n[0].state = NodeState::Degraded;
    assert_eq!(states(&mut c, 3, &n), [("n1".to_owned(), NodeState::Ready)]);
    // A leader without a health report keeps the recorded reason; one that receives a good report
    // removes it.
    n[0].state = NodeState::Drained;
    let mut next = clocks();
    next.record_heartbeat(id(), Incarnation(1), S(1));
    assert_eq!(states(&mut next, 2, &n), []);
    next.record_health(id(), Incarnation(1), NodeHealth::Well);
    assert_eq!(next.state_changes(S(2), &all(&n))[0].reason, "");
}

#[test]
fn failed_hardware_proposes_one_hold_for_the_incarnation_that_reported_it() {
    let (mut c, mut n) = (clocks(), [node("n1", NodeState::Ready), node("n2", NodeState::Ready)]);
    c.record_health("n1".parse().unwrap(), Incarnation(1), NodeHealth::Failed { why: "ecc: uncorrectable".into() });
    c.record_heartbeat("n1".parse().unwrap(), Incarnation(1), S(1));
    assert_eq!(c.failures(S(32), &all(&n)), [], "the node is silent by now");
    let holds = c.failures(S(1), &all(&n));
    assert!(
        matches!(&holds[..], [Action::SetHold { kind: HoldKind::Failure, by, reason, .. }] if by == "node:n1" && reason == "ecc: uncorrectable"),
        "{holds:?}"
    );
    n[0].incarnation = Incarnation(2);
    assert_eq!(c.failures(S(1), &all(&n)), []);
    c.record_health("n1".parse().unwrap(), Incarnation(2), NodeHealth::Failed { why: "ecc: uncorrectable".into() });
    c.record_heartbeat("n1".parse().unwrap(), Incarnation(2), S(1));
    assert_eq!(c.failures(S(1), &all(&n)).len(), 1);
    let (by, reason) = ("root".to_owned(), "x".to_owned());
    n[0].holds =
        vec![Hold { kind: HoldKind::Failure, by, reason, more_reasons: Vec::new(), since: Timestamp(0), until: None, deadline: None }];
    assert_eq!(c.failures(S(1), &all(&n)), [], "it has that hold already");
    // A leader that never heard the node still knows how long it has been silent, so run leases
    // there expire eventually.
    n[0].state = NodeState::Down;
    let mut next = clocks();
    assert_eq!(states(&mut next, 5, &n[..1]), []);
    assert_eq!(next.silence(S(105), &n[0].id, n[0].incarnation), Some(S(100)));
}

#[test]
fn a_nodes_drain_request_is_proposed_until_the_ledger_has_it() {
    let (mut c, mut n) = (clocks(), [node("n1", NodeState::Ready), node("n2", NodeState::Ready)]);
    let id = || "n1".parse::<NodeId>().unwrap();
    let wish = |asked, why: &str| {
        let drain = Some(DrainRequest { asked: Timestamp(asked), why: why.into() });
        NodeHealth::Unwell { why: "gpu 0: XID 79".into(), drain }
    };
    c.record_heartbeat(id(), Incarnation(1), S(1));
    c.record_health(id(), Incarnation(1), wish(5, "gpu 0: XID 79"));
    let asked =
        |asked| Action::AskDrain { node: id(), incarnation: Incarnation(1), asked: Timestamp(asked), reason: "gpu 0: XID 79".into() };
    assert_eq!(c.drains(S(1), &all(&n)), [asked(5)]);
    assert_eq!(c.drains(S(32), &all(&n)), [], "the node is silent by now");
    n[0].drain_requested_at = Some(Timestamp(5));
    assert_eq!(c.drains(S(1), &all(&n)), [], "it was granted before, and may have been lifted since");
    c.record_health(id(), Incarnation(1), wish(9, "gpu 0: XID 79"));
    assert_eq!(c.drains(S(1), &all(&n)), [asked(9)], "another request");
    c.record_health(id(), Incarnation(1), wish(10, ""));
    assert_eq!(c.drains(S(1), &all(&n)), []);
    c.record_health(id(), Incarnation(1), wish(9, "gpu 0: XID 79"));
    n[0].incarnation = Incarnation(2);
    assert_eq!(c.drains(S(1), &all(&n)), [], "an older incarnation reported it");
}

#[test]
fn a_new_leader_changes_no_state_of_a_node_that_it_never_heard() {
    let mut c = clocks();
    let n = [node("n1", NodeState::Down), node("n2", NodeState::Ready)];
    assert_eq!(states(&mut c, 0, &n), []);
    assert_eq!(states(&mut c, 29, &n), []);
}

#[test]
fn a_silent_draining_node_is_degraded_and_a_disabled_or_booting_one_is_not_expected_to_report() {
    let mut c = clocks();
    let mut n =
        [node("n1", NodeState::Draining), node("n2", NodeState::Drained), node("n3", NodeState::Booting), node("n4", NodeState::Down)];
    let hold = |kind| Hold {
        kind,
        by: "root".into(),
        reason: "x".into(),
        more_reasons: Vec::new(),
        since: Timestamp(0),
        until: None,
        deadline: None,
    };
    n[3].holds = vec![hold(HoldKind::Disable)];
    assert_eq!(states(&mut c, 0, &n), []);
    for silent in ["n3", "n4"] {
        c.record_heartbeat(silent.parse().unwrap(), Incarnation(1), S(31));
    }
    let degraded = |name: &str| (name.to_owned(), NodeState::Degraded);
    assert_eq!(states(&mut c, 31, &n), [degraded("n1"), degraded("n2")]);
    // It sent heartbeats all the time, so it is Ready as soon as the hold is lifted.
    n[3].holds.clear();
    assert_eq!(states(&mut c, 32, &n[3..]), [("n4".to_owned(), NodeState::Ready)]);
}

#[test]
fn a_heartbeat_of_an_older_incarnation_does_not_count() {
    let mut c = clocks();
    let mut n = [node("n1", NodeState::Down)];
    n[0].incarnation = Incarnation(2);
    assert_eq!(states(&mut c, 0, &n), []);
    c.record_heartbeat("n1".parse().unwrap(), Incarnation(1), S(5));
    assert_eq!(states(&mut c, 6, &n), []);
}

#[test]
fn when_many_fall_silent_together_none_goes_down() {
    let many: Vec<Node> = (0..10).map(|i| node(&format!("n{i}"), NodeState::Degraded)).collect();
    let mut c = clocks();
    assert_eq!(states(&mut c, 0, &many), []);
    for n in &many[3..] {
        c.record_heartbeat(n.id.clone(), Incarnation(1), S(91));
    }
    // Three of ten: held back.
    let back: Vec<_> = states(&mut c, 91, &many);
    assert!(back.iter().all(|(_, s)| *s == NodeState::Ready) && back.len() == 7, "{back:?}");
    assert!(c.held_back > 0);
    // Two of ten: Down.
    c.record_heartbeat(many[2].id.clone(), Incarnation(1), S(92));
    let down: Vec<_> = states(&mut c, 92, &many).into_iter().filter(|(_, s)| *s == NodeState::Down).collect();
    assert_eq!(down.len(), 2);
    assert!(c.held_back == 0);
}

/// What happens between two evaluations.
type Happening = (u64, usize, u8, bool);

/// A cluster whose clocks are evaluated twice: with all nodes, and only with those that may have
/// changed.
struct Twins {
    whole: Clocks,
    changed: Clocks,
    nodes: Vec<Node>,
    incarnations: [u64; 8],
    revision: u64,
    now: u64,
}

impl Twins {
    fn both(&mut self, each: impl Fn(&mut Clocks)) {
        [&mut self.whole, &mut self.changed].into_iter().for_each(each);
    }

    fn happen(&mut self, (pause, who, what, _): Happening) {
        self.now += pause;
        self.revision += 1;
        let id: NodeId = format!("n{who}").parse().unwrap();
        let there = self.nodes.iter().position(|node| node.id == id);
        let (at, revision, incarnation) = (S(self.now), Revision(self.revision), Incarnation(self.incarnations[who]));
        let wish = DrainRequest { asked: Timestamp(self.now), why: "x".into() };
        let health = match what {
            4 => NodeHealth::Well,
            5 => NodeHealth::Unwell { why: "disk: full".into(), drain: Some(wish) },
            _ => NodeHealth::Failed { why: "gpu: gone".into() },
        };
        match (what, there) {
            (0..=3, _) => self.both(|c| c.record_heartbeat(id.clone(), incarnation, at)),
            (4..=6, _) => self.both(|c| c.record_health(id.clone(), incarnation, health.clone())),
            (7, _) => self.both(|c| c.witnessed(&id, format!("n{}", (who + 1) % 8).parse().unwrap(), at)),
            // The node is removed; later it registers again.
            (8, Some(place)) => drop(self.nodes.remove(place)),
            (8, None) => {
                self.incarnations[who] += 1;
                let incarnation = Incarnation(self.incarnations[who]);
                self.nodes.push(Node { revision, incarnation, ..node(id.as_str(), NodeState::Ready) });
            }
            (9, Some(place)) => {
                self.incarnations[who] += 1;
                let incarnation = Incarnation(self.incarnations[who]);
                self.nodes[place] = Node { revision, incarnation, state: NodeState::Ready, ..self.nodes[place].clone() };
            }
            (_, Some(place)) => {
                let state = [NodeState::Booting, NodeState::Drained, NodeState::Down, NodeState::Degraded][who % 4];
                self.nodes[place] = Node { revision, state, ..self.nodes[place].clone() };
            }
            (_, None) => {}
        }
        self.nodes.sort_by(|a, b| a.id.cmp(&b.id));
    }

    fn evaluate(&mut self, commits: bool) {
        let (now, revision) = (S(self.now), Revision(self.revision));
        let wanted = self.whole.state_changes(now, &all(&self.nodes));
        let (whole, changed) = (&mut self.whole, &mut self.changed);
        let found = changed.state_changes(now, &All { nodes: &self.nodes, used: NodeUse::Own, revision });
        assert_eq!(format!("{found:?}"), format!("{wanted:?}"));
        assert_eq!((changed.held_back, changed.asked(), &changed.cut_off), (whole.held_back, whole.asked(), &whole.cut_off));
        assert_eq!((changed.known, changed.counted), (whole.known, whole.counted));
        let holds = |c: &Clocks| (c.failures(now, &all(&self.nodes)), c.drains(now, &all(&self.nodes)));
        assert_eq!(holds(changed), holds(whole));
        // Members evaluate again within this time, so later due times may differ.
        let soon = |c: &Clocks| c.due().filter(|due| *due <= now + LOOK_AHEAD_MAX);
        assert_eq!(soon(changed), soon(whole));
        self.revision += 1;
        for state_change in wanted.into_iter().filter(|_| commits) {
            let known = self.nodes.iter_mut().find(|node| node.id == state_change.node).unwrap();
            (known.state, known.state_reason, known.revision) = (state_change.state, state_change.reason, Revision(self.revision));
        }
    }
}

proptest::proptest! {
    /// Both evaluations propose the same, whether the proposals are committed or not and whichever
    /// nodes are removed.
    #[test]
    fn nodes_that_are_not_examined_have_not_changed(
        history in proptest::collection::vec((0u64..25, 0usize..8, 0u8..12, proptest::bool::weighted(0.7)), 1..100),
    ) {
        let states = (0..8).map(|i| node(&format!("n{i}"), if i == 0 { NodeState::Down } else { NodeState::Ready }));
        let nodes = states.collect();
        let mut twins = Twins { whole: clocks(), changed: clocks(), nodes, incarnations: [1; 8], revision: 1, now: 0 };
        for happening in history {
            twins.happen(happening);
            twins.evaluate(happening.3);
        }
    }
}
