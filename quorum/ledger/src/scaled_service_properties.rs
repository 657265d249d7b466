//! Property tests of scaled services: random claims, ends, losses of nodes, users and steps of the loop.
//! After each command the service has as many replicas as it should, each on a node of its own.

use super::properties::invariants::invariant_replicas_are_as_wanted;
use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{SIZE, Story, id, node, registration, spec, user};
use super::{Action, AllocationChange, Ledger, ListFilter, Outcome, Refusal, ScalingChange, ScalingStep, WantedLanes};
use lattice_model::claim::ClaimShare;
use lattice_model::scaling::Step;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Amount, Claim, Drain, EndReason, Epoch, ReportItem, RequeuePolicy,
    Resources, ScaleMetric, ScalePolicy, Scaling,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const NODES: u8 = 3;
/// The metric of the service.
const METRIC: ScaleMetric = ScaleMetric::CpuUtilization;
const HALF: Resources = Resources { cores: 4, memory_bytes: 32, gpus: 1 };

#[derive(Clone, Copy, Debug)]
enum Move {
    /// The scheduler claims half of the node for a replica that waits.
    Claim {
        on: u8,
    },
    /// A replica there ends by itself.
    End {
        on: u8,
        code: i32,
    },
    /// Nothing is left of a replica there.
    Release {
        on: u8,
    },
    /// The node boots: nothing is left there.
    Boot {
        on: u8,
    },
    CancelReplica {
        on: u8,
    },
    Scale {
        replicas: u32,
    },
    /// A user changes its bounds.
    Bounds {
        least: u32,
        most: u32,
    },
    /// The loop finds this value, and requests another number of replicas after some seconds.
    Look {
        value: Option<u64>,
        seconds: u64,
        up: bool,
    },
    Cancel,
    Hold,
    Resume,
    Settle,
    /// Ended waits of requeued replicas.
    EndWaits,
    /// The member reads the state from a snapshot.
    Restart,
}

fn a_move() -> impl Strategy<Value = Move> {
    let on = 0..NODES;
    prop_oneof![
        12 => on.clone().prop_map(|on| Move::Claim { on }),
        4 => (on.clone(), 0..2i32).prop_map(|(on, code)| Move::End { on, code }),
        6 => on.clone().prop_map(|on| Move::Release { on }),
        1 => (1..NODES).prop_map(|on| Move::Boot { on }),
        1 => on.prop_map(|on| Move::CancelReplica { on }),
        4 => (0..6u32).prop_map(|replicas| Move::Scale { replicas }),
        2 => (1..4u32, 1..6u32).prop_map(|(least, most)| Move::Bounds { least, most }),
        6 => (prop::option::weighted(0.9, 0..2_000_000u64), 0..400u64, any::<bool>())
            .prop_map(|(value, seconds, up)| Move::Look { value, seconds, up }),
        1 => prop::bool::weighted(0.1).prop_map(|ends| if ends { Move::Cancel } else { Move::Settle }),
        1 => Just(Move::Hold),
        2 => Just(Move::Resume),
        2 => Just(Move::EndWaits),
        1 => Just(Move::Restart),
    ]
}

struct World {
    s: Story,
    /// The replicas that each node believes to have.
    there: BTreeMap<u8, Vec<(AllocationId, Epoch)>>,
}

impl World {
    fn new(requeue: RequeuePolicy) -> Self {
        let mut s = Story::new(NODES);
        let policy = ScalePolicy::new(METRIC, Amount(1_000_000));
        let scaling = Scaling { replicas_min: 1, replicas_max: 4, policy: Some(policy), drain: Drain::default() };
        let plain = spec(1, requeue, 2);
        let spec = AllocationSpec { scaling: Some(Box::new(scaling)), walltime: None, share: Some(HALF), ..plain };
        s.done(Action::Submit { id: id(1), spec: Box::new(spec), owner: user(7), claim: None });
        Self { s, there: BTreeMap::new() }
    }

    fn ledger(&self) -> &Ledger {
        &self.s.ledger
    }

    fn replicas(&self) -> Vec<Arc<Allocation>> {
        self.ledger().list(None, &[], 0, None, &ListFilter { lanes: WantedLanes::Of(id(1)), ..ListFilter::default() })
    }

    fn claim(&mut self, on: u8) {
        let Some(replica) = self.replicas().into_iter().find(|replica| replica.waits() && replica.waits_until.is_none()) else { return };
        let hold_revision = self.ledger().node(&node(on)).unwrap().hold_revision;
        let shares = vec![ClaimShare { node: node(on), resources: replica.spec.amount_of(&SIZE), hold_revision }];
        let (requeue_count, lease_token) = (replica.requeue_count, self.s.token);
        let claim = Claim { allocation: replica.id, requeue_count, lease_token, shares, after: None, by: None, walltime: None };
        match self.s.act(Action::Claim(claim)) {
            Ok(Outcome::Claimed { epoch }) => {
                self.s.report(on, ReportItem::Prepared { allocation: replica.id, epoch });
                self.there.entry(on).or_default().push((replica.id, epoch));
            }
            Err(Refusal::Conflict { .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    fn boot(&mut self, on: u8) {
        let known = self.ledger().node(&node(on)).unwrap();
        let (boot, incarnation) = (known.boot.0.as_u128() + 1, known.incarnation.0);
        self.s.done(Action::Register(registration(on, boot, incarnation, true)));
        self.s.forget_reports(on);
        self.there.remove(&on);
    }

    fn first_there(&self, on: u8) -> Option<(AllocationId, Epoch)> {
        self.there.get(&on).and_then(|there| there.first()).copied()
    }

    fn look(&mut self, value: Option<u64>, seconds: u64, up: bool) {
        let (service, lease_token) = (id(1), self.s.token);
        let found = value.map(Amount).ok_or_else(|| "away".to_owned());
        // Refused once it has ended.
        let noted = self.s.act(Action::StepScaling(ScalingStep { service, lease_token, metric: METRIC, step: Step::Note { found } }));
        assert!(matches!(noted, Ok(Outcome::Done) | Err(Refusal::Update { .. })), "{noted:?}");
        self.s.pass(seconds * 1000);
        let wanted = self.ledger().allocation(service).unwrap().scaling.as_ref().unwrap().wanted;
        let replicas = if up { wanted + 1 } else { wanted.saturating_sub(1) };
        let step = Step::Want { replicas, value: Amount(value.unwrap_or_default()) };
        let taken = self.s.act(Action::StepScaling(ScalingStep { service, lease_token, metric: METRIC, step }));
        assert!(matches!(taken, Ok(Outcome::Done) | Err(Refusal::Update { .. } | Refusal::ScalingStep { .. })), "{taken:?}");
    }

    fn scale(&mut self, replicas: u32) {
        let spec = Arc::clone(&self.ledger().allocation(id(1)).unwrap().spec);
        let scaling = spec.scaling.as_ref().unwrap();
        let is_possible = (scaling.replicas_min..=scaling.replicas_max).contains(&replicas);
        match self.s.act(Action::Scale { id: id(1), replicas, by: user(7) }) {
            Ok(Outcome::Done) => assert!(is_possible),
            Err(Refusal::ReplicasOutOfBounds { .. }) => assert!(!is_possible),
            // It has ended.
            Err(Refusal::Update { .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    fn change_bounds(&mut self, least: u32, most: u32) {
        let scaling = ScalingChange { replicas_min: Some(least), replicas_max: Some(most), ..ScalingChange::default() };
        let change = AllocationChange { scaling: Some(scaling), ..AllocationChange::default() };
        match self.s.act(Action::UpdateAllocation { allocation: id(1), by: user(7), change, as_operator: false }) {
            Ok(Outcome::Done) => assert!(least <= most),
            Err(Refusal::Malformed { .. }) => assert!(least > most),
            // It has ended.
            Err(Refusal::Update { .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    fn act(&mut self, a_move: Move) {
        match a_move {
            Move::Claim { on } => self.claim(on),
            Move::End { on, code } => {
                if let Some((allocation, epoch)) = self.first_there(on) {
                    self.s.report(on, ReportItem::Ended { allocation, epoch, reason: EndReason::Exited { code } });
                }
            }
            Move::Release { on } => {
                if let Some((allocation, epoch)) = self.first_there(on) {
                    self.there.entry(on).or_default().remove(0);
                    self.s.report(on, ReportItem::Released { allocation, epoch, usage: None });
                }
            }
            Move::Boot { on } => self.boot(on),
            Move::CancelReplica { on } => {
                if let Some((allocation, _)) = self.first_there(on) {
                    self.s.done(Action::Cancel { id: allocation, by: user(7) });
                }
            }
            Move::Scale { replicas } => self.scale(replicas),
            Move::Bounds { least, most } => self.change_bounds(least, most),
            Move::Look { value, seconds, up } => self.look(value, seconds, up),
            Move::Cancel => self.s.done(Action::Cancel { id: id(1), by: user(7) }),
            // Refused once it has ended.
            Move::Hold => drop(self.s.act(Action::HoldAllocation { allocation: id(1), by: user(7) })),
            Move::Resume => drop(self.s.act(Action::Resume { allocation: id(1), by: user(7) })),
            Move::Settle => self.s.done(Action::SettleDependents),
            Move::EndWaits => {
                self.s.pass(300_000);
                let now = self.s.now();
                self.s.done(Action::EndWaits { now });
            }
            Move::Restart => self.s.ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&self.s.ledger).unwrap()).unwrap(),
        }
    }

    fn check(&self) {
        invariant_replicas_are_as_wanted(self.ledger());
        invariant_indexes_equal_scans(self.ledger());
        assert!(self.ledger().has_right_counts());
        for replica in self.replicas() {
            let order = replica.preemption.as_ref();
            let attempts = &replica.attempts;
            assert!(order.is_none() || replica.state == AllocationState::Running, "{replica:?}");
            assert!(attempts.iter().all(|attempt| attempt.by != "scaling"), "{replica:?} was asked to leave and came back");
        }
    }

    /// Everything goes right from now on: a service that has not ended gets its nodes.
    fn finish(&mut self) {
        drop(self.s.act(Action::Resume { allocation: id(1), by: user(7) }));
        self.change_bounds(1, 4);
        self.scale(3);
        for _ in 0..40 {
            let service = self.ledger().allocation(id(1)).unwrap();
            let state = service.scaling.as_ref().unwrap();
            let is_over = service.state.is_terminal() && (state.waiting, state.running, state.leaving) == (0, 0, 0);
            if is_over || (state.wanted, state.running, state.leaving) == (3, 3, 0) {
                return;
            }
            self.act(Move::Settle);
            self.act(Move::EndWaits);
            for on in 0..NODES {
                self.release_ended(on);
                self.claim(on);
            }
            self.check();
        }
        panic!("{:?} is left", self.ledger().allocation(id(1)));
    }

    /// Ended replicas are soon gone from the node, and replicas that must leave do so.
    fn release_ended(&mut self, on: u8) {
        for (allocation, epoch) in self.there.remove(&on).unwrap_or_default() {
            let known = self.ledger().allocation(allocation).unwrap();
            let is_current = known.epoch == epoch && known.state == AllocationState::Running;
            if is_current && known.preemption.is_none() {
                self.there.entry(on).or_default().push((allocation, epoch));
                continue;
            }
            if is_current {
                self.s.report(on, ReportItem::Ended { allocation, epoch, reason: EndReason::Exited { code: 0 } });
            }
            self.s.report(on, ReportItem::Released { allocation, epoch, usage: None });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_service_has_the_replicas_that_it_should_and_gets_them_in_the_end(
        requeue in prop_oneof![Just(RequeuePolicy::Never), Just(RequeuePolicy::OnNodeFailure), Just(RequeuePolicy::Always)],
        moves in prop::collection::vec(a_move(), 0..80),
    ) {
        let mut w = World::new(requeue);
        w.check();
        for a_move in &moves {
            w.act(*a_move);
            w.check();
        }
        w.finish();
    }
}
