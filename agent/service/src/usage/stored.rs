//! Past usage from the metrics store, for `lattice top`: PromQL with the allocation's id, after its
//! owner was checked.

use super::Api;
use futures::stream::{self, StreamExt, TryStreamExt};
use lattice_agent_common::clock::now;
use lattice_api::v1;
use lattice_model::time::Timestamp;
use lattice_model::{Allocation, AllocationId, millis, with_causes};
use lattice_telemetry::catalogue::{Family, allocation as family};
use lattice_telemetry::query::{Query, QueryError};
use lattice_telemetry::window::PROD_MS;
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::Status;

/// How many queries run at once.
const QUERIES_AT_ONCE_MAX: usize = 8;
const NODE: &str = "node_id";
const SOURCE: &str = "store";

/// A number of `lattice top` that agents push.
pub struct Pushed {
    pub name: &'static str,
    pub unit: &'static str,
    family: &'static Family,
    /// The `stat` labels of a window: that of the number itself, and that of the greatest value;
    /// `None`: the series has no such label.
    stats: Option<[&'static str; 2]>,
}

const fn window(name: &'static str, unit: &'static str, family: &'static Family) -> Pushed {
    Pushed { name, unit, family, stats: Some(["mean", "max"]) }
}

/// The table from names to series, also used by `lattice compare`.
pub static PUSHED: &[Pushed] = &[
    window("cpu_cores", "cores", &family::CPU_CORES),
    window("memory_used", "bytes", &family::MEMORY_USED),
    window("io_read_bytes", "bytes/s", &family::IO_READ_RATE),
    window("io_write_bytes", "bytes/s", &family::IO_WRITE_RATE),
    Pushed { name: "processes", unit: "count", family: &family::PROCESSES, stats: None },
    Pushed { name: "threads", unit: "count", family: &family::THREADS, stats: None },
    window("network_received_bytes", "bytes/s", &family::NETWORK_RECEIVED_RATE),
    window("network_sent_bytes", "bytes/s", &family::NETWORK_SENT_RATE),
    Pushed { name: "accept_queue", unit: "count", family: &family::ACCEPT_QUEUE, stats: None },
    Pushed { name: "io_latency_p99", unit: "seconds", family: &family::IO_LATENCY, stats: Some(["p99", "p99"]) },
    window("gpu_utilization", "ratio", &family::GPU_UTILIZATION),
    window("gpu_memory_used", "bytes", &family::GPU_MEMORY_USED),
    window("gpu_power_draw", "W", &family::GPU_POWER),
];

impl Pushed {
    /// The series of an allocation: that of the number itself (0), or of the greatest value (1).
    fn series_of(&self, allocation: AllocationId, which: usize) -> String {
        let stat = self.stats.map(|stats| format!(r#"stat="{}","#, stats[which])).unwrap_or_default();
        format!(r#"{}{{{stat}allocation="{allocation}"}}"#, self.family.name)
    }

    /// The series of the number itself.
    pub fn series(&self, allocation: AllocationId) -> String {
        self.series_of(allocation, 0)
    }
}

/// What is queried of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Last,
    Mean,
    Max,
}

impl What {
    const ALL: [Self; 3] = [Self::Last, Self::Mean, Self::Max];

    /// The PromQL expression over the seconds before the queried time. A node counts once, even if
    /// it is both pushed and scraped.
    fn expression(self, pushed: &Pushed, allocation: AllocationId, seconds: u64) -> String {
        let (over, which) = match self {
            Self::Last => ("last_over_time", 0),
            Self::Mean => ("avg_over_time", 0),
            Self::Max => ("max_over_time", 1),
        };
        format!("max by ({NODE}) ({over}({}[{seconds}s]))", pushed.series_of(allocation, which))
    }
}

/// The period that is queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Over {
    from: Timestamp,
    until: Timestamp,
}

impl Over {
    /// For ended work, the last window is pushed for one more window's length, as earlier ones
    /// were, so the period ends `tail` after the end.
    fn of(allocation: &Allocation, asked: Option<Duration>, tail: Duration, now: Timestamp) -> Self {
        let end = allocation.ended_at.filter(|_| allocation.state.is_terminal());
        let until = end.map_or(now, |end| Timestamp(end.0.saturating_add(millis(tail))).min(now));
        let start = allocation.started_at.unwrap_or(until).min(until);
        let from = asked.map_or(start, |asked| start.max(Timestamp(end.unwrap_or(until).0.saturating_sub(millis(asked)))));
        Self { from, until }
    }

    fn seconds(self) -> u64 {
        self.until.since_ms(self.from).div_ceil(1000).max(1)
    }
}

/// Each node's numbers, and the age of its newest, in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Found {
    nodes: BTreeMap<String, Vec<v1::Measured>>,
    newest: BTreeMap<String, u64>,
}

/// What was found, with the response's description of the store.
pub(super) struct Answered {
    summary: v1::Stored,
    found: Found,
}

type Question = (&'static str, What);

async fn ask_one(
    store: &Query,
    question: Question,
    expression: String,
    time: f64,
) -> Result<(Question, BTreeMap<String, f64>), QueryError> {
    Ok((question, store.each(&expression, time, NODE).await?))
}

async fn ask(store: &Query, allocation: AllocationId, over: Over) -> Result<Found, QueryError> {
    let time = over.until.0 as f64 / 1e3;
    let mut asked = Vec::new();
    for pushed in PUSHED {
        for what in What::ALL {
            asked.push(ask_one(store, (pushed.name, what), what.expression(pushed, allocation, over.seconds()), time));
        }
    }
    // After one error the store is not queried further.
    let answers: BTreeMap<_, _> = stream::iter(asked).buffer_unordered(QUERIES_AT_ONCE_MAX).try_collect().await?;
    let mut found = Found::default();
    for pushed in PUSHED {
        let of = |what: What| answers.get(&(pushed.name, what));
        for (node, now) in of(What::Last).into_iter().flatten() {
            let [mean, max] = [What::Mean, What::Max].map(|what| of(what).and_then(|each| each.get(node)).copied());
            let (name, unit, source) = (pushed.name.to_owned(), pushed.unit.to_owned(), SOURCE.to_owned());
            let one = v1::Measured { name, unit, source, now: *now, mean, max, window_source: String::new() };
            found.nodes.entry(node.clone()).or_default().push(one);
        }
    }
    let newest = format!(r#"max by ({NODE}) (timestamp({}{{allocation="{allocation}"}}))"#, family::INFO.name);
    let newest = store.each(&newest, time, NODE).await?;
    found.newest = newest.into_iter().map(|(node, at)| (node, now().0.saturating_sub((at * 1e3).max(0.0) as u64))).collect();
    Ok(found)
}

async fn answered(api: &Api, allocation: &Allocation, asked: Option<Duration>) -> Answered {
    let over = Over::of(allocation, asked, api.past.tail, now());
    let mut summary =
        v1::Stored { from_ms: over.from.0, until_ms: over.until.0, ended: allocation.state.is_terminal(), ..Default::default() };
    let mut found = Found::default();
    match &*api.past.store {
        Ok(Some(store)) => {
            summary.url = store.url();
            match ask(store, allocation.id, over).await {
                Ok(answer) if answer.nodes.is_empty() => summary.error = format!("the store at {} has no data of it", summary.url),
                Ok(answer) => found = answer,
                Err(error) => summary.error = with_causes(&error),
            }
        }
        Ok(None) => summary.error = "no store is configured (telemetry.tsdb_endpoint, measuring.query_url)".to_owned(),
        Err(error) => summary.error = with_causes(error),
    }
    summary.age_ms = found.newest.values().min().copied();
    Answered { summary, found }
}

/// The usage of ended work: all of it is from the store.
pub(super) async fn of_ended(api: &Api, allocation: &Allocation, asked: Option<Duration>) -> Result<v1::TopResponse, Status> {
    let Answered { summary, found } = answered(api, allocation, asked).await;
    if !summary.error.is_empty() {
        let short = allocation.id.short();
        let text = format!(
            "allocation {short} is {}: its agents no longer measure it, and {}\nhint: `lattice status {short}` shows its memory peak and processor time",
            allocation.state, summary.error
        );
        // Unavailable: another agent, or the same one later, may be asked.
        return Err(if summary.url.is_empty() { Status::failed_precondition(text) } else { Status::unavailable(text) });
    }
    let Found { mut nodes, newest } = found;
    // Only the allocation's nodes count, whatever else the store has.
    let nodes = allocation.nodes().map(|node| match nodes.remove(node.as_str()) {
        Some(measured) => {
            let age_ms = newest.get(node.as_str()).copied().unwrap_or_else(|| now().since_ms(Timestamp(summary.until_ms)));
            v1::NodeUsage { node: node.to_string(), age_ms, measured, ..Default::default() }
        }
        None => v1::NodeUsage { node: node.to_string(), error: "the store has no data of it".to_owned(), ..Default::default() },
    });
    let nodes = nodes.collect();
    let (allocation, duration_ms) = (allocation.id.to_string(), summary.until_ms.saturating_sub(summary.from_ms));
    Ok(v1::TopResponse { allocation, duration_ms, nodes, stored: Some(summary), ..Default::default() })
}

/// The usage of running work, over a period longer than its agents remember.
pub(super) async fn of_running(api: &Api, allocation: &Allocation, duration: Duration) -> Answered {
    answered(api, allocation, Some(duration)).await
}

/// Replaces the agents' means and maxima by the store's; a number that the store lacks then has
/// neither. If the store has nothing of the allocation or cannot be read, the agents' values stay,
/// and the response says which period they cover.
pub(super) fn join(response: &mut v1::TopResponse, Answered { summary, found }: Answered) {
    if summary.error.is_empty() {
        for usage in &mut response.nodes {
            let of_node = found.nodes.get(&usage.node);
            for one in &mut usage.measured {
                let stored = of_node.and_then(|all| all.iter().find(|stored| stored.name == one.name));
                (one.mean, one.max) = stored.map_or((None, None), |stored| (stored.mean, stored.max));
                one.window_source = if stored.is_some() { SOURCE.to_owned() } else { String::new() };
            }
        }
    } else {
        response.duration_ms = millis(lattice_observe::measuring::DURATION_MAX);
    }
    response.stored = Some(summary);
}

/// How long after the end of work its last window is pushed by agents with this configuration.
pub fn tail(config: &lattice_agent_common::config::AgentConfig) -> Duration {
    let interval = Duration::from_secs(config.telemetry.prod_interval_seconds);
    interval.max(Duration::from_millis(PROD_MS)) + lattice_observe::measuring::export_delay(config.measuring.window_smoothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::AllocationState;

    #[test]
    fn questions_have_the_allocation_in_them_and_are_by_node() {
        let id = AllocationId(uuid::Uuid::nil());
        let of = |name: &str, what: What| what.expression(PUSHED.iter().find(|one| one.name == name).unwrap(), id, 90);
        let want = |over: &str, series: &str| format!(r#"max by (node_id) ({over}({series}allocation="{id}"}}[90s]))"#);
        assert_eq!(of("cpu_cores", What::Mean), want("avg_over_time", r#"lattice_allocation_cpu_cores{stat="mean","#));
        assert_eq!(of("cpu_cores", What::Max), want("max_over_time", r#"lattice_allocation_cpu_cores{stat="max","#));
        assert_eq!(of("io_latency_p99", What::Max), want("max_over_time", r#"lattice_allocation_io_latency_seconds{stat="p99","#));
        assert_eq!(of("threads", What::Last), want("last_over_time", "lattice_allocation_threads{"));
    }

    #[test]
    fn each_number_is_a_known_measure_with_its_stat_labels() {
        for Pushed { name, unit, family, stats } in PUSHED {
            let measure = lattice_telemetry::alert::rules::MEASURES.iter().find(|(known, _)| known == name);
            assert_eq!(measure, Some(&(*name, *unit)), "{name}");
            assert_eq!(family.labels.contains(&"stat"), stats.is_some(), "{name}");
        }
    }

    #[test]
    fn ended_work_is_queried_from_its_start_to_its_last_exported_window() {
        let share = lattice_model::test_builders::desired_share(AllocationId(uuid::Uuid::from_u128(1)));
        let mut allocation = Allocation::submitted(share.allocation, share.spec.clone(), share.owner.clone(), Timestamp(1000));
        allocation.started_at = Some(Timestamp(2_000_000));
        let of = |allocation: &Allocation, asked: Option<u64>, now: u64| {
            let over = Over::of(allocation, asked.map(Duration::from_secs), Duration::from_secs(30), Timestamp(now));
            (over.from.0, over.until.0, over.seconds())
        };
        allocation.state = AllocationState::Running;
        assert_eq!(of(&allocation, Some(7200), 3_000_500), (2_000_000, 3_000_500, 1001), "it has not run for as long");
        assert_eq!(of(&allocation, Some(60), 3_000_000), (2_940_000, 3_000_000, 60));
        (allocation.state, allocation.ended_at) = (AllocationState::Failed, Some(Timestamp(2_600_000)));
        assert_eq!(of(&allocation, None, 9_000_000), (2_000_000, 2_630_000, 630));
        assert_eq!(of(&allocation, Some(60), 9_000_000), (2_540_000, 2_630_000, 90));
        assert_eq!(of(&allocation, None, 2_600_100), (2_000_000, 2_600_100, 601), "no store has what is still to come");
    }

    #[test]
    fn the_stores_means_replace_the_agents_and_the_response_says_so() {
        let one = |name: &str, now, mean| v1::Measured {
            name: name.into(),
            source: "cgroup2".into(),
            now,
            mean,
            max: mean,
            ..Default::default()
        };
        let node = |measured| v1::NodeUsage { node: "n1".into(), measured, ..Default::default() };
        let response = || v1::TopResponse {
            nodes: vec![node(vec![one("cpu_cores", 1.0, Some(2.0)), one("oom_kills", 0.0, None), one("threads", 4.0, Some(4.0))])],
            duration_ms: 7_200_000,
            ..Default::default()
        };
        let found = || Found { nodes: [("n1".to_owned(), vec![one("cpu_cores", 7.0, Some(3.0))])].into(), ..Default::default() };
        let mut merged = response();
        join(&mut merged, Answered { summary: v1::Stored::default(), found: found() });
        let of = |response: &v1::TopResponse, n: usize| {
            let one = &response.nodes[0].measured[n];
            (one.now, one.mean, one.window_source.clone())
        };
        assert_eq!([of(&merged, 0), of(&merged, 1)], [(1.0, Some(3.0), "store".to_owned()), (0.0, None, String::new())]);
        assert_eq!(of(&merged, 2), (4.0, None, String::new()), "it is of an hour, and not of what was asked");
        let mut merged = response();
        join(
            &mut merged,
            Answered { summary: v1::Stored { error: "it is unreachable".into(), ..Default::default() }, found: Found::default() },
        );
        assert_eq!((of(&merged, 0), merged.duration_ms), ((1.0, Some(2.0), String::new()), 3_600_000));
        assert_eq!(merged.stored.unwrap().error, "it is unreachable");
    }
}
