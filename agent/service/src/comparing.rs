//! `AllocationService.Compare`: one metric of several allocations, each counted from its own start.
//!
//! The store is queried by PromQL, after the allocation's owner was checked. Only the allocation's
//! id and the name of a known metric become part of the query. Without the store, the agents report
//! on running work.

use super::Api;
use super::groups::refuse_group;
use super::usage::{PUSHED, Pushed, of_all_nodes};
use lattice_agent_common::clock::now;
use lattice_agent_common::config::AgentConfig;
use lattice_api::v1;
use lattice_api::v1::compared::Point;
use lattice_model::{Allocation, AllocationId, AllocationState, Principal, with_causes};
use lattice_observe::measuring::DURATION_MAX;
use lattice_telemetry::names::meant;
use lattice_telemetry::push::StoreError;
use lattice_telemetry::query::{Query, QueryError};
use std::time::Duration;
use tonic::{Request, Status};

/// How many allocations one comparison may have.
const ALLOCATIONS_MAX: usize = 8;
/// About how many points the longest allocation gets; the step is a multiple of a window.
const POINTS: u64 = 60;
const WINDOW_MS: u64 = 30_000;

/// What can be compared, and how the nodes' numbers are combined. `lattice top` uses the same
/// series.
const METRICS: &[(&str, Join)] = &[
    ("cpu_cores", Join::Sum),
    ("memory_used", Join::Sum),
    ("io_read_bytes", Join::Sum),
    ("io_write_bytes", Join::Sum),
    ("network_received_bytes", Join::Sum),
    ("network_sent_bytes", Join::Sum),
    ("io_latency_p99", Join::Max),
    ("gpu_utilization", Join::Mean),
    ("gpu_memory_used", Join::Sum),
    ("gpu_power_draw", Join::Sum),
    ("processes", Join::Sum),
    ("threads", Join::Sum),
];

/// One metric.
#[derive(Clone, Copy)]
struct Metric {
    pushed: &'static Pushed,
    join: Join,
}

impl Metric {
    fn of(name: &str) -> Option<Self> {
        let (_, join) = METRICS.iter().find(|(known, _)| *known == name)?;
        Some(Self { pushed: PUSHED.iter().find(|pushed| pushed.name == name)?, join: *join })
    }

    /// The PromQL expression over all nodes of an allocation. A node counts once, even if it is
    /// both pushed and scraped.
    fn expression(self, allocation: AllocationId) -> String {
        format!("{}(max by (node_id) ({}))", self.join.name(), self.pushed.series(allocation))
    }
}

/// How the nodes' numbers become the allocation's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    Sum,
    /// For shares of a whole, which cannot be added.
    Mean,
    /// For latencies: the slowest node.
    Max,
}

impl Join {
    /// The name in PromQL.
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

/// The store from an agent's configuration, or why it cannot be queried.
pub fn past(config: &AgentConfig) -> Result<Option<Query>, StoreError> {
    // An error means that another caller installed the same provider first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    config.telemetry.query(&config.measuring.query_url)
}

pub(super) async fn compare(api: &Api, request: Request<v1::CompareRequest>) -> Result<v1::CompareResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::CompareRequest { keys, metric } = request.into_inner();
    if !(2..=ALLOCATIONS_MAX).contains(&keys.len()) {
        return Err(Status::invalid_argument(format!("{} allocations are named; 2 to {ALLOCATIONS_MAX} can be compared", keys.len())));
    }
    let metric = if metric.is_empty() { "cpu_cores" } else { &metric };
    let name = meant(metric, METRICS.iter().map(|(name, _)| *name))
        .map_err(|hint| Status::invalid_argument(format!("metric {metric:?} cannot be compared\nhint: {hint}")))?;
    let Some(metric) = Metric::of(name) else {
        return Err(Status::internal(format!("metric {name} cannot be compared")));
    };
    let mut allocations = Vec::with_capacity(keys.len());
    for key in &keys {
        let allocation = api.allocation(&caller, key).await?;
        api.check(&caller, &allocation).await?;
        refuse_group(&allocation)?;
        if allocation.started_at.is_none() {
            let text = format!("allocation {} is {}: it has not run, so it has no measurements", allocation.id.short(), allocation.state);
            return Err(Status::failed_precondition(text));
        }
        allocations.push(allocation);
    }
    for allocation in &allocations {
        api.audit_measurements_read(&caller.principal, allocation, "compare").await?;
    }
    let longest_ms = allocations.iter().map(ran_ms).max().unwrap_or(0);
    let step_ms = longest_ms.div_ceil(POINTS).div_ceil(WINDOW_MS).max(1) * WINDOW_MS;
    // All at once: a store that does not answer delays the caller once, not once for each
    // allocation.
    let each = allocations.iter().map(|allocation| one(api, caller.vouched_for(&allocation.owner), allocation, metric, step_ms));
    let compared = futures::future::join_all(each).await;
    Ok(v1::CompareResponse { metric: metric.pushed.name.to_owned(), unit: metric.pushed.unit.to_owned(), step_ms, allocations: compared })
}

/// How long the allocation ran, or has run so far.
fn ran_ms(allocation: &Allocation) -> u64 {
    let end = allocation.ended_at.unwrap_or_else(now);
    allocation.started_at.map_or(0, |start| end.since_ms(start))
}

async fn one(api: &Api, user: Principal, allocation: &Allocation, metric: Metric, step_ms: u64) -> v1::Compared {
    let started_at_ms = allocation.started_at.map_or(0, |at| at.0);
    let base = v1::Compared { allocation: allocation.id.to_string(), started_at_ms, ran_ms: ran_ms(allocation), ..Default::default() };
    let why = match &*api.past.store {
        Ok(Some(store)) => match of_store(store, allocation, metric, step_ms).await {
            Ok(Some(found)) => return v1::Compared { source: "store".to_owned(), ..merge(base, found) },
            Ok(None) => format!("the store at {} has no data of it", store.url()),
            Err(error) => with_causes(&error),
        },
        Ok(None) => "no store is configured (telemetry.tsdb_endpoint, measuring.query_url)".to_owned(),
        Err(error) => with_causes(error),
    };
    if allocation.state != AllocationState::Running {
        return v1::Compared { note: format!("{why}; its agents no longer measure it"), ..base };
    }
    let duration = Duration::from_millis(base.ran_ms).clamp(Duration::from_secs(1), DURATION_MAX);
    let nodes = of_all_nodes(api, &user, allocation, duration).await;
    let answered: Vec<(&v1::NodeUsage, &v1::Measured)> =
        nodes.iter().filter_map(|node| Some((node, node.measured.iter().find(|one| one.name == metric.pushed.name)?))).collect();
    let unanswered = nodes.len() - answered.len();
    let missing = if unanswered > 0 { format!("; {unanswered} of its nodes do not answer") } else { String::new() };
    if answered.is_empty() {
        return v1::Compared { note: why + &missing, ..base };
    }
    v1::Compared {
        source: "agents".to_owned(),
        note: format!("{why}; the agents measured only the last {} s{missing}", duration.as_secs()),
        age_ms: answered.iter().map(|(node, _)| node.age_ms).max(),
        mean: Some(metric.join.of(answered.iter().map(|(_, one)| one.mean.unwrap_or(one.now)))),
        max: Some(metric.join.of(answered.iter().map(|(_, one)| one.max.unwrap_or(one.now)))),
        ..base
    }
}

/// What a store has of one allocation.
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

async fn of_store(store: &Query, allocation: &Allocation, metric: Metric, step_ms: u64) -> Result<Option<Found>, QueryError> {
    let Some(start) = allocation.started_at else { return Ok(None) };
    let (series, expression) = (metric.pushed.series(allocation.id), metric.expression(allocation.id));
    let seconds = |ms: u64| ms as f64 / 1e3;
    // The last window is pushed when it is over, a moment after the end.
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
    fn each_query_combines_all_nodes_and_uses_the_series_of_top() {
        let id = AllocationId(uuid::Uuid::nil());
        let of = |name: &str| Metric::of(name).unwrap().expression(id);
        let own = format!(r#"allocation="{id}"}}"#);
        assert_eq!(of("processes"), format!("sum(max by (node_id) (lattice_allocation_processes{{{own}))"));
        let sent = format!(r#"sum(max by (node_id) (lattice_allocation_network_sent_bytes_per_second{{stat="mean",{own}))"#);
        assert_eq!(of("network_sent_bytes"), sent);
        // Not from the buckets, whose ranges are coarser than the agents' values for a window.
        assert_eq!(of("io_latency_p99"), format!(r#"max(max by (node_id) (lattice_allocation_io_latency_seconds{{stat="p99",{own}))"#));
        assert!(of("gpu_utilization").starts_with("avg(max by (node_id) ("));
        assert_eq!(Join::Max.of([1.0, 3.0, 2.0].into_iter()), 3.0);
    }

    #[test]
    fn agents_report_each_metric() {
        for (name, _) in METRICS {
            let metric = Metric::of(name).unwrap_or_else(|| panic!("{name} is not in the store"));
            let measure = lattice_telemetry::alert::rules::MEASURES.iter().find(|(known, _)| known == name);
            assert_eq!(measure, Some(&(*name, metric.pushed.unit)), "{name}");
        }
    }
}
