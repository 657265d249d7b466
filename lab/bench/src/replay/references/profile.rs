//! How many nodes are free at what time.

/// Steps: from each time on, this many nodes are free. Times ascend; after the last one nothing changes.
pub struct Profile(Vec<(u64, u32)>);

impl Profile {
    /// All nodes are free from now on.
    pub fn new(now_s: u64, nodes: u32) -> Self {
        Self(vec![(now_s, nodes)])
    }

    /// The earliest time from which this many nodes are free for this long.
    pub fn earliest(&self, nodes: u32, duration_s: u64) -> u64 {
        let mut start_s = self.0[0].0;
        for (at, (from_s, free)) in self.0.iter().enumerate() {
            if *from_s >= start_s.saturating_add(duration_s) {
                break;
            }
            if *free < nodes {
                start_s = self.0.get(at + 1).expect("at the end all nodes are free").0;
            }
        }
        start_s
    }

    /// Takes nodes for a time.
    pub fn take(&mut self, start_s: u64, duration_s: u64, nodes: u32) {
        self.change(start_s, duration_s, |free| free.checked_sub(nodes).expect("the nodes are free"));
    }

    /// Gives nodes back.
    pub fn give_back(&mut self, start_s: u64, duration_s: u64, nodes: u32) {
        self.change(start_s, duration_s, |free| free + nodes);
    }

    fn change(&mut self, start_s: u64, duration_s: u64, change: impl Fn(u32) -> u32) {
        let (first, behind) = (self.step_at(start_s), self.step_at(start_s.saturating_add(duration_s)));
        for (_, free) in &mut self.0[first..behind] {
            *free = change(*free);
        }
    }

    /// The index of the step that begins at this time, which is made if there is none.
    fn step_at(&mut self, at_s: u64) -> usize {
        let at = self.0.partition_point(|(from_s, _)| *from_s < at_s);
        if self.0.get(at).is_none_or(|(from_s, _)| *from_s != at_s) {
            let free = self.0[at.checked_sub(1).expect("no time is before the first")].1;
            self.0.insert(at, (at_s, free));
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_start_may_be_in_a_gap() {
        let mut profile = Profile::new(0, 4);
        profile.take(0, 10, 3);
        profile.take(20, 10, 4);
        assert_eq!([profile.earliest(1, 20), profile.earliest(1, 21), profile.earliest(2, 10), profile.earliest(2, 11)], [0, 30, 10, 30]);
        profile.give_back(20, 10, 4);
        assert_eq!([profile.earliest(1, 99), profile.earliest(2, 11)], [0, 10]);
    }
}
