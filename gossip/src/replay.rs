//! The replay window of a sender: which of its latest datagrams were received, by their counters, as
//! in RFC 6479.

const WORDS: usize = 17;
/// Length of the window below the highest counter. One word more is stored, so that advancing never
/// clears a bit inside the window.
const WINDOW: u64 = (WORDS as u64 - 1) * 64;

/// The counters received from one sender. Counters start at 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    highest: u64,
    below: Below,
}

/// The counters received below the highest. In a large cluster most senders send rarely, and a few
/// entries suffice for them.
#[derive(Clone, Debug)]
enum Below {
    /// Distances below the highest counter; 0 is an empty entry.
    Few([u16; FEW]),
    /// One bit for each counter of the window.
    Many(Box<[u64; WORDS]>),
}

const FEW: usize = 3;

impl Default for Below {
    fn default() -> Self {
        Self::Few([0; FEW])
    }
}

impl Window {
    /// Whether `counter` was not received before. A counter older than the window is not fresh.
    pub fn is_fresh(&self, counter: u64) -> bool {
        if counter == 0 || counter == self.highest {
            return false;
        }
        if counter > self.highest {
            return true;
        }
        let below = self.highest - counter;
        below < WINDOW
            && match &self.below {
                Below::Few(few) => !few.iter().any(|seen| u64::from(*seen) == below),
                Below::Many(seen) => seen[word(counter)] & bit(counter) == 0,
            }
    }

    /// Marks a fresh `counter` as received. Call it once for each datagram that was decrypted.
    pub fn mark(&mut self, counter: u64) {
        let before = self.highest;
        if counter <= before {
            self.note(counter);
            return;
        }
        self.highest = counter;
        let by = counter - before;
        if by >= WINDOW {
            self.below = Below::default();
            return;
        }
        match &mut self.below {
            Below::Few(few) => {
                for seen in few.iter_mut().filter(|seen| **seen > 0) {
                    let below = u64::from(*seen) + by;
                    *seen = if below < WINDOW { below as u16 } else { 0 };
                }
                if before > 0 {
                    self.note(before);
                }
            }
            Below::Many(seen) => {
                let (from, to) = (before / 64, counter / 64);
                for step in 1..=(to - from).min(WORDS as u64) {
                    seen[((from + step) % WORDS as u64) as usize] = 0;
                }
                seen[word(counter)] |= bit(counter);
            }
        }
    }

    /// Records a counter below the highest and within the window.
    fn note(&mut self, counter: u64) {
        let below = (self.highest - counter) as u16;
        match &mut self.below {
            Below::Few(few) => match few.iter_mut().find(|seen| **seen == 0) {
                Some(free) => *free = below,
                None => {
                    let mut seen = Box::new([0; WORDS]);
                    let few = few.iter().map(|below| self.highest - u64::from(*below));
                    for counter in few.chain([counter, self.highest]) {
                        seen[word(counter)] |= bit(counter);
                    }
                    self.below = Below::Many(seen);
                }
            },
            Below::Many(seen) => seen[word(counter)] |= bit(counter),
        }
    }
}

fn word(counter: u64) -> usize {
    (counter / 64 % WORDS as u64) as usize
}

fn bit(counter: u64) -> u64 {
    1 << (counter % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Compares the window with a set of all received counters.
        #[test]
        fn no_counter_is_fresh_twice_and_no_recent_one_is_refused(steps in proptest::collection::vec((0u64..3, 0u64..3_000), 1..300)) {
            let (mut window, mut seen, mut highest) = (Window::default(), BTreeSet::new(), 0u64);
            for (kind, by) in steps {
                let counter = match kind {
                    0 => highest + 1,
                    1 => highest + by,
                    _ => highest.saturating_sub(by % 1_200),
                };
                let known = counter > 0 && !seen.contains(&counter) && (counter > highest || highest - counter < WINDOW);
                prop_assert_eq!(window.is_fresh(counter), known, "{} of {}", counter, highest);
                if known {
                    window.mark(counter);
                    seen.insert(counter);
                    highest = highest.max(counter);
                }
            }
        }
    }

    #[test]
    fn the_smallest_and_the_largest_counter_are_handled() {
        let mut window = Window::default();
        window.mark(u64::MAX);
        assert!(!window.is_fresh(u64::MAX) && window.is_fresh(u64::MAX - 1) && !window.is_fresh(1) && !window.is_fresh(0));
    }
}
