//! Signals to the work of one allocation on this node, on their way to its shim and until it answers.

use lattice_registry::SendSignal;
use lattice_runtime::shim::ToShim;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Those that the shim has not answered, by their requests' numbers, which are never used twice.
#[derive(Default)]
pub(super) struct Signals(BTreeMap<u64, oneshot::Sender<u32>>);

impl Signals {
    /// What the shim is asked, once.
    pub(super) fn begin(&mut self, SendSignal { signal, to, answer }: SendSignal) -> ToShim {
        // Those that nobody waits for any more.
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

    /// The line to the shim broke: whether they were sent is not known.
    pub(super) fn lost(&mut self) {
        self.0.clear();
    }
}
