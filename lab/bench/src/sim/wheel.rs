//! The queue of events: a wheel of milliseconds, so that a million waiting events cost nothing while they wait.

use std::collections::BTreeMap;

/// Events further ahead wait outside of the wheel; a power of two.
const SLOTS: u64 = 1 << 16;

/// Events by time; those of one moment in the order in which they were added.
pub struct Wheel<T> {
    now_ms: u64,
    slots: Vec<Vec<T>>,
    in_slots: usize,
    far: BTreeMap<u64, Vec<T>>,
}

impl<T> Wheel<T> {
    /// A wheel without events.
    pub fn new(now_ms: u64) -> Self {
        Self { now_ms, slots: std::iter::repeat_with(Vec::new).take(SLOTS as usize).collect(), in_slots: 0, far: BTreeMap::new() }
    }

    /// `what` happens at `at_ms`, or at the next moment if that has passed.
    pub fn put(&mut self, at_ms: u64, what: T) {
        let at_ms = at_ms.max(self.now_ms + 1);
        if at_ms - self.now_ms < SLOTS {
            self.slots[(at_ms % SLOTS) as usize].push(what);
            self.in_slots += 1;
        } else {
            self.far.entry(at_ms).or_default().push(what);
        }
    }

    /// Advances to the next moment up to `until_ms` with an event; returns time and events. `None`: there is none.
    pub fn next(&mut self, until_ms: u64) -> Option<(u64, Vec<T>)> {
        while self.now_ms < until_ms {
            self.now_ms += 1;
            // Far events come first: they were added before any event that fitted into the wheel.
            let mut due = match self.far.first_entry() {
                Some(first) if *first.key() == self.now_ms => first.remove(),
                Some(_) | None => Vec::new(),
            };
            let slot = &mut self.slots[(self.now_ms % SLOTS) as usize];
            self.in_slots -= slot.len();
            // The slot's memory is freed with its events: otherwise every slot would grow to the largest size.
            if due.is_empty() {
                due = std::mem::take(slot);
            } else {
                due.append(&mut std::mem::take(slot));
            }
            if !due.is_empty() {
                return Some((self.now_ms, due));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_happens_once_in_order_however_far_it_lay() {
        let mut wheel = Wheel::new(1_000);
        for (n, at) in [1_005, 1_001, 1_005, 900, 1_000 + SLOTS, 1_000 + 3 * SLOTS, 1_000].into_iter().enumerate() {
            wheel.put(at, n);
        }
        let mut seen = Vec::new();
        while let Some((at, due)) = wheel.next(1_004 + SLOTS) {
            seen.push((at, due));
            if at == 1_005 {
                wheel.put(1_000 + SLOTS, 9);
            }
        }
        assert_eq!(seen, [(1_001, vec![1, 3, 6]), (1_005, vec![0, 2]), (1_000 + SLOTS, vec![4, 9])]);
        assert_eq!(wheel.next(1_000 + 3 * SLOTS), Some((1_000 + 3 * SLOTS, vec![5])));
        assert_eq!((wheel.next(2_000_000), wheel.in_slots), (None, 0));
    }
}
