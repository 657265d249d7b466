//! Sets of nodes, by their indexes.

const BITS: usize = u64::BITS as usize;

/// A set of node indexes: one bit for each node of the view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(Vec<u64>);

impl NodeSet {
    /// The empty set, for this number of nodes.
    pub fn empty(nodes: usize) -> Self {
        Self(vec![0; nodes.div_ceil(BITS)])
    }

    pub fn insert(&mut self, node: usize) {
        self.0[node / BITS] |= 1 << (node % BITS);
    }

    pub fn remove(&mut self, node: usize) {
        self.0[node / BITS] &= !(1 << (node % BITS));
    }

    /// Inserts or removes the node.
    pub fn set(&mut self, node: usize, is_in: bool) {
        if is_in { self.insert(node) } else { self.remove(node) }
    }

    /// Removes all that are not in the other set.
    pub fn keep(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
    }

    /// Removes all that are in the other set.
    pub fn leave_out(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= !other);
    }

    pub fn contains(&self, node: usize) -> bool {
        self.0[node / BITS] & (1 << (node % BITS)) != 0
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The nodes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(at, word)| bits(at, *word))
    }

    /// The number of nodes of both sets.
    pub fn and_len(&self, other: &Self) -> usize {
        self.0.iter().zip(&other.0).map(|(one, other)| (one & other).count_ones() as usize).sum()
    }

    /// The nodes of both sets, in ascending order.
    pub fn and(&self, other: &Self) -> impl Iterator<Item = usize> {
        self.0.iter().zip(&other.0).enumerate().flat_map(|(at, (one, other))| bits(at, one & other))
    }

    /// The nodes of both sets that are not in the third one, in ascending order.
    pub fn and_without(&self, other: &Self, without: &Self) -> impl Iterator<Item = usize> {
        let words = self.0.iter().zip(&other.0).zip(&without.0);
        words.enumerate().flat_map(|(at, ((one, other), without))| bits(at, one & other & !without))
    }
}

fn bits(at: usize, word: u64) -> impl Iterator<Item = usize> {
    let mut left = word;
    std::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(at * BITS + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_in_ascending_order() {
        let mut set = NodeSet::empty(130);
        for node in [129, 0, 64, 63, 7] {
            set.insert(node);
        }
        set.remove(7);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 129]);
        assert_eq!((set.len(), set.contains(64), set.contains(7)), (4, true, false));
        let mut other = NodeSet::empty(130);
        [7, 64, 129].into_iter().for_each(|node| other.insert(node));
        assert_eq!(set.and(&other).collect::<Vec<_>>(), [64, 129]);
        let mut without = NodeSet::empty(130);
        without.insert(129);
        assert_eq!(set.and_without(&other, &without).collect::<Vec<_>>(), [64]);
    }
}
