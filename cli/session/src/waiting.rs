//! Reports on stderr what the followed work waits for, and each change of that.

use crate::session::{Session, answer};
use crate::shown::short;
use lattice_api::client::Client;
use lattice_api::v1;
use std::cell::RefCell;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::sleep;

/// How long work may wait before the user is notified.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(1);
/// Interval of checks why it waits.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The last report, kept over all connections.
#[derive(Debug, Default)]
pub struct WaitReporter(RefCell<String>);

impl WaitReporter {
    /// Checks again and again, until the future is dropped. `last`: the latest known state of the allocation.
    pub async fn report(&self, session: &Session, client: &Client, last: &RefCell<Option<v1::Allocation>>) -> Infallible {
        let mut pause = FIRST_CHECK_DELAY;
        loop {
            sleep(pause).await;
            pause = CHECK_INTERVAL;
            let waits = last.borrow().as_ref().filter(|a| is_waiting(a)).map(|a| a.id.clone());
            let Some(key) = waits else {
                // It may wait again, after a requeue.
                self.0.borrow_mut().clear();
                pause = FIRST_CHECK_DELAY;
                continue;
            };
            // A lost agent is handled by the code that follows the allocation.
            let Ok(explained) = answer(client.allocations().explain(v1::ExplainRequest { key })).await else { continue };
            let now = explained.allocation.unwrap_or_default();
            if let Some(report) = self.new_report(&now, explained.summary.trim()) {
                session.note(&report);
            }
        }
    }

    /// The line to report, if it differs from the last one.
    fn new_report(&self, now: &v1::Allocation, summary: &str) -> Option<String> {
        let text = format!("allocation {} is {}: {summary}", short(&now.id), now.state);
        let is_new = is_waiting(now) && *self.0.borrow() != text;
        is_new.then(|| self.0.replace(text.clone())).map(|_| text)
    }
}

fn is_waiting(allocation: &v1::Allocation) -> bool {
    matches!(allocation.state.as_str(), "Pending" | "Staging" | "Suspended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_reported_once_and_running_work_has_none() {
        let at = |state: &str| v1::Allocation { id: "1f0c9a4e-5b7d".into(), state: state.into(), ..Default::default() };
        let waiting = WaitReporter::default();
        let text = waiting.new_report(&at("Pending"), "wants 4 nodes, 1 is free: it is next");
        assert_eq!(text.unwrap(), "allocation 1f0c9a4e is Pending: wants 4 nodes, 1 is free: it is next");
        assert_eq!(waiting.new_report(&at("Pending"), "wants 4 nodes, 1 is free: it is next"), None);
        assert!(waiting.new_report(&at("Pending"), "wants 4 nodes, 2 are free: it is next").is_some());
        assert!(waiting.new_report(&at("Staging"), "its nodes prepare").is_some());
        assert_eq!(waiting.new_report(&at("Running"), "runs on n1"), None);
    }
}
