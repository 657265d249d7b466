//! Nodes as columns.

use super::amounts::resources;
use super::values::{filled, queue, short, time};
use crate::output::{TableSize, Width};
use crate::table::{Fit, NOTHING, Table, block};
use lattice_api::node::locality;
use lattice_api::v1;
use lattice_model::resources::{Resources, bytes_text};
use lattice_model::{DEFAULT_VCLUSTER, HoldKind};

/// The columns of [`node_row`].
pub const NODE_HEADING: &[&str] = &["NODE", "STATE", "CORES", "MEMORY", "GPUS", "VCLUSTER", "FEATURES", "NOT ENFORCED", "REASON"];

/// The columns that a narrow screen does not show.
pub const NODE_EXTRA: &[&str] = &["FEATURES", "NOT ENFORCED"];

/// A node as a line of a watch.
pub fn node_row(n: &v1::Node) -> Vec<String> {
    let (cores, gpus) = (n.cores.to_string(), n.gpus.to_string());
    let (features, unenforced_limits) = (n.features.join(","), n.unenforced_limits.join(","));
    let queue = queue(&n.vcluster).to_owned();
    vec![n.id.clone(), n.state.clone(), cores, memory(n.memory_bytes), gpus, queue, features, unenforced_limits, reasons_text(n)]
}

/// Why a node has its state, and what keeps work off it.
pub fn reasons_text(n: &v1::Node) -> String {
    let reasons = std::iter::once(n.reason.clone()).chain(n.holds.iter().map(|hold| with_exit(hold)));
    let reasons = reasons.chain(filled(&n.relay_node).map(|peer| format!("connected through {peer}: it reaches no member itself")));
    let reasons = reasons.chain((!n.schedulable).then(|| "takes no work (schedulable: false)".to_owned()));
    reasons.filter(|reason| !reason.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The agent's text for a hold, and the command that lifts it. An unknown kind is shown without a command.
pub fn with_exit(hold: &str) -> String {
    let kind = hold.split(' ').next().and_then(HoldKind::from_name);
    kind.map_or_else(|| hold.to_owned(), |kind| format!("{hold} (`{}` lifts it)", kind.exit()))
}

/// How a list of nodes is made narrower.
const NODES_FIT: Fit<'_> = Fit {
    left_out: &["CONFORMANCE"],
    shortened: &[("VCLUSTER", 8), ("NODE", 12)],
    wrapped: &[("REASON", 16)],
    left_out_last: &["ALLOCATIONS", "VCLUSTER", "GOSSIP"],
};

/// The list of nodes, in the given order. It shows how much of each node is free; wide it also shows topology groups,
/// memory domains, features, unenforced limits, the size of each conformance group, since when each node has its state,
/// and its address.
pub fn nodes_table(nodes: &[v1::Node], size: TableSize) -> String {
    let is_wide = size.width == Width::Wide;
    let first = ["NODE", "STATE", "FREE CORES", "FREE MEMORY", "FREE GPUS", "VCLUSTER", "CONFORMANCE", "ALLOCATIONS", "GOSSIP"];
    let more: &[&str] = if is_wide { &["TOPOLOGY", "DOMAINS", "FEATURES", "NOT ENFORCED", "SINCE", "MESH"] } else { &[] };
    let mut table = Table::new(&[&first[..], more, &["REASON"]].concat());
    // If all nodes are in one group, a terse table leaves the column out.
    let group_of = |n: &v1::Node| n.conformance.as_ref().map(|report| (report.fingerprint.clone(), report.drifted_since_ms != 0));
    let differ = nodes.iter().any(|n| group_of(n) != nodes.first().and_then(group_of) || group_of(n).is_some_and(|(_, drifted)| drifted));
    let several = nodes.iter().any(|n| queue(&n.vcluster) != DEFAULT_VCLUSTER);
    let any_gpus = nodes.iter().any(|n| n.gpus > 0);
    let all_alive = nodes.iter().all(|n| n.gossip == "alive");
    for n in nodes {
        let size = Resources { cores: n.cores, memory_bytes: n.memory_bytes, gpus: n.gpus };
        let free = n.committed.as_ref().map(|committed| size.minus(&resources(committed)));
        let ids: Vec<&str> = n.allocations.iter().map(|id| short(id)).collect();
        let mut cells = vec![
            n.id.clone(),
            n.state.clone(),
            free_of(free.map(|free| free.cores), n.cores, |cores| cores.to_string()),
            free_of(free.map(|free| free.memory_bytes), n.memory_bytes, memory),
            if any_gpus || is_wide { free_of(free.map(|free| free.gpus), n.gpus, |gpus| gpus.to_string()) } else { String::new() },
            if several || is_wide { queue(&n.vcluster).to_owned() } else { String::new() },
            n.conformance.as_ref().filter(|_| differ || is_wide).map(|report| conformance(report, is_wide)).unwrap_or_default(),
            match ids[..] {
                [first, _, ..] if !is_wide => format!("{first}+{}", ids.len() - 1),
                _ => ids.join(","),
            },
            if all_alive && !is_wide { String::new() } else { n.gossip.clone() },
        ];
        if is_wide {
            let since = time(n.state_since_ms).unwrap_or_default();
            cells.extend([n.topology_group.clone(), locality(n).to_string()]);
            cells.extend([n.features.join(","), n.unenforced_limits.join(","), since, n.mesh_address.clone()]);
        }
        cells.push(reasons_text(n));
        table.row(cells);
    }
    table.on_screen(&["FREE GPUS", "VCLUSTER", "CONFORMANCE", "GOSSIP", "REASON"], &NODES_FIT, size)
}

/// The conformance group of a node as a cell; wide with the number of its nodes. Without spaces in the group, because
/// people sort and count by it.
fn conformance(report: &v1::Conformance, is_wide: bool) -> String {
    let group = short(&report.fingerprint);
    let nodes = if is_wide { format!("({})", report.group_nodes.max(1)) } else { String::new() };
    let stale = if is_wide && report.stale { " stale" } else { "" };
    let drifted = if report.drifted_since_ms == 0 { "" } else { " drifted" };
    format!("{group}{nodes}{stale}{drifted}")
}

/// The memory domains of a node, and its CXL memory, as a line; empty if they are not known.
pub fn domains_text(n: &v1::Node) -> String {
    block(&[("Domains", locality(n).to_string())])
}

fn memory(bytes: u64) -> String {
    if bytes == 0 { NOTHING.to_owned() } else { bytes_text(bytes) }
}

/// `2 of 4`, `128 of 512 GiB`, or only the total if all of it is free.
fn free_of<T: PartialEq>(free: Option<T>, size: T, text: impl Fn(T) -> String) -> String {
    let Some(free) = free else { return format!("? of {}", text(size)) };
    if free == size {
        return text(size);
    }
    let (free, size) = (text(free).replace(".0 ", " "), text(size).replace(".0 ", " "));
    match (free.split_once(' '), size.split_once(' ')) {
        (Some((number, unit)), Some((_, whole))) if unit == whole => format!("{number} of {size}"),
        _ => format!("{free} of {size}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{NARROW, assert_fits};

    const TERSE: TableSize = TableSize { width: Width::Terse, columns: None };
    const WIDE: TableSize = TableSize { width: Width::Wide, columns: Some(80) };

    #[test]
    fn nodes_are_shown_with_the_reasons_why_they_get_no_work() {
        let node = v1::Node {
            id: "n1".into(),
            state: "Ready".into(),
            cores: 64,
            memory_bytes: 512 << 30,
            gpus: 4,
            committed: Some(v1::Amount::default()),
            allocations: vec!["1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into()],
            schedulable: true,
            gossip: "alive".into(),
            ..Default::default()
        };
        let login = v1::Node {
            id: "login".into(),
            state: "Degraded".into(),
            reason: "silent for 31 s".into(),
            cores: 2,
            memory_bytes: 800 << 20,
            committed: Some(v1::Amount::default()),
            holds: vec!["cordon by ada since 2026: fan".into()],
            gossip: "suspect".into(),
            unenforced_limits: vec!["memory".into(), "io".into()],
            ..Default::default()
        };
        let want = "\
NODE   STATE     FREE CORES  FREE MEMORY  FREE GPUS  ALLOCATIONS  GOSSIP   REASON
n1     Ready     64          512.0 GiB    4          1f0c9a4e     alive    —
login  Degraded  2           800 MiB      0          —            suspect  silent for 31 s; cordon by ada since 2026: fan (`lattice node uncordon` lifts it); takes no work (schedulable: false)
";
        assert_eq!(nodes_table(&[node.clone(), login], TERSE), want);
        assert!(!nodes_table(std::slice::from_ref(&node), TERSE).contains("REASON"));
        let of = |vcluster: &str| v1::Node { vcluster: vcluster.into(), ..node.clone() };
        assert!(nodes_table(&[of("small"), of("default")], TERSE).contains("4          small     1f0c9a4e"));
        let partly = v1::Node {
            committed: Some(v1::Amount { cores: 16, memory_bytes: 128 << 30, gpus: 0 }),
            allocations: vec!["1f0c9a4e".into(); 2],
            ..node.clone()
        };
        let want = "\
NODE  STATE  FREE CORES  FREE MEMORY     FREE GPUS  ALLOCATIONS
n1    Ready  48 of 64    384 of 512 GiB  4          1f0c9a4e+1
";
        assert_eq!(nodes_table(&[partly], TERSE), want);
        // An agent of role `node` does not know what runs elsewhere.
        let unknown = nodes_table(&[v1::Node { committed: None, ..node }], TERSE);
        assert!(unknown.contains("? of 64     ? of 512.0 GiB  ? of 4"), "{unknown}");
    }

    #[test]
    fn wide_has_every_column_and_more() {
        let report = v1::Conformance { fingerprint: "0123456789abcdef".into(), group_nodes: 3, ..Default::default() };
        let node = v1::Node {
            id: "n1".into(),
            state: "Ready".into(),
            cores: 64,
            memory_bytes: 512 << 30,
            committed: Some(v1::Amount::default()),
            schedulable: true,
            gossip: "alive".into(),
            state_since_ms: 1_772_704_800_000,
            mesh_address: "h1:9401".into(),
            domains: vec![v1::LocalDomain { cores: 32, gpus: 0 }; 2],
            conformance: Some(report.clone()),
            ..Default::default()
        };
        let want = "\
NODE  STATE  FREE CORES  FREE MEMORY  FREE GPUS  VCLUSTER  CONFORMANCE  ALLOCATIONS  GOSSIP  TOPOLOGY  DOMAINS       FEATURES  NOT ENFORCED  SINCE                     MESH     REASON
n1    Ready  64          512.0 GiB    0          default   01234567(3)  —            alive   —         2 × 32 cores  —         —             2026-03-05T10:00:00.000Z  h1:9401  —
";
        assert_eq!(nodes_table(std::slice::from_ref(&node), WIDE), want);
        assert!(!nodes_table(std::slice::from_ref(&node), TERSE).contains("CONFORMANCE"), "where all are alike it says nothing");
        let drifted = v1::Conformance { drifted_since_ms: 1, group_nodes: 1, ..report };
        let drifted = v1::Node { conformance: Some(drifted), ..node };
        assert!(nodes_table(std::slice::from_ref(&drifted), WIDE).contains("  01234567(1) drifted  "));
        assert!(nodes_table(&[drifted], TERSE).contains("  01234567 drifted  "));
    }

    #[test]
    fn memory_domains_are_one_line() {
        let domain = |gpus| v1::LocalDomain { cores: 32, gpus };
        let node =
            v1::Node { domains: vec![domain(4), domain(4)], cxl_memory_bytes: 2 << 40, gpu_links_percent: vec![100], ..Default::default() };
        assert_eq!(domains_text(&node), "Domains:  2 × 32 cores, 4 GPUs; 2048.0 GiB behind CXL\n");
        assert_eq!(domains_text(&v1::Node::default()), "");
    }

    #[test]
    fn lists_fit_on_a_narrow_screen() {
        let node = |id: &str, committed, reason: &str| v1::Node {
            id: id.into(),
            state: "Degraded".into(),
            reason: reason.into(),
            cores: 128,
            memory_bytes: 512 << 30,
            gpus: 4,
            committed: Some(committed),
            allocations: vec!["1f0c9a4e".into(), "2f0c9a4e".into()],
            schedulable: true,
            gossip: "alive".into(),
            features: vec!["gpu".into(), "gpu_type=GH200".into(), "nvme_scratch".into()],
            ..Default::default()
        };
        let half = v1::Amount { cores: 64, memory_bytes: 256 << 30, gpus: 2 };
        let listed = nodes_table(&[node("n1", half, ""), node("n2", half, "not well: disk: 3 % are free")], NARROW);
        let want = "\
NODE  STATE     FREE CORES  FREE MEMORY     FREE GPUS  REASON
n1    Degraded  64 of 128   256 of 512 GiB  2 of 4     —
n2    Degraded  64 of 128   256 of 512 GiB  2 of 4     not well: disk: 3 % are
                                                       free
";
        assert_eq!(listed, want);
        assert_fits(&listed);
        let mut wide = node(&"x1000c0s0b0n3".repeat(5), half, &"a reason ".repeat(20));
        (wide.vcluster, wide.gossip, wide.cores) = ("v".repeat(64), "suspect".into(), 1024);
        assert_fits(&nodes_table(&[wide], NARROW));
    }
}
