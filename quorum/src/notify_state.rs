//! The delivery state of notifications about nodes.

use lattice_ledger::{Ledger, NotifyWay};
use lattice_quorum_client::wire::NotifyStanding;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// For each configured kind of notification, why its delivery fails now, if it does. All clones
/// share one state.
#[derive(Clone, Debug, Default)]
pub struct Notify(Arc<Mutex<BTreeMap<NotifyWay, Option<String>>>>);

impl Notify {
    /// The progress of each kind: up to which audit record it is delivered, and why it fails.
    pub fn standing(&self, ledger: &Ledger) -> Vec<NotifyStanding> {
        let ways = self.0.lock();
        let standing = |(way, problem): (&NotifyWay, &Option<String>)| NotifyStanding {
            way: way.to_string(),
            upto: ledger.notified(*way).unwrap_or_default(),
            trouble: problem.clone(),
        };
        ways.iter().map(standing).collect()
    }

    pub fn set_problem(&self, way: NotifyWay, problem: Option<String>) {
        self.0.lock().insert(way, problem);
    }

    /// Records why a kind of notification fails. Returns whether the reason is new.
    pub fn fails(&self, way: NotifyWay, why: &str) -> bool {
        let mut ways = self.0.lock();
        let known = ways.insert(way, Some(why.to_owned()));
        known.flatten().as_deref() != Some(why)
    }
}
