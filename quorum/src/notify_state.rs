//! The delivery state of notifications.

use lattice_ledger::{Ledger, NotifyChannel};
use lattice_quorum_client::wire::NotifyStatus;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// For each configured kind of notification, why its delivery fails now, if it does. All clones
/// share one state.
#[derive(Clone, Debug, Default)]
pub struct Notify(Arc<Mutex<BTreeMap<NotifyChannel, Option<String>>>>);

impl Notify {
    /// The progress of each kind: up to which audit record it is delivered, and why it fails.
    pub fn status(&self, ledger: &Ledger) -> Vec<NotifyStatus> {
        let channels = self.0.lock();
        let status = |(channel, problem): (&NotifyChannel, &Option<String>)| NotifyStatus {
            channel: channel.to_string(),
            delivered_seq: ledger.notified(*channel).unwrap_or_default(),
            last_error: problem.clone(),
        };
        channels.iter().map(status).collect()
    }

    pub fn set_problem(&self, channel: NotifyChannel, problem: Option<String>) {
        self.0.lock().insert(channel, problem);
    }

    /// Records why a kind of notification fails. Returns whether the reason is new.
    pub fn fails(&self, channel: NotifyChannel, why: &str) -> bool {
        let mut channels = self.0.lock();
        let known = channels.insert(channel, Some(why.to_owned()));
        known.flatten().as_deref() != Some(why)
    }
}
