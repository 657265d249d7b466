//! Finds the allocation that a caller names: by its job number, by its id, by the beginning of its id, or as a replica of
//! a service, `ID[3]`. The job number of a task names the task, and finds its group.

use super::Api;
use super::arguments::replica_key;
use super::caller::Caller;
use super::refusal::{status, unexpected};
use lattice_ledger::lane_id;
use lattice_model::{Allocation, AllocationId};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use std::time::Duration;
use tonic::{Code, Status};

/// How long to wait until the agent's watch shows an allocation just submitted here, before the
/// quorum is asked.
const WATCH_WAIT: Duration = Duration::from_millis(500);

impl Api {
    /// One allocation, by job number, id or prefix, from the quorum; or a replica, by its service and its number, as
    /// `ID[3]`. The caller of this method checks whether `caller` may act on what is found. The job number of a task is
    /// refused: the caller of the API means the task, and not the whole group.
    pub(super) async fn allocation(&self, caller: &Caller, key: &str) -> Result<Allocation, Status> {
        let (allocation, task) = self.allocation_or_task(caller, key).await?;
        match task {
            // Another user's work is not described to a caller that guesses its number.
            Some(index) => {
                self.check(caller, &allocation).await?;
                Err(names_a_task(&allocation, key, index))
            }
            None => Ok(allocation),
        }
    }

    /// As [`Self::allocation`]; also, if the key is the job number of a task, the index of that task of the group.
    pub(super) async fn allocation_or_task(&self, caller: &Caller, key: &str) -> Result<(Allocation, Option<u32>), Status> {
        let (allocation, _) = self.find_allocation(caller, key, false).await?;
        let task = task_named(&allocation, key);
        Ok((allocation, task))
    }

    /// The allocation with this id, from the quorum.
    pub(super) async fn allocation_of_id(&self, id: AllocationId) -> Result<Allocation, Status> {
        self.get_allocation(id.to_string(), false).await.map(|(allocation, _)| allocation)
    }

    /// As [`Self::allocation`], but the job number of a task finds its group. If `stale`, one member answers from its
    /// own state; also returns the greatest age of that answer, in milliseconds.
    pub(super) async fn find_allocation(&self, caller: &Caller, key: &str, stale: bool) -> Result<(Allocation, Option<u64>), Status> {
        let Some((service, number)) = replica_key(key)? else { return self.get_allocation(key.to_owned(), stale).await };
        let (service, _) = self.get_allocation(service.to_owned(), stale).await?;
        let id = lane_id(service.id, number);
        // Only callers who may act on the service, and the replica itself, learn whether there is such a replica.
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

    /// The allocation whose job number this is; `None`: the text is no number, or none has it.
    pub(super) async fn numbered(&self, caller: &Caller, key: &str) -> Result<Option<AllocationId>, Status> {
        let Some(number) = parse_number(key) else { return Ok(None) };
        match self.find_allocation(caller, key, false).await {
            Ok((found, _)) => Ok(Some(found.id).filter(|_| found.number == number)),
            // It may be the beginning of the id of something else.
            Err(status) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => Ok(None),
            Err(status) => Err(status),
        }
    }

    pub(super) async fn get_allocation(&self, key: String, stale: bool) -> Result<(Allocation, Option<u64>), Status> {
        if !stale {
            return Ok((self.quorum.find_allocation(key).await.map_err(|e| status(&e))?, None));
        }
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

/// The index of the task whose job number the key is; `None`: it names the whole allocation.
pub(super) fn task_named(found: &Allocation, key: &str) -> Option<u32> {
    let number = parse_number(key)?;
    // The short id of the group may be a number, too.
    found.task_of_number(number).filter(|_| found.number > 0 && !is_short_id_of(key, found.id))
}

fn parse_number(key: &str) -> Option<u64> {
    key.bytes().all(|byte| byte.is_ascii_digit()).then(|| key.parse().ok()).flatten()
}

/// Whether the key has at least as many digits of the id as are shown. Fewer decimal digits are a number.
fn is_short_id_of(key: &str, id: AllocationId) -> bool {
    key.starts_with(&id.short()) && id.0.simple().to_string().starts_with(key)
}

/// The refusal of a task's job number where only whole allocations can be named.
pub(super) fn names_a_task(group: &Allocation, key: &str, index: u32) -> Status {
    let (short, number) = (group.id.short(), group.number);
    Status::failed_precondition(format!(
        "job {key} is task {index} of task group {short} (job {number})\n\
         hint: name the task as '{number}[{index}]', or the whole group as {number}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{TaskGroup, test_builders};

    #[test]
    fn a_number_above_the_first_one_of_a_group_names_a_task() {
        let mut group = Allocation { number: 1000, ..test_builders::allocation(AllocationId(uuid::Uuid::from_u128(0x1004 << 112))) };
        test_builders::spec_of(&mut group).tasks = Some(Box::new(TaskGroup::parse("10-18:2").unwrap()));
        assert_eq!(["1000", "1001", "1002", "1005"].map(|key| task_named(&group, key)), [None, Some(12), Some(14), None]);
        assert_eq!(task_named(&group, "1004"), Some(18), "few digits are a number, even if its id begins so");
        let many = Allocation { number: 10_039_999, ..group.clone() };
        assert_eq!(task_named(&many, "10040000"), None, "its short id");
        assert_eq!(task_named(&many, "10040001"), Some(14));
        assert_eq!(task_named(&group, "+1001"), None);
        assert_eq!(
            names_a_task(&group, "1001", 12).message(),
            "job 1001 is task 12 of task group 10040000 (job 1000)\n\
             hint: name the task as '1000[12]', or the whole group as 1000"
        );
    }
}
