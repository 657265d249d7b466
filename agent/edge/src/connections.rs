//! Connections: each has its place, must finish its handshake and send a request soon, and must take its answers.

use super::activity::{Activity, Useless};
use super::client_certificate::ServiceCertificate;
use super::counts::{Counts, Limited, OpenConnection};
use super::gate::Gate;
use super::guarded_stream::GuardedStream;
use super::places::{Place, Places, Source};
use super::tls::Tls;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How long a handshake may take.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the head of a request may take, and how long a connection of HTTP/1.1 may wait for the next request.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: u32 = 16 << 10;
/// The flow-control windows of HTTP/2: what a peer may send before a handler reads it, in bytes.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;
/// How many bytes of each HTTP/2 stream may wait for the peer.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// How many concurrent requests one connection may have.
const REQUESTS_PER_CONNECTION: u32 = 128;
/// The ping interval of HTTP/2, and how long the answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// How long a connection may take to end in order.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
/// The pause after a connection that could not be accepted, for example for lack of descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What all connections share.
pub(super) struct Connections {
    gate: Gate,
    tls: Tls,
    places: Places,
    counts: Counts,
    http: auto::Builder<TokioExecutor>,
    stop: CancellationToken,
    cut: CancellationToken,
}

impl Connections {
    /// `stop` ends connections in order, `cut` breaks them.
    pub(super) fn new(gate: Gate, tls: Tls, places: Places, counts: Counts, stop: CancellationToken, cut: CancellationToken) -> Self {
        Self { gate, tls, places, counts, http: http(), stop, cut }
    }

    /// Serves until `stop`, and then until all connections have ended.
    pub(super) async fn serve(self, listener: TcpListener) {
        let this = Arc::new(self);
        let mut open = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = this.stop.cancelled() => break,
                Some(_) = open.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, from)) => match this.places.take(Source::of(from.ip())) {
                    Some(place) => {
                        let held = (place, this.counts.open());
                        open.spawn(Box::pin(connection(Arc::clone(&this), stream, from.ip().to_canonical(), held)));
                    }
                    None => this.counts.limited(Limited::Connections),
                },
                Err(error) => {
                    tracing::warn!(%error, "a connection to the API on the network cannot be accepted");
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                }
            }
        }
        drop(listener);
        while open.join_next().await.is_some() {}
    }
}

fn http() -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(HEAD_BYTES_MAX as usize);
    http.http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(REQUESTS_PER_CONNECTION)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    http
}

/// Returns when the certificate is revoked; never, if there is none.
async fn revoked(certificate: Option<&ServiceCertificate>) {
    match certificate {
        Some(certificate) => certificate.until_revoked().await,
        None => std::future::pending().await,
    }
}

async fn connection(shared: Arc<Connections>, stream: TcpStream, from: IpAddr, held: (Place, OpenConnection)) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%from, %error, "small answers of this connection may wait");
    }
    let stream = GuardedStream::new(stream, &shared.cut, held);
    let handshake = timeout(HANDSHAKE_TIME_MAX, TlsAcceptor::from(shared.tls.server()).accept(stream));
    let stream = match shared.stop.run_until_cancelled(handshake).await {
        Some(Ok(Ok(stream))) => stream,
        Some(Ok(Err(error))) => return tracing::debug!(%from, %error, "a handshake with the API on the network failed"),
        Some(Err(_)) | None => return,
    };
    let activity = Activity::new(Instant::now());
    let certificate = shared.tls.service_certificate(stream.get_ref().1.peer_certificates()).map(Arc::new);
    let (of_requests, requests, presented) = (Arc::clone(&shared), activity.clone(), certificate.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, open, presented) = (Arc::clone(&of_requests), requests.begin(), presented.clone());
        Box::pin(async move { Ok::<_, Infallible>(shared.gate.answer(request, (from, presented.as_deref()), open).await) })
    });
    let mut serving = pin!(shared.http.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let useless = tokio::select! {
        ended = serving.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!(%from, %error, "a connection to the API on the network broke");
            }
            return;
        }
        // The presented certificate is revoked: the connection ends with its streams.
        () = revoked(certificate.as_deref()) => return,
        useless = activity.until_useless() => Some(useless),
        () = shared.stop.cancelled() => None,
    };
    serving.as_mut().graceful_shutdown();
    match useless {
        Some(Useless::SlowReader) => {}
        // Closes the connection if the peer does not close it in time.
        Some(Useless::Idle) => drop(timeout(CLOSE_TIME_MAX, serving).await),
        // Open requests continue until they have ended or `cut` breaks the connection.
        None => drop(serving.await),
    }
}
