//! Watches: everything once, then what changes. A watch that falls behind is cut off; it begins again.

use super::Packets;
use super::answer::bytes_about;
use crate::changes::ChangeSet;
use crate::member::Core;
use crate::pack::pack;
use crate::wire::{Change, WatchAllocations, WatchRequest};
use lattice_api::v1::Packed;
use lattice_model::{Allocation, Generation, Node, Revision, Tenant};
use std::sync::Arc;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Messages that wait to go down a watch.
const DOWN_QUEUE: usize = 64;
/// Bytes of allocations in the first message; the others follow as changes.
const START_BYTES_MAX: usize = 8 * 1024 * 1024;

struct Start {
    generation: Generation,
    revision: Revision,
    nodes: Vec<Arc<Node>>,
    allocations: Vec<Arc<Allocation>>,
    tenants: Vec<Arc<Tenant>>,
}

/// Begins a watch.
pub(super) fn open(core: Arc<Core>, wanted: WatchRequest) -> Result<Packets, Status> {
    if !*core.led.borrow() {
        return Err(Status::unavailable("this member has no leader"));
    }
    let (start, changes) = {
        // Changes are told while the ledger is locked for writing: what is read here and what follows join exactly.
        let ledger = core.agreed.ledger();
        let allocations = match &wanted.allocations {
            WatchAllocations::None => Vec::new(),
            WatchAllocations::Live => ledger.allocations().filter(|a| !a.state.is_terminal()).cloned().collect(),
            WatchAllocations::One(id) => ledger.allocation(*id).cloned().into_iter().collect(),
        };
        let nodes = if wanted.nodes { ledger.nodes().cloned().collect() } else { Vec::new() };
        let tenants = if wanted.tenants { ledger.tenants().cloned().collect() } else { Vec::new() };
        let start = Start { generation: ledger.generation(), revision: ledger.revision(), nodes, allocations, tenants };
        (start, core.agreed.changes.subscribe())
    };
    let (tx, rx) = mpsc::channel(DOWN_QUEUE);
    tokio::spawn(async move {
        let ended = tokio::select! {
            () = tx.closed() => return,
            () = core.stop.cancelled() => Status::unavailable("this member is stopping"),
            () = leaderless(&core) => Status::unavailable("this member has no leader"),
            status = follow(&wanted, start, changes, &tx) => status,
        };
        // When the queue is full or the watcher gone, the stream's end tells as much.
        let _told = tx.try_send(Err(ended));
    });
    Ok(Box::pin(ReceiverStream::new(rx)))
}

/// Returns when this member has had no leader for too long.
pub(super) async fn leaderless(core: &Core) {
    let mut led = core.led.clone();
    if led.wait_for(|led| !led).await.is_err() {
        // Nobody watches any more: the member is stopping, which is told otherwise.
        std::future::pending::<()>().await;
    }
}

async fn follow(
    wanted: &WatchRequest,
    start: Start,
    mut changes: Receiver<Arc<ChangeSet>>,
    down: &mpsc::Sender<Result<Packed, Status>>,
) -> Status {
    let gone = || Status::cancelled("the watcher is gone");
    for change in first(start) {
        if send(down, &change).await.is_err() {
            return gone();
        }
    }
    loop {
        let set = match changes.recv().await {
            Ok(set) => set,
            Err(RecvError::Lagged(_)) => return Status::aborted("the watcher is too slow: start again"),
            Err(RecvError::Closed) => return Status::unavailable("this member is stopping"),
        };
        let ChangeSet::Entry { nodes, allocations, tenants, .. } = &*set else {
            return Status::aborted("everything may have changed: start again");
        };
        let nodes = nodes.iter().filter(|_| wanted.nodes).map(|n| Change::Node(Box::new((**n).clone())));
        let concerns = |a: &&Arc<Allocation>| match &wanted.allocations {
            WatchAllocations::None => false,
            WatchAllocations::Live => true,
            WatchAllocations::One(id) => a.id == *id,
        };
        let allocations = allocations.iter().filter(concerns).map(|a| Change::Allocation(Box::new((**a).clone())));
        let tenants = tenants.iter().filter(|_| wanted.tenants).map(|(name, tenant)| match tenant {
            Some(tenant) => Change::Tenant(Box::new((**tenant).clone())),
            None => Change::TenantDeleted(name.clone()),
        });
        // Quotas first: what may be claimed under them follows.
        for change in tenants.chain(nodes).chain(allocations) {
            if send(down, &change).await.is_err() {
                return gone();
            }
        }
    }
}

/// The first message, with what does not fit into it behind it.
fn first(start: Start) -> impl Iterator<Item = Change> {
    let mut bytes = 0;
    let fits = start.allocations.iter().take_while(|a| {
        bytes += bytes_about(a);
        bytes <= START_BYTES_MAX
    });
    let fits = fits.count();
    let mut allocations = start.allocations;
    let rest = allocations.split_off(fits);
    let first = Change::Start {
        generation: start.generation,
        revision: start.revision,
        nodes: start.nodes.iter().map(|n| (**n).clone()).collect(),
        allocations: allocations.iter().map(|a| (**a).clone()).collect(),
        tenants: start.tenants.iter().map(|t| (**t).clone()).collect(),
    };
    std::iter::once(first).chain(rest.into_iter().map(|a| Change::Allocation(Box::new((*a).clone()))))
}

async fn send(down: &mpsc::Sender<Result<Packed, Status>>, change: &Change) -> Result<(), ()> {
    let packed = pack(change).map_err(Status::from);
    down.send(packed).await.map_err(|_| ())
}
