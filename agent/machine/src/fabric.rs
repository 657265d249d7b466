//! Keys for a fabric that separates work by numbers (VNIs), requested from the fabric manager.
//!
//! ```text
//!   preparing, on the first node  record ─▶ POST a service ─▶ record its id ─▶ GET its key ─▶ record it ─▶ ranks
//!   ended, or no longer here      record is over ─▶ DELETE the service ─▶ no record
//! ```
//!
//! The purpose of a service is on disk before it is requested, and a repeated request with the same
//! `Idempotency-Key: ALLOCATION-EPOCH` gets the same service: so no crash leaves a service that
//! nobody revokes.
//!
//! There is one service for each allocation and not for each launch, because the 50 ms of a request
//! would be most of the time of a short launch. The agent of the first node requests it, because it
//! is the head of all launches. Without a key the work does not start: it would hang in `MPI_Init`.
//! No node is held because the manager is unreachable; `node status` shows what is not revoked yet.
//! This module was tested with the lab's simulated manager only.

use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_model::{AllocationId, Backoff, DesiredShare, Epoch, NodeId, with_causes};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder, StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Timeout of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request for a key is retried if the manager does not answer, or reports an error.
const RETRY_TIME_MAX: Duration = Duration::from_secs(20);
/// Pause before a request or a revocation is retried; doubled for each further failed revocation.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Largest sizes of an answer, of a service's id and of a key, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
const ID_BYTES_MAX: usize = 128;
const KEY_BYTES_MAX: usize = 512;
/// The subject in this node's problems.
const SUBJECT: &str = "fabric manager";

/// Suffixes of a record in use, and of one whose service must be revoked.
const IN_USE: &str = "json";
const OVER: &str = "over";
/// Suffix of a record that is being written.
const UNFINISHED: &str = "part";

/// Why no key can be requested with this configuration.
#[derive(Debug, Error)]
pub enum FabricConfigError {
    #[error("fabric_manager.url: {0:?} is not a URL https://HOST/… or http://HOST/…")]
    Url(String),
    #[error("{setting} {}: {why}", path.display())]
    File { setting: &'static str, path: PathBuf, why: String },
    #[error("fabric_manager")]
    Client(#[source] reqwest::Error),
}

/// Why there is no key, or why a service is not revoked.
#[derive(Debug, Error)]
pub enum FabricError {
    #[error("the fabric's manager does not {what}")]
    Unreached { what: &'static str, source: reqwest::Error },
    #[error("the fabric's manager does not {what}: it answers {status}{detail}")]
    Refused { what: &'static str, status: StatusCode, detail: String },
    #[error("the fabric's manager was asked to {what}, and its answer cannot be used: {why}")]
    Answer { what: &'static str, why: String },
    #[error("{}", path.display())]
    File { path: PathBuf, source: io::Error },
}

impl FabricError {
    /// Whether a retry may succeed soon.
    fn is_passing(&self) -> bool {
        match self {
            Self::Unreached { .. } => true,
            Self::Refused { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            Self::Answer { .. } | Self::File { .. } => false,
        }
    }
}

/// The configured manager, if there is one. All clones share it.
#[derive(Clone, Default)]
pub struct Fabric(Option<Arc<Manager>>);

struct Manager {
    url: String,
    client: Client,
    token: Option<HeaderValue>,
    /// The directory of the records.
    dir: PathBuf,
    /// Signals that a service must be revoked.
    over: Notify,
    problems: NodeProblems,
}

/// One allocation's service.
#[derive(Serialize, Deserialize)]
struct Record {
    allocation: AllocationId,
    epoch: Epoch,
    vni: u32,
    nodes: Vec<NodeId>,
    /// The manager's id of the service, once it is known.
    service: Option<String>,
    /// The key that admits its ranks to the fabric, in hexadecimal digits.
    key: Option<String>,
}

#[derive(Deserialize)]
struct Made {
    id: String,
}

#[derive(Deserialize)]
struct Auth {
    auth_key: String,
}

impl Fabric {
    /// Checks the configuration; contacts nobody yet.
    pub fn open(config: &AgentConfig, problems: NodeProblems) -> Result<Self, FabricConfigError> {
        let dir = config.state_dir.join("fabric");
        remove_halves(&dir);
        if !config.fabric_manager.is_configured() {
            if fs::read_dir(&dir).is_ok_and(|mut records| records.next().is_some()) {
                problems.set(SUBJECT, format!("none is configured, and {} lists services that are not revoked", dir.display()));
            }
            return Ok(Self(None));
        }
        let url = config.fabric_manager.url.trim_end_matches('/').to_owned();
        if !url.parse::<Url>().is_ok_and(|url| matches!(url.scheme(), "https" | "http") && url.has_host() && url.query().is_none()) {
            return Err(FabricConfigError::Url(config.fabric_manager.url.clone()));
        }
        let token = match config.fabric_manager.token.as_path() {
            none if none.as_os_str().is_empty() => None,
            path => Some(token(path)?),
        };
        // An error means that the provider is installed already: this program has only one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder().timeout(ANSWER_TIMEOUT).connect_timeout(ANSWER_TIMEOUT).redirect(Policy::none());
        let ca = &config.fabric_manager.ca;
        if !ca.as_os_str().is_empty() {
            let failed = |why: String| FabricConfigError::File { setting: "fabric_manager.ca", path: ca.clone(), why };
            let pem = fs::read(ca).map_err(|error| failed(error.to_string()))?;
            client = client.tls_certs_only(Certificate::from_pem_bundle(&pem).map_err(|error| failed(with_causes(&error)))?);
        }
        let client = client.build().map_err(FabricConfigError::Client)?;
        Ok(Self(Some(Arc::new(Manager { url, client, token, dir, over: Notify::new(), problems }))))
    }

    /// Creates the allocation's service and gets its key, if the allocation has a VNI and this is
    /// its first node.
    pub async fn provide(&self, share: &DesiredShare, me: &NodeId) -> Result<(), FabricError> {
        let Some((manager, vni)) = self.concerned(share, me) else { return Ok(()) };
        let began = Instant::now();
        loop {
            match manager.provide(share, vni).await {
                Err(error) if error.is_passing() && began.elapsed() < RETRY_TIME_MAX => tokio::time::sleep(RETRY_PAUSE).await,
                done => return done,
            }
        }
    }

    /// Whether [`Self::provide`] has anything to do.
    pub fn concerns(&self, share: &DesiredShare, me: &NodeId) -> bool {
        self.concerned(share, me).is_some()
    }

    fn concerned(&self, share: &DesiredShare, me: &NodeId) -> Option<(&Arc<Manager>, u32)> {
        let is_first = share.nodes.head().as_ref() == Some(me);
        self.0.as_ref().zip(share.vni).filter(|_| is_first)
    }

    /// Adds the key that admits work to the fabric; only the allocation's first node knows it. The
    /// user decides how it is used.
    pub fn add_key(&self, env: &mut BTreeMap<String, String>, share: &DesiredShare) {
        if let Some(key) = self.key(share) {
            env.insert("FI_CXI_AUTH_KEY".to_owned(), key);
            env.entry("FI_PROVIDER".to_owned()).or_insert_with(|| "cxi".to_owned());
        }
    }

    /// The allocation's key, on its first node.
    fn key(&self, share: &DesiredShare) -> Option<String> {
        let manager = self.0.as_ref().filter(|_| share.vni.is_some())?;
        let record = read(&manager.file(share.allocation, share.epoch, IN_USE));
        record.inspect_err(|error| tracing::warn!(error = with_causes(error), "work gets no key for the fabric")).ok()??.key
    }

    /// Marks the service of an allocation that has ended here for revocation, in the background.
    pub fn end(&self, allocation: AllocationId, epoch: Epoch) -> Result<(), FabricError> {
        let Some(manager) = &self.0 else { return Ok(()) };
        let file = manager.file(allocation, epoch, IN_USE);
        match fs::rename(&file, file.with_extension(OVER)) {
            Ok(()) => manager.over.notify_one(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(FabricError::File { path: file, source }),
        }
        Ok(())
    }

    /// Marks services left by earlier runs for allocations that are no longer here.
    pub fn sweep(&self, here: impl Fn(AllocationId, Epoch) -> bool) {
        let Some(manager) = &self.0 else { return };
        for path in manager.records(IN_USE) {
            let swept = match read(&path) {
                Ok(Some(record)) if here(record.allocation, record.epoch) => Ok(()),
                Ok(Some(record)) => self.end(record.allocation, record.epoch),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = swept {
                tracing::warn!(error = with_causes(&error), "the record of a service at the fabric's manager cannot be used");
            }
        }
    }

    /// Revokes marked services until the agent stops. What cannot be revoked now is revoked later,
    /// even after a restart.
    pub async fn revoke(self, stop: CancellationToken) {
        let Some(manager) = self.0 else { return };
        let mut pauses = Backoff::new(RETRY_PAUSE, RETRY_PAUSE_MAX);
        loop {
            let revoked = tokio::select! {
                () = stop.cancelled() => return,
                revoked = manager.revoke_all() => revoked,
            };
            let again = match revoked {
                Ok(()) => {
                    manager.problems.clear(SUBJECT);
                    pauses.reset();
                    None
                }
                Err(error) => {
                    let text = format!("keys of work that has ended are not revoked, which is tried again: {}", with_causes(&error));
                    tracing::warn!("{text}");
                    manager.problems.set(SUBJECT, text);
                    Some(pauses.next_pause())
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = manager.over.notified() => {}
                () = tokio::time::sleep(again.unwrap_or_default()), if again.is_some() => {}
            }
        }
    }
}

impl Manager {
    async fn provide(&self, share: &DesiredShare, vni: u32) -> Result<(), FabricError> {
        let file = self.file(share.allocation, share.epoch, IN_USE);
        let mut record = match read(&file)? {
            Some(record) => record,
            None => {
                let nodes = share.nodes.to_vec();
                let new = Record { allocation: share.allocation, epoch: share.epoch, vni, nodes, service: None, key: None };
                write(&file, &new)?;
                new
            }
        };
        if record.service.is_none() {
            record.service = Some(self.make(&record).await?);
            write(&file, &record)?;
        }
        if let (Some(service), None) = (&record.service, &record.key) {
            record.key = Some(self.key(service).await?);
            write(&file, &record)?;
        }
        Ok(())
    }

    /// Creates a service and returns its id, or the id of the one that was created for the same
    /// purpose before.
    async fn make(&self, record: &Record) -> Result<String, FabricError> {
        let what = "make a CXI service";
        let body = json!({ "vni": record.vni, "allocation_id": record.allocation.to_string(), "nodes": record.nodes });
        let name = format!("{}-{}", record.allocation, record.epoch);
        let request = self.client.post(format!("{}/fabric/cxi/services", self.url)).header("Idempotency-Key", name);
        let request = request.header("Content-Type", "application/json").body(body.to_string());
        let Made { id } = parsed(what, &self.ask(what, request).await?)?;
        let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
        match (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(plain) {
            true => Ok(id),
            false => Err(FabricError::Answer { what, why: format!("a service's id has letters, digits, - and _, at most {ID_BYTES_MAX}") }),
        }
    }

    async fn key(&self, service: &str) -> Result<String, FabricError> {
        let what = "give a CXI service's key";
        let Auth { auth_key } = parsed(what, &self.ask(what, self.client.get(self.address(service) + "/auth")).await?)?;
        match (1..=KEY_BYTES_MAX).contains(&auth_key.len()) && auth_key.bytes().all(|c| c.is_ascii_hexdigit()) {
            true => Ok(auth_key),
            false => Err(FabricError::Answer { what, why: format!("a key has hexadecimal digits, at most {KEY_BYTES_MAX}") }),
        }
    }

    /// Tries to revoke all marked services; returns the first error.
    async fn revoke_all(&self) -> Result<(), FabricError> {
        let mut failed = Ok(());
        for path in self.records(OVER) {
            let revoked = self.revoke(&path).await;
            failed = failed.and(revoked);
        }
        failed
    }

    async fn revoke(&self, path: &Path) -> Result<(), FabricError> {
        let Some(record) = read(path)? else { return Ok(()) };
        let service = match record.service {
            Some(service) => service,
            // The manager may have created the service although its answer did not arrive.
            None => match self.make(&record).await {
                // The manager cannot have created what it refuses as invalid. (A refused
                // permission, or a temporary error, proves nothing.)
                Err(FabricError::Refused {
                    status: StatusCode::BAD_REQUEST | StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY,
                    ..
                }) => {
                    return forget(path);
                }
                made => made?,
            },
        };
        match self.ask("revoke a CXI service", self.client.delete(self.address(&service))).await {
            // The service does not exist any more.
            Ok(_) | Err(FabricError::Refused { status: StatusCode::NOT_FOUND | StatusCode::GONE, .. }) => {}
            Err(error) => return Err(error),
        }
        forget(path)
    }

    fn address(&self, service: &str) -> String {
        format!("{}/fabric/cxi/services/{service}", self.url)
    }

    /// The body of the answer, up to `ANSWER_BYTES_MAX`.
    async fn ask(&self, what: &'static str, request: RequestBuilder) -> Result<Vec<u8>, FabricError> {
        let request = match &self.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        };
        let unreached = |source: reqwest::Error| FabricError::Unreached { what, source: source.without_url() };
        let mut answer = request.send().await.map_err(unreached)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreached)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(FabricError::Answer { what, why: format!("it is longer than {ANSWER_BYTES_MAX} bytes") });
            }
            body.extend_from_slice(&chunk);
        }
        let status = answer.status();
        if status.is_success() {
            return Ok(body);
        }
        let detail: String = String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(200).collect();
        Err(FabricError::Refused { what, status, detail: if detail.is_empty() { detail } else { format!(": {detail}") } })
    }

    fn file(&self, allocation: AllocationId, epoch: Epoch, suffix: &str) -> PathBuf {
        self.dir.join(format!("{allocation}-{epoch}.{suffix}"))
    }

    fn records(&self, suffix: &str) -> Vec<PathBuf> {
        files(&self.dir, suffix)
    }
}

fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|found| found == suffix)).collect()
}

/// Removes half-written records: nothing was requested for them.
fn remove_halves(dir: &Path) {
    for path in files(dir, UNFINISHED) {
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "an unfinished record of a service at the fabric's manager cannot be removed");
        }
    }
}

fn parsed<'a, T: Deserialize<'a>>(what: &'static str, body: &'a [u8]) -> Result<T, FabricError> {
    serde_json::from_slice(body).map_err(|error| FabricError::Answer { what, why: error.to_string() })
}

fn token(path: &Path) -> Result<HeaderValue, FabricConfigError> {
    let failed = |why: String| FabricConfigError::File { setting: "fabric_manager.token", path: path.to_owned(), why };
    let mode = fs::metadata(path).map_err(|error| failed(error.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(failed(format!("others can read it (mode {:o}); chmod 600", mode & 0o777)));
    }
    let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let mut token = HeaderValue::from_str(&format!("Bearer {}", text.trim())).map_err(|error| failed(error.to_string()))?;
    token.set_sensitive(true);
    Ok(token)
}

/// `None`: there is no record.
fn read(path: &Path) -> Result<Option<Record>, FabricError> {
    let failed = |source| FabricError::File { path: path.to_owned(), source };
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

fn forget(path: &Path) -> Result<(), FabricError> {
    fs::remove_file(path).map_err(|source| FabricError::File { path: path.to_owned(), source })
}

/// Writes the record completely and syncs it before the manager is contacted: the service outlives
/// a crash of this machine.
fn write(path: &Path, record: &Record) -> Result<(), FabricError> {
    let written = || -> io::Result<()> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let part = path.with_extension(UNFINISHED);
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        fs::File::open(dir)?.sync_all()
    };
    written().map_err(|source| FabricError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_agent_common::config::fabric_manager::FabricManagerSettings;

    fn config(name: &str, url: &str) -> AgentConfig {
        let state_dir = std::env::temp_dir().join(format!("lattice-fabric-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&state_dir);
        fs::create_dir_all(&state_dir).unwrap();
        let fabric_manager = FabricManagerSettings { url: url.to_owned(), ..FabricManagerSettings::default() };
        AgentConfig { state_dir, fabric_manager, ..AgentConfig::default() }
    }

    #[test]
    fn an_invalid_manager_and_a_readable_token_file_are_refused() {
        for url in ["fabric", "ftp://host/", "http://", "http://host/?x=1"] {
            let opened = Fabric::open(&config("url", url), NodeProblems::default());
            assert!(matches!(opened, Err(FabricConfigError::Url(_))), "{url}");
        }
        let mut config = config("token", "http://host/");
        config.fabric_manager.token = config.state_dir.join("token");
        fs::write(&config.fabric_manager.token, "secret\n").unwrap();
        let open = |mode| {
            fs::set_permissions(&config.fabric_manager.token, fs::Permissions::from_mode(mode)).unwrap();
            Fabric::open(&config, NodeProblems::default()).map(drop)
        };
        assert!(open(0o644).is_err_and(|error| error.to_string().contains("others can read it")));
        assert!(open(0o600).is_ok());
        fs::remove_dir_all(&config.state_dir).unwrap();
    }

    #[test]
    fn services_of_absent_allocations_are_marked_over_and_a_missing_manager_is_reported() {
        let config = config("sweep", "http://host/");
        let fabric = Fabric::open(&config, NodeProblems::default()).unwrap();
        let manager = fabric.0.as_ref().unwrap();
        let ids = [AllocationId(uuid::Uuid::new_v4()), AllocationId(uuid::Uuid::new_v4())];
        for allocation in ids {
            let record = Record { allocation, epoch: Epoch(2), vni: 1000, nodes: Vec::new(), service: None, key: None };
            write(&manager.file(allocation, Epoch(2), IN_USE), &record).unwrap();
        }
        fabric.sweep(|allocation, epoch| allocation == ids[0] && epoch == Epoch(2));
        assert_eq!(manager.records(IN_USE), [manager.file(ids[0], Epoch(2), IN_USE)]);
        assert_eq!(manager.records(OVER), [manager.file(ids[1], Epoch(2), OVER)]);
        // A requeue is another epoch.
        fabric.sweep(|_, epoch| epoch == Epoch(3));
        assert_eq!((manager.records(IN_USE).len(), manager.records(OVER).len()), (0, 2));
        // A half-written record belongs to no service.
        let half = manager.file(ids[0], Epoch(3), UNFINISHED);
        fs::write(&half, "{").unwrap();
        let problems = NodeProblems::default();
        Fabric::open(&AgentConfig { fabric_manager: FabricManagerSettings::default(), ..config.clone() }, problems.clone()).unwrap();
        assert!(problems.lines()[0].contains("services that are not revoked"), "{:?}", problems.lines());
        assert!(!half.exists());
        fs::remove_dir_all(&config.state_dir).unwrap();
    }
}
