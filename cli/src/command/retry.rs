//! `lattice retry`.

use super::submit::print_submitted;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::args::retry::Retry;
use lattice_cli_syntax::tasks::index_runs;

/// Submits tasks of a task group once more under a new id, and remembers it as `@last`.
pub async fn run(session: &Session, args: Retry) -> Result<(), Failure> {
    // Without indices the agent takes all tasks that failed: `--failed` only names the default.
    let Retry { id, failed: _, tasks } = args;
    let request = v1::RetryTasksRequest {
        key: session.resolve_key(&id)?,
        indices: tasks.as_ref().map(index_runs).unwrap_or_default(),
        id: uuid::Uuid::new_v4().to_string(),
    };
    let client = session.connect().await?;
    let submitted = answer(client.allocations().retry_tasks(request)).await?;
    if !submitted.warning.is_empty() {
        session.warn(&submitted.warning);
    }
    session.remember(&submitted.id);
    print_submitted(session, &submitted)
}
