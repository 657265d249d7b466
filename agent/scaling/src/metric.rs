//! Where the value of a service's metric comes from: the agents of its replicas, or the metrics store.

use crate::services::Service;
use futures::stream::{self, StreamExt, TryStreamExt};
use lattice_agent_common::clock;
use lattice_membership::cluster::Cluster;
use lattice_mesh::usage::{UsageOpen, WireUsage};
use lattice_model::scaling::{ALLOCATION, Selector};
use lattice_model::{Allocation, AllocationId, Amount, NodeId, Resources, ScaleMetric, with_causes};
use lattice_observe::measuring::{self, Measuring, UsageError};
use lattice_telemetry::push::StoreError;
use lattice_telemetry::query::{Query, QueryError};
use lattice_telemetry::window::PROD_MS;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{Semaphore, watch};

/// How many questions to agents of replicas, or to the store, are under way at once, of all looks together.
pub const QUESTIONS_AT_ONCE_MAX: usize = 64;
/// In one question to the store, at most this many replicas are named: each is 37 characters of its address.
const REPLICAS_IN_QUERY_MAX: usize = 100;
/// An older measurement of a replica does not count.
const AGE_MAX: Duration = Duration::from_secs(60);
/// The longest reason that is noted, in characters.
const WHY_CHARS_MAX: usize = 200;

/// Where the values of metrics come from.
pub trait Source: Send + Sync + 'static {
    /// The mean of this metric over the running replicas of a service, of which there is at least one.
    /// A number that is measured all the time counts with its mean over the last `interval`. Each
    /// question to an agent or the store has a permit of `questions`, which all looks share.
    fn value(
        &self,
        metric: &ScaleMetric,
        service: &Service,
        interval: Duration,
        questions: &Semaphore,
    ) -> impl Future<Output = Result<f64, NoValue>> + Send;
}

/// A replica and its node, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    number: u32,
    node: NodeId,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} on {}", self.number, self.node)
    }
}

/// Why a metric has no value.
#[derive(Debug, Error)]
pub enum NoValue {
    #[error("none of its replicas runs")]
    NoReplica,
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("its value is {0}; a number of at least 0 is needed")]
    OddNumber(f64),
    #[error("{0}")]
    Unanswered(Place, #[source] UsageError),
    #[error("{place}: its agent does not measure {name} there")]
    NotMeasured { place: Place, name: &'static str },
    #[error("{place}: its last measurement is {age_s} s old")]
    OldMeasurement { place: Place, age_s: u64 },
    #[error("{0}: it does not listen in the node's network, or its agent does not measure accept_queue there")]
    NotListening(Place),
    #[error("{0}: its share has no cores")]
    NoCores(Place),
    #[error("this agent has no metrics store")]
    NoStore,
    #[error("this agent cannot use its metrics store: {0}")]
    UnusableStore(String),
    #[error(transparent)]
    Store(#[from] QueryError),
    #[error("the store at {url}: replica {number} has no series with a value of the last {} s", AGE_MAX.as_secs())]
    NoSeries { url: String, number: u32 },
}

/// What a look at a service's metric finds: its value, or why it has none, as a text of at most 200 characters. It
/// takes no longer than `timeout`.
pub async fn look(
    source: &impl Source,
    metric: &ScaleMetric,
    service: &Service,
    interval: Duration,
    (questions, timeout): (&Semaphore, Duration),
) -> Result<Amount, String> {
    let value = async {
        if service.replicas.is_empty() {
            return Err(NoValue::NoReplica);
        }
        let value = tokio::time::timeout(timeout, source.value(metric, service, interval, questions)).await;
        let value = value.map_err(|_| NoValue::Timeout(timeout))??;
        Amount::of(value).ok_or(NoValue::OddNumber(value))
    };
    value.await.map_err(|error| {
        let plain: String = with_causes(&error).chars().map(|c| if c.is_control() { ' ' } else { c }).take(WHY_CHARS_MAX).collect();
        tracing::debug!(allocation = %service.record.id, why = %plain, "the metric by which it scales has no value");
        plain
    })
}

/// The agents of the replicas, and the metrics store of this agent.
pub struct Metrics {
    /// Asks the agents.
    pub measuring: Measuring,
    /// The store, if one is configured, or why it cannot be used.
    pub store: Arc<Result<Option<Query>, StoreError>>,
    /// The mesh addresses of nodes.
    pub cluster: watch::Receiver<Arc<Cluster>>,
}

impl Source for Metrics {
    async fn value(&self, metric: &ScaleMetric, service: &Service, interval: Duration, questions: &Semaphore) -> Result<f64, NoValue> {
        let number = match metric {
            ScaleMetric::CpuUtilization => Number { name: "cpu_cores", is_per_core: true },
            ScaleMetric::GpuUtilization => Number { name: "gpu_utilization", is_per_core: false },
            ScaleMetric::ConnectionRate => Number { name: "connections_accepted", is_per_core: false },
            ScaleMetric::QueueDepth => Number { name: ACCEPT_QUEUE, is_per_core: false },
            ScaleMetric::Stored(selector) => return self.of_store(selector, service, questions).await,
        };
        let mut asking = Vec::with_capacity(service.replicas.len());
        for replica in &service.replicas {
            asking.push(permitted(questions, self.of_replica(number, service, replica, interval)));
        }
        let values: Vec<f64> = stream::iter(asking).buffered(QUESTIONS_AT_ONCE_MAX).try_collect().await?;
        Ok(mean(&values))
    }
}

impl Metrics {
    /// The number of one replica, as its agent measures it. It is asked for as the service's owner, who
    /// may see it.
    async fn of_replica(&self, number: Number, service: &Service, replica: &Allocation, interval: Duration) -> Result<f64, NoValue> {
        let Some(share) = replica.shares.iter().next() else { return Err(NoValue::NoReplica) };
        let place = Place { number: number_of(replica), node: share.node.clone() };
        let open = UsageOpen::of(&service.record.owner, replica, interval);
        let address = self.cluster.borrow().nodes.get(share.node).map(|node| node.addresses.mesh.clone());
        match measuring::of_node(&self.measuring, share.node, address, open).await {
            Ok(usage) => number.of(&usage, place, &share.resources, interval),
            Err(error) => Err(NoValue::Unanswered(place, error)),
        }
    }

    /// The mean over the replicas; each counts with the mean of its series in the store.
    async fn of_store(&self, selector: &Selector, service: &Service, questions: &Semaphore) -> Result<f64, NoValue> {
        let store = match &*self.store {
            Ok(Some(store)) => store,
            Ok(None) => return Err(NoValue::NoStore),
            Err(error) => return Err(NoValue::UnusableStore(with_causes(error))),
        };
        let ids: Vec<AllocationId> = service.replicas.iter().map(|replica| replica.id).collect();
        let now_s = clock::now().0 as f64 / 1e3;
        let mut asking = Vec::new();
        for some in ids.chunks(REPLICAS_IN_QUERY_MAX) {
            let expression = selector.each_of(some, AGE_MAX.as_secs());
            let answer = async move { store.each(&expression, now_s, ALLOCATION).await.map_err(NoValue::from) };
            asking.push(permitted(questions, answer));
        }
        let parts: Vec<BTreeMap<String, f64>> = stream::iter(asking).buffered(QUESTIONS_AT_ONCE_MAX).try_collect().await?;
        let found: BTreeMap<String, f64> = parts.into_iter().flatten().collect();
        mean_of_all(service, &found).map_err(|number| NoValue::NoSeries { url: store.url(), number })
    }
}

/// Asks once a permit is there.
async fn permitted<T>(questions: &Semaphore, asking: impl Future<Output = T>) -> T {
    // The semaphore is never closed.
    let _permit = questions.acquire().await;
    asking.await
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The mean over all replicas of the value found for each, by its id. An error: the number of a replica without a
/// value.
fn mean_of_all(service: &Service, found: &BTreeMap<String, f64>) -> Result<f64, u32> {
    let value = |replica: &Arc<Allocation>| found.get(&replica.id.to_string()).copied().ok_or_else(|| number_of(replica));
    service.replicas.iter().map(value).collect::<Result<Vec<f64>, u32>>().map(|values| mean(&values))
}

fn number_of(replica: &Allocation) -> u32 {
    replica.replica.as_ref().map_or(0, |replica| replica.number)
}

/// The name of the number of connections that wait to be accepted.
const ACCEPT_QUEUE: &str = "accept_queue";

/// A number of what an allocation uses of a node, and whether it counts for each core of its share.
#[derive(Clone, Copy)]
struct Number {
    name: &'static str,
    is_per_core: bool,
}

impl Number {
    /// Its mean over the interval, if it is recorded and the interval is not shorter than a recorded
    /// window; otherwise the newest one.
    fn of(self, usage: &WireUsage, place: Place, share: &Resources, interval: Duration) -> Result<f64, NoValue> {
        let age = Duration::from_millis(usage.age_ms);
        if age > AGE_MAX {
            return Err(NoValue::OldMeasurement { place, age_s: age.as_secs() });
        }
        let Some(shown) = usage.shown.iter().find(|shown| shown.name == self.name) else {
            // The number is absent where nothing listens, and also where the kernel does not say.
            return Err(match self.name {
                ACCEPT_QUEUE => NoValue::NotListening(place),
                name => NoValue::NotMeasured { place, name },
            });
        };
        let value = shown.mean.filter(|_| interval >= Duration::from_millis(PROD_MS)).unwrap_or(shown.now);
        match (self.is_per_core, share.cores) {
            (false, _) => Ok(value),
            (true, 0) => Err(NoValue::NoCores(place)),
            (true, cores) => Ok(value / f64::from(cores)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::tests::{id, replica, service};
    use lattice_mesh::usage::Shown;

    const CPU: Number = Number { name: "cpu_cores", is_per_core: true };
    const QUEUE: Number = Number { name: ACCEPT_QUEUE, is_per_core: false };
    const MINUTE: Duration = Duration::from_secs(60);

    fn usage(age_ms: u64, name: &str, now: f64, mean: Option<f64>) -> WireUsage {
        let shown = Shown { name: name.into(), unit: String::new(), source: "cgroup2".into(), now, mean, max: mean };
        WireUsage { age_ms, shown: vec![shown] }
    }

    fn of(number: Number, usage: &WireUsage, cores: u32, interval: Duration) -> Result<f64, String> {
        let place = Place { number: 3, node: "n7".parse().unwrap() };
        let share = Resources { cores, ..Resources::default() };
        number.of(usage, place, &share, interval).map_err(|error| with_causes(&error))
    }

    #[test]
    fn a_replica_is_as_busy_as_the_cores_of_its_share() {
        assert_eq!(of(CPU, &usage(900, "cpu_cores", 3.0, None), 4, MINUTE), Ok(0.75));
        assert_eq!(of(CPU, &usage(900, "cpu_cores", 3.0, Some(1.0)), 4, MINUTE), Ok(0.25), "the mean over the interval");
        assert_eq!(of(CPU, &usage(900, "cpu_cores", 3.0, Some(1.0)), 4, Duration::from_secs(1)), Ok(0.75), "no window is as short");
        assert_eq!(of(QUEUE, &usage(900, "accept_queue", 3.0, None), 4, MINUTE), Ok(3.0));
    }

    #[test]
    fn what_is_not_measured_has_no_value_and_says_where() {
        let reason = |number, usage: &WireUsage, cores| of(number, usage, cores, MINUTE).unwrap_err();
        let other = usage(900, "threads", 3.0, None);
        assert_eq!(reason(CPU, &other, 4), "replica 3 on n7: its agent does not measure cpu_cores there");
        let deaf = "replica 3 on n7: it does not listen in the node's network, or its agent does not measure accept_queue there";
        assert_eq!(reason(QUEUE, &other, 4), deaf);
        assert_eq!(reason(CPU, &usage(900, "cpu_cores", 3.0, None), 0), "replica 3 on n7: its share has no cores");
        assert_eq!(reason(CPU, &usage(61_000, "cpu_cores", 3.0, None), 4), "replica 3 on n7: its last measurement is 61 s old");
        let gone = NoValue::Unanswered(Place { number: 0, node: "n1".parse().unwrap() }, UsageError::OddGpuReadings);
        assert_eq!(with_causes(&gone), "replica 0 on n1: its drivers report what cannot be shown");
    }

    /// A site's own source of values.
    enum Elsewhere {
        Value(f64),
        Silent,
    }

    impl Source for Elsewhere {
        async fn value(&self, _: &ScaleMetric, _: &Service, _: Duration, _: &Semaphore) -> Result<f64, NoValue> {
            match self {
                Self::Value(value) => Ok(*value),
                Self::Silent => std::future::pending().await,
            }
        }
    }

    #[test]
    fn the_store_must_have_a_value_for_each_replica() {
        let record = service(1, "up");
        let replicas = vec![Arc::new(replica(11, &record, 4)), Arc::new(replica(12, &record, 7))];
        let service = Service { record: Arc::new(record), replicas };
        let found = |all: &[(u64, f64)]| -> BTreeMap<String, f64> { all.iter().map(|(n, value)| (id(*n).to_string(), *value)).collect() };
        assert_eq!(mean_of_all(&service, &found(&[(11, 1.0), (12, 4.0), (13, 100.0)])), Ok(2.5));
        assert_eq!(mean_of_all(&service, &found(&[(11, 1.0)])), Err(7));
        let none = NoValue::NoSeries { url: "http://store".into(), number: 7 };
        assert_eq!(with_causes(&none), "the store at http://store: replica 7 has no series with a value of the last 60 s");
    }

    #[tokio::test]
    async fn a_look_finds_a_number_or_why_there_is_none_in_time() {
        let record = service(1, "queue_depth");
        let one = Arc::new(replica(11, &record, 0));
        let mut service = Service { record: Arc::new(record), replicas: vec![one] };
        let (questions, timeout) = (Semaphore::new(QUESTIONS_AT_ONCE_MAX), Duration::from_millis(1));
        let found = async |source: Elsewhere, service: &Service| {
            look(&source, &ScaleMetric::QueueDepth, service, MINUTE, (&questions, timeout)).await
        };
        assert_eq!(found(Elsewhere::Value(1.5), &service).await, Ok(Amount(1_500_000)));
        assert_eq!(found(Elsewhere::Value(f64::NAN), &service).await, Err("its value is NaN; a number of at least 0 is needed".to_owned()));
        assert_eq!(found(Elsewhere::Silent, &service).await, Err("no answer within 0 s".to_owned()));
        service.replicas.clear();
        assert_eq!(found(Elsewhere::Value(1.5), &service).await, Err("none of its replicas runs".to_owned()));
    }
}
