//! The parts that this node has in rounds of checkpoints, for who asks for one again.

use lattice_mesh::checkpoint::{FromSaver, PartOpen};
use lattice_model::{AllocationId, CheckpointId, Epoch};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The parts of this node.
#[derive(Default)]
pub(super) struct Parts(Mutex<BTreeMap<AllocationId, Going>>);

/// One that goes on, or is over.
#[derive(Clone)]
struct Going {
    of: (Epoch, CheckpointId, u32),
    ends: Ends,
    stop: CancellationToken,
}

/// The way to a part.
#[derive(Clone)]
pub(super) struct Ends {
    /// Send the signal.
    pub go: watch::Sender<bool>,
    /// Its last word; `None`: none yet.
    pub says: watch::Receiver<Option<FromSaver>>,
    ready: Ready,
}

/// Asks the work.
type Act = Box<dyn FnOnce() + Send>;

/// What a part does once it may, until somebody does it: its own task, or the thread that has just written down that
/// it may.
#[derive(Clone, Default)]
pub(super) struct Ready(Arc<Mutex<Option<Act>>>);

impl Ready {
    pub fn put(&self, act: Act) {
        *self.0.lock() = Some(act);
    }

    pub fn take(&self) -> Option<Act> {
        self.0.lock().take()
    }
}

/// A part that is to begin.
pub(super) struct NewPart {
    /// The reports of the part of an older round that this one replaces.
    pub older: Option<watch::Receiver<Option<FromSaver>>>,
    /// Whether it may ask.
    pub may_ask: watch::Receiver<bool>,
    pub reports: watch::Sender<Option<FromSaver>>,
    pub ready: Ready,
    pub stop: CancellationToken,
}

impl Parts {
    /// The part of this round: the running one, or a new one, which `begin` starts, in place of that of an older round.
    pub fn attach(&self, allocation: AllocationId, of: (Epoch, CheckpointId, u32), begin: impl FnOnce(NewPart)) -> Ends {
        let mut all = self.0.lock();
        if let Some(going) = all.get(&allocation).filter(|going| going.of == of && !going.stop.is_cancelled()) {
            return going.ends.clone();
        }
        let older = all.remove(&allocation).map(|older| {
            older.stop.cancel();
            older.ends.says
        });
        let (go, may_ask) = watch::channel(false);
        let (reports, says) = watch::channel(None);
        let (stop, ready) = (CancellationToken::new(), Ready::default());
        let ends = Ends { go, says, ready: ready.clone() };
        all.insert(allocation, Going { of, ends: ends.clone(), stop: stop.clone() });
        begin(NewPart { older, may_ask, reports, ready, stop });
        ends
    }

    /// Asks this node's work for its part of this round, where that waits for nothing but the word that it may. From a
    /// thread that may block, and that has just written it down: changing to another one would take longer than
    /// asking.
    pub fn act(&self, allocation: AllocationId, (epoch, id, round): (Epoch, CheckpointId, u32)) {
        let all = self.0.lock();
        let going = all.get(&allocation).filter(|going| going.of == (epoch, id, round) && !going.stop.is_cancelled());
        let act = going.and_then(|going| going.ends.ready.take());
        drop(all);
        if let Some(act) = act {
            act();
        }
    }

    /// Ends that of a round, which nobody waits for any more.
    pub fn give_up(&self, open: &PartOpen) {
        let of = (Epoch(open.epoch), CheckpointId(Uuid::from_bytes(open.id)), open.round);
        let all = self.0.lock();
        let allocation = AllocationId(Uuid::from_bytes(open.allocation));
        // It stays there: the next one waits until it has taken back what it asked for.
        if let Some(going) = all.get(&allocation).filter(|going| going.of == of) {
            going.stop.cancel();
        }
    }

    /// Ends an allocation's.
    pub fn stop(&self, allocation: AllocationId) {
        if let Some(going) = self.0.lock().remove(&allocation) {
            going.stop.cancel();
        }
    }
}
