//! Where output is kept after its node: an object store (a directory, S3, Google, Azure), as `log_store` names it.
//!
//! ```text
//!   <store>/<tenant>/<project>/<allocation>/logs/
//!     metadata.json                                  by the head: whose it is, its nodes
//!     metadata/<epoch>/<node>.json                   by each node: its streams' chunks, and times
//!     stdout/<node>/<epoch>-<launch>-<rank>-<segment>-<start>.log.zst
//!     stderr/<node>/…
//! ```
//!
//! A key carries the epoch: an agent that still writes for a superseded one writes beside, never over.

use crate::spool::index::{Cut, Index, VERSION};
use lattice_model::{AllocationId, Epoch, NodeId};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(30);
/// How long a request is tried again before the store counts as away.
const RETRY: Duration = Duration::from_secs(5);
/// The longest index that is read, in bytes.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// A configuration that names no store.
#[derive(Debug, Error)]
pub enum LogStoreError {
    #[error("log_store: {url:?} is none of file:///DIR, s3://BUCKET/…, gs://BUCKET/…, az://CONTAINER/…")]
    Url { url: String },
    #[error("log_store_options: {key:?} is no option of {scheme}:// stores")]
    Option { key: String, scheme: &'static str },
    #[error("log_store_credentials {}: {why}", path.display())]
    Credentials { path: PathBuf, why: String },
    #[error("log_store {url}")]
    Build {
        url: String,
        #[source]
        source: object_store::Error,
    },
}

/// What could not be put or read.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the log store: {0}")]
    Store(#[from] object_store::Error),
    #[error("{key} in the log store cannot be read: {why}")]
    Damaged { key: String, why: String },
}

/// A cloneable handle.
#[derive(Clone, Debug)]
pub struct LogStore {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    /// As configured, without secrets.
    pub url: String,
}

/// Whose output, of which attempt: the part of a key that all nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub tenant: String,
    pub project: String,
    pub allocation: AllocationId,
    pub epoch: Epoch,
}

impl Place {
    /// The place of what an index is about.
    pub fn of(index: &Index) -> Self {
        let (tenant, project) = (index.tenant.clone(), index.project.clone());
        Self { tenant, project, allocation: index.allocation, epoch: index.epoch }
    }
}

/// `metadata.json`.
#[derive(Serialize)]
struct Metadata<'a> {
    version: u32,
    allocation: AllocationId,
    epoch: Epoch,
    owner: &'a str,
    owner_uid: u32,
    tenant: &'a str,
    project: &'a str,
    nodes: &'a [NodeId],
    /// Each node's times and byte offsets.
    indexes: Vec<String>,
}

impl LogStore {
    /// Makes the client. Asks the store nothing yet. `options` and the file `credentials` (YAML, mode 0600) carry the
    /// store's own settings: `endpoint`, `region`, `access_key_id`, …
    pub fn open(url: &str, options: &BTreeMap<String, String>, credentials: &Path) -> Result<Self, LogStoreError> {
        let mut all = options.clone();
        if !credentials.as_os_str().is_empty() {
            all.extend(read_credentials(credentials)?);
        }
        // Whoever was first is as good: there is one provider in this program.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bad = || LogStoreError::Url { url: url.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_matches('/').to_owned();
        if bucket.is_empty() != (scheme == "file") {
            return Err(bad());
        }
        let built = |source| LogStoreError::Build { url: url.to_owned(), source };
        let retry = RetryConfig { max_retries: 2, retry_timeout: RETRY, ..RetryConfig::default() };
        let http = all.get("allow_http").or(all.get("aws_allow_http")).is_some_and(|v| v == "true");
        let client = ClientOptions::new().with_timeout(REQUEST).with_connect_timeout(RETRY).with_allow_http(http);
        macro_rules! cloud {
            ($builder:ty, $bucket:ident, $scheme:literal) => {{
                let mut builder = <$builder>::new().$bucket(bucket).with_retry(retry).with_client_options(client);
                for (key, value) in &all {
                    let parsed = key.to_ascii_lowercase().parse();
                    let option = parsed.map_err(|_| LogStoreError::Option { key: key.clone(), scheme: $scheme })?;
                    builder = builder.with_config(option, value);
                }
                Arc::new(builder.build().map_err(built)?) as Arc<dyn ObjectStore>
            }};
        }
        let (store, prefix) = match scheme {
            "file" => {
                if let Some(key) = all.keys().next() {
                    return Err(LogStoreError::Option { key: key.clone(), scheme: "file" });
                }
                let dir = Path::new("/").join(&prefix);
                let made = std::fs::create_dir_all(&dir).map_err(|e| object_store::Error::Generic { store: "file", source: Box::new(e) });
                made.map_err(built)?;
                (Arc::new(LocalFileSystem::new_with_prefix(&dir).map_err(built)?) as Arc<dyn ObjectStore>, String::new())
            }
            "s3" => (cloud!(AmazonS3Builder, with_bucket_name, "s3"), prefix),
            "gs" => (cloud!(GoogleCloudStorageBuilder, with_bucket_name, "gs"), prefix),
            "az" => (cloud!(MicrosoftAzureBuilder, with_container_name, "az"), prefix),
            _ => return Err(bad()),
        };
        Ok(Self { store, prefix, url: url.to_owned() })
    }

    fn key(&self, place: &Place, parts: &[&str]) -> Key {
        let named = |name: &str| if name.is_empty() { "default".to_owned() } else { name.to_owned() };
        let mut all: Vec<String> = self.prefix.split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        all.extend([named(&place.tenant), named(&place.project), place.allocation.to_string(), "logs".to_owned()]);
        all.extend(parts.iter().map(|p| (*p).to_owned()));
        Key::from_iter(all)
    }

    fn index_key(&self, place: &Place, node: &NodeId) -> Key {
        self.key(place, &["metadata", &place.epoch.to_string(), &format!("{node}.json")])
    }

    fn chunk_key(&self, place: &Place, node: &NodeId, cut: &Cut) -> Key {
        let s = cut.stream;
        let name = format!("{}-{}-{}-{}-{:012}.log.zst", place.epoch, s.launch, s.rank, cut.segment, cut.chunk.start);
        self.key(place, &[s.name(), node.as_str(), &name])
    }

    /// Puts a chunk's compressed bytes. Putting it again is harmless.
    pub async fn put_chunk(&self, place: &Place, node: &NodeId, cut: &Cut, compressed: Vec<u8>) -> Result<(), StoreError> {
        self.store.put(&self.chunk_key(place, node, cut), PutPayload::from(compressed)).await?;
        Ok(())
    }

    /// A chunk's bytes; it may be longer than the cut says, never shorter.
    pub async fn chunk(&self, place: &Place, node: &NodeId, cut: &Cut) -> Result<Vec<u8>, StoreError> {
        let key = self.chunk_key(place, node, cut);
        let compressed = self.store.get(&key).await?.bytes().await?;
        let most = usize::try_from(crate::spool::index::CHUNK_BYTES_MAX).unwrap_or(usize::MAX);
        let decoded = tokio::task::spawn_blocking(move || zstd::bulk::decompress(&compressed, most)).await;
        let damaged = |why: String| StoreError::Damaged { key: key.to_string(), why };
        let data = decoded.map_err(|e| damaged(e.to_string()))?.map_err(|e| damaged(e.to_string()))?;
        if (data.len() as u64) < cut.chunk.end - cut.chunk.start {
            return Err(damaged(format!("it has {} bytes, {} were put", data.len(), cut.chunk.end - cut.chunk.start)));
        }
        Ok(data)
    }

    /// Puts what is known of a node's output; the head also says whose it is. `metadata.json` is the present attempt's.
    pub async fn put_index(&self, index: &Index) -> Result<(), StoreError> {
        let place = Place::of(index);
        let json = |value: Result<Vec<u8>, serde_json::Error>, key: &Key| {
            value.map_err(|e| StoreError::Damaged { key: key.to_string(), why: e.to_string() })
        };
        let key = self.index_key(&place, &index.node);
        self.store.put(&key, PutPayload::from(json(serde_json::to_vec(index), &key)?)).await?;
        if index.nodes.first() != Some(&index.node) {
            return Ok(());
        }
        let key = self.key(&place, &["metadata.json"]);
        if let Some(epoch) = self.epoch_of(&key).await?
            && epoch > index.epoch.0
        {
            return Ok(());
        }
        let metadata = Metadata {
            version: VERSION,
            allocation: index.allocation,
            epoch: index.epoch,
            owner: &index.owner,
            owner_uid: index.owner_uid,
            tenant: &index.tenant,
            project: &index.project,
            nodes: &index.nodes,
            indexes: index.nodes.iter().map(|node| format!("metadata/{}/{node}.json", index.epoch)).collect(),
        };
        self.store.put(&key, PutPayload::from(json(serde_json::to_vec_pretty(&metadata), &key)?)).await?;
        Ok(())
    }

    /// The epoch of the `metadata.json` that there is.
    async fn epoch_of(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        #[derive(serde::Deserialize)]
        struct Known {
            epoch: u64,
        }
        let Some(bytes) = self.get_bounded(key).await? else { return Ok(None) };
        Ok(serde_json::from_slice::<Known>(&bytes).ok().map(|k| k.epoch))
    }

    /// What a node said of its output, if it said anything.
    pub async fn index(&self, place: &Place, node: &NodeId) -> Result<Option<Index>, StoreError> {
        let key = self.index_key(place, node);
        let Some(bytes) = self.get_bounded(&key).await? else { return Ok(None) };
        let damaged = |why: String| StoreError::Damaged { key: key.to_string(), why };
        let index: Index = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if index.version != VERSION || index.streams.iter().any(|s| s.segments.is_empty()) {
            return Err(damaged(format!("version {}, this agent reads {VERSION}", index.version)));
        }
        Ok(Some(index))
    }

    async fn get_bounded(&self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        match self.store.get(key).await {
            Ok(found) if found.meta.size > INDEX_BYTES_MAX => {
                Err(StoreError::Damaged { key: key.to_string(), why: format!("{} bytes", found.meta.size) })
            }
            Ok(found) => Ok(Some(found.bytes().await?.to_vec())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts and reads something small, for `doctor`.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let name = format!(".lattice-doctor-{}", uuid::Uuid::new_v4());
        let key = Key::from_iter(self.prefix.split('/').filter(|p| !p.is_empty()).map(str::to_owned).chain([name]));
        self.store.put(&key, PutPayload::from_static(b"ok")).await?;
        self.store.get(&key).await?.bytes().await?;
        self.store.delete(&key).await?;
        Ok(())
    }
}

fn read_credentials(path: &Path) -> Result<BTreeMap<String, String>, LogStoreError> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |why: String| LogStoreError::Credentials { path: path.to_owned(), why };
    let mode = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(failed(format!("others can read it (mode {:o}); chmod 600", mode & 0o777)));
    }
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    lattice_model::config::parse(&path.display().to_string(), &text).map_err(|e| failed(e.to_string()))
}
