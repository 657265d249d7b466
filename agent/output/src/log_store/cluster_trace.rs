//! Traces of the cluster in the store: `<store>/traces/<name>`. A trace appears there when it is
//! complete.

use super::{LogStore, StoreError};
use object_store::{ObjectStoreExt, WriteMultipart};

/// Folder of the traces.
const FOLDER: &str = "traces";
/// Size of the parts in which a trace is uploaded, in bytes.
const PART_BYTES: usize = 8 << 20;
/// Largest number of parts that are uploaded at once: each is in memory.
const PARTS_AT_ONCE_MAX: usize = 2;

/// The upload of a trace.
#[derive(Debug)]
pub struct ClusterTraceUpload {
    upload: WriteMultipart,
    url: String,
}

impl LogStore {
    /// Begins the upload of a trace of the cluster. It must be finished or aborted.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn begin_cluster_trace(&self, name: &str) -> Result<ClusterTraceUpload, StoreError> {
        let key = self.objects.key([FOLDER.to_owned(), name.to_owned()]);
        let upload = WriteMultipart::new_with_chunk_size(self.objects.store.put_multipart(&key).await?, PART_BYTES);
        Ok(ClusterTraceUpload { upload, url: format!("{}/{FOLDER}/{name}", self.objects.url.trim_end_matches('/')) })
    }
}

impl ClusterTraceUpload {
    /// Adds lines; waits while too many parts are under way.
    ///
    /// # Errors
    /// A part could not be uploaded.
    pub async fn put(&mut self, lines: Vec<u8>) -> Result<(), StoreError> {
        self.upload.wait_for_capacity(PARTS_AT_ONCE_MAX).await?;
        self.upload.put(lines.into());
        Ok(())
    }

    /// Completes the object. Returns its URL.
    ///
    /// # Errors
    /// It could not be completed; what was uploaded is removed.
    pub async fn finish(self) -> Result<String, StoreError> {
        self.upload.finish().await?;
        Ok(self.url)
    }

    /// Removes what was uploaded.
    ///
    /// # Errors
    /// It could not be removed.
    pub async fn abort(self) -> Result<(), StoreError> {
        Ok(self.upload.abort().await?)
    }
}
