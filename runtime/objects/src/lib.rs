//! Object stores, as a configuration names them: a directory, S3, Google, Azure.

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request is retried before the store counts as unavailable.
const RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// What a configuration file calls the settings of a store.
#[derive(Clone, Copy, Debug)]
pub struct SettingNames {
    /// The URL.
    pub url: &'static str,
    /// Settings of the store.
    pub options: &'static str,
    /// The file with further ones.
    pub credentials: &'static str,
}

/// A configuration that names no store. `setting`: the name of the invalid setting.
#[derive(Debug, Error)]
pub enum ObjectsError {
    #[error("{setting}: {url:?} is none of file:///DIR, s3://BUCKET/…, gs://BUCKET/…, az://CONTAINER/…")]
    Url { setting: &'static str, url: String },
    #[error("{setting}: {key:?} is no option of {scheme}:// stores")]
    Option { setting: &'static str, key: String, scheme: &'static str },
    #[error("{setting} {}: {why}", path.display())]
    Credentials { setting: &'static str, path: PathBuf, why: String },
    #[error("{setting} {url}")]
    Build {
        setting: &'static str,
        url: String,
        #[source]
        source: object_store::Error,
    },
}

/// A store, and our prefix in it.
#[derive(Clone, Debug)]
pub struct Objects {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The same store, if an upload can be resumed by its id. A directory cannot.
    pub multipart: Option<Multipart>,
    prefix: String,
    /// As configured, without secrets.
    pub url: String,
}

/// A store in which large objects are uploaded in parts.
#[derive(Clone)]
pub struct Multipart(pub Arc<dyn MultipartStore>);

impl fmt::Debug for Multipart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Multipart")
    }
}

impl Objects {
    /// Makes the client. Sends no request yet. `options` and the file `credentials` (YAML, mode 0600) have the store's
    /// own settings: `endpoint`, `region`, `access_key_id`, … Errors call the settings by `names`.
    pub fn open(names: SettingNames, url: &str, options: &BTreeMap<String, String>, credentials: &Path) -> Result<Self, ObjectsError> {
        let mut all = options.clone();
        if !credentials.as_os_str().is_empty() {
            all.extend(read_credentials(names.credentials, credentials)?);
        }
        // A failure means that the provider is installed already: this program has only one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bad = || ObjectsError::Url { setting: names.url, url: url.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_matches('/').to_owned();
        if bucket.is_empty() != (scheme == "file") {
            return Err(bad());
        }
        let built = |source| ObjectsError::Build { setting: names.url, url: url.to_owned(), source };
        let retry = RetryConfig { max_retries: 2, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
        let http = all.get("allow_http").or(all.get("aws_allow_http")).is_some_and(|v| v == "true");
        let client = ClientOptions::new().with_timeout(REQUEST_TIMEOUT).with_connect_timeout(RETRY_TIMEOUT).with_allow_http(http);
        macro_rules! cloud {
            ($builder:ty, $bucket:ident, $scheme:literal) => {{
                let mut builder = <$builder>::new().$bucket(bucket).with_retry(retry).with_client_options(client);
                for (key, value) in &all {
                    let parsed = key.to_ascii_lowercase().parse();
                    let option = parsed.map_err(|_| ObjectsError::Option { setting: names.options, key: key.clone(), scheme: $scheme })?;
                    builder = builder.with_config(option, value);
                }
                let store = Arc::new(builder.build().map_err(built)?);
                (Arc::clone(&store) as Arc<dyn ObjectStore>, Some(Multipart(store)))
            }};
        }
        let ((store, multipart), prefix) = match scheme {
            "file" => {
                if let Some(key) = all.keys().next() {
                    return Err(ObjectsError::Option { setting: names.options, key: key.clone(), scheme: "file" });
                }
                let dir = Path::new("/").join(&prefix);
                let made = make_private(&dir).map_err(|e| object_store::Error::Generic { store: "file", source: Box::new(e) });
                made.map_err(built)?;
                let store = LocalFileSystem::new_with_prefix(&dir).map_err(built)?.with_fsync(true);
                ((Arc::new(store) as Arc<dyn ObjectStore>, None), String::new())
            }
            "s3" => (cloud!(AmazonS3Builder, with_bucket_name, "s3"), prefix),
            "gs" => (cloud!(GoogleCloudStorageBuilder, with_bucket_name, "gs"), prefix),
            "az" => (cloud!(MicrosoftAzureBuilder, with_container_name, "az"), prefix),
            _ => return Err(bad()),
        };
        Ok(Self { store, multipart, prefix, url: url.to_owned() })
    }

    /// The key of these parts below the configured prefix.
    pub fn key(&self, parts: impl IntoIterator<Item = String>) -> Key {
        let prefix = self.prefix.split('/').filter(|p| !p.is_empty()).map(str::to_owned);
        Key::from_iter(prefix.chain(parts))
    }
}

/// The directory of a `file://` store, and its mode, if other users than its owner can enter it.
pub fn open_to_others(url: &str) -> Option<(PathBuf, u32)> {
    use std::os::unix::fs::PermissionsExt;
    let dir = PathBuf::from(url.strip_prefix("file://")?);
    let mode = std::fs::metadata(&dir).ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some((dir, mode))
}

/// Makes a missing directory that no other user can enter: logs, backups and checkpoints are read through Lattice.
fn make_private(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if let Some(above) = dir.parent() {
        std::fs::create_dir_all(above)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made,
    }
}

fn read_credentials(setting: &'static str, path: &Path) -> Result<BTreeMap<String, String>, ObjectsError> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |why: String| ObjectsError::Credentials { setting, path: path.to_owned(), why };
    let mode = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(failed(format!("others can read it (mode {:o}); chmod 600", mode & 0o777)));
    }
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    lattice_model::config::parse(&path.display().to_string(), &text).map_err(|e| failed(e.to_string()))
}
