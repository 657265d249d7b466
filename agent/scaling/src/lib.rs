//! The role that scales services: the agent with the scheduler's lease of a queue looks at the metrics
//! of the scaled services in it, and asks the ledger for one replica more or less.
//!
//! ```text
//!   cluster view, leases ──[services]──▶ whose metric is looked at ──[due]──▶ a look ──[metric]──▶ agents of the replicas
//!                                                                               │                  or the metrics store
//!                            the ledger checks and takes the step ◀──[next]─────╯
//! ```
//!
//! What is due is decided in `due` and `services`, and what follows from a look in
//! [`lattice_model::scaling::next`]: these are pure. All state of the loop is in the ledger, so the next
//! holder of a lease goes on where this one was. Its first look begins the windows anew, as one after
//! any longer pause does ([`lattice_model::scaling::resume`]). While a replica has just begun, none is
//! added. A step that the ledger refuses is not asked for again: the next look decides anew. Replicas
//! run, and users scale by hand, without this role.
//!
//! | task | ends | queues |
//! |---|---|---|
//! | [`run`], one for each look | at `stop` | looks at once 16, each with a timeout; 64 questions at once in all |

#![forbid(unsafe_code)]

mod counts;
mod due;
mod metric;
mod services;

pub use counts::ScalingCounts;
pub use metric::{Metrics, NoValue, Place, QUESTIONS_AT_ONCE_MAX, Source};
pub use services::Service;

use counts::LookResult;
use due::Looks;
use lattice_ledger::{Action, ScalingStep};
use lattice_membership::quorum_clock::QuorumClock;
use lattice_model::scaling::{MISSING_ALERT, Reading, Step, next, resume};
use lattice_model::{AllocationId, Revision, Scaling, ScalingState, Timestamp};
use lattice_placing::{Placing, own_token};
use lattice_quorum_client::wire::Request;
use lattice_quorum_client::{CallError, QuorumClient};
use services::{scaling, services_of, states_of};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often it is looked up which services are due. The shortest interval of a service is twice this.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);
/// How long a look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request to the ledger may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(3);

/// Scales services until `stop`, while this agent holds leases of queues.
pub async fn run(source: impl Source, quorum: QuorumClient, placing: Placing, counts: ScalingCounts, stop: CancellationToken) {
    let (source, questions) = (Arc::new(source), Arc::new(Semaphore::new(QUESTIONS_AT_ONCE_MAX)));
    let mut role = Role {
        looker: Looker { source, questions, quorum, clock: Arc::default(), placing, counts },
        looks: Looks::default(),
        services: BTreeMap::new(),
        walked: None,
        tasks: JoinSet::new(),
        service_of: BTreeMap::new(),
    };
    let mut rounds = tokio::time::interval(ROUND_INTERVAL);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = rounds.tick() => role.round(),
            Some(ended) = role.tasks.join_next_with_id() => role.end(ended),
        }
    }
}

struct Role<S> {
    looker: Looker<S>,
    looks: Looks,
    /// The services of the queues of this agent, as of `walked`.
    services: BTreeMap<AllocationId, Service>,
    /// The revision of the view in which the services were looked up, and the queues.
    walked: Option<(Revision, Vec<String>)>,
    tasks: JoinSet<Option<LookResult>>,
    /// The service at which each task looks.
    service_of: BTreeMap<task::Id, AllocationId>,
}

impl<S: Source> Role<S> {
    /// Begins the looks that are due.
    fn round(&mut self) {
        let now = Instant::now();
        let Looker { placing, counts, .. } = &self.looker;
        let (cluster, leases) = (Arc::clone(&placing.cluster.borrow()), placing.leases.borrow().clone());
        let ours: Vec<String> = leases.keys().filter(|queue| own_token(&leases, queue, now).is_some()).cloned().collect();
        if ours.is_empty() {
            counts.set_states(None);
            self.looks.follow(BTreeMap::new(), now, random_part);
            (self.services, self.walked) = (BTreeMap::new(), None);
            return;
        }
        // An outdated view may show replicas that are gone.
        if !cluster.fresh {
            return;
        }
        let walk = (cluster.revision, ours);
        if self.walked.as_ref() != Some(&walk) {
            self.services = services_of(&cluster, |queue| walk.1.iter().any(|ours| ours == queue));
            counts.set_states(Some(states_of(&self.services)));
            let intervals = self.services.iter().filter_map(|(id, service)| Some((*id, service.interval()?))).collect();
            self.looks.follow(intervals, now, random_part);
            self.walked = Some(walk);
        }
        for id in self.looks.begin(now) {
            let Some(service) = self.services.get(&id).cloned() else {
                self.looks.end(id, now, false);
                continue;
            };
            let is_after_gap = self.looks.is_after_gap(id, now);
            let task = self.tasks.spawn(self.looker.clone().look(service, is_after_gap));
            self.service_of.insert(task.id(), id);
        }
    }

    /// A look has ended.
    fn end(&mut self, ended: Result<(task::Id, Option<LookResult>), JoinError>) {
        let (task, result) = match ended {
            Ok((task, result)) => {
                if let Some(result) = result {
                    self.looker.counts.record_look(result);
                }
                (task, result)
            }
            Err(error) => {
                tracing::error!(%error, "the task that reads a service's metric failed");
                (error.id(), None)
            }
        };
        if let Some(id) = self.service_of.remove(&task) {
            self.looks.end(id, Instant::now(), result.is_some_and(LookResult::is_known));
        }
    }
}

/// A random part of a time, so that not all services are looked at in the same moment.
fn random_part(time: Duration) -> Duration {
    time.mul_f64(rand::random_range(0.0..1.0))
}

/// The handles of a look.
struct Looker<S> {
    source: Arc<S>,
    /// For what is asked by all looks together.
    questions: Arc<Semaphore>,
    quorum: QuorumClient,
    /// The time by which it decides: the ledger's own times are the quorum's.
    clock: Arc<QuorumClock>,
    placing: Placing,
    counts: ScalingCounts,
}

impl<S> Clone for Looker<S> {
    fn clone(&self) -> Self {
        let Self { source, questions, quorum, clock, placing, counts } = self;
        let (source, questions, clock) = (Arc::clone(source), Arc::clone(questions), Arc::clone(clock));
        Self { source, questions, quorum: quorum.clone(), clock, placing: placing.clone(), counts: counts.clone() }
    }
}

impl<S: Source> Looker<S> {
    /// Looks at the metric of a service, and asks the ledger for what follows. `None`: all its replicas
    /// have just begun, and are not asked yet.
    async fn look(self, service: Service, is_after_gap: bool) -> Option<LookResult> {
        let (service, has_young) = service.without_young(self.clock.now(&self.quorum).await);
        if has_young && service.replicas.is_empty() {
            return None;
        }
        Some(self.look_at(service, has_young, is_after_gap).await)
    }

    async fn look_at(self, service: Service, has_young: bool, is_after_gap: bool) -> LookResult {
        let (id, Some(policy), Some(interval)) = (service.record.id, service.policy(), service.interval()) else {
            return LookResult::Dropped;
        };
        let found = metric::look(&*self.source, &policy.metric, &service, interval, (&self.questions, LOOK_TIMEOUT)).await;
        if found.is_err() {
            self.counts.record_failure();
        }
        let now = self.clock.now(&self.quorum).await;
        // As the watch and the leases are now: the look may have taken long.
        let Some((known, lease_token)) = self.known(id) else { return LookResult::Dropped };
        // The value is none of the metric that it has now.
        if known.scaling.policy.as_ref().is_none_or(|now| now.metric != policy.metric) {
            return LookResult::Dropped;
        }
        let decide = if is_after_gap { resume } else { next };
        let Ok(step) = decide(&known.scaling, &known.state, found, now) else { return LookResult::Unchanged };
        if has_young && known.is_up(&step) {
            return LookResult::Unchanged;
        }
        let order = ScalingStep { service: id, lease_token, metric: policy.metric.clone(), step: step.clone() };
        match self.quorum.call(&Request::from(Action::StepScaling(order)), STEP_TIMEOUT).await {
            Ok(_) => known.taken(id, &step, now),
            Err(CallError::Refused(refusal)) => {
                tracing::info!(allocation = %id, %refusal, ?step, "a step of its scaling was refused: the next look decides again");
                LookResult::Refused
            }
            Err(error @ CallError::Unavailable { .. }) => {
                tracing::debug!(allocation = %id, %error, ?step, "a step of its scaling was not answered");
                LookResult::Unanswered
            }
        }
    }

    /// What the watch shows of a service, and the token of its queue's lease. `None`: it has ended, or
    /// another agent has the lease.
    fn known(&self, id: AllocationId) -> Option<(Known, u64)> {
        let cluster = Arc::clone(&self.placing.cluster.borrow());
        let record = cluster.allocations.get(&id).filter(|record| !record.state.is_terminal())?;
        let token = own_token(&self.placing.leases.borrow(), cluster.queue_of(record), Instant::now())?;
        let (scaling, state) = scaling(record)?;
        Some((Known { scaling: scaling.clone(), state: state.clone() }, token))
    }
}

/// What the ledger knew of a service before a step.
struct Known {
    scaling: Scaling,
    state: ScalingState,
}

impl Known {
    /// Whether a step adds a replica.
    fn is_up(&self, step: &Step) -> bool {
        match step {
            Step::Want { replicas, .. } => *replicas > self.state.wanted,
            Step::Note { .. } | Step::Restart { .. } => false,
        }
    }

    /// Logs a step that the ledger took.
    fn taken(&self, service: AllocationId, step: &Step, now: Timestamp) -> LookResult {
        match step {
            Step::Note { found } | Step::Restart { found } => {
                match self.notice(found.as_ref().err(), now) {
                    Some(Notice::Begins(why)) => tracing::info!(allocation = %service, why, "the metric by which it scales has no value"),
                    Some(Notice::Lasts(why)) => tracing::warn!(
                        allocation = %service, why,
                        "the metric by which it scales has had no value {MISSING_ALERT} times in a row: it stays as large as it is"
                    ),
                    Some(Notice::Ends) => tracing::info!(allocation = %service, "the metric by which it scales has a value again"),
                    None => {}
                }
                LookResult::Noted
            }
            Step::Want { replicas, value } => {
                let from = self.state.wanted;
                tracing::info!(allocation = %service, from, to = replicas, %value, "it scales");
                if self.is_up(step) { LookResult::Up } else { LookResult::Down }
            }
        }
    }

    /// What the log says of a look whose result was noted. `missing`: why it found no value.
    fn notice<'a>(&self, missing: Option<&'a String>, now: Timestamp) -> Option<Notice<'a>> {
        let before = self.state.reading.as_ref();
        let Some(why) = missing else {
            return before.is_some_and(|reading| reading.missing > 0).then_some(Notice::Ends);
        };
        let policy = self.scaling.policy.as_ref()?;
        match Reading::after(before, policy, &Err(why.clone()), now).missing {
            1 => Some(Notice::Begins(why)),
            MISSING_ALERT => Some(Notice::Lasts(why)),
            _ => None,
        }
    }
}

/// What the log says of a metric without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice<'a> {
    Begins(&'a str),
    Lasts(&'a str),
    Ends,
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{Amount, Drain, ScaleMetric, ScalePolicy};

    #[test]
    fn a_missing_metric_is_logged_when_it_begins_when_it_lasts_and_when_it_is_over() {
        let policy = Some(ScalePolicy::new(ScaleMetric::CpuUtilization, Amount(800_000)));
        let scaling = Scaling { replicas_min: 2, replicas_max: 6, policy, drain: Drain::default() };
        let mut known = Known { scaling, state: ScalingState { wanted: 2, running: 2, ..ScalingState::default() } };
        let mut now = Timestamp(1_000_000);
        let mut logged = Vec::new();
        let missing = || Err("away".to_owned());
        let (within, above) = (|| Ok(Amount(700_000)), || Ok(Amount(900_000)));
        let found = [within(), missing(), missing(), missing(), missing(), within(), above(), missing()];
        for found in found {
            now = Timestamp(now.0 + 60_000);
            // As a look does it, with a ledger that takes each step.
            let Ok(step) = next(&known.scaling, &known.state, found, now) else {
                logged.push("unchanged");
                continue;
            };
            let Step::Note { found } = &step else { panic!("{step:?}") };
            logged.push(match known.notice(found.as_ref().err(), now) {
                Some(Notice::Begins("away")) => "begins",
                Some(Notice::Lasts("away")) => "lasts",
                Some(Notice::Ends) => "ends",
                Some(Notice::Begins(_) | Notice::Lasts(_)) => "another reason",
                None => "noted",
            });
            known.state.take(&known.scaling, step, now);
        }
        assert_eq!(logged, ["noted", "begins", "noted", "lasts", "unchanged", "ends", "noted", "begins"]);
    }

    #[test]
    fn a_step_up_and_a_step_down_are_told_apart() {
        let scaling = Scaling { replicas_min: 1, replicas_max: 6, policy: None, drain: Drain::default() };
        let known = Known { scaling, state: ScalingState { wanted: 3, ..ScalingState::default() } };
        let taken = |replicas| {
            let id = services::tests::id(1);
            known.taken(id, &Step::Want { replicas, value: Amount(1) }, Timestamp(1))
        };
        assert_eq!([taken(4), taken(2)], [LookResult::Up, LookResult::Down]);
    }

    #[test]
    fn a_random_part_is_never_more_than_the_whole() {
        assert!((0..100).all(|_| random_part(Duration::from_secs(60)) <= Duration::from_secs(60)));
    }
}
