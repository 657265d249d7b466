//! The driver's queue of events.

use lattice_node::Event;
use tokio::sync::mpsc;

/// Sends events to the driver. Cloneable; clones share one queue.
#[derive(Clone, Debug)]
pub struct DriverQueue(mpsc::Sender<Event>);

impl DriverQueue {
    /// A queue for this many events, and the driver's end.
    pub fn new(len_max: usize) -> (Self, mpsc::Receiver<Event>) {
        let (events, queue) = mpsc::channel(len_max);
        (Self(events), queue)
    }

    /// Sends an event to the driver; waits while its queue is full.
    pub async fn send(&self, event: Event) {
        // A closed queue means that the driver has ended, and the agent is stopping. After its
        // restart the agent learns from the shims and the quorum what it missed.
        let _ = self.0.send(event).await;
    }
}
