//! Property tests of fencing: random histories of heartbeats, acknowledgements, leaders and
//! restarts, with the real ledger, the leader's real clocks and the agents' real lease computation.
//! Work with `--on-isolation=stop` never runs twice, and work with `continue` is never started
//! elsewhere without evidence.
//!
//! The network (with loss and delays), agents and shims are simulated. Each move states how much
//! time passes.

use super::fencing_scenarios::fencing;
use super::scenarios::{SIZE, id, node, spec, user};
use super::{Action, Command, Ledger, Outcome, SCHEDULER_LEASE};
use crate::clocks::{Clocks, Limits, Patience};
use lattice_model::claim::ClaimShare;
use lattice_model::run_lease::{Heartbeats, first_until_ms};
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, Claim, DesiredList, Epoch, NodeReport, OnIsolation, ReportItem, RequeuePolicy, Revision,
    Timestamp,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const NODES: u8 = 4;
const LEASE_MS: u64 = 3000;
const PATIENCE: Patience = Patience { degraded_after: Duration::from_millis(1000), down_after: Duration::from_millis(1000) };
const LIMITS: Limits = Limits { own: PATIENCE, sensitive: PATIENCE, borrowed: PATIENCE, cut_off_after: Duration::from_millis(2500) };

#[derive(Clone, Copy, Debug)]
enum Move {
    Wait {
        ms: u64,
    },
    Beat {
        node: u8,
    },
    /// A message to the leader arrives, or is lost.
    Up {
        node: u8,
        lost: bool,
    },
    /// A message to the agent arrives, or its session breaks.
    Down {
        node: u8,
        lost: bool,
    },
    /// The leader evaluates its clocks, acknowledges received heartbeats, and proposes commands.
    Tick,
    /// The proposed commands are committed.
    Commit,
    NewLeader,
    /// Another node reports that it reaches the node.
    Witness {
        node: u8,
    },
    /// The agent opens a session if it has none.
    Register {
        node: u8,
    },
    /// The agent is killed and starts again with the state of its shims.
    Restart {
        node: u8,
    },
    /// The scheduler claims nodes for waiting work.
    Claim {
        node: u8,
    },
    /// A second of normal operation for all nodes except these.
    Live {
        cut: u8,
    },
}

fn a_move() -> impl Strategy<Value = Move> {
    let n = 0..NODES;
    prop_oneof![
        4 => prop_oneof![0..300u64, 0..5000u64].prop_map(|ms| Move::Wait { ms }),
        2 => n.clone().prop_map(|node| Move::Beat { node }),
        3 => (n.clone(), prop::bool::weighted(0.2)).prop_map(|(node, lost)| Move::Up { node, lost }),
        4 => (n.clone(), prop::bool::weighted(0.1)).prop_map(|(node, lost)| Move::Down { node, lost }),
        3 => Just(Move::Tick),
        3 => Just(Move::Commit),
        1 => Just(Move::NewLeader),
        2 => n.clone().prop_map(|node| Move::Witness { node }),
        2 => n.clone().prop_map(|node| Move::Register { node }),
        1 => n.clone().prop_map(|node| Move::Restart { node }),
        2 => n.prop_map(|node| Move::Claim { node }),
        6 => any::<u8>().prop_map(|cut| Move::Live { cut }),
    ]
}

enum ToAgent {
    List(DesiredList),
    Ack(u64),
}

/// A shim and its work.
struct Shim {
    leased: bool,
    /// When its lease ends; `None`: no lease was granted yet.
    until: Option<u64>,
    killed: bool,
}

impl Shim {
    fn runs(&self, now: u64) -> bool {
        !self.killed && (!self.leased || self.until.is_some_and(|until| until > now))
    }

    /// Extends the lease as an agent does: only a recent acknowledgement grants a first lease. A lapse
    /// is final.
    fn extend(&mut self, sent: u64, now: u64) {
        self.until = match self.until {
            None => first_until_ms(sent, LEASE_MS, now),
            Some(before) if before > now => Some(before.max(sent + LEASE_MS)),
            Some(lapsed) => Some(lapsed),
        };
    }
}

#[derive(Default)]
struct Agent {
    session: bool,
    /// Number of sessions so far.
    sessions: u64,
    new_life: bool,
    incarnation: u64,
    seq: u64,
    beats: Heartbeats,
    shortest: Option<u64>,
    seen: Revision,
    up: VecDeque<u64>,
    down: VecDeque<ToAgent>,
    shims: BTreeMap<(AllocationId, Epoch), Shim>,
}

struct World {
    ledger: Ledger,
    index: u64,
    now: u64,
    token: u64,
    clocks: Clocks,
    since: u64,
    agents: Vec<Agent>,
    /// Heartbeats that the leader received and has not acknowledged: node, session, number.
    unacknowledged: Vec<(u8, u64, u64)>,
    proposed: Vec<Action>,
}

impl World {
    fn new() -> Self {
        let agents = (0..NODES).map(|_| Agent { new_life: true, ..Agent::default() }).collect();
        let ledger = Ledger::default();
        let (clocks, unacknowledged, proposed) = (Clocks::new(LIMITS), vec![], vec![]);
        let mut w = Self { ledger, index: 0, now: 1, token: 0, clocks, since: 0, agents, unacknowledged, proposed };
        w.apply(Action::SetRunLease { ms: LEASE_MS });
        (0..NODES).for_each(|n| w.register(n));
        let lease = w.apply(Action::GrantLease { name: SCHEDULER_LEASE.into(), holder: node(0), ttl_ms: 1000, user: None });
        let Some(Outcome::Leased { token }) = lease else { panic!("nobody holds it") };
        w.token = token;
        for (number, on_isolation) in [(1, OnIsolation::Stop), (2, OnIsolation::Continue)] {
            let spec = AllocationSpec { on_isolation, ..spec(1, RequeuePolicy::Always, 100) };
            w.apply(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None });
        }
        w
    }

    fn apply(&mut self, action: Action) -> Option<Outcome> {
        self.index += 1;
        let applied = self.ledger.apply(Revision(self.index), &Command { at: Timestamp(self.now), action });
        for changed in &applied.changed.desired {
            let n = (0..NODES).find(|n| node(*n) == *changed).unwrap();
            let list = self.ledger.desired(changed);
            let agent = &mut self.agents[usize::from(n)];
            if agent.session {
                agent.down.push_back(ToAgent::List(list));
            }
        }
        applied.result.ok()
    }

    fn register(&mut self, n: u8) {
        let agent = &self.agents[usize::from(n)];
        if agent.session {
            return;
        }
        let registered = self.apply(Action::Register(fencing(n, 1, agent.incarnation, agent.new_life)));
        let Some(Outcome::Registered { incarnation, .. }) = registered else { panic!("it may register") };
        let list = self.ledger.desired(&node(n));
        let agent = &mut self.agents[usize::from(n)];
        (agent.session, agent.new_life, agent.incarnation, agent.seq) = (true, false, incarnation.0, 0);
        agent.sessions += 1;
        agent.beats.begin(self.now, agent.shortest);
        agent.up.clear();
        agent.down = VecDeque::from([ToAgent::List(list)]);
    }

    fn beat(&mut self, n: u8) {
        let agent = &mut self.agents[usize::from(n)];
        if agent.session {
            agent.seq += 1;
            agent.beats.sent(agent.seq, self.now);
            agent.up.push_back(agent.seq);
        }
    }

    fn up(&mut self, n: u8, lost: bool) {
        let agent = &mut self.agents[usize::from(n)];
        let Some(seq) = agent.up.pop_front() else { return };
        if !lost {
            let incarnation = lattice_model::Incarnation(agent.incarnation);
            self.clocks.record_heartbeat(node(n), incarnation, Duration::from_millis(self.now - self.since));
            self.unacknowledged.push((n, agent.sessions, seq));
        }
    }

    fn down(&mut self, n: u8, lost: bool) {
        let now = self.now;
        let agent = &mut self.agents[usize::from(n)];
        let Some(message) = agent.down.pop_front() else { return };
        if lost {
            agent.session = false;
            return;
        }
        match message {
            ToAgent::Ack(seq) => {
                if agent.beats.acknowledged(seq, now, agent.shortest).is_err() {
                    agent.session = false;
                }
            }
            ToAgent::List(list) if list.revision > agent.seen => {
                agent.seen = list.revision;
                agent.shortest = list.shares.iter().filter_map(|share| share.run_lease_ms).min();
                for share in &list.shares {
                    let fresh = || Shim { leased: share.run_lease_ms.is_some(), until: None, killed: false };
                    agent.shims.entry((share.allocation, share.epoch)).or_insert_with(fresh);
                }
                for ((allocation, epoch), shim) in &mut agent.shims {
                    let wanted = list.shares.iter().any(|s| (s.allocation, s.epoch) == (*allocation, *epoch));
                    shim.killed |= !wanted;
                }
            }
            ToAgent::List(_) => {}
        }
        if let Some(sent) = agent.beats.newest_acknowledged() {
            for shim in agent.shims.values_mut().filter(|s| s.leased) {
                let granted = shim.until.is_none();
                shim.extend(sent, now);
                assert!(!granted || shim.until.is_none_or(|until| until > now + LEASE_MS / 3), "it begins under a lease of before");
            }
        }
        self.release(n);
    }

    /// Reports work that is gone, if there is a session.
    fn release(&mut self, n: u8) {
        if !self.agents[usize::from(n)].session {
            return;
        }
        let gone: Vec<_> = self.agents[usize::from(n)].shims.iter().filter(|(_, s)| s.killed).map(|(key, _)| *key).collect();
        for (allocation, epoch) in gone {
            self.agents[usize::from(n)].shims.remove(&(allocation, epoch));
            let known = self.ledger.node(&node(n)).unwrap();
            let (incarnation, seq) = (known.incarnation, known.report_seq + 1);
            self.apply(Action::Report(NodeReport {
                node: node(n),
                incarnation,
                seq,
                item: ReportItem::Released { allocation, epoch, usage: None },
            }));
        }
    }

    fn tick(&mut self) {
        for (n, session, seq) in std::mem::take(&mut self.unacknowledged) {
            let agent = &mut self.agents[usize::from(n)];
            if agent.session && agent.sessions == session {
                agent.down.push_back(ToAgent::Ack(seq));
            }
        }
        let now = Duration::from_millis(self.now - self.since);
        let state_changes = self.clocks.state_changes(now, &self.ledger);
        if !state_changes.is_empty() {
            self.proposed.push(Action::NodeStates(state_changes));
        }
        self.proposed.extend(self.clocks.fences(now, &self.ledger));
        let now = Timestamp(self.now);
        self.proposed.extend(self.ledger.waits_are_due(now).then_some(Action::EndWaits { now }));
    }

    fn commit(&mut self) {
        for action in std::mem::take(&mut self.proposed) {
            self.apply(action);
        }
    }

    fn claim(&mut self, n: u8) {
        for number in [1, 2] {
            let allocation = self.ledger.allocation(id(number)).unwrap();
            if allocation.state != AllocationState::Pending {
                continue;
            }
            let hold_revision = self.ledger.node(&node(n)).unwrap().hold_revision;
            let shares = vec![ClaimShare { node: node(n), resources: SIZE, hold_revision }];
            let requeue_count = allocation.requeue_count;
            self.apply(Action::Claim(Claim {
                allocation: id(number),
                requeue_count,
                lease_token: self.token,
                shares,
                after: None,
                by: None,
                walltime: None,
            }));
        }
    }

    fn act(&mut self, a_move: Move) {
        match a_move {
            Move::Wait { ms } => self.now += ms,
            Move::Beat { node } => self.beat(node),
            Move::Up { node, lost } => self.up(node, lost),
            Move::Down { node, lost } => self.down(node, lost),
            Move::Tick => self.tick(),
            Move::Commit => self.commit(),
            Move::NewLeader => {
                // Proposals of the previous leader may still be committed, but it acknowledges no
                // more heartbeats.
                (self.clocks, self.since) = (Clocks::new(LIMITS), self.now);
                self.unacknowledged.clear();
            }
            Move::Witness { node: n } => {
                let now = Duration::from_millis(self.now - self.since);
                self.clocks.witnessed(&node(n), node((n + 1) % NODES), now);
            }
            Move::Register { node } => self.register(node),
            Move::Restart { node } => {
                let agent = &mut self.agents[usize::from(node)];
                (agent.session, agent.new_life, agent.beats) = (false, true, Heartbeats::default());
                agent.down.clear();
            }
            Move::Claim { node } => self.claim(node),
            Move::Live { cut } => {
                self.now += 200;
                for n in (0..NODES).filter(|n| cut & (1 << n) == 0) {
                    self.register(n);
                    self.beat(n);
                    while !self.agents[usize::from(n)].up.is_empty() {
                        self.up(n, false);
                    }
                }
                self.tick();
                self.commit();
                for n in (0..NODES).filter(|n| cut & (1 << n) == 0) {
                    while !self.agents[usize::from(n)].down.is_empty() {
                        self.down(n, false);
                    }
                    self.claim(n);
                }
            }
        }
    }

    /// How many attempts of an allocation are running now.
    fn running(&self, of: AllocationId) -> usize {
        let shims = self.agents.iter().flat_map(|agent| &agent.shims);
        shims.filter(|((allocation, _), shim)| *allocation == of && shim.runs(self.now)).count()
    }
}

/// Plays the moves and returns how often the work with `stop` was requeued.
fn play(moves: &[Move]) -> u32 {
    let mut w = World::new();
    for (at, a_move) in moves.iter().enumerate() {
        let had_nodes = w.ledger.allocation(id(1)).unwrap().state != AllocationState::Pending;
        w.act(*a_move);
        let now = w.ledger.allocation(id(1)).unwrap();
        assert!(w.running(id(1)) <= 1, "move {at}, {a_move:?}: it runs twice");
        if had_nodes && now.state == AllocationState::Pending {
            assert_eq!(w.running(id(1)), 0, "move {at}, {a_move:?}: it was requeued while its lease lasted");
        }
        let goes_on = w.ledger.allocation(id(2)).unwrap();
        assert_eq!(goes_on.requeue_count, 0, "move {at}, {a_move:?}: nobody said that it is gone: {goes_on:?}");
    }
    w.ledger.allocation(id(1)).unwrap().requeue_count
}

/// Checks that the histories are not trivial: a node that is cut off for long enough loses work with
/// `stop`, which then runs elsewhere.
#[test]
fn a_node_that_is_cut_off_loses_what_stops() {
    let settled = std::iter::repeat_n(Move::Live { cut: 0 }, 3);
    let cut = std::iter::repeat_n(Move::Live { cut: 0b0001 }, 30);
    let moves: Vec<Move> = settled.chain(cut).chain([Move::Live { cut: 0 }; 10]).collect();
    assert_eq!(play(&moves), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn work_that_stops_never_runs_twice_and_work_that_continues_stays(moves in prop::collection::vec(a_move(), 0..120)) {
        play(&moves);
    }
}
