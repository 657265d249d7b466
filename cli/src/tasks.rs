//! Asks for one task of a task group.

use crate::failure::{Exit, Failure};
use crate::session::answer;
use crate::shown::{Task, short};
use lattice_api::client::Client;
use lattice_api::v1;

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
