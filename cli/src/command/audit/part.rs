//! Reads an answer that comes in parts.

use lattice_cli_session::failure::{Exit, Failure};
use std::future::Future;
use std::time::Duration;
use tonic::Status;

/// Timeout for the next part of a long answer.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// The next part of a long answer.
pub(in crate::command) async fn next_part<T>(next: impl Future<Output = Result<Option<T>, Status>>) -> Result<Option<T>, Failure> {
    match tokio::time::timeout(PART_TIMEOUT, next).await {
        Ok(part) => Ok(part?),
        Err(_) => Err(Failure::new(Exit::Unavailable, format!("the agent sent nothing for {} s", PART_TIMEOUT.as_secs()))),
    }
}
