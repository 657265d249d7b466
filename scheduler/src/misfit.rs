//! Whether the registered nodes could ever serve work, whatever their state and their present load.

use crate::grouping::is_contiguous;
use lattice_model::count::counted;
use lattice_model::feature_choice::{FeatureSet, Together, has_all};
use lattice_model::{AllocationSpec, Constraints, Node, NodeId, Resources, Topology, VCluster, hostlist};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// How many reasons are given for nodes that do not fit.
const REASONS_MAX: usize = 3;

/// The allocation asks for more than the registered nodes could ever give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// What the allocation asks for.
    wants: String,
    /// How many nodes could serve it.
    fitting: usize,
    /// Why the other nodes could not, with the nodes for each reason.
    reasons: Vec<(String, Vec<NodeId>)>,
}

impl Misfit {
    /// What the allocation asks for, and how many nodes could ever serve it.
    pub fn summary(&self) -> String {
        format!("{}; this cluster has {} that could ever serve it", self.wants, self.fitting)
    }
}

/// The summary, and why the other nodes could not.
impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())?;
        for (why, nodes) in self.reasons.iter().take(REASONS_MAX) {
            write!(f, "; {} {why}", hostlist::fold(nodes))?;
        }
        if self.reasons.len() > REASONS_MAX { f.write_str("; other nodes do not fit for other reasons") } else { Ok(()) }
    }
}

/// Why this node could never serve work of this vCluster.
pub fn never_serves(named: Option<&VCluster>, spec: &AllocationSpec, node: &Node) -> Option<String> {
    VCluster::keeps_off(named, node).or_else(|| spec.never_served_by(node))
}

/// Returns why the registered nodes could never serve the work; `None`: they could. Nodes that other vClusters lend to it
/// count. If its ranks are spread over nodes, one number of nodes that could serve it is enough.
pub fn misfit<'a>(nodes: impl Iterator<Item = &'a Node>, vclusters: &BTreeMap<String, VCluster>, spec: &AllocationSpec) -> Option<Misfit> {
    if spec.topology_wait.is_some() {
        let constraints = Constraints { topology: Topology::Any, ..spec.constraints.clone() };
        return misfit_of_form(nodes, vclusters, &AllocationSpec { constraints, ..spec.clone() });
    }
    if spec.spread.is_none() {
        return misfit_of_form(nodes, vclusters, spec);
    }
    let nodes: Vec<&Node> = nodes.collect();
    let mut sizes: Vec<Resources> = nodes.iter().map(|node| node.size).collect();
    sizes.sort_unstable_by_key(|size| (size.cores, size.memory_bytes, size.gpus));
    let sizes: Vec<(Resources, usize)> = sizes.chunk_by(|one, next| one == next).map(|equal| (equal[0], equal.len())).collect();
    let are_enough = |count: u32| {
        let fits = sizes.iter().filter(|(size, _)| spec.spread_fits(count, size));
        fits.map(|(_, nodes)| nodes).sum::<usize>() >= count as usize
    };
    let mut last = None;
    let mut counts = spec.spread_counts().peekable();
    while let Some(count) = counts.next() {
        if are_enough(count) || counts.peek().is_none() {
            last = Some(misfit_of_form(nodes.iter().copied(), vclusters, &spec.spread_over(count))?);
        }
    }
    last.map(|misfit| Misfit { wants: wants(spec), ..misfit })
}

/// [`misfit`] for one number of nodes, or one range.
fn misfit_of_form<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    vclusters: &BTreeMap<String, VCluster>,
    spec: &AllocationSpec,
) -> Option<Misfit> {
    let named = vclusters.get(&spec.vcluster);
    let is_lent = |node: &Node| VCluster::lends(|name| vclusters.get(name), node, spec, 0);
    let (mut all, mut fit) = (Vec::new(), Vec::new());
    let mut reasons: BTreeMap<String, Vec<NodeId>> = BTreeMap::new();
    for node in nodes {
        all.push(&node.id);
        let foreign = VCluster::keeps_off(named, node).filter(|_| !is_lent(node));
        match foreign.or_else(|| spec.never_served_by(node)) {
            None => fit.push(node),
            Some(why) => reasons.entry(why).or_default().push(node.id.clone()),
        }
    }
    let fitting = match is_contiguous(spec) {
        true => hostlist::longest_run(all, &fit.iter().map(|node| &node.id).collect()),
        false => serving_together(spec, &fit),
    };
    if fitting >= spec.nodes as usize {
        return None;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, nodes)| Reverse(nodes.len()));
    Some(Misfit { wants: wants(spec), fitting, reasons })
}

/// How many of these nodes could serve the work together.
fn serving_together(spec: &AllocationSpec, fit: &[&Node]) -> usize {
    match spec.constraints.together() {
        None => in_groups(spec, fit.iter().copied()),
        Some(Together::Same(sets)) => {
            let of = |set: &FeatureSet| in_groups(spec, fit.iter().copied().filter(|node| has_all(&node.features, set)));
            sets.iter().map(of).max().unwrap_or(0)
        }
        // No work combines a limit of topology groups with numbers of nodes for features.
        Some(numbers @ Together::Counted(_)) => numbers.serving(fit.iter().map(|node| node.features.as_slice())),
    }
}

/// How many of these nodes the work could get within its limit of topology groups.
fn in_groups<'n>(spec: &AllocationSpec, nodes: impl Iterator<Item = &'n Node>) -> usize {
    let Topology::AtMost(most) = spec.constraints.topology else { return nodes.count() };
    let mut counts: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    nodes.for_each(|node| *counts.entry(node.topology_group.as_deref()).or_default() += 1);
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable_by_key(|count| Reverse(*count));
    counts.into_iter().take(most as usize).sum()
}

/// What the work asks for, for people.
pub fn wants(spec: &AllocationSpec) -> String {
    let wants = match &spec.share {
        _ if spec.spread.is_some() && spec.nodes_max.is_some() => {
            let each = spec.spread.unwrap_or_default();
            format!("wants {each} for each of {}, in equal parts on {}", counted(spec.launch.ranks, "rank"), spec.nodes_text())
        }
        None => format!("wants {}", spec.nodes_text()),
        Some(share) if spec.nodes_most() == 1 => format!("wants {share} of one node"),
        Some(share) => format!("wants {share} of each of {}", spec.nodes_text()),
    };
    let wants = match spec.nodes_max {
        None if spec.spread.is_some() && spec.nodes > 1 => format!("{wants} for {}", counted(spec.launch.ranks, "rank")),
        None | Some(_) => wants,
    };
    let wants = if spec.constraints.conformance { format!("{wants} of one conformance group") } else { wants };
    let wants = match spec.constraints.topology {
        Topology::Tight if spec.nodes_most() > 1 => format!("{wants} in as few topology groups as possible"),
        Topology::AtMost(groups) if spec.nodes_most() > 1 => format!("{wants} in at most {}", counted(groups, "topology group")),
        Topology::Contiguous if spec.nodes_most() > 1 => format!("{wants} that follow each other by name"),
        Topology::Tight | Topology::AtMost(_) | Topology::Contiguous | Topology::Any => wants,
    };
    match spec.constraints.together() {
        Some(together) if spec.nodes_most() > 1 => format!("{wants}, {together}"),
        Some(_) | None => wants,
    }
}
