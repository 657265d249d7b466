//! Signals to one allocation's work on this node that the shim has not answered yet.

use lattice_registry::SendSignal;
use lattice_runtime::shim::ToShim;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// The unanswered signals by request number. Numbers are random and never used twice.
#[derive(Default)]
pub(super) struct Signals(BTreeMap<u64, oneshot::Sender<u32>>);

impl Signals {
    /// Registers a signal as unanswered; returns the message for the shim.
    pub(super) fn begin(&mut self, SendSignal { signal, to, answer }: SendSignal) -> ToShim {
        // Drop requests whose callers have gone.
        self.0.retain(|_, waiting| !waiting.is_closed());
        let request = rand::random();
        self.0.insert(request, answer);
        ToShim::Signal { request, signal, to }
    }

    pub(super) fn answered(&mut self, request: u64, processes: u32) {
        if let Some(answer) = self.0.remove(&request) {
            let _ = answer.send(processes);
        }
    }

    /// The connection to the shim broke: it is not known whether the signals were sent.
    pub(super) fn lost(&mut self) {
        self.0.clear();
    }
}
