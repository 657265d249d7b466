//! Whether a connection is of use: it must send a request soon, must not be idle for long, and must take its answers.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the first request may take to arrive.
const FIRST_REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a connection without an open request stays.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a piece of an answer may wait for its reader.
const READER_TIME_MAX: Duration = Duration::from_secs(60);
/// How often a connection with open requests is examined.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// What one connection does. Cloneable; all clones share it.
#[derive(Clone)]
pub(super) struct Activity(Arc<Mutex<State>>);

struct State {
    /// The open requests, and since when the answer of each waits for its reader; `None`: it does not wait.
    open: BTreeMap<u64, Option<Instant>>,
    next: u64,
    /// Since when no request is open.
    quiet_since: Instant,
}

/// Why a connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Useless {
    /// No request comes.
    Idle,
    /// Answers are not read.
    SlowReader,
}

impl Activity {
    pub(super) fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(State { open: BTreeMap::new(), next: 0, quiet_since: now })))
    }

    /// A request begins; it ends when the result is dropped.
    pub(super) fn begin(&self) -> OpenRequest {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, None);
        OpenRequest { number, activity: self.clone() }
    }

    /// Waits until the connection must end.
    pub(super) async fn until_useless(&self) -> Useless {
        loop {
            let examined = self.0.lock().examine(Instant::now());
            match examined {
                Ok(left) => tokio::time::sleep(left).await,
                Err(why) => return why,
            }
        }
    }
}

impl State {
    /// How long until the connection is examined again, or why it must end.
    fn examine(&self, now: Instant) -> Result<Duration, Useless> {
        if self.open.is_empty() {
            let most = if self.next == 0 { FIRST_REQUEST_TIME_MAX } else { IDLE_TIME_MAX };
            let left = (self.quiet_since + most).saturating_duration_since(now);
            return if left.is_zero() { Err(Useless::Idle) } else { Ok(left) };
        }
        let is_slow = |since: &Instant| now.saturating_duration_since(*since) >= READER_TIME_MAX;
        if self.open.values().flatten().any(is_slow) { Err(Useless::SlowReader) } else { Ok(CHECK_INTERVAL) }
    }
}

/// An open request.
pub(super) struct OpenRequest {
    number: u64,
    activity: Activity,
}

impl OpenRequest {
    /// Sets since when a piece of the answer waits for its reader, which asks for the next piece when it has read it.
    pub(super) fn waits_for_reader(&self, since: Option<Instant>) {
        if let Some(waits) = self.activity.0.lock().open.get_mut(&self.number) {
            *waits = since;
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        state.open.remove(&self.number);
        if state.open.is_empty() {
            state.quiet_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_asks_nothing_ends_soon_and_an_idle_one_later() {
        let began = Instant::now();
        let activity = Activity::new(began);
        let examine = |after| activity.0.lock().examine(began + Duration::from_secs(after));
        assert_eq!([examine(0), examine(10)], [Ok(Duration::from_secs(10)), Err(Useless::Idle)]);
        let request = activity.begin();
        assert_eq!(examine(1000), Ok(CHECK_INTERVAL), "an open request keeps it");
        drop(request);
        assert!(examine(30).is_ok());
        assert_eq!(examine(1000), Err(Useless::Idle));
    }

    #[test]
    fn a_connection_whose_answers_are_not_read_ends() {
        let began = Instant::now();
        let activity = Activity::new(began);
        let examine = |after| activity.0.lock().examine(began + Duration::from_secs(after));
        let [slow, _quick] = [activity.begin(), activity.begin()];
        slow.waits_for_reader(Some(began));
        assert_eq!([examine(59), examine(60)], [Ok(CHECK_INTERVAL), Err(Useless::SlowReader)]);
        slow.waits_for_reader(None);
        assert_eq!(examine(1000), Ok(CHECK_INTERVAL), "it has read all, and waits for more");
    }

    #[tokio::test]
    async fn waiting_ends_when_the_connection_must() {
        let activity = Activity::new(Instant::now().checked_sub(FIRST_REQUEST_TIME_MAX).unwrap());
        assert_eq!(activity.until_useless().await, Useless::Idle);
    }
}
