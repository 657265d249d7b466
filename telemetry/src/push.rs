//! Prometheus's remote write to VictoriaMetrics or a compatible store.
//!
//! ```text
//!   every interval: Samples ──▶ protobuf, snappy ──▶ a file in the buffer ──▶ POST ──▶ stored: the file is removed
//!                                                        │                     ├── no answer, overloaded: retry
//!                                                        │                     └── refused for ever: dropped and counted
//!                                                        └── over the limit: the oldest are dropped and counted
//! ```
//!
//! Gathered samples are on the disk before they are sent, so a killed agent or an unreachable store leaves no gap as
//! far back as the buffer reaches. Sending and gathering are two tasks: a store that hangs does not stop gathering.

mod buffer;
mod disk;
mod wire;

pub use buffer::{Batch, Buffer, BufferError, BufferState};
pub use disk::Spare;
pub use wire::encode;

use crate::catalogue::push as family;
use crate::exporter::Exporter;
use crate::sample::{Collect, Samples, Whose};
use lattice_model::{Backoff, with_causes};
use parking_lot::{Mutex, MutexGuard};
use reqwest::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode, Url};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::task::JoinError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Timeout of the store for one batch.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between tries to send a batch, or to use the buffer's disk.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The store that everything is pushed to.
#[derive(Clone, Debug)]
pub struct Store {
    client: Client,
    url: Url,
    /// Its address without anything that could be secret, for people.
    shown: String,
    authorization: Option<HeaderValue>,
}

/// An endpoint that cannot be used. The message does not repeat it: it may contain a secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EndpointError {
    #[error("telemetry.tsdb_endpoint: it is not an http:// or https:// address, such as http://victoriametrics:8428")]
    Address,
    #[error("telemetry.tsdb_endpoint: a user, a password or a token is in the address; put the token into the file of tsdb_token_file")]
    Secret,
}

/// A store that cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("{setting} {}: {why}", path.display())]
    File { setting: &'static str, path: PathBuf, why: String },
    #[error("the client for the store cannot be created")]
    Client(#[source] reqwest::Error),
}

/// The address for remote write at a configured endpoint: VictoriaMetrics's path if the endpoint has none.
pub(crate) fn write_url(endpoint: &str) -> Result<Url, EndpointError> {
    let mut url = address(endpoint)?;
    if url.path() == "/" {
        url.set_path("/api/v1/write");
    }
    Ok(url)
}

/// A store's address from the configuration: it must not contain a secret.
pub(crate) fn address(endpoint: &str) -> Result<Url, EndpointError> {
    let url = Url::parse(endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let url = url.ok_or(EndpointError::Address)?;
    // More people can read configurations than token files, and addresses get into logs.
    if !url.username().is_empty() || url.password().is_some() || url.query_pairs().any(|(name, _)| may_be_secret(&name)) {
        return Err(EndpointError::Secret);
    }
    Ok(url)
}

fn may_be_secret(parameter: &str) -> bool {
    let name = parameter.to_ascii_lowercase();
    matches!(name.as_str(), "u" | "p" | "user" | "username")
        || ["token", "key", "pass", "secret", "auth", "sig", "cred"].iter().any(|part| name.contains(part))
}

/// An address without its parameters.
pub(crate) fn without_parameters(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

/// A client for stores that trusts the authorities in `ca`; empty: the system's.
pub(crate) fn client(ca: &Path) -> Result<Client, StoreError> {
    let mut client = Client::builder().timeout(RESPONSE_TIMEOUT).connect_timeout(RESPONSE_TIMEOUT).redirect(Policy::none());
    if !ca.as_os_str().is_empty() {
        let failed = |why: String| StoreError::File { setting: "telemetry.tsdb_ca", path: ca.to_owned(), why };
        let pem = fs::read(ca).map_err(|e| failed(e.to_string()))?;
        client = client.tls_certs_only(Certificate::from_pem_bundle(&pem).map_err(|e| failed(e.to_string()))?);
    }
    client.build().map_err(StoreError::Client)
}

impl Store {
    /// `token_file` and `ca`: empty for none. The process must have a TLS provider.
    pub fn new(endpoint: &str, token_file: &Path, ca: &Path) -> Result<Self, StoreError> {
        let url = write_url(endpoint)?;
        let client = client(ca)?;
        let authorization = if token_file.as_os_str().is_empty() { None } else { Some(bearer(token_file)?) };
        Ok(Self { client, shown: without_parameters(&url), url, authorization })
    }

    /// Its address, for people: scheme, host, port and path.
    pub fn url(&self) -> &str {
        &self.shown
    }

    async fn send(&self, body: Vec<u8>) -> Sent {
        let mut request = self.client.post(self.url.clone()).body(body);
        request = request.header(CONTENT_TYPE, "application/x-protobuf").header(CONTENT_ENCODING, "snappy");
        request = request.header("X-Prometheus-Remote-Write-Version", "0.1.0");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        match request.send().await {
            Ok(answer) => judge(answer.status()),
            Err(error) => Sent::Failed(with_causes(&error.without_url())),
        }
    }
}

pub(crate) fn bearer(path: &Path) -> Result<HeaderValue, StoreError> {
    let failed = |why: String| StoreError::File { setting: "telemetry.tsdb_token_file", path: path.to_owned(), why };
    let mode = fs::metadata(path).map_err(|e| failed(e.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(failed(format!("others can read it (mode {:o}); chmod 600", mode & 0o777)));
    }
    let token = fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    let mut value =
        HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(|_| failed("it is not a token of one line".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The result of sending one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sent {
    Stored,
    /// The store will never accept it.
    Refused(StatusCode),
    /// It must be sent again.
    Failed(String),
}

fn judge(status: StatusCode) -> Sent {
    if status.is_success() {
        return Sent::Stored;
    }
    // A store that changed its rights, has moved or is overloaded may accept it later.
    let for_ever = status.is_client_error()
        && !matches!(
            status,
            StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::REQUEST_TIMEOUT
                | StatusCode::TOO_MANY_REQUESTS
        );
    if for_ever { Sent::Refused(status) } else { Sent::Failed(format!("it answers {status}")) }
}

/// Why an operation on the buffer failed.
#[derive(Debug, Error)]
enum BufferTaskError {
    #[error("{}", with_causes(.0))]
    Buffer(#[from] BufferError),
    #[error("the task panicked")]
    Broke(#[source] JoinError),
}

/// The buffer, and counts of what was pushed. Cloneable; all clones share one state.
#[derive(Clone, Debug)]
pub struct Pushed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Locked while its disk is used, so it may be locked only where blocking is allowed.
    buffer: Mutex<Buffer>,
    state: Arc<BufferState>,
    more: Notify,
    samples: AtomicU64,
    stored: AtomicU64,
    refused: AtomicU64,
    failures: AtomicU64,
    unwritten: AtomicU64,
}

impl Pushed {
    /// With the batches that wait in `buffer`.
    pub fn new(buffer: Buffer) -> Self {
        let zero = || AtomicU64::new(0);
        let inner = Inner {
            state: buffer.state(),
            buffer: Mutex::new(buffer),
            more: Notify::new(),
            samples: zero(),
            stored: zero(),
            refused: zero(),
            failures: zero(),
            unwritten: zero(),
        };
        Self(Arc::new(inner))
    }

    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.0.buffer.lock()
    }

    /// Runs `work` on the buffer, on a thread that may block.
    async fn with_buffer<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Buffer) -> Result<T, BufferError> + Send + 'static,
    ) -> Result<T, BufferTaskError> {
        let pushed = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&mut pushed.buffer())).await;
        Ok(done.map_err(BufferTaskError::Broke)??)
    }

    /// Gathers every `interval` and sends to `store`, until `stop`. `job`: the label of all series, as a scraper would
    /// set it.
    pub async fn run(
        self,
        exporter: Exporter,
        store: Store,
        job: &'static str,
        instance: String,
        interval: Duration,
        stop: CancellationToken,
    ) {
        tokio::join!(self.gather(exporter, job, instance, interval, &stop), self.send(&store, &stop));
    }

    async fn gather(&self, exporter: Exporter, job: &'static str, instance: String, interval: Duration, stop: &CancellationToken) {
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            if stop.run_until_cancelled(tick.tick()).await.is_none() {
                return;
            }
            let (exporter, instance, pushed) = (exporter.clone(), instance.clone(), self.clone());
            let put = tokio::task::spawn_blocking(move || {
                let samples = exporter.samples(Whose::Everybodys);
                let (body, count) = wire::encode(&samples, &[("job", job), ("instance", &instance)], now_ms());
                pushed.buffer().put(&body, count)
            });
            match put.await {
                Ok(Ok(())) => {
                    self.0.more.notify_one();
                    if std::mem::take(&mut failing) {
                        tracing::info!("metrics are written for the store again");
                    }
                }
                Ok(Err(error)) => {
                    // The disk is full or fails: this batch is lost, and counted.
                    self.0.unwritten.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = %with_causes(&error), "metrics cannot be written for the store: they are dropped meanwhile");
                    }
                }
                Err(_) => tracing::warn!("gathering metrics panicked"),
            }
        }
    }

    async fn send(&self, store: &Store, stop: &CancellationToken) {
        let (mut backoff, mut disk_backoff) = (Retry::default(), Retry::default());
        let mut refusing = false;
        loop {
            let batch = match self.with_buffer(Buffer::oldest).await {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    if stop.run_until_cancelled(self.0.more.notified()).await.is_none() {
                        return;
                    }
                    continue;
                }
                Err(why) => {
                    if disk_backoff.is_new() {
                        tracing::warn!(%why, "metrics that wait for the store cannot be read; it is tried again");
                    }
                    if disk_backoff.pause(stop).await.is_none() {
                        return;
                    }
                    continue;
                }
            };
            let Some(sent) = stop.run_until_cancelled(store.send(batch.body)).await else { return };
            match sent {
                Sent::Stored => {
                    self.0.stored.fetch_add(1, Ordering::Relaxed);
                    self.0.samples.fetch_add(batch.samples, Ordering::Relaxed);
                    refusing = false;
                    if backoff.end() {
                        tracing::info!(store = store.url(), "the store for metrics accepts batches again");
                    }
                }
                Sent::Refused(status) => {
                    self.0.refused.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut refusing, true) {
                        tracing::warn!(store = store.url(), %status, "the store for metrics refuses a batch: it is dropped");
                    }
                }
                Sent::Failed(why) => {
                    self.0.failures.fetch_add(1, Ordering::Relaxed);
                    if backoff.is_new() {
                        tracing::warn!(store = store.url(), %why, "the store for metrics accepts no batches; they wait on the disk");
                    }
                    if backoff.pause(stop).await.is_none() {
                        return;
                    }
                    continue;
                }
            }
            // Sending continues only when the file is removed, so that a stored batch is not sent again.
            while let Err(why) = self.with_buffer(move |buffer| buffer.remove(batch.number)).await {
                if disk_backoff.is_new() {
                    tracing::warn!(%why, "metrics that the store has cannot be removed; it is tried again");
                }
                if disk_backoff.pause(stop).await.is_none() {
                    return;
                }
            }
            if disk_backoff.end() {
                tracing::info!("the disk with the metrics that wait works again");
            }
        }
    }
}

/// An operation that fails and is retried with growing pauses.
#[derive(Debug)]
struct Retry {
    is_on: bool,
    delays: Backoff,
}

impl Default for Retry {
    fn default() -> Self {
        Self { is_on: false, delays: RETRY_DELAYS }
    }
}

impl Retry {
    /// It failed; returns whether the previous try had not.
    fn is_new(&mut self) -> bool {
        !std::mem::replace(&mut self.is_on, true)
    }

    /// It succeeded; returns whether it had failed before.
    fn end(&mut self) -> bool {
        std::mem::take(self).is_on
    }

    /// `None`: the process stops.
    async fn pause(&mut self, stop: &CancellationToken) -> Option<()> {
        // Random, because all nodes of a cluster see the failure at once and must not retry at once.
        let wait = self.delays.next_pause().mul_f64(rand::random_range(0.5..1.0));
        stop.run_until_cancelled(tokio::time::sleep(wait)).await
    }
}

impl Collect for Pushed {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let inner = &*self.0;
        let (bytes, dropped) = (inner.state.bytes(), inner.state.dropped());
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        samples.count(&family::SAMPLES, &[], load(&inner.samples));
        for (result, count) in
            [("stored", load(&inner.stored)), ("refused", load(&inner.refused)), ("dropped", dropped + load(&inner.unwritten))]
        {
            samples.count(&family::BATCHES, &[result], count);
        }
        samples.count(&family::FAILURES, &[], load(&inner.failures));
        samples.count(&family::BUFFERED, &[], bytes);
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Opens the buffer in `dir`.
pub fn open(dir: &Path, bytes_max: u64, spare: Spare) -> Result<Pushed, BufferError> {
    Buffer::open(dir, bytes_max, spare).map(Pushed::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_path_is_victoriametrics() {
        let url = |endpoint| write_url(endpoint).ok().map(|url| url.to_string());
        assert_eq!(url("http://vm:8428").as_deref(), Some("http://vm:8428/api/v1/write"));
        assert_eq!(url("https://mimir/api/v1/push").as_deref(), Some("https://mimir/api/v1/push"));
        for none in ["vm:8428", "file:///tmp", ""] {
            assert_eq!(write_url(none), Err(EndpointError::Address), "{none}");
        }
    }

    #[test]
    fn an_address_has_no_secret_and_is_shown_without_its_parameters() {
        for secret in [
            "http://user@vm",
            "http://:word@vm",
            "https://vm/write?auth_token=word",
            "https://vm/write?u=me&p=word",
            "http://vm?apiKey=word",
        ] {
            let error = write_url(secret).unwrap_err();
            assert_eq!(error, EndpointError::Secret, "{secret}");
            assert!(!error.to_string().contains("word;") && !error.to_string().contains("vm"), "{error}");
        }
        let url = write_url("https://vm:8480/insert/0/prometheus?extra_label=site%3Dword#part").unwrap();
        assert_eq!(
            (without_parameters(&url).as_str(), url.query()),
            ("https://vm:8480/insert/0/prometheus", Some("extra_label=site%3Dword"))
        );
    }

    #[test]
    fn a_batch_that_the_store_may_accept_later_is_tried_again() {
        assert_eq!(judge(StatusCode::NO_CONTENT), Sent::Stored);
        assert_eq!(judge(StatusCode::BAD_REQUEST), Sent::Refused(StatusCode::BAD_REQUEST));
        for status in [500, 503, 429, 401, 404, 301] {
            assert!(matches!(judge(StatusCode::from_u16(status).unwrap()), Sent::Failed(_)), "{status}");
        }
    }
}
