//! The search for nodes that their parent in a launch's tree cannot reach: the head tries to reach
//! them itself. If only the link between the two is cut, nobody else would notice, and the launch
//! would wait for ever.

use super::line::Around;
use std::collections::BTreeSet;
use tokio::task::JoinSet;

/// Largest number of parts searched for at once. The tree reports the others again.
const SEARCHES_MAX: usize = 64;

/// The parts that a head is searching for.
#[derive(Default)]
pub(super) struct Seek {
    parts: BTreeSet<u32>,
    tasks: JoinSet<(u32, bool)>,
}

impl Seek {
    /// Starts the search for a part, unless it is running already.
    pub(super) fn begin(&mut self, around: &Around, part: u32) {
        if self.parts.len() < SEARCHES_MAX && self.parts.insert(part) {
            let around = around.clone();
            self.tasks.spawn(async move { (part, is_reached(&around, part).await) });
        }
    }

    /// Waits for the next part that was reached.
    pub(super) async fn reached(&mut self) -> u32 {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((part, is_reached))) => {
                    self.parts.remove(&part);
                    if is_reached {
                        return part;
                    }
                }
                Some(Err(error)) => tracing::error!(%error, "the search for a part of a launch failed"),
                None => std::future::pending().await,
            }
        }
    }
}

async fn is_reached(around: &Around, part: u32) -> bool {
    let handles = &around.handles;
    let Some(node) = around.node(part) else { return false };
    let Some(address) = handles.directory.mesh(node).await else { return false };
    // Nothing is sent on this stream: the peer sees it end.
    handles.mesh.open(node, &address).await.is_ok()
}
