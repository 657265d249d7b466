//! The limit of allocations that one user may have running at a time. The quorum applies this rule
//! when it refuses a claim, and the scheduler when it explains why work waits.

use crate::count::counted;
use std::fmt;

/// The user has reached the limit: no further allocation may start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooManyRunning {
    /// The user's name.
    pub user: String,
    /// The user's allocations that have nodes: Staging or Running.
    pub running: u32,
    /// The limit.
    pub most: u32,
}

impl TooManyRunning {
    /// The reason against one more allocation; `None`: it may start.
    pub fn of(user: &str, running: u32, most: Option<u32>) -> Option<Self> {
        let most = most.filter(|most| running >= *most)?;
        Some(Self { user: user.to_owned(), running, most })
    }
}

impl fmt::Display for TooManyRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, running, most } = self;
        match (running, most) {
            (_, 0) => write!(f, "no allocation may begin: the limit user_running is 0"),
            (1, 1) => write!(f, "user {user}'s running allocation is as many as one user may have (limit user_running: 1)"),
            (running, most) if running > most => write!(
                f,
                "user {user}'s {} are more than one user may have (limit user_running: {most})",
                counted(*running, "running allocation")
            ),
            (running, most) => write!(
                f,
                "user {user}'s {} are as many as one user may have (limit user_running: {most})",
                counted(*running, "running allocation")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_may_begin_below_the_limit_alone() {
        let text = |running, most| TooManyRunning::of("anna", running, most).map(|too_many| too_many.to_string());
        assert_eq!((text(1_000_000, None), text(3, Some(4))), (None, None));
        let want = "user anna's 4 running allocations are as many as one user may have (limit user_running: 4)";
        assert_eq!(text(4, Some(4)).as_deref(), Some(want));
        // The limit was lowered below the current number.
        let want = "user anna's 4 running allocations are more than one user may have (limit user_running: 1)";
        assert_eq!(text(4, Some(1)).as_deref(), Some(want));
        let want = "user anna's running allocation is as many as one user may have (limit user_running: 1)";
        assert_eq!(text(1, Some(1)).as_deref(), Some(want));
        assert_eq!(text(0, Some(0)).as_deref(), Some("no allocation may begin: the limit user_running is 0"));
    }
}
