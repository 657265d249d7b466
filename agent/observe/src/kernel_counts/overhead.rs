//! The share of the node's processors that the programs in the kernel use, by the kernel's own
//! accounting.
//!
//! The accounting costs each run of a program two clock reads, so it is on for one second of each
//! minute.

use std::fmt;
use std::time::{Duration, Instant};

/// Time from the end of one accounting period to the beginning of the next.
const APART: Duration = Duration::from_secs(59);
/// Least length of an accounting period, which ends at the first look after it.
const LENGTH: Duration = Duration::from_millis(900);

/// The measured share. `Clock`: a guard that keeps the kernel's accounting on.
pub(super) struct Overhead<Clock> {
    state: State<Clock>,
    percent: Option<f64>,
}

enum State<Clock> {
    /// The end of the last accounting period, if there was one.
    Resting(Option<Instant>),
    Counting {
        since: Instant,
        before: Duration,
        _clock: Clock,
    },
    /// This kernel has no accounting, or it could not be turned on.
    Off,
}

impl<Clock> Default for Overhead<Clock> {
    fn default() -> Self {
        Self { state: State::Resting(None), percent: None }
    }
}

impl<Clock> Overhead<Clock> {
    /// Percent of all processors' time in the last accounting period; `None`: not measured yet, or
    /// unknown.
    pub(super) fn percent(&self) -> Option<f64> {
        self.percent
    }

    /// Begins or ends an accounting period if it is time; call it at each look. `begin` turns the
    /// accounting on; `total` is how long the programs have run while it was on.
    pub(super) fn look<E: fmt::Display>(
        &mut self,
        now: Instant,
        processors: impl FnOnce() -> usize,
        begin: impl FnOnce() -> Result<Clock, E>,
        total: impl FnOnce() -> Duration,
    ) {
        match &self.state {
            State::Resting(since) if since.is_some_and(|since| now.saturating_duration_since(since) < APART) => {}
            State::Resting(_) => match begin() {
                Ok(clock) => self.state = State::Counting { since: now, before: total(), _clock: clock },
                Err(why) => {
                    tracing::info!("the cost of programs in the kernel is unknown: {why}");
                    self.state = State::Off;
                }
            },
            State::Counting { since, before, .. } => {
                let took = now.saturating_duration_since(*since);
                if took >= LENGTH {
                    let of_all = took.as_secs_f64() * processors() as f64;
                    self.percent = Some(total().saturating_sub(*before).as_secs_f64() / of_all * 100.0);
                    self.state = State::Resting(Some(now));
                }
            }
            State::Off => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Its reference count shows whether somebody holds it.
    type Held = Rc<()>;

    #[test]
    fn overhead_is_measured_for_one_second_of_each_minute() {
        let (mut overhead, began, held) = (Overhead::<Held>::default(), Instant::now(), Rc::new(()));
        let total = Cell::new(Duration::from_secs(100));
        let mut look = |second: u64, ran_ms: u64| {
            total.set(total.get() + Duration::from_millis(ran_ms));
            let begin = || Ok::<_, &str>(Rc::clone(&held));
            overhead.look(began + Duration::from_secs(second), || 4, begin, || total.get());
            (Rc::strong_count(&held) == 2, overhead.percent())
        };
        assert_eq!(look(0, 0), (true, None));
        // 20 ms of one second on four processors.
        assert_eq!(look(1, 20), (false, Some(0.5)));
        for second in 2..60 {
            assert_eq!(look(second, 500), (false, Some(0.5)));
        }
        assert_eq!(look(60, 0), (true, Some(0.5)));
        // A busy machine looks late.
        assert_eq!(look(64, 40), (false, Some(0.25)));
    }

    #[test]
    fn a_kernel_that_keeps_none_is_asked_once() {
        let (mut overhead, began) = (Overhead::<Held>::default(), Instant::now());
        let asked = Cell::new(0);
        for second in 0..100 {
            let begin = || {
                asked.set(asked.get() + 1);
                Err("no".to_owned())
            };
            overhead.look(began + Duration::from_secs(second), || 4, begin, || panic!("there is none"));
        }
        assert_eq!((asked.get(), overhead.percent()), (1, None));
    }
}
