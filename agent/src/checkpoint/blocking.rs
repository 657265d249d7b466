//! Work of a checkpoint for a thread that may block.

pub(super) async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|broke| Err(format!("saving broke: {broke}")))
}
