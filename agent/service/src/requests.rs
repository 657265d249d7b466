//! The edge of the API: every call is counted, with its status and how long it took; a denied call is also noted for
//! the audit log. A call that a network caller's token does not open is refused here.

use super::connections::{NetworkPeer, Peer};
use super::denials::Denials;
use super::network_callers::{Admitted, Expiring, NetworkCallers};
use lattice_agent_common::clock;
use lattice_model::access::rule;
use lattice_quorum_client::with_token;
use lattice_telemetry::catalogue::serving as family;
use lattice_telemetry::histogram::Histogram;
use lattice_telemetry::holding::Holding;
use lattice_telemetry::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::{Code, Status};

/// Few buckets, since there is one such histogram for each method.
const SECONDS: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];
/// Methods that answer with a stream, and the kind of each stream.
const STREAMS: [(&str, &str); 14] = [
    ("AccountingService/Export", "history"),
    ("AdminService/VerifyAudit", "audit"),
    ("AdminService/ExportAudit", "audit"),
    ("AllocationService/Watch", "watch"),
    ("AllocationService/Logs", "logs"),
    ("AllocationService/Launch", "launch"),
    ("AllocationService/LaunchInput", "launch"),
    ("AllocationService/Attach", "attach"),
    ("AllocationService/Checkpoint", "checkpoint"),
    ("AllocationService/VerifyCheckpoint", "checkpoint"),
    ("AllocationService/ReadTelemetry", "metrics"),
    ("AllocationService/StreamMetrics", "metrics"),
    ("NodeService/WatchGossip", "watch"),
    ("WatchService/Watch", "watch"),
];
/// Streams that work itself keeps open.
const OF_WORK: [(&str, &str); 1] = [("ApplicationService/Register", "checkpoint")];
/// All kinds.
const KINDS: [&str; 8] = ["attach", "audit", "checkpoint", "history", "launch", "logs", "metrics", "watch"];
/// The name for methods that do not exist: callers could invent any name.
const UNKNOWN: &str = "unknown";

/// Counters since the agent's start. Cloneable; all clones share them.
#[derive(Clone, Default)]
pub struct Requests(Arc<Inner>);

#[derive(Default)]
struct Inner {
    methods: Mutex<BTreeMap<String, Calls>>,
    open: [AtomicU64; KINDS.len()],
}

/// The counters of one method.
#[derive(Default)]
struct Calls {
    by_status: BTreeMap<&'static str, u64>,
    /// Only if the method does not answer with a stream.
    seconds: Option<Histogram>,
}

fn kind_of(method: &str) -> Option<usize> {
    let (_, kind) = STREAMS.iter().chain(&OF_WORK).find(|(name, _)| *name == method)?;
    KINDS.iter().position(|name| name == kind)
}

impl Requests {
    /// The edge, which counts calls here. `denials`: where denied calls are noted, if this agent
    /// vouches for its callers. `network`: the limits of callers on the network.
    pub(super) fn with(self, denials: Option<Denials>, network: NetworkCallers) -> Edge {
        Edge { requests: self, denials, network }
    }

    /// `took`: the duration of a call that is not answered by a stream.
    fn answered(&self, method: &str, status: Code, took: Option<Duration>) {
        let is_unknown = status == Code::Unimplemented || rule(method).is_none();
        let method = if is_unknown { UNKNOWN } else { method };
        let mut methods = self.0.methods.lock();
        let of = methods.entry(method.to_owned()).or_default();
        *of.by_status.entry(name(status)).or_default() += 1;
        if let Some(took) = took {
            of.seconds.get_or_insert_with(|| Histogram::new(SECONDS)).observe(took);
        }
    }
}

impl Collect for Requests {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        for (method, of) in &*self.0.methods.lock() {
            for (status, count) in &of.by_status {
                samples.count(&family::API_REQUESTS, &[method, status], *count);
            }
            if let Some(denied) = of.by_status.get(name(Code::PermissionDenied)) {
                samples.count(&family::API_DENIED, &[method], *denied);
            }
            if let Some(seconds) = &of.seconds {
                samples.histogram(&family::API_SECONDS, &[method], seconds.counts());
            }
        }
        for (kind, open) in KINDS.iter().zip(&self.0.open) {
            samples.count(&family::API_STREAMS, &[kind], open.load(Ordering::Relaxed));
        }
    }
}

/// An open stream, until this is dropped.
struct Open(Requests, usize);

impl Open {
    fn new(requests: &Requests, kind: usize) -> Self {
        requests.0.open[kind].fetch_add(1, Ordering::Relaxed);
        Self(requests.clone(), kind)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.open[self.1].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The called method, such as `NodeService/SetHold`: in the extensions of each request.
#[derive(Clone, Debug)]
pub(super) struct Method(pub String);

/// What happens to the calls of all services. Cloneable; all clones share the counters and the denials.
#[derive(Clone)]
pub(super) struct Edge {
    requests: Requests,
    denials: Option<Denials>,
    network: NetworkCallers,
}

impl Edge {
    /// Wraps the service and counts its calls.
    pub(super) fn count<S>(&self, service: S) -> Counted<S> {
        Counted { service, edge: self.clone() }
    }

    /// Refuses a call that a caller on the network may not make. `None`: a caller of this machine.
    fn admit(&self, peer: Option<&NetworkPeer>, method: &str, is_stream: bool) -> Result<Option<Admitted>, Status> {
        peer.map(|peer| self.network.admit(peer, method, is_stream, clock::now())).transpose()
    }

    /// Notes a denial that is in the headers of an answer.
    fn denied(&self, peer: Option<&Peer>, method: &str, headers: &http::HeaderMap) {
        let (Some(denials), Some(peer)) = (&self.denials, peer) else { return };
        let refusal = Status::from_header_map(headers);
        let refusal = refusal.as_ref().map_or("", Status::message);
        denials.note(peer.account(), method, &recorded(peer.network(), refusal), Instant::now());
    }
}

/// The text of a denial's record; for a caller on the network it names the token. `network`: that caller.
fn recorded<'a>(network: Option<&NetworkPeer>, refusal: &'a str) -> Cow<'a, str> {
    match network {
        Some(peer) => format!("by {}: {refusal}", peer.authentication).into(),
        None => refusal.into(),
    }
}

/// A service whose calls are counted.
#[derive(Clone)]
pub(super) struct Counted<S> {
    service: S,
    edge: Edge,
}

impl<S: NamedService> NamedService for Counted<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Counted<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches("/lattice.v1.").to_owned();
        request.extensions_mut().insert(Method(method.clone()));
        let peer = request.extensions().get::<Peer>().cloned();
        let (began, edge, kind) = (Instant::now(), self.edge.clone(), kind_of(&method));
        let token = peer.as_ref().and_then(Peer::network).and_then(|peer| peer.authentication.token());
        let admitted = edge.admit(peer.as_ref().and_then(Peer::network), &method, kind.is_some());
        let called = admitted.map(|admitted| (self.service.call(request), admitted));
        Box::pin(async move {
            let (answer, admitted) = match called {
                Ok((answer, admitted)) => (with_token(token, answer).await?, admitted),
                Err(refused) => (refused.into_http(), None),
            };
            // An immediate refusal is in the headers; otherwise a stream that begins counts as a
            // success.
            let status = answer.headers().get("grpc-status").map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
            if status == Code::PermissionDenied {
                edge.denied(peer.as_ref(), &method, answer.headers());
            }
            edge.requests.answered(&method, status, kind.is_none().then(|| began.elapsed()));
            Ok(match kind.filter(|_| status == Code::Ok) {
                Some(kind) => answer.map(|body| {
                    let body = Body::new(Holding::new(body, Open::new(&edge.requests, kind)));
                    match admitted {
                        Some(admitted) => Body::new(Expiring::new(body, admitted)),
                        None => body,
                    }
                }),
                None => answer,
            })
        })
    }
}

/// The name in gRPC, in lower case.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::Unknown => "unknown",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::Authentication;
    use super::*;
    use lattice_model::access::Scopes;
    use lattice_model::access_token::TokenId;
    use lattice_model::{Principal, Timestamp};
    use lattice_telemetry::sample::Value;

    #[test]
    fn every_stream_of_the_api_has_its_kind() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../api/proto/lattice/v1");
        // Served by the work, and by members.
        let others = ["CheckpointEndpoint", "Quorum", "Raft"];
        let mut streams = Vec::new();
        for file in std::fs::read_dir(dir).unwrap().flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap();
            let mut service = "";
            for line in text.lines().map(str::trim) {
                if let Some(begun) = line.strip_prefix("service ") {
                    service = begun.trim_end_matches(" {");
                }
                let Some((method, _)) = line.strip_prefix("rpc ").and_then(|rpc| rpc.split_once('(')) else { continue };
                if line.contains("returns (stream ") && !others.contains(&service) {
                    streams.push(format!("{service}/{method}"));
                }
            }
        }
        let unknown: Vec<_> = streams.iter().filter(|method| kind_of(method).is_none()).collect();
        assert!(unknown.is_empty() && streams.len() == STREAMS.len() + OF_WORK.len(), "{unknown:?} of {streams:?}");
    }

    #[test]
    fn a_denial_on_the_network_names_the_token_or_the_login() {
        let by = |authentication: Authentication| {
            let principal = Principal { name: "alice".to_owned(), uid: 7, gid: 7, groups: vec![7] };
            let peer = NetworkPeer { principal, scopes: Scopes::all(), tenants: [].into(), authentication, expires_at: Timestamp(5) };
            recorded(Some(&peer), "no").into_owned()
        };
        assert_eq!(by(Authentication::Token { id: TokenId(0xab), name: "ci".to_owned() }), "by token 00000000000000ab: no");
        let login = Authentication::Oidc { issuer: "https://idp".to_owned(), subject: "s-1".to_owned() };
        assert_eq!(by(login), "by login s-1 of https://idp: no");
        assert_eq!(recorded(None, "no"), "no");
    }

    #[test]
    fn names_that_callers_choose_are_no_labels() {
        let requests = Requests::default();
        requests.answered("AllocationService/Get", Code::Ok, Some(Duration::from_millis(2)));
        requests.answered("AllocationService/Get", Code::NotFound, Some(Duration::from_millis(2)));
        requests.answered("AllocationService/Get", Code::PermissionDenied, None);
        requests.answered("AllocationService/Get", Code::PermissionDenied, None);
        requests.answered("AllocationService/Whatever", Code::Unimplemented, None);
        requests.answered("AllocationService/Whatever", Code::PermissionDenied, None);
        let open = Open::new(&requests, kind_of("AllocationService/Logs").unwrap());
        let mut samples = Samples::default();
        requests.collect(&mut samples, Whose::Ours);
        drop(open);
        let exported: Vec<_> =
            samples.families().flat_map(|(family, all)| all.iter().map(move |one| (family.name, one.labels.join(" ")))).collect();
        assert!(exported.contains(&("lattice_api_requests_total", "AllocationService/Get not_found".to_owned())), "{exported:?}");
        assert!(exported.contains(&("lattice_api_requests_total", "unknown unimplemented".to_owned())), "{exported:?}");
        let denied = samples.families().filter(|(family, _)| family.name == "lattice_api_denied_total");
        let denied: Vec<_> = denied.flat_map(|(_, all)| all.iter().map(|one| (one.labels.join(" "), one.value.clone()))).collect();
        assert_eq!(denied, [("AllocationService/Get".to_owned(), Value::Number(2.0)), ("unknown".to_owned(), Value::Number(1.0))]);
        assert!(exported.iter().all(|(_, labels)| !labels.contains("Whatever")), "{exported:?}");
        assert_eq!(requests.0.open.iter().map(|open| open.load(Ordering::Relaxed)).sum::<u64>(), 0);
    }
}
