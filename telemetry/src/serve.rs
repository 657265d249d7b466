//! `GET /metrics` over HTTP, and `GET /healthz` for clients that only check whether the process can serve: 200, or 503
//! with the reason.
//!
//! A scraper connects, sends one request, gets the answer and is disconnected: connections are not reused. If there are
//! too many connections, the oldest one of the address with the most is closed, so a client that sends its request at
//! once is served, however many idle connections others hold. The token (`Authorization: Bearer …`) decides what a
//! scraper may see: without one, the process and its node; with the right one, each allocation as well. A wrong token
//! is refused.
//!
//! Gathering costs more than serving: only one task gathers at a time, and a page is reused for a second for all who
//! may see it.
//!
//! `/healthz` shows whether an agent has a session, and whether a member has a leader. Use 503 to send requests
//! elsewhere, not to restart processes: an agent without a quorum has work that continues. Shims serve no metrics,
//! because each allocation would be a scrape target.

use crate::exporter::Exporter;
use crate::exposition;
use crate::sample::Whose;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use lattice_model::with_causes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Connections at a time; for one more, an older one is closed.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may last, including its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a page is reused.
const PAGE_AGE_MAX: Duration = Duration::from_secs(1);
/// Minimum length of a token, in bytes.
const TOKEN_BYTES_MIN: usize = 16;

/// Why the process cannot serve now: each kind of process has reasons of its own.
pub type NotReady = Box<dyn std::error::Error>;

/// Whether the process can serve. Called often, so it must return at once.
pub type Ready = Arc<dyn Fn() -> Result<(), NotReady> + Send + Sync>;

/// The token with which a scraper may see allocations. Only its digest is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token([u8; 32]);

/// A token's file that cannot be used.
#[derive(Debug, Error)]
pub enum TokenError {
    #[error("{path} cannot be read")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("{path}: others can read it (mode {mode:o}); chmod 600")]
    Open { path: String, mode: u32 },
    #[error("{path}: at least {TOKEN_BYTES_MIN} visible characters are needed; openssl rand -hex 32 makes some")]
    Short { path: String },
}

impl Token {
    /// Reads the token from a file of mode 0600.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let name = || path.display().to_string();
        let failed = |source| TokenError::Read { path: name(), source };
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Open { path: name(), mode });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let token = text.trim();
        if token.len() < TOKEN_BYTES_MIN || !token.chars().all(|c| c.is_ascii_graphic()) {
            return Err(TokenError::Short { path: name() });
        }
        Ok(Self::of(token))
    }

    fn of(text: &str) -> Self {
        let mut digest = [0; 32];
        digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref());
        Self(digest)
    }
}

/// Serves until `stop`.
pub async fn run(exporter: Exporter, listener: TcpListener, token: Option<Token>, ready: Ready, stop: CancellationToken) {
    let open = OpenConnections::default();
    let pages = Pages::new(exporter);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, from)) = accepted else {
            // For example, no descriptor is free: when open connections end, there will be some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let place = open.add(from.ip());
        let (pages, token, ready) = (pages.clone(), token.clone(), Arc::clone(&ready));
        connections.spawn(async move {
            let answering = tokio::time::timeout(CONNECTION_TIMEOUT, connection(pages, stream, token, ready));
            let answered = place.closed.run_until_cancelled(answering).await;
            if !matches!(answered, Some(Ok(Ok(())))) {
                tracing::debug!("a connection for metrics failed, took too long, or was closed for another one");
            }
            drop(place);
        });
    }
}

/// The open connections, by age. Cloneable; clones share one state.
#[derive(Clone, Default)]
struct OpenConnections(Arc<Mutex<BTreeMap<u64, (IpAddr, CancellationToken)>>>);

/// One open connection; it ends when this is dropped.
struct OpenConnection {
    number: u64,
    /// Cancelled when it must end for another connection.
    closed: CancellationToken,
    open: OpenConnections,
}

impl OpenConnections {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, (IpAddr, CancellationToken)>> {
        self.0.lock()
    }

    /// Adds a connection; if there are too many, another one is closed.
    fn add(&self, from: IpAddr) -> OpenConnection {
        let mut all = self.all();
        if all.len() >= CONNECTIONS_MAX {
            let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
            for (address, _) in all.values() {
                *counts.entry(*address).or_default() += 1;
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address);
            let oldest = all.iter().find(|(_, (address, _))| Some(*address) == most).map(|(number, _)| *number);
            if let Some((_, closed)) = oldest.and_then(|number| all.remove(&number)) {
                closed.cancel();
            }
        }
        let number = all.last_key_value().map_or(0, |(number, _)| number + 1);
        let closed = CancellationToken::new();
        all.insert(number, (from, closed.clone()));
        OpenConnection { number, closed, open: self.clone() }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        // A newer connection has this number only if this one was already removed, as the newest.
        let mut all = self.open.all();
        if !self.closed.is_cancelled() {
            all.remove(&self.number);
        }
    }
}

/// The last generated pages. Cloneable; clones share one state.
#[derive(Clone)]
struct Pages(Arc<Inner>);

struct Inner {
    exporter: Exporter,
    made: Mutex<Made>,
    /// The task that makes a page holds a permit until it is done, even if nobody waits for the page any more.
    makes: Arc<Semaphore>,
}

/// One page for clients without a token, one for those with it.
#[derive(Default)]
struct Made {
    ours: Option<(Instant, Bytes)>,
    everybodys: Option<(Instant, Bytes)>,
}

impl Made {
    fn of(&mut self, whose: Whose) -> &mut Option<(Instant, Bytes)> {
        match whose {
            Whose::Ours => &mut self.ours,
            Whose::Everybodys => &mut self.everybodys,
        }
    }
}

impl Pages {
    fn new(exporter: Exporter) -> Self {
        Self(Arc::new(Inner { exporter, made: Mutex::default(), makes: Arc::new(Semaphore::new(1)) }))
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.0.made.lock()
    }

    fn fresh(&self, whose: Whose) -> Option<Bytes> {
        self.made().of(whose).as_ref().filter(|(at, _)| at.elapsed() < PAGE_AGE_MAX).map(|(_, page)| page.clone())
    }

    /// `None`: making the page failed.
    async fn page(&self, whose: Whose) -> Option<Bytes> {
        if let Some(page) = self.fresh(whose) {
            return Some(page);
        }
        let place = Arc::clone(&self.0.makes).acquire_owned().await.ok()?;
        // The task before us may have made it.
        if let Some(page) = self.fresh(whose) {
            return Some(page);
        }
        let pages = self.clone();
        let making = tokio::task::spawn_blocking(move || {
            let at = Instant::now();
            let page = Bytes::from(exposition::page(&pages.0.exporter.samples(whose)));
            *pages.made().of(whose) = Some((at, page.clone()));
            drop(place);
            page
        });
        making.await.ok()
    }
}

async fn connection(pages: Pages, stream: TcpStream, token: Option<Token>, ready: Ready) -> Result<(), hyper::Error> {
    let service = service_fn(move |request| {
        let (pages, token, ready) = (pages.clone(), token.clone(), Arc::clone(&ready));
        async move {
            let answer = answer(&pages, token.as_ref(), &ready, &request).await;
            pages.0.exporter.answered(answer.status().as_u16());
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT).keep_alive(false).max_buf_size(16 << 10);
    http.serve_connection(TokioIo::new(stream), service).await
}

async fn answer<B>(pages: &Pages, token: Option<&Token>, ready: &Ready, request: &Request<B>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !matches!(path, "/metrics" | "/healthz") {
        return plain(StatusCode::NOT_FOUND, "There are /metrics and /healthz.\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.\n");
    }
    if path == "/healthz" {
        return health(ready());
    }
    let whose = match (request.headers().get(AUTHORIZATION), token) {
        (None, _) => Whose::Ours,
        (Some(shown), Some(token)) if is_right(shown, token) => Whose::Everybodys,
        (Some(_), _) => {
            let text = "This is not the token of metrics_token_file. Without a token, everything but allocations is shown.\n";
            let mut refused = plain(StatusCode::UNAUTHORIZED, text);
            refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return refused;
        }
    };
    match pages.page(whose).await {
        Some(page) => body(StatusCode::OK, exposition::CONTENT_TYPE, page),
        None => plain(StatusCode::INTERNAL_SERVER_ERROR, "The metrics could not be read.\n"),
    }
}

fn is_right(shown: &HeaderValue, token: &Token) -> bool {
    let text = shown.to_str().ok().and_then(|text| text.split_once(' '));
    // Digests are compared: the time that takes reveals nothing about the token.
    text.is_some_and(|(scheme, text)| scheme.eq_ignore_ascii_case("bearer") && Token::of(text.trim()) == *token)
}

/// The answer in the form of the requirement.
fn health(ready: Result<(), NotReady>) -> Response<Full<Bytes>> {
    let (status, answer) = match ready {
        Ok(()) => (StatusCode::OK, serde_json::json!({"status": "ok"})),
        Err(error) => {
            let reason = with_causes(&*error);
            (StatusCode::SERVICE_UNAVAILABLE, serde_json::json!({"status": "unavailable", "reason": reason}))
        }
    };
    body(status, "application/json", Bytes::from(format!("{answer}\n")))
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    body(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn body(status: StatusCode, content_type: &'static str, bytes: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::allocation;
    use crate::sample::{Collect, Samples};
    use std::sync::atomic::{AtomicU64, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct One;

    impl Collect for One {
        fn collect(&self, samples: &mut Samples, whose: Whose) {
            if whose == Whose::Everybodys {
                samples.count(&allocation::MEMORY, &["a1"], 7);
            }
        }
    }

    fn is_ready() -> Ready {
        Arc::new(|| Ok(()))
    }

    async fn ask(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_token_shows_allocations_and_requests_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let exporter = Exporter::new("agent", vec![("node_id", "n1".to_owned())], vec![Box::new(One)]);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(run(exporter, listener, Some(Token::of("0123456789abcdef")), is_ready(), stop.clone()));
        let get = |rest: &str| format!("GET {rest}\r\nHost: x\r\n\r\n");
        let open = ask(address, &get("/metrics HTTP/1.1")).await;
        assert!(open.starts_with("HTTP/1.1 200") && open.contains(exposition::CONTENT_TYPE), "{open}");
        assert!(open.contains("process_open_fds{node_id=\"n1\"}") && !open.contains("lattice_allocation_memory_bytes"), "{open}");
        let wrong = ask(address, &get("/metrics HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdeX")).await;
        assert!(wrong.starts_with("HTTP/1.1 401"), "{wrong}");
        let right = ask(address, &get("/metrics HTTP/1.1\r\nAuthorization: bearer 0123456789abcdef")).await;
        assert!(right.contains("lattice_allocation_memory_bytes{node_id=\"n1\",allocation=\"a1\"} 7"), "{right}");
        assert!(right.contains("lattice_metrics_requests_total{node_id=\"n1\",code=\"401\"} 1"), "{right}");
        assert!(ask(address, &get("/else HTTP/1.1")).await.starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        stop.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn readiness_needs_no_token_and_has_its_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let exporter = Exporter::new("agent", Vec::new(), Vec::new());
        let (away, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let is_away = Arc::clone(&away);
        let ready: Ready = Arc::new(move || if is_away.load(Ordering::SeqCst) == 0 { Ok(()) } else { Err("no \"leader\"".into()) });
        let serving = tokio::spawn(run(exporter, listener, Some(Token::of("0123456789abcdef")), ready, stop.clone()));
        let request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
        let well = ask(address, request).await;
        assert!(well.starts_with("HTTP/1.1 200") && well.ends_with("{\"status\":\"ok\"}\n"), "{well}");
        away.store(1, Ordering::SeqCst);
        let ill = ask(address, request).await;
        assert!(ill.starts_with("HTTP/1.1 503") && ill.contains(r#""reason":"no \"leader\"""#), "{ill}");
        stop.cancel();
        serving.await.unwrap();
    }

    /// Counts its calls, and is slow.
    struct Slow(Arc<AtomicU64>);

    impl Collect for Slow {
        fn collect(&self, _samples: &mut Samples, _whose: Whose) {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    #[tokio::test]
    async fn many_requests_at_once_cost_one_gathering_and_idle_connections_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let gathered = Arc::new(AtomicU64::new(0));
        let exporter = Exporter::new("agent", Vec::new(), vec![Box::new(Slow(Arc::clone(&gathered)))]);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(run(exporter, listener, None, is_ready(), stop.clone()));
        let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        // A machine that stalls may make one attempt take too long.
        let mut took = Duration::MAX;
        for _ in 0..5 {
            // These idle connections take all slots until others need them.
            let mut idle = Vec::new();
            for _ in 0..CONNECTIONS_MAX {
                idle.push(TcpStream::connect(address).await.unwrap());
            }
            let (before, began) = (gathered.load(Ordering::SeqCst), Instant::now());
            let asking: Vec<_> = (0..CONNECTIONS_MAX).map(|_| tokio::spawn(ask(address, request))).collect();
            for asked in asking {
                assert!(asked.await.unwrap().starts_with("HTTP/1.1 200"));
            }
            took = began.elapsed();
            // One gathering for all; a machine that stalls for a second may cause a few more.
            let times = gathered.load(Ordering::SeqCst) - before;
            assert!(times <= 1 + took.as_secs(), "{times} gatherings in {took:?}");
            if took < CONNECTION_TIMEOUT {
                break;
            }
        }
        assert!(took < CONNECTION_TIMEOUT, "idle connections kept the others out for {took:?}");
        stop.cancel();
        serving.await.unwrap();
    }

    #[test]
    fn the_oldest_connection_of_the_address_with_most_makes_room() {
        let (mine, others): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let open = OpenConnections::default();
        let one = open.add(mine);
        let many: Vec<_> = (0..CONNECTIONS_MAX).map(|_| open.add(others)).collect();
        assert!(!one.closed.is_cancelled() && many[0].closed.is_cancelled() && !many[1].closed.is_cancelled());
        assert_eq!(open.all().len(), CONNECTIONS_MAX);
        drop(many);
        assert_eq!(open.all().len(), 1, "those that were closed for others take nobody's number");
    }

    #[test]
    fn a_token_that_others_could_read_or_guess_is_refused() {
        let path = std::env::temp_dir().join(format!("lattice-token-{}", std::process::id()));
        let put = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        assert_eq!(put("0123456789abcdef\n", 0o600).unwrap(), Token::of("0123456789abcdef"));
        assert!(matches!(put("0123456789abcdef\n", 0o640), Err(TokenError::Open { mode: 0o640, .. })));
        assert!(matches!(put("short", 0o600), Err(TokenError::Short { .. })));
        fs::remove_file(&path).unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::Read { .. })));
    }
}
