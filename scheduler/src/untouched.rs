//! Untouched nodes: they are in service, no work holds them, and no reservation names them. Equal nodes form a group,
//! and work looks at no more nodes of a group than it can get.

use crate::node_set::NodeSet;
use std::collections::HashMap;

/// Up to this many groups are few, whatever the number of nodes.
const GROUPS_FEW: usize = 256;
/// More groups are few if a group has at least this many nodes on average.
const NODES_OF_GROUP_LEAST: usize = 4;

/// The properties in which the nodes of a group are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Likeness {
    /// Their kind: they can serve the same work, and are equal in size.
    pub kind: usize,
    /// Their conformance group; `None`: each node is a group of its own.
    pub conformance_group: Option<usize>,
    /// Their topology group.
    pub topology_group: usize,
    /// The list of their windows ([`crate::calendar::Calendar::list_of`]).
    pub windows: usize,
}

/// How many untouched nodes are alike, and the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub likeness: Likeness,
    pub count: usize,
    pub first: usize,
}

/// How many untouched nodes of a group were left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct More {
    pub likeness: Likeness,
    pub count: usize,
}

/// All nodes in groups of equal ones, kept from one plan to the next.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Alike {
    groups: Vec<(Likeness, Vec<usize>)>,
    /// The group of each node.
    group: Vec<usize>,
}

impl Alike {
    /// `likenesses` gives the likeness of each node.
    pub fn of(likenesses: impl Iterator<Item = Likeness>) -> Self {
        let mut known: HashMap<Likeness, usize> = HashMap::new();
        let (mut groups, mut group): (Vec<(Likeness, Vec<usize>)>, Vec<usize>) = (Vec::new(), Vec::new());
        for (node, likeness) in likenesses.enumerate() {
            let number = *known.entry(likeness).or_insert(groups.len());
            if number == groups.len() {
                groups.push((likeness, Vec::new()));
            }
            groups[number].1.push(node);
            group.push(number);
        }
        Self { groups, group }
    }

    /// Whether there are few groups; otherwise it is quicker to look at each node.
    pub fn has_few_groups(&self) -> bool {
        self.groups.len() <= GROUPS_FEW.max(self.group.len() / NODES_OF_GROUP_LEAST)
    }
}

struct Group<'a> {
    likeness: Likeness,
    /// All nodes that are alike, ascending.
    nodes: &'a [usize],
    /// The position in `nodes` of the first untouched one, if there is one.
    first: usize,
    /// How many are untouched.
    count: usize,
}

impl Group<'_> {
    fn advance(&mut self, untouched: &NodeSet) {
        while self.count > 0 && self.nodes.get(self.first).is_some_and(|node| !untouched.contains(*node)) {
            self.first += 1;
        }
    }
}

/// See the module documentation.
pub struct Untouched<'a> {
    set: NodeSet,
    groups: Vec<Group<'a>>,
    /// The group of each node.
    group: &'a [usize],
}

impl<'a> Untouched<'a> {
    /// Begins with `set` as the untouched nodes.
    pub fn of(alike: &'a Alike, set: NodeSet) -> Self {
        let group = |(likeness, nodes): &'a (Likeness, Vec<usize>)| Group { likeness: *likeness, nodes, first: 0, count: 0 };
        let mut groups: Vec<Group<'_>> = alike.groups.iter().map(group).collect();
        for node in set.iter() {
            groups[alike.group[node]].count += 1;
        }
        groups.iter_mut().for_each(|group| group.advance(&set));
        Self { set, groups, group: &alike.group }
    }

    /// All untouched nodes.
    pub fn set(&self) -> &NodeSet {
        &self.set
    }

    /// Something holds the node from now on.
    pub fn remove(&mut self, node: usize) {
        if !self.set.contains(node) {
            return;
        }
        self.set.remove(node);
        let group = &mut self.groups[self.group[node]];
        group.count -= 1;
        group.advance(&self.set);
    }

    /// How many untouched nodes each group of these kinds has.
    pub fn counts(&self, kinds: &[bool]) -> impl Iterator<Item = Count> + Clone {
        let groups = self.groups.iter().filter(|group| group.count > 0 && kinds[group.likeness.kind]);
        groups.filter_map(|group| Some(Count { likeness: group.likeness, count: group.count, first: *group.nodes.get(group.first)? }))
    }

    /// Adds the first `most` untouched nodes of each `wanted` group of these kinds to `nodes`. Returns how many more
    /// each group has.
    pub fn first(&self, kinds: &[bool], wanted: impl Fn(&Likeness) -> bool, most: usize, nodes: &mut Vec<usize>) -> Vec<More> {
        let mut more = Vec::new();
        for Group { likeness, nodes: all, first, count } in &self.groups {
            if *count > 0 && kinds[likeness.kind] && wanted(likeness) {
                nodes.extend(all[*first..].iter().copied().filter(|node| self.set.contains(*node)).take(most));
                if *count > most {
                    more.push(More { likeness: *likeness, count: *count - most });
                }
            }
        }
        more
    }

    /// The number of untouched nodes of these kinds, and how many of them [`Untouched::first`] adds.
    pub fn count(&self, kinds: &[bool], most: usize) -> (usize, usize) {
        self.counts(kinds).fold((0, 0), |(all, added), of| (all + of.count, added + of.count.min(most)))
    }
}
