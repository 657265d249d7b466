//! Prometheus's remote write to VictoriaMetrics, or to what speaks the same.
//!
//! ```text
//!   every interval: Samples ──▶ protobuf, snappy ──▶ a file in the buffer ──▶ POST ──▶ stored: the file goes
//!                                                        │                     └── no answer, overloaded: again, ever more seldom
//!                                                        └── too much: the oldest go, counted
//! ```
//!
//! What is gathered is on the disk before it is sent, so that an agent that is killed, or a store that is away, leaves no gap as
//! far back as the buffer reaches. Sending and gathering are two tasks: a store that hangs keeps nobody from gathering.

mod buffer;
mod wire;

pub use buffer::{Buffer, BufferError};

use crate::catalogue::push as family;
use crate::sample::{Collect, Samples, Whose};
use crate::telling::Telling;
use reqwest::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode, Url};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How long the store may take for one batch.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Between two tries of a batch: the first time, and at most.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// Where everything is pushed to.
#[derive(Clone, Debug)]
pub struct Store {
    client: Client,
    url: Url,
    authorization: Option<HeaderValue>,
}

/// A store that cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("telemetry.tsdb_endpoint: {0:?} is no http:// or https:// address")]
    Url(String),
    #[error("{setting} {}: {why}", path.display())]
    File { setting: &'static str, path: PathBuf, why: String },
    #[error("the client for the store cannot be made")]
    Client(#[source] reqwest::Error),
}

/// Where to write, of an endpoint as it is configured: VictoriaMetrics's own path where none is said.
pub(crate) fn write_url(endpoint: &str) -> Option<Url> {
    let mut url = Url::parse(endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())?;
    if url.path() == "/" {
        url.set_path("/api/v1/write");
    }
    Some(url)
}

impl Store {
    /// `token_file` and `ca`: empty for none. The process must have a TLS provider.
    pub fn new(endpoint: &str, token_file: &Path, ca: &Path) -> Result<Self, StoreError> {
        let url = write_url(endpoint).ok_or_else(|| StoreError::Url(endpoint.to_owned()))?;
        let mut client = Client::builder().timeout(ANSWER_MAX).connect_timeout(ANSWER_MAX).redirect(Policy::none());
        if !ca.as_os_str().is_empty() {
            let failed = |why: String| StoreError::File { setting: "telemetry.tsdb_ca", path: ca.to_owned(), why };
            let pem = fs::read(ca).map_err(|e| failed(e.to_string()))?;
            client = client.tls_certs_only(Certificate::from_pem_bundle(&pem).map_err(|e| failed(e.to_string()))?);
        }
        let authorization = if token_file.as_os_str().is_empty() { None } else { Some(bearer(token_file)?) };
        Ok(Self { client: client.build().map_err(StoreError::Client)?, url, authorization })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        self.url.as_str()
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
            Err(error) => Sent::Failed(with_causes(&error)),
        }
    }
}

fn bearer(path: &Path) -> Result<HeaderValue, StoreError> {
    let failed = |why: String| StoreError::File { setting: "telemetry.tsdb_token_file", path: path.to_owned(), why };
    let mode = fs::metadata(path).map_err(|e| failed(e.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(failed(format!("others can read it (mode {:o}); chmod 600", mode & 0o777)));
    }
    let token = fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    let mut value =
        HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(|_| failed("it is no token of one line".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// What became of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sent {
    Stored,
    /// The store will never take it.
    Refused(StatusCode),
    /// To be tried again.
    Failed(String),
}

fn judge(status: StatusCode) -> Sent {
    if status.is_success() {
        return Sent::Stored;
    }
    // A store that is told to authenticate us better, or has moved, may take it later; so may one that is overloaded.
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

/// What was pushed so far. Cloneable; all clones are one.
#[derive(Clone, Debug)]
pub struct Pushed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    buffer: Mutex<Buffer>,
    more: Notify,
    samples: AtomicU64,
    stored: AtomicU64,
    refused: AtomicU64,
    failures: AtomicU64,
    unwritten: AtomicU64,
}

impl Pushed {
    /// With what waits in `buffer`.
    pub fn new(buffer: Buffer) -> Self {
        let zero = || AtomicU64::new(0);
        let inner = Inner {
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
        self.0.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gathers every `interval` and sends to `store`, until `stop`. `job`: what the series say they are of, as a scraper would.
    pub async fn run(
        self,
        telling: Telling,
        store: Store,
        job: &'static str,
        instance: String,
        interval: Duration,
        stop: CancellationToken,
    ) {
        tokio::join!(self.gather(telling, job, instance, interval, &stop), self.send(&store, &stop));
    }

    async fn gather(&self, telling: Telling, job: &'static str, instance: String, interval: Duration, stop: &CancellationToken) {
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if stop.run_until_cancelled(tick.tick()).await.is_none() {
                return;
            }
            let (telling, instance, pushed) = (telling.clone(), instance.clone(), self.clone());
            let put = tokio::task::spawn_blocking(move || {
                let samples = telling.samples(Whose::Everybodys);
                let (body, count) = wire::encode(&samples, &[("job", job), ("instance", &instance)], now_ms());
                pushed.buffer().put(&body, count)
            });
            match put.await {
                Ok(Ok(())) => self.0.more.notify_one(),
                Ok(Err(error)) => {
                    // A full disk: this batch is lost, and counted.
                    if self.0.unwritten.fetch_add(1, Ordering::Relaxed) == 0 {
                        tracing::warn!(error = %with_causes(&error), "metrics cannot be kept for the store: they are dropped while that is so");
                    }
                }
                Err(_) => tracing::warn!("gathering metrics broke"),
            }
        }
    }

    async fn send(&self, store: &Store, stop: &CancellationToken) {
        let mut again = AGAIN_FIRST;
        let mut failing = false;
        loop {
            let Some((number, body, samples)) = self.oldest().await else {
                if stop.run_until_cancelled(self.0.more.notified()).await.is_none() {
                    return;
                }
                continue;
            };
            let Some(sent) = stop.run_until_cancelled(store.send(body)).await else { return };
            match sent {
                Sent::Stored => {
                    self.0.stored.fetch_add(1, Ordering::Relaxed);
                    self.0.samples.fetch_add(samples, Ordering::Relaxed);
                    self.buffer().remove(number);
                    if std::mem::take(&mut failing) {
                        tracing::info!(store = store.url(), "the store for metrics takes them again");
                    }
                    again = AGAIN_FIRST;
                }
                Sent::Refused(status) => {
                    if self.0.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                        tracing::warn!(store = store.url(), %status, "the store for metrics refuses a batch: it is dropped");
                    }
                    self.buffer().remove(number);
                }
                Sent::Failed(why) => {
                    self.0.failures.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(store = store.url(), %why, "the store for metrics does not take them; they wait on the disk");
                    }
                    // All nodes of a cluster find it at once, and do not come back at once.
                    let wait = again.mul_f64(rand::random_range(0.5..1.0));
                    if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                        return;
                    }
                    again = (again * 2).min(AGAIN_MAX);
                }
            }
        }
    }

    async fn oldest(&self) -> Option<(u64, Vec<u8>, u64)> {
        let pushed = self.clone();
        tokio::task::spawn_blocking(move || pushed.buffer().oldest()).await.ok().flatten()
    }
}

impl Collect for Pushed {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let inner = &*self.0;
        let (bytes, dropped) = {
            let buffer = self.buffer();
            (buffer.bytes(), buffer.dropped())
        };
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
pub fn open(dir: &Path, bytes_max: u64) -> Result<Pushed, BufferError> {
    Buffer::open(dir, bytes_max).map(Pushed::new)
}

/// What [`io::Error`]s of the buffer are about.
pub(crate) type Io = io::Error;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_path_is_victoriametrics() {
        let url = |endpoint| write_url(endpoint).map(|url| url.to_string());
        assert_eq!(url("http://vm:8428").as_deref(), Some("http://vm:8428/api/v1/write"));
        assert_eq!(url("https://mimir/api/v1/push").as_deref(), Some("https://mimir/api/v1/push"));
        assert_eq!((url("vm:8428"), url("file:///tmp"), url("")), (None, None, None));
    }

    #[test]
    fn what_the_store_can_still_take_is_tried_again() {
        assert_eq!(judge(StatusCode::NO_CONTENT), Sent::Stored);
        assert_eq!(judge(StatusCode::BAD_REQUEST), Sent::Refused(StatusCode::BAD_REQUEST));
        for status in [500, 503, 429, 401, 404, 301] {
            assert!(matches!(judge(StatusCode::from_u16(status).unwrap()), Sent::Failed(_)), "{status}");
        }
    }
}
