//! Runs work of a checkpoint on a blocking thread.

use thiserror::Error;
use tokio::task::JoinError;

/// A thread that worked for a checkpoint panicked or was cancelled.
#[derive(Debug, Error)]
#[error("saving failed: {0}")]
pub struct SavingBroke(#[from] JoinError);

pub(super) async fn blocking<T, E>(act: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<SavingBroke> + Send + 'static,
{
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|broke| Err(SavingBroke(broke).into()))
}
