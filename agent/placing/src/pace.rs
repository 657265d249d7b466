//! When each queue has its next round: an operator may set a shortest time between two
//! ([`lattice_model::VCluster::cycle_interval_ms`]).

use lattice_scheduler::View;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// See the module documentation.
#[derive(Default)]
pub struct Pace {
    /// When the last round of each queue with an interval began.
    began: BTreeMap<String, Instant>,
    /// When the first of the queues that were left out is due.
    next: Option<Instant>,
}

impl Pace {
    /// The queues in `tokens` that have a round now. The others have one when [`Pace::wait`] ends.
    pub fn begin<'q>(&mut self, view: &View, tokens: BTreeMap<&'q str, u64>, now: Instant) -> BTreeMap<&'q str, u64> {
        self.next = None;
        let interval =
            |queue: &str| Duration::from_millis(view.vclusters.get(queue).map_or(0, |vcluster| vcluster.cycle_interval_ms).into());
        self.began.retain(|queue, began| now < *began + interval(queue));
        let mut due = BTreeMap::new();
        for (queue, token) in tokens {
            match self.began.get(queue) {
                Some(began) => {
                    let at = *began + interval(queue);
                    self.next = Some(self.next.map_or(at, |next| next.min(at)));
                }
                None => {
                    if !interval(queue).is_zero() {
                        self.began.insert(queue.to_owned(), now);
                    }
                    due.insert(queue, token);
                }
            }
        }
        due
    }

    /// Waits until the first of the queues that were left out is due; for ever, if none was. It ends once for each
    /// [`Pace::begin`].
    pub async fn wait(&mut self) {
        match self.next {
            Some(next) => tokio::time::sleep_until(next.into()).await,
            None => std::future::pending().await,
        }
        self.next = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::vcluster;
    use lattice_model::VCluster;

    #[test]
    fn a_queue_with_an_interval_has_one_round_in_it_and_the_others_one_for_each_change() {
        let begin = Instant::now();
        let after = |ms| begin + Duration::from_millis(ms);
        let mut view = View::default();
        view.vclusters.insert("slow".into(), VCluster { cycle_interval_ms: 1000, ..vcluster("slow") });
        let mut pace = Pace::default();
        let mut due = |view: &View, ms| {
            let due: Vec<&str> = pace.begin(view, [("default", 1), ("slow", 2)].into(), after(ms)).into_keys().collect();
            (due, pace.next)
        };
        assert_eq!(due(&view, 0), (vec!["default", "slow"], None));
        assert_eq!(due(&view, 1), (vec!["default"], Some(after(1000))));
        assert_eq!(due(&view, 999), (vec!["default"], Some(after(1000))));
        assert_eq!(due(&view, 1000), (vec!["default", "slow"], None));
        // The interval is shortened while it waits.
        view.vclusters.insert("slow".into(), VCluster { cycle_interval_ms: 10, ..vcluster("slow") });
        assert_eq!(due(&view, 1005), (vec!["default"], Some(after(1010))));
        assert_eq!(due(&view, 1010), (vec!["default", "slow"], None));
    }

    #[tokio::test]
    async fn a_wait_that_is_over_is_not_over_again_until_the_next_round() {
        let mut pace = Pace { next: Some(Instant::now()), ..Pace::default() };
        pace.wait().await;
        assert_eq!(pace.next, None);
    }
}
