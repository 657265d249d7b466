//! The tree over which the agents of a launch communicate. Every agent computes the same tree.
//!
//! ```text
//!   parts 0..7 with fan-out 2:    0 ─┬─ 1 ─┬─ 2
//!                                    │     ╰─ 3
//!                                    ╰─ 4 ─┬─ 5
//!                                          ╰─ 6
//! ```
//!
//! A part is a node's index in `LaunchSpec::nodes`. A subtree is a contiguous range of parts,
//! served by its first part. So blobs concatenated in the order of the parts give the same bytes
//! whichever path they took, even if an agent is down and another agent serves its children.

/// Smallest fan-out that a site may set.
pub const FANOUT_MIN: u32 = 2;
/// Largest fan-out that a site may set. Each child receives its own copy of every merged fence.
pub const FANOUT_MAX: u32 = 64;
/// The range of fan-outs computed from the launch's size if the site sets none.
const FANOUT_BY_SIZE: std::ops::RangeInclusive<u32> = 16..=32;

/// The fan-out for this many parts: the smallest one whose tree is as shallow as with the widest.
/// Up to 33 nodes form a star.
pub fn fanout_for(parts: u32) -> u32 {
    let depth = |fanout| Subtree::whole(parts).depth(fanout);
    let least = depth(*FANOUT_BY_SIZE.end());
    FANOUT_BY_SIZE.into_iter().find(|fanout| depth(*fanout) == least).unwrap_or(*FANOUT_BY_SIZE.end())
}

/// The parts `first .. end`, which the agent of `first` serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subtree {
    pub first: u32,
    pub end: u32,
}

impl Subtree {
    /// All parts of a launch.
    pub fn whole(parts: u32) -> Self {
        Self { first: 0, end: parts }
    }

    /// One part without children.
    pub fn single(part: u32) -> Self {
        Self { first: part, end: part.saturating_add(1) }
    }

    /// Whether it consists of its first part only.
    pub fn is_single(self) -> bool {
        self.len() <= 1
    }

    /// Number of parts.
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.first)
    }

    /// Whether it has no parts.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Its parts, in order.
    pub fn parts(self) -> std::ops::Range<u32> {
        self.first..self.end
    }

    /// Whether it contains all parts of `other`.
    pub fn contains(self, other: Self) -> bool {
        self.first <= other.first && other.end <= self.end
    }

    /// The subtrees below its first part: at most `fanout`, of sizes as equal as possible, the
    /// larger ones first.
    pub fn children(self, fanout: u32) -> impl Iterator<Item = Self> {
        let below = self.len().saturating_sub(1);
        let pieces = below.min(fanout);
        let mut first = self.first.saturating_add(1);
        (0..pieces).map(move |piece| {
            let child = Self { first, end: first + below / pieces + u32::from(piece < below % pieces) };
            first = child.end;
            child
        })
    }

    /// Number of edges from its first part to the deepest one.
    pub fn depth(self, fanout: u32) -> u32 {
        let largest = |subtree: &Self| subtree.children(fanout).next();
        let below = std::iter::successors(largest(&self), largest).count();
        u32::try_from(below).unwrap_or(u32::MAX)
    }

    /// The part that serves `part` within this subtree; `None`: it is the first part, or not in
    /// this subtree.
    pub fn parent_of(self, part: u32, fanout: u32) -> Option<u32> {
        let child = self.children(fanout).find(|child| child.contains(Self::single(part)))?;
        child.parent_of(part, fanout).or(Some(self.first))
    }

    /// Splits the subtree into pieces so that `part` serves one piece with everything below it; the
    /// parts above it become single.
    pub fn down_to(self, part: u32, fanout: u32) -> Vec<Self> {
        if self.first == part || !self.contains(Self::single(part)) {
            return vec![self];
        }
        let below = self.children(fanout).flat_map(|child| child.down_to(part, fanout));
        std::iter::once(Self::single(self.first)).chain(below).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Every subtree of a tree, from the root down.
    fn all(parts: u32, fanout: u32) -> Vec<Subtree> {
        let mut open = VecDeque::from([Subtree::whole(parts)]);
        let mut found = Vec::new();
        while let Some(subtree) = open.pop_front() {
            open.extend(subtree.children(fanout));
            found.push(subtree);
        }
        found
    }

    proptest! {
        #[test]
        fn every_part_is_served_once_by_few_and_near_the_root(parts in 1..3000u32, fanout in FANOUT_MIN..=FANOUT_MAX) {
            let tree = all(parts, fanout);
            let mut served: Vec<u32> = tree.iter().map(|subtree| subtree.first).collect();
            served.sort_unstable();
            prop_assert!(served.into_iter().eq(0..parts));
            for subtree in &tree {
                let children: Vec<Subtree> = subtree.children(fanout).collect();
                prop_assert!(children.len() <= fanout as usize);
                let mut next = subtree.first + 1;
                for child in &children {
                    prop_assert!(child.first == next && !child.is_empty() && subtree.contains(*child));
                    next = child.end;
                }
                prop_assert_eq!(next, subtree.end);
                let (most, least) = (children.first().map(|c| c.len()), children.last().map(|c| c.len()));
                prop_assert!(most.unwrap_or(0) - least.unwrap_or(0) <= 1);
            }
            // No tree of this fan-out with so many parts is shallower.
            let depth = Subtree::whole(parts).depth(fanout);
            let holds = |depth: u32| (0..=depth).fold(0u64, |sum, level| sum + u64::from(fanout).pow(level));
            prop_assert!(holds(depth) >= u64::from(parts) && (depth == 0 || holds(depth - 1) < u64::from(parts)));
        }
    }

    #[test]
    fn a_part_that_is_served_from_elsewhere_keeps_those_below_it() {
        let drawn = |end, part| Subtree { first: 1, end }.down_to(part, 2).iter().map(|s| (s.first, s.end)).collect::<Vec<_>>();
        assert_eq!(drawn(4, 3), [(1, 2), (2, 3), (3, 4)]);
        // 1 ─┬─ 2 ─┬─ 3 …
        assert_eq!(drawn(8, 2), [(1, 2), (2, 5), (5, 8)]);
        assert_eq!(drawn(8, 4), [(1, 2), (2, 3), (3, 4), (4, 5), (5, 8)]);
        assert_eq!((drawn(8, 1), drawn(8, 9)), (vec![(1, 8)], vec![(1, 8)]));
        let parents: Vec<Option<u32>> = (0..8).map(|part| Subtree { first: 1, end: 8 }.parent_of(part, 2)).collect();
        assert_eq!(parents, [None, None, Some(1), Some(2), Some(2), Some(1), Some(5), Some(5)]);
    }

    #[test]
    fn a_tree_of_seven_is_as_drawn() {
        let children = |first, end| Subtree { first, end }.children(2).map(|c| (c.first, c.end)).collect::<Vec<_>>();
        assert_eq!(children(0, 7), [(1, 4), (4, 7)]);
        assert_eq!(children(1, 4), [(2, 3), (3, 4)]);
        assert_eq!(children(2, 3), []);
        assert_eq!(Subtree::whole(7).depth(2), 2);
    }

    #[test]
    fn the_fan_out_follows_from_the_size() {
        let table: Vec<(u32, u32, u32)> = [1, 17, 18, 33, 34, 273, 274, 1057, 1058, 10_000]
            .map(|parts| (parts, fanout_for(parts), Subtree::whole(parts).depth(fanout_for(parts))))
            .into();
        let expected = [
            (1, 16, 0),
            (17, 16, 1),
            (18, 17, 1),
            (33, 32, 1),
            (34, 16, 2),
            (273, 16, 2),
            (274, 17, 2),
            (1057, 32, 2),
            (1058, 16, 3),
            (10_000, 22, 3),
        ];
        assert_eq!(table, expected);
    }
}
