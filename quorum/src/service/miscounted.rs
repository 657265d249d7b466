//! What a node says that it has beside what the ledger has there: by reports and lists the two come to be the same, and where they stay
//! apart something was lost on the way. Nothing is decided by it: it is counted, and people look.

/// So many heartbeats in a row say the same wrong number before it counts: a list or a report may be on its way.
const IN_A_ROW: u32 = 3;

/// The heartbeats of one session.
#[derive(Debug, Default)]
pub(super) struct Miscounted {
    /// What the node said last, and what the ledger had.
    apart: Option<(u32, usize)>,
    times: u32,
}

/// Whether a heartbeat is one to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The numbers are the same, or were others lately.
    Fine,
    /// They are apart, and from this heartbeat on it counts.
    Begins,
    /// They still are.
    GoesOn,
}

impl Miscounted {
    /// A heartbeat says that the node has `said` shares, and the ledger has `known` there.
    pub(super) fn heard(&mut self, said: u32, known: usize) -> Verdict {
        if usize::try_from(said) == Ok(known) {
            *self = Self::default();
            return Verdict::Fine;
        }
        if self.apart.replace((said, known)) == Some((said, known)) {
            self.times = self.times.saturating_add(1);
        } else {
            self.times = 1;
        }
        match self.times {
            ..IN_A_ROW => Verdict::Fine,
            IN_A_ROW => Verdict::Begins,
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
        let mut hear =
            |heartbeats: &[(u32, usize)]| heartbeats.iter().map(|(said, known)| counted.heard(*said, *known)).collect::<Vec<_>>();
        use Verdict::{Begins, Fine, GoesOn};
        assert_eq!(hear(&[(2, 2), (1, 2), (1, 2), (2, 2)]), [Fine; 4], "a report was on its way");
        assert_eq!(hear(&[(1, 2), (1, 3), (1, 2), (0, 2), (0, 2)]), [Fine; 5], "much happens there");
        assert_eq!(hear(&[(0, 2), (0, 2), (2, 2)]), [Begins, GoesOn, Fine], "the third, and then each");
        assert_eq!(hear(&[(3, 2), (3, 2), (3, 2)]), [Fine, Fine, Begins], "from the beginning");
    }
}
