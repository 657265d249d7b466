//! The run lease of the allocation's work ([`lattice_node::RunLease`]): the task passes it to the
//! shim, and work that needs one starts only under it.

use super::AllocationTask;
use lattice_model::EndReason;
use lattice_node::{Due, RunLeaseAction, RunLeaseEvent};
use lattice_runtime::shim::{ToShim, boottime_ms};

impl AllocationTask {
    /// Extends the shim's lease, counted from the newest heartbeat that the leader acknowledged.
    pub(super) async fn renew(&mut self) {
        let Some(sent_ms) = self.acknowledged.as_mut().and_then(|acknowledged| *acknowledged.borrow_and_update()) else { return };
        if self.line.is_there() {
            self.handle_lease(RunLeaseEvent::Acknowledged { sent_ms }).await;
        }
    }

    pub(super) async fn handle_lease(&mut self, event: RunLeaseEvent) {
        let mut actions = Vec::new();
        if let Err(refused) = self.lease.handle(boottime_ms(), event, &mut actions) {
            tracing::debug!(allocation = %self.share.allocation, %refused, "not started");
        }
        for action in actions {
            match action {
                RunLeaseAction::Start(share) => self.begin_work(&share).await,
                RunLeaseAction::PublishWait => {
                    self.set_detail("waits for the leader to acknowledge a heartbeat: its run lease begins with that");
                }
                RunLeaseAction::Extend { until_ms } => self.send(ToShim::RunLease { until_ms }).await,
                RunLeaseAction::ReportLapse => {
                    tracing::warn!(allocation = %self.share.allocation, "its run lease lapsed: the shim killed its work");
                    self.set_detail("its run lease lapsed, its work was killed");
                    self.ended(EndReason::RunLeaseLapsed { node: self.context.setup.me.clone() }).await;
                    self.publish_run_state();
                }
            }
        }
    }

    pub(super) async fn begin_what_waited(&mut self, due: Due) {
        if let Some(share) = due.waiting {
            self.start(share).await;
        }
        if self.line.is_synced() {
            self.begin_launches().await;
        }
        self.publish_run_state();
    }
}
