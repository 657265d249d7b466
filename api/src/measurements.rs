//! What is measured of allocations, as JSON: `lattice top`, `lattice watch`, and the same over REST. The fields are
//! documented and stable.

use crate::v1;
use crate::v1::metrics_event::What;
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The use of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Top)]
pub struct TopJson {
    allocation: String,
    /// The period of means and maxima.
    duration_ms: u64,
    /// The numbers of all nodes, combined.
    summary: Vec<Sum>,
    nodes: Vec<NodeUsageJson>,
    /// Null: ranks were not requested.
    ranks: Option<Vec<RankJson>>,
    launches: Option<Vec<LaunchJson>>,
    /// Null: the metrics store was not asked.
    stored: Option<StoredJson>,
}

impl From<&v1::TopResponse> for TopJson {
    fn from(top: &v1::TopResponse) -> Self {
        Self {
            allocation: top.allocation.clone(),
            duration_ms: top.duration_ms,
            summary: summary(&top.nodes),
            nodes: top.nodes.iter().map(|node| NodeUsageJson::new(node, top.per_gpu)).collect(),
            ranks: top.per_rank.then(|| ranks_json(&top.nodes)),
            launches: top.per_rank.then(|| launches(&top.nodes).iter().map(LaunchJson::from).collect()),
            stored: top.stored.as_ref().map(StoredJson::from),
        }
    }
}

/// One number of an allocation, combined over all nodes that report it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = MetricSum)]
pub struct Sum {
    pub name: String,
    pub unit: String,
    /// All reported sources, each of them once.
    pub sources: Vec<String>,
    pub now: f64,
    pub mean: Option<f64>,
    pub max: Option<f64>,
    /// How many nodes reported it.
    pub nodes: usize,
    /// The age of the oldest of the numbers.
    pub age_ms: u64,
    /// How many nodes reported a mean.
    #[serde(skip)]
    means: usize,
}

/// How the numbers of nodes are combined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Combine {
    Sum,
    /// For ratios, durations and temperatures, which cannot be added.
    Greatest,
    Least,
    Mean,
}

impl Combine {
    fn of(name: &str, unit: &str) -> Self {
        match (name, unit) {
            ("gpu_utilization", _) => Self::Mean,
            ("gpu_utilization_min", _) => Self::Least,
            (_, "ratio" | "seconds" | "°C") => Self::Greatest,
            (_, _) => Self::Sum,
        }
    }

    /// Combines one more number with the result of `before` nodes.
    fn add(self, sum: Option<f64>, more: f64, before: usize) -> f64 {
        let Some(sum) = sum else { return more };
        match self {
            Self::Sum => sum + more,
            Self::Greatest => sum.max(more),
            Self::Least => sum.min(more),
            Self::Mean => (sum * before as f64 + more) / (before + 1) as f64,
        }
    }
}

/// Combines the numbers of all nodes, in the order in which the nodes report them.
pub fn summary(nodes: &[v1::NodeUsage]) -> Vec<Sum> {
    let mut order: BTreeMap<&str, usize> = BTreeMap::new();
    let mut sums: Vec<Sum> = Vec::new();
    for node in nodes {
        for one in &node.measured {
            let at = *order.entry(&one.name).or_insert(sums.len());
            if at == sums.len() {
                let (name, unit) = (one.name.clone(), one.unit.clone());
                sums.push(Sum { name, unit, sources: Vec::new(), now: 0.0, mean: None, max: None, nodes: 0, means: 0, age_ms: 0 });
            }
            let sum = &mut sums[at];
            let join = Combine::of(&one.name, &one.unit);
            let before = sum.nodes;
            sum.now = join.add((before > 0).then_some(sum.now), one.now, before);
            if let Some(mean) = one.mean {
                sum.mean = Some(join.add(sum.mean, mean, sum.means));
                sum.means += 1;
            }
            // A mean of the nodes' maxima would not be a maximum.
            let of_most = if join == Combine::Mean { Combine::Greatest } else { join };
            sum.max = one.max.map(|max| of_most.add(sum.max, max, before)).or(sum.max);
            sum.nodes += 1;
            sum.age_ms = sum.age_ms.max(node.age_ms);
            for source in sources(one) {
                if !sum.sources.iter().any(|known| known == source) {
                    sum.sources.push(source.to_owned());
                }
            }
        }
    }
    sums
}

/// The source of the present value, and the source of mean and maximum.
pub fn sources(one: &v1::Measured) -> impl Iterator<Item = &str> {
    [one.source.as_str(), one.window_source.as_str()].into_iter().filter(|source| !source.is_empty())
}

/// The numbers of one node.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = NodeUsage)]
pub struct NodeUsageJson {
    node: String,
    /// Why there are no numbers.
    error: Option<String>,
    age_ms: Option<u64>,
    measured: Vec<MeasuredJson>,
    /// Null: GPUs were not requested.
    gpus: Option<Vec<GpuJson>>,
    gpus_error: Option<String>,
    ranks_error: Option<String>,
}

impl NodeUsageJson {
    fn new(node: &v1::NodeUsage, with_gpus: bool) -> Self {
        Self {
            node: node.node.clone(),
            error: filled(&node.error),
            age_ms: node.error.is_empty().then_some(node.age_ms),
            measured: node.measured.iter().map(MeasuredJson::from).collect(),
            gpus: with_gpus.then(|| node.gpus.iter().map(|gpu| GpuJson::new(gpu, node.gpus_age_ms)).collect()),
            gpus_error: filled(&node.gpus_error),
            ranks_error: filled(&node.ranks_error),
        }
    }
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Measured)]
pub struct MeasuredJson {
    name: String,
    unit: String,
    source: String,
    now: f64,
    /// Mean and maximum over the requested period, if they are recorded.
    mean: Option<f64>,
    max: Option<f64>,
    /// The source of mean and maximum, if it is another.
    window_source: Option<String>,
}

impl From<&v1::Measured> for MeasuredJson {
    fn from(one: &v1::Measured) -> Self {
        Self {
            name: one.name.clone(),
            unit: one.unit.clone(),
            source: one.source.clone(),
            now: one.now,
            mean: one.mean,
            max: one.max,
            window_source: filled(&one.window_source),
        }
    }
}

/// One GPU of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = GpuUsage)]
pub struct GpuJson {
    id: String,
    model: String,
    /// Why there are no numbers.
    error: Option<String>,
    age_ms: Option<u64>,
    measured: Vec<MeasuredJson>,
    /// Why its clocks are reduced.
    throttled: Vec<String>,
}

impl GpuJson {
    fn new(gpu: &v1::GpuUsage, age_ms: u64) -> Self {
        Self {
            id: gpu.id.clone(),
            model: gpu.model.clone(),
            error: filled(&gpu.error),
            age_ms: gpu.error.is_empty().then_some(age_ms),
            measured: gpu.measured.iter().map(MeasuredJson::from).collect(),
            throttled: gpu.throttled.clone(),
        }
    }
}

/// A rank and its node.
pub type NodeRank<'a> = (&'a str, &'a v1::RankUsage);

/// The ranks of all nodes, sorted by launch and rank.
pub fn sorted_ranks(nodes: &[v1::NodeUsage]) -> Vec<NodeRank<'_>> {
    let mut all: Vec<NodeRank<'_>> = nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| (node.node.as_str(), rank))).collect();
    all.sort_by_key(|(node, rank)| (rank.launch, rank.rank, *node));
    all
}

/// All ranks of one launch.
pub struct LaunchUsage<'a> {
    pub number: u32,
    pub ranks: u32,
    /// Of the ranks with a processor time: the one with the most, the one with the least, and the median.
    pub busiest: Option<(NodeRank<'a>, f64)>,
    pub least: Option<(NodeRank<'a>, f64)>,
    pub median: Option<f64>,
    pub states: BTreeMap<&'a str, u32>,
}

/// The launches of these nodes' ranks, by number.
pub fn launches(nodes: &[v1::NodeUsage]) -> Vec<LaunchUsage<'_>> {
    let mut of: BTreeMap<u32, Vec<NodeRank<'_>>> = BTreeMap::new();
    for rank in sorted_ranks(nodes) {
        of.entry(rank.1.launch).or_default().push(rank);
    }
    of.into_iter().map(|(number, all)| launch(number, &all)).collect()
}

fn launch<'a>(number: u32, all: &[NodeRank<'a>]) -> LaunchUsage<'a> {
    let mut timed: Vec<_> = all.iter().filter_map(|rank| Some((*rank, rank.1.cpu_cores?))).collect();
    timed.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let mut states = BTreeMap::new();
    for (_, rank) in all {
        *states.entry(rank.state.as_str()).or_insert(0) += 1;
    }
    LaunchUsage {
        number,
        ranks: u32::try_from(all.len()).unwrap_or(u32::MAX),
        busiest: timed.last().copied(),
        least: timed.first().copied(),
        median: timed.get(timed.len().saturating_sub(1) / 2).map(|(_, cores)| *cores),
        states,
    }
}

/// One rank: all of its processes together.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = RankUsage)]
pub struct RankJson {
    /// The number of its launch; 0 is the script.
    launch: u32,
    rank: u32,
    node: String,
    /// The process that its launch started.
    pid: i32,
    name: String,
    processes: u32,
    /// Busy processors; null: it has just started.
    cpu_cores: Option<f64>,
    /// The period of its processor time.
    window_ms: Option<u64>,
    memory_bytes: u64,
    threads: u32,
    state: String,
}

fn ranks_json(nodes: &[v1::NodeUsage]) -> Vec<RankJson> {
    let window_ms = |of: &str| nodes.iter().find(|node| node.node == of).map(|node| node.ranks_window_ms);
    let one = |(node, rank): NodeRank<'_>| RankJson {
        launch: rank.launch,
        rank: rank.rank,
        node: node.to_owned(),
        pid: rank.pid,
        name: rank.name.clone(),
        processes: rank.processes,
        cpu_cores: rank.cpu_cores,
        window_ms: window_ms(node),
        memory_bytes: rank.memory_bytes,
        threads: rank.threads,
        state: rank.state.clone(),
    };
    sorted_ranks(nodes).into_iter().map(one).collect()
}

/// All ranks of one launch.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = LaunchUsage)]
pub struct LaunchJson {
    launch: u32,
    ranks: u32,
    busiest: Option<BusyRankJson>,
    least_busy: Option<BusyRankJson>,
    median_cpu_cores: Option<f64>,
    /// How many ranks are in each state.
    states: BTreeMap<String, u32>,
}

/// The busiest or the least busy rank of a launch.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = BusyRank)]
pub struct BusyRankJson {
    rank: u32,
    node: String,
    cpu_cores: f64,
}

impl From<&LaunchUsage<'_>> for LaunchJson {
    fn from(of: &LaunchUsage<'_>) -> Self {
        let busy = |of: Option<(NodeRank<'_>, f64)>| {
            of.map(|((node, rank), cpu_cores)| BusyRankJson { rank: rank.rank, node: node.to_owned(), cpu_cores })
        };
        Self {
            launch: of.number,
            ranks: of.ranks,
            busiest: busy(of.busiest),
            least_busy: busy(of.least),
            median_cpu_cores: of.median,
            states: of.states.iter().map(|(state, count)| ((*state).to_owned(), *count)).collect(),
        }
    }
}

/// The answer of the metrics store, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = StoredMetrics)]
pub struct StoredJson {
    /// Null: no store is configured.
    url: Option<String>,
    /// Why no number is from the store.
    error: Option<String>,
    from_ms: u64,
    until_ms: u64,
    /// The age of its newest sample.
    age_ms: Option<u64>,
    /// The work has ended: all numbers are from the store.
    ended: bool,
}

impl From<&v1::Stored> for StoredJson {
    fn from(stored: &v1::Stored) -> Self {
        Self {
            url: filled(&stored.url),
            error: filled(&stored.error),
            from_ms: stored.from_ms,
            until_ms: stored.until_ms,
            age_ms: stored.age_ms,
            ended: stored.ended,
        }
    }
}

/// What the nodes of an allocation report while it runs. `node` is null if the event is about the whole allocation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
#[schema(as = MetricsEvent)]
pub enum MetricsEventJson {
    /// Numbers of one node.
    Metrics { at_ms: u64, node: Option<String>, age_ms: u64, measured: Vec<MeasuredJson> },
    /// An alert was raised or cleared.
    Alert {
        at_ms: u64,
        node: Option<String>,
        alert: String,
        severity: String,
        raised: bool,
        for_ms: u64,
        text: String,
        launch: Option<u32>,
    },
    /// The node does not report now.
    Unreachable { at_ms: u64, node: Option<String>, reason: String },
    /// For people: what is missing, or what the allocation waits for.
    Note { at_ms: u64, node: Option<String>, text: String },
    /// The allocation has ended; nothing follows.
    End { at_ms: u64, node: Option<String>, state: String },
}

impl MetricsEventJson {
    /// The event; `None` if this program does not know its kind.
    pub fn of(event: &v1::MetricsEvent) -> Option<Self> {
        let (at_ms, node) = (event.at_ms, filled(&event.node));
        Some(match event.what.as_ref()? {
            What::Metrics(usage) => {
                let measured = usage.measured.iter().map(MeasuredJson::from).collect();
                Self::Metrics { at_ms, node, age_ms: usage.age_ms, measured }
            }
            What::Alert(alert) => Self::Alert {
                at_ms,
                node,
                alert: alert.alert.clone(),
                severity: alert.severity.clone(),
                raised: alert.raised,
                for_ms: alert.for_ms,
                text: alert.text.clone(),
                launch: alert.launch,
            },
            What::Unreachable(reason) => Self::Unreachable { at_ms, node, reason: reason.clone() },
            What::Notice(text) => Self::Note { at_ms, node, text: text.clone() },
            What::Ended(state) => Self::End { at_ms, node, state: state.clone() },
        })
    }

    /// Its kind, as in the field `event`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Metrics { .. } => "metrics",
            Self::Alert { .. } => "alert",
            Self::Unreachable { .. } => "unreachable",
            Self::Note { .. } => "note",
            Self::End { .. } => "end",
        }
    }
}

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, unit: &str, now: f64) -> v1::Measured {
        v1::Measured { name: name.into(), unit: unit.into(), source: "cgroup2".into(), now, ..Default::default() }
    }

    #[test]
    fn amounts_of_nodes_are_added_and_ratios_are_not() {
        let node = |cores: f64, share: f64| v1::NodeUsage {
            measured: vec![measured("cpu_cores", "cores", cores), measured("pressure_cpu", "ratio", share)],
            ..Default::default()
        };
        let sums = summary(&[node(1.5, 0.25), node(2.0, 0.5)]);
        let shown: Vec<_> = sums.iter().map(|sum| (sum.name.as_str(), sum.now, sum.nodes)).collect();
        assert_eq!(shown, [("cpu_cores", 3.5, 2), ("pressure_cpu", 0.5, 2)]);
    }

    #[test]
    fn a_node_has_numbers_or_says_why_not() {
        let gone = v1::NodeUsage { node: "n2".into(), error: "gone".into(), age_ms: 7, ..Default::default() };
        let gpu = v1::GpuUsage { id: "GPU-1".into(), error: "NVML: lost".into(), ..Default::default() };
        let here = v1::NodeUsage { node: "n1".into(), age_ms: 9, gpus: vec![gpu], gpus_age_ms: 3, ..Default::default() };
        let top = v1::TopResponse { allocation: "a".into(), nodes: vec![here, gone], per_gpu: true, ..Default::default() };
        let json = TopJson::from(&top);
        assert_eq!((json.nodes[0].age_ms, &json.nodes[0].error), (Some(9), &None));
        assert_eq!((json.nodes[1].age_ms, json.nodes[1].error.as_deref()), (None, Some("gone")));
        let gpus = json.nodes[0].gpus.as_deref().unwrap();
        assert_eq!((gpus[0].age_ms, gpus[0].error.as_deref()), (None, Some("NVML: lost")));
        assert_eq!((json.ranks, json.launches, json.stored), (None, None, None));
    }

    #[test]
    fn ranks_are_sorted_over_all_nodes_and_their_launch_names_the_busiest() {
        let rank = |rank, cpu_cores| v1::RankUsage { launch: 1, rank, cpu_cores, state: "sleeping".into(), ..Default::default() };
        let node = |name: &str, ranks| v1::NodeUsage { node: name.into(), ranks, ranks_window_ms: 1002, ..Default::default() };
        let nodes = vec![node("n2", vec![rank(1, Some(0.5)), rank(3, None)]), node("n1", vec![rank(0, Some(0.1))])];
        let top = v1::TopResponse { nodes, per_rank: true, ..Default::default() };
        let json = TopJson::from(&top);
        let ranks: Vec<_> = json.ranks.unwrap().iter().map(|one| (one.rank, one.node.clone(), one.window_ms)).collect();
        assert_eq!(ranks, [(0, "n1".into(), Some(1002)), (1, "n2".into(), Some(1002)), (3, "n2".into(), Some(1002))]);
        let launches = json.launches.unwrap();
        let busiest = launches[0].busiest.as_ref().unwrap();
        assert_eq!((busiest.rank, busiest.cpu_cores, launches[0].states["sleeping"]), (1, 0.5, 3));
    }

    #[test]
    fn an_event_has_its_kind_and_its_node() {
        let event = |node: &str, what| v1::MetricsEvent { at_ms: 5, node: node.into(), what: Some(what) };
        let one = MetricsEventJson::of(&event("n1", What::Unreachable("no answer".into()))).unwrap();
        assert_eq!(one, MetricsEventJson::Unreachable { at_ms: 5, node: Some("n1".into()), reason: "no answer".into() });
        let end = MetricsEventJson::of(&event("", What::Ended("Completed".into()))).unwrap();
        assert_eq!((end.name(), &end), ("end", &MetricsEventJson::End { at_ms: 5, node: None, state: "Completed".into() }));
        assert_eq!(MetricsEventJson::of(&v1::MetricsEvent::default()), None);
    }
}
