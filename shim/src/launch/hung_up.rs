//! Ranks with a socket that ended before their process.

/// How long the shim waits for the end of a process after the end of its socket, in milliseconds. A process that ends
/// closes its descriptors first, and its exit status says more; a process that stays alive has closed the socket
/// itself.
const EXIT_AWAITED_MS: u64 = 200;
/// The limit for a process that is seen to be ending: that takes time on a busy machine.
const ENDING_AWAITED_MS: u64 = 5_000;

/// A rank that sent its last message, or that closed its socket, but whose process is not known to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HungUp {
    /// Since when (milliseconds, CLOCK_BOOTTIME).
    since: u64,
    /// When it is checked next.
    pub(super) until: u64,
}

impl HungUp {
    pub(super) fn new(now: u64) -> Self {
        Self { since: now, until: now + EXIT_AWAITED_MS }
    }

    /// Called when it is due: the next wait for its process; `None`: wait no longer.
    pub(super) fn further(self, now: u64, is_ending: bool) -> Option<Self> {
        (is_ending && now < self.since + ENDING_AWAITED_MS).then_some(Self { until: now + EXIT_AWAITED_MS, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_process_is_waited_for_up_to_the_limit() {
        let mut hung_up = HungUp::new(1_000);
        assert_eq!(hung_up.further(1_200, false), None, "it lives");
        let mut now = hung_up.until;
        while let Some(further) = hung_up.further(now, true) {
            assert_eq!((further.since, further.until), (1_000, now + EXIT_AWAITED_MS));
            (hung_up, now) = (further, further.until);
        }
        assert_eq!(now, 1_000 + ENDING_AWAITED_MS);
    }
}
