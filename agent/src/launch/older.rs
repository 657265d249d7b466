//! Agents that turn out to be older than the launch that they are to serve.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long an agent must show nothing else: one that is just stopping ends its streams without a word as well.
const CERTAIN: Duration = Duration::from_secs(10);
/// Between two signs of the same: with more, something else was there.
const APART: Duration = Duration::from_secs(5);

/// Parts whose agents ended streams that an agent of this version serves, and when they did so first and last.
#[derive(Default)]
pub(super) struct Older(BTreeMap<u32, (Instant, Instant)>);

impl Older {
    /// Another sign. Gives whether it is certain by now.
    pub(super) fn is_certain(&mut self, part: u32, now: Instant) -> bool {
        let (first, last) = self.0.entry(part).or_insert((now, now));
        if now.saturating_duration_since(*last) > APART {
            *first = now;
        }
        *last = now;
        now.saturating_duration_since(*first) >= CERTAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_older_again_and_again_is_certain_and_one_that_just_stops_is_not() {
        let (mut older, begin) = (Older::default(), Instant::now());
        let mut certain = |part, ms| older.is_certain(part, begin + Duration::from_millis(ms));
        assert!((0..10).all(|at| !certain(1, at * 1000)), "for less than ten seconds");
        assert!(certain(1, 10_000) && certain(1, 10_050));
        assert!(!certain(2, 10_050), "another part");
        assert!(!certain(1, 16_000), "it was something else meanwhile");
        assert!((16..26).all(|at| !certain(1, at * 1000)) && certain(1, 26_000));
    }
}
