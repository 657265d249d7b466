//! Rows that are found by key: one for each node, in one piece of memory, with four bytes of index
//! per row.

/// A row with a key: for a node, [`Peer::key`](crate::peer::Peer::key). Keys are halves of digests,
/// so their bits serve as a hash. Only a holder of the cluster's gossip key could choose names for
/// their keys, and would slow the table down no more than foca's list costs for every node anyway.
pub(crate) trait Keyed {
    fn key(&self) -> u64;
}

/// A list in which one or two memory accesses find a row. Rows keep their positions until one is
/// removed, which takes time linear in the length: nodes are forgotten or evicted only rarely.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    rows: Vec<T>,
    /// The rows' positions, each at the index given by the first bits of its key, or at the next
    /// free one. Its length is a power of two, and it is never more than three quarters full.
    places: Vec<u32>,
}

const FREE: u32 = u32::MAX;
const PLACES_MIN: usize = 16;

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), places: Vec::new() }
    }
}

impl<T: Keyed> Rows<T> {
    pub fn get(&self, key: u64) -> Option<&T> {
        self.find(key).ok().map(|row| &self.rows[row as usize])
    }

    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.find(key).ok().map(|row| &mut self.rows[row as usize])
    }

    /// The row at a place that [`Rows::insert`] gave.
    pub fn at(&self, row: u32) -> &T {
        &self.rows[row as usize]
    }

    /// Replaces the row with this key, or appends the row. Returns its position.
    pub fn insert(&mut self, row: T) -> u32 {
        if (self.rows.len() + 1) * 4 > self.places.len() * 3 {
            self.place_all((self.places.len() * 2).max(PLACES_MIN));
        }
        match self.find(row.key()) {
            Ok(at) => {
                self.rows[at as usize] = row;
                at
            }
            Err(free) => {
                let at = self.rows.len() as u32;
                self.places[free] = at;
                if self.rows.len() == self.rows.capacity() {
                    // Grow by a quarter, not to double: with thousands of rows, half of them would
                    // be empty.
                    self.rows.reserve_exact((self.rows.len() / 4).max(4));
                }
                self.rows.push(row);
                at
            }
        }
    }

    /// Removes a row. The last row moves into its position.
    pub fn remove(&mut self, key: u64) -> Option<Removed<T>> {
        let at = self.find(key).ok()?;
        let row = self.rows.swap_remove(at as usize);
        self.place_all(self.places.len());
        Some(Removed { row, at, moved: self.rows.len() as u32 })
    }

    /// Retains the rows for which `keep` is true. It must not change their keys.
    pub fn retain_mut(&mut self, keep: impl FnMut(&mut T) -> bool) {
        self.rows.retain_mut(keep);
        self.place_all(self.places.len());
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.rows.iter()
    }

    /// The position of the row with this key, or else the free index for it, if the table has any.
    fn find(&self, key: u64) -> Result<u32, usize> {
        let mut place = first_place(key, self.places.len());
        loop {
            match self.places.get(place) {
                None | Some(&FREE) => return Err(place),
                Some(&at) if self.rows[at as usize].key() == key => return Ok(at),
                Some(_) => place = (place + 1) & (self.places.len() - 1),
            }
        }
    }

    fn place_all(&mut self, places: usize) {
        self.places.clear();
        self.places.resize(places, FREE);
        for (at, row) in self.rows.iter().enumerate() {
            let mut place = first_place(row.key(), places);
            while self.places[place] != FREE {
                place = (place + 1) & (places - 1);
            }
            self.places[place] = at as u32;
        }
    }
}

/// The row that [`Rows::remove`] removed, its position, and the former position of the row that
/// moved there.
#[derive(Debug)]
pub(crate) struct Removed<T> {
    pub row: T,
    pub at: u32,
    pub moved: u32,
}

fn first_place(key: u64, places: usize) -> usize {
    if places == 0 { 0 } else { (key >> (64 - places.trailing_zeros())) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, PartialEq)]
    struct Row(u64, u32);

    impl Keyed for Row {
        fn key(&self) -> u64 {
            self.0
        }
    }

    proptest! {
        /// Compares the rows with a map. Keys with equal first bits collide.
        #[test]
        fn every_row_is_found_under_its_key(steps in proptest::collection::vec((0u8..4, 0u64..40, any::<bool>(), any::<u32>()), 0..300)) {
            let (mut rows, mut all) = (Rows::<Row>::default(), BTreeMap::new());
            for (what, n, alike, value) in steps {
                let key = if alike { n } else { n << 58 | n };
                if what == 0 {
                    let (removed, last) = (rows.remove(key), rows.len() as u32);
                    prop_assert_eq!(removed.as_ref().map(|removed| removed.row.1), all.remove(&key));
                    prop_assert!(removed.is_none_or(|removed| removed.moved == last && removed.at <= last));
                } else {
                    let at = rows.insert(Row(key, value));
                    prop_assert_eq!(rows.at(at), &Row(key, value));
                    all.insert(key, value);
                }
                prop_assert_eq!(rows.len(), all.len());
                prop_assert!(rows.iter().all(|row| all.get(&row.0) == Some(&row.1)));
                for n in 0..40u64 {
                    for key in [n, n << 58 | n] {
                        prop_assert_eq!(rows.get(key).map(|row| row.1), all.get(&key).copied());
                    }
                }
            }
        }
    }
}
