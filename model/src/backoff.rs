//! How long to wait between two attempts.

use std::time::Duration;

/// Pauses that double from the first up to the longest. A caller that must not retry in step with
/// others waits for a random part of each pause.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// A backoff whose next pause is `first`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// Call after a success: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(400), Duration::from_secs(1));
        let mut pauses = |n: usize| (0..n).map(|_| backoff.next_pause().as_millis()).collect::<Vec<_>>();
        assert_eq!(pauses(4), [400, 800, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.next_pause(), Duration::from_millis(400));
        let mut endless = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!([endless.next_pause(), endless.next_pause()], [Duration::MAX; 2]);
    }
}
