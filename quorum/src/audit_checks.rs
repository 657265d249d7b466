//! Checks the sealed segments of the audit chain after a start, which reads only their seals.
//!
//! ```text
//!   start: seals, records after the last one ──▶ serves ──▶ the sealed segments, one after the other
//!                                                               ├─ damaged: error, metric, nothing is read from it
//!                                                               └─ cannot be read now: again a minute later
//! ```
//!
//! A segment that this process sealed itself needs no check.

use crate::core::Core;
use lattice_model::with_causes;
use lattice_store::{StoreError, background};
use std::sync::Arc;
use std::time::Duration;

/// Pause after each segment, for which about 20 MB are read.
const PAUSE: Duration = Duration::from_secs(1);
/// Pause before segments that could not be read are tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// Checks the segments that were sealed before this start, the newest first, because readers use
/// that one most. Ends when all are checked, or when the member stops.
pub(crate) async fn check_sealed(core: Arc<Core>) {
    let mut left = core.agreed.audit_segments();
    let mut unread = Vec::new();
    loop {
        let Some(segment) = left.pop() else {
            if unread.is_empty() || core.stop.run_until_cancelled(tokio::time::sleep(RETRY_PAUSE)).await.is_none() {
                return;
            }
            std::mem::swap(&mut left, &mut unread);
            continue;
        };
        let (agreed, checking) = (Arc::clone(&core.agreed), segment.clone());
        let checked = background::run("audit-check", move || agreed.check_audit_segment(&checking));
        match core.stop.run_until_cancelled(checked).await {
            None => return,
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error @ StoreError::Corrupt { .. }))) => {
                tracing::error!(error = %with_causes(&error), "a segment of the audit log is damaged; nothing is read from it");
            }
            Some(Ok(Err(error))) => {
                tracing::warn!(error = %with_causes(&error), "a segment of the audit log cannot be checked now");
                unread.push(segment);
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "a segment of the audit log cannot be checked now");
                unread.push(segment);
            }
        }
        if core.stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await.is_none() {
            return;
        }
    }
}
