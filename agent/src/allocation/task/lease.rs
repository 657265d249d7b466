//! The run lease of what it runs: passed on to the shim, and waited for.

use super::AllocationTask;
use lattice_model::EndReason;
use lattice_model::run_lease::first_until_ms;
use lattice_runtime::shim::{ToShim, boottime_ms};

impl AllocationTask {
    /// Whether work may be begun: it has a lease, or needs none.
    pub(super) fn may_begin(&self) -> bool {
        self.acknowledged.is_none() || self.lease.granted
    }

    /// Passes on to the shim how long its work may run, counted from the newest heartbeat that the leader acknowledged. Work that has
    /// not begun waits for one that was acknowledged lately.
    pub(super) async fn renew(&mut self) {
        let (Some(acknowledged), Some(lease_ms)) = (&mut self.acknowledged, self.share.run_lease_ms) else { return };
        let Some(sent_ms) = *acknowledged.borrow_and_update() else { return };
        let extended =
            if self.lease.granted { Some(sent_ms.saturating_add(lease_ms)) } else { first_until_ms(sent_ms, lease_ms, boottime_ms()) };
        if let Some(until_ms) = extended.filter(|_| self.link.is_some()) {
            self.send(ToShim::RunLease { until_ms }).await;
            self.lease_granted();
        }
    }

    /// Where a former life of the agent had the lease granted, work may begin.
    pub(super) fn keeps_lease(&mut self, until_ms: Option<u64>) {
        if until_ms.is_some() {
            self.lease_granted();
        }
    }

    fn lease_granted(&mut self) {
        self.lease.begins |= !std::mem::replace(&mut self.lease.granted, true);
    }

    pub(super) async fn begin_what_waited(&mut self) {
        if let Some(share) = self.lease.waits.take() {
            self.start(&share).await;
        }
        if self.synced {
            self.begin_launches().await;
        }
        self.stand();
    }

    pub(super) async fn lease_lapsed(&mut self) {
        if std::mem::replace(&mut self.lease.lapsed, true) {
            return;
        }
        tracing::warn!(allocation = %self.share.allocation, "its run lease lapsed: the shim killed its work");
        self.say("its run lease lapsed, its work was killed");
        self.lease.waits = None;
        self.ended(EndReason::RunLeaseLapsed { node: self.context.me.clone() }).await;
    }
}
