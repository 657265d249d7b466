//! The fields of sinfo, and how nodes become lines.

use crate::context::Context;
use crate::format::{Field, FormatError, Layout, SortKey};
use crate::node::{self, State, Use};
use crate::partition::{Partition, natural};
use crate::units::{NULL, folded};
use lattice_api::v1;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The columns without options.
pub const DEFAULT: &str = "%P %.5a %.10l %.6D %.6t %N";
/// The columns of `--summarize`.
pub const SUMMARY: &str = "%P %.5a %.10l %.16F  %N";
/// The columns of `--long`.
pub const LONG: &str = "%P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N";
/// The columns of `--Node`.
pub const NODES: &str = "%N %.6D %P %6t";
/// The columns of `--long --Node`.
pub const LONG_NODES: &str = "%N %.6D %P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E";
/// The columns of `--list-reasons`.
pub const REASONS: &str = "%20E %9u %19H %N";
/// The columns of `--long --list-reasons`.
pub const LONG_REASONS: &str = "%20E %12U %19H %6t %N";

/// A line: nodes of a partition whose shown fields are the same.
#[derive(Clone, Debug)]
pub struct Group {
    /// The first partition.
    pub partition: Option<Rc<Partition>>,
    /// The nodes; empty for a partition without nodes.
    pub nodes: Vec<Rc<v1::Node>>,
}

const fn both(letter: char, name: &'static str, heading: &'static str, value: fn(&Group, &Context<'_>) -> String) -> Field<Group> {
    Field { letter: Some(letter), name, heading, value }
}

const fn named(name: &'static str, heading: &'static str, value: fn(&Group, &Context<'_>) -> String) -> Field<Group> {
    Field { letter: None, name, heading, value }
}

/// The letters and names of fields that are about all nodes of a line together, so that they do not separate nodes.
const SUMS: [&str; 8] = ["NodeAI", "NodeAIOT", "CPUsState", "Nodes", "NodeList", "NodeHost", "NodeAddr", "MaxCPUsPerNode"];
/// Fields whose least value is shown, with a `+`, if nodes differ and `--exact` is not given.
const AMOUNTS: [&str; 9] = ["CPUs", "Memory", "Disk", "Sockets", "Cores", "Threads", "SocketCoreThread", "Weight", "AllocMem"];

/// The fields of sinfo.
pub const NODE_FIELDS: &[Field<Group>] = &[
    both('a', "Available", "AVAIL", |_, _| "up".to_owned()),
    both('A', "NodeAI", "NODES(A/I)", |group, _| {
        let [allocated, idle, ..] = group.node_counts();
        format!("{allocated}/{idle}")
    }),
    both('b', "features_act", "ACTIVE_FEATURES", |group, _| group.text(features)),
    both('B', "MaxCPUsPerNode", "MAX_CPUS_PER_NODE", |_, _| "UNLIMITED".to_owned()),
    both('c', "CPUs", "CPUS", |group, _| group.least(|node| u64::from(node.cores))),
    both('C', "CPUsState", "CPUS(A/I/O/T)", |group, _| slashes(group.cpu_counts())),
    both('d', "Disk", "TMP_DISK", |group, _| group.least(|_| 0)),
    both('D', "Nodes", "NODES", |group, _| group.nodes.len().to_string()),
    both('e', "FreeMem", "FREE_MEM", |_, _| "N/A".to_owned()),
    both('E', "Reason", "REASON", |group, _| none_if_empty(group.text(node::reason))),
    both('f', "Features", "AVAIL_FEATURES", |group, _| group.text(features)),
    both('F', "NodeAIOT", "NODES(A/I/O/T)", |group, _| slashes(group.node_counts())),
    both('g', "Groups", "GROUPS", |_, _| "all".to_owned()),
    both('G', "Gres", "GRES", |group, _| group.text(|node| node::gres(node.gpus))),
    both('h', "OverSubscribe", "OVERSUBS", |_, _| "NO".to_owned()),
    both('H', "TimeStamp", "TIMESTAMP", |group, c| {
        group.text(|node| if node::reason(node).is_empty() { "Unknown".to_owned() } else { c.clock.text(node.state_since_ms) })
    }),
    both('I', "PriorityJobFactor", "PRIO_JOB_FACTOR", |_, _| "1".to_owned()),
    both('l', "Time", "TIMELIMIT", |_, _| "infinite".to_owned()),
    both('L', "DefaultTime", "DEFAULTTIME", |_, _| "n/a".to_owned()),
    both('m', "Memory", "MEMORY", |group, _| group.least(|node| node.memory_bytes >> 20)),
    both('M', "PreemptMode", "PREEMPT_MODE", |_, _| "REQUEUE".to_owned()),
    both('n', "NodeHost", "HOSTNAMES", |group, _| folded(group.nodes.iter().map(|node| &node.id))),
    both('N', "NodeList", "NODELIST", |group, _| folded(group.nodes.iter().map(|node| &node.id))),
    both('o', "NodeAddr", "NODE_ADDR", |group, _| group.nodes.iter().map(|node| node.mesh_address.as_str()).collect::<Vec<_>>().join(",")),
    both('O', "CPUsLoad", "CPU_LOAD", |_, _| "N/A".to_owned()),
    both('p', "PriorityTier", "PRIO_TIER", |_, _| "1".to_owned()),
    both('P', "Partition", "PARTITION", |group, _| group.partition.as_ref().map_or_else(|| "n/a".to_owned(), |one| one.marked_name())),
    both('r', "Root", "ROOT", |_, _| "no".to_owned()),
    both('R', "PartitionName", "PARTITION", |group, _| group.partition.as_ref().map_or_else(|| "n/a".to_owned(), |one| one.name.clone())),
    both('s', "Size", "JOB_SIZE", |_, _| "1-infinite".to_owned()),
    both('S', "AllocNodes", "ALLOCNODES", |_, _| "all".to_owned()),
    both('t', "StateCompact", "STATE", |group, _| none_in(group, State::compact)),
    both('T', "StateLong", "STATE", |group, _| none_in(group, State::long)),
    both('u', "User", "USER", |group, _| group.text(|node| node::drained_by(node).unwrap_or("Unknown").to_owned())),
    both('U', "UserLong", "USER", |group, c| {
        group.text(|node| match node::drained_by(node) {
            Some(by) => format!("{by}({})", c.uid_text(by)),
            None => "Unknown".to_owned(),
        })
    }),
    both('v', "Version", "VERSION", |_, _| crate::commands::SLURM_VERSION.to_owned()),
    both('V', "Cluster", "CLUSTER", |_, c| c.compat.cluster().to_owned()),
    both('w', "Weight", "WEIGHT", |group, _| group.least(|_| 1)),
    both('X', "Sockets", "SOCKETS", |group, _| group.least(sockets)),
    both('Y', "Cores", "CORES", |group, _| group.least(|node| u64::from(node.cores) / sockets(node))),
    both('Z', "Threads", "THREADS", |group, _| group.least(|_| 1)),
    both('z', "SocketCoreThread", "S:C:T", |group, _| {
        group.nodes.first().map_or_else(String::new, |node| format!("{}:{}:1", sockets(node), u64::from(node.cores) / sockets(node)))
    }),
    named("AllocMem", "ALLOCMEM", |group, _| group.least(|node| node.committed.as_ref().map_or(0, |used| used.memory_bytes >> 20))),
    named("Comment", "COMMENT", |_, _| NULL.to_owned()),
    named("Extra", "EXTRA", |_, _| NULL.to_owned()),
    named("GresUsed", "GRES_USED", |group, _| {
        group.text(
            |node| if node.gpus == 0 { NULL.to_owned() } else { format!("gpu:{}", node.committed.as_ref().map_or(0, |used| used.gpus)) },
        )
    }),
    named("Port", "PORT", |_, _| "0".to_owned()),
    named("Priority", "PRIO_TIER", |_, _| "1".to_owned()),
    named("StateComplete", "STATECOMPLETE", |group, _| none_in(group, |state| state.flags().to_ascii_lowercase())),
];

fn sockets(node: &v1::Node) -> u64 {
    node::sockets(node).into()
}

fn features(node: &v1::Node) -> String {
    if node.features.is_empty() { NULL.to_owned() } else { node.features.join(",") }
}

fn none_if_empty(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}

fn none_in(group: &Group, text: fn(State) -> String) -> String {
    group.nodes.first().map_or_else(|| "n/a".to_owned(), |node| text(State::of(node)))
}

fn slashes(numbers: [u64; 4]) -> String {
    numbers.map(|number| number.to_string()).join("/")
}

impl Group {
    /// The text of the first node: the others have the same.
    fn text(&self, of: impl Fn(&v1::Node) -> String) -> String {
        self.nodes.first().map_or_else(String::new, |node| of(node))
    }

    /// The least number, with a `+` if nodes have more.
    fn least(&self, of: impl Fn(&v1::Node) -> u64) -> String {
        let (least, most) = self.nodes.iter().fold((u64::MAX, 0), |(least, most), node| (least.min(of(node)), most.max(of(node))));
        match (self.nodes.is_empty(), least == most) {
            (true, _) => "0".to_owned(),
            (false, true) => least.to_string(),
            (false, false) => format!("{least}+"),
        }
    }

    /// Nodes with work, idle ones, others, and all.
    pub fn node_counts(&self) -> [u64; 4] {
        let mut counts = [0, 0, 0, self.nodes.len() as u64];
        for node in &self.nodes {
            let state = State::of(node);
            counts[match state.use_ {
                Use::Allocated | Use::Mixed => 0,
                Use::Idle if state.is_usable() => 1,
                Use::Idle | Use::Down | Use::PoweringUp => 2,
            }] += 1;
        }
        counts
    }

    /// Processors with work, idle ones, others, and all.
    pub fn cpu_counts(&self) -> [u64; 4] {
        let mut counts = [0; 4];
        for node in &self.nodes {
            let all = u64::from(node.cores);
            let state = State::of(node);
            let used = match &node.committed {
                Some(committed) => u64::from(committed.cores).min(all),
                None if matches!(state.use_, Use::Allocated | Use::Mixed) => all,
                None => 0,
            };
            counts[0] += used;
            counts[if state.is_usable() { 1 } else { 2 }] += all - used;
            counts[3] += all;
        }
        counts
    }
}

/// Which lines are wanted.
pub struct Wanted<'a> {
    /// A line for each node.
    pub by_node: bool,
    /// Nodes with different amounts are in different lines.
    pub is_exact: bool,
    /// Also partitions without nodes.
    pub with_empty: bool,
    /// Whether a node is wanted.
    pub wants: &'a dyn Fn(&v1::Node) -> bool,
}

/// The lines: nodes that look alike in these columns are in one line.
pub fn groups(partitions: Vec<Partition>, layout: &Layout<Group>, wanted: &Wanted<'_>, context: &Context<'_>) -> Vec<Group> {
    let is_among = |names: &[&str], field: &Field<Group>| names.contains(&field.name);
    let parting: Vec<&Field<Group>> =
        layout.fields().filter(|field| !is_among(&SUMS, field) && (wanted.is_exact || !is_among(&AMOUNTS, field))).collect();
    let mut groups: Vec<Group> = Vec::new();
    let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for partition in partitions {
        let nodes: Vec<Rc<v1::Node>> = partition.nodes.iter().filter(|node| (wanted.wants)(node)).cloned().collect();
        let is_empty = partition.nodes.is_empty() && wanted.with_empty;
        let partition = Rc::new(partition);
        let parts = nodes.into_iter().map(|node| vec![node]).chain(is_empty.then(Vec::new));
        for nodes in parts {
            let group = Group { partition: Some(Rc::clone(&partition)), nodes };
            let mut key: Vec<String> = parting.iter().map(|field| (field.value)(&group, context)).collect();
            if wanted.by_node {
                key.extend(group.nodes.first().map(|node| node.id.clone()));
                key.push(partition.name.clone());
            }
            match places.get(&key) {
                Some(&at) => {
                    let known = &mut groups[at].nodes;
                    let is_new = |node: &Rc<v1::Node>| !known.iter().any(|other| other.id == node.id);
                    let new: Vec<_> = group.nodes.into_iter().filter(is_new).collect();
                    known.extend(new);
                }
                None => {
                    places.insert(key, groups.len());
                    groups.push(group);
                }
            }
        }
    }
    groups
}

/// Sorts lines. Partitions stay in the given order, unless `P` sorts them by their names.
pub fn sort(groups: &mut [Group], keys: &[SortKey], context: &Context<'_>) {
    let compared = |a: &Group, b: &Group, key: &SortKey| {
        let state = |group: &Group| group.nodes.first().map(|node| State::of(node));
        let name = |group: &Group| group.nodes.first().map(|node| node.id.clone()).unwrap_or_default();
        let order = match key.letter {
            't' | 'T' => state(a).cmp(&state(b)),
            'N' | 'n' => natural(&name(a)).cmp(&natural(&name(b))),
            'D' => a.nodes.len().cmp(&b.nodes.len()),
            'c' => a.cpu_counts()[3].cmp(&b.cpu_counts()[3]),
            letter => NODE_FIELDS
                .iter()
                .find(|field| field.letter == Some(letter))
                .map_or(Ordering::Equal, |field| (field.value)(a, context).cmp(&(field.value)(b, context))),
        };
        if key.is_descending { order.reverse() } else { order }
    };
    groups.sort_by(|a, b| keys.iter().map(|key| compared(a, b, key)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal));
}

/// A function that says whether a node is in one of these states; with `&` in all of them.
///
/// # Errors
/// Slurm has no such state.
pub fn in_states(states: &[String]) -> Result<impl Fn(&v1::Node) -> bool + use<>, FormatError> {
    let probe = State { use_: Use::Idle, is_draining: false, is_silent: false };
    let states: Vec<Vec<String>> = states.iter().map(|all| all.split('&').map(str::to_owned).collect()).collect();
    for name in states.iter().flatten() {
        if !name.eq_ignore_ascii_case("all") && probe.is(name.trim_end_matches('*')).is_none() {
            return Err(FormatError::Unknown(name.chars().take(40).collect()));
        }
    }
    Ok(move |node: &v1::Node| {
        let state = State::of(node);
        let is = |name: &String| name.eq_ignore_ascii_case("all") || state.is(name.trim_end_matches('*')) == Some(true);
        states.is_empty() || states.iter().any(|all| all.iter().all(is))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::sort_keys;
    use crate::partition::partitions;
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;

    fn node(id: &str, used: u32, cores: u32, holds: &[&str]) -> Rc<v1::Node> {
        Rc::new(v1::Node {
            id: id.into(),
            state: "Ready".into(),
            cores,
            memory_bytes: 64 << 30,
            committed: Some(v1::Amount { cores: used, ..Default::default() }),
            allocations: (used > 0).then(|| "1f0c9a4e".to_owned()).into_iter().collect(),
            holds: holds.iter().map(|hold| (*hold).to_owned()).collect(),
            schedulable: true,
            gossip: "alive".into(),
            ..Default::default()
        })
    }

    fn shown(format: &str, by_node: bool, states: &[&str]) -> Vec<String> {
        let nodes = [
            node("n1", 64, 64, &[]),
            node("n2", 3, 64, &[]),
            node("n3", 0, 64, &[]),
            node("n4", 0, 128, &[]),
            node("n5", 0, 64, &["drain by op since 2026-03-05T10:00:12.034Z: bad fan"]),
        ];
        let vclusters = ["default", "ml"].map(|name| v1::VCluster { name: name.into(), ..Default::default() });
        let compat = Compat::default();
        let (clock, sizes) = (Clock::new(0, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| Some(7), nodes: &sizes };
        let mut layout = Layout::of_letters(format, NODE_FIELDS).unwrap();
        let states: Vec<String> = states.iter().map(|state| (*state).to_owned()).collect();
        let wants = in_states(&states).unwrap();
        let wanted = Wanted { by_node, is_exact: false, with_empty: true, wants: &wants };
        let mut lines = groups(partitions(&vclusters, &nodes, &compat), &layout, &wanted, &context);
        sort(&mut lines, &sort_keys(if by_node { "N" } else { "" }, |_| true).unwrap(), &context);
        for letter in ['P', 'N'] {
            layout.widen(letter, &lines, &context);
        }
        std::iter::once(layout.heading()).chain(lines.iter().map(|line| layout.line(line, &context).trim_end().to_owned())).collect()
    }

    #[test]
    fn nodes_of_a_partition_are_grouped_by_state() {
        let lines = shown(DEFAULT, false, &[]);
        let want = [
            "default*    up   infinite      1  alloc n1",
            "default*    up   infinite      1    mix n2",
            "default*    up   infinite      2   idle n[3-4]",
            "default*    up   infinite      1  drain n5",
        ];
        assert!(lines[0].starts_with("PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST"), "{}", lines[0]);
        for (line, want) in lines[1..].iter().zip(want) {
            assert_eq!(line.split_whitespace().collect::<Vec<_>>(), want.split_whitespace().collect::<Vec<_>>());
        }
        assert_eq!(lines.len(), 9);
        assert_eq!(shown("%P %D %t", false, &["idle"]).len(), 3);
    }

    #[test]
    fn formats_of_programs_are_understood() {
        assert_eq!(shown("%P", false, &[]), ["PARTITION", "default*", "ml"]);
        assert_eq!(shown("%C", false, &[])[1], "67/253/64/384");
        assert_eq!(shown("%R %F %c", false, &[])[1], "default 2/2/1/5 64+");
        assert_eq!(shown("%n %E %u %U", true, &["drain"])[1], "n5 bad fan op op(7)");
    }

    #[test]
    fn each_node_and_partition_is_a_line_where_that_is_wanted() {
        let lines = shown(NODES, true, &[]);
        assert_eq!(lines.len(), 11);
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["n1", "1", "default*", "alloc"]);
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["n1", "1", "ml", "alloc"]);
    }

    #[test]
    fn a_state_that_slurm_does_not_have_is_refused() {
        assert!(in_states(&["sleepy".to_owned()]).is_err());
    }
}
