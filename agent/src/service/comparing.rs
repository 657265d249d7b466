//! `AllocationService.Compare`: one metric of several allocations, each counted from its own start.
//!
//! The store is asked by PromQL with the allocation's id in it, after its owner was checked: nothing of the caller's gets into the
//! question but an id and the name of a metric that is known here. Without the store, the agents tell of what runs.

use super::usage::of_all_nodes;
use super::{Api, now};
use crate::config::AgentConfig;
use crate::measuring::DURATION_MAX;
use lattice_api::v1;
use lattice_api::v1::compared::Point;
use lattice_model::{Allocation, AllocationId, AllocationState};
use lattice_quorum::pack::with_causes;
use lattice_telemetry::names::meant;
use lattice_telemetry::query::{Query, QueryError};
use std::time::Duration;
use tonic::{Request, Status};

/// Allocations of one comparison.
const ALLOCATIONS_MAX: usize = 8;
/// Points of each, about; and what they are whole multiples of: a window.
const POINTS: u64 = 60;
const WINDOW_MS: u64 = 30_000;

/// What can be compared.
struct Metric {
    name: &'static str,
    unit: &'static str,
    join: Join,
    stored: Stored,
}

/// What the store has of it: the beginning of a selector. Of one node there is one series of each, also where it is both pushed and
/// scraped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// The number itself.
    Gauge(&'static str),
    /// What it is the rate of.
    Counter(&'static str),
    /// Of reads and of writes the ranges whose 99th percentile it is.
    Buckets(&'static str),
}

const METRICS: &[Metric] = &[
    gauge("cpu_cores", "cores", Join::Sum, r#"lattice_allocation_cpu_cores{stat="mean","#),
    gauge("memory_used", "bytes", Join::Sum, r#"lattice_allocation_memory_used_bytes{stat="mean","#),
    gauge("io_read_bytes", "bytes/s", Join::Sum, r#"lattice_allocation_io_read_bytes_per_second{stat="mean","#),
    gauge("io_write_bytes", "bytes/s", Join::Sum, r#"lattice_allocation_io_write_bytes_per_second{stat="mean","#),
    counter("network_received_bytes", "lattice_allocation_network_received_bytes_total{"),
    counter("network_sent_bytes", "lattice_allocation_network_sent_bytes_total{"),
    Metric {
        name: "io_latency_p99",
        unit: "seconds",
        join: Join::Max,
        stored: Stored::Buckets("lattice_allocation_block_io_seconds_bucket{"),
    },
    gauge("gpu_utilization", "ratio", Join::Mean, r#"lattice_allocation_gpu_utilization_ratio{stat="mean","#),
    gauge("gpu_memory_used", "bytes", Join::Sum, r#"lattice_allocation_gpu_memory_used_bytes{stat="mean","#),
    gauge("gpu_power_draw", "W", Join::Sum, r#"lattice_allocation_gpu_power_watts{stat="mean","#),
    gauge("processes", "count", Join::Sum, "lattice_allocation_processes{"),
    gauge("threads", "count", Join::Sum, "lattice_allocation_threads{"),
];

const fn gauge(name: &'static str, unit: &'static str, join: Join, selector: &'static str) -> Metric {
    Metric { name, unit, join, stored: Stored::Gauge(selector) }
}

const fn counter(name: &'static str, selector: &'static str) -> Metric {
    Metric { name, unit: "bytes/s", join: Join::Sum, stored: Stored::Counter(selector) }
}

impl Stored {
    /// The series of an allocation.
    fn series(self, allocation: AllocationId) -> String {
        let (Self::Gauge(selector) | Self::Counter(selector) | Self::Buckets(selector)) = self;
        format!(r#"{selector}allocation="{allocation}"}}"#)
    }

    /// What it is in PromQL over all of its nodes. Rates are over two windows at least, since a store has one sample of each.
    fn expression(self, allocation: AllocationId, join: Join, step_ms: u64) -> String {
        let (series, join) = (self.series(allocation), join.name());
        let over = step_ms.max(2 * WINDOW_MS) / 1000;
        match self {
            Self::Gauge(_) => format!("{join}(max by (node_id) ({series}))"),
            Self::Counter(_) => format!("{join}(max by (node_id) (rate({series}[{over}s])))"),
            Self::Buckets(_) => {
                format!("{join}(histogram_quantile(0.99, max by (node_id, direction, le) (rate({series}[{over}s]))))")
            }
        }
    }
}

/// How the nodes' numbers become one of the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    Sum,
    /// Parts of a whole add up to nothing.
    Mean,
    /// The slowest.
    Max,
}

impl Join {
    /// As PromQL calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "avg",
            Self::Max => "max",
        }
    }

    fn of(self, values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = values.len().max(1) as f64;
        match self {
            Self::Sum => values.sum(),
            Self::Mean => values.sum::<f64>() / count,
            Self::Max => values.fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// The store that answers, of an agent's configuration; an error says why it cannot be asked.
pub fn past(config: &AgentConfig) -> Result<Option<Query>, String> {
    // Whoever was first is as good: there is one provider in this program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    config.telemetry.query(&config.metrics_query_url).map_err(|error| with_causes(&error))
}

pub(super) async fn compare(api: &Api, request: Request<v1::CompareRequest>) -> Result<v1::CompareResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::CompareRequest { keys, metric } = request.into_inner();
    if !(2..=ALLOCATIONS_MAX).contains(&keys.len()) {
        return Err(Status::invalid_argument(format!("2 to {ALLOCATIONS_MAX} allocations are compared at once")));
    }
    let metric = if metric.is_empty() { "cpu_cores" } else { &metric };
    let name = meant(metric, METRICS.iter().map(|one| one.name))
        .map_err(|hint| Status::invalid_argument(format!("{metric:?} is not compared\nhint: {hint}")))?;
    let Some(metric) = METRICS.iter().find(|one| one.name == name) else {
        return Err(Status::internal(format!("{name} is not compared")));
    };
    let mut allocations = Vec::with_capacity(keys.len());
    for key in &keys {
        let allocation = api.allocation(key).await?;
        caller.check(allocation.id, &allocation.owner)?;
        if allocation.started_at.is_none() {
            let text = format!("allocation {} is {}: it has not run", allocation.id.short(), allocation.state);
            return Err(Status::failed_precondition(text));
        }
        allocations.push(allocation);
    }
    for allocation in &allocations {
        api.looked_at(&caller.principal, allocation, "compare").await?;
    }
    let longest_ms = allocations.iter().map(ran_ms).max().unwrap_or(0);
    let step_ms = longest_ms.div_ceil(POINTS).div_ceil(WINDOW_MS).max(1) * WINDOW_MS;
    // All at once: a store that does not answer takes its time of the caller's once, not for each of them.
    let each = allocations.iter().map(|allocation| one(api, &caller.principal, allocation, metric, step_ms));
    let compared = futures::future::join_all(each).await;
    Ok(v1::CompareResponse { metric: metric.name.to_owned(), unit: metric.unit.to_owned(), step_ms, allocations: compared })
}

/// How long it ran, or has run.
fn ran_ms(allocation: &Allocation) -> u64 {
    let end = allocation.ended_at.unwrap_or_else(now);
    allocation.started_at.map_or(0, |start| end.since_ms(start))
}

async fn one(
    api: &Api,
    user: &lattice_model::Principal,
    allocation: &Allocation,
    &Metric { name, join, stored, .. }: &Metric,
    step_ms: u64,
) -> v1::Compared {
    let started_at_ms = allocation.started_at.map_or(0, |at| at.0);
    let base = v1::Compared { allocation: allocation.id.to_string(), started_at_ms, ran_ms: ran_ms(allocation), ..Default::default() };
    let why = match &*api.past {
        Ok(Some(store)) => match of_store(store, allocation, (stored, join), step_ms).await {
            Ok(Some(found)) => return v1::Compared { source: "store".to_owned(), ..merge(base, found) },
            Ok(None) => format!("the store at {} has nothing of it", store.url()),
            Err(error) => with_causes(&error),
        },
        Ok(None) => "no store is configured (telemetry.tsdb_endpoint, metrics_query_url)".to_owned(),
        Err(error) => error.clone(),
    };
    if allocation.state != AllocationState::Running {
        return v1::Compared { note: format!("{why}; and its agents measure it no more"), ..base };
    }
    let duration = Duration::from_millis(base.ran_ms).clamp(Duration::from_secs(1), DURATION_MAX);
    let nodes = of_all_nodes(api, user, allocation, duration).await;
    let told: Vec<(&v1::NodeUsage, &v1::Measured)> =
        nodes.iter().filter_map(|node| Some((node, node.measured.iter().find(|one| one.name == name)?))).collect();
    let silent = nodes.len() - told.len();
    let missing = if silent > 0 { format!("; {silent} of its nodes tell nothing") } else { String::new() };
    if told.is_empty() {
        return v1::Compared { note: why + &missing, ..base };
    }
    v1::Compared {
        source: "agents".to_owned(),
        note: format!("{why}: of the last {} s, without what came before{missing}", duration.as_secs()),
        age_ms: told.iter().map(|(node, _)| node.age_ms).max(),
        mean: Some(join.of(told.iter().map(|(_, one)| one.mean.unwrap_or(one.now)))),
        max: Some(join.of(told.iter().map(|(_, one)| one.max.unwrap_or(one.now)))),
        ..base
    }
}

/// What a store says of one.
struct Found {
    points: Vec<Point>,
    age_ms: Option<u64>,
}

fn merge(base: v1::Compared, Found { points, age_ms }: Found) -> v1::Compared {
    let values = || points.iter().map(|point| point.value);
    let mean = values().sum::<f64>() / points.len().max(1) as f64;
    let max = values().fold(f64::NEG_INFINITY, f64::max);
    v1::Compared { mean: Some(mean), max: Some(max), age_ms, points, ..base }
}

async fn of_store(
    store: &Query,
    allocation: &Allocation,
    (stored, join): (Stored, Join),
    step_ms: u64,
) -> Result<Option<Found>, QueryError> {
    let Some(start) = allocation.started_at else { return Ok(None) };
    let series = stored.series(allocation.id);
    let expression = stored.expression(allocation.id, join, step_ms);
    let seconds = |ms: u64| ms as f64 / 1e3;
    // The last window is told when it is over: a moment after the end.
    let end_ms = allocation.ended_at.map_or(now().0, |end| end.0.saturating_add(step_ms).min(now().0));
    let found = store.range(&expression, seconds(start.0), seconds(end_ms), seconds(step_ms)).await?;
    let points: Vec<Point> = found
        .into_iter()
        .filter(|(_, value)| value.is_finite())
        .map(|(at, value)| Point { at_ms: ((at * 1e3).max(0.0) as u64).saturating_sub(start.0), value })
        .collect();
    if points.is_empty() {
        return Ok(None);
    }
    let newest = store.at(&format!("max(timestamp({series}))"), seconds(end_ms)).await?;
    let age_ms = newest.filter(|at| at.is_finite()).map(|at| now().0.saturating_sub((at * 1e3).max(0.0) as u64));
    Ok(Some(Found { points, age_ms }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_asked_of_all_nodes_as_the_store_has_it() {
        let id = AllocationId(uuid::Uuid::nil());
        let of = |name: &str| METRICS.iter().find(|one| one.name == name).map(|one| one.stored.expression(id, one.join, 30_000)).unwrap();
        let own = format!(r#"allocation="{id}"}}"#);
        assert_eq!(of("processes"), format!("sum(max by (node_id) (lattice_allocation_processes{{{own}))"));
        let sent = format!("sum(max by (node_id) (rate(lattice_allocation_network_sent_bytes_total{{{own}[60s])))");
        assert_eq!(of("network_sent_bytes"), sent);
        assert!(of("io_latency_p99").starts_with("max(histogram_quantile(0.99, max by (node_id, direction, le) (rate("));
        assert!(of("gpu_utilization").starts_with("avg(max by (node_id) ("));
        assert_eq!(Join::Max.of([1.0, 3.0, 2.0].into_iter()), 3.0);
    }

    #[test]
    fn each_metric_is_one_that_agents_tell() {
        for Metric { name, unit, .. } in METRICS {
            let told = lattice_telemetry::alert::rules::MEASURES.iter().find(|(known, _)| known == name);
            assert_eq!(told, Some(&(*name, *unit)), "{name}");
        }
    }
}
