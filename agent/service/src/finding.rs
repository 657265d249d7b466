//! Finds the allocation that a caller names: by its id, by the beginning of its id, or as a replica of a service, `ID[3]`.

use super::Api;
use super::arguments::replica_key;
use super::caller::Caller;
use super::refusal::unexpected;
use lattice_ledger::lane_id;
use lattice_model::{Allocation, AllocationId};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use std::time::Duration;
use tonic::{Code, Status};

/// How long to wait until the agent's watch shows an allocation just submitted here, before the
/// quorum is asked.
const WATCH_WAIT: Duration = Duration::from_millis(500);

impl Api {
    /// One allocation, by id or prefix, from the quorum; or a replica, by its service and its number, as `ID[3]`. The
    /// caller of this method checks whether `caller` may act on what is found.
    pub(super) async fn allocation(&self, caller: &Caller, key: &str) -> Result<Allocation, Status> {
        self.find_allocation(caller, key, false).await.map(|(allocation, _)| allocation)
    }

    /// The allocation with this id, from the quorum.
    pub(super) async fn allocation_of_id(&self, id: AllocationId) -> Result<Allocation, Status> {
        self.get_allocation(id.to_string(), false).await.map(|(allocation, _)| allocation)
    }

    /// As [`Self::allocation`]. If `stale`, one member answers from its own state; also returns the greatest age of that
    /// answer, in milliseconds.
    pub(super) async fn find_allocation(&self, caller: &Caller, key: &str, stale: bool) -> Result<(Allocation, Option<u64>), Status> {
        let Some((service, number)) = replica_key(key)? else { return self.get_allocation(key.to_owned(), stale).await };
        let (service, _) = self.get_allocation(service.to_owned(), stale).await?;
        let id = lane_id(service.id, number);
        // Whether there is such a replica is for those alone who may act on the service, and for the replica itself.
        if caller.within != Some(id) {
            self.check(caller, &service).await?;
        }
        let short = service.id.short();
        let none = || {
            Status::not_found(format!(
                "allocation {short} has no replica {number}\nhint: `lattice status {short} --replicas` lists those of a scaled \
                 service; of a task group, `lattice status '{short}[{number}]'` shows a task, and the lanes that ran it"
            ))
        };
        if !service.is_scaled_service() {
            return Err(none());
        }
        match self.get_allocation(id.to_string(), stale).await {
            Err(status) if status.code() == Code::NotFound => Err(none()),
            found => found,
        }
    }

    async fn get_allocation(&self, key: String, stale: bool) -> Result<(Allocation, Option<u64>), Status> {
        match self.ask(Ask::GetAllocation { key }, stale).await? {
            (Answer::Allocation(allocation), age_ms) => Ok((*allocation, age_ms)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// An allocation to follow: from the agent's own watch, or else from the quorum. If it was just
    /// submitted here, first waits up to [`WATCH_WAIT`] until the watch has it, which costs the
    /// quorum nothing. `being_submitted`: the caller is submitting it at this moment.
    pub(super) async fn followed(&self, caller: &Caller, key: &str, being_submitted: bool) -> Result<Allocation, Status> {
        let Ok(id) = key.parse::<AllocationId>() else { return self.allocation(caller, key).await };
        if let Some(revision) = self.submitted.at(id, being_submitted).await {
            let mut cluster = self.cluster.clone();
            let caught_up = cluster.wait_for(|cluster| cluster.revision >= revision);
            // Do not wait longer for a watch that lags or is broken.
            let _ = tokio::time::timeout(WATCH_WAIT, caught_up).await;
        }
        let known = {
            let cluster = self.cluster.borrow();
            cluster.allocations.get(&id).filter(|_| cluster.fresh).cloned()
        };
        match known {
            Some(allocation) => Ok(allocation),
            None => self.allocation_of_id(id).await,
        }
    }
}
