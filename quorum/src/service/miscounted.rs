//! Compares the number of shares in a node's heartbeats with the ledger. Reports and lists make the
//! two equal; a lasting difference means that something was lost. No decision depends on it: it is
//! only counted, for people to investigate.

/// Number of consecutive heartbeats with the same wrong number before it counts: a list or a report
/// may be in transit.
const WRONG_COUNTS_MIN: u32 = 3;

/// The comparison for one session.
#[derive(Debug, Default)]
pub(super) struct Miscounted {
    /// The latest different numbers: the node's and the ledger's.
    apart: Option<(u32, usize)>,
    times: u32,
}

/// Whether to count a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The numbers are equal, or have changed recently.
    Fine,
    /// They differ, and count from this heartbeat on.
    Begins,
    /// They still differ.
    GoesOn,
}

impl Miscounted {
    /// A heartbeat reports `reported` shares, and the ledger has `known` for the node.
    pub(super) fn compare(&mut self, reported: u32, known: usize) -> Verdict {
        if usize::try_from(reported) == Ok(known) {
            *self = Self::default();
            return Verdict::Fine;
        }
        if self.apart.replace((reported, known)) == Some((reported, known)) {
            self.times = self.times.saturating_add(1);
        } else {
            self.times = 1;
        }
        match self.times {
            ..WRONG_COUNTS_MIN => Verdict::Fine,
            WRONG_COUNTS_MIN => Verdict::Begins,
            _ => Verdict::GoesOn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_difference_that_stays_counts() {
        let mut counted = Miscounted::default();
        let mut verdicts =
            |heartbeats: &[(u32, usize)]| heartbeats.iter().map(|(reported, known)| counted.compare(*reported, *known)).collect::<Vec<_>>();
        use Verdict::{Begins, Fine, GoesOn};
        assert_eq!(verdicts(&[(2, 2), (1, 2), (1, 2), (2, 2)]), [Fine; 4], "a report was on its way");
        assert_eq!(verdicts(&[(1, 2), (1, 3), (1, 2), (0, 2), (0, 2)]), [Fine; 5], "much happens there");
        assert_eq!(verdicts(&[(0, 2), (0, 2), (2, 2)]), [Begins, GoesOn, Fine], "the third, and then each");
        assert_eq!(verdicts(&[(3, 2), (3, 2), (3, 2)]), [Fine, Fine, Begins], "from the beginning");
    }
}
