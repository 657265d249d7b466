//! What an allocation's task knows of its run lease, which the shim keeps.

use lattice_model::DesiredShare;
use tokio::sync::watch;

/// Of an allocation without one it says nothing.
#[derive(Default)]
pub(super) struct RunLease {
    /// Whether it was granted once: work may begin.
    pub(super) granted: bool,
    /// Whether the shim said that it lapsed.
    pub(super) lapsed: bool,
    /// It was granted just now: what waited for that is to begin.
    pub(super) begins: bool,
    /// What is to be started once it is granted.
    pub(super) waits: Option<Box<DesiredShare>>,
}

/// Returns when the leader acknowledged another heartbeat; never, where there is no lease or the agent stops.
pub(super) async fn renewed(acknowledged: &mut Option<watch::Receiver<Option<u64>>>) {
    let changed = match acknowledged {
        Some(acknowledged) => acknowledged.changed().await.is_ok(),
        None => false,
    };
    if !changed {
        std::future::pending::<()>().await;
    }
}
