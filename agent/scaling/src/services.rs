//! The scaled services of the queues whose leases this agent holds, with the replicas that serve.

use lattice_membership::cluster::Cluster;
use lattice_model::scaling::{Look, MISSING_ALERT};
use lattice_model::{Allocation, AllocationId, AllocationState, PreemptCause, ScalePolicy, Scaling, ScalingState, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A replica that has run for less than this is not asked: it has no rate yet.
const YOUNG: Duration = Duration::from_secs(5);
/// The interval is not shorter than this for each replica: a look asks all of them.
const INTERVAL_OF_REPLICA: Duration = Duration::from_millis(10);

/// A scaled service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its record.
    pub record: Arc<Allocation>,
    /// The records of its replicas that run and were not asked to leave, by their numbers.
    pub replicas: Vec<Arc<Allocation>>,
}

/// How many services are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Services that scale by themselves, without a value of the metric for some looks in a row.
    pub missing: u64,
    /// Other such services, whose number of replicas goes up and down all the time.
    pub oscillating: u64,
    /// All other services that scale by themselves.
    pub ok: u64,
    /// Services that may have nodes, and have fewer replicas with nodes than their minimum.
    pub below_min: u64,
}

impl Service {
    /// The policy by which it scales, if it scales by itself.
    pub fn policy(&self) -> Option<&ScalePolicy> {
        policy(&self.record)
    }

    /// How often its metric is looked at. `None`: it is not, because it does not scale by itself or
    /// nothing of it has run yet.
    pub fn interval(&self) -> Option<Duration> {
        let policy = self.policy().filter(|_| self.record.started_at.is_some())?;
        let replicas = u32::try_from(self.replicas.len()).unwrap_or(u32::MAX);
        Some(Duration::from_millis(policy.interval_ms).max(INTERVAL_OF_REPLICA.saturating_mul(replicas)))
    }

    /// The service without the replicas that have just begun, and whether there were any.
    pub fn without_young(mut self, now: Timestamp) -> (Self, bool) {
        let all = self.replicas.len();
        self.replicas.retain(|replica| replica.started_at.is_some_and(|at| Duration::from_millis(now.since_ms(at)) >= YOUNG));
        let has_young = self.replicas.len() < all;
        (self, has_young)
    }

    /// Adds the service to the counts.
    fn count(&self, states: &mut States) {
        let Some((scaling, state)) = scaling(&self.record) else { return };
        let waits = self.record.held || self.record.dependencies.as_ref().is_some_and(|all| !all.are_met());
        states.below_min += u64::from(!waits && state.running < scaling.replicas_min);
        if scaling.policy.is_none() {
            return;
        }
        let is_missing = state.reading.as_ref().is_some_and(|reading| reading.look == Look::Missing && reading.missing >= MISSING_ALERT);
        *if is_missing {
            &mut states.missing
        } else if state.oscillates() {
            &mut states.oscillating
        } else {
            &mut states.ok
        } += 1;
    }
}

/// The user's settings of how a service scales, and the ledger's state of that; `None`: it is no
/// scaled service.
pub fn scaling(record: &Allocation) -> Option<(&Scaling, &ScalingState)> {
    Some((record.spec.scaling.as_deref()?, record.scaling.as_deref()?))
}

fn policy(record: &Allocation) -> Option<&ScalePolicy> {
    record.spec.scaling.as_deref()?.policy.as_ref()
}

/// Whether it is a replica that serves: it runs, and was not asked to leave.
fn serves(replica: &Allocation) -> bool {
    let leaves = replica.preemption.as_ref().is_some_and(|order| order.cause == PreemptCause::ScaleDown);
    replica.state == AllocationState::Running && !leaves
}

/// The services of these queues that have not ended, by id.
pub fn services_of(cluster: &Cluster, is_ours: impl Fn(&str) -> bool) -> BTreeMap<AllocationId, Service> {
    let is_of_ours =
        |record: &&Arc<Allocation>| record.is_scaled_service() && !record.state.is_terminal() && is_ours(cluster.queue_of(record));
    let service = |record: &Arc<Allocation>| (record.id, Service { record: Arc::clone(record), replicas: Vec::new() });
    let mut services: BTreeMap<AllocationId, Service> = cluster.allocations.shared().filter(is_of_ours).map(service).collect();
    if services.is_empty() {
        return services;
    }
    for record in cluster.allocations.shared() {
        let Some(replica) = &record.replica else { continue };
        if let Some(service) = services.get_mut(&replica.service).filter(|_| serves(record)) {
            service.replicas.push(Arc::clone(record));
        }
    }
    for service in services.values_mut() {
        service.replicas.sort_by_key(|record| record.replica.as_ref().map(|replica| replica.number));
    }
    services
}

/// How many of these are in which state.
pub fn states_of(services: &BTreeMap<AllocationId, Service>) -> States {
    let mut states = States::default();
    services.values().for_each(|service| service.count(&mut states));
    states
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use lattice_model::scaling::{ALTERNATIONS_ALERT, Reading};
    use lattice_model::test_builders::{self, spec_of};
    use lattice_model::{Amount, CheckpointId, Drain, Preemption, ReplicaOf, Resources, ScaleMetric, Share, SharePhase};

    pub fn id(n: u64) -> AllocationId {
        format!("00000000-0000-4000-8000-{n:012x}").parse().unwrap()
    }

    /// A service that has run, with two to six replicas.
    pub fn service(n: u64, metric: &str) -> Allocation {
        let mut record = test_builders::allocation(id(n));
        let metric: ScaleMetric = metric.parse().unwrap();
        let policy = Some(ScalePolicy::new(metric, Amount(800_000)));
        spec_of(&mut record).scaling = Some(Box::new(Scaling { replicas_min: 2, replicas_max: 6, policy, drain: Drain::default() }));
        record.scaling = Some(Box::new(ScalingState { wanted: 2, running: 2, ..ScalingState::default() }));
        record.started_at = Some(Timestamp(1000));
        record
    }

    /// A replica that runs on the node with its number, with two cores.
    pub fn replica(n: u64, of: &Allocation, number: u32) -> Allocation {
        let mut record = test_builders::allocation(id(n));
        record.spec = Arc::clone(&of.spec);
        record.replica = Some(Box::new(ReplicaOf { service: of.id, number }));
        record.state = AllocationState::Running;
        let resources = Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 };
        record.shares = [Share { node: format!("n{number}").parse().unwrap(), resources, phase: SharePhase::Prepared }].into();
        record
    }

    pub fn cluster(records: Vec<Allocation>) -> Cluster {
        Cluster { allocations: records.into_iter().map(|record| (record.id, record)).collect(), fresh: true, ..Cluster::default() }
    }

    fn order(cause: PreemptCause) -> Option<Box<Preemption>> {
        let (id, by, reason) = (CheckpointId(id(1).0), "scaling".to_owned(), String::new());
        Some(Box::new(Preemption { id, by, reason, cause, deadline_ms: 1000, hold: false, failed: None }))
    }

    #[test]
    fn replicas_that_run_and_were_not_asked_to_leave_are_looked_at() {
        let (one, other) = (service(1, "cpu_utilization"), service(2, "queue_depth"));
        let waits = Allocation { state: AllocationState::Pending, ..replica(12, &one, 2) };
        let leaves = Allocation { preemption: order(PreemptCause::ScaleDown), ..replica(13, &one, 3) };
        let drained = Allocation { preemption: order(PreemptCause::Drain), ..replica(14, &one, 4) };
        let ended = Allocation { state: AllocationState::Completed, ..service(3, "up") };
        let all = vec![replica(19, &one, 0), replica(11, &one, 1), waits, leaves, drained, replica(20, &other, 5), ended, one, other];
        let services = services_of(&cluster(all.clone()), |queue| queue == "default");
        let replicas: Vec<(AllocationId, Vec<AllocationId>)> =
            services.iter().map(|(id, service)| (*id, service.replicas.iter().map(|record| record.id).collect())).collect();
        assert_eq!(replicas, [(id(1), [19, 11, 14].map(id).to_vec()), (id(2), vec![id(20)])]);
        assert!(services_of(&cluster(all), |_| false).is_empty(), "other agents look at them");
    }

    #[test]
    fn a_service_is_looked_at_from_its_first_replica_on_if_it_scales_by_itself() {
        let interval = |record: Allocation| Service { record: Arc::new(record), replicas: Vec::new() }.interval();
        assert_eq!(interval(service(1, "up")), Some(Duration::from_secs(60)));
        assert_eq!(interval(Allocation { started_at: None, ..service(1, "up") }), None);
        let mut large = service(1, "up");
        spec_of(&mut large).scaling.as_mut().unwrap().policy.as_mut().unwrap().interval_ms = 1000;
        let replicas = (0..150).map(|number| Arc::new(replica(11, &large, number))).collect();
        let large = Service { record: Arc::new(large), replicas };
        assert_eq!(large.interval(), Some(Duration::from_millis(1500)), "a look asks all replicas");
        let mut by_hand = service(1, "up");
        spec_of(&mut by_hand).scaling.as_mut().unwrap().policy = None;
        assert_eq!(interval(by_hand), None);
    }

    #[test]
    fn a_replica_that_has_just_begun_is_not_asked() {
        let record = service(1, "up");
        let began = |n, at| Arc::new(Allocation { started_at: at, ..replica(n, &record, 0) });
        let replicas = vec![began(11, Some(Timestamp(1000))), began(12, Some(Timestamp(1001))), began(13, None)];
        let service = Service { record: Arc::new(record.clone()), replicas };
        let at = |now| {
            let (service, has_young) = service.clone().without_young(Timestamp(now));
            (service.replicas.iter().map(|replica| replica.id).collect::<Vec<_>>(), has_young)
        };
        assert_eq!(at(6_000), (vec![id(11)], true));
        let (without, _) = service.clone().without_young(Timestamp(6_001));
        assert!(!without.without_young(Timestamp(6_001)).1);
    }

    #[test]
    fn services_are_counted_by_their_worst_state() {
        let of = |change: &dyn Fn(&mut Allocation, &mut ScalingState)| {
            let mut record = service(1, "up");
            let mut state = ScalingState::clone(record.scaling.as_deref().unwrap());
            change(&mut record, &mut state);
            record.scaling = Some(Box::new(state));
            states_of(&services_of(&cluster(vec![record]), |_| true))
        };
        let none = States::default();
        let reading = |missing| Reading { look: Look::Missing, since: Timestamp(1), value: None, why: "away".into(), missing };
        assert_eq!(of(&|_, _| ()), States { ok: 1, ..none });
        assert_eq!(of(&|_, state| state.reading = Some(reading(MISSING_ALERT - 1))), States { ok: 1, ..none });
        assert_eq!(of(&|_, state| state.reading = Some(reading(MISSING_ALERT))), States { missing: 1, ..none });
        assert_eq!(of(&|_, state| state.alternations = ALTERNATIONS_ALERT), States { oscillating: 1, ..none });
        assert_eq!(of(&|_, state| state.running = 1), States { ok: 1, below_min: 1, ..none });
        let held = |record: &mut Allocation, state: &mut ScalingState| (record.held, state.running) = (true, 0);
        assert_eq!(of(&held), States { ok: 1, ..none });
        let by_hand = |record: &mut Allocation, state: &mut ScalingState| {
            spec_of(record).scaling.as_mut().unwrap().policy = None;
            state.running = 0;
        };
        assert_eq!(of(&by_hand), States { below_min: 1, ..none });
    }
}
