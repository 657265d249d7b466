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
use lattice_model::config::nearest;
use lattice_model::{Allocation, AllocationState};
use lattice_quorum::pack::with_causes;
use lattice_telemetry::query::{Query, QueryError};
use std::time::Duration;
use tonic::{Request, Status};

/// Allocations of one comparison.
const ALLOCATIONS_MAX: usize = 8;
/// Points of each, about; and what they are whole multiples of: a window.
const POINTS: u64 = 60;
const WINDOW_MS: u64 = 30_000;

/// What can be compared: its name, its unit, and what the store calls it. Of one node there is one series, also where it is both
/// pushed and scraped.
const METRICS: &[(&str, &str, &str)] = &[
    ("cpu_cores", "cores", r#"lattice_allocation_cpu_cores{stat="mean","#),
    ("memory_used", "bytes", r#"lattice_allocation_memory_used_bytes{stat="mean","#),
    ("io_read_bytes", "bytes/s", r#"lattice_allocation_io_read_bytes_per_second{stat="mean","#),
    ("io_write_bytes", "bytes/s", r#"lattice_allocation_io_write_bytes_per_second{stat="mean","#),
    ("gpu_utilization", "ratio", r#"lattice_allocation_gpu_utilization_ratio{stat="mean","#),
    ("gpu_memory_used", "bytes", r#"lattice_allocation_gpu_memory_used_bytes{stat="mean","#),
    ("gpu_power_draw", "W", r#"lattice_allocation_gpu_power_watts{stat="mean","#),
    ("processes", "count", "lattice_allocation_processes{"),
    ("threads", "count", "lattice_allocation_threads{"),
];

/// How the nodes' numbers become one of the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    Sum,
    Mean,
}

/// Parts of a whole add up to nothing.
fn join(unit: &str) -> Join {
    if unit == "ratio" { Join::Mean } else { Join::Sum }
}

impl Join {
    fn of(self, values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = values.len().max(1) as f64;
        let sum: f64 = values.sum();
        match self {
            Self::Sum => sum,
            Self::Mean => sum / count,
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
    let Some((name, unit, selector)) = METRICS.iter().find(|(name, ..)| *name == metric) else {
        let names = || METRICS.iter().map(|(name, ..)| *name);
        let hint = nearest(metric, names()).map(|meant| format!("did you mean {meant:?}?"));
        let hint = hint.unwrap_or_else(|| format!("there are {}", names().collect::<Vec<_>>().join(", ")));
        return Err(Status::invalid_argument(format!("{metric:?} is not compared\nhint: {hint}")));
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
    let longest_ms = allocations.iter().map(ran_ms).max().unwrap_or(0);
    let step_ms = longest_ms.div_ceil(POINTS).div_ceil(WINDOW_MS).max(1) * WINDOW_MS;
    // All at once: a store that does not answer takes its time of the caller's once, not for each of them.
    let each = allocations.iter().map(|allocation| one(api, &caller.principal, allocation, (name, selector, join(unit)), step_ms));
    let compared = futures::future::join_all(each).await;
    Ok(v1::CompareResponse { metric: (*name).to_owned(), unit: (*unit).to_owned(), step_ms, allocations: compared })
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
    (name, selector, join): (&str, &str, Join),
    step_ms: u64,
) -> v1::Compared {
    let started_at_ms = allocation.started_at.map_or(0, |at| at.0);
    let base = v1::Compared { allocation: allocation.id.to_string(), started_at_ms, ran_ms: ran_ms(allocation), ..Default::default() };
    let why = match &*api.past {
        Ok(Some(store)) => match of_store(store, allocation, (selector, join), step_ms).await {
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
    (selector, join): (&str, Join),
    step_ms: u64,
) -> Result<Option<Found>, QueryError> {
    let Some(start) = allocation.started_at else { return Ok(None) };
    let series = format!(r#"{selector}allocation="{}"}}"#, allocation.id);
    let all_nodes = match join {
        Join::Sum => "sum",
        Join::Mean => "avg",
    };
    let expression = format!("{all_nodes}(max by (node_id) ({series}))");
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
