//! The lists of work and of nodes.

use super::columns::{Column, List, Row, Tone};
use super::filter::Filter;
use super::snapshot::{NodeList, Work};
use lattice_api::v1;
use lattice_cli_session::shown::counts::node_count;
use lattice_cli_session::shown::{Part, filled, left, part, queue, reason, reasons_text, short, work_name};
use lattice_model::NodeState;
use lattice_model::resources::bytes_text;
use lattice_model::time::Timestamp;

const QUEUE_COLUMNS: &[Column] = &[
    Column { name: "JOB", rank: 4, least: 0 },
    Column { name: "ID", rank: 0, least: 0 },
    Column { name: "NAME", rank: 0, least: 8 },
    Column { name: "OWNER", rank: 5, least: 6 },
    Column { name: "STATE", rank: 0, least: 0 },
    Column { name: "NODES", rank: 6, least: 0 },
    Column { name: "LEFT", rank: 3, least: 0 },
    Column { name: "VCLUSTER", rank: 1, least: 8 },
    Column { name: "ON", rank: 2, least: 6 },
    Column { name: "REASON", rank: 7, least: 16 },
];

const NODE_COLUMNS: &[Column] = &[
    Column { name: "NODE", rank: 0, least: 8 },
    Column { name: "STATE", rank: 0, least: 0 },
    Column { name: "CORES", rank: 0, least: 0 },
    Column { name: "MEMORY", rank: 4, least: 0 },
    Column { name: "GPUS", rank: 5, least: 0 },
    Column { name: "WORK", rank: 6, least: 0 },
    Column { name: "VCLUSTER", rank: 1, least: 8 },
    Column { name: "GOSSIP", rank: 3, least: 0 },
    Column { name: "REASON", rank: 7, least: 16 },
];

/// The order of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// As `lattice status`: with nodes, then in line, then others.
    #[default]
    Expected,
    Newest,
    Owner,
    Largest,
}

impl QueueOrder {
    /// The next order; the first follows the last.
    pub fn next(self) -> Self {
        match self {
            Self::Expected => Self::Newest,
            Self::Newest => Self::Owner,
            Self::Owner => Self::Largest,
            Self::Largest => Self::Expected,
        }
    }

    /// Its description, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Expected => "in the order in which work is expected to begin",
            Self::Newest => "the latest submission first",
            Self::Owner => "by owner",
            Self::Largest => "the most nodes first",
        }
    }
}

/// The order of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeOrder {
    #[default]
    Name,
    State,
    FreeCores,
}

impl NodeOrder {
    /// The next order; the first follows the last.
    pub fn next(self) -> Self {
        match self {
            Self::Name => Self::State,
            Self::State => Self::FreeCores,
            Self::FreeCores => Self::Name,
        }
    }

    /// Its description, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Name => "by name",
            Self::State => "by state, Ready last",
            Self::FreeCores => "the most free cores first",
        }
    }
}

/// The work that has not ended.
pub fn queue_list(work: &Work, filter: &Filter, order: QueueOrder, now: Timestamp) -> List {
    let mut shown: Vec<&v1::Allocation> = work.allocations.iter().filter(|a| matches(a, filter)).collect();
    match order {
        QueueOrder::Expected => {}
        QueueOrder::Newest => shown.sort_by(|a, b| (b.submitted_at_ms, &b.id).cmp(&(a.submitted_at_ms, &a.id))),
        QueueOrder::Owner => shown.sort_by(|a, b| a.owner.cmp(&b.owner)),
        QueueOrder::Largest => shown.sort_by_key(|a| std::cmp::Reverse(nodes_of(a))),
    }
    List { columns: QUEUE_COLUMNS, rows: shown.into_iter().map(|a| queue_row(a, work.all_users, now)).collect() }
}

fn nodes_of(a: &v1::Allocation) -> usize {
    a.nodes.len().max(usize::try_from(a.nodes_requested).unwrap_or(usize::MAX))
}

fn matches(a: &v1::Allocation, filter: &Filter) -> bool {
    let number = a.number.to_string();
    let fixed = [&a.id, &a.name, &a.owner, &a.state, &number].map(String::as_str);
    filter.matches(fixed.into_iter().chain([queue(&a.vcluster)]).chain(a.nodes.iter().map(String::as_str)))
}

fn queue_row(a: &v1::Allocation, owners: bool, now: Timestamp) -> Row {
    let on = match a.nodes.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first, others @ ..] => format!("{first}+{}", others.len()),
    };
    let cells = vec![
        if a.number == 0 { String::new() } else { a.number.to_string() },
        short(&a.id).to_owned(),
        work_name(a),
        if owners { a.owner.clone() } else { String::new() },
        a.state.clone(),
        node_count(a),
        left(a, now).unwrap_or_default(),
        queue(&a.vcluster).to_owned(),
        on,
        filled(&a.status_message).map_or_else(|| reason(a), str::to_owned),
    ];
    let tone = match part(a) {
        Part::HasNodes if a.status_message.is_empty() && a.preemption.is_empty() => Tone::Good,
        Part::HasNodes => Tone::Bad,
        Part::InLine => Tone::Waits,
        Part::Waits | Part::Ended => Tone::Plain,
    };
    Row { key: a.id.clone(), cells, tone }
}

/// The nodes.
pub fn node_list(list: &NodeList, filter: &Filter, order: NodeOrder) -> List {
    let matching = |n: &&v1::Node| {
        let fixed = [&n.id, &n.state, &n.reason].map(String::as_str);
        let more = n.features.iter().chain(&n.holds).map(String::as_str);
        filter.matches(fixed.into_iter().chain([queue(&n.vcluster)]).chain(more))
    };
    let mut shown: Vec<&v1::Node> = list.nodes.iter().filter(matching).collect();
    match order {
        NodeOrder::Name => {}
        NodeOrder::State => shown.sort_by_key(|n| (is_ready(n), n.state.clone())),
        NodeOrder::FreeCores => shown.sort_by_key(|n| std::cmp::Reverse(n.committed.map(|used| n.cores.saturating_sub(used.cores)))),
    }
    List { columns: NODE_COLUMNS, rows: shown.into_iter().map(node_row).collect() }
}

/// Whether the node is Ready.
pub fn is_ready(n: &v1::Node) -> bool {
    n.state == NodeState::Ready.to_string()
}

fn node_row(n: &v1::Node) -> Row {
    let used = n.committed;
    let of = |used: Option<u32>, size: u32| match (used, size) {
        (_, 0) => String::new(),
        (Some(used), size) => format!("{used}/{size}"),
        (None, size) => format!("?/{size}"),
    };
    let memory = match used {
        Some(used) if n.memory_bytes > 0 => format!("{}/{}", memory_text(used.memory_bytes), memory_text(n.memory_bytes)),
        _ => String::new(),
    };
    let cells = vec![
        n.id.clone(),
        n.state.clone(),
        of(used.map(|used| used.cores), n.cores),
        memory,
        of(used.map(|used| used.gpus), n.gpus),
        if n.allocations.is_empty() { String::new() } else { n.allocations.len().to_string() },
        queue(&n.vcluster).to_owned(),
        n.gossip.clone(),
        reasons_text(n),
    ];
    Row { key: n.id.clone(), cells, tone: node_tone(n) }
}

fn memory_text(bytes: u64) -> String {
    if bytes == 0 { "0".to_owned() } else { bytes_text(bytes).replace(".0 ", " ") }
}

fn node_tone(n: &v1::Node) -> Tone {
    let is = |states: &[NodeState]| states.iter().any(|state| n.state == state.to_string());
    if is(&[NodeState::Down, NodeState::Failed]) {
        Tone::Bad
    } else if !is_ready(n) || !n.schedulable || !n.holds.is_empty() {
        Tone::Waits
    } else {
        Tone::Good
    }
}
