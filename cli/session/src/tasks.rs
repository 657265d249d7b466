//! Finds out what a number in brackets after an id names, as in `ID[7]`: a task of a task group, or a replica of a scaled
//! service. Also fetches one task.

use crate::failure::{Exit, Failure};
use crate::session::answer;
use crate::shown::{Task, is_scaled, short};
use lattice_api::client::Client;
use lattice_api::v1;

/// What `ID[NUMBER]` names.
pub enum Numbered {
    /// The task with this index, of the group with this key.
    Task { key: String, index: u32 },
    /// The replica with this key.
    Replica { key: String },
}

/// What a number in brackets after this key names. An allocation that has neither tasks nor replicas counts as a task
/// group: the agent then reports that it is none.
///
/// # Errors
/// The agent refuses, or there is no such allocation.
pub async fn find_numbered(client: &Client, key: String, index: u32, stale: bool) -> Result<Numbered, Failure> {
    if has_replicas(client, &key, stale).await? {
        Ok(Numbered::Replica { key: replica_key(&key, index) })
    } else {
        Ok(Numbered::Task { key, index })
    }
}

/// Whether the allocation is a scaled service.
///
/// # Errors
/// As [`find_numbered`].
pub async fn has_replicas(client: &Client, key: &str, stale: bool) -> Result<bool, Failure> {
    let request = v1::GetAllocationRequest { key: key.to_owned(), stale };
    answer(client.allocations().get(request)).await.map(|allocation| is_scaled(&allocation))
}

/// The key of a replica, which the agent looks up.
pub fn replica_key(service: &str, number: u32) -> String {
    format!("{service}[{number}]")
}

/// The task with this index.
///
/// # Errors
/// The agent refuses, there is no such group, or it has no such task.
pub async fn fetch_task(client: &Client, key: &str, index: u32, stale: bool) -> Result<Task, Failure> {
    let request = v1::GetTasksRequest { key: key.to_owned(), index: Some(index), limit: 1, stale };
    let found = answer(client.allocations().get_tasks(request)).await?;
    let group = found.id;
    match found.ranges.into_iter().next() {
        Some(known) => Ok(Task { group, index, known }),
        None => Err(Failure::new(Exit::NotFound, format!("task group {} has no task {index}", short(&group)))
            .hint(format!("`lattice status {} --tasks` lists its tasks", short(&group)))),
    }
}
