//! This node's parts of checkpoint rounds, kept so that a head that asks for the same round again
//! gets the running part.

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

/// A running or finished part.
#[derive(Clone)]
struct Going {
    of: (Epoch, CheckpointId, u32),
    ends: Ends,
    stop: CancellationToken,
}

/// A handle on a part.
#[derive(Clone)]
pub(super) struct Ends {
    /// Set to `true` when the part may ask the work.
    pub go: watch::Sender<bool>,
    /// The part's last report; `None`: none yet.
    pub last_report: watch::Receiver<Option<FromSaver>>,
    ready: Ready,
}

/// The action that asks the work.
type Act = Box<dyn FnOnce() + Send>;

/// The action of a part that waits for permission. Whoever takes it first runs it: the part's own
/// task, or the thread that has just written the permission down.
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

/// What a new part starts with.
pub(super) struct NewPart {
    /// Reports of the older round's part that this one replaces.
    pub older: Option<watch::Receiver<Option<FromSaver>>>,
    /// Whether the part may ask the work.
    pub may_ask: watch::Receiver<bool>,
    pub reports: watch::Sender<Option<FromSaver>>,
    pub ready: Ready,
    pub stop: CancellationToken,
}

impl Parts {
    /// The part of this round: the running one, or a new one started by `begin`, which replaces
    /// the part of an older round.
    pub fn attach(&self, allocation: AllocationId, of: (Epoch, CheckpointId, u32), begin: impl FnOnce(NewPart)) -> Ends {
        let mut all = self.0.lock();
        if let Some(going) = all.get(&allocation).filter(|going| going.of == of && !going.stop.is_cancelled()) {
            return going.ends.clone();
        }
        let older = all.remove(&allocation).map(|older| {
            older.stop.cancel();
            older.ends.last_report
        });
        let (go, may_ask) = watch::channel(false);
        let (reports, last_report) = watch::channel(None);
        let (stop, ready) = (CancellationToken::new(), Ready::default());
        let ends = Ends { go, last_report, ready: ready.clone() };
        all.insert(allocation, Going { of, ends: ends.clone(), stop: stop.clone() });
        begin(NewPart { older, may_ask, reports, ready, stop });
        ends
    }

    /// Asks this node's work for this round, if its part waits for nothing but permission. Called
    /// on a blocking thread that has just written the permission down: switching to another thread
    /// would take longer than asking.
    pub fn act(&self, allocation: AllocationId, (epoch, id, round): (Epoch, CheckpointId, u32)) {
        let all = self.0.lock();
        let going = all.get(&allocation).filter(|going| going.of == (epoch, id, round) && !going.stop.is_cancelled());
        let act = going.and_then(|going| going.ends.ready.take());
        drop(all);
        if let Some(act) = act {
            act();
        }
    }

    /// Ends the part of a round that the head has given up.
    pub fn give_up(&self, open: &PartOpen) {
        let of = (Epoch(open.epoch), CheckpointId(Uuid::from_bytes(open.id)), open.round);
        let all = self.0.lock();
        let allocation = AllocationId(Uuid::from_bytes(open.allocation));
        // The entry stays: the next part waits until this one has withdrawn its request.
        if let Some(going) = all.get(&allocation).filter(|going| going.of == of) {
            going.stop.cancel();
        }
    }

    /// Ends and removes the part of an allocation.
    pub fn stop(&self, allocation: AllocationId) {
        if let Some(going) = self.0.lock().remove(&allocation) {
            going.stop.cancel();
        }
    }
}
