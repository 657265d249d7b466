//! The events that wake an allocation's task besides its commands and its shim.

use lattice_runtime::shim::boottime_ms;
use std::time::Duration;
use tokio::sync::watch;

/// Waits until this time since boot; `None`: waits for ever.
pub(super) async fn due(at_ms: Option<u64>) {
    match at_ms {
        Some(at_ms) => tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(boottime_ms()))).await,
        None => std::future::pending().await,
    }
}

/// Returns when the leader has acknowledged another heartbeat; never, if there is no lease or the
/// agent stops.
pub(super) async fn renewed(acknowledged: &mut Option<watch::Receiver<Option<u64>>>) {
    let changed = match acknowledged {
        Some(acknowledged) => acknowledged.changed().await.is_ok(),
        None => false,
    };
    if !changed {
        std::future::pending::<()>().await;
    }
}
