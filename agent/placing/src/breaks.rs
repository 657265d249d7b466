//! Plans that break by an error of the scheduler. An agent that makes no plan must not keep its
//! leases, because then nothing is placed. It leaves the queues to other agents for a while, and
//! tries again later: perhaps there are no others, or their plans break too.

use lattice_model::Backoff;
use std::time::{Duration, Instant};
use tokio::task::JoinError;

/// For how long an agent leaves the queues to others after a plan that broke.
const PAUSE_FIRST: Duration = Duration::from_secs(10);
/// The longest pause, after several plans in a row that broke.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// See the module documentation.
pub struct Breaks {
    pauses: Backoff,
    until: Option<Instant>,
}

impl Default for Breaks {
    fn default() -> Self {
        Self { pauses: Backoff::new(PAUSE_FIRST, PAUSE_MAX), until: None }
    }
}

impl Breaks {
    /// A plan broke. Returns for how long the agent leaves the queues to others.
    pub fn begin(&mut self, now: Instant) -> Duration {
        let pause = self.pauses.next_pause();
        self.until = Some(now + pause);
        pause
    }

    /// Whether the agent leaves the queues to others.
    pub fn is_pausing(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// A plan was made.
    pub fn end(&mut self) {
        self.pauses.reset();
        self.until = None;
    }
}

/// Runs long work beside the other tasks.
///
/// # Errors
/// It panicked, or the agent is stopping.
pub async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    tokio::task::spawn_blocking(work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_plan_is_made() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut breaks = Breaks::default();
        assert!(!breaks.is_pausing(begin));
        assert_eq!(breaks.begin(begin), PAUSE_FIRST);
        assert!(breaks.is_pausing(after(9)) && !breaks.is_pausing(after(10)), "then it tries again");
        assert_eq!(breaks.begin(after(10)), 2 * PAUSE_FIRST);
        assert!(breaks.is_pausing(after(29)) && !breaks.is_pausing(after(30)));
        assert_eq!((0..10).map(|_| breaks.begin(begin)).max(), Some(PAUSE_MAX));
        breaks.end();
        assert!(!breaks.is_pausing(begin));
        assert_eq!(breaks.begin(begin), PAUSE_FIRST);
    }

    #[tokio::test]
    async fn a_panic_of_the_work_ends_nothing_else() {
        let broken = beside(|| -> u64 { panic!("a bug") }).await.unwrap_err();
        assert!(broken.is_panic() && broken.to_string().contains("a bug"), "{broken}");
        assert_eq!(beside(|| 7).await.unwrap(), 7);
    }
}
