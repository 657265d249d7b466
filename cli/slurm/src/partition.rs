//! Partitions: vClusters, by the site's names for them.

use crate::node::vcluster;
use lattice_api::v1;
use lattice_cli_syntax::compat::Compat;
use lattice_model::DEFAULT_VCLUSTER;
use std::rc::Rc;

/// A partition, and the nodes that its work may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Whether work that names no partition belongs to it.
    pub is_default: bool,
    /// The vCluster.
    pub vcluster: v1::VCluster,
    /// Its nodes, by name; without those that take no work at all.
    pub nodes: Vec<Rc<v1::Node>>,
}

/// The partitions: the default one first, then by name. A site may have several partitions for one vCluster.
pub fn partitions(vclusters: &[v1::VCluster], nodes: &[Rc<v1::Node>], compat: &Compat) -> Vec<Partition> {
    let default = compat.default_partition.clone().unwrap_or_else(|| compat.partition_of(DEFAULT_VCLUSTER).to_owned());
    let mut found = Vec::new();
    for one in vclusters {
        let mut names: Vec<&str> =
            compat.partition_mapping.iter().filter(|(_, of)| **of == one.name).map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            names.push(&one.name);
        }
        let of = |name: &str| nodes.iter().filter(|node| node.schedulable && vcluster(node) == name).cloned().collect::<Vec<_>>();
        let own = of(&one.name);
        let mut usable = if own.is_empty() { of(DEFAULT_VCLUSTER) } else { own };
        usable.sort_by(|a, b| natural(&a.id).cmp(&natural(&b.id)));
        for name in names {
            let (name, is_default) = (name.to_owned(), name == default);
            found.push(Partition { name, is_default, vcluster: one.clone(), nodes: usable.clone() });
        }
    }
    found.sort_by(|a, b| (!a.is_default, &a.name).cmp(&(!b.is_default, &b.name)));
    found
}

/// Orders `n2` before `n10`.
pub fn natural(name: &str) -> (&str, usize, &str) {
    let at = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (prefix, digits) = name.split_at(at);
    (prefix, digits.len(), digits)
}

impl Partition {
    /// As sinfo writes it: the default one has a `*`.
    pub fn marked_name(&self) -> String {
        if self.is_default { format!("{}*", self.name) } else { self.name.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_have_the_nodes_that_their_work_may_use() {
        let vclusters = ["default", "ml"].map(|name| v1::VCluster { name: name.into(), ..Default::default() });
        let node = |id: &str, vcluster: &str, schedulable| {
            Rc::new(v1::Node { id: id.into(), vcluster: vcluster.into(), schedulable, ..Default::default() })
        };
        let nodes = [node("n10", "", true), node("n2", "default", true), node("g1", "ml", true), node("login", "", false)];
        let compat = Compat::parse("partition_mapping: {normal: default, long: default}\ndefault_partition: normal\n").unwrap();
        let found = partitions(&vclusters, &nodes, &compat);
        let shown: Vec<(String, Vec<&str>)> =
            found.iter().map(|one| (one.marked_name(), one.nodes.iter().map(|node| node.id.as_str()).collect())).collect();
        let want = [("normal*", vec!["n2", "n10"]), ("long", vec!["n2", "n10"]), ("ml", vec!["g1"])];
        assert_eq!(shown, want.map(|(name, nodes)| (name.to_owned(), nodes)));
        let alone = partitions(&vclusters[..1], &nodes, &Compat::default());
        assert_eq!((alone.len(), alone[0].marked_name().as_str()), (1, "default*"));
    }
}
