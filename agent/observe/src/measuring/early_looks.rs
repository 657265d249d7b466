//! Early looks at work that was just put in debug mode, if the next regular look is not soon.
//!
//! Each allocation has at most one a minute, whoever asks and however often. It counts in the
//! thread's budget: the next regular look comes later by twenty times its processor time (`looks`).

use crate::alerting::saved::Key;
use lattice_agent_common::node_view::NodeView;
use lattice_model::{AllocationId, TelemetryMode};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Least time between the requests for two early looks at one allocation.
const EARLY_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Least time between two looks at one allocation: rates over a shorter time say little.
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(500);

/// The wanted early looks, and the recent ones.
#[derive(Debug, Default)]
pub(super) struct EarlyLooks {
    wanted: BTreeSet<Key>,
    /// When the last early look was requested, until another one is allowed.
    recent: BTreeMap<AllocationId, Instant>,
}

impl EarlyLooks {
    /// Requests early looks at work that was just put in debug mode, unless it had one recently.
    pub(super) fn note(&mut self, begun: Vec<Key>, now: Instant) {
        self.recent.retain(|_, at| now.saturating_duration_since(*at) < EARLY_INTERVAL_MIN);
        for key in begun {
            if let Entry::Vacant(recent) = self.recent.entry(key.0) {
                recent.insert(now);
                self.wanted.insert(key);
            }
        }
    }

    /// The allocations to look at now, each returned once, and when the next one is due. `looked`:
    /// when each was looked at last.
    pub(super) fn due(&mut self, now: Instant, looked: impl Fn(&Key) -> Option<Instant>) -> (BTreeSet<Key>, Option<Instant>) {
        let due_at: Vec<(Key, Instant)> =
            self.wanted.iter().map(|key| (*key, looked(key).map_or(now, |at| at + LOOK_INTERVAL_MIN))).collect();
        let due: BTreeSet<Key> = due_at.iter().filter(|(_, at)| *at <= now).map(|(key, _)| *key).collect();
        self.wanted.retain(|key| !due.contains(key));
        (due, due_at.into_iter().map(|(_, at)| at).filter(|at| *at > now).min())
    }

    /// A regular look covers everything that was wanted.
    pub(super) fn clear(&mut self) {
        self.wanted.clear();
    }
}

/// Wakes the measuring thread when the set of work in debug mode changes, and when it should stop.
pub(super) async fn wake(thread: Thread, mut view: watch::Receiver<Arc<NodeView>>, stop: CancellationToken) {
    let mut known = orders(&view.borrow_and_update());
    loop {
        tokio::select! {
            () = stop.cancelled() => return thread.unpark(),
            changed = view.changed() => if changed.is_err() { return },
        }
        let now = orders(&view.borrow_and_update());
        if now != known {
            known = now;
            thread.unpark();
        }
    }
}

fn orders(view: &NodeView) -> BTreeSet<Uuid> {
    let orders = view.locals.iter().filter_map(|local| local.share.telemetry.as_ref());
    orders.filter(|order| order.mode == TelemetryMode::Debug).map(|order| order.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Epoch;

    fn key(n: u128) -> Key {
        (AllocationId(Uuid::from_u128(n)), Epoch(1))
    }

    #[test]
    fn each_allocation_gets_at_most_one_early_look_a_minute() {
        let (mut early_looks, began) = (EarlyLooks::default(), Instant::now());
        let after = |ms| began + Duration::from_millis(ms);
        let due = |early_looks: &mut EarlyLooks, now| early_looks.due(now, |_| None).0;
        early_looks.note(vec![key(1), key(2)], began);
        assert_eq!((due(&mut early_looks, began), due(&mut early_looks, began)), ([key(1), key(2)].into(), BTreeSet::new()));
        early_looks.note(vec![key(1), key(3)], after(59_999));
        assert_eq!(due(&mut early_looks, after(59_999)), [key(3)].into(), "the first was asked for within the minute");
        early_looks.note(vec![key(1)], after(60_000));
        assert_eq!(due(&mut early_looks, after(60_000)), [key(1)].into());
        assert_eq!(early_looks.recent.len(), 2, "older ones are removed");
        early_looks.note(vec![key(4)], after(60_000));
        early_looks.clear();
        assert!(due(&mut early_looks, after(60_000)).is_empty(), "it was looked at with everything");
    }

    #[test]
    fn an_early_look_comes_at_least_half_a_second_after_the_last_look() {
        let (mut early_looks, began) = (EarlyLooks::default(), Instant::now());
        let after = |ms| began + Duration::from_millis(ms);
        early_looks.note(vec![key(1), key(2)], after(100));
        let looked = |key: &Key| (key.0.0.as_u128() == 1).then_some(began);
        assert_eq!(early_looks.due(after(100), looked), ([key(2)].into(), Some(after(500))));
        assert_eq!(early_looks.due(after(500), looked), ([key(1)].into(), None));
    }
}
